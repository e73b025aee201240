//! What is sent and received.

use crate::array::Array;
use crate::buffer::Viewed;
use crate::channel::Channel;
use crate::closing::closes;
use crate::description::{self, Layout};
use crate::error::Fault;
use crate::port::ReceiveRight;
use crate::rights::{OtherRight, SendOnceRight, SendRight};
use crate::segment::Segment;
use portolan::{Domain, Extent, Notice, Right};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

/// What was received: a header, arrays, rights, or a notice.
///
/// It unpacks into its header and its arrays: `header, frame = port.receive()`. `with` closes the
/// arrays that are not sent on or closed by the end of the block.
#[pyclass(frozen, module = "portolan")]
#[derive(Debug)]
pub(crate) struct Message {
    /// The header.
    #[pyo3(get)]
    header: Py<PyBytes>,
    /// The arrays, in the order in which they were sent.
    #[pyo3(get)]
    arrays: Py<PyTuple>,
    /// The rights.
    #[pyo3(get)]
    rights: Py<PyTuple>,
    notice: Option<Notice>,
}

impl Message {
    /// A message of the library's as Python sees it.
    pub(crate) fn received(
        py: Python<'_>,
        domain: &Domain,
        mut message: portolan::Message,
    ) -> PyResult<Self> {
        let sizes: Vec<usize> = message.extents().iter().map(Extent::len).collect();
        let (len, layouts) = description::split(py, message.header(), &sizes)?;
        let header = PyBytes::new(py, &message.header()[..len]);
        let extents = message.split_off(0);
        let arrays = extents
            .into_iter()
            .zip(layouts)
            .map(|(extent, layout)| Array::new(extent, layout).into_pyobject(py))
            .collect::<Result<Vec<_>, _>>()?;
        let rights = message.take_rights();
        let rights = rights
            .into_iter()
            .map(|right| python_right(py, domain, right))
            .collect::<PyResult<Vec<_>>>()?;
        Ok(Self {
            header: header.unbind(),
            arrays: PyTuple::new(py, arrays)?.unbind(),
            rights: PyTuple::new(py, rights)?.unbind(),
            notice: message.notice(),
        })
    }

    pub(crate) fn arrays(&self) -> &Py<PyTuple> {
        &self.arrays
    }

    /// Closes the arrays that are here still.
    pub(crate) fn close_arrays(&self, py: Python<'_>) -> PyResult<()> {
        let mut outcome = Ok(());
        for array in self.arrays.bind(py).cast::<PyTuple>()? {
            let closed = array.cast::<Array>()?.get().memory().close(py);
            outcome = outcome.and(closed);
        }
        Ok(outcome?)
    }
}

fn python_right<'py>(
    py: Python<'py>,
    domain: &Domain,
    right: Right,
) -> PyResult<Bound<'py, PyAny>> {
    Ok(match right {
        Right::Send(right) => SendRight::new(domain.clone(), right)
            .into_pyobject(py)?
            .into_any(),
        Right::SendOnce(right) => SendOnceRight::new(right).into_pyobject(py)?.into_any(),
        Right::Receive(right) => ReceiveRight::new(domain.clone(), right)
            .into_pyobject(py)?
            .into_any(),
        Right::Segment(segment) => Segment::new(segment)?.into_pyobject(py)?.into_any(),
        other => OtherRight::new(other).into_pyobject(py)?.into_any(),
    })
}

#[pymethods]
impl Message {
    /// The first array; `ValueError` if there is none.
    #[getter]
    fn array<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let none = |_| Fault::new("ValueError", "this message has no array").into();
        self.arrays.bind(py).get_item(0).map_err(none)
    }

    /// The name of what the port was told, if this is no message: `"NoMoreSenders"`, `"DeadName"`,
    /// `"SendOnceDropped"`, `"Unreachable"`, `"Reachable"`.
    #[getter]
    fn notice(&self) -> Option<&'static str> {
        Some(match self.notice? {
            Notice::NoMoreSenders => "NoMoreSenders",
            Notice::SendOnceDropped => "SendOnceDropped",
            Notice::DeadName { .. } => "DeadName",
            Notice::Unreachable { .. } => "Unreachable",
            Notice::Reachable { .. } => "Reachable",
            _ => "other",
        })
    }

    /// What `watch` was given, if the notice is of a watched port.
    #[getter]
    fn token(&self) -> Option<u64> {
        match self.notice? {
            Notice::DeadName { token }
            | Notice::Unreachable { token }
            | Notice::Reachable { token } => Some(token),
            _ => None,
        }
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let all = PyList::new(py, [self.header.bind(py)])?;
        for array in self.arrays.bind(py) {
            all.append(array)?;
        }
        Ok(all.try_iter()?.into_any())
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        match self.notice() {
            Some(notice) => format!("<portolan.Message: notice {notice}>"),
            None => format!(
                "<portolan.Message: header {}, arrays {}, rights {}>",
                self.header.bind(py),
                self.arrays.bind(py),
                self.rights.bind(py)
            ),
        }
    }
}

closes! {
    /// Frees the arrays that are here still. `BufferError` while views of one live.
    Message, |this, py| this.close_arrays(py)?
}

