//! Carries messages: drives the protocol of nodes ([`portolan_proto::node`]) over connections to
//! peers, between the ports of this machine's domains and those of others.
//!
//! ```text
//!  program -> proxy port ... take -> Node::send -> Link ==> Link -> Node -> SendRight::send -> program
//!             `proxies`              the protocol  `link`           `machine`
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `link` | a connection: records and fragments, written and read |
//! | `outgoing` | what waits to be written on a stream |
//! | `payload` | the bytes of a message, where they lie |
//! | `machine` | ports here that peers send to, and requests under way |
//! | `proxies` | ports here that stand for ports there |
//! | `rights` | rights in messages, there and back; who wants to know when no sender is left |
//! | `arrivals` | rights that have come, until their messages are in their ports |
//! | `questions` | names that programs ask for |
//! | `rates` | how fast peers are sent to, and read |
//! | `recorder` | what happens in a domain, while a node traces it |
//! | `inspection` | what nodes ask one another about that |
//! | `saved` | another process goes on with all of it |
//! | `spanning` | domains come and go |
//! | `spans` | a domain that is spanned, and what is waited for in it |
//! | `trim` | memory that nobody uses goes back to the system |
//! | `sleep` | what to sleep on between two steps |
//! | `report` | what a running engine says of itself |
//!
//! One thread calls [`Engine::step`] when something has fired that [`Engine::arm`] names, or
//! [`Engine::wake_at`] has come.
//! Nothing in here waits, and there is no thread for a connection, a port or a request.
//!
//! # Invariants
//!
//! - **G1** A payload is not copied: it is written from the sender's extents, and read into the
//!   receiver's (but for up to 16 KiB, which come with their record).
//! - **G2** A message is taken off a proxy port only when the protocol takes it. All others stay in
//!   the proxy's queue, so a port that is full, or a peer that is silent, costs this process nothing.
//! - **G3** A turn does a bounded amount for each connection, port and proxy.
//! - **G4** What a peer sends ends at most its association.

mod arrivals;
mod inspection;
mod link;
mod machine;
mod outgoing;
mod payload;
mod proxies;
mod questions;
mod rates;
mod recorder;
mod report;
mod rights;
mod saved;
mod sleep;
mod spanning;
mod spans;
mod trim;

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use portolan::PendingReply;
use portolan::proxy::{KnownPort, ProxyPort};
use portolan_abi::node::{ByeReason, NodeId, ResolveFailure};
use portolan_proto::node::{
    Answer, Authenticated, ConnectionId, DomainKey, Event, Node, Over, PortKey, Settings,
};
use portolan_transport::{Address, Connection, Peer, TransportError};

pub use inspection::Question;
pub use report::{LostReport, Report, RightsReport, SpanReport};
pub use saved::{Coming, Handing, SavedEngine};

use link::Link;
use machine::{Machine, time};
use payload::Payload;
use proxies::Proxies;
use questions::Questions;
use rights::Rights;
use spans::Thing;

use crate::rates::PeerRates;

/// How long a connection has to take the farewell.
const FAREWELL: Duration = Duration::from_secs(1);
/// Connections, at most: each has two descriptors and its buffers in the kernel.
const MOST_LINKS: usize = 256;
/// Connections with one peer, at most: two that cross, and two that take their place.
const MOST_LINKS_EACH: usize = 4;
/// How often the protocol's events are handled and its records written in one turn.
const ROUNDS: usize = 4;

