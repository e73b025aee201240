//! A peer that is authenticated, and sends what no honest node sends, at each stage: its association
//! ends, and nothing else.

use std::time::{Duration, Instant};

use portolan::Access;
use portolan_abi::node::{
    ByeReason, FragmentHead, FragmentKind, Hello, HelloBody, MessageBody, MessageRecord, NodeId,
    Record, RecordHead, Resolve, Sent, WIRE,
};
use portolan_abi::slot::Kind;
use portolan_node::engine::Happened;
use portolan_testkit::PATIENCE;
use portolan_transport::{
    Address, Class, Connection, Destination, Memory, Progress, Source, State, StreamId, Transport,
};

use crate::machine::{DOMAIN, Machine, Network};
use crate::messages::{bind, is_numbered, numbered, send, two};

pub(crate) const ID: NodeId = NodeId([0xee; 16]);

/// The hostile node's end of a connection.
pub(crate) struct Hostile {
    connection: Box<dyn Connection>,
    pub(crate) records: StreamId,
    pub(crate) bulk: StreamId,
}

impl Hostile {
    pub(crate) fn new(victim: &Machine) -> Self {
        let memory = Memory::default();
        let address = Address::named("victim");
        let mut listener = memory.listen(&address).unwrap();
        let mut connection = memory.connect(&address).unwrap();
        victim.adopt(listener.accept().unwrap().unwrap(), ID);
        Self {
            records: connection.open(Class::Records).unwrap(),
            bulk: connection.open(Class::Bulk).unwrap(),
            connection,
        }
    }

    pub(crate) fn write(&mut self, on: StreamId, bytes: &[u8]) {
        let mut sent = 0;
        let end = Instant::now() + PATIENCE;
        while sent < bytes.len() && Instant::now() < end {
            match self.connection.send(on, &[Source::from(&bytes[sent..])]) {
                Progress::Moved(moved) => sent += moved,
                Progress::Blocked => std::thread::sleep(Duration::from_millis(1)),
                // The victim has closed it.
                Progress::Ended | Progress::Failed(_) => return,
            }
            self.connection.progress();
        }
    }

    fn say(&mut self, record: &Record<'_>, sent: Sent) {
        self.write(self.records, &record.with(sent));
    }

    pub(crate) fn greet(&mut self, proposal: u64) {
        let body = HelloBody {
            versions: WIRE,
            features: 0,
            cluster: [7; 16],
            node: ID,
            incarnation: 1,
            run: [1; 16],
            name: 0,
            known: 0,
            association: None,
            proposal,
            flows: 100,
            transfers: 100,
            requests: 100,
        };
        let (name, known) = ("stranger".to_owned(), Vec::new());
        self.say(&Record::Hello(Hello { body, name, known }), Sent::default());
        self.say(&Record::Resumed, Sent::default());
    }

    /// Asks for a port, and waits until it is lent.
    pub(crate) fn resolve(&mut self, flow: u32, name: &str) {
        let domain = DOMAIN;
        let resolve = Record::Resolve(Resolve { flow, domain, name });
        self.say(
            &resolve,
            Sent {
                number: u64::from(flow) - 1,
                ..Sent::default()
            },
        );
        self.hears(|record| matches!(record, Record::Resolved { lent: Ok(_), .. }));
    }

