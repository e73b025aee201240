//! Runs everything in turn, repetition by repetition, so that a slow minute of the machine falls on
//! all of it.

use std::time::{Duration, Instant};

use portolan::probes::{self, Point, Points};
use portolan::{Access, Protection};
use portolan_sys::ticks;

use super::alone::Alone;
use super::figures;
use super::load::{Load, PAGE};
use super::pair::{BATCH, Kind, Pair};
use super::statistics::{Figures, Part, Spread, Statistics};
use crate::error::Result;
use crate::experiment::{Context, Need};
use crate::outcome::Outcome;
use portolan_measure::sampler::median;

/// How many rounds a repetition has.
#[derive(Clone, Copy)]
struct Bound {
    most: usize,
    /// So many, however long they take.
    least: usize,
    /// Beyond the least, no batch begins later.
    within: Duration,
}

impl Bound {
    /// So many, however long they take.
    const fn exactly(rounds: usize) -> Self {
        Self {
            most: rounds,
            least: rounds,
            within: Duration::ZERO,
        }
    }

    /// How many more a repetition has, at the most, that has done so many in such a time.
    fn left(self, done: usize, elapsed: Duration) -> usize {
        let until = if elapsed < self.within {
            self.most
        } else {
            self.least
        };
        until.saturating_sub(done)
    }
}

/// A repetition of the main runs. A wake can take so long that a million of them take minutes.
const MAIN: Bound = Bound {
    most: 1_000_000,
    least: 100_000,
    within: Duration::from_secs(15),
};

/// How much is done.
struct Effort {
    repetitions: usize,
    /// Round trips, and rounds alone, of the main runs.
    rounds: Bound,
    /// Of the others, whose means are as steady with less.
    fewer: usize,
    /// Of those that only have to be compared with one another.
    fewest: usize,
}

/// All that was measured, in seconds.
pub(super) struct Findings {
    pub(super) repetitions: usize,
    /// What a probe adds to the segment that it ends.
    pub(super) price: Spread,
    /// The least step of the clock that was seen.
    pub(super) step: f64,
    pub(super) asleep: Figures,
    /// None with one processor, as all that polls.
    pub(super) polling: Option<Figures>,
    pub(super) trusted_polling: Option<Figures>,
    pub(super) guarded: Figures,
    /// The same with as many extents as a slot's first line holds.
    pub(super) guarded_most: Figures,
    pub(super) opened: Figures,
    pub(super) trusted: Figures,
    /// Of the trusted round, each segment as the difference of two beginnings.
    pub(super) differences: Vec<(Part, Spread)>,
    pub(super) increments: Vec<Spread>,
    /// Guarded, by how they wait: messages of more than a page.
    pub(super) larger: Vec<(Kind, Load, Figures)>,
}

impl Findings {
    /// Whether both processes shared one processor.
    pub(super) fn on_one_processor(&self) -> bool {
        self.polling.is_none()
    }
}

/// What a further extent costs: three ways to use a message, as the paper's cross-check has
/// them.
pub(super) const USES: [(&str, Access, bool); 3] = [
    ("on demand, not accessed", Access::Later, false),
    ("mapped by receive, accessed", Access::Now, true),
    ("on demand, accessed", Access::Later, true),
];

/// Extents of the least and of the largest message whose difference is taken.
pub(super) const FEWEST: usize = 1;
/// What a slot's first line holds: a message of more goes another way.
pub(super) const MOST: usize = 3;

pub(super) fn run(context: &Context<'_>) -> Result<Outcome> {
    let effort = Effort {
        repetitions: context.pick(3, 10),
        rounds: context.pick(Bound::exactly(200), MAIN),
        fewer: context.pick(100, 100_000),
        fewest: context.pick(100, 10_000),
    };
    let mut outcome = Outcome::default();
    let awake = match context.lacks(Need::Cpus(2)) {
        None => true,
        Some(why) => {
            outcome.leave_out("two processes that poll", why);
            false
        }
    };
    let findings = measure(context, &effort, awake)?;
    figures::fill(&findings, &mut outcome);
    Ok(outcome)
}

