//! A right row counts the rights that one space holds.
//!
//! A row has one entry a port: how many send rights, and which send-once right, its
//! space holds. Only that space writes it (the host after its death), so using a
//! right costs nothing and copying one touches no shared line. The number of
//! senders of a port is the sum over all rows plus the rights that travel in messages,
//! which the port's entry counts.
//!
//! # Cost (locked instructions, on lines of the space's own unless said otherwise)
//!
//! | step | locked instructions |
//! |---|---|
//! | clone or drop a right | 1 |
//! | send one in a message | 2, and 2 on the line of the port that it is on |
//! | take one | 2, and 1 on that line |
//! | see whether a port has any left | 0; a load for each space |
//!
//! # Invariants
//!
//! - **R1** A right in a message is counted by its port's entry from before the message is
//!   published until after it is taken. The taker adds it to its row before it takes; the
//!   sender takes it from its row after it published. So a right is counted twice for a
//!   moment, never not at all.
//! - **R2** A port has no send right left if its entry counts none that travel, no row has one,
//!   and none has begun to travel meanwhile ([`is_unused`]). A space that moves a right says so
//!   in its row for as long as the entry's count may be wrong should it die.
//! - **R3** A row and an entry's count are of one port of the entry. A right on another one is
//!   counted, and takes the place of what was there, only if the entry is that port's *now*;
//!   else it is a dead name, and neither adding nor dropping it touches the count.

mod counted;
mod segment;
mod travelling;

pub use segment::{
    Joined, Mark, forget_mark, is_left_to_keeper, is_segment, joins_in_time, let_go, may_be_joined,
};
pub use travelling::{Doubt, is_unused};

use crate::atomic::{AtomicU64, Ordering};
use crate::bulk;
use crate::queue::PortEntry;
use core::slice;
use counted::is_present;
use portolan_abi::port::{MOST_SENDS, PortName, RightCount, SendCount, TAG_MASK};

/// A space's rights on one port.
#[repr(C)]
#[derive(Default)]
pub struct RightEntry {
    /// Send rights ([`SendCount`]).
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
    ports: &'r [PortEntry],
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
    /// The row over `entries`, one for each of `ports`.
    pub fn new(entries: &'r [RightEntry], ports: &'r [PortEntry]) -> Self {
        Self { entries, ports }
    }

    /// Asks for the line that a change of the count of `port` would write to.
    #[inline]
    pub fn will_change(&self, port: PortName) {
        if let Some(entry) = self.entries.get(usize::from(port.index)) {
            bulk::will_write(slice::from_ref(&entry.send));
        }
    }

    /// Adds a send right; the new count.
    pub fn add_send(&self, port: PortName) -> u32 {
        self.change_send(port, more).count
    }

    /// Takes one send right away; the new count.
    pub fn drop_send(&self, port: PortName) -> u32 {
        self.change_send(port, fewer).count
    }

    /// A message with a right on `port` is about to be sent, or to be disposed of unread: from
    /// here on, until [`Self::departed`] or [`Self::settled`], its count may be
    /// left wrong by our death.
    pub fn moves(&self, port: PortName) {
        self.change_send(port, begin);
    }

    /// The message was published: the right is not ours any more. The new count.
    pub fn departed(&self, port: PortName) -> u32 {
        self.change_send(port, |was| end(fewer(was))).count
    }

    /// A message with a right on `port` is about to be taken: the right is ours, too.
    pub fn arrives(&self, port: PortName) {
        self.change_send(port, |was| begin(more(was)));
    }

    /// The message was taken, disposed of, or not published after all, and the entry's count
    /// says so. The count of ours.
    pub fn settled(&self, port: PortName) -> u32 {
        self.change_send(port, end).count
    }

    fn change_send(&self, port: PortName, change: impl Fn(SendCount) -> SendCount) -> SendCount {
        let index = usize::from(port.index);
        let (Some(entry), Some(of)) = (self.entries.get(index), self.ports.get(index)) else {
            return SendCount::default();
        };
        counted::change(&entry.send, of, port, change).unwrap_or_default()
    }

    /// The send rights on `port` that the space holds, and is moving.
    pub fn counts(&self, port: PortName) -> SendCount {
        self.entries
            .get(usize::from(port.index))
            .map_or(SendCount::default(), |e| {
                counted::of(e.send.load(Ordering::SeqCst), port)
            })
    }

