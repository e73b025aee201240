//! Proxies by what is known of them: their ports' numbers, their flows, the rights that they wait for.

use std::collections::VecDeque;
use std::time::Duration;

use portolan::proxy::{KnownPort, ProxyPort};
use portolan_abi::node::{NodeId, PORT_SECRET, PortId};
use portolan_proto::node::{BorrowKey, DomainKey, FlowKey, Gift, Given};

use super::{IDLE, Place, Proxies, Proxy};
use crate::engine::arrivals::NAMELESS;

impl Proxy {
    /// One of a port with this id and secret, which takes requests or does not; it leads nowhere yet.
    pub(super) fn new(
        domain: DomainKey,
        name: String,
        home: NodeId,
        (port, secret, synchronous): (PortId, [u8; PORT_SECRET], bool),
        number: u64,
        place: Place,
    ) -> Self {
        Self {
            domain,
            name,
            home,
            flow: None,
            borrow: None,
            giver: None,
            port,
            secret,
            number,
            synchronous,
            place,
            held: None,
            unused: false,
            idle_since: None,
            counted: false,
            sent: 0,
            first: 0,
            here: None,
            back: VecDeque::new(),
            waits_for: None,
            again: None,
            of: None,
            named: false,
            backlog: None,
            behind: 0,
            flushes: VecDeque::new(),
        }
    }
}

impl Proxies {
    /// Has another one; its number.
    pub(super) fn insert(&mut self, proxy: Proxy) -> u64 {
        self.last += 1;
        self.by_number
            .insert((proxy.domain, proxy.number), self.last);
        self.all.insert(self.last, proxy);
        self.last
    }

    /// What a right on this port of a domain is, if that is a proxy.
    pub(in crate::engine) fn gift(&self, domain: DomainKey, number: u64) -> Option<Gift> {
        let proxy = self.all.get(self.by_number.get(&(domain, number))?)?;
        match (&proxy.here, proxy.flow, proxy.borrow) {
            (Some(here), ..) => Some(Gift::Port(here.port)),
            (None, Some(flow), _) => Some(Gift::Flow(flow)),
            (None, None, borrow) => borrow.map(Gift::Borrow),
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
        let of = (reference.port, reference.secret, reference.synchronous);
        let (name, place) = (NAMELESS.to_owned(), Place::Parked(port));
        let mut proxy = Proxy::new(domain, name, reference.home, of, number, place);
        proxy.borrow = Some(borrow);
        proxy.giver = Some(given.request.peer);
        let id = self.insert(proxy);
        self.by_borrow.insert(borrow, id);
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

    /// There is a loan, by a flow that has taken so many messages: those that it has sent to an earlier
    /// home.
    pub(in crate::engine) fn lead_to(&mut self, id: u64, flow: FlowKey, taken: u64) {
        if let Some(proxy) = self.all.get_mut(&id) {
            proxy.flow = Some(flow);
            proxy.first = proxy.sent.saturating_sub(taken);
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
        let idle = idle.map(|since| since + IDLE);
        let again = self.all.values().filter_map(|proxy| proxy.again);
        idle.chain(again).min()
    }
}
