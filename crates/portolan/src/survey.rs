//! A survey: who is in a domain, which ports there are, and who owns how much.
//!
//! It only reads, and stops nobody: what it says of one word was true at some instant
//! of the survey, and sums of several words may be off by what moved meanwhile. Tables
//! are sparse, so only those parts are read that have memory; a survey of a large
//! domain that is hardly used takes microseconds and allocates nothing in it.

use crate::member::Member;
use crate::{Disowned, Domain, Protection};
use portolan_abi::limits::{CHUNK, MAX_SPACES};
use portolan_abi::owner::{Alloc, ChunkUse, Hold, Size};
use portolan_abi::port::{PortPhase, PortStatus};
use portolan_abi::region::{Geometry, OWNER_BYTES, PORT_BYTES, RIGHT_BYTES};
use portolan_abi::space::{HostWord, SpacePhase, SpaceStatus};
use portolan_shm::chunk::Chunks;
use portolan_shm::region::read_text;
use portolan_sys::memory;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// What [`Domain::survey`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Survey {
    /// The domain's name.
    pub domain: String,
    /// The user whose domain it is.
    pub user: u32,
    /// The space that hosts; 0 while there is none.
    pub host: u8,
    /// How often another space took the host's place.
    pub takeovers: u64,
    /// How extents are protected.
    pub protection: Protection,
    /// How its memory is used.
    pub memory: MemorySurvey,
    /// Every space, in the order of their numbers.
    pub spaces: Vec<SpaceSurvey>,
    /// Every port, in the order of their numbers.
    pub ports: Vec<PortSurvey>,
}

/// A domain's memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemorySurvey {
    /// What extents may take at one time.
    pub limit: u64,
    /// What has been taken from the kernel for them.
    pub taken: u64,
    /// What is in extents, owned or under way.
    pub used: u64,
    /// What can still be handed out, within the limit.
    pub free: u64,
    /// What is in messages that wait in queues.
    pub queued: u64,
}

/// One space.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpaceSurvey {
    /// Its number.
    pub id: u8,
    /// Its process.
    pub pid: u32,
    /// The user of its process.
    pub user: u32,
    /// What it calls itself.
    pub name: String,
    /// What it is doing.
    pub state: SpaceState,
    /// Messages that it has sent.
    pub sent: u64,
    /// Bytes in the extents of those.
    pub sent_bytes: u64,
    /// Extents that it owns.
    pub extents: u64,
    /// Bytes in those.
    pub owned: u64,
}

/// What a space is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpaceState {
    /// It is being admitted.
    Joining,
    /// It is a member.
    Live,
    /// It is a member, and has lost its connection to the host.
    Disconnected,
    /// It is dead or has left; what it held is being returned.
    Dead,
}

/// One port.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortSurvey {
    /// Its number; numbers are used again.
    pub index: u16,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// The space that it is bound to; while it moves, the space that sent it.
    pub owner: u8,
    /// What it takes.
    pub kind: PortKind,
    /// What it is doing.
    pub state: PortState,
    /// Whether it hands out the most urgent message first.
    pub by_urgency: bool,
    /// Whether receivers get copies.
    pub copied: bool,
    /// Messages that wait.
    pub depth: usize,
    /// Slots of its queue; one of them is kept for the message that is being read.
    pub slots: usize,
    /// Messages taken out of it, by whoever had this number.
    pub taken: u64,
    /// Slots stepped over because their senders had died.
    pub voids: u64,
    /// Messages dropped because it was full.
    pub dropped: u64,
    /// Sends that found it full.
    pub full: u64,
    /// Send rights on it that somebody holds.
    pub senders: u32,
}

/// What a port takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortKind {
    /// Messages.
    Asynchronous,
    /// Requests.
    Synchronous,
    /// One client's replies.
    Replies,
}

/// What a port is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortState {
    /// It is being bound.
    Binding,
    /// It receives.
    Open,
    /// Its receive right travels in a message.
    Moving,
    /// It is being closed.
    Closing,
}

