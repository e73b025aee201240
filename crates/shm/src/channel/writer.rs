//! A writer writes to a channel (M1, M3, M4, M5).

mod waking;

use super::{ASLEEP, Channel, FENCED, HANDLED, Lagging, Meta, ReaderState, Signalling, Unit};
use crate::atomic::{AtomicU64, Ordering, fence, in_program_order, store_load_barrier};
use crate::bulk::{self, summed};
use crate::mark;
use portolan_abi::channel::{POSITIONS, Stamp, UnitPhase};
use portolan_abi::limits::LINE;
use portolan_abi::sum;

/// Where a writer stands; one for each writer.
#[derive(Debug)]
pub struct Pen {
    /// The position that is written next.
    next: u64,
    /// Positions before this one may be written without a look at the readers; all, if
    /// the writer waits for no reader.
    limit: u64,
    /// Positions before this one may be written in a straight line: those before the limit, unless
    /// each message takes more than that.
    straight: u64,
    /// At positions before this one the line of a later unit is asked for ([`AHEAD`]).
    ahead: u64,
    /// Messages are written in a straight line, and signalled each, if at all.
    is_plain: bool,
    /// There are lines worth asking for.
    has_plenty: bool,
    /// Each message is signalled.
    signals_each: bool,
    /// Bytes of units since the last signal.
    unsignalled: u64,
    /// Payload bytes of the unit at `next`, which is being filled; `None` between messages
    /// and units.
    open: Option<usize>,
    /// No unit of this message has been finished.
    first: bool,
    space: u8,
    /// No reader was found asleep since this position.
    calm_since: u64,
    /// It publishes without a barrier (M6).
    relaxed: bool,
    may_relax: fn() -> bool,
    signals: u64,
    /// Units whose addresses it owes handlers (M8).
    pub(super) due: Vec<u64>,
}

/// Signals after which a writer that found no sleeper does without barriers: as many as
/// make up for what it costs the next reader that goes to sleep, by far.
const CALM: u64 = if cfg!(loom) { 1 } else { 256 };

/// What is said of a message of one unit.
const WHOLE: u8 = Meta::FIRST | Meta::LAST | Meta::CLOSED;

/// Lines that are asked for before they are written to: as many as are written while one
/// comes.
const AHEAD: u64 = 16;

impl Pen {
    /// Allows it to publish without barriers once it has found no reader asleep for a while.
    /// `may` says whether readers' [`Barriers`](super::Barriers) reach this process; it is
    /// asked now and then until they do, and from then on they must.
    pub fn relax_when(&mut self, may: fn() -> bool) {
        self.may_relax = may;
    }

    /// The position that is written next.
    pub fn position(&self) -> u64 {
        self.next
    }

    /// From now on positions before this one may be written without a look at the readers.
    fn limit_to(&mut self, limit: u64) {
        self.limit = limit;
        self.straight = if self.is_plain { limit } else { 0 };
        self.ahead = if self.has_plenty {
            limit.saturating_sub(AHEAD)
        } else {
            0
        };
    }

    /// How often it has signalled: looked for sleeping readers.
    pub fn signals(&self) -> u64 {
        self.signals
    }

    /// Whether a message was begun and not ended.
    #[inline]
    pub fn is_within_message(&self) -> bool {
        self.open.is_some() || !self.first
    }
}

/// Puts a message at the beginning of words: a closure, or a type of its own whose method the
/// compiler is told to put where it is used.
pub trait Fill {
    /// Does so.
    fn fill(self, words: &[AtomicU64]);
}

impl<F: FnOnce(&[AtomicU64])> Fill for F {
    #[inline(always)]
    fn fill(self, words: &[AtomicU64]) {
        self(words);
    }
}

/// What a writer owes after publishing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Finished {
    /// Nothing.
    Done,
    /// Readers sleep: ring their doorbell. Or they have handlers: signal them the units that
    /// [`Pen::take_due`] names.
    Wake,
}

impl Finished {
    fn or(self, other: Self) -> Self {
        if self == Self::Wake { self } else { other }
    }
}

/// Why nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotWritten {
    /// The readers': the slowest one that is waited for has not made room.
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
    /// The other writers': every place was taken under our hands. Back off, and try again.
    #[error("other writers took every place that was tried: try again in a moment")]
    Contended,
}

