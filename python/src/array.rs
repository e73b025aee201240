//! An array lies in an extent, and is sent by moving it.

use crate::buffer::{Viewed, array_of, shows};
use crate::closing::closes;
use crate::description::{Element, Layout};
use crate::error::Fault;
use portolan::Extent;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

/// Memory of a domain with an element type and a shape: what is sent by moving.
///
/// `numpy.asarray(array)`, `memoryview(array)` and DLPack (`torch.from_dlpack(array)`) show it
/// without a copy. While any of these live, `send` raises `BufferError` and the array stays the
/// caller's; `with array.view() as v` ends its view by itself. Once sent, the array is closed.
/// What a new one holds is unspecified, as with `numpy.empty`.
#[pyclass(frozen, module = "portolan", weakref)]
#[derive(Debug)]
pub(crate) struct Array {
    memory: Viewed<Extent>,
    layout: Layout,
}

impl Array {
    pub(crate) fn new(extent: Extent, layout: Layout) -> Self {
        Self {
            memory: Viewed::new("array", extent),
            layout,
        }
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) fn memory(&self) -> &Viewed<Extent> {
        &self.memory
    }
}

#[pymethods]
impl Array {
    /// Bytes of all elements.
    #[getter]
    fn nbytes(&self) -> usize {
        self.layout.bytes
    }

    /// Bytes of one element.
    #[getter]
    fn itemsize(&self) -> usize {
        self.layout.element.size
    }

    /// How many dimensions it has.
    #[getter]
    fn ndim(&self) -> usize {
        self.layout.shape.len()
    }

    /// Its address, the same in every process of the domain.
    #[getter]
    fn address(&self) -> PyResult<usize> {
        Ok(self.memory.with(Extent::address)?)
    }

    /// How many views of it live.
    #[getter]
    fn views(&self) -> usize {
        self.memory.views()
    }

    /// Whether it was sent or closed.
    #[getter]
    fn closed(&self) -> bool {
        self.memory.is_closed()
    }

    fn _lease(slf: &Bound<'_, Self>) -> PyResult<Lease> {
        slf.get().memory.hold()?;
        Ok(Lease {
            array: slf.clone().unbind(),
            state: Mutex::default(),
        })
    }

    /// A view that a `with` block ends: `with array.view() as v: v[:] = 7`.
    fn view<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let module = slf.py().import("portolan._view")?;
        module.call_method1("View", (slf,))
    }

    /// The same memory with another element type or shape (`None`: one dimension). This array is
    /// closed then.
    #[pyo3(signature = (dtype, shape = None))]
    fn cast(&self, dtype: &Bound<'_, PyAny>, shape: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let element = Element::of_dtype(dtype)?;
        let shape = match shape {
            Some(shape) => Layout::shape_of(shape)?,
            None => vec![self.layout.bytes / element.size],
        };
        let layout = Layout::new(element, &shape)?;
        if layout.bytes != self.layout.bytes {
            let (has, wants) = (self.layout.bytes, layout.bytes);
            let text = format!("the array has {has} bytes, and {wants} were asked for");
            return Err(Fault::new("ValueError", text).into());
        }
        let extent = self.memory.take("cast")?;
        self.memory.gone();
        Ok(Self::new(extent, layout))
    }

    /// For `torch.from_dlpack(array)` and the like. The consumer's tensor counts as a view until it
    /// is gone.
    #[pyo3(signature = (**options))]
    fn __dlpack__<'py>(
        slf: &Bound<'py, Self>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // numpy makes the capsule; its array holds the view until the capsule's deleter has run.
        array_of(slf.as_any(), None, None)?.call_method("__dlpack__", (), options)
    }

    /// The processor.
    fn __dlpack_device__(&self) -> (i32, i32) {
        (1, 0)
    }

    fn __len__(&self) -> PyResult<usize> {
        let first = self.layout.shape.first();
        let none = || Fault::new("TypeError", "an array without dimensions has no len()").into();
        first.map(|size| size.unsigned_abs()).ok_or_else(none)
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let this = slf.get();
        let shape = this.shape(slf.py())?;
        let descr = &this.layout.element.descr;
        let state = if this.closed() { ", closed" } else { "" };
        Ok(format!("<portolan.Array {shape} {descr}{state}>"))
    }

    fn __reduce__(&self) -> PyResult<()> {
        let text = "an array is not pickled but moved: give it to `send`, or put it into a portolan.multiprocessing.Queue";
        Err(Fault::new("TypeError", text).into())
    }
}

shows! {
    /// The same as `numpy.asarray(array)`: a view that lives until the last reference to it is gone.
    Array
}

closes! {
    /// Frees the memory; does nothing if it was sent. `BufferError` while views live.
    Array, |this, py| this.memory.close(py)?
}

/// What a `portolan.View` shows an array by: it counts what was made from it, and ends once.
#[pyclass(frozen, module = "portolan")]
#[derive(Debug)]
pub(crate) struct Lease {
    array: Py<Array>,
    state: Mutex<LeaseState>,
}

#[derive(Debug, Default)]
struct LeaseState {
    /// Views of this lease that live.
    views: usize,
    over: bool,
}

#[pymethods]
impl Lease {
    /// Ends it; how many views that were made from it live. They hold the array until they are gone.
    fn end(&self) -> usize {
        let (views, was_over) = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            (state.views, std::mem::replace(&mut state.over, true))
        };
        if !was_over {
            self.array.get().memory.release();
        }
        views
    }

    #[allow(unsafe_code)]
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        let array = this.array.get();
        // SAFETY:
        // - The interpreter gives a `Py_buffer` to be filled.
        // - The layout is the array's, which is frozen, does not move, and lives as long as the lease.
        let viewed = unsafe { array.memory.view(slf.as_any(), &array.layout, view, flags) };
        viewed?;
        this.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .views += 1;
        Ok(())
    }

    #[allow(unsafe_code)]
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .views -= 1;
        self.array.get().memory.release();
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.end();
    }
}
