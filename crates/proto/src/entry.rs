//! Keeps a call at its server: while it arrives, while it runs, and its answer afterwards.

use crate::Time;
use crate::assembly::Assembly;
use crate::end::plain;
use portolan_abi::rpc::{Flags, Header, Kind, low_24};

/// A call that came in, without its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Incoming {
    /// Which call; for [`crate::Server::answer`].
    pub number: u64,
    /// Which method.
    pub method: u32,
    /// How it was made.
    pub flags: Flags,
    /// Until when its client waits, rounded up to a millisecond.
    pub deadline: Option<Time>,
}

/// What a look for calls brought ([`crate::Server::poll_call`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looked {
    /// Nothing.
    Nothing,
    /// A packet, which was handled. There may be calls to be taken now.
    Packet,
    /// The next call, which is taken.
    Call(Incoming),
}

#[derive(Debug, Default)]
pub(crate) struct Entry {
    pub(crate) number: u64,
    pub(crate) stage: Stage,
    pub(crate) method: u32,
    pub(crate) flags: Flags,
    pub(crate) deadline: Option<Time>,
    pub(crate) status: u32,
    /// The arguments, then the answer.
    pub(crate) body: Vec<u8>,
    pub(crate) assembly: Assembly,
}

impl Entry {
    /// What is said of its answer, if `next` is the number that is expected next.
    #[inline(always)]
    pub(crate) fn header(&self, next: u64) -> Header {
        Header {
            flags: self.flags.without(Flags::ONE_WAY),
            what: self.status,
            when: low_24(next),
            ..plain(Kind::Answer)
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Nothing of this number has come.
    #[default]
    Vacant,
    /// Pieces have come.
    Partial,
    /// It has come, and waits for its turn, or to be taken.
    Ready,
    /// It was handed out.
    Running,
    /// Its answer is kept.
    Answered,
    /// Its answer is not needed any more, or there is none, or it was given up.
    Over,
}
