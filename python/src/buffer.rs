//! Memory that Python sees through the buffer protocol. Its unsafe code is here, and in the one class
//! that counts views of its own: `Lease`.
//!
//! A [`Viewed`] owns memory and counts its views. The memory leaves it, to be sent or freed, only
//! while there is none:
//!
//! ```text
//! here --take (views = 0)--> moving --gone--> gone
//!   ^                           |
//!   +--------put_back-----------+        views are made and counted only of what is here
//! ```
//!
//! # Invariants
//!
//! - **V1** `views` is above 0 only while the memory is here, and each view holds a reference to the
//!   Python object that owns the `Viewed`. So the memory outlives its views.
//! - **V2** The memory does not move while it is here: it is in a box, or is an extent's.
//! - **V3** No Python code runs while the lock is held: it could wait for this very lock with the
//!   interpreter's. So calls give a [`Fault`], which becomes an exception later.
//! - **V4** A view of memory that others read as it was published is read-only
//!   ([`Memory::WRITABLE`]). Segments are written by all who have them, and no code of ours borrows
//!   their bytes.

#![allow(unsafe_code)]

use crate::description::Layout;
use crate::error::Fault;
use portolan::channel::Sample;
use portolan::{Extent, Segment};
use pyo3::buffer::PyBuffer;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What can be viewed.
pub(crate) trait Memory: Send {
    /// Whether this process may write it.
    const WRITABLE: bool;

    /// Where its first byte lies, for as long as it exists, and how many there are.
    fn bytes(&self) -> (*mut u8, usize);
}

impl Memory for Extent {
    const WRITABLE: bool = true;

    fn bytes(&self) -> (*mut u8, usize) {
        // The region's mapping, not memory of Rust's.
        let start = std::ptr::with_exposed_provenance_mut(self.address());
        (start, self.len())
    }
}

impl Memory for Segment {
    const WRITABLE: bool = true;

    fn bytes(&self) -> (*mut u8, usize) {
        let start = std::ptr::with_exposed_provenance_mut(self.address());
        (start, self.len())
    }
}

impl Memory for Sample<[u8]> {
    const WRITABLE: bool = false;

    fn bytes(&self) -> (*mut u8, usize) {
        let bytes: &[u8] = self;
        (bytes.as_ptr().cast_mut(), bytes.len())
    }
}

/// Memory, and how many views of it live.
#[derive(Debug)]
pub(crate) struct Viewed<T> {
    what: &'static str,
    state: Mutex<State<T>>,
    /// The process that owns it: a forked child has no region.
    process: u32,
}

#[derive(Debug)]
struct State<T> {
    place: Place<T>,
    views: usize,
}

#[derive(Debug)]
enum Place<T> {
    Here(Box<T>),
    Moving,
    Gone,
}

