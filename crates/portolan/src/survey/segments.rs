//! Lists a domain's segments for a survey, and says what each is used for.

use super::Ground;
use portolan_abi::channel::{
    self as abi, HEAD_BYTES, MAGIC, Purpose, READER_BYTES, ReaderState, Shape, WriterWord, word,
};
use portolan_abi::limits::PAGE;
use portolan_abi::owner::Descriptor;
use portolan_abi::port::{PortPhase, PortStatus};
use portolan_abi::slot::Meta;
use portolan_shm::channel::Mode;
use portolan_shm::queue::Queue;
use portolan_shm::region::read_text;
use std::sync::atomic::Ordering;

/// One segment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentSurvey {
    /// Its number, in the same sequence as ports'; numbers are used again.
    pub index: u16,
    /// Tells one segment of this number from the next.
    pub generation: u32,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// What it is used for.
    pub kind: SegmentKind,
    /// Bytes.
    pub bytes: u64,
    /// Rights on it that exist.
    pub rights: u32,
    /// What a channel in it is like.
    pub channel: Option<ChannelSurvey>,
}

/// What a segment is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum SegmentKind {
    /// Memory that every space with a right reads and writes.
    Plain,
    /// Memory that was an extent, and that no space writes any more.
    SharedExtent,
    /// A channel of messages.
    Channel,
    /// A channel whose units have fixed places.
    FrameBuffer,
    /// The samples of one publisher of a topic.
    Topic,
    /// The channel on which a topic's publishers announce themselves.
    Publishers,
    /// A channel of calls to a server.
    Calls,
    /// A channel of a server's answers.
    Answers,
}

impl SegmentKind {
    /// What it is called.
    ///
    /// ```
    /// assert_eq!(portolan::SegmentKind::FrameBuffer.name(), "frame buffer");
    /// ```
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "segment",
            Self::SharedExtent => "shared extent",
            Self::Channel => "channel",
            Self::FrameBuffer => "frame buffer",
            Self::Topic => "topic",
            Self::Publishers => "publishers",
            Self::Calls => "calls",
            Self::Answers => "answers",
        }
    }
}

/// A channel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChannelSurvey {
    /// Bytes of a unit.
    pub unit: usize,
    /// Units of the ring.
    pub units: u64,
    /// Whether the writer waits for readers.
    pub reliable: bool,
    /// Whether several may write.
    pub many_writers: bool,
    /// The space that writes, if there is one; `None` for a channel of many writers.
    pub writer: Option<u8>,
    /// Units written so far, by all writers.
    pub written: u64,
    /// Readers that have an entry. Those that have none, which a message-consistent channel may
    /// have any number of, leave no trace.
    pub readers: Vec<ReaderSurvey>,
    /// How many readers can have an entry.
    pub entries: u64,
    /// Whether a reader sleeps, or has since the last signal.
    pub asleep: bool,
}

/// A reader of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReaderSurvey {
    /// Whose it is.
    pub space: u8,
    /// Whether it lagged, and was dropped from the channel.
    pub dropped: bool,
    /// Units that were written and that it has not gone past.
    pub behind: u64,
}

/// A segment's memory, and what its one message says.
pub(super) struct Memory {
    pub(super) extent: Descriptor,
    frozen: bool,
}

