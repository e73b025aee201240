//! Lays out the memory of a channel: a head, its readers, and a ring of units.
//!
//! ```text
//! head (4 lines) | readers (a line each) | units
//!
//! unit:   stamp | meta | payload              a cache line, or a multiple of one
//! stamp:  63           16 15     8 7      0
//!         [ position 48  ][ writer ][ phase ]
//! meta:   63         32 31    24 23       0
//!         [ checksum 32 ][ flags ][ length  ]
//! ```
//!
//! The stamp says which position of the stream the unit holds. A reader compares it
//! before and after it copies; a unit that was overwritten meanwhile shows.

use crate::codec::word;
use crate::limits::LINE;

/// First word of a channel.
pub const MAGIC: u64 = u64::from_le_bytes(*b"portchan");
/// Bytes of the head.
pub const HEAD_BYTES: u64 = 4 * LINE as u64;
/// Bytes of a reader's entry.
pub const READER_BYTES: u64 = LINE as u64;
/// Words of a unit before its payload.
pub const UNIT_HEAD_WORDS: usize = 2;
/// Bytes of a unit at most.
pub const MAX_UNIT: usize = 1 << 20;
/// Units of a channel at least.
pub const MIN_UNITS: u64 = 4;
/// Units of a channel at most.
pub const MAX_UNITS: u64 = 1 << 24;
/// Readers of a channel that have an entry, at most: one for each space.
pub const MAX_READERS: u64 = 255;

/// Words of a head, and of a reader's entry, that observers read.
pub mod word {
    use crate::limits::LINE;

    /// Words of a head.
    pub const HEAD: usize = 4 * LINE / 8;
    /// Words of a reader's entry.
    pub const READER: usize = LINE / 8;
    const _: () = assert!(8 * HEAD as u64 == super::HEAD_BYTES);
    const _: () = assert!(8 * READER as u64 == super::READER_BYTES);

    /// [`MAGIC`](super::MAGIC).
    pub const MAGIC: usize = 0;
    /// Bytes of a unit.
    pub const UNIT: usize = 1;
    /// Units.
    pub const UNITS: usize = 2;
    /// Entries for readers.
    pub const READERS: usize = 3;
    /// How it is used.
    pub const MODE: usize = 4;
    /// [`WriterWord`](super::WriterWord).
    pub const OWNER: usize = 5;
    /// [`Purpose`](super::Purpose).
    pub const PURPOSE: usize = 7;
    /// The position that is written next.
    pub const NEXT: usize = 8;
    /// Bit 0: readers sleep.
    pub const SLEEP: usize = 16;
    /// Of an entry: [`ReaderState`](super::ReaderState).
    pub const READER_STATE: usize = 0;
    /// Of an entry: the position that it reads next.
    pub const READER_CURSOR: usize = 1;
}

/// Positions are below this.
pub const POSITIONS: u64 = 1 << (64 - POSITION_SHIFT);

const POSITION_SHIFT: u32 = 16;

/// What a unit is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum UnitPhase {
    /// It was never written.
    Empty = 0,
    /// It is being written.
    Busy = 1,
    /// It holds what its stamp says.
    Done = 2,
}

/// The first word of a unit.
///
/// ```
/// use portolan_abi::channel::{Stamp, UnitPhase};
/// let stamp = Stamp::done(9, 3);
/// assert_eq!((stamp.position(), stamp.writer(), stamp.phase()), (9, 3, UnitPhase::Done));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp(pub u64);

impl Stamp {
    /// A unit that `writer` is writing at `position`.
    pub const fn busy(position: u64, writer: u8) -> Self {
        Self(position << POSITION_SHIFT | (writer as u64) << 8 | UnitPhase::Busy as u64)
    }

    /// A unit that `writer` has written at `position`.
    pub const fn done(position: u64, writer: u8) -> Self {
        Self(position << POSITION_SHIFT | (writer as u64) << 8 | UnitPhase::Done as u64)
    }

    /// Whether both have the same position and phase; the writers may differ.
    pub const fn is_same_use(self, other: Self) -> bool {
        (self.0 ^ other.0) & !0xff00 == 0
    }

    /// The position in the stream.
    pub const fn position(self) -> u64 {
        self.0 >> POSITION_SHIFT
    }

    /// The space that writes it, or wrote it.
    pub const fn writer(self) -> u8 {
        self.0.to_le_bytes()[1]
    }

    /// What it is doing; an unknown value, which no writer writes, reads as busy.
    pub const fn phase(self) -> UnitPhase {
        match self.0.to_le_bytes()[0] {
            0 => UnitPhase::Empty,
            2 => UnitPhase::Done,
            _ => UnitPhase::Busy,
        }
    }
}

