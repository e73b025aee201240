//! A trace shows what the members of a running domain do, event by event, from outside.
//!
//! A member becomes the domain's *tracer* ([`Domain::trace`]): it gives each space a ring
//! of events and switches its recording on. The spaces' threads write, the tracer reads;
//! neither waits for the other. What is overwritten before it was read is counted.

mod switch;

pub use portolan_abi::trace::EventKind;
pub(crate) use switch::{give_back, newcomer, reclaim};

use crate::{Disowned, Domain};
use portolan_abi::space::{SpacePhase, SpaceStatus};
use portolan_abi::trace::{EventWords, MAX_RING, MIN_RING, TraceSwitch};
use portolan_shm::region::read_text;
use portolan_shm::trace::Reader;
use portolan_sys::memory;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;

/// Events of a ring unless the caller says otherwise: half a megabyte a space.
const RING: usize = 8192;

/// What is traced, and how much of it is kept.
///
/// ```
/// use portolan::{EventKind, TraceOptions};
/// let options = TraceOptions::default().only([EventKind::Send, EventKind::Receive]).ring(1 << 14);
/// # let _ = options;
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "options do nothing until `trace_with`"]
pub struct TraceOptions {
    kinds: u32,
    ring: u8,
}

impl Default for TraceOptions {
    fn default() -> Self {
        let all = EventKind::ALL
            .iter()
            .fold(0, |kinds, kind| kinds | kind.bit());
        Self {
            kinds: all,
            ring: 0,
        }
        .ring(RING)
    }
}

impl TraceOptions {
    /// Only these kinds of events; by default all.
    pub fn only(mut self, kinds: impl IntoIterator<Item = EventKind>) -> Self {
        self.kinds = kinds.into_iter().fold(0, |kinds, kind| kinds | kind.bit());
        self
    }

    /// How many events each space keeps until they are read, rounded up to a power of two
    /// from 16 to 65,536; 64 bytes each. By default 8192.
    pub fn ring(mut self, events: usize) -> Self {
        let most = 1usize << MAX_RING;
        let size = events.clamp(1 << MIN_RING, most).next_power_of_two();
        self.ring = u8::try_from(size.ilog2()).unwrap_or(MAX_RING);
        self
    }
}

/// Why a trace was not begun.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The state's: a domain has one tracer at a time.
    #[error(
        "space {space} (process {pid}, {name:?}) traces this domain already: wait until it is done, or end it"
    )]
    Taken {
        /// The space that traces.
        space: u8,
        /// Its process.
        pid: u32,
        /// What it calls itself.
        name: String,
    },
    /// The machine's: no memory for a ring.
    #[error("no memory for the trace's rings: {0}; ask for smaller ones")]
    Memory(#[source] memory::AllocateError),
    /// See [`Disowned`].
    #[error(transparent)]
    Disowned(#[from] Disowned),
}

/// Something that a space did. Times are nanoseconds of the monotonic clock, the same in
/// every process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// What it tells of.
    pub kind: EventKind,
    /// The space that did it.
    pub space: u8,
    /// That space's process; 0 if it was gone before it was seen.
    pub process: u32,
    /// The thread.
    pub thread: u32,
    /// When it began. A send begins before its message can be taken.
    pub began: u64,
    /// How long it took.
    pub took: u64,
    /// The port of a send, receive or wake, and of a sleep that waits for one port; the segment
    /// of what is written to, or read from, a channel or topic; the server's port of a call; the
    /// port, or segment, of a message that crosses the domain's border.
    pub port: Option<u16>,
    /// A message's number in its port's sequence, or in its channel's: both ends of one message
    /// have the same port and position. Of a call, a number that its answer has too. Of a signal,
    /// an update or a notification, the byte: in the region, or in the export.
    pub position: Option<u64>,
    /// Bytes in extents: sent, received, mapped, opened by a fault, returned. Bytes of what was
    /// written, read, published, taken, updated or carried over; of a call's arguments, and of
    /// its result.
    pub bytes: u64,
    /// Of a death or a reclaim: the space that died or left, and its process.
    pub about: Option<(u8, u32)>,
}

/// Who is, or was, in a traced domain.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TracedSpace {
    /// Its number.
    pub id: u8,
    /// Its process.
    pub process: u32,
    /// What it calls itself.
    pub name: String,
}

