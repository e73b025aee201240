//! Rights in messages between three nodes, step by step: what a giver may say wrongly, what is given
//! back, and what goes over no connection that proves nothing.

use crate::wire::{Machine, bytes_of, lend, take_fragment};
use portolan_abi::node::{NodeId, PortId};
use portolan_proto::Time;
use portolan_proto::node::{
    ACKNOWLEDGE_WITHIN, Answer, Authenticated, ConnectionId, DomainKey, Event, FlowKey, Gift,
    Given, Leads, Message, Node, Outcome, PortKey, PortSettings, RequestKey, Settings, Unsent,
};
use std::time::Duration;

const NOW: Time = Time(1 << 20);
const DOMAIN: DomainKey = DomainKey(1);
/// Of messages, and of requests.
const PORTS: [PortKey; 2] = [PortKey(1), PortKey(2)];
const GIVER: usize = 0;
const RECEIVER: usize = 1;
const HOME: usize = 2;

fn id(index: usize) -> NodeId {
    NodeId([u8::try_from(index + 1).unwrap(); 16])
}

/// Three nodes, each linked with each; what has happened at each.
struct Three {
    nodes: Vec<Node<u64>>,
    machines: Vec<Machine>,
    events: Vec<Vec<Event<u64>>>,
    now: Time,
}

impl Three {
    fn new(proven: bool) -> Self {
        let nodes = (0..3).map(|index| {
            let mut node = Node::new(Settings::new(id(index), 1, [7; 16]));
            node.set_budget(DOMAIN, 64 << 20);
            for port in PORTS {
                let settings = PortSettings {
                    id: PortId {
                        origin: id(index),
                        serial: port.0,
                    },
                    key: [u8::try_from(0x50 + index).unwrap(); 16],
                    domain: DOMAIN,
                    synchronous: port == PORTS[1],
                    slots: 8,
                };
                node.add_port(port, settings);
            }
            node
        });
        let mut three = Self {
            nodes: nodes.collect(),
            machines: (0..3).map(|_| Machine::default()).collect(),
            events: (0..3).map(|_| Vec::new()).collect(),
            now: NOW,
        };
        for (a, b) in [(0, 1), (1, 2), (0, 2)] {
            three.link(a, b, proven);
        }
        three.carry();
        three
    }

    fn link(&mut self, a: usize, b: usize, proven: bool) {
        for (here, there) in [(a, b), (b, a)] {
            let with = Authenticated {
                node: id(there),
                expires: None,
                dialed: here == a,
                proven,
            };
            self.nodes[here].connected(self.now, between(a, b), with);
        }
    }

