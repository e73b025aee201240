//! Receive rights move: a port leaves its old home, arrives at its new one, and its borrowers follow.
//!
//! ```text
//! old home   here ---give---> leaving ---taken---> left: forwards    (not taken: here again)
//! new home   take ---> arriving ---the backlog is here, or the old home is over---> here
//! borrower   flow ---Moved---> borrow, with what was not put into the port ---> flow to the new home
//!
//! giver ---Message with the right---> receiver        the old home is home until it hears that
//!       <---Answer: taken-------------                the right is taken; then the other one is
//!       ---MoveRight, messages, Backlog--->           (no messages: both at once, else once it is lent)
//!       ---Moved---> borrower ---Claim---> receiver   replied to when the backlog is there
//!       <---Close---          <--Resolved--
//! ```
//!
//! Of each flow the old home says how much it has put into the port. That much comes to the new home with
//! the backlog, and the borrower sends the rest there; the new home lends the port to no borrower before the
//! whole backlog is in the port. So what one sender has sent stays in order, and nothing is on two
//! ways. A right is given on only after its backlog has arrived, so this holds however often a port moves.

use super::association::{Context, Detached, Redirect, never_put};
use super::borrow::{Borrow, Limbo, to_port};
use super::fault::Fault;
use super::keys;
use super::machine::{Node, association_of, context};
use super::port::{Port, Stay};
use super::types::{
    Answer, BorrowKey, DomainKey, Event, FlowKey, Given, Leads, Message, Outcome, PortKey,
    PortSettings, RequestKey,
};
use super::violation::Unsent;
use crate::Time;
use portolan_abi::node::{NodeId, PORT_SECRET, PortId, Reference, ReferenceKind, ResolveFailure};

/// Ports that have left and that no flow follows any more, of which a node still says where they are.
const MAX_FORWARDED: usize = 65_536;

/// Where a port is, seen from this node.
enum Whereabouts {
    Here(PortKey),
    Arriving(PortKey),
    Away(NodeId, u64),
    Gone,
}

impl<P: Clone> Node<P> {
    /// Makes the reference of a receive right that goes with a message to a peer.
    pub(super) fn give_away(
        &mut self,
        (peer, association): (NodeId, u64),
        port: PortKey,
    ) -> Result<Reference, Unsent> {
        let entry = self.ports.get(&port).ok_or(Unsent::Dead)?;
        match entry.stay {
            Stay::Here => {}
            Stay::Leaving | Stay::Arriving(_) => return Err(Unsent::Moving),
            Stay::Left(..) => return Err(Unsent::Dead),
        }
        let settings = entry.settings;
        let flows: Vec<FlowKey> = entry.flows.iter().copied().collect();
        let to = association_of(&mut self.peers, peer, association).ok_or(Unsent::Dead)?;
        if !to.takes_moves() {
            return Err(Unsent::NoMoves { node: peer });
        }
        to.may_open()?;
        for flow in flows {
            let of = association_of(&mut self.peers, flow.peer, flow.association);
            if of.is_some_and(|it| !it.takes_moves()) {
                return Err(Unsent::NoMoves { node: flow.peer });
            }
        }
        let own = (self.settings.node, self.settings.incarnation);
        Ok(Reference {
            kind: ReferenceKind::Receive,
            slots: settings.slots.max(1),
            ..to_port(settings.id, settings.key, own, settings.synchronous)
        })
    }

    /// The receive right of a port stands in a message from now on.
    pub(super) fn leaves(&mut self, port: PortKey, request: RequestKey) {
        self.leaving.insert(request, port);
        if let Some(entry) = self.ports.get_mut(&port) {
            entry.stay = Stay::Leaving;
        }
    }

