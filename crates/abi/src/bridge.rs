//! Lays out the records that two processes of different domains exchange, and the memory that they
//! share.
//!
//! ```text
//! client -> offering process    Ask                           "let me send"
//! offering process -> client    Granted + the connection's memory and a pidfd, or Denied
//!                               or Granted, over a connection that the client has named
//! offering process -> client    of a channel: [`Form`], in the byte ring back
//! from then on, both ways:      one byte [`WAKE`]             "look at the byte ring"
//! client -> offering process    [`SEALED`] + descriptors      those that the next frame names
//! ```
//!
//! The connection's memory is a control page and two *byte rings*, one for each direction. A byte
//! ring has one writer and one reader. Frames pass through it: a *frame header*, lengths, the
//! message's header, and then the bytes of its parts:
//!
//! ```text
//! control page: 8 words for each line, see [`control`]
//! ring there:   [frame header 64][lengths 8 each][header] pad to 64 [bytes] pad [bytes] pad ...
//!               [frame header 64][bytes] pad ...             a fragment: more bytes of a message
//! ring back:    the same
//! ```
//!
//! A connection has several *ports*, and each frame names one. The bytes of a message pass in
//! fragments of [`FRAGMENT`] bytes: the first stands behind the message's frame header, each
//! other one behind a frame header of its own ([`FrameKind::Fragment`]). Between two fragments
//! frames of other ports may stand. A client begins messages to a port as far as the port's
//! window ([`MAX_WINDOW`], [`MAX_STAGED`]) has room; the offering process says how many it has
//! accepted.
//!
//! No offset is ever sent: both sides count the bytes. The reader trusts nothing here: it copies
//! a record first, then decodes it whole or not at all.

pub use crate::denied::Denied;
use crate::handshake::{self, Grant};
use crate::limits::{LINE, MAX_EXTENTS, MAX_HEADER, PAGE};
use crate::owner::Size;
use crate::{codes, record};

/// First bytes of an [`Ask`].
pub const ASK_MAGIC: u32 = 0x4147_5450;
/// First bytes of an [`Answer`].
const ANSWER_MAGIC: u32 = 0x5247_5450;
/// First bytes of a [`Form`].
const FORM_MAGIC: u32 = 0x4647_5450;
/// First bytes of a [`FrameHeader`].
const FRAME_MAGIC: u32 = 0x4d47_5450;
/// Descriptors that come with [`Granted`] for a new connection: the connection's memory, and the offering process's
/// pidfd.
pub const DESCRIPTORS: usize = 2;
/// "Look at the byte ring."
pub const WAKE: u8 = b'R';
/// Before the descriptors of sealed memory.
pub const SEALED: u8 = b'S';
/// Bytes of a byte ring: a power of two between these.
pub const RING_BYTES: core::ops::RangeInclusive<u64> = 64 << 10..=16 << 20;
/// Parts of sealed memory in one message: what its sender put in, and one for all extents.
pub const MAX_SEALED: usize = 17;
/// Requests to one port that are under way at one time, at the most. A client sends no more.
pub const MAX_REQUESTS: usize = 1024;
/// Bytes of the parts of a message that pass before another port has its turn. The last fragment
/// of a message has what is left.
pub const FRAGMENT: usize = 256 << 10;
/// Messages that a client may have begun to send to one port, and that are not in the port yet, at
/// the most. The offering process may allow fewer ([`Granted::window`]).
pub const MAX_WINDOW: u32 = 64;
/// Bytes that the parts of these that are copied may take together ([`bytes_taken`]), and never more
/// than one message may take. A single message may take more than this. Of sealed parts there may be
/// [`MAX_SEALED`] together.
pub const MAX_STAGED: u64 = 4 << 20;
/// Ports of one connection at one time, at the most.
pub const MAX_PORTS: usize = 64;
/// Connections that a client names in a request, at the most.
pub const MAX_NAMED: usize = 4;
/// By which a client names a connection, to the process that made it for the client: 128 random bits.
/// All zeros name none.
pub type Secret = [u8; 16];
/// Packets of descriptors that are taken before the frame headers that name them were read: of one
/// frame that is whole, and of one that is being written.
pub const MAX_SEALED_AHEAD: usize = 2;

