//! Three nodes, each linked with each: the old home of a port, its new home, and one that sends to it.

use crate::wire::lend;
use portolan_abi::node::{NodeId, PortId, Record};
use portolan_proto::Time;
use portolan_proto::node::{
    Authenticated, BorrowKey, ConnectionId, Delivery, Destination, DomainKey, Event, FlowKey, Gift,
    Given, Home, Leads, Message, Node, Outcome, PortKey, PortSettings, RequestKey, Settings,
};

pub(crate) const NOW: Time = Time(1 << 20);
pub(crate) const DOMAIN: DomainKey = DomainKey(1);
/// The port that moves, and the one by which its right goes.
pub(crate) const PORT: PortKey = PortKey(2);
pub(crate) const INBOX: PortKey = PortKey(1);
pub(crate) const OLD: usize = 0;
pub(crate) const NEW: usize = 1;
pub(crate) const SENDER: usize = 2;

/// What is in the ports of a machine, in the order in which it came.
#[derive(Default)]
pub(crate) struct Machine {
    pub(crate) came: Vec<Delivery<u64>>,
    pub(crate) is_full: bool,
}

impl Home<u64> for Machine {
    fn allocate(&mut self, _: Destination, lengths: &[u64]) -> Option<u64> {
        Some(lengths.iter().sum())
    }

    fn fill(&mut self, _: &u64, _: &[u8]) {}

    fn deliver(&mut self, delivery: Delivery<u64>) -> Result<(), Delivery<u64>> {
        if self.is_full {
            return Err(delivery);
        }
        self.came.push(delivery);
        Ok(())
    }
}

impl Machine {
    /// What has come to a port.
    pub(crate) fn headers(&self, port: PortKey) -> Vec<String> {
        let its = self.came.iter().filter(|it| it.port == port);
        let text = |it: &Delivery<u64>| String::from_utf8_lossy(&it.message.header).into_owned();
        its.map(text).collect()
    }
}

pub(crate) fn id(index: usize) -> NodeId {
    NodeId([u8::try_from(index + 1).unwrap(); 16])
}

pub(crate) fn between(a: usize, b: usize) -> ConnectionId {
    ConnectionId(u64::try_from(a + b).unwrap())
}

/// Three nodes, each linked with each.
pub(crate) struct Three {
    pub(crate) nodes: Vec<Node<u64>>,
    pub(crate) machines: Vec<Machine>,
    pub(crate) events: Vec<Vec<Event<u64>>>,
    /// Nothing is carried over this wire.
    pub(crate) cut: Option<ConnectionId>,
    pub(crate) now: Time,
}

impl Three {
    /// The last of the nodes may be of an earlier version.
    pub(crate) fn new(moves: [bool; 3], synchronous: bool) -> Self {
        let nodes = moves.into_iter().enumerate().map(|(index, moves)| {
            let mut settings = Settings::new(id(index), 1, [7; 16]);
            settings.moves = moves;
            let mut node = Node::new(settings);
            node.add_port(INBOX, settings_of(index, INBOX, false));
            if index == OLD {
                node.add_port(PORT, settings_of(index, PORT, synchronous));
            }
            node
        });
        let mut three = Self {
            nodes: nodes.collect(),
            machines: (0..3).map(|_| Machine::default()).collect(),
            events: (0..3).map(|_| Vec::new()).collect(),
            cut: None,
            now: NOW,
        };
        for (a, b) in [(0, 1), (1, 2), (0, 2)] {
            three.connect(a, b);
        }
        three.carry();
        three
    }

    /// Connects two nodes, one of which has dialed.
    pub(crate) fn connect(&mut self, a: usize, b: usize) {
        for (here, there) in [(a, b), (b, a)] {
            let with = Authenticated {
                node: id(there),
                expires: None,
                dialed: here == a,
                proven: true,
            };
            self.nodes[here].connected(self.now, between(a, b), with);
        }
    }

