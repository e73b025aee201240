//! Runs busy threads beside the one that sends: ending access to a page then interrupts the
//! processors that they run on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use portolan_measure::case::{Case, Mode, Pattern, Placement, Protection, Shape, System};
use portolan_measure::cpus::{self, Cpus};
use portolan_measure::run::{self, Run};
use portolan_measure::sampler::{Sampler, clock_cost};

use crate::claims::{self, table};
use crate::error::Result;
use crate::experiment::{Context, Need};
use crate::lanes::{Beside, Effort, Track, figure, shown};
use crate::outcome::{Axis, Cell, Origin, Outcome, Plot, Table, Verdict};
use crate::unit::Unit;

/// How many, and the row's name.
const SIBLINGS: [(u32, &str); 3] = [
    (0, "no sibling"),
    (1, "1 busy sibling"),
    (7, "7 busy siblings"),
];

/// A column: protection, bytes, name.
const COLUMNS: [(Protection, u64, &str); 6] = [
    (Protection::Guarded, 8 << 10, "guarded, 8 KiB"),
    (Protection::Guarded, 64 << 10, "guarded, 64 KiB"),
    (Protection::Guarded, 2 << 20, "guarded, 2 MiB"),
    (Protection::Trusted, 8 << 10, "trusted, 8 KiB"),
    (Protection::Trusted, 64 << 10, "trusted, 64 KiB"),
    (Protection::Trusted, 2 << 20, "trusted, 2 MiB"),
];

