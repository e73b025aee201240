//! Measures how far a peer's clock is ahead of this node's, by pings.
//!
//! ```text
//! here   ---- sent -------------------- now --->      a ping, and the one that echoes it
//! there  ------------ came ---- said ---------->      while it was held there
//! ```
//!
//! The ping came at some moment between *sent* and *now*, less the time that it was held; its middle is
//! taken. So the measure is wrong by half of the way there and back at the most, whatever the ways are
//! like, and by the drift while it was held, if the peer says what its clock shows.

use crate::Time;
use core::time::Duration;

/// Two clocks drift apart by one part in so many at the most: 200 in a million.
const DRIFT: u64 = 5_000;

/// How far the clock of a peer is ahead of this node's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockOffset {
    nanos: i64,
    error: u64,
    at: Time,
}

/// What two pings say.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exchange {
    /// This node's clock when it said the first one.
    pub(super) sent: u64,
    /// The peer's clock when it said the second one, and how long it held the first.
    pub(super) said: u64,
    pub(super) held: u64,
    /// This node's clock when that came.
    pub(super) now: u64,
}

impl ClockOffset {
    /// By two pings. `None` if no honest peer says so.
    pub(super) fn measure(exchange: Exchange, at: Time) -> Option<Self> {
        let Exchange {
            sent,
            said,
            held,
            now,
        } = exchange;
        let away = now.checked_sub(sent)?.checked_sub(held)?;
        let came = said.checked_sub(held)?;
        let there = i128::from(came) + i128::from(said);
        let here = i128::from(sent) + i128::from(now);
        Some(Self {
            nanos: i64::try_from((there - here) / 2).ok()?,
            // The half that is cut off counts as wrong, twice; and while the peer held the ping the
            // clocks drifted apart.
            error: away / 2 + held / DRIFT + 2,
            at,
        })
    }

    /// How many nanoseconds its clock is ahead; behind, if negative.
    pub fn nanos(&self) -> i64 {
        self.nanos
    }

    /// By how much that is wrong at the most now.
    pub fn error(&self, now: Time) -> Duration {
        let since = u64::try_from(now.since(self.at).as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.error.saturating_add(since / DRIFT))
    }

    /// Whichever of two is less wrong now; the new one, if `other` cannot be right beside it,
    /// because a clock was set or stood still.
    pub(super) fn better(self, other: Option<Self>, now: Time) -> Self {
        match other {
            Some(other) if other.error(now) < self.error(now) && self.agrees(other, now) => other,
            _ => self,
        }
    }

    fn agrees(self, other: Self, now: Time) -> bool {
        let apart = u128::from(self.nanos.abs_diff(other.nanos));
        apart <= (self.error(now).as_nanos()).saturating_add(other.error(now).as_nanos())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The peer's clock shows so much more, and the ways take so long.
    fn measured(ahead: i64, there: u64, held: u64, back: u64) -> ClockOffset {
        let sent = 1_000_000;
        let clock = |here: u64| u64::try_from(i128::from(here) + i128::from(ahead)).unwrap();
        let exchange = Exchange {
            sent,
            said: clock(sent + there + held),
            held,
            now: sent + there + held + back,
        };
        ClockOffset::measure(exchange, Time::ZERO).unwrap()
    }

    #[test]
    fn the_measure_is_exact_if_both_ways_are_alike_and_never_more_wrong_than_it_says() {
        assert_eq!(measured(500, 40, 7, 40).nanos(), 500);
        assert_eq!(measured(-500, 40, 7, 40).nanos(), -500);
        for ahead in [0, 1, 77, -999, 86_400_000_000_000] {
            for (there, back) in [(0, 0), (1, 0), (0, 1_001), (5_000, 3), (3, 5_000)] {
                let measure = measured(ahead, there, 1_000, back);
                let error = i64::try_from(measure.error(Time::ZERO).as_nanos()).unwrap();
                let wrong = (measure.nanos() - ahead).abs();
                assert!(wrong <= error, "{wrong} of {error}: {ahead} {there} {back}");
                assert!(error <= i64::try_from(there + back).unwrap() / 2 + 2);
            }
        }
    }

    #[test]
    fn a_good_measure_stays_until_drift_makes_it_worse_than_a_new_one() {
        let (good, bad) = (measured(0, 50, 0, 50), measured(0, 5_000, 0, 5_000));
        assert_eq!(bad.better(Some(good), Time::ZERO), good);
        assert_eq!(good.better(Some(bad), Time::ZERO), good);
        // 200 millionths of a second are far more than either was wrong by.
        let later = Time(1_000_000_000);
        assert_eq!(good.error(later), Duration::from_nanos(200_052));
        let new = ClockOffset { at: later, ..bad };
        assert_eq!(new.better(Some(good), later), new);
    }

    #[test]
    fn a_good_measure_goes_when_a_clock_was_set() {
        let (old, new) = (measured(0, 50, 0, 50), measured(20_000, 5_000, 0, 5_000));
        assert_eq!(new.better(Some(old), Time::ZERO), new);
    }

    #[test]
    fn what_cannot_be_measures_nothing() {
        let exchange = |sent, said, held, now| Exchange {
            sent,
            said,
            held,
            now,
        };
        for wrong in [
            exchange(2, 0, 0, 1),
            exchange(0, 100, 5, 4),
            exchange(0, 1, 2, 10),
            exchange(0, u64::MAX, 0, 10),
        ] {
            assert_eq!(ClockOffset::measure(wrong, Time::ZERO), None, "{wrong:?}");
        }
    }
}
