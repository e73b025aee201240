//! Receive rights in messages: flows follow their ports to new homes.

use super::super::fault::Fault;
use super::super::flow::{Kept, Way};
use super::super::port::Stay;
use super::super::types::{
    BorrowKey, DomainKey, Event, FlowKey, Message, Outcome, PortKey, RequestKey, Returned,
};
use super::super::violation::{Unsent, Violation};
use super::control::Control;
use super::requests::OpenRequest;
use super::rights::{Claimed, Fate};
use super::{Association, Context, Inward, Turn};
use crate::Time;
use portolan_abi::node::{
    Backlog, FEATURE_MOVES, FEATURE_WHERE, Lent, MoveRight, Moved, NodeId, ResolveFailure,
};

/// A message that goes to the new home of its port. Its requests are not those of an association.
#[derive(Debug)]
pub(in super::super) struct Detached<P> {
    pub(in super::super) message: Message<P>,
    pub(in super::super) request: Option<DetachedRequest>,
    /// For each right: whether a request is open for it, and of which domain.
    rights: Vec<Option<DomainKey>>,
}

/// A request whose message goes to the new home of its port.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct DetachedRequest {
    pub(in super::super) key: RequestKey,
    pub(in super::super) deadline: Option<Time>,
    /// It is open, for a program of this domain. If it has ended, its message goes all the same.
    pub(in super::super) open: Option<DomainKey>,
}

impl<P> Detached<P> {
    /// Requests that are open for rights in it.
    pub(in super::super) fn given(&self) -> impl Iterator<Item = RequestKey> + '_ {
        let rights = self.message.rights.iter().zip(&self.rights);
        rights.filter_map(|(right, open)| open.map(|_| right.request))
    }

    /// The message as the driver has it.
    pub(in super::super) fn returned(self) -> Returned<P> {
        Returned {
            request: self.request.map(|it| it.key),
            deadline: self.request.and_then(|it| it.deadline),
            message: self.message,
        }
    }
}

/// A flow whose port has another home.
#[derive(Debug)]
pub(in super::super) struct Redirect<P> {
    pub(in super::super) flow: FlowKey,
    pub(in super::super) lent: Lent,
    pub(in super::super) home: (NodeId, u64),
    pub(in super::super) unsent: Vec<Detached<P>>,
    /// The driver has closed the flow.
    pub(in super::super) closing: bool,
}

impl<P: Clone> Association<P> {
    /// Whether receive rights go to the peer, and it knows that ports move.
    pub(in super::super) fn takes_moves(&self) -> bool {
        self.takes_rights() && self.features & FEATURE_MOVES != 0
    }

    /// Whether the peer may be asked where ports are.
    pub(in super::super) fn takes_questions(&self) -> bool {
        self.takes_moves() && self.features & FEATURE_WHERE != 0
    }

    /// Whether another flow may be opened.
    pub(in super::super) fn may_open(&self) -> Result<(), Unsent> {
        let open = self.sending.len();
        match open < self.most_flows {
            true => Ok(()),
            false => Err(Unsent::TooMany { open }),
        }
    }

    // At the old home.

    /// The port that a flow leads to has left.
    pub(in super::super) fn moves_away(
        &mut self,
        cx: &mut Context<'_, P>,
        flow: u32,
        port: PortKey,
        (home, incarnation): (NodeId, u64),
    ) {
        let Some(Inward::Open(receiving)) = self.receiving.get(&flow) else {
            return;
        };
        let mut next = receiving.next;
        if self.planted.is(Fault::KeepsHome) && next > 0 {
            return;
        }
        self.withdraw(cx, flow);
        self.leave_queue(cx, flow);
        self.says.remove(flow);
        self.late.forget_flow(flow);
        self.receiving.insert(flow, Inward::Moved(port));
        if self.planted.is(Fault::ForgetsFollowers) {
            let key = self.flow_key(flow);
            if let Some(port) = cx.ports.get_mut(&port) {
                port.flows.remove(&key);
            }
        }
        if self.planted.is(Fault::HidesMove) {
            return;
        }
        if self.planted.is(Fault::ForgetsDelivered) {
            next = next.saturating_sub(1);
        }
        self.say(Control::Moved(Moved {
            flow,
            next,
            home,
            incarnation,
        }));
    }

    /// A port that the peer has claimed by this flow has left.
    pub(super) fn say_elsewhere(&mut self, flow: u32, (home, incarnation): (NodeId, u64)) {
        self.say(match self.takes_moves() {
            true => Control::Moved(Moved {
                flow,
                next: 0,
                home,
                incarnation,
            }),
            false => Control::Resolved {
                flow,
                lent: Err(ResolveFailure::NoSuchPort),
            },
        });
    }

