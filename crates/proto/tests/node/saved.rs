//! A node is saved in the middle of traffic, and goes on in another process: nothing is lost, doubled or out of order.

use crate::wire::carry_one;
use portolan_abi::node::{NodeId, PortId};
use portolan_proto::Time;
use portolan_proto::node::{
    Answer, Authenticated, ConnectionId, Damaged, Delivery, Destination, DomainKey, Event, FlowKey,
    Gift, Home, Leads, Message, Node, Outcome, PortKey, PortSettings, RequestKey, SavedNode,
    Settings, Unsaved,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

const DOMAIN: DomainKey = DomainKey(1);
/// Messages, requests, and messages by a right that was given.
const PORTS: [(u64, bool); 3] = [(1, false), (2, true), (3, false)];
const SLOTS: u32 = 8;

/// xorshift64*.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % bound
    }
}

/// A machine: its queues, what its programs have taken, and the requests that they serve.
#[derive(Default)]
struct Machine {
    queues: BTreeMap<PortKey, VecDeque<Delivery<u64>>>,
    taken: BTreeMap<PortKey, Vec<Vec<u8>>>,
    serves: Vec<(RequestKey, Vec<u8>)>,
}

impl Home<u64> for Machine {
    fn allocate(&mut self, _: Destination, lengths: &[u64]) -> Option<u64> {
        Some(lengths.iter().sum())
    }

    fn fill(&mut self, payload: &u64, bytes: &[u8]) {
        assert_eq!(*payload, bytes.len() as u64);
    }

    fn deliver(&mut self, delivery: Delivery<u64>) -> Result<(), Delivery<u64>> {
        let queue = self.queues.entry(delivery.port).or_default();
        if queue.len() >= SLOTS as usize {
            return Err(delivery);
        }
        queue.push_back(delivery);
        Ok(())
    }
}

struct Pair {
    chance: Chance,
    now: Time,
    nodes: [Node<u64>; 2],
    machines: [Machine; 2],
    wire: ConnectionId,
    /// By whom and to which port.
    flows: BTreeMap<(usize, u64), FlowKey>,
    borrows: BTreeSet<usize>,
    sent: BTreeMap<(usize, u64), u64>,
    open: [BTreeMap<RequestKey, Vec<u8>>; 2],
    answered: u64,
    saved: u64,
}

fn id(at: usize) -> NodeId {
    [NodeId([1; 16]), NodeId([2; 16])][at]
}

fn settings(at: usize) -> Settings {
    let run = [u8::try_from(at).unwrap(); 16];
    let settings = Settings::new(id(at), 3, [7; 16]);
    Settings { run, ..settings }
}

impl Pair {
    fn new(seed: u64) -> Self {
        let nodes = [0, 1].map(|at| {
            let mut node = Node::new(settings(at));
            node.set_budget(DOMAIN, 64 << 20);
            for (serial, synchronous) in PORTS {
                let origin = id(at);
                let settings = PortSettings {
                    id: PortId { origin, serial },
                    key: [5; 16],
                    domain: DOMAIN,
                    synchronous,
                    slots: SLOTS,
                };
                node.add_port(PortKey(serial), settings);
            }
            node
        });
        let mut pair = Self {
            chance: Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            now: Time(1_000_000),
            nodes,
            machines: [Machine::default(), Machine::default()],
            wire: ConnectionId(0),
            flows: BTreeMap::new(),
            borrows: BTreeSet::new(),
            sent: BTreeMap::new(),
            open: [BTreeMap::new(), BTreeMap::new()],
            answered: 0,
            saved: 0,
        };
        pair.connect();
        for at in 0..2 {
            for name in ["1", "2"] {
                pair.carry();
                pair.nodes[at].resolve(id(1 - at), "d", name).unwrap();
            }
        }
        pair.carry();
        assert_eq!(pair.flows.len(), 4);
        pair
    }

