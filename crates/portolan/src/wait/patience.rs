//! A waiting thread looks for an adaptive, bounded time, then sleeps.
//!
//! Looking pays when the other side runs on another processor and answers within about the
//! price of a wake. So the time grows while looking succeeds and shrinks while it does not,
//! and on one processor it is 0.
//!
//! Two threads that wait for one another could keep each other asleep so: each answers only after
//! its own wake, and so too late for the other. Therefore:
//!
//! - **P1** A thread that has not looked for a while tries it now and then, for twice as long as it
//!   has slept lately: the other thread's wake and answer fall within.
//! - **P2** A try that succeeds is followed by others as long, so that the other side has its
//!   chance.
//! - **P3** A thread that notices that it slept much shorter than before tries at once: the other
//!   side looks.
//! - **P4** Tries become rare while they bring nothing but what sleeping brings.
//! - **P5** After a try that failed, P3 is off until P1 tries again. Otherwise two threads of one
//!   processor would try for ever: while one looks in vain the other one sleeps longer, and its next
//!   sleep, shorter again, would be taken for the sign of P3.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How a receiver waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Waiting {
    /// Spin for an adaptive time, then sleep.
    #[default]
    Adaptive,
    /// Never sleep: lowest latency, one processor at full load.
    Poll,
    /// Sleep at once.
    Sleep,
}

/// Looks for at most this long before sleeping: about the price of a wake across processors.
const MOST: Duration = Duration::from_micros(25);
/// Less than this is not worth beginning.
const LEAST: Duration = Duration::from_nanos(400);
/// Before anything is known.
const FIRST: Duration = Duration::from_micros(6);
/// Of so many waits in a row that do without looking, the last one tries it; more, up to so
/// many, while that does not make anything better.
const EVERY: (u32, u32) = (16, 1024);
/// Waits after a try that look as long as it did.
const HELD: u32 = 8;
/// A thread that sleeps longer than this does so because there is nothing to do.
const LOCKED: Duration = Duration::from_micros(250);

/// The first looks are made without a pause.
const EAGER: u32 = 32;
/// Looks between two looks at the clock.
const LOOKS: u32 = 256;

/// How long looking has paid lately; one for each waiter. Knows no clock.
#[derive(Debug)]
pub(crate) struct Patience {
    /// To look for this long.
    time: Duration,
    /// How long it slept lately.
    slept: Duration,
    /// Waits until the next try, and from one to the next.
    until: u32,
    every: u32,
    /// Waits that go on trying, and for how long each.
    held: u32,
    hold: Duration,
    /// This is a try.
    tries: bool,
    /// Waits until a shorter sleep makes it try again (P5).
    ignores: u32,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            time: FIRST,
            slept: Duration::ZERO,
            until: EVERY.0,
            every: EVERY.0,
            held: 0,
            hold: Duration::ZERO,
            tries: false,
            ignores: 0,
        }
    }
}

impl Patience {
    /// Begins a wait: how long to look this time, if there are other processors.
    pub(crate) fn begin(&mut self, waiting: Waiting) -> Looking {
        let time = match waiting {
            Waiting::Poll => Duration::MAX,
            Waiting::Adaptive if may_spin() => self.look_for(),
            _ => Duration::ZERO,
        };
        Looking {
            time,
            looks: 0,
            begun: None,
        }
    }

    /// How long to look this time.
    fn look_for(&mut self) -> Duration {
        self.ignores = self.ignores.saturating_sub(1);
        if self.held > 0 {
            self.held -= 1;
            return self.hold.max(self.time);
        }
        if self.time >= LEAST {
            return self.time;
        }
        if self.until > 0 {
            self.until -= 1;
            return Duration::ZERO;
        }
        self.until = self.every;
        if self.slept > LOCKED {
            return LEAST;
        }
        // P1.
        self.tries = true;
        (2 * self.slept).max(MOST)
    }

    /// Whether looking has paid lately.
    #[inline]
    pub(crate) fn spins(&self) -> bool {
        (self.time >= LEAST || self.held > 0) && may_spin()
    }

    /// Something came while it looked.
    pub(crate) fn paid(&mut self, looking: &Looking) {
        if looking.time < Duration::MAX {
            self.came_after(looking.took());
        }
    }

