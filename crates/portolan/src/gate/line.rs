//! A pair's socket: rings for whoever sleeps, and the other side's death.

use super::error::{BreachKind, Over};
use crate::domain::Descriptor;
use portolan_abi::gate::RING;
use portolan_sys::process::PidFd;
use portolan_sys::socket::{self, SocketError};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

/// Packets that are looked at before whoever waits looks at the lane.
const AT_ONCE: usize = 64;

/// The socket, and the process at its other end, if it can be told.
pub(super) struct Line {
    socket: Descriptor,
    pidfd: Option<Descriptor<PidFd>>,
    /// The other side is gone. What it wrote before is still to be read.
    gone: bool,
}

impl Line {
    pub(super) fn new(socket: Descriptor, pidfd: Option<Descriptor<PidFd>>) -> Self {
        // Where the kernel cannot, descriptors are found out when they come.
        let _ = socket::refuse_descriptors(&socket);
        Self {
            socket,
            pidfd,
            gone: false,
        }
    }

    /// What to poll: readable when there is something to [`hear`](Self::hear).
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let pidfd = self.pidfd.as_ref().map(|pidfd| pidfd.as_fd());
        std::iter::once(self.socket.as_fd()).chain(pidfd)
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone
    }

    /// Rings for the other side. Where there is no room for it, enough rings wait there.
    pub(super) fn ring(&mut self) {
        let rung = socket::send_by(&self.socket, &[RING], &[], Some(Instant::now()));
        if matches!(rung, Err(SocketError::Closed)) {
            self.gone = true;
        }
    }

    /// Takes what has come.
    pub(super) fn hear(&mut self) -> Result<(), Over> {
        for _ in 0..AT_ONCE {
            let mut packet = [0; 2];
            match socket::try_receive(&self.socket, &mut packet, 0) {
                Ok(None) => break,
                Ok(Some(received)) => {
                    if received.truncated || packet[..received.len] != [RING] {
                        return Err(BreachKind::Packet.into());
                    }
                }
                Err(_) => {
                    self.gone = true;
                    break;
                }
            }
        }
        // After the socket: what it sent before it died has been seen.
        self.gone |= self.pidfd.as_ref().is_some_and(|pidfd| pidfd.is_dead());
        Ok(())
    }
}
