//! Defines the path that carries the transport's packets.

use crate::packet::{Unsealed, behead, summed};
use portolan_abi::rpc::HEADER_BYTES;
use portolan_abi::sum;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// One end of a connection: a channel in each direction, which may lose, damage, repeat,
/// reorder or delay packets, but keeps where one ends and the next begins.
///
/// See [`Pipe`] for one that loses nothing.
pub trait PacketPath {
    /// The position that the next packet will have. It seeds the packet's checksum, so a
    /// receiver that is out of step sees it as damaged.
    fn position(&self) -> u64;

    /// Sends a packet, or loses it.
    fn send(&mut self, packet: &[u8]);

    /// As [`PacketPath::send`], of a packet that is sealed on its way. `spare` is memory in which it
    /// may be put together.
    fn send_unsealed(&mut self, packet: &Unsealed<'_>, spare: &mut Vec<u8>) {
        let sum = if packet.is_summed() {
            sum::of(packet.body())
        } else {
            0
        };
        packet.write(sum, spare);
        self.send(spare);
    }

    /// The next packet, in place of what `packet` holds, and its position; `None` if there is
    /// none now.
    fn receive(&mut self, packet: &mut Vec<u8>) -> Option<u64>;

    /// As [`PacketPath::receive`], with the packet's head apart from its body, and summed on its way.
    fn receive_summed(&mut self, body: &mut Vec<u8>) -> Option<Arrived> {
        let position = self.receive(body)?;
        Some(Arrived::of(position, body, sum::of))
    }

    /// As [`PacketPath::receive_summed`], for the straight lines; a link may leave a packet there that
    /// takes more than one look.
    #[inline(always)]
    fn receive_straight(&mut self, body: &mut Vec<u8>) -> Option<Arrived> {
        self.receive_summed(body)
    }
}

/// A packet that has come: all but its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Its position.
    pub position: u64,
    /// The words before the body; `None` if it is too short to have any.
    pub head: Option<[u64; 2]>,
    /// The sum of what is summed of the body ([`summed`]).
    pub sum: u64,
}

impl Arrived {
    /// Of a whole packet, of which the body is left, summed by `sum`.
    pub fn of(position: u64, packet: &mut Vec<u8>, sum: impl FnOnce(&[u8]) -> u64) -> Self {
        let head = behead(packet).map(|(head, _)| head);
        packet.drain(..packet.len().min(HEADER_BYTES));
        let covered = head.and_then(|head| summed(head, packet));
        Self {
            position,
            head,
            sum: covered.map_or(0, sum),
        }
    }
}

impl<L: PacketPath + ?Sized> PacketPath for &mut L {
    fn position(&self) -> u64 {
        (**self).position()
    }

    fn send(&mut self, packet: &[u8]) {
        (**self).send(packet);
    }

    fn send_unsealed(&mut self, packet: &Unsealed<'_>, spare: &mut Vec<u8>) {
        (**self).send_unsealed(packet, spare);
    }

    fn receive(&mut self, packet: &mut Vec<u8>) -> Option<u64> {
        (**self).receive(packet)
    }

    fn receive_summed(&mut self, body: &mut Vec<u8>) -> Option<Arrived> {
        (**self).receive_summed(body)
    }

    fn receive_straight(&mut self, body: &mut Vec<u8>) -> Option<Arrived> {
        (**self).receive_straight(body)
    }
}

/// A path within one thread that loses nothing, for examples and tests.
///
/// ```
/// use portolan_proto::{PacketPath, Pipe};
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

impl PacketPath for Pipe {
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
