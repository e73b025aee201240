//! An alias makes a local range the remote memory itself.

use super::{Link, MappingError, Mode};
use crate::Refused;
use crate::vmmc::{ExportMemory, Import, UpdateError};
use portolan_sys::memory::PrivatiseError;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A part of local memory that *is* the import's, until this is unmapped or dropped.
///
/// A store costs what any store costs, and is in the exporter's memory at once, in the
/// processor's order. It differs from the paper's map in three things, for there is one memory
/// and not two:
///
/// - What the part held is gone when it is mapped: the export's content is seen.
/// - What the exporter and other importers store is seen here.
/// - When it is unmapped the part holds what the export held in that moment, as private memory
///   at the same address.
///
/// Stores that threads of this process make while it is unmapped are not lost.
///
/// Once the exporter has ended the export or died, stores reach no process; nothing traps, and
/// [`check`](Self::check) says so. After an end of the export the part reads as zeros and what was
/// stored since.
///
/// # Examples
///
/// ```
/// use portolan::vmmc::{ExportMemory, ExportOptions, Reach};
/// use portolan::{Deadline, Domain};
/// let domain = Domain::private()?;
/// let remote = ExportMemory::new(8192)?;
/// let options = ExportOptions::new(Reach::ReadWrite);
/// let export = domain.export(&remote, "samples", &options, Deadline::NOW)?;
/// let import = domain.import("samples", Deadline::after(std::time::Duration::from_secs(60)))?;
///
/// let local = ExportMemory::new(4096)?;
/// let alias = import.map_alias(&local, 0..4096, 4096)?;
/// local.write(0, b"a plain store")?;
/// let mut bytes = [0; 13];
/// remote.read(4096, &mut bytes)?;
/// assert_eq!(&bytes, b"a plain store");
///
/// alias.unmap()?;
/// local.write(0, b"local again!!")?;
/// remote.read(4096, &mut bytes)?;
/// assert_eq!(&bytes, b"a plain store");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Alias {
    link: Link,
    /// Private already, but not to the last page yet.
    returning: Vec<Range<usize>>,
}

impl Import {
    /// Makes `part` of `memory`, whole pages, show the import from `offset` on instead of what
    /// it holds; see [`Alias`]. The export has to be open for both, reading and writing.
    ///
    /// Memory that was [made](ExportMemory::new) to be exported and has not been is first made
    /// private, and so takes memory for each of its pages.
    ///
    /// # Errors
    ///
    /// [`MappingError`]; the memory is as it was.
    pub fn map_alias(
        &self,
        memory: &ExportMemory,
        part: Range<usize>,
        offset: usize,
    ) -> Result<Alias, MappingError> {
        let import = self.shared();
        if !import.reach().reads() {
            return Err(UpdateError::NotReadable.into());
        }
        let file = import.file()?;
        let link = Link::new(import, memory, part, offset, Mode::Alias)?;
        let shown = memory.inner.replace(&link.whole, file, offset as u64);
        shown?;
        Ok(Alias {
            link,
            returning: Vec::new(),
        })
    }
}

impl Alias {
    /// Whether stores still reach the exporter, as far as is known.
    ///
    /// # Errors
    ///
    /// [`UpdateError::Revoked`], [`UpdateError::ExporterDied`], [`UpdateError::Disconnected`],
    /// [`UpdateError::Disowned`].
    pub fn check(&self) -> Result<(), UpdateError> {
        crate::vmmc::present()?;
        self.link.import.there()
    }

    /// Whether all that this thread has stored before has landed: an error says that some of it
    /// may not have.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    pub fn flush(&self) -> Result<(), UpdateError> {
        crate::vmmc::present()?;
        self.link.import.landed()
    }

    /// [Flushes](Self::flush), and notifies the exporter of the whole part: which of it was stored
    /// to no thread has seen. Without this an exporter that wants to learn of stores has to watch
    /// for them itself, in the line that is stored last
    /// ([`ExportMemory::load_acquire`]), which takes its processor.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    pub fn flush_notifying(&self) -> Result<(), UpdateError> {
        self.flush()?;
        for part in &self.link.parts {
            let destination = self.link.destination(part.start);
            self.link.import.notify(destination, part.len())?;
        }
        Ok(())
    }

    /// Makes the part private memory with what it holds, at the same address.
    ///
    /// # Errors
    ///
    /// [`Refused`], with the alias, to try again with: most often there is no memory. Stores may
    /// still reach the import.
    pub fn unmap(mut self) -> Result<(), Refused<Self, MappingError>> {
        match self.end() {
            Ok(()) => Ok(()),
            Err(error) => Err(Refused::new(self, error)),
        }
    }

    /// As [`unmap`](Self::unmap), of some pages: `len` bytes from `at` on, counted from the
    /// first mapped one. The rest stays mapped.
    ///
    /// # Errors
    ///
    /// [`MappingError`].
    pub fn unmap_part(&mut self, at: usize, len: usize) -> Result<(), MappingError> {
        crate::vmmc::present()?;
        let part = self.link.pages(at, len)?;
        self.take_back(&part)?;
        Ok(())
    }

    fn end(&mut self) -> Result<(), PrivatiseError> {
        if crate::vmmc::present().is_err() {
            // A forked child does not have it.
            return Ok(());
        }
        let whole = self.link.whole.clone();
        self.take_back(&whole)
    }

    fn take_back(&mut self, part: &Range<usize>) -> Result<(), PrivatiseError> {
        while let Some(rest) = self.returning.last() {
            self.link.memory.inner.populate(rest)?;
            self.returning.pop();
        }
        let pieces: Vec<_> = self.link.mapped(part).collect();
        let import = Arc::clone(&self.link.import);
        let Ok(file) = import.file() else {
            // Of what has none there is no alias.
            return Ok(());
        };
        for piece in pieces {
            let offset = self.link.destination(piece.start) as u64;
            let memory = &self.link.memory.inner;
            match memory.own(&piece, file, offset) {
                Ok(()) => self.link.release(&piece),
                Err(PrivatiseError::Incomplete { done, len, source }) => {
                    self.link.release(&piece);
                    self.returning.push(piece.start + done..piece.end);
                    return Err(PrivatiseError::Incomplete { done, len, source });
                }
                Err(other) => return Err(other),
            }
        }
        Ok(())
    }
}

impl Drop for Alias {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            let import = self.link.import.name();
            tracing::error!(import, %error, "an alias that was dropped is still one");
        }
    }
}

impl fmt::Debug for Alias {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (import, parts) = (self.link.import.name(), &self.link.parts);
        write!(
            f,
            "Alias({parts:?} of {import:?} from {})",
            self.link.offset
        )
    }
}
