//! The control socket of a connection wakes the side that sleeps, passes descriptors, and tells
//! that the other process has died.

use super::carrier::Context;
use super::error::{Over, ViolationKind};
use crate::space::Descriptor;
use portolan_abi::bridge::{MAX_SEALED, MAX_SEALED_AHEAD, SEALED, WAKE};
use portolan_sys::process::PidFd;
use portolan_sys::socket::{self, SocketError};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Instant;

/// Packets that are taken before the side that waits looks at its byte ring.
const AT_ONCE: usize = 64;

/// The socket, and the process at its other end, if that is known.
pub(super) struct ControlSocket {
    socket: Descriptor,
    pidfd: Option<Descriptor<PidFd>>,
    /// The other side is gone. What it wrote before is still to be read.
    gone: bool,
    takes: bool,
    /// Descriptors whose frame headers were not read yet.
    came: VecDeque<Vec<OwnedFd>>,
}

impl ControlSocket {
    /// A control socket that takes descriptors, or none.
    pub(super) fn new(socket: Descriptor, pidfd: Option<Descriptor<PidFd>>, takes: bool) -> Self {
        if !takes {
            // Where the kernel cannot, descriptors are found out when they come.
            let _ = socket::refuse_descriptors(&socket);
        }
        Self {
            socket,
            pidfd,
            gone: false,
            takes,
            came: VecDeque::new(),
        }
    }

    /// From now on it takes descriptors.
    pub(super) fn take_descriptors(&mut self) -> Result<(), SocketError> {
        socket::accept_descriptors(&self.socket)?;
        self.takes = true;
        Ok(())
    }

    /// The socket, for the records before the first message.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The descriptors to poll: readable when there is something to [`hear`](Self::hear).
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let pidfd = self.pidfd.as_ref().map(|pidfd| pidfd.as_fd());
        std::iter::once(self.socket.as_fd()).chain(pidfd)
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone
    }

    /// Wakes the other side. A full socket needs no further packet: those in it wake as well.
    pub(super) fn wake_peer(&mut self) {
        let sent = socket::send_by(&self.socket, &[WAKE], &[], Some(Instant::now()));
        if matches!(sent, Err(SocketError::Closed)) {
            self.gone = true;
        }
    }

    /// Whether as many packets of descriptors wait for their frame headers as may.
    pub(super) fn is_full(&self) -> bool {
        self.came.len() >= MAX_SEALED_AHEAD
    }

    /// Sends descriptors, if there is room; whether there was.
    pub(super) fn show(&mut self, fds: &[BorrowedFd<'_>]) -> Result<bool, Over> {
        match socket::send_by(&self.socket, &[SEALED], fds, Some(Instant::now())) {
            Ok(()) => Ok(true),
            Err(SocketError::TimedOut) if !self.is_dead() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the process at the other end is known to be dead.
    fn is_dead(&self) -> bool {
        self.pidfd.as_ref().is_some_and(|pidfd| pidfd.is_dead())
    }

    /// The descriptors that came first and were not taken yet: so many.
    pub(super) fn shown(&mut self, count: usize) -> Result<Vec<OwnedFd>, Over> {
        if self.came.is_empty() {
            self.hear()?;
        }
        let fds = self.came.pop_front().filter(|fds| fds.len() == count);
        Ok(fds.ok_or(ViolationKind::Descriptors { named: count })?)
    }

    /// Takes the packets that have come; whether that was all.
    pub(super) fn hear(&mut self) -> Result<bool, Over> {
        let all = self.take()?;
        // After the socket: what it sent before it died has been seen.
        self.gone |= self.is_dead();
        Ok(all)
    }

    /// Takes the packets that have come, if the task was told of any; asks the kernel nothing that
    /// the task was told already.
    pub(super) fn hear_news(&mut self, context: &Context) -> Result<(), Over> {
        // Before the socket is looked at: what it sent before it died is seen.
        let dead = context.is_dead() && !self.gone;
        if (context.take_news() || dead) && !self.take()? {
            context.keep_news();
            if !self.is_full() {
                context.again();
            }
        }
        self.gone |= dead;
        Ok(())
    }

    fn take(&mut self) -> Result<bool, Over> {
        let most = if self.takes { MAX_SEALED } else { 0 };
        let mut ended = false;
        for _ in 0..AT_ONCE {
            if self.is_full() {
                return Ok(false);
            }
            let mut packet = [0; 2];
            match socket::try_receive(&self.socket, &mut packet, most) {
                Ok(None) => return Ok(true),
                Ok(Some(received)) => {
                    let (packet, fds) = (&packet[..received.len], received.fds);
                    match (packet, fds.is_empty()) {
                        _ if received.truncated => return Err(ViolationKind::Packet.into()),
                        ([WAKE], true) => {}
                        ([SEALED], false) => self.came.push_back(fds),
                        _ => return Err(ViolationKind::Packet.into()),
                    }
                }
                // If not all of ours was read over there, the end is told once before what had
                // been sent until then, and again behind it.
                Err(SocketError::Closed) if !ended => (ended, self.gone) = (true, true),
                Err(SocketError::Closed) => return Ok(true),
                // Ours: no descriptor is free, say. The other side may be there all the same.
                Err(error) => return Err(error.into()),
            }
        }
        Ok(false)
    }
}

/// A control socket that a task is told of, until this is dropped.
pub(super) struct Watched {
    pub(super) control: ControlSocket,
    context: Rc<Context>,
}

impl Watched {
    pub(super) fn new(control: ControlSocket, context: &Rc<Context>) -> io::Result<Self> {
        // Dropped, and not watched any more, if only one of the two can be watched.
        let watched = Self {
            control,
            context: Rc::clone(context),
        };
        let control = &watched.control;
        context.watch(control.socket(), control.pidfd.as_ref())?;
        Ok(watched)
    }

    /// Takes the packets that the task was told of.
    pub(super) fn hear_news(&mut self) -> Result<(), Over> {
        self.control.hear_news(&self.context)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // A copy of this process may have them open, and then they would be told of for ever.
        for fd in self.control.descriptors() {
            self.context.unwatch(fd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_sys::memory;

    /// A process that closes a socket with unread bytes resets the connection, and the next
    /// look at its other end finds that, before what had been sent.
    #[test]
    fn what_was_shown_before_the_end_comes_whatever_that_side_had_not_heard() {
        let (ours, theirs) = socket::pair().unwrap();
        let [ours, theirs] = [ours, theirs].map(Descriptor::new);
        let mut control = ControlSocket::new(ours, None, true);
        let mut other = ControlSocket::new(theirs, None, false);
        control.wake_peer();
        let fd = memory::create("shown", 4096).unwrap();
        assert!(other.show(&[fd.as_fd()]).unwrap());
        drop(other);
        assert_eq!(control.shown(1).unwrap().len(), 1);
        assert!(control.is_gone());
    }
}
