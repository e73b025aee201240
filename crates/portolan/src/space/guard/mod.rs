//! A guard makes an extent of a guarded domain accessible only in the space that owns it.
//!
//! The MMU keeps the doors, by one of two means for each part of the pool:
//!
//! ```text
//!            small part (4 KiB to 1 MiB)          large part (2 MiB and more)
//! join       userfaultfd, minor mode              PROT_NONE
//! open       UFFDIO_CONTINUE, a run in one call   mprotect(read, write), populate
//! close      MADV_DONTNEED                        mprotect(none)
//! stray      SIGBUS                               SIGSEGV
//! ```
//!
//! A space's life with an extent; in every state but *open* a touch faults, and the
//! handler opens what is *shut*:
//!
//! ```text
//!           take (Access::Later)             first touch
//! not ours ----------------------> shut -------------------> open
//!   ^  |                                                     |  ^
//!   |  +--- allocate, take (Access::Now) --------------------|--+
//!   +--------- publish, free --------- leaving <-- close ----+
//!                                         |                  ^
//!                                         +-- not sent ------+
//! ```
//!
//! # Invariants
//!
//! - **G1** Pages are open only in a space whose owner row says *held* or *parked*; a
//!   segment's in every space with a right on it; and all in one that joined to have them
//!   always open: such a member has no guard at all.
//! - **G2** Before an extent's message is published, or its allocation word freed, its
//!   pages are closed in every thread of this process: so no receive returns before the
//!   sender's access has ended.
//! - **G3** The handler opens nothing that is leaving: the mark is set, then every handler
//!   that may have missed it is waited for ([`openers`]), then the pages are closed.
//! - **G4** What the handler opens lies within the extent that the row names: chunk word
//!   and row are read twice, and an extent that is held is not cut anew in between.

mod openers;
mod report;

use crate::space::record::{About, Begun, traces};
use crate::space::region::{Answer, Ground, Region, Watched};
use crate::space::{Descriptor, JoinError};
use openers::Openers;
use portolan_abi::limits::{CHUNK, CHUNK_PAGES, PAGE};
use portolan_abi::owner::{ChunkUse, Hold, Size};
use portolan_abi::trace::EventKind;
use portolan_shm::chunk::Chunks;
use portolan_sys::fault::{Fault, Kind, Verdict};
use portolan_sys::memory::{self, Access};
use portolan_sys::userfault::Minor;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Pages that the first touch of a small extent opens at the most, itself included. The
/// kernel maps as many around a fault on a file.
const AROUND: u32 = 16;

/// What closes and opens pages in a guarded domain.
pub(crate) struct Guard(Watched<Doors>);

/// What the fault handler sees of it.
struct Doors {
    ground: Ground,
    space: u8,
    incarnation: u32,
    minor: Descriptor<Minor>,
    /// Pages of the small part; the large part's follow.
    small: u32,
    /// By first page: on its way out of this space (G3).
    leaving: Bits,
    /// By first page: some page of it may be open here. Spares closing extents that no thread
    /// touched.
    open: Bits,
    /// By first page: a segment that this space has a right on.
    shared: Bits,
    /// How many handles it has on each of those.
    handles: Mutex<HashMap<u32, usize>>,
    openers: Openers,
    /// This space is leaving the domain: nothing is opened any more.
    over: AtomicBool,
}

/// Why a fault is not answered by opening.
enum Stray {
    /// The space does not own what lies there.
    NotOurs,
    /// It does, and the kernel would not open it.
    Failed(io::Error),
}

/// An extent, by what its chunk's word says.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    first: u32,
    size: Size,
}

