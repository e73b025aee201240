//! Links the processes of a chain: each asks the next, and answers the one before, in several ways
//! of carrying blocks.
//!
//! ```text
//! client ── ask ──> forwarder ── ask ──> ... ── ask ──> file server
//!        <─ block ──          <─ block ──      <─ block ──
//! ```
//!
//! A process has a link *up*, on which it is asked (the client has none), and one *down*,
//! on which it asks (the file server has none).

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::time::Duration;

use portolan::{
    Access, Deadline, Domain, Message, PortOptions, ReceiveRight, Request, SendRight, Waiting,
};
use portolan_measure::{MeasureError, payload};
use serde::{Deserialize, Serialize};

use crate::error::{LabError, Result};
use crate::huge;

/// How long a process looks for the domain, and for the next one's port.
const MEETING: Duration = Duration::from_secs(60);
/// Memory of a chain's domain.
const LIMIT: u64 = 64 << 20;

/// What is asked for: a block of the file, by number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub(super) block: u32,
    /// Nothing is asked afterwards.
    pub(super) last: bool,
}

impl Ask {
    pub(super) const BYTES: usize = 8;

    pub(super) fn bytes(self) -> [u8; Self::BYTES] {
        (u64::from(self.block) << 1 | u64::from(self.last)).to_le_bytes()
    }

    pub(super) fn read(bytes: [u8; Self::BYTES]) -> Self {
        let word = u64::from_le_bytes(bytes);
        Self {
            block: u32::try_from(word >> 1).unwrap_or(0),
            last: word & 1 == 1,
        }
    }
}

/// The file that is served: in memory, as one that was read before is.
pub(super) struct Served<'a> {
    pub(super) file: &'a File,
    pub(super) blocks: u32,
    pub(super) bytes: usize,
}

impl Served<'_> {
    pub(super) fn read(&self, ask: Ask, into: &mut [u8]) -> Result<()> {
        use std::os::unix::fs::FileExt as _;
        let at = u64::from(ask.block % self.blocks) * self.bytes as u64;
        self.file
            .read_exact_at(into, at)
            .map_err(|error| MeasureError::system("reading the served file")(error).into())
    }
}

/// When pages are opened as they pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Hint {
    /// By the client, who looks at them; forwarders leave them.
    Client,
    /// By all processes.
    Everybody,
    /// By no process: by touch.
    Nobody,
}

impl Hint {
    fn of(self, client: bool) -> Access {
        match (self, client) {
            (Self::Everybody, _) | (Self::Client, true) => Access::Now,
            (Self::Client, false) | (Self::Nobody, _) => Access::Later,
        }
    }
}

/// A process of a chain that hands blocks over.
pub(super) struct Owned {
    up: Option<ReceiveRight>,
    down: Option<SendRight>,
    request: Request,
    access: Access,
    /// Last: it is left after all that belongs to it.
    domain: Domain,
}

impl Owned {
    /// The process at `seat` of a chain; the client is at 0, and joins first: it is in
    /// other domains as well, and only the first chooses where a domain lies.
    pub(super) fn join(domain: &str, guarded: bool, hint: Hint, seat: u32) -> Result<Self> {
        let protection = if guarded {
            portolan::Protection::Guarded
        } else {
            portolan::Protection::Trusted
        };
        let domain = Domain::builder(domain)
            .space_name("lab chain")
            .protection(protection)
            .limit(LIMIT)
            .deadline(MEETING)
            .join()
            .map_err(LabError::library("joining a chain's domain"))?;
        let up = if seat > 0 {
            let options = PortOptions::named(&port(seat)).synchronous();
            let mut port = domain
                .bind(options)
                .map_err(LabError::library("binding a chain's port"))?;
            // All processes share a processor: to look around would keep it from the others.
            port.set_waiting(Waiting::Sleep);
            Some(port)
        } else {
            None
        };
        Ok(Self {
            up,
            down: None,
            request: Request::default(),
            access: hint.of(seat == 0),
            domain,
        })
    }

    /// Finds the process at `seat`, the next one.
    pub(super) fn meet(&mut self, seat: u32) -> Result<()> {
        let right = self.domain.connect(&port(seat), MEETING);
        self.down = Some(right.map_err(LabError::library("finding the next process of a chain"))?);
        Ok(())
    }

    /// As the client: asks for a block and looks at all of it.
    pub(super) fn ask(&mut self, ask: Ask) -> Result<()> {
        self.ask_and(ask, |_| ())
    }

    /// As the client: asks for a block; whether it lies on a huge page. None where the system does
    /// not tell.
    pub(super) fn ask_for_page(&mut self, ask: Ask) -> Result<Option<bool>> {
        self.ask_and(ask, huge::holds)
    }

    fn ask_and<T>(&mut self, ask: Ask, look: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let message = &mut self.request.message;
        // Within the limit; the message would say so.
        let _ = message.set_header(&ask.bytes());
        pass(self.down.as_ref(), message, self.access)?;
        let block = message.extents().first().ok_or(MeasureError::Gone)?;
        payload::read(block);
        let seen = look(block);
        message.clear();
        Ok(seen)
    }

