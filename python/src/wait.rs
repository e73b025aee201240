//! Waits release the interpreter's lock, and look for Python signals now and then.
//!
//! A wait lasts for as long as the caller's [`Timeout`] says, in slices: after each the main
//! thread runs the handlers of signals that came (Ctrl-C raises `KeyboardInterrupt`), and a
//! handle that another thread closes meanwhile ends the wait.

use crate::error::Fault;
use portolan::{Deadline, Waiting};
use pyo3::prelude::*;
use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a thread waits before it looks for signals.
const SLICE: Duration = Duration::from_millis(100);
/// The same, where what is asked may be on another machine, and is asked anew for each slice.
const LONG_SLICE: Duration = Duration::from_secs(1);
/// More bytes than this are copied without the interpreter's lock: to let go of it and take it again
/// costs about as much as to copy so many.
pub(crate) const MANY_BYTES: usize = 4096;

/// How long a call may wait: `None` for as long as it takes, or seconds from now on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Timeout {
    Never,
    Now,
    At(Instant),
}

impl Timeout {
    /// From what Python gave.
    pub(crate) fn new(seconds: Option<f64>) -> PyResult<Self> {
        match seconds {
            None => Ok(Self::Never),
            Some(seconds) if seconds.is_nan() => {
                Err(Fault::new("ValueError", "a timeout is a number of seconds, or None").into())
            }
            Some(seconds) if seconds <= 0.0 => Ok(Self::Now),
            Some(seconds) => Ok(Duration::try_from_secs_f64(seconds)
                .ok()
                .and_then(|time| Instant::now().checked_add(time))
                .map_or(Self::Never, Self::At)),
        }
    }

    pub(crate) fn deadline(self) -> Deadline {
        match self {
            Self::Never => Deadline::NEVER,
            Self::Now => Deadline::NOW,
            Self::At(at) => Deadline::at(at),
        }
    }

    fn has_passed(self) -> bool {
        self.deadline().has_passed()
    }

    /// The end of the next slice of this length.
    fn slice(self, length: Duration) -> Deadline {
        let slice = Instant::now() + length;
        match self {
            Self::Never => Deadline::at(slice),
            Self::Now => Deadline::NOW,
            Self::At(at) => Deadline::at(at.min(slice)),
        }
    }
}

/// Runs `attempt` until it gives something or the timeout has passed (`None`).
///
/// The first attempt does not wait, and keeps the interpreter's lock, so it must copy nothing long
/// either; each later one waits until the deadline that it is given, without the lock.
pub(crate) fn patiently<T: Send, E: Into<Fault> + Send>(
    py: Python<'_>,
    timeout: Timeout,
    attempt: impl FnMut(Deadline) -> Result<Option<T>, E> + Send,
) -> PyResult<Option<T>> {
    patiently_of(py, 0, timeout, attempt)
}

/// The same, of attempts that may copy so many bytes: of more than [`MANY_BYTES`] the first one has no
/// lock either.
pub(crate) fn patiently_of<T: Send, E: Into<Fault> + Send>(
    py: Python<'_>,
    bytes: usize,
    timeout: Timeout,
    mut attempt: impl FnMut(Deadline) -> Result<Option<T>, E> + Send,
) -> PyResult<Option<T>> {
    let first = match bytes <= MANY_BYTES {
        true => attempt(Deadline::NOW),
        false => py.detach(|| attempt(Deadline::NOW)),
    };
    in_slices(py, timeout, SLICE, first, attempt)
}

/// The same, of what may ask another process, which may be on another machine: no attempt has the
/// lock.
pub(crate) fn far_patiently<T: Send, E: Into<Fault> + Send>(
    py: Python<'_>,
    timeout: Timeout,
    mut attempt: impl FnMut(Deadline) -> Result<Option<T>, E> + Send,
) -> PyResult<Option<T>> {
    let first = py.detach(|| attempt(Deadline::NOW));
    in_slices(py, timeout, LONG_SLICE, first, attempt)
}

