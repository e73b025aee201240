//! Reading, and waiting for what is to be read.

use super::{BindChannelError, Channel, Garbled, Interrupter, Lagging, Since, wake_writer};
use crate::region::Ring;
use crate::wait::{Patience, Waiting, pause};
use crate::{Deadline, Disowned};
use portolan_shm::channel::{Finished, Look, Meta, Reading, Signalling};
use portolan_shm::mark;
use portolan_sys::futex;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A look at a unit takes so much less time than [`Patience`] reckons with.
const CHEAP: u32 = 3;

/// Looks between two looks at the clock.
const LOOKS: u32 = 256;

/// Looks at one of many writers that is in the way, before it is stepped over.
const STUCK: u32 = 16;

/// How a reader is to be.
///
/// ```
/// use portolan::channel::{ChannelOptions, Lagging, ReadError, ReaderOptions, Since};
/// use portolan::{Deadline, Domain};
/// let domain = Domain::private()?;
/// let channel = domain.make_channel(&ChannelOptions::unnamed().units(4).reliable())?;
/// let mut writer = channel.bind_writer()?;
/// writer.write(b"old", Deadline::NOW)?;
/// let options = ReaderOptions::default().lagging(Lagging::Skip).since(Since::Last(1));
/// let mut reader = channel.bind_reader(options)?;
/// assert_eq!(*reader.receive(Deadline::NOW)?, *b"old");
/// for i in 0..9 {
///     writer.write(&[i], Deadline::NOW)?;
/// }
/// let Err(ReadError::Missed(missed)) = reader.receive(Deadline::NOW) else { panic!() };
/// assert_eq!((missed.from, missed.to), (1, 7));
/// assert_eq!(*reader.receive(Deadline::NOW)?, [6]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ReaderOptions {
    lagging: Lagging,
    since: Since,
}

impl ReaderOptions {
    /// On a reliable channel, what becomes of it if it lags; a message-consistent channel
    /// waits for nobody.
    pub fn lagging(mut self, lagging: Lagging) -> Self {
        self.lagging = lagging;
        self
    }

    /// How much of the past it wants.
    pub fn since(mut self, since: Since) -> Self {
        self.since = since;
        self
    }
}

/// Reads a channel at its own pace.
///
/// A message is copied to memory of the reader's own and lent from there, until the next
/// call. What was overwritten meanwhile, or never finished, is never handed out.
pub struct Reader {
    ring: Ring,
    reading: Reading,
    draft: Draft,
    /// Writers that had left when we last looked.
    left: u32,
    /// It is told of a writer that left also when the next one is there already.
    every_change: bool,
    /// Where one of many writers is in the way, and how often we looked.
    stuck: (u64, u32),
    /// Nothing will come any more.
    over: Option<ReadError>,
    patience: Patience,
    waiting: Waiting,
    /// Another thread wants its wait to end; there if any may want it.
    interrupted: Option<Arc<AtomicBool>>,
}

/// As much of a message as came so far.
#[derive(Default)]
struct Draft {
    /// Its memory is kept.
    buffer: Vec<u8>,
    filled: usize,
    /// How much of that was handed out.
    given: usize,
    /// Of what was handed out the beginning is no longer there.
    cut: bool,
    /// The message is whole.
    complete: bool,
    /// Where it begins.
    begun: u64,
}

impl Draft {
    /// The message is of no use any more.
    #[inline]
    fn forget(&mut self) {
        self.filled = 0;
        self.given = 0;
        self.cut = false;
        self.complete = false;
    }
}

/// A message, or its next piece; lent by the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received<'r> {
    bytes: &'r [u8],
    position: u64,
    complete: bool,
}

impl Received<'_> {
    /// The position of the message's first unit.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Whether the message ends here.
    pub fn is_complete(&self) -> bool {
        self.complete
    }
}

impl Deref for Received<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

/// The units that a reader missed: from one position to before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missed {
    /// The first one.
    pub from: u64,
    /// The first one that was not missed, or not yet.
    pub to: u64,
}

impl Missed {
    /// How many.
    pub fn units(&self) -> u64 {
        self.to - self.from
    }
}

impl From<Range<u64>> for Missed {
    fn from(range: Range<u64>) -> Self {
        Self {
            from: range.start,
            to: range.end,
        }
    }
}

