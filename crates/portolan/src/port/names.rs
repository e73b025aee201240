//! Names of ports: a lock for those who give one, a futex for those who wait for one.

use super::{BindError, SendRight};
use crate::member::Member;
use crate::region::Attached;
use crate::{Deadline, Disowned, Domain};
use portolan_abi::limits::MAX_NAME;
use portolan_abi::port::{PortName, PortPhase, PortStatus};
use portolan_shm::mark;
use portolan_shm::region::read_text;
use portolan_sys::futex;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a bind waits for another one that holds the lock.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// Why a name did not lead to a port.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The state's: nobody has bound a port of this name (yet).
    #[error(
        "no port named {name:?} in this domain: start the program that binds it, or wait longer"
    )]
    NoSuchPort {
        /// The name.
        name: String,
    },
    /// The caller's: no port can have this name, so waiting for one would be in vain.
    #[error("{name:?} is no port name: use 1 to {MAX_NAME} bytes without a zero byte")]
    BadName {
        /// The name.
        name: String,
    },
    /// See [`Disowned`].
    #[error(transparent)]
    Disowned(#[from] Disowned),
}

impl Domain {
    /// A send right on the port of this name, waiting until there is one.
    ///
    /// # Errors
    ///
    /// [`ConnectError::NoSuchPort`] once the deadline has passed; [`ConnectError::BadName`]
    /// at once.
    pub fn connect(
        &self,
        name: &str,
        deadline: impl Into<Deadline>,
    ) -> Result<SendRight, ConnectError> {
        connect(self.member(), name, deadline.into())
    }
}

/// A send right on the port of this name, waiting until there is one.
pub(crate) fn connect(
    member: &Arc<Member>,
    name: &str,
    deadline: Deadline,
) -> Result<SendRight, ConnectError> {
    wait_for(member, name, deadline, |port, shared| {
        let attached = (!shared).then(|| Attached::new(member, port))??;
        SendRight::make(attached)
    })
}

/// What `take` makes of the open port of this name (which may be a segment), waiting until
/// there is one of which it makes something.
pub(super) fn wait_for<R>(
    member: &Member,
    name: &str,
    deadline: Deadline,
    take: impl Fn(PortName, bool) -> Option<R>,
) -> Result<R, ConnectError> {
    if !is_name(name) {
        return Err(ConnectError::BadName {
            name: name.to_owned(),
        });
    }
    member.present()?;
    member.link.connected()?;
    loop {
        let epoch = &member.tables().header.names.epoch;
        // Acquire: a name that appears after this changes the epoch, and we do not sleep.
        let seen = epoch.load(Ordering::Acquire);
        if let Some((port, _, shared)) = find(member, name)
            && let Some(taken) = take(port, shared)
        {
            return Ok(taken);
        }
        if deadline.has_passed() {
            return Err(ConnectError::NoSuchPort {
                name: name.to_owned(),
            });
        }
        let _ = futex::wait(epoch, seen, deadline.instant());
    }
}

/// Whether a port can have this name.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_NAME && !name.contains('\0')
}

/// The open port of this name, its owner, and whether it is a segment.
fn find(member: &Member, name: &str) -> Option<(PortName, u8, bool)> {
    let tables = member.tables();
    let hash = hash(name);
    tables.used_ports().find_map(|(index, entry)| {
        if tables.names[usize::from(index)].load(Ordering::Acquire) != hash {
            return None;
        }
        let status = PortStatus::unpack(entry.control.status.load(Ordering::Acquire));
        let open = matches!(status.phase, PortPhase::Open | PortPhase::Moving)
            && read_text(&entry.name.words) == name;
        open.then_some((
            PortName {
                index,
                generation: status.generation,
            },
            status.owner,
            status.shared,
        ))
    })
}

/// FNV-1a, never 0: every build must agree on it, and 0 means "no name".
fn hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |h: u64, b| {
        (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
    }) | 1
}

/// The lock on names, held while a name is checked and given. A dead holder's lock is
/// released by the host.
pub(super) struct Reserved<'m> {
    member: &'m Member,
}

/// Takes the lock and makes sure that no open port has this name.
pub(super) fn reserve<'m>(member: &'m Member, name: &str) -> Result<Reserved<'m>, BindError> {
    if !is_name(name) {
        return Err(BindError::BadName {
            name: name.to_owned(),
        });
    }
    let lock = &member.tables().header.names.lock;
    let give_up = Instant::now() + LOCK_PATIENCE;
    let us = u32::from(member.space) + 1;
    while let Err(holder) = lock.compare_exchange(0, us, Ordering::Acquire, Ordering::Relaxed) {
        if Instant::now() >= give_up {
            let holder = u8::try_from(holder.saturating_sub(1)).unwrap_or(0);
            return Err(BindError::NamesLocked {
                holder,
                seconds: LOCK_PATIENCE.as_secs(),
            });
        }
        // Two threads of one space may meet here too; both just wait.
        let _ = futex::wait(lock, holder, Some(give_up));
        mark!("bind.names_awaited");
    }
    mark!("bind.names_locked");
    let reserved = Reserved { member };
    match find(member, name) {
        Some((_, owner, _)) => Err(BindError::NameTaken {
            name: name.to_owned(),
            owner,
        }),
        None => Ok(reserved),
    }
}

impl Reserved<'_> {
    /// Lets others find the port, and wakes who waits for a name.
    pub(super) fn publish(self, index: u16, name: &str) {
        // Release: the port is open before its name leads to it.
        self.member.tables().names[usize::from(index)].store(hash(name), Ordering::Release);
        mark!("bind.name_published");
        wake_waiters(self.member);
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let lock = &self.member.tables().header.names.lock;
        lock.store(0, Ordering::Release);
        // Everybody: one alone may be stopped before it takes the lock, and wakes nobody then.
        futex::wake(lock, u32::MAX);
    }
}

/// Wakes all who wait for a name to appear.
pub(crate) fn wake_waiters(member: &Member) {
    let epoch = &member.tables().header.names.epoch;
    epoch.fetch_add(1, Ordering::SeqCst);
    futex::wake(epoch, u32::MAX);
}
