//! Extents: exclusive use of a run of pages, until given away.
//!
//! Allocation looks in this order, and stops at the first that has one:
//!
//! 1. what this space freed lately (still warm in this core's cache);
//! 2. the chunks whose home this space is, going round: what consumers free
//!    comes back in the order in which it went out;
//! 3. chunks whose home has died;
//! 4. a free chunk of the domain, or fresh memory from the kernel within the limit;
//! 5. under pressure: any free extent of the size, and whole chunks that others
//!    keep but do not use.
//!
//! Only when all five have nothing is it [`OutOfPages`].

use crate::member::Member;
use crate::{Disowned, Domain};
use portolan_abi::limits::{CHUNK, CHUNK_PAGES, PAGE};
use portolan_abi::owner::{Alloc, Born, ChunkUse, Descriptor, Size};
use portolan_shm::chunk::{Chunks, GiveBack};
use portolan_shm::mark;
use portolan_shm::owner::OwnerError;
use portolan_sys::memory;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, PoisonError};

/// Exclusive use of one extent, until sent, freed or dropped.
///
/// Not `Clone`: it is the capability. It reads and writes as a byte slice of
/// [`len`](Extent::len) bytes, at the same address in every member of the domain.
/// What a fresh extent holds is unspecified (it may have been used before).
///
/// ```
/// let domain = portolan::Domain::private()?;
/// let mut extent = domain.allocate(5000)?;
/// extent.fill(7);
/// assert_eq!((extent.len(), extent.capacity()), (5000, 8192));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a dropped extent goes back to the domain"]
pub struct Extent {
    member: Arc<Member>,
    page: u32,
    generation: u32,
    size: Size,
    len: usize,
}

/// An extent without its type's protection, as a C interface or another runtime holds it.
///
/// Copies of it may exist; [`Domain::adopt`] gives the extent to the first that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawExtent(Descriptor);

/// The state's: no extent of this size can be had within the domain's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no {wanted} bytes in one extent: {free} bytes of the domain are free and its limit is {limit}; receive or free messages, ask for less, or create the domain with a higher limit"
)]
pub struct OutOfPages {
    /// Bytes asked for.
    pub wanted: u64,
    /// Bytes that are free, in pieces that may be smaller.
    pub free: u64,
    /// Bytes that the domain may have.
    pub limit: u64,
}

/// Why no extent was given.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllocateError {
    /// See [`OutOfPages`].
    #[error(transparent)]
    OutOfPages(#[from] OutOfPages),
    /// See [`Disowned`].
    #[error(transparent)]
    Disowned(#[from] Disowned),
}

impl Domain {
    /// Allocates an extent of at least `bytes` bytes (one page at least); its `len` is `bytes`.
    ///
    /// # Errors
    ///
    /// [`OutOfPages`] when the domain's limit is reached; never a signal.
    pub fn allocate(&self, bytes: usize) -> Result<Extent, AllocateError> {
        allocate(self.member(), bytes)
    }

    /// Gives memory that no extent uses back to the system, in whole chunks of 2 MiB; how many
    /// bytes. Otherwise it is kept for later extents, of whatever member, and goes back when the
    /// limit is reached. For when much was in use and will not be soon.
    ///
    /// # Errors
    ///
    /// [`Disowned`].
    ///
    /// ```
    /// # use portolan::Domain;
    /// let domain = Domain::private()?;
    /// drop(domain.allocate(20 << 20)?);
    /// assert!(domain.trim()? >= 20 << 20);
    /// assert_eq!(domain.survey()?.memory.taken, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn trim(&self) -> Result<u64, Disowned> {
        let member = self.member();
        member.present()?;
        let chunks = &member.tables().chunks;
        {
            // As where room is looked for: nobody of this space allocates meanwhile.
            let _cache = member.cache.lock().unwrap_or_else(PoisonError::into_inner);
            give_all_back(member);
        }
        let before = chunks.populated();
        // Each time one fewer, or somebody else has taken it.
        for _ in 0..chunks.len() {
            if !release_one(member) {
                break;
            }
        }
        let given = before.saturating_sub(chunks.populated());
        Ok(given as u64 * CHUNK as u64)
    }

    /// Takes up an extent that was laid down with [`Extent::into_raw`].
    ///
    /// # Errors
    ///
    /// [`OwnerError`]: it was taken up, sent or freed before. Of two threads that
    /// adopt the same handle at the same instant, one succeeds.
    pub fn adopt(&self, raw: RawExtent) -> Result<Extent, OwnerError> {
        let member = self.member();
        let Descriptor {
            page,
            generation,
            size,
            len,
        } = raw.0;
        member.row().unpark(page, generation)?;
        Ok(Extent {
            member: Arc::clone(member),
            page,
            generation,
            size,
            len: usize::try_from(len).unwrap_or(0),
        })
    }
}

