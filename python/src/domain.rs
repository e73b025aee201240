//! A process's membership in a domain.

use crate::array::Array;
use crate::bridge;
use crate::broker::Broker;
use crate::channel::{self, Channel};
use crate::closing::closes;
use crate::description::{Element, Layout};
use crate::error::Fault;
use crate::export::{self, Export, ExportMemory, Import};
use crate::port::ReceiveRight;
use crate::reconnect::{ReconnectingSender, ReconnectingSubscriber};
use crate::rights::SendRight;
use crate::segment::Segment;
use crate::signal::Listener;
use crate::topic::{self, Publisher, Subscriber, Wanted};
use crate::wait::{Shared, Timeout, far_patiently, patiently, waiting};
use portolan::channel::ChannelOptions;
use portolan::{BindError, ConnectError, ListenerOptions, PortOptions, Protection};
use pyo3::prelude::*;
use std::path::PathBuf;
use std::time::Duration;

/// This process's membership in a domain: the processes that hand memory to one another.
///
/// The first process to join makes the domain; nothing needs to run. It ends with its last member.
/// `with Domain.join("name") as domain` gives this handle up at the end; the process leaves when its
/// last port, right and array of the domain is gone too.
#[pyclass(frozen, module = "portolan", weakref)]
#[derive(Debug)]
pub(crate) struct Domain {
    domain: Shared<portolan::Domain>,
    name: String,
}

impl Domain {
    fn new(domain: portolan::Domain) -> Self {
        Self {
            name: domain.name().to_owned(),
            domain: Shared::new("domain", domain),
        }
    }

    pub(crate) fn get(&self) -> Result<portolan::Domain, Fault> {
        self.domain.get()
    }

    fn segment(
        &self,
        py: Python<'_>,
        name: &str,
        timeout: Option<f64>,
    ) -> PyResult<portolan::Segment> {
        let domain = self.get()?;
        let mut absent = None;
        let found = patiently(py, Timeout::new(timeout)?, |deadline| {
            found(domain.find_segment(name, deadline), &mut absent)
        })?;
        or_absent(found, absent)
    }

    /// An array of this layout. Memory may have to be taken from the kernel, which takes time.
    fn allocate_laid_out(&self, py: Python<'_>, layout: Layout) -> PyResult<Array> {
        let domain = self.get()?;
        let bytes = layout.bytes;
        let extent = py.detach(|| domain.allocate(bytes)).map_err(Fault::from)?;
        Ok(Array::new(extent, layout))
    }
}

