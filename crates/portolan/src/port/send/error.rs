//! Says what a send does when the queue is full, and why a message was not sent.

use crate::port::ConnectError;
use crate::{AllocateError, Deadline, Disowned, NoDescriptor};
use portolan_shm::owner::OwnerError;
use std::time::Instant;

/// What a send does when the queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// Wait for room.
    Wait(Deadline),
    /// Give the message back at once.
    Fail,
    /// Drop the message, count it, and call it sent.
    Drop,
}

impl From<Deadline> for WhenFull {
    fn from(deadline: Deadline) -> Self {
        Self::Wait(deadline)
    }
}

/// Why a message was not sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The state's: the queue is full.
    #[error(
        "the port's queue is full ({slots} messages): wait longer, or let the receiver catch up"
    )]
    Full {
        /// Slots of the queue.
        slots: usize,
    },
    /// The peer's: the port is gone, by its owner's act or death; or by that of a node between.
    #[error(
        "the port is dead: its owner closed it or died, or it was on another node, which was given up or spans the domain no more; drop this right and look the name up again"
    )]
    DeadName,
    /// The caller's: requests go to synchronous ports, messages to asynchronous ones.
    #[error("this port is {0}: use {1}")]
    WrongKind(&'static str, &'static str),
    /// The caller's: an extent in the message belongs to another domain.
    #[error(
        "the message holds an extent or right of another domain: allocate it from the port's domain"
    )]
    Foreign,
    /// A peer's or the caller's: an extent's owner word does not name this space.
    #[error(transparent)]
    Owner(#[from] OwnerError),
    /// The caller's: the message holds the receive right of the port that it is sent to, so
    /// nobody could ever receive it.
    #[error(
        "the message holds the receive right of the very port that it is sent to: nobody could take it out; send it to another port"
    )]
    IntoItself,
    /// The caller's: the message holds a data structure and the port gives its receiver
    /// copies, or is on another node: they lie at other addresses than the structure's pointers
    /// say.
    #[error(
        "a structure cannot be copied to another place, as this port would: send it to a port of this machine that is not `copied`, or send it as bytes"
    )]
    Structure,
    /// The caller's: the message holds something that means this machine's memory, and the port is
    /// on another node.
    #[error(
        "{what} cannot leave this machine, and the port is on another node: send its bytes, or a send right, a channel or a shared extent in its place"
    )]
    StaysHere {
        /// What the message holds.
        what: &'static str,
    },
    /// The peer's: the port is on another node, which is silent. It may come back: what was sent to
    /// it before is kept. See [`proxy`](crate::proxy).
    #[error(
        "the port is on node {node:?}, which has been silent for {:.1} s: try again later, or send to another one",
        .since.elapsed().as_secs_f64()
    )]
    Unreachable {
        /// The node.
        node: String,
        /// Since when it is silent.
        since: Instant,
    },
    /// The caller's: the message holds rights, and the port is another domain's, where they mean
    /// nothing.
    #[error(
        "{rights} rights cannot leave their domain: offer the port, and have the other side connect to it"
    )]
    Rights {
        /// How many.
        rights: usize,
    },
    /// The caller's: the message holds sealed memory, and the port is received in another process
    /// of this domain.
    #[error(
        "sealed memory does not move between processes of one domain: send it to a port of this process or, by a connection with Protection::Sealed that this process made, to another domain; or share an extent"
    )]
    Sealed,
    /// The caller's: the port is another domain's, where the message would take more memory
    /// than a message may ([`OfferOptions::most_bytes`](crate::OfferOptions::most_bytes)).
    #[error(
        "the message, {len} bytes in {extents} extents, takes {bytes} bytes of memory in the other domain, over the {most} that one may: an extent counts as the pages that hold it, 4096 bytes at least; put small ones together, send several messages, or have the other side raise the limit of its offer (most_bytes)"
    )]
    TooLong {
        /// Bytes in the message.
        len: u64,
        /// Extents in the message.
        extents: usize,
        /// Bytes of memory that it takes there.
        bytes: u64,
        /// Bytes of memory that it may take.
        most: u64,
    },
    /// The machine's: in a guarded domain, our own access to an extent could not be ended
    /// (the process has too many mappings).
    #[error(
        "cannot close the message's pages in this process: {0}; hold fewer large extents, or raise vm.max_map_count"
    )]
    Open(std::io::Error),
    /// No page for a long header, for many extents, or for the copy that the port wants.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    /// No port had the name to which a [`ReconnectingSender`](crate::reconnect::ReconnectingSender)
    /// sends: see [`ConnectError`].
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// See [`Disowned`].
    #[error(transparent)]
    Disowned(#[from] Disowned),
    /// See [`NoDescriptor`].
    #[error(transparent)]
    NoDescriptor(#[from] NoDescriptor),
}
