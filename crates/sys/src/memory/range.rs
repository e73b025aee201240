//! Asks the kernel for changes of a range of addresses or of a file: memory, huge pages,
//! protection.
//!
//! The functions that cannot change what memory holds or who may access it are safe:
//! on a wrong range they fail or waste time.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use rustix::io::{Errno, retry_on_intr};
use rustix::mm::{Advice, MlockFlags, MprotectFlags, madvise, mlock, mlock_with, mprotect};

use super::PAGE;

/// `MADV_COLLAPSE`, Linux 6.1.
const MADV_COLLAPSE: i32 = 25;

/// Maps every page of the range writable, taking memory where there is none.
///
/// # Errors
///
/// `ENOMEM`: a part is not mapped, or no memory is left. `EFAULT`: an access would have
/// raised SIGBUS, as on a page that [`userfault`](crate::userfault) keeps closed. `EINVAL`: not whole pages, or a kernel before 5.14.
pub fn populate_write(start: usize, len: usize) -> io::Result<()> {
    harmless(start, len, Advice::LinuxPopulateWrite)
}

/// Maps every page of the range for reading.
///
/// # Errors
///
/// As [`populate_write`].
pub fn populate_read(start: usize, len: usize) -> io::Result<()> {
    harmless(start, len, Advice::LinuxPopulateRead)
}

/// Asks for huge pages when the range is touched.
///
/// # Errors
///
/// `EINVAL` where the kernel has none.
pub fn advise_huge(start: usize, len: usize) -> io::Result<()> {
    harmless(start, len, Advice::LinuxHugepage)
}

/// Asks for small pages when the range is touched: a huge one takes memory for all around it.
///
/// # Errors
///
/// `EINVAL` where the kernel has no huge ones.
pub(super) fn advise_small(start: usize, len: usize) -> io::Result<()> {
    harmless(start, len, Advice::LinuxNoHugepage)
}

/// Moves the range's memory to huge pages now; `Ok(false)` if that was not possible.
///
/// Possible also where huge pages for shared memory are switched off. The range should
/// be aligned to [`HUGE_PAGE`](super::HUGE_PAGE) both in memory and in its file. It is
/// mapped afterwards, also where [`userfault`](crate::userfault) had it closed.
///
/// # Errors
///
/// `InvalidInput` for a range that is not whole pages, and what the kernel reports
/// beyond "not now" and "not here".
pub fn collapse(start: usize, len: usize) -> io::Result<bool> {
    if !start.is_multiple_of(PAGE) || !len.is_multiple_of(PAGE) {
        return Err(Errno::INVAL.into());
    }
    // SAFETY:
    // - The call replaces small pages by a huge one that holds the same bytes.
    let collapsed = unsafe { libc::madvise(at(start), len, MADV_COLLAPSE) };
    if collapsed == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match Errno::from_io_error(&error) {
        // No huge page free, a page in use elsewhere, or memory of another kind.
        Some(Errno::AGAIN | Errno::BUSY | Errno::NOMEM | Errno::INVAL) => Ok(false),
        _ => Err(error),
    }
}

/// Drops the range from this process's page tables.
///
/// Shared memory keeps its content and is mapped again by the next touch, or stays
/// closed where [`userfault`](crate::userfault) watches the range. Async-signal-safe.
///
/// # Errors
///
/// `ENOMEM` if a part is not mapped, `EINVAL` if locked or not whole pages.
///
/// # Safety
///
/// - The range is a mapping of shared memory. Private memory would lose its content.
pub unsafe fn zap(start: usize, len: usize) -> io::Result<()> {
    // SAFETY:
    // - Shared memory, as the caller promises: the file keeps every byte.
    unsafe { madvise(at(start), len, Advice::LinuxDontNeed) }?;
    Ok(())
}

/// What a process may do with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing: every access raises SIGSEGV.
    None,
    /// Reads.
    Read,
    /// Reads and writes.
    ReadWrite,
}

