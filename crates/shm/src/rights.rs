//! Each space's counts of the rights that it holds.
//!
//! A row has one entry a port: how many send rights, and which send-once right, its
//! space holds. Only that space writes it (the host after its death), so using a
//! right costs nothing and copying one touches no shared line. The number of
//! senders of a port is the sum over all rows plus the rights in published slots.
//!
//! # Invariants
//!
//! - **R1** A right in a message is counted by its slot while that is published and
//!   not taken. The taker adds it to its row before it takes; the sender takes it
//!   from its row after it published. So a right is counted twice for a moment,
//!   never not at all.
//! - **R2** `epoch` of the region goes up before a right enters a row or slot, but for one
//!   that is made of a segment's name, whose status word tells of it. A sum that began and
//!   ended in one epoch and is zero is exact: nothing has entered a part after that was
//!   found empty, and what leaves makes no part less empty.
//! - **R3** A row counts the rights of one generation of a port's entry, the newest it
//!   has met. Rights of an older one are dead names: neither adding nor dropping one
//!   touches the count.

use crate::atomic::{AtomicU64, Ordering};
use crate::bulk;
use core::slice;
use portolan_abi::port::{GENERATION_MASK, PortName, RightCount, TAG_MASK};

/// A space's rights on one port.
#[repr(C)]
#[derive(Default)]
pub struct RightEntry {
    /// Send rights ([`RightCount`]).
    pub send: AtomicU64,
    /// Send-once rights ([`RightCount`], the count's upper bits being the tag of the last).
    pub once: AtomicU64,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<RightEntry>() as u64 == portolan_abi::region::RIGHT_BYTES);

/// One space's row.
#[derive(Clone, Copy)]
pub struct RightRow<'r> {
    entries: &'r [RightEntry],
}

/// Send-once rights that a space holds on a port: how many, and the request's tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Once {
    /// How many.
    pub count: u32,
    /// Tag of the request that the last of them answers.
    pub tag: u32,
    /// Generation of the port.
    pub generation: u32,
}

const ONCE_COUNT_BITS: u32 = 12;
/// A count that has reached this stays there: better one answer too many after the
/// space's death than a client who waits for ever.
const ONCE_MOST: u32 = (1 << ONCE_COUNT_BITS) - 1;

/// Whether `generation` is older than `than`, on the circle of generations.
fn is_older(generation: u32, than: u32) -> bool {
    let ahead = than.wrapping_sub(generation) & GENERATION_MASK;
    ahead != 0 && ahead <= GENERATION_MASK / 2
}

impl Once {
    fn unpack(word: u64) -> Self {
        let RightCount { count, generation } = RightCount::unpack(word);
        Self {
            count: count & ONCE_MOST,
            tag: count >> ONCE_COUNT_BITS & TAG_MASK,
            generation,
        }
    }

    fn pack(self) -> u64 {
        let count = self.count.min(ONCE_MOST) | (self.tag & TAG_MASK) << ONCE_COUNT_BITS;
        RightCount {
            count,
            generation: self.generation,
        }
        .pack()
    }
}

impl<'r> RightRow<'r> {
    /// The row over `entries`, one a port.
    pub fn new(entries: &'r [RightEntry]) -> Self {
        Self { entries }
    }

    /// Asks for the line that a change of the count of `port` would write to.
    #[inline]
    pub fn will_change(&self, port: PortName) {
        if let Some(entry) = self.entries.get(usize::from(port.index)) {
            bulk::will_write(slice::from_ref(&entry.send));
        }
    }

    /// Adds `by` send rights; the new count.
    pub fn add_send(&self, port: PortName, by: u32) -> u32 {
        self.change_send(port, |count| count.saturating_add(by))
    }

    /// Takes one send right away; the new count.
    pub fn drop_send(&self, port: PortName) -> u32 {
        self.change_send(port, |count| count.saturating_sub(1))
    }

    fn change_send(&self, port: PortName, change: impl Fn(u32) -> u32) -> u32 {
        let Some(entry) = self.entries.get(usize::from(port.index)) else {
            return 0;
        };
        let mut was = entry.send.load(Ordering::Acquire);
        loop {
            let held = RightCount::unpack(was);
            // R3: a dead name; the row counts a later port of this entry.
            if held.count > 0 && is_older(port.generation, held.generation) {
                return 0;
            }
            let now = RightCount {
                count: change(Self::of(was, port)),
                generation: port.generation,
            };
            match entry
                .send
                .compare_exchange(was, now.pack(), Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return now.count,
                Err(other) => was = other,
            }
        }
    }

    fn of(word: u64, port: PortName) -> u32 {
        let RightCount { count, generation } = RightCount::unpack(word);
        if generation == port.generation {
            count
        } else {
            0
        }
    }

    /// How many send rights on `port` the space holds.
    pub fn sends(&self, port: PortName) -> u32 {
        self.entries
            .get(usize::from(port.index))
            .map_or(0, |e| Self::of(e.send.load(Ordering::Acquire), port))
    }

    /// Adds a send-once right that answers the request `tag`.
    #[inline]
    pub fn add_once(&self, port: PortName, tag: u32) {
        self.change_once(port, |once| Once {
            count: (once.count + 1).min(ONCE_MOST),
            tag,
            ..once
        });
    }

