//! Rights are given, and ports are borrowed from their homes by what was given.
//!
//! ```text
//! borrow   waits for its home ---Claim---> asked ---Resolved---> done: the giver is told
//!             ^    |  dead_after             | the association is over
//!             |    +------> dead             | (not: given up)
//!             +------------------------------+
//! ```

use super::asking::Asking;
use super::association::{Claimed, Detached, Fate};
use super::fault::Fault;
use super::keys::Key;
use super::machine::{Node, association_of};
use super::types::{Answer, BorrowKey, DomainKey, Event, FlowKey, Gift, Given, Leads, RequestKey};
use super::violation::Unsent;
use crate::Time;
use portolan_abi::node::{NodeId, Reference, ReferenceKind, ResolveFailure};
use std::collections::BTreeSet;

/// A right that was given, and has no loan yet.
#[derive(Debug)]
pub(super) struct Borrow<P> {
    pub(super) reference: Reference,
    /// Requests of givers, which keep the right until there is a loan.
    pub(super) keeps: Vec<RequestKey>,
    /// Since when its home is waited for.
    pub(super) since: Time,
    /// The flow by which it was claimed.
    pub(super) flow: Option<FlowKey>,
    /// Of a port that this node was the home of: its backlog goes by the flow. It is claimed once.
    pub(super) moving: bool,
    /// Of a port that has moved: what goes before all else.
    pub(super) limbo: Option<Limbo<P>>,
    /// This node's key, if one of the port's homes has lent it the port.
    pub(super) key: Option<Key>,
    /// Its home has gone, and it asks where the port is.
    pub(super) asking: Option<Asking>,
    /// A home that has gone may have put messages of it into the port, and others not.
    pub(super) in_doubt: bool,
    /// Homes that have gone.
    pub(super) tried: BTreeSet<(NodeId, u64)>,
}

/// Messages of a flow whose port has moved.
#[derive(Debug)]
pub(super) struct Limbo<P> {
    /// The flow: the old home waits until it is closed.
    pub(super) from: FlowKey,
    pub(super) unsent: Vec<Detached<P>>,
    /// No right leads to the port any more: it is let go once these are sent.
    pub(super) closing: bool,
}

impl<P> Borrow<P> {
    pub(super) fn new(reference: Reference, keeps: Vec<RequestKey>, since: Time) -> Self {
        Self {
            reference,
            keeps,
            since,
            flow: None,
            moving: false,
            limbo: None,
            key: None,
            asking: None,
            in_doubt: false,
            tried: BTreeSet::new(),
        }
    }
}

impl<P> Borrow<P> {
    /// Whether its port is on the move, or is asked for: then no other process can go on with it.
    pub(super) fn is_under_way(&self) -> bool {
        self.moving || self.limbo.is_some() || self.asking.is_some()
    }

    /// Whether it waits for its home.
    fn waits(&self) -> bool {
        self.flow.is_none() && self.asking.is_none()
    }
}

impl<P: Clone> Node<P> {
    /// Makes a right that goes with a message to a peer, for a program of `domain`. Until its
    /// request [ends](Event::Ended) the right is kept here: a message that has it, and is not sent, is
    /// [abandoned](Node::abandon) by that request.
    ///
    /// # Errors
    ///
    /// [`Unsent`]: [`NoRights`](Unsent::NoRights), [`TooMany`](Unsent::TooMany), or the peer or what the
    /// right leads to is [`Dead`](Unsent::Dead).
    pub fn give(
        &mut self,
        peer: NodeId,
        association: u64,
        domain: DomainKey,
        gift: Gift,
    ) -> Result<Given, Unsent> {
        let (reference, leads) = match gift {
            Gift::Once => (Reference::once(0), Leads::Back),
            Gift::Port(port) => {
                let settings = self.ports.get(&port).ok_or(Unsent::Dead)?.settings;
                let own = (self.settings.node, self.settings.incarnation);
                let secret = settings.secret();
                let reference = to_port(settings.id, secret, own, settings.synchronous);
                (reference, Leads::Here(port))
            }
            Gift::Receive(port) => {
                let reference = self.give_away((peer, association), port)?;
                (reference, Leads::Here(port))
            }
            Gift::Flow(flow) => {
                let there = association_of(&mut self.peers, flow.peer, flow.association);
                let there = there.ok_or(Unsent::Dead)?;
                let lent = there.lent(flow.flow).ok_or(Unsent::Dead)?;
                let reference = to_port(lent.port, lent.secret, there.home(), lent.synchronous);
                (reference, Leads::There)
            }
            Gift::Borrow(borrow) => {
                let borrow = self.borrows.get(&borrow).ok_or(Unsent::Dead)?;
                (borrow.reference, Leads::There)
            }
        };
        let to = association_of(&mut self.peers, peer, association).ok_or(Unsent::Dead)?;
        let request = to.open_given(domain)?;
        let key = to.request_key(request);
        if let Gift::Receive(port) = gift {
            self.leaves(port, key);
        }
        Ok(Given {
            request: key,
            reference: Reference {
                request,
                ..reference
            },
            leads,
        })
    }

