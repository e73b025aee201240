//! What two incarnations of two nodes have in common, over any number of connections: flows,
//! transfers, requests, and the numbered control records.
//!
//! | file | what it does |
//! |---|---|
//! | `control` | numbered control records; flows are opened, lent, closed |
//! | `sending` | what is to be written: one turn of the link after another |
//! | `receiving` | messages arrive: admitted, held, delivered, thrown away |
//! | `transfers` | long payloads, in fragments, there and here |
//! | `bulk` | whose fragment goes next |
//! | `requests` | requests that are open, answers that are kept |
//! | `moving` | receive rights in messages: flows follow their ports to new homes |
//! | `rights` | rights in messages: requests that are open for them, ports that are claimed |
//! | `saved` | what another process goes on with |
//! | `words` | what is said of what has arrived: at once, or with the next record |

mod bulk;
mod control;
mod moving;
mod receiving;
mod requests;
mod rights;
mod saved;
mod sending;
mod transfers;
mod words;

pub(super) use control::Control;
pub(super) use moving::{Detached, Redirect, never_put};
pub(super) use rights::{Claimed, Fate};
pub(super) use saved::SavedAssociation;

use super::fair_queue::FairQueue;
use super::fault::{Fault, Planted};
use super::flow::{Kept, Receiving, Say, Sending, Way};
use super::port::{Budget, Port};
use super::types::{
    DomainKey, Event, FlowEnd, FlowKey, Outcome, PortKey, RECORD_COST, RequestKey, Settings,
};
use super::violation::Over;
use crate::Time;
use bulk::Bulk;
use core::time::Duration;
use portolan_abi::node::{AssociationId, NodeId, PortId};
use requests::{KeptAnswer, OpenRequest};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use transfers::{ANNOUNCED, InTransfer, OutTransfer};
use words::Late;

/// What an association needs of its node.
pub(super) struct Context<'a, P> {
    pub(super) now: Time,
    pub(super) settings: &'a Settings,
    pub(super) planted: Planted,
    pub(super) ports: &'a mut BTreeMap<PortKey, Port>,
    pub(super) by_id: &'a BTreeMap<PortId, PortKey>,
    pub(super) claimed: &'a mut Vec<Claimed>,
    pub(super) leaving: &'a BTreeMap<RequestKey, PortKey>,
    /// Requests for receive rights that have ended, and whether the right was taken.
    pub(super) left: &'a mut Vec<(RequestKey, bool)>,
    pub(super) arriving: &'a BTreeMap<RequestKey, PortKey>,
    pub(super) arrived: &'a mut BTreeSet<PortKey>,
    pub(super) redirects: &'a mut Vec<Redirect<P>>,
    pub(super) budgets: &'a mut BTreeMap<DomainKey, Budget>,
    pub(super) events: &'a mut VecDeque<Event<P>>,
    /// Ports whose waiting flows may be served now.
    pub(super) served: &'a mut BTreeSet<PortKey>,
    /// Domains whose announced transfers may be granted now.
    pub(super) granted: &'a mut BTreeSet<DomainKey>,
}

impl<P> Context<'_, P> {
    pub(super) fn give_back(&mut self, domain: DomainKey, bytes: u64) {
        if bytes > 0
            && let Some(budget) = self.budgets.get_mut(&domain)
        {
            budget.give_back(bytes);
            self.granted.insert(domain);
        }
    }
}

/// Bytes in flight to a peer, and how many may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) in_flight: u64,
    pub(super) size: u64,
    /// Bytes acknowledged since the round trip was measured last.
    acknowledged: u64,
    measured: Time,
}

impl Window {
    fn new(settings: &Settings, now: Time) -> Self {
        Self {
            in_flight: 0,
            size: settings.window_at_first,
            acknowledged: 0,
            measured: now,
        }
    }

    /// Whether so much more may be in flight; one message alone always may.
    fn has_room(&self, cost: u64) -> bool {
        self.in_flight == 0 || self.in_flight + cost <= self.size
    }

    fn done(&mut self, cost: u64) {
        self.in_flight = self.in_flight.saturating_sub(cost);
        self.acknowledged += cost;
    }

    /// A round trip took so long: twice the rate times that may be in flight.
    pub(super) fn measured(&mut self, now: Time, round_trip: Duration, most: u64) {
        let nanos = u128::from(now.0.saturating_sub(self.measured.0)).max(1);
        let during = u128::from(self.acknowledged) * round_trip.as_nanos() / nanos;
        let wanted = u64::try_from(2 * during).unwrap_or(most).min(most);
        self.size = self.size.max(wanted);
        (self.acknowledged, self.measured) = (0, now);
    }
}

