//! Rights that come: where they lead, and what becomes of their ports.

use super::{Place, Proxy, Way};
use crate::oracle::Instance;
use crate::world::{DOMAIN, World};
use portolan_abi::node::{NodeId, PORT_SECRET, PortId, ResolveFailure};
use portolan_proto::Time;
use portolan_proto::node::{Answer, BorrowKey, FlowKey, Given, Leads, PortKey};

impl World {
    /// A right is here, which stood in a message or in an answer.
    pub(crate) fn accept(&mut self, index: usize, number: u64, given: &Given) {
        let now = self.now;
        if self.nodes[index]
            .machine
            .hostile
            .contains(&given.request.peer)
        {
            let node = &mut self.nodes[index].node;
            if given.leads == Leads::There {
                node.borrow(now, given);
            } else if node
                .take(given, PortKey(1 << 40 | given.request.request), DOMAIN)
                .is_err()
            {
                let _ = node.answer(given.request, Answer::Dropped);
            }
            return;
        }
        self.report.rights_came += 1;
        if given.leads == Leads::Back {
            return self.nodes[index].rights.onces.push(given.request);
        }
        let right = self.oracle.borrow().rights.get(&number).copied();
        let giver = self.by_id.get(&given.request.peer).copied();
        let Some(right) = right else {
            // Its port is closed, or its home is dead: so it is dead, or will be.
            return self.accept_dead(index, given);
        };
        if Some(right.holder) != giver {
            let what = format!("right {number} comes to node {index} from {giver:?}: {right:?}");
            self.oracle.borrow_mut().found("N6", what);
        }
        if let Some(right) = self.oracle.borrow_mut().rights.get_mut(&number) {
            right.holder = index;
        }
        match given.leads {
            Leads::Here(port) => {
                let here = (index, self.nodes[index].incarnation, port);
                if here != right.to {
                    let what = format!("{right:?} leads to {here:?}");
                    self.oracle.borrow_mut().found("N4", what);
                }
                let it = &mut self.nodes[index];
                it.rights.held.insert(number, Way::Local(port));
                let _ = it.node.answer(given.request, Answer::Dropped);
            }
            Leads::Nowhere => {
                self.told_dead(index, right.to, now);
                self.oracle.borrow_mut().rights.remove(&number);
                let _ = self.nodes[index]
                    .node
                    .answer(given.request, Answer::Dropped);
            }
            Leads::There | Leads::Back | Leads::Receive => {
                let key = self.has_proxy(index, right.to, given);
                self.nodes[index]
                    .rights
                    .held
                    .insert(number, Way::Proxy(key.0, key.1));
            }
        }
    }

    /// One that leads nowhere any more is handled as any other.
    fn accept_dead(&mut self, index: usize, given: &Given) {
        let now = self.now;
        let it = &mut self.nodes[index];
        match given.leads {
            Leads::There => {
                let key = (given.reference.port, given.reference.secret);
                if let Some(proxy) = it.rights.proxies.get(&key) {
                    it.node.borrow_too(proxy.borrow, given);
                } else {
                    let borrow = it.node.borrow(now, given);
                    it.node.unborrow(borrow);
                }
            }
            _ => {
                let _ = it.node.answer(given.request, Answer::Dropped);
            }
        }
    }

    fn has_proxy(&mut self, index: usize, to: Place, given: &Given) -> (PortId, [u8; PORT_SECRET]) {
        let now = self.now;
        let reference = &given.reference;
        let key = (reference.port, reference.secret);
        let it = &mut self.nodes[index];
        if let Some(proxy) = it.rights.proxies.get_mut(&key) {
            proxy.rights += 1;
            it.node.borrow_too(proxy.borrow, given);
            return key;
        }
        let borrow = it.node.borrow(now, given);
        let mut oracle = self.oracle.borrow_mut();
        let instance = oracle.instances.len() as u64;
        oracle.instances.push(Instance {
            home: to.0,
            port: to.2,
            sent: 0,
            entered: 0,
        });
        drop(oracle);
        let proxy = Proxy {
            to,
            since: now,
            borrow: Some(borrow),
            flow: None,
            synchronous: reference.synchronous,
            instance,
            rights: 1,
            queue: 0,
            counted: false,
        };
        it.rights.proxies.insert(key, proxy);
        self.neighbours(index, to.0);
        key
    }