/// Goes on after the first attempt.
fn in_slices<T: Send, E: Into<Fault> + Send>(
    py: Python<'_>,
    timeout: Timeout,
    length: Duration,
    first: Result<Option<T>, E>,
    mut attempt: impl FnMut(Deadline) -> Result<Option<T>, E> + Send,
) -> PyResult<Option<T>> {
    let mut outcome = first;
    loop {
        match outcome {
            Ok(None) if !timeout.has_passed() => {}
            Ok(other) => return Ok(other),
            Err(why) => return Err(why.into().into()),
        }
        py.check_signals()?;
        let slice = timeout.slice(length);
        outcome = py.detach(|| attempt(slice));
    }
}

/// How a thread waits, as Python names it.
pub(crate) fn waiting(name: &str) -> Result<Waiting, Fault> {
    match name {
        "adaptive" => Ok(Waiting::Adaptive),
        "poll" => Ok(Waiting::Poll),
        "sleep" => Ok(Waiting::Sleep),
        _ => {
            let text =
                format!("a thread waits \"adaptive\", or by \"poll\" or \"sleep\": not {name:?}");
            Err(Fault::new("ValueError", text))
        }
    }
}

/// Drops what may have to wait for another process, or for a thread of the library's, without the
/// interpreter's lock. For objects that Python lets go of without closing them.
fn drop_unlocked<T: Send>(item: T) {
    let mut item = Some(item);
    // Nothing comes of it while the interpreter ends: then the item is dropped here.
    let _ = Python::try_attach(|py| {
        let item = item.take();
        py.detach(|| drop(item));
    });
}

/// What any number of threads use at once: each call has a clone.
#[derive(Debug)]
pub(crate) struct Shared<T: Send> {
    what: &'static str,
    item: Mutex<Option<T>>,
}

impl<T: Clone + Send> Shared<T> {
    /// `what` names it in errors.
    pub(crate) fn new(what: &'static str, item: T) -> Self {
        Self {
            what,
            item: Mutex::new(Some(item)),
        }
    }

    pub(crate) fn get(&self) -> Result<T, Fault> {
        let item = self.item.lock().unwrap_or_else(PoisonError::into_inner);
        item.clone().ok_or_else(|| Fault::closed(self.what))
    }

    /// Takes it for good.
    pub(crate) fn take(&self) -> Option<T> {
        let mut item = self.item.lock().unwrap_or_else(PoisonError::into_inner);
        item.take()
    }

    pub(crate) fn close(&self, py: Python<'_>) {
        let item = self.take();
        // It may have to wait for a thread of the library's.
        py.detach(|| drop(item));
    }
}

impl<T: Send> Drop for Shared<T> {
    fn drop(&mut self) {
        let item = self.item.get_mut();
        if let Some(item) = item.unwrap_or_else(PoisonError::into_inner).take() {
            drop_unlocked(item);
        }
    }
}

/// What one thread uses at a time. A thread that waits with it lets go of it after each slice, for
/// others that want it; another one's [`close`](Self::close) ends the wait.
#[derive(Debug)]
pub(crate) struct Handle<T: Send> {
    what: &'static str,
    state: Mutex<State<T>>,
    returned: Condvar,
}

#[derive(Debug)]
struct State<T> {
    /// The thing, unless a thread uses it or it is gone.
    item: Option<T>,
    closed: bool,
    /// Threads that want it for a moment, and go before those that wait with it.
    wanted: usize,
}

/// The thing, for one thread. Dropped, it goes back.
pub(crate) struct Lent<'h, T: Send> {
    handle: &'h Handle<T>,
    /// There until it is dropped or taken.
    item: Option<T>,
}

