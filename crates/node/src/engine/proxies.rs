//! Proxies: ports of a domain here that stand for ports there. What programs send to them goes on
//! as far as the protocol takes it; the rest stays in their queues, where senders see how full they
//! are.
//!
//! ```text
//! waited for ---Full, unreachable---> parked ---Writable, reachable---> waited for
//!      \___ no sender is left, or the port there is dead ___ closed
//!
//! a right has come ---> parked, until there is a loan ---Borrowed---> waited for
//! ```
//!
//! A proxy without senders is closed after a while, so that a right that comes and goes costs no
//! records; at once, if the port's home wants to know ([`Engine::senders_wanted`]).

mod table;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use portolan::proxy::{Answer, KnownPort, ProxyPort, Taken};
use portolan::{Deadline, Message, Notice, PortOptions, SendRight, Token};
use portolan_abi::node::{Lent, NodeId, PORT_SECRET, PortId};
use portolan_proto::node::{
    self, BorrowKey, DomainKey, FlowEnd, FlowKey, Outcome, RequestKey, Unsent,
};

use super::Engine;
use super::machine::{Asking, Waits, time};
use super::payload::Payload;
use super::recorder::Passes;
use super::spans::Thing;

/// Messages that are taken off one proxy in a turn: the others have their turn then.
const TURN: usize = 64;
/// Programs that wait at one proxy until what they sent is there; another one is told that it cannot
/// be said.
const MOST_FLUSHES: usize = 1024;

/// Proxies without senders that one turn closes: the others have their turn then.
const SWEEP: usize = 1024;

/// How long a proxy without senders stays, if nobody wants to know.
const IDLE: Duration = Duration::from_secs(1);

/// A port of another node, as a domain knows it.
type Foreign = (DomainKey, PortId, [u8; PORT_SECRET]);

/// Where the receive right of a proxy is.
#[derive(Debug)]
enum Place {
    /// In the domain's wait set.
    Waits(Token<ProxyPort>),
    /// Here, because nothing can be sent on now.
    Parked(Box<ProxyPort>),
    /// Between the two.
    Nowhere,
}

/// A port here that stands for a port there.
#[derive(Debug)]
pub(super) struct Proxy {
    pub(super) domain: DomainKey,
    /// The port's name there.
    pub(super) name: String,
    /// The port's home.
    pub(super) home: NodeId,
    /// Once there is a loan.
    pub(super) flow: Option<FlowKey>,
    /// Until then; and who has given the right.
    borrow: Option<BorrowKey>,
    giver: Option<NodeId>,
    port: PortId,
    secret: [u8; PORT_SECRET],
    /// The proxy's, in its domain.
    number: u64,
    synchronous: bool,
    place: Place,
    /// Was taken off, and is one request too many.
    held: Option<(node::Message<Payload>, Answer)>,
    /// It was told that no sender is left; since when. The latter only [`Proxies::set_idle`] changes.
    unused: bool,
    idle_since: Option<Duration>,
    /// The port's home wants to know when it is unused.
    counted: bool,
    pub(super) sent: u64,
    /// Programs that wait until so many of them are in the port there.
    flushes: VecDeque<(u64, Answer)>,
}

impl Proxy {
    /// All below this number are in the port there: who waited for that is told.
    fn have_arrived(&mut self, number: u64) {
        while self.flushes.front().is_some_and(|(of, _)| *of <= number)
            && let Some((_, answer)) = self.flushes.pop_front()
        {
            // A program that is gone needs no answer.
            let _ = answer.reply(Message::default());
        }
    }

    fn foreign(&self) -> Foreign {
        (self.domain, self.port, self.secret)
    }

    pub(super) fn is_parked(&self) -> bool {
        matches!(self.place, Place::Parked(_))
    }
}

