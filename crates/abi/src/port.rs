//! Packs a port's status word, the place of its queue, and rights as they travel.

use crate::limits::{
    BANK_SLOTS, MAX_BANKS, MAX_SLOT_LINES, MAX_SLOTS, MIN_SLOTS, PAGE, QUEUE_HEAP,
};

use crate::codec::{bits_of, word};
use crate::codes;

codes! {
    /// What a port's entry is doing.
    pub enum PortPhase: u8 {
        /// Free: a space may make a new port of it.
        Free = 0,
        /// Being bound by its owner, or being made free again by it: no other space touches the entry
        /// or what it names, but the host once that space is dead.
        Binding = 1,
        /// Receives messages.
        Open = 2,
        /// Its receive right travels in a message; messages queue meanwhile.
        Moving = 3,
        /// Being closed: its queue is drained by its owner, or by the host if that is dead.
        Closing = 4,
        /// Closed, but a slot is still claimed by a live sender.
        Lingering = 5,
    }
}

// An unknown phase, which no member writes, reads as lingering.
bits_of! { PortPhase: u8, unknown => Lingering; }

word! {
    /// A port's status word.
    ///
    /// The generation goes up when the port begins to close, so every right made
    /// before is a dead name from that moment.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct PortStatus {
        /// What it is doing.
        pub phase: PortPhase = 0..8,
        /// The space that it is bound to; while it moves, the space that sent it. Of a segment, the
        /// space that keeps it, or that is about to close it, and 0 most of the time.
        pub owner: u8 = 8..16,
        /// Serves requests (a synchronous port) instead of messages.
        pub synchronous: bool = 16..17,
        /// Hands out the most urgent message first.
        pub by_urgency: bool = 17..18,
        /// Gives each receiver its own copy of what is sent.
        pub copied: bool = 18..19,
        /// Takes one client's replies; not named, not listed.
        pub replies: bool = 19..20,
        /// Is a segment: it has no owner, and lives as long as a right on it exists. Its one
        /// message, which no receiver takes, holds the memory.
        pub shared: bool = 20..21,
        /// Of a segment: the space in `owner`, which made it, keeps it to write it again and again.
        /// Meanwhile no space closes it.
        pub kept: bool = 21..22,
        /// Lets its name out: members of the domain on other nodes find it, if a node spans the
        /// domain.
        pub spanned: bool = 22..23,
        /// Which port of this entry it is.
        pub generation: u32 = 32..56,
        /// Its owner receives here on behalf of a port on another node, its *home*. The bits from
        /// here on are 0 for all other ports, so one compare of a send covers them too: a sender
        /// whose handle is older finds them where it finds a dead name.
        pub proxied: bool = 56..57,
        /// Of a proxied port: its home's node is silent.
        pub unreachable: bool = 57..58,
    }
}

/// The bit [`PortStatus::proxied`].
const PROXIED: u64 = 1 << 56;
/// The bit [`PortStatus::unreachable`].
const UNREACHABLE: u64 = 1 << 57;

/// Bits of a port's generation.
pub const GENERATION_BITS: u32 = 24;
/// The largest generation; after it comes 0.
pub const GENERATION_MASK: u32 = (1 << GENERATION_BITS) - 1;

impl PortStatus {
    /// An entry that was never used.
    pub const FRESH: Self = Self {
        phase: PortPhase::Free,
        owner: 0,
        synchronous: false,
        by_urgency: false,
        copied: false,
        replies: false,
        shared: false,
        kept: false,
        spanned: false,
        generation: 0,
        proxied: false,
        unreachable: false,
    };

    /// What [`Self::takes`] says of a proxied port: the same, but that the port is received on
    /// behalf of one on another node, which is not silent.
    #[inline]
    pub const fn takes_elsewhere(generation: u32, synchronous: Option<bool>) -> (u64, u64) {
        let (mask, value) = Self::takes(generation, synchronous);
        (mask, value | PROXIED)
    }

    /// The same of a proxied port that takes messages, its node silent or not: for a question about
    /// what it took before.
    pub const fn takes_flush(generation: u32) -> (u64, u64) {
        let (mask, value) = Self::takes_elsewhere(generation, Some(false));
        (mask & !UNREACHABLE, value)
    }

