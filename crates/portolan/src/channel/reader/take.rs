//! A reader copies a message out of the ring, unit by unit.

use super::super::wake_writer;
use super::{Missed, ReadError, Reader};
use portolan_shm::channel::{CopyOut, Finished, Look, Meta};
use portolan_shm::mark;
use portolan_sys::fork;

/// As much of a message as came so far.
#[derive(Default)]
pub(super) struct Draft {
    /// Its memory is kept.
    pub(super) buffer: Vec<u8>,
    pub(super) filled: usize,
    /// How much of that was handed out.
    pub(super) given: usize,
    /// Of what was handed out the beginning is no longer there.
    pub(super) cut: bool,
    /// The message is whole.
    pub(super) complete: bool,
    /// Where it begins.
    pub(super) begun: u64,
    /// Nothing has come of a message, or nothing is left of it: all of the above but the buffer is
    /// as [`Self::forget`] leaves it, and the reader is not over.
    pub(super) idle: bool,
}

impl Draft {
    /// There is a whole message that was not handed out.
    #[inline]
    pub(super) fn is_new(&self) -> bool {
        self.complete && self.given < self.filled
    }

    /// The message is of no use any more.
    #[inline]
    pub(super) fn forget(&mut self) {
        self.filled = 0;
        self.given = 0;
        self.cut = false;
        self.complete = false;
        self.idle = true;
    }
}

/// What a look brought.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Took {
    Nothing,
    /// More of a message.
    Piece,
    /// The rest of a message, or all of it.
    Whole,
}

impl Reader {
    /// Copies what is there, until a message is whole; or, of pieces, as much as there is.
    #[inline]
    pub(super) fn take(&mut self, whole: bool) -> Result<Took, ReadError> {
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
                self.draft.idle = false;
                return Ok(Took::Whole);
            }
        }
        self.take_pieces(whole)
    }

    /// The straight line: the next message is in one unit, and is copied to the beginning of the
    /// buffer; its bytes, and its position. `None`: nothing was taken, and [`Self::next`] is to be
    /// asked.
    #[inline(always)]
    pub(super) fn take_straight(&mut self) -> Option<(usize, u64)> {
        // The first of these before our own lines are looked at: a forked child has none.
        if fork::in_child() || self.is_traced() || !self.is_idle() {
            return None;
        }
        let channel = self.ring.channel();
        let begun = self.reading.position();
        let (len, finished) = channel.take_one(&mut self.reading, &mut self.draft.buffer)?;
        if finished == Finished::Wake {
            wake_writer(channel);
        }
        Some((len, begun))
    }

    /// The next message, by the caller's own copy, of so many bytes of the words; its position,
    /// and what the copy makes of it, which counts only if it is returned. `None` if there is
    /// none, or it takes more than one look: receive it then.
    #[inline(always)]
    pub(crate) fn take_with<C: CopyOut>(&mut self, copy: C) -> Option<(u64, C::Made)> {
        if fork::in_child() || !self.is_idle() {
            return None;
        }
        let channel = self.ring.channel();
        let at = self.reading.position();
        let (made, finished) = channel.take_with(&mut self.reading, copy)?;
        if finished == Finished::Wake {
            wake_writer(channel);
        }
        Some((at, made))
    }

    /// Whether nothing is left of an earlier message, and something may come.
    #[inline(always)]
    fn is_idle(&mut self) -> bool {
        self.draft.idle || self.becomes_idle()
    }

    // Out of the way of messages that are taken in a straight line one after another.
    #[inline(never)]
    fn becomes_idle(&mut self) -> bool {
        let draft = &mut self.draft;
        let is_through = draft.given == draft.filled && (draft.complete || draft.filled == 0);
        if !is_through || draft.cut || self.over.is_some() {
            return false;
        }
        draft.forget();
        true
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
                self.draft.idle = false;
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
            self.draft.idle = false;
            if closed && flags & Meta::LAST != 0 {
                self.draft.complete = true;
                return Ok(Took::Whole);
            }
        }
    }

    #[inline]
    pub(super) fn nothing(&mut self) -> Result<Took, ReadError> {
        self.tell_of_room();
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
            Look::Garbled(why) => self.end(ReadError::Garbled(why)),
            _ => self.end(ReadError::Dropped),
        }
    }

    /// Nothing can be read any more.
    fn end(&mut self, why: ReadError) -> ReadError {
        if !self.for_parcels {
            self.leave();
        }
        self.draft.idle = false;
        *self.over.insert(why)
    }
}
