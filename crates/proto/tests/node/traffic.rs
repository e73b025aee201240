//! Two nodes, step by step: greetings, silence, certificates, credit, long messages, requests.

use crate::wire::{bytes_of, take_fragment};
use portolan_abi::node::{ByeReason, NodeId, PortId, Record, Sent};
use portolan_proto::Time;
use portolan_proto::node::{
    ACKNOWLEDGE_WITHIN, Answer, Authenticated, ConnectionId, Delivery, Destination, DomainKey,
    Event, FlowKey, Home, Message, Node, Outcome, Over, PortKey, PortSettings, Settings, Unsent,
    Violation, Wall,
};
use std::time::Duration;

const HALL: NodeId = NodeId([1; 16]);
const ROOF: NodeId = NodeId([2; 16]);
const DOMAIN: DomainKey = DomainKey(1);
const FIRST: ConnectionId = ConnectionId(1);

/// What has come to the ports of a machine; its queues have so many free slots.
struct Machine {
    free: usize,
    came: Vec<Delivery<u64>>,
}

impl Home<u64> for Machine {
    fn allocate(&mut self, _: Destination, lengths: &[u64]) -> Option<u64> {
        Some(lengths.iter().sum())
    }

    fn fill(&mut self, payload: &u64, bytes: &[u8]) {
        assert_eq!(*payload, bytes.len() as u64);
    }

    fn deliver(&mut self, delivery: Delivery<u64>) -> Result<(), Delivery<u64>> {
        if self.free == 0 {
            return Err(delivery);
        }
        self.free -= 1;
        self.came.push(delivery);
        Ok(())
    }
}

/// Hall and roof; 0 is hall.
struct Pair {
    now: Time,
    nodes: [Node<u64>; 2],
    machines: [Machine; 2],
    events: [Vec<Event<u64>>; 2],
    /// Bytes of fragments that were carried, and short messages that came among them.
    fragments: u64,
}

fn id(at: usize) -> NodeId {
    [HALL, ROOF][at]
}

fn node(at: usize, incarnation: u64) -> Node<u64> {
    node_of(at, Settings::new(id(at), incarnation, [7; 16]))
}

fn node_of(at: usize, settings: Settings) -> Node<u64> {
    let mut node = Node::new(settings);
    node.set_budget(DOMAIN, 64 << 20);
    for (port, synchronous) in [(1, false), (2, true), (3, false)] {
        let settings = PortSettings {
            id: PortId {
                origin: id(at),
                serial: port,
            },
            key: [5; 16],
            domain: DOMAIN,
            synchronous,
            slots: 8,
        };
        node.add_port(PortKey(port), settings);
    }
    node
}

impl Pair {
    fn new() -> Self {
        let machine = || Machine {
            free: 1000,
            came: Vec::new(),
        };
        Self {
            now: Time(1_000_000),
            nodes: [node(0, 1), node(1, 1)],
            machines: [machine(), machine()],
            events: [Vec::new(), Vec::new()],
            fragments: 0,
        }
    }

    /// Opens a connection that hall (0) or roof (1) has dialed.
    fn connect(&mut self, wire: ConnectionId, dialer: usize, expires: Option<Wall>) {
        for at in 0..2 {
            let with = Authenticated {
                node: id(1 - at),
                expires,
                dialed: at == dialer,
                proven: true,
            };
            self.nodes[at].connected(self.now, wire, with);
        }
    }

    fn cut(&mut self, wire: ConnectionId) {
        for node in &mut self.nodes {
            node.disconnected(self.now, wire);
        }
    }