    /// As a forwarder: passes one request on, and the block back; whether it was the last.
    pub(super) fn forward(&mut self) -> Result<bool> {
        let ask = self.asked()?;
        pass(self.down.as_ref(), &mut self.request.message, self.access)?;
        self.answer()?;
        Ok(ask.last)
    }

    /// As the file server: answers one request; whether it was the last.
    pub(super) fn serve(&mut self, served: &Served<'_>) -> Result<bool> {
        let ask = self.asked()?;
        let mut block = self
            .domain
            .allocate(served.bytes)
            .map_err(LabError::library("allocating a block"))?;
        served.read(ask, &mut block)?;
        let pushed = self.request.message.push(block);
        pushed.map_err(LabError::library("putting a block into its message"))?;
        self.answer()?;
        Ok(ask.last)
    }

    fn asked(&mut self) -> Result<Ask> {
        let up = self.up.as_mut().ok_or(MeasureError::NoCoordinator)?;
        // Whatever ends the run ends the wait: the process is killed with its coordinator.
        up.get_request_into(&mut self.request, self.access, Deadline::NEVER)
            .map_err(LabError::library("taking a request of a chain"))?;
        let header = self.request.message.header();
        let bytes = header.try_into().map_err(|_| MeasureError::Gone)?;
        Ok(Ask::read(bytes))
    }

    fn answer(&mut self) -> Result<()> {
        self.request
            .reply_from()
            .map_err(LabError::library("answering a request of a chain"))
    }
}

/// The port of the process at `seat`.
fn port(seat: u32) -> String {
    format!("seat {seat}")
}

/// Asks the next process; the block is in the message then.
fn pass(down: Option<&SendRight>, message: &mut Message, access: Access) -> Result<()> {
    let down = down.ok_or(MeasureError::NoCoordinator)?;
    down.request_reply_in_place(message, access, Deadline::NEVER, Waiting::Sleep)
        .map_err(LabError::library("asking the next process of a chain"))
}

/// A process of a chain that copies blocks through descriptors.
pub(super) struct Copied {
    up: Option<End>,
    down: Option<End>,
    block: Vec<u8>,
}

/// One end of a link: where it is read, where it is written.
pub(super) struct End {
    read: File,
    write: File,
}

impl End {
    pub(super) fn new(read: OwnedFd, write: OwnedFd) -> Self {
        Self {
            read: read.into(),
            write: write.into(),
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let sent = self.write.write_all(bytes);
        Ok(sent.map_err(MeasureError::system("writing to a process of the chain"))?)
    }

    fn receive(&mut self, bytes: &mut [u8]) -> Result<()> {
        let received = self.read.read_exact(bytes);
        Ok(received.map_err(MeasureError::system("reading from a process of the chain"))?)
    }
}

impl Copied {
    pub(super) fn new(up: Option<End>, down: Option<End>, bytes: usize) -> Self {
        Self {
            up,
            down,
            block: vec![0; bytes],
        }
    }

    /// As the client: asks for a block and looks at all of it.
    pub(super) fn ask(&mut self, ask: Ask) -> Result<()> {
        self.pass(ask)?;
        payload::read(&self.block);
        Ok(())
    }

    /// As a forwarder: passes one request on, and the block back; whether it was the last.
    pub(super) fn forward(&mut self) -> Result<bool> {
        let ask = self.asked()?;
        self.pass(ask)?;
        self.answer()?;
        Ok(ask.last)
    }

    /// As the file server: answers one request; whether it was the last.
    pub(super) fn serve(&mut self, served: &Served<'_>) -> Result<bool> {
        let ask = self.asked()?;
        served.read(ask, &mut self.block)?;
        self.answer()?;
        Ok(ask.last)
    }

    fn pass(&mut self, ask: Ask) -> Result<()> {
        let down = self.down.as_mut().ok_or(MeasureError::NoCoordinator)?;
        down.send(&ask.bytes())?;
        down.receive(&mut self.block)
    }

    fn asked(&mut self) -> Result<Ask> {
        let up = self.up.as_mut().ok_or(MeasureError::NoCoordinator)?;
        let mut bytes = [0; Ask::BYTES];
        up.receive(&mut bytes)?;
        Ok(Ask::read(bytes))
    }

    fn answer(&mut self) -> Result<()> {
        let up = self.up.as_mut().ok_or(MeasureError::NoCoordinator)?;
        up.send(&self.block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_survives_the_way() {
        for last in [false, true] {
            let ask = Ask::read(Ask { block: 7, last }.bytes());
            assert_eq!((ask.block, ask.last), (7, last));
        }
    }

    #[test]
    fn forwarders_leave_pages_alone_unless_everybody_opens_them() {
        let hints = [Hint::Client, Hint::Everybody, Hint::Nobody];
        let now = hints.map(|hint| [true, false].map(|client| hint.of(client) == Access::Now));
        assert_eq!(now, [[true, false], [true, true], [false, false]]);
    }
}
