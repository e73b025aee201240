//! Queue memory records which port has which banks, and which banks have memory behind them.
//!
//! The queues of each width of slot have addresses of their own, cut into *banks* of 64 slots,
//! which are as many pages as a slot has lines. A queue takes a run of banks; the run is a power
//! of two of them and begins at a multiple of its length. What a port has taken it gives back
//! when it is closed, and a port of any other number of slots may take it then.
//!
//! ```text
//!           named by the entry, taken word by word              all words given back
//! free bank ---------------------------------------> owned bank ---------------------> free bank
//!   (0)        binder or sweeper (entry is Binding)   (entry + 1)   sweeper, or the host
//! ```
//!
//! # Why a sender that comes too late does no harm
//!
//! A send right keeps the place of its port's queue. Its sender looks at the port's status,
//! claims a slot by compare-exchange, and looks at the status again. Between the first look and
//! the claim the port may be closed, and its memory be another port's, with more or fewer slots.
//! Nothing on the way of a message prevents that. Two properties of the memory make it harmless:
//!
//! - A place where slots of one width begin is never anything else (U4). So the late sender
//!   compares a slot's state, never a byte of a message.
//! - The positions of a queue begin beyond every position that a late sender of an earlier queue
//!   can look for (U5). So its compare-exchange fails, and it learns that its port is closed.
//!
//! The same holds for what such a sender writes into the port's entry, which may be another
//! port's as well: it announces positions that the other port has behind it.
//!
//! # Invariants
//!
//! - **U1** A bank belongs to the port whose entry its owner word names. The word goes from 0 to
//!   an owner by compare-exchange, and back to 0 by the space that has the entry in *binding*
//!   (or by the host, when that space is dead). The queue of an open port is owned throughout.
//! - **U2** An entry names a run before the first of the run's words is taken, and names no other
//!   until all of them are given back. So the entry leads to all that a dead binder had taken.
//! - **U3** A bank's *taken* bit and its *memory* bit change by its owner's hand only. Hence the
//!   taken bit is set exactly while the bank is owned, but for the steps of taking and giving
//!   back; a search may rely on it and lose nothing.
//! - **U4** At a slot's place lies a slot's state, or zero, for as long as the region lives. A
//!   zero reads as free at position 0, and no sender looks for that.
//! - **U5** Before a queue's memory or entry is given back, `positions` goes beyond all that a
//!   sender of that queue can look for ([`crate::queue::Queue::retired`]); a queue is opened
//!   beyond `positions`, which is read after its banks were taken.
//! - **U6** A bank without its memory bit has no memory: the bit is set before memory is taken,
//!   and taken back after the memory was given up.
//!
//! No step blocks another space. A space that is stopped in the middle keeps its own banks.

use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::mark;
use core::ops::Range;

/// Hints for searches; any value is safe.
#[repr(C, align(64))]
#[derive(Default)]
pub struct BankHints {
    /// Word of bits where a search for one bank begins.
    pub low: AtomicU64,
    /// Banks that were ever taken: those before it. Not a hint: sums stop there.
    pub top: AtomicU64,
}

/// The queue memory of one width of slot.
#[derive(Clone, Copy)]
pub struct QueueMemory<'r> {
    hints: &'r BankHints,
    taken: &'r [AtomicU64],
    memory: &'r [AtomicU64],
    owners: &'r [AtomicU32],
}

/// Whose banks are: a port's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BankOwner(u32);

impl BankOwner {
    /// The port with this index.
    pub fn port(index: u16) -> Self {
        Self(u32::from(index) + 1)
    }
}

/// The bits of banks `first..first + count` that lie in one word: its index, and a mask.
fn masks(first: usize, count: usize) -> impl Iterator<Item = (usize, u64)> {
    let end = first + count;
    (first / 64..end.div_ceil(64)).map(move |word| {
        let (from, to) = (first.max(word * 64), end.min(word * 64 + 64));
        (word, (u64::MAX >> (64 - (to - from))) << (from % 64))
    })
}

