//! Packs the trace switch of a space's entry, and the words of an event.
//!
//! ```text
//! switch:  63           32 31    24 23  20 19       0
//!          [ incarnation  ][ tracer ][ ring ][ kinds  ]     0: nobody traces
//!
//! state:   63              17 16          1   0
//!          [ position + 1    ][ incarnation ][busy]         0: never written
//! ```
//!
//! An event takes one line of its space's ring: the state word, then seven words.

use crate::codec::word;
use crate::codes;

/// Events that a ring may have: its binary logarithm at the least.
pub const MIN_RING: u8 = 4;
/// And at the most.
pub const MAX_RING: u8 = 16;
/// Words of an event besides its state.
pub const EVENT_WORDS: usize = 7;

codes! {
    /// What an event tells of.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum EventKind: u8 {
        /// A message was sent.
        Send = 0,
        /// A message was taken.
        Receive = 1,
        /// A message's pages were opened, or mapped, in one go.
        Map = 2,
        /// A first touch opened pages of a guarded extent.
        Fault = 3,
        /// A sender woke a receiver.
        Wake = 4,
        /// A receiver slept.
        Sleep = 5,
        /// The host learned that a space has died.
        Death = 6,
        /// The host returned what a space had held.
        Reclaim = 7,
        /// A message was written to a channel.
        Write = 8,
        /// A message was read from a channel.
        Read = 9,
        /// A sample was published.
        Publish = 10,
        /// A sample was taken.
        Take = 11,
        /// A client called, and has its answer.
        Call = 12,
        /// A server ran a call.
        Answer = 13,
        /// An address was signalled.
        Signal = 14,
        /// A signal came to its handlers.
        Deliver = 15,
        /// Imported memory was written.
        Update = 16,
        /// Notifications of an export's importers were taken.
        Notify = 17,
        /// A message went to another domain.
        Depart = 18,
        /// A message came from another domain.
        Arrive = 19,
    }
}

/// Kinds that a switch has bits for.
const KINDS: u32 = 20;
const _: () = assert!(EventKind::ALL.len() == KINDS as usize);

impl EventKind {
    /// Its bit in a switch.
    #[inline]
    pub const fn bit(self) -> u32 {
        1 << self as u8
    }

    /// What it is called.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Receive => "receive",
            Self::Map => "map",
            Self::Fault => "fault",
            Self::Wake => "wake",
            Self::Sleep => "sleep",
            Self::Death => "death",
            Self::Reclaim => "reclaim",
            Self::Write => "write",
            Self::Read => "read",
            Self::Publish => "publish",
            Self::Take => "take",
            Self::Call => "call",
            Self::Answer => "answer",
            Self::Signal => "signal",
            Self::Deliver => "deliver",
            Self::Update => "update",
            Self::Notify => "notify",
            Self::Depart => "depart",
            Self::Arrive => "arrive",
        }
    }
}

/// Who traces, and what.
///
/// ```
/// use portolan_abi::trace::{EventKind, TraceSwitch};
/// let switch = TraceSwitch { kinds: EventKind::Send.bit(), tracer: 3, ring: 13, incarnation: 7 };
/// assert_eq!(TraceSwitch::unpack(switch.pack()), Some(switch));
/// assert_eq!(TraceSwitch::unpack(0), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceSwitch {
    /// [`EventKind::bit`]s of what is recorded; higher ones are not kept.
    pub kinds: u32,
    /// The space that traces.
    pub tracer: u8,
    /// Binary logarithm of the number of events in a ring.
    pub ring: u8,
    /// The tracing space's incarnation.
    pub incarnation: u32,
}

impl TraceSwitch {
    /// Packs it. Never 0, for the tracer is somebody.
    pub const fn pack(self) -> u64 {
        let ring = self.ring.saturating_sub(MIN_RING);
        (self.kinds & ((1 << KINDS) - 1)) as u64
            | ((ring & 0xf) as u64) << KINDS
            | (self.tracer as u64) << 24
            | (self.incarnation as u64) << 32
    }

    /// Reads it; `None` if nobody traces. A ring of a size that no member asks for reads
    /// as the nearest one.
    pub const fn unpack(word: u64) -> Option<Self> {
        if word == 0 {
            return None;
        }
        let b = word.to_le_bytes();
        let ring = MIN_RING + (b[2] >> 4);
        Some(Self {
            kinds: u32::from_le_bytes([b[0], b[1], b[2] & 0xf, 0]),
            tracer: b[3],
            ring: if ring > MAX_RING { MAX_RING } else { ring },
            incarnation: u32::from_le_bytes([b[4], b[5], b[6], b[7]]),
        })
    }
}

