//! Messages arrive: they are admitted, held until all below are there, delivered, or thrown away.

use super::super::fault::Fault;
use super::super::flow::{ADVANCE, Arrived, Held, Receiving};
use super::super::types::{Delivery, Destination, Home, Message, PortKey, Urgency};
use super::super::violation::Violation;
use super::transfers::{InTransfer, Subject};
use super::{Association, Context, Inward};
use portolan_abi::node::{
    ANSWERS, Announce, INLINE, MAX_AHEAD, MAX_TRANSFERS, MessageRecord, RecordFlags,
};
use portolan_abi::slot::Kind;

/// Requests of a peer that may be at their servers: then its next request waits as if the port
/// were full.
pub(super) const MAX_SERVING: usize = 65_536;

/// What becomes of a number that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    /// It is wanted.
    Taken,
    /// It is in the port already, or here, or has no slot: thrown away.
    Discarded,
}

impl<P: Clone> Association<P> {
    /// The flow at its home; `None` if it was closed, and what comes is thrown away.
    fn inward(&mut self, flow: u32) -> Result<Option<&mut Receiving<P>>, Violation> {
        let was_lent = (1..=self.last_flow_received).contains(&flow);
        match self.receiving.get_mut(&flow) {
            Some(Inward::Open(receiving)) => Ok(Some(receiving)),
            // Its sender has not heard that the port has left.
            Some(Inward::Moved(_)) => Ok(None),
            // One that was refused, or closed.
            None if was_lent => Ok(None),
            _ => Err(Violation::NotLent { flow }),
        }
    }

    /// The number that a flow wants next, near which the number of a message is.
    pub(in super::super) fn expected(&self, flow: u32) -> u64 {
        match self.receiving.get(&flow) {
            Some(Inward::Open(receiving)) => receiving.next,
            _ => 0,
        }
    }

    /// A message that came in the stream of records.
    pub(in super::super) fn message(
        &mut self,
        cx: &mut Context<'_, P>,
        home: &mut dyn Home<P>,
        (flow, number, flags): (u32, u64, RecordFlags),
        record: &MessageRecord<'_>,
    ) -> Result<(), Violation> {
        let bytes = record.payload();
        if bytes != u64::from(record.body.inline) {
            return Err(Violation::Stream { bytes });
        }
        self.may_give(record)?;
        if self.planted.is(Fault::BelievesFlows) && !self.receiving.contains_key(&flow) {
            self.believe(cx, flow);
        }
        if self.admit(cx, (flow, number, flags), record.body.kind)? == Admission::Discarded {
            return Ok(());
        }
        let Some(Inward::Open(receiving)) = self.receiving.get_mut(&flow) else {
            return Ok(());
        };
        let port = receiving.port;
        let mut payload = None;
        if bytes > 0 {
            let to = Destination::Port(port);
            let Some(memory) = home.allocate(to, &record.lengths) else {
                self.stall(cx, flow);
                return Ok(());
            };
            home.fill(&memory, record.inline);
            payload = Some(memory);
        }
        let arrived = self.arrived(cx, record, payload, flags.has(RecordFlags::MORE));
        let Some(Inward::Open(receiving)) = self.receiving.get_mut(&flow) else {
            return Ok(());
        };
        receiving.held.insert(number, Held::Whole(arrived));
        self.deliver(cx, home, flow);
        Ok(())
    }

