//! Tables 1 and 2 of paper 001 measure how long a word takes to memory that another process
//! exports, how much bulk goes there, and what sender and receiver spend on it, beside the kernel's
//! ways.
//!
//! `figures` makes tables and verdicts of what is measured here; `busy` measures a receiver that
//! computes, and `modes` what it takes to begin an update, and other modes of updating.

pub(crate) mod busy;
mod figures;
mod modes;

use std::time::Duration;

use portolan_measure::case::update::{Target, Update, Way};
use portolan_measure::case::{Case, Mode, Pattern, Payload, System};
use portolan_measure::{MeasureError, run};
use portolan_sys::shared::Window;

use crate::clock::{self, Timed};
use crate::error::Result;
use crate::experiment::{Context, Experiment, Need, Source, VMMC};
use crate::lanes::{Effort, Lanes, Track};
use crate::outcome::Outcome;
use busy::Busy;
use modes::Modes;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "update",
    title: "Writing another process's memory, and messages through the kernel",
    source: Source {
        paper: VMMC,
        section: "6, Tables 1 and 2",
    },
    hypothesis: "Between processes of one machine an update is a store that the other processor \
        fetches, while a message through the kernel is two system calls, one or two copies and, \
        where the receiver sleeps, a wake-up. The paper's factors should be exceeded in latency \
        and in overhead; in bandwidth what is left is one copy instead of two.",
    method: "Two processes, each on its own processor. Latency: 8 bytes there and back, half of \
        it, by the call that writes any bytes, whose instructions and time are those of the other tables, too; \
        awake, the receiver looks again and again, as the paper's figures are without the \
        interrupt; asleep, it is woken. Bandwidth: units of 4 KiB, their source in cache. \
        Delivered: neither side looks at them: deliberate updates again and again to the same \
        unit, automatic ones as consecutive words of 64 KiB, both read by nobody; through the kernel \
        up to 16 units under way, received and not looked at. Read: each unit is written before, \
        and read after by a receiver that is told by a number behind it, with 16 units under way; \
        stores to an alias are the writing. Kernel-1-Copy: the sender stores that there is \
        something and wakes the receiver by a system call, whether it sleeps or not; that one \
        has the kernel copy it out of the sender's memory. Overhead, awake: of an update the time \
        of the call or store that writes 8 bytes, and the processor time of the exporter; through \
        the kernel the processor time of sender and receiver, for messages of 8 bytes one behind \
        the other. Asleep: the sender makes a pause before each, so that the receiver sleeps; the \
        time of its call, and the processor time of the receiver. What updates cost a receiver that \
        computes and reads its exported memory, every other line of it, while updates write the lines \
        between: the time of a round of its computation while it is updated, to that while another \
        process is. (A receiver that reads the very lines fetches them anew: that is reading what came.) What stands in for the hardware's bandwidth is what a bare ring of units in shared memory \
        carries, which one processor writes in place and the other reads; it is no peak, and can be \
        exceeded. A kernel-mediated update is three system calls: one that sees that the memory is still \
        the exporter's, one that looks up whether the exporter may be written there, and the one that \
        writes its memory. An automatic update is a store to an alias, the exporter's memory mapped by \
        the sender: other than the paper's it leaves no copy with the sender, and nothing has to be \
        snooped or sent. Instructions are counted first, by stepping through a process that does nothing \
        else. Rows in turn, slice by slice.",
    needs: &[Need::Cpus(2)],
    run,
};

/// Bytes of a unit.
const UNIT: u64 = 4 << 10;
/// Bytes of a word.
const WORD: u64 = 8;
/// Bytes of an update that goes on beside a computation.
const OVERLAPPED: u64 = 1 << 20;

const MEDIATED: &str = "SHRIMP-I: kernel-mediated update, 3 system calls";
const DELIBERATE: &str = "SHRIMP-II: deliberate update, user-level";
const AUTOMATIC: &str = "SHRIMP-II: automatic update, alias";
const ONE_COPY: &str = "Kernel-1-Copy: process_vm_readv after a wake-up";
const PIPE: &str = "Kernel-2-Copies: pipe";
const SOCKET: &str = "Kernel-2-Copies: Unix socket";

