//! Requests: what a client waits for, and what a server answers.

use crate::closing::closes;
use crate::error::Fault;
use crate::message::{Message, Parts};
use crate::rights::{NOTHING, SendOnceRight};
use crate::wait::{Handle, Timeout, patiently_of};
use crate::watched::{Watched, until};
use portolan::{Access, Deadline, Domain, RequestError, SendError, WhenFull};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

/// A request on its way. `wait()` gives its answer, and so does `await pending`. Closed, it is
/// abandoned.
#[pyclass(frozen, module = "portolan")]
#[derive(Debug)]
pub(crate) struct PendingReply(Handle<Watched<portolan::PendingReply>>);

/// What became of one attempt to send a request.
fn begun(
    sent: Result<portolan::PendingReply, RequestError>,
    message: &mut portolan::Message,
) -> Result<Option<portolan::PendingReply>, Fault> {
    match sent {
        Ok(pending) => Ok(Some(pending)),
        Err(RequestError::Unsent(refused)) => {
            *message = *refused.item;
            match refused.why {
                SendError::Full { .. } => Ok(None),
                why => Err(why.into()),
            }
        }
        Err(RequestError::NoReplyPort(why, unsent)) => {
            *message = *unsent;
            Err((*why).into())
        }
        Err(why) => Err(why.into()),
    }
}

fn answer(
    pending: &mut portolan::PendingReply,
    deadline: Deadline,
) -> Result<Option<portolan::Message>, Fault> {
    match pending.wait(Access::Later, deadline) {
        Ok(message) => Ok(Some(message)),
        Err(RequestError::TimedOut) => Ok(None),
        Err(why) => Err(why.into()),
    }
}

impl PendingReply {
    /// Sends a request, waiting for room until the timeout.
    pub(crate) fn begin(
        py: Python<'_>,
        parts: &Parts<'_, '_>,
        right: &portolan::SendRight,
        domain: &Domain,
        timeout: Timeout,
    ) -> PyResult<Self> {
        let pending = parts.send(|message| {
            // As a message.
            let bytes = message.len();
            let begun = patiently_of(py, bytes, timeout, |deadline| {
                let whole = std::mem::take(message);
                begun(
                    right.begin_request(whole, WhenFull::from(deadline)),
                    message,
                )
            });
            let text = "the port's queue is full: wait longer, or let the server catch up";
            Ok(begun?.ok_or_else(|| Fault::new("Full", text))?)
        })?;
        let watched = Watched::new(domain.clone(), pending);
        Ok(Self(Handle::new("request", watched)))
    }

    pub(crate) fn wait_until(&self, py: Python<'_>, timeout: Timeout) -> PyResult<Message> {
        let (domain, answer) = self.0.wait(py, timeout, "answer", answer)?;
        Message::received(py, &domain, answer)
    }
}

#[pymethods]
impl PendingReply {
    /// Waits for the answer, at most `timeout` seconds. After `TimedOut` it can be waited for again.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Message> {
        self.wait_until(py, Timeout::new(timeout)?)
    }

    /// The same, to be awaited; `await pending` does it too.
    fn wait_async<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        until(slf, "_poll")
    }

    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::wait_async(slf)?.call_method0("__await__")
    }

    fn _poll(&self, py: Python<'_>) -> PyResult<Option<Message>> {
        let received = |(domain, answer)| Message::received(py, &domain, answer);
        self.0.poll(answer)?.map(received).transpose()
    }

    /// A descriptor that is readable while the answer may be there.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        self.0.fileno(py)
    }
}

closes! {
    /// Abandons the request: a late answer goes nowhere.
    PendingReply, |this, py| this.0.close(py)
}

/// A request that was received, to be answered: by any thread, in any order. Closed unanswered, it
/// gives its client the error `Dropped`.
#[pyclass(frozen, module = "portolan")]
#[derive(Debug)]
pub(crate) struct Request {
    /// What was asked.
    #[pyo3(get)]
    message: Py<Message>,
    /// The right to answer; none for notices.
    answer: Option<SendOnceRight>,
}

impl Request {
    pub(crate) fn received(
        py: Python<'_>,
        domain: &Domain,
        request: portolan::Request,
    ) -> PyResult<Self> {
        let (message, answer) = request.into_parts();
        Ok(Self {
            message: Py::new(py, Message::received(py, domain, message)?)?,
            answer: answer.map(SendOnceRight::new),
        })
    }
}

#[pymethods]
impl Request {
    /// The header of the message.
    #[getter]
    fn header<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(self.message.bind(py).getattr("header")?.cast_into()?)
    }

    /// The arrays of the message.
    #[getter]
    fn arrays(&self, py: Python<'_>) -> Py<PyTuple> {
        self.message.get().arrays().clone_ref(py)
    }

    /// Whether a client waits for an answer; not for notices.
    fn wants_reply(&self) -> bool {
        self.answer.is_some()
    }

    /// Answers; the arrays may be those that came. `DeadName` if the client is gone: the arrays stay
    /// the server's.
    #[pyo3(signature = (header = NOTHING, *arrays, rights = None))]
    fn reply<'py>(
        &self,
        py: Python<'py>,
        header: &[u8],
        arrays: &Bound<'py, PyTuple>,
        rights: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        match &self.answer {
            Some(answer) => answer.answer(
                py,
                &Parts {
                    header,
                    arrays,
                    rights,
                },
            ),
            None => Err(Fault::new("DeadName", "nobody waits for an answer to a notice").into()),
        }
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        format!("<portolan.Request: {}>", self.message.bind(py))
    }
}

closes! {
    /// Frees the arrays that are here still, and drops the request if it is not answered.
    Request, |this, py| {
        if let Some(answer) = &this.answer {
            answer.give_up(py);
        }
        this.message.get().close_arrays(py)?
    }
}
