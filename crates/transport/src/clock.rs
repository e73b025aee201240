//! The clocks that a transport and a node look at, injected so that tests have their own.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Two clocks: one that only goes on, for waiting; and the time of day, for certificates.
pub trait Clock: fmt::Debug + Send + Sync {
    /// Time since some moment before. It never goes back.
    fn now(&self) -> Duration;
    /// Time since 1970. It may be wrong, and jump.
    fn of_day(&self) -> Duration;
}

/// The system's clocks.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self {
            start: Instant::now(),
        }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn of_day(&self) -> Duration {
        // Before 1970 no certificate is valid, nor in 1970.
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
    }
}

/// A clock that goes when it is told to.
///
/// ```
/// use portolan_transport::clock::{Clock, ManualClock};
/// use std::time::Duration;
/// let clock = ManualClock::at(Duration::from_secs(1_000));
/// clock.advance(Duration::from_secs(5));
/// clock.set_of_day(Duration::from_secs(7));
/// assert_eq!((clock.now().as_secs(), clock.of_day().as_secs()), (5, 7));
/// ```
#[derive(Debug, Default)]
pub struct ManualClock {
    /// Nanoseconds.
    now: AtomicU64,
    of_day: AtomicU64,
}

impl ManualClock {
    /// A clock that stands at this time of day.
    pub fn at(of_day: Duration) -> Self {
        let clock = Self::default();
        clock.set_of_day(of_day);
        clock
    }

    /// Lets both clocks go on.
    pub fn advance(&self, by: Duration) {
        self.now.fetch_add(nanos(by), Ordering::Relaxed);
        self.of_day.fetch_add(nanos(by), Ordering::Relaxed);
    }

    /// Lets the time of day jump.
    pub fn set_of_day(&self, to: Duration) {
        self.of_day.store(nanos(to), Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.now.load(Ordering::Relaxed))
    }

    fn of_day(&self) -> Duration {
        Duration::from_nanos(self.of_day.load(Ordering::Relaxed))
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