/// What a message is made of, as Python gives it.
pub(crate) struct Parts<'a, 'py> {
    pub(crate) header: &'a [u8],
    pub(crate) arrays: &'a Bound<'py, PyTuple>,
    pub(crate) rights: Option<&'a Bound<'py, PyAny>>,
}

impl Parts<'_, '_> {
    /// Sends them by `send`, which leaves in the message what it has not sent. Whatever goes wrong, the
    /// objects have everything back.
    pub(crate) fn send<T>(
        &self,
        send: impl FnOnce(&mut portolan::Message) -> PyResult<T>,
    ) -> PyResult<T> {
        let mut outgoing = Outgoing::default();
        let mut message = portolan::Message::default();
        let sent = outgoing.fill(&mut message, self);
        match sent.and_then(|()| send(&mut message)) {
            Ok(done) => {
                outgoing.sent();
                Ok(done)
            }
            Err(why) => {
                outgoing.refused(message);
                Err(why)
            }
        }
    }
}

/// The Python objects that a message's parts come from: they are closed when it was sent, and get
/// everything back when it was not.
#[derive(Default)]
struct Outgoing<'py> {
    arrays: Vec<Bound<'py, Array>>,
    rights: Vec<Origin<'py>>,
}

/// What a right of a message comes from.
enum Origin<'py> {
    /// A clone goes; this one stays.
    Stays,
    SendOnce(Bound<'py, SendOnceRight>),
    Receive(Bound<'py, ReceiveRight>, Domain),
    Other(Bound<'py, OtherRight>),
}

impl<'py> Outgoing<'py> {
    /// Takes the parts out of their objects.
    fn fill(&mut self, message: &mut portolan::Message, parts: &Parts<'_, 'py>) -> PyResult<()> {
        let &Parts {
            header,
            arrays,
            rights,
        } = parts;
        for array in arrays {
            let array = array.cast_into::<Array>().map_err(|error| {
                let text = format!(
                    "what is sent beside a header are arrays of the domain (`domain.array`, or `domain.copy` of anything with a buffer): {error}"
                );
                PyErr::from(Fault::new("TypeError", text))
            })?;
            let extent = array.get().memory().take("sent")?;
            if let Err(refused) = message.push(extent) {
                array.get().memory().put_back(*refused.item);
                return Err(Fault::from(refused.why).into());
            }
            self.arrays.push(array);
        }
        let layouts: Vec<&Layout> = self.arrays.iter().map(|a| a.get().layout()).collect();
        let described = description::append(header, &layouts)?;
        message
            .set_header(described.as_deref().unwrap_or(header))
            .map_err(Fault::from)?;
        if let Some(rights) = rights {
            for right in rights.try_iter()? {
                self.attach(message, &right?)?;
            }
        }
        Ok(())
    }

    fn attach(
        &mut self,
        message: &mut portolan::Message,
        right: &Bound<'py, PyAny>,
    ) -> PyResult<()> {
        let (taken, origin) = if let Ok(right) = right.cast::<SendRight>() {
            (Right::Send(right.get().another()?), Origin::Stays)
        } else if let Ok(segment) = right.cast::<Segment>() {
            (Right::Segment(segment.get().another()?), Origin::Stays)
        } else if let Ok(channel) = right.cast::<Channel>() {
            (Right::Segment(channel.get().another()?), Origin::Stays)
        } else if let Ok(right) = right.cast::<SendOnceRight>() {
            let taken = Right::SendOnce(right.get().take()?);
            (taken, Origin::SendOnce(right.clone()))
        } else if let Ok(right) = right.cast::<ReceiveRight>() {
            let (domain, taken) = right.get().take()?;
            (
                Right::Receive(taken),
                Origin::Receive(right.clone(), domain),
            )
        } else if let Ok(right) = right.cast::<OtherRight>() {
            (right.get().take()?, Origin::Other(right.clone()))
        } else {
            let text = format!("{right} is no right on a port, a segment or a channel");
            return Err(Fault::new("TypeError", text).into());
        };
        match message.attach(taken) {
            Ok(()) => {
                self.rights.push(origin);
                Ok(())
            }
            Err(refused) => {
                origin.put_back(*refused.item);
                Err(Fault::from(refused.why).into())
            }
        }
    }

    /// It was sent: its parts are the receiver's.
    fn sent(self) {
        for array in &self.arrays {
            array.get().memory().gone();
        }
    }

    /// It was not sent, and nothing of it.
    fn refused(self, mut message: portolan::Message) {
        let rights = message.take_rights();
        for (origin, right) in self.rights.into_iter().zip(rights) {
            origin.put_back(right);
        }
        let mut extents = message.split_off(0).into_iter();
        for array in &self.arrays {
            let memory: &Viewed<Extent> = array.get().memory();
            match extents.next() {
                Some(extent) => memory.put_back(extent),
                None => memory.gone(),
            }
        }
    }
}

impl Origin<'_> {
    fn put_back(self, right: Right) {
        match (self, right) {
            (Self::SendOnce(origin), Right::SendOnce(right)) => origin.get().put_back(right),
            (Self::Receive(origin, domain), Right::Receive(right)) => {
                origin.get().put_back(domain, right);
            }
            (Self::Other(origin), right) => origin.get().put_back(right),
            (_, right) => drop(right),
        }
    }
}
