//! A message holds a header, extents, rights, and perhaps an urgency.
//!
//! A header of up to [`INLINE_HEADER`] bytes lies in the message itself and is copied
//! into the slot and out of it, in the line that carries the message anyway. A longer
//! one lies in an extent of its own: it is written there once and changes owner with
//! the message, so it is copied once whether or not a receiver waits (the paper copies
//! once only in the first case: DASH, restricted remapping, benefit 3).

use crate::port::Right;
use crate::port::sealed::{Laid, Sealed};
use crate::space::extent::Extent;
use crate::{AllocateError, Domain, Refused};
use portolan_abi::limits::{MAX_EXTENTS, MAX_HEADER, MAX_RIGHTS};
use smallvec::SmallVec;
use std::time::{Duration, Instant};

/// Bytes of a header that lie in the message itself.
pub const INLINE_HEADER: usize = 48;
pub(crate) const INLINE_WORDS: usize = INLINE_HEADER / 8;
/// Parts of sealed memory: on its way to another domain one more stands for all extents.
const MAX_SEALED: usize = portolan_abi::bridge::MAX_SEALED - 1;

/// Drops a message that was sent, with all that it held: most hold nothing then, and need no look
/// at each part. A macro, because a function's argument would be copied first.
macro_rules! drop_sent {
    ($message:expr) => {
        if $message.is_header_only() {
            std::mem::forget($message);
        }
    };
}
pub(super) use drop_sent;

/// What is sent to a port.
///
/// ```
/// use portolan::{Domain, Message};
/// let domain = Domain::private()?;
/// let mut message = Message::new(b"frame 1")?;
/// message.push(domain.allocate(4096)?)?;
/// message.push(domain.allocate(100)?)?;
/// assert_eq!(message.header(), b"frame 1");
/// assert_eq!(message.len(), 4196);
/// assert_eq!(message.at(4096).map(<[u8]>::len), Some(100));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a dropped message gives its extents back"]
pub struct Message {
    /// The header, if it is no longer than this.
    words: [u64; INLINE_WORDS],
    header_len: usize,
    /// The first extents hold a data structure that was built there, and no other code has
    /// written to them: references into it may be made (`structure`).
    pub(crate) structure: bool,
    pub(crate) extents: SmallVec<[Extent; 1]>,
    /// What few messages have. Kept apart, so that the others are two cache lines long
    /// and cheap to move.
    rest: Option<Box<Rest>>,
}

impl Default for Message {
    /// Without anything.
    // Not derived: zeros by a loop are made elsewhere and moved here.
    #[inline]
    fn default() -> Self {
        Self::short_of(0, [0; INLINE_WORDS])
    }
}

/// What few messages have.
#[derive(Default)]
pub(crate) struct Rest {
    /// A header that is longer than [`INLINE_HEADER`].
    pub(crate) long: Long,
    pub(crate) rights: Vec<Right>,
    sealed: Vec<Sealed>,
    /// Where the sealed memory lies while the message is on its way.
    pub(crate) laid: Option<Laid>,
    urgency: Option<u64>,
    notice: Option<Notice>,
}

/// Where a long header lies.
#[derive(Default)]
pub(crate) enum Long {
    #[default]
    None,
    Heap(Vec<u8>),
    Page(Extent),
}

/// When a message should be dealt with, for ports that hand out the most urgent first.
///
/// Deadlines come before priorities, earlier ones first; messages without come last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// To be done by this instant of the monotonic clock.
    Deadline(Instant),
    /// More urgent the higher it is.
    Priority(u32),
}

/// What a port is told besides messages, when it asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// No send right on this port is left anywhere.
    NoMoreSenders,
    /// A send-once right on this port was dropped unused.
    SendOnceDropped,
    /// A watched port has died.
    DeadName {
        /// What the watcher gave to recognise it by.
        token: u64,
    },
    /// A port whose reach is watched ([`SendRight::watch_reach`](crate::SendRight::watch_reach)) is on
    /// another node, which is silent.
    Unreachable {
        /// What the watcher gave to recognise it by.
        token: u64,
    },
    /// Its node is there again, and nothing was lost.
    Reachable {
        /// What the watcher gave to recognise it by.
        token: u64,
    },
}

