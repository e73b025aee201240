//! Proxies go over to another process: what is known of them, and, by messages in their domains, the
//! receive rights of their ports.

use portolan::Right;
use portolan::proxy::{Answer, KnownPort, ProxyPort};
use portolan_abi::node::{NodeId, PORT_SECRET, PortId};
use portolan_proto::node::{BorrowKey, Coded, DomainKey, FlowKey, PortKey};
use serde::{Deserialize, Serialize};

use super::super::Engine;
use super::super::saved::Came;
use super::passing::Here;
use super::{Place, Proxy};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::engine) struct SavedProxy {
    id: u64,
    pub(in crate::engine) domain: DomainKey,
    name: String,
    home: Coded<NodeId>,
    flow: Option<FlowKey>,
    borrow: Option<BorrowKey>,
    giver: Option<Coded<NodeId>>,
    port: Coded<PortId>,
    secret: [u8; PORT_SECRET],
    number: u64,
    synchronous: bool,
    unused: bool,
    counted: bool,
    sent: u64,
    first: u64,
    here: Option<PortKey>,
    of: Option<PortKey>,
    named: bool,
    flushes: Vec<u64>,
}

impl SavedProxy {
    /// How many rights go with it.
    pub(in crate::engine) fn rights(&self) -> usize {
        1 + self.flushes.len()
    }
}

impl Engine {
    /// Ends proxies that cannot go over: what they stand for is on the move, or they have taken what they
    /// could not pass on. The names of their ports.
    pub(in crate::engine) fn close_unsaved(&mut self) -> Vec<String> {
        let mut said = Vec::new();
        let all = self.proxies.all.iter_mut();
        let held: Vec<u64> = all
            .filter_map(|(id, proxy)| proxy.held.is_some().then_some(*id))
            .collect();
        for id in held {
            self.proxies.holds_none(id);
            let Some(proxy) = self.proxies.all.get_mut(&id) else {
                continue;
            };
            if let Some((message, answer)) = proxy.held.take() {
                said.push(format!("a request to {} is dropped", proxy.name));
                answer.dropped();
                self.take_rights_back(&message.rights);
            }
        }
        let moves = |it: &Proxy| {
            let leads = it.flow.is_some() || it.borrow.is_some() || it.here.is_some();
            let waits = it.waits_for.is_some() || it.backlog.is_some() || it.gone.is_some();
            let is_there = !matches!(it.place, Place::Nowhere);
            waits || !leads || !is_there || !it.back.is_empty() || it.behind_lost.is_some()
        };
        let all = self.proxies.all.iter().filter(|(_, it)| moves(it));
        let all: Vec<(u64, String)> = all.map(|(id, it)| (*id, it.name.clone())).collect();
        for (id, name) in all {
            said.push(format!("rights on {name} end: it is on the move"));
            self.close_proxy(id);
        }
        said
    }

    pub(in crate::engine) fn saved_proxies(&self) -> Vec<SavedProxy> {
        let all = self.proxies.all.iter().map(|(id, it)| SavedProxy {
            id: *id,
            domain: it.domain,
            name: it.name.clone(),
            home: Coded(it.home),
            flow: it.flow,
            borrow: it.borrow,
            giver: it.giver.map(Coded),
            port: Coded(it.port),
            secret: it.secret,
            number: it.number,
            synchronous: it.synchronous,
            unused: it.unused,
            counted: it.counted,
            sent: it.sent,
            first: it.first,
            here: it.here.as_ref().map(|here| here.port),
            of: it.of,
            named: it.named,
            flushes: it.flushes.iter().map(|(of, _)| *of).collect(),
        });
        all.collect()
    }

    pub(in crate::engine) fn last_proxy(&self) -> u64 {
        self.proxies.last
    }

    /// Takes the rights of a proxy out: that to receive at its port, and those to answer who waits until
    /// what was sent has arrived.
    pub(in crate::engine) fn hand_proxy_on(&mut self, saved: &SavedProxy) -> Vec<Option<Right>> {
        let Some(proxy) = self.proxies.all.get_mut(&saved.id) else {
            return std::iter::repeat_with(|| None)
                .take(saved.rights())
                .collect();
        };
        let flushes: Vec<Answer> = proxy.flushes.drain(..).map(|(_, answer)| answer).collect();
        let port = match std::mem::replace(&mut proxy.place, Place::Nowhere) {
            Place::Waits(token) => {
                let span = self.machine.spans.get_mut(&saved.domain);
                span.and_then(|span| span.remove(token))
            }
            Place::Parked(port) => Some(*port),
            Place::Nowhere => None,
        };
        let port = port.map(|port| Right::from(port.hand_on()));
        let flushes = flushes.into_iter();
        let flushes = flushes.map(|answer| Some(Right::from(answer.into_right())));
        std::iter::once(port).chain(flushes).collect()
    }

    /// Has a proxy that another process has had. If its port has not come, it is closed.
    pub(in crate::engine) fn proxy_again(&mut self, saved: SavedProxy, came: &mut Came) {
        let (domain, home) = (saved.domain, saved.home.0);
        let port = came.receive(saved.number);
        let answers = saved.flushes.iter().map(|of| Some((*of, came.answer()?)));
        let flushes = answers.collect::<Vec<_>>().into_iter().flatten().collect();
        let own = home == self.node.settings().node;
        let node = match own {
            true => self.node.name().to_owned(),
            false => self.machine.name_of(home),
        };
        let port = port.and_then(|port| ProxyPort::new(port, &node).ok());
        let known = port.as_ref().map(|port| KnownPort::of(&port.make_send()));
        let place = match port {
            Some(port) => {
                port.request_no_more_senders();
                Place::Parked(Box::new(port))
            }
            None => Place::Nowhere,
        };
        let of = (saved.port.0, saved.secret, saved.synchronous);
        let mut proxy = Proxy::new(domain, saved.name, home, of, saved.number, place);
        (proxy.flow, proxy.borrow) = (saved.flow, saved.borrow);
        proxy.giver = saved.giver.map(|giver| giver.0);
        (proxy.unused, proxy.counted) = (saved.unused, saved.counted);
        (proxy.sent, proxy.first) = (saved.sent, saved.first);
        (proxy.of, proxy.named, proxy.flushes) = (saved.of, saved.named, flushes);
        if let Some(giver) = proxy.giver {
            self.machine.arrivals.unsettled(giver);
        }
        let has_flushes = !proxy.flushes.is_empty();
        // It has the number that it had.
        self.proxies.last = saved.id.saturating_sub(1);
        let id = self.proxies.insert(proxy);
        if let Some(flow) = saved.flow {
            self.proxies.by_flow.insert(flow, id);
        }
        if let Some(borrow) = saved.borrow {
            self.proxies.by_borrow.insert(borrow, id);
        }
        if has_flushes {
            self.proxies.flushing.insert(id);
        }
        let Some(known) = known else {
            return self.close_proxy(id);
        };
        let arrivals = &mut self.machine.arrivals;
        arrivals.has_proxy(domain, saved.port.0, saved.secret, known);
        if let Some(port) = saved.here {
            let lent = self.machine.lent.get(&port);
            let Some(right) = lent.and_then(|lent| lent.known.right()) else {
                return self.close_proxy(id);
            };
            let room = None;
            self.proxies.set_here(id, Some(Here { port, right, room }));
        }
        self.is_at(id, home);
        self.unpark(id);
    }

    pub(in crate::engine) fn has_numbered_proxies(&mut self, last: u64) {
        self.proxies.last = self.proxies.last.max(last);
    }
}
