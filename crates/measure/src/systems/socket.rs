//! Measures a Unix socket (a byte stream, or whole packets), or a TCP connection over the loopback.

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
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
pub(crate) struct Socket {
    socket: OwnedFd,
    transfer: Transfer,
}

impl Endpoint for Socket {
    fn create(case: &Case) -> Result<(Self, Vec<OwnedFd>)> {
        let made = match case.system {
            System::Tcp => loopback(),
            System::UnixSeqpacket => unix(SocketType::SEQPACKET, case.bytes),
            _ => unix(SocketType::STREAM, case.bytes),
        };
        let (socket, theirs) = made.map_err(MeasureError::system("making a pair of sockets"))?;
        for end in [&socket, &theirs] {
            set_mode(case, end)?;
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

/// Two connected Unix sockets, for messages of so many bytes.
fn unix(kind: SocketType, bytes: u64) -> io::Result<(OwnedFd, OwnedFd)> {
    let pair = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    if bytes >= LARGE_MESSAGE {
        for end in [&pair.0, &pair.1] {
            set_socket_send_buffer_size(end, SEND_BUFFER)?;
        }
    }
    Ok(pair)
}

/// Two sockets of one TCP connection, each message sent at once.
fn loopback() -> io::Result<(OwnedFd, OwnedFd)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let ours = TcpStream::connect(listener.local_addr()?)?;
    let wanted = ours.local_addr()?;
    // Any process of this machine may connect in between; we want ourselves.
    let theirs = loop {
        let (stream, from) = listener.accept()?;
        if from == wanted {
            break stream;
        }
    };
    for end in [&ours, &theirs] {
        // A message is not to wait for the one before to be acknowledged.
        end.set_nodelay(true)?;
    }
    Ok((ours.into(), theirs.into()))
}
