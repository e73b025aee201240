//! Makes tables and verdicts: the paper's figures, and ours beside them.

use super::{
    AUTOMATIC, Below, DELIBERATE, Found, KERNEL, MEDIATED, ONE_COPY, OfWord, Overlap, PIPE, SOCKET,
    Slices, UNIT, UPDATES, WORD, When,
};
use crate::claims::{self, Claim, Estimate, table};
use crate::clock::Timed;
use crate::lanes::{Beside, figure, shown};
use crate::outcome::{Cell, Outcome, Table, Verdict};
use crate::unit::Unit;

/// What the paper says. What is added for an interrupt is not in its figures.
struct Paper {
    row: &'static str,
    /// Seconds of a word one way, and bytes a second.
    latency: f64,
    bandwidth: f64,
    /// Seconds that sender and receiver spend on a word, and their sum.
    overhead: [f64; 3],
}

const fn paper(row: &'static str, latency: f64, bandwidth: f64, overhead: [f64; 3]) -> Paper {
    Paper {
        row,
        latency,
        bandwidth,
        overhead,
    }
}

/// Tables 1 and 2.
const PAPER: [Paper; 6] = [
    paper(MEDIATED, 10.7e-6, 23e6, [6.7e-6, 0.0, 6.7e-6]),
    paper(DELIBERATE, 7.8e-6, 23e6, [2.8e-6, 0.0, 2.8e-6]),
    paper(AUTOMATIC, 4.8e-6, 20e6, [0.01e-6, 0.0, 0.01e-6]),
    paper(ONE_COPY, 13.7e-6, 12e6, [6.7e-6, 5e-6, 11.7e-6]),
    paper(PIPE, 15.7e-6, 8e6, [6.9e-6, 5e-6, 11.9e-6]),
    paper(SOCKET, 15.7e-6, 8e6, [6.9e-6, 5e-6, 11.9e-6]),
];

/// The paper's hardware: one way, the bus's peak, and a copy out of the cache.
const HARDWARE: f64 = 4e-6;
const PEAK: f64 = 33e6;
const CACHE_TO_MEMORY: f64 = 22e6;

const TWO_COPIES: [&str; 2] = [PIPE, SOCKET];

fn of(row: &str) -> &'static Paper {
    let found = PAPER.iter().find(|paper| paper.row == row);
    found.expect("a row of the paper's")
}

fn slices<'a>(all: &'a [Slices], row: &str, when: When) -> Option<&'a Slices> {
    all.iter().find(|one| one.row == row && one.when == when)
}

fn times<'a>(all: &'a [Slices], row: &str, when: When) -> &'a [f64] {
    slices(all, row, when).map_or(&[], |one| &one.track.times)
}

/// Seconds of sender, receiver and both, slice by slice.
fn spent(all: &[Slices], row: &str, when: When) -> [Vec<f64>; 3] {
    let Some(one) = slices(all, row, when) else {
        return [const { Vec::new() }; 3];
    };
    let (times, received) = (&one.track.times, &one.track.received);
    let with = |sum: fn(f64, f64) -> f64| -> Vec<f64> {
        let both = times.iter().zip(received);
        both.map(|(time, received)| sum(*time, *received)).collect()
    };
    // Messages that follow one another are timed on both sides together.
    let together = when == When::Awake && KERNEL.iter().any(|(kernel, _)| *kernel == row);
    if together {
        [
            with(|all, received| all - received),
            received.clone(),
            times.clone(),
        ]
    } else {
        [
            times.clone(),
            received.clone(),
            with(|send, received| send + received),
        ]
    }
}

fn cell(times: &[f64]) -> Cell {
    if times.is_empty() {
        return Cell::default();
    }
    Timed::of(times.to_vec()).cell()
}

fn rates(bytes: u64, times: &[f64]) -> Vec<f64> {
    times.iter().map(|time| bytes as f64 / time).collect()
}

pub(super) fn outcome(found: &Found) -> Outcome {
    let mut outcome = Outcome {
        tables: vec![
            table_1(found),
            table_2(found),
            ratios(found),
            hardware(found),
            instructions(found),
        ]
        .into_iter()
        .chain(found.modes.tables())
        .collect(),
        verdicts: verdicts(found),
        ..Outcome::default()
    };
    outcome.leave_out(
        "what libraries on top of it gain: remote calls, NX/2, shared virtual memory",
        "the paper's section 5 has them between machines, and so far there are updates within one \
         machine only",
    );
    outcome
}

