//! Reads a space's entry: its status, and whether its process lives.

use crate::space::Member;
use portolan_abi::space::{SpacePhase, SpaceStatus};
use portolan_shm::atomic::Ordering;
use portolan_shm::region::SpaceEntry;
use portolan_shm::space;
use portolan_sys::process::{PidFd, start_time};
use std::io;

/// What a space's process is, as far as we can tell.
pub(crate) enum Owner {
    /// It lives; the pidfd says when that ends.
    Alive(PidFd),
    /// It is dead (D2).
    Dead,
    /// We cannot tell, for want of a descriptor.
    Unknown(io::Error),
}

/// No such process.
const ESRCH: i32 = 3;

/// Whether the process that an entry names still lives.
pub(crate) fn owner(entry: &SpaceEntry) -> Owner {
    // Relaxed: the caller has read the status, which was stored after these.
    let pid = entry.pid.load(Ordering::Relaxed);
    let started = entry.start_time.load(Ordering::Relaxed);
    let Ok(pid) = u32::try_from(pid) else {
        return Owner::Dead;
    };
    let pidfd = match PidFd::open(pid) {
        Ok(pidfd) => pidfd,
        Err(error) if error.raw_os_error() == Some(ESRCH) => return Owner::Dead,
        Err(error) => return Owner::Unknown(error),
    };
    // The start time is read while we hold the process, so it is that one's.
    match start_time(pid) {
        // The id was used again.
        Some(now) if started != 0 && now != started => Owner::Dead,
        _ if pidfd.is_dead() => Owner::Dead,
        _ => Owner::Alive(pidfd),
    }
}

/// Whether the process of a space that had not left is dead, whatever the host has noted of it by now.
pub(crate) fn has_died(member: &Member, space: u8) -> bool {
    let Some(entry) = member.tables().spaces.get(usize::from(space)) else {
        return false;
    };
    let was = status(entry).incarnation;
    // The same space still, so that the process is its own. The host may note the death meanwhile.
    matches!(owner(entry), Owner::Dead) && status(entry).incarnation == was
}

/// Whether no process has the id that an entry names, as far as we can tell.
pub(crate) fn is_gone(entry: &SpaceEntry) -> bool {
    let Ok(pid) = u32::try_from(entry.pid.load(Ordering::Relaxed)) else {
        return true;
    };
    match PidFd::open(pid) {
        Ok(pidfd) => pidfd.is_dead(),
        Err(error) => error.raw_os_error() == Some(ESRCH),
    }
}

/// Whether the process that an entry names runs another program by now.
///
/// Its memory then is gone as if it had died, and nothing of ours is left in it; yet the
/// process lives, so its pidfd never says so. To be asked when its connection has ended.
/// `false` if we may not look, or cannot tell.
pub(crate) fn has_execed(entry: &SpaceEntry, base: usize) -> bool {
    let pid = entry.pid.load(Ordering::Relaxed);
    let Ok(maps) = std::fs::read_to_string(format!("/proc/{pid}/maps")) else {
        return false;
    };
    // Empty if its first thread has ended: then nothing can be told.
    let start = format!("{base:x}-");
    !maps.is_empty() && !maps.lines().any(|line| line.starts_with(&start))
}

/// What the entry is doing.
pub(crate) fn status(entry: &SpaceEntry) -> SpaceStatus {
    space::status(&entry.status)
}

/// Changes the status of the space with this incarnation, if `to` says to what.
/// `false` if it is another one by now, or `to` says nothing.
pub(crate) fn change(
    entry: &SpaceEntry,
    incarnation: u32,
    to: impl Fn(SpaceStatus) -> Option<SpaceStatus>,
) -> bool {
    space::change(&entry.status, incarnation, to)
}

/// Moves the status from one phase to another; see [`change`].
pub(crate) fn step(entry: &SpaceEntry, incarnation: u32, from: SpacePhase, to: SpacePhase) -> bool {
    space::step(&entry.status, incarnation, from, to)
}

/// Frees the entries that a space had claimed for newcomers when it died (A2).
pub(crate) fn release_claims(member: &Member, claimer: u8) {
    for entry in member.tables().spaces {
        space::release(&entry.status, claimer);
    }
}
