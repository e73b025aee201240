//! Bytes a second to a peer and from it, in virtual time.

use crate::wire::bytes_of;
use portolan_abi::node::{FragmentHead, NodeId, PortId, RecordHead, RecordKind};
use portolan_proto::Time;
use portolan_proto::node::{
    Authenticated, ConnectionId, Delivery, Destination, DomainKey, Event, FlowKey, Home, Message,
    Node, Place, PortKey, PortSettings, Rates, Settings, Unsent,
};
use std::collections::VecDeque;
use std::time::Duration;

const HALL: NodeId = NodeId([1; 16]);
const ROOF: NodeId = NodeId([2; 16]);
const DOMAIN: DomainKey = DomainKey(1);
const WIRE: ConnectionId = ConnectionId(1);
/// What [`Rates`] let go at once, at rates below a megabyte a second or so.
const BURST: u64 = 64 * 1024;
/// What may go beyond: the last fragment or record.
const LAST: u64 = 32 * 1024;

/// What has come to the ports: when, the port, and the header.
#[derive(Default)]
struct Machine {
    now: Time,
    came: Vec<(Time, PortKey, Vec<u8>)>,
}

impl Home<u64> for Machine {
    fn allocate(&mut self, _: Destination, lengths: &[u64]) -> Option<u64> {
        Some(lengths.iter().sum())
    }

    fn fill(&mut self, payload: &u64, bytes: &[u8]) {
        assert_eq!(*payload, bytes.len() as u64);
    }

    fn deliver(&mut self, it: Delivery<u64>) -> Result<(), Delivery<u64>> {
        self.came.push((self.now, it.port, it.message.header));
        Ok(())
    }
}

/// What is on its way by one stream: bytes of each part that were not read yet.
enum Part {
    Record(Vec<u8>),
    Fragment(FragmentHead, Vec<u8>),
}

#[derive(Default)]
struct Stream(VecDeque<(usize, Part)>);

/// Hall (0) and roof (1), with a link that takes no time.
struct Pair {
    now: Time,
    nodes: [Node<u64>; 2],
    machines: [Machine; 2],
    /// From each: records, fragments.
    streams: [[Stream; 2]; 2],
    /// Bytes of messages, fragments and all else that each has sent, and read.
    sent: [u64; 2],
    read: [u64; 2],
    /// When each may read again.
    reads_at: [Option<Time>; 2],
    events: [Vec<Event<u64>>; 2],
    /// Roof hears no rate.
    is_deaf: bool,
    /// Of the direction from roof: the most that was sent, and read, beyond what these rates make of the
    /// time since they were set.
    bounds: Option<(u64, Time, [u64; 2])>,
    over: [u64; 2],
}

fn id(at: usize) -> NodeId {
    [HALL, ROOF][at]
}

impl Pair {
    fn up() -> Self {
        let node = |at: usize| {
            let mut node = Node::new(Settings::new(id(at), 1, [7; 16]));
            node.set_budget(DOMAIN, 64 << 20);
            for port in [1, 2] {
                let settings = PortSettings {
                    id: PortId {
                        origin: id(at),
                        serial: port,
                    },
                    key: [5; 16],
                    domain: DOMAIN,
                    synchronous: false,
                    slots: 64,
                };
                node.add_port(PortKey(port), settings);
            }
            node
        };
        let mut pair = Self {
            now: Time(1_000_000),
            nodes: [node(0), node(1)],
            machines: <[Machine; 2]>::default(),
            streams: <[[Stream; 2]; 2]>::default(),
            sent: [0; 2],
            read: [0; 2],
            reads_at: [None; 2],
            events: [Vec::new(), Vec::new()],
            is_deaf: false,
            bounds: None,
            over: [0; 2],
        };
        for at in 0..2 {
            let with = Authenticated {
                node: id(1 - at),
                expires: None,
                dialed: at == 0,
                proven: true,
            };
            pair.nodes[at].connected(pair.now, WIRE, with);
        }
        pair.settle();
        pair
    }

