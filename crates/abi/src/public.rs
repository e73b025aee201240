//! Packs public entries, which show observers what a space has outside the region.
//!
//! An export's memory and a connection to another domain lie in memory of their own. The space
//! that has them says so in an entry of its own row, which no other process writes while it lives;
//! the host empties the row of a dead space.

use crate::codec::{Bits, word};
use crate::codes;

codes! {
    /// What an entry tells of.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum PublicKind: u8 {
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
}

/// A kind that no member writes reads as none.
impl Bits<Option<PublicKind>> {
    const fn put(kind: Option<PublicKind>) -> u64 {
        match kind {
            Some(kind) => kind as u64,
            None => 0,
        }
    }

    const fn get(bits: u64) -> Option<PublicKind> {
        PublicKind::from_code(Bits::<u8>::get(bits))
    }
}

word! {
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
        pub kind: Option<PublicKind> = 0..8,
        /// It is being written.
        pub busy: bool = 8..9,
        /// How often the entry was used. A reader that finds the same word before and after, with
        /// `busy` unset, has read one use of the entry.
        pub number: u32 = 32..64,
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
