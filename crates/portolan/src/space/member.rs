//! A member is this process's membership in a domain, shared by every handle that it makes.

use super::drain::Drains;
use super::extent::{Cache, Relief};
use super::guard::Guard;
use super::host_connection::{self, HostConnection};
use super::part::{Part, Parts};
use super::region::{OwnWords, Region};
use super::{Disowned, Protection};
use portolan_shm::owner::OwnerRow;
use portolan_shm::region::Tables;
use portolan_shm::rights::RightRow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// What every handle of this process in one domain shares.
pub(crate) struct Member {
    /// What closes and opens pages in a guarded domain; none where this process's mapping
    /// stays open. First, so that it is gone before the region that it guards.
    pub(crate) guard: Option<Guard>,
    pub(crate) region: Region,
    /// Our owner words in it.
    pub(crate) own_words: OwnWords,
    /// Our space.
    pub(crate) space: u8,
    /// Its incarnation.
    pub(crate) incarnation: u32,
    /// Which membership of this process it is: its own, whatever domain or space it is.
    pub(crate) number: u64,
    /// The domain's name.
    pub(crate) domain: String,
    /// How extents are protected here.
    pub(crate) protection: Protection,
    /// Extents near at hand.
    pub(crate) cache: Mutex<Cache>,
    /// Held by the one thread of this process that takes memory from the kernel, or gives it back.
    pub(crate) growth: Mutex<()>,
    /// What gives memory back that ports had, for want of memory.
    pub(crate) relief: Relief,
    /// Clients and servers of ours that were dropped, and whose threads are not through yet.
    pub(crate) drains: Drains,
    /// Held by the one thread of ours that is about to close a segment (G2 of segments).
    pub(crate) closing: Mutex<()>,
    /// What rooms above keep with it.
    pub(crate) parts: Parts,
    /// The thread that watches the host, or hosts; its drop leaves the domain.
    pub(crate) host_connection: HostConnection,
}

impl Member {
    /// A number that no other membership of this process has, nor had.
    pub(crate) fn next_number() -> u64 {
        static LAST: AtomicU64 = AtomicU64::new(0);
        // Relaxed: it only counts.
        LAST.fetch_add(1, Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn tables(&self) -> &Tables<'_> {
        self.region.tables()
    }

    /// Our owner words.
    #[inline]
    pub(crate) fn row(&self) -> OwnerRow<'_> {
        self.own_words.row()
    }

    /// Our counts of rights.
    #[inline]
    pub(crate) fn rights(&self) -> RightRow<'_> {
        self.tables().right_row(self.space)
    }

    /// The part of this type, which is made if there is none; see [`Part`].
    pub(crate) fn part<P: Part>(&self) -> &P {
        self.parts.part()
    }

    /// Whether every page of the region is open here, also those of other owners.
    pub(crate) fn always_open(&self) -> bool {
        self.guard.is_none()
    }

    /// Refuses a forked child: it is not a member, and the region is not mapped there.
    #[inline]
    pub(crate) fn present(&self) -> Result<(), Disowned> {
        if portolan_sys::fork::in_child() {
            Err(Disowned::Forked)
        } else {
            Ok(())
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(guard) = &self.guard {
            // What was leaked is given back by leaving, and ours no longer.
            guard.close_all();
        }
        host_connection::depart(self);
    }
}
