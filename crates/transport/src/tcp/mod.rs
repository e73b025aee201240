//! Links over TCP: two connections each, one for records and one for bulk.
//!
//! | file | holds |
//! |---|---|
//! | `link` | a link as a [`Connection`](crate::Connection) |
//! | `wire` | one TCP connection of it, from its first packet to its end |
//! | `layer` | what may lie between a socket and a stream |
//! | `listener` | connections that are being made, until they are a link |

pub(crate) mod layer;
mod link;
mod listener;
mod wire;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use portolan_abi::preface::{Carries, PREFACE_MAGIC, PREFACE_VERSION, Preface};
use portolan_sys::{process, stream};

use crate::clock::{Clock, SystemClock};
use crate::{Address, Connection, Limits, Listener, Transport, TransportError};
use layer::Secure;
use link::Link;
use listener::TcpListener;
use wire::Wire;

/// How long a peer has from its first packet until its link is up.
pub const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// Connections of a listener that are being made, at most.
pub const MOST_HALF_OPEN: usize = 256;
/// Those of them that come from one address, at most: two of each of eight links, or of strangers.
pub const MOST_HALF_OPEN_EACH: usize = 16;

/// Links over TCP. Without TLS they are for one machine, or for a network that is trusted.
#[derive(Clone, Debug)]
pub struct Tcp {
    clock: Arc<dyn Clock>,
    secure: Option<Arc<dyn Secure>>,
}

impl Default for Tcp {
    fn default() -> Self {
        Self::new(Arc::new(SystemClock::default()))
    }
}

impl Tcp {
    /// Links without TLS, whose handshakes end in time by this clock.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            secure: None,
        }
    }

    /// The same with a layer on each connection.
    #[cfg(feature = "tls")]
    pub(crate) fn secured(clock: Arc<dyn Clock>, secure: Arc<dyn Secure>) -> Self {
        Self {
            clock,
            secure: Some(secure),
        }
    }

    /// Listens on a socket that listens already, and does not block: another process has handed it
    /// over. Clients that wait in its backlog are accepted here.
    ///
    /// # Errors
    ///
    /// [`TransportError::System`]: it is no socket.
    pub fn listen_on(&self, socket: OwnedFd) -> Result<Box<dyn Listener>, TransportError> {
        let (clock, secure) = (Arc::clone(&self.clock), self.secure.clone());
        Ok(Box::new(TcpListener::on(socket, clock, secure)?))
    }

    fn internet(address: &Address) -> Result<SocketAddr, TransportError> {
        match address {
            Address::Internet(address) => Ok(*address),
            Address::Named(_) => Err(TransportError::WrongAddress {
                transport: "tcp",
                address: address.clone(),
            }),
        }
    }

    fn wire(&self, to: SocketAddr, preface: &Preface) -> Result<Wire, TransportError> {
        let socket = stream::connect(to).map_err(|error| match error.raw_os_error() {
            // EMFILE, ENFILE: ours.
            Some(23 | 24) => TransportError::system("cannot make a socket")(error),
            _ => TransportError::CannotConnect {
                address: to.into(),
                reason: error.to_string(),
            },
        })?;
        let layer = self.secure.as_ref().map(|secure| secure.client());
        let layer = layer.transpose()?;
        Ok(Wire::connecting(socket, to, layer, preface))
    }
}

impl Transport for Tcp {
    fn limits(&self) -> Limits {
        link::limits(1, self.secure.is_some())
    }

    fn listen(&self, address: &Address) -> Result<Box<dyn Listener>, TransportError> {
        let listener = TcpListener::new(
            Self::internet(address)?,
            Arc::clone(&self.clock),
            self.secure.clone(),
        )?;
        Ok(Box::new(listener))
    }

    fn connect(&self, address: &Address) -> Result<Box<dyn Connection>, TransportError> {
        let to = Self::internet(address)?;
        let link = process::random().map_err(TransportError::system("cannot draw a number"))?;
        let is_single = self.secure.as_ref().is_some_and(|s| s.has_one_stream());
        let carried = match is_single {
            true => &[Carries::Only][..],
            false => &[Carries::Records, Carries::Bulk],
        };
        let wires = carried.iter().map(|carries| {
            let preface = Preface {
                magic: PREFACE_MAGIC,
                version: PREFACE_VERSION,
                carries: *carries,
                link,
            };
            self.wire(to, &preface)
        });
        let wires = wires.collect::<Result<_, _>>()?;
        let link = Link::new(wires, Arc::clone(&self.clock), self.secure.is_some())?;
        Ok(Box::new(link))
    }
}
