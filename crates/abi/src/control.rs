//! Lays out the records that a member and its host exchange after the member has joined.
//!
//! ```text
//! member -> host   Arrived                  "mapped, and a member"
//! member -> host   Leaving                  "return what I held", answered by Gone
//! member -> host   Succeeds                 "let me host", answered by the host word
//! host   -> member Back                     answers a Return: "I am your host now"
//!
//! member -> host   Offer n                  "I offer this", answered by Done n or Declined n
//! member -> host   Delegate n + mem, maps   "copy to and from this", before its Offer n
//! member -> host   Withdraw n               "no longer", answered by Done n: of a delegation,
//!                                           after the last copy has ended
//! host   -> member HandOff n + connection   "a client for your offer n", answered by Received
//! ```
//!
//! A member leaves at most [`WINDOW`] offers and withdrawals unanswered, and a host as many
//! hand-offs; so neither socket ever fills, and neither side waits for the other.

use crate::codec::{DecodeError, Field, Reader, Record};
use crate::connect::{Grants, OfferKind, OfferName};
use crate::delegate::Delegation;
use crate::limits::MAX_GRANTS;
use crate::{codes, record, tagged};

/// Records that may be unanswered in each direction.
pub const WINDOW: u32 = 16;
/// What a member says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromMember {
    /// It has mapped the region.
    Arrived,
    /// It leaves in good order.
    Leaving,
    /// It would host in the host's place.
    Succeeds,
    /// It offers something.
    Offer(Announcement),
    /// With descriptors of its memory: the delegation for the offer of this number, which follows.
    Delegate(u32, Delegation),
    /// It no longer offers what it gave this number.
    Withdraw(u32),
    /// It has received a hand-off.
    Received,
}

/// An offer, as a member tells its host of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// The member's number for it.
    pub number: u32,
    /// What is offered.
    pub kind: OfferKind,
    /// By which name.
    pub name: OfferName,
    /// To whom.
    pub grants: Grants,
    /// An earlier host has agreed to it, so the name was not another's then.
    pub reannounced: bool,
}

tagged! {
    /// What a host says.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum FromHost: u8 {
        /// What the member held has been returned.
        Gone = b'G',
        /// The member is known to its new host.
        Back = b'B',
        /// The offer of this number, or its withdrawal, is entered.
        Done = b'D' {
            _: 3,
            /// The member's number for it.
            number: u32,
        },
        /// The offer is not entered.
        Declined = b'N' {
            /// Why not.
            why: Decline,
            _: 2,
            /// The member's number for it.
            number: u32,
        },
        /// With a client's connection.
        HandOff = b'I' {
            _: 3,
            /// The member's number for the offer.
            number: u32,
        },
    }
}

codes! {
    /// Why a host does not enter an offer.
    pub enum Decline: u8 {
        /// There is another of this name and kind.
        NameTaken = 1,
        /// The domain has as many offers as a host keeps.
        Full = 2,
        /// What was to come with it has not come, or is not the member's own memory.
        Unfit = 3,
    }
}

codes! {
    /// A [`FromMember`] without what belongs to it.
    enum Tag: u8 {
        Arrived = b'A',
        Leaving = b'L',
        Succeeds = b'S',
        Offer = b'O',
        Withdraw = b'W',
        Delegate = b'E',
        Received = b'R',
    }
}

record! {
    /// What each record of a member begins with; of an offer and a delegation, more follows.
    #[derive(Clone, Copy)]
    struct Head {
        pub tag: Tag,
        pub flags: u8,
        _: 2,
        pub number: u32,
    }
}

/// Flags of an [`Announcement`].
const REANNOUNCED: u8 = 1;
const ANYONE: u8 = 2;
const TOKEN: u8 = 4;

record! {
    /// Of an offer, what follows the head. The lists follow, one after another.
    struct Body {
        pub kind: OfferKind,
        pub users: u8,
        pub groups: u8,
        pub processes: u8,
        _: 4,
        pub token: [u8; 16],
        pub name: OfferName,
    }
    check |it| {
        let counts = [it.users, it.groups, it.processes];
        counts.iter().all(|count| usize::from(*count) <= MAX_GRANTS)
    }
}

impl FromMember {
    /// Bytes of the longest record.
    pub const MAX_BYTES: usize =
        Head::BYTES + Body::BYTES + MAX_GRANTS * (2 * u32::BYTES + <(u32, u64)>::BYTES);