    /// Carries what one node says to another now: the names of the records.
    pub(crate) fn writes(&mut self, from: usize, to: usize) -> Vec<String> {
        let wire = between(from, to);
        let mut names = Vec::new();
        while let Some(record) = self.nodes[from].poll_record(self.now, wire) {
            let read = Record::decode(&record.bytes).unwrap().1.unwrap();
            let read = format!("{read:?}");
            names.extend(read.split([' ', '(', '{']).next().map(str::to_owned));
            let machine = &mut self.machines[to];
            self.nodes[to].receive(self.now, wire, &record.bytes, machine);
        }
        names
    }

    /// Carries all that is said, and lends what is asked for.
    pub(crate) fn carry(&mut self) {
        let mut any = true;
        while std::mem::take(&mut any) {
            for (here, there) in [(0, 1), (1, 0), (1, 2), (2, 1), (0, 2), (2, 0)] {
                let wire = between(here, there);
                if self.cut == Some(wire) {
                    continue;
                }
                while let Some(record) = self.nodes[here].poll_record(self.now, wire) {
                    any = true;
                    let machine = &mut self.machines[there];
                    self.nodes[there].receive(self.now, wire, &record.bytes, machine);
                }
            }
            for index in 0..3 {
                while let Some(event) = self.nodes[index].poll_event() {
                    any = true;
                    lend(&mut self.nodes[index], self.now, &event);
                    self.events[index].push(event);
                }
            }
        }
    }

    pub(crate) fn flow(&mut self, from: usize, to: usize, port: PortKey) -> FlowKey {
        let flow = self.nodes[from].resolve(id(to), "d", &port.0.to_string());
        self.carry();
        flow.unwrap()
    }

    pub(crate) fn send(&mut self, from: usize, flow: FlowKey, header: &str) {
        let message = Message::short(header.as_bytes());
        self.nodes[from].send(flow, message).unwrap();
    }

    /// The receive right goes from one node to another, which has not taken it.
    pub(crate) fn gives(&mut self, from: usize, to: usize) -> (Given, Given) {
        let flow = self.flow(from, to, INBOX);
        let gift = Gift::Receive(PORT);
        let given = self.nodes[from].give(flow.peer, flow.association, DOMAIN, gift);
        let given = given.unwrap();
        let mut message = Message::short(b"right");
        message.rights.push(given);
        self.nodes[from].send(flow, message).unwrap();
        self.carry();
        let came = self.machines[to].came.pop().unwrap();
        assert_eq!(came.message.rights[0].leads, Leads::Receive);
        (given, came.message.rights[0])
    }

    /// What a node has heard last, if it is this.
    pub(crate) fn last<T>(
        &self,
        node: usize,
        is_it: impl Fn(&Event<u64>) -> Option<T>,
    ) -> Option<T> {
        self.events[node].iter().rev().find_map(is_it)
    }

    pub(crate) fn lent_to(&self, node: usize, borrow: BorrowKey) -> Option<FlowKey> {
        self.last(node, |event| match event {
            Event::Borrowed { borrow: it, flow } if *it == borrow => flow.ok(),
            _ => None,
        })
    }

    pub(crate) fn left(&self) -> BorrowKey {
        let left = self.last(OLD, |event| match event {
            Event::Left { borrow, .. } => Some(*borrow),
            _ => None,
        });
        left.unwrap()
    }

    pub(crate) fn followed(&self) -> BorrowKey {
        let moved = self.last(SENDER, |event| match event {
            Event::Moved { borrow, home, .. } => Some((*borrow, *home)),
            _ => None,
        });
        let (borrow, home) = moved.unwrap();
        assert_eq!(home, id(NEW));
        borrow
    }

    pub(crate) fn end_of(&self, node: usize, request: RequestKey) -> Option<&Outcome<u64>> {
        self.events[node].iter().find_map(|event| match event {
            Event::Ended {
                request: it,
                outcome,
            } if *it == request => Some(outcome),
            _ => None,
        })
    }
}

pub(crate) fn settings_of(index: usize, port: PortKey, synchronous: bool) -> PortSettings {
    PortSettings {
        id: PortId {
            origin: id(index),
            serial: port.0,
        },
        key: [0x50; 16],
        domain: DOMAIN,
        synchronous,
        slots: 8,
    }
}
