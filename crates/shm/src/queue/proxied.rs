//! A port becomes a *proxy*, which its owner receives at on behalf of a port on another node, and
//! stops being one, beside senders.
//!
//! Whether it is one stands in the status word, in the byte above the generation. A send compares
//! the whole word's upper half, under its claim, with what it expects: a sender that does not know
//! of the change gives its claim back, and looks again.
//!
//! ```text
//! owner:   EXCHANGE the status (proxied)         look at each message that comes: may it travel?
//! sender:  CLAIM a slot    compare the status: as it knew it?   publish : give the claim back
//! ```
//!
//! # Invariants
//!
//! - **V1** Proxied and unreachable are changed by exchange of the whole status word of a port
//!   that is open. So a change never takes back what a closer, or a move, has written.
//! - **V2** The node's name and since when it is silent are read whole or not at all: their changes
//!   are counted before and after. Only the owner of the port changes them.
//! - **V3** A sender that has heard of the change, by whatever way, sends as to what the port is
//!   since. One that has not may publish what it had claimed, and what cannot travel with it: so
//!   the owner looks at each message too.

use super::PortEntry;
use crate::atomic::{AtomicU64, Ordering, fence};
use portolan_abi::limits::MAX_NODE_NAME;
use portolan_abi::port::{PortName, PortPhase, PortStatus};

/// The node that a proxied port's home is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    /// The name, zero-padded.
    pub node: [u8; MAX_NODE_NAME],
    /// Since when it is silent, nanoseconds of the monotonic clock; 0 while it is not.
    pub silent_since: u64,
}

/// How a port stands to other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proxied {
    /// Its messages are for the space that receives them.
    No,
    /// They go to another node.
    Yes,
    /// To one that is silent: senders are told.
    Unreachable,
}

impl PortEntry {
    /// Has the status say how the port stands to other nodes; `false` if the entry does not hold
    /// that port, open, any more. For the space that it is bound to.
    pub fn set_proxied(&self, port: PortName, proxied: Proxied) -> bool {
        let status = &self.control.status;
        let mut seen = status.load(Ordering::Acquire);
        loop {
            let was = PortStatus::unpack(seen);
            if was.generation != port.generation || was.phase != PortPhase::Open {
                return false;
            }
            let now = PortStatus {
                proxied: proxied != Proxied::No,
                unreachable: proxied == Proxied::Unreachable,
                ..was
            };
            // Release: the home comes before.
            match status.compare_exchange(seen, now.pack(), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
    }

    /// Writes where a proxied port's home is (V2). For the space that it is bound to, and one of its
    /// threads at a time.
    pub fn set_home(&self, home: &Home) {
        let Self { counters, .. } = self;
        // Odd while it changes. A writer before us may have died in between.
        let changes = counters.home_changes.load(Ordering::Relaxed) | 1;
        counters.home_changes.store(changes, Ordering::Relaxed);
        // The odd number comes before every word.
        fence(Ordering::Release);
        counters
            .silent_since
            .store(home.silent_since, Ordering::Relaxed);
        for (word, bytes) in counters.node.iter().zip(home.node.as_chunks::<8>().0) {
            word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
        }
        // Release: every word comes before the even one; pairs with `home`.
        let changes = changes.wrapping_add(1);
        counters.home_changes.store(changes, Ordering::Release);
    }

    /// Where a proxied port's home is; nothing, while that changes (V2).
    pub fn home(&self) -> Option<Home> {
        let Self { counters, .. } = self;
        // Acquire: pairs with the release of `set_home`.
        let before = counters.home_changes.load(Ordering::Acquire);
        let mut home = Home {
            node: [0; MAX_NODE_NAME],
            silent_since: counters.silent_since.load(Ordering::Relaxed),
        };
        let words: &[AtomicU64] = &counters.node;
        for (bytes, word) in home.node.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *bytes = word.load(Ordering::Relaxed).to_le_bytes();
        }
        // What was read comes before the number that is read again.
        fence(Ordering::Acquire);
        let still = counters.home_changes.load(Ordering::Relaxed) == before;
        (before.is_multiple_of(2) && still).then_some(home)
    }
}
