//! Closes a port's queue: its slots become closed one by one.

use super::Queue;
use crate::atomic::Ordering;
use crate::mark;
use portolan_abi::slot::{Phase, SlotState};

/// What closing one slot met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseStep {
    /// The slot is closed.
    Closed,
    /// The slot holds a message that no receiver took: deal with it, then
    /// [`Queue::close_drained`].
    Message {
        /// Its position.
        position: u64,
    },
    /// A live sender fills the slot; it will find that the port is closed.
    Claimed,
}

/// How far a queue is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// Every slot is closed; the entry and its memory may be given back.
    Complete,
    /// So many slots are still claimed by live senders.
    Lingering(usize),
}

impl Queue<'_> {
    /// Closes the slot at ring index `index`. Only for the port's owner, or the host
    /// after its death, with the status already `Closing`. May be repeated.
    pub fn close_slot(&self, index: u64) -> CloseStep {
        let slot = self.slot(index);
        let mut state = slot.state(Ordering::Acquire);
        loop {
            mark!("close.slot");
            let to = match state.phase() {
                Phase::Closed => return CloseStep::Closed,
                Phase::Claimed if state.has(SlotState::CLOSING) => return CloseStep::Claimed,
                Phase::Claimed => state.with(SlotState::CLOSING),
                // Its sender has met the closed port and is taking the message back.
                Phase::Published if state.has(SlotState::CLOSING) => return CloseStep::Claimed,
                Phase::Published if self.is_untaken(state) => {
                    return CloseStep::Message {
                        position: state.position(),
                    };
                }
                Phase::Free | Phase::Void | Phase::Published => SlotState::closed(state.position()),
            };
            match slot.exchange(state, to) {
                Ok(_) if to.phase() == Phase::Claimed => return CloseStep::Claimed,
                Ok(_) => return CloseStep::Closed,
                Err(now) => state = now,
            }
        }
    }

    /// Closes a slot whose message was dealt with.
    pub fn close_drained(&self, position: u64) {
        // Release: what became of the message is settled before the slot may be reused.
        self.slot(position).words()[0].store(SlotState::closed(position).0, Ordering::Release);
    }

    /// Whether the queue is wholly closed.
    pub fn closing(&self) -> Closing {
        let open = (0..self.slots_u64())
            .filter(|i| self.slot(*i).state(Ordering::Acquire).phase() != Phase::Closed)
            .count();
        if open == 0 {
            Closing::Complete
        } else {
            Closing::Lingering(open)
        }
    }
}
