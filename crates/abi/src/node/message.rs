//! Lays out messages and answers.

use super::reference::Reference;
use crate::codec::{DecodeError, Reader};
use crate::limits::{MAX_EXTENTS, MAX_HEADER, MAX_RIGHTS};
use crate::record;
use crate::slot::Kind;

/// Payload bytes that go with a message's record at the most; a longer payload is a transfer.
pub const INLINE: u64 = 16 << 10;

record! {
    /// The part of a message, or of an answer, that has the same length in all of them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct MessageBody {
        /// What it is.
        pub kind: Kind,
        has urgency,
        /// How many rights it has.
        pub rights: u8,
        _: 1,
        /// Bytes of the header.
        pub header: usize,
        /// How many extents it has.
        pub extents: usize,
        /// Payload bytes that stand in this record: all, or none.
        pub inline: u32,
        /// When it should be dealt with: the nanoseconds that are left; with the highest bit, a
        /// priority.
        pub urgency: Option<u64>,
        has time_left,
        _: 7,
        /// How long the sender waits for an answer, in nanoseconds.
        pub time_left: Option<u64>,
        /// Of a request and its answer: which request of the client's node.
        pub request: u64,
    }
    check |it| it.can_be()
}

impl MessageBody {
    /// An empty message.
    pub const fn new(kind: Kind) -> Self {
        Self {
            kind,
            rights: 0,
            header: 0,
            extents: 0,
            inline: 0,
            urgency: None,
            time_left: None,
            request: 0,
        }
    }

    /// Whether there can be such a message: no count is over its limit, and what has no payload
    /// has none.
    fn can_be(&self) -> bool {
        let fits = self.header <= MAX_HEADER
            && self.extents <= MAX_EXTENTS
            && usize::from(self.rights) <= MAX_RIGHTS;
        let is_empty = self.header == 0 && self.extents == 0 && self.rights == 0;
        let holds_nothing = matches!(self.kind, Kind::Dropped | Kind::ServerDead);
        let is_inline = u64::from(self.inline) <= INLINE && (self.extents > 0 || self.inline == 0);
        fits && is_inline && (is_empty || !holds_nothing)
    }
}

/// A message, or an answer, as it stands in a record or opens a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageRecord<'a> {
    /// What is always there.
    pub body: MessageBody,
    /// Bytes of each extent.
    pub lengths: Vec<u64>,
    /// Its rights.
    pub rights: Vec<Reference>,
    /// The header.
    pub header: &'a [u8],
    /// The payload, if it stands in the record. An encoder may leave it out, and send it behind.
    pub inline: &'a [u8],
}

/// The sum of lengths; `None` if it is over 2^48 bytes, or one of the lengths is zero.
///
/// ```
/// use portolan_abi::node::lengths_sum;
/// assert_eq!(lengths_sum(&[1, 4096]), Some(4097));
/// assert_eq!((lengths_sum(&[1, 0]), lengths_sum(&[u64::MAX])), (None, None));
/// ```
pub fn lengths_sum(lengths: &[u64]) -> Option<u64> {
    let add = |sum: u64, length: &u64| {
        let sum = sum.checked_add(*length)?;
        (*length > 0 && sum <= 1 << 48).then_some(sum)
    };
    lengths.iter().try_fold(0, add)
}

impl<'a> MessageRecord<'a> {
    /// Bytes of the payload.
    pub fn payload(&self) -> u64 {
        lengths_sum(&self.lengths).unwrap_or(0)
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.body.encode());
        let lengths = self.lengths.iter();
        lengths.for_each(|length| out.extend(length.to_le_bytes()));
        let rights = self.rights.iter();
        rights.for_each(|right| out.extend(right.encode()));
        out.extend(self.header);
        out.extend(self.inline);
    }

    /// Payload bytes that an encoder has left out.
    pub(super) fn left_out(&self) -> usize {
        (self.body.inline as usize).saturating_sub(self.inline.len())
    }

    /// Reads it, with the payload. `is_answer` says which kinds it may have.
    pub(super) fn get(from: &mut Reader<'a>, is_answer: bool) -> Result<Self, DecodeError> {
        let body: MessageBody = from.field("message")?;
        let answers = matches!(body.kind, Kind::Reply | Kind::Dropped | Kind::ServerDead);
        let lengths = from.list("lengths", body.extents)?;
        let rights = from.list("rights", usize::from(body.rights))?;
        let header = from.bytes(body.header)?;
        let inline = from.bytes(body.inline as usize)?;
        let sum = lengths_sum(&lengths);
        let fits = body.inline == 0 || sum == Some(u64::from(body.inline));
        if answers != is_answer || sum.is_none() || !fits {
            let record = "MessageRecord";
            return Err(DecodeError::Check { record });
        }
        Ok(Self {
            body,
            lengths,
            rights,
            header,
            inline,
        })
    }
}
