//! Measures what others notice of our messages: a neighbour that needs the memory, and the sender's
//! own threads.

mod reader;
mod siblings;

use std::time::{Duration, Instant};

use portolan_measure::case::{Case, Mode, Pattern, Payload, Placement, Protection, System};
use portolan_measure::cpus::Cpus;
use portolan_measure::run::{self, Run};

use crate::claims;
use crate::clock::Timed;
use crate::error::Result;
use crate::experiment::{Context, DASH, Experiment, Need, Source};
use crate::lanes::{Beside, Track, figure, shown};
use crate::outcome::{Cell, Outcome, Table, Verdict};
use crate::unit::Unit;
use reader::Neighbour;
pub(crate) use reader::{Brief, serve};

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "neighbour",
    title: "What a neighbour, and the sender's own threads, notice",
    source: Source {
        paper: DASH,
        section: "Introduction; completing the transfer; evaluation",
    },
    hypothesis: "Copies take memory and caches away from everybody else; moved memory is not \
        touched. But ending a sender's access means interrupting the processors that run its \
        other threads, which a copy does not.",
    method: "The neighbour is a process with a processor of its own that reads 256 MiB over and \
        over. Meanwhile two others pass 32 MiB messages that nobody looks at, or nothing happens, \
        or a loop runs that needs no memory. All systems are given as many bytes a second to pass: nine \
        tenths of the least that one of those that copy reaches in any of several slices flat out, found \
        out first; what was passed is in the table, and may be more by a message, or less where a system \
        becomes slower meanwhile. Rows in turn, slice by slice; the slowdown is the \
        processor time that a byte takes the neighbour, to that beside nothing. Then messages whose \
        pages are touched by both sides, sent by a thread beside which 0, 1 and 7 others of its \
        process are busy on other processors.",
    needs: &[Need::Cpus(2), Need::Memory(1 << 30)],
    run,
};

/// Bytes of a message: more than most caches hold, so that what is copied goes by way of the memory;
/// in a quick run, fewer.
const MESSAGE: u64 = 32 << 20;
const MESSAGE_QUICK: u64 = 1 << 20;
/// Of what those that copy reach, how much all pass; and in how many slices that is found out.
const PART: f64 = 0.9;
const TRIES: u32 = 5;
/// Memory that the neighbour reads; in a quick run, too little to say much.
const READS: usize = 256 << 20;
const READS_QUICK: usize = 8 << 20;
/// How long to rest when as much was passed as should have been by now.
const REST: Duration = Duration::from_micros(200);

const NOTHING: &str = "nothing";
const LOOP: &str = "a busy loop without memory";
const MOVED: &str = "moved, guarded";
const COPIED: &str = "copied, pipe";
const SOCKET: &str = "copied, unix socket";
/// Those that copy.
const COPYING: [&str; 2] = [COPIED, SOCKET];

/// What happens beside the neighbour; a system, if messages are passed.
const ROWS: [(&str, Option<(System, Protection)>); 6] = [
    (NOTHING, None),
    (LOOP, None),
    (MOVED, Some((System::Portolan, Protection::Guarded))),
    (
        "moved, trusted",
        Some((System::Portolan, Protection::Trusted)),
    ),
    (COPIED, Some((System::Pipe, Protection::None))),
    (SOCKET, Some((System::UnixStream, Protection::None))),
];

/// One row under way.
struct Row {
    /// What a byte takes the neighbour, in seconds.
    track: Track,
    /// Bytes a second that were passed.
    passed: Vec<f64>,
    run: Option<Box<dyn Run>>,
}

fn run(context: &Context<'_>) -> Result<Outcome> {
    let (slices, time) = context.pick(
        (3, Duration::from_millis(4)),
        (20, Duration::from_millis(100)),
    );
    context.progress.begin(ROWS.len() + siblings::STEPS);
    let mut outcome = Outcome::default();
    let (placement, seat) = place(context.cpus);
    let message = context.pick(MESSAGE_QUICK, MESSAGE);
    let mut rows = Vec::new();
    for (name, system) in ROWS {
        context.progress.step(name);
        let guarded = matches!(system, Some((_, Protection::Guarded)));
        if let Some(why) = context.lacks(Need::Guarded).filter(|_| guarded) {
            outcome.leave_out(name, why);
            continue;
        }
        let run = system.map(|(system, protection)| {
            let case = Case {
                mode: Mode::Block,
                protection,
                payload: Payload::Untouched,
                pattern: Pattern::RoundTrip { one_way: true },
                placement,
                ..Case::new(system, message)
            };
            run::start(&case, context.cpus)
        });
        rows.push(Row {
            track: Track::new(name),
            passed: Vec::new(),
            run: run.transpose()?,
        });
    }
    let bytes = context.pick(READS_QUICK, READS);
    let mut neighbour = Neighbour::start(bytes, context.cpus.peer(seat))?;
    // It reads all of it once before anything counts.
    neighbour.reads(time, || Ok(()))?;
    let plan = rate(&mut rows, &mut neighbour, (time, message))?;
    for _ in 0..slices {
        for row in &mut rows {
            context.progress.note(row.track.name.clone());
            row.slice(&mut neighbour, &plan)?;
        }
    }
    neighbour.finish()?;
    for row in &mut rows {
        if let Some(run) = row.run.take() {
            run.finish()?;
        }
    }
    outcome.tables.push(table(&rows, placement));
    outcome.verdicts.push(verdict(&rows));
    siblings::measure(context, &mut outcome)?;
    Ok(outcome)
}