fn measure(context: &Context<'_>, effort: &Effort, awake: bool) -> Result<Findings> {
    let alone = |protection, access| Alone::new(protection, Load::one(PAGE), access, true);
    let mut asleep = Paired::start(context, Kind::GuardedAsleep, Load::one(PAGE))?;
    let polling = |kind| {
        awake
            .then(|| Paired::start(context, kind, Load::one(PAGE)))
            .transpose()
    };
    let mut trusted_polling = polling(Kind::TrustedAwake)?;
    let mut polling = polling(Kind::GuardedAwake)?;
    let mut guarded = Single::new(alone(Protection::Guarded, Access::Later)?);
    let mut guarded_most = Single::new(Alone::new(
        Protection::Guarded,
        Load::pages(MOST),
        Access::Later,
        true,
    )?);
    let mut opened = Single::new(alone(Protection::Guarded, Access::Now)?);
    let mut trusted = Single::new(alone(Protection::Trusted, Access::Later)?);
    let mut beginnings = Beginnings::new(alone(Protection::Trusted, Access::Later)?)?;
    let mut increments = Increments::new()?;
    let mut larger = Vec::new();
    for load in [
        Load::one(4 * PAGE),
        Load::one(8 * PAGE),
        Load::pages(4),
        Load::pages(8),
    ] {
        for kind in [Kind::GuardedAsleep, Kind::GuardedAwake] {
            if awake || kind == Kind::GuardedAsleep {
                larger.push((kind, load, Paired::start(context, kind, load)?));
            }
        }
    }

    let (tick, step) = (tick(), step());
    let mut prices = Vec::new();
    context.progress.begin(effort.repetitions * 5);
    for repetition in 1..=effort.repetitions {
        let say = |what: &str| {
            context
                .progress
                .step(format!("{repetition} of {}, {what}", effort.repetitions));
        };
        let price = price();
        prices.push(price * tick);
        say("two processes, asleep");
        asleep.repeat(effort.rounds, price)?;
        say("two processes, awake");
        if let Some(polling) = &mut polling {
            polling.repeat(Bound::exactly(effort.fewer), price)?;
        }
        if let Some(polling) = &mut trusted_polling {
            polling.repeat(effort.rounds, price)?;
        }
        say("one process");
        for single in [&mut guarded, &mut trusted] {
            single.repeat(effort.rounds, price)?;
        }
        for single in [&mut guarded_most, &mut opened] {
            single.repeat(Bound::exactly(effort.fewer), price)?;
        }
        beginnings.repeat(effort.fewer, price)?;
        say("further extents");
        increments.repeat(effort.fewer, price)?;
        say("larger messages");
        for (_, _, pair) in &mut larger {
            pair.repeat(Bound::exactly(effort.fewest), price)?;
        }
    }
    let differences = beginnings.differences(tick);
    let larger = larger
        .into_iter()
        .map(|(kind, load, pair)| Ok((kind, load, pair.finish(tick)?)))
        .collect::<Result<Vec<_>>>()?;
    let finish = |paired: Option<Paired>| paired.map(|p| p.finish(tick)).transpose();
    Ok(Findings {
        repetitions: effort.repetitions,
        price: Spread::of(&prices),
        step: step * tick,
        asleep: asleep.finish(tick)?,
        polling: finish(polling)?,
        trusted_polling: finish(trusted_polling)?,
        guarded: guarded.statistics.figures(tick),
        guarded_most: guarded_most.statistics.figures(tick),
        opened: opened.statistics.figures(tick),
        trusted: trusted.statistics.figures(tick),
        differences,
        increments: increments.slopes(tick),
        larger,
    })
}

/// What rounds are made by.
trait Rounds {
    /// With a probe at either end only.
    fn plain(&mut self, rounds: usize, statistics: &mut Statistics) -> Result<()>;
    /// With all probes on.
    fn probed(&mut self, rounds: usize, statistics: &mut Statistics) -> Result<()>;
}

impl Rounds for Pair {
    fn plain(&mut self, rounds: usize, statistics: &mut Statistics) -> Result<()> {
        self.plain(rounds, statistics)
    }