/// What a daemon is to know of its engine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Happened {
    /// An association with a peer has begun.
    Linked {
        /// The peer.
        node: NodeId,
        /// Its name.
        name: String,
    },
    /// A connection is over.
    Lost {
        /// The peer.
        node: NodeId,
        /// Why.
        why: String,
        /// Another connection with it goes on.
        is_linked: bool,
    },
    /// A peer was refused, or has done what no honest node does.
    Refused {
        /// The peer.
        node: NodeId,
        /// Why.
        why: String,
    },
    /// An association is over: its rights are dead, its requests have ended.
    Over {
        /// The peer.
        node: NodeId,
        /// Why.
        why: String,
        /// The peer has ended in good order.
        left: bool,
        /// Messages of programs here that are lost with it.
        lost: u64,
    },
    /// A peer tells of members of the cluster, itself among them.
    Members {
        /// The peer.
        node: NodeId,
        /// Where its connection leads to.
        remote: Option<Address>,
        /// Which, and where they are reached: an allegation.
        members: Vec<(NodeId, String)>,
    },
    /// A peer wants its key signed again.
    Renew {
        /// The peer.
        node: NodeId,
        /// Its signing request.
        request: Vec<u8>,
    },
    /// A peer has signed the key of this node.
    Renewed {
        /// What it says is the certificate.
        certificate: Vec<u8>,
    },
    /// A peer passes on what the cluster's authority states: nothing of it was checked.
    Stated {
        /// The peer.
        node: NodeId,
        /// The statement.
        statement: Vec<u8>,
    },
    /// A node traces a domain from now on: this one, or a peer.
    Traced {
        /// The node.
        node: NodeId,
        /// The domain's name among nodes.
        domain: String,
    },
    /// A peer has answered what it was asked.
    Inspected {
        /// The peer.
        node: NodeId,
        /// What it says: nothing of it was checked.
        answer: Vec<u8>,
    },
    /// A domain cannot be spanned any more.
    SpanLost {
        /// Its name among nodes.
        domain: String,
        /// Why.
        why: String,
    },
}

/// The driver of the protocol.
#[derive(Debug)]
pub struct Engine {
    node: Node<Payload>,
    links: BTreeMap<ConnectionId, Link>,
    last_link: u64,
    machine: Machine,
    last_domain: u32,
    proxies: Proxies,
    questions: Questions,
    rights: Rights,
    /// How fast peers are sent to, and read.
    rates: PeerRates,
    /// What peers have asked about what happens here.
    asked: BTreeMap<NodeId, Vec<u8>>,
    /// How often peers have asked for a name.
    heard: u64,
    /// The names that were said to be let out: the version of each domain's.
    names_said: Option<Vec<(DomainKey, u64)>>,
    happened: Vec<Happened>,
    /// The next turn comes at once: the last one has ended before all was served, or there is something
    /// to say.
    goes_on: bool,
    /// When it looks for memory that nobody uses.
    trims_at: Duration,
    /// It takes nothing new of programs, because another process is about to go on.
    quiet: bool,
}

impl Engine {
    /// An engine without peers and domains. `name` is what peers call it.
    ///
    /// # Errors
    ///
    /// The name, if it is none.
    pub fn new(settings: Settings, name: &str) -> Result<Self, String> {
        let moves = true;
        let mut node = Node::new(Settings { moves, ..settings });
        node.set_name(name)?;
        #[cfg(feature = "sabotage")]
        if let Some(fault) = crate::sabotage::fault() {
            node.plant(fault);
        }
        Ok(Self {
            node,
            links: BTreeMap::new(),
            last_link: 0,
            machine: Machine::default(),
            last_domain: 0,
            proxies: Proxies::default(),
            questions: Questions::default(),
            rights: Rights::default(),
            rates: PeerRates::default(),
            asked: BTreeMap::new(),
            heard: 0,
            names_said: None,
            happened: Vec::new(),
            goes_on: false,
            trims_at: Duration::ZERO,
            quiet: false,
        })
    }

    /// What has happened since this was called last.
    pub fn happened(&mut self) -> Vec<Happened> {
        std::mem::take(&mut self.happened)
    }

    // Peers.

