//! The bytes of every record and the bits of every packed word, as they have been since the format
//! has its version: a change here is a change of the format.

use portolan_abi::beside::{CallParcel, ParcelStamp, SampleReference};
use portolan_abi::bridge::{self, Form, FrameHeader, FrameKind};
use portolan_abi::channel::{Lagging, ReaderState, WriterWord};
use portolan_abi::connect::{ConnectAnswer, ConnectRequest, Grants, Maker, OfferKind, OfferName};
use portolan_abi::control::{Announcement, Decline, FromHost, FromMember};
use portolan_abi::delegate::{Act, Capability, Delegation, Outcome, Ready, Reply, Request};
use portolan_abi::denied::Denied;
use portolan_abi::handshake;
use portolan_abi::hello::{Answer, Greeting, Hello, Look, Reason, Refusal, Return, Welcome};
use portolan_abi::join::{JOIN_MAGIC, JOIN_VERSION, JoinAnswer, JoinOutcome, JoinRequest};
use portolan_abi::limits::MAX_NAME;
use portolan_abi::owner::{ChunkUse, ChunkWord, Descriptor, Size};
use portolan_abi::port::{Leaving, PortName, PortPhase, PortStatus, QueuePlace, RightCount};
use portolan_abi::port::{RightKind, RightWord, SendCount, Travelling};
use portolan_abi::preface::{Carries, PREFACE_MAGIC, PREFACE_VERSION, Preface};
use portolan_abi::public::{PublicKind, PublicState};
use portolan_abi::rpc;
use portolan_abi::signal::Block;
use portolan_abi::slot::{Kind, Meta};
use portolan_abi::space::{HostWord, SpacePhase, SpaceStatus};
use portolan_abi::thread::{At, Wait};
use portolan_abi::trace::{EventKind, EventState, EventWords, TraceSwitch};
use portolan_abi::vmmc::{self, Ranges, Reach, Way};

/// Bytes as text: a word of four bytes after another, the zeros at the end left out.
fn hex(bytes: &[u8]) -> String {
    let used = bytes
        .iter()
        .rposition(|b| *b != 0)
        .map_or(0, |last| last + 1);
    let words = bytes[..used]
        .chunks(4)
        .map(|word| word.iter().map(|b| format!("{b:02x}")).collect::<String>());
    format!("{}: {}", bytes.len(), words.collect::<Vec<_>>().join(" "))
}

/// Bytes that are almost these: with one of them changed, or of another length. Under Miri, which is
/// slow, not at each place of a long record.
fn others(bytes: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let step = if cfg!(miri) { bytes.len() / 32 + 1 } else { 1 };
    let changed = (0..bytes.len()).step_by(step).flat_map(move |at| {
        let byte = bytes[at];
        let values = [
            0,
            1,
            2,
            4,
            0xff,
            byte ^ 1,
            byte ^ 0x80,
            byte.wrapping_add(1),
        ];
        values
            .into_iter()
            .filter(move |value| *value != byte)
            .map(move |value| {
                let mut other = bytes.to_vec();
                other[at] = value;
                other
            })
    });
    let shorter = (0..bytes.len())
        .step_by(step)
        .map(move |len| bytes[..len].to_vec());
    let longer = [0, 1].map(|more| [bytes, &[more]].concat());
    changed.chain(shorter).chain(longer)
}

/// A refusal: with a reason that we do not know, or of another version, whose bytes are not all ours.
fn is_refusal(bytes: &[u8]) -> bool {
    bytes.get(8..12).is_some_and(|code| code != [0; 4])
}