    /// Notes the right to answer the request `tag`: the only one on this port, for a
    /// client's reply port has one request under way.
    #[inline]
    pub fn hold_answer(&self, port: PortName, tag: u32) {
        // A right to answer an earlier request may arrive late: its last holder died when it
        // had sent it on, and the client was answered for the dead and has asked again.
        let is_late = |was: u32| (1..=TAG_MASK / 2).contains(&(was.wrapping_sub(tag) & TAG_MASK));
        self.change_once(port, |once| {
            if once.count > 0 && is_late(once.tag) {
                once
            } else {
                Once {
                    count: 1,
                    tag,
                    ..once
                }
            }
        });
    }

    /// The request `tag` was answered, or its right sent on.
    ///
    /// By compare-exchange with what [`RightRow::hold_answer`] wrote: by now the row may
    /// note a later request of the same client, taken by another thread, or one whose reply
    /// port took the place of a client's that had given up (R3). Neither is ours to forget.
    #[inline]
    pub fn drop_answer(&self, port: PortName, tag: u32) {
        let Some(entry) = self.entries.get(usize::from(port.index)) else {
            return;
        };
        let once = |count, tag| {
            Once {
                count,
                tag,
                generation: port.generation,
            }
            .pack()
        };
        // Release: after the answer was published, for the host that reads it when we are dead.
        let _ = entry.once.compare_exchange(
            once(1, tag),
            once(0, 0),
            Ordering::Release,
            Ordering::Relaxed,
        );
    }

    /// Takes a send-once right away.
    #[inline]
    pub fn drop_once(&self, port: PortName) {
        self.change_once(port, |once| match once.count {
            ONCE_MOST => once,
            count => Once {
                count: count.saturating_sub(1),
                ..once
            },
        });
    }

    #[inline]
    fn change_once(&self, port: PortName, change: impl Fn(Once) -> Once) {
        let Some(entry) = self.entries.get(usize::from(port.index)) else {
            return;
        };
        let mut was = entry.once.load(Ordering::Relaxed);
        loop {
            let mut once = Once::unpack(was);
            if once.count > 0 && is_older(port.generation, once.generation) {
                return;
            }
            if once.generation != port.generation {
                once = Once {
                    count: 0,
                    tag: 0,
                    generation: port.generation,
                };
            }
            match entry.once.compare_exchange(
                was,
                change(once).pack(),
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(other) => was = other,
            }
        }
    }

    /// The send-once rights on the port with this index, if there are any.
    pub fn once(&self, index: u16) -> Option<Once> {
        let entry = self.entries.get(usize::from(index))?;
        Some(Once::unpack(entry.once.load(Ordering::Acquire))).filter(|o| o.count > 0)
    }

    /// The send rights on the port with this index, of whatever generation, if there are any.
    pub fn any_sends(&self, index: u16) -> Option<RightCount> {
        let entry = self.entries.get(usize::from(index))?;
        Some(RightCount::unpack(entry.send.load(Ordering::Acquire))).filter(|c| c.count > 0)
    }

    /// Host: forgets what a dead space held on the port with this index.
    pub fn forget(&self, index: u16) {
        if let Some(entry) = self.entries.get(usize::from(index)) {
            // Release: what followed from these rights has been done.
            entry.send.store(0, Ordering::Release);
            entry.once.store(0, Ordering::Release);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_right_of_an_older_port_leaves_the_count_of_a_later_one() {
        let entries = [RightEntry::default()];
        let row = RightRow::new(&entries);
        let older = PortName {
            index: 0,
            generation: 4,
        };
        let later = PortName {
            index: 0,
            generation: 5,
        };
        row.hold_answer(older, 1);
        // The client gave up; its entry is another client's port now.
        row.hold_answer(later, 1);
        row.drop_answer(older, 1);
        row.hold_answer(older, 2);
        assert_eq!(
            row.once(0),
            Some(Once {
                count: 1,
                tag: 1,
                generation: 5
            })
        );
        row.drop_answer(later, 1);
        assert_eq!(row.once(0), None);
    }

    #[test]
    fn a_late_drop_leaves_the_next_request_of_the_same_client() {
        let entries = [RightEntry::default()];
        let row = RightRow::new(&entries);
        let port = PortName {
            index: 0,
            generation: 4,
        };
        row.hold_answer(port, 1);
        // Answered; another thread has taken the next request before the answerer notes it.
        row.hold_answer(port, 2);
        row.drop_answer(port, 1);
        assert_eq!(
            row.once(0),
            Some(Once {
                count: 1,
                tag: 2,
                generation: 4
            })
        );
    }

    #[test]
    fn a_late_right_leaves_the_next_request_of_the_same_client() {
        let entries = [RightEntry::default()];
        let row = RightRow::new(&entries);
        let port = PortName {
            index: 0,
            generation: 4,
        };
        let later_is_held = |tag| {
            let generation = port.generation;
            let count = 1;
            let held = Once {
                count,
                tag,
                generation,
            };
            assert_eq!(row.once(0), Some(held));
        };
        for (earlier, later) in [(1, 2), (TAG_MASK, 1)] {
            row.hold_answer(port, later);
            row.hold_answer(port, earlier);
            later_is_held(later);
            row.drop_answer(port, earlier);
            later_is_held(later);
            row.drop_answer(port, later);
        }
    }
}
