//! Memory whose owner has plain slices of it, as long as no importer can write: the types say when.
//!
//! ```text
//!             export_readable              unexport
//! OwnedMemory ---------------> ReadableExport -----> OwnedMemory      &[u8], &mut [u8] throughout
//!             export_writable              unexport
//! OwnedMemory ---------------> WritableExport -----> OwnedMemory      copies and atomics meanwhile
//! ```
//!
//! Each arrow takes its type by value, so no slice outlives it.

use super::place::Sole;
use super::{Export, ExportError, ExportMemory, ExportOptions, Reach, UpdateError};
use crate::{Deadline, Domain, Refused};
use std::fmt;
use std::sync::atomic::AtomicU64;

/// Memory that no other process has: its owner reads and writes it as bytes. It is exported by
/// [`Domain::export_readable`] or [`Domain::export_writable`], and is the same memory again, at
/// the same address and with its content, when that export has ended.
///
/// # Examples
///
/// ```
/// use portolan::vmmc::{ExportOptions, OwnedMemory, Reach};
/// use portolan::{Deadline, Domain};
/// # let soon = || Deadline::after(std::time::Duration::from_secs(60));
/// let domain = Domain::private()?;
/// let mut table = OwnedMemory::new(4096)?;
/// table.bytes_mut()[..4].copy_from_slice(b"zero");
///
/// // Importers write, so the owner copies; then the memory is its own again.
/// let options = ExportOptions::new(Reach::ReadWrite);
/// let export = domain.export_writable(table, "table", &options, soon())?;
/// domain.import("table", soon())?.write(4, b" one")?;
/// let table = export.unexport()?;
/// assert_eq!(&table.bytes()[..8], b"zero one");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct OwnedMemory {
    sole: Sole,
}

/// Memory that importers may only read: its owner reads and writes it as bytes. What an importer
/// reads while they change is old or new, byte by byte; flags that announce data are words
/// ([`ExportMemory::store_release`]), which slices do not have.
///
/// The kernel enforces that no importer writes: the memory's file is sealed against it.
///
/// # Examples
///
/// ```
/// use portolan::vmmc::{ExportOptions, OwnedMemory, Reach};
/// use portolan::{Deadline, Domain};
/// # let soon = || Deadline::after(std::time::Duration::from_secs(60));
/// let domain = Domain::private()?;
/// let options = ExportOptions::new(Reach::Read);
/// let mut scores = domain.export_readable(OwnedMemory::new(4096)?, "scores", &options, soon())?;
/// let import = domain.import("scores", soon())?;
/// scores.bytes_mut()[100..].fill(7);
///
/// let mut seen = [0; 4];
/// import.read(98, &mut seen)?;
/// assert_eq!(seen, [0, 0, 7, 7]);
/// assert!(import.write(0, b"no").is_err());
/// assert_eq!(scores.unexport()?.bytes()[100], 7);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A slice ends before the export does:
///
/// ```compile_fail,E0505
/// # fn f(scores: portolan::vmmc::ReadableExport) {
/// let first = &scores.bytes()[0];
/// let _ = scores.unexport();
/// println!("{first}");
/// # }
/// ```
#[must_use = "a dropped export has ended"]
pub struct ReadableExport {
    // First, so that the memory of a dropped one is not copied: it goes with its export.
    sole: Sole,
    export: Export,
}

/// Memory that importers may write, at any moment: its owner copies it in and out, or looks at it
/// as words. To have it as bytes, it takes the memory back ([`unexport`](Self::unexport)), and may
/// export it again; importers are told that the export has ended
/// ([`UpdateError::Revoked`]), and import again.
///
/// # Examples
///
/// See [`OwnedMemory`]. There is no slice of memory that others write:
///
/// ```compile_fail,E0599
/// # fn f(export: portolan::vmmc::WritableExport) {
/// export.bytes();
/// # }
/// ```
#[must_use = "a dropped export has ended"]
pub struct WritableExport {
    // First: as in `ReadableExport`.
    sole: Sole,
    memory: ExportMemory,
    export: Export,
}

impl OwnedMemory {
    /// Memory of `len` bytes, zeros, rounded up to whole pages. See [`ExportMemory::new`], also
    /// for when it takes memory.
    ///
    /// # Errors
    ///
    /// As [`ExportMemory::new`].
    pub fn new(len: usize) -> Result<Self, ExportError> {
        Self::of(ExportMemory::new(len)?).map_err(|_| ExportError::AlreadyExported)
    }

    /// Memory that is not exported, if this is its only clone and no part of it is mapped for
    /// automatic update; else the memory again.
    ///
    /// # Errors
    ///
    /// The memory.
    ///
    /// ```
    /// use portolan::vmmc::{ExportMemory, OwnedMemory};
    /// let memory = ExportMemory::new(4096)?;
    /// let clone = memory.clone();
    /// let memory = OwnedMemory::of(memory).err().ok_or("two have it")?;
    /// drop(clone);
    /// let owned = OwnedMemory::of(memory).map_err(|_| "only one has it")?;
    /// assert_eq!(owned.bytes().len(), 4096);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of(memory: ExportMemory) -> Result<Self, ExportMemory> {
        Sole::of(memory).map(|sole| Self { sole })
    }

    /// All of it; nothing in a forked child, which does not have it.
    pub fn bytes(&self) -> &[u8] {
        self.sole.bytes()
    }

    /// All of it, to write; nothing in a forked child.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.sole.bytes_mut()
    }
}

