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
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }

    /// How much later than `earlier`; zero if it is not.
    #[inline]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}