    /// What lies beyond the rate, of each of the two that `over` notes, is no more than this.
    #[track_caller]
    fn keeps_to(&self, at: usize, most: u64) {
        let over = self.over[at];
        assert!(over <= most, "{over} bytes beyond the rate, of {most}");
    }

    fn look(&mut self) {
        for at in 0..2 {
            while let Some(event) = self.nodes[at].poll_event() {
                if let Event::Resolve { flow, name, .. } = &event {
                    let port = PortKey(name.parse().unwrap());
                    self.nodes[at].lend(self.now, *flow, Ok(port)).unwrap();
                }
                self.events[at].push(event);
            }
            for port in [1, 2] {
                self.nodes[at].room(self.now, PortKey(port), 64);
            }
        }
    }

    /// Writes what one of them has to say; whether it had something.
    fn write(&mut self, at: usize) -> bool {
        let mut any = false;
        while let Some(record) = self.nodes[at].poll_record(self.now, WIRE) {
            any = true;
            let bytes = bytes_of(record);
            self.sent[at] += bytes.len() as u64;
            let kind = RecordHead::decode(&bytes[..RecordHead::BYTES])
                .unwrap()
                .kind;
            if at == 0 && self.is_deaf && kind == RecordKind::Rate as u16 {
                continue;
            }
            let part = (bytes.len(), Part::Record(bytes));
            self.streams[at][0].0.push_back(part);
        }
        // One at a time: as much as a socket takes while another is written.
        if let Some(fragment) = self.nodes[at].poll_fragment(self.now, WIRE) {
            any = true;
            let payload = fragment
                .payload
                .map_or(0, |(_, range)| range.end - range.start);
            let length = FragmentHead::BYTES + fragment.record.len();
            let length = length + usize::try_from(payload).unwrap();
            self.sent[at] += length as u64;
            let part = (length, Part::Fragment(fragment.head, fragment.record));
            self.streams[at][1].0.push_back(part);
        }
        any
    }

    /// Reads what has come for one of them, as far as it takes it.
    fn receive(&mut self, at: usize) -> bool {
        let (mut any, now) = (false, self.now);
        self.machines[at].now = now;
        for stream in 0..2 {
            while !self.streams[1 - at][stream].0.is_empty() {
                let most = match self.nodes[at].may_take(now, WIRE) {
                    Ok(most) => most,
                    Err(at_time) => {
                        assert!(at_time > now, "it would be called again and again");
                        self.reads_at[at] = Some(at_time);
                        return any;
                    }
                };
                any = true;
                let queue = &mut self.streams[1 - at][stream].0;
                let left = &mut queue.front_mut().unwrap().0;
                let part = most.min(*left);
                *left -= part;
                let is_whole = *left == 0;
                self.read[at] += part as u64;
                self.nodes[at].took(now, WIRE, part);
                if is_whole {
                    let (_, whole) = self.streams[1 - at][stream].0.pop_front().unwrap();
                    self.take(at, whole);
                }
            }
        }
        any
    }

    fn take(&mut self, at: usize, part: Part) {
        let (node, home, now) = (&mut self.nodes[at], &mut self.machines[at], self.now);
        match part {
            Part::Record(bytes) => node.receive(now, WIRE, &bytes, home),
            Part::Fragment(head, record) => {
                let head = head.encode();
                match node.fragment(now, WIRE, &head).1 {
                    Place::Record => node.opened(now, WIRE, &head, &record, home),
                    Place::Into(..) => node.fragment_received(now, WIRE, &head, home),
                    Place::Discard => {}
                }
            }
        }
    }

    /// All that happens at this time.
    fn settle(&mut self) {
        loop {
            self.look();
            let mut any = false;
            for at in 0..2 {
                any |= self.write(at);
                any |= self.receive(at);
            }
            if let Some((rate, since, [sent, read])) = self.bounds {
                let nanos = self.now.since(since).as_nanos();
                let made = u64::try_from(u128::from(rate) * nanos / 1_000_000_000).unwrap();
                let over = [self.sent[1] - sent, self.read[0] - read];
                for (most, bytes) in self.over.iter_mut().zip(over) {
                    *most = (*most).max(bytes.saturating_sub(made));
                }
            }
            if !any {
                break;
            }
        }
        self.look();
    }