impl<'r> QueueMemory<'r> {
    /// Over words that the caller placed: a bit a bank in `taken` and `memory`, a word a bank in
    /// `owners`.
    pub fn new(
        hints: &'r BankHints,
        taken: &'r [AtomicU64],
        memory: &'r [AtomicU64],
        owners: &'r [AtomicU32],
    ) -> Self {
        Self {
            hints,
            taken,
            memory,
            owners,
        }
    }

    /// Takes a run of `count` banks (a power of two) for `owner`: its first bank, or `None` if
    /// there is no such run. `name` has the owner's entry name the run that will be tried (U2).
    pub fn take(&self, owner: BankOwner, count: usize, mut name: impl FnMut(u32)) -> Option<u32> {
        let mut from = if count == 1 {
            // Relaxed: a hint.
            usize::try_from(self.hints.low.load(Ordering::Relaxed)).unwrap_or(0) * 64
        } else {
            0
        };
        let mut round = 0;
        // Ends: each turn goes on behind the run that was tried, or begins the last round.
        loop {
            let Some(first) = self.find(from, count) else {
                if round > 0 || from == 0 {
                    return None;
                }
                (from, round) = (0, 1);
                continue;
            };
            let bank = u32::try_from(first).ok()?;
            name(bank);
            mark!("banks.named");
            if self.claim(owner, first, count) {
                if count == 1 {
                    self.hints.low.store(first as u64 / 64, Ordering::Relaxed);
                }
                return Some(bank);
            }
            // Another space was faster, and its bits will tell.
            from = first + count;
        }
    }

    /// The first run of `count` banks, from bank `from` on, that seems to be free.
    fn find(&self, from: usize, count: usize) -> Option<usize> {
        let from = from.next_multiple_of(count);
        let words = count.div_ceil(64);
        let found = (from / 64..)
            .step_by(words)
            .take_while(|word| word * 64 < self.owners.len())
            .find_map(|word| {
                // Relaxed: a claim decides.
                let free = |at: usize| self.taken.get(at).map(|t| !t.load(Ordering::Relaxed));
                if words > 1 {
                    let all = (word..word + words).all(|at| free(at) == Some(u64::MAX));
                    return all.then_some(word * 64);
                }
                let before = if word == from / 64 { from % 64 } else { 0 };
                // The first place of each run whose bits are all free.
                let mut runs = free(word)? & u64::MAX << before;
                let mut span = 1;
                while span < count {
                    runs &= runs >> span;
                    runs &= Self::every(2 * span);
                    span *= 2;
                }
                (runs != 0).then(|| word * 64 + runs.trailing_zeros() as usize)
            })?;
        (found + count <= self.owners.len()).then_some(found)
    }

    /// Every `step`-th bit, from the lowest on.
    fn every(step: usize) -> u64 {
        (0..64).step_by(step).fold(0, |bits, at| bits | 1 << at)
    }

