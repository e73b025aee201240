//! Tells the node of a domain which ports it has to look at, of all those that it has lent.
//!
//! A node lends other nodes rights on ports of its domain, on thousands of them. It wants to know of
//! each when it has closed, and when its receiver has asked to be told that no sender is left. For
//! each entry of a port there are two bits: the node sets *lent*; a space that closes a port, or that
//! asks, sets *changed*, and wakes the node.
//!
//! ```text
//!  node                              closer, or receiver that asks
//!  lend: the bit *lent*              the port's status, or its word of events that are asked for
//!  then: looks at the port           then: is the bit *lent* set?
//!                                    yes: the bits *changed* and above it, then wakes the node
//!  drain: takes those bits,
//!  and looks at these ports
//!
//!  bell | summary: 8 words | lent: 512 words | changed: 512 words             32,768 entries
//! ```
//!
//! A close, and a question for senders, read one word; a domain without a node pays no more. The
//! cost of a change does not grow with the number of ports that are lent, and neither does that of
//! finding it.
//!
//! # Invariants
//!
//! - **L1** The node sees a change when it looks at the port, after it has set its bit; or the space
//!   that makes the change sees the bit.
//! - **L2** A bit is of an entry and not of a port, and says that something may have changed. The
//!   port's name decides ([`look`]): the node compares its generation.
//! - **L3** A change that is told while the node takes others is not lost: bits are set from below, and
//!   taken from above.
//! - **L4** A space that has died between the change and the bell leaves no change untold: closing is
//!   gone on with by the host, from the start, and who has only asked is the port's receiver, whose
//!   ports the host closes.

use crate::atomic::{AtomicU64, Ordering, store_load_barrier};
use crate::queue::PortEntry;
use portolan_abi::limits::MAX_PORTS;
use portolan_abi::port::{PortName, PortPhase, PortStatus, event};
use portolan_abi::region::LENT_BYTES;

// The model checker has every word to itself, so it gets fewer.
const LEAVES: usize = if cfg!(loom) { 2 } else { MAX_PORTS / 64 };
const SUMMARY: usize = LEAVES.div_ceil(64);
const REST: usize = if cfg!(loom) { 0 } else { 512 - 8 - SUMMARY };
const _: () = assert!(LENT_BYTES == (512 + 2 * MAX_PORTS as u64 / 64) * 8);

/// The bits of all entries, and whom to tell.
#[repr(C, align(64))]
pub struct LentPorts {
    /// The node's port: a right word, or 0 while there is no node.
    bell: AtomicU64,
    spare: [AtomicU64; 7],
    /// A bit for each word of `changed`.
    summary: [AtomicU64; SUMMARY],
    rest: [AtomicU64; REST],
    lent: [AtomicU64; LEAVES],
    changed: [AtomicU64; LEAVES],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<LentPorts>() as u64 == LENT_BYTES);

impl Default for LentPorts {
    fn default() -> Self {
        fn zeros<const N: usize>() -> [AtomicU64; N] {
            core::array::from_fn(|_| AtomicU64::new(0))
        }
        Self {
            bell: AtomicU64::new(0),
            spare: zeros(),
            summary: zeros(),
            rest: zeros(),
            lent: zeros(),
            changed: zeros(),
        }
    }
}

/// What a node wants to know of a port that it has lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is closed.
    Closed,
    /// Its receiver wants to know when no sender is left, and was not told since it asked.
    WantsSenders,
}

/// What there is to know of `port`, whose entry this is.
pub fn look(entry: &PortEntry, port: PortName) -> Option<Change> {
    // SeqCst, both: after the bit was set (L1). The status after the word of events: if it is this
    // port's still, so was that.
    let wanted = entry.sleep.wanted.load(Ordering::SeqCst);
    let status = PortStatus::unpack(entry.control.status.load(Ordering::SeqCst));
    let lives = matches!(status.phase, PortPhase::Open | PortPhase::Moving);
    if !lives || status.generation != port.generation {
        return Some(Change::Closed);
    }
    (wanted & event::NO_MORE_SENDERS != 0).then_some(Change::WantsSenders)
}

impl LentPorts {
    /// Node: nothing is lent, and changes are told to the port `bell`. A space that has seen a bit of
    /// the node before may set one yet (L2).
    pub fn begin(&self, bell: u64) {
        for word in self.lent.iter().chain(&self.changed).chain(&self.summary) {
            // Relaxed: its own bits come after these by program order.
            word.store(0, Ordering::Relaxed);
        }
        // Release: before the first bit that leads here.
        self.bell.store(bell, Ordering::Release);
    }