    /// Goes on until then; how often somebody was called.
    fn pass(&mut self, time: Duration) -> u64 {
        let until = self.now.after(time);
        let mut calls = 0;
        loop {
            let timeouts = self.nodes.iter().filter_map(Node::next_timeout);
            let next = timeouts
                .chain(self.reads_at.iter().flatten().copied())
                .min();
            let Some(next) = next.filter(|next| *next < until) else {
                break;
            };
            calls += 1;
            self.now = self.now.max(next);
            self.reads_at = self.reads_at.map(|at| at.filter(|at| *at > self.now));
            for node in &mut self.nodes {
                if node.next_timeout().is_some_and(|at| at <= self.now) {
                    node.timeout(self.now);
                }
            }
            self.settle();
        }
        self.now = until;
        self.settle();
        calls
    }

    fn flow(&mut self, port: &str) -> FlowKey {
        let flow = self.nodes[1].resolve(HALL, "d", port).unwrap();
        self.settle();
        flow
    }

    fn send(&mut self, flow: FlowKey, header: &[u8], bytes: u64) -> bool {
        let message = Message {
            lengths: Vec::from_iter((bytes > 0).then_some(bytes)),
            payload: (bytes > 0).then_some(bytes),
            ..Message::short(header)
        };
        match self.nodes[1].send(flow, message) {
            Ok(_) => true,
            Err(refused) => {
                assert_eq!(refused.why, Unsent::Full);
                false
            }
        }
    }

    /// From now on it is noted how much more roof sends, and hall reads, than this rate makes.
    fn watch(&mut self, rate: u64) {
        self.bounds = Some((rate, self.now, [self.sent[1], self.read[0]]));
        self.over = [0; 2];
    }

    fn came(&self, port: u64) -> impl Iterator<Item = (Time, &[u8])> {
        let came = self.machines[0].came.iter();
        let its = came.filter(move |(_, it, _)| *it == PortKey(port));
        its.map(|(at, _, header)| (*at, &header[..]))
    }

    fn is_fine(&self) {
        let bad = |event: &Event<u64>| {
            matches!(
                event,
                Event::Unreachable { .. } | Event::Over { .. } | Event::Close { .. }
            )
        };
        for events in &self.events {
            assert!(!events.iter().any(bad), "{events:?}");
        }
    }
}

fn sends(rate: u64) -> Rates {
    Rates {
        send: Some(rate),
        take: None,
    }
}

fn takes(rate: u64) -> Rates {
    Rates {
        send: None,
        take: Some(rate),
    }
}

#[test]
fn a_long_message_goes_at_the_rate_and_short_ones_between_its_fragments() {
    const RATE: u64 = 1_000_000;
    let mut pair = Pair::up();
    let (long, short) = (pair.flow("1"), pair.flow("2"));
    pair.nodes[1].set_rates(pair.now, HALL, sends(RATE));
    pair.watch(RATE);
    let begin = pair.now;
    assert!(pair.send(long, b"long", 2_000_000));
    let mut slowest = Duration::ZERO;
    let mut calls = 0;
    for number in 0..15_u8 {
        calls += pair.pass(Duration::from_millis(50));
        let sent = pair.now;
        assert!(pair.send(short, &[number], 100));
        pair.settle();
        calls += pair.pass(Duration::from_millis(50));
        let (came, header) = pair.came(2).last().expect("it is between the fragments");
        assert_eq!(header, [number]);
        slowest = slowest.max(came.since(sent));
    }
    assert_eq!(pair.came(1).count(), 0);
    // A fragment makes it owe 10 ms at the most.
    assert!(slowest <= Duration::from_millis(25), "{slowest:?}");
    calls += pair.pass(Duration::from_secs(1));
    let (came, _) = pair.came(1).next().expect("all has come");
    assert!(
        came.since(begin) >= Duration::from_millis(1_900),
        "{came:?}"
    );
    pair.keeps_to(0, BURST + LAST);
    let view = pair.nodes[1].rates(HALL);
    assert!(view.sends_held > 20, "{view:?}");
    assert_eq!(view.set, sends(RATE));
    // Nobody is called in vain: about once in 10 ms.
    assert!(calls < 1_000, "{calls} calls");
    pair.is_fine();
}