impl Domain {
    /// Looks at everybody and everything in the domain. For people and their tools:
    /// nothing in it is a promise a moment later.
    ///
    /// # Errors
    ///
    /// [`Disowned`].
    ///
    /// ```
    /// use portolan::{Domain, PortOptions};
    /// let domain = Domain::private()?;
    /// let port = domain.bind(PortOptions::named("frames"))?;
    /// let extent = domain.allocate(5000)?;
    /// let survey = domain.survey()?;
    /// assert_eq!(survey.ports[0].name.as_deref(), Some("frames"));
    /// assert_eq!((survey.spaces[0].extents, survey.spaces[0].owned), (1, 8192));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn survey(&self) -> Result<Survey, Disowned> {
        let member = self.member();
        member.present()?;
        let header = member.tables().header;
        // Acquire: the host's entry is as it was when it became the host.
        let host = HostWord::unpack(header.host.word.load(Ordering::Acquire));
        let spaces = spaces(member);
        Ok(Survey {
            domain: self.name().to_owned(),
            user: u32::try_from(header.user.load(Ordering::Relaxed)).unwrap_or(u32::MAX),
            host: host.space,
            takeovers: header.host.takeovers.load(Ordering::Relaxed),
            protection: self.protection(),
            memory: memory_of(member, &spaces),
            ports: ports(member, &spaces),
            spaces: spaces.into_iter().map(|found| found.survey).collect(),
        })
    }
}

/// A space, and what it has written into slots that are not published yet.
struct Found {
    survey: SpaceSurvey,
    sending: u64,
}

fn spaces(member: &Member) -> Vec<Found> {
    let entries = member.tables().spaces.iter().enumerate().take(MAX_SPACES);
    let known = entries.filter_map(|(id, entry)| {
        // Acquire: who it is was written before the status.
        let status = SpaceStatus::unpack(entry.status.load(Ordering::Acquire));
        let state = match status.phase {
            SpacePhase::Free => return None,
            SpacePhase::Joining => SpaceState::Joining,
            SpacePhase::Live if status.disconnected => SpaceState::Disconnected,
            SpacePhase::Live => SpaceState::Live,
            SpacePhase::Dead => SpaceState::Dead,
        };
        let id = u8::try_from(id).ok()?;
        let number = |word: u64| u32::try_from(word).unwrap_or(u32::MAX);
        let held = held(member, id);
        Some(Found {
            survey: SpaceSurvey {
                id,
                pid: number(entry.pid.load(Ordering::Relaxed)),
                user: number(entry.user.load(Ordering::Relaxed)),
                name: read_text(&entry.name),
                state,
                sent: entry.sent.load(Ordering::Relaxed),
                sent_bytes: entry.sent_bytes.load(Ordering::Relaxed),
                extents: held.extents,
                owned: held.bytes,
            },
            sending: held.sending,
        })
    });
    known.collect()
}

/// What one row of owner words says.
#[derive(Default)]
struct Held {
    extents: u64,
    bytes: u64,
    sending: u64,
}

fn held(member: &Member, space: u8) -> Held {
    let tables = member.tables();
    let row = tables.owner_row(space);
    let start = tables.geometry.owners + u64::from(space) * tables.geometry.owner_row();
    let mut held = Held::default();
    for page in entries(member, start, OWNER_BYTES, tables.alloc.pages()) {
        let Ok(page) = u32::try_from(page) else {
            continue;
        };
        let (word, _) = row.read(page);
        let now = tables.alloc.read(page);
        // A word of an earlier use says nothing.
        if word.hold() == Hold::None
            || now.state() != Alloc::Used
            || now.generation() != word.generation()
        {
            continue;
        }
        let bytes = size_at(member, page).map_or(0, |size| size.bytes() as u64);
        if word.hold() == Hold::Sending {
            held.sending += bytes;
        } else {
            held.extents += 1;
            held.bytes += bytes;
        }
    }
    held
}

