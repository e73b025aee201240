//! One TCP connection of a link: from the first packet until its end.
//!
//! ```text
//!  who connects:  Connecting -> Securing -> Greeting (sends, then receives its preface back) -> Up
//!  who listens:                 Securing -> Greeting (receives the preface) -> Greeted
//!                                                 Greeted --welcome--> Welcoming (sends it back) -> Up
//! ```

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use portolan_abi::codec::DecodeError;
use portolan_abi::preface::{PREFACE_VERSION, Preface};
use portolan_sys::stream::{self, Destination, Interest, Readiness, Source};

use super::layer::{Layer, Moved};
use crate::{Address, Peer, TransportError};

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Connecting,
    Securing,
    Greeting,
    Greeted,
    Welcoming,
    Up,
}

/// A TCP connection with its layer.
#[derive(Debug)]
pub(super) struct Wire {
    socket: OwnedFd,
    layer: Option<Box<dyn Layer>>,
    phase: Phase,
    /// Where it goes, or comes from.
    remote: SocketAddr,
    /// We have connected it, so the first preface is ours.
    ours: bool,
    preface: [u8; Preface::BYTES],
    sent: usize,
    received: usize,
    watched: Interest,
    /// A send found no room since the last progress.
    blocked: bool,
    /// The peer's end has been received.
    ended: bool,
    /// We have ended, and the kernel has been told.
    finished: bool,
    finishing: bool,
}

impl Wire {
    /// One that `socket` has begun to connect.
    pub(super) fn connecting(
        socket: OwnedFd,
        remote: SocketAddr,
        layer: Option<Box<dyn Layer>>,
        preface: &Preface,
    ) -> Self {
        let mut wire = Self::new(socket, remote, layer, Phase::Connecting);
        wire.ours = true;
        wire.preface = preface.encode();
        wire
    }

    /// One that was accepted.
    pub(super) fn accepted(
        socket: OwnedFd,
        remote: SocketAddr,
        layer: Option<Box<dyn Layer>>,
    ) -> Self {
        Self::new(socket, remote, layer, Phase::Securing)
    }

    fn new(
        socket: OwnedFd,
        remote: SocketAddr,
        layer: Option<Box<dyn Layer>>,
        phase: Phase,
    ) -> Self {
        Self {
            socket,
            layer,
            phase,
            remote,
            ours: false,
            preface: [0; Preface::BYTES],
            sent: 0,
            received: 0,
            watched: Interest::default(),
            blocked: false,
            ended: false,
            finished: false,
            finishing: false,
        }
    }

    pub(super) fn remote(&self) -> SocketAddr {
        self.remote
    }

    pub(super) fn is_up(&self) -> bool {
        self.phase == Phase::Up
    }

    /// What the peer has said first, once it has.
    pub(super) fn greeted(&self) -> Option<[u8; Preface::BYTES]> {
        (self.phase == Phase::Greeted).then_some(self.preface)
    }

    pub(super) fn peer(&self) -> Peer {
        self.layer.as_ref().map_or(Peer::Unknown, |l| l.peer())
    }

    pub(super) fn binding(&self, label: &str) -> Option<[u8; 32]> {
        self.layer.as_ref()?.binding(label)
    }

    /// The listener has all connections of the link: says the preface back.
    pub(super) fn welcome(&mut self) {
        self.phase = Phase::Welcoming;
    }

    /// Goes on until it is up, or nothing moves.
    pub(super) fn advance(&mut self) -> Result<(), TransportError> {
        if self.phase == Phase::Connecting {
            if !stream::connected(&self.socket).map_err(|error| self.unconnected(&error))? {
                return Ok(());
            }
            self.phase = Phase::Securing;
        }
        if self.phase == Phase::Securing {
            let socket = self.socket.as_fd();
            let done = match &mut self.layer {
                Some(layer) => layer.advance(socket)?,
                None => true,
            };
            if !done {
                return Ok(());
            }
            self.phase = Phase::Greeting;
        }
        if self.phase == Phase::Greeting && (!self.ours || self.say_preface()?) {
            let done = self.hear_preface()?;
            if done && self.ours {
                self.phase = Phase::Up;
            } else if done {
                self.phase = Phase::Greeted;
            }
        }
        if self.phase == Phase::Welcoming && self.say_preface()? {
            self.phase = Phase::Up;
        }
        self.flush()
    }

    fn unconnected(&self, error: &std::io::Error) -> TransportError {
        TransportError::CannotConnect {
            address: Address::Internet(self.remote),
            reason: error.to_string(),
        }
    }