word! {
    /// The state word of an event's line.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct EventState {
        /// It is being written.
        pub busy: bool = 0..1,
        /// Lower half of the incarnation of the space that wrote it.
        pub incarnation: u16 = 1..17,
        /// The event's number in its ring, plus one; 0 if there is none.
        pub number: u64 = 17..64,
    }
}

word! {
    /// The word of an event that says what it tells of.
    #[derive(Clone, Copy)]
    struct Subject {
        pub kind: u8 = 0..8,
        pub space: u8 = 8..16,
        pub port: u16 = 16..32,
        pub thread: u32 = 32..64,
    }
}

/// The words of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventWords {
    /// When it began, nanoseconds of the monotonic clock.
    pub began: u64,
    /// How long it took, nanoseconds.
    pub took: u64,
    /// What it tells of.
    pub kind: EventKind,
    /// The space that it is about: the dead one. 0 for none.
    pub space: u8,
    /// The port.
    pub port: u16,
    /// The thread.
    pub thread: u32,
    /// A message's position; a call's number; the offset of a signalled or updated byte; a page
    /// of the pool; an incarnation.
    pub position: u64,
    /// Bytes.
    pub bytes: u64,
    /// The process that it is about, 0 for none.
    pub process: u32,
}

impl EventWords {
    /// Packs it.
    pub const fn pack(self) -> [u64; EVENT_WORDS] {
        let subject = Subject {
            kind: self.kind as u8,
            space: self.space,
            port: self.port,
            thread: self.thread,
        };
        [
            self.began,
            self.took,
            subject.pack(),
            self.position,
            self.bytes,
            self.process as u64,
            0,
        ]
    }

    /// Reads it; `None` if its kind is one that we do not know.
    pub fn unpack(words: [u64; EVENT_WORDS]) -> Option<Self> {
        let subject = Subject::unpack(words[2]);
        let [p0, p1, p2, p3, ..] = words[5].to_le_bytes();
        Some(Self {
            began: words[0],
            took: words[1],
            kind: EventKind::from_code(subject.kind)?,
            space: subject.space,
            port: subject.port,
            thread: subject.thread,
            position: words[3],
            bytes: words[4],
            process: u32::from_le_bytes([p0, p1, p2, p3]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_their_parts() {
        for kind in EventKind::ALL {
            let event = EventWords {
                began: u64::MAX,
                took: 1,
                kind,
                space: 255,
                port: 32_767,
                thread: u32::MAX,
                position: (1 << 48) - 1,
                bytes: u64::MAX,
                process: u32::MAX - 1,
            };
            assert_eq!(EventWords::unpack(event.pack()), Some(event));
        }
        let mut unknown = [0; EVENT_WORDS];
        unknown[2] = EventKind::ALL.len() as u64;
        assert_eq!(EventWords::unpack(unknown), None);
        let state = EventState {
            number: (1 << 47) - 1,
            incarnation: u16::MAX,
            busy: true,
        };
        assert_eq!(EventState::unpack(state.pack()), state);
        assert_eq!(EventState::unpack(0).number, 0);
    }

    #[test]
    fn a_garbled_switch_names_a_ring_that_exists() {
        for ring in 0..=0xf_u64 {
            let word = 1 | ring << KINDS | 1 << 24;
            let unpacked = TraceSwitch::unpack(word).unwrap();
            assert!(
                (MIN_RING..=MAX_RING).contains(&unpacked.ring),
                "{unpacked:?}"
            );
        }
        for ring in MIN_RING..=MAX_RING {
            let switch = TraceSwitch {
                kinds: (1 << KINDS) - 1,
                tracer: 255,
                ring,
                incarnation: u32::MAX,
            };
            assert_eq!(TraceSwitch::unpack(switch.pack()), Some(switch));
        }
    }

    #[test]
    fn every_kind_has_its_own_bit_and_name() {
        let bits = EventKind::ALL.iter().fold(0, |all, k| all | k.bit());
        assert_eq!(bits, (1 << KINDS) - 1);
        let names: std::collections::BTreeSet<_> =
            EventKind::ALL.iter().map(|k| k.name()).collect();
        assert_eq!(names.len(), EventKind::ALL.len());
    }
}
