//! Channels: streams that are written once for all readers.

use crate::closing::closes;
use crate::data::Data;
use crate::error::Fault;
use crate::segment::{Segment, python_range};
use crate::wait::{Handle, MANY_BYTES, Shared, Timeout, patiently_of, waiting};
use crate::watched::{Watched, until};
use portolan::channel::{
    ChannelError, ChannelOptions, Lagging, ReadError, ReaderOptions, Signalling, Since, WriteError,
};
use portolan::{Deadline, Domain, Refused};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// A right to a channel: a stream in memory that its writer and its readers share.
///
/// One process writes (`bind_writer`), any number read (`bind_reader`), each at its own pace. A
/// message is written once for all readers. `rights=[channel]` sends another right, which arrives as
/// the `Segment` that it is: see `of_segment`.
#[pyclass(frozen, module = "portolan")]
#[derive(Debug)]
pub(crate) struct Channel(Shared<(Domain, portolan::channel::Channel)>);

/// When readers are told, as Python says it.
#[derive(FromPyObject)]
pub(crate) enum Signal {
    Bytes(u32),
    Name(String),
}

impl Signal {
    pub(crate) fn signalling(&self) -> Result<Signalling, Fault> {
        match self {
            Self::Bytes(bytes) => Ok(Signalling::Bytes(*bytes)),
            Self::Name(name) if name == "message" => Ok(Signalling::Message),
            Self::Name(name) if name == "never" => Ok(Signalling::Never),
            Self::Name(name) => {
                let text = format!(
                    "a channel signals at each \"message\", \"never\", or at every so many bytes: not {name:?}"
                );
                Err(Fault::new("ValueError", text))
            }
        }
    }
}

impl Channel {
    pub(crate) fn make(
        py: Python<'_>,
        domain: Domain,
        options: &ChannelOptions,
    ) -> Result<Self, Fault> {
        // It takes memory from the kernel.
        let channel = py.detach(|| domain.make_channel(options))?;
        Ok(Self(Shared::new("channel", (domain, channel))))
    }

    /// The channel that a segment holds; of that `name`, if it has one.
    pub(crate) fn open(
        domain: Domain,
        segment: portolan::Segment,
        name: &str,
    ) -> Result<Self, Fault> {
        match portolan::channel::Channel::try_from(segment) {
            Ok(channel) => Ok(Self(Shared::new("channel", (domain, channel)))),
            Err(Refused { why, .. }) => {
                let name = name.to_owned();
                Err(ChannelError::NotAChannel { name, why }.into())
            }
        }
    }

    /// Another right on the same memory, to travel.
    pub(crate) fn another(&self) -> Result<portolan::Segment, Fault> {
        Ok(self.channel()?.into())
    }

    fn channel(&self) -> Result<portolan::channel::Channel, Fault> {
        Ok(self.0.get()?.1)
    }
}

#[pymethods]
impl Channel {
    /// The channel that a segment of the domain holds, which came in a message.
    #[staticmethod]
    fn of_segment(
        domain: &Bound<'_, crate::domain::Domain>,
        segment: &Bound<'_, Segment>,
    ) -> PyResult<Self> {
        let segment = segment.get().another()?;
        Ok(Self::open(domain.get().get()?, segment, "")?)
    }

    /// Makes this process the one that writes; on a channel of many writers, one of them. It goes on
    /// where the last writer stopped. `ChannelError` while another process writes.
    fn bind_writer(&self) -> PyResult<Writer> {
        let writer = self.channel()?.bind_writer().map_err(Fault::from)?;
        Ok(Writer(Handle::new("writer", writer)))
    }

    /// A reader of its own pace, from now on, or from so many units ago (`since`).
    ///
    /// On a reliable channel the writer waits for it if it lags (`lagging="wait"`), drops it
    /// (`"drop"`), or lets it miss messages (`"skip"`, as on any other channel). It waits by
    /// `"adaptive"` looking and then sleeping, or by `"poll"` or `"sleep"` alone.
    #[pyo3(signature = (*, since = 0, lagging = "wait", waiting = "adaptive"))]
    #[pyo3(name = "bind_reader")]
    fn bind_a_reader(&self, since: u64, lagging: &str, waiting: &str) -> PyResult<Reader> {
        let lagging = match lagging {
            "wait" => Lagging::Wait,
            "skip" => Lagging::Skip,
            "drop" => Lagging::Drop,
            _ => {
                let text = format!(
                    "a reader that lags is \"wait\"ed for, \"skip\"s, or is \"drop\"ped: not {lagging:?}"
                );
                return Err(Fault::new("ValueError", text).into());
            }
        };
        let since = match since {
            0 => Since::Now,
            units => Since::Last(units),
        };
        let options = ReaderOptions::default().lagging(lagging).since(since);
        let how = self::waiting(waiting)?;
        let (domain, channel) = self.0.get()?;
        let mut reader = channel.bind_reader(options).map_err(Fault::from)?;
        reader.set_waiting(how);
        Ok(Reader(Handle::new("reader", Watched::new(domain, reader))))
    }

