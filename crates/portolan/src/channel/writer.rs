//! A writer binds a channel, and writes messages to it.

mod traced;

use super::{Channel, ChannelError, Purpose};
use crate::channel::Ring;
use crate::port::segment::copy_to;
use crate::space::record::Begun;
use crate::wait::Backoff;
use crate::{Deadline, Disowned, EventKind};
use portolan_shm::bulk;
use portolan_shm::channel::{self as shm, Fill, Finished, Pen};
use portolan_shm::mark;
use portolan_sys::{barrier, fork, futex};
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// The one who writes to a channel, or, on a channel of many writers, one of them.
///
/// A message is written whole ([`write`](Self::write)), in place ([`claim`](Self::claim)),
/// or piece by piece while readers read its beginning ([`append`](Self::append),
/// [`show`](Self::show), [`end`](Self::end)).
///
/// ```
/// use portolan::channel::{ChannelOptions, ReaderOptions};
/// use portolan::{Deadline, Domain};
/// let domain = Domain::private()?;
/// let channel = domain.make_channel(&ChannelOptions::unnamed())?;
/// let mut reader = channel.bind_reader(ReaderOptions::default())?;
/// let mut writer = channel.bind_writer()?;
///
/// writer.write_parts(&[b"key", b"=", b"value"], Deadline::NOW)?;
/// assert_eq!(*reader.receive(Deadline::NOW)?, *b"key=value");
///
/// let claim = writer.claim(200, Deadline::NOW)?;
/// claim.fill(100, b"in the middle");
/// claim.commit();
/// assert_eq!(reader.receive(Deadline::NOW)?[100..113], *b"in the middle");
///
/// writer.append(b"to be ", Deadline::NOW)?;
/// writer.show();
/// assert_eq!(*reader.receive_some(Deadline::NOW)?, *b"to be ");
/// writer.append(b"continued", Deadline::NOW)?;
/// writer.end(Deadline::NOW)?;
/// assert_eq!(*reader.receive(Deadline::NOW)?, *b"to be continued");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Writer {
    ring: Ring,
    pen: Pen,
    /// How often it has woken readers.
    wakes: u64,
    /// What its messages are to a trace: nothing, where another layer records them.
    event: Option<EventKind>,
    /// Where the message that is appended to began, and its bytes so far.
    appended: (u64, u64),
}

/// What a writer has signalled, since it was bound.
///
/// ```
/// use portolan::channel::{ChannelOptions, Signalling};
/// use portolan::{Deadline, Domain};
/// let domain = Domain::private()?;
/// let options = ChannelOptions::unnamed().unit(64).signal(Signalling::Bytes(128));
/// let mut writer = domain.make_channel(&options)?.bind_writer()?;
/// // Eight units of 48 bytes each: a signal at every second one.
/// writer.write(&[7; 8 * 48], Deadline::NOW)?;
/// assert_eq!(writer.counts().signals, 4);
/// // There is no reader to wake.
/// assert_eq!(writer.counts().wakes, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriterCounts {
    /// Signals: looks for readers that sleep, at the end of each signalling unit.
    pub signals: u64,
    /// How often some were found, and woken.
    pub wakes: u64,
}

