//! Lays out the records by which an exporter of ordinary memory delegates to the domain's host, and
//! by which an importer has the host copy.
//!
//! ```text
//! exporter -> host      Delegate n: Delegation + mem, maps  "copy to and from this memory of mine"
//! exporter -> host      Offer n                             "for importers with this capability"
//! exporter -> importer  Capability                          in its grant
//! importer -> host      ConnectRequest                      shows the capability
//! host     -> importer  Ready + staging memory              "put your bytes there"
//! importer -> host      Request                             any number of times
//! host     -> importer  Reply
//! ```
//!
//! The host trusts an exporter about its own memory, and does not trust an importer.

use crate::connect::OfferName;
use crate::limits::PAGE;
use crate::vmmc::{Ranges, Reach};
use crate::{codes, record, tagged};

/// First bytes of a [`Ready`].
const READY_MAGIC: u32 = 0x444d_5450;
/// First bytes of a [`Request`].
const REQUEST_MAGIC: u32 = 0x514d_5450;
/// First bytes of a [`Reply`].
const REPLY_MAGIC: u32 = 0x524d_5450;

/// Descriptors that come with an exporter's `Delegate`: its `mem` and its `maps`.
pub const DELEGATED: usize = 2;
/// Bytes of one part of the staging memory: the most that one request moves.
pub const PART: usize = 128 << 10;
/// Parts of the staging memory: one is filled while another one is copied.
pub const PARTS: usize = 2;
/// Bytes of the staging memory of one importer.
pub const STAGING: usize = PART * PARTS;

const _: () = assert!(PART.is_multiple_of(PAGE));

record! {
    /// An importer gets this from the exporter and shows it to the host.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub struct Capability {
        /// Which export: a random number, which no process can guess.
        pub number: [u8; 16],
        /// The secret that the importer must know.
        pub token: [u8; 16],
    }
}

impl std::fmt::Debug for Capability {
    /// Without the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Capability")
    }
}

impl Capability {
    /// The name under which the host knows the export.
    ///
    /// ```
    /// # use portolan_abi::delegate::Capability;
    /// let capability = Capability { number: [0xab; 16], token: [0; 16] };
    /// assert_eq!(capability.name().unwrap().as_str(), "ab".repeat(16));
    /// ```
    pub fn name(&self) -> Option<OfferName> {
        let number = u128::from_be_bytes(self.number);
        OfferName::new(&format!("{number:032x}"))
    }
}

record! {
    /// The exporter's memory that the host may copy for importers, and what they may do with it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Delegation {
        /// Where it is in the exporter.
        pub address: u64,
        /// Bytes.
        pub len: u64,
        /// Whether it may be read, written.
        pub reach: Reach,
        /// Within which parts; none means everything.
        pub ranges: Ranges,
    }
    check |it| it.can_be()
}

impl Delegation {
    /// Whether memory can lie there.
    fn can_be(&self) -> bool {
        let Self { address, len, .. } = *self;
        // Addresses are positions of a file, which are signed.
        let end = address.checked_add(len);
        let fits = end.is_some_and(|end| end <= i64::MAX.cast_unsigned());
        fits && len > 0 && address > 0 && self.ranges.fit(len)
    }

    /// Where `len` bytes at `offset` lie in the exporter, if an importer may have them `done`.
    ///
    /// ```
    /// # use portolan_abi::delegate::{Act, Delegation};
    /// # use portolan_abi::vmmc::{Ranges, Reach};
    /// let ranges = Ranges::new(&[(10, 5)], 100).unwrap();
    /// let delegation = Delegation { address: 1000, len: 100, reach: Reach::Write, ranges };
    /// assert_eq!(delegation.place(Act::Write, 11, 4), Some(1011));
    /// assert_eq!(delegation.place(Act::Write, 11, 5), None);
    /// assert_eq!(delegation.place(Act::Read, 11, 4), None);
    /// ```
    pub fn place(&self, act: Act, offset: u64, len: u64) -> Option<u64> {
        let may = match act {
            Act::Write => self.reach.writes(),
            Act::Read => self.reach.reads(),
        };
        let end = offset.checked_add(len)?;
        let inside = may && end <= self.len && self.ranges.hold(offset, end);
        inside.then_some(())?;
        self.address.checked_add(offset)
    }
}

record! {
    /// "From here on put your bytes into this memory": comes with its descriptor.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Ready {
        opens READY_MAGIC,
    }
}

