//! A reader waits for the next message, by itself or in a wait set.

use super::super::wake_writer;
use super::{ReadError, Reader, Took};
use crate::Deadline;
use crate::channel::Ring;
use crate::wait::{Armable, WaitSetError};
use portolan_shm::channel::Signalling;
use portolan_shm::channel::{Barriers, Finished, Reading};
use portolan_shm::mark;
use portolan_sys::{barrier, futex};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Looks at one of many writers that is in the way, before it is stepped over.
const STUCK: u32 = 16;

/// Long for a processor: a store is seen by the others within a microsecond, and at the next
/// tick of the kernel's at the latest. Slept once by a reader that has no other way.
const SEEN: Duration = Duration::from_millis(20);

/// The kernel's barriers, and time where it has none for us.
pub(in crate::channel) struct Kernel;

impl Barriers for Kernel {
    fn everywhere(&self) -> bool {
        barrier::everywhere()
    }

    fn by_time(&self) {
        std::thread::sleep(SEEN);
    }
}

impl Reader {
    /// Spins, then sleeps, until something comes.
    #[cold]
    pub(super) fn wait(&mut self, whole: bool, deadline: Deadline) -> Result<(), ReadError> {
        if deadline.is_now() {
            self.step_over()?;
            return Err(ReadError::TimedOut);
        }
        loop {
            self.check_interrupted()?;
            let mut looking = self.patience.begin(self.waiting);
            while looking.again() {
                // A look at one word is enough, but for a writer that has gone.
                let worth = self.has_more() || looking.is_time_for_more();
                if worth && self.take(whole)? != Took::Nothing {
                    self.patience.paid(&looking);
                    return Ok(());
                }
                if looking.is_time_for_more() {
                    if deadline.has_passed() {
                        return Err(ReadError::TimedOut);
                    }
                    self.check_interrupted()?;
                    self.step_over()?;
                }
            }
            if !self.step_over()? {
                let begun = looking.begun();
                self.sleep(deadline)?;
                self.patience.slept(&looking, begun.elapsed());
            }
            if self.take(whole)? != Took::Nothing {
                return Ok(());
            }
            if deadline.has_passed() {
                return Err(ReadError::TimedOut);
            }
        }
    }

    /// Where many write, one that stopped in the middle does not hold up the rest for long;
    /// whether one does.
    fn step_over(&mut self) -> Result<bool, ReadError> {
        if !self.ring.channel().is_stuck(&self.reading) {
            return Ok(false);
        }
        let at = self.reading.position();
        if self.stuck.0 != at {
            self.stuck = (at, 0);
        }
        self.stuck.1 += 1;
        if self.stuck.1 < STUCK {
            std::thread::yield_now();
            return Ok(true);
        }
        match self.ring.channel().step_over(&mut self.reading) {
            Some(range) => {
                self.draft.forget();
                Err(ReadError::Missed(range.into()))
            }
            None => Ok(false),
        }
    }

    /// Sleeps until woken, if there is nothing (M5).
    fn sleep(&mut self, deadline: Deadline) -> Result<(), ReadError> {
        let Some(bell) = self.arm() else {
            return Ok(());
        };
        self.check_interrupted()?;
        // It changes the doorbell after it has left, so a change tells of what this look misses.
        if self.nothing()? == Took::Nothing {
            mark!("channel.before_sleep");
            let doorbell = &self.ring.channel().head().sleep.doorbell;
            let _ = futex::wait(doorbell, bell, deadline.instant());
        }
        Ok(())
    }

    /// Whether a look may find something, or say something. If it may not, this is a look in vain:
    /// a reader that is polled may never make another one (M5).
    pub(crate) fn may_have(&mut self) -> bool {
        let channel = self.ring.channel();
        if self.over.is_some() || channel.has_more(&self.reading) || self.has_lost_writer() {
            return true;
        }
        self.tell_of_room();
        false
    }

    /// After a look in vain: wakes the writer if it waits for room (M5).
    #[inline]
    pub(super) fn tell_of_room(&mut self) {
        let channel = self.ring.channel();
        if channel.found_nothing(&mut self.reading) == Finished::Wake {
            wake_writer(channel);
        }
    }

    pub(super) fn has_lost_writer(&self) -> bool {
        let writer = self.ring.channel().writer();
        writer.left != self.left && (writer.space == 0 || self.tells_each)
    }

    /// From now on it is raised in a wait set, whose place `link` names, or for none (0).
    pub(in crate::channel) fn link(&self, link: u64) {
        self.ring.channel().link(&self.reading, link);
    }

    /// Arms it for a wait set, or for none (0); `false` if something is there.
    pub(crate) fn arm_for(&mut self, link: u64) -> bool {
        self.link(link);
        link == 0 || self.arm().is_some() && !self.may_have()
    }

    /// Why it cannot be woken in a wait set.
    pub(crate) fn why_not(&self) -> Option<WaitSetError> {
        why_not(&self.ring, &self.reading)
    }

    /// The word that changes when something comes.
    pub(crate) fn doorbell(&self) -> &std::sync::atomic::AtomicU32 {
        &self.ring.channel().head().sleep.doorbell
    }

    /// Whether a thread has asked to end the wait; asked once, told once.
    fn check_interrupted(&self) -> Result<(), ReadError> {
        match &self.interrupted {
            // SeqCst: pairs with `Interrupter::interrupt`.
            Some(asked) if asked.load(Ordering::SeqCst) && asked.swap(false, Ordering::SeqCst) => {
                Err(ReadError::Interrupted)
            }
            _ => Ok(()),
        }
    }

    /// Says that it sleeps: the value of the doorbell to sleep on, unless something is there.
    pub(crate) fn arm(&mut self) -> Option<u32> {
        let channel = self.ring.channel();
        let (bell, owed) = channel.arm(&mut self.reading, &Kernel);
        if owed == Finished::Wake {
            wake_writer(channel);
        }
        bell
    }
}

/// Why a reader that stands here cannot be woken in a wait set.
pub(in crate::channel) fn why_not(ring: &Ring, reading: &Reading) -> Option<WaitSetError> {
    let channel = ring.channel();
    if !channel.has_entry(reading) {
        return Some(WaitSetError::NoEntry);
    }
    let silent = channel.mode().signalling == Signalling::Never;
    silent.then_some(WaitSetError::NotSignalled)
}

impl Armable for Reader {
    fn kind(&self) -> &'static str {
        "the reader"
    }

    fn membership(&self) -> u64 {
        self.member().number
    }

    fn why_not(&self) -> Option<WaitSetError> {
        Self::why_not(self)
    }

    fn may_have(&mut self) -> bool {
        Self::may_have(self)
    }

    fn arm_for(&mut self, link: u64) -> bool {
        Self::arm_for(self, link)
    }
}