    /// Judges a number that arrives: as a message, a transfer, or an announcement.
    fn admit(
        &mut self,
        cx: &mut Context<'_, P>,
        (flow, number, flags): (u32, u64, RecordFlags),
        kind: Kind,
    ) -> Result<Admission, Violation> {
        let planted = self.planted;
        let key = self.flow_key(flow);
        let Some(receiving) = self.inward(flow)? else {
            return Ok(Admission::Discarded);
        };
        let Some(port) = cx.ports.get_mut(&receiving.port) else {
            return Ok(Admission::Discarded);
        };
        if port.settings.synchronous != (kind == Kind::Request) {
            return Err(Violation::WrongKind { flow });
        }
        let expected = receiving.next;
        if number > expected + MAX_AHEAD {
            return Err(Violation::Number {
                flow,
                number,
                expected,
            });
        }
        if number < expected && !planted.is(Fault::DeliversTwice) {
            receiving.say.ack = true;
            self.says.push(flow);
            return Ok(Admission::Discarded);
        }
        if number < receiving.limit {
            return Ok(match receiving.held.get(&number) {
                Some(Held::Whole(_)) => Admission::Discarded,
                // Its sender has begun anew: the end of the earlier transfer comes in the other
                // stream, and later.
                Some(Held::Coming(earlier)) => {
                    let earlier = *earlier;
                    self.drop_incoming(cx, earlier);
                    Admission::Taken
                }
                None => Admission::Taken,
            });
        }
        // Beyond its credit: a probe, or what was sent before it heard that its credit is gone.
        if number > receiving.limit || !flags.has(RecordFlags::PROBE) {
            return Ok(Admission::Discarded);
        }
        if port.waiting.is_empty() && port.unpromised() > 0 {
            port.promise(1);
            receiving.limit += 1;
            receiving.credited = cx.now;
            return Ok(Admission::Taken);
        }
        port.waiting.push(key);
        receiving.say.wait = true;
        cx.served.insert(receiving.port);
        if planted.is(Fault::AcknowledgesRefused) {
            receiving.next += 1;
            receiving.limit += 1;
            receiving.say.ack = true;
        }
        self.says.push(flow);
        Ok(Admission::Discarded)
    }

    /// A message opens its transfer: memory for it, or `false` if it is thrown away.
    pub(super) fn message_opens(
        &mut self,
        cx: &mut Context<'_, P>,
        home: &mut dyn Home<P>,
        transfer: u32,
        (flow, number, flags): (u32, u64, RecordFlags),
        record: &MessageRecord<'_>,
    ) -> Result<(), Violation> {
        let is_announced = self.incoming.contains_key(&transfer);
        if !is_announced
            && self.admit(cx, (flow, number, flags), record.body.kind)? == Admission::Discarded
        {
            return Ok(());
        }
        let Some(receiving) = self.inward(flow)? else {
            return Ok(());
        };
        let port = receiving.port;
        let Some(memory) = home.allocate(Destination::Port(port), &record.lengths) else {
            self.stall(cx, flow);
            return Ok(());
        };
        receiving.held.insert(number, Held::Coming(transfer));
        let arrived = self.arrived(cx, record, Some(memory), flags.has(RecordFlags::MORE));
        self.open_incoming(cx, transfer, Subject::Flow(flow, number), arrived)
    }

    /// A message is announced: it waits for its turn within the domain's budget.
    pub(in super::super) fn announced(
        &mut self,
        cx: &mut Context<'_, P>,
        (flow, number, flags): (u32, u64, RecordFlags),
        announce: Announce,
    ) -> Result<(), Violation> {
        let Announce {
            transfer, bytes, ..
        } = announce;
        if transfer <= self.last_announced_received
            || self.incoming.len() >= MAX_TRANSFERS
            || bytes <= INLINE
        {
            return Err(Violation::Transfer { transfer });
        }
        self.last_announced_received = transfer;
        if self.aborted.remove(&transfer) {
            return Ok(());
        }
        let (subject, domain) = if flow == ANSWERS {
            let request = announce.request;
            let Some(domain) = self.wants_answer(request)? else {
                self.acknowledge_answer(cx, request, 0);
                return Ok(());
            };
            (Subject::Answer(request), domain)
        } else {
            let is_request = announce.request != 0;
            let kind = if is_request {
                Kind::Request
            } else {
                Kind::Message
            };
            if self.admit(cx, (flow, number, flags), kind)? == Admission::Discarded {
                return Ok(());
            }
            let Some(receiving) = self.inward(flow)? else {
                return Ok(());
            };
            receiving.held.insert(number, Held::Coming(transfer));
            let port = receiving.port;
            let Some(port) = cx.ports.get(&port) else {
                return Ok(());
            };
            (Subject::Flow(flow, number), port.settings.domain)
        };
        self.incoming
            .insert(transfer, InTransfer::announced(subject, domain, bytes));
        let key = self.transfer_key(transfer);
        let budget = cx.budgets.entry(domain).or_default();
        budget.waiting.push_back((key, bytes));
        cx.granted.insert(domain);
        Ok(())
    }