    fn came_after(&mut self, took: Duration) {
        if core::mem::take(&mut self.tries) {
            // P2.
            self.held = HELD;
            self.hold = (2 * self.slept).max(MOST);
            // P4.
            let better = took * 4 < self.slept;
            self.every = if better {
                EVERY.0
            } else {
                (2 * self.every).min(EVERY.1)
            };
            self.until = self.every;
        }
        if took <= MOST {
            self.time = (self.time.max(LEAST) + took).min(MOST);
        }
    }

    /// Nothing came while it looked, and it slept: this long together.
    pub(crate) fn slept(&mut self, looking: &Looking, took: Duration) {
        if looking.time < Duration::MAX {
            self.came_asleep(looking.time > Duration::ZERO, took);
        }
    }

    fn came_asleep(&mut self, looked: bool, took: Duration) {
        if looked {
            self.time /= 2;
        }
        if core::mem::take(&mut self.tries) {
            self.every = (2 * self.every).min(EVERY.1);
            self.until = self.every;
            // P5.
            self.ignores = self.every;
        }
        if took * 4 < self.slept * 3 && self.ignores == 0 {
            // P3.
            self.until = 0;
        }
        self.slept = (3 * self.slept + took.min(4 * LOCKED)) / 4;
    }
}

/// A wait, as far as it looks.
#[derive(Debug)]
pub(crate) struct Looking {
    time: Duration,
    looks: u32,
    /// When the first looks were over.
    begun: Option<Instant>,
}

impl Looking {
    /// Whether to look once more; pauses before that.
    #[inline]
    pub(crate) fn again(&mut self) -> bool {
        self.again_after(1)
    }

    /// Whether to look so many times more, which divide [`LOOKS`].
    #[inline]
    pub(crate) fn again_after(&mut self, looks: u32) -> bool {
        if self.looks >= EAGER {
            std::hint::spin_loop();
        }
        let goes_on = !self.is_time_for_more() || self.has_time();
        self.looks = self.looks.wrapping_add(looks);
        goes_on
    }

    /// Whether this is a look now and then, at what changes seldom, and at deadlines.
    #[inline]
    pub(crate) fn is_time_for_more(&self) -> bool {
        self.looks.is_multiple_of(LOOKS)
    }

    fn has_time(&mut self) -> bool {
        if self.looks == 0 || self.time == Duration::MAX {
            return self.time > Duration::ZERO;
        }
        let begun = *self.begun.get_or_insert_with(Instant::now);
        begun.elapsed() < self.time
    }

    fn took(&self) -> Duration {
        // The first looks are worth no look at a clock.
        self.begun.map_or(Duration::ZERO, |begun| begun.elapsed())
    }

    /// When it began, for a thread that is about to sleep.
    pub(crate) fn begun(&self) -> Instant {
        self.begun.unwrap_or_else(Instant::now)
    }
}

/// Whether another processor could bring what we wait for while we spin.
fn may_spin() -> bool {
    static MANY: OnceLock<bool> = OnceLock::new();
    *MANY.get_or_init(portolan_sys::machine::spin_hint)
}

