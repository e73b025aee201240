//! Room in a port's queue is waited for without a thread for each port.
//!
//! A sender that waits for room sleeps on a word of the port's entry, which the receiver changes
//! once half the ring is free, or the queue empty. A wait set has its bell wait for the words of
//! all ports in which it waits for room, so one thread, or one descriptor, waits for any number.

use super::rights::SendRight;
use crate::space::region::Attached;
use crate::wait::Armable;
use portolan_abi::port::{ANY_BYTES, PortStatus};
use portolan_shm::mark;
use std::sync::atomic::{AtomicU32, Ordering};

/// Room in a port's queue, to be waited for ([`WaitSet::add`](crate::WaitSet::add)). It counts as no
/// right.
///
/// A wait names it when a message may be sent: there is room, or the port is dead, which a send
/// says. Others may take the room before. So a sender whose queue was full adds it, and when it is
/// named, takes it out or sends until the queue is full again.
///
/// ```
/// use portolan::{Access, Deadline, Domain, Message, PortOptions, SendError, WaitSet, WhenFull};
/// let domain = Domain::private()?;
/// let mut port = domain.bind(PortOptions::unnamed().queue(1))?;
/// let right = port.make_send();
/// while right.send(Message::new(b"1")?, WhenFull::Fail).is_ok() {}
///
/// let mut set = WaitSet::new(&domain)?;
/// let token = set.add(right.room())?;
/// assert!(set.wait(Deadline::NOW)?.is_empty());
/// while port.receive(Access::Later, Deadline::NOW).is_ok() {}
/// assert_eq!(set.wait(Deadline::NEVER)?.next(), Some(token.any()));
/// right.send(Message::new(b"2")?, WhenFull::Fail)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Room {
    to: Attached,
    /// The value of the word when the wait for it was announced last.
    announced: u32,
    /// So many slots must be free.
    least: usize,
}

impl SendRight {
    /// Room in the port's queue, to be waited for in a wait set.
    pub fn room(&self) -> Room {
        Room {
            to: self.to.clone(),
            announced: 0,
            least: 1,
        }
    }
}

impl SendRight {
    /// Slots of the port's queue, which stay as many when the port is dead.
    pub(crate) fn slots(&self) -> u64 {
        self.to.queue().slots() as u64
    }

    /// Whether what is sent there goes on to another domain or node, as things are.
    pub(crate) fn leads_on(&self) -> bool {
        let control = &self.to.queue().port.control;
        // Relaxed: of a port that lives, as its options, stored before its status.
        self.status().proxied || control.most.load(Ordering::Relaxed) != ANY_BYTES
    }
}

impl Room {
    /// Room for so many messages; for more than half of the queue's, the half.
    ///
    /// ```
    /// use portolan::{Access, Deadline, Domain, Message, PortOptions, WaitSet, WhenFull};
    /// let domain = Domain::private()?;
    /// let mut port = domain.bind(PortOptions::unnamed().queue(16))?;
    /// let right = port.make_send();
    /// while right.send(Message::new(b"1")?, WhenFull::Fail).is_ok() {}
    /// port.receive(Access::Later, Deadline::NOW)?;
    /// let mut set = WaitSet::new(&domain)?;
    /// let token = set.add(right.room().for_messages(3))?;
    /// assert!(set.wait(Deadline::NOW)?.is_empty());
    /// while port.receive(Access::Later, Deadline::NOW).is_ok() {}
    /// assert_eq!(set.wait(Deadline::NEVER)?.next(), Some(token.any()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn for_messages(mut self, messages: usize) -> Self {
        let half = self.to.queue().slots() / 2;
        self.least = messages.min(half).max(1);
        self
    }

    /// Messages for which there is room, as things are, if the port lives.
    pub fn free(&self) -> usize {
        if self.to.member.present().is_err() {
            return 0;
        }
        let queue = self.to.queue();
        match queue.has_room() {
            true => queue.free().max(1),
            false => 0,
        }
    }

    /// Whether a message may be sent, or [so many](Self::for_messages), as things are.
    pub fn is_there(&self) -> bool {
        if self.to.member.present().is_err() {
            // A send says it.
            return true;
        }
        let queue = self.to.queue();
        // Acquire, and after the look at the slots: they may be another port's.
        let has_room = queue.has_room();
        let status = PortStatus::unpack(queue.port.control.status.load(Ordering::Acquire));
        let has_room = has_room && (self.least == 1 || self.free() >= self.least);
        has_room || !super::rights::is_live(status, self.to.port)
    }
}

impl Armable for Room {
    fn kind(&self) -> &'static str {
        "the room in a port"
    }

    fn membership(&self) -> u64 {
        self.to.member.number
    }

    fn may_have(&mut self) -> bool {
        self.is_there()
    }

    fn has_alarms(&self) -> bool {
        true
    }

    fn word(&self) -> Option<(&AtomicU32, u32)> {
        Some((&self.to.queue().port.room.room, self.announced))
    }

    fn arm_for(&mut self, link: u64) -> bool {
        if link == 0 {
            // The announcement stays: the receiver takes it back when it wakes nobody.
            return true;
        }
        // Q7 of queues: announced before the look.
        self.announced = self.to.queue().announce_waiting();
        mark!("room.announced");
        !self.is_there()
    }
}

impl std::fmt::Debug for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Room").field(&self.to.port).finish()
    }
}
