//! Allocation words and owner rows say which space holds an extent.
//!
//! ```text
//!            allocate                  begin send             publish (the slot decides)
//! free(g) ------------> held(g+1) by A ----------> sending by A ----------> in the slot
//!    ^                      |   ^                      |                        |
//!    +------ free ----------+   +------ send failed ---+        take: held(g+1) by B
//! ```
//!
//! Each space has its own **row** of owner words and writes only that; the
//! allocation word is written when an extent is handed out and when it is freed.
//! So moving an extent from A to B touches A's row, the slot and B's row: no line
//! of these but the slot's is ever in another core's cache on the way.
//!
//! Threads of one space share its row, and an extent may come back to the space, in
//! another thread, while the thread that sent or freed it has not said so in the row
//! yet. So a thread takes back only the word that it wrote itself, by compare-exchange:
//! a *sending* word carries a stamp of its destination, and *allocating* is a word of
//! its own.
//!
//! # Invariants
//!
//! - **O1** A used extent is held by exactly one: a row that says *held* or *parked*
//!   with the allocation word's generation, or a row that says *sending* to a slot
//!   that is still claimed, or a published slot that is not taken.
//! - **O2** A row is written by its space, or by the host after that space's death.
//! - **O3** Where a crash leaves two records (row and slot, or row and a free word)
//!   they carry the same generation, and giving the extent back is a compare-exchange
//!   from `used(g)`: the second attempt does nothing.
//! - **O4** A space that takes an extent sees every byte that the last holder wrote: the
//!   slot's publication, or the allocation word's release, orders them.
//! - **O5** Two spaces may try to allocate one extent at once, and both rows then name
//!   the generation that one of them gets. So the row says *allocating* until the
//!   allocation word, which names its allocator, is won; a row that says so counts only
//!   if the word names its space.

use crate::atomic::{AtomicU64, Ordering};
use crate::mark;
use portolan_abi::owner::{Alloc, AllocWord, Born, Destination, Hold, OwnerWord};

/// One space's record of one extent.
#[repr(C)]
#[derive(Default)]
pub struct OwnerEntry {
    /// [`OwnerWord`].
    pub word: AtomicU64,
    /// [`Destination`], valid while the word says *sending*.
    pub to: AtomicU64,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<OwnerEntry>() as u64 == portolan_abi::region::OWNER_BYTES);

/// Why an owner word was not what the caller needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OwnerError {
    /// The caller's: no such extent.
    #[error("page {page} is past the pool's {pages} pages")]
    OutOfRange {
        /// Page asked for.
        page: u32,
        /// Pages of the pool.
        pages: usize,
    },
    /// The caller's: this space does not hold it (it was sent, freed, or never received).
    #[error(
        "the extent at page {page} is not ours: it was sent, freed or never received (our owner word says {found:?})"
    )]
    NotHeld {
        /// Its first page.
        page: u32,
        /// What the row says.
        found: Hold,
    },
    /// The caller's: the handle is older than the extent's present use.
    #[error("the handle for page {page} is stale: it names use {handle}, now is use {now}")]
    Stale {
        /// Its first page.
        page: u32,
        /// Generation of the handle.
        handle: u32,
        /// Generation now.
        now: u32,
    },
    /// The caller's: a raw handle was laid down in another domain, or before this process left
    /// this one and joined it again.
    #[error(
        "the handle was not laid down in this membership of the domain: adopt it in the one that it came from"
    )]
    Foreign,
}

/// One space's row of owner words.
#[derive(Clone, Copy)]
pub struct OwnerRow<'r> {
    entries: &'r [OwnerEntry],
    space: u8,
}

/// Beside [`Hold::None`]: the space tries to allocate the extent (O5).
const ALLOCATING: u64 = 1 << 2;
/// Where a *sending* word has its stamp, and how wide that is.
const STAMP_SHIFT: u32 = 2;
const STAMP_MASK: u64 = (1 << 30) - 1;

