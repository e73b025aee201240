//! Moves memory to huge pages as long as the kernel does that quickly.
//!
//! A huge page is worth some hundred page faults, and no wait. Before the kernel makes one, it waits
//! until each processor has emptied its lists of pages (`lru_add_drain_all`), for one process of the
//! machine after another, and the process's other threads cannot map memory meanwhile. Where many
//! processes ask and all processors are busy, one page takes seconds, and an extent of 64 MiB asks
//! for 32. So after a call that took [`SLOW`] or longer this process does without for
//! [`REST`] times as long.

use std::num::NonZero;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::range::collapse;

/// A call that takes so long costs more than small pages do. A quick one takes less than 1 ms.
const SLOW: Duration = Duration::from_millis(50);
/// Threads that run or could run, for each processor, while the kernel is quick: its own thread, which
/// empties a processor's lists, waits behind them.
const RUNNABLE: usize = 2;
/// Slow calls then take at most a twentieth of a process's time.
const REST: u32 = 20;

/// Moves the range's memory to huge pages, as [`collapse`] does, unless the kernel was slow at that
/// lately. Whether it has: nothing else differs.
///
/// ```
/// use portolan_sys::memory::{self, HUGE_PAGE};
///
/// let room = portolan_sys::shared::Window::create(2 * HUGE_PAGE)?;
/// let at = room.base().addr().next_multiple_of(HUGE_PAGE);
/// let _is_huge = memory::collapse_quickly(at, HUGE_PAGE);
/// # Ok::<(), portolan_sys::shared::WindowError>(())
/// ```
pub fn collapse_quickly(start: usize, len: usize) -> bool {
    static PACE: Pace = Pace(AtomicU64::new(0));
    static BEGUN: OnceLock<Instant> = OnceLock::new();
    let begun = BEGUN.get_or_init(Instant::now);
    PACE.unless_slow(
        || begun.elapsed(),
        || !is_busy() && collapse(start, len).unwrap_or(false),
    )
}

/// Whether more threads want to run than the kernel's own can wait for. A machine that does not say
/// counts as busy: a wait costs more than small pages do.
fn is_busy() -> bool {
    let said = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    runnable(&said).is_none_or(|threads| threads > RUNNABLE * processors)
}

/// How many threads run or could run, of what `/proc/loadavg` says: `0.20 0.18 0.12 3/200 4711`.
fn runnable(loadavg: &str) -> Option<usize> {
    let threads = loadavg.split_whitespace().nth(3)?;
    threads.split_once('/')?.0.parse().ok()
}

/// Until when huge pages are done without, in microseconds of a clock that its user has.
struct Pace(AtomicU64);

impl Pace {
    fn unless_slow(&self, clock: impl Fn() -> Duration, moves: impl FnOnce() -> bool) -> bool {
        let begun = clock();
        // Relaxed: a thread that misses another's note asks once more.
        if micros(begun) < self.0.load(Ordering::Relaxed) {
            return false;
        }
        let moved = moves();
        let ended = clock();
        let took = ended.saturating_sub(begun);
        if took >= SLOW {
            self.0
                .fetch_max(micros(ended + REST * took), Ordering::Relaxed);
        }
        moved
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Asks `pace` to move something that takes `took`; whether it was asked.
    fn asks(pace: &Pace, now: &Cell<Duration>, took: Duration) -> bool {
        pace.unless_slow(
            || now.get(),
            || {
                now.set(now.get() + took);
                true
            },
        )
    }

    #[test]
    fn who_wants_to_run_is_read_where_the_kernel_says_it() {
        assert_eq!(runnable("0.20 0.18 0.12 3/200 4711\n"), Some(3));
        for garbage in ["", "0.20 0.18 0.12", "0.20 0.18 0.12 3 4711", "a b c -1/2"] {
            assert_eq!(runnable(garbage), None, "{garbage}");
        }
        let said = std::fs::read_to_string("/proc/loadavg").unwrap();
        assert!(runnable(&said) > Some(0), "this thread runs: {said}");
    }

    #[test]
    fn after_a_slow_call_there_is_none_for_twenty_times_as_long() {
        let (pace, now) = (Pace(AtomicU64::new(0)), Cell::new(Duration::ZERO));
        let quick = Duration::from_millis(1);
        assert!(asks(&pace, &now, quick));
        assert!(asks(&pace, &now, SLOW));
        assert!(!asks(&pace, &now, quick));
        now.set(now.get() + SLOW * REST - Duration::from_micros(1));
        assert!(!asks(&pace, &now, quick));
        now.set(now.get() + Duration::from_micros(1));
        assert!(asks(&pace, &now, quick));
        assert!(asks(&pace, &now, quick));
    }
}