    /// Takes a receive right that was given: its port's home is this node, as `port`, in `domain`. If the
    /// port was here before and has left, it has the number that it had then. Returns its number. First
    /// comes its backlog; [`Event::Arrived`] tells.
    ///
    /// # Errors
    ///
    /// [`Unsent::Dead`]: the right is none, another port has the number or the name, or the giver is given
    /// up. Answer its request as dropped.
    pub fn take(
        &mut self,
        given: &Given,
        port: PortKey,
        domain: DomainKey,
    ) -> Result<PortKey, Unsent> {
        let it = &given.reference;
        if given.leads != Leads::Receive {
            return Err(Unsent::Dead);
        }
        let known = self.by_id.get(&it.port).copied();
        let port = known.unwrap_or(port);
        match (known, self.ports.get(&port)) {
            (None, None) => {}
            (Some(_), Some(entry)) => {
                let was_here = matches!(entry.stay, Stay::Left(..));
                if !was_here || entry.settings.key != it.secret {
                    return Err(Unsent::Dead);
                }
            }
            _ => return Err(Unsent::Dead),
        }
        let taken = Answer::Reply(Message::short(&[]));
        let answered = self.answer(given.request, taken);
        answered.map_err(|refused| refused.why)?;
        let settings = PortSettings {
            id: it.port,
            key: it.secret,
            domain,
            synchronous: it.synchronous,
            slots: it.slots,
        };
        let planted = self.planted;
        let entry = self.ports.entry(port);
        let entry = entry.or_insert_with(|| Port::new(settings, planted));
        // It may have been here before, and in another domain.
        entry.settings.domain = domain;
        entry.arrives(it.slots, given.request);
        self.index(port, &settings);
        self.arriving.insert(given.request, port);
        self.forwarded.retain(|it| *it != port);
        Ok(port)
    }

    /// Borrows a port that has [left](Event::Left) once more, for programs here that have sent to it
    /// while it was here: what they sent before is in its backlog, or in the port already.
    /// [`Event::Borrowed`] tells. `None` of a port that has not left.
    pub fn borrow_left(&mut self, now: Time, port: PortKey) -> Option<BorrowKey> {
        let entry = self.ports.get(&port)?;
        let Stay::Left(home, incarnation) = entry.stay else {
            return None;
        };
        let settings = entry.settings;
        let home = (home, incarnation);
        let reference = to_port(settings.id, settings.secret(), home, settings.synchronous);
        self.last_borrow += 1;
        let borrow = BorrowKey(self.last_borrow);
        let new = Borrow {
            key: Some(keys::of_borrower(&settings.key, self.settings.node)),
            ..Borrow::new(reference, Vec::new(), now)
        };
        self.borrows.insert(borrow, new);
        self.claim_one(now, borrow);
        Some(borrow)
    }

    /// What was in the queue of a port when it [left](Event::Left) was all sent by this flow: others may
    /// send to the port at its new home.
    ///
    /// # Errors
    ///
    /// [`Unsent::Dead`]: there is no such flow.
    pub fn backlog_ends(&mut self, flow: FlowKey) -> Result<(), Unsent> {
        let association = association_of(&mut self.peers, flow.peer, flow.association);
        association.ok_or(Unsent::Dead)?.say_backlog(flow.flow)
    }

    /// As [`backlog_ends`](Self::backlog_ends), of a port whose queue was empty when it [left](Event::Left): said
    /// with the move, so that others may send to the port, and it may be given on, a round trip sooner.
    ///
    /// # Errors
    ///
    /// [`Unsent::Dead`]: no flow goes to the new home.
    pub fn has_no_backlog(&mut self, borrow: BorrowKey) -> Result<(), Unsent> {
        let moving = self.borrows.get(&borrow).filter(|it| it.moving);
        let flow = moving.and_then(|it| it.flow).ok_or(Unsent::Dead)?;
        self.backlog_ends(flow)
    }

    /// Handles receive rights that were taken or not, flows whose ports have moved, and ports that have
    /// arrived.
    pub(super) fn settle_moves(&mut self, now: Time) {
        for (request, is_taken) in std::mem::take(&mut self.left) {
            let Some(port) = self.leaving.remove(&request) else {
                continue;
            };
            if is_taken {
                self.has_left(now, port, request);
            } else if let Some(entry) = self.ports.get_mut(&port) {
                entry.stay = Stay::Here;
            }
        }
        for redirect in std::mem::take(&mut self.redirects) {
            self.redirect(now, redirect);
        }
        while let Some(port) = self.arrived.pop_first() {
            self.has_arrived(now, port);
        }
    }

