//! A listener: connections that are being made, until they are a link.
//!
//! # Invariants
//!
//! - **H1** A connection that is not part of a link yet is dropped at its time, whatever its peer
//!   does or does not do; its refusal says so.
//! - **H2** At most [`MOST_HALF_OPEN`] are being made, and [`MOST_HALF_OPEN_EACH`] from one address.
//! - **H3** The connections of a link come from one address, and from one peer.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use portolan_abi::preface::{Carries, Preface};
use portolan_sys::stream::{self, Interest, Readiness};

use super::layer::Secure;
use super::link::Link;
use super::wire::{Wire, preface};
use super::{HANDSHAKE_WITHIN, MOST_HALF_OPEN, MOST_HALF_OPEN_EACH};
use crate::clock::Clock;
use crate::{Address, Connection, Listener, Peer, TransportError};

/// Clients that the kernel keeps until they are accepted.
const BACKLOG: u32 = 1024;
/// How long a listener without descriptors waits before it looks for some again.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts TCP connections, and puts those of a link together.
#[derive(Debug)]
pub(super) struct TcpListener {
    socket: OwnedFd,
    address: SocketAddr,
    secure: Option<Arc<dyn Secure>>,
    clock: Arc<dyn Clock>,
    ready: Readiness,
    half_open: Vec<HalfOpen>,
    /// It accepts no client until then.
    paused: Option<Duration>,
}

/// A connection that is not part of a link yet.
#[derive(Debug)]
struct HalfOpen {
    wire: Wire,
    until: Duration,
    preface: Option<Preface>,
}

impl TcpListener {
    pub(super) fn new(
        address: SocketAddr,
        clock: Arc<dyn Clock>,
        secure: Option<Arc<dyn Secure>>,
    ) -> Result<Self, TransportError> {
        let refused = |error: std::io::Error| TransportError::CannotListen {
            address: address.into(),
            reason: error.to_string(),
        };
        let socket = stream::listen(address, BACKLOG).map_err(refused)?;
        Self::on(socket, clock, secure)
    }

    /// On a socket that listens already.
    pub(super) fn on(
        socket: OwnedFd,
        clock: Arc<dyn Clock>,
        secure: Option<Arc<dyn Secure>>,
    ) -> Result<Self, TransportError> {
        let address = stream::bound_to(&socket)
            .map_err(TransportError::system("cannot ask where a socket listens"))?;
        let ready = Readiness::new().map_err(TransportError::system("cannot make a descriptor"))?;
        let listener = Self {
            socket,
            address,
            secure,
            clock,
            ready,
            half_open: Vec::new(),
            paused: None,
        };
        listener.watch_clients(true)?;
        Ok(listener)
    }

    fn watch_clients(&self, receive: bool) -> Result<(), TransportError> {
        let interest = Interest {
            receive,
            send: false,
        };
        self.ready
            .watch(&self.socket, interest)
            .map_err(TransportError::system("cannot watch a listener"))
    }

    /// Takes all clients that wait.
    fn take_clients(&mut self) -> Result<(), TransportError> {
        if let Some(until) = self.paused {
            if self.clock.now() < until {
                return Ok(());
            }
            self.paused = None;
            self.watch_clients(true)?;
        }
        loop {
            match stream::accept(&self.socket) {
                Ok(Some((socket, from))) => self.begin(socket, from)?,
                Ok(None) => return Ok(()),
                Err(error) => {
                    // The client stays in the backlog, and would keep the descriptor readable.
                    self.paused = Some(self.clock.now() + PAUSE);
                    self.watch_clients(false)?;
                    return Err(TransportError::system("cannot accept a client")(error));
                }
            }
        }
    }

    fn begin(&mut self, socket: OwnedFd, from: SocketAddr) -> Result<(), TransportError> {
        // H2.
        let too_many = |count, whose, most| {
            refused(from, TransportError::TooManyHalfOpen { count, whose, most })
        };
        let same = |half: &&HalfOpen| half.wire.remote().ip() == from.ip();
        let each = self.half_open.iter().filter(same).count();
        if each >= MOST_HALF_OPEN_EACH {
            return Err(too_many(each, "this address", MOST_HALF_OPEN_EACH));
        }
        let all = self.half_open.len();
        if all >= MOST_HALF_OPEN {
            return Err(too_many(all, "all addresses", MOST_HALF_OPEN));
        }
        let layer = self.secure.as_ref().map(|secure| secure.server());
        let layer = layer.transpose()?;
        self.half_open.push(HalfOpen {
            wire: Wire::accepted(socket, from, layer),
            until: self.clock.now() + HANDSHAKE_WITHIN,
            preface: None,
        });
        Ok(())
    }