const fn held(generation: u32) -> u64 {
    OwnerWord::new(Hold::Held, generation).0
}

const fn allocating(generation: u32) -> u64 {
    OwnerWord::new(Hold::None, generation).0 | ALLOCATING
}

/// Differs between any two sends of one extent that could meet in a row: on one port it
/// is the position, and ports are spread by an odd factor.
const fn sending(generation: u32, to: Destination) -> u64 {
    let stamp = (to.position() ^ (to.port() as u64).wrapping_mul(0x9e37_79b1)) & STAMP_MASK;
    OwnerWord::new(Hold::Sending, generation).0 | stamp << STAMP_SHIFT
}

impl OwnerEntry {
    /// See [`OwnerRow::hold`].
    #[inline]
    fn hold(&self, generation: u32) {
        // Relaxed suffices among our threads; the queue's release store of `head` and
        // the allocation word's exchange order it for the host.
        // Loom lets a store slip between the two halves of a compare-exchange; nothing else does.
        #[cfg(loom)]
        self.word.swap(held(generation), Ordering::Relaxed);
        #[cfg(not(loom))]
        self.word.store(held(generation), Ordering::Relaxed);
    }

    /// Takes back the word that this thread wrote, if it still stands.
    #[inline]
    fn take_back(&self, word: u64) {
        // Release: after the publication or the allocation word, never before. If
        // another thread of ours has written since, the extent is its business.
        let _ = self.word.compare_exchange(
            word,
            OwnerWord::NONE.0,
            Ordering::Release,
            Ordering::Relaxed,
        );
    }
}

/// An extent that its space was found to hold, and the entry of the row that says so.
#[derive(Clone, Copy)]
pub struct Held<'r> {
    entry: &'r OwnerEntry,
    generation: u32,
}

impl Held<'_> {
    /// Notes that the extent is being written to `to`, a slot that we have claimed.
    #[inline]
    pub fn sending(&self, to: Destination) {
        self.entry.to.store(to.0, Ordering::Relaxed);
        // Release: the destination comes first, for the host.
        self.entry
            .word
            .store(sending(self.generation, to), Ordering::Release);
    }

    /// Notes that the extent is no longer ours, because its slot, at `to`, is published;
    /// unless it is ours again already.
    #[inline]
    pub fn sent(&self, to: Destination) {
        self.entry.take_back(sending(self.generation, to));
    }

    /// Notes that the extent is ours after all: it was not published.
    #[inline]
    pub fn hold(&self) {
        self.entry.hold(self.generation);
    }
}

impl<'r> OwnerRow<'r> {
    /// The row of `space` over `entries`, one for each page of the pool.
    pub fn new(entries: &'r [OwnerEntry], space: u8) -> Self {
        Self { entries, space }
    }

