//! Lists the rows of each benchmark.

use portolan_measure::case::{
    Case, Mode, Pattern, Payload, Placement, Protection, SMALL, Shape, System, Temper,
};
use portolan_measure::cpus::Cpus;

use super::budget::{Budget, Measure};
use super::{Entry, Group, signal};
use crate::args::BenchKind;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Message sizes of `latency`.
const SIZES: [u64; 9] = [
    0,
    SMALL,
    4 * KIB,
    64 * KIB,
    MIB,
    2 * MIB,
    16 * MIB,
    64 * MIB,
    GIB,
];
const SIZES_QUICK: [u64; 6] = [0, SMALL, 4 * KIB, 64 * KIB, MIB, 16 * MIB];
/// Message sizes of `throughput`.
const STREAM_SIZES: [u64; 4] = [SMALL, 64 * KIB, MIB, 16 * MIB];
const STREAM_SIZES_QUICK: [u64; 3] = [SMALL, 64 * KIB, MIB];
/// Sender processes of `fanin`; the first is the yardstick of the others.
const SENDERS: [u32; 2] = [1, 64];
/// What a message queue takes by default (`/proc/sys/fs/mqueue/msgsize_max`).
const MESSAGE_QUEUE_MAX: u64 = 8 * KIB;
/// What fits a Unix socket's default send buffer as one packet.
const PACKET_MAX: u64 = 128 * KIB;
/// Where copying peers stop: beyond, they take seconds a row and say nothing new.
const COPIED_MAX: u64 = 64 * MIB;
/// Cold copies matter, and differ from hot ones, from here on.
const COLD_MIN: u64 = 2 * MIB;
/// The memory that a row with cold buffers takes.
const COLD_ROW: u64 = 1536 * MIB;

/// Headers that do not fit the message itself.
const HEADERS: [u64; 3] = [64, 512, 4 * KIB];

/// What Portolan's rows must reach.
mod budgets {
    use super::{Budget, Measure};
    use Measure::{Above, Faster, Limit, Yardstick};

    pub(super) const SMALL: Budget = Budget::new(
        "null and 48 B, polling, to the limit",
        Limit,
        1.35,
        Some(1.1),
    );
    pub(super) const MOVE: Budget = Budget::new(
        "moved untouched, any size, to null message",
        Yardstick,
        1.3,
        Some(1.1),
    );
    pub(super) const SAME_WORK: Budget = Budget::new(
        "1 MiB written and read, to a shared buffer",
        Yardstick,
        1.1,
        Some(1.03),
    );
    pub(super) const REQUEST: Budget = Budget::new(
        "request and reply, to two line transfers",
        Limit,
        1.5,
        Some(1.25),
    );
    pub(super) const IDLE_PORTS: Budget = Budget::new(
        "beside 10,000 idle ports, to null message",
        Yardstick,
        1.2,
        Some(1.05),
    );
    pub(super) const GUARDED: Budget = Budget::new(
        "guarded 2 MiB, word/page, to one memcpy",
        Faster,
        4.0,
        Some(8.0),
    );
    pub(super) const GUARDED_LARGE: Budget = Budget::new(
        "guarded 16 MiB up, the same, to one memcpy",
        Faster,
        10.0,
        Some(40.0),
    );
    pub(super) const WAKE: Budget = Budget::new(
        "blocking on one CPU, to a futex ping-pong",
        Limit,
        1.15,
        Some(1.0),
    );
    pub(super) const FANIN: Budget = Budget::new(
        "64 senders, CPU a message, to one sender",
        Yardstick,
        2.0,
        Some(1.5),
    );
    pub(super) const WATCHED: Budget = Budget::new(
        "watched by `portolan top`, to unwatched",
        Yardstick,
        1.02,
        Some(1.005),
    );
    pub(super) const RESIDENT: Budget = Budget::new(
        "idle member above an empty process, KiB",
        Above,
        4096.0,
        None,
    );
}

