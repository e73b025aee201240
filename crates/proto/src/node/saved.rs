//! A node goes on in another process: what it has in common with its peers is saved, and restored
//! there. To the peers it looks like a link that was cut, and is there again.
//!
//! ```text
//! old   gives up what is on the move; its connections end; saves
//! new   restores ---connections---> goes on, as the same incarnation
//! ```
//!
//! What is saved is what is left after a cut: numbers, what is unacknowledged, rights that were lent,
//! borrowed and given. Payloads go beside, in the order of what was saved. Receive rights on their way
//! are not saved: [`Node::give_up_moves`] ends the associations by which they go.

use super::association::{Association, Context, SavedAssociation};
use super::borrow::Borrow;
use super::machine::{Node, Peer, context};
use super::port::{Port, Stay};
use super::rate::{Intake, Pace};
use super::types::{
    BorrowKey, DomainKey, FlowKey, Given, Leads, Message, PortKey, PortSettings, RequestKey,
    Settings, Urgency,
};
use super::violation::Over;
use crate::Time;
use portolan_abi::codec::{Field, Reader, Writer};
use portolan_abi::node::{NodeId, PortId, Reference, ResolveFailure};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeSet;

/// Something that has bytes of its own, as these, in hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Coded<T>(pub T);

/// Bytes, in hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hex(pub Vec<u8>);

/// As [`Coded`], of a field.
pub mod coded {
    use super::{Deserialize, Deserializer, Field, Hex, Reader, Serialize, Serializer, Writer};
    use serde::de::Error;

    /// Writes it.
    ///
    /// # Errors
    ///
    /// Those of `to`.
    pub fn serialize<T: Field, S: Serializer>(it: &T, to: S) -> Result<S::Ok, S::Error> {
        let mut bytes = vec![0; T::BYTES];
        it.put(&mut Writer::new(&mut bytes));
        Hex(bytes).serialize(to)
    }

    /// Reads it.
    ///
    /// # Errors
    ///
    /// Those of `from`; and that it has other bytes.
    pub fn deserialize<'de, T: Field, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
        let Hex(bytes) = Hex::deserialize(from)?;
        if bytes.len() != T::BYTES {
            return Err(D::Error::invalid_length(bytes.len(), &"another length"));
        }
        T::get(&mut Reader::new(&bytes)).map_err(D::Error::custom)
    }
}

impl<T: Field> Serialize for Coded<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        coded::serialize(&self.0, to)
    }
}

impl<'de, T: Field> Deserialize<'de> for Coded<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        coded::deserialize(from).map(Self)
    }
}

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let digits = self.0.iter().flat_map(|it| [it >> 4, it & 15]);
        let text = digits.filter_map(|it| char::from_digit(it.into(), 16));
        to.serialize_str(&text.collect::<String>())
    }
}

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        let text = String::deserialize(from)?;
        let digits: Option<Vec<u8>> = text
            .chars()
            .map(|it| it.to_digit(16).and_then(|it| u8::try_from(it).ok()))
            .collect();
        let digits = digits.filter(|it| it.len() % 2 == 0);
        let digits = digits.ok_or_else(|| D::Error::custom("no hexadecimal digits"))?;
        let pairs = digits.chunks_exact(2);
        Ok(Self(pairs.map(|pair| pair[0] << 4 | pair[1]).collect()))
    }
}

/// What was saved is none of a node's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what was saved of the node cannot be: {0}")]
pub struct Damaged(pub(super) &'static str);

/// A node cannot be saved as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unsaved {
    /// It carries messages with this peer.
    #[error("it is connected with {0}")]
    Connected(NodeId),
    /// A receive right is on its way to or from this peer.
    #[error("a receive right is on its way to or from {0}")]
    Moving(NodeId),
    /// There are events that nobody has polled.
    #[error("there are events")]
    Events,
}

