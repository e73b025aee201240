//! Measures a single-writer ring of slots in shared memory: the limit for a stream.
//!
//! ```text
//! window: | taken | slot 0 | slot 1 | ...
//! slot:   | sequence, payload |          a small message: one line
//!         | sequence |  payload ... |  a large one: from the next line on
//! ```
//!
//! The peer writes, we read. A slot's sequence number says that its message is
//! there. A payload is written and read in its slot or, untouched, copied in and out.
//! `taken`, published a quarter of the ring at a time, lets the writer
//! reuse slots.

use std::hint::black_box;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use portolan_sys::shared::Window;

use super::Endpoint;
use super::memory::{self, LINE_PAIR, Spin};
use crate::case::{Case, Payload, SMALL};
use crate::error::Result;

const WORD: usize = size_of::<AtomicU64>();
/// A small message's slot: sequence and payload in one line.
const SLOT: usize = 64;
/// Slots of a ring of small messages: 128 KiB, within any second-level cache.
const SLOTS_SMALL: u64 = 2048;
/// Slots of a ring of large messages.
const SLOTS_LARGE: u64 = 8;

#[derive(Debug)]
pub(crate) struct Ring {
    window: Window,
    slots: u64,
    slot: usize,
    /// Where in its slot the payload starts, and how long it is.
    payload: usize,
    bytes: usize,
    /// What is copied in, or out, where nobody touches the payload.
    private: Option<Vec<u8>>,
    /// Messages sent or received.
    count: u64,
    /// The writer's last look at `taken`.
    taken: u64,
    spin: Spin,
}

impl Ring {
    fn geometry(case: &Case) -> (u64, usize) {
        let bytes = usize::try_from(case.bytes).expect("64-bit only");
        if case.bytes <= SMALL {
            (SLOTS_SMALL, SLOT)
        } else {
            (SLOTS_LARGE, SLOT + bytes.next_multiple_of(SLOT))
        }
    }

    fn new(case: &Case, window: Window) -> Self {
        let (slots, slot) = Self::geometry(case);
        let bytes = usize::try_from(case.bytes).expect("64-bit only");
        let payload = if slot == SLOT { WORD } else { SLOT };
        Self {
            window,
            slots,
            slot,
            payload,
            bytes,
            private: (case.payload == Payload::Untouched).then(|| vec![1; bytes]),
            count: 0,
            taken: 0,
            spin: Spin::new(case),
        }
    }

    /// Offset of the slot of message `count`.
    #[inline(always)]
    fn slot(&self, count: u64) -> usize {
        // Both counts of slots are powers of two, and small.
        LINE_PAIR + usize::try_from(count & (self.slots - 1)).unwrap_or(0) * self.slot
    }
}

impl Endpoint for Ring {
    fn create(case: &Case) -> Result<(Self, Vec<OwnedFd>)> {
        let (slots, slot) = Self::geometry(case);
        let slots = usize::try_from(slots).expect("64-bit only");
        let window = memory::create(LINE_PAIR + slots * slot)?;
        let shared = memory::share(&window)?;
        Ok((Self::new(case, window), shared))
    }

    fn attach(case: &Case, _seat: u32, descriptors: Vec<OwnedFd>) -> Result<Self> {
        Ok(Self::new(case, memory::attach(descriptors)?))
    }

    #[inline(always)]
    fn send(&mut self) -> Result<()> {
        if self.count - self.taken == self.slots {
            let (word, count, slots) = (self.window.word(0), self.count, self.slots);
            // Acquire pairs with the Release in `receive`: the reader is done with the slot.
            self.spin
                .until(|| count - word.load(Ordering::Acquire) < slots);
            self.taken = word.load(Ordering::Acquire);
        }
        let slot = self.slot(self.count);
        self.count += 1;
        let payload = slot + self.payload;
        match &self.private {
            Some(private) => self.window.copy_in(payload, private),
            None => self.window.touch_write(payload, self.bytes, self.count),
        }
        // Release publishes the payload; pairs with the Acquire in `receive`.
        self.window
            .word(slot / WORD)
            .store(self.count, Ordering::Release);
        Ok(())
    }

    #[inline(always)]
    fn receive(&mut self) -> Result<()> {
        let slot = self.slot(self.count);
        self.count += 1;
        let (word, expected) = (self.window.word(slot / WORD), self.count);
        self.spin.until(|| word.load(Ordering::Acquire) == expected);
        let payload = slot + self.payload;
        match &mut self.private {
            Some(private) => self.window.copy_out(payload, black_box(private)),
            None => {
                black_box(self.window.sum(payload, self.bytes));
            }
        }
        if self.count.is_multiple_of(self.slots / 4) {
            self.window.word(0).store(self.count, Ordering::Release);
        }
        Ok(())
    }
}
