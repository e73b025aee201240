//! Rights to send to ports.

use crate::closing::closes;
use crate::error::Fault;
use crate::message::{Message, Parts};
use crate::port::ReceiveRight;
use crate::request::PendingReply;
use crate::wait::{Handle, Shared, Timeout, patiently_of};
use crate::watched::Watched;
use portolan::{Domain, Right, RightState, SendError, WhenFull};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::sync::Arc;

/// The header of a message that has none.
pub(crate) const NOTHING: &[u8] = b"";

/// The right to send any number of messages to a port.
#[pyclass(frozen, module = "portolan")]
#[derive(Debug)]
pub(crate) struct SendRight(Shared<(Domain, Arc<portolan::SendRight>)>);

impl SendRight {
    pub(crate) fn new(domain: Domain, right: portolan::SendRight) -> Self {
        Self(Shared::new("right", (domain, right.into())))
    }

    fn right(&self) -> Result<Arc<portolan::SendRight>, Fault> {
        Ok(self.0.get()?.1)
    }

    /// Another right on the same port, to travel.
    pub(crate) fn another(&self) -> Result<portolan::SendRight, Fault> {
        Ok((*self.right()?).clone())
    }
}

/// Sends, waiting for room until the timeout.
fn deliver(
    py: Python<'_>,
    message: &mut portolan::Message,
    right: &portolan::SendRight,
    timeout: Timeout,
) -> PyResult<()> {
    let mut full = None;
    // Most arrays move; but the port may be one of copies, or go on to another domain or machine.
    let bytes = message.len();
    let sent = patiently_of(py, bytes, timeout, |deadline| {
        match right.send_from(message, WhenFull::from(deadline)) {
            Ok(()) => Ok(Some(())),
            Err(why @ SendError::Full { .. }) => {
                full = Some(why);
                Ok(None)
            }
            Err(why) => Err(why),
        }
    });
    let no_room = || full.map_or_else(|| Fault::timed_out("room"), Fault::from);
    Ok(sent?.ok_or_else(no_room)?)
}

#[pymethods]
impl SendRight {
    /// Sends a message: a header of up to 4096 bytes, which is copied, and arrays, which move: they
    /// are the receiver's then, and closed here.
    ///
    /// It waits for room in the port's queue for at most `timeout` seconds (`None`: for as long as
    /// it takes), and raises `Full` then, or `DeadName` if the port is gone. `BufferError` while a
    /// view of an array lives. Whatever is raised, all arrays stay the caller's.
    #[pyo3(signature = (header = NOTHING, *arrays, rights = None, timeout = None))]
    fn send<'py>(
        &self,
        py: Python<'py>,
        header: &[u8],
        arrays: &Bound<'py, PyTuple>,
        rights: Option<&Bound<'py, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let timeout = Timeout::new(timeout)?;
        let right = self.right()?;
        let parts = Parts {
            header,
            arrays,
            rights,
        };
        parts.send(|message| deliver(py, message, &right, timeout))
    }

    /// The same, without blocking the event loop while the queue is full.
    #[pyo3(signature = (header = NOTHING, *arrays, rights = None))]
    fn send_async<'py>(
        slf: &Bound<'py, Self>,
        header: &[u8],
        arrays: &Bound<'py, PyTuple>,
        rights: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let module = slf.py().import("portolan._asyncio")?;
        module.call_method1("send", (slf, header, arrays, rights))
    }

    /// Sends a request to a synchronous port and waits for the answer, at most `timeout` seconds.
    ///
    /// `TimedOut` if none came; `ServerDead` at once when the server dies; `Dropped` if it dropped
    /// the request. What was not sent stays the caller's.
    #[pyo3(signature = (header = NOTHING, *arrays, rights = None, timeout = None))]
    fn request_reply<'py>(
        &self,
        py: Python<'py>,
        header: &[u8],
        arrays: &Bound<'py, PyTuple>,
        rights: Option<&Bound<'py, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<Message> {
        let timeout = Timeout::new(timeout)?;
        let pending = self.begin(py, header, arrays, rights, timeout)?;
        pending.wait_until(py, timeout)
    }

    /// Sends a request; the answer is waited for later: `begin_request(...).wait()`, or awaited.
    #[pyo3(signature = (header = NOTHING, *arrays, rights = None, timeout = None))]
    fn begin_request<'py>(
        &self,
        py: Python<'py>,
        header: &[u8],
        arrays: &Bound<'py, PyTuple>,
        rights: Option<&Bound<'py, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<PendingReply> {
        self.begin(py, header, arrays, rights, Timeout::new(timeout)?)
    }

    /// The same as `request_reply`, to be awaited.
    #[pyo3(signature = (header = NOTHING, *arrays, rights = None))]
    fn request_reply_async<'py>(
        slf: &Bound<'py, Self>,
        header: &[u8],
        arrays: &Bound<'py, PyTuple>,
        rights: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let module = slf.py().import("portolan._asyncio")?;
        module.call_method1("request_reply", (slf, header, arrays, rights))
    }

    /// How the port is, as things are: `"Live"`, `"Unreachable"` (on a node that is silent) or `"Dead"`.
    #[getter]
    fn state(&self) -> PyResult<&'static str> {
        Ok(match self.right()?.state() {
            RightState::Live => "Live",
            RightState::Unreachable => "Unreachable",
            _ => "Dead",
        })
    }

    /// Whether the port lives.
    fn is_live(&self) -> PyResult<bool> {
        Ok(self.right()?.is_live())
    }

    /// Asks that the port `notify` be told when the port of this right dies: a message whose
    /// `notice` is `"DeadName"` and whose `token` is this one. If it is dead, it is told at once.
    fn watch(&self, py: Python<'_>, notify: &Bound<'_, ReceiveRight>, token: u64) -> PyResult<()> {
        let right = self.right()?;
        notify
            .get()
            .with(py, |port| right.watch(port, token))?
            .map_err(|why| Fault::from(why).into())
    }

    /// Ends what `watch` with this port and token has begun.
    fn unwatch(
        &self,
        py: Python<'_>,
        notify: &Bound<'_, ReceiveRight>,
        token: u64,
    ) -> PyResult<()> {
        let right = self.right()?;
        notify.get().with(py, |port| right.unwatch(port, token))
    }

    /// Room in the port's queue, to be awaited.
    fn room(&self) -> PyResult<Room> {
        let (domain, right) = self.0.get()?;
        let room = Watched::new(domain, right.room());
        Ok(Room(Handle::new("room", room)))
    }

    fn __repr__(&self) -> String {
        format!("<portolan.SendRight: {}>", self.state().unwrap_or("closed"))
    }
}