impl Guard {
    /// Closes the whole pool of a region that was mapped just now.
    pub(crate) fn new(region: &Region, space: u8, incarnation: u32) -> Result<Self, JoinError> {
        let ground = region.ground().clone();
        let pages = ground.tables().alloc.pages();
        let half = u32::try_from(pages / 2).unwrap_or(u32::MAX);
        let (start, bytes) = (ground.address(0), pages / 2 * PAGE);
        let minor = Minor::new().map_err(|e| JoinError::unguarded("make a userfaultfd", e))?;
        minor
            .register(start, bytes)
            .map_err(|e| JoinError::unguarded("register memory with a userfaultfd", e))?;
        ground
            .protect(half, pages / 2, Access::None)
            .map_err(|e| JoinError::unguarded("protect memory", e))?;
        let doors = Doors {
            ground,
            space,
            incarnation,
            minor: Descriptor::new(minor),
            small: half,
            leaving: Bits::new(pages),
            open: Bits::new(pages),
            shared: Bits::new(pages),
            handles: Mutex::default(),
            openers: Openers::default(),
            over: AtomicBool::new(false),
        };
        let watched = Watched::new(start, pages * PAGE, doors);
        let watched =
            watched.map_err(|e| JoinError::unguarded("answer faults", io::Error::other(e)))?;
        Ok(Self(watched))
    }

    /// Notes that an extent is ours now; its first touch opens it.
    #[inline]
    pub(crate) fn arrived(&self, page: u32) {
        self.0.leaving.clear(page);
    }

    /// Opens extents that we own, each run of neighbours in one batch. Where that fails the
    /// first touch tries again, and reports.
    pub(crate) fn open(&self, extents: impl Iterator<Item = (u32, Size)>) {
        let doors = &*self.0;
        let mut runs = Runs::default();
        for (page, size) in extents {
            doors.leaving.clear(page);
            doors.open.set(page);
            runs.add(page, size);
        }
        for run in runs.merged(doors.small) {
            let pages = run.len();
            if doors.opened(run.start, pages).is_ok() && run.start >= doors.small {
                // Huge pages that this process has not mapped yet would fault one by one.
                let _ = memory::populate_write(doors.ground.address(run.start), pages * PAGE);
            }
        }
    }

    /// Closes extents that we own; afterwards no thread of this process can reach them (G2).
    /// What is closed already costs nothing.
    ///
    /// # Errors
    ///
    /// The kernel's: too many mappings. They may be open then.
    pub(crate) fn close(
        &self,
        extents: impl Iterator<Item = (u32, Size)> + Clone,
    ) -> io::Result<()> {
        let doors = &*self.0;
        for (page, _) in extents.clone() {
            doors.leaving.set(page);
        }
        probe!(GuardLeaving);
        doors.openers.wait();
        probe!(GuardWaited);
        let mut runs = Runs::default();
        for (page, size) in extents.clone() {
            if doors.open.clear(page) {
                runs.add(page, size);
            }
        }
        let mut closed = runs
            .merged(doors.small)
            .map(|run| doors.close(run.start, run.len()));
        let result = closed.try_for_each(|closed| closed);
        probe!(GuardClosed);
        if result.is_err() {
            for (page, _) in extents {
                doors.open.set(page);
            }
        }
        result
    }

    /// Moves a chunk of the large part that we are taking to a huge page; whether it is one.
    pub(crate) fn collapse(&self, page: u32) -> bool {
        let doors = &*self.0;
        let collapsed = doors
            .ground
            .protect(page, CHUNK_PAGES, Access::ReadWrite)
            .is_ok()
            && memory::collapse_quickly(doors.ground.address(page), CHUNK);
        // No space owns it yet. If it cannot be closed now, it is before it can be sent.
        let _ = doors.close(page, CHUNK_PAGES);
        collapsed
    }

    /// Opens a segment's pages for one more handle on it.
    pub(crate) fn share(&self, page: u32, size: Size) {
        let mut handles = self
            .0
            .handles
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *handles.entry(page).or_default() += 1;
        self.0.shared.set(page);
        self.open([(page, size)].into_iter());
    }

