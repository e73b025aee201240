//! A survey lists a domain's spaces and ports, and how much each space owns.
//!
//! It only reads, and stops no process: what it says of one word was true at some instant
//! of the survey, and sums of several words may be off by what moved meanwhile. Tables
//! are sparse, so only those parts are read that have memory; a survey of a large
//! domain that is hardly used takes microseconds and allocates nothing in it.

mod extents;
mod ground;
mod listeners;
#[cfg(feature = "metrics")]
mod metrics;
mod observe;
mod outside;
mod segments;
#[cfg(test)]
mod tests;

pub use extents::{AGES, Holder, HoldingSurvey};
pub(crate) use ground::Ground;
pub use listeners::ListenerSurvey;
pub(crate) use observe::ABSENCE;
pub use observe::Observer;
pub use outside::{ConnectionKind, ConnectionSurvey, ExportSurvey};
pub use segments::{ChannelSurvey, ReaderSurvey, SegmentKind, SegmentSurvey};

use crate::port::node_of;
use crate::{Disowned, Domain, Protection};
use portolan_abi::limits::MAX_SPACES;
use portolan_abi::port::{PortName, PortPhase, PortStatus};
use portolan_abi::region::{
    Geometry, HEADER_BYTES, PORT_BYTES, RIGHT_BYTES, SPACE_BYTES, THREAD_BYTES,
};
use portolan_abi::space::{HostWord, SpacePhase, SpaceStatus};
use portolan_abi::thread::{At, Wait};
use portolan_shm::queue::Queue;
use portolan_shm::region::read_text;
use std::collections::{HashMap, HashSet};
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
    /// Every port, in the order of their numbers; segments too, whose entries are ports'.
    pub ports: Vec<PortSurvey>,
    /// Every segment, and what it is used for, in the order of their numbers.
    pub segments: Vec<SegmentSurvey>,
    /// Every queue of signals.
    pub listeners: Vec<ListenerSurvey>,
    /// What is exported, by space. Each space shows 256 exports and connections at the most.
    pub exports: Vec<ExportSurvey>,
    /// Connections with other domains, by space.
    pub connections: Vec<ConnectionSurvey>,
    /// Every extent in use, by holder and size.
    pub holdings: Vec<HoldingSurvey>,
    /// Whether nothing is missing: an observer copies what it reads, 512 MiB at the most.
    pub whole: bool,
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
    /// What is in segments, which several spaces have: channels, topics, shared extents.
    pub shared: u64,
}

/// One space.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpaceSurvey {
    /// Its number; numbers are used again.
    pub id: u8,
    /// Tells one space of this number from the next.
    pub incarnation: u32,
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
    /// Sends of its that found a queue full.
    pub full: u64,
    /// Messages of its that were dropped because a queue was full.
    pub dropped: u64,
    /// Threads of its that look for a message again and again.
    pub spinning: u32,
    /// Threads of its that sleep until a message comes. Of its threads that send or wait,
    /// 63 are told apart; what further ones wait for is not known.
    pub sleeping: u32,
    /// Threads of its that wait for room in a queue.
    pub awaiting_room: u32,
    /// Calls that it has made.
    pub calls: u64,
    /// Calls that it has run for clients.
    pub answers: u64,
    /// Addresses that it has signalled.
    pub signals: u64,
    /// Signals that came to handlers of its.
    pub delivered: u64,
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
    /// Tells one port of this number from the next.
    pub generation: u32,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// The space that it is bound to; while it moves, the space that sent it. 0 of a segment.
    pub owner: u8,
    /// What it takes.
    pub kind: PortKind,
    /// What it is doing.
    pub state: PortState,
    /// Whether it hands out the most urgent message first.
    pub by_urgency: bool,
    /// Whether receivers get copies.
    pub copied: bool,
    /// Whether programs on other nodes find it by its name ([`crate::PortOptions::spanned`]).
    pub spanned: bool,
    /// Of a proxied port ([`crate::proxy`]): the node on whose behalf it is received.
    pub node: Option<String>,
    /// Whether that node is silent.
    pub unreachable: bool,
    /// Messages that wait; none in a segment's entry.
    pub depth: usize,
    /// Slots of its queue; one of them is kept for the message that is being read.
    pub slots: usize,
    /// Messages taken out of it, by all receivers that this port has had.
    pub taken: u64,
    /// Bytes in the extents of those.
    pub taken_bytes: u64,
    /// Slots stepped over because their senders had died.
    pub voids: u64,
    /// Messages dropped because it was full.
    pub dropped: u64,
    /// Sends that found it full.
    pub full: u64,
    /// Send rights on it that exist.
    pub senders: u32,
    /// Threads that look for its next message again and again.
    pub spinning: u32,
    /// Threads that sleep until its next message comes.
    pub sleeping: u32,
    /// Threads that wait for room in its queue.
    pub awaiting_room: u32,
    /// Whether the next sender has to make a wake: of a sleeper, a wait set or a task.
    pub armed: bool,
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
    /// Nothing: it is a segment's entry.
    Segment,
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
    /// Looks at every space and everything in the domain. For people and their tools:
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
        let ground = Ground::of_member(member.tables(), member.region.fd());
        Ok(take(&ground, self.name(), self.protection()))
    }
}

