//! Makes memory files: sealed, verified before use, filled and emptied by range.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    FallocateFlags, MemfdFlags, Mode, SealFlags, SeekFrom, fallocate, fchmod, fcntl_add_seals,
    fcntl_get_seals, fstat, fstatfs, ftruncate, memfd_create, seek,
};
use rustix::io::Errno;

/// The seals that make a file's size final (M1).
pub(super) const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// `f_type` of the file system that memfds live on.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// Most bytes that one fallocate call may be asked for. A signal makes the kernel undo
/// the whole call, so a step must be short enough to finish between two signals.
const ALLOCATE_STEP: u64 = 32 << 20;

/// Makes a memfd of `len` bytes whose size is sealed (M1).
///
/// Mode 0600, close-on-exec, never executable where the kernel can promise that.
/// `name` shows up in `/proc/PID/maps`; it may be at most 249 bytes long.
///
/// # Examples
///
/// ```
/// let fd = portolan_sys::memory::create("example", 1 << 20)?;
/// portolan_sys::memory::verify(&fd, 1 << 20)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// The kernel's, above all `EMFILE` and `ENFILE`, and `EINVAL` for a name too long.
pub fn create(name: &str, len: u64) -> io::Result<OwnedFd> {
    make(name, len, SEALS)
}

/// A memfd of `len` bytes with `seals`.
pub(super) fn make(name: &str, len: u64, seals: SealFlags) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Kernels before 6.3 do not know the flag.
        Err(Errno::INVAL) => memfd_create(name, flags)?,
        other => other?,
    };
    fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
    ftruncate(&fd, len)?;
    fcntl_add_seals(&fd, seals)?;
    Ok(fd)
}

/// Checks that `fd` is a memfd of exactly `expected_len` bytes whose size is final.
///
/// To be called on every descriptor that came from another process, before it is mapped.
///
/// # Errors
///
/// [`VerifyError`]; all but `Io` are the sender's fault.
pub fn verify(fd: impl AsFd, expected_len: u64) -> Result<(), VerifyError> {
    verify_seals(fd.as_fd(), expected_len, SEALS)
}

/// As [`verify`], with at least the seals `wanted`.
pub(super) fn verify_seals(
    fd: BorrowedFd<'_>,
    expected_len: u64,
    wanted: SealFlags,
) -> Result<(), VerifyError> {
    let seals = match fcntl_get_seals(fd) {
        Err(Errno::INVAL) => return Err(VerifyError::NotMemfd),
        other => other.map_err(io::Error::from)?,
    };
    // A file of huge pages can be sealed too, but hands out other page sizes.
    if fstatfs(fd).map_err(io::Error::from)?.f_type != TMPFS_MAGIC {
        return Err(VerifyError::NotMemfd);
    }
    if !seals.contains(wanted) {
        return Err(VerifyError::Unsealed {
            wanted: wanted.bits(),
            found: seals.bits(),
        });
    }
    let found = fstat(fd).map_err(io::Error::from)?.st_size;
    match u64::try_from(found) {
        Ok(found) if found == expected_len => Ok(()),
        _ => Err(VerifyError::Size {
            expected: expected_len,
            found,
        }),
    }
}

/// Why a descriptor from another process was not accepted as shared memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// The sender's: this is some other kind of file.
    #[error("the descriptor is not a memfd; refuse the sender")]
    NotMemfd,
    /// The sender's: the file could still change size, or content, under us.
    #[error("the memfd has seals {found:#x} and needs {wanted:#x}; refuse the sender")]
    Unsealed {
        /// `F_SEAL_*` bits that must be there.
        wanted: u32,
        /// `F_SEAL_*` bits that are there.
        found: u32,
    },
    /// The sender's: the file is not as large as it said.
    #[error("the memfd has {found} bytes instead of {expected}; refuse the sender")]
    Size {
        /// Bytes it was said to have.
        expected: u64,
        /// Bytes it has.
        found: i64,
    },
    /// The machine's: the kernel refused the check itself.
    #[error("cannot examine the descriptor: {0}")]
    Io(#[from] io::Error),
}