/// Why something was not put into a message. But for want of memory it is the caller's: a message
/// holds less than that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The header is too long.
    #[error("a header of {len} bytes is over the limit of {limit}: put the rest into an extent")]
    Header {
        /// Its length.
        len: usize,
        /// The limit.
        limit: usize,
    },
    /// Too many extents.
    #[error(
        "a message carries {limit} extents at the most: use larger ones, or send several messages"
    )]
    Extents {
        /// The limit.
        limit: usize,
    },
    /// Too many parts of sealed memory.
    #[error("a message carries {limit} parts of sealed memory at the most: send several messages")]
    Sealed {
        /// The limit.
        limit: usize,
    },
    /// Sealed memory waits in the port, and cannot move to another process with it.
    #[error("sealed memory waits in this port: receive it before the port moves")]
    HoldsSealed,
    /// Too many rights.
    #[error("a message carries {limit} rights at the most: send several messages")]
    Rights {
        /// The limit.
        limit: usize,
    },
    /// The peer's: a message that comes from elsewhere would take more memory than it may.
    #[error(
        "the message takes {bytes} bytes of memory here, over the {most} that one may: send several messages, or raise the limit of its receiver"
    )]
    TooLong {
        /// Bytes of memory that it takes.
        bytes: u64,
        /// Bytes of memory that it may take.
        most: u64,
    },
    /// No page for the header, or for what is received.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
}

impl Message {
    /// A message with this header and nothing else.
    ///
    /// # Errors
    ///
    /// [`MessageError::Header`] above 4096 bytes.
    #[inline]
    pub fn new(header: &[u8]) -> Result<Self, MessageError> {
        let mut message = Self::default();
        message.set_header(header)?;
        Ok(message)
    }

    /// The header.
    #[inline]
    pub fn header(&self) -> &[u8] {
        match self.rest.as_ref().map(|r| &r.long) {
            Some(Long::Heap(bytes)) => bytes,
            Some(Long::Page(extent)) => extent.get(..self.header_len).unwrap_or(&[]),
            Some(Long::None) | None => bytes_of(&self.words).get(..self.header_len).unwrap_or(&[]),
        }
    }

    /// Replaces the header.
    ///
    /// # Errors
    ///
    /// [`MessageError::Header`] above 4096 bytes; the old header stays.
    #[inline]
    pub fn set_header(&mut self, header: &[u8]) -> Result<(), MessageError> {
        if header.len() > MAX_HEADER {
            return Err(MessageError::Header {
                len: header.len(),
                limit: MAX_HEADER,
            });
        }
        if header.len() > INLINE_HEADER {
            self.rest_mut().long = Long::Heap(header.to_vec());
        } else {
            if let Some(rest) = &mut self.rest {
                rest.long = Long::None;
            }
            self.fill_words(header);
        }
        self.header_len = header.len();
        Ok(())
    }

    /// The same, of a header and a message that are both short: nothing is called. `false`: they are
    /// not, and nothing was done.
    #[doc(hidden)]
    #[inline(always)]
    pub fn set_short_header(&mut self, header: &[u8]) -> bool {
        let is_short = header.len() <= INLINE_HEADER && self.rest.is_none();
        if is_short {
            self.fill_words(header);
            self.header_len = header.len();
        }
        is_short
    }

    /// The header, of a message that has a short one and no rights: nothing is called.
    #[doc(hidden)]
    #[inline(always)]
    pub fn short_header(&self) -> Option<&[u8]> {
        match self.rest {
            None => bytes_of(&self.words).get(..self.header_len),
            Some(_) => None,
        }
    }

    /// Whether to drop it does nothing.
    #[doc(hidden)]
    #[inline(always)]
    pub fn owns_nothing(&self) -> bool {
        self.is_header_only()
    }

    /// Puts an extent into a message that is a short header and nothing else
    /// ([`Self::owns_nothing`]): nothing is called.
    #[doc(hidden)]
    #[inline(always)]
    pub fn put_only_extent(&mut self, extent: Extent) {
        self.structure = false;
        // What is overwritten owns nothing, and dropping it would be a call.
        std::mem::forget(std::mem::replace(
            &mut self.extents,
            SmallVec::from_buf([extent]),
        ));
    }