    /// A peer has taken the receive right of a port.
    fn has_left(&mut self, now: Time, port: PortKey, request: RequestKey) {
        let Some(to) = association_of(&mut self.peers, request.peer, request.association) else {
            return;
        };
        let home = to.home();
        let Some(entry) = self.ports.get_mut(&port) else {
            // It was closed meanwhile: nothing goes before.
            let _ = to.move_right(None, request.request, false);
            return;
        };
        let wants = std::mem::take(&mut entry.wants_senders);
        let flows: Vec<FlowKey> = entry.flows.iter().copied().collect();
        let settings = entry.settings;
        if !self.planted.is(Fault::KeepsHome) {
            entry.stay = Stay::Left(home.0, home.1);
        } else {
            entry.stay = Stay::Here;
        }
        self.last_borrow += 1;
        let borrow = BorrowKey(self.last_borrow);
        let flow = to.move_right(Some(borrow), request.request, wants).ok();
        let flow = flow.map(|flow| to.flow_key(flow));
        let new = Borrow {
            moving: true,
            flow,
            ..Borrow::new(
                to_port(settings.id, settings.secret(), home, settings.synchronous),
                Vec::new(),
                now,
            )
        };
        self.borrows.insert(borrow, new);
        self.events.push_back(Event::Left { port, borrow });
        for key in flows {
            let mut cx = context!(self, now);
            if let Some(it) = association_of(&mut self.peers, key.peer, key.association) {
                it.moves_away(&mut cx, key.flow, port, home);
            }
        }
        self.forwarded.push_back(port);
        if self.forwarded.len() > MAX_FORWARDED {
            self.forward_less();
        }
    }

    /// Forgets the port that has left first, of those that no flow follows.
    fn forward_less(&mut self) {
        let is_idle = |port: &PortKey| self.ports.get(port).is_none_or(|it| it.flows.is_empty());
        let Some(at) = self.forwarded.iter().position(is_idle) else {
            return;
        };
        let port = self.forwarded.remove(at);
        if let Some(gone) = port.and_then(|port| self.ports.remove(&port)) {
            self.unindex(&gone.settings);
        }
    }

    /// Where a port is, by a home that was named.
    fn whereabouts(
        &self,
        (id, secret): (&PortId, &[u8; PORT_SECRET]),
        (home, incarnation): (NodeId, u64),
    ) -> Whereabouts {
        if home != self.settings.node {
            return Whereabouts::Away(home, incarnation);
        }
        let port = self.by_id.get(id).copied();
        let entry = port.and_then(|port| Some((port, self.ports.get(&port)?)));
        let entry = entry.filter(|(_, it)| it.settings.secret() == *secret);
        match entry.map(|(port, it)| (port, &it.stay)) {
            Some((port, Stay::Here | Stay::Leaving)) => Whereabouts::Here(port),
            Some((port, Stay::Arriving(_))) => Whereabouts::Arriving(port),
            Some((_, Stay::Left(home, incarnation))) => Whereabouts::Away(*home, *incarnation),
            None => Whereabouts::Gone,
        }
    }

    /// A flow follows its port.
    fn redirect(&mut self, now: Time, redirect: Redirect<P>) {
        let Redirect {
            flow, lent, home, ..
        } = redirect;
        let there = self.whereabouts((&lent.port, &lent.secret), home);
        let home = match there {
            Whereabouts::Away(home, incarnation) => (home, incarnation),
            _ => home,
        };
        if redirect.closing && redirect.unsent.is_empty() {
            // Nothing goes there, and nobody wants it.
            return self.has_followed(flow);
        }
        self.last_borrow += 1;
        let borrow = BorrowKey(self.last_borrow);
        let new = Borrow {
            limbo: Some(Limbo {
                from: flow,
                unsent: redirect.unsent,
                closing: redirect.closing,
            }),
            key: Some(lent.key),
            ..Borrow::new(
                to_port(lent.port, lent.secret, home, lent.synchronous),
                Vec::new(),
                now,
            )
        };
        self.borrows.insert(borrow, new);
        if !redirect.closing {
            let home = home.0;
            self.events.push_back(Event::Moved { flow, borrow, home });
        }
        match there {
            Whereabouts::Away(..) => self.claim_one(now, borrow),
            Whereabouts::Here(port) => self.comes_home(borrow, port),
            Whereabouts::Arriving(port) => self.waits_for(borrow, port),
            Whereabouts::Gone => self.dead(borrow, ResolveFailure::NoSuchPort),
        }
    }