    /// Takes each bank of a run, or none.
    fn claim(&self, owner: BankOwner, first: usize, count: usize) -> bool {
        for bank in first..first + count {
            // Acquire: what its last owner did to it comes before.
            let won = self.owners.get(bank).is_some_and(|word| {
                word.compare_exchange(0, owner.0, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            });
            if !won {
                self.give_back(owner, first, bank - first);
                return false;
            }
            mark!("banks.claimed");
        }
        // SeqCst: before this owner opens its queue, for those who sum.
        let top = (first + count) as u64;
        if self.hints.top.load(Ordering::Relaxed) < top {
            self.hints.top.fetch_max(top, Ordering::SeqCst);
        }
        for (word, mask) in masks(first, count) {
            if let Some(taken) = self.taken.get(word) {
                taken.fetch_or(mask, Ordering::Relaxed);
            }
        }
        mark!("banks.taken");
        true
    }

    /// Gives back what `owner` has of a run. May be repeated.
    pub fn give_back(&self, owner: BankOwner, first: usize, count: usize) {
        let end = (first + count).min(self.owners.len());
        for (bank, word) in (first..end).zip(self.owners.get(first..end).unwrap_or(&[])) {
            // Relaxed: only we write our own mark, and take it away.
            if word.load(Ordering::Relaxed) != owner.0 {
                continue;
            }
            if let Some(taken) = self.taken.get(bank / 64) {
                taken.fetch_and(!(1 << (bank % 64)), Ordering::Relaxed);
            }
            mark!("banks.returning");
            // Release: all that we did to it comes before its next owner.
            #[cfg(not(loom))]
            word.store(0, Ordering::Release);
            // Loom lets a store slip between the two halves of a compare-exchange; nothing else does.
            #[cfg(loom)]
            word.swap(0, Ordering::Release);
        }
        // A hint, and so not exact.
        if self.hints.low.load(Ordering::Relaxed) > first as u64 / 64 {
            self.hints.low.store(first as u64 / 64, Ordering::Relaxed);
        }
    }

    /// Whether `owner` has the whole run.
    pub fn has(&self, owner: BankOwner, first: usize, count: usize) -> bool {
        self.owners
            .get(first..first + count)
            .is_some_and(|words| words.iter().all(|w| w.load(Ordering::Acquire) == owner.0))
    }

    /// The index of the port that has a bank, by its owner word.
    pub fn owner(&self, bank: usize) -> Option<u16> {
        let word = self.owners.get(bank)?.load(Ordering::Acquire);
        u16::try_from(word.checked_sub(1)?).ok()
    }

    /// Notes that the banks of a run have memory, for their owner, before it is taken (U6); the
    /// parts that had none.
    pub fn note_memory(&self, first: usize, count: usize) -> Vec<Range<usize>> {
        let mut fresh: Vec<Range<usize>> = Vec::new();
        for (word, mask) in masks(first, count) {
            let Some(memory) = self.memory.get(word) else {
                continue;
            };
            // Relaxed: no other space changes these bits while they are ours.
            if memory.load(Ordering::Relaxed) & mask == mask {
                continue;
            }
            // SeqCst: before the sum is read that this adds to.
            let had = memory.fetch_or(mask, Ordering::SeqCst);
            let new = (0..64).filter(|at| mask & !had & 1 << at != 0);
            for bank in new.map(|at| word * 64 + at) {
                match fresh.last_mut() {
                    Some(last) if last.end == bank => last.end += 1,
                    _ => fresh.push(bank..bank + 1),
                }
            }
        }
        mark!("banks.counted");
        fresh
    }

    /// Notes that the banks of a run have no memory any more, for their owner, after it was given
    /// up (U6).
    pub fn note_empty(&self, first: usize, count: usize) {
        for (word, mask) in masks(first, count) {
            if let Some(memory) = self.memory.get(word) {
                memory.fetch_and(!mask, Ordering::SeqCst);
            }
        }
        mark!("banks.emptied");
    }

    /// Words of bits up to the last bank that was ever taken.
    fn words(&self) -> usize {
        let top = usize::try_from(self.hints.top.load(Ordering::SeqCst)).unwrap_or(usize::MAX);
        top.div_ceil(64).min(self.taken.len())
    }

    /// Banks that have memory.
    pub fn with_memory(&self) -> usize {
        let words = self.memory.iter().take(self.words());
        words
            .map(|word| word.load(Ordering::SeqCst).count_ones() as usize)
            .sum()
    }

    /// Banks that have memory and no owner; the counting stops at `enough`.
    pub fn spare(&self, enough: usize) -> usize {
        let mut spare = 0;
        for (memory, taken) in self.memory.iter().zip(self.taken).take(self.words()) {
            let bits = memory.load(Ordering::Relaxed) & !taken.load(Ordering::Relaxed);
            spare += bits.count_ones() as usize;
            if spare >= enough {
                break;
            }
        }
        spare
    }

    /// Takes for `owner` a run of banks that have memory and no owner: one bank or 64 of them,
    /// not before bank `from`. `None` if there is none.
    pub fn take_spare(
        &self,
        owner: BankOwner,
        from: usize,
        mut name: impl FnMut(u32, usize),
    ) -> Option<(usize, usize)> {
        for word in from / 64..self.words() {
            let bits = self.memory.get(word)?.load(Ordering::Relaxed)
                & !self.taken.get(word)?.load(Ordering::Relaxed);
            let bits = bits & u64::MAX << if word == from / 64 { from % 64 } else { 0 };
            let whole = bits == u64::MAX;
            let ones = (0..64).filter(|at| bits & 1 << at != 0);
            let runs = whole.then_some((0, 64)).into_iter();
            for (at, count) in runs.chain(ones.map(|at| (at, 1))) {
                let first = word * 64 + at;
                name(u32::try_from(first).ok()?, count);
                if self.claim(owner, first, count) {
                    return Some((first, count));
                }
            }
        }
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    struct World {
        hints: BankHints,
        taken: Vec<AtomicU64>,
        memory: Vec<AtomicU64>,
        owners: Vec<AtomicU32>,
    }

    impl World {
        fn new(banks: usize) -> Self {
            let words = || (0..banks.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
            Self {
                hints: BankHints::default(),
                taken: words(),
                memory: words(),
                owners: (0..banks).map(|_| AtomicU32::new(0)).collect(),
            }
        }

        fn memory(&self) -> QueueMemory<'_> {
            QueueMemory::new(&self.hints, &self.taken, &self.memory, &self.owners)
        }
    }

    #[test]
    fn runs_begin_at_multiples_of_their_length_and_do_not_overlap() {
        let world = World::new(320);
        let memory = world.memory();
        let take = |port, count| memory.take(BankOwner::port(port), count, |_| {});
        assert_eq!(take(1, 1), Some(0));
        assert_eq!(take(2, 4), Some(4));
        assert_eq!(take(3, 2), Some(2));
        assert_eq!(take(4, 128), Some(128));
        assert_eq!(take(5, 64), Some(64));
        assert_eq!(take(6, 1), Some(1));
        assert_eq!(take(7, 128), None);
        assert_eq!(take(8, 64), Some(256));
        memory.give_back(BankOwner::port(4), 128, 128);
        memory.give_back(BankOwner::port(8), 256, 64);
        assert_eq!(take(9, 128), Some(128));
        assert_eq!(take(9, 256), None);
    }

    #[test]
    fn every_unit_is_found_again_whatever_the_hint_says() {
        let world = World::new(200);
        let memory = world.memory();
        for port in 0..200 {
            assert!(memory.take(BankOwner::port(port), 1, |_| {}).is_some());
        }
        assert_eq!(memory.take(BankOwner::port(200), 1, |_| {}), None);
        for bank in [150, 7, 63, 64] {
            memory.give_back(BankOwner::port(bank), usize::from(bank), 1);
            world.hints.low.store(2, Ordering::Relaxed);
            let again = memory.take(BankOwner::port(bank), 1, |_| {});
            assert_eq!(again, Some(u32::from(bank)));
        }
    }

    #[test]
    fn memory_is_noted_once_and_counted_until_it_is_given_up() {
        let world = World::new(256);
        let memory = world.memory();
        let owner = BankOwner::port(0);
        assert_eq!(memory.take(owner, 128, |_| {}), Some(0));
        memory.note_memory(3, 1);
        let fresh = memory.note_memory(0, 128);
        assert_eq!(fresh, [0..3, 4..128]);
        assert_eq!((memory.with_memory(), memory.spare(1)), (128, 0));
        memory.give_back(owner, 0, 128);
        assert_eq!((memory.with_memory(), memory.spare(usize::MAX)), (128, 128));
        let mut named = Vec::new();
        let taken = memory.take_spare(owner, 0, |first, count| named.push((first, count)));
        assert_eq!((taken, named), (Some((0, 64)), vec![(0, 64)]));
        memory.note_empty(0, 64);
        memory.give_back(owner, 0, 64);
        assert_eq!(memory.with_memory(), 64);
        assert_eq!(memory.take_spare(owner, 65, |_, _| {}), Some((65, 1)));
    }
}