fn table_1(found: &Found) -> Table {
    let columns = [
        ("latency", Unit::Seconds),
        ("latency, asleep", Unit::Seconds),
        ("bandwidth, read", Unit::BytesPerSecond),
        (
            "the same unit again and again, unread",
            Unit::BytesPerSecond,
        ),
    ];
    let mut table = Table::new("table-1", "Table 1: latency and bandwidth", "way", &columns);
    for paper in &PAPER {
        let latency = |when| cell(times(&found.latency, paper.row, when));
        let rate = |when| cell(&rates(UNIT, times(&found.unit, paper.row, when)));
        table.row(
            paper.row,
            [
                latency(When::Awake).beside(paper.latency),
                latency(When::Asleep),
                rate(When::Read).beside(paper.bandwidth),
                rate(When::Delivered),
            ],
        );
    }
    table.note(
        "The paper's latencies through the kernel are without the interrupt that its receivers \
         take, which it does not measure: they stand beside receivers that are awake. Read: written by \
         the sender before, and read by the receiver after, who is told by a number behind each \
         (of kernel-mediated updates a second update). Unread: past the kernel the same 4 KiB stay in the \
         sender's cache and go nowhere, so that this is the cache's bandwidth, and no message's. Automatic \
         updates are stores to an alias: the sender keeps no copy of its own, as it does in the paper, and \
         nothing snoops the bus.",
    )
}

fn table_2(found: &Found) -> Table {
    let columns = [
        ("send", Unit::Seconds),
        ("receive", Unit::Seconds),
        ("total", Unit::Seconds),
        ("send, asleep", Unit::Seconds),
        ("receive, asleep", Unit::Seconds),
        ("total, asleep", Unit::Seconds),
    ];
    let title = "Table 2: processor time of a word";
    let mut table = Table::new("table-2", title, "way", &columns);
    for paper in &PAPER {
        let awake = spent(&found.overhead, paper.row, When::Awake);
        let asleep = spent(&found.overhead, paper.row, When::Asleep);
        let beside = awake.iter().zip(paper.overhead);
        let awake = beside.map(|(times, paper)| cell(times).beside(paper));
        let cells: Vec<Cell> = awake
            .chain(asleep.iter().map(|times| cell(times)))
            .collect();
        table.row(paper.row, cells);
    }
    table.note(
        "Asleep: the receiver is woken for each word, where the paper writes \"+ receive \
         interrupt\"; no update needs a receiver. What is sent is what the paper calls the cost of \
         initiating a transfer.",
    )
}

/// How many times as much the kernel takes, slice by slice.
fn factor(kernel: &[f64], update: &[f64]) -> Option<Beside> {
    Beside::ratio(kernel, update)
}

/// A comparison of the paper's: of which update, in what, with its own figures.
struct Comparison {
    name: &'static str,
    update: &'static str,
    when: When,
    /// Of a row; more is slower.
    value: fn(&Found, &str, When) -> Vec<f64>,
    paper: Option<fn(&Paper) -> f64>,
}

fn latency(found: &Found, row: &str, when: When) -> Vec<f64> {
    times(&found.latency, row, when).to_vec()
}

fn unit(found: &Found, row: &str, when: When) -> Vec<f64> {
    times(&found.unit, row, when).to_vec()
}

fn total(found: &Found, row: &str, when: When) -> Vec<f64> {
    let [.., total] = spent(&found.overhead, row, when);
    total
}

const COMPARISONS: [Comparison; 6] = [
    Comparison {
        name: "latency, to automatic update",
        update: AUTOMATIC,
        when: When::Awake,
        value: latency,
        paper: Some(|paper| paper.latency),
    },
    Comparison {
        name: "latency, asleep, to automatic update",
        update: AUTOMATIC,
        when: When::Asleep,
        value: latency,
        paper: None,
    },
    Comparison {
        name: "time of the same unit, unread, to deliberate update",
        update: DELIBERATE,
        when: When::Delivered,
        value: unit,
        paper: None,
    },
    Comparison {
        name: "time of a unit, read, to deliberate update",
        update: DELIBERATE,
        when: When::Read,
        value: unit,
        paper: Some(|paper| 1.0 / paper.bandwidth),
    },
    Comparison {
        name: "total overhead, to deliberate update",
        update: DELIBERATE,
        when: When::Awake,
        value: total,
        paper: Some(|paper| paper.overhead[2]),
    },
    Comparison {
        name: "total overhead, asleep, to deliberate update",
        update: DELIBERATE,
        when: When::Asleep,
        value: total,
        paper: None,
    },
];

