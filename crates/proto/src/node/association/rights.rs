//! Rights in messages: requests that are open for them, and ports that are claimed.

use super::super::fault::Fault;
use super::super::flow::{Receiving, Way};
use super::super::keys;
use super::super::port::Stay;
use super::super::types::{
    Answer, BorrowKey, DomainKey, Event, FlowKey, Given, Leads, Message, Outcome, PortKey,
};
use super::super::violation::{Over, Unsent, Violation};
use super::control::Control;
use super::receiving::MAX_SERVING;
use super::requests::{KeptAnswer, OpenRequest};
use super::{Association, Context, Inward};
use portolan_abi::node::{
    Claim, FEATURE_RIGHTS, Lent, MAX_GIVEN, MessageRecord, NodeId, PORT_SECRET, PortId, Reference,
    ReferenceKind, ResolveFailure,
};

/// What has become of a claim.
#[derive(Debug)]
pub(in super::super) struct Claimed {
    pub(in super::super) borrow: BorrowKey,
    pub(in super::super) flow: FlowKey,
    pub(in super::super) fate: Fate,
}

#[derive(Debug)]
pub(in super::super) enum Fate {
    /// The home has lent the port.
    Lent(Lent),
    /// It has not.
    Refused(ResolveFailure),
    /// The port is at another node, in this incarnation of that.
    Elsewhere(NodeId, u64),
    /// The association is over, and there may be another one with the same home.
    Again,
    /// The home was given up.
    Lost,
}

impl<P> Context<'_, P> {
    /// The port of this id, shown its secret.
    fn port_of(&self, id: &PortId, secret: &[u8; PORT_SECRET]) -> Option<PortKey> {
        if self.planted.is(Fault::LendsAnyPort) {
            return self.ports.keys().next().copied();
        }
        let key = *self.by_id.get(id)?;
        let ours = self.ports.get(&key)?.settings.secret();
        keys::is_same(&ours, secret).then_some(key)
    }
}

impl<P: Clone> Association<P> {
    /// Whether rights go to the peer.
    pub(in super::super) fn takes_rights(&self) -> bool {
        self.features & FEATURE_RIGHTS != 0
    }

    /// Whether a record can say this, to this peer.
    pub(in super::super) fn can_carry(&self, message: &Message<P>) -> bool {
        let moves = |it: &Given| it.reference.kind == ReferenceKind::Receive;
        message.can_be()
            && (message.rights.is_empty() || self.takes_rights())
            && (self.takes_moves() || !message.rights.iter().any(moves))
    }

    // At the giver's node.

    /// Opens a request for a right that is to be given.
    pub(in super::super) fn open_given(&mut self, domain: DomainKey) -> Result<u64, Unsent> {
        if !self.takes_rights() {
            let node = self.peer;
            return Err(Unsent::NoRights { node });
        }
        if self.given >= MAX_GIVEN {
            let open = self.given;
            return Err(Unsent::TooMany { open });
        }
        self.given += 1;
        self.last_request += 1;
        let request = self.last_request;
        let (deadline, is_given) = (None, true);
        let open = OpenRequest {
            domain,
            deadline,
            is_given,
        };
        self.open.insert(request, open);
        Ok(request)
    }

    /// The port that a flow leads to.
    pub(in super::super) fn lent(&self, flow: u32) -> Option<Lent> {
        self.sending.get(&flow)?.lent
    }

    /// A message will not arrive: its rights are the giver's again.
    pub(super) fn take_rights_back(&mut self, cx: &mut Context<'_, P>, message: &Message<P>) {
        for right in &message.rights {
            self.end_request(cx, right.request.request, Outcome::PortDead);
        }
    }

    /// An answer is not wanted. If only its announcement was seen, its rights were not.
    pub(super) fn recall(&mut self, answer: &KeptAnswer<P>) {
        let Answer::Reply(reply) = &answer.answer else {
            return;
        };
        if !matches!(answer.way, Way::Announced(_) | Way::Unsent) {
            return;
        }
        for right in &reply.rights {
            let request = right.request.request;
            if self.open.contains_key(&request) {
                self.say(Control::Recall { request });
            }
        }
    }

    // At the receiver's.

    /// Whether the peer may give what stands in a record.
    pub(in super::super) fn may_give(&self, record: &MessageRecord<'_>) -> Result<(), Violation> {
        let open = self.serving.len();
        let of_port = |it: &Reference| {
            let is_home = (it.home, it.incarnation) == (self.peer, self.incarnation);
            it.kind != ReferenceKind::Receive || (self.takes_moves() && is_home)
        };
        let is_fine = self.takes_rights()
            && open + record.rights.len() <= 2 * MAX_SERVING
            && record.rights.iter().all(of_port);
        match record.rights.is_empty() || is_fine {
            true => Ok(()),
            false => Err(Violation::Rights { open }),
        }
    }

