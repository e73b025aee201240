//! The thread that does non-blocking writes.
//!
//! One a process, from the first such write on. It takes them in the order in which they were
//! begun, so those of an import are in order, and each import counts what it began and what is
//! done: a blocking call waits for the two to be equal, and so stays behind them.

use super::pending::wait_on;
use crate::Deadline;
use portolan_sys::process::spawn_quiet;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Condvar, Mutex, PoisonError};

/// Enough for a copy.
const STACK: usize = 256 << 10;

type Job = Box<dyn FnOnce() + Send>;

/// Has the thread do something, after all that it was given before. If there is no thread to be
/// had, it is done here and now.
pub(super) fn give(job: Job) {
    static THREAD: Mutex<Option<Sender<Job>>> = Mutex::new(None);
    let mut thread = THREAD.lock().unwrap_or_else(PoisonError::into_inner);
    if thread.is_none() {
        let (sender, receiver) = channel();
        let spawned = spawn_quiet("portolan-update", STACK, move || work(&receiver));
        *thread = spawned.is_ok().then_some(sender);
    }
    if let Some(sender) = &*thread {
        // It never ends, so it takes it.
        let _ = sender.send(job);
    } else {
        // What it does with its buffer may be to begin another one.
        drop(thread);
        job();
    }
}

thread_local! {
    /// Whether this is that thread: what it waited for in its own turn would never be done.
    static IS_IT: Cell<bool> = const { Cell::new(false) };
}

fn work(jobs: &Receiver<Job>) {
    IS_IT.set(true);
    for job in jobs {
        // A buffer is of the program's own making, and its code may panic. Those behind it are
        // others', and its own promise and order end as it unwinds.
        let _ = catch_unwind(AssertUnwindSafe(job));
    }
}

/// What an import has begun, and what of it is done.
#[derive(Debug, Default)]
pub(super) struct Order {
    begun: AtomicU64,
    done: AtomicU64,
    waiting: Mutex<()>,
    changed: Condvar,
}

impl Order {
    /// Something is begun; [`Done`] ends it.
    pub(super) fn begin(&self) {
        // Relaxed: whoever is to stay behind it was told of it by its caller.
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    /// It is done, by the one thread that does them.
    fn end(&self) {
        // Release: pairs with the loads below; whoever sees it comes after it.
        self.done.fetch_add(1, Ordering::Release);
        // Under the lock, so that it does not fall between a look and the sleep after it.
        drop(self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    /// Waits until all that was begun so far is done; `false` if it is not by the deadline.
    /// Within a job, as in the code of its buffer, what was begun behind it is not waited for.
    #[inline]
    pub(super) fn behind(&self, deadline: Deadline) -> bool {
        let begun = self.begun.load(Ordering::Relaxed);
        self.done.load(Ordering::Acquire) >= begun || self.wait(begun, deadline)
    }

    #[cold]
    fn wait(&self, begun: u64, deadline: Deadline) -> bool {
        if IS_IT.get() {
            return true;
        }
        let mut guard = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        while self.done.load(Ordering::Acquire) < begun {
            match wait_on(&self.changed, guard, deadline) {
                Some(waited) => guard = waited,
                None => return false,
            }
        }
        true
    }
}

/// Something that was begun is done when this is dropped, also where it panics.
pub(super) struct Done<'a>(pub(super) &'a Order);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}
