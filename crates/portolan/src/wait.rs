//! Waiting: spin for an adaptive, bounded time, then sleep.
//!
//! A spin pays when the other side runs on another processor and answers within
//! about the price of a wake (20 us across processors). So the bound grows while
//! spinning succeeds and shrinks while it does not, and on one processor it is 0.

use std::sync::OnceLock;

/// How a receiver waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Waiting {
    /// Spin for an adaptive time, then sleep.
    #[default]
    Adaptive,
    /// Never sleep: lowest latency, one processor at full load.
    Poll,
    /// Sleep at once.
    Sleep,
}

/// Looks at most this often before sleeping: about 25 us.
const MOST: u32 = 4000;
/// Looks at least this often now and then, to notice that spinning pays again.
const LEAST: u32 = 64;
/// The first looks are made without a pause.
const EAGER: u32 = 32;
/// Of so many waits in a row that skip spinning, the next one tries it.
const PROBE: u32 = 16;
/// Looks of such a try: the other side may sleep as we do, and for the same reason. Its wake
/// and its answer must fall within, or both would go on sleeping.
const TRY: u32 = 2 * MOST;

/// How long spinning has paid lately; one for each waiter.
#[derive(Debug)]
pub(crate) struct Patience {
    looks: u32,
    skipped: u32,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            looks: MOST / 4,
            skipped: 0,
        }
    }
}

impl Patience {
    /// How often to look this time.
    pub(crate) fn looks(&mut self) -> u32 {
        if !may_spin() {
            return 0;
        }
        if self.looks < LEAST {
            self.skipped += 1;
            return if self.skipped.is_multiple_of(PROBE) {
                TRY
            } else {
                0
            };
        }
        self.looks
    }

    /// Whether spinning has paid lately.
    #[inline]
    pub(crate) fn spins(&self) -> bool {
        self.looks >= LEAST && may_spin()
    }

    /// Something came after `looks`.
    pub(crate) fn paid(&mut self, looks: u32) {
        self.looks = (self.looks.max(LEAST) + looks).min(MOST);
    }

    /// Nothing came.
    pub(crate) fn in_vain(&mut self) {
        self.looks /= 2;
    }
}

/// Between two looks.
#[inline]
pub(crate) fn pause(look: u32) {
    if look > EAGER {
        std::hint::spin_loop();
    }
}

/// Whether another processor could bring what we wait for while we spin.
fn may_spin() -> bool {
    static MANY: OnceLock<bool> = OnceLock::new();
    *MANY.get_or_init(portolan_sys::machine::spin_hint)
}

/// A sender's short spin for room.
pub(crate) struct Backoff(u32);

impl Backoff {
    pub(crate) fn for_room() -> Self {
        Self(if may_spin() { 64 } else { 0 })
    }

    /// Pauses and says whether to look again.
    pub(crate) fn spin(&mut self) -> bool {
        std::hint::spin_loop();
        self.0 = self.0.saturating_sub(1);
        self.0 > 0
    }
}
