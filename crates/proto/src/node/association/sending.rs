//! What is to be written: one turn of the link after another.

use super::super::fault::Fault;
use super::super::flow::{Kept, May, Way};
use super::super::rate::{By, Pace};
use super::super::types::{Answer, Event, Message, OutRecord};
use super::super::violation::{Refused, Unsent, Violation};
use super::transfers::Subject;
use super::{Association, Context, Turn};
use crate::Time;
use portolan_abi::node::{
    ANSWERS, Announce, CONTROL, INLINE, MessageBody, MessageRecord, Record, RecordFlags, Sent,
};
use portolan_abi::slot::Kind;

/// What came of a turn.
enum Took<P> {
    /// A record; there may be more.
    Record(OutRecord<P>),
    /// A transfer began; there may be more.
    Transfer,
    /// Nothing may be sent now.
    Nothing,
    /// It has to wait until less is in flight, or for the rate.
    Blocked,
}

impl<P: Clone> Association<P> {
    /// Takes a message for a flow.
    pub(in super::super) fn send(
        &mut self,
        flow: u32,
        message: Message<P>,
        request: Option<(u64, Option<Time>)>,
    ) -> Result<u64, Refused<Message<P>>> {
        let is_malformed = !self.can_carry(&message);
        let why = match self.sending.get_mut(&flow) {
            _ if is_malformed => Unsent::Malformed,
            None => Unsent::Dead,
            Some(sending) if sending.closing => Unsent::Dead,
            Some(sending) if !sending.takes() => {
                sending.wants = true;
                Unsent::Full
            }
            Some(sending) => {
                let number = sending.next();
                let way = Way::Unsent;
                sending.kept.push_back(Kept {
                    message,
                    request,
                    way,
                });
                sending.empty = None;
                self.empties.remove(flow);
                self.ready.push(Turn::Flow(flow));
                return Ok(number);
            }
        };
        Err(Refused { why, item: message })
    }

    /// Whether a flow takes a message, and requests or messages.
    pub(in super::super) fn takes(&mut self, flow: u32) -> Result<bool, Unsent> {
        let sending = self.sending.get_mut(&flow).ok_or(Unsent::Dead)?;
        if sending.closing {
            return Err(Unsent::Dead);
        }
        if !sending.takes() {
            sending.wants = true;
            return Err(Unsent::Full);
        }
        Ok(sending.lent.is_some_and(|lent| lent.synchronous))
    }

    /// What is said once the peer has said what it has.
    pub(in super::super) fn next_record(
        &mut self,
        cx: &mut Context<'_, P>,
        pace: &mut Pace,
    ) -> Option<OutRecord<P>> {
        if let Some(bytes) = self.next_control() {
            let payload = None;
            return Some(OutRecord { bytes, payload });
        }
        while let Some(flow) = self.empties.pop() {
            let Some(sending) = self.sending.get_mut(&flow) else {
                continue;
            };
            let number = sending.next();
            if let Some(credit) = sending.say_empty() {
                let record = Record::Empty { credit };
                let bytes = record.with(Sent {
                    flow,
                    number,
                    ..Sent::default()
                });
                let payload = None;
                return Some(OutRecord { bytes, payload });
            }
        }
        while let Some(turn) = self.ready.pop() {
            let took = match turn {
                Turn::Flow(flow) => self.flow_turn(cx, pace, flow),
                Turn::Answers => self.answers_turn(cx.now, pace),
            };
            match took {
                Took::Record(record) => {
                    self.ready.push(turn);
                    return Some(record);
                }
                Took::Transfer => drop(self.ready.push(turn)),
                Took::Nothing => {}
                Took::Blocked => {
                    self.ready.push_front(turn);
                    return None;
                }
            }
        }
        None
    }

    fn has_room(&self, cost: u64) -> bool {
        self.window.has_room(cost) || self.planted.is(Fault::IgnoresWindow)
    }

    /// Whether a message or an answer has to be acknowledged before the next one is sent.
    fn stops_and_waits(&self) -> bool {
        // A transfer is out until its message is acknowledged.
        self.one_at_a_time && (self.window.in_flight > 0 || !self.out.is_empty())
    }

    /// Whether a payload is so long that it is announced: more than a quarter of the window.
    fn is_announced(&self, bytes: u64) -> bool {
        bytes > self.window.size / 4
    }

