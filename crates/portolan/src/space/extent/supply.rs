//! Takes extents from chunks, and gives them and chunks back.
//!
//! Allocation looks in this order, and stops at the first that has one:
//!
//! 1. what this space freed lately (still warm in this core's cache);
//! 2. the chunks whose cache owner this space is, going round: what consumers free
//!    comes back in the order in which it went out;
//! 3. chunks whose cache owner has died;
//! 4. a free chunk of the domain, or fresh memory from the kernel within the limit;
//! 5. under pressure: any free extent of the size, and whole chunks that others
//!    keep but do not use.
//!
//! Only when all five have nothing is it [`AllocateError::OutOfPages`].
//!
//! # Locks
//!
//! `member.cache` is held for as long as it takes to look, and across no system call. From step
//! 3 on a thread also holds `member.growth`, across the calls that take memory from the kernel
//! or give it back: of one process one thread does so at a time, and a thread that waits for it
//! finds its chunk afterwards instead of taking another. Threads that find something in steps 1
//! and 2, and threads that free, do not wait.

use super::{AllocateError, Extent};
use crate::sabotage;
use crate::space::Member;
use portolan_abi::limits::{CHUNK, CHUNK_PAGES, PAGE};
use portolan_abi::owner::{Alloc, Born, ChunkUse, Size};
use portolan_shm::chunk::{Chunks, GiveBack};
use portolan_shm::mark;
use portolan_sys::memory;
use std::sync::{Arc, MutexGuard, PoisonError};

/// Most pages noted as freed lately, per size.
const NEAR: usize = 256;
/// Words of cached chunks that one allocation looks at, at the least.
const LOOK: usize = 64;

/// Extents near at hand.
#[derive(Default)]
pub(crate) struct Cache {
    sizes: Vec<Cached>,
    /// Reclaims of the domain when we last looked for chunks to adopt.
    reclaims: u64,
}

/// The chunks or runs of one size whose cache owner this space is.
struct Cached {
    size: Size,
    near: Vec<u32>,
    chunks: Vec<usize>,
    /// Where the round goes on: chunk, extent in it.
    at: (usize, usize),
}

impl Cache {
    fn of(&mut self, size: Size) -> &mut Cached {
        let at = match self.sizes.iter().position(|h| h.size == size) {
            Some(at) => at,
            None => {
                self.sizes.push(Cached {
                    size,
                    near: Vec::new(),
                    chunks: Vec::new(),
                    at: (0, 0),
                });
                self.sizes.len() - 1
            }
        };
        &mut self.sizes[at]
    }
}

fn cache(member: &Member) -> MutexGuard<'_, Cache> {
    member.cache.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cached {
    fn per_chunk(&self) -> usize {
        (CHUNK_PAGES / self.size.pages()).max(1)
    }

    fn near(&mut self, member: &Member) -> Option<(u32, u32)> {
        while let Some(page) = self.near.pop() {
            if let Some(generation) = claim(member, page, self.size) {
                return Some((page, generation));
            }
        }
        None
    }

    /// Goes on with a chunk or run that we have cut.
    fn add(&mut self, member: &Member, chunk: usize) {
        let chunks = &member.tables().chunks;
        // Some were given back since, and this one may have been among them.
        self.chunks.retain(|known| {
            let is_ours = chunks.read(*known).cache_owner == member.space;
            is_ours && *known != chunk && chunks.is_cut(Chunks::first_page(*known), self.size)
        });
        self.chunks.push(chunk);
        self.at = (self.chunks.len() - 1, 0);
    }

    /// What was freed lately, or is found on the way round.
    fn quick(&mut self, member: &Member) -> Option<(u32, u32)> {
        let look = LOOK.max(self.chunks.len() * self.per_chunk() / 8);
        self.near(member).or_else(|| self.round(member, look))
    }

    /// Goes round the cached chunks, over `look` extents at the most.
    fn round(&mut self, member: &Member, look: usize) -> Option<(u32, u32)> {
        let per_chunk = self.per_chunk();
        for _ in 0..look.min(self.chunks.len() * per_chunk) {
            let (chunk, extent) = self.at;
            let first = Chunks::first_page(*self.chunks.get(chunk)?);
            let step = self.size.pages().min(CHUNK_PAGES);
            let page = first + u32::try_from(extent * step).unwrap_or(0);
            self.at = if extent + 1 < per_chunk {
                (chunk, extent + 1)
            } else {
                ((chunk + 1) % self.chunks.len(), 0)
            };
            if let Some(generation) = claim(member, page, self.size) {
                return Some((page, generation));
            }
        }
        None
    }
}