/// Why nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The readers': the slowest one that is waited for made no room before the deadline.
    #[error("there is room for {room} of {wanted} units: a reader has not caught up")]
    Full {
        /// Units that are free.
        room: u64,
        /// Units wanted.
        wanted: u64,
    },
    /// The caller's: the message can never fit.
    #[error("a message of {len} bytes is longer than this channel takes, {most}")]
    TooLong {
        /// Bytes of the message.
        len: usize,
        /// Bytes that fit.
        most: usize,
    },
    /// The other writers': they took every place that was tried before the deadline.
    #[error(
        "other writers took every place that was tried: write less often, or into a channel of one's own"
    )]
    Contended,
    /// The caller's: where many write, a message is written whole.
    #[error("a channel of many writers takes whole messages: use `write`")]
    ManyWriters,
    /// See [`Disowned`].
    #[error(transparent)]
    Disowned(#[from] Disowned),
    /// See [`NoDescriptor`](crate::NoDescriptor).
    #[error(transparent)]
    NoDescriptor(#[from] crate::NoDescriptor),
}

impl From<shm::NotWritten> for WriteError {
    fn from(error: shm::NotWritten) -> Self {
        match error {
            shm::NotWritten::Full { room, wanted } => Self::Full { room, wanted },
            shm::NotWritten::TooLong { len, most } => Self::TooLong { len, most },
            _ => Self::Contended,
        }
    }
}

impl Writer {
    pub(super) fn bind(ring: Ring) -> Result<Self, ChannelError> {
        let member = &ring.segment().right().to.member;
        member.present()?;
        if ring.channel().mode().raw {
            return Err(ChannelError::WrongKind("raw", "`bind_frame_writer`"));
        }
        let space = member.space;
        let channel = ring.channel();
        if !channel.mode().many_writers {
            channel
                .bind_writer(space)
                .map_err(|space| ChannelError::Written { space })?;
        }
        let mut pen = channel.resume_writing(space);
        pen.relax_when(barrier::allowed);
        let event = match channel.purpose() {
            Purpose::Messages | Purpose::Publishers => Some(EventKind::Write),
            Purpose::Topic | Purpose::Calls | Purpose::Answers => None,
        };
        Ok(Self {
            ring,
            pen,
            wakes: 0,
            event,
            appended: (0, 0),
        })
    }

    /// Always makes barriers: for a writer whose every message is waited for.
    pub(crate) fn keep_barriers(&mut self) {
        self.pen.relax_when(|| false);
    }

    /// Writes a message; its position.
    ///
    /// On a reliable channel waits for room, until the deadline.
    ///
    /// # Errors
    ///
    /// [`WriteError`]; readers see nothing of it.
    #[inline]
    pub fn write(
        &mut self,
        message: &[u8],
        deadline: impl Into<Deadline>,
    ) -> Result<u64, WriteError> {
        let copy = |words: &[AtomicU64]| bulk::store(words, message);
        match self.write_straight(message.len(), copy) {
            Some(position) => Ok(position),
            None => self.write_any(&[message], deadline.into()),
        }
    }

    /// As [`Self::write`], for a message whose parts lie apart.
    ///
    /// # Errors
    ///
    /// As [`Self::write`].
    #[inline]
    pub fn write_parts(
        &mut self,
        parts: &[&[u8]],
        deadline: impl Into<Deadline>,
    ) -> Result<u64, WriteError> {
        let len = parts.iter().map(|part| part.len()).sum();
        let written = self.write_straight(len, |words: &[AtomicU64]| {
            let mut at = 0;
            for part in parts {
                bulk::store_at(words, at, part);
                at += part.len();
            }
        });
        match written {
            Some(position) => Ok(position),
            None => self.write_any(parts, deadline.into()),
        }
    }

    /// The straight line: a message of one unit, for which there is room, while nobody traces;
    /// its position. `None`: nothing was written, and [`Self::write_any`] is to be asked.
    #[inline(always)]
    pub(crate) fn write_straight(&mut self, len: usize, copy: impl Fill) -> Option<u64> {
        // The first of these before our own lines are looked at: a forked child has none.
        if fork::in_child() || self.is_traced() {
            return None;
        }
        let position = self.pen.position();
        let channel = self.ring.channel();
        if channel.write_straight(&mut self.pen, len, copy)? == Finished::Wake {
            self.wake();
        }
        Some(position)
    }

    /// Writes any message.
    #[inline(never)]
    fn write_any(&mut self, parts: &[&[u8]], deadline: Deadline) -> Result<u64, WriteError> {
        self.present()?;
        if self.is_traced() {
            return self.write_traced(parts, deadline);
        }
        self.write_untraced(parts, deadline)
    }

    fn write_untraced(&mut self, parts: &[&[u8]], deadline: Deadline) -> Result<u64, WriteError> {
        self.finish_begun();
        let position = self.pen.position();
        match self.ring.channel().write(&mut self.pen, parts) {
            Ok(Finished::Done) => {}
            Ok(Finished::Wake) => self.wake(),
            Err(error) => return self.retry(error, parts, deadline),
        }
        Ok(self.written(position))
    }

    /// As [`Self::write`], of a message of `len` bytes that `copy` puts at the beginning of the
    /// words; `false` if it does not fit a unit. Waits for no reader.
    #[inline]
    pub(crate) fn write_with(
        &mut self,
        len: usize,
        copy: impl FnOnce(&[AtomicU64]),
    ) -> Result<bool, WriteError> {
        self.present()?;
        self.finish_begun();
        match self.ring.channel().write_with(&mut self.pen, len, copy) {
            Some(finished) => self.owe(finished?),
            None => return Ok(false),
        }
        Ok(true)
    }

    /// Where the message that was just written begins.
    #[inline]
    fn written(&self, before: u64) -> u64 {
        if self.ring.channel().mode().many_writers {
            self.pen.position() - 1
        } else {
            before
        }
    }

    #[cold]
    fn retry(
        &mut self,
        mut error: shm::NotWritten,
        parts: &[&[u8]],
        deadline: Deadline,
    ) -> Result<u64, WriteError> {
        let mut pause = Duration::from_micros(1);
        loop {
            match error {
                shm::NotWritten::Full { wanted, .. } => self.wait_for_room(wanted, deadline)?,
                shm::NotWritten::Contended if !deadline.has_passed() => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(Duration::from_millis(1));
                }
                other => return Err(other.into()),
            }
            let position = self.pen.position();
            match self.ring.channel().write(&mut self.pen, parts) {
                Ok(finished) => {
                    self.owe(finished);
                    return Ok(self.written(position));
                }
                Err(again) => error = again,
            }
        }
    }

    /// Claims room for a message of `len` bytes, which is filled in place and then committed.
    /// If the claim is dropped instead, nothing was written.
    ///
    /// # Errors
    ///
    /// [`WriteError`].
    pub fn claim(
        &mut self,
        len: usize,
        deadline: impl Into<Deadline>,
    ) -> Result<Claim<'_>, WriteError> {
        self.whole_only()?;
        self.finish_begun();
        let deadline = deadline.into();
        loop {
            match self.ring.channel().claim(&mut self.pen, len) {
                Ok(()) => return Ok(Claim { writer: self, len }),
                Err(shm::NotWritten::Full { wanted, .. }) => {
                    self.wait_for_room(wanted, deadline)?;
                }
                Err(other) => return Err(other.into()),
            }
        }
    }

    /// Adds bytes to the message that is being written, or begins one. Readers see them
    /// when their unit is full, and at [`Self::show`] and [`Self::end`].
    ///
    /// Such a message may be longer than [`Channel::longest`], if its readers take it piece
    /// by piece as well ([`super::Reader::receive_some`], or a stream).
    ///
    /// # Errors
    ///
    /// [`WriteError`]; what was added before the deadline has been written.
    pub fn append(
        &mut self,
        bytes: &[u8],
        deadline: impl Into<Deadline>,
    ) -> Result<(), WriteError> {
        let deadline = deadline.into();
        let mut done = 0;
        while done < bytes.len() {
            done += self.append_some(&bytes[done..], deadline)?;
        }
        Ok(())
    }

    /// As [`Self::append`], of as many bytes as there is room for; how many.
    ///
    /// # Errors
    ///
    /// [`WriteError`]; nothing was added.
    pub fn append_some(
        &mut self,
        bytes: &[u8],
        deadline: impl Into<Deadline>,
    ) -> Result<usize, WriteError> {
        self.whole_only()?;
        let deadline = deadline.into();
        if !self.pen.is_within_message() {
            self.appended = (self.pen.position(), 0);
        }
        loop {
            match self.ring.channel().append(&mut self.pen, bytes) {
                Ok((done, finished)) => {
                    self.appended.1 += done as u64;
                    self.owe(finished);
                    return Ok(done);
                }
                Err(shm::NotWritten::Full { wanted, .. }) => {
                    // It may have ended a unit before it found that there is no room.
                    let finished = self.ring.channel().signal_now(&mut self.pen);
                    self.owe(finished);
                    self.wait_for_room(wanted, deadline)?;
                }
                Err(other) => return Err(other.into()),
            }
        }
    }

    /// Lets readers see what was appended.
    pub fn show(&mut self) {
        if self.present().is_ok() {
            let finished = self.ring.channel().show(&mut self.pen);
            self.owe(finished);
        }
    }

    /// Ends the message that is being written; one that was never begun is empty.
    ///
    /// # Errors
    ///
    /// [`WriteError`]; it is not ended.
    pub fn end(&mut self, deadline: impl Into<Deadline>) -> Result<(), WriteError> {
        self.whole_only()?;
        let deadline = deadline.into();
        if !self.pen.is_within_message() {
            self.appended = (self.pen.position(), 0);
        }
        let begun = self.event.filter(|_| self.is_traced()).map(Begun::now);
        loop {
            match self.ring.channel().end(&mut self.pen) {
                Ok(finished) => {
                    self.owe(finished);
                    if begun.is_some() {
                        let (position, bytes) = self.appended;
                        self.record(begun, position, bytes);
                    }
                    return Ok(());
                }
                Err(shm::NotWritten::Full { wanted, .. }) => {
                    self.wait_for_room(wanted, deadline)?;
                }
                Err(other) => return Err(other.into()),
            }
        }
    }

    /// As [`portolan_shm::channel::Channel::will_take_back`].
    pub(crate) fn will_take_back(&self, position: u64) {
        self.ring.channel().will_take_back(&self.pen, position);
    }

    /// Takes a message of one unit back ([`portolan_shm::channel::Channel::take_back`]). Not on a
    /// channel of many writers.
    pub(crate) fn take_back(&self, position: u64, word: u64) {
        self.ring.channel().take_back(&self.pen, position, word);
    }

    /// The position that is written next; of many writers, about.
    pub fn position(&self) -> u64 {
        self.pen.position()
    }

    /// What its signals were so far.
    pub fn counts(&self) -> WriterCounts {
        WriterCounts {
            signals: self.pen.signals(),
            wakes: self.wakes,
        }
    }

    /// How many writers of the channel had left before this one came.
    pub(super) fn writers_before(&self) -> u32 {
        self.ring.channel().writer().left
    }

    pub(super) fn is_reliable(&self) -> bool {
        self.ring.channel().mode().reliable
    }

    /// Whether this entry has a reader that was not dropped.
    pub(super) fn is_read_by(&self, entry: u8) -> bool {
        self.ring.channel().is_read_by(entry)
    }

    /// The entries of readers that it waits for.
    pub(super) fn waited_for(&self) -> impl Iterator<Item = u8> {
        self.ring.channel().waited_for()
    }

    /// Writes no more; the channel again.
    pub fn unbind(self) -> Channel {
        let ring = self.ring.clone();
        drop(self);
        Channel { ring }
    }

    /// A message that was begun and not ended ends here, unseen or cut off.
    #[inline]
    fn finish_begun(&mut self) {
        if self.pen.is_within_message() {
            self.abandon();
        }
    }

    #[cold]
    fn abandon(&mut self) {
        let finished = self.ring.channel().abandon(&mut self.pen);
        self.owe(finished);
    }

    #[inline]
    fn present(&self) -> Result<(), Disowned> {
        self.ring.segment().right().to.member.present()
    }

    fn whole_only(&self) -> Result<(), WriteError> {
        self.present()?;
        if self.ring.channel().mode().many_writers {
            return Err(WriteError::ManyWriters);
        }
        Ok(())
    }

    #[inline]
    fn owe(&mut self, finished: Finished) {
        if finished == Finished::Wake {
            self.wake();
        }
    }

    #[cold]
    fn wake(&mut self) {
        self.wakes += u64::from(self.ring.channel().has_sleepers());
        let due = self.pen.take_due();
        self.ring.attend(&due);
    }

    /// Has all readers look, also those that are about to sleep.
    pub(super) fn ring_readers(&self) {
        self.ring.wake_readers();
    }

    /// Says that it waits for `units` units: the value of [`Self::room`] until there may be
    /// room, unless there is.
    pub(crate) fn announce(&mut self, units: u64) -> Option<u32> {
        let channel = self.ring.channel();
        let bell = channel.wait_for_room(&mut self.pen, units)?;
        if channel.signal_now(&mut self.pen) == Finished::Wake {
            self.wake();
        }
        Some(bell)
    }

    /// Whether there is room for so many units.
    pub(crate) fn has_room(&mut self, units: u64) -> bool {
        self.ring.channel().room_for(&mut self.pen, units).is_none()
    }

    /// The word that changes when a reader has made room.
    pub(crate) fn room(&self) -> &std::sync::atomic::AtomicU32 {
        &self.ring.channel().head().room.room
    }

    /// Waits until there may be room for `units` units.
    #[cold]
    fn wait_for_room(&mut self, units: u64, deadline: Deadline) -> Result<(), WriteError> {
        let mut backoff = Backoff::for_room();
        loop {
            let Some(room) = self.ring.channel().room_for(&mut self.pen, units) else {
                return Ok(());
            };
            if deadline.has_passed() {
                let wanted = units;
                return Err(WriteError::Full { room, wanted });
            }
            if !deadline.is_now() && backoff.spin() {
                continue;
            }
            if let Some(bell) = self.announce(units) {
                mark!("channel.before_futex");
                let _ = futex::wait(
                    &self.ring.channel().head().room.room,
                    bell,
                    deadline.instant(),
                );
            }
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.present().is_err() {
            return;
        }
        self.finish_begun();
        let member = &self.ring.segment().right().to.member;
        let channel = self.ring.channel();
        if !channel.mode().many_writers && channel.unbind_writer(member.space) {
            self.ring_readers();
            self.ring.tell_handlers();
        }
    }
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer")
            .field("position", &self.position())
            .finish_non_exhaustive()
    }
}