    /// Carries one record, or fragment; whether there was one.
    fn carry_one(&mut self, wire: ConnectionId, at: usize) -> bool {
        let now = self.now;
        let there = 1 - at;
        if let Some(record) = self.nodes[at].poll_record(now, wire) {
            let bytes = bytes_of(record);
            self.nodes[there].receive(now, wire, &bytes, &mut self.machines[there]);
        } else if let Some(fragment) = self.nodes[at].poll_fragment(now, wire) {
            self.fragments += u64::from(fragment.head.length);
            let (node, home) = (&mut self.nodes[there], &mut self.machines[there]);
            take_fragment(node, (now, wire), &fragment, home);
        } else {
            return false;
        }
        self.look();
        true
    }

    /// Notes events; names are resolved: "1" is the first port.
    fn look(&mut self) {
        for at in 0..2 {
            while let Some(event) = self.nodes[at].poll_event() {
                if let Event::Resolve { flow, name, .. } = &event {
                    let port = PortKey(name.parse().unwrap());
                    self.nodes[at].lend(self.now, *flow, Ok(port)).unwrap();
                }
                self.events[at].push(event);
            }
        }
    }

    fn carry(&mut self, wire: ConnectionId) {
        self.look();
        while self.carry_one(wire, 0) || self.carry_one(wire, 1) {}
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now.after(time);
        for at in 0..2 {
            self.nodes[at].timeout(self.now);
        }
        self.look();
    }

    fn up() -> Self {
        let mut pair = Self::new();
        pair.connect(FIRST, 0, None);
        pair.carry(FIRST);
        pair
    }

    fn flow(&mut self, from: usize, port: &str) -> FlowKey {
        let flow = self.nodes[from].resolve(id(1 - from), "d", port).unwrap();
        self.carry(FIRST);
        flow
    }

    fn has(&self, at: usize, wanted: impl Fn(&Event<u64>) -> bool) -> bool {
        self.events[at].iter().any(wanted)
    }

    fn headers(&self, at: usize) -> Vec<&[u8]> {
        let came = self.machines[at].came.iter();
        came.map(|delivery| &delivery.message.header[..]).collect()
    }
}

#[test]
fn of_two_crossed_connections_that_of_the_smaller_id_stays() {
    let mut pair = Pair::new();
    let second = ConnectionId(2);
    pair.connect(FIRST, 1, None);
    pair.connect(second, 0, None);
    while pair.carry_one(FIRST, 0)
        || pair.carry_one(FIRST, 1)
        || pair.carry_one(second, 0)
        || pair.carry_one(second, 1)
    {}
    for (at, there) in [(0, ROOF), (1, HALL)] {
        assert_eq!(pair.nodes[at].connection(there), Some(second));
        let closes = |event: &Event<u64>| matches!(event, Event::Close { connection, reason: ByeReason::Crossed, .. } if *connection == FIRST);
        assert!(pair.has(at, closes) || pair.has(1 - at, closes));
        // One association, which the change of connections has not ended.
        assert!(!pair.has(at, |event| matches!(event, Event::Over { .. })));
    }
    let views = [pair.nodes[0].view(ROOF), pair.nodes[1].view(HALL)];
    assert_eq!(views[0].as_ref().unwrap().id, views[1].as_ref().unwrap().id);
}

#[test]
fn what_was_cut_off_is_sent_again_and_once() {
    let mut pair = Pair::up();
    let flow = pair.flow(1, "1");
    for name in [b"a", b"b", b"c"] {
        pair.nodes[1].send(flow, Message::short(name)).unwrap();
    }
    // The first one arrives, and its acknowledgement does not.
    assert!(pair.carry_one(FIRST, 1));
    pair.cut(FIRST);
    assert_eq!(pair.headers(0), [b"a"]);
    let second = ConnectionId(2);
    pair.connect(second, 1, None);
    pair.carry(second);
    assert_eq!(pair.headers(0), [b"a", b"b", b"c"]);
    assert!(!pair.has(1, |event| matches!(event, Event::Over { .. })));
}