#[test]
fn many_short_messages_let_a_long_one_through_and_keep_their_order() {
    const RATE: u64 = 500_000;
    let mut pair = Pair::up();
    let (long, short) = (pair.flow("1"), pair.flow("2"));
    pair.nodes[1].set_rates(pair.now, HALL, sends(RATE));
    pair.watch(RATE);
    assert!(pair.send(long, b"long", 1_000_000));
    let mut number = 0_u32;
    while pair.came(1).count() == 0 {
        while pair.send(short, &number.to_le_bytes(), 8_000) {
            number += 1;
        }
        pair.pass(Duration::from_millis(5));
        assert!(number < 1_000, "the long one is held up");
    }
    let all: Vec<_> = pair.came(2).map(|(_, header)| header.to_vec()).collect();
    let wanted = (0_u32..).map(|number| number.to_le_bytes().to_vec());
    assert!(all.iter().cloned().eq(wanted.take(all.len())));
    // As many bytes as the long one had: half of the link.
    let bytes = all.len() * 8_000;
    assert!((700_000..1_300_000).contains(&bytes), "{bytes}");
    pair.keeps_to(0, BURST + LAST);
    pair.is_fine();
}

#[test]
fn a_peer_is_told_what_is_taken_and_keeps_to_it_so_that_nothing_is_left_unread() {
    const RATE: u64 = 500_000;
    let mut pair = Pair::up();
    let (long, short) = (pair.flow("1"), pair.flow("2"));
    pair.nodes[0].set_rates(pair.now, ROOF, takes(RATE));
    pair.settle();
    assert_eq!(pair.nodes[1].rates(HALL).said, Some(RATE));
    pair.watch(RATE);
    assert!(pair.send(long, b"long", 1_000_000));
    assert!(pair.send(short, b"short", 100));
    pair.pass(Duration::from_secs(1));
    assert_eq!((pair.came(1).count(), pair.came(2).count()), (0, 1));
    pair.pass(Duration::from_secs(2));
    assert_eq!(pair.came(1).count(), 1);
    pair.keeps_to(1, BURST + LAST);
    let (hall, roof) = (pair.nodes[0].rates(ROOF), pair.nodes[1].rates(HALL));
    assert_eq!(hall.takes_held, 0, "it kept to it");
    assert!(roof.sends_held > 0);
    // The lower of its own rate and that.
    pair.nodes[1].set_rates(pair.now, HALL, sends(RATE / 5));
    pair.watch(RATE / 5);
    assert!(pair.send(long, b"2", 200_000));
    pair.pass(Duration::from_secs(3));
    assert_eq!(pair.came(1).count(), 2);
    pair.keeps_to(1, BURST + LAST);
    pair.is_fine();
}

#[test]
fn a_peer_that_keeps_to_no_rate_is_read_at_it_and_its_link_is_not_taken_for_dead() {
    // Less than a record in the time after which a silent peer is unreachable.
    const RATE: u64 = 4_000;
    let mut pair = Pair::up();
    pair.is_deaf = true;
    let (long, short) = (pair.flow("1"), pair.flow("2"));
    pair.nodes[0].set_rates(pair.now, ROOF, takes(RATE));
    pair.settle();
    assert_eq!(pair.nodes[1].rates(HALL).said, None);
    pair.watch(RATE);
    assert!(pair.send(long, b"long", 400_000));
    pair.pass(Duration::from_secs(40));
    // What it may send at once is used up: each of these takes four seconds.
    for number in 0..4 {
        assert!(pair.send(short, &[number], 16_000));
    }
    let calls = pair.pass(Duration::from_secs(120));
    pair.keeps_to(1, 2 * BURST + 64);
    // The bytes of its own ones before that are all of them: it is read all the time.
    assert!(pair.came(2).count() == 4 && pair.came(1).count() == 1);
    let view = pair.nodes[0].rates(ROOF);
    assert!(view.takes_held > 1_000, "{view:?}");
    assert!(calls < 120 * 220, "{calls} calls");
    pair.is_fine();
}

