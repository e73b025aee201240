//! Export memory is whole pages, private or shared, that a process can export.

use super::access::{put, take, within, word};
use super::place::Place;
use super::update::without;
use super::{ExportError, MappingError, Mode, Reach, UpdateError};
use portolan_sys::memory::{self, Mapping, PAGE, PrivatiseError, ShareError};
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory of this process that it can [`export`](crate::Domain::export): made for that by
/// [`new`](Self::new), or there before ([`in_place`](Self::in_place)).
///
/// Cheap to clone; all clones are the same memory. It keeps its address and its content
/// through export and unexport. While it is exported importers may write it at any moment, so
/// it is read and written by copies and atomics and never lent as a slice. Where importers only
/// read, or while it is not exported, its owner can have plain slices: see
/// [`OwnedMemory`](super::OwnedMemory).
///
/// Forked children do not have it, before an export and during it.
///
/// # Examples
///
/// ```
/// use portolan::vmmc::ExportMemory;
/// let memory = ExportMemory::new(8192)?;
/// memory.write(100, b"hello")?;
/// let mut bytes = [0; 5];
/// memory.read(100, &mut bytes)?;
/// assert_eq!(&bytes, b"hello");
/// memory.store_release(0, 7)?;
/// assert_eq!(memory.load_acquire(0)?, 7);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ExportMemory {
    pub(super) inner: Arc<Memory>,
}

/// What all clones share.
pub(crate) struct Memory {
    place: Place,
    state: Mutex<State>,
    /// The parts that are mapped for automatic update. Taken after `state`.
    maps: Mutex<Vec<(Range<usize>, Mode)>>,
}

/// How the memory is mapped here.
enum State {
    /// Shared, with a file that no other process has yet.
    Fresh(OwnedFd),
    /// Private.
    Private,
    /// Shared with importers.
    Exported,
    /// Private, but pages after the first `done` bytes that no thread here has stored to are
    /// still the importers' too.
    Returning { done: usize },
}

impl ExportMemory {
    /// Memory of `len` bytes, zeros, rounded up to whole pages of 4,096 bytes. Pages take
    /// memory as they are first touched, by whomever.
    ///
    /// # Errors
    ///
    /// [`ExportError::Empty`], and the system's.
    pub fn new(len: usize) -> Result<Self, ExportError> {
        let len = len
            .checked_next_multiple_of(PAGE)
            .filter(|len| *len > 0)
            .ok_or(ExportError::Empty { len })?;
        super::present()?;
        let file = memory::create_unsealed(NAME, len as u64)
            .map_err(|e| ExportError::system("make memory", &e))?;
        let mapping = Mapping::shared_anywhere(&file, len).and_then(Mapping::not_in_children)?;
        Ok(Self::of(Place::new(mapping), State::Fresh(file)))
    }

    /// Private memory of the program's own.
    pub(super) fn of_program(place: Place) -> Self {
        Self::of(place, State::Private)
    }

    fn of(place: Place, state: State) -> Self {
        let memory = Memory {
            place,
            state: Mutex::new(state),
            maps: Mutex::default(),
        };
        Self {
            inner: Arc::new(memory),
        }
    }

    /// Takes memory for every page now, so that no access can fail for want of it, as
    /// long as it is exported: later on what is not there yet is the kernel's to refuse, which
    /// it does by killing.
    ///
    /// Before it is touched is the best time: it then lies in pages of 2 MiB as far as those fit
    /// and the system has them, which makes this ten times as fast, and taking it back from
    /// importers three to five times.
    ///
    /// ```
    /// use portolan::vmmc::ExportMemory;
    /// let memory = ExportMemory::new(1 << 20)?;
    /// memory.populate()?;
    /// # Ok::<(), portolan::vmmc::ExportError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ExportError::OutOfMemory`]: there is not so much. Nothing that was there is lost, and of
    /// what was plainly too much nothing was taken.
    pub fn populate(&self) -> Result<(), ExportError> {
        super::present()?;
        let state = self.inner.state();
        // Of private memory the program decides what pages it has.
        let taken = match *state {
            State::Fresh(_) | State::Exported => memory::populate_huge(self.address(), self.len()),
            State::Private | State::Returning { .. } => {
                memory::populate_new(self.address(), self.len())
            }
        };
        let len = self.len();
        taken.map_err(|error| match error.kind() {
            io::ErrorKind::OutOfMemory => ExportError::OutOfMemory { len },
            _ => ExportError::system("take memory for all pages", &error),
        })
    }

