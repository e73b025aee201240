//! What is ending: threads of the library's that work on for a moment after the client, the
//! server, or the right on another domain's port that they work for was dropped.
//!
//! Their handles keep the membership, and no caller could drop them. So whoever leaves waits
//! until there are none (`domain::link::leave`). Those of a client or server that is in use
//! are no reason to wait: then the caller has something to drop.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};

/// How many clients and servers are ending, in one membership.
#[derive(Clone, Default)]
pub(crate) struct Endings(Arc<AtomicUsize>);

impl Endings {
    /// Whether any is.
    pub(crate) fn any(&self) -> bool {
        // Acquire pairs with the Release in `Counted::drop`: what was let go of before is gone.
        self.0.load(Ordering::Acquire) > 0
    }
}

/// Had by all that works for one client, or one server. From when that is dropped, until the
/// last of them has let go of this, it is ending.
#[derive(Default)]
pub(crate) struct Ending(OnceLock<Counted>);

struct Counted(Endings);

impl Ending {
    /// The client or server is dropped.
    pub(crate) fn begin(&self, endings: &Endings) {
        self.0.get_or_init(|| {
            // Relaxed: whoever drops it comes to leave later.
            endings.0.fetch_add(1, Ordering::Relaxed);
            Counted(endings.clone())
        });
    }

    /// Begins a thread that works for it, and lets go of this after all else.
    pub(crate) fn spawn<T: Send + 'static>(
        self: &Arc<Self>,
        name: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<Ended<T>>> {
        let ending = Arc::clone(self);
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || Ended {
                outcome: work(),
                _ending: ending,
            })
    }
}

/// What such a thread leaves to whoever joins it.
pub(crate) struct Ended<T> {
    pub(crate) outcome: T,
    // The last field: it outlives the handles in the outcome.
    _ending: Arc<Ending>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Release);
    }
}
