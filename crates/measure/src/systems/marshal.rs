//! Measures the two copies of a call's bytes: into a channel's memory, and out of it again.
//!
//! Both in one process, one after the other, so that nothing but the copies is timed: the
//! peer has nothing to do. With a checksum, it is made in the first copy and verified in
//! the second, whose own sum must be the same.

use std::hint::black_box;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;

use portolan_abi::channel::UNIT_HEAD_WORDS;
use portolan_abi::limits::LINE;
use portolan_abi::rpc::HEADER_BYTES;
use portolan_abi::sum;
use portolan_shm::bulk::{self, summed};

use super::Endpoint;
use crate::case::{Case, System, Temper};
use crate::error::{MeasureError, Result};

/// Bytes of a unit before a call's, in the line that it begins: its own head, and the packet's.
const HEADS: usize = 8 * UNIT_HEAD_WORDS + HEADER_BYTES;

/// Buffers of each kind together, in cold rows: beyond any cache.
const COLD: usize = 128 << 20;

pub(crate) struct Marshal {
    /// The caller's bytes, the channel's memory, the callee's: as many buffers of each.
    from: Vec<u8>,
    channel: Vec<AtomicU64>,
    to: Vec<u8>,
    /// Words of the channel's memory before what is used of it.
    skipped: usize,
    bytes: usize,
    /// Which buffer is next.
    next: usize,
    sum: bool,
}

impl Endpoint for Marshal {
    fn create(case: &Case) -> Result<(Self, Vec<OwnedFd>)> {
        let bytes = usize::try_from(case.bytes).expect("64-bit only");
        let buffers = match case.temper {
            Temper::Hot => 1,
            Temper::Cold => COLD.div_ceil(bytes),
        };
        let all = bytes * buffers;
        let words = all.div_ceil(8) + LINE / 8;
        let channel: Vec<_> = (0..words).map(|_| AtomicU64::new(1)).collect();
        let begin = channel.as_ptr().addr() % LINE;
        let end = Self {
            from: vec![7; all],
            channel,
            to: vec![1; all],
            skipped: (LINE + HEADS - begin) % LINE / 8,
            bytes,
            next: 0,
            sum: case.system == System::Marshal { sum: true },
        };
        Ok((end, Vec::new()))
    }

    fn attach(_case: &Case, _seat: u32, _descriptors: Vec<OwnedFd>) -> Result<Self> {
        Ok(Self {
            from: Vec::new(),
            channel: Vec::new(),
            to: Vec::new(),
            skipped: 0,
            bytes: 0,
            next: 0,
            sum: false,
        })
    }

    #[inline(always)]
    fn send(&mut self) -> Result<()> {
        if self.bytes == 0 {
            return Ok(());
        }
        let at = self.next;
        self.next = if at + self.bytes < self.from.len() {
            at + self.bytes
        } else {
            0
        };
        let from = &self.from[at..at + self.bytes];
        let channel = &self.channel[self.skipped + at / 8..][..self.bytes / 8];
        let to = &mut self.to[at..at + self.bytes];
        if self.sum {
            let position = black_box(at as u64);
            let sent = sum::finish(position, summed::store(channel, from));
            let came = sum::finish(position, summed::load(channel, to));
            if sent != came {
                return Err(MeasureError::Gone);
            }
        } else {
            bulk::store(channel, from);
            bulk::load(channel, to);
        }
        black_box(to);
        Ok(())
    }

    #[inline(always)]
    fn receive(&mut self) -> Result<()> {
        Ok(())
    }
}
