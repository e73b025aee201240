//! Lists a domain's listeners for a survey: the threads that handle signals.

use super::Ground;
use portolan_abi::limits::MAX_FIFOS;
use portolan_abi::region::{FIFO_BYTES, HANDLER_BYTES};
use portolan_abi::signal::MAX_HANDLERS;
use portolan_shm::signal::{Fifo, HandlerState};
use std::collections::HashMap;
use std::sync::atomic::Ordering;

/// A queue of signals: a listener's, or that of its upcalls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListenerSurvey {
    /// The number of its queue; numbers are used again.
    pub fifo: u32,
    /// The space whose thread it is.
    pub space: u8,
    /// Signals that its queue holds at most.
    pub depth: usize,
    /// Signals that wait in it.
    pub waiting: usize,
    /// Signals that found it full.
    pub dropped: u64,
    /// Handlers that it leads to.
    pub handlers: u32,
    /// Whether its handlers interrupt the thread.
    pub upcalls: bool,
}

pub(super) fn take(ground: &Ground<'_>) -> Vec<ListenerSurvey> {
    let tables = ground.tables;
    let mut handlers: HashMap<u32, u32> = HashMap::new();
    let known = tables.ranges().handlers();
    for index in ground.entries(tables.geometry.handlers, HANDLER_BYTES, MAX_HANDLERS) {
        if let Some(handler) = known.get(index)
            && matches!(handler.state(), HandlerState::Enabled { .. })
        {
            *handlers.entry(handler.fifo()).or_default() += 1;
        }
    }
    let fifos = ground.entries(tables.geometry.fifos, FIFO_BYTES, MAX_FIFOS);
    let listeners = fifos.filter_map(|index| {
        let entry = tables.fifos.get(index)?;
        // Acquire: how it was opened came before.
        let owner = entry.control.owner.load(Ordering::Acquire);
        let space = u8::try_from(owner).ok().filter(|space| *space != 0)?;
        let fifo = Fifo::new(entry)?;
        let index = u32::try_from(index).ok()?;
        Some(ListenerSurvey {
            fifo: index,
            space,
            depth: fifo.depth(),
            waiting: fifo.waiting(),
            dropped: fifo.dropped(),
            handlers: handlers.get(&index).copied().unwrap_or(0),
            upcalls: entry.control.thread.load(Ordering::Relaxed) != 0,
        })
    });
    listeners.collect()
}