/// Words of the control page. The words of each writer have cache lines of their own.
pub mod control {
    use super::PAGE;

    /// Bytes of the page.
    pub const BYTES: usize = PAGE;
    /// Words from one byte ring's to the next one's.
    pub const STRIDE: usize = 128;
    /// The writer's: bytes written so far.
    pub const HEAD: usize = 0;
    /// The reader's: bytes read so far.
    pub const TAIL: usize = 32;
    /// The reader's: messages delivered so far.
    pub const DELIVERED: usize = 33;
    /// The writer's: not zero while it waits for room and must be woken. Each time another
    /// number.
    pub const WRITER_SLEEPS: usize = 64;
    /// The reader's: not zero while it waits for more and must be woken. Each time another
    /// number.
    pub const READER_SLEEPS: usize = 96;
}

/// Bytes of a connection's memory whose byte rings have so many; `None` if no byte ring may have.
pub fn connection_bytes(there: u64, back: u64) -> Option<u64> {
    let fits = |bytes: &u64| bytes.is_power_of_two() && RING_BYTES.contains(bytes);
    [there, back].iter().all(fits).then_some(())?;
    Some(control::BYTES as u64 + there + back)
}

/// Bytes of a slot that are sure to hold the header and the list of the parts: the first line,
/// without the words that may stand before them.
const INLINE: usize = crate::slot::inline_capacity(1) - 3 * 8;

/// Bytes of memory that a message takes in the domain that it comes to: of each part, the
/// extent that holds it, and one more for the header and the list of the parts, unless a slot
/// holds both. A part of one byte takes a page.
///
/// ```
/// use portolan_abi::bridge::bytes_taken;
/// assert_eq!(bytes_taken(8, [1].into_iter()), 4096);
/// assert_eq!(bytes_taken(8, [4096, 4097].into_iter()), 4096 + 8192 + 4096);
/// assert_eq!(bytes_taken(24, [].into_iter()), 0);
/// assert_eq!(bytes_taken(25, [u64::MAX].into_iter()), u64::MAX);
/// ```
pub fn bytes_taken(header: usize, parts: impl Iterator<Item = u64>) -> u64 {
    let (mut count, mut bytes) = (0, 0_u64);
    for part in parts {
        // A size is clamped, far above what there is.
        let size = Size::for_bytes(usize::try_from(part).unwrap_or(usize::MAX));
        count += 1;
        bytes = bytes.saturating_add(part.max(size.bytes() as u64));
    }
    match header.next_multiple_of(8) + 16 * count {
        0..=INLINE => bytes,
        long => bytes.saturating_add(Size::for_bytes(long).bytes() as u64),
    }
}

record! {
    /// "Let me send."
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Ask {
        opens ASK_MAGIC,
        /// It will send sealed memory, by descriptor.
        pub sealed: bool,
        _: 7,
        /// Bytes that the byte ring there should have.
        pub there: u64,
        /// Bytes that one answer to a request may take ([`bytes_taken`]).
        pub most: u64,
        /// Connections that the client has, and over one of which the port may go.
        pub named: [Secret; MAX_NAMED],
    }
}

record! {
    /// "Send."
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Granted {
        opens ANSWER_MAGIC,
        _: 4,
        /// The port takes requests, and not messages.
        pub synchronous: bool,
        /// The port goes over a connection that the client has named, whose memory it has. Then no
        /// descriptors come; the client answers with [`WAKE`] and hangs up.
        pub shares: bool,
        _: 2,
        /// Bytes that one message may take ([`bytes_taken`]); of a channel, those that it may hold.
        pub most: u64,
        /// Bytes of the byte ring there.
        pub there: u64,
        /// Bytes of the byte ring back.
        pub back: u64,
        /// Messages to a port that may be under way; nothing for a channel.
        pub window: u32,
        /// The number of the port in the connection; 0 for its first one.
        pub port: u32,
        /// By which the client may name the connection; zeros for a channel's.
        pub secret: Secret,
    }
    check |it| {
        let memory = connection_bytes(it.there, it.back).is_some();
        memory && it.window <= MAX_WINDOW && it.shares == (it.port > 0)
    }
}