/// Who may send a record next on the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    Flow(u32),
    Answers,
}

/// A flow at its home.
#[derive(Debug)]
enum Inward<P> {
    /// It was asked which port it leads to.
    Asked,
    Open(Receiving<P>),
    /// Its port has left: the borrower says when it has followed.
    Moved(PortKey),
}

/// What becomes of the flows of an association that is over.
#[derive(Debug)]
pub(super) struct Ended<P> {
    pub(super) flows: Vec<FlowEnd>,
    /// Those whose ports may be elsewhere, with what the peer was never sent.
    pub(super) parted: Vec<Redirect<P>>,
}

#[derive(Debug)]
pub(super) struct Association<P> {
    pub(super) id: AssociationId,
    pub(super) peer: NodeId,
    /// Its number at this node.
    pub(super) serial: u64,
    /// The peer's.
    pub(super) incarnation: u64,
    /// What both greetings have said that they can do, at its begin.
    pub(super) features: u64,
    /// Flows that the peer lets us have, and requests of one domain.
    pub(super) most_flows: usize,
    pub(super) most_requests: usize,
    pub(super) most_transfers: usize,
    /// [`Settings::one_at_a_time`].
    one_at_a_time: bool,
    planted: Planted,
    pub(super) window: Window,

    // Numbered control records.
    control: VecDeque<Control>,
    control_first: u64,
    control_cursor: u64,
    /// All numbers below were sent once.
    control_reached: u64,
    control_next: u64,
    control_say: bool,

    sending: BTreeMap<u32, Sending<P>>,
    last_flow_sent: u32,
    receiving: BTreeMap<u32, Inward<P>>,
    last_flow_received: u32,
    /// Receiving flows that have something to say at once.
    says: FairQueue<u32>,
    /// Acknowledgements that go with the next record.
    late: Late,
    /// Sending flows that say that they are empty.
    empties: FairQueue<u32>,
    ready: FairQueue<Turn>,

    out: BTreeMap<u32, OutTransfer>,
    /// Of those that are not announced: the last one, and the last number that was given.
    last_transfer: u32,
    last_transfer_sent: u32,
    last_announced_sent: u32,
    /// Turns that wait until there are fewer transfers.
    stuck: FairQueue<Turn>,
    bulk: Bulk,
    aborts: VecDeque<u32>,
    incoming: BTreeMap<u32, InTransfer<P>>,
    last_transfer_received: u32,
    last_announced_received: u32,
    /// Those that were aborted, and whose announcements are still to come.
    aborted: BTreeSet<u32>,
    grants: VecDeque<u32>,

    open: BTreeMap<u64, OpenRequest>,
    deadlines: BTreeSet<(Time, u64)>,
    open_of: BTreeMap<DomainKey, usize>,
    /// Requests of those that are open for rights.
    given: usize,
    last_request: u64,
    /// Requests of the peer that are in ports here, or with their servers.
    serving: BTreeSet<u64>,
    answers: BTreeMap<u64, KeptAnswer<P>>,
    to_answer: VecDeque<u64>,
}

impl<P: Clone> Association<P> {
    pub(super) fn new(
        cx: &Context<'_, P>,
        peer: NodeId,
        id: AssociationId,
        serial: u64,
        incarnation: u64,
    ) -> Self {
        Self {
            id,
            peer,
            serial,
            incarnation,
            features: 0,
            most_flows: 0,
            most_requests: 0,
            most_transfers: 0,
            one_at_a_time: cx.settings.one_at_a_time,
            planted: cx.planted,
            window: Window::new(cx.settings, cx.now),
            control: VecDeque::new(),
            control_first: 0,
            control_cursor: 0,
            control_reached: 0,
            control_next: 0,
            control_say: false,
            sending: BTreeMap::new(),
            last_flow_sent: 0,
            receiving: BTreeMap::new(),
            last_flow_received: 0,
            says: FairQueue::default(),
            late: Late::default(),
            empties: FairQueue::default(),
            ready: FairQueue::default(),
            out: BTreeMap::new(),
            last_transfer: 0,
            last_transfer_sent: 0,
            last_announced_sent: ANNOUNCED - 1,
            stuck: FairQueue::default(),
            bulk: Bulk::new(cx.planted),
            aborts: VecDeque::new(),
            incoming: BTreeMap::new(),
            last_transfer_received: 0,
            last_announced_received: ANNOUNCED - 1,
            aborted: BTreeSet::new(),
            grants: VecDeque::new(),
            open: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            open_of: BTreeMap::new(),
            given: 0,
            last_request: 0,
            serving: BTreeSet::new(),
            answers: BTreeMap::new(),
            to_answer: VecDeque::new(),
        }
    }

