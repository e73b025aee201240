//! Closes a segment while other processes may make rights on it from its name.
//!
//! A right that comes in a message is counted throughout (R1), so it keeps the segment open. A
//! right made from the name was counted nowhere before, so the status word decides which of closer
//! and joiner comes first:
//!
//! ```text
//! closer:  MARK the status word with its space    count all rights    EXCHANGE the marked word
//! joiner:  count its own right    look at the status word, and take a mark back
//! ```
//!
//! A space can *keep* a segment that it makes: a publisher keeps its buffers, and writes them again
//! and again. The status word says so from the beginning, and which space it is. The other spaces
//! make rights on the segment, drop them, and leave the rest to its keeper:
//!
//! ```text
//! keeper:  LET GO: take its space out of the status word    drop its own right    count all rights
//! others:  drop a right    look at the status word; count all rights unless the segment is kept
//! ```
//!
//! So who drops the last of its rights on a kept segment reads a word that does not change, and no
//! other space's row.
//!
//! # Invariants
//!
//! - **G1** A joiner that finds no mark has counted its right before any closer counts; one that
//!   takes a mark back makes that closer's exchange fail.
//! - **G2** A mark names its closer: a space, of which one thread at a time closes segments. So no
//!   exchange succeeds on a later mark than its own.
//! - **G3** No space marks a segment that is kept. Its keeper lets go of it before it drops its
//!   right; the host lets go in the place of a dead keeper, before it looks at all ports. So
//!   of the keeper, or the host, and the space that drops the last right beside it, one counts
//!   after both, and closes the segment.
//! - **G4** A segment that is kept no more is never kept again.
//!
//! A joiner writes nothing that others read, unless another space is closing the segment.

use crate::atomic::{Ordering, store_load_barrier};
use crate::queue::PortEntry;
use portolan_abi::port::{GENERATION_MASK, PortName, PortPhase, PortStatus};

/// A segment's status as its closer has marked it.
#[must_use = "a mark is used, or taken back"]
pub struct Mark<'r> {
    entry: &'r PortEntry,
    marked: PortStatus,
}

/// What a space finds that has made a right from a segment's name in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    /// The space that keeps the segment; 0, if it is kept no more, and never will be (G4).
    pub keeper: u8,
}

/// Whether the entry is the segment `port`, open.
pub fn is_segment(entry: &PortEntry, port: PortName) -> bool {
    names_segment(status_of(entry), port)
}

/// Whether a space that has the segment's name from its entry alone, and from no other space, may join
/// it: one that is kept is its keeper's, and those whom it told of it.
pub fn may_be_joined(entry: &PortEntry, port: PortName) -> bool {
    let status = status_of(entry);
    names_segment(status, port) && !is_kept(status)
}

/// Whether a right that was just counted came in time. If so, a closer that had counted before
/// finds its mark taken back, and closes nothing (G1).
pub fn joins_in_time(entry: &PortEntry, port: PortName) -> Option<Joined> {
    // The other half of the pair with `Mark::set`.
    store_load_barrier();
    loop {
        let was = PortStatus::unpack(entry.control.status.load(Ordering::SeqCst));
        if !names_segment(was, port) {
            return None;
        }
        if is_kept(was) {
            return Some(Joined { keeper: was.owner });
        }
        if was.owner == 0 || exchange(entry, was, unmarked(was)) {
            return Some(Joined { keeper: 0 });
        }
    }
}

/// Whether a space that has just dropped its last right on the segment `port` may leave the rest
/// to the space that keeps it (G3).
#[inline]
pub fn is_left_to_keeper(entry: &PortEntry, port: PortName) -> bool {
    // The other half of the pair with `let_go`.
    store_load_barrier();
    let status = PortStatus::unpack(entry.control.status.load(Ordering::SeqCst));
    names_segment(status, port) && is_kept(status)
}

/// The space that keeps the segment `port` does so no more. Afterwards it drops its right.
pub fn let_go(entry: &PortEntry, port: PortName, keeper: u8) {
    let was = status_of(entry);
    // Nobody else writes the word of a segment that is kept (G3).
    if names_segment(was, port) && is_kept(was) && was.owner == keeper {
        exchange(entry, was, unmarked(was));
        // Before rights are counted: see `is_left_to_keeper`.
        store_load_barrier();
    }
}

/// Host: a space has died that had its mark on the segment, or kept it. It is looked at again with
/// all ports.
pub fn forget_mark(entry: &PortEntry, marked: PortStatus) {
    exchange(entry, marked, unmarked(marked));
}

impl<'r> Mark<'r> {
    /// Marks the segment `port`, before the caller, of `space`, counts its rights; nothing if it
    /// is no more, or is kept (G3). The caller makes sure that no other thread of its space has a
    /// mark. The mark takes the place of another closer's, whose exchange fails then.
    pub fn set(entry: &'r PortEntry, port: PortName, space: u8) -> Option<Mark<'r>> {
        loop {
            let was = PortStatus::unpack(entry.control.status.load(Ordering::SeqCst));
            if !names_segment(was, port) || is_kept(was) {
                return None;
            }
            let marked = PortStatus {
                owner: space,
                ..was
            };
            if exchange(entry, was, marked) {
                // Before rights are counted: see `joins_in_time`.
                store_load_barrier();
                return Some(Self { entry, marked });
            }
            // Again: another closer may have taken its mark back, who counted before us.
        }
    }

    /// Takes the mark back, because the segment is in use. A joiner that came since has taken it
    /// back already.
    pub fn take_back(self) {
        exchange(self.entry, self.marked, unmarked(self.marked));
    }

    /// No space has a right: the segment is dead, and the marking space closes it; `false` if
    /// a joiner came.
    pub fn close(self) -> bool {
        let closing = PortStatus {
            phase: PortPhase::Closing,
            generation: self.marked.generation.wrapping_add(1) & GENERATION_MASK,
            shared: false,
            ..self.marked
        };
        exchange(self.entry, self.marked, closing)
    }
}

fn status_of(entry: &PortEntry) -> PortStatus {
    PortStatus::unpack(entry.control.status.load(Ordering::Acquire))
}

fn names_segment(status: PortStatus, port: PortName) -> bool {
    status.shared
        && status.generation == port.generation
        && matches!(status.phase, PortPhase::Open | PortPhase::Moving)
}

/// Whether the space in `owner` keeps the segment: else it has its mark on it, if there is one.
fn is_kept(status: PortStatus) -> bool {
    status.shared && status.owner != 0 && status.kept
}

fn unmarked(status: PortStatus) -> PortStatus {
    PortStatus {
        owner: 0,
        kept: false,
        ..status
    }
}

/// Changes the status from one word to another; `false` if it is a third one.
fn exchange(entry: &PortEntry, from: PortStatus, to: PortStatus) -> bool {
    let (from, to) = (from.pack(), to.pack());
    let status = &entry.control.status;
    // SeqCst: of the pairs of `joins_in_time` with `Mark::set`, and of `is_left_to_keeper` with
    // `let_go`.
    status
        .compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed)
        .is_ok()
}
