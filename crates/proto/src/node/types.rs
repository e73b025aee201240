//! What a node and its driver say to one another.

use super::violation::{Over, Violation};
use crate::Time;
use core::ops::Range;
use core::time::Duration;
use portolan_abi::limits::{MAX_EXTENTS, MAX_HEADER, MAX_RIGHTS};
use portolan_abi::node::{
    ByeReason, DeadReason, FragmentHead, Lent, MAX_OPEN_REQUESTS, NodeId, PortId, Reference,
    ResolveFailure, lengths_sum,
};
use portolan_abi::slot::Kind;
use serde::{Deserialize, Serialize};

/// What a node is, and how patient.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Its id.
    pub node: NodeId,
    /// How often it has started: more than ever before.
    pub incarnation: u64,
    /// A random number, drawn at this start. Of two nodes with one identity one is refused by it.
    pub run: [u8; 16],
    /// Its cluster.
    pub cluster: [u8; 16],
    /// After this silence a peer is unreachable.
    pub silent_after: Duration,
    /// After this silence a peer is given up; `None` is never.
    pub dead_after: Option<Duration>,
    /// After this silence of its own it says that it is there.
    pub ping_after: Duration,
    /// Credit that a flow has not used after this time goes to flows that wait.
    pub credit_lapses_after: Duration,
    /// What the clock that peers are told of showed at time zero: of a clock that other programs of the
    /// machine read too, how far it is ahead of a peer's means something to them.
    pub clock_at_zero: Duration,
    /// Bytes in flight on a link, at first.
    pub window_at_first: u64,
    /// Bytes in flight on a link at the most.
    pub window_at_most: u64,
    /// Requests of one domain that may be open at one peer.
    pub open_requests: usize,
    /// A message goes to a peer only once all before it have been acknowledged there, whatever ports
    /// they are for, as by the stop-and-wait protocols of the past. Only comparison with those
    /// wants it.
    pub one_at_a_time: bool,
    /// So long the acknowledgement of a request waits for the answer, and 20 times so long that of an
    /// answer for any record, that it may go with; zero: not at all. The first one waits longer too
    /// while answers come in time.
    pub acknowledge_within: Duration,
    /// Receive rights move: its greetings say so ([`portolan_abi::node::FEATURE_MOVES`]).
    pub moves: bool,
}

/// How long acknowledgements wait for a record, as [`Settings::new`] has it: longer than a server that
/// answers at once takes, also over TLS and on a busy machine; and short, because a client's second
/// request to a port that is not busy may wait for the acknowledgement of the first one.
pub const ACKNOWLEDGE_WITHIN: Duration = Duration::from_micros(500);

impl Settings {
    /// The usual patience: 3 s, 30 s, 1 s, 1 s, [`ACKNOWLEDGE_WITHIN`]; 8 MiB in flight, growing to 64 MiB.
    pub const fn new(node: NodeId, incarnation: u64, cluster: [u8; 16]) -> Self {
        Self {
            node,
            incarnation,
            run: [0; 16],
            cluster,
            silent_after: Duration::from_secs(3),
            dead_after: Some(Duration::from_secs(30)),
            ping_after: Duration::from_secs(1),
            credit_lapses_after: Duration::from_secs(1),
            clock_at_zero: Duration::ZERO,
            window_at_first: 8 << 20,
            window_at_most: 64 << 20,
            open_requests: MAX_OPEN_REQUESTS,
            one_at_a_time: false,
            acknowledge_within: ACKNOWLEDGE_WITHIN,
            moves: false,
        }
    }

    /// What the clock shows that peers are told of.
    pub(super) fn clock(&self, now: Time) -> u64 {
        now.after(self.clock_at_zero).0
    }
}

/// The driver's number for a connection; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// The driver's number for a port of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PortKey(pub u64);

/// The driver's number for a domain that this node spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DomainKey(pub u32);

/// The wall clock, in seconds: certificates end by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wall(pub u64);

