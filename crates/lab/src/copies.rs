//! Measures what copying costs, and nothing else: the papers' dotted lines.
//!
//! Once is from private memory into a shared window; twice is from there on into
//! private memory again. Both copies are made by one process, so what the second one
//! reads is in its own cache: it is the most that can be said for copying.

use std::hint::black_box;

use portolan_measure::MeasureError;
use portolan_sys::memory;
use portolan_sys::shared::Window;

use crate::clock::{self, Timed};
use crate::error::Result;
use crate::pair::Effort;

/// Buffers to copy between.
pub(crate) struct Copies {
    from: Vec<u8>,
    window: Window,
    to: Vec<u8>,
}

impl Copies {
    /// Buffers of `bytes` each, resident, on huge pages where the kernel gives them.
    pub(crate) fn of(bytes: u64) -> Result<Self> {
        let doing = "making buffers to copy between";
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let window = Window::create(bytes).map_err(|error| MeasureError::library(doing)(error))?;
        window.populate().map_err(MeasureError::system(doing))?;
        let whole = window.len() / memory::HUGE_PAGE * memory::HUGE_PAGE;
        if whole > 0 {
            // Without huge pages a copy is a little slower, and still a copy.
            let _ = memory::collapse(window.base().addr(), whole);
        }
        Ok(Self {
            from: private(bytes),
            window,
            to: private(bytes),
        })
    }

    /// Seconds for `bytes`, copied so many `times`, always the same ones or, `cold`, those
    /// that follow the last ones, round and round the buffers.
    pub(crate) fn measure(&mut self, bytes: u64, times: u8, cold: bool, effort: Effort) -> Timed {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let places = if cold { self.from.len() / bytes } else { 1 };
        let mut place = 0;
        let Self { from, window, to } = self;
        let copy = || {
            let at = place * bytes;
            window.copy_in(at, black_box(&from[at..at + bytes]));
            if times == 2 {
                window.copy_out(at, black_box(&mut to[at..at + bytes]));
            }
            place += 1;
            if place >= places {
                place = 0;
            }
        };
        // As many batches as a slice of messages has.
        clock::each(effort.slices * 10, effort.slice / 20, copy)
    }
}

/// Resident private memory.
fn private(bytes: usize) -> Vec<u8> {
    let mut buffer = vec![0; bytes];
    let start = buffer.as_ptr().addr().next_multiple_of(memory::PAGE);
    let end = (buffer.as_ptr().addr() + bytes) / memory::PAGE * memory::PAGE;
    if start < end {
        // Only advice.
        let _ = memory::advise_huge(start, end - start);
    }
    buffer.fill(1);
    buffer
}

/// Bytes that no cache holds: four times the largest, within reason.
pub(crate) fn beyond_caches() -> u64 {
    let largest = (0..8)
        .filter_map(|index| {
            let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
            let text = std::fs::read_to_string(path).ok()?;
            text.trim().strip_suffix('K')?.parse::<u64>().ok()
        })
        .max();
    (largest.unwrap_or(32 << 10) * 1024 * 4).clamp(128 << 20, 512 << 20)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn twice_arrives_where_it_should() {
        let mut copies = Copies::of(16 << 10).unwrap();
        copies.from[..8192].fill(7);
        copies.to.fill(0);
        let effort = Effort {
            slices: 1,
            slice: Duration::ZERO,
        };
        assert!(copies.measure(8192, 2, false, effort).median() > 0.0);
        assert!(copies.to[..8192].iter().all(|&byte| byte == 7));
        assert!(copies.to[8192..].iter().all(|&byte| byte == 0));
        // Cold, it goes on to the other half.
        copies.measure(8192, 2, true, effort);
        assert!(copies.to[8192..].iter().all(|&byte| byte == 1));
    }
}
