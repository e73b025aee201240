//! Packs the words of address-valued signals: a FIFO's slot, and the table of ranges.
//!
//! A signal is the offset of a byte in the region; every member adds its own base.
//!
//! ```text
//! slot of a FIFO:   63        45 44          1 0
//!                   [ lap 19    ][ offset 44  ][ full ]
//!
//! block of a range: 63   61 60     45 44        41 40      2 1      0
//!                   [ 0    ][ handler ][ level 4   ][ number ][ kind  ]
//! ```
//!
//! A range is cut into *blocks*: aligned runs of 64 bytes times a power of eight, at
//! most [`MAX_BLOCKS`] of them. A sender looks each level up that is in use, so what a
//! signal costs depends neither on the number of ranges nor on their sizes.

/// Bits of an offset in a region.
pub const OFFSET_BITS: u32 = 44;
/// Slots that a FIFO may have.
pub const MAX_DEPTH: usize = 512;
/// Slots of a FIFO unless asked otherwise: the paper's 128.
pub const DEFAULT_DEPTH: usize = 128;
/// Levels of blocks: 64 bytes, 512, 4 KiB, and so on to 64 GiB.
pub const LEVELS: usize = 11;
/// Blocks of one range: up to seven of each level on either side of the largest.
pub const MAX_BLOCKS: usize = 14 * LEVELS;
/// Places for blocks in a domain's table, a power of two; half of them are used.
pub const MAX_PLACES: usize = 1 << 17;
/// Handlers of a domain.
pub const MAX_HANDLERS: usize = 1 << 16;

const OFFSET_MASK: u64 = (1 << OFFSET_BITS) - 1;
const LAP_SHIFT: u32 = OFFSET_BITS + 1;
const FULL: u64 = 1;

/// A FIFO's slot.
///
/// ```
/// use portolan_abi::signal::Slot;
/// let slot = Slot::full(3, 0x1234);
/// assert_eq!((slot.lap(), slot.offset()), (3, Some(0x1234)));
/// assert_eq!(Slot::empty(4).offset(), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(pub u64);

impl Slot {
    /// Laps are counted modulo this.
    pub const LAPS: u64 = 1 << (u64::BITS - LAP_SHIFT);

    /// Waits for a signal in this lap.
    #[inline]
    pub const fn empty(lap: u64) -> Self {
        Self((lap % Self::LAPS) << LAP_SHIFT)
    }

    /// Holds the signal of this lap.
    #[inline]
    pub const fn full(lap: u64, offset: u64) -> Self {
        Self((lap % Self::LAPS) << LAP_SHIFT | (offset & OFFSET_MASK) << 1 | FULL)
    }

    /// The lap that it waits for, or was filled in.
    #[inline]
    pub const fn lap(self) -> u64 {
        self.0 >> LAP_SHIFT
    }

    /// What was signalled, if it is full.
    #[inline]
    pub const fn offset(self) -> Option<u64> {
        if self.0 & FULL == 0 {
            return None;
        }
        Some((self.0 >> 1) & OFFSET_MASK)
    }
}

/// An aligned part of a range.
///
/// ```
/// use portolan_abi::signal::Block;
/// let page = Block::around(2, 0x5678).unwrap();
/// assert_eq!((page.start(), page.len()), (0x5000, 4096));
/// assert_eq!(Block::unpack(page.pack(7)), Some((page, 7)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    level: u8,
    number: u64,
}

const KIND_BLOCK: u64 = 2;
const NUMBER_BITS: u32 = OFFSET_BITS - 6;
const LEVEL_SHIFT: u32 = 2 + NUMBER_BITS;
const HANDLER_SHIFT: u32 = LEVEL_SHIFT + 4;
const _: () = assert!(HANDLER_SHIFT + 16 <= 64);

impl Block {
    /// A place in the table that was never used: searches end here.
    pub const NEVER: u64 = 0;
    /// A place that was given up: searches go on.
    pub const GONE: u64 = 1;