    #[inline]
    fn entry(&self, page: u32) -> Result<&'r OwnerEntry, OwnerError> {
        self.entries
            .get(page as usize)
            .ok_or(OwnerError::OutOfRange {
                page,
                pages: self.entries.len(),
            })
    }

    /// What the row says of the extent at `page`; nothing, for a page that does not exist.
    #[inline]
    pub fn read(&self, page: u32) -> (OwnerWord, Destination) {
        match self.entries.get(page as usize) {
            // Acquire: the destination was stored before *sending*.
            Some(entry) => (
                OwnerWord(entry.word.load(Ordering::Acquire)),
                Destination(entry.to.load(Ordering::Relaxed)),
            ),
            None => (OwnerWord::NONE, Destination(0)),
        }
    }

    /// Notes that the extent is ours. For its allocator, or the taker of its message,
    /// before the take is committed (O1).
    #[inline]
    pub fn hold(&self, page: u32, generation: u32) -> Result<(), OwnerError> {
        self.entry(page)?.hold(generation);
        Ok(())
    }

    /// Checks that the extent is ours.
    #[inline]
    pub fn check(&self, page: u32, generation: u32) -> Result<(), OwnerError> {
        self.held(page, generation).map(drop)
    }

    /// The same; its entry, for what happens to it next.
    #[inline]
    pub fn held(&self, page: u32, generation: u32) -> Result<Held<'r>, OwnerError> {
        let entry = self.entry(page)?;
        let found = OwnerWord(entry.word.load(Ordering::Relaxed));
        if found.0 == held(generation) {
            return Ok(Held { entry, generation });
        }
        Err(refusal(page, generation, found))
    }

    /// See [`Held::sending`].
    #[inline]
    pub fn sending(&self, page: u32, generation: u32, to: Destination) {
        if let Ok(entry) = self.entry(page) {
            Held { entry, generation }.sending(to);
        }
    }

    /// See [`Held::sent`].
    #[inline]
    pub fn sent(&self, page: u32, generation: u32, to: Destination) {
        if let Ok(entry) = self.entry(page) {
            Held { entry, generation }.sent(to);
        }
    }

    /// Takes back the word that this thread wrote, if it still stands.
    #[inline]
    fn take_back(&self, page: u32, word: u64) {
        if let Ok(entry) = self.entry(page) {
            entry.take_back(word);
        }
    }

    /// Host: forgets what a dead space's row says of the extent.
    #[inline]
    pub fn clear(&self, page: u32) {
        if let Ok(entry) = self.entry(page) {
            // Release: what followed from it has been done.
            entry.word.store(OwnerWord::NONE.0, Ordering::Release);
        }
    }

    /// Parks a held extent under a raw handle. Of two threads that take it up again at
    /// the same instant, one wins.
    pub fn park(&self, page: u32, generation: u32) -> Result<(), OwnerError> {
        self.swap(page, generation, Hold::Held, Hold::Parked)
    }

    /// Takes a parked extent up again.
    pub fn unpark(&self, page: u32, generation: u32) -> Result<(), OwnerError> {
        self.swap(page, generation, Hold::Parked, Hold::Held)
    }

    fn swap(&self, page: u32, generation: u32, from: Hold, to: Hold) -> Result<(), OwnerError> {
        let from = OwnerWord::new(from, generation);
        let to = OwnerWord::new(to, generation);
        match self.entry(page)?.word.compare_exchange(
            from.0,
            to.0,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => Ok(()),
            Err(found) => Err(refusal(page, generation, OwnerWord(found))),
        }
    }
}

fn refusal(page: u32, generation: u32, found: OwnerWord) -> OwnerError {
    if matches!(found.hold(), Hold::Held | Hold::Parked) && found.generation() != generation {
        OwnerError::Stale {
            page,
            handle: generation,
            now: found.generation(),
        }
    } else {
        OwnerError::NotHeld {
            page,
            found: found.hold(),
        }
    }
}

/// The allocation words of a region, one a page.
#[derive(Clone, Copy)]
pub struct AllocWords<'r> {
    words: &'r [AtomicU64],
}

impl<'r> AllocWords<'r> {
    /// The words of a pool.
    pub fn new(words: &'r [AtomicU64]) -> Self {
        Self { words }
    }

    /// Pages of the pool.
    pub fn pages(&self) -> usize {
        self.words.len()
    }

    /// The word of the extent at `page`; locked, for a page that does not exist.
    #[inline]
    pub fn read(&self, page: u32) -> AllocWord {
        match self.words.get(page as usize) {
            // Acquire: a thread that frees wrote before (O4).
            Some(word) => AllocWord(word.load(Ordering::Acquire)),
            None => AllocWord::new(Alloc::Locked, 0),
        }
    }