/// What one [`Trace::drain`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drained {
    /// Events read.
    pub events: u64,
    /// Events lost since the trace began: overwritten before they were read, or begun by a
    /// process that died.
    pub lost: u64,
    /// Most that any one ring had to say, in percent of its size. Drain more often as this
    /// nears 100.
    pub fullest: u64,
    /// Whether other processes are in the domain.
    pub company: bool,
}

/// A trace of a running domain, from [`Domain::trace`] until it is dropped. Should this
/// process be killed, the domain's host ends it.
///
/// ```
/// use portolan::{Deadline, Domain, EventKind, Message, PortOptions, WhenFull};
/// let domain = Domain::private()?;
/// let port = domain.bind(PortOptions::named("frames"))?;
/// let mut trace = domain.trace()?;
/// port.make_send().send(Message::new(b"frame 1")?, WhenFull::Fail)?;
/// let mut events = Vec::new();
/// trace.drain(|event| events.push(event))?;
/// assert_eq!(events[0].kind, EventKind::Send);
/// assert_eq!(trace.port_name(events[0].port.unwrap()).as_deref(), Some("frames"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a trace ends when it is dropped"]
pub struct Trace {
    domain: Domain,
    switch: TraceSwitch,
    /// What `switch` names from here on may be the next trace of this process.
    is_over: bool,
    readers: BTreeMap<u8, Reader>,
    /// By space and lower half of its incarnation, as events name it.
    known: HashMap<(u8, u16), TracedSpace>,
}

impl Domain {
    /// Traces the domain: every event of every space, from now on.
    ///
    /// # Errors
    ///
    /// [`TraceError`].
    pub fn trace(&self) -> Result<Trace, TraceError> {
        self.trace_with(TraceOptions::default())
    }

    /// Traces what `options` say.
    ///
    /// # Errors
    ///
    /// [`TraceError`].
    pub fn trace_with(&self, options: TraceOptions) -> Result<Trace, TraceError> {
        let member = self.member();
        member.present()?;
        let switch = TraceSwitch {
            kinds: options.kinds,
            tracer: member.space,
            ring: options.ring,
            incarnation: member.incarnation,
        };
        switch::begin(member, switch).map_err(|other| self.taken(other))?;
        // From here on its drop ends it.
        let mut trace = Trace {
            domain: self.clone(),
            switch,
            is_over: false,
            readers: BTreeMap::new(),
            known: HashMap::new(),
        };
        trace.meet().map_err(TraceError::Memory)?;
        Ok(trace)
    }

    /// The space that traces this process, if one does: from when its events are recorded
    /// until they are not.
    pub fn tracer(&self) -> Option<u8> {
        let member = self.member();
        member.present().ok()?;
        let entry = member.tables().spaces.get(usize::from(member.space))?;
        TraceSwitch::unpack(entry.trace.switch.load(Ordering::Acquire)).map(|on| on.tracer)
    }

    fn taken(&self, by: TraceSwitch) -> TraceError {
        let entry = self.member().tables().spaces.get(usize::from(by.tracer));
        TraceError::Taken {
            space: by.tracer,
            pid: entry.map_or(0, |e| number(e.pid.load(Ordering::Relaxed))),
            name: entry.map_or_else(String::new, |e| read_text(&e.name)),
        }
    }
}

fn number(word: u64) -> u32 {
    u32::try_from(word).unwrap_or(u32::MAX)
}

/// The lower half of an incarnation, as events have it.
fn lower(incarnation: u32) -> u16 {
    let [low, high, ..] = incarnation.to_le_bytes();
    u16::from_le_bytes([low, high])
}

impl Trace {
    /// Reads what has been recorded since the last time, space by space; within a space in
    /// the order in which the events ended. To be called again and again: a ring that is
    /// full overwrites its oldest events.
    ///
    /// # Errors
    ///
    /// [`Disowned`].
    pub fn drain(&mut self, mut each: impl FnMut(Event)) -> Result<Drained, Disowned> {
        self.domain.member().present()?;
        // A newcomer without memory for its ring is left out, and asked again next time.
        let _ = self.meet();
        Ok(self.read(&mut each))
    }

