//! Measures a bare futex ping-pong: store, wake; sleep until the other has stored.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use portolan_sys::futex::{self, Wake};
use portolan_sys::shared::Window;

use super::Endpoint;
use super::memory::{self, LINE_PAIR};
use crate::case::Case;
use crate::error::Result;

#[derive(Debug)]
pub(crate) struct Futex {
    window: Window,
    ours: usize,
    theirs: usize,
    /// They wrap together.
    sent: u32,
    received: u32,
}

impl Futex {
    fn new(window: Window, ours: usize, theirs: usize) -> Self {
        let word = |side: usize| side * LINE_PAIR / size_of::<AtomicU32>();
        Self {
            window,
            ours: word(ours),
            theirs: word(theirs),
            sent: 0,
            received: 0,
        }
    }
}

impl Endpoint for Futex {
    fn create(_case: &Case) -> Result<(Self, Vec<OwnedFd>)> {
        let window = memory::create(2 * LINE_PAIR)?;
        let shared = memory::share(&window)?;
        Ok((Self::new(window, 0, 1), shared))
    }

    fn attach(_case: &Case, _seat: u32, descriptors: Vec<OwnedFd>) -> Result<Self> {
        Ok(Self::new(memory::attach(descriptors)?, 1, 0))
    }

    #[inline(always)]
    fn send(&mut self) -> Result<()> {
        self.sent = self.sent.wrapping_add(1);
        let word = self.window.word32(self.ours);
        // Release pairs with the Acquire in `receive`.
        word.store(self.sent, Ordering::Release);
        futex::wake(word, 1);
        Ok(())
    }

    #[inline(always)]
    fn receive(&mut self) -> Result<()> {
        let before = self.received;
        self.received = before.wrapping_add(1);
        let word = self.window.word32(self.theirs);
        while word.load(Ordering::Acquire) != self.received {
            // Whatever ended the sleep, the word says what happened.
            let (Wake::Woken | Wake::Changed | Wake::TimedOut) = futex::wait(word, before, None);
        }
        Ok(())
    }
}
