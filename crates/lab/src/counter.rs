//! Counts instructions by the processor's counter, where it lets us.

use perf_event::Builder;
use perf_event::events::Hardware;

/// Calls over which instructions are counted; starting and stopping the counter, which is
/// counted in part, goes under in so many.
const CALLS: u32 = 2_000;

/// Rounds over which what is put somewhere and taken again is counted.
const ROUNDS: u32 = 200;

/// Counts the calling thread's instructions.
pub(crate) struct Instructions {
    counter: perf_event::Counter,
    /// Those that the kernel executes for us as well.
    kernel: bool,
}

impl Instructions {
    /// Why there are none, if so: many hypervisors hide the counters.
    pub(crate) fn open() -> Result<Self, String> {
        let counting = |kernel: bool| {
            Builder::new(Hardware::INSTRUCTIONS)
                .exclude_kernel(!kernel)
                .build()
        };
        let (counter, kernel) = match counting(true) {
            Ok(counter) => (counter, true),
            // Unprivileged programs may count their own at most.
            Err(_) => match counting(false) {
                Ok(counter) => (counter, false),
                Err(error) => {
                    return Err(format!(
                        "the processor's counters are not to be had here ({error}): a hypervisor \
                         hides them, or the system forbids them"
                    ));
                }
            },
        };
        Ok(Self { counter, kernel })
    }

    /// What is counted, for people.
    pub(crate) fn what(&self) -> &'static str {
        if self.kernel {
            "in user mode and in the kernel"
        } else {
            "in user mode; this system does not let us count the kernel's"
        }
    }

    /// Instructions of one call of `work`, on average.
    pub(crate) fn each(&mut self, mut work: impl FnMut()) -> Option<f64> {
        let before = self.counter.read().ok()?;
        self.counter.enable().ok()?;
        for _ in 0..CALLS {
            work();
        }
        self.counter.disable().ok()?;
        let counted = self.counter.read().ok()?.checked_sub(before)?;
        Some(counted as f64 / f64::from(CALLS))
    }

    /// Instructions of `put`, and of `take` after it, on average over rounds of both; without what
    /// starting and stopping the counter adds.
    pub(crate) fn of_rounds<T>(
        &mut self,
        on: &mut T,
        mut put: impl FnMut(&mut T),
        mut take: impl FnMut(&mut T),
    ) -> Option<[f64; 2]> {
        let mut sums = [0_u64; 3];
        for _ in 0..ROUNDS {
            let counts = [
                self.once(|| {})?,
                self.once(|| put(on))?,
                self.once(|| take(on))?,
            ];
            for (sum, count) in sums.iter_mut().zip(counts) {
                *sum += count;
            }
        }
        let [nothing, put, take] = sums.map(|sum| sum as f64 / f64::from(ROUNDS));
        Some([put, take].map(|count| (count - nothing).max(0.0)))
    }

    fn once(&mut self, work: impl FnOnce()) -> Option<u64> {
        let before = self.counter.read().ok()?;
        self.counter.enable().ok()?;
        work();
        self.counter.disable().ok()?;
        self.counter.read().ok()?.checked_sub(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;

    #[test]
    fn a_longer_loop_has_more_instructions_or_a_reason_is_given() {
        let mut counter = match Instructions::open() {
            Ok(counter) => counter,
            Err(why) => {
                assert!(why.contains("counters"), "{why}");
                return;
            }
        };
        let mut turns = |turns: u64| {
            counter.each(|| {
                for turn in 0..turns {
                    black_box(turn);
                }
            })
        };
        assert!(turns(1000) > turns(10), "{}", counter.what());
        let turn = |turns: &mut u64, times: u64| {
            for turn in 0..times {
                *turns = black_box(turn);
            }
        };
        let rounds = counter.of_rounds(&mut 0, |on| turn(on, 10), |on| turn(on, 1000));
        let [few, many] = rounds.unwrap();
        assert!(few < many, "{few} {many}");
    }
}