/// The ways through the kernel, with what each is.
const KERNEL: [(&str, System); 3] = [
    (ONE_COPY, System::OneCopy),
    (PIPE, System::Pipe),
    (SOCKET, System::UnixStream),
];
/// The ways past it.
const UPDATES: [(&str, Way, Update); 3] = [
    (MEDIATED, Way::Kernel, Update::Mediated),
    // The same call in each table: one that writes any bytes.
    (DELIBERATE, Way::Written, Update::Write),
    (AUTOMATIC, Way::Alias, STORES),
];
const STORES: Update = Update::Stores {
    to: Target::Alias,
    scattered: false,
};

/// In which circumstances a row was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Awake,
    Asleep,
    Delivered,
    Read,
}

/// A row's slices.
struct Slices {
    row: &'static str,
    when: When,
    track: Track,
}

/// What was measured.
struct Found {
    latency: Vec<Slices>,
    unit: Vec<Slices>,
    overhead: Vec<Slices>,
    below: Below,
    overlap: Overlap,
    busy: Busy,
    modes: Modes,
    counted: Vec<OfWord>,
}

/// What a word takes its sender.
struct OfWord {
    row: &'static str,
    instructions: f64,
    system_calls: f64,
}

/// What the machine does beneath all of it, in seconds.
struct Below {
    /// A cache line, one way.
    line: Track,
    /// A unit written in place by one processor and read by the other, in a ring.
    ring: Track,
    /// A unit copied between buffers in cache.
    copy: Track,
    /// The same into memory that is in no cache.
    cold: Timed,
    /// A word stored to an alias, each in another line than the one before.
    scattered: Track,
}

/// A write beside a computation.
struct Overlap {
    begun: Track,
    in_turn: Track,
    overlapped: Track,
}

fn run(context: &Context<'_>) -> Result<Outcome> {
    let of = |slices, millis| Effort {
        slices,
        slice: Duration::from_millis(millis),
    };
    let effort = context.pick(of(3, 2), of(30, 15));
    let (latency, unit, overhead) = (latency(), units(), overheads());
    let rows = latency.len() + unit.len() + overhead.len();
    context.progress.begin(rows + 10 + modes::STEPS);
    let mut outcome = Outcome::default();
    let counted = counted(&mut outcome, context)?;
    let found = Found {
        latency: measure(latency, effort, context)?,
        unit: measure(unit, effort, context)?,
        overhead: measure(overhead, effort, context)?,
        below: below(effort, context)?,
        overlap: overlap(effort, context)?,
        busy: busy::measure(effort, context)?,
        modes: Modes::measure(effort, context)?,
        counted,
    };
    outcome.merge(figures::outcome(&found));
    Ok(outcome)
}