/// The segment in the port's entry `index`, if it is one.
pub(super) fn take(ground: &Ground<'_>, index: u16, rights: u32) -> Option<SegmentSurvey> {
    let entry = ground.tables.ports.get(usize::from(index))?;
    // Acquire: what the maker wrote came before the status.
    let status = PortStatus::unpack(entry.control.status.load(Ordering::Acquire));
    if !status.shared || status.phase != PortPhase::Open {
        return None;
    }
    let memory = memory(ground, &ground.tables.queue(index)?)?;
    let channel = if memory.frozen {
        None
    } else {
        channel(ground, &memory.extent)
    };
    let kind = match &channel {
        None if memory.frozen => SegmentKind::SharedExtent,
        None => SegmentKind::Plain,
        Some((_, true, _)) => SegmentKind::FrameBuffer,
        Some((_, _, Purpose::Messages)) => SegmentKind::Channel,
        Some((_, _, Purpose::Topic)) => SegmentKind::Topic,
        Some((_, _, Purpose::Publishers)) => SegmentKind::Publishers,
        Some((_, _, Purpose::Calls)) => SegmentKind::Calls,
        Some((_, _, Purpose::Answers)) => SegmentKind::Answers,
    };
    Some(SegmentSurvey {
        index,
        generation: status.generation,
        name: Some(read_text(&entry.name.words)).filter(|name| !name.is_empty()),
        kind,
        bytes: memory.extent.len,
        rights,
        channel: channel.map(|(survey, ..)| survey),
    })
}

/// What the one message in a segment's queue says: an extent, and perhaps that no space writes it.
pub(super) fn memory(ground: &Ground<'_>, queue: &Queue<'_>) -> Option<Memory> {
    let head = queue.port.receiver.head.load(Ordering::Acquire);
    let slot = queue.slot(head);
    let meta = Meta::read_plain(slot.meta())?;
    if meta.extents != 1 || meta.reply {
        return None;
    }
    let [first, second, header, ..] = slot.first_line();
    let extent = Descriptor::unpack([first, second])?;
    let end = extent.page as usize + extent.size.pages();
    if end > ground.tables.alloc.pages() || extent.len > extent.size.bytes() as u64 {
        return None;
    }
    let header = header.to_le_bytes();
    let frozen = header.get(..meta.header) == Some(crate::port::shared_entries::FROZEN);
    Some(Memory { extent, frozen })
}

/// The channel in an extent, if one is there; whether its units have fixed places; and what it
/// is used for. All of it is copied first, for its users go on writing.
fn channel(ground: &Ground<'_>, extent: &Descriptor) -> Option<(ChannelSurvey, bool, Purpose)> {
    let at = ground.tables.geometry.pool + u64::from(extent.page) * PAGE as u64;
    let head: [u64; word::HEAD] = peek_words(ground, at)?;
    if head[word::MAGIC] != MAGIC {
        return None;
    }
    let unit = usize::try_from(head[word::UNIT]).ok()?;
    let shape = Shape::new(unit, head[word::UNITS], head[word::READERS]).ok()?;
    if shape.len() > extent.len {
        return None;
    }
    let mode = Mode::unpack(head[word::MODE]);
    let written = head[word::NEXT];
    let entries = at + HEAD_BYTES;
    let readers = (0..shape.readers).filter_map(|index| {
        let entry: [u64; word::READER] = peek_words(ground, entries + index * READER_BYTES)?;
        let (space, dropped) = match ReaderState::unpack(entry[word::READER_STATE]) {
            ReaderState::Free => return None,
            ReaderState::Joining { space } | ReaderState::Live { space, .. } => (space, false),
            ReaderState::Dropped { space } => (space, true),
        };
        // One that reads on meanwhile is not behind.
        let behind = written.saturating_sub(entry[word::READER_CURSOR]);
        Some(ReaderSurvey {
            space,
            dropped,
            behind,
        })
    });
    let writer = WriterWord::unpack(head[word::OWNER]).space;
    let survey = ChannelSurvey {
        unit: shape.unit,
        units: shape.units,
        reliable: mode.reliable,
        many_writers: mode.many_writers,
        writer: Some(writer).filter(|space| *space != 0),
        written,
        readers: readers.collect(),
        entries: shape.readers,
        asleep: head[word::SLEEP] & 1 != 0,
    };
    let purpose = abi::Purpose::unpack(head[word::PURPOSE]);
    Some((survey, mode.raw, purpose))
}

/// Reads words of the region's file.
fn peek_words<const N: usize>(ground: &Ground<'_>, offset: u64) -> Option<[u64; N]> {
    let mut words = [0u64; N];
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
    let wanted = bytes.len();
    (ground.peek(offset, bytes) == wanted).then_some(words)
}
