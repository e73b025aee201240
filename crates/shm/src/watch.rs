//! A watch entry says which port wants to be told when another port has died.
//!
//! ```text
//! free --take--> being written --arm--> armed --fire--> fired
//!   ^                                     |               |
//!   +------------- free ------------------+---------------+
//! ```
//!
//! - **N1** An exchange that expects one watch never changes a later one: the state counts how
//!   often the entry was taken.
//! - **N2** The space that fires a watch tells its receiver afterwards; if that space has died, the
//!   host does.

use crate::atomic::{AtomicU64, Ordering};

/// A request to be told of a port's death.
#[repr(C, align(64))]
#[derive(Default)]
pub struct WatchEntry {
    /// See [`Watch`].
    pub state: AtomicU64,
    /// The watched port: index and generation as in a right word.
    pub target: AtomicU64,
    /// The port that is told.
    pub notify: AtomicU64,
    /// What the asker wants to read then.
    pub token: AtomicU64,
    spare: [AtomicU64; 4],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<WatchEntry>() as u64 == portolan_abi::region::WATCH_BYTES);

/// What an entry is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WatchPhase {
    /// Free.
    Free = 0,
    /// Being written by its space.
    Writing = 1,
    /// Waits for the death of its port.
    Armed = 2,
    /// The port has died, and the receiver has not taken the notification yet.
    Fired = 3,
}

/// An entry's state word: its phase, whose it is, and how often it was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    /// What it is doing.
    pub phase: WatchPhase,
    /// Whose it is; 0 if it is free.
    pub space: u8,
    /// Takings, modulo 2^48: at one a microsecond the number lasts nine years.
    pub takes: u64,
}

impl Watch {
    /// Reads it. A phase that no member writes reads as fired.
    pub fn unpack(word: u64) -> Self {
        let [phase, space, ..] = word.to_le_bytes();
        Self {
            phase: match phase {
                0 => WatchPhase::Free,
                1 => WatchPhase::Writing,
                2 => WatchPhase::Armed,
                _ => WatchPhase::Fired,
            },
            space,
            takes: word >> 16,
        }
    }

    /// Packs it: phase 8 bits, space 8, takings 48.
    pub fn pack(self) -> u64 {
        self.phase as u64 | u64::from(self.space) << 8 | self.takes << 16
    }
}

impl WatchEntry {
    /// The state, as it is now.
    pub fn watch(&self) -> Watch {
        Watch::unpack(self.state.load(Ordering::SeqCst))
    }

    /// Takes a free entry for `space`, and writes what it asks; [`Self::arm`] comes next. `false`
    /// if it is in use.
    pub fn take(&self, space: u8) -> Option<Watch> {
        let was = self.watch();
        let writing = Watch {
            phase: WatchPhase::Writing,
            space,
            takes: was.takes.wrapping_add(1) & (u64::MAX >> 16),
        };
        (was.phase == WatchPhase::Free && self.exchange(was, writing)).then_some(writing)
    }

    /// The watch is written: it fires from here on.
    pub fn arm(&self, writing: Watch, target: u64, notify: u64, token: u64) {
        // Relaxed: the state follows.
        self.target.store(target, Ordering::Relaxed);
        self.notify.store(notify, Ordering::Relaxed);
        self.token.store(token, Ordering::Relaxed);
        let armed = Watch {
            phase: WatchPhase::Armed,
            ..writing
        };
        // SeqCst: armed before its space looks whether the port is dead; the closer kills it
        // before it looks for watches.
        self.state.store(armed.pack(), Ordering::SeqCst);
    }

    /// Fires the watch if it waits for `target`; whom to tell then.
    pub fn fire(&self, target: u64) -> Option<u64> {
        let watch = self.watch();
        if watch.phase != WatchPhase::Armed || self.target.load(Ordering::Acquire) != target {
            return None;
        }
        let notify = self.notify.load(Ordering::Acquire);
        crate::mark!("watch.firing");
        let fired = Watch {
            phase: WatchPhase::Fired,
            ..watch
        };
        self.exchange(watch, fired).then_some(notify)
    }

    /// Takes the notification if it has fired for `notify`: its token. Once.
    pub fn take_fired(&self, notify: u64) -> Option<u64> {
        let watch = self.watch();
        if watch.phase != WatchPhase::Fired || self.notify.load(Ordering::Acquire) != notify {
            return None;
        }
        let token = self.token.load(Ordering::Acquire);
        self.exchange(watch, Self::free(watch)).then_some(token)
    }

    /// Frees the watch if `is_over` says so of it, whatever it does meanwhile; whether it did.
    pub fn free_if(&self, is_over: impl Fn(Watch, &Self) -> bool) -> bool {
        loop {
            let watch = self.watch();
            if watch.phase == WatchPhase::Free || !is_over(watch, self) {
                return false;
            }
            // Again, if it was fired meanwhile.
            if self.exchange(watch, Self::free(watch)) {
                return true;
            }
        }
    }

    fn free(watch: Watch) -> Watch {
        Watch {
            phase: WatchPhase::Free,
            space: 0,
            ..watch
        }
    }

    fn exchange(&self, from: Watch, to: Watch) -> bool {
        let (from, to) = (from.pack(), to.pack());
        self.state
            .compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed)
            .is_ok()
    }
}
