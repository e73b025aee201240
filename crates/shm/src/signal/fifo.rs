//! A FIFO queues the signals of one thread (S1 to S3).

use crate::atomic::{AtomicU32, AtomicU64, Ordering, pause, store_load_barrier};
use crate::bulk;
use crate::mark;
#[cfg(not(loom))]
use portolan_abi::region::FIFO_BYTES;
use portolan_abi::signal::{MAX_DEPTH, Slot};

// The model checker has every word to itself, so it gets fewer.
const SLOTS: usize = if cfg!(loom) { 4 } else { MAX_DEPTH };

const REST: usize = if cfg!(loom) { 0 } else { 1024 - 24 - SLOTS };

/// A FIFO's memory. Each group of fields has its own cache line, named after who writes it.
#[repr(C, align(64))]
pub struct FifoEntry {
    /// Written when it is opened and closed; read by every sender.
    pub control: FifoControl,
    /// Written by senders.
    pub senders: FifoSenders,
    /// Written by the reader.
    pub reader: FifoReader,
    slots: [AtomicU64; SLOTS],
    rest: [AtomicU64; REST],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<FifoEntry>() as u64 == FIFO_BYTES);

/// See [`FifoEntry::control`].
#[repr(C, align(64))]
#[derive(Default)]
pub struct FifoControl {
    /// The space that reads it; 0 while free.
    pub owner: AtomicU64,
    /// Slots, a power of two.
    pub depth: AtomicU64,
    /// The sleeping reader's futex.
    pub doorbell: AtomicU32,
    /// The thread that takes its signals as upcalls, 0 for none.
    pub thread: AtomicU32,
    /// The Unix signal by which it is called.
    pub signal: AtomicU32,
    /// What wait set the reader waits with, as in a port.
    pub wait_set: AtomicU64,
    /// Whether the reader sleeps (bit 0), and how many times it has said so.
    asleep: AtomicU64,
}

/// Of [`FifoControl`]: the reader sleeps, or is about to.
const ASLEEP: u64 = 1;

/// See [`FifoEntry::senders`].
#[repr(C, align(64))]
#[derive(Default)]
pub struct FifoSenders {
    /// About where the next signal goes: never after it, and as far before it as a sender
    /// that was stopped on the way left it.
    end: AtomicU64,
    /// Signals that found it full.
    dropped: AtomicU64,
}

/// See [`FifoEntry::reader`].
#[repr(C, align(64))]
#[derive(Default)]
pub struct FifoReader {
    /// Signals read.
    head: AtomicU64,
}

impl Default for FifoEntry {
    fn default() -> Self {
        Self {
            control: FifoControl::default(),
            senders: FifoSenders::default(),
            reader: FifoReader::default(),
            slots: core::array::from_fn(|_| AtomicU64::new(0)),
            rest: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

/// What became of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// The reader is awake, or has been told.
    Done,
    /// The reader sleeps: ring its doorbell.
    Wake,
    /// Every slot is full; the signal was dropped and counted.
    Full,
}

/// Where the one reader stands.
#[derive(Debug)]
pub struct Head {
    position: u64,
    /// The slot before it was read and not emptied yet (S6).
    owed: bool,
}

/// Looks that a sender makes near the end hint, which other senders have moved past, before
/// it asks the reader's line.
const NEAR: usize = 8;

/// Looks that a reader makes without a pause: nothing is half-written while it looks, so
/// there is no other sender to let pass.
const EAGER: u32 = 256;

/// A FIFO as senders and its reader use it.
#[derive(Clone, Copy)]
pub struct Fifo<'a> {
    entry: &'a FifoEntry,
    slots: &'a [AtomicU64],
}

impl<'a> Fifo<'a> {
    /// `None` if the entry's depth is not one that [`Self::open`] sets.
    #[inline]
    pub fn new(entry: &'a FifoEntry) -> Option<Self> {
        // Relaxed: set before the FIFO's number is given to any handler.
        let depth = usize::try_from(entry.control.depth.load(Ordering::Relaxed)).ok()?;
        let slots = entry.slots.get(..depth)?;
        depth.is_power_of_two().then_some(Self { entry, slots })
    }