    /// Reads the rings of all that are known.
    fn read(&mut self, each: &mut impl FnMut(Event)) -> Drained {
        let member = self.domain.member();
        let mut drained = Drained {
            company: switch::company(member),
            ..Drained::default()
        };
        if self.is_over {
            drained.lost = self.readers.values().map(Reader::lost).sum();
            return drained;
        }
        for (space, reader) in &mut self.readers {
            let ring = member.tables().trace_ring(*space, self.switch.ring);
            let read = reader.drain(&ring, |read| {
                let known = self.known.get(&(*space, read.incarnation));
                let process = known.map_or(0, |k| k.process);
                if let Some(words) = EventWords::unpack(read.words) {
                    each(event(*space, process, &words));
                }
            });
            drained.events += read;
            drained.lost += reader.lost();
            drained.fullest = drained.fullest.max(read * 100 / ring.capacity());
        }
        drained
    }

    /// Ends the trace, and reads what is left. What is unfinished now counts as lost.
    ///
    /// # Errors
    ///
    /// [`Disowned`].
    pub fn finish(&mut self, mut each: impl FnMut(Event)) -> Result<Drained, Disowned> {
        self.domain.member().present()?;
        if self.is_over {
            return Ok(self.read(&mut each));
        }
        // Whose switch is off has no ring that we knew of.
        let _ = self.meet();
        // First all is read, and then the trace ends: from then on the host gives the rings of the
        // dead back, and the next tracer's are the same.
        switch::all_off(self.domain.member(), self.switch);
        let mut drained = self.read(&mut each);
        switch::end(self.domain.member(), self.switch);
        self.is_over = true;
        // Their writers are dead, or in no hurry.
        self.readers.values_mut().for_each(Reader::finish);
        drained.lost = self.readers.values().map(Reader::lost).sum();
        Ok(drained)
    }

    /// Every space that was seen so far, the gone ones too.
    pub fn spaces(&self) -> impl Iterator<Item = &TracedSpace> {
        self.known.values()
    }

    /// What the port of this number is called now.
    pub fn port_name(&self, port: u16) -> Option<String> {
        let tables = self.domain.member().tables();
        // Only of those that were ever used: looking at others would give them memory.
        if !tables.ports_in_use().was_used(port) {
            return None;
        }
        let entry = tables.ports.get(usize::from(port))?;
        Some(read_text(&entry.name.words)).filter(|name| !name.is_empty())
    }

    /// Switches on who has come, and learns who is there.
    fn meet(&mut self) -> Result<(), memory::AllocateError> {
        let member = self.domain.member();
        let mut met = Ok(());
        if self.is_over {
            return met;
        }
        let traced = switch::tracer(member) == Some(self.switch);
        for (id, status, entry) in switch::spaces(member) {
            let SpaceStatus {
                phase, incarnation, ..
            } = status;
            // The host does it for those that are joining.
            if phase == SpacePhase::Live
                && traced
                && let Err(error) = switch::on(member, id, self.switch)
            {
                met = Err(error);
            }
            // Acquire: it has a ring, and says where we come in.
            if entry.trace.switch.load(Ordering::Acquire) == self.switch.pack() {
                let since = entry.trace.since.load(Ordering::Relaxed);
                self.readers.entry(id).or_insert_with(|| Reader::new(since));
            }
            let process = number(entry.pid.load(Ordering::Relaxed));
            if process != 0 && !matches!(phase, SpacePhase::Free | SpacePhase::Claimed) {
                let name = || read_text(&entry.name);
                let key = (id, lower(incarnation));
                self.known.entry(key).or_insert_with(|| TracedSpace {
                    id,
                    process,
                    name: name(),
                });
            }
        }
        met
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // A forked child is no tracer.
        if !self.is_over && self.domain.member().present().is_ok() {
            switch::end(self.domain.member(), self.switch);
        }
    }
}

impl std::fmt::Debug for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trace")
            .field("domain", &self.domain)
            .field("spaces", &self.readers.len())
            .finish()
    }
}

fn event(space: u8, process: u32, words: &EventWords) -> Event {
    use EventKind as Kind;
    let unplaced = matches!(
        words.kind,
        Kind::Map | Kind::Fault | Kind::Wake | Kind::Sleep | Kind::Death | Kind::Reclaim
    ) || matches!(words.kind, Kind::Depart | Kind::Arrive);
    let gone = matches!(words.kind, EventKind::Death | EventKind::Reclaim);
    Event {
        kind: words.kind,
        space,
        process,
        thread: words.thread,
        began: words.began,
        took: words.took,
        port: Some(words.port).filter(|port| *port != crate::space::record::NO_PORT),
        position: Some(words.position).filter(|_| !unplaced),
        bytes: words.bytes,
        about: gone.then_some((words.space, words.process)),
    }
}
