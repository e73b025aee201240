//! Rates of peers: the protocol holds what is sent to them back, and says how much of them is read.

use std::time::Duration;

use portolan_abi::node::NodeId;

use super::Engine;
use super::machine::time;
use crate::rates::PeerRates;

impl Engine {
    /// Sends to peers, and takes from them, at these rates from now on.
    pub fn set_rates(&mut self, now: Duration, rates: PeerRates) {
        self.rates = rates;
        let mut peers: Vec<NodeId> = self.node.peers().collect();
        peers.extend(self.links.values().map(|link| link.peer));
        peers
            .into_iter()
            .for_each(|peer| self.holds_rates(now, peer));
        // What was held back is looked at now, and what is taken is said.
        for link in self.links.values_mut() {
            link.held = None;
            link.polled = None;
        }
        self.speak();
    }

    /// A peer is connected, or calls itself something: its rates hold.
    pub(super) fn holds_rates(&mut self, now: Duration, peer: NodeId) {
        let name = self.machine.names.get(&peer).map_or("", String::as_str);
        let rates = self.rates.of(peer, name);
        self.node.set_rates(time(now), peer, rates);
    }
}
