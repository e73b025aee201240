//! Proxies by what is known of them: their ports' numbers, their flows, the rights that they wait for.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use portolan::proxy::{KnownPort, ProxyPort};
use portolan_abi::node::{NodeId, PORT_SECRET, PortId};
use portolan_proto::node::{BorrowKey, DomainKey, FlowKey, Gift, Given, PortKey};

use super::passing::Here;
use super::{Foreign, IDLE, Place, Proxies, Proxy};
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
            turn: None,
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
            gone: None,
            behind_lost: None,
            flushes: VecDeque::new(),
        }
    }
}

impl Proxies {
    /// Has another one; its number.
    pub(super) fn insert(&mut self, proxy: Proxy) -> u64 {
        self.last += 1;
        let id = self.last;
        self.by_number.insert((proxy.domain, proxy.number), id);
        self.by_port.insert((proxy.foreign(), id));
        self.by_home.insert((proxy.home, id));
        self.all.insert(id, proxy);
        id
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

    /// Has one less; what it waits for the caller ends.
    pub(super) fn remove(&mut self, id: u64) -> Option<Proxy> {
        self.set_idle(id, None);
        self.set_again(id, None);
        self.set_here(id, None);
        self.set_waits_for(id, None);
        self.holds_none(id);
        let proxy = self.all.remove(&id)?;
        // Those without a port have one number.
        let number = (proxy.domain, proxy.number);
        if self.by_number.get(&number) == Some(&id) {
            self.by_number.remove(&number);
        }
        self.by_port.remove(&(proxy.foreign(), id));
        self.by_home.remove(&(proxy.home, id));
        Some(proxy)
    }

    /// The proxy of a port, if it has one whose flow is of now, or that has none yet.
    pub(super) fn of_port(
        &self,
        foreign: Foreign,
        is_now: impl Fn(FlowKey) -> bool,
    ) -> Option<u64> {
        let mut its = self.by_port.range((foreign, 0)..=(foreign, u64::MAX));
        let its = its.find(|(_, id)| {
            let proxy = self.all.get(id);
            proxy.is_some_and(|proxy| proxy.flow.is_none_or(&is_now))
        });
        its.map(|(_, id)| *id)
    }

    /// A proxy is without senders since then, or is not.
    pub(super) fn set_idle(&mut self, id: u64, since: Option<Duration>) {
        if let Some(proxy) = self.all.get_mut(&id) {
            self.idle.set(id, &mut proxy.idle_since, since);
        }
    }

    /// A proxy is tried again then, or is not.
    pub(super) fn set_again(&mut self, id: u64, at: Option<Duration>) {
        if let Some(proxy) = self.all.get_mut(&id) {
            self.again.set(id, &mut proxy.again, at);
        }
    }

    /// A proxy passes on to a port of this machine, or does not.
    pub(super) fn set_here(&mut self, id: u64, here: Option<Here>) {
        let Some(proxy) = self.all.get_mut(&id) else {
            return;
        };
        self.passing.extend(here.as_ref().map(|it| (it.port, id)));
        if let Some(before) = std::mem::replace(&mut proxy.here, here) {
            let goes_on = proxy.here.as_ref().map(|it| it.port) == Some(before.port);
            if !goes_on {
                self.passing.remove(&(before.port, id));
            }
        }
    }

    /// A proxy waits until a port has arrived, or does not.
    pub(super) fn set_waits_for(&mut self, id: u64, port: Option<PortKey>) {
        let Some(proxy) = self.all.get_mut(&id) else {
            return;
        };
        if let Some(before) = std::mem::replace(&mut proxy.waits_for, port) {
            self.awaiting.remove(&(before, id));
        }
        self.awaiting.extend(port.map(|port| (port, id)));
    }

    /// A proxy's port has this home.
    pub(super) fn set_home(&mut self, id: u64, home: NodeId) {
        self.is_held_at(id, home);
        let Some(proxy) = self.all.get_mut(&id) else {
            return;
        };
        let before = std::mem::replace(&mut proxy.home, home);
        self.by_home.remove(&(before, id));
        self.by_home.insert((home, id));
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
            (proxy.flow, proxy.gone) = (Some(flow), None);
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

    /// When a proxy has been without senders for long enough, is tried again, or open requests are looked at.
    pub(in crate::engine) fn wake_at(&self) -> Option<Duration> {
        let idle = self.idle.first().map(|since| since + IDLE);
        let times = [idle, self.again.first(), self.holding.looks_at];
        times.into_iter().flatten().min()
    }
}

/// Proxies by a time that each of them may have, and keeps itself too.
#[derive(Debug, Default)]
pub(super) struct Times(BTreeSet<(Duration, u64)>);

impl Times {
    /// A proxy has another time, or none: it keeps it in `its`.
    fn set(&mut self, id: u64, its: &mut Option<Duration>, time: Option<Duration>) {
        if let Some(before) = std::mem::replace(its, time) {
            self.0.remove(&(before, id));
        }
        self.0.extend(time.map(|time| (time, id)));
    }

    fn first(&self) -> Option<Duration> {
        self.0.first().map(|(time, _)| *time)
    }

    /// Those whose time is not after this one, the earliest first.
    pub(super) fn until(&self, last: Duration) -> impl Iterator<Item = u64> {
        self.0.range(..=(last, u64::MAX)).map(|(_, id)| *id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_has_one_time_and_those_that_are_due_come_in_their_order() {
        let second = Duration::from_secs;
        let (mut times, mut its) = (Times::default(), [None; 4]);
        for (id, time) in [(0, 5), (1, 2), (2, 3), (3, 2), (0, 1), (2, 9)] {
            times.set(id as u64, &mut its[id], Some(second(time)));
        }
        times.set(3, &mut its[3], None);
        let due = |times: &Times, last| times.until(second(last)).collect::<Vec<_>>();
        assert!(due(&times, 0).is_empty());
        assert_eq!(due(&times, 2), [0, 1]);
        assert_eq!(due(&times, 9), [0, 1, 2]);
        assert_eq!(times.first(), Some(second(1)));
        assert_eq!(
            its,
            [Some(second(1)), Some(second(2)), Some(second(9)), None]
        );
    }
}
