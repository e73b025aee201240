//! Whose fragment goes next: flows and answers take turns, and of a flow the lowest number goes.

use super::super::fair_queue::FairQueue;
use super::super::fault::{Fault, Planted};
use super::transfers::Subject;
use std::collections::BTreeMap;

/// Who sends the next fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum BulkTurn {
    /// A flow, whose transfers go one after another, in its order: a receiver cannot use a number
    /// before all lower ones are there.
    Flow(u32),
    /// The transfer of an answer: answers have no order.
    Answer(u32),
}

/// The transfers that may send a fragment.
#[derive(Debug)]
pub(super) struct Bulk {
    planted: Planted,
    turns: FairQueue<BulkTurn>,
    /// Of each flow: number and transfer.
    flows: BTreeMap<u32, BTreeMap<u64, u32>>,
}

impl Bulk {
    pub(super) fn new(planted: Planted) -> Self {
        Self {
            planted,
            turns: FairQueue::default(),
            flows: BTreeMap::new(),
        }
    }

    fn turn_of(&self, subject: Subject, transfer: u32) -> BulkTurn {
        match subject {
            Subject::Flow(flow, _) if !self.planted.is(Fault::MixesTransfers) => {
                BulkTurn::Flow(flow)
            }
            _ => BulkTurn::Answer(transfer),
        }
    }

    /// A transfer may send from now on.
    pub(super) fn add(&mut self, subject: Subject, transfer: u32) {
        let turn = self.turn_of(subject, transfer);
        if let (BulkTurn::Flow(flow), Subject::Flow(_, number)) = (turn, subject) {
            self.flows.entry(flow).or_default().insert(number, transfer);
        }
        self.turns.push(turn);
    }

    /// A transfer has nothing more to send.
    pub(super) fn remove(&mut self, subject: Subject, transfer: u32) {
        let turn = self.turn_of(subject, transfer);
        if let (BulkTurn::Flow(flow), Subject::Flow(_, number)) = (turn, subject)
            && let Some(its) = self.flows.get_mut(&flow)
        {
            if its.get(&number) == Some(&transfer) {
                its.remove(&number);
            }
            if !its.is_empty() {
                return;
            }
            self.flows.remove(&flow);
        }
        self.turns.remove(turn);
    }

    /// Takes the next turn: the transfer that sends. If it has more to send, the turn is
    /// [given back](Self::again).
    pub(super) fn take(&mut self) -> Option<(BulkTurn, u32)> {
        while let Some(turn) = self.turns.pop() {
            let transfer = match turn {
                BulkTurn::Flow(flow) => {
                    let its = self.flows.get(&flow);
                    its.and_then(|its| its.values().next().copied())
                }
                BulkTurn::Answer(transfer) => Some(transfer),
            };
            if let Some(transfer) = transfer {
                return Some((turn, transfer));
            }
        }
        None
    }

    /// A turn was not used.
    pub(super) fn give_back(&mut self, turn: BulkTurn) {
        self.turns.push_front(turn);
    }

    /// A turn comes again, behind all others, if there is more to send.
    pub(super) fn again(&mut self, turn: BulkTurn, has_more: bool) {
        let is_there = match turn {
            BulkTurn::Flow(flow) => self.flows.contains_key(&flow),
            BulkTurn::Answer(_) => has_more,
        };
        if is_there {
            self.turns.push(turn);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::new(self.planted);
    }
}
