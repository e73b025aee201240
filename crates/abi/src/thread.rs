//! Packs the word of a thread line that says what its thread waits for.

/// What a thread of a space waits for, as one word. It is stored when a call has looked in
/// vain, and taken back when the call ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// Nothing.
    #[default]
    Nothing,
    /// It looks again and again.
    Spinning(At),
    /// It sleeps until it is woken.
    Sleeping(At),
    /// It is a sender, and this port's queue is full.
    ForRoom(u16),
}

/// Where it waits for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// At the port with this index.
    Port(u16),
    /// At the wait set with this index.
    Set(u16),
}

impl Wait {
    /// Packs it: what in the first byte, where in the second, an index above them.
    pub const fn pack(self) -> u64 {
        let (what, at) = match self {
            Self::Nothing => return 0,
            Self::Spinning(at) => (1, at),
            Self::Sleeping(at) => (2, at),
            Self::ForRoom(port) => (3, At::Port(port)),
        };
        match at {
            At::Port(index) => what | (index as u64) << 16,
            At::Set(index) => what | 1 << 8 | (index as u64) << 16,
        }
    }

    /// Reads it. What no member writes reads as nothing.
    pub const fn unpack(word: u64) -> Self {
        let b = word.to_le_bytes();
        let index = u16::from_le_bytes([b[2], b[3]]);
        let at = if b[1] & 1 == 0 {
            At::Port(index)
        } else {
            At::Set(index)
        };
        match (b[0], at) {
            (1, at) => Self::Spinning(at),
            (2, at) => Self::Sleeping(at),
            (3, At::Port(port)) => Self::ForRoom(port),
            _ => Self::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_survive_their_word() {
        for wait in [
            Wait::Nothing,
            Wait::Spinning(At::Port(0)),
            Wait::Spinning(At::Set(511)),
            Wait::Sleeping(At::Port(u16::MAX)),
            Wait::ForRoom(7),
        ] {
            assert_eq!(Wait::unpack(wait.pack()), wait);
        }
        assert_eq!(Wait::unpack(u64::MAX), Wait::Nothing);
    }
}
