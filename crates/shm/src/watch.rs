//! A watch entry says which port wants to be told when another port has died or, if it asks for
//! that too, when the node of a proxied port is out of reach and within it again.
//!
//! ```text
//! free --take--> being written --arm--> armed --------------------------fire--> fired
//!   ^                             \--> reachable <--take_reach--> unreachable --^ |
//!   +------------- free -----------------------------------------------------------+
//! ```
//!
//! - **N1** An exchange that expects one watch never changes a later one: the state counts how
//!   often the entry was taken.
//! - **N2** The space that fires a watch tells its receiver afterwards; if that space has died, the
//!   host does.
//! - **N3** A watch of a port's reach has what its receiver was told last in its phase, and only the
//!   receiver changes that. So each notice differs from the one before, however often the port
//!   changed meanwhile.

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
    /// Waits for the death of its port, or for its silence.
    Reachable = 4,
    /// Waits for its death, or for its return.
    Unreachable = 5,
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
                4 => WatchPhase::Reachable,
                5 => WatchPhase::Unreachable,
                _ => WatchPhase::Fired,
            },
            space,
            takes: word >> 16,
        }
    }

    /// Of a watch of a port's reach: whether its receiver was told that it is out of reach.
    pub fn told(self) -> Option<bool> {
        match self.phase {
            WatchPhase::Reachable => Some(false),
            WatchPhase::Unreachable => Some(true),
            _ => None,
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

    /// The watch is written: it fires from here on. Its phase is `armed`: one of those that wait.
    pub fn arm(&self, writing: Watch, armed: WatchPhase, [target, notify, token]: [u64; 3]) {
        // Relaxed: the state follows.
        self.target.store(target, Ordering::Relaxed);
        self.notify.store(notify, Ordering::Relaxed);
        self.token.store(token, Ordering::Relaxed);
        let armed = Watch {
            phase: armed,
            ..writing
        };
        // SeqCst: armed before its space looks whether the port is dead; the closer kills it
        // before it looks for watches.
        self.state.store(armed.pack(), Ordering::SeqCst);
    }

    /// Fires the watch if it waits for `target`; whom to tell then.
    pub fn fire(&self, target: u64) -> Option<u64> {
        loop {
            let watch = self.watch();
            let waits = watch.phase == WatchPhase::Armed || watch.told().is_some();
            if !waits || self.target.load(Ordering::Acquire) != target {
                return None;
            }
            let notify = self.notify.load(Ordering::Acquire);
            crate::mark!("watch.firing");
            let fired = Watch {
                phase: WatchPhase::Fired,
                ..watch
            };
            // Again, if its receiver was told of the reach meanwhile.
            if self.exchange(watch, fired) {
                return Some(notify);
            }
        }
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

    /// Whom to tell that the reach of `target` has changed, if it waits for that. Should the watch be
    /// another by now, its receiver looks, and finds nothing.
    pub fn of_reach(&self, target: u64) -> Option<u64> {
        let is_its = self.watch().told().is_some() && self.target.load(Ordering::Acquire) == target;
        is_its.then(|| self.notify.load(Ordering::Acquire))
    }

    /// Takes the notification that a port is out of reach, or within it again, if `notify` was told
    /// otherwise last: the token, and whether it is out of reach. `reach` says that of a port; `None`
    /// if it is dead.
    pub fn take_reach(
        &self,
        notify: u64,
        reach: impl Fn(u64) -> Option<bool>,
    ) -> Option<(u64, bool)> {
        let watch = self.watch();
        let told = watch.told()?;
        if self.notify.load(Ordering::Acquire) != notify {
            return None;
        }
        let token = self.token.load(Ordering::Acquire);
        let is_out = reach(self.target.load(Ordering::Acquire))?;
        let phase = if is_out {
            WatchPhase::Unreachable
        } else {
            WatchPhase::Reachable
        };
        crate::mark!("watch.reaching");
        // N1: not if it is another watch by now, or has fired.
        (told != is_out && self.exchange(watch, Watch { phase, ..watch }))
            .then_some((token, is_out))
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
