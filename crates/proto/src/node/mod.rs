//! Nodes: the protocol by which the daemons of two machines carry messages between their ports.
//!
//! Everything here is state and arithmetic. A driver owns the clock, the sockets and the ports, and
//! calls a [`Node`]; the node says what to write, what has happened, and when it wants to be called
//! again. A daemon is such a driver, and so is the simulation (`portolan-sim`), which runs
//! thousands of nodes in one thread.
//!
//! # How a driver calls it
//!
//! | when | call | then |
//! |---|---|---|
//! | a connection to an authenticated peer is open; is gone | [`Node::connected`]; [`Node::disconnected`] | |
//! | a record has come (16 bytes of head say how long it is) | [`Node::receive`] | |
//! | a fragment's head has come | [`Node::fragment`] | read the bytes to the [`Place`]; [`Node::fragment_received`] or [`Node::opened`] |
//! | a connection can be written to | [`Node::poll_record`], [`Node::poll_fragment`], until both give nothing | write head, record, and the payload's range, from where it lies |
//! | after each call | [`Node::poll_event`], until it gives nothing | do what the [`Event`] says |
//! | the time of [`Node::next_timeout`] has come | [`Node::timeout`] | look what can be written |
//! | before a connection is read, and behind it | [`Node::may_take`], [`Node::took`] | read no more than that, or nothing until then |
//! | a receiver has freed slots | [`Node::room`] | |
//! | a proxy port has a message | [`Node::send`], [`Node::request`] | [`Unsent::Full`]: leave the rest in the proxy port until [`Event::Writable`] |
//! | the message has a right | [`Node::give`], and keep the right until its request has ended | put what it returns into the message |
//! | a right has come: [`Leads::There`] | [`Node::borrow`] | messages wait in its proxy port until [`Event::Borrowed`] |
//!
//! | a receive right is to be given | [`Node::give`] of [`Gift::Receive`], and keep receiving nothing until its request has ended | as of any right |
//! | [`Event::Left`] has come | once borrowed, [`Node::send`] what is in the port's queue; then [`Node::backlog_ends`]; [`Node::has_no_backlog`] at once if nothing is in it | what local senders put into the queue goes by the same flow |
//! | a receive right has come: [`Leads::Receive`] | [`Node::take`], or answer its request as dropped | what comes to the port is its backlog until [`Event::Arrived`] |
//!
//! Payloads are references (`P`), which the node clones and drops; it never sees their bytes. While
//! a node handles what arrives, it asks the driver's [`Home`] for memory, and puts messages into
//! ports.
//!
//! # States
//!
//! ```text
//! association   none ---Hello, Hello---> up <---> silent ---> over ---Hello, Hello---> another one
//!                over by: Bye, forget, dead_after, a violation, a greeting that does not know it
//! connection    greeting ---> resuming ---> carrying ---> closed: the association goes on
//! flow, sender  asked ---Resolved---> open <---> waiting (Wait; MORE) ---> dead | closed
//! flow, home    asked ---lend---> open, in the port's fair queue or not ---> closed
//! number        unsent ---> sent | announced ---> granted ---> transfer ---> acknowledged
//!                 ^___________ Wait, a cut ___________________|
//! request       open ---> answered | timed out | port dead | node lost | no memory
//! right given   request open ---> the receiver has a loan, or none | used (send-once) | node lost
//! borrow        waits for the home ---Claim---> asked ---Resolved---> a flow | dead
//! port          here ---give---> leaving ---taken---> left: says where it is
//!                                   |___ not taken ---> here
//!               take ---> arriving ---Backlog, or its old home is over---> here
//! flow, sender  open ---Moved---> borrow, with what was not put into the port ---> open, to the new home
//!               open ---its home is over---> borrow, with what was never sent ---WhereIs, IsAt---> open | dead
//! ```
//!
//! A message is *kept* by its sender until the home has put it into the port and said so. When a
//! connection ends, both sides forget all that was under way. Over the next connection the home
//! first says what has arrived ([`Resumed`](portolan_abi::node::Record::Resumed)), and then the
//! sender sends the rest: nothing is lost, doubled or out of order.
//!
//! # Rights in messages
//!
//! The giver opens a request for each right, and keeps the right while that is open (the *keep*). A
//! send-once right is used by answering that request, so it is used once or ends as a request does. A send
//! right says which port it leads to, its secret, and its home. The receiver shows the secret to the
//! home, which lends it the port, and then answers the request. The giver may be the home, or not: then
//! three nodes take part, and messages go from the receiver to the home. A right that comes home is a
//! right on the port itself.
//!
//! ```text
//! giver ---Message with the right---> receiver ---Claim---> home
//!       <---Answer: it has a loan----          <--Resolved---
//! ```
//!
//! # Receive rights
//!
//! A receive right moves the port's home, between nodes that both say so in their greetings
//! ([`Settings::moves`]). The old home says of each flow how much of it is in the port: that much goes to
//! the new home with the queue (the *backlog*), and the borrower sends the rest there. The new home lends
//! the port to nobody before the backlog is there, so what a sender has sent stays in order; a port is given
//! on only then. The old home says where the port is as long as it runs, and answers the requests that its
//! programs have taken. If it is given up before a borrower has heard, the borrower asks all peers where the port is
//! (the module `asking`). If it is given up before the backlog has come, that is lost with it. If the new home is given
//! up before it has said whether it has taken the right, the driver of the old home has to close the port, which may
//! be there: so it never has two homes that are lent. The module `moving` has the records.
//!
//! # Invariants
//!
//! - **N1** A number of a flow enters its port at most once.
//! - **N2** Numbers enter in the flow's order.
//! - **N3** What is acknowledged is in the port, or was taken from it, or its home is dead.
//! - **N6** Each message and payload is in one place: what is not whole when its connection ends, or
//!   was thrown away, is freed.
//! - **N9** Three bounds. Slots that are promised or taken never exceed a port's queue, less a
//!   quarter for local senders. Bytes in flight on a link never exceed its window, but for one
//!   message alone. Bytes granted to announced transfers never exceed a domain's budget, but for
//!   one alone.
//! - **N10** A waiting flow is served within as many turns as flows wait before it.
//! - **N11** Each request ends, once.
//! - **N12** What no honest node sends ends its association and nothing else ([`Violation`]). It
//!   takes bounded memory and is replied to by a bounded number of records; a flow that was not
//!   lent reaches no port.
//! - **N13** When all connections are up again and nothing more is sent, both ends agree on all
//!   flows, and nothing is kept.
//! - **N14** Of one flow, transfers go one after another, in its order: no fragment goes while a
//!   transfer of a lower number is open.
//! - **N15** No peer is unreachable that has resumed a connection, and whose connection goes on.
//!
//! Of rights in messages:
//!
//! - **N4** A port has one home at a time, and a right leads to the port that it was made for, wherever
//!   that is, and to no other one.
//! - **N5** A node whose right is told dead sends nothing by it any more; and a right is told dead only
//!   if its home has closed the port, was given up or started anew, or was not met for
//!   `dead_after`; or a home that the node has heard of was, before it could say where the port is, and no
//!   node that could be asked has the port.
//! - **N7** While a right leads to a port, or is on its way, its home or its giver has a right of its own
//!   for it: so no port is told that it has no senders while it has one, except one whose giver is given
//!   up before the receiver has claimed it. When none is left, and the port wants to know, it is told.
//! - **N8** Without [`Node::want_senders`] no record says whether senders are left.
//!
//! # Bounds
//!
//! | bound | is |
//! |---|---|
//! | flows to a peer | [`MAX_FLOWS`](portolan_abi::node::MAX_FLOWS) |
//! | transfers in one direction, under way or announced | [`MAX_TRANSFERS`](portolan_abi::node::MAX_TRANSFERS) |
//! | open requests of a domain at a peer | [`MAX_OPEN_REQUESTS`](portolan_abi::node::MAX_OPEN_REQUESTS) |
//! | rights in messages to a peer that have not ended | [`MAX_GIVEN`](portolan_abi::node::MAX_GIVEN) |
//! | messages that a flow has taken and not sent | 4; all others stay in the proxy port |
//! | messages under way of a flow without credit | 4 |
//! | bytes in flight on a link | [`Settings::window_at_first`], growing to twice rate times round trip, to [`Settings::window_at_most`] |
//! | payload with a record; of a fragment | 16 KiB; 256 KiB, less at a rate |
//! | bytes a second to a peer, and from it | [`Node::set_rates`] (the module `rate`, D1 to D4) |
//! | payload that is sent unasked | a quarter of the window; a longer one is announced |
//! | delay of an acknowledgement that goes with the next record | [`ACKNOWLEDGE_WITHIN`], 20 times that where nothing is likely to wait for it; 64 KiB |
//!
//! ```
//! use portolan_abi::node::{NodeId, PortId};
//! use portolan_proto::Time;
//! use portolan_proto::node::{
//!     Authenticated, ConnectionId, Delivery, Destination, DomainKey, Event, Home, Message, Node,
//!     PortKey, PortSettings, Settings,
//! };
//!
//! /// A machine whose only port keeps headers.
//! #[derive(Default)]
//! struct Machine(Vec<Vec<u8>>);
//! impl Home<()> for Machine {
//!     fn allocate(&mut self, _: Destination, _: &[u64]) -> Option<()> {
//!         Some(())
//!     }
//!     fn fill(&mut self, _: &(), _: &[u8]) {}
//!     fn deliver(&mut self, it: Delivery<()>) -> Result<(), Delivery<()>> {
//!         self.0.push(it.message.header);
//!         Ok(())
//!     }
//! }
//!
//! let (now, wire, port) = (Time::ZERO, ConnectionId(1), PortKey(7));
//! let [hall, roof] = [NodeId([1; 16]), NodeId([2; 16])];
//! let mut nodes = [hall, roof].map(|id| Node::<()>::new(Settings::new(id, 1, [9; 16])));
//! let mut machines = [Machine::default(), Machine::default()];
//! let id = PortId { origin: hall, serial: 7 };
//! let (key, domain, synchronous, slots) = ([5; 16], DomainKey(1), false, 64);
//! nodes[0].add_port(port, PortSettings { id, key, domain, synchronous, slots });
//! for (at, node) in [roof, hall].into_iter().enumerate() {
//!     nodes[at].connected(now, wire, Authenticated { node, expires: None, dialed: at == 0, proven: true });
//! }
//! // Whatever one writes, the other one reads.
//! let mut carry = |nodes: &mut [Node<()>; 2]| loop {
//!     let said = (0..2).find_map(|at| Some((at, nodes[at].poll_record(now, wire)?)));
//!     let Some((at, record)) = said else { break };
//!     nodes[1 - at].receive(now, wire, &record.bytes, &mut machines[1 - at]);
//! };
//! carry(&mut nodes);
//! let flow = nodes[1].resolve(hall, "cameras", "upper")?;
//! carry(&mut nodes);
//! while let Some(event) = nodes[0].poll_event() {
//!     if let Event::Resolve { flow, name, .. } = event {
//!         assert_eq!(name, "upper");
//!         nodes[0].lend(now, flow, Ok(port))?;
//!     }
//! }
//! carry(&mut nodes);
//! nodes[1].send(flow, Message::short(b"hello")).map_err(|refused| refused.why)?;
//! carry(&mut nodes);
//! assert_eq!(machines[0].0, [b"hello"]);
//! # Ok::<(), portolan_proto::node::Unsent>(())
//! ```

mod asking;
mod association;
mod borrow;
mod clock;
mod connection;
mod fair_queue;
mod fault;
mod flow;
mod greeting;
mod keys;
mod machine;
mod moving;
mod port;
mod rate;
mod saved;
mod types;
mod view;
mod violation;

pub use association::{AssociationView, ReceivingView, SendingView};
pub use clock::ClockOffset;
pub use fair_queue::FairQueue;
#[doc(hidden)]
pub use fault::Fault;
pub use machine::Node;
pub use rate::{RateView, Rates};
pub use saved::{Coded, Damaged, Hex, SavedNode, Unsaved, coded};
pub use types::{
    ACKNOWLEDGE_WITHIN, Answer, Authenticated, BorrowKey, ConnectionId, Delivery, Destination,
    DomainKey, Event, FlowEnd, FlowKey, Gift, Given, Home, Leads, Message, OutFragment, OutRecord,
    Outcome, Place, PortKey, PortSettings, PortStay, RequestKey, Returned, Settings, Urgency, Wall,
};
pub use view::PeerView;
pub use violation::{Over, Refused, Unsent, Violation};