    /// The record's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let head = |tag, flags, number| Head { tag, flags, number }.to_bytes();
        match self {
            Self::Arrived => head(Tag::Arrived, 0, 0),
            Self::Leaving => head(Tag::Leaving, 0, 0),
            Self::Succeeds => head(Tag::Succeeds, 0, 0),
            Self::Received => head(Tag::Received, 0, 0),
            Self::Withdraw(number) => head(Tag::Withdraw, 0, *number),
            Self::Delegate(number, delegation) => {
                let mut out = head(Tag::Delegate, 0, *number);
                out.extend(delegation.encode());
                out
            }
            Self::Offer(offer) => {
                let mut out = head(Tag::Offer, offer.flags(), offer.number);
                offer.append_to(&mut out);
                out
            }
        }
    }

    /// Reads a record.
    ///
    /// # Errors
    ///
    /// [`DecodeError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut from = Reader::new(bytes);
        let Head { tag, flags, number } = from.field("head")?;
        let (plain, alone) = (flags == 0, flags == 0 && number == 0);
        let (said, fine) = match tag {
            Tag::Arrived => (Self::Arrived, alone),
            Tag::Leaving => (Self::Leaving, alone),
            Tag::Succeeds => (Self::Succeeds, alone),
            Tag::Received => (Self::Received, alone),
            Tag::Withdraw => (Self::Withdraw(number), plain),
            Tag::Delegate => (Self::Delegate(number, from.field("delegation")?), plain),
            Tag::Offer => (
                Self::Offer(Announcement::read(flags, number, &mut from)?),
                true,
            ),
        };
        let (found, left) = (bytes.len(), from.rest().len());
        if left != 0 {
            let wanted = found - left;
            return Err(DecodeError::Length { found, wanted });
        }
        let record = "FromMember";
        fine.then_some(said).ok_or(DecodeError::Check { record })
    }
}

impl Announcement {
    fn flags(&self) -> u8 {
        let flag = |on: bool, flag: u8| if on { flag } else { 0 };
        flag(self.reannounced, REANNOUNCED)
            | flag(self.grants.anyone, ANYONE)
            | flag(self.grants.token.is_some(), TOKEN)
    }

    /// The body and the lists.
    fn append_to(&self, out: &mut Vec<u8>) {
        let Grants {
            users,
            groups,
            processes,
            token,
            ..
        } = &self.grants;
        let count = |len: usize| u8::try_from(len.min(MAX_GRANTS)).unwrap_or(0);
        let body = Body {
            kind: self.kind,
            users: count(users.len()),
            groups: count(groups.len()),
            processes: count(processes.len()),
            token: token.unwrap_or_default(),
            name: self.name,
        };
        out.extend(body.encode());
        let ids = [users, groups].map(|ids| ids.iter().take(MAX_GRANTS));
        out.extend(ids.into_iter().flatten().flat_map(|id| id.to_le_bytes()));
        for (pid, started) in processes.iter().take(MAX_GRANTS) {
            out.extend(pid.to_le_bytes());
            out.extend(started.to_le_bytes());
        }
    }

    fn read(flags: u8, number: u32, from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let body: Body = from.field("body")?;
        let token = (flags & TOKEN != 0).then_some(body.token);
        let known = flags & !(REANNOUNCED | ANYONE | TOKEN) == 0;
        if !known || body.token != token.unwrap_or_default() {
            let record = "Announcement";
            return Err(DecodeError::Check { record });
        }
        Ok(Self {
            number,
            kind: body.kind,
            name: body.name,
            grants: Grants {
                anyone: flags & ANYONE != 0,
                users: from.list("users", body.users.into())?,
                groups: from.list("groups", body.groups.into())?,
                processes: from.list("processes", body.processes.into())?,
                token,
            },
            reannounced: flags & REANNOUNCED != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vmmc::{Ranges, Reach};

    fn announcement(count: u32) -> Announcement {
        Announcement {
            number: 0x0102_0304,
            kind: OfferKind::Channel,
            name: OfferName::new("frames").unwrap(),
            grants: Grants {
                anyone: true,
                users: (0..count).collect(),
                groups: (0..count / 2).collect(),
                processes: (0..count).map(|n| (n, u64::MAX - u64::from(n))).collect(),
                token: Some([9; 16]),
            },
            reannounced: true,
        }
    }

    #[test]
    fn lists_of_every_length_survive_the_wire() {
        for count in [0, 3, 64] {
            let record = FromMember::Offer(announcement(count));
            let bytes = record.encode();
            assert!(bytes.len() <= FromMember::MAX_BYTES);
            assert_eq!(FromMember::decode(&bytes), Ok(record));
        }
    }

    fn delegation() -> Delegation {
        Delegation {
            address: 1,
            len: 100,
            reach: Reach::Write,
            ranges: Ranges::default(),
        }
    }

    #[test]
    fn what_is_no_record() {
        let delegated = FromMember::Delegate(8, delegation()).encode();
        for len in 0..delegated.len() {
            assert!(
                FromMember::decode(&delegated[..len]).is_err(),
                "{len} bytes"
            );
        }
        let good = FromMember::Offer(announcement(3)).encode();
        for len in 0..good.len() {
            assert!(FromMember::decode(&good[..len]).is_err(), "{len} bytes");
        }
        // A kind, counts and a name that are none.
        for (at, byte) in [(8, 0), (9, 4), (10, 200), (11, 65), (32, 0)] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert!(FromMember::decode(&bad).is_err(), "byte {at}");
        }
        assert!(FromMember::decode(b"A").is_err());
        assert!(FromMember::decode(&[b'Z'; 8]).is_err());
        assert!(FromHost::decode(&[b'N', 9, 0, 0, 0, 0, 0, 0]).is_err());
        assert!(FromHost::decode(b"G").is_err());
    }
}
