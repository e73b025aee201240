//! Adds handlers and gives them up without the lock, because its holder may be stopped.

use super::{Crowded, HandlerEntry, HandlerState, Ranges};
use crate::atomic::Ordering;
use crate::mark;
use portolan_abi::signal::blocks;

impl<'a> Ranges<'a> {
    /// Claims a free handler for `space`. Without the lock; others may claim at the same time.
    pub fn claim(&self, space: u8) -> Option<u16> {
        let full = usize::try_from(self.line.full.load(Ordering::Relaxed)).ok()?;
        let indices = (0..=u16::MAX).zip(self.handlers).skip(full);
        let mut free = indices.filter(|(_, entry)| entry.state() == HandlerState::Free);
        free.find(|(index, entry)| self.claim_entry(*index, entry, space))
            .map(|(index, _)| index)
    }

    /// Gives up a handler that was claimed, and not added.
    pub fn unclaim(&self, index: u16, space: u8) {
        if let Some(entry) = self.handlers.get(usize::from(index)) {
            let _ = entry.state.compare_exchange(
                HandlerState::Disabled { space }.pack(),
                HandlerState::Free.pack(),
                Ordering::Release,
                Ordering::Relaxed,
            );
        }
    }

    /// Makes a handler that `space` has claimed tell `fifo` of the bytes from `start` up to `end`,
    /// although another thread has the lock.
    pub fn add_unlisted(
        &self,
        index: u16,
        (start, end): (u64, u64),
        fifo: u32,
        delivery: u32,
    ) -> Result<(), Crowded> {
        let (_, entry) = self.room_for(index, start, end)?;
        let HandlerState::Disabled { space } = entry.state() else {
            return Ok(());
        };
        entry.start.store(start, Ordering::Relaxed);
        entry.end.store(end, Ordering::Relaxed);
        entry.fifo.store(fifo, Ordering::Relaxed);
        entry.delivery.store(delivery, Ordering::Relaxed);
        // Release: a thread that finds it finds its range.
        entry
            .state
            .store(HandlerState::Unlisted { space }.pack(), Ordering::Release);
        mark!("signal.unlisted");
        // The line of no return. After the state: a thread that lists handlers, and takes the bit
        // back, has seen this one, or fails to take it back. Release: pairs with `find` and
        // `sweep`.
        let unlisted = &self.line.unlisted;
        let mut word = unlisted.load(Ordering::Relaxed);
        while let Err(now) = unlisted.compare_exchange(
            word,
            word.wrapping_add(2) | 1,
            Ordering::AcqRel,
            Ordering::Relaxed,
        ) {
            word = now;
        }
        Ok(())
    }

    /// Ends handler `index`, if it belongs to `space`, although another thread has the lock, which
    /// then takes it out. Signals that are on their way may still come.
    pub fn orphan(&self, index: u16, space: u8) {
        let Some(entry) = self.handlers.get(usize::from(index)) else {
            return;
        };
        if entry.disown(space) {
            mark!("signal.orphaned");
            // Release: pairs with `sweep`. A read-modify-write, for the barrier before the caller's
            // look at the lock.
            self.line.orphans.swap(1, Ordering::AcqRel);
        }
    }

    /// Whether there is something for [`Self::sweep`] to do.
    pub fn is_untidy(&self) -> bool {
        self.line.orphans.load(Ordering::Acquire) != 0
            || self.line.unlisted.load(Ordering::Acquire) & 1 != 0
    }

    /// The same without the table. Each entry is looked at once, so one that is being listed is
    /// found once.
    #[cold]
    pub(super) fn find_all(&self, offset: u64, mut each: impl FnMut(u16, &'a HandlerEntry)) {
        for (handler, entry) in (0..=u16::MAX).zip(self.handlers()) {
            let gets = matches!(
                entry.state(),
                HandlerState::Enabled { .. } | HandlerState::Unlisted { .. }
            );
            // Relaxed: written before it got signals, which we have acquired.
            if gets
                && entry.start.load(Ordering::Relaxed) <= offset
                && offset < entry.end.load(Ordering::Relaxed)
            {
                each(handler, entry);
            }
        }
    }

    /// Lists the handlers that were added unlisted; whether all are.
    pub(super) fn list(&self) -> bool {
        loop {
            // Acquire: pairs with `add_unlisted`.
            let word = self.line.unlisted.load(Ordering::Acquire);
            if word & 1 == 0 {
                return true;
            }
            let unlisted = (0..=u16::MAX).zip(self.handlers());
            // Every one is tried.
            let left = unlisted.filter(|(i, e)| !self.list_entry(*i, e)).count();
            if left > 0 {
                return false;
            }
            // Release: a thread that finds the bit gone finds the blocks. Fails if another handler
            // was added.
            let (listed, more) = (Ordering::AcqRel, Ordering::Relaxed);
            let taken_back = self
                .line
                .unlisted
                .compare_exchange(word, word & !1, listed, more);
            mark!("signal.listed");
            if taken_back.is_ok() {
                return true;
            }
        }
    }

    /// Lists a handler if it is unlisted; `false` if there is no room.
    fn list_entry(&self, index: u16, entry: &HandlerEntry) -> bool {
        let HandlerState::Unlisted { space } = entry.state() else {
            return true;
        };
        let (start, end) = (
            entry.start.load(Ordering::Relaxed),
            entry.end.load(Ordering::Relaxed),
        );
        if self.room_for(index, start, end).is_err() {
            return false;
        }
        for block in blocks(start, end) {
            // There already, if who was listing it has died.
            if self.place_of(block, index).is_none() {
                self.counted(block, true);
                self.insert(block, index);
            }
            mark!("signal.listing");
        }
        // Fails if it was given up meanwhile; then the blocks go with it. Release: pairs with
        // `find`.
        let _ = entry.state.compare_exchange(
            HandlerState::Unlisted { space }.pack(),
            HandlerState::Enabled { space }.pack(),
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        true
    }
}