    /// How many send rights on `port` the space holds.
    pub fn sends(&self, port: PortName) -> u32 {
        self.counts(port).count
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
        let index = usize::from(port.index);
        let (Some(entry), Some(of)) = (self.entries.get(index), self.ports.get(index)) else {
            return;
        };
        let mut was = entry.once.load(Ordering::Relaxed);
        loop {
            let mut once = Once::unpack(was);
            if once.generation != port.generation {
                if once.count > 0 && !is_present(of, port) {
                    // R3: a dead name; the row notes a right on another port of this entry.
                    return;
                }
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

    /// The send rights on the port with this index, of whatever generation, if the space holds
    /// or moves any.
    pub fn any_sends(&self, index: u16) -> Option<SendCount> {
        let entry = self.entries.get(usize::from(index))?;
        Some(SendCount::unpack(entry.send.load(Ordering::Acquire)))
            .filter(|c| c.count > 0 || c.moving > 0)
    }

    /// Host: forgets what a dead space held on the port with this index.
    pub fn forget(&self, index: u16) {
        if let Some(entry) = self.entries.get(usize::from(index)) {
            // Release: what followed from these rights has been done.
            entry.once.store(0, Ordering::Release);
            // SeqCst, and a locked instruction: the host counts all rows afterwards, as a space does
            // that has dropped its last right (`is_unused`).
            entry.send.swap(0, Ordering::SeqCst);
        }
    }
}

fn more(was: SendCount) -> SendCount {
    SendCount {
        count: (was.count + 1).min(MOST_SENDS),
        ..was
    }
}

fn fewer(was: SendCount) -> SendCount {
    SendCount {
        count: match was.count {
            MOST_SENDS => MOST_SENDS,
            count => count.saturating_sub(1),
        },
        ..was
    }
}

fn begin(was: SendCount) -> SendCount {
    SendCount {
        moving: was.moving.saturating_add(1),
        ..was
    }
}

fn end(was: SendCount) -> SendCount {
    SendCount {
        moving: match was.moving {
            u16::MAX => u16::MAX,
            moving => moving.saturating_sub(1),
        },
        ..was
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use portolan_abi::port::{GENERATION_MASK, PortPhase, PortStatus};

    /// Makes the entry the port of this generation.
    fn bind(entry: &PortEntry, generation: u32) -> PortName {
        let status = PortStatus {
            phase: PortPhase::Open,
            generation,
            ..PortStatus::FRESH
        };
        entry.control.status.store(status.pack(), Ordering::Release);
        PortName {
            index: 0,
            generation,
        }
    }

    #[test]
    fn a_dead_name_that_is_kept_hides_no_live_right() {
        let (entries, ports) = ([RightEntry::default()], [PortEntry::default()]);
        let row = RightRow::new(&entries, &ports);
        for ahead in [1, (1 << 23) - 1, 1 << 23, (1 << 23) + 1, GENERATION_MASK] {
            let dead = bind(&ports[0], 5);
            row.add_send(dead);
            let live = bind(&ports[0], (5 + ahead) & GENERATION_MASK);
            assert_eq!(row.add_send(live), 1, "{ahead} later: it is counted");
            assert_eq!(row.sends(live), 1);
            assert_eq!(row.drop_send(dead), 0, "{ahead} later: a dead name is not");
            assert_eq!(row.sends(live), 1);
            row.add_once(live, 3);
            row.add_once(dead, 4);
            assert_eq!(row.once(0).map(|o| o.tag), Some(3));
            assert_eq!(row.drop_send(live), 0);
            row.drop_once(live);
        }
    }

    #[test]
    fn counts_that_are_full_stay_full() {
        let (entries, ports) = ([RightEntry::default()], [PortEntry::default()]);
        let row = RightRow::new(&entries, &ports);
        let port = bind(&ports[0], 1);
        let full = SendCount {
            count: MOST_SENDS,
            moving: u16::MAX,
            generation: 1,
        };
        entries[0].send.store(full.pack(), Ordering::Relaxed);
        row.arrives(port);
        row.departed(port);
        row.drop_send(port);
        assert_eq!(row.counts(port), full);
    }

    #[test]
    fn a_right_of_an_older_port_leaves_the_count_of_a_later_one() {
        let (entries, ports) = ([RightEntry::default()], [PortEntry::default()]);
        let row = RightRow::new(&entries, &ports);
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
        bind(&ports[0], later.generation);
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
        let (entries, ports) = ([RightEntry::default()], [PortEntry::default()]);
        let row = RightRow::new(&entries, &ports);
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
        let (entries, ports) = ([RightEntry::default()], [PortEntry::default()]);
        let row = RightRow::new(&entries, &ports);
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
