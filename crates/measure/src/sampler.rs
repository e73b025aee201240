//! Samples times of events, slice by slice.
//!
//! All figures are picoseconds an event, because a cache line takes some 60 ns
//! and a ratio needs better than whole nanoseconds.
//!
//! Two kinds of sample: a *batch* of consecutive rounds gives the median free of
//! the clock's own cost; a *single* round gives the tail, which a batch would
//! average away. Both are less the cost of one reading of the clock.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// Three digits: 0.1 %.
const DIGITS: u8 = 3;

/// The samples of one row.
#[derive(Debug)]
pub struct Sampler {
    /// Batches of this slice, then of all slices.
    slice: Histogram<u64>,
    batches: Histogram<u64>,
    singles: Histogram<u64>,
    /// What reading the clock once adds to a sample, in picoseconds.
    clock: u64,
}

/// A row's figures in picoseconds an event.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// The median.
    pub p50: f64,
    /// 99 % are below.
    pub p99: f64,
    /// 99.9 % are below.
    pub p999: f64,
    /// The longest.
    pub max: f64,
}

impl Sampler {
    /// No samples; `clock` is what reading the clock once costs ([`clock_cost`]).
    pub fn new(clock: Duration) -> Self {
        let empty = || Histogram::new(DIGITS).expect("three digits are allowed");
        Self {
            slice: empty(),
            batches: empty(),
            singles: empty(),
            clock: picos(clock),
        }
    }

    /// `events` events took `elapsed`, clock included: a sample for the median.
    pub fn typical(&mut self, elapsed: Duration, events: u64) {
        let each = self.each(elapsed, events);
        // It grows as needed; times beyond 200 days are not expected.
        self.slice
            .record(each)
            .expect("a growing histogram holds every time");
    }

    /// A quantity that is no time.
    pub fn count(&mut self, quantity: u64) {
        self.slice
            .record(quantity.max(1))
            .expect("a growing histogram holds every quantity");
    }

    /// The same, a sample for the tail.
    pub fn tail(&mut self, elapsed: Duration, events: u64) {
        let each = self.each(elapsed, events);
        self.singles
            .record(each)
            .expect("a growing histogram holds every time");
    }

    fn each(&self, elapsed: Duration, events: u64) -> u64 {
        // Zero is the one value that a histogram cannot hold.
        (picos(elapsed).saturating_sub(self.clock) / events).max(1)
    }

    /// Takes in all closed slices of another one.
    pub fn join(&mut self, other: &Self) {
        let both = [
            (&mut self.batches, &other.batches),
            (&mut self.singles, &other.singles),
        ];
        for (own, other) in both {
            own.add(other).expect("histograms of one shape add");
        }
    }

    /// Ends a slice: its median in picoseconds, if it had samples.
    pub fn close_slice(&mut self) -> Option<f64> {
        if self.slice.is_empty() {
            return None;
        }
        let median = self.slice.value_at_quantile(0.5) as f64;
        self.batches
            .add(&self.slice)
            .expect("histograms of one shape add");
        self.slice.reset();
        Some(median)
    }

    /// Over all closed slices. None without a sample.
    pub fn figures(&self) -> Option<Figures> {
        if self.batches.is_empty() {
            return None;
        }
        let tail = if self.singles.is_empty() {
            &self.batches
        } else {
            &self.singles
        };
        let p50 = self.batches.value_at_quantile(0.5) as f64;
        // The tail comes from other samples than the median; in a run with few of
        // them it can come out below it, which would only puzzle.
        let at = |quantile: f64| (tail.value_at_quantile(quantile) as f64).max(p50);
        Some(Figures {
            p50,
            p99: at(0.99),
            p999: at(0.999),
            max: (tail.max() as f64).max(p50),
        })
    }
}

/// What one reading of the clock adds to the time between two: the median of many.
pub fn clock_cost() -> Duration {
    let mut costs: Vec<Duration> = (0..1001)
        .map(|_| {
            let start = Instant::now();
            start.elapsed()
        })
        .collect();
    costs.sort_unstable();
    costs[costs.len() / 2]
}

/// Saturates after 200 days.
pub fn picos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().saturating_mul(1000)).unwrap_or(u64::MAX)
}

/// The middle value; of an even number the upper of the two. What is no number is left out.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.retain(|value| !value.is_nan());
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Jain's index of fairness, `(sum x)² / (n sum x²)`: 1 if all have as much, `1/n` if one has all, 0 if
/// none has anything.
pub fn jain(shares: impl Iterator<Item = f64> + Clone) -> f64 {
    let sum: f64 = shares.clone().sum();
    let squares: f64 = shares.clone().map(|x| x * x).sum();
    match squares > 0.0 {
        true => sum * sum / (shares.count() as f64 * squares),
        false => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jains_index_is_one_where_all_have_as_much() {
        let near =
            |shares: &[f64], expected: f64| (jain(shares.iter().copied()) - expected).abs() < 1e-9;
        assert!(near(&[7.0, 7.0, 7.0, 7.0], 1.0));
        assert!(near(&[9.0, 0.0, 0.0], 1.0 / 3.0));
        assert!(near(&[1.0, 3.0], 0.8));
        assert!(near(&[0.0, 0.0], 0.0));
    }

    #[test]
    fn medians_come_from_batches_and_tails_from_singles() {
        let mut sampler = Sampler::new(Duration::ZERO);
        for _ in 0..100 {
            sampler.typical(Duration::from_nanos(1600), 32);
            sampler.tail(Duration::from_nanos(400), 2);
        }
        let median = sampler.close_slice().unwrap();
        assert!((median - 50_000.0).abs() < 100.0);
        let figures = sampler.figures().unwrap();
        assert!((figures.p50 - 50_000.0).abs() < 100.0);
        assert!((figures.p99 - 200_000.0).abs() < 400.0);
    }

    #[test]
    fn no_samples_no_figures() {
        let mut sampler = Sampler::new(Duration::ZERO);
        assert!(sampler.close_slice().is_none());
        assert!(sampler.figures().is_none());
    }
}
