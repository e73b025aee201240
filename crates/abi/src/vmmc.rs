//! Lays out the records that an importer and an exporter exchange, and the two pages that they
//! share.
//!
//! ```text
//! importer -> exporter   Ask                     "show it to me"
//! exporter -> importer   Granted + descriptors, or Denied
//! importer -> exporter   one byte [`WAKE`]       "look at what I posted"
//! ```
//!
//! The descriptors: the export's memory, its status page, the importer's notification page, and
//! the exporter's pidfd; without the first where the kernel copies ([`Way::Kernel`],
//! [`Way::Brokered`]). Neither side trusts the other: every record has one size, is decoded whole
//! or not at all, and is copied before it is checked.
//!
//! The exporter alone writes the **status page** (the kernel enforces that), and all importers of
//! the export read it. The **notification page** is shared by one importer and the exporter. Both
//! can write all of it, so each trusts it no further than the other process.

use crate::delegate::Capability;
pub use crate::denied::Denied;
use crate::hello::{flag, word32, word64};
use crate::limits::PAGE;

/// First bytes of an [`Ask`].
pub const ASK_MAGIC: u32 = 0x4149_5450;
/// First bytes of the answer.
pub const ANSWER_MAGIC: u32 = 0x4145_5450;
/// "Look at what I posted."
pub const WAKE: u8 = b'R';
/// Most descriptors that come with [`Granted`].
pub const DESCRIPTORS: usize = 4;
/// Byte ranges that an export may be restricted to.
pub const MAX_RANGES: usize = 8;

/// What importers may do with an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Reach {
    /// Read it.
    Read = 1,
    /// Write it.
    Write = 2,
    /// Both.
    ReadWrite = 3,
}

impl Reach {
    /// Whether it may be read.
    pub const fn reads(self) -> bool {
        self as u32 & 1 != 0
    }

    /// Whether it may be written.
    pub const fn writes(self) -> bool {
        self as u32 & 2 != 0
    }

    pub(crate) fn from_code(code: u32) -> Option<Self> {
        [Self::Read, Self::Write, Self::ReadWrite]
            .into_iter()
            .find(|reach| *reach as u32 == code)
    }
}

/// How importers reach an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// They map its pages.
    Shared,
    /// The kernel copies for them, into and out of ordinary memory of the exporter's.
    Kernel {
        /// Where the memory is in the exporter.
        address: u64,
        /// Where the exporter has mapped the status page. A process that has opened another one's
        /// memory looks there, and so knows that this is the exporter's memory.
        status_page: u64,
    },
    /// The host of the exporter's domain copies for an importer that shows this capability.
    Brokered(Capability),
}

impl Way {
    const KERNEL: u8 = 1;
    const BROKERED: u8 = 2;

    /// Descriptors that come with it.
    pub const fn descriptors(self) -> usize {
        match self {
            Self::Shared => DESCRIPTORS,
            Self::Kernel { .. } | Self::Brokered(_) => DESCRIPTORS - 1,
        }
    }

    /// Whether `len` bytes can be reached so.
    fn takes(self, len: u64) -> bool {
        match self {
            Self::Shared => len > 0 && len.is_multiple_of(PAGE as u64),
            Self::Kernel {
                address,
                status_page,
            } => {
                let end = address.checked_add(len);
                // Addresses are positions of a file, which are signed.
                let fits = end.is_some_and(|end| end <= i64::MAX.cast_unsigned());
                len > 0 && address > 0 && fits && status_page.is_multiple_of(PAGE as u64)
            }
            Self::Brokered(_) => len > 0 && len <= i64::MAX.cast_unsigned(),
        }
    }
}

/// "Show it to me."
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The format that the importer speaks.
    pub version: u32,
    /// Whether the importer's threads make barriers when the exporter asks for them.
    pub barriers: bool,
    /// Of ordinary memory: the kernel does not let the importer reach it itself.
    pub brokered: bool,
}

impl Ask {
    /// Bytes on the wire.
    pub const BYTES: usize = 16;

    /// The record's bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..4].copy_from_slice(&ASK_MAGIC.to_le_bytes());
        out[4..8].copy_from_slice(&self.version.to_le_bytes());
        out[8] = self.barriers.into();
        out[9] = self.brokered.into();
        out
    }

    /// Reads a record.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != Self::BYTES || word32(bytes, 0)? != ASK_MAGIC {
            return None;
        }
        Some(Self {
            version: word32(bytes, 4)?,
            barriers: flag(bytes, 8)?,
            brokered: flag(bytes, 9)?,
        })
    }
}

