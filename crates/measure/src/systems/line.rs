//! Measures the machine's limit: one cache line from core to core.
//!
//! A word each way, each on a line pair of its own; the sender stores the next
//! sequence number, the receiver loads until it sees it.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use portolan_instruments::push;
use portolan_sys::shared::Window;

use super::Endpoint;
use super::memory::{self, LINE_PAIR, Spin};
use crate::case::{Case, Shape};
use crate::error::Result;

#[derive(Debug)]
pub(crate) struct Line {
    window: Window,
    /// Indices of the words that we write and that we read.
    ours: usize,
    theirs: usize,
    sent: u64,
    received: u64,
    /// With the push hint.
    pushes: bool,
    spin: Spin,
}

impl Line {
    fn new(case: &Case, window: Window, ours: usize, theirs: usize) -> Self {
        let word = |side: usize| side * LINE_PAIR / size_of::<AtomicU64>();
        Self {
            window,
            ours: word(ours),
            theirs: word(theirs),
            sent: 0,
            received: 0,
            pushes: case.shape == Shape::Pushed,
            spin: Spin::new(case),
        }
    }
}

impl Endpoint for Line {
    fn create(case: &Case) -> Result<(Self, Vec<OwnedFd>)> {
        let window = memory::create(2 * LINE_PAIR)?;
        let shared = memory::share(&window)?;
        Ok((Self::new(case, window, 0, 1), shared))
    }

    fn attach(case: &Case, _seat: u32, descriptors: Vec<OwnedFd>) -> Result<Self> {
        Ok(Self::new(case, memory::attach(descriptors)?, 1, 0))
    }

    #[inline(always)]
    fn send(&mut self) -> Result<()> {
        self.sent += 1;
        // Release pairs with the Acquire in `receive`, as any message would need.
        let word = self.window.word(self.ours);
        word.store(self.sent, Ordering::Release);
        if self.pushes {
            push::hint(word);
        }
        Ok(())
    }

    #[inline(always)]
    fn receive(&mut self) -> Result<()> {
        self.received += 1;
        let (word, expected) = (self.window.word(self.theirs), self.received);
        self.spin.until(|| word.load(Ordering::Acquire) == expected);
        Ok(())
    }
}
