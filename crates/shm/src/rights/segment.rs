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
//! - **G1** A joiner that finds no mark has counted its right before any closer counts; one that
//!   takes a mark back makes that closer's exchange fail.
//! - **G2** A mark names its closer: a space, of which one thread at a time closes segments, or
//!   the one publisher that renames it. So no exchange succeeds on a later mark than its own.
//! - **G3** Nobody closes a segment that is marked to be renamed. The mark stays on it under its new
//!   name, under which nobody has a right, until its publisher has joined it; and its publisher is
//!   the only space that joins it by then. If the publisher dies, the host takes the mark back
//!   before it looks at all ports.
//!
//! A joiner writes nothing that others read, unless another space is closing it.

use crate::atomic::{Ordering, store_load_barrier};
use crate::queue::PortEntry;
use portolan_abi::port::{GENERATION_MASK, PortName, PortPhase, PortStatus};

/// What a mark is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To close the segment. The caller makes sure that no other thread of its space has a mark.
    Close,
    /// To give it another name. The caller is the only thread of its space that ever does.
    Rename,
}

/// A segment's status as its closer has marked it.
#[must_use = "a mark is used, or taken back"]
pub struct Mark<'r> {
    entry: &'r PortEntry,
    marked: PortStatus,
}

/// Whether the entry is the segment `port`, open.
pub fn is_segment(entry: &PortEntry, port: PortName) -> bool {
    let status = entry.control.status.load(Ordering::Acquire);
    names_segment(PortStatus::unpack(status), port)
}

/// Whether a space that has the segment's name from its entry alone, and from no other space, may join
/// it: one that is marked to be renamed is its publisher's (G3).
pub fn may_be_joined(entry: &PortEntry, port: PortName) -> bool {
    let status = PortStatus::unpack(entry.control.status.load(Ordering::Acquire));
    names_segment(status, port) && !is_renamed(status)
}

/// Whether a right that was just counted came in time. If so, a closer that had counted before
/// finds its mark taken back, and closes nothing (G1).
pub fn joins_in_time(entry: &PortEntry, port: PortName) -> bool {
    // The other half of the pair with `Mark::set`.
    store_load_barrier();
    loop {
        let was = PortStatus::unpack(entry.control.status.load(Ordering::SeqCst));
        if !names_segment(was, port) {
            return false;
        }
        if was.owner == 0 || exchange(entry, was, unmarked(was)) {
            return true;
        }
    }
}

/// Host: a space has died with its mark on the segment. It is looked at again with all ports.
pub fn forget_mark(entry: &PortEntry, marked: PortStatus) {
    exchange(entry, marked, unmarked(marked));
}

impl<'r> Mark<'r> {
    /// Marks the segment `port`, before the caller, of `space`, counts its rights; nothing if it
    /// is no more, or is to be closed while it is marked to be renamed (G3): that publisher has a
    /// right on it, or is about to. The mark takes the place of another closer's, whose exchange
    /// fails then.
    pub fn set(
        entry: &'r PortEntry,
        port: PortName,
        space: u8,
        purpose: Purpose,
    ) -> Option<Mark<'r>> {
        loop {
            let was = PortStatus::unpack(entry.control.status.load(Ordering::SeqCst));
            if !names_segment(was, port) || (is_renamed(was) && purpose == Purpose::Close) {
                return None;
            }
            let marked = PortStatus {
                owner: space,
                reissuing: purpose == Purpose::Rename,
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
            generation: later(self.marked),
            shared: false,
            ..self.marked
        };
        exchange(self.entry, self.marked, closing)
    }

    /// No other space has a right: the segment has another generation from here on, which is
    /// returned; nothing, if a joiner came. It stays marked until the caller joins it (G3).
    pub fn rename(self) -> Option<u32> {
        let generation = later(self.marked);
        let renamed = PortStatus {
            generation,
            ..self.marked
        };
        exchange(self.entry, self.marked, renamed).then_some(generation)
    }
}

fn names_segment(status: PortStatus, port: PortName) -> bool {
    status.shared
        && status.generation == port.generation
        && matches!(status.phase, PortPhase::Open | PortPhase::Moving)
}

/// Whether the segment's publisher renames it, and has not joined it under its new name yet.
fn is_renamed(status: PortStatus) -> bool {
    status.shared && status.owner != 0 && status.reissuing
}

fn later(status: PortStatus) -> u32 {
    status.generation.wrapping_add(1) & GENERATION_MASK
}

fn unmarked(status: PortStatus) -> PortStatus {
    PortStatus {
        owner: 0,
        reissuing: false,
        ..status
    }
}

/// Changes the status from one word to another; `false` if it is a third one.
fn exchange(entry: &PortEntry, from: PortStatus, to: PortStatus) -> bool {
    let (from, to) = (from.pack(), to.pack());
    let status = &entry.control.status;
    // SeqCst: of the pair of `joins_in_time` and `Mark::set`.
    status
        .compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed)
        .is_ok()
}
