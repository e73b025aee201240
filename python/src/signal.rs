//! Address-valued signals: "look at this address".
//!
//! A handler of the library notes the address, and the function of Python runs afterwards: with the
//! interpreter's lock, and while no thread has the listener. So it may call anything, also its own
//! listener.

use crate::closing::closes;
use crate::error::Fault;
use crate::segment::range_of;
use crate::wait::{Handle, Timeout};
use crate::watched::{Watched, until};
use portolan::{Deadline, Delivery, Domain, ListenerOptions};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Handles signals on the thread that waits with it.
#[pyclass(frozen, module = "portolan")]
#[derive(Debug)]
pub(crate) struct Listener {
    listener: Handle<Watched<portolan::Listener>>,
    /// Calls that are due: the number of a handler, and the address.
    due: Arc<Mutex<VecDeque<(u64, usize)>>>,
    handlers: Mutex<Handlers>,
}

#[derive(Debug, Default)]
struct Handlers {
    /// How many there have been.
    made: u64,
    by_number: HashMap<u64, Handler>,
}

#[derive(Debug)]
struct Handler {
    id: portolan::HandlerId,
    run: Py<PyAny>,
}

/// Names a handler of a listener.
#[pyclass(frozen, eq, hash, module = "portolan")]
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct HandlerId(u64);

/// No code of Python's runs while one of these locks is held: it could wait for the same lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Listener {
    pub(crate) fn new(domain: Domain, options: ListenerOptions) -> Result<Self, Fault> {
        let listener = domain.listen(options)?;
        Ok(Self {
            listener: Handle::new("listener", Watched::new(domain, listener)),
            due: Arc::default(),
            handlers: Mutex::default(),
        })
    }

    /// Calls the functions that are due; how many. If one raises, the next call goes on behind it.
    fn run(&self, py: Python<'_>) -> PyResult<usize> {
        let mut calls = 0;
        loop {
            let Some((number, address)) = lock(&self.due).pop_front() else {
                return Ok(calls);
            };
            let handlers = lock(&self.handlers);
            let run = handlers.by_number.get(&number);
            let run = run.map(|handler| handler.run.clone_ref(py));
            drop(handlers);
            if let Some(run) = run {
                calls += 1;
                run.call1(py, (address,))?;
            }
        }
    }
}

fn delivery(name: &str) -> Result<Option<Delivery>, Fault> {
    match name {
        "listened" => Ok(None),
        "polled" => Ok(Some(Delivery::POLLED)),
        "monitored" => Ok(Some(Delivery::MONITORED)),
        "doorbell" => Ok(Some(Delivery::DOORBELL)),
        _ => {
            let text = format!(
                "a handler's thread is told as it \"listened\", or is \"polled\", \"monitored\" or told by \"doorbell\": not {name:?}"
            );
            Err(Fault::new("ValueError", text))
        }
    }
}

fn one(listener: &mut portolan::Listener, deadline: Deadline) -> Result<Option<()>, Fault> {
    Ok(listener.wait(deadline).map(|_| ()))
}

fn all(listener: &mut portolan::Listener, _: Deadline) -> Result<Option<()>, Fault> {
    Ok((listener.poll() > 0).then_some(()))
}

#[pymethods]
impl Listener {
    /// Has `run(address)` called with every address of a `range` that is signalled from now on:
    /// `segment.addresses`, `channel.addresses`, or a part of such. It runs in `wait` and `poll`, on
    /// the thread that calls them; what it raises, they raise.
    ///
    /// `delivery` says how that thread is told: as its listener waits (`"listened"`), by looking again
    /// and again (`"polled"`), by the processor, which watches the line (`"monitored"`), or by sleeping
    /// at once (`"doorbell"`).
    #[pyo3(signature = (addresses, run, delivery = "listened"))]
    fn on(
        &self,
        py: Python<'_>,
        addresses: &Bound<'_, PyAny>,
        run: Py<PyAny>,
        delivery: &str,
    ) -> PyResult<HandlerId> {
        let range = range_of(addresses)?;
        let delivery = self::delivery(delivery)?;
        let mut listener = self.listener.lend_soon(py)?;
        let number = {
            let mut handlers = lock(&self.handlers);
            handlers.made += 1;
            handlers.made
        };
        let due = Arc::clone(&self.due);
        let note = move |address| lock(&due).push_back((number, address));
        let added = match delivery {
            None => listener.get()?.on(range, note),
            Some(delivery) => listener.get()?.on_by(delivery, range, note),
        };
        let id = added.map_err(Fault::from)?;
        // The listener is lent to this thread, so nothing was noted for the handler yet.
        let by_number = &mut lock(&self.handlers).by_number;
        by_number.insert(number, Handler { id, run });
        Ok(HandlerId(number))
    }

    /// Takes a handler away: its function is not called any more. `False` if it is not here.
    fn off(&self, py: Python<'_>, handler: &HandlerId) -> PyResult<bool> {
        let mut listener = self.listener.lend_soon(py)?;
        let removed = lock(&self.handlers).by_number.remove(&handler.0);
        match removed {
            Some(Handler { id, .. }) => Ok(listener.get()?.off(id).map_err(Fault::from)?),
            None => Ok(false),
        }
    }

    /// Waits at most `timeout` seconds until a signal came, and handles it. `TimedOut` if none came.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let timeout = Timeout::new(timeout)?;
        if self.run(py)? == 0 {
            self.listener.wait(py, timeout, "signal", one)?;
            self.run(py)?;
        }
        Ok(())
    }

    /// The same, to be awaited; it handles all signals that are there, and gives how many functions
    /// it called.
    fn wait_async<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        until(slf, "_poll")
    }

    fn _poll(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        let earlier = self.run(py)?;
        if earlier > 0 {
            return Ok(Some(earlier));
        }
        match self.listener.poll(all)? {
            Some(_) => self.run(py).map(Some),
            None => Ok(None),
        }
    }

    /// Handles what is there, and gives how many functions it called.
    fn poll(&self, py: Python<'_>) -> PyResult<usize> {
        let earlier = self.run(py)?;
        self.listener.lend_soon(py)?.take(&mut all)?;
        Ok(earlier + self.run(py)?)
    }

    /// A descriptor that is readable while there may be a signal: call `poll` until it gives 0, then
    /// wait for the descriptor again.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        self.listener.fileno(py)
    }

    /// Signals that it holds.
    #[getter]
    fn depth(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.listener.lend_soon(py)?.look()?.depth())
    }

    /// Signals that found it full, and were dropped.
    #[getter]
    fn dropped(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.listener.lend_soon(py)?.look()?.dropped())
    }

    /// Signals that came for no handler: for one that was taken away, most likely.
    #[getter]
    fn unhandled(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.listener.lend_soon(py)?.get()?.unhandled())
    }

    // A function may refer to what has the listener.
    fn __traverse__(&self, seen: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Another thread has the lock only while it uses the listener.
        if let Ok(handlers) = self.handlers.try_lock() {
            for handler in handlers.by_number.values() {
                seen.call(&handler.run)?;
            }
        }
        Ok(())
    }

    fn __clear__(&self) {
        let gone = std::mem::take(&mut lock(&self.handlers).by_number);
        drop(gone);
    }
}

closes! {
    /// Ends it, with its handlers. A thread that waits with it gets `Closed`.
    Listener, |this, py| {
        this.listener.close(py);
        let gone = std::mem::take(&mut lock(&this.handlers).by_number);
        drop(gone)
    }
}
