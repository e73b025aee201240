//! Proxies by what is known of them: their ports' numbers, their flows, the rights that they wait for.

use std::collections::VecDeque;
use std::time::Duration;

use portolan::proxy::{KnownPort, ProxyPort};
use portolan_abi::node::{NodeId, PORT_SECRET, PortId};
use portolan_proto::node::{BorrowKey, DomainKey, FlowKey, Gift, Given};

use super::{IDLE, Place, Proxies, Proxy};
use crate::engine::arrivals::NAMELESS;

impl Proxies {
    /// What a right on this port of a domain is, if that is a proxy.
    pub(in crate::engine) fn gift(&self, domain: DomainKey, number: u64) -> Option<Gift> {
        let proxy = self.all.get(self.by_number.get(&(domain, number))?)?;
        match (proxy.flow, proxy.borrow) {
            (Some(flow), _) => Some(Gift::Flow(flow)),
            (None, borrow) => borrow.map(Gift::Borrow),
        }
    }

    /// The borrow that a proxy waits for.
    pub(in crate::engine) fn borrow_of(&self, domain: DomainKey, number: u64) -> Option<BorrowKey> {
        self.all.get(self.by_number.get(&(domain, number))?)?.borrow
    }

    /// A port is borrowed: messages to it wait in its proxy.
    pub(in crate::engine) fn borrowed(
        &mut self,
        domain: DomainKey,
        given: &Given,
        borrow: BorrowKey,
        port: Box<ProxyPort>,
    ) {
        let number = KnownPort::of(&port.make_send()).number();
        let reference = &given.reference;
        let proxy = Proxy {
            domain,
            name: NAMELESS.to_owned(),
            home: reference.home,
            flow: None,
            borrow: Some(borrow),
            giver: Some(given.request.peer),
            port: reference.port,
            secret: reference.secret,
            number,
            synchronous: reference.synchronous,
            place: Place::Parked(port),
            held: None,
            unused: false,
            idle_since: None,
            counted: false,
            sent: 0,
            flushes: VecDeque::new(),
        };
        self.insert(proxy);
        self.by_borrow.insert(borrow, self.last);
    }

    /// Has a proxy more, which is the last then.
    pub(super) fn insert(&mut self, proxy: Proxy) {
        self.last += 1;
        let id = self.last;
        self.by_number.insert((proxy.domain, proxy.number), id);
        self.by_port.insert((proxy.foreign(), id));
        self.by_home.insert((proxy.home, id));
        self.all.insert(id, proxy);
    }

    /// Has one less; what it waits for the caller ends.
    pub(super) fn remove(&mut self, id: u64) -> Option<Proxy> {
        self.set_idle(id, None);
        self.holds_none(id);
        let proxy = self.all.remove(&id)?;
        self.by_number.remove(&(proxy.domain, proxy.number));
        self.by_port.remove(&(proxy.foreign(), id));
        self.by_home.remove(&(proxy.home, id));
        Some(proxy)
    }

    /// The proxy of a port to which this flow leads, if it has one that is of this association, or of
    /// none yet.
    pub(super) fn of_port(
        &self,
        domain: DomainKey,
        port: PortId,
        secret: [u8; PORT_SECRET],
        flow: FlowKey,
    ) -> Option<u64> {
        let foreign = (domain, port, secret);
        let is_now = |its: FlowKey| (its.peer, its.association) == (flow.peer, flow.association);
        let mut its = self.by_port.range((foreign, 0)..=(foreign, u64::MAX));
        let its = its.find(|(_, id)| {
            let proxy = self.all.get(id);
            proxy.is_some_and(|proxy| proxy.flow.is_none_or(is_now))
        });
        its.map(|(_, id)| *id)
    }

    /// A proxy is without senders since then, or is not.
    pub(super) fn set_idle(&mut self, id: u64, since: Option<Duration>) {
        let Some(proxy) = self.all.get_mut(&id) else {
            return;
        };
        if let Some(before) = std::mem::replace(&mut proxy.idle_since, since) {
            self.idle.remove(&(before, id));
        }
        self.idle.extend(since.map(|since| (since, id)));
    }

    /// A proxy has no request any more that is one too many.
    pub(super) fn holds_none(&mut self, id: u64) {
        if let Some(proxy) = self.all.get(&id) {
            self.holding.remove(&(proxy.home, proxy.domain, id));
        }
    }

    /// The proxy of a borrow that has ended.
    pub(in crate::engine) fn take_borrow(&mut self, borrow: BorrowKey) -> Option<u64> {
        let id = self.by_borrow.remove(&borrow)?;
        self.all.get_mut(&id)?.borrow = None;
        Some(id)
    }

    /// Who has given the right, if that was not told before.
    pub(in crate::engine) fn giver(&mut self, id: u64) -> Option<NodeId> {
        self.all.get_mut(&id)?.giver.take()
    }

    /// There is a loan.
    pub(in crate::engine) fn lead_to(&mut self, id: u64, flow: FlowKey) {
        if let Some(proxy) = self.all.get_mut(&id) {
            proxy.flow = Some(flow);
            self.by_flow.insert(flow, id);
        }
    }

    /// The home of a flow's port wants to know when its proxy is unused.
    pub(in crate::engine) fn count_senders(&mut self, flow: FlowKey) -> Option<u64> {
        let id = *self.by_flow.get(&flow)?;
        self.all.get_mut(&id)?.counted = true;
        Some(id)
    }

    /// When a proxy has been without senders for long enough.
    pub(in crate::engine) fn wake_at(&self) -> Option<Duration> {
        self.idle.first().map(|(since, _)| *since + IDLE)
    }
}
