//! Members of the cluster that peers tell of: they are connected to as well, so a node that has
//! joined by one member finds the others.
//!
//! Each node tells its peers where it is reached, and where its peers are. What is said of a third
//! node is an allegation. It leads to attempts to connect, a bounded number of them, and to nothing
//! else: who answers must show a certificate of the cluster's authority, of the key that was told of.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use portolan_abi::node::MAX_MEMBERS;
use portolan_transport::{Address, NodeId};

use super::Node;
use super::dial::Dial;
use crate::token::is_address;

/// Members that are connected to because others have told of them, at most: those of two peers that
/// say as much as they can.
const MOST: usize = 2 * MAX_MEMBERS;
/// How long a member is tried that is not linked and that no peer tells of any more.
const TRIED: Duration = Duration::from_secs(3600);

/// What is known of members.
#[derive(Debug, Default)]
pub(super) struct Members {
    /// Where the peers are reached with which there is an association.
    reached: BTreeMap<NodeId, String>,
    /// Who was told of, and when last.
    heard: BTreeMap<NodeId, Duration>,
}

impl Node {
    /// A peer tells of members.
    pub(super) fn hear_of_members(
        &mut self,
        from: NodeId,
        remote: Option<&Address>,
        members: Vec<(NodeId, String)>,
    ) {
        let now = self.clock.now();
        for (node, address) in members {
            if node == self.id || self.cluster.is_forgotten(node) {
                continue;
            }
            if node != from {
                if is_host(&address) {
                    self.hear_of(node, address, now);
                }
            } else if let Some(address) = reached_at(&address, remote) {
                self.members.reached.insert(node, address);
            }
        }
        self.tell_members();
    }

    /// A third node is said to be reached there.
    fn hear_of(&mut self, node: NodeId, address: String, now: Duration) {
        let is_linked = self.engine.is_connected(node);
        let its = |dial: &&mut Dial| dial.node == Some(node);
        match self.dials.iter_mut().find(its) {
            // What node.toml says of it is enough.
            Some(dial) if dial.expects.is_none() => {}
            Some(dial) => {
                dial.also_at(address);
                self.members.heard.insert(node, now);
            }
            None if self.members.heard.len() < MOST => {
                let mut dial = Dial::heard(node, address, now);
                if is_linked {
                    dial.linked(now);
                }
                self.dials.push(dial);
                self.members.heard.insert(node, now);
            }
            None => {}
        }
    }

    /// Tells all peers where this node is reached, and its peers.
    pub(super) fn tell_members(&mut self) {
        let listens = || self.listener.address().to_string();
        let own = self.config.advertise.clone().unwrap_or_else(listens);
        let reached = self.members.reached.iter();
        let reached = reached.map(|(node, address)| (*node, address.clone()));
        let all = std::iter::once((self.id, own)).chain(reached);
        self.engine.tell_members(all.take(MAX_MEMBERS).collect());
    }

    /// There is no association with a node any more. One that has left, or was forgotten, is not
    /// tried because of what others say: it comes by itself.
    pub(super) fn member_is_gone(&mut self, node: NodeId, is_tried: bool) {
        if self.members.reached.remove(&node).is_some() {
            self.tell_members();
        }
        if !is_tried && self.members.heard.remove(&node).is_some() {
            self.dials.retain(|dial| dial.expects != Some(node));
        }
    }

    /// Forgets members that are not linked and that no peer has told of for long.
    pub(super) fn sweep_members(&mut self) {
        let now = self.clock.now();
        let (engine, dials) = (&self.engine, &mut self.dials);
        self.members.heard.retain(|node, told| {
            let stays = engine.is_connected(*node) || now < told.saturating_add(TRIED);
            if !stays {
                dials.retain(|dial| dial.expects != Some(*node));
            }
            stays
        });
    }
}

/// Whether it is a host with a port, and no host of the sender's own.
fn is_host(address: &str) -> bool {
    let is_any = address
        .parse()
        .is_ok_and(|it: SocketAddr| it.ip().is_unspecified());
    is_address(address) && !is_any
}

/// Where a peer is reached that says this, on a connection that leads there.
fn reached_at(address: &str, remote: Option<&Address>) -> Option<String> {
    let parsed = address.parse::<SocketAddr>();
    match (parsed, remote) {
        (Ok(all), Some(Address::Internet(remote))) if all.ip().is_unspecified() => {
            // What came to a socket of both kinds is written as a host of its own kind.
            let host = remote.ip().to_canonical();
            let there = SocketAddr::new(host, all.port()).to_string();
            is_host(&there).then_some(there)
        }
        _ => is_host(address).then(|| address.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_listens_everywhere_is_reached_where_its_connection_leads() {
        let remote = |text: &str| Address::Internet(text.parse().unwrap());
        for (says, from, wanted) in [
            (
                "roof.example:7411",
                "192.0.2.1:9",
                Some("roof.example:7411"),
            ),
            ("192.0.2.7:7411", "192.0.2.1:9", Some("192.0.2.7:7411")),
            ("0.0.0.0:7411", "192.0.2.1:9", Some("192.0.2.1:7411")),
            ("[::]:7411", "[2001:db8::1]:9", Some("[2001:db8::1]:7411")),
            ("[::]:7411", "[::ffff:192.0.2.1]:9", Some("192.0.2.1:7411")),
            ("0.0.0.0:0", "192.0.2.1:9", None),
            ("roof", "192.0.2.1:9", None),
            ("roof;reboot:1", "192.0.2.1:9", None),
        ] {
            let found = reached_at(says, Some(&remote(from)));
            assert_eq!(found.as_deref(), wanted, "{says} from {from}");
        }
        assert_eq!(reached_at("0.0.0.0:7411", None), None);
        assert!(!is_host("0.0.0.0:7411") && !is_host("[::]:1") && is_host("[::1]:1"));
    }
}
