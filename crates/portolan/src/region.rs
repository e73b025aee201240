//! The region of a domain, mapped: the one file where a mapping becomes structures and slices.
//!
//! Everything else in this crate is safe code. Two promises are made here:
//! that a mapped region's tables follow the protocols of `portolan-shm`
//! ([`Tables::new`]), and that the holder of an extent, and nobody else, has
//! references into its pages.
#![allow(unsafe_code)]

use crate::domain::Descriptor;
use crate::member::Member;
use portolan_abi::limits::PAGE;
use portolan_abi::port::PortName;
use portolan_abi::region::Geometry;
use portolan_shm::queue::Queue;
use portolan_shm::region::Tables;
use portolan_sys::memory::Mapping;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A mapped region and its file.
pub(crate) struct Region {
    // Declared before the mapping that it points into; both go together.
    tables: Tables<'static>,
    mapping: Mapping,
    fd: Descriptor,
}

impl Region {
    /// Takes a mapped region's tables into use. The mapping is as long as `geometry.len`.
    pub(crate) fn new(fd: OwnedFd, mapping: Mapping, geometry: Geometry) -> Self {
        assert!(mapping.len() as u64 >= geometry.len, "the mapping was made for this geometry");
        // SAFETY:
        // - mapped and aligned: `mapping` covers the geometry and is page-aligned;
        // - live: the mapping is a field of the same struct, and `tables()` hands the
        //   reference out for no longer than a borrow of it;
        // - protocol: the file is a region of our format; that members keep to the
        //   protocol is the trust inside a domain (CAVEATS.md).
        let tables = unsafe { Tables::new(mapping.base(), geometry) };
        Self { tables, mapping, fd: Descriptor::new(fd) }
    }

    /// The tables.
    #[inline]
    pub(crate) fn tables(&self) -> &Tables<'_> {
        &self.tables
    }

    /// The file.
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Address of the region in every member.
    pub(crate) fn base(&self) -> usize {
        self.mapping.base() as usize
    }

    /// Offset in the file of the arena's page `page`.
    pub(crate) fn offset(&self, page: u32) -> u64 {
        self.tables.geometry.arena + u64::from(page) * PAGE as u64
    }

    /// Address of the arena's page `page`.
    #[inline]
    pub(crate) fn address(&self, page: u32) -> usize {
        let arena = usize::try_from(self.tables.geometry.arena).unwrap_or(0);
        self.base() + arena + page as usize * PAGE
    }

    /// The bytes of the extent at `page`.
    ///
    /// The caller is an [`crate::Extent`]: it holds the pages, is not cloned, and lends
    /// its own borrow out. `len` was checked against its size.
    #[inline]
    pub(crate) fn bytes(&self, page: u32, len: usize) -> &[u8] {
        self.check(page, len);
        // SAFETY:
        // - in bounds: checked above against the arena;
        // - live: the mapping lives as long as `self`;
        // - initialised: file memory reads as zeros or what was written;
        // - not written meanwhile: the caller holds the extent (O1), whoever sent it
        //   has given up its handle, and members are trusted not to write past theirs.
        unsafe { core::slice::from_raw_parts(self.address(page) as *const u8, len) }
    }

    /// The bytes of the extent at `page`, to write.
    ///
    /// The caller is an [`crate::Extent`] that lends its own exclusive borrow out.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub(crate) fn bytes_mut(&self, page: u32, len: usize) -> &mut [u8] {
        self.check(page, len);
        // SAFETY:
        // - in bounds, live, initialised: as in `bytes`;
        // - exclusive: the caller holds the extent and lends its `&mut` borrow.
        unsafe { core::slice::from_raw_parts_mut(self.address(page) as *mut u8, len) }
    }

    #[inline]
    fn check(&self, page: u32, len: usize) {
        let end = u64::from(page) * PAGE as u64 + len as u64;
        assert!(end <= self.tables.geometry.pages() * PAGE as u64, "extents lie in the arena");
    }
}

/// A port's queue together with the membership that keeps it mapped: what every
/// handle of a port holds.
pub(crate) struct Attached {
    // Declared before the member that it points into.
    queue: Queue<'static>,
    /// Whose handle it is.
    pub(crate) member: Arc<Member>,
    /// The port.
    pub(crate) port: PortName,
}

impl Attached {
    /// The handle of `port`, if its entry has a queue.
    pub(crate) fn new(member: &Arc<Member>, port: PortName) -> Option<Self> {
        let region: *const Region = &raw const member.region;
        // SAFETY:
        // - live: `member` is cloned into the same struct, so the region outlives `queue`,
        //   which `queue()` lends out for no longer than a borrow of the struct;
        // - in place: the region lies inside the `Arc` and never moves.
        let region: &'static Region = unsafe { &*region };
        let queue = region.tables().queue(port.index)?;
        Some(Self { queue, member: Arc::clone(member), port })
    }

    /// The queue.
    #[inline]
    pub(crate) fn queue(&self) -> &Queue<'_> {
        &self.queue
    }
}

impl Clone for Attached {
    fn clone(&self) -> Self {
        Self { queue: self.queue, member: Arc::clone(&self.member), port: self.port }
    }
}
