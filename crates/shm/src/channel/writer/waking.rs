//! A writer looks for readers that sleep, and waits for room itself (M5, M6).

use super::{Finished, NotWritten, Pen};
use crate::atomic::{Ordering, fence, store_load_barrier};
use crate::channel::{ASLEEP, Channel, HANDLED, Signalling};

impl Channel<'_> {
    /// A reader sleeps, or none has for a while.
    #[cold]
    pub(super) fn attend(&self, pen: &mut Pen, sleepers: u64) -> Finished {
        let relaxed = &self.head.writer.relaxed;
        if sleepers != 0 {
            pen.calm_since = pen.next;
            if core::mem::take(&mut pen.relaxed) {
                // Release: a thread that sees it sees what we published without a barrier.
                relaxed.store(0, Ordering::Release);
            }
            pen.owes(pen.next, sleepers);
            return if sleepers & (ASLEEP | HANDLED) != 0 {
                Finished::Wake
            } else {
                Finished::Done
            };
        }
        if (pen.may_relax)() {
            relaxed.store(1, Ordering::Relaxed);
            // Pairs with the barrier in `arm`: either the reader sees this, and has our
            // barrier made, or we see from now on that it sleeps.
            fence(Ordering::SeqCst);
            pen.relaxed = true;
        } else {
            pen.calm_since = pen.next;
        }
        Finished::Done
    }

    /// Whether a reader sleeps, or has handlers. If one does, the caller must wake all readers
    /// (M7), and signal the handlers (M8).
    #[inline]
    fn owed(&self) -> (Finished, u64) {
        store_load_barrier();
        let sleepers = self.head.sleep.sleepers.load(Ordering::Relaxed);
        if sleepers & (ASLEEP | HANDLED) == 0 {
            (Finished::Done, sleepers)
        } else {
            (Finished::Wake, sleepers)
        }
    }

    /// The same, after the unit at `position` was published.
    #[inline]
    pub(super) fn owed_at(&self, pen: &mut Pen, position: u64) -> Finished {
        let (finished, sleepers) = self.owed();
        pen.owes(position, sleepers);
        finished
    }

    /// Looks whether `units` more may be begun; if not, how many may.
    pub fn room_for(&self, pen: &mut Pen, units: u64) -> Option<u64> {
        match self.has_room(pen, units) {
            Err(NotWritten::Full { room, .. }) => Some(room),
            _ => None,
        }
    }

    /// Before the writer waits: readers that sleep over what is not signalled yet must make
    /// room.
    pub fn signal_now(&self, pen: &mut Pen) -> Finished {
        if self.mode.signalling == Signalling::Never {
            return Finished::Done;
        }
        pen.unsignalled = 0;
        pen.signals += 1;
        let finished = self.signal();
        let last = pen.next.saturating_sub(1);
        if finished == Finished::Wake && self.is_handled() && pen.due.last() != Some(&last) {
            pen.due.push(last);
        }
        finished
    }

    /// Whether a reader sleeps or has handlers, after something was written that was not signalled.
    pub fn signal(&self) -> Finished {
        // What was written comes first; pairs with the barrier in `arm` (M5).
        fence(Ordering::SeqCst);
        self.owed().0
    }

    /// Announces that the writer waits for `units` units; the value of its futex to sleep
    /// on, or `None` if there is room.
    pub fn wait_for_room(&self, pen: &mut Pen, units: u64) -> Option<u32> {
        let room = &self.head.room;
        let bell = room.room.load(Ordering::Acquire);
        room.waiting.swap(1, Ordering::AcqRel);
        // `has_room` begins with a barrier (M5), and takes this back if there is room.
        pen.limit_to(pen.next);
        self.has_room(pen, units).is_err().then_some(bell)
    }

    /// There is room: the writer does not wait any more. One that has died, or that gave up
    /// waiting, leaves this to the next one that finds room, and costs readers a wake at every
    /// quarter of a lap until then.
    pub(super) fn stop_waiting(&self) {
        let waiting = &self.head.room.waiting;
        // Relaxed: a reader that sees it late wakes us for nothing.
        if waiting.load(Ordering::Relaxed) != 0 {
            waiting.store(0, Ordering::Relaxed);
        }
    }
}
