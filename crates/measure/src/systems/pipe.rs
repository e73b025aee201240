//! Measures a pipe each way.

use std::os::fd::OwnedFd;

use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use super::Endpoint;
use super::stream::{Transfer, exactly, set_mode};
use crate::case::Case;
use crate::error::{MeasureError, Result};

/// What an unprivileged process may set (`/proc/sys/fs/pipe-max-size`); a larger
/// pipe needs fewer wakes for a large message.
const LARGE_PIPE: usize = 1 << 20;
/// From this message size on a larger pipe pays.
const LARGE_MESSAGE: u64 = 64 << 10;

#[derive(Debug)]
pub(crate) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    transfer: Transfer,
}

impl Endpoint for Pipe {
    fn create(case: &Case) -> Result<(Self, Vec<OwnedFd>)> {
        let (their_read, write) = pipe(case)?;
        let (read, their_write) = pipe(case)?;
        Ok((
            Self {
                read,
                write,
                transfer: Transfer::new(case),
            },
            vec![their_read, their_write],
        ))
    }

    fn attach(case: &Case, _seat: u32, descriptors: Vec<OwnedFd>) -> Result<Self> {
        let [read, write] = exactly(descriptors)?;
        Ok(Self {
            read,
            write,
            transfer: Transfer::new(case),
        })
    }

    #[inline(always)]
    fn send(&mut self) -> Result<()> {
        self.transfer
            .send(|bytes| rustix::io::write(&self.write, bytes))
    }

    #[inline(always)]
    fn receive(&mut self) -> Result<()> {
        self.transfer
            .receive(|bytes| rustix::io::read(&self.read, bytes))
    }
}

fn pipe(case: &Case) -> Result<(OwnedFd, OwnedFd)> {
    let (read, write) =
        pipe_with(PipeFlags::CLOEXEC).map_err(MeasureError::system("making a pipe"))?;
    if case.bytes >= LARGE_MESSAGE {
        // A user's quota may refuse; the default size works as well.
        let _ = fcntl_setpipe_size(&write, LARGE_PIPE);
    }
    set_mode(case, &read)?;
    set_mode(case, &write)?;
    Ok((read, write))
}
