//! Bytes that Python gives, to be copied without the interpreter's lock.

use crate::buffer::copy_out;
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// The bytes of anything with a buffer. Those of other than `bytes` are copied: another thread may
/// write to them.
pub(crate) enum Data<'py> {
    Bytes(Bound<'py, PyBytes>),
    Copied(Vec<u8>),
}

impl<'py> Data<'py> {
    pub(crate) fn of(given: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = given.cast::<PyBytes>() {
            return Ok(Self::Bytes(bytes.clone()));
        }
        let py = given.py();
        let view = py
            .import("builtins")?
            .call_method1("memoryview", (given,))?;
        let buffer: PyBuffer<u8> = view.call_method1("cast", ("B",))?.extract()?;
        let mut copied = vec![0; buffer.item_count()];
        copy_out(py, &buffer, &mut copied)?;
        Ok(Self::Copied(copied))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes.as_bytes(),
            Self::Copied(bytes) => bytes,
        }
    }
}
