//! Table IV compares asynchronous and synchronous messages, with a user and with a process to which
//! everything is always open.

use std::time::Duration;

use portolan_measure::case::{Case, Mode, Pattern, Placement, Protection, Shape, System};

use crate::claims::{self, table};
use crate::error::Result;
use crate::experiment::{Context, DASH, Experiment, Need, Source};
use crate::lanes::{Beside, Effort, Lanes, Track};
use crate::outcome::{Cell, Outcome, Table, Verdict};
use crate::unit::Unit;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "table-4",
    title: "Synchronous and asynchronous, and a process that has everything open",
    source: Source {
        paper: DASH,
        section: "Table IV",
    },
    hypothesis: "Synchronous was faster by a trap, which today's messages do not have: where both \
        sides sleep, either way is two wakes and two sleeps a round. A kernel process was faster \
        because it needs no trap, fewer checks, no unmapping and takes no fault. A process with \
        an always open mapping has the last two of these, and should gain them.",
    method: "A message of 8 KiB goes back and forth between two processes in a guarded domain; \
        the receiver takes it up unopened and touches each 4 KiB once. The time is that \
        of a whole round, as in the paper. The paper's kernel process is a member that joined \
        to have its own mapping of the domain always open: nothing is closed or opened on its \
        side, and it is a process like any other besides. (A thread of the domain's host would \
        not do: it shares its member's page tables.) Rows in turn, slice by slice; medians. \
        On one processor both sides sleep, so that each message is a context switch, as it was \
        on the paper's machine.",
    needs: &[Need::Guarded],
    run,
};

/// The paper's page.
const BYTES: u64 = 8 << 10;

const ASYNC: &str = "two user processes, asynchronous";
const SYNC: &str = "two user processes, synchronous";
const OPEN_ASYNC: &str = "a user and an always open process, asynchronous";
const OPEN_SYNC: &str = "a user and an always open process, synchronous";
const ONE: &str = "one CPU, asleep";
const TWO: &str = "two CPUs, polling";

/// Seconds a round, in the paper; and what we measure for it.
const ROWS: [(&str, System, Protection, Option<f64>); 6] = [
    (ASYNC, System::Portolan, Protection::Guarded, Some(2.496e-3)),
    (SYNC, System::Request, Protection::Guarded, Some(2.162e-3)),
    (
        OPEN_ASYNC,
        System::Portolan,
        Protection::OpenPeer,
        Some(2.085e-3),
    ),
    (
        OPEN_SYNC,
        System::Request,
        Protection::OpenPeer,
        Some(1.751e-3),
    ),
    (
        "trusted, asynchronous",
        System::Portolan,
        Protection::Trusted,
        None,
    ),
    (
        "trusted, synchronous",
        System::Request,
        Protection::Trusted,
        None,
    ),
];

fn run(context: &Context<'_>) -> Result<Outcome> {
    let effort = context.pick(
        Effort {
            slices: 3,
            slice: Duration::from_millis(2),
        },
        Effort {
            slices: 40,
            slice: Duration::from_millis(25),
        },
    );
    let mut outcome = Outcome::default();
    let mut columns = vec![(ONE, Mode::Block, Placement::OneCpu)];
    match context.lacks(Need::Cpus(2)) {
        None => columns.push((TWO, Mode::Poll, Placement::TwoCpus)),
        Some(why) => outcome.leave_out(TWO, why),
    }
    context.progress.begin(columns.len() * ROWS.len());
    let mut measured = Vec::new();
    for &(name, mode, placement) in &columns {
        let mut lanes = Lanes::new();
        for (row, system, protection, _) in ROWS {
            let case = Case {
                mode,
                protection,
                shape: Shape::Accessed,
                pattern: Pattern::RoundTrip { one_way: false },
                placement,
                ..Case::new(system, BYTES)
            };
            lanes.start(row, &case, context)?;
        }
        measured.push((name, lanes.measure(effort, context)?));
    }
    outcome.tables.push(rounds(&measured));
    let asleep = &measured[0].1;
    outcome.verdicts.push(synchronous(asleep));
    outcome.verdicts.push(open(asleep));
    Ok(outcome)
}

