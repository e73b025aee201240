//! Makes shared memory private at the same address, while it is in use.
//!
//! A process that showed a range of its memory to others takes it back. Its own threads
//! go on reading and writing; whatever the others kept, a descriptor or a mapping, reaches
//! other memory from then on.
//!
//! ```text
//!   shared mapping of the file                 every thread, and every importer,
//!         |                                    sees the file's pages
//!         | mapped, private, over it: at once
//!         v
//!   private mapping of the file                a page is the file's until its first
//!         |                                    store by us, or until its turn comes
//!         | MADV_POPULATE_WRITE, page by page
//!         v
//!   private mapping, no page of the file left  an importer writes to pages that we no
//!                                              longer show
//! ```
//!
//! # Why no load fails and no store is lost
//!
//! - The kernel replaces the mapping under its lock. A thread that touches the range
//!   meanwhile waits for the lock; there is no moment without a mapping.
//! - It takes the old mapping out of every processor before the new one can be touched.
//!   So a store through the old one is in the file's page before any copy of that page is
//!   made, and a store through the new one goes to the copy. There is no third place.
//! - When a page is copied, the kernel takes the page out of every processor first and puts
//!   the copy in afterwards, under the page's lock: no thread loads from one and stores to
//!   the other.
//! - Until a page has had its turn an importer can still change it. That is what sharing
//!   means, and it ends with the call.
//!
//! # Why it ends there
//!
//! A page of ours is anonymous memory, which the file does not know. Holders of the file
//! can write it, punch it and map it again without touching ours. *Truncating* a file takes
//! private copies too, which is why the file must be sealed against shrinking; and only we
//! can ask with `MADV_DONTNEED` to be shown the file again.
//!
//! # The faster way
//!
//! That costs a fault a page, three times as much as the copies themselves. A process that may
//! have the kernel stop the stores of system calls too has them wait instead, for one piece after
//! another, and gets huge pages in place of the file's (`carry.rs`); the rest is taken back as
//! above. Without that privilege system calls that write to the range would fail meanwhile, which
//! only [`share_in_place`](super::share_in_place) accepts, because it has no other way.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{SealFlags, fcntl_get_seals, fstat, major, minor};
use rustix::mm::MapFlags;

use super::carry::carry_over;
use super::file::{data_ranges, punch};
use super::over::map_over;
use super::range::{give_to_children, populate_write};
use super::room::may_be_had;
use super::{HUGE_PAGE, PAGE};
use crate::process::{Area, Maps, MapsError};

/// Bytes populated in one call, so that a failure tells about how far it came.
const STEP: usize = 4 * HUGE_PAGE;

/// Makes a range that is a shared mapping of `fd`, from `offset` of the file on, private
/// memory with the same content at the same address.
///
/// Own threads may read and write the range all the time. Stores are not lost, nor is what
/// system calls copy into it; only input that the kernel was told to write to *pages* (direct
/// input, registered buffers of `io_uring`, `process_vm_writev` from another process) and
/// that is under way may end in the old ones. When the call returns, no other process can change
/// a byte of the range. Advice and locks given to the range before are gone, and forked
/// children inherit a copy: those that are made after the call, and of those made meanwhile some
/// find nothing there.
///
/// The file keeps its pages: give them back with [`punch`](super::punch), or have them given back
/// meanwhile ([`privatise_giving_up`]). Where the file has holes, pages take memory when they are
/// touched, in the faster way; the other one fills them.
///
/// # Examples
///
/// ```
/// use portolan_sys::memory::{self, Mapping};
/// let fd = memory::create("example", 8192)?;
/// let ours = Mapping::shared_anywhere(&fd, 8192)?;
/// assert_eq!(rustix::io::pwrite(&fd, b"before", 0)?, 6);
///
/// // SAFETY:
/// // - Our mapping, and no code here relies on its being shared.
/// unsafe { memory::privatise(&fd, 0, ours.base().addr(), ours.len()) }?;
///
/// assert_eq!(rustix::io::pwrite(&fd, b"after!", 0)?, 6);
/// // SAFETY:
/// // - In bounds.
/// assert_eq!(unsafe { ours.base().read() }, b'b');
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`PrivatiseError`]. All but `Incomplete`, `NoRoom` and `Refused` leave everything as it was.
///
/// # Safety
///
/// - No code of this process relies on the range being shared, from now on: that others see
///   its stores, or that it may be [`zap`](super::zap)ped or given to
///   [`userfault`](crate::userfault).
/// - No other thread maps, unmaps or protects any of the range during the call.
pub unsafe fn privatise(
    fd: &OwnedFd,
    offset: u64,
    start: usize,
    len: usize,
) -> Result<(), PrivatiseError> {
    // SAFETY:
    // - As the caller promises.
    unsafe { make_private(fd, offset, start, len, false) }
}

