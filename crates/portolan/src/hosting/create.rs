//! The first member makes the region: the memory file, its header, its first space.

use super::addresses;
use crate::Protection;
use crate::space::Builder;
use crate::space::JoinError;
use crate::space::region::Region;
use portolan_abi::FORMAT_VERSION;
use portolan_abi::limits::MAX_SPACES;
use portolan_abi::region::{Geometry, MAGIC, SPACE_BYTES};
use portolan_abi::space::{HostWord, SpacePhase, SpaceStatus};
use portolan_shm::atomic::{AtomicU32, Ordering};
use portolan_shm::region::{SpaceEntry, write_text};
use portolan_sys::memory;
use portolan_sys::process::start_time;
use std::io;

/// The space of the member that creates a domain, and its incarnation.
pub(super) const FIRST: HostWord = HostWord {
    space: 1,
    incarnation: 1,
};

/// Bit 0 of the header's options.
pub(super) const LOCK_PAGES: u64 = 1;

/// Makes the region of a new domain, whose first space and host is this process.
/// `place` decides where it lies; without one no other process can join it, and it lies anywhere.
pub(super) fn region(settings: &Builder, place: Option<&str>) -> Result<Region, JoinError> {
    let geometry = Geometry::new(settings.size).ok_or(JoinError::BadSize {
        size: settings.size,
    })?;
    let fd = memory::create(&format!("portolan:{}", settings.name), geometry.len)
        .map_err(|e| JoinError::system("make sealed memory files", e))?;
    let us = Us::now()?;
    let limit = match settings.limit {
        Some(limit) => limit,
        None => default_limit()?,
    };
    // Taken before anything is written, so that no store of ours fails for want of memory.
    let tables = geometry.spaces + MAX_SPACES as u64 * SPACE_BYTES;
    memory::allocate(&fd, 0, tables).map_err(JoinError::Memory)?;
    let (mapping, reservation) = match place {
        Some(place) => addresses::place(&fd, &geometry, settings.owner, place)?,
        None => addresses::place_alone(&fd, &geometry)?,
    };
    let region = Region::new(fd, mapping, geometry, reservation);
    portolan_shm::mark!("join.mapped");
    fill(&region, settings, limit, &us);
    portolan_shm::mark!("join.created");
    Ok(region)
}

/// This process, as a space's entry names it.
struct Us {
    pid: u32,
    started: u64,
}

impl Us {
    fn now() -> Result<Self, JoinError> {
        let pid = std::process::id();
        match start_time(pid) {
            Some(started) => Ok(Self { pid, started }),
            None => Err(unreadable()),
        }
    }
}

/// Half of what there is, if that can be told.
fn default_limit() -> Result<u64, JoinError> {
    match portolan_sys::machine::default_limit() {
        0 => Err(unreadable()),
        limit => Ok(limit),
    }
}

/// Why `/proc` says nothing.
fn unreadable() -> JoinError {
    let tried = std::fs::File::open("/proc/self/stat");
    let error = tried
        .err()
        .unwrap_or_else(|| io::ErrorKind::InvalidData.into());
    JoinError::system("read /proc", error)
}

fn fill(region: &Region, settings: &Builder, limit: u64, us: &Us) {
    let tables = region.tables();
    let header = tables.header;
    let guarded = settings.protection == Some(Protection::Guarded);
    // Relaxed: no other process has the file before the magic number is there.
    let set = |word: &portolan_shm::atomic::AtomicU64, to: u64| word.store(to, Ordering::Relaxed);
    set(&header.version, FORMAT_VERSION.into());
    set(&header.size, settings.size);
    set(&header.base, region.base() as u64);
    set(&header.limit, limit);
    set(&header.protection, guarded.into());
    set(&header.user, settings.owner.into());
    let options = if settings.lock_pages { LOCK_PAGES } else { 0 };
    set(&header.options, options);
    set(&header.host.word, FIRST.pack());
    write_text(&header.name, &settings.name);
    write_list(&header.users, &settings.users);
    write_list(&header.groups, &settings.groups);
    if let Some(entry) = tables.spaces.get(usize::from(FIRST.space)) {
        let name = settings.space_name_or_default();
        describe(entry, us.pid, us.started, settings.user, &name);
        tables.use_space(FIRST.space);
        let live = SpaceStatus {
            phase: SpacePhase::Live,
            disconnected: false,
            claimer: 0,
            incarnation: FIRST.incarnation,
        };
        // Release: a thread that sees the space sees whose it is.
        entry.status.store(live.pack(), Ordering::Release);
    }
    // Release, and last: a thread that reads it finds a whole region.
    header.magic.store(MAGIC, Ordering::Release);
}

/// Writes who a space is. Only while its status is free, or by the creator.
pub(super) fn describe(entry: &SpaceEntry, pid: u32, started: u64, user: u32, name: &str) {
    // Relaxed: the status that follows is stored with Release.
    entry.pid.store(pid.into(), Ordering::Relaxed);
    entry.start_time.store(started, Ordering::Relaxed);
    entry.user.store(user.into(), Ordering::Relaxed);
    write_text(&entry.name, name);
}

/// A count, then the ids.
fn write_list(words: &[AtomicU32], list: &[u32]) {
    let count = u32::try_from(list.len()).unwrap_or(0);
    for (word, value) in words.iter().zip(std::iter::once(&count).chain(list)) {
        word.store(*value, Ordering::Relaxed);
    }
}

/// Whether `id` is in a list of the header.
pub(super) fn listed(words: &[AtomicU32], id: u32) -> bool {
    let count = words.first().map_or(0, |c| c.load(Ordering::Relaxed));
    let count = usize::try_from(count).unwrap_or(0);
    let ids = words.iter().skip(1).take(count);
    ids.into_iter().any(|w| w.load(Ordering::Relaxed) == id)
}
