//! Lays out the head of a fragment.

use super::MAX_RECORD;
use crate::{codes, record};

/// First bytes of a [`FragmentHead`].
pub const FRAGMENT_MAGIC: u32 = 0x4647_544e;
/// Payload bytes of a fragment at the most.
pub const MAX_FRAGMENT: u32 = 256 << 10;

codes! {
    /// What the bytes of a fragment are.
    pub enum FragmentKind: u8 {
        /// The record of the message, without payload: the transfer begins.
        Opens = 1,
        /// Payload.
        Data = 2,
        /// Nothing: the sender gives the transfer up, and may send its message again.
        Aborts = 3,
    }
}

record! {
    /// The head of a fragment.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct FragmentHead {
        magic FRAGMENT_MAGIC,
        /// Of which transfer.
        pub transfer: u32,
        /// Where its bytes lie in the payload.
        pub offset: u64,
        /// How many bytes follow.
        pub length: u32,
        /// What they are.
        pub kind: FragmentKind,
        _: 11,
    }
    check |it| match it.kind {
        FragmentKind::Opens => {
            it.offset == 0 && (1..=MAX_RECORD).contains(&it.length)
        }
        FragmentKind::Data => {
            (1..=MAX_FRAGMENT).contains(&it.length)
                && it.offset.checked_add(u64::from(it.length)).is_some()
        }
        FragmentKind::Aborts => it.offset == 0 && it.length == 0,
    }
}

const _: () = assert!(FragmentHead::BYTES == 32);
