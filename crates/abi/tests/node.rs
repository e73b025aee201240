//! The bytes of the records between nodes, as they have been since the wire has its version, and
//! what becomes of bytes that are almost these.

use portolan_abi::FORMAT_VERSION;
use portolan_abi::codec::DecodeError;
use portolan_abi::connect::OfferName;
use portolan_abi::limits::{MAX_EXTENTS, MAX_HEADER, MAX_RIGHTS};
use portolan_abi::node::{
    ANSWERS, Announce, Asked, Asks, AssociationId, Backlog, Bye, ByeReason, Claim, Dead,
    DeadReason, FragmentHead, FragmentKind, Hello, HelloBody, INLINE, Lent, Located, MAX_ASKED,
    MAX_FRAGMENT, MAX_KNOWN, MAX_MEMBERS, MAX_RECORD, Member, MessageBody, MessageRecord,
    MoveRight, Moved, NamesAnswer, NamesQuestion, NodeEntry, NodeId, NodeName, Ping, PortId,
    Record, RecordFlags, RecordHead, RecordKind, Reference, ReferenceKind, Resolve, ResolveFailure,
    Says, Sent, SpanAnswer, SpanOutcome, SpanRequest, Versions,
};
use portolan_abi::slot::Kind;

fn hex(bytes: &[u8]) -> String {
    let words = bytes
        .chunks(4)
        .map(|word| word.iter().map(|b| format!("{b:02x}")).collect::<String>());
    words.collect::<Vec<_>>().join(" ")
}

fn hello() -> Hello {
    Hello {
        body: HelloBody {
            versions: Versions {
                lowest: 1,
                highest: 2,
            },
            features: 0x0102_0304_0506_0708,
            cluster: [0xcc; 16],
            node: NodeId([0xaa; 16]),
            incarnation: 9,
            run: [0xdd; 16],
            name: 4,
            known: 1,
            association: Some(AssociationId {
                smaller: 3,
                larger: 4,
            }),
            proposal: 5,
            flows: 6,
            transfers: 7,
            requests: 8,
        },
        name: "roof".to_owned(),
        known: vec![NodeId([0xbb; 16])],
    }
}

fn message(kind: Kind) -> MessageRecord<'static> {
    MessageRecord {
        body: MessageBody {
            kind,
            rights: 0,
            header: 3,
            extents: 2,
            inline: 5,
            urgency: Some(0x11),
            time_left: Some(0x22),
            request: 0x33,
        },
        lengths: vec![1, 4],
        rights: vec![],
        header: b"abc",
        inline: b"12345",
    }
}

fn lent() -> Lent {
    Lent {
        port: PortId {
            origin: NodeId([0xaa; 16]),
            serial: 7,
        },
        secret: [0x5e; 16],
        key: [0x6b; 16],
        synchronous: true,
    }
}

fn reference() -> Reference {
    Reference {
        request: 0x44,
        port: lent().port,
        secret: lent().secret,
        home: NodeId([0xbb; 16]),
        incarnation: 9,
        kind: ReferenceKind::Send,
        synchronous: true,
        slots: 0,
    }
}

fn asked() -> Asked {
    Asked {
        port: [0xa5; 16],
        proof: [1; 16],
    }
}

fn located() -> Located {
    Located {
        port: asked().port,
        home: NodeId([0xbb; 16]),
        incarnation: 3,
        proof: [2; 16],
    }
}

fn with_rights() -> MessageRecord<'static> {
    let message = message(Kind::Message);
    MessageRecord {
        body: MessageBody {
            rights: 2,
            ..message.body
        },
        rights: vec![reference(), Reference::once(0x55)],
        ..message
    }
}

