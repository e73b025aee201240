//! Measures times of small things.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// Seconds that one call of `work` takes: the median over `slices` batches, each of at
/// least `least`.
pub(crate) fn each(slices: usize, least: Duration, mut work: impl FnMut()) -> Timed {
    let mut rounds = 1_u64;
    let mut batch = |rounds: u64| {
        let start = Instant::now();
        for _ in 0..rounds {
            black_box(&mut work)();
        }
        start.elapsed()
    };
    // As many rounds as fill a batch; finding out warms up, too.
    while batch(rounds) < least && rounds < 1 << 40 {
        rounds *= 2;
    }
    let times = (0..slices).map(|_| batch(rounds).as_secs_f64() / rounds as f64);
    Timed::of(times.collect())
}

/// Several measurements of one thing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timed {
    sorted: Vec<f64>,
}

impl Timed {
    pub(crate) fn of(mut times: Vec<f64>) -> Self {
        times.sort_unstable_by(f64::total_cmp);
        Self { sorted: times }
    }

    /// The middle one; no number if there is none.
    pub(crate) fn median(&self) -> f64 {
        self.sorted
            .get(self.sorted.len() / 2)
            .copied()
            .unwrap_or(f64::NAN)
    }

    /// What the middle half lies between.
    pub(crate) fn quartiles(&self) -> [f64; 2] {
        [self.at(1), self.at(3)]
    }

    /// All of these, and those.
    pub(crate) fn and(self, more: Self) -> Self {
        Self::of([self.sorted, more.sorted].concat())
    }

    /// Whether the middle halves of the two are apart, so that one is surely the greater.
    pub(crate) fn clear_of(&self, other: &Self) -> bool {
        self.at(1) > other.at(3) || self.at(3) < other.at(1)
    }

    /// The value that so many quarters of the others lie below.
    fn at(&self, quarters: usize) -> f64 {
        let last = self.sorted.len().saturating_sub(1);
        let at = (last * quarters + 2) / 4;
        self.sorted.get(at).copied().unwrap_or(f64::NAN)
    }

    /// As a table's cell.
    pub(crate) fn cell(&self) -> crate::outcome::Cell {
        crate::outcome::Cell::here(self.median()).within(self.at(1), self.at(3))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_in_the_middle() {
        let timed = Timed::of(vec![3.0, 1.0, 2.0]);
        assert_eq!((timed.median(), timed.at(0), timed.at(4)), (2.0, 1.0, 3.0));
        assert!(Timed::of(Vec::new()).median().is_nan());
    }

    #[test]
    fn one_far_value_does_not_hide_a_difference() {
        let timed = |times: &[f64]| Timed::of(times.to_vec());
        let (low, high) = (
            timed(&[1.0, 1.1, 1.2, 1.3, 9.0]),
            timed(&[2.0, 2.1, 2.2, 2.3, 2.4]),
        );
        assert!(low.clear_of(&high) && high.clear_of(&low));
        assert!(!low.clear_of(&timed(&[1.0, 1.2, 1.4])));
        assert!(!Timed::default().clear_of(&low));
    }

    #[test]
    fn work_is_done_as_often_as_it_is_counted() {
        let mut calls = 0;
        let timed = each(3, Duration::ZERO, || calls += 1);
        // Once to find out, then three batches of one.
        assert_eq!((calls, timed.sorted.len()), (4, 3));
    }
}