    fn connect(&mut self) {
        self.wire = ConnectionId(self.wire.0 + 1);
        for at in 0..2 {
            let with = Authenticated {
                node: id(1 - at),
                expires: None,
                dialed: at == 0,
                proven: true,
            };
            self.nodes[at].connected(self.now, self.wire, with);
        }
    }

    fn carry(&mut self) {
        self.look();
        while self.carry_one(0) || self.carry_one(1) {}
    }

    fn carry_one(&mut self, at: usize) -> bool {
        let home = &mut self.machines[1 - at];
        let any = carry_one(&mut self.nodes, (at, 1 - at), (self.now, self.wire), home);
        self.look();
        any
    }

    fn look(&mut self) {
        for at in 0..2 {
            while let Some(event) = self.nodes[at].poll_event() {
                self.event(at, event);
            }
        }
    }

    fn event(&mut self, at: usize, event: Event<u64>) {
        match event {
            Event::Resolve { flow, name, .. } => {
                let port = PortKey(name.parse().unwrap());
                self.nodes[at].lend(self.now, flow, Ok(port)).unwrap();
            }
            Event::Claim { flow, port } => {
                self.nodes[at].lend(self.now, flow, Ok(port)).unwrap();
            }
            Event::Resolved { flow, lent } => {
                let port = lent.unwrap().port.serial;
                self.flows.insert((at, port), flow);
            }
            Event::Borrowed { flow, .. } => {
                assert!(self.borrows.remove(&at));
                self.flows.insert((at, 3), flow.unwrap());
            }
            Event::Ended { request, outcome } => {
                let Some(asked) = self.open[at].remove(&request) else {
                    // It was open for a right.
                    assert_eq!(outcome, Outcome::Answered(Answer::Dropped));
                    return;
                };
                let Outcome::Answered(Answer::Reply(reply)) = outcome else {
                    panic!("{outcome:?}");
                };
                assert_eq!(reply.header, asked);
                self.answered += 1;
            }
            Event::Over { why, .. } => panic!("{why}"),
            Event::Close { violation, .. } => assert_eq!(violation, None),
            _ => {}
        }
    }

    /// A message with the number that it has among those to this port.
    fn message(&mut self, from: usize, port: u64) -> Message<u64> {
        let number = self.sent.get(&(from, port)).copied().unwrap_or(0);
        let header = number.to_le_bytes();
        match self.chance.below(8) {
            0 => Message::long(&header, &[100_000], 100_000),
            1 => Message::long(&header, &[5, 6], 11),
            _ => Message::short(&header),
        }
    }

    fn send(&mut self, from: usize, port: u64) {
        let Some(flow) = self.flows.get(&(from, port)).copied() else {
            return;
        };
        let mut message = self.message(from, port);
        let header = message.header.clone();
        // A right on the third port goes with some.
        if port == 1 && self.chance.below(6) == 0 {
            let gift = Gift::Port(PortKey(3));
            let (peer, association) = (flow.peer, flow.association);
            let given = self.nodes[from].give(peer, association, DOMAIN, gift);
            message.rights.push(given.unwrap());
        }
        let rights: Vec<_> = message.rights.iter().map(|it| it.request).collect();
        let is_sent = match port {
            2 => match self.nodes[from].request(flow, DOMAIN, None, message) {
                Ok(request) => self.open[from].insert(request, header).is_none(),
                Err(_) => false,
            },
            _ => self.nodes[from].send(flow, message).is_ok(),
        };
        if is_sent {
            *self.sent.entry((from, port)).or_default() += 1;
        } else {
            for request in rights {
                self.nodes[from].abandon(self.now, request);
                let ended = self.nodes[from].poll_event();
                assert!(matches!(ended, Some(Event::Ended { .. })), "{ended:?}");
            }
        }
    }

