//! Topics of numpy types, structured ones too.
//!
//! To a Rust program such a topic is one of bytes (`[u8]`). Behind the elements of a sample stands
//! their description, as behind the header of a message; samples of bytes of one dimension have
//! none, so Rust programs publish and subscribe to them as they are.

use crate::buffer::{Viewed, copy_out, shows};
use crate::closing::closes;
use crate::description::{self, Element, Layout};
use crate::error::Fault;
use crate::wait::{Handle, MANY_BYTES, Timeout, patiently_of};
use crate::watched::until;
use portolan::Deadline;
use portolan::channel::{SubscribeError, TopicOptions};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use std::os::fd::AsRawFd;

pub(crate) fn options(
    history: u64,
    publishers: u8,
    subscribers: u64,
    copied: Option<usize>,
) -> TopicOptions {
    let options = TopicOptions::default()
        .history(history)
        .publishers(publishers)
        .subscribers(subscribers);
    match copied {
        Some(bytes) => options.copied(bytes),
        None => options,
    }
}

/// Publishes samples of one element type.
#[pyclass(frozen, module = "portolan")]
#[derive(Debug)]
pub(crate) struct Publisher {
    publisher: Handle<portolan::channel::Publisher<[u8]>>,
    element: Element,
}

impl Publisher {
    pub(crate) fn new(
        py: Python<'_>,
        domain: &portolan::Domain,
        topic: &str,
        element: Element,
        options: TopicOptions,
    ) -> PyResult<Self> {
        // It meets the topic's other members, and takes memory.
        let made = py.detach(|| domain.publisher::<[u8]>(topic, options));
        let publisher = made.map_err(Fault::from)?;
        Ok(Self {
            publisher: Handle::new("publisher", publisher),
            element,
        })
    }
}

#[pymethods]
impl Publisher {
    /// Publishes a sample: anything that numpy takes for an array of the topic's element type. It is
    /// copied once, for all subscribers. Returns its number.
    fn publish(&self, py: Python<'_>, sample: &Bound<'_, PyAny>) -> PyResult<u64> {
        let module = py.import("portolan._dtype")?;
        let descr = &*self.element.descr;
        let (bytes, shape, last): (PyBuffer<u8>, Vec<usize>, Vec<u8>) =
            module.call_method1("sample", (sample, descr))?.extract()?;
        let layout = Layout::new(self.element.clone(), &shape)?;
        let mut described = description::append(&last, &[&layout])?.unwrap_or_default();
        // The elements end in these, and are copied as a whole.
        described.drain(..last.len().min(described.len()));
        let mut publisher = self.publisher.lend_soon(py)?;
        let count = bytes.item_count();
        let loan = publisher.loan(count + described.len());
        let mut loan = loan.map_err(Fault::from)?;
        let (elements, tail) = loan.split_at_mut(count);
        copy_out(py, &bytes, elements)?;
        tail.copy_from_slice(&described);
        // A short one is copied once more, and what is short the topic's maker has said.
        let published = match count <= MANY_BYTES {
            true => loan.publish(),
            false => py.detach(|| loan.publish()),
        };
        Ok(published.map_err(Fault::from)?)
    }

    /// Which of the topic's publishers it is.
    #[getter]
    fn id(&self) -> PyResult<u8> {
        Ok(self.publisher.lend_now()?.id())
    }
}

closes! {
    /// Ends it.
    Publisher, |this, py| this.publisher.close(py)
}

/// Gets the samples of all publishers of a topic.
#[pyclass(frozen, module = "portolan")]
#[derive(Debug)]
pub(crate) struct Subscriber {
    subscriber: Handle<portolan::channel::Subscriber<[u8]>>,
    wanted: Wanted,
}

impl Subscriber {
    pub(crate) fn new(
        py: Python<'_>,
        domain: &portolan::Domain,
        wanted: Wanted,
        options: TopicOptions,
    ) -> PyResult<Self> {
        // As a publisher.
        let made = py.detach(|| domain.subscriber::<[u8]>(&wanted.topic, options));
        let subscriber = made.map_err(Fault::from)?;
        // What asks for the descriptor has it armed from the next empty look on.
        Ok(Self {
            subscriber: Handle::new("subscriber", subscriber),
            wanted,
        })
    }
}

