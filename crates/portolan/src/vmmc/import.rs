//! Memory of another process, to be read and written here.

use super::access::{put, put_upwards, take, within, word};
use super::kernel::{Direct, Failed, UnderWay};
use super::later::{self, Done, Order};
use super::notify::Poster;
use super::pending::pending;
use super::place::Place;
use super::reached::{Reached, place};
use super::watch::Watched;
use super::{ImportError, Pending, Reach, Unwritten, UpdateError};
use crate::Deadline;
use crate::domain::{Descriptor, Entrance};
use portolan_abi::FORMAT_VERSION;
use portolan_abi::vmmc::{Answer, Denied, Granted, Ranges, Way, board, post};
use portolan_shm::atomic::in_program_order;
use portolan_sys::memory::{self, Mapping};
use portolan_sys::process::{PidFd, TransferError};
use portolan_sys::socket;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Memory that another process exports, until this is dropped.
///
/// Offsets count from the first byte of the export. Every call checks them, and that the export
/// is still there. Updates of one thread land in the order in which it makes them, so whoever
/// sees a flag that was written last ([`store_release`](Self::store_release), looked at with
/// [`load_acquire`](Self::load_acquire)) sees what was written before it. When a blocking call
/// returns, what it wrote is in the exporter's memory.
///
/// An import [of ordinary memory](Self::is_kernel_mediated) has no words: what stores, loads or
/// changes one is [`UpdateError::NoWords`]. Its flags are bytes, each in a write of its own.
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
    inner: Arc<Imported>,
}

/// What an import and its writes that go on share.
pub(crate) struct Imported {
    name: String,
    reach: Reach,
    ranges: Ranges,
    /// Whether each update makes a barrier.
    fences: bool,
    reached: Reached,
    board: Place,
    /// What we say that we have written.
    post: Place,
    poster: Poster,
    exporter: Watched,
    order: Order,
}

/// Why there is no import yet.
pub(super) enum Miss {
    /// The exporter went away in the middle: look for it anew.
    Again,
    /// The kernel does not let us in: ask anew, for the host to copy.
    Mediate,
    Final(ImportError),
}

impl<E: Into<ImportError>> From<E> for Miss {
    fn from(error: E) -> Self {
        Self::Final(error.into())
    }
}

impl Import {
    /// What came in answer to an [`Ask`], of export `name`, and at most `max` bytes.
    pub(super) fn answered(
        connection: Descriptor,
        name: &str,
        max: u64,
        bytes: &[u8],
        fds: Vec<OwnedFd>,
        entrance: Option<Entrance>,
    ) -> Result<Self, Miss> {
        // From here on the exporter has nothing to send but the end.
        let _ = socket::refuse_descriptors(&connection);
        let garbled = |what| ImportError::Garbled { what };
        let granted = match Answer::decode(bytes).ok_or(garbled("no record"))? {
            Answer::Granted(granted) => granted,
            Answer::Denied(why, theirs) => return Err(denied(why, theirs, name)),
        };
        if fds.len() != granted.way.descriptors() {
            return Err(garbled("another number of descriptors").into());
        }
        Self::of(connection, name, max, granted, fds, entrance)
    }

    /// Maps what was granted, once it has been found to be what it was said to be.
    fn of(
        connection: Descriptor,
        name: &str,
        max: u64,
        granted: Granted,
        fds: Vec<OwnedFd>,
        entrance: Option<Entrance>,
    ) -> Result<Self, Miss> {
        let Granted {
            version,
            reach,
            fences,
            way,
            len,
            ranges,
        } = granted;
        if version != FORMAT_VERSION {
            return Err(denied(Denied::Version, version, name));
        }
        let too_large = || ImportError::TooLarge {
            name: name.to_owned(),
            len,
            max,
        };
        let bytes = usize::try_from(len).map_err(|_| too_large())?;
        if len > max {
            return Err(too_large().into());
        }
        let mut fds = fds.into_iter();
        let mut next = || {
            let what = "too few descriptors";
            fds.next().ok_or(ImportError::Garbled { what })
        };
        let file = match way {
            Way::Shared => Some(next()?),
            Way::Kernel { .. } | Way::Mediated(_) => None,
        };
        let (board, post, exporter) = (next()?, next()?, next()?);
        if let Some(file) = &file {
            memory::verify(file, len).map_err(ImportError::from)?;
        }
        memory::verify(&board, board::BYTES as u64).map_err(ImportError::from)?;
        memory::verify(&post, post::BYTES as u64).map_err(ImportError::from)?;
        let exporter = PidFd::from_descriptor(exporter).map_err(ImportError::from)?;
        let reached = Reached::open(&granted, bytes, file, &board, &exporter, entrance)?;
        let inner = Imported {
            name: name.to_owned(),
            reach,
            ranges,
            fences,
            reached,
            board: place(Mapping::read_only(&board, board::BYTES))?,
            post: place(Mapping::shared_anywhere(&post, post::BYTES))?,
            poster: Poster::default(),
            exporter: Watched::new(connection, exporter)
                .map_err(|e| ImportError::system("watch the exporter", &e))?,
            order: Order::default(),
        };
        portolan_shm::mark!("import.mapped");
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

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
        matches!(self.inner.reached, Reached::Kernel(_) | Reached::Host(_))
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
    /// [`UpdateError::Forked`].
    pub fn check(&self) -> Result<(), UpdateError> {
        super::present()?;
        self.inner.there()
    }

    /// Copies `bytes` to `offset` and the following: a blocking deliberate update. When it
    /// returns they are in the exporter's memory. Eight bytes at a multiple of eight (or four
    /// at one of four, ...) land in one go; of more, somebody who looks meanwhile may see parts.
    ///
    /// # Errors
    ///
    /// [`UpdateError`].
    #[inline]
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), UpdateError> {
        self.inner.write(offset, bytes)
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
        for (offset, bytes) in pieces {
            import.put(*offset, bytes)?;
        }
        import.landed()
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
        for (nth, piece) in bytes.chunks(block).enumerate() {
            import.put(offset + nth * stride, piece)?;
        }
        import.landed()
    }