    /// A port that was claimed has left the node where it was claimed.
    pub(super) fn is_elsewhere(&mut self, now: Time, borrow: BorrowKey, home: (NodeId, u64)) {
        let Some(reference) = self.borrows.get(&borrow).map(|it| it.reference) else {
            return;
        };
        match self.whereabouts((&reference.port, &reference.secret), home) {
            Whereabouts::Away(home, incarnation) => {
                if let Some(there) = self.borrows.get_mut(&borrow) {
                    (there.reference.home, there.reference.incarnation) = (home, incarnation);
                    (there.flow, there.since) = (None, now);
                }
                self.claim_one(now, borrow);
            }
            Whereabouts::Here(port) => self.comes_home(borrow, port),
            Whereabouts::Arriving(port) => self.waits_for(borrow, port),
            Whereabouts::Gone => self.dead(borrow, ResolveFailure::NoSuchPort),
        }
    }

    /// A borrow waits for the backlog of a port of this node.
    fn waits_for(&mut self, borrow: BorrowKey, port: PortKey) {
        let entry = self.ports.get_mut(&port);
        if let Some(Stay::Arriving(arriving)) = entry.map(|it| &mut it.stay) {
            arriving.borrows.push(borrow);
        }
    }

    /// What a borrow was to lead to is a port of this node.
    fn comes_home(&mut self, borrow: BorrowKey, port: PortKey) {
        let Some(gone) = self.borrows.remove(&borrow) else {
            return;
        };
        self.need_not_keep(gone.keeps);
        let mut unsent = Vec::new();
        if let Some(limbo) = gone.limbo {
            self.has_followed(limbo.from);
            unsent = limbo.unsent;
        }
        let stays: Vec<RequestKey> = unsent.iter().flat_map(Detached::given).collect();
        for request in stays {
            self.stays_after_all(request);
        }
        let unsent = unsent.into_iter().map(Detached::returned).collect();
        self.events.push_back(Event::CameHome {
            borrow,
            port,
            unsent,
        });
    }

    /// A request that was open for a receive right, if it was, is not any more: the right was not taken.
    fn stays_after_all(&mut self, request: RequestKey) {
        let port = self.leaving.remove(&request);
        if let Some(entry) = port.and_then(|port| self.ports.get_mut(&port)) {
            entry.stay = Stay::Here;
        }
    }

    /// The borrower at this node has followed a port, or does not want to.
    pub(super) fn has_followed(&mut self, from: FlowKey) {
        if let Some(it) = association_of(&mut self.peers, from.peer, from.association) {
            it.has_followed(from.flow);
        }
    }

    /// The messages of a flow whose port has moved go by the flow to its new home. Whether they can.
    pub(super) fn follow(&mut self, flow: FlowKey, limbo: &mut Limbo<P>) -> bool {
        let there = association_of(&mut self.peers, flow.peer, flow.association);
        let Some(there) = there.filter(|it| it.can_adopt(&limbo.unsent)) else {
            return false;
        };
        let renamed = there.adopt(flow.flow, std::mem::take(&mut limbo.unsent));
        for (from, to) in renamed {
            if let Some(port) = self.leaving.remove(&from) {
                self.leaves(port, to);
            }
            self.events.push_back(Event::Rekeyed { from, to });
        }
        true
    }

    /// Messages are lost with a node, and were not sent: all that is open for them ends.
    pub(super) fn lose_with_node(&mut self, unsent: Vec<Detached<P>>) {
        self.end_unsent(unsent, |request| Event::Ended {
            request,
            outcome: Outcome::NodeLost,
        });
    }