/// All proxies.
#[derive(Debug, Default)]
pub(super) struct Proxies {
    pub(super) all: BTreeMap<u64, Proxy>,
    by_flow: BTreeMap<FlowKey, u64>,
    by_borrow: BTreeMap<BorrowKey, u64>,
    /// By their numbers in their domains.
    by_number: BTreeMap<(DomainKey, u64), u64>,
    /// By the ports that they stand for, and by their homes.
    by_port: BTreeSet<(Foreign, u64)>,
    by_home: BTreeSet<(NodeId, u64)>,
    /// Those without senders, by since when.
    idle: BTreeSet<(Duration, u64)>,
    /// Those whose next request is one too many, by home and domain.
    holding: BTreeSet<(NodeId, DomainKey, u64)>,
    last: u64,
    /// Those at which programs wait.
    flushing: BTreeSet<u64>,
    /// Messages that were lost with each peer, or with ports of it.
    pub(super) lost: BTreeMap<NodeId, u64>,
}

impl Engine {
    /// A right on a port of a peer, to which this flow leads: on the proxy of before, if the port has
    /// one; then the flow is closed.
    pub(super) fn right_on(
        &mut self,
        domain: DomainKey,
        name: &str,
        flow: FlowKey,
        lent: &Lent,
    ) -> Option<SendRight> {
        let same = self.proxies.of_port(domain, lent.port, lent.secret, flow);
        if let Some(id) = same {
            // What is over is closed already.
            let _ = self.node.close(flow);
            return self.port_of(id, |port| port.make_send());
        }
        let node = self.machine.name_of(flow.peer);
        let span = self.machine.spans.get_mut(&domain)?;
        let mut options = PortOptions::unnamed();
        if lent.synchronous {
            options = options.synchronous();
        }
        let mut port = span.bind(name, &node, options)?;
        let right = port.make_send();
        port.request_no_more_senders();
        let unreachable = self.node.peer_view(flow.peer);
        if unreachable.is_some_and(|peer| peer.is_unreachable) {
            port.set_unreachable(Instant::now());
        }
        let id = self.proxies.last + 1;
        let known = KnownPort::of(&right);
        let number = known.number();
        let token = span.add(port, Thing::Proxy(id))?;
        let proxy = Proxy {
            domain,
            name: name.to_owned(),
            home: flow.peer,
            flow: Some(flow),
            borrow: None,
            giver: None,
            port: lent.port,
            secret: lent.secret,
            number,
            synchronous: lent.synchronous,
            place: Place::Waits(token),
            held: None,
            unused: false,
            idle_since: None,
            counted: false,
            sent: 0,
            flushes: VecDeque::new(),
        };
        self.proxies.insert(proxy);
        self.proxies.by_flow.insert(flow, id);
        let arrivals = &mut self.machine.arrivals;
        arrivals.has_proxy(domain, lent.port, lent.secret, known);
        Some(right)
    }

    /// Does something with a proxy's port.
    pub(super) fn port_of<T>(
        &mut self,
        id: u64,
        act: impl FnOnce(&mut ProxyPort) -> T,
    ) -> Option<T> {
        let proxy = self.proxies.all.get_mut(&id)?;
        match &mut proxy.place {
            Place::Waits(token) => {
                let span = self.machine.spans.get_mut(&proxy.domain)?;
                Some(act(span.set.get_mut(*token)?))
            }
            Place::Parked(port) => Some(act(port)),
            Place::Nowhere => None,
        }
    }

    /// Takes what programs have sent to a proxy, and sends it on.
    pub(super) fn drain(&mut self, id: u64) {
        for _ in 0..TURN {
            let Some(proxy) = self.proxies.all.get_mut(&id) else {
                return;
            };
            let Some(flow) = proxy.flow else {
                return self.park(id);
            };
            match self.node.takes(flow) {
                Ok(()) => {}
                Err(Unsent::Full | Unsent::Unreachable { .. }) => return self.park(id),
                Err(_) => return self.close_proxy(id),
            }
            if let Some((message, answer)) = proxy.held.take() {
                self.proxies.holds_none(id);
                if !self.ask_on(id, message, answer) {
                    return;
                }
                continue;
            }
            match self.port_of(id, |port| port.take(Deadline::NOW)) {
                Some(Ok(taken)) => {
                    if !self.send_on(id, taken) {
                        return;
                    }
                }
                Some(Err(portolan::ReceiveError::TimedOut)) => break,
                Some(Err(_)) | None => return self.close_proxy(id),
            }
        }
        self.close_if_unused(id);
    }

