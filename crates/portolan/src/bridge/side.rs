//! One side of a connection writes bytes to one byte ring, and reads the other.

use super::carrier::Context;
use super::control_socket::{ControlSocket, Watched};
use super::error::{Over, ViolationKind};
use super::memory::ConnectionMemory;
use crate::space::Member;
use crate::space::record::About;
use crate::{Deadline, EventKind, Message};
use portolan_shm::byte_ring::{ByteRing, Passed, Reader, Writer};
use portolan_sys::process;
use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

/// Between two looks whether there is room for descriptors in the other side's socket, at first and
/// at the most.
const NO_ROOM: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// One side of a connection that was agreed on, before a task has it.
pub(super) struct Connection {
    pub(super) memory: ConnectionMemory,
    pub(super) control: ControlSocket,
    reader: Reader,
    /// The byte ring by which this side writes; this side reads the other one.
    out: usize,
    /// This side writes messages as sealed memory.
    seals: bool,
}

impl Connection {
    /// The client's side, which sends sealed memory or copies.
    pub(super) fn client(memory: ConnectionMemory, control: ControlSocket, seals: bool) -> Self {
        Self {
            memory,
            control,
            reader: Reader::default(),
            out: 0,
            seals,
        }
    }

    /// Fills `out`, from a line on, until a deadline; `None` once it has passed.
    pub(super) fn read_by(
        &mut self,
        mut out: &mut [u8],
        deadline: Deadline,
    ) -> Result<Option<()>, Over> {
        while !out.is_empty() {
            let ring = self.memory.ring(1 - self.out);
            let passed = self.reader.pull(&ring, out)?;
            if passed.wake {
                self.control.wake_peer();
            }
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
            if self.reader.arm(&ring)? {
                let fds: Vec<_> = self.control.descriptors().collect();
                process::poll(&fds, deadline.instant())?;
                self.control.hear()?;
            }
            self.reader.disarm(&ring);
        }
        Ok(Some(()))
    }

    /// Has a task's side of it.
    pub(super) fn of_task(self, context: &Rc<Context>) -> io::Result<Side> {
        let control = Watched::new(self.control, context)?;
        let mut side = Side::new(self.memory, control, self.out, context);
        (side.reader, side.seals) = (RefCell::new(self.reader), self.seals);
        Ok(side)
    }
}

/// One side of a connection: the part that egress and ingress have in common. Reading and writing
/// go on side by side, in one task.
pub(super) struct Side {
    context: Rc<Context>,
    memory: ConnectionMemory,
    control: RefCell<Watched>,
    writer: RefCell<Writer>,
    reader: RefCell<Reader>,
    /// It has said that it sleeps until there is room, or more.
    awaits_room: Cell<bool>,
    awaits_more: Cell<bool>,
    out: usize,
    seals: bool,
}

impl Side {
    /// The offering process's side.
    pub(super) fn server(
        memory: ConnectionMemory,
        control: Watched,
        context: &Rc<Context>,
    ) -> Self {
        Self::new(memory, control, 1, context)
    }

    fn new(memory: ConnectionMemory, control: Watched, out: usize, context: &Rc<Context>) -> Self {
        Self {
            context: Rc::clone(context),
            memory,
            control: RefCell::new(control),
            writer: RefCell::default(),
            reader: RefCell::default(),
            awaits_room: Cell::new(false),
            awaits_more: Cell::new(false),
            out,
            seals: false,
        }
    }

