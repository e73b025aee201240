//! The node: its peers, their connections, the ports here and the flows to ports there.

use super::asking::Questions;
use super::association::{Association, Claimed, Context, Redirect};
use super::borrow::Borrow;
use super::clock::ClockOffset;
use super::connection::Connection;
use super::fault::Planted;
use super::keys::{self, Key};
use super::port::{Budget, Port};
use super::rate::{By, Intake, Pace};
use super::types::{
    Answer, BorrowKey, ConnectionId, DomainKey, Event, FlowKey, Home, Message, OutFragment,
    OutRecord, Place, PortKey, PortSettings, RequestKey, Settings, Wall,
};
use super::violation::{Over, Refused, Unsent, Violation};
use crate::Time;
use core::time::Duration;
use portolan_abi::limits::MAX_NODE_NAME;
use portolan_abi::name::is_name;
use portolan_abi::node::{ByeReason, DeadReason, FragmentHead, NodeId, PortId, ResolveFailure};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What is known of a peer.
#[derive(Debug)]
pub(super) struct Peer<P> {
    /// The highest that was seen, and of which run.
    pub(super) incarnation: u64,
    pub(super) run: [u8; 16],
    /// By its last greeting.
    pub(super) name: String,
    /// The last that was measured.
    pub(super) round_trip: Option<Duration>,
    /// How far its clock is ahead, since it was started.
    pub(super) clock: Option<ClockOffset>,
    /// Our part of the next association's id.
    pub(super) proposal: u64,
    pub(super) association: Option<Association<P>>,
    /// The connection that carries the association.
    pub(super) connection: Option<ConnectionId>,
    pub(super) heard: Time,
    pub(super) is_unreachable: bool,
    /// Which ports it is asked for.
    pub(super) questions: Questions,
    /// How fast things go to it, and are taken from it.
    pub(super) pace: Pace,
    pub(super) intake: Intake,
}

/// A node, without clock, sockets and randomness; see the [module](super).
#[derive(Debug)]
pub struct Node<P> {
    pub(super) settings: Settings,
    pub(super) name: String,
    pub(super) planted: Planted,
    pub(super) peers: BTreeMap<NodeId, Peer<P>>,
    pub(super) connections: BTreeMap<ConnectionId, Connection>,
    pub(super) ports: BTreeMap<PortKey, Port>,
    /// The same, by the names that they keep for life.
    pub(super) by_id: BTreeMap<PortId, PortKey>,
    /// The same, by what they are asked for by.
    pub(super) by_name: BTreeMap<Key, PortKey>,
    /// When the unused credit of ports is looked at. Some are gone by now.
    pub(super) reviews: BTreeSet<(Time, PortKey)>,
    /// Rights that it has been given and has no loans of yet.
    pub(super) borrows: BTreeMap<BorrowKey, Borrow<P>>,
    pub(super) last_borrow: u64,
    /// What has become of claims.
    pub(super) claimed: Vec<Claimed>,
    /// Ports whose receive rights are in messages, by the requests that are open for these.
    pub(super) leaving: BTreeMap<RequestKey, PortKey>,
    /// What has become of those.
    pub(super) left: Vec<(RequestKey, bool)>,
    /// Ports whose backlog comes, by the requests of their old homes.
    pub(super) arriving: BTreeMap<RequestKey, PortKey>,
    /// Those of which all has come, or will not.
    pub(super) arrived: BTreeSet<PortKey>,
    /// Flows whose ports have moved.
    pub(super) redirects: Vec<Redirect<P>>,
    /// Ports that have left, the one that did first in front.
    pub(super) forwarded: VecDeque<PortKey>,
    pub(super) budgets: BTreeMap<DomainKey, Budget>,
    pub(super) events: VecDeque<Event<P>>,
    pub(super) served: BTreeSet<PortKey>,
    /// Ports in which flows wait, and of which the driver was not told since it took them last.
    pub(super) waited: BTreeSet<PortKey>,
    pub(super) granted: BTreeSet<DomainKey>,
    /// Members that it tells its peers of, and where they are reached.
    pub(super) members: Vec<(NodeId, String)>,
    /// Peers that are refused.
    pub(super) forgotten: BTreeSet<NodeId>,
    /// What the cluster's authority has stated: said on each connection, from the first on.
    pub(super) statements: Vec<Vec<u8>>,
    pub(super) last_question: u64,
    pub(super) last_proposal: u64,
    pub(super) last_association: u64,
    /// The wall clock, and when it was read.
    pub(super) wall: Option<(Wall, Time)>,
}