#[test]
fn who_says_anything_at_all_is_reachable() {
    let mut pair = Pair::up();
    // Hall says what is no record of the association, and is stopped then.
    pair.now = pair.now.after(Duration::from_secs(1));
    pair.nodes[0].set_members(vec![(NodeId([3; 16]), "cellar:7117".to_owned())]);
    assert!(pair.carry_one(FIRST, 0));
    assert!(pair.has(1, |event| matches!(
        event,
        Event::Members { peer: HALL, .. }
    )));
    // Three seconds after its last record of the association, two after it was heard.
    pair.now = pair.now.after(Duration::from_secs(2));
    pair.nodes[1].timeout(pair.now);
    pair.look();
    // Its connection goes on, so nothing would say that it is back.
    assert!(pair.nodes[1].has_resumed(HALL));
    assert!(!pair.has(1, |event| matches!(event, Event::Unreachable { .. })));
    assert!(!pair.nodes[1].peer_view(HALL).unwrap().is_unreachable);
    // Three after it was heard it is, and its connection is closed.
    pair.now = pair.now.after(Duration::from_secs(1));
    pair.nodes[1].timeout(pair.now);
    pair.look();
    assert!(pair.has(1, |event| matches!(
        event,
        Event::Unreachable { peer: HALL, .. }
    )));
    assert!(!pair.nodes[1].has_resumed(HALL));
}

#[test]
fn silence_is_unreachable_and_then_given_up_and_the_other_side_hears_it() {
    let mut pair = Pair::up();
    let flow = pair.flow(1, "2");
    let request = pair.nodes[1]
        .request(flow, DOMAIN, None, Message::short(b"ask"))
        .unwrap();
    pair.carry(FIRST);
    pair.cut(FIRST);
    pair.pass(Duration::from_secs(2));
    // Nobody has noticed: what is sent waits.
    assert!(
        pair.nodes[1]
            .request(flow, DOMAIN, None, Message::short(b"2"))
            .is_ok()
    );
    let since = pair.now;
    pair.pass(Duration::from_secs(2));
    let refused = pair.nodes[1].request(flow, DOMAIN, None, Message::short(b"3"));
    let why = refused.unwrap_err().why;
    assert!(matches!(why, Unsent::Unreachable { node: HALL, since: at } if at < since));
    // It comes back in time: nothing is lost.
    let second = ConnectionId(2);
    pair.connect(second, 1, None);
    pair.carry(second);
    assert!(pair.has(1, |event| matches!(event, Event::Reachable { peer: HALL })));
    assert_eq!(pair.headers(0), [&b"ask"[..], b"2"]);
    pair.cut(second);
    // Roof alone gives hall up.
    pair.now = pair.now.after(Duration::from_secs(31));
    pair.nodes[1].timeout(pair.now);
    pair.look();
    let lost = |event: &Event<u64>| matches!(event, Event::Ended { request: it, outcome: Outcome::NodeLost } if *it == request);
    assert!(pair.has(1, lost));
    let given_up = |event: &Event<u64>| {
        matches!(
            event,
            Event::Over {
                why: Over::GivenUp,
                ..
            }
        )
    };
    assert!(pair.has(1, given_up) && !pair.has(0, given_up));
    pair.connect(ConnectionId(3), 1, None);
    pair.carry(ConnectionId(3));
    assert!(pair.has(0, |event| matches!(
        event,
        Event::Over {
            why: Over::Forgotten,
            ..
        }
    )));
    let gone = pair.nodes[1].send(flow, Message::short(b"late"));
    assert_eq!(gone.unwrap_err().why, Unsent::Dead);
}