/// The second word of a unit.
///
/// ```
/// use portolan_abi::channel::Meta;
/// let meta = Meta::new(40, Meta::FIRST | Meta::LAST | Meta::CLOSED, 7);
/// assert_eq!((meta.len(), meta.has(Meta::LAST), meta.checksum()), (40, true, 7));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta(pub u64);

impl Meta {
    /// A message begins in this unit.
    pub const FIRST: u8 = 1;
    /// A message ends in this unit.
    pub const LAST: u8 = 2;
    /// Nothing will be added to this unit.
    pub const CLOSED: u8 = 4;
    /// The payload describes extents that carry the message.
    pub const EXTENTS: u8 = 8;
    /// The payload is a message that needs no answer and no copy: a padding.
    pub const PADDING: u8 = 16;

    /// `len` payload bytes.
    pub const fn new(len: usize, flags: u8, checksum: u32) -> Self {
        Self((checksum as u64) << 32 | (flags as u64) << 24 | len as u64 & 0xff_ffff)
    }

    /// Payload bytes, as the writer says.
    pub const fn len(self) -> usize {
        (self.0 & 0xff_ffff) as usize
    }

    /// Whether there is no payload.
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The flags.
    pub const fn flags(self) -> u8 {
        self.0.to_le_bytes()[3]
    }

    /// Whether any of `flags` is set.
    pub const fn has(self, flags: u8) -> bool {
        self.flags() & flags != 0
    }

    /// The checksum of the payload, where the channel has checksums.
    pub const fn checksum(self) -> u32 {
        let [.., a, b, c, d] = self.0.to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }
}

/// Where the parts of a channel lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of a unit, a multiple of a cache line.
    pub unit: usize,
    /// Units, a power of two.
    pub units: u64,
    /// Entries for readers.
    pub readers: u64,
}

/// The caller's: a channel cannot have this shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShapeError {
    /// The unit.
    Unit {
        /// What was asked for.
        unit: usize,
    },
    /// The number of units.
    Units {
        /// What was asked for.
        units: u64,
    },
    /// The number of readers.
    Readers {
        /// What was asked for.
        readers: u64,
    },
}

impl core::fmt::Display for ShapeError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Unit { unit } => write!(
                f,
                "a unit of {unit} bytes is not a multiple of {LINE} from {LINE} to {MAX_UNIT}"
            ),
            Self::Units { units } => write!(
                f,
                "{units} units are not a power of two from {MIN_UNITS} to {MAX_UNITS}"
            ),
            Self::Readers { readers } => {
                write!(f, "{readers} readers are more than {MAX_READERS}")
            }
        }
    }
}

impl core::error::Error for ShapeError {}

impl Shape {
    /// Checks a shape.
    ///
    /// ```
    /// use portolan_abi::channel::Shape;
    /// let shape = Shape::new(64, 1024, 8)?;
    /// assert_eq!((shape.payload(), shape.len()), (48, 256 + 8 * 64 + 1024 * 64));
    /// # Ok::<(), portolan_abi::channel::ShapeError>(())
    /// ```
    pub const fn new(unit: usize, units: u64, readers: u64) -> Result<Self, ShapeError> {
        if unit < LINE || !unit.is_multiple_of(LINE) || unit > MAX_UNIT {
            return Err(ShapeError::Unit { unit });
        }
        if units < MIN_UNITS || units > MAX_UNITS || !units.is_power_of_two() {
            return Err(ShapeError::Units { units });
        }
        if readers > MAX_READERS {
            return Err(ShapeError::Readers { readers });
        }
        Ok(Self {
            unit,
            units,
            readers,
        })
    }

    /// Payload bytes of a unit.
    pub const fn payload(&self) -> usize {
        self.unit - 8 * UNIT_HEAD_WORDS
    }

    /// Where the units begin.
    pub const fn units_at(&self) -> u64 {
        HEAD_BYTES + self.readers * READER_BYTES
    }

    /// Bytes of the whole channel.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub const fn len(&self) -> u64 {
        self.units_at() + self.units * self.unit as u64
    }
}

/// What a channel is used for, as its maker says. For observers; nothing else depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    /// Its users' own.
    #[default]
    Messages = 0,
    /// The samples of one publisher of a topic.
    Topic = 1,
    /// On it the publishers of a topic announce themselves.
    Publishers = 2,
    /// Calls, on their way to a server.
    Calls = 3,
    /// Answers, on their way to clients.
    Answers = 4,
}