/// The rows of `kind`.
pub(crate) fn plan(kind: BenchKind, quick: bool, cpus: &Cpus) -> Vec<Group> {
    let mut groups = match kind {
        BenchKind::Latency => latency(if quick { &SIZES_QUICK } else { &SIZES }),
        BenchKind::Throughput => throughput(if quick {
            &STREAM_SIZES_QUICK
        } else {
            &STREAM_SIZES
        }),
        BenchKind::Fanin => fanin(),
        BenchKind::Wake => wake(cpus),
        BenchKind::Signal => signal::plan(),
        BenchKind::Channel => super::channel::plan(cpus),
        BenchKind::Pubsub => super::pubsub::plan(cpus),
        BenchKind::Watched => watched(),
        BenchKind::Memory => resident(),
        BenchKind::Rpc => super::rpc::plan(cpus),
        BenchKind::Update => super::update::plan(),
        // They have steps of their own.
        BenchKind::Structures | BenchKind::Rights | BenchKind::Instructions | BenchKind::Node => {
            Vec::new()
        }
    };
    if cpus.single() {
        for group in &mut groups {
            group.limit.placement = Placement::OneCpu;
            for entry in &mut group.rows {
                entry.case.placement = Placement::OneCpu;
                if let Some(yardstick) = &mut entry.yardstick {
                    yardstick.placement = Placement::OneCpu;
                }
            }
        }
    }
    groups
}

/// Keeps the rows that contain `word`, and what they are held against; their limits
/// come with them.
pub(crate) fn filter(groups: Vec<Group>, word: &str) -> Vec<Group> {
    let matching = |mut group: Group| {
        for entry in &mut group.rows {
            entry.shown &= entry.case.contains(word);
        }
        let needed: Vec<Case> = group
            .rows
            .iter()
            .filter(|entry| entry.shown)
            .filter_map(|entry| entry.yardstick.clone())
            .collect();
        // What is shown is measured; what it is held against as well, shown or not.
        group
            .rows
            .retain(|entry| entry.shown || needed.contains(&entry.case));
        group
    };
    let groups: Vec<Group> = groups.into_iter().map(matching).collect();
    if groups.iter().any(|group| !group.rows.is_empty()) {
        return groups
            .into_iter()
            .filter(|group| !group.rows.is_empty())
            .collect();
    }
    // Nothing but a limit: once is enough.
    let mut limits: Vec<Group> = groups
        .into_iter()
        .filter(|group| group.limit.contains(word))
        .collect();
    limits.dedup_by(|one, other| one.limit == other.limit);
    limits
}

/// About how much memory a row needs at once.
pub(crate) fn memory(case: &Case) -> u64 {
    match (case.system, case.temper) {
        (
            System::Portolan | System::Request | System::Channel | System::Topic | System::Call,
            _,
        ) => portolan_measure::extents(case),
        (_, Temper::Cold) => COLD_ROW,
        (System::Ring, _) => 9 * case.bytes,
        // A buffer and a private copy each way.
        _ => 4 * case.bytes,
    }
}

/// One group a size, and one of headers; the limit is the same for all.
fn latency(sizes: &[u64]) -> Vec<Group> {
    let limit = Case {
        limit: true,
        ..Case::new(System::Line, 8)
    };
    let group = |rows| Group {
        limit: limit.clone(),
        rows,
    };
    let mut groups: Vec<Group> = sizes.iter().map(|&bytes| group(sized(bytes))).collect();
    // Small messages first, then headers, then what has extents.
    let small = sizes.iter().filter(|&&bytes| bytes <= SMALL).count();
    groups.insert(small, group(headers()));
    groups
}

/// The rows of messages of `bytes`.
fn sized(bytes: u64) -> Vec<Entry> {
    let buffer = Case::new(System::Buffer, bytes);
    let mut rows = own(bytes, &buffer);
    if bytes >= SMALL {
        rows.push(Entry::new(buffer.clone()));
    }
    for case in peers(bytes).into_iter().chain(copied(bytes)) {
        // What does the same work is held against the shared buffer.
        let same_work = case.payload == Payload::Touched && bytes >= 4 * KIB;
        let entry = Entry::new(case);
        rows.push(if same_work {
            entry.against(&buffer)
        } else {
            entry
        });
    }
    rows
}

/// A trusted, untouched message of `bytes`, polled for.
fn moved(bytes: u64) -> Case {
    Case {
        protection: Protection::Trusted,
        payload: Payload::Untouched,
        ..Case::new(System::Portolan, bytes)
    }
}

