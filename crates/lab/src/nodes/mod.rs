//! Messages between nodes, as this library carries them and as systems of the past did: modes of one
//! engine over one transport.
//!
//! ```text
//!  relay          program -- Unix socket --> proxy ==[ KKT ]== proxy -- Unix socket --> program
//!  stop-and-wait  program -> port -> engine, one message at a time ==[ blocks of n pages, each acknowledged ]==
//!  dipc           program -> port -> engine ==[ transport ]== engine -> port -> program
//!  kkt            memory ==[ transfers, each with a head ]==> one prepared extent
//!  bare           memory ==[ bytes ]==> one prepared extent
//! ```
//!
//! | file | holds |
//! |---|---|
//! | this one | the modes, and the links that they are measured on |
//! | `stop_and_wait` | NORMA's protocol below the engine: blocks of n pages, each acknowledged |
//! | `transfer` | bare bytes and KKT's transfers, on a stream of a connection |
//! | `relay` | a user-level proxy, as the netmsgserver was: between a Unix socket and a connection |
//! | `vouched` | a connection whose other end the lab has started: rights go over it |
//! | `engine` | a node of its own: the engine of the daemon, in a process or stepped by a test |
//! | `far` | what is at the far end: programs, and ends of bare streams |
//! | `pair` | two linked nodes and their programs, by mode |
//! | `world` | tests in virtual time: bytes arrive whole, copies and acknowledgements are counted |
//!
//! Each mode uses the same transport: TCP over loopback, plain or [`Shaped`]. Nothing is slowed
//! down to resemble the past but the link, whose rate, delay and gap are stated with the figures.

pub(crate) mod engine;
pub(crate) mod far;
pub(crate) mod pair;
mod relay;
mod stop_and_wait;
mod transfer;
mod vouched;
#[cfg(test)]
mod world;

use std::sync::Arc;
use std::time::Duration;

use portolan_transport::clock::Clock;
use portolan_transport::{Shape, Shaped, Tcp, Transport};
use serde::{Deserialize, Serialize};

pub(crate) use far::{Brief, serve};

/// Bytes of a page of these protocols.
pub(crate) const PAGE: usize = 4096;
/// Longer than any part of an experiment: a machine that is busy is silent for long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// How messages go from node to node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Mode {
    /// The transport's system calls, and no frame.
    Bare,
    /// Transfers into one prepared extent, each with a head.
    Kkt,
    /// User-level proxies: every byte is copied at each crossing.
    Relay,
    /// One message a node pair at a time, an acknowledgement for each block of so many pages.
    StopAndWait { pages: usize },
    /// The engine of the node, as it is.
    Dipc,
}

/// NORMA as it was: an acknowledgement for each page.
pub(crate) const NORMA: Mode = Mode::StopAndWait { pages: 1 };

impl Mode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Kkt => "KKT",
            Self::Relay => "relay",
            Self::StopAndWait { pages: 1 } => "NORMA",
            Self::StopAndWait { pages: 8 } => "NORMA, 8 pages",
            Self::StopAndWait { pages: 64 } => "NORMA, 64 pages",
            Self::StopAndWait { .. } => "NORMA, n pages",
            Self::Dipc => "DIPC",
        }
    }
}

/// What nodes are linked by. All of them end on this machine: none is a real network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Wire {
    /// As fast as the Paragon's mesh.
    Fast,
    /// As fast as the cluster's SCSI.
    Slow,
    /// As fast as the mesh, and far away.
    Far,
    /// TCP over loopback, as it is.
    Loopback,
}

impl Wire {
    /// What it is, with what it is made of.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Fast => "175 MB/s, shaped",
            Self::Slow => "19.2 MB/s, shaped",
            Self::Far => "20 ms, shaped",
            Self::Loopback => "plain loopback",
        }
    }

    /// For a table's id.
    pub(crate) fn id(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Slow => "slow",
            Self::Far => "far",
            Self::Loopback => "loopback",
        }
    }

    /// Each direction of it; `None` where nothing is shaped. Rates are the paper's; it does not state
    /// delays and gaps.
    pub(crate) fn shape(self) -> Option<Shape> {
        let (rate, delay, gap) = match self {
            Self::Fast => (175_000_000, Duration::from_micros(100), 10),
            Self::Slow => (19_200_000, Duration::from_micros(100), 10),
            Self::Far => (175_000_000, Duration::from_millis(20), 10),
            Self::Loopback => return None,
        };
        Some(Shape {
            delay,
            rate: Some(rate),
            // More than is under way at this rate, so that the delay alone bounds nothing.
            window: 16 << 20,
            gap: Duration::from_micros(gap),
            ..Shape::default()
        })
    }

    /// The interface of one node.
    pub(crate) fn transport(self, clock: &Arc<dyn Clock>) -> Box<dyn Transport> {
        let tcp = Tcp::new(Arc::clone(clock));
        match self.shape() {
            Some(shape) => Box::new(Shaped::new(tcp, shape, Arc::clone(clock))),
            None => Box::new(tcp),
        }
    }
}