/// What the offering process answers.
pub type Answer = handshake::Answer<Granted>;

impl Grant for Granted {
    const MAGIC: u32 = ANSWER_MAGIC;
    type Why = Denied;
}

impl handshake::Ask for Ask {
    type Granted = Granted;
    const DESCRIPTORS: usize = DESCRIPTORS;

    fn descriptors(granted: &Granted) -> usize {
        match granted.shares {
            true => 0,
            false => DESCRIPTORS,
        }
    }
}

record! {
    /// The properties of an offered channel; the first record in its byte ring. Whether there can
    /// be such a channel it does not say.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Form {
        magic FORM_MAGIC,
        /// Its writer waits for readers.
        pub reliable: bool,
        _: 3,
        /// Bytes of a unit.
        pub unit: u64,
        /// Units of the ring.
        pub units: u64,
        /// What its maker says of its content.
        pub content: u64,
        _: 32,
    }
}

codes! {
    /// What a frame is.
    pub enum FrameKind: u8 {
        /// A message begins.
        Message = 0,
        /// A request begins.
        Request = 1,
        /// The answer to a request begins.
        Reply = 2,
        /// The request was dropped unanswered; of a channel: its writer has gone.
        Dropped = 3,
        /// More bytes of the port's message that has begun.
        Fragment = 4,
        /// So many messages in all are in the port; answers say it too.
        Accepted = 5,
        /// The client waits for [`Accepted`](Self::Accepted): it is to be said at once.
        Blocked = 6,
        /// This side sends nothing more for the port. The port is closed once both have said it.
        Closed = 7,
    }
}

record! {
    /// The record before a message or a fragment in a byte ring: what it is, and the numbers of its
    /// parts.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct FrameHeader {
        magic FRAME_MAGIC,
        /// What the frame is. Only the first three kinds hold anything.
        pub kind: FrameKind,
        has urgency,
        _: 2,
        /// Bytes of the header.
        pub header: usize,
        /// Extents, whose bytes follow.
        pub extents: usize,
        /// Parts of sealed memory, whose descriptors came before.
        pub sealed: usize,
        /// Which port of the connection.
        pub port: u32,
        /// When it should be dealt with.
        pub urgency: Option<u64>,
        /// Of a request and its answer: which.
        pub tag: u64,
        /// From the offering process: messages in all that are in the port.
        pub accepted: u64,
        _: 16,
    }
    check |it| it.can_be()
}

impl FrameHeader {
    /// Bytes of frame header, lengths and header, at the most.
    pub const MOST: usize = Self::BYTES + 8 * (MAX_EXTENTS + MAX_SEALED) + MAX_HEADER;

    /// An empty message, or a frame that holds nothing, for a connection's first port.
    pub const fn new(kind: FrameKind) -> Self {
        Self {
            kind,
            header: 0,
            extents: 0,
            sealed: 0,
            port: 0,
            urgency: None,
            tag: 0,
            accepted: 0,
        }
    }

    /// Bytes of lengths and header, which follow.
    pub const fn rest(&self) -> usize {
        8 * (self.extents + self.sealed) + self.header
    }

    /// Whether there can be such a frame: no count is over its limit, and nothing stands where
    /// nothing may.
    fn can_be(&self) -> bool {
        let fits =
            self.header <= MAX_HEADER && self.extents <= MAX_EXTENTS && self.sealed <= MAX_SEALED;
        let (port, accepted) = (self.port, self.accepted);
        let bare = Self {
            port,
            accepted,
            ..Self::new(self.kind)
        };
        fits && match self.kind {
            FrameKind::Message | FrameKind::Request => accepted == 0,
            FrameKind::Reply => true,
            FrameKind::Dropped => {
                let tag = self.tag;
                *self == Self { tag, ..bare }
            }
            FrameKind::Accepted => *self == bare,
            FrameKind::Fragment | FrameKind::Blocked | FrameKind::Closed => {
                *self == bare && accepted == 0
            }
        }
    }
}

const _: () = assert!(FrameHeader::BYTES == LINE && Form::BYTES == LINE);