impl<T: Send> Handle<T> {
    /// `what` names it in errors.
    pub(crate) fn new(what: &'static str, item: T) -> Self {
        Self {
            what,
            state: Mutex::new(State {
                item: Some(item),
                closed: false,
                wanted: 0,
            }),
            returned: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // No code panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// That it is closed.
    pub(crate) fn closed(&self) -> Fault {
        Fault::closed(self.what)
    }

    /// Takes it, if no other thread uses it.
    pub(crate) fn try_lend(&self) -> Result<Option<Lent<'_, T>>, Fault> {
        let mut state = self.lock();
        if state.closed {
            return Err(self.closed());
        }
        Ok(state.item.take().map(|item| self.lent(item)))
    }

    /// The same, for what cannot wait for the other thread.
    pub(crate) fn lend_now(&self) -> Result<Lent<'_, T>, Fault> {
        self.try_lend()?.ok_or_else(|| {
            let text = format!(
                "another thread waits at this {0}: use it in one thread, or await it in one event loop",
                self.what
            );
            Fault::new("Busy", text)
        })
    }

    /// Takes it, waiting until no other thread uses it or wants it for a moment.
    pub(crate) fn lend_until(&self, deadline: Deadline) -> Result<Option<Lent<'_, T>>, Fault> {
        self.lend_unless(deadline, |state| state.wanted > 0)
    }

    fn lend_unless(
        &self,
        deadline: Deadline,
        not_yet: impl Fn(&State<T>) -> bool,
    ) -> Result<Option<Lent<'_, T>>, Fault> {
        let mut state = self.lock();
        loop {
            if state.closed {
                drop(state);
                return Err(self.closed());
            }
            if !not_yet(&state)
                && let Some(item) = state.item.take()
            {
                return Ok(Some(self.lent(item)));
            }
            let left = deadline.instant().map_or(SLICE, |until| {
                until.saturating_duration_since(Instant::now())
            });
            if left.is_zero() {
                return Ok(None);
            }
            let waited = self.returned.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Takes it for a moment: before threads that wait with it, which let go of it after a slice.
    pub(crate) fn lend_soon(&self, py: Python<'_>) -> PyResult<Lent<'_, T>> {
        self.lock().wanted += 1;
        let lent = patiently(py, Timeout::Never, |deadline| {
            self.lend_unless(deadline, |_| false)
        });
        self.lock().wanted -= 1;
        self.returned.notify_all();
        lent?.ok_or_else(|| self.closed().into())
    }

    fn lent(&self, item: T) -> Lent<'_, T> {
        Lent {
            handle: self,
            item: Some(item),
        }
    }

    /// Closes it: it is dropped now, or by the thread that uses it.
    pub(crate) fn close(&self, py: Python<'_>) {
        let item = {
            let mut state = self.lock();
            state.closed = true;
            state.item.take()
        };
        self.returned.notify_all();
        // It may have to wait for a thread of the library's.
        py.detach(|| drop(item));
    }

    /// Takes it for good, if no other thread uses it.
    pub(crate) fn take(&self) -> Result<T, Fault> {
        let lent = self.lend_now()?;
        Ok(lent.keep())
    }

    /// Puts back what [`take`](Self::take) gave.
    pub(crate) fn put_back(&self, item: T) {
        let mut state = self.lock();
        state.closed = false;
        state.item = Some(item);
        drop(state);
        self.returned.notify_all();
    }
}

impl<T: Send> Drop for Handle<T> {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(item) = state.item.take() {
            drop_unlocked(item);
        }
    }
}

impl<T: Send> Lent<'_, T> {
    /// It does not go back: the handle is closed.
    pub(crate) fn keep(mut self) -> T {
        let item = self.item.take().expect(THERE);
        self.handle.lock().closed = true;
        item
    }
}

/// Nothing takes it but what ends the loan.
const THERE: &str = "what is lent is there until it goes back";

impl<T: Send> Deref for Lent<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.item.as_ref().expect(THERE)
    }
}

impl<T: Send> DerefMut for Lent<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.item.as_mut().expect(THERE)
    }
}

impl<T: Send> Drop for Lent<'_, T> {
    fn drop(&mut self) {
        let Some(item) = self.item.take() else {
            return;
        };
        let mut state = self.handle.lock();
        let closed = state.closed;
        let gone = match closed {
            true => Some(item),
            false => {
                state.item = Some(item);
                None
            }
        };
        drop(state);
        drop(gone);
        self.handle.returned.notify_all();
    }
}
