//! The auditor finds out whether anything was lost, by the region's bytes and by journals kept
//! outside it.
//!
//! It knows the layouts, and none of the library's algorithms: it does not follow what a
//! recovery does, but reads all tables while all workers hold still, and asks of every
//! extent, right, port and waiter whether a live space accounts for it.
//!
//! # What it asks
//!
//! - **A1** Every used extent of a cut chunk has exactly one holder: a living space's row,
//!   or one untaken message. None: *leaked*. Several: *double owned*.
//! - **A2** Every other page and chunk is free, and no row names it.
//! - **A3** What living spaces hold by their rows, and by the entries of channels and of signals,
//!   is what they hold by their journals.
//! - **A4** A place that is free holds nothing: no row, no port, no watch, no lock, no
//!   claimed slot, no chunk; it reads and writes no channel, and no unit is being written.
//! - **A5** A right in a row, or a receive right on its way, belongs to a live space.
//! - **A6** A waiting space can be woken: a live space can still give the answer that a client
//!   waits for, a port without senders has been told, so has each watcher of a dead port.
//! - **A7** A chunk's word says whether the file has its memory: all of it, or none.

mod channels;
mod contents;
mod image;
mod rights;

use contents::Contents;
pub(crate) use image::Image;
use image::{Port, Space};

use crate::torture::board::Journal;
use portolan_abi::limits::{CHUNK, CHUNK_PAGES};
use portolan_abi::owner::{Alloc, ChunkUse, ChunkWord, Hold, Size};
use portolan_abi::port::{PortName, PortPhase, RightKind, RightWord};
use portolan_abi::slot::{Kind, Phase, SlotState};
use portolan_abi::space::SpacePhase;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// What an audit found; each a sentence.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings {
    pub(crate) leaked: Vec<String>,
    pub(crate) double_owned: Vec<String>,
    pub(crate) unreleased: Vec<String>,
    pub(crate) hung: Vec<String>,
    pub(crate) leaderless: Vec<String>,
    /// Ports where a message waits, and the receiver was not told. That is no finding yet: a
    /// sender may be about to tell it.
    pub(crate) sleeping: BTreeSet<u16>,
    /// Readers of channels that have not read all, by space and by the page where the channel
    /// begins. That is no finding either: they may be about other things.
    pub(crate) unread: BTreeSet<(u8, u32)>,
    /// Extents: free, held, in messages.
    pub(crate) extents: (usize, usize, usize),
}

impl Findings {
    pub(crate) fn is_clean(&self) -> bool {
        [
            &self.leaked,
            &self.double_owned,
            &self.unreleased,
            &self.hung,
            &self.leaderless,
        ]
        .iter()
        .all(|f| f.is_empty())
    }

    /// No process is about to make a wake any more: a receiver that sleeps beside a message hangs.
    pub(crate) fn count_sleepers(&mut self) {
        if !self.sleeping.is_empty() {
            self.hung.push(sleepers(&self.sleeping));
        }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = String> {
        let named = |name: &'static str, list: &[String]| {
            list.iter()
                .map(move |l| format!("{name}: {l}"))
                .collect::<Vec<_>>()
        };
        [
            named("leaked", &self.leaked),
            named("double owned", &self.double_owned),
            named("unreleased", &self.unreleased),
            named("hung", &self.hung),
            named("no host", &self.leaderless),
        ]
        .into_iter()
        .flatten()
    }
}

/// The finding, once no process is about to wake them.
pub(crate) fn sleepers(ports: &BTreeSet<u16>) -> String {
    format!("the receivers of ports {ports:?} sleep, and messages wait")
}

/// Who holds an extent.
type Holders = BTreeMap<u32, Vec<(u32, String)>>;

/// Everything that was read.
struct Audit<'a> {
    image: &'a Image,
    spaces: Vec<Space>,
    ports: Vec<Port>,
    journals: BTreeMap<u8, &'a Journal>,
    holders: Holders,
    /// Rights in untaken messages.
    travelling: Vec<RightWord>,
    /// Ports to which a space owes an answer.
    owed: BTreeSet<PortName>,
    found: Findings,
}

/// Audits a region whose members hold still. `journals` come with their process's id.
pub(crate) fn audit(image: &Image, journals: &[(u32, Journal)]) -> io::Result<Findings> {
    let spaces = image.spaces()?;
    let by_pid: BTreeMap<u32, &Journal> = journals
        .iter()
        .filter(|(_, j)| j.space != 0)
        .map(|(pid, j)| (*pid, j))
        .collect();
    let journals = spaces
        .iter()
        .filter(|s| s.status.phase == SpacePhase::Live)
        .filter_map(|s| Some((s.id, *by_pid.get(&s.pid)?)))
        .collect();
    let mut audit = Audit {
        image,
        ports: image.ports()?,
        spaces,
        journals,
        holders: Holders::new(),
        travelling: Vec::new(),
        owed: BTreeSet::new(),
        found: Findings::default(),
    };
    audit.members()?;
    audit.messages()?;
    audit.rows()?;
    audit.extents()?;
    audit.port_entries();
    audit.rights()?;
    audit.watches()?;
    audit.signals()?;
    audit.channels()?;
    Ok(audit.found)
}

