//! Rights in messages: programs are given them, send by them, give them on, and drop them; ports are
//! closed, and want to know when no sender is left.
//!
//! What a node does for its programs here is what a daemon does: it keeps a right while its request is
//! open, has one proxy for each port of another node, and closes that when no right leads there.

mod coming;

use crate::home::{Label, Payload, Queue};
use crate::world::{DOMAIN, SimNode, World};
use portolan_abi::node::{DeadReason, NodeId, PORT_SECRET, PortId};
use portolan_proto::Time;
use portolan_proto::node::{
    Answer, BorrowKey, FlowKey, Gift, Given, Message, PortKey, PortSettings, RequestKey, Unsent,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Ports of each node that are found by rights alone: one takes requests.
const PORTS: u64 = 2;
/// Their numbers begin here.
const FIRST: u64 = 1000;
/// A program that has so many rights is given no more of its own.
const MOST: usize = 12;

/// A port of some node, as long as that runs.
pub(crate) type Place = (usize, u64, PortKey);

/// A right, wherever it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Right {
    pub(crate) to: Place,
    /// The node that has it: of one in a message the giver, until it arrives.
    pub(crate) holder: usize,
}

/// What a right leads to, at the node that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    Local(PortKey),
    Proxy(PortId, [u8; PORT_SECRET]),
}

/// What a node keeps for a right that it has given.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Keep {
    Right(u64, Way),
    /// A port that a flow of its programs leads to, which is never closed.
    Flow(u64),
    Once,
}

/// A port here that stands for a port there.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) to: Place,
    since: Time,
    borrow: Option<BorrowKey>,
    pub(crate) flow: Option<FlowKey>,
    synchronous: bool,
    instance: u64,
    /// Rights of programs, and those that are kept.
    pub(crate) rights: u64,
    /// Messages that wait.
    queue: u64,
    counted: bool,
}

/// What the programs of a node have, and what is kept for others.
#[derive(Debug, Default)]
pub(crate) struct Rights {
    /// By the right's number.
    pub(crate) held: BTreeMap<u64, Way>,
    pub(crate) onces: Vec<RequestKey>,
    pub(crate) proxies: BTreeMap<(PortId, [u8; PORT_SECRET]), Proxy>,
    pub(crate) keeps: BTreeMap<RequestKey, Keep>,
    /// Ports here that are found by rights alone.
    pub(crate) ports: BTreeSet<PortKey>,
    last_port: u64,
    /// Those that want to know when no sender is left, those that have one, and those that were told.
    pub(crate) wants: BTreeSet<PortKey>,
    /// One has wanted to.
    pub(crate) has_asked: bool,
    used: BTreeSet<PortKey>,
}

fn key_of(incarnation: u64, port: PortKey) -> [u8; PORT_SECRET] {
    let mut key = [0x5e; PORT_SECRET];
    key[..8].copy_from_slice(&incarnation.to_le_bytes());
    key[8..].copy_from_slice(&port.0.to_le_bytes());
    key
}

/// A port's settings, in this incarnation of its node.
pub(crate) fn port_settings(
    id: NodeId,
    incarnation: u64,
    port: PortKey,
    queue: &Queue,
) -> PortSettings {
    PortSettings {
        id: PortId {
            origin: id,
            serial: port.0,
        },
        key: key_of(incarnation, port),
        domain: DOMAIN,
        synchronous: queue.synchronous,
        slots: queue.slots,
    }
}

impl SimNode {
    /// A port that is found by rights alone.
    fn add_right_port(&mut self, synchronous: bool) {
        self.rights.last_port += 1;
        let port = PortKey(FIRST + self.rights.last_port);
        let queue = Queue {
            slots: 8,
            synchronous,
            messages: VecDeque::new(),
        };
        let settings = port_settings(self.id, self.incarnation, port, &queue);
        self.node.add_port(port, settings);
        self.machine.queues.insert(port, queue);
        self.rights.ports.insert(port);
    }

    /// The ports that are found by rights alone, of a node that has just started.
    pub(crate) fn add_right_ports(&mut self) {
        let last_port = self.rights.last_port;
        for port in std::mem::take(&mut self.rights.ports) {
            self.machine.queues.remove(&port);
        }
        self.rights = Rights {
            last_port,
            ..Rights::default()
        };
        for port in 0..PORTS {
            self.add_right_port(port % 2 == 1);
        }
    }
}

