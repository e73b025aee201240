//! Counts time, as the caller tells it.

use core::time::Duration;

/// Nanoseconds of a clock that both ends share: on one machine, the monotonic one.
///
/// ```
/// use portolan_proto::Time;
/// use std::time::Duration;
/// let later = Time::ZERO.after(Duration::from_micros(3));
/// assert_eq!((later, later.since(Time::ZERO)), (Time(3000), Duration::from_micros(3)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub u64);

impl Time {
    /// When the clock began.
    pub const ZERO: Self = Self(0);
    /// Later than any other.
    pub const MAX: Self = Self(u64::MAX);

    /// So much later.
    #[must_use]
    #[inline]
    pub fn after(self, time: Duration) -> Self {
        self.after_nanos(nanos(time))
    }

    /// So many nanoseconds later.
    #[must_use]
    #[inline]
    pub(crate) const fn after_nanos(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// How much later than `earlier`; zero if it is not.
    #[inline]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A time in nanoseconds: centuries at most.
#[inline]
pub(crate) fn nanos(time: Duration) -> u64 {
    let part = u64::from(time.subsec_nanos());
    time.as_secs()
        .saturating_mul(1_000_000_000)
        .saturating_add(part)
}
