//! Neighbouring wire versions: what two nodes said to one another is in a file for each version that
//! was ever spoken, and today's node understands either side of it.
//!
//! `transcripts/wire-N.txt`, and `wire-N-rights.txt` of nodes that both take rights in messages
//! (`FEATURE_RIGHTS`), has a line for each record, as it was said, in hexadecimal digits:
//!
//! ```text
//! > ...    hall says a record; the ports are its own
//! < ...    roof says a record
//! <f ...   roof says a fragment: its head, and the record that it may open with; no payload
//! ! ...    roof's driver does something
//! ```
//!
//! A file is written once, by the build that first speaks the version (`PORTOLAN_RECORD=1`), and never
//! again.

use crate::wire::Machine;
use portolan_abi::node::{
    ByeReason, FragmentHead, Hello, NodeId, PortId, Record, RecordFlags, RecordHead, Sent,
    Versions, WIRE,
};
use portolan_proto::Time;
use portolan_proto::node::{
    Answer, Authenticated, ConnectionId, DomainKey, Event, FlowKey, Gift, Leads, Message, Node,
    Outcome, Place, PortKey, PortSettings, RequestKey, Settings,
};
use std::path::PathBuf;

const HALL: NodeId = NodeId([1; 16]);
const ROOF: NodeId = NodeId([2; 16]);
const DOMAIN: DomainKey = DomainKey(1);
const WIRE_ID: ConnectionId = ConnectionId(1);
const NOW: Time = Time(1_000_000);

/// What is recorded of each version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Script {
    /// Of nodes that have no feature in common.
    Plain,
    /// Of nodes that take rights.
    Rights,
}

impl Script {
    const ALL: [Self; 2] = [Self::Plain, Self::Rights];

