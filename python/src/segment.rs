//! Memory that several processes have at once.

use crate::buffer::{Viewed, shows};
use crate::closing::closes;
use crate::description::Layout;
use crate::error::Fault;
use pyo3::prelude::*;
use std::ops::Range;

/// Memory that every process with a right on it reads and writes, at the same address in each.
///
/// `numpy.asarray(segment)` and `memoryview(segment)` show it without a copy. It begins as zeros, and
/// ends with the last right on it. Nothing orders what its processes write: they agree on who writes
/// what, and tell one another by a message or a signal. `rights=[segment]` sends another right.
#[pyclass(frozen, module = "portolan", weakref)]
#[derive(Debug)]
pub(crate) struct Segment {
    memory: Viewed<portolan::Segment>,
    layout: Layout,
}

impl Segment {
    pub(crate) fn new(segment: portolan::Segment) -> Result<Self, Fault> {
        let layout = Layout::of_bytes(segment.len())?;
        Ok(Self {
            memory: Viewed::new("segment", segment),
            layout,
        })
    }

    /// Another right on the same memory.
    pub(crate) fn another(&self) -> Result<portolan::Segment, Fault> {
        self.memory.with(Clone::clone)
    }

    fn bounds(&self) -> Result<Range<usize>, Fault> {
        let start = self.memory.with(portolan::Segment::address)?;
        Ok(start..start + self.layout.bytes)
    }
}

#[pymethods]
impl Segment {
    /// Its address, the same in every process of the domain.
    #[getter]
    fn address(&self) -> PyResult<usize> {
        Ok(self.bounds()?.start)
    }

    /// The addresses of its bytes, as a `range`: for handlers of signals.
    #[getter]
    fn addresses<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        python_range(py, self.bounds()?)
    }

    /// Bytes: whole pages.
    #[getter]
    fn nbytes(&self) -> usize {
        self.layout.bytes
    }

    /// How many views of it live.
    #[getter]
    fn views(&self) -> usize {
        self.memory.views()
    }

    /// Whether its right was given up.
    #[getter]
    fn closed(&self) -> bool {
        self.memory.is_closed()
    }

    fn __len__(&self) -> usize {
        self.layout.bytes
    }

    fn __repr__(&self) -> String {
        match self.bounds() {
            Ok(bounds) => format!("<portolan.Segment at {bounds:#x?}>"),
            Err(_) => "<portolan.Segment: closed>".to_owned(),
        }
    }
}

shows! {
    /// The same as `numpy.asarray(segment)`: its bytes, in a view that lives until the last reference
    /// to it is gone.
    Segment
}

closes! {
    /// Gives the right up. `BufferError` while views live.
    Segment, |this, py| this.memory.close(py)?
}

/// Addresses as Python has them.
pub(crate) fn python_range(py: Python<'_>, addresses: Range<usize>) -> PyResult<Bound<'_, PyAny>> {
    let builtins = py.import("builtins")?;
    builtins.call_method1("range", (addresses.start, addresses.end))
}

/// Addresses as Python gives them: a `range`.
pub(crate) fn range_of(addresses: &Bound<'_, PyAny>) -> PyResult<Range<usize>> {
    let bound = |name| addresses.getattr(name)?.extract::<usize>();
    match (bound("start"), bound("stop")) {
        (Ok(start), Ok(stop)) => Ok(start..stop),
        _ => {
            let text = format!(
                "addresses are a range, as `segment.addresses` or `range(start, stop)`: not {addresses}"
            );
            Err(Fault::new("TypeError", text).into())
        }
    }
}
