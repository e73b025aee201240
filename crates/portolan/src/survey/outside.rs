//! Lists what spaces have outside the region, as they say in their public entries: exports, and
//! connections between domains.

use super::{Ground, SpaceSurvey};
use crate::vmmc::Reach;
use portolan_abi::public::{PublicKind, PublicState, flag};
use portolan_abi::region::{Geometry, PUBLIC_BYTES};
use portolan_shm::region::{PublicEntry, read_text};
use std::sync::atomic::{Ordering, fence};

/// Memory that a space exports.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExportSurvey {
    /// The exporter's space.
    pub space: u8,
    /// The exporter's process.
    pub pid: u32,
    /// What the exporter calls itself.
    pub exporter: String,
    /// The name under which it is imported; other spaces may export under the same one.
    pub name: String,
    /// Bytes.
    pub bytes: u64,
    /// What importers may do.
    pub reach: Reach,
    /// Whether the kernel copies to and from it, for it is ordinary memory.
    pub kernel_mediated: bool,
    /// Processes that have imported it.
    pub importers: u64,
    /// Notifications of theirs that were taken.
    pub notifications: u64,
}

/// A connection between a process of this domain and one of another.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionSurvey {
    /// The space whose process has this end of it.
    pub space: u8,
    /// What it is.
    pub kind: ConnectionKind,
    /// The name of the offer.
    pub offer: String,
    /// The other domain, where that is known: the client says which domain it connects to.
    pub domain: Option<String>,
    /// The user of the other side.
    pub user: u32,
    /// The process of the other side; 0 if it is not known.
    pub pid: u32,
    /// The port or segment here.
    pub port: Option<u16>,
    /// Messages that went to the other side.
    pub out: u64,
    /// Bytes in those.
    pub out_bytes: u64,
    /// Messages that came from there.
    pub came: u64,
    /// Bytes in those.
    pub came_bytes: u64,
}

/// What a connection between domains is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ConnectionKind {
    /// The space sends to a port that the other domain offers.
    ConnectedTo,
    /// The other side sends to a port that the space offers.
    Client,
    /// The space follows a channel that the other domain offers.
    Following,
    /// The other side follows a channel that the space offers.
    Follower,
}

impl ConnectionKind {
    /// What it is called, after the space's name and before the offer's.
    ///
    /// ```
    /// assert_eq!(portolan::ConnectionKind::Following.name(), "follows");
    /// ```
    pub const fn name(self) -> &'static str {
        match self {
            Self::ConnectedTo => "sends to",
            Self::Client => "offers",
            Self::Following => "follows",
            Self::Follower => "is followed",
        }
    }
}

/// Reads every space's public entries.
pub(super) fn take(
    ground: &Ground<'_>,
    spaces: &[SpaceSurvey],
) -> (Vec<ExportSurvey>, Vec<ConnectionSurvey>) {
    let (mut exports, mut connections) = (Vec::new(), Vec::new());
    for space in spaces {
        let row = u64::from(space.id) * Geometry::PUBLIC_ROW;
        let start = ground.tables.geometry.publics + row;
        let entries = ground.tables.publics(space.id);
        for index in ground.entries(start, PUBLIC_BYTES, entries.len()) {
            let Some(entry) = entries.get(index) else {
                continue;
            };
            // Acquire: what it tells was written before the state.
            let word = entry.state.load(Ordering::Acquire);
            let state = PublicState::unpack(word);
            let Some(kind) = state.kind.filter(|_| !state.busy) else {
                continue;
            };
            let found = read(space, kind, entry);
            // Pairs with the writer's fence: what was read is of the use that the state names.
            fence(Ordering::Acquire);
            if entry.state.load(Ordering::Relaxed) != word {
                continue;
            }
            match found {
                Found::Export(export) => exports.push(export),
                Found::Connection(connection) => connections.push(connection),
            }
        }
    }
    (exports, connections)
}

enum Found {
    Export(ExportSurvey),
    Connection(ConnectionSurvey),
}

fn read(space: &SpaceSurvey, kind: PublicKind, entry: &PublicEntry) -> Found {
    let counters = &entry.counters;
    let number = |word: u64| u32::try_from(word).unwrap_or(u32::MAX);
    let kind = match kind {
        PublicKind::Export => {
            let flags = entry.flags.load(Ordering::Relaxed);
            return Found::Export(ExportSurvey {
                space: space.id,
                pid: space.pid,
                exporter: space.name.clone(),
                name: read_text(&entry.name),
                bytes: entry.bytes.load(Ordering::Relaxed),
                reach: match (flags & flag::READS != 0, flags & flag::WRITES != 0) {
                    (true, true) => Reach::ReadWrite,
                    (false, true) => Reach::Write,
                    _ => Reach::Read,
                },
                kernel_mediated: flags & flag::KERNEL != 0,
                importers: counters.importers.load(Ordering::Relaxed),
                notifications: counters.notifications.load(Ordering::Relaxed),
            });
        }
        PublicKind::ConnectedTo => ConnectionKind::ConnectedTo,
        PublicKind::Client => ConnectionKind::Client,
        PublicKind::Following => ConnectionKind::Following,
        PublicKind::Follower => ConnectionKind::Follower,
    };
    let port = entry.port.load(Ordering::Relaxed).checked_sub(1);
    Found::Connection(ConnectionSurvey {
        space: space.id,
        kind,
        offer: read_text(&entry.name),
        domain: Some(read_text(&entry.domain)).filter(|name| !name.is_empty()),
        user: number(entry.user.load(Ordering::Relaxed)),
        pid: number(entry.pid.load(Ordering::Relaxed)),
        port: port.and_then(|port| u16::try_from(port).ok()),
        out: counters.out.load(Ordering::Relaxed),
        out_bytes: counters.out_bytes.load(Ordering::Relaxed),
        came: counters.came.load(Ordering::Relaxed),
        came_bytes: counters.came_bytes.load(Ordering::Relaxed),
    })
}
