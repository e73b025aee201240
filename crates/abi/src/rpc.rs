//! Packs the headers of the packets of calls and answers.
//!
//! ```text
//! every packet:  word 0 | word 1 | body
//!
//! word 0:  63              32 31              0
//!          [ what 32         ][ checksum 32   ]
//! word 1:  63        40 39     32 31       8 7     4 3    0
//!          [ number 24 ][ behind 8][ when 24 ][ flags ][ kind ]
//! ```
//!
//! | field | in a call | in an answer |
//! |---|---|---|
//! | what | the method's hash | the [`Status`] |
//! | number | which call, modulo 2^24 | which call |
//! | behind | how many numbers before this one the server may still wait for | 0 |
//! | when | the deadline in [`TICK`]s, modulo 2^24; [`NO_DEADLINE`] | every call before this number has arrived |
//!
//! A packet of one unit of a channel (48 bytes) holds 32 bytes of arguments or results. A
//! body that has [`Flags::PIECE`] begins with a word that says where in the whole it
//! belongs: `offset 32 | total 32`.

use crate::codec::word;
use crate::codes;

/// Bytes of the two words.
pub const HEADER_BYTES: usize = 16;
/// Bytes of the word before a piece.
pub const PIECE_BYTES: usize = 8;
/// Calls of one connection that may be open.
pub const PLACES: usize = 64;
/// As many, as a number of calls.
pub const WINDOW: u64 = PLACES as u64;
/// What deadlines are counted in: about a millisecond, in nanoseconds.
pub const TICK: u64 = 1 << 20;
/// In place of a deadline: none, or one that is hours away.
pub const NO_DEADLINE: u32 = LOW_24;
/// Pieces that one packet asks for at most: a bit each.
pub const MAX_ASKED: u32 = 64;

/// In a packet that cancels a number: its packet will not come.
pub const NOT_COMING: u32 = 0;
/// In a packet that cancels a number: the client does not want the answer any more.
pub const NOT_WANTED: u32 = 1;

const LOW_24: u32 = (1 << 24) - 1;

codes! {
    /// What a packet is for.
    pub enum Kind: u8 {
        /// Client: it is there, and what is the server's incarnation? No body: its session is in
        /// the checksum.
        Hello = 1,
        /// Server: who it is. Body: its incarnation.
        Welcome = 2,
        /// Client: a call, or a piece of one.
        Call = 3,
        /// Server: an answer, or a piece of one.
        Answer = 4,
        /// Client: what of these? Body: the incarnation, the lowest number that may still come,
        /// a bit for each number from there on, a bit for each place whose call has arrived.
        Ask = 5,
        /// Server: these have arrived. Body: a bit for each number from the packet's on.
        Arrived = 6,
        /// Either: pieces of a message are missing. Body: the first, a bit for each.
        Missing = 7,
        /// Client: this number will not come ([`NOT_COMING`]), or is not wanted any more
        /// ([`NOT_WANTED`]).
        Cancel = 8,
        /// Client: the answer has arrived, and need not be kept.
        Done = 9,
        /// Either: it goes away. What is open is lost.
        Bye = 10,
    }
}

impl Kind {
    /// Whether its checksum is the same whatever the server's incarnation.
    #[inline]
    pub const fn is_greeting(self) -> bool {
        matches!(self, Self::Hello | Self::Welcome | Self::Ask)
    }
}

/// How a call is made: bits of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    /// The body is a piece of a longer message.
    pub const PIECE: Self = Self(1);
    /// Nobody waits for an answer.
    pub const ONE_WAY: Self = Self(2);
    /// What is lost stays lost.
    pub const BEST_EFFORT: Self = Self(4);
    /// The checksum is that of the header alone, and of where a piece lies.
    pub const UNCHECKED: Self = Self(8);

    /// Both.
    #[must_use]
    #[inline]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Without these.
    #[must_use]
    #[inline]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether all of `other` are set.
    #[inline]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

