//! An extent gives its owner exclusive use of a run of pages, until it is given away.

mod supply;

pub(crate) use supply::{Cache, Relief, allocate, free, map, now};

use crate::space::Member;
use crate::{Disowned, Domain};
use portolan_abi::limits::CHUNK;
use portolan_abi::owner::{Descriptor, Size};
use portolan_shm::owner::OwnerError;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, PoisonError};
use supply::{allocate_here, give_all_back, release_one};

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
    /// Gone once the extent is another space's: dropping it does nothing then.
    member: Option<Arc<Member>>,
    page: u32,
    generation: u32,
    size: Size,
    len: usize,
}

/// An extent without its type's protection, as a C interface or another runtime holds it.
///
/// Copies of it may exist; [`Domain::adopt`] gives the extent to the first that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawExtent {
    descriptor: Descriptor,
    /// Which membership's it is: no other one of this process has the same number, nor had it.
    membership: u64,
}

/// Why no extent was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocateError {
    /// The state's: no extent of this size can be had within the domain's limit.
    #[error(
        "no {wanted} bytes in one extent: {free} bytes of the domain are free and its limit is {limit}; receive or free messages, ask for less, or create the domain with a higher limit"
    )]
    OutOfPages {
        /// Bytes asked for.
        wanted: u64,
        /// Bytes that are free, in pieces that may be smaller.
        free: u64,
        /// Bytes that the domain may have.
        limit: u64,
    },
    /// See [`Disowned`].
    #[error(transparent)]
    Disowned(#[from] Disowned),
}

/// Gives the memory of one chunk that no extent uses to the kernel, if there is one.
pub(crate) fn release(member: &Member) -> bool {
    release_one(member) || {
        // As where room is looked for: no thread of this space allocates meanwhile.
        let _cache = member.cache.lock().unwrap_or_else(PoisonError::into_inner);
        give_all_back(member) > 0 && release_one(member)
    }
}

impl Domain {
    /// Allocates an extent of at least `bytes` bytes (one page at least); its `len` is `bytes`.
    ///
    /// # Errors
    ///
    /// [`AllocateError::OutOfPages`] when the domain's limit is reached; never a signal.
    pub fn allocate(&self, bytes: usize) -> Result<Extent, AllocateError> {
        allocate(self.member(), bytes)
    }

    /// The same, inlined, for functions that other programs call: what it makes is not moved about.
    #[doc(hidden)]
    #[inline(always)]
    pub fn allocate_straight(&self, bytes: usize) -> Result<Extent, AllocateError> {
        allocate_here(self.member(), bytes)
    }

    /// Gives memory that no extent uses back to the system, in whole chunks of 2 MiB, and memory
    /// that closed ports left; how many bytes. Otherwise it is kept for later extents, of whatever member, and goes back when the
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
        self.trim_at_most(u64::MAX)
    }

    /// As [`trim`](Self::trim), but of chunks so many bytes at most, for a thread that others wait for:
    /// each chunk takes a system call. Less than that says that there is no more.
    ///
    /// # Errors
    ///
    /// [`Disowned`].
    ///
    /// ```
    /// # use portolan::Domain;
    /// let domain = Domain::private()?;
    /// drop(domain.allocate(20 << 20)?);
    /// assert_eq!(domain.trim_at_most(4 << 20)?, 4 << 20);
    /// assert!(domain.survey()?.memory.taken >= 16 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn trim_at_most(&self, bytes: u64) -> Result<u64, Disowned> {
        let member = self.member();
        member.present()?;
        let chunks = &member.tables().chunks;
        {
            // A chunk that a thread of this process has just cut is not taken from under it.
            let _turn = member.growth.lock().unwrap_or_else(PoisonError::into_inner);
            give_all_back(member);
        }
        let before = chunks.populated();
        let most = usize::try_from(bytes / CHUNK as u64).unwrap_or(usize::MAX);
        // Each time one fewer, or another space has taken it.
        for _ in 0..chunks.len().min(most) {
            if !release_one(member) {
                break;
            }
        }
        let given = before.saturating_sub(chunks.populated());
        Ok(given as u64 * CHUNK as u64 + (member.relief.empty_spare)(member))
    }

    /// Takes up an extent that was laid down with [`Extent::into_raw`].
    ///
    /// # Errors
    ///
    /// [`OwnerError`]: it is another domain's, or was taken up, sent or freed before. Of two
    /// threads that adopt the same handle at the same instant, one succeeds.
    pub fn adopt(&self, raw: RawExtent) -> Result<Extent, OwnerError> {
        let member = self.member();
        let Descriptor {
            page,
            generation,
            size,
            ..
        } = raw.descriptor;
        if raw.membership != member.number || !member.tables().chunks.is_cut(page, size) {
            return Err(OwnerError::Foreign);
        }
        member.row().unpark(page, generation)?;
        Ok(Extent::taken(member, raw.descriptor))
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
        self.member().region.address(self.page)
    }

    /// Its address, for functions that other programs call: nothing is called, not even to panic. An
    /// extent in use has one.
    #[doc(hidden)]
    #[inline(always)]
    pub fn place(&self) -> Option<usize> {
        let member = self.member.as_ref()?;
        Some(member.region.address(self.page))
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
        let member = self.member();
        let raw = RawExtent {
            descriptor: self.descriptor(),
            membership: member.number,
        };
        // The word says *held*: the extent is ours. If it does not, adopting will say so.
        let _ = member.row().park(self.page, self.generation);
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
    #[inline]
    pub(crate) fn taken(member: &Arc<Member>, descriptor: Descriptor) -> Self {
        let Descriptor {
            page,
            generation,
            size,
            len,
        } = descriptor;
        Self {
            member: Some(Arc::clone(member)),
            page,
            generation,
            size,
            len: usize::try_from(len).unwrap_or(0),
        }
    }

    /// It belongs to another space now: dropping it does nothing.
    #[inline]
    pub(crate) fn forget(&mut self) {
        self.member = None;
    }

    /// The same; what kept its memory mapped, to be dropped where that takes least.
    #[inline(always)]
    pub(crate) fn give(mut self) -> Option<Arc<Member>> {
        self.member.take()
    }

    pub(crate) fn pages(&self) -> (u32, Size) {
        (self.page, self.size)
    }

    #[inline]
    pub(crate) fn member(&self) -> &Arc<Member> {
        self.member
            .as_ref()
            .expect("an extent in use has its member")
    }

    #[inline]
    pub(crate) fn is_of(&self, member: &Arc<Member>) -> bool {
        self.member
            .as_ref()
            .is_some_and(|ours| Arc::ptr_eq(ours, member))
    }
}

/// Frees it, if this is no forked child's copy. Out of the way of extents that were sent.
#[inline(never)]
fn give_back(member: Arc<Member>, page: u32, generation: u32, size: Size) {
    if member.present().is_ok() {
        free(&member, page, generation, size);
    }
}

impl Deref for Extent {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.member().region.bytes(self.page, self.len)
    }
}

impl DerefMut for Extent {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        self.member().region.bytes_mut(self.page, self.len)
    }
}

impl Drop for Extent {
    #[inline]
    fn drop(&mut self) {
        if let Some(member) = self.member.take() {
            give_back(member, self.page, self.generation, self.size);
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
