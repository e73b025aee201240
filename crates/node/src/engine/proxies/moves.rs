//! Ports leave this machine and come to it: their entries become proxies, and proxies find their ports here.
//!
//! ```text
//! gives    right in a message (`Waits::Moves`) ---taken, Left---> the entry is a proxy, with its queue
//!                                              ---not taken-----> the port is closed, as with any message
//!                                                                 that has a receive right and is lost
//! takes    a port of this domain, its right in the message ---> its backlog comes ---Arrived---> others send
//! proxy    ready ---Moved---> parked ---Borrowed---> ready, by another flow
//!                                    ---CameHome---> passes on to the port here
//!       its home is given up, and the port may be elsewhere ---> parked, as after Moved; or dead
//! ```
//!
//! A port that comes to a machine where it has proxies, or was before, has a queue of its own all the same;
//! its proxies there pass on to it. So the receive right that a program gets is like any other, nothing on
//! the local way asks whether the port has been elsewhere, and what comes through a proxy is behind
//! the backlog, because it is passed on only once that is in the port.

use std::time::Instant;

use portolan::ReceiveRight;
use portolan::proxy::{KnownPort, ProxyPort};
use portolan_abi::node::{NodeId, PortId};
use portolan_proto::node::{
    self, BorrowKey, DomainKey, FlowKey, Given, Outcome, PortKey, Returned,
};

use super::super::Engine;
use super::super::arrivals::NAMELESS;
use super::super::machine::Lent;
use super::super::payload::Payload;
use super::passing::Here;
use super::{Place, Proxy};

/// A port whose receive right a peer has taken, until the protocol says how its queue follows.
#[derive(Debug)]
pub(in crate::engine) struct Leaving {
    pub(in crate::engine) domain: DomainKey,
    port: ReceiveRight,
    home: NodeId,
}

/// The number of a proxy without a port: no port has it.
const NO_NUMBER: u64 = u64::MAX;

impl Engine {
    // A receive right goes.

    /// What has become of a receive right in a message to a peer.
    pub(super) fn right_moves(
        &mut self,
        domain: DomainKey,
        port: PortKey,
        right: ReceiveRight,
        home: NodeId,
        outcome: Outcome<Payload>,
    ) {
        if let Outcome::Answered(node::Answer::Reply(reply)) = outcome {
            for given in reply.rights {
                // An honest node says nothing more.
                let _ = self.node.answer(given.request, node::Answer::Dropped);
            }
            let leaving = Leaving {
                domain,
                port: right,
                home,
            };
            self.machine.leaving.insert(port, leaving);
            return;
        }
        // It is lost with its message, or is at a node that was given up: it is not here any more.
        drop(right);
        self.is_gone(port);
    }

    /// A peer has taken the receive right of a port: its entry is a proxy from now on.
    pub(in crate::engine) fn has_left(&mut self, port: PortKey, borrow: BorrowKey) {
        let leaving = self.machine.leaving.remove(&port);
        let settings = self.node.port_settings(port).copied();
        let (
            Some(Leaving {
                domain,
                port: right,
                home,
            }),
            Some(settings),
        ) = (leaving, settings)
        else {
            return self.node.unborrow(borrow);
        };
        self.rights.left += 1;
        self.machine.take_back(port);
        let known = KnownPort::at(&right);
        let (number, name, depth) = (known.number(), right.name(), right.depth());
        let named = name.is_some();
        let name = name.unwrap_or_else(|| NAMELESS.to_owned());
        let Ok(proxy) = ProxyPort::new(right, &self.machine.name_of(home)) else {
            return self.node.unborrow(borrow);
        };
        proxy.request_no_more_senders();
        let arrivals = &mut self.machine.arrivals;
        arrivals.has_proxy(domain, settings.id, settings.secret(), known);
        // Those of an earlier stay here.
        let passing: Vec<u64> = self.passing_to(port);
        for proxy in self.proxies.all.values_mut() {
            proxy.of = proxy.of.filter(|of| *of != port);
        }
        let of = (settings.id, settings.secret(), settings.synchronous);
        let place = Place::Parked(Box::new(proxy));
        let mut proxy = Proxy::new(domain, name, home, of, number, place);
        let is_said = depth == 0 && self.node.has_no_backlog(borrow).is_ok();
        let backlog = (!is_said).then_some(depth);
        (proxy.of, proxy.named, proxy.backlog) = (Some(port), named, backlog);
        proxy.borrow = Some(borrow);
        let id = self.proxies.insert(proxy);
        self.proxies.by_borrow.insert(borrow, id);
        self.is_at(id, home);
        let now = self.protocol_time();
        for id in passing {
            self.wait_no_more(id);
            if self.closes_behind(id) {
                continue;
            }
            let borrow = self.node.borrow_left(now, port);
            let Some(proxy) = self.proxies.all.get_mut(&id) else {
                continue;
            };
            proxy.borrow = borrow;
            self.proxies.set_here(id, None);
            match borrow {
                Some(borrow) => drop(self.proxies.by_borrow.insert(borrow, id)),
                None => self.close_proxy(id),
            }
            self.is_at(id, home);
            self.park(id);
        }
    }

