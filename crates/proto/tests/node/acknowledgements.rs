//! Acknowledgements go with the next record, alone after a short while, and hold up nothing.

use crate::wire::{Machine, bytes_of};
use portolan_abi::node::{NodeId, PortId, Record};
use portolan_proto::Time;
use portolan_proto::node::{
    ACKNOWLEDGE_WITHIN, Answer, Authenticated, ConnectionId, DomainKey, Event, FlowKey, Message,
    Node, Outcome, PortKey, PortSettings, RequestKey, Settings,
};
use std::time::Duration;

const IDS: [NodeId; 2] = [NodeId([1; 16]), NodeId([2; 16])];
const DOMAIN: DomainKey = DomainKey(1);
/// The port of hall that takes requests, and the one that takes messages.
const ASKS: PortKey = PortKey(1);
const TAKES: PortKey = PortKey(2);
/// How long they may be late where nothing is likely to wait for them.
const LONGER: Duration = Duration::from_millis(10);
/// Hall has the ports, and roof asks.
const HALL: usize = 0;
const ROOF: usize = 1;

struct Pair {
    now: Time,
    wire: ConnectionId,
    nodes: [Node<u64>; 2],
    machines: [Machine; 2],
    ended: Vec<Outcome<u64>>,
    asks: FlowKey,
    takes: FlowKey,
}

impl Pair {
    /// Linked, with a flow to each port, and nothing that is still to be said.
    fn new() -> Self {
        let mut nodes = IDS.map(|id| Node::new(Settings::new(id, 1, [7; 16])));
        for (port, synchronous) in [(ASKS, true), (TAKES, false)] {
            let settings = PortSettings {
                id: PortId {
                    origin: IDS[HALL],
                    serial: port.0,
                },
                key: [5; 16],
                domain: DOMAIN,
                synchronous,
                slots: 64,
            };
            nodes[HALL].add_port(port, settings);
        }
        let none = FlowKey {
            peer: IDS[HALL],
            association: 0,
            flow: 0,
        };
        let mut pair = Self {
            now: Time(1_000_000),
            wire: ConnectionId(1),
            nodes,
            machines: Default::default(),
            ended: Vec::new(),
            asks: none,
            takes: none,
        };
        pair.connect();
        let flow = |pair: &mut Self, name: &str| {
            let flow = pair.nodes[ROOF].resolve(IDS[HALL], "d", name).unwrap();
            pair.settle();
            flow
        };
        pair.asks = flow(&mut pair, "1");
        pair.takes = flow(&mut pair, "2");
        pair
    }

    fn connect(&mut self) {
        for at in 0..2 {
            let with = Authenticated {
                node: IDS[1 - at],
                expires: None,
                dialed: at == HALL,
                proven: true,
            };
            self.nodes[at].connected(self.now, self.wire, with);
        }
        self.settle();
    }

    /// What a node writes in one turn, which the other one reads: the names of the records.
    fn turn(&mut self, at: usize) -> Vec<String> {
        let mut names = Vec::new();
        while let Some(record) = self.nodes[at].poll_record(self.now, self.wire) {
            let bytes = bytes_of(record);
            let read = format!("{:?}", Record::decode(&bytes).unwrap().1.unwrap());
            let name = read.split([' ', '(', '{']).next().unwrap();
            names.push(name.to_owned());
            let home = &mut self.machines[1 - at];
            self.nodes[1 - at].receive(self.now, self.wire, &bytes, home);
        }
        for node in [HALL, ROOF] {
            while let Some(event) = self.nodes[node].poll_event() {
                match event {
                    Event::Resolve { flow, name, .. } => {
                        let port = PortKey(name.parse().unwrap());
                        self.nodes[node].lend(self.now, flow, Ok(port)).unwrap();
                    }
                    Event::Ended { outcome, .. } => self.ended.push(outcome),
                    _ => {}
                }
            }
        }
        names
    }

    /// Turns until nobody has anything to say now.
    fn settle(&mut self) {
        while !self.turn(HALL).is_empty() || !self.turn(ROOF).is_empty() {}
    }

    fn ask(&mut self) {
        let asked = Message::short(b"ask");
        let asked = self.nodes[ROOF].request(self.asks, DOMAIN, None, asked);
        asked.unwrap();
    }

    /// The requests that have come to hall and were not answered.
    fn came(&mut self) -> Vec<RequestKey> {
        let came = self.machines[HALL].0.drain(..);
        came.filter_map(|delivery| delivery.request).collect()
    }

    fn answer(&mut self, request: RequestKey, bytes: u64) {
        let reply = match bytes {
            0 => Message::short(b"answer"),
            _ => Message::long(b"answer", &[bytes], bytes),
        };
        let reply = Answer::Reply(reply);
        self.nodes[HALL].answer(request, reply).unwrap();
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now.after(time);
        self.nodes
            .iter_mut()
            .for_each(|node| node.timeout(self.now));
    }

    /// What hall has of the flow of requests is acknowledged: so many.
    fn acknowledged(&self) -> u64 {
        self.nodes[ROOF].first_kept(self.asks).unwrap()
    }
}

