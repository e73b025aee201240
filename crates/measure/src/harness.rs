//! Measures the rows of a plan, slice by slice in turn with the limit.
//!
//! ```text
//! group:  L r1 L r2 L r3 L   L r1 L r2 L r3 L   ...   one round robin a slice
//! ```
//!
//! The machine's speed drifts (other guests, clock rates, page placement), so a
//! row is compared only with the limit's slices on both sides of its own, and
//! with its yardstick's slice of the same round.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::case::{Case, Pattern};
use crate::cpus::Cpus;
use crate::error::Result;
use crate::run::{self, Counted, Run};
use crate::sampler::{Figures, Sampler, clock_cost, median};

/// Rows that are measured in turn. Each group costs the memory of all of its rows.
#[derive(Clone, Debug)]
pub struct Group<T> {
    /// What the rows' times are divided by.
    pub limit: Case,
    /// The rows, in the order in which they are measured and shown.
    pub rows: Vec<Entry<T>>,
}

/// A row to be measured. `T` is what a program notes beside it.
#[derive(Clone, Debug)]
pub struct Entry<T> {
    /// The row's subject.
    pub case: Case,
    /// The row of the same group that this one is held against.
    pub yardstick: Option<Case>,
    /// False for one that is here only as another's yardstick.
    pub shown: bool,
    /// The program's own note, which the measured row has as well.
    pub tag: T,
}

impl<T: Clone + Default> Entry<T> {
    /// A row that is held against the limit only.
    pub fn new(case: Case) -> Self {
        Self {
            case,
            yardstick: None,
            shown: true,
            tag: T::default(),
        }
    }

    /// Held against `yardstick`, too.
    pub fn against(self, yardstick: &Case) -> Self {
        Self {
            yardstick: Some(yardstick.clone()),
            ..self
        }
    }

    /// With a note.
    pub fn tagged(self, tag: T) -> Self {
        Self { tag, ..self }
    }

    /// Only there to hold others against.
    pub fn hidden(self) -> Self {
        Self {
            shown: false,
            ..self
        }
    }
}

/// How long to measure.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Slices of each row.
    pub slices: usize,
    /// The time of one.
    pub slice: Duration,
    /// The time of the limit's slices between them.
    pub limit_slice: Duration,
}

/// A measured row. Ratios are of times: above one is slower than the other.
#[derive(Clone, Debug)]
pub struct Measured<T> {
    /// The row's subject.
    pub case: Case,
    /// Picoseconds an event, over all slices.
    pub figures: Figures,
    /// The median over the slices of the row's median to that of the limit beside it.
    pub ratio_to_limit: f64,
    /// What the row was held against, and the ratio to it.
    pub yardstick: Option<(Case, f64)>,
    /// What was counted beside the time, by event.
    pub counted: Vec<Counted>,
    /// Why something was not counted that is counted elsewhere.
    pub uncounted: Option<String>,
    /// The entry's note.
    pub tag: T,
}

/// A row under way.
struct Lane<T> {
    entry: Entry<T>,
    run: Box<dyn Run>,
    sampler: Sampler,
    /// Medians of the slices, in picoseconds.
    medians: Vec<f64>,
    ratios: Vec<f64>,
}

/// A limit and its samples over all groups that it bounds.
struct Bound {
    case: Case,
    sampler: Sampler,
}

/// Measures everything. The limits come first, each once; the rest in the plan's order.
pub fn measure<T: Clone + Default>(
    groups: &[Group<T>],
    effort: Effort,
    cpus: &Cpus,
) -> Result<Vec<Measured<T>>> {
    let clock = clock_cost();
    let slices: usize = groups
        .iter()
        .map(|group| group.rows.len() * effort.slices)
        .sum();
    let progress = progress(slices);
    let mut bounds: Vec<Bound> = Vec::new();
    let mut rows = Vec::new();
    for group in groups {
        let position = bounds.iter().position(|bound| bound.case == group.limit);
        let bound = position.unwrap_or_else(|| {
            bounds.push(Bound {
                case: group.limit.clone(),
                sampler: Sampler::new(clock),
            });
            bounds.len() - 1
        });
        rows.extend(measure_group(
            group,
            &mut bounds[bound].sampler,
            clock,
            effort,
            cpus,
            &progress,
        )?);
    }
    progress.finish_and_clear();
    let limits = bounds.into_iter().filter_map(|Bound { case, sampler }| {
        Some(Measured {
            case,
            figures: sampler.figures()?,
            ratio_to_limit: 1.0,
            yardstick: None,
            counted: Vec::new(),
            uncounted: None,
            tag: T::default(),
        })
    });
    Ok(limits.chain(rows).collect())
}

