//! Lays out the head of a record, and tells the kinds of records apart.

use super::greeting::{Bye, Hello, MAX_CERTIFICATE, Ping};
use super::lent::{self, Dead, Lent, Resolve, ResolveFailure};
use super::members::{self, MAX_ADDRESS, MAX_MEMBERS, Member};
use super::message::{INLINE, MessageBody, MessageRecord};
use super::node_id::NodeId;
use super::reference::{Backlog, Claim, MoveRight, Moved, Reference};
use super::whereabouts::{self, Asked, Located};
use crate::codec::{DecodeError, Field, Reader, Writer};
use crate::limits::{MAX_EXTENTS, MAX_HEADER, MAX_RIGHTS};
use crate::{codes, record};

/// Bytes of a record at the most: those of the longest message.
#[expect(clippy::cast_possible_truncation, reason = "about 35,000")]
pub const MAX_RECORD: u32 = (RecordHead::BYTES
    + MessageBody::BYTES
    + 8 * MAX_EXTENTS
    + Reference::BYTES * MAX_RIGHTS
    + MAX_HEADER) as u32
    + INLINE as u32;
const _: () = assert!(
    RecordHead::BYTES + 4 + MAX_MEMBERS * (NodeId::BYTES + 1 + MAX_ADDRESS) <= MAX_RECORD as usize
);
/// Bytes of a question that a node asks about another one, at the most.
pub const MAX_QUESTION: usize = 2048;
/// Bytes of the answer.
pub const MAX_INSPECTED: usize = 32 * 1024;
const _: () = assert!(RecordHead::BYTES + MAX_INSPECTED <= MAX_RECORD as usize);
const _: () = assert!(
    RecordHead::BYTES + 16 + whereabouts::MAX_ASKED * Located::BYTES <= MAX_RECORD as usize
);
codes! {
    /// What a record is.
    pub enum RecordKind: u16 {
        /// [`Record::Hello`].
        Hello = 1,
        /// [`Record::Resumed`].
        Resumed = 2,
        /// [`Record::Ping`].
        Ping = 3,
        /// [`Record::Bye`].
        Bye = 4,
        /// [`Record::Renew`].
        Renew = 5,
        /// [`Record::Renewed`].
        Renewed = 6,
        /// [`Record::Statement`].
        Statement = 7,
        /// [`Record::Message`].
        Message = 8,
        /// [`Record::Answer`].
        Answer = 9,
        /// [`Record::Ack`].
        Ack = 10,
        /// [`Record::Credit`].
        Credit = 11,
        /// [`Record::Wait`].
        Wait = 12,
        /// [`Record::Empty`].
        Empty = 13,
        /// [`Record::Announce`].
        Announce = 14,
        /// [`Record::Grant`].
        Grant = 15,
        /// [`Record::Resolve`].
        Resolve = 16,
        /// [`Record::Resolved`].
        Resolved = 17,
        /// [`Record::Dead`].
        Dead = 18,
        /// [`Record::Close`].
        Close = 19,
        /// [`Record::Members`].
        Members = 20,
        /// [`Record::Claim`].
        Claim = 32,
        /// [`Record::Recall`].
        Recall = 33,
        /// [`Record::WantSenders`].
        WantSenders = 36,
        /// [`Record::MoveRight`].
        MoveRight = 38,
        /// [`Record::Moved`].
        Moved = 39,
        /// [`Record::WhereIs`].
        WhereIs = 40,
        /// [`Record::Backlog`].
        Backlog = 41,
        /// [`Record::IsAt`].
        IsAt = 42,
        /// Reserved: an import of exported memory.
        Import = 48,
        /// Reserved: the exporter's reply.
        Imported = 49,
        /// Reserved: the export ends.
        Revoke = 50,
        /// Reserved: what an importer had sent has all been sent.
        Flushed = 51,
        /// Reserved: a channel is followed.
        Follow = 52,
        /// [`Record::Inspect`].
        Inspect = 64,
        /// [`Record::Inspected`].
        Inspected = 65,
        /// [`Record::Rate`].
        Rate = 66,
    }
}