    /// Node: nothing is lent any more, if this was told to `bell` still.
    pub fn end(&self, bell: u64) {
        let own = self
            .bell
            .compare_exchange(bell, 0, Ordering::Relaxed, Ordering::Relaxed);
        if own.is_err() {
            return;
        }
        for word in &self.lent {
            // Relaxed: a space that still sees a bit tells a port that is closed.
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Node: is told from here on when the port of this entry changes. It [looks](look) at the port
    /// after this (L1).
    pub fn lend(&self, index: u16) {
        let (leaf, bit) = place(index);
        self.lent[leaf].fetch_or(bit, Ordering::SeqCst);
        store_load_barrier();
    }

    /// Node: no port of this entry is lent any more.
    pub fn take_back(&self, index: u16) {
        let (leaf, bit) = place(index);
        // Relaxed: who sees the bit still tells of nothing that is waited for (L2).
        self.lent[leaf].fetch_and(!bit, Ordering::Relaxed);
    }

    /// Whether a port of this entry is lent: for a space that has closed it, or has asked for its
    /// senders, by a read-modify-write before this (L1).
    #[inline]
    pub fn is_lent(&self, index: u16) -> bool {
        let (leaf, bit) = place(index);
        store_load_barrier();
        self.lent[leaf].load(Ordering::SeqCst) & bit != 0
    }

    /// Says that the port of this entry has changed, which [is lent](Self::is_lent); the port to tell
    /// afterwards.
    #[cold]
    pub fn change(&self, index: u16) -> u64 {
        let (leaf, bit) = place(index);
        // Release each, from below (L3): who sees a bit above finds the one below it, and the change.
        self.changed[leaf].fetch_or(bit, Ordering::AcqRel);
        crate::mark!("lent.changing");
        self.summary[leaf / 64].fetch_or(1 << (leaf % 64), Ordering::SeqCst);
        // Acquire: pairs with `begin`.
        self.bell.load(Ordering::Acquire)
    }

    /// Node: whether a port may have changed. A node that sleeps looks after it has said so.
    #[inline]
    pub fn has_changed(&self) -> bool {
        store_load_barrier();
        let mut summary = self.summary.iter();
        // SeqCst: pairs with the change, after which the node is woken.
        summary.any(|word| word.load(Ordering::SeqCst) != 0)
    }

    /// Node: takes the entries whose ports may have changed, each once.
    pub fn drain(&self, mut changed: impl FnMut(u16)) {
        for (at, word) in self.summary.iter().enumerate() {
            // A swap of a word that is 0 would take the line from those that set bits in it.
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            for leaf in bits(word.swap(0, Ordering::AcqRel)).map(|bit| at * 64 + bit) {
                let Some(word) = self.changed.get(leaf) else {
                    continue;
                };
                for bit in bits(word.swap(0, Ordering::AcqRel)) {
                    changed(u16::try_from(leaf * 64 + bit).unwrap_or(0));
                }
            }
        }
    }
}

/// The word of an entry, and its bit there.
fn place(index: u16) -> (usize, u64) {
    let index = usize::from(index);
    // No member names an entry beyond the last; if it did, it would tell of another one (L2).
    (index / 64 % LEAVES, 1 << (index % 64))
}

/// The bits of a word, the lowest first.
fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let bit = word.trailing_zeros();
        word &= word.checked_sub(1)?;
        Some(bit as usize)
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const LAST: u16 = 32_767;

    #[test]
    fn changes_of_lent_ports_are_found_once_each() {
        let lent = Box::<LentPorts>::default();
        lent.begin(7);
        let entries = [0, 63, 64, 4095, 4096, 20_000, LAST];
        for index in entries {
            assert!(!lent.is_lent(index));
            lent.lend(index);
            assert!(lent.is_lent(index) && !lent.is_lent(index ^ 1));
        }
        assert!(!lent.has_changed());
        for index in entries {
            assert_eq!((lent.change(index), lent.change(index)), (7, 7));
        }
        let mut found = Vec::new();
        lent.drain(|index| found.push(index));
        assert_eq!(found, entries);
        assert!(!lent.has_changed());
        lent.drain(|index| panic!("{index} twice"));
        lent.take_back(64);
        assert!(!lent.is_lent(64) && lent.is_lent(63));
    }

    #[test]
    fn the_next_node_begins_with_nothing_lent() {
        let lent = Box::<LentPorts>::default();
        lent.begin(7);
        lent.lend(LAST);
        lent.change(LAST);
        lent.begin(8);
        assert!(!lent.is_lent(LAST) && !lent.has_changed());
        // One that saw the bit before.
        assert_eq!(lent.change(LAST), 8);
        lent.lend(5);
        lent.end(7);
        assert!(lent.is_lent(5), "another one's");
        lent.end(8);
        assert!(!lent.is_lent(5));
        assert_eq!(lent.change(5), 0);
    }

    #[test]
    fn a_port_is_looked_at_by_its_name() {
        let entry = PortEntry::default();
        let at = |generation| PortName {
            index: 0,
            generation,
        };
        let mut status = PortStatus {
            phase: PortPhase::Open,
            generation: 3,
            ..PortStatus::FRESH
        };
        let mut set = |phase| {
            status.phase = phase;
            entry.control.status.store(status.pack(), Ordering::SeqCst);
        };
        set(PortPhase::Moving);
        assert_eq!(look(&entry, at(3)), None);
        entry
            .sleep
            .wanted
            .store(event::NO_MORE_SENDERS, Ordering::SeqCst);
        set(PortPhase::Open);
        assert_eq!(look(&entry, at(3)), Some(Change::WantsSenders));
        // What the entry's next port asks for, an earlier one is not said to.
        assert_eq!(look(&entry, at(2)), Some(Change::Closed));
        for phase in [PortPhase::Closing, PortPhase::Lingering, PortPhase::Free] {
            set(phase);
            assert_eq!(look(&entry, at(3)), Some(Change::Closed));
        }
    }
}
