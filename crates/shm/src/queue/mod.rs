//! A port's queue has any number of senders, and one space that receives.
//!
//! A ring of slots, each one or more cache lines. The slot's state word decides
//! everything; there is no index that leads to it, so a receiver that polls the
//! slot it expects next finds a small message with **one line transfer**.
//!
//! ```text
//!            claim                publish              take, retire
//! free(p) ----------> claimed(p) ----------> published(p) ----------> free(p+n)
//!    ^   (sender, CAS)    | (sender, one RMW)                 (receiver, one RMW)
//!    |                    | sender died
//!    +----- retire ----- void(p)
//! ```
//!
//! # Cost of a message (budget, lines and locked instructions)
//!
//! | step | lines that come from another core | locked instructions |
//! |---|---|---|
//! | claim | the slot (the receiver polls it) | 1 |
//! | write header and descriptors | - (same line) | 0 |
//! | publish | - | 1 |
//! | find and read | the slot | 0 |
//! | note as taken | - (a line that only this space writes) | 0 |
//! | retire, at the next receive | the slot, while the sender is at work | 1 |
//! | retire a passed slot | the same, and the senders' line | 2 |
//!
//! # Invariants
//!
//! - **Q1** Only the space that a slot's state names changes its words: the claimer while
//!   claimed, the receiver while published or void. While it is free any space may claim it. The
//!   host acts for the dead.
//! - **Q2** Positions of one slot only grow, also from one queue to the next that has its
//!   memory, or its entry. `free(p)` at ring index `p mod n` is claimed for position `p` and
//!   no other.
//! - **Q3** A sender leaves out position `p` in two cases only. Either the slot's state is already
//!   beyond `p`; or the slot is *passed* at an earlier position, and the sender has announced in
//!   `left_out` that it goes on beyond `p`. A passed slot becomes free at a position beyond every
//!   one that was left out. Hence a slot that is `free(p)` says that no message lies beyond `p`.
//! - **Q4** The receiver takes a message only after every slot that it has passed
//!   was found unpublished *after* the later one was seen published; so the
//!   messages of one sender are taken in the order in which they were sent.
//! - **Q5** A published message is taken once `head` has moved past it, or, in a
//!   passed slot, once the *passed* mark is off. Until then it belongs to the queue.
//! - **Q6** A sender that publishes while the receiver may be asleep is told so: by the
//!   ASLEEP bit in its slot, if it had claimed it before the receiver looked there, else
//!   by `asleep`, which it loads after claiming.
//! - **Q7** A sender that sleeps for room has announced it in `waiting` before its last
//!   look at the queue; the receiver looks at `waiting` after making room.
//!
//! Source of the idea of position-stamped slots: bounded queues after Vyukov;
//! dying senders, passing and the sleep marks are ours.

mod close;
mod events;
mod proxied;
mod receiver;
mod sender;

pub use close::{CloseStep, Closing};
pub use proxied::{Home, Proxied};
pub use receiver::{Cursor, Found, Next, Woken};
pub use sender::{AtSpot, Claim, ClaimError, Published, Spot};

use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use portolan_abi::limits::{MAX_NODE_NAME, MAX_SLOT_LINES, MAX_SLOTS, MIN_SLOTS};
use portolan_abi::slot::{Phase, SlotState};

/// One cache line of a queue.
#[repr(C, align(64))]
pub struct Line {
    /// Eight words; in a slot's first line: state, meta, six inline words.
    pub words: [AtomicU64; 8],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Line>() == portolan_abi::limits::LINE);