    /// Delivers what is there in the flow's order.
    pub(super) fn deliver(&mut self, cx: &mut Context<'_, P>, home: &mut dyn Home<P>, flow: u32) {
        loop {
            let key = self.flow_key(flow);
            let (peer, association) = (self.peer, self.serial);
            let Some(Inward::Open(receiving)) = self.receiving.get_mut(&flow) else {
                return;
            };
            let ahead = self.planted.is(Fault::DeliversAhead);
            let first = receiving.held.first_entry().filter(|entry| {
                let is_next = *entry.key() <= receiving.next || ahead;
                is_next && matches!(entry.get(), Held::Whole(_))
            });
            let Some(entry) = first else {
                return;
            };
            let number = *entry.key();
            let Held::Whole(arrived) = entry.remove() else {
                return;
            };
            let request = arrived.request;
            let rights = arrived.message.rights.iter();
            let rights: Vec<u64> = rights.map(|right| right.request.request).collect();
            let opens = request.is_some() || !rights.is_empty();
            let cost = arrived.message.cost();
            let delivery = Delivery {
                port: receiving.port,
                from: key,
                number,
                request: request.map(|request| super::super::RequestKey {
                    peer,
                    association,
                    request,
                }),
                deadline: arrived.deadline,
                message: arrived.message,
            };
            let is_served = opens && self.serving.len() >= MAX_SERVING;
            let granted = arrived.granted;
            if is_served || home.deliver(delivery).is_err() {
                self.give_back(cx, receiving_port(&self.receiving, flow), granted);
                self.stall(cx, flow);
                return;
            }
            self.serving.extend(request.into_iter().chain(rights));
            receiving.has_next_turn = false;
            // The message is in the port: from here on it counts as received.
            if number == receiving.next {
                receiving.next += 1;
            }
            receiving.limit = receiving.limit.max(receiving.next);
            receiving.busy |= arrived.more;
            receiving.say.ack = true;
            // A flow with more to send waits for this, and so may who sends a message.
            if request.is_some() && !arrived.more {
                self.acknowledge_late(cx, flow, cost);
            } else {
                self.says.push(flow);
            }
            let Some(Inward::Open(receiving)) = self.receiving.get_mut(&flow) else {
                return;
            };
            if let Some(port) = cx.ports.get_mut(&receiving.port) {
                port.used();
                if port.has_backlog(key, receiving.next) {
                    cx.arrived.insert(receiving.port);
                }
                let domain = port.settings.domain;
                cx.served.insert(receiving.port);
                cx.give_back(domain, granted);
            }
            self.advance(cx, flow);
        }
    }

    fn give_back(&self, cx: &mut Context<'_, P>, port: Option<PortKey>, bytes: u64) {
        let port = port.and_then(|port| cx.ports.get(&port));
        if let Some(domain) = port.map(|port| port.settings.domain) {
            cx.give_back(domain, bytes);
        }
    }

    /// Gives a busy flow credit in advance, or has it wait for its turn.
    fn advance(&mut self, cx: &mut Context<'_, P>, flow: u32) {
        let key = self.flow_key(flow);
        let Some(Inward::Open(receiving)) = self.receiving.get_mut(&flow) else {
            return;
        };
        let Some(port) = cx.ports.get_mut(&receiving.port) else {
            return;
        };
        let left = receiving.promised();
        if !receiving.busy || left > receiving.advance / 2 {
            return;
        }
        let slots = port.advance(receiving.advance);
        if slots > 0 {
            receiving.limit += slots;
            receiving.credited = cx.now;
            receiving.advance = (receiving.advance * 2).min(*ADVANCE.end());
            receiving.say.credit = true;
            self.says.push(flow);
        } else if left == 0 {
            port.waiting.push(key);
            receiving.advance = *ADVANCE.start();
        }
    }

