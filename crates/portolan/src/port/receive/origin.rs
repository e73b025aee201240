//! Says what a received message is: a message, a request, a reply or a notice.

use portolan_abi::port::{RightKind, RightWord};
use portolan_abi::slot::Kind;
use std::num::NonZeroU64;

/// What a received message is, besides what is in it: its kind, and where its answer
/// goes. One register: a reply's right is a send-once right, so the bits that say so in
/// a right's word hold the kind here.
#[derive(Clone, Copy)]
pub(in crate::port) struct Origin(NonZeroU64);

impl Origin {
    const ANSWERED: u64 = 8;
    const KIND: u64 = 7;

    /// From a slot's kind and reply word, 0 for none.
    #[inline]
    pub(in crate::port) fn new(kind: Kind, reply: u64) -> Self {
        let answered = if reply == 0 { 0 } else { Self::ANSWERED };
        // Kinds begin at 0; one more, and it is never 0.
        Self(NonZeroU64::MIN.saturating_add(reply & !15 | answered | kind as u64))
    }

    #[inline]
    fn word(self) -> u64 {
        self.0.get() - 1
    }

    #[inline]
    pub(in crate::port) fn kind(self) -> Kind {
        match self.word() & Self::KIND {
            0 => Kind::Message,
            1 => Kind::Request,
            2 => Kind::Reply,
            3 => Kind::Dropped,
            _ => Kind::ServerDead,
        }
    }

    /// Where the answer goes, or which request it answers.
    #[inline]
    pub(in crate::port) fn reply(self) -> Option<RightWord> {
        if self.word() & Self::ANSWERED == 0 {
            None
        } else {
            RightWord::unpack(self.word() & !15 | RightKind::SendOnce as u64)
        }
    }
}