    /// Makes a free entry a FIFO of `depth` slots, rounded up to a power of two and cut to
    /// what an entry has. What earlier users left is thrown away; a sender of theirs that
    /// comes late leaves an unhandled signal.
    pub fn open(entry: &'a FifoEntry, depth: usize) -> (Self, Head) {
        let depth = depth.clamp(1, SLOTS).next_power_of_two();
        // A new lap that no word in any slot has: its positions are beyond all that were used.
        let used = entry.reader.head.load(Ordering::Relaxed) + 2 * SLOTS as u64;
        let position = used.next_multiple_of(SLOTS as u64);
        for slot in &entry.slots[..depth] {
            let lap = position / depth as u64;
            slot.store(Slot::empty(lap).0, Ordering::Relaxed);
        }
        entry.reader.head.store(position, Ordering::Relaxed);
        entry.senders.end.store(position, Ordering::Relaxed);
        entry.senders.dropped.store(0, Ordering::Relaxed);
        entry.control.thread.store(0, Ordering::Relaxed);
        entry.control.wait_set.store(0, Ordering::Relaxed);
        // The count of its sleeps goes on: a late waker of the last reader's knows an older one.
        entry.control.asleep.fetch_and(!ASLEEP, Ordering::Relaxed);
        // Release: with the number, by whatever way it travels, goes an empty FIFO.
        entry.control.depth.store(depth as u64, Ordering::Release);
        let slots = &entry.slots[..depth];
        let head = Head {
            position,
            owed: false,
        };
        (Self { entry, slots }, head)
    }

    /// The memory behind it.
    pub fn entry(&self) -> &'a FifoEntry {
        self.entry
    }

    /// How many signals it holds at most.
    pub fn depth(&self) -> usize {
        self.slots.len()
    }

    /// Signals that found it full, since it was opened.
    pub fn dropped(&self) -> u64 {
        self.entry.senders.dropped.load(Ordering::Relaxed)
    }

    /// How many signals wait in it, as near as it can be told from outside.
    pub fn waiting(&self) -> usize {
        let filled = |slot: &&AtomicU64| Slot(slot.load(Ordering::Relaxed)).offset().is_some();
        self.slots.iter().filter(filled).count()
    }

    #[inline]
    fn slot(&self, position: u64) -> (&'a AtomicU64, u64) {
        // A power of two, which the compiler does not know: a division would show.
        let depth = self.slots.len();
        #[expect(clippy::cast_possible_truncation, reason = "below the depth")]
        let index = position as usize & (depth - 1);
        let lap = position >> depth.trailing_zeros();
        (&self.slots[index], lap % Slot::LAPS)
    }

    /// Adds a signal.
    #[inline]
    pub fn push(&self, offset: u64) -> Pushed {
        let mut position = self.entry.senders.end.load(Ordering::Relaxed);
        // Enough to find the end from the reader's head; the bound keeps garbage from
        // holding us.
        for look in 0..4 * self.slots.len().max(16) {
            if look == NEAR {
                // The hint is far behind: it was left by a sender that was stopped before
                // it wrote it. The end is not before the head.
                let head = self.entry.reader.head.load(Ordering::Relaxed);
                position = position.max(head);
            }
            let (slot, lap) = self.slot(position);
            // No look has found a signal, so the FIFO counts as empty: a look would bring the line
            // here to be read, and the exchange once more to be written.
            let empty = Slot::empty(lap);
            let filled = Slot::full(lap, offset).0;
            // The exchange asks for the line only when all before it is done; this does now.
            bulk::will_write(core::slice::from_ref(slot));
            mark!("signal.before_fill");
            // AcqRel. Release: the reader sees what we wrote before signalling. Acquire:
            // pairs with the reader's emptying, which it did after its last use.
            let found =
                match slot.compare_exchange(empty.0, filled, Ordering::AcqRel, Ordering::Relaxed) {
                    Ok(_) => {
                        mark!("signal.filled");
                        let end = &self.entry.senders.end;
                        end.store(position + 1, Ordering::Relaxed);
                        return self.owed();
                    }
                    Err(found) => Slot(found),
                };
            if is_before(found.lap(), lap) {
                // The signal of the lap before is still there.
                break;
            }
            // Full in this lap, or emptied since: the end is further on.
            position += 1;
        }
        self.entry.senders.dropped.fetch_add(1, Ordering::Relaxed);
        Pushed::Full
    }

    /// Whether the reader sleeps, after a slot was filled (S3).
    #[inline]
    fn owed(&self) -> Pushed {
        // The exchange before it is the first half of the pair with `arm`.
        store_load_barrier();
        if self.entry.control.asleep.load(Ordering::Relaxed) & ASLEEP == 0 {
            Pushed::Done
        } else {
            Pushed::Wake
        }
    }