closes! {
    /// Gives the right up.
    SendRight, |this, py| this.0.close(py)
}

impl SendRight {
    fn begin<'py>(
        &self,
        py: Python<'py>,
        header: &[u8],
        arrays: &Bound<'py, PyTuple>,
        rights: Option<&Bound<'py, PyAny>>,
        timeout: Timeout,
    ) -> PyResult<PendingReply> {
        let (domain, right) = self.0.get()?;
        let parts = Parts {
            header,
            arrays,
            rights,
        };
        PendingReply::begin(py, &parts, &right, &domain, timeout)
    }
}

/// Room in a port's queue.
#[pyclass(frozen, module = "portolan")]
#[derive(Debug)]
pub(crate) struct Room(Handle<Watched<portolan::Room>>);

#[pymethods]
impl Room {
    /// A descriptor that is readable while there may be room.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        self.0.fileno(py)
    }

    /// `True` if there is room, or the port is dead, which a send says. Otherwise `None`, and the
    /// descriptor is not readable until there is.
    fn _poll(&self) -> PyResult<Option<bool>> {
        let room = self.0.poll(|room, _| Ok(room.is_there().then_some(true)))?;
        Ok(room.map(|(_, is_there)| is_there))
    }
}

closes! {
    /// Ends it.
    Room, |this, py| this.0.close(py)
}

/// The right to send one message to a port.
#[pyclass(frozen, module = "portolan")]
#[derive(Debug)]
pub(crate) struct SendOnceRight(Handle<portolan::SendOnceRight>);

impl SendOnceRight {
    pub(crate) fn new(right: portolan::SendOnceRight) -> Self {
        Self(Handle::new("send-once right", right))
    }

    pub(crate) fn take(&self) -> Result<portolan::SendOnceRight, Fault> {
        self.0.take()
    }

    pub(crate) fn put_back(&self, right: portolan::SendOnceRight) {
        self.0.put_back(right);
    }

    /// Drops it unused.
    pub(crate) fn give_up(&self, py: Python<'_>) {
        self.0.close(py);
    }

    /// Sends it the message. The right is used up, unless the parts cannot be sent at all.
    pub(crate) fn answer(&self, py: Python<'_>, parts: &Parts<'_, '_>) -> PyResult<()> {
        parts.send(|message| {
            let right = self.take()?;
            let whole = std::mem::take(message);
            py.detach(|| right.send(whole)).map_err(|refused| {
                *message = *refused.item;
                Fault::from(refused.why).into()
            })
        })
    }
}

#[pymethods]
impl SendOnceRight {
    /// Sends the one message. The right is used up then.
    #[pyo3(signature = (header = NOTHING, *arrays, rights = None))]
    fn send<'py>(
        &self,
        py: Python<'py>,
        header: &[u8],
        arrays: &Bound<'py, PyTuple>,
        rights: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        self.answer(
            py,
            &Parts {
                header,
                arrays,
                rights,
            },
        )
    }
}

closes! {
    /// Drops it unused: the process that waits for the message is told.
    SendOnceRight, |this, py| this.0.close(py)
}

/// A right that Python can pass on, and nothing else: on memory that is only read.
#[pyclass(frozen, module = "portolan")]
#[derive(Debug)]
pub(crate) struct OtherRight(Handle<Right>);

impl OtherRight {
    pub(crate) fn new(right: Right) -> Self {
        Self(Handle::new("right", right))
    }

    pub(crate) fn take(&self) -> Result<Right, Fault> {
        self.0.take()
    }

    pub(crate) fn put_back(&self, right: Right) {
        self.0.put_back(right);
    }
}

closes! {
    /// Gives the right up.
    OtherRight, |this, py| this.0.close(py)
}