fn rounds(measured: &[(&'static str, Vec<Track>)]) -> Table {
    let columns: Vec<(&str, Unit)> = measured
        .iter()
        .map(|&(name, _)| (name, Unit::Seconds))
        .collect();
    let mut table = Table::new(
        "table-4",
        "A round of 8 KiB, there and back",
        "between",
        &columns,
    );
    for (row, .., paper) in ROWS {
        let cells = measured.iter().map(|(column, tracks)| {
            let cell = Track::find(tracks, row).map(|track| track.timed().cell());
            // The paper's machine had one processor.
            let paper = paper.filter(|_| *column == ONE);
            cell.unwrap_or_default().beside(paper)
        });
        table.row(row, cells.collect::<Vec<Cell>>());
    }
    table.note(
        "The paper's \"kernel process\" stands beside the always open process. Trusted rows have \
         neither closing nor opening on any side.",
    )
}

/// `row` against `to`, with what the paper has.
struct Against {
    ratio: Option<Beside>,
    paper: f64,
    row: Cell,
    to: Cell,
}

impl Against {
    fn new(tracks: &[Track], row: &str, to: &str) -> Self {
        let cell = |name: &str| {
            let paper = ROWS.iter().find(|(row, ..)| *row == name);
            let cell = Track::find(tracks, name).map(|track| track.timed().cell());
            cell.unwrap_or_default()
                .beside(paper.and_then(|&(.., paper)| paper))
        };
        let (row_cell, to_cell) = (cell(row), cell(to));
        let ratio = Track::find(tracks, row).zip(Track::find(tracks, to));
        Self {
            ratio: ratio.and_then(|(row, to)| Beside::ratio(&row.times, &to.times)),
            paper: row_cell.paper.unwrap_or(f64::NAN) / to_cell.paper.unwrap_or(f64::NAN),
            row: row_cell,
            to: to_cell,
        }
    }

    /// "takes A instead of B, 0.8 × (...) of it; the paper's ratio is 0.87 ×".
    fn sentence(&self) -> String {
        let show = |cell: &Cell| Unit::Seconds.show(cell.here.unwrap_or(f64::NAN));
        let ratio = self
            .ratio
            .map_or_else(|| "not measured".into(), Beside::show);
        format!(
            "takes {} instead of {}, {ratio} of it; the paper's ratio is {}",
            show(&self.row),
            show(&self.to),
            Unit::Times.show(self.paper)
        )
    }
}

fn synchronous(tracks: &[Track]) -> Verdict {
    let users = Against::new(tracks, SYNC, ASYNC);
    let open = Against::new(tracks, OPEN_SYNC, OPEN_ASYNC);
    let paragraph = format!(
        "Between users, asleep on one CPU, a synchronous round {}. With an always open process \
         it {}. Neither mode enters the kernel for a message as such, only to sleep and to wake, \
         and both do so equally often: the paper's reason is gone, and what is \
         left of the difference is bookkeeping.",
        users.sentence(),
        open.sentence(),
    );
    table::SYNCHRONOUS
        .verdict(&[users.ratio, open.ratio].map(claims::paired))
        .because(paragraph)
        .figure(ASYNC, Unit::Seconds, users.to)
        .figure(SYNC, Unit::Seconds, users.row)
}

fn open(tracks: &[Track]) -> Verdict {
    let asynchronous = Against::new(tracks, OPEN_ASYNC, ASYNC);
    let synchronous = Against::new(tracks, OPEN_SYNC, SYNC);
    let saved = |against: &Against| {
        against
            .to
            .here
            .zip(against.row.here)
            .map_or(f64::NAN, |(to, row)| to - row)
    };
    let paragraph = format!(
        "With an always open process on one side an asynchronous round {}. A synchronous one {}. \
         So one side's closing and fault cost {} and {} a round. (The paper's kernel process \
         also had no trap, and skipped checks; ours is a process like any other.)",
        asynchronous.sentence(),
        synchronous.sentence(),
        Unit::Seconds.show(saved(&asynchronous)),
        Unit::Seconds.show(saved(&synchronous)),
    );
    table::ALWAYS_OPEN
        .verdict(&[asynchronous.ratio, synchronous.ratio].map(claims::paired))
        .because(paragraph)
        .figure(ASYNC, Unit::Seconds, asynchronous.to)
        .figure(OPEN_ASYNC, Unit::Seconds, asynchronous.row)
}
