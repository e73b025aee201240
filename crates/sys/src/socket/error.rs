//! Errors say what went wrong with a socket, and whose fault it is.

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::Address;

/// Why a socket operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// The state's: another socket has the address. [`holder`](super::holder) says whose.
    #[error("{address} is in use")]
    AddressInUse {
        /// The address wanted.
        address: Address,
    },
    /// The state's: no process listens there, any more or yet; an abstract name may not exist.
    #[error("{address} has no listener")]
    Refused {
        /// The address wanted.
        address: Address,
    },
    /// The state's: there is no such file, or no such directory to put one in.
    #[error("{address} does not exist")]
    NotFound {
        /// The address wanted.
        address: Address,
    },
    /// The caller's: an empty or too long name, or one with a zero byte in a path.
    #[error("{address} has {len} bytes and must be valid and of at most {max}")]
    BadAddress {
        /// The address wanted.
        address: Address,
        /// Its length in bytes.
        len: usize,
        /// The longest that fits.
        max: usize,
    },
    /// The peer's: it listens and does not accept, and its queue of clients is full.
    #[error("{address} did not accept in time; its process is stopped or overloaded")]
    BacklogFull {
        /// The address wanted.
        address: Address,
    },
    /// No one's fault: the deadline came first. Nothing was sent or received.
    #[error("the deadline passed")]
    TimedOut,
    /// The peer's: it closed the connection. It may be alive nevertheless.
    #[error("the peer closed the connection")]
    Closed,
    /// The process's or the machine's: no descriptor is free. Raise `ulimit -n`.
    #[error("no file descriptor is free: the process may have {limit}, {scope} is at its limit")]
    DescriptorsExhausted {
        /// Most descriptors of this process.
        limit: u64,
        /// Who ran out: the process or the system.
        scope: &'static str,
    },
    /// The caller's: a message carries at most [`MAX_DESCRIPTORS`](super::MAX_DESCRIPTORS).
    #[error("{count} descriptors do not fit a message, which carries at most {max}")]
    TooManyDescriptors {
        /// Descriptors given.
        count: usize,
        /// Most that fit.
        max: usize,
    },
    /// The caller's: a message must not be empty, and must fit the socket's buffer.
    #[error("a message of {len} bytes cannot be sent: it is empty or larger than the socket takes")]
    BadLength {
        /// Its length in bytes.
        len: usize,
    },
    /// The machine's: the kernel refused; see the source.
    #[error("{doing}: {source}")]
    Io {
        /// What was tried.
        doing: &'static str,
        /// The kernel's reason.
        source: io::Error,
    },
}

impl SocketError {
    /// Sorts out the errors that any call can have.
    pub(super) fn new(doing: &'static str, errno: Errno) -> Self {
        match errno {
            Errno::MFILE => Self::exhausted("the process"),
            Errno::NFILE => Self::exhausted("the system"),
            Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => Self::Closed,
            other => Self::Io {
                doing,
                source: other.into(),
            },
        }
    }

    pub(super) fn exhausted(scope: &'static str) -> Self {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Self::DescriptorsExhausted { limit, scope }
    }
}