    /// A mask, and what a status word under it must be, for a port of this generation that
    /// takes messages, and is synchronous, or not, or either. Not of a proxied one.
    #[inline]
    pub const fn takes(generation: u32, synchronous: Option<bool>) -> (u64, u64) {
        // Open and moving differ in the lowest bit alone.
        const _: () = assert!(
            PortPhase::Open as u64 | 1 == PortPhase::Moving as u64
                && PortPhase::Open as u64 & 1 == 0
        );
        let of_generation = (((1 << 32) - 1) << 32, (generation as u64) << 32);
        let (mask, value) = (
            of_generation.0 | 0xfe,
            of_generation.1 | PortPhase::Open as u64,
        );
        match synchronous {
            None => (mask, value),
            Some(synchronous) => (mask | 1 << 16, value | (synchronous as u64) << 16),
        }
    }
}

/// Where a port's queue lies, as a word of its entry: one word, so that no process ever reads the
/// place of one queue and the shape of another.
///
/// ```
/// use portolan_abi::port::QueuePlace;
/// let place = QueuePlace::new(64, 2, 7).unwrap();
/// assert_eq!((place.slots(), place.banks()), (64, 1));
/// assert_eq!(QueuePlace::unpack(place.pack()), Some(place));
/// assert_eq!(QueuePlace::unpack(0), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePlace {
    /// Binary logarithm of the number of slots.
    slots: u8,
    /// Lines of a slot.
    lines: u8,
    /// Its first bank, among those of slots of so many lines.
    bank: u32,
}

impl QueuePlace {
    /// A queue of `slots` slots of `lines` lines each that begins at `bank`; `None` if no queue
    /// has that shape, or lies there.
    pub const fn new(slots: usize, lines: usize, bank: u32) -> Option<Self> {
        let place = Self {
            slots: slots.trailing_zeros().to_le_bytes()[0],
            lines: lines.to_le_bytes()[0],
            bank,
        };
        let shaped = slots.is_power_of_two()
            && slots >= MIN_SLOTS
            && slots <= MAX_SLOTS
            && lines >= 1
            && lines <= MAX_SLOT_LINES;
        if shaped && bank as usize + place.banks() <= MAX_BANKS / lines {
            Some(place)
        } else {
            None
        }
    }

    /// Packs it; never 0.
    pub const fn pack(self) -> u64 {
        self.slots as u64 | (self.lines as u64) << 8 | (self.bank as u64) << 32
    }

    /// Reads it; `None` for an entry that never had a queue, or for what no member wrote.
    pub const fn unpack(word: u64) -> Option<Self> {
        let b = word.to_le_bytes();
        if b[0] as u32 > MAX_SLOTS.trailing_zeros() {
            return None;
        }
        let bank = u32::from_le_bytes([b[4], b[5], b[6], b[7]]);
        Self::new(1 << b[0], b[1] as usize, bank)
    }

    /// Slots of the queue.
    pub const fn slots(self) -> usize {
        1 << self.slots
    }

    /// Lines of a slot.
    pub const fn lines(self) -> usize {
        self.lines as usize
    }

    /// Its first bank.
    pub const fn bank(self) -> u32 {
        self.bank
    }

    /// How many banks it takes.
    pub const fn banks(self) -> usize {
        self.slots().div_ceil(BANK_SLOTS)
    }

    /// Where it begins, in bytes from the start of all queue memory.
    pub const fn offset(self) -> u64 {
        (self.lines as u64 - 1) * QUEUE_HEAP + self.bank as u64 * self.lines as u64 * PAGE as u64
    }
}

/// Of a port that stays in its domain: a message may hold any number of bytes.
pub const ANY_BYTES: u64 = 0;

/// What a port lets pass whose messages go on to another domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// Bytes that a message may take there ([`crate::bridge::bytes_taken`]), at the most.
    pub most: u64,
    /// Its extents go together, as one part of sealed memory.
    pub sealed: bool,
}

impl Leaving {
    /// The word; never [`ANY_BYTES`].
    pub const fn pack(self) -> u64 {
        // No memory has so many bytes that the highest bit is missed.
        let most = if self.most > u64::MAX >> 1 {
            u64::MAX >> 1
        } else {
            self.most
        };
        let word = most << 1 | self.sealed as u64;
        // A limit of nothing is one of a byte, which no part fits into either.
        if most == 0 { word | 1 << 1 } else { word }
    }

