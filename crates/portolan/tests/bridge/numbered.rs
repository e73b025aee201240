//! Makes and checks messages whose bytes tell their number.

use portolan::{Access, Deadline, Domain, Message, ReceiveRight};

use portolan_testkit::PATIENCE;

pub(crate) fn long() -> Deadline {
    Deadline::after(PATIENCE)
}

/// The value of word `at` of message `number`.
fn word(at: usize, number: u64) -> u64 {
    (at as u64 ^ number << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

pub(crate) fn fill(bytes: &mut [u8], number: u64) {
    for (at, chunk) in bytes.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&word(at, number).to_le_bytes()[..chunk.len()]);
    }
}

#[track_caller]
pub(crate) fn is_filled(bytes: &[u8], number: u64) {
    let wrong = bytes
        .chunks(8)
        .enumerate()
        .position(|(at, chunk)| chunk != &word(at, number).to_le_bytes()[..chunk.len()]);
    assert_eq!(wrong, None, "a word of message {number}");
}

pub(crate) fn message(domain: &Domain, number: u64, lengths: &[usize]) -> Message {
    let mut message = Message::new(&number.to_le_bytes()).unwrap();
    for len in lengths {
        let mut extent = domain.allocate(*len).unwrap();
        fill(&mut extent, number);
        message.push(extent).unwrap();
    }
    message
}

#[track_caller]
pub(crate) fn is_message(came: &Message, number: u64, lengths: &[usize]) {
    assert_eq!(came.header(), number.to_le_bytes());
    let found: Vec<usize> = came.slices().map(<[u8]>::len).collect();
    assert_eq!(found, lengths);
    came.slices().for_each(|bytes| is_filled(bytes, number));
}

/// Extents that any space of a domain holds.
pub(crate) fn held(domain: &Domain) -> u64 {
    let survey = domain.survey().unwrap();
    survey.holdings.iter().map(|h| h.extents).sum()
}

/// The next message, whole, whichever it is.
#[track_caller]
pub(crate) fn next(port: &mut ReceiveRight) -> (u64, usize) {
    let came = port.receive(Access::Later, long()).unwrap();
    let number = u64::from_le_bytes(came.header().try_into().unwrap());
    came.slices().for_each(|bytes| is_filled(bytes, number));
    (number, came.len())
}
