//! Where a port is whose home has gone: its borrowers ask, its homes answer.
//!
//! ```text
//! flow, or borrow: its home is over ---> asks all peers ---one has said where---> borrow, to the home
//!                                             |___ all have said no, or in vain for too long ---> dead
//!
//! borrower ---WhereIs: name, proof of the borrower---> each peer, all its ports at once
//!          <---IsAt: name, home, proof of the home---  one that is the port's home, or has passed it on
//! ```
//!
//! A port may have moved, and its old home have died before the borrower has heard it. What the old home may have
//! put into the port is not sent again: it has come with the backlog, or is lost with the old home. What was
//! never sent goes to the present home, which lends the port only once the backlog has come or will not. But a port
//! that is where it was, at a home that was given up and has come back, is dead to who has lost messages to it: what came
//! behind them would not tell of the gap.
//!
//! Proofs follow from the borrower's key ([`super::keys`]): a node that was not lent the port is told nothing,
//! and one that was never its home is not believed. A node that has passed the port on says where to. That may
//! have been long ago, so it counts only when all have answered and none of them has the port, and the node that is named
//! was not asked: then the borrower claims the port there, and asks again if that one has gone too.

use super::association::{Ended, Redirect};
use super::borrow::{Borrow, Limbo, to_port};
use super::fault::Fault;
use super::keys::{self, Key};
use super::machine::{Node, Peer};
use super::port::Stay;
use super::types::{BorrowKey, ConnectionId, Event};
use super::violation::Over;
use crate::Time;
use core::time::Duration;
use portolan_abi::node::{
    Asked, Located, MAX_ASKED, NodeId, PortId, Record, RecordFlags, ResolveFailure, Sent,
};
use std::collections::BTreeSet;

/// How long peers are asked, where none is ever given up.
const ASK_FOR: Duration = Duration::from_secs(30);
/// So often one right asks at the most: who leads it from one dead home to the next does not lead it for ever.
const ROUNDS: usize = 8;

/// A borrow that asks where its port is.
#[derive(Debug)]
pub(super) struct Asking {
    pub(super) until: Time,
    asked: BTreeSet<NodeId>,
    /// Those of them that have not answered.
    waits: BTreeSet<NodeId>,
    /// Where others have passed it on to.
    hints: BTreeSet<(NodeId, u64)>,
    /// What it is dead of, if none knows.
    why: ResolveFailure,
}

/// What a peer is asked.
#[derive(Debug, Default)]
pub(super) struct Questions {
    /// What it was not asked yet.
    next: BTreeSet<BorrowKey>,
    /// What it was asked, and has not answered; the question's number.
    open: Option<(u64, Vec<BorrowKey>)>,
}

impl<P: Clone> Node<P> {
    // The borrower.

    /// Whether it may come to something to ask where a port is.
    fn may_ask(&self, port: &PortId) -> bool {
        if self.planted.is(Fault::ForgetsToAsk) {
            return false;
        }
        let mut peers = self.peers.values();
        let answers = |peer: &Peer<P>| {
            let association = peer.association.as_ref();
            association.is_some_and(|it| it.takes_questions())
        };
        self.by_id.contains_key(port) || peers.any(answers)
    }

    /// The association with a peer is over. Flows whose ports may be elsewhere wait until it is known where.
    pub(super) fn ended(
        &mut self,
        now: Time,
        (peer, association): (NodeId, u64),
        why: Over,
        ended: Ended<P>,
    ) {
        let Ended { mut flows, parted } = ended;
        // A node that leaves wants no port any more.
        let wants = why != Over::Here || self.forgotten.contains(&peer);
        let mut asking = Vec::new();
        for redirect in parted {
            let Some(end) = flows.iter_mut().find(|end| end.flow == redirect.flow) else {
                continue;
            };
            if wants && self.may_ask(&redirect.lent.port) {
                let in_doubt = end.lost > 0 && !redirect.lent.synchronous;
                let borrow = self.part(now, redirect, in_doubt);
                end.borrow = Some(borrow);
                asking.push(borrow);
            } else {
                end.lost += redirect.unsent.len() as u64;
                self.lose_with_node(redirect.unsent);
            }
        }
        self.events.push_back(Event::Over {
            peer,
            association,
            why,
            flows,
        });
        for borrow in asking {
            self.ask_where(now, borrow, ResolveFailure::Other);
        }
        self.asked_in_vain(now, peer);
    }

    /// The home of a flow has gone: what it was not sent waits until it is known where the port is.
    fn part(&mut self, now: Time, redirect: Redirect<P>, in_doubt: bool) -> BorrowKey {
        let Redirect {
            flow,
            lent,
            home,
            unsent,
            closing,
        } = redirect;
        self.last_borrow += 1;
        let borrow = BorrowKey(self.last_borrow);
        let reference = to_port(lent.port, lent.secret, home, lent.synchronous);
        let limbo = Limbo {
            from: flow,
            unsent,
            closing,
        };
        let new = Borrow {
            key: Some(lent.key),
            limbo: Some(limbo),
            in_doubt,
            ..Borrow::new(reference, Vec::new(), now)
        };
        self.borrows.insert(borrow, new);
        borrow
    }