    /// Sends the next message of a flow: as a record, as a transfer, or its announcement.
    fn flow_turn(&mut self, cx: &mut Context<'_, P>, pace: &mut Pace, flow: u32) -> Took<P> {
        let key = self.flow_key(flow);
        let waits = self.stops_and_waits();
        let Some(sending) = self.sending.get_mut(&flow) else {
            return Took::Nothing;
        };
        let may = sending.may_send();
        let number = sending.cursor;
        let Some(kept) = (may != May::No).then(|| sending.at(number)).flatten() else {
            return Took::Nothing;
        };
        if waits {
            return Took::Blocked;
        }
        let (bytes, cost) = (kept.message.bytes(), kept.message.cost());
        let extents = u32::try_from(kept.message.lengths.len()).unwrap_or(u32::MAX);
        let request = kept.request.map_or(0, |(request, _)| request);
        // A probe is short; what is longer asks first.
        let announced = self.is_announced(bytes) || (may == May::Probe && bytes > INLINE);
        if !announced && !self.has_room(cost) {
            return Took::Blocked;
        }
        // Of a transfer nothing goes yet.
        if (announced || bytes <= INLINE) && !pace.may_go(cx.now, By::Records) {
            return Took::Blocked;
        }
        let probe = if may == May::Probe {
            RecordFlags::PROBE
        } else {
            RecordFlags::default()
        };
        let mut way = Way::Sent;
        if bytes > INLINE {
            let subject = Subject::Flow(flow, number);
            let Some(transfer) = self.new_transfer(subject, probe, bytes, announced) else {
                self.stuck.push(Turn::Flow(flow));
                return Took::Nothing;
            };
            way = if announced {
                Way::Announced(transfer)
            } else {
                Way::Transfer {
                    transfer,
                    charged: true,
                }
            };
        }
        let Some(sending) = self.sending.get_mut(&flow) else {
            return Took::Nothing;
        };
        let more = sending.sent(way);
        if std::mem::take(&mut sending.wants) {
            cx.events.push_back(Event::Writable { flow: key });
        }
        let more = if more {
            RecordFlags::MORE
        } else {
            RecordFlags::default()
        };
        let sent = Sent {
            flags: probe.with(more),
            flow,
            number,
        };
        if !announced {
            self.window.in_flight += cost;
        }
        match way {
            Way::Announced(transfer) => {
                self.set_flags(transfer, more);
                let announce = Announce {
                    transfer,
                    extents,
                    bytes,
                    request,
                };
                let bytes = Record::Announce(announce).with(sent);
                let payload = None;
                Took::Record(OutRecord { bytes, payload })
            }
            Way::Transfer { transfer, .. } => {
                self.set_flags(transfer, probe.with(more));
                Took::Transfer
            }
            _ => {
                let Some(kept) = self.sending.get_mut(&flow).and_then(|s| s.at(number)) else {
                    return Took::Nothing;
                };
                Took::Record(message_record(cx.now, kept, sent))
            }
        }
    }

    fn set_flags(&mut self, transfer: u32, flags: RecordFlags) {
        if let Some(out) = self.out.get_mut(&transfer) {
            out.flags = flags;
        }
    }

    /// Sends the next answer, in one of the three ways.
    fn answers_turn(&mut self, now: Time, pace: &mut Pace) -> Took<P> {
        let Some(request) = self.to_answer.front().copied() else {
            return Took::Nothing;
        };
        let Some(kept) = self.answers.get(&request) else {
            self.to_answer.pop_front();
            return Took::Transfer;
        };
        if self.stops_and_waits() {
            return Took::Blocked;
        }
        let cost = kept.cost();
        let (bytes, extents) = match &kept.answer {
            Answer::Reply(message) => (message.bytes(), message.lengths.len()),
            Answer::Dropped | Answer::ServerDead => (0, 0),
        };
        let announced = self.is_announced(bytes);
        if !announced && !self.has_room(cost) {
            return Took::Blocked;
        }
        if (announced || bytes <= INLINE) && !pace.may_go(now, By::Records) {
            return Took::Blocked;
        }
        let sent = Sent {
            flow: ANSWERS,
            ..Sent::default()
        };
        if bytes <= INLINE {
            self.to_answer.pop_front();
            self.window.in_flight += cost;
            let Some(kept) = self.answers.get_mut(&request) else {
                return Took::Nothing;
            };
            kept.way = Way::Sent;
            return Took::Record(answer_record(now, request, &kept.answer, sent));
        }
        let subject = Subject::Answer(request);
        let flags = RecordFlags::default();
        let Some(transfer) = self.new_transfer(subject, flags, bytes, announced) else {
            self.stuck.push(Turn::Answers);
            return Took::Nothing;
        };
        self.to_answer.pop_front();
        let Some(kept) = self.answers.get_mut(&request) else {
            return Took::Nothing;
        };
        if !announced {
            let charged = true;
            kept.way = Way::Transfer { transfer, charged };
            self.window.in_flight += cost;
            return Took::Transfer;
        }
        kept.way = Way::Announced(transfer);
        let announce = Announce {
            transfer,
            extents: u32::try_from(extents).unwrap_or(u32::MAX),
            bytes,
            request,
        };
        let bytes = Record::Announce(announce).with(sent);
        let payload = None;
        Took::Record(OutRecord { bytes, payload })
    }