/// A row to be measured.
type Row = (&'static str, When, Case);

fn measure(rows: Vec<Row>, effort: Effort, context: &Context<'_>) -> Result<Vec<Slices>> {
    let mut lanes = Lanes::new();
    for (row, _, case) in &rows {
        lanes.start(row, case, context)?;
    }
    let tracks = lanes.measure(effort, context)?;
    let slices = tracks.into_iter().zip(rows);
    let slices = slices.map(|(mut track, (row, when, case))| {
        // Stores are timed word by word.
        if case.system == System::Update(STORES) && case.bytes == UNIT {
            for time in &mut track.times {
                *time *= (UNIT / WORD) as f64;
            }
        }
        Slices { row, when, track }
    });
    Ok(slices.collect())
}

fn operation(update: Update, bytes: u64) -> Case {
    Case {
        pattern: Pattern::RoundTrip { one_way: false },
        ..Case::new(System::Update(update), bytes)
    }
}

/// A word one way.
fn latency() -> Vec<Row> {
    let update = |(row, way, _)| (row, When::Awake, Case::new(System::Word(way), WORD));
    let mut rows: Vec<Row> = UPDATES.map(update).into();
    for (row, system) in KERNEL {
        for (when, mode) in [(When::Awake, Mode::Poll), (When::Asleep, Mode::Block)] {
            let case = Case {
                mode,
                payload: Payload::Untouched,
                ..Case::new(system, WORD)
            };
            rows.push((row, when, case));
        }
    }
    rows
}

/// Units, each as soon as the one before is gone.
fn stream(system: System, payload: Payload) -> Case {
    Case {
        payload,
        pattern: Pattern::Stream,
        ..Case::new(system, UNIT)
    }
}

fn units() -> Vec<Row> {
    let mut rows = Vec::new();
    for (row, way, update) in UPDATES {
        rows.push((row, When::Delivered, operation(update, UNIT)));
        let read = stream(System::Units(way), Payload::Touched);
        rows.push((row, When::Read, read));
    }
    for (row, system) in KERNEL {
        for (when, payload) in [
            (When::Delivered, Payload::Untouched),
            (When::Read, Payload::Touched),
        ] {
            let case = Case {
                mode: Mode::Block,
                ..stream(system, payload)
            };
            rows.push((row, when, case));
        }
    }
    rows
}

/// What a word costs processors.
fn overheads() -> Vec<Row> {
    let update = |(row, _, update)| (row, When::Awake, operation(update, WORD));
    let mut rows: Vec<Row> = UPDATES.map(update).into();
    for (row, system) in KERNEL {
        for (when, pattern) in [
            (When::Awake, Pattern::FanIn { senders: 1 }),
            (When::Asleep, Pattern::Paced),
        ] {
            let case = Case {
                mode: Mode::Block,
                payload: Payload::Untouched,
                pattern,
                ..Case::new(system, WORD)
            };
            rows.push((row, when, case));
        }
    }
    rows
}

/// Instructions and system calls of an update of a word, before anything is timed.
fn counted(outcome: &mut Outcome, context: &Context<'_>) -> Result<Vec<OfWord>> {
    context.progress.step("instructions");
    let mut all = Vec::new();
    for (row, _, update) in UPDATES {
        let mut run = run::start(&operation(update, WORD), context.cpus)?;
        run.step()?;
        if let Some(why) = run.uncounted() {
            outcome.leave_out(format!("instructions, {row}"), why);
        }
        let of = |what: &str| {
            let counted = run.counted();
            let found = counted.iter().find(|counted| counted.what == what);
            found.map(|found| found.value)
        };
        if let Some((instructions, system_calls)) = of("instructions").zip(of("system calls")) {
            all.push(OfWord {
                row,
                instructions,
                system_calls,
            });
        }
        run.finish()?;
    }
    Ok(all)
}

/// Rows of which each has a name only for the progress.
fn tracks<const ROWS: usize>(
    rows: [(&'static str, Case); ROWS],
    effort: Effort,
    context: &Context<'_>,
) -> Result<[Track; ROWS]> {
    let mut lanes = Lanes::new();
    for (name, case) in &rows {
        lanes.start(name, case, context)?;
    }
    let tracks: [Track; ROWS] = match lanes.measure(effort, context)?.try_into() {
        Ok(tracks) => tracks,
        Err(_) => unreachable!("as many tracks as there are lanes"),
    };
    Ok(tracks)
}

fn below(effort: Effort, context: &Context<'_>) -> Result<Below> {
    let scattered = Update::Stores {
        to: Target::Alias,
        scattered: true,
    };
    let rows = [
        ("a cache line", Case::new(System::Line, WORD)),
        ("a bare ring", stream(System::Ring, Payload::Touched)),
        ("a copy in cache", operation(Update::Copy, UNIT)),
        ("scattered stores", operation(scattered, WORD)),
    ];
    let [line, ring, copy, scattered] = tracks(rows, effort, context)?;
    context.progress.step("a copy to memory");
    Ok(Below {
        line,
        ring,
        copy,
        cold: cold(effort, context)?,
        scattered,
    })
}

/// A unit in cache, copied to where nothing is in cache.
fn cold(effort: Effort, context: &Context<'_>) -> Result<Timed> {
    let doing = "making memory to copy to";
    let unit = usize::try_from(UNIT).expect("64-bit only");
    let bytes = usize::try_from(context.cold_bytes()).expect("64-bit only");
    let window = Window::create(bytes).map_err(MeasureError::library(doing))?;
    window.populate().map_err(MeasureError::system(doing))?;
    let source = vec![7; unit];
    let mut place = 0;
    Ok(clock::each(effort.slices, effort.slice, || {
        window.copy_in(place, &source);
        place = (place + unit) % (bytes / unit * unit);
    }))
}

fn overlap(effort: Effort, context: &Context<'_>) -> Result<Overlap> {
    let of = |update| operation(update, OVERLAPPED);
    let rows = [
        ("a write begun", of(Update::Initiate)),
        ("a write, then a computation", of(Update::InTurn)),
        ("a write beside a computation", of(Update::Overlapped)),
    ];
    let [begun, in_turn, overlapped] = tracks(rows, effort, context)?;
    Ok(Overlap {
        begun,
        in_turn,
        overlapped,
    })
}