    /// A program takes a message.
    fn take(&mut self, at: usize, port: PortKey) {
        let machine = &mut self.machines[at];
        let queue = machine.queues.entry(port).or_default();
        let Some(delivery) = queue.pop_front() else {
            return;
        };
        let free = SLOTS - u32::try_from(queue.len()).unwrap();
        let header = delivery.message.header;
        machine.taken.entry(port).or_default().push(header.clone());
        machine
            .serves
            .extend(delivery.request.map(|it| (it, header)));
        self.nodes[at].room(self.now, port, free);
        for given in delivery.message.rights {
            assert_eq!(given.leads, Leads::There);
            if self.flows.contains_key(&(at, 3)) || !self.borrows.insert(at) {
                self.nodes[at]
                    .answer(given.request, Answer::Dropped)
                    .unwrap();
            } else {
                self.nodes[at].borrow(self.now, &given);
            }
        }
    }

    fn answer(&mut self, at: usize) {
        if let Some((request, header)) = self.machines[at].serves.pop() {
            let reply = match self.chance.below(4) {
                0 => Message::long(&header, &[60_000], 60_000),
                _ => Message::short(&header),
            };
            self.nodes[at]
                .answer(request, Answer::Reply(reply))
                .unwrap();
        }
    }

    fn cut(&mut self) {
        for node in &mut self.nodes {
            node.disconnected(self.now, self.wire);
        }
        self.look();
    }

    /// Another process goes on as a node.
    fn replace(&mut self, at: usize) {
        self.cut();
        let (saved, payloads) = self.nodes[at].save(self.now).unwrap();
        let text = serde_json::to_string(&saved).unwrap();
        let again: SavedNode = serde_json::from_str(&text).unwrap();
        assert_eq!(saved, again);
        let mut node = Node::restore(self.now, settings(at), again, payloads.clone()).unwrap();
        // What was restored is what was saved.
        assert_eq!(node.save(self.now).unwrap(), (saved, payloads));
        node.set_budget(DOMAIN, 64 << 20);
        for (port, _) in PORTS {
            let port = PortKey(port);
            let queue = self.machines[at].queues.get(&port).map_or(0, VecDeque::len);
            node.room(self.now, port, SLOTS - u32::try_from(queue).unwrap());
        }
        self.nodes[at] = node;
        self.saved += 1;
        self.connect();
    }

    fn step(&mut self) {
        let at = usize::try_from(self.chance.below(2)).unwrap();
        let port = 1 + self.chance.below(3);
        match self.chance.below(100) {
            0..30 => self.send(at, port),
            30..65 => drop(self.carry_one(at)),
            65..85 => self.take(at, PortKey(port)),
            85..94 => self.answer(at),
            94 => {
                self.cut();
                self.connect();
            }
            95 | 96 => self.replace(at),
            _ => {
                self.now = self.now.after(Duration::from_millis(40));
                self.nodes[at].timeout(self.now);
                self.look();
            }
        }
    }

    /// All is taken and answered.
    fn finish(&mut self) {
        for _ in 0..400 {
            self.now = self.now.after(Duration::from_millis(40));
            for at in 0..2 {
                self.nodes[at].timeout(self.now);
                for (port, _) in PORTS {
                    self.take(at, PortKey(port));
                }
                self.answer(at);
            }
            self.carry();
        }
        for ((from, port), count) in &self.sent {
            let numbers: Vec<_> = (0..*count).map(|it| it.to_le_bytes().to_vec()).collect();
            let taken = self.machines[1 - from].taken.get(&PortKey(*port));
            let taken = taken.map_or(&[][..], Vec::as_slice);
            assert_eq!(taken, numbers, "from {from} to {port}");
        }
        for at in 0..2 {
            assert!(self.open[at].is_empty());
            let view = self.nodes[at].view(id(1 - at)).unwrap();
            assert_eq!((view.answers_kept, view.serving, view.given), (0, 0, 0));
            assert!(view.sending.iter().all(|it| it.first == it.next));
            assert_eq!(self.nodes[at].unacknowledged(), 0);
        }
    }
}