/// "Here it is."
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The format that the exporter speaks.
    pub version: u32,
    /// What the importer may do.
    pub reach: Reach,
    /// Whether the importer has to make barriers of its own, since the exporter cannot have
    /// them made.
    pub fences: bool,
    /// How the importer reaches it.
    pub way: Way,
    /// Bytes of the export: whole pages where they are mapped.
    pub len: u64,
    /// First byte and length of each range that the importer is to stay within; none are
    /// as good as one of everything.
    pub ranges: Ranges,
}

/// Byte ranges within an export, each inside of it and not empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    all: [(u64, u64); MAX_RANGES],
    count: usize,
}

impl Ranges {
    /// These ranges (first byte, bytes), of an export of `len` bytes; `None` if they are too
    /// many, or one is empty or not inside.
    pub fn new(ranges: &[(u64, u64)], len: u64) -> Option<Self> {
        let inside = |&(start, bytes): &(u64, u64)| {
            bytes > 0 && start.checked_add(bytes).is_some_and(|end| end <= len)
        };
        let mut all = [(0, 0); MAX_RANGES];
        all.get_mut(..ranges.len())?.copy_from_slice(ranges);
        ranges.iter().all(inside).then_some(Self {
            all,
            count: ranges.len(),
        })
    }

    /// The ranges; none means everything.
    #[inline]
    pub fn as_slice(&self) -> &[(u64, u64)] {
        self.all.get(..self.count).unwrap_or_default()
    }

    /// Whether the bytes from `start` to `end` lie in one of them.
    #[inline]
    pub fn hold(&self, start: u64, end: u64) -> bool {
        let ranges = self.as_slice();
        let holds = |&(first, bytes): &(u64, u64)| start >= first && end <= first + bytes;
        ranges.is_empty() || ranges.iter().any(holds)
    }

    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.count).unwrap_or(0)
    }

    /// The ranges' bytes, without their number.
    pub(crate) fn encode(&self) -> [u8; MAX_RANGES * 16] {
        let mut out = [0; MAX_RANGES * 16];
        for (place, (start, bytes)) in out.chunks_exact_mut(16).zip(self.as_slice()) {
            place[..8].copy_from_slice(&start.to_le_bytes());
            place[8..].copy_from_slice(&bytes.to_le_bytes());
        }
        out
    }

    /// Reads so many ranges, of an export of `len` bytes.
    pub(crate) fn decode(bytes: &[u8], count: u32, len: u64) -> Option<Self> {
        let mut ranges = [(0, 0); MAX_RANGES];
        let ranges = ranges.get_mut(..usize::try_from(count).ok()?)?;
        for (i, range) in ranges.iter_mut().enumerate() {
            *range = (word64(bytes, i * 16)?, word64(bytes, i * 16 + 8)?);
        }
        Self::new(ranges, len)
    }
}

/// What an exporter answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Here it is.
    Granted(Granted),
    /// No, and which format the exporter speaks.
    Denied(Denied, u32),
}

impl Answer {
    /// Bytes on the wire.
    pub const BYTES: usize = Self::WAY + Capability::BYTES;
    /// Behind the ranges: two addresses, or a capability.
    const WAY: usize = 32 + MAX_RANGES * 16;

