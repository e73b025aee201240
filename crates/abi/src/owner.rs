//! Packs owner words, allocation words and chunk words, which say which space holds which pages.
//!
//! An extent is named by the index of its first page in the pool. Two records
//! speak about it:
//!
//! - its **allocation word**, one per page in the region: free or used, with a
//!   generation that goes up each time the extent is handed out;
//! - its **owner words**, one per space in that space's own row: held, or being
//!   sent to a position of a port. A space writes only its own row, so taking a
//!   message over touches no line that another core holds.

use crate::codec::{bits_of, word};
use crate::codes;
use crate::limits::{CHUNK_PAGES, PAGE, SMALL_CLASSES};

/// An allocation word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocWord(pub u64);

/// The states of an allocation word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Alloc {
    /// Anybody may take it by compare-exchange; its chunk's cache owner looks first.
    Free = 0,
    /// Some space holds it, or a published slot does.
    Used = 1,
    /// Withdrawn, while its chunk is given back to the domain.
    Locked = 2,
}

impl AllocWord {
    /// A word with these parts.
    pub const fn new(state: Alloc, generation: u32) -> Self {
        Self((generation as u64) << 32 | state as u64)
    }

    /// Free, used or locked.
    pub const fn state(self) -> Alloc {
        match self.0 & 3 {
            0 => Alloc::Free,
            1 => Alloc::Used,
            _ => Alloc::Locked,
        }
    }

    /// How often the extent was handed out.
    pub const fn generation(self) -> u32 {
        let b = self.0.to_le_bytes();
        u32::from_le_bytes([b[4], b[5], b[6], b[7]])
    }

    /// A used word that names its allocator, and the second in which it was allocated.
    /// Who holds the extent later is not said here.
    pub const fn used(generation: u32, by: u8, born: Born) -> Self {
        Self(Self::new(Alloc::Used, generation).0 | (by as u64) << 8 | born.pack())
    }

    /// Of a used word: who allocated it.
    pub const fn allocator(self) -> u8 {
        self.0.to_le_bytes()[1]
    }

    /// Of a used word: when it was allocated.
    pub const fn born(self) -> Born {
        Born::unpack(self.0)
    }
}

/// When an extent was allocated: seconds of the machine's monotonic clock, modulo 48 days.
/// For people; nothing depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Born(u32);

impl Born {
    /// 22 bits: 16 above the allocator's space, 6 above the state.
    const BITS: u32 = 22;

    /// In this second.
    pub const fn at(seconds: u64) -> Self {
        let b = (seconds & ((1 << Self::BITS) - 1)).to_le_bytes();
        Self(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }

    /// Seconds from then to `now`.
    pub const fn age(self, now: Self) -> u32 {
        now.0.wrapping_sub(self.0) & ((1 << Self::BITS) - 1)
    }

    const fn pack(self) -> u64 {
        (self.0 as u64 & 0xffff) << 16 | (self.0 as u64 >> 16) << 2
    }

    const fn unpack(word: u64) -> Self {
        Self::at(word >> 16 & 0xffff | (word >> 2 & 0x3f) << 16)
    }
}

/// A space's owner word for one extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerWord(pub u64);

/// What a space says of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Hold {
    /// Not ours.
    None = 0,
    /// Ours.
    Held = 1,
    /// Written into a claimed slot; the slot's state decides whose it is.
    Sending = 2,
    /// Ours, but parked under a raw handle; taking it up again is a compare-exchange.
    Parked = 3,
}

impl OwnerWord {
    /// Not ours.
    pub const NONE: Self = Self(0);

    /// A word with these parts.
    pub const fn new(hold: Hold, generation: u32) -> Self {
        Self((generation as u64) << 32 | hold as u64)
    }

    /// None, held, sending or parked.
    pub const fn hold(self) -> Hold {
        match self.0 & 3 {
            1 => Hold::Held,
            2 => Hold::Sending,
            3 => Hold::Parked,
            _ => Hold::None,
        }
    }