    /// Wakes the reader by `wake`, which is to change the doorbell or to interrupt it.
    ///
    /// The mark is cleared only after that, so a waker that stops before delays no wake: the next
    /// sender finds the mark too. It stays if the reader has armed again meanwhile.
    pub fn rouse(&self, wake: impl FnOnce(&FifoControl)) {
        let asleep = &self.entry.control.asleep;
        // Acquire: pairs with `arm`; what we do comes after what the reader did before.
        let seen = asleep.load(Ordering::Acquire);
        wake(&self.entry.control);
        if seen & ASLEEP != 0 {
            let awake = seen & !ASLEEP;
            let _ = asleep.compare_exchange(seen, awake, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// The next signal, if there is one. Its slot is empty after the next call that takes
    /// `head` to be changed.
    #[inline]
    pub fn pop(&self, head: &mut Head) -> Option<u64> {
        self.settle(head);
        let (slot, _) = self.slot(head.position);
        // Acquire: pairs with the sender's release.
        let found = Slot(slot.load(Ordering::Acquire));
        let offset = found.offset()?;
        head.position += 1;
        head.owed = true;
        if self.slots.len() == 1 {
            // Its handler may signal, and there is no other slot.
            self.settle(head);
        }
        // Relaxed: observers show it, and the next listener that opens the entry begins there.
        self.entry
            .reader
            .head
            .store(head.position, Ordering::Relaxed);
        Some(offset)
    }

    /// Empties the slot that was read last (S6).
    #[inline]
    pub fn settle(&self, head: &mut Head) {
        if core::mem::take(&mut head.owed) {
            let (slot, lap) = self.slot(head.position - 1);
            // Release: pairs with the next sender's acquire.
            slot.store(Slot::empty(lap + 1).0, Ordering::Release);
        }
    }

    /// Whether [`Self::pop`] would find something.
    #[inline]
    pub fn is_ready(&self, head: &Head) -> bool {
        let (slot, _) = self.slot(head.position);
        Slot(slot.load(Ordering::Acquire)).offset().is_some()
    }

    /// The word where the next signal will be, and its value until then; `None` if it is
    /// there.
    #[inline]
    pub fn watch(&self, head: &mut Head) -> Option<(&'a AtomicU64, u64)> {
        self.settle(head);
        let (slot, _) = self.slot(head.position);
        let found = slot.load(Ordering::Acquire);
        Slot(found).offset().is_none().then_some((slot, found))
    }

    /// Announces sleep (S3); the doorbell's value to sleep on, or `None` if a signal is there.
    pub fn arm(&self, head: &mut Head) -> Option<u32> {
        self.settle(head);
        // Before the mark: a wake that follows it changes the value.
        let bell = self.entry.control.doorbell.load(Ordering::SeqCst);
        mark!("signal.before_arm");
        let asleep = &self.entry.control.asleep;
        // Relaxed: besides the reader only wakers write it, and they take the mark.
        let sleep = (asleep.load(Ordering::Relaxed) | ASLEEP).wrapping_add(2);
        // An exchange, before our last look: the first half of the pair with `owed`.
        asleep.swap(sleep, Ordering::AcqRel);
        store_load_barrier();
        if self.is_ready(head) {
            self.disarm();
            return None;
        }
        Some(bell)
    }

    /// The reader is awake again.
    pub fn disarm(&self) {
        let asleep = &self.entry.control.asleep;
        // Relaxed, both: a mark that a sender still sees costs it a wake in vain. Most often its
        // waker has taken it.
        if asleep.load(Ordering::Relaxed) & ASLEEP != 0 {
            asleep.fetch_and(!ASLEEP, Ordering::Relaxed);
        }
    }

    /// Waits, spinning, for at most `looks` looks.
    #[inline]
    pub fn spin(&self, head: &mut Head, looks: u32) -> bool {
        if self.is_ready(head) {
            return true;
        }
        self.settle(head);
        for look in 0..looks {
            if self.is_ready(head) {
                return true;
            }
            if look >= EAGER || cfg!(loom) {
                pause();
            }
        }
        self.is_ready(head)
    }
}

/// Whether lap `a` comes before lap `b`, counted modulo [`Slot::LAPS`].
fn is_before(a: u64, b: u64) -> bool {
    let ahead = b.wrapping_sub(a) % Slot::LAPS;
    ahead != 0 && ahead < Slot::LAPS / 2
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_hint_that_is_far_behind_holds_up_nobody() {
        let entry = FifoEntry::default();
        let (fifo, mut head) = Fifo::open(&entry, 4);
        let late = entry.senders.end.load(Ordering::Relaxed);
        for i in 0..100_000 {
            assert_eq!(fifo.push(i), Pushed::Done);
            assert_eq!(fifo.pop(&mut head), Some(i));
        }
        // A sender that was stopped since the first one goes on; and so does one that knew
        // the FIFO's memory when it was another's.
        for behind in [late, 0] {
            entry.senders.end.store(behind, Ordering::Relaxed);
            for i in 0..3 {
                assert_eq!(fifo.push(i), Pushed::Done);
            }
            let got: Vec<u64> = core::iter::from_fn(|| fifo.pop(&mut head)).collect();
            assert_eq!(got, [0, 1, 2]);
        }
        assert_eq!(fifo.dropped(), 0);
    }
}
