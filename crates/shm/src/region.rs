//! Presents a region's tables as references.
//!
//! The one promise that everything here rests on is made in [`Tables::new`]: the
//! memory is mapped, and all who write it follow this crate's protocols or are dead.

use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::chunk::Chunks;
use crate::lent::LentPorts;
use crate::owner::{AllocWords, OwnerEntry, OwnerRow};
use crate::ports::PortsInUse;
use crate::queue::{Line, PortEntry, Queue};
use crate::queue_memory::{BankHints, QueueMemory};
use crate::rights::{RightEntry, RightRow};
use crate::signal::{Fifo, FifoEntry, HandlerEntry, Ranges, RangesLine};
use crate::trace::{Ring, TraceLine};
use crate::wait_set::WaitSetEntry;
use crate::watch::WatchEntry;
use core::marker::PhantomData;
use portolan_abi::limits::{
    LINE, MAX_BANKS, MAX_FIFOS, MAX_PORTS, MAX_SLOT_LINES, MAX_SPACES, MAX_WAIT_SETS, MAX_WATCHES,
    PUBLIC_ENTRIES, QUEUE_HEAP, THREAD_LINES,
};
use portolan_abi::port::QueuePlace;
use portolan_abi::region::{Geometry, TRACE_BYTES, TRACE_HEAD};
use portolan_abi::signal::{MAX_HANDLERS, MAX_PLACES};
use portolan_abi::space::{SpacePhase, SpaceStatus};
use portolan_abi::trace::MAX_RING;

/// Lines of the place for a space's trace ring.
const TRACE_LINES: usize = TRACE_HEAD + (1 << MAX_RING);
const _: () = assert!((TRACE_LINES * LINE) as u64 == TRACE_BYTES);

/// The head of a region.
#[repr(C, align(64))]
pub struct Header {
    /// [`portolan_abi::region::MAGIC`].
    pub magic: AtomicU64,
    /// [`portolan_abi::FORMAT_VERSION`].
    pub version: AtomicU64,
    /// Bytes that extents may take, as given to [`Geometry::new`].
    pub size: AtomicU64,
    /// Address in every member.
    pub base: AtomicU64,
    /// Bytes of memory that extents may have at one time.
    pub limit: AtomicU64,
    /// 0 trusted, 1 guarded.
    pub protection: AtomicU64,
    /// The creator's user.
    pub user: AtomicU64,
    /// Bit 0: pages are locked in memory.
    pub options: AtomicU64,
    /// The space that hosts.
    pub host: HostLine,
    /// Names: the futex of those who wait for one.
    pub names: NamesLine,
    /// Queues: a position that no sender of a closed port looks for, nor any beyond it
    /// ([`crate::queue_memory`] U5).
    pub positions: CounterLine,
    /// Queues: memory that they may have, in whole chunks.
    pub queue_chunks: CounterLine,
    /// Queues: hints about the memory of each width of slot.
    pub banks: [BankHints; MAX_SLOT_LINES],
    /// Spaces that were ever used: those before it.
    pub spaces: CounterLine,
    /// Entries of ports that were ever used: those before it.
    pub ports_ever: CounterLine,
    /// The entry whose turn it is to be a port.
    pub port_turn: CounterLine,
    /// Watches that were ever used: those before it.
    pub watches: CounterLine,
    /// Deaths whose reclaim has finished.
    pub reclaims: CounterLine,
    /// Who traces ([`portolan_abi::trace::TraceSwitch`]): what newcomers' switches are set to.
    pub tracer: CounterLine,
    /// Signal FIFOs that were ever used: those before it.
    pub fifos: CounterLine,
    /// Signal ranges: who may change them.
    pub signals: SignalsLine,
    /// Signal ranges: what there is.
    pub ranges: RangesLine,
    /// The domain's name, zero-padded to 128 bytes.
    pub name: [AtomicU64; 16],
    /// Users who may join besides the creator's: a count, then ids.
    pub users: [AtomicU32; 64],
    /// Groups who may join: a count, then ids.
    pub groups: [AtomicU32; 64],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Header>() as u64 <= portolan_abi::region::HEADER_BYTES);

/// See [`Header::host`].
#[repr(C, align(64))]
pub struct HostLine {
    /// [`portolan_abi::space::HostWord`].
    pub word: AtomicU64,
    /// Takeovers so far.
    pub takeovers: AtomicU64,
}

