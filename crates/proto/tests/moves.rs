//! A receive right moves between nodes, step by step: what goes before what, who is told, and who may not
//! give one.

use portolan_abi::node::{NodeId, PortId, ReferenceKind};
use portolan_proto::Time;
use portolan_proto::node::{
    Answer, Authenticated, BorrowKey, ConnectionId, Delivery, Destination, DomainKey, Event,
    FlowKey, Gift, Given, Home, Leads, Message, Node, Outcome, PortKey, PortSettings, PortStay,
    RequestKey, Settings, Unsent, Violation,
};

const NOW: Time = Time(1 << 20);
const DOMAIN: DomainKey = DomainKey(1);
/// The port that moves, and the one by which its right goes.
const PORT: PortKey = PortKey(2);
const INBOX: PortKey = PortKey(1);
const OLD: usize = 0;
const NEW: usize = 1;
const SENDER: usize = 2;

/// What is in the ports of a machine, in the order in which it came.
#[derive(Default)]
struct Machine {
    came: Vec<Delivery<u64>>,
    is_full: bool,
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
    fn headers(&self, port: PortKey) -> Vec<String> {
        let its = self.came.iter().filter(|it| it.port == port);
        let text = |it: &Delivery<u64>| String::from_utf8_lossy(&it.message.header).into_owned();
        its.map(text).collect()
    }
}

fn id(index: usize) -> NodeId {
    NodeId([u8::try_from(index + 1).unwrap(); 16])
}

fn between(a: usize, b: usize) -> ConnectionId {
    ConnectionId(u64::try_from(a + b).unwrap())
}

/// Three nodes, each linked with each.
struct Three {
    nodes: Vec<Node<u64>>,
    machines: Vec<Machine>,
    events: Vec<Vec<Event<u64>>>,
}

impl Three {
    /// The last of the nodes may be of an earlier version.
    fn new(moves: [bool; 3], synchronous: bool) -> Self {
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
        };
        for (a, b) in [(0, 1), (1, 2), (0, 2)] {
            for (here, there) in [(a, b), (b, a)] {
                let with = Authenticated {
                    node: id(there),
                    expires: None,
                    dialed: here == a,
                    proven: true,
                };
                three.nodes[here].connected(NOW, between(a, b), with);
            }
        }
        three.carry();
        three
    }

    /// Carries all that is said, and lends what is asked for.
    fn carry(&mut self) {
        let mut any = true;
        while std::mem::take(&mut any) {
            for (here, there) in [(0, 1), (1, 0), (1, 2), (2, 1), (0, 2), (2, 0)] {
                let wire = between(here, there);
                while let Some(record) = self.nodes[here].poll_record(NOW, wire) {
                    any = true;
                    let machine = &mut self.machines[there];
                    self.nodes[there].receive(NOW, wire, &record.bytes, machine);
                }
            }
            for index in 0..3 {
                while let Some(event) = self.nodes[index].poll_event() {
                    any = true;
                    match &event {
                        Event::Resolve { flow, name, .. } => {
                            let port = PortKey(name.parse().unwrap());
                            self.nodes[index].lend(NOW, *flow, Ok(port)).unwrap();
                        }
                        Event::Claim { flow, port } => {
                            self.nodes[index].lend(NOW, *flow, Ok(*port)).unwrap();
                        }
                        _ => {}
                    }
                    self.events[index].push(event);
                }
            }
        }
    }

    fn flow(&mut self, from: usize, to: usize, port: PortKey) -> FlowKey {
        let flow = self.nodes[from].resolve(id(to), "d", &port.0.to_string());
        self.carry();
        flow.unwrap()
    }

    fn send(&mut self, from: usize, flow: FlowKey, header: &str) {
        let message = Message::short(header.as_bytes());
        self.nodes[from].send(flow, message).unwrap();
    }

    /// The receive right goes from one node to another, which has not taken it.
    fn gives(&mut self, from: usize, to: usize) -> (Given, Given) {
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
    fn last<T>(&self, node: usize, is_it: impl Fn(&Event<u64>) -> Option<T>) -> Option<T> {
        self.events[node].iter().rev().find_map(is_it)
    }

    fn lent_to(&self, node: usize, borrow: BorrowKey) -> Option<FlowKey> {
        self.last(node, |event| match event {
            Event::Borrowed { borrow: it, flow } if *it == borrow => flow.ok(),
            _ => None,
        })
    }

    fn left(&self) -> BorrowKey {
        let left = self.last(OLD, |event| match event {
            Event::Left { borrow, .. } => Some(*borrow),
            _ => None,
        });
        left.unwrap()
    }

    fn followed(&self) -> BorrowKey {
        let moved = self.last(SENDER, |event| match event {
            Event::Moved { borrow, home, .. } => Some((*borrow, *home)),
            _ => None,
        });
        let (borrow, home) = moved.unwrap();
        assert_eq!(home, id(NEW));
        borrow
    }

    fn end_of(&self, node: usize, request: RequestKey) -> Option<&Outcome<u64>> {
        self.events[node].iter().find_map(|event| match event {
            Event::Ended {
                request: it,
                outcome,
            } if *it == request => Some(outcome),
            _ => None,
        })
    }
}

