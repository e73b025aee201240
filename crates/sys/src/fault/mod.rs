//! Calls handlers for SIGSEGV and SIGBUS, by address range.
//!
//! One handler serves the process. It looks up the faulting address in a table of
//! watched ranges and asks the range's owner what to do; a fault in no watched range, or
//! that its owner refuses, goes on to the handler that was there before, and without
//! one the process dies of the original signal.
//!
//! ```text
//! fault --> watched? --yes--> handler --Retry--> the access is made again
//!              |                 |
//!              no              Refuse
//!              v                 v
//!           previous handler, or death by this signal
//! ```
//!
//! # Invariants
//!
//! - **F1** The handler takes no lock and allocates nothing; a thread that faults while
//!   another changes the table still finds its own range.
//! - **F2** Once a [`Watch`] is dropped, its handler runs in no thread and never will.
//! - **F3** Only faults of the processor are claimed, not signals that a process has sent.
//! - **F4** While the handler runs its thread takes no signal but those that the processor raises:
//!   a handler that is not told to use the signal stack would run there all the same, on top of
//!   ours, and there is no room for two.

mod handler;
mod report;
mod table;

pub use report::{Line, report};
pub use table::{Watch, WatchError, watch};

/// A memory access that could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The address that was accessed.
    pub address: usize,
    /// The signal.
    pub kind: Kind,
    /// Whether it was a write; `None` where the processor's answer is not understood.
    pub write: Option<bool>,
}

/// The signal that a fault raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// SIGSEGV: no mapping, or one that forbids the access.
    Segv,
    /// SIGBUS: a mapping without a page to show.
    Bus,
}

/// What is to happen after a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The access is possible now: make it again.
    Retry,
    /// Not our doing: go on to the previous handler, or die.
    Refuse,
}

/// Decides a fault. Runs in the signal handler, in the thread that faulted.
///
/// It may do only what is async-signal-safe: no allocation, no locks, no panic, no
/// standard output. [`Line`] and [`report()`] may be used.
///
/// It runs on the thread's signal stack, if there is one. That of a Rust thread has 8 KiB,
/// and with AVX-512 the interrupted registers take almost half of it: keep frames small.
pub type Handler = fn(fault: &Fault, context: usize) -> Verdict;
