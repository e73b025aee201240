//! Proxies are closed: because no sender is left, or with their ports.

use std::collections::BTreeMap;

use portolan::Deadline;
use portolan::proxy::{Answer, ProxyPort, Taken};
use portolan_abi::node::NodeId;
use portolan_proto::node::{DomainKey, FlowEnd, FlowKey, PortKey, PortStay};

use super::super::Engine;
use super::passing::{Back, Here};
use super::{IDLE, Place, Proxy, SWEEP};

impl Engine {
    /// The association with a peer is over: all rights on its ports are dead, but for those of which it is asked
    /// where they are now. How many messages are lost.
    pub(in crate::engine) fn given_up(
        &mut self,
        peer: NodeId,
        association: u64,
        flows: &[FlowEnd],
    ) -> u64 {
        let lost = |engine: &Self| engine.proxies.lost.get(&peer).copied().unwrap_or(0);
        let before = lost(self);
        let ends: BTreeMap<FlowKey, &FlowEnd> = flows.iter().map(|end| (end.flow, end)).collect();
        for id in self.of_peer(peer) {
            let Some(proxy) = self.proxies.all.get_mut(&id) else {
                continue;
            };
            let Some(flow) = proxy.flow.filter(|flow| flow.association == association) else {
                continue;
            };
            let end = ends.get(&flow);
            proxy.have_arrived(end.map_or(0, |end| proxy.first + end.acknowledged));
            let lost = end.map_or(0, |end| end.lost);
            if let Some(borrow) = end.and_then(|end| end.borrow) {
                self.is_sought(id, peer, borrow, lost);
                continue;
            }
            self.lose(id, lost);
            self.is_lost_with(id, peer);
            self.close_proxy(id);
        }
        lost(self) - before
    }

    /// What programs have sent to a proxy is lost with this node.
    pub(super) fn is_lost_with(&mut self, id: u64, gone: NodeId) {
        let name = self.machine.name_of(gone);
        if let Some(proxy) = self.proxies.all.get_mut(&id) {
            let flushes = proxy.flushes.drain(..);
            flushes.for_each(|(_, answer)| answer.node_lost(&name));
        }
        let queued = self.empty(id, |answer| answer.node_lost(&name));
        self.lose(id, queued);
    }

    /// A port of a peer is dead, and so many messages to it are lost.
    pub(in crate::engine) fn flow_is_dead(&mut self, flow: FlowKey, lost: u64) {
        if let Some(id) = self.proxies.by_flow.get(&flow).copied() {
            if let Some(proxy) = self.proxies.all.get_mut(&id) {
                proxy.have_arrived(proxy.sent.saturating_sub(lost));
            }
            self.lose(id, lost);
            self.close_proxy(id);
        }
    }

    /// Drops what is in the queue of a proxy that takes messages: how many those were. Who waits for
    /// them is told. What is sent meanwhile its close drops.
    fn empty(&mut self, id: u64, tell: impl Fn(Answer)) -> u64 {
        let proxy = self.proxies.all.get(&id);
        if proxy.is_none_or(|proxy| proxy.synchronous) {
            return 0;
        }
        let messages = self.port_of(id, |port| {
            let all = (0..port.depth()).map_while(|_| port.take(Deadline::NOW).ok());
            let counts = all.map(|taken| match taken {
                Taken::Flush(answer) => {
                    tell(answer);
                    0
                }
                taken => u64::from(matches!(taken, Taken::Message(_))),
            });
            counts.sum()
        });
        messages.unwrap_or(0)
    }

    /// Counts what was sent to a proxy and is lost. Of requests their clients are told.
    pub(super) fn lose(&mut self, id: u64, messages: u64) {
        let proxy = self.proxies.all.get(&id);
        if let Some(proxy) = proxy.filter(|proxy| !proxy.synchronous && messages > 0) {
            *self.proxies.lost.entry(proxy.home).or_default() += messages;
        }
    }

    /// Closes the proxies of a domain that is spanned no more.
    pub(in crate::engine) fn close_proxies_of(&mut self, domain: DomainKey) {
        let all = self.proxies.all.iter();
        let its = all.filter(|(_, proxy)| proxy.domain == domain);
        let its: Vec<u64> = its.map(|(id, _)| *id).collect();
        its.into_iter().for_each(|id| self.close_proxy(id));
    }

