//! Computes means and deviations of the segments that were passed.
//!
//! ```text
//! ways of a batch ──> Sums of a repetition ──> Mean ──> Spread over repetitions
//!   (slow ones known)   (raw, and trimmed)
//! ```
//!
//! As in the paper: a repetition's figure is the mean of its rounds, less the probes'
//! price; what is judged is the mean and the deviation of the repetitions' figures.
//!
//! A trimmed mean leaves out whole ways, by how long they took from end to end: what
//! interrupted them fell into one segment or another. So the trimmed means of the segments
//! add up to the trimmed mean of the whole, as the raw ones do.

use portolan::probes::{Letter, Point};

use super::trace::{POINTS, Passage, Trace};
use crate::claims::Estimate;

/// Of a batch, how many ways the trimmed mean keeps: in the slowest, something else ran.
const KEPT: f64 = 0.95;

/// A segment of the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The one that ends at a point.
    At(Point),
    /// From one process to the other.
    Passage,
}

impl Part {
    fn all() -> impl Iterator<Item = Self> {
        Point::ALL
            .iter()
            .map(|p| Self::At(*p))
            .chain([Self::Passage])
    }

    fn index(self) -> usize {
        match self {
            Self::At(point) => point as usize,
            Self::Passage => POINTS,
        }
    }

    pub(super) fn letter(self) -> Option<Letter> {
        match self {
            Self::At(point) => point.letter(),
            Self::Passage => None,
        }
    }
}

/// One message's way: ticks and passes of each part, the passage included. A passage can be
/// negative: a message may be seen before its sender, interrupted, notes that it is sent.
struct Way {
    whole: i64,
    ticks: [i64; POINTS + 1],
    passes: [u64; POINTS + 1],
    /// Of the points on the way.
    all_passes: u64,
}

impl Way {
    fn new() -> Self {
        Self {
            whole: 0,
            ticks: [0; POINTS + 1],
            passes: [0; POINTS + 1],
            all_passes: 0,
        }
    }

    fn add(&mut self, part: Part, ticks: i64, passes: u64) {
        self.ticks[part.index()] = ticks;
        self.passes[part.index()] = passes;
    }
}

/// The sum of one time over many ways.
#[derive(Clone, Copy, Default)]
struct Sum {
    ticks: f64,
    passes: f64,
    ways: f64,
}

impl Sum {
    fn add(&mut self, ticks: i64, passes: u64) {
        self.ticks += ticks as f64;
        self.passes += passes as f64;
        self.ways += 1.0;
    }

    /// Ticks a way.
    fn mean(&self, price: f64) -> f64 {
        (self.ticks - self.passes * price) / self.ways
    }
}

/// The same of all ways, and of those that are kept.
#[derive(Clone, Copy, Default)]
struct Sums {
    all: Sum,
    kept: Sum,
}

impl Sums {
    fn add(&mut self, ticks: i64, passes: u64, kept: bool) {
        self.all.add(ticks, passes);
        if kept {
            self.kept.add(ticks, passes);
        }
    }

    /// Its means, in ticks a way, and empty again; nothing, if there was no way.
    fn close(&mut self, price: f64) -> Option<Mean> {
        let Self { all, kept } = std::mem::take(self);
        (all.ways > 0.0).then(|| Mean {
            raw: all.mean(price),
            trimmed: kept.mean(price),
            passes: all.passes / all.ways,
        })
    }
}

/// What of a batch is kept: nothing that took longer than this.
fn limit(mut times: Vec<i64>) -> i64 {
    times.sort_unstable();
    let kept = (times.len() as f64 * KEPT).ceil();
    // At most as many as there are; a batch is no longer than memory.
    let kept = times
        .iter()
        .enumerate()
        .take_while(|(at, _)| (*at as f64) < kept);
    kept.last().map_or(0, |(_, time)| *time)
}

/// One segment's figure of one repetition, in ticks a round.
#[derive(Clone, Copy, Debug)]
struct Mean {
    raw: f64,
    trimmed: f64,
    passes: f64,
}

/// Rounds of one kind, repetition by repetition.
pub(super) struct Statistics {
    batch: Vec<Way>,
    /// Rounds with a probe at either end only, and how many ways each has.
    plain_batch: Vec<i64>,
    ways_a_round: f64,
    parts: Vec<Sums>,
    whole: Sums,
    plain: Sums,
    /// By part, then by repetition.
    means: Vec<Vec<Mean>>,
    wholes: Vec<Mean>,
    plains: Vec<Mean>,
    /// Ways that do not count: the receiver was not asleep yet, or woke twice.
    odd: u64,
    ways: u64,
    /// The ways of all repetitions up to the one that is under way, and of each before.
    closed: u64,
    repetitions: Vec<u64>,
    /// What was passed beside the way.
    beside: [bool; POINTS],
    on_way: [bool; POINTS],
}