    /// Takes the extent out of a message that is a short header and one extent and nothing else, which
    /// owns nothing then: nothing is called. `None`: it is another one, and as it was.
    #[doc(hidden)]
    #[inline(always)]
    pub fn take_only_extent(&mut self) -> Option<Extent> {
        self.only_extent()?;
        self.structure = false;
        self.extents.pop()
    }

    /// Writes a short header.
    #[inline(always)]
    fn fill_words(&mut self, header: &[u8]) {
        let (whole, tail) = header.as_chunks::<8>();
        for (word, bytes) in self.words.iter_mut().zip(whole) {
            *word = u64::from_le_bytes(*bytes);
        }
        if let Some(word) = self.words.get_mut(whole.len()) {
            // Not by `copy_from_slice`, which of a length that is not known is a call.
            let shifted = |(at, byte): (usize, &u8)| u64::from(*byte) << (8 * at);
            *word = tail.iter().enumerate().map(shifted).sum();
        }
    }

    #[inline]
    pub(crate) fn header_len(&self) -> usize {
        self.header_len
    }

    /// The words of a short header, to be filled from a slot.
    #[inline]
    pub(crate) fn header_words(&mut self, len: usize) -> &mut [u64] {
        self.header_len = len.min(INLINE_HEADER);
        &mut self.words[..self.header_len.div_ceil(8)]
    }

    /// One with this short header and nothing else.
    #[inline(always)]
    pub(crate) fn short_of(len: usize, words: [u64; INLINE_WORDS]) -> Self {
        Self {
            words,
            header_len: len,
            structure: false,
            extents: SmallVec::new(),
            rest: None,
        }
    }

    /// The same, and an extent.
    // In full, and not as `..Self::short_of(..)`, of which the rest is made and dropped again.
    #[inline(always)]
    pub(crate) fn one_of(len: usize, words: [u64; INLINE_WORDS], extent: Extent) -> Self {
        Self {
            words,
            header_len: len,
            structure: false,
            extents: SmallVec::from_buf([extent]),
            rest: None,
        }
    }

    /// A short header from a slot: its length, and the words that it lies in.
    #[inline(always)]
    pub(crate) fn set_words(&mut self, len: usize, words: [u64; INLINE_WORDS]) {
        self.header_len = len.min(INLINE_HEADER);
        self.words = words;
    }

    /// The extent of a message that has none.
    #[inline(always)]
    pub(crate) fn set_only_extent(&mut self, extent: Extent) {
        self.extents = SmallVec::from_buf([extent]);
    }

    /// Where a short header of this length is to be written, with what lies after it.
    #[inline(always)]
    pub(crate) fn words_of(&mut self, len: usize) -> &mut [u64; INLINE_WORDS] {
        self.header_len = len.min(INLINE_HEADER);
        &mut self.words
    }

    /// The words of a short header and what lies after them.
    #[inline]
    pub(crate) fn words(&self) -> &[u64; INLINE_WORDS] {
        &self.words
    }

    /// The words of a short header; nothing, if it is long.
    #[inline]
    pub(crate) fn short(&self) -> Option<&[u64]> {
        match self.rest.as_ref().map(|r| &r.long) {
            Some(Long::None) | None => {
                Some(&self.words[..self.header_len.div_ceil(8).min(INLINE_WORDS)])
            }
            Some(Long::Heap(_) | Long::Page(_)) => None,
        }
    }

    pub(crate) fn set_long(&mut self, long: Long, len: usize) {
        self.header_len = len;
        self.rest_mut().long = long;
    }

    /// The extent in which a long header lies.
    #[inline]
    pub(crate) fn page(&self) -> Option<&Extent> {
        match &self.rest.as_ref()?.long {
            Long::Page(extent) => Some(extent),
            Long::None | Long::Heap(_) => None,
        }
    }

    /// Puts another extent with the same header in the place of the one that has it.
    pub(crate) fn exchange_page(&mut self, other: Extent) -> Option<Extent> {
        match &mut self.rest.as_mut()?.long {
            Long::Page(extent) => Some(std::mem::replace(extent, other)),
            Long::None | Long::Heap(_) => None,
        }
    }

    /// Whether it is a short header and nothing else, and owns no memory of this process's.
    #[inline(always)]
    pub(crate) fn is_header_only(&self) -> bool {
        // One compare: the length of what is not spilled is the capacity's word.
        self.rest.is_none() && !self.extents.spilled() && self.extents.is_empty()
    }