impl Line {
    /// A line of zeros, for tests and private queues.
    pub fn new() -> Self {
        Self {
            words: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

impl Default for Line {
    fn default() -> Self {
        Self::new()
    }
}

/// A port's entry: what senders, receiver and host share besides the slots.
///
/// Each group of fields has its own cache line, named after who writes it.
#[repr(C, align(64))]
#[derive(Default)]
pub struct PortEntry {
    /// Written at bind, move and close; read by every send.
    pub control: Control,
    /// Written by the receiving space alone.
    pub receiver: ReceiverLine,
    /// Written by the receiver when it falls asleep; read by every send.
    pub sleep: SleepLine,
    /// Written by every send.
    pub sender: SenderLine,
    /// Written by senders that wait for room; read by the receiver.
    pub room: RoomLine,
    /// Counters for people; of a proxied port, whose it is.
    pub counters: Counters,
    /// The port's name, zero-padded.
    pub name: Line,
    /// Written by every space that sends, takes or disposes of a message with a right on this port.
    pub rights: RightsLine,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<PortEntry>() as u64 == portolan_abi::region::PORT_BYTES);

/// See [`PortEntry::control`].
#[repr(C, align(64))]
#[derive(Default)]
pub struct Control {
    /// [`portolan_abi::port::PortStatus`].
    pub status: AtomicU64,
    /// [`portolan_abi::port::QueuePlace`], 0 before the first bind. It stays when the port is
    /// closed, for the handles of a dead name; whose the memory is says its owner word
    /// ([`crate::queue_memory`]).
    pub queue: AtomicU64,
    /// Where the receive right is being sent, while it moves.
    pub transit: AtomicU64,
    /// Slots as a limit that the binder chose (at most the ring's).
    pub capacity: AtomicU64,
    /// Time of binding, nanoseconds of the monotonic clock.
    pub bound_at: AtomicU64,
    /// Of a port whose messages go on to another domain: [`portolan_abi::port::Leaving`].
    /// [`ANY_BYTES`](portolan_abi::port::ANY_BYTES) for the others.
    pub most: AtomicU64,
}

/// See [`PortEntry::receiver`].
#[repr(C, align(64))]
#[derive(Default)]
pub struct ReceiverLine {
    /// Every unpassed position before it has been taken.
    pub head: AtomicU64,
    /// Messages taken.
    pub taken: AtomicU64,
    /// Void slots stepped over.
    pub voids: AtomicU64,
    /// Bytes in the extents of messages taken.
    pub bytes: AtomicU64,
}

/// See [`PortEntry::sleep`].
#[repr(C, align(64))]
#[derive(Default)]
pub struct SleepLine {
    /// The receiver sleeps, or is about to.
    pub asleep: AtomicU32,
    /// The receiver's futex.
    pub doorbell: AtomicU32,
    /// Wait set index plus one, member index in the upper half; 0 for none.
    pub wait_set: AtomicU64,
    /// Events that wait for the receiver, and the port's generation
    /// ([`portolan_abi::port::event`]).
    pub events: AtomicU32,
    /// Events that the receiver has asked for.
    pub wanted: AtomicU32,
    /// The request that will not be answered ([`portolan_abi::port::event::UNANSWERED`]): a
    /// send-once right as in a message, with the port's generation and the request's tag.
    pub unanswered: AtomicU64,
}

/// See [`PortEntry::sender`].
#[repr(C, align(64))]
#[derive(Default)]
pub struct SenderLine {
    /// A hint: no free position lies before it.
    pub tail: AtomicU64,
    /// Senders have left out positions before this one (Q3).
    pub left_out: AtomicU64,
}

/// See [`PortEntry::room`].
#[repr(C, align(64))]
#[derive(Default)]
pub struct RoomLine {
    /// Not 0: senders may sleep because the queue is full. Taken back by the receiver
    /// when it wakes them, so a sender that dies asleep leaves nothing behind.
    pub waiting: AtomicU32,
    /// Their futex.
    pub room: AtomicU32,
}

/// See [`PortEntry::counters`].
#[repr(C, align(64))]
#[derive(Default)]
pub struct Counters {
    /// Messages dropped because the queue was full.
    pub dropped: AtomicU64,
    /// Senders that found the queue full.
    pub full: AtomicU64,
    /// Of a proxied port: goes up before and after each change of the words below (V2).
    pub home_changes: AtomicU64,
    /// Since when its home's node is silent, nanoseconds of the monotonic clock; 0 while it is not.
    pub silent_since: AtomicU64,
    /// The name of its home's node, zero-padded.
    pub node: [AtomicU64; MAX_NODE_NAME / 8],
}

/// See [`PortEntry::rights`], and R2 of [`crate::rights`].
#[repr(C, align(64))]
#[derive(Default)]
pub struct RightsLine {
    /// Send rights on this port in messages that no receiver has taken
    /// ([`portolan_abi::port::Travelling`]).
    pub travelling: AtomicU64,
    /// How often a send right on a port of this entry has begun to travel. It never wraps:
    /// 64 bits last for centuries.
    pub departures: AtomicU64,
}

/// A port's queue: its entry and its slots.
#[derive(Clone, Copy)]
pub struct Queue<'r> {
    /// The port's entry.
    pub port: &'r PortEntry,
    lines: &'r [Line],
    slots: usize,
    slot_lines: usize,
}

/// Why memory is not a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a queue of {slots} slots of {slot_lines} lines does not fit {lines} lines: slots are a power of two from 2 to 65536, lines 1 to 8"
)]
pub struct QueueShape {
    /// Slots asked for.
    pub slots: usize,
    /// Lines a slot.
    pub slot_lines: usize,
    /// Lines given.
    pub lines: usize,
}

