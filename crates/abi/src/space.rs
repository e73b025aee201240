//! Packs a space's status word, and the host word, which says which space hosts.

/// What a space's entry is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SpacePhase {
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

/// A space's status word. The incarnation goes up each time the entry is handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceStatus {
    /// What it is doing.
    pub phase: SpacePhase,
    /// Its connection to the host has ended although it lives.
    pub disconnected: bool,
    /// The space that has claimed it; 0 in every other phase.
    pub claimer: u8,
    /// Which space of this entry it is.
    pub incarnation: u32,
}

impl SpaceStatus {
    /// Packs it.
    pub const fn pack(self) -> u64 {
        self.phase as u64
            | (self.disconnected as u64) << 8
            | (self.claimer as u64) << 16
            | (self.incarnation as u64) << 32
    }

    /// Reads it. An unknown phase, which no member writes, reads as dead.
    pub const fn unpack(word: u64) -> Self {
        let b = word.to_le_bytes();
        Self {
            phase: match b[0] {
                0 => SpacePhase::Free,
                1 => SpacePhase::Joining,
                2 => SpacePhase::Live,
                4 => SpacePhase::Claimed,
                _ => SpacePhase::Dead,
            },
            disconnected: b[1] & 1 != 0,
            claimer: b[2],
            incarnation: u32::from_le_bytes([b[4], b[5], b[6], b[7]]),
        }
    }
}

/// The host: a space and its incarnation, or none.
///
/// It is taken by compare-exchange, from nobody, or from a space whose pidfd says dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostWord {
    /// The space, 0 for nobody.
    pub space: u8,
    /// Its incarnation.
    pub incarnation: u32,
}

impl HostWord {
    /// Nobody hosts.
    pub const VACANT: Self = Self {
        space: 0,
        incarnation: 0,
    };

    /// Packs it.
    pub const fn pack(self) -> u64 {
        self.space as u64 | (self.incarnation as u64) << 32
    }

    /// Reads it.
    pub const fn unpack(word: u64) -> Self {
        let b = word.to_le_bytes();
        Self {
            space: b[0],
            incarnation: u32::from_le_bytes([b[4], b[5], b[6], b[7]]),
        }
    }
}