/// Changes what this process may do with the range. Async-signal-safe.
///
/// # Errors
///
/// `ENOMEM` if a part is not mapped or the process has too many mappings, `EACCES` if
/// the file does not allow it.
///
/// # Safety
///
/// - The range belongs to a [`Mapping`](super::Mapping) of the caller.
/// - No code holds a reference into it that asks for more than `access`.
pub unsafe fn protect(start: usize, len: usize, access: Access) -> io::Result<()> {
    let flags = match access {
        Access::None => MprotectFlags::empty(),
        Access::Read => MprotectFlags::READ,
        Access::ReadWrite => MprotectFlags::READ | MprotectFlags::WRITE,
    };
    // SAFETY:
    // - The caller owns the range, and no reference there asks for more, as it promises.
    unsafe { mprotect(at(start), len, flags) }?;
    Ok(())
}

/// When locked pages are brought in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// All before the call returns.
    Now,
    /// Each when it is first touched.
    OnFault,
}

/// Keeps the range's pages in memory, never swapped out, until it is unmapped.
///
/// A locked range cannot be [`zap`]ped.
///
/// # Errors
///
/// `ENOMEM` and `EPERM`: past the limit (`ulimit -l`).
pub fn lock(start: usize, len: usize, when: Lock) -> io::Result<()> {
    let locked = match when {
        // SAFETY:
        // - Locking changes neither content nor access.
        Lock::Now => unsafe { mlock(at(start), len) },
        // SAFETY:
        // - Locking changes neither content nor access.
        Lock::OnFault => unsafe { mlock_with(at(start), len, MlockFlags::ONFAULT) },
    };
    Ok(locked?)
}

/// Takes what [`privatise`](super::privatise) had to leave off at, for want of memory.
///
/// # Errors
///
/// As [`populate_new`](super::populate_new); try again when there is memory.
pub fn populate_rest(start: usize, len: usize) -> io::Result<()> {
    super::room::populate_new(start, len)?;
    give_to_children(start, len)
}

/// Bytes of memory that a file of shared memory has in `range`, also where no process has written.
///
/// Unlike [`data_ranges`](super::data_ranges) it counts memory that was only
/// [`allocate`](super::allocate)d; unlike [`allocated_bytes`](super::allocated_bytes) it tells
/// where the memory is.
///
/// # Examples
///
/// ```
/// use portolan_sys::memory;
/// let fd = memory::create("example", 1 << 20)?;
/// memory::allocate(&fd, 8192, 4096)?;
/// if let Ok(bytes) = memory::resident_bytes(&fd, 0..16384) {
///     assert_eq!(bytes, 4096);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// `ENOSYS`: a kernel before 6.5. `EPERM`: forbidden by a container, or another user's file.
pub fn resident_bytes(fd: impl AsFd, range: Range<u64>) -> io::Result<u64> {
    /// `cachestat`, the same number on every architecture.
    const CACHESTAT: libc::c_long = 451;
    // Offset and length; a length of 0 would mean up to the end.
    let asked = [range.start, range.end.saturating_sub(range.start)];
    if asked[1] == 0 {
        return Ok(0);
    }
    // In the cache, dirty, in writeback, evicted (to swap), recently evicted.
    let mut pages = [0_u64; 5];
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY:
    // - The call reads two words and writes five, which are ours.
    let failed = unsafe { libc::syscall(CACHESTAT, fd, asked.as_ptr(), pages.as_mut_ptr(), 0) };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((pages[0] + pages[3]) * PAGE as u64)
}

/// Leaves the range out of forked children: there is nothing there in them, and a touch
/// ends in a signal.
///
/// # Errors
///
/// `ENOMEM` if a part is not mapped, `EINVAL` if not whole pages.
pub(super) fn keep_from_children(start: usize, len: usize) -> io::Result<()> {
    harmless(start, len, Advice::LinuxDontFork)
}

/// Ends [`keep_from_children`].
///
/// # Errors
///
/// As there.
pub(super) fn give_to_children(start: usize, len: usize) -> io::Result<()> {
    harmless(start, len, Advice::LinuxDoFork)
}

/// Gives advice that changes neither what the memory holds nor who may access it.
fn harmless(start: usize, len: usize, advice: Advice) -> io::Result<()> {
    retry_on_intr(|| {
        // SAFETY:
        // - The kinds of advice that reach here keep content and access, in this process.
        unsafe { madvise(at(start), len, advice) }
    })?;
    Ok(())
}

/// An address as the kernel takes it. It is never dereferenced here.
pub(super) fn at(address: usize) -> *mut libc::c_void {
    ptr::without_provenance_mut(address)
}