    /// The record's bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &ANSWER_MAGIC.to_le_bytes());
        match self {
            Self::Granted(granted) => {
                put(4, &granted.version.to_le_bytes());
                put(12, &(granted.reach as u32).to_le_bytes());
                put(16, &[granted.fences.into()]);
                put(20, &granted.ranges.count().to_le_bytes());
                put(24, &granted.len.to_le_bytes());
                match granted.way {
                    Way::Shared => {}
                    Way::Kernel {
                        address,
                        status_page,
                    } => {
                        put(17, &[Way::KERNEL]);
                        put(Self::WAY, &address.to_le_bytes());
                        put(Self::WAY + 8, &status_page.to_le_bytes());
                    }
                    Way::Brokered(capability) => {
                        put(17, &[Way::BROKERED]);
                        put(Self::WAY, &capability.encode());
                    }
                }
                put(32, &granted.ranges.encode());
            }
            Self::Denied(why, version) => {
                put(4, &version.to_le_bytes());
                put(8, &(*why as u32).to_le_bytes());
            }
        }
        out
    }

    /// Reads a record.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != Self::BYTES || word32(bytes, 0)? != ANSWER_MAGIC {
            return None;
        }
        let version = word32(bytes, 4)?;
        match Denied::from_code(word32(bytes, 8)?) {
            None => Self::granted(bytes, version).map(Self::Granted),
            Some(why) => Some(Self::Denied(why, version)),
        }
    }

    fn granted(bytes: &[u8], version: u32) -> Option<Granted> {
        let how = bytes.get(Self::WAY..)?;
        let (address, status_page) = (word64(how, 0)?, word64(how, 8)?);
        let rest = how.get(16..)?.iter().all(|byte| *byte == 0);
        let way = match *bytes.get(17)? {
            0 if rest && (address, status_page) == (0, 0) => Way::Shared,
            Way::KERNEL if rest => Way::Kernel {
                address,
                status_page,
            },
            Way::BROKERED => Way::Brokered(Capability::decode(how)?),
            _ => return None,
        };
        let len = word64(bytes, 24).filter(|len| way.takes(*len))?;
        let ranges = Ranges::decode(bytes.get(32..)?, word32(bytes, 20)?, len)?;
        Some(Granted {
            version,
            reach: Reach::from_code(word32(bytes, 12)?)?,
            fences: flag(bytes, 16)?,
            way,
            len,
            ranges,
        })
    }
}

/// The status page: words that the exporter writes and importers read.
pub mod status_page {
    use super::PAGE;

    /// Bytes of a status page.
    pub const BYTES: usize = PAGE;
    /// Word: how far the export is. Alone in its line, which is written twice in all, so a
    /// writer that looks at it has it in its cache.
    pub const STATE: usize = 0;
    /// Word: not zero while the exporter sleeps and must be woken.
    pub const SLEEPS: usize = 8;
    /// Word: not zero while the exporter wants to be notified at all.
    pub const LISTENS: usize = 9;

    /// [`STATE`]: what is written reaches the exporter.
    pub const OPEN: u64 = 1;
    /// [`STATE`]: the exporter takes its memory back. What is written may not reach it.
    pub const CLOSING: u64 = 2;
    /// [`STATE`]: nothing that is written reaches it.
    pub const CLOSED: u64 = 3;
}

/// The notification page: what one importer tells the exporter it has written.
pub mod notification_page {
    use super::PAGE;

    /// Bytes of a notification page.
    pub const BYTES: usize = PAGE;
    /// Word, the importer's: notes posted so far.
    pub const POSTED: usize = 0;
    /// Word, the importer's: notes that found no room.
    pub const LOST: usize = 1;
    /// Word, the exporter's: notes taken so far.
    pub const TAKEN: usize = 8;
    /// First word of the notes, a ring; the `n`th note is in place `n % NOTES`.
    pub const FIRST: usize = 16;
    /// Words of a note: offset and length.
    pub const NOTE: usize = 2;
    /// Notes that the ring holds.
    pub const NOTES: usize = 128;
    /// Word, the importer's: calls that the kernel copies for, under way now. In the last line.
    pub const UNDER_WAY: usize = 504;
}

/// Words in a line that travels as a whole.
const LINE: usize = 8;

const _: () = {
    // Who writes what lies in lines of its own.
    assert!(status_page::STATE / LINE != status_page::SLEEPS / LINE);
    assert!(status_page::LISTENS < status_page::BYTES / 8);
    assert!(notification_page::POSTED / LINE == notification_page::LOST / LINE);
    assert!(notification_page::POSTED / LINE != notification_page::TAKEN / LINE);
    assert!(
        notification_page::FIRST.is_multiple_of(LINE)
            && notification_page::FIRST / LINE > notification_page::TAKEN / LINE
    );
    assert!(
        notification_page::FIRST + notification_page::NOTE * notification_page::NOTES
            <= notification_page::UNDER_WAY
    );
    assert!(
        notification_page::UNDER_WAY.is_multiple_of(LINE)
            && notification_page::UNDER_WAY < notification_page::BYTES / 8
    );
    // A count that wraps goes on at the same place.
    assert!(notification_page::NOTES.is_power_of_two());
};

