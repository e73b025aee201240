//! Chunk words say what each chunk of 2 MiB of the pool is: free, cut into extents of one size, or
//! part of a run.
//!
//! ```text
//!         claim             cut              give back (all extents withdrawn first)
//! free ----------> taking ----------> small ----------------> returning ---> free
//!                        \----------> head, body, body ...  --^
//! ```
//!
//! A chunk's *cache owner* is the space that looks there first for a free extent, so
//! that what a consumer frees flows back to its producer. It is a preference:
//! extents are claimed by compare-exchange, and under pressure by any space.
//!
//! # Invariants
//!
//! - **C1** Extents of a chunk do not overlap: while it is *free*, *taking* or
//!   *returning* every allocation word of it is locked or was never unlocked, and
//!   after a claim of a word the chunk's word is checked again.
//! - **C2** A chunk that is *taking* or *returning* names the space that does it, and
//!   the host finishes the step backwards after that space's death.
//!   A *returning* chunk keeps its old cache owner as argument, until that dies too.
//! - **C3** Memory is taken from the kernel while a chunk is *taking*, so before
//!   any process touches it.
//! - **C4** A chunk that says *populated* has all its memory: it says so after its memory was
//!   taken, and no longer before any of it is given back. A death in between leaves a *taking*
//!   chunk that does not say so, whose memory the host gives back. (Where pages are guarded
//!   no space can open a hole: its owner would die of it.)
//!
//! A fresh file is all zeros, which reads as free chunks, and as *free* allocation
//! words of generation 0; a word of a chunk that is not cut is never claimed (C1:
//! the check of the chunk's word undoes it).

use crate::atomic::{AtomicU64, Ordering};
use crate::mark;
use crate::owner::AllocWords;
use portolan_abi::limits::CHUNK_PAGES;
use portolan_abi::owner::{Alloc, ChunkUse, ChunkWord, Size};

/// The chunk words of a region: the small part's, then the large part's.
#[derive(Clone, Copy)]
pub struct Chunks<'r> {
    words: &'r [AtomicU64],
}

/// What giving a chunk or run back came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiveBack {
    /// It is free now: so many chunks.
    Done(usize),
    /// An extent of it is in use, or another space is changing it.
    Busy,
}

/// The word of a chunk once it is free. It keeps its memory.
fn freed(word: ChunkWord) -> ChunkWord {
    ChunkWord {
        r#use: ChunkUse::Free,
        cache_owner: 0,
        size: 0,
        argument: 0,
        ..word
    }
}

impl<'r> Chunks<'r> {
    /// The words, an even number of them.
    pub fn new(words: &'r [AtomicU64]) -> Self {
        Self { words }
    }

    /// Chunks of both parts.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Indices of the part that holds extents of `size`.
    pub fn part(&self, size: Size) -> core::ops::Range<usize> {
        let half = self.words.len() / 2;
        if size.small().is_some() {
            0..half
        } else {
            half..self.words.len()
        }
    }

    /// The word of chunk `index`; a body of nothing for one that does not exist.
    #[inline]
    pub fn read(&self, index: usize) -> ChunkWord {
        match self.words.get(index) {
            // Acquire: who cut it unlocked its allocation words before.
            Some(word) => ChunkWord::unpack(word.load(Ordering::Acquire)),
            None => ChunkWord {
                r#use: ChunkUse::Body,
                ..ChunkWord::FRESH
            },
        }
    }

    /// First page of chunk `index`.
    #[inline]
    pub fn first_page(index: usize) -> u32 {
        u32::try_from(index * CHUNK_PAGES).unwrap_or(u32::MAX)
    }

    /// The chunk that holds `page`.
    #[inline]
    pub fn of_page(page: u32) -> usize {
        page as usize / CHUNK_PAGES
    }

