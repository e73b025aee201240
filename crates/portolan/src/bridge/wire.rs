//! A wire is what one side of a connection has of it: bytes go one way and the other.

use super::carrier::Context;
use super::control_socket::Watched;
use super::error::{Over, ViolationKind};
use super::memory::ConnectionMemory;
use portolan_shm::byte_ring::{Reader, Writer};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;

/// A wire that was agreed on, before a task has it.
pub(super) trait Agreed: Send {
    /// Has a task's end of it.
    fn of_task(self: Box<Self>, context: &Rc<Context>) -> io::Result<Box<dyn Wire>>;
}

/// One end of a connection. Nothing here waits. What is *armed* has the task polled once there is
/// room, or more, or the other side is gone.
pub(super) trait Wire {
    /// Writes the beginning of `bytes`, from a line on if the wire has lines; how many. None: there
    /// is no room.
    fn push(&mut self, bytes: &[u8]) -> Result<usize, Over>;

    /// Reads into the beginning of `out`; how many. None: nothing is there.
    fn pull(&mut self, out: &mut [u8]) -> Result<usize, Over>;

    /// Whether there is room; if not, it is armed, if that is asked for.
    fn has_room(&mut self, arms: bool) -> Result<bool, Over>;

    /// Whether there is something to read; if not, it is armed, if that is asked for.
    fn has_more(&mut self, arms: bool) -> Result<bool, Over>;

    /// Hears what the task was told of. [`has_more`](Self::has_more) afterwards knows all that the
    /// other side has written, if it is gone.
    fn hear_news(&mut self) -> Result<(), Over>;

    /// Whether the other side is known to be gone.
    fn is_gone(&self) -> bool;

    /// Sends descriptors, if there is room; whether there was.
    fn show(&mut self, fds: &[BorrowedFd<'_>]) -> Result<bool, Over>;

    /// Takes so many descriptors, which came before the frame header that names them.
    fn shown(&mut self, count: usize) -> Result<Vec<OwnedFd>, Over>;

    /// Says how many messages were delivered.
    fn set_delivered(&mut self, count: u64);
}

/// Two byte rings and a control socket.
pub(super) struct Rings {
    memory: ConnectionMemory,
    control: Watched,
    writer: Writer,
    reader: Reader,
    /// It has said that it sleeps until there is room, or more.
    awaits_room: bool,
    awaits_more: bool,
    /// The byte ring by which this side writes; it reads the other one.
    out: usize,
}

impl Rings {
    /// The end that writes the byte ring `out`, and has read what `reader` says.
    pub(super) fn new(
        memory: ConnectionMemory,
        control: Watched,
        reader: Reader,
        out: usize,
    ) -> Self {
        Self {
            memory,
            control,
            writer: Writer::default(),
            reader,
            awaits_room: false,
            awaits_more: false,
            out,
        }
    }

    fn wake_peer(&mut self, wakes: bool) {
        if wakes {
            self.control.control.wake_peer();
        }
    }
}

impl Wire for Rings {
    fn push(&mut self, bytes: &[u8]) -> Result<usize, Over> {
        let passed = self.writer.push(&self.memory.ring(self.out), bytes)?;
        self.wake_peer(passed.wake);
        Ok(passed.bytes)
    }

    fn pull(&mut self, out: &mut [u8]) -> Result<usize, Over> {
        let passed = self.reader.pull(&self.memory.ring(1 - self.out), out)?;
        self.wake_peer(passed.wake);
        Ok(passed.bytes)
    }

    fn has_room(&mut self, arms: bool) -> Result<bool, Over> {
        let ring = self.memory.ring(self.out);
        if std::mem::take(&mut self.awaits_room) {
            self.writer.disarm(&ring);
        }
        if self.writer.has_room(&ring)? {
            return Ok(true);
        }
        self.awaits_room = arms && self.writer.arm(&ring)?;
        Ok(arms && !self.awaits_room)
    }

    fn has_more(&mut self, arms: bool) -> Result<bool, Over> {
        let ring = self.memory.ring(1 - self.out);
        if std::mem::take(&mut self.awaits_more) {
            self.reader.disarm(&ring);
        }
        if self.reader.has_more(&ring)? {
            return Ok(true);
        }
        // An honest peer has written frame headers for all descriptors but the last.
        if self.control.control.is_full() {
            return Err(ViolationKind::Packet.into());
        }
        self.awaits_more = arms && self.reader.arm(&ring)?;
        Ok(arms && !self.awaits_more)
    }

    fn hear_news(&mut self) -> Result<(), Over> {
        self.control.hear_news()
    }

    fn is_gone(&self) -> bool {
        self.control.control.is_gone()
    }

    fn show(&mut self, fds: &[BorrowedFd<'_>]) -> Result<bool, Over> {
        self.control.control.show(fds)
    }

    fn shown(&mut self, count: usize) -> Result<Vec<OwnedFd>, Over> {
        self.control.control.shown(count)
    }

    fn set_delivered(&mut self, count: u64) {
        self.memory.ring(1 - self.out).set_delivered(count);
    }
}