/// Threads of this process that keep other processors busy, until dropped.
struct Busy {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Busy {
    /// Returns when all of them run. They share what processors there are beside ours.
    fn start(count: u32, cpus: &Cpus) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let running = Arc::new(AtomicU32::new(0));
        let threads = (0..count).map(|seat| {
            let (over, running, cpu) = (Arc::clone(&over), Arc::clone(&running), cpus.peer(seat));
            std::thread::spawn(move || {
                // Where it may not be pinned it is busy all the same, somewhere.
                let _ = cpus::pin(cpu);
                running.fetch_add(1, Ordering::Relaxed);
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        });
        let threads: Vec<_> = threads.collect();
        while running.load(Ordering::Relaxed) < count {
            std::thread::yield_now();
        }
        Self { over, threads }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // It cannot have panicked: it only looks at a flag.
            let _ = thread.join();
        }
    }
}

/// Steps of progress.
pub(super) const STEPS: usize = COLUMNS.len();

/// A message under way, and its times by number of siblings.
struct Lane {
    name: &'static str,
    run: Box<dyn Run>,
    sampler: Sampler,
    tracks: Vec<Track>,
}

impl Lane {
    fn start(
        (protection, bytes, name): (Protection, u64, &'static str),
        context: &Context<'_>,
    ) -> Result<Self> {
        let case = Case {
            mode: Mode::Block,
            protection,
            shape: Shape::Accessed,
            pattern: Pattern::RoundTrip { one_way: true },
            placement: Placement::OneCpu,
            ..Case::new(System::Portolan, bytes)
        };
        context.progress.step(name);
        let track = |&(_, name): &(u32, &str)| Track::new(name);
        Ok(Self {
            name,
            run: run::start(&case, context.cpus)?,
            sampler: Sampler::new(clock_cost()),
            tracks: SIBLINGS.iter().map(track).collect(),
        })
    }
}

pub(super) fn measure(context: &Context<'_>, outcome: &mut Outcome) -> Result<()> {
    let effort = context.pick(
        Effort {
            slices: 3,
            slice: Duration::from_millis(1),
        },
        Effort {
            slices: 30,
            slice: Duration::from_millis(15),
        },
    );
    let unguarded = context.lacks(Need::Guarded);
    let wanted = |protection| protection != Protection::Guarded || unguarded.is_none();
    let mut lanes = Vec::new();
    for column in COLUMNS
        .into_iter()
        .filter(|&(protection, ..)| wanted(protection))
    {
        lanes.push(Lane::start(column, context)?);
    }
    for _ in 0..effort.slices {
        for (row, (count, name)) in SIBLINGS.into_iter().enumerate() {
            context.progress.note(name);
            let busy = Busy::start(count, context.cpus);
            for lane in &mut lanes {
                lane.run.slice(effort.slice, &mut lane.sampler)?;
                // A slice has at least one round, thus a sample.
                let median = lane.sampler.close_slice().unwrap_or(f64::NAN);
                lane.tracks[row].times.push(median / 1e12);
            }
            drop(busy);
        }
    }
    let mut columns = Vec::new();
    for lane in lanes {
        lane.run.finish()?;
        columns.push((lane.name, lane.tracks));
    }
    if let Some(why) = unguarded {
        outcome.leave_out("guarded messages beside busy siblings", why);
    }
    outcome.tables.push(table(&columns, context.cpus));
    outcome.plots.push(plot(&columns));
    outcome.verdicts.extend(verdicts(&columns));
    Ok(())
}

type Columns = [(&'static str, Vec<Track>)];

fn table(columns: &Columns, cpus: &Cpus) -> Table {
    let heading: Vec<(&str, Unit)> = columns
        .iter()
        .map(|&(name, _)| (name, Unit::Seconds))
        .collect();
    let mut table = Table::new(
        "siblings",
        "A message, by busy threads of the sender's process",
        "beside the sender",
        &heading,
    );
    for (row, (_, name)) in SIBLINGS.into_iter().enumerate() {
        let cells = columns.iter().map(|(_, tracks)| tracks[row].timed().cell());
        table.row(name, cells.collect::<Vec<Cell>>());
    }
    let others = cpus.count() - 1;
    table.note(format!(
        "Sender and receiver take turns on one processor; the siblings keep {} busy. As many \
         processors have to be told when access ends, and no more, however many threads there \
         are. On which pages a message of 2 MiB lies is not looked at here: where the kernel left it on \
         4 KiB pages, a guarded one is opened page by page, and takes several times as long as on a huge \
         one.",
        match others {
            1 => "the one other".to_owned(),
            more => format!("up to {more} others"),
        }
    ))
}

fn plot(columns: &Columns) -> Plot {
    let mut plot = Plot::new(
        "siblings",
        "A message, by busy threads of the sender's process",
        Axis::linear("busy siblings", Unit::Count),
        Axis::log("time", Unit::Seconds),
    )
    .of_points();
    for (colour, (name, tracks)) in (0..).zip(columns) {
        let points = SIBLINGS
            .iter()
            .zip(tracks)
            .map(|(&(count, _), track)| (f64::from(count), track.timed().median()));
        plot.series(*name, Origin::Here, colour, points.collect::<Vec<_>>());
    }
    plot
}

fn verdicts(columns: &Columns) -> [Verdict; 2] {
    let tracks = |column: &str| {
        let found = columns.iter().find(|(name, _)| *name == column);
        found.map(|(_, tracks)| tracks.as_slice())
    };
    // Row 0 has no sibling, row 2 the most.
    let ratio = |column| {
        let tracks = tracks(column)?;
        Beside::ratio(&tracks[2].times, &tracks[0].times)
    };
    let cell = |row: usize| {
        tracks("guarded, 8 KiB").map_or_else(Cell::default, |tracks| tracks[row].timed().cell())
    };
    // What busy siblings do to a message, slice by slice.
    let slowed = |column| -> Option<Vec<f64>> {
        let tracks = tracks(column)?;
        let slices = tracks[2].times.iter().zip(&tracks[0].times);
        Some(slices.map(|(busy, alone)| busy / alone).collect())
    };
    let of_unmapping = slowed("guarded, 8 KiB")
        .zip(slowed("trusted, 8 KiB"))
        .and_then(|(guarded, trusted)| Beside::ratio(&guarded, &trusted));
    let page = ratio("guarded, 8 KiB");
    let paragraph = format!(
        "Beside 7 busy siblings a guarded message of 8 KiB takes {} as long as beside none, and one \
         of 2 MiB {}. A trusted one of 8 KiB, for which nothing is unmapped, takes {}: siblings slow \
         whatever shares a core with them. So what unmapping has of it is {}.",
        shown(page),
        shown(ratio("guarded, 2 MiB")),
        shown(ratio("trusted, 8 KiB")),
        shown(of_unmapping),
    );
    let dear = table::UNMAPPING_DEAR
        .verdict(&[claims::paired(of_unmapping)])
        .because(paragraph)
        .figure(
            "guarded, 8 KiB, 7 siblings to none",
            Unit::Times,
            figure(page),
        )
        .figure("guarded, 8 KiB, no sibling", Unit::Seconds, cell(0))
        .figure("guarded, 8 KiB, 7 busy siblings", Unit::Seconds, cell(2))
        .figure(
            "guarded, 2 MiB, 7 siblings to none",
            Unit::Times,
            figure(ratio("guarded, 2 MiB")),
        )
        .figure(
            "trusted, 8 KiB, 7 siblings to none",
            Unit::Times,
            figure(ratio("trusted, 8 KiB")),
        );
    let asynchronous = table::ASYNCHRONOUS_UNMAPPING.verdict(&[]).because(
        "Here the sender itself ends its access, and waits for the other processors, before its \
         message is there to be taken.",
    );
    [dear, asynchronous]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A column whose messages take so long beside no sibling, one, and seven.
    fn column(name: &'static str, times: [f64; 3]) -> (&'static str, Vec<Track>) {
        let tracks = SIBLINGS.iter().zip(times).map(|((_, name), time)| {
            let mut track = Track::new(name);
            track.times = vec![time; 5];
            track
        });
        (name, tracks.collect())
    }

    #[test]
    fn siblings_that_slow_every_message_alike_are_no_price_of_unmapping() {
        for (trusted, answer) in [
            ([1e-6, 1.1e-6, 1.6e-6], "does not hold"),
            ([1e-6, 1.0e-6, 1.0e-6], "holds"),
        ] {
            let columns = [
                column("guarded, 8 KiB", [10e-6, 11e-6, 16e-6]),
                column("trusted, 8 KiB", trusted),
            ];
            let [dear, _] = verdicts(&columns);
            assert_eq!(dear.by_figures.name(), answer, "{trusted:?}");
        }
    }

    #[test]
    fn siblings_run_until_they_are_dropped() {
        let busy = Busy::start(3, &Cpus::choose());
        assert!(busy.threads.iter().all(|thread| !thread.is_finished()));
        let over = Arc::clone(&busy.over);
        drop(busy);
        assert!(over.load(Ordering::Relaxed) && Arc::strong_count(&over) == 1);
    }
}
