//! Requests that are one too many: as many are open at their peer as may be of their domain.
//!
//! ```text
//! taken off ---TooMany---> held ---a place is free, and its flow takes---> open
//!                            \___ its port moves: it is `back` ___ closed: its client is told
//! ```
//!
//! A place becomes free when a request ends, and when it goes to the new home of its port. Programs that
//! stop to wait say nothing: their requests are looked at when another one is held, and from time to time
//! while one is.
//!
//! A free place goes to the request that is held longest. One whose flow takes nothing now is passed over: it
//! asks again when its flow does.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use portolan::proxy::Answer;
use portolan_abi::node::NodeId;
use portolan_proto::node::{self, DomainKey, RequestKey};

use super::super::Engine;
use super::super::machine::Waits;
use super::super::payload::Payload;
use super::{Proxies, Proxy};

/// How often it is looked whether open requests are still wanted, while others are held.
const LOOK: Duration = Duration::from_millis(100);

/// Proxies that hold a request.
#[derive(Debug, Default)]
pub(super) struct Holding {
    /// By the peer, the domain and the turn.
    all: BTreeMap<(NodeId, DomainKey, u64), u64>,
    last_turn: u64,
    /// Peers at which places may be free.
    free: BTreeSet<NodeId>,
    /// When open requests are looked at.
    pub(super) looks_at: Option<Duration>,
}

impl Holding {
    fn at(&self, peer: NodeId) -> impl Iterator<Item = (DomainKey, u64)> {
        let (first, last) = (DomainKey(0), DomainKey(u32::MAX));
        let its = self.all.range((peer, first, 0)..=(peer, last, u64::MAX));
        its.map(|((_, domain, _), id)| (*domain, *id))
    }
}

impl Proxy {
    fn turn_of(&self) -> Option<(NodeId, DomainKey, u64)> {
        Some((self.home, self.domain, self.turn?))
    }
}

impl Proxies {
    /// A proxy holds a request: behind the others, or where it was.
    fn holds(&mut self, id: u64, now: Duration, held: (node::Message<Payload>, Answer)) {
        let Some(proxy) = self.all.get_mut(&id) else {
            return;
        };
        proxy.held = Some(held);
        let holding = &mut self.holding;
        if proxy.turn.is_none() {
            holding.last_turn += 1;
            proxy.turn = Some(holding.last_turn);
        }
        holding.all.extend(proxy.turn_of().map(|turn| (turn, id)));
        holding.looks_at.get_or_insert(now + LOOK);
    }

    /// A proxy has no request any more that is one too many.
    pub(super) fn holds_none(&mut self, id: u64) {
        let Some(proxy) = self.all.get_mut(&id) else {
            return;
        };
        if let Some(turn) = proxy.turn_of() {
            self.holding.all.remove(&turn);
            proxy.turn = None;
        }
        if self.holding.all.is_empty() {
            self.holding.looks_at = None;
        }
    }

    /// A proxy's port has another home: so has what it holds.
    pub(super) fn is_held_at(&mut self, id: u64, home: NodeId) {
        if let Some(proxy) = self.all.get(&id)
            && let Some((before, domain, turn)) = proxy.turn_of()
        {
            self.holding.all.remove(&(before, domain, turn));
            self.holding.all.insert((home, domain, turn), id);
        }
    }

    /// Another request may be made at a peer, perhaps.
    pub(super) fn place_is_free(&mut self, peer: NodeId) {
        if self.holding.at(peer).next().is_some() {
            self.holding.free.insert(peer);
        }
    }

    /// The peers of which that was said.
    pub(super) fn take_free(&mut self) -> BTreeSet<NodeId> {
        std::mem::take(&mut self.holding.free)
    }
}

impl Engine {
    /// A request of a proxy is one too many; whether it is not any more.
    pub(super) fn is_too_many(
        &mut self,
        id: u64,
        message: node::Message<Payload>,
        answer: Answer,
    ) -> bool {
        let now = self.machine.now;
        self.proxies.holds(id, now, (message, answer));
        let Some(proxy) = self.proxies.all.get(&id) else {
            return false;
        };
        if self.abandon(proxy.home, proxy.domain) {
            return true;
        }
        self.park(id);
        false
    }

    /// Makes the request that a proxy has held; whether there may be more.
    pub(super) fn ask_held(&mut self, id: u64, held: (node::Message<Payload>, Answer)) -> bool {
        let goes_on = self.ask_on(id, held.0, held.1);
        let proxy = self.proxies.all.get(&id);
        if proxy.is_some_and(|proxy| proxy.held.is_none()) {
            self.proxies.holds_none(id);
        }
        goes_on
    }

    /// Places may be free at a peer: those go there whose requests are held.
    pub(super) fn fill_places(&mut self, peer: NodeId) {
        let its: Vec<_> = self.proxies.holding.at(peer).collect();
        let mut full = None;
        for (domain, id) in its {
            if full == Some(domain) || !self.waits_for_place(id) {
                continue;
            }
            self.wait_for(id);
            self.drain(id);
            if self.waits_for_place(id) {
                full = Some(domain);
            }
        }
    }

    /// Whether a proxy holds a request for no other reason than that it is one too many.
    fn waits_for_place(&mut self, id: u64) -> bool {
        let Some(proxy) = self.proxies.all.get(&id) else {
            return false;
        };
        let waits = proxy.held.is_some() && proxy.waits_for.is_none() && proxy.here.is_none();
        let flow = proxy.flow.filter(|_| waits);
        flow.is_some_and(|flow| self.node.takes(flow).is_ok())
    }

    /// Ends the requests whose programs have stopped to wait, where others are held.
    pub(in crate::engine) fn look_at_open(&mut self) {
        let now = self.machine.now;
        if self.proxies.holding.looks_at.is_none_or(|at| at > now) {
            return;
        }
        let held = self.proxies.holding.all.keys();
        let full: BTreeSet<_> = held.map(|(peer, domain, _)| (*peer, *domain)).collect();
        for (peer, domain) in full {
            self.abandon(peer, domain);
        }
        self.proxies.holding.looks_at = Some(now + LOOK);
    }

    /// Ends the requests at a peer whose programs have stopped to wait; whether there were some.
    fn abandon(&mut self, peer: NodeId, domain: DomainKey) -> bool {
        let now = self.protocol_time();
        let [first, last] = [0, u64::MAX].map(|number| RequestKey {
            peer,
            association: number,
            request: number,
        });
        let gone = self.machine.asking.range(first..=last);
        let gone = gone.filter(|(_, asking)| {
            let is_unwanted = matches!(&asking.what, Waits::Answer(it) if !it.is_wanted());
            asking.domain == domain && is_unwanted
        });
        let gone: Vec<RequestKey> = gone.map(|(request, _)| *request).collect();
        for request in &gone {
            self.machine.asking.remove(request);
            self.node.abandon(now, *request);
        }
        !gone.is_empty()
    }
}
