//! A Unix socket: a byte stream, or whole packets.

use std::os::fd::OwnedFd;

use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};

use super::Endpoint;
use super::stream::{Transfer, exactly, set_mode};
use crate::case::{Case, System};
use crate::error::{MeasureError, Result};

/// Room for the largest packet we send, and fewer wakes for a large message. The
/// kernel caps it at `/proc/sys/net/core/wmem_max`.
const SEND_BUFFER: usize = 1 << 20;
/// From this message size on a larger buffer is asked for.
const LARGE_MESSAGE: u64 = 64 << 10;

#[derive(Debug)]
pub(crate) struct Unix {
    socket: OwnedFd,
    transfer: Transfer,
}

impl Endpoint for Unix {
    fn create(case: &Case) -> Result<(Self, Vec<OwnedFd>)> {
        let doing = "making a pair of Unix sockets";
        let kind = match case.system {
            System::UnixSeqpacket => SocketType::SEQPACKET,
            _ => SocketType::STREAM,
        };
        let (socket, theirs) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)
            .map_err(MeasureError::system(doing))?;
        for end in [&socket, &theirs] {
            set_mode(case, end)?;
            if case.bytes >= LARGE_MESSAGE {
                set_socket_send_buffer_size(end, SEND_BUFFER)
                    .map_err(MeasureError::system(doing))?;
            }
        }
        Ok((
            Self {
                socket,
                transfer: Transfer::new(case),
            },
            vec![theirs],
        ))
    }

    fn attach(case: &Case, _seat: u32, descriptors: Vec<OwnedFd>) -> Result<Self> {
        let [socket] = exactly(descriptors)?;
        Ok(Self {
            socket,
            transfer: Transfer::new(case),
        })
    }

    #[inline(always)]
    fn send(&mut self) -> Result<()> {
        self.transfer
            .send(|bytes| rustix::net::send(&self.socket, bytes, SendFlags::NOSIGNAL))
    }

    #[inline(always)]
    fn receive(&mut self) -> Result<()> {
        self.transfer.receive(|bytes| {
            rustix::net::recv(&self.socket, bytes, RecvFlags::empty()).map(|(got, _)| got)
        })
    }
}
