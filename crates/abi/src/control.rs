//! Lays out the records that a member and its host exchange after the member has joined.
//!
//! ```text
//! member -> host   Arrived                  "mapped, and a member"
//! member -> host   Leaving                  "return what I held", answered by Gone
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

use crate::connect::{Grants, OfferKind, OfferName};
use crate::delegate::Delegation;
use crate::hello::{word32, word64};
use crate::limits::{MAX_GRANTS, MAX_NAME};

/// Records that may be unanswered in each direction.
pub const WINDOW: u32 = 16;
/// Bytes of a record without a body.
const HEAD: usize = 8;
/// Bytes of an offer before its lists.
const FIXED: usize = HEAD + 8 + 16 + MAX_NAME + 1;
/// Bytes of a user or group, and of a process, in an offer's lists.
const ID: usize = 4;
const PROCESS: usize = 12;

/// What a member says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromMember {
    /// It has mapped the region.
    Arrived,
    /// It leaves in good order.
    Leaving,
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

/// What a host says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FromHost {
    /// What the member held has been returned.
    Gone,
    /// The member is known to its new host.
    Back,
    /// The offer, or its withdrawal, is entered.
    Done(u32),
    /// The offer is not entered.
    Declined(u32, Decline),
    /// With a client's connection.
    HandOff(u32),
}

/// Why a host does not enter an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Decline {
    /// There is another of this name and kind.
    NameTaken = 1,
    /// The domain has as many offers as a host keeps.
    Full = 2,
    /// What was to come with it has not come, or is not the member's own memory.
    Unfit = 3,
}

const ARRIVED: u8 = b'A';
const LEAVING: u8 = b'L';
const OFFER: u8 = b'O';
const WITHDRAW: u8 = b'W';
const DELEGATE: u8 = b'E';
const RECEIVED: u8 = b'R';
const GONE: u8 = b'G';
const BACK: u8 = b'B';
const DONE: u8 = b'D';
const DECLINED: u8 = b'N';
const HAND_OFF: u8 = b'I';

fn head(tag: u8, detail: u8, number: u32) -> [u8; HEAD] {
    let [a, b, c, d] = number.to_le_bytes();
    [tag, detail, 0, 0, a, b, c, d]
}

impl FromMember {
    /// Bytes of the longest record.
    pub const MAX_BYTES: usize = FIXED + MAX_GRANTS * (2 * ID + PROCESS);

    /// The record's bytes.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Arrived => head(ARRIVED, 0, 0).to_vec(),
            Self::Leaving => head(LEAVING, 0, 0).to_vec(),
            Self::Offer(announcement) => announcement.encode(),
            Self::Delegate(number, delegation) => {
                let mut out = head(DELEGATE, 0, *number).to_vec();
                out.extend(delegation.encode());
                out
            }
            Self::Withdraw(number) => head(WITHDRAW, 0, *number).to_vec(),
            Self::Received => head(RECEIVED, 0, 0).to_vec(),
        }
    }

    /// Reads a record.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let number = word32(bytes, 4)?;
        match *bytes.first()? {
            OFFER => Announcement::decode(number, bytes).map(Self::Offer),
            DELEGATE => {
                let delegation = bytes.get(HEAD..).and_then(Delegation::decode)?;
                Some(Self::Delegate(number, delegation))
            }
            _ if bytes.len() != HEAD => None,
            ARRIVED => Some(Self::Arrived),
            LEAVING => Some(Self::Leaving),
            WITHDRAW => Some(Self::Withdraw(number)),
            RECEIVED => Some(Self::Received),
            _ => None,
        }
    }
}

/// Flags of an [`Announcement`].
const REANNOUNCED: u8 = 1;
const ANYONE: u8 = 2;
const TOKEN: u8 = 4;

impl Announcement {
    fn encode(&self) -> Vec<u8> {
        let Grants {
            anyone,
            users,
            groups,
            processes,
            token,
        } = &self.grants;
        let flag = |on: bool, flag: u8| if on { flag } else { 0 };
        let flags = flag(self.reannounced, REANNOUNCED)
            | flag(*anyone, ANYONE)
            | flag(token.is_some(), TOKEN);
        let count = |len: usize| u8::try_from(len.min(MAX_GRANTS)).unwrap_or(0);
        let mut out = Vec::with_capacity(FromMember::MAX_BYTES);
        out.extend(head(OFFER, flags, self.number));
        let counts = [users.len(), groups.len(), processes.len()].map(count);
        out.push(self.kind as u8);
        out.extend(counts);
        out.extend([0; 4]);
        out.extend(token.unwrap_or_default());
        out.extend(self.name.bytes());
        for id in users
            .iter()
            .take(MAX_GRANTS)
            .chain(groups.iter().take(MAX_GRANTS))
        {
            out.extend(id.to_le_bytes());
        }
        for (pid, started) in processes.iter().take(MAX_GRANTS) {
            out.extend(pid.to_le_bytes());
            out.extend(started.to_le_bytes());
        }
        out
    }