#[cfg(test)]
mod tests {
    use super::*;

    fn granted() -> Granted {
        Granted {
            version: 7,
            reach: Reach::Write,
            fences: true,
            way: Way::Shared,
            len: 8192,
            ranges: Ranges::new(&[(0, 1), (100, 8092)], 8192).unwrap(),
        }
    }

    #[test]
    fn records_survive_the_wire() {
        for (barriers, brokered) in [(false, false), (true, false), (false, true)] {
            let ask = Ask {
                version: 3,
                barriers,
                brokered,
            };
            assert_eq!(Ask::decode(&ask.encode()), Some(ask));
        }
        let none = Granted {
            ranges: Ranges::default(),
            reach: Reach::ReadWrite,
            ..granted()
        };
        let ordinary = Granted {
            way: Way::Kernel {
                address: 4097,
                status_page: 8192,
            },
            len: 3,
            ranges: Ranges::default(),
            ..granted()
        };
        let capability = Capability {
            number: [1; 16],
            token: [2; 16],
        };
        let brokered = Granted {
            way: Way::Brokered(capability),
            ..ordinary
        };
        for answer in [
            Answer::Granted(granted()),
            Answer::Granted(none),
            Answer::Granted(ordinary),
            Answer::Granted(brokered),
            Answer::Denied(Denied::NoCopyBroker, 9),
            Answer::Denied(Denied::Version, 9),
            Answer::Denied(Denied::Garbled, 9),
            Answer::Denied(Denied::Full, 9),
            Answer::Denied(Denied::Over, 9),
            Answer::Denied(Denied::Resources, 9),
        ] {
            assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        }
    }

    #[test]
    fn what_is_no_record_is_refused() {
        let good = Answer::Granted(granted()).encode();
        // Magic, reach, flag, way, count of ranges, length, a range that is empty or too long,
        // and an address where there is none.
        for (at, byte) in [
            (0, 0),
            (12, 4),
            (12, 0),
            (16, 2),
            (17, 3),
            // Of ordinary memory that lies nowhere.
            (17, 1),
            (160, 1),
            (168, 1),
            (176, 1),
            (20, 9),
            (24, 1),
            (40, 0),
            (63, 1),
        ] {
            let mut bad = good;
            bad[at] = byte;
            assert_eq!(Answer::decode(&bad), None, "byte {at}");
        }
        let mut empty = good;
        empty[24..32].fill(0);
        assert_eq!(Answer::decode(&empty), None);
        assert_eq!(Answer::decode(&good[1..]), None);
        let ask = Ask {
            version: 1,
            barriers: true,
            brokered: false,
        };
        for at in [8, 9] {
            let mut bad = ask.encode();
            bad[at] = 2;
            assert_eq!(Ask::decode(&bad), None);
        }
        assert_eq!(Ask::decode(&ask.encode()[..15]), None);
    }

    #[test]
    fn ordinary_memory_lies_where_memory_can() {
        let last = i64::MAX.cast_unsigned();
        for (address, len, fine) in [
            (1, 1, true),
            (last - 1, 1, true),
            (0, 1, false),
            (1, 0, false),
            (last, 1, false),
            (u64::MAX, 2, false),
            (2, u64::MAX, false),
        ] {
            let way = Way::Kernel {
                address,
                status_page: 0,
            };
            assert_eq!(way.takes(len), fine, "{len} at {address}");
        }
        assert!(
            !Way::Kernel {
                address: 1,
                status_page: 1
            }
            .takes(1)
        );
    }

    #[test]
    fn ranges_lie_inside() {
        assert_eq!(Ranges::new(&[], 1), Some(Ranges::default()));
        assert_eq!(
            Ranges::new(&[(0, 1); MAX_RANGES], 1).map(|r| r.count),
            Some(MAX_RANGES)
        );
        assert_eq!(Ranges::new(&[(0, 1); MAX_RANGES + 1], 1), None);
        for bad in [(0, 0), (0, 2), (1, 1), (u64::MAX, 2), (u64::MAX, u64::MAX)] {
            assert_eq!(Ranges::new(&[bad], 1), None, "{bad:?}");
        }
    }
}
