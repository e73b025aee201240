//! Reads a region's tables through its descriptor. It maps nothing, and uses none of the library's
//! code for them. Only where fields lie is taken from its records.

use core::mem::offset_of;
use portolan_abi::limits::{CHUNK, LINE, MAX_FIFOS, MAX_PORTS, MAX_SPACES, MAX_WATCHES, PAGE};
use portolan_abi::owner::{AllocWord, ChunkWord, Destination, OwnerWord};
use portolan_abi::port::{PortPhase, PortStatus, QueuePlace, RightWord, Travelling};
use portolan_abi::region::{
    FIFO_BYTES, Geometry, HANDLER_BYTES, MAGIC, OWNER_BYTES, PORT_BYTES, RIGHT_BYTES, SPACE_BYTES,
    WAIT_SET_BYTES, WATCH_BYTES,
};
use portolan_abi::signal::MAX_HANDLERS;
use portolan_abi::slot::SlotState;
use portolan_abi::space::{HostWord, SpaceStatus};
use portolan_shm::queue::PortEntry;
use portolan_shm::region::{Header, SignalsLine, SpaceEntry};
use portolan_shm::signal::{FifoControl, FifoEntry};
use portolan_shm::wait_set::WaitSetEntry;
use portolan_shm::watch::WatchEntry;
use rustix::fs::SeekFrom;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// A region's file.
pub(crate) struct Image {
    file: File,
    pub(crate) geometry: Geometry,
    pub(crate) base: u64,
}

/// A space's entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Space {
    pub(crate) id: u8,
    pub(crate) status: SpaceStatus,
    pub(crate) pid: u32,
}

/// A port's entry and its slots.
pub(crate) struct Port {
    pub(crate) index: u16,
    pub(crate) status: PortStatus,
    pub(crate) transit: Destination,
    pub(crate) head: u64,
    /// Armed, by itself or in a wait set, and not raised there: the receiver relies on
    /// being told.
    pub(crate) asleep: bool,
    pub(crate) wanted: u32,
    /// Send rights on it in messages, by its own count.
    pub(crate) travelling: Travelling,
    pub(crate) events: u32,
    pub(crate) slots: Vec<Slot>,
}

/// A slot: its state and the words after it, meta first.
pub(crate) struct Slot {
    pub(crate) state: SlotState,
    pub(crate) words: Vec<u64>,
}

/// A watch's entry.
pub(crate) struct Watch {
    pub(crate) state: u8,
    pub(crate) space: u8,
    pub(crate) target: Option<RightWord>,
    pub(crate) notify: Option<RightWord>,
}

/// A space's counts on one port, with their generations.
#[derive(Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) send: u64,
    pub(crate) once: u64,
}

fn word_at(bytes: &[u8], at: usize) -> u64 {
    bytes
        .get(at..at + 8)
        .and_then(|b| b.try_into().ok())
        .map_or(0, u64::from_le_bytes)
}

fn garbled() -> io::Error {
    io::Error::other("this is no region")
}

/// Positions of fields in the region's records.
const fn at(offset: usize) -> u64 {
    offset as u64
}

impl Image {
    /// Reads the header.
    fn open(file: File) -> io::Result<Self> {
        let mut head = [0; 32];
        file.read_exact_at(&mut head, 0)?;
        let size = word_at(&head, offset_of!(Header, size));
        if word_at(&head, offset_of!(Header, magic)) != MAGIC {
            return Err(garbled());
        }
        let geometry = Geometry::new(size).ok_or_else(garbled)?;
        Ok(Self {
            file,
            geometry,
            base: word_at(&head, offset_of!(Header, base)),
        })
    }