    /// The home of a borrow has gone: where is the port now? If none can know, the right is dead.
    pub(super) fn ask_where(&mut self, now: Time, borrow: BorrowKey, why: ResolveFailure) {
        let Some(it) = self.borrows.get_mut(&borrow) else {
            return;
        };
        let reference = it.reference;
        let gone = (reference.home, reference.incarnation);
        it.tried.insert(gone);
        let may_ask = it.key.is_some() && !it.moving && it.tried.len() <= ROUNDS;
        if !may_ask || !self.may_ask(&reference.port) {
            return self.dead(borrow, why);
        }
        // This node may know.
        let port = self.by_id.get(&reference.port).copied();
        let entry = port.and_then(|port| self.ports.get(&port));
        let entry = entry.filter(|it| it.settings.secret() == reference.secret);
        let mut hints = BTreeSet::new();
        match entry.map(|entry| &entry.stay) {
            Some(Stay::Left(home, incarnation)) => drop(hints.insert((*home, *incarnation))),
            Some(_) => {
                let own = (self.settings.node, self.settings.incarnation);
                return self.leads_to(now, borrow, own);
            }
            None => {}
        }
        let mut asked = BTreeSet::new();
        for (id, peer) in &mut self.peers {
            let association = peer.association.as_ref();
            if association.is_some_and(|it| it.takes_questions()) {
                asked.insert(*id);
                peer.questions.next.insert(borrow);
            }
        }
        let until = now.after(self.settings.dead_after.unwrap_or(ASK_FOR));
        let waits = asked.clone();
        if let Some(it) = self.borrows.get_mut(&borrow) {
            it.flow = None;
            it.asking = Some(Asking {
                until,
                asked,
                waits,
                hints,
                why,
            });
        }
        self.is_answered(now, borrow);
    }

    /// If all have answered and none has the port of a borrow, one that was not asked may have it.
    fn is_answered(&mut self, now: Time, borrow: BorrowKey) {
        let it = self.borrows.get(&borrow);
        let asking = it.and_then(|it| it.asking.as_ref());
        if asking.is_some_and(|asking| asking.waits.is_empty()) {
            self.asks_no_more(now, borrow);
        }
    }

    /// None has the port of a borrow, or not all have answered in time.
    pub(super) fn asks_no_more(&mut self, now: Time, borrow: BorrowKey) {
        let Some(it) = self.borrows.get_mut(&borrow) else {
            return;
        };
        let Some(asking) = it.asking.take() else {
            return;
        };
        let own = self.settings.node;
        let mut hints = asking.hints.into_iter();
        let hint = hints.find(|home| {
            home.0 != own && !asking.asked.contains(&home.0) && !it.tried.contains(home)
        });
        match hint {
            Some(home) => self.leads_to(now, borrow, home),
            None => self.dead(borrow, asking.why),
        }
    }

    /// The port of a borrow is at this home.
    fn leads_to(&mut self, now: Time, borrow: BorrowKey, home: (NodeId, u64)) {
        if let Some(it) = self.borrows.get_mut(&borrow) {
            (it.asking, it.flow, it.since) = (None, None, now);
            (it.reference.home, it.reference.incarnation) = home;
        }
        self.is_elsewhere(now, borrow, home);
    }

    /// A peer has not the port of a borrow, but may have passed it on.
    fn is_not_at(
        &mut self,
        now: Time,
        peer: NodeId,
        borrow: BorrowKey,
        hint: Option<(NodeId, u64)>,
    ) {
        let asking = self.borrows.get_mut(&borrow);
        if let Some(asking) = asking.and_then(|it| it.asking.as_mut()) {
            asking.waits.remove(&peer);
            asking.hints.extend(hint);
            self.is_answered(now, borrow);
        }
    }

    /// An association has begun: the peer is asked as the others were.
    pub(super) fn ask_too(&mut self, peer: NodeId) {
        let Some(it) = self.peers.get_mut(&peer) else {
            return;
        };
        if !it
            .association
            .as_ref()
            .is_some_and(|it| it.takes_questions())
        {
            return;
        }
        for (borrow, waits) in &mut self.borrows {
            if let Some(asking) = &mut waits.asking {
                asking.asked.insert(peer);
                asking.waits.insert(peer);
                it.questions.next.insert(*borrow);
            }
        }
    }

    /// The association with a peer is over: it answers nothing any more.
    fn asked_in_vain(&mut self, now: Time, peer: NodeId) {
        let Some(it) = self.peers.get_mut(&peer) else {
            return;
        };
        let Questions { next, open } = std::mem::take(&mut it.questions);
        let asked = open.into_iter().flat_map(|(_, asked)| asked);
        let all: Vec<BorrowKey> = next.into_iter().chain(asked).collect();
        all.into_iter()
            .for_each(|borrow| self.is_not_at(now, peer, borrow, None));
    }

