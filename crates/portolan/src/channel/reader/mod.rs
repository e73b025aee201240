//! A reader receives a channel's messages at its own pace.
//!
//! | file | holds |
//! |---|---|
//! | `error` | why nothing was read, and what was missed |
//! | `take` | copying what is there |
//! | `wait` | waiting for what is to be read |

mod error;
mod take;
mod wait;
pub(super) use wait::{Kernel, why_not};

pub use error::{Missed, ReadError};

use super::{
    Channel, ChannelError, Interrupter, Lagging, Purpose, ReaderOptions, Since, wake_writer,
};
use crate::channel::Ring;
use crate::space::record::About;
use crate::wait::{Patience, Waiting};
use crate::{Deadline, EventKind};
use portolan_shm::channel::{Finished, Reading};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use take::{Draft, Took};

/// Reads a channel at its own pace.
///
/// A message is copied to memory of the reader's own and lent from there, until the next
/// call. What was overwritten meanwhile, or never finished, is never handed out.
///
/// A [`WaitSet`](crate::WaitSet) names it when something is there: a message, a piece of one,
/// units that were missed, or that the writer has gone. Its channel must signal: with
/// [`Signalling::Never`](crate::channel::Signalling::Never) no writer would raise it.
///
/// ```
/// use portolan::channel::{ChannelOptions, ReaderOptions};
/// use portolan::{Deadline, Domain, WaitSet};
/// let domain = Domain::private()?;
/// let channel = domain.make_channel(&ChannelOptions::unnamed())?;
/// let mut writer = channel.bind_writer()?;
/// let mut set = WaitSet::new(&domain)?;
/// let token = set.add(channel.bind_reader(ReaderOptions::default())?)?;
///
/// writer.write(b"news", Deadline::NOW)?;
/// assert_eq!(set.wait(Deadline::NEVER)?.next(), Some(token.any()));
/// let reader = set.get_mut(token).ok_or("not in the set")?;
/// assert_eq!(*reader.receive(Deadline::NOW)?, *b"news");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Reader {
    pub(super) ring: Ring,
    pub(super) reading: Reading,
    draft: Draft,
    /// Writers that had left when we last looked.
    left: u32,
    /// It takes parcels: it has its entry until it leaves.
    for_parcels: bool,
    /// It is told of a writer that left also when the next one is there already.
    tells_each: bool,
    /// Where one of many writers is in the way, and how often we looked.
    stuck: (u64, u32),
    /// Nothing will come any more.
    over: Option<ReadError>,
    patience: Patience,
    waiting: Waiting,
    /// Another thread wants its wait to end; there if any may want it.
    interrupted: Option<Arc<AtomicBool>>,
    /// Whether its messages are a trace's; not, where another layer records them.
    tells: bool,
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

