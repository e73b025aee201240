//! What the programs on the nodes do: they send, receive, ask and answer.

use crate::home::{Label, Payload, rights_of};
use crate::oracle::Instance;
use crate::world::{DOMAIN, Happening, World};
use portolan_abi::node::{NodeId, ResolveFailure};
use portolan_proto::Time;
use portolan_proto::node::{Answer, Event, Message, Outcome, PortKey, RequestKey, Unsent};
use std::time::Duration;

impl World {
    pub(crate) fn act(&mut self, index: usize) {
        if self.plan.moves > 0 {
            self.act_with_moves(index);
        } else {
            self.receive(index);
        }
        self.answer(index);
        for flow in 0..self.nodes[index].flows.len() {
            for _ in 0..self.plan.burst {
                if !self.send(index, flow) {
                    break;
                }
            }
        }
        self.act_with_rights(index);
        let slow = self.nodes[index].slow;
        let (least, most) = if self.is_idle_at(index) {
            (100_000_000, 400_000_000)
        } else if slow {
            (1_000_000, 400_000_000)
        } else {
            (1_000_000, 12_000_000)
        };
        let after = self.chance.between(least, most);
        self.at(after, Happening::Act(index));
    }

    fn receive(&mut self, index: usize) {
        let now = self.now;
        let ports: Vec<PortKey> = self.nodes[index].machine.queues.keys().copied().collect();
        for port in ports {
            let most = self.chance.between(0, 6);
            let later = now.after(Duration::from_nanos(self.chance.below(40_000_000)));
            let it = &mut self.nodes[index];
            let Some(queue) = it.machine.queues.get_mut(&port) else {
                continue;
            };
            for _ in 0..most {
                let Some(message) = queue.messages.pop_front() else {
                    break;
                };
                if let Some((request, label)) = message.and_then(|message| {
                    Some((message.request?, Label::read(&message.message.header)?))
                }) {
                    it.taken.push((later, request, label.content(), port));
                }
            }
            let free = queue.free();
            it.node.room(now, port, free);
        }
    }

    fn answer(&mut self, index: usize) {
        let now = self.now;
        let due: Vec<_> = {
            let taken = &mut self.nodes[index].taken;
            let (due, later) = taken.drain(..).partition(|(at, ..)| *at <= now);
            *taken = later;
            due
        };
        for (_, request, content, _) in due {
            let how = self.chance.below(20);
            let it = &mut self.nodes[index];
            let mut answer = match how {
                0 => Answer::Dropped,
                1 => Answer::ServerDead,
                _ => {
                    let bytes = match how {
                        2 => 100_000,
                        3 => 8,
                        4 => self.plan.window / 2,
                        _ => 0,
                    };
                    let header = content.to_le_bytes();
                    Answer::Reply(if bytes == 0 {
                        Message::short(&header)
                    } else {
                        let payload = Payload::with(&it.machine.ledger, bytes, content);
                        Message::long(&header, &[bytes], payload)
                    })
                }
            };
            if let Answer::Reply(reply) = &mut answer {
                self.attach(index, request.peer, request.association, reply);
            }
            // The client may be gone.
            match self.nodes[index].node.answer(request, answer) {
                Ok(()) => self.oracle.borrow_mut().answered += 1,
                Err(refused) => {
                    if let Answer::Reply(reply) = refused.item {
                        self.not_given(index, &reply.rights);
                    }
                }
            }
        }
    }