    /// Messages will reach no port: all that is open for them ends.
    pub(super) fn lose_unsent(&mut self, unsent: Vec<Detached<P>>) {
        self.end_unsent(unsent, never_put);
    }

    fn end_unsent(&mut self, unsent: Vec<Detached<P>>, end: impl Fn(RequestKey) -> Event<P>) {
        for detached in unsent {
            let of_request = detached.request.filter(|it| it.open.is_some());
            let all: Vec<RequestKey> = detached.given().collect();
            for request in all.into_iter().chain(of_request.map(|it| it.key)) {
                self.stays_after_all(request);
                self.events.push_back(end(request));
            }
        }
    }

    /// Nobody waits any more for a request whose message goes to the new home of its port.
    pub(super) fn abandon_redirected(&mut self, request: RequestKey) {
        let limbos = self.borrows.values_mut().filter_map(|it| it.limbo.as_mut());
        let mut all = limbos.flat_map(|limbo| limbo.unsent.iter_mut());
        let its = all.find_map(|it| it.request.as_mut().filter(|it| it.key == request));
        if let Some(its) = its
            && its.open.take().is_some()
        {
            let outcome = Outcome::TimedOut;
            self.events.push_back(Event::Ended { request, outcome });
        }
    }

    /// When a request ends whose message goes to the new home of its port.
    pub(super) fn next_redirected(&self) -> Option<Time> {
        let limbos = self.borrows.values().filter_map(|it| it.limbo.as_ref());
        let all = limbos.flat_map(|limbo| &limbo.unsent);
        let open = all.filter_map(|it| it.request.filter(|it| it.open.is_some()));
        open.filter_map(|it| it.deadline).min()
    }

    /// Ends such requests whose time is over.
    pub(super) fn redirected_timeout(&mut self, now: Time) {
        while self.next_redirected().is_some_and(|at| at <= now) {
            let limbos = self.borrows.values().filter_map(|it| it.limbo.as_ref());
            let mut all = limbos.flat_map(|limbo| &limbo.unsent);
            let is_due = |it: &Detached<P>| {
                let request = it.request.filter(|it| it.open.is_some())?;
                request
                    .deadline
                    .is_some_and(|at| at <= now)
                    .then_some(request.key)
            };
            let Some(request) = all.find_map(is_due) else {
                return;
            };
            self.abandon_redirected(request);
        }
    }

    /// All that goes before is in the port, or will not come: others may send.
    fn has_arrived(&mut self, now: Time, port: PortKey) {
        let Some(entry) = self.ports.get_mut(&port) else {
            return;
        };
        if !matches!(entry.stay, Stay::Arriving(_)) {
            return;
        }
        let Stay::Arriving(arriving) = std::mem::replace(&mut entry.stay, Stay::Here) else {
            return;
        };
        let is_unused = entry.flows.is_empty();
        self.arriving.remove(&arriving.from);
        self.events.push_back(Event::Arrived { port });
        for borrow in arriving.borrows {
            self.comes_home(borrow, port);
        }
        let is_unused = is_unused && arriving.flows.is_empty();
        for flow in arriving.flows {
            // Of an association that is over none is wanted.
            let _ = self.lend(now, flow, Ok(port));
        }
        if is_unused {
            self.events.push_back(Event::Unused { port });
        }
        self.served.insert(port);
    }

    /// The association with a peer is over: no backlog comes from there.
    pub(super) fn parted(&mut self, peer: NodeId, association: u64) {
        let its = |it: &RequestKey| (it.peer, it.association) == (peer, association);
        let ports = self.arriving.iter().filter(|(from, _)| its(from));
        self.arrived.extend(ports.map(|(_, port)| *port));
    }

    /// A port was closed before all had come that went before.
    pub(super) fn arrives_no_more(&mut self, now: Time, gone: Port) {
        let Stay::Arriving(arriving) = gone.stay else {
            return;
        };
        self.arriving.remove(&arriving.from);
        for borrow in arriving.borrows {
            self.dead(borrow, ResolveFailure::NoSuchPort);
        }
        for flow in arriving.flows {
            let _ = self.lend(now, flow, Err(ResolveFailure::NoSuchPort));
        }
    }
}