impl Statistics {
    /// A round has one message's way, or the way back too.
    pub(super) fn new(ways_a_round: f64) -> Self {
        Self {
            batch: Vec::new(),
            plain_batch: Vec::new(),
            ways_a_round,
            parts: vec![Sums::default(); POINTS + 1],
            whole: Sums::default(),
            plain: Sums::default(),
            means: vec![Vec::new(); POINTS + 1],
            wholes: Vec::new(),
            plains: Vec::new(),
            odd: 0,
            ways: 0,
            closed: 0,
            repetitions: Vec::new(),
            beside: [false; POINTS],
            on_way: [false; POINTS],
        }
    }

    /// A round of one process, from `begun` to the last point.
    pub(super) fn round(&mut self, trace: &Trace) {
        let mut way = Way::new();
        for point in Point::ALL {
            let (ticks, passes) = trace.segment(*point);
            way.add(Part::At(*point), ticks, passes);
            way.whole += ticks;
            way.all_passes += passes;
            self.on_way[*point as usize] |= passes > 0;
        }
        self.ways += 1;
        self.batch.push(way);
    }

    /// One way of a message: `from` sent it, having begun to at `begun`, and `to` received it.
    pub(super) fn way(&mut self, passage: Passage, begun: u64, from: &Trace, to: &Trace) {
        self.ways += 1;
        if from.passes(passage.notice) != 1 || to.passes(passage.noticed) != 1 {
            self.odd += 1;
            return;
        }
        let (left, came) = (from.at(passage.notice), to.at(passage.noticed));
        let mut way = Way::new();
        way.add(Part::Passage, came.cast_signed() - left.cast_signed(), 1);
        way.whole = to.at(Point::AccessDone).cast_signed() - begun.cast_signed();
        way.all_passes = 1;
        for point in Point::ALL {
            // A side's points before and after the passage are of two different messages.
            let side = if *point <= Point::SendReturned {
                from
            } else {
                to
            };
            let (ticks, passes) = side.segment(*point);
            if *point == passage.noticed {
                continue;
            }
            way.add(Part::At(*point), ticks, passes);
            if passage.is_on_way(*point) {
                way.all_passes += passes;
                self.on_way[*point as usize] |= passes > 0;
            } else {
                self.beside[*point as usize] |= passes > 0;
            }
        }
        self.batch.push(way);
    }

    /// A round with a probe at either end only.
    pub(super) fn plain(&mut self, trace: &Trace) {
        self.plain_batch.push(trace.segment(Point::Empty).0);
    }

    /// Ends a batch: now it is known which ways were slow.
    pub(super) fn end_batch(&mut self) {
        let slowest = limit(self.batch.iter().map(|way| way.whole).collect());
        for way in self.batch.drain(..) {
            let kept = way.whole <= slowest;
            for (at, sums) in self.parts.iter_mut().enumerate() {
                sums.add(way.ticks[at], way.passes[at], kept);
            }
            self.whole.add(way.whole, way.all_passes, kept);
        }
        let slowest = limit(self.plain_batch.clone());
        for round in self.plain_batch.drain(..) {
            self.plain.add(round, 1, round <= slowest);
        }
    }

    /// Ends a repetition; its ways' trimmed mean in ticks. `price` is a probe's.
    pub(super) fn close(&mut self, price: f64) -> Option<f64> {
        self.repetitions.push(self.ways - self.closed);
        self.closed = self.ways;
        for (sums, means) in self.parts.iter_mut().zip(&mut self.means) {
            means.extend(sums.close(price));
        }
        let plain = self.plain.close(price);
        self.plains.extend(plain.map(|mean| Mean {
            raw: mean.raw / self.ways_a_round,
            trimmed: mean.trimmed / self.ways_a_round,
            passes: mean.passes,
        }));
        let whole = self.whole.close(price);
        self.wholes.extend(whole);
        whole.map(|whole| whole.trimmed)
    }

    /// Of each repetition, the trimmed mean in ticks of rounds with a probe at either end.
    pub(super) fn plains(&self) -> impl Iterator<Item = f64> {
        self.plains.iter().map(|mean| mean.trimmed)
    }

