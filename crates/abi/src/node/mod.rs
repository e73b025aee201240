//! Lays out what two nodes send to one another: records, and fragments of what is too long for one;
//! and what the programs of a machine say to its node ([`NamesQuestion`], [`SpanRequest`]).
//!
//! ```text
//! records stream:  [record][record]...       record:    [head 16][body][tail]
//! bulk stream:     [fragment][fragment]...   fragment:  [head 32][so many bytes]
//! ```
//!
//! A record's *head* ([`RecordHead`]) says how long the whole record is, what it is, to which flow
//! it belongs, and the low 32 bits of its number. The *body* has as many bytes as its kind says.
//! The *tail* is what a body counts: lengths, a header, names, the bytes of a short message.
//!
//! A *fragment* begins with a [`FragmentHead`]. The first one of a transfer *opens* it: its bytes are
//! the record of the message, without the message's payload. The bytes of the others are the
//! payload, in order. A transfer that its sender gives up ends with a fragment that *aborts* it.
//!
//! # Invariants
//!
//! - **R1** A record is decoded whole or not at all, and so is a fragment's head. The decoder copies
//!   no payload, allocates at most 8 KiB of lengths and 6 KiB of rights, or 14 KiB of places, and never panics.
//! - **R2** No two byte strings decode to equal records, so `encode(decode(bytes)) == bytes`. (But for
//!   reasons, of which a later version may have more.)
//! - **R3** A record of a kind that this build does not know is *skipped* if its head has the flag
//!   [`RecordFlags::OPTIONAL`], and refused if not.
//!
//! Region formats never cross, so none of this depends on
//! [`FORMAT_VERSION`](crate::FORMAT_VERSION); nodes agree on a wire version in [`Hello`].
//!
//! ```
//! use portolan_abi::node::{Record, RecordHead, Sent};
//! let ack = Record::Ack.with(Sent { flow: 7, number: 1 << 40 | 9, ..Sent::default() });
//! assert_eq!(ack.len(), RecordHead::BYTES);
//! let (head, record) = Record::decode(&ack)?;
//! assert_eq!((record, head.flow, head.near(1 << 40)), (Some(Record::Ack), 7, 1 << 40 | 9));
//! # Ok::<(), portolan_abi::codec::DecodeError>(())
//! ```

mod fragment;
mod greeting;
mod lent;
mod members;
mod message;
mod names;
mod node_id;
mod programs;
mod record;
mod reference;
mod statement;
mod whereabouts;

pub use fragment::{FRAGMENT_MAGIC, FragmentHead, FragmentKind, MAX_FRAGMENT};
pub use greeting::{
    AssociationId, Bye, ByeReason, Hello, HelloBody, MAX_CERTIFICATE, MAX_KNOWN, Ping, Versions,
};
pub use lent::{Dead, DeadReason, Lent, PORT_SECRET, PortId, Resolve, ResolveFailure};
pub use members::{MAX_ADDRESS, MAX_MEMBERS, Member, is_member_address};
pub use message::{INLINE, MessageBody, MessageRecord, lengths_sum};
pub use names::{Asks, NODE_PORT, NamesAnswer, NamesQuestion, NodeEntry, NodeName, Says};
pub use node_id::{NodeId, NodeIdError};
pub use programs::{
    MAX_DIRECTORY, MAX_REASON, PROGRAMS_VERSION, SpanAnswer, SpanOutcome, SpanRequest,
};
pub use record::{
    Announce, MAX_INSPECTED, MAX_QUESTION, MAX_RECORD, Record, RecordFlags, RecordHead, RecordKind,
    Sent,
};
pub use reference::{Backlog, Claim, MoveRight, Moved, Reference, ReferenceKind};
pub use statement::{MAX_STATEMENT, Stated, Statement, StatementHead, StatementKind, to_sign};
pub use whereabouts::{Asked, Located, MAX_ASKED};

/// The wire versions that this build speaks. Version 1 was in no release: a loan had no key for its borrower
/// ([`Lent::key`]), and the secret of a port followed from nothing.
pub const WIRE: Versions = Versions {
    lowest: 2,
    highest: 2,
};

/// In [`HelloBody::features`]: rights may stand in messages. Said only over a connection whose other
/// end has proved who it is, because secrets go with them.
pub const FEATURE_RIGHTS: u64 = 1;
/// In [`HelloBody::features`]: receive rights may stand in messages, and a borrower is told where a port
/// has moved. Said beside [`FEATURE_RIGHTS`] only.
pub const FEATURE_MOVES: u64 = 2;
/// In [`HelloBody::features`]: it may be asked where ports are whose homes have gone. Said beside
/// [`FEATURE_MOVES`] only.
pub const FEATURE_WHERE: u64 = 4;

/// The flow of numbered control records: each association has one in each direction.
pub const CONTROL: u32 = 0;
/// What stands for the flow in records about answers, which have no order among them.
pub const ANSWERS: u32 = u32::MAX;
/// Flows that one node may have open to another.
pub const MAX_FLOWS: usize = 65_536;
/// Transfers that may be under way, or announced, in one direction of an association.
pub const MAX_TRANSFERS: usize = 1024;
/// Requests of one domain that may be open at one peer.
pub const MAX_OPEN_REQUESTS: usize = 256;
/// Rights in messages to one peer for which requests are open, at the most.
pub const MAX_GIVEN: usize = 32_768;
/// Numbers that may be sent ahead of the one that the receiver wants next: more than any queue has
/// slots.
pub const MAX_AHEAD: u64 = 65_536;