    /// Carries all that is said, and lends what is asked for.
    fn carry(&mut self) {
        let mut any = true;
        while std::mem::take(&mut any) {
            for (here, there) in [(0, 1), (1, 0), (1, 2), (2, 1), (0, 2), (2, 0)] {
                any |= self.carry_one(here, there);
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

    fn carry_one(&mut self, here: usize, there: usize) -> bool {
        let wire = between(here, there);
        let mut any = false;
        while let Some(record) = self.nodes[here].poll_record(self.now, wire) {
            any = true;
            let bytes = bytes_of(record);
            self.nodes[there].receive(self.now, wire, &bytes, &mut self.machines[there]);
        }
        while let Some(fragment) = self.nodes[here].poll_fragment(self.now, wire) {
            any = true;
            let (node, machine) = (&mut self.nodes[there], &mut self.machines[there]);
            take_fragment(node, (self.now, wire), &fragment, machine);
        }
        any
    }

    /// Time passes, and what is due is carried.
    fn pass(&mut self, time: Duration) {
        self.now = self.now.after(time);
        for node in &mut self.nodes {
            node.timeout(self.now);
        }
        self.carry();
    }

    /// A flow from one node to a port of another.
    fn flow(&mut self, from: usize, to: usize, port: PortKey) -> FlowKey {
        let flow = self.nodes[from].resolve(id(to), "d", &port.0.to_string());
        self.carry();
        flow.unwrap()
    }

    /// Sends a right from the giver to the receiver, which gets this.
    fn gives(&mut self, flow: FlowKey, given: Given) -> Given {
        let mut message = Message::short(b"right");
        message.rights.push(given);
        self.nodes[GIVER].send(flow, message).unwrap();
        self.carry();
        let came = self.machines[RECEIVER].0.pop().unwrap();
        assert_eq!(came.message.header, b"right");
        came.message.rights[0]
    }

    /// How a request of the giver's has ended.
    fn end_of(&self, request: RequestKey) -> Option<&Outcome<u64>> {
        self.events[GIVER].iter().find_map(|event| match event {
            Event::Ended {
                request: it,
                outcome,
            } if *it == request => Some(outcome),
            _ => None,
        })
    }

    /// What the receiver has heard of its only borrow.
    fn borrowed(&self) -> Option<bool> {
        self.events[RECEIVER].iter().find_map(|event| match event {
            Event::Borrowed { flow, .. } => Some(flow.is_ok()),
            _ => None,
        })
    }
}

fn between(a: usize, b: usize) -> ConnectionId {
    ConnectionId(u64::try_from(a + b).unwrap())
}

fn give(three: &mut Three, to: FlowKey, gift: Gift) -> Given {
    let given = three.nodes[GIVER].give(to.peer, to.association, DOMAIN, gift);
    given.unwrap()
}

#[test]
fn a_right_leads_to_its_home_and_is_kept_until_the_home_has_lent_it() {
    let mut three = Three::new(true);
    let to_receiver = three.flow(GIVER, RECEIVER, PORTS[0]);
    let to_home = three.flow(GIVER, HOME, PORTS[0]);
    let given = give(&mut three, to_receiver, Gift::Flow(to_home));
    let came = three.gives(to_receiver, given);
    assert_eq!(came.leads, Leads::There);
    assert_eq!(three.end_of(given.request), None, "it is kept");
    three.nodes[RECEIVER].borrow(three.now, &came);
    three.carry();
    assert_eq!(three.borrowed(), Some(true));
    let ended = Some(&Outcome::Answered(Answer::Dropped));
    assert_eq!(three.end_of(given.request), ended);
    // The giver closes its own flow: the receiver's goes on.
    three.nodes[GIVER].close(to_home).unwrap();
    three.carry();
    assert_eq!(three.nodes[HOME].flows_to(PORTS[0]), 1);
    let flow = three.events[RECEIVER].iter().find_map(|event| match event {
        Event::Borrowed { flow, .. } => flow.ok(),
        _ => None,
    });
    let sent = three.nodes[RECEIVER].send(flow.unwrap(), Message::short(b"directly"));
    sent.unwrap();
    three.carry();
    let came = &three.machines[HOME].0[0];
    assert_eq!(
        (came.from.peer, &came.message.header[..]),
        (id(RECEIVER), &b"directly"[..])
    );
}

#[test]
fn a_right_that_comes_home_is_a_port_of_that_node_if_its_secret_is_right() {
    let mut three = Three::new(true);
    let to_receiver = three.flow(GIVER, RECEIVER, PORTS[0]);
    let given = give(&mut three, to_receiver, Gift::Flow(to_receiver));
    assert_eq!(three.gives(to_receiver, given).leads, Leads::Here(PORTS[0]));
    for wrong in 0..3 {
        let mut given = give(&mut three, to_receiver, Gift::Flow(to_receiver));
        match wrong {
            0 => given.reference.secret[7] ^= 1,
            1 => given.reference.port.serial = PORTS[1].0 + 1,
            _ => given.reference.port.origin = id(GIVER),
        }
        assert_eq!(three.gives(to_receiver, given).leads, Leads::Nowhere);
    }
}

#[test]
fn what_a_giver_says_wrongly_is_dead_and_harms_nobody_else() {
    for wrong in 0..5 {
        let mut three = Three::new(true);
        let to_receiver = three.flow(GIVER, RECEIVER, PORTS[0]);
        let to_home = three.flow(GIVER, HOME, PORTS[0]);
        let mut given = give(&mut three, to_receiver, Gift::Flow(to_home));
        let reference = &mut given.reference;
        match wrong {
            0 => reference.secret[0] ^= 1,
            1 => reference.port.serial += 1,
            // It has no such port: neither has the giver.
            2 => reference.home = id(GIVER),
            3 => reference.synchronous = true,
            // The home has been started anew since.
            _ => reference.incarnation = 0,
        }
        let came = three.gives(to_receiver, given);
        three.nodes[RECEIVER].borrow(three.now, &came);
        three.carry();
        assert_eq!(three.borrowed(), Some(false), "{wrong}");
        assert!(three.end_of(given.request).is_some(), "{wrong}");
        assert_eq!(three.nodes[RECEIVER].borrowing(), 0);
        // Nothing of it is left, and all associations go on.
        assert_eq!(three.nodes[HOME].flows_to(PORTS[0]), 1, "the giver's own");
        let all = [(0, 1), (1, 2), (0, 2)];
        assert!(
            all.iter()
                .all(|(a, b)| three.nodes[*a].view(id(*b)).is_some())
        );
    }
}

#[test]
fn a_home_that_is_never_met_is_given_up() {
    let mut three = Three::new(true);
    let to_receiver = three.flow(GIVER, RECEIVER, PORTS[0]);
    let to_home = three.flow(GIVER, HOME, PORTS[0]);
    let mut given = give(&mut three, to_receiver, Gift::Flow(to_home));
    given.reference.home = NodeId([9; 16]);
    let came = three.gives(to_receiver, given);
    three.nodes[RECEIVER].borrow(three.now, &came);
    three.carry();
    assert_eq!(three.borrowed(), None);
    // All are there, and the home is not.
    for second in 1..=31 {
        three.now = NOW.after(Duration::from_secs(second));
        for index in 0..3 {
            three.nodes[index].timeout(three.now);
        }
        three.carry();
    }
    assert_eq!(three.borrowed(), Some(false));
    assert!(three.end_of(given.request).is_some());
}

#[test]
fn rights_in_an_answer_that_nobody_waits_for_are_given_back() {
    // With its record; in a transfer; announced, so that nothing of it is read.
    for bytes in [0, 100_000, 5 << 20] {
        let mut three = Three::new(true);
        let to_giver = three.flow(RECEIVER, GIVER, PORTS[1]);
        let asked = three.nodes[RECEIVER].request(to_giver, DOMAIN, None, Message::short(b"ask"));
        three.carry();
        let request = three.machines[GIVER].0.pop().unwrap().request.unwrap();
        three.nodes[RECEIVER].abandon(three.now, asked.unwrap());
        let gift = Gift::Port(PORTS[0]);
        let peer = request.peer;
        let given = three.nodes[GIVER].give(peer, request.association, DOMAIN, gift);
        let given = given.unwrap();
        let mut reply = match bytes {
            0 => Message::short(b"reply"),
            bytes => Message::long(b"reply", &[bytes], bytes),
        };
        reply.rights.push(given);
        let answered = three.nodes[GIVER].answer(request, Answer::Reply(reply));
        answered.unwrap();
        three.carry();
        three.pass(20 * ACKNOWLEDGE_WITHIN);
        let ended = Some(&Outcome::Answered(Answer::Dropped));
        assert_eq!(three.end_of(given.request), ended, "{bytes}");
        let view = three.nodes[GIVER].view(id(RECEIVER)).unwrap();
        assert_eq!(
            (view.given, view.answers_kept, view.control_kept),
            (0, 0, 0)
        );
    }
}

#[test]
fn a_message_that_is_lost_gives_its_rights_back() {
    let mut three = Three::new(true);
    let to_receiver = three.flow(GIVER, RECEIVER, PORTS[0]);
    let given = [Gift::Once, Gift::Port(PORTS[0])];
    let given = given.map(|gift| give(&mut three, to_receiver, gift));
    let mut message = Message::short(b"lost");
    message.rights.extend(given);
    three.nodes[GIVER].send(to_receiver, message).unwrap();
    let now = three.now;
    let why = portolan_abi::node::DeadReason::Closed;
    three.nodes[RECEIVER].remove_port(now, PORTS[0], why);
    three.carry();
    for given in given {
        assert_eq!(three.end_of(given.request), Some(&Outcome::PortDead));
    }
}

#[test]
fn no_secret_goes_over_a_connection_that_proves_nothing() {
    let mut three = Three::new(false);
    let to_receiver = three.flow(GIVER, RECEIVER, PORTS[0]);
    let (peer, association) = (to_receiver.peer, to_receiver.association);
    let given = three.nodes[GIVER].give(peer, association, DOMAIN, Gift::Once);
    assert!(matches!(given, Err(Unsent::NoRights { node }) if node == peer));
    // An association in which rights go does not go on over one.
    let mut three = Three::new(true);
    let to_receiver = three.flow(GIVER, RECEIVER, PORTS[0]);
    for index in [GIVER, RECEIVER] {
        three.nodes[index].disconnected(three.now, between(GIVER, RECEIVER));
    }
    three.link(GIVER, RECEIVER, false);
    let given = give(&mut three, to_receiver, Gift::Port(PORTS[0]));
    let mut message = Message::short(b"secret");
    message.rights.push(given);
    three.nodes[GIVER].send(to_receiver, message).unwrap();
    three.carry();
    assert!(three.machines[RECEIVER].0.is_empty());
    assert!(three.nodes[GIVER].connection(id(RECEIVER)).is_none());
    for index in [GIVER, RECEIVER] {
        three.nodes[index].disconnected(three.now, between(GIVER, RECEIVER));
    }
    three.link(GIVER, RECEIVER, true);
    three.carry();
    assert_eq!(
        three.machines[RECEIVER].0.len(),
        1,
        "it has waited for this one"
    );
}
