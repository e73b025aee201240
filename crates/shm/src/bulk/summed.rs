//! Copies bytes and makes their checksum in the same pass: that of [`portolan_abi::sum::of`].
//!
//! Every word is read once: what goes into the sum is what went to the other side. So a
//! reader whose sum is right has in its own memory what the writer summed, whatever
//! happened to the shared words before, meanwhile, or afterwards.
//!
//! | the processor has | copies | sums of private bytes |
//! |---|---|---|
//! | AVX2 and VAES | one pass | `aes` |
//! | AES | a copy, and a sum of its private side | `aes` |
//! | neither | the same | tables |

use crate::atomic::AtomicU64;
use portolan_abi::sum::{self, SHORT};

#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
mod aes;
#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
mod vector;

/// As [`super::store`]; the bytes' sum.
///
/// The first words are written last: they lie in the line that a reader may be watching.
///
/// # Panics
///
/// If the bytes do not fit.
#[inline(always)]
pub fn store(words: &[AtomicU64], bytes: &[u8]) -> u64 {
    if bytes.is_empty() {
        return 0;
    }
    store_some(words, bytes)
}

#[inline(never)]
fn store_some(words: &[AtomicU64], bytes: &[u8]) -> u64 {
    assert!(bytes.len() <= words.len() * 8, "the words are too few");
    if let Some((short, long)) = split(bytes) {
        return store_both(words, short, long);
    }
    super::store(words, bytes);
    sum::of_short(bytes)
}

/// As [`super::load`]; the bytes' sum.
///
/// # Panics
///
/// If the words do not suffice.
#[inline(always)]
pub fn load(words: &[AtomicU64], bytes: &mut [u8]) -> u64 {
    if bytes.is_empty() {
        return 0;
    }
    load_some(words, bytes)
}

#[inline(never)]
fn load_some(words: &[AtomicU64], bytes: &mut [u8]) -> u64 {
    assert!(bytes.len() <= words.len() * 8, "the words are too few");
    if bytes.len() > SHORT {
        return load_both(words, bytes);
    }
    super::load(words, bytes);
    sum::of_short(bytes)
}

/// What [`sum::of`] says, sooner where the processor can.
#[inline]
pub fn of(bytes: &[u8]) -> u64 {
    match split(bytes) {
        Some((short, long)) => sum::join(sum::of_short(short), Some(of_long(long))),
        None => sum::of_short(bytes),
    }
}

/// The first bytes, whose number the compiler knows, and what comes after them, if anything
/// does.
#[inline]
fn split(bytes: &[u8]) -> Option<(&[u8; SHORT], &[u8])> {
    let split = bytes.split_first_chunk();
    split.filter(|(_, long)| !long.is_empty())
}

// Out of the way of calls without arguments.
#[inline(never)]
fn store_both(words: &[AtomicU64], short: &[u8; SHORT], long: &[u8]) -> u64 {
    let of_long = store_long(&words[SHORT / 8..], long);
    super::store(words, short);
    sum::join(sum::of_short(short), Some(of_long))
}

#[inline(never)]
fn load_both(words: &[AtomicU64], bytes: &mut [u8]) -> u64 {
    let (short, long) = bytes.split_at_mut(SHORT);
    super::load(words, short);
    let of_long = load_long(&words[SHORT / 8..], long);
    sum::join(sum::of_short(short), Some(of_long))
}

fn of_long(bytes: &[u8]) -> u64 {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    if let Some(sum) = aes::of_long(bytes) {
        return sum;
    }
    sum::of_long(bytes)
}

fn store_long(words: &[AtomicU64], bytes: &[u8]) -> u64 {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    if let Some(sum) = vector::store(words, bytes) {
        return sum;
    }
    super::store(words, bytes);
    of_long(bytes)
}

fn load_long(words: &[AtomicU64], bytes: &mut [u8]) -> u64 {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    if let Some(sum) = vector::load(words, bytes) {
        return sum;
    }
    super::load(words, bytes);
    of_long(bytes)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_copied_is_summed() {
        let bytes: Vec<u8> = (0..=255).cycle().take(1500).collect();
        // Miri has no time for all of them.
        let step = if cfg!(miri) { 331 } else { 1 };
        for len in (0..bytes.len()).step_by(step) {
            let bytes = &bytes[..len];
            let words: Vec<AtomicU64> = (0..190).map(|_| AtomicU64::new(u64::MAX)).collect();
            let mut copy = vec![9; len];
            let sums = [store(&words, bytes), load(&words, &mut copy), of(bytes)];
            assert_eq!(copy, bytes, "{len}");
            assert_eq!(sums, [sum::of(bytes); 3], "{len}");
            let behind = &words[len.div_ceil(8)..];
            let untouched = |w: &AtomicU64| w.load(crate::atomic::Ordering::Relaxed) == u64::MAX;
            assert!(behind.iter().all(untouched), "{len}");
        }
    }

    #[test]
    fn every_way_says_the_same() {
        let bytes: Vec<u8> = (0..=255).rev().cycle().take(900).collect();
        for len in (1..bytes.len()).step_by(if cfg!(miri) { 211 } else { 1 }) {
            let bytes = &bytes[..len];
            let words: Vec<AtomicU64> = (0..113).map(|_| AtomicU64::new(0)).collect();
            let mut copy = vec![0; len];
            let tables = sum::of_long(bytes);
            let sums = [
                store_long(&words, bytes),
                load_long(&words, &mut copy),
                of_long(bytes),
            ];
            assert_eq!((sums, &copy[..]), ([tables; 3], bytes), "{len}");
        }
    }
}
