//! Receive rights that move: programs give them to programs of other nodes, and send to the ports meanwhile,
//! wherever these are.
//!
//! ```text
//! stream   what one program sends to one port: numbered, judged when the receiver takes it
//! home     a port that is here, with its queue
//! proxy    what stands for a port that is elsewhere; of one that has left, with its queue
//! inbox    a port of each node by which receive rights come
//! ```

mod changes;

use crate::Plan;
use crate::home::{Label, Payload, Queue, is_intact};
use crate::oracle::Instance;
use crate::world::{DOMAIN, SimNode, World};
use portolan_abi::node::{NodeId, PortId};
use portolan_proto::Time;
use portolan_proto::node::{
    Answer, BorrowKey, Delivery, FlowKey, Gift, Given, Message, PortKey, PortSettings, PortStay,
    RequestKey, Unsent,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

/// Ports of each node whose receive rights move: the second one takes requests.
const PORTS: u64 = 2;
/// Their numbers begin here, on all nodes.
const FIRST: u64 = 10_000;
/// The port by which receive rights come.
const INBOX: PortKey = PortKey(0);
/// What stands in the label of a message with a receive right.
const GIVES: u64 = u64::MAX;
/// Messages that wait in a proxy, or in front of a port, at the most.
const WAITING: usize = 6;

/// A message that waits, or is forwarded.
type Item = Delivery<Payload>;

/// How a program reaches a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    None,
    Asked(FlowKey),
    Local(PortKey),
    Proxy(u64),
}

/// What one program sends to one port.
#[derive(Debug)]
struct Stream {
    /// The port's first home, and which of its ports.
    origin: usize,
    which: u64,
    /// The port, as long as that first home runs.
    place: u64,
    instance: u64,
    left: u64,
    /// How often in a row it has found a dead port.
    in_vain: u32,
    route: Route,
}

#[derive(Debug)]
struct Proxy {
    place: u64,
    flow: Option<FlowKey>,
    borrow: Option<BorrowKey>,
    queue: VecDeque<Item>,
    /// So many of them are the backlog.
    backlog: Option<usize>,
    /// The port that has left, whose queue this is.
    of: Option<PortKey>,
    counted: bool,
    /// The port's home has counted it as a sender: not before it has lent the port. One that has found the
    /// port's name where it was has still to get there.
    lent: bool,
    /// Its home was given up, and it is asked where the port is.
    sought: Option<Sought>,
}

/// What was so when a node began to ask where a port is.
#[derive(Debug)]
struct Sought {
    at: Time,
    /// The associations that it had.
    linked: Vec<(NodeId, u64)>,
}

#[derive(Debug, Default)]
pub(crate) struct Moves {
    /// Ports that are here, and what local programs could not put into them yet.
    homes: BTreeMap<PortKey, VecDeque<Item>>,
    /// Those that were closed here.
    closed: BTreeSet<PortKey>,
    /// Since when those are here that have come.
    here_since: BTreeMap<PortKey, Time>,
    streams: Vec<Stream>,
    proxies: BTreeMap<u64, Proxy>,
    last_proxy: u64,
    inboxes: BTreeMap<usize, (FlowKey, bool)>,
    /// Receive rights that are in messages.
    giving: BTreeMap<RequestKey, PortKey>,
    /// Requests that are forwarded, and those of which they are the continuation.
    forwarded: BTreeMap<RequestKey, RequestKey>,
}

fn place_of(index: usize, incarnation: u64, which: u64) -> u64 {
    (incarnation * 100_000 + index as u64) * PORTS + which
}

fn is_synchronous(place: u64) -> bool {
    place % PORTS == 1
}

/// The nodes among which the receive rights of a node move.
fn group(plan: &Plan, index: usize) -> Range<usize> {
    if plan.group == 0 {
        return 0..plan.nodes;
    }
    let first = index - index % plan.group;
    first..plan.nodes.min(first + plan.group)
}

fn key_of(place: u64) -> PortKey {
    PortKey(FIRST + place)
}

impl World {
    /// No node was killed, and none was given up: so nothing may be lost.
    fn is_exact(&self) -> bool {
        self.report.restarts == 0 && self.oracle.borrow().parted.is_empty()
    }

    pub(crate) fn all_are_neighbours(&mut self) {
        for (index, it) in self.nodes.iter_mut().enumerate() {
            it.neighbours = group(&self.plan, index)
                .filter(|other| *other != index)
                .collect();
        }
    }