/// Each record is read whole or not at all (W1), and from its own bytes alone (W2).
macro_rules! records {
    ($($name:ident: $type:ty { $($value:expr => $bytes:literal,)+ })+) => {
        $(#[test]
        fn $name() {
            let records: Vec<$type> = vec![$($value),+];
            let bytes: Vec<_> = records.iter().map(|r| r.encode().to_vec()).collect();
            let found: Vec<_> = bytes.iter().map(|b| hex(b)).collect();
            assert_eq!(found, [$($bytes),+]);
            for (record, bytes) in records.iter().zip(bytes) {
                assert_eq!(<$type>::decode(&bytes).as_ref(), Ok(record));
                for other in others(&bytes) {
                    if let Ok(read) = <$type>::decode(&other) {
                        assert!(read.encode()[..] == other[..] || is_refusal(&other), "{other:x?}");
                        assert_ne!(read, *record, "{other:x?}");
                    }
                }
            }
        })+
    };
}

macro_rules! words {
    ($($name:ident: $type:ty { $($value:expr => $word:expr,)+ })+) => {
        $(#[test]
        fn $name() {
            let words: Vec<$type> = vec![$($value),+];
            let found: Vec<_> = words.iter().map(|w| format!("{:x?}", w.pack())).collect();
            assert_eq!(found, [$($word),+]);
            for word in words {
                assert_eq!(<$type>::unpack(word.pack()), word.into());
            }
        })+
    };
}

fn name() -> OfferName {
    OfferName::new("frames/left").unwrap()
}

fn delegation() -> Delegation {
    Delegation {
        address: 0x7f00_1234_5678,
        len: 0x0102_0304,
        reach: Reach::Write,
        ranges: Ranges::new(&[(1, 2), (0x100, 0x200)], 0x0102_0304).unwrap(),
    }
}

fn announcement(grants: Grants) -> Announcement {
    Announcement {
        number: 0x0102_0304,
        kind: OfferKind::Export,
        name: name(),
        grants,
        reannounced: true,
    }
}

fn nobody() -> Grants {
    Grants {
        anyone: false,
        users: vec![],
        groups: vec![],
        processes: vec![],
        token: None,
    }
}

fn somebody() -> Grants {
    Grants {
        anyone: true,
        users: vec![1000, 1001],
        groups: vec![0x0506_0708],
        processes: vec![(77, 0x1122_3344_5566_7788)],
        token: Some([0xab; 16]),
    }
}

fn maker() -> Maker {
    let maker = Maker {
        space: 3,
        process: 0x0102_0304,
        ..Maker::ANY
    };
    maker.named("left").unwrap()
}

fn space_name() -> [u8; MAX_NAME + 1] {
    let mut name = [0; MAX_NAME + 1];
    name[..6].copy_from_slice(b"camera");
    name
}

const REFUSAL: Refusal = Refusal {
    version: 6,
    why: Reason::Permission,
    value: 0x0102_0304_0506_0708,
};

const BRIDGE: bridge::Granted = bridge::Granted {
    synchronous: true,
    most: 0x1122_3344_5566_7788,
    there: 1 << 20,
    back: 64 << 10,
    window: 40,
    shares: false,
    port: 0,
    secret: [0x33; 16],
};

const CAPABILITY: Capability = Capability {
    number: [0x11; 16],
    token: [0x22; 16],
};

fn vmmc(way: Way, ranges: &[(u64, u64)]) -> vmmc::Answer {
    let len = 0x10000;
    vmmc::Answer::Granted(vmmc::Granted {
        reach: Reach::ReadWrite,
        fences: true,
        way,
        len,
        ranges: Ranges::new(ranges, len).unwrap(),
    })
}