    fn hears(&mut self, wanted: impl Fn(&Record<'_>) -> bool) {
        let mut came = Vec::new();
        let end = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < end, "it was not said");
            let mut room = [0; 4096];
            match self
                .connection
                .receive(self.records, &[Destination::from(&mut room[..])])
            {
                Progress::Moved(moved) => came.extend(&room[..moved]),
                Progress::Blocked => std::thread::sleep(Duration::from_millis(1)),
                other => panic!("{other:?}"),
            }
            while let Some(head) = came.get(..RecordHead::BYTES) {
                let length = RecordHead::decode(head).unwrap().length as usize;
                let Some(bytes) = came.get(..length) else {
                    break;
                };
                if let (_, Some(record)) = Record::decode(bytes).unwrap()
                    && wanted(&record)
                {
                    return;
                }
                came.drain(..length);
            }
        }
    }

    /// The victim closes it.
    fn ends(mut self) {
        let end = Instant::now() + PATIENCE;
        while self.connection.progress() != State::Failed {
            assert!(Instant::now() < end, "it is not closed");
            let mut room = [0; 4096];
            for stream in [self.records, self.bulk] {
                let into = [Destination::from(&mut room[..])];
                if matches!(
                    self.connection.receive(stream, &into),
                    Progress::Ended | Progress::Failed(_)
                ) {
                    return;
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

pub(crate) fn message(number: u64, extents: &[u64], inline: &[u8]) -> Vec<u8> {
    let body = MessageBody {
        extents: extents.len(),
        inline: u32::try_from(inline.len()).unwrap(),
        header: 4,
        ..MessageBody::new(Kind::Message)
    };
    let record = MessageRecord {
        body,
        lengths: extents.to_vec(),
        rights: Vec::new(),
        header: b"evil",
        inline,
    };
    let flags = portolan_abi::node::RecordFlags::PROBE;
    Record::Message(record).with(Sent {
        flags,
        flow: 1,
        number,
    })
}

pub(crate) fn fragment(kind: FragmentKind, transfer: u32, offset: u64, bytes: &[u8]) -> Vec<u8> {
    let head = FragmentHead {
        transfer,
        offset,
        length: u32::try_from(bytes.len()).unwrap(),
        kind,
    };
    [&head.encode()[..], bytes].concat()
}

#[test]
fn garbage_at_each_stage_ends_the_association_and_nothing_else() {
    let network = Network::memory();
    let (hall, roof) = two(&network);
    let mut upper = bind(&hall, "upper");
    let _open = bind(&hall, "open");
    let right = roof.domain.connect("upper", PATIENCE).unwrap();
    let garbage: Vec<u8> = (0..5000_u32)
        .map(|at| (at * 31 + 7).to_le_bytes()[0])
        .collect();
    type Stage<'a> = Box<dyn Fn(&mut Hostile) + 'a>;
    let stages: Vec<(&str, Stage<'_>)> = vec![
        (
            "instead of a greeting",
            Box::new(|it| it.write(it.records, &garbage)),
        ),
        (
            "before a greeting, as bulk",
            Box::new(|it| {
                it.write(it.bulk, &garbage);
                it.write(it.records, &[0; 16]);
            }),
        ),
        (
            "a record that is too long",
            Box::new(|it| {
                it.greet(1);
                it.write(it.records, &u32::MAX.to_le_bytes().repeat(8));
            }),
        ),
        (
            "behind a greeting",
            Box::new(|it| {
                it.greet(2);
                it.write(it.records, &garbage);
            }),
        ),
        (
            "a second greeting",
            Box::new(|it| {
                it.greet(3);
                it.greet(3);
            }),
        ),
        (
            "behind a greeting, as bulk",
            Box::new(|it| {
                it.greet(4);
                it.write(it.bulk, &garbage);
            }),
        ),
        (
            "a message of a flow that was not lent",
            Box::new(|it| {
                it.greet(5);
                it.write(it.records, &message(0, &[], &[]));
            }),
        ),
        (
            "a number far beyond",
            Box::new(|it| {
                it.greet(6);
                it.resolve(1, "open");
                it.write(it.records, &message(1 << 20, &[], &[]));
            }),
        ),
        (
            "a fragment of no transfer",
            Box::new(|it| {
                it.greet(7);
                it.resolve(1, "open");
                it.write(it.bulk, &fragment(FragmentKind::Data, 1, 0, &[1; 100]));
            }),
        ),
        (
            "a fragment beyond its transfer",
            Box::new(|it| {
                it.greet(8);
                it.resolve(1, "open");
                let opens = message(0, &[100_000], &[]);
                it.write(it.bulk, &fragment(FragmentKind::Opens, 1, 0, &opens));
                it.write(it.bulk, &fragment(FragmentKind::Data, 1, 0, &[2; 90_000]));
                it.write(
                    it.bulk,
                    &fragment(FragmentKind::Data, 1, 90_000, &[2; 90_000]),
                );
            }),
        ),
        (
            "a transfer that is garbage",
            Box::new(|it| {
                it.greet(9);
                it.resolve(1, "open");
                it.write(it.bulk, &fragment(FragmentKind::Opens, 1, 0, &garbage));
            }),
        ),
        (
            "an answer that nobody has asked for",
            Box::new(|it| {
                it.greet(10);
                let body = MessageBody {
                    request: 77,
                    ..MessageBody::new(Kind::Dropped)
                };
                let (lengths, header, inline) = (Vec::new(), &[][..], &[][..]);
                let answer = MessageRecord {
                    body,
                    lengths,
                    rights: Vec::new(),
                    header,
                    inline,
                };
                it.say(&Record::Answer(answer), Sent::default());
            }),
        ),
    ];
    for (number, (what, act)) in (0..).zip(&stages) {
        let mut hostile = Hostile::new(&hall);
        act(&mut hostile);
        hostile.ends();
        let refused =
            |happened: &Happened| matches!(happened, Happened::Refused { node, .. } if *node == ID);
        let happened = hall.happened();
        assert!(happened.iter().any(refused), "{what}: {happened:?}");
        // The honest one goes on.
        send(&right, numbered(&roof.domain, number, &[30_000]));
        is_numbered(
            &upper.receive(Access::Later, PATIENCE).unwrap(),
            number,
            &[30_000],
        );
    }
    assert!(roof.is_up(&hall) && right.is_live());
    let report = hall.report();
    assert!(
        report.spans[0].lent.iter().all(|lent| lent.name == "upper"),
        "{report:?}"
    );
}

#[test]
fn a_half_record_and_silence_are_given_up() {
    let network = Network::memory();
    let (hall, _roof) = two(&network);
    let mut hostile = Hostile::new(&hall);
    hostile.greet(1);
    hostile.write(hostile.records, &[40, 0, 0, 0, 8, 0]);
    hostile.ends();
    let mut gone = Hostile::new(&hall);
    gone.greet(2);
    gone.say(
        &Record::Bye(portolan_abi::node::Bye {
            reason: ByeReason::Leaving,
        }),
        Sent::default(),
    );
    gone.ends();
}
