//! Both halves of a flow: numbered messages, kept until they are acknowledged.
//!
//! ```text
//! sender:    first <= cursor <= next          limit: numbers below it may be sent
//!            [ sent, unacknowledged | unsent ]
//! receiver:  next <= limit: slots promised    held: above next, until all below are there
//!
//! sender     open <-> waiting (Wait; MORE with the last credit)
//! ```
//!
//! When a connection ends, the sender forgets its credit and what it has sent, the receiver what
//! it holds and what it has promised. What they keep is the messages, and the number that is
//! wanted next.

use super::types::Message;
use crate::Time;
use portolan_abi::node::Lent;
use std::collections::{BTreeMap, VecDeque};

/// Messages that a flow takes and has not sent: enough to see that there is more to send. All
/// others stay in the proxy port, where their senders see how full it is.
pub(super) const UNSENT: u64 = 4;
/// Messages that a flow without credit may have under way, each in the hope of a free slot: so many
/// requests do not wait for the acknowledgement of the first one, which goes with its answer.
pub(super) const PROBES: u64 = 4;
/// Credit that a busy flow is given in advance, at first and at the most.
pub(super) const ADVANCE: core::ops::RangeInclusive<u64> = 4..=4096;

/// How a message travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Not sent.
    Unsent,
    /// Sent, and charged to the link's window.
    Sent,
    /// Announced: a transfer, once it is granted. Not charged.
    Announced(u32),
    /// A transfer under way, or all written; charged if it was not announced.
    Transfer { transfer: u32, charged: bool },
}

/// A message that is kept.
#[derive(Clone, Debug)]
pub(super) struct Kept<P> {
    pub(super) message: Message<P>,
    /// Of a request: which, and until when.
    pub(super) request: Option<(u64, Option<Time>)>,
    pub(super) way: Way,
}

/// The sending half.
#[derive(Debug)]
pub(super) struct Sending<P> {
    /// The port, once it is resolved.
    pub(super) lent: Option<Lent>,
    /// Which right the port is claimed for, until it is resolved.
    pub(super) claim: Option<super::BorrowKey>,
    /// The number of `kept[0]`.
    pub(super) first: u64,
    pub(super) kept: VecDeque<Kept<P>>,
    /// The number that is sent next.
    pub(super) cursor: u64,
    /// Numbers below have credit. What is sent from there on is a probe.
    pub(super) limit: u64,
    /// The receiver has the flow in its fair queue.
    pub(super) waiting: bool,
    /// All numbers below were sent once.
    pub(super) reached: u64,
    /// It gives back this credit.
    pub(super) empty: Option<u64>,
    /// A message was refused.
    pub(super) wants: bool,
    /// It takes no more messages, and ends when all are acknowledged.
    pub(super) closing: bool,
    /// It goes to the new home of a port of this node, and all below are the port's backlog.
    pub(super) backlog: Option<u64>,
}

/// With what right the message at the cursor is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum May {
    Credit,
    Probe,
    No,
}

impl<P> Sending<P> {
    pub(super) fn new() -> Self {
        Self {
            lent: None,
            claim: None,
            first: 0,
            kept: VecDeque::new(),
            cursor: 0,
            limit: 0,
            waiting: false,
            reached: 0,
            empty: None,
            wants: false,
            closing: false,
            backlog: None,
        }
    }

    /// The number of the next message that is taken.
    pub(super) fn next(&self) -> u64 {
        self.first + self.kept.len() as u64
    }

    /// Whether another message is taken.
    pub(super) fn takes(&self) -> bool {
        self.lent.is_some() && !self.closing && self.next() - self.cursor < UNSENT
    }