impl Comparison {
    /// What the update takes.
    fn update(&self, found: &Found) -> Vec<f64> {
        self.of_update(found, self.update)
    }

    /// What an update takes: no process sleeps there.
    fn of_update(&self, found: &Found, update: &str) -> Vec<f64> {
        let when = match self.when {
            When::Asleep => When::Awake,
            when => when,
        };
        (self.value)(found, update, when)
    }

    fn kernel(&self, found: &Found, row: &str) -> Vec<f64> {
        (self.value)(found, row, self.when)
    }

    /// How many times what the update takes a row does.
    fn cell(&self, found: &Found, row: &str) -> Cell {
        let paper = self
            .paper
            .map(|value| value(of(row)) / value(of(self.update)));
        figure(factor(&self.kernel(found, row), &self.update(found))).beside(paper)
    }

    /// What the fastest of some rows takes, to what this update does.
    fn fastest_to(
        &self,
        found: &Found,
        rows: &[&'static str],
        update: &str,
    ) -> (Option<Beside>, &'static str) {
        let median = |row: &&str| Timed::of(self.kernel(found, row)).median();
        let fastest = rows
            .iter()
            .min_by(|one, other| median(one).total_cmp(&median(other)));
        let Some(row) = fastest else {
            return (None, "nothing");
        };
        let update = self.of_update(found, update);
        (factor(&self.kernel(found, row), &update), row)
    }
}

fn ratios(found: &Found) -> Table {
    let columns = ["one copy", "two: pipe", "two: socket"].map(|name| (name, Unit::Times));
    let title = "How many times as much it is through the kernel";
    let mut table = Table::new("ratios", title, "what", &columns);
    for comparison in &COMPARISONS {
        table.row(
            comparison.name,
            KERNEL.map(|(row, _)| comparison.cell(found, row)),
        );
    }
    table.note(
        "The paper's are made from its Tables 1 and 2. It puts them as about 3 times in latency, 3 \
         times (two copies) and twice (one copy) in bandwidth, and 4 times in total overhead.",
    )
}

fn hardware(found: &Found) -> Table {
    let Found { below, overlap, .. } = found;
    let columns = [
        ("time", Unit::Seconds),
        ("bandwidth", Unit::BytesPerSecond),
        ("deliberate update, to it", Unit::Times),
    ];
    let mut table = Table::new("below", "What lies below", "what", &columns);
    let Below {
        line,
        ring,
        copy,
        cold,
        scattered,
    } = below;
    let word = times(&found.latency, DELIBERATE, When::Awake);
    let unit = times(&found.unit, DELIBERATE, When::Delivered);
    let paper = of(DELIBERATE);
    table.row(
        "hardware: a cache line, one way (the paper: memory to memory)",
        [
            cell(&line.times).beside(HARDWARE),
            Cell::default(),
            apart(word, &line.times).beside(paper.latency / HARDWARE),
        ],
    );
    let rate = |time: f64| Cell::here(UNIT as f64 / time);
    let read = times(&found.unit, DELIBERATE, When::Read);
    table.row(
        "a unit from one processor to the other, by a bare ring (the paper: the bus's peak)",
        [
            cell(&ring.times),
            cell(&rates(UNIT, &ring.times)).beside(PEAK),
            apart(&rates(UNIT, read), &rates(UNIT, &ring.times)).beside(paper.bandwidth / PEAK),
        ],
    );
    table.row(
        "a unit copied within the cache",
        [
            cell(&copy.times),
            cell(&rates(UNIT, &copy.times)),
            apart(&rates(UNIT, unit), &rates(UNIT, &copy.times)),
        ],
    );
    table.row(
        "a unit copied from cache to memory",
        [
            cold.cell(),
            rate(cold.median()).beside(CACHE_TO_MEMORY),
            Cell::here(cold.median() / Timed::of(unit.to_vec()).median())
                .beside(paper.bandwidth / CACHE_TO_MEMORY),
        ],
    );
    let automatic = times(&found.unit, AUTOMATIC, When::Delivered);
    table.row(
        "automatic update, consecutive words",
        [
            Cell::default(),
            cell(&rates(UNIT, automatic)).beside(of(AUTOMATIC).bandwidth),
        ],
    );
    table.row(
        "automatic update, scattered words",
        [Cell::default(), cell(&rates(WORD, &scattered.times))],
    );
    let Overlap {
        begun,
        in_turn,
        overlapped,
    } = overlap;
    for (row, track) in [
        ("a deliberate update of 1 MiB, begun", begun),
        ("the same, then a computation as long", in_turn),
        ("the same beside the computation", overlapped),
    ] {
        table.row(row, [cell(&track.times)]);
    }
    table.note(
        "To it: of latencies, and of bandwidths; to the ring that of units which are read, to copies that \
         of units which nobody reads. The ring is no peak: its writer waits for its reader's index, so \
         another way can carry more. The paper has no figures of scattered words, nor of updates beside a computation: only \
         that consecutive ones are combined, and that it is cheap to begin an update.",
    )
}

/// The ratio of two medians, which were not measured in turn.
fn apart(one: &[f64], other: &[f64]) -> Cell {
    let median = |times: &[f64]| Timed::of(times.to_vec()).median();
    Cell::here(median(one) / median(other))
}

fn verdicts(found: &Found) -> Vec<Verdict> {
    vec![
        latency_third(found),
        bandwidth(found, &table::BANDWIDTH_THREEFOLD, &TWO_COPIES),
        bandwidth(found, &table::BANDWIDTH_TWOFOLD, &[ONE_COPY]),
        overhead_quarter(found),
        nothing_received(found),
        overlaps(found),
        close_to_hardware(found),
        few_instructions(found),
    ]
}

fn latency_third(found: &Found) -> Verdict {
    let [awake, asleep] = [&COMPARISONS[0], &COMPARISONS[1]];
    let (ratio, row) = awake.fastest_to(found, &TWO_COPIES, AUTOMATIC);
    let (sleeping, sleeps) = asleep.fastest_to(found, &TWO_COPIES, AUTOMATIC);
    let paragraph = format!(
        "Of messages that the kernel copies twice the fastest takes {} of what an automatic update does \
         where its receiver polls ({row}), and {} where it sleeps ({sleeps}). The update is a store to an \
         alias, which the paper's, snooped off the bus, is not.",
        shown(ratio),
        shown(sleeping),
    );
    table::LATENCY_THIRD
        .verdict(&[claims::paired(ratio)])
        .because(paragraph)
        .figure(
            "the same, the receiver asleep",
            Unit::Times,
            figure(sleeping),
        )
}

/// Of units that the receiver reads, by both implementations.
fn bandwidth(found: &Found, claim: &Claim, rows: &[&'static str]) -> Verdict {
    let [delivered, read] = [&COMPARISONS[2], &COMPARISONS[3]];
    let of = |update| read.fastest_to(found, rows, update);
    // The row is the fastest through the kernel, and the same for both.
    let ((mediated, row), (deliberate, _)) = (of(MEDIATED), of(DELIBERATE));
    let (unread, fastest_unread) = delivered.fastest_to(found, rows, DELIBERATE);
    let paragraph = format!(
        "For a unit of 4 KiB that the sender writes before and the receiver reads after {row} takes {} \
         of the time of a kernel-mediated update, which is three system calls, and {} of that of a \
         deliberate one at user level. (For the same unit again and again, which nobody reads and which \
         stays in the sender's cache, {fastest_unread} takes {} of the latter's.)",
        shown(mediated),
        shown(deliberate),
        shown(unread),
    );
    claim
        .verdict(&[claims::paired(mediated), claims::paired(deliberate)])
        .because(paragraph)
        .figure("unread, SHRIMP-II", Unit::Times, figure(unread))
}

fn overhead_quarter(found: &Found) -> Verdict {
    let [awake, asleep] = [&COMPARISONS[4], &COMPARISONS[5]];
    let (ratio, row) = awake.fastest_to(found, &TWO_COPIES, DELIBERATE);
    let (sleeping, sleeps) = asleep.fastest_to(found, &TWO_COPIES, DELIBERATE);
    let paragraph = format!(
        "Both sides of a message of a word by {row} spend {} of the processor time of a deliberate \
         update; where the receiver is woken for each, {} by {sleeps}.",
        shown(ratio),
        shown(sleeping),
    );
    table::OVERHEAD_QUARTER
        .verdict(&[claims::paired(ratio)])
        .because(paragraph)
        .figure(
            "the same, the receiver asleep",
            Unit::Times,
            figure(sleeping),
        )
}

/// A receiver that computes, beside updates and beside none.
fn nothing_received(found: &Found) -> Verdict {
    let beside = UPDATES.map(|(row, ..)| found.busy.beside(row));
    let paragraph = format!(
        "The exporter computes and reads its exported memory, of which every other line is updated and \
         the lines between are read: it looks at nothing that arrives. Beside a sender that makes \
         kernel-mediated updates a round of its computation takes {}, beside deliberate updates {}, \
         beside stores to an alias {} of what it takes beside a sender that writes its own memory as \
         often. (A process that does nothing else is charged no processor time at all: Table 2.)",
        shown(beside[0]),
        shown(beside[1]),
        shown(beside[2]),
    );
    let verdict = table::RECEIVE_NOTHING
        .verdict(&beside.map(claims::paired))
        .because(paragraph);
    UPDATES.iter().fold(verdict, |verdict, (row, ..)| {
        let [_, received, _] = spent(&found.overhead, row, When::Awake);
        let name = format!("processor time charged, {row}");
        verdict.figure(name, Unit::Seconds, cell(&received).beside(0.0))
    })
}

fn overlaps(found: &Found) -> Verdict {
    let Overlap {
        in_turn,
        overlapped,
        ..
    } = &found.overlap;
    let ratio = Beside::ratio(&overlapped.times, &in_turn.times);
    let paragraph = format!(
        "An update of 1 MiB beside a computation as long takes {} of one after the other; one half \
         would be all of it hidden. It is made by a thread of the library's on another processor; the \
         paper's by the network interface.",
        shown(ratio),
    );
    table::OVERLAP
        .verdict(&[claims::paired(ratio)])
        .because(paragraph)
}

fn close_to_hardware(found: &Found) -> Verdict {
    let estimate = |times: &[f64]| claims::timed(&Timed::of(times.to_vec()));
    let line = estimate(&found.below.line.times);
    let word = |row| estimate(times(&found.latency, row, When::Awake));
    let automatic = claims::ratio(word(AUTOMATIC), line);
    let ring = estimate(&found.below.ring.times);
    let unit = estimate(times(&found.unit, DELIBERATE, When::Read));
    // Of times: the ring's to the unit's.
    let bandwidth = claims::ratio(ring, unit);
    let deliberate = claims::ratio(word(DELIBERATE), line);
    let paragraph = format!(
        "A word by a deliberate update, a call that writes its 8 bytes, takes {} of the time of a cache \
         line from processor to processor. Units of 4 KiB that are written before and read \
         after go {} as fast as through a bare ring, where they are written in place. Neither the line nor \
         the ring is a limit of the hardware; they are what it does with nothing on top, and the ring's \
         writer waits for its reader. The automatic update is not judged: it is a store to an alias, \
         thus the line itself, and its {} could be nothing else.",
        claims::shown(deliberate, Unit::Times),
        claims::shown(bandwidth, Unit::Times),
        claims::shown(automatic, Unit::Times),
    );
    table::CLOSE_TO_HARDWARE
        .verdict(&[deliberate, bandwidth])
        .because(paragraph)
        .figure(
            "latency, automatic update to a cache line, which it is",
            Unit::Times,
            automatic
                .map_or_else(Cell::default, Estimate::cell)
                .beside(of(AUTOMATIC).latency / HARDWARE),
        )
}

fn instructions(found: &Found) -> Table {
    let columns = [("instructions", Unit::Count), ("system calls", Unit::Count)];
    let title = "What an update of a word takes its sender";
    let mut table = Table::new("update-instructions", title, "way", &columns);
    for counted in &found.counted {
        let paper = if counted.row == MEDIATED { 1.0 } else { 0.0 };
        let calls = Cell::here(counted.system_calls).beside(paper);
        table.row(counted.row, [Cell::here(counted.instructions), calls]);
    }
    table.note(format!(
        "Counted {}. The paper has no counts: two references to the interface, and some instructions \
         that look for page boundaries, for a deliberate update; a store for an automatic one; a \
         system call in SHRIMP-I.",
        portolan_measure::stepped::WHAT
    ))
}

fn few_instructions(found: &Found) -> Verdict {
    let of = |row| found.counted.iter().find(|counted| counted.row == row);
    let [deliberate, automatic] = [DELIBERATE, AUTOMATIC].map(of);
    let count = |of: Option<&OfWord>| Estimate::exact(of?.instructions);
    let calls = deliberate.zip(automatic);
    let calls =
        calls.and_then(|(one, other)| Estimate::exact(one.system_calls + other.system_calls));
    let paragraph = format!(
        "A deliberate update of a word takes its sender {} instructions: bounds and rights are looked \
         at, and a mark says that an update is under way. A store to an alias takes {}, its loop \
         included.",
        claims::shown(count(deliberate), Unit::Count),
        claims::shown(count(automatic), Unit::Count),
    );
    table::FEW_INSTRUCTIONS
        .verdict(&[count(deliberate), count(automatic), calls])
        .because(paragraph)
}
