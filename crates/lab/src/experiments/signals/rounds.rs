//! Runs two threads on two processors: a message goes there in one of several ways, and back by a
//! cache line.
//!
//! ```text
//! driver:   send(n) ......................... sees n in the line
//! other:              receive(n), line := n
//! ```

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use portolan_measure::cpus;
use portolan_measure::sampler::{clock_cost, median};

use crate::steps::{Padded, until};

/// Rounds between two looks at the clock.
const BATCH: usize = 50;

/// How one message goes there.
pub(crate) struct Ends {
    /// Sends the message of this number.
    pub(super) send: Box<dyn FnMut(u64) + Send>,
    /// Waits for the message of this number; whether it came in time.
    pub(super) receive: Box<dyn FnMut(u64) -> bool + Send>,
    /// What the receiving thread does once before its first message; whether it is ready.
    prepare: Box<dyn FnMut() -> bool + Send>,
    /// The number of the last message.
    last: u64,
}

/// What a round takes, in seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    /// There and back.
    pub(super) whole: f64,
    /// Until the sender goes on; no number in rounds without a pause.
    pub(super) sender: f64,
}

impl Ends {
    pub(super) fn new(
        send: impl FnMut(u64) + Send + 'static,
        receive: impl FnMut(u64) -> bool + Send + 'static,
    ) -> Self {
        Self {
            send: Box::new(send),
            receive: Box::new(receive),
            prepare: Box::new(|| true),
            last: 0,
        }
    }

    /// With something that the receiving thread, another one in every slice, does first.
    pub(super) fn prepared(mut self, prepare: impl FnMut() -> bool + Send + 'static) -> Self {
        self.prepare = Box::new(prepare);
        self
    }

    /// What so many rounds between two processors take each. With a pause, after which a receiver that sleeps has
    /// fallen asleep, the sender's part is known as well; without, they follow on each other.
    /// `None` if the other thread did not run.
    pub(super) fn rounds(
        &mut self,
        [ours, other]: [usize; 2],
        rounds: u64,
        pause: Option<Duration>,
    ) -> Option<Round> {
        let back = Padded(AtomicU64::new(self.last));
        // One more, whose lines are where they were.
        let numbers = self.last + 1..=self.last + 1 + rounds;
        self.last = *numbers.end();
        let Self {
            send,
            receive,
            prepare,
            ..
        } = self;
        let ready = AtomicBool::new(false);
        let theirs = numbers.clone();
        std::thread::scope(|scope| {
            let echo = scope.spawn(|| {
                cpus::pin(other).ok()?;
                if !prepare() {
                    return None;
                }
                ready.store(true, Ordering::Release);
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
                if !until(|| ready.load(Ordering::Acquire)) {
                    return None;
                }
                let mut one = |number: u64| {
                    let start = Instant::now();
                    send(number);
                    let sent = start.elapsed();
                    until(|| back.0.load(Ordering::Acquire) == number)
                        .then(|| [start.elapsed(), sent].map(|time| time.as_secs_f64()))
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
                    return median(times).map(|whole| Round {
                        whole,
                        sender: f64::NAN,
                    });
                };
                let clock = clock_cost().as_secs_f64();
                let mut sender = Vec::new();
                for number in numbers {
                    let since = Instant::now();
                    while since.elapsed() < pause {
                        std::hint::spin_loop();
                    }
                    let [whole, sent] = one(number)?;
                    // Two looks at the clock lie in the one, one in the other.
                    times.push(whole - 2.0 * clock);
                    sender.push(sent - clock);
                }
                Some(Round {
                    whole: median(times)?,
                    sender: median(sender)?,
                })
            });
            let time = drive.join().ok().flatten();
            echo.join().ok().flatten()?;
            time
        })
    }
}

/// Calls on two processors: `there` tells the other thread, `back` tells this one. What each
/// of so many batches of so many calls takes; `None` if a thread did not run.
pub(crate) fn calls(
    there: &mut Ends,
    back: &mut Ends,
    [ours, other]: [usize; 2],
    batches: u64,
    batch: u64,
) -> Option<Vec<Duration>> {
    // The first one is not timed: its lines are where they were.
    let numbers = there.last + 1..=there.last + 1 + batches * batch;
    there.last = *numbers.end();
    let ready = AtomicBool::new(false);
    let theirs = numbers.clone();
    std::thread::scope(|scope| {
        let (send, receive) = (&mut there.send, &mut back.receive);
        let (answer, serve) = (&mut back.send, &mut there.receive);
        let (prepare, prepare_server) = (&mut back.prepare, &mut there.prepare);
        let server = scope.spawn(|| {
            cpus::pin(other).ok()?;
            if !prepare_server() {
                return None;
            }
            ready.store(true, Ordering::Release);
            for number in theirs {
                if !serve(number) {
                    return None;
                }
                answer(number);
            }
            Some(())
        });
        let client = scope.spawn(|| {
            cpus::pin(ours).ok()?;
            if !prepare() || !until(|| ready.load(Ordering::Acquire)) {
                return None;
            }
            let mut numbers = numbers;
            let mut call = || {
                let number = numbers.next()?;
                send(number);
                receive(number).then_some(())
            };
            call()?;
            let mut times = Vec::new();
            for _ in 0..batches {
                let start = Instant::now();
                for _ in 0..batch {
                    call()?;
                }
                times.push(start.elapsed());
            }
            Some(times)
        });
        let times = client.join().ok().flatten();
        server.join().ok().flatten()?;
        times
    })
}