    /// Borrows the port of a right that was given and leads [there](Leads::There): its home is asked,
    /// as soon as there is an association with it. [`Event::Borrowed`] tells; then the giver is told
    /// that it need not keep the right any more.
    pub fn borrow(&mut self, now: Time, given: &Given) -> BorrowKey {
        self.last_borrow += 1;
        let borrow = BorrowKey(self.last_borrow);
        let mut keeps = vec![given.request];
        if self.planted.is(Fault::ForgetsKeep) {
            self.need_not_keep(std::mem::take(&mut keeps));
        }
        let new = Borrow::new(given.reference, keeps, now);
        self.borrows.insert(borrow, new);
        self.claim_one(now, borrow);
        borrow
    }

    /// Another right that was given leads to a port that is being borrowed, or was borrowed: its giver
    /// keeps it until that is done.
    pub fn borrow_too(&mut self, borrow: Option<BorrowKey>, given: &Given) {
        let there = borrow.and_then(|borrow| self.borrows.get_mut(&borrow));
        match there {
            Some(borrow) => borrow.keeps.push(given.request),
            None => self.need_not_keep(vec![given.request]),
        }
    }

    /// Nobody wants the port any more.
    pub fn unborrow(&mut self, borrow: BorrowKey) {
        let there = self.borrows.get_mut(&borrow);
        if let Some(limbo) = there.and_then(|it| it.limbo.as_mut())
            && !limbo.unsent.is_empty()
        {
            limbo.closing = true;
            return;
        }
        if let Some(gone) = self.borrows.remove(&borrow) {
            self.need_not_keep(gone.keeps);
            if let Some(limbo) = gone.limbo {
                self.has_followed(limbo.from);
            }
            if let Some(flow) = gone.flow {
                // Of an association that is over there is none.
                let _ = self.close(flow);
            }
        }
    }

    /// Whether messages that an earlier home of its port did not put into that wait with a borrow.
    pub fn has_unsent(&self, borrow: BorrowKey) -> bool {
        let limbo = self.borrows.get(&borrow).and_then(|it| it.limbo.as_ref());
        limbo.is_some_and(|limbo| !limbo.unsent.is_empty())
    }

    /// Rights that are being borrowed.
    pub fn borrowing(&self) -> usize {
        self.borrows.len()
    }

    /// The giver of a right need not keep it: there is a loan, or it is not wanted.
    pub(super) fn need_not_keep(&mut self, keeps: Vec<RequestKey>) {
        for keep in keeps {
            // If its node was given up, so was what it has kept.
            let _ = self.answer(keep, Answer::Dropped);
        }
    }

    /// Claims a port, if there is an association with its home.
    pub(super) fn claim_one(&mut self, now: Time, key: BorrowKey) {
        let Some(borrow) = self.borrows.get_mut(&key) else {
            return;
        };
        let home = self.peers.get_mut(&borrow.reference.home);
        let Some(home) = home.filter(|_| borrow.waits() && !borrow.moving) else {
            return;
        };
        if home.incarnation > borrow.reference.incarnation {
            // The port has ended with the one that it is of.
            self.ask_where(now, key, ResolveFailure::NoSuchPort);
        } else if let Some(association) = &mut home.association {
            if !association.takes_rights() {
                self.dead(key, ResolveFailure::Denied);
            } else if let Ok(flow) = association.claim(key, &borrow.reference) {
                // If there are too many flows, it is tried again when its time has come.
                borrow.flow = Some(association.flow_key(flow));
            }
        } else {
            let home = (borrow.reference.home, borrow.reference.incarnation);
            if borrow.tried.contains(&home) {
                // Somebody has passed it on to one that has gone.
                self.ask_where(now, key, ResolveFailure::Other);
            }
        }
    }

    /// An association has begun: what is of its node is claimed.
    pub(super) fn claim_of(&mut self, now: Time, home: NodeId) {
        let all = self.borrows.iter();
        let its = all.filter(|(_, borrow)| borrow.reference.home == home);
        let its: Vec<BorrowKey> = its.map(|(key, _)| *key).collect();
        its.into_iter().for_each(|key| self.claim_one(now, key));
    }

