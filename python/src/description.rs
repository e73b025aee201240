//! Says in a message's header which element type and shape its arrays have.
//!
//! A message of Portolan has bytes; a Python program wants the array back that was sent. So a
//! *description* follows the header, one line for each run of arrays that are alike:
//!
//! ```text
//! header  "<f4:480,640" LF "3*|u1:2,2"  length (u16, little-endian)  "PtA1"
//! ```
//!
//! Arrays of one dimension of bytes need none: such a message is the same as a Rust program's. A
//! description that does not fit the message is taken for what it is then, a part of the header.

use crate::error::Fault;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};
use std::ffi::{CStr, CString};
use std::fmt::Write as _;
use std::sync::Arc;

/// What a description ends in.
const MAGIC: &[u8; 4] = b"PtA1";
/// Bytes of the length and of the magic.
const TAIL: usize = 2 + MAGIC.len();
/// Dimensions that an array has at the most, as in numpy.
const MAX_DIMENSIONS: usize = 64;

/// The type of an array's elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Element {
    /// As numpy writes it into a file (`"<f4"`, or a list of fields).
    pub(crate) descr: Arc<str>,
    /// As the buffer protocol writes it.
    pub(crate) format: Arc<CStr>,
    pub(crate) size: usize,
}

impl Element {
    const BYTE: &str = "|u1";

    pub(crate) fn byte() -> Self {
        Self {
            descr: Self::BYTE.into(),
            format: c"B".into(),
            size: 1,
        }
    }

    pub(crate) fn is_byte(&self) -> bool {
        &*self.descr == Self::BYTE
    }

    /// Of anything that numpy takes for an element type.
    pub(crate) fn of_dtype(dtype: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::ask("describe", dtype)
    }

    /// As numpy has it.
    pub(crate) fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let module = py.import("portolan._dtype")?;
        module.call_method1("dtype_of", (&*self.descr,))
    }

    /// Of what a description says.
    fn of_descr(py: Python<'_>, descr: &str) -> PyResult<Self> {
        if descr == Self::BYTE {
            return Ok(Self::byte());
        }
        Self::ask("of_descr", PyString::new(py, descr).as_any())
    }

    fn ask(function: &str, of: &Bound<'_, PyAny>) -> PyResult<Self> {
        let answer = of
            .py()
            .import("portolan._dtype")?
            .call_method1(function, (of,))?;
        let (descr, format, size): (String, String, usize) = answer.extract()?;
        Ok(Self {
            descr: descr.into(),
            format: CString::new(format)?.into(),
            size,
        })
    }
}

/// Element type and shape; the elements lie in C order, without gaps.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) element: Element,
    pub(crate) shape: Box<[isize]>,
    pub(crate) strides: Box<[isize]>,
    pub(crate) bytes: usize,
}

impl Layout {
    pub(crate) fn new(element: Element, shape: &[usize]) -> Result<Self, Fault> {
        let too_large = || {
            let descr = &element.descr;
            Fault::new(
                "ValueError",
                format!("no array of {descr} can have the shape {shape:?}: it has too many bytes"),
            )
        };
        if shape.len() > MAX_DIMENSIONS {
            let text = format!("an array has {MAX_DIMENSIONS} dimensions at the most");
            return Err(Fault::new("ValueError", text));
        }
        // A dimension of 0 does not hide that the others are too large for their strides.
        let mut stride = isize::try_from(element.size).map_err(|_| too_large())?;
        let mut strides = vec![0; shape.len()];
        let mut sizes = vec![0; shape.len()];
        for (at, &size) in shape.iter().enumerate().rev() {
            let size = isize::try_from(size).map_err(|_| too_large())?;
            strides[at] = stride;
            sizes[at] = size;
            stride = stride.checked_mul(size.max(1)).ok_or_else(too_large)?;
        }
        let bytes = match shape.contains(&0) {
            true => 0,
            false => usize::try_from(stride).map_err(|_| too_large())?,
        };
        Ok(Self {
            element,
            shape: sizes.into(),
            strides: strides.into(),
            bytes,
        })
    }

    /// Of an extent that nothing is said of.
    pub(crate) fn of_bytes(len: usize) -> Result<Self, Fault> {
        Self::new(Element::byte(), &[len])
    }

