//! Makes a call of 32 bytes in software only: by a locked queue, a system call and an upcall each
//! way.
//!
//! The paper holds its calls against the same library over such a queue. Ours stand beside
//! the queue alone, with no transport on it, so what is said of software is its best case.

use std::time::{Duration, Instant};

use portolan_measure::Result as Measured;
use portolan_measure::error::MeasureError;
use portolan_measure::run::Run;
use portolan_measure::sampler::Sampler;

use super::{ASLEEP, CALLS, COLUMNS, Columns, Found, POLLING, paper, track};
use crate::claims::table;
use crate::error::Result;
use crate::experiment::Context;
use crate::experiments::signals::{Ends, calls, software, upcalls};
use crate::lanes::{Beside, Lanes, figure, shown};
use crate::outcome::{Cell, Outcome, Table, Verdict};
use crate::unit::Unit;

const SOFTWARE: &str = "software only: locked queue, system call, upcall";
const UPCALL: &str = "signals by upcall, without a queue or a transport";
const UPCALL_FAR: &str = "signals by upcall, between processors that share no cache";
const SOFTWARE_FAR: &str = "software only, between such";

/// Calls between two looks at the clock.
const BATCH: u64 = 16;

/// Two threads that call each other's attention, a way there and a way back.
struct Told {
    there: Ends,
    back: Ends,
    cpus: [usize; 2],
    /// Seconds of a call, about.
    pace: f64,
}

impl Told {
    fn new(way: fn() -> Result<Ends>, cpus: [usize; 2]) -> Result<Self> {
        Ok(Self {
            there: way()?,
            back: way()?,
            cpus,
            pace: 20e-6,
        })
    }

    fn call(&mut self, batches: u64) -> Measured<Vec<Duration>> {
        let times = calls(&mut self.there, &mut self.back, self.cpus, batches, BATCH);
        // The other thread did not get to run.
        times.ok_or(MeasureError::Gone)
    }
}

impl Run for Told {
    fn rounds(&mut self, rounds: u64) -> Measured<()> {
        self.call(rounds.div_ceil(BATCH)).map(|_| ())
    }

    fn slice(&mut self, budget: Duration, sampler: &mut Sampler) -> Measured<()> {
        let start = Instant::now();
        let batches = budget.as_secs_f64() / self.pace / BATCH as f64;
        // At least one, at most what a slice of seconds has.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "bounded on the line"
        )]
        let batches = batches.clamp(1.0, 1e6) as u64;
        for time in self.call(batches)? {
            sampler.typical(time, BATCH);
        }
        self.pace = start.elapsed().as_secs_f64() / (batches * BATCH) as f64;
        Ok(())
    }

    fn finish(self: Box<Self>) -> Measured<()> {
        Ok(())
    }
}

/// Rows that stand beside calls of 32 bytes that poll.
pub(super) fn start(lanes: &mut Lanes, context: &Context<'_>, outcome: &mut Outcome) -> Result<()> {
    let near = [context.cpus.ours, context.cpus.peer(0)];
    lanes.add(SOFTWARE, Box::new(Told::new(software, near)?));
    lanes.add(UPCALL, Box::new(Told::new(upcalls, near)?));
    let Some(far) = context.cpus.far() else {
        outcome.leave_out(
            UPCALL_FAR,
            "all processors that this program may use share their largest cache",
        );
        return Ok(());
    };
    let far = [context.cpus.ours, far];
    lanes.add(UPCALL_FAR, Box::new(Told::new(upcalls, far)?));
    lanes.add(SOFTWARE_FAR, Box::new(Told::new(software, far)?));
    Ok(())
}

/// The calls' column, of those that poll or sleep.
fn columns<'a>(found: &'a Found, id: &str) -> Option<&'a Columns> {
    let way = found.iter().find(|((found, ..), _)| *found == id);
    way.map(|(_, columns)| &columns[..])
}

/// The times of a row of 32 bytes, slice by slice.
fn times<'a>(found: &'a Found, id: &str, row: &str) -> Option<&'a [f64]> {
    let track = track(columns(found, id)?, COLUMNS[1].0, row)?;
    Some(&track.times)
}