    /// Two nodes are connected from now on.
    fn neighbours(&mut self, index: usize, home: usize) {
        let is_new = self.nodes[index].neighbours.insert(home);
        self.nodes[home].neighbours.insert(index);
        if is_new && index != home {
            let after = self.chance.below(30_000_000);
            self.at(after, crate::world::Happening::Dial(index, home));
        }
    }

    /// Whether a right may be told dead at a node: N5.
    fn told_dead(&self, index: usize, to: Place, since: Time) {
        let mut oracle = self.oracle.borrow_mut();
        let (home, incarnation, _) = to;
        let is_gone = self.nodes[home].incarnation != incarnation || oracle.closed.contains(&to);
        let pair = (index.min(home), index.max(home));
        let patience = self.nodes[index].node.settings().dead_after;
        let is_unmet = patience.is_some_and(|after| since.after(after) <= self.now);
        if !is_gone && !is_unmet && !oracle.parted.contains(&pair) {
            let what = format!("a right on {to:?} is told dead on node {index}");
            oracle.found("N5", what);
        }
    }

    /// A proxy's port is dead: so are the rights on it.
    fn proxy_is_dead(&mut self, index: usize, key: (PortId, [u8; PORT_SECRET])) {
        let Some(proxy) = self.nodes[index].rights.proxies.remove(&key) else {
            return;
        };
        self.told_dead(index, proxy.to, proxy.since);
        self.report.rights_dead += 1;
        let way = Way::Proxy(key.0, key.1);
        let mut oracle = self.oracle.borrow_mut();
        self.nodes[index].rights.held.retain(|number, held| {
            let stays = *held != way;
            if !stays {
                oracle.rights.remove(number);
            }
            stays
        });
    }

    /// The end of a borrow.
    pub(crate) fn has_borrowed(
        &mut self,
        index: usize,
        borrow: BorrowKey,
        flow: Result<FlowKey, ResolveFailure>,
    ) {
        let it = &mut self.nodes[index];
        let mut all = it.rights.proxies.iter_mut();
        let Some((key, proxy)) = all.find(|(_, proxy)| proxy.borrow == Some(borrow)) else {
            if let Ok(flow) = flow {
                let _ = it.node.close(flow);
            }
            return;
        };
        let key = *key;
        proxy.borrow = None;
        match flow {
            Ok(flow) => {
                proxy.flow = Some(flow);
                self.report.borrowed += 1;
                self.pump_proxy(index, key);
                self.close_if_unused(index, key, false);
            }
            Err(_) => self.proxy_is_dead(index, key),
        }
    }

    /// A flow has ended, with its port.
    pub(crate) fn right_flow_is_dead(&mut self, index: usize, flow: FlowKey) {
        let all = self.nodes[index].rights.proxies.iter();
        let its = all.filter(|(_, proxy)| proxy.flow == Some(flow));
        let its: Vec<_> = its.map(|(key, _)| *key).collect();
        its.into_iter()
            .for_each(|key| self.proxy_is_dead(index, key));
    }

    /// An association is over.
    pub(crate) fn rights_over(&mut self, index: usize, peer: NodeId) {
        if let Some(home) = self.by_id.get(&peer).copied() {
            let pair = (index.min(home), index.max(home));
            self.oracle.borrow_mut().parted.insert(pair);
        }
        let all = self.nodes[index].rights.proxies.iter();
        let its = all.filter(|(_, proxy)| proxy.flow.is_some_and(|flow| flow.peer == peer));
        let its: Vec<_> = its.map(|(key, _)| *key).collect();
        its.into_iter()
            .for_each(|key| self.proxy_is_dead(index, key));
        self.nodes[index]
            .rights
            .onces
            .retain(|request| request.peer != peer);
    }

    /// A peer wants to know when no right leads to its port.
    pub(crate) fn senders_wanted(&mut self, index: usize, flow: FlowKey) {
        let all = self.nodes[index].rights.proxies.iter_mut();
        let mut its = all.filter(|(_, proxy)| proxy.flow == Some(flow));
        if let Some((key, proxy)) = its.next() {
            proxy.counted = true;
            let key = *key;
            self.close_if_unused(index, key, false);
        }
    }
}