    /// Reads a word; `None` for [`ANY_BYTES`].
    pub const fn unpack(word: u64) -> Option<Self> {
        if word == ANY_BYTES {
            return None;
        }
        Some(Self {
            most: word >> 1,
            sealed: word & 1 != 0,
        })
    }
}

/// The name of a port: its entry and which port of that entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortName {
    /// Index of the entry.
    pub index: u16,
    /// Generation of the port.
    pub generation: u32,
}

codes! {
    /// What a right that travels in a message allows.
    pub enum RightKind: u8 {
        /// To send any number of messages.
        Send = 1,
        /// To send one message.
        SendOnce = 2,
        /// To receive.
        Receive = 3,
    }
}

/// A right as it stands in a slot: kind, port, and for a reply the request's tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RightWord {
    /// What it allows.
    pub kind: RightKind,
    /// On which port.
    pub port: PortName,
    /// Which request a send-once right answers, 0 for none.
    pub tag: u32,
}

word! {
    /// The parts of a [`RightWord`], of which no member need have written the kind.
    #[derive(Clone, Copy)]
    struct RightParts {
        pub kind: u8 = 0..4,
        pub tag: u32 = 4..24,
        pub index: u16 = 24..40,
        pub generation: u32 = 40..64,
    }
}

/// Bits of a request's tag.
pub const TAG_BITS: u32 = 20;
/// The largest tag.
pub const TAG_MASK: u32 = (1 << TAG_BITS) - 1;

impl RightWord {
    /// Packs it.
    #[inline]
    pub const fn pack(self) -> u64 {
        let Self { kind, port, tag } = self;
        let parts = RightParts {
            kind: kind as u8,
            tag,
            index: port.index,
            generation: port.generation,
        };
        parts.pack()
    }

    /// Reads it; `None` if no member can have written it.
    #[inline]
    pub const fn unpack(word: u64) -> Option<Self> {
        let parts = RightParts::unpack(word);
        let Some(kind) = RightKind::from_code(parts.kind) else {
            return None;
        };
        let port = PortName {
            index: parts.index,
            generation: parts.generation,
        };
        let tag = parts.tag;
        Some(Self { kind, port, tag })
    }
}

word! {
    /// A space's send rights on one port.
    ///
    /// Each space writes only its own row of these, and replaces the count of a dead port when it
    /// meets a right on the one that the entry holds now.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct SendCount {
        /// How many. A count that has reached [`MOST_SENDS`] stays there.
        pub count: u32 = 0..24,
        /// Of messages with such a right that the space is sending, taking or disposing of: how
        /// many such rights. A number that has reached [`u16::MAX`] stays there.
        pub moving: u16 = 24..40,
        /// Of which port of the entry.
        pub generation: u32 = 40..64,
    }
}

/// The largest count of send rights.
pub const MOST_SENDS: u32 = (1 << 24) - 1;

word! {
    /// The send rights on one port that travel: those in messages that no receiver has taken.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Travelling {
        /// How many. A count that has reached [`MOST_SENDS`] stays there.
        pub count: u32 = 0..24,
        /// A space has died while it moved such a right, so the count may be too large.
        pub doubtful: bool = 24..25,
        /// How often a space has died so, modulo 2^15.
        pub doubts: u16 = 25..40,
        /// Of which port of the entry.
        pub generation: u32 = 40..64,
    }
}

/// The largest number of [`Travelling::doubts`]; after it comes 0.
pub const DOUBTS_MASK: u16 = (1 << 15) - 1;

word! {
    /// A space's count of send-once rights on one port.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct RightCount {
        /// How many.
        pub count: u32 = 0..32,
        /// Of which port of the entry.
        pub generation: u32 = 32..64,
    }
}

/// Events of a port that its receiver is told beside messages.
///
/// A word of events is of one port of the entry: its generation stands above the events, so a
/// process that tells a dead port of something never tells the port that has taken its entry.
pub mod event {
    use super::GENERATION_MASK;

    /// The events in a word.
    pub const ALL: u32 = 0xff;

