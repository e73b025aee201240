//! A reader reads from a channel (M2, M4, M5).

use super::{Channel, FENCED, Finished, Lagging, Meta, ReaderEntry, ReaderState};
use crate::atomic::{AtomicU64, Ordering, fence, store_load_barrier};
use crate::bulk::{self, summed};
use crate::mark;
use core::ops::Range;
use portolan_abi::channel::{POSITIONS, Stamp, UnitPhase};
use portolan_abi::sum;

/// Where a reader stands.
#[derive(Debug)]
pub struct Reading {
    /// The position that it reads next.
    next: u64,
    /// Payload bytes of that unit that it has had.
    taken: usize,
    /// Units are skipped up to one in which a message begins.
    seeks: bool,
    /// Its entry, if the writer may wait for it.
    entry: Option<usize>,
    /// It went past what it missed, and the writer waits.
    owed: bool,
    /// It has moved since it last looked whether the writer waits (M5).
    moved: bool,
    /// It has said that writers need barriers of their own, and they have had the time to
    /// see it (M6).
    fenced: bool,
}

impl Reading {
    /// The position that it reads next.
    pub fn position(&self) -> u64 {
        self.next
    }

    /// Its entry, if it has one.
    pub(super) fn entry(&self) -> Option<usize> {
        self.entry
    }

    /// Payload bytes of the unit there that it has had.
    pub fn taken(&self) -> usize {
        self.taken
    }
}

/// How a reader that is about to sleep comes by barriers in other processes (M6).
pub trait Barriers {
    /// Has every thread of every process that has allowed it, and so of the writer's, make a
    /// full barrier; `false` if that cannot be.
    fn everywhere(&self) -> bool;

    /// Waits for as long as it takes until whatever any processor has stored is seen by all,
    /// and much longer.
    fn by_time(&self);
}

/// How much of the past a new reader wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Since {
    /// Nothing.
    #[default]
    Now,
    /// The last so many units, or as many as are there.
    Last(u64),
}

/// Every entry for readers is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the channel has {entries} entries for readers, and all are taken")]
pub struct NoEntry {
    /// How many there are.
    pub entries: u64,
}

/// Copies a message of so many bytes out of words, which others may write meanwhile: a closure, or
/// a type of its own whose method the compiler is told to put where it is used.
pub trait CopyOut {
    /// What it makes of the message.
    type Made;

    /// Does so; `None` leaves the message where it is.
    fn copy_out(self, words: &[AtomicU64], len: usize) -> Option<Self::Made>;
}

impl<T, F: FnOnce(&[AtomicU64], usize) -> Option<T>> CopyOut for F {
    type Made = T;

    #[inline(always)]
    fn copy_out(self, words: &[AtomicU64], len: usize) -> Option<T> {
        self(words, len)
    }
}

/// Copies a message to the beginning of these bytes; what it makes of it is its length.
struct ToBytes<'o>(&'o mut [u8]);

impl CopyOut for ToBytes<'_> {
    type Made = usize;

    #[inline(always)]
    fn copy_out(self, words: &[AtomicU64], len: usize) -> Option<usize> {
        bulk::load(words, self.0.get_mut(..len)?);
        Some(len)
    }
}

/// What a reader finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Look {
    /// Nothing new.
    Nothing,
    /// A unit, or more of one that is still growing: this many new payload bytes.
    Unit {
        /// Bytes that [`Channel::copy`] would copy.
        len: usize,
        /// As in [`Meta`].
        flags: u8,
    },
    /// These positions were overwritten before they were read. The reader goes on after them.
    Missed(Range<u64>),
    /// It lagged, and was dropped.
    Dropped,
    /// The writer's: what stands there no writer writes.
    Garbled(Garbled),
}

/// A channel contains what no writer writes: another process scribbles there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Garbled {
    /// A unit is longer than it can be.
    #[error("the unit at {position} says that it has {len} bytes, and has room for {most}")]
    Length {
        /// Where.
        position: u64,
        /// Bytes that it says it has.
        len: usize,
        /// Bytes that it can have.
        most: usize,
    },
    /// A unit holds a position that lies elsewhere.
    #[error("where position {expected} lies stands {found}, which has its place elsewhere")]
    Position {
        /// What should be there, now or a whole number of laps later.
        expected: u64,
        /// What is.
        found: u64,
    },
}