records! {
    join_requests: JoinRequest {
        JoinRequest {
            magic: JOIN_MAGIC,
            version: JOIN_VERSION,
            invitation: [0xab; 8],
            proof: [0xcd; 32],
            name: 4,
            request: 0x0102,
        } => "52: 50544a4e 01000000 abababab abababab cdcdcdcd cdcdcdcd cdcdcdcd cdcdcdcd cdcdcdcd cdcdcdcd cdcdcdcd cdcdcdcd 04000201",
    }
    join_answers: JoinAnswer {
        JoinAnswer {
            magic: JOIN_MAGIC,
            version: JOIN_VERSION,
            outcome: JoinOutcome::WrongProof,
            authorities: 2,
            certificate: 0x0102,
        } => "12: 50544a4e 01000000 04020201",
    }
    prefaces: Preface {
        Preface {
            magic: PREFACE_MAGIC,
            version: PREFACE_VERSION,
            carries: Carries::Bulk,
            link: [0xab; 16],
        } => "32: 50544c46 01000000 02000000 00000000 abababab abababab abababab abababab",
    }
    hellos: Hello {
        Hello { name: space_name() } => "72: 50544c4e 06000000 63616d65 7261",
    }
    looks: Look {
        Look {} => "8: 50544c4b 06",
    }
    returns: Return {
        Return { space: 7, incarnation: 0x0102_0304 } => "16: 50544c52 06000000 07000000 04030201",
    }
    answers: Answer {
        Answer::Granted(Welcome {
            space: 9,
            incarnation: 0x0102_0304,
            base: 0x2000_0000_0000,
            len: 0x1122_3344_5566_7788,
            by_host: true,
        }) => "40: 50544c4e 06000000 00000000 09010000 04030201 00000000 00000000 00200000 88776655 44332211",
        Answer::Refused(REFUSAL) => "40: 50544c4e 06000000 02000000 00000000 00000000 00000000 08070605 04030201",
    }
    connect_requests: ConnectRequest {
        ConnectRequest { kind: OfferKind::Channel, name: name(), token: Some([0xab; 16]), maker: maker() } => "168: 50544c56 06000000 02010000 00000000 abababab abababab abababab abababab 6672616d 65732f6c 65667400 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 03000000 04030201 6c656674",
        ConnectRequest { kind: OfferKind::Memory, name: name(), token: None, maker: Maker::ANY } => "168: 50544c56 06000000 04000000 00000000 00000000 00000000 00000000 00000000 6672616d 65732f6c 656674",
    }
    connect_answers: ConnectAnswer {
        ConnectAnswer::Wait => "40: 50544c41 06000000 01",
        ConnectAnswer::Accepted => "40: 50544c41 06000000 02",
        ConnectAnswer::Queue => "40: 50544c41 06000000 03",
        ConnectAnswer::Ambiguous(vec![maker(), Maker { space: 9, ..maker() }]) => "184: 50544c41 06000000 04000000 02000000 00000000 00000000 00000000 00000000 00000000 00000000 03000000 04030201 6c656674 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 09000000 04030201 6c656674",
        ConnectAnswer::Refused(REFUSAL) => "40: 50544c4e 06000000 02000000 00000000 00000000 00000000 08070605 04030201",
    }
    bridge_asks: bridge::Ask {
        bridge::Ask { sealed: true, most: 0x0102_0304_0506_0708, there: 1 << 20, named: [[0x33; 16], [0; 16], [0; 16], [0; 16]] } => "96: 50544741 06000000 01000000 00000000 00001000 00000000 08070605 04030201 33333333 33333333 33333333 33333333",
    }
    bridge_answers: bridge::Answer {
        bridge::Answer::Granted(BRIDGE) => "64: 50544752 06000000 00000000 01000000 88776655 44332211 00001000 00000000 00000100 00000000 28000000 00000000 33333333 33333333 33333333 33333333",
        bridge::Answer::Granted(bridge::Granted { shares: true, port: 7, ..BRIDGE }) => "64: 50544752 06000000 00000000 01010000 88776655 44332211 00001000 00000000 00000100 00000000 28000000 07000000 33333333 33333333 33333333 33333333",
        bridge::Answer::Refused(handshake::Refusal::new(Denied::Sealed)) => "64: 50544752 06000000 06",
    }
    forms: Form {
        Form { reliable: true, unit: 64, units: 1024, content: 0x1122_3344_5566_7788 } => "64: 50544746 01000000 40000000 00000000 00040000 00000000 88776655 44332211",
    }
    frame_headers: FrameHeader {
        FrameHeader {
            kind: FrameKind::Reply,
            header: 100,
            extents: 3,
            sealed: 2,
            port: 9,
            urgency: Some(0x0102_0304_0506_0708),
            tag: 0x1122_3344_5566_7788,
            accepted: 5,
        } => "64: 5054474d 02010000 64000000 03000000 02000000 09000000 08070605 04030201 88776655 44332211 05",
        FrameHeader::new(FrameKind::Closed) => "64: 5054474d 07",
    }
    vmmc_asks: vmmc::Ask {
        vmmc::Ask { barriers: true, brokered: false } => "16: 50544941 06000000 01",
        vmmc::Ask { barriers: false, brokered: true } => "16: 50544941 06000000 0001",
    }
    vmmc_answers: vmmc::Answer {
        vmmc(Way::Shared, &[]) => "192: 50544541 06000000 00000000 03000000 01000000 00000000 000001",
        vmmc(Way::Kernel { address: 0x7f00_1234_5678, status_page: 0x2000 }, &[(1, 2), (0x100, 0x200)]) => "192: 50544541 06000000 00000000 03000000 01010000 02000000 00000100 00000000 01000000 00000000 02000000 00000000 00010000 00000000 00020000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 78563412 007f0000 0020",
        vmmc(Way::Brokered(CAPABILITY), &[(0, 0x10000)]) => "192: 50544541 06000000 00000000 03000000 01020000 01000000 00000100 00000000 00000000 00000000 00000100 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 11111111 11111111 11111111 11111111 22222222 22222222 22222222 22222222",
        vmmc::Answer::Refused(handshake::Refusal::new(Denied::NoCopyBroker)) => "192: 50544541 06000000 07",
    }
    capabilities: Capability {
        CAPABILITY => "32: 11111111 11111111 11111111 11111111 22222222 22222222 22222222 22222222",
    }
    delegations: Delegation {
        delegation() => "152: 78563412 007f0000 04030201 00000000 02000000 02000000 01000000 00000000 02000000 00000000 00010000 00000000 0002",
    }
    readies: Ready {
        Ready {} => "8: 50544d44 06",
    }
    parcel_stamps: ParcelStamp {
        ParcelStamp { number: 0x1122_3344_5566_7788, writers: 0x0102_0304, has_parcel: true } =>
            "16: 88776655 44332211 04030201 01",
    }
    call_parcels: CallParcel {
        CallParcel { number: 0x1122_3344_5566_7788, call: 0x0102_0304_0506_0708 } =>
            "16: 88776655 44332211 08070605 04030201",
    }
    sample_references: SampleReference {
        SampleReference {
            len: 0x1122_3344_5566_7788,
            buffer: PortName { index: 0x0506, generation: 0x0102_0304 }.into(),
        } => "16: 88776655 44332211 04030201 0605",
    }
    requests: Request {
        Request { number: 7, act: Act::Read, offset: 0x1122_3344_5566_7788, len: 0x1_0203, part: 1 } => "32: 50544d51 07000000 02000000 01000000 88776655 44332211 030201",
    }
    replies: Reply {
        Reply { number: 7, outcome: Outcome::Done } => "24: 50544d52 07",
        Reply { number: 7, outcome: Outcome::Refused } => "24: 50544d52 07000000 01",
        Reply { number: 7, outcome: Outcome::Protected } => "24: 50544d52 07000000 02",
        Reply { number: 7, outcome: Outcome::Unmapped { offset: 0x1122_3344_5566_7788 } } => "24: 50544d52 07000000 03000000 00000000 88776655 44332211",
        Reply { number: 7, outcome: Outcome::Gone } => "24: 50544d52 07000000 04",
        Reply { number: 7, outcome: Outcome::Failed { errno: -12 } } => "24: 50544d52 07000000 05000000 00000000 f4ffffff",
        Reply { number: 7, outcome: Outcome::Away } => "24: 50544d52 07000000 06",
    }
    from_members: FromMember {
        FromMember::Arrived => "8: 41",
        FromMember::Leaving => "8: 4c",
        FromMember::Succeeds => "8: 53",
        FromMember::Offer(announcement(nobody())) => "96: 4f010000 04030201 03000000 00000000 00000000 00000000 00000000 00000000 6672616d 65732f6c 656674",
        FromMember::Offer(announcement(somebody())) => "120: 4f070000 04030201 03020101 00000000 abababab abababab abababab abababab 6672616d 65732f6c 65667400 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 e8030000 e9030000 08070605 4d000000 88776655 44332211",
        FromMember::Delegate(0x0102_0304, delegation()) => "160: 45000000 04030201 78563412 007f0000 04030201 00000000 02000000 02000000 01000000 00000000 02000000 00000000 00010000 00000000 0002",
        FromMember::Withdraw(0x0102_0304) => "8: 57000000 04030201",
        FromMember::Received => "8: 52",
    }
    from_hosts: FromHost {
        FromHost::Gone => "8: 47",
        FromHost::Back => "8: 42",
        FromHost::Done { number: 0x0102_0304 } => "8: 44000000 04030201",
        FromHost::Declined { number: 0x0102_0304, why: Decline::Unfit } => "8: 4e030000 04030201",
        FromHost::HandOff { number: 0x0102_0304 } => "8: 49000000 04030201",
    }
}