impl From<OwnedMemory> for ExportMemory {
    fn from(memory: OwnedMemory) -> Self {
        memory.sole.into_memory()
    }
}

impl Domain {
    /// As [`export`](Self::export), of memory that importers may only read, and of which the
    /// caller has plain slices meanwhile.
    ///
    /// # Errors
    ///
    /// [`Refused`], with the memory; [`ExportError::NotReadOnly`], if the options let importers
    /// write.
    pub fn export_readable(
        &self,
        memory: OwnedMemory,
        name: &str,
        options: &ExportOptions,
        deadline: impl Into<Deadline>,
    ) -> Result<ReadableExport, Refused<ExportMemory, ExportError>> {
        let sole = memory.sole;
        if options.reach != Reach::Read {
            let reach = options.reach;
            let why = ExportError::NotReadOnly { reach };
            return Err(Refused::new(sole.into_memory(), why));
        }
        match self.export(&sole.lend(), name, options, deadline) {
            Ok(export) => Ok(ReadableExport { sole, export }),
            Err(why) => Err(Refused::new(sole.into_memory(), why)),
        }
    }

    /// As [`export`](Self::export), of memory of which the caller has slices again when it has
    /// taken it back.
    ///
    /// # Errors
    ///
    /// [`Refused`], with the memory.
    pub fn export_writable(
        &self,
        memory: OwnedMemory,
        name: &str,
        options: &ExportOptions,
        deadline: impl Into<Deadline>,
    ) -> Result<WritableExport, Refused<ExportMemory, ExportError>> {
        let sole = memory.sole;
        let memory = sole.lend();
        match self.export(&memory, name, options, deadline) {
            Ok(export) => Ok(WritableExport {
                sole,
                memory,
                export,
            }),
            Err(why) => Err(Refused::new(sole.into_memory(), why)),
        }
    }
}

impl ReadableExport {
    /// All of it; nothing in a forked child, which does not have it.
    pub fn bytes(&self) -> &[u8] {
        self.sole.bytes()
    }

    /// All of it, to write; nothing in a forked child.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.sole.bytes_mut()
    }

    /// The export: its name, its importers.
    pub fn export(&self) -> &Export {
        &self.export
    }

    /// Ends the export, as [`Export::unexport`] does.
    ///
    /// # Errors
    ///
    /// [`Refused`], with the export, to try again.
    pub fn unexport(self) -> Result<OwnedMemory, Refused<Self, ExportError>> {
        let Self { sole, export } = self;
        match export.unexport() {
            Ok(()) => Ok(OwnedMemory { sole }),
            Err(Refused { why, item }) => {
                let export = *item;
                Err(Refused::new(Self { sole, export }, why))
            }
        }
    }
}

impl WritableExport {
    /// See [`ExportMemory::read`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), UpdateError> {
        self.memory.read(offset, bytes)
    }

    /// See [`ExportMemory::write`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), UpdateError> {
        self.memory.write(offset, bytes)
    }

    /// See [`ExportMemory::load_acquire`].
    ///
    /// # Errors
    ///
    /// As there.
    #[inline]
    pub fn load_acquire(&self, offset: usize) -> Result<u64, UpdateError> {
        self.memory.load_acquire(offset)
    }

    /// See [`ExportMemory::store_release`].
    ///
    /// # Errors
    ///
    /// As there.
    #[inline]
    pub fn store_release(&self, offset: usize, value: u64) -> Result<(), UpdateError> {
        self.memory.store_release(offset, value)
    }

    /// See [`ExportMemory::words`]. They end with the export here.
    ///
    /// # Errors
    ///
    /// As there.
    #[inline]
    pub fn words(&self) -> Result<&[AtomicU64], UpdateError> {
        self.memory.words()
    }

    /// The export: its name, its importers, its notifications.
    pub fn export(&self) -> &Export {
        &self.export
    }

    /// Ends the export, as [`Export::unexport`] does: from here on no importer changes a byte, and
    /// the memory is the caller's, as bytes too.
    ///
    /// # Errors
    ///
    /// [`Refused`], with the export, to try again.
    pub fn unexport(self) -> Result<OwnedMemory, Refused<Self, ExportError>> {
        let Self {
            sole,
            memory,
            export,
        } = self;
        match export.unexport() {
            Ok(()) => Ok(OwnedMemory { sole }),
            Err(Refused { why, item }) => {
                let export = *item;
                let again = Self {
                    sole,
                    memory,
                    export,
                };
                Err(Refused::new(again, why))
            }
        }
    }
}

impl fmt::Debug for OwnedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnedMemory({} bytes)", self.bytes().len())
    }
}

impl fmt::Debug for ReadableExport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadableExport({:?})", self.export)
    }
}

impl fmt::Debug for WritableExport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WritableExport({:?})", self.export)
    }
}