/// See [`Header::names`].
#[repr(C, align(64))]
pub struct NamesLine {
    /// Goes up whenever a name appears; a futex.
    pub changes: AtomicU32,
}

/// See [`Header::signals`].
#[repr(C, align(64))]
pub struct SignalsLine {
    /// The space that holds the lock on ranges plus one, 0 for none; a futex.
    pub lock: AtomicU32,
}

/// A counter with a line of its own.
#[repr(C, align(64))]
pub struct CounterLine {
    /// Its value.
    pub value: AtomicU64,
}

/// A space's entry.
#[repr(C, align(64))]
pub struct SpaceEntry {
    /// [`portolan_abi::space::SpaceStatus`].
    pub status: AtomicU64,
    /// Process id.
    pub pid: AtomicU64,
    /// The process's start time, clock ticks after boot; tells a reused id.
    pub start_time: AtomicU64,
    /// User.
    pub user: AtomicU64,
    spare: [AtomicU64; 4],
    /// What it calls itself, zero-padded.
    pub name: [AtomicU64; 8],
    /// Whether its events are recorded.
    pub trace: TraceLine,
    // Beside a line that is read with every message: not to be written with every message.
    reserved: [AtomicU64; 8],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<SpaceEntry>() as u64 == portolan_abi::region::SPACE_BYTES);

/// One thread's lines: only that thread writes them (but for a space's last ones, which all
/// its further threads share), so counting costs no line from afar and loses nothing.
#[repr(C, align(64))]
pub struct ThreadLine {
    /// Messages sent.
    pub sent: AtomicU64,
    /// Bytes in extents sent.
    pub sent_bytes: AtomicU64,
    /// Sends that found a queue full.
    pub full: AtomicU64,
    /// Messages dropped because a queue was full.
    pub dropped: AtomicU64,
    /// [`portolan_abi::thread::Wait`].
    pub waits: AtomicU64,
    /// Calls made.
    pub calls: AtomicU64,
    /// Calls run for clients.
    pub answers: AtomicU64,
    /// Addresses signalled.
    pub signals: AtomicU64,
    /// Signals that came to handlers.
    pub delivered: AtomicU64,
    spare: [AtomicU64; 7],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<ThreadLine>() as u64 == portolan_abi::region::THREAD_BYTES);

impl ThreadLine {
    /// Sets all counters to zero. Only the space that has just claimed the entry calls it.
    pub fn wipe(&self) {
        let Self {
            sent,
            sent_bytes,
            full,
            dropped,
            waits,
            calls,
            answers,
            signals,
            delivered,
            spare: _,
        } = self;
        let words = [
            sent, sent_bytes, full, dropped, waits, calls, answers, signals, delivered,
        ];
        for word in words {
            // Relaxed: the space's status follows with Release.
            word.store(0, Ordering::Relaxed);
        }
    }
}

/// Shows observers a thing that a space has outside the region; only that space writes the entry
/// while it lives. The thread that takes the entry writes the first line and the texts, then the
/// state; the threads that serve the shown thing write the counters.
#[repr(C, align(64))]
pub struct PublicEntry {
    /// [`portolan_abi::public::PublicState`].
    pub state: AtomicU64,
    /// [`portolan_abi::public::flag`]s.
    pub flags: AtomicU64,
    /// Bytes of an export.
    pub bytes: AtomicU64,
    /// The port or segment of a connection, plus one; 0 for none.
    pub port: AtomicU64,
    /// The other side's process.
    pub pid: AtomicU64,
    /// And its user.
    pub user: AtomicU64,
    spare: [AtomicU64; 2],
    /// What is counted.
    pub counters: PublicCounters,
    /// Its name, zero-padded.
    pub name: [AtomicU64; 8],
    /// The other domain's name, zero-padded.
    pub domain: [AtomicU64; 16],
}

/// See [`PublicEntry::counters`].
#[repr(C, align(64))]
pub struct PublicCounters {
    /// Messages that went to the other domain.
    pub out: AtomicU64,
    /// Bytes in those.
    pub out_bytes: AtomicU64,
    /// Messages that came from there.
    pub came: AtomicU64,
    /// Bytes in those.
    pub came_bytes: AtomicU64,
    /// Importers of an export.
    pub importers: AtomicU64,
    /// Notifications of importers.
    pub notifications: AtomicU64,
    spare: [AtomicU64; 2],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<PublicEntry>() as u64 == portolan_abi::region::PUBLIC_BYTES);