    /// The figures, with `tick` seconds a tick.
    pub(super) fn figures(&self, tick: f64) -> Figures {
        let spread = |means: &[Mean], pick: fn(&Mean) -> f64| {
            Spread::of(&means.iter().map(|m| pick(m) * tick).collect::<Vec<_>>())
        };
        let both = |means: &[Mean]| Time {
            raw: spread(means, |m| m.raw),
            trimmed: spread(means, |m| m.trimmed),
        };
        let mut segments = Vec::new();
        let mut beside = Vec::new();
        for part in Part::all() {
            let means = &self.means[part.index()];
            let time = both(means);
            let segment = Segment { part, time };
            if means.iter().all(|m| m.passes == 0.0) {
                continue;
            }
            match part {
                Part::At(point) if self.beside[point as usize] => beside.push(segment),
                Part::At(point) if !self.on_way[point as usize] => {}
                Part::At(_) | Part::Passage => segments.push(segment),
            }
        }
        Figures {
            segments,
            beside,
            whole: both(&self.wholes),
            plain: both(&self.plains),
            ways: self.ways,
            rounds: {
                let rounds = || {
                    let all = self.repetitions.iter();
                    all.map(|ways| *ways as f64 / self.ways_a_round)
                };
                [rounds().reduce(f64::min), rounds().reduce(f64::max)]
                    .map(Option::unwrap_or_default)
            },
            odd: self.odd as f64 / (self.ways.max(1)) as f64,
        }
    }
}

/// One time over all repetitions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Time {
    pub(super) raw: Spread,
    /// Without the slowest ways.
    pub(super) trimmed: Spread,
}

/// One segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) part: Part,
    pub(super) time: Time,
}

/// What rounds of one kind took, in seconds.
#[derive(Clone, Debug)]
pub(super) struct Figures {
    /// On a message's way, in order; the passage last.
    pub(super) segments: Vec<Segment>,
    /// Done while the other side is at work.
    pub(super) beside: Vec<Segment>,
    /// From beginning to end with probes, less their price.
    pub(super) whole: Time,
    /// With a probe at either end only.
    pub(super) plain: Time,
    /// Ways that were looked at, and the share of those that do not count.
    pub(super) ways: u64,
    pub(super) odd: f64,
    /// Rounds with probes: of the repetition that has the fewest, and of the one that has the most.
    pub(super) rounds: [f64; 2],
}

impl Figures {
    /// Seconds, trimmed, of the segments that `which` picks.
    pub(super) fn sum(&self, which: impl Fn(Part) -> bool) -> f64 {
        let picked = self.segments.iter().filter(|s| which(s.part));
        picked.map(|s| s.time.trimmed.mean).sum()
    }

    /// The share that the picked segments have of all that both sides do, and how far it goes either way in 95
    /// of 100 repetitions, were segments independent of one another.
    pub(super) fn share_of_all(&self, which: impl Fn(Part) -> bool) -> Option<Estimate> {
        let (mut mean, mut variance) = ([0.0; 2], [0.0; 2]);
        let way = self
            .segments
            .iter()
            .map(|s| (usize::from(!which(s.part)), s));
        for (side, segment) in way.chain(self.beside.iter().map(|s| (1, s))) {
            mean[side] += segment.time.trimmed.mean;
            variance[side] += segment.time.trimmed.deviation.powi(2);
        }
        let all: f64 = mean.iter().sum();
        let share = mean[0] / all;
        let [picked, rest] = variance.map(f64::sqrt);
        let spread = 1.96 * ((1.0 - share) * picked).hypot(share * rest) / all;
        Estimate::between(share, share - spread, share + spread).filter(|_| all > 0.0)
    }

    /// Of all.
    pub(super) fn total(&self) -> f64 {
        self.sum(|_| true)
    }

    /// The same, not trimmed.
    pub(super) fn total_raw(&self) -> f64 {
        self.segments.iter().map(|s| s.time.raw.mean).sum()
    }

    pub(super) fn letter(&self, letter: Letter) -> f64 {
        self.sum(|part| part.letter() == Some(letter))
    }

    pub(super) fn letters(&self, letters: &[Letter]) -> f64 {
        letters.iter().map(|letter| self.letter(*letter)).sum()
    }

    /// The deviation of the letters' sum, were they independent of one another.
    pub(super) fn letters_deviation(&self, letters: &[Letter]) -> f64 {
        let picked = self.segments.iter().filter(|s| {
            s.part
                .letter()
                .is_some_and(|letter| letters.contains(&letter))
        });
        picked
            .map(|s| s.time.trimmed.deviation.powi(2))
            .sum::<f64>()
            .sqrt()
    }
}

/// Mean and standard deviation of the repetitions' figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) mean: f64,
    pub(super) deviation: f64,
    pub(super) least: f64,
    pub(super) most: f64,
}

impl Spread {
    pub(super) fn of(values: &[f64]) -> Self {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
        Self {
            mean,
            // Of a sample; one value has none.
            deviation: (squares / (n - 1.0).max(1.0)).sqrt(),
            least: values.iter().copied().fold(f64::NAN, f64::min),
            most: values.iter().copied().fold(f64::NAN, f64::max),
        }
    }

    /// The coefficient of variation.
    pub(super) fn variation(&self) -> f64 {
        self.deviation / self.mean
    }

