//! Nodes and time: what happens next, and what each node tells.

use crate::chance::Chance;
use crate::home::{Ledger, Machine, Payload, Queue, Taken};
use crate::moves::Moves;
use crate::oracle::{Finding, Oracle};
use crate::rights::{Rights, port_settings};
use crate::wires::Wire;
use crate::{Plan, Report};
use portolan_abi::node::{Lent, NodeId};
use portolan_proto::Time;
use portolan_proto::node::{
    ConnectionId, DomainKey, Event, FlowKey, Node, Over, PortKey, Settings,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

/// The domain of all ports: one is enough for each node.
pub(crate) const DOMAIN: DomainKey = DomainKey(1);
/// Connections of the hostile node have numbers from here on.
pub(crate) const HOSTILE: u64 = 1 << 40;

/// What happens.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Happening {
    /// The first item of a stream arrives: wire, direction, bulk.
    Arrive(usize, usize, bool),
    /// There is room on a wire for an end to write.
    Pump(usize, usize),
    /// One end of a wire learns that the other one is gone.
    Gone(usize, usize),
    Timer(usize),
    /// The programs of a node do something.
    Act(usize),
    /// A node opens a connection to another one.
    Dial(usize, usize),
    /// A node that stood still goes on.
    Wake(usize),
    /// A fault.
    Fault,
}

/// A flow of a node's programs to a port of another node.
#[derive(Debug)]
pub(crate) struct AppFlow {
    pub(crate) home: usize,
    pub(crate) port: PortKey,
    pub(crate) key: Option<FlowKey>,
    pub(crate) lent: Option<Lent>,
    pub(crate) instance: u64,
    pub(crate) is_full: bool,
    /// Messages that are still to be sent.
    pub(crate) left: u64,
}

/// A node, its machine and its programs.
pub(crate) struct SimNode {
    pub(crate) id: NodeId,
    pub(crate) incarnation: u64,
    pub(crate) node: Node<Payload>,
    pub(crate) machine: Machine,
    pub(crate) flows: Vec<AppFlow>,
    pub(crate) neighbours: BTreeSet<usize>,
    pub(crate) taken: Vec<Taken>,
    pub(crate) rights: Rights,
    pub(crate) moves: Moves,
    pub(crate) stalled: Time,
    /// What it was to do meanwhile.
    pub(crate) parked: Vec<Happening>,
    /// Receives seldom.
    pub(crate) slow: bool,
    pub(crate) timer: Option<Time>,
    /// The wires whose ends it has, by peer.
    pub(crate) wires: BTreeSet<usize>,
}

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) now: Time,
    pub(crate) step: u64,
    entered: u64,
    agenda: BTreeMap<(Time, u64), Happening>,
    pub(crate) nodes: Vec<SimNode>,
    pub(crate) wires: Vec<Wire>,
    pub(crate) by_id: BTreeMap<NodeId, usize>,
    pub(crate) oracle: Rc<RefCell<Oracle>>,
    pub(crate) chance: Chance,
    /// Of all that happened: two runs of one plan have the same.
    digest: u64,
    pub(crate) is_healed: bool,
    /// The hostile node's connection was closed.
    pub(crate) hostile_closed: bool,
    pub(crate) report: Report,
}

impl World {
    pub(crate) fn new(plan: Plan) -> Self {
        let oracle = Rc::new(RefCell::new(Oracle::default()));
        let mut world = Self {
            plan,
            now: Time(1),
            step: 0,
            entered: 0,
            agenda: BTreeMap::new(),
            nodes: Vec::new(),
            wires: Vec::new(),
            by_id: BTreeMap::new(),
            oracle,
            chance: Chance::new(plan.seed),
            digest: 0xcbf2_9ce4_8422_2325,
            is_healed: false,
            hostile_closed: false,
            report: Report::default(),
        };
        for index in 0..plan.nodes {
            let node = world.new_node(index);
            world.by_id.insert(node.id, index);
            world.nodes.push(node);
        }
        for index in 0..plan.nodes {
            for _ in 0..plan.flows {
                world.new_flow(index);
            }
        }
        if plan.moves > 0 {
            world.all_are_neighbours();
        }
        for index in 0..plan.nodes {
            let at = world.chance.below(20_000_000);
            world.at(at, Happening::Act(index));
            for peer in world.nodes[index].neighbours.clone() {
                let at = world.chance.below(30_000_000);
                world.at(at, Happening::Dial(index, peer));
            }
        }
        if plan.faults_per_second > 0 {
            world.at(50_000_000, Happening::Fault);
        }
        world
    }

