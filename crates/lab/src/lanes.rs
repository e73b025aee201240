//! Measures rows in turn, slice by slice, so that a drift of the machine touches all of them alike.
//!
//! ```text
//! slice 1: a b c    slice 2: a b c    slice 3: a b c    ...
//! ```

use std::time::Duration;

use portolan_measure::case::{Case, Mode, Placement};
use portolan_measure::run::{self, Counted, Run};
use portolan_measure::sampler::{Sampler, clock_cost};

use crate::claims::spread;
use crate::clock::Timed;
use crate::error::Result;
use crate::experiment::Context;
use crate::outcome::Cell;
use crate::unit::Unit;

/// Picoseconds of a second, and nanoseconds.
const PICOS: f64 = 1e12;
const NANOS: f64 = 1e9;

/// A way to run rows: for a table's id, its title, and how.
pub(crate) type Way = (&'static str, &'static str, Mode, Placement);

pub(crate) const ASLEEP: Way = (
    "asleep",
    "asleep, on one CPU",
    Mode::Block,
    Placement::OneCpu,
);
/// As between the papers' processors: each side is woken on its own.
pub(crate) const APART: Way = (
    "asleep-apart",
    "asleep, on two CPUs",
    Mode::Block,
    Placement::TwoCpus,
);
pub(crate) const POLLING: Way = (
    "polling",
    "polling, on two CPUs",
    Mode::Poll,
    Placement::TwoCpus,
);

/// How long to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub(crate) slices: usize,
    /// The time of one.
    pub(crate) slice: Duration,
}

impl Effort {
    /// Of rows that stand beside other systems.
    pub(crate) fn beside_others(context: &Context<'_>) -> Self {
        let of = |slices, millis| Self {
            slices,
            slice: Duration::from_millis(millis),
        };
        context.pick(of(3, 1), of(30, 10))
    }
}

/// Rows under way, each with processes of its own.
pub(crate) struct Lanes {
    lanes: Vec<(Track, Box<dyn Run>, Sampler)>,
}

/// A row's times: the median of each slice, in seconds.
#[derive(Clone, Debug)]
pub(crate) struct Track {
    pub(crate) name: String,
    pub(crate) times: Vec<f64>,
    /// Seconds that the receiver spent on each message, by slice; of rows about that.
    pub(crate) received: Vec<f64>,
    /// What was counted beside the time, by event; of rows about that.
    pub(crate) counted: Vec<Counted>,
}

impl Lanes {
    pub(crate) fn new() -> Self {
        Self { lanes: Vec::new() }
    }

    /// Starts the processes of another row.
    pub(crate) fn start(&mut self, name: &str, case: &Case, context: &Context<'_>) -> Result<()> {
        context.progress.note(format!("preparing {name}"));
        self.add(name, run::start(case, context.cpus)?);
        Ok(())
    }

    /// Another row, whose processes are there.
    pub(crate) fn add(&mut self, name: &str, run: Box<dyn Run>) {
        let sampler = Sampler::new(clock_cost());
        self.lanes.push((Track::new(name), run, sampler));
    }

    /// Measures them in turn, and lets their processes go. One step of progress each.
    pub(crate) fn measure(mut self, effort: Effort, context: &Context<'_>) -> Result<Vec<Track>> {
        for _ in 0..effort.slices {
            for (track, run, sampler) in &mut self.lanes {
                context.progress.note(track.name.clone());
                run.slice(effort.slice, sampler)?;
                // A slice has at least one round, thus a sample.
                let median = sampler.close_slice().unwrap_or(f64::NAN);
                track.times.push(median / PICOS);
                track
                    .received
                    .extend(run.received().map(|nanos| nanos / NANOS));
            }
        }
        let mut tracks = Vec::new();
        for (mut track, run, _) in self.lanes {
            context.progress.step(track.name.clone());
            track.counted = run.counted();
            run.finish()?;
            tracks.push(track);
        }
        Ok(tracks)
    }
}

impl Track {
    /// Without a slice so far.
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            times: Vec::new(),
            received: Vec::new(),
            counted: Vec::new(),
        }
    }

    /// How often, or how much, of what is called so.
    pub(crate) fn count(&self, what: &str) -> Option<f64> {
        let found = self.counted.iter().find(|counted| counted.what == what);
        found.map(|counted| counted.value)
    }

    pub(crate) fn timed(&self) -> Timed {
        Timed::of(self.times.clone())
    }

    pub(crate) fn find<'a>(tracks: &'a [Self], name: &str) -> Option<&'a Self> {
        tracks.iter().find(|track| track.name == name)
    }
}

/// One row beside another, slice by slice: the middle, and where half of the slices lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Beside {
    pub(crate) middle: f64,
    pub(crate) quartiles: [f64; 2],
    unit: Unit,
}

impl Beside {
    /// How many times as long as the other a row takes. `None` without slices in common.
    pub(crate) fn ratio(row: &[f64], to: &[f64]) -> Option<Self> {
        Self::of(row, to, Unit::Times, |row, to| row / to)
    }

    /// How much longer than the other a row takes.
    pub(crate) fn difference(row: &[f64], to: &[f64]) -> Option<Self> {
        Self::of(row, to, Unit::Seconds, |row, to| row - to)
    }

    fn of(row: &[f64], to: &[f64], unit: Unit, compare: fn(f64, f64) -> f64) -> Option<Self> {
        let all = row.iter().zip(to).map(|(&row, &to)| compare(row, to));
        let mut all: Vec<f64> = all.filter(|value| value.is_finite()).collect();
        all.sort_unstable_by(f64::total_cmp);
        let last = all.len().checked_sub(1)?;
        // As figures keep them, so that words and figures say the same.
        let kept = |at: usize| Cell::here(all[at]).here;
        Some(Self {
            middle: kept(all.len() / 2)?,
            quartiles: [kept(last / 4)?, kept(last - last / 4)?],
            unit,
        })
    }

    /// As a figure.
    pub(crate) fn cell(self) -> Cell {
        let [lower, upper] = self.quartiles;
        Cell::here(self.middle).within(lower, upper)
    }

    /// "0.84 × (0.82 × to 0.86 ×)".
    pub(crate) fn show(self) -> String {
        spread(self.unit, self.middle, self.quartiles)
    }
}

/// [`Beside::show`], where there may be nothing to show.
pub(crate) fn shown(beside: Option<Beside>) -> String {
    beside.map_or_else(|| "not measured".into(), Beside::show)
}

/// [`Beside::cell`], empty where there is nothing.
pub(crate) fn figure(beside: Option<Beside>) -> Cell {
    beside.map_or_else(Cell::default, Beside::cell)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_paired() {
        let ratio = Beside::ratio(&[2.0, 20.0, 200.0], &[4.0, 40.0, 400.0]).unwrap();
        assert_eq!((ratio.middle, ratio.quartiles), (0.5, [0.5, 0.5]));
        let difference = Beside::difference(&[2.0, 20.0], &[3.0, 21.0]).unwrap();
        assert_eq!((difference.middle, difference.quartiles), (-1.0, [-1.0; 2]));
        assert!(Beside::ratio(&[], &[1.0]).is_none());
        assert!(Beside::ratio(&[1.0], &[0.0]).is_none());
    }
}
