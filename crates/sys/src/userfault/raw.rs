//! Wraps the userfaultfd and the requests that it takes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::ioctl::{Updater, ioctl, opcode};
use rustix::mm::{UserfaultfdFlags, userfaultfd};

/// The definitions of `linux/userfaultfd.h` that rustix and libc lack.
mod abi {
    pub(super) const API: u64 = 0xAA;
    /// `UFFD_USER_MODE_ONLY`, Linux 5.11.
    pub(super) const USER_MODE_ONLY: u32 = 1;
    /// In SIGBUS mode no thread blocks on a page, so there is no thread to wake.
    pub(super) const CONTINUE_DONTWAKE: u64 = 1 << 0;
    pub(super) const WRITEPROTECT_ON: u64 = 1 << 0;
    /// The group of ioctls, and their numbers.
    pub(super) const GROUP: u8 = 0xAA;
    pub(super) const REGISTER: u8 = 0x00;
    pub(super) const UNREGISTER: u8 = 0x01;
    pub(super) const WAKE: u8 = 0x02;
    pub(super) const WRITEPROTECT: u8 = 0x06;
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
    pub(super) struct Writeprotect {
        pub(super) range: Range,
        pub(super) mode: u64,
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
    const _: () = assert!(size_of::<Writeprotect>() == 24);
    const _: () = assert!(size_of::<Continue>() == 32);
}

const HANDSHAKE: u32 = opcode::read_write::<abi::Handshake>(abi::GROUP, abi::HANDSHAKE);
const REGISTER: u32 = opcode::read_write::<abi::Register>(abi::GROUP, abi::REGISTER);
const UNREGISTER: u32 = opcode::read::<abi::Range>(abi::GROUP, abi::UNREGISTER);
const WAKE: u32 = opcode::read::<abi::Range>(abi::GROUP, abi::WAKE);
const WRITEPROTECT: u32 = opcode::read_write::<abi::Writeprotect>(abi::GROUP, abi::WRITEPROTECT);
const CONTINUE: u32 = opcode::read_write::<abi::Continue>(abi::GROUP, abi::CONTINUE);

/// What the kernel is asked to be able to do.
pub(crate) mod feature {
    pub(crate) const WRITE_PROTECT: u64 = 1 << 0;
    pub(crate) const SIGBUS: u64 = 1 << 7;
    /// Linux 5.14.
    pub(crate) const MINOR_SHMEM: u64 = 1 << 10;
    /// Linux 5.19.
    pub(crate) const WRITE_PROTECT_SHMEM: u64 = 1 << 12;
    /// Linux 6.4: pages that have no memory yet are protected too.
    pub(crate) const WRITE_PROTECT_UNPOPULATED: u64 = 1 << 13;
    /// Linux 6.7: a store to a protected page goes ahead, and is remembered.
    pub(crate) const WRITE_PROTECT_ASYNC: u64 = 1 << 15;
}

/// What a range is watched for.
pub(crate) mod mode {
    pub(crate) const WRITE_PROTECT: u64 = 1 << 1;
    pub(crate) const MINOR: u64 = 1 << 2;
}

/// Whose accesses a userfaultfd stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// Those of the program. Every user may.
    Program,
    /// Those that system calls make for it too, which needs a privilege. Without it, a
    /// system call that is stopped returns `EFAULT`.
    All,
}

/// A userfaultfd. When it is closed, every range registered with it is as any other again.
#[derive(Debug)]
pub(crate) struct Userfault {
    fd: OwnedFd,
}

impl Userfault {
    /// `EINVAL`: a kernel without a feature. `ENOSYS`: built without. `EPERM`: forbidden.
    pub(crate) fn open(features: u64, whose: Whose) -> io::Result<Self> {
        let flags = match whose {
            Whose::Program => UserfaultfdFlags::from_bits_retain(abi::USER_MODE_ONLY),
            Whose::All => UserfaultfdFlags::empty(),
        };
        // SAFETY:
        // - A userfaultfd does nothing before a range is registered with it.
        let fd = unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC | flags) }?;
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

    /// Watches the range for what `mode` says.
    pub(crate) fn register(&self, start: usize, len: usize, mode: u64) -> Result<(), Errno> {
        let mut register = abi::Register {
            range: range(start, len),
            mode,
            ioctls: 0,
        };
        // SAFETY:
        // - The struct is the one that the request takes; see the size assertions.
        let request = unsafe { Updater::<REGISTER, _>::new(&mut register) };
        // SAFETY:
        // - Registering changes no content. Accesses may trap from now on, which is what
        //   the caller asks for.
        unsafe { ioctl(&self.fd, request) }
    }

    /// Watches the range no longer, and lets those go on who wait in it.
    pub(crate) fn unregister(&self, start: usize, len: usize) -> Result<(), Errno> {
        let mut range = range(start, len);
        // SAFETY:
        // - The struct is the one that the request takes; see the size assertions.
        let request = unsafe { Updater::<UNREGISTER, _>::new(&mut range) };
        // SAFETY:
        // - Accesses trap no longer; content stays.
        unsafe { ioctl(&self.fd, request) }
    }

    /// Lets those try again who wait in the range, whatever is mapped there by now.
    pub(crate) fn wake(&self, start: usize, len: usize) -> Result<(), Errno> {
        let mut range = range(start, len);
        // SAFETY:
        // - The struct is the one that the request takes; see the size assertions.
        let request = unsafe { Updater::<WAKE, _>::new(&mut range) };
        // SAFETY:
        // - Changes neither content nor access.
        unsafe { ioctl(&self.fd, request) }
    }

    /// Protects every page of a range that is watched for that: from when this returns on,
    /// no store gets through unseen.
    pub(crate) fn write_protect(&self, start: usize, len: usize) -> Result<(), Errno> {
        loop {
            let mut protect = abi::Writeprotect {
                range: range(start, len),
                mode: abi::WRITEPROTECT_ON,
            };
            // SAFETY:
            // - The struct is the one that the request takes; see the size assertions.
            let request = unsafe { Updater::<WRITEPROTECT, _>::new(&mut protect) };
            // SAFETY:
            // - Content stays. Stores are stopped or noted, which the caller asks for.
            match unsafe { ioctl(&self.fd, request) } {
                // The mappings are being changed, by a fork for example.
                Err(Errno::AGAIN | Errno::INTR) => {}
                other => return other,
            }
        }
    }

    /// Opens pages that the file holds already; with `AGAIN`, so many bytes of them.
    pub(crate) fn resume(&self, start: usize, len: usize) -> (Result<(), Errno>, usize) {
        let mut step = abi::Continue {
            range: range(start, len),
            mode: abi::CONTINUE_DONTWAKE,
            mapped: 0,
        };
        // SAFETY:
        // - The struct is the one that the request takes; see the size assertions.
        let request = unsafe { Updater::<CONTINUE, _>::new(&mut step) };
        // SAFETY:
        // - Maps pages that the file holds already into a range registered for that.
        let result = unsafe { ioctl(&self.fd, request) };
        (result, usize::try_from(step.mapped).unwrap_or(0))
    }
}

impl AsFd for Userfault {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Userfault> for OwnedFd {
    fn from(userfault: Userfault) -> Self {
        userfault.fd
    }
}

fn range(start: usize, len: usize) -> abi::Range {
    abi::Range {
        start: start as u64,
        len: len as u64,
    }
}