    fn change(&self, index: usize, from: ChunkWord, to: ChunkWord) -> bool {
        self.words.get(index).is_some_and(|w| {
            w.compare_exchange(from.pack(), to.pack(), Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
        })
    }

    fn set(&self, index: usize, to: ChunkWord) {
        if let Some(word) = self.words.get(index) {
            // Release: what was done to the chunk's extents comes first.
            #[cfg(not(loom))]
            word.store(to.pack(), Ordering::Release);
            // Loom lets a store slip between the two halves of a compare-exchange; nothing else does.
            #[cfg(loom)]
            word.swap(to.pack(), Ordering::Release);
        }
    }

    /// The chunks of a range that somebody has taken since the region was made, or has memory for. All
    /// others are [`ChunkWord::FRESH`]: mostly nearly all, and passed over quickly.
    pub fn touched(
        &self,
        range: core::ops::Range<usize>,
    ) -> impl Iterator<Item = (usize, ChunkWord)> + use<'r> {
        const FRESH: u64 = 0;
        let words = self.words.get(range.clone()).unwrap_or_default();
        let touched = (range.start..).zip(words).filter_map(|(index, word)| {
            // Acquire: as `read`.
            let word = word.load(Ordering::Acquire);
            (word != FRESH).then_some((index, word))
        });
        touched.map(|(index, word)| (index, ChunkWord::unpack(word)))
    }

    /// Chunks whose memory was taken from the kernel, or is being taken.
    pub fn populated(&self) -> usize {
        self.memory().0
    }

    /// The same, and how many of them are free.
    pub fn memory(&self) -> (usize, usize) {
        let (mut populated, mut free) = (0, 0);
        for (_, word) in self.touched(0..self.len()) {
            let has_memory = word.populated || word.r#use == ChunkUse::Taking;
            populated += usize::from(has_memory);
            free += usize::from(word.populated && word.r#use == ChunkUse::Free);
        }
        (populated, free)
    }

    /// Chunks that are free, and how many of them have memory.
    pub fn free(&self, part: core::ops::Range<usize>) -> (usize, usize) {
        let free: Vec<ChunkWord> = part
            .map(|i| self.read(i))
            .filter(|w| w.r#use == ChunkUse::Free)
            .collect();
        (free.len(), free.iter().filter(|w| w.populated).count())
    }

    /// Claims `count` free chunks in a row for `cache_owner`, populated ones rather than fresh
    /// ones; the index of the first. They are *taking* until [`Chunks::cut`] or
    /// [`Chunks::abandon`].
    pub fn claim_run(
        &self,
        part: core::ops::Range<usize>,
        count: usize,
        cache_owner: u8,
    ) -> Option<usize> {
        [true, false]
            .into_iter()
            .find_map(|populated| self.claim_run_of(part.clone(), count, cache_owner, populated))
    }

    fn claim_run_of(
        &self,
        part: core::ops::Range<usize>,
        count: usize,
        cache_owner: u8,
        populated: bool,
    ) -> Option<usize> {
        let usable = |w: ChunkWord| w.r#use == ChunkUse::Free && (w.populated || !populated);
        let mut first = part.start;
        while first + count <= part.end {
            match (first..first + count)
                .rev()
                .find(|i| !usable(self.read(*i)))
            {
                Some(obstacle) => first = obstacle + 1,
                None if self.try_claim(first, count, cache_owner) => return Some(first),
                None => first += 1,
            }
        }
        None
    }

    fn try_claim(&self, first: usize, count: usize, cache_owner: u8) -> bool {
        for index in first..first + count {
            let was = self.read(index);
            let taking = ChunkWord {
                r#use: ChunkUse::Taking,
                cache_owner,
                argument: 0,
                size: 0,
                ..was
            };
            if was.r#use != ChunkUse::Free || !self.change(index, was, taking) {
                self.abandon(first, index - first);
                return false;
            }
            mark!("chunk.claimed");
        }
        true
    }

    /// Notes that a chunk that we are taking has its memory, as one huge page or not.
    pub fn note_populated(&self, index: usize, huge: bool) {
        let word = self.read(index);
        self.set(
            index,
            ChunkWord {
                populated: true,
                huge,
                ..word
            },
        );
        mark!("chunk.populated");
    }

    /// Notes that a chunk that we are taking has no memory, before that is given to the kernel
    /// (C4); the word as it was.
    pub fn note_empty(&self, index: usize) -> ChunkWord {
        let word = self.read(index);
        self.set(
            index,
            ChunkWord {
                populated: false,
                huge: false,
                ..word
            },
        );
        mark!("chunk.emptied");
        word
    }

    /// Gives chunks that we are taking back untouched.
    pub fn abandon(&self, first: usize, count: usize) {
        for index in first..first + count {
            let word = self.read(index);
            self.set(index, freed(word));
        }
    }

    /// Cuts chunks that we are taking into extents of `size` (one chunk into many, or all into one).
    pub fn cut(&self, alloc: &AllocWords<'_>, first: usize, size: Size, cache_owner: u8) {
        let head = u32::try_from(first).unwrap_or(u32::MAX);
        for index in first + 1..first + size.chunks() {
            let word = self.read(index);
            self.set(
                index,
                ChunkWord {
                    r#use: ChunkUse::Body,
                    cache_owner,
                    size: size.code(),
                    argument: head,
                    ..word
                },
            );
        }
        mark!("chunk.bodies");
        let word = self.read(first);
        let r#use = if size.small().is_some() {
            ChunkUse::Small
        } else {
            ChunkUse::Head
        };
        self.set(
            first,
            ChunkWord {
                r#use,
                cache_owner,
                size: size.code(),
                argument: 0,
                ..word
            },
        );
        for page in Self::extents(first, size) {
            alloc.unlock(page);
        }
    }

