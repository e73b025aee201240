//! Lists the rows of `bench pubsub`.
//!
//! Samples by topic between two processes, polling (one way and there and back) and
//! blocking; long ones beside the same work in a shared buffer, and a memcpy. And what it
//! costs a publisher that many subscribe, or that one of them reads nothing, or is stopped:
//! the publisher has a processor to itself then, the subscribers share the other. Small
//! samples are copied, of which the bare ring shows what it takes; long ones are read where
//! they were filled.

use portolan_measure::case::{
    Case, Mode, Pattern, Payload, Placement, Protection, SMALL, Shape, System,
};
use portolan_measure::cpus::Cpus;

use super::budget::{Budget, Measure};
use super::{Entry, Group};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// A line; what is copied; what lies in memory of its own.
const SIZES: [u64; 4] = [SMALL, KIB, 64 * KIB, MIB];
/// From here on nothing is copied.
const LONG: u64 = 64 * KIB;
const SUBSCRIBERS: [u32; 3] = [1, 2, 8];

const FLAT: Budget = Budget::new(
    "publishing to 2 and 8 subscribers, to one",
    Measure::Yardstick,
    1.1,
    None,
);
const BESIDE: Budget = Budget::new(
    "beside one that is idle, or stopped, to one",
    Measure::Yardstick,
    1.1,
    None,
);

/// A group of each kind; on one processor nothing can be said of subscribers beside a
/// publisher.
pub(super) fn plan(cpus: &Cpus) -> Vec<Group> {
    let mut groups: Vec<Group> = SIZES.map(latency).into();
    groups.push(blocking(Placement::OneCpu));
    if !cpus.single() {
        groups.push(blocking(Placement::TwoCpus));
        groups.extend(SIZES.into_iter().filter(|size| *size <= LONG).map(many));
    }
    groups
}

/// Ours, and those of other libraries that publish from one process to another.
const SYSTEMS: &[System] = &[
    System::Topic,
    #[cfg(feature = "peers")]
    System::Iceoryx,
    #[cfg(feature = "peers")]
    System::Zenoh,
];
/// Ours, and those of other libraries whose subscribers read one sample of shared memory, and
/// whose oldest sample gives way.
const TO_MANY: &[System] = &[
    System::Topic,
    #[cfg(feature = "peers")]
    System::Iceoryx,
];

fn sample(system: System, bytes: u64) -> Case {
    let protection = match system {
        System::Topic => Protection::Trusted,
        _ => Protection::None,
    };
    Case {
        protection,
        ..Case::new(system, bytes)
    }
}

fn limit(case: Case) -> Case {
    Case {
        limit: true,
        ..case
    }
}

/// A sample there, another back: each is written and read.
fn latency(bytes: u64) -> Group {
    let buffer = Case::new(System::Buffer, bytes);
    let mut rows = Vec::new();
    for &system in SYSTEMS {
        let one_way = sample(system, bytes);
        let round_trip = Case {
            pattern: Pattern::RoundTrip { one_way: false },
            ..one_way.clone()
        };
        let asleep = Case {
            mode: Mode::Block,
            ..one_way.clone()
        };
        let untouched = Case {
            payload: Payload::Untouched,
            ..one_way.clone()
        };
        rows.push(Entry::new(one_way).against(&buffer));
        if bytes < LONG {
            rows.push(Entry::new(round_trip));
        } else {
            rows.push(Entry::new(untouched));
        }
        rows.push(Entry::new(asleep));
    }
    rows.push(Entry::new(buffer));
    if bytes >= LONG {
        let copy = Case::new(System::Memcpy { copies: 1 }, bytes);
        rows.push(Entry::new(Case {
            payload: Payload::Untouched,
            ..copy
        }));
    }
    Group {
        limit: limit(Case::new(System::Line, 8)),
        rows,
    }
}

/// Both sides asleep whenever they wait.
fn blocking(placement: Placement) -> Group {
    let asleep = |case: Case| Case {
        mode: Mode::Block,
        placement,
        pattern: Pattern::RoundTrip { one_way: false },
        ..case
    };
    let futex = Case {
        payload: Payload::Untouched,
        ..Case::new(System::Futex, 0)
    };
    let sizes = [SMALL, KIB, LONG];
    let mut rows = Vec::new();
    for &system in SYSTEMS {
        rows.extend(sizes.map(|bytes| Entry::new(asleep(sample(system, bytes)))));
    }
    // As it waits by default, which the others do, too.
    rows.extend(sizes.map(|bytes| {
        let asleep = asleep(sample(System::Topic, bytes));
        let adaptive = Case {
            mode: Mode::Adaptive,
            ..asleep.clone()
        };
        Entry::new(adaptive).against(&asleep)
    }));
    Group {
        limit: limit(asleep(futex)),
        rows,
    }
}

/// From one to many: the publisher's time.
fn many(bytes: u64) -> Group {
    let ring = Case {
        pattern: Pattern::Stream,
        ..Case::new(System::Ring, bytes)
    };
    let mut rows = Vec::new();
    for &system in TO_MANY {
        let to = |readers| Case {
            pattern: Pattern::Multicast { readers },
            ..sample(system, bytes)
        };
        let alone = to(SUBSCRIBERS[0]);
        let ours = |budget| (system == System::Topic).then_some(budget);
        rows.push(Entry::new(alone.clone()));
        for readers in &SUBSCRIBERS[1..] {
            let entry = Entry::new(to(*readers)).against(&alone);
            rows.push(entry.tagged(ours(FLAT)));
        }
        for shape in [Shape::BesideIdle, Shape::BesideStopped] {
            let beside = Case {
                shape,
                ..alone.clone()
            };
            rows.push(Entry::new(beside).against(&alone).tagged(ours(BESIDE)));
        }
        // Each sample finds it asleep.
        rows.push(Entry::new(Case {
            mode: Mode::Block,
            ..alone
        }));
    }
    Group {
        limit: limit(ring),
        rows,
    }
}