    /// Stores a word at `offset`, a multiple of 8: whoever loads it with `load_acquire`, here or
    /// in any process, sees everything that this thread wrote before.
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
        let was = change(word(import.words()?, offset)?);
        import.landed()?;
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
    /// [`Unwritten`], with the buffer.
    pub fn write_later<B>(
        &self,
        offset: usize,
        buffer: B,
    ) -> Result<Pending<Result<B, Unwritten<B>>>, Unwritten<B>>
    where
        B: AsRef<[u8]> + Send + 'static,
    {
        let import = &self.inner;
        let fine = import
            .may_write(offset, buffer.as_ref().len())
            .and_then(|()| self.check());
        if let Err(why) = fine {
            return Err(Unwritten { why, buffer });
        }
        let (promise, pending) = pending();
        let its_own = Arc::clone(import);
        let run = move || {
            // Dropped last, and with it the buffer, if nobody waits for that: what its own code
            // does then comes behind this write.
            let mut promise = promise;
            let _done = Done(&its_own.order);
            // A buffer that has become another one since is checked again.
            let bytes = buffer.as_ref();
            let written = its_own
                .may_write(offset, bytes.len())
                .and_then(|()| its_own.there());
            let written = written.and_then(|()| {
                its_own.put(offset, bytes)?;
                portolan_shm::mark!("update.copied_later");
                its_own.landed()
            });
            promise.keep(match written {
                Ok(()) => Ok(buffer),
                Err(why) => Err(Unwritten { why, buffer }),
            });
        };
        import.order.begin();
        later::give(Box::new(run));
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
        if !self.inner.order.behind(deadline.into()) {
            return Err(UpdateError::TimedOut);
        }
        self.inner.landed()
    }

    /// Lets go of the import, once everything that was begun before has ended. When this
    /// returns nothing of it is mapped here. A drop does the same, and what was begun goes on.
    pub fn unimport(self) {
        if super::present().is_ok() {
            self.inner.order.behind(Deadline::NEVER);
        }
    }
}

impl Imported {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn reach(&self) -> Reach {
        self.reach
    }

    fn len(&self) -> usize {
        self.reached.len()
    }

    /// What is mapped, if anything is.
    pub(super) fn file(&self) -> Result<&OwnedFd, UpdateError> {
        self.reached.file()
    }

    /// The export's words, if it is mapped.
    #[inline]
    pub(super) fn words(&self) -> Result<&[AtomicU64], UpdateError> {
        self.reached.words()
    }

    /// Copies to it. Within bounds.
    #[inline]
    fn put(&self, offset: usize, bytes: &[u8]) -> Result<(), UpdateError> {
        match &self.reached {
            Reached::Mapped { place, .. } => {
                put(place.words(), offset, bytes);
                Ok(())
            }
            Reached::Kernel(direct) => self.by_kernel(direct, |direct| direct.write(offset, bytes)),
            Reached::Host(host) => self.by_host(|there| host.write(offset, bytes, there)),
        }
    }

    /// Copies from it. Within bounds.
    #[inline]
    fn take(&self, offset: usize, bytes: &mut [u8]) -> Result<(), UpdateError> {
        match &self.reached {
            Reached::Mapped { place, .. } => {
                take(place.words(), offset, bytes);
                Ok(())
            }
            Reached::Kernel(direct) => self.by_kernel(direct, |direct| direct.read(offset, bytes)),
            Reached::Host(host) => self.by_host(|there| host.read(offset, bytes, there)),
        }
    }

    /// Has the kernel copy, if the export is still there (K2).
    fn by_kernel(
        &self,
        direct: &Direct,
        copy: impl FnOnce(&Direct) -> Result<(), Failed>,
    ) -> Result<(), UpdateError> {
        let _under_way = UnderWay::new(&self.post);
        self.there()?;
        copy(direct).map_err(|failed| match failed {
            Failed::Closed => UpdateError::Disconnected,
            Failed::Transfer(TransferError::Gone { .. }) => self.how_it_went(),
            Failed::Transfer(other) => direct.explain(other),
        })
    }