    /// A shape as Python gives it: a number, or several.
    pub(crate) fn shape_of(given: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
        if let Ok(one) = given.extract::<usize>() {
            return Ok(vec![one]);
        }
        given.extract().map_err(|_| {
            let text = format!("a shape is a number of elements, or a tuple of such: not {given}");
            Fault::new("TypeError", text).into()
        })
    }

    pub(crate) fn shape_tuple<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.shape.iter())
    }

    fn is_plain(&self) -> bool {
        self.element.is_byte() && self.shape.len() == 1
    }

    fn is_like(&self, other: &Self) -> bool {
        self.element.descr == other.element.descr && self.shape == other.shape
    }

    fn write(&self, run: usize, text: &mut String) {
        if run > 1 {
            let _ = write!(text, "{run}*");
        }
        let _ = write!(text, "{}:", self.element.descr);
        for (at, size) in self.shape.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            let _ = write!(text, "{comma}{size}");
        }
    }
}

/// The header with the description of these arrays, if they need one.
pub(crate) fn append(header: &[u8], layouts: &[&Layout]) -> Result<Option<Vec<u8>>, Fault> {
    let is_plain = layouts.iter().all(|layout| layout.is_plain());
    if is_plain && !header.ends_with(MAGIC) {
        return Ok(None);
    }
    let mut text = String::new();
    let mut rest = layouts;
    while let Some(first) = rest.first() {
        let run = rest.iter().take_while(|next| next.is_like(first)).count();
        if !text.is_empty() {
            text.push('\n');
        }
        first.write(run, &mut text);
        rest = &rest[run..];
    }
    let Ok(len) = u16::try_from(text.len()) else {
        let text = "the element types and shapes of a message's arrays take more than its header has room for: send fewer";
        return Err(Fault::new("MessageError", text));
    };
    let mut all = Vec::with_capacity(header.len() + text.len() + TAIL);
    all.extend_from_slice(header);
    all.extend_from_slice(text.as_bytes());
    all.extend_from_slice(&len.to_le_bytes());
    all.extend_from_slice(MAGIC);
    Ok(Some(all))
}

/// How long the header is without its description, and what that says of arrays of so many bytes
/// each. All of the header and nothing, if it has none that fits.
pub(crate) fn split(
    py: Python<'_>,
    header: &[u8],
    sizes: &[usize],
) -> PyResult<(usize, Vec<Layout>)> {
    if let Some((len, text)) = cut(header)
        && let Some(layouts) = read(py, text, sizes)
    {
        return Ok((len, layouts));
    }
    let plain = sizes.iter().map(|size| Layout::of_bytes(*size));
    Ok((header.len(), plain.collect::<Result<_, _>>()?))
}

/// What the description behind a sample says; nothing, if it has none that fits.
pub(crate) fn of_sample(py: Python<'_>, bytes: &[u8]) -> PyResult<Option<Layout>> {
    let Some((len, text)) = cut(bytes) else {
        return Ok(None);
    };
    let layouts = read(py, text, &[len]);
    Ok(layouts.and_then(|mut layouts| layouts.pop()))
}

/// Where a description begins, and its text.
fn cut(header: &[u8]) -> Option<(usize, &str)> {
    let rest = header.strip_suffix(MAGIC)?;
    let (rest, len) = rest.split_last_chunk::<2>()?;
    let at = rest.len().checked_sub(u16::from_le_bytes(*len).into())?;
    Some((at, std::str::from_utf8(&rest[at..]).ok()?))
}

/// What a description says, if it is one of arrays of these sizes. It comes from outside.
fn read(py: Python<'_>, text: &str, sizes: &[usize]) -> Option<Vec<Layout>> {
    let mut layouts = Vec::with_capacity(sizes.len());
    for line in text.lines() {
        let (run, of) = match line.split_once('*') {
            Some((run, of)) if run.bytes().all(|b| b.is_ascii_digit()) => (run.parse().ok()?, of),
            _ => (1, line),
        };
        let (descr, shape) = of.rsplit_once(':')?;
        let sizes_of: Result<Vec<usize>, _> = shape
            .split(',')
            .filter(|size| !size.is_empty())
            .map(str::parse)
            .collect();
        let element = Element::of_descr(py, descr).ok()?;
        let layout = Layout::new(element, &sizes_of.ok()?).ok()?;
        for _ in 0..run {
            if sizes.get(layouts.len()) != Some(&layout.bytes) {
                return None;
            }
            layouts.push(layout.clone());
        }
    }
    (layouts.len() == sizes.len()).then_some(layouts)
}