    /// There is no room after all: all of the flow that is not in the port is thrown away, and
    /// called for when its turn comes. That is the next one, because this one was none; but not again and
    /// again: there may be room for what others send.
    fn stall(&mut self, cx: &mut Context<'_, P>, flow: u32) {
        self.withdraw(cx, flow);
        let key = self.flow_key(flow);
        let Some(Inward::Open(receiving)) = self.receiving.get_mut(&flow) else {
            return;
        };
        if let Some(port) = cx.ports.get_mut(&receiving.port) {
            // The driver says when there is some.
            port.set_free(0);
            receiving.has_next_turn ^= true;
            match receiving.has_next_turn {
                true => port.waiting.push_front(key),
                false => drop(port.waiting.push(key)),
            }
        }
        receiving.say.wait = true;
        receiving.say.credit = false;
        self.says.push(flow);
    }

    /// Its turn has come: the port has promised it a slot.
    pub(in super::super) fn serve(&mut self, cx: &Context<'_, P>, flow: u32) {
        if let Some(Inward::Open(receiving)) = self.receiving.get_mut(&flow) {
            receiving.limit += 1;
            receiving.credited = cx.now;
            receiving.say.credit = true;
            self.says.push(flow);
        }
    }

    /// Takes credit that was not used in time, because others wait for it.
    pub(in super::super) fn lapse(&mut self, cx: &mut Context<'_, P>, flow: u32) {
        let Some(Inward::Open(receiving)) = self.receiving.get_mut(&flow) else {
            return;
        };
        let is_old = cx.now.since(receiving.credited) >= cx.settings.credit_lapses_after;
        // What is coming uses its credit.
        if !is_old || receiving.promised() == 0 || !receiving.held.is_empty() {
            return;
        }
        self.withdraw(cx, flow);
        let key = self.flow_key(flow);
        if let Some(Inward::Open(receiving)) = self.receiving.get_mut(&flow) {
            if let Some(port) = cx.ports.get_mut(&receiving.port) {
                port.waiting.push(key);
            }
            receiving.say.wait = true;
            receiving.say.credit = false;
            self.says.push(flow);
        }
    }

    /// The sender says that it has nothing of this number, and gives its credit back.
    pub(in super::super) fn emptied(
        &mut self,
        cx: &mut Context<'_, P>,
        flow: u32,
        number: u64,
        credit: u64,
    ) -> Result<(), Violation> {
        let Some(receiving) = self.inward(flow)? else {
            return Ok(());
        };
        receiving.busy = false;
        // If not, more credit is under way to it, and it will say so again.
        if receiving.next == number && receiving.limit == credit {
            receiving.say.credit = false;
            self.withdraw(cx, flow);
            self.leave_queue(cx, flow);
        }
        Ok(())
    }

    /// A message as it is held.
    pub(super) fn arrived(
        &self,
        cx: &Context<'_, P>,
        record: &MessageRecord<'_>,
        payload: Option<P>,
        more: bool,
    ) -> Arrived<P> {
        let left = record.body.time_left;
        let is_request = record.body.kind == Kind::Request;
        let urgency = record.body.urgency;
        let rights = record.rights.iter();
        Arrived {
            message: Message {
                urgency: urgency.map(|word| Urgency::decode(word, cx.now)),
                header: record.header.to_vec(),
                lengths: record.lengths.clone(),
                rights: rights.map(|right| self.given_here(cx, right)).collect(),
                payload,
            },
            request: is_request.then_some(record.body.request),
            deadline: left.map(|left| cx.now.after(core::time::Duration::from_nanos(left))),
            more,
            granted: 0,
        }
    }

    /// Plants a fault: a flow that was not lent leads to some port.
    fn believe(&mut self, cx: &mut Context<'_, P>, flow: u32) {
        if let Some((key, port)) = cx.ports.iter_mut().next() {
            self.last_flow_received = self.last_flow_received.max(flow);
            port.flows.insert(self.flow_key(flow));
            let receiving = Inward::Open(Receiving::new(*key));
            self.receiving.insert(flow, receiving);
        }
    }
}

fn receiving_port<P>(
    receiving: &std::collections::BTreeMap<u32, Inward<P>>,
    flow: u32,
) -> Option<PortKey> {
    match receiving.get(&flow)? {
        Inward::Open(receiving) => Some(receiving.port),
        Inward::Asked | Inward::Moved(_) => None,
    }
}