#[test]
fn greetings_are_told_apart() {
    let back = Return {
        space: 7,
        incarnation: 1,
    };
    let look = Look {};
    let hello = Hello { name: space_name() };
    let connect = ConnectRequest {
        kind: OfferKind::Port,
        name: name(),
        token: None,
        maker: Maker::ANY,
    };
    for (bytes, greeting) in [
        (back.encode().to_vec(), Greeting::Return(back)),
        (look.encode().to_vec(), Greeting::Look(look)),
        (hello.encode().to_vec(), Greeting::Hello(hello)),
        (connect.encode().to_vec(), Greeting::Connect(connect)),
    ] {
        assert_eq!(Greeting::decode(&bytes), Ok(greeting));
    }
}

words! {
    space_statuses: SpaceStatus {
        SpaceStatus {
            phase: SpacePhase::Claimed,
            disconnected: true,
            claimer: 0xab,
            incarnation: 0x0102_0304,
        } => "102030400ab0104",
    }
    host_words: HostWord {
        HostWord { space: 0xab, incarnation: 0x0102_0304 } => "1020304000000ab",
    }
    port_statuses: PortStatus {
        PortStatus {
            phase: PortPhase::Moving,
            owner: 0xab,
            synchronous: true,
            generation: 0x01_0203,
            ..PortStatus::FRESH
        } => "102030001ab03",
        PortStatus { by_urgency: true, ..PortStatus::FRESH } => "20000",
        PortStatus { copied: true, ..PortStatus::FRESH } => "40000",
        PortStatus { replies: true, ..PortStatus::FRESH } => "80000",
        PortStatus { shared: true, ..PortStatus::FRESH } => "100000",
        PortStatus { kept: true, ..PortStatus::FRESH } => "200000",
        PortStatus { spanned: true, ..PortStatus::FRESH } => "400000",
    }
    queue_places: QueuePlace {
        QueuePlace::new(64, 2, 7).unwrap() => "700000206",
    }
    leavings: Leaving {
        Leaving { most: 0x0102_0304, sealed: true } => "2040609",
    }
    right_words: RightWord {
        RightWord {
            kind: RightKind::Receive,
            port: PortName { index: 0x1234, generation: 0xab_cdef },
            tag: 0x5_6789,
        } => "abcdef1234567893",
    }
    send_counts: SendCount {
        SendCount { count: 0x12_3456, moving: 0x789a, generation: 0xbc_def0 } => "bcdef0789a123456",
    }
    travelling: Travelling {
        Travelling { count: 0x12_3456, doubtful: true, doubts: 0x789a, generation: 0xbc_def0 } => "bcdef0f135123456",
    }
    right_counts: RightCount {
        RightCount { count: 0x1234_5678, generation: 0x9abc_def0 } => "9abcdef012345678",
    }
    public_states: PublicState {
        PublicState { kind: Some(PublicKind::Following), busy: true, number: 0x0102_0304 } => "102030400000104",
        PublicState { kind: None, busy: false, number: 1 } => "100000000",
    }
    chunk_words: ChunkWord {
        ChunkWord {
            r#use: ChunkUse::Returning,
            populated: true,
            huge: false,
            cache_owner: 0xab,
            size: 0x1234,
            argument: 0x5678_9abc,
        } => "56789abc1234ab45",
        ChunkWord { huge: true, ..ChunkWord::FRESH } => "80",
    }
    descriptors: Descriptor {
        Descriptor {
            page: 0x1234_5678,
            generation: 0x9abc_def0,
            size: Size::run(0x102),
            len: 0x0102_0304,
        } => "[9abcdef012345678, 10b000001020304]",
    }
    writer_words: WriterWord {
        WriterWord { space: 0xab, left: 0x0102_0304 } => "1020304000000ab",
    }
    reader_states: ReaderState {
        ReaderState::Free => "0",
        ReaderState::Joining { space: 0xab } => "ab03",
        ReaderState::Live { space: 0xab, lagging: Lagging::Skip } => "2ab01",
        ReaderState::Dropped { space: 0xab } => "ab02",
    }
    metas: Meta {
        Meta { header: 0x1234, extents: 0x0567, rights: 0x89, ..Meta::new(Kind::Dropped) } => "38905671234",
        Meta { spilled: true, ..Meta::new(Kind::Message) } => "1000000000000",
        Meta { urgent: true, ..Meta::new(Kind::Message) } => "2000000000000",
        Meta { reply: true, ..Meta::new(Kind::Message) } => "4000000000000",
        Meta { structure: true, ..Meta::new(Kind::Message) } => "8000000000000",
        Meta { sealed: true, ..Meta::new(Kind::Message) } => "10000000000000",
    }
    waits: Wait {
        Wait::Nothing => "0",
        Wait::Spinning(At::Set(0x1234)) => "12340101",
        Wait::Sleeping(At::Port(0x1234)) => "12340002",
        Wait::ForRoom(0x1234) => "12340003",
    }
    trace_switches: TraceSwitch {
        TraceSwitch { kinds: 0xf_1234, tracer: 0xab, ring: 9, incarnation: 0x0102_0304 } => "1020304ab5f1234",
    }
    event_states: EventState {
        EventState { number: 0x0102_0304, incarnation: 0xabcd, busy: true } => "2040609579b",
    }
    events: EventWords {
        EventWords {
            began: 0x0102_0304_0506_0708,
            took: 0x1112_1314_1516_1718,
            kind: EventKind::Arrive,
            space: 0xab,
            port: 0x1234,
            thread: 0x5678_9abc,
            position: 0x2122_2324_2526_2728,
            bytes: 0x3132_3334_3536_3738,
            process: 0x4142_4344,
        } => "[102030405060708, 1112131415161718, 56789abc1234ab13, 2122232425262728, 3132333435363738, 41424344, 0]",
    }
}

#[test]
fn words_that_take_two() {
    let header = rpc::Header {
        kind: rpc::Kind::Missing,
        flags: rpc::Flags::ONE_WAY.with(rpc::Flags::UNCHECKED),
        what: 0x0102_0304,
        number: 0xab_cdef,
        behind: 0x12,
        when: 0x34_5678,
    };
    let words = header.pack(0x9abc_def0);
    assert_eq!(format!("{words:x?}"), "[10203049abcdef0, abcdef12345678a7]");
    assert_eq!(rpc::Header::unpack(words), Some((header, 0x9abc_def0)));
    let block = Block::around(3, 0x0102_0304_0506).unwrap();
    let word = block.pack(0xabcd);
    assert_eq!(format!("{word:x?}"), "abcd30008101822");
    assert_eq!(Block::unpack(word), Some((block, 0xabcd)));
}