/// Room for one message, to be filled in place and committed. See [`Writer::claim`].
///
/// Readers that lag may copy from it meanwhile, and throw away what they got. So it is
/// seen as atomic words, as all of a channel is.
#[must_use = "a claim that is not committed writes nothing"]
pub struct Claim<'w> {
    writer: &'w mut Writer,
    len: usize,
}

impl Claim<'_> {
    /// Copies `bytes` to `offset` of the message; cut to what was claimed. How many were
    /// copied.
    ///
    /// What was never filled holds what was there before.
    pub fn fill(&self, offset: usize, bytes: &[u8]) -> usize {
        let fits = bytes.len().min(self.len.saturating_sub(offset));
        let payload = self.writer.ring.channel().shape().payload();
        let mut done = 0;
        while done < fits {
            let (unit, within) = ((offset + done) / payload, (offset + done) % payload);
            let now = (payload - within).min(fits - done);
            copy_to(self.words(unit), within, &bytes[done..done + now]);
            done += now;
        }
        fits
    }

    /// The words of the message's `unit`-th unit, in which [`Channel::unit_payload`] bytes of
    /// it lie; none beyond the last.
    pub fn words(&self, unit: usize) -> &[AtomicU64] {
        let channel = self.writer.ring.channel();
        if unit < self.len.max(1).div_ceil(channel.shape().payload()) {
            channel.claimed(&self.writer.pen, unit as u64)
        } else {
            &[]
        }
    }

    /// Whether this entry has a reader that was not dropped.
    pub(super) fn is_read_by(&self, entry: u8) -> bool {
        self.writer.is_read_by(entry)
    }

    /// Bytes of the message.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Makes the message visible; its position.
    pub fn commit(self) -> u64 {
        let writer = self.writer;
        let position = writer.pen.position();
        let begun = writer.event.filter(|_| writer.is_traced()).map(Begun::now);
        let finished = writer.ring.channel().commit(&mut writer.pen, self.len);
        writer.owe(finished);
        if begun.is_some() {
            writer.record(begun, position, self.len as u64);
        }
        position
    }
}

impl std::fmt::Debug for Claim<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Claim").field("len", &self.len).finish()
    }
}