/// Claims one extent if it is free and its chunk still cut as we believe (C1).
fn claim(member: &Member, page: u32, size: Size) -> Option<u32> {
    let tables = member.tables();
    let generation = tables.alloc.allocate(&member.row(), page, now())?;
    if tables.chunks.is_cut(page, size) {
        return Some(generation);
    }
    // Undo: the chunk was given back and cut anew since we noted the page.
    let _ = tables.alloc.free(&member.row(), page, generation);
    None
}

/// What ports have of the domain's memory, and give back for want of it.
#[derive(Clone, Copy)]
pub(crate) struct Relief {
    /// Gives back queue memory that no port has; how many bytes.
    pub(crate) empty_spare: fn(&Member) -> u64,
    /// Closes ports whose receive rights no space can reach; whether there was one.
    pub(crate) close_unreachable: fn(&Member) -> bool,
}

/// This second, for the age of an extent. The coarse clock: nothing but people asks.
pub(crate) fn now() -> Born {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    Born::at(u64::try_from(now.tv_sec).unwrap_or(0))
}

pub(crate) fn allocate(member: &Arc<Member>, bytes: usize) -> Result<Extent, AllocateError> {
    allocate_here(member, bytes)
}

/// The same, where what calls it writes the extent to a place of its own.
#[inline(always)]
pub(super) fn allocate_here(member: &Arc<Member>, bytes: usize) -> Result<Extent, AllocateError> {
    member.present()?;
    let size = Size::for_bytes(bytes);
    let (page, generation) = match find(member, size, bytes) {
        Some(found) => found,
        None => find_after_all(member, size, bytes)?,
    };
    if let Some(guard) = &member.guard {
        guard.open(std::iter::once((page, size)));
    }
    Ok(Extent {
        member: Some(Arc::clone(member)),
        page,
        generation,
        size,
        len: bytes,
    })
}

/// The same, of memory that ports have which nobody can reach.
#[cold]
#[inline(never)]
fn find_after_all(member: &Member, size: Size, bytes: usize) -> Result<(u32, u32), AllocateError> {
    let closed = (member.relief.close_unreachable)(member);
    let found = closed.then(|| find(member, size, bytes)).flatten();
    found.ok_or_else(|| out_of_pages(member, bytes))
}

/// A free extent of the size, which is that of `bytes` bytes if there is one so large.
fn find(member: &Member, size: Size, bytes: usize) -> Option<(u32, u32)> {
    let tables = member.tables();
    if size.chunks() > tables.chunks.len() / 2 || size.bytes() < bytes {
        return None;
    }
    if let Some(found) = cache(member).of(size).quick(member) {
        return Some(found);
    }
    let _turn = member.growth.lock().unwrap_or_else(PoisonError::into_inner);
    let near_at_hand = || {
        let mut cache = cache(member);
        adopt(member, &mut cache);
        // Also what the thread has cut that had the turn before.
        cache.of(size).quick(member)
    };
    near_at_hand()
        .or_else(|| grow(member, size))
        .or_else(|| cache(member).of(size).round(member, usize::MAX))
        .or_else(|| scavenge(member, size))
        .or_else(|| {
            give_all_back(member);
            grow(member, size)
        })
}

/// Makes the chunks of dead cache owners ours, once after each death.
fn adopt(member: &Member, cache: &mut Cache) {
    let tables = member.tables();
    let reclaims = tables
        .header
        .reclaims
        .value
        .load(std::sync::atomic::Ordering::Acquire);
    if reclaims == cache.reclaims {
        return;
    }
    cache.reclaims = reclaims;
    for index in 0..tables.chunks.len() {
        if tables.chunks.adopt(index, member.space)
            && let Some(size) = Size::from_code(tables.chunks.read(index).size)
        {
            cache.of(size).chunks.push(index);
        }
    }
}