    /// The home of a proxy's port is this node from now on.
    pub(in crate::engine) fn is_at(&mut self, id: u64, home: NodeId) {
        self.proxies.set_home(id, home);
        let own = self.node.settings().node;
        let name = match home == own {
            true => self.node.name().to_owned(),
            false => self.machine.name_of(home),
        };
        let view = self.node.peer_view(home);
        let is_silent = view.is_some_and(|peer| peer.is_unreachable) && home != own;
        self.port_of(id, |port| {
            // What is no name is not told.
            drop(port.set_node(&name));
            if is_silent {
                port.set_unreachable(Instant::now());
            }
        });
    }

    /// Proxies that pass on to a port of this machine.
    fn passing_to(&self, port: PortKey) -> Vec<u64> {
        let its = self.proxies.passing.range((port, 0)..=(port, u64::MAX));
        its.map(|(_, id)| *id).collect()
    }

    /// A port of this machine is gone: so are the proxies that pass on to it.
    pub(in crate::engine) fn close_passing_to(&mut self, port: PortKey) {
        let its = self.passing_to(port);
        its.into_iter().for_each(|id| self.close_proxy(id));
    }

    /// No flow follows a port that has left any more: its proxy may be closed.
    pub(in crate::engine) fn is_followed_no_more(&mut self, port: PortKey) {
        let mut all = self.proxies.all.iter();
        let its = all.find(|(_, proxy)| proxy.of == Some(port));
        if let Some(id) = its.map(|(id, _)| *id) {
            self.close_if_unused(id);
        }
    }

    // A receive right comes.

    /// The receive right of a port of this domain, which was made for it, came with a message of a peer.
    pub(in crate::engine) fn takes(&mut self, domain: DomainKey, given: &Given, known: KnownPort) {
        let port = self.machine.next_port();
        let Ok(port) = self.node.take(given, port, domain) else {
            // Its giver is gone, or it is none. Nobody will send to what the program has.
            let _ = self.node.answer(given.request, node::Answer::Dropped);
            return;
        };
        let lent = Lent::new(domain, NAMELESS, known, given.reference.slots);
        self.machine.keep(port, lent);
        self.rights.arrived += 1;
    }

    /// All that was sent to a port at its old home is in it.
    pub(in crate::engine) fn has_all(&mut self, port: PortKey) {
        if self.node.wants_senders(port)
            && let Some(lent) = self.machine.lent.get_mut(&port)
        {
            // Its receiver has asked there.
            lent.known.request_no_more_senders();
            lent.wants_senders = true;
        }
        self.has_arrived(port);
    }

    // A proxy's port moves.

    /// The port of a flow has another home.
    pub(in crate::engine) fn has_moved(&mut self, flow: FlowKey, borrow: BorrowKey, home: NodeId) {
        // Its requests that were not sent go to the other home.
        self.proxies.place_is_free(flow.peer);
        let Some(id) = self.proxies.by_flow.remove(&flow) else {
            return self.node.unborrow(borrow);
        };
        if let Some(proxy) = self.proxies.all.get_mut(&id) {
            (proxy.flow, proxy.borrow) = (None, Some(borrow));
            proxy.counted = false;
        }
        self.proxies.by_borrow.insert(borrow, id);
        // What is still to be sent goes before what comes by a right that is made meanwhile.
        if !self.node.has_unsent(borrow) && self.closes_behind(id) {
            return;
        }
        self.take_held_back(id);
        self.is_at(id, home);
        self.park(id);
    }

