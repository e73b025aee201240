//! Waits on descriptors, and makes a descriptor to wait on.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use rustix::io::{Errno, retry_on_intr};

use crate::time;

/// What is the matter with a descriptor that was polled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// There is something to read, or to accept, or the process of a pidfd is dead.
    pub readable: bool,
    /// The other end is gone or the descriptor failed. There may be data to read first.
    pub hangup: bool,
    /// The descriptor cannot be polled: closed, or let go of by a fork.
    pub invalid: bool,
}

impl Ready {
    /// Whether anything is the matter.
    pub fn any(self) -> bool {
        self.readable || self.hangup || self.invalid
    }
}

/// Waits until a descriptor is readable, hung up or invalid, or until `deadline`.
///
/// The answers come in the order of `fds`; after the deadline none is [`any`](Ready::any).
///
/// # Errors
///
/// `EINVAL`: more descriptors than may be open. `ENOMEM`.
pub fn poll(fds: &[BorrowedFd<'_>], deadline: Option<Instant>) -> io::Result<Vec<Ready>> {
    let mut polled: Vec<_> = fds
        .iter()
        .map(|&fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    wait(&mut polled, deadline)?;
    Ok(polled.iter().map(|fd| ready(fd.revents())).collect())
}

/// Polls until `deadline`, over signals; says whether a descriptor is ready.
pub(crate) fn wait(fds: &mut [PollFd<'_>], deadline: Option<Instant>) -> io::Result<bool> {
    loop {
        match rustix::event::poll(fds, time::relative(deadline).as_ref()) {
            Err(Errno::INTR) => {}
            other => return Ok(other? > 0),
        }
    }
}

fn ready(events: PollFlags) -> Ready {
    Ready {
        readable: events.contains(PollFlags::IN),
        hangup: events.intersects(PollFlags::HUP | PollFlags::ERR),
        invalid: events.contains(PollFlags::NVAL),
    }
}

/// A counter in the kernel whose descriptor is readable while it is not zero.
///
/// # Examples
///
/// ```
/// use portolan_sys::process::EventFd;
/// let event = EventFd::new()?;
/// event.notify()?;
/// event.notify()?;
/// assert_eq!(event.drain()?, 2);
/// assert_eq!(event.drain()?, 0);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct EventFd {
    fd: OwnedFd,
}

impl EventFd {
    /// A counter at zero, never blocking, close-on-exec.
    ///
    /// # Errors
    ///
    /// The kernel's, above all `EMFILE`.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Adds one: the descriptor becomes readable in every process that holds it.
    ///
    /// # Errors
    ///
    /// `EBADF` if the descriptor is not an eventfd.
    pub fn notify(&self) -> io::Result<()> {
        match rustix::io::retry_on_intr(|| rustix::io::write(&self.fd, &1_u64.to_ne_bytes())) {
            // A full counter is readable already.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(other) => Err(other.into()),
        }
    }

    /// Sets the counter to zero; returns what it was.
    ///
    /// # Errors
    ///
    /// `EBADF` if the descriptor is not an eventfd.
    pub fn drain(&self) -> io::Result<u64> {
        take_count(&self.fd)
    }
}

/// The sender's: a descriptor is open on something else than it said.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[error("a descriptor that was sent is {found:?}, not what it was said to be; refuse the sender")]
pub struct WrongKind {
    /// What it is open on; empty if that cannot be told.
    pub found: String,
}

/// Checks what a descriptor is open on by its name, which asks no file system anything: one
/// of the sender's own could take for ever to answer. No path can be named like this.
pub(super) fn check_kind(fd: impl AsFd, wanted: &[&str]) -> Result<(), WrongKind> {
    let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    let found = std::fs::read_link(path).unwrap_or_default();
    let found = found.to_string_lossy();
    if wanted.iter().any(|wanted| *wanted == found) {
        Ok(())
    } else {
        let found = found.into_owned();
        Err(WrongKind { found })
    }
}

/// Reads and resets the count of an eventfd or a timer, which does not block.
pub(crate) fn take_count(fd: impl AsFd) -> io::Result<u64> {
    let mut count = [0; 8];
    match rustix::io::retry_on_intr(|| rustix::io::read(&fd, &mut count)) {
        Err(Errno::AGAIN) => Ok(0),
        other => other
            .map(|_| u64::from_ne_bytes(count))
            .map_err(io::Error::from),
    }
}

/// Whether a pidfd, of a process or of a thread, says that it has ended.
pub(super) fn has_ended(pidfd: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let polled = retry_on_intr(|| rustix::event::poll(&mut fds, Some(&now)));
    polled.is_ok() && fds[0].revents().contains(PollFlags::IN)
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<EventFd> for OwnedFd {
    fn from(event: EventFd) -> Self {
        event.fd
    }
}

impl From<OwnedFd> for EventFd {
    /// Takes an eventfd that another process sent, which must be non-blocking.
    fn from(fd: OwnedFd) -> Self {
        Self { fd }
    }
}
