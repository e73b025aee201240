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
//! | file | holds |
//! |---|---|
//! | `table` | proxies by what is known of them |
//! | `ends` | they are closed: unused, or with their ports |
//! | `held` | requests that are one too many |
//! | `moves` | their ports move, and ports of this machine become proxies |
//! | `passing` | ports that have come here, to which their proxies pass on; messages that go once more |
//! | `saved` | another process goes on with them |
//! | `arriving` | messages that give a port away wait until its backlog is in it, and it has room for that |
//!
//! A proxy without senders is closed after a while, so that a right that comes and goes costs no
//! records; at once, if the port's home wants to know ([`Engine::senders_wanted`]).

mod arriving;
mod ends;
mod held;
mod moves;
mod passing;
mod saved;
mod table;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use portolan::proxy::{Answer, KnownPort, ProxyPort, Taken};
use portolan::{Message, Notice, PortOptions, SendRight, Token};
use portolan_abi::node::{Lent, NodeId, PORT_SECRET, PortId};
use portolan_proto::node::{
    self, BorrowKey, DomainKey, FlowKey, Outcome, PortKey, RequestKey, Unsent,
};

use super::Engine;
use super::machine::{Asking, Waits, time};
use super::payload::Payload;
use super::recorder::Passes;
use super::spans::Thing;

