//! Refers to threads, of this process and of others, and sends signals to them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::event::has_ended;

/// Linux 6.9: the descriptor refers to one thread. The same bit as `O_EXCL`.
const PIDFD_THREAD: u32 = 0x80;

/// The calling thread's id.
///
/// May be called in a signal handler.
pub fn thread() -> u32 {
    rustix::thread::gettid()
        .as_raw_nonzero()
        .get()
        .unsigned_abs()
}

/// Whether [`thread_pointer`] is known on this processor.
pub const HAS_THREAD_POINTER: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));

/// What tells the calling thread from the others that live in this process: the address of its control
/// block, which one instruction reads. It may be another thread's once this one has ended; 0 where
/// it cannot be read so.
///
/// ```
/// use portolan_sys::process::{HAS_THREAD_POINTER, thread_pointer};
/// assert_eq!(thread_pointer(), thread_pointer());
/// if HAS_THREAD_POINTER {
///     let other = std::thread::spawn(thread_pointer).join().unwrap();
///     assert_ne!(thread_pointer(), other);
/// }
/// ```
#[inline(always)]
pub fn thread_pointer() -> usize {
    // Not in terms of a thread-local variable: in a shared library that costs a call.
    #[cfg(target_arch = "x86_64")]
    {
        let block: usize;
        // SAFETY:
        // - Reads the word at which the ABI has the block's own address (System V, thread-local
        //   storage, x86-64: `%fs:0`), and changes nothing.
        unsafe {
            std::arch::asm!(
                "mov {}, qword ptr fs:[0]",
                out(reg) block,
                options(nostack, preserves_flags, readonly)
            );
        }
        block
    }
    #[cfg(target_arch = "aarch64")]
    {
        let block: usize;
        // SAFETY:
        // - Reads the register in which the ABI has the block's address, and changes nothing.
        unsafe {
            std::arch::asm!(
                "mrs {}, tpidr_el0",
                out(reg) block,
                options(nostack, preserves_flags, nomem)
            );
        }
        block
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        0
    }
}

/// Whether the process `pid` has a thread `tid` now.
pub fn has_thread(pid: u32, tid: u32) -> bool {
    std::fs::metadata(format!("/proc/{pid}/task/{tid}")).is_ok()
}

/// A reference to one thread, of any process, which never comes to mean another.
///
/// # Examples
///
/// ```
/// use portolan_sys::process::{ThreadFd, thread};
/// // Kernels before 6.9 have only references to processes.
/// if let Ok(own) = ThreadFd::open(thread()) {
///     assert!(!own.is_gone());
/// }
/// ```
#[derive(Debug)]
pub struct ThreadFd {
    fd: OwnedFd,
}

/// The kernel's `siginfo_t` of a signal that carries a value.
#[repr(C)]
struct Info {
    signal: i32,
    errno: i32,
    code: i32,
    pad: i32,
    pid: u32,
    uid: u32,
    value: usize,
    rest: [u64; 12],
}

const _: () = assert!(size_of::<Info>() == size_of::<libc::siginfo_t>());

impl ThreadFd {
    /// Refers to the thread that has the id `tid` now.
    ///
    /// # Errors
    ///
    /// `ESRCH`: there is none. `EINVAL`: the kernel is older than 6.9.
    pub fn open(tid: u32) -> io::Result<Self> {
        let tid = i32::try_from(tid)
            .ok()
            .and_then(Pid::from_raw)
            .ok_or(Errno::SRCH)?;
        let flags = PidfdFlags::from_bits_retain(PIDFD_THREAD);
        Ok(Self {
            fd: pidfd_open(tid, flags)?,
        })
    }

    /// Whether the thread has ended.
    pub fn is_gone(&self) -> bool {
        has_ended(&self.fd)
    }

    /// Whether we may send it signals.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn check(&self) -> io::Result<()> {
        self.give(0, None)
    }

    /// Sends it a signal that carries `value`. May be called in a signal handler.
    ///
    /// # Errors
    ///
    /// `ESRCH`: it has ended. `EPERM`: it belongs to another user. `EAGAIN`: its user has
    /// too many signals pending.
    pub fn send(&self, signal: i32, value: usize) -> io::Result<()> {
        let info = Info {
            signal,
            errno: 0,
            code: libc::SI_QUEUE,
            pad: 0,
            pid: std::process::id(),
            uid: rustix::process::getuid().as_raw(),
            value,
            rest: [0; 12],
        };
        self.give(signal, Some(&info))
    }

    fn give(&self, signal: i32, info: Option<&Info>) -> io::Result<()> {
        let info: *const Info = info.map_or(std::ptr::null(), std::ptr::from_ref);
        let fd = self.fd.as_raw_fd();
        // SAFETY:
        // - `info` is null, or as large as the kernel's own, and only read.
        let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, signal, info, 0) };
        if sent < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }
}

impl AsFd for ThreadFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
