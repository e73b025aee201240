//! Packs the words of a queue's slot.
//!
//! ```text
//! line 0:  state | meta | 48 bytes inline          line 1..: 64 bytes inline each
//!
//! state:   63           16 15      8 7        3 2       0
//!          [ position 48 ][ space 8 ][ flags 5 ][ phase 3 ]
//! ```
//!
//! The inline bytes hold, in this order and each only if the meta word says so:
//! the reply word, the urgency word, the word for sealed memory, one word for each right, two for each
//! extent, then the header. What does not fit goes to a *header extent*.

use crate::codec::{Bits, bits_of, word};
use crate::codes;

/// What a slot is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// Waits for the sender whose position it names.
    Free = 0,
    /// A sender is filling it.
    Claimed = 1,
    /// Holds a message.
    Published = 2,
    /// Its sender died before publishing; the receiver steps over it.
    Void = 3,
    /// Its port is closed.
    Closed = 4,
}

const PHASE_BITS: u64 = 0b111;
const SPACE_SHIFT: u32 = 8;
const POSITION_SHIFT: u32 = 16;
/// Bits of a position; at twenty million messages a second they last five months.
pub const POSITION_BITS: u32 = 48;
const POSITION_MASK: u64 = (1 << POSITION_BITS) - 1;

/// The state word of a slot: phase, flags, claiming space, position.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SlotState(pub u64);

impl SlotState {
    /// The receiver sleeps: the sender that publishes here must wake it.
    pub const ASLEEP: u64 = 1 << 3;
    /// The receiver has looked past this claim; senders leave the slot out until it is free again.
    pub const PASSED: u64 = 1 << 4;
    /// The port was closed while this slot was claimed: its sender takes the message back.
    pub const CLOSING: u64 = 1 << 5;
    const FLAGS: u64 = Self::ASLEEP | Self::PASSED | Self::CLOSING;
    /// Adding this to a claimed state publishes it and keeps its flags.
    pub const PUBLISH: u64 = Phase::Published as u64 - Phase::Claimed as u64;

    const fn pack(position: u64, space: u8, phase: Phase) -> Self {
        Self(
            (position & POSITION_MASK) << POSITION_SHIFT
                | (space as u64) << SPACE_SHIFT
                | phase as u64,
        )
    }

    /// A slot that waits for the message at `position`.
    pub const fn free(position: u64) -> Self {
        Self::pack(position, 0, Phase::Free)
    }

    /// A slot of a closed port.
    pub const fn closed(position: u64) -> Self {
        Self::pack(position, 0, Phase::Closed)
    }

    /// This free slot, claimed by `space` for `position`; flags stay.
    #[must_use]
    pub const fn claimed(self, position: u64, space: u8) -> Self {
        Self(Self::pack(position, space, Phase::Claimed).0 | self.flags())
    }

    /// The same slot in another phase; position, space and flags stay.
    #[must_use]
    pub const fn with_phase(self, phase: Phase) -> Self {
        Self(self.0 & !PHASE_BITS | phase as u64)
    }

    /// The same slot with `flags` added.
    #[must_use]
    pub const fn with(self, flags: u64) -> Self {
        Self(self.0 | flags)
    }

    /// The same slot with `flags` taken away.
    #[must_use]
    pub const fn without(self, flags: u64) -> Self {
        Self(self.0 & !flags)
    }

    /// What the slot is doing. Unknown values, which no member writes, read as closed.
    pub const fn phase(self) -> Phase {
        match self.0 & PHASE_BITS {
            0 => Phase::Free,
            1 => Phase::Claimed,
            2 => Phase::Published,
            3 => Phase::Void,
            _ => Phase::Closed,
        }
    }

    /// The space that claimed the slot, 0 for none.
    pub const fn space(self) -> u8 {
        self.0.to_le_bytes()[1]
    }

    /// The position in the port's sequence of messages.
    pub const fn position(self) -> u64 {
        self.0 >> POSITION_SHIFT
    }

    /// Whether it holds the message of this position: phase and position in one look.
    #[inline]
    pub const fn is_published_at(self, position: u64) -> bool {
        const BOTH: u64 = PHASE_BITS | POSITION_MASK << POSITION_SHIFT;
        self.0 & BOTH == Self::pack(position, 0, Phase::Published).0
    }

    /// The flags alone.
    pub const fn flags(self) -> u64 {
        self.0 & Self::FLAGS
    }

    /// Whether any of `flags` is set.
    pub const fn has(self, flags: u64) -> bool {
        self.0 & flags != 0
    }
}

impl core::fmt::Debug for SlotState {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "{:?}({}, space {}, flags {:#x})",
            self.phase(),
            self.position(),
            self.space(),
            self.flags()
        )
    }
}

codes! {
    /// What a message is to its receiver.
    pub enum Kind: u8 {
        /// An ordinary message.
        Message = 0,
        /// A request; the reply word names where the answer goes.
        Request = 1,
        /// The answer to a request.
        Reply = 2,
        /// The request was dropped unanswered.
        Dropped = 3,
        /// The server died, or its port closed, before it answered. Or the node that it is on was
        /// given up: then the header is that node's name.
        ServerDead = 4,
    }
}

// An unknown kind, which no member writes, reads as a message.
bits_of! { Kind: u8, unknown => Message; }

/// What [`Meta::plain`] writes and [`Meta::read_plain`] reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plain {
    /// What the message is.
    pub kind: Kind,
    /// Bytes of the header.
    pub header: usize,
    /// How many extents travel.
    pub extents: usize,
    /// A reply word is there.
    pub reply: bool,
    /// The first extents hold a data structure.
    pub structure: bool,
}

