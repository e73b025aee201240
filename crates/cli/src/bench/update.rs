//! Lists the rows of `bench update`: words, copies and stores that reach memory which another
//! process exports, the costs of beginning and ending that, and messages between domains.

use portolan_measure::case::update::{Target, Update, Way};
use portolan_measure::case::{Case, Mode, Pattern, Payload, Protection, System};

use super::budget::{Budget, Measure};
use super::report::LeftOut;
use super::{Entry, Group, Measured};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Bytes of deliberate updates.
const UPDATES: [u64; 3] = [64 * KIB, MIB, 16 * MIB];
/// Bytes of messages between domains.
const MESSAGES: [u64; 2] = [MIB, 16 * MIB];
/// Bytes of what is exported only to see what that takes.
const SET_UP: u64 = 64 * KIB;
/// Bytes of an update that goes on beside a computation.
const OVERLAPPED: u64 = 16 * MIB;
/// Bytes of an export that is taken back.
const RETURNED: u64 = 64 * MIB;

/// What the rows must reach.
mod budgets {
    use super::{Budget, Measure};
    use Measure::{Counted, Faster, Limit, Yardstick};

    pub(super) const WORD: Budget = Budget::new(
        "one word, one way, to one line transfer",
        Limit,
        1.2,
        Some(1.05),
    );
    pub(super) const WRITE: Budget = Budget::new(
        "deliberate update, 64 KiB up, to memcpy",
        Faster,
        0.95,
        Some(0.98),
    );
    pub(super) const MEDIATED: Budget = Budget::new(
        "kernel-mediated, 64 KiB up, to the bare call",
        Faster,
        0.95,
        None,
    );
    pub(super) const ALIAS: Budget = Budget::new(
        "alias, consecutive words, to private memory",
        Faster,
        0.9,
        Some(1.0),
    );
    pub(super) const EXPORTER: Budget =
        Budget::new("exporter's CPU, an update, ns", Counted, 0.0, None);
    pub(super) const COPIED: Budget = Budget::new(
        "between domains, copied, to a Unix socket",
        Faster,
        1.5,
        Some(2.0),
    );
    pub(super) const SEALED: Budget = Budget::new(
        "a further receiver of 16 MiB sealed, to a socket",
        Faster,
        4.0,
        Some(10.0),
    );
    pub(super) const UNEXPORT: Budget = Budget::new(
        "unexport of 64 MiB, to a copy of it",
        Yardstick,
        2.0,
        Some(1.2),
    );
}

pub(super) fn plan() -> Vec<Group> {
    let mut groups = vec![words(), notifications(), small()];
    groups.extend(UPDATES.map(written));
    groups.extend([stores(), pages(), overlap(), set_up()]);
    groups.extend(MESSAGES.map(messages));
    groups.push(end());
    groups
}

/// What is not measured.
pub(super) fn left_out(measured: &[Measured]) -> Vec<LeftOut> {
    let uncounted = measured.iter().find_map(|row| row.uncounted.clone());
    let left_out = uncounted.map(|why| LeftOut {
        what: "instructions and system calls of operations",
        why: why.into(),
    });
    left_out.into_iter().collect()
}

fn group(rows: Vec<Entry>) -> Group {
    let limit = Case {
        limit: true,
        ..Case::new(System::Line, 8)
    };
    Group { limit, rows }
}

fn operation(update: Update, bytes: u64) -> Case {
    Case {
        pattern: Pattern::RoundTrip { one_way: false },
        ..Case::new(System::Update(update), bytes)
    }
}

/// A word there and back, and what the other side spends on one that only goes there.
fn words() -> Group {
    let word = |way| Entry::new(Case::new(System::Word(way), 8));
    let receiver = operation(Update::Receiver, 8);
    group(vec![
        word(Way::Deliberate).tagged(Some(budgets::WORD)),
        word(Way::Alias).tagged(Some(budgets::WORD)),
        word(Way::Log),
        word(Way::Kernel),
        Entry::new(receiver).tagged(Some(budgets::EXPORTER)),
    ])
}

