//! Bytes that tell of a mistake whatever was mixed up: they differ by place and by message.

use std::iter::zip;

/// A byte that stands at this place in this message, and seldom elsewhere.
fn byte(number: u64, at: usize) -> u8 {
    let mixed = (at as u64 ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed.to_le_bytes()[7]
}

/// Fills `bytes` as those of the message with this number.
///
/// ```
/// use portolan_testkit::{is_pattern, pattern};
///
/// let mut bytes = [0; 100];
/// pattern(&mut bytes, 7);
/// is_pattern(&bytes, 7);
/// ```
pub fn pattern(bytes: &mut [u8], number: u64) {
    for (at, to) in bytes.iter_mut().enumerate() {
        *to = byte(number, at);
    }
}

/// Checks that `bytes` are those of the message with this number.
///
/// # Panics
///
/// Panics if they are not, and says from where on.
///
/// ```should_panic
/// portolan_testkit::is_pattern(&[0; 100], 7);
/// ```
#[track_caller]
pub fn is_pattern(bytes: &[u8], number: u64) {
    let right = (0..bytes.len()).map(|at| byte(number, at));
    let wrong = zip(bytes, right).position(|(is, right)| *is != right);
    if let Some(at) = wrong {
        let len = bytes.len();
        panic!("byte {at} of {len} is not that of message {number}");
    }
}
