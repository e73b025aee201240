//! A log makes stores through a handle, and sends them in the order of the program.

use super::{Link, MappingError, Mode, Sink, Unannounced};
use crate::vmmc::access::put;
use crate::vmmc::{ExportMemory, Import, UpdateError};
use std::fmt;
use std::ops::Range;

/// Bytes that a run grows to before it is sent: a page, as the paper's interface combines
/// consecutive stores into packets of one at the most.
const RUN: usize = 4096;

/// Stores to a part of local memory that reach an import too, one after another.
///
/// Each store is made to the local memory and then sent. Those that follow one another without
/// a gap are combined and sent together: when the next one lies elsewhere, after 4,096 bytes, at
/// a [`flush`](Self::flush), and when this is dropped. A reader of the exporter's memory
/// sees them in the order in which they were made, as the paper's automatic update promises: a
/// reader that sees a flag sees the data that was stored before it.
///
/// What the exporter stores is not seen in the local memory, which keeps its content at map and
/// at unmap.
///
/// # Examples
///
/// ```
/// use portolan::vmmc::{ExportMemory, ExportOptions, Reach};
/// use portolan::{Deadline, Domain};
/// let domain = Domain::private()?;
/// let remote = ExportMemory::new(4096)?;
/// let options = ExportOptions::new(Reach::Write);
/// let export = domain.export(&remote, "journal", &options, Deadline::NOW)?;
/// let import = domain.import("journal", Deadline::after(std::time::Duration::from_secs(60)))?;
///
/// let local = ExportMemory::new(4096)?;
/// let mut log = import.map_log(&local, 0..256, 64)?;
/// log.store(8, b"the ")?;
/// log.store(12, b"data")?; // combined with the one before
/// log.store_release(0, 1)?; // and the flag, behind them
/// assert_eq!(remote.load_acquire(64)?, 1);
/// let mut bytes = [0; 8];
/// remote.read(72, &mut bytes)?;
/// assert_eq!(&bytes, b"the data");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Log {
    link: Link,
    /// Where in the memory the run begins.
    start: usize,
    /// Stored here and not sent yet.
    run: Vec<u8>,
    unannounced: Unannounced,
}

impl Import {
    /// Sends what is stored through the answer to `part` of `memory`, any bytes, to the import
    /// from `offset` on; see [`Log`].
    ///
    /// # Errors
    ///
    /// [`MappingError`].
    pub fn map_log(
        &self,
        memory: &ExportMemory,
        part: Range<usize>,
        offset: usize,
    ) -> Result<Log, MappingError> {
        // The order of a log's stores is that of words.
        self.shared().words()?;
        let link = Link::new(self.shared(), memory, part, offset, Mode::Log)?;
        Ok(Log {
            start: link.whole.start,
            link,
            run: Vec::with_capacity(RUN),
            unannounced: Unannounced::default(),
        })
    }
}

impl Log {
    /// Stores bytes, `at` so many after the first mapped one.
    ///
    /// # Errors
    ///
    /// [`UpdateError`]. Out of bounds nothing is stored; after the others the local memory has
    /// the bytes, and the import may not.
    pub fn store(&mut self, at: usize, bytes: &[u8]) -> Result<(), UpdateError> {
        let part = self.link.part(at, bytes.len())?;
        put(self.link.memory.words()?, part.start, bytes);
        let follows = part.start == self.start + self.run.len();
        if !follows || self.run.len() + bytes.len() > RUN {
            self.send()?;
            self.start = part.start;
        }
        if bytes.len() > RUN {
            self.send_part(part.start, bytes)?;
            self.start = part.end;
        } else {
            self.run.extend_from_slice(bytes);
        }
        Ok(())
    }

    /// Stores a word, `at` so many bytes after the first mapped one, a multiple of 8 in the
    /// memory and in the import. When this returns, it and all that was stored before have
    /// landed.
    ///
    /// # Errors
    ///
    /// As [`store`](Self::store), and [`UpdateError::Misaligned`].
    pub fn store_release(&mut self, at: usize, value: u64) -> Result<(), UpdateError> {
        let part = self.link.part(at, 8)?;
        let destination = self.link.destination(part.start);
        if !destination.is_multiple_of(8) {
            let offset = destination;
            return Err(UpdateError::Misaligned { offset });
        }
        self.link.memory.store_release(part.start, value)?;
        self.send()?;
        if self.link.mapped(&part).any(|p| p == part) {
            self.link.import.release(destination, value)?;
            self.unannounced.add(&self.link, &part);
        }
        Ok(())
    }

    /// Sends what is not sent yet. When this returns, all that was stored has landed.
    ///
    /// # Errors
    ///
    /// [`UpdateError`].
    pub fn flush(&mut self) -> Result<(), UpdateError> {
        crate::vmmc::present()?;
        self.send()?;
        self.link.import.there()
    }

    /// [Flushes](Self::flush), then notifies the exporter of what was sent since this was called
    /// last, from its first byte to its last; of nothing, if that is what was sent.
    ///
    /// # Errors
    ///
    /// As [`flush`](Self::flush).
    pub fn flush_notifying(&mut self) -> Result<(), UpdateError> {
        self.flush()?;
        self.unannounced.announce(&self.link)
    }

    /// Sends what is not sent yet, and ends the mapping. A drop does the same.
    ///
    /// # Errors
    ///
    /// [`UpdateError`]: it has ended, and the last stores may not have landed.
    pub fn unmap(mut self) -> Result<(), UpdateError> {
        self.flush()
    }

    /// Sends what is not sent yet; from then on `len` bytes, `at` so many after the first mapped
    /// one, are stored to here and not sent.
    ///
    /// # Errors
    ///
    /// [`UpdateError`].
    pub fn unmap_part(&mut self, at: usize, len: usize) -> Result<(), UpdateError> {
        let part = self.link.part(at, len)?;
        self.flush()?;
        self.link.release(&part);
        Ok(())
    }

    fn send(&mut self) -> Result<(), UpdateError> {
        let run = std::mem::take(&mut self.run);
        let sent = self.send_part(self.start, &run);
        // An import that did not take it has ended, and will not later.
        self.start += run.len();
        self.run = run;
        self.run.clear();
        sent
    }

    /// Sends what of it is still mapped.
    fn send_part(&mut self, start: usize, bytes: &[u8]) -> Result<(), UpdateError> {
        let part = start..start + bytes.len();
        for piece in self.link.mapped(&part) {
            let bytes = bytes.get(piece.start - start..piece.end - start);
            let destination = self.link.destination(piece.start);
            let import = &self.link.import;
            import.send_upwards(destination, bytes.unwrap_or_default())?;
        }
        self.unannounced.add(&self.link, &part);
        Ok(())
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        // A caller that wants the error calls `unmap`.
        let _ = self.flush();
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (import, parts) = (self.link.import.name(), &self.link.parts);
        write!(f, "Log({parts:?} to {import:?} from {})", self.link.offset)
    }
}