word! {
    /// The meta word of a published slot: how to read its inline bytes.
    ///
    /// ```
    /// use portolan_abi::slot::{Kind, Meta};
    /// let meta = Meta { header: 48, ..Meta::new(Kind::Message) };
    /// assert_eq!(Meta::unpack(meta.pack()), meta);
    /// assert_eq!(meta.inline_bytes(), 48);
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Meta {
        /// Bytes of the header.
        pub header: u16 = 0..16,
        /// How many extents travel.
        pub extents: u16 = 16..32,
        /// How many rights travel.
        pub rights: u8 = 32..40,
        /// What the message is.
        pub kind: Kind = 40..48,
        /// Header and descriptors lie in a header extent, whose descriptor alone is inline.
        pub spilled: bool = 48..49,
        /// An urgency word is there.
        pub urgent: bool = 49..50,
        /// A reply word is there.
        pub reply: bool = 50..51,
        /// The first extents hold a data structure.
        pub structure: bool = 51..52,
        /// A word is there by which the receiver finds sealed memory in its own process.
        pub sealed: bool = 52..53,
    }
}

impl Meta {
    const SPILLED: u64 = 1 << 48;
    const URGENT: u64 = 1 << 49;
    const REPLY: u64 = 1 << 50;
    const STRUCTURE: u64 = 1 << 51;
    const SEALED: u64 = 1 << 52;

    /// The meta word of an empty message.
    pub const fn new(kind: Kind) -> Self {
        Self {
            header: 0,
            extents: 0,
            rights: 0,
            kind,
            spilled: false,
            urgent: false,
            reply: false,
            structure: false,
            sealed: false,
        }
    }

    /// The meta word of a message with nothing but a header, extents, perhaps a structure in
    /// them, and perhaps a reply word: what [`Meta::pack`] gives, without its branches.
    #[inline]
    pub const fn plain(plain: Plain) -> u64 {
        plain.header as u64 & 0xffff
            | (plain.extents as u64 & 0xffff) << 16
            | (plain.kind as u64) << 40
            | (plain.reply as u64) << Self::REPLY.trailing_zeros()
            | (plain.structure as u64) << Self::STRUCTURE.trailing_zeros()
    }

    /// Reads a meta word that [`Meta::plain`] could have written; `None` for others.
    #[inline]
    pub const fn read_plain(word: u64) -> Option<Plain> {
        let b = word.to_le_bytes();
        if b[4] != 0 || word & (Self::SPILLED | Self::URGENT | Self::SEALED) != 0 {
            return None;
        }
        Some(Plain {
            kind: Bits::<Kind>::get(b[5] as u64),
            header: u16::from_le_bytes([b[0], b[1]]) as usize,
            extents: u16::from_le_bytes([b[2], b[3]]) as usize,
            reply: word & Self::REPLY != 0,
            structure: word & Self::STRUCTURE != 0,
        })
    }

    /// The meta word of a message of this kind with an empty header, so many extents and, where it
    /// has a reply word, that. A short header's length is added to it.
    #[inline]
    pub const fn short(kind: Kind, reply: bool, extents: usize) -> u64 {
        Self::plain(Plain {
            kind,
            header: 0,
            extents,
            reply,
            structure: false,
        })
    }

    /// Words before the header: reply, urgency, sealed memory, rights, extents.
    pub const fn descriptor_words(self) -> usize {
        self.reply as usize
            + self.urgent as usize
            + self.sealed as usize
            + self.rights as usize
            + 2 * self.extents as usize
    }

    /// Bytes that it all takes when it is not spilled.
    pub const fn inline_bytes(self) -> usize {
        8 * self.descriptor_words() + self.header as usize
    }
}

/// Bytes that a slot of `lines` lines holds inline.
pub const fn inline_capacity(lines: usize) -> usize {
    lines * crate::limits::LINE - 16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publishing_keeps_flags_position_and_space() {
        let claimed = SlotState::free(9)
            .with(SlotState::ASLEEP)
            .claimed(9, 200)
            .with(SlotState::PASSED);
        let published = SlotState(claimed.0 + SlotState::PUBLISH);
        assert_eq!(published.phase(), Phase::Published);
        assert_eq!((published.position(), published.space()), (9, 200));
        assert_eq!(published.flags(), SlotState::ASLEEP | SlotState::PASSED);
    }

    #[test]
    fn the_short_way_writes_and_reads_the_same_words() {
        for (kind, reply, structure) in [
            (Kind::Message, false, false),
            (Kind::Message, false, true),
            (Kind::Request, true, false),
            (Kind::ServerDead, true, true),
        ] {
            let meta = Meta {
                header: 48,
                extents: 3,
                reply,
                structure,
                ..Meta::new(kind)
            };
            let plain = Plain {
                kind,
                header: 48,
                extents: 3,
                reply,
                structure,
            };
            assert_eq!(Meta::plain(plain), meta.pack());
            assert_eq!(Meta::read_plain(meta.pack()), Some(plain));
        }
        for meta in [
            Meta {
                rights: 1,
                ..Meta::new(Kind::Message)
            },
            Meta {
                spilled: true,
                ..Meta::new(Kind::Message)
            },
        ] {
            assert_eq!(Meta::read_plain(meta.pack()), None);
        }
    }

    #[test]
    fn a_meta_word_keeps_every_field() {
        let meta = Meta {
            header: 4096,
            extents: 1024,
            rights: 64,
            kind: Kind::ServerDead,
            spilled: true,
            urgent: true,
            reply: true,
            structure: true,
            sealed: true,
        };
        assert_eq!(Meta::unpack(meta.pack()), meta);
    }
}
