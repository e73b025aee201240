//! The control socket of a connection wakes the side that sleeps, passes descriptors, and tells
//! that the other process has died.

use super::error::{Over, ViolationKind};
use crate::space::Descriptor;
use portolan_abi::bridge::{MAX_SEALED, MAX_SEALED_AHEAD, SEALED, WAKE};
use portolan_sys::process::{PidFd, Ready};
use portolan_sys::socket::{self, SocketError};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Packets that are taken before the side that waits looks at its byte ring.
const AT_ONCE: usize = 64;
/// Between two looks whether the other side is dead, while there is no room in the socket.
const FULL: Duration = Duration::from_millis(100);

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

    /// Sends descriptors, waiting for room.
    pub(super) fn show(&mut self, fds: &[BorrowedFd<'_>]) -> Result<(), Over> {
        loop {
            let soon = Some(Instant::now() + FULL);
            match socket::send_by(&self.socket, &[SEALED], fds, soon) {
                Ok(()) => return Ok(()),
                Err(SocketError::TimedOut) if !self.is_dead() => {}
                Err(error) => return Err(error.into()),
            }
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

    /// Takes the packets that have come.
    pub(super) fn hear(&mut self) -> Result<(), Over> {
        self.take(AT_ONCE)?;
        // After the socket: what it sent before it died has been seen.
        self.gone |= self.is_dead();
        Ok(())
    }

    /// Takes the next packet, if polling [`descriptors`](Self::descriptors) has found any, and
    /// asks the kernel nothing that the answer says already. Most often that is the one ring
    /// for this sleep; what else is there ends the next one at once.
    pub(super) fn hear_ready(&mut self, ready: &[Ready]) -> Result<(), Over> {
        let dead = ready.iter().skip(1).any(|pidfd| pidfd.any());
        if dead {
            self.take(AT_ONCE)?;
        } else if ready.first().is_some_and(|socket| socket.any()) {
            self.take(1)?;
        }
        self.gone |= dead;
        Ok(())
    }

    fn take(&mut self, packets: usize) -> Result<(), Over> {
        let most = if self.takes { MAX_SEALED } else { 0 };
        let mut ended = false;
        for _ in 0..packets {
            if self.is_full() {
                break;
            }
            let mut packet = [0; 2];
            match socket::try_receive(&self.socket, &mut packet, most) {
                Ok(None) => break,
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
                Err(SocketError::Closed) => break,
                // Ours: no descriptor is free, say. The other side may be there all the same.
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
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
        other.show(&[fd.as_fd()]).unwrap();
        drop(other);
        assert_eq!(control.shown(1).unwrap().len(), 1);
        assert!(control.is_gone());
    }
}
