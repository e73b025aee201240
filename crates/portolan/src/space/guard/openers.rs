//! Counts threads that are about to open pages, and waits for them.
//!
//! A fault handler that opens pages looks first whether it may. A thread that closes pages says
//! so, and then has to wait for handlers that looked before. Handlers that look afterwards do not
//! concern it, however many they are: so handlers are counted under one of two phases. The closing
//! thread turns the phase over and waits for the count of the old phase to become zero.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError};

#[derive(Default)]
pub(super) struct Openers {
    phase: AtomicU64,
    counts: [AtomicU32; 2],
    /// Held while one turns the phase over, so that the phase before has run empty.
    turning: Mutex<()>,
}

/// The phase under which a handler is counted.
#[must_use]
pub(super) struct Turn(usize);

impl Openers {
    fn count(&self, turn: usize) -> &AtomicU32 {
        &self.counts[turn % 2]
    }

    /// Before looking. Async-signal-safe.
    pub(super) fn enter(&self) -> Turn {
        loop {
            let phase = self.phase.load(Ordering::SeqCst);
            let turn = usize::from(phase % 2 == 1);
            // SeqCst: pairs with `wait`. It sees us, or we see what it said before.
            self.count(turn).fetch_add(1, Ordering::SeqCst);
            if self.phase.load(Ordering::SeqCst) == phase {
                return Turn(turn);
            }
            self.count(turn).fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// After opening, or not. Async-signal-safe.
    pub(super) fn leave(&self, turn: Turn) {
        // Release, and more: what we opened was open before.
        self.count(turn.0).fetch_sub(1, Ordering::SeqCst);
    }

    /// Waits for all who entered before. Not for handlers.
    pub(super) fn wait(&self) {
        fence(Ordering::SeqCst);
        if self
            .counts
            .iter()
            .all(|count| count.load(Ordering::SeqCst) == 0)
        {
            return;
        }
        let turning = self.turning.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.phase.fetch_add(1, Ordering::SeqCst);
        let old = self.count(usize::from(old % 2 == 1));
        while old.load(Ordering::SeqCst) != 0 {
            std::thread::yield_now();
        }
        drop(turning);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn who_waits_outlasts_those_before_and_not_those_after() {
        let openers = Openers::default();
        openers.wait();
        let before = openers.enter();
        let waited = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                openers.wait();
                waited.store(true, Ordering::SeqCst);
            });
            // It has turned the phase over, and waits.
            while openers.phase.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            let after = openers.enter();
            assert!(!waited.load(Ordering::SeqCst));
            openers.leave(before);
            while !waited.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            openers.leave(after);
        });
        openers.wait();
    }
}
