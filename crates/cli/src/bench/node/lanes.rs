//! Measures what is compared in turn, slice by slice, so that what drifts touches all of it alike.

use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use portolan_measure::sampler::{Figures, Sampler, clock_cost};

use crate::error::Result;

/// Something that is measured again and again.
pub(super) trait Lane {
    /// Works for about so long, and records it; one sample at least.
    fn slice(&mut self, budget: Duration, sampler: &mut Sampler) -> Result<()>;
}

/// Something that is done again and again: each time is a sample of a lane.
pub(super) trait Round {
    /// What has to be there for the next one, and is not measured.
    fn prepare(&mut self) -> Result<()> {
        Ok(())
    }

    /// What is measured. If it is a part of what this does, so long that took.
    fn round(&mut self) -> Result<Option<Duration>>;
}

impl<R: Round> Lane for R {
    fn slice(&mut self, budget: Duration, sampler: &mut Sampler) -> Result<()> {
        let begun = Instant::now();
        loop {
            self.prepare()?;
            let at = Instant::now();
            let part = self.round()?;
            sampler.typical(part.unwrap_or_else(|| at.elapsed()), 1);
            if begun.elapsed() >= budget {
                return Ok(());
            }
        }
    }
}

/// How long to measure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    pub(super) slices: usize,
    pub(super) slice: Duration,
}

/// Ratios of a lane's slices to those beside them: the median, and what the middle half of them lies
/// between.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ratio {
    pub(super) median: f64,
    pub(super) range: [f64; 2],
}

impl Ratio {
    /// `None` without a slice.
    pub(super) fn of(mut ratios: Vec<f64>) -> Option<Self> {
        ratios.sort_unstable_by(f64::total_cmp);
        let last = ratios.len().checked_sub(1)?;
        let at = |quarter: usize| ratios[(last * quarter).div_ceil(4)];
        Some(Self {
            median: at(2),
            range: [ratios[last / 4], at(3)],
        })
    }

    /// Of rates, where this one is of times.
    pub(super) fn inverse(self) -> Self {
        let [lower, upper] = self.range;
        Self {
            median: 1.0 / self.median,
            range: [1.0 / upper, 1.0 / lower],
        }
    }
}

/// A lane as it was measured; picoseconds.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub(super) figures: Figures,
    /// Medians of its slices.
    pub(super) medians: Vec<f64>,
    /// 99 % of a slice are below.
    pub(super) tails: Vec<f64>,
}

impl Measured {
    /// Its slices to those of another lane in the same rounds.
    pub(super) fn to(&self, other: &Self) -> Option<Ratio> {
        let both = self.medians.iter().zip(&other.medians);
        Ratio::of(both.map(|(own, other)| own / other).collect())
    }

    /// The same of what 99 % are below.
    pub(super) fn tail_to(&self, other: &Self) -> Option<Ratio> {
        let both = self.tails.iter().zip(&other.tails);
        Ratio::of(both.map(|(own, other)| own / other).collect())
    }
}

/// A baseline and what is held against it, in the order of the lanes; the baseline comes first.
pub(super) fn measure(
    lanes: &mut [&mut dyn Lane],
    effort: Effort,
    progress: &ProgressBar,
) -> Result<Vec<Measured>> {
    let clock = clock_cost();
    // Of each lane: all of it, and what each slice came to.
    let mut taken: Vec<(Sampler, Vec<f64>, Vec<f64>)> = Vec::new();
    for lane in lanes.iter_mut() {
        // What is done for the first time takes longer.
        lane.slice(effort.slice / 4, &mut Sampler::new(clock))?;
        taken.push((Sampler::new(clock), Vec::new(), Vec::new()));
    }
    for _ in 0..effort.slices {
        for (lane, (all, medians, tails)) in lanes.iter_mut().zip(&mut taken) {
            let mut one = Sampler::new(clock);
            lane.slice(effort.slice, &mut one)?;
            if let Some(median) = one.close_slice() {
                medians.push(median);
            }
            tails.extend(one.figures().map(|figures| figures.p99));
            all.join(&one);
            progress.inc(1);
        }
    }
    let measured = taken.into_iter().filter_map(|(all, medians, tails)| {
        Some(Measured {
            figures: all.figures()?,
            medians,
            tails,
        })
    });
    Ok(measured.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_has_its_middle_half() {
        let of = |values: &[f64]| Ratio::of(values.to_vec());
        let five = of(&[5.0, 1.0, 4.0, 2.0, 3.0]).unwrap();
        assert_eq!((five.median, five.range), (3.0, [2.0, 4.0]));
        let inverse = five.inverse();
        assert_eq!((inverse.median, inverse.range), (1.0 / 3.0, [0.25, 0.5]));
        let one = of(&[2.0]).unwrap();
        assert_eq!((one.median, one.range), (2.0, [2.0, 2.0]));
        assert_eq!(of(&[]), None);
    }
}