impl<'a> Channel<'a> {
    /// Goes on where the last writer stopped, as `space`.
    ///
    /// A channel of one writer has one pen: the caller must ensure that no other thread writes.
    pub fn resume_writing(&self, space: u8) -> Pen {
        // Acquire: pairs with the last writer's release.
        let next = self.head.writer.next.load(Ordering::Acquire);
        let mut next = next.min(POSITIONS - 1);
        // It may have died between publishing and saying so.
        while next < POSITIONS - 1 && Stamp::done(next, 0).is_same_use(self.unit(next).look()) {
            let meta = self.unit(next).meta();
            let was = Meta(meta.load(Ordering::Relaxed));
            if !was.has(Meta::CLOSED) {
                // It was growing; readers would wait for more of it.
                let closed = Meta::new(was.len(), was.flags() | Meta::CLOSED, was.checksum());
                meta.store(closed.0, Ordering::Release);
            }
            next += 1;
        }
        // Release: the last writer's are done, as are ours before we relax anew (M6).
        self.head.writer.relaxed.store(0, Ordering::Release);
        let signalling = self.mode.signalling;
        let mut pen = Pen {
            next,
            limit: 0,
            straight: 0,
            ahead: 0,
            // What else ends a signalling unit, the general way counts.
            is_plain: !(self.mode.many_writers || matches!(signalling, Signalling::Bytes(_))),
            has_plenty: self.shape.unit == LINE && self.shape.units >= 4 * AHEAD,
            signals_each: signalling == Signalling::Message,
            unsignalled: 0,
            open: None,
            first: true,
            space,
            calm_since: next,
            relaxed: false,
            may_relax: || false,
            signals: 0,
            due: Vec::new(),
        };
        pen.limit_to(if self.mode.reliable { next } else { u64::MAX });
        pen
    }

    /// Bytes that one message may have.
    pub fn longest(&self) -> usize {
        let units = if self.mode.many_writers {
            1
        } else if self.mode.reliable {
            self.shape.units
        } else {
            // A reader needs the time of half a lap at least to copy it.
            self.shape.units / 2
        };
        usize::try_from(units).unwrap_or(usize::MAX) * self.shape.payload()
    }

    /// Whether `units` more may be begun.
    #[inline]
    fn has_room(&self, pen: &mut Pen, units: u64) -> Result<(), NotWritten> {
        if units <= pen.limit.saturating_sub(pen.next) {
            return Ok(());
        }
        self.look_for_room(pen, units)
    }

    #[cold]
    fn look_for_room(&self, pen: &mut Pen, units: u64) -> Result<(), NotWritten> {
        // M4: pairs with the barrier in `join`: our position, then the readers.
        store_load_barrier();
        fence(Ordering::SeqCst);
        let mut slowest = pen.next;
        for entry in self.readers {
            let ReaderState::Live { space, lagging } = entry.state() else {
                continue;
            };
            // None of ours is ahead of what was written.
            let cursor = entry.cursor().min(pen.next);
            let lags = pen.next + units > cursor + self.shape.units;
            match lagging {
                Lagging::Wait => slowest = slowest.min(cursor),
                Lagging::Drop if lags => {
                    let (live, dropped) = (entry.state(), ReaderState::Dropped { space });
                    // Relaxed: if it fails the reader has left.
                    let _ = entry.state.compare_exchange(
                        live.pack(),
                        dropped.pack(),
                        Ordering::AcqRel,
                        Ordering::Relaxed,
                    );
                }
                Lagging::Drop | Lagging::Skip => {}
            }
        }
        pen.limit_to(slowest + self.shape.units);
        if pen.next + units <= pen.limit {
            self.stop_waiting();
            return Ok(());
        }
        Err(NotWritten::Full {
            room: pen.limit.saturating_sub(pen.next),
            wanted: units,
        })
    }

    /// The straight line: a message of `len` bytes, which `copy` puts at the beginning of the
    /// words, in one unit for which there is room. `None`: nothing was written, and the general
    /// way ([`Self::write`]) may write it, or says why not.
    #[inline(always)]
    pub fn write_straight(&self, pen: &mut Pen, len: usize, copy: impl Fill) -> Option<Finished> {
        if pen.next >= pen.straight || len > self.shape.payload() || pen.is_within_message() {
            return None;
        }
        // By value: what is behind a reference is read again after the copy.
        let (position, signals) = (pen.next, pen.signals_each);
        let done = Stamp::done(position, pen.space);
        let unit = self.begin(pen);
        copy.fill(unit.payload());
        let finished = self.publish(unit, pen, done, len, WHOLE, signals);
        self.advance_pen(pen, position + 1);
        Some(finished)
    }