impl Extent {
    /// Bytes that belong to the message.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no byte belongs to the message.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that it could hold.
    pub fn capacity(&self) -> usize {
        self.size.bytes()
    }

    /// Its address, the same in every member.
    pub fn address(&self) -> usize {
        self.member.region.address(self.page)
    }

    /// Says how many bytes belong to the message.
    ///
    /// # Errors
    ///
    /// The capacity, if `len` is above it.
    pub fn set_len(&mut self, len: usize) -> Result<(), usize> {
        if len > self.capacity() {
            return Err(self.capacity());
        }
        self.len = len;
        Ok(())
    }

    /// Lays the extent down under a raw handle. It stays this space's until adopted.
    pub fn into_raw(mut self) -> RawExtent {
        let raw = RawExtent(self.descriptor());
        // The word says *held*: the extent is ours. If it does not, adopting will say so.
        let _ = self.member.row().park(self.page, self.generation);
        self.forget();
        raw
    }

    pub(crate) fn descriptor(&self) -> Descriptor {
        Descriptor {
            page: self.page,
            generation: self.generation,
            size: self.size,
            len: self.len as u64,
        }
    }

    /// An extent that this space has just taken: its owner word is written already.
    pub(crate) fn taken(member: &Arc<Member>, descriptor: Descriptor) -> Self {
        let Descriptor {
            page,
            generation,
            size,
            len,
        } = descriptor;
        Self {
            member: Arc::clone(member),
            page,
            generation,
            size,
            len: usize::try_from(len).unwrap_or(0),
        }
    }

    /// It belongs to somebody else now: dropping it does nothing.
    #[inline]
    pub(crate) fn forget(&mut self) {
        self.generation = NOBODYS;
    }

    pub(crate) fn pages(&self) -> (u32, Size) {
        (self.page, self.size)
    }

    pub(crate) fn member(&self) -> &Arc<Member> {
        &self.member
    }

    pub(crate) fn is_of(&self, member: &Arc<Member>) -> bool {
        Arc::ptr_eq(&self.member, member)
    }
}

/// No extent that was handed out has this generation: they begin at 1, and one would
/// have to be handed out four thousand million times to come round.
const NOBODYS: u32 = 0;

impl Deref for Extent {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.member.region.bytes(self.page, self.len)
    }
}

impl DerefMut for Extent {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        self.member.region.bytes_mut(self.page, self.len)
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        if self.generation != NOBODYS && self.member.present().is_ok() {
            free(&self.member, self.page, self.generation, self.size);
        }
    }
}

impl std::fmt::Debug for Extent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Extent")
            .field("page", &self.page)
            .field("len", &self.len)
            .field("capacity", &self.capacity())
            .finish()
    }
}

/// Most pages noted as freed lately, per size.
const NEAR: usize = 256;
/// Words of homed chunks that one allocation looks at, at the least.
const LOOK: usize = 64;

/// Extents near at hand.
#[derive(Default)]
pub(crate) struct Cache {
    sizes: Vec<Homed>,
    /// Reclaims of the domain when we last looked for chunks to adopt.
    reclaims: u64,
}

/// The chunks or runs of one size whose home this space is.
struct Homed {
    size: Size,
    near: Vec<u32>,
    chunks: Vec<usize>,
    /// Where the round goes on: chunk, extent in it.
    at: (usize, usize),
}