/// How to wait where `busy` threads have to run at once for anything to come.
pub(crate) fn waiting_beside(busy: usize) -> Waiting {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    let processors = *PROCESSORS
        .get_or_init(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
    if processors < busy {
        Waiting::Sleep
    } else {
        Waiting::Adaptive
    }
}

/// A sender's short spin for room.
pub(crate) struct Backoff(u32);

impl Backoff {
    pub(crate) fn for_room() -> Self {
        Self(if may_spin() { 64 } else { 0 })
    }

    /// Pauses and says whether to look again.
    pub(crate) fn spin(&mut self) -> bool {
        std::hint::spin_loop();
        self.0 = self.0.saturating_sub(1);
        self.0 > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: Duration = Duration::from_nanos(500);

    /// One of two who wait for each other.
    struct Side {
        patience: Patience,
        /// It slept when it was last answered.
        slept: bool,
    }

    /// A waiter that has given up looking long ago, and tries again after `until` waits.
    fn asleep(until: u32, slept: Duration) -> Side {
        let patience = Patience {
            time: Duration::ZERO,
            slept,
            until,
            ..Patience::default()
        };
        Side {
            patience,
            slept: true,
        }
    }

    impl Side {
        /// Waits for what comes after `others`, the time that the other side takes.
        fn wait(&mut self, others: Duration, wake: Duration) {
            let time = self.patience.look_for();
            self.slept = others > time;
            if self.slept {
                self.patience
                    .came_asleep(time > Duration::ZERO, others + wake);
            } else {
                self.patience.came_after(others);
            }
        }
    }

    /// Calls, there and back; how many until neither sleeps for a while.
    fn calls_until_awake(a: &mut Side, b: &mut Side, wake: Duration, calls: u32) -> Option<u32> {
        let (mut since, mut now) = (0, 0);
        while now < calls {
            now += 1;
            // Each takes its own wake, and then its time to answer.
            let takes = |side: &Side| ANSWER + if side.slept { wake } else { Duration::ZERO };
            let others = takes(b);
            a.wait(others, wake);
            let others = takes(a);
            b.wait(others, wake);
            if a.slept || b.slept {
                since = now;
            }
        }
        (since < calls / 2).then_some(since)
    }

    #[test]
    fn two_that_keep_each_other_asleep_find_out_of_it() {
        for wake in [2, 5, 22, 50, 100].map(Duration::from_micros) {
            let both = 2 * wake + ANSWER;
            for phases in 0..EVERY.0 * EVERY.0 {
                let mut a = asleep(phases % EVERY.0, both);
                let mut b = asleep(phases / EVERY.0, both);
                let calls = calls_until_awake(&mut a, &mut b, wake, 400);
                assert!(
                    calls.is_some_and(|calls| calls < 100),
                    "{wake:?}, {phases}: {calls:?}"
                );
            }
        }
    }

    #[test]
    fn two_that_have_tried_in_vain_for_long_find_out_of_it() {
        // They shared a processor, and have one each now.
        for wake in [5, 22, 100].map(Duration::from_micros) {
            let both = 2 * wake + ANSWER;
            let [mut a, mut b] = [100, 900].map(|until| asleep(until, both));
            for side in [&mut a, &mut b] {
                side.patience.every = EVERY.1;
                side.patience.ignores = side.patience.until;
            }
            let calls = calls_until_awake(&mut a, &mut b, wake, 10_000);
            assert!(calls.is_some_and(|c| c < 3_000), "{wake:?}: {calls:?}");
        }
    }

    #[test]
    fn an_interruption_does_not_put_them_to_sleep_for_good() {
        let wake = Duration::from_micros(22);
        let (mut a, mut b) = (asleep(0, 2 * wake), asleep(3, 2 * wake));
        assert!(calls_until_awake(&mut a, &mut b, wake, 200).is_some());
        for interrupted in 0..50 {
            // Another program had a processor for a while.
            a.wait(Duration::from_millis(3), wake);
            if interrupted % 3 == 0 {
                b.wait(Duration::from_millis(3), wake);
            }
            let calls = calls_until_awake(&mut a, &mut b, wake, 400);
            assert!(calls.is_some_and(|c| c < 100), "{interrupted}: {calls:?}");
        }
    }

    #[test]
    fn two_of_one_processor_hardly_look() {
        for switch in [1, 3, 10].map(Duration::from_micros) {
            for phases in 0..EVERY.0 * EVERY.0 {
                let mut a = asleep(phases % EVERY.0, switch).patience;
                let mut b = asleep(phases / EVERY.0, switch).patience;
                let mut looked = Duration::ZERO;
                let calls = 5_000;
                let mut last = Duration::ZERO;
                for _ in 0..calls {
                    // Each looks in vain, because the other one runs only when it sleeps.
                    let first = a.look_for();
                    b.came_asleep(last > Duration::ZERO, last + first + ANSWER + switch);
                    last = b.look_for();
                    a.came_asleep(first > Duration::ZERO, first + last + ANSWER + switch);
                    looked += first + last;
                }
                let each = looked / calls;
                assert!(each < switch / 4, "{switch:?}, {phases}: {each:?} a call");
            }
        }
    }

    #[test]
    fn who_is_answered_late_hardly_looks() {
        for late in [100, 150, 240, 1_000, 100_000].map(Duration::from_micros) {
            let mut patience = Patience::default();
            let (mut looked, mut waited) = (Duration::ZERO, Duration::ZERO);
            for _ in 0..20_000 {
                let time = patience.look_for();
                looked += time.min(late);
                waited += late;
                if late > time {
                    patience.came_asleep(time > Duration::ZERO, late);
                } else {
                    patience.came_after(late);
                }
            }
            assert!(looked < waited / 50, "{late:?}: {looked:?} of {waited:?}");
        }
    }

    #[test]
    fn who_is_answered_soon_looks_and_never_longer_than_a_wake_costs() {
        let mut patience = Patience::default();
        for _ in 0..1_000 {
            let time = patience.look_for();
            assert!(time >= ANSWER && time <= MOST, "{time:?}");
            patience.came_after(ANSWER);
        }
    }
}
