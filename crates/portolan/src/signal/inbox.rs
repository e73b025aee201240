//! Handlers on their way from one listener to another.

use super::intake::Handling;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Where a listener is given handlers, until it is dropped.
pub(super) struct Inbox {
    /// Something is in it: a look at that alone is cheap.
    posted: AtomicBool,
    /// `None`: the listener is gone.
    given: Mutex<Option<Vec<Handling>>>,
}

/// The inbox, locked: while a handler is given and its signals are sent elsewhere.
pub(super) struct Locked<'a> {
    posted: &'a AtomicBool,
    given: MutexGuard<'a, Option<Vec<Handling>>>,
}

impl Default for Inbox {
    fn default() -> Self {
        Self {
            posted: AtomicBool::new(false),
            given: Mutex::new(Some(Vec::new())),
        }
    }
}

impl Inbox {
    #[inline]
    pub(super) fn is_posted(&self) -> bool {
        // Acquire: pairs with the release in `post`. A signal that came by way of the
        // handler's new FIFO was pushed after it, so it is seen by whoever has the signal.
        self.posted.load(Ordering::Acquire)
    }

    /// Nobody who has the lock calls what others wrote, so it is held for a moment.
    pub(super) fn lock(&self) -> Locked<'_> {
        Locked {
            posted: &self.posted,
            given: self.given.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }
}

impl Locked<'_> {
    /// Puts a handler in; gives it back if nobody will take it.
    pub(super) fn post(&mut self, handling: Handling) -> Result<(), Handling> {
        let Some(given) = self.given.as_mut() else {
            return Err(handling);
        };
        given.push(handling);
        // Release: whoever sees it finds the function.
        self.posted.store(true, Ordering::Release);
        Ok(())
    }

    /// What has been given.
    pub(super) fn take(&mut self) -> Vec<Handling> {
        self.posted.store(false, Ordering::Relaxed);
        self.given.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The last that was given: there is nobody to give to any more.
    pub(super) fn close(&mut self) -> Vec<Handling> {
        self.given.take().unwrap_or_default()
    }
}
