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
use crate::hello::{word32, word64};
use crate::limits::PAGE;
use crate::vmmc::{MAX_RANGES, Ranges, Reach};

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

/// An importer gets this from the exporter and shows it to the host.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Capability {
    /// Which export: a random number, which no process can guess.
    pub number: [u8; 16],
    /// The secret that the importer must know.
    pub token: [u8; 16],
}

impl std::fmt::Debug for Capability {
    /// Without the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Capability")
    }
}

impl Capability {
    /// Bytes on the wire.
    pub const BYTES: usize = 32;

    /// The record's bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..16].copy_from_slice(&self.number);
        out[16..].copy_from_slice(&self.token);
        out
    }

    /// Reads a record.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (number, token) = bytes.split_at_checked(16)?;
        Some(Self {
            number: number.try_into().ok()?,
            token: token.try_into().ok()?,
        })
    }

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

impl Delegation {
    /// Bytes on the wire.
    pub const BYTES: usize = 24 + MAX_RANGES * 16;

    /// The record's bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..8].copy_from_slice(&self.address.to_le_bytes());
        out[8..16].copy_from_slice(&self.len.to_le_bytes());
        out[16..20].copy_from_slice(&(self.reach as u32).to_le_bytes());
        out[20..24].copy_from_slice(&self.ranges.count().to_le_bytes());
        out[24..].copy_from_slice(&self.ranges.encode());
        out
    }

    /// Reads a record, if memory can lie there.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (address, len) = (word64(bytes, 0)?, word64(bytes, 8)?);
        let end = address.checked_add(len)?;
        // Addresses are positions of a file, which are signed.
        let fits = len > 0 && address > 0 && end <= i64::MAX.cast_unsigned();
        let whole = fits && bytes.len() == Self::BYTES;
        whole.then_some(())?;
        Some(Self {
            address,
            len,
            reach: Reach::from_code(word32(bytes, 16)?)?,
            ranges: Ranges::decode(bytes.get(24..)?, word32(bytes, 20)?, len)?,
        })
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

/// "From here on put your bytes into this memory": comes with its descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The format that the host speaks.
    pub version: u32,
}

impl Ready {
    /// Bytes on the wire.
    pub const BYTES: usize = 8;

    /// The record's bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..4].copy_from_slice(&READY_MAGIC.to_le_bytes());
        out[4..].copy_from_slice(&self.version.to_le_bytes());
        out
    }

    /// Reads a record.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let fine = bytes.len() == Self::BYTES && word32(bytes, 0)? == READY_MAGIC;
        fine.then(|| word32(bytes, 4))?
            .map(|version| Self { version })
    }
}

/// What is to be done with the exporter's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Act {
    /// Copy from the staging memory into it.
    Write = 1,
    /// Copy from it into the staging memory.
    Read = 2,
}

/// "Copy these."
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The importer's number for it, which comes back.
    pub number: u32,
    /// What to do.
    pub act: Act,
    /// Where in the export.
    pub offset: u64,
    /// Bytes; at most [`PART`].
    pub len: u32,
    /// Which part of the staging memory has them, or is to have them, from its first byte on.
    pub part: u32,
}

impl Request {
    /// Bytes on the wire.
    pub const BYTES: usize = 32;

    /// The record's bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..4].copy_from_slice(&REQUEST_MAGIC.to_le_bytes());
        out[4..8].copy_from_slice(&self.number.to_le_bytes());
        out[8..12].copy_from_slice(&(self.act as u32).to_le_bytes());
        out[12..16].copy_from_slice(&self.part.to_le_bytes());
        out[16..24].copy_from_slice(&self.offset.to_le_bytes());
        out[24..28].copy_from_slice(&self.len.to_le_bytes());
        out
    }

    /// Reads a record, if its bytes lie within a part of the staging memory.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != Self::BYTES || word32(bytes, 0)? != REQUEST_MAGIC {
            return None;
        }
        let act = match word32(bytes, 8)? {
            1 => Act::Write,
            2 => Act::Read,
            _ => return None,
        };
        let (part, len) = (word32(bytes, 12)?, word32(bytes, 24)?);
        let fits = (part as usize) < PARTS && (len as usize) <= PART && word32(bytes, 28)? == 0;
        fits.then_some(())?;
        Some(Self {
            number: word32(bytes, 4)?,
            act,
            offset: word64(bytes, 16)?,
            len,
            part,
        })
    }
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything was copied.
    Done,
    /// It is not within what the exporter permits; nothing was copied.
    Refused,
    /// The exporter may not do that itself there; nothing was copied.
    Protected,
    /// The exporter has nothing mapped at this offset of the export.
    Unmapped(u64),
    /// The exporter is dead, or runs another program.
    Gone,
    /// The system's error number.
    Failed(i32),
    /// The host lays its role down, and has not begun with it: ask the next one.
    Away,
}

