//! Seals memory against writing after it was filled, so that no process can change it any more.
//!
//! ```text
//! create_unsealed --> fill --> seal --> verify_sealed --> Mapping::private
//!                      ^         |      `---- in each receiver ---------'
//!                      |         |
//!                      +- Busy --+    as long as a process has it mapped to write
//! ```
//!
//! The kernel keeps the seal against every holder, whatever descriptors and mappings it
//! has (M4): a file is sealed only while no mapping of it could be written, and afterwards
//! it refuses to be written, mapped to be written, and punched. A seal is never taken off.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{SealFlags, fcntl_add_seals, fcntl_get_seals};
use rustix::io::Errno;

use super::VerifyError;
use super::file::{SEALS, make, verify_seals};

/// The seals of memory that no process can change (M4).
const FINAL: SealFlags = SEALS.union(SealFlags::WRITE);

/// Makes a memfd of `len` bytes that is to be filled and then [`seal`]ed.
///
/// Its size is final from the start. As [`create`](super::create) otherwise.
///
/// # Examples
///
/// ```
/// use portolan_sys::memory::{self, Mapping};
/// let fd = memory::create_unsealed("example", 4096)?;
/// assert_eq!(rustix::io::pwrite(&fd, b"for many", 0)?, 8);
/// memory::seal(&fd)?;
///
/// // A receiver of the descriptor:
/// memory::verify_sealed(&fd, 4096)?;
/// let theirs = Mapping::private(&fd, 4096)?;
/// # drop(theirs);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// As [`create`](super::create).
pub fn create_unsealed(name: &str, len: u64) -> io::Result<OwnedFd> {
    make(name, len, SealFlags::SHRINK | SealFlags::GROW)
}

/// Seals a memfd against writing, shrinking, growing and further sealing, for ever.
///
/// Everything is sealed, or nothing. Unmap first what could write: a mapping made from a
/// descriptor that may write counts, even one that itself only reads.
///
/// # Examples
///
/// ```
/// use portolan_sys::memory::{self, Mapping, SealError};
/// let fd = memory::create_unsealed("example", 4096)?;
/// let mapping = Mapping::shared_anywhere(&fd, 4096)?;
/// assert!(matches!(memory::seal(&fd), Err(SealError::Busy)));
/// drop(mapping);
/// memory::seal(&fd)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`SealError`].
pub fn seal(fd: impl AsFd) -> Result<(), SealError> {
    add(fd, FINAL)
}

fn add(fd: impl AsFd, seals: SealFlags) -> Result<(), SealError> {
    match fcntl_add_seals(&fd, seals) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(SealError::Busy),
        // A descriptor that may only read answers the same, of whatever file.
        Err(Errno::PERM) => match fcntl_get_seals(&fd) {
            Ok(found) => Err(SealError::Refused {
                found: found.bits(),
            }),
            Err(Errno::INVAL) => Err(SealError::NotMemfd),
            Err(other) => Err(SealError::Io(other.into())),
        },
        Err(Errno::INVAL) => Err(SealError::NotMemfd),
        Err(other) => Err(SealError::Io(other.into())),
    }
}

/// Makes the size of a memfd from [`create_unsealed`] final for good: as if it came from
/// [`create`](super::create).
///
/// # Errors
///
/// [`SealError`], never `Busy`.
pub fn seal_size(fd: impl AsFd) -> Result<(), SealError> {
    add(fd, SEALS)
}

/// Makes a memfd's size final, and forbids every later mapping or write: a process that gets the
/// descriptor can only read, however it opens it again.
///
/// Mappings to write that exist already stay so. So its maker maps it first, then calls this,
/// then hands the descriptor out.
///
/// # Examples
///
/// ```
/// use portolan_sys::memory::{self, Mapping};
/// let fd = memory::create_unsealed("example", 4096)?;
/// let ours = Mapping::shared_anywhere(&fd, 4096)?;
/// memory::seal_to_readers(&fd)?;
/// memory::verify(&fd, 4096)?;
/// assert!(Mapping::shared_anywhere(&fd, 4096).is_err());
/// assert!(rustix::io::pwrite(&fd, b"x", 0).is_err());
/// let theirs = Mapping::read_only(&fd, 4096)?;
/// # drop((ours, theirs));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`SealError`], never `Busy`.
pub fn seal_to_readers(fd: impl AsFd) -> Result<(), SealError> {
    add(fd, SEALS.union(SealFlags::FUTURE_WRITE))
}

/// Why a file was not sealed. It is as it was before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SealError {
    /// The state's: a process has it mapped to write, or input and output into it is under
    /// way. Unmap it and try again; if a peer holds the mapping, copy instead.
    #[error("a mapping that could write to the memfd still exists; unmap it, then seal")]
    Busy,
    /// The caller's: it is sealed against sealing, or its descriptor may only read.
    #[error("the memfd takes no more seals (it has {found:#x}), or is open for reading only")]
    Refused {
        /// `F_SEAL_*` bits that are there.
        found: u32,
    },
    /// The caller's: this is some other kind of file.
    #[error("only a memfd can be sealed")]
    NotMemfd,
    /// The machine's: the kernel refused; see the source.
    #[error("cannot seal a memfd: {0}")]
    Io(#[from] io::Error),
}

/// Checks that `fd` is a memfd of exactly `expected_len` bytes that no process can change (M4).
///
/// To be called on every descriptor that is said to be sealed, before it is mapped. A seal
/// against *future* writing is not enough: older mappings could still write.
///
/// # Errors
///
/// [`VerifyError`]; all but `Io` are the sender's fault.
pub fn verify_sealed(fd: impl AsFd, expected_len: u64) -> Result<(), VerifyError> {
    verify_seals(fd.as_fd(), expected_len, FINAL)
}