#[test]
fn a_rate_that_is_slower_than_its_pings_and_acknowledgements_keeps_the_link() {
    // Sixteen bytes for a ping's head alone.
    const RATE: u64 = 1_000;
    let mut pair = Pair::up();
    let (long, short) = (pair.flow("1"), pair.flow("2"));
    for at in 0..2 {
        let rates = Rates {
            send: Some(RATE),
            take: Some(RATE),
        };
        pair.nodes[at].set_rates(pair.now, id(1 - at), rates);
    }
    assert!(pair.send(long, b"long", 150_000));
    assert!(pair.send(short, b"short", 100));
    pair.pass(Duration::from_secs(60));
    assert_eq!((pair.came(1).count(), pair.came(2).count()), (0, 1));
    pair.is_fine();
    pair.pass(Duration::from_secs(60));
    assert_eq!(pair.came(1).count(), 1);
    pair.is_fine();
}

#[test]
fn a_rate_that_is_changed_holds_at_once() {
    let mut pair = Pair::up();
    let long = pair.flow("1");
    pair.nodes[1].set_rates(pair.now, HALL, sends(10_000));
    assert!(pair.send(long, b"1", 1_000_000));
    pair.pass(Duration::from_secs(10));
    assert_eq!(pair.came(1).count(), 0);
    // Faster: the rest of it comes within a second, and who waits is called at once.
    pair.nodes[1].set_rates(pair.now, HALL, sends(2_000_000));
    assert!(
        pair.nodes[1]
            .next_timeout()
            .is_some_and(|at| at <= pair.now)
    );
    pair.pass(Duration::from_secs(1));
    assert_eq!(pair.came(1).count(), 1);
    // Slower.
    pair.nodes[1].set_rates(pair.now, HALL, sends(100_000));
    pair.watch(100_000);
    assert!(pair.send(long, b"2", 1_000_000));
    pair.pass(Duration::from_secs(5));
    assert_eq!(pair.came(1).count(), 1);
    pair.keeps_to(0, BURST + LAST);
    // None.
    pair.nodes[1].set_rates(pair.now, HALL, Rates::default());
    pair.pass(Duration::ZERO);
    pair.nodes[1].timeout(pair.now);
    pair.settle();
    assert_eq!(pair.came(1).count(), 2);
    // What is taken, and no more so: the peer hears both.
    for rate in [Some(5_000), None] {
        let rates = Rates {
            send: None,
            take: rate,
        };
        pair.nodes[0].set_rates(pair.now, ROOF, rates);
        pair.settle();
        assert_eq!(pair.nodes[1].rates(HALL).said, rate);
    }
    pair.is_fine();
}

#[test]
fn a_rate_outlives_the_connection_and_is_said_on_the_next_one() {
    let mut pair = Pair::up();
    let long = pair.flow("1");
    let rates = Rates {
        send: Some(50_000),
        take: Some(20_000),
    };
    pair.nodes[0].set_rates(pair.now, ROOF, rates);
    pair.settle();
    for at in 0..2 {
        pair.nodes[at].disconnected(pair.now, WIRE);
    }
    pair.streams = <[[Stream; 2]; 2]>::default();
    assert_eq!(pair.nodes[1].rates(HALL).said, None);
    for at in 0..2 {
        let with = Authenticated {
            node: id(1 - at),
            expires: None,
            dialed: at == 0,
            proven: true,
        };
        pair.nodes[at].connected(pair.now, WIRE, with);
    }
    pair.settle();
    assert_eq!(pair.nodes[1].rates(HALL).said, Some(20_000));
    assert_eq!(pair.nodes[0].rates(ROOF).set, rates);
    pair.watch(20_000);
    assert!(pair.send(long, b"1", 200_000));
    pair.pass(Duration::from_secs(20));
    assert_eq!(pair.came(1).count(), 1);
    pair.keeps_to(1, BURST + LAST);
}
