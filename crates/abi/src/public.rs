//! Packs public entries, which show observers what a space has outside the region.
//!
//! An export's memory and a connection to another domain lie in memory of their own. The space
//! that has them says so in an entry of its own row, which no other process writes while it lives;
//! the host empties the row of a dead space.

/// What an entry tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum PublicKind {
    /// Memory that the space exports.
    Export = 1,
    /// A port of the space whose messages go on to a port that another domain offers.
    ConnectedTo = 2,
    /// A process of another domain that sends to a port which the space offers.
    Client = 3,
    /// A channel of another domain that the space follows.
    Following = 4,
    /// A process of another domain that follows a channel which the space offers.
    Follower = 5,
}

/// The first word of an entry.
///
/// ```
/// use portolan_abi::public::{PublicKind, PublicState};
/// let state = PublicState { kind: Some(PublicKind::Export), busy: false, number: 7 };
/// assert_eq!(PublicState::unpack(state.pack()), state);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublicState {
    /// What the entry tells of; nothing, if it is free.
    pub kind: Option<PublicKind>,
    /// It is being written.
    pub busy: bool,
    /// How often the entry was used. A reader that finds the same word before and after, with
    /// `busy` unset, has read one use of the entry.
    pub number: u32,
}

impl PublicState {
    /// As a word.
    pub const fn pack(self) -> u64 {
        let kind = match self.kind {
            Some(kind) => kind as u64,
            None => 0,
        };
        kind | (self.busy as u64) << 8 | (self.number as u64) << 32
    }

    /// From a word; a kind that no member writes reads as a free entry.
    pub const fn unpack(word: u64) -> Self {
        let b = word.to_le_bytes();
        Self {
            kind: match b[0] {
                1 => Some(PublicKind::Export),
                2 => Some(PublicKind::ConnectedTo),
                3 => Some(PublicKind::Client),
                4 => Some(PublicKind::Following),
                5 => Some(PublicKind::Follower),
                _ => None,
            },
            busy: b[1] & 1 != 0,
            number: u32::from_le_bytes([b[4], b[5], b[6], b[7]]),
        }
    }
}

/// What an entry's word of flags says.
pub mod flag {
    /// Importers may read.
    pub const READS: u64 = 1;
    /// Importers may write.
    pub const WRITES: u64 = 2;
    /// The kernel copies to and from the exported memory.
    pub const KERNEL: u64 = 4;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_survive_their_word() {
        for kind in [
            None,
            Some(PublicKind::Export),
            Some(PublicKind::ConnectedTo),
            Some(PublicKind::Client),
            Some(PublicKind::Following),
            Some(PublicKind::Follower),
        ] {
            for busy in [false, true] {
                let state = PublicState {
                    kind,
                    busy,
                    number: u32::MAX,
                };
                assert_eq!(PublicState::unpack(state.pack()), state);
            }
        }
        assert_eq!(PublicState::unpack(9).kind, None);
    }
}
