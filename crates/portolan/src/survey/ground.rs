//! Gives a survey the tables that it reads: a member's region, or an observer's copy.
//!
//! Reading a hole of a mapped file gives it memory, in any process and through any mapping, private
//! or not. So a member reads only entries that have memory. An observer does not trust the region,
//! which may change at any time, and maps nothing of it: it copies the parts that have memory to a
//! file of its own ([`Picture`]), by calls that leave holes alone, and reads that.

use crate::space::region::Picture;
use portolan_abi::limits::{LINE, PAGE};
use portolan_abi::port::QueuePlace;
use portolan_shm::region::Tables;
use portolan_sys::memory;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

/// What is looked at: a region's tables, and its file, which tells where they have memory.
pub(crate) struct Ground<'r> {
    pub(super) tables: &'r Tables<'r>,
    /// The region's file.
    pub(super) file: &'r OwnedFd,
    picture: Option<&'r Picture>,
}

impl<'r> Ground<'r> {
    /// A member's own region.
    pub(crate) fn of_member(tables: &'r Tables<'r>, file: &'r OwnedFd) -> Self {
        Self {
            tables,
            file,
            picture: None,
        }
    }

    /// A region, of which `picture` holds nothing yet.
    pub(crate) fn of_observer(picture: &'r Picture, file: &'r OwnedFd) -> Self {
        Self {
            tables: picture.tables(),
            file,
            picture: Some(picture),
        }
    }

    /// Whether all that was looked for was there to be read.
    pub(super) fn is_whole(&self) -> bool {
        self.picture.is_none_or(|picture| !picture.is_full())
    }

    /// Makes these bytes of the tables what they are now; those that are holes read as zeros.
    pub(crate) fn fetch(&self, range: Range<u64>) {
        if self.picture.is_some() {
            self.data(range).for_each(drop);
        }
    }

    /// The parts of `range` that have memory; what stands there is there to be read.
    fn data(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let start = range.start / PAGE as u64 * PAGE as u64;
        let whole = start..range.end.next_multiple_of(PAGE as u64);
        let mut failed = false;
        let ranges = memory::data_ranges(self.file, whole.clone());
        ranges
            .map_while(move |found| {
                // A file system that cannot tell holes has none; a failure reads as such.
                let found = match found {
                    Ok(found) => found,
                    Err(_) if !failed => {
                        failed = true;
                        whole.clone()
                    }
                    Err(_) => return None,
                };
                match self.picture {
                    Some(picture) => picture.copy(self.file, found.clone()).then_some(found),
                    None => Some(found),
                }
            })
            .map(move |found| found.start.max(range.start)..found.end.min(range.end))
            .filter(|found| !found.is_empty())
    }

    /// Indices of those of `count` entries of `size` bytes from `start` on that have memory.
    pub(super) fn entries(
        &self,
        start: u64,
        size: u64,
        count: usize,
    ) -> impl Iterator<Item = usize> + use<> {
        let ranges: Vec<_> = self.data(start..start + size * count as u64).collect();
        let mut next = 0;
        ranges.into_iter().flat_map(move |range| {
            // An entry that two ranges share is of both.
            let first = ((range.start - start) / size).max(next);
            let end = (range.end - start).div_ceil(size).min(count as u64);
            next = next.max(end);
            (first..end).filter_map(|index| usize::try_from(index).ok())
        })
    }

    /// As [`Self::fetch`], of a port's queue, of so many lines.
    pub(super) fn fetch_queue(&self, port: u16, lines: usize) {
        let Some(entry) = self.tables.ports.get(usize::from(port)) else {
            return;
        };
        // Relaxed: of our copy.
        let Some(place) = QueuePlace::unpack(entry.control.queue.load(Ordering::Relaxed)) else {
            return;
        };
        let at = self.tables.geometry.queues + place.offset();
        self.fetch(at..at + (lines * LINE) as u64);
    }

    /// Reads bytes of the region's file, without a mapping; returns how many came.
    pub(super) fn peek(&self, offset: u64, out: &mut [u8]) -> usize {
        crate::space::region::read_at(self.file, offset, out)
    }
}