    /// A word without events, of the port of this generation.
    pub const fn none(generation: u32) -> u32 {
        (generation & GENERATION_MASK) << 8
    }

    /// Whether the word is of the port of this generation.
    pub const fn is_of(word: u32, generation: u32) -> bool {
        word & !ALL == none(generation)
    }

    /// The last send right is gone.
    pub const NO_MORE_SENDERS: u32 = 1;
    /// A watched port has died; the watch table says which.
    pub const DEAD_NAME: u32 = 2;
    /// A request will not be answered, and the port had no room for a word that says so; its
    /// tag stands beside the events.
    pub const UNANSWERED: u32 = 4;
    /// A watched port on another node may be within reach again, or out of it; the watch table says
    /// which.
    pub const REACH: u32 = 8;
    /// Of the port at which a node is asked: ports that it has lent have changed. The words of lent
    /// ports say which.
    pub const LENT: u32 = 16;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_their_parts() {
        let status = PortStatus {
            phase: PortPhase::Moving,
            owner: 3,
            synchronous: true,
            by_urgency: true,
            copied: true,
            replies: true,
            shared: true,
            kept: true,
            spanned: true,
            generation: GENERATION_MASK,
            proxied: true,
            unreachable: true,
        };
        assert_eq!(PortStatus::unpack(status.pack()), status);
        assert_eq!(PortStatus::unpack(0), PortStatus::FRESH);
        let open = PortStatus {
            phase: PortPhase::Open,
            generation: 7,
            owner: 3,
            copied: true,
            ..PortStatus::FRESH
        };
        for (status, generation, synchronous, takes) in [
            (open, 7, None, true),
            (open, 7, Some(false), true),
            (open, 7, Some(true), false),
            (open, 8, None, false),
            (
                PortStatus {
                    phase: PortPhase::Moving,
                    ..open
                },
                7,
                Some(false),
                true,
            ),
            (
                PortStatus {
                    phase: PortPhase::Closing,
                    ..open
                },
                7,
                None,
                false,
            ),
            (
                PortStatus {
                    phase: PortPhase::Binding,
                    ..open
                },
                7,
                None,
                false,
            ),
            (
                PortStatus {
                    phase: PortPhase::Lingering,
                    ..open
                },
                7,
                None,
                false,
            ),
        ] {
            let (mask, value) = PortStatus::takes(generation, synchronous);
            assert_eq!(
                status.pack() & mask == value,
                takes,
                "{status:?} {generation} {synchronous:?}"
            );
        }
        // A proxied port takes nothing from who does not know that it is one, or that it was.
        let proxied = PortStatus {
            proxied: true,
            ..open
        };
        let silent = PortStatus {
            unreachable: true,
            ..proxied
        };
        for (status, here, elsewhere) in [
            (open, true, false),
            (proxied, false, true),
            (silent, false, false),
        ] {
            for synchronous in [None, Some(false)] {
                let (mask, value) = PortStatus::takes(7, synchronous);
                assert_eq!(status.pack() & mask == value, here, "{status:?}");
                let (mask, value) = PortStatus::takes_elsewhere(7, synchronous);
                assert_eq!(status.pack() & mask == value, elsewhere, "{status:?}");
            }
            let (mask, value) = PortStatus::takes_flush(7);
            assert_eq!(status.pack() & mask == value, status.proxied, "{status:?}");
        }
        let right = RightWord {
            kind: RightKind::Receive,
            port: PortName {
                index: 65_535,
                generation: GENERATION_MASK,
            },
            tag: TAG_MASK,
        };
        assert_eq!(RightWord::unpack(right.pack()), Some(right));
        assert_eq!(RightWord::unpack(0), None);
        let sends = SendCount {
            count: MOST_SENDS,
            moving: u16::MAX,
            generation: GENERATION_MASK - 1,
        };
        assert_eq!(SendCount::unpack(sends.pack()), sends);
        let travelling = Travelling {
            count: 3,
            doubtful: true,
            doubts: DOUBTS_MASK - 1,
            generation: GENERATION_MASK - 2,
        };
        assert_eq!(Travelling::unpack(travelling.pack()), travelling);
        let word = event::none(GENERATION_MASK) | event::DEAD_NAME;
        assert!(event::is_of(word, GENERATION_MASK) && !event::is_of(word, 0));
    }
}