    /// The region of a domain, as one of its members has it open.
    pub(crate) fn of_process(pid: u32, domain: &str) -> io::Result<Option<Self>> {
        let wanted = format!("memfd:portolan:{domain} ");
        for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))?.flatten() {
            let names = std::fs::read_link(entry.path())
                .is_ok_and(|l| l.to_string_lossy().contains(&wanted));
            if names {
                return File::open(entry.path()).and_then(Self::open).map(Some);
            }
        }
        Ok(None)
    }

    fn bytes(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    fn word(&self, offset: u64) -> io::Result<u64> {
        Ok(word_at(&self.bytes(offset, 8)?, 0))
    }

    /// The spaces that have signal FIFOs.
    pub(crate) fn fifo_owners(&self) -> io::Result<Vec<u8>> {
        let owner = at(offset_of!(FifoEntry, control) + offset_of!(FifoControl, owner));
        let len = MAX_FIFOS as u64 * FIFO_BYTES;
        let words = self.words(self.geometry.fifos, len)?;
        let owners = words.iter().filter(|(o, _)| o % FIFO_BYTES == owner);
        Ok(owners.map(|(_, word)| word.to_le_bytes()[0]).collect())
    }

    /// The spaces that have signal handlers, in use or being changed.
    pub(crate) fn handler_owners(&self) -> io::Result<Vec<u8>> {
        let len = MAX_HANDLERS as u64 * HANDLER_BYTES;
        let words = self.words(self.geometry.handlers, len)?;
        // The state is the first word: what it is used for, then whose it is.
        let states = words.iter().filter(|(o, _)| o % HANDLER_BYTES == 0);
        let owned = states.filter(|(_, word)| matches!(word.to_le_bytes()[0], 1 | 2 | 4));
        Ok(owned.map(|(_, word)| word.to_le_bytes()[1]).collect())
    }

    /// The space that holds the lock on signal ranges.
    pub(crate) fn signal_lock(&self) -> io::Result<Option<u8>> {
        let [low, high, ..] = self
            .word(at(
                offset_of!(Header, signals) + offset_of!(SignalsLine, lock)
            ))?
            .to_le_bytes();
        // One more than the space.
        Ok(u16::from_le_bytes([low, high])
            .checked_sub(1)
            .and_then(|space| u8::try_from(space).ok()))
    }

    /// The words of a table that are not zero, by their offset in it. Holes are not read.
    fn words(&self, table: u64, len: u64) -> io::Result<Vec<(u64, u64)>> {
        let mut found = Vec::new();
        let end = table + len;
        let mut from = table;
        while from < end {
            let data = match rustix::fs::seek(&self.file, SeekFrom::Data(from)) {
                Ok(data) if data < end => data,
                Ok(_) | Err(rustix::io::Errno::NXIO) => break,
                Err(error) => return Err(error.into()),
            };
            let hole = rustix::fs::seek(&self.file, SeekFrom::Hole(data))?.min(end);
            let bytes = self.bytes(data, usize::try_from(hole - data).unwrap_or(0))?;
            let words = bytes
                .chunks_exact(8)
                .enumerate()
                .map(|(i, b)| (data - table + 8 * i as u64, word_at(b, 0)));
            found.extend(words.filter(|(_, word)| *word != 0));
            from = hole;
        }
        Ok(found)
    }

    pub(crate) fn host(&self) -> io::Result<HostWord> {
        self.word(at(offset_of!(Header, host.word)))
            .map(HostWord::unpack)
    }

    /// Deaths whose reclaim has finished.
    pub(crate) fn reclaims(&self) -> io::Result<u64> {
        self.word(at(offset_of!(Header, reclaims.value)))
    }

    pub(crate) fn limit(&self) -> io::Result<u64> {
        self.word(at(offset_of!(Header, limit)))
    }

    pub(crate) fn spaces(&self) -> io::Result<Vec<Space>> {
        let table = self.bytes(self.geometry.spaces, MAX_SPACES * 256)?;
        let read = |id: usize, field: usize| word_at(&table, id * 256 + field);
        Ok((1..MAX_SPACES)
            .map(|id| Space {
                id: id.to_le_bytes()[0],
                status: SpaceStatus::unpack(read(id, offset_of!(SpaceEntry, status))),
                pid: u32::try_from(read(id, offset_of!(SpaceEntry, pid))).unwrap_or(0),
            })
            .collect())
    }

    /// Ports that have a queue, or are not free.
    pub(crate) fn ports(&self) -> io::Result<Vec<Port>> {
        let mut entries: BTreeMap<u64, BTreeMap<u64, u64>> = BTreeMap::new();
        for (offset, word) in self.words(self.geometry.ports, MAX_PORTS as u64 * PORT_BYTES)? {
            entries
                .entry(offset / PORT_BYTES)
                .or_default()
                .insert(offset % PORT_BYTES, word);
        }
        entries
            .into_iter()
            .map(|(index, words)| self.port(index, &words))
            .collect()
    }

    fn port(&self, index: u64, words: &BTreeMap<u64, u64>) -> io::Result<Port> {
        let word = |offset: usize| words.get(&at(offset)).copied().unwrap_or(0);
        let half = |offset: usize| {
            let both = words.get(&at(offset & !7)).copied().unwrap_or(0) >> (8 * (offset & 7));
            u32::try_from(both & 0xffff_ffff).unwrap_or(0)
        };
        let status = PortStatus::unpack(word(offset_of!(PortEntry, control.status)));
        let place = QueuePlace::unpack(word(offset_of!(PortEntry, control.queue)));
        // Free, or being made or given back: what it names may be another port's.
        let own = place.filter(|_| !matches!(status.phase, PortPhase::Free | PortPhase::Binding));
        let lines = own.map_or(1, QueuePlace::lines);
        let offset = self.geometry.queues + own.map_or(0, QueuePlace::offset);
        let memory = self.bytes(offset, own.map_or(0, |p| p.slots() * p.lines() * LINE))?;
        let slots = memory.chunks_exact(lines * LINE).map(|slot| Slot {
            state: SlotState(word_at(slot, 0)),
            words: slot[8..].chunks_exact(8).map(|b| word_at(b, 0)).collect(),
        });
        Ok(Port {
            index: u16::try_from(index).unwrap_or(u16::MAX),
            status,
            transit: Destination(word(offset_of!(PortEntry, control.transit))),
            head: word(offset_of!(PortEntry, receiver.head)),
            asleep: half(offset_of!(PortEntry, sleep.asleep)) != 0
                && !self.is_raised(word(offset_of!(PortEntry, sleep.wait_set)))?,
            wanted: half(offset_of!(PortEntry, sleep.wanted)),
            travelling: Travelling::unpack(word(offset_of!(PortEntry, rights.travelling))),
            events: half(offset_of!(PortEntry, sleep.events)),
            slots: slots.collect(),
        })
    }

    /// Whether a port's wait set was told of it. In a set a port stays armed while its
    /// receiver is about other things; what was raised is looked at by the next wait.
    fn is_raised(&self, link: u64) -> io::Result<bool> {
        let Some(set) = (link & 0xffff_ffff).checked_sub(1) else {
            return Ok(false);
        };
        let member = link >> 32;
        let leaf = at(offset_of!(WaitSetEntry, leaves)) + member / 64 * 8;
        let bits = self.word(self.geometry.wait_sets + set * WAIT_SET_BYTES + leaf)?;
        Ok(bits >> (member % 64) & 1 == 1)
    }

    pub(crate) fn chunks(&self) -> io::Result<Vec<ChunkWord>> {
        let count = usize::try_from(self.geometry.all_chunks()).unwrap_or(0);
        let table = self.bytes(self.geometry.chunks, count * 8)?;
        Ok(table
            .chunks_exact(8)
            .map(|b| ChunkWord::unpack(word_at(b, 0)))
            .collect())
    }

    /// Bytes of memory that the file has for a chunk; `None` where the kernel does not say.
    pub(crate) fn memory_of(&self, chunk: usize) -> Option<u64> {
        let start = self.geometry.pool + chunk as u64 * CHUNK as u64;
        portolan_sys::memory::resident_bytes(&self.file, start..start + CHUNK as u64).ok()
    }

    /// Allocation words that are not fresh, by page.
    pub(crate) fn alloc(&self) -> io::Result<BTreeMap<u32, AllocWord>> {
        let words = self.words(self.geometry.alloc, self.geometry.pages() * 8)?;
        Ok(words
            .into_iter()
            .map(|(offset, word)| (page(offset / 8), AllocWord(word)))
            .collect())
    }

    /// A space's owner words that say something, by page.
    pub(crate) fn owners(&self, space: u8) -> io::Result<BTreeMap<u32, (OwnerWord, Destination)>> {
        let row = self.geometry.owner_row();
        let words = self.words(self.geometry.owners + u64::from(space) * row, row)?;
        let mut found: BTreeMap<u32, (OwnerWord, Destination)> = BTreeMap::new();
        for (offset, word) in words {
            let entry = found
                .entry(page(offset / OWNER_BYTES))
                .or_insert((OwnerWord::NONE, Destination(0)));
            if offset % OWNER_BYTES == 0 {
                entry.0 = OwnerWord(word)
            } else {
                entry.1 = Destination(word)
            }
        }
        found.retain(|_, (word, _)| *word != OwnerWord::NONE);
        Ok(found)
    }

    /// A space's counts of rights, by port.
    pub(crate) fn rights(&self, space: u8) -> io::Result<BTreeMap<u16, Counts>> {
        let row = Geometry::RIGHT_ROW;
        let mut found: BTreeMap<u16, Counts> = BTreeMap::new();
        for (offset, word) in self.words(self.geometry.rights + u64::from(space) * row, row)? {
            let port = u16::try_from(offset / RIGHT_BYTES).unwrap_or(u16::MAX);
            let counts = found.entry(port).or_insert(Counts { send: 0, once: 0 });
            if offset % RIGHT_BYTES == 0 {
                counts.send = word
            } else {
                counts.once = word
            }
        }
        Ok(found)
    }

    pub(crate) fn watches(&self) -> io::Result<Vec<Watch>> {
        let mut entries: BTreeMap<u64, BTreeMap<u64, u64>> = BTreeMap::new();
        for (offset, word) in self.words(self.geometry.watches, MAX_WATCHES as u64 * WATCH_BYTES)? {
            entries
                .entry(offset / WATCH_BYTES)
                .or_default()
                .insert(offset % WATCH_BYTES, word);
        }
        let read = |words: &BTreeMap<u64, u64>, offset: usize| {
            words.get(&at(offset)).copied().unwrap_or(0)
        };
        let watches = entries.into_values().map(|words| {
            let state = read(&words, offset_of!(WatchEntry, state)).to_le_bytes();
            Watch {
                state: state[0],
                space: state[1],
                target: RightWord::unpack(read(&words, offset_of!(WatchEntry, target))),
                notify: RightWord::unpack(read(&words, offset_of!(WatchEntry, notify))),
            }
        });
        Ok(watches.filter(|w| w.state != 0).collect())
    }

    /// The words of an extent.
    pub(crate) fn extent(&self, page: u32, bytes: u64) -> io::Result<Vec<u64>> {
        let offset = self.geometry.pool + u64::from(page) * PAGE as u64;
        let bytes = self.bytes(offset, usize::try_from(bytes).unwrap_or(0).min(CHUNK))?;
        Ok(bytes
            .chunks(8)
            .map(|b| {
                b.iter()
                    .rev()
                    .fold(0, |word, byte| word << 8 | u64::from(*byte))
            })
            .collect())
    }

    /// The page at an address of the pool.
    pub(crate) fn page_of(&self, address: u64) -> Option<u32> {
        let offset = address.checked_sub(self.base + self.geometry.pool)?;
        u32::try_from(offset / PAGE as u64).ok()
    }
}

fn page(index: u64) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

const _: () = assert!(SPACE_BYTES == 256);
