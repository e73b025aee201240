//! An address says where a socket listens.

use std::fmt;
use std::path::PathBuf;

use rustix::net::SocketAddrUnix;

use super::SocketError;

/// Most bytes of an abstract name or a path.
const MAX_BYTES: usize = 107;

/// The address of a listening socket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A name in the network namespace that vanishes with the last socket that has it.
    Abstract(Vec<u8>),
    /// A file, which outlives its socket and has to be removed.
    Path(PathBuf),
}

impl Address {
    pub(super) fn encode(&self) -> Result<SocketAddrUnix, SocketError> {
        let (encoded, len) = match self {
            // Longer by the zero byte that marks it, which a path has at its end.
            Self::Abstract(name) => (SocketAddrUnix::new_abstract_name(name), name.len()),
            Self::Path(path) => (SocketAddrUnix::new(path), path.as_os_str().len()),
        };
        encoded.map_err(|_| SocketError::BadAddress {
            address: self.clone(),
            len,
            max: MAX_BYTES,
        })
    }
}

impl fmt::Display for Address {
    /// An abstract name as `@name`, as in `/proc/net/unix` and `ss`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Abstract(name) => write!(f, "@{}", name.escape_ascii()),
            Self::Path(path) => path.display().fmt(f),
        }
    }
}
