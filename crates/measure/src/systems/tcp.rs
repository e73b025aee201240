//! A TCP connection over the loopback, each message sent at once.

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;

use rustix::net::{RecvFlags, SendFlags};

use super::Endpoint;
use super::stream::{Transfer, exactly, set_mode};
use crate::case::Case;
use crate::error::{MeasureError, Result};

#[derive(Debug)]
pub(crate) struct Tcp {
    socket: OwnedFd,
    transfer: Transfer,
}

impl Endpoint for Tcp {
    fn create(case: &Case) -> Result<(Self, Vec<OwnedFd>)> {
        let (ours, theirs) = pair().map_err(MeasureError::system(
            "making a connection over the loopback",
        ))?;
        for end in [&ours, &theirs] {
            set_mode(case, end)?;
        }
        let end = Self {
            socket: ours,
            transfer: Transfer::new(case),
        };
        Ok((end, vec![theirs]))
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

/// Two connected sockets.
fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
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