/// Flags of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordFlags(pub u16);

impl RecordFlags {
    /// A receiver that does not know the kind skips the record.
    pub const OPTIONAL: Self = Self(1);
    /// Of a message or an announcement: sent without credit.
    pub const PROBE: Self = Self(2);
    /// Of a message or an announcement: its flow has more to send than it has credit for.
    pub const MORE: Self = Self(4);
    const ALL: u16 = 7;

    /// Both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether `flag` is set.
    pub const fn has(self, flag: Self) -> bool {
        self.0 & flag.0 != 0
    }
}

impl Field for RecordFlags {
    const BYTES: usize = 2;

    fn put(&self, to: &mut Writer<'_>) {
        self.0.put(to);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        u16::get(from).map(Self)
    }
}

record! {
    /// The first bytes of each record.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RecordHead {
        /// Bytes of the whole record.
        pub length: u32,
        /// What it is: a [`RecordKind`], or one that a later version has.
        pub kind: u16,
        /// Flags.
        pub flags: RecordFlags,
        /// Its flow, or 0.
        pub flow: u32,
        /// The low bits of its number, or 0.
        pub number: u32,
    }
    check |it| (Self::LEAST..=MAX_RECORD).contains(&it.length)
}

const _: () = assert!(RecordHead::BYTES == 16);

impl RecordHead {
    #[expect(clippy::cast_possible_truncation, reason = "16")]
    const LEAST: u32 = Self::BYTES as u32;

    /// The number whose low bits the head has, and which is nearest to `near`.
    ///
    /// ```
    /// use portolan_abi::node::{Record, RecordHead, Sent};
    /// let near = 5 << 32;
    /// for number in [near - 9, near, near + 9] {
    ///     let bytes = Record::Ack.with(Sent { number, ..Sent::default() });
    ///     assert_eq!(RecordHead::decode(&bytes[..16]).unwrap().near(near), number);
    /// }
    /// ```
    pub const fn near(&self, near: u64) -> u64 {
        #[expect(clippy::cast_possible_truncation, reason = "the low bits")]
        let low = near as u32;
        let ahead = self.number.wrapping_sub(low);
        if ahead < 1 << 31 {
            near.saturating_add(ahead as u64)
        } else {
            near.saturating_sub((1 << 32) - ahead as u64)
        }
    }
}

/// What a record's sender says in its head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Flags.
    pub flags: RecordFlags,
    /// The flow, or 0.
    pub flow: u32,
    /// The number, or 0.
    pub number: u64,
}

record! {
    /// "This much will come, when you say": a message that is too long to send unasked.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Announce {
        /// The transfer that it will be.
        pub transfer: u32,
        /// How many extents it has.
        pub extents: u32,
        /// Bytes of the payload.
        pub bytes: u64,
        /// Of an answer: of which request.
        pub request: u64,
    }
    check |it| (1..=MAX_EXTENTS as u64).contains(&u64::from(it.extents)) && it.bytes > 0
        && it.bytes <= 1 << 48
}

record! {
    struct TransferBody {
        pub transfer: u32,
        _: 4,
    }
}

record! {
    struct RequestBody {
        pub request: u64,
    }
}

