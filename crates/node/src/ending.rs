//! SIGHUP, SIGINT and SIGTERM, which ask a process to end.

use std::os::fd::{AsFd as _, BorrowedFd};

use portolan_sys::watch::UnixSignal;

use crate::{NodeError, Result};

/// SIGHUP (its terminal has gone), SIGINT and SIGTERM.
const SIGNALS: [i32; 3] = [1, 2, 15];

/// Has been asked to end, or will be.
#[derive(Debug)]
pub(crate) struct Ending([UnixSignal; 3]);

impl Ending {
    /// Catches them from now on.
    pub(crate) fn catch() -> Result<Self> {
        let [first, second, third] = SIGNALS.map(UnixSignal::catch);
        let failed = || NodeError::system("cannot catch SIGHUP, SIGINT and SIGTERM");
        Ok(Self([
            first.map_err(failed())?,
            second.map_err(failed())?,
            third.map_err(failed())?,
        ]))
    }

    /// What to wait for.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(|signal| signal.as_fd())
    }

    /// Whether one has come since this was asked last.
    pub(crate) fn came(&self) -> Result<bool> {
        let mut any = false;
        for signal in &self.0 {
            let came = signal.came();
            any |= came.map_err(NodeError::system("cannot read signals"))? > 0;
        }
        Ok(any)
    }
}
