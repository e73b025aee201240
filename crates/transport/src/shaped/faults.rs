//! What goes wrong with what a node sends.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[derive(Debug, Default)]
pub(super) struct FaultState {
    /// How often all connections were cut.
    pub(super) cuts: u64,
    /// Nothing is passed on before this time.
    pub(super) stalled: Option<Duration>,
    /// After so many bytes the connection that sends the next one is cut.
    budget: Option<u64>,
}

impl FaultState {
    /// Whether nothing may be passed on now.
    pub(super) fn stalls(&mut self, now: Duration) -> bool {
        if self.stalled.is_some_and(|until| now >= until) {
            self.stalled = None;
        }
        self.stalled.is_some()
    }

    /// How many of so many bytes may be passed on.
    pub(super) fn allowed(&self, bytes: usize) -> usize {
        match self.budget {
            Some(budget) => usize::try_from(budget).unwrap_or(usize::MAX).min(bytes),
            None => bytes,
        }
    }

    pub(super) fn passed(&mut self, bytes: usize) {
        if let Some(budget) = &mut self.budget {
            *budget = budget.saturating_sub(bytes as u64);
        }
    }
}

/// Makes the connections of a [`Shaped`](super::Shaped) fail, in the direction from its node. They
/// notice at their next call, which [`wake_at`](crate::Connection::wake_at) asks for.
#[derive(Clone, Debug)]
pub struct Faults {
    state: Arc<Mutex<FaultState>>,
}

impl Faults {
    pub(super) fn new(state: Arc<Mutex<FaultState>>) -> Self {
        Self { state }
    }

    fn state(&self) -> MutexGuard<'_, FaultState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts all connections that there are. Those that are made later are whole.
    pub fn cut(&self) {
        self.state().cuts += 1;
    }

    /// Lets so many more bytes through, of all streams, and cuts the connection that is to send
    /// the next one; from then on each at its first byte, until [`heal`](Self::heal).
    pub fn cut_after(&self, bytes: u64) {
        self.state().budget = Some(bytes);
    }

    /// Passes nothing on until this time of the clock, and loses nothing. `Duration::MAX` is until
    /// [`heal`](Self::heal): a cut in one direction, which no side is told of.
    pub fn stall_until(&self, time: Duration) {
        self.state().stalled = Some(time);
    }

    /// Takes back stalls and cuts that have not come about.
    pub fn heal(&self) {
        let mut state = self.state();
        state.stalled = None;
        state.budget = None;
    }
}