    fn probed(&mut self, rounds: usize, statistics: &mut Statistics) -> Result<()> {
        self.probed(rounds, statistics)
    }
}

impl Rounds for Alone {
    fn plain(&mut self, rounds: usize, statistics: &mut Statistics) -> Result<()> {
        self.plain(rounds, statistics)
    }

    fn probed(&mut self, rounds: usize, statistics: &mut Statistics) -> Result<()> {
        self.probed(rounds, Points::ALL, statistics)
    }
}

/// One repetition: rounds with probes, and among them every fifth batch without.
fn repeat(
    work: &mut impl Rounds,
    statistics: &mut Statistics,
    bound: Bound,
    price: f64,
) -> Result<()> {
    let (begun, mut done) = (Instant::now(), 0);
    for batch in 0.. {
        let rounds = bound.left(done, begun.elapsed()).min(BATCH);
        done += rounds;
        if rounds == 0 {
            break;
        }
        if batch % 5 == 0 {
            work.plain(rounds, statistics)?;
        }
        work.probed(rounds, statistics)?;
    }
    statistics.close(price);
    Ok(())
}

/// Two processes and what they passed.
struct Paired {
    pair: Pair,
    statistics: Statistics,
}

impl Paired {
    fn start(context: &Context<'_>, kind: Kind, load: Load) -> Result<Self> {
        Ok(Self {
            pair: Pair::start(context, kind, load)?,
            // There and back.
            statistics: Statistics::new(2.0),
        })
    }

    fn repeat(&mut self, bound: Bound, price: f64) -> Result<()> {
        repeat(&mut self.pair, &mut self.statistics, bound, price)
    }

    fn finish(self, tick: f64) -> Result<Figures> {
        self.pair.finish()?;
        Ok(self.statistics.figures(tick))
    }
}

/// One process and what it passed.
struct Single {
    alone: Alone,
    statistics: Statistics,
}

impl Single {
    fn new(alone: Alone) -> Self {
        Self {
            alone,
            statistics: Statistics::new(1.0),
        }
    }

    fn repeat(&mut self, bound: Bound, price: f64) -> Result<()> {
        repeat(&mut self.alone, &mut self.statistics, bound, price)
    }
}

/// The same segments another way: one probe on at a time, a segment being the difference
/// of two beginnings of the round. No probe stands between what the processor would do at
/// once, and a probe's price falls out.
struct Beginnings {
    alone: Alone,
    /// By point: the statistics of a round that has it alone, and its repetitions' means.
    points: Vec<(Point, Statistics)>,
    means: Vec<Vec<f64>>,
}

impl Beginnings {
    fn new(mut alone: Alone) -> Result<Self> {
        let mut all = Statistics::new(1.0);
        alone.probed(1, Points::ALL, &mut all)?;
        all.close(0.0);
        let passed = all.figures(1.0).segments;
        let points = passed.iter().filter_map(|segment| match segment.part {
            Part::At(point) => Some((point, Statistics::new(1.0))),
            Part::Passage => None,
        });
        Ok(Self {
            alone,
            points: points.collect(),
            means: Vec::new(),
        })
    }

    fn repeat(&mut self, rounds: usize, price: f64) -> Result<()> {
        let mut means = Vec::new();
        for (point, statistics) in &mut self.points {
            let on: Points = [*point].into_iter().collect();
            for done in (0..rounds).step_by(BATCH) {
                self.alone
                    .probed(BATCH.min(rounds - done), on, statistics)?;
            }
            means.extend(statistics.close(price));
        }
        self.means.push(means);
        Ok(())
    }

    fn differences(&self, tick: f64) -> Vec<(Part, Spread)> {
        let points = self.points.iter().enumerate();
        let spread = |(at, (point, _)): (usize, &(Point, Statistics))| {
            let differences = self.means.iter().map(|means| {
                let before = if at == 0 { 0.0 } else { means[at - 1] };
                (means[at] - before) * tick
            });
            (
                Part::At(*point),
                Spread::of(&differences.collect::<Vec<_>>()),
            )
        };
        points.map(spread).collect()
    }
}

