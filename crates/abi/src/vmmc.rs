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

use crate::codec::{DecodeError, Field, Reader, Record, Writer};
use crate::delegate::Capability;
pub use crate::denied::Denied;
use crate::handshake::{self, Grant};
use crate::limits::PAGE;
use crate::{codes, record, record_methods};

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

codes! {
    /// What importers may do with an export.
    pub enum Reach: u32 {
        /// Read it.
        Read = 1,
        /// Write it.
        Write = 2,
        /// Both.
        ReadWrite = 3,
    }
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

record! {
    /// "Show it to me."
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Ask {
        opens ASK_MAGIC,
        /// Whether the importer's threads make barriers when the exporter asks for them.
        pub barriers: bool,
        /// Of ordinary memory: the kernel does not let the importer reach it itself.
        pub brokered: bool,
        _: 6,
    }
}

impl handshake::Ask for Ask {
    type Granted = Granted;
    const DESCRIPTORS: usize = DESCRIPTORS;

    fn descriptors(granted: &Granted) -> usize {
        granted.way.descriptors()
    }
}

/// "Here it is."
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
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

    /// So many of these places; `None` if one of the others is not empty.
    fn of(all: [(u64, u64); MAX_RANGES], count: usize) -> Option<Self> {
        let empty = all.get(count..)?.iter().all(|place| *place == (0, 0));
        empty.then_some(Self { all, count })
    }

    /// Whether they can be those of an export of `len` bytes.
    pub(crate) fn fit(&self, len: u64) -> bool {
        Self::new(self.as_slice(), len).is_some()
    }
}

/// Their number, and all places; whose export they are of is not said here.
impl Field for Ranges {
    const BYTES: usize = 4 + MAX_RANGES * 16;

    fn put(&self, to: &mut Writer<'_>) {
        self.count.put(to);
        self.all.put(to);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (count, all) = (usize::get(from)?, Field::get(from)?);
        Self::of(all, count).ok_or(from.invalid())
    }
}

codes! {
    /// A [`Way`] without what belongs to it.
    enum WayCode: u8 {
        Shared = 0,
        Kernel = 1,
        Brokered = 2,
    }
}

record! {
    /// [`Granted`] as it is on the wire: the number of ranges does not stand beside them, nor the
    /// way beside what belongs to it.
    struct Parts {
        opens ANSWER_MAGIC,
        _: 4,
        pub reach: Reach,
        pub fences: bool,
        pub way: WayCode,
        _: 2,
        pub count: usize,
        pub len: u64,
        pub ranges: [(u64, u64); MAX_RANGES],
        pub how: [u8; 32],
    }
}

record! {
    /// What belongs to [`Way::Kernel`].
    struct Addresses {
        pub address: u64,
        pub status_page: u64,
        _: 16,
    }
}

/// What an exporter answers.
pub type Answer = handshake::Answer<Granted>;

impl Grant for Granted {
    const MAGIC: u32 = ANSWER_MAGIC;
    type Why = Denied;
}

record_methods! { pub Granted }

impl Field for Granted {
    const BYTES: usize = Parts::BYTES;

    fn put(&self, to: &mut Writer<'_>) {
        let (way, how) = match self.way {
            Way::Shared => (WayCode::Shared, [0; 32]),
            Way::Kernel {
                address,
                status_page,
            } => {
                let addresses = Addresses {
                    address,
                    status_page,
                };
                (WayCode::Kernel, addresses.encode())
            }
            Way::Brokered(capability) => (WayCode::Brokered, capability.encode()),
        };
        let parts = Parts {
            reach: self.reach,
            fences: self.fences,
            way,
            count: self.ranges.count,
            len: self.len,
            ranges: self.ranges.all,
            how,
        };
        parts.put(to);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let parts = Parts::get(from)?;
        let way = match parts.way {
            WayCode::Shared if parts.how == [0; 32] => Some(Way::Shared),
            WayCode::Shared => None,
            WayCode::Kernel => Some(Addresses::decode(&parts.how)?.into()),
            WayCode::Brokered => Some(Way::Brokered(Capability::decode(&parts.how)?)),
        };
        let ranges = Ranges::of(parts.ranges, parts.count).filter(|r| r.fit(parts.len));
        let record = Self::NAME;
        let wrong = DecodeError::Check { record };
        Ok(Self {
            reach: parts.reach,
            fences: parts.fences,
            way: way.filter(|way| way.takes(parts.len)).ok_or(wrong)?,
            len: parts.len,
            ranges: ranges.ok_or(wrong)?,
        })
    }
}

impl From<Addresses> for Way {
    fn from(addresses: Addresses) -> Self {
        let Addresses {
            address,
            status_page,
        } = addresses;
        Self::Kernel {
            address,
            status_page,
        }
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
            reach: Reach::Write,
            fences: true,
            way: Way::Shared,
            len: 8192,
            ranges: Ranges::new(&[(0, 1), (100, 8092)], 8192).unwrap(),
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
            let mut bad = good.clone();
            bad[at] = byte;
            assert!(Answer::decode(&bad).is_err(), "byte {at}");
        }
        let mut empty = good.clone();
        empty[24..32].fill(0);
        assert!(Answer::decode(&empty).is_err());
        assert!(Answer::decode(&good[1..]).is_err());
        let ask = Ask {
            barriers: true,
            brokered: false,
        };
        for at in [8, 9] {
            let mut bad = ask.encode();
            bad[at] = 2;
            assert!(Ask::decode(&bad).is_err());
        }
        assert!(Ask::decode(&ask.encode()[..15]).is_err());
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