    /// Whether it is told apart from nothing: 95 in 100 repetitions lie above zero.
    pub(super) fn is_resolved(&self) -> bool {
        self.mean > 1.96 * self.deviation
    }

    pub(super) fn cell(&self) -> crate::outcome::Cell {
        crate::outcome::Cell::here(self.mean).within(self.least, self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::super::trace::tests::trace;
    use super::*;

    #[test]
    fn a_way_between_two_adds_up() {
        let from = trace(
            100,
            &[
                (Point::SendCalled, 110),
                (Point::WakeFound, 130),
                (Point::WakeCalled, 150),
                // Of the message that comes back.
                (Point::SleepWoken, 400),
                (Point::AccessDone, 440),
            ],
        );
        let to = trace(
            50,
            &[
                (Point::SleepArmed, 60),
                (Point::SleepWoken, 200),
                (Point::ReceiveSeen, 230),
                (Point::AccessDone, 250),
                (Point::WakeFound, 300),
            ],
        );
        let mut statistics = Statistics::new(1.0);
        statistics.way(Passage::WAKE, from.begun, &from, &to);
        statistics.way(Passage::WAKE, to.at(Point::AccessDone), &to, &from);
        statistics.plain(&trace(0, &[(Point::Empty, 160)]));
        statistics.end_batch();
        statistics.close(0.0);
        let figures = statistics.figures(1.0);
        // 100 to 250, and 250 to 440.
        assert_eq!(figures.whole.raw.mean, 170.0);
        assert_eq!(figures.total_raw(), 170.0);
        assert_eq!(figures.sum(|part| part == Part::Passage), 85.0);
        assert_eq!(figures.plain.raw.mean, 160.0);
        let beside: Vec<Part> = figures.beside.iter().map(|s| s.part).collect();
        assert_eq!(
            beside,
            [Part::At(Point::WakeCalled), Part::At(Point::SleepArmed)]
        );
        assert_eq!(figures.odd, 0.0);
    }

    #[test]
    fn a_receiver_that_did_not_sleep_does_not_count() {
        let from = trace(0, &[(Point::SendPublished, 10)]);
        let to = trace(0, &[(Point::ReceiveSeen, 20), (Point::AccessDone, 30)]);
        let mut statistics = Statistics::new(1.0);
        statistics.way(Passage::WAKE, 0, &from, &to);
        statistics.end_batch();
        statistics.close(0.0);
        let figures = statistics.figures(1.0);
        assert_eq!(figures.odd, 1.0);
        assert!(figures.segments.is_empty());
    }

    #[test]
    fn the_slowest_ways_are_trimmed_as_a_whole_and_the_price_taken_off() {
        let mut statistics = Statistics::new(1.0);
        for round in 0..100 {
            // What interrupts falls into the first segment or into the second.
            let (middle, end) = match round {
                0 => (10_000, 10_030),
                1 => (20, 10_050),
                _ => (20, 50),
            };
            let points = [(Point::SendCalled, middle), (Point::AccessDone, end)];
            statistics.round(&trace(0, &points));
        }
        statistics.end_batch();
        statistics.close(10.0);
        let figures = statistics.figures(1.0);
        let trimmed = figures.segments.iter().map(|s| s.time.trimmed.mean);
        assert_eq!(trimmed.collect::<Vec<_>>(), [10.0, 20.0]);
        assert_eq!(figures.whole.trimmed.mean, 30.0);
        assert_eq!(figures.total(), 30.0);
        assert!((figures.total_raw() - figures.whole.raw.mean).abs() < 1e-9);
        assert!(figures.whole.raw.mean > 200.0);
    }

    #[test]
    fn a_repetition_has_the_rounds_that_it_had() {
        let mut statistics = Statistics::new(2.0);
        for ways in [8, 4, 6] {
            for _ in 0..ways {
                statistics.round(&trace(0, &[(Point::AccessDone, 1)]));
            }
            statistics.end_batch();
            statistics.close(0.0);
        }
        assert_eq!(statistics.figures(1.0).rounds, [2.0, 4.0]);
    }

    #[test]
    fn a_limit_keeps_its_share() {
        assert_eq!(limit((1..=100).collect()), 95);
        assert_eq!(limit(vec![7]), 7);
        assert_eq!(limit(Vec::new()), 0);
    }

    #[test]
    fn spreads_are_those_of_a_sample() {
        let spread = Spread::of(&[2.0, 4.0, 6.0]);
        assert_eq!((spread.mean, spread.deviation), (4.0, 2.0));
        assert_eq!(spread.variation(), 0.5);
        assert!(spread.is_resolved());
        assert!(!Spread::of(&[-1.0, 1.0]).is_resolved());
    }
}
