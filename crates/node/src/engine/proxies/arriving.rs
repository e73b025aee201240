//! Messages that give a port away wait until all that was sent to it at its old home, its *backlog*, is in it.
//!
//! ```text
//! old home --backlog--> port <--- programs here
//!                        ^ its receive right: in the message, which waits for the backlog
//! ```
//!
//! Nobody receives at the port meanwhile. If programs here have filled it, its backlog would wait for room, and
//! the message for the backlog, for ever. So a full one gets another entry, with a longer queue. The one of
//! before is a proxy that passes on to it: at once what is in its queue, so that it stays before the rest
//! of the backlog; and what comes to it later once the backlog is in the port, as all proxies do.

use portolan::proxy::{Answer, KnownPort, ProxyPort};
use portolan::{Message, PortOptions, ReceiveRight, Right};
use portolan_abi::limits::MAX_SLOTS;
use portolan_proto::node::{PortKey, PortStay};

use super::super::Engine;
use super::super::arrivals::NAMELESS;
use super::passing::{AGAIN, Back, Here};
use super::{Place, Proxies, Proxy};

impl Engine {
    /// Has a message that gives a port away, whose messages have not all arrived, wait for them; else it is
    /// returned.
    pub(super) fn waits_for_arrival(
        &mut self,
        id: u64,
        message: Message,
        answer: Option<Answer>,
    ) -> Option<(Message, Option<Answer>)> {
        if KnownPort::moved_by(&message).next().is_none() {
            return Some((message, answer));
        }
        let domain = self.proxies.all.get(&id)?.domain;
        let mut ports = self.machine.moved_by(domain, &message).into_iter();
        let is_arriving = |port: &PortKey| self.node.stay(*port) == Some(PortStay::Arriving);
        let Some(port) = ports.find(is_arriving) else {
            return Some((message, answer));
        };
        if let Some(proxy) = self.proxies.all.get_mut(&id) {
            proxy.back.push_front(Back::Whole(message, answer));
        }
        self.proxies.set_waits_for(id, Some(port));
        self.park(id);
        self.make_room(port, id);
        None
    }

    /// A port has arrived: who waits for that goes on.
    pub(in crate::engine) fn has_arrived(&mut self, port: PortKey) {
        let its = self.proxies.awaiting.range((port, 0)..=(port, u64::MAX));
        let its: Vec<u64> = its.map(|(_, id)| *id).collect();
        for id in its {
            self.proxies.set_waits_for(id, None);
            self.unpark(id);
        }
    }

    /// Makes room for the backlogs of ports that messages give away.
    pub(in crate::engine) fn make_room_for_backlogs(&mut self) {
        let all: Vec<(PortKey, u64)> = self.proxies.awaiting.iter().copied().collect();
        for (port, id) in all {
            self.make_room(port, id);
        }
    }

    /// Makes room in a port, if it is full, and its receive right is in this proxy's next message.
    fn make_room(&mut self, port: PortKey, id: u64) {
        let lent = self.machine.lent.get(&port);
        let Some(number) = lent.filter(|it| it.is_full()).map(|it| it.known.number()) else {
            return;
        };
        let next = |proxies: &mut Proxies| proxies.all.get_mut(&id)?.back.pop_front();
        let back = match next(&mut self.proxies) {
            Some(Back::Whole(mut message, answer)) => {
                for right in message.take_rights() {
                    let right = match right {
                        Right::Receive(full) if KnownPort::at(&full).number() == number => {
                            match self.lengthen(port, full) {
                                Ok(longer) => longer.into(),
                                Err(full) => {
                                    // There was no memory for it.
                                    let again = self.machine.now + AGAIN;
                                    self.proxies.set_again(id, Some(again));
                                    (*full).into()
                                }
                            }
                        }
                        other => other,
                    };
                    // As many as it had before.
                    let _ = message.attach(right);
                }
                Back::Whole(message, answer)
            }
            Some(other) => other,
            None => return,
        };
        if let Some(proxy) = self.proxies.all.get_mut(&id) {
            proxy.back.push_front(back);
        }
    }

    /// Another entry for a port, with room for what it has and for its whole backlog.
    fn lengthen(
        &mut self,
        port: PortKey,
        full: ReceiveRight,
    ) -> Result<ReceiveRight, Box<ReceiveRight>> {
        let (Some(lent), Some(settings)) = (
            self.machine.lent.get(&port),
            self.node.port_settings(port).copied(),
        ) else {
            return Err(Box::new(full));
        };
        let (domain, depth) = (lent.domain, full.depth());
        // Its backlog is no longer than its queue at its old home was.
        let slots = depth + lent.slots as usize;
        let wants_senders = lent.known.wants_no_more_senders();
        let mut options = PortOptions::unnamed().queue(slots.min(MAX_SLOTS) - 1);
        if settings.synchronous {
            options = options.synchronous();
        }
        let span = self.machine.spans.get(&domain);
        let Some(Ok(longer)) = span.map(|span| span.domain.bind(options)) else {
            return Err(Box::new(full));
        };
        let number = KnownPort::at(&full).number();
        let proxy = match ProxyPort::new(full, self.node.name()) {
            Ok(proxy) => proxy,
            Err(refused) => return Err(refused.item),
        };
        proxy.request_no_more_senders();
        if wants_senders {
            longer.request_no_more_senders();
        }
        self.machine.has_entry(port, KnownPort::at(&longer), slots);
        // Rights on it that come from now on are on the proxy.
        let known = KnownPort::of(&proxy.make_send());
        let arrivals = &mut self.machine.arrivals;
        let (of, secret) = (settings.id, settings.secret());
        arrivals.has_proxy(domain, of, secret, known);
        let of = (of, secret, settings.synchronous);
        let (own, name) = (self.node.settings().node, NAMELESS.to_owned());
        let place = Place::Parked(Box::new(proxy));
        let id = self
            .proxies
            .insert(Proxy::new(domain, name, own, of, number, place));
        let right = longer.make_send();
        let room = None;
        self.proxies.set_here(id, Some(Here { port, right, room }));
        self.pass_some_on(id, depth);
        self.proxies.set_waits_for(id, Some(port));
        // Senders have the room that was made.
        self.port_of(id, ProxyPort::pause);
        Ok(longer)
    }
}
