//! Tables 1 and 2 of paper 001: how long a word takes to memory that another process exports,
//! what bulk goes there, and what sender and receiver spend on it, beside the kernel's ways.

use std::time::Duration;

use portolan_measure::case::update::{Target, Update, Way};
use portolan_measure::case::{Case, Mode, Pattern, Payload, System};

use crate::error::Result;
use crate::experiment::{Context, Experiment, Need, Source, VMMC};
use crate::lanes::{Beside, Effort, Lanes, Track, criterion, figure, shown};
use crate::outcome::{Cell, Outcome, Table, Verdict};
use crate::unit::Unit;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "update",
    title: "Writing another process's memory, and messages through the kernel",
    source: Source {
        paper: VMMC,
        section: "6, Tables 1 and 2",
    },
    hypothesis: "Between processes of one machine an update is a store that the other processor \
        fetches, while a message through the kernel is two system calls, two copies and, since \
        receivers sleep, a wake-up. The paper's factors should be exceeded in latency and in \
        overhead; in bandwidth what is left is one copy instead of two.",
    method: "Two processes, each on its own processor. Latency: 8 bytes there and back, half of \
        it; updates are polled for, and whoever receives through the kernel sleeps, as in the \
        paper, where each receiver took an interrupt. Bandwidth: units of 4 KiB one after \
        another, their source in cache; deliberate ones written again and again to the same \
        unit, automatic ones as consecutive words, both read by nobody; through pipe and socket \
        each unit is written before and read after. Overhead: the time of the \
        call, or of the store, that writes 8 bytes (the receiver does nothing then), and the \
        processor time of both sides for 48 bytes through the kernel. Rows in turn, slice by \
        slice.",
    needs: &[Need::Cpus(2)],
    run,
};

const UNIT: u64 = 4 << 10;
/// Bytes of a store.
const WORD: f64 = 8.0;
/// Bytes through the kernel whose processor time is taken.
const SMALL: u64 = 48;

const MEDIATED: &str = "SHRIMP-I: kernel-mediated update";
const DELIBERATE: &str = "SHRIMP-II: deliberate update, user-level";
const AUTOMATIC: &str = "SHRIMP-II: automatic update, alias";
const ONE_COPY: &str = "Kernel-1-Copy: process_vm_readv after a wake-up";
const PIPE: &str = "Kernel-2-Copies: pipe";
const SOCKET: &str = "Kernel-2-Copies: Unix socket";

/// A row: seconds one way, bytes a second, and seconds of sender, receiver and both, in the
/// paper. What is added for an interrupt is not in the figures.
const ROWS: [(&str, [f64; 5]); 6] = [
    (MEDIATED, [10.7e-6, 23e6, 6.7e-6, 0.0, 6.7e-6]),
    (DELIBERATE, [7.8e-6, 23e6, 2.8e-6, 0.0, 2.8e-6]),
    (AUTOMATIC, [4.8e-6, 20e6, 0.01e-6, 0.0, 0.01e-6]),
    (ONE_COPY, [13.7e-6, 12e6, 6.7e-6, 5e-6, 11.7e-6]),
    (PIPE, [15.7e-6, 8e6, 6.9e-6, 5e-6, 11.9e-6]),
    (SOCKET, [15.7e-6, 8e6, 6.9e-6, 5e-6, 11.9e-6]),
];

/// The paper's ratios, of the kernel's copies to updates.
const LATENCY: f64 = 3.0;
const BANDWIDTH: f64 = 3.0;
const OVERHEAD: f64 = 4.0;

/// What was measured of each column, by row.
struct Found {
    latency: Vec<Track>,
    unit: Vec<Track>,
    overhead: Vec<Track>,
}

fn run(context: &Context<'_>) -> Result<Outcome> {
    let of = |slices, millis| Effort {
        slices,
        slice: Duration::from_millis(millis),
    };
    let effort = context.pick(of(3, 2), of(30, 15));
    let mut outcome = Outcome::default();
    outcome.leave_out(
        ONE_COPY,
        "this version of the lab does not measure it; the paper's figures stand alone",
    );
    context.progress.begin(15);
    let found = Found {
        latency: measure(&latency(), effort, context)?,
        unit: measure(&units(), effort, context)?,
        overhead: measure(&overheads(), effort, context)?,
    };
    outcome.tables.push(table_1(&found));
    outcome.tables.push(table_2(&found));
    outcome.verdicts.push(verdict(
        "latency-third",
        "Latency is about a third of that of messages that the kernel copies",
        (&found.latency, AUTOMATIC),
        LATENCY,
    ));
    outcome.verdicts.push(verdict(
        "bandwidth-threefold",
        "Bandwidth is about three times that of messages that the kernel copies twice",
        (&found.unit, DELIBERATE),
        BANDWIDTH,
    ));
    outcome.verdicts.push(verdict(
        "overhead-quarter",
        "Sender and receiver together spend about a quarter of the processor time",
        (&found.overhead, DELIBERATE),
        OVERHEAD,
    ));
    Ok(outcome)
}

