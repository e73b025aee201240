//! An intake reads one FIFO and runs the handlers of its signals.

use super::handlers::{Handlers, Handling, Search};
use super::{SignalError, address_of};
use crate::EventKind;
use crate::space::Member;
use crate::space::record::About;
use portolan_shm::mark;
use portolan_shm::signal::{Fifo, FifoEntry, Head};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The reader's side of one FIFO.
pub(super) struct Intake {
    pub(super) member: Arc<Member>,
    pub(super) index: u32,
    pub(super) head: Head,
    pub(super) handlers: Handlers,
    /// Signals taken out of the FIFO and not handled yet.
    taken: VecDeque<Signal>,
    unhandled: u64,
}

/// A signal that has come.
#[derive(Clone, Copy)]
pub(super) struct Signal {
    offset: u64,
    /// The one handler that it is for, if the others have it, or do not get it.
    only: Option<u16>,
}

/// A signal whose handlers are being called.
struct Turn<'a> {
    intake: &'a mut Intake,
    search: Search,
    offset: u64,
}

impl Drop for Turn<'_> {
    /// If one of them has panicked, those that come after it are called next time.
    fn drop(&mut self) {
        let mut left = Vec::new();
        while let Some(place) = self.intake.handlers.next(&mut self.search) {
            left.push(Signal {
                offset: self.offset,
                only: Some(self.intake.handlers.id(place)),
            });
        }
        for signal in left.into_iter().rev() {
            self.intake.taken.push_front(signal);
        }
    }
}

impl Intake {
    /// Takes a free FIFO.
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
            handlers: Handlers::default(),
            taken: VecDeque::new(),
            unhandled: 0,
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

    /// As [`Self::fifo`]; a forked child has none.
    pub(super) fn fifo_if_present(&self) -> Option<Fifo<'_>> {
        self.member.present().ok()?;
        self.fifo()
    }

    /// The next signal of those that were taken out.
    #[inline]
    pub(super) fn next_taken(&mut self) -> Option<Signal> {
        self.taken.pop_front()
    }

    /// The next signal of the FIFO; before it come those that were taken out.
    #[inline]
    pub(super) fn next_new(&mut self) -> Option<Signal> {
        let fifo = self.member.tables().fifo(self.index)?;
        let offset = fifo.pop(&mut self.head)?;
        Some(Signal { offset, only: None })
    }

    /// The next signal.
    #[inline]
    pub(super) fn next(&mut self) -> Option<Signal> {
        self.next_taken().or_else(|| self.next_new())
    }

    /// Has a signal come after all that were taken out.
    pub(super) fn put_back(&mut self, signal: Signal) {
        self.taken.push_back(signal);
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
    pub(super) fn dispatch(&mut self, signal: Signal) -> bool {
        let Some(begun) = self.member.begins(EventKind::Deliver) else {
            return self.call_handlers(signal);
        };
        let wanted = self.call_handlers(signal);
        self.member.record(begun, About::byte(signal.offset, 0));
        wanted
    }

    #[inline]
    fn call_handlers(&mut self, signal: Signal) -> bool {
        let Signal { offset, only } = signal;
        if let Some(id) = only {
            return self.dispatch_to(id, offset);
        }
        let address = address_of(&self.member, offset);
        let called = self.handlers.call_only(offset, address);
        let wanted = called.unwrap_or_else(|| self.call_several(offset, address));
        self.unhandled += u64::from(!wanted);
        wanted
    }

    fn call_several(&mut self, offset: u64, address: usize) -> bool {
        let mut turn = Turn {
            search: self.handlers.search(offset),
            intake: self,
            offset,
        };
        let mut wanted = false;
        while let Some(place) = turn.intake.handlers.next(&mut turn.search) {
            wanted = true;
            turn.intake.handlers.call(place, address);
        }
        // All have been called.
        std::mem::forget(turn);
        wanted
    }

    #[cold]
    fn dispatch_to(&mut self, id: u16, offset: u64) -> bool {
        let Some(place) = self.handlers.place(id) else {
            self.unhandled += 1;
            return false;
        };
        let address = address_of(&self.member, offset);
        self.handlers.call(place, address);
        true
    }

    /// Takes a handler in, after the signals that had come for it.
    pub(super) fn take_in(&mut self, handling: Handling, had: Vec<u64>) {
        let only = Some(handling.id);
        self.handlers.add(handling);
        let signals = had.into_iter().map(|offset| Signal { offset, only });
        self.taken.extend(signals);
    }

    /// What reached us for the handler `id`, which has left us, before its entry said so
    /// (S5). What is for others too stays here as well.
    pub(super) fn part_with(&mut self, id: u16, range: &Range<u64>) -> Vec<u64> {
        let mut had = Vec::new();
        for signal in std::mem::take(&mut self.taken) {
            self.sort_out(signal, id, range, &mut had);
        }
        // No more than that can have come before.
        for _ in 0..self.fifo().map_or(0, |fifo| fifo.depth()) {
            let Some(signal) = self.next_new() else { break };
            self.sort_out(signal, id, range, &mut had);
        }
        had
    }

    fn sort_out(&mut self, signal: Signal, id: u16, range: &Range<u64>, had: &mut Vec<u64>) {
        let Signal { offset, only } = signal;
        let theirs = only.map_or_else(|| range.contains(&offset), |only| only == id);
        let ours = only.map_or_else(|| self.handlers.want(offset), |only| only != id);
        if theirs {
            had.push(offset);
        }
        if ours {
            self.taken.push_back(signal);
        }
        self.unhandled += u64::from(!theirs && !ours);
    }

    /// Signals that came for no handler.
    pub(super) fn unhandled(&self) -> u64 {
        self.unhandled
    }
}

/// Gives a FIFO of ours back.
pub(super) fn give_back(member: &Member, index: u32) {
    if let Some(entry) = member.tables().fifos.get(index as usize) {
        // Release: nothing of ours comes after it.
        entry.control.owner.store(0, Ordering::Release);
    }
}