fn settings_of(index: usize, port: PortKey, synchronous: bool) -> PortSettings {
    PortSettings {
        id: PortId {
            origin: id(index),
            serial: port.0,
        },
        secret: [0x50; 16],
        domain: DOMAIN,
        synchronous,
        slots: 8,
    }
}

#[test]
fn the_backlog_goes_first_and_what_was_not_put_into_the_port_follows() {
    let mut three = Three::new([true; 3], false);
    let flow = three.flow(SENDER, OLD, PORT);
    three.send(SENDER, flow, "1");
    three.carry();
    // What comes now finds no room at the old home.
    three.machines[OLD].is_full = true;
    three.send(SENDER, flow, "2");
    three.send(SENDER, flow, "3");
    three.carry();
    let (_, came) = three.gives(OLD, NEW);
    assert_eq!(three.nodes[OLD].stay(PORT), Some(PortStay::Leaving));
    assert_eq!(three.nodes[NEW].take(&came, PORT, DOMAIN), Ok(PORT));
    three.carry();
    assert_eq!(three.nodes[OLD].stay(PORT), Some(PortStay::Left));
    assert_eq!(three.nodes[NEW].stay(PORT), Some(PortStay::Arriving));
    // The sender has been told, and waits for the backlog; the old home waits for it to follow.
    let followed = three.followed();
    assert_eq!(three.lent_to(SENDER, followed), None);
    assert_eq!(three.nodes[OLD].flows_to(PORT), 1);
    let backlog = three.lent_to(OLD, three.left()).unwrap();
    assert_eq!(three.machines[OLD].headers(PORT), ["1"]);
    three.send(OLD, backlog, "1");
    three.carry();
    assert_eq!(three.lent_to(SENDER, followed), None);
    three.nodes[OLD].backlog_ends(backlog).unwrap();
    three.carry();
    assert_eq!(three.nodes[NEW].stay(PORT), Some(PortStay::Here));
    let flow = three.lent_to(SENDER, followed).unwrap();
    assert_eq!(flow.peer, id(NEW));
    three.send(SENDER, flow, "4");
    three.carry();
    assert_eq!(three.machines[NEW].headers(PORT), ["1", "2", "3", "4"]);
    assert_eq!(three.nodes[OLD].flows_to(PORT), 0);
    assert!(
        three
            .last(OLD, |it| matches!(it, Event::Unused { .. }).then_some(()))
            .is_some()
    );
    // One that asks the old home is told where the port is.
    let flow = three.flow(SENDER, OLD, PORT);
    let followed = three.followed();
    assert_eq!(
        three.lent_to(SENDER, followed).map(|it| it.peer),
        Some(id(NEW))
    );
    assert_eq!(three.nodes[SENDER].takes(flow), Err(Unsent::Dead));
}