/// A connection as the transport has authenticated it.
#[derive(Clone, Copy, Debug)]
pub struct Authenticated {
    /// The node at its other end.
    pub node: NodeId,
    /// When its certificate expires, or ours, whichever is sooner.
    pub expires: Option<Wall>,
    /// This node has opened the connection.
    pub dialed: bool,
    /// The node at the other end has proved who it is, and nobody else reads or changes what goes over
    /// the connection. Rights, with their secrets, go over no other one.
    pub proven: bool,
}

/// A flow to a port of a peer. It ends with the association.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FlowKey {
    /// The port's home.
    #[serde(with = "super::saved::coded")]
    pub peer: NodeId,
    /// Which association with it, as this node counts them.
    pub association: u64,
    /// Which flow of it.
    pub flow: u32,
}

/// A flow to a port of a peer whose association is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowEnd {
    /// Which.
    pub flow: FlowKey,
    /// All numbers below were acknowledged: they were in the port.
    pub acknowledged: u64,
    /// So many from there on are not kept any more. Some may have arrived.
    pub lost: u64,
    /// The port may be at another node: this asks where, and [`Event::Borrowed`] or [`Event::CameHome`] tells, as
    /// of one that has moved. What comes after those that are lost goes there.
    pub borrow: Option<BorrowKey>,
}

/// A request: at the client's node its own, at the home of the port the client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RequestKey {
    /// The node at the other side.
    #[serde(with = "super::saved::coded")]
    pub peer: NodeId,
    /// Which association with it, as this node counts them.
    pub association: u64,
    /// Which request of it.
    pub request: u64,
}

/// A right that this node has been given and has no loan of yet: [`super::Node::borrow`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BorrowKey(pub u64);

/// What a right to be given leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gift {
    /// A port of this node.
    Port(PortKey),
    /// The right to receive at a port of this node. It stays the port's home until the peer has taken the
    /// right ([`Event::Left`]).
    Receive(PortKey),
    /// The port of a peer that a flow leads to.
    Flow(FlowKey),
    /// A port that is being borrowed.
    Borrow(BorrowKey),
    /// What waits for the one message of a send-once right: the driver knows who that is.
    Once,
}

/// Where a right in a message leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Leads {
    /// To a port of this node.
    Here(PortKey),
    /// To a port of this node that is gone, or was never there.
    Nowhere,
    /// To a port of another node, which may be the giver: [`super::Node::borrow`].
    There,
    /// It is the right to receive at a port of the giver's: [`super::Node::take`], or answer its request
    /// as dropped.
    Receive,
    /// Back to the giver: the one message of a send-once right is [`super::Node::answer`] to its request.
    Back,
}

/// A right in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Given {
    /// The request that its giver keeps open for it: its own at the giver's node, the giver's at the
    /// receiver's. At the giver's node it ends when the receiver's node has a loan of its own, or wants
    /// none, or is given up: until then the driver keeps the right.
    pub request: RequestKey,
    /// The right, as it stands in the message.
    pub reference: Reference,
    /// Where it leads, seen from this node.
    pub leads: Leads,
}

/// A message, or the content of an answer. The payload is a reference: nothing copies it here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message<P> {
    /// When it should be dealt with.
    pub urgency: Option<Urgency>,
    /// The header.
    pub header: Vec<u8>,
    /// Bytes of each extent, none of them zero.
    pub lengths: Vec<u64>,
    /// Its rights: what [`super::Node::give`] has returned.
    pub rights: Vec<Given>,
    /// The extents, one after another; there if there is a length.
    pub payload: Option<P>,
}

/// When a message should be dealt with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// By then. Two nodes have two clocks: the time that is left travels, as it is then.
    Deadline(Time),
    /// More urgent the higher it is.
    Priority(u32),
}

impl Urgency {
    /// In the word of a priority.
    const PRIORITY: u64 = 1 << 63;

    pub(super) fn encode(self, now: Time) -> u64 {
        match self {
            Self::Deadline(at) => at.0.saturating_sub(now.0).min(Self::PRIORITY - 1),
            Self::Priority(priority) => Self::PRIORITY | u64::from(priority),
        }
    }

