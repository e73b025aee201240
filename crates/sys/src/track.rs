//! Finds the pages of a range that were written, without a fault handler.
//!
//! The kernel write-protects the range; the first store to a page takes the protection off
//! by itself, in the kernel, and so leaves a mark. Asking for the marks puts the protection
//! back, page by page, in one step with reading the mark:
//!
//! ```text
//!              store (without a notice)
//!   clean ------------------------------> written
//!     ^                                      |
//!     +--------------------------------------+
//!            take_written (PAGEMAP_SCAN)
//! ```
//!
//! # Invariants
//!
//! - **T1** A store is reported by the first [`Tracker::take_written`] that begins after it,
//!   or by an earlier one that ran beside it.
//! - **T2** A read of a page after it was reported sees at least the stores that were
//!   made before the report; a store after it is reported again.
//!
//! Stores by system calls count, stores through other mappings of the same memory do not.
//! It works without privileges.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr;

use rustix::io::Errno;
use rustix::ioctl::opcode;

use crate::memory::PAGE;
use crate::userfault::{Userfault, Whose, feature, mode};

/// The definitions of `linux/fs.h` that rustix and libc lack.
mod abi {
    /// Protect what is reported, in the same step.
    pub(super) const WP_MATCHING: u64 = 1 << 0;
    /// Fail where pages are not watched.
    pub(super) const CHECK_WPASYNC: u64 = 1 << 1;
    pub(super) const IS_WRITTEN: u64 = 1 << 1;
    pub(super) const IS_HUGE: u64 = 1 << 6;

    /// `struct pm_scan_arg`.
    #[repr(C)]
    #[derive(Default)]
    pub(super) struct Scan {
        pub(super) size: u64,
        pub(super) flags: u64,
        pub(super) start: u64,
        pub(super) end: u64,
        pub(super) walk_end: u64,
        pub(super) regions: u64,
        pub(super) regions_len: u64,
        pub(super) max_pages: u64,
        pub(super) category_inverted: u64,
        pub(super) category_mask: u64,
        pub(super) category_any: u64,
        pub(super) return_mask: u64,
    }

    /// `struct page_region`.
    #[repr(C)]
    #[derive(Clone, Copy, Debug, Default)]
    pub(super) struct Region {
        pub(super) start: u64,
        pub(super) end: u64,
        pub(super) categories: u64,
    }

    const _: () = assert!(size_of::<Scan>() == 96);
    const _: () = assert!(size_of::<Region>() == 24);
}

/// `PAGEMAP_SCAN`, Linux 6.7.
const SCAN: u32 = opcode::read_write::<abi::Scan>(b'f', 16);

/// Runs of pages that one request may report.
const REGIONS: usize = 256;

/// Finds the pages of a range that were written since it was last asked.
///
/// When it is dropped, stores cost what they cost before.
///
/// # Examples
///
/// ```
/// use portolan_sys::memory::PAGE;
/// use portolan_sys::shared::Window;
/// use portolan_sys::track::Tracker;
/// let window = Window::create(8 * PAGE)?;
/// let start = window.base().addr();
/// let mut tracker = Tracker::new(start, window.len())?;
/// window.fill(3 * PAGE, 1, 7);
///
/// let mut written = Vec::new();
/// tracker.take_written(&mut written)?;
/// assert_eq!(written, [start + 3 * PAGE..start + 4 * PAGE]);
///
/// written.clear();
/// tracker.take_written(&mut written)?;
/// assert!(written.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Tracker {
    /// Keeps the range watched.
    _watch: Userfault,
    pagemap: File,
    range: Range<usize>,
    regions: Box<[abi::Region; REGIONS]>,
}