    /// What roof's driver does, in this order; between two of them all is carried.
    fn steps(self) -> &'static [&'static str] {
        match self {
            Self::Plain => &["resolve", "send", "request", "long", "close"],
            Self::Rights => &["resolve", "give", "close"],
        }
    }

    fn file(self, version: u16) -> PathBuf {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/transcripts");
        let file = match self {
            Self::Plain => format!("wire-{version}.txt"),
            Self::Rights => format!("wire-{version}-rights.txt"),
        };
        PathBuf::from(folder).join(file)
    }

    /// The two nodes.
    fn ends(self) -> (End, End) {
        let proven = self == Self::Rights;
        (End::new(HALL, ROOF, proven), End::new(ROOF, HALL, proven))
    }

    /// What they have when all was done.
    fn check(self, hall: &End, roof: &End) {
        match self {
            Self::Plain => {
                hall.check_hall();
                roof.check_roof();
            }
            Self::Rights => check_rights(hall, roof),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(digits: &str) -> Vec<u8> {
    let pairs = (0..digits.len()).step_by(2);
    pairs
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
        .collect()
}

/// One of the two nodes, with its driver.
struct End {
    node: Node<u64>,
    machine: Machine,
    /// Of roof: its flows, to a port of messages and to one of requests.
    flows: Vec<FlowKey>,
    asked: Vec<RequestKey>,
    ended: Vec<Outcome<u64>>,
    answered: usize,
}

impl End {
    fn new(id: NodeId, peer: NodeId, proven: bool) -> Self {
        let mut node = Node::new(Settings::new(id, 1, [7; 16]));
        node.set_name(if id == HALL { "hall" } else { "roof" })
            .unwrap();
        node.set_budget(DOMAIN, 64 << 20);
        for (port, synchronous) in [(1, false), (2, true)] {
            let settings = PortSettings {
                id: PortId {
                    origin: id,
                    serial: port,
                },
                key: [5; 16],
                domain: DOMAIN,
                synchronous,
                slots: 8,
            };
            node.add_port(PortKey(port), settings);
        }
        let with = Authenticated {
            node: peer,
            expires: None,
            dialed: id == ROOF,
            proven,
        };
        node.connected(NOW, WIRE_ID, with);
        Self {
            node,
            machine: Machine::default(),
            flows: Vec::new(),
            asked: Vec::new(),
            ended: Vec::new(),
            answered: 0,
        }
    }

    /// Does what the driver does of itself: ports are lent by name, requests answered.
    fn settle(&mut self) {
        while let Some(event) = self.node.poll_event() {
            match event {
                Event::Resolve { flow, name, .. } => {
                    let port = PortKey(name.parse().unwrap());
                    self.node.lend(NOW, flow, Ok(port)).unwrap();
                }
                Event::Claim { flow, port } => self.node.lend(NOW, flow, Ok(port)).unwrap(),
                Event::Borrowed { flow, .. } => {
                    let (flow, message) = (flow.unwrap(), Message::short(b"by right"));
                    self.node.send(flow, message).unwrap();
                    // As its home wants to know when no right leads there.
                    self.node.close(flow).unwrap();
                }
                Event::Ended { outcome, .. } => self.ended.push(outcome),
                Event::Close { violation, .. } => assert_eq!(violation, None),
                _ => {}
            }
        }
        while let Some(delivery) = self.machine.0.get(self.answered) {
            self.answered += 1;
            for given in &delivery.message.rights {
                let answer = match given.leads {
                    Leads::There => {
                        self.node.borrow(NOW, given);
                        continue;
                    }
                    Leads::Back => Answer::Reply(Message::short(b"used")),
                    Leads::Here(_) | Leads::Nowhere | Leads::Receive => Answer::Dropped,
                };
                self.node.answer(given.request, answer).unwrap();
            }
            if let Some(request) = delivery.request {
                let reply = Answer::Reply(Message::short(b"reply"));
                self.node.answer(request, reply).unwrap();
            }
        }
    }

    fn act(&mut self, what: &str) {
        match what {
            "resolve" => {
                for port in ["1", "2"] {
                    self.flows.push(self.node.resolve(HALL, "d", port).unwrap());
                }
            }
            "send" => {
                for number in 0..3_u8 {
                    let message = Message::short(&[number; 5]);
                    self.node.send(self.flows[0], message).unwrap();
                }
                let inline = Message::long(b"inline", &[700], 700);
                self.node.send(self.flows[0], inline).unwrap();
            }
            "request" => {
                let asked = self
                    .node
                    .request(self.flows[1], DOMAIN, None, Message::short(b"ask"));
                self.asked.push(asked.unwrap());
            }
            "long" => {
                let long = Message::long(b"long", &[100_000, 1], 100_001);
                self.node.send(self.flows[0], long).unwrap();
            }
            "give" => {
                self.node.want_senders(PortKey(1));
                let (to, home) = (self.flows[0], self.flows[1]);
                let mut message = Message::short(b"give");
                for gift in [Gift::Port(PortKey(1)), Gift::Once, Gift::Flow(home)] {
                    let given = self.node.give(HALL, to.association, DOMAIN, gift);
                    message.rights.push(given.unwrap());
                }
                self.node.send(to, message).unwrap();
            }
            "close" => {
                for flow in &self.flows {
                    self.node.close(*flow).unwrap();
                }
            }
            other => panic!("{other}"),
        }
        self.settle();
    }

    fn hears(&mut self, record: &[u8]) {
        self.node.receive(NOW, WIRE_ID, record, &mut self.machine);
        self.settle();
    }

    fn hears_fragment(&mut self, bytes: &[u8]) {
        let (head, record) = bytes.split_at(FragmentHead::BYTES);
        match self.node.fragment(NOW, WIRE_ID, head).1 {
            Place::Record => self
                .node
                .opened(NOW, WIRE_ID, head, record, &mut self.machine),
            Place::Into(..) => {
                let machine = &mut self.machine;
                self.node.fragment_received(NOW, WIRE_ID, head, machine);
            }
            Place::Discard => {}
        }
        self.settle();
    }

    /// What it says next: a line of a transcript, without whose it is.
    fn says(&mut self) -> Option<(bool, Vec<u8>)> {
        if let Some(record) = self.node.poll_record(NOW, WIRE_ID) {
            let mut bytes = record.bytes;
            // The short payload, whose bytes nothing here has.
            let payload = record.payload.map_or(0, |(_, length)| length);
            bytes.resize(bytes.len() + usize::try_from(payload).unwrap(), 0);
            return Some((false, bytes));
        }
        let fragment = self.node.poll_fragment(NOW, WIRE_ID)?;
        let mut bytes = fragment.head.encode().to_vec();
        bytes.extend(fragment.record);
        Some((true, bytes))
    }

    /// What hall has when all of the script was done.
    fn check_hall(&self) {
        let came = self.machine.0.iter();
        let headers: Vec<_> = came.map(|it| it.message.header.clone()).collect();
        let wanted: [&[u8]; 6] = [&[0; 5], &[1; 5], &[2; 5], b"inline", b"ask", b"long"];
        assert_eq!(headers, wanted);
        let long = &self.machine.0[5].message;
        assert_eq!(
            (&long.lengths[..], long.payload),
            (&[100_000, 1][..], Some(100_001))
        );
        let flows = [1, 2].map(|port| self.node.flows_to(PortKey(port)));
        assert_eq!(flows, [0, 0], "they were closed");
    }

    /// What roof has.
    fn check_roof(&self) {
        let [Outcome::Answered(Answer::Reply(reply))] = &self.ended[..] else {
            panic!("{:?}", self.ended);
        };
        assert_eq!(reply.header, b"reply");
        for flow in &self.flows {
            assert_eq!(self.node.first_kept(*flow), None, "nothing is kept");
        }
    }
}

/// Hall was given three rights: on a port of roof's, to send once, and on a port of its own.
fn check_rights(hall: &End, roof: &End) {
    let [came] = &hall.machine.0[..] else {
        panic!("{:?}", hall.machine.0);
    };
    let leads: Vec<Leads> = came.message.rights.iter().map(|it| it.leads).collect();
    assert_eq!(leads, [Leads::There, Leads::Back, Leads::Here(PortKey(2))]);
    let [came] = &roof.machine.0[..] else {
        panic!("{:?}", roof.machine.0);
    };
    assert_eq!(
        (came.port, &came.message.header[..]),
        (PortKey(1), &b"by right"[..])
    );
    assert_eq!(roof.node.flows_to(PortKey(1)), 0, "it was closed");
    let used = Outcome::Answered(Answer::Reply(Message::short(b"used")));
    assert_eq!(roof.ended.len(), 3);
    assert!(roof.ended.contains(&used));
    let view = roof.node.view(HALL).unwrap();
    assert_eq!((view.given, view.control_kept), (0, 0));
}

/// Today's nodes, in the form of a file.
fn transcript(script: Script) -> String {
    let (mut hall, mut roof) = script.ends();
    let mut lines = Vec::new();
    let carry = |hall: &mut End, roof: &mut End, lines: &mut Vec<String>| loop {
        if let Some((is_fragment, bytes)) = hall.says() {
            assert!(!is_fragment, "hall has nothing long to say");
            lines.push(format!("> {}", hex(&bytes)));
            roof.hears(&bytes);
        } else if let Some((is_fragment, bytes)) = roof.says() {
            if is_fragment {
                lines.push(format!("<f {}", hex(&bytes)));
                hall.hears_fragment(&bytes);
            } else {
                lines.push(format!("< {}", hex(&bytes)));
                hall.hears(&bytes);
            }
        } else {
            break;
        }
    };
    carry(&mut hall, &mut roof, &mut lines);
    for what in script.steps() {
        lines.push(format!("! {what}"));
        roof.act(what);
        carry(&mut hall, &mut roof, &mut lines);
    }
    script.check(&hall, &roof);
    lines.join("\n") + "\n"
}

fn recorded(version: u16, script: Script) -> String {
    let path = script.file(version);
    if std::env::var_os("PORTOLAN_RECORD").is_some() && !path.exists() && version == WIRE.highest {
        std::fs::write(&path, transcript(script)).unwrap();
    }
    std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}: run with PORTOLAN_RECORD=1", path.display()))
}

fn all() -> impl Iterator<Item = (u16, Script)> {
    let versions = WIRE.lowest..=WIRE.highest;
    versions.flat_map(|version| Script::ALL.map(|script| (version, script)))
}

#[test]
fn each_version_that_is_spoken_was_recorded_and_is_decoded_whole() {
    for (version, script) in all() {
        let text = recorded(version, script);
        for line in text.lines().filter(|line| line.starts_with(['>', '<'])) {
            let (whose, digits) = line.split_once(' ').unwrap();
            let bytes = unhex(digits);
            let record = match whose {
                "<f" => {
                    let (head, record) = bytes.split_at(FragmentHead::BYTES);
                    let read = FragmentHead::decode(head).unwrap();
                    assert_eq!(read.encode()[..], *head);
                    record
                }
                _ => &bytes[..],
            };
            if whose != "<f" {
                let (head, read) = Record::decode(record).unwrap();
                let sent = Sent {
                    flags: head.flags,
                    flow: head.flow,
                    number: u64::from(head.number),
                };
                assert_eq!(read.unwrap().with(sent), record, "{line}");
            }
        }
    }
}

#[test]
fn a_node_of_today_understands_either_side_of_each_recorded_version() {
    for (version, script) in all() {
        let text = recorded(version, script);
        let (mut hall, mut roof) = script.ends();
        for line in text.lines() {
            let (whose, rest) = line.split_once(' ').unwrap();
            match whose {
                // Of what they say themselves only that they say it counts.
                ">" => {
                    while roof.says().is_some() {}
                    roof.hears(&unhex(rest));
                }
                "<" => {
                    while hall.says().is_some() {}
                    hall.hears(&unhex(rest));
                }
                "<f" => {
                    while hall.says().is_some() {}
                    hall.hears_fragment(&unhex(rest));
                }
                "!" => {
                    roof.act(rest);
                    while roof.says().is_some() {}
                }
                other => panic!("{other}"),
            }
        }
        script.check(&hall, &roof);
    }
}

/// The lines of a transcript in their order, and those of acknowledgements, which may be said at once
/// or later: when, is no part of a version.
fn said(transcript: &str) -> (Vec<&str>, Vec<&str>) {
    let is_acknowledgement = |line: &&str| {
        let record = line
            .split_once(' ')
            .filter(|(whose, _)| *whose != "<f" && *whose != "!");
        record.is_some_and(|(_, bytes)| {
            let bytes = unhex(bytes);
            let record = Record::decode(&bytes);
            matches!(
                record,
                Ok((_, Some(Record::Ack | Record::AckAnswer { .. })))
            )
        })
    };
    let (mut acknowledged, said): (Vec<_>, Vec<_>) =
        transcript.lines().partition(is_acknowledgement);
    acknowledged.sort_unstable();
    (said, acknowledged)
}

#[test]
fn today_is_as_it_was_recorded() {
    // A change of these bytes is a new version: raise WIRE, and record it.
    for script in Script::ALL {
        let (today, then) = (transcript(script), recorded(WIRE.highest, script));
        assert_eq!(said(&today), said(&then));
    }
}

/// The greeting of hall's, as one of another version would say it.
fn greeting(versions: Versions, features: u64) -> Vec<u8> {
    let mut hall = End::new(HALL, ROOF, false);
    let (_, bytes) = hall.says().unwrap();
    let Ok((
        _,
        Some(Record::Hello(Hello {
            mut body,
            name,
            known,
        })),
    )) = Record::decode(&bytes)
    else {
        panic!("the first record is the greeting");
    };
    body.versions = versions;
    body.features = features;
    Record::Hello(Hello { body, name, known }).with(Sent::default())
}

#[test]
fn a_later_build_that_speaks_this_version_too_is_a_peer_and_its_new_records_are_skipped() {
    let mut roof = End::new(ROOF, HALL, false);
    while roof.says().is_some() {}
    let (lowest, highest) = (WIRE.highest, WIRE.highest + 3);
    roof.hears(&greeting(Versions { lowest, highest }, u64::MAX));
    roof.hears(&Record::Resumed.with(Sent::default()));
    assert!(roof.node.view(HALL).is_some());
    // A record that is not known here: skipped if it says so.
    let unknown = |flags| {
        let head = RecordHead {
            length: 20,
            kind: 0x7ff,
            flags,
            flow: 0,
            number: 0,
        };
        [&head.encode()[..], b"new!"].concat()
    };
    roof.hears(&unknown(RecordFlags::OPTIONAL));
    assert!(roof.node.view(HALL).is_some());
    roof.node
        .receive(NOW, WIRE_ID, &unknown(RecordFlags(0)), &mut roof.machine);
    assert!(
        roof.node.view(HALL).is_none(),
        "and ends the association if not"
    );
}

#[test]
fn a_build_without_a_common_version_is_told_so() {
    let mut roof = End::new(ROOF, HALL, false);
    while roof.says().is_some() {}
    let versions = Versions {
        lowest: WIRE.highest + 1,
        highest: WIRE.highest + 2,
    };
    roof.hears(&greeting(versions, 0));
    assert!(roof.node.view(HALL).is_none());
    let (_, farewell) = roof.says().unwrap();
    let (_, Some(Record::Bye(bye))) = Record::decode(&farewell).unwrap() else {
        panic!("it says why");
    };
    assert_eq!(bye.reason, ByeReason::Version);
}