    /// The block of `level` that holds the byte at `offset`; `None` past the last level.
    #[inline]
    pub const fn around(level: usize, offset: u64) -> Option<Self> {
        if level >= LEVELS || offset > OFFSET_MASK {
            return None;
        }
        let number = offset >> Self::shift(level);
        #[expect(clippy::cast_possible_truncation, reason = "below LEVELS")]
        let level = level as u8;
        Some(Self { level, number })
    }

    #[inline]
    const fn shift(level: usize) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "below LEVELS")]
        let level = level as u32;
        6 + 3 * level
    }

    /// Which level it is of.
    #[inline]
    pub const fn level(self) -> usize {
        self.level as usize
    }

    /// Its first byte.
    pub const fn start(self) -> u64 {
        self.number << Self::shift(self.level())
    }

    /// How many bytes it has.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub const fn len(self) -> u64 {
        1 << Self::shift(self.level())
    }

    /// The block as a word of the table, with the handler that it leads to.
    #[inline]
    pub const fn pack(self, handler: u16) -> u64 {
        KIND_BLOCK
            | self.number << 2
            | (self.level as u64) << LEVEL_SHIFT
            | (handler as u64) << HANDLER_SHIFT
    }

    /// The block in a word of the table, and its handler.
    #[inline]
    pub const fn unpack(word: u64) -> Option<(Self, u16)> {
        if word & 3 != KIND_BLOCK {
            return None;
        }
        let [.., low, high] = (word << (64 - HANDLER_SHIFT - 16)).to_le_bytes();
        let [level, ..] = ((word >> LEVEL_SHIFT) & 0xf).to_le_bytes();
        let number = (word >> 2) & ((1 << NUMBER_BITS) - 1);
        Some((Self { level, number }, u16::from_le_bytes([low, high])))
    }

    /// Where a search for it begins, in a table of `places`, a power of two.
    #[inline]
    pub const fn hash(self, places: usize) -> usize {
        let key = self.number ^ (self.level as u64) << NUMBER_BITS;
        let spread = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (spread >> 32) as usize & (places - 1)
    }
}

/// The blocks of the bytes from `start` up to `end`, in order; whole lines at the edges.
pub fn blocks(start: u64, end: u64) -> impl Iterator<Item = Block> {
    let end = end.min(1 << OFFSET_BITS).next_multiple_of(64);
    let mut at = start / 64 * 64;
    core::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let fits = |level: &usize| {
            let len = 1 << Block::shift(*level);
            at.is_multiple_of(len) && len <= end - at
        };
        let level = (0..LEVELS).rev().find(fits).unwrap_or(0);
        let block = Block::around(level, at)?;
        at += block.len();
        Some(block)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_a_range_once_and_are_few() {
        let cases = [
            (0, 1),
            (63, 65),
            (100, 4000),
            (4096, 1 << 30),
            (64, (1 << 40) - 64),
            ((1 << 44) - 1, 1 << 44),
            (64, (1 << 44) - 64),
        ];
        for (start, end) in cases {
            let mut at = start / 64 * 64;
            let mut count = 0;
            for block in blocks(start, end) {
                assert_eq!(block.start(), at, "{start}..{end}");
                assert_eq!(block.start() % block.len(), 0);
                at += block.len();
                count += 1;
            }
            assert_eq!(at, end.next_multiple_of(64));
            // The last level has no level above, so a range of many of its blocks has many.
            assert!(count <= MAX_BLOCKS + (end >> 36) as usize, "{count}");
        }
    }

    #[test]
    fn words_keep_what_was_packed() {
        for level in 0..LEVELS {
            for handler in [0, 1, 0x8001, u16::MAX] {
                let block = Block::around(level, 0xabc_dead_beef).unwrap();
                assert_eq!(Block::unpack(block.pack(handler)), Some((block, handler)));
                assert!(block.hash(1024) < 1024);
            }
        }
        assert_eq!(Block::unpack(Block::NEVER), None);
        assert_eq!(Block::unpack(Block::GONE), None);
        assert_eq!(Block::around(LEVELS, 0), None);
        assert_eq!(Block::around(0, 1 << 44), None);
        let last = Slot::full(Slot::LAPS - 1, OFFSET_MASK);
        assert_eq!(
            (last.lap(), last.offset()),
            (Slot::LAPS - 1, Some(OFFSET_MASK))
        );
    }
}