codes! {
    /// How a call ended, in the first word of its answer.
    pub enum Status: u32 {
        /// The body is what the method returned.
        Returned = 0,
        /// No such method. It was not executed.
        UnknownMethod = 1,
        /// The arguments are not what the method takes. It was not executed.
        Unreadable = 2,
        /// The handler panicked; the body says how, in UTF-8.
        Panicked = 3,
        /// The deadline had passed when it arrived. It was not executed.
        TooLate = 4,
        /// The server has too much to do. It was not executed.
        Busy = 5,
        /// The handler ended without an answer.
        Dropped = 6,
        /// The result is longer than an answer may be.
        TooLong = 7,
        /// The result cannot be written.
        Unwritable = 8,
    }
}

/// The two words of a packet, without the checksum.
///
/// ```
/// use portolan_abi::rpc::{Flags, Header, Kind};
/// let header = Header {
///     kind: Kind::Call,
///     flags: Flags::ONE_WAY,
///     what: 0xfeed,
///     number: 9,
///     behind: 2,
///     when: 77,
/// };
/// assert_eq!(Header::unpack(header.pack(5)), Some((header, 5)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What for.
    pub kind: Kind,
    /// How.
    pub flags: Flags,
    /// The method, or the status.
    pub what: u32,
    /// Which call: the low 24 bits.
    pub number: u32,
    /// How many numbers before it the server may still wait for.
    pub behind: u8,
    /// The deadline, or what has arrived: 24 bits.
    pub when: u32,
}

word! {
    /// The first word of a packet.
    #[derive(Clone, Copy)]
    struct First {
        pub checksum: u32 = 0..32,
        pub what: u32 = 32..64,
    }
}

word! {
    /// The second word of a packet.
    #[derive(Clone, Copy)]
    struct Second {
        pub kind: u8 = 0..4,
        pub flags: u8 = 4..8,
        pub when: u32 = 8..32,
        pub behind: u8 = 32..40,
        pub number: u32 = 40..64,
    }
}

impl Header {
    /// As words.
    #[inline]
    pub const fn pack(self, checksum: u32) -> [u64; 2] {
        let first = First {
            checksum,
            what: self.what,
        };
        let second = Second {
            kind: self.kind as u8,
            flags: self.flags.0,
            when: self.when,
            behind: self.behind,
            number: self.number,
        };
        [first.pack(), second.pack()]
    }

    /// The flags in words, whatever else they say.
    #[inline]
    pub const fn flags(words: [u64; 2]) -> Flags {
        Flags(Second::unpack(words[1]).flags)
    }

    /// Whether words begin a whole message of this kind, and no piece of one.
    #[inline]
    pub const fn begins_whole(words: [u64; 2], kind: Kind) -> bool {
        let second = Second::unpack(words[1]);
        second.kind == kind as u8 && second.flags & Flags::PIECE.0 == 0
    }

    /// From words that [begin a whole message](Self::begins_whole) of this kind.
    #[inline]
    pub const fn of_whole(words: [u64; 2], kind: Kind) -> Self {
        let second = Second::unpack(words[1]);
        Self {
            kind,
            flags: Flags(second.flags),
            what: First::unpack(words[0]).what,
            number: second.number,
            behind: second.behind,
            when: second.when,
        }
    }

    /// Words apart from their checksum, which is zero in them then, and the checksum.
    #[inline]
    pub const fn split_checksum([first, second]: [u64; 2]) -> ([u64; 2], u32) {
        let First { checksum, .. } = First::unpack(first);
        ([first ^ checksum as u64, second], checksum)
    }

    /// From words; and the checksum. `None` if there is no such kind.
    #[inline]
    pub const fn unpack(words: [u64; 2]) -> Option<(Self, u32)> {
        let First { checksum, what } = First::unpack(words[0]);
        let second = Second::unpack(words[1]);
        let Some(kind) = Kind::from_code(second.kind) else {
            return None;
        };
        let header = Self {
            kind,
            flags: Flags(second.flags),
            what,
            number: second.number,
            behind: second.behind,
            when: second.when,
        };
        Some((header, checksum))
    }
}

/// The low 24 bits of a number.
#[inline]
pub const fn low_24(number: u64) -> u32 {
    let [a, b, c, ..] = number.to_le_bytes();
    u32::from_le_bytes([a, b, c, 0])
}