/// What another process needs to go on as a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedNode {
    node: Coded<NodeId>,
    /// The node's incarnation.
    pub incarnation: u64,
    /// The number that it has drawn.
    pub run: [u8; 16],
    last_borrow: u64,
    last_question: u64,
    last_proposal: u64,
    last_association: u64,
    peers: Vec<SavedPeer>,
    ports: Vec<SavedPort>,
    forwarded: Vec<PortKey>,
    borrows: Vec<SavedBorrow>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedPeer {
    node: Coded<NodeId>,
    incarnation: u64,
    run: [u8; 16],
    name: String,
    proposal: u64,
    /// Since when nothing was heard.
    silent: u64,
    is_unreachable: bool,
    association: Option<SavedAssociation>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedPort {
    port: PortKey,
    id: Coded<PortId>,
    key: [u8; 16],
    domain: DomainKey,
    synchronous: bool,
    slots: u32,
    wants_senders: bool,
    left: Option<(Coded<NodeId>, u64)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedBorrow {
    borrow: BorrowKey,
    reference: Coded<Reference>,
    keeps: Vec<RequestKey>,
    waited: u64,
    flow: Option<FlowKey>,
    key: Option<[u8; 16]>,
    in_doubt: bool,
    tried: Vec<(Coded<NodeId>, u64)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedMessage {
    urgency: Option<u64>,
    header: Hex,
    lengths: Vec<u64>,
    rights: Vec<SavedGiven>,
    /// Which of the payloads is its.
    payload: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedGiven {
    request: RequestKey,
    reference: Coded<Reference>,
    leads: Leads,
}

/// The time that is left until then.
pub(super) fn left_of(at: Option<Time>, now: Time) -> Option<u64> {
    at.map(|at| at.0.saturating_sub(now.0))
}

/// Then the time is over of which so much is left.
pub(super) fn until(left: Option<u64>, now: Time) -> Option<Time> {
    left.map(|left| now.after_nanos(left))
}

/// Payloads of what was saved so far.
pub(super) struct Saving<P> {
    pub(super) now: Time,
    payloads: Vec<P>,
}

impl<P: Clone> Saving<P> {
    pub(super) fn message(&mut self, it: &Message<P>) -> SavedMessage {
        let payload = it.payload.clone().map(|payload| {
            self.payloads.push(payload);
            self.payloads.len() - 1
        });
        let rights = it.rights.iter().map(|right| SavedGiven {
            request: right.request,
            reference: Coded(right.reference),
            leads: right.leads,
        });
        SavedMessage {
            urgency: it.urgency.map(|urgency| urgency.encode(self.now)),
            header: Hex(it.header.clone()),
            lengths: it.lengths.clone(),
            rights: rights.collect(),
            payload,
        }
    }
}

/// Payloads, of which each is of one message.
pub(super) struct Payloads<P>(Vec<Option<P>>);

impl<P> Payloads<P> {
    pub(super) fn message(
        &mut self,
        now: Time,
        saved: SavedMessage,
    ) -> Result<Message<P>, Damaged> {
        let payload = match saved.payload {
            None => None,
            Some(at) => {
                let payload = self.0.get_mut(at).and_then(Option::take);
                Some(payload.ok_or(Damaged("the payload of a message"))?)
            }
        };
        let rights = saved.rights.into_iter().map(|right| Given {
            request: right.request,
            reference: right.reference.0,
            leads: right.leads,
        });
        let message = Message {
            urgency: saved.urgency.map(|word| Urgency::decode(word, now)),
            header: saved.header.0,
            lengths: saved.lengths,
            rights: rights.collect(),
            payload,
        };
        match message.can_be() {
            true => Ok(message),
            false => Err(Damaged("a message")),
        }
    }
}

impl<P: Clone> Node<P> {
    /// Ends the association with a peer, as [`leave`](Self::leave) ends all.
    pub fn part_from(&mut self, now: Time, peer: NodeId) {
        self.over(now, peer, Over::Here);
        self.settle(now);
    }

    /// Whether something is on the move that [`give_up_moves`](Self::give_up_moves) would end.
    pub fn is_moving(&self) -> bool {
        let mut peers = self.peers.values();
        let is_asked = |it: &Association<P>| it.is_asked();
        !self.leaving.is_empty()
            || !self.arriving.is_empty()
            || self.borrows.values().any(Borrow::is_under_way)
            || peers.any(|peer| peer.association.as_ref().is_some_and(is_asked))
    }

    /// Messages, answers and records that peers that can be reached have not acknowledged.
    pub fn unacknowledged(&self) -> usize {
        let peers = self.peers.values().filter(|peer| peer.connection.is_some());
        let all = peers.filter_map(|peer| peer.association.as_ref());
        all.map(Association::unacknowledged).sum()
    }

    /// Ends what cannot be saved: associations by which receive rights are on their way, or which go on
    /// behind such a one, and rights on ports that it is asked where they are. Whose associations those
    /// were. Handle the events, and call it again until it returns none.
    pub fn give_up_moves(&mut self, now: Time) -> Vec<NodeId> {
        let mut peers: BTreeSet<NodeId> = BTreeSet::new();
        let requests = self.leaving.keys().chain(self.arriving.keys());
        peers.extend(requests.map(|request| request.peer));
        for borrow in self.borrows.values() {
            let limbo = borrow.limbo.as_ref().map(|limbo| limbo.from);
            let moving = borrow.flow.filter(|_| borrow.moving || limbo.is_some());
            peers.extend(limbo.into_iter().chain(moving).map(|flow| flow.peer));
        }
        for (node, peer) in &self.peers {
            let association = peer.association.as_ref();
            peers.extend(
                association
                    .is_some_and(Association::is_asked)
                    .then_some(*node),
            );
        }
        let has = |peer: &NodeId| {
            let peer = self.peers.get(peer);
            peer.is_some_and(|peer| peer.association.is_some())
        };
        peers.retain(has);
        for peer in &peers {
            self.part_from(now, *peer);
        }
        if peers.is_empty() {
            let borrows = self.borrows.iter();
            let moves = borrows
                .filter(|(_, it)| it.is_under_way())
                .map(|(key, _)| *key);
            for borrow in moves.collect::<Vec<_>>() {
                self.dead(borrow, ResolveFailure::Other);
            }
            self.settle(now);
        }
        peers.into_iter().collect()
    }

    /// What another process needs to go on as this node, and the payloads that go with it. Nothing is
    /// changed: if it does not come to that, this one goes on.
    ///
    /// # Errors
    ///
    /// [`Unsaved`]: a connection carries something, or something is under way that is not saved.
    pub fn save(&self, now: Time) -> Result<(SavedNode, Vec<P>), Unsaved> {
        if !self.events.is_empty() {
            return Err(Unsaved::Events);
        }
        let mut moving = self.leaving.keys().chain(self.arriving.keys());
        if let Some(request) = moving.next() {
            return Err(Unsaved::Moving(request.peer));
        }
        if let Some(borrow) = self.borrows.values().find(|it| it.is_under_way()) {
            return Err(Unsaved::Moving(borrow.reference.home));
        }
        let payloads = Vec::new();
        let mut saving = Saving { now, payloads };
        let mut peers = Vec::new();
        for (node, peer) in &self.peers {
            if peer.connection.is_some() {
                return Err(Unsaved::Connected(*node));
            }
            let association = peer.association.as_ref();
            if association.is_some_and(Association::is_asked) {
                return Err(Unsaved::Moving(*node));
            }
            peers.push(SavedPeer {
                node: Coded(*node),
                incarnation: peer.incarnation,
                run: peer.run,
                name: peer.name.clone(),
                proposal: peer.proposal,
                silent: now.0.saturating_sub(peer.heard.0),
                is_unreachable: peer.is_unreachable,
                association: association.map(|it| it.save(&mut saving)),
            });
        }
        let ports = self.ports.iter().map(|(port, it)| SavedPort {
            port: *port,
            id: Coded(it.settings.id),
            key: it.settings.key,
            domain: it.settings.domain,
            synchronous: it.settings.synchronous,
            slots: it.settings.slots,
            wants_senders: it.wants_senders,
            left: match it.stay {
                Stay::Left(home, incarnation) => Some((Coded(home), incarnation)),
                Stay::Here | Stay::Leaving | Stay::Arriving(_) => None,
            },
        });
        let borrows = self.borrows.iter().map(|(borrow, it)| SavedBorrow {
            borrow: *borrow,
            reference: Coded(it.reference),
            keeps: it.keeps.clone(),
            waited: now.0.saturating_sub(it.since.0),
            flow: it.flow,
            key: it.key,
            in_doubt: it.in_doubt,
            tried: it
                .tried
                .iter()
                .map(|(node, it)| (Coded(*node), *it))
                .collect(),
        });
        let saved = SavedNode {
            node: Coded(self.settings.node),
            incarnation: self.settings.incarnation,
            run: self.settings.run,
            last_borrow: self.last_borrow,
            last_question: self.last_question,
            last_proposal: self.last_proposal,
            last_association: self.last_association,
            peers,
            ports: ports.collect(),
            forwarded: self.forwarded.iter().copied().collect(),
            borrows: borrows.collect(),
        };
        Ok((saved, saving.payloads))
    }

    /// The node goes on in this process, by these settings: with the incarnation and the run that were
    /// saved. Its driver says of each port how much room it has, before anything is connected.
    ///
    /// # Errors
    ///
    /// [`Damaged`]: no node has saved this.
    pub fn restore(
        now: Time,
        settings: Settings,
        saved: SavedNode,
        payloads: Vec<P>,
    ) -> Result<Self, Damaged> {
        let is_it = (saved.node.0, saved.incarnation, saved.run)
            == (settings.node, settings.incarnation, settings.run);
        if !is_it {
            return Err(Damaged("another node, or incarnation"));
        }
        let mut node = Self::new(settings);
        (node.last_borrow, node.last_question) = (saved.last_borrow, saved.last_question);
        (node.last_proposal, node.last_association) = (saved.last_proposal, saved.last_association);
        for saved in saved.ports {
            node.port_again(&saved)?;
        }
        node.forwarded = saved.forwarded.into();
        for saved in saved.borrows {
            let borrow = Borrow {
                flow: saved.flow,
                key: saved.key,
                in_doubt: saved.in_doubt,
                tried: saved.tried.iter().map(|(node, it)| (node.0, *it)).collect(),
                ..Borrow::new(
                    saved.reference.0,
                    saved.keeps,
                    Time(now.0.saturating_sub(saved.waited)),
                )
            };
            if saved.borrow.0 > node.last_borrow {
                return Err(Damaged("a right that is borrowed"));
            }
            node.borrows.insert(saved.borrow, borrow);
        }
        let mut payloads = Payloads(payloads.into_iter().map(Some).collect());
        for saved in saved.peers {
            node.peer_again(now, saved, &mut payloads)?;
        }
        match payloads.0.iter().any(Option::is_some) {
            true => Err(Damaged("payloads of no message")),
            false => Ok(node),
        }
    }

    fn port_again(&mut self, saved: &SavedPort) -> Result<(), Damaged> {
        let settings = PortSettings {
            id: saved.id.0,
            key: saved.key,
            domain: saved.domain,
            synchronous: saved.synchronous,
            slots: saved.slots,
        };
        if self.ports.contains_key(&saved.port) || self.by_id.contains_key(&settings.id) {
            return Err(Damaged("a port that is there twice"));
        }
        let mut port = Port::new(settings, self.planted);
        port.wants_senders = saved.wants_senders;
        if let Some((home, incarnation)) = saved.left {
            port.stay = Stay::Left(home.0, incarnation);
        }
        self.ports.insert(saved.port, port);
        self.index(saved.port, &settings);
        Ok(())
    }

    fn peer_again(
        &mut self,
        now: Time,
        saved: SavedPeer,
        payloads: &mut Payloads<P>,
    ) -> Result<(), Damaged> {
        let node = saved.node.0;
        let association = match saved.association {
            None => None,
            Some(association) if association.serial > self.last_association => {
                return Err(Damaged("the number of an association"));
            }
            Some(association) => {
                let mut cx = context!(self, now);
                Some(Association::restore(&mut cx, node, association, payloads)?)
            }
        };
        let peer = Peer {
            incarnation: saved.incarnation,
            run: saved.run,
            name: saved.name,
            round_trip: None,
            clock: None,
            proposal: saved.proposal,
            association,
            connection: None,
            // It is told the rates once it is connected again.
            pace: Pace::default(),
            intake: Intake::default(),
            heard: Time(now.0.saturating_sub(saved.silent)),
            is_unreachable: saved.is_unreachable,
            questions: super::asking::Questions::default(),
        };
        match self.peers.insert(node, peer) {
            None => Ok(()),
            Some(_) => Err(Damaged("a peer that is there twice")),
        }
    }
}