impl<T: Memory> Viewed<T> {
    /// `what` names it in errors.
    pub(crate) fn new(what: &'static str, memory: T) -> Self {
        Self {
            what,
            state: Mutex::new(State {
                place: Place::Here(Box::new(memory)),
                views: 0,
            }),
            process: std::process::id(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // No code panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn views(&self) -> usize {
        self.lock().views
    }

    pub(crate) fn is_closed(&self) -> bool {
        !matches!(self.lock().place, Place::Here(_))
    }

    /// Looks at what is here.
    pub(crate) fn with<R>(&self, look: impl FnOnce(&T) -> R) -> Result<R, Fault> {
        match &self.lock().place {
            Place::Here(memory) => Ok(look(memory)),
            place => Err(self.closed(place)),
        }
    }

    fn closed(&self, place: &Place<T>) -> Fault {
        let what = self.what;
        match place {
            Place::Moving => Fault::new(
                "Closed",
                format!("this {what} is being sent by this call or another thread"),
            ),
            _ => Fault::new(
                "Closed",
                format!("this {what} is closed: it was sent, and is its receiver's, or was freed"),
            ),
        }
    }

    /// Takes the memory, to be sent or freed (`verb`); not while views live.
    pub(crate) fn take(&self, verb: &str) -> Result<T, Fault> {
        let mut state = self.lock();
        if state.views > 0 {
            return Err(Fault::viewed(state.views, verb));
        }
        match std::mem::replace(&mut state.place, Place::Moving) {
            Place::Here(memory) => Ok(*memory),
            other => {
                let fault = self.closed(&other);
                state.place = other;
                Err(fault)
            }
        }
    }

    /// Puts back what was taken and not sent.
    pub(crate) fn put_back(&self, memory: T) {
        self.lock().place = Place::Here(Box::new(memory));
    }

    /// What was taken is another's now.
    pub(crate) fn gone(&self) {
        self.lock().place = Place::Gone;
    }

    /// Frees the memory, if it is here.
    pub(crate) fn close(&self, py: Python<'_>) -> Result<(), Fault> {
        if self.is_closed() {
            return Ok(());
        }
        let memory = self.take("closed")?;
        self.gone();
        py.detach(|| drop(memory));
        Ok(())
    }

    /// Makes a view of it, with this layout, for `owner`, which owns this `Viewed` and `layout`.
    ///
    /// # Safety
    ///
    /// - `view` points to a `Py_buffer` that the caller may write.
    /// - `layout` is `owner`'s, and is not changed or moved while `owner` lives.
    pub(crate) unsafe fn view(
        &self,
        owner: &Bound<'_, PyAny>,
        layout: &Layout,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> Result<(), Fault> {
        // Of a call that fails the interpreter wants to see no owner.
        // SAFETY: `view` may be written, as promised.
        unsafe { view.write(ffi::Py_buffer::new()) };
        if self.process != std::process::id() {
            let text = "this process was forked from a member, and has none of its memory: join the domain";
            return Err(Fault::new("Disowned", text));
        }
        let mut state = self.lock();
        let Place::Here(memory) = &state.place else {
            return Err(self.closed(&state.place));
        };
        let (start, len) = memory.bytes();
        if layout.bytes > len {
            let text = "the memory of this array is shorter than its shape says";
            return Err(Fault::new("BufferError", text));
        }
        let is = |wanted: c_int| flags & wanted == wanted;
        if !T::WRITABLE && is(ffi::PyBUF_WRITABLE) {
            let text = "this memory is read-only: others read it too";
            return Err(Fault::new("BufferError", text));
        }
        if is(ffi::PyBUF_F_CONTIGUOUS) && !is(ffi::PyBUF_ANY_CONTIGUOUS) && layout.shape.len() > 1 {
            let text = "the elements of this array lie in C order, not in Fortran's";
            return Err(Fault::new("BufferError", text));
        }
        let when = |wanted: c_int, pointer: *const isize| match is(wanted) {
            true => pointer.cast_mut(),
            false => std::ptr::null_mut(),
        };
        let filled = ffi::Py_buffer {
            buf: start.cast(),
            obj: owner.clone().into_ptr(),
            // No larger than `isize::MAX`: `Layout::new`.
            len: layout.bytes.cast_signed(),
            itemsize: layout.element.size.cast_signed(),
            readonly: c_int::from(!T::WRITABLE),
            // No more than 64: `Layout::new`.
            ndim: c_int::try_from(layout.shape.len()).unwrap_or(c_int::MAX),
            format: match is(ffi::PyBUF_FORMAT) {
                true => layout.element.format.as_ptr().cast_mut(),
                false => std::ptr::null_mut(),
            },
            shape: when(ffi::PyBUF_ND, layout.shape.as_ptr()),
            strides: when(ffi::PyBUF_STRIDES, layout.strides.as_ptr()),
            suboffsets: std::ptr::null_mut(),
            internal: std::ptr::null_mut(),
        };
        state.views += 1;
        // SAFETY:
        // - `view` may be written, as promised.
        // - What it points to lives as long as the view: the memory by V1 and V2, and format, shape
        //   and strides because `owner`, of which the view has a reference, has the layout.
        unsafe { view.write(filled) };
        Ok(())
    }

    /// Counts a view that is made later, so that the memory stays here.
    pub(crate) fn hold(&self) -> Result<(), Fault> {
        let mut state = self.lock();
        if !matches!(state.place, Place::Here(_)) {
            return Err(self.closed(&state.place));
        }
        state.views += 1;
        Ok(())
    }

    /// A view was released.
    pub(crate) fn release(&self) {
        let mut state = self.lock();
        state.views = state.views.saturating_sub(1);
    }
}

/// Copies the bytes of a buffer, as many as `to` has, without the interpreter's lock. A thread that
/// writes to the buffer meanwhile garbles the copy, as with any consumer of buffers.
pub(crate) fn copy_out(py: Python<'_>, from: &PyBuffer<u8>, to: &mut [u8]) -> Result<(), Fault> {
    let start = from
        .as_slice_ptr()
        .filter(|start| start.len() == to.len())
        .ok_or_else(|| Fault::new("BufferError", "these bytes do not lie one after another"))?;
    let start = start.cast::<u8>().as_ptr().expose_provenance();
    py.detach(|| {
        // SAFETY:
        // - In bounds and live: `from` has so many bytes there, and is borrowed meanwhile.
        // - Exclusive: `to` is, and so does not overlap with what Python has.
        unsafe {
            let start = std::ptr::with_exposed_provenance::<u8>(start);
            start.copy_to_nonoverlapping(to.as_mut_ptr(), to.len());
        }
    });
    Ok(())
}

/// Gives a class what shows its `memory` (a [`Viewed`]) in its `layout`: the buffer protocol, and
/// `numpy`, with the documentation given.
macro_rules! shows {
    ($(#[$doc:meta])+ $class:ident) => {
        // What PyO3 makes of the two unsafe functions calls them without a block.
        #[allow(unsafe_op_in_unsafe_fn)]
        const _: () = {
            #[pyo3::pymethods]
            impl $class {
                /// How many elements each dimension has.
                #[getter]
                fn shape<'py>(
                    &self,
                    py: pyo3::Python<'py>,
                ) -> pyo3::PyResult<pyo3::Bound<'py, pyo3::types::PyTuple>> {
                    self.layout.shape_tuple(py)
                }

                /// The element type, as numpy has it.
                #[getter]
                fn dtype<'py>(
                    &self,
                    py: pyo3::Python<'py>,
                ) -> pyo3::PyResult<pyo3::Bound<'py, pyo3::PyAny>> {
                    self.layout.element.dtype(py)
                }

                $(#[$doc])+
                fn numpy<'py>(
                    slf: &pyo3::Bound<'py, Self>,
                ) -> pyo3::PyResult<pyo3::Bound<'py, pyo3::PyAny>> {
                    $crate::buffer::array_of(slf.as_any(), None, None)
                }

                /// numpy asks for this where it got no buffer, whose error it does not tell.
                #[pyo3(signature = (dtype = None, copy = None))]
                fn __array__<'py>(
                    slf: &pyo3::Bound<'py, Self>,
                    dtype: Option<&pyo3::Bound<'py, pyo3::PyAny>>,
                    copy: Option<&pyo3::Bound<'py, pyo3::PyAny>>,
                ) -> pyo3::PyResult<pyo3::Bound<'py, pyo3::PyAny>> {
                    $crate::buffer::array_of(slf.as_any(), dtype, copy)
                }

                #[allow(unsafe_code)]
                unsafe fn __getbuffer__(
                    slf: pyo3::Bound<'_, Self>,
                    view: *mut pyo3::ffi::Py_buffer,
                    flags: std::ffi::c_int,
                ) -> pyo3::PyResult<()> {
                    let this = slf.get();
                    let viewed =
                        // SAFETY:
                        // - The interpreter gives a `Py_buffer` to be filled.
                        // - The layout is the object's, which is frozen and does not move.
                        unsafe { this.memory.view(slf.as_any(), &this.layout, view, flags) };
                    Ok(viewed?)
                }

                #[allow(unsafe_code)]
                unsafe fn __releasebuffer__(&self, _view: *mut pyo3::ffi::Py_buffer) {
                    self.memory.release();
                }
            }
        };
    };
}

pub(crate) use shows;

/// A numpy array over what has a buffer; the error says it, if it has none.
pub(crate) fn array_of<'py>(
    shown: &Bound<'py, PyAny>,
    dtype: Option<&Bound<'py, PyAny>>,
    copy: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let module = shown.py().import("portolan._view")?;
    module.call_method1("array_of", (shown, dtype, copy))
}