impl Cache {
    fn of(&mut self, size: Size) -> &mut Homed {
        let at = match self.sizes.iter().position(|h| h.size == size) {
            Some(at) => at,
            None => {
                self.sizes.push(Homed {
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

impl Homed {
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

    /// Goes round the homed chunks, over `look` extents at the most.
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

/// This second, for the age of an extent. The coarse clock: nothing but people asks.
pub(crate) fn now() -> Born {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    Born::at(u64::try_from(now.tv_sec).unwrap_or(0))
}

pub(crate) fn allocate(member: &Arc<Member>, bytes: usize) -> Result<Extent, AllocateError> {
    member.present()?;
    let size = Size::for_bytes(bytes);
    let (page, generation) = find(member, size).ok_or_else(|| out_of_pages(member, bytes))?;
    if let Some(guard) = &member.guard {
        guard.open(std::iter::once((page, size)));
    }
    Ok(Extent {
        member: Arc::clone(member),
        page,
        generation,
        size,
        len: bytes,
    })
}

fn find(member: &Member, size: Size) -> Option<(u32, u32)> {
    let tables = member.tables();
    if size.chunks() > tables.chunks.len() / 2 {
        return None;
    }
    let mut cache = member.cache.lock().unwrap_or_else(PoisonError::into_inner);
    let homed = cache.of(size);
    let look = LOOK.max(homed.chunks.len() * homed.per_chunk() / 8);
    if let Some(found) = homed.near(member).or_else(|| homed.round(member, look)) {
        return Some(found);
    }
    adopt(member, &mut cache);
    let homed = cache.of(size);
    if let Some(found) = homed.round(member, LOOK).or_else(|| grow(member, homed)) {
        return Some(found);
    }
    homed
        .round(member, usize::MAX)
        .or_else(|| scavenge(member, homed))
        .or_else(|| {
            give_all_back(member);
            grow(member, homed)
        })
}

/// Makes the chunks of dead homes ours, once after each death.
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
fn grow(member: &Member, homed: &mut Homed) -> Option<(u32, u32)> {
    let tables = member.tables();
    let count = homed.size.chunks().max(1);
    let first = tables
        .chunks
        .claim_run(tables.chunks.part(homed.size), count, member.space)?;
    mark!("allocate.run_claimed");
    let limit = tables
        .header
        .limit
        .load(std::sync::atomic::Ordering::Relaxed)
        / CHUNK as u64;
    // What we have just claimed is in this count already.
    while tables.chunks.populated() as u64 > limit {
        if !release_one(member) {
            tables.chunks.abandon(first, count);
            return None;
        }
    }
    if !populate(member, first, count) {
        tables.chunks.abandon(first, count);
        return None;
    }
    tables
        .chunks
        .cut(&tables.alloc, first, homed.size, member.space);
    homed.chunks.push(first);
    homed.at = (homed.chunks.len() - 1, 0);
    homed.round(member, LOOK)
}

/// Gives the memory of one free chunk to the kernel, so that it can be used elsewhere.
fn release_one(member: &Member) -> bool {
    let tables = member.tables();
    let chunks = &tables.chunks;
    let idle = |i: &usize| {
        let word = chunks.read(*i);
        word.r#use == ChunkUse::Free && word.populated
    };
    let Some(found) = (0..chunks.len()).find(idle) else {
        return false;
    };
    let Some(index) = chunks.claim_run(found..found + 1, 1, member.space) else {
        // Somebody was faster; look again.
        return true;
    };
    let punched = memory::punch(
        member.region.fd(),
        member.region.offset(Chunks::first_page(index)),
        CHUNK as u64,
    )
    .is_ok();
    if punched {
        chunks.note_empty(index);
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
        if memory::allocate(member.region.fd(), offset, CHUNK as u64).is_err() {
            return false;
        }
        let huge = large
            && match &member.guard {
                Some(guard) => guard.collapse(page),
                None => memory::collapse(address, CHUNK).unwrap_or(false),
            };
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

/// Any free extent of the size, whoever its home is.
fn scavenge(member: &Member, homed: &Homed) -> Option<(u32, u32)> {
    let tables = member.tables();
    tables.chunks.part(homed.size).find_map(|index| {
        let word = tables.chunks.read(index);
        let page = Chunks::first_page(index);
        if word.size != homed.size.code() || !tables.chunks.is_cut(page, homed.size) {
            return None;
        }
        Chunks::extents(index, homed.size)
            .find_map(|page| claim(member, page, homed.size).map(|generation| (page, generation)))
    })
}

/// Gives every unused chunk back to the domain, whoever its home is.
fn give_all_back(member: &Member) -> usize {
    let tables = member.tables();
    (0..tables.chunks.len())
        .map(
            |index| match tables.chunks.give_back(&tables.alloc, index, member.space) {
                GiveBack::Done(count) => count,
                GiveBack::Busy => 0,
            },
        )
        .sum()
}

#[cold]
fn out_of_pages(member: &Member, wanted: usize) -> OutOfPages {
    let tables = member.tables();
    let limit = tables
        .header
        .limit
        .load(std::sync::atomic::Ordering::Relaxed);
    let out = OutOfPages {
        wanted: wanted as u64,
        free: free_bytes(member),
        limit,
    };
    let OutOfPages { wanted, free, .. } = out;
    let (domain, space) = (member.domain.as_str(), member.space);
    // The caller is told, and may well be prepared for it.
    tracing::debug!(domain, space, wanted, free, limit, "out of pages");
    out
}

/// Bytes that could still be handed out, in whatever pieces.
pub(crate) fn free_bytes(member: &Member) -> u64 {
    let tables = member.tables();
    let limit = tables
        .header
        .limit
        .load(std::sync::atomic::Ordering::Relaxed);
    let fresh = limit.saturating_sub(tables.chunks.populated() as u64 * CHUNK as u64);
    let kept: u64 = (0..tables.chunks.len())
        .map(|index| {
            let word = tables.chunks.read(index);
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
    if tables.chunks.read(Chunks::of_page(page)).home == member.space {
        let mut cache = member.cache.lock().unwrap_or_else(PoisonError::into_inner);
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
