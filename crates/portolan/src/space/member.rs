//! One space: this process's membership in a domain, shared by every handle that it makes.

use crate::gate::Ferries;
use crate::hosting::Link;
use crate::port::sealed::Depot;
use crate::signal::{Sources, Threads};
use crate::space::ending::Endings;
use crate::space::extent::Cache;
use crate::space::guard::Guard;
use crate::space::region::Region;
use crate::vmmc::Reception;
use crate::{Disowned, Protection};
use portolan_shm::owner::OwnerRow;
use portolan_shm::region::Tables;
use portolan_shm::rights::RightRow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Weak};

/// What every handle of this process in one domain shares.
pub(crate) struct Member {
    /// What closes and opens pages in a guarded domain; none where this process's mapping
    /// stays open. First, so that it is gone before the region that it guards.
    pub(crate) guard: Option<Guard>,
    pub(crate) region: Region,
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
    /// What signals addresses of ours.
    pub(crate) sources: Mutex<Weak<Sources>>,
    /// Where our exports are shown.
    pub(crate) reception: Mutex<Weak<Reception>>,
    /// Threads that were interrupted by our signals.
    pub(crate) threads: Threads,
    /// Threads that carry messages of ours to other domains.
    pub(crate) ferries: Ferries,
    /// Clients and servers of ours that were dropped, and whose threads are not through yet.
    pub(crate) endings: Endings,
    /// Held by the one thread of ours that is about to close a segment (G2 of segments).
    pub(crate) closing: Mutex<()>,
    /// Sealed memory on its way from one thread of ours to another.
    pub(crate) depot: Depot,
    /// The thread that watches the host, or hosts; its drop leaves the domain.
    pub(crate) link: Link,
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
        self.tables().owner_row(self.space)
    }

    /// Our counts of rights.
    #[inline]
    pub(crate) fn rights(&self) -> RightRow<'_> {
        self.tables().right_row(self.space)
    }

    /// Whether every page of the region is open here, whoever owns it.
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
        crate::hosting::depart(self);
    }
}
