//! A lock that its holder may keep for a moment while it spins: it sees whether another
//! thread wants it. And a way to wait for what another thread does, which costs that one a
//! system call only if somebody waits.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

pub(super) struct Turnstile<T> {
    inner: Mutex<T>,
    /// Threads that wait for the lock.
    wanted: AtomicU32,
    turn: Condvar,
    /// Threads that wait for a turn; changed with the lock held.
    listeners: AtomicU32,
}

impl<T> Turnstile<T> {
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
        // Relaxed: a hint, which whoever spins sees soon enough.
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

    /// Tells those who listen; the caller has the lock.
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
    fn whoever_wants_the_lock_is_seen_and_whoever_listens_is_told() {
        let turnstile = Arc::new(Turnstile::new(0));
        let held = turnstile.lock();
        assert!(!turnstile.is_wanted());
        let there = Arc::clone(&turnstile);
        let other = std::thread::spawn(move || {
            let mut inner = there.lock();
            while *inner < 3 {
                inner = there.listen(inner, None);
            }
        });
        while !turnstile.is_wanted() {
            std::thread::yield_now();
        }
        drop(held);
        while !other.is_finished() {
            let mut inner = turnstile.lock();
            *inner += 1;
            turnstile.tell();
        }
        other.join().unwrap();
        assert!(!turnstile.is_wanted());
    }
}
