//! What can be seen of a node from outside: for checks, drivers and people.

use super::association::AssociationView;
use super::clock::ClockOffset;
use super::machine::{Node, Peer};
use super::port::Port;
use super::types::{ConnectionId, DomainKey, FlowKey, PortKey, PortSettings, PortStay};
use crate::Time;
use core::time::Duration;
use portolan_abi::node::{AssociationId, NodeId, PORT_SECRET, PortId};

/// What is known of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerView {
    /// Its name, by its last greeting; empty before the first.
    pub name: String,
    /// When it was heard last.
    pub heard: Time,
    /// It has been silent for too long.
    pub is_unreachable: bool,
    /// The last round trip that was measured.
    pub round_trip: Option<Duration>,
    /// How far its clock is ahead of this node's.
    pub clock: Option<ClockOffset>,
}

impl<P: Clone> Node<P> {
    /// The association with a peer.
    pub fn view(&self, peer: NodeId) -> Option<AssociationView> {
        Some(self.peers.get(&peer)?.association.as_ref()?.view())
    }

    /// What is known of a peer, and of its connection.
    pub fn peer_view(&self, peer: NodeId) -> Option<PeerView> {
        let peer = self.peers.get(&peer)?;
        Some(PeerView {
            name: peer.name.clone(),
            heard: peer.heard,
            is_unreachable: peer.is_unreachable,
            round_trip: peer.round_trip,
            clock: peer.clock,
        })
    }

    /// The id of an association that goes on: both nodes have the same.
    pub fn association(&self, peer: NodeId, serial: u64) -> Option<AssociationId> {
        let association = self.peers.get(&peer)?.association.as_ref()?;
        (association.serial == serial).then_some(association.id)
    }

    /// What the clock shows that peers are told of.
    pub fn shown_clock(&self, now: Time) -> u64 {
        self.settings.clock(now)
    }

    /// Peers with which there is an association.
    pub fn peers(&self) -> impl Iterator<Item = NodeId> + '_ {
        let there = |(id, peer): (&NodeId, &Peer<P>)| peer.association.as_ref().map(|_| *id);
        self.peers.iter().filter_map(there)
    }

    /// The connection that carries the association with a peer.
    pub fn connection(&self, peer: NodeId) -> Option<ConnectionId> {
        self.peers.get(&peer)?.connection
    }

    /// Whether the connection that carries the association with a peer goes on, and the peer has
    /// said on it all that it had to say again.
    pub fn has_resumed(&self, peer: NodeId) -> bool {
        let connection = self.connection(peer);
        let connection = connection.and_then(|id| self.connections.get(&id));
        connection.is_some_and(|it| it.carries() && it.resumed)
    }

    /// All numbers of a flow to a peer below this one are acknowledged.
    pub fn first_kept(&self, flow: FlowKey) -> Option<u64> {
        let association = self.peers.get(&flow.peer)?.association.as_ref()?;
        (association.serial == flow.association).then_some(())?;
        association.first_kept(flow.flow)
    }

    /// The number of the next message that a flow takes.
    pub fn next_number(&self, flow: FlowKey) -> Option<u64> {
        let association = self.peers.get(&flow.peer)?.association.as_ref()?;
        (association.serial == flow.association).then_some(())?;
        association.next_taken(flow.flow)
    }

    /// Bytes in flight to a peer, and how many may be.
    pub fn in_flight(&self, peer: NodeId) -> Option<(u64, u64)> {
        let window = &self.peers.get(&peer)?.association.as_ref()?.window;
        Some((window.in_flight, window.size))
    }

    /// Slots that are promised to a flow from a peer.
    pub fn promised_to(&self, flow: FlowKey) -> Option<u64> {
        let association = self.peers.get(&flow.peer)?.association.as_ref()?;
        (association.serial == flow.association).then_some(())?;
        association.promised_to(flow.flow)
    }

    /// Slots of a port that are promised, those that may be, and the flows that wait, in turn.
    pub fn port_view(&self, port: PortKey) -> Option<(u32, u32, Vec<FlowKey>)> {
        let entry = self.ports.get(&port)?;
        Some((
            entry.promised,
            entry.usable(),
            entry.waiting.iter().collect(),
        ))
    }

    /// How many flows lead to a port, or follow it to its new home; the old home of one that arrives is
    /// one more.
    pub fn flows_to(&self, port: PortKey) -> usize {
        let of = |entry: &Port| entry.flows.len() + usize::from(entry.view() == PortStay::Arriving);
        self.ports.get(&port).map_or(0, of)
    }

    /// Whether a port is at this node; `None` of one that it does not know.
    pub fn stay(&self, port: PortKey) -> Option<PortStay> {
        self.ports.get(&port).map(Port::view)
    }

    /// The port of this name, shown its secret: one that is here, or that was.
    pub fn port_of(&self, id: &PortId, secret: &[u8; PORT_SECRET]) -> Option<PortKey> {
        let port = *self.by_id.get(id)?;
        (self.ports.get(&port)?.settings.secret() == *secret).then_some(port)
    }

    /// The properties of a port that is here, or that was.
    pub fn port_settings(&self, port: PortKey) -> Option<&PortSettings> {
        self.ports.get(&port).map(|entry| &entry.settings)
    }

    /// Whether the receiver of a port wants to know when no sender is left: it may have said so at an
    /// earlier home.
    pub fn wants_senders(&self, port: PortKey) -> bool {
        self.ports
            .get(&port)
            .is_some_and(|entry| entry.wants_senders)
    }

    /// Bytes of a domain that are granted to announced transfers, and the limit.
    pub fn budget_view(&self, domain: DomainKey) -> (u64, u64) {
        let budget = self.budgets.get(&domain);
        budget.map_or((0, 0), |budget| (budget.granted, budget.limit))
    }
}