/// Why written pages cannot be found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrackError {
    /// The machine's: a kernel before 6.7, or one that forbids userfaultfd. Compare the
    /// pages with a copy instead, or write through a handle that keeps a log.
    #[error("this kernel does not find written pages: {missing}: {source}")]
    Unsupported {
        /// What it lacks.
        missing: &'static str,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The caller's: the range must be whole pages of private or shared memory, all mapped.
    #[error(
        "{len:#x} bytes at {start:#x} are not whole pages of mapped memory that can be watched"
    )]
    BadRange {
        /// First address.
        start: usize,
        /// Bytes.
        len: usize,
    },
    /// The state's: another userfaultfd has the range, for example another tracker.
    #[error("another userfaultfd watches the range; end that first")]
    Watched,
    /// The caller's: the range was unmapped or mapped anew since the tracker was made; what
    /// was written since the last report is not known. Copy all of it, and make a new one.
    #[error("the range was mapped anew and is not watched any more; make a new tracker")]
    Remapped,
    /// The machine's: the kernel refused; see the source.
    #[error("cannot find written pages: {0}")]
    Io(#[from] io::Error),
}

impl Tracker {
    /// Begins to watch a range in which no page counts as written yet.
    ///
    /// # Errors
    ///
    /// [`TrackError`].
    pub fn new(start: usize, len: usize) -> Result<Self, TrackError> {
        let bad = TrackError::BadRange { start, len };
        let whole = start.is_multiple_of(PAGE) && len.is_multiple_of(PAGE) && len > 0;
        let Some(end) = start.checked_add(len).filter(|_| whole) else {
            return Err(bad);
        };
        let features = feature::WRITE_PROTECT
            | feature::WRITE_PROTECT_SHMEM
            | feature::WRITE_PROTECT_UNPOPULATED
            | feature::WRITE_PROTECT_ASYNC;
        let watch = Userfault::open(features, Whose::Program).map_err(|source| {
            TrackError::Unsupported {
                missing: "asynchronous write protection",
                source,
            }
        })?;
        match watch.register(start, len, mode::WRITE_PROTECT) {
            Ok(()) => {}
            Err(Errno::INVAL | Errno::NOMEM) => return Err(bad),
            Err(Errno::BUSY) => return Err(TrackError::Watched),
            Err(other) => return Err(TrackError::Io(other.into())),
        }
        let mut tracker = Self {
            _watch: watch,
            pagemap: File::open("/proc/self/pagemap")?,
            range: start..end,
            regions: Box::new([abi::Region::default(); REGIONS]),
        };
        // What the range holds now is not news.
        tracker.take_written(&mut Vec::new())?;
        Ok(tracker)
    }

    /// The addresses that are watched.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Appends to `written` the pages that were written since they were last reported, as
    /// ranges of addresses in ascending order; from now on they count as not written.
    ///
    /// # Errors
    ///
    /// [`TrackError`]. What is in `written` all the same was taken, and is not reported again.
    pub fn take_written(&mut self, written: &mut Vec<Range<usize>>) -> Result<(), TrackError> {
        let mut from = self.range.start;
        let first = written.len();
        while from < self.range.end {
            let (found, reached) = self.scan(from)?;
            for region in &self.regions[..found] {
                let found = address(region.start)..address(region.end);
                match written[first..].last_mut() {
                    // One run that two requests reported.
                    Some(last) if last.end == found.start => last.end = found.end,
                    _ => written.push(found),
                }
            }
            if reached <= from {
                return Err(TrackError::Remapped);
            }
            from = reached;
        }
        Ok(())
    }

    /// Takes the written pages from `from` on; how many runs of them there were room for,
    /// and how far they reach.
    fn scan(&mut self, from: usize) -> Result<(usize, usize), TrackError> {
        let mut scan = abi::Scan {
            size: size_of::<abi::Scan>() as u64,
            flags: abi::WP_MATCHING | abi::CHECK_WPASYNC,
            start: from as u64,
            end: self.range.end as u64,
            regions: self.regions.as_mut_ptr().expose_provenance() as u64,
            regions_len: REGIONS as u64,
            category_mask: abi::IS_WRITTEN,
            return_mask: abi::IS_WRITTEN,
            ..abi::Scan::default()
        };
        let found = request(&self.pagemap, &mut scan);
        match found {
            Ok(found) => Ok((found.min(REGIONS), address(scan.walk_end))),
            Err(Errno::PERM) => Err(TrackError::Remapped),
            Err(errno @ (Errno::NOTTY | Errno::INVAL)) => Err(TrackError::Unsupported {
                missing: "PAGEMAP_SCAN",
                source: errno.into(),
            }),
            Err(other) => Err(TrackError::Io(other.into())),
        }
    }
}