    /// Goes on with each connection; refuses the first that cannot go on.
    fn advance(&mut self) -> Result<(), TransportError> {
        let now = self.clock.now();
        for at in 0..self.half_open.len() {
            let half = &mut self.half_open[at];
            if let Err(why) = half.advance(&self.ready, now) {
                let half = self.half_open.swap_remove(at);
                return Err(refused(half.wire.remote(), why));
            }
        }
        Ok(())
    }

    /// The connections of a link that is whole, if one is.
    fn take_link(&mut self) -> Result<Option<Vec<Wire>>, TransportError> {
        for at in 0..self.half_open.len() {
            let Some(first) = self.half_open[at].preface else {
                continue;
            };
            match first.carries {
                Carries::Only => return Ok(Some(vec![self.take(at)])),
                Carries::Bulk => {}
                Carries::Records => {
                    let is_other = |half: &HalfOpen| {
                        half.preface.is_some_and(|second| {
                            second.carries == Carries::Bulk && second.link == first.link
                        })
                    };
                    let Some(other) = self.half_open.iter().position(is_other) else {
                        continue;
                    };
                    return self.pair(at, other).map(Some);
                }
            }
        }
        Ok(None)
    }

    fn pair(&mut self, records: usize, bulk: usize) -> Result<Vec<Wire>, TransportError> {
        let of = |half: &HalfOpen| (half.wire.remote().ip(), half.wire.peer());
        let [first, second] = [records, bulk].map(|at| of(&self.half_open[at]));
        if first != second {
            // H3. The one that came with the number of another is dropped; which one that is
            // cannot be told, so both are.
            let from = self.half_open[bulk].wire.remote();
            let (low, high) = (records.min(bulk), records.max(bulk));
            self.take(high);
            self.take(low);
            let what = "two connections with one number came from different peers".to_owned();
            return Err(refused(from, TransportError::NotPortolan { what }));
        }
        let (low, high) = (records.min(bulk), records.max(bulk));
        let high_wire = self.take(high);
        let low_wire = self.take(low);
        Ok(match records < bulk {
            true => vec![low_wire, high_wire],
            false => vec![high_wire, low_wire],
        })
    }

    fn take(&mut self, at: usize) -> Wire {
        let mut wire = self.half_open.swap_remove(at).wire;
        wire.unwatch(&self.ready);
        wire
    }
}

impl HalfOpen {
    fn advance(&mut self, ready: &Readiness, now: Duration) -> Result<(), TransportError> {
        self.wire.advance()?;
        if self.preface.is_none()
            && let Some(bytes) = self.wire.greeted()
        {
            let preface = preface(&bytes)?;
            match self.wire.peer() {
                Peer::Newcomer if preface.carries != Carries::Only => {
                    return Err(TransportError::NoCertificate);
                }
                Peer::Directory(_) if preface.carries != Carries::Only => {
                    return Err(TransportError::NotPortolan {
                        what: "a directory's connection has one stream".to_owned(),
                    });
                }
                _ => {}
            }
            self.preface = Some(preface);
        }
        // H1.
        if now >= self.until {
            return Err(TransportError::HandshakeTimedOut {
                seconds: HANDSHAKE_WITHIN.as_secs(),
            });
        }
        self.wire.watch(ready, true)
    }
}

fn refused(from: SocketAddr, reason: TransportError) -> TransportError {
    TransportError::Refused {
        from: from.into(),
        reason: Box::new(reason),
    }
}

impl Listener for TcpListener {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    fn wake_at(&self) -> Option<Duration> {
        let halves = self.half_open.iter().map(|half| half.until);
        halves.chain(self.paused).min()
    }

    fn address(&self) -> Address {
        self.address.into()
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn accept(&mut self) -> Result<Option<Box<dyn Connection>>, TransportError> {
        self.take_clients()?;
        self.advance()?;
        let Some(mut wires) = self.take_link()? else {
            return Ok(None);
        };
        wires.iter_mut().for_each(Wire::welcome);
        let link = Link::new(wires, Arc::clone(&self.clock), self.secure.is_some())?;
        Ok(Some(Box::new(link)))
    }
}