/// A record's body and tail. The flow and the number that it may have are in the head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// "This is me."
    Hello(Hello),
    /// "I have said what I have received; send what I miss."
    Resumed,
    /// "I am there."
    Ping(Ping),
    /// "I go."
    Bye(Bye),
    /// "Sign my key again": a signing request. Asked of all peers; those that can, answer.
    Renew(&'a [u8]),
    /// The certificate.
    Renewed(&'a [u8]),
    /// What the cluster's authority states ([`super::Statement`]), passed on as it is.
    Statement(&'a [u8]),
    /// "These I am linked with, and there they are reached", and so am I. Said after the greeting and
    /// whenever it changes.
    Members(Vec<Member<'a>>),
    /// A message of a flow: the number is its own.
    Message(MessageRecord<'a>),
    /// The answer to a request.
    Answer(MessageRecord<'a>),
    /// All messages of the flow with lower numbers are in the port; of [`super::CONTROL`]: handled.
    Ack,
    /// The answer to a request has come, or is not wanted: its sender forgets it. It is an
    /// [`RecordKind::Ack`] of the flow [`super::ANSWERS`].
    AckAnswer {
        /// Which request.
        request: u64,
    },
    /// Messages of the flow with lower numbers may be sent.
    Credit,
    /// All of the flow from this number on was thrown away: keep it until there is credit.
    Wait,
    /// The flow has no message of this number, and gives its credit back.
    Empty {
        /// The credit: the number in the last [`Record::Credit`].
        credit: u64,
    },
    /// "This much will come, when you say."
    Announce(Announce),
    /// "Send it."
    Grant {
        /// Which transfer.
        transfer: u32,
    },
    /// Which port has this name?
    Resolve(Resolve<'a>),
    /// The port, or why there is none, to the [`Resolve`] of the flow.
    Resolved {
        /// The flow that will lead there.
        flow: u32,
        /// The port, or why there is none.
        lent: Result<Lent, ResolveFailure>,
    },
    /// The port of a flow is gone.
    Dead(Dead),
    /// The borrower has closed the flow; nothing of it is under way.
    Close {
        /// Which flow.
        flow: u32,
    },
    /// Which port has this id, and this secret? It is replied to as [`Record::Resolve`] is.
    Claim(Claim),
    /// The answer that had a right was thrown away unread: the right, for which this request is open,
    /// is to be given back, unless it has come.
    Recall {
        /// Which request.
        request: u64,
    },
    /// The port's receiver wants to know when no sender is left: the flow is to be closed as soon as
    /// no right leads there.
    WantSenders {
        /// Which flow.
        flow: u32,
    },
    /// A question about what the node and its domain do, for people to look at.
    Inspect(&'a [u8]),
    /// The answer.
    Inspected(&'a [u8]),
    /// "So many bytes a second I take from you at most". Said after the greeting, if there is such a
    /// limit, and whenever it changes.
    Rate {
        /// Bytes a second; 0 is as many as come.
        bytes: u64,
    },
    /// The old home of a port opens a flow to the new home: by it come the messages that are in the
    /// port's queue. It is replied to as [`Record::Resolve`] is.
    MoveRight(MoveRight),
    /// All messages of a flow that go before the port's at its new home are below this number.
    Backlog(Backlog),
    /// The port of a flow has another home. If the flow was asked for by a [`Record::Claim`] this replies to
    /// it, and the flow is none. Else the borrower closes the flow when it has a loan there, or
    /// wants none.
    Moved(Moved),
    /// Where are these ports, whose homes have gone? Asked of all peers.
    WhereIs {
        /// The asker's number of the question.
        number: u64,
        /// The ports.
        asked: Vec<Asked>,
    },
    /// The answer: of those that are not named the node does not know, or does not tell.
    IsAt {
        /// The question's number.
        number: u64,
        /// Where ports are.
        located: Vec<Located>,
    },
}

impl<'a> Record<'a> {
    /// The record's bytes, with what its head says. Of a message whose payload is left out, the
    /// payload has to be sent behind.
    pub fn with(&self, sent: Sent) -> Vec<u8> {
        let mut out = vec![0; RecordHead::BYTES];
        let (kind, left_out) = self.put(&mut out);
        let is_answer = matches!(self, Record::AckAnswer { .. });
        let head = RecordHead {
            length: u32::try_from(out.len() + left_out).unwrap_or(u32::MAX),
            kind: kind as u16,
            flags: sent.flags,
            flow: if is_answer { super::ANSWERS } else { sent.flow },
            #[expect(clippy::cast_possible_truncation, reason = "the low bits")]
            number: sent.number as u32,
        };
        out[..RecordHead::BYTES].copy_from_slice(&head.encode());
        out
    }

    /// Writes body and tail; the kind, and how many payload bytes are left out.
    fn put(&self, out: &mut Vec<u8>) -> (RecordKind, usize) {
        use RecordKind as K;
        let kind = match self {
            Self::Hello(hello) => {
                hello.put(out);
                K::Hello
            }
            Self::Resumed => K::Resumed,
            Self::Ping(ping) => {
                out.extend(ping.encode());
                K::Ping
            }
            Self::Bye(bye) => {
                out.extend(bye.encode());
                K::Bye
            }
            Self::Renew(request) => {
                out.extend(*request);
                K::Renew
            }
            Self::Renewed(certificate) => {
                out.extend(*certificate);
                K::Renewed
            }
            Self::Statement(statement) => {
                out.extend(*statement);
                K::Statement
            }
            Self::Members(members) => {
                members::put(members, out);
                K::Members
            }
            Self::Message(message) => {
                message.put(out);
                return (K::Message, message.left_out());
            }
            Self::Answer(message) => {
                message.put(out);
                return (K::Answer, message.left_out());
            }
            Self::Ack => K::Ack,
            Self::AckAnswer { request } => {
                out.extend(RequestBody { request: *request }.encode());
                K::Ack
            }
            Self::Credit => K::Credit,
            Self::Wait => K::Wait,
            Self::Empty { credit } => {
                out.extend(credit.to_le_bytes());
                K::Empty
            }
            Self::Announce(announce) => {
                out.extend(announce.encode());
                K::Announce
            }
            Self::Grant { transfer } => {
                let transfer = *transfer;
                out.extend(TransferBody { transfer }.encode());
                K::Grant
            }
            Self::Resolve(resolve) => {
                resolve.put(out);
                K::Resolve
            }
            Self::Resolved { flow, lent } => {
                out.extend(flow.to_le_bytes());
                lent::put(lent, out);
                K::Resolved
            }
            Self::Dead(dead) => {
                out.extend(dead.encode());
                K::Dead
            }
            Self::Close { flow } => {
                out.extend(flow.to_le_bytes());
                K::Close
            }
            Self::Claim(claim) => {
                out.extend(claim.encode());
                K::Claim
            }
            Self::Recall { request } => {
                out.extend(RequestBody { request: *request }.encode());
                K::Recall
            }
            Self::WantSenders { flow } => {
                out.extend(flow.to_le_bytes());
                K::WantSenders
            }
            Self::Inspect(question) => {
                out.extend(*question);
                K::Inspect
            }
            Self::Inspected(answer) => {
                out.extend(*answer);
                K::Inspected
            }
            Self::Rate { bytes } => {
                out.extend(bytes.to_le_bytes());
                K::Rate
            }
            Self::MoveRight(moves) => {
                out.extend(moves.encode());
                K::MoveRight
            }
            Self::Backlog(backlog) => {
                out.extend(backlog.encode());
                K::Backlog
            }
            Self::Moved(moved) => {
                out.extend(moved.encode());
                K::Moved
            }
            Self::WhereIs { number, asked } => {
                whereabouts::put(*number, asked.iter().map(Asked::encode), out);
                K::WhereIs
            }
            Self::IsAt { number, located } => {
                whereabouts::put(*number, located.iter().map(Located::encode), out);
                K::IsAt
            }
        };
        (kind, 0)
    }

    /// Reads a whole record (R1); `None` of an optional one that is to be skipped (R3).
    ///
    /// # Errors
    ///
    /// [`DecodeError`]: no node sends these bytes, or a later version does (R3).
    pub fn decode(bytes: &'a [u8]) -> Result<(RecordHead, Option<Self>), DecodeError> {
        let mut from = Reader::new(bytes);
        let head: RecordHead = from.field("head")?;
        let (found, wanted) = (bytes.len(), head.length as usize);
        if found != wanted {
            return Err(DecodeError::Length { found, wanted });
        }
        let Some(record) = Self::get(&head, &mut from)? else {
            if head.flags.has(RecordFlags::OPTIONAL) {
                return Ok((head, None));
            }
            return Err(DecodeError::Value { field: "kind" });
        };
        if !from.is_empty() {
            let left = from.rest().len();
            let wanted = found - left;
            return Err(DecodeError::Length { found, wanted });
        }
        if head.flags.0 & !RecordFlags::ALL != 0 {
            return Err(DecodeError::Value { field: "flags" });
        }
        Ok((head, Some(record)))
    }

    /// Reads body and tail; `None` of a kind that is not known.
    fn get(head: &RecordHead, from: &mut Reader<'a>) -> Result<Option<Self>, DecodeError> {
        use RecordKind as K;
        let Some(kind) = K::from_code(head.kind) else {
            return Ok(None);
        };
        Ok(Some(match kind {
            K::Hello => Self::Hello(Hello::get(from)?),
            K::Resumed => Self::Resumed,
            K::Ping => Self::Ping(from.field("ping")?),
            K::Bye => Self::Bye(from.field("bye")?),
            K::Renew => Self::Renew(all(head, from, MAX_CERTIFICATE, "certificate")?),
            K::Renewed => Self::Renewed(all(head, from, MAX_CERTIFICATE, "certificate")?),
            K::Statement => Self::Statement(all(head, from, MAX_CERTIFICATE, "certificate")?),
            K::Members => Self::Members(members::get(from)?),
            K::Message => Self::Message(MessageRecord::get(from, false)?),
            K::Answer => Self::Answer(MessageRecord::get(from, true)?),
            K::Ack if head.flow == super::ANSWERS => {
                let RequestBody { request } = from.field("request")?;
                Self::AckAnswer { request }
            }
            K::Ack => Self::Ack,
            K::Credit => Self::Credit,
            K::Wait => Self::Wait,
            K::Empty => Self::Empty {
                credit: from.field("credit")?,
            },
            K::Announce => Self::Announce(from.field("announce")?),
            K::Grant => {
                let TransferBody { transfer } = from.field("transfer")?;
                Self::Grant { transfer }
            }
            K::Resolve => Self::Resolve(Resolve::get(from)?),
            K::Resolved => Self::Resolved {
                flow: from.field("flow")?,
                lent: lent::get(from)?,
            },
            K::Dead => Self::Dead(from.field("dead")?),
            K::Close => Self::Close {
                flow: from.field("flow")?,
            },
            K::Claim => Self::Claim(from.field("claim")?),
            K::Recall => {
                let RequestBody { request } = from.field("recall")?;
                Self::Recall { request }
            }
            K::WantSenders => Self::WantSenders {
                flow: from.field("flow")?,
            },
            K::Inspect => Self::Inspect(all(head, from, MAX_QUESTION, "question")?),
            K::Inspected => Self::Inspected(all(head, from, MAX_INSPECTED, "answer")?),
            K::Rate => Self::Rate {
                bytes: from.field("rate")?,
            },
            K::MoveRight => Self::MoveRight(from.field("move")?),
            K::Backlog => Self::Backlog(from.field("backlog")?),
            K::Moved => Self::Moved(from.field("moved")?),
            K::WhereIs => {
                let (number, asked) = whereabouts::get(from, |from| from.field("asked"))?;
                Self::WhereIs { number, asked }
            }
            K::IsAt => {
                let (number, located) = whereabouts::get(from, |from| from.field("located"))?;
                Self::IsAt { number, located }
            }
            // Reserved: a later version fills them in.
            _ => return Ok(None),
        }))
    }
}

/// All that follows the head: so many bytes at the most.
fn all<'a>(
    head: &RecordHead,
    from: &mut Reader<'a>,
    most: usize,
    field: &'static str,
) -> Result<&'a [u8], DecodeError> {
    let length = (head.length as usize).saturating_sub(RecordHead::BYTES);
    match (1..=most).contains(&length) {
        true => from.bytes(length),
        false => Err(DecodeError::Value { field }),
    }
}
