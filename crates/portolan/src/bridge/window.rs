//! A port's window holds the messages that a client has begun to send and that are not in the real
//! port yet.
//!
//! ```text
//! client's window:   begun -------------------------------> Accepted has come
//! server's window:          frame header read --> in the port
//! ```
//!
//! Both sides count alike, the client for longer. So what has room in the client's window has room
//! in the server's, which checks it. The server says what it has accepted once that is half of
//! a window; a client that cannot go on before that asks ([`Window::must_ask`]).
//!
//! The bytes of sealed memory do not count: they are the client's memory, wherever the message is. If
//! they did, a message of more than 2 MiB would be half of a window, and be said to be accepted at
//! once, by a frame that wakes a client which waits for nothing.

use portolan_abi::bridge::{MAX_SEALED, MAX_STAGED};
use std::collections::VecDeque;

/// What a message takes of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Taken {
    /// Bytes of memory of the domain that it comes to.
    pub(super) bytes: u64,
    /// Parts of sealed memory, each of which takes a descriptor there.
    pub(super) parts: usize,
}

impl Taken {
    fn and(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            parts: self.parts + other.parts,
        }
    }

    fn without(self, other: Self) -> Self {
        Self {
            bytes: self.bytes - other.bytes,
            parts: self.parts - other.parts,
        }
    }
}

/// One side's account of a port's window.
pub(super) struct Window {
    /// Messages, and bytes that several of them may take together.
    messages: usize,
    bytes: u64,
    /// The oldest first.
    under_way: VecDeque<Taken>,
    sum: Taken,
    /// Messages in all that are in the port.
    accepted: u64,
}

impl Window {
    /// Of so many messages, each of which may take `most` bytes.
    pub(super) fn new(messages: u32, most: u64) -> Self {
        Self {
            messages: usize::try_from(messages).unwrap_or(usize::MAX),
            bytes: most.min(MAX_STAGED),
            under_way: VecDeque::new(),
            sum: Taken::default(),
            accepted: 0,
        }
    }

    /// Whether one more may begin. A message alone may take more than several together.
    pub(super) fn fits(&self, taken: Taken) -> bool {
        let sum = self.sum.and(taken);
        let beside = sum.bytes <= self.bytes && sum.parts <= MAX_SEALED;
        self.under_way.is_empty() || self.under_way.len() < self.messages && beside
    }

    /// One more begins, which fits.
    pub(super) fn begin(&mut self, taken: Taken) {
        self.under_way.push_back(taken);
        self.sum = self.sum.and(taken);
    }

    /// The oldest is in the port; what it has taken.
    fn accept(&mut self) -> Option<Taken> {
        let taken = self.under_way.pop_front()?;
        self.sum = self.sum.without(taken);
        self.accepted += 1;
        Some(taken)
    }

    /// The other side says that so many in all are in the port; whether that can be.
    pub(super) fn accept_to(&mut self, accepted: u64) -> bool {
        while self.accepted < accepted {
            if self.accept().is_none() {
                return false;
            }
        }
        self.accepted == accepted
    }

    /// Whether so many messages are said to be accepted unasked.
    fn is_half(&self, messages: usize, taken: Taken) -> bool {
        2 * messages >= self.messages
            || taken.bytes.saturating_mul(2) >= self.bytes
            || 2 * taken.parts >= MAX_SEALED
    }

    /// Whether the other side says nothing by itself, also if all of these are accepted.
    pub(super) fn must_ask(&self) -> bool {
        !self.is_half(self.under_way.len(), self.sum)
    }
}

/// The offering process's account: with what it has said of it.
pub(super) struct Accepting {
    window: Window,
    /// Accepted and not said yet.
    unsaid: usize,
    taken: Taken,
    /// The client has asked.
    asked: bool,
}

impl Accepting {
    pub(super) fn new(window: Window) -> Self {
        Self {
            window,
            unsaid: 0,
            taken: Taken::default(),
            asked: false,
        }
    }

