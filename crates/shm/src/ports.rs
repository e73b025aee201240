//! Keeps which entries of ports are in use, and which is taken next.
//!
//! Entries are taken in turn, not lowest first: the generation of one entry, which tells its
//! ports apart, then goes up once a round and not once a bind. The round is as long as it must
//! be for half of its entries to be free, so that tables stay small where few ports are.
//!
//! # Invariants
//!
//! - **E1** An entry's bit is set and taken back by the space that has it in *binding*, or by
//!   the host when that space is dead. So every entry that is open, moving, closing or lingering
//!   has its bit; a search for ports looks at these bits only.
//! - **E2** Which entry comes next is a hint. The status word decides, by compare-exchange.

use crate::atomic::{AtomicU64, Ordering};
use portolan_abi::limits::{MAX_PORTS, MIN_ROUND};

/// The bits, and where the round is.
#[derive(Clone, Copy)]
pub struct PortsInUse<'r> {
    bits: &'r [AtomicU64],
    turn: &'r AtomicU64,
    ever: &'r AtomicU64,
}

impl<'r> PortsInUse<'r> {
    /// Over the caller's words. `ever` is how many entries were ever used: those before it.
    pub fn new(bits: &'r [AtomicU64], turn: &'r AtomicU64, ever: &'r AtomicU64) -> Self {
        Self { bits, turn, ever }
    }

    /// Free entries, as it seems, from the one whose turn it is on; each once.
    pub fn in_turn(&self) -> impl Iterator<Item = usize> + use<'r> {
        let this = *self;
        // Relaxed, all: hints (E2).
        let number = |word: &AtomicU64| usize::try_from(word.load(Ordering::Relaxed)).unwrap_or(0);
        let end = number(this.ever).next_multiple_of(MIN_ROUND);
        let end = end.clamp(MIN_ROUND, MAX_PORTS);
        let start = number(this.turn).min(end);
        let behind = move |_| {
            let (again, more) = ((0, start), (end, MAX_PORTS));
            if this.is_crowded(end) {
                [more, again]
            } else {
                [again, more]
            }
        };
        // Asked only when the rest of the round has none, so hardly more than once a round.
        let rest = core::iter::once(()).flat_map(behind);
        let parts = core::iter::once((start, end)).chain(rest);
        parts.flat_map(move |(from, to)| this.free(from, to))
    }

    /// Whether more than half of the entries before `end` are in use.
    fn is_crowded(&self, end: usize) -> bool {
        let words = self.bits.iter().take(end / 64);
        let used: u32 = words.map(|w| w.load(Ordering::Relaxed).count_ones()).sum();
        used as usize * 2 > end
    }

    /// Entries from `from` to `to` that are not in use.
    fn free(&self, from: usize, to: usize) -> impl Iterator<Item = usize> + use<'r> {
        let words = self.bits.iter().enumerate();
        let words = words.take(to.div_ceil(64)).skip(from / 64);
        words
            .flat_map(|(at, word)| ones(at, !word.load(Ordering::Relaxed)))
            .skip_while(move |index| *index < from)
            .take_while(move |index| *index < to)
    }

    /// An entry was taken: the next one's turn comes.
    pub fn pass(&self, index: usize) {
        self.turn.store(index as u64 + 1, Ordering::Relaxed);
    }

    /// Notes an entry that we have in *binding*.
    pub fn note(&self, index: usize) {
        if self.ever.load(Ordering::Relaxed) <= index as u64 {
            // SeqCst: as the bit.
            self.ever.fetch_max(index as u64 + 1, Ordering::SeqCst);
        }
        if let Some(word) = self.bits.get(index / 64) {
            // SeqCst: before the port is open, for those who look at all of them.
            word.fetch_or(1 << (index % 64), Ordering::SeqCst);
        }
    }

    /// Takes the note of an entry back, which we have in *binding*.
    pub fn forget(&self, index: usize) {
        if let Some(word) = self.bits.get(index / 64) {
            word.fetch_and(!(1 << (index % 64)), Ordering::SeqCst);
        }
    }

    /// Entries in use.
    pub fn iter(&self) -> impl Iterator<Item = usize> + use<'r> {
        let ever = usize::try_from(self.ever.load(Ordering::SeqCst)).unwrap_or(MAX_PORTS);
        let bits = &self.bits[..ever.div_ceil(64).min(self.bits.len())];
        let (mut next, mut word) = (0, 0u64);
        // By hand, and not of nested iterators: a fault handler walks here on a small stack.
        core::iter::from_fn(move || {
            while word == 0 {
                word = bits.get(next)?.load(Ordering::SeqCst);
                next += 1;
            }
            let bit = word.trailing_zeros() as usize;
            word &= word - 1;
            Some((next - 1) * 64 + bit)
        })
    }

    /// Whether an entry was ever used; looking at another one would give it memory.
    pub fn was_used(&self, index: u16) -> bool {
        u64::from(index) < self.ever.load(Ordering::SeqCst)
    }
}

