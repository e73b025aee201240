//! Measures each step of telling another thread alone: in this process and in cache, unless it is a
//! step between two processors.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use portolan::{Domain, Listener, ListenerOptions, Segment};
use portolan_measure::cpus;
use portolan_measure::sampler::median;
use portolan_sys::futex;

use crate::clock;
use crate::error::{LabError, Result};

/// Signals, or addresses, that are put somewhere and then taken: less than a FIFO holds. Fewer in a debug
/// build, whose figures nobody wants: each instruction of it is stepped through.
pub(crate) const BURST: usize = if cfg!(debug_assertions) { 16 } else { 64 };
/// How long a sleeper is given to fall asleep.
const ASLEEP: Duration = Duration::from_micros(50);
/// A wait for the other processor that takes this long is given up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Looks until it is so; false if that takes too long.
pub(crate) fn until(mut so: impl FnMut() -> bool) -> bool {
    let mut since = None;
    let mut looks = 0_u64;
    while !so() {
        looks += 1;
        if looks.is_multiple_of(1 << 16)
            && since.get_or_insert_with(Instant::now).elapsed() > PATIENCE
        {
            return false;
        }
    }
    true
}

/// Seconds that one call takes, over one batch.
pub(crate) fn once(least: Duration, work: impl FnMut()) -> f64 {
    clock::each(1, least, work).median()
}

/// The smallest system call.
pub(crate) fn trap() {
    black_box(rustix::process::getppid());
}

/// Signals of this process to itself.
pub(crate) struct Signals {
    segment: Segment,
    listener: Listener,
    /// Last: it is left after all that belongs to it.
    domain: Domain,
}

impl Signals {
    pub(crate) fn new() -> Result<Self> {
        let doing = "making a domain for signals";
        let domain = Domain::builder("lab-signals")
            .limit(64 << 20)
            .private()
            .map_err(LabError::library(doing))?;
        let segment = domain.make_segment(None, 2 * 4096);
        let segment = segment.map_err(LabError::library(doing))?;
        let listener = domain.listen(ListenerOptions::default());
        let mut listener = listener.map_err(LabError::library(doing))?;
        let start = segment.address();
        listener
            .on(start..start + 4096, |address| {
                black_box(address);
            })
            .map_err(LabError::library(doing))?;
        Ok(Self {
            segment,
            listener,
            domain,
        })
    }

    /// Finds out that an address has no handler.
    pub(crate) fn to_nobody(&self) {
        let address = self.segment.address() + 4096;
        black_box(self.domain.signal(black_box(address)).ok());
    }

    /// Signals a thread that is not waiting.
    pub(crate) fn push(&self) {
        let address = self.segment.address();
        black_box(self.domain.signal(black_box(address)).ok());
    }

    /// Takes all signals out of the FIFO, finding and calling the handler of each.
    pub(crate) fn take(&mut self) {
        black_box(self.listener.poll());
    }
}

/// A line of its own, and its neighbour, which processors fetch with it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

/// Addresses that a queue holds: more than a burst.
const QUEUED: usize = 2 * BURST;

/// A queue of addresses in shared memory with a lock: what there is without signals. Its
/// users must keep at most [`QUEUED`] addresses in it.
pub(crate) struct Locked {
    lock: Padded<AtomicBool>,
    /// Of what is taken next, and of what is put next.
    ends: Padded<[AtomicU64; 2]>,
    entries: Padded<[AtomicU64; QUEUED]>,
}

impl Locked {
    pub(crate) fn new() -> Self {
        Self {
            lock: Padded::default(),
            ends: Padded::default(),
            entries: Padded(std::array::from_fn(|_| AtomicU64::new(0))),
        }
    }

    fn locked<T>(&self, work: impl FnOnce(&[AtomicU64; 2]) -> T) -> T {
        // Acquire and Release: what the lock guards is relaxed.
        while self
            .lock
            .0
            .compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            std::hint::spin_loop();
        }
        let done = work(&self.ends.0);
        self.lock.0.store(false, Ordering::Release);
        done
    }

    fn entry(&self, position: u64) -> &AtomicU64 {
        let at = usize::try_from(position % QUEUED as u64).unwrap_or(0);
        &self.entries.0[at]
    }

    pub(crate) fn insert(&self, address: usize) {
        self.locked(|[_, tail]| {
            let position = tail.load(Ordering::Relaxed);
            self.entry(position)
                .store(black_box(address) as u64, Ordering::Relaxed);
            tail.store(position + 1, Ordering::Relaxed);
        });
    }

    pub(crate) fn remove(&self) -> Option<usize> {
        let found = self.locked(|[head, tail]| {
            let position = head.load(Ordering::Relaxed);
            if position == tail.load(Ordering::Relaxed) {
                return None;
            }
            head.store(position + 1, Ordering::Relaxed);
            Some(self.entry(position).load(Ordering::Relaxed))
        });
        found.and_then(|address| usize::try_from(address).ok())
    }

    /// Looks without the lock: what is there may be gone when it is taken.
    pub(crate) fn is_empty(&self) -> bool {
        let [head, tail] = &self.ends.0;
        head.load(Ordering::Relaxed) == tail.load(Ordering::Relaxed)
    }
}

