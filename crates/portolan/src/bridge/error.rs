//! Errors of connections between domains say which side is at fault.

use crate::channel::ChannelError;
use crate::{BindError, NoDescriptor, OfferConnectError};
use portolan_abi::FORMAT_VERSION;
use portolan_abi::bridge::Denied;
use portolan_shm::byte_ring::Garbled;
use portolan_sys::memory::{MapError, VerifyError};
use portolan_sys::socket::SocketError;
use std::fmt;
use std::io;

/// Why a port of another domain was not connected to, or a channel not followed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectToError {
    /// The other domain's host has not introduced us.
    #[error(transparent)]
    Connect(#[from] OfferConnectError),
    /// The caller's: other protections do not reach beyond a domain.
    #[error(
        "a message to another domain is copied or sealed, not {asked:?}: ask for Protection::Copied or Protection::Sealed"
    )]
    Protection {
        /// What was asked for.
        asked: crate::Protection,
    },
    /// The state's: the offer does not take sealed memory.
    #[error("the offer takes no sealed memory: connect with Protection::Copied")]
    Sealed,
    /// The state's: the offer has as many clients as it lets in.
    #[error("the offer has as many clients as it lets in: try again later")]
    Full,
    /// The state's: the port was closed, or the offer withdrawn, at this moment.
    #[error("it is not offered any more: try again, if it is to come back")]
    Over,
    /// The peer's: it has no memory or descriptors left.
    #[error("the offering process has no descriptors or no memory left: try again later")]
    Resources,
    /// The peer's: it speaks another format.
    #[error(
        "the offering process speaks format {theirs}, this one {FORMAT_VERSION}: build both with one version"
    )]
    Version {
        /// What it speaks.
        theirs: u32,
    },
    /// The peer's: its answer cannot be decoded.
    #[error("the offering process sent an answer that cannot be decoded: do not trust it")]
    Garbled,
    /// The peer's: it did not answer in time, or hung up.
    #[error("the offering process did not answer: {0}")]
    Unanswered(#[source] SocketError),
    /// No proxy port.
    #[error("no port for this side: {0}")]
    Bind(#[from] BindError),
    /// The caller's: one like the offered channel would take more memory than it allows.
    #[error(
        "the channel has {bytes} bytes, over the limit of {most}: allow more, or follow a smaller one"
    )]
    TooLarge {
        /// Bytes of the channel.
        bytes: u64,
        /// The limit.
        most: u64,
    },
    /// No channel for this side.
    #[error("no channel for this side: {0}")]
    Channel(#[from] ChannelError),
    /// The machine's: no memory for the connection.
    #[error("no memory for the connection: {0}")]
    Memory(#[from] MapError),
    /// The machine's: no thread, or no memory file.
    #[error("cannot make a connection: {0}")]
    Io(#[from] io::Error),
    /// See [`NoDescriptor`].
    #[error(transparent)]
    NoDescriptor(#[from] NoDescriptor),
}

impl ConnectToError {
    /// The error that an offering process's refusal stands for.
    pub(super) fn denied(why: Denied, theirs: u32) -> Self {
        match why {
            Denied::Full => Self::Full,
            Denied::Over => Self::Over,
            Denied::Resources => Self::Resources,
            Denied::Version => Self::Version { theirs },
            Denied::Sealed => Self::Sealed,
            // The second is none of a port's.
            Denied::Garbled | Denied::NoCopyBroker => Self::Garbled,
        }
    }
}

/// A client's violation of the protocol. The bridge ended its connection, and dropped the message
/// that had come in part.
#[derive(Debug)]
pub struct Violation {
    /// Its user.
    pub uid: u32,
    /// Its process; 0 in another process namespace.
    pub pid: u32,
    /// What it did.
    pub kind: ViolationKind,
}

/// The rule that a client broke. Each is the client's fault.
#[derive(Debug)]
#[non_exhaustive]
pub enum ViolationKind {
    /// It asked for something that is no request.
    Ask,
    /// Its count of bytes is none that it can have.
    ByteRing(Garbled),
    /// Its frame header describes no message, or stands where none of its kind may.
    FrameHeader,
    /// Its message is over the limit of the offer.
    TooLong {
        /// Bytes of memory that the message would take.
        bytes: u64,
        /// The limit.
        most: u64,
    },
    /// It named sealed memory, and sent no descriptors for it, or not as many.
    Descriptors {
        /// Parts that it named.
        named: usize,
    },
    /// What it said is sealed is not, or has another size.
    Sealed(VerifyError),
    /// It sent descriptors that were not asked for, or something that is no ring.
    Packet,
    /// It sent something for a port that it has not opened, or has closed.
    Port {
        /// The number of the port in its connection.
        port: u32,
    },
    /// It sent more than the port's window allows, and did not wait until the port had room.
    Window {
        /// The number of the port in its connection.
        port: u32,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { uid, pid, kind } = self;
        write!(f, "the client of user {uid}, process {pid}: {kind}")
    }
}

impl fmt::Display for ViolationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ask => f.write_str("its first packet is no request"),
            Self::ByteRing(garbled) => garbled.fmt(f),
            Self::FrameHeader => f.write_str("the frame header of its message cannot be decoded"),
            Self::TooLong { bytes, most } => write!(
                f,
                "its message would take {bytes} bytes of memory here, over the limit of {most}"
            ),
            Self::Descriptors { named } => write!(
                f,
                "its message names {named} parts of sealed memory, and other descriptors came for it"
            ),
            Self::Sealed(why) => write!(f, "its sealed memory is none: {why}"),
            Self::Packet => f.write_str(
                "it sent a packet that is none of ours, or descriptors that were not asked for",
            ),
            Self::Port { port } => write!(f, "its connection has no port {port} that is open"),
            Self::Window { port } => write!(
                f,
                "it sent more to port {port} of its connection than the port's window allows"
            ),
        }
    }
}

impl From<Garbled> for ViolationKind {
    fn from(garbled: Garbled) -> Self {
        Self::ByteRing(garbled)
    }
}

/// Why a connection has ended.
#[derive(Debug)]
pub(super) enum Over {
    /// The other side is gone.
    Gone,
    /// This side was told to stop, or has nothing more to do.
    Stopped,
    /// The other side violated the protocol.
    Violation(ViolationKind),
    /// The machine's.
    Io(io::Error),
}

impl From<ViolationKind> for Over {
    fn from(kind: ViolationKind) -> Self {
        Self::Violation(kind)
    }
}

impl From<Garbled> for Over {
    fn from(garbled: Garbled) -> Self {
        Self::Violation(garbled.into())
    }
}

impl From<SocketError> for Over {
    fn from(error: SocketError) -> Self {
        match error {
            SocketError::Closed | SocketError::TimedOut => Self::Gone,
            SocketError::Io { source, .. } => Self::Io(source),
            other => Self::Io(io::Error::other(other)),
        }
    }
}

impl From<io::Error> for Over {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}
