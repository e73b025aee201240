//! What an association says of what has arrived and of what may be sent: at once, or with the next
//! record.
//!
//! ```text
//! a request is delivered  --late--> its Ack        --with the answer, or alone by `due`--> said
//! an answer has arrived   --late--> its AckAnswer  --with the next record, or alone----> said
//! all else: Wait, Credit, Grant, the Ack of a message or of a control record ---at once--> said
//! ```
//!
//! - **A1** An acknowledgement is late only where a record is likely to follow soon: an answer behind a
//!   request, and perhaps another request behind an answer. A message is acknowledged at once, because
//!   nothing has to come back behind it, and a program may wait for its arrival; and so is a request whose
//!   flow has more to send than it has credit for.
//! - **A2** A late acknowledgement is said by `due`, which is
//!   [`Settings::acknowledge_within`](super::super::Settings) after the first one that waits; and at once
//!   when [`MOST_LATE`] or a part of the window waits for it. That of an answer, for which no program
//!   waits, may be [`LONGER`] times as late.
//! - **A3** Whatever is said, all that is late is said behind it: in the same write, since a driver writes
//!   all that the node says at a time.
//! - **A4** Once [`IN_TIME`] requests in a row were answered before their acknowledgement was due, that is
//!   due [`LONGER`] times later too, until one has to go alone. So a driver of nodes that ask and answer
//!   has no time to wait for that comes before the scheduler's tick: to set such a timer, and to be
//!   woken by it for nothing, costs as much as a message.

use super::super::fault::Fault;
use super::super::types::Settings;
use super::{Association, Context, FairQueue, Inward};
use crate::Time;
use portolan_abi::node::{CONTROL, Record, Sent};
use std::collections::BTreeSet;

/// Bytes of which the acknowledgement is late, at the most: the peer has them in memory, and counts them
/// as in flight.
const MOST_LATE: u64 = 64 * 1024;
/// The same, as a part of this node's own window at first: the peer's is mostly the same.
const PART_OF_WINDOW: u64 = 8;

/// How much later an acknowledgement may be for which nothing waits, or most likely nothing.
const LONGER: u32 = 20;
/// Requests in a row whose answers came in time.
const IN_TIME: u32 = 8;

fn most_late(settings: &Settings) -> u64 {
    MOST_LATE.min(settings.window_at_first / PART_OF_WINDOW)
}

/// Acknowledgements that are late.
#[derive(Debug, Default)]
pub(super) struct Late {
    flows: FairQueue<u32>,
    answers: BTreeSet<u64>,
    /// Bytes that they acknowledge.
    cost: u64,
    /// When they are said at the latest.
    due: Option<Time>,
    /// They are said now.
    now: bool,
    /// So many times in a row requests were acknowledged behind a record.
    in_time: u32,
}

impl Late {
    fn is_empty(&self) -> bool {
        self.flows.is_empty() && self.answers.is_empty()
    }

    pub(super) fn due(&self) -> Option<Time> {
        self.due
    }

    /// They are said behind what is said now.
    fn ride(&mut self) {
        self.now = !self.is_empty();
        self.due = None;
    }

    /// A record was said.
    fn rides(&mut self) {
        if !self.now && !self.flows.is_empty() {
            self.in_time = self.in_time.saturating_add(1);
        }
        self.ride();
    }

    /// The time has come: they are said alone.
    pub(super) fn goes_alone(&mut self) {
        if !self.flows.is_empty() {
            self.in_time = 0;
        }
        self.ride();
    }

    /// All of them are said.
    fn said(&mut self) {
        let in_time = self.in_time;
        *self = Self {
            in_time,
            ..Self::default()
        };
    }

    /// Another one waits, for so many bytes, and may be late, or `longer`.
    fn waits<P>(&mut self, cx: &Context<'_, P>, cost: u64, longer: bool) {
        self.cost += cost;
        let within = cx.settings.acknowledge_within;
        if self.cost >= most_late(cx.settings) || within.is_zero() {
            self.ride();
        } else if !self.now && !cx.planted.is(Fault::WithholdsAcknowledgements) {
            let due = cx.now.after(if longer { LONGER * within } else { within });
            self.due = self.due.into_iter().chain([due]).min();
        }
    }

    pub(super) fn forget_flow(&mut self, flow: u32) {
        self.flows.remove(flow);
    }
}

impl<P: Clone> Association<P> {
    /// A request has been put into its port, and so many bytes with it: acknowledged with what is said
    /// next (A1).
    pub(super) fn acknowledge_late(&mut self, cx: &Context<'_, P>, flow: u32, cost: u64) {
        self.late.flows.push(flow);
        let longer = self.late.in_time >= IN_TIME;
        self.late.waits(cx, cost, longer);
    }

    /// An answer has come, of so many bytes, or is not wanted: acknowledged with what is said next.
    pub(super) fn acknowledge_answer(&mut self, cx: &Context<'_, P>, request: u64, cost: u64) {
        self.late.answers.insert(request);
        self.late.waits(cx, cost, true);
    }

    /// A record was said: what is late goes behind it (A3).
    pub(in super::super) fn ride(&mut self) {
        self.late.rides();
    }

    /// What is said whether or not the peer has said what it has: what has arrived here, and what
    /// may be sent.
    pub(in super::super) fn next_word(&mut self) -> Option<Vec<u8>> {
        if let Some(word) = self.next_prompt_word() {
            self.late.rides();
            return Some(word);
        }
        if !self.late.now {
            return None;
        }
        while let Some(flow) = self.late.flows.pop() {
            if let Some(word) = self.word_of(flow) {
                return Some(word);
            }
        }
        if let Some(request) = self.late.answers.pop_first() {
            return Some(Record::AckAnswer { request }.with(Sent::default()));
        }
        self.late.said();
        None
    }

    /// What is said at once.
    fn next_prompt_word(&mut self) -> Option<Vec<u8>> {
        if std::mem::take(&mut self.control_say) {
            let number = self.control_next;
            return Some(Record::Ack.with(Sent {
                flow: CONTROL,
                number,
                ..Sent::default()
            }));
        }
        while let Some(flow) = self.says.pop() {
            if let Some(word) = self.word_of(flow) {
                return Some(word);
            }
        }
        let transfer = self.grants.pop_front()?;
        Some(Record::Grant { transfer }.with(Sent::default()))
    }

    /// What a flow's home says next.
    fn word_of(&mut self, flow: u32) -> Option<Vec<u8>> {
        let Some(Inward::Open(receiving)) = self.receiving.get_mut(&flow) else {
            return None;
        };
        let say = &mut receiving.say;
        let (record, number) = if std::mem::take(&mut say.ack) {
            (Record::Ack, receiving.next)
        } else if std::mem::take(&mut say.wait) {
            (Record::Wait, receiving.next)
        } else if std::mem::take(&mut say.credit) {
            (Record::Credit, receiving.limit)
        } else {
            return None;
        };
        if receiving.say.anything() {
            self.says.push_front(flow);
        }
        Some(record.with(Sent {
            flow,
            number,
            ..Sent::default()
        }))
    }
}