impl<'r> Queue<'r> {
    /// The queue of `port` over `lines`.
    pub fn new(
        port: &'r PortEntry,
        lines: &'r [Line],
        slot_lines: usize,
    ) -> Result<Self, QueueShape> {
        let slots = lines.len().checked_div(slot_lines).unwrap_or(0);
        let fits = (1..=MAX_SLOT_LINES).contains(&slot_lines)
            && (MIN_SLOTS..=MAX_SLOTS).contains(&slots)
            && slots.is_power_of_two()
            && slots * slot_lines == lines.len();
        if !fits {
            return Err(QueueShape {
                slots,
                slot_lines,
                lines: lines.len(),
            });
        }
        Ok(Self {
            port,
            lines,
            slots,
            slot_lines,
        })
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Lines of one slot.
    pub fn slot_lines(&self) -> usize {
        self.slot_lines
    }

    fn slots_u64(&self) -> u64 {
        self.slots as u64
    }

    /// The slot that `position` falls on.
    #[inline(always)]
    pub fn slot(&self, position: u64) -> Slot<'r> {
        let at = self.first_line_at(position);
        Slot {
            first: &self.lines[at],
            lines: self.lines,
            at,
            count: self.slot_lines,
        }
    }

    /// Where the slot that `position` falls on begins.
    #[inline(always)]
    fn first_line_at(&self, position: u64) -> usize {
        // A power of two: masking keeps the index in bounds whatever was read.
        let index = usize::try_from(position & (self.slots_u64() - 1)).unwrap_or(0);
        index * self.slot_lines
    }

    /// Makes every slot free, from position `from` on.
    ///
    /// Only the space that is binding the port (status `Binding`) calls it, with memory that is the
    /// port's. `from` must lie beyond every position that a sender of an earlier port can look for,
    /// be it one of this memory or of this entry ([`Queue::retired`]). Such a sender finds larger
    /// positions than it expects, never equal ones (Q2).
    pub fn open(&self, from: u64) {
        // No sender looks for position 0, which memory that was given up reads as.
        let from = from.max(1);
        // Release, all: a sender of an earlier port that reads one of these learns from the
        // status that its port is dead (see `Queue::claim`).
        self.port.receiver.head.store(from, Ordering::Release);
        self.port.sender.tail.store(from, Ordering::Release);
        self.port.sender.left_out.store(from, Ordering::Release);
        self.port.sleep.asleep.store(0, Ordering::Relaxed);
        for position in from..from + self.slots_u64() {
            // Release: a sender that sees the slot free sees head and tail; it reads with Acquire.
            self.slot(position).words()[0].store(SlotState::free(position).0, Ordering::Release);
        }
    }

    /// Of a queue that is wholly closed, a position beyond all that its senders can look for,
    /// now or later, and far enough beyond to be told from them; `None` if a slot is not closed.
    ///
    /// A sender goes no further than a lap and one beyond the last position that a slot of its
    /// queue ever had, and steps to the next position only where it finds one that is less than
    /// two laps ahead.
    pub fn retired(&self) -> Option<u64> {
        let n = self.slots_u64();
        let states = (0..n).map(|i| self.slot(i).state(Ordering::Acquire));
        let mut last = 0;
        for state in states {
            if state.phase() != Phase::Closed {
                return None;
            }
            last = last.max(state.position());
        }
        Some(last + 4 * n)
    }

    /// How many messages wait, as near as it can be told from outside.
    pub fn depth(&self) -> usize {
        (0..self.slots_u64())
            .filter(|i| self.is_untaken(self.slot(*i).state(Ordering::Acquire)))
            .count()
    }