    fn decode(number: u32, bytes: &[u8]) -> Option<Self> {
        let flags = *bytes.get(1)?;
        let [users, groups, processes] =
            [9, 10, 11].map(|at| bytes.get(at).copied().map_or(0, usize::from));
        let lists = bytes.get(FIXED..)?;
        let most = users.max(groups).max(processes);
        if most > MAX_GRANTS || lists.len() != (users + groups) * ID + processes * PROCESS {
            return None;
        }
        let (ids, named) = lists.split_at((users + groups) * ID);
        let ids: Vec<u32> = ids
            .chunks_exact(ID)
            .filter_map(|id| word32(id, 0))
            .collect();
        let (users, groups) = ids.split_at(users);
        let named = named.chunks_exact(PROCESS);
        let token: [u8; 16] = bytes.get(16..32)?.try_into().ok()?;
        Some(Self {
            number,
            kind: OfferKind::from_code(*bytes.get(HEAD)?)?,
            name: OfferName::decode(bytes.get(32..FIXED)?)?,
            grants: Grants {
                anyone: flags & ANYONE != 0,
                users: users.to_vec(),
                groups: groups.to_vec(),
                processes: named
                    .filter_map(|p| Some((word32(p, 0)?, word64(p, 4)?)))
                    .collect(),
                token: (flags & TOKEN != 0).then_some(token),
            },
            reannounced: flags & REANNOUNCED != 0,
        })
    }
}

impl FromHost {
    /// Bytes of every record.
    pub const BYTES: usize = HEAD;

    /// The record's bytes.
    pub fn encode(self) -> [u8; Self::BYTES] {
        match self {
            Self::Gone => head(GONE, 0, 0),
            Self::Back => head(BACK, 0, 0),
            Self::Done(number) => head(DONE, 0, number),
            Self::Declined(number, why) => head(DECLINED, why as u8, number),
            Self::HandOff(number) => head(HAND_OFF, 0, number),
        }
    }

    /// Reads a record.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let number = word32(bytes, 4).filter(|_| bytes.len() == HEAD)?;
        match (*bytes.first()?, *bytes.get(1)?) {
            (GONE, _) => Some(Self::Gone),
            (BACK, _) => Some(Self::Back),
            (DONE, _) => Some(Self::Done(number)),
            (DECLINED, 1) => Some(Self::Declined(number, Decline::NameTaken)),
            (DECLINED, 2) => Some(Self::Declined(number, Decline::Full)),
            (DECLINED, 3) => Some(Self::Declined(number, Decline::Unfit)),
            (HAND_OFF, _) => Some(Self::HandOff(number)),
            _ => None,
        }
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
    fn records_survive_the_wire() {
        let mut plain = announcement(0);
        plain.grants.anyone = false;
        plain.grants.token = None;
        plain.reannounced = false;
        let said = [
            FromMember::Arrived,
            FromMember::Leaving,
            FromMember::Offer(plain),
            FromMember::Offer(announcement(3)),
            FromMember::Offer(announcement(64)),
            FromMember::Delegate(8, delegation()),
            FromMember::Withdraw(7),
            FromMember::Received,
        ];
        for record in said {
            let bytes = record.encode();
            assert!(bytes.len() <= FromMember::MAX_BYTES);
            assert_eq!(FromMember::decode(&bytes), Some(record));
        }
        let heard = [
            FromHost::Gone,
            FromHost::Back,
            FromHost::Done(1),
            FromHost::Declined(2, Decline::NameTaken),
            FromHost::Declined(3, Decline::Full),
            FromHost::Declined(4, Decline::Unfit),
            FromHost::HandOff(u32::MAX),
        ];
        for record in heard {
            assert_eq!(FromHost::decode(&record.encode()), Some(record));
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
            assert_eq!(FromMember::decode(&delegated[..len]), None, "{len} bytes");
        }
        let good = FromMember::Offer(announcement(3)).encode();
        for len in 0..good.len() {
            assert_eq!(FromMember::decode(&good[..len]), None, "{len} bytes");
        }
        // A kind, counts and a name that are none.
        for (at, byte) in [(8, 0), (9, 4), (10, 200), (11, 65), (32, 0)] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert_eq!(FromMember::decode(&bad), None, "byte {at}");
        }
        assert_eq!(FromMember::decode(b"A"), None);
        assert_eq!(FromMember::decode(&[b'Z'; 8]), None);
        assert_eq!(FromHost::decode(&[b'N', 9, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(FromHost::decode(b"G"), None);
    }
}