/// Each kind of record, with its bytes behind the head.
fn examples() -> Vec<(Record<'static>, &'static str)> {
    let failure = ResolveFailure::NoSuchPort;
    vec![
        (
            Record::Hello(hello()),
            "50544e48 01000200 08070605 04030201 cccccccc cccccccc cccccccc cccccccc \
             aaaaaaaa aaaaaaaa aaaaaaaa aaaaaaaa 09000000 00000000 dddddddd dddddddd \
             dddddddd dddddddd 01040000 01000000 03000000 00000000 04000000 00000000 \
             05000000 00000000 06000000 07000000 08000000 00000000 726f6f66 bbbbbbbb \
             bbbbbbbb bbbbbbbb bbbbbbbb",
        ),
        (Record::Resumed, ""),
        (
            Record::Ping(Ping {
                clock: 1,
                echo: Some(2),
                held: 3,
            }),
            "01000000 00000000 01000000 00000000 02000000 00000000 03000000 00000000",
        ),
        (
            Record::Bye(Bye {
                reason: ByeReason::Violation,
            }),
            "03000000 00000000",
        ),
        (Record::Renew(b"request"), "72657175 657374"),
        (Record::Renewed(b"certificate"), "63657274 69666963 617465"),
        (Record::Inspect(b"question"), "71756573 74696f6e"),
        (Record::Inspected(b"answer"), "616e7377 6572"),
        (
            Record::Rate {
                bytes: 0x0102_0304_0506,
            },
            "06050403 02010000",
        ),
        (Record::Statement(b"statement"), "73746174 656d656e 74"),
        (
            Record::Members(vec![
                Member {
                    node: NodeId([0xaa; 16]),
                    address: "[::]:7",
                },
                Member {
                    node: NodeId([0xbb; 16]),
                    address: "roof:74",
                },
            ]),
            "02000000 aaaaaaaa aaaaaaaa aaaaaaaa aaaaaaaa 065b3a3a 5d3a37bb bbbbbbbb \
             bbbbbbbb bbbbbbbb bbbbbb07 726f6f66 3a3734",
        ),
        (
            Record::Message(message(Kind::Request)),
            "01010000 03000000 02000000 05000000 11000000 00000000 01000000 00000000 \
             22000000 00000000 33000000 00000000 01000000 00000000 04000000 00000000 \
             61626331 32333435",
        ),
        (
            Record::Answer(message(Kind::Reply)),
            "02010000 03000000 02000000 05000000 11000000 00000000 01000000 00000000 \
             22000000 00000000 33000000 00000000 01000000 00000000 04000000 00000000 \
             61626331 32333435",
        ),
        (Record::Ack, ""),
        (Record::AckAnswer { request: 4 }, "04000000 00000000"),
        (Record::Credit, ""),
        (Record::Wait, ""),
        (Record::Empty { credit: 4 }, "04000000 00000000"),
        (
            Record::Announce(Announce {
                transfer: 1,
                extents: 2,
                bytes: 3,
                request: 4,
            }),
            "01000000 02000000 03000000 00000000 04000000 00000000",
        ),
        (Record::Grant { transfer: 1 }, "01000000 00000000"),
        (
            Record::Resolve(Resolve {
                flow: 1,
                domain: "roof",
                name: "upper",
            }),
            "01000000 04050000 726f6f66 75707065 72",
        ),
        (
            Record::Resolved {
                flow: 1,
                lent: Ok(lent()),
            },
            "01000000 01000000 aaaaaaaa aaaaaaaa aaaaaaaa aaaaaaaa 07000000 00000000 \
             5e5e5e5e 5e5e5e5e 5e5e5e5e 5e5e5e5e 6b6b6b6b 6b6b6b6b 6b6b6b6b 6b6b6b6b \
             01000000 00000000",
        ),
        (
            Record::Resolved {
                flow: 1,
                lent: Err(failure),
            },
            "01000000 02000000 01000000",
        ),
        (
            Record::Dead(Dead {
                flow: 1,
                reason: DeadReason::Closed,
                next: 2,
            }),
            "01000000 01000000 02000000 00000000",
        ),
        (Record::Close { flow: 1 }, "01000000"),
        (
            Record::Message(with_rights()),
            "00010200 03000000 02000000 05000000 11000000 00000000 01000000 00000000 \
             22000000 00000000 33000000 00000000 01000000 00000000 04000000 00000000 \
             44000000 00000000 aaaaaaaa aaaaaaaa aaaaaaaa aaaaaaaa 07000000 00000000 \
             5e5e5e5e 5e5e5e5e 5e5e5e5e 5e5e5e5e bbbbbbbb bbbbbbbb bbbbbbbb bbbbbbbb \
             09000000 00000000 01010000 00000000 55000000 00000000 00000000 00000000 \
             00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 \
             00000000 00000000 00000000 00000000 00000000 00000000 02000000 00000000 \
             61626331 32333435",
        ),
        (
            Record::Claim(Claim {
                flow: 1,
                port: lent().port,
                secret: lent().secret,
            }),
            "01000000 00000000 aaaaaaaa aaaaaaaa aaaaaaaa aaaaaaaa 07000000 00000000 \
             5e5e5e5e 5e5e5e5e 5e5e5e5e 5e5e5e5e",
        ),
        (Record::Recall { request: 4 }, "04000000 00000000"),
        (Record::WantSenders { flow: 1 }, "01000000"),
        (
            Record::MoveRight(MoveRight {
                flow: 1,
                wants_senders: true,
                request: 4,
            }),
            "01000000 01000000 04000000 00000000",
        ),
        (
            Record::Backlog(Backlog { flow: 1, end: 9 }),
            "01000000 00000000 09000000 00000000",
        ),
        (
            Record::Moved(Moved {
                flow: 1,
                next: 9,
                home: NodeId([0xbb; 16]),
                incarnation: 3,
            }),
            "01000000 00000000 09000000 00000000 bbbbbbbb bbbbbbbb bbbbbbbb bbbbbbbb \
             03000000 00000000",
        ),
        (
            Record::WhereIs {
                number: 5,
                asked: vec![asked()],
            },
            "05000000 00000000 01000000 00000000 a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 \
             01010101 01010101 01010101 01010101",
        ),
        (
            Record::IsAt {
                number: 5,
                located: vec![located()],
            },
            "05000000 00000000 01000000 00000000 a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 \
             bbbbbbbb bbbbbbbb bbbbbbbb bbbbbbbb 03000000 00000000 02020202 02020202 \
             02020202 02020202",
        ),
    ]
}