    /// Its extent, if it is a short header and one extent and nothing else.
    #[inline(always)]
    pub(crate) fn only_extent(&self) -> Option<&Extent> {
        // What is not spilled is one at the most. In this order it takes the fewest compares.
        match self.rest.is_none() && !self.extents.spilled() {
            true => self.extents.first(),
            false => None,
        }
    }

    #[inline]
    pub(crate) fn rest(&self) -> Option<&Rest> {
        self.rest.as_deref()
    }

    #[inline]
    pub(crate) fn take_rest(&mut self) -> Option<Box<Rest>> {
        self.rest.take()
    }

    #[cold]
    pub(crate) fn rest_mut(&mut self) -> &mut Rest {
        self.rest.get_or_insert_default()
    }

    #[inline]
    pub(crate) fn rights(&self) -> &[Right] {
        self.rest.as_ref().map_or(&[], |r| &r.rights)
    }

    pub(crate) fn set_notice(&mut self, notice: Notice) {
        self.rest_mut().notice = Some(notice);
    }

    pub(crate) fn set_urgency_word(&mut self, word: u64) {
        self.rest_mut().urgency = Some(word);
    }

    #[inline]
    pub(crate) fn urgency_word(&self) -> Option<u64> {
        self.rest.as_ref()?.urgency
    }

    /// Drops all that it holds.
    #[inline]
    pub fn clear(&mut self) {
        self.header_len = 0;
        self.structure = false;
        if !self.extents.is_empty() {
            self.extents.clear();
        }
        if self.rest.is_some() {
            self.rest = None;
        }
    }

    /// What it held is gone, its header with it.
    #[inline(always)]
    pub(crate) fn emptied(&mut self) {
        self.header_len = 0;
        self.structure = false;
    }

    /// Its extents are the receiver's; how many bytes they were.
    #[inline(always)]
    pub(crate) fn gave_extents(&mut self) -> u64 {
        let mut bytes = 0;
        for extent in &mut *self.extents {
            bytes += extent.len() as u64;
            extent.forget();
        }
        if self.extents.spilled() {
            self.extents.clear();
        } else {
            // One that was forgotten owns nothing any more, and dropping it would be a call.
            std::mem::forget(std::mem::take(&mut self.extents));
        }
        bytes
    }

    /// Appends an extent.
    ///
    /// # Errors
    ///
    /// The extent comes back if the message holds [`MAX_EXTENTS`] already.
    #[inline]
    pub fn push(&mut self, extent: Extent) -> Result<(), Refused<Extent, MessageError>> {
        // The first one of most messages, which are no structures.
        if self.is_header_only() && !self.structure {
            self.put_only_extent(extent);
            return Ok(());
        }
        let end = self.extents.len();
        self.insert(end, extent)
    }

    /// Puts an extent before the one at `index` (at the end, if there are fewer).
    ///
    /// # Errors
    ///
    /// The extent comes back if the message holds [`MAX_EXTENTS`] already.
    pub fn insert(
        &mut self,
        index: usize,
        extent: Extent,
    ) -> Result<(), Refused<Extent, MessageError>> {
        if self.extents.len() + self.sealed().len() >= MAX_EXTENTS {
            return Err(Refused::new(
                extent,
                MessageError::Extents { limit: MAX_EXTENTS },
            ));
        }
        self.disturb(index);
        self.extents.insert(index.min(self.extents.len()), extent);
        Ok(())
    }

    /// Takes the extent at `index` out.
    pub fn remove(&mut self, index: usize) -> Option<Extent> {
        self.disturb(index);
        (index < self.extents.len()).then(|| self.extents.remove(index))
    }

    /// Splits the extents from `index` on off, for another message.
    pub fn split_off(&mut self, index: usize) -> Vec<Extent> {
        self.disturb(index);
        let index = index.min(self.extents.len());
        self.extents.drain(index..).collect()
    }

    /// Exchanges two extents; `false` if there are not that many.
    pub fn swap(&mut self, a: usize, b: usize) -> bool {
        let there = a < self.extents.len() && b < self.extents.len();
        if there {
            self.disturb(a.min(b));
            self.extents.swap(a, b);
        }
        there
    }