    pub(super) fn decode(word: u64, now: Time) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "the low half")]
        match word & Self::PRIORITY {
            0 => Self::Deadline(Time(now.0.saturating_add(word))),
            _ => Self::Priority(word as u32),
        }
    }
}

impl<P> Message<P> {
    /// A message without extents.
    pub fn short(header: &[u8]) -> Self {
        Self {
            urgency: None,
            header: header.to_vec(),
            lengths: Vec::new(),
            rights: Vec::new(),
            payload: None,
        }
    }

    /// A message with extents.
    pub fn long(header: &[u8], lengths: &[u64], payload: P) -> Self {
        Self {
            lengths: lengths.to_vec(),
            payload: Some(payload),
            ..Self::short(header)
        }
    }

    /// Bytes of the payload.
    pub fn bytes(&self) -> u64 {
        lengths_sum(&self.lengths).unwrap_or(0)
    }

    /// What it costs of a link's window.
    pub(super) fn cost(&self) -> u64 {
        let rights = (self.rights.len() * Reference::BYTES) as u64;
        self.bytes() + self.header.len() as u64 + rights + RECORD_COST
    }

    /// Whether a record can say it.
    pub(super) fn can_be(&self) -> bool {
        self.header.len() <= MAX_HEADER
            && self.rights.len() <= MAX_RIGHTS
            && self.lengths.len() <= MAX_EXTENTS
            && lengths_sum(&self.lengths).is_some()
            && self.payload.is_some() != self.lengths.is_empty()
    }
}

/// What a record costs beside header and payload.
pub(super) const RECORD_COST: u64 = 128;

/// What an answer is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<P> {
    /// A reply.
    Reply(Message<P>),
    /// The request was dropped unanswered.
    Dropped,
    /// The server died, or its port closed, before it answered.
    ServerDead,
}

impl<P> Answer<P> {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Reply(_) => Kind::Reply,
            Self::Dropped => Kind::Dropped,
            Self::ServerDead => Kind::ServerDead,
        }
    }
}

/// How a request ended. It ends once.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome<P> {
    /// The server's answer.
    Answered(Answer<P>),
    /// No answer came in time. It may have run.
    TimedOut,
    /// The port was closed before the request was put into it: it has not run.
    PortDead,
    /// The peer was given up. It may have run.
    NodeLost,
    /// An answer came, and there was no memory for it. It has run.
    NoMemory,
}

/// For what memory is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A message for a port of this node.
    Port(PortKey),
    /// The answer to a request of this node's.
    Request(RequestKey),
}

/// A message that arrives at a port.
#[derive(Clone, Debug)]
pub struct Delivery<P> {
    /// The port.
    pub port: PortKey,
    /// The flow that it came by, at the receiving end.
    pub from: FlowKey,
    /// Its number in that flow: what [`super::Node::send`] has returned at the sender's node.
    pub number: u64,
    /// Of a request: what [`super::Node::answer`] wants to hear.
    pub request: Option<RequestKey>,
    /// Of a request: when its client stops waiting.
    pub deadline: Option<Time>,
    /// The message.
    pub message: Message<P>,
}

/// What a node needs of its driver while it handles what arrives.
pub trait Home<P> {
    /// Memory for extents of these lengths; `None` if there is none now.
    fn allocate(&mut self, to: Destination, lengths: &[u64]) -> Option<P>;

    /// Copies a short payload, which came with its record, into that memory.
    fn fill(&mut self, payload: &P, bytes: &[u8]);

    /// Puts a message into a port. Once this has returned `Ok` the message counts as received: it
    /// is acknowledged, and survives the sending node.
    ///
    /// # Errors
    ///
    /// The message: the port's queue is full. Its sender is told to wait until
    /// [`super::Node::room`] says that there is room.
    #[expect(
        clippy::result_large_err,
        reason = "a failed call gives back what it took"
    )]
    fn deliver(&mut self, delivery: Delivery<P>) -> Result<(), Delivery<P>>;
}

/// What is to be written on a connection's stream of records: the bytes, then the payload.
#[derive(Clone, Debug)]
pub struct OutRecord<P> {
    /// Head, body and tail.
    pub bytes: Vec<u8>,
    /// All of it is written behind; its length.
    pub payload: Option<(P, u64)>,
}

