//! Packs a space's status word, and the host word, which says which space hosts.

use crate::codec::{bits_of, word};
use crate::codes;

codes! {
    /// What a space's entry is doing.
    pub enum SpacePhase: u8 {
        /// Nobody's.
        Free = 0,
        /// Handed to a newcomer, which has not entered yet.
        Joining = 1,
        /// A member.
        Live = 2,
        /// Dead or gone; the host is returning what it held.
        Dead = 3,
        /// Taken by a member that is about to hand it to a newcomer.
        Claimed = 4,
    }
}

// An unknown phase, which no member writes, reads as dead.
bits_of! { SpacePhase: u8, unknown => Dead; }

word! {
    /// A space's status word. The incarnation goes up each time the entry is handed out.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SpaceStatus {
        /// What it is doing.
        pub phase: SpacePhase = 0..8,
        /// Its connection to the host has ended although it lives.
        pub disconnected: bool = 8..9,
        /// The space that has claimed it; 0 in every other phase.
        pub claimer: u8 = 16..24,
        /// Which space of this entry it is.
        pub incarnation: u32 = 32..64,
    }
}

word! {
    /// The host: a space and its incarnation, or none.
    ///
    /// It is taken by compare-exchange, from nobody, or from a space whose pidfd says dead.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct HostWord {
        /// The space, 0 for nobody.
        pub space: u8 = 0..8,
        /// Its incarnation.
        pub incarnation: u32 = 32..64,
    }
}

impl HostWord {
    /// Nobody hosts.
    pub const VACANT: Self = Self {
        space: 0,
        incarnation: 0,
    };
}