    pub(super) fn flow_key(&self, flow: u32) -> FlowKey {
        FlowKey {
            peer: self.peer,
            association: self.serial,
            flow,
        }
    }

    pub(super) fn request_key(&self, request: u64) -> RequestKey {
        RequestKey {
            peer: self.peer,
            association: self.serial,
            request,
        }
    }

    /// The connection has ended. What was sent and not acknowledged will be sent again; what came
    /// and is not in a port is freed, because the peer has it still.
    pub(super) fn cut(&mut self, cx: &mut Context<'_, P>) {
        let flows: Vec<u32> = self.receiving.keys().copied().collect();
        for flow in flows {
            self.withdraw(cx, flow);
            self.leave_queue(cx, flow);
            if let Some(Inward::Open(receiving)) = self.receiving.get_mut(&flow) {
                receiving.say = Say::default();
            }
        }
        let coming: Vec<u32> = self.incoming.keys().copied().collect();
        for transfer in coming {
            self.drop_incoming(cx, transfer);
        }
        self.says = FairQueue::default();
        self.late = Late::default();
        self.empties = FairQueue::default();
        self.ready = FairQueue::default();
        self.stuck = FairQueue::default();
        self.out.clear();
        self.bulk.clear();
        self.aborts.clear();
        self.aborted.clear();
        self.grants.clear();
        self.control_cursor = self.control_first;
        if self.planted.is(Fault::GivesUpClaims) {
            self.lose_claims(cx, Over::GivenUp);
        }
        if self.planted.is(Fault::ForgetsToResend) {
            return;
        }
        self.window.in_flight = 0;
        for flow in self.sending.values_mut() {
            flow.rewind(0);
            flow.waiting = false;
        }
        for answer in self.answers.values_mut() {
            answer.way = Way::Unsent;
        }
        self.to_answer = self.answers.keys().copied().collect();
    }

    /// A connection carries it again: what has arrived here is said for all flows.
    pub(super) fn resume(&mut self) {
        self.control_say = true;
        if self.planted.is(Fault::DeliversTwice) {
            return;
        }
        let open = self.receiving.iter_mut();
        for (flow, inward) in open {
            if let Inward::Open(receiving) = inward {
                receiving.say.ack = true;
                self.says.push(*flow);
            }
        }
    }

    /// The peer has said what has arrived there: the rest is sent.
    pub(super) fn resumed(&mut self) {
        self.ready.push(Turn::Answers);
        self.sending.keys().for_each(|flow| {
            self.ready.push(Turn::Flow(*flow));
        });
    }

    /// It is over: requests end, ports get their slots back, all that is kept is freed.
    pub(super) fn end(mut self, cx: &mut Context<'_, P>, why: Over) -> Ended<P> {
        let flows: Vec<u32> = self.receiving.keys().copied().collect();
        for flow in flows {
            self.close_inward(cx, flow);
        }
        self.cut(cx);
        let parted = self.parted();
        if !self.planted.is(Fault::ForgetsRequests) {
            let open: Vec<u64> = self.open.keys().copied().collect();
            for request in open {
                self.end_request(cx, request, Outcome::NodeLost);
            }
        }
        self.lose_claims(cx, why);
        let flows = self.sending.iter().map(|(flow, sending)| FlowEnd {
            flow: self.flow_key(*flow),
            acknowledged: sending.first,
            lost: sending.kept.len() as u64,
            borrow: None,
        });
        let flows = flows.collect();
        Ended { flows, parted }
    }

