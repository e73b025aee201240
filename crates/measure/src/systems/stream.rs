//! Sends whole messages over descriptors that carry bytes, asleep or busy.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::memory::Spin;
use crate::case::{Case, Mode, Payload};
use crate::error::{MeasureError, Result};
use crate::payload;

/// What a pipe's and a socket's end do alike. Polling means non-blocking calls in a loop.
#[derive(Debug)]
pub(crate) struct Transfer {
    payload: Vec<u8>,
    touched: bool,
    count: u64,
    spin: Spin,
}

impl Transfer {
    pub(crate) fn new(case: &Case) -> Self {
        let bytes = usize::try_from(case.bytes).expect("64-bit only");
        Self {
            payload: vec![1; bytes],
            touched: case.payload == Payload::Touched,
            count: 0,
            spin: Spin::new(case),
        }
    }

    /// Sends one message through `write`, which may take a part of it.
    #[inline(always)]
    pub(crate) fn send(
        &mut self,
        mut write: impl FnMut(&[u8]) -> std::result::Result<usize, Errno>,
    ) -> Result<()> {
        self.count += 1;
        if self.touched {
            payload::write(&mut self.payload, self.count);
        }
        let mut done = 0;
        loop {
            done += attempt(self.spin, || write(&self.payload[done..]))
                .map_err(MeasureError::system("sending a benchmark's message"))?;
            if done == self.payload.len() {
                return Ok(());
            }
        }
    }

    /// Receives one message through `read`, which may return a part of it.
    #[inline(always)]
    pub(crate) fn receive(
        &mut self,
        mut read: impl FnMut(&mut [u8]) -> std::result::Result<usize, Errno>,
    ) -> Result<()> {
        let doing = "receiving a benchmark's message";
        let mut done = 0;
        loop {
            let got = attempt(self.spin, || read(&mut self.payload[done..]))
                .map_err(MeasureError::system(doing))?;
            done += got;
            if done == self.payload.len() {
                break;
            }
            if got == 0 {
                return Err(MeasureError::System {
                    doing,
                    source: std::io::ErrorKind::UnexpectedEof.into(),
                });
            }
        }
        if self.touched {
            payload::read(&self.payload);
        }
        Ok(())
    }
}

/// Calls until it neither would block nor was interrupted.
#[inline(always)]
fn attempt<T>(
    spin: Spin,
    mut call: impl FnMut() -> std::result::Result<T, Errno>,
) -> std::result::Result<T, Errno> {
    let mut outcome = Err(Errno::AGAIN);
    spin.until(|| {
        outcome = call();
        !matches!(outcome, Err(Errno::AGAIN | Errno::INTR))
    });
    outcome
}

/// Makes calls on `descriptor` return instead of sleep, if the case polls.
pub(crate) fn set_mode(case: &Case, descriptor: &OwnedFd) -> Result<()> {
    rustix::io::ioctl_fionbio(descriptor, case.mode == Mode::Poll).map_err(MeasureError::system(
        "choosing between blocking and polling",
    ))
}

/// The `N` descriptors that a peer was given.
pub(crate) fn exactly<const N: usize>(descriptors: Vec<OwnedFd>) -> Result<[OwnedFd; N]> {
    descriptors
        .try_into()
        .map_err(|_| MeasureError::NoCoordinator)
}
