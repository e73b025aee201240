//! Measures one copy by the kernel: the sender says that there is something and wakes the receiver,
//! which has the kernel copy it out of the sender's memory (`process_vm_readv`).
//!
//! ```text
//! window: | there: told, taken, waits, process, address | back: the same |
//! sender's memory: as many messages as may be under way, one behind the other
//! ```
//!
//! Sending is a system call also where no receiver sleeps, as it is with a pipe.

use std::hint::black_box;
use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use portolan_sys::futex::{self, Wake};
use portolan_sys::process::{Remote, read_memory};
use portolan_sys::shared::Window;

use super::Endpoint;
use super::memory::{self, LINE_PAIR, Spin};
use crate::case::{Case, Mode, Payload};
use crate::error::{MeasureError, Result};
use crate::payload;

/// Messages that may be under way: as many units of 4 KiB as a pipe holds.
const UNDER_WAY: u32 = 16;
/// Line pairs of one direction: one that the sender writes, one that the receiver does.
const PAIRS: usize = 2;

#[derive(Debug)]
pub(crate) struct OneCopy {
    window: Window,
    ours: usize,
    theirs: usize,
    /// What we send: all that may be under way.
    from: Vec<u8>,
    to: Vec<u8>,
    /// They wrap.
    sent: u32,
    received: u32,
    blocks: bool,
    touched: bool,
    spin: Spin,
}

impl OneCopy {
    fn new(case: &Case, window: Window, ours: usize, theirs: usize) -> Self {
        let bytes = usize::try_from(case.bytes).expect("64-bit only");
        let end = Self {
            window,
            ours,
            theirs,
            from: vec![1; bytes * UNDER_WAY as usize],
            to: vec![1; bytes],
            sent: 0,
            received: 0,
            blocks: case.mode == Mode::Block,
            touched: case.payload == Payload::Touched,
            spin: Spin::new(case),
        };
        end.address(ours)
            .store(end.from.as_ptr().addr() as u64, Ordering::Relaxed);
        // Release: a peer that is told of a message, or sees the process id, sees the address.
        end.process(ours)
            .store(std::process::id(), Ordering::Release);
        // Only some systems ask for that, and others do not know it.
        let _ = rustix::process::set_ptracer(rustix::process::PTracer::Any);
        end
    }

    /// A word of the line pair that a direction's sender (0) or receiver (1) writes.
    fn word(&self, direction: usize, side: usize, nth: usize) -> &AtomicU32 {
        let line = (direction * PAIRS + side) * LINE_PAIR;
        self.window.word32(line / size_of::<AtomicU32>() + nth)
    }

    /// How many messages there are.
    fn told(&self, direction: usize) -> &AtomicU32 {
        self.word(direction, 0, 0)
    }

    /// Whether the sender sleeps until there is room.
    fn waits(&self, direction: usize) -> &AtomicU32 {
        self.word(direction, 0, 1)
    }

    fn process(&self, direction: usize) -> &AtomicU32 {
        self.word(direction, 0, 2)
    }

    /// How many have been copied.
    fn taken(&self, direction: usize) -> &AtomicU32 {
        self.word(direction, 1, 0)
    }

    fn address(&self, direction: usize) -> &AtomicU64 {
        let line = direction * PAIRS * LINE_PAIR;
        self.window.word(line / size_of::<AtomicU64>() + 2)
    }

    /// Waits until half of what may be under way has been copied.
    #[cold]
    fn wait_for_room(&self) {
        let (taken, waits) = (self.taken(self.ours), self.waits(self.ours));
        let room = || self.sent.wrapping_sub(taken.load(Ordering::Acquire)) <= UNDER_WAY / 2;
        if !self.blocks {
            return self.spin.until(room);
        }
        while !room() {
            // SeqCst here and in `receive`: one of the two sees what the other has stored.
            waits.store(1, Ordering::SeqCst);
            let seen = taken.load(Ordering::SeqCst);
            if self.sent.wrapping_sub(seen) > UNDER_WAY / 2 {
                let (Wake::Woken | Wake::Changed | Wake::TimedOut) = futex::wait(taken, seen, None);
            }
            waits.store(0, Ordering::Relaxed);
        }
    }

    /// Where in the sender's memory a message lies.
    fn place(&self, nth: u32) -> usize {
        (nth % UNDER_WAY) as usize * self.to.len()
    }
}

impl Endpoint for OneCopy {
    fn create(case: &Case) -> Result<(Self, Vec<OwnedFd>)> {
        let window = memory::create(2 * PAIRS * LINE_PAIR)?;
        let shared = memory::share(&window)?;
        Ok((Self::new(case, window, 0, 1), shared))
    }

    fn attach(case: &Case, _seat: u32, descriptors: Vec<OwnedFd>) -> Result<Self> {
        Ok(Self::new(case, memory::attach(descriptors)?, 1, 0))
    }

    #[inline(always)]
    fn send(&mut self) -> Result<()> {
        // Relaxed: read again, with order, if there seems to be no room.
        let taken = self.taken(self.ours).load(Ordering::Relaxed);
        if self.sent.wrapping_sub(taken) >= UNDER_WAY {
            self.wait_for_room();
        }
        if self.touched {
            let (at, bytes) = (self.place(self.sent), self.to.len());
            payload::write(&mut self.from[at..at + bytes], self.sent.into());
        }
        self.sent = self.sent.wrapping_add(1);
        let told = self.told(self.ours);
        // Release publishes the message; pairs with the Acquire in `receive`.
        told.store(self.sent, Ordering::Release);
        futex::wake(told, 1);
        Ok(())
    }

    #[inline(always)]
    fn receive(&mut self) -> Result<()> {
        let before = self.received;
        let told = self.told(self.theirs);
        let there = || told.load(Ordering::Acquire) != before;
        if self.blocks {
            while !there() {
                let (Wake::Woken | Wake::Changed | Wake::TimedOut) =
                    futex::wait(told, before, None);
            }
        } else {
            self.spin.until(there);
        }
        let first = self.address(self.theirs).load(Ordering::Relaxed);
        let from = Remote {
            address: usize::try_from(first).expect("64-bit only") + self.place(before),
            len: self.to.len(),
        };
        let process = self.process(self.theirs).load(Ordering::Relaxed);
        read_memory(process, &[from], &mut [IoSliceMut::new(&mut self.to)])
            .map_err(MeasureError::library("copying from another process"))?;
        self.received = before.wrapping_add(1);
        let taken = self.taken(self.theirs);
        // SeqCst: as in `wait_for_room`.
        taken.store(self.received, Ordering::SeqCst);
        let left = self
            .told(self.theirs)
            .load(Ordering::Relaxed)
            .wrapping_sub(self.received);
        if left <= UNDER_WAY / 2 && self.waits(self.theirs).load(Ordering::SeqCst) != 0 {
            futex::wake(taken, 1);
        }
        if self.touched {
            payload::read(&self.to);
        }
        black_box(&self.to);
        Ok(())
    }
}