#[test]
fn a_new_incarnation_ends_the_association_of_the_old_one() {
    let mut pair = Pair::up();
    let flow = pair.flow(1, "1");
    pair.nodes[1].send(flow, Message::short(b"kept")).unwrap();
    pair.cut(FIRST);
    pair.nodes[0] = node(0, 2);
    pair.connect(ConnectionId(2), 1, None);
    pair.carry(ConnectionId(2));
    assert!(pair.has(1, |event| matches!(
        event,
        Event::Over {
            why: Over::Restarted,
            ..
        }
    )));
    // It was for the old one.
    assert!(pair.machines[0].came.is_empty());
    // The old one, if it shows again, is refused.
    pair.nodes[0] = node(0, 1);
    pair.connect(ConnectionId(3), 0, None);
    pair.carry(ConnectionId(3));
    let refuses = |event: &Event<u64>| {
        matches!(
            event,
            Event::Close {
                reason: ByeReason::Incarnation,
                ..
            }
        )
    };
    assert!(pair.has(1, refuses));
}

#[test]
fn a_certificate_expires_by_the_wall_clock_and_the_association_goes_on() {
    let mut pair = Pair::new();
    let wall = Wall(1_000_000);
    for node in &mut pair.nodes {
        node.set_wall(pair.now, wall);
    }
    pair.connect(FIRST, 0, Some(Wall(wall.0 + 60)));
    pair.carry(FIRST);
    let expires = |event: &Event<u64>| {
        matches!(
            event,
            Event::Close {
                reason: ByeReason::Expired,
                ..
            }
        )
    };
    // The clock jumps back: nothing expires. It jumps on: the connection closes.
    pair.nodes[0].set_wall(pair.now, Wall(5));
    pair.look();
    assert!(!pair.has(0, expires));
    pair.nodes[0].set_wall(pair.now, Wall(wall.0 + 60));
    pair.carry(FIRST);
    assert!(pair.has(0, expires) && pair.nodes[0].view(ROOF).is_some());
    pair.cut(FIRST);
    // With a new certificate it is up again; with the old one it is not.
    pair.connect(ConnectionId(2), 0, Some(Wall(wall.0 + 60)));
    pair.carry(ConnectionId(2));
    assert_eq!(pair.nodes[0].connection(ROOF), None);
    pair.cut(ConnectionId(2));
    pair.connect(ConnectionId(3), 0, Some(Wall(wall.0 + 600)));
    pair.carry(ConnectionId(3));
    assert_eq!(pair.nodes[0].connection(ROOF), Some(ConnectionId(3)));
    assert!(!pair.has(0, |event| matches!(event, Event::Over { .. })));
}

#[test]
fn a_full_port_holds_up_its_own_flow_alone() {
    let mut pair = Pair::up();
    let (stuck, other) = (pair.flow(1, "1"), pair.flow(1, "3"));
    pair.nodes[0].room(pair.now, PortKey(1), 2);
    let mut taken = 0;
    while pair.nodes[1].send(stuck, Message::short(b"x")).is_ok() {
        taken += 1;
        pair.carry(FIRST);
        assert!(taken < 20);
    }
    assert!(
        pair.machines[0].came.is_empty(),
        "a quarter of the queue is left to local senders"
    );
    pair.nodes[1].send(other, Message::short(b"y")).unwrap();
    pair.carry(FIRST);
    assert_eq!(pair.headers(0), [b"y"]);
    // There is room: what waited comes, and the sender is told that it may go on.
    pair.nodes[0].room(pair.now, PortKey(1), 8);
    pair.carry(FIRST);
    assert_eq!(pair.headers(0).len(), 1 + taken);
    assert!(pair.has(
        1,
        |event| matches!(event, Event::Writable { flow } if *flow == stuck)
    ));
}

#[test]
fn a_long_message_is_announced_and_short_ones_pass_it() {
    let mut pair = Pair::up();
    let (long, short) = (pair.flow(1, "1"), pair.flow(1, "3"));
    let bytes = 1 << 30;
    pair.nodes[1]
        .send(long, Message::long(b"long", &[bytes / 2, bytes / 2], bytes))
        .unwrap();
    // It has begun.
    while pair.fragments < 1 << 20 {
        assert!(pair.carry_one(FIRST, 1) || pair.carry_one(FIRST, 0));
    }
    pair.nodes[1].send(short, Message::short(b"short")).unwrap();
    let before = pair.fragments;
    while pair.machines[0].came.is_empty() {
        assert!(pair.carry_one(FIRST, 1) || pair.carry_one(FIRST, 0));
    }
    assert!(pair.fragments - before <= 1 << 20);
    pair.carry(FIRST);
    assert_eq!(pair.headers(0), [&b"short"[..], b"long"]);
    assert_eq!(pair.machines[0].came[1].message.payload, Some(bytes));
    assert_eq!(pair.nodes[0].budget_view(DOMAIN).0, 0);
}