    /// Sends the preface; whether all of it is sent.
    fn say_preface(&mut self) -> Result<bool, TransportError> {
        while self.sent < Preface::BYTES {
            let bytes = self.preface;
            match self.raw_send(&[Source::from(&bytes[self.sent..])])? {
                Some(moved) => self.sent += moved,
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Receives the preface; whether all of it has come.
    fn hear_preface(&mut self) -> Result<bool, TransportError> {
        let expected = self.ours.then_some(self.preface);
        while self.received < Preface::BYTES {
            let mut bytes = [0; Preface::BYTES];
            let room = &mut bytes[..Preface::BYTES - self.received];
            match self.raw_receive(&[Destination::from(room)])? {
                Some(0) => return Err(TransportError::Truncated),
                Some(moved) => {
                    let place = &mut self.preface[self.received..self.received + moved];
                    place.copy_from_slice(&bytes[..moved]);
                    self.received += moved;
                }
                None => return Ok(false),
            }
        }
        if expected.is_some_and(|expected| expected != self.preface) {
            return Err(TransportError::NotPortolan {
                what: "it did not say the preface back".to_owned(),
            });
        }
        Ok(true)
    }

    fn raw_send(&mut self, parts: &[Source<'_>]) -> Moved {
        match &mut self.layer {
            Some(layer) => layer.send(self.socket.as_fd(), parts),
            None => {
                stream::send(&self.socket, parts).map_err(|error| TransportError::broken(&error))
            }
        }
    }

    fn raw_receive(&mut self, into: &[Destination<'_>]) -> Moved {
        match &mut self.layer {
            Some(layer) => layer.receive(self.socket.as_fd(), into),
            None => {
                stream::receive(&self.socket, into).map_err(|error| TransportError::broken(&error))
            }
        }
    }

    /// Sends bytes of a stream; `None` if there is no room.
    pub(super) fn send(&mut self, parts: &[Source<'_>]) -> Moved {
        if parts.iter().all(Source::is_empty) {
            return Ok(Some(0));
        }
        let moved = self.send_some(parts)?;
        self.blocked = moved.is_none();
        Ok(moved)
    }

    fn send_some(&mut self, parts: &[Source<'_>]) -> Moved {
        if !self.is_up() {
            return Ok(None);
        }
        // Ranges that are cut off could be the only ones with bytes.
        let first = parts.iter().position(|part| !part.is_empty());
        self.raw_send(&parts[first.unwrap_or_default()..])
    }

    /// Receives bytes of a stream; `Some(0)` at its end, `None` if there are none.
    pub(super) fn receive(&mut self, into: &[Destination<'_>]) -> Moved {
        if self.ended {
            return Ok(Some(0));
        }
        if !self.is_up() {
            return Ok(None);
        }
        let first = into.iter().position(|range| !range.is_empty());
        let moved = self.raw_receive(&into[first.unwrap_or_default()..])?;
        self.ended = moved == Some(0);
        Ok(moved)
    }

    /// Ends the stream behind what was sent.
    pub(super) fn finish(&mut self) -> Result<(), TransportError> {
        if let (Some(layer), false) = (&mut self.layer, self.finishing) {
            layer.finish();
        }
        self.finishing = true;
        self.flush()
    }

    /// Sends what waits here, as far as there is room.
    pub(super) fn flush(&mut self) -> Result<(), TransportError> {
        if let Some(layer) = &mut self.layer
            && self.phase != Phase::Connecting
        {
            layer.flush(self.socket.as_fd())?;
        }
        if self.finishing && !self.finished && !self.has_to_send() {
            self.finished = true;
            stream::finish(&self.socket).map_err(|error| TransportError::broken(&error))?;
        }
        Ok(())
    }

    /// Who was blocked tries again.
    pub(super) fn unblock(&mut self) {
        self.blocked = false;
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    pub(super) fn has_finished(&self) -> bool {
        self.finished
    }

    fn has_to_send(&self) -> bool {
        self.layer.as_ref().is_some_and(|l| l.has_to_send())
    }

    /// Whether there are bytes to receive that the socket does not show.
    pub(super) fn has_received(&self) -> bool {
        !self.ended && self.layer.as_ref().is_some_and(|l| l.has_received())
    }

    /// Waits for what it waits for. A stream that was not `opened` is not received from.
    pub(super) fn watch(&mut self, ready: &Readiness, opened: bool) -> Result<(), TransportError> {
        let says = self.sent < Preface::BYTES;
        let send = self.has_to_send()
            || match self.phase {
                Phase::Connecting => true,
                Phase::Securing | Phase::Greeted => false,
                Phase::Greeting => self.ours && says,
                Phase::Welcoming => says,
                Phase::Up => self.blocked,
            };
        let receive = match self.phase {
            Phase::Connecting | Phase::Greeted => false,
            Phase::Securing | Phase::Greeting => true,
            Phase::Welcoming | Phase::Up => opened && !self.ended,
        };
        let interest = Interest { receive, send };
        if interest != self.watched {
            ready
                .watch(&self.socket, interest)
                .map_err(TransportError::system("cannot watch a socket"))?;
            self.watched = interest;
        }
        Ok(())
    }

    /// Waits for nothing, so that it can be watched elsewhere.
    pub(super) fn unwatch(&mut self, ready: &Readiness) {
        // It is not watched, or closed soon: either way it is gone from there.
        let _ = ready.watch(&self.socket, Interest::default());
        self.watched = Interest::default();
    }
}

/// What a peer's first bytes are.
pub(super) fn preface(bytes: &[u8]) -> Result<Preface, TransportError> {
    let wrong = |error: DecodeError| TransportError::NotPortolan {
        what: error.to_string(),
    };
    let version: Option<[u8; 4]> = bytes.get(4..8).and_then(|b| b.try_into().ok());
    match Preface::decode(bytes) {
        Ok(preface) if preface.version == PREFACE_VERSION => Ok(preface),
        Ok(preface) => Err(TransportError::OtherVersion {
            theirs: preface.version,
            ours: PREFACE_VERSION,
        }),
        // Another version may differ in all that follows.
        Err(error) => match (bytes.get(..4), version.map(u32::from_le_bytes)) {
            (Some(magic), Some(theirs))
                if magic == portolan_abi::preface::PREFACE_MAGIC.to_le_bytes()
                    && theirs != PREFACE_VERSION =>
            {
                Err(TransportError::OtherVersion {
                    theirs,
                    ours: PREFACE_VERSION,
                })
            }
            _ => Err(wrong(error)),
        },
    }
}