/// Where the two run that pass messages, and the neighbour's seat.
fn place(cpus: &Cpus) -> (Placement, u32) {
    if cpus.count() > 2 {
        (Placement::TwoCpus, 1)
    } else {
        (Placement::OneCpu, 0)
    }
}

/// What is passed in a slice.
#[derive(Clone, Copy)]
struct Plan {
    time: Duration,
    /// Bytes of a message, and of all messages in a second.
    message: u64,
    rate: f64,
}

/// As much as all can pass beside the neighbour, those that copy too.
fn rate(
    rows: &mut [Row],
    neighbour: &mut Neighbour,
    (time, message): (Duration, u64),
) -> Result<Plan> {
    let flat_out = Plan {
        time,
        message,
        rate: f64::INFINITY,
    };
    let mut least = f64::INFINITY;
    // In turn, and several times: what one slice reaches another may not.
    for _ in 0..TRIES {
        for row in rows
            .iter_mut()
            .filter(|row| COPYING.contains(&row.track.name.as_str()))
        {
            let Some(run) = &mut row.run else { continue };
            neighbour.reads(time, || {
                least = least.min(pass(run.as_mut(), &flat_out)?);
                Ok(())
            })?;
        }
    }
    Ok(Plan {
        rate: PART * least,
        ..flat_out
    })
}

impl Row {
    fn slice(&mut self, neighbour: &mut Neighbour, plan: &Plan) -> Result<()> {
        let time = plan.time;
        let (name, run, passed) = (&self.track.name, &mut self.run, &mut self.passed);
        let byte = neighbour.reads(time, || {
            match run {
                Some(run) => passed.push(pass(run.as_mut(), plan)?),
                None if name == LOOP => {
                    let start = Instant::now();
                    while start.elapsed() < time {
                        std::hint::spin_loop();
                    }
                }
                None => std::thread::sleep(time),
            }
            Ok(())
        })?;
        self.track.times.push(byte);
        Ok(())
    }
}

/// Passes messages there and back, as many as are due at this rate; bytes a second that were passed.
fn pass(run: &mut dyn Run, plan: &Plan) -> Result<f64> {
    let start = Instant::now();
    let mut bytes = 0.0;
    loop {
        let elapsed = start.elapsed();
        // At least one round, however short the time.
        if elapsed >= plan.time && bytes > 0.0 {
            return Ok(bytes / elapsed.as_secs_f64());
        }
        if bytes <= plan.rate * elapsed.as_secs_f64() {
            run.rounds(1)?;
            bytes += 2.0 * plan.message as f64;
        } else {
            std::thread::sleep(REST);
        }
    }
}

/// The row's time by byte to that beside nothing.
fn slowdown(rows: &[Row], name: &str) -> Option<Beside> {
    let track = |name: &str| rows.iter().find(|row| row.track.name == name);
    let (row, nothing) = (track(name)?, track(NOTHING)?);
    Beside::ratio(&row.track.times, &nothing.track.times)
}

fn table(rows: &[Row], placement: Placement) -> Table {
    let columns = [
        ("neighbour reads", Unit::BytesPerSecond),
        ("slowdown", Unit::Times),
        ("messages carry", Unit::BytesPerSecond),
    ];
    let mut table = Table::new(
        "neighbour",
        "A neighbour that reads memory",
        "beside it",
        &columns,
    );
    for row in rows {
        let reads = Timed::of(row.track.times.iter().map(|byte| 1.0 / byte).collect());
        let slowdown = slowdown(rows, &row.track.name).filter(|_| row.track.name != NOTHING);
        let mut cells = vec![
            reads.cell(),
            slowdown.map_or_else(Cell::default, Beside::cell),
        ];
        if !row.passed.is_empty() {
            cells.push(Timed::of(row.passed.clone()).cell());
        }
        table.row(row.track.name.clone(), cells);
    }
    let others = match placement {
        Placement::OneCpu => {
            "There are two processors: the neighbour has one, and both sides of the messages \
             take turns on the other."
        }
        Placement::TwoCpus => "The neighbour and both sides of the messages have a processor each.",
    };
    table.note(format!(
        "{others} Processors that are two threads of one core share more than memory; the loop's \
         row says how much that alone slows the neighbour."
    ))
}

fn verdict(rows: &[Row]) -> Verdict {
    let track = |name: &str| rows.iter().find(|row| row.track.name == name);
    // What a byte takes the neighbour beside the one, to beside the other.
    let beside = |one: &str, other: &str| {
        let (one, other) = (track(one)?, track(other)?);
        Beside::ratio(&one.track.times, &other.track.times)
    };
    // A loop: what a busy processor takes from the other one has nothing to do with memory.
    let (noticed, against) = (beside(COPIED, LOOP), beside(MOVED, COPIED));
    let (moved, copied) = (slowdown(rows, MOVED), slowdown(rows, COPIED));
    let carried = |name: &str| {
        let carried = track(name).map(|row| Timed::of(row.passed.clone()).median());
        Unit::BytesPerSecond.show(carried.unwrap_or(f64::NAN))
    };
    let paragraph = format!(
        "Beside {} that go through a pipe the neighbour takes {} as long as beside nothing; \
         beside {} that change owner in a guarded domain, {}; beside a loop without memory, {}. \
         Copying to the loop, that is {}; moving to copying, {}.",
        carried(COPIED),
        shown(copied),
        carried(MOVED),
        shown(moved),
        shown(slowdown(rows, LOOP)),
        shown(noticed),
        shown(against),
    );
    claims::table::COPYING_SLOWS
        .verdict(&[noticed, against].map(claims::paired))
        .because(paragraph)
        .figure("slowdown beside copying", Unit::Times, figure(copied))
        .figure("slowdown beside moving", Unit::Times, figure(moved))
}