/// As [`privatise`], of memory that no process needs in the file any more: its pages are given back
/// piece by piece. So no more memory is needed than for a piece, also of a range that has most of
/// what there is.
///
/// # Errors
///
/// As [`privatise`].
///
/// # Safety
///
/// As of [`privatise`].
pub unsafe fn privatise_giving_up(
    fd: &OwnedFd,
    offset: u64,
    start: usize,
    len: usize,
) -> Result<(), PrivatiseError> {
    // SAFETY:
    // - As the caller promises.
    unsafe { make_private(fd, offset, start, len, true) }
}

/// Bytes of memory in part of a file; all of it where that cannot be told.
fn data_bytes(fd: &OwnedFd, range: std::ops::Range<u64>) -> u64 {
    let all = range.end - range.start;
    data_ranges(fd, range)
        .try_fold(0, |sum, data| data.map(|data| sum + data.end - data.start))
        .unwrap_or(all)
}

/// # Safety
///
/// As of [`privatise`].
unsafe fn make_private(
    fd: &OwnedFd,
    offset: u64,
    start: usize,
    len: usize,
    gives_up: bool,
) -> Result<(), PrivatiseError> {
    if len == 0
        || !start.is_multiple_of(PAGE)
        || !len.is_multiple_of(PAGE)
        || start.checked_add(len).is_none()
    {
        return Err(PrivatiseError::Misaligned { start, len });
    }
    let seals = fcntl_get_seals(fd).unwrap_or(SealFlags::empty());
    if !seals.contains(SealFlags::SHRINK) {
        return Err(PrivatiseError::Shrinks {
            found: seals.bits(),
        });
    }
    let mut done = carried(fd, offset, start, len)?;
    // Looked at before anything is changed: the kernel gives what it has not got, and kills for it.
    let has_room = |needs: u64| match usize::try_from(needs).is_ok_and(may_be_had) {
        true => Ok(()),
        false => Err(PrivatiseError::NoRoom { wanted: needs }),
    };
    let data = data_bytes(fd, offset + done as u64..offset + len as u64);
    if !gives_up {
        has_room(data)?;
    }
    // No return from here on: the range is no longer shared.
    // SAFETY:
    // - As the caller promises; what the range shows was checked.
    done += unsafe { carry_over(fd, offset + done as u64, start + done, len - done, gives_up) };
    if done == len {
        return Ok(());
    }
    let (rest, from) = (start + done, offset + done as u64);
    // A hole is filled here: an importer could fill it otherwise.
    let left = (len - done) as u64;
    let data = data_bytes(fd, from..from + left);
    has_room(if gives_up {
        left - data.min(left)
    } else {
        left
    })?;
    // SAFETY:
    // - The range shows just these bytes of the file, to be read and written, as was checked, and
    //   does so afterwards: no load sees anything else.
    // - No other thread changes the mapping meanwhile, as the caller promises.
    let mapped = unsafe { map_over(fd, from, rest, len - done, MapFlags::PRIVATE) };
    mapped.map_err(|errno| PrivatiseError::Refused {
        source: errno.into(),
    })?;
    while done < len {
        let step = STEP.min(len - done);
        if let Err(source) = populate_write(start + done, step) {
            // What is private by now is whole; see below.
            let _ = give_to_children(start, done);
            return Err(PrivatiseError::Incomplete { done, len, source });
        }
        if gives_up {
            // Refused, it costs memory and nothing else.
            let _ = punch(fd, offset + done as u64, step as u64);
        }
        done += step;
    }
    // Not before: in a child a page that had not had its turn would show the file, which importers
    // write, and which is emptied. It cannot fail on what was mapped just now.
    let _ = give_to_children(start, len);
    Ok(())
}

