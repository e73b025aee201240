//! Opening and closing single pages of shared memory with userfaultfd.
//!
//! A registered range has two states for each of its pages *in this process*:
//!
//! ```text
//!              resume (UFFDIO_CONTINUE)
//!   closed ------------------------------> open      content stays in the file,
//!      ^                                     |       whoever has the page open
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

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::ioctl::{Updater, ioctl, opcode};
use rustix::mm::{UserfaultfdFlags, userfaultfd};

use crate::memory::PAGE;

/// The definitions of `linux/userfaultfd.h` that rustix and libc lack.
mod abi {
    pub(super) const API: u64 = 0xAA;
    /// `UFFD_USER_MODE_ONLY`, Linux 5.11.
    pub(super) const USER_MODE_ONLY: u32 = 1;
    pub(super) const FEATURE_SIGBUS: u64 = 1 << 7;
    /// Linux 5.14.
    pub(super) const FEATURE_MINOR_SHMEM: u64 = 1 << 10;
    pub(super) const MODE_MINOR: u64 = 1 << 2;
    /// Nobody waits for a page where SIGBUS tells of it.
    pub(super) const CONTINUE_DONTWAKE: u64 = 1 << 0;
    /// The group of ioctls, and their numbers.
    pub(super) const GROUP: u8 = 0xAA;
    pub(super) const REGISTER: u8 = 0x00;
    pub(super) const UNREGISTER: u8 = 0x01;
    pub(super) const CONTINUE: u8 = 0x07;
    pub(super) const HANDSHAKE: u8 = 0x3F;

    #[repr(C)]
    pub(super) struct Handshake {
        pub(super) api: u64,
        pub(super) features: u64,
        pub(super) ioctls: u64,
    }

    #[repr(C)]
    pub(super) struct Range {
        pub(super) start: u64,
        pub(super) len: u64,
    }

    #[repr(C)]
    pub(super) struct Register {
        pub(super) range: Range,
        pub(super) mode: u64,
        pub(super) ioctls: u64,
    }

    #[repr(C)]
    pub(super) struct Continue {
        pub(super) range: Range,
        pub(super) mode: u64,
        /// Bytes done, or a negative error.
        pub(super) mapped: i64,
    }

    const _: () = assert!(size_of::<Handshake>() == 24);
    const _: () = assert!(size_of::<Range>() == 16);
    const _: () = assert!(size_of::<Register>() == 32);
    const _: () = assert!(size_of::<Continue>() == 32);
}

const HANDSHAKE: u32 = opcode::read_write::<abi::Handshake>(abi::GROUP, abi::HANDSHAKE);
const REGISTER: u32 = opcode::read_write::<abi::Register>(abi::GROUP, abi::REGISTER);
const UNREGISTER: u32 = opcode::read::<abi::Range>(abi::GROUP, abi::UNREGISTER);
const CONTINUE: u32 = opcode::read_write::<abi::Continue>(abi::GROUP, abi::CONTINUE);

/// A userfaultfd that closes pages of shared memory.
///
/// When it is dropped, every range registered with it is open again.
#[derive(Debug)]
pub struct Minor {
    fd: OwnedFd,
}

impl Minor {
    /// Makes one that answers a touch of a closed page with SIGBUS.
    ///
    /// # Errors
    ///
    /// `EINVAL`: a kernel before 5.14. `ENOSYS`: built without. `EPERM`: forbidden, often
    /// by a container's seccomp filter.
    pub fn new() -> io::Result<Self> {
        Self::with_features(abi::FEATURE_SIGBUS | abi::FEATURE_MINOR_SHMEM)
    }

    pub(crate) fn with_features(features: u64) -> io::Result<Self> {
        let user_mode_only = UserfaultfdFlags::from_bits_retain(abi::USER_MODE_ONLY);
        // SAFETY:
        // - A userfaultfd does nothing before a range is registered with it.
        let fd = unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC | user_mode_only) }?;
        let mut handshake = abi::Handshake {
            api: abi::API,
            features,
            ioctls: 0,
        };
        // SAFETY:
        // - The struct is the one that the request takes; see the size assertions.
        let request = unsafe { Updater::<HANDSHAKE, _>::new(&mut handshake) };
        // SAFETY:
        // - The request only negotiates features.
        unsafe { ioctl(&fd, request) }?;
        Ok(Self { fd })
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
        let mut register = abi::Register {
            range: range(start, len),
            mode: abi::MODE_MINOR,
            ioctls: 0,
        };
        // SAFETY:
        // - The struct is the one that the request takes; see the size assertions.
        let request = unsafe { Updater::<REGISTER, _>::new(&mut register) };
        // SAFETY:
        // - Registering changes no content. Accesses may trap from now on, which is what
        //   the caller asks for.
        Ok(unsafe { ioctl(&self.fd, request) }?)
    }

    /// Takes the guard off: every page of the range is opened by its next touch.
    ///
    /// # Errors
    ///
    /// `EINVAL`: not whole pages, or not mapped.
    pub fn unregister(&self, start: usize, len: usize) -> io::Result<()> {
        let mut range = range(start, len);
        // SAFETY:
        // - The struct is the one that the request takes; see the size assertions.
        let request = unsafe { Updater::<UNREGISTER, _>::new(&mut range) };
        // SAFETY:
        // - Accesses trap no longer; content stays.
        Ok(unsafe { ioctl(&self.fd, request) }?)
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
            let mut step = abi::Continue {
                range: range(start.wrapping_add(done), len - done),
                mode: abi::CONTINUE_DONTWAKE,
                mapped: 0,
            };
            // SAFETY:
            // - The struct is the one that the request takes; see the size assertions.
            let request = unsafe { Updater::<CONTINUE, _>::new(&mut step) };
            // SAFETY:
            // - Maps pages that the file holds already into a range registered for that.
            match unsafe { ioctl(&self.fd, request) } {
                Ok(()) => return Ok(()),
                // Some pages were opened, and the next one could not be.
                Err(Errno::AGAIN) => done += usize::try_from(step.mapped).unwrap_or(0),
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
        self.fd.as_fd()
    }
}

impl From<Minor> for OwnedFd {
    fn from(minor: Minor) -> Self {
        minor.fd
    }
}

fn range(start: usize, len: usize) -> abi::Range {
    abi::Range {
        start: start as u64,
        len: len as u64,
    }
}