const SENT: Sent = Sent {
    flags: RecordFlags::MORE,
    flow: 0x0102_0304,
    number: 0x1_0506_0708,
};

#[test]
fn records_have_these_bytes() {
    for (record, bytes) in examples() {
        let found = record.with(SENT);
        let (head, body) = found.split_at(RecordHead::BYTES);
        assert_eq!(hex(body), bytes, "{record:?}");
        let (head, read) = (RecordHead::decode(head).unwrap(), Record::decode(&found));
        assert_eq!(read, Ok((head, Some(record.clone()))));
        let is_answer = matches!(record, Record::AckAnswer { .. });
        let flow = if is_answer { ANSWERS } else { SENT.flow };
        assert_eq!((head.flow, head.flags), (flow, SENT.flags));
        assert_eq!(head.near(1 << 32), SENT.number);
    }
}

/// Whether a record says a reason that a later version may add to.
fn has_reason(record: &Record<'_>) -> bool {
    matches!(
        record,
        Record::Bye(_) | Record::Dead(_) | Record::Resolved { lent: Err(_), .. }
    )
}

/// Miri takes hours for all of them.
const VALUES_APART: usize = if cfg!(miri) { 51 } else { 1 };

#[test]
fn each_truncation_and_each_garbled_byte_is_refused_or_is_another_whole_record() {
    for (record, _) in examples() {
        let bytes = record.with(SENT);
        // Miri is slow: it looks at some places.
        let step = if cfg!(miri) { bytes.len() / 16 + 1 } else { 1 };
        for len in (0..bytes.len()).step_by(step) {
            assert!(Record::decode(&bytes[..len]).is_err(), "{record:?} {len}");
        }
        assert!(Record::decode(&[&bytes[..], &[0]].concat()).is_err());
        for at in (0..bytes.len()).step_by(step) {
            for value in (0..=u8::MAX).step_by(VALUES_APART) {
                let mut other = bytes.clone();
                other[at] = value;
                let Ok((head, Some(read))) = Record::decode(&other) else {
                    continue;
                };
                let sent = Sent {
                    flags: head.flags,
                    flow: head.flow,
                    number: u64::from(head.number),
                };
                let again = read.with(sent);
                assert!(again == other || has_reason(&read), "{read:?} {at} {value}");
            }
        }
    }
}

#[test]
fn unknown_records_are_skipped_if_they_are_optional() {
    let reserved = [
        RecordKind::Import,
        RecordKind::Imported,
        RecordKind::Revoke,
        RecordKind::Flushed,
        RecordKind::Follow,
    ];
    let kinds = reserved.iter().map(|kind| *kind as u16);
    for kind in kinds.chain([0, 30, 1000, u16::MAX]) {
        let head = |flags| RecordHead {
            length: 20,
            kind,
            flags,
            flow: 0,
            number: 0,
        };
        // What a later version has in its tail, and its flags, do not matter.
        let optional = RecordFlags::OPTIONAL.with(RecordFlags(0x8000));
        let bytes = [&head(optional).encode()[..], b"tail"].concat();
        assert_eq!(Record::decode(&bytes), Ok((head(optional), None)));
        let bytes = [&head(RecordFlags(0)).encode()[..], b"tail"].concat();
        let error = DecodeError::Value { field: "kind" };
        assert_eq!(Record::decode(&bytes), Err(error), "{kind}");
    }
}