    /// The number of the process that writes, if one does; `None` on a channel of many writers.
    #[getter]
    fn writer(&self) -> PyResult<Option<u8>> {
        Ok(self.channel()?.writer())
    }

    /// Bytes of a unit, its 16 bytes of head included.
    #[getter]
    fn unit(&self) -> PyResult<usize> {
        Ok(self.channel()?.unit())
    }

    /// Units of the ring.
    #[getter]
    fn units(&self) -> PyResult<u64> {
        Ok(self.channel()?.units())
    }

    /// Bytes that one message may have.
    #[getter]
    fn longest(&self) -> PyResult<usize> {
        Ok(self.channel()?.longest())
    }

    /// What its maker says of its content.
    #[getter]
    fn content(&self) -> PyResult<u64> {
        Ok(self.channel()?.content())
    }

    /// Whether the writer waits for readers.
    fn is_reliable(&self) -> PyResult<bool> {
        Ok(self.channel()?.is_reliable())
    }

    /// Whether several may write.
    fn has_many_writers(&self) -> PyResult<bool> {
        Ok(self.channel()?.has_many_writers())
    }

    /// The addresses of its units, as a `range`: for handlers of signals.
    #[getter]
    fn addresses<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        python_range(py, self.channel()?.addresses())
    }

    /// The place in the ring of the unit at this address; `None` if no unit is there.
    fn place_of(&self, address: usize) -> PyResult<Option<u64>> {
        Ok(self.channel()?.place_of(address))
    }

    fn __repr__(&self) -> String {
        match self.channel() {
            Ok(channel) => {
                let (units, unit) = (channel.units(), channel.unit());
                format!("<portolan.Channel: {units} units of {unit} bytes>")
            }
            Err(_) => "<portolan.Channel: closed>".to_owned(),
        }
    }
}

closes! {
    /// Gives the right up. Writers and readers that were bound go on.
    Channel, |this, py| this.0.close(py)
}

/// Writes to a channel.
#[pyclass(frozen, module = "portolan")]
#[derive(Debug)]
pub(crate) struct Writer(Handle<portolan::channel::Writer>);

impl Writer {
    /// Does `act` until it is done; that readers, or other writers, are in the way is the error once
    /// the timeout has passed. It copies so many bytes.
    fn patiently<R: Send>(
        &self,
        py: Python<'_>,
        bytes: usize,
        timeout: Option<f64>,
        mut act: impl FnMut(&mut portolan::channel::Writer, Deadline) -> Result<R, WriteError> + Send,
    ) -> PyResult<R> {
        let mut obstacle = None;
        let done = patiently_of(py, bytes, Timeout::new(timeout)?, |deadline| {
            let Some(mut writer) = self.0.lend_until(deadline)? else {
                return Ok(None);
            };
            match act(&mut writer, deadline) {
                Ok(done) => Ok(Some(done)),
                Err(why @ (WriteError::Full { .. } | WriteError::Contended)) => {
                    obstacle = Some(why);
                    Ok(None)
                }
                Err(why) => Err(Fault::from(why)),
            }
        })?;
        let not_done = || obstacle.map_or_else(|| Fault::timed_out("turn"), Fault::from);
        Ok(done.ok_or_else(not_done)?)
    }
}

#[pymethods]
impl Writer {
    /// Writes a message (anything with a buffer), and gives its position.
    ///
    /// On a reliable channel it waits for room for at most `timeout` seconds (`None`: for as long as
    /// it takes), and raises `Full` then: readers see nothing of the message.
    #[pyo3(signature = (data, timeout = None))]
    fn write(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        let data = Data::of(data)?;
        let bytes = data.bytes();
        self.patiently(py, bytes.len(), timeout, |writer, deadline| {
            writer.write(bytes, deadline)
        })
    }

    /// Adds bytes to the message that is being written, or begins one, which may be longer than the
    /// ring. Readers see them with `receive_some`. After `Full`, `added` bytes have been written.
    #[pyo3(signature = (data, timeout = None))]
    fn append(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let data = Data::of(data)?;
        let bytes = data.bytes();
        let mut added = 0;
        let appended = self.patiently(py, bytes.len(), timeout, |writer, deadline| {
            while added < bytes.len() {
                added += writer.append_some(&bytes[added..], deadline)?;
            }
            Ok(())
        });
        appended.inspect_err(|why| {
            // Only an error of the library's is given the attribute.
            let _ = why.value(py).setattr("added", added);
        })
    }

    /// Lets readers see what was appended.
    fn show(&self, py: Python<'_>) -> PyResult<()> {
        self.0.lend_soon(py)?.show();
        Ok(())
    }

    /// Ends the message that is being written; one that was never begun is empty.
    #[pyo3(signature = (timeout = None))]
    fn end(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.patiently(py, 0, timeout, portolan::channel::Writer::end)
    }

