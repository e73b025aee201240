//! The auditor: whether anything was lost, by the region's bytes and by journals kept
//! outside it.
//!
//! It knows the layouts, and none of the library's algorithms: it does not follow what a
//! recovery does, but reads all tables while everybody holds still, and asks of every
//! extent, right, port and waiter whether somebody living answers for it.
//!
//! # What it asks
//!
//! - **A1** Every used extent of a cut chunk has exactly one holder: a living space's row,
//!   or one untaken message. None: *leaked*. Several: *double owned*.
//! - **A2** Every other page and chunk is free, and nobody's row names it.
//! - **A3** What living spaces hold by their rows is what they hold by their journals.
//! - **A4** A place that nobody has holds nothing: no row, no port, no watch, no lock, no
//!   claimed slot, no chunk.
//! - **A5** A right in a row, or a receive right on its way, is somebody's.
//! - **A6** Who waits is owed something: an answer has somebody to give it, a port without
//!   senders has been told, so has whoever watches a dead port.

mod image;

pub(crate) use image::Image;
use image::{Port, Slot, Space};

use crate::torture::board::Journal;
use portolan_abi::limits::{CHUNK, CHUNK_PAGES};
use portolan_abi::owner::{Alloc, ChunkUse, ChunkWord, Descriptor, Hold, Size};
use portolan_abi::port::{PortName, PortPhase, RightCount, RightKind, RightWord, event};
use portolan_abi::slot::{Kind, Meta, Phase, SlotState};
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
    /// Ports where a message waits, and whoever receives there was not told. That is no
    /// finding yet: somebody may be about to tell it.
    pub(crate) sleeping: BTreeSet<u16>,
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

    /// Nobody is about to wake anybody any more: who sleeps beside a message hangs.
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

/// The finding, once nobody is about to wake them.
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
    /// Ports to which somebody owes an answer.
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