/// What a process's first thread is at: `R`, `S`, ...; nothing, if there is none.
pub(crate) fn process_state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}

/// Whether a process lives.
fn lives(pid: u32) -> bool {
    process_state(pid).is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// Whether every space in the region is alive and settled: none joins, leaves or is being
/// returned, and a living member hosts.
pub(crate) fn is_settled(image: &Image) -> io::Result<bool> {
    let host = image.host()?;
    let mut hosted = false;
    for space in image.spaces()? {
        match space.status.phase {
            SpacePhase::Free => {}
            SpacePhase::Live if lives(space.pid) => {
                hosted |= host.space == space.id && host.incarnation == space.status.incarnation;
            }
            _ => return Ok(false),
        }
    }
    Ok(hosted)
}

/// The members' process ids by space, and the host's.
pub(crate) fn host_pid(image: &Image) -> Option<u32> {
    let host = image.host().ok()?;
    let spaces = image.spaces().ok()?;
    spaces
        .iter()
        .find(|s| s.id == host.space)
        .map(|s| s.pid)
        .filter(|pid| *pid != 0)
}

impl Audit<'_> {
    fn is_live(&self, space: u8) -> bool {
        self.spaces
            .iter()
            .any(|s| s.id == space && s.status.phase == SpacePhase::Live && lives(s.pid))
    }

    fn port(&self, name: PortName) -> Option<&Port> {
        let open = |p: &&Port| {
            p.index == name.index && is_open(p) && p.status.generation == name.generation
        };
        self.ports.iter().find(open)
    }

    /// A4: no space is half in or half out.
    fn members(&mut self) -> io::Result<()> {
        for space in &self.spaces {
            let Space { id, status, pid } = *space;
            let settled = match status.phase {
                SpacePhase::Free => true,
                SpacePhase::Live => lives(pid),
                SpacePhase::Claimed | SpacePhase::Joining | SpacePhase::Dead => false,
            };
            if !settled {
                self.found.unreleased.push(format!(
                    "space {id} of process {pid} is {status:?} and nobody returns it"
                ));
            }
        }
        let host = self.image.host()?;
        if !self.is_live(host.space) {
            self.found.leaderless.push(format!(
                "the host is space {} of incarnation {}, which does not live",
                host.space, host.incarnation
            ));
        }
        Ok(())
    }

    /// What untaken messages hold.
    fn messages(&mut self) -> io::Result<()> {
        let mut extents = Vec::new();
        for port in &self.ports {
            for slot in &port.slots {
                let state = slot.state;
                if matches!(state.phase(), Phase::Claimed) || state.has(SlotState::CLOSING) {
                    self.found.unreleased.push(format!(
                        "port {}: a slot is {state:?}, and nobody sends",
                        port.index
                    ));
                }
                if !is_untaken(port, state) {
                    continue;
                }
                if !is_open(port) {
                    self.found.leaked.push(format!(
                        "port {} is {:?} and holds a message: {state:?}",
                        port.index, port.status.phase
                    ));
                }
                let at = format!("a message to port {} at {}", port.index, state.position());
                let contents = Contents::read(self.image, slot)?;
                extents.extend(contents.extents.iter().map(|d| (*d, at.clone())));
                if contents.garbled {
                    self.found.double_owned.push(format!("{at} cannot be read"));
                }
                // Its answer, or the news that there is none, is there.
                if port.status.replies {
                    self.owed.insert(PortName {
                        index: port.index,
                        generation: port.status.generation,
                    });
                }
                if let (Kind::Request, Some(reply)) = (contents.kind, contents.reply) {
                    self.owed.insert(reply.port);
                }
                self.owed.extend(
                    contents
                        .rights
                        .iter()
                        .filter(|r| r.kind == RightKind::SendOnce)
                        .map(|r| r.port),
                );
                self.travelling.extend(contents.rights);
            }
            if port.asleep && is_open(port) && port.slots.iter().any(|s| is_untaken(port, s.state))
            {
                self.found.sleeping.insert(port.index);
            }
        }
        for (d, at) in extents {
            self.found.extents.2 += 1;
            self.holders
                .entry(d.page)
                .or_default()
                .push((d.generation, at));
        }
        Ok(())
    }

    /// What rows say; A3 and A4.
    fn rows(&mut self) -> io::Result<()> {
        for space in self.spaces.clone() {
            let row = self.image.owners(space.id)?;
            let live = self.is_live(space.id);
            let mut held = BTreeSet::new();
            for (page, (word, to)) in &row {
                if !live {
                    self.found.unreleased.push(format!(
                        "space {} is {:?} and its row says {:?} of page {page}",
                        space.id,
                        space.status.phase,
                        word.hold()
                    ));
                    continue;
                }
                let by = match word.hold() {
                    Hold::Held | Hold::Parked => {
                        held.insert(*page);
                        format!("space {}", space.id)
                    }
                    Hold::Sending => format!("space {}, sending to {to:?}", space.id),
                    Hold::None => {
                        self.found.leaked.push(format!(
                            "space {} is allocating page {page}, and nobody allocates: {:#x}",
                            space.id, word.0
                        ));
                        continue;
                    }
                };
                self.found.extents.1 += 1;
                self.holders
                    .entry(*page)
                    .or_default()
                    .push((word.generation(), by));
            }
            self.compare(space.id, &held);
        }
        Ok(())
    }

    /// A3: the row and the journal.
    fn compare(&mut self, space: u8, held: &BTreeSet<u32>) {
        let Some(journal) = self.journals.get(&space) else {
            return;
        };
        let noted: BTreeSet<u32> = journal
            .extents
            .iter()
            .filter_map(|(address, _)| self.image.page_of(*address))
            .collect();
        if noted.len() != journal.extents.len() {
            self.found.double_owned.push(format!(
                "worker {} holds an extent twice by its own count",
                journal.worker
            ));
        }
        for page in held.difference(&noted) {
            self.found.leaked.push(format!(
                "space {space} holds page {page} by its row, and worker {} does not know of it",
                journal.worker
            ));
        }
        for page in noted.difference(held) {
            self.found.double_owned.push(format!(
                "worker {} holds page {page}, and the row of space {space} does not say so",
                journal.worker
            ));
        }
    }

    /// A1 and A2.
    fn extents(&mut self) -> io::Result<()> {
        let chunks = self.image.chunks()?;
        let alloc = self.image.alloc()?;
        let mut known = BTreeSet::new();
        for (index, chunk) in chunks.iter().enumerate() {
            self.chunk(&chunks, index, *chunk);
            let size = match chunk.r#use {
                ChunkUse::Small | ChunkUse::Head => Size::from_code(chunk.size),
                _ => None,
            };
            let Some(size) = size else { continue };
            for page in pages(index, size) {
                known.insert(page);
                let word = alloc
                    .get(&page)
                    .copied()
                    .unwrap_or(portolan_abi::owner::AllocWord(0));
                let holders = self.holders.get(&page).map_or(&[][..], Vec::as_slice);
                let place = format!(
                    "the extent at page {page} (chunk {index}, {} bytes, use {})",
                    size.bytes(),
                    word.generation()
                );
                match word.state() {
                    Alloc::Free if holders.is_empty() => self.found.extents.0 += 1,
                    Alloc::Free => self
                        .found
                        .double_owned
                        .push(format!("{place} is free, and held by {holders:?}")),
                    Alloc::Locked => self
                        .found
                        .leaked
                        .push(format!("{place} is withdrawn for ever")),
                    Alloc::Used => match holders {
                        [] => self
                            .found
                            .leaked
                            .push(format!("{place} is used, and nobody has it")),
                        [(generation, _)] if *generation == word.generation() => {}
                        [(generation, by)] => self
                            .found
                            .leaked
                            .push(format!("{place} is used; {by} had use {generation} of it")),
                        several => self
                            .found
                            .double_owned
                            .push(format!("{place} is held by {several:?}")),
                    },
                }
            }
        }
        for (page, word) in &alloc {
            if word.state() == Alloc::Used && !known.contains(page) {
                self.found
                    .leaked
                    .push(format!("page {page} is used, and no extent begins there"));
            }
        }
        for (page, holders) in &self.holders {
            if !known.contains(page) {
                self.found.double_owned.push(format!(
                    "page {page} is held by {holders:?}, and no extent begins there"
                ));
            }
        }
        let populated = chunks.iter().filter(|c| c.populated).count() as u64 * CHUNK as u64;
        if populated > self.image.limit()? {
            self.found.leaked.push(format!(
                "{populated} bytes are populated, above the domain's limit"
            ));
        }
        Ok(())
    }

    /// A1, A2, A4 and A7: a chunk's word.
    fn chunk(&mut self, chunks: &[ChunkWord], index: usize, chunk: ChunkWord) {
        let wanted = if chunk.populated { CHUNK as u64 } else { 0 };
        let taken = self.image.memory_of(index).unwrap_or(wanted);
        let list = &mut self.found.leaked;
        if taken != wanted {
            list.push(format!(
                "chunk {index} is {:?} and says it has {wanted} bytes of memory, and the file has {taken}",
                chunk.r#use
            ));
        }
        match chunk.r#use {
            ChunkUse::Taking | ChunkUse::Returning => {
                list.push(format!("chunk {index} is for ever {:?}", chunk.r#use))
            }
            ChunkUse::Body => {
                let head = usize::try_from(chunk.argument).unwrap_or(usize::MAX);
                let of = chunks
                    .get(head)
                    .filter(|h| h.r#use == ChunkUse::Head)
                    .and_then(|h| Size::from_code(h.size));
                if !of.is_some_and(|size| (head + 1..head + size.chunks()).contains(&index)) {
                    list.push(format!(
                        "chunk {index} belongs to a run at {head} that is none"
                    ));
                }
            }
            ChunkUse::Free | ChunkUse::Small | ChunkUse::Head => {}
        }
        if chunk.cache_owner != 0 && !self.is_live(chunk.cache_owner) {
            self.found.leaked.push(format!(
                "chunk {index} is kept for space {}, which does not live",
                chunk.cache_owner
            ));
        }
    }

    /// A4, A5: the ports.
    fn port_entries(&mut self) {
        let mut owned: BTreeMap<u8, u64> = BTreeMap::new();
        let moving: BTreeSet<PortName> = self
            .travelling
            .iter()
            .filter(|r| r.kind == RightKind::Receive)
            .map(|r| r.port)
            .collect();
        for port in &self.ports {
            let status = port.status;
            let index = port.index;
            match status.phase {
                PortPhase::Free => {}
                // A segment has no owner, though a space may keep it; `rights` checks whether a
                // space has a right on it.
                PortPhase::Open
                    if status.shared && (status.owner == 0 || self.is_live(status.owner)) => {}
                PortPhase::Open if self.is_live(status.owner) => {
                    *owned.entry(status.owner).or_default() += u64::from(!status.replies);
                }
                PortPhase::Moving if self.is_in_cycle(port) => self.found.unreleased.push(format!(
                    "port {index} moves into a cycle: nobody can take its right"
                )),
                PortPhase::Moving
                    if moving.contains(&PortName {
                        index,
                        generation: status.generation,
                    }) => {}
                PortPhase::Moving => {
                    let (to, at) = (port.transit.port(), port.transit.position());
                    let there = self.ports.iter().find(|p| p.index == to);
                    let slots = there.map_or(&[][..], |p| &p.slots[..]);
                    let slot = slots.iter().find(|s| s.state.position() == at);
                    self.found.unreleased.push(format!(
                        "port {index} ({status:?}) moves to port {to} at {at}, where its right is not: that is {:?}, with {:?} there",
                        there.map(|p| (p.status, p.head)),
                        slot.map(|s| s.state)
                    ));
                }
                phase => {
                    let owner = status.owner;
                    let space = self.spaces.iter().find(|s| s.id == owner);
                    let who = space.map(|s| (s.status.phase, s.pid, lives(s.pid)));
                    self.found.unreleased.push(format!(
                        "port {index} is {phase:?}, of space {owner}, which is {who:?}"
                    ));
                }
            }
        }
        for (space, journal) in &self.journals {
            let owned = owned.get(space).copied().unwrap_or(0);
            if owned != journal.ports {
                let (worker, ports) = (journal.worker, journal.ports);
                self.found.unreleased.push(format!("space {space} owns {owned} ports, and worker {worker} has {ports} receive rights"));
            }
        }
    }
}

impl Audit<'_> {
    /// Whether the way from a moving port, from queue to queue, never ends.
    fn is_in_cycle(&self, port: &Port) -> bool {
        let next = |port: &&Port| {
            let to = port.transit.port();
            let next = self.ports.iter().find(|p| p.index == to);
            next.filter(|p| p.status.phase == PortPhase::Moving)
        };
        let way = std::iter::successors(Some(port), next);
        way.take(self.ports.len() + 1).count() > self.ports.len()
    }
}

fn is_open(port: &Port) -> bool {
    matches!(port.status.phase, PortPhase::Open | PortPhase::Moving)
}

/// Published, and not taken: not before the head, unless it was passed.
fn is_untaken(port: &Port, state: SlotState) -> bool {
    state.phase() == Phase::Published
        && !state.has(SlotState::CLOSING)
        && (state.position() >= port.head || state.has(SlotState::PASSED))
}

/// First pages of a chunk's extents.
fn pages(chunk: usize, size: Size) -> impl Iterator<Item = u32> {
    let first = chunk * CHUNK_PAGES;
    (first..first + CHUNK_PAGES)
        .step_by(size.pages().min(CHUNK_PAGES))
        .map(|p| u32::try_from(p).unwrap_or(u32::MAX))
}
