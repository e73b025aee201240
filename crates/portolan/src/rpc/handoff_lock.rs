//! A hand-off lock shows its holder that another thread wants it, so that the holder can hand it
//! off.
//!
//! A thread may so keep the lock while it spins. Threads that wait for a change of the content
//! sleep on a condition variable; a thread that makes the change pays for a system call only if
//! a thread sleeps.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

pub(super) struct HandoffLock<T> {
    inner: Mutex<T>,
    /// How many threads wait for the lock.
    wanted: AtomicU32,
    turn: Condvar,
    /// How many threads sleep in [`listen`](Self::listen); changed with the lock held.
    listeners: AtomicU32,
}

impl<T> HandoffLock<T> {
    pub(super) fn new(inner: T) -> Self {
        Self {
            inner: Mutex::new(inner),
            wanted: AtomicU32::new(0),
            turn: Condvar::new(),
            listeners: AtomicU32::new(0),
        }
    }

    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        match self.inner.try_lock() {
            Ok(inner) => inner,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => self.queue_up(),
        }
    }

    #[cold]
    fn queue_up(&self) -> MutexGuard<'_, T> {
        // Relaxed: a hint, which the spinning holder sees soon enough.
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        self.wanted.fetch_sub(1, Ordering::Relaxed);
        inner
    }

    /// Whether another thread wants the lock.
    #[inline]
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) != 0
    }

    /// Waits until another thread has [told](Self::tell), or the time is over.
    pub(super) fn listen<'a>(
        &self,
        inner: MutexGuard<'a, T>,
        time: Option<Duration>,
    ) -> MutexGuard<'a, T> {
        // Relaxed, as all of it: the lock orders them.
        self.listeners.fetch_add(1, Ordering::Relaxed);
        let inner = match time {
            Some(time) => match self.turn.wait_timeout(inner, time) {
                Ok((inner, _)) => inner,
                Err(poisoned) => poisoned.into_inner().0,
            },
            None => self
                .turn
                .wait(inner)
                .unwrap_or_else(PoisonError::into_inner),
        };
        self.listeners.fetch_sub(1, Ordering::Relaxed);
        inner
    }

    /// Wakes the threads that listen; the caller must hold the lock.
    #[inline]
    pub(super) fn tell(&self) {
        if self.listeners.load(Ordering::Relaxed) != 0 {
            self.turn.notify_all();
        }
    }

    pub(super) fn into_inner(self) -> T {
        self.inner
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn the_holder_sees_a_waiter_and_wakes_a_listener() {
        let lock = Arc::new(HandoffLock::new(0));
        let held = lock.lock();
        assert!(!lock.is_wanted());
        let there = Arc::clone(&lock);
        let other = std::thread::spawn(move || {
            let mut inner = there.lock();
            while *inner < 3 {
                inner = there.listen(inner, None);
            }
        });
        while !lock.is_wanted() {
            std::thread::yield_now();
        }
        drop(held);
        while !other.is_finished() {
            let mut inner = lock.lock();
            *inner += 1;
            lock.tell();
        }
        other.join().unwrap();
        assert!(!lock.is_wanted());
    }
}
