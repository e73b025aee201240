//! An inbox carries handlers from one listener to another, with their signals.

use super::handlers::Handling;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Where a listener is given handlers, until it is dropped.
pub(super) struct Inbox {
    /// What is in it: a look at that alone is cheap.
    holds: AtomicU8,
    /// `None`: the listener is gone.
    given: Mutex<Option<Vec<Parting>>>,
}

/// A handler that was given.
pub(super) struct Parting {
    pub(super) handling: Handling,
    /// The signals that had come for it, in order.
    pub(super) had: Vec<u64>,
}

const NOTHING: u8 = 0;
const HANDLERS: u8 = 1;
const SIGNALS: u8 = 2;

/// The inbox, locked: while a handler is given and its signals are sent elsewhere.
pub(super) struct Locked<'a> {
    holds: &'a AtomicU8,
    given: MutexGuard<'a, Option<Vec<Parting>>>,
}

impl Default for Inbox {
    fn default() -> Self {
        Self {
            holds: AtomicU8::new(NOTHING),
            given: Mutex::new(Some(Vec::new())),
        }
    }
}

impl Inbox {
    #[inline]
    pub(super) fn is_posted(&self) -> bool {
        // Acquire: pairs with the release in `post`. A signal that came by way of the
        // handler's new FIFO was pushed after it, so the reader of the signal sees it.
        self.holds.load(Ordering::Acquire) != NOTHING
    }

    /// Whether there are signals to be handled in it. The giver wakes the target afterwards, and
    /// a target that goes to sleep looks after it has read the doorbell.
    pub(super) fn has_signals(&self) -> bool {
        self.holds.load(Ordering::SeqCst) == SIGNALS
    }

    /// The holder of the lock calls no code of the program, so it is held for a moment.
    pub(super) fn lock(&self) -> Locked<'_> {
        Locked {
            holds: &self.holds,
            given: self.given.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }
}

impl Locked<'_> {
    /// Puts a handler in; gives it back if no listener will take it.
    pub(super) fn post(&mut self, handling: Handling) -> Result<(), Handling> {
        let Some(given) = self.given.as_mut() else {
            return Err(handling);
        };
        let had = Vec::new();
        given.push(Parting { handling, had });
        // Release: a thread that sees it finds the function.
        self.holds.fetch_max(HANDLERS, Ordering::Release);
        Ok(())
    }

    /// Adds what had come for the handler that was just put in; whether its new thread must
    /// be woken for that.
    pub(super) fn bring(&mut self, had: Vec<u64>) -> bool {
        let brought = !had.is_empty();
        if let Some(last) = self.given.as_mut().and_then(|given| given.last_mut()) {
            last.had = had;
        }
        if brought {
            // SeqCst: as in `has_signals`.
            self.holds.store(SIGNALS, Ordering::SeqCst);
        }
        brought
    }

    /// What has been given.
    pub(super) fn take(&mut self) -> Vec<Parting> {
        self.holds.store(NOTHING, Ordering::Relaxed);
        self.given.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The last that was given: there is no listener to give to any more.
    pub(super) fn close(&mut self) -> Vec<Parting> {
        self.given.take().unwrap_or_default()
    }
}
