//! Meters the part of an operation that a row is about.

use std::time::{Duration, Instant};

use portolan_instruments::step::mark;

/// Stores between two marks: one alone would go under in what surrounds it.
const STORES: usize = 64;

/// How a part is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meter {
    /// Its time.
    Clock,
    /// Between two marks, for the process that steps through this one.
    Marks,
}

/// A part under way. Its time is nothing if there is no clock.
pub(super) struct Part(Option<Instant>);

impl Meter {
    /// How often an operation is done within a part: `timed` times by the clock.
    pub(super) fn times(self, timed: usize) -> usize {
        match self {
            Self::Clock => timed,
            Self::Marks => 1,
        }
    }

    /// The same of stores.
    pub(super) fn stores(self, timed: usize) -> usize {
        match self {
            Self::Clock => timed,
            Self::Marks => STORES.min(timed),
        }
    }

    #[inline(always)]
    pub(super) fn begin(self) -> Part {
        match self {
            Self::Clock => Part(Some(Instant::now())),
            Self::Marks => {
                mark();
                Part(None)
            }
        }
    }
}

impl Part {
    #[inline(always)]
    pub(super) fn end(self) -> Duration {
        if let Some(start) = self.0 {
            start.elapsed()
        } else {
            mark();
            Duration::ZERO
        }
    }
}