    /// The ports of a node that has just started.
    pub(crate) fn starts_with_ports(&self, it: &mut SimNode) {
        let index = self.by_id.get(&it.id).copied().unwrap_or(self.nodes.len());
        let mut streams = std::mem::take(&mut it.moves.streams);
        if streams.is_empty() {
            let all = group(&self.plan, index);
            let all = all.flat_map(|origin| (0..PORTS).map(move |k| (origin, k)));
            streams.extend(all.map(|(origin, which)| Stream {
                origin,
                which,
                place: 0,
                instance: 0,
                left: self.plan.messages,
                in_vain: 0,
                route: Route::None,
            }));
        }
        streams.iter_mut().for_each(|it| it.route = Route::None);
        it.moves = Moves {
            streams,
            last_proxy: it.moves.last_proxy,
            ..Moves::default()
        };
        it.rights.has_asked = self.plan.senders;
        for which in 0..PORTS {
            let place = place_of(index, it.incarnation, which);
            let (synchronous, slots) = (is_synchronous(place), 8);
            let settings = PortSettings {
                id: PortId {
                    origin: it.id,
                    serial: place,
                },
                key: [0x5e; 16],
                domain: DOMAIN,
                synchronous,
                slots,
            };
            it.node.add_port(key_of(place), settings);
            if self.plan.senders {
                it.node.want_senders(key_of(place));
            }
            it.add_home(key_of(place), slots);
        }
    }

    pub(crate) fn act_with_moves(&mut self, index: usize) {
        self.take_rights(index);
        self.receive_here(index);
        for stream in 0..self.nodes[index].moves.streams.len() {
            self.find(index, stream);
            for _ in 0..self.plan.burst {
                self.send_by(index, stream);
            }
        }
        let proxies: Vec<u64> = self.nodes[index].moves.proxies.keys().copied().collect();
        for id in proxies {
            self.pump_moving(index, id);
            let lazily = self.chance.happens(300_000);
            self.close_unused(index, id, lazily);
        }
        self.give_rights(index);
    }

    /// Gives receive rights to other nodes.
    fn give_rights(&mut self, index: usize) {
        let ports: Vec<PortKey> = self.nodes[index].moves.homes.keys().copied().collect();
        let others = group(&self.plan, index);
        for peer in others.clone() {
            let home = self.nodes[peer].id;
            let it = &mut self.nodes[index];
            if peer != index
                && !it.moves.inboxes.contains_key(&peer)
                && let Ok(flow) = it.node.resolve(home, "domain", "0")
            {
                it.moves.inboxes.insert(peer, (flow, false));
            }
        }
        for port in ports {
            if self.is_healed || !self.chance.happens(self.plan.moves) {
                continue;
            }
            let peer = usize::try_from(self.chance.below(others.len() as u64));
            let peer = others.start + peer.unwrap_or(0);
            let it = &mut self.nodes[index];
            let Some((flow, true)) = it.moves.inboxes.get(&peer).copied() else {
                continue;
            };
            if it.node.stay(port) != Some(PortStay::Here) || it.node.takes(flow).is_err() {
                continue;
            }
            let gift = Gift::Receive(port);
            let given = it.node.give(flow.peer, flow.association, DOMAIN, gift);
            let given = match given {
                Ok(given) => given,
                Err(why) => {
                    let what = format!("node {index} cannot give {port:?}: {why}");
                    return self.oracle.borrow_mut().found("N12", what);
                }
            };
            let (instance, number) = (GIVES, port.0 - FIRST);
            let mut message = Message::short(&Label { instance, number }.bytes());
            message.rights.push(given);
            it.moves.giving.insert(given.request, port);
            self.report.rights_given += 1;
            if self.chance.happens(50_000) || it.node.send(flow, message).is_err() {
                self.nodes[index].node.abandon(self.now, given.request);
            }
        }
    }

    /// Takes the receive rights that have come.
    fn take_rights(&mut self, index: usize) {
        loop {
            let it = &mut self.nodes[index];
            let Some(inbox) = it.machine.queues.get_mut(&INBOX) else {
                return;
            };
            let message = inbox.messages.pop_front().flatten();
            let free = inbox.free();
            it.node.room(self.now, INBOX, free);
            let Some(message) = message else {
                return;
            };
            let declines = self.chance.happens(100_000);
            for given in &message.message.rights {
                self.report.rights_came += 1;
                let place = Label::read(&message.message.header).map_or(0, |it| it.number);
                if declines || !self.takes(index, place, given) {
                    // The giver may be gone.
                    let node = &mut self.nodes[index].node;
                    let _ = node.answer(given.request, Answer::Dropped);
                }
            }
        }
    }

