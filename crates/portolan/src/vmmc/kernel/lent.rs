//! Ordinary memory, as its export has it.

use super::OrdinaryMemory;
use crate::directory::{Entrance, Offer, entrust};
use crate::space::Member;
use crate::space::host::trusts_host;
use crate::vmmc::place::Place;
use crate::vmmc::{ExportError, Reach, WhyExported};
use crate::{Deadline, OfferError, Permissions};
use portolan_abi::mediate::{Terms, Ticket};
use portolan_abi::vmmc::{Ranges, Way, notification_page};
use portolan_sys::process::{ProcessMemory, random};
use std::io;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Ordinary memory that is exported, and kept until nobody reaches it any more.
pub(crate) struct Lent {
    memory: Mutex<Option<OrdinaryMemory>>,
    address: usize,
    len: usize,
    /// What the domain's host was entrusted with, once somebody needed it to copy.
    mediation: Mutex<Option<Mediation>>,
}

/// The host copies for whoever has the ticket.
struct Mediation {
    offer: Offer,
    ticket: Ticket,
}

/// Why the host was not entrusted with it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unentrusted {
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
            mediation: Mutex::default(),
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

    /// Has the domain's host copy for whoever is permitted and shows the ticket (K4). It may not
    /// have heard of it yet.
    ///
    /// Ours is the descriptor of all of our memory, so the host does not get it before somebody
    /// needs it.
    pub(crate) fn entrust(
        &self,
        member: &Arc<Member>,
        permissions: &Permissions,
        reach: Reach,
        ranges: Ranges,
    ) -> Result<Ticket, Unentrusted> {
        let mut mediation = self.mediation();
        if let Some(known) = mediation.as_ref().filter(|m| !m.offer.is_declined()) {
            return Ok(known.ticket);
        }
        if Entrance::from_inside(member).is_none() {
            return Err(Unentrusted::Private);
        }
        if !trusts_host(member, None) {
            return Err(Unentrusted::OtherUsersHost);
        }
        let ticket = Ticket {
            number: random()?,
            token: random()?,
        };
        let terms = Terms {
            address: self.address as u64,
            len: self.len as u64,
            reach,
            ranges,
        };
        let memory = ProcessMemory::own()?;
        let offer = entrust(member, &ticket, permissions, terms, memory)?;
        *mediation = Some(Mediation { offer, ticket });
        Ok(ticket)
    }

    /// Waits until the host copies nothing any more (K4).
    pub(crate) fn retire(&self) -> Result<(), WhyExported> {
        let mediation = self.mediation();
        let retired = mediation
            .as_ref()
            .is_none_or(|mediation| mediation.offer.retire(Deadline::after(PATIENCE)));
        retired.then_some(()).ok_or(WhyExported::Unanswered)
    }

    /// Does not wait for the host, should it be stopped.
    pub(crate) fn give_up(&self) {
        let mediation = self.mediation().take();
        drop(mediation);
    }

    fn mediation(&self) -> MutexGuard<'_, Option<Mediation>> {
        self.mediation
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no importer has a call under way (K2), of which `busy` names one.
    pub(crate) fn settle(&self, busy: impl Fn() -> Option<u32>) -> Result<(), WhyExported> {
        // SeqCst: between *closing* and the counts; pairs with the one in `UnderWay::new`.
        fence(Ordering::SeqCst);
        let end = Instant::now() + PATIENCE;
        while let Some(process) = busy() {
            if Instant::now() >= end {
                return Err(WhyExported::UnderWay { process });
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Lets go of it: nobody reaches it through the export any more.
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