#[test]
fn long_messages_of_a_flow_go_one_after_another_and_two_flows_take_turns() {
    // Sent unasked, and announced.
    for bytes in [1 << 20, 10 << 20] {
        let mut pair = Pair::up();
        let (one, other) = (pair.flow(1, "1"), pair.flow(1, "3"));
        for name in [b"a", b"b", b"c"] {
            let message = Message::long(name, &[bytes], bytes);
            pair.nodes[1].send(one, message).unwrap();
        }
        for wanted in 1..=3 {
            while pair.machines[0].came.len() < wanted {
                assert!(pair.carry_one(FIRST, 0) || pair.carry_one(FIRST, 1));
            }
            // What is behind it has not begun, but for the records that open transfers.
            let behind = pair.fragments - wanted as u64 * bytes;
            assert!(behind < 10_000, "{behind} bytes behind {wanted}");
        }
        assert_eq!(pair.headers(0), [b"a", b"b", b"c"]);
        let before = pair.fragments;
        for (flow, name) in [(one, b"d"), (one, b"e"), (other, b"f")] {
            let message = Message::long(name, &[bytes], bytes);
            pair.nodes[1].send(flow, message).unwrap();
        }
        while pair.machines[0].came.len() < 5 {
            assert!(pair.carry_one(FIRST, 0) || pair.carry_one(FIRST, 1));
        }
        // Two flows have half of the link each, however much one of them has to send.
        let carried = pair.fragments - before;
        assert!(
            carried < 2 * bytes + (512 << 10),
            "{carried} of two messages"
        );
        pair.carry(FIRST);
        let mut last = pair.headers(0)[3..].to_vec();
        last.sort_unstable();
        assert_eq!(last, [b"d", b"e", b"f"]);
        assert_eq!(pair.headers(0)[5], b"e");
    }
}

#[test]
fn one_at_a_time_a_message_waits_until_the_one_before_is_acknowledged() {
    for (one_at_a_time, bytes, expected) in [
        (false, 100, 2),
        (true, 100, 1),
        (false, 1 << 20, 2),
        (true, 1 << 20, 1),
        (true, 10 << 20, 1),
    ] {
        let mut pair = Pair::new();
        let settings = Settings::new(id(1), 1, [7; 16]);
        pair.nodes[1] = node_of(
            1,
            Settings {
                one_at_a_time,
                ..settings
            },
        );
        pair.connect(FIRST, 0, None);
        pair.carry(FIRST);
        let (one, other) = (pair.flow(1, "1"), pair.flow(1, "3"));
        for flow in [one, other] {
            let message = Message::long(b"long", &[bytes], bytes);
            pair.nodes[1].send(flow, message).unwrap();
        }
        // All that this node says until it hears anything.
        while pair.carry_one(FIRST, 1) {}
        let view = pair.nodes[1].view(HALL).unwrap();
        // A short one is charged to the window; a transfer is that, or is announced.
        let begun = view.charged_messages.max(view.transfers_out);
        assert_eq!(begun, expected, "{bytes} B");
        pair.carry(FIRST);
        assert_eq!(pair.headers(0), [b"long", b"long"], "{bytes} B");
    }
}