    /// Has the domain's host copy, which knows itself whether the export is still there.
    fn by_host(
        &self,
        copy: impl FnOnce(&dyn Fn() -> Result<(), UpdateError>) -> Result<(), UpdateError>,
    ) -> Result<(), UpdateError> {
        let there = || {
            self.there()?;
            if self.exporter.is_dead() {
                return Err(UpdateError::ExporterDied);
            }
            Ok(())
        };
        copy(&there).map_err(|error| match error {
            UpdateError::Disconnected => self.how_it_went(),
            other => other,
        })
    }

    #[inline]
    pub(super) fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), UpdateError> {
        self.may_write(offset, bytes.len())?;
        self.ready()?;
        self.put(offset, bytes)?;
        portolan_shm::mark!("update.copied");
        self.landed()
    }

    /// As [`write`](Self::write), the lower bytes before the higher ones.
    pub(super) fn write_upwards(&self, offset: usize, bytes: &[u8]) -> Result<(), UpdateError> {
        self.may_write(offset, bytes.len())?;
        self.ready()?;
        put_upwards(self.words()?, offset, bytes);
        self.landed()
    }

    #[inline]
    pub(super) fn store_release(&self, offset: usize, value: u64) -> Result<(), UpdateError> {
        self.may_write(offset, 8)?;
        self.ready()?;
        // Release: pairs with `load_acquire`.
        word(self.words()?, offset)?.store(value, Ordering::Release);
        self.landed()
    }

    /// Tells the exporter of an update, if it wants to know.
    pub(super) fn notify(&self, offset: usize, len: usize) -> Result<(), UpdateError> {
        self.may_write(offset, len)?;
        self.ready()?;
        if self.poster.post(&self.board, &self.post, offset, len) {
            self.exporter.ring();
        }
        self.landed()
    }

    /// Checks everything that is the caller's affair.
    #[inline]
    pub(super) fn may_write(&self, offset: usize, len: usize) -> Result<(), UpdateError> {
        if !self.reach.writes() {
            return Err(UpdateError::NotWritable);
        }
        self.inside(offset, len)
    }

    #[inline]
    fn may_read(&self, offset: usize, len: usize) -> Result<(), UpdateError> {
        if !self.reach.reads() {
            return Err(UpdateError::NotReadable);
        }
        self.inside(offset, len)
    }

    #[inline]
    fn inside(&self, offset: usize, len: usize) -> Result<(), UpdateError> {
        within(offset, len, self.len())?;
        if self.ranges.hold(offset as u64, (offset + len) as u64) {
            Ok(())
        } else {
            Err(UpdateError::OutOfRanges { offset, len })
        }
    }

    /// Before anything is touched: it is mapped, and there, and nothing is under way before it.
    #[inline]
    fn ready(&self) -> Result<(), UpdateError> {
        super::present()?;
        self.order.behind(Deadline::NEVER);
        self.there()
    }

    /// Whether what was stored before this has landed (X1 of exports).
    #[inline]
    pub(super) fn landed(&self) -> Result<(), UpdateError> {
        if self.fences {
            fence(Ordering::SeqCst);
        } else {
            in_program_order();
        }
        self.there()
    }

    /// Whether the export is still there.
    #[inline]
    pub(super) fn there(&self) -> Result<(), UpdateError> {
        if self.is_open() && self.exporter.is_there() {
            Ok(())
        } else {
            Err(self.why_not())
        }
    }

    #[inline]
    fn is_open(&self) -> bool {
        let state = self.board.words().get(board::STATE);
        // Acquire: what is loaded after it is not looked at before.
        state.is_some_and(|s| s.load(Ordering::Acquire) == board::OPEN)
    }

    #[cold]
    fn why_not(&self) -> UpdateError {
        let how = self.is_open().then(|| self.how_it_went());
        // Again, and after that: who ends an export says so before it lets go of the connection.
        how.filter(|_| self.is_open())
            .unwrap_or(UpdateError::Revoked)
    }

    /// What has become of an exporter that has let go of the connection, or of its memory.
    fn how_it_went(&self) -> UpdateError {
        match self.exporter.has_died() {
            true => UpdateError::ExporterDied,
            false => UpdateError::Disconnected,
        }
    }
}

fn denied(why: Denied, theirs: u32, name: &str) -> Miss {
    let name = name.to_owned();
    match why {
        Denied::Over => return Miss::Again,
        Denied::Version => ImportError::OtherVersion {
            theirs,
            ours: FORMAT_VERSION,
        },
        // The second is none of an export's.
        Denied::Garbled | Denied::Sealed => ImportError::Garbled {
            what: "it does not understand what it was asked",
        },
        Denied::Full => ImportError::Full { name },
        Denied::Resources => ImportError::ExporterResources { name },
        Denied::Unmediated => ImportError::Unmediated { name },
    }
    .into()
}

impl fmt::Debug for Import {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Import({:?}, {} bytes)", self.name(), self.len())
    }
}