    fn takes(&mut self, index: usize, place: u64, given: &Given) -> bool {
        let it = &mut self.nodes[index];
        if it.node.take(given, key_of(place), DOMAIN).is_err() {
            return false;
        }
        it.add_home(key_of(place), given.reference.slots);
        it.moves.here_since.insert(key_of(place), self.now);
        true
    }

    /// Programs receive from the ports that are here.
    fn receive_here(&mut self, index: usize) {
        let now = self.now;
        let exact = self.is_exact();
        let ports: Vec<PortKey> = self.nodes[index].moves.homes.keys().copied().collect();
        for port in ports {
            self.fill(index, port);
            let most = self.chance.between(0, 6);
            let later = now.after(Duration::from_nanos(self.chance.below(40_000_000)));
            let it = &mut self.nodes[index];
            let Some(queue) = it.machine.queues.get_mut(&port) else {
                continue;
            };
            for _ in 0..most {
                let Some(delivery) = queue.messages.pop_front().flatten() else {
                    break;
                };
                let Some(label) = Label::read(&delivery.message.header) else {
                    continue;
                };
                let is_intact = is_intact(&delivery.message);
                self.oracle.borrow_mut().takes(label, is_intact, exact);
                if let Some(request) = delivery.request {
                    it.taken.push((later, request, label.content(), port));
                }
            }
            let free = queue.free();
            it.node.room(now, port, free);
            self.fill(index, port);
        }
    }

    /// Puts what waits in front of a port into it.
    fn fill(&mut self, index: usize, port: PortKey) {
        let it = &mut self.nodes[index];
        let Some(waiting) = it.moves.homes.get_mut(&port) else {
            return;
        };
        let promised = it.node.port_view(port).map_or(0, |view| view.0);
        let Some(queue) = it.machine.queues.get_mut(&port) else {
            return;
        };
        let most = queue.slots - queue.slots / 4;
        while let Some(item) = waiting.pop_front() {
            let taken = u32::try_from(queue.messages.len()).unwrap_or(u32::MAX);
            if taken + promised >= most {
                waiting.push_front(item);
                break;
            }
            queue.messages.push_back(Some(item));
        }
        let free = queue.free();
        it.node.room(self.now, port, free);
    }

    /// A program finds the port by its name, at its first home.
    fn find(&mut self, index: usize, stream: usize) {
        let it = &mut self.nodes[index].moves.streams[stream];
        if it.route != Route::None || it.left == 0 {
            return;
        }
        let (origin, which) = (it.origin, it.which);
        let place = place_of(origin, self.nodes[origin].incarnation, which);
        let name = format!("m{which}");
        let home = self.nodes[origin].id;
        let it = &mut self.nodes[index];
        let route = if it.moves.homes.contains_key(&key_of(place)) {
            Route::Local(key_of(place))
        } else if origin == index {
            // It is elsewhere: one that has left has a proxy here.
            let all = it.moves.proxies.iter();
            let mut its = all.filter(|(_, proxy)| proxy.of == Some(key_of(place)));
            match its.next() {
                Some((id, _)) => Route::Proxy(*id),
                None => {
                    it.moves.streams[stream].left = 0;
                    return;
                }
            }
        } else if let Ok(flow) = it.node.resolve(home, "domain", &name) {
            Route::Asked(flow)
        } else {
            return;
        };
        let mut oracle = self.oracle.borrow_mut();
        let it = &mut it.moves.streams[stream];
        (it.route, it.place) = (route, place);
        it.instance = oracle.instances.len() as u64;
        oracle.instances.push(Instance {
            home: origin,
            port: key_of(place),
            sent: 0,
            entered: 0,
        });
    }