impl Purpose {
    /// As a word.
    pub const fn pack(self) -> u64 {
        self as u64
    }

    /// From a word; an unknown one reads as [`Self::Messages`].
    pub const fn unpack(word: u64) -> Self {
        match word {
            1 => Self::Topic,
            2 => Self::Publishers,
            3 => Self::Calls,
            4 => Self::Answers,
            _ => Self::Messages,
        }
    }
}

/// How a reader that does not keep up is treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Lagging {
    /// The writer waits for it.
    #[default]
    Wait = 0,
    /// It is dropped from the channel.
    Drop = 1,
    /// It misses what is overwritten.
    Skip = 2,
}

/// What a reader's entry is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReaderState {
    /// For nothing.
    Free,
    /// A space is about to read, and has not said from where.
    Joining {
        /// The space.
        space: u8,
    },
    /// A space reads.
    Live {
        /// The space.
        space: u8,
        /// What happens when it lags.
        lagging: Lagging,
    },
    /// It lagged, and was dropped.
    Dropped {
        /// The space.
        space: u8,
    },
}

impl ReaderState {
    /// As a word.
    pub const fn pack(self) -> u64 {
        match self {
            Self::Free => 0,
            Self::Live { space, lagging } => 1 | (space as u64) << 8 | (lagging as u64) << 16,
            Self::Dropped { space } => 2 | (space as u64) << 8,
            Self::Joining { space } => 3 | (space as u64) << 8,
        }
    }

    /// From a word; an unknown one, which no member writes, reads as free.
    pub const fn unpack(word: u64) -> Self {
        let [phase, space, lagging, ..] = word.to_le_bytes();
        match phase {
            1 => Self::Live {
                space,
                lagging: match lagging {
                    1 => Lagging::Drop,
                    2 => Lagging::Skip,
                    _ => Lagging::Wait,
                },
            },
            2 => Self::Dropped { space },
            3 => Self::Joining { space },
            _ => Self::Free,
        }
    }
}

word! {
    /// Who writes to a channel of one writer.
    ///
    /// ```
    /// use portolan_abi::channel::WriterWord;
    /// let word = WriterWord { space: 3, left: 9 };
    /// assert_eq!(WriterWord::unpack(word.pack()), word);
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct WriterWord {
        /// The space, 0 for none.
        pub space: u8 = 0..8,
        /// How many writers have left, or died.
        pub left: u32 = 32..64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_checked() {
        assert!(Shape::new(64, 4, 0).is_ok());
        assert_eq!(Shape::new(96, 4, 0), Err(ShapeError::Unit { unit: 96 }));
        assert_eq!(Shape::new(0, 4, 0), Err(ShapeError::Unit { unit: 0 }));
        assert!(Shape::new(MAX_UNIT + 64, 4, 0).is_err());
        assert_eq!(Shape::new(64, 6, 0), Err(ShapeError::Units { units: 6 }));
        assert!(Shape::new(64, 2, 0).is_err());
        assert!(Shape::new(64, MAX_UNITS * 2, 0).is_err());
        assert!(Shape::new(64, 4, 256).is_err());
    }

    #[test]
    fn words_keep_what_was_packed() {
        let stamp = Stamp::busy((1 << 48) - 1, 255);
        assert_eq!(
            (stamp.position(), stamp.writer(), stamp.phase()),
            ((1 << 48) - 1, 255, UnitPhase::Busy)
        );
        assert_eq!(Stamp(0).phase(), UnitPhase::Empty);
        assert_eq!(Stamp(99).phase(), UnitPhase::Busy);
        let meta = Meta::new(MAX_UNIT, 0xff, u32::MAX);
        assert_eq!(
            (meta.len(), meta.flags(), meta.checksum()),
            (MAX_UNIT, 0xff, u32::MAX)
        );
        for lagging in [Lagging::Wait, Lagging::Drop, Lagging::Skip] {
            let state = ReaderState::Live { space: 9, lagging };
            assert_eq!(ReaderState::unpack(state.pack()), state);
        }
        let space = 255;
        for state in [
            ReaderState::Dropped { space },
            ReaderState::Joining { space },
        ] {
            assert_eq!(ReaderState::unpack(state.pack()), state);
        }
        assert_eq!(ReaderState::unpack(77), ReaderState::Free);
        for purpose in [
            Purpose::Messages,
            Purpose::Topic,
            Purpose::Publishers,
            Purpose::Calls,
            Purpose::Answers,
        ] {
            assert_eq!(Purpose::unpack(purpose.pack()), purpose);
        }
        assert_eq!(Purpose::unpack(u64::MAX), Purpose::Messages);
    }
}