use held::Holding;
pub(super) use moves::Leaving;
use passing::{Back, Here};
pub(super) use saved::SavedProxy;
use table::Times;

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
    /// The port's home. Only [`Proxies::set_home`] changes it.
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
    /// When its turn is among those that hold one. Only [`held`] changes it.
    turn: Option<u64>,
    /// It was told that no sender is left; since when. The latter only [`Proxies::set_idle`] changes.
    unused: bool,
    idle_since: Option<Duration>,
    /// The port's home wants to know when it is unused.
    counted: bool,
    pub(super) sent: u64,
    /// Which of these the first of the flow is.
    first: u64,
    /// Its port is here: what comes is passed on to that. Only [`Proxies::set_here`] changes it.
    here: Option<Here>,
    /// Goes before what is in the queue.
    back: VecDeque<Back>,
    /// It waits until this port has arrived. Only [`Proxies::set_waits_for`] changes it.
    waits_for: Option<PortKey>,
    /// When it is tried again, if memory was short. Only [`Proxies::set_again`] changes it.
    again: Option<Duration>,
    /// The port that has left, whose entry it is; and that has a name here.
    of: Option<PortKey>,
    named: bool,
    /// Not more of its queue go before what others send to the port's new home.
    backlog: Option<usize>,
    /// Messages that it has dropped because they cannot travel, as they were counted last.
    behind: u64,
    /// The node that was given up as its home, while it is asked where the port is.
    gone: Option<NodeId>,
    /// So many in its queue are behind messages that were lost with this node.
    behind_lost: Option<(NodeId, usize)>,
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
    idle: Times,
    /// Those for whose messages there was no memory, by when they are tried again.
    again: Times,
    /// Those that pass on to a port of this machine.
    passing: BTreeSet<(PortKey, u64)>,
    /// Those that wait until a port has arrived.
    awaiting: BTreeSet<(PortKey, u64)>,
    /// Those whose next request is one too many.
    holding: Holding,
    last: u64,
    /// Those that may send on again.
    due: BTreeSet<u64>,
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
        // Its port may have moved since: then it leads to another node.
        let is_now = |its: FlowKey| self.node.first_kept(its).is_some();
        let foreign = (domain, lent.port, lent.secret);
        let same = self.proxies.of_port(foreign, is_now);
        if let Some(id) = same {
            // What is over is closed already.
            let _ = self.node.close(flow);
            return self.port_of(id, |port| port.make_send());
        }
        // It may have come here.
        let port = self.node.port_of(&lent.port, &lent.secret);
        let here = port.and_then(|port| self.machine.lent.get(&port));
        let here = here.filter(|here| here.domain == domain);
        if let Some(right) = here.and_then(|here| here.known.right()) {
            let _ = self.node.close(flow);
            return Some(right);
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
        let known = KnownPort::of(&right);
        let token = span.add(port, Thing::Proxy(self.proxies.last + 1))?;
        let of = (lent.port, lent.secret, lent.synchronous);
        let (name, place) = (name.to_owned(), Place::Waits(token));
        let mut proxy = Proxy::new(domain, name, flow.peer, of, known.number(), place);
        proxy.flow = Some(flow);
        let id = self.proxies.insert(proxy);
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
        let Some(proxy) = self.proxies.all.get(&id) else {
            return;
        };
        if proxy.waits_for.is_some() {
            return self.park(id);
        }
        if proxy.here.is_some() {
            if self.pass_some_on(id, TURN) {
                self.close_if_unused(id);
            }
            return;
        }
        for _ in 0..TURN {
            self.end_backlog(id);
            let Some(proxy) = self.proxies.all.get_mut(&id) else {
                return;
            };
            let Some(flow) = proxy.flow else {
                return self.park(id);
            };
            match self.node.takes(flow) {
                Ok(()) => {}
                // If the flow is over, it is about to be told why, and whether another one takes its place.
                Err(_) => return self.park(id),
            }
            if let Some(held) = proxy.held.take() {
                if !self.ask_held(id, held) {
                    return;
                }
                continue;
            }
            if let Some(back) = proxy.back.pop_front() {
                if !self.send_back(id, back) {
                    return;
                }
                continue;
            }
            match self.take_off(id) {
                Some(Ok(taken)) => {
                    if !self.send_on(id, taken) {
                        return;
                    }
                }
                Some(Err(portolan::ReceiveError::TimedOut)) => break,
                Some(Err(_)) | None => return self.close_proxy(id),
            }
        }
        self.end_backlog(id);
        self.go_on_with_back(id);
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
            // The second one by a right that was made while the port was here.
            Taken::Message(message) | Taken::Once(message) if !synchronous => {
                let Some((message, _)) = self.waits_for_arrival(id, message, None) else {
                    return false;
                };
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
                let waits = self.waits_for_arrival(id, message, Some(answer));
                let Some((message, Some(answer))) = waits else {
                    return false;
                };
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
        let (Some(flow), domain) = (proxy.flow, proxy.domain) else {
            return false;
        };
        let (began, bytes) = (self.machine.records(domain), message.bytes());
        match self.node.request(flow, domain, None, message) {
            Ok(request) => {
                proxy.sent += 1;
                self.machine.sent += 1;
                self.machine.expects = true;
                if began.is_some() {
                    self.departed(began, id, Passes::Request(request), bytes);
                }
                let what = Waits::Answer(answer);
                let asking = Asking { domain, what };
                self.machine.asking.insert(request, asking);
                true
            }
            Err(refused) => {
                if matches!(refused.why, Unsent::TooMany { .. }) {
                    return self.is_too_many(id, refused.item, answer);
                }
                answer.dropped();
                self.take_rights_back(&refused.item.rights);
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

    /// Something may be sent on again: once all that the protocol has said is handled, because the port may
    /// have moved since.
    pub(super) fn unpark(&mut self, id: u64) {
        self.proxies.due.insert(id);
    }

    /// Sends on what may be sent on again; whether there was something.
    pub(super) fn drain_due(&mut self) -> bool {
        let due = std::mem::take(&mut self.proxies.due);
        let free = self.proxies.take_free();
        let any = !due.is_empty() || !free.is_empty();
        for id in due {
            self.wait_for(id);
            self.drain(id);
        }
        free.into_iter().for_each(|peer| self.fill_places(peer));
        any
    }

    /// Waits for what comes to a proxy.
    fn wait_for(&mut self, id: u64) {
        let Some(proxy) = self.proxies.all.get_mut(&id) else {
            return;
        };
        let place = std::mem::replace(&mut proxy.place, Place::Nowhere);
        let Place::Parked(port) = place else {
            proxy.place = place;
            return;
        };
        let span = self.machine.spans.get_mut(&proxy.domain);
        match span.and_then(|span| span.add(*port, Thing::Proxy(id))) {
            Some(token) => proxy.place = Place::Waits(token),
            None => self.close_proxy(id),
        }
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
            if let Some(number) = proxy.arrived(|flow| node.first_kept(flow)) {
                proxy.have_arrived(number);
            }
            !proxy.flushes.is_empty()
        });
    }

    /// A request of a program here has ended.
    pub(super) fn ended(&mut self, request: RequestKey, outcome: Outcome<Payload>) {
        self.proxies.place_is_free(request.peer);
        // One that was abandoned is not known any more.
        let Some(asking) = self.machine.asking.remove(&request) else {
            return;
        };
        let Asking { domain, what } = asking;
        let answer = match what {
            Waits::Answer(answer) | Waits::Once(answer) => answer,
            Waits::Moves(port, right) => {
                return self.right_moves(domain, port, *right, request.peer, outcome);
            }
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
        self.machine.expects = false;
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