fn measure(
    rows: &[(&'static str, Case)],
    effort: Effort,
    context: &Context<'_>,
) -> Result<Vec<Track>> {
    let mut lanes = Lanes::new();
    for (row, case) in rows {
        lanes.start(row, case, context)?;
    }
    let mut tracks = lanes.measure(effort, context)?;
    for (track, (_, case)) in tracks.iter_mut().zip(rows) {
        // Stores are timed word by word.
        if case.unit() == portolan_measure::case::Unit::Operation && case.bytes == UNIT {
            for time in &mut track.times {
                *time *= UNIT as f64 / WORD;
            }
        }
    }
    Ok(tracks)
}

/// Eight bytes one way.
fn latency() -> [(&'static str, Case); 5] {
    let word = |way| Case::new(System::Word(way), 8);
    let asleep = |system| Case {
        mode: Mode::Block,
        ..Case::new(system, 8)
    };
    [
        (MEDIATED, word(Way::Kernel)),
        (DELIBERATE, word(Way::Deliberate)),
        (AUTOMATIC, word(Way::Alias)),
        (PIPE, asleep(System::Pipe)),
        (SOCKET, asleep(System::UnixStream)),
    ]
}

fn operation(update: Update, bytes: u64) -> Case {
    Case {
        pattern: Pattern::RoundTrip { one_way: false },
        ..Case::new(System::Update(update), bytes)
    }
}

const STORES: Update = Update::Stores {
    to: Target::Alias,
    scattered: false,
};

/// Units, each as soon as the one before is gone.
fn units() -> [(&'static str, Case); 5] {
    let stream = |system| Case {
        mode: Mode::Block,
        pattern: Pattern::Stream,
        ..Case::new(system, UNIT)
    };
    [
        (MEDIATED, operation(Update::Mediated, UNIT)),
        (DELIBERATE, operation(Update::Write, UNIT)),
        (AUTOMATIC, operation(STORES, UNIT)),
        (PIPE, stream(System::Pipe)),
        (SOCKET, stream(System::UnixStream)),
    ]
}

/// What a small message costs processors.
fn overheads() -> [(&'static str, Case); 5] {
    let spent = |system| Case {
        mode: Mode::Block,
        payload: Payload::Touched,
        pattern: Pattern::FanIn { senders: 1 },
        ..Case::new(system, SMALL)
    };
    [
        (MEDIATED, operation(Update::Mediated, 8)),
        (DELIBERATE, operation(Update::Write, 8)),
        (AUTOMATIC, operation(STORES, 8)),
        (PIPE, spent(System::Pipe)),
        (SOCKET, spent(System::UnixSeqpacket)),
    ]
}

fn cell(tracks: &[Track], row: &str) -> Cell {
    Track::find(tracks, row).map_or_else(Cell::default, |track| track.timed().cell())
}

fn table_1(found: &Found) -> Table {
    let columns = [
        ("latency", Unit::Seconds),
        ("bandwidth", Unit::BytesPerSecond),
    ];
    let mut table = Table::new("table-1", "Latency and bandwidth", "way", &columns);
    for (row, [latency, bandwidth, ..]) in ROWS {
        let rate = Track::find(&found.unit, row).map_or_else(Cell::default, |track| {
            let rates = track.times.iter().map(|time| UNIT as f64 / time);
            crate::clock::Timed::of(rates.collect()).cell()
        });
        table.row(
            row,
            [
                cell(&found.latency, row).beside(latency),
                rate.beside(bandwidth),
            ],
        );
    }
    table.note(
        "The paper adds an interrupt to the latency of the kernel's rows; ours have the wake-up \
         in them. Units of 4 KiB, in cache; updates are not read by the receiver.",
    )
}

fn table_2(found: &Found) -> Table {
    let columns = [
        ("send", Unit::Seconds),
        ("receive", Unit::Seconds),
        ("total", Unit::Seconds),
    ];
    let mut table = Table::new(
        "table-2",
        "Processor time of a small message",
        "way",
        &columns,
    );
    for (row, [.., send, receive, total]) in ROWS {
        let here = cell(&found.overhead, row);
        let updates = [MEDIATED, DELIBERATE, AUTOMATIC].contains(&row);
        let sender = if updates { here } else { Cell::default() };
        table.row(
            row,
            [
                sender.beside(send),
                Cell::paper(receive),
                here.beside(total),
            ],
        );
    }
    table.note(
        "Through the kernel only the sum is measured. What receivers of updates spend is counted \
         by `portolan bench update`, and taken for nothing here.",
    )
}

/// The faster of pipe and socket against an update, slice by slice.
fn verdict(id: &str, claim: &str, (tracks, update): (&[Track], &str), paper: f64) -> Verdict {
    let copies: Vec<&Track> = [PIPE, SOCKET]
        .into_iter()
        .filter_map(|row| Track::find(tracks, row))
        .collect();
    let fastest = copies
        .into_iter()
        .min_by(|one, other| one.timed().median().total_cmp(&other.timed().median()));
    let ours = Track::find(tracks, update);
    let ratio = fastest
        .zip(ours)
        .and_then(|(copied, ours)| Beside::ratio(&ours.times, &copied.times));
    let bound = 1.0 / paper;
    let answer = ratio.and_then(|ratio| ratio.below(bound));
    let name = fastest.map_or("nothing", |track| track.name.as_str());
    let paragraph = format!(
        "An update ({update}) takes {} of what the fastest way through the kernel takes ({name}); \
         the paper's factor is {}. {}",
        shown(ratio),
        Unit::Times.show(paper),
        criterion(bound),
    );
    Verdict::new(id, claim, answer).because(paragraph).figure(
        "an update, to through the kernel",
        Unit::Times,
        figure(ratio).beside(bound),
    )
}