    /// The task's.
    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    /// The byte ring that this side reads.
    pub(super) fn incoming(&self) -> ByteRing<'_> {
        self.memory.ring(1 - self.out)
    }

    fn outgoing(&self) -> ByteRing<'_> {
        self.memory.ring(self.out)
    }

    /// Whether this side writes messages as sealed memory.
    pub(super) fn seals(&self) -> bool {
        self.seals
    }

    /// Writes all of `bytes`, from a line on.
    pub(super) async fn write(&self, mut bytes: &[u8]) -> Result<(), Over> {
        while !bytes.is_empty() {
            self.context.turn().await;
            let passed = self.writer.borrow_mut().push(&self.outgoing(), bytes)?;
            self.passed(passed);
            bytes = &bytes[passed.bytes..];
            if passed.bytes == 0 {
                self.room().await?;
            }
        }
        Ok(())
    }

    /// Fills `out`, from a line on.
    pub(super) async fn read(&self, mut out: &mut [u8]) -> Result<(), Over> {
        while !out.is_empty() {
            self.context.turn().await;
            let passed = self.reader.borrow_mut().pull(&self.incoming(), out)?;
            self.passed(passed);
            out = &mut out[passed.bytes..];
            if passed.bytes == 0 {
                self.more(|_| Ok(())).await?;
            }
        }
        Ok(())
    }

    fn passed(&self, passed: Passed) {
        if passed.wake {
            self.control.borrow_mut().control.wake_peer();
        }
    }

    /// Waits until there is room.
    async fn room(&self) -> Result<(), Over> {
        let look = |arms: bool| {
            self.control.borrow_mut().hear_news()?;
            let (ring, mut writer) = (self.outgoing(), self.writer.borrow_mut());
            if self.awaits_room.take() {
                writer.disarm(&ring);
            }
            if writer.has_room(&ring)? {
                return Ok(Some(()));
            }
            if self.is_gone() {
                return Err(Over::Gone);
            }
            self.awaits_room.set(arms && writer.arm(&ring)?);
            Ok((arms && !self.awaits_room.get()).then_some(()))
        };
        self.context.until(look).await
    }

    /// Waits until there is something to read, or `other` ends the wait. If it is told to, `other`
    /// arms what it looks at.
    pub(super) async fn more(
        &self,
        mut other: impl FnMut(bool) -> Result<(), Over>,
    ) -> Result<(), Over> {
        let look = |arms: bool| {
            self.control.borrow_mut().hear_news()?;
            let (ring, mut reader) = (self.incoming(), self.reader.borrow_mut());
            if self.awaits_more.take() {
                reader.disarm(&ring);
            }
            other(arms)?;
            if reader.has_more(&ring)? {
                return Ok(Some(()));
            }
            // What it wrote before it went has been read.
            if self.is_gone() {
                return Err(Over::Gone);
            }
            // An honest peer has written frame headers for all descriptors but the last.
            if self.control.borrow().control.is_full() {
                return Err(ViolationKind::Packet.into());
            }
            self.awaits_more.set(arms && reader.arm(&ring)?);
            Ok((arms && !self.awaits_more.get()).then_some(()))
        };
        self.context.until(look).await
    }

    /// Whether the other side is known to be gone.
    pub(super) fn is_gone(&self) -> bool {
        self.control.borrow().control.is_gone()
    }

    /// Takes the packets that the task was told of; an error if the other side has gone.
    pub(super) fn hear(&self) -> Result<(), Over> {
        self.control.borrow_mut().hear_news()?;
        match self.is_gone() {
            true => Err(Over::Gone),
            false => Ok(()),
        }
    }

    /// Sends the descriptors that the next frame header names, waiting for room.
    pub(super) async fn show(&self, fds: &[BorrowedFd<'_>]) -> Result<(), Over> {
        let mut wait = NO_ROOM.0;
        while !self.control.borrow_mut().control.show(fds)? {
            self.context.pause(wait).await;
            wait = (wait * 2).min(NO_ROOM.1);
        }
        Ok(())
    }

    /// Takes the descriptors that a frame header names; they came before it.
    pub(super) fn shown(&self, count: usize) -> Result<Vec<OwnedFd>, Over> {
        self.control.borrow_mut().control.shown(count)
    }
}

/// Carries a message over the border of the domain, and records its bytes, if the domain is traced.
pub(super) async fn crossing<T>(
    member: &Member,
    kind: EventKind,
    port: u16,
    carry: impl Future<Output = Result<(T, u64), Over>>,
) -> Result<T, Over> {
    let begun = member.begins(kind);
    let (carried, bytes) = carry.await?;
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
