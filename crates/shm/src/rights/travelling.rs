//! Counts send rights that travel, and decides whether a port has any send right left (R2).
//!
//! A right that moves from one space to another is counted by three words in turn: the
//! sender's row, the port's count of *travelling* rights, the taker's row. Each counts it
//! before the one before it forgets it:
//!
//! ```text
//! sender:  row.moving + 1    travelling + 1    departures + 1    PUBLISH    row.count - 1, moving - 1
//! taker:   row.count + 1, moving + 1    TAKE    travelling - 1    row.moving - 1
//! closer:  row.moving + 1    CLOSE THE SLOT    travelling - 1    row.moving - 1
//! ```
//!
//! The closer begins before it frees what the message held, for the list of its rights may be
//! there; the space that closes the slot after its death counts only what is left to read.
//!
//! # Why a count of zero is exact
//!
//! A count reads `departures` and `travelling`, then all rows, then both words again. A
//! right that moves meanwhile leaves the row of its sender after `departures` has gone up; so
//! a row that is read as empty because its right had left makes the second reading differ. A
//! right that was travelling at the first reading is in that count. Two processes alone make new
//! rights meanwhile: the receiver, which judges the notice when it takes it, and a process that
//! joins a segment by name, which takes the closer's mark back.
//!
//! A process that finds a right, or a change, stops counting: it need not count again, because the
//! other process will. Each process that gives up a right, or makes `travelling` smaller, counts
//! *afterwards*; of several that do so, the last finds every word zero. So a count costs one
//! look at each row, whatever goes on beside it.
//!
//! # Deaths
//!
//! A space that dies with `moving` above zero leaves `travelling` too large, perhaps, and never
//! too small. The host says so in the count (*doubtful*) before it empties the dead row. A
//! doubtful count is put right by the next process that counts, if it finds no row that is moving
//! such a right, before and after it has counted the rights in all slots, and neither word changed
//! ([`Doubt`]). The host counts for all doubtful ports at once: one look at each slot, however many
//! ports there are.

use super::{RightRow, counted};
use crate::atomic::{Ordering, store_load_barrier};
use crate::queue::{PortEntry, RightsLine};
use portolan_abi::port::{DOUBTS_MASK, MOST_SENDS, PortName, Travelling};

impl RightsLine {
    /// A send right on `port` begins to travel: before its message is published. `entry` is
    /// the port's.
    pub fn depart(&self, entry: &PortEntry, port: PortName) {
        counted::change(&self.travelling, entry, port, |was: Travelling| {
            Travelling {
                count: (was.count + 1).min(MOST_SENDS),
                ..was
            }
        });
        // After the count, and before the message is published: see "why zero is exact".
        self.departures.fetch_add(1, Ordering::SeqCst);
    }

    /// A send right on `port` has arrived, was disposed of, or stays with its sender: after its
    /// message was taken or its slot closed.
    pub fn arrive(&self, entry: &PortEntry, port: PortName) {
        counted::change(&self.travelling, entry, port, |was: Travelling| {
            Travelling {
                count: match was.count {
                    MOST_SENDS => MOST_SENDS,
                    count => count.saturating_sub(1),
                },
                ..was
            }
        });
    }

    /// Host: a space has died while it moved rights on `port`. Before its row is emptied.
    pub fn doubt(&self, entry: &PortEntry, port: PortName) {
        counted::change(&self.travelling, entry, port, |was: Travelling| {
            Travelling {
                doubtful: true,
                doubts: was.doubts.wrapping_add(1) & DOUBTS_MASK,
                ..was
            }
        });
    }

    /// How many send rights on `port` travel, as far as can be told.
    pub fn count(&self, port: PortName) -> u32 {
        counted::of::<Travelling>(self.travelling.load(Ordering::Acquire), port).count
    }
}