    /// Sends on what was taken off a proxy; whether there may be more.
    fn send_on(&mut self, id: u64, taken: Taken) -> bool {
        let Some(proxy) = self.proxies.all.get_mut(&id) else {
            return false;
        };
        let (Some(flow), domain, synchronous) = (proxy.flow, proxy.domain, proxy.synchronous)
        else {
            return false;
        };
        let to = (flow.peer, flow.association);
        match taken {
            Taken::Message(message) if !synchronous => {
                let Some(message) = self.outgoing(to, domain, message) else {
                    return true;
                };
                let (began, bytes) = (self.machine.records(domain), message.bytes());
                let number = match self.node.send(flow, message) {
                    Ok(number) => number,
                    Err(refused) => {
                        // It was asked before: so it is the message.
                        self.machine.left_behind += 1;
                        self.take_rights_back(&refused.item.rights);
                        return !matches!(refused.why, Unsent::Dead);
                    }
                };
                if began.is_some() {
                    self.departed(began, id, Passes::Message(flow, number), bytes);
                }
                self.machine.sent += 1;
                if let Some(proxy) = self.proxies.all.get_mut(&id) {
                    proxy.sent += 1;
                }
            }
            Taken::Request(message, answer) if synchronous => {
                match self.outgoing(to, domain, message) {
                    Some(message) => return self.ask_on(id, message, answer),
                    None => answer.dropped(),
                }
            }
            Taken::Flush(answer) => {
                if proxy.flushes.len() >= MOST_FLUSHES {
                    proxy.flushes.retain(|(_, answer)| answer.is_wanted());
                }
                if proxy.flushes.len() >= MOST_FLUSHES {
                    answer.dropped();
                } else {
                    proxy.flushes.push_back((proxy.sent, answer));
                    self.proxies.flushing.insert(id);
                }
            }
            Taken::Notice(Notice::NoMoreSenders) => proxy.unused = true,
            // One that this machine has made is a proxy of its own.
            // No right on it goes elsewhere than to programs of this domain, and those have sent
            // what the port takes.
            Taken::Request(_, answer) => answer.dropped(),
            Taken::Message(_) | Taken::Once(_) => self.machine.left_behind += 1,
            Taken::OnceDropped | Taken::Notice(_) => {}
        }
        true
    }

    fn ask_on(&mut self, id: u64, message: node::Message<Payload>, answer: Answer) -> bool {
        let Some(proxy) = self.proxies.all.get_mut(&id) else {
            return false;
        };
        let (Some(flow), domain, home) = (proxy.flow, proxy.domain, proxy.home) else {
            return false;
        };
        let (began, bytes) = (self.machine.records(domain), message.bytes());
        match self.node.request(flow, domain, None, message) {
            Ok(request) => {
                proxy.sent += 1;
                self.machine.sent += 1;
                if began.is_some() {
                    self.departed(began, id, Passes::Request(request), bytes);
                }
                let what = Waits::Answer(answer);
                let asking = Asking { domain, what };
                self.machine.asking.insert(request, asking);
                true
            }
            Err(refused) => {
                match refused.why {
                    Unsent::TooMany { .. } => {
                        proxy.held = Some((refused.item, answer));
                        self.proxies.holding.insert((home, domain, id));
                        // Those that nobody waits for make room, and so does each that ends.
                        if self.abandon(flow.peer, domain) {
                            return true;
                        }
                        self.park(id);
                    }
                    _ => {
                        answer.dropped();
                        self.take_rights_back(&refused.item.rights);
                    }
                }
                false
            }
        }
    }

