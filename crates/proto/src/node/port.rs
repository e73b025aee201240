//! Keeps account of a port's slots, and of a domain's memory, among the flows that want them.
//!
//! ```text
//! slots of the queue   [ taken | promised to flows as credit | free | a quarter: local senders ]
//! ```
//!
//! A flow without credit sends a few messages as *probes*. If the port has a slot that nothing waits
//! for, a probe takes it. If not, the flow is put into the port's fair queue. When slots become
//! free, each flow is given one in its turn; a flow that has more to send comes again, behind the
//! others. While none waits, busy flows get credit in advance.

use super::fair_queue::FairQueue;
use super::fault::{Fault, Planted};
use super::types::{BorrowKey, FlowKey, PortSettings, PortStay, RequestKey};
use crate::Time;
use portolan_abi::node::NodeId;
use std::collections::{BTreeSet, VecDeque};

/// Where a port is.
#[derive(Debug)]
pub(super) enum Stay {
    Here,
    /// Its receive right is in a message.
    Leaving,
    Arriving(Arriving),
    /// At this node, in this incarnation.
    Left(NodeId, u64),
}

/// A port whose backlog comes from its old home.
#[derive(Debug)]
pub(super) struct Arriving {
    /// The request of the old home's by which its receive right came.
    pub(super) from: RequestKey,
    /// The flow by which the backlog comes.
    pub(super) flow: Option<u32>,
    /// The backlog has the numbers below.
    pub(super) end: Option<u64>,
    /// Flows that will lead here, once the backlog is here.
    pub(super) flows: Vec<FlowKey>,
    /// Borrows of this node that came home.
    pub(super) borrows: Vec<BorrowKey>,
}

/// A port at its home, as far as its flows go; of one that has left, the flows that follow it.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) settings: PortSettings,
    /// Free slots, by the driver's last word, less what was delivered since.
    free: u32,
    /// Slots that flows have credit for and have not used.
    pub(super) promised: u32,
    /// Flows that wait for a slot.
    pub(super) waiting: FairQueue<FlowKey>,
    /// All flows that lead here.
    pub(super) flows: BTreeSet<FlowKey>,
    /// Its receiver wants to know when no sender is left.
    pub(super) wants_senders: bool,
    /// When unused credit is looked at.
    pub(super) review: Option<Time>,
    pub(super) stay: Stay,
    pub(super) planted: Planted,
}

impl Port {
    pub(super) fn new(settings: PortSettings, planted: Planted) -> Self {
        Self {
            settings,
            free: settings.slots,
            promised: 0,
            waiting: FairQueue::default(),
            flows: BTreeSet::new(),
            wants_senders: planted.is(Fault::CountsUnasked),
            review: None,
            stay: Stay::Here,
            planted,
        }
    }

    /// Slots that may be promised in all: a quarter of the queue is left to local senders. A backlog may
    /// have all of it: it has filled the queue at its old home perhaps, and until it is here nobody else's
    /// messages are let in, and the port can go no further.
    pub(super) fn usable(&self) -> u32 {
        match self.stay {
            Stay::Arriving(_) => self.free,
            _ => self.free.saturating_sub(self.settings.slots / 4),
        }
    }

    /// Slots that may be promised beside those that are.
    pub(super) fn unpromised(&self) -> u32 {
        if self.planted.is(Fault::PromisesTwice) {
            return self.free;
        }
        self.usable().saturating_sub(self.promised)
    }

    pub(super) fn set_free(&mut self, free: u32) {
        self.free = free.min(self.settings.slots);
    }

    /// Its receive right was taken here: nothing of its queue is taken.
    pub(super) fn arrives(&mut self, slots: u32, from: RequestKey) {
        self.settings.slots = slots;
        self.free = slots;
        self.stay = Stay::Arriving(Arriving {
            from,
            flow: None,
            end: None,
            flows: Vec::new(),
            borrows: Vec::new(),
        });
    }

    /// Whether a flow brings its backlog.
    pub(super) fn brings_backlog(&self, flow: FlowKey) -> bool {
        matches!(&self.stay, Stay::Arriving(it) if it.flow == Some(flow.flow)
            && it.from.peer == flow.peer && it.from.association == flow.association)
    }

    /// Whether the backlog is here, when `next` is wanted next by this flow.
    pub(super) fn has_backlog(&self, flow: FlowKey, next: u64) -> bool {
        self.brings_backlog(flow)
            && matches!(&self.stay, Stay::Arriving(it) if it.end.is_some_and(|end| next >= end))
    }

    pub(super) fn view(&self) -> PortStay {
        match self.stay {
            Stay::Here => PortStay::Here,
            Stay::Leaving => PortStay::Leaving,
            Stay::Arriving(_) => PortStay::Arriving,
            Stay::Left(..) => PortStay::Left,
        }
    }

    /// A slot that was promised is used.
    pub(super) fn used(&mut self) {
        self.free = self.free.saturating_sub(1);
        self.promised = self.promised.saturating_sub(1);
    }

    /// Promises so many slots.
    pub(super) fn promise(&mut self, slots: u64) {
        self.promised = self.promised.saturating_add(count(slots));
    }

    /// Takes promises back.
    pub(super) fn withdraw(&mut self, slots: u64) {
        self.promised = self.promised.saturating_sub(count(slots));
    }

    /// Credit in advance for a busy flow, at most `wanted`; none while another flow waits.
    pub(super) fn advance(&mut self, wanted: u64) -> u64 {
        if !self.waiting.is_empty() {
            return 0;
        }
        // Half of what is left, so that there is some for flows that come now.
        let most = u64::from(self.unpromised().div_ceil(2));
        let slots = most.min(wanted);
        self.promise(slots);
        slots
    }

    /// The flow whose turn it is, with a slot promised to it.
    pub(super) fn serve(&mut self) -> Option<FlowKey> {
        if self.unpromised() == 0 {
            return None;
        }
        let flow = if self.planted.is(Fault::ServesLast) {
            self.waiting.pop_last()?
        } else {
            self.waiting.pop()?
        };
        self.promise(1);
        Some(flow)
    }
}

fn count(slots: u64) -> u32 {
    u32::try_from(slots).unwrap_or(u32::MAX)
}

/// What peers may announce and have granted: a quarter of a domain's memory.
#[derive(Debug, Default)]
pub(super) struct Budget {
    /// The quarter.
    pub(super) limit: u64,
    /// Bytes granted, and not yet in a port.
    pub(super) granted: u64,
    /// Announced transfers that wait: association, transfer, bytes.
    pub(super) waiting: VecDeque<(TransferKey, u64)>,
}

/// A transfer that comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TransferKey {
    pub(super) peer: NodeId,
    pub(super) association: u64,
    pub(super) transfer: u32,
}

impl Budget {
    /// The transfer whose turn it is, if it fits; one alone may be larger than the limit.
    pub(super) fn grant(&mut self, planted: Planted) -> Option<(TransferKey, u64)> {
        let (_, bytes) = *self.waiting.front()?;
        let fits = self.granted + bytes <= self.limit || self.granted == 0;
        if !fits && !planted.is(Fault::GrantsAll) {
            return None;
        }
        let (key, bytes) = self.waiting.pop_front()?;
        self.granted += bytes;
        Some((key, bytes))
    }

    /// Bytes are in a port, or will not come.
    pub(super) fn give_back(&mut self, bytes: u64) {
        self.granted = self.granted.saturating_sub(bytes);
    }
}
