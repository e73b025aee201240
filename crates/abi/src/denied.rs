//! Lists the reasons for which an acceptor refuses a client that the host has handed off to it.
//! Most are the same for a port, a channel and an export.

/// Why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Denied {
    /// Another format version.
    Version = 1,
    /// What came was no request.
    Garbled = 2,
    /// As many are inside as are let in.
    Full = 3,
    /// It is not offered any more.
    Over = 4,
    /// The offering process has no descriptors or no memory left.
    Resources = 5,
    /// Of a port: sealed memory is not taken.
    Sealed = 6,
    /// Of an export: it is ordinary memory that the importer does not reach itself, and there is
    /// no host to copy for it, or the exporter cannot delegate to it.
    NoCopyBroker = 7,
}

impl Denied {
    /// What a code says; `None` for 0, which is no refusal. A reason that this version does not
    /// know reads as garbled.
    pub const fn from_code(code: u32) -> Option<Self> {
        Some(match code {
            0 => return None,
            1 => Self::Version,
            3 => Self::Full,
            4 => Self::Over,
            5 => Self::Resources,
            6 => Self::Sealed,
            7 => Self::NoCopyBroker,
            _ => Self::Garbled,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Denied;

    #[test]
    fn codes_say_what_they_mean() {
        assert_eq!(Denied::from_code(0), None);
        for code in 1..8 {
            assert_eq!(Denied::from_code(code).map(|why| why as u32), Some(code));
        }
        for unknown in [8, u32::MAX] {
            assert_eq!(Denied::from_code(unknown), Some(Denied::Garbled));
        }
    }
}