/// Whether no send right on `port` is left: in no row of `rows`, and in no message. See the
/// module's header for why the answer yes is exact, and why the answer no loses nothing.
///
/// `in_slots` counts the rights on `port` in all messages that no receiver has taken; it is asked
/// only after the death of a space that was moving such a right.
pub fn is_unused<'r, R>(
    entry: &PortEntry,
    port: PortName,
    rows: impl Fn() -> R,
    in_slots: impl Fn() -> u32,
) -> bool
where
    R: Iterator<Item = RightRow<'r>>,
{
    let line = &entry.rights;
    // Of two that give up the last two rights at once, one sees the other's row empty.
    store_load_barrier();
    loop {
        let departures = line.departures.load(Ordering::SeqCst);
        let word = line.travelling.load(Ordering::SeqCst);
        let travelling: Travelling = counted::of(word, port);
        let is_still = || {
            line.travelling.load(Ordering::SeqCst) == word
                && line.departures.load(Ordering::SeqCst) == departures
        };
        if travelling.count > 0 && !travelling.doubtful {
            return false;
        }
        let Some(moving) = moving(rows(), port) else {
            return false;
        };
        crate::mark!("rights.rows_read");
        if !travelling.doubtful {
            return is_still();
        }
        if moving {
            return false;
        }
        let doubt = Doubt {
            line,
            port,
            word,
            departures,
        };
        // Before the rows are looked at again, those of spaces too that have come meanwhile.
        let in_slots = in_slots();
        if !doubt.settle(rows(), in_slots) {
            return false;
        }
    }
}

/// A doubtful count, as it was before the rights in slots are counted.
#[must_use = "it stays doubtful until it is settled"]
pub struct Doubt<'r> {
    line: &'r RightsLine,
    port: PortName,
    word: u64,
    departures: u64,
}

impl<'r> Doubt<'r> {
    /// That of a port, if its count is doubtful, and no row is moving such a right now.
    pub fn of<'a, R>(entry: &'r PortEntry, port: PortName, rows: impl FnOnce() -> R) -> Option<Self>
    where
        R: Iterator<Item = RightRow<'a>>,
    {
        let line = &entry.rights;
        let departures = line.departures.load(Ordering::SeqCst);
        let word = line.travelling.load(Ordering::SeqCst);
        let is_doubtful = counted::of::<Travelling>(word, port).doubtful;
        let doubt = Self {
            line,
            port,
            word,
            departures,
        };
        (is_doubtful && !is_moving(rows(), port)).then_some(doubt)
    }

    /// The port.
    pub fn port(&self) -> PortName {
        self.port
    }

    /// Puts the count right, after so many rights were counted in slots; whether nothing has moved
    /// meanwhile. The rows are those of all spaces that there are after that count.
    pub fn settle<'a>(self, rows: impl Iterator<Item = RightRow<'a>>, in_slots: u32) -> bool {
        let line = self.line;
        // Again: a taker whose message was not counted has begun before it took.
        let is_still = !is_moving(rows, self.port)
            && line.travelling.load(Ordering::SeqCst) == self.word
            && line.departures.load(Ordering::SeqCst) == self.departures;
        if !is_still {
            return false;
        }
        let now = Travelling {
            count: in_slots.min(MOST_SENDS),
            doubtful: false,
            ..counted::of(self.word, self.port)
        };
        // Subtracts what a dead space has left in the count. The first corrector wins: after
        // another correction and another death the word differs by its number of doubts.
        let exchanged = line.travelling.compare_exchange(
            self.word,
            now.pack(),
            Ordering::SeqCst,
            Ordering::Relaxed,
        );
        crate::mark!("rights.corrected");
        exchanged.is_ok()
    }
}

/// Whether a row says that its space is moving a right on `port`.
fn is_moving<'r>(mut rows: impl Iterator<Item = RightRow<'r>>, port: PortName) -> bool {
    rows.any(|row| row.counts(port).moving > 0)
}

/// Whether a row says that its space is moving a right on `port`; nothing, if one has a right.
fn moving<'r>(rows: impl Iterator<Item = RightRow<'r>>, port: PortName) -> Option<bool> {
    let mut moving = false;
    for row in rows {
        let sends = row.counts(port);
        if sends.count > 0 {
            return None;
        }
        moving |= sends.moving > 0;
    }
    Some(moving)
}
