//! An import reads and writes memory of another process.

use super::access::word;
use super::backend::Backend;
use super::imported::Imported;
use super::pending::pending;
use super::write_queue::{self, Done};
use super::{Pending, Reach, UpdateError};
use crate::{Deadline, Refused};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory that another process exports, until this is dropped.
///
/// Offsets count from the first byte of the export. Every call checks them, and that the export
/// is still there. Updates of one thread land in the order in which it makes them, so a thread that
/// sees a flag that was written last ([`store_release`](Self::store_release), looked at with
/// [`load_acquire`](Self::load_acquire)) sees what was written before it. When a blocking call
/// returns, what it wrote is in the exporter's memory.
///
/// An import [of ordinary memory](Self::is_kernel_mediated) has no words: what stores, loads or
/// changes one is [`UpdateError::NoWords`]. Its flags are bytes, each in a write of its own.
///
/// # In handlers of Unix signals
///
/// A handler that interrupts a thread ([an upcall's](crate::Delivery::upcall), too) may call
/// [`write`](Self::write), [`write_scattered`](Self::write_scattered),
/// [`write_strided`](Self::write_strided), [`read`](Self::read), [`check`](Self::check) and what
/// stores, loads or changes words: they take no lock and no memory. That is so as long as
///
/// - the import is not [kernel-mediated](Self::is_kernel_mediated);
/// - no [`begin_write`](Self::begin_write) of this import is under way: these calls wait for it,
///   and if the thread that was interrupted has just begun it they wait for ever;
/// - the exporter is not just dying: a call that finds that asks the system, which takes memory,
///   and waits, up to five seconds. An end of the export is found without either.
///
/// No other call may be made there: not [`notify`](Self::notify), no import, no drop of one.
///
/// # Examples
///
/// ```
/// use portolan::vmmc::{ExportMemory, ExportOptions, Reach};
/// use portolan::{Deadline, Domain};
/// # let soon = || Deadline::after(std::time::Duration::from_secs(60));
/// let domain = Domain::private()?;
/// let memory = ExportMemory::new(4096)?;
/// let options = ExportOptions::new(Reach::ReadWrite);
/// let export = domain.export(&memory, "picture", &options, soon())?;
///
/// let import = domain.import("picture", soon())?;
/// // Two rows of three bytes, each 100 bytes behind the one before; and two pieces anywhere.
/// import.write_strided(1000, 100, 3, b"abcdef")?;
/// import.write_scattered(&[(2000, b"here"), (3000, b"and there")])?;
/// let mut row = [0; 3];
/// import.read(1100, &mut row)?;
/// assert_eq!(&row, b"def");
///
/// // Words, which no other importer comes between.
/// assert_eq!(import.fetch_add(8, 5)?, 0);
/// assert_eq!(import.compare_exchange(8, 5, 7)?, Ok(5));
/// assert_eq!(memory.load_acquire(8)?, 7);
///
/// import.unimport();
/// export.unexport()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Import {
    pub(super) inner: Arc<Imported>,
}

impl Import {
    /// What mappings of this import share with it.
    pub(super) fn shared(&self) -> &Arc<Imported> {
        &self.inner
    }

    /// The name under which it is exported.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Bytes of the export: whole pages, unless it is kernel-mediated.
    #[expect(clippy::len_without_is_empty, reason = "an export is never empty")]
    pub fn len(&self) -> usize {
        self.inner.len()
    }

    /// Whether each write and read is a system call: the export is ordinary memory
    /// ([`OrdinaryMemory`](super::OrdinaryMemory)), to the byte and without words.
    pub fn is_kernel_mediated(&self) -> bool {
        matches!(self.inner.backend, Backend::Kernel(_) | Backend::Host(_))
    }

    /// What may be done with it.
    pub fn reach(&self) -> Reach {
        self.inner.reach
    }

    /// The ranges (first byte and length) that updates and reads have to stay within; none if
    /// that is everything.
    pub fn ranges(&self) -> &[(u64, u64)] {
        self.inner.ranges.as_slice()
    }

    /// Whether the export is still there, as far as is known; one load or two. If its exporter
    /// is just dying it waits for that, as every call does, for five seconds at the most.
    ///
    /// # Errors
    ///
    /// [`UpdateError::Revoked`], [`UpdateError::ExporterDied`], [`UpdateError::Disconnected`],
    /// [`UpdateError::Disowned`].
    pub fn check(&self) -> Result<(), UpdateError> {
        super::present()?;
        self.inner.there()
    }