/// Takes a free chunk or run of the domain, with memory from the kernel if it has none.
fn grow(member: &Member, size: Size) -> Option<(u32, u32)> {
    let tables = member.tables();
    let count = size.chunks().max(1);
    let first = tables
        .chunks
        .claim_run(tables.chunks.part(size), count, member.space)?;
    mark!("allocate.run_claimed");
    let limit = tables
        .header
        .limit
        .load(std::sync::atomic::Ordering::Relaxed)
        / CHUNK as u64;
    loop {
        // What we have just claimed is in this count already.
        let (populated, free) = tables.chunks.memory();
        let over = (populated as u64 + queue_chunks(member)).saturating_sub(limit);
        if over == 0 {
            break;
        }
        // Memory that is not enough stays where it is: the next taker would have to have it
        // zeroed, and a caller without memory asks again and again.
        let enough = over <= free as u64 && release_one(member);
        if !enough && (member.relief.empty_spare)(member) == 0 {
            tables.chunks.abandon(first, count);
            return None;
        }
    }
    if !populate(member, first, count) {
        tables.chunks.abandon(first, count);
        return None;
    }
    tables.chunks.cut(&tables.alloc, first, size, member.space);
    let mut cache = cache(member);
    let cached = cache.of(size);
    cached.add(member, first);
    cached.round(member, LOOK)
}

/// Chunks' worth of memory that queues may have within the limit.
fn queue_chunks(member: &Member) -> u64 {
    let chunks = &member.tables().header.queue_chunks.value;
    // SeqCst: of two that take memory at once, an extent's and a queue's, one sees the other's.
    chunks.load(std::sync::atomic::Ordering::SeqCst)
}