    fn new_node(&mut self, index: usize) -> SimNode {
        let id = node_id(index as u64);
        let ledger = Rc::new(Ledger::default());
        let mut queues = BTreeMap::new();
        for port in 0..self.plan.ports {
            let queue = Queue {
                slots: 1 << self.chance.between(2, 5),
                // The first one takes requests.
                synchronous: port % 2 == 1,
                messages: VecDeque::new(),
            };
            queues.insert(PortKey(port), queue);
        }
        let slow = self.chance.happens(200_000);
        let node = SimNode {
            id,
            incarnation: 0,
            node: Node::new(Settings::new(id, 1, [7; 16])),
            machine: Machine {
                ledger,
                queues,
                lent: BTreeMap::new(),
                hostile: BTreeSet::new(),
                oracle: Rc::clone(&self.oracle),
                memory: 256 << 20,
                now: self.now,
                arrived: Vec::new(),
                moves: self.plan.moves > 0,
            },
            flows: Vec::new(),
            neighbours: BTreeSet::new(),
            taken: Vec::new(),
            rights: Rights::default(),
            moves: Moves::default(),
            stalled: Time::ZERO,
            parked: Vec::new(),
            slow,
            timer: None,
            wires: BTreeSet::new(),
        };
        self.started(node)
    }

    /// A node starts, for the first time or again.
    pub(crate) fn started(&self, mut it: SimNode) -> SimNode {
        it.incarnation += 1;
        if self.plan.moves > 0 {
            it.forgets_ports();
        }
        let mut settings = Settings::new(it.id, it.incarnation, [7; 16]);
        settings.window_at_first = self.plan.window;
        settings.window_at_most = 4 * self.plan.window;
        settings.moves = true;
        it.node = Node::new(settings);
        if let Some(fault) = self.plan.fault {
            it.node.plant(fault);
        }
        it.machine.ledger = Rc::new(Ledger::default());
        it.machine.lent.clear();
        it.taken.clear();
        it.timer = None;
        it.node.set_budget(DOMAIN, self.plan.budget);
        for (port, queue) in &mut it.machine.queues {
            queue.messages.clear();
            let settings = port_settings(it.id, it.incarnation, *port, queue);
            it.node.add_port(*port, settings);
        }
        it.machine.arrived.clear();
        if self.plan.moves > 0 {
            self.starts_with_ports(&mut it);
        } else if self.plan.rights > 0 {
            it.add_right_ports();
        }
        for flow in &mut it.flows {
            (flow.key, flow.lent, flow.is_full) = (None, None, false);
        }
        it
    }

    fn new_flow(&mut self, index: usize) {
        let nodes = self.plan.nodes as u64;
        let home = match self.plan.homes {
            0 => self.chance.below(nodes),
            // Few homes, which many flows lead to.
            homes => self.chance.below(homes),
        };
        let home = usize::try_from(home).unwrap_or(0);
        if home == index {
            return;
        }
        let port = PortKey(self.chance.below(self.plan.ports));
        self.nodes[index].neighbours.insert(home);
        self.nodes[home].neighbours.insert(index);
        let left = self.plan.messages;
        self.nodes[index].flows.push(AppFlow {
            home,
            port,
            key: None,
            lent: None,
            instance: 0,
            is_full: false,
            left,
        });
    }