    /// The extents.
    #[inline]
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// The extents, to change what is in them. A data structure in them is none any more.
    #[inline]
    pub fn extents_mut(&mut self) -> &mut [Extent] {
        self.structure = false;
        &mut self.extents
    }

    /// Adds sealed memory, which lies after all extents: it is not copied when it is sent, and
    /// can be sent to any number of receivers.
    ///
    /// Only ports of this very process, and ports of other domains that were connected to with
    /// [`Protection::Sealed`](crate::Protection::Sealed), take it; others refuse the message.
    ///
    /// # Errors
    ///
    /// It comes back if the message holds 16 parts already.
    pub fn push_sealed(&mut self, sealed: Sealed) -> Result<(), Refused<Sealed, MessageError>> {
        let extents = self.extents.len();
        let parts = &mut self.rest_mut().sealed;
        // Where it is copied after all, each part becomes an extent.
        if parts.len() >= MAX_SEALED || extents + parts.len() >= MAX_EXTENTS {
            return Err(Refused::new(
                sealed,
                MessageError::Sealed { limit: MAX_SEALED },
            ));
        }
        parts.push(sealed);
        Ok(())
    }

    /// The sealed memory.
    pub fn sealed(&self) -> &[Sealed] {
        self.rest.as_ref().map_or(&[], |r| &r.sealed)
    }

    /// Takes the sealed memory out.
    pub fn take_sealed(&mut self) -> Vec<Sealed> {
        self.rest
            .as_mut()
            .map(|r| std::mem::take(&mut r.sealed))
            .unwrap_or_default()
    }

    pub(crate) fn put_sealed(&mut self, sealed: Vec<Sealed>) {
        self.rest_mut().sealed = sealed;
    }

    /// By which its sealed memory, which was laid down, is found.
    pub(crate) fn laid_token(&self) -> Option<u64> {
        Some(self.rest.as_ref()?.laid.as_ref()?.token())
    }

    #[inline]
    pub(crate) fn holds_sealed(&self) -> bool {
        self.rest.as_ref().is_some_and(|r| !r.sealed.is_empty())
    }

    /// Bytes in all extents and all sealed memory.
    pub fn len(&self) -> usize {
        let extents: usize = self.extents.iter().map(Extent::len).sum();
        extents + self.sealed().iter().map(|s| s.len()).sum::<usize>()
    }

    /// Whether they hold no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The message as one byte sequence: what lies at `offset`, to the end of that extent.
    ///
    /// `None` at or past the end.
    pub fn at(&self, offset: usize) -> Option<&[u8]> {
        let (index, within) = self.locate(offset)?;
        let sealed = index.checked_sub(self.extents.len());
        match sealed {
            None => self.extents[index].get(within..),
            Some(index) => self.sealed()[index].get(within..),
        }
    }

    /// What lies at `offset`, to write. A data structure that lies there is none any more. Of
    /// sealed memory see [`Sealed::get_mut`].
    pub fn at_mut(&mut self, offset: usize) -> Option<&mut [u8]> {
        let (index, within) = self.locate(offset)?;
        self.disturb(index);
        if let Some(index) = index.checked_sub(self.extents.len()) {
            return self.rest_mut().sealed[index].get_mut()?.get_mut(within..);
        }
        self.extents[index].get_mut(within..)
    }

    /// The extent at `index` is about to be written or moved: a structure that lies there is
    /// one no longer.
    #[inline]
    fn disturb(&mut self, index: usize) {
        if self.structure && index < self.structure_extents() {
            self.structure = false;
        }
    }

    fn locate(&self, mut offset: usize) -> Option<(usize, usize)> {
        for (index, part) in self.slices().enumerate() {
            if offset < part.len() {
                return Some((index, offset));
            }
            offset -= part.len();
        }
        None
    }