    /// A message of a proxy has departed, and the domain is traced.
    fn departed(&mut self, began: Option<u64>, id: u64, passes: Passes, bytes: u64) {
        let proxy = self.proxies.all.get(&id);
        let name = proxy.map_or("", |proxy| proxy.name.as_str());
        self.machine.passed(began, true, passes, name, bytes);
    }

    /// Ends the requests at a peer whose programs have stopped to wait; whether there were some.
    fn abandon(&mut self, peer: NodeId, domain: DomainKey) -> bool {
        let now = self.protocol_time();
        let all = self.machine.asking.iter();
        let gone = all.filter(|(request, asking)| {
            let is_its = request.peer == peer && asking.domain == domain;
            is_its && matches!(&asking.what, Waits::Answer(answer) if !answer.is_wanted())
        });
        let gone: Vec<RequestKey> = gone.map(|(request, _)| *request).collect();
        for request in &gone {
            self.machine.asking.remove(request);
            self.node.abandon(now, *request);
        }
        !gone.is_empty()
    }

    /// Nothing can be sent on: what comes stays in the proxy's queue.
    fn park(&mut self, id: u64) {
        let Some(proxy) = self.proxies.all.get_mut(&id) else {
            return;
        };
        if let Place::Waits(token) = proxy.place
            && let Some(span) = self.machine.spans.get_mut(&proxy.domain)
            && let Some(mut port) = span.remove(token)
        {
            // Senders have the room that was made, and wait for the rest.
            port.pause();
            proxy.place = Place::Parked(Box::new(port));
        }
    }

    /// Something may be sent on again.
    pub(super) fn unpark(&mut self, id: u64) {
        let Some(proxy) = self.proxies.all.get_mut(&id) else {
            return;
        };
        let Place::Parked(port) = std::mem::replace(&mut proxy.place, Place::Nowhere) else {
            return self.drain(id);
        };
        let span = self.machine.spans.get_mut(&proxy.domain);
        match span.and_then(|span| span.add(*port, Thing::Proxy(id))) {
            Some(token) => proxy.place = Place::Waits(token),
            None => return self.close_proxy(id),
        }
        self.drain(id);
    }

    pub(super) fn writable(&mut self, flow: FlowKey) {
        if let Some(id) = self.proxies.by_flow.get(&flow) {
            self.unpark(*id);
        }
    }

    /// The proxies of ports of a peer.
    fn of_peer(&self, peer: NodeId) -> Vec<u64> {
        let its = self.proxies.by_home.range((peer, 0)..=(peer, u64::MAX));
        its.map(|(_, id)| *id).collect()
    }

    /// A peer is silent since then.
    pub(super) fn unreachable(&mut self, peer: NodeId, silent: Duration) {
        let now = Instant::now();
        let since = now.checked_sub(silent).unwrap_or(now);
        for id in self.of_peer(peer) {
            self.port_of(id, |port| port.set_unreachable(since));
            self.park(id);
        }
    }

    pub(super) fn reachable(&mut self, peer: NodeId) {
        for id in self.of_peer(peer) {
            self.port_of(id, ProxyPort::set_reachable);
            self.unpark(id);
        }
    }

    /// Tells programs that what they sent is in its port.
    pub(super) fn answer_flushes(&mut self) {
        let proxies = &mut self.proxies;
        let (all, node) = (&mut proxies.all, &self.node);
        proxies.flushing.retain(|id| {
            let Some(proxy) = all.get_mut(id) else {
                return false;
            };
            if let Some(first) = proxy.flow.and_then(|flow| node.first_kept(flow)) {
                proxy.have_arrived(first);
            }
            !proxy.flushes.is_empty()
        });
    }