/// Checks that the whole range is a writable shared mapping of the file from `offset` on, but
/// for what an earlier call carried over before it was refused the rest: how many bytes.
fn carried(fd: &OwnedFd, offset: u64, start: usize, len: usize) -> Result<usize, PrivatiseError> {
    let stat = fstat(fd).map_err(|errno| PrivatiseError::Refused {
        source: errno.into(),
    })?;
    let device = (major(stat.st_dev), minor(stat.st_dev));
    let range = start..start + len;
    let areas = Maps::own().map_err(MapsError::Io)?.areas(range.clone())?;
    if let Some(address) = Area::hole(&areas, &range) {
        return Err(PrivatiseError::NotShared { address });
    }
    let ours = |area: &&Area| !area.shared && area.inode == 0 && area.read && area.write;
    let before = areas.iter().take_while(ours).last();
    let carried = before.map_or(0, |area| area.range.end.min(range.end) - start);
    if carried == len {
        return Err(PrivatiseError::NotShared { address: start });
    }
    let fits = |area: &&Area| {
        let here = area.range.start.max(start);
        let shown = area.offset.checked_add((here - area.range.start) as u64);
        let file = area.shared && area.device == device && area.inode == stat.st_ino;
        file && area.read && area.write && shown == offset.checked_add((here - start) as u64)
    };
    match areas.iter().skip_while(ours).find(|area| !fits(area)) {
        Some(area) => Err(PrivatiseError::NotShared {
            address: area.range.start.max(start),
        }),
        None => Ok(carried),
    }
}

/// Why a range was not made private.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrivatiseError {
    /// The caller's: start and length must be whole pages, and not zero bytes.
    #[error("start {start:#x} and length {len:#x} must be multiples of {PAGE} and not empty")]
    Misaligned {
        /// First address.
        start: usize,
        /// Bytes.
        len: usize,
    },
    /// The caller's: something else is mapped there, or not to be read and written.
    #[error("{address:#x} is not in a writable shared mapping of that part of the file")]
    NotShared {
        /// The first address that is wrong.
        address: usize,
    },
    /// The caller's: a process that truncates the file would take our copies too.
    #[error("the file has seals {found:#x} and may shrink; share only what memory::create makes")]
    Shrinks {
        /// `F_SEAL_*` bits that are there.
        found: u32,
    },
    /// The machine's: what is mapped cannot be told.
    #[error(transparent)]
    Maps(#[from] MapsError),
    /// The machine's: it, or the control group, has not so much memory left for copies. What is not
    /// private yet is as it was; the same call goes on there, when there is memory.
    #[error(
        "{wanted} bytes are needed for copies, and there is not so much memory: free some, and try again"
    )]
    NoRoom {
        /// Bytes that are needed.
        wanted: u64,
    },
    /// The machine's: the kernel refused; see the source. What is not private yet is as it was;
    /// the same call goes on there.
    #[error("cannot replace the mapping: {source}")]
    Refused {
        /// The kernel's reason.
        source: io::Error,
    },
    /// The machine's: it has no memory left for copies. Our stores are ours alone already,
    /// but others can change the pages after the first `done` bytes that no thread stored to.
    /// Go on with [`populate_rest`](super::populate_rest) from there.
    #[error(
        "only {done} of {len} bytes are private; free memory, then populate the rest: {source}"
    )]
    Incomplete {
        /// Bytes from the start that are private.
        done: usize,
        /// Bytes wanted.
        len: usize,
        /// The kernel's reason.
        source: io::Error,
    },
}