    /// The record that opens a transfer.
    pub(super) fn opening(
        &mut self,
        now: Time,
        subject: Subject,
        flags: RecordFlags,
    ) -> Option<Vec<u8>> {
        match subject {
            Subject::Flow(flow, number) => {
                let kept = self.sending.get_mut(&flow)?.at(number)?;
                let sent = Sent {
                    flags,
                    flow,
                    number,
                };
                Some(message_record(now, kept, sent).bytes)
            }
            Subject::Answer(request) => {
                let kept = self.answers.get(&request)?;
                let sent = Sent {
                    flow: ANSWERS,
                    ..Sent::default()
                };
                Some(answer_record(now, request, &kept.answer, sent).bytes)
            }
        }
    }

    /// The number near which the numbers are that the peer says of a flow.
    pub(in super::super) fn known(&self, flow: u32) -> u64 {
        match flow {
            CONTROL => self.control_first,
            _ => self.sending.get(&flow).map_or(0, |sending| sending.first),
        }
    }

    /// The peer says something about a flow to it.
    pub(in super::super) fn said(
        &mut self,
        cx: &mut Context<'_, P>,
        flow: u32,
        number: u64,
        what: &Record<'_>,
    ) -> Result<(), Violation> {
        if flow == CONTROL && *what == Record::Ack {
            return self.control_acknowledged(number);
        }
        let key = self.flow_key(flow);
        let Some(sending) = self.sending.get_mut(&flow) else {
            // It was closed here meanwhile.
            let is_known = (1..=self.last_flow_sent).contains(&flow);
            return is_known.then_some(()).ok_or(Violation::Flow { flow });
        };
        if sending.lent.is_none() {
            return Ok(());
        }
        let expected = sending.reached;
        let violation = Violation::Number {
            flow,
            number,
            expected,
        };
        match what {
            Record::Ack | Record::Wait if number > expected => return Err(violation),
            Record::Ack => {
                let done = sending.acknowledged(number);
                done.iter().for_each(|kept| self.forget(kept));
            }
            Record::Wait => {
                let done = sending.acknowledged(number);
                let ways = sending.rewind(number);
                sending.waiting = true;
                done.iter().for_each(|kept| self.forget(kept));
                for (way, cost) in ways {
                    self.forget_way(way, cost);
                }
            }
            _ => sending.credit(number),
        }
        let Some(sending) = self.sending.get_mut(&flow) else {
            return Ok(());
        };
        if sending.empty.is_some() && !self.planted.is(Fault::KeepsCredit) {
            self.empties.push(flow);
        }
        if sending.takes() && std::mem::take(&mut sending.wants) {
            cx.events.push_back(Event::Writable { flow: key });
        }
        self.ready.push(Turn::Flow(flow));
        self.close_if_empty(flow);
        Ok(())
    }
}

/// The record of a message: with its payload if that is short.
fn message_record<P: Clone>(now: Time, kept: &Kept<P>, sent: Sent) -> OutRecord<P> {
    let message = &kept.message;
    let kind = if kept.request.is_some() {
        Kind::Request
    } else {
        Kind::Message
    };
    let deadline = kept.request.and_then(|(_, deadline)| deadline);
    let left = deadline.map(|at| u64::try_from(at.since(now).as_nanos()).unwrap_or(u64::MAX));
    let body = MessageBody {
        time_left: left,
        request: kept.request.map_or(0, |(request, _)| request),
        ..body_of(now, kind, message)
    };
    let record = Record::Message(record_of(body, message));
    out(record.with(sent), message)
}

/// The record of an answer.
fn answer_record<P: Clone>(
    now: Time,
    request: u64,
    answer: &Answer<P>,
    sent: Sent,
) -> OutRecord<P> {
    let kind = answer.kind();
    let empty = Message::short(&[]);
    let message = match answer {
        Answer::Reply(message) => message,
        Answer::Dropped | Answer::ServerDead => &empty,
    };
    let body = MessageBody {
        request,
        ..body_of(now, kind, message)
    };
    let record = Record::Answer(record_of(body, message));
    out(record.with(sent), message)
}

fn body_of<P>(now: Time, kind: Kind, message: &Message<P>) -> MessageBody {
    let bytes = message.bytes();
    let inline = if bytes <= INLINE { bytes } else { 0 };
    MessageBody {
        rights: u8::try_from(message.rights.len()).unwrap_or(u8::MAX),
        header: message.header.len(),
        extents: message.lengths.len(),
        inline: u32::try_from(inline).unwrap_or(0),
        urgency: message.urgency.map(|urgency| urgency.encode(now)),
        ..MessageBody::new(kind)
    }
}

fn record_of<P>(body: MessageBody, message: &Message<P>) -> MessageRecord<'_> {
    MessageRecord {
        body,
        lengths: message.lengths.clone(),
        rights: message.rights.iter().map(|it| it.reference).collect(),
        header: &message.header,
        inline: &[],
    }
}

/// The payload goes behind, if it is short.
fn out<P: Clone>(bytes: Vec<u8>, message: &Message<P>) -> OutRecord<P> {
    let length = message.bytes();
    let payload = message.payload.clone();
    OutRecord {
        bytes,
        payload: payload
            .filter(|_| length <= INLINE)
            .map(|payload| (payload, length)),
    }
}