    /// How many slots are free, as things are: of what was taken the slot may not be yet.
    pub fn free(&self) -> usize {
        (0..self.slots_u64())
            .filter(|i| {
                self.slot(*i).state(Ordering::Acquire).phase() == portolan_abi::slot::Phase::Free
            })
            .count()
    }

    /// Whether a slot in this state holds a message that no receiver has taken (Q5).
    pub fn is_untaken(&self, state: SlotState) -> bool {
        let holds = |state: SlotState| {
            state.phase() == portolan_abi::slot::Phase::Published && !state.has(SlotState::CLOSING)
        };
        // Acquire: pairs with the Release of the receiver that moves it.
        let head = self.port.receiver.head.load(Ordering::Acquire);
        if !holds(state) || state.position() >= head || state.has(SlotState::PASSED) {
            return holds(state);
        }
        // The head has gone beyond it: it was taken, or, since its state was read, passed. Then
        // its mark, which came before the head, is there now.
        let now = self.slot(state.position()).state(Ordering::Acquire);
        holds(now) && now.position() == state.position() && now.has(SlotState::PASSED)
    }
}

/// Changes the state of the slot that begins with this line.
#[inline(always)]
fn exchange(first: &Line, from: SlotState, to: SlotState) -> Result<SlotState, SlotState> {
    // AcqRel: publishes what the caller wrote before; sees what the last holder wrote.
    // SeqCst, because claim and sleep marks are one half of a store-load pair (Q6).
    match first.words[0].compare_exchange(from.0, to.0, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(was) => Ok(SlotState(was)),
        Err(is) => Err(SlotState(is)),
    }
}

/// One slot of a queue.
#[derive(Clone, Copy)]
pub struct Slot<'r> {
    first: &'r Line,
    // Where its lines are, for the few that look beyond the first.
    lines: &'r [Line],
    at: usize,
    count: usize,
}

impl<'r> Slot<'r> {
    fn words(&self) -> &'r [AtomicU64; 8] {
        &self.first.words
    }

    /// Its state.
    #[inline]
    pub fn state(&self, order: Ordering) -> SlotState {
        SlotState(self.words()[0].load(order))
    }

    #[inline(always)]
    fn exchange(&self, from: SlotState, to: SlotState) -> Result<SlotState, SlotState> {
        exchange(self.first, from, to)
    }

    /// Its meta word.
    #[inline]
    pub fn meta(&self) -> u64 {
        // Relaxed: the state was loaded with Acquire, and its claimer stored meta before.
        self.words()[1].load(Ordering::Relaxed)
    }

    /// The inline word `index`: six in the first line, eight in each other.
    #[inline]
    pub fn inline(&self, index: usize) -> &'r AtomicU64 {
        let at = index + 2;
        let line = match at / 8 {
            0 => self.first,
            beyond => &self.lines[self.at..self.at + self.count][beyond],
        };
        &line.words[at % 8]
    }

    /// How many inline words it has.
    #[inline]
    pub fn inline_words(&self) -> usize {
        self.count * 8 - 2
    }

    /// The inline words of the first line, read at one go: unrolled, as they are written.
    #[inline(always)]
    pub fn first_line(&self) -> [u64; 6] {
        let line = self.words();
        // Relaxed: as for meta.
        std::array::from_fn(|at| line[at + 2].load(Ordering::Relaxed))
    }

    /// The same, word by word to where they are to lie, so that no register holds more than one.
    #[inline(always)]
    pub fn copy_first_line(&self, into: &mut [u64; 6]) {
        let line = self.words();
        for (at, word) in into.iter_mut().enumerate() {
            // Relaxed: as for meta.
            *word = line[at + 2].load(Ordering::Relaxed);
        }
    }

    /// Copies inline words out, from word `first` on.
    #[inline]
    pub fn read(&self, first: usize, into: &mut [u64]) {
        // Relaxed: as for meta.
        if first + into.len() <= 6 {
            // All in the first line, which is what most messages are.
            for (word, from) in into.iter_mut().zip(&self.words()[first + 2..]) {
                *word = from.load(Ordering::Relaxed);
            }
            return;
        }
        for (i, word) in into.iter_mut().enumerate() {
            *word = self.inline(first + i).load(Ordering::Relaxed);
        }
    }
}
