//! Readers have handlers, which are signalled the addresses of units (M8).

use super::{ARMING, Barriers, Channel, HANDLED, NoEntry, Pen, ReaderState, Reading};
use crate::atomic::{Ordering, fence};
use crate::mark;
use portolan_abi::channel::Stamp;

impl Channel<'_> {
    /// From now on writers signal the addresses of units. What was published before may not be
    /// signalled: the caller looks at it afterwards.
    ///
    /// # Errors
    ///
    /// [`NoEntry`]: a reader without an entry cannot say so.
    pub fn enable(&self, reading: &mut Reading, barriers: &impl Barriers) -> Result<(), NoEntry> {
        let entry = reading.entry().and_then(|index| self.readers.get(index));
        let entries = self.readers.len() as u64;
        let entry = entry.ok_or(NoEntry { entries })?;
        entry.handled.store(1, Ordering::Relaxed);
        let sleepers = &self.head.sleep.sleepers;
        // Release: pairs with `prune`, which may see this before the mark.
        sleepers.fetch_add(ARMING, Ordering::AcqRel);
        sleepers.fetch_or(HANDLED, Ordering::AcqRel);
        mark!("channel.enabled");
        // Pairs with the writer's barrier between publishing and its look (M5); or the writer
        // makes none, and is made to (M6).
        fence(Ordering::SeqCst);
        self.fence_relaxed(reading, barriers);
        Ok(())
    }

    /// The reader has no handlers any more.
    pub fn disable(&self, reading: &Reading) {
        if let Some(entry) = reading.entry().and_then(|index| self.readers.get(index)) {
            entry.handled.store(0, Ordering::Relaxed);
            self.prune();
        }
    }

    /// Whether units are to be signalled, as far as this thread sees.
    #[inline]
    pub fn is_handled(&self) -> bool {
        self.head.sleep.sleepers.load(Ordering::Relaxed) & HANDLED != 0
    }

    /// Whether readers sleep, as far as this thread sees.
    #[inline]
    pub fn has_sleepers(&self) -> bool {
        self.head.sleep.sleepers.load(Ordering::Relaxed) & super::ASLEEP != 0
    }

    /// Takes the mark back if no live reader has handlers. A writer calls this that has signalled
    /// no handler, and a reader that has none any more.
    pub fn prune(&self) {
        let sleepers = &self.head.sleep.sleepers;
        // Acquire: pairs with `enable`; a reader that is counted by now has its entry say so.
        let seen = sleepers.load(Ordering::Acquire);
        if seen & HANDLED == 0 {
            return;
        }
        let wants = |entry: &super::ReaderEntry| {
            let live = matches!(entry.state(), ReaderState::Live { .. });
            live && entry.handled.load(Ordering::Relaxed) != 0
        };
        if !self.readers.iter().any(wants) {
            let none = seen & !HANDLED;
            // Relaxed: if it fails, a reader has enabled or armed, or a writer has woken some.
            let _ = sleepers.compare_exchange(seen, none, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// The position of the last unit that was published; 0 if there is none.
    pub fn last_published(&self) -> u64 {
        let mut next = self.head.writer.next.load(Ordering::Acquire);
        // It may have died between publishing and saying so.
        for _ in 0..self.shape.units {
            let stamp = self.unit(next).look();
            if !Stamp::done(next, 0).is_same_use(stamp) {
                break;
            }
            next += 1;
        }
        next.saturating_sub(1)
    }
}

impl Pen {
    /// The positions of units whose addresses it owes handlers; they are the caller's to signal
    /// from now on.
    pub fn take_due(&mut self) -> Vec<u64> {
        core::mem::take(&mut self.due)
    }

    /// Notes that the unit at `position` ends a signalling unit, if readers have handlers.
    pub(super) fn owes(&mut self, position: u64, sleepers: u64) {
        if sleepers & HANDLED != 0 {
            self.due.push(position);
        }
    }
}
