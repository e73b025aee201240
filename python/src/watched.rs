//! What can be awaited moves into a wait set of its own when Python asks for its descriptor.

use crate::error::Fault;
use crate::wait::{Handle, Timeout, patiently_of};
use portolan::{Deadline, Domain, Refused, Token, WaitSet, Waitable};
use pyo3::prelude::*;
use std::os::fd::{AsRawFd, RawFd};

/// Something that is waited for, alone or in a wait set.
#[derive(Debug)]
pub(crate) struct Watched<T> {
    domain: Domain,
    /// Alone; otherwise it is in the set.
    alone: Option<T>,
    set: Option<Box<(WaitSet, Token<T>)>>,
}

impl<T: Waitable> Watched<T> {
    pub(crate) fn new(domain: Domain, it: T) -> Self {
        Self {
            domain,
            alone: Some(it),
            set: None,
        }
    }

    pub(crate) fn domain(&self) -> &Domain {
        &self.domain
    }

    /// To receive from it.
    pub(crate) fn get(&mut self) -> Result<&mut T, Fault> {
        let it = match (&mut self.alone, &mut self.set) {
            (Some(it), _) => Some(it),
            (None, Some(placed)) => placed.0.get_mut(placed.1),
            (None, None) => None,
        };
        it.ok_or_else(|| Fault::closed("handle"))
    }

    /// For what needs no receiving.
    pub(crate) fn look(&self) -> Result<&T, Fault> {
        let it = match (&self.alone, &self.set) {
            (Some(it), _) => Some(it),
            (None, Some(placed)) => placed.0.get(placed.1),
            (None, None) => None,
        };
        it.ok_or_else(|| Fault::closed("handle"))
    }

    /// Takes what is there; `None`: nothing is, and the descriptor is not readable until something
    /// comes.
    pub(crate) fn take<R>(
        &mut self,
        take: &mut impl FnMut(&mut T, Deadline) -> Result<Option<R>, Fault>,
    ) -> Result<Option<R>, Fault> {
        loop {
            let taken = take(self.get()?, Deadline::NOW)?;
            if taken.is_some() || self.is_idle()? {
                return Ok(taken);
            }
        }
    }

    /// Itself, out of its wait set.
    pub(crate) fn into_inner(mut self) -> Option<T> {
        let placed = self.set.take();
        self.alone.or_else(|| {
            let (mut set, token) = *placed?;
            set.remove(token)
        })
    }

    /// The descriptor of its wait set, which is readable while something may be there.
    pub(crate) fn fileno(&mut self) -> Result<RawFd, Fault> {
        if let Some(it) = self.alone.take() {
            let mut set = match WaitSet::new(&self.domain) {
                Ok(set) => set,
                Err(why) => {
                    self.alone = Some(it);
                    return Err(why.into());
                }
            };
            match set.add(it) {
                Ok(token) => self.set = Some(Box::new((set, token))),
                Err(Refused { why, item }) => {
                    self.alone = Some(*item);
                    return Err(why.into());
                }
            }
        }
        let placed = self.set.as_ref().ok_or_else(|| Fault::closed("handle"))?;
        Ok(placed.0.as_raw_fd())
    }

    /// Whether nothing is there. If so its descriptor is not readable until something comes.
    fn is_idle(&mut self) -> Result<bool, Fault> {
        match &mut self.set {
            Some(placed) => Ok(placed.0.wait(Deadline::NOW)?.is_empty()),
            None => Ok(true),
        }
    }
}

/// `take` takes what is there, waiting for it until the deadline; nothing there yet is `None`.
impl<T: Waitable + Send> Handle<Watched<T>> {
    /// Waits until `take` takes something; and from which domain. `what` names it in the error.
    pub(crate) fn wait<R: Send>(
        &self,
        py: Python<'_>,
        timeout: Timeout,
        what: &str,
        take: impl FnMut(&mut T, Deadline) -> Result<Option<R>, Fault> + Send,
    ) -> PyResult<(Domain, R)> {
        self.wait_of(py, 0, timeout, what, take)
    }

    /// The same, where so many bytes may be copied.
    pub(crate) fn wait_of<R: Send>(
        &self,
        py: Python<'_>,
        bytes: usize,
        timeout: Timeout,
        what: &str,
        mut take: impl FnMut(&mut T, Deadline) -> Result<Option<R>, Fault> + Send,
    ) -> PyResult<(Domain, R)> {
        let taken = patiently_of(py, bytes, timeout, |deadline| {
            let Some(mut watched) = self.lend_until(deadline)? else {
                return Ok(None);
            };
            let taken = if deadline.has_passed() {
                watched.take(&mut take)?
            } else {
                let taken = take(watched.get()?, deadline)?;
                if taken.is_none() {
                    // Nothing comes to a process that is no member any more.
                    watched.domain().check()?;
                }
                taken
            };
            Ok::<_, Fault>(taken.map(|taken| (watched.domain().clone(), taken)))
        });
        taken?.ok_or_else(|| Fault::timed_out(what).into())
    }

    /// Takes what is there; `None`: nothing is, and the descriptor is not readable until something
    /// comes.
    pub(crate) fn poll<R>(
        &self,
        mut take: impl FnMut(&mut T, Deadline) -> Result<Option<R>, Fault>,
    ) -> Result<Option<(Domain, R)>, Fault> {
        let mut watched = self.lend_now()?;
        let taken = watched.take(&mut take)?;
        Ok(taken.map(|taken| (watched.domain().clone(), taken)))
    }

    /// The descriptor.
    pub(crate) fn fileno(&self, py: Python<'_>) -> PyResult<RawFd> {
        Ok(self.lend_soon(py)?.fileno()?)
    }
}

/// What the method `poll` of an object gives, once it gives something: to be awaited.
pub(crate) fn until<'py>(
    awaited: &Bound<'py, impl pyo3::PyClass>,
    poll: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let awaited = awaited.as_any();
    let module = awaited.py().import("portolan._asyncio")?;
    module.call_method1("until", (awaited, awaited.getattr(poll)?))
}