/// A word of which the exporter is told: one that polls, and one that sleeps, beside a sleeper
/// that only a word wakes; and what telling it costs the importer.
fn notifications() -> Group {
    let told = |mode| Case {
        mode,
        ..Case::new(System::Word(Way::Notified), 8)
    };
    let futex = Case {
        mode: Mode::Block,
        payload: Payload::Untouched,
        ..Case::new(System::Futex, 8)
    };
    let by_call = |asleep| Entry::new(operation(Update::Notify { asleep }, 8));
    group(vec![
        Entry::new(told(Mode::Poll)),
        Entry::new(futex.clone()),
        Entry::new(told(Mode::Block)).against(&futex),
        by_call(false),
        by_call(true),
    ])
}

/// Updates of a word by a call: what it takes to begin one.
fn small() -> Group {
    let bare = operation(Update::Bare, 8);
    let mediated = Entry::new(operation(Update::Mediated, 8)).against(&bare);
    let write = Entry::new(operation(Update::Write, 8));
    group(vec![write, Entry::new(bare), mediated])
}

/// A deliberate update beside the copy that it is, and one by the kernel beside its call.
fn written(bytes: u64) -> Group {
    let copy = operation(Update::Copy, bytes);
    let write = Entry::new(operation(Update::Write, bytes));
    let write = write.against(&copy).tagged(Some(budgets::WRITE));
    let bare = operation(Update::Bare, bytes);
    let mediated = Entry::new(operation(Update::Mediated, bytes));
    let mediated = mediated.against(&bare).tagged(Some(budgets::MEDIATED));
    group(vec![Entry::new(copy), write, Entry::new(bare), mediated])
}

/// Stores of words, one after another and scattered, beside the same to private memory.
fn stores() -> Group {
    let mut rows = Vec::new();
    for scattered in [false, true] {
        let to = |to| operation(Update::Stores { to, scattered }, 8);
        let private = to(Target::Private);
        rows.push(Entry::new(private.clone()));
        for target in [Target::Alias, Target::Log, Target::Tracked] {
            let row = Entry::new(to(target)).against(&private);
            let budgeted = target == Target::Alias && !scattered;
            rows.push(row.tagged(budgeted.then_some(budgets::ALIAS)));
        }
    }
    group(rows)
}

/// What tracking costs by page.
fn pages() -> Group {
    let rows = [Update::FirstStore, Update::FlushPage, Update::Flush];
    group(rows.map(|row| Entry::new(operation(row, 4 * KIB))).into())
}

/// Updates that go on by themselves.
fn overlap() -> Group {
    let in_turn = operation(Update::InTurn, OVERLAPPED);
    let overlapped = operation(Update::Overlapped, OVERLAPPED);
    group(vec![
        Entry::new(operation(Update::Initiate, OVERLAPPED)),
        Entry::new(in_turn.clone()),
        Entry::new(overlapped).against(&in_turn),
    ])
}

fn set_up() -> Group {
    let rows = [
        Update::Export,
        Update::Import,
        Update::Unimport,
        Update::Unexport,
    ];
    group(rows.map(|row| Entry::new(operation(row, SET_UP))).into())
}

/// Messages that are written and read, from one domain to another. What is sealed was written
/// once, and is read by each receiver.
fn messages(bytes: u64) -> Group {
    let mut rows = Vec::new();
    for mode in [Mode::Block, Mode::Poll] {
        let by = |system, protection| Case {
            mode,
            protection,
            ..Case::new(system, bytes)
        };
        let socket = by(System::UnixStream, Protection::None);
        let ours = |protection| Entry::new(by(System::Bridge, protection)).against(&socket);
        let (copied, sealed) = (ours(Protection::Copied), ours(Protection::Sealed));
        rows.push(Entry::new(socket.clone()));
        let blocking = mode == Mode::Block;
        rows.push(copied.tagged(blocking.then_some(budgets::COPIED)));
        let large = blocking && bytes >= 16 * MIB;
        rows.push(sealed.tagged(large.then_some(budgets::SEALED)));
    }
    group(rows)
}

/// Memory that is taken back from its importers.
fn end() -> Group {
    let copy = operation(Update::FreshCopy, RETURNED);
    let unexport = Entry::new(operation(Update::Unexport, RETURNED));
    let unexport = unexport.against(&copy).tagged(Some(budgets::UNEXPORT));
    group(vec![Entry::new(copy), unexport])
}
