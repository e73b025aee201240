//! Carries one cache line from core to core, which measures how near they are.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use portolan_measure::cpus::{self, Cpus};

use crate::clock::Timed;

/// Rounds of one batch.
const ROUNDS: u64 = 20_000;
/// A batch that takes this long is given up: the other thread does not run.
const PATIENCE: Duration = Duration::from_secs(2);

/// A line of its own, and its neighbour, which processors fetch with it.
#[repr(align(128))]
struct Line(AtomicU64);

/// Seconds that a line takes one way between our processor and the first other, over
/// `slices` batches. None with one processor, or if the other did not run.
pub(crate) fn one_way(cpus: &Cpus, slices: usize) -> Option<Timed> {
    if cpus.count() < 2 {
        return None;
    }
    between(cpus.ours, cpus.peer(0), slices)
}

/// The same between two processors. None if one did not run.
pub(crate) fn between(ours: usize, other: usize, slices: usize) -> Option<Timed> {
    let line = Line(AtomicU64::new(0));
    let end = ROUNDS * 2 * slices as u64;
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| {
            cpus::pin(other).ok()?;
            turns(&line.0, 1, end)
        });
        // A thread of its own, so that the caller stays where it is.
        let drive = scope.spawn(|| {
            cpus::pin(ours).ok()?;
            let mut times = Vec::new();
            for slice in 0..slices as u64 {
                let first = slice * ROUNDS * 2;
                // The first round of all waits for the other thread to start.
                turns(&line.0, first, first + 2)?;
                let start = Instant::now();
                turns(&line.0, first + 2, first + ROUNDS * 2)?;
                let elapsed = start.elapsed().as_secs_f64();
                times.push(elapsed / (ROUNDS * 2 - 2) as f64);
            }
            Some(Timed::of(times))
        });
        let times = drive.join().ok().flatten();
        echo.join().ok().flatten()?;
        times
    })
}

/// Adds one whenever the word says it is our turn, from `turn` in steps of two up to `end`.
fn turns(line: &AtomicU64, mut turn: u64, end: u64) -> Option<()> {
    let mut since = None;
    let mut looks = 0_u64;
    while turn < end {
        if line.load(Ordering::Acquire) == turn {
            line.store(turn + 1, Ordering::Release);
            turn += 2;
            (since, looks) = (None, 0);
            continue;
        }
        looks += 1;
        if looks.is_multiple_of(1 << 20)
            && since.get_or_insert_with(Instant::now).elapsed() > PATIENCE
        {
            return None;
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_takes_some_time() {
        let cpus = Cpus::choose();
        // None with one processor, or if the other thread did not get to run in time.
        if let Some(line) = one_way(&cpus, 2) {
            assert!(cpus.count() > 1 && line.median() > 0.0);
        }
    }
}