    /// Copies `bytes` to `offset` and the following: a blocking deliberate update. When it
    /// returns they are in the exporter's memory. Eight bytes at a multiple of eight (or four
    /// at one of four, ...) land in one go; of more, a reader that looks meanwhile may see parts.
    ///
    /// # Errors
    ///
    /// [`UpdateError`].
    #[inline]
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), UpdateError> {
        self.inner.write(offset, bytes)
    }

    /// Takes memory for the pages that `len` bytes from `offset` on lie in, where they have none, so
    /// that no update there can fail for want of it: an export may be larger than memory, and what
    /// the kernel cannot give at a store it kills for. Nothing happens if the import is
    /// [kernel-mediated](Self::is_kernel_mediated).
    ///
    /// # Errors
    ///
    /// [`UpdateError::OutOfMemory`]: there is not so much; of what was plainly too much nothing was
    /// taken. And as [`write`](Self::write).
    ///
    /// ```
    /// use portolan::vmmc::{ExportMemory, ExportOptions, Reach, UpdateError};
    /// use portolan::{Deadline, Domain};
    /// # let soon = || Deadline::after(std::time::Duration::from_secs(60));
    /// let domain = Domain::private()?;
    /// let sparse = ExportMemory::new(1 << 40)?;
    /// let export = domain.export(&sparse, "sparse", &ExportOptions::new(Reach::ReadWrite), soon())?;
    /// let import = domain.import("sparse", soon())?;
    /// import.populate(1 << 39, 4096)?;
    /// import.write(1 << 39, b"here")?;
    /// let all = import.populate(0, import.len());
    /// assert_eq!(all, Err(UpdateError::OutOfMemory { len: 1 << 40 }));
    /// # drop(sparse);
    /// # drop(export);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn populate(&self, offset: usize, len: usize) -> Result<(), UpdateError> {
        let import = &*self.inner;
        import.may_write(offset, len)?;
        import.ready()?;
        import.populate(offset, len)?;
        import.there()
    }

    /// Copies from `offset` on: a remote read. Of what is written meanwhile there may be parts.
    ///
    /// # Errors
    ///
    /// [`UpdateError`]; `bytes` may have changed.
    #[inline]
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), UpdateError> {
        let import = &*self.inner;
        import.may_read(offset, bytes.len())?;
        import.ready()?;
        import.take(offset, bytes)?;
        import.there()
    }

    /// Writes several pieces, in this order.
    ///
    /// # Errors
    ///
    /// [`UpdateError`]; if one of them is out of bounds, none is written.
    pub fn write_scattered(&self, pieces: &[(usize, &[u8])]) -> Result<(), UpdateError> {
        let import = &*self.inner;
        for (offset, bytes) in pieces {
            import.may_write(*offset, bytes.len())?;
        }
        import.ready()?;
        let begun = import.begins();
        for (offset, bytes) in pieces {
            import.put(*offset, bytes)?;
        }
        import.landed()?;
        let first = pieces.first().map_or(0, |(offset, _)| *offset);
        let bytes = pieces.iter().map(|(_, bytes)| bytes.len()).sum();
        import.has_updated(begun, first, bytes);
        Ok(())
    }

    /// Cuts `bytes` into blocks of `block` bytes (the last one may be shorter) and writes each
    /// `stride` bytes after the one before, from `offset` on: a column of a matrix, a rectangle
    /// of a picture.
    ///
    /// # Errors
    ///
    /// [`UpdateError`]; if one of them is out of bounds, none is written.
    pub fn write_strided(
        &self,
        offset: usize,
        stride: usize,
        block: usize,
        bytes: &[u8],
    ) -> Result<(), UpdateError> {
        if block == 0 || stride < block {
            return Err(UpdateError::BadStride { block, stride });
        }
        let import = &*self.inner;
        let place = |nth: usize| {
            nth.checked_mul(stride)
                .and_then(|at| at.checked_add(offset))
        };
        for (nth, piece) in bytes.chunks(block).enumerate() {
            let at = place(nth).unwrap_or(usize::MAX);
            import.may_write(at, piece.len())?;
        }
        import.ready()?;
        let begun = import.begins();
        for (nth, piece) in bytes.chunks(block).enumerate() {
            import.put(offset + nth * stride, piece)?;
        }
        import.landed()?;
        import.has_updated(begun, offset, bytes.len());
        Ok(())
    }

    /// Stores a word at `offset`, a multiple of 8: a thread of any process that loads it with
    /// `load_acquire` sees everything that this thread wrote before.
    ///
    /// # Errors
    ///
    /// [`UpdateError`].
    #[inline]
    pub fn store_release(&self, offset: usize, value: u64) -> Result<(), UpdateError> {
        self.inner.store_release(offset, value)
    }

    /// Loads the word at `offset`, a multiple of 8: what its writer wrote before it is then
    /// there.
    ///
    /// # Errors
    ///
    /// [`UpdateError`].
    #[inline]
    pub fn load_acquire(&self, offset: usize) -> Result<u64, UpdateError> {
        let import = &*self.inner;
        import.may_read(offset, 8)?;
        import.ready()?;
        // Acquire: pairs with `store_release`.
        let value = word(import.words()?, offset)?.load(Ordering::Acquire);
        import.there()?;
        Ok(value)
    }

    /// Adds to the word at `offset`, a multiple of 8, in one step that no other process's can
    /// fall between; what it was. Wraps.
    ///
    /// # Errors
    ///
    /// [`UpdateError`]; the export has to be open for both, reading and writing.
    pub fn fetch_add(&self, offset: usize, value: u64) -> Result<u64, UpdateError> {
        // AcqRel: like a `load_acquire` and a `store_release` in one.
        self.change(offset, |word| word.fetch_add(value, Ordering::AcqRel))
    }

    /// Replaces the word at `offset`, a multiple of 8, by `new` if it is `current`, in one step;
    /// what it was, as `Ok` if it was replaced.
    ///
    /// # Errors
    ///
    /// As [`fetch_add`](Self::fetch_add).
    pub fn compare_exchange(
        &self,
        offset: usize,
        current: u64,
        new: u64,
    ) -> Result<Result<u64, u64>, UpdateError> {
        // AcqRel, Acquire: as above.
        self.change(offset, |word| {
            word.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire)
        })
    }

    fn change<T>(
        &self,
        offset: usize,
        change: impl FnOnce(&AtomicU64) -> T,
    ) -> Result<T, UpdateError> {
        let import = &*self.inner;
        import.may_write(offset, 8)?;
        import.may_read(offset, 8)?;
        import.ready()?;
        let begun = import.begins();
        let was = change(word(import.words()?, offset)?);
        import.landed()?;
        import.has_updated(begun, offset, 8);
        Ok(was)
    }

    /// Begins to write `buffer` to `offset` and the following, and returns at once: a
    /// non-blocking deliberate update. It keeps the buffer until it has landed and gives it
    /// back then. Those of an import land in the order in which they were begun, and blocking
    /// calls on it stay behind them, but those that the buffer's own code makes as it is let
    /// go of.
    ///
    /// # Errors
    ///
    /// [`Refused`], with the buffer.
    #[allow(
        clippy::type_complexity,
        reason = "the buffer comes back at once, or later, in one way"
    )]
    pub fn begin_write<B>(
        &self,
        offset: usize,
        buffer: B,
    ) -> Result<Pending<Result<B, Refused<B, UpdateError>>>, Refused<B, UpdateError>>
    where
        B: AsRef<[u8]> + Send + 'static,
    {
        let import = &self.inner;
        let fine = import
            .may_write(offset, buffer.as_ref().len())
            .and_then(|()| self.check());
        if let Err(why) = fine {
            return Err(Refused::new(buffer, why));
        }
        let (promise, pending) = pending();
        let its_own = Arc::clone(import);
        let run = move || {
            // Dropped last, and with it the buffer, if no thread waits for the result: calls that
            // the buffer's own code makes then come behind this write.
            let mut promise = promise;
            let _done = Done(&its_own.write_order);
            // A buffer that has become another one since is checked again.
            let bytes = buffer.as_ref();
            let written = its_own
                .may_write(offset, bytes.len())
                .and_then(|()| its_own.there());
            let written = written.and_then(|()| {
                let begun = its_own.begins();
                its_own.put(offset, bytes)?;
                portolan_shm::mark!("update.copied_later");
                its_own.landed()?;
                its_own.has_updated(begun, offset, bytes.len());
                Ok(())
            });
            promise.keep(match written {
                Ok(()) => Ok(buffer),
                Err(why) => Err(Refused::new(buffer, why)),
            });
        };
        import.write_order.begin();
        write_queue::push(Box::new(run));
        Ok(pending)
    }

    /// Waits until everything that was begun before has landed, or failed, which its handle
    /// says.
    ///
    /// # Errors
    ///
    /// [`UpdateError::TimedOut`], and as [`check`](Self::check).
    pub fn flush(&self, deadline: impl Into<Deadline>) -> Result<(), UpdateError> {
        super::present()?;
        if !self.inner.write_order.behind(deadline.into()) {
            return Err(UpdateError::TimedOut);
        }
        self.inner.landed()
    }

    /// Lets go of the import, once everything that was begun before has ended. When this
    /// returns nothing of it is mapped here. A drop does the same, and what was begun goes on.
    pub fn unimport(self) {
        if super::present().is_ok() {
            self.inner.write_order.behind(Deadline::NEVER);
        }
    }
}

impl fmt::Debug for Import {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Import({:?}, {} bytes)", self.name(), self.len())
    }
}