    /// Has a connection with an authenticated peer from now on. Of several with one peer the
    /// protocol keeps one.
    ///
    /// # Errors
    ///
    /// [`TransportError`]: it has no streams, or there are too many.
    pub fn adopt(
        &mut self,
        now: Duration,
        connection: Box<dyn Connection>,
        node: NodeId,
        dialed: bool,
    ) -> Result<(), TransportError> {
        let of_peer = self.links.values().filter(|link| link.peer == node).count();
        if self.links.len() >= MOST_LINKS || of_peer >= MOST_LINKS_EACH {
            return Err(TransportError::NotPortolan {
                what: "too many connections with it are open".to_owned(),
            });
        }
        self.last_link += 1;
        let id = ConnectionId(self.last_link);
        let proven = connection.peer() == Peer::Node(node);
        let link = Link::new(connection, id, node, now)?;
        self.links.insert(id, link);
        let with = Authenticated {
            node,
            expires: None,
            dialed,
            proven,
        };
        self.node.connected(time(now), id, with);
        self.holds_rates(now, node);
        Ok(())
    }

    /// Whether there is an association with a node, which a connection carries.
    pub fn is_linked(&self, node: NodeId) -> bool {
        self.node.connection(node).is_some()
    }

    /// Whether there is a connection with a node, of which it is not known whether it stays.
    pub fn is_connected(&self, node: NodeId) -> bool {
        let mut links = self.links.values();
        links.any(|link| link.peer == node && link.closing.is_none())
    }

    /// Ends the association with a node, and refuses it from now on.
    pub fn forget(&mut self, now: Duration, node: NodeId) {
        self.node.forget(time(now), node);
    }

    /// Says farewell to all peers. Step on until [`is_alone`](Self::is_alone), or as long as there is
    /// patience.
    pub fn leave(&mut self, now: Duration) {
        self.node.leave(time(now));
    }

    /// What a peer is called; its id if that is not known.
    pub fn name_of(&self, node: NodeId) -> String {
        self.machine.name_of(node)
    }

    /// Peers with which there is an association.
    pub fn peers_kept(&self) -> Vec<NodeId> {
        self.node.peers().collect()
    }

    /// Whether there is no connection.
    pub fn is_alone(&self) -> bool {
        self.links.is_empty()
    }

    /// Tells all peers which members there are, this node too, and where they are reached.
    pub fn tell_members(&mut self, members: Vec<(NodeId, String)>) {
        self.node.set_members(members);
        self.speak();
    }

    /// Asks all peers to sign the key of this node again; those that can, answer.
    pub fn ask_renewal(&mut self, request: &[u8]) {
        let peers: Vec<NodeId> = self.node.peers().collect();
        for peer in peers {
            self.node.ask_renewal(peer, request);
        }
        self.speak();
    }

    /// Gives a peer its certificate.
    pub fn renewed(&mut self, node: NodeId, certificate: &[u8]) {
        self.node.renewed(node, certificate);
        self.speak();
    }

    /// Passes a statement of the authority on to all peers, now and whenever they are linked.
    pub fn state(&mut self, statement: &[u8]) {
        self.node.state(statement);
        self.speak();
    }

    /// Has each link say in the next turn, which comes at once, what its node has to say.
    fn speak(&mut self) {
        self.goes_on = true;
    }

    /// Ends all connections; associations go on over the next ones, which show and check certificates anew.
    pub fn cut(&mut self, why: &str) {
        for link in self.links.values_mut() {
            link.over.get_or_insert(why.to_owned());
        }
        self.close_links();
    }

    // The loop.