/// Takes memory for `len` bytes of `fd` from `offset` on, without mapping it.
///
/// Afterwards no access to these bytes can fail for want of memory. Large ranges are
/// taken in steps: after an error the part before it stays allocated (see [`punch`]).
///
/// # Errors
///
/// [`AllocateError`]. A control group's limit is not among them: it kills.
pub fn allocate(fd: impl AsFd, offset: u64, len: u64) -> Result<(), AllocateError> {
    let mut done = 0;
    while done < len {
        let step = ALLOCATE_STEP.min(len - done);
        match fallocate(
            &fd,
            FallocateFlags::empty(),
            offset.saturating_add(done),
            step,
        ) {
            Ok(()) => done += step,
            Err(Errno::INTR) => {}
            Err(Errno::NOSPC | Errno::NOMEM) => {
                return Err(AllocateError::OutOfMemory { offset, len, done });
            }
            Err(other) => return Err(AllocateError::Io(other.into())),
        }
    }
    Ok(())
}

/// Why memory was not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllocateError {
    /// The machine's: no memory is left. Free some, or ask for less.
    #[error("out of memory after {done} of {len} bytes at offset {offset}")]
    OutOfMemory {
        /// Where in the file the range began.
        offset: u64,
        /// Bytes wanted.
        len: u64,
        /// Bytes that were taken, and stay taken.
        done: u64,
    },
    /// The caller's or the machine's: for example a range past the end of the file.
    #[error("cannot allocate: {0}")]
    Io(#[from] io::Error),
}

/// Opens the same file for reading only: a process that gets this descriptor cannot write.
///
/// # Errors
///
/// The kernel's; `/proc` must be mounted.
pub fn reopen_to_read(fd: impl AsFd) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, rustix::fs::Mode::empty())?)
}

/// Gives the memory of `len` bytes from `offset` on back; they then read as zero.
///
/// # Errors
///
/// The kernel's.
pub fn punch(fd: impl AsFd, offset: u64, len: u64) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::io::retry_on_intr(|| fallocate(&fd, flags, offset, len))?;
    Ok(())
}

/// Bytes of memory that the file has taken.
///
/// # Errors
///
/// The kernel's.
pub fn allocated_bytes(fd: impl AsFd) -> io::Result<u64> {
    /// Bytes in a block of `st_blocks`, whatever the file system's own blocks are.
    const BLOCK: u64 = 512;
    Ok(u64::try_from(fstat(fd)?.st_blocks).unwrap_or(0) * BLOCK)
}

/// The parts of `range` that have memory behind them, in ascending order.
///
/// Memory that was [`allocate`]d and never written or mapped counts as a hole, because
/// it reads as zero; [`allocated_bytes`] counts it.
///
/// Moves the file position, which is shared by all holders of the descriptor and which
/// nothing in Portolan reads.
///
/// # Examples
///
/// ```
/// use portolan_sys::memory::{self, Mapping};
/// let fd = memory::create("example", 1 << 20)?;
/// let mapping = Mapping::shared_anywhere(&fd, 1 << 20)?;
/// memory::populate_write(mapping.base().addr() + 8192, 4096)?;
/// let ranges: Vec<_> = memory::data_ranges(&fd, 0..1 << 20).collect::<Result<_, _>>()?;
/// assert_eq!(ranges, [8192..12288]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn data_ranges(fd: &OwnedFd, range: Range<u64>) -> DataRanges<'_> {
    DataRanges {
        fd: fd.as_fd(),
        range,
    }
}

/// Iterator over the parts of a file that have memory; see [`data_ranges`].
#[derive(Debug)]
pub struct DataRanges<'fd> {
    fd: BorrowedFd<'fd>,
    /// What has not been looked at yet.
    range: Range<u64>,
}

impl Iterator for DataRanges<'_> {
    type Item = io::Result<Range<u64>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.range.is_empty() {
            return None;
        }
        let found = match self.next_data() {
            Ok(found) => found.filter(|found| found.start < self.range.end),
            Err(error) => {
                self.range.start = self.range.end;
                return Some(Err(error));
            }
        };
        self.range.start = found.as_ref().map_or(self.range.end, |found| found.end);
        found.map(|found| Ok(found.start..found.end.min(self.range.end)))
    }
}

impl DataRanges<'_> {
    /// The first run of data from the start of what is left, perhaps past its end.
    fn next_data(&self) -> io::Result<Option<Range<u64>>> {
        let start = match seek(self.fd, SeekFrom::Data(self.range.start)) {
            Err(Errno::NXIO) => return Ok(None),
            other => other?,
        };
        match seek(self.fd, SeekFrom::Hole(start)) {
            // Another process punched the data out between our two questions: it was empty at the
            // end.
            Err(Errno::NXIO) => Ok(None),
            Ok(end) => Ok(Some(start..end.max(start + 1))),
            Err(other) => Err(other.into()),
        }
    }
}
