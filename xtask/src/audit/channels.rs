//! Audits the memory of segments that are channels: A3, A4, and what is left to read.

use super::{Audit, Contents, is_untaken};
use portolan_abi::channel::{
    HEAD_BYTES, MAGIC, MAX_READERS, Meta, READER_BYTES, ReaderState, Shape, Stamp, UnitPhase,
    WriterWord,
};
use portolan_abi::port::PortPhase;
use std::collections::BTreeMap;
use std::io;

/// Where the parts of the head stand, in words.
const UNIT: usize = 1;
const UNITS: usize = 2;
const READERS: usize = 3;
const MODE: usize = 4;
const WRITER: usize = 5;
/// The bit of the mode that says that several write.
const MANY_WRITERS: u64 = 2;
/// Lines of a channel's head; its readers' come next.
const HEAD_LINES: usize = 4;
/// Words of a cache line.
const LINE: usize = 8;

/// The memory of a channel.
struct Memory {
    /// Of the segment.
    port: u16,
    /// Where it begins.
    page: u32,
    shape: Shape,
    words: Vec<u64>,
}

/// A reader's entry.
struct Entry {
    space: u8,
    /// The position that it reads next, if it says so.
    cursor: Option<u64>,
}

impl Memory {
    fn writer(&self) -> u8 {
        WriterWord::unpack(self.words[WRITER]).space
    }

    fn has_many_writers(&self) -> bool {
        self.words[MODE] & MANY_WRITERS != 0
    }

    fn readers(&self) -> Vec<Entry> {
        let entries = usize::try_from(self.shape.readers).unwrap_or(0);
        let lines = self.words.chunks(LINE).skip(HEAD_LINES).take(entries);
        let entry = |line: &[u64]| match ReaderState::unpack(line[0]) {
            ReaderState::Free => None,
            ReaderState::Live { space, .. } => Some(Entry {
                space,
                cursor: Some(line[1]),
            }),
            ReaderState::Joining { space } | ReaderState::Dropped { space } => Some(Entry {
                space,
                cursor: None,
            }),
        };
        lines.filter_map(entry).collect()
    }

    /// The units: stamp and meta word of each.
    fn units(&self) -> Vec<(Stamp, Meta)> {
        let first = usize::try_from(self.shape.units_at() / 8).unwrap_or(usize::MAX);
        let units = self.words.get(first..).unwrap_or(&[]);
        let units = units.chunks_exact(self.shape.unit / 8);
        units.map(|u| (Stamp(u[0]), Meta(u[1]))).collect()
    }
}

/// Whether a reader that stands at `cursor` would find something.
fn is_unread(units: &[(Stamp, Meta)], cursor: u64) -> bool {
    let at = usize::try_from(cursor).unwrap_or(0) % units.len().max(1);
    units.get(at).is_some_and(|(stamp, meta)| {
        let here = stamp.position() == cursor && meta.has(Meta::CLOSED);
        stamp.phase() == UnitPhase::Done && (here || stamp.position() > cursor)
    })
}

impl Audit<'_> {
    /// A3, A4: who reads and writes.
    pub(super) fn channels(&mut self) -> io::Result<()> {
        let mut listed = Vec::new();
        let (mut reads, mut writes) = (BTreeMap::new(), BTreeMap::new());
        for channel in self.channel_memory()? {
            let (index, writer) = (channel.port, channel.writer());
            if writer != 0 {
                listed.push((writer, format!("writes to the channel of port {index}")));
                *writes.entry(writer).or_insert(0_u64) += 1;
            }
            let units = channel.units();
            for Entry { space, cursor } in channel.readers() {
                listed.push((space, format!("reads the channel of port {index}")));
                *reads.entry(space).or_insert(0_u64) += 1;
                if cursor.is_some_and(|cursor| is_unread(&units, cursor)) {
                    self.found.unread.insert((space, channel.page));
                }
            }
            let busy = units.iter().find(|u| u.0.phase() == UnitPhase::Busy);
            if let Some((stamp, _)) = busy
                && channel.has_many_writers()
            {
                self.found.unreleased.push(format!(
                    "the channel of port {index}: space {} writes at {}, and nobody writes",
                    stamp.writer(),
                    stamp.position()
                ));
            }
        }
        for (space, what) in listed {
            if !self.is_live(space) {
                let does = format!("space {space}, which does not live, {what}");
                self.found.unreleased.push(does);
            }
        }
        for (space, journal) in &self.journals {
            let of = |counts: &BTreeMap<u8, u64>| counts.get(space).copied().unwrap_or(0);
            let (found, noted) = (
                (of(&reads), of(&writes)),
                (journal.readers, journal.writers),
            );
            if found != noted {
                self.found.unreleased.push(format!(
                    "space {space} reads and writes {found:?} channels by their entries, and worker {} has {noted:?} readers and writers",
                    journal.worker
                ));
            }
        }
        Ok(())
    }

    fn channel_memory(&self) -> io::Result<Vec<Memory>> {
        let mut found = Vec::new();
        for port in &self.ports {
            if port.status.phase != PortPhase::Open || !port.status.shared {
                continue;
            }
            let Some(slot) = port.slots.iter().find(|s| is_untaken(port, s.state)) else {
                continue;
            };
            let Some(memory) = Contents::read(self.image, slot)?.extents.first().copied() else {
                continue;
            };
            let head = self.image.extent(memory.page, HEAD_BYTES)?;
            if head.first() != Some(&MAGIC) {
                continue;
            }
            let unit = usize::try_from(head[UNIT]).unwrap_or(0);
            let Ok(shape) = Shape::new(unit, head[UNITS], head[READERS].min(MAX_READERS)) else {
                continue;
            };
            let readers = HEAD_BYTES + shape.readers * READER_BYTES;
            // Of a raw channel, or a large one, the units are nobody's concern here.
            let bytes = if shape.len() <= 1 << 20 {
                shape.len()
            } else {
                readers
            };
            found.push(Memory {
                port: port.index,
                page: memory.page,
                shape,
                words: self.image.extent(memory.page, bytes)?,
            });
        }
        Ok(found)
    }
}
