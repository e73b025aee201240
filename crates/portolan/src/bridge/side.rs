//! One side of a connection writes bytes to its wire, and reads from it.

use super::carrier::Context;
use super::control_socket::{ControlSocket, Watched};
use super::error::Over;
use super::memory::ConnectionMemory;
use super::wire::{Agreed, Rings, Wire};
use crate::space::Member;
use crate::space::record::About;
use crate::{Deadline, EventKind, Message, Sealed};
use portolan_shm::byte_ring::Reader;
use portolan_sys::process;
use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

/// Between two looks whether there is room for descriptors in the other side's socket, at first and
/// at the most.
const NO_ROOM: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// The client's side of a connection in memory, before a task has it.
pub(super) struct Connection {
    memory: ConnectionMemory,
    control: ControlSocket,
    reader: Reader,
}

impl Connection {
    pub(super) fn new(memory: ConnectionMemory, control: ControlSocket) -> Self {
        Self {
            memory,
            control,
            reader: Reader::default(),
        }
    }

    /// Fills `out`, from a line on, until a deadline; `None` once it has passed.
    pub(super) fn read_by(
        &mut self,
        mut out: &mut [u8],
        deadline: Deadline,
    ) -> Result<Option<()>, Over> {
        while !out.is_empty() {
            let ring = self.memory.ring(BACK);
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
}

/// The byte rings, by who writes: the client, the offering process.
const THERE: usize = 0;
const BACK: usize = 1;

impl Agreed for Connection {
    fn of_task(self: Box<Self>, context: &Rc<Context>) -> io::Result<Box<dyn Wire>> {
        let control = Watched::new(self.control, context)?;
        Ok(Box::new(Rings::new(
            self.memory,
            control,
            self.reader,
            THERE,
        )))
    }
}

/// One side of a connection: the part that egress and ingress have in common. Reading and writing
/// go on side by side, in one task.
pub(super) struct Side {
    context: Rc<Context>,
    wire: RefCell<Box<dyn Wire>>,
    /// Messages that came and are in their ports.
    delivered: Cell<u64>,
}

impl Side {
    /// A side of a task.
    pub(super) fn new(wire: Box<dyn Wire>, context: &Rc<Context>) -> Self {
        Self {
            context: Rc::clone(context),
            wire: RefCell::new(wire),
            delivered: Cell::new(0),
        }
    }

    /// The offering process's side of a connection in memory.
    pub(super) fn server(
        memory: ConnectionMemory,
        control: Watched,
        context: &Rc<Context>,
    ) -> Self {
        let rings = Rings::new(memory, control, Reader::default(), BACK);
        Self::new(Box::new(rings), context)
    }

    /// The task's.
    pub(super) fn context(&self) -> &Rc<Context> {
        &self.context
    }

    /// One more message is in its port.
    pub(super) fn delivered(&self) {
        self.delivered.set(self.delivered.get() + 1);
        self.wire.borrow_mut().set_delivered(self.delivered.get());
    }

    /// Writes the beginning of `bytes`, from a line on; how many.
    pub(super) fn push(&self, bytes: &[u8]) -> Result<usize, Over> {
        self.wire.borrow_mut().push(bytes)
    }

    /// Reads into the beginning of `out`, from a line on; how many.
    pub(super) fn pull(&self, out: &mut [u8]) -> Result<usize, Over> {
        self.wire.borrow_mut().pull(out)
    }

    /// Writes all of `bytes`, from a line on.
    pub(super) async fn write(&self, mut bytes: &[u8]) -> Result<(), Over> {
        while !bytes.is_empty() {
            self.context.turn().await;
            let written = self.push(bytes)?;
            bytes = &bytes[written..];
            if written == 0 {
                self.room().await?;
            }
        }
        Ok(())
    }

    /// Fills `out`, from a line on.
    pub(super) async fn read(&self, mut out: &mut [u8]) -> Result<(), Over> {
        while !out.is_empty() {
            self.context.turn().await;
            let read = self.pull(out)?;
            out = &mut out[read..];
            if read == 0 {
                self.more(|_| Ok(())).await?;
            }
        }
        Ok(())
    }

    /// Waits until there is room.
    pub(super) async fn room(&self) -> Result<(), Over> {
        let look = |arms: bool| {
            let mut wire = self.wire.borrow_mut();
            wire.hear_news()?;
            match wire.has_room(arms)? {
                true => Ok(Some(())),
                false if wire.is_gone() => Err(Over::Gone),
                false => Ok(None),
            }
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
            let mut wire = self.wire.borrow_mut();
            wire.hear_news()?;
            other(arms)?;
            match wire.has_more(arms)? {
                true => Ok(Some(())),
                // What it wrote before it went has been read.
                false if wire.is_gone() => Err(Over::Gone),
                false => Ok(None),
            }
        };
        self.context.until(look).await
    }

    /// Hears what the task was told of; an error if the other side has gone.
    pub(super) fn hear(&self) -> Result<(), Over> {
        let mut wire = self.wire.borrow_mut();
        wire.hear_news()?;
        match wire.is_gone() {
            true => Err(Over::Gone),
            false => Ok(()),
        }
    }

    /// Sends the descriptors that the next frame header names, waiting for room.
    pub(super) async fn show(&self, sealed: &[Sealed]) -> Result<(), Over> {
        let fds: Vec<_> = sealed.iter().map(|s| s.frozen().as_fd()).collect();
        let mut wait = NO_ROOM.0;
        while !self.wire.borrow_mut().show(&fds)? {
            self.context.pause(wait).await;
            wait = (wait * 2).min(NO_ROOM.1);
        }
        Ok(())
    }

    /// Takes the descriptors that a frame header names; they came before it.
    pub(super) fn shown(&self, count: usize) -> Result<Vec<OwnedFd>, Over> {
        self.wire.borrow_mut().shown(count)
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
