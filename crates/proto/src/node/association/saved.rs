//! What of an association goes over to another process that goes on as this node: what is left when
//! its connection is cut.

use super::super::flow::{Kept, Receiving, Sending, Way};
use super::super::saved::{Coded, Damaged, Hex, Payloads, SavedMessage, Saving, left_of, until};
use super::super::types::{Answer, BorrowKey, DomainKey, PortKey};
use super::control::Control;
use super::requests::{KeptAnswer, OpenRequest};
use super::{Association, Context, Inward};
use portolan_abi::node::{AssociationId, Lent, NodeId, Record, Sent};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) struct SavedAssociation {
    id: (u64, u64),
    pub(in super::super) serial: u64,
    incarnation: u64,
    features: u64,
    most_flows: usize,
    most_requests: usize,
    most_transfers: usize,
    window: u64,
    control: Vec<Hex>,
    control_first: u64,
    control_reached: u64,
    control_next: u64,
    sending: Vec<SavedSending>,
    last_flow_sent: u32,
    receiving: Vec<SavedReceiving>,
    last_flow_received: u32,
    transfers_sent: (u32, u32, u32),
    transfers_received: (u32, u32),
    open: Vec<SavedRequest>,
    last_request: u64,
    serving: Vec<u64>,
    answers: Vec<(u64, SavedAnswer)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedSending {
    flow: u32,
    lent: Option<Coded<Lent>>,
    claim: Option<BorrowKey>,
    first: u64,
    reached: u64,
    kept: Vec<SavedKept>,
    closing: bool,
    backlog: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedKept {
    message: SavedMessage,
    /// Which, and the time that is left of it.
    request: Option<(u64, Option<u64>)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedReceiving {
    flow: u32,
    port: PortKey,
    /// The number that is wanted next; none, if the port has left.
    next: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedRequest {
    request: u64,
    domain: DomainKey,
    left: Option<u64>,
    is_given: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum SavedAnswer {
    Reply(SavedMessage),
    Dropped,
    ServerDead,
}

impl<P: Clone> Association<P> {
    /// Whether a flow of the peer waits for what cannot be saved.
    pub(in super::super) fn is_asked(&self) -> bool {
        let mut flows = self.receiving.values();
        flows.any(|inward| matches!(inward, Inward::Asked))
    }

    /// What the peer has not acknowledged.
    pub(in super::super) fn unacknowledged(&self) -> usize {
        let kept = self.sending.values().map(|sending| sending.kept.len());
        kept.sum::<usize>() + self.answers.len() + self.control.len()
    }

    pub(in super::super) fn save(&self, saving: &mut Saving<P>) -> SavedAssociation {
        let now = saving.now;
        let control = self.control.iter();
        let control = control.map(|it| Hex(it.record().with(Sent::default())));
        let mut sending = Vec::new();
        for (flow, it) in &self.sending {
            let kept = it.kept.iter().map(|kept| SavedKept {
                message: saving.message(&kept.message),
                request: kept.request.map(|(id, at)| (id, left_of(at, now))),
            });
            sending.push(SavedSending {
                flow: *flow,
                lent: it.lent.map(Coded),
                claim: it.claim,
                first: it.first,
                reached: it.reached,
                kept: kept.collect(),
                // Nobody waits any more for the answer to a name.
                closing: it.closing || (it.lent.is_none() && it.claim.is_none()),
                backlog: it.backlog,
            });
        }
        let receiving = self.receiving.iter().filter_map(|(flow, it)| {
            let (port, next) = match it {
                Inward::Asked => return None,
                Inward::Open(it) => (it.port, Some(it.next)),
                Inward::Moved(port) => (*port, None),
            };
            let flow = *flow;
            Some(SavedReceiving { flow, port, next })
        });
        let open = self.open.iter().map(|(request, it)| SavedRequest {
            request: *request,
            domain: it.domain,
            left: left_of(it.deadline, now),
            is_given: it.is_given,
        });
        let answers = self.answers.iter().map(|(request, kept)| {
            let answer = match &kept.answer {
                Answer::Reply(message) => SavedAnswer::Reply(saving.message(message)),
                Answer::Dropped => SavedAnswer::Dropped,
                Answer::ServerDead => SavedAnswer::ServerDead,
            };
            (*request, answer)
        });
        SavedAssociation {
            id: (self.id.smaller, self.id.larger),
            serial: self.serial,
            incarnation: self.incarnation,
            features: self.features,
            most_flows: self.most_flows,
            most_requests: self.most_requests,
            most_transfers: self.most_transfers,
            window: self.window.size,
            control: control.collect(),
            control_first: self.control_first,
            control_reached: self.control_reached,
            control_next: self.control_next,
            sending,
            last_flow_sent: self.last_flow_sent,
            receiving: receiving.collect(),
            last_flow_received: self.last_flow_received,
            transfers_sent: (
                self.last_transfer,
                self.last_transfer_sent,
                self.last_announced_sent,
            ),
            transfers_received: (self.last_transfer_received, self.last_announced_received),
            open: open.collect(),
            last_request: self.last_request,
            serving: self.serving.iter().copied().collect(),
            answers: answers.collect(),
        }
    }

    /// The association as it is after a cut.
    pub(in super::super) fn restore(
        cx: &mut Context<'_, P>,
        peer: NodeId,
        saved: SavedAssociation,
        payloads: &mut Payloads<P>,
    ) -> Result<Self, Damaged> {
        let (smaller, larger) = saved.id;
        let id = AssociationId { smaller, larger };
        let mut it = Self::new(cx, peer, id, saved.serial, saved.incarnation);
        (it.features, it.most_flows) = (saved.features, saved.most_flows);
        (it.most_requests, it.most_transfers) = (saved.most_requests, saved.most_transfers);
        let most = cx.settings.window_at_most.max(cx.settings.window_at_first);
        it.window.size = saved.window.clamp(cx.settings.window_at_first, most);
        for record in &saved.control {
            it.control.push_back(control_of(&record.0)?);
        }
        let control_end = saved.control_first.checked_add(saved.control.len() as u64);
        if control_end.is_none_or(|end| saved.control_reached > end) {
            return Err(Damaged("the numbers of control records"));
        }
        it.control_first = saved.control_first;
        it.control_cursor = saved.control_first;
        it.control_reached = saved.control_reached;
        it.control_next = saved.control_next;
        (it.last_flow_sent, it.last_flow_received) =
            (saved.last_flow_sent, saved.last_flow_received);
        (
            it.last_transfer,
            it.last_transfer_sent,
            it.last_announced_sent,
        ) = saved.transfers_sent;
        (it.last_transfer_received, it.last_announced_received) = saved.transfers_received;
        it.last_request = saved.last_request;
        for saved in saved.open {
            it.reopen(cx, saved)?;
        }
        for saved in saved.sending {
            it.send_again(cx, saved, payloads)?;
        }
        for saved in saved.receiving {
            it.receive_again(cx, &saved)?;
        }
        it.serving = saved.serving.into_iter().collect();
        for (request, answer) in saved.answers {
            let answer = match answer {
                SavedAnswer::Reply(message) => Answer::Reply(payloads.message(cx.now, message)?),
                SavedAnswer::Dropped => Answer::Dropped,
                SavedAnswer::ServerDead => Answer::ServerDead,
            };
            let way = Way::Unsent;
            it.answers.insert(request, KeptAnswer { answer, way });
        }
        it.to_answer = it.answers.keys().copied().collect();
        Ok(it)
    }

    fn reopen(&mut self, cx: &Context<'_, P>, saved: SavedRequest) -> Result<(), Damaged> {
        let SavedRequest {
            request,
            domain,
            is_given,
            ..
        } = saved;
        if request > self.last_request {
            return Err(Damaged("a request"));
        }
        let deadline = until(saved.left, cx.now);
        self.deadlines.extend(deadline.map(|at| (at, request)));
        match is_given {
            true => self.given += 1,
            false => *self.open_of.entry(domain).or_default() += 1,
        }
        let open = OpenRequest {
            domain,
            deadline,
            is_given,
        };
        match self.open.insert(request, open) {
            None => Ok(()),
            Some(_) => Err(Damaged("a request that is there twice")),
        }
    }

    fn send_again(
        &mut self,
        cx: &Context<'_, P>,
        saved: SavedSending,
        payloads: &mut Payloads<P>,
    ) -> Result<(), Damaged> {
        let SavedSending { first, reached, .. } = saved;
        let next = first.checked_add(saved.kept.len() as u64);
        let is_known = (1..=self.last_flow_sent).contains(&saved.flow);
        if !is_known || next.is_none_or(|next| reached > next || reached < first) {
            return Err(Damaged("the numbers of a flow"));
        }
        let mut kept = std::collections::VecDeque::new();
        for saved in saved.kept {
            let message = payloads.message(cx.now, saved.message)?;
            let request = saved.request.map(|(id, left)| (id, until(left, cx.now)));
            let way = Way::Unsent;
            kept.push_back(Kept {
                message,
                request,
                way,
            });
        }
        let sending = Sending {
            lent: saved.lent.map(|lent| lent.0),
            claim: saved.claim,
            first,
            kept,
            cursor: first,
            limit: first,
            reached,
            closing: saved.closing,
            backlog: saved.backlog,
            ..Sending::new()
        };
        match self.sending.insert(saved.flow, sending) {
            None => Ok(()),
            Some(_) => Err(Damaged("a flow that is there twice")),
        }
    }

    fn receive_again(
        &mut self,
        cx: &mut Context<'_, P>,
        saved: &SavedReceiving,
    ) -> Result<(), Damaged> {
        let SavedReceiving { flow, port, next } = *saved;
        let key = self.flow_key(flow);
        let is_known = (1..=self.last_flow_received).contains(&flow);
        let entry = cx.ports.get_mut(&port).filter(|_| is_known);
        let entry = entry.ok_or(Damaged("the port of a flow"))?;
        entry.flows.insert(key);
        let inward = match next {
            None => Inward::Moved(port),
            Some(next) => Inward::Open(Receiving {
                next,
                limit: next,
                ..Receiving::new(port)
            }),
        };
        match self.receiving.insert(flow, inward) {
            None => Ok(()),
            Some(_) => Err(Damaged("a flow that is there twice")),
        }
    }
}

/// A control record, as it was kept.
fn control_of(bytes: &[u8]) -> Result<Control, Damaged> {
    let wrong = Damaged("a control record");
    let (_, record) = Record::decode(bytes).map_err(|_| wrong)?;
    Ok(match record {
        Some(Record::Resolve(it)) => Control::Resolve {
            flow: it.flow,
            domain: it.domain.to_owned(),
            name: it.name.to_owned(),
        },
        Some(Record::Resolved { flow, lent }) => Control::Resolved { flow, lent },
        Some(Record::Dead(dead)) => Control::Dead(dead),
        Some(Record::Close { flow }) => Control::Close { flow },
        Some(Record::Claim(claim)) => Control::Claim(claim),
        Some(Record::Recall { request }) => Control::Recall { request },
        Some(Record::WantSenders { flow }) => Control::WantSenders { flow },
        Some(Record::MoveRight(moves)) => Control::MoveRight(moves),
        Some(Record::Backlog(backlog)) => Control::Backlog(backlog),
        Some(Record::Moved(moved)) => Control::Moved(moved),
        _ => return Err(wrong),
    })
}