fn blocking(case: &Case) -> Case {
    Case {
        mode: Mode::Block,
        ..case.clone()
    }
}

fn protected(case: &Case, protection: Protection) -> Case {
    Case {
        protection,
        ..case.clone()
    }
}

/// Portolan's rows of `bytes`.
fn own(bytes: u64, buffer: &Case) -> Vec<Entry> {
    if bytes == 0 {
        return null();
    }
    let untouched = moved(bytes);
    let touched = Case {
        payload: Payload::Touched,
        ..untouched.clone()
    };
    if bytes <= SMALL {
        return vec![
            Entry::new(touched.clone()).tagged(Some(budgets::SMALL)),
            Entry::new(blocking(&touched)),
        ];
    }
    // Bytes that no process touches cost nothing: the null message says what they may.
    let null = moved(0);
    let mut rows = vec![
        Entry::new(null.clone()).hidden(),
        Entry::new(untouched.clone())
            .against(&null)
            .tagged(Some(budgets::MOVE)),
        Entry::new(blocking(&untouched)),
        Entry::new(protected(&untouched, Protection::Guarded)),
    ];
    let same_work = Entry::new(touched.clone()).against(buffer);
    rows.push(if bytes == MIB {
        same_work.tagged(Some(budgets::SAME_WORK))
    } else {
        same_work
    });
    if bytes <= COPIED_MAX {
        rows.push(Entry::new(protected(&touched, Protection::Copied)).against(buffer));
    }
    if (COLD_MIN..=COPIED_MAX).contains(&bytes) {
        for temper in [Temper::Hot, Temper::Cold] {
            let memcpy = Case {
                temper,
                ..memcpy_once(bytes)
            };
            let sparse = Case {
                protection: Protection::Guarded,
                shape: Shape::Sparse,
                temper,
                ..touched.clone()
            };
            let budget = if bytes < 16 * MIB {
                budgets::GUARDED
            } else {
                budgets::GUARDED_LARGE
            };
            rows.push(Entry::new(sparse).against(&memcpy).tagged(Some(budget)));
        }
    }
    rows
}

/// Rows of messages without a byte.
fn null() -> Vec<Entry> {
    let null = moved(0);
    let request = Case {
        system: System::Request,
        pattern: Pattern::RoundTrip { one_way: false },
        ..null.clone()
    };
    let beside = Case {
        shape: Shape::IdlePorts,
        ..null.clone()
    };
    vec![
        Entry::new(null.clone()).tagged(Some(budgets::SMALL)),
        Entry::new(blocking(&null)),
        Entry::new(protected(&null, Protection::Guarded)),
        Entry::new(protected(&null, Protection::Copied)),
        Entry::new(beside)
            .against(&null)
            .tagged(Some(budgets::IDLE_PORTS)),
        Entry::new(request.clone()).tagged(Some(budgets::REQUEST)),
        Entry::new(blocking(&request)),
    ]
}

/// Headers, with a receiver that waits awake, that waits asleep, and that does not wait.
fn headers() -> Vec<Entry> {
    let header = |bytes: u64, queued: bool| Case {
        shape: Shape::Header { queued },
        payload: Payload::Touched,
        ..moved(bytes)
    };
    let rows = |bytes: u64| {
        let waited_for = header(bytes, false);
        let cases = [
            blocking(&waited_for),
            header(bytes, true),
            waited_for.clone(),
        ];
        cases.into_iter().rev().map(Entry::new)
    };
    HEADERS.into_iter().flat_map(rows).collect()
}

/// One copy that no process writes or reads afterwards.
fn memcpy_once(bytes: u64) -> Case {
    Case {
        payload: Payload::Untouched,
        ..Case::new(System::Memcpy { copies: 1 }, bytes)
    }
}

/// Rows of peers that hand memory over as we do.
#[cfg(feature = "peers")]
fn peers(bytes: u64) -> Vec<Case> {
    // iceoryx2 has no empty messages without a type of their own.
    if !(SMALL..=COPIED_MAX).contains(&bytes) {
        return Vec::new();
    }
    let rows = |system| {
        let touched = Case::new(system, bytes);
        let untouched = Case {
            payload: Payload::Untouched,
            ..touched.clone()
        };
        let block = Case {
            mode: Mode::Block,
            ..touched.clone()
        };
        [untouched, touched, block]
    };
    [System::Iceoryx, System::Zenoh].map(rows).concat()
}