    /// A program sends: its message waits in the proxy, or in front of the port.
    fn send_by(&mut self, index: usize, stream: usize) {
        let size = self.chance.below(20);
        let patience = self.chance.between(500_000_000, 8_000_000_000);
        let loses_interest = self.chance.happens(20_000);
        let it = &mut self.nodes[index];
        let there = &it.moves.streams[stream];
        let waiting = match there.route {
            Route::Local(port) => it.moves.homes.get_mut(&port),
            Route::Proxy(id) => it.moves.proxies.get_mut(&id).map(|it| &mut it.queue),
            Route::None | Route::Asked(_) => None,
        };
        let Some(waiting) = waiting else {
            return;
        };
        let there = &mut it.moves.streams[stream];
        if there.left == 0 || loses_interest {
            // The right is dropped; what was sent is not.
            there.route = Route::None;
            return;
        }
        if waiting.len() >= WAITING {
            return;
        }
        let (instance, mut oracle) = (there.instance, self.oracle.borrow_mut());
        let number = oracle.sent_of(instance);
        let label = Label { instance, number };
        let bytes = match size {
            0 => 30_000,
            1..4 => 8,
            _ => 0,
        };
        let message = if bytes == 0 {
            Message::short(&label.bytes())
        } else {
            let payload = Payload::with(&it.machine.ledger, bytes, label.content());
            Message::long(&label.bytes(), &[bytes], payload)
        };
        oracle.sends(instance);
        there.left -= 1;
        there.in_vain = 0;
        let deadline = Some(self.now.after(Duration::from_nanos(patience)));
        waiting.push_back(Delivery {
            port: key_of(there.place),
            from: FlowKey {
                peer: it.id,
                association: 0,
                flow: 0,
            },
            number: 0,
            request: None,
            deadline: deadline.filter(|_| is_synchronous(there.place)),
            message,
        });
    }

    /// Sends what waits in a proxy.
    fn pump_moving(&mut self, index: usize, id: u64) {
        loop {
            let now = self.now;
            let it = &mut self.nodes[index];
            let Some(proxy) = it.moves.proxies.get_mut(&id) else {
                return;
            };
            let Some(flow) = proxy.flow else { return };
            if proxy.backlog == Some(0) {
                proxy.backlog = None;
                let _ = it.node.backlog_ends(flow);
            }
            if it.node.takes(flow).is_err() {
                return;
            }
            let Some(item) = proxy.queue.pop_front() else {
                return;
            };
            if let Some(left) = &mut proxy.backlog {
                *left -= 1;
            }
            if is_synchronous(proxy.place) {
                let copy = item.clone();
                match it.node.request(flow, DOMAIN, item.deadline, item.message) {
                    Ok(key) => match item.request {
                        Some(of) => {
                            it.moves.forwarded.insert(key, of);
                        }
                        None => {
                            let deadline = item.deadline.unwrap_or(now);
                            let mut oracle = self.oracle.borrow_mut();
                            // What is late already ends as soon as the node looks.
                            oracle.open.insert((index, key), deadline.max(now));
                        }
                    },
                    Err(refused) => {
                        // As many requests are open as may be.
                        if !matches!(refused.why, Unsent::TooMany { .. }) {
                            let what = format!("node {index}: {:?}", refused.why);
                            self.oracle.borrow_mut().found("N13", what);
                        }
                        proxy.queue.push_front(copy);
                        if let Some(left) = &mut proxy.backlog {
                            *left += 1;
                        }
                        return;
                    }
                }
            } else if let Err(refused) = it.node.send(flow, item.message) {
                let what = format!("node {index} cannot send: {:?}", refused.why);
                self.oracle.borrow_mut().found("N13", what);
            }
        }
    }

    /// Closes a proxy by which nobody sends any more, and which nobody follows.
    fn close_unused(&mut self, index: usize, id: u64, lazily: bool) {
        let it = &mut self.nodes[index];
        let Some(proxy) = it.moves.proxies.get(&id) else {
            return;
        };
        let uses = |stream: &Stream| stream.route == Route::Proxy(id);
        let of = proxy
            .of
            .filter(|of| it.node.stay(*of) == Some(PortStay::Left));
        let is_followed = of.is_some_and(|port| it.node.flows_to(port) > 0);
        let is_used = it.moves.streams.iter().any(uses) || is_followed;
        if is_used || !proxy.queue.is_empty() || proxy.backlog.is_some() {
            return;
        }
        match (proxy.flow, proxy.borrow) {
            (Some(flow), _) if lazily || proxy.counted => {
                let _ = it.node.close(flow);
            }
            (None, Some(borrow)) if lazily => it.node.unborrow(borrow),
            _ => return,
        }
        it.moves.proxies.remove(&id);
    }
}

impl SimNode {
    /// Ports that came from elsewhere, and those that move, end with the node.
    pub(crate) fn forgets_ports(&mut self) {
        self.machine.queues.retain(|port, _| *port == INBOX);
    }

    /// A port is here from now on.
    fn add_home(&mut self, port: PortKey, slots: u32) {
        let queue = Queue {
            slots,
            synchronous: is_synchronous(port.0 - FIRST),
            messages: VecDeque::new(),
        };
        self.machine.queues.insert(port, queue);
        self.moves.closed.remove(&port);
        self.moves.homes.insert(port, VecDeque::new());
    }
}