/// The parts of a node that an association changes beside itself.
macro_rules! context {
    ($node:expr, $now:expr) => {
        Context {
            now: $now,
            settings: &$node.settings,
            planted: $node.planted,
            ports: &mut $node.ports,
            by_id: &$node.by_id,
            claimed: &mut $node.claimed,
            leaving: &$node.leaving,
            left: &mut $node.left,
            arriving: &$node.arriving,
            arrived: &mut $node.arrived,
            redirects: &mut $node.redirects,
            budgets: &mut $node.budgets,
            events: &mut $node.events,
            served: &mut $node.served,
            granted: &mut $node.granted,
        }
    };
}
pub(super) use context;

impl<P: Clone> Node<P> {
    /// A node without peers and ports.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            name: settings.node.to_string(),
            planted: Planted::default(),
            peers: BTreeMap::new(),
            connections: BTreeMap::new(),
            ports: BTreeMap::new(),
            by_id: BTreeMap::new(),
            by_name: BTreeMap::new(),
            reviews: BTreeSet::new(),
            borrows: BTreeMap::new(),
            last_borrow: 0,
            claimed: Vec::new(),
            leaving: BTreeMap::new(),
            left: Vec::new(),
            arriving: BTreeMap::new(),
            arrived: BTreeSet::new(),
            redirects: Vec::new(),
            forwarded: VecDeque::new(),
            budgets: BTreeMap::new(),
            events: VecDeque::new(),
            served: BTreeSet::new(),
            waited: BTreeSet::new(),
            granted: BTreeSet::new(),
            members: Vec::new(),
            forgotten: BTreeSet::new(),
            statements: Vec::new(),
            last_question: 0,
            // Of no earlier incarnation.
            last_proposal: settings.incarnation << 32,
            last_association: 0,
            wall: None,
        }
    }

    /// Has it break a rule: a simulation sees whether it notices.
    #[doc(hidden)]
    #[cfg(feature = "faults")]
    pub fn plant(&mut self, fault: super::Fault) {
        self.planted.fault = Some(fault);
    }

    /// Its settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its name, which it tells its peers from now on: at first its id.
    ///
    /// # Errors
    ///
    /// The name, which is none.
    pub fn set_name(&mut self, name: &str) -> Result<(), String> {
        match is_name(name, MAX_NODE_NAME) {
            true => name.clone_into(&mut self.name),
            false => return Err(name.to_owned()),
        }
        Ok(())
    }

    /// What happened, in order. Empty it after each call that changes the node.
    pub fn poll_event(&mut self) -> Option<Event<P>> {
        self.events.pop_front()
    }

    // Ports at home.

    /// Memory of a domain that peers may fill by announced transfers at any time: a quarter of the
    /// domain's.
    pub fn set_budget(&mut self, domain: DomainKey, bytes: u64) {
        self.budgets.entry(domain).or_default().limit = bytes;
        self.granted.insert(domain);
        self.settle(Time::ZERO);
    }

    /// Peers may be lent this port from now on.
    pub fn add_port(&mut self, port: PortKey, settings: PortSettings) {
        self.ports.insert(port, Port::new(settings, self.planted));
        self.index(port, &settings);
    }

    /// A port is found by its names.
    pub(super) fn index(&mut self, port: PortKey, settings: &PortSettings) {
        self.by_id.insert(settings.id, port);
        let name = keys::name(&settings.secret(), &settings.id);
        self.by_name.insert(name, port);
    }

    /// A port is gone, with its names.
    pub(super) fn unindex(&mut self, settings: &PortSettings) {
        self.by_id.remove(&settings.id);
        let name = keys::name(&settings.secret(), &settings.id);
        self.by_name.remove(&name);
    }

    /// The port's queue has so many free slots. Said when a receiver has freed some, and when
    /// there is memory again.
    pub fn room(&mut self, now: Time, port: PortKey, free: u32) {
        if let Some(entry) = self.ports.get_mut(&port) {
            entry.set_free(free);
            self.served.insert(port);
            self.settle(now);
        }
    }

    /// A port in which flows wait, or have waited since it was polled last: they are served once the driver says
    /// that slots are free ([`room`](Self::room)). Of other ports it may say so late.
    pub fn poll_waited(&mut self) -> Option<PortKey> {
        self.waited.pop_first()
    }

    /// The port is gone: all who send to it learn it.
    pub fn remove_port(&mut self, now: Time, port: PortKey, reason: DeadReason) {
        let Some(entry) = self.ports.get(&port) else {
            return;
        };
        let settings = entry.settings;
        let flows: Vec<FlowKey> = entry.flows.iter().copied().collect();
        for key in flows {
            let mut cx = context!(self, now);
            if let Some(association) = association_of(&mut self.peers, key.peer, key.association) {
                association.port_closed(&mut cx, key.flow, reason);
            }
        }
        self.waited.remove(&port);
        if let Some(gone) = self.ports.remove(&port) {
            self.arrives_no_more(now, gone);
        }
        self.unindex(&settings);
        self.settle(now);
    }

    /// The receiver of a port wants to know when no sender is left: the peers that it is lent to close
    /// their flows as soon as no right leads there, and so do those that it is lent to later, until
    /// [`Event::Unused`]. Without this they close them when it suits them (N8).
    pub fn want_senders(&mut self, port: PortKey) {
        let Some(entry) = self.ports.get_mut(&port) else {
            return;
        };
        if std::mem::replace(&mut entry.wants_senders, true) {
            return;
        }
        let flows: Vec<FlowKey> = entry.flows.iter().copied().collect();
        for key in flows {
            if let Some(association) = association_of(&mut self.peers, key.peer, key.association) {
                association.want_senders(key.flow);
            }
        }
    }

    /// Replies to [`Event::Resolve`] and [`Event::Claim`].
    ///
    /// # Errors
    ///
    /// [`Unsent::Dead`]: it was replied to, or the association is over.
    pub fn lend(
        &mut self,
        now: Time,
        flow: FlowKey,
        port: Result<PortKey, ResolveFailure>,
    ) -> Result<(), Unsent> {
        let mut cx = context!(self, now);
        let association = association_of(&mut self.peers, flow.peer, flow.association);
        let association = association.ok_or(Unsent::Dead)?;
        association.lend(&mut cx, flow.flow, port)
    }

    // Flows to ports of peers.

    /// Asks a peer for a port; [`Event::Resolved`] tells.
    ///
    /// # Errors
    ///
    /// [`Unsent`].
    pub fn resolve(&mut self, peer: NodeId, domain: &str, name: &str) -> Result<FlowKey, Unsent> {
        let node = peer;
        let entry = self.peers.get_mut(&peer);
        let entry = entry.ok_or(Unsent::NoSuchNode { node })?;
        let (is_unreachable, since) = (entry.is_unreachable, entry.heard);
        let association = entry.association.as_mut();
        let association = association.ok_or(Unsent::NoSuchNode { node })?;
        if is_unreachable {
            return Err(Unsent::Unreachable { node, since });
        }
        let flow = association.resolve(domain, name)?;
        Ok(association.flow_key(flow))
    }

    /// The association of a flow, if messages go there now.
    fn reachable(&mut self, flow: FlowKey) -> Result<&mut Association<P>, Unsent> {
        let peer = self.peers.get_mut(&flow.peer).ok_or(Unsent::Dead)?;
        let (since, node) = (peer.heard, flow.peer);
        let is_unreachable = peer.is_unreachable;
        let association = peer.association.as_mut();
        let association = association.filter(|it| it.serial == flow.association);
        let association = association.ok_or(Unsent::Dead)?;
        if is_unreachable {
            return Err(Unsent::Unreachable { node, since });
        }
        Ok(association)
    }

    /// Sends a message: it is kept until it is in the port. The number in its flow.
    ///
    /// # Errors
    ///
    /// The message, and why not.
    pub fn send(&mut self, flow: FlowKey, message: Message<P>) -> Result<u64, Refused<Message<P>>> {
        match self
            .reachable(flow)
            .and_then(|it| it.takes(flow.flow).map(|_| it))
        {
            Ok(association) => association.send(flow.flow, message, None),
            Err(why) => Err(Refused { why, item: message }),
        }
    }

    /// Makes a request on behalf of a program in `domain`; [`Event::Ended`] tells how it ends.
    ///
    /// # Errors
    ///
    /// The message, and why not.
    pub fn request(
        &mut self,
        flow: FlowKey,
        domain: DomainKey,
        deadline: Option<Time>,
        message: Message<P>,
    ) -> Result<RequestKey, Refused<Message<P>>> {
        let settings = self.settings;
        let association = match self.reachable(flow) {
            Ok(association) => association,
            Err(why) => return Err(Refused { why, item: message }),
        };
        let why = if association.can_carry(&message) {
            // All that may refuse is asked before the request is opened.
            let opened = association.takes(flow.flow);
            let opened = opened.and_then(|_| association.open_request(&settings, domain, deadline));
            match opened {
                Ok(request) => {
                    let key = association.request_key(request);
                    let sent = association.send(flow.flow, message, Some((request, deadline)));
                    return sent.map(|_| key);
                }
                Err(why) => why,
            }
        } else {
            Unsent::Malformed
        };
        Err(Refused { why, item: message })
    }

    /// Nobody waits for a request any more: it ends as [`Outcome::TimedOut`](super::Outcome), and its
    /// answer is thrown away when it comes.
    pub fn abandon(&mut self, now: Time, request: RequestKey) {
        let mut cx = context!(self, now);
        let it = association_of(&mut self.peers, request.peer, request.association);
        if let Some(association) = it {
            association.abandon(&mut cx, request.request);
        }
        self.abandon_redirected(request);
        self.settle(now);
    }

    /// Answers a request that [`Home::deliver`] was given.
    ///
    /// # Errors
    ///
    /// The answer: the client's node is given up, or the request was answered.
    pub fn answer(
        &mut self,
        request: RequestKey,
        answer: Answer<P>,
    ) -> Result<(), Refused<Answer<P>>> {
        match association_of(&mut self.peers, request.peer, request.association) {
            Some(association) => association.answer(request.request, answer),
            None => Err(Refused {
                why: Unsent::Dead,
                item: answer,
            }),
        }
    }

    /// Whether a flow takes a message now: [`Node::send`] and [`Node::request`] refuse it for no other
    /// reason than the message, or as [`Unsent::TooMany`].
    ///
    /// # Errors
    ///
    /// [`Unsent`]; after [`Unsent::Full`] comes [`Event::Writable`].
    pub fn takes(&mut self, flow: FlowKey) -> Result<(), Unsent> {
        let association = self.reachable(flow)?;
        association.takes(flow.flow).map(|_| ())
    }

    /// Closes a flow once all that was sent is in the port. No right leads there any more.
    ///
    /// # Errors
    ///
    /// [`Unsent::Dead`]: there is no such flow.
    pub fn close(&mut self, flow: FlowKey) -> Result<(), Unsent> {
        let association = association_of(&mut self.peers, flow.peer, flow.association);
        association.ok_or(Unsent::Dead)?.close(flow.flow)
    }

    // What comes and goes on connections.

    /// The next record to write on a connection.
    pub fn poll_record(&mut self, now: Time, id: ConnectionId) -> Option<OutRecord<P>> {
        if let Some(bytes) = self.question_on(now, id) {
            let payload = None;
            return Some(OutRecord { bytes, payload });
        }
        let connection = self.connections.get_mut(&id)?;
        let clock = self.settings.clock(now);
        let own = connection.next_record(now, clock, &self.members);
        let own = own.or_else(|| connection.next_statement(&self.statements));
        let peer = self.peers.get_mut(&connection.with.node)?;
        let record = match own {
            Some(bytes) => Some(bytes),
            None if connection.carries() => {
                let association = peer.association.as_mut()?;
                if peer.connection != Some(id) {
                    return None;
                }
                if let Some(bytes) = association.next_word() {
                    Some(bytes)
                } else if std::mem::take(&mut connection.resuming) {
                    Some(resumed_record())
                } else if connection.resumed {
                    let mut cx = context!(self, now);
                    let record = association.next_record(&mut cx, &mut peer.pace);
                    let bytes = record.as_ref().map_or(0, OutRecord::length);
                    peer.pace.goes(now, By::Records, bytes);
                    let record = record?;
                    association.ride();
                    connection.has_said(now);
                    return Some(record);
                } else {
                    None
                }
            }
            None => None,
        };
        let bytes = record?;
        peer.pace.goes(now, By::Records, bytes.len());
        connection.has_said(now);
        let payload = None;
        Some(OutRecord { bytes, payload })
    }

    /// The next fragment to write on a connection's bulk stream.
    pub fn poll_fragment(&mut self, now: Time, id: ConnectionId) -> Option<OutFragment<P>> {
        let connection = self.connections.get_mut(&id)?;
        let peer = self.peers.get_mut(&connection.with.node)?;
        if !connection.carries() || !connection.resumed || peer.connection != Some(id) {
            return None;
        }
        let association = peer.association.as_mut()?;
        let fragment = association.next_fragment(now, &mut peer.pace);
        let bytes = fragment.as_ref().map_or(0, OutFragment::length);
        peer.pace.goes(now, By::Fragments, bytes);
        let fragment = fragment?;
        connection.has_said(now);
        Some(fragment)
    }

    /// A whole record has come on a connection.
    pub fn receive(&mut self, now: Time, id: ConnectionId, record: &[u8], home: &mut dyn Home<P>) {
        let done = self.record(now, id, record, home);
        self.judge(now, id, done);
    }

    /// The head of a fragment has come on a connection: where the bytes behind it go.
    pub fn fragment(&mut self, now: Time, id: ConnectionId, head: &[u8]) -> (u32, Place<P>) {
        let done = FragmentHead::decode(head).map_err(Violation::from);
        let done = done.and_then(|head| {
            let place = self.carried(now, id, |association, cx| association.fragment(cx, head));
            Ok((head.length, place.unwrap_or(Ok(Place::Discard))?))
        });
        match done {
            Ok(place) => {
                self.settle(now);
                place
            }
            Err(violation) => {
                self.judge(now, id, Err(violation));
                (0, Place::Discard)
            }
        }
    }

    /// The record that opens a transfer has come: [`Place::Record`].
    pub fn opened(
        &mut self,
        now: Time,
        id: ConnectionId,
        head: &[u8],
        record: &[u8],
        home: &mut dyn Home<P>,
    ) {
        let done = FragmentHead::decode(head).map_err(Violation::from);
        let done = done.and_then(|head| {
            let opened = |association: &mut Association<P>, cx: &mut Context<'_, P>| {
                association.opened(cx, home, head.transfer, record)
            };
            self.carried(now, id, opened).unwrap_or(Ok(()))
        });
        self.judge(now, id, done);
    }

    /// The bytes of a fragment are where [`Place::Into`] said.
    pub fn fragment_received(
        &mut self,
        now: Time,
        id: ConnectionId,
        head: &[u8],
        home: &mut dyn Home<P>,
    ) {
        if let Ok(head) = FragmentHead::decode(head) {
            let done = self.carried(now, id, |association, cx| {
                association.fragment_received(cx, home, head)
            });
            self.judge(now, id, done.unwrap_or(Ok(())));
        }
    }

    /// Calls the association that a connection carries, if it carries one.
    pub(super) fn carried<T>(
        &mut self,
        now: Time,
        id: ConnectionId,
        then: impl FnOnce(&mut Association<P>, &mut Context<'_, P>) -> T,
    ) -> Option<T> {
        let connection = self.connections.get_mut(&id)?;
        let peer = self.peers.get_mut(&connection.with.node)?;
        if !connection.carries() || peer.connection != Some(id) {
            return None;
        }
        connection.heard = now;
        peer.heard = now;
        let mut cx = context!(self, now);
        Some(then(peer.association.as_mut()?, &mut cx))
    }

    /// A violation ends the association and its connection, and nothing else.
    fn judge(&mut self, now: Time, id: ConnectionId, done: Result<(), Violation>) {
        if let Err(violation) = done {
            let peer = self
                .connections
                .get(&id)
                .map(|connection| connection.with.node);
            self.hang_up(now, id, ByeReason::Violation, Some(violation));
            let is_its = |node: &NodeId| {
                let connection = self.peers.get(node).and_then(|peer| peer.connection);
                connection.is_none_or(|current| current == id)
            };
            if let Some(peer) = peer.filter(is_its) {
                self.over(now, peer, Over::Violation(violation));
            }
        }
        self.settle(now);
    }

    /// Gives slots and memory that became free to the flows and transfers whose turn it is.
    pub(super) fn settle(&mut self, now: Time) {
        self.settle_moves(now);
        self.settle_claims(now);
        while let Some(domain) = self.granted.pop_first() {
            let planted = self.planted;
            while let Some(budget) = self.budgets.get_mut(&domain)
                && let Some((key, bytes)) = budget.grant(planted)
            {
                let association = association_of(&mut self.peers, key.peer, key.association);
                let is_granted = association.is_some_and(|it| it.grant(key.transfer));
                if !is_granted && let Some(budget) = self.budgets.get_mut(&domain) {
                    budget.give_back(bytes);
                }
            }
        }
        while let Some(port) = self.served.pop_first() {
            while let Some(entry) = self.ports.get_mut(&port)
                && let Some(flow) = entry.serve()
            {
                let cx = context!(self, now);
                let it = association_of(&mut self.peers, flow.peer, flow.association);
                match it {
                    Some(association) => association.serve(&cx, flow.flow),
                    None => {
                        if let Some(entry) = self.ports.get_mut(&port) {
                            entry.withdraw(1);
                        }
                    }
                }
            }
            if let Some(entry) = self.ports.get_mut(&port) {
                if !entry.waiting.is_empty() {
                    self.waited.insert(port);
                }
                let is_contended = !entry.waiting.is_empty() && entry.promised > 0;
                let review = now.after(self.settings.credit_lapses_after);
                let before = entry.review;
                entry.review = is_contended.then(|| before.unwrap_or(review));
                if let Some(at) = before {
                    self.reviews.remove(&(at, port));
                }
                self.reviews.extend(entry.review.map(|at| (at, port)));
            }
        }
    }

    /// Takes credit back that flows do not use while others wait.
    pub(super) fn review_credit(&mut self, now: Time) {
        while let Some((at, port)) = self.reviews.first().copied()
            && at <= now
        {
            self.reviews.pop_first();
            let entry = self.ports.get_mut(&port);
            let Some(entry) = entry.filter(|entry| entry.review == Some(at)) else {
                continue;
            };
            entry.review = None;
            let flows: Vec<FlowKey> = entry.flows.iter().copied().collect();
            for key in flows {
                let mut cx = context!(self, now);
                if let Some(it) = association_of(&mut self.peers, key.peer, key.association) {
                    it.lapse(&mut cx, key.flow);
                }
            }
            self.served.insert(port);
        }
        self.settle(now);
    }

    pub(super) fn next_review(&self) -> Option<Time> {
        self.reviews.first().map(|(at, _)| *at)
    }
}

fn resumed_record() -> Vec<u8> {
    use portolan_abi::node::{Record, Sent};
    Record::Resumed.with(Sent::default())
}

/// The association with a peer, if it is still this one.
pub(super) fn association_of<P>(
    peers: &mut BTreeMap<NodeId, Peer<P>>,
    peer: NodeId,
    serial: u64,
) -> Option<&mut Association<P>> {
    let association = peers.get_mut(&peer)?.association.as_mut()?;
    (association.serial == serial).then_some(association)
}
