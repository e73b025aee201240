//! Maps memory files, at a fixed address or anywhere.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use super::{HUGE_PAGE, PAGE};
use crate::fork;

/// A mapping of a memory file: shared unless it was made by [`Mapping::private`], readable,
/// and writable unless it was made by [`Mapping::read_only`].
///
/// Unmapped when dropped. Not `Clone`: it is the capability to unmap. What it points to
/// is memory that other processes may write at any time, so it is handed out only as a
/// raw pointer.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// The fork generation that made a mapping which forked children do not inherit.
    /// In any other generation the range is not ours to unmap (M3).
    only_in: Option<u64>,
}

// SAFETY:
// - A mapping belongs to the process, not to a thread; any thread may unmap it.
unsafe impl Send for Mapping {}
// SAFETY:
// - `&Mapping` only tells the base and the length.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of `fd` at the address `base` and nowhere else (M2).
    ///
    /// Forked children do not inherit the mapping, and core dumps leave it out.
    ///
    /// # Errors
    ///
    /// [`MapError::Taken`] names what lies in the range already.
    pub fn shared_at(fd: &OwnedFd, base: usize, len: usize) -> Result<Self, MapError> {
        if len == 0 || !base.is_multiple_of(PAGE) || !len.is_multiple_of(PAGE) {
            return Err(MapError::Misaligned { base, len });
        }
        let only_in = Some(fork::generation());
        let flags = MapFlags::SHARED | MapFlags::FIXED_NOREPLACE | MapFlags::NORESERVE;
        let wanted = ptr::without_provenance_mut(base);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY:
        // - The kernel refuses a range that holds a mapping, so no live memory is replaced.
        let mapped = unsafe { mmap(wanted, len, access, flags, fd, 0) };
        let mapped = match mapped {
            Ok(mapped) => mapped,
            Err(Errno::EXIST) => return Err(MapError::taken(base, len)),
            Err(other) => {
                return Err(MapError::Refused {
                    base,
                    len,
                    source: other.into(),
                });
            }
        };
        // From here on dropping `mapping` unmaps.
        let mapping = Self::new(mapped.cast(), len, only_in)?;
        if mapped.addr() != base {
            // A kernel before 4.17 takes the address as a hint only.
            return Err(MapError::taken(base, len));
        }
        mapping.advise(Advice::LinuxDontFork)?;
        mapping.advise(Advice::LinuxDontDump)?;
        Ok(mapping)
    }

    /// Maps `len` bytes of `fd` wherever there is room, rounded up to whole pages.
    ///
    /// A mapping of a huge page or more is aligned to one. Forked children inherit it.
    ///
    /// # Examples
    ///
    /// ```
    /// use portolan_sys::memory::{self, Mapping};
    /// let fd = memory::create("example", 8192)?;
    /// let mapping = Mapping::shared_anywhere(&fd, 8192)?;
    /// assert_eq!(mapping.len(), 8192);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`MapError`], never `Taken`.
    pub fn shared_anywhere(fd: &OwnedFd, len: usize) -> Result<Self, MapError> {
        Self::shared_part(fd, 0, len)
    }

    /// As [`Self::shared_anywhere`], from `offset` of the file on, a whole number of pages.
    ///
    /// # Errors
    ///
    /// [`MapError`], never `Taken`.
    pub fn shared_part(fd: &OwnedFd, offset: u64, len: usize) -> Result<Self, MapError> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        Self::part(fd, offset, len, access, MapFlags::SHARED)
    }

    /// Maps `len` bytes of `fd` from `offset` on, rounded up to whole pages, wherever there
    /// is room; a huge page or more aligned to one.
    fn part(
        fd: &OwnedFd,
        offset: u64,
        len: usize,
        access: ProtFlags,
        kind: MapFlags,
    ) -> Result<Self, MapError> {
        let Some(len) = len.checked_next_multiple_of(PAGE).filter(|&len| len > 0) else {
            return Err(MapError::Misaligned { base: 0, len });
        };
        let refused = |source: Errno| MapError::Refused {
            base: 0,
            len,
            source: source.into(),
        };
        let align = if len >= HUGE_PAGE { HUGE_PAGE } else { PAGE };
        let room = len
            .checked_add(align - PAGE)
            .ok_or(MapError::Misaligned { base: 0, len })?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY:
        // - No address is asked for, so the kernel takes a free range.
        let reserved = unsafe { mmap_anonymous(ptr::null_mut(), room, ProtFlags::empty(), flags) };
        // Dropping `reserved` gives the whole range back, whatever lies there by then.
        let reserved = Self::new(reserved.map_err(refused)?.cast(), room, None)?;
        let skip = reserved.base.addr().get().next_multiple_of(align) - reserved.base.addr().get();
        let base = reserved.base.as_ptr().wrapping_add(skip);
        let flags = kind | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY:
        // - In bounds: `base` is at most `align - PAGE` past the start of the reservation.
        // - The range it replaces is the reservation made above, which no other code knows.
        let mapped = unsafe { mmap(base.cast(), len, access, flags, fd.as_fd(), offset) };
        mapped.map_err(refused)?;
        Ok(reserved.trim(skip, len))
    }

    /// Maps the first `len` bytes of `fd` for reading only, wherever there is room.
    /// Core dumps leave it out. A thread that writes to it dies of it.
    ///
    /// # Errors
    ///
    /// [`MapError`], never `Taken`.
    pub fn read_only(fd: &OwnedFd, len: usize) -> Result<Self, MapError> {
        let mapping = Self::whole(fd, len, ProtFlags::READ, MapFlags::SHARED)?;
        mapping.advise(Advice::LinuxDontDump)?;
        Ok(mapping)
    }

    /// Maps the first `len` bytes of `fd` so that what is written there stays ours,
    /// wherever there is room. Forked children inherit a copy.
    ///
    /// A page shows the file's content until the first write to it. Of a file that is not
    /// [sealed](super::verify_sealed) that content may change until then; a page given up
    /// with `MADV_DONTNEED` shows it again.
    ///
    /// # Examples
    ///
    /// ```
    /// use portolan_sys::memory::{self, Mapping};
    /// let fd = memory::create_unsealed("example", 4096)?;
    /// memory::seal(&fd)?;
    /// memory::verify_sealed(&fd, 4096)?;
    /// let ours = Mapping::private(&fd, 4096)?;
    /// assert_eq!(ours.len(), 4096);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`MapError`], never `Taken`.
    pub fn private(fd: &OwnedFd, len: usize) -> Result<Self, MapError> {
        if !len.is_multiple_of(PAGE) {
            return Err(MapError::Misaligned { base: 0, len });
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        Self::part(fd, 0, len, access, MapFlags::PRIVATE)
    }

    /// Maps the first `len` bytes of `fd` wherever there is room.
    fn whole(
        fd: &OwnedFd,
        len: usize,
        access: ProtFlags,
        kind: MapFlags,
    ) -> Result<Self, MapError> {
        if len == 0 || !len.is_multiple_of(PAGE) {
            return Err(MapError::Misaligned { base: 0, len });
        }
        let flags = kind | MapFlags::NORESERVE;
        // SAFETY:
        // - No address is asked for, so the kernel takes a free range.
        let mapped = unsafe { mmap(ptr::null_mut(), len, access, flags, fd, 0) };
        let mapped = mapped.map_err(|source| MapError::Refused {
            base: 0,
            len,
            source: source.into(),
        })?;
        Self::new(mapped.cast(), len, None)
    }

    /// Leaves the mapping out of forked children, where nothing is at its addresses then.
    ///
    /// # Errors
    ///
    /// [`MapError::Refused`].
    pub fn not_in_children(mut self) -> Result<Self, MapError> {
        self.only_in = Some(fork::generation());
        self.advise(Advice::LinuxDontFork)?;
        Ok(self)
    }

    /// Leaves the mapping out of core dumps.
    ///
    /// # Errors
    ///
    /// [`MapError::Refused`].
    pub fn not_in_dumps(self) -> Result<Self, MapError> {
        self.advise(Advice::LinuxDontDump)?;
        Ok(self)
    }

    /// The memory as words, which other processes may write at any time. What is mapped to
    /// be read only ends the process that stores there.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY:
        // - In bounds and live: `len` bytes, mapped until `self` is dropped. In a forked child
        //   that does not have it, a touch ends in a signal.
        // - Aligned: it begins at a page.
        // - Initialised: files read as zeros or what was written, and any bits are a word.
        // - Written meanwhile: other references made from `base` are of atomics too, as every
        //   dereference of it has to ensure.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.len / 8) }
    }

    /// The first byte. Other processes may change what it points to at any time.
    #[inline]
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Bytes mapped; never zero.
    #[expect(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    fn new(base: *mut u8, len: usize, only_in: Option<u64>) -> Result<Self, MapError> {
        let refused = || io::Error::from(Errno::INVAL);
        let base = NonNull::new(base).ok_or_else(|| MapError::Refused {
            base: 0,
            len,
            source: refused(),
        })?;
        Ok(Self { base, len, only_in })
    }

    /// Keeps `len` bytes from `skip` on and unmaps the rest.
    fn trim(self, skip: usize, len: usize) -> Self {
        let whole = std::mem::ManuallyDrop::new(self);
        let start = whole.base.as_ptr();
        let end = skip + len;
        unmap(start, skip);
        unmap(start.wrapping_add(end), whole.len - end);
        Self {
            base: whole.base.map_addr(|base| base.saturating_add(skip)),
            len,
            only_in: None,
        }
    }

    fn advise(&self, advice: Advice) -> Result<(), MapError> {
        // SAFETY:
        // - The range is this mapping.
        // - Neither advice that is given here changes what the memory holds.
        let advised = unsafe { madvise(self.base.as_ptr().cast(), self.len, advice) };
        let base = self.base.addr().get();
        advised.map_err(|source| MapError::Refused {
            base,
            len: self.len,
            source: source.into(),
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self
            .only_in
            .is_none_or(|generation| generation == fork::generation())
        {
            unmap(self.base.as_ptr(), self.len);
        }
    }
}

/// Unmaps a range that a [`Mapping`] owns. An empty one is fine.
fn unmap(base: *mut u8, len: usize) {
    if len == 0 {
        return;
    }
    // SAFETY:
    // - The caller owns the range and is about to forget it, so no code uses it any more.
    let unmapped = unsafe { munmap(base.cast(), len) };
    // The only failure is ENOMEM when the process has too many mappings to split one;
    // the range then stays mapped, which is safe.
    let _ = unmapped;
}

/// Why memory could not be mapped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The state's: something else lies in the range in this process.
    #[error("addresses {base:#x}..{:#x} are taken by {by}; choose another base", base.saturating_add(*len))]
    Taken {
        /// First address wanted.
        base: usize,
        /// Bytes wanted.
        len: usize,
        /// The occupants' lines in `/proc/self/maps`.
        by: String,
    },
    /// The caller's: base and length must be whole pages, and not zero bytes.
    #[error("base {base:#x} and length {len:#x} must be multiples of {PAGE} and not empty")]
    Misaligned {
        /// First address wanted; 0 for anywhere.
        base: usize,
        /// Bytes wanted.
        len: usize,
    },
    /// The machine's: the kernel refused; see `source`.
    #[error("cannot map {len:#x} bytes at {base:#x}: {source}")]
    Refused {
        /// First address wanted; 0 for anywhere.
        base: usize,
        /// Bytes wanted.
        len: usize,
        /// The kernel's reason.
        source: io::Error,
    },
}

impl MapError {
    fn taken(base: usize, len: usize) -> Self {
        Self::Taken {
            base,
            len,
            by: occupants(base, base.saturating_add(len)),
        }
    }
}

/// Most occupants to name in an error.
const NAMED_OCCUPANTS: usize = 3;

/// What `/proc/self/maps` says about `start..end`, in one line.
fn occupants(start: usize, end: usize) -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut found = maps
        .lines()
        .filter(|line| bounds(line).is_some_and(|(from, to)| from < end && start < to));
    let named: Vec<String> = found
        .by_ref()
        .take(NAMED_OCCUPANTS)
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    match (named.is_empty(), found.count()) {
        (true, _) => "a mapping that is gone by now".to_owned(),
        (false, 0) => named.join(", "),
        (false, more) => format!("{} and {more} more", named.join(", ")),
    }
}

/// The first and the past-the-end address of a line of `/proc/self/maps`.
fn bounds(line: &str) -> Option<(usize, usize)> {
    let (from, to) = line.split_whitespace().next()?.split_once('-')?;
    Some((
        usize::from_str_radix(from, 16).ok()?,
        usize::from_str_radix(to, 16).ok()?,
    ))
}
