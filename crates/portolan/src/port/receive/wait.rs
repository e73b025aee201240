//! Waits for a port's next message: spins, then sleeps.

use super::interrupt::Until;
use super::{Origin, ReceiveError, ReceiveRight};
use crate::Deadline;
use crate::port::message::Message;
use crate::space::counters;
use crate::space::record::About;
use crate::wait::Armable;
use crate::wait::Waiting;
use portolan_abi::thread::{At, Wait};
use portolan_abi::trace::EventKind;
use portolan_shm::mark;
use portolan_sys::futex;
use std::sync::atomic::Ordering;

/// Looks at the next slot between looks at all else: events, and senders passed over.
const LOOK_AROUND: u32 = 64;

impl ReceiveRight {
    /// Spins, then sleeps, until something comes.
    #[cold]
    pub(super) fn wait(
        &mut self,
        message: &mut Message,
        deadline: Deadline,
    ) -> Result<Origin, ReceiveError> {
        let stop = None;
        self.wait_until(message, Until { deadline, stop })
    }

    /// The same, until it is stopped.
    pub(super) fn wait_until(
        &mut self,
        message: &mut Message,
        until: Until<'_>,
    ) -> Result<Origin, ReceiveError> {
        let mut told = false;
        let outcome = self.wait_for(message, until, &mut told);
        if told {
            counters::waits(&self.at.member, Wait::Nothing);
        }
        outcome
    }

    /// Shows observers that this thread spins. Not before it has for a while, because it would
    /// delay a receive that is about to find something.
    fn tell_spinning(&self, told: &mut bool) {
        if !*told {
            let port = At::Port(self.at.port.index);
            counters::waits(&self.at.member, Wait::Spinning(port));
            *told = true;
        }
    }

    fn wait_for(
        &mut self,
        message: &mut Message,
        until: Until<'_>,
        told: &mut bool,
    ) -> Result<Origin, ReceiveError> {
        if self.waiting == Waiting::Poll {
            return self.poll(message, until, told);
        }
        loop {
            let mut looking = self.patience.begin(self.waiting);
            let mut look = 0;
            while looking.again() {
                if (look % LOOK_AROUND == 0 || !self.at.queue().is_still(&self.cursor))
                    && let Some(origin) = self.look(message)?
                {
                    self.patience.paid(&looking);
                    return Ok(origin);
                }
                look += 1;
                if looking.is_time_for_more() {
                    self.tell_spinning(told);
                    if until.is_over() {
                        return Err(ReceiveError::TimedOut);
                    }
                }
            }
            let begun = looking.begun();
            self.sleep(until);
            self.patience.slept(&looking, begun.elapsed());
            // Asleep it said so, and awake again that it spins.
            *told = true;
            if let Some(origin) = self.look(message)? {
                return Ok(origin);
            }
            if until.is_over() {
                return Err(ReceiveError::TimedOut);
            }
        }
    }

    fn poll(
        &mut self,
        message: &mut Message,
        until: Until<'_>,
        told: &mut bool,
    ) -> Result<Origin, ReceiveError> {
        loop {
            for _ in 0..16 {
                let queue = self.at.queue();
                (0..LOOK_AROUND).find(|_| {
                    let stirs = !queue.is_still(&self.cursor);
                    if !stirs {
                        std::hint::spin_loop();
                    }
                    stirs
                });
                if let Some(origin) = self.look(message)? {
                    return Ok(origin);
                }
                self.tell_spinning(told);
            }
            self.settle();
            if until.is_over() {
                return Err(ReceiveError::TimedOut);
            }
        }
    }

    /// Sleeps until woken, if there is nothing (Q6).
    fn sleep(&mut self, until: Until<'_>) {
        // The last look may have retired slots that senders wait for.
        self.settle();
        self.hush();
        let sleep = &self.at.queue().port.sleep;
        let bell = sleep.doorbell.load(Ordering::SeqCst);
        if self.arm() && !until.is_stopped() {
            let port = At::Port(self.at.port.index);
            counters::waits(&self.at.member, Wait::Sleeping(port));
            mark!("sleep.before_futex");
            probe!(SleepArmed);
            let about = About::port(self.at.port.index);
            let _ = self.at.member.during(EventKind::Sleep, about, || {
                let doorbell = &self.at.queue().port.sleep.doorbell;
                futex::wait(doorbell, bell, until.deadline.instant())
            });
            probe!(SleepWoken);
            counters::waits(&self.at.member, Wait::Spinning(port));
        }
        self.disarm();
        probe!(SleepDisarmed);
    }

    /// Says to all senders that this port must be woken; `false` if something is there.
    pub(crate) fn arm(&mut self) -> bool {
        let queue = self.at.queue();
        queue.arm(&mut self.cursor) && queue.port.sleep.events_of(self.at.port.generation) == 0
    }

    pub(crate) fn disarm(&mut self) {
        self.at.queue().disarm(&mut self.cursor);
    }
}

impl Armable for ReceiveRight {
    fn kind(&self) -> &'static str {
        "the port"
    }

    fn membership(&self) -> u64 {
        self.at.member.number
    }

    fn may_have(&mut self) -> bool {
        Self::may_have(self)
    }

    fn arm_for(&mut self, link: u64) -> bool {
        self.disarm();
        if link != 0 {
            self.settle();
        }
        // W2 of wait sets: linked before it is armed, unlinked after it is disarmed. SeqCst: pairs
        // with the look at the link in `wake`, and comes before the receiver reads its doorbell.
        let sleep = &self.at.queue().port.sleep;
        sleep.wait_set.store(link, Ordering::SeqCst);
        link == 0 || self.arm()
    }
}
