//! One worker thread per process performs the non-blocking writes, in the order of their calls.
//!
//! The first such write starts the thread. Each import counts the writes that it began and those
//! that the thread has finished ([`WriteOrder`]). A blocking call waits until both counts are
//! equal, so it takes effect after all earlier non-blocking writes of its import.

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

/// Queues a job behind all earlier ones. If the process can start no thread, the caller's thread
/// runs the job.
pub(super) fn push(job: Job) {
    static THREAD: Mutex<Option<Sender<Job>>> = Mutex::new(None);
    let mut thread = THREAD.lock().unwrap_or_else(PoisonError::into_inner);
    if thread.is_none() {
        let (sender, receiver) = channel();
        let spawned = spawn_quiet("portolan-update", STACK, move || work(&receiver));
        *thread = spawned.is_ok().then_some(sender);
    }
    if let Some(sender) = &*thread {
        // The worker thread never exits, so `send` cannot fail.
        let _ = sender.send(job);
    } else {
        // Unlocked, because the job may push another job as it drops its buffer.
        drop(thread);
        job();
    }
}

thread_local! {
    /// Whether this is the worker thread, which must not wait for a job behind its own.
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
}

fn work(jobs: &Receiver<Job>) {
    IS_WORKER.set(true);
    for job in jobs {
        // The program implements the buffer, so its code may panic. The later jobs must run all
        // the same. Unwinding drops the job's `Done` and its half of the `Pending`.
        let _ = catch_unwind(AssertUnwindSafe(job));
    }
}

/// How many non-blocking writes an import has begun, and how many are done.
#[derive(Debug, Default)]
pub(super) struct WriteOrder {
    begun: AtomicU64,
    done: AtomicU64,
    waiting: Mutex<()>,
    changed: Condvar,
}

impl WriteOrder {
    /// Counts a write that begins; the drop of its [`Done`] counts its end.
    pub(super) fn begin(&self) {
        // Relaxed: a call that must come after this write is ordered after it by the program.
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the end of a write. Only the worker thread calls this.
    fn end(&self) {
        // Release: pairs with the loads below; a thread that sees the count sees the write.
        self.done.fetch_add(1, Ordering::Release);
        // Under the lock: otherwise the notification could come between a check and its sleep.
        drop(self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    /// Waits until every write begun so far is done; `false` if the deadline passes first.
    /// On the worker thread (in the code of a job's buffer) it returns at once.
    #[inline]
    pub(super) fn behind(&self, deadline: Deadline) -> bool {
        let begun = self.begun.load(Ordering::Relaxed);
        self.done.load(Ordering::Acquire) >= begun || self.wait(begun, deadline)
    }

    #[cold]
    fn wait(&self, begun: u64, deadline: Deadline) -> bool {
        if IS_WORKER.get() {
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

/// Counts the end of a write when it is dropped, also if the job panics.
pub(super) struct Done<'a>(pub(super) &'a WriteOrder);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}
