//! Measures a word each way: each side stores into the other's export, and looks for the word in
//! its own, or is notified of it.

use std::os::fd::OwnedFd;

use portolan::vmmc::{
    Alias, Export, ExportMemory, Import, Log, NotificationError, Notifications, OrdinaryMemory,
};
use portolan::{Deadline, Domain};
use portolan_sys::memory::PAGE;

use super::{export, import, mapping, memory, notifying, updating};
use crate::case::update::Way;
use crate::case::{Case, Mode, Placement, System};
use crate::error::{MeasureError, Result};
use crate::systems::Endpoint;
use crate::systems::memory::Spin;
use crate::systems::portolan::{join, parent};

/// The page that each side exports.
const DRIVE: &str = "drive";
const ECHO: &str = "echo";

/// One side of a row of words.
pub(crate) struct Word {
    to: Option<Remote>,
    from: Own,
    sent: u64,
    received: u64,
    spin: Spin,
    way: Way,
    _export: Export,
    /// Last: it is left after all that belongs to it.
    domain: Domain,
}

/// What we export, and look at.
enum Own {
    Shared(ExportMemory),
    Ordinary(OrdinaryMemory),
    /// Told of what comes.
    Notified {
        memory: ExportMemory,
        notifications: Notifications,
        sleeps: bool,
    },
}

/// What the other side exports, as we write it.
enum Remote {
    Import(Import),
    Written(Import),
    Alias { local: ExportMemory, _alias: Alias },
    Log(Log),
    Ordinary(Import),
    Notified(Import),
}

impl Word {
    fn new(case: &Case, domain: Domain, name: &str) -> Result<Self> {
        let System::Word(way) = case.system else {
            return Err(MeasureError::Gone);
        };
        let (exported, from) = if way == Way::Kernel {
            let memory = OrdinaryMemory::from(vec![0; PAGE]);
            (export(&domain, &memory, name)?, Own::Ordinary(memory))
        } else {
            let memory = memory(PAGE)?;
            let exported = export(&domain, &memory, name)?;
            let from = if way == Way::Notified {
                Own::Notified {
                    memory,
                    notifications: exported.notifications().map_err(notifying)?,
                    // Polling on one CPU would only keep the other side from running.
                    sleeps: case.mode == Mode::Block || case.placement == Placement::OneCpu,
                }
            } else {
                Own::Shared(memory)
            };
            (exported, from)
        };
        Ok(Self {
            to: None,
            _export: exported,
            from,
            sent: 0,
            received: 0,
            spin: Spin::new(case),
            way,
            domain,
        })
    }

    fn find(&mut self, name: &str) -> Result<()> {
        let import = import(&self.domain, name)?;
        self.to = Some(match self.way {
            Way::Deliberate => Remote::Import(import),
            Way::Written => Remote::Written(import),
            Way::Kernel => Remote::Ordinary(import),
            Way::Notified => Remote::Notified(import),
            Way::Alias => {
                let local = memory(PAGE)?;
                let alias = import.map_alias(&local, 0..PAGE, 0).map_err(mapping)?;
                Remote::Alias {
                    local,
                    _alias: alias,
                }
            }
            Way::Log => {
                let local = memory(PAGE)?;
                Remote::Log(import.map_log(&local, 0..PAGE, 0).map_err(mapping)?)
            }
        });
        Ok(())
    }
}

impl Endpoint for Word {
    fn create(case: &Case) -> Result<(Self, Vec<OwnedFd>)> {
        let domain = join(case, std::process::id())?;
        Ok((Self::new(case, domain, DRIVE)?, Vec::new()))
    }

    fn attach(case: &Case, _seat: u32, _descriptors: Vec<OwnedFd>) -> Result<Self> {
        let domain = join(case, parent()?)?;
        let mut end = Self::new(case, domain, ECHO)?;
        end.find(DRIVE)?;
        Ok(end)
    }

    fn meet(&mut self, _case: &Case) -> Result<()> {
        self.find(ECHO)
    }

    #[inline(always)]
    fn send(&mut self) -> Result<()> {
        self.sent += 1;
        match self.to.as_mut().ok_or(MeasureError::Gone)? {
            Remote::Import(import) => import.store_release(0, self.sent),
            Remote::Alias { local, .. } => local.store_release(0, self.sent),
            Remote::Log(log) => log.store_release(0, self.sent),
            // One whose bytes have not all come is none that was sent, nor the next.
            Remote::Ordinary(import) | Remote::Written(import) => {
                import.write(0, &self.sent.to_ne_bytes())
            }
            Remote::Notified(import) => import.write_notifying(0, &self.sent.to_ne_bytes()),
        }
        .map_err(updating)
    }

    #[inline(always)]
    fn receive(&mut self) -> Result<()> {
        self.received += 1;
        let expected = self.received;
        match &mut self.from {
            Own::Shared(memory) => self.spin.until(|| memory.load_acquire(0) == Ok(expected)),
            Own::Ordinary(memory) => self.spin.until(|| {
                let mut word = [0; 8];
                let read = memory.read(0, &mut word);
                // One that is half written is none that was sent before.
                read.is_ok() && u64::from_ne_bytes(word) == expected
            }),
            Own::Notified {
                memory,
                notifications,
                sleeps,
            } => {
                if *sleeps {
                    notifications.wait(Deadline::NEVER).map_err(notifying)?;
                } else {
                    let mut told = Err(NotificationError::TimedOut);
                    self.spin.until(|| {
                        told = notifications.wait(Deadline::NOW);
                        !matches!(told, Err(NotificationError::TimedOut))
                    });
                    told.map_err(notifying)?;
                }
                // Who has the note sees the data.
                if memory.load_acquire(0) != Ok(expected) {
                    return Err(MeasureError::Gone);
                }
            }
        }
        Ok(())
    }
}
