//! Counts the threads of the library that outlive their handle; `leave` waits for them.
//!
//! A client, a server, and a right on another domain's port have threads that work on for a
//! moment after the program drops the handle. These threads own handles of the membership that
//! the program cannot drop. So `space::host_connection::leave` waits until every dropped handle
//! has *drained*. It does not wait for a client or server in use, because the program can drop
//! that.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};

/// The number of handles of one membership that were dropped and have not drained yet.
#[derive(Clone, Default)]
pub(crate) struct Drains(Arc<AtomicUsize>);

impl Drains {
    /// Whether there is one.
    pub(crate) fn any(&self) -> bool {
        // Acquire pairs with the Release in `Counted::drop`: what the threads dropped before that
        // is gone.
        self.0.load(Ordering::Acquire) > 0
    }
}

/// Shared by all threads that work for one client, server or right. It drains from the moment the
/// handle is dropped until the last thread drops this.
#[derive(Default)]
pub(crate) struct Drain(OnceLock<Counted>);

struct Counted(Drains);

impl Drain {
    /// Begins the drain: the program has dropped the handle.
    pub(crate) fn begin(&self, drains: &Drains) {
        self.0.get_or_init(|| {
            // Relaxed: the thread that drops the handle calls `leave` later.
            drains.0.fetch_add(1, Ordering::Relaxed);
            Counted(drains.clone())
        });
    }

    /// Starts a thread that works for the handle, and drops this after everything else.
    pub(crate) fn spawn<T: Send + 'static>(
        self: &Arc<Self>,
        name: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<Drained<T>>> {
        let drain = Arc::clone(self);
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || Drained {
                outcome: work(),
                _drain: drain,
            })
    }
}

/// The result of such a thread, for the thread that joins it.
pub(crate) struct Drained<T> {
    pub(crate) outcome: T,
    // The last field: it outlives the handles in the outcome.
    _drain: Arc<Drain>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Release);
    }
}
