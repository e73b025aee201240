//! Rights that have come with messages of peers: what they are here, before the message is in its
//! port, and what is to be done for them once it is.

use std::collections::BTreeMap;

use portolan::proxy::{KnownPort, ProxyPort};
use portolan::{PortOptions, Right};
use portolan_abi::limits::{MAX_SLOTS, MIN_SLOTS};
use portolan_abi::node::{NodeId, PORT_SECRET, PortId};
use portolan_proto::node::{DomainKey, Given, Leads, RequestKey};

use super::machine::Machine;

/// Rights of one giver that are being borrowed, or are send-once rights, at the most: further ones come
/// as dead names.
const MOST_OF_GIVER: usize = 4096;
/// What the proxy of a port that has come without a name is called.
pub(super) const NAMELESS: &str = "given";

/// A port of another node, as a domain knows it.
type Foreign = (DomainKey, PortId, [u8; PORT_SECRET]);

/// A right that has come.
#[derive(Debug)]
pub(super) enum Arrival {
    /// A port is to be borrowed; its proxy is there.
    New(DomainKey, Given, Box<ProxyPort>),
    /// The proxy of the port is there, by this number of its domain.
    Again(DomainKey, Given, u64),
    /// A send-once right on this port is used by answering the request.
    Once(DomainKey, RequestKey, Box<ProxyPort>),
    /// The right to receive at this port, whose home is here once it is taken.
    Receive(DomainKey, Given, KnownPort),
    /// It has come home, or is dead: its giver need not keep it.
    Settled(RequestKey),
}

/// What has come, and the ports of other nodes that have proxies.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    waiting: Vec<Arrival>,
    foreign: BTreeMap<Foreign, KnownPort>,
    /// Those of each giver that are not settled.
    of_giver: BTreeMap<NodeId, usize>,
}

impl Arrivals {
    /// The message that they came with is in its port.
    pub(super) fn commit(&mut self, arriving: Vec<Arrival>) {
        for arrival in &arriving {
            match arrival {
                Arrival::New(domain, given, port) => {
                    let reference = &given.reference;
                    let known = KnownPort::of(&port.make_send());
                    let foreign = (*domain, reference.port, reference.secret);
                    self.foreign.insert(foreign, known);
                    *self.of_giver.entry(given.request.peer).or_default() += 1;
                }
                Arrival::Once(_, request, _) => {
                    *self.of_giver.entry(request.peer).or_default() += 1;
                }
                Arrival::Again(..) | Arrival::Receive(..) | Arrival::Settled(_) => {}
            }
        }
        self.waiting.extend(arriving);
    }

    pub(super) fn take(&mut self) -> Vec<Arrival> {
        std::mem::take(&mut self.waiting)
    }

    /// A right of this giver is not settled yet.
    pub(super) fn unsettled(&mut self, giver: NodeId) {
        *self.of_giver.entry(giver).or_default() += 1;
    }

    /// A right of this giver is borrowed, dead, or used.
    pub(super) fn settled(&mut self, giver: NodeId) {
        if let Some(count) = self.of_giver.get_mut(&giver) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.of_giver.remove(&giver);
            }
        }
    }

    /// A port of another node has a proxy from now on.
    pub(super) fn has_proxy(
        &mut self,
        domain: DomainKey,
        port: PortId,
        secret: [u8; PORT_SECRET],
        known: KnownPort,
    ) {
        self.foreign.insert((domain, port, secret), known);
    }

    /// It has none any more, if it was this one.
    pub(super) fn has_none(
        &mut self,
        domain: DomainKey,
        port: PortId,
        secret: [u8; PORT_SECRET],
        number: u64,
    ) {
        let foreign = (domain, port, secret);
        let there = self.foreign.get(&foreign);
        if there.is_some_and(|known| known.number() == number) {
            self.foreign.remove(&foreign);
        }
    }
}

impl Machine {
    /// The rights that have come with a message to this domain, and what is to be done for them if
    /// the message finds its place. `None` if the domain has no room for their ports now.
    pub(super) fn rights(
        &mut self,
        domain: DomainKey,
        came: &[Given],
    ) -> Option<(Vec<Right>, Vec<Arrival>)> {
        let (mut rights, mut arriving) = (Vec::new(), Vec::<Arrival>::new());
        for given in came {
            let of_giver = self.arrivals.of_giver.get(&given.request.peer).copied();
            let is_crowd = of_giver.unwrap_or(0) + arriving.len() >= MOST_OF_GIVER;
            let (right, arrival) = match given.leads {
                Leads::Here(port) => self.comes_home(domain, port, given)?,
                Leads::Nowhere => self.dead(domain, given)?,
                Leads::Receive => self.receives(domain, given)?,
                _ if is_crowd => self.dead(domain, given)?,
                Leads::Back => self.once(domain, given)?,
                Leads::There => self.borrowed(domain, given, &arriving)?,
            };
            rights.push(right);
            arriving.push(arrival);
        }
        Some((rights, arriving))
    }