#[cfg(not(feature = "peers"))]
fn peers(_bytes: u64) -> Vec<Case> {
    Vec::new()
}

/// The systems that copy a message of `bytes`, once or more.
fn copied(bytes: u64) -> Vec<Case> {
    let mut cases = Vec::new();
    if (4 * KIB..=COPIED_MAX).contains(&bytes) {
        let once = Case::new(System::Memcpy { copies: 1 }, bytes);
        cases.push(once);
        cases.push(Case::new(System::Memcpy { copies: 2 }, bytes));
        let untouched = memcpy_once(bytes);
        cases.push(untouched.clone());
        if bytes >= COLD_MIN {
            cases.push(Case {
                temper: Temper::Cold,
                ..untouched
            });
        }
    }
    for system in [
        System::Pipe,
        System::UnixStream,
        System::UnixSeqpacket,
        System::MessageQueue,
    ] {
        // Byte streams have no empty messages, and a queue none that says more than 48 B.
        let (least, most) = match system {
            System::Pipe | System::UnixStream => (SMALL, COPIED_MAX),
            System::UnixSeqpacket => (0, PACKET_MAX),
            _ => (SMALL, MESSAGE_QUEUE_MAX),
        };
        if (least..=most).contains(&bytes) {
            for mode in [Mode::Poll, Mode::Block] {
                cases.push(Case {
                    mode,
                    ..Case::new(system, bytes)
                });
            }
        }
    }
    cases
}

/// One group a size, each with a ring of slots of that size as its limit.
fn throughput(sizes: &[u64]) -> Vec<Group> {
    let group = |&bytes: &u64| {
        let stream = |system, mode| Case {
            mode,
            pattern: Pattern::Stream,
            ..Case::new(system, bytes)
        };
        let limit = Case {
            limit: true,
            ..stream(System::Ring, Mode::Poll)
        };
        let ours = [Mode::Poll, Mode::Block]
            .map(|mode| protected(&stream(System::Portolan, mode), Protection::Trusted));
        let mut rows: Vec<Entry> = ours.into_iter().map(Entry::new).collect();
        for system in [System::Pipe, System::UnixStream, System::UnixSeqpacket] {
            if system == System::UnixSeqpacket && bytes > PACKET_MAX {
                continue;
            }
            for mode in [Mode::Poll, Mode::Block] {
                rows.push(Entry::new(stream(system, mode)));
            }
        }
        Group { limit, rows }
    };
    sizes.iter().map(group).collect()
}

/// One group; each system with many senders is held against itself with one.
fn fanin() -> Vec<Group> {
    let case = |system, mode, senders| Case {
        mode,
        pattern: Pattern::FanIn { senders },
        ..Case::new(system, SMALL)
    };
    let limit = Case {
        limit: true,
        ..case(System::Ring, Mode::Poll, SENDERS[0])
    };
    let mut rows = Vec::new();
    for system in [System::Portolan, System::Pipe, System::UnixSeqpacket] {
        let protection = match system {
            System::Portolan => Protection::Trusted,
            _ => Protection::None,
        };
        let rows_of =
            SENDERS.map(|senders| protected(&case(system, Mode::Block, senders), protection));
        let [one, many] = rows_of;
        rows.push(Entry::new(one.clone()));
        let many = Entry::new(many).against(&one);
        rows.push(if system == System::Portolan {
            many.tagged(Some(budgets::FANIN))
        } else {
            many
        });
    }
    vec![Group { limit, rows }]
}