    pub(crate) fn at(&mut self, after: u64, what: Happening) {
        self.entered += 1;
        let at = Time(self.now.0 + after);
        self.agenda.insert((at, self.entered), what);
    }

    /// Does the next thing; the time of it, or `None` if nothing is left.
    pub(crate) fn step(&mut self) -> Result<Option<Time>, Finding> {
        let Some(((at, _), what)) = self.agenda.pop_first() else {
            return Ok(None);
        };
        self.now = at;
        let node = match what {
            Happening::Arrive(wire, direction, _) => Some(self.wires[wire].ends[1 - direction]),
            Happening::Pump(wire, end) | Happening::Gone(wire, end) => {
                Some(self.wires[wire].ends[end])
            }
            Happening::Timer(node) | Happening::Act(node) | Happening::Dial(node, _) => Some(node),
            Happening::Fault | Happening::Wake(_) => None,
        };
        if let Some(node) = node
            && self.nodes[node].stalled > at
        {
            self.nodes[node].parked.push(what);
            return Ok(Some(at));
        }
        self.step += 1;
        if let Some((victim, at)) = self.plan.kill
            && at == self.step
        {
            self.restart(victim);
            self.settle(victim);
        }
        let code = match what {
            Happening::Arrive(a, b, c) => 1 + 8 * (a as u64 * 4 + b as u64 * 2 + u64::from(c)),
            Happening::Pump(a, b) => 2 + 8 * (a as u64 * 2 + b as u64),
            Happening::Gone(a, b) => 3 + 8 * (a as u64 * 2 + b as u64),
            Happening::Timer(a) => 4 + 8 * a as u64,
            Happening::Act(a) => 5 + 8 * a as u64,
            Happening::Dial(a, b) => 6 + 8 * ((a as u64) << 20 | b as u64),
            Happening::Fault => 7,
            Happening::Wake(a) => 8 * a as u64,
        };
        self.digest = (self.digest ^ code ^ at.0).wrapping_mul(0x0100_0000_01b3);
        let before = node.map(|node| self.waiting(node));
        self.happen(what);
        if let Some(node) = node {
            self.settle(node);
            self.check_step(node, &before.unwrap_or_default());
        }
        if self.step.is_multiple_of(1000) {
            self.check_all();
        }
        self.judge()?;
        Ok(Some(at))
    }