impl Channel<'_> {
    /// A reader that no writer waits for, and that has no entry.
    pub fn start_reading(&self, since: Since) -> Reading {
        let next = self.head.writer.next.load(Ordering::Acquire);
        Reading {
            next: self.begin_at(next, since),
            taken: 0,
            seeks: true,
            entry: None,
            owed: false,
            moved: false,
            fenced: false,
        }
    }

    fn begin_at(&self, next: u64, since: Since) -> u64 {
        // No writer is beyond; a position that another process scribbled there is not added to.
        let next = next.min(POSITIONS - 1);
        match since {
            Since::Now => next,
            Since::Last(units) => next.saturating_sub(units.min(self.keeps())),
        }
    }

    /// Units behind the end that a reader can still hope to copy before they are overwritten.
    fn keeps(&self) -> u64 {
        self.shape.units - self.shape.units / 4
    }

    /// A reader with an entry, for `space`.
    pub fn join(&self, space: u8, lagging: Lagging, since: Since) -> Result<Reading, NoEntry> {
        loop {
            let (entry, index) = self.take_entry(space)?;
            // What the writer reads when it sees us: it may wait, and loses nothing.
            let now = self.head.writer.next.load(Ordering::Acquire);
            entry.cursor.store(now, Ordering::Release);
            mark!("channel.joining");
            let live = ReaderState::Live { space, lagging };
            entry.state.swap(live.pack(), Ordering::AcqRel);
            // M4: pairs with the barrier in `has_room`: we are live, then its position.
            store_load_barrier();
            fence(Ordering::SeqCst);
            let next = self.head.writer.next.load(Ordering::Acquire);
            entry.cursor.store(next, Ordering::Release);
            mark!("channel.joined");
            if entry.state() != live {
                // It was far ahead already, and took us for one that lags.
                entry
                    .state
                    .store(ReaderState::Free.pack(), Ordering::Release);
                continue;
            }
            return Ok(Reading {
                next: self.begin_at(next, since),
                taken: 0,
                seeks: true,
                entry: Some(index),
                owed: false,
                moved: false,
                fenced: false,
            });
        }
    }

    /// Takes a free entry, which no other space writes from then on.
    fn take_entry(&self, space: u8) -> Result<(&ReaderEntry, usize), NoEntry> {
        for (index, entry) in self.readers.iter().enumerate() {
            let word = entry.state.load(Ordering::Relaxed);
            // A word that no member writes is free too.
            if ReaderState::unpack(word) != ReaderState::Free {
                continue;
            }
            let joining = ReaderState::Joining { space }.pack();
            // Acquire: ours comes after what its last reader did.
            if entry
                .state
                .compare_exchange(word, joining, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                return Ok((entry, index));
            }
        }
        let entries = self.readers.len() as u64;
        Err(NoEntry { entries })
    }

    /// Whether it has an entry, and so can be linked.
    pub fn has_entry(&self, reading: &Reading) -> bool {
        reading.entry.is_some()
    }

    /// The entry of a reader, and whether a writer waits for it.
    pub fn entry(&self, reading: &Reading) -> Option<(u8, bool)> {
        let ours = u8::try_from(reading.entry?).ok()?;
        Some((ours, self.waited_for().any(|entry| entry == ours)))
    }

    /// Whether this entry has a reader that was not dropped.
    pub fn is_read_by(&self, entry: u8) -> bool {
        let entry = self.readers.get(usize::from(entry));
        entry.is_some_and(|entry| matches!(entry.state(), ReaderState::Live { .. }))
    }

    /// The entries of readers that a writer waits for.
    pub fn waited_for(&self) -> impl Iterator<Item = u8> {
        let entries = (0..=u8::MAX).zip(self.readers);
        entries.filter_map(|(index, entry)| {
            let ReaderState::Live { lagging, .. } = entry.state() else {
                return None;
            };
            (lagging == Lagging::Wait).then_some(index)
        })
    }

    /// Says what to raise when the reader must be woken, 0 for nothing. Before it arms.
    pub fn link(&self, reading: &Reading, link: u64) {
        if let Some(entry) = reading.entry.and_then(|i| self.readers.get(i)) {
            // SeqCst: pairs with the waker's look, after it has found a sleeper.
            entry.link.store(link, Ordering::SeqCst);
        }
    }

    /// Gives the entry back. [`Finished::Wake`]: the writer waits, and may go on.
    pub fn leave(&self, reading: Reading) -> Finished {
        if let Some(entry) = reading.entry.and_then(|i| self.readers.get(i)) {
            entry.link.store(0, Ordering::Relaxed);
            entry.handled.store(0, Ordering::Relaxed);
            entry.state.swap(ReaderState::Free.pack(), Ordering::AcqRel);
            return self.room_made();
        }
        Finished::Done
    }

    /// Copies the next message, if it is there and has one unit, to the beginning of `out`:
    /// its bytes, and what is owed. What [`Self::look`], [`Self::copy`] and
    /// [`Self::advance`] do with most messages, in one go; `None` leaves it to them.
    #[inline(always)]
    pub fn take_one(&self, reading: &mut Reading, out: &mut [u8]) -> Option<(usize, Finished)> {
        self.take_with(reading, ToBytes(out))
    }

    /// As [`Self::take_one`], by the caller's own copy, of so many bytes of the words: what it
    /// makes of them, which counts only if it is returned. If it makes nothing, the message
    /// stays.
    #[inline(always)]
    pub fn take_with<C: CopyOut>(
        &self,
        reading: &mut Reading,
        copy: C,
    ) -> Option<(C::Made, Finished)> {
        const WHOLE: u8 = Meta::FIRST | Meta::LAST | Meta::CLOSED;
        // By value: what is behind a reference is read again after the copy.
        let position = reading.next;
        let unit = self.unit(position);
        let stamp = unit.look();
        let is_next = stamp.phase() == UnitPhase::Done && stamp.position() == position;
        if !is_next || reading.taken > 0 || reading.owed || self.mode.many_writers {
            return None;
        }
        // Acquire: what it counts was written before it.
        let meta = Meta(unit.meta().load(Ordering::Acquire));
        if meta.flags() != WHOLE || meta.len() > self.shape.payload() {
            return None;
        }
        let copied = copy.copy_out(unit.payload(), meta.len())?;
        // As in `copy`.
        fence(Ordering::Acquire);
        if unit.stamp().load(Ordering::Relaxed) != stamp.0 {
            return None;
        }
        mark!("channel.copied");
        reading.seeks = false;
        reading.next = position + 1;
        Some((copied, self.stands_at(reading)))
    }

    /// What there is to read.
    #[inline]
    pub fn look(&self, reading: &mut Reading) -> Look {
        let begin = reading.next;
        loop {
            let unit = self.unit(reading.next);
            let stamp = unit.look();
            let (found, expected) = (stamp.position(), reading.next);
            if stamp.phase() == UnitPhase::Empty || found < expected {
                break;
            }
            if !(found - expected).is_multiple_of(self.shape.units) {
                return Look::Garbled(Garbled::Position { expected, found });
            }
            if found > expected {
                return self.overtaken(reading, begin, stamp.position());
            }
            if stamp.phase() == UnitPhase::Busy {
                break;
            }
            // Acquire: what it counts was written before it.
            let meta = Meta(unit.meta().load(Ordering::Acquire));
            if reading.seeks && !meta.has(Meta::FIRST) {
                if !meta.has(Meta::CLOSED) {
                    break;
                }
                reading.next += 1;
                continue;
            }
            if begin < reading.next {
                break;
            }
            let (len, most) = (meta.len(), self.shape.payload());
            if len > most {
                fence(Ordering::Acquire);
                if unit.stamp().load(Ordering::Relaxed) != stamp.0 {
                    // Overwritten while we looked.
                    continue;
                }
                let position = reading.next;
                return Look::Garbled(Garbled::Length {
                    position,
                    len,
                    most,
                });
            }
            if len <= reading.taken && !meta.has(Meta::CLOSED) {
                return Look::Nothing;
            }
            return Look::Unit {
                len: len.saturating_sub(reading.taken),
                flags: meta.flags(),
            };
        }
        if begin < reading.next {
            // The rest of a message whose beginning was missed.
            reading.owed |= self.stands_at(reading) == Finished::Wake;
            return Look::Missed(begin..reading.next);
        }
        Look::Nothing
    }

    fn overtaken(&self, reading: &mut Reading, begin: u64, seen: u64) -> Look {
        if let Some(entry) = reading.entry.and_then(|i| self.readers.get(i))
            && matches!(entry.state(), ReaderState::Dropped { .. })
        {
            return Look::Dropped;
        }
        // The stamp may be ahead of the writer's word, which it stores afterwards.
        let newest = self.head.writer.next.load(Ordering::Acquire);
        let newest = newest.clamp(seen + 1, seen + self.shape.units);
        let kept = newest.saturating_sub(self.keeps());
        reading.next = kept.max(reading.next + 1);
        reading.taken = 0;
        reading.seeks = true;
        reading.owed |= self.stands_at(reading) == Finished::Wake;
        Look::Missed(begin..reading.next)
    }

    /// Copies what [`Self::look`] found to the beginning of `out`, as much as fits there;
    /// `None` if it was overwritten meanwhile, or never was whole. Look again then.
    #[inline]
    pub fn copy(&self, reading: &Reading, out: &mut [u8]) -> Option<usize> {
        let unit = self.unit(reading.next);
        let before = unit.look();
        if before.phase() != UnitPhase::Done || before.position() != reading.next {
            return None;
        }
        let meta = Meta(unit.meta().load(Ordering::Acquire));
        let len = meta.len().min(self.shape.payload());
        let left = len.saturating_sub(reading.taken);
        let fits = left.min(out.len());
        let out = &mut out[..fits];
        bulk::load_at(unit.payload(), reading.taken, out);
        // Pairs with the release fence after `busy`: if a word of ours was of a later
        // position, the stamp below is too.
        fence(Ordering::Acquire);
        (unit.stamp().load(Ordering::Relaxed) == before.0).then_some(out.len())
    }

    /// Several writers: whether the unit that [`Self::copy`] copied whole to `out` is what
    /// one of them wrote at this position (M2).
    pub fn is_whole(&self, reading: &Reading, out: &[u8]) -> bool {
        let meta = Meta(self.unit(reading.next).meta().load(Ordering::Relaxed));
        let sum = sum::finish(reading.next, summed::of(out));
        sum == meta.checksum() && meta.len() == out.len()
    }

    /// Notes that `bytes` of this unit were read; goes on to the next if `closed`.
    #[inline]
    pub fn advance(&self, reading: &mut Reading, bytes: usize, closed: bool) -> Finished {
        reading.taken += bytes;
        if !closed {
            return Finished::Done;
        }
        reading.taken = 0;
        reading.seeks = false;
        reading.next += 1;
        let owed = core::mem::take(&mut reading.owed);
        if self.stands_at(reading) == Finished::Wake || owed {
            return Finished::Wake;
        }
        Finished::Done
    }

    /// Goes on to where a message begins: what was read of this one is of no use.
    pub fn seek(&self, reading: &mut Reading) {
        reading.seeks = true;
    }

    /// Several writers: whether the next unit is being written although a later one is done.
    /// Its writer may be stopped; how long to wait for it is the caller's to say.
    pub fn is_stuck(&self, reading: &Reading) -> bool {
        self.mode.many_writers && self.is_overtaken(reading, self.unit(reading.next).look())
    }

    /// Whether the next unit, which had this stamp, was being written and a later one is done.
    fn is_overtaken(&self, reading: &Reading, stamp: Stamp) -> bool {
        if stamp.phase() != UnitPhase::Busy || stamp.position() != reading.next {
            return false;
        }
        let next = self.unit(reading.next + 1).look();
        let later = next.phase() == UnitPhase::Done && next.position() > reading.next;
        // Where several are stopped side by side. Behind what it publishes each writer says
        // that the end is there; no other one does.
        later || self.head.writer.next.load(Ordering::Acquire) > reading.next + 1
    }

    /// Steps over a unit that is stuck.
    pub fn step_over(&self, reading: &mut Reading) -> Option<Range<u64>> {
        if !self.is_stuck(reading) {
            return None;
        }
        let missed = reading.next..reading.next + 1;
        reading.next += 1;
        Some(missed)
    }

    #[inline(always)]
    fn stands_at(&self, reading: &mut Reading) -> Finished {
        let Some(entry) = reading.entry.and_then(|i| self.readers.get(i)) else {
            return Finished::Done;
        };
        // A power of two.
        let quarter = self.shape.units / 4;
        let next = reading.next;
        if next & (quarter - 1) != 0 {
            // Release: we have copied what lies before.
            entry.cursor.store(next, Ordering::Release);
            reading.moved = self.mode.reliable;
            return Finished::Done;
        }
        reading.moved = false;
        // A locked instruction: the look for a waiting writer comes after it (M5).
        entry.cursor.swap(next, Ordering::AcqRel);
        mark!("channel.quarter_read");
        self.room_made()
    }

    /// Whether the writer waits for room. If it does, the caller must wake it
    /// ([`Self::rouse_writer`]).
    #[inline]
    pub fn room_made(&self) -> Finished {
        store_load_barrier();
        if self.head.room.waiting.load(Ordering::Relaxed) == 0 {
            Finished::Done
        } else {
            Finished::Wake
        }
    }

    /// After a look that found nothing: whether the writer waits (M5). It may want more room
    /// than there was at the last quarter of a lap, and this reader may never sleep. One look
    /// for as long as the reader does not move: a writer that waits from then on finds where
    /// it stands.
    #[inline]
    pub fn found_nothing(&self, reading: &mut Reading) -> Finished {
        if !(reading.moved || reading.owed) {
            return Finished::Done;
        }
        reading.moved = false;
        let owed = core::mem::take(&mut reading.owed);
        // The cursor was stored without a locked instruction.
        fence(Ordering::SeqCst);
        if self.room_made() == Finished::Wake || owed {
            return Finished::Wake;
        }
        Finished::Done
    }

    /// Announces sleep: the doorbell's value to sleep on, or `None` if there is something to
    /// read. Also tells whether the writer must be woken (M5).
    pub fn arm(&self, reading: &mut Reading, barriers: &impl Barriers) -> (Option<u32>, Finished) {
        let sleep = &self.head.sleep;
        let bell = sleep.doorbell.load(Ordering::Acquire);
        self.count_arming();
        mark!("channel.armed");
        reading.moved = false;
        let owed = core::mem::take(&mut reading.owed);
        let owed = if self.room_made() == Finished::Wake || owed {
            Finished::Wake
        } else {
            Finished::Done
        };
        store_load_barrier();
        self.fence_relaxed(reading, barriers);
        ((!self.has_more(reading)).then_some(bell), owed)
    }

    /// Has a barrier made in the writer's process if it makes none itself (M6).
    #[inline]
    pub(super) fn fence_relaxed(&self, reading: &mut Reading, barriers: &impl Barriers) {
        // Acquire: if it has just stopped, what it had published until then is seen below.
        if self.head.writer.relaxed.load(Ordering::Acquire) != 0 && !reading.fenced {
            self.fence_writer(reading, barriers);
        }
    }

    /// The writer makes no barriers: has them made for it (M6).
    #[cold]
    fn fence_writer(&self, reading: &mut Reading, barriers: &impl Barriers) {
        if barriers.everywhere() {
            return;
        }
        self.head.sleep.sleepers.fetch_or(FENCED, Ordering::SeqCst);
        barriers.by_time();
        reading.fenced = true;
    }

    /// Whether a look would find something, or a step over what is stuck.
    ///
    /// One look at the next unit answers both: its writer may publish it between two looks, and
    /// be stopped before it wakes this reader.
    #[inline]
    pub fn has_more(&self, reading: &Reading) -> bool {
        let unit = self.unit(reading.next);
        let stamp = unit.look();
        if stamp.position() < reading.next && !self.mode.many_writers {
            return false;
        }
        stamp.phase() != UnitPhase::Empty
            && (stamp.position() > reading.next
                || stamp.position() == reading.next && stamp.phase() == UnitPhase::Done && {
                    let meta = Meta(unit.meta().load(Ordering::Acquire));
                    meta.has(Meta::CLOSED) || meta.len() > reading.taken
                })
            || self.mode.many_writers && self.is_overtaken(reading, stamp)
    }
}