/// Why nothing was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The state's: nothing whole came before the deadline.
    #[error("no message came before the deadline")]
    TimedOut,
    /// Another thread's: it ended the wait ([`Interrupter`]).
    #[error("another thread ended the wait")]
    Interrupted,
    /// The state's: these units were overwritten before they were read, or their writer did
    /// not finish them. Read on.
    #[error("units {} to {} were missed: read on, and faster", .0.from, .0.to - 1)]
    Missed(Missed),
    /// The caller's: it lagged, and has chosen to be dropped then. Bind another reader.
    #[error("the reader lagged behind, and was dropped: bind it again, and read faster")]
    Dropped,
    /// The writer's: it left, or died, and all that it wrote was read. Told once for each;
    /// read on to wait for the next one.
    #[error("the writer has gone: read on to wait for the next one")]
    WriterGone,
    /// The writer's: what it wrote no writer writes. The channel is of no use any more.
    #[error("the channel was scribbled over: {0}")]
    Garbled(#[from] Garbled),
    /// The writer's: a message is longer than [`Channel::longest`]; it comes in pieces.
    #[error("a message is longer than {most} bytes: read it piece by piece")]
    TooLong {
        /// Bytes that a message can have to be read whole.
        most: usize,
    },
    /// See [`Disowned`].
    #[error(transparent)]
    Disowned(#[from] Disowned),
    /// See [`NoDescriptor`](crate::NoDescriptor).
    #[error(transparent)]
    NoDescriptor(#[from] crate::NoDescriptor),
}

/// What a look brought.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Took {
    Nothing,
    /// More of a message.
    Piece,
    /// The rest of a message, or all of it.
    Whole,
}

impl Reader {
    pub(super) fn bind(ring: Ring, options: ReaderOptions) -> Result<Self, BindChannelError> {
        let member = &ring.segment().right().to.member;
        member.present()?;
        if ring.channel().mode().raw {
            return Err(BindChannelError::WrongKind("raw", "`bind_frame_reader`"));
        }
        let channel = ring.channel();
        let left = channel.writer().left;
        let reliable = channel.mode().reliable;
        let lagging = if reliable {
            options.lagging
        } else {
            Lagging::Skip
        };
        let reading = match channel.join(member.space, lagging, options.since) {
            Ok(reading) => {
                // It may have waited for us while we did not yet say where we are.
                if channel.room_made() == Finished::Wake {
                    wake_writer(channel);
                }
                reading
            }
            Err(full) if reliable => {
                let entries = full.entries;
                return Err(BindChannelError::NoEntry { entries });
            }
            Err(_) => channel.start_reading(options.since),
        };
        Ok(Self {
            draft: Draft {
                buffer: vec![0; channel.shape().payload()],
                begun: reading.position(),
                ..Draft::default()
            },
            ring,
            reading,
            left,
            every_change: false,
            stuck: (0, 0),
            over: None,
            patience: Patience::default(),
            waiting: Waiting::default(),
            interrupted: None,
        })
    }

    /// The next message, waiting for it until the deadline.
    ///
    /// One that is being written piece by piece is handed out when it is whole; what came
    /// of it before a deadline is kept.
    ///
    /// # Errors
    ///
    /// [`ReadError`].
    #[inline]
    pub fn receive(&mut self, deadline: impl Into<Deadline>) -> Result<Received<'_>, ReadError> {
        self.next(true, deadline.into())?;
        Ok(self.lend_whole())
    }

    /// Waits until there is a message to receive; it stays there.
    #[inline]
    pub(crate) fn await_message(&mut self, deadline: Deadline) -> Result<(), ReadError> {
        self.next(true, deadline)
    }

    /// As [`Self::receive`], without waiting, and in place of what `message` holds; its
    /// position.
    #[inline]
    pub(crate) fn receive_to(&mut self, message: &mut Vec<u8>) -> Result<u64, ReadError> {
        self.next(true, Deadline::NOW)?;
        // Either's memory serves the other next time.
        std::mem::swap(message, &mut self.draft.buffer);
        message.truncate(self.draft.filled);
        self.draft.given = self.draft.filled;
        Ok(self.draft.begun)
    }

    /// Whether a look may bring something: what a loop can ask that spins.
    #[inline]
    pub(crate) fn has_more(&self) -> bool {
        self.draft.complete || self.ring.channel().has_more(&self.reading)
    }

    /// Whether it spins before it sleeps, as things are.
    #[inline]
    pub(crate) fn spins(&self) -> bool {
        match self.waiting {
            Waiting::Poll => true,
            Waiting::Sleep => false,
            Waiting::Adaptive => self.patience.spins(),
        }
    }

    #[inline]
    pub(super) fn lend_whole(&mut self) -> Received<'_> {
        self.draft.given = self.draft.filled;
        Received {
            bytes: &self.draft.buffer[..self.draft.filled],
            position: self.draft.begun,
            complete: true,
        }
    }

    /// Copies what there is to read to `out`, as much as fits; how much, and whether the
    /// message ends there.
    pub(super) fn read_into(
        &mut self,
        out: &mut [u8],
        deadline: Deadline,
    ) -> Result<(usize, bool), ReadError> {
        self.next(false, deadline)?;
        let draft = &mut self.draft;
        let there = &draft.buffer[draft.given..draft.filled];
        let fits = there.len().min(out.len());
        out[..fits].copy_from_slice(&there[..fits]);
        draft.given += fits;
        Ok((fits, draft.complete && draft.given == draft.filled))
    }

    /// What there is to read of a message that may still be being written, from where the
    /// last piece ended.
    ///
    /// # Errors
    ///
    /// [`ReadError`]. After [`ReadError::Missed`] the rest of a message will not come.
    pub fn receive_some(
        &mut self,
        deadline: impl Into<Deadline>,
    ) -> Result<Received<'_>, ReadError> {
        self.next(false, deadline.into())?;
        let from = std::mem::replace(&mut self.draft.given, self.draft.filled);
        Ok(Received {
            bytes: &self.draft.buffer[from..self.draft.filled],
            position: self.draft.begun,
            complete: self.draft.complete,
        })
    }

    /// The position that it reads next.
    pub fn position(&self) -> u64 {
        self.reading.position()
    }

    /// Whether somebody writes; of many writers, nobody knows.
    pub fn has_writer(&self) -> bool {
        self.ring.channel().writer().space != 0
    }

    /// Chooses how it waits.
    pub fn set_waiting(&mut self, waiting: Waiting) {
        self.waiting = waiting;
    }

    /// With which other threads end its waits.
    pub fn interrupter(&mut self) -> Interrupter {
        Interrupter::new(self.interrupted.get_or_insert_default(), &self.ring)
    }

    /// Whether somebody has asked to end the wait; asked once, told once.
    fn check_interrupted(&self) -> Result<(), ReadError> {
        match &self.interrupted {
            // SeqCst: pairs with `Interrupter::interrupt`.
            Some(asked) if asked.load(Ordering::SeqCst) && asked.swap(false, Ordering::SeqCst) => {
                Err(ReadError::Interrupted)
            }
            _ => Ok(()),
        }
    }

    /// Its entry, if the writer waits for it.
    pub(super) fn waited_for_at(&self) -> Option<u8> {
        self.ring.channel().waited_for_at(&self.reading)
    }

    /// Tells of every writer that leaves, also if another one came at once.
    pub(super) fn tell_every_change(&mut self) {
        self.every_change = true;
    }

    /// Reads no more; the channel again.
    pub fn unbind(self) -> Channel {
        let ring = self.ring.clone();
        drop(self);
        Channel { ring }
    }

    /// Waits for a whole message, or for a piece of one.
    #[inline]
    pub(super) fn next(&mut self, whole: bool, deadline: Deadline) -> Result<(), ReadError> {
        self.ring.segment().right().to.member.present()?;
        if !self.begin_look(whole)? {
            self.wait(whole, deadline)?;
        }
        Ok(())
    }

    /// The first look of a call; whether it found what is wanted.
    #[inline]
    fn begin_look(&mut self, whole: bool) -> Result<bool, ReadError> {
        if let Some(over) = self.over {
            return Err(over);
        }
        if self.draft.complete && self.draft.given == self.draft.filled {
            self.draft.forget();
        }
        Ok(self.take(whole)? != Took::Nothing)
    }

    /// Copies what is there, until a message is whole; or, of pieces, as much as there is.
    #[inline]
    fn take(&mut self, whole: bool) -> Result<Took, ReadError> {
        if self.draft.complete {
            return Ok(Took::Whole);
        }
        let channel = self.ring.channel();
        if self.draft.filled == 0 && !self.draft.cut {
            let at = self.reading.position();
            let buffer = &mut self.draft.buffer;
            if let Some((len, finished)) = channel.take_one(&mut self.reading, buffer) {
                if finished == Finished::Wake {
                    wake_writer(channel);
                }
                self.draft.filled = len;
                self.draft.given = 0;
                self.draft.begun = at;
                self.draft.complete = true;
                return Ok(Took::Whole);
            }
        }
        self.take_pieces(whole)
    }

    fn take_pieces(&mut self, whole: bool) -> Result<Took, ReadError> {
        let channel = self.ring.channel();
        loop {
            let (len, flags) = match channel.look(&mut self.reading) {
                Look::Unit { len, flags } => (len, flags),
                Look::Nothing if !whole && self.draft.given < self.draft.filled => {
                    return Ok(Took::Piece);
                }
                Look::Nothing => return self.nothing(),
                other => return Err(self.unusual(other)),
            };
            if flags & Meta::FIRST != 0 && self.reading.taken() == 0 {
                // What came before has no end: its writer died (M3).
                let cut = self.draft.begun..self.reading.position();
                let lost = !whole && (self.draft.cut || self.draft.given > 0);
                self.draft.forget();
                self.draft.begun = self.reading.position();
                if lost {
                    return Err(ReadError::Missed(cut.into()));
                }
            }
            let end = self.draft.filled + len;
            let most = channel.longest();
            if whole && (self.draft.cut || end > most) {
                channel.seek(&mut self.reading);
                self.draft.forget();
                return Err(ReadError::TooLong { most });
            }
            if end > most {
                if self.draft.given < self.draft.filled {
                    return Ok(Took::Piece);
                }
                // Pieces that were handed out need not be kept.
                self.draft.forget();
                self.draft.cut = true;
                continue;
            }
            if end > self.draft.buffer.len() {
                self.draft.buffer.resize(end, 0);
            }
            let out = &mut self.draft.buffer[self.draft.filled..end];
            let Some(copied) = channel.copy(&self.reading, out) else {
                continue;
            };
            mark!("channel.copied");
            let is_whole =
                !channel.mode().many_writers || channel.is_whole(&self.reading, &out[..copied]);
            let closed = flags & Meta::CLOSED != 0;
            if channel.advance(&mut self.reading, copied, closed) == Finished::Wake {
                wake_writer(channel);
            }
            if !is_whole {
                let to = self.reading.position();
                self.draft.forget();
                return Err(ReadError::Missed(Missed { from: to - 1, to }));
            }
            self.draft.filled += copied;
            if closed && flags & Meta::LAST != 0 {
                self.draft.complete = true;
                return Ok(Took::Whole);
            }
        }
    }

    #[inline]
    fn nothing(&mut self) -> Result<Took, ReadError> {
        // A line that changes only when writers come and go.
        if self.has_lost_writer() {
            return self.gone();
        }
        Ok(Took::Nothing)
    }

    /// The writer has gone; but what it wrote last may have come since the look.
    #[cold]
    fn gone(&mut self) -> Result<Took, ReadError> {
        if self.ring.channel().has_more(&self.reading) {
            return Ok(Took::Nothing);
        }
        let writer = self.ring.channel().writer();
        self.left = writer.left;
        if writer.space == 0 {
            // Of a message that it did not end, nothing more will come.
            self.draft.forget();
        }
        Err(ReadError::WriterGone)
    }

    #[cold]
    fn unusual(&mut self, look: Look) -> ReadError {
        let from = std::mem::replace(&mut self.draft.filled, 0);
        let begun = self.draft.begun;
        self.draft.forget();
        match look {
            Look::Missed(range) => {
                self.draft.begun = range.end;
                // Of a message whose end is gone, the beginning is of no use either.
                let from = if from > 0 { begun } else { range.start };
                ReadError::Missed(Missed {
                    from,
                    to: range.end,
                })
            }
            Look::Garbled(why) => {
                self.leave();
                *self.over.insert(ReadError::Garbled(why))
            }
            _ => {
                self.leave();
                *self.over.insert(ReadError::Dropped)
            }
        }
    }

    /// Gives its entry back: nobody waits for it any more.
    fn leave(&mut self) {
        let channel = self.ring.channel();
        let none = channel.start_reading(Since::Now);
        let reading = std::mem::replace(&mut self.reading, none);
        if channel.leave(reading) == Finished::Wake {
            wake_writer(channel);
        }
    }

    /// Spins, then sleeps, until something comes.
    #[cold]
    fn wait(&mut self, whole: bool, deadline: Deadline) -> Result<(), ReadError> {
        if deadline.is_now() {
            self.step_over()?;
            return Err(ReadError::TimedOut);
        }
        loop {
            self.check_interrupted()?;
            let looks = match self.waiting {
                Waiting::Poll => u32::MAX,
                Waiting::Sleep => 0,
                Waiting::Adaptive => self.patience.looks().saturating_mul(CHEAP),
            };
            for look in 0..looks {
                // A look at one word is enough, but for a writer that has gone.
                let worth = self.has_more() || look % LOOKS == LOOKS - 1;
                if worth && self.take(whole)? != Took::Nothing {
                    self.patience.paid(look / CHEAP);
                    return Ok(());
                }
                if look % LOOKS == LOOKS - 1 {
                    if deadline.has_passed() {
                        return Err(ReadError::TimedOut);
                    }
                    self.check_interrupted()?;
                    self.step_over()?;
                }
                pause(look);
            }
            if looks > 0 {
                self.patience.in_vain();
            }
            if !self.step_over()? {
                self.sleep(deadline)?;
            }
            if self.take(whole)? != Took::Nothing {
                return Ok(());
            }
            if deadline.has_passed() {
                return Err(ReadError::TimedOut);
            }
        }
    }

    /// Where many write, one that stopped in the middle does not hold up the rest for long;
    /// whether one does.
    fn step_over(&mut self) -> Result<bool, ReadError> {
        if !self.ring.channel().is_stuck(&self.reading) {
            return Ok(false);
        }
        let at = self.reading.position();
        if self.stuck.0 != at {
            self.stuck = (at, 0);
        }
        self.stuck.1 += 1;
        if self.stuck.1 < STUCK {
            std::thread::yield_now();
            return Ok(true);
        }
        match self.ring.channel().step_over(&mut self.reading) {
            Some(range) => {
                self.draft.forget();
                Err(ReadError::Missed(range.into()))
            }
            None => Ok(false),
        }
    }

    /// Sleeps until woken, if there is nothing (M5).
    fn sleep(&mut self, deadline: Deadline) -> Result<(), ReadError> {
        let Some(bell) = self.arm() else {
            return Ok(());
        };
        self.check_interrupted()?;
        // It rings after it has left, so a change of the bell tells of what this misses.
        if self.nothing()? == Took::Nothing {
            mark!("channel.before_sleep");
            let doorbell = &self.ring.channel().head().sleep.doorbell;
            let _ = futex::wait(doorbell, bell, deadline.instant());
        }
        Ok(())
    }

    /// Whether a look may find something, or say something.
    pub(crate) fn may_have(&self) -> bool {
        let channel = self.ring.channel();
        self.over.is_some() || channel.has_more(&self.reading) || self.has_lost_writer()
    }

    fn has_lost_writer(&self) -> bool {
        let writer = self.ring.channel().writer();
        writer.left != self.left && (writer.space == 0 || self.every_change)
    }

    /// Arms it for a wait set, whose place `link` names, or for nobody (0); `false` if
    /// something is there.
    pub(crate) fn arm_for(&mut self, link: u64) -> bool {
        self.ring.channel().link(&self.reading, link);
        link == 0 || self.arm().is_some() && !self.may_have()
    }

    /// Whether it can be woken in a wait set.
    pub(crate) fn can_be_linked(&self) -> bool {
        self.ring.channel().has_entry(&self.reading)
    }

    /// The word that changes when something comes.
    #[cfg(feature = "tokio")]
    pub(super) fn doorbell(&self) -> &std::sync::atomic::AtomicU32 {
        &self.ring.channel().head().sleep.doorbell
    }

    pub(crate) fn is_signalled(&self) -> bool {
        self.ring.channel().mode().signalling != Signalling::Never
    }

    pub(crate) fn member(&self) -> &Arc<crate::member::Member> {
        &self.ring.segment().right().to.member
    }

    /// Says that it sleeps: the value of the doorbell to sleep on, unless something is there.
    pub(super) fn arm(&mut self) -> Option<u32> {
        let channel = self.ring.channel();
        let (bell, owed) = channel.arm(&mut self.reading);
        if owed == Finished::Wake {
            wake_writer(channel);
        }
        bell
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if self.ring.segment().right().to.member.present().is_ok() {
            self.leave();
        }
    }
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader")
            .field("position", &self.position())
            .finish_non_exhaustive()
    }
}
