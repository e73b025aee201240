//! Lists the rows of `bench rpc`: calls beside the machine's limits, calls by other libraries, and
//! the checksum that is made in their copies.

use portolan_measure::case::{
    Case, Mode, Pattern, Payload, Placement, Protection, Shape, System, Temper,
};
use portolan_measure::cpus::Cpus;

use super::budget::{Budget, Measure};
use super::report::LeftOut;
use super::{Entry, Group, Measured};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Bytes of a small call's arguments: with its head, they fill a cache line.
const SMALL: u64 = 32;
/// Bytes of calls that stand beside other libraries'.
const SIZES: [u64; 4] = [0, SMALL, KIB, 64 * KIB];

/// What the rows must reach.
mod budgets {
    use super::{Budget, Measure};
    use Measure::{Limit, Yardstick};

    pub(super) const NULL: Budget =
        Budget::new("null call, to two line transfers", Limit, 2.0, Some(1.5));
    pub(super) const SMALL: Budget =
        Budget::new("32 B call, to two line transfers", Limit, 2.5, Some(2.0));
    pub(super) const LARGE: Budget =
        Budget::new("1 KiB call, to two line transfers", Limit, 5.0, Some(4.0));
    pub(super) const BLOCKING: Budget = Budget::new(
        "null call, blocking, to a futex ping-pong",
        Limit,
        1.3,
        Some(1.15),
    );
    pub(super) const CLIENTS: Budget = Budget::new(
        "one of 1,000 clients, to one alone",
        Yardstick,
        1.5,
        Some(1.2),
    );
    pub(super) const SUM_KIB: Budget = Budget::new(
        "checksum, 1 KiB, to the copies alone",
        Yardstick,
        1.15,
        None,
    );
    pub(super) const SUM_HOT: Budget = Budget::new(
        "checksum, 64 KiB hot, to the copies alone",
        Yardstick,
        1.4,
        None,
    );
    pub(super) const SUM_COLD: Budget = Budget::new(
        "checksum, from memory, to the copies alone",
        Yardstick,
        1.1,
        None,
    );
}

pub(super) fn plan(cpus: &Cpus) -> Vec<Group> {
    let mut groups = vec![calls(), clients(), copies(), idle(), promotions(), timer()];
    groups.push(blocking(Placement::OneCpu));
    if !cpus.single() {
        groups.push(blocking(Placement::TwoCpus));
    }
    groups
}

/// What only a build with other libraries has, and only a machine that has time.
pub(super) fn left_out(groups: &[Group], measured: &[Measured]) -> Vec<LeftOut> {
    let mut left_out = Vec::new();
    if !cfg!(feature = "peers") {
        left_out.push(LeftOut {
            what: "calls by iceoryx2, Cap'n Proto RPC and gRPC",
            why: "build with --features peers (that needs libclang)".into(),
        });
    }
    let asked_for = groups.iter().flat_map(|group| &group.rows);
    let is_missing = |entry: &&Entry| {
        let is_change = matches!(entry.case.shape, Shape::Promotion | Shape::Demotion);
        is_change && entry.shown && measured.iter().all(|row| row.case != entry.case)
    };
    if asked_for.filter(is_missing).count() > 0 {
        left_out.push(LeftOut {
            what: "a client that is promoted, or demoted",
            why: "no client made 64 calls within 100 ms: run it while the machine has less to do"
                .into(),
        });
    }
    left_out
}

/// A call there and back; its figures are those of the whole.
fn call(bytes: u64) -> Case {
    Case {
        protection: Protection::Trusted,
        payload: Payload::Untouched,
        pattern: Pattern::RoundTrip { one_way: false },
        ..Case::new(System::Call, bytes)
    }
}

fn line() -> Case {
    Case {
        limit: true,
        ..Case::new(System::Line, 8)
    }
}

fn futex() -> Case {
    Case {
        limit: true,
        mode: Mode::Block,
        payload: Payload::Untouched,
        pattern: Pattern::RoundTrip { one_way: false },
        ..Case::new(System::Futex, 0)
    }
}

/// Both sides awake.
fn calls() -> Group {
    let shaped = |bytes, shape| {
        Entry::new(Case {
            shape,
            ..call(bytes)
        })
    };
    let null = Entry::new(call(0)).tagged(Some(budgets::NULL));
    let small = Entry::new(call(SMALL)).tagged(Some(budgets::SMALL));
    let large = Entry::new(call(KIB)).tagged(Some(budgets::LARGE));
    let mut rows = vec![
        null,
        small,
        large,
        shaped(KIB, Shape::Unchecked),
        shaped(0, Shape::Reliable),
        shaped(KIB, Shape::Reliable),
        Entry::new(call(64 * KIB)),
        shaped(64 * KIB, Shape::Loaned),
        shaped(1024 * KIB, Shape::Loaned),
    ];
    // Long ones of others are lent, too, where they can be.
    let ours = |bytes| match bytes > KIB {
        true => Case {
            shape: Shape::Loaned,
            ..call(bytes)
        },
        false => call(bytes),
    };
    rows.extend(SIZES.into_iter().flat_map(|bytes| peers(&ours(bytes))));
    Group {
        limit: line(),
        rows,
    }
}