/// "That is what became of it."
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The importer's number of the request.
    pub number: u32,
    /// What became of it.
    pub outcome: Outcome,
}

impl Reply {
    /// Bytes on the wire.
    pub const BYTES: usize = 24;

    /// The record's bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let (code, value): (u32, u64) = match self.outcome {
            Outcome::Done => (0, 0),
            Outcome::Refused => (1, 0),
            Outcome::Protected => (2, 0),
            Outcome::Unmapped(offset) => (3, offset),
            Outcome::Gone => (4, 0),
            Outcome::Failed(errno) => (5, errno.cast_unsigned().into()),
            Outcome::Away => (6, 0),
        };
        let mut out = [0; Self::BYTES];
        out[..4].copy_from_slice(&REPLY_MAGIC.to_le_bytes());
        out[4..8].copy_from_slice(&self.number.to_le_bytes());
        out[8..12].copy_from_slice(&code.to_le_bytes());
        out[16..].copy_from_slice(&value.to_le_bytes());
        out
    }

    /// Reads a record.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != Self::BYTES || word32(bytes, 0)? != REPLY_MAGIC {
            return None;
        }
        let outcome = match (word32(bytes, 8)?, word64(bytes, 16)?) {
            (0, 0) => Outcome::Done,
            (1, 0) => Outcome::Refused,
            (2, 0) => Outcome::Protected,
            (3, offset) => Outcome::Unmapped(offset),
            (4, 0) => Outcome::Gone,
            (5, errno) => Outcome::Failed(u32::try_from(errno).ok()?.cast_signed()),
            (6, 0) => Outcome::Away,
            _ => return None,
        };
        Some(Self {
            number: word32(bytes, 4)?,
            outcome,
        })
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
    fn records_survive_the_wire() {
        let capability = Capability {
            number: [3; 16],
            token: [4; 16],
        };
        assert_eq!(Capability::decode(&capability.encode()), Some(capability));
        assert!(!format!("{capability:?}").contains('4'));
        assert_eq!(
            Delegation::decode(&delegation().encode()),
            Some(delegation())
        );
        let ready = Ready { version: 9 };
        assert_eq!(Ready::decode(&ready.encode()), Some(ready));
        for act in [Act::Write, Act::Read] {
            let request = Request { act, ..request() };
            assert_eq!(Request::decode(&request.encode()), Some(request));
        }
        for outcome in [
            Outcome::Done,
            Outcome::Refused,
            Outcome::Protected,
            Outcome::Unmapped(5),
            Outcome::Gone,
            Outcome::Failed(12),
            Outcome::Failed(-1),
            Outcome::Away,
        ] {
            let reply = Reply { number: 1, outcome };
            assert_eq!(Reply::decode(&reply.encode()), Some(reply));
        }
    }

    #[test]
    fn what_is_no_record_is_refused() {
        let good = request().encode();
        // Magic, act, part, length and padding.
        for (at, byte) in [(0, 0), (8, 3), (8, 0), (12, 2), (24, 1), (31, 1)] {
            let mut bad = good;
            bad[at] = byte;
            assert_eq!(Request::decode(&bad), None, "byte {at}");
        }
        assert_eq!(Request::decode(&good[1..]), None);
        let good = delegation().encode();
        // Reach, ranges, a length that is none, and one that ends before the ranges do.
        for (at, byte) in [(16, 0), (20, 9), (8, 0), (8, 99)] {
            let mut bad = good;
            bad[at] = byte;
            assert_eq!(Delegation::decode(&bad), None, "byte {at}");
        }
        let mut nowhere = good;
        nowhere[..8].fill(0);
        assert_eq!(Delegation::decode(&nowhere), None);
        nowhere[..8].fill(0xff);
        assert_eq!(Delegation::decode(&nowhere), None);
        let mut bad = Reply {
            number: 0,
            outcome: Outcome::Done,
        }
        .encode();
        bad[16] = 1;
        assert_eq!(Reply::decode(&bad), None);
        assert_eq!(Ready::decode(&bad), None);
        assert_eq!(Capability::decode(&bad[..20]), None);
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