impl World {
    /// What programs do with rights.
    pub(crate) fn act_with_rights(&mut self, index: usize) {
        if self.plan.rights == 0 {
            return;
        }
        if self.plan.senders && !self.is_healed && self.chance.happens(50_000) {
            let ports = &self.nodes[index].rights.ports;
            let chosen = self.chance.below(ports.len() as u64);
            let port = usize::try_from(chosen)
                .ok()
                .and_then(|at| ports.iter().nth(at));
            if let Some(port) = port.copied() {
                let it = &mut self.nodes[index];
                it.rights.wants.insert(port);
                it.rights.has_asked = true;
                it.node.want_senders(port);
            }
        }
        if !self.is_healed && self.chance.happens(5_000) {
            self.close_a_port(index);
        }
        let held: Vec<(u64, Way)> = self.nodes[index]
            .rights
            .held
            .iter()
            .map(|(a, b)| (*a, *b))
            .collect();
        for (right, way) in held {
            let chance = self.chance.below(10);
            match chance {
                0..2 => self.drop_right(index, right),
                _ if self.is_healed && chance < 6 => self.drop_right(index, right),
                2..5 => {
                    if let Way::Proxy(id, secret) = way
                        && let Some(proxy) = self.nodes[index].rights.proxies.get_mut(&(id, secret))
                        && proxy.queue < 4
                        && !self.is_healed
                    {
                        proxy.queue += 1;
                    }
                }
                _ => {}
            }
        }
        let onces = std::mem::take(&mut self.nodes[index].rights.onces);
        for request in onces {
            let answer = match self.chance.below(if self.is_healed { 2 } else { 6 }) {
                0 => Answer::Dropped,
                1 => Answer::Reply(Message::short(&1_u64.to_le_bytes())),
                _ => {
                    self.nodes[index].rights.onces.push(request);
                    continue;
                }
            };
            // Its giver may be gone.
            let _ = self.nodes[index].node.answer(request, answer);
        }
        let proxies: Vec<_> = self.nodes[index].rights.proxies.keys().copied().collect();
        for key in proxies {
            self.pump_proxy(index, key);
            let lazily = self.chance.happens(250_000);
            self.close_if_unused(index, key, lazily);
        }
        self.look_at_senders(index);
    }

    fn close_a_port(&mut self, index: usize) {
        let now = self.now;
        let it = &mut self.nodes[index];
        let Some(port) = it.rights.ports.pop_first() else {
            return;
        };
        let queue = it.machine.queues.remove(&port);
        it.machine.lent.retain(|_, lent| *lent != port);
        it.rights.held.retain(|_, way| *way != Way::Local(port));
        it.rights.wants.remove(&port);
        it.rights.used.remove(&port);
        it.taken.retain(|(.., of)| *of != port);
        let synchronous = queue.as_ref().is_some_and(|queue| queue.synchronous);
        for delivery in queue.into_iter().flat_map(|queue| queue.messages) {
            if let Some(request) = delivery.and_then(|delivery| delivery.request) {
                let _ = it.node.answer(request, Answer::ServerDead);
            }
        }
        it.node.remove_port(now, port, DeadReason::Closed);
        let place = (index, it.incarnation, port);
        it.add_right_port(synchronous);
        let mut oracle = self.oracle.borrow_mut();
        oracle.closed.insert(place);
        oracle.rights.retain(|_, right| right.to != place);
        self.report.ports_closed += 1;
    }

    /// Sends what waits in a proxy.
    fn pump_proxy(&mut self, index: usize, key: (PortId, [u8; PORT_SECRET])) {
        loop {
            let now = self.now;
            let patience = self.chance.between(20_000_000, 3_000_000_000);
            let Some(proxy) = self.nodes[index].rights.proxies.get(&key) else {
                return;
            };
            let (Some(flow), true) = (proxy.flow, proxy.queue > 0) else {
                return;
            };
            let (instance, synchronous) = (proxy.instance, proxy.synchronous);
            if self.nodes[index].node.takes(flow).is_err() {
                return;
            }
            let number = self.oracle.borrow().sent_of(instance);
            let label = Label { instance, number };
            let mut message = Message::short(&label.bytes());
            self.attach(index, flow.peer, flow.association, &mut message);
            let rights = message.rights.clone();
            let it = &mut self.nodes[index];
            let sent = if synchronous {
                let deadline = now.after(Duration::from_nanos(patience));
                let made = it.node.request(flow, DOMAIN, Some(deadline), message);
                made.map(|request| {
                    self.oracle
                        .borrow_mut()
                        .open
                        .insert((index, request), deadline);
                })
            } else {
                it.node.send(flow, message).map(|_| ())
            };
            if sent.is_err() {
                rights
                    .iter()
                    .for_each(|given| it.node.abandon(now, given.request));
                return;
            }
            self.oracle.borrow_mut().sends(instance);
            if let Some(proxy) = self.nodes[index].rights.proxies.get_mut(&key) {
                proxy.queue -= 1;
            }
        }
    }

