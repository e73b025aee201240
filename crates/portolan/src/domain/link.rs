//! This process's tie to its host: one thread, and leaving.

use super::error::LeaveError;
use crate::member::Member;
use std::sync::{Arc, Mutex, PoisonError};

/// The thread that watches the host, or hosts; and what it needs.
pub(crate) struct Link {
    shared: Arc<Shared>,
}

/// What the thread, the membership and its handles share.
#[derive(Default)]
struct Shared {
    /// Held by the thread while it keeps the membership alive for a moment.
    turn: Mutex<()>,
}

impl Link {
    /// No thread: the domain is this process's own.
    pub(super) fn private() -> Self {
        Self { shared: Arc::default() }
    }

    pub(super) fn settled(&self) -> Settled {
        Settled(Arc::clone(&self.shared))
    }
}

/// Its drop waits until the thread does not hold the membership.
#[derive(Clone)]
pub(super) struct Settled(Arc<Shared>);

impl Drop for Settled {
    fn drop(&mut self) {
        let _turn = self.0.turn.lock().unwrap_or_else(PoisonError::into_inner);
    }
}

/// Leaves, if this is the last handle.
pub(super) fn leave(member: Arc<Member>, settled: Settled) -> Result<(), LeaveError> {
    drop(member);
    drop(settled);
    Ok(())
}

/// What the drop of a membership does first: leaves the domain.
pub(crate) fn depart(_member: &Member) {}