    /// The home of a flow's port was given up, with so many messages, and it is asked where the port is now.
    pub(super) fn is_sought(&mut self, id: u64, gone: NodeId, borrow: BorrowKey, lost: u64) {
        let depth = self.depth_of(id);
        let Some(proxy) = self.proxies.all.get_mut(&id) else {
            return;
        };
        if let Some(flow) = proxy.flow.take() {
            self.proxies.by_flow.remove(&flow);
        }
        (proxy.borrow, proxy.gone) = (Some(borrow), Some(gone));
        proxy.counted = false;
        if lost > 0 {
            // Who waits until all that was sent is there waits in vain, also if it is not known here yet.
            proxy.behind_lost = Some((gone, depth));
            let name = self.machine.name_of(gone);
            let flushes = proxy.flushes.drain(..);
            flushes.for_each(|(_, answer)| answer.node_lost(&name));
            self.lose(id, lost);
        }
        self.proxies.by_borrow.insert(borrow, id);
        self.rights.sought += 1;
        self.take_held_back(id);
        self.park(id);
    }

    /// There is no port any more that a proxy would stand for.
    pub(in crate::engine) fn is_nowhere(&mut self, id: u64) {
        if let Some(gone) = self.proxies.all.get(&id).and_then(|proxy| proxy.gone) {
            self.is_lost_with(id, gone);
        }
        self.close_proxy(id);
    }

    /// The port of a proxy is of this machine: it passes on to that, first what an earlier home did not put
    /// into it.
    pub(in crate::engine) fn came_home(
        &mut self,
        borrow: BorrowKey,
        port: PortKey,
        unsent: Vec<Returned<Payload>>,
    ) {
        let count = unsent.len() as u64;
        let back = unsent.into_iter();
        let back: Vec<_> = back.filter_map(|it| self.comes_back(it)).collect();
        let own = self.node.settings().node;
        let lent = self.machine.lent.get(&port);
        let there = lent.map(|lent| (lent.domain, lent.known.right()));
        let id = match self.proxies.take_borrow(borrow) {
            Some(id) => id,
            // Its proxy is closed: nobody sends any more.
            None if back.is_empty() => return,
            None => {
                let Some((domain, _)) = there else {
                    return;
                };
                let of = self.node.port_settings(port);
                let of = of.map(|it| (it.id, it.secret(), it.synchronous));
                let of = of.unwrap_or((
                    PortId {
                        origin: own,
                        serial: 0,
                    },
                    [0; 16],
                    false,
                ));
                let name = NAMELESS.to_owned();
                let mut stray = Proxy::new(domain, name, own, of, NO_NUMBER, Place::Nowhere);
                stray.sent = count;
                self.proxies.insert(stray)
            }
        };
        let Some(proxy) = self.proxies.all.get_mut(&id) else {
            return;
        };
        for message in back.into_iter().rev() {
            proxy.back.push_front(message);
        }
        proxy.gone = None;
        proxy.sent = proxy.sent.saturating_sub(count);
        proxy.have_arrived(proxy.sent);
        // A proxy of another domain of this machine cannot pass on.
        let right = there.filter(|(domain, _)| *domain == proxy.domain);
        let Some(right) = right.and_then(|(_, right)| right) else {
            return self.close_proxy(id);
        };
        let room = None;
        self.proxies.set_here(id, Some(Here { port, right, room }));
        if let Some(giver) = self.proxies.giver(id) {
            self.machine.arrivals.settled(giver);
        }
        self.is_at(id, own);
        self.unpark(id);
    }

    /// The port that a proxy of this name in a domain stands for, if this node knows where that is.
    pub(in crate::engine) fn left_with_name(
        &self,
        domain: DomainKey,
        number: u64,
    ) -> Option<PortKey> {
        let id = self.proxies.by_number.get(&(domain, number))?;
        let proxy = self.proxies.all.get(id)?;
        self.node.port_of(&proxy.port, &proxy.secret)
    }
}