    /// The association with a peer is over: all rights on its ports are dead. How many messages are
    /// lost.
    pub(super) fn given_up(&mut self, peer: NodeId, association: u64, flows: &[FlowEnd]) -> u64 {
        let lost = |engine: &Self| engine.proxies.lost.get(&peer).copied().unwrap_or(0);
        let before = lost(self);
        let ends: BTreeMap<FlowKey, &FlowEnd> = flows.iter().map(|end| (end.flow, end)).collect();
        for id in self.of_peer(peer) {
            let Some(proxy) = self.proxies.all.get_mut(&id) else {
                continue;
            };
            let Some(flow) = proxy.flow.filter(|flow| flow.association == association) else {
                continue;
            };
            let end = ends.get(&flow);
            proxy.have_arrived(end.map_or(0, |end| end.acknowledged));
            let name = self.machine.name_of(peer);
            let flushes = proxy.flushes.drain(..);
            flushes.for_each(|(_, answer)| answer.node_lost(&name));
            let queued = self.empty(id, |answer| answer.node_lost(&name));
            self.lose(id, queued + end.map_or(0, |end| end.lost));
            self.close_proxy(id);
        }
        lost(self) - before
    }

    /// A port of a peer is dead, and so many messages to it are lost.
    pub(super) fn flow_is_dead(&mut self, flow: FlowKey, lost: u64) {
        if let Some(id) = self.proxies.by_flow.get(&flow).copied() {
            if let Some(proxy) = self.proxies.all.get_mut(&id) {
                proxy.have_arrived(proxy.sent.saturating_sub(lost));
            }
            self.lose(id, lost);
            self.close_proxy(id);
        }
    }

    /// Drops what is in the queue of a proxy that takes messages: how many those were. Who waits for
    /// them is told. What is sent meanwhile its close drops.
    fn empty(&mut self, id: u64, tell: impl Fn(Answer)) -> u64 {
        let proxy = self.proxies.all.get(&id);
        if proxy.is_none_or(|proxy| proxy.synchronous) {
            return 0;
        }
        let messages = self.port_of(id, |port| {
            let all = (0..port.depth()).map_while(|_| port.take(Deadline::NOW).ok());
            let counts = all.map(|taken| match taken {
                Taken::Flush(answer) => {
                    tell(answer);
                    0
                }
                taken => u64::from(matches!(taken, Taken::Message(_))),
            });
            counts.sum()
        });
        messages.unwrap_or(0)
    }

    /// Counts what was sent to a proxy and is lost. Of requests their clients are told.
    fn lose(&mut self, id: u64, messages: u64) {
        let proxy = self.proxies.all.get(&id);
        if let Some(proxy) = proxy.filter(|proxy| !proxy.synchronous && messages > 0) {
            *self.proxies.lost.entry(proxy.home).or_default() += messages;
        }
    }

    /// Closes the proxies of a domain that is spanned no more.
    pub(super) fn close_proxies_of(&mut self, domain: DomainKey) {
        let all = self.proxies.all.iter();
        let its = all.filter(|(_, proxy)| proxy.domain == domain);
        let its: Vec<u64> = its.map(|(id, _)| *id).collect();
        its.into_iter().for_each(|id| self.close_proxy(id));
    }

    /// Closes a proxy: its rights are dead names, and what it has not sent on is dropped.
    pub(super) fn close_proxy(&mut self, id: u64) {
        let queued = self.empty(id, Answer::server_dead);
        self.lose(id, queued);
        let Some(mut proxy) = self.proxies.remove(id) else {
            return;
        };
        let (domain, number) = (proxy.domain, proxy.number);
        let arrivals = &mut self.machine.arrivals;
        arrivals.has_none(domain, proxy.port, proxy.secret, number);
        if let Some(giver) = proxy.giver {
            arrivals.settled(giver);
        }
        let held = proxy.held.take();
        if let Some((message, _)) = &held {
            self.take_rights_back(&message.rights);
        }
        let held = held.map(|(_, answer)| answer);
        let flushes = proxy.flushes.drain(..).map(|(_, answer)| answer);
        flushes.chain(held).for_each(Answer::server_dead);
        if let Place::Waits(token) = proxy.place
            && let Some(span) = self.machine.spans.get_mut(&proxy.domain)
        {
            span.remove(token);
        }
        if let Some(borrow) = proxy.borrow {
            self.proxies.by_borrow.remove(&borrow);
            self.node.unborrow(borrow);
        }
        if let Some(flow) = proxy.flow {
            self.proxies.by_flow.remove(&flow);
            // If the association is over, so is the flow.
            let _ = self.node.close(flow);
        }
    }