#[test]
fn at_any_moment_another_process_can_go_on() {
    let (mut saved, mut answered, mut sent) = (0, 0, 0);
    for seed in 1..=200 {
        let mut pair = Pair::new(seed);
        for _ in 0..1500 {
            pair.step();
        }
        pair.finish();
        saved += pair.saved;
        answered += pair.answered;
        sent += pair.sent.values().sum::<u64>();
    }
    assert!(
        saved > 2_000 && answered > 2_000 && sent > 5_000,
        "{saved} {answered} {sent}"
    );
}

#[test]
fn what_is_carried_or_on_the_move_is_not_saved() {
    let mut pair = Pair::new(1);
    let connected = Err(Unsaved::Connected(id(1)));
    assert_eq!(pair.nodes[0].save(pair.now).map(drop), connected);
    // A receive right is on its way.
    for at in 0..2 {
        let settings = Settings {
            moves: true,
            ..settings(at)
        };
        pair.nodes[at] = Node::new(settings);
    }
    let mut pair = Pair {
        flows: BTreeMap::new(),
        ..pair
    };
    let origin = id(0);
    let port = PortSettings {
        id: PortId { origin, serial: 1 },
        key: [5; 16],
        domain: DOMAIN,
        synchronous: false,
        slots: SLOTS,
    };
    pair.nodes[0].add_port(PortKey(1), port);
    pair.connect();
    pair.carry();
    let gift = Gift::Receive(PortKey(1));
    pair.nodes[0].give(id(1), 1, DOMAIN, gift).unwrap();
    assert!(pair.nodes[0].is_moving());
    pair.cut();
    let moving = Err(Unsaved::Moving(id(1)));
    assert_eq!(pair.nodes[0].save(pair.now).map(drop), moving);
    assert_eq!(pair.nodes[0].give_up_moves(pair.now), [id(1)]);
    while pair.nodes[0].poll_event().is_some() {}
    assert!(pair.nodes[0].give_up_moves(pair.now).is_empty());
    assert!(pair.nodes[0].save(pair.now).is_ok() && !pair.nodes[0].is_moving());
}

#[test]
fn what_no_node_has_saved_is_refused() {
    let mut pair = Pair::new(1);
    for _ in 0..3 {
        pair.send(0, 1);
        pair.send(0, 2);
    }
    pair.cut();
    let (saved, payloads) = pair.nodes[0].save(pair.now).unwrap();
    let restore = |saved: SavedNode, settings, payloads| {
        Node::restore(pair.now, settings, saved, payloads).map(drop)
    };
    assert_eq!(
        restore(saved.clone(), settings(0), payloads.clone()),
        Ok(())
    );
    let is_damaged = |result: Result<(), Damaged>| assert!(result.is_err());
    is_damaged(restore(saved.clone(), settings(1), payloads.clone()));
    let more = [payloads.clone(), vec![1]].concat();
    is_damaged(restore(saved.clone(), settings(0), more));
    // Each number is another one: it is refused or not, and nothing panics.
    let whole = serde_json::to_value(&saved).unwrap();
    let mut refused = 0;
    let mut at = 0;
    loop {
        let mut other = whole.clone();
        if !change(&mut other, &mut { at }) {
            break;
        }
        at += 1;
        match serde_json::from_value::<SavedNode>(other) {
            Err(_) => refused += 1,
            Ok(other) => {
                refused += usize::from(restore(other, settings(0), payloads.clone()).is_err())
            }
        }
    }
    assert!(refused > 20, "{refused} of {at}");
}

/// Changes the value that is the `at`th; whether there is one.
fn change(value: &mut serde_json::Value, at: &mut usize) -> bool {
    use serde_json::Value;
    match value {
        Value::Array(all) => all.iter_mut().any(|it| change(it, at)),
        Value::Object(all) => all.values_mut().any(|it| change(it, at)),
        _ if *at > 0 => {
            *at -= 1;
            false
        }
        Value::Number(_) => {
            *value = u64::MAX.into();
            true
        }
        Value::String(text) => {
            text.push('x');
            true
        }
        _ => {
            *value = 7.into();
            true
        }
    }
}