#[test]
fn a_request_and_its_answer_are_one_write_each() {
    let mut pair = Pair::new();
    for number in 0..10 {
        pair.ask();
        let asked = pair.turn(ROOF);
        match number {
            0 => assert_eq!(asked, ["Message"]),
            _ => assert_eq!(asked, ["Message", "AckAnswer"]),
        }
        let [request] = pair.came()[..] else {
            panic!("one request came");
        };
        assert!(pair.turn(HALL).is_empty(), "the server has not answered");
        pair.answer(request, 0);
        assert_eq!(pair.turn(HALL), ["Answer", "Ack"]);
        assert_eq!(pair.acknowledged(), number + 1);
        assert!(pair.turn(ROOF).is_empty(), "it waits for the next request");
        assert_eq!(pair.ended.len() as u64, number + 1);
    }
}

#[test]
fn an_acknowledgement_goes_alone_after_a_short_while() {
    let mut pair = Pair::new();
    pair.ask();
    pair.turn(ROOF);
    let [request] = pair.came()[..] else {
        panic!("one request came");
    };
    let due = pair.now.after(ACKNOWLEDGE_WITHIN);
    assert_eq!(pair.nodes[HALL].next_timeout(), Some(due));
    pair.pass(ACKNOWLEDGE_WITHIN);
    assert!(
        pair.nodes[HALL].next_timeout() > Some(pair.now),
        "it is said, and not again"
    );
    assert_eq!(pair.turn(HALL), ["Ack"]);
    assert_eq!(pair.acknowledged(), 1);
    pair.answer(request, 0);
    assert_eq!(pair.turn(HALL), ["Answer"]);
    pair.pass(ACKNOWLEDGE_WITHIN);
    assert!(pair.turn(ROOF).is_empty(), "no program waits for it");
    pair.pass(LONGER);
    assert_eq!(pair.turn(ROOF), ["AckAnswer"]);
    assert_eq!(pair.nodes[HALL].view(IDS[ROOF]).unwrap().answers_kept, 0);
    assert!(pair.turn(HALL).is_empty() && pair.turn(ROOF).is_empty());
}

/// While answers come in time a node waits for no time that is near.
#[test]
fn acknowledgements_that_ride_again_and_again_may_be_later() {
    let mut pair = Pair::new();
    let asked = |pair: &mut Pair| {
        pair.ask();
        pair.turn(ROOF);
        let [request] = pair.came()[..] else {
            panic!("one request came");
        };
        let due = pair.nodes[HALL].next_timeout().unwrap();
        (request, due.since(pair.now))
    };
    for number in 0..20 {
        let (request, late) = asked(&mut pair);
        let expected = if number < 8 {
            ACKNOWLEDGE_WITHIN
        } else {
            LONGER
        };
        assert_eq!(late, expected, "{number}");
        pair.answer(request, 0);
        assert_eq!(pair.turn(HALL), ["Answer", "Ack"]);
        assert!(pair.nodes[ROOF].next_timeout() >= Some(pair.now.after(LONGER)));
    }
    // A server that takes longer ends that.
    let (request, _) = asked(&mut pair);
    pair.pass(LONGER);
    assert_eq!(pair.turn(HALL), ["Ack"]);
    pair.answer(request, 0);
    pair.settle();
    assert_eq!(asked(&mut pair).1, ACKNOWLEDGE_WITHIN);
}

#[test]
fn further_requests_do_not_wait_for_the_acknowledgement_of_the_first() {
    let mut pair = Pair::new();
    for number in 1..=4 {
        pair.ask();
        pair.turn(ROOF);
        assert!(pair.turn(HALL).is_empty());
        assert_eq!(pair.machines[HALL].0.len(), number);
    }
    // The flow has said nothing of more to come, and waits now.
    pair.ask();
    assert!(pair.turn(ROOF).is_empty());
    pair.pass(ACKNOWLEDGE_WITHIN);
    pair.settle();
    assert_eq!(pair.machines[HALL].0.len(), 5);
}

#[test]
fn a_message_is_acknowledged_at_once() {
    let mut pair = Pair::new();
    pair.nodes[ROOF]
        .send(pair.takes, Message::short(b"said"))
        .unwrap();
    assert_eq!(pair.turn(ROOF), ["Message"]);
    assert_eq!(pair.turn(HALL), ["Ack"]);
}

#[test]
fn much_that_waits_for_its_acknowledgement_has_it_said_at_once() {
    let mut pair = Pair::new();
    for _ in 0..8 {
        pair.ask();
        pair.settle();
        pair.pass(ACKNOWLEDGE_WITHIN);
        pair.settle();
    }
    // A window's part, or 64 KiB: four of these, or a few more.
    let mut said = Vec::new();
    for request in pair.came() {
        pair.answer(request, 16 << 10);
        assert_eq!(pair.turn(HALL), ["Answer"]);
        said.push(pair.turn(ROOF).len());
    }
    assert_eq!(said, [0, 0, 0, 4, 0, 0, 0, 4]);
}

#[test]
fn what_was_late_when_the_connection_ended_is_said_over_the_next_one() {
    let mut pair = Pair::new();
    pair.ask();
    pair.turn(ROOF);
    assert_eq!(pair.acknowledged(), 0);
    for node in &mut pair.nodes {
        node.disconnected(pair.now, pair.wire);
    }
    assert!(
        pair.nodes[HALL].next_timeout() > Some(pair.now.after(ACKNOWLEDGE_WITHIN)),
        "nothing is late any more"
    );
    pair.wire = ConnectionId(2);
    pair.connect();
    assert_eq!(pair.acknowledged(), 1);
    assert_eq!(pair.came().len(), 1, "it did not come twice");
}