    /// Hands the free extent at `page` to the space of `row`, at this second; its new
    /// generation.
    ///
    /// `None` if it is not free. The caller then checks that the chunk is still cut
    /// as it believes (see [`crate::chunk`]) and frees it otherwise.
    #[inline]
    pub fn allocate(&self, row: &OwnerRow<'_>, page: u32, born: Born) -> Option<u32> {
        let word = self.words.get(page as usize)?;
        let free = self.read(page);
        if free.state() != Alloc::Free {
            return None;
        }
        let generation = free.generation().wrapping_add(1);
        // First the row (O3, O5); by compare-exchange, because another thread of this space may
        // change it too. Acquire: pairs with the Release of the store that cleared it.
        let note = allocating(generation);
        row.entry(page)
            .ok()?
            .word
            .compare_exchange(
                OwnerWord::NONE.0,
                note,
                Ordering::Acquire,
                Ordering::Relaxed,
            )
            .ok()?;
        mark!("allocate.noted");
        if word
            .compare_exchange(
                free.0,
                AllocWord::used(generation, row.space, born).0,
                Ordering::AcqRel,
                Ordering::Relaxed,
            )
            .is_err()
        {
            row.take_back(page, note);
            return None;
        }
        mark!("allocate.won");
        row.hold(page, generation).ok()?;
        mark!("allocate.done");
        Some(generation)
    }

    /// Frees an extent that the space of `row` holds.
    #[inline]
    pub fn free(&self, row: &OwnerRow<'_>, page: u32, generation: u32) -> Result<(), OwnerError> {
        row.check(page, generation)?;
        mark!("free.before");
        // Release: our last reads and writes of the pages are over (O4).
        self.words[page as usize]
            .store(AllocWord::new(Alloc::Free, generation).0, Ordering::Release);
        mark!("free.word");
        row.take_back(page, held(generation));
        Ok(())
    }

    /// Host: frees what the row of a dead space says that it holds, parked, or was
    /// allocating at `page`, and clears it. `true` if an extent was freed.
    ///
    /// A word that says *sending* is left alone: the slot decides
    /// ([`crate::queue::Queue::is_unsent`]), then [`AllocWords::reclaim`] and
    /// [`OwnerRow::clear`] follow.
    pub fn reclaim_row(&self, row: &OwnerRow<'_>, page: u32) -> bool {
        let word = row.read(page).0;
        let freed = match word.hold() {
            Hold::Sending => return false,
            Hold::Held | Hold::Parked => self.reclaim(page, word.generation()),
            Hold::None if word.0 & ALLOCATING != 0 => {
                // Of one reading: a generation is allocated once.
                let now = self.read(page);
                now.state() == Alloc::Used
                    && now.generation() == word.generation()
                    && now.allocator() == row.space
                    && self.reclaim(page, word.generation())
            }
            Hold::None => false,
        };
        mark!("reclaim.row");
        row.clear(page);
        freed
    }

    /// Frees an extent on behalf of the dead, or out of a message that no receiver will take.
    /// `false` if that use of it had ended already (O3).
    pub fn reclaim(&self, page: u32, generation: u32) -> bool {
        let was = self.read(page);
        let free = AllocWord::new(Alloc::Free, generation);
        was.state() == Alloc::Used
            && was.generation() == generation
            && self.words.get(page as usize).is_some_and(|w| {
                w.compare_exchange(was.0, free.0, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            })
    }

    /// Withdraws a free extent, so that its chunk can be given back.
    pub(crate) fn lock(&self, page: u32) -> bool {
        self.change(page, Alloc::Free, Alloc::Locked)
    }

    /// Makes a withdrawn extent free again.
    pub(crate) fn unlock(&self, page: u32) -> bool {
        self.change(page, Alloc::Locked, Alloc::Free)
    }

    fn change(&self, page: u32, from: Alloc, to: Alloc) -> bool {
        let was = self.read(page);
        let to = AllocWord::new(to, was.generation());
        was.state() == from
            && self.words.get(page as usize).is_some_and(|w| {
                w.compare_exchange(was.0, to.0, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            })
    }
}
