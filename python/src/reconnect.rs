//! Senders and subscribers that outlive the process at the other end; `portolan.reconnecting` is made
//! of them.

use crate::closing::closes;
use crate::error::Fault;
use crate::message::Parts;
use crate::rights::{NOTHING, SendRight};
use crate::topic::Wanted;
use crate::wait::{Handle, MANY_BYTES, Timeout, far_patiently, patiently_of};
use crate::watched::until;
use portolan::channel::{SubscribeError, TopicOptions};
use portolan::reconnect::{Lost, Update};
use portolan::{ConnectError, Deadline, Domain, SendError, WhenFull};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::os::fd::AsRawFd;

/// A receiver's number, the messages that were sent to it, and how many of these it has not received
/// at the most.
type LostParts = (u64, u64, u64);

fn parts_of(lost: Lost) -> LostParts {
    (lost.receiver, lost.sent, lost.at_most)
}

/// Sends to the port that has a name, whichever process has bound it.
#[pyclass(frozen, module = "portolan")]
#[derive(Debug)]
pub(crate) struct ReconnectingSender {
    domain: Domain,
    sender: Handle<portolan::reconnect::ReconnectingSender>,
}

impl ReconnectingSender {
    pub(crate) fn new(domain: Domain, name: &str) -> Self {
        let sender = domain.reconnecting_sender(name);
        Self {
            domain,
            sender: Handle::new("sender", sender),
        }
    }

    /// Does `act` until it is done; that no port has the name, or that its queue is full, is the error
    /// once the timeout has passed.
    fn patiently<R: Send>(
        &self,
        py: Python<'_>,
        timeout: Timeout,
        mut act: impl FnMut(
            &mut portolan::reconnect::ReconnectingSender,
            Deadline,
        ) -> Result<R, SendError>
        + Send,
    ) -> PyResult<R> {
        let mut obstacle = None;
        let done = far_patiently(py, timeout, |deadline| {
            let Some(mut sender) = self.sender.lend_until(deadline)? else {
                return Ok(None);
            };
            match act(&mut sender, deadline) {
                Ok(done) => Ok(Some(done)),
                Err(
                    why @ (SendError::Full { .. }
                    | SendError::Connect(
                        ConnectError::NoSuchPort { .. }
                        | ConnectError::NoAnswer { .. }
                        | ConnectError::Unreachable { .. },
                    )),
                ) => {
                    obstacle = Some(why);
                    Ok(None)
                }
                Err(why) => Err(Fault::from(why)),
            }
        })?;
        let not_done = || obstacle.map_or_else(|| Fault::timed_out("port"), Fault::from);
        Ok(done.ok_or_else(not_done)?)
    }
}

#[pymethods]
impl ReconnectingSender {
    /// Sends, waiting at most `timeout` seconds for a port of the name and for room in its queue: which
    /// receiver has the message, and what may be lost with the one before.
    #[pyo3(signature = (header = NOTHING, *arrays, rights = None, timeout = None))]
    fn send<'py>(
        &self,
        py: Python<'py>,
        header: &[u8],
        arrays: &Bound<'py, PyTuple>,
        rights: Option<&Bound<'py, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<(u64, Option<LostParts>)> {
        let timeout = Timeout::new(timeout)?;
        let parts = Parts {
            header,
            arrays,
            rights,
        };
        let sent = parts.send(|message| {
            self.patiently(py, timeout, |sender, deadline| {
                sender.send_from(message, WhenFull::from(deadline))
            })
        })?;
        Ok((sent.receiver, sent.lost.map(parts_of)))
    }

    /// The right on the port that has the name, waiting for one at most `timeout` seconds.
    #[pyo3(signature = (timeout = None))]
    fn right(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<SendRight> {
        let right = self.patiently(py, Timeout::new(timeout)?, |sender, deadline| {
            Ok(sender.right(deadline)?.clone())
        })?;
        Ok(SendRight::new(self.domain.clone(), right))
    }

    /// What may be lost with the last receiver, if it has died and no send has said so.
    fn take_lost(&self, py: Python<'_>) -> PyResult<Option<LostParts>> {
        Ok(self.sender.lend_soon(py)?.take_lost().map(parts_of))
    }
}

closes! {
    /// Ends it.
    ReconnectingSender, |this, py| this.sender.close(py)
}

/// Gets the samples of all publishers of a topic, and is told of those that have gone.
#[pyclass(frozen, module = "portolan")]
#[derive(Debug)]
pub(crate) struct ReconnectingSubscriber {
    subscriber: Handle<portolan::reconnect::ReconnectingSubscriber<[u8]>>,
    wanted: Wanted,
}

impl ReconnectingSubscriber {
    pub(crate) fn new(
        py: Python<'_>,
        domain: &Domain,
        wanted: Wanted,
        options: TopicOptions,
    ) -> PyResult<Self> {
        // It meets the topic's other members.
        let subscriber =
            py.detach(|| domain.reconnecting_subscriber::<[u8]>(&wanted.topic, options));
        Ok(Self {
            subscriber: Handle::new("subscriber", subscriber.map_err(Fault::from)?),
            wanted,
        })
    }

    fn update<'py>(&self, py: Python<'py>, update: Update<[u8]>) -> PyResult<Bound<'py, PyAny>> {
        match update {
            Update::Sample(sample) => {
                let sample = self.wanted.sample(py, sample)?;
                Ok(sample.into_pyobject(py)?.into_any())
            }
            Update::Gone(gone) => {
                let module = py.import("portolan.reconnecting")?;
                module.call_method1("Gone", (gone.publisher, gone.next, gone.missed))
            }
            _ => Err(Fault::new("SubscribeError", "an update of an unknown kind").into()),
        }
    }
}

fn there(received: Result<Update<[u8]>, SubscribeError>) -> Result<Option<Update<[u8]>>, Fault> {
    match received {
        Ok(update) => Ok(Some(update)),
        Err(SubscribeError::TimedOut) => Ok(None),
        Err(why) => Err(why.into()),
    }
}

#[pymethods]
impl ReconnectingSubscriber {
    /// The next sample, or that a publisher has gone, waiting at most `timeout` seconds.
    #[pyo3(signature = (timeout = None))]
    fn receive<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        let (copied, timeout) = (self.wanted.copied, Timeout::new(timeout)?);
        let update = patiently_of(py, copied, timeout, |deadline| {
            match self.subscriber.lend_until(deadline)? {
                Some(mut subscriber) => there(subscriber.receive(deadline)),
                None => Ok(None),
            }
        })?;
        self.update(py, update.ok_or_else(|| Fault::timed_out("sample"))?)
    }

    /// The same, to be awaited.
    fn receive_async<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        until(slf, "_poll")
    }

    fn _poll<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let take = || there(self.subscriber.lend_now()?.receive(Deadline::NOW));
        let update = match self.wanted.copied <= MANY_BYTES {
            true => take(),
            false => py.detach(take),
        };
        update?.map(|update| self.update(py, update)).transpose()
    }

    /// A descriptor that is readable while there may be something.
    fn fileno(&self) -> PyResult<i32> {
        Ok(self.subscriber.lend_now()?.wait_set().as_raw_fd())
    }

    /// How many publishers there are now.
    #[getter]
    fn live_publishers(&self) -> PyResult<usize> {
        Ok(self.subscriber.lend_now()?.live_publishers())
    }
}

closes! {
    /// Ends it. A thread that waits gets `Closed`.
    ReconnectingSubscriber, |this, py| this.subscriber.close(py)
}
