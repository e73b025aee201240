//! Proxies: ports of a domain here that stand for ports there. What programs send to them goes on
//! as far as the protocol takes it; the rest stays in their queues, where senders see how full they
//! are.
//!
//! ```text
//! waited for ---Full, unreachable---> parked ---Writable, reachable---> waited for
//!      \___ no sender is left, or the port there is dead ___ closed
//! ```

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use portolan::proxy::{Answer, ProxyPort, Taken};
use portolan::{Deadline, Notice, PortOptions, SendRight, Token};
use portolan_abi::node::{Lent, NodeId, PortId};
use portolan_proto::node::{self, DomainKey, FlowKey, Outcome, RequestKey, Unsent};

use super::Engine;
use super::machine::{Asking, time};
use super::payload::Payload;
use super::spans::Thing;

/// Messages that are taken off one proxy in a turn: the others have their turn then.
const TURN: usize = 64;

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
    pub(super) flow: FlowKey,
    port: PortId,
    synchronous: bool,
    place: Place,
    /// Was taken off, and is one request too many.
    held: Option<(node::Message<Payload>, Answer)>,
    /// It was told that no sender is left.
    unused: bool,
    pub(super) sent: u64,
}

impl Proxy {
    pub(super) fn is_parked(&self) -> bool {
        matches!(self.place, Place::Parked(_))
    }
}

/// All proxies.
#[derive(Debug, Default)]
pub(super) struct Proxies {
    pub(super) all: BTreeMap<u64, Proxy>,
    by_flow: BTreeMap<FlowKey, u64>,
    last: u64,
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
        let mut all = self.proxies.all.iter();
        let same = all.find(|(_, proxy)| {
            let is_it = proxy.port == lent.port && proxy.domain == domain;
            is_it && proxy.flow.peer == flow.peer && proxy.flow.association == flow.association
        });
        if let Some((id, _)) = same {
            let id = *id;
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
        self.proxies.last += 1;
        let id = self.proxies.last;
        let token = span.add(port, Thing::Proxy(id))?;
        let proxy = Proxy {
            domain,
            name: name.to_owned(),
            flow,
            port: lent.port,
            synchronous: lent.synchronous,
            place: Place::Waits(token),
            held: None,
            unused: false,
            sent: 0,
        };
        self.proxies.all.insert(id, proxy);
        self.proxies.by_flow.insert(flow, id);
        Some(right)
    }