#[pymethods]
impl Domain {
    /// Joins the domain of this name; makes it if it is not there (unless `create` is false).
    ///
    /// `size` (bytes of addresses), `limit` (bytes of memory), `protection` (`"trusted"` or
    /// `"guarded"`), `allow_users` and `allow_groups` hold if this process makes it. `path` has the
    /// members meet at a socket in that directory. `spanning` has this machine's node span it.
    #[staticmethod]
    #[pyo3(signature = (
        name, *, size = None, limit = None, protection = None, allow_users = None,
        allow_groups = None, of_user = None, create = true, spanning = false, space_name = None,
        path = None, timeout = None
    ))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn join(
        py: Python<'_>,
        name: &str,
        size: Option<u64>,
        limit: Option<u64>,
        protection: Option<&str>,
        allow_users: Option<Vec<u32>>,
        allow_groups: Option<Vec<u32>>,
        of_user: Option<u32>,
        create: bool,
        spanning: bool,
        space_name: Option<&str>,
        path: Option<PathBuf>,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        let mut builder = portolan::Domain::builder(name).create(create);
        if let Some(size) = size {
            builder = builder.size(size);
        }
        if let Some(limit) = limit {
            builder = builder.limit(limit);
        }
        if let Some(protection) = protection {
            builder = builder.protection(protection_of(protection)?);
        }
        for user in allow_users.unwrap_or_default() {
            builder = builder.allow_user(user);
        }
        for group in allow_groups.unwrap_or_default() {
            builder = builder.allow_group(group);
        }
        if let Some(user) = of_user {
            builder = builder.of_user(user);
        }
        if spanning {
            builder = builder.spanning();
        }
        if let Some(name) = space_name {
            builder = builder.space_name(name);
        }
        if let Some(path) = path {
            builder = builder.path(path);
        }
        if let Some(seconds) = timeout {
            let time = Duration::try_from_secs_f64(seconds.max(0.0));
            builder = builder.deadline(time.unwrap_or(Duration::MAX));
        }
        let joined = py.detach(|| builder.join()).map_err(Fault::from)?;
        Ok(Self::new(joined))
    }

    /// A domain of this process alone.
    #[staticmethod]
    fn private(py: Python<'_>) -> PyResult<Self> {
        let made = py.detach(portolan::Domain::private).map_err(Fault::from)?;
        Ok(Self::new(made))
    }

    /// The domain's name.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// This process's number in the domain.
    #[getter]
    fn space(&self) -> PyResult<u8> {
        Ok(self.get()?.space())
    }

    /// Whether this process hosts the domain now.
    fn is_host(&self) -> PyResult<bool> {
        Ok(self.get()?.is_host())
    }

    /// Raises `Disowned` if this process is no member any more.
    fn check(&self) -> PyResult<()> {
        Ok(self.get()?.check().map_err(Fault::from)?)
    }

    /// Memory for an array of this shape and element type (what `numpy.dtype` takes). What it holds
    /// is unspecified, as with `numpy.empty`. `AllocateError` at the domain's limit.
    fn array(
        &self,
        py: Python<'_>,
        shape: &Bound<'_, PyAny>,
        dtype: &Bound<'_, PyAny>,
    ) -> PyResult<Array> {
        let layout = Layout::new(Element::of_dtype(dtype)?, &Layout::shape_of(shape)?)?;
        self.allocate_laid_out(py, layout)
    }

    /// Memory for so many bytes.
    fn allocate(&self, py: Python<'_>, bytes: usize) -> PyResult<Array> {
        self.allocate_laid_out(py, Layout::of_bytes(bytes)?)
    }

    /// An array that holds a copy of anything that numpy takes for one.
    fn copy<'py>(slf: &Bound<'py, Self>, of: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let module = slf.py().import("portolan._dtype")?;
        module.call_method1("copy_into", (slf, of))
    }

    /// Binds a port; under `name`, others find it. Its queue holds at least `queue` messages. A
    /// `synchronous` port takes requests, which are answered.
    ///
    /// While another port has the name it waits at most `timeout` seconds (`None`: for as long as it
    /// takes), as for that of a process that was killed just now; `NameTaken` then.
    #[pyo3(signature = (
        name = None, *, queue = None, inline_bytes = None, synchronous = false, by_urgency = false,
        copied = false, spanned = false, timeout = 0.0
    ))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn bind(
        &self,
        py: Python<'_>,
        name: Option<&str>,
        queue: Option<usize>,
        inline_bytes: Option<usize>,
        synchronous: bool,
        by_urgency: bool,
        copied: bool,
        spanned: bool,
        timeout: Option<f64>,
    ) -> PyResult<ReceiveRight> {
        let mut options = name.map_or_else(PortOptions::unnamed, PortOptions::named);
        if let Some(queue) = queue {
            options = options.queue(queue);
        }
        if let Some(bytes) = inline_bytes {
            options = options.inline_bytes(bytes);
        }
        if synchronous {
            options = options.synchronous();
        }
        if by_urgency {
            options = options.by_urgency();
        }
        if copied {
            options = options.copied();
        }
        if spanned {
            options = options.spanned();
        }
        let domain = self.get()?;
        let mut taken = None;
        let bound = patiently(py, Timeout::new(timeout)?, |deadline| {
            match domain.bind_when_free(options.clone(), deadline) {
                Err(why @ BindError::NameTaken { .. }) => {
                    taken = Some(why);
                    Ok(None)
                }
                other => other.map(Some),
            }
        })?;
        let not_free = || taken.map_or_else(|| Fault::timed_out("name"), Fault::from);
        Ok(ReceiveRight::new(domain, bound.ok_or_else(not_free)?))
    }

    /// The right to send to the port of this name, waiting at most `timeout` seconds until there is
    /// one (`None`: for as long as it takes). `NoSuchPort` if there is none.
    #[pyo3(signature = (name, timeout = 0.0))]
    fn connect(&self, py: Python<'_>, name: &str, timeout: Option<f64>) -> PyResult<SendRight> {
        let domain = self.get()?;
        let mut absent = None;
        let found = far_patiently(py, Timeout::new(timeout)?, |deadline| {
            found(domain.connect(name, deadline), &mut absent)
        })?;
        let right = or_absent(found, absent)?;
        Ok(SendRight::new(domain, right))
    }

    /// Makes a segment of at least so many bytes, whole pages of zeros; under `name`, others find it.
    fn make_segment(&self, py: Python<'_>, name: Option<&str>, bytes: usize) -> PyResult<Segment> {
        let domain = self.get()?;
        let made = py.detach(|| domain.make_segment(name, bytes));
        Ok(Segment::new(made.map_err(Fault::from)?)?)
    }

    /// A right on the segment of this name, waiting at most `timeout` seconds until there is one.
    /// `NoSuchPort` if there is none.
    #[pyo3(signature = (name, timeout = 0.0))]
    fn find_segment(&self, py: Python<'_>, name: &str, timeout: Option<f64>) -> PyResult<Segment> {
        Ok(Segment::new(self.segment(py, name, timeout)?)?)
    }

    /// Makes a channel; under `name`, others find it.
    ///
    /// Its ring has `units` (1,024) of `unit` (64) bytes, 16 of which are a unit's head; a message
    /// takes whole units. Newest data wins, unless it is `reliable`: then the writer waits for the
    /// slowest of up to `readers` (8). `many_writers` write messages of one unit each. Readers are
    /// told of each message (`signal="message"`), at every so many bytes, or `"never"`. `content` is a
    /// number for readers to compare.
    #[pyo3(signature = (
        name = None, *, unit = None, units = None, readers = None, reliable = false,
        many_writers = false, signal = None, content = 0
    ))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn make_channel(
        &self,
        py: Python<'_>,
        name: Option<&str>,
        unit: Option<usize>,
        units: Option<u64>,
        readers: Option<u64>,
        reliable: bool,
        many_writers: bool,
        signal: Option<channel::Signal>,
        content: u64,
    ) -> PyResult<Channel> {
        let mut options = name.map_or_else(ChannelOptions::unnamed, ChannelOptions::named);
        if let Some(bytes) = unit {
            options = options.unit(bytes);
        }
        if let Some(units) = units {
            options = options.units(units);
        }
        if let Some(readers) = readers {
            options = options.readers(readers);
        }
        if reliable {
            options = options.reliable();
        }
        if many_writers {
            options = options.many_writers();
        }
        if let Some(signal) = signal {
            options = options.signal(signal.signalling()?);
        }
        Ok(Channel::make(py, self.get()?, &options.content(content))?)
    }

    /// A right on the channel of this name, waiting at most `timeout` seconds until there is one.
    /// `NoSuchPort` if there is none.
    #[pyo3(signature = (name, timeout = 0.0))]
    fn find_channel(&self, py: Python<'_>, name: &str, timeout: Option<f64>) -> PyResult<Channel> {
        let segment = self.segment(py, name, timeout)?;
        Ok(Channel::open(self.get()?, segment, name)?)
    }

    /// Signals an address in memory that the domain's members share (`segment.address + 64`): every
    /// handler whose range has it, in every process. How many listeners it reached, which may be none.
    fn signal(&self, address: usize) -> PyResult<usize> {
        Ok(self.get()?.signal(address).map_err(Fault::from)?)
    }

    /// A listener, which handles signals on the thread that waits with it. It holds `depth` (128) of
    /// them, 512 at most; one that finds it full is dropped and counted. It waits by `"adaptive"`
    /// looking and then sleeping, or by `"poll"` or `"sleep"` alone.
    #[pyo3(signature = (*, depth = None, waiting = "adaptive"))]
    fn listen(&self, depth: Option<usize>, waiting: &str) -> PyResult<Listener> {
        let mut options = ListenerOptions::default().waiting(self::waiting(waiting)?);
        if let Some(depth) = depth {
            options = options.depth(depth);
        }
        Ok(Listener::new(self.get()?, options)?)
    }

    /// Publishes samples under `topic`, of this element type (what `numpy.dtype` takes).
    #[pyo3(signature = (topic, dtype, *, history = 1, publishers = 8, subscribers = 32, copied = None))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn publisher(
        &self,
        py: Python<'_>,
        topic: &str,
        dtype: &Bound<'_, PyAny>,
        history: u64,
        publishers: u8,
        subscribers: u64,
        copied: Option<usize>,
    ) -> PyResult<Publisher> {
        let element = Element::of_dtype(dtype)?;
        let options = topic::options(history, publishers, subscribers, copied);
        Publisher::new(py, &self.get()?, topic, element, options)
    }

    /// Subscribes to the samples under `topic`, of all who publish there now and later. With a
    /// `dtype`, samples of another one are the error `OtherType`.
    #[pyo3(signature = (topic, dtype = None, *, history = 1, publishers = 8, subscribers = 32, copied = None))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn subscriber(
        &self,
        py: Python<'_>,
        topic: &str,
        dtype: Option<&Bound<'_, PyAny>>,
        history: u64,
        publishers: u8,
        subscribers: u64,
        copied: Option<usize>,
    ) -> PyResult<Subscriber> {
        let wanted = Wanted::new(topic, dtype, copied)?;
        let options = topic::options(history, publishers, subscribers, copied);
        Subscriber::new(py, &self.get()?, wanted, options)
    }

    /// What `portolan.reconnecting.Sender` is made of.
    fn _reconnecting_sender(&self, name: &str) -> PyResult<ReconnectingSender> {
        Ok(ReconnectingSender::new(self.get()?, name))
    }

    /// What `portolan.reconnecting.Subscriber` is made of.
    #[pyo3(signature = (topic, dtype = None, *, history = 1, publishers = 8, subscribers = 32, copied = None))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn _reconnecting_subscriber(
        &self,
        py: Python<'_>,
        topic: &str,
        dtype: Option<&Bound<'_, PyAny>>,
        history: u64,
        publishers: u8,
        subscribers: u64,
        copied: Option<usize>,
    ) -> PyResult<ReconnectingSubscriber> {
        let wanted = Wanted::new(topic, dtype, copied)?;
        let options = topic::options(history, publishers, subscribers, copied);
        ReconnectingSubscriber::new(py, &self.get()?, wanted, options)
    }

    /// Exports memory under a name, until the export is closed: importers may `"read"` it, `"write"` it,
    /// or do both (`"read_write"`). They are processes of these users and groups, or of the own user if
    /// neither are named; at most `importers` (4,096) of them.
    #[pyo3(signature = (
        memory, name, reach, *, users = None, groups = None, importers = None, timeout = None
    ))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn export(
        &self,
        py: Python<'_>,
        memory: &Bound<'_, ExportMemory>,
        name: &str,
        reach: &str,
        users: Option<Vec<u32>>,
        groups: Option<Vec<u32>>,
        importers: Option<usize>,
        timeout: Option<f64>,
    ) -> PyResult<Export> {
        let options = export::options(reach, users, groups, importers)?;
        let timeout = Timeout::new(timeout)?;
        Export::new(py, self.get()?, memory.get(), name, &options, timeout)
    }

    /// Imports what another member has exported under this name, waiting at most `timeout` seconds
    /// until there is such an export.
    #[pyo3(signature = (name, timeout = None))]
    fn import_(&self, py: Python<'_>, name: &str, timeout: Option<f64>) -> PyResult<Import> {
        let domain = self.get()?;
        let timeout = Timeout::new(timeout)?;
        Import::wait(py, timeout, |deadline| domain.import(name, deadline))
    }

    /// Imports what a member of that domain has exported, without joining the domain, which may be
    /// another user's (`of_user`).
    #[staticmethod]
    #[pyo3(signature = (domain, name, *, of_user = None, timeout = None))]
    fn import_from(
        py: Python<'_>,
        domain: &str,
        name: &str,
        of_user: Option<u32>,
        timeout: Option<f64>,
    ) -> PyResult<Import> {
        let mut builder = portolan::Domain::builder(domain);
        if let Some(user) = of_user {
            builder = builder.of_user(user);
        }
        let timeout = Timeout::new(timeout)?;
        Import::wait(py, timeout, |deadline| builder.import(name, deadline))
    }

    /// A right on a port that another domain offers under this name (`port.offer(...)` there), waiting
    /// at most `timeout` seconds until it does. The other domain may be another user's (`of_user`), and
    /// need not be one that this process may join; `token` is what the offer asks for.
    ///
    /// Sending is what it always is: up to `queue` messages (63) wait here, and go over while this
    /// process lives. Rights cannot go over. An answer takes `most_bytes` at most (256 MiB).
    #[pyo3(signature = (
        domain, name, *, of_user = None, token = None, queue = None, most_bytes = None,
        timeout = None
    ))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn connect_to(
        &self,
        py: Python<'_>,
        domain: &str,
        name: &str,
        of_user: Option<u32>,
        token: Option<&[u8]>,
        queue: Option<usize>,
        most_bytes: Option<u64>,
        timeout: Option<f64>,
    ) -> PyResult<SendRight> {
        let mut other = portolan::Domain::builder(domain);
        if let Some(user) = of_user {
            other = other.of_user(user);
        }
        let options = bridge::connect_options(token, queue, most_bytes)?;
        let timeout = Timeout::new(timeout)?;
        bridge::connect_to(py, &self.get()?, &other, name, &options, timeout)
    }

    /// Starts the thread of a `portolan.multiprocessing.Queue`.
    fn _broker(
        &self,
        puts: &Bound<'_, ReceiveRight>,
        gets: &Bound<'_, ReceiveRight>,
        unbounded: bool,
    ) -> PyResult<Broker> {
        let domain = self.get()?;
        let ((_, puts), (_, gets)) = (puts.get().take()?, gets.get().take()?);
        Ok(Broker::start(domain, puts, gets, unbounded)?)
    }

    /// Gives memory that no array uses back to the system; how many bytes.
    fn trim(&self, py: Python<'_>) -> PyResult<u64> {
        let domain = self.get()?;
        Ok(py.detach(|| domain.trim()).map_err(Fault::from)?)
    }

    /// Leaves the domain. `LeaveError` if ports, rights or arrays of it are left: the process leaves
    /// when the last of them is gone.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        let Some(domain) = self.domain.take() else {
            return Ok(());
        };
        Ok(py.detach(|| domain.leave()).map_err(Fault::from)?)
    }

    fn __repr__(&self) -> String {
        format!("<portolan.Domain {:?}>", self.name)
    }
}

closes! {
    /// Gives this handle up, as the end of a `with` block does.
    Domain, |this, py| this.domain.close(py)
}

/// That there is none yet is no error while the caller waits: a slice is over, and its time may not be.
fn found<T>(
    found: Result<T, ConnectError>,
    absent: &mut Option<ConnectError>,
) -> Result<Option<T>, ConnectError> {
    match found {
        Err(
            why @ (ConnectError::NoSuchPort { .. }
            | ConnectError::NoAnswer { .. }
            | ConnectError::Unreachable { .. }),
        ) => {
            *absent = Some(why);
            Ok(None)
        }
        other => other.map(Some),
    }
}

fn or_absent<T>(found: Option<T>, absent: Option<ConnectError>) -> PyResult<T> {
    let none = || absent.map_or_else(|| Fault::timed_out("answer"), Fault::from);
    Ok(found.ok_or_else(none)?)
}

fn protection_of(name: &str) -> Result<Protection, Fault> {
    match name {
        "trusted" => Ok(Protection::Trusted),
        "guarded" => Ok(Protection::Guarded),
        _ => {
            let text = format!("a domain is \"trusted\" or \"guarded\", not {name:?}");
            Err(Fault::new("ValueError", text))
        }
    }
}
