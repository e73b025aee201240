//! A link: its TCP connections as one connection with streams.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use portolan_sys::stream::{Destination, MOST_RANGES, Readiness, Source};

use super::HANDSHAKE_WITHIN;
use super::layer::Moved;
use super::wire::Wire;
use crate::clock::Clock;
use crate::{Address, Class, Connection, Limits, Peer, Progress, State, StreamId, TransportError};

/// The streams of a link, each a TCP connection.
#[derive(Debug)]
pub(super) struct Link {
    /// Records first, then bulk, if the link has both. None once it has failed.
    wires: Vec<Wire>,
    opened: [bool; 2],
    state: State,
    closing: bool,
    peer: Peer,
    remote: Option<SocketAddr>,
    secured: bool,
    ready: Readiness,
    clock: Arc<dyn Clock>,
    /// When it must be up.
    until: Duration,
    failure: Option<TransportError>,
}

impl Link {
    /// A link of connections that are being made, or are made already.
    pub(super) fn new(
        wires: Vec<Wire>,
        clock: Arc<dyn Clock>,
        secured: bool,
    ) -> Result<Self, TransportError> {
        let ready = Readiness::new().map_err(TransportError::system("cannot make a descriptor"))?;
        let until = clock.now() + HANDSHAKE_WITHIN;
        let remote = wires.first().map(Wire::remote);
        let mut link = Self {
            wires,
            opened: [false; 2],
            state: State::Connecting,
            closing: false,
            peer: Peer::Unknown,
            remote,
            secured,
            ready,
            clock,
            until,
            failure: None,
        };
        link.step();
        Ok(link)
    }

    fn index(&self, class: Class) -> usize {
        usize::from(class == Class::Bulk)
    }

    /// How many streams of a class there are.
    fn streams(&self, class: Class) -> u16 {
        u16::from(self.index(class) < self.wires.len())
    }

    /// Goes on as far as it can, and waits for the rest.
    fn step(&mut self) {
        let done = self.advance().and_then(|()| self.watch());
        if let Err(why) = done {
            self.fail(why);
        }
    }

    fn advance(&mut self) -> Result<(), TransportError> {
        if self.state == State::Connecting {
            self.wires.iter_mut().try_for_each(Wire::advance)?;
            if self.wires.iter().all(Wire::is_up) {
                self.become_up()?;
            } else if self.clock.now() >= self.until {
                return Err(TransportError::HandshakeTimedOut {
                    seconds: HANDSHAKE_WITHIN.as_secs(),
                });
            }
        }
        if self.state == State::Up {
            for wire in &mut self.wires {
                wire.unblock();
                if self.closing {
                    wire.finish()?;
                }
                wire.flush()?;
            }
            let opened = self.wires.iter().zip(self.opened);
            let mut opened = opened.filter(|(_, opened)| *opened).map(|(wire, _)| wire);
            if self.wires.iter().all(Wire::has_finished) && opened.all(Wire::has_ended) {
                self.state = State::Over;
            }
        }
        Ok(())
    }

    fn become_up(&mut self) -> Result<(), TransportError> {
        self.state = State::Up;
        let mut peers = self.wires.iter().map(Wire::peer);
        self.peer = peers.next().unwrap_or(Peer::Unknown);
        match peers.find(|peer| *peer != self.peer) {
            None => Ok(()),
            Some(_) => Err(TransportError::NotPortolan {
                what: "the two connections of a link lead to different nodes".to_owned(),
            }),
        }
    }

    fn watch(&mut self) -> Result<(), TransportError> {
        let mut received = false;
        for (wire, opened) in self.wires.iter_mut().zip(self.opened) {
            wire.watch(&self.ready, opened)?;
            received |= opened && wire.has_received();
        }
        self.ready
            .set_ready(received)
            .map_err(TransportError::system("cannot set a descriptor"))
    }

    /// Ends everything; the descriptor says so until the caller has been told.
    fn fail(&mut self, why: TransportError) {
        self.state = State::Failed;
        self.failure = Some(why);
        self.wires.clear();
        let _ = self.ready.set_ready(true);
    }

    /// What a caller is told of a failure.
    fn failed(&mut self) -> Option<Progress> {
        let failure = self.failure.clone()?;
        let _ = self.ready.set_ready(false);
        Some(Progress::Failed(failure))
    }

    /// Does something on a stream, and waits for what follows.
    fn on(&mut self, stream: StreamId, act: impl FnOnce(&mut Wire) -> Moved) -> Progress {
        if let Some(failed) = self.failed() {
            return failed;
        }
        let index = self.index(stream.class);
        let Some(wire) = self.wires.get_mut(index) else {
            // A stream of another connection.
            return Progress::Ended;
        };
        let progress = match act(wire) {
            Ok(Some(bytes)) => Progress::Moved(bytes),
            Ok(None) => Progress::Blocked,
            Err(why) => {
                self.fail(why);
                return self.failed().unwrap_or(Progress::Blocked);
            }
        };
        match self.watch() {
            Ok(()) => progress,
            Err(why) => {
                // The bytes have been moved; the next call says that nothing more will be.
                self.fail(why);
                progress
            }
        }
    }
}

pub(super) fn limits(streams: u16, secured: bool) -> Limits {
    Limits {
        streams,
        datagram: 0,
        ranges: MOST_RANGES,
        authentic_ends: secured,
        authenticated: secured,
    }
}

impl Connection for Link {
    fn limits(&self) -> Limits {
        limits(1, self.secured)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    fn wake_at(&self) -> Option<Duration> {
        (self.state == State::Connecting).then_some(self.until)
    }

    fn progress(&mut self) -> State {
        if self.failed().is_none() {
            self.step();
            let _ = self.failed();
        }
        self.state
    }

    fn failure(&self) -> Option<&TransportError> {
        self.failure.as_ref()
    }

    fn peer(&self) -> Peer {
        self.peer
    }

    fn remote(&self) -> Option<Address> {
        self.remote.map(Address::Internet)
    }

    fn open(&mut self, class: Class) -> Result<StreamId, TransportError> {
        let index = self.index(class);
        let most = self.streams(class);
        // Of a failed one a stream is opened, which says so.
        if self.opened[index] || (most == 0 && self.failure.is_none()) {
            return Err(TransportError::NoMoreStreams { class, most });
        }
        self.opened[index] = true;
        if self.failure.is_none()
            && let Err(why) = self.watch()
        {
            self.fail(why);
        }
        Ok(StreamId { class, number: 0 })
    }

    fn send(&mut self, on: StreamId, parts: &[Source<'_>]) -> Progress {
        if self.closing && self.failure.is_none() {
            return Progress::Ended;
        }
        self.on(on, |wire| wire.send(parts))
    }

    fn receive(&mut self, on: StreamId, into: &[Destination<'_>]) -> Progress {
        let has_room = into.iter().any(|range| !range.is_empty());
        match self.on(on, |wire| {
            if has_room {
                wire.receive(into)
            } else {
                Ok(Some(0))
            }
        }) {
            Progress::Moved(0) if has_room => Progress::Ended,
            other => other,
        }
    }

    fn datagram(&mut self, _bytes: &[u8]) -> bool {
        false
    }

    fn receive_datagram(&mut self) -> Option<Vec<u8>> {
        None
    }

    fn close(&mut self) {
        self.closing = true;
        if self.failure.is_none() {
            self.step();
        }
    }

    fn binding(&self, label: &str) -> Option<[u8; 32]> {
        self.wires.first()?.binding(label)
    }
}