    /// A right on a port of this machine. In another domain that is a proxy as any other.
    fn comes_home(
        &mut self,
        domain: DomainKey,
        port: portolan_proto::node::PortKey,
        given: &Given,
    ) -> Option<(Right, Arrival)> {
        // Who has sent to it from here while it was elsewhere goes on in the same order.
        let reference = &given.reference;
        let foreign = (domain, reference.port, reference.secret);
        let proxy = self.arrivals.foreign.get(&foreign);
        if let Some(right) = proxy.and_then(KnownPort::right) {
            return Some((right.into(), Arrival::Settled(given.request)));
        }
        let lent = self.lent.get(&port).filter(|lent| lent.domain == domain);
        match lent.and_then(|lent| lent.known.right()) {
            Some(right) => Some((right.into(), Arrival::Settled(given.request))),
            None => self.dead(domain, given),
        }
    }

    /// The right to receive at a port of its own, which is empty.
    fn receives(&self, domain: DomainKey, given: &Given) -> Option<(Right, Arrival)> {
        let slots = usize::try_from(given.reference.slots).unwrap_or(MAX_SLOTS);
        let mut options = PortOptions::unnamed().queue(slots.clamp(MIN_SLOTS, MAX_SLOTS) - 1);
        if given.reference.synchronous {
            options = options.synchronous();
        }
        let port = self.spans.get(&domain)?.domain.bind(options).ok()?;
        let arrival = Arrival::Receive(domain, *given, KnownPort::at(&port));
        Some((port.into(), arrival))
    }

    /// A dead name.
    fn dead(&self, domain: DomainKey, given: &Given) -> Option<(Right, Arrival)> {
        let span = self.spans.get(&domain)?;
        let port = span.domain.bind(PortOptions::unnamed().queue(1)).ok()?;
        let right = match given.leads {
            Leads::Back => port.make_send_once().into(),
            _ => port.make_send().into(),
        };
        Some((right, Arrival::Settled(given.request)))
    }

    /// A send-once right on a port of its own.
    fn once(&self, domain: DomainKey, given: &Given) -> Option<(Right, Arrival)> {
        let node = self.name_of(given.request.peer);
        let options = PortOptions::unnamed().queue(1);
        let port = self.spans.get(&domain)?.bind("send-once", &node, options)?;
        let right = port.make_send_once().into();
        let arrival = Arrival::Once(domain, given.request, Box::new(port));
        Some((right, arrival))
    }

    /// A right on the proxy of the port: the one of before, if it has one.
    fn borrowed(
        &self,
        domain: DomainKey,
        given: &Given,
        arriving: &[Arrival],
    ) -> Option<(Right, Arrival)> {
        let reference = &given.reference;
        let is_it = |other: &Given| {
            let other = &other.reference;
            other.port == reference.port && other.secret == reference.secret
        };
        let same = arriving.iter().find_map(|arrival| match arrival {
            Arrival::New(_, other, port) if is_it(other) => Some(port),
            _ => None,
        });
        if let Some(port) = same {
            let right = port.make_send();
            let number = KnownPort::of(&right).number();
            return Some((right.into(), Arrival::Again(domain, *given, number)));
        }
        let foreign = (domain, reference.port, reference.secret);
        if let Some(known) = self.arrivals.foreign.get(&foreign)
            && let Some(right) = known.right()
        {
            let arrival = Arrival::Again(domain, *given, known.number());
            return Some((right.into(), arrival));
        }
        let mut options = PortOptions::unnamed();
        if reference.synchronous {
            options = options.synchronous();
        }
        let node = self.name_of(reference.home);
        let port = self.spans.get(&domain)?.bind(NAMELESS, &node, options)?;
        let right = port.make_send().into();
        port.request_no_more_senders();
        let arrival = Arrival::New(domain, *given, Box::new(port));
        Some((right, arrival))
    }
}