/// Surveys a region.
pub(crate) fn take(ground: &Ground<'_>, domain: &str, protection: Protection) -> Survey {
    let header = ground.tables.header;
    ground.fetch(0..HEADER_BYTES);
    // Acquire: the host's entry is as it was when it became the host.
    let host = HostWord::unpack(header.host.word.load(Ordering::Acquire));
    let mut spaces = spaces(ground);
    let waits = waits(ground, &mut spaces);
    let Entries {
        ports,
        segments,
        shared,
    } = entries(ground, &spaces, &waits);
    let (memory, holdings) = extents::take(ground, &mut spaces, &shared);
    let (exports, connections) = outside::take(ground, &spaces);
    Survey {
        domain: domain.to_owned(),
        user: u32::try_from(header.user.load(Ordering::Relaxed)).unwrap_or(u32::MAX),
        host: host.space,
        takeovers: header.host.takeovers.load(Ordering::Relaxed),
        protection,
        memory,
        ports,
        segments,
        listeners: listeners::take(ground),
        exports,
        connections,
        spaces,
        holdings,
        whole: ground.is_whole(),
    }
}

fn spaces(ground: &Ground<'_>) -> Vec<SpaceSurvey> {
    let start = ground.tables.geometry.spaces;
    ground.fetch(start..start + SPACE_BYTES * MAX_SPACES as u64);
    let entries = ground.tables.spaces.iter().enumerate().take(MAX_SPACES);
    let known = entries.filter_map(|(id, entry)| {
        // Acquire: who it is was written before the status.
        let status = SpaceStatus::unpack(entry.status.load(Ordering::Acquire));
        let state = match status.phase {
            SpacePhase::Free | SpacePhase::Claimed => return None,
            SpacePhase::Joining => SpaceState::Joining,
            SpacePhase::Live if status.disconnected => SpaceState::Disconnected,
            SpacePhase::Live => SpaceState::Live,
            SpacePhase::Dead => SpaceState::Dead,
        };
        let number = |word: u64| u32::try_from(word).unwrap_or(u32::MAX);
        Some(SpaceSurvey {
            id: u8::try_from(id).ok()?,
            incarnation: status.incarnation,
            pid: number(entry.pid.load(Ordering::Relaxed)),
            user: number(entry.user.load(Ordering::Relaxed)),
            name: read_text(&entry.name),
            state,
            sent: 0,
            sent_bytes: 0,
            full: 0,
            dropped: 0,
            spinning: 0,
            sleeping: 0,
            awaiting_room: 0,
            calls: 0,
            answers: 0,
            signals: 0,
            delivered: 0,
            extents: 0,
            owned: 0,
        })
    });
    known.collect()
}

/// The threads that wait at a port.
#[derive(Clone, Copy, Default)]
struct Waiters {
    spinning: u32,
    sleeping: u32,
    for_room: u32,
}

/// Reads every thread's line into its space's counts; who waits at which port.
fn waits(ground: &Ground<'_>, spaces: &mut [SpaceSurvey]) -> HashMap<u16, Waiters> {
    let mut at: HashMap<u16, Waiters> = HashMap::new();
    for space in spaces {
        // A newcomer's page may not be there yet.
        let row = u64::from(space.id) * Geometry::THREAD_ROW;
        let start = ground.tables.geometry.threads + row;
        let lines = ground.tables.thread_lines(space.id);
        for index in ground.entries(start, THREAD_BYTES, lines.len()) {
            let Some(line) = lines.get(index) else {
                continue;
            };
            space.sent += line.sent.load(Ordering::Relaxed);
            space.sent_bytes += line.sent_bytes.load(Ordering::Relaxed);
            space.full += line.full.load(Ordering::Relaxed);
            space.dropped += line.dropped.load(Ordering::Relaxed);
            space.calls += line.calls.load(Ordering::Relaxed);
            space.answers += line.answers.load(Ordering::Relaxed);
            space.signals += line.signals.load(Ordering::Relaxed);
            space.delivered += line.delivered.load(Ordering::Relaxed);
            match Wait::unpack(line.waits.load(Ordering::Relaxed)) {
                Wait::Nothing => {}
                Wait::Spinning(place) => {
                    space.spinning += 1;
                    if let At::Port(port) = place {
                        at.entry(port).or_default().spinning += 1;
                    }
                }
                Wait::Sleeping(place) => {
                    space.sleeping += 1;
                    if let At::Port(port) = place {
                        at.entry(port).or_default().sleeping += 1;
                    }
                }
                Wait::ForRoom(port) => {
                    space.awaiting_room += 1;
                    at.entry(port).or_default().for_room += 1;
                }
            }
        }
    }
    at
}