/// A group on one CPU and a group on two, each with a futex ping-pong as its limit.
fn wake(cpus: &Cpus) -> Vec<Group> {
    let group = |placement| {
        let case = |system| Case {
            mode: Mode::Block,
            placement,
            pattern: Pattern::RoundTrip { one_way: false },
            ..Case::new(system, SMALL)
        };
        let limit = Case {
            limit: true,
            payload: Payload::Untouched,
            bytes: 0,
            ..case(System::Futex)
        };
        let systems = [
            System::Pipe,
            System::UnixStream,
            System::UnixSeqpacket,
            System::MessageQueue,
        ];
        #[cfg(feature = "peers")]
        let systems = [[System::Iceoryx, System::Zenoh].as_slice(), &systems].concat();
        let small = protected(&case(System::Portolan), Protection::Trusted);
        let null = Case {
            payload: Payload::Untouched,
            bytes: 0,
            ..small.clone()
        };
        let request = Case {
            system: System::Request,
            ..null.clone()
        };
        let null = match placement {
            Placement::OneCpu => Entry::new(null).tagged(Some(budgets::WAKE)),
            Placement::TwoCpus => Entry::new(null),
        };
        let adaptive = Case {
            mode: Mode::Adaptive,
            ..small.clone()
        };
        let adaptive = Entry::new(adaptive).against(&small);
        let mut rows = vec![null, Entry::new(small), adaptive, Entry::new(request)];
        rows.extend(systems.iter().map(|&system| Entry::new(case(system))));
        Group { limit, rows }
    };
    let placements: &[Placement] = if cpus.single() {
        &[Placement::OneCpu]
    } else {
        &[Placement::OneCpu, Placement::TwoCpus]
    };
    placements
        .iter()
        .map(|&placement| group(placement))
        .collect()
}

/// Two groups, each with one row alone and the same row watched.
fn watched() -> Vec<Group> {
    let pair = |limit: Case, alone: Case, shape: Shape, budget: Option<Budget>| {
        let beside = Case {
            shape,
            ..alone.clone()
        };
        let beside = Entry::new(beside).against(&alone).tagged(budget);
        Group {
            limit: Case {
                limit: true,
                ..limit
            },
            rows: vec![Entry::new(alone), beside],
        }
    };
    let stream = |case: Case| Case {
        pattern: Pattern::Stream,
        ..case
    };
    vec![
        pair(
            Case::new(System::Line, 8),
            moved(0),
            Shape::Watched,
            Some(budgets::WATCHED),
        ),
        pair(Case::new(System::Line, 8), moved(0), Shape::Traced, None),
        pair(
            stream(Case::new(System::Ring, SMALL)),
            stream(protected(
                &Case::new(System::Portolan, SMALL),
                Protection::Trusted,
            )),
            Shape::Watched,
            Some(budgets::WATCHED),
        ),
    ]
}

/// One group: processes that do nothing.
fn resident() -> Vec<Group> {
    let idle = |system, protection| Case {
        shape: Shape::Idle,
        payload: Payload::Untouched,
        mode: Mode::Block,
        protection,
        ..Case::new(system, 0)
    };
    let limit = Case {
        limit: true,
        ..idle(System::Line, Protection::None)
    };
    let rows = [Protection::Trusted, Protection::Guarded].map(|protection| {
        Entry::new(idle(System::Portolan, protection)).tagged(Some(budgets::RESIDENT))
    });
    vec![Group {
        limit,
        rows: rows.into(),
    }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_keeps_yardsticks_without_showing_them() {
        let groups = filter(fanin(), "64 senders");
        let rows: Vec<(bool, Pattern)> = groups[0]
            .rows
            .iter()
            .map(|entry| (entry.shown, entry.case.pattern))
            .collect();
        let pair = [
            (false, Pattern::FanIn { senders: 1 }),
            (true, Pattern::FanIn { senders: 64 }),
        ];
        assert_eq!(rows, [pair; 3].concat());
    }

    #[test]
    fn a_word_that_nothing_contains_leaves_nothing() {
        assert!(filter(latency(&SIZES), "carrier pigeon").is_empty());
    }

    #[test]
    fn a_limit_can_be_asked_for_alone() {
        let groups = filter(latency(&SIZES), "cache line");
        assert_eq!((groups.len(), groups[0].rows.len()), (1, 0));
    }

    #[test]
    fn no_row_is_planned_twice() {
        for group in latency(&SIZES)
            .iter()
            .chain(&throughput(&STREAM_SIZES))
            .chain(&fanin())
            .chain(&super::super::channel::plan(&Cpus::choose()))
            .chain(&super::super::pubsub::plan(&Cpus::choose()))
            .chain(&super::super::update::plan())
        {
            for (index, entry) in group.rows.iter().enumerate() {
                assert!(
                    group.rows[..index]
                        .iter()
                        .all(|other| other.case != entry.case)
                );
            }
        }
    }
}
