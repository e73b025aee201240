//! A pending operation goes on in the background; its handle tells when it is done.

use crate::{Deadline, NoDescriptor};
use portolan_sys::process::EventFd;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Something that was begun and goes on without the caller: a write, the end of an export.
///
/// Ask ([`is_done`](Self::is_done)), wait ([`wait`](Self::wait)), or have a descriptor become
/// readable ([`descriptor`](Self::descriptor)); then [`finish`](Self::finish) gives the result.
/// It goes on also when this is dropped.
///
/// # Examples
///
/// ```
/// use portolan::vmmc::{ExportMemory, ExportOptions, Reach};
/// use portolan::{Deadline, Domain};
/// use std::time::Duration;
/// # let soon = || Deadline::after(Duration::from_secs(60));
/// let domain = Domain::private()?;
/// let memory = ExportMemory::new(1 << 20)?;
/// let options = ExportOptions::new(Reach::ReadWrite);
/// let export = domain.export(&memory, "frames", &options, soon())?;
/// let import = domain.import("frames", soon())?;
///
/// // The buffer is gone until it has landed, and comes back then.
/// let pending = import.begin_write(4096, vec![7; 1 << 19])?;
/// assert!(pending.wait(Duration::from_secs(60)));
/// let buffer = pending.finish()?;
/// assert_eq!(memory.load_acquire(4096)?, u64::from_ne_bytes([7; 8]));
///
/// // Or all that was begun on an import at once.
/// let _one = import.begin_write(0, buffer)?;
/// import.flush(Duration::from_secs(60))?;
///
/// // The end of an export, too, need not be waited for where it is begun.
/// let unexport = export.begin_unexport();
/// unexport.finish()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the result says whether it was done"]
pub struct Pending<T> {
    cell: Arc<Cell<T>>,
}

/// The end of the thread that does the operation: it stores the result.
pub(super) struct Promise<T> {
    cell: Arc<Cell<T>>,
}

struct Cell<T> {
    inner: Mutex<Inner<T>>,
    changed: Condvar,
}

struct Inner<T> {
    result: Option<T>,
    /// There is a result, or there was one, or there will be none.
    over: bool,
    /// Made on demand.
    event: Option<EventFd>,
}

impl<T> Cell<T> {
    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Both ends.
pub(super) fn pending<T>() -> (Promise<T>, Pending<T>) {
    let inner = Inner {
        result: None,
        over: false,
        event: None,
    };
    let cell = Arc::new(Cell {
        inner: Mutex::new(inner),
        changed: Condvar::new(),
    });
    let promise = Promise {
        cell: Arc::clone(&cell),
    };
    (promise, Pending { cell })
}

impl<T> Promise<T> {
    /// It is done, with this result.
    pub(super) fn keep(&mut self, result: T) {
        self.settle(Some(result));
    }

    fn settle(&self, result: Option<T>) {
        let mut inner = self.cell.lock();
        if inner.over {
            return;
        }
        (inner.result, inner.over) = (result, true);
        if let Some(event) = &inner.event {
            // Fails if the program has closed it, which is its own affair.
            let _ = event.notify();
        }
        drop(inner);
        self.cell.changed.notify_all();
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        // A promise that is not kept must leave no thread waiting for ever.
        self.settle(None);
    }
}

impl<T> Pending<T> {
    /// Whether it is done.
    pub fn is_done(&self) -> bool {
        self.cell.lock().over
    }

    /// Waits until it is done; `false` if it is not by the deadline.
    pub fn wait(&self, deadline: impl Into<Deadline>) -> bool {
        let deadline = deadline.into();
        let mut inner = self.cell.lock();
        while !inner.over {
            let Some(waited) = wait_on(&self.cell.changed, inner, deadline) else {
                return false;
            };
            inner = waited;
        }
        true
    }

    /// Waits until it is done, and gives the result.
    ///
    /// # Panics
    ///
    /// If what was to be done has panicked, as the code of a buffer of the caller's may
    /// ([`AsRef`]).
    pub fn finish(self) -> T {
        let mut inner = self.cell.lock();
        loop {
            if let Some(result) = inner.result.take() {
                return result;
            }
            assert!(
                !inner.over,
                "what was begun has panicked: its buffer's code, most likely"
            );
            let waited = self.cell.changed.wait(inner);
            inner = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A descriptor that is readable once it is done: for `epoll` and the like, or for
    /// [`Domain::bind_address`](crate::Domain::bind_address), and so for a wait set.
    ///
    /// # Errors
    ///
    /// [`NoDescriptor`].
    pub fn descriptor(&self) -> Result<OwnedFd, NoDescriptor> {
        let mut inner = self.cell.lock();
        if inner.event.is_none() {
            let event = EventFd::new()?;
            if inner.over {
                event.notify()?;
            }
            inner.event = Some(event);
        }
        let event = inner.event.as_ref();
        let copy = event.map(|event| event.as_fd().try_clone_to_owned());
        copy.unwrap_or_else(|| Err(io::ErrorKind::NotFound.into()))
            .map_err(NoDescriptor::from)
    }
}

/// Waits for a change until the deadline; nothing if that has passed.
pub(super) fn wait_on<'a, T>(
    changed: &Condvar,
    guard: MutexGuard<'a, T>,
    deadline: Deadline,
) -> Option<MutexGuard<'a, T>> {
    if deadline.has_passed() {
        return None;
    }
    let Some(instant) = deadline.instant() else {
        return Some(changed.wait(guard).unwrap_or_else(PoisonError::into_inner));
    };
    let left = instant.saturating_duration_since(std::time::Instant::now());
    let waited = changed.wait_timeout(guard, left);
    Some(waited.unwrap_or_else(PoisonError::into_inner).0)
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let done = if self.is_done() { "done" } else { "going on" };
        write!(f, "Pending({done})")
    }
}
