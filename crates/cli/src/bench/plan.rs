//! Which rows each benchmark has.

use super::case::{Case, Mode, Pattern, Payload, Placement, SMALL, System, Temper};
use super::cpus::Cpus;
use super::harness::{Entry, Group};
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
            entry.shown = entry.case.contains(word);
        }
        let needed: Vec<Case> = group
            .rows
            .iter()
            .filter(|entry| entry.shown)
            .filter_map(|entry| entry.yardstick.clone())
            .collect();
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
        (_, Temper::Cold) => COLD_ROW,
        (System::Ring, _) => 9 * case.bytes,
        // A buffer and a private copy each way.
        _ => 4 * case.bytes,
    }
}

/// One group a size; the limit is the same for all.
fn latency(sizes: &[u64]) -> Vec<Group> {
    let limit = Case {
        limit: true,
        ..Case::new(System::Line, 8)
    };
    let mut groups = Vec::new();
    for &bytes in sizes {
        let buffer = Case::new(System::Buffer, bytes);
        let mut rows = vec![];
        if bytes >= SMALL {
            rows.push(Entry {
                case: buffer.clone(),
                yardstick: None,
                shown: true,
            });
        }
        for case in peers(bytes).into_iter().chain(copied(bytes)) {
            // What does the same work is held against the shared buffer.
            let same_work = case.payload == Payload::Touched && bytes >= 4 * KIB;
            rows.push(Entry {
                case,
                yardstick: same_work.then(|| buffer.clone()),
                shown: true,
            });
        }
        groups.push(Group {
            limit: limit.clone(),
            rows,
        });
    }
    groups
}

/// Rows of peers that hand memory over as we do.
#[cfg(feature = "peers")]
fn peers(bytes: u64) -> Vec<Case> {
    // It has no empty messages without a type of their own.
    if !(SMALL..=COPIED_MAX).contains(&bytes) {
        return Vec::new();
    }
    let touched = Case::new(System::Iceoryx, bytes);
    let untouched = Case {
        payload: Payload::Untouched,
        ..touched.clone()
    };
    let block = Case {
        mode: Mode::Block,
        ..touched.clone()
    };
    vec![untouched, touched, block]
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
        cases.push(once.clone());
        cases.push(Case::new(System::Memcpy { copies: 2 }, bytes));
        let untouched = Case {
            payload: Payload::Untouched,
            ..once
        };
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
        let mut rows = Vec::new();
        for system in [System::Pipe, System::UnixStream, System::UnixSeqpacket] {
            if system == System::UnixSeqpacket && bytes > PACKET_MAX {
                continue;
            }
            for mode in [Mode::Poll, Mode::Block] {
                rows.push(Entry {
                    case: stream(system, mode),
                    yardstick: None,
                    shown: true,
                });
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
    for system in [System::Pipe, System::UnixSeqpacket] {
        let one = case(system, Mode::Block, SENDERS[0]);
        for senders in SENDERS {
            let yardstick = (senders != SENDERS[0]).then(|| one.clone());
            rows.push(Entry {
                case: case(system, Mode::Block, senders),
                yardstick,
                shown: true,
            });
        }
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
        let systems = [[System::Iceoryx].as_slice(), systems.as_slice()].concat();
        let row = |&system: &System| Entry {
            case: case(system),
            yardstick: None,
            shown: true,
        };
        Group {
            limit,
            rows: systems.iter().map(row).collect(),
        }
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
        assert_eq!(rows, [pair, pair].concat());
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