/// `PAGEMAP_SCAN` itself; the number of regions that it wrote.
fn request(pagemap: &File, scan: &mut abi::Scan) -> Result<usize, Errno> {
    loop {
        // SAFETY:
        // - The struct is the one that the request takes; see the size assertion.
        // - The kernel writes at most `regions_len` regions to `regions`, which are the
        //   caller's own array or none.
        // - It changes no content of the range scanned.
        let found = unsafe {
            libc::ioctl(
                pagemap.as_raw_fd(),
                SCAN as libc::Ioctl,
                ptr::from_mut(scan),
            )
        };
        match usize::try_from(found) {
            Ok(found) => return Ok(found),
            Err(_) => match Errno::from_io_error(&io::Error::last_os_error()) {
                Some(Errno::INTR) => {}
                errno => return Err(errno.unwrap_or(Errno::IO)),
            },
        }
    }
}

/// Whether this process has a huge page mapped in the range, as such; `false` if it cannot be told.
pub(crate) fn has_huge(pagemap: &File, start: usize, len: usize) -> bool {
    let mut region = abi::Region::default();
    let mut scan = abi::Scan {
        size: size_of::<abi::Scan>() as u64,
        start: start as u64,
        end: start.saturating_add(len) as u64,
        regions: ptr::from_mut(&mut region).expose_provenance() as u64,
        regions_len: 1,
        category_mask: abi::IS_HUGE,
        return_mask: abi::IS_HUGE,
        ..abi::Scan::default()
    };
    request(pagemap, &mut scan).is_ok_and(|found| found > 0)
}

/// Bytes of the range that this process has mapped as huge pages; `None` if it cannot be told (before
/// Linux 6.7, or `/proc` is not there). Pages that are closed are not mapped.
///
/// # Examples
///
/// ```
/// use portolan_sys::memory::HUGE_PAGE;
/// use portolan_sys::{shared::Window, track};
///
/// let window = Window::create(2 * HUGE_PAGE)?;
/// window.populate()?;
/// if let Some(huge) = track::huge_bytes(window.base().addr(), window.len()) {
///     assert!(huge <= window.len());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn huge_bytes(start: usize, len: usize) -> Option<usize> {
    let pagemap = File::open("/proc/self/pagemap").ok()?;
    let end = start.checked_add(len)?;
    let mut regions = [abi::Region::default(); REGIONS];
    let (mut from, mut huge) = (start, 0);
    while from < end {
        let mut scan = abi::Scan {
            size: size_of::<abi::Scan>() as u64,
            start: from as u64,
            end: end as u64,
            regions: regions.as_mut_ptr().expose_provenance() as u64,
            regions_len: REGIONS as u64,
            category_mask: abi::IS_HUGE,
            return_mask: abi::IS_HUGE,
            ..abi::Scan::default()
        };
        let found = request(&pagemap, &mut scan).ok()?;
        let found = regions.iter().take(found);
        huge += found.map(|run| address(run.end - run.start)).sum::<usize>();
        // As far as it came; never back, whatever the kernel writes.
        from = address(scan.walk_end).max(from + PAGE);
    }
    Some(huge)
}

/// Whether the kernel answers the request, for [`probe`](mod@crate::probe).
pub(crate) fn probe(start: usize) -> io::Result<()> {
    let pagemap = File::open("/proc/self/pagemap")?;
    let mut scan = abi::Scan {
        size: size_of::<abi::Scan>() as u64,
        start: start as u64,
        end: (start + PAGE) as u64,
        category_mask: abi::IS_WRITTEN,
        return_mask: abi::IS_WRITTEN,
        ..abi::Scan::default()
    };
    request(&pagemap, &mut scan)?;
    Ok(())
}

/// An address as the kernel writes it.
fn address(value: u64) -> usize {
    // `usize` has 64 bits here; the crate does not compile elsewhere.
    usize::try_from(value).unwrap_or(usize::MAX)
}