    /// A message begins; whether it may.
    pub(super) fn begin(&mut self, taken: Taken) -> bool {
        let fits = self.window.fits(taken);
        if fits {
            self.window.begin(taken);
        }
        fits
    }

    /// The oldest is in the port.
    pub(super) fn accept(&mut self) {
        if let Some(taken) = self.window.accept() {
            self.unsaid += 1;
            self.taken = self.taken.and(taken);
        }
    }

    /// The client has asked.
    pub(super) fn ask(&mut self) {
        self.asked = true;
    }

    /// Whether it is to be said now.
    pub(super) fn is_due(&self) -> bool {
        self.unsaid > 0 && (self.asked || self.window.is_half(self.unsaid, self.taken))
    }

    /// Messages in all that are in the port. It is said now.
    pub(super) fn say(&mut self) -> u64 {
        (self.unsaid, self.taken, self.asked) = (0, Taken::default(), false);
        self.window.accepted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: u64) -> Taken {
        Taken { bytes, parts: 0 }
    }

    #[test]
    fn a_window_is_of_messages_bytes_and_parts() {
        let mut window = Window::new(3, 1 << 20);
        for _ in 0..3 {
            assert!(window.fits(of(0)));
            window.begin(of(0));
        }
        assert!(!window.fits(of(0)));
        assert!(window.accept_to(3) && !window.accept_to(2) && !window.accept_to(4));
        let mut window = Window::new(64, 1 << 20);
        window.begin(of(1));
        assert!(window.fits(of((1 << 20) - 1)) && !window.fits(of(1 << 20)));
        assert!(!window.fits(of(u64::MAX)));
        // A single one may take more than several together.
        let mut window = Window::new(64, 1 << 40);
        assert!(window.fits(of(1 << 40)));
        window.begin(of(1 << 40));
        assert!(!window.fits(of(0)) && window.accept_to(1));
        let parts = |parts| Taken { bytes: 0, parts };
        window.begin(parts(1));
        assert!(window.fits(parts(MAX_SEALED - 1)) && !window.fits(parts(MAX_SEALED)));
    }

    /// Of messages that are sealed memory and nothing else, each half of the parts that may be under way
    /// is said in one.
    #[test]
    fn sealed_messages_are_accepted_many_at_once() {
        let sealed = Taken { bytes: 0, parts: 1 };
        let mut client = Window::new(64, 1 << 30);
        let mut server = Accepting::new(Window::new(64, 1 << 30));
        let mut said = 0;
        for _ in 0..900 {
            assert!(client.fits(sealed));
            client.begin(sealed);
            assert!(server.begin(sealed));
            server.accept();
            if server.is_due() {
                assert!(client.accept_to(server.say()));
                said += 1;
            }
        }
        assert_eq!(said, 900 / MAX_SEALED.div_ceil(2));
    }

    /// Whatever a client has under way: it is told, or asks and is told.
    #[test]
    fn no_client_waits_for_ever() {
        let mut seed = 1_u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (seed >> 33) % below
        };
        for _ in 0..2000 {
            let most = 1 << next(30);
            let messages = u32::try_from(1 + next(64)).unwrap();
            let mut client = Window::new(messages, most);
            let mut server = Accepting::new(Window::new(messages, most));
            for _ in 0..200 {
                let bytes = [0, next(most + 1), next(1 + most / 8), most];
                let parts = [0, 0, 0, usize::try_from(next(18)).unwrap()];
                let taken = Taken {
                    bytes: bytes[usize::try_from(next(4)).unwrap()],
                    parts: parts[usize::try_from(next(4)).unwrap()],
                };
                while !client.fits(taken) {
                    if client.must_ask() {
                        server.ask();
                    }
                    // It accepts all, and says so at the end or on the way.
                    while server.window.accepted < client.accepted + client.under_way.len() as u64
                        && !server.is_due()
                    {
                        server.accept();
                    }
                    assert!(server.is_due());
                    let said = server.say();
                    assert!(said > client.accepted && client.accept_to(said));
                }
                client.begin(taken);
                assert!(server.begin(taken), "what fits here fits there");
            }
        }
    }
}