    /// The position that is written next; of many writers, about.
    #[getter]
    fn position(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.0.lend_soon(py)?.position())
    }
}

closes! {
    /// Ends it: readers are told once they have read all.
    Writer, |this, py| this.0.close(py)
}

/// Reads a channel at its own pace.
#[pyclass(frozen, module = "portolan")]
#[derive(Debug)]
pub(crate) struct Reader(Handle<Watched<portolan::channel::Reader>>);

/// A message of a channel, or its next piece.
#[pyclass(frozen, module = "portolan")]
#[derive(Debug)]
pub(crate) struct Received {
    /// Its bytes.
    #[pyo3(get)]
    data: Py<PyBytes>,
    /// The position of the message's first unit.
    #[pyo3(get)]
    position: u64,
    is_complete: bool,
}

#[pymethods]
impl Received {
    /// Whether the message ends here.
    fn is_complete(&self) -> bool {
        self.is_complete
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let (data, position) = (self.data.bind(py), self.position);
        format!("<portolan.Received: {data} at {position}>")
    }
}

/// How long a message is says only its end.
const ANY_BYTES: usize = usize::MAX;

/// What was received, for a thread that has no lock of the interpreter's.
struct Copied {
    bytes: Vec<u8>,
    position: u64,
    is_complete: bool,
}

impl Copied {
    fn received(self, py: Python<'_>) -> PyResult<Received> {
        let bytes = &self.bytes;
        let data = match bytes.len() <= MANY_BYTES {
            true => PyBytes::new(py, bytes),
            false => PyBytes::new_with(py, bytes.len(), |room| {
                py.detach(|| room.copy_from_slice(bytes));
                Ok(())
            })?,
        };
        Ok(Received {
            data: data.unbind(),
            position: self.position,
            is_complete: self.is_complete,
        })
    }
}

fn there(
    received: Result<portolan::channel::Received<'_>, ReadError>,
) -> Result<Option<Copied>, Fault> {
    match received {
        Ok(received) => Ok(Some(Copied {
            bytes: received.to_vec(),
            position: received.position(),
            is_complete: received.is_complete(),
        })),
        Err(ReadError::TimedOut) => Ok(None),
        Err(why) => Err(why.into()),
    }
}

fn message(
    reader: &mut portolan::channel::Reader,
    deadline: Deadline,
) -> Result<Option<Copied>, Fault> {
    there(reader.receive(deadline))
}

fn piece(
    reader: &mut portolan::channel::Reader,
    deadline: Deadline,
) -> Result<Option<Copied>, Fault> {
    there(reader.receive_some(deadline))
}

#[pymethods]
impl Reader {
    /// The next message, waiting at most `timeout` seconds. `TimedOut` if none came.
    ///
    /// `Missed` if units were overwritten before they were read, and `WriterGone` once all that a
    /// writer has written was read: read on after either.
    #[pyo3(signature = (timeout = None))]
    fn receive(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Received> {
        let timeout = Timeout::new(timeout)?;
        let (_, copied) = self.0.wait_of(py, ANY_BYTES, timeout, "message", message)?;
        copied.received(py)
    }

    /// The same, to be awaited. A call that is cancelled loses nothing.
    fn receive_async<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        until(slf, "_poll")
    }

    /// What there is to read of a message that may still be being written, from where the last piece
    /// ended. After `Missed` the rest of a message will not come.
    #[pyo3(signature = (timeout = None))]
    fn receive_some(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Received> {
        let timeout = Timeout::new(timeout)?;
        let (_, copied) = self.0.wait_of(py, ANY_BYTES, timeout, "bytes", piece)?;
        copied.received(py)
    }

    fn _poll(&self, py: Python<'_>) -> PyResult<Option<Received>> {
        let copied = py.detach(|| self.0.poll(message))?;
        copied.map(|(_, copied)| copied.received(py)).transpose()
    }

    /// A descriptor that is readable while there may be something.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        self.0.fileno(py)
    }

    /// From now on every signalling unit that is written is signalled, by its address, to the
    /// handlers that listeners have for it. Add the handlers first (`listener.on(channel.addresses,
    /// ...)`), then enable, then read what is there.
    fn enable(&self, py: Python<'_>) -> PyResult<()> {
        let mut reader = self.0.lend_soon(py)?;
        Ok(reader.get()?.enable().map_err(Fault::from)?)
    }

    /// Ends what `enable` has begun.
    fn disable(&self, py: Python<'_>) -> PyResult<()> {
        self.0.lend_soon(py)?.get()?.disable();
        Ok(())
    }

    /// The position that it reads next.
    #[getter]
    fn position(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.0.lend_soon(py)?.look()?.position())
    }

    /// Whether a writer is bound; `False` for a channel of many writers.
    fn has_writer(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.0.lend_soon(py)?.look()?.has_writer())
    }
}

closes! {
    /// Ends it. A writer that waited for it goes on; a thread that waits with it gets `Closed`.
    Reader, |this, py| this.0.close(py)
}