    /// Opens the flow by which the backlog goes to the port's new home, which is the peer.
    pub(in super::super) fn move_right(
        &mut self,
        borrow: Option<BorrowKey>,
        request: u64,
        wants_senders: bool,
    ) -> Result<u32, Unsent> {
        let flow = self.open_flow()?;
        if let Some(sending) = self.sending.get_mut(&flow) {
            sending.claim = borrow;
            // Without a borrow nothing is sent.
            sending.closing = borrow.is_none();
            sending.backlog = Some(u64::MAX);
        }
        self.say(Control::MoveRight(MoveRight {
            flow,
            wants_senders,
            request,
        }));
        if borrow.is_none() {
            self.say(Control::Backlog(Backlog { flow, end: 0 }));
        }
        Ok(flow)
    }

    /// All that goes before was sent by this flow.
    pub(in super::super) fn say_backlog(&mut self, flow: u32) -> Result<(), Unsent> {
        let sending = self.sending.get_mut(&flow).ok_or(Unsent::Dead)?;
        sending.backlog = Some(sending.next());
        let end = match self.planted.is(Fault::EndsBacklogEarly) {
            true => 0,
            false => sending.next(),
        };
        self.say(Control::Backlog(Backlog { flow, end }));
        Ok(())
    }

    // At the new home.

    /// The old home opens the flow by which the backlog comes.
    pub(super) fn right_moves(
        &mut self,
        cx: &mut Context<'_, P>,
        moves: MoveRight,
    ) -> Result<(), Violation> {
        let flow = moves.flow;
        if !self.takes_moves() {
            let open = self.serving.len();
            return Err(Violation::Rights { open });
        }
        self.asks_for_flow(flow)?;
        let key = cx.arriving.get(&self.request_key(moves.request)).copied();
        let entry = key.and_then(|key| Some((key, cx.ports.get_mut(&key)?)));
        if let Some((port, entry)) = entry
            && let Stay::Arriving(arriving) = &mut entry.stay
            && arriving.flow.is_none()
        {
            arriving.flow = Some(flow);
            entry.wants_senders |= moves.wants_senders;
            let flow = self.flow_key(flow);
            cx.events.push_back(Event::Claim { flow, port });
        } else {
            self.receiving.remove(&flow);
            let lent = Err(ResolveFailure::NoSuchPort);
            self.say(Control::Resolved { flow, lent });
        }
        Ok(())
    }

    /// The old home says how much goes before.
    pub(super) fn backlog_ended(
        &mut self,
        cx: &mut Context<'_, P>,
        backlog: Backlog,
    ) -> Result<(), Violation> {
        let Backlog { flow, end } = backlog;
        if !(1..=self.last_flow_received).contains(&flow) {
            return Err(Violation::NotLent { flow });
        }
        let (key, next) = (self.flow_key(flow), self.expected(flow));
        for port in cx.arriving.values() {
            let Some(entry) = cx.ports.get_mut(port).filter(|it| it.brings_backlog(key)) else {
                continue;
            };
            if let Stay::Arriving(arriving) = &mut entry.stay {
                arriving.end.get_or_insert(end);
            }
            if entry.has_backlog(key, next) {
                cx.arrived.insert(*port);
            }
        }
        Ok(())
    }

    /// The driver does not lend the port to its old home: nothing more comes.
    pub(super) fn backlog_refused(&self, cx: &mut Context<'_, P>, flow: FlowKey) {
        let mut ports = cx.arriving.values();
        let is_it = |port: &&PortKey| cx.ports.get(port).is_some_and(|it| it.brings_backlog(flow));
        if let Some(port) = ports.find(is_it) {
            cx.arrived.insert(*port);
        }
    }

    // At a borrower.

    /// The port of one of our flows has another home.
    pub(super) fn moved(&mut self, cx: &mut Context<'_, P>, moved: Moved) -> Result<(), Violation> {
        let Moved { flow, next, .. } = moved;
        if !self.takes_moves() {
            return Err(Violation::Flow { flow });
        }
        let Some(mut sending) = self.sending.remove(&flow) else {
            // It was closed here meanwhile.
            let is_known = (1..=self.last_flow_sent).contains(&flow);
            return is_known.then_some(()).ok_or(Violation::Flow { flow });
        };
        if let Some(borrow) = sending.claim.filter(|_| sending.lent.is_none()) {
            // It was claimed where it is no more. Who has closed it since wants it no more.
            if !sending.closing {
                let (flow, fate) = (
                    self.flow_key(flow),
                    Fate::Elsewhere(moved.home, moved.incarnation),
                );
                cx.claimed.push(Claimed { borrow, flow, fate });
            }
            return Ok(());
        }
        let Some(lent) = sending.lent.filter(|_| next <= sending.reached) else {
            let expected = sending.reached;
            return Err(Violation::Number {
                flow,
                number: next,
                expected,
            });
        };
        for kept in sending.acknowledged(next) {
            self.forget(&kept);
        }
        let mut unsent = Vec::new();
        for kept in sending.kept {
            self.forget(&kept);
            if !self.planted.is(Fault::LosesUnsent) {
                unsent.push(self.detached(kept));
            }
        }
        self.empties.remove(flow);
        cx.redirects.push(Redirect {
            flow: self.flow_key(flow),
            lent,
            home: (moved.home, moved.incarnation),
            unsent,
            closing: sending.closing,
        });
        Ok(())
    }