/// Records that are made of atomics only, so that any bytes are valid ones and
/// several processes may write them.
///
/// # Safety
///
/// Every field, all the way down, is an atomic integer.
unsafe trait Words {}
// SAFETY: (all of these)
// - only atomic integers: see the definitions.
unsafe impl Words for AtomicU64 {}
// SAFETY: as above.
unsafe impl Words for Header {}
// SAFETY: as above.
unsafe impl Words for SpaceEntry {}
// SAFETY: as above.
unsafe impl Words for ThreadLine {}
// SAFETY: as above.
unsafe impl Words for PublicEntry {}
// SAFETY: as above.
unsafe impl Words for PortEntry {}
// SAFETY: as above.
unsafe impl Words for AtomicU32 {}
// SAFETY: as above.
unsafe impl Words for WaitSetEntry {}
// SAFETY: as above.
unsafe impl Words for WatchEntry {}
// SAFETY: as above.
unsafe impl Words for LentPorts {}
// SAFETY: as above.
unsafe impl Words for RightEntry {}
// SAFETY: as above.
unsafe impl Words for OwnerEntry {}
// SAFETY: as above.
unsafe impl Words for Line {}
// SAFETY: as above.
unsafe impl Words for FifoEntry {}
// SAFETY: as above.
unsafe impl Words for HandlerEntry {}

/// Mapped memory that [`Tables::new`] was promised: every table of the geometry lies in it.
struct Ground<'r> {
    base: *mut u8,
    life: PhantomData<&'r Header>,
}

impl<'r> Ground<'r> {
    fn table<T: Words>(&self, offset: u64, count: usize) -> &'r [T] {
        let offset = usize::try_from(offset).unwrap_or(0);
        // SAFETY:
        // - in bounds: the offsets come from a `Geometry`, which ends within the mapping.
        let first = unsafe { self.base.add(offset) };
        // SAFETY:
        // - aligned: every table begins on a page;
        // - in bounds: `Geometry::new` leaves room for `count` entries before the next table;
        // - initialised and shared: `Words` are valid for any bytes and mutated atomically;
        // - live: promised for 'r to `Tables::new`.
        unsafe { core::slice::from_raw_parts(first.cast::<T>(), count) }
    }
}