/// The bits that are set in word `at`, as indices.
fn ones(at: usize, mut word: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let bit = word.trailing_zeros();
        word &= word.checked_sub(1)?;
        Some(at * 64 + bit as usize)
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Binds as many ports as `hold` says, the oldest closed first, and says which entries
    /// they had.
    fn bound(ports: &PortsInUse<'_>, binds: usize, hold: usize) -> Vec<usize> {
        let mut open = std::collections::VecDeque::new();
        let mut bound = Vec::new();
        for _ in 0..binds {
            if open.len() == hold {
                ports.forget(open.pop_front().unwrap());
            }
            let index = ports.in_turn().next().unwrap();
            assert!(!open.contains(&index), "{index} is in use");
            ports.note(index);
            ports.pass(index);
            open.push_back(index);
            bound.push(index);
        }
        bound
    }

    fn with<R>(run: impl FnOnce(&PortsInUse<'_>) -> R) -> R {
        let bits: Vec<_> = (0..MAX_PORTS / 64).map(|_| AtomicU64::new(0)).collect();
        let (turn, ever) = (AtomicU64::new(0), AtomicU64::new(0));
        run(&PortsInUse::new(&bits, &turn, &ever))
    }

    #[test]
    #[cfg_attr(miri, ignore = "thousands of entries take an interpreter hours")]
    fn entries_come_in_turn_and_few_are_used_where_few_are_open() {
        with(|ports| {
            let last = MIN_ROUND - 1;
            assert_eq!(bound(ports, last, 1), (0..last).collect::<Vec<_>>());
            // One that stays, at the very end: the round goes on at its begin all the same.
            ports.note(last);
            let next = bound(ports, 3 * MIN_ROUND, 1);
            assert!(next.iter().all(|index| *index < last), "{next:?}");
            assert_eq!(ports.iter().next(), Some(next[3 * MIN_ROUND - 1]));
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "thousands of entries take an interpreter hours")]
    fn the_round_grows_while_half_of_it_is_in_use() {
        with(|ports| {
            let held = MIN_ROUND * 3 / 4;
            let entries = bound(ports, 8 * MIN_ROUND, held);
            let most = entries.iter().max().unwrap() + 1;
            assert!(most > MIN_ROUND && most <= 2 * MIN_ROUND, "{most}");
            assert_eq!(ports.iter().count(), held);
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "thousands of entries take an interpreter hours")]
    fn every_entry_is_found_and_none_when_all_are_in_use() {
        with(|ports| {
            bound(ports, MAX_PORTS, MAX_PORTS);
            assert_eq!(ports.in_turn().next(), None);
            ports.forget(17);
            assert_eq!(ports.in_turn().collect::<Vec<_>>(), [17]);
            assert!(ports.was_used(u16::try_from(MAX_PORTS - 1).unwrap()));
        });
    }
}
