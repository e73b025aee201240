//! Errors say what went wrong in the transport, and whose fault it is.

use portolan_abi::rpc::Kind;

/// What no honest peer does. The connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Misbehaved {
    /// Nothing but damaged packets.
    #[error("{packets} packets in a row were damaged")]
    Garbage {
        /// How many.
        packets: u32,
    },
    /// A kind that the other side sends.
    #[error("a packet of kind {kind:?} comes from the wrong side")]
    WrongSide {
        /// The kind.
        kind: Kind,
    },
    /// A body that does not belong to the kind.
    #[error("a packet of kind {kind:?} has a body of {len} bytes")]
    Body {
        /// The kind.
        kind: Kind,
        /// Bytes of its body.
        len: usize,
    },
    /// A piece that belongs nowhere.
    #[error("a piece of {len} bytes at {offset} does not fit a message of {total}")]
    Piece {
        /// Where it says it belongs.
        offset: u32,
        /// How long it says the message is.
        total: u32,
        /// Its bytes.
        len: usize,
    },
    /// A message that is longer than agreed.
    #[error("a message of {total} bytes is longer than agreed, {most}")]
    TooLong {
        /// Its bytes.
        total: usize,
        /// Bytes agreed on.
        most: usize,
    },
    /// A number that cannot be.
    #[error("number {number} cannot come while {expected} is expected")]
    Number {
        /// What came.
        number: u64,
        /// What was next.
        expected: u64,
    },
    /// An answer that says how in a way that is not known.
    #[error("an answer has status {what}, which there is not")]
    Status {
        /// What it says.
        what: u32,
    },
}

/// Why a connection takes no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Closed {
    /// The peer's: it sent what no honest peer sends.
    #[error("the connection was closed because the peer misbehaved: {0}")]
    Misbehaved(#[from] Misbehaved),
    /// The peer's: it went away.
    #[error("the peer has left")]
    Left,
    /// The caller's: [`crate::Client::close`] or [`crate::Server::close`] was called.
    #[error("the connection was closed here")]
    Here,
}

/// Why no call was made. The arguments are untouched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotCalled {
    /// The state's: as many calls are open as may be. Take answers first.
    #[error("{open} calls are open, as many as may be: take answers first")]
    WindowFull {
        /// Calls that are open.
        open: usize,
    },
    /// The caller's: the arguments are too long.
    #[error("arguments of {len} bytes are longer than {most}: send them as extents")]
    TooLong {
        /// Their bytes.
        len: usize,
        /// Bytes agreed on.
        most: usize,
    },
    /// See [`Closed`].
    #[error(transparent)]
    Closed(#[from] Closed),
}

/// The client's: it no longer waits for this answer, which was thrown away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nobody waits for the answer to call {number} any more")]
pub struct Stale {
    /// Which call.
    pub number: u64,
}

/// Why bytes are not the state of a server, or there is none to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotFrozen {
    /// The state's: calls are running here, and only here can they end.
    #[error("{running} calls are running: let them end first")]
    Running {
        /// How many.
        running: usize,
    },
    /// The writer's of these bytes: they are not the state of a server.
    #[error("the bytes are not the state of a server: at {at} of {len}")]
    Bytes {
        /// Where it shows.
        at: usize,
        /// How many there are.
        len: usize,
    },
}