/// The size of the extents that the chunk of `page` is cut into.
fn size_at(member: &Member, page: u32) -> Option<Size> {
    let word = member.tables().chunks.read(Chunks::of_page(page));
    let cut = matches!(word.r#use, ChunkUse::Small | ChunkUse::Head);
    Size::from_code(word.size).filter(|_| cut)
}

fn memory_of(member: &Member, spaces: &[Found]) -> MemorySurvey {
    let tables = member.tables();
    let used: u64 = (0..tables.chunks.len())
        .filter_map(|chunk| {
            let size = size_at(member, Chunks::first_page(chunk))?;
            let used = Chunks::extents(chunk, size)
                .filter(|page| tables.alloc.read(*page).state() == Alloc::Used);
            Some((used.count() * size.bytes()) as u64)
        })
        .sum();
    let owned: u64 = spaces
        .iter()
        .map(|found| found.survey.owned + found.sending)
        .sum();
    MemorySurvey {
        limit: tables.header.limit.load(Ordering::Relaxed),
        taken: (tables.chunks.populated() * CHUNK) as u64,
        used,
        free: crate::extent::free_bytes(member),
        queued: used.saturating_sub(owned),
    }
}

fn ports(member: &Member, spaces: &[Found]) -> Vec<PortSurvey> {
    let tables = member.tables();
    let held = senders(member, spaces);
    let known = entries(
        member,
        tables.geometry.ports,
        PORT_BYTES,
        tables.ports.len(),
    );
    known
        .filter_map(|index| port(member, u16::try_from(index).ok()?, &held))
        .collect()
}

/// Counts of send rights: of which port, and how many.
type Senders = HashMap<(u16, u32), u32>;

fn senders(member: &Member, spaces: &[Found]) -> Senders {
    let tables = member.tables();
    let mut senders = Senders::new();
    for Found { survey, .. } in spaces {
        let row = tables.right_row(survey.id);
        let start = tables.geometry.rights + u64::from(survey.id) * Geometry::RIGHT_ROW;
        for index in entries(member, start, RIGHT_BYTES, tables.ports.len()) {
            let Ok(index) = u16::try_from(index) else {
                continue;
            };
            if let Some(sends) = row.any_sends(index) {
                *senders.entry((index, sends.generation)).or_default() += sends.count;
            }
        }
    }
    senders
}

fn port(member: &Member, index: u16, senders: &Senders) -> Option<PortSurvey> {
    let entry = &member.tables().ports[usize::from(index)];
    // Acquire: what the binder wrote came before the status.
    let status = PortStatus::unpack(entry.control.status.load(Ordering::Acquire));
    let state = match status.phase {
        PortPhase::Free => return None,
        PortPhase::Binding => PortState::Binding,
        PortPhase::Open => PortState::Open,
        PortPhase::Moving => PortState::Moving,
        PortPhase::Closing | PortPhase::Lingering => PortState::Closing,
    };
    let queue = member.tables().queue(index);
    Some(PortSurvey {
        index,
        name: Some(read_text(&entry.name.words)).filter(|name| !name.is_empty()),
        owner: status.owner,
        kind: match status {
            PortStatus { replies: true, .. } => PortKind::Replies,
            PortStatus {
                synchronous: true, ..
            } => PortKind::Synchronous,
            _ => PortKind::Asynchronous,
        },
        state,
        by_urgency: status.by_urgency,
        copied: status.copied,
        depth: queue.as_ref().map_or(0, |queue| queue.depth()),
        slots: queue.as_ref().map_or(0, |queue| queue.slots()),
        taken: entry.receiver.taken.load(Ordering::Relaxed),
        voids: entry.receiver.voids.load(Ordering::Relaxed),
        dropped: entry.counters.dropped.load(Ordering::Relaxed),
        full: entry.counters.full.load(Ordering::Relaxed),
        senders: senders
            .get(&(index, status.generation))
            .copied()
            .unwrap_or(0),
    })
}

/// Indices of those of `count` entries of `size` bytes from `start` on that have memory.
fn entries(member: &Member, start: u64, size: u64, count: usize) -> impl Iterator<Item = usize> {
    let whole = start..start + size * count as u64;
    let ranges = memory::data_ranges(member.region.fd(), whole.clone());
    // A file system that cannot tell holes has none; a failure reads as such.
    let ranges: Vec<Range<u64>> = ranges
        .collect::<Result<_, _>>()
        .unwrap_or_else(|_| vec![whole]);
    ranges.into_iter().flat_map(move |range| {
        let first = (range.start - start) / size;
        let end = (range.end - start).div_ceil(size).min(count as u64);
        (first..end).filter_map(|index| usize::try_from(index).ok())
    })
}