    /// The next question to write on a connection.
    pub(super) fn question_on(&mut self, now: Time, id: ConnectionId) -> Option<Vec<u8>> {
        let connection = self.connections.get(&id)?;
        let peer = connection.with.node;
        let carries = connection.carries() && connection.resumed;
        if !carries || self.peers.get(&peer)?.connection != Some(id) {
            return None;
        }
        let question = self.next_question(peer)?;
        self.connections.get_mut(&id)?.has_said(now);
        Some(question)
    }

    /// The next question for a peer, of all ports that it was not asked for yet.
    fn next_question(&mut self, peer: NodeId) -> Option<Vec<u8>> {
        let questions = &mut self.peers.get_mut(&peer)?.questions;
        if questions.open.is_some() {
            return None;
        }
        let (mut asked, mut of) = (Vec::new(), Vec::new());
        while asked.len() < MAX_ASKED
            && let Some(borrow) = questions.next.pop_first()
        {
            let it = self.borrows.get(&borrow);
            if let Some(it) = it.filter(|it| it.asking.is_some())
                && let Some(key) = &it.key
            {
                asked.push(Asked {
                    port: keys::name(&it.reference.secret, &it.reference.port),
                    proof: keys::asks(key),
                });
                of.push(borrow);
            }
        }
        if asked.is_empty() {
            return None;
        }
        self.last_question += 1;
        let number = self.last_question;
        questions.open = Some((number, of));
        Some(Record::WhereIs { number, asked }.with(optional()))
    }

    /// A connection has ended: what was asked over it is asked again over the next one.
    pub(super) fn ask_again(&mut self, peer: NodeId) {
        if let Some(it) = self.peers.get_mut(&peer)
            && let Some((_, asked)) = it.questions.open.take()
        {
            it.questions.next.extend(asked);
        }
    }

    /// A peer answers.
    pub(super) fn located(&mut self, now: Time, peer: NodeId, number: u64, located: &[Located]) {
        let Some(it) = self.peers.get_mut(&peer) else {
            return;
        };
        let open = it.questions.open.take_if(|(its, _)| *its == number);
        // An answer that nobody waits for is none.
        for borrow in open.into_iter().flat_map(|(_, asked)| asked) {
            let it = self.borrows.get(&borrow);
            let Some(it) = it.filter(|it| it.asking.is_some()) else {
                continue;
            };
            let name = keys::name(&it.reference.secret, &it.reference.port);
            let its = located.iter().find(|at| at.port == name);
            let is_believed = |at: &&Located| {
                let proof = |key: &Key| keys::answers(key, peer, at.home, at.incarnation);
                let is_proven = it
                    .key
                    .as_ref()
                    .is_some_and(|it| keys::is_same(&proof(it), &at.proof));
                is_proven || self.planted.is(Fault::BelievesAnyone)
            };
            let home = its.filter(is_believed).map(|at| (at.home, at.incarnation));
            let was_it = home.is_some_and(|home| it.tried.contains(&home));
            match home {
                Some(home) if home.0 == peer && was_it && it.in_doubt => {
                    self.dead(borrow, ResolveFailure::Other);
                }
                Some(home) if home.0 == peer => self.leads_to(now, borrow, home),
                hint => self.is_not_at(now, peer, borrow, hint),
            }
        }
    }

    // The home, of now or of before.

    /// A peer asks where ports are: of those that it was lent it is told.
    pub(super) fn where_is(
        &mut self,
        peer: NodeId,
        id: ConnectionId,
        number: u64,
        asked: &[Asked],
    ) {
        let own = (self.settings.node, self.settings.incarnation);
        let mut located = Vec::new();
        for Asked { port: name, proof } in asked {
            let port = self.by_name.get(name);
            let Some(entry) = port.and_then(|port| self.ports.get(port)) else {
                continue;
            };
            let key = keys::of_borrower(&entry.settings.key, peer);
            let is_lent = keys::is_same(&keys::asks(&key), proof);
            if !is_lent && !self.planted.is(Fault::TellsAnyone)
                || self.planted.is(Fault::HidesPorts)
            {
                continue;
            }
            let (home, incarnation) = match entry.stay {
                Stay::Left(home, incarnation) => (home, incarnation),
                _ => own,
            };
            located.push(Located {
                port: *name,
                home,
                incarnation,
                proof: keys::answers(&key, own.0, home, incarnation),
            });
        }
        let answer = Record::IsAt { number, located }.with(optional());
        if let Some(connection) = self.connections.get_mut(&id) {
            // An honest node asks one question at a time.
            connection.located = Some(answer);
        }
    }
}

/// A build that does not know them goes on without.
fn optional() -> Sent {
    Sent {
        flags: RecordFlags::OPTIONAL,
        ..Sent::default()
    }
}