impl<'r> Ground<'r> {
    /// The queue memory for slots of so many lines.
    fn banks(&self, geometry: &Geometry, header: &'r Header, lines: usize) -> QueueMemory<'r> {
        let words = MAX_BANKS / 64;
        let bits = (words * size_of::<u64>()) as u64;
        let taken = geometry.banks + (lines as u64 - 1) * Geometry::BANK_TABLE;
        QueueMemory::new(
            &header.banks[lines - 1],
            self.table(taken, words),
            self.table(taken + bits, words),
            self.table(taken + 2 * bits, MAX_BANKS / lines),
        )
    }
}

/// The tables of a mapped region.
#[derive(Clone, Copy)]
pub struct Tables<'r> {
    /// Where each lies.
    pub geometry: Geometry,
    /// The head.
    pub header: &'r Header,
    /// Spaces; the first is never used.
    pub spaces: &'r [SpaceEntry],
    /// Ports.
    pub ports: &'r [PortEntry],
    /// A hash of each named port's name, 0 for none.
    pub names: &'r [AtomicU64],
    /// Which ports the domain's node has lent, and which of those have changed.
    pub lent: &'r LentPorts,
    /// Wait sets.
    pub wait_sets: &'r [WaitSetEntry],
    /// Watches.
    pub watches: &'r [WatchEntry],
    /// Chunk words.
    pub chunks: Chunks<'r>,
    /// Allocation words.
    pub alloc: AllocWords<'r>,
    port_bits: &'r [AtomicU64],
    threads: &'r [ThreadLine],
    publics: &'r [PublicEntry],
    /// Signal FIFOs.
    pub fifos: &'r [FifoEntry],
    places: &'r [AtomicU64],
    handlers: &'r [HandlerEntry],
    rights: &'r [RightEntry],
    owners: &'r [OwnerEntry],
    banks: [QueueMemory<'r>; MAX_SLOT_LINES],
    queues: &'r [Line],
    traces: &'r [Line],
}

impl<'r> Tables<'r> {
    /// The tables of the region at `base`.
    ///
    /// # Safety
    ///
    /// - `base` is aligned to a page and `geometry.pool` bytes from it are mapped,
    ///   readable and writable, for as long as `'r`. Readable is enough for a caller that
    ///   only loads: on the machines we run on, an aligned load of a word is a load,
    ///   whatever its order.
    /// - Every process that maps them writes them only through this crate. This is
    ///   where the trust inside a domain is placed: members may be buggy and may die
    ///   at any instruction, but a hostile one is out of scope.
    pub unsafe fn new(base: *mut u8, geometry: Geometry) -> Self {
        let ground = Ground {
            base,
            life: PhantomData,
        };
        let size = |count: u64| usize::try_from(count).unwrap_or(0);
        let header = &ground.table(0, 1)[0];
        Self {
            geometry,
            header,
            spaces: ground.table(geometry.spaces, MAX_SPACES),
            ports: ground.table(geometry.ports, MAX_PORTS),
            names: ground.table(geometry.names, MAX_PORTS),
            lent: &ground.table(geometry.lent, 1)[0],
            wait_sets: ground.table(geometry.wait_sets, MAX_WAIT_SETS),
            watches: ground.table(geometry.watches, MAX_WATCHES),
            chunks: Chunks::new(ground.table(geometry.chunks, size(geometry.all_chunks()))),
            alloc: AllocWords::new(ground.table(geometry.alloc, size(geometry.pages()))),
            port_bits: ground.table(geometry.port_bits, MAX_PORTS / 64),
            threads: ground.table(geometry.threads, MAX_SPACES * THREAD_LINES),
            publics: ground.table(geometry.publics, MAX_SPACES * PUBLIC_ENTRIES),
            fifos: ground.table(geometry.fifos, MAX_FIFOS),
            places: ground.table(geometry.ranges, MAX_PLACES),
            handlers: ground.table(geometry.handlers, MAX_HANDLERS),
            rights: ground.table(geometry.rights, MAX_SPACES * MAX_PORTS),
            owners: ground.table(geometry.owners, MAX_SPACES * size(geometry.pages())),
            banks: core::array::from_fn(|at| ground.banks(&geometry, header, at + 1)),
            queues: ground.table(geometry.queues, MAX_SLOT_LINES * (size(QUEUE_HEAP) / LINE)),
            traces: ground.table(geometry.traces, MAX_SPACES * TRACE_LINES),
        }
    }

    /// Signal ranges and their handlers.
    #[inline]
    pub fn ranges(&self) -> Ranges<'r> {
        Ranges::new(&self.header.ranges, self.places, self.handlers)
    }