/// Other libraries' calls of as many bytes as `ours`, which they are held against. They wait
/// as it does, and answer with nothing, as it does; their bytes have no checksum.
#[cfg(feature = "peers")]
fn peers(ours: &Case) -> Vec<Entry> {
    let systems = [System::IceoryxCall, System::Capnp, System::Tonic];
    let row = |system| Case {
        system,
        protection: Protection::None,
        ..ours.clone()
    };
    let rows = systems.map(|system| Entry::new(row(system)).against(ours));
    rows.into()
}

#[cfg(not(feature = "peers"))]
fn peers(_ours: &Case) -> Vec<Entry> {
    Vec::new()
}

/// One client that calls, alone and beside others that do not.
fn clients() -> Group {
    let alone = call(0);
    let among = Case {
        shape: Shape::IdleClients,
        ..call(0)
    };
    let rows = vec![
        Entry::new(alone.clone()).hidden(),
        Entry::new(among)
            .against(&alone)
            .tagged(Some(budgets::CLIENTS)),
    ];
    Group {
        limit: line(),
        rows,
    }
}

/// What idle clients keep, in both processes together, beside a process that does nothing.
fn idle() -> Group {
    let limit = Case {
        limit: true,
        mode: Mode::Block,
        payload: Payload::Untouched,
        shape: Shape::Idle,
        ..Case::new(System::Line, 0)
    };
    let client = |sharing| Case {
        mode: Mode::Block,
        shape: Shape::IdleClient { sharing },
        pattern: limit.pattern,
        ..call(0)
    };
    let own = client(false);
    let sharing = Entry::new(client(true)).against(&own);
    Group {
        limit,
        rows: vec![Entry::new(own), sharing],
    }
}

/// A busy client that shares is given channels of its own, which are taken from another client.
fn promotions() -> Group {
    let rows = [Shape::Promotion, Shape::Demotion];
    Group {
        limit: line(),
        rows: rows
            .map(|shape| Entry::new(Case { shape, ..call(0) }))
            .into(),
    }
}

/// Calls that outlast the timer's period, and those that do not.
fn timer() -> Group {
    let row = |shape| Case {
        mode: Mode::Block,
        shape,
        ..call(0)
    };
    let plain = row(Shape::Late { timer: false });
    let rows = vec![
        Entry::new(plain.clone()),
        Entry::new(row(Shape::Late { timer: true })).against(&plain),
        Entry::new(row(Shape::Timer)),
    ];
    Group {
        limit: futex(),
        rows,
    }
}

/// The bytes' way into a channel and out of it, with and without a checksum.
fn copies() -> Group {
    let rows = [
        (KIB, Temper::Hot, budgets::SUM_KIB),
        (64 * KIB, Temper::Hot, budgets::SUM_HOT),
        (MIB, Temper::Cold, budgets::SUM_COLD),
    ];
    let rows = rows.into_iter().flat_map(|(bytes, temper, budget)| {
        let case = |sum| Case {
            payload: Payload::Untouched,
            pattern: Pattern::RoundTrip { one_way: false },
            temper,
            ..Case::new(System::Marshal { sum }, bytes)
        };
        let plain = case(false);
        let summed = Entry::new(case(true)).against(&plain).tagged(Some(budget));
        [Entry::new(plain), summed]
    });
    Group {
        limit: line(),
        rows: rows.collect(),
    }
}

/// Both sides asleep whenever they wait; and ours as it waits by default, because other libraries
/// wait as they do by default, and a side that still works when its answer comes does not sleep.
fn blocking(placement: Placement) -> Group {
    let asleep = |case: Case| Case {
        mode: Mode::Block,
        placement,
        ..case
    };
    let limit = asleep(futex());
    let ours = SIZES.map(|bytes| asleep(call(bytes)));
    let mut rows: Vec<Entry> = ours.iter().cloned().map(Entry::new).collect();
    rows[0].tag = Some(budgets::BLOCKING);
    rows.extend(ours.iter().map(|asleep| {
        let case = Case {
            mode: Mode::Adaptive,
            ..asleep.clone()
        };
        Entry::new(case).against(asleep)
    }));
    rows.extend(ours.iter().flat_map(peers));
    Group { limit, rows }
}
