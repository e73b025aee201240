//! One descriptor that is readable while any of several sockets is ready.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;
use rustix::io::Errno;

use crate::fork::{self, CloseOnFork};
use crate::process::EventFd;

/// What is waited for at a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// Bytes, or a client, or the end.
    pub receive: bool,
    /// Room.
    pub send: bool,
}

/// A descriptor for the readiness of several sockets, by level: readable for as long as one of them
/// is ready, or while it was said to be ([`set_ready`](Self::set_ready)).
///
/// # Examples
///
/// ```
/// use portolan_sys::process::{EventFd, poll};
/// use portolan_sys::stream::{Interest, Readiness};
/// use std::os::fd::AsFd;
/// use std::time::Instant;
/// let mut ready = Readiness::new()?;
/// let readable = |ready: &Readiness| poll(&[ready.as_fd()], Some(Instant::now())).map(|p| p[0].readable);
/// let event = EventFd::new()?;
/// ready.watch(&event, Interest { receive: true, send: false })?;
/// assert!(!readable(&ready)?);
/// event.notify()?;
/// assert!(readable(&ready)? && readable(&ready)?);
/// event.drain()?;
/// ready.set_ready(true)?;
/// assert!(readable(&ready)?);
/// ready.set_ready(false)?;
/// assert!(!readable(&ready)?);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Readiness {
    epoll: OwnedFd,
    /// Readable while the owner says that there is something to do.
    said: EventFd,
    is_said: bool,
    /// A child would take out what we put in.
    _let_go: CloseOnFork,
}

impl Readiness {
    /// One that watches nothing.
    ///
    /// # Errors
    ///
    /// `EMFILE`.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let _let_go = fork::close_in_child(epoll.as_raw_fd());
        let said = EventFd::new()?;
        let data = epoll::EventData::new_u64(0);
        epoll::add(&epoll, &said, data, epoll::EventFlags::IN)?;
        Ok(Self {
            epoll,
            said,
            is_said: false,
            _let_go,
        })
    }

    /// Waits at `fd` for this from now on, and for nothing else there. A socket that failed is
    /// ready until it is watched for nothing.
    ///
    /// # Errors
    ///
    /// `ENOSPC`, `ENOMEM`.
    pub fn watch(&self, fd: impl AsFd, interest: Interest) -> io::Result<()> {
        let fd = fd.as_fd();
        if interest == Interest::default() {
            return match epoll::delete(&self.epoll, fd) {
                Ok(()) | Err(Errno::NOENT) => Ok(()),
                Err(error) => Err(error.into()),
            };
        }
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, interest.receive);
        flags.set(epoll::EventFlags::OUT, interest.send);
        let data = epoll::EventData::new_u64(0);
        match epoll::modify(&self.epoll, fd, data, flags) {
            Err(Errno::NOENT) => Ok(epoll::add(&self.epoll, fd, data, flags)?),
            other => Ok(other?),
        }
    }

    /// Whether the descriptor is readable whatever the sockets are.
    ///
    /// # Errors
    ///
    /// `EBADF`: in a forked child.
    pub fn set_ready(&mut self, ready: bool) -> io::Result<()> {
        if ready && !self.is_said {
            self.said.notify()?;
        } else if !ready && self.is_said {
            self.said.drain()?;
        }
        self.is_said = ready;
        Ok(())
    }
}

impl AsFd for Readiness {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