/// What the table of ports holds.
struct Entries {
    ports: Vec<PortSurvey>,
    segments: Vec<SegmentSurvey>,
    /// First pages of segments' extents.
    shared: HashSet<u32>,
}

fn entries(ground: &Ground<'_>, spaces: &[SpaceSurvey], waits: &HashMap<u16, Waiters>) -> Entries {
    let tables = ground.tables;
    let held = senders(ground, spaces);
    let mut entries = Entries {
        ports: Vec::new(),
        segments: Vec::new(),
        shared: HashSet::new(),
    };
    // More slots than the queues of one region can have are not looked at.
    let mut slots = tables.queue_lines();
    for index in ground.entries(tables.geometry.ports, PORT_BYTES, tables.ports.len()) {
        let Ok(index) = u16::try_from(index) else {
            continue;
        };
        let queue = tables.queue(index);
        if let Some(queue) = &queue {
            let lines = queue.slots() * queue.slot_lines();
            if lines > slots {
                continue;
            }
            slots -= lines;
            ground.fetch_queue(index, lines);
        }
        let Some(port) = port(ground, index, queue.as_ref(), &held, waits) else {
            continue;
        };
        if port.kind == PortKind::Segment {
            if let Some(segment) = segments::take(ground, index, port.senders) {
                entries.segments.push(segment);
            }
            let memory = queue.and_then(|queue| segments::memory(ground, &queue));
            entries
                .shared
                .extend(memory.map(|memory| memory.extent.page));
        }
        entries.ports.push(port);
    }
    entries
}

/// Counts of send rights: of which port, and how many.
type Senders = HashMap<(u16, u32), u32>;

fn senders(ground: &Ground<'_>, spaces: &[SpaceSurvey]) -> Senders {
    let tables = ground.tables;
    let mut senders = Senders::new();
    for space in spaces {
        let row = tables.right_row(space.id);
        let start = tables.geometry.rights + u64::from(space.id) * Geometry::RIGHT_ROW;
        for index in ground.entries(start, RIGHT_BYTES, tables.ports.len()) {
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

fn port(
    ground: &Ground<'_>,
    index: u16,
    queue: Option<&Queue<'_>>,
    senders: &Senders,
    waits: &HashMap<u16, Waiters>,
) -> Option<PortSurvey> {
    let entry = ground.tables.ports.get(usize::from(index))?;
    // Acquire: what the binder wrote came before the status.
    let status = PortStatus::unpack(entry.control.status.load(Ordering::Acquire));
    let state = match status.phase {
        PortPhase::Free => return None,
        PortPhase::Binding => PortState::Binding,
        PortPhase::Open => PortState::Open,
        PortPhase::Moving => PortState::Moving,
        PortPhase::Closing | PortPhase::Lingering => PortState::Closing,
    };
    // In binding it has none yet, or none any more: what it names may have no memory.
    let queue = queue.filter(|_| state != PortState::Binding);
    let waiters = waits.get(&index).copied().unwrap_or_default();
    Some(PortSurvey {
        index,
        generation: status.generation,
        name: Some(read_text(&entry.name.words)).filter(|name| !name.is_empty()),
        // Of a segment it names who closes it, or keeps it.
        owner: if status.shared { 0 } else { status.owner },
        kind: match status {
            PortStatus { shared: true, .. } => PortKind::Segment,
            PortStatus { replies: true, .. } => PortKind::Replies,
            PortStatus {
                synchronous: true, ..
            } => PortKind::Synchronous,
            _ => PortKind::Asynchronous,
        },
        state,
        by_urgency: status.by_urgency,
        copied: status.copied,
        spanned: status.spanned,
        node: status.proxied.then(|| node_of(entry).0),
        unreachable: status.unreachable,
        depth: queue
            .filter(|_| !status.shared)
            .map_or(0, |queue| queue.depth()),
        slots: queue.map_or(0, |queue| queue.slots()),
        taken: entry.receiver.taken.load(Ordering::Relaxed),
        taken_bytes: entry.receiver.bytes.load(Ordering::Relaxed),
        voids: entry.receiver.voids.load(Ordering::Relaxed),
        dropped: entry.counters.dropped.load(Ordering::Relaxed),
        full: entry.counters.full.load(Ordering::Relaxed),
        senders: {
            let generation = status.generation;
            let held = senders.get(&(index, generation)).copied().unwrap_or(0);
            held.saturating_add(entry.rights.count(PortName { index, generation }))
        },
        spinning: waiters.spinning,
        sleeping: waiters.sleeping,
        awaiting_room: waiters.for_room,
        armed: entry.sleep.asleep.load(Ordering::Relaxed) != 0,
    })
}
