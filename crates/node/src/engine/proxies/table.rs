//! Proxies by what is known of them: their ports' numbers, their flows, the rights that they wait for.

use std::collections::VecDeque;
use std::time::Duration;

use portolan::proxy::{KnownPort, ProxyPort};
use portolan_abi::node::NodeId;
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
        self.last += 1;
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
        self.all.insert(self.last, proxy);
        self.by_borrow.insert(borrow, self.last);
        self.by_number.insert((domain, number), self.last);
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
        let idle = self.all.values().filter_map(|proxy| proxy.idle_since);
        idle.min().map(|since| since + IDLE)
    }
}