    /// The finding, if there is one.
    pub(crate) fn judge(&mut self) -> Result<(), Finding> {
        let finding = self.oracle.borrow_mut().finding.take();
        match finding {
            None => Ok(()),
            Some((invariant, what)) => Err(Finding {
                invariant,
                what,
                step: self.step,
                replay: self.plan.replay(),
            }),
        }
    }

    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Arrive(wire, direction, bulk) => self.arrive(wire, direction, bulk),
            Happening::Pump(wire, end) => {
                self.wires[wire].directions[end].pumping = false;
                self.pump(wire, end);
            }
            Happening::Gone(wire, end) => self.gone(wire, end),
            Happening::Timer(node) => {
                let it = &mut self.nodes[node];
                if it.timer == Some(self.now) {
                    it.timer = None;
                    it.node.timeout(self.now);
                }
            }
            Happening::Act(node) => self.act(node),
            Happening::Dial(from, to) => self.dial(from, to),
            Happening::Fault => self.fault(),
            Happening::Wake(node) => self.wake(node),
        }
    }

    /// Handles what a node tells, and has it write what it has to say.
    pub(crate) fn settle(&mut self, index: usize) {
        self.handle(index);
        for wire in self.nodes[index].wires.clone() {
            let end = usize::from(self.wires[wire].ends[1] == index);
            self.pump(wire, end);
        }
        self.handle(index);
        let due = self.nodes[index].node.next_timeout();
        if let Some(due) = due {
            let due = Time(due.0.max(self.now.0 + 1));
            let timer = self.nodes[index].timer;
            if timer.is_none_or(|at| due < at || at <= self.now) {
                self.nodes[index].timer = Some(due);
                let after = due.0 - self.now.0;
                self.at(after, Happening::Timer(index));
            }
        }
    }

    fn handle(&mut self, index: usize) {
        for (number, given) in std::mem::take(&mut self.nodes[index].machine.arrived) {
            self.accept(index, number, &given);
        }
        while let Some(event) = self.nodes[index].node.poll_event() {
            self.event(index, event);
        }
        self.look_at_senders(index);
        self.look_at_homes(index);
    }

    fn event(&mut self, index: usize, event: Event<Payload>) {
        match event {
            Event::Up { .. } => self.report.associations += 1,
            Event::Close { connection, .. } if connection.0 >= HOSTILE => {
                self.nodes[index].node.disconnected(self.now, connection);
                self.hostile_closed = true;
            }
            Event::Close {
                connection,
                violation,
                ..
            } => {
                if let Some(violation) = violation {
                    self.violated(index, connection, violation);
                }
                let wire = usize::try_from(connection.0).unwrap_or(usize::MAX);
                let end = usize::from(self.wires[wire].ends[1] == index);
                self.close(wire, end);
            }
            Event::Over {
                peer, why, flows, ..
            } => {
                self.report.over += 1;
                if let Over::Violation(_) = why {
                    self.report.violations += 1;
                }
                let is_calm = self.plan.faults_per_second == 0
                    && self.plan.cuts_per_million == 0
                    && self.plan.kill.is_none();
                if is_calm && !self.nodes[index].machine.hostile.contains(&peer) {
                    let what = format!("node {index} and {peer:?}, both honest, part: {why}");
                    self.oracle.borrow_mut().found("N12", what);
                }
                self.app_over(index, peer);
                self.rights_over(index, peer);
                self.moves_over(index, peer, &flows);
            }
            other => self.app_event(index, other),
        }
    }

    /// An honest node is not to be accused.
    fn violated(
        &mut self,
        index: usize,
        connection: ConnectionId,
        violation: portolan_proto::node::Violation,
    ) {
        let wire = &self.wires[usize::try_from(connection.0).unwrap_or(usize::MAX)];
        let peer = wire.ends[usize::from(wire.ends[0] == index)];
        let peer = self.nodes[peer].id;
        if !self.nodes[index].machine.hostile.contains(&peer) {
            let what = format!("node {index} accuses {peer:?}: {violation}");
            self.oracle.borrow_mut().found("N12", what);
        }
    }

    /// All faults end: wires are not cut, nodes do not stand still.
    pub(crate) fn heal(&mut self) {
        self.is_healed = true;
        for index in 0..self.nodes.len() {
            self.nodes[index].slow = false;
            let stalled = &mut self.nodes[index].stalled;
            *stalled = (*stalled).min(self.now);
            self.wake(index);
        }
        for wire in 0..self.wires.len() {
            let there = &self.wires[wire];
            let is_cut = there.directions.iter().any(|direction| direction.cut);
            if is_cut {
                for end in 0..2 {
                    let after = self.chance.below(2_000_000);
                    self.at(after, Happening::Gone(wire, end));
                }
            }
        }
    }

    pub(crate) fn stall(&mut self, node: usize, time: Duration) {
        self.report.stalls += 1;
        let until = self.now.after(time);
        self.nodes[node].stalled = self.nodes[node].stalled.max(until);
        let after = self.nodes[node].stalled.0 - self.now.0;
        self.at(after, Happening::Wake(node));
    }

    /// What a node was to do while it stood still happens now, in the same order.
    fn wake(&mut self, node: usize) {
        if self.nodes[node].stalled <= self.now {
            self.nodes[node].timer = None;
            for what in std::mem::take(&mut self.nodes[node].parked) {
                self.at(0, what);
            }
            self.settle(node);
        }
    }
}

/// The id of a node.
pub(crate) fn node_id(index: u64) -> NodeId {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&index.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    id[8..].copy_from_slice(&index.to_be_bytes());
    NodeId(id)
}