    /// Closes them after the last. While the caller still has its right.
    pub(crate) fn unshare(&self, page: u32, size: Size) {
        let mut handles = self
            .0
            .handles
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let Some(count) = handles.get_mut(&page) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            handles.remove(&page);
            self.0.shared.clear(page);
            // Fails when there are too many mappings; the pages stay open then, as G1 allows
            // to nobody: they are closed when the extent is next sent or freed here.
            let _ = self.close([(page, size)].into_iter());
        }
    }

    /// Closes everything, for good.
    pub(crate) fn close_all(&self) {
        // A forked child has none of this mapped.
        if portolan_sys::fork::in_child() {
            return;
        }
        let doors = &*self.0;
        doors.over.store(true, Ordering::SeqCst);
        doors.openers.wait();
        let half = doors.small as usize;
        for first in [0, doors.small] {
            let _ = doors.close(first, half);
        }
    }
}

impl Doors {
    /// Opens pages of one part.
    fn opened(&self, first: u32, pages: usize) -> io::Result<()> {
        if first < self.small {
            self.minor.resume(self.ground.address(first), pages * PAGE)
        } else {
            self.ground.protect(first, pages, Access::ReadWrite)
        }
    }

    /// Closes pages of one part. The kernel returns when no processor can reach them.
    fn close(&self, first: u32, pages: usize) -> io::Result<()> {
        if first < self.small {
            self.ground.close_small(first, pages)
        } else {
            self.ground.protect(first, pages, Access::None)
        }
    }

    /// The extent that a page belongs to.
    fn place(&self, page: u32) -> Option<Place> {
        let chunks = &self.ground.tables().chunks;
        let index = Chunks::of_page(page);
        let word = chunks.read(index);
        let size = Size::from_code(word.size)?;
        match word.r#use {
            ChunkUse::Small => {
                let step = u32::try_from(size.pages()).ok()?;
                Some(Place {
                    first: page / step * step,
                    size,
                })
            }
            ChunkUse::Head => Some(Place {
                first: Chunks::first_page(index),
                size,
            }),
            ChunkUse::Body => {
                let head = word.argument as usize;
                let headed = chunks.read(head);
                let within = headed.r#use == ChunkUse::Head
                    && headed.size == word.size
                    && (head..head + size.chunks()).contains(&index);
                within.then(|| Place {
                    first: Chunks::first_page(head),
                    size,
                })
            }
            ChunkUse::Free | ChunkUse::Taking | ChunkUse::Returning => None,
        }
    }

    /// Opens what surrounds `page`, if it is ours; how many pages.
    #[inline(never)]
    fn admit(&self, page: u32) -> Result<usize, Stray> {
        let row = self.ground.tables().owner_row(self.space);
        let place = loop {
            let place = self.place(page).ok_or(Stray::NotOurs)?;
            let word = row.read(place.first).0;
            // A segment's pages: every space with a right may touch them, and the right keeps them.
            if self.shared.get(place.first) {
                break place;
            }
            if !matches!(word.hold(), Hold::Held | Hold::Parked) {
                return Err(Stray::NotOurs);
            }
            // Held throughout, and so cut like this throughout (G4).
            if self.place(page) == Some(place) && row.read(place.first).0 == word {
                break place;
            }
        };
        // SeqCst: pairs with `close`, by way of `Openers` (G3).
        if self.leaving.get(place.first) || self.over.load(Ordering::SeqCst) {
            return Err(Stray::NotOurs);
        }
        self.open.set(place.first);
        probe!(FaultLooked);
        let pages = place.size.pages();
        let (first, pages) = if page < self.small {
            let within = (page - place.first) / AROUND * AROUND;
            (place.first + within, pages.min(AROUND as usize))
        } else {
            (place.first, pages)
        };
        let opened = self.opened(first, pages);
        probe!(FaultMapped);
        opened.map(|()| pages).map_err(Stray::Failed)
    }
}