    /// The association is over: messages that the peer was never sent, of flows whose ports may be elsewhere.
    pub(super) fn parted(&mut self) -> Vec<Redirect<P>> {
        let mut parted = Vec::new();
        if !self.takes_questions() {
            return parted;
        }
        let home = self.home();
        for (flow, mut sending) in std::mem::take(&mut self.sending) {
            let backlog = sending.backlog.unwrap_or(0);
            if let Some(lent) = sending.lent
                && backlog < u64::MAX
            {
                let mut apart = Vec::new();
                let first = match self.planted.is(Fault::SendsTwice) {
                    true => sending.first,
                    // Of a backlog nothing comes behind what others have sent since.
                    false => sending.reached.max(backlog),
                };
                while sending.next() > first
                    && let Some(kept) = sending.kept.pop_back()
                {
                    apart.push(kept);
                }
                let unsent: Vec<_> = apart
                    .into_iter()
                    .rev()
                    .map(|it| self.detached(it))
                    .collect();
                if !sending.closing || !unsent.is_empty() {
                    parted.push(Redirect {
                        flow: self.flow_key(flow),
                        lent,
                        home,
                        unsent,
                        closing: sending.closing,
                    });
                }
            }
            self.sending.insert(flow, sending);
        }
        parted
    }

    fn detached(&mut self, kept: Kept<P>) -> Detached<P> {
        let domain = |open: Option<OpenRequest>| open.map(|open| open.domain);
        let rights = kept.message.rights.iter();
        let rights = rights
            .map(|right| domain(self.detach(right.request.request)))
            .collect();
        let request = kept.request.map(|(request, deadline)| DetachedRequest {
            key: self.request_key(request),
            deadline,
            open: domain(self.detach(request)),
        });
        Detached {
            message: kept.message,
            request,
            rights,
        }
    }

    /// Whether messages that were to go to another home can go to this peer.
    pub(in super::super) fn can_adopt(&self, unsent: &[Detached<P>]) -> bool {
        let mut all = unsent.iter();
        all.all(|it| self.can_carry(&it.message))
    }

    /// The messages of a flow whose port has moved go by this one, before all others. Gives the new names of
    /// the requests that are open.
    pub(in super::super) fn adopt(
        &mut self,
        flow: u32,
        unsent: Vec<Detached<P>>,
    ) -> Vec<(RequestKey, RequestKey)> {
        let mut renamed = Vec::new();
        for mut detached in unsent {
            for (right, open) in detached.message.rights.iter_mut().zip(&detached.rights) {
                let from = right.request;
                right.request = self.reopened(*open, None, true);
                right.reference.request = right.request.request;
                renamed.extend(open.map(|_| (from, right.request)));
            }
            let request = detached.request.map(|it| {
                let to = self.reopened(it.open, it.deadline, false);
                renamed.extend(it.open.map(|_| (it.key, to)));
                (to.request, it.deadline)
            });
            let (message, way) = (detached.message, Way::Unsent);
            if let Some(sending) = self.sending.get_mut(&flow) {
                let kept = Kept {
                    message,
                    request,
                    way,
                };
                sending.kept.push_back(kept);
                sending.empty = None;
            }
        }
        self.empties.remove(flow);
        self.ready.push(Turn::Flow(flow));
        renamed
    }

    /// A new number for a request; of one that has ended, it is one that has ended too.
    fn reopened(
        &mut self,
        open: Option<DomainKey>,
        deadline: Option<Time>,
        is_given: bool,
    ) -> RequestKey {
        self.last_request += 1;
        let request = self.last_request;
        if let Some(domain) = open {
            self.given += usize::from(is_given);
            if !is_given {
                *self.open_of.entry(domain).or_default() += 1;
                self.deadlines.extend(deadline.map(|at| (at, request)));
            }
            let open = OpenRequest {
                domain,
                deadline,
                is_given,
            };
            self.open.insert(request, open);
        }
        self.request_key(request)
    }

    /// The borrower of a port that has left has followed it, or does not want to.
    pub(in super::super) fn has_followed(&mut self, flow: u32) {
        self.say(Control::Close { flow });
    }
}

/// How a request ends whose message will reach no port.
pub(in super::super) fn never_put<P>(request: RequestKey) -> Event<P> {
    Event::Ended {
        request,
        outcome: Outcome::PortDead,
    }
}