#[test]
fn requests_that_the_old_home_has_taken_are_answered_there_and_the_others_at_the_new_home() {
    let mut three = Three::new([true; 3], true);
    let flow = three.flow(SENDER, OLD, PORT);
    let request = |three: &mut Three, header: &str| {
        let message = Message::short(header.as_bytes());
        let made = three.nodes[SENDER].request(flow, DOMAIN, None, message);
        three.carry();
        made.unwrap()
    };
    let taken = request(&mut three, "taken");
    three.machines[OLD].is_full = true;
    let waits = request(&mut three, "waits");
    let server = three.machines[OLD].came[0].request.unwrap();
    let (_, came) = three.gives(OLD, NEW);
    three.nodes[NEW].take(&came, PORT, DOMAIN).unwrap();
    three.carry();
    let backlog = three.lent_to(OLD, three.left()).unwrap();
    three.nodes[OLD].backlog_ends(backlog).unwrap();
    three.carry();
    let renamed = three.last(SENDER, |it| match it {
        Event::Rekeyed { from, to } if *from == waits => Some(*to),
        _ => None,
    });
    let renamed = renamed.unwrap();
    assert_eq!(renamed.peer, id(NEW));
    let there = three.machines[NEW].came[0].request.unwrap();
    let reply = |text: &[u8]| Answer::Reply(Message::short(text));
    three.nodes[NEW].answer(there, reply(b"new")).unwrap();
    three.nodes[OLD].answer(server, reply(b"old")).unwrap();
    three.carry();
    for (request, text) in [(taken, &b"old"[..]), (renamed, &b"new"[..])] {
        let end = three.end_of(SENDER, request);
        let is_it = |it: &Outcome<u64>| matches!(it, Outcome::Answered(Answer::Reply(reply)) if reply.header == text);
        assert!(end.is_some_and(is_it), "{end:?}");
    }
    assert!(three.end_of(SENDER, waits).is_none());
}

#[test]
fn a_port_that_comes_back_is_local_again() {
    let mut three = Three::new([true; 3], false);
    let (_, came) = three.gives(OLD, NEW);
    three.nodes[NEW].take(&came, PORT, DOMAIN).unwrap();
    three.carry();
    let first = three.left();
    let backlog = three.lent_to(OLD, first).unwrap();
    // It may not be given on before its backlog is there.
    let on = three.flow(NEW, OLD, INBOX);
    let early = three.nodes[NEW].give(on.peer, on.association, DOMAIN, Gift::Receive(PORT));
    assert_eq!(early, Err(Unsent::Moving));
    three.nodes[OLD].backlog_ends(backlog).unwrap();
    three.carry();
    // What the old home sends now, as a borrower, finds no room and comes home.
    three.machines[NEW].is_full = true;
    three.send(OLD, backlog, "mine");
    three.carry();
    let (_, came) = three.gives(NEW, OLD);
    // A number that the driver would give it does not matter: it was here before.
    assert_eq!(three.nodes[OLD].take(&came, PortKey(77), DOMAIN), Ok(PORT));
    three.carry();
    let borrow = three.last(NEW, |it| match it {
        Event::Left { borrow, .. } => Some(*borrow),
        _ => None,
    });
    let to = three.lent_to(NEW, borrow.unwrap()).unwrap();
    let home = |it: &Event<u64>| match it {
        Event::CameHome { port, unsent, .. } => Some((*port, unsent.len())),
        _ => None,
    };
    assert_eq!(three.last(OLD, home), None);
    three.nodes[NEW].backlog_ends(to).unwrap();
    three.carry();
    assert_eq!(three.last(OLD, home), Some((PORT, 1)));
    assert_eq!(three.nodes[OLD].stay(PORT), Some(PortStay::Here));
}

/// It has filled the queue at its old home perhaps, and until it is here the port can go no further.
#[test]
fn a_backlog_may_fill_the_queue_at_the_new_home() {
    let mut three = Three::new([true; 3], false);
    let (_, came) = three.gives(OLD, NEW);
    three.nodes[NEW].take(&came, PORT, DOMAIN).unwrap();
    three.carry();
    let backlog = three.lent_to(OLD, three.left()).unwrap();
    let all: Vec<String> = (0..8).map(|number| number.to_string()).collect();
    for header in &all {
        three.send(OLD, backlog, header);
        three.carry();
    }
    assert_eq!(three.machines[NEW].headers(PORT), all);
    three.nodes[OLD].backlog_ends(backlog).unwrap();
    three.carry();
    assert_eq!(three.nodes[NEW].stay(PORT), Some(PortStay::Here));
}