    /// An open signal FIFO.
    #[inline]
    pub fn fifo(&self, index: u32) -> Option<Fifo<'r>> {
        Fifo::new(self.fifos.get(index as usize)?)
    }

    /// Signal FIFOs that were ever used.
    pub fn used_fifos(&self) -> &'r [FifoEntry] {
        let used = usize::try_from(self.header.fifos.value.load(Ordering::SeqCst));
        &self.fifos[..used.unwrap_or(MAX_FIFOS).min(MAX_FIFOS)]
    }

    /// The owner row of `space`.
    #[inline]
    pub fn owner_row(&self, space: u8) -> OwnerRow<'r> {
        let pages = self.alloc.pages();
        let first = usize::from(space) * pages;
        OwnerRow::new(&self.owners[first..first + pages], space)
    }

    /// The thread lines of `space`.
    #[inline]
    pub fn thread_lines(&self, space: u8) -> &'r [ThreadLine; THREAD_LINES] {
        let (all, _) = self.threads.as_chunks();
        &all[usize::from(space)]
    }

    /// The public entries of `space`.
    pub fn publics(&self, space: u8) -> &'r [PublicEntry] {
        let first = usize::from(space) * PUBLIC_ENTRIES;
        &self.publics[first..first + PUBLIC_ENTRIES]
    }

    /// The right row of `space`.
    #[inline]
    pub fn right_row(&self, space: u8) -> RightRow<'r> {
        let first = usize::from(space) * MAX_PORTS;
        RightRow::new(&self.rights[first..first + MAX_PORTS], self.ports)
    }

    /// The trace ring of `space`, of `1 << size` events. Before the caller reads or writes it, it
    /// must have made sure that the ring has memory.
    pub fn trace_ring(&self, space: u8, size: u8) -> Ring<'r> {
        let first = usize::from(space) * TRACE_LINES;
        Ring::new(&self.traces[first..first + TRACE_LINES], size)
    }

    /// Which entries are in use, and which is taken next.
    #[inline]
    pub fn ports_in_use(&self) -> PortsInUse<'r> {
        let header = self.header;
        PortsInUse::new(
            self.port_bits,
            &header.port_turn.value,
            &header.ports_ever.value,
        )
    }

    /// Ports in use; looking at others would only allocate their pages.
    pub fn used_ports(&self) -> impl Iterator<Item = (u16, &'r PortEntry)> + use<'r> {
        let ports = self.ports;
        let used = self.ports_in_use().iter();
        used.filter_map(move |index| Some((u16::try_from(index).ok()?, ports.get(index)?)))
    }

    /// Spaces that are in use, by a member or a dead one. A space is counted among those that
    /// were ever used before it is in use.
    #[inline]
    pub fn used_spaces(&self) -> impl Iterator<Item = u8> + use<'r> {
        // SeqCst: before the rows of those spaces are read; a space that has written one had been
        // counted.
        let used =
            usize::try_from(self.header.spaces.value.load(Ordering::SeqCst)).unwrap_or(MAX_SPACES);
        let ever = (0..=u8::MAX).zip(&self.spaces[..used.min(MAX_SPACES)]);
        let in_use = ever.skip(1).filter(|(_, entry)| {
            SpaceStatus::unpack(entry.status.load(Ordering::SeqCst)).phase != SpacePhase::Free
        });
        in_use.map(|(space, _)| space)
    }

    /// Counts a space among those that were ever used. Before it is in use.
    pub fn use_space(&self, space: u8) {
        // SeqCst: as of `used_spaces`.
        let used = u64::from(space) + 1;
        self.header.spaces.value.fetch_max(used, Ordering::SeqCst);
    }

    /// Watches that were ever used.
    pub fn used_watches(&self) -> &'r [WatchEntry] {
        let used = usize::try_from(self.header.watches.value.load(Ordering::SeqCst))
            .unwrap_or(MAX_WATCHES);
        &self.watches[..used.min(MAX_WATCHES)]
    }

    /// The queue of port `index`, if it ever had one. It is the port's only while that is open,
    /// moving, closing or lingering.
    pub fn queue(&self, index: u16) -> Option<Queue<'r>> {
        let port = self.ports.get(usize::from(index))?;
        // Acquire: before the caller reads the status, which says whose the queue is.
        let place = QueuePlace::unpack(port.control.queue.load(Ordering::Acquire))?;
        self.queue_at(port, place)
    }

    /// Lines that all queues together can have.
    pub fn queue_lines(&self) -> usize {
        self.queues.len()
    }

    /// The queue of `port` at `place`.
    pub fn queue_at(&self, port: &'r PortEntry, place: QueuePlace) -> Option<Queue<'r>> {
        let first = usize::try_from(place.offset()).ok()? / LINE;
        let lines = place.slots() * place.lines();
        Queue::new(port, self.queues.get(first..first + lines)?, place.lines()).ok()
    }

    /// The queue memory for slots of so many lines.
    pub fn queue_memory(&self, lines: usize) -> Option<&QueueMemory<'r>> {
        self.banks.get(lines.checked_sub(1)?)
    }
}

/// Reads a zero-padded text.
pub fn read_text(words: &[AtomicU64]) -> String {
    let bytes: Vec<u8> = words
        .iter()
        .flat_map(|w| w.load(Ordering::Relaxed).to_le_bytes())
        .take_while(|b| *b != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Writes a text, cut to fit, zero-padded.
pub fn write_text(words: &[AtomicU64], text: &str) {
    let mut bytes = text.bytes().chain(core::iter::repeat(0));
    let last = words.len() * 8 - 1;
    for (i, word) in words.iter().enumerate() {
        let mut chunk = [0; 8];
        for (j, byte) in chunk.iter_mut().enumerate() {
            *byte = if i * 8 + j == last {
                0
            } else {
                bytes.next().unwrap_or(0)
            };
        }
        word.store(u64::from_le_bytes(chunk), Ordering::Relaxed);
    }
}
