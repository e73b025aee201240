//! Lays out what nodes say about themselves: the greeting, the clock, the farewell.

use super::node_id::NodeId;
use crate::codec::{DecodeError, Reader};
use crate::limits::MAX_NODE_NAME;
use crate::name::is_name;
use crate::{codes, record};

/// Bytes of what a node asks to be signed, and of a certificate, at the most.
pub const MAX_CERTIFICATE: usize = 8192;

/// Nodes that a [`Hello`] names at the most.
pub const MAX_KNOWN: usize = 64;

/// First bytes of a [`HelloBody`].
const HELLO_MAGIC: u32 = 0x484e_5450;

record! {
    /// Which association of two nodes: the proposal of the node with the smaller id, and of the
    /// other.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub struct AssociationId {
        /// Proposed by the node with the smaller id.
        pub smaller: u64,
        /// Proposed by the other node.
        pub larger: u64,
    }
}

record! {
    /// The wire versions that a node speaks.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Versions {
        /// The lowest.
        pub lowest: u16,
        /// The highest.
        pub highest: u16,
    }
    check |it| it.lowest <= it.highest
}

impl Versions {
    /// The version that two nodes use: the highest that both speak.
    ///
    /// ```
    /// use portolan_abi::node::Versions;
    /// let of = |lowest, highest| Versions { lowest, highest };
    /// assert_eq!(of(1, 3).common(of(2, 9)), Some(3));
    /// assert_eq!(of(1, 3).common(of(4, 9)), None);
    /// ```
    pub fn common(self, other: Self) -> Option<u16> {
        let highest = self.highest.min(other.highest);
        (highest >= self.lowest.max(other.lowest)).then_some(highest)
    }
}

record! {
    /// The part of a [`Hello`] that has the same length in all of them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct HelloBody {
        magic HELLO_MAGIC,
        /// The wire versions that the sender speaks.
        pub versions: Versions,
        /// What it can do beside what its version says; unknown bits mean nothing.
        pub features: u64,
        /// Its cluster.
        pub cluster: [u8; 16],
        /// The sender.
        pub node: NodeId,
        /// How often it has started.
        pub incarnation: u64,
        /// A random number of the run that began then. Two nodes with one identity differ in it.
        pub run: [u8; 16],
        has association,
        /// Bytes of its name, which stands behind.
        pub name: u8,
        _: 2,
        /// How many nodes are named behind.
        pub known: usize,
        /// The association that it has with the receiver.
        pub association: Option<AssociationId>,
        /// Its part of the next association's id; it has never been a part of one.
        pub proposal: u64,
        /// Flows that it lets the receiver have.
        pub flows: u32,
        /// Transfers that it lets the receiver have.
        pub transfers: u32,
        /// Open requests that it lets a domain of the receiver have.
        pub requests: u32,
        _: 4,
    }
    check |it| it.known <= MAX_KNOWN && it.proposal != 0
        && (1..=MAX_NODE_NAME).contains(&usize::from(it.name))
}

/// "This is me": the first record of each connection, in both directions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// What is always there. Its `known` and its `name` are ignored by the encoder.
    pub body: HelloBody,
    /// The sender's name, for people and for lists of nodes that may come in.
    pub name: String,
    /// Nodes that the sender knows; where they are reached is said in
    /// [`Record::Members`](super::Record::Members).
    pub known: Vec<NodeId>,
}

impl Hello {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        let count = self.known.len().min(MAX_KNOWN);
        let body = HelloBody {
            known: count,
            name: u8::try_from(self.name.len()).unwrap_or(u8::MAX),
            ..self.body
        };
        out.extend(body.encode());
        out.extend(self.name.as_bytes());
        let known = self.known.iter().take(count);
        known.for_each(|node| out.extend(node.0));
    }

    pub(super) fn get(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let body: HelloBody = from.field("hello")?;
        let name = std::str::from_utf8(from.bytes(usize::from(body.name))?);
        let name = name.ok().filter(|name| is_name(name, MAX_NODE_NAME));
        let name = name.ok_or(DecodeError::Value { field: "name" })?.to_owned();
        let known = from.list("known", body.known)?;
        Ok(Self { body, name, known })
    }
}

record! {
    /// "I am there": said after a second of silence. It also measures the round trip.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Ping {
        /// The sender's clock, in nanoseconds.
        pub clock: u64,
        has echo,
        _: 7,
        /// The clock in the last ping that the sender received.
        pub echo: Option<u64>,
        /// How long the sender kept it, in nanoseconds.
        pub held: u64,
    }
}

codes! {
    /// Why a node ends a connection, and with it mostly the association.
    pub enum ByeReason: u32 {
        /// The node ends.
        Leaving = 1,
        /// Its operator has given the receiver up.
        Forgotten = 2,
        /// The receiver sent what no honest node sends.
        Violation = 3,
        /// There is no wire version that both speak.
        Version = 4,
        /// The receiver is of another cluster.
        Cluster = 5,
        /// The sender knows a later incarnation of the receiver.
        Incarnation = 6,
        /// Another connection of the two stays.
        Crossed = 7,
        /// A certificate has expired. The association goes on over the next connection.
        Expired = 8,
        /// Another reason.
        Other = 9,
    }
    unknown => Other
}

record! {
    /// "I go."
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Bye {
        /// Why.
        pub reason: ByeReason,
        _: 4,
    }
}