    /// Writes one message, whose bytes are those of `parts` one after another.
    #[inline]
    pub fn write(&self, pen: &mut Pen, parts: &[&[u8]]) -> Result<Finished, NotWritten> {
        let len = parts.iter().map(|p| p.len()).sum();
        if len <= self.shape.payload() && !(self.mode.many_writers || pen.is_within_message()) {
            return self.write_unit(pen, parts, len);
        }
        self.write_units(pen, parts, len)
    }

    /// A message of one unit.
    #[inline]
    fn write_unit(
        &self,
        pen: &mut Pen,
        parts: &[&[u8]],
        len: usize,
    ) -> Result<Finished, NotWritten> {
        self.write_by(pen, len, |payload| {
            let mut at = 0;
            for part in parts {
                bulk::store_at(payload, at, part);
                at += part.len();
            }
        })
    }

    /// Writes one message of `len` bytes by the caller's own copy, to the beginning of the
    /// words; `None` if it does not fit a unit, or others write too.
    #[inline]
    pub fn write_with(
        &self,
        pen: &mut Pen,
        len: usize,
        copy: impl FnOnce(&[AtomicU64]),
    ) -> Option<Result<Finished, NotWritten>> {
        if len > self.shape.payload() || self.mode.many_writers || pen.is_within_message() {
            return None;
        }
        Some(self.write_by(pen, len, copy))
    }

    #[inline]
    fn write_by(
        &self,
        pen: &mut Pen,
        len: usize,
        copy: impl FnOnce(&[AtomicU64]),
    ) -> Result<Finished, NotWritten> {
        self.has_room(pen, 1)?;
        let unit = self.begin(pen);
        copy(unit.payload());
        Ok(self.publish_unit(unit, pen, len, WHOLE))
    }

    fn write_units(
        &self,
        pen: &mut Pen,
        parts: &[&[u8]],
        len: usize,
    ) -> Result<Finished, NotWritten> {
        if len > self.longest() {
            let most = self.longest();
            return Err(NotWritten::TooLong { len, most });
        }
        if self.mode.many_writers {
            return self.call(pen, parts, len);
        }
        let units = len.div_ceil(self.shape.payload()).max(1) as u64;
        self.has_room(pen, units)?;
        let mut finished = Finished::Done;
        for part in parts {
            let (done, owed) = self.append(pen, part)?;
            debug_assert!(done == part.len(), "there was room for it all");
            finished = finished.or(owed);
        }
        Ok(finished.or(self.end(pen)?))
    }

    /// Adds bytes to the message that is being written, or begins one; as many as there is
    /// room for. They are not visible before [`Self::show`], [`Self::end`] or the end of
    /// their unit.
    pub fn append(&self, pen: &mut Pen, mut bytes: &[u8]) -> Result<(usize, Finished), NotWritten> {
        let mut finished = Finished::Done;
        let mut done = 0;
        while !bytes.is_empty() {
            if pen.open == Some(self.shape.payload()) {
                finished = finished.or(self.close(pen, 0));
            }
            let filled = match pen.open {
                Some(filled) => filled,
                None => match self.has_room(pen, 1) {
                    Ok(()) => {
                        self.begin(pen);
                        pen.open = Some(0);
                        0
                    }
                    Err(full) if done == 0 => return Err(full),
                    Err(_) => break,
                },
            };
            let (now, later) = bytes.split_at(bytes.len().min(self.shape.payload() - filled));
            bulk::store_at(self.unit(pen.next).payload(), filled, now);
            pen.open = Some(filled + now.len());
            done += now.len();
            bytes = later;
        }
        Ok((done, finished))
    }

    /// Lets readers see what was appended so far.
    pub fn show(&self, pen: &mut Pen) -> Finished {
        match pen.open {
            Some(len) => {
                let unit = self.unit(pen.next);
                let signals = self.mode.signalling != Signalling::Never;
                let done = Stamp::done(pen.next, pen.space);
                self.publish(unit, pen, done, len, self.first_flag(pen), signals)
            }
            None => Finished::Done,
        }
    }

