//! Makes and checks messages whose bytes tell their number.

use portolan::{Access, Deadline, Domain, Message, ReceiveRight};

use portolan_testkit::{PATIENCE, is_pattern, pattern};

pub(crate) fn long() -> Deadline {
    Deadline::after(PATIENCE)
}

pub(crate) fn message(domain: &Domain, number: u64, lengths: &[usize]) -> Message {
    let mut message = Message::new(&number.to_le_bytes()).unwrap();
    for len in lengths {
        let mut extent = domain.allocate(*len).unwrap();
        pattern(&mut extent, number);
        message.push(extent).unwrap();
    }
    message
}

#[track_caller]
pub(crate) fn is_message(came: &Message, number: u64, lengths: &[usize]) {
    assert_eq!(came.header(), number.to_le_bytes());
    let found: Vec<usize> = came.slices().map(<[u8]>::len).collect();
    assert_eq!(found, lengths);
    came.slices().for_each(|bytes| is_pattern(bytes, number));
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
    came.slices().for_each(|bytes| is_pattern(bytes, number));
    (number, came.len())
}