    /// What to wait for, for a thread that polls descriptors: one that has a
    /// [`Poller`](portolan_sys::process::Poller) calls [`arm`](Self::arm).
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let links = self.links.values().filter(|link| link.held.is_none());
        let links = links.map(|link| link.connection.descriptor());
        links.chain(self.machine.spans.values().map(|span| span.set.as_fd()))
    }

    /// When to step though nothing has fired.
    pub fn wake_at(&self) -> Option<Duration> {
        let is_due = self.goes_on || !self.happened.is_empty();
        if is_due || self.links.values().any(|link| link.again) {
            return Some(self.machine.now);
        }
        let timeout = self
            .node
            .next_timeout()
            .map(|at| Duration::from_nanos(at.0));
        let links = self.links.values().filter_map(Link::wake_at);
        let others = [
            timeout,
            self.machine.wake_at(),
            self.questions.wake_at(),
            self.proxies.wake_at(),
            self.records_at(),
            self.trims_at(),
        ];
        links.chain(others.into_iter().flatten()).min()
    }

    /// Goes on, as far as it goes without waiting.
    pub fn step(&mut self, now: Duration) {
        self.machine.now = now;
        self.machine.expects = false;
        let at = time(now);
        if self.machine.recorder.is_some() {
            self.compare_clocks();
        }
        // What is promised to peers is counted by the slots that are free now.
        self.machine.count_slots(&mut self.node);
        for link in self.links.values_mut() {
            if link.may_have(now) {
                link.receive(&mut self.node, &mut self.machine, at);
            }
        }
        // Before flows end or move: what has arrived by them is known now.
        self.answer_flushes();
        self.handle();
        self.serve_domains();
        if self.node.next_timeout().is_some_and(|due| due <= at) {
            self.node.timeout(at);
        }
        self.go_on_asking();
        self.try_again();
        self.look_at_open();
        self.close_idle();
        self.make_room_for_backlogs();
        self.machine.count_slots(&mut self.node);
        self.goes_on = true;
        for _ in 0..ROUNDS {
            self.handle();
            for link in self.links.values_mut() {
                link.send(&mut self.node, at, now);
            }
            // What has come meanwhile, before this goes to sleep and is woken for it.
            let any = self.serve_domains();
            if any {
                // Room that was waited for is named once.
                self.machine.count_slots(&mut self.node);
            }
            if !self.handle() && !any {
                self.goes_on = false;
                break;
            }
        }
        // Those that this turn has taken, or whose port has a flow again: if all is there, nothing comes that
        // would be a reason for the next turn.
        self.answer_flushes();
        if self.machine.recorder.is_some() {
            self.look_at_recording();
        }
        self.trim();
        self.close_links();
    }

    /// Handles what the protocol says has happened; whether something has.
    fn handle(&mut self) -> bool {
        let mut any = self.handle_arrivals();
        while let Some(event) = self.node.poll_event() {
            any = true;
            self.event(event);
        }
        any |= !self.quiet && self.drain_due();
        // The last question of each: a peer that asks often gets no more answers than turns.
        for (peer, question) in std::mem::take(&mut self.asked) {
            self.inspected_by(peer, &question);
        }
        for port in std::mem::take(&mut self.machine.dead) {
            self.is_gone(port);
        }
        for request in std::mem::take(&mut self.machine.unheard) {
            let _ = self.node.answer(request, Answer::Dropped);
        }
        any
    }

    fn event(&mut self, event: Event<Payload>) {
        let now = self.protocol_time();
        match event {
            Event::Up { peer, name, .. } => {
                self.machine.names.insert(peer, name.clone());
                self.holds_rates(self.machine.now, peer);
                self.happened.push(Happened::Linked { node: peer, name });
                self.tell_nodes();
                self.ask_again();
            }
            Event::Unreachable { peer, since } => {
                self.is_silent(peer, false);
                self.unreachable(peer, now.since(since));
                self.tell_nodes();
            }
            Event::Reachable { peer } => {
                self.reachable(peer);
                self.tell_nodes();
                self.ask_again();
            }
            Event::Over {
                peer,
                association,
                why,
                flows,
            } => {
                self.is_silent(peer, true);
                let lost = self.given_up(peer, association, &flows);
                self.forget_requests(peer, association);
                let left = why == Over::Bye(ByeReason::Leaving);
                let (node, why) = (peer, why.to_string());
                self.happened.push(Happened::Over {
                    node,
                    why,
                    left,
                    lost,
                });
                self.tell_nodes();
            }
            Event::Close {
                connection,
                reason,
                violation,
            } => self.closes(connection, reason, violation.map(|it| it.to_string())),
            Event::Resolve { flow, domain, name } => {
                self.heard += 1;
                let port = self.outlet(flow.peer, &domain, &name);
                // If not, the association is over by now.
                let _ = self.node.lend(now, flow, port);
                if let Ok(port) = port {
                    self.is_lent(port);
                }
            }
            Event::Claim { flow, port } => self.claimed(flow, port),
            Event::Borrowed { borrow, flow } => self.has_borrowed(borrow, flow),
            Event::WantSenders { flow } => self.senders_wanted(flow),
            Event::Resolved { flow, lent } => self.resolved(flow, lent),
            Event::Writable { flow } => self.writable(flow),
            Event::Dead { flow, lost, .. } => {
                self.flow_is_dead(flow, lost.len() as u64);
            }
            Event::Unused { port } => self.is_unused(port),
            Event::Left { port, borrow } => self.has_left(port, borrow),
            Event::Arrived { port } => self.has_all(port),
            Event::Moved { flow, borrow, home } => self.has_moved(flow, borrow, home),
            Event::Rekeyed { from, to } => {
                if let Some(asking) = self.machine.asking.remove(&from) {
                    self.machine.asking.insert(to, asking);
                }
            }
            Event::CameHome {
                borrow,
                port,
                unsent,
            } => self.came_home(borrow, port, unsent),
            Event::Members { peer, members } => {
                let link = self
                    .node
                    .connection(peer)
                    .and_then(|id| self.links.get(&id));
                let remote = link.and_then(|link| link.connection.remote());
                let node = peer;
                self.happened.push(Happened::Members {
                    node,
                    remote,
                    members,
                });
            }
            Event::Renew { peer, request } => {
                let node = peer;
                self.happened.push(Happened::Renew { node, request });
            }
            Event::Renewed { certificate, .. } => {
                self.happened.push(Happened::Renewed { certificate });
            }
            Event::Stated { peer, statement } => {
                let node = peer;
                self.happened.push(Happened::Stated { node, statement });
            }
            Event::Inspect { peer, question } => drop(self.asked.insert(peer, question)),
            Event::Inspected { peer, answer } => {
                let node = peer;
                self.happened.push(Happened::Inspected { node, answer });
            }
            Event::Ended { request, outcome } => self.ended(request, outcome),
            _ => {}
        }
    }

    /// Nobody has a right on a port any more, unless it was lent again before this was heard.
    fn is_unused(&mut self, port: PortKey) {
        if self.node.flows_to(port) == 0 {
            // It stays known: who was given a right on it may claim it yet.
            self.machine.rest(port);
            self.is_followed_no_more(port);
        } else {
            self.asks_senders_anew(port);
        }
    }

    fn closes(&mut self, id: ConnectionId, reason: ByeReason, violation: Option<String>) {
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        link.closing.get_or_insert(self.machine.now + FAREWELL);
        link.closing_why = match reason {
            ByeReason::Crossed => {
                "it was closed here: nothing came for too long, or another one took its place"
            }
            ByeReason::Expired => "it was closed here: the peer's certificate has expired",
            ByeReason::Forgotten => "it was closed here: the peer was forgotten",
            _ => link.closing_why,
        };
        let node = link.peer;
        let why = match (violation, reason) {
            (Some(why), _) => why,
            (None, ByeReason::Incarnation) => {
                "two nodes have its identity, or its state is an old copy".to_owned()
            }
            (None, ByeReason::Version) => "there is no version that both speak".to_owned(),
            (None, ByeReason::Cluster) => "it is of another cluster".to_owned(),
            _ => return,
        };
        self.happened.push(Happened::Refused { node, why });
    }

    /// The port that a peer asks for, if it may have it.
    fn outlet(
        &mut self,
        peer: NodeId,
        domain: &str,
        name: &str,
    ) -> Result<PortKey, ResolveFailure> {
        let called = self.machine.names.get(&peer).cloned().unwrap_or_default();
        let mut spans = self.machine.spans.values_mut();
        let span = spans.find(|span| span.settings.domain == domain);
        let span = span.ok_or(ResolveFailure::NoSuchDomain)?;
        if !span.allows(peer, &called) {
            return Err(ResolveFailure::Denied);
        }
        let key = span.key;
        let Some(found) = span.find(name) else {
            // One that has left keeps its name here.
            let left = span.find_left(name).ok_or(ResolveFailure::NoSuchPort)?;
            let number = KnownPort::of(&left.right).number();
            let port = self.left_with_name(key, number);
            return self.lends(port.ok_or(ResolveFailure::NoSuchPort)?);
        };
        let port = self.lendable(key, name, &found);
        let port = port.ok_or(ResolveFailure::Other)?;
        self.lends(port).map_err(|_| ResolveFailure::Full)
    }

    /// The association with a peer is over: what its requests come to here nobody wants to know.
    fn forget_requests(&mut self, peer: NodeId, association: u64) {
        for span in self.machine.spans.values_mut() {
            for (token, request) in span.serving() {
                if request.peer == peer && request.association == association {
                    span.remove(token.of::<PendingReply>());
                }
            }
            for (token, request) in span.onces() {
                if request.peer == peer && request.association == association {
                    span.remove(token.of::<ProxyPort>());
                    self.machine.arrivals.settled(peer);
                }
            }
        }
    }

    /// Serves what has come in domains; whether something had.
    fn serve_domains(&mut self) -> bool {
        let mut any = false;
        let keys: Vec<DomainKey> = self.machine.spans.keys().copied().collect();
        for key in keys {
            let Some(span) = self.machine.spans.get_mut(&key) else {
                continue;
            };
            let Some(ready) = span.ready() else {
                let domain = span.settings.domain.clone();
                self.unspan_key(key);
                let why = "this process is no member of it any more".to_owned();
                self.happened.push(Happened::SpanLost { domain, why });
                continue;
            };
            any |= !ready.is_empty();
            for (token, thing) in ready {
                match thing {
                    Thing::Proxy(id) if self.quiet => self.unpark(id),
                    Thing::Programs if self.quiet => {}
                    Thing::Proxy(id) => self.drain(id),
                    Thing::Room(port) => self.machine.has_room(port),
                    Thing::Serving(request) => {
                        let Some(span) = self.machine.spans.get_mut(&key) else {
                            break;
                        };
                        if let Some(pending) = span.remove(token.of::<PendingReply>()) {
                            self.answered(request, key, pending);
                        }
                    }
                    Thing::Space(id) => self.has_space(id),
                    Thing::Once(request) => self.once_used(key, request, token.of::<ProxyPort>()),
                    Thing::Programs => {
                        self.hear_programs(key);
                        self.hear_changes(key);
                    }
                }
            }
        }
        any
    }

    fn hear_programs(&mut self, key: DomainKey) {
        while let Some(span) = self.machine.spans.get_mut(&key)
            && let Some(query) = span.query()
        {
            self.question(key, query);
        }
    }

    fn close_links(&mut self) {
        let over = self.links.iter_mut();
        let over = over.filter_map(|(id, link)| Some((*id, link.over.take()?)));
        let over: Vec<(ConnectionId, String)> = over.collect();
        for (id, why) in over {
            let Some(link) = self.links.remove(&id) else {
                continue;
            };
            self.node.disconnected(self.protocol_time(), id);
            let node = link.peer;
            let is_linked = self.is_connected(node);
            let lost = Happened::Lost {
                node,
                why,
                is_linked,
            };
            self.happened.push(lost);
        }
    }
}
