//! Measures a shared buffer with a flag, and the same with copies into and out of it.
//!
//! ```text
//! window: | flag there | flag back |  buffers there  |  buffers back  |
//! ```
//!
//! Without copies the sender writes the payload in the buffer and the receiver
//! reads it there, then writes the same buffer and hands it back: the same work that
//! a message handed over in place is. With one
//! copy the sender has it in private memory first; with two the receiver takes it
//! out again. (Between distant cores a copy can win: it may overwrite whole lines
//! without fetching them, which stores of single words do not.)

use std::hint::black_box;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use portolan_sys::memory::HUGE_PAGE;
use portolan_sys::shared::Window;

use super::Endpoint;
use super::memory::{self, LINE_PAIR, Spin};
use crate::case::{Case, Payload, System, Temper};
use crate::error::Result;
use crate::payload;

/// Cold buffers of one direction together: several times the largest cache found
/// in today's servers' core complexes (96 MiB).
const COLD: usize = 256 << 20;

#[derive(Debug)]
pub(crate) struct Buffer {
    window: Window,
    ours: Side,
    theirs: Side,
    bytes: usize,
    /// Buffers in rotation, each way.
    buffers: usize,
    copies: u8,
    touched: bool,
    spin: Spin,
}

/// One direction.
#[derive(Debug)]
struct Side {
    flag: usize,
    start: usize,
    /// Messages so far.
    count: u64,
    /// The payload's private copies, as many as there are buffers; empty if not needed.
    private: Vec<u8>,
}

impl Buffer {
    fn buffers(case: &Case) -> usize {
        match case.temper {
            Temper::Hot => 1,
            Temper::Cold => COLD.div_ceil(bytes(case)),
        }
    }

    /// Where the buffers of direction `side` start. Aligned as a large page, if they hold one.
    fn start(case: &Case, side: usize) -> usize {
        // Without copies the one buffer goes to and fro, as a message does that is
        // sent back: with two, twice as much would have to stay in the caches.
        let side = match case.system {
            System::Buffer => side / 2,
            _ => side,
        };
        let align = if bytes(case) >= HUGE_PAGE {
            HUGE_PAGE
        } else {
            4096
        };
        align + side * (bytes(case) * Self::buffers(case)).next_multiple_of(align)
    }

    fn new(case: &Case, window: Window, ours: usize, theirs: usize) -> Self {
        let copies = match case.system {
            System::Memcpy { copies } => copies,
            _ => 0,
        };
        let side = |side: usize, private: bool| Side {
            flag: side * LINE_PAIR / size_of::<AtomicU64>(),
            start: Self::start(case, side),
            count: 0,
            // Ones, so that the pages are there and distinct.
            private: vec![
                1;
                if private {
                    bytes(case) * Self::buffers(case)
                } else {
                    0
                }
            ],
        };
        Self {
            window,
            ours: side(ours, copies >= 1),
            theirs: side(theirs, copies >= 2),
            bytes: bytes(case),
            buffers: Self::buffers(case),
            copies,
            touched: case.payload == Payload::Touched,
            spin: Spin::new(case),
        }
    }

    /// Offset of the buffer for message `count` within its direction.
    fn offset(&self, count: u64) -> usize {
        let buffers = self.buffers as u64;
        // Below `buffers`, which is a usize.
        usize::try_from(count % buffers).unwrap_or(0) * self.bytes
    }
}

fn bytes(case: &Case) -> usize {
    usize::try_from(case.bytes).expect("64-bit only")
}

impl Endpoint for Buffer {
    fn create(case: &Case) -> Result<(Self, Vec<OwnedFd>)> {
        let window = memory::create(Self::start(case, 2))?;
        let shared = memory::share(&window)?;
        Ok((Self::new(case, window, 0, 1), shared))
    }

    fn attach(case: &Case, _seat: u32, descriptors: Vec<OwnedFd>) -> Result<Self> {
        Ok(Self::new(case, memory::attach(descriptors)?, 1, 0))
    }

    #[inline(always)]
    fn send(&mut self) -> Result<()> {
        let offset = self.offset(self.ours.count);
        self.ours.count += 1;
        let shared = self.ours.start + offset;
        if self.copies == 0 {
            if self.touched {
                self.window.touch_write(shared, self.bytes, self.ours.count);
            }
        } else {
            let private = &mut self.ours.private[offset..offset + self.bytes];
            if self.touched {
                payload::write(private, self.ours.count);
            }
            self.window.copy_in(shared, private);
        }
        // Release publishes the payload; pairs with the Acquire in `receive`.
        self.window
            .word(self.ours.flag)
            .store(self.ours.count, Ordering::Release);
        Ok(())
    }

    #[inline(always)]
    fn receive(&mut self) -> Result<()> {
        let offset = self.offset(self.theirs.count);
        self.theirs.count += 1;
        let (word, expected) = (self.window.word(self.theirs.flag), self.theirs.count);
        self.spin.until(|| word.load(Ordering::Acquire) == expected);
        let shared = self.theirs.start + offset;
        if self.copies < 2 {
            if self.touched {
                black_box(self.window.sum(shared, self.bytes));
            }
            return Ok(());
        }
        let private = &mut self.theirs.private[offset..offset + self.bytes];
        self.window.copy_out(shared, private);
        if self.touched {
            payload::read(private);
        }
        black_box(private);
        Ok(())
    }
}