/// What a subscriber asks for.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) topic: String,
    /// None: samples of any type.
    pub(crate) element: Option<Element>,
    /// Bytes of a sample that is copied, at the most.
    pub(crate) copied: usize,
}

impl Wanted {
    /// `copied` is as in [`options`].
    pub(crate) fn new(
        topic: &str,
        dtype: Option<&Bound<'_, PyAny>>,
        copied: Option<usize>,
    ) -> PyResult<Self> {
        Ok(Self {
            topic: topic.to_owned(),
            element: dtype.map(Element::of_dtype).transpose()?,
            // What holds if nothing is said is not many either.
            copied: copied.unwrap_or(MANY_BYTES),
        })
    }

    /// A sample as Python sees it; one of another type is an error.
    pub(crate) fn sample(
        &self,
        py: Python<'_>,
        sample: portolan::channel::Sample<[u8]>,
    ) -> PyResult<Sample> {
        let layout = match description::of_sample(py, &sample)? {
            Some(layout) => layout,
            None => Layout::of_bytes(sample.len())?,
        };
        if let Some(element) = &self.element
            && element.descr != layout.element.descr
        {
            let (topic, found, wanted) = (&self.topic, &layout.element.descr, &element.descr);
            let text = format!(
                "a sample of the topic {topic:?} is of type {found}, and {wanted} was asked for: use the same, or another topic"
            );
            return Err(Fault::new("OtherType", text).into());
        }
        Ok(Sample {
            publisher: sample.publisher(),
            position: sample.position(),
            missed: sample.missed(),
            memory: Viewed::new("sample", sample),
            layout,
        })
    }
}

fn there<T>(received: Result<T, SubscribeError>) -> Result<Option<T>, Fault> {
    match received {
        Ok(sample) => Ok(Some(sample)),
        Err(SubscribeError::TimedOut) => Ok(None),
        Err(why) => Err(why.into()),
    }
}

#[pymethods]
impl Subscriber {
    /// The next sample, waiting at most `timeout` seconds. `TimedOut` if none came.
    #[pyo3(signature = (timeout = None))]
    fn receive(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Sample> {
        let timeout = Timeout::new(timeout)?;
        let sample = patiently_of(py, self.wanted.copied, timeout, |deadline| {
            match self.subscriber.lend_until(deadline)? {
                Some(mut subscriber) => there(subscriber.receive(deadline)),
                None => Ok(None),
            }
        })?;
        self.wanted
            .sample(py, sample.ok_or_else(|| Fault::timed_out("sample"))?)
    }

    /// The same, to be awaited.
    fn receive_async<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        until(slf, "_poll")
    }

    fn _poll(&self, py: Python<'_>) -> PyResult<Option<Sample>> {
        let take = || there(self.subscriber.lend_now()?.receive(Deadline::NOW));
        let sample = match self.wanted.copied <= MANY_BYTES {
            true => take(),
            false => py.detach(take),
        };
        sample?
            .map(|sample| self.wanted.sample(py, sample))
            .transpose()
    }

    /// A descriptor that is readable while there may be a sample.
    fn fileno(&self) -> PyResult<i32> {
        Ok(self.subscriber.lend_now()?.wait_set().as_raw_fd())
    }

    /// How many have published so far, and may again.
    #[getter]
    fn publishers(&self) -> PyResult<usize> {
        Ok(self.subscriber.lend_now()?.publishers())
    }
}

closes! {
    /// Ends it. A thread that waits gets `Closed`.
    Subscriber, |this, py| this.subscriber.close(py)
}

/// What was published, to be read: `numpy.asarray(sample)`. A long one lies where its publisher
/// filled it, for as long as this object or a view of it lives.
#[pyclass(frozen, module = "portolan")]
#[derive(Debug)]
pub(crate) struct Sample {
    memory: Viewed<portolan::channel::Sample<[u8]>>,
    layout: Layout,
    /// Which of the topic's publishers it is from.
    #[pyo3(get)]
    publisher: u8,
    /// Its number among that publisher's samples.
    #[pyo3(get)]
    position: u64,
    /// Samples of that publisher that were missed just before it.
    #[pyo3(get)]
    missed: u64,
}

shows! {
    /// The same as `numpy.asarray(sample)`; read-only.
    Sample
}

closes! {
    /// Lets the memory go. `BufferError` while views live.
    Sample, |this, py| this.memory.close(py)?
}
