//! Keeps a call at its client: its place, its arguments until they have arrived, and how it ended.

use crate::assembly::Assembly;
use crate::end::plain;
use crate::{Closed, Time};
use portolan_abi::rpc::{Flags, Header, Kind, PLACES, Status, low_24, pack_deadline};

/// One call, without its arguments.
///
/// ```
/// use portolan_proto::{Call, Flags, Time};
/// let call = Call { flags: Flags::ONE_WAY, ..Call::new(0xfeed) };
/// assert_eq!((call.method, call.deadline), (0xfeed, None));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Which method.
    pub method: u32,
    /// How.
    pub flags: Flags,
    /// When it ends as [`Outcome::Deadline`].
    pub deadline: Option<Time>,
}

impl Call {
    /// A call of `method`: reliable, checked, with an answer, without a deadline.
    pub const fn new(method: u32) -> Self {
        Self {
            method,
            flags: Flags(0),
            deadline: None,
        }
    }
}

/// Which call of a [`crate::Client`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId {
    pub(crate) place: usize,
    pub(crate) serial: u64,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The server answered.
    Answered(Status),
    /// No answer came in time. It may have run.
    Deadline,
    /// The server that it was sent to is gone. It may have run.
    ServerDied,
    /// The connection was closed. It may have run.
    Closed(Closed),
}

/// What a client has seen, for people and tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientCounts {
    /// Packets that were dropped because they were damaged, or of another time.
    pub damaged: u64,
    /// Answers to calls that were no longer open.
    pub late: u64,
    /// Questions that were asked.
    pub asked: u64,
    /// Packets that were sent again because the server asked.
    pub sent_again: u64,
    /// One-way calls of which it is not known whether they arrived.
    pub unconfirmed: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Place {
    pub(crate) serial: u64,
    pub(crate) number: u64,
    pub(crate) phase: Phase,
    pub(crate) method: u32,
    pub(crate) flags: Flags,
    pub(crate) deadline: Option<Time>,
    /// The arguments; once it has ended, the answer.
    pub(crate) body: Vec<u8>,
    /// The server has it.
    pub(crate) arrived: bool,
    pub(crate) review: Time,
    /// In nanoseconds.
    pub(crate) period: u64,
    pub(crate) answer: Assembly,
    pub(crate) status: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    #[default]
    Free,
    Open,
    Ended(Outcome),
}

impl Place {
    #[inline]
    pub(crate) fn is_open(&self, number: u64) -> bool {
        self.number == number && self.phase == Phase::Open
    }

    #[inline]
    pub(crate) fn may_be_lost(&self) -> bool {
        self.flags.has(Flags::BEST_EFFORT)
    }

    #[inline]
    pub(crate) fn is_one_way(&self) -> bool {
        self.flags.has(Flags::ONE_WAY)
    }

    /// What is said of it before its arguments, so many numbers above the floor.
    #[inline(always)]
    pub(crate) fn header(&self, now: Time, behind: u64) -> Header {
        let deadline = self.deadline.map(|d| d.0);
        Header {
            flags: self.flags,
            what: self.method,
            behind: u8::try_from(behind).unwrap_or(u8::MAX),
            when: pack_deadline(deadline, now.0),
            ..plain(Kind::Call)
        }
    }
}

/// The place of a number.
#[inline]
pub(crate) fn index(number: u64) -> usize {
    low_24(number) as usize % PLACES
}

/// How far `number` is above `floor`.
#[inline]
pub(crate) fn span(floor: u64, number: u64) -> u32 {
    u32::try_from(number.saturating_sub(floor)).unwrap_or(u32::MAX)
}