    /// Gives rights with a message, now and then: their numbers stand behind its header.
    pub(crate) fn attach(
        &mut self,
        index: usize,
        peer: NodeId,
        association: u64,
        message: &mut Message<Payload>,
    ) {
        while !self.is_healed && self.chance.happens(self.plan.rights) {
            let Some((gift, number)) = self.choose(index) else {
                return;
            };
            let it = &mut self.nodes[index];
            let given = match it.node.give(peer, association, DOMAIN, gift) {
                Ok(given) => given,
                Err(Unsent::Dead) => {
                    if let Some(number) = number.filter(|it_is| !it.rights.held.contains_key(it_is))
                    {
                        self.oracle.borrow_mut().rights.remove(&number);
                    }
                    return;
                }
                Err(why) => {
                    let what = format!("node {index} cannot give {gift:?}: {why}");
                    return self.oracle.borrow_mut().found("N12", what);
                }
            };
            let keep = match (number, gift) {
                (Some(number), Gift::Flow(_)) if !it.rights.held.contains_key(&number) => {
                    Keep::Flow(number)
                }
                (Some(number), _) => match it.rights.held.remove(&number) {
                    Some(way) => Keep::Right(number, way),
                    None => return,
                },
                (None, _) => Keep::Once,
            };
            it.rights.keeps.insert(given.request, keep);
            message.header.extend(number.unwrap_or(0).to_le_bytes());
            message.rights.push(given);
            self.report.rights_given += 1;
        }
    }

    /// A right to give: one that a program has, a new one, or a send-once right.
    fn choose(&mut self, index: usize) -> Option<(Gift, Option<u64>)> {
        let kind = self.chance.below(10);
        let at = usize::try_from(self.chance.next() >> 32).unwrap_or(0);
        let it = &self.nodes[index];
        if kind == 0 {
            return Some((Gift::Once, None));
        }
        if kind < 6 && !it.rights.held.is_empty() {
            let (number, way) = it.rights.held.iter().nth(at % it.rights.held.len())?;
            let gift = match way {
                Way::Local(port) => Gift::Port(*port),
                Way::Proxy(id, secret) => {
                    let proxy = it.rights.proxies.get(&(*id, *secret))?;
                    match (proxy.flow, proxy.borrow) {
                        (Some(flow), _) => Gift::Flow(flow),
                        (None, borrow) => Gift::Borrow(borrow?),
                    }
                }
            };
            return Some((gift, Some(*number)));
        }
        if it.rights.held.len() >= MOST {
            return None;
        }
        if kind < 9 {
            let port = *it
                .rights
                .ports
                .iter()
                .nth(at % it.rights.ports.len().max(1))?;
            let to = (index, it.incarnation, port);
            let number = self.oracle.borrow_mut().new_right(to, index);
            let rights = &mut self.nodes[index].rights;
            rights.held.insert(number, Way::Local(port));
            rights.used.insert(port);
            return Some((Gift::Port(port), Some(number)));
        }
        // What a flow of its programs leads to.
        let flows = it.flows.iter().filter(|flow| flow.lent.is_some());
        let flows: Vec<_> = flows
            .filter_map(|flow| Some((flow.home, flow.port, flow.key?)))
            .collect();
        let (home, port, key) = *flows.get(at % flows.len().max(1))?;
        let incarnation = it.node.view(key.peer)?.incarnation;
        let to = (home, incarnation, port);
        let number = self.oracle.borrow_mut().new_right(to, index);
        Some((Gift::Flow(key), Some(number)))
    }

    /// A message whose rights these were is not sent.
    pub(crate) fn not_given(&mut self, index: usize, rights: &[Given]) {
        let now = self.now;
        let node = &mut self.nodes[index].node;
        rights
            .iter()
            .for_each(|given| node.abandon(now, given.request));
    }