/// What software only takes, to another row.
fn slower(found: &Found, software: &str, id: &str, row: &str) -> Option<Beside> {
    Beside::ratio(times(found, POLLING.0, software)?, times(found, id, row)?)
}

pub(super) fn table(found: &Found) -> Table {
    let columns_ = [
        ("32 B there and back", Unit::Seconds),
        ("software only, to it", Unit::Times),
    ];
    let mut table = Table::new(
        "rpc-software",
        "A call of 32 bytes beside one in software only",
        "way",
        &columns_,
    );
    let mut row =
        |name: &str, (id, lane): (&str, &str), software: &str, paper: [Option<f64>; 2]| {
            let track = columns(found, id).and_then(|columns| track(columns, COLUMNS[1].0, lane));
            let time = track.map_or_else(Cell::default, |track| track.timed().cell());
            let times = figure(slower(found, software, id, lane));
            table.row(name, [time.beside(paper[0]), times.beside(paper[1])]);
        };
    let [near, far] = paper::SOFTWARE;
    let paper = |(ours, software): (f64, f64)| [Some(ours), Some(software / ours)];
    row(UPCALL, (POLLING.0, UPCALL), SOFTWARE, paper(near));
    row(
        SOFTWARE,
        (POLLING.0, SOFTWARE),
        SOFTWARE,
        [Some(near.1), None],
    );
    row(
        UPCALL_FAR,
        (POLLING.0, UPCALL_FAR),
        SOFTWARE_FAR,
        paper(far),
    );
    row(
        SOFTWARE_FAR,
        (POLLING.0, SOFTWARE_FAR),
        SOFTWARE_FAR,
        [Some(far.1), None],
    );
    row("calls, polling", (POLLING.0, CALLS), SOFTWARE, [None; 2]);
    row(
        "calls, asleep on one CPU",
        (ASLEEP.0, CALLS),
        SOFTWARE,
        [None; 2],
    );
    table.note(
        "No row of ours is supported by hardware. The paper's: through a shared L2 cache, and through the L3 beyond it, the same RPC library \
         over hardware support and over a queue in shared memory. Ours compare the ways of telling \
         alone, two threads of one process that are interrupted at each end: by a signal, and by the \
         queue and a signal; no checksum, no numbers, no dispatch. A call that polls is told in \
         another way altogether, and stands beside them without a verdict. Calls that sleep were \
         measured in other slices than the rest.",
    )
}

pub(super) fn verdicts(found: &Found) -> [Verdict; 2] {
    let near = slower(found, SOFTWARE, POLLING.0, UPCALL);
    let far = slower(found, SOFTWARE_FAR, POLLING.0, UPCALL_FAR);
    let polling = slower(found, SOFTWARE, POLLING.0, CALLS);
    let paragraph = format!(
        "This machine supports no messages: signals that interrupt are software as well, and what stands \
         beside them differs by a locked queue only. With it they take {} of the time, which says nothing \
         of hardware. (Of our call that polls, which nothing interrupts, they take {}.)",
        shown(near),
        shown(polling),
    );
    let near = table::SOFTWARE_SLOWER_NEAR
        .verdict(&[])
        .because(paragraph)
        .figure(
            "a queue and upcalls, to upcalls alone, both software",
            Unit::Times,
            figure(near),
        )
        .figure(
            "software only, to a call that polls",
            Unit::Times,
            figure(polling),
        );
    let nothing = "This machine supports no messages.";
    let far = match far {
        None => table::SOFTWARE_SLOWER_FAR.verdict(&[]).because(format!(
            "{nothing} Nor has it processors that share no cache, between which to hold a queue and \
             upcalls against upcalls alone."
        )),
        far => table::SOFTWARE_SLOWER_FAR
            .verdict(&[])
            .because(format!(
                "{nothing} Between processors that share no cache a locked queue and upcalls take {} of \
                 upcalls alone, both in software.",
                shown(far)
            ))
            .figure(
                "a queue and upcalls, to upcalls alone, both software",
                Unit::Times,
                figure(far),
            ),
    };
    [near, far]
}
