//! Makes private memory shared at the same address, while it is in use.
//!
//! The opposite of [`privatise`](super::privatise), and harder: the kernel lets no process put
//! existing private pages into a file. They have to be copied, and a store made after a
//! page's copy and before the change of mappings would be lost. So stores have to wait:
//!
//! ```text
//!   write-protect     stores of other threads stop in the kernel; loads go on
//!   copy to a memfd   by a system call, which needs no mapping
//!   map it over       at once, as in `privatise`: loads go on
//!   wake              the stopped stores are made again, into the file
//! ```
//!
//! The protection is userfaultfd's: a thread that stores waits in the kernel, sees no signal
//! and needs no handler. Without privileges the kernel lets only the *program's* stores wait;
//! a system call that wants to write to the range meanwhile returns `EFAULT`.
//!
//! Between protecting and waking, this module neither allocates nor takes a lock, because
//! a waiting thread may hold any lock, and the range may hold the allocator's memory.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::mm::MapFlags;

use super::PAGE;
use super::file::create;
use super::over::map_over;
use super::range::at;
use super::room::may_be_had;
use crate::process::{Area, Maps, MapsError};
use crate::userfault::{Userfault, Whose, feature, mode};

/// Moves private memory into a new memfd, mapped shared at the same address with the same
/// content; returns the memfd, whose size is sealed as [`create`](super::create)'s.
///
/// Own threads may use the range all the time: loads go on, stores wait and are not lost.
/// System calls of this process that write to the range during the call return `EFAULT`,
/// unless it has the privilege to stop those too (`CAP_SYS_PTRACE`, or
/// `vm.unprivileged_userfaultfd`); input that the kernel was told to write to *pages*
/// (direct input, registered buffers) and that is under way is lost. Every page takes
/// memory, also one that was never touched. Advice and locks given to the range before are
/// gone, and forked children do not have the range from then on.
///
/// # Examples
///
/// ```
/// use portolan_sys::memory::{self, Mapping, PAGE};
/// let file = memory::create("example", PAGE as u64)?;
/// let ours = Mapping::private(&file, PAGE)?;
/// // SAFETY:
/// // - In bounds, and ours alone.
/// unsafe { ours.base().write(7) };
///
/// // SAFETY:
/// // - No code holds a reference into the mapping.
/// let shared = unsafe { memory::share_in_place("example", ours.base().addr(), PAGE) }?;
///
/// assert_eq!(rustix::io::pwrite(&shared, b"from outside", 0)?, 12);
/// // SAFETY:
/// // - In bounds.
/// assert_eq!(unsafe { ours.base().read() }, b'f');
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`ShareError`]. Everything is as it was before.
///
/// # Safety
///
/// - From now on other processes may change what the range holds: no code here holds a
///   reference into it, or takes one, that does not allow for that.
/// - No other thread maps, unmaps or protects any of the range during the call.
/// - The range does not hold this thread's stack or thread-local storage.
pub unsafe fn share_in_place(name: &str, start: usize, len: usize) -> Result<OwnedFd, ShareError> {
    let file = create(name, len as u64).map_err(ShareError::Io)?;
    // SAFETY:
    // - As the caller promises.
    unsafe { share_into(&file, start, len) }?;
    Ok(file)
}