    /// When something is due that no record announces.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        let deadline = self.deadlines.first().map(|(at, _)| *at);
        deadline.into_iter().chain(self.late.due()).min()
    }

    pub(super) fn timeout(&mut self, cx: &mut Context<'_, P>) {
        if self.late.due().is_some_and(|at| at <= cx.now) {
            self.late.goes_alone();
        }
        while let Some((at, request)) = self.deadlines.first().copied()
            && at <= cx.now
        {
            self.end_request(cx, request, Outcome::TimedOut);
        }
    }

    /// A message is not kept any more: its transfer ends, its bytes are no more in flight.
    fn forget_way(&mut self, way: Way, cost: u64) {
        match way {
            Way::Unsent => {}
            Way::Sent => self.window.done(cost),
            Way::Announced(transfer) => self.drop_out(transfer),
            Way::Transfer { transfer, charged } => {
                self.drop_out(transfer);
                if charged {
                    self.window.done(cost);
                }
            }
        }
    }

    fn forget(&mut self, kept: &Kept<P>) {
        self.forget_way(kept.way, kept.message.cost());
    }

    pub(super) fn first_kept(&self, flow: u32) -> Option<u64> {
        self.sending.get(&flow).map(|sending| sending.first)
    }

    pub(super) fn next_taken(&self, flow: u32) -> Option<u64> {
        self.sending.get(&flow).map(Sending::next)
    }

    pub(super) fn promised_to(&self, flow: u32) -> Option<u64> {
        match self.receiving.get(&flow)? {
            Inward::Open(receiving) => Some(receiving.promised()),
            Inward::Asked | Inward::Moved(_) => None,
        }
    }

    /// What can be seen from outside, for checks and people.
    pub(super) fn view(&self) -> AssociationView {
        let mut view = AssociationView {
            id: self.id,
            serial: self.serial,
            incarnation: self.incarnation,
            in_flight: self.window.in_flight,
            window: self.window.size,
            open_requests: self.open.len() - self.given,
            given: self.given,
            serving: self.serving.len(),
            answers_kept: self.answers.len(),
            transfers_in: self.incoming.len(),
            transfers_out: self.out.len(),
            control_kept: self.control.len(),
            ..AssociationView::default()
        };
        for (flow, sending) in &self.sending {
            view.sending.push(SendingView {
                flow: *flow,
                first: sending.first,
                next: sending.next(),
                waiting: sending.waiting,
            });
            for kept in &sending.kept {
                let charged = match kept.way {
                    Way::Sent => true,
                    Way::Transfer { charged, .. } => charged,
                    Way::Unsent | Way::Announced(_) => false,
                };
                view.charged += u64::from(charged) * kept.message.cost();
                view.charged_messages += usize::from(charged);
            }
        }
        for (flow, inward) in &self.receiving {
            if let Inward::Open(receiving) = inward {
                view.receiving.push(ReceivingView {
                    flow: *flow,
                    port: receiving.port,
                    next: receiving.next,
                    promised: receiving.promised(),
                    held: receiving.held.len(),
                });
            }
        }
        let charged = self.answers.values().filter(|answer| answer.is_charged());
        for answer in charged {
            view.charged += answer.cost();
            view.charged_messages += 1;
        }
        view
    }
}

/// A view of an association: counts and numbers, no content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AssociationView {
    /// Its id.
    pub id: AssociationId,
    /// Its number at this node.
    pub serial: u64,
    /// The peer's.
    pub incarnation: u64,
    /// Bytes in flight, as the window counts them.
    pub in_flight: u64,
    /// Bytes that may be in flight.
    pub window: u64,
    /// The same, counted anew over all messages that are kept.
    pub charged: u64,
    /// How many messages these are.
    pub charged_messages: usize,
    /// Requests made here that have not ended.
    pub open_requests: usize,
    /// Rights in messages to the peer of which it has no loan yet, and send-once rights that it has.
    pub given: usize,
    /// Requests of the peer, and rights that it has given, that are not answered here.
    pub serving: usize,
    /// Answers that the peer has not acknowledged.
    pub answers_kept: usize,
    /// Transfers that come in, or are announced.
    pub transfers_in: usize,
    /// Transfers that go out, or are announced.
    pub transfers_out: usize,
    /// Numbered control records that the peer has not acknowledged.
    pub control_kept: usize,
    /// Flows to the peer.
    pub sending: Vec<SendingView>,
    /// Flows from the peer.
    pub receiving: Vec<ReceivingView>,
}

/// A view of a flow at its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendingView {
    /// Which.
    pub flow: u32,
    /// All numbers below are acknowledged.
    pub first: u64,
    /// The number of the next message.
    pub next: u64,
    /// It waits for credit.
    pub waiting: bool,
}

/// A view of a flow at its home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivingView {
    /// Which.
    pub flow: u32,
    /// The port that it leads to.
    pub port: PortKey,
    /// All numbers below are in the port.
    pub next: u64,
    /// Slots that are promised to it.
    pub promised: u64,
    /// Messages that wait for one with a lower number, or are coming.
    pub held: usize,
}

/// Bytes in flight are counted with what a record costs.
const _: () = assert!(RECORD_COST > 0);
