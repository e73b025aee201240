//! Summarises the ready bits of many members upwards, so that one look finds a ready one.
//!
//! ```text
//!  summit:            1 word, one bit for 64 ridges' worth
//!  ridges:            8 words
//!  leaves:          512 words, one bit a member        32,768 members
//! ```
//!
//! A sender that wakes a port in a wait set sets its leaf bit, then the bits above,
//! then changes the doorbell and wakes the set: a cost that does not grow with the number of members.
//! The waiter clears a word before it looks below it, so a bit set meanwhile shows
//! up again (no wake-up is lost; a spurious one is possible).

use crate::atomic::{AtomicU32, AtomicU64, Ordering, store_load_barrier};
use portolan_abi::limits::MAX_PORTS;
use portolan_abi::region::WAIT_SET_BYTES;

// The model checker has every word to itself, so it gets fewer.
const LEAVES: usize = if cfg!(loom) { 128 } else { MAX_PORTS / 64 };
const RIDGES: usize = LEAVES / 64;
const REST: usize = if cfg!(loom) {
    0
} else {
    1024 - 8 - RIDGES - LEAVES
};
const _: () = assert!(WAIT_SET_BYTES == 1024 * 8);

/// A wait set's entry.
#[repr(C, align(64))]
pub struct WaitSetEntry {
    /// Owning space, plus one in the upper half while in use.
    pub owner: AtomicU64,
    /// The waiter's futex.
    pub doorbell: AtomicU32,
    /// The waiter sleeps, or a descriptor is armed.
    pub asleep: AtomicU32,
    summit: AtomicU64,
    spare: [AtomicU64; 5],
    ridges: [AtomicU64; RIDGES],
    /// A bit for each member that may be ready.
    pub leaves: [AtomicU64; LEAVES],
    rest: [AtomicU64; REST],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<WaitSetEntry>() as u64 == WAIT_SET_BYTES);

impl Default for WaitSetEntry {
    fn default() -> Self {
        fn zeros<const N: usize>() -> [AtomicU64; N] {
            core::array::from_fn(|_| AtomicU64::new(0))
        }
        Self {
            owner: AtomicU64::new(0),
            doorbell: AtomicU32::new(0),
            asleep: AtomicU32::new(0),
            summit: AtomicU64::new(0),
            spare: zeros(),
            ridges: zeros(),
            leaves: zeros(),
            rest: zeros(),
        }
    }
}

impl WaitSetEntry {
    /// Marks `member` ready; says whether the waiter must be woken.
    pub fn raise(&self, member: usize) -> bool {
        let leaf = member / 64 % LEAVES;
        // Release each, bottom up: a thread that sees a bit above finds the bit below (pairs with
        // `drain`).
        self.leaves[leaf].fetch_or(1 << (member % 64), Ordering::AcqRel);
        self.ridges[leaf / 64].fetch_or(1 << (leaf % 64), Ordering::AcqRel);
        self.summit.fetch_or(1 << (leaf / 64), Ordering::SeqCst);
        self.doorbell.fetch_add(1, Ordering::SeqCst);
        store_load_barrier();
        // SeqCst: pairs with `sleep`'s announcement and its look at the summit.
        self.asleep.load(Ordering::SeqCst) != 0
    }

    /// Announces sleep; the doorbell's value to sleep on, or `None` if something is ready.
    pub fn sleep(&self) -> Option<u32> {
        let bell = self.doorbell.load(Ordering::SeqCst);
        self.asleep.store(1, Ordering::SeqCst);
        store_load_barrier();
        if self.summit.load(Ordering::SeqCst) != 0 {
            self.asleep.store(0, Ordering::Relaxed);
            return None;
        }
        Some(bell)
    }

    /// The waiter is awake again.
    pub fn awake(&self) {
        self.asleep.store(0, Ordering::Relaxed);
    }

    /// Whether any member may be ready.
    pub fn is_raised(&self) -> bool {
        self.summit.load(Ordering::Acquire) != 0
    }

    /// Takes all ready members.
    pub fn drain(&self, mut ready: impl FnMut(usize)) {
        for r in bits(self.summit.swap(0, Ordering::AcqRel)) {
            for l in bits(self.ridges[r % RIDGES].swap(0, Ordering::AcqRel)) {
                let leaf = (r * 64 + l) % LEAVES;
                for b in bits(self.leaves[leaf].swap(0, Ordering::AcqRel)) {
                    ready(leaf * 64 + b);
                }
            }
        }
    }

    /// Forgets every bit; for a new owner.
    pub fn reset(&self) {
        self.drain(|_| {});
        for word in self.leaves.iter().chain(&self.ridges).chain([&self.summit]) {
            word.store(0, Ordering::Relaxed);
        }
        self.asleep.store(0, Ordering::Relaxed);
    }
}

fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let bit = word.trailing_zeros() as usize;
        word &= word.wrapping_sub(1);
        (bit < 64).then_some(bit)
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_raised_is_drained_once() {
        let set = Box::<WaitSetEntry>::default();
        for member in [0, 63, 64, 4095, 4096, 32_767] {
            set.raise(member);
        }
        let mut seen = Vec::new();
        set.drain(|m| seen.push(m));
        assert_eq!(seen, [0, 63, 64, 4095, 4096, 32_767]);
        assert!(!set.is_raised());
        set.drain(|m| panic!("{m} twice"));
    }

    #[test]
    fn a_waiter_does_not_sleep_over_a_ready_member() {
        let set = Box::<WaitSetEntry>::default();
        assert!(set.sleep().is_some());
        assert!(set.raise(5), "asleep, so a wake is owed");
        set.awake();
        assert_eq!(set.sleep(), None);
    }
}
