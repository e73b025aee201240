//! Says what no honest node sends, and why something was not sent.

use crate::Time;
use portolan_abi::codec::DecodeError;
use portolan_abi::node::{ByeReason, NodeId};

/// What no honest node sends. It ends the association, and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// Bytes that are no record, and no fragment.
    #[error("the peer sent no record: {0}")]
    Record(#[from] DecodeError),
    /// A greeting that is not the first record, or another record that is.
    #[error("the peer greets twice, or not at all")]
    Greeting,
    /// A greeting of another node than the one that was authenticated.
    #[error("the peer was authenticated as {authenticated:?} and says that it is {said:?}")]
    Identity {
        /// Its certificate's.
        authenticated: NodeId,
        /// Its greeting's.
        said: NodeId,
    },
    /// A flow that it was not lent.
    #[error("the peer uses flow {flow}, which it was not lent")]
    NotLent {
        /// The flow.
        flow: u32,
    },
    /// A flow's number that was used before, or more flows than agreed.
    #[error("the peer may not open flow {flow}")]
    Flow {
        /// The flow.
        flow: u32,
    },
    /// A number that cannot be.
    #[error("number {number} of flow {flow} cannot come while {expected} is expected")]
    Number {
        /// The flow.
        flow: u32,
        /// What came.
        number: u64,
        /// What was next.
        expected: u64,
    },
    /// A message whose payload is not where it should be.
    #[error("a message of {bytes} bytes came in the wrong stream")]
    Stream {
        /// Bytes of its payload.
        bytes: u64,
    },
    /// A request at a port that takes none, or a message at one that takes nothing else.
    #[error("flow {flow} leads to another kind of port")]
    WrongKind {
        /// The flow.
        flow: u32,
    },
    /// A transfer that was not agreed on, is under way already, or is one too many.
    #[error("transfer {transfer} cannot come")]
    Transfer {
        /// Which.
        transfer: u32,
    },
    /// A fragment that does not continue its transfer.
    #[error("a fragment at {offset} of transfer {transfer} cannot come at {expected}")]
    Fragment {
        /// Of which transfer.
        transfer: u32,
        /// Where it says it belongs.
        offset: u64,
        /// What came so far.
        expected: u64,
    },
    /// The answer to a request that was never made.
    #[error("there was no request {request}")]
    Request {
        /// Which.
        request: u64,
    },
    /// Rights over a connection on which none were agreed on, or more than a node gives.
    #[error("the peer may not give a right now: {open} of its requests are open here")]
    Rights {
        /// Requests of it that are open.
        open: usize,
    },
    /// More replies wait for the peer than an honest one leaves unread.
    #[error("the peer reads nothing: {records} records wait for it")]
    Unread {
        /// How many.
        records: usize,
    },
}

/// Why an association is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Over {
    /// Nothing was heard of the peer for as long as `dead_after` says.
    #[error("nothing was heard of the peer for too long")]
    GivenUp,
    /// The peer was started anew.
    #[error("the peer was started anew")]
    Restarted,
    /// The peer had given this node up.
    #[error("the peer had given this node up")]
    Forgotten,
    /// The peer said that it goes.
    #[error("the peer has ended the association: {0:?}")]
    Bye(ByeReason),
    /// This node goes, or has given the peer up.
    #[error("the association was ended here")]
    Here,
    /// The peer's: it sent what no honest node sends.
    #[error("the peer violated the protocol: {0}")]
    Violation(#[from] Violation),
}

/// Why a message was not sent, a request not made, a name not asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unsent {
    /// The state's: there is no association with the node.
    #[error("there is no association with node {node:?}: connect to it first")]
    NoSuchNode {
        /// The node.
        node: NodeId,
    },
    /// The peer's, or the network's.
    #[error("node {node:?} has been unreachable since {since:?}: send again when it is reachable")]
    Unreachable {
        /// The node.
        node: NodeId,
        /// When it was heard last.
        since: Time,
    },
    /// The state's: the flow is closed, its port is gone, or its association is over.
    #[error("the flow leads nowhere any more: resolve the name again")]
    Dead,
    /// The state's: as much is under way as may be. [`super::Event::Writable`] says when not.
    #[error("as much is under way as may be: wait until the flow is writable")]
    Full,
    /// The state's: as many requests, or flows, are open as may be.
    #[error("{open} are open, as many as may be: let some end first")]
    TooMany {
        /// How many.
        open: usize,
    },
    /// The peer's, or the connection's: rights do not go there.
    #[error(
        "node {node:?} takes no rights: it has not proved who it is, or is of an earlier version"
    )]
    NoRights {
        /// The node.
        node: NodeId,
    },
    /// The peer's: it is of an earlier version, and does not know that ports move.
    #[error("node {node:?} does not know that ports move: start a later version there")]
    NoMoves {
        /// The node: the one that was to have the port, or one that sends to it.
        node: NodeId,
    },
    /// The state's: the port's receive right is on its way already.
    #[error("the port is moving: try again when it has arrived")]
    Moving,
    /// The caller's: no record can say this.
    #[error(
        "the message has too long a header, too many extents, or lengths that are not its payload's"
    )]
    Malformed,
}

/// What was not sent, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused<T> {
    /// Why.
    pub why: Unsent,
    /// What was given.
    pub item: T,
}