impl Reader {
    pub(super) fn bind(ring: Ring, options: ReaderOptions) -> Result<Self, ChannelError> {
        let member = &ring.segment().right().to.member;
        member.present()?;
        if ring.channel().mode().raw {
            return Err(ChannelError::WrongKind("raw", "`bind_frame_reader`"));
        }
        let channel = ring.channel();
        let left = channel.writer().left;
        let channel_purpose = channel.purpose();
        let reliable = channel.mode().reliable;
        let lagging = if reliable {
            options.lagging
        } else {
            Lagging::Skip
        };
        let joined = match options.aside {
            true => None,
            false => Some(channel.join(member.space, lagging, options.since)),
        };
        let reading = match joined {
            None => channel.start_reading(options.since),
            Some(Ok(reading)) => {
                // It may have waited for us while we did not yet say where we are.
                if channel.room_made() == Finished::Wake {
                    wake_writer(channel);
                }
                reading
            }
            Some(Err(full)) if reliable => {
                let entries = full.entries;
                return Err(ChannelError::NoEntry { entries });
            }
            Some(Err(_)) => channel.start_reading(options.since),
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
            for_parcels: false,
            tells_each: false,
            stuck: (0, 0),
            over: None,
            patience: Patience::default(),
            waiting: Waiting::default(),
            interrupted: None,
            tells: matches!(channel_purpose, Purpose::Messages | Purpose::Publishers),
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
        if let Some((len, position)) = self.take_straight() {
            return Ok(Received {
                bytes: &self.draft.buffer[..len],
                position,
                complete: true,
            });
        }
        self.next(true, deadline.into())?;
        if self.is_traced() {
            self.record();
        }
        Ok(self.lend_whole())
    }

    /// Whether what it hands out is recorded. Not in a forked child.
    #[inline(always)]
    fn is_traced(&self) -> bool {
        self.tells && self.ring.segment().right().to.traces(EventKind::Read)
    }

    /// Records the message that is handed out.
    #[cold]
    fn record(&self) {
        let to = &self.ring.segment().right().to;
        let bytes = self.draft.filled as u64;
        let about = About::message(to.port.index, self.draft.begun, bytes);
        to.member.happened(EventKind::Read, about);
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

    /// As [`portolan_shm::channel::Channel::still_begins`].
    #[inline]
    pub(crate) fn still_begins(&self, position: u64, word: u64) -> Option<u8> {
        self.ring.channel().still_begins(position, word)
    }

    /// Whether a look may bring something: what a loop can ask that spins.
    #[inline]
    pub(crate) fn has_more(&self) -> bool {
        self.draft.is_new() || self.ring.channel().has_more(&self.reading)
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
        let whole = draft.complete && draft.given == draft.filled;
        if whole && self.is_traced() {
            self.record();
        }
        Ok((fits, whole))
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
        if self.draft.complete && self.is_traced() {
            self.record();
        }
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

    /// Whether a writer is bound; `false` for a channel of many writers.
    pub fn has_writer(&self) -> bool {
        let member = &self.ring.segment().right().to.member;
        member.present().is_ok() && self.ring.channel().writer().space != 0
    }

    /// Chooses how it waits.
    pub fn set_waiting(&mut self, waiting: Waiting) {
        self.waiting = waiting;
    }

    /// With which other threads end its waits.
    ///
    /// ```
    /// use portolan::channel::{ChannelOptions, ReadError, ReaderOptions};
    /// use portolan::{Deadline, Domain};
    /// let domain = Domain::private()?;
    /// let channel = domain.make_channel(&ChannelOptions::unnamed())?;
    /// let mut reader = channel.bind_reader(ReaderOptions::default())?;
    /// reader.interrupter().interrupt();
    /// assert_eq!(reader.receive(Deadline::NEVER), Err(ReadError::Interrupted));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn interrupter(&mut self) -> Interrupter {
        Interrupter::new(self.interrupted.get_or_insert_default(), &self.ring)
    }

    /// Its entry, if it has one, and whether the writer waits for it.
    pub(super) fn entry(&self) -> Option<(u8, bool)> {
        self.ring.channel().entry(&self.reading)
    }

    /// Tells of every writer that leaves, also if another one came at once; and leaves its
    /// entry only when told to.
    pub(super) fn serve_parcels(&mut self) {
        self.for_parcels = true;
        self.tell_of_each_writer();
    }

    /// Tells of every writer that leaves, also if another one came at once.
    pub(super) fn tell_of_each_writer(&mut self) {
        self.tells_each = true;
    }

    /// Tells of a writer that left before it was bound, too: of a channel that was made lately.
    pub(crate) fn tell_of_earlier_writers(&mut self) {
        self.left = 0;
    }

    /// Reads no more; the channel again.
    pub fn unbind(self) -> Channel {
        let ring = self.ring.clone();
        drop(self);
        Channel { ring }
    }

    /// Waits for a whole message, or for a piece of one.
    #[inline(never)]
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

    /// Gives its entry back: no writer waits for it any more.
    pub(super) fn leave(&mut self) {
        let channel = self.ring.channel();
        let none = channel.start_reading(Since::Now);
        let reading = std::mem::replace(&mut self.reading, none);
        if channel.leave(reading) == Finished::Wake {
            wake_writer(channel);
        }
    }

    pub(crate) fn member(&self) -> &Arc<crate::space::Member> {
        &self.ring.segment().right().to.member
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