    /// The extent's generation when it was taken.
    pub const fn generation(self) -> u32 {
        AllocWord(self.0).generation()
    }
}

/// Where an extent is being sent: a port's index and the low bits of the slot's position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination(pub u64);

impl Destination {
    /// Position `position` of port `port`.
    pub const fn new(port: u16, position: u64) -> Self {
        Self(
            (port as u64) << crate::slot::POSITION_BITS
                | position & ((1 << crate::slot::POSITION_BITS) - 1),
        )
    }

    /// The port's index.
    pub const fn port(self) -> u16 {
        let b = self.0.to_le_bytes();
        u16::from_le_bytes([b[6], b[7]])
    }

    /// The slot's position.
    pub const fn position(self) -> u64 {
        self.0 & ((1 << crate::slot::POSITION_BITS) - 1)
    }
}

/// How large an extent is: a size class within a chunk, or a run of chunks.
///
/// ```
/// use portolan_abi::owner::Size;
/// assert_eq!(Size::for_bytes(5000).pages(), 2);
/// assert_eq!(Size::for_bytes(3 << 20).chunks(), 2);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(u16);

impl Size {
    /// The smallest size that holds `bytes` (at least one page).
    ///
    /// Sizes above `u16::MAX - 9` chunks (128 GiB) are clamped; no region grants them.
    pub const fn for_bytes(bytes: usize) -> Self {
        let mut class = 0;
        while class < SMALL_CLASSES {
            if bytes <= PAGE << class {
                return Self::class(class);
            }
            class += 1;
        }
        Self::run(bytes.div_ceil(CHUNK_PAGES * PAGE))
    }

    const fn class(class: usize) -> Self {
        debug_assert!(class < SMALL_CLASSES);
        Self(class.to_le_bytes()[0] as u16)
    }

    /// A run of `chunks` whole chunks.
    pub const fn run(chunks: usize) -> Self {
        let most = u16::MAX as usize - SMALL_CLASSES;
        let chunks = if chunks > most { most } else { chunks };
        let code = (chunks + SMALL_CLASSES).to_le_bytes();
        Self(u16::from_le_bytes([code[0], code[1]]))
    }

    /// The size behind a code read from shared memory, if there is one.
    pub const fn from_code(code: u16) -> Option<Self> {
        if code as usize == SMALL_CLASSES {
            None
        } else {
            Some(Self(code))
        }
    }

    /// The code that stands for it in descriptors and chunk words.
    pub const fn code(self) -> u16 {
        self.0
    }

    /// The size class, if it is one within a chunk.
    pub const fn small(self) -> Option<usize> {
        if (self.0 as usize) < SMALL_CLASSES {
            Some(self.0 as usize)
        } else {
            None
        }
    }

    /// Whole chunks that it takes, 0 for a size class within a chunk.
    pub const fn chunks(self) -> usize {
        (self.0 as usize).saturating_sub(SMALL_CLASSES)
    }

    /// Pages that it takes.
    pub const fn pages(self) -> usize {
        match self.small() {
            Some(class) => 1 << class,
            None => self.chunks() * CHUNK_PAGES,
        }
    }

    /// Bytes that it takes.
    pub const fn bytes(self) -> usize {
        self.pages() * PAGE
    }
}

/// An extent in a message: two words in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Index of its first page in the pool.
    pub page: u32,
    /// Its generation.
    pub generation: u32,
    /// Its size.
    pub size: Size,
    /// Bytes of it that belong to the message.
    pub len: u64,
}

impl Descriptor {
    const LEN_BITS: u32 = 48;

    /// The two words.
    pub const fn pack(self) -> [u64; 2] {
        [
            (self.generation as u64) << 32 | self.page as u64,
            (self.size.code() as u64) << Self::LEN_BITS | self.len & ((1 << Self::LEN_BITS) - 1),
        ]
    }