#[test]
fn what_is_over_its_limit_is_refused() {
    let with = |edit: &dyn Fn(&mut MessageRecord<'static>)| {
        let mut record = message(Kind::Message);
        edit(&mut record);
        Record::decode(&Record::Message(record).with(SENT)).is_err()
    };
    assert!(!with(&|_| ()));
    // Slots of a right that is none to receive, and a receive right without any.
    let kinds = [(ReferenceKind::Send, 4), (ReferenceKind::Receive, 0)];
    for (kind, slots) in kinds {
        assert!(with(&|it| {
            it.body.rights = 1;
            it.rights = vec![Reference {
                kind,
                slots,
                ..reference()
            }];
        }));
    }
    // The kind of an answer, a length of zero, lengths that are not the payload's, and too many.
    assert!(with(&|it| it.body.kind = Kind::Reply));
    assert!(with(&|it| it.lengths = vec![5, 0]));
    assert!(with(&|it| it.lengths = vec![1, 5]));
    assert!(with(&|it| it.body.header = MAX_HEADER + 1));
    assert!(with(&|it| it.body.extents = MAX_EXTENTS + 1));
    assert!(with(&|it| it.lengths = vec![1 << 48, 1]));
    let too_many = u8::try_from(MAX_RIGHTS + 1).unwrap();
    assert!(with(&|it| {
        it.body.rights = too_many;
        it.rights = vec![reference(); MAX_RIGHTS + 1];
    }));
    // A right without a request, and a send-once right that says more than that.
    for wrong in [
        Reference::once(0),
        Reference {
            home: NodeId([1; 16]),
            ..Reference::once(1)
        },
    ] {
        assert!(with(&|it| {
            it.body.rights = 1;
            it.rights = vec![wrong];
        }));
    }
    assert!(Record::decode(&Record::Answer(message(Kind::Message)).with(SENT)).is_err());
    let empty = MessageRecord {
        body: MessageBody::new(Kind::Dropped),
        lengths: vec![],
        rights: vec![],
        header: &[],
        inline: &[],
    };
    assert!(Record::decode(&Record::Answer(empty).with(SENT)).is_ok());
    assert!(Record::decode(&Record::Answer(message(Kind::Dropped)).with(SENT)).is_err());
    // What is too much for one question, or one answer, is left out; a count that says more is refused.
    let many = Record::WhereIs {
        number: 1,
        asked: vec![asked(); MAX_ASKED + 1],
    };
    let mut bytes = many.with(SENT);
    let (_, read) = Record::decode(&bytes).unwrap();
    assert!(matches!(read, Some(Record::WhereIs { asked, .. }) if asked.len() == MAX_ASKED));
    bytes[RecordHead::BYTES + 9] += 1;
    assert!(Record::decode(&bytes).is_err());
    let many = Record::IsAt {
        number: 1,
        located: vec![located(); MAX_ASKED],
    };
    assert!(Record::decode(&many.with(SENT)).is_ok());
    let mut crowd = hello();
    crowd.known = vec![NodeId([1; 16]); MAX_KNOWN + 1];
    let bytes = Record::Hello(crowd).with(SENT);
    let (_, read) = Record::decode(&bytes).unwrap();
    assert!(matches!(read, Some(Record::Hello(h)) if h.known.len() == MAX_KNOWN));
    let member = |address| Member {
        node: NodeId([1; 16]),
        address,
    };
    let long = "h".repeat(256);
    // One without an address is left out, and so is what is too many.
    let many = [
        vec![member("a b"), member(""), member(&long)],
        vec![member("a:1"); 99],
    ]
    .concat();
    let bytes = Record::Members(many).with(SENT);
    let (_, read) = Record::decode(&bytes).unwrap();
    assert_eq!(
        read,
        Some(Record::Members(vec![member("a:1"); MAX_MEMBERS]))
    );
    let mut more = bytes[RecordHead::BYTES..].to_vec();
    more[0] += 1;
    more.extend([1; 16].iter().chain(b"\x03a:1"));
    let head = RecordHead {
        length: u32::try_from(RecordHead::BYTES + more.len()).unwrap(),
        ..RecordHead::decode(&bytes[..RecordHead::BYTES]).unwrap()
    };
    assert!(Record::decode(&[&head.encode()[..], &more].concat()).is_err());
    for name in ["", "a@b", "a\0b", &"n".repeat(64)] {
        let (flow, domain) = (1, "roof");
        let resolve = Resolve { flow, domain, name };
        let bytes = Record::Resolve(resolve).with(SENT);
        assert!(Record::decode(&bytes).is_err(), "{name}");
    }
}

