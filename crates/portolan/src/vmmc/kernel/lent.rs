//! An export keeps ordinary memory until no importer can reach it.

use super::OrdinaryMemory;
use crate::directory::{Entrance, Offer, delegate};
use crate::space::Member;
use crate::space::host::trusts_host;
use crate::vmmc::place::Place;
use crate::vmmc::{ExportError, Reach};
use crate::{Deadline, OfferError, Permissions};
use portolan_abi::delegate::{Capability, Delegation};
use portolan_abi::vmmc::{Ranges, Way, notification_page};
use portolan_sys::process::{ProcessMemory, random};
use std::io;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Ordinary memory that is exported, kept until no importer can reach it.
pub(crate) struct Lent {
    memory: Mutex<Option<OrdinaryMemory>>,
    address: usize,
    len: usize,
    /// The delegation to the domain's host, once an importer has needed it.
    offered: Mutex<Option<OfferedDelegation>>,
}

/// A delegation that this process offers, and its capability.
struct OfferedDelegation {
    offer: Offer,
    capability: Capability,
}

/// Why nothing was delegated to the host.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotDelegated {
    #[error("the domain is private: there is no host to copy for others")]
    Private,
    #[error("the domain's host is another user, who would have all of this process's memory")]
    OtherUsersHost,
    #[error("this process cannot open its own memory file; has it made itself undumpable? ({0})")]
    Memory(#[from] io::Error),
    #[error(transparent)]
    Offer(#[from] OfferError),
}

/// How long calls of importers that are under way are waited for at the end of an export.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks at them.
const PAUSE: Duration = Duration::from_micros(100);

impl Lent {
    pub(crate) fn new(memory: &OrdinaryMemory) -> Result<Self, ExportError> {
        if memory.is_empty() {
            return Err(ExportError::Empty { len: 0 });
        }
        Ok(Self {
            address: memory.address(),
            len: memory.len(),
            memory: Mutex::new(Some(memory.clone())),
            offered: Mutex::default(),
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// What importers are told, where the status page is mapped at `status_page` here.
    pub(crate) fn way(&self, status_page: usize) -> Way {
        Way::Kernel {
            address: self.address as u64,
            status_page: status_page as u64,
        }
    }

    /// Has the domain's host copy for permitted importers that show the capability (K4). The host
    /// may not know it yet when this returns.
    ///
    /// The descriptor gives access to all of this process's memory, so the host does not get it
    /// before an importer needs it.
    pub(crate) fn delegate(
        &self,
        member: &Arc<Member>,
        permissions: &Permissions,
        reach: Reach,
        ranges: Ranges,
    ) -> Result<Capability, NotDelegated> {
        let mut offered = self.offered();
        if let Some(known) = offered.as_ref().filter(|m| !m.offer.is_declined()) {
            return Ok(known.capability);
        }
        if Entrance::from_inside(member).is_none() {
            return Err(NotDelegated::Private);
        }
        if !trusts_host(member, None) {
            return Err(NotDelegated::OtherUsersHost);
        }
        let capability = Capability {
            number: random()?,
            token: random()?,
        };
        let delegation = Delegation {
            address: self.address as u64,
            len: self.len as u64,
            reach,
            ranges,
        };
        let memory = ProcessMemory::own()?;
        let offer = delegate(member, &capability, permissions, delegation, memory)?;
        *offered = Some(OfferedDelegation { offer, capability });
        Ok(capability)
    }

    /// Waits until the host copies nothing any more (K4).
    pub(crate) fn retire(&self) -> Result<(), ExportError> {
        let offered = self.offered();
        let retired = offered
            .as_ref()
            .is_none_or(|offered| offered.offer.retire(Deadline::after(PATIENCE)));
        retired.then_some(()).ok_or(ExportError::Unanswered)
    }

    /// Withdraws the delegation without waiting for the host, which may be stopped.
    pub(crate) fn give_up(&self) {
        let offered = self.offered().take();
        drop(offered);
    }

    fn offered(&self) -> MutexGuard<'_, Option<OfferedDelegation>> {
        self.offered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no importer has a call under way (K2), of which `busy` names one.
    pub(crate) fn settle(&self, busy: impl Fn() -> Option<u32>) -> Result<(), ExportError> {
        // SeqCst: between *closing* and the counts; pairs with the one in `UnderWay::new`.
        fence(Ordering::SeqCst);
        let end = Instant::now() + PATIENCE;
        while let Some(process) = busy() {
            if Instant::now() >= end {
                return Err(ExportError::UnderWay { process });
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Gives the memory back: no importer can reach it through the export any more.
    pub(crate) fn give_back(&self) {
        self.give_up();
        let memory = self
            .memory
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        drop(memory);
    }
}

/// Whether an importer says that it has calls under way.
pub(crate) fn busy(notification_page: &Place) -> bool {
    let calls = notification_page.words().get(notification_page::UNDER_WAY);
    // Acquire: pairs with the Release in `UnderWay`'s drop; what such a call wrote is there.
    calls.is_some_and(|calls| calls.load(Ordering::Acquire) != 0)
}
