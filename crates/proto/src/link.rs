//! What the transport stands on.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// One end of a connection: a channel in each direction, which may lose, damage, repeat,
/// reorder or delay packets, but keeps where one ends and the next begins.
///
/// See [`Pipe`] for one that loses nothing.
pub trait Link {
    /// The position that the next packet will have. It seeds the packet's checksum, so a
    /// receiver that is out of step sees it as damaged.
    fn position(&self) -> u64;

    /// Sends a packet, or loses it.
    fn send(&mut self, packet: &[u8]);

    /// As [`Link::send`], of a packet whose parts lie apart. `spare` is memory in which they
    /// may be put together.
    fn send_parts(&mut self, parts: &[&[u8]; 3], spare: &mut Vec<u8>) {
        spare.clear();
        for part in parts {
            spare.extend_from_slice(part);
        }
        self.send(spare);
    }

    /// The next packet, in place of what `packet` holds, and its position; `None` if there is
    /// none now.
    fn receive(&mut self, packet: &mut Vec<u8>) -> Option<u64>;
}

impl<L: Link + ?Sized> Link for &mut L {
    fn position(&self) -> u64 {
        (**self).position()
    }

    fn send(&mut self, packet: &[u8]) {
        (**self).send(packet);
    }

    fn send_parts(&mut self, parts: &[&[u8]; 3], spare: &mut Vec<u8>) {
        (**self).send_parts(parts, spare);
    }

    fn receive(&mut self, packet: &mut Vec<u8>) -> Option<u64> {
        (**self).receive(packet)
    }
}

/// A link within one thread that loses nothing, for examples and tests.
///
/// ```
/// use portolan_proto::{Link, Pipe};
/// let (mut here, mut there) = Pipe::pair();
/// here.send(b"packet");
/// let mut packet = Vec::new();
/// assert_eq!(there.receive(&mut packet), Some(0));
/// assert_eq!((&packet[..], here.position()), (&b"packet"[..], 1));
/// ```
#[derive(Debug)]
pub struct Pipe {
    sent: u64,
    to: Queue,
    from: Queue,
}

type Queue = Rc<RefCell<VecDeque<(u64, Vec<u8>)>>>;

impl Pipe {
    /// Both ends.
    pub fn pair() -> (Self, Self) {
        let (up, down) = (Queue::default(), Queue::default());
        let end = |to: &Queue, from: &Queue| Self {
            sent: 0,
            to: Rc::clone(to),
            from: Rc::clone(from),
        };
        (end(&up, &down), end(&down, &up))
    }
}

impl Link for Pipe {
    fn position(&self) -> u64 {
        self.sent
    }

    fn send(&mut self, packet: &[u8]) {
        self.to.borrow_mut().push_back((self.sent, packet.to_vec()));
        self.sent += 1;
    }

    fn receive(&mut self, packet: &mut Vec<u8>) -> Option<u64> {
        let (position, bytes) = self.from.borrow_mut().pop_front()?;
        *packet = bytes;
        Some(position)
    }
}