/// Whether everybody in the region is alive and settled: nobody joins, leaves or is being
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

    /// A4: nobody is half in or half out.
    fn members(&mut self) -> io::Result<()> {
        for space in &self.spaces {
            let Space { id, status, pid } = *space;
            let settled = match status.phase {
                SpacePhase::Free => true,
                SpacePhase::Live => lives(pid),
                SpacePhase::Joining | SpacePhase::Dead => false,
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
        if let Some(holder) = self.image.names_lock()? {
            self.found.unreleased.push(format!(
                "space {holder} has the lock on names, and nobody binds"
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

    fn chunk(&mut self, chunks: &[ChunkWord], index: usize, chunk: ChunkWord) {
        let list = &mut self.found.leaked;
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
        if chunk.home != 0 && !self.is_live(chunk.home) {
            self.found.leaked.push(format!(
                "chunk {index} is kept for space {}, which does not live",
                chunk.home
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
                // A segment belongs to nobody; `rights` sees whether anybody has a right on it.
                PortPhase::Open if status.shared => {}
                PortPhase::Open if self.is_live(status.owner) => {
                    *owned.entry(status.owner).or_default() += u64::from(!status.replies);
                }
                PortPhase::Moving
                    if moving.contains(&PortName {
                        index,
                        generation: status.generation,
                    }) => {}
                PortPhase::Moving => self.found.unreleased.push(format!(
                    "port {index} moves to {:?}, where its right is not",
                    port.transit
                )),
                phase => self.found.unreleased.push(format!(
                    "port {index} is {phase:?}, of space {}",
                    status.owner
                )),
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

    /// A4, A5, A6: send rights and answers.
    fn rights(&mut self) -> io::Result<()> {
        let mut senders: BTreeMap<PortName, u64> = BTreeMap::new();
        for right in self.travelling.iter().filter(|r| r.kind == RightKind::Send) {
            *senders.entry(right.port).or_default() += 1;
        }
        let mut owed = self.owed.clone();
        for space in self.spaces.clone() {
            let live = self.is_live(space.id);
            let mut sends = 0;
            for (index, counts) in self.image.rights(space.id)? {
                let (send, once) = (
                    RightCount::unpack(counts.send),
                    RightCount::unpack(counts.once),
                );
                // The upper bits of a send-once count are a tag.
                let onces = once.count & 0xfff;
                if !live {
                    if send.count + onces > 0 {
                        self.found.unreleased.push(format!(
                            "space {} is {:?} and has {} rights on port {index}",
                            space.id,
                            space.status.phase,
                            send.count + onces
                        ));
                    }
                    continue;
                }
                let name = PortName {
                    index,
                    generation: send.generation,
                };
                if send.count > 0 && self.port(name).is_some() {
                    sends += u64::from(send.count);
                    *senders.entry(name).or_default() += u64::from(send.count);
                }
                if onces > 0 {
                    owed.insert(PortName {
                        index,
                        generation: once.generation,
                    });
                }
            }
            if let Some(journal) = self.journals.get(&space.id)
                && journal.sends != sends
            {
                self.found.unreleased.push(format!(
                    "space {} has {sends} live send rights by its row, and worker {} has {}",
                    space.id, journal.worker, journal.sends
                ));
            }
        }
        let waits = |p: &&Port| is_open(p) && p.wanted & !p.events & event::NO_MORE_SENDERS != 0;
        for port in self.ports.iter().filter(waits) {
            let name = PortName {
                index: port.index,
                generation: port.status.generation,
            };
            if senders.get(&name).copied().unwrap_or(0) == 0 {
                let of = port.status;
                self.found.hung.push(format!(
                    "port {} of space {} ({:?}, use {}) has no senders left, and was not told",
                    port.index, of.owner, of.phase, of.generation
                ));
            }
        }
        let shared = |p: &&Port| p.status.phase == PortPhase::Open && p.status.shared;
        for port in self.ports.iter().filter(shared) {
            let name = PortName {
                index: port.index,
                generation: port.status.generation,
            };
            if senders.get(&name).copied().unwrap_or(0) == 0 {
                let index = port.index;
                let unused = format!("nobody has a right on the segment of port {index}");
                self.found.unreleased.push(unused);
            }
        }
        self.owed = owed;
        self.answers();
        Ok(())
    }

    /// A6: who waits for an answer.
    fn answers(&mut self) {
        for (space, journal) in &self.journals {
            let replies = self.ports.iter().filter(|p| {
                p.status.phase == PortPhase::Open && p.status.replies && p.status.owner == *space
            });
            let is_owed = |p: &&Port| {
                self.owed.contains(&PortName {
                    index: p.index,
                    generation: p.status.generation,
                })
            };
            let (owed, idle): (Vec<_>, Vec<_>) = replies.partition(is_owed);
            if (owed.len() as u64) < journal.pending {
                let (worker, pending, owed) = (journal.worker, journal.pending, owed.len());
                let states = |p: &&Port| {
                    (
                        p.index,
                        p.status.generation,
                        p.head,
                        p.slots.iter().map(|s| s.state).collect::<Vec<_>>(),
                    )
                };
                let idle: Vec<_> = idle.iter().map(states).collect();
                self.found.hung.push(format!("worker {worker} waits for {pending} answers, and only {owed} can come; its other ports: {idle:?}"));
            }
        }
    }

    /// A4: who listens, and the lock on ranges.
    fn signals(&mut self) -> io::Result<()> {
        let mut listed = Vec::new();
        for space in self.image.fifo_owners()? {
            listed.push((space, "a signal FIFO"));
        }
        for space in self.image.handler_owners()? {
            listed.push((space, "a signal handler"));
        }
        listed.extend(
            self.image
                .signal_lock()?
                .map(|s| (s, "the lock on signal ranges")),
        );
        for (space, what) in listed {
            if !self.is_live(space) {
                let has = format!("space {space}, which does not live, has {what}");
                self.found.unreleased.push(has);
            }
        }
        Ok(())
    }

    /// A4, A6: the watches.
    fn watches(&mut self) -> io::Result<()> {
        for watch in self.image.watches()? {
            let live = self.is_live(watch.space);
            let told = watch.notify.is_some_and(|r| self.port(r.port).is_some());
            let dead = watch.target.is_some_and(|r| self.port(r.port).is_none());
            let of = format!(
                "a watch of space {} on {:?}",
                watch.space,
                watch.target.map(|r| r.port)
            );
            match watch.state {
                _ if !live => self
                    .found
                    .unreleased
                    .push(format!("{of}: the space does not live")),
                1 => self.found.unreleased.push(format!("{of} is half written")),
                _ if !told => self
                    .found
                    .unreleased
                    .push(format!("{of}: its port is closed")),
                2 if dead => self
                    .found
                    .hung
                    .push(format!("{of}: the port is dead, and nobody says so")),
                _ => {}
            }
        }
        Ok(())
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

/// What a message holds.
struct Contents {
    kind: Kind,
    reply: Option<RightWord>,
    rights: Vec<RightWord>,
    extents: Vec<Descriptor>,
    garbled: bool,
}

impl Contents {
    /// Inline: reply, urgency, then rights and extents; or a header extent, which holds
    /// the header, padded, and after it the rights and extents.
    fn read(image: &Image, slot: &Slot) -> io::Result<Self> {
        let meta = Meta::unpack(slot.words.first().copied().unwrap_or(0));
        let mut words = slot.words[1..].iter().copied();
        let mut contents = Self {
            kind: meta.kind,
            reply: None,
            rights: Vec::new(),
            extents: Vec::new(),
            garbled: false,
        };
        if meta.reply {
            contents.reply = words.next().and_then(RightWord::unpack);
            contents.garbled |= contents.reply.is_none();
        }
        if meta.urgent {
            words.next();
        }
        if !meta.spilled {
            contents.read_lists(&meta, words);
            return Ok(contents);
        }
        let page = words
            .next()
            .zip(words.next())
            .and_then(|(a, b)| Descriptor::unpack([a, b]));
        let Some(page) = page else {
            contents.garbled = true;
            return Ok(contents);
        };
        contents.extents.push(page);
        let inner = image.extent(page.page, page.len)?;
        contents.read_lists(
            &meta,
            inner.into_iter().skip(usize::from(meta.header).div_ceil(8)),
        );
        Ok(contents)
    }

    fn read_lists(&mut self, meta: &Meta, mut words: impl Iterator<Item = u64>) {
        for _ in 0..meta.rights {
            let right = words.next().and_then(RightWord::unpack);
            self.garbled |= right.is_none();
            self.rights.extend(right);
        }
        for _ in 0..meta.extents {
            let extent = words
                .next()
                .zip(words.next())
                .and_then(|(a, b)| Descriptor::unpack([a, b]));
            self.garbled |= extent.is_none();
            self.extents.extend(extent);
        }
    }
}
