//! Keeps the memberships of this process: one in a domain, and one thread that joins it at a time.

use crate::space::Member;
use crate::space::host_connection::Departure;
use portolan_sys::socket::Address;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Instant;

/// The place of this process's membership in the domain at `address`.
pub(super) fn place(address: &Address) -> Arc<Place> {
    static PLACES: OnceLock<Mutex<HashMap<Address, Arc<Place>>>> = OnceLock::new();
    let places = PLACES.get_or_init(Mutex::default);
    let mut places = places.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(places.entry(address.clone()).or_default())
}

/// This process's membership in a domain.
#[derive(Default)]
pub(super) struct Place {
    state: Mutex<PlaceState>,
    /// Told when no thread joins any more.
    free: Condvar,
}

#[derive(Default)]
pub(super) struct PlaceState {
    /// A thread of this process joins. The region has one address, so a process maps it once.
    joining: bool,
    /// A membership: to be had again, or to be waited for while it ends.
    pub(super) member: Option<(Weak<Member>, Departure)>,
}

impl Place {
    pub(super) fn state(&self) -> MutexGuard<'_, PlaceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until this thread alone joins; `None` after the deadline.
    pub(super) fn enter(&self, deadline: Instant) -> Option<Turn<'_>> {
        let left = deadline.saturating_duration_since(Instant::now());
        let waited = self
            .free
            .wait_timeout_while(self.state(), left, |s| s.joining);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.joining {
            return None;
        }
        state.joining = true;
        Some(Turn(self))
    }
}

/// This thread's turn to join; it ends with this.
pub(super) struct Turn<'p>(&'p Place);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.state().joining = false;
        self.0.free.notify_one();
    }
}
