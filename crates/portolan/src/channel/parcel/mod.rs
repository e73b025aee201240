//! Parcels carry large payloads: extents that go beside a channel's messages, by move or shared.
//!
//! ```text
//! writer:  room in the ring --> parcel to each reader's inbox --> note committed
//!                                        (a port)                 (commit point)
//! ```
//!
//! A parcel does not lie in the ring. It goes to a port of the reader's, and then the
//! note that announces it is committed. So at every instant a parcel has an owner by the rules
//! that hold for all extents and rights, whichever process dies: a reader drops parcels that were
//! sent and never announced, and the host empties a dead reader's port.
//!
//! Readers register at the writer's *registry*, a port with a name made of the channel's. A parcel
//! of any size costs one message by port for each reader.
//!
//! # Invariants
//!
//! - **P1** A parcel and its note carry one [`Stamp`], which no other has: the number of
//!   writers that had left before, and a number of this writer's.
//! - **P2** Who is known to the writer is *welcomed* before it is sent anything. What was
//!   announced before the first welcome is not missed; it was before the reader's time.
//! - **P3** A registry closes before its writer's place is free, and an inbox before its
//!   reader's entry. So a reader that learns of the writer's end looks for a new registry, and does
//!   not find the old one; and an entry that the writer knows is this reader's. The writer forgets
//!   a reader that lagged and was dropped; the reader closes its inbox when it learns that.
//! - **P4** Nothing with a parcel is announced while a reader that the writer waits for is
//!   not known to it, by its entry.
//! - **P5** A writer that has opened a registry, or made room at one that was full, wakes the
//!   channel's readers. A reader without a registry marks itself as asleep, and then looks for one.
//!   So it need not block on that: it is woken as for a message.

mod reader;
mod writer;

pub use reader::ParcelReader;
pub use writer::ParcelWriter;

use super::{Channel, WriteError};
use crate::port::{SendError, connect_port};
use crate::space::Member;
use crate::{Deadline, Extent, SharedExtent};
use portolan_abi::beside::ParcelStamp;
use portolan_abi::codec;
use std::sync::Arc;

/// A large payload.
#[derive(Debug)]
pub enum Parcel {
    /// An extent that changes its owner: for a reliable channel with one reader. If that one
    /// has chosen to miss what it is too slow for, such an extent is freed.
    Moved(Extent),
    /// Memory that all readers have at once, to read: freed when the last of them has let
    /// go, or died. [`crate::Domain::share_extent`] makes it of an extent.
    Shared(SharedExtent),
}

/// A note, and its parcel if it has one.
#[derive(Debug)]
#[must_use = "a dropped delivery frees its parcel"]
pub struct Delivery {
    /// What the writer wrote.
    pub note: Vec<u8>,
    /// What came with it.
    pub parcel: Option<Parcel>,
    /// The position of the note.
    pub position: u64,
}

/// Why a note, and its parcel, was not sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParcelError {
    /// The caller's: what is moved has one taker.
    #[error("{readers} readers cannot have one extent: share it")]
    NotOneReader {
        /// How many there are.
        readers: usize,
    },
    /// The caller's: a message-consistent channel may lose what is moved.
    #[error("the channel is not reliable: share the extent, or make a reliable one")]
    NotReliable,
    /// The readers': some are waited for, and have not made themselves known to this
    /// writer. Those of the last writer do so with their next call.
    #[error(
        "{readers} readers of the channel are not known to its writer: wait longer, and bind all by `bind_parcel_reader`"
    )]
    Unknown {
        /// How many.
        readers: usize,
    },
    /// See [`WriteError`].
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A reader's inbox did not take it.
    #[error(transparent)]
    Unsent(#[from] SendError),
}

impl Channel {
    pub(crate) fn member(&self) -> &Arc<Member> {
        &self.segment().right().to.member
    }

    /// Whether a writer sends parcels on it now.
    pub(crate) fn has_parcels(&self) -> bool {
        connect_port(self.member(), &registry_name(self), Deadline::NOW).is_ok()
    }
}

/// The name of the port where readers of a channel make themselves known.
fn registry_name(channel: &Channel) -> String {
    let port = channel.segment().right().to.port;
    format!("parcels {}.{}", port.index, port.generation)
}

/// What joins a parcel and its note (P1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Stamp {
    /// How many writers of the channel had left before this one came.
    writers: u32,
    /// Counts this one's notes; those that failed too.
    number: u64,
}

impl Stamp {
    const BYTES: usize = ParcelStamp::BYTES;

    fn encode(self, has_parcel: bool) -> [u8; Self::BYTES] {
        let Self { writers, number } = self;
        let stamp = ParcelStamp {
            number,
            writers,
            has_parcel,
        };
        stamp.encode()
    }

    /// The stamp in front of some bytes, whether a parcel comes with it, and the rest.
    fn split(bytes: &[u8]) -> Option<(Self, bool, &[u8])> {
        let mut from = codec::Reader::new(bytes);
        let ParcelStamp {
            number,
            writers,
            has_parcel,
        } = from.field("stamp").ok()?;
        Some((Self { writers, number }, has_parcel, from.rest()))
    }
}