/// What is to be written on a connection's bulk stream: the head, the record, the payload's range.
#[derive(Clone, Debug)]
pub struct OutFragment<P> {
    /// The head.
    pub head: FragmentHead,
    /// Of a fragment that opens a transfer: the message's record.
    pub record: Vec<u8>,
    /// Of a fragment of payload: which bytes.
    pub payload: Option<(P, Range<u64>)>,
}

/// Where the bytes of a fragment go.
#[derive(Clone, Debug)]
pub enum Place<P> {
    /// To the range of this payload that begins here; then [`super::Node::fragment_received`].
    Into(P, u64),
    /// Nowhere: they are read and thrown away.
    Discard,
    /// They are the record that opens a transfer; then [`super::Node::opened`].
    Record,
}

/// What a driver is to know, or to do.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event<P> {
    /// An association with a peer has begun.
    Up {
        /// The peer.
        peer: NodeId,
        /// Which association, as this node counts them.
        association: u64,
        /// The peer's.
        incarnation: u64,
        /// Its name.
        name: String,
        /// Nodes that it knows.
        known: Vec<NodeId>,
    },
    /// Nothing was heard of a peer for [`Settings::silent_after`].
    Unreachable {
        /// The peer.
        peer: NodeId,
        /// When it was heard last.
        since: Time,
    },
    /// It is heard again, and nothing was lost.
    Reachable {
        /// The peer.
        peer: NodeId,
    },
    /// The association is over: its flows are dead, its requests have ended, what it kept is
    /// freed.
    Over {
        /// The peer.
        peer: NodeId,
        /// Which association, as this node counts them.
        association: u64,
        /// Why.
        why: Over,
        /// What becomes of what was sent by its flows.
        flows: Vec<FlowEnd>,
    },
    /// Write what [`super::Node::poll_record`] still gives, then close the connection.
    Close {
        /// Which.
        connection: ConnectionId,
        /// What it tells the peer.
        reason: ByeReason,
        /// What the peer has done, if that is why.
        violation: Option<Violation>,
    },
    /// A peer wants to send to a port with this name: say which with [`super::Node::lend`].
    Resolve {
        /// The flow that will lead to it, at this end.
        flow: FlowKey,
        /// The domain's name among nodes.
        domain: String,
        /// The port's.
        name: String,
    },
    /// A peer shows the secret of a port of this node: say with [`super::Node::lend`] whether it may
    /// have it.
    Claim {
        /// The flow that will lead to it, at this end.
        flow: FlowKey,
        /// The port.
        port: PortKey,
    },
    /// The end of [`super::Node::borrow`].
    Borrowed {
        /// Which.
        borrow: BorrowKey,
        /// The flow that leads to the port; or why the right is dead.
        flow: Result<FlowKey, ResolveFailure>,
    },
    /// The home of a flow's port wants to know when no right leads there from here: close the flow as
    /// soon as there is none.
    WantSenders {
        /// The flow.
        flow: FlowKey,
    },
    /// The answer to [`super::Node::resolve`].
    Resolved {
        /// The flow.
        flow: FlowKey,
        /// The port that it leads to; or why it is gone.
        lent: Result<Lent, ResolveFailure>,
    },
    /// A message was refused as [`super::Unsent::Full`]; now there is room.
    Writable {
        /// The flow.
        flow: FlowKey,
    },
    /// The port of a flow is gone, and so is the flow.
    Dead {
        /// The flow.
        flow: FlowKey,
        /// Why.
        reason: DeadReason,
        /// Messages that were not put into the port.
        lost: Vec<Message<P>>,
    },
    /// No flow leads to a port of this node any more, unless one was lent since
    /// ([`super::Node::flows_to`]).
    Unused {
        /// Which.
        port: PortKey,
    },
    /// A peer wants its key signed again: [`super::Node::renewed`], if this node can.
    Renew {
        /// The peer.
        peer: NodeId,
        /// Its signing request.
        request: Vec<u8>,
    },
    /// What a peer says of members of the cluster, itself among them.
    Members {
        /// The peer.
        peer: NodeId,
        /// Which, and where they are reached: an allegation.
        members: Vec<(NodeId, String)>,
    },
    /// A peer has signed the key of this node.
    Renewed {
        /// The peer.
        peer: NodeId,
        /// What it says is the certificate.
        certificate: Vec<u8>,
    },
    /// A peer passes on what the cluster's authority states: nothing of it was checked.
    Stated {
        /// The peer.
        peer: NodeId,
        /// The statement.
        statement: Vec<u8>,
    },
    /// A peer asks what happens here, for people to look at: [`super::Node::inspected`]. Only one that
    /// has proved who it is may ask.
    Inspect {
        /// The peer.
        peer: NodeId,
        /// What it asks.
        question: Vec<u8>,
    },
    /// A peer has answered [`super::Node::inspect`].
    Inspected {
        /// The peer.
        peer: NodeId,
        /// What it says.
        answer: Vec<u8>,
    },
    /// A peer has taken the receive right of a port: its home is there. What is in the port's queue, and what
    /// local senders put into it from now on, goes to the new home by the flow of this borrow; behind
    /// the messages that are in the queue now, say [`super::Node::backlog_ends`]; if there are none, say
    /// [`super::Node::has_no_backlog`] at once.
    Left {
        /// The port.
        port: PortKey,
        /// What leads to the new home: [`Event::Borrowed`] tells.
        borrow: BorrowKey,
    },
    /// All that went before at its old home has been put into a port whose receive right was
    /// [taken](super::Node::take), or the old home was given up: others send to it from now on, and it
    /// may be given on.
    Arrived {
        /// The port.
        port: PortKey,
    },
    /// The port of a flow has another home. What was not put into the port goes there, before anything
    /// that is sent after [`Event::Borrowed`] has told of the flow there. If the new home is this node,
    /// [`Event::CameHome`] tells instead.
    Moved {
        /// The flow, which is closed.
        flow: FlowKey,
        /// What leads to the port now.
        borrow: BorrowKey,
        /// Its home.
        home: NodeId,
    },
    /// A request that has not ended has another name from now on: its message goes to the port's new home.
    Rekeyed {
        /// Before.
        from: RequestKey,
        /// From now on.
        to: RequestKey,
    },
    /// The port that a borrow was to lead to is this node's. What could not be put into the port at its old
    /// home is the driver's to put into the port now, in this order and before anything else of
    /// these senders. The driver may have closed the port since: then they are lost.
    CameHome {
        /// Which.
        borrow: BorrowKey,
        /// The port.
        port: PortKey,
        /// The messages. Their requests, and those that are open for their rights, are not open any more.
        unsent: Vec<Returned<P>>,
    },
    /// The end of a request.
    Ended {
        /// Which.
        request: RequestKey,
        /// How.
        outcome: Outcome<P>,
    },
}

/// A message that was not put into its port before that came here.
#[derive(Clone, Debug)]
pub struct Returned<P> {
    /// Of a request: which it was.
    pub request: Option<RequestKey>,
    /// Of a request: until when its client waits.
    pub deadline: Option<Time>,
    /// The message.
    pub message: Message<P>,
}

/// Whether a port is at this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortStay {
    /// It is.
    Here,
    /// It is; its receive right is in a message.
    Leaving,
    /// It is; what was put into it at its old home is not all here.
    Arriving,
    /// It is not any more: this node says where.
    Left,
}

/// Properties of a port that peers may send to.
#[derive(Clone, Copy, Debug)]
pub struct PortSettings {
    /// The name it keeps for life.
    pub id: PortId,
    /// Known to its homes alone: random, and the same wherever the port moves.
    pub key: [u8; 16],
    /// Its domain.
    pub domain: DomainKey,
    /// It takes requests, and not messages.
    pub synchronous: bool,
    /// Slots of its queue; a quarter is left to local senders.
    pub slots: u32,
}

impl PortSettings {
    /// What the port's borrowers know: who shows it may be lent the port.
    pub fn secret(&self) -> [u8; 16] {
        super::keys::secret(&self.key)
    }
}