    /// Closes a proxy: its rights are dead names, and what it has not sent on is dropped.
    pub(in crate::engine) fn close_proxy(&mut self, id: u64) {
        self.wait_no_more(id);
        let queued = self.empty(id, Answer::server_dead);
        let back = self.proxies.all.get(&id).map_or(0, Proxy::waiting_back);
        self.lose(id, queued + back as u64);
        let Some(mut proxy) = self.proxies.remove(id) else {
            return;
        };
        for back in proxy.back.drain(..) {
            if let Back::Whole(_, Some(answer)) | Back::Shared(_, _, Some(answer)) = back {
                answer.server_dead();
            }
        }
        let (domain, number) = (proxy.domain, proxy.number);
        let arrivals = &mut self.machine.arrivals;
        arrivals.has_none(domain, proxy.port, proxy.secret, number);
        if let Some(giver) = proxy.giver {
            arrivals.settled(giver);
        }
        let held = proxy.held.take();
        if let Some((message, _)) = &held {
            self.take_rights_back(&message.rights);
        }
        let held = held.map(|(_, answer)| answer);
        let flushes = proxy.flushes.drain(..).map(|(_, answer)| answer);
        flushes.chain(held).for_each(Answer::server_dead);
        if let Place::Waits(token) = proxy.place
            && let Some(span) = self.machine.spans.get_mut(&proxy.domain)
        {
            span.remove(token);
        }
        if let Some(borrow) = proxy.borrow {
            self.proxies.by_borrow.remove(&borrow);
            self.node.unborrow(borrow);
        }
        if let Some(flow) = proxy.flow {
            self.proxies.by_flow.remove(&flow);
            // If the association is over, so is the flow.
            let _ = self.node.close(flow);
        }
    }

    /// Closes the proxies that have been without senders for long enough.
    pub(in crate::engine) fn close_idle(&mut self) {
        let Some(since) = self.machine.now.checked_sub(IDLE) else {
            return;
        };
        let due: Vec<u64> = self.proxies.idle.until(since).take(SWEEP).collect();
        due.into_iter().for_each(|id| self.close_if_unused(id));
    }

    /// Whether nothing of a proxy has still to go on, as far as is known, and nobody follows its port by it.
    fn is_free(&self, id: u64) -> bool {
        let Some(proxy) = self.proxies.all.get(&id) else {
            return false;
        };
        let has_more = proxy.held.is_some() || !proxy.back.is_empty() || proxy.backlog.is_some();
        let left = |port: &PortKey| self.node.stay(*port) == Some(PortStay::Left);
        let of = proxy.of.filter(left);
        // The flows of others follow, and what comes behind them counts as this one's.
        let is_followed = of.is_some_and(|port| self.node.flows_to(port) > 0);
        proxy.unused && !has_more && !proxy.named && !is_followed
    }

    /// The port of a proxy moves: one to which nobody can send is closed instead of following it. A port that
    /// goes to and fro would have one more each time, and each would follow it.
    pub(super) fn closes_behind(&mut self, id: u64) -> bool {
        let is_empty = |port: &mut ProxyPort| (port.senders(), port.depth()) == (0, 0);
        let closes = self.is_free(id) && self.port_of(id, is_empty) == Some(true);
        if closes {
            self.close_proxy(id);
        }
        closes
    }

    pub(in crate::engine) fn close_if_unused(&mut self, id: u64) {
        let Some(proxy) = self.proxies.all.get_mut(&id) else {
            return;
        };
        // A stray one ends with its messages. One that has a name may get senders at any time.
        let leads = proxy.flow.is_some() || proxy.here.is_some();
        if !leads || !self.is_free(id) {
            return self.proxies.set_idle(id, None);
        }
        let Some(proxy) = self.proxies.all.get(&id) else {
            return;
        };
        let now = self.machine.now;
        let is_late = proxy.idle_since.is_some_and(|since| since + IDLE <= now);
        let is_wanted = |here: &Here| self.machine.is_counted(here.port);
        let closes = proxy.counted || is_late || proxy.here.as_ref().is_some_and(is_wanted);
        let left = self.port_of(id, |port| (port.senders(), port.depth()));
        match left {
            Some((0, 0)) if closes => self.close_proxy(id),
            Some((0, 0)) => {
                let proxy = self.proxies.all.get(&id);
                let since = proxy.and_then(|proxy| proxy.idle_since);
                self.proxies.set_idle(id, Some(since.unwrap_or(now)));
            }
            // More was sent before the last right went.
            Some((0, _)) => self.proxies.set_idle(id, None),
            // It was handed out again meanwhile.
            _ => {
                if let Some(proxy) = self.proxies.all.get_mut(&id) {
                    proxy.unused = false;
                }
                self.proxies.set_idle(id, None);
                self.port_of(id, |port| port.request_no_more_senders());
            }
        }
    }
}