const _: () = {
    // In lines of their own, pairs of which the processor fetches together.
    assert!(control::TAIL * 8 >= 2 * LINE && control::WRITER_SLEEPS > control::DELIVERED + 15);
    assert!(control::READER_SLEEPS + 16 <= control::STRIDE);
    assert!(2 * control::STRIDE * 8 <= control::BYTES);
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handshake::Refusal;

    #[test]
    fn the_longest_frame_header_can_be() {
        let frame = FrameHeader {
            header: MAX_HEADER,
            extents: MAX_EXTENTS,
            sealed: MAX_SEALED,
            ..FrameHeader::new(FrameKind::Reply)
        };
        assert_eq!(FrameHeader::decode(&frame.encode()), Ok(frame));
        assert_eq!(frame.rest() + FrameHeader::BYTES, FrameHeader::MOST);
    }

    #[test]
    fn what_is_no_record_is_refused() {
        let ask = Ask {
            sealed: false,
            most: 9,
            there: 1 << 20,
            named: [[0; 16]; MAX_NAMED],
        };
        for (at, byte) in [(0, 0), (8, 2)] {
            let mut bad = ask.encode();
            bad[at] = byte;
            assert!(Ask::decode(&bad).is_err(), "byte {at}");
        }
        assert!(Ask::decode(&ask.encode()[..31]).is_err());
        assert_eq!(connection_bytes(1 << 20, 1 << 63), None);
        let granted = Answer::Granted(Granted {
            synchronous: false,
            most: 1,
            there: 1 << 20,
            back: 64 << 10,
            window: 64,
            shares: false,
            port: 0,
            secret: [1; 16],
        });
        // Magic, flag, a byte ring that is no power of two, one that is too small, one too large, a
        // window that is too large, another port than the first, one that is shared and is the first.
        for (at, byte) in [
            (0, 0),
            (12, 2),
            (24, 1),
            (34, 0),
            (39, 1),
            (40, 65),
            (44, 1),
            (13, 1),
        ] {
            let mut bad = granted.encode();
            bad[at] = byte;
            assert!(Answer::decode(&bad).is_err(), "byte {at}");
        }
        let frame = FrameHeader {
            header: 5,
            ..FrameHeader::new(FrameKind::Message)
        };
        // Magic, kind, flag, header, extents, sealed.
        for (at, byte) in [(0, 0), (4, 8), (5, 2), (10, 1), (14, 1), (18, 1), (9, 17)] {
            let mut bad = frame.encode();
            bad[at] = byte;
            assert!(FrameHeader::decode(&bad).is_err(), "byte {at}");
        }
        // What holds nothing, and says what only others say.
        for kind in FrameKind::ALL {
            let bare = FrameHeader {
                port: 7,
                ..FrameHeader::new(kind)
            };
            assert_eq!(FrameHeader::decode(&bare.encode()), Ok(bare));
            let holds = matches!(
                kind,
                FrameKind::Message | FrameKind::Request | FrameKind::Reply
            );
            let full = FrameHeader { header: 1, ..bare };
            assert_eq!(FrameHeader::decode(&full.encode()).is_ok(), holds);
            let tagged = FrameHeader { tag: 1, ..bare };
            let has_tag = holds || kind == FrameKind::Dropped;
            assert_eq!(FrameHeader::decode(&tagged.encode()).is_ok(), has_tag);
            let accepted = FrameHeader {
                accepted: 1,
                ..bare
            };
            let back = matches!(
                kind,
                FrameKind::Reply | FrameKind::Dropped | FrameKind::Accepted
            );
            assert_eq!(FrameHeader::decode(&accepted.encode()).is_ok(), back);
        }
        assert!(FrameHeader::decode(&[0; 63]).is_err());
        let mut bad = Answer::Refused(Refusal::new(Denied::Full)).encode();
        bad[8] = 200;
        let garbled = Refusal::new(Denied::Garbled);
        assert_eq!(Answer::decode(&bad), Ok(Answer::Refused(garbled)));
        bad[0] = 0;
        assert!(Answer::decode(&bad).is_err());
    }
}
