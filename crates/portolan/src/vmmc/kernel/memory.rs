//! Exports ordinary memory as it is: a vector, or a range of the program's own.

use super::range::Range;
use crate::vmmc::access::within;
use crate::vmmc::{ExportMemory, UpdateError};
use std::fmt;
use std::ops;
use std::sync::Arc;

/// Memory of the program's own, of any length at any address, whose export is kernel-mediated:
/// importers have nothing of it mapped, and each of their writes and reads is a system call; for
/// those of other users the domain's host makes it.
///
/// Cheap to clone; all clones are the same memory. While it is exported importers may change
/// it at any moment, so it is read and written by copies and never lent as a slice;
/// [`into_vec`](Self::into_vec) gives it back.
///
/// # Examples
///
/// ```
/// use portolan::vmmc::{ExportOptions, OrdinaryMemory, Reach};
/// use portolan::{Deadline, Domain};
///
/// let domain = Domain::private()?;
/// let memory = OrdinaryMemory::from(vec![0; 1001]);
/// let options = ExportOptions::new(Reach::ReadWrite);
/// let export = domain.export(&memory, "table", &options, Deadline::NEVER)?;
///
/// let import = domain.import("table", Deadline::NOW)?;
/// import.write(998, b"end")?;
/// assert!(import.write(999, b"end").is_err());
///
/// export.unexport()?;
/// let bytes = memory.into_vec().expect("this is the only handle");
/// assert_eq!(&bytes[998..], b"end");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct OrdinaryMemory {
    inner: Arc<Range>,
}

impl From<Vec<u8>> for OrdinaryMemory {
    /// All of its elements; nothing of them is moved.
    fn from(bytes: Vec<u8>) -> Self {
        Self::of(Range::of_vec(bytes))
    }
}

impl OrdinaryMemory {
    pub(super) fn of(range: Range) -> Self {
        Self {
            inner: Arc::new(range),
        }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.inner.len()
    }

    /// Whether there are none, and so nothing to export.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its first address, which never changes.
    pub fn address(&self) -> usize {
        self.inner.start()
    }

    /// Copies bytes from `offset` on. What importers write meanwhile is there in part or not;
    /// a thread that sees a byte sees what its writer wrote before.
    ///
    /// # Errors
    ///
    /// [`UpdateError::OutOfBounds`].
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), UpdateError> {
        within(offset, bytes.len(), self.len())?;
        self.inner.read(offset, bytes);
        Ok(())
    }

    /// Copies bytes to `offset` and the following.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), UpdateError> {
        within(offset, bytes.len(), self.len())?;
        self.inner.write(offset, bytes);
        Ok(())
    }

    /// The vector that it was made of, at the same address, if there is no other clone and no
    /// export of it.
    ///
    /// # Errors
    ///
    /// The memory: there is, or it was not made of a vector.
    pub fn into_vec(self) -> Result<Vec<u8>, Self> {
        let range = Arc::try_unwrap(self.inner).map_err(|inner| Self { inner })?;
        range.into_vec().map_err(Self::of)
    }
}

impl fmt::Debug for OrdinaryMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (start, len) = (self.address(), self.len());
        write!(f, "OrdinaryMemory({start:#x}, {len} bytes)")
    }
}

/// What can be exported; which of the two chooses who copies. Also what
/// [`Import::write_from`](crate::vmmc::Import::write_from) reads and
/// [`Import::read_into`](crate::vmmc::Import::read_into) writes.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Exportable<'a> {
    /// User level: importers map it.
    Shared(&'a ExportMemory),
    /// Kernel-mediated: importers have the kernel copy.
    Ordinary(&'a OrdinaryMemory),
}

impl Exportable<'_> {
    pub(crate) fn len(self) -> usize {
        match self {
            Self::Shared(memory) => memory.len(),
            Self::Ordinary(memory) => memory.len(),
        }
    }

    /// How many bytes a part of it has, which is to lie in it.
    pub(crate) fn holds(self, part: &ops::Range<usize>) -> Result<usize, UpdateError> {
        let len = part.end.saturating_sub(part.start);
        within(part.start, len, self.len())?;
        Ok(len)
    }

    pub(crate) fn read(self, offset: usize, bytes: &mut [u8]) -> Result<(), UpdateError> {
        match self {
            Self::Shared(memory) => memory.read(offset, bytes),
            Self::Ordinary(memory) => memory.read(offset, bytes),
        }
    }

    pub(crate) fn write(self, offset: usize, bytes: &[u8]) -> Result<(), UpdateError> {
        match self {
            Self::Shared(memory) => memory.write(offset, bytes),
            Self::Ordinary(memory) => memory.write(offset, bytes),
        }
    }
}

impl<'a> From<&'a ExportMemory> for Exportable<'a> {
    fn from(memory: &'a ExportMemory) -> Self {
        Self::Shared(memory)
    }
}

impl<'a> From<&'a OrdinaryMemory> for Exportable<'a> {
    fn from(memory: &'a OrdinaryMemory) -> Self {
        Self::Ordinary(memory)
    }
}