#[test]
fn who_has_sent_to_a_port_while_it_was_here_borrows_it_behind_its_backlog() {
    let mut three = Three::new([true; 3], false);
    let (_, came) = three.gives(OLD, NEW);
    assert_eq!(three.nodes[OLD].borrow_left(NOW, PORT), None);
    let other = DomainKey(2);
    three.nodes[NEW].take(&came, PORT, other).unwrap();
    let domain = |node: &Node<u64>| node.port_settings(PORT).map(|it| it.domain);
    assert_eq!(domain(&three.nodes[NEW]), Some(other));
    three.carry();
    let borrow = three.nodes[OLD].borrow_left(NOW, PORT).unwrap();
    three.carry();
    assert_eq!(three.lent_to(OLD, borrow), None);
    let backlog = three.lent_to(OLD, three.left()).unwrap();
    three.send(OLD, backlog, "first");
    assert_eq!(three.nodes[OLD].next_number(backlog), Some(1));
    three.nodes[OLD].backlog_ends(backlog).unwrap();
    three.carry();
    let flow = three.lent_to(OLD, borrow).unwrap();
    three.send(OLD, flow, "behind");
    three.carry();
    assert_eq!(three.machines[NEW].headers(PORT), ["first", "behind"]);
    // It is known by its name and its secret, and by nothing else.
    let PortSettings { id, secret, .. } = settings_of(OLD, PORT, false);
    for node in [OLD, NEW] {
        assert_eq!(three.nodes[node].port_of(&id, &secret), Some(PORT));
        assert_eq!(three.nodes[node].port_of(&id, &[0; 16]), None);
    }
}

#[test]
fn a_right_that_is_not_taken_stays_and_a_node_of_an_earlier_version_gets_none() {
    let mut three = Three::new([true, true, false], false);
    let (given, came) = three.gives(OLD, NEW);
    let flow = three.flow(OLD, NEW, INBOX);
    let twice = three.nodes[OLD].give(flow.peer, flow.association, DOMAIN, Gift::Receive(PORT));
    assert_eq!(twice, Err(Unsent::Moving));
    three.nodes[NEW]
        .answer(came.request, Answer::Dropped)
        .unwrap();
    three.carry();
    let end = three.end_of(OLD, given.request);
    assert!(
        matches!(end, Some(Outcome::Answered(Answer::Dropped))),
        "{end:?}"
    );
    assert_eq!(three.nodes[OLD].stay(PORT), Some(PortStay::Here));
    // To it, or while it sends to the port.
    let node = id(SENDER);
    let there = three.flow(OLD, SENDER, INBOX);
    let given = three.nodes[OLD].give(there.peer, there.association, DOMAIN, Gift::Receive(PORT));
    assert_eq!(given, Err(Unsent::NoMoves { node }));
    three.flow(SENDER, OLD, PORT);
    let given = three.nodes[OLD].give(flow.peer, flow.association, DOMAIN, Gift::Receive(PORT));
    assert_eq!(given, Err(Unsent::NoMoves { node }));
}

#[test]
fn nobody_gives_the_receive_right_of_a_port_that_is_elsewhere() {
    let mut three = Three::new([true; 3], false);
    let flow = three.flow(SENDER, NEW, INBOX);
    let gift = Gift::Port(INBOX);
    let given = three.nodes[SENDER].give(flow.peer, flow.association, DOMAIN, gift);
    let mut given = given.unwrap();
    (given.reference.kind, given.reference.slots) = (ReferenceKind::Receive, 8);
    given.reference.home = id(OLD);
    let mut message = Message::short(b"right");
    message.rights.push(given);
    three.nodes[SENDER].send(flow, message).unwrap();
    three.carry();
    let accused = |it: &Event<u64>| match it {
        Event::Close { violation, .. } => *violation,
        _ => None,
    };
    let violation = three.last(NEW, accused);
    assert!(
        matches!(violation, Some(Violation::Rights { .. })),
        "{violation:?}"
    );
    assert_eq!(three.machines[NEW].headers(INBOX), [""; 0]);
}