    /// Bytes: whole pages.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.inner.place.len()
    }

    /// Its first address, which never changes.
    pub fn address(&self) -> usize {
        self.inner.place.start()
    }

    /// Copies bytes from `offset` on. What importers write meanwhile is there in part or not.
    ///
    /// # Errors
    ///
    /// [`UpdateError::OutOfBounds`], [`UpdateError::Disowned`].
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), UpdateError> {
        within(offset, bytes.len(), self.len())?;
        take(self.words()?, offset, bytes);
        Ok(())
    }

    /// Copies bytes to `offset` and the following.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), UpdateError> {
        within(offset, bytes.len(), self.len())?;
        put(self.words()?, offset, bytes);
        Ok(())
    }

    /// Loads the word at `offset`, a multiple of 8: what its writer wrote before it is then
    /// there.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read), and [`UpdateError::Misaligned`].
    #[inline]
    pub fn load_acquire(&self, offset: usize) -> Result<u64, UpdateError> {
        // Acquire: pairs with `store_release` of an importer, or here.
        Ok(word(self.words()?, offset)?.load(Ordering::Acquire))
    }

    /// Stores a word at `offset`, a multiple of 8, behind everything written before.
    ///
    /// # Errors
    ///
    /// As [`load_acquire`](Self::load_acquire).
    #[inline]
    pub fn store_release(&self, offset: usize, value: u64) -> Result<(), UpdateError> {
        // Release: pairs with `load_acquire`.
        word(self.words()?, offset)?.store(value, Ordering::Release);
        Ok(())
    }

    /// All of it as words, which importers may write meanwhile. They stay in place through
    /// the end of an export; in a forked child there are none, and a touch ends in a signal.
    ///
    /// # Errors
    ///
    /// [`UpdateError::Disowned`].
    #[inline]
    pub fn words(&self) -> Result<&[AtomicU64], UpdateError> {
        super::present()?;
        Ok(self.inner.place.words())
    }

    /// All of it as bytes, if it is not exported and this is the only clone.
    ///
    /// ```
    /// use portolan::vmmc::ExportMemory;
    /// let mut memory = ExportMemory::new(4096)?;
    /// memory.bytes_mut().expect("not exported").fill(1);
    /// let clone = memory.clone();
    /// assert!(memory.bytes_mut().is_none());
    /// # Ok::<(), portolan::vmmc::ExportError>(())
    /// ```
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        super::present().ok()?;
        let memory = Arc::get_mut(&mut self.inner)?;
        let state = memory
            .state
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        match state {
            State::Exported | State::Returning { .. } => None,
            State::Fresh(_) | State::Private => Some(memory.place.bytes_mut()),
        }
    }
}

/// What the memory is called in `/proc/PID/maps`.
const NAME: &str = "portolan-export";

impl Memory {
    /// Makes it shared; the file that importers get, sealed for what they may do.
    pub(super) fn share(&self, reach: Reach) -> Result<OwnedFd, ExportError> {
        let mut state = self.state();
        // What is replaced when memory is moved to a file would not be seen there.
        let moved = |(_, mode): &&(_, Mode)| *mode != Mode::Log;
        if let Some((part, mode)) = self.maps().iter().find(moved) {
            return Err(ExportError::Mapped {
                offset: part.start,
                len: part.len(),
                mode: *mode,
            });
        }
        let file = match std::mem::replace(&mut *state, State::Exported) {
            taken @ (State::Exported | State::Returning { .. }) => {
                *state = taken;
                return Err(ExportError::AlreadyExported);
            }
            State::Fresh(file) => file,
            State::Private => match self.move_to_file() {
                Ok(file) => file,
                Err(error) => {
                    *state = State::Private;
                    return Err(error);
                }
            },
        };
        let sealed = if reach.writes() {
            memory::seal_size(&file)
        } else {
            memory::seal_to_readers(&file)
        };
        if let Err(error) = sealed {
            *state = State::Fresh(file);
            return Err(ExportError::Seal(error));
        }
        Ok(file)
    }