#[test]
fn requests_end_by_their_answers_deadlines_and_ports() {
    let mut pair = Pair::up();
    let flow = pair.flow(1, "2");
    let deadline = Some(pair.now.after(Duration::from_secs(1)));
    let mut requests = Vec::new();
    for name in [b"a", b"b", b"c"] {
        let made = pair.nodes[1].request(flow, DOMAIN, deadline, Message::short(name));
        requests.push(made.unwrap());
        pair.carry(FIRST);
    }
    let keys: Vec<_> = pair.machines[0]
        .came
        .iter()
        .map(|it| it.request.unwrap())
        .collect();
    // The time left has come along.
    assert_eq!(pair.machines[0].came[0].deadline, deadline);
    let reply = Message::long(b"reply", &[100_000], 100_000);
    pair.nodes[0].answer(keys[0], Answer::Reply(reply)).unwrap();
    pair.nodes[0].answer(keys[1], Answer::ServerDead).unwrap();
    pair.carry(FIRST);
    pair.pass(Duration::from_secs(1));
    let late = pair.nodes[0].answer(keys[2], Answer::Dropped);
    late.unwrap();
    pair.carry(FIRST);
    let ended = |at: usize| {
        let of = pair.events[1].iter().filter_map(|event| match event {
            Event::Ended { request, outcome } if *request == requests[at] => Some(outcome.clone()),
            _ => None,
        });
        of.collect::<Vec<_>>()
    };
    let [Outcome::Answered(Answer::Reply(reply))] = &ended(0)[..] else {
        panic!("{:?}", ended(0));
    };
    assert_eq!(
        (&reply.header[..], reply.payload),
        (&b"reply"[..], Some(100_000))
    );
    assert_eq!(ended(1), [Outcome::Answered(Answer::ServerDead)]);
    assert_eq!(ended(2), [Outcome::TimedOut]);
    // Twice is refused, and nothing is kept.
    assert!(pair.nodes[0].answer(keys[0], Answer::Dropped).is_err());
    pair.pass(20 * ACKNOWLEDGE_WITHIN);
    pair.carry(FIRST);
    assert_eq!(pair.nodes[0].view(ROOF).unwrap().answers_kept, 0);
    // A port that closes ends what had not entered it.
    pair.nodes[0].room(pair.now, PortKey(2), 0);
    let made = pair.nodes[1].request(flow, DOMAIN, None, Message::short(b"d"));
    let made = made.unwrap();
    pair.carry(FIRST);
    let reason = portolan_abi::node::DeadReason::Closed;
    pair.nodes[0].remove_port(pair.now, PortKey(2), reason);
    pair.carry(FIRST);
    let dead = |event: &Event<u64>| matches!(event, Event::Ended { request, outcome: Outcome::PortDead } if *request == made);
    assert!(pair.has(1, dead));
}

#[test]
fn a_violation_ends_its_association_and_says_what_it_was() {
    let mut pair = Pair::up();
    let (now, sent) = (pair.now, Sent::default());
    let bytes = Record::Credit.with(Sent { flow: 9, ..sent });
    pair.nodes[0].receive(now, FIRST, &bytes, &mut pair.machines[0]);
    pair.look();
    let flow = 9;
    let violation = Violation::Flow { flow };
    let closes = |event: &Event<u64>| matches!(event, Event::Close { violation: Some(it), .. } if *it == violation);
    assert!(pair.has(0, closes));
    let over = Over::Violation(violation);
    assert!(pair.has(
        0,
        |event| matches!(event, Event::Over { why, .. } if *why == over)
    ));
    // The peer hears it, and both may begin anew.
    pair.carry(FIRST);
    let bye = Over::Bye(ByeReason::Violation);
    assert!(pair.has(
        1,
        |event| matches!(event, Event::Over { why, .. } if *why == bye)
    ));
    pair.connect(ConnectionId(2), 0, None);
    pair.carry(ConnectionId(2));
    assert!(pair.nodes[0].view(ROOF).is_some() && pair.nodes[1].view(HALL).is_some());
}