codes! {
    /// What is to be done with the exporter's memory.
    pub enum Act: u32 {
        /// Copy from the staging memory into it.
        Write = 1,
        /// Copy from it into the staging memory.
        Read = 2,
    }
}

record! {
    /// "Copy these."
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Request {
        magic REQUEST_MAGIC,
        /// The importer's number for it, which comes back.
        pub number: u32,
        /// What to do.
        pub act: Act,
        /// Which part of the staging memory has the bytes, or is to have them, from its first byte
        /// on.
        pub part: u32,
        /// Where in the export.
        pub offset: u64,
        /// Bytes; at most [`PART`].
        pub len: u32,
        _: 4,
    }
    // They lie within a part of the staging memory.
    check |it| (it.part as usize) < PARTS && it.len as usize <= PART
}

tagged! {
    /// What became of a request.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Outcome: u32 {
        /// Everything was copied.
        Done = 0,
        /// It is not within what the exporter permits; nothing was copied.
        Refused = 1,
        /// The exporter may not do that itself there; nothing was copied.
        Protected = 2,
        /// The exporter has nothing mapped at this offset of the export.
        Unmapped = 3 {
            _: 4,
            /// The offset.
            offset: u64,
        },
        /// The exporter is dead, or runs another program.
        Gone = 4,
        /// The system's error number.
        Failed = 5 {
            _: 4,
            /// The number.
            errno: i32,
        },
        /// The host lays its role down, and has not begun with it: ask the next one.
        Away = 6,
    }
}

record! {
    /// "That is what became of it."
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Reply {
        magic REPLY_MAGIC,
        /// The importer's number of the request.
        pub number: u32,
        /// What became of it.
        pub outcome: Outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delegation() -> Delegation {
        Delegation {
            address: 4097,
            len: 100,
            reach: Reach::ReadWrite,
            ranges: Ranges::new(&[(0, 10), (50, 50)], 100).unwrap(),
        }
    }

    fn request() -> Request {
        Request {
            number: 7,
            act: Act::Write,
            offset: u64::MAX,
            len: 128 << 10,
            part: 1,
        }
    }

    #[test]
    fn a_capability_is_not_printed() {
        let capability = Capability {
            number: [3; 16],
            token: [4; 16],
        };
        assert!(!format!("{capability:?}").contains('4'));
    }

    #[test]
    fn what_is_no_record_is_refused() {
        let good = request().encode();
        // Magic, act, part, length and padding.
        for (at, byte) in [(0, 0), (8, 3), (8, 0), (12, 2), (24, 1), (31, 1)] {
            let mut bad = good;
            bad[at] = byte;
            assert!(Request::decode(&bad).is_err(), "byte {at}");
        }
        assert!(Request::decode(&good[1..]).is_err());
        let good = delegation().encode();
        // Reach, ranges, a length that is none, and one that ends before the ranges do.
        for (at, byte) in [(16, 0), (20, 9), (8, 0), (8, 99)] {
            let mut bad = good;
            bad[at] = byte;
            assert!(Delegation::decode(&bad).is_err(), "byte {at}");
        }
        let mut nowhere = good;
        nowhere[..8].fill(0);
        assert!(Delegation::decode(&nowhere).is_err());
        nowhere[..8].fill(0xff);
        assert!(Delegation::decode(&nowhere).is_err());
        let mut bad = Reply {
            number: 0,
            outcome: Outcome::Done,
        }
        .encode();
        bad[16] = 1;
        assert!(Reply::decode(&bad).is_err());
        assert!(Ready::decode(&bad).is_err());
        assert!(Capability::decode(&bad[..20]).is_err());
    }

    #[test]
    fn what_an_importer_may_have() {
        let delegation = delegation();
        for (act, offset, len, place) in [
            (Act::Write, 0, 10, Some(4097)),
            (Act::Read, 50, 50, Some(4147)),
            (Act::Write, 99, 1, Some(4196)),
            (Act::Write, 5, 6, None),
            (Act::Write, 9, 42, None),
            (Act::Write, 50, 51, None),
            (Act::Write, 100, 1, None),
            (Act::Write, u64::MAX, 1, None),
            (Act::Write, u64::MAX, u64::MAX, None),
        ] {
            assert_eq!(
                delegation.place(act, offset, len),
                place,
                "{act:?} {len} at {offset}"
            );
        }
        for (reach, act) in [(Reach::Read, Act::Write), (Reach::Write, Act::Read)] {
            let one_way = Delegation {
                reach,
                ..delegation
            };
            assert_eq!(one_way.place(act, 0, 1), None);
        }
    }
}