/// Gives the memory of one free chunk to the kernel, so that it can be used elsewhere.
pub(super) fn release_one(member: &Member) -> bool {
    let tables = member.tables();
    let chunks = &tables.chunks;
    let mut touched = chunks.touched(0..chunks.len());
    let idle = touched.find(|(_, word)| word.r#use == ChunkUse::Free && word.populated);
    let Some((found, _)) = idle else {
        return false;
    };
    let Some(index) = chunks.claim_run(found..found + 1, 1, member.space) else {
        // Another space was faster; look again.
        return true;
    };
    // The note first (C4): a space that dies here leaves a chunk that says it has no memory, and
    // the host gives back what it has. The other way round the next taker would be handed a hole.
    let noted = sabotage::holds("holes").then(|| chunks.note_empty(index));
    let offset = member.region.offset(Chunks::first_page(index));
    let punched = memory::punch(member.region.fd(), offset, CHUNK as u64).is_ok();
    mark!("chunk.punched");
    let was = noted.unwrap_or_else(|| chunks.note_empty(index));
    if !punched && was.populated {
        chunks.note_populated(index, was.huge);
    }
    chunks.abandon(index, 1);
    punched
}

/// Takes memory from the kernel for chunks that we are taking (C3).
fn populate(member: &Member, first: usize, count: usize) -> bool {
    let tables = member.tables();
    let large = tables.chunks.part(Size::run(1)).contains(&first);
    for index in first..first + count {
        if tables.chunks.read(index).populated {
            continue;
        }
        let page = Chunks::first_page(index);
        let (address, offset) = (member.region.address(page), member.region.offset(page));
        let allocate = |len| memory::allocate(member.region.fd(), offset, len as u64);
        let huge = large
            && match &member.guard {
                Some(guard) => allocate(CHUNK).is_ok() && guard.collapse(page),
                // One small page is enough for the kernel to make a huge one of the hole. Of a chunk
                // of small ones it would zero each, and copy each.
                None => allocate(PAGE).is_ok() && memory::collapse_quickly(address, CHUNK),
            };
        if !huge && allocate(CHUNK).is_err() {
            return false;
        }
        if member.guard.is_none() {
            // Map them here and now; a failure only means a fault later.
            let _ = memory::populate_write(address, CHUNK);
            // Where others close pages, none are locked, not even by a member that does not.
            let lockable = member.protection != crate::Protection::Guarded;
            let options = tables
                .header
                .options
                .load(std::sync::atomic::Ordering::Relaxed);
            if lockable && options & 1 != 0 {
                let _ = memory::lock(address, CHUNK, memory::Lock::Now);
            }
        }
        tables.chunks.note_populated(index, huge);
    }
    true
}

/// Claims any free extent of the size, of any cache owner.
fn scavenge(member: &Member, size: Size) -> Option<(u32, u32)> {
    let tables = member.tables();
    let mut touched = tables.chunks.touched(tables.chunks.part(size));
    touched.find_map(|(index, word)| {
        let page = Chunks::first_page(index);
        if word.size != size.code() || !tables.chunks.is_cut(page, size) {
            return None;
        }
        Chunks::extents(index, size)
            .find_map(|page| claim(member, page, size).map(|generation| (page, generation)))
    })
}

/// Gives every unused chunk back to the domain, of any cache owner.
pub(super) fn give_all_back(member: &Member) -> usize {
    let tables = member.tables();
    let touched = tables.chunks.touched(0..tables.chunks.len());
    touched
        .map(
            |(index, _)| match tables.chunks.give_back(&tables.alloc, index, member.space) {
                GiveBack::Done(count) => count,
                GiveBack::Busy => 0,
            },
        )
        .sum()
}

#[cold]
fn out_of_pages(member: &Member, wanted: usize) -> AllocateError {
    let tables = member.tables();
    let limit = tables
        .header
        .limit
        .load(std::sync::atomic::Ordering::Relaxed);
    let (wanted, free) = (wanted as u64, free_bytes(member));
    let (domain, space) = (member.domain.as_str(), member.space);
    // The caller is told, and may well be prepared for it.
    tracing::debug!(domain, space, wanted, free, limit, "out of pages");
    AllocateError::OutOfPages {
        wanted,
        free,
        limit,
    }
}

/// Bytes that could still be handed out, in whatever pieces.
fn free_bytes(member: &Member) -> u64 {
    let tables = member.tables();
    let limit = tables
        .header
        .limit
        .load(std::sync::atomic::Ordering::Relaxed);
    let taken = tables.chunks.populated() as u64 + queue_chunks(member);
    let fresh = limit.saturating_sub(taken * CHUNK as u64);
    let kept: u64 = tables
        .chunks
        .touched(0..tables.chunks.len())
        .map(|(index, word)| {
            let Some(size) = Size::from_code(word.size)
                .filter(|s| tables.chunks.is_cut(Chunks::first_page(index), *s))
            else {
                return if word.populated && word.r#use == ChunkUse::Free {
                    CHUNK as u64
                } else {
                    0
                };
            };
            let free = Chunks::extents(index, size)
                .filter(|p| tables.alloc.read(*p).state() == Alloc::Free)
                .count();
            (free * size.bytes()) as u64
        })
        .sum();
    fresh + kept
}

/// Frees an extent of this space.
pub(crate) fn free(member: &Member, page: u32, generation: u32, size: Size) {
    let tables = member.tables();
    if let Some(guard) = &member.guard {
        // Before the word says free. Not ours any more: then there is nothing to close.
        if member.row().check(page, generation).is_err() {
            return;
        }
        // What cannot be closed is kept until this process ends, rather than left open.
        if guard.close(std::iter::once((page, size))).is_err() {
            return;
        }
    }
    // Refused only if the word is not ours any more, and then there is nothing to free.
    if tables.alloc.free(&member.row(), page, generation).is_err() {
        return;
    }
    if tables.chunks.read(Chunks::of_page(page)).cache_owner == member.space {
        let mut cache = cache(member);
        let near = &mut cache.of(size).near;
        if near.len() < NEAR {
            near.push(page);
        }
    }
}

/// Maps the pages of an extent that this process may never have touched.
pub(crate) fn map(member: &Member, page: u32, size: Size) {
    // A failure only means that the first touch faults.
    let _ = memory::populate_write(member.region.address(page), size.bytes());
}

const _: () = assert!(PAGE * CHUNK_PAGES == CHUNK);