    /// Ends the message that is being written; one that was never begun is empty.
    pub fn end(&self, pen: &mut Pen) -> Result<Finished, NotWritten> {
        if pen.open.is_none() {
            self.has_room(pen, 1)?;
            self.begin(pen);
        }
        let finished = self.close(pen, Meta::LAST);
        pen.first = true;
        Ok(finished)
    }

    /// Leaves the message that is being written without an end: readers throw it away.
    pub fn abandon(&self, pen: &mut Pen) -> Finished {
        let finished = match pen.open {
            Some(_) => self.close(pen, 0),
            None => Finished::Done,
        };
        pen.first = true;
        finished
    }

    /// Begins all units of a message of `len` bytes, to be filled in place, in any order, and
    /// published by [`Self::commit`]. Given up by writing something else instead.
    pub fn claim(&self, pen: &mut Pen, len: usize) -> Result<(), NotWritten> {
        let most = self.longest();
        if len > most {
            return Err(NotWritten::TooLong { len, most });
        }
        let units = len.div_ceil(self.shape.payload()).max(1) as u64;
        self.has_room(pen, units)?;
        for position in pen.next..pen.next + units {
            let busy = Stamp::busy(position, pen.space);
            self.unit(position).stamp().store(busy.0, Ordering::Relaxed);
        }
        // As in `begin`.
        fence(Ordering::Release);
        mark!("channel.claimed");
        Ok(())
    }

