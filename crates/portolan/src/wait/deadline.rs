//! A deadline says how long a call may wait.

use std::time::{Duration, Instant};

/// How long a call may wait.
///
/// ```
/// use portolan::Deadline;
/// use std::time::Duration;
/// assert!(Deadline::NOW.has_passed());
/// assert_eq!(Deadline::after(Duration::ZERO), Deadline::NOW);
/// assert!(!Deadline::after(Duration::from_secs(60)).has_passed());
/// assert!(!Deadline::NEVER.has_passed());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline(When);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Now,
    At(Instant),
    Never,
}

impl Deadline {
    /// Do not wait at all.
    pub const NOW: Self = Self(When::Now);
    /// Wait for as long as it takes.
    pub const NEVER: Self = Self(When::Never);

    /// Wait until `at`.
    pub const fn at(at: Instant) -> Self {
        Self(When::At(at))
    }

    /// Wait for `time` from now on; for no time at all it is [`NOW`](Self::NOW).
    pub fn after(time: Duration) -> Self {
        if time.is_zero() {
            return Self::NOW;
        }
        Instant::now()
            .checked_add(time)
            .map_or(Self::NEVER, Self::at)
    }

    /// Whether there is nothing left to wait for.
    pub fn has_passed(self) -> bool {
        match self.0 {
            When::Now => true,
            When::At(at) => Instant::now() >= at,
            When::Never => false,
        }
    }

    /// The instant, if there is one.
    pub fn instant(self) -> Option<Instant> {
        match self.0 {
            When::Now => Some(Instant::now()),
            When::At(at) => Some(at),
            When::Never => None,
        }
    }

    /// The earlier of two.
    pub(crate) fn min(self, other: Self) -> Self {
        match (self.0, other.0) {
            (When::Now, _) | (_, When::Now) => Self::NOW,
            (When::Never, _) => other,
            (_, When::Never) => self,
            (When::At(one), When::At(two)) => Self::at(one.min(two)),
        }
    }

    pub(crate) fn is_now(self) -> bool {
        self.0 == When::Now
    }
}

impl From<Duration> for Deadline {
    fn from(time: Duration) -> Self {
        Self::after(time)
    }
}

impl From<Instant> for Deadline {
    fn from(at: Instant) -> Self {
        Self::at(at)
    }
}