/// The number nearest to `near` with these low 24 bits.
///
/// ```
/// use portolan_abi::rpc::{expand, low_24};
/// let near = (5 << 24) + 3;
/// for number in [near - 100, near - 3, near, near + 1000] {
///     assert_eq!(expand(low_24(number), near), number);
/// }
/// ```
#[inline]
pub const fn expand(low: u32, near: u64) -> u64 {
    let ahead = low.wrapping_sub(low_24(near)) & LOW_24;
    if ahead < 1 << 23 {
        near + ahead as u64
    } else {
        near.saturating_sub((1 << 24) - ahead as u64)
    }
}

/// A deadline in nanoseconds as the field `when` has it, seen from `now`; rounded up.
#[inline]
pub const fn pack_deadline(deadline: Option<u64>, now: u64) -> u32 {
    let Some(at) = deadline else {
        return NO_DEADLINE;
    };
    let (ticks, now) = (at.div_ceil(TICK), now / TICK);
    if ticks >= now + (1 << 23) {
        return NO_DEADLINE;
    }
    let low = low_24(ticks);
    // The one value that is taken means a tick more.
    if low == NO_DEADLINE { 0 } else { low }
}

/// The deadline in the field `when`, seen from `now`.
///
/// ```
/// use portolan_abi::rpc::{pack_deadline, unpack_deadline, TICK};
/// let (now, at) = (77 * TICK, 99 * TICK);
/// assert_eq!(unpack_deadline(pack_deadline(Some(at), now), now), Some(at));
/// assert_eq!(unpack_deadline(pack_deadline(None, now), now), None);
/// ```
#[inline]
pub const fn unpack_deadline(when: u32, now: u64) -> Option<u64> {
    if when == NO_DEADLINE {
        return None;
    }
    Some(expand(when, now / TICK).saturating_mul(TICK))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_null_call_and_arguments_of_32_bytes_fit_a_unit() {
        let payload = crate::limits::LINE - 8 * crate::channel::UNIT_HEAD_WORDS;
        assert!(HEADER_BYTES + 32 <= payload);
    }

    #[test]
    fn words_of_a_whole_message_are_read_as_any_other() {
        for kind in (0..16).filter_map(Kind::from_code) {
            for flags in 0..16 {
                let header = Header {
                    kind,
                    flags: Flags(flags),
                    what: 0xfeed_beef,
                    number: 0xab_cdef,
                    behind: 63,
                    when: 0x12_3456,
                };
                let words = header.pack(0x9876_5432);
                let (without, checksum) = Header::split_checksum(words);
                assert_eq!((without, checksum), (header.pack(0), 0x9876_5432));
                for other in (0..16).filter_map(Kind::from_code) {
                    let is_whole = kind == other && flags & 1 == 0;
                    assert_eq!(Header::begins_whole(words, other), is_whole);
                }
                assert_eq!(Header::of_whole(words, kind), header);
            }
        }
    }

    #[test]
    fn numbers_expand_around_the_wrap() {
        for near in [0, 5, 1 << 23, (1 << 24) - 1, 1 << 24, u64::MAX >> 8] {
            for number in near.saturating_sub(WINDOW)..near + WINDOW {
                assert_eq!(expand(low_24(number), near), number, "near {near}");
            }
        }
    }

    #[test]
    fn deadlines_are_rounded_up_and_never_down() {
        for now in [0, 1, TICK * ((1 << 24) - 5), u64::MAX / 2] {
            for ahead in [0, 1, TICK - 1, TICK, 5 * TICK + 1, 1 << 40] {
                let at = now + ahead;
                let back = unpack_deadline(pack_deadline(Some(at), now), now).unwrap();
                assert!(back >= at && back - at <= 2 * TICK, "{now} {ahead} {back}");
            }
            assert_eq!(
                pack_deadline(Some(now.saturating_add(1 << 60)), now),
                NO_DEADLINE
            );
        }
    }

    #[test]
    fn every_kind_and_status_is_read_as_it_was_written() {
        for bits in 0..16 {
            let words = [0, u64::from(bits)];
            match Kind::from_code(bits) {
                Some(kind) => {
                    let (header, _) = Header::unpack(words).unwrap();
                    assert_eq!((header.kind, kind as u8), (kind, bits));
                }
                None => assert_eq!(Header::unpack(words), None),
            }
            if let Some(status) = Status::from_code(u32::from(bits)) {
                assert_eq!(status as u32, u32::from(bits));
            }
        }
    }
}
