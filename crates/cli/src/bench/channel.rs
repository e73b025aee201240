//! Lists the rows of `bench channel`.
//!
//! Streams are held against a bare ring of the same slots, into which and out of which the
//! messages are copied as well, on two processors at a time: what this machine can carry
//! from one to the other. Large ones are held against a memcpy, too, bytes of a message counted
//! once: the polling row against one from memory, since what another processor has just
//! written is in no cache of ours; the sleeping row against one within a cache, where nothing
//! crosses from processor to processor, and which the bare ring does not reach either.
//!
//! From one writer to many readers the writer has a processor to itself and the readers
//! share the other, so what is shown is what they cost the writer: the lines that it takes
//! back from them.

use portolan_measure::case::{
    Case, Mode, Pattern, Payload, Placement, Protection, SMALL, Shape, Signal, System, Temper,
};
use portolan_measure::cpus::Cpus;

use super::budget::{Budget, Measure};
use super::{Entry, Group};

const KIB: u64 = 1 << 10;
/// Bytes of a small message; a unit holds 48.
const TINY: u64 = 32;
// A slot of the bare ring is a line then, as a unit is.
const _: () = assert!(TINY <= SMALL);
/// Messages that are held against each other by when they are signalled.
const SIGNALLED: [u64; 4] = [TINY, KIB, 4 * KIB, 64 * KIB];
const READERS: [u32; 3] = [1, 2, 8];

const STREAM: Budget = Budget::new(
    "32 B stream, to a bare ring's rate",
    Measure::Rate,
    0.5,
    Some(0.8),
);
const LARGE: Budget = Budget::new(
    "64 KiB stream, to one memcpy from memory",
    Measure::Faster,
    0.7,
    Some(0.9),
);
const READERS_FLAT: Budget = Budget::new(
    "a write to 2 and 8 readers, to one reader",
    Measure::Yardstick,
    1.1,
    None,
);

/// A group of each kind; on one processor nothing can be said of readers beside a writer.
pub(super) fn plan(cpus: &Cpus) -> Vec<Group> {
    let mut groups = vec![latency(), small(), middling(), large()];
    groups.extend(SIGNALLED.map(signals));
    if !cpus.single() {
        groups.push(readers());
    }
    groups
}

/// A trusted message of `bytes` through a channel; copied, and nothing more.
fn message(bytes: u64) -> Case {
    Case {
        protection: Protection::Trusted,
        payload: Payload::Untouched,
        ..Case::new(System::Channel, bytes)
    }
}

fn stream(case: Case, mode: Mode) -> Case {
    Case {
        pattern: Pattern::Stream,
        mode,
        ..case
    }
}

/// A bare ring that such messages are copied into, and out of.
fn ring(bytes: u64) -> Case {
    let case = Case {
        limit: true,
        payload: Payload::Untouched,
        ..Case::new(System::Ring, bytes)
    };
    stream(case, Mode::Poll)
}

/// One message there, another back.
fn latency() -> Group {
    let sizes = [TINY, KIB, 64 * KIB];
    let polled = sizes.map(|bytes| Entry::new(message(bytes)));
    let asleep = Case {
        mode: Mode::Block,
        ..message(TINY)
    };
    Group {
        limit: Case {
            limit: true,
            ..Case::new(System::Line, 8)
        },
        rows: polled.into_iter().chain([Entry::new(asleep)]).collect(),
    }
}

fn small() -> Group {
    let plain = message(TINY);
    Group {
        limit: ring(TINY),
        rows: vec![
            Entry::new(stream(plain.clone(), Mode::Poll)).tagged(Some(STREAM)),
            Entry::new(stream(plain, Mode::Block)),
        ],
    }
}

fn middling() -> Group {
    let rows = [Mode::Poll, Mode::Block].map(|mode| Entry::new(stream(message(KIB), mode)));
    Group {
        limit: ring(KIB),
        rows: rows.into(),
    }
}

fn large() -> Group {
    let bytes = 64 * KIB;
    let memcpy = Case {
        payload: Payload::Untouched,
        temper: Temper::Cold,
        ..Case::new(System::Memcpy { copies: 1 }, bytes)
    };
    let hot = Case {
        temper: Temper::Hot,
        ..memcpy.clone()
    };
    let rows = vec![
        Entry::new(stream(message(bytes), Mode::Poll))
            .against(&memcpy)
            .tagged(Some(LARGE)),
        Entry::new(stream(message(bytes), Mode::Block)).against(&hot),
        Entry::new(memcpy.clone()),
        Entry::new(hot),
    ];
    Group {
        limit: ring(bytes),
        rows,
    }
}

/// A stream of messages over units of a line, by when they are signalled; how many signals a
/// message has is counted.
fn signals(bytes: u64) -> Group {
    let row = |signal, mode| {
        let shape = Shape::Signalled(signal);
        let case = Case {
            shape,
            ..message(bytes)
        };
        Entry::new(stream(case, mode))
    };
    let units = [
        Signal::Never,
        Signal::Message,
        Signal::Bytes(4096),
        Signal::Bytes(64),
    ];
    let polled = units.map(|signal| row(signal, Mode::Poll));
    // No writer would wake a reader of a message that ends within a unit, or is never signalled.
    let asleep = [Signal::Message, Signal::Bytes(64)].map(|signal| row(signal, Mode::Block));
    Group {
        limit: ring(bytes),
        rows: polled.into_iter().chain(asleep).collect(),
    }
}

fn readers() -> Group {
    let case = |readers| Case {
        pattern: Pattern::Multicast { readers },
        placement: Placement::TwoCpus,
        ..message(TINY)
    };
    let alone = case(READERS[0]);
    let rows = READERS.map(|readers| {
        let entry = Entry::new(case(readers));
        if readers == READERS[0] {
            return entry;
        }
        entry.against(&alone).tagged(Some(READERS_FLAT))
    });
    Group {
        limit: ring(TINY),
        rows: rows.into(),
    }
}
