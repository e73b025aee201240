//! An address says where a transport listens, or connects to.

use std::fmt;
use std::net::SocketAddr;

/// Where a listener is. A transport takes one kind.
///
/// Names of machines are resolved by the caller, because that takes time.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Address {
    /// An IPv4 or IPv6 address with a port.
    Internet(SocketAddr),
    /// A name in this process, of [`Memory`](crate::Memory).
    Named(String),
}

impl Address {
    /// A name in this process.
    pub fn named(name: &str) -> Self {
        Self::Named(name.to_owned())
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::Internet(address)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Internet(address) => address.fmt(f),
            Self::Named(name) => write!(f, "{name:?} of this process"),
        }
    }
}