    /// Moves private memory into a file, where children do not inherit it.
    fn move_to_file(&self) -> Result<OwnedFd, ExportError> {
        let file = memory::create_unsealed(NAME, self.place.len() as u64)
            .map_err(|e| ExportError::system("make memory", &e))?;
        self.place.share_into(&file)?;
        Ok(file)
    }

    /// Takes it back from importers, whatever they keep; goes on where it had to leave off. With
    /// `gives_up` the file's pages are given back meanwhile.
    pub(super) fn take_back(&self, file: &OwnedFd, gives_up: bool) -> Result<(), PrivatiseError> {
        let mut state = self.state();
        let done = match *state {
            State::Fresh(_) | State::Private => return Ok(()),
            State::Exported if gives_up => self.place.privatise_giving_up(file),
            State::Exported => self.place.privatise(file),
            State::Returning { done } => {
                let len = self.len();
                memory::populate_rest(self.place.start() + done, len.saturating_sub(done))
                    .map_err(|source| PrivatiseError::Incomplete { done, len, source })
            }
        };
        match &done {
            Ok(()) => *state = State::Private,
            Err(PrivatiseError::Incomplete { done, .. }) => {
                *state = State::Returning { done: *done };
            }
            Err(_) => {}
        }
        done
    }

    /// Notes that a part is mapped for automatic update, and by no other mapping; makes memory that
    /// was made to be exported private, where the mode needs that.
    pub(super) fn map(&self, part: &Range<usize>, mode: Mode) -> Result<(), MappingError> {
        let mut state = self.state();
        let mut maps = self.maps();
        let meets = |other: &Range<usize>| part.start < other.end && other.start < part.end;
        if let Some((other, mode)) = maps.iter().find(|(other, _)| meets(other)) {
            return Err(MappingError::Mapped {
                offset: other.start,
                len: other.len(),
                mode: *mode,
            });
        }
        match (&*state, mode) {
            (State::Exported | State::Returning { .. }, Mode::Alias) => {
                return Err(MappingError::Exported);
            }
            (State::Fresh(file), Mode::Alias | Mode::Tracked) => {
                memory::seal_size(file).map_err(MappingError::Seal)?;
                let done = self.place.privatise(file);
                if let Err(PrivatiseError::Incomplete { done, .. }) = &done {
                    *state = State::Returning { done: *done };
                } else if done.is_ok() {
                    *state = State::Private;
                }
                done?;
            }
            _ => {}
        }
        maps.push((part.clone(), mode));
        Ok(())
    }

    /// Notes that a part of what was mapped is not any more.
    pub(super) fn unmap(&self, part: &Range<usize>) {
        let mut maps = self.maps();
        let mut left = Vec::with_capacity(maps.len() + 1);
        for (other, mode) in maps.drain(..) {
            for rest in without(&other, part) {
                left.push((rest, mode));
            }
        }
        *maps = left;
    }

    /// Shows `file`, from `offset` on, in a part that is mapped as an alias.
    pub(super) fn replace(
        &self,
        part: &Range<usize>,
        file: &OwnedFd,
        offset: u64,
    ) -> Result<(), ShareError> {
        self.place.replace_part(part.clone(), file, offset)
    }

    /// Takes such a part back, with what it holds.
    pub(super) fn own(
        &self,
        part: &Range<usize>,
        file: &OwnedFd,
        offset: u64,
    ) -> Result<(), PrivatiseError> {
        self.place.privatise_part(part.clone(), file, offset)
    }

    /// Makes pages its own that are private and still to be copied.
    pub(super) fn populate(&self, part: &Range<usize>) -> Result<(), PrivatiseError> {
        let len = part.len();
        memory::populate_rest(self.place.start() + part.start, len).map_err(|source| {
            PrivatiseError::Incomplete {
                done: 0,
                len,
                source,
            }
        })
    }

    /// Whether the caller has the only handle, so that the memory is freed with it.
    pub(super) fn goes_with(self: &Arc<Self>) -> bool {
        self.place.is_mapping() && Arc::strong_count(self) == 1
    }

    pub(super) fn len(&self) -> usize {
        self.place.len()
    }

    /// Where it lies.
    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    fn maps(&self) -> MutexGuard<'_, Vec<(Range<usize>, Mode)>> {
        self.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ExportMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (start, len) = (self.address(), self.len());
        write!(f, "ExportMemory({start:#x}, {len} bytes)")
    }
}
