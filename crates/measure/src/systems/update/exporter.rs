//! Runs the process that exports memory, and then does nothing: another process does the timed
//! operations. In rows of notifications it takes them.

use std::os::fd::OwnedFd;

use portolan::vmmc::{
    Export, ExportMemory, Import, NotificationError, Notifications, OrdinaryMemory,
};
use portolan::{Deadline, Domain};
use portolan_sys::memory::PAGE;

use super::work::size;
use super::{ADDRESS, EXPORTED, RETURNED, TAKEN, export, import, memory, notifying, updating};
use crate::case::update::Update;
use crate::case::{Case, System};
use crate::error::{MeasureError, Result};
use crate::run::Counted;
use crate::systems::Endpoint;
use crate::systems::portolan::{join, parent};

pub(crate) struct Exporter {
    /// What we have imported that the other side takes back.
    returned: Option<Import>,
    /// Taken when we are asked to.
    notifications: Option<Notifications>,
    _export: Export,
    /// Where it is, for competitors that write it past the library.
    address: usize,
    /// Last: it is left after all that belongs to it.
    domain: Domain,
}

impl Endpoint for Exporter {
    fn create(_case: &Case) -> Result<(Self, Vec<OwnedFd>)> {
        // Operations have a run of their own.
        Err(MeasureError::Gone)
    }

    fn attach(case: &Case, _seat: u32, _descriptors: Vec<OwnedFd>) -> Result<Self> {
        let domain = join(case, parent()?)?;
        let ordinary = matches!(case.system, System::Update(update) if update.is_kernels());
        let mut notifications = None;
        let (exported, address) = if ordinary {
            let memory = OrdinaryMemory::from(vec![1; size(case)]);
            (export(&domain, &memory, EXPORTED)?, memory.address())
        } else {
            let memory = memory(size(case))?;
            let exported = export(&domain, &memory, EXPORTED)?;
            if let System::Update(Update::Notify { asleep }) = case.system {
                let told = exported.notifications().map_err(notifying)?;
                if asleep {
                    sleep_for_notes(told, memory.clone())?;
                } else {
                    notifications = Some(told);
                }
            }
            (exported, memory.address())
        };
        Ok(Self {
            returned: None,
            notifications,
            _export: exported,
            address,
            domain,
        })
    }

    fn counts(&self) -> Vec<Counted> {
        vec![Counted::new((ADDRESS, self.address as u64))]
    }

    fn send(&mut self) -> Result<()> {
        Ok(())
    }

    /// Imports what the other side exports, and touches every page of it. Or takes what it was
    /// notified of.
    fn receive(&mut self) -> Result<()> {
        if let Some(notifications) = &mut self.notifications {
            loop {
                match notifications.wait(Deadline::NOW) {
                    Ok(_) => {}
                    Err(NotificationError::TimedOut) => return Ok(()),
                    Err(error) => return Err(notifying(error)),
                }
            }
        }
        self.returned = None;
        let import = import(&self.domain, RETURNED)?;
        for page in (0..import.len()).step_by(PAGE) {
            import.write(page, &[1]).map_err(updating)?;
        }
        self.returned = Some(import);
        Ok(())
    }
}

/// Starts a thread that sleeps until it is notified, says so in the export, and sleeps again,
/// until the export ends.
fn sleep_for_notes(mut notifications: Notifications, memory: ExportMemory) -> Result<()> {
    let doing = "starting a thread that is notified";
    let mut taken = 0;
    let wait = move || {
        while notifications.wait(Deadline::NEVER).is_ok() {
            taken += 1;
            if memory.store_release(TAKEN, taken).is_err() {
                return;
            }
        }
    };
    let started = std::thread::Builder::new()
        .name("notified".to_owned())
        .spawn(wait);
    started.map(|_| ()).map_err(MeasureError::system(doing))
}