    /// Does something with a proxy's port.
    fn port_of<T>(&mut self, id: u64, act: impl FnOnce(&mut ProxyPort) -> T) -> Option<T> {
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
            let flow = proxy.flow;
            match self.node.takes(flow) {
                Ok(()) => {}
                Err(Unsent::Full | Unsent::Unreachable { .. }) => return self.park(id),
                Err(_) => return self.close_proxy(id),
            }
            if let Some((message, answer)) = proxy.held.take() {
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
        let (flow, synchronous) = (proxy.flow, proxy.synchronous);
        match taken {
            Taken::Message(message) if !synchronous => {
                let Some(message) = self.machine.outgoing(message) else {
                    return true;
                };
                proxy.sent += 1;
                if let Err(refused) = self.node.send(flow, message) {
                    // It was asked before: so it is the message.
                    self.machine.left_behind += 1;
                    proxy.sent -= 1;
                    return !matches!(refused.why, Unsent::Dead);
                }
                self.machine.sent += 1;
            }
            Taken::Request(message, answer) if synchronous => {
                match self.machine.outgoing(message) {
                    Some(message) => return self.ask_on(id, message, answer),
                    None => answer.dropped(),
                }
            }
            Taken::Notice(Notice::NoMoreSenders) => proxy.unused = true,
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
        let (flow, domain) = (proxy.flow, proxy.domain);
        match self.node.request(flow, domain, None, message) {
            Ok(request) => {
                proxy.sent += 1;
                self.machine.sent += 1;
                let asking = Asking { domain, answer };
                self.machine.asking.insert(request, asking);
                true
            }
            Err(refused) => {
                match refused.why {
                    Unsent::TooMany { .. } => {
                        proxy.held = Some((refused.item, answer));
                        // Those that nobody waits for make room, and so does each that ends.
                        if self.abandon(flow.peer, domain) {
                            return true;
                        }
                        self.park(id);
                    }
                    _ => answer.dropped(),
                }
                false
            }
        }
    }

    /// Ends the requests at a peer whose programs have stopped to wait; whether there were some.
    fn abandon(&mut self, peer: NodeId, domain: DomainKey) -> bool {
        let now = self.protocol_time();
        let all = self.machine.asking.iter();
        let gone = all.filter(|(request, asking)| {
            request.peer == peer && asking.domain == domain && !asking.answer.is_wanted()
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
        let all = self.proxies.all.iter();
        let its = all.filter(|(_, proxy)| proxy.flow.peer == peer);
        its.map(|(id, _)| *id).collect()
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

    /// The association with a peer is over: all rights on its ports are dead.
    pub(super) fn given_up(&mut self, peer: NodeId, association: u64) {
        for id in self.of_peer(peer) {
            let proxy = self.proxies.all.get(&id);
            if proxy.is_some_and(|proxy| proxy.flow.association == association) {
                self.close_proxy(id);
            }
        }
    }

    pub(super) fn flow_is_dead(&mut self, flow: FlowKey) {
        if let Some(id) = self.proxies.by_flow.get(&flow) {
            self.close_proxy(*id);
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
    fn close_proxy(&mut self, id: u64) {
        let Some(mut proxy) = self.proxies.all.remove(&id) else {
            return;
        };
        self.proxies.by_flow.remove(&proxy.flow);
        if let Some((_, answer)) = proxy.held.take() {
            answer.server_dead();
        }
        if let Place::Waits(token) = proxy.place
            && let Some(span) = self.machine.spans.get_mut(&proxy.domain)
        {
            span.remove(token);
        }
        // If the association is over, so is the flow.
        let _ = self.node.close(proxy.flow);
    }

    fn close_if_unused(&mut self, id: u64) {
        let Some(proxy) = self.proxies.all.get(&id) else {
            return;
        };
        if !proxy.unused || proxy.held.is_some() {
            return;
        }
        let left = self.port_of(id, |port| (port.senders(), port.depth()));
        match left {
            Some((0, 0)) => self.close_proxy(id),
            // More was sent before the last right went.
            Some((0, _)) => {}
            // It was handed out again meanwhile.
            _ => {
                if let Some(proxy) = self.proxies.all.get_mut(&id) {
                    proxy.unused = false;
                }
                self.port_of(id, |port| port.request_no_more_senders());
            }
        }
    }

    /// A request of a program here has ended.
    pub(super) fn ended(&mut self, request: RequestKey, outcome: Outcome<Payload>) {
        let Some(asking) = self.machine.asking.remove(&request) else {
            return;
        };
        let Asking { domain, answer } = asking;
        match outcome {
            Outcome::Answered(node::Answer::Reply(reply)) => {
                match self.machine.message(domain, reply) {
                    // A client that is gone needs none.
                    Some(message) => drop(answer.reply(message)),
                    None => answer.dropped(),
                }
            }
            Outcome::PortDead | Outcome::Answered(node::Answer::ServerDead) => answer.server_dead(),
            Outcome::NodeLost => answer.node_lost(&self.machine.name_of(request.peer)),
            // There is no memory for the answer, or there is none.
            _ => answer.dropped(),
        }
        // Another one may be made.
        let all = self.proxies.all.iter();
        let its = all.filter(|(_, proxy)| {
            let is_same = proxy.flow.peer == request.peer && proxy.domain == domain;
            is_same && proxy.held.is_some()
        });
        let its = its.map(|(id, _)| *id).next();
        if let Some(id) = its {
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