    /// A right leads nowhere.
    pub(super) fn dead(&mut self, borrow: BorrowKey, why: ResolveFailure) {
        if let Some(gone) = self.borrows.remove(&borrow) {
            self.need_not_keep(gone.keeps);
            if let Some(limbo) = gone.limbo {
                self.has_followed(limbo.from);
                self.lose_unsent(limbo.unsent);
                if limbo.closing {
                    return;
                }
            }
            let flow = Err(why);
            self.events.push_back(Event::Borrowed { borrow, flow });
        }
    }

    /// Handles what has become of claims.
    pub(super) fn settle_claims(&mut self, now: Time) {
        for claimed in std::mem::take(&mut self.claimed) {
            let Claimed { borrow, flow, fate } = claimed;
            let Some(there) = self.borrows.get_mut(&borrow) else {
                // It was closed here meanwhile.
                continue;
            };
            match fate {
                Fate::Lent(lent) => {
                    let wanted = &there.reference;
                    // A home says what it has. If the giver has said otherwise, it is another right.
                    let is_it = lent.port == wanted.port && lent.synchronous == wanted.synchronous;
                    if !is_it {
                        let _ = self.close(flow);
                        self.dead(borrow, ResolveFailure::NoSuchPort);
                    } else {
                        self.borrowed(borrow, flow);
                    }
                }
                Fate::Refused(failure) => self.dead(borrow, failure),
                Fate::Elsewhere(home, incarnation) => {
                    self.is_elsewhere(now, borrow, (home, incarnation));
                }
                Fate::Lost => self.ask_where(now, borrow, ResolveFailure::Other),
                // A backlog that comes late would come behind what others have sent.
                Fate::Again if there.moving => self.dead(borrow, ResolveFailure::Other),
                Fate::Again => {
                    there.flow = None;
                    there.since = now;
                    // There may be another association already.
                    self.claim_one(now, borrow);
                }
            }
        }
    }

    /// A port is lent.
    fn borrowed(&mut self, borrow: BorrowKey, flow: FlowKey) {
        let Some(there) = self.borrows.get_mut(&borrow) else {
            return;
        };
        let mut limbo = there.limbo.take();
        if let Some(limbo) = &mut limbo
            && !self.follow(flow, limbo)
        {
            let unsent = std::mem::take(&mut limbo.unsent);
            let from = limbo.from;
            let _ = self.close(flow);
            self.has_followed(from);
            self.lose_unsent(unsent);
            if limbo.closing {
                self.borrows.remove(&borrow);
                return;
            }
            return self.dead(borrow, ResolveFailure::Denied);
        }
        let Some(done) = self.borrows.remove(&borrow) else {
            return;
        };
        self.need_not_keep(done.keeps);
        if let Some(limbo) = limbo {
            self.has_followed(limbo.from);
            if limbo.closing {
                let _ = self.close(flow);
                return;
            }
        }
        let flow = Ok(flow);
        self.events.push_back(Event::Borrowed { borrow, flow });
    }

    /// When a home has been waited for too long.
    pub(super) fn next_borrow(&self) -> Option<Time> {
        let requests = self.next_redirected();
        let asking = self.borrows.values().filter_map(|it| it.asking.as_ref());
        let asking = asking.map(|it| it.until);
        let Some(after) = self.settings.dead_after else {
            return asking.chain(requests).min();
        };
        let waits = self.borrows.values().filter(|it| it.waits());
        let waits = waits.map(|borrow| borrow.since.after(after));
        waits.chain(requests).chain(asking).min()
    }

    /// Gives up what has waited for its home for too long.
    pub(super) fn give_borrows_up(&mut self, now: Time) {
        if self.next_borrow().is_none_or(|at| at > now) {
            return;
        }
        self.redirected_timeout(now);
        let all = self.borrows.iter();
        let in_vain = |it: &Borrow<P>| it.asking.as_ref().is_some_and(|it| it.until <= now);
        let in_vain = all.filter(|(_, it)| in_vain(it));
        let in_vain: Vec<BorrowKey> = in_vain.map(|(key, _)| *key).collect();
        for borrow in in_vain {
            self.asks_no_more(now, borrow);
        }
        let Some(after) = self.settings.dead_after else {
            return;
        };
        let all = self.borrows.iter();
        let late = all.filter(|(_, it)| it.waits() && it.since.after(after) <= now);
        let late: Vec<BorrowKey> = late.map(|(key, _)| *key).collect();
        for borrow in late {
            self.ask_where(now, borrow, ResolveFailure::Other);
        }
    }
}

pub(super) fn to_port(
    port: portolan_abi::node::PortId,
    secret: [u8; 16],
    (home, incarnation): (NodeId, u64),
    synchronous: bool,
) -> Reference {
    Reference {
        request: 0,
        port,
        secret,
        home,
        incarnation,
        kind: ReferenceKind::Send,
        synchronous,
        slots: 0,
    }
}
