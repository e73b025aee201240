//! Limits how many calls run at a time.

use super::link;
use crate::Deadline;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

/// No thread is free, and the queue is full.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Full;

#[derive(Debug)]
pub(super) struct Room {
    most: usize,
    taken: AtomicUsize,
    /// Threads that wait for a turn to be given back.
    waiting: AtomicUsize,
    lock: Mutex<()>,
    back: Condvar,
}

/// A call's place; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Turn(Arc<Room>);

impl Room {
    pub(super) fn of(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            taken: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            lock: Mutex::default(),
            back: Condvar::new(),
        })
    }

    /// A turn, if there is one by then.
    pub(super) fn take(self: &Arc<Self>, until: Deadline) -> Result<Turn, Full> {
        match self.try_take() {
            Err(Full) if !until.is_now() => self.wait(until),
            other => other,
        }
    }

    fn try_take(self: &Arc<Self>) -> Result<Turn, Full> {
        let more = |taken| (taken < self.most).then_some(taken + 1);
        // SeqCst: pairs with a turn's drop, which comes before a look at who waits.
        let taken = self
            .taken
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
        taken.map(|_| Turn(Arc::clone(self))).map_err(|_| Full)
    }

    #[cold]
    fn wait(self: &Arc<Self>, until: Deadline) -> Result<Turn, Full> {
        // SeqCst: before the look that comes next, so a turn that is given back after that
        // look finds us here.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut held = link::lock(&self.lock);
        let outcome = loop {
            let turn = self.try_take();
            if turn.is_ok() || until.has_passed() {
                break turn;
            }
            held = match until.instant() {
                Some(at) => {
                    let time = at.saturating_duration_since(Instant::now());
                    let waited = self.back.wait_timeout(held, time);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.back.wait(held).unwrap_or_else(PoisonError::into_inner),
            };
        };
        drop(held);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        outcome
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let room = &*self.0;
        room.taken.fetch_sub(1, Ordering::SeqCst);
        if room.waiting.load(Ordering::SeqCst) > 0 {
            // A thread that has looked in vain sleeps once the lock is free.
            drop(link::lock(&room.lock));
            room.back.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn no_more_than_there_is_room_for_and_a_waiting_thread_gets_a_turn() {
        let room = Room::of(2);
        let first = room.take(Deadline::NOW).unwrap();
        let _second = room.take(Deadline::NEVER).unwrap();
        assert_eq!(room.take(Deadline::NOW).unwrap_err(), Full);
        let soon = Deadline::after(Duration::from_millis(2));
        assert_eq!(room.take(soon).unwrap_err(), Full);
        let most = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        let turn = room.take(Deadline::after(Duration::from_secs(60)));
                        let taken = room.taken.load(Ordering::SeqCst);
                        most.fetch_max(taken, Ordering::SeqCst);
                        drop(turn.unwrap());
                    }
                });
            }
            while room.waiting.load(Ordering::SeqCst) < 4 {
                std::thread::yield_now();
            }
            // From now on one at a time.
            drop(first);
        });
        assert_eq!(most.into_inner(), 2);
        assert_eq!(room.taken.load(Ordering::SeqCst), 1);
    }
}
