//! Requests that are open at the client's node, and answers that the server's node keeps.

use super::super::fault::Fault;
use super::super::flow::Way;
use super::super::types::{
    Answer, Destination, DomainKey, Event, Home, Message, Outcome, RECORD_COST,
};
use super::super::violation::{Refused, Unsent, Violation};
use super::{Association, Context, Turn};
use crate::Time;
use portolan_abi::node::MessageRecord;
use portolan_abi::slot::Kind;

/// A request that has not ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenRequest {
    pub(super) domain: DomainKey,
    pub(super) deadline: Option<Time>,
    /// It is open for a right in a message.
    pub(super) is_given: bool,
}

/// An answer that is kept until the client's node acknowledges it.
#[derive(Debug)]
pub(super) struct KeptAnswer<P> {
    pub(super) answer: Answer<P>,
    pub(super) way: Way,
}

impl<P: Clone> KeptAnswer<P> {
    pub(super) fn cost(&self) -> u64 {
        match &self.answer {
            Answer::Reply(message) => message.cost(),
            Answer::Dropped | Answer::ServerDead => RECORD_COST,
        }
    }

    pub(super) fn payload(&self) -> Option<P> {
        match &self.answer {
            Answer::Reply(message) => message.payload.clone(),
            Answer::Dropped | Answer::ServerDead => None,
        }
    }

    pub(super) fn is_charged(&self) -> bool {
        match self.way {
            Way::Sent => true,
            Way::Transfer { charged, .. } => charged,
            Way::Unsent | Way::Announced(_) => false,
        }
    }
}

impl<P: Clone> Association<P> {
    /// Opens a request, which has still to be sent.
    pub(in super::super) fn open_request(
        &mut self,
        settings: &super::Settings,
        domain: DomainKey,
        deadline: Option<Time>,
    ) -> Result<u64, Unsent> {
        let open = self.open_of.entry(domain).or_default();
        if *open >= settings.open_requests.min(self.most_requests) {
            return Err(Unsent::TooMany { open: *open });
        }
        *open += 1;
        self.last_request += 1;
        let request = self.last_request;
        let is_given = false;
        let open = OpenRequest {
            domain,
            deadline,
            is_given,
        };
        self.open.insert(request, open);
        self.deadlines.extend(deadline.map(|at| (at, request)));
        Ok(request)
    }

    /// A request has ended, if it was open.
    pub(super) fn end_request(
        &mut self,
        cx: &mut Context<'_, P>,
        request: u64,
        outcome: Outcome<P>,
    ) {
        if self.detach(request).is_none() {
            return;
        }
        let request = self.request_key(request);
        if cx.leaving.contains_key(&request) {
            let is_taken = matches!(outcome, Outcome::Answered(Answer::Reply(_)));
            cx.left.push((request, is_taken));
        }
        cx.events.push_back(Event::Ended { request, outcome });
    }

    /// A request is not open any more, and has not ended.
    pub(super) fn detach(&mut self, request: u64) -> Option<OpenRequest> {
        let open = self.open.remove(&request)?;
        if let Some(deadline) = open.deadline {
            self.deadlines.remove(&(deadline, request));
        }
        if open.is_given {
            self.given -= 1;
        } else if let Some(count) = self.open_of.get_mut(&open.domain) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.open_of.remove(&open.domain);
            }
        }
        Some(open)
    }

    /// Nobody waits for a request any more.
    pub(in super::super) fn abandon(&mut self, cx: &mut Context<'_, P>, request: u64) {
        self.end_request(cx, request, Outcome::TimedOut);
    }

    /// The domain of a request that is open; `None` if it has ended.
    pub(super) fn wants_answer(&self, request: u64) -> Result<Option<DomainKey>, Violation> {
        if request == 0 || request > self.last_request {
            return Err(Violation::Request { request });
        }
        Ok(self.open.get(&request).map(|open| open.domain))
    }

    /// An answer that came in the stream of records.
    pub(in super::super) fn answer_arrived(
        &mut self,
        cx: &mut Context<'_, P>,
        home: &mut dyn Home<P>,
        record: &MessageRecord<'_>,
    ) -> Result<(), Violation> {
        let (request, bytes) = (record.body.request, record.payload());
        if bytes != u64::from(record.body.inline) {
            return Err(Violation::Stream { bytes });
        }
        self.may_give(record)?;
        if self.wants_answer(request)?.is_none() {
            self.acknowledge_answer(cx, request, bytes);
            return self.give_back_unread(&record.rights);
        }
        let outcome = match record.body.kind {
            Kind::Dropped => Answer::Dropped,
            Kind::ServerDead => Answer::ServerDead,
            _ => {
                let mut payload = None;
                if bytes > 0 {
                    let to = Destination::Request(self.request_key(request));
                    let Some(memory) = home.allocate(to, &record.lengths) else {
                        self.no_memory(cx, request);
                        return self.give_back_unread(&record.rights);
                    };
                    home.fill(&memory, record.inline);
                    payload = Some(memory);
                }
                let arrived = self.arrived(cx, record, payload, false);
                return self.answered(cx, request, arrived.message);
            }
        };
        self.acknowledge_answer(cx, request, RECORD_COST);
        self.end_request(cx, request, Outcome::Answered(outcome));
        Ok(())
    }

    /// The reply to a request is here.
    pub(super) fn answered(
        &mut self,
        cx: &mut Context<'_, P>,
        request: u64,
        reply: Message<P>,
    ) -> Result<(), Violation> {
        self.acknowledge_answer(cx, request, reply.cost());
        if !self.open.contains_key(&request) {
            // It has ended while the answer came.
            let rights: Vec<_> = reply.rights.iter().map(|right| right.reference).collect();
            return self.give_back_unread(&rights);
        }
        self.serve_rights(&reply);
        let outcome = Outcome::Answered(Answer::Reply(reply));
        self.end_request(cx, request, outcome);
        Ok(())
    }

    pub(super) fn no_memory(&mut self, cx: &mut Context<'_, P>, request: u64) {
        self.acknowledge_answer(cx, request, 0);
        self.end_request(cx, request, Outcome::NoMemory);
    }

    /// The server has answered a request of the peer's.
    pub(in super::super) fn answer(
        &mut self,
        request: u64,
        answer: Answer<P>,
    ) -> Result<(), Refused<Answer<P>>> {
        let is_malformed = matches!(&answer, Answer::Reply(message) if !self.can_carry(message));
        let why = if is_malformed {
            Unsent::Malformed
        } else if !self.serving.remove(&request) {
            Unsent::Dead
        } else {
            let way = Way::Unsent;
            self.answers.insert(request, KeptAnswer { answer, way });
            self.to_answer.push_back(request);
            self.ready.push(Turn::Answers);
            return Ok(());
        };
        Err(Refused { why, item: answer })
    }

    /// The client's node has an answer, or does not want it.
    pub(in super::super) fn answer_acknowledged(&mut self, request: u64) {
        if self.planted.is(Fault::KeepsAnswers) {
            return;
        }
        // If there is none, it was acknowledged before.
        if let Some(kept) = self.answers.remove(&request) {
            self.to_answer.retain(|other| *other != request);
            self.recall(&kept);
            self.forget_way(kept.way, kept.cost());
        }
    }
}