#[test]
fn the_longest_record_is_as_long_as_the_limit_says() {
    let header = [7; MAX_HEADER];
    let longest = MessageRecord {
        body: MessageBody {
            header: MAX_HEADER,
            extents: MAX_EXTENTS,
            inline: u32::try_from(INLINE).unwrap(),
            rights: u8::try_from(MAX_RIGHTS).unwrap(),
            ..MessageBody::new(Kind::Message)
        },
        lengths: vec![INLINE / MAX_EXTENTS as u64; MAX_EXTENTS],
        rights: vec![reference(); MAX_RIGHTS],
        header: &header,
        inline: &[],
    };
    let bytes = Record::Message(longest).with(SENT);
    let head = RecordHead::decode(&bytes[..RecordHead::BYTES]).unwrap();
    assert_eq!(head.length, MAX_RECORD);
    // The payload was left out: it is to be sent behind.
    assert_eq!(bytes.len() as u64 + INLINE, u64::from(MAX_RECORD));
    for length in [0, 15, MAX_RECORD + 1, u32::MAX] {
        assert!(RecordHead::decode(&RecordHead { length, ..head }.encode()).is_err());
    }
}

#[test]
fn fragments_have_these_bytes() {
    let data = FragmentHead {
        transfer: 0x0102_0304,
        offset: 0x1112_1314_1516_1718,
        length: MAX_FRAGMENT,
        kind: FragmentKind::Data,
    };
    let bytes = data.encode();
    let expected = "4e544746 04030201 18171615 14131211 00000400 02000000 00000000 00000000";
    assert_eq!(hex(&bytes), expected);
    assert_eq!(FragmentHead::decode(&bytes), Ok(data));
    for len in 0..bytes.len() {
        assert!(FragmentHead::decode(&bytes[..len]).is_err());
    }
    for at in 0..bytes.len() {
        for value in 0..=u8::MAX {
            let mut other = bytes;
            other[at] = value;
            if let Ok(read) = FragmentHead::decode(&other) {
                assert_eq!(read.encode(), other);
            }
        }
    }
    let of = |kind, offset, length| {
        let transfer = 1;
        let head = FragmentHead {
            transfer,
            offset,
            length,
            kind,
        };
        FragmentHead::decode(&head.encode()).is_ok()
    };
    use FragmentKind::{Aborts, Data, Opens};
    assert!(of(Opens, 0, 64) && !of(Opens, 1, 64) && !of(Opens, 0, MAX_RECORD + 1));
    assert!(of(Data, 1 << 40, 1) && !of(Data, 0, 0) && !of(Data, 0, MAX_FRAGMENT + 1));
    assert!(!of(Data, u64::MAX, 1) && of(Aborts, 0, 0) && !of(Aborts, 0, 1));
}

/// What programs and their machine's node say, which may be of two builds.
#[test]
fn what_programs_and_their_node_say_has_these_bytes() {
    let format = FORMAT_VERSION.to_le_bytes();
    let format: String = format.iter().map(|b| format!("{b:02x}")).collect();
    let request = SpanRequest::new("cameras", 1000, Some(b"/run"));
    let expected = format!("50545053 01000000 {format} e8030000 07000400 63616d65 7261732f 72756e");
    assert_eq!(hex(&request.encode()), expected);
    let answer = SpanAnswer::new(SpanOutcome::Failed, "full");
    let expected = format!("50545053 01000000 {format} 03000400 66756c6c");
    assert_eq!(hex(&answer.encode()), expected);
    let question = NamesQuestion {
        asks: Asks::Port,
        from: 0,
        name: OfferName::new("up"),
        node: NodeName::new("hall"),
    };
    let text = |bytes: usize, words: &str| {
        let zeros = bytes - words.split(' ').map(|word| word.len() / 2).sum::<usize>();
        format!("{words}{}", "00".repeat(zeros)).replace(' ', "")
    };
    let expected = [
        "0100000000000000",
        "01",
        &text(64, "7570"),
        "01",
        &text(32, "68616c6c"),
    ];
    assert_eq!(hex(&question.encode()).replace(' ', ""), expected.concat());
    let answer = NamesAnswer {
        says: Says::Nodes,
        all: 1,
        entries: vec![NodeEntry {
            name: NodeName::new("hall").unwrap(),
            silent_since: 9,
        }],
    };
    let expected = [
        "0400010001000000",
        &text(32, "68616c6c"),
        "0900000000000000",
    ];
    assert_eq!(hex(&answer.encode()).replace(' ', ""), expected.concat());
}