fn measure_group<T: Clone + Default>(
    group: &Group<T>,
    limit_sampler: &mut Sampler,
    clock: Duration,
    effort: Effort,
    cpus: &Cpus,
    progress: &ProgressBar,
) -> Result<Vec<Measured<T>>> {
    let mut limit = run::start(&group.limit, cpus)?;
    let mut lanes = Vec::new();
    for entry in &group.rows {
        progress.set_message(format!("preparing {}", label(&entry.case)));
        let mut run = run::start(&entry.case, cpus)?;
        if entry.shown {
            run.step()?;
        }
        lanes.push(Lane {
            run,
            entry: entry.clone(),
            sampler: Sampler::new(clock),
            medians: Vec::new(),
            ratios: Vec::new(),
        });
    }
    // Asked for alone, a limit gets the time of a row.
    let limit_slice = if lanes.is_empty() {
        effort.slice
    } else {
        effort.limit_slice
    };
    for _ in 0..effort.slices {
        let mut before = slice(limit.as_mut(), limit_slice, limit_sampler)?;
        for lane in &mut lanes {
            progress.set_message(label(&lane.entry.case));
            let own = slice(lane.run.as_mut(), effort.slice, &mut lane.sampler)?;
            let after = slice(limit.as_mut(), limit_slice, limit_sampler)?;
            lane.medians.push(own);
            let bound = f64::midpoint(before, after) * transfers(&lane.entry.case, &group.limit);
            lane.ratios.push(own / bound);
            before = after;
            progress.inc(1);
        }
    }
    limit.finish()?;
    let measured = lanes
        .iter()
        .filter(|lane| lane.entry.shown)
        .filter_map(|lane| {
            Some(Measured {
                case: lane.entry.case.clone(),
                figures: lane.sampler.figures()?,
                ratio_to_limit: median(lane.ratios.clone())?,
                yardstick: held_against(lane, &lanes),
                counted: lane.run.counted(),
                uncounted: lane.run.uncounted(),
                tag: lane.entry.tag.clone(),
            })
        });
    let measured = measured.collect();
    lanes.into_iter().try_for_each(|lane| lane.run.finish())?;
    Ok(measured)
}

/// How often the limit's event happens in one of the row's: a round trip takes the line
/// twice.
fn transfers(case: &Case, limit: &Case) -> f64 {
    match (case.pattern, limit.pattern) {
        (Pattern::RoundTrip { one_way: false }, Pattern::RoundTrip { one_way: true }) => 2.0,
        _ => 1.0,
    }
}

/// Runs one slice; its median in picoseconds, and no number if it had nothing to measure.
fn slice(run: &mut dyn Run, budget: Duration, sampler: &mut Sampler) -> Result<f64> {
    run.slice(budget, sampler)?;
    Ok(sampler.close_slice().unwrap_or(f64::NAN))
}

/// The median over the slices of `lane`'s time to its yardstick's.
fn held_against<T>(lane: &Lane<T>, lanes: &[Lane<T>]) -> Option<(Case, f64)> {
    let yardstick = lane.entry.yardstick.as_ref()?;
    let other = lanes.iter().find(|other| other.entry.case == *yardstick)?;
    let ratios = lane
        .medians
        .iter()
        .zip(&other.medians)
        .map(|(own, other)| own / other);
    Some((yardstick.clone(), median(ratios.collect())?))
}

fn label(case: &Case) -> String {
    format!(
        "{}, {} ({})",
        case.system_name(),
        case.name(),
        crate::out::size(case.bytes)
    )
}

/// How far a measurement of so many slices is. On a terminal only; drawn between slices,
/// never by a thread of its own.
pub fn progress(slices: usize) -> ProgressBar {
    let bar = ProgressBar::new(slices as u64);
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} {eta}  {msg}")
        .expect("a valid template");
    bar.set_style(style);
    bar
}