/// Seconds that each of [`BURST`] puts takes, and each of as many takes after them: medians
/// of so many rounds.
pub(crate) fn bursts<T>(
    on: &mut T,
    rounds: usize,
    mut put: impl FnMut(&mut T),
    mut take: impl FnMut(&mut T),
) -> [f64; 2] {
    let each = |since: Instant| since.elapsed().as_secs_f64() / BURST as f64;
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..rounds.max(1) {
        let since = Instant::now();
        put(on);
        times[0].push(each(since));
        let since = Instant::now();
        take(on);
        times[1].push(each(since));
    }
    times.map(|times| median(times).unwrap_or(f64::NAN))
}

/// A burst of signals, each to a thread that is not waiting.
pub(crate) fn signal_burst(signals: &mut Signals) {
    (0..BURST).for_each(|_| signals.push());
}

/// A burst of addresses into the queue.
pub(crate) fn insert_burst(queue: &mut Locked) {
    (0..BURST).for_each(|address| queue.insert(address));
}

/// As many out of it.
pub(crate) fn remove_burst(queue: &mut Locked) {
    for _ in 0..BURST {
        black_box(queue.remove());
    }
}

/// [`bursts`] of signals.
pub(crate) fn signalled(signals: &mut Signals, rounds: usize) -> [f64; 2] {
    bursts(signals, rounds, signal_burst, Signals::take)
}

/// [`bursts`] of addresses.
pub(crate) fn locked(queue: &mut Locked, rounds: usize) -> [f64; 2] {
    bursts(queue, rounds, insert_burst, remove_burst)
}

/// What it takes to wake a sleeping thread of another processor: the call, and then the time
/// until the thread's answer is here. None if it did not run.
pub(crate) fn wake(ours: usize, other: usize, rounds: usize) -> Option<[f64; 2]> {
    let (bell, answer) = (AtomicU32::new(0), AtomicU32::new(0));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            cpus::pin(other).ok()?;
            let mut heard = 0;
            while !over.load(Ordering::Relaxed) {
                let deadline = Instant::now() + PATIENCE;
                let (futex::Wake::Woken | futex::Wake::Changed | futex::Wake::TimedOut) =
                    futex::wait(&bell, heard, Some(deadline));
                // Acquire and Release: nothing but the number itself is passed.
                heard = bell.load(Ordering::Acquire);
                answer.store(heard, Ordering::Release);
            }
            Some(())
        });
        let driver = scope.spawn(|| {
            cpus::pin(ours).ok()?;
            let mut times = [Vec::new(), Vec::new()];
            let mut number = 0;
            while times[0].len() < rounds {
                let begun = Instant::now();
                while begun.elapsed() < ASLEEP {
                    std::hint::spin_loop();
                }
                number += 1;
                let start = Instant::now();
                bell.store(number, Ordering::Release);
                let woken = futex::wake(&bell, 1);
                let called = start.elapsed();
                while answer.load(Ordering::Acquire) != number {
                    if start.elapsed() > PATIENCE {
                        return None;
                    }
                }
                let all = start.elapsed();
                // One that was awake was not interrupted.
                if woken == 1 {
                    times[0].push(called.as_secs_f64());
                    times[1].push((all - called).as_secs_f64());
                }
                if number > 1000 + 10 * u32::try_from(rounds).unwrap_or(u32::MAX / 16) {
                    return None;
                }
            }
            let [called, answered] = times.map(|times| median(times).unwrap_or(f64::NAN));
            Some([called, answered])
        });
        let times = driver.join().ok().flatten();
        over.store(true, Ordering::Relaxed);
        bell.fetch_add(1, Ordering::Release);
        futex::wake(&bell, 1);
        sleeper.join().ok().flatten()?;
        times
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_locked_queue_gives_back_what_was_put_in_in_its_order() {
        let queue = Locked::new();
        // Round its end, more than once.
        for start in (0..5 * QUEUED).step_by(BURST) {
            assert!(queue.is_empty());
            (start..start + BURST).for_each(|address| queue.insert(address));
            assert!(!queue.is_empty());
            for address in start..start + BURST {
                assert_eq!(queue.remove(), Some(address));
            }
            assert_eq!(queue.remove(), None);
        }
    }
}
