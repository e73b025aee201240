//! A user-level proxy, as the netmsgserver was: programs speak to it by a Unix socket, and it copies
//! every byte into itself and out again at each crossing. It passes on what it has, and does not wait
//! for a whole message, which is kinder than its model was.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;

use portolan_transport::{Connection, Destination, Progress, Source, StreamId, TransportError};

/// Bytes that it holds of each direction.
const BUFFER: usize = 256 << 10;

/// Bytes that were read on one side and are written on the other.
#[derive(Debug)]
struct Held {
    bytes: Vec<u8>,
    at: usize,
    end: usize,
}

impl Held {
    fn new() -> Self {
        Self {
            bytes: vec![0; BUFFER],
            at: 0,
            end: 0,
        }
    }

    /// Bytes that are to be written.
    fn full(&self) -> &[u8] {
        &self.bytes[self.at..self.end]
    }

    fn wrote(&mut self, bytes: usize) {
        self.at += bytes;
        if self.at == self.end {
            (self.at, self.end) = (0, 0);
        }
    }
}

/// A proxy between the programs of one node and another node.
#[derive(Debug)]
pub(crate) struct Relay {
    programs: UnixStream,
    on: StreamId,
    out: Held,
    back: Held,
    /// The program has closed its end.
    pub(crate) ended: bool,
    /// Bytes that were copied across a boundary: into this process or out of it.
    pub(crate) copied: u64,
}

impl Relay {
    /// Between a socket, and a stream of a connection.
    pub(crate) fn new(programs: UnixStream, on: StreamId) -> std::io::Result<Self> {
        programs.set_nonblocking(true)?;
        Ok(Self {
            programs,
            on,
            out: Held::new(),
            back: Held::new(),
            ended: false,
            copied: 0,
        })
    }

    pub(crate) fn programs(&self) -> &UnixStream {
        &self.programs
    }

    /// Whether it can take more from its programs.
    pub(crate) fn takes(&self) -> bool {
        self.out.end < BUFFER && !self.ended
    }

    /// Whether it can take more from the other node.
    pub(crate) fn has_room(&self) -> bool {
        self.back.end < BUFFER
    }

    /// Whether it has bytes that its programs have no room for.
    pub(crate) fn gives(&self) -> bool {
        !self.back.full().is_empty()
    }

    /// Copies what there is, both ways, until neither way goes on.
    pub(crate) fn step(&mut self, connection: &mut dyn Connection) -> Result<(), Broken> {
        loop {
            let before = self.copied;
            if self.takes() {
                let room = &mut self.out.bytes[self.out.end..];
                match self.programs.read(room) {
                    Ok(0) => self.ended = true,
                    Ok(read) => {
                        self.out.end += read;
                        self.copied += read as u64;
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(Broken::Programs(error)),
                }
            }
            if !self.out.full().is_empty() {
                let sent = connection.send(self.on, &[Source::from(self.out.full())]);
                let sent = moved(sent)?;
                self.out.wrote(sent);
                self.copied += sent as u64;
            }
            if self.has_room() {
                let room = &mut self.back.bytes[self.back.end..];
                let come = connection.receive(self.on, &[Destination::from(room)]);
                let come = moved(come)?;
                self.back.end += come;
                self.copied += come as u64;
            }
            if self.gives() {
                match self.programs.write(self.back.full()) {
                    Ok(wrote) => {
                        self.back.wrote(wrote);
                        self.copied += wrote as u64;
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(Broken::Programs(error)),
                }
            }
            if self.copied == before {
                return Ok(());
            }
        }
    }
}

/// What ended a proxy.
#[derive(Debug)]
pub(crate) enum Broken {
    Programs(std::io::Error),
    Link(TransportError),
}

fn moved(progress: Progress) -> Result<usize, Broken> {
    match progress {
        Progress::Moved(moved) => Ok(moved),
        Progress::Blocked => Ok(0),
        Progress::Ended => Err(Broken::Link(TransportError::Truncated)),
        Progress::Failed(why) => Err(Broken::Link(why)),
    }
}