    /// Sends one message of a flow; whether another one may be tried.
    fn send(&mut self, index: usize, flow: usize) -> bool {
        let now = self.now;
        let size = self.chance.below(100);
        let patience = self.chance.between(20_000_000, 3_000_000_000);
        let home_id = self.nodes[self.nodes[index].flows[flow].home].id;
        let window = self.plan.window;
        let it = &mut self.nodes[index];
        let there = &mut it.flows[flow];
        if there.left == 0 || there.is_full {
            return false;
        }
        let Some(key) = there.key else {
            if let Ok(key) = it
                .node
                .resolve(home_id, "domain", &there.port.0.to_string())
            {
                there.key = Some(key);
                let mut oracle = self.oracle.borrow_mut();
                there.instance = oracle.instances.len() as u64;
                oracle.instances.push(Instance {
                    home: there.home,
                    port: there.port,
                    sent: 0,
                    entered: 0,
                });
            }
            return false;
        };
        let Some(lent) = there.lent else {
            return false;
        };
        let bytes = match size {
            0..60 => 0,
            60..85 => 8,
            85..90 => 2_000,
            90..96 => 20_000,
            96..98 => 300_000,
            98 => window / 4 - 1000,
            _ => window / 2,
        };
        let label = Label {
            instance: there.instance,
            number: self.oracle.borrow().sent_of(there.instance),
        };
        let mut message = if bytes == 0 {
            Message::short(&label.bytes())
        } else {
            let payload = Payload::with(&it.machine.ledger, bytes, label.content());
            Message::long(&label.bytes(), &[bytes], payload)
        };
        if it.node.takes(key).is_ok() {
            self.attach(index, key.peer, key.association, &mut message);
        }
        let rights = message.rights.clone();
        let it = &mut self.nodes[index];
        let there = &mut it.flows[flow];
        let mut oracle = self.oracle.borrow_mut();
        let sent = if lent.synchronous {
            let deadline = now.after(Duration::from_nanos(patience));
            let made = it.node.request(key, DOMAIN, Some(deadline), message);
            made.map(|request| {
                oracle.open.insert((index, request), deadline);
            })
        } else {
            it.node.send(key, message).map(|_| ())
        };
        let why = sent.map_err(|refused| refused.why);
        if why.is_err() {
            rights
                .iter()
                .for_each(|given| it.node.abandon(now, given.request));
        }
        match why {
            Ok(()) => {
                oracle.sends(there.instance);
                there.left -= 1;
                true
            }
            Err(Unsent::Full) => {
                there.is_full = true;
                false
            }
            Err(Unsent::Dead) => {
                oracle.found(
                    "N13",
                    format!("flow {key:?} of node {index} is dead, unheard"),
                );
                false
            }
            Err(_) => false,
        }
    }

    pub(crate) fn app_over(&mut self, index: usize, peer: NodeId) {
        let it = &mut self.nodes[index];
        it.machine.lent.retain(|key, _| key.peer != peer);
        let Some(home) = self.by_id.get(&peer).copied() else {
            return;
        };
        for flow in it.flows.iter_mut().filter(|flow| flow.home == home) {
            (flow.key, flow.lent, flow.is_full) = (None, None, false);
        }
    }

    pub(crate) fn app_event(&mut self, index: usize, event: Event<Payload>) {
        let Some(event) = self.moves_event(index, event) else {
            return;
        };
        let it = &mut self.nodes[index];
        match event {
            Event::Resolve { flow, name, .. } => {
                let port = name.parse().map(PortKey).ok();
                let port = port.filter(|port| it.machine.queues.contains_key(port));
                if let Some(port) = port {
                    it.machine.lent.insert(flow, port);
                }
                let lent = port.ok_or(ResolveFailure::NoSuchPort);
                if it.node.lend(self.now, flow, lent).is_err() {
                    it.machine.lent.remove(&flow);
                }
            }
            Event::Resolved { flow, lent } => {
                let of = it.flows.iter_mut().filter(|it| it.key == Some(flow));
                of.for_each(|it| it.lent = lent.ok());
            }
            Event::Claim { flow, port } => {
                it.machine.lent.insert(flow, port);
                if it.node.lend(self.now, flow, Ok(port)).is_err() {
                    it.machine.lent.remove(&flow);
                }
            }
            Event::Borrowed { borrow, flow } => self.has_borrowed(index, borrow, flow),
            Event::WantSenders { flow } => self.senders_wanted(index, flow),
            Event::Writable { flow } => {
                let of = it.flows.iter_mut().filter(|it| it.key == Some(flow));
                of.for_each(|it| it.is_full = false);
            }
            Event::Dead { flow, .. } => {
                let of = it.flows.iter_mut().filter(|it| it.key == Some(flow));
                of.for_each(|it| (it.key, it.lent, it.is_full) = (None, None, false));
                self.right_flow_is_dead(index, flow);
            }
            Event::Ended { request, outcome } => {
                if let Outcome::Answered(Answer::Reply(reply)) = &outcome {
                    for (number, given) in rights_of(reply, 8) {
                        self.accept(index, number, &given);
                    }
                }
                if self.kept_no_more(index, request) {
                    return;
                }
                let how = match &outcome {
                    Outcome::Answered(Answer::Reply(reply)) => {
                        let bytes = reply.header.get(..8).and_then(|it| it.try_into().ok());
                        let content = bytes.map_or(0, u64::from_le_bytes);
                        let payload = reply.payload.as_ref();
                        if payload.is_some_and(|payload| payload.content() != content) {
                            let what = format!("the reply to {request:?} has another's payload");
                            self.oracle.borrow_mut().found("N6", what);
                        }
                        "replied"
                    }
                    Outcome::Answered(_) => "dropped",
                    Outcome::TimedOut => "timed out",
                    Outcome::PortDead => "port dead",
                    Outcome::NodeLost => "node lost",
                    _ => "no memory",
                };
                self.oracle.borrow_mut().ends(index, request, how);
            }
            _ => {}
        }
    }

