//! Two threads on two processors: there in one of several ways, and back by a cache line.
//!
//! ```text
//! driver:   send(n) ......................... sees n in the line
//! other:              receive(n), line := n
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use portolan_measure::cpus::{self, Cpus};
use portolan_measure::sampler::{clock_cost, median};

use crate::steps::PATIENCE;

/// Rounds between two looks at the clock.
const BATCH: usize = 50;

/// A line of its own, and its neighbour, which processors fetch with it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Padded<T>(pub(super) T);

/// How one message goes there.
pub(super) struct Ends {
    /// Sends the message of this number.
    pub(super) send: Box<dyn FnMut(u64) + Send>,
    /// Waits for the message of this number; whether it came in time.
    pub(super) receive: Box<dyn FnMut(u64) -> bool + Send>,
    /// The number of the last message.
    last: u64,
}

impl Ends {
    pub(super) fn new(
        send: impl FnMut(u64) + Send + 'static,
        receive: impl FnMut(u64) -> bool + Send + 'static,
    ) -> Self {
        Self {
            send: Box::new(send),
            receive: Box::new(receive),
            last: 0,
        }
    }

    /// Seconds that so many rounds take each. With a pause the receiver has fallen asleep
    /// before each of them; without, they follow on each other. `None` if the other thread
    /// did not run.
    pub(super) fn rounds(
        &mut self,
        cpus: &Cpus,
        rounds: u64,
        pause: Option<Duration>,
    ) -> Option<f64> {
        let (ours, other) = (cpus.ours, cpus.peer(0));
        let back = Padded(AtomicU64::new(self.last));
        // One more, which waits for the other thread to start.
        let numbers = self.last + 1..=self.last + 1 + rounds;
        self.last = *numbers.end();
        let Self { send, receive, .. } = self;
        let theirs = numbers.clone();
        std::thread::scope(|scope| {
            let echo = scope.spawn(|| {
                cpus::pin(other).ok()?;
                for number in theirs {
                    if !receive(number) {
                        return None;
                    }
                    // Release: with Acquire below; nothing but the number is passed.
                    back.0.store(number, Ordering::Release);
                }
                Some(())
            });
            let drive = scope.spawn(|| {
                cpus::pin(ours).ok()?;
                let mut one = |number: u64| {
                    let start = Instant::now();
                    send(number);
                    until(|| back.0.load(Ordering::Acquire) == number)
                        .then(|| start.elapsed().as_secs_f64())
                };
                let mut numbers = numbers;
                one(numbers.next()?)?;
                let mut times = Vec::new();
                let Some(pause) = pause else {
                    // In batches, so that the clock costs little and a pause spoils only one.
                    while !numbers.is_empty() {
                        let start = Instant::now();
                        let mut sent = 0_u32;
                        for number in numbers.by_ref().take(BATCH) {
                            send(number);
                            if !until(|| back.0.load(Ordering::Acquire) == number) {
                                return None;
                            }
                            sent += 1;
                        }
                        times.push(start.elapsed().as_secs_f64() / f64::from(sent));
                    }
                    return median(times);
                };
                let clock = clock_cost().as_secs_f64();
                for number in numbers {
                    let since = Instant::now();
                    while since.elapsed() < pause {
                        std::hint::spin_loop();
                    }
                    times.push(one(number)? - clock);
                }
                median(times)
            });
            let time = drive.join().ok().flatten();
            echo.join().ok().flatten()?;
            time
        })
    }
}

/// Looks until it is so; false if that takes too long.
pub(super) fn until(mut so: impl FnMut() -> bool) -> bool {
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