/// As [`share_in_place`], into the first `len` bytes of a memfd of the caller's, which no other
/// process else has yet; for one that is to be [sealed](super::seal_to_readers) afterwards.
///
/// # Errors
///
/// [`ShareError`]. The range is as it was before.
///
/// # Safety
///
/// - As of [`share_in_place`].
pub unsafe fn share_into(file: &OwnedFd, start: usize, len: usize) -> Result<(), ShareError> {
    if len == 0
        || !start.is_multiple_of(PAGE)
        || !len.is_multiple_of(PAGE)
        || start.checked_add(len).is_none()
    {
        return Err(ShareError::Misaligned { start, len });
    }
    private(start, len)?;
    if !may_be_had(len) {
        return Err(ShareError::OutOfMemory { done: 0, len });
    }
    let watch = open()?;
    let stopped = Stopped::new(&watch, start, len).map_err(|errno| match errno {
        // Pages of an ordinary file cannot be watched.
        Errno::INVAL => ShareError::NotPrivate { address: start },
        Errno::BUSY => ShareError::Watched,
        other => ShareError::Io(other.into()),
    })?;
    copy(file, start, len)?;
    // SAFETY:
    // - The file holds what the range holds: no thread has stored to it since it was copied.
    // - No other thread changes the mapping meanwhile, as the caller promises.
    let mapped = unsafe { map_over(file, 0, start, len, MapFlags::SHARED) };
    drop(stopped);
    mapped.map_err(|errno| ShareError::Io(errno.into()))?;
    Ok(())
}

/// Checks that the whole range is private memory, to be read and written.
pub(super) fn private(start: usize, len: usize) -> Result<(), ShareError> {
    let range = start..start + len;
    let areas = Maps::own().map_err(MapsError::Io)?.areas(range.clone())?;
    let wrong = areas
        .iter()
        .find(|area| area.shared || !area.read || !area.write)
        .map(|area| area.range.start.max(start));
    match wrong.or_else(|| Area::hole(&areas, &range)) {
        Some(address) => Err(ShareError::NotPrivate { address }),
        None => Ok(()),
    }
}

fn open() -> Result<Userfault, ShareError> {
    let features = feature::WRITE_PROTECT | feature::WRITE_PROTECT_UNPOPULATED;
    Userfault::open(features, Whose::All)
        .or_else(|_| Userfault::open(features, Whose::Program))
        .map_err(|source| ShareError::Unsupported { source })
}

/// While it lives, every store to the range waits.
pub(super) struct Stopped<'a> {
    watch: &'a Userfault,
    start: usize,
    len: usize,
}

impl<'a> Stopped<'a> {
    /// `INVAL`: it cannot be watched. `BUSY`: another userfaultfd watches it.
    pub(super) fn new(watch: &'a Userfault, start: usize, len: usize) -> Result<Self, Errno> {
        watch.register(start, len, mode::WRITE_PROTECT)?;
        let stopped = Self { watch, start, len };
        watch.write_protect(start, len)?;
        Ok(stopped)
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        // The first finds nothing to do where the range has been replaced. The second lets
        // every waiting thread go on, whatever is mapped there, also where a forked child
        // keeps the userfaultfd open; neither can fail on whole pages that are mapped.
        let _ = self.watch.unregister(self.start, self.len);
        let _ = self.watch.wake(self.start, self.len);
    }
}

/// Copies the range to the front of the file. The kernel reads the range, not we.
fn copy(file: &OwnedFd, start: usize, len: usize) -> Result<(), ShareError> {
    let mut done = 0;
    while done < len {
        let offset = libc::off_t::try_from(done).unwrap_or(libc::off_t::MAX);
        let from = at(start + done).cast_const();
        // SAFETY:
        // - The kernel checks the range itself, and only reads it.
        let written = unsafe { libc::pwrite(file.as_raw_fd(), from, len - done, offset) };
        match usize::try_from(written) {
            Ok(written) => done += written,
            Err(_) => match Errno::from_io_error(&io::Error::last_os_error()) {
                Some(Errno::INTR) => {}
                Some(Errno::NOSPC | Errno::NOMEM) => {
                    return Err(ShareError::OutOfMemory { done, len });
                }
                errno => return Err(ShareError::Io(errno.unwrap_or(Errno::IO).into())),
            },
        }
    }
    Ok(())
}

