//! A FIFO as its one reader has it, with the handlers that it leads to.

use super::delivery::How;
use super::{SignalError, address_of, push};
use crate::member::Member;
use portolan_shm::mark;
use portolan_shm::signal::{Fifo, FifoEntry, Head};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

/// Never locked: it makes a listener, and what it is in, fit to be shared.
type Run = Mutex<Box<dyn FnMut(usize) + Send>>;

/// A handler.
pub(super) struct Handling {
    pub(super) id: u16,
    pub(super) range: Range<u64>,
    pub(super) how: How,
    pub(super) run: Run,
}

/// The reader's side of one FIFO.
pub(super) struct Intake {
    pub(super) member: Arc<Member>,
    pub(super) index: u32,
    pub(super) head: Head,
    pub(super) handlers: Vec<Handling>,
    /// Signals taken out of the FIFO and not handled yet.
    taken: VecDeque<u64>,
    strays: u64,
}

impl Intake {
    /// Takes a FIFO that nobody has.
    pub(super) fn open(member: &Arc<Member>, depth: usize) -> Result<Self, SignalError> {
        let tables = member.tables();
        let ours = u64::from(member.space);
        let used = &tables.header.fifos.value;
        let claimed = |(index, entry): &(usize, &FifoEntry)| {
            let owner = &entry.control.owner;
            if owner.load(Ordering::Relaxed) != 0 {
                return false;
            }
            // Before it is ours: the host frees, and wakes, those that were ever used.
            used.fetch_max(*index as u64 + 1, Ordering::SeqCst);
            owner
                .compare_exchange(0, ours, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        };
        let (index, entry) = tables
            .fifos
            .iter()
            .enumerate()
            .find(claimed)
            .ok_or(SignalError::NoFifo)?;
        mark!("signal.fifo_taken");
        let (_, head) = Fifo::open(entry, depth);
        Ok(Self {
            member: Arc::clone(member),
            index: u32::try_from(index).map_err(|_| SignalError::NoFifo)?,
            head,
            handlers: Vec::new(),
            taken: VecDeque::new(),
            strays: 0,
        })
    }

    /// Gives the FIFO back. Nothing leads to it any more.
    pub(super) fn close(&self) {
        give_back(&self.member, self.index);
    }

    /// Our FIFO. Opened when we were made, so it is there, unless another member wrote
    /// where it may not: then no signal comes any more.
    #[inline]
    pub(super) fn fifo(&self) -> Option<Fifo<'_>> {
        self.member.tables().fifo(self.index)
    }

    /// The next signal.
    #[inline]
    pub(super) fn next(&mut self) -> Option<u64> {
        if let Some(offset) = self.taken.pop_front() {
            return Some(offset);
        }
        let fifo = self.member.tables().fifo(self.index)?;
        fifo.pop(&mut self.head)
    }

    /// Whether [`Self::next`] would find something.
    pub(super) fn is_ready(&self) -> bool {
        !self.taken.is_empty() || self.fifo().is_some_and(|fifo| fifo.is_ready(&self.head))
    }

    /// Says that the reader sleeps: the doorbell's value to sleep on, unless a signal is
    /// there.
    pub(super) fn arm(&mut self) -> Option<u32> {
        if !self.taken.is_empty() {
            return None;
        }
        let fifo = self.member.tables().fifo(self.index)?;
        fifo.arm(&mut self.head)
    }

    /// Calls the handlers that want a signal; whether there was one.
    #[inline]
    pub(super) fn dispatch(&mut self, offset: u64) -> bool {
        let address = address_of(&self.member, offset);
        let mut wanted = false;
        for handling in &mut self.handlers {
            if handling.range.contains(&offset) {
                wanted = true;
                let run = handling.run.get_mut();
                run.unwrap_or_else(PoisonError::into_inner)(address);
            }
        }
        self.strays += u64::from(!wanted);
        wanted
    }

    /// Takes a handler out.
    pub(super) fn remove(&mut self, id: u16) -> Option<Handling> {
        let at = self.handlers.iter().position(|h| h.id == id)?;
        Some(self.handlers.remove(at))
    }

    /// Passes on what reached us of `range` before its handler moved to the FIFO `to` (S5).
    pub(super) fn forward(&mut self, range: &Range<u64>, to: u32) {
        let fifo = self.member.tables().fifo(self.index);
        while let Some(offset) = fifo.and_then(|f| f.pop(&mut self.head)) {
            if range.contains(&offset) {
                push(&self.member, to, offset);
            }
            if self.handlers.iter().any(|h| h.range.contains(&offset)) {
                self.taken.push_back(offset);
            }
        }
    }

    /// Signals that came for no handler.
    pub(super) fn strays(&self) -> u64 {
        self.strays
    }
}

/// Gives a FIFO of ours back.
pub(super) fn give_back(member: &Member, index: u32) {
    if let Some(entry) = member.tables().fifos.get(index as usize) {
        // Release: nothing of ours comes after it.
        entry.control.owner.store(0, Ordering::Release);
    }
}
