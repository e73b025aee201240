//! A process descriptor refers to a process, also if another process reuses its id.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::WrongKind;
use super::event::{check_kind, has_ended};
use crate::socket;

/// Linux 6.5: the pidfd of a socket's peer.
const SO_PEERPIDFD: i32 = 77;

/// A reference to one process, which never comes to mean another.
///
/// Readable, for poll and epoll, once the process is dead.
///
/// # Examples
///
/// ```
/// use portolan_sys::process::PidFd;
/// let own = PidFd::open(std::process::id())?;
/// assert!(!own.is_dead());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct PidFd {
    fd: OwnedFd,
}

impl PidFd {
    /// Refers to the process that has the id `pid` now.
    ///
    /// # Errors
    ///
    /// `ESRCH`: there is none.
    pub fn open(pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid)
            .ok()
            .and_then(Pid::from_raw)
            .ok_or(Errno::SRCH)?;
        Ok(Self {
            fd: pidfd_open(pid, PidfdFlags::empty())?,
        })
    }

    /// Takes a pidfd that another process sent, if it is one. Whose it is, the sender says.
    ///
    /// # Errors
    ///
    /// [`WrongKind`]: some other file, which is closed.
    pub fn from_descriptor(fd: OwnedFd) -> Result<Self, WrongKind> {
        check_kind(&fd, &["anon_inode:[pidfd]", "pidfd"])?;
        Ok(Self { fd })
    }

    /// Refers to the process that connected, or that listened, at the other end.
    ///
    /// Kernels before 6.5 cannot say, and the peer is looked up by its process id; if it
    /// has died meanwhile that may be another process. Compare
    /// [`start_time`](super::start_time) where that matters.
    ///
    /// # Errors
    ///
    /// `ESRCH` and `ENODATA`: the peer is dead and gone, or outside our pid namespace.
    pub fn of_peer(socket: impl AsFd) -> io::Result<Self> {
        let raw = match socket::option(socket.as_fd(), SO_PEERPIDFD) {
            Ok([raw]) => raw.cast_signed(),
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
                return Self::open(socket::credentials(socket.as_fd())?.pid);
            }
            Err(error) => return Err(error),
        };
        // SAFETY:
        // - The kernel has just made the descriptor for us, close-on-exec.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        Ok(Self { fd })
    }

    /// The process's id as this process sees it; `None` if it is dead and gone, or in a process
    /// namespace that cannot be seen from here.
    ///
    /// ```
    /// use portolan_sys::process::PidFd;
    /// let own = PidFd::open(std::process::id())?;
    /// assert_eq!(own.id(), Some(std::process::id()));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn id(&self) -> Option<u32> {
        let info = format!("/proc/self/fdinfo/{}", self.fd.as_raw_fd());
        let info = std::fs::read_to_string(info).ok()?;
        let line = info.lines().find_map(|line| line.strip_prefix("Pid:"))?;
        // -1: dead; 0: not to be seen from here.
        line.trim().parse().ok().filter(|id| *id > 0)
    }

    /// Whether the process's first thread has begun to end: on the way to its death a process lets
    /// go of memory and descriptors before it is [dead](Self::is_dead). `None` if that cannot be
    /// told, or it is dead and gone. Before [`is_dead`](Self::is_dead) says that it still was there
    /// the answer may be another process's.
    ///
    /// ```
    /// use portolan_sys::process::PidFd;
    /// let own = PidFd::open(std::process::id())?;
    /// assert_eq!(own.is_ending(), Some(false));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn is_ending(&self) -> Option<bool> {
        super::proc::is_ending(self.id()?)
    }

    /// Whether the process has ended. A stopped process is alive, a zombie is dead.
    pub fn is_dead(&self) -> bool {
        has_ended(&self.fd)
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<PidFd> for OwnedFd {
    fn from(pidfd: PidFd) -> Self {
        pidfd.fd
    }
}

impl From<OwnedFd> for PidFd {
    /// Takes a pidfd that another process sent. Any other descriptor is never dead, or
    /// dead when readable.
    fn from(fd: OwnedFd) -> Self {
        Self { fd }
    }
}

/// Sends `signal` to the process.
///
/// # Errors
///
/// `ESRCH`: it is dead. `EPERM`: it belongs to another user.
pub fn signal(process: &PidFd, signal: Signal) -> io::Result<()> {
    Ok(pidfd_send_signal(&process.fd, signal)?)
}