    /// A right that has come, seen from here.
    pub(super) fn given_here(&self, cx: &Context<'_, P>, reference: &Reference) -> Given {
        let mut forwarded = None;
        let leads = match reference.kind {
            ReferenceKind::SendOnce => Leads::Back,
            ReferenceKind::Send if reference.home == cx.settings.node => {
                let port = cx.port_of(&reference.port, &reference.secret);
                forwarded = port.and_then(|port| match cx.ports.get(&port)?.stay {
                    Stay::Left(home, incarnation) => Some((home, incarnation)),
                    _ => None,
                });
                match (port, forwarded) {
                    (_, Some(_)) => Leads::There,
                    (Some(port), None) => Leads::Here(port),
                    (None, None) => Leads::Nowhere,
                }
            }
            ReferenceKind::Send => Leads::There,
            ReferenceKind::Receive => Leads::Receive,
        };
        let (home, incarnation) = forwarded.unwrap_or((reference.home, reference.incarnation));
        Given {
            request: self.request_key(reference.request),
            reference: Reference {
                home,
                incarnation,
                ..*reference
            },
            leads,
        }
    }

    /// The rights of an answer are the driver's to answer for.
    pub(super) fn serve_rights(&mut self, reply: &Message<P>) {
        let requests = reply.rights.iter().map(|right| right.request.request);
        self.serving.extend(requests);
    }

    /// Gives rights back that nobody here has seen.
    pub(super) fn give_back_unread(&mut self, rights: &[Reference]) -> Result<(), Violation> {
        if self.planted.is(Fault::LosesRights) {
            return Ok(());
        }
        for right in rights {
            self.recalled(right.request)?;
        }
        Ok(())
    }

    /// A right is to be given back, unless it has come.
    pub(super) fn recalled(&mut self, request: u64) -> Result<(), Violation> {
        let records = self.answers.len();
        if records >= 2 * MAX_SERVING {
            return Err(Violation::Unread { records });
        }
        if !self.answers.contains_key(&request) && self.serving.insert(request) {
            // It was not answered, so this is.
            let _ = self.answer(request, Answer::Dropped);
        }
        Ok(())
    }

    /// Shows a port's secret to its home, which is the peer.
    pub(in super::super) fn claim(
        &mut self,
        borrow: BorrowKey,
        reference: &Reference,
    ) -> Result<u32, Unsent> {
        let flow = self.open_flow()?;
        if let Some(sending) = self.sending.get_mut(&flow) {
            sending.claim = Some(borrow);
        }
        let Reference { port, secret, .. } = *reference;
        self.say(Control::Claim(Claim { flow, port, secret }));
        Ok(flow)
    }

    pub(super) fn claim_ended(
        &self,
        cx: &mut Context<'_, P>,
        borrow: BorrowKey,
        flow: u32,
        lent: Result<Lent, ResolveFailure>,
    ) {
        let flow = self.flow_key(flow);
        let fate = match lent {
            Ok(lent) => Fate::Lent(lent),
            Err(failure) => Fate::Refused(failure),
        };
        let claimed = Claimed { borrow, flow, fate };
        cx.claimed.push(claimed);
    }

    /// The association is over: what was claimed and not lent may be claimed again.
    pub(super) fn lose_claims(&self, cx: &mut Context<'_, P>, why: Over) {
        let is_lost = matches!(why, Over::GivenUp | Over::Here | Over::Violation(_));
        for (flow, sending) in &self.sending {
            if let Some(borrow) = sending.claim {
                let flow = self.flow_key(*flow);
                let fate = if is_lost { Fate::Lost } else { Fate::Again };
                let claimed = Claimed { borrow, flow, fate };
                cx.claimed.push(claimed);
            }
        }
    }

    // At the home.

    /// The peer shows a port's secret.
    pub(super) fn claimed(
        &mut self,
        cx: &mut Context<'_, P>,
        claim: &Claim,
    ) -> Result<(), Violation> {
        let flow = claim.flow;
        if !self.takes_rights() {
            let open = self.serving.len();
            return Err(Violation::Rights { open });
        }
        self.asks_for_flow(flow)?;
        if let Some(port) = cx.port_of(&claim.port, &claim.secret) {
            if let Some(Stay::Left(home, incarnation)) = cx.ports.get(&port).map(|it| &it.stay) {
                self.receiving.remove(&flow);
                self.say_elsewhere(flow, (*home, *incarnation));
                return Ok(());
            }
            let flow = self.flow_key(flow);
            cx.events.push_back(Event::Claim { flow, port });
        } else {
            self.receiving.remove(&flow);
            let lent = Err(ResolveFailure::NoSuchPort);
            self.say(Control::Resolved { flow, lent });
        }
        Ok(())
    }

    /// A port's receiver wants to know when no sender is left.
    pub(in super::super) fn want_senders(&mut self, flow: u32) {
        let open = self.receiving.get(&flow);
        if matches!(open, Some(Inward::Open(Receiving { .. }))) {
            self.say(Control::WantSenders { flow });
        }
    }

    /// The home of a flow's port wants that.
    pub(super) fn senders_wanted(
        &mut self,
        cx: &mut Context<'_, P>,
        flow: u32,
    ) -> Result<(), Violation> {
        if let Some(sending) = self.sending.get(&flow) {
            if sending.lent.is_none() {
                return Err(Violation::Flow { flow });
            }
            let flow = self.flow_key(flow);
            cx.events.push_back(Event::WantSenders { flow });
            return Ok(());
        }
        // It was closed here meanwhile.
        let is_known = (1..=self.last_flow_sent).contains(&flow);
        is_known.then_some(()).ok_or(Violation::Flow { flow })
    }

    /// The home that a reference to the port of a flow names.
    pub(in super::super) fn home(&self) -> (NodeId, u64) {
        (self.peer, self.incarnation)
    }
}
