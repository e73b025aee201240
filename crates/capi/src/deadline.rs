//! Deadlines as words: nanoseconds of the monotonic clock, the same in every process.

use portolan::{Deadline, WhenFull};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long a call may wait: until this many nanoseconds of `CLOCK_MONOTONIC`.
pub type portolan_deadline = u64;

/// Do not wait at all.
pub const PORTOLAN_NOW: portolan_deadline = 0;
/// Wait for as long as it takes.
pub const PORTOLAN_NEVER: portolan_deadline = 0xFFFF_FFFF_FFFF_FFFF;

/// What a send does when the queue is full: a deadline, to wait for room until then;
/// `PORTOLAN_FAIL`; or `PORTOLAN_DROP`.
pub type portolan_when_full = u64;

/// Give the message back at once.
pub const PORTOLAN_FAIL: portolan_when_full = 0;
/// Drop the message, count it, and call it sent.
pub const PORTOLAN_DROP: portolan_when_full = 0xFFFF_FFFF_FFFF_FFFE;

/// The deadline so many nanoseconds from now on; for none it is `PORTOLAN_NOW`.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_deadline_after(nanoseconds: u64) -> portolan_deadline {
    if nanoseconds == 0 {
        return PORTOLAN_NOW;
    }
    let anchor = anchor();
    let since = u64::try_from(anchor.0.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let at = anchor.1.saturating_add(since).saturating_add(nanoseconds);
    // Neither of these is an instant.
    if at >= PORTOLAN_DROP {
        PORTOLAN_NEVER
    } else {
        at
    }
}

/// One instant, and the same in nanoseconds of the clock.
fn anchor() -> &'static (Instant, u64) {
    static ANCHOR: OnceLock<(Instant, u64)> = OnceLock::new();
    ANCHOR.get_or_init(|| {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        let clock = seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0);
        (Instant::now(), clock)
    })
}

#[inline]
pub(crate) fn deadline(word: portolan_deadline) -> Deadline {
    match word {
        PORTOLAN_NOW => Deadline::NOW,
        PORTOLAN_NEVER => Deadline::NEVER,
        at => deadline_at(at),
    }
}

#[inline(never)]
fn deadline_at(at: u64) -> Deadline {
    let (instant, clock) = anchor();
    let shift = Duration::from_nanos(at.abs_diff(*clock));
    if at >= *clock {
        instant
            .checked_add(shift)
            .map_or(Deadline::NEVER, Deadline::at)
    } else {
        // Before the first deadline of this process: over.
        Deadline::NOW
    }
}

/// A deadline of C's, of which the library's is made only where a call comes to wait.
#[derive(Clone, Copy)]
pub(crate) struct Until(pub(crate) portolan_deadline);

impl From<Until> for Deadline {
    fn from(until: Until) -> Self {
        deadline(until.0)
    }
}

#[inline(always)]
pub(crate) fn when_full(word: portolan_when_full) -> WhenFull {
    match word {
        PORTOLAN_FAIL => WhenFull::Fail,
        other => drop_or_wait(other),
    }
}

#[inline(never)]
fn drop_or_wait(word: portolan_when_full) -> WhenFull {
    match word {
        PORTOLAN_DROP => WhenFull::Drop,
        other => WhenFull::Wait(deadline(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_are_the_clocks() {
        assert_eq!(portolan_deadline_after(0), PORTOLAN_NOW);
        assert_eq!(portolan_deadline_after(u64::MAX), PORTOLAN_NEVER);
        assert_eq!(deadline(PORTOLAN_NEVER), Deadline::NEVER);
        assert!(deadline(1).has_passed());
        let soon = deadline(portolan_deadline_after(60_000_000_000));
        assert!(!soon.has_passed());
        let left = soon.instant().unwrap() - Instant::now();
        assert!((50..=60).contains(&left.as_secs()), "{left:?}");
        let over = portolan_deadline_after(1);
        std::thread::sleep(Duration::from_millis(1));
        assert!(deadline(over).has_passed());
        assert_eq!(when_full(PORTOLAN_FAIL), WhenFull::Fail);
        assert_eq!(when_full(PORTOLAN_DROP), WhenFull::Drop);
        assert_eq!(when_full(PORTOLAN_NEVER), WhenFull::Wait(Deadline::NEVER));
    }
}