    /// The words of the `index`-th unit of what was claimed.
    pub fn claimed(&self, pen: &Pen, index: u64) -> &'a [AtomicU64] {
        self.unit(pen.next + index).payload()
    }

    /// Publishes a claimed message of `len` bytes.
    pub fn commit(&self, pen: &mut Pen, len: usize) -> Finished {
        let payload = self.shape.payload();
        let (mut left, mut finished) = (len, Finished::Done);
        loop {
            let now = left.min(payload);
            left -= now;
            pen.open = Some(now);
            let last = if left == 0 { Meta::LAST } else { 0 };
            finished = finished.or(self.close(pen, last));
            if left == 0 {
                pen.first = true;
                return finished;
            }
        }
    }

    #[inline]
    fn first_flag(&self, pen: &Pen) -> u8 {
        if pen.first { Meta::FIRST } else { 0 }
    }

    #[inline(always)]
    fn begin(&self, pen: &Pen) -> Unit<'a> {
        if pen.next < pen.ahead {
            bulk::will_write(&self.words[self.first_word(pen.next + AHEAD)..]);
        }
        let busy = Stamp::busy(pen.next, pen.space);
        let unit = self.unit(pen.next);
        unit.stamp().store(busy.0, Ordering::Relaxed);
        // Pairs with the reader's acquire fence: who sees a word of what follows sees `busy`.
        fence(Ordering::Release);
        mark!("channel.begun");
        unit
    }

    /// Publishes the open unit and goes on to the next.
    #[inline]
    fn close(&self, pen: &mut Pen, last: u8) -> Finished {
        let len = pen.open.take().unwrap_or(0);
        let flags = self.first_flag(pen) | last | Meta::CLOSED;
        pen.first = false;
        self.publish_unit(self.unit(pen.next), pen, len, flags)
    }

    /// Publishes the unit at `next`, for good, and goes on to the next.
    #[inline]
    fn publish_unit(&self, unit: Unit<'_>, pen: &mut Pen, len: usize, flags: u8) -> Finished {
        let signals = match self.mode.signalling {
            Signalling::Never => false,
            Signalling::Message => flags & Meta::LAST != 0,
            Signalling::Bytes(bytes) => {
                pen.unsignalled += self.shape.unit as u64;
                pen.unsignalled >= u64::from(bytes)
            }
        };
        let done = Stamp::done(pen.next, pen.space);
        let finished = self.publish(unit, pen, done, len, flags, signals);
        self.advance_pen(pen, pen.next + 1);
        finished
    }

    /// Goes on to the position after the one that was published.
    #[inline(always)]
    fn advance_pen(&self, pen: &mut Pen, next: u64) {
        pen.next = next;
        // Release: a writer that continues at this position sees the units before it.
        self.head.writer.next.store(next, Ordering::Release);
        mark!("channel.advanced");
    }

    /// The commit point of the open unit, whose stamp will be `done`, or of what was added to it.
    #[inline(always)]
    fn publish(
        &self,
        unit: Unit<'_>,
        pen: &mut Pen,
        Stamp(done): Stamp,
        len: usize,
        flags: u8,
        signals: bool,
    ) -> Finished {
        // Release: pairs with `look`. The meta word first, for it counts only under a
        // stamp; in a unit that was shown before, it is itself what publishes.
        unit.meta()
            .store(Meta::new(len, flags, 0).0, Ordering::Release);
        mark!("channel.filled");
        if !signals {
            unit.stamp().store(done, Ordering::Release);
            return Finished::Done;
        }
        if pen.relaxed {
            // The look for sleepers comes after it as soon as one of them asks (M6).
            unit.stamp().store(done, Ordering::Release);
            in_program_order();
        } else {
            // A locked instruction: the look for sleepers comes after it (M5).
            unit.stamp().swap(done, Ordering::AcqRel);
            store_load_barrier();
        }
        mark!("channel.published");
        // The arming count does not matter here.
        let sleepers = self.head.sleep.sleepers.load(Ordering::Relaxed);
        let sleepers = sleepers & (ASLEEP | FENCED | HANDLED);
        pen.signals += 1;
        pen.unsignalled = 0;
        if sleepers == 0 && (pen.relaxed || pen.next.wrapping_sub(pen.calm_since) < CALM) {
            return Finished::Done;
        }
        self.attend(pen, sleepers)
    }

    // Several writers.

    /// Places that are tried before giving up.
    const TRIES: u64 = 64;

    /// Writes a message of one unit where others write too (M2).
    fn call(&self, pen: &mut Pen, parts: &[&[u8]], len: usize) -> Result<Finished, NotWritten> {
        let from = self.head.writer.next.load(Ordering::Relaxed).max(pen.next);
        let from = from.min(POSITIONS - 1 - Self::TRIES);
        let message = parts.concat();
        for position in from..from + Self::TRIES {
            if !self.take(position, pen.space) {
                // Not `pause`: it goes on to another place, and waits for no other writer.
                core::hint::spin_loop();
                continue;
            }
            mark!("channel.begun");
            let unit = self.unit(position);
            let sum = summed::store(unit.payload(), &message);
            let meta = Meta::new(len, WHOLE, sum::finish(position, sum));
            unit.meta().store(meta.0, Ordering::Relaxed);
            mark!("channel.filled");
            let busy = Stamp::busy(position, pen.space).0;
            let done = Stamp::done(position, pen.space).0;
            // Release: pairs with `look`. If it fails we were stopped for a whole lap, and
            // another writer has the unit: ours never was.
            let published =
                unit.stamp()
                    .compare_exchange(busy, done, Ordering::AcqRel, Ordering::Relaxed);
            if published.is_ok() {
                pen.next = position + 1;
                self.head
                    .writer
                    .next
                    .fetch_max(position + 1, Ordering::AcqRel);
                mark!("channel.published");
                return Ok(match self.mode.signalling {
                    Signalling::Never => Finished::Done,
                    _ => {
                        pen.signals += 1;
                        self.owed_at(pen, position)
                    }
                });
            }
        }
        Err(NotWritten::Contended)
    }

    /// Takes the unit of `position` from the writer that took it a lap ago, done or not.
    fn take(&self, position: u64, space: u8) -> bool {
        let unit: Unit<'a> = self.unit(position);
        let mut found = Stamp(unit.stamp().load(Ordering::Relaxed));
        let busy = Stamp::busy(position, space).0;
        // Until it is ours, or another writer has been here: a position without a writer would
        // hold up readers for a lap.
        while found.phase() == UnitPhase::Empty || found.position() < position {
            // Acquire: ours come after theirs.
            let taken =
                unit.stamp()
                    .compare_exchange(found.0, busy, Ordering::AcqRel, Ordering::Relaxed);
            match taken {
                Ok(_) => {
                    fence(Ordering::Release);
                    return true;
                }
                Err(now) => found = Stamp(now),
            }
        }
        false
    }
}
