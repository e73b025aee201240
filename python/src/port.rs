//! The right to receive from a port.

use crate::bridge::{self, OfferedPort};
use crate::closing::closes;
use crate::error::Fault;
use crate::message::Message;
use crate::request::Request;
use crate::rights::SendRight;
use crate::wait::{Handle, Timeout};
use crate::watched::{Watched, until};
use portolan::{Access, Deadline, Domain, ReceiveError};
use pyo3::prelude::*;

/// The right to receive from a port. Closed, it closes the port.
///
/// One thread receives at a time; others wait for their turn. `fileno()` is a descriptor for
/// `selectors` and the like, and `await port.receive_async()` uses it in asyncio.
#[pyclass(frozen, module = "portolan")]
#[derive(Debug)]
pub(crate) struct ReceiveRight {
    port: Handle<Watched<portolan::ReceiveRight>>,
}

/// Nothing there yet is no error of an attempt.
fn there<T>(received: Result<T, ReceiveError>) -> Result<Option<T>, Fault> {
    match received {
        Ok(received) => Ok(Some(received)),
        Err(ReceiveError::TimedOut) => Ok(None),
        Err(why) => Err(why.into()),
    }
}

fn message(
    port: &mut portolan::ReceiveRight,
    deadline: Deadline,
) -> Result<Option<portolan::Message>, Fault> {
    there(port.receive(Access::Later, deadline))
}

fn request(
    port: &mut portolan::ReceiveRight,
    deadline: Deadline,
) -> Result<Option<portolan::Request>, Fault> {
    there(port.get_request(Access::Later, deadline))
}

impl ReceiveRight {
    pub(crate) fn new(domain: Domain, port: portolan::ReceiveRight) -> Self {
        Self {
            port: Handle::new("port", Watched::new(domain, port)),
        }
    }

    /// Takes the port, to be sent; and its domain, for when it is not.
    pub(crate) fn take(&self) -> Result<(Domain, portolan::ReceiveRight), Fault> {
        let port = self.port.take()?;
        let domain = port.domain().clone();
        let port = port.into_inner().ok_or_else(|| self.port.closed())?;
        Ok((domain, port))
    }

    pub(crate) fn put_back(&self, domain: Domain, port: portolan::ReceiveRight) {
        self.port.put_back(Watched::new(domain, port));
    }

    /// Looks at the port.
    pub(crate) fn with<R>(
        &self,
        py: Python<'_>,
        look: impl FnOnce(&portolan::ReceiveRight) -> R,
    ) -> PyResult<R> {
        Ok(look(self.port.lend_soon(py)?.look()?))
    }
}

#[pymethods]
impl ReceiveRight {
    /// Receives a message, waiting at most `timeout` seconds (`None`: for as long as it takes).
    /// `TimedOut` if none came.
    #[pyo3(signature = (timeout = None))]
    fn receive(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Message> {
        let timeout = Timeout::new(timeout)?;
        let (domain, message) = self.port.wait(py, timeout, "message", message)?;
        Message::received(py, &domain, message)
    }

    /// The same, to be awaited. A call that is cancelled loses nothing.
    fn receive_async<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        until(slf, "_poll")
    }

    /// Receives a request from a synchronous port, waiting at most `timeout` seconds.
    #[pyo3(signature = (timeout = None))]
    fn get_request(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Request> {
        let timeout = Timeout::new(timeout)?;
        let (domain, request) = self.port.wait(py, timeout, "request", request)?;
        Request::received(py, &domain, request)
    }

    /// The same, to be awaited.
    fn get_request_async<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        until(slf, "_poll_request")
    }

    fn _poll(&self, py: Python<'_>) -> PyResult<Option<Message>> {
        let received = |(domain, message)| Message::received(py, &domain, message);
        self.port.poll(message)?.map(received).transpose()
    }

    fn _poll_request(&self, py: Python<'_>) -> PyResult<Option<Request>> {
        let received = |(domain, request)| Request::received(py, &domain, request);
        self.port.poll(request)?.map(received).transpose()
    }

    /// A descriptor that is readable while there may be something: call `receive(0)` until it
    /// raises `TimedOut`, then wait for the descriptor again.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        self.port.fileno(py)
    }

    /// A new right to send to this port.
    fn make_send(&self, py: Python<'_>) -> PyResult<SendRight> {
        let mut port = self.port.lend_soon(py)?;
        let right = port.get()?.make_send();
        Ok(SendRight::new(port.domain().clone(), right))
    }

    /// Asks to be told, once, when no right to send to this port is left anywhere: a message whose
    /// `notice` is `"NoMoreSenders"`.
    fn request_no_more_senders(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, portolan::ReceiveRight::request_no_more_senders)
    }

    /// Offers the port to other domains under a name, until what is returned is closed
    /// (`domain.connect_to(...)` there).
    ///
    /// Processes of these users and groups may connect, of the own user if neither are named, or
    /// `anyone`; a `token` of 16 bytes is asked for in addition. What comes is a copy without rights, of
    /// at most `most_bytes` (256 MiB). A client that breaks the rules is thrown out, and recorded. The
    /// domain's host may take `timeout` seconds.
    #[pyo3(signature = (
        name, *, users = None, groups = None, anyone = false, token = None, most_bytes = None,
        most_clients = None, most_requests = None, timeout = Some(5.0)
    ))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn offer(
        &self,
        py: Python<'_>,
        name: &str,
        users: Option<Vec<u32>>,
        groups: Option<Vec<u32>>,
        anyone: bool,
        token: Option<&[u8]>,
        most_bytes: Option<u64>,
        most_clients: Option<usize>,
        most_requests: Option<usize>,
        timeout: Option<f64>,
    ) -> PyResult<OfferedPort> {
        let permissions = bridge::permissions(users, groups, anyone, token)?;
        let timeout = Timeout::new(timeout)?;
        let options = bridge::offer_options(most_bytes, most_clients, most_requests, timeout);
        let mut port = self.port.lend_soon(py)?;
        let port = port.get()?;
        let offered = py.detach(|| port.offer(name, &permissions, options));
        Ok(OfferedPort::new(offered.map_err(Fault::from)?))
    }

    /// How many rights to send to it there are.
    #[getter]
    fn senders(&self, py: Python<'_>) -> PyResult<u32> {
        self.with(py, portolan::ReceiveRight::senders)
    }

    /// Messages that wait.
    #[getter]
    fn depth(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, portolan::ReceiveRight::depth)
    }

    /// The name under which others find it.
    #[getter]
    fn name(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.with(py, portolan::ReceiveRight::name)
    }

    /// Whether it was closed or sent.
    #[getter]
    fn closed(&self) -> bool {
        self.port.is_closed()
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        match self.with(py, portolan::ReceiveRight::name) {
            Ok(Some(name)) => format!("<portolan.ReceiveRight {name:?}>"),
            _ if self.closed() => "<portolan.ReceiveRight: closed>".to_owned(),
            _ => "<portolan.ReceiveRight>".to_owned(),
        }
    }
}

closes! {
    /// Closes the port. A thread that waits at it gets `Closed`.
    ReceiveRight, |this, py| this.port.close(py)
}