    /// Reads two words; `None` if they cannot have been written by [`Descriptor::pack`].
    pub const fn unpack(words: [u64; 2]) -> Option<Self> {
        let first = words[0].to_le_bytes();
        let second = words[1].to_le_bytes();
        let len = words[1] & ((1 << Self::LEN_BITS) - 1);
        match Size::from_code(u16::from_le_bytes([second[6], second[7]])) {
            Some(size) if len <= size.bytes() as u64 => Some(Self {
                page: u32::from_le_bytes([first[0], first[1], first[2], first[3]]),
                generation: AllocWord(words[0]).generation(),
                size,
                len,
            }),
            _ => None,
        }
    }
}

codes! {
    /// What a chunk is used for.
    pub enum ChunkUse: u8 {
        /// Nobody's.
        Free = 0,
        /// Being taken by its cache owner: populated, cut up.
        Taking = 1,
        /// Cut into extents of one size class.
        Small = 2,
        /// First of a run.
        Head = 3,
        /// Part of a run whose head is `argument`.
        Body = 4,
        /// Being given back by the space named as cache owner.
        Returning = 5,
    }
}

// An unknown use, which no member writes, reads as a body of nothing.
bits_of! { ChunkUse: u8, unknown => Body; }

word! {
    /// A chunk's word: use, populated, huge, size code, cache owner, argument.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ChunkWord {
        /// What it is used for.
        pub r#use: ChunkUse = 0..6,
        /// Its memory was taken from the kernel.
        pub populated: bool = 6..7,
        /// Its memory is one huge page.
        pub huge: bool = 7..8,
        /// The space that allocates from it, 0 for none (up for adoption).
        pub cache_owner: u8 = 8..16,
        /// The size code of its extents, or of the run.
        pub size: u16 = 16..32,
        /// For a body, the index of the head.
        pub argument: u32 = 32..64,
    }
}

impl ChunkWord {
    /// A chunk that nobody has touched: all bits zero, as a fresh file reads.
    pub const FRESH: Self = Self {
        r#use: ChunkUse::Free,
        populated: false,
        huge: false,
        cache_owner: 0,
        size: 0,
        argument: 0,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_round_up_and_survive_their_code() {
        for bytes in [0, 1, 4096, 4097, 1 << 20, (1 << 20) + 1, 2 << 20, 1 << 30] {
            let size = Size::for_bytes(bytes);
            assert!(size.bytes() >= bytes, "{bytes}");
            assert_eq!(Size::from_code(size.code()), Some(size));
        }
        assert_eq!(Size::for_bytes(1 << 20).small(), Some(8));
        assert_eq!(Size::for_bytes((1 << 20) + 1).chunks(), 1);
        assert_eq!(Size::for_bytes(1 << 30).chunks(), 512);
    }

    #[test]
    fn words_keep_their_parts() {
        let d = Descriptor {
            page: 77,
            generation: u32::MAX,
            size: Size::for_bytes(1 << 30),
            len: 1 << 30,
        };
        assert_eq!(Descriptor::unpack(d.pack()), Some(d));
        let c = ChunkWord {
            r#use: ChunkUse::Body,
            populated: true,
            huge: true,
            cache_owner: 255,
            size: 8,
            argument: 90_000,
        };
        assert_eq!(ChunkWord::unpack(c.pack()), c);
        assert_eq!(ChunkWord::unpack(0), ChunkWord::FRESH);
        let to = Destination::new(40_000, 123_456);
        assert_eq!((to.port(), to.position()), (40_000, 123_456));
    }

    #[test]
    fn a_used_word_says_who_and_when() {
        let born = Born::at((1 << 22) - 3);
        let word = AllocWord::used(u32::MAX, 255, born);
        assert_eq!(
            (word.state(), word.generation(), word.allocator()),
            (Alloc::Used, u32::MAX, 255)
        );
        assert_eq!(word.born(), born);
        // The clock has gone round since.
        assert_eq!(born.age(Born::at((1 << 22) + 4)), 7);
    }

    #[test]
    fn a_descriptor_longer_than_its_extent_is_refused() {
        let d = Descriptor {
            page: 0,
            generation: 1,
            size: Size::for_bytes(1),
            len: 4097,
        };
        assert_eq!(Descriptor::unpack(d.pack()), None);
    }
}
