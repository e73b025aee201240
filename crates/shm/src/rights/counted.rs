//! A counted word counts send rights on one port of an entry after another, and says which port
//! that is (R3 of [`super`]): a space's row has such a word, and so has the entry itself.

use crate::atomic::{AtomicU64, Ordering};
use crate::queue::PortEntry;
use portolan_abi::port::{PortName, PortStatus, SendCount, Travelling};

/// What such a word holds.
pub(super) trait Count: Copy {
    fn unpack(word: u64) -> Self;
    fn pack(self) -> u64;
    fn generation(self) -> u32;
    /// No right on the port of this generation.
    fn none(generation: u32) -> Self;
}

macro_rules! counts {
    ($($word:ty),*) => {$(
        impl Count for $word {
            fn unpack(word: u64) -> Self {
                Self::unpack(word)
            }

            fn pack(self) -> u64 {
                self.pack()
            }

            fn generation(self) -> u32 {
                self.generation
            }

            fn none(generation: u32) -> Self {
                Self {
                    generation,
                    ..Self::default()
                }
            }
        }
    )*};
}

counts!(SendCount, Travelling);

/// What the word counts of `port`: nothing, if it counts another port of the entry.
pub(super) fn of<C: Count>(word: u64, port: PortName) -> C {
    let count = C::unpack(word);
    if count.generation() == port.generation {
        count
    } else {
        C::none(port.generation)
    }
}

/// Changes what the word counts of `port`, which `entry` is; returns the new count. Nothing, if
/// that is a dead name and the word counts another port of the entry.
pub(super) fn change<C: Count>(
    word: &AtomicU64,
    entry: &PortEntry,
    port: PortName,
    change: impl Fn(C) -> C,
) -> Option<C> {
    let mut was = word.load(Ordering::Acquire);
    loop {
        if C::unpack(was).generation() != port.generation && !is_present(entry, port) {
            return None;
        }
        let now = change(of(was, port));
        // SeqCst: the first half of the pair with the words that a space reads which counts
        // (`is_unused`).
        match word.compare_exchange(was, now.pack(), Ordering::SeqCst, Ordering::Acquire) {
            Ok(_) => return Some(now),
            Err(other) => was = other,
        }
    }
}

/// Whether the entry is of the port of this name now.
pub(super) fn is_present(entry: &PortEntry, port: PortName) -> bool {
    let status = entry.control.status.load(Ordering::Acquire);
    PortStatus::unpack(status).generation == port.generation
}