    /// First pages of the extents of `size` that chunk `index` is cut into.
    pub fn extents(index: usize, size: Size) -> impl Iterator<Item = u32> {
        let first = Self::first_page(index);
        let step = size.pages().min(CHUNK_PAGES);
        (0..CHUNK_PAGES / step).map(move |i| first + u32::try_from(i * step).unwrap_or(0))
    }

    /// Whether the chunk of `page` is cut into extents of `size`, so that a claim of
    /// its allocation word holds (C1).
    #[inline]
    pub fn is_cut(&self, page: u32, size: Size) -> bool {
        let word = self.read(Self::of_page(page));
        matches!(word.r#use, ChunkUse::Small | ChunkUse::Head) && word.size == size.code()
    }

    /// Gives a chunk or a run back to the domain, if no extent of it is in use. Any space may call
    /// it.
    pub fn give_back(&self, alloc: &AllocWords<'_>, index: usize, by: u8) -> GiveBack {
        let was = self.read(index);
        let Some(size) = Size::from_code(was.size)
            .filter(|_| matches!(was.r#use, ChunkUse::Small | ChunkUse::Head))
        else {
            return GiveBack::Busy;
        };
        let any_used = Self::extents(index, size).any(|p| alloc.read(p).state() != Alloc::Free);
        let returning = ChunkWord {
            r#use: ChunkUse::Returning,
            cache_owner: by,
            argument: u32::from(was.cache_owner),
            ..was
        };
        if any_used || !self.change(index, was, returning) {
            return GiveBack::Busy;
        }
        mark!("chunk.returning");
        let busy = Self::extents(index, size).find(|p| !alloc.lock(*p));
        if let Some(busy) = busy {
            for page in Self::extents(index, size).take_while(|p| *p != busy) {
                alloc.unlock(page);
            }
            // Twice at the most: the host may note meanwhile that the old cache owner is dead.
            loop {
                let word = self.read(index);
                let cache_owner = word.argument.to_le_bytes()[0];
                if self.change(
                    index,
                    word,
                    ChunkWord {
                        r#use: was.r#use,
                        cache_owner,
                        argument: 0,
                        ..word
                    },
                ) {
                    return GiveBack::Busy;
                }
            }
        }
        mark!("chunk.withdrawn");
        self.free_run(index, size)
    }

    /// Bodies first, the head last: a half-freed run still shows its head (C2).
    fn free_run(&self, index: usize, size: Size) -> GiveBack {
        let count = size.chunks().max(1);
        for i in (index..index + count).rev() {
            let word = self.read(i);
            self.set(i, freed(word));
            mark!("chunk.freed");
        }
        GiveBack::Done(count)
    }

    /// Host: finishes what dead `space` was doing to chunk `index`, and puts the chunk
    /// up for adoption.
    ///
    /// `true` if its memory may be half populated: it stays *taking* until the caller has
    /// given that memory to the kernel and called [`Chunks::abandon`].
    pub fn reclaim(&self, alloc: &AllocWords<'_>, index: usize, space: u8) -> bool {
        let mut word = self.read(index);
        // Another space is giving it back; it is not to return to a dead cache owner.
        while word.r#use == ChunkUse::Returning
            && word.cache_owner != space
            && word.argument == u32::from(space)
        {
            if self.change(
                index,
                word,
                ChunkWord {
                    argument: 0,
                    ..word
                },
            ) {
                return false;
            }
            word = self.read(index);
        }
        if word.cache_owner != space {
            return false;
        }
        match word.r#use {
            ChunkUse::Taking if word.populated => {
                self.abandon(index, 1);
                false
            }
            ChunkUse::Taking => true,
            // A body whose head never came about: its claimer died while cutting.
            ChunkUse::Body if !self.has_head(word) => {
                // By compare-exchange: or its run was given back this instant, and it is
                // another space's by now.
                self.change(index, word, freed(word));
                false
            }
            ChunkUse::Returning => {
                let size = Size::from_code(word.size).unwrap_or(Size::for_bytes(1));
                let small = size.small().is_some();
                // Not freed yet: make it whole again. Bodies that were freed already mean that
                // all extents were withdrawn, so the rest is freed too.
                let begun = !small
                    && (index + 1..index + size.chunks()).any(|i| {
                        self.read(i).r#use != ChunkUse::Body
                            || self.read(i).argument as usize != index
                    });
                if begun {
                    self.free_run_rest(index, size);
                } else {
                    let r#use = if small {
                        ChunkUse::Small
                    } else {
                        ChunkUse::Head
                    };
                    self.set(
                        index,
                        ChunkWord {
                            r#use,
                            cache_owner: 0,
                            argument: 0,
                            ..word
                        },
                    );
                    for page in Self::extents(index, size) {
                        alloc.unlock(page);
                    }
                }
                false
            }
            ChunkUse::Small | ChunkUse::Head => {
                // A cutter that died may have left words locked.
                if let Some(size) = Size::from_code(word.size) {
                    for page in Self::extents(index, size) {
                        alloc.unlock(page);
                    }
                }
                if !self.change(
                    index,
                    word,
                    ChunkWord {
                        cache_owner: 0,
                        ..word
                    },
                ) {
                    // Another space began to give it back, or has done so.
                    return self.reclaim(alloc, index, space);
                }
                false
            }
            ChunkUse::Body | ChunkUse::Free => {
                self.change(
                    index,
                    word,
                    ChunkWord {
                        cache_owner: 0,
                        ..word
                    },
                );
                false
            }
        }
    }

    fn has_head(&self, body: ChunkWord) -> bool {
        let head = self.read(body.argument as usize);
        matches!(head.r#use, ChunkUse::Head | ChunkUse::Returning) && head.size == body.size
    }

    fn free_run_rest(&self, index: usize, size: Size) {
        let ours = |w: ChunkWord| w.r#use == ChunkUse::Body && w.argument as usize == index;
        for i in index + 1..index + size.chunks() {
            let word = self.read(i);
            if ours(word) {
                self.set(i, freed(word));
            }
        }
        let word = self.read(index);
        self.set(index, freed(word));
    }

    /// Makes `space` the cache owner of a chunk or run whose cache owner is dead.
    pub fn adopt(&self, index: usize, space: u8) -> bool {
        let was = self.read(index);
        was.cache_owner == 0
            && matches!(was.r#use, ChunkUse::Small | ChunkUse::Head)
            && self.change(
                index,
                was,
                ChunkWord {
                    cache_owner: space,
                    ..was
                },
            )
    }
}
