//! Runs the operations of a counted process, and reports to the process that counts.

use portolan::{Domain, Protection};
use portolan_sys::process;
use serde::{Deserialize, Serialize};

use crate::child::Control;
use crate::cpus::Cpus;
use crate::error::{MeasureError, Result};
use crate::stepped::part;

/// Rounds before the first that counts: memory is there, caches of the library are full, rings
/// have gone round.
const WARM_UP: usize = if cfg!(debug_assertions) { 500 } else { 3000 };
/// Rounds of which the instructions are counted, and as many of which the system calls are.
/// In a debug build, whose counts nobody wants, just as many as a test needs.
pub(super) const COUNTED: usize = if cfg!(debug_assertions) { 4 } else { 12 };
/// Memory of a domain.
const LIMIT: u64 = 128 << 20;

/// Counted process to coordinator: which thread to step through.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Ready {
    pub(super) thread: u32,
}

/// Coordinator to counted process: begin; and then: leave.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Go;

/// The way to the coordinator.
pub(super) struct Rounds<'a> {
    pub(super) control: &'a Control,
    /// The domain that the scene joins, if it does not make one.
    pub(super) domain: Option<&'a str>,
    pub(super) cpus: &'a Cpus,
}

impl Rounds<'_> {
    /// Goes through a round often enough. It has as many parts as the scene says.
    pub(super) fn go(&self, mut round: impl FnMut() -> Result<()>) -> Result<()> {
        for _ in 0..WARM_UP {
            round()?;
        }
        if self.begin(process::thread())? {
            for _ in 0..2 * COUNTED {
                part(|| {});
                round()?;
            }
            self.until_over()?;
        }
        Ok(())
    }

    /// The domain of messages: one that nobody else joins, or the one that was named.
    pub(super) fn domain(&self, protection: Protection) -> Result<Domain> {
        match self.domain {
            None => domain(protection),
            Some(name) => Domain::builder(name).join().map_err(refused),
        }
    }

    /// Says who is to be stepped through; whether that is going to happen.
    pub(super) fn begin(&self, thread: u32) -> Result<bool> {
        self.control.send(&Ready { thread })?;
        let told: Option<Go> = self.control.receive()?;
        Ok(told.is_some())
    }

    /// Until the coordinator leaves.
    pub(super) fn until_over(&self) -> Result<()> {
        let _: Option<Go> = self.control.receive()?;
        Ok(())
    }
}

/// For `map_err`.
pub(super) fn refused<E: std::error::Error + Send + Sync + 'static>(error: E) -> MeasureError {
    MeasureError::library("doing what is counted")(error)
}

/// What came is not what must come.
pub(super) fn must(holds: bool) -> Result<()> {
    let wrong = || std::io::Error::other("what was counted did not do what it is for");
    holds.then_some(()).ok_or_else(|| refused(wrong()))
}

/// A domain that nobody else joins.
pub(super) fn domain(protection: Protection) -> Result<Domain> {
    let builder = Domain::builder("counted")
        .limit(LIMIT)
        .protection(protection);
    builder.private().map_err(refused)
}