/// Why a range was not moved into a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShareError {
    /// The caller's: start and length must be whole pages, and not zero bytes.
    #[error("start {start:#x} and length {len:#x} must be multiples of {PAGE} and not empty")]
    Misaligned {
        /// First address.
        start: usize,
        /// Bytes.
        len: usize,
    },
    /// The caller's: something else is mapped there: nothing, shared memory, memory that may
    /// not be written, or an ordinary file.
    #[error("{address:#x} is not in private writable memory; move the data to memory that is")]
    NotPrivate {
        /// The first address that is wrong.
        address: usize,
    },
    /// The caller's: a process that truncates the file shown there would take the pages away.
    #[error("the file has seals {found:#x} and may shrink; show only what memory::create makes")]
    Shrinks {
        /// `F_SEAL_*` bits that are there.
        found: u32,
    },
    /// The state's: a userfaultfd has the range, for example a tracker.
    #[error("another userfaultfd watches the range; end that first")]
    Watched,
    /// The machine's: a kernel before 6.4, or one that forbids userfaultfd.
    #[error("stores cannot be made to wait here ({source}); copy the data to memory made shared")]
    Unsupported {
        /// The kernel's reason.
        source: io::Error,
    },
    /// The machine's: it has no memory left for the copy.
    #[error("out of memory after copying {done} of {len} bytes; free some, or share less")]
    OutOfMemory {
        /// Bytes copied, which are given back.
        done: usize,
        /// Bytes wanted.
        len: usize,
    },
    /// The machine's: what is mapped cannot be told.
    #[error(transparent)]
    Maps(#[from] MapsError),
    /// The machine's: the kernel refused; see the source.
    #[error("cannot share memory in place: {0}")]
    Io(io::Error),
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::time::{Duration, Instant};

    use rustix::mm::{ProtFlags, mmap};

    use super::*;
    use crate::memory::Mapping;

    /// Waits for what comes at once unless the machine is busy; whether it came.
    fn comes(condition: impl Fn() -> bool) -> bool {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !condition() {
            if Instant::now() > deadline {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }

    #[test]
    fn who_waits_goes_on_even_while_somebody_keeps_the_userfaultfd() {
        let (before, file) = (create("before", 4096), create("after", 4096));
        let (before, file) = (before.unwrap(), file.unwrap());
        let mapping = Mapping::private(&before, PAGE).unwrap();
        let start = mapping.base().expose_provenance();
        let (thread, stored) = (AtomicU32::new(0), AtomicBool::new(false));
        let woken = std::thread::scope(|scope| {
            // Kept open, as by a forked child that was made meanwhile.
            let watch = open().unwrap();
            let stopped = Stopped::new(&watch, start, PAGE).unwrap();
            scope.spawn(|| {
                thread.store(crate::process::thread(), Ordering::Relaxed);
                let to = std::ptr::with_exposed_provenance_mut::<u8>(start);
                // SAFETY:
                // - Mapped, and no reference points there.
                unsafe { to.write_volatile(7) };
                stored.store(true, Ordering::Relaxed);
            });
            // It has nothing else to sleep for than that its store is stopped.
            let sleeps = || {
                let thread = thread.load(Ordering::Relaxed);
                let path = format!("/proc/self/task/{thread}/stat");
                let stat = std::fs::read_to_string(path).unwrap_or_default();
                stat.rsplit_once(") ")
                    .is_some_and(|(_, state)| state.starts_with('S'))
            };
            let slept = comes(sleeps);
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            // SAFETY:
            // - Our mapping, into which no reference points.
            unsafe { mmap(at(start), PAGE, access, flags, &file, 0) }.unwrap();
            let waits = !stored.load(Ordering::Relaxed);
            drop(stopped);
            let woken = comes(|| stored.load(Ordering::Relaxed));
            // Lets the thread go in any case.
            drop(watch);
            slept && waits && woken
        });
        assert!(woken);
        let mut byte = [0];
        assert_eq!(rustix::io::pread(&file, &mut byte, 0), Ok(1));
        assert_eq!(byte, [7]);
    }
}