    /// The byte sequence in pieces, for vectored writes.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let sealed = self.sealed().iter().map(|s| &s[..]);
        self.extents.iter().map(|e| &e[..]).chain(sealed)
    }

    /// Copies from `offset` on into `out`; how many bytes there were.
    pub fn read_at(&self, mut offset: usize, out: &mut [u8]) -> usize {
        let mut done = 0;
        while let Some(piece) = self.at(offset).filter(|_| done < out.len()) {
            let n = piece.len().min(out.len() - done);
            out[done..done + n].copy_from_slice(&piece[..n]);
            done += n;
            offset += n;
        }
        done
    }

    /// Attaches a right.
    ///
    /// # Errors
    ///
    /// The right comes back if the message carries [`MAX_RIGHTS`] already.
    pub fn attach(&mut self, right: impl Into<Right>) -> Result<(), Refused<Right, MessageError>> {
        let mut right = right.into();
        if let Right::Receive(port) = &right
            && !port.may_leave()
        {
            return Err(Refused::new(right, MessageError::HoldsSealed));
        }
        let rights = &mut self.rest_mut().rights;
        if rights.len() >= MAX_RIGHTS {
            return Err(Refused::new(
                right,
                MessageError::Rights { limit: MAX_RIGHTS },
            ));
        }
        if let Right::Receive(port) = &mut right {
            port.lay_down();
        }
        rights.push(right);
        Ok(())
    }

    /// Takes the rights that came with the message.
    pub fn take_rights(&mut self) -> Vec<Right> {
        self.rest
            .as_mut()
            .map(|r| std::mem::take(&mut r.rights))
            .unwrap_or_default()
    }

    /// Says when it should be dealt with.
    pub fn set_urgency(&mut self, urgency: Option<Urgency>) {
        self.rest_mut().urgency = urgency.map(Urgency::pack);
    }

    /// When it should be dealt with.
    pub fn urgency(&self) -> Option<Urgency> {
        self.urgency_word().map(Urgency::unpack)
    }

    /// Whether this is no message but something that the port asked to be told.
    #[inline]
    pub fn notice(&self) -> Option<Notice> {
        self.rest.as_ref()?.notice
    }
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Message")
            .field("header", &self.header().len())
            .field("extents", &self.extents)
            .field("rights", &self.rights())
            .field("urgency", &self.urgency())
            .field("notice", &self.notice())
            .finish()
    }
}

impl Domain {
    /// A message whose header, if it is long, is written straight into a page of the
    /// domain: the only copy that it will see.
    ///
    /// # Errors
    ///
    /// As [`Message::new`] and [`Domain::allocate`].
    pub fn message(&self, header: &[u8]) -> Result<Message, MessageError> {
        if header.len() <= INLINE_HEADER || header.len() > MAX_HEADER {
            return Message::new(header);
        }
        let mut extent = self.allocate(header.len())?;
        extent.copy_from_slice(header);
        let mut message = Message::default();
        message.set_long(Long::Page(extent), header.len());
        Ok(message)
    }
}

/// The bytes of little-endian words; on this machine the words themselves.
#[inline]
fn bytes_of(words: &[u64; INLINE_WORDS]) -> &[u8] {
    bytemuck::cast_slice(words)
}

const _: () = assert!(
    cfg!(target_endian = "little"),
    "a region's words are little-endian"
);

impl Urgency {
    const PRIORITY: u64 = 1 << 63;

    /// One word; the smaller, the more urgent.
    pub(crate) fn pack(self) -> u64 {
        match self {
            Self::Deadline(at) => monotonic_nanos(at).min(Self::PRIORITY - 1),
            Self::Priority(p) => Self::PRIORITY | u64::from(u32::MAX - p),
        }
    }

    pub(crate) fn unpack(word: u64) -> Self {
        match word.checked_sub(Self::PRIORITY) {
            Some(rest) => Self::Priority(u32::MAX - u32::try_from(rest).unwrap_or(u32::MAX)),
            None => Self::Deadline(from_monotonic_nanos(word)),
        }
    }
}

/// Nanoseconds of the machine's monotonic clock at `at`, the same in every process.
pub(crate) fn monotonic_nanos(at: Instant) -> u64 {
    let now = Instant::now();
    let clock = clock_nanos();
    let nanos = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
    match at.checked_duration_since(now) {
        Some(ahead) => clock.saturating_add(nanos(ahead)),
        None => clock.saturating_sub(nanos(now - at)),
    }
}

pub(crate) fn from_monotonic_nanos(word: u64) -> Instant {
    let now = Instant::now();
    let clock = clock_nanos();
    let shift = Duration::from_nanos(word.abs_diff(clock));
    let moved = if word >= clock {
        now.checked_add(shift)
    } else {
        now.checked_sub(shift)
    };
    moved.unwrap_or(now)
}

fn clock_nanos() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}