    /// Closes the proxies that have been without senders for long enough.
    pub(super) fn close_idle(&mut self) {
        let now = self.machine.now;
        let idle = self.proxies.idle.iter();
        let due = idle.take_while(|(since, _)| *since + IDLE <= now);
        let due: Vec<u64> = due.map(|(_, id)| *id).take(SWEEP).collect();
        due.into_iter().for_each(|id| self.close_if_unused(id));
    }

    pub(super) fn close_if_unused(&mut self, id: u64) {
        let Some(proxy) = self.proxies.all.get_mut(&id) else {
            return;
        };
        if !proxy.unused || proxy.held.is_some() || proxy.flow.is_none() {
            return self.proxies.set_idle(id, None);
        }
        let now = self.machine.now;
        let is_late = proxy.idle_since.is_some_and(|since| since + IDLE <= now);
        let closes = proxy.counted || is_late;
        let left = self.port_of(id, |port| (port.senders(), port.depth()));
        match left {
            Some((0, 0)) if closes => self.close_proxy(id),
            Some((0, 0)) => {
                let proxy = self.proxies.all.get(&id);
                let since = proxy.and_then(|proxy| proxy.idle_since);
                self.proxies.set_idle(id, Some(since.unwrap_or(now)));
            }
            // More was sent before the last right went.
            Some((0, _)) => self.proxies.set_idle(id, None),
            // It was handed out again meanwhile.
            _ => {
                if let Some(proxy) = self.proxies.all.get_mut(&id) {
                    proxy.unused = false;
                }
                self.proxies.set_idle(id, None);
                self.port_of(id, |port| port.request_no_more_senders());
            }
        }
    }

    /// A request of a program here has ended.
    pub(super) fn ended(&mut self, request: RequestKey, outcome: Outcome<Payload>) {
        let Some(asking) = self.machine.asking.remove(&request) else {
            return;
        };
        let Asking { domain, what } = asking;
        let answer = match what {
            Waits::Answer(answer) | Waits::Once(answer) => answer,
            // The receiver's node has a loan, or wants none: the right is not kept any more. An honest
            // node says nothing more.
            Waits::Keep(_) => {
                if let Outcome::Answered(node::Answer::Reply(reply)) = outcome {
                    for given in reply.rights {
                        let _ = self.node.answer(given.request, node::Answer::Dropped);
                    }
                }
                return;
            }
        };
        match outcome {
            Outcome::Answered(node::Answer::Reply(reply)) => {
                let (began, bytes) = (self.machine.records(domain), reply.bytes());
                match self.incoming(domain, reply) {
                    // A client that is gone needs none.
                    Some(message) => drop(answer.reply(message)),
                    None => answer.dropped(),
                }
                let passes = Passes::Answer(request);
                self.machine.passed(began, false, passes, "", bytes);
            }
            Outcome::PortDead | Outcome::Answered(node::Answer::ServerDead) => answer.server_dead(),
            Outcome::NodeLost => answer.node_lost(&self.machine.name_of(request.peer)),
            // There is no memory for the answer, or there is none.
            _ => answer.dropped(),
        }
        // Another one may be made.
        let its = (request.peer, domain, 0)..=(request.peer, domain, u64::MAX);
        let first = self.proxies.holding.range(its).next();
        if let Some((_, _, id)) = first.copied() {
            self.unpark(id);
        }
    }

    /// How many messages wait in the queue of a proxy.
    pub(super) fn depth_of(&mut self, id: u64) -> usize {
        self.port_of(id, |port| port.depth()).unwrap_or(0)
    }

    /// What the protocol is told of the time.
    pub(super) fn protocol_time(&self) -> portolan_proto::Time {
        time(self.machine.now)
    }
}