impl Answer for Doors {
    fn answer(&self, fault: &Fault) -> Verdict {
        // A forked child has neither the region nor its tables.
        if portolan_sys::fork::in_child() {
            return Verdict::Refuse;
        }
        let Some(page) = self.ground.page_of(fault.address) else {
            return Verdict::Refuse;
        };
        let ours = if page < self.small {
            Kind::Bus
        } else {
            Kind::Segv
        };
        if fault.kind != ours {
            return Verdict::Refuse;
        }
        probe!(FaultEntered);
        let tables = self.ground.tables();
        let traced = traces(tables, self.space, EventKind::Fault);
        let begun = traced.then(|| Begun::now(EventKind::Fault));
        let turn = self.openers.enter();
        let admitted = self.admit(page);
        self.openers.leave(turn);
        if let Some(begun) = begun {
            let bytes = admitted.as_ref().map_or(0, |pages| *pages * PAGE);
            let about = About::pages(page, bytes as u64);
            begun.ended(tables, self.space, self.incarnation, about);
        }
        match admitted {
            Ok(_) => Verdict::Retry,
            Err(why) => {
                report::stray(self, fault, page, &why);
                Verdict::Refuse
            }
        }
    }
}

/// One bit for each page of the pool.
struct Bits(Box<[AtomicU64]>);

impl Bits {
    fn new(pages: usize) -> Self {
        // Zeroed by the kernel as it is touched, and most of it never is.
        Self(bytemuck::zeroed_slice_box(pages.div_ceil(64)))
    }

    fn at(&self, page: u32) -> Option<(&AtomicU64, u64)> {
        Some((self.0.get(page as usize / 64)?, 1 << (page % 64)))
    }

    // SeqCst, all of them: see G3.

    fn get(&self, page: u32) -> bool {
        self.at(page)
            .is_some_and(|(word, bit)| word.load(Ordering::SeqCst) & bit != 0)
    }

    fn set(&self, page: u32) {
        if let Some((word, bit)) = self
            .at(page)
            .filter(|(word, bit)| word.load(Ordering::SeqCst) & bit == 0)
        {
            word.fetch_or(bit, Ordering::SeqCst);
        }
    }

    /// Whether it was set.
    fn clear(&self, page: u32) -> bool {
        self.at(page).is_some_and(|(word, bit)| {
            word.load(Ordering::SeqCst) & bit != 0
                && word.fetch_and(!bit, Ordering::SeqCst) & bit != 0
        })
    }
}

/// Extents that lie side by side, taken together.
#[derive(Default)]
struct Runs(SmallVec<[Range<u32>; 4]>);

impl Runs {
    fn add(&mut self, page: u32, size: Size) {
        let end = page.saturating_add(u32::try_from(size.pages()).unwrap_or(u32::MAX));
        self.0.push(page..end);
    }

    /// Neighbours as one, but never across the border of the two parts.
    fn merged(mut self, border: u32) -> impl Iterator<Item = Range<u32>> {
        self.0.sort_unstable_by_key(|run| run.start);
        let mut runs = self.0.into_iter().peekable();
        std::iter::from_fn(move || {
            let mut run = runs.next()?;
            while let Some(next) =
                runs.next_if(|next| next.start == run.end && next.start != border)
            {
                run.end = next.end;
            }
            Some(run)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_one_run_within_a_part() {
        let mut runs = Runs::default();
        for page in [7, 5, 6, 1, 9, 8] {
            runs.add(page, Size::for_bytes(1));
        }
        let merged: Vec<_> = runs.merged(8).collect();
        assert_eq!(merged, [1..2, 5..8, 8..10]);
        assert_eq!(Runs::default().merged(8).count(), 0);
    }

    #[test]
    fn bits_are_independent() {
        let bits = Bits::new(130);
        bits.set(64);
        assert!(bits.get(64) && !bits.get(63) && !bits.get(65) && !bits.get(1000));
        assert!(bits.clear(64) && !bits.clear(64) && !bits.get(64));
    }
}
