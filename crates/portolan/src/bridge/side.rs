//! One side of a connection writes bytes to one byte ring, and reads the other.

use super::control_socket::ControlSocket;
use super::error::{Over, ViolationKind};
use super::memory::ConnectionMemory;
use crate::space::Member;
use crate::space::record::About;
use crate::wait::{Patience, waiting_beside};
use crate::{Deadline, EventKind, Message};
use portolan_shm::byte_ring::{ByteRing, Passed, Reader, Writer};
use portolan_sys::process::{self, EventFd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Threads that are busy with one stream of messages: sender, egress, ingress and receiver. A
/// thread that spins takes the processor from another, unless there are as many processors.
pub(super) const BUSY: usize = 4;

/// Messages between two looks whether to stop, each a system call.
const LOOK_UP: u32 = 256;

/// One side of a connection: the part that egress and ingress have in common.
pub(super) struct Side {
    memory: ConnectionMemory,
    control: ControlSocket,
    writer: Writer,
    reader: Reader,
    /// The byte ring by which this side writes; this side reads the other one.
    out: usize,
    /// Readable once this side is to stop.
    stop: Option<Arc<EventFd>>,
    /// Messages since it looked whether it is to stop.
    passes: u32,
    patience: Patience,
    /// This side writes messages as sealed memory.
    seals: bool,
}

impl Side {
    /// The client's side, which stops when `stop` is readable, if there is one, and sends sealed
    /// memory or copies.
    pub(super) fn client(
        memory: ConnectionMemory,
        control: ControlSocket,
        stop: Option<Arc<EventFd>>,
        seals: bool,
    ) -> Self {
        let mut side = Self::new(memory, control, 0, stop);
        side.seals = seals;
        side
    }

    /// The offering process's side, which stops when `stop` is readable.
    pub(super) fn server(
        memory: ConnectionMemory,
        control: ControlSocket,
        stop: Arc<EventFd>,
    ) -> Self {
        Self::new(memory, control, 1, Some(stop))
    }

    fn new(
        memory: ConnectionMemory,
        control: ControlSocket,
        out: usize,
        stop: Option<Arc<EventFd>>,
    ) -> Self {
        Self {
            memory,
            control,
            writer: Writer::default(),
            reader: Reader::default(),
            out,
            stop,
            passes: 0,
            patience: Patience::default(),
            seals: false,
        }
    }

    /// The byte ring that this side reads.
    pub(super) fn incoming(&self) -> ByteRing<'_> {
        self.memory.ring(1 - self.out)
    }

    /// Whether there is something to read.
    pub(super) fn has_more(&mut self) -> Result<bool, Over> {
        let ring = self.memory.ring(1 - self.out);
        Ok(self.reader.has_more(&ring)?)
    }

    /// Writes all of `bytes`, from a line on.
    pub(super) fn write(&mut self, mut bytes: &[u8]) -> Result<(), Over> {
        while !bytes.is_empty() {
            let passed = self.writer.push(&self.memory.ring(self.out), bytes)?;
            self.passed(passed);
            bytes = &bytes[passed.bytes..];
            if passed.bytes == 0 {
                self.await_room()?;
            }
        }
        Ok(())
    }

    /// Fills `out`, from a line on.
    pub(super) fn read(&mut self, mut out: &mut [u8]) -> Result<(), Over> {
        while !out.is_empty() {
            let passed = self.reader.pull(&self.memory.ring(1 - self.out), out)?;
            self.passed(passed);
            out = &mut out[passed.bytes..];
            if passed.bytes == 0 {
                self.await_more()?;
            }
        }
        Ok(())
    }

    /// Whether this side writes messages as sealed memory.
    pub(super) fn seals(&self) -> bool {
        self.seals
    }

    /// Sends the descriptors that the next frame header names.
    pub(super) fn show(&mut self, fds: &[BorrowedFd<'_>]) -> Result<(), Over> {
        self.control.show(fds)
    }

    /// Takes the descriptors that a frame header names; they came before it.
    pub(super) fn shown(&mut self, count: usize) -> Result<Vec<OwnedFd>, Over> {
        self.control.shown(count)
    }

    /// As [`Self::read`], until a deadline; `None` once it has passed.
    pub(super) fn read_by(
        &mut self,
        mut out: &mut [u8],
        deadline: Deadline,
    ) -> Result<Option<()>, Over> {
        while !out.is_empty() {
            let passed = self.reader.pull(&self.memory.ring(1 - self.out), out)?;
            self.passed(passed);
            out = &mut out[passed.bytes..];
            if passed.bytes > 0 {
                continue;
            }
            if self.control.is_gone() {
                return Err(Over::Gone);
            }
            if deadline.has_passed() {
                return Ok(None);
            }
            if self.reader.arm(&self.memory.ring(1 - self.out))? {
                let left = |at: Instant| at.saturating_duration_since(Instant::now());
                self.poll(&[], deadline.instant().map(left))?;
            }
            self.reader.disarm(&self.memory.ring(1 - self.out));
        }
        Ok(Some(()))
    }

    fn passed(&mut self, passed: Passed) {
        if passed.wake {
            self.control.wake_peer();
        }
    }

    /// Waits until there is room, or the other side is gone.
    fn await_room(&mut self) -> Result<(), Over> {
        loop {
            let mut looking = self.patience.begin(waiting_beside(BUSY));
            while looking.again() {
                if self.writer.has_room(&self.memory.ring(self.out))? {
                    self.patience.paid(&looking);
                    return Ok(());
                }
            }
            if self.control.is_gone() {
                return Err(Over::Gone);
            }
            let begun = looking.begun();
            if self.writer.arm(&self.memory.ring(self.out))? {
                self.poll(&[], None)?;
            }
            self.writer.disarm(&self.memory.ring(self.out));
            self.patience.slept(&looking, begun.elapsed());
            if self.writer.has_room(&self.memory.ring(self.out))? {
                return Ok(());
            }
            // An honest peer reads before it sends more; this one would be polled for ever.
            if self.control.is_full() {
                return Err(ViolationKind::Packet.into());
            }
        }
    }

    /// Waits until there is more, in the middle of something; the other side's end is the end
    /// of it.
    fn await_more(&mut self) -> Result<(), Over> {
        while !self.wait(&[])? {
            if self.control.is_gone() {
                return Err(Over::Gone);
            }
        }
        Ok(())
    }

    /// Waits for something to read; whether there is. Ends early for anything else: one of
    /// `others` is readable, or the other side is gone.
    pub(super) fn wait(&mut self, others: &[BorrowedFd<'_>]) -> Result<bool, Over> {
        let mut looking = self.patience.begin(waiting_beside(BUSY));
        while looking.again() {
            if self.has_more()? {
                self.patience.paid(&looking);
                return Ok(true);
            }
        }
        let begun = looking.begun();
        if self.reader.arm(&self.memory.ring(1 - self.out))? && !self.control.is_gone() {
            self.poll(others, None)?;
        }
        self.reader.disarm(&self.memory.ring(1 - self.out));
        self.patience.slept(&looking, begun.elapsed());
        let more = self.has_more()?;
        // An honest peer has written frame headers for all descriptors but the last.
        if !more && self.control.is_full() {
            return Err(ViolationKind::Packet.into());
        }
        Ok(more)
    }

    pub(super) fn is_gone(&self) -> bool {
        self.control.is_gone()
    }

    /// Sleeps until the other side sends a wake or ends, this side is to stop, one of `others` is
    /// readable, or `time` has passed.
    pub(super) fn poll(
        &mut self,
        others: &[BorrowedFd<'_>],
        time: Option<Duration>,
    ) -> Result<(), Over> {
        let stop = self.stop.as_ref().map(|stop| stop.as_fd());
        let mut fds: Vec<_> = stop.into_iter().collect();
        let stops = fds.len();
        fds.extend(self.control.descriptors());
        let ours = fds.len();
        fds.extend(others);
        let ready = process::poll(&fds, time.map(|time| Instant::now() + time))?;
        if ready[..stops].iter().any(|stop| stop.any()) {
            return Err(Over::Stopped);
        }
        self.control.hear_ready(&ready[stops..ours])
    }

    /// Lets `time` pass. The other side's end does not end the pause: the bytes that it wrote
    /// before are still to be read.
    pub(super) fn pause(&mut self, time: Duration) -> Result<(), Over> {
        let stop = self.stop.as_ref().map(|stop| stop.as_fd());
        let fds: Vec<_> = stop.into_iter().collect();
        let ready = process::poll(&fds, Some(Instant::now() + time))?;
        if ready.iter().any(|stop| stop.any()) {
            return Err(Over::Stopped);
        }
        self.control.hear()
    }

    /// Takes the packets that have come; an error if the other side has gone.
    pub(super) fn hear(&mut self) -> Result<(), Over> {
        self.control.hear()?;
        if self.control.is_gone() {
            return Err(Over::Gone);
        }
        Ok(())
    }

    /// Looks now and then whether to stop; a side that never waits calls it before each message.
    pub(super) fn look_up(&mut self) -> Result<(), Over> {
        self.passes += 1;
        if self.passes < LOOK_UP {
            return Ok(());
        }
        self.passes = 0;
        match self.is_stopped() {
            true => Err(Over::Stopped),
            false => Ok(()),
        }
    }

    /// Whether this side is to stop.
    pub(super) fn is_stopped(&self) -> bool {
        let stop = self.stop.as_ref().map(|stop| stop.as_fd());
        let fds: Vec<_> = stop.into_iter().collect();
        let ready = process::poll(&fds, Some(Instant::now()));
        ready.is_ok_and(|ready| ready.iter().any(|stop| stop.any()))
    }
}

/// Carries a message over the border of the domain, and records its bytes, if the domain is traced.
pub(super) fn crossing<T>(
    member: &Member,
    kind: EventKind,
    port: u16,
    carry: impl FnOnce() -> Result<(T, u64), Over>,
) -> Result<T, Over> {
    let begun = member.begins(kind);
    let (carried, bytes) = carry()?;
    if let Some(begun) = begun {
        let about = About {
            bytes,
            ..About::port(port)
        };
        member.record(begun, about);
    }
    Ok(carried)
}

/// Bytes of a message that goes over: its header, and what it holds.
pub(super) fn bytes_of(message: &Message) -> u64 {
    (message.header().len() + message.len()) as u64
}