    pub(super) fn at(&mut self, number: u64) -> Option<&mut Kept<P>> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.kept.get_mut(index)
    }

    /// Whether the message at the cursor may be sent.
    pub(super) fn may_send(&self) -> May {
        if self.lent.is_none() || self.cursor >= self.next() {
            May::No
        } else if self.cursor < self.limit {
            May::Credit
        } else if self.cursor - self.limit < PROBES && !self.waiting {
            May::Probe
        } else {
            May::No
        }
    }

    /// The message at the cursor is sent; whether its record says that there is more than credit.
    pub(super) fn sent(&mut self, way: Way) -> bool {
        let number = self.cursor;
        if let Some(kept) = self.at(number) {
            kept.way = way;
        }
        self.cursor += 1;
        self.reached = self.reached.max(self.cursor);
        self.empty = None;
        // Then the receiver gives it credit, or has it wait: it is not asked twice.
        let more = self.cursor >= self.limit && self.next() > self.cursor;
        if more {
            self.waiting = true;
        }
        more
    }

    /// All below `number` have arrived: they are not kept any more.
    pub(super) fn acknowledged(&mut self, number: u64) -> Vec<Kept<P>> {
        let mut done = Vec::new();
        while self.first < number
            && let Some(kept) = self.kept.pop_front()
        {
            self.first += 1;
            done.push(kept);
        }
        self.cursor = self.cursor.max(self.first);
        self.limit = self.limit.max(self.first);
        if self.kept.is_empty() && self.limit > self.next() {
            self.empty = Some(self.limit);
        }
        done
    }

    /// Numbers below `number` may be sent.
    pub(super) fn credit(&mut self, number: u64) {
        if number > self.limit {
            self.waiting = false;
        }
        self.limit = number.max(self.first);
        if self.kept.is_empty() && self.limit > self.next() {
            self.empty = Some(self.limit);
        }
    }

    /// It says that it is empty: its credit is gone.
    pub(super) fn say_empty(&mut self) -> Option<u64> {
        let credit = self.empty.take()?;
        self.limit = self.next();
        Some(credit)
    }

    /// All from `number` on was thrown away, or the connection has ended: what was sent from there
    /// on will be sent again. Gives the ways that those were on.
    pub(super) fn rewind(&mut self, number: u64) -> Vec<(Way, u64)>
    where
        P: Clone,
    {
        let mut ways = Vec::new();
        let from = number.max(self.first);
        let index = usize::try_from(from - self.first).unwrap_or(usize::MAX);
        for kept in self.kept.iter_mut().skip(index) {
            if kept.way != Way::Unsent {
                ways.push((kept.way, kept.message.cost()));
                kept.way = Way::Unsent;
            }
        }
        self.cursor = self.cursor.min(from);
        self.limit = from;
        self.empty = None;
        ways
    }
}

/// What a receiver has of a number above the one that it wants next, or of that one.
#[derive(Clone, Debug)]
pub(super) enum Held<P> {
    /// All of it.
    Whole(Arrived<P>),
    /// A transfer brings it.
    Coming(u32),
}

/// A message that is there.
#[derive(Clone, Debug)]
pub(super) struct Arrived<P> {
    pub(super) message: Message<P>,
    pub(super) request: Option<u64>,
    pub(super) deadline: Option<Time>,
    /// The flow has more to send than it has credit for.
    pub(super) more: bool,
    /// Bytes that were granted to it.
    pub(super) granted: u64,
}

/// What is to be said to the sender, as soon as there is room in the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Say {
    pub(super) ack: bool,
    pub(super) wait: bool,
    pub(super) credit: bool,
}

impl Say {
    pub(super) fn anything(self) -> bool {
        self.ack || self.wait || self.credit
    }
}

/// The receiving half.
#[derive(Debug)]
pub(super) struct Receiving<P> {
    pub(super) port: super::PortKey,
    /// The number that is wanted next: all below are in the port.
    pub(super) next: u64,
    /// Below it, slots are promised.
    pub(super) limit: u64,
    pub(super) held: BTreeMap<u64, Held<P>>,
    /// It has more to send, by the last message that was delivered.
    pub(super) busy: bool,
    /// Credit in advance that it is given next.
    pub(super) advance: u64,
    /// When it was given credit last.
    pub(super) credited: Time,
    /// Its turn came, there was no room after all, and it has the next turn.
    pub(super) has_next_turn: bool,
    pub(super) say: Say,
}

impl<P> Receiving<P> {
    pub(super) fn new(port: super::PortKey) -> Self {
        Self {
            port,
            next: 0,
            limit: 0,
            held: BTreeMap::new(),
            busy: false,
            advance: *ADVANCE.start(),
            credited: Time::ZERO,
            has_next_turn: false,
            say: Say::default(),
        }
    }

    /// Slots that are promised to it.
    pub(super) fn promised(&self) -> u64 {
        self.limit - self.next
    }

    /// Takes its credit and all that it holds back.
    pub(super) fn withdraw(&mut self) -> (u64, BTreeMap<u64, Held<P>>) {
        let promised = self.promised();
        self.limit = self.next;
        self.busy = false;
        self.advance = *ADVANCE.start();
        (promised, std::mem::take(&mut self.held))
    }
}
