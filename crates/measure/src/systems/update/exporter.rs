//! The process that exports memory, and then does nothing: what is timed is done by another.

use std::os::fd::OwnedFd;

use portolan::Domain;
use portolan::vmmc::{Export, Import, OrdinaryMemory};
use portolan_sys::memory::PAGE;

use super::work::size;
use super::{ADDRESS, EXPORTED, RETURNED, export, import, memory, updating};
use crate::case::{Case, System};
use crate::error::{MeasureError, Result};
use crate::run::Counted;
use crate::systems::Endpoint;
use crate::systems::portolan::{join, parent};

pub(crate) struct Exporter {
    /// What we have imported that the other side takes back.
    returned: Option<Import>,
    _export: Export,
    /// Where it is, for whoever writes it past the library.
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
        let (exported, address) = if ordinary {
            let memory = OrdinaryMemory::from(vec![1; size(case)]);
            (export(&domain, &memory, EXPORTED)?, memory.address())
        } else {
            let memory = memory(size(case))?;
            (export(&domain, &memory, EXPORTED)?, memory.address())
        };
        Ok(Self {
            returned: None,
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

    /// Imports what the other side exports, and touches every page of it.
    fn receive(&mut self) -> Result<()> {
        self.returned = None;
        let import = import(&self.domain, RETURNED)?;
        for page in (0..import.len()).step_by(PAGE) {
            import.write(page, &[1]).map_err(updating)?;
        }
        self.returned = Some(import);
        Ok(())
    }
}