    /// Something breaks.
    pub(crate) fn fault(&mut self) {
        if self.is_healed {
            return;
        }
        let nodes = self.nodes.len() as u64;
        let node = usize::try_from(self.chance.below(nodes)).unwrap_or(0);
        let wires: Vec<usize> = self.nodes[node].wires.iter().copied().collect();
        let choice = usize::try_from(self.chance.below(wires.len().max(1) as u64)).unwrap_or(0);
        let wire = wires.get(choice).copied();
        let direction = usize::from(self.chance.happens(500_000));
        match (self.chance.below(100), wire) {
            (0..50, Some(wire)) => self.cut(wire),
            (50..70, Some(wire)) => self.cut_one_way(wire, direction),
            (70..90, _) => {
                // Mostly short; now and then longer than a peer waits.
                let seconds = match self.chance.below(10) {
                    0 => self.chance.between(31, 60),
                    1..3 => self.chance.between(4, 20),
                    _ => self.chance.between(1, 3),
                };
                self.stall(node, Duration::from_secs(seconds));
            }
            (90.., _) => {
                self.restart(node);
                self.settle(node);
            }
            _ => {}
        }
        let rate = self.plan.faults_per_second * self.plan.nodes as u64;
        let after = 1_000_000_000_000 / rate.max(1);
        let after = self.chance.between(1, 2 * after);
        self.at(after, Happening::Fault);
    }

    /// All that programs wanted to send was sent.
    pub(crate) fn is_idle(&self) -> bool {
        (0..self.nodes.len()).all(|index| self.is_idle_at(index))
    }

    pub(crate) fn is_idle_at(&self, index: usize) -> bool {
        let it = &self.nodes[index];
        let is_empty = it
            .machine
            .queues
            .values()
            .all(|queue| queue.messages.is_empty());
        let has_rights = !it.rights.held.is_empty() || !it.rights.onces.is_empty();
        let is_done = it.taken.is_empty() && !(self.is_healed && has_rights);
        let has_moved = self.plan.moves == 0 || self.moves_are_idle(index);
        is_empty && is_done && has_moved && it.flows.iter().all(|flow| flow.left == 0)
    }

    /// How long a request may be open after its deadline.
    pub(crate) const GRACE: Duration = Duration::from_millis(1);

    pub(crate) fn overdue(&self) -> Option<String> {
        let oracle = self.oracle.borrow();
        let late = |((node, _), deadline): &(&(usize, RequestKey), &Time)| {
            let awake = self.nodes[*node].stalled.max(**deadline);
            awake.after(Self::GRACE) < self.now
        };
        let found = oracle.open.iter().find(late);
        found.map(|((node, request), at)| format!("{request:?} of node {node} was due at {at:?}"))
    }
}
