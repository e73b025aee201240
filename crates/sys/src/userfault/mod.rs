//! Opens and closes single pages of shared memory with userfaultfd.
//!
//! A registered range has two states for each of its pages *in this process*:
//!
//! ```text
//!              resume (UFFDIO_CONTINUE)
//!   closed ------------------------------> open      content stays in the file,
//!      ^                                     |       whichever process has it open
//!      +-------------------------------------+
//!              memory::zap (MADV_DONTNEED)
//! ```
//!
//! A touch of a closed page raises SIGBUS at that address, which
//! [`fault`](crate::fault) can answer by `resume`; a system call that is given one
//! returns `EFAULT`. This works without privileges.
//!
//! A *hole*, a page that has no memory yet, is not guarded: a touch makes an empty page.
//! Take memory first ([`memory::allocate`](crate::memory::allocate)). Huge pages are
//! opened as small ones, and [`memory::collapse`](crate::memory::collapse) on a registered
//! range opens it: collapse through another mapping, or before closing.

mod raw;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use crate::memory::PAGE;

pub(crate) use raw::{Userfault, Whose, feature, mode};

/// A userfaultfd that closes pages of shared memory.
///
/// When it is dropped, every range registered with it is open again.
#[derive(Debug)]
pub struct Minor {
    raw: Userfault,
}

impl Minor {
    /// Makes one that answers a touch of a closed page with SIGBUS.
    ///
    /// # Errors
    ///
    /// `EINVAL`: a kernel before 5.14. `ENOSYS`: built without. `EPERM`: forbidden, often
    /// by a container's seccomp filter.
    pub fn new() -> io::Result<Self> {
        let features = feature::SIGBUS | feature::MINOR_SHMEM;
        let raw = Userfault::open(features, Whose::Program)?;
        Ok(Self { raw })
    }

    /// Puts a mapping of shared memory under guard.
    ///
    /// Pages that are mapped now stay open until they are zapped.
    ///
    /// # Errors
    ///
    /// `EINVAL`: not whole pages, not mapped, or not shared memory. `EBUSY`: another
    /// userfaultfd has it.
    pub fn register(&self, start: usize, len: usize) -> io::Result<()> {
        Ok(self.raw.register(start, len, mode::MINOR)?)
    }

    /// Takes the guard off: every page of the range is opened by its next touch.
    ///
    /// # Errors
    ///
    /// `EINVAL`: not whole pages, or not mapped.
    pub fn unregister(&self, start: usize, len: usize) -> io::Result<()> {
        Ok(self.raw.unregister(start, len)?)
    }

    /// Opens every page of the range, in as few calls as possible.
    ///
    /// Pages that are open already are fine. Async-signal-safe, allocates nothing.
    ///
    /// # Errors
    ///
    /// `EFAULT`: a page has no memory; those before it are open. `ENOENT`: not registered.
    pub fn resume(&self, start: usize, len: usize) -> io::Result<()> {
        let mut done = 0;
        while done < len {
            let (result, opened) = self.raw.resume(start.wrapping_add(done), len - done);
            match result {
                Ok(()) => return Ok(()),
                // Some pages were opened, and the next one could not be.
                Err(Errno::AGAIN) => done += opened,
                // The first page was open already.
                Err(Errno::EXIST) => done += PAGE,
                Err(other) => return Err(other.into()),
            }
        }
        Ok(())
    }
}

impl AsFd for Minor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.raw.as_fd()
    }
}

impl From<Minor> for OwnedFd {
    fn from(minor: Minor) -> Self {
        minor.raw.into()
    }
}