/// What each further extent costs, with a probe at either end only.
struct Increments {
    /// By use: with the fewest extents, and with the most.
    runs: Vec<[Single; 2]>,
}

impl Increments {
    fn new() -> Result<Self> {
        let runs = USES.iter().map(|(_, access, touched)| {
            let of = |count| -> Result<Single> {
                let load = Load::pages(count);
                let alone = Alone::new(Protection::Guarded, load, *access, *touched)?;
                Ok(Single::new(alone))
            };
            Ok([of(FEWEST)?, of(MOST)?])
        });
        Ok(Self {
            runs: runs.collect::<Result<_>>()?,
        })
    }

    fn repeat(&mut self, rounds: usize, price: f64) -> Result<()> {
        // Small pieces in turn: the machine's pace cancels in the difference.
        let piece = rounds.min(500);
        for _ in 0..rounds.div_ceil(piece) {
            for single in self.runs.iter_mut().flatten() {
                single.alone.plain(piece, &mut single.statistics)?;
            }
        }
        for single in self.runs.iter_mut().flatten() {
            single.statistics.close(price);
        }
        Ok(())
    }

    fn slopes(&self, tick: f64) -> Vec<Spread> {
        let slopes = self.runs.iter().map(|[few, many]| {
            let differences = many.statistics.plains().zip(few.statistics.plains());
            let slopes = differences.map(|(m, f)| (m - f) / (MOST - FEWEST) as f64 * tick);
            Spread::of(&slopes.collect::<Vec<_>>())
        });
        slopes.collect()
    }
}

/// Seconds a tick, by the system's clock.
fn tick() -> f64 {
    let (ticks_then, then) = (ticks::now(), Instant::now());
    while then.elapsed() < Duration::from_millis(50) {}
    let elapsed = then.elapsed().as_secs_f64();
    elapsed / (ticks::now() - ticks_then) as f64
}

/// The least difference of two readings that are not the same, in ticks.
fn step() -> f64 {
    let differences = (0..10_000).map(|_| {
        let before = ticks::now();
        ticks::now() - before
    });
    differences.filter(|d| *d > 0).min().unwrap_or(1) as f64
}

/// A probe's price in ticks: the middle of several means, which an interrupt spoils less
/// than one.
fn price() -> f64 {
    median((0..9).map(|_| probes::price(20_000)).collect()).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts what it is asked for.
    #[derive(Default)]
    struct Counted {
        plain: usize,
        probed: usize,
    }

    impl Rounds for Counted {
        fn plain(&mut self, rounds: usize, _: &mut Statistics) -> Result<()> {
            self.plain += rounds;
            Ok(())
        }

        fn probed(&mut self, rounds: usize, _: &mut Statistics) -> Result<()> {
            self.probed += rounds;
            Ok(())
        }
    }

    #[test]
    fn a_repetition_ends_at_its_time_but_not_before_its_least() {
        for (within, probed, plain) in [
            // No time at all: the least, and of it every fifth batch without probes, too.
            (Duration::ZERO, 6 * BATCH + 1, BATCH + BATCH),
            // All of it.
            (Duration::MAX, 20 * BATCH, 4 * BATCH),
        ] {
            let bound = Bound {
                most: 20 * BATCH,
                least: 6 * BATCH + 1,
                within,
            };
            let mut work = Counted::default();
            repeat(&mut work, &mut Statistics::new(1.0), bound, 0.0).unwrap();
            assert_eq!((work.probed, work.plain), (probed, plain), "{within:?}");
        }
    }

    #[test]
    fn the_main_runs_are_the_papers_unless_they_take_too_long() {
        let (soon, late) = (Duration::ZERO, Duration::from_secs(15));
        assert_eq!(MAIN.left(0, soon), 1_000_000);
        assert_eq!(MAIN.left(400_000, soon), 600_000);
        assert_eq!(MAIN.left(400_000, late), 0);
        assert_eq!(MAIN.left(40_000, late), 60_000);
        assert_eq!(Bound::exactly(7).left(3, late), 4);
    }
}
