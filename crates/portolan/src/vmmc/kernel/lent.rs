//! Ordinary memory, as its export has it.

use super::OrdinaryMemory;
use crate::vmmc::{ExportError, WhyExported};
use portolan_abi::vmmc::{Way, post};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::vmmc::place::Place;

/// Ordinary memory that is exported, and kept until nobody reaches it any more.
pub(crate) struct Lent {
    memory: Mutex<Option<OrdinaryMemory>>,
    address: usize,
    len: usize,
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
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// What importers are told, where the board is mapped at `board` here.
    pub(crate) fn way(&self, board: usize) -> Way {
        Way::Kernel {
            address: self.address as u64,
            board: board as u64,
        }
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
        let memory = self
            .memory
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        drop(memory);
    }
}

/// Whether an importer says that it has calls under way.
pub(crate) fn busy(post: &Place) -> bool {
    let calls = post.words().get(post::UNDER_WAY);
    // Acquire: pairs with the Release in `UnderWay`'s drop; what such a call wrote is there.
    calls.is_some_and(|calls| calls.load(Ordering::Acquire) != 0)
}