    fn drop_right(&mut self, index: usize, number: u64) {
        let way = self.nodes[index].rights.held.remove(&number);
        self.oracle.borrow_mut().rights.remove(&number);
        if let Some(Way::Proxy(id, secret)) = way {
            self.release(index, (id, secret));
        }
    }

    /// A right on a proxy is gone.
    fn release(&mut self, index: usize, key: (PortId, [u8; PORT_SECRET])) {
        if let Some(proxy) = self.nodes[index].rights.proxies.get_mut(&key) {
            proxy.rights -= 1;
            self.close_if_unused(index, key, false);
        }
    }

    /// Closes a proxy to which no right leads: at once if its home wants to know, else at leisure.
    fn close_if_unused(&mut self, index: usize, key: (PortId, [u8; PORT_SECRET]), lazily: bool) {
        let it = &mut self.nodes[index];
        let Some(proxy) = it.rights.proxies.get(&key) else {
            return;
        };
        if proxy.rights == 0
            && proxy.queue == 0
            && (proxy.counted || lazily)
            && let Some(flow) = proxy.flow
        {
            let _ = it.node.close(flow);
            it.rights.proxies.remove(&key);
        }
    }

    /// A request for a right has ended; whether it was one.
    pub(crate) fn kept_no_more(&mut self, index: usize, request: RequestKey) -> bool {
        let Some(keep) = self.nodes[index].rights.keeps.remove(&request) else {
            return false;
        };
        let number = match keep {
            Keep::Right(number, _) | Keep::Flow(number) => number,
            Keep::Once => return true,
        };
        {
            // If it has not arrived, it never will.
            let mut oracle = self.oracle.borrow_mut();
            if oracle
                .rights
                .get(&number)
                .is_some_and(|right| right.holder == index)
            {
                oracle.rights.remove(&number);
            }
        }
        if let Keep::Right(_, Way::Proxy(id, secret)) = keep {
            self.release(index, (id, secret));
        }
        true
    }

    /// Ports here that have lost their last sender: N7.
    pub(crate) fn look_at_senders(&mut self, index: usize) {
        let it = &self.nodes[index];
        let ports: Vec<PortKey> = it.rights.used.iter().copied().collect();
        for port in ports {
            let it = &self.nodes[index];
            let held = it.rights.held.values().any(|way| *way == Way::Local(port));
            let kept =
                |keep: &Keep| matches!(keep, Keep::Right(_, way) if *way == Way::Local(port));
            let is_used = held || it.rights.keeps.values().any(kept) || it.node.flows_to(port) > 0;
            if is_used {
                continue;
            }
            let to = (index, it.incarnation, port);
            let is_told = it.rights.wants.contains(&port);
            self.nodes[index].rights.used.remove(&port);
            self.report.told_unused += u64::from(is_told);
            // Who was given up, or whose giver was, may have one.
            let mut oracle = self.oracle.borrow_mut();
            if oracle.parted.is_empty() && self.report.restarts == 0 {
                let left = oracle.rights.iter().find(|(_, right)| right.to == to);
                if let Some((number, right)) = left {
                    let what =
                        format!("{to:?} is told that it has no sender: {number} is {right:?}");
                    oracle.found("N7", what);
                }
            }
        }
    }

    /// What is left of rights when all is quiet, if anything.
    pub(crate) fn unsettled_rights(&self, index: usize) -> Option<(&'static str, String)> {
        let it = &self.nodes[index];
        let rights = &it.rights;
        let closed = &self.oracle.borrow().closed;
        if let Some(proxy) = rights.proxies.values().find(|it| closed.contains(&it.to)) {
            let what = format!("node {index} was not told that the port is closed: {proxy:?}");
            return Some(("N5", what));
        }
        if let Some((request, keep)) = rights.keeps.first_key_value() {
            return Some((
                "N13",
                format!("node {index} keeps {keep:?} for {request:?}"),
            ));
        }
        let unused = rights.used.iter().find(|port| rights.wants.contains(port));
        let left = |port: &PortKey| {
            let to = (index, it.incarnation, *port);
            self.oracle
                .borrow()
                .rights
                .values()
                .any(|right| right.to == to)
        };
        if let Some(port) = unused.filter(|port| !left(port)) {
            return Some((
                "N7",
                format!("node {index} {port:?} is not told that it has no sender"),
            ));
        }
        let borrowing = it.node.borrowing();
        if borrowing > 0 || !rights.proxies.is_empty() {
            let what = format!("node {index} borrows {borrowing}: {:?}", rights.proxies);
            return Some(("N13", what));
        }
        None
    }
}
