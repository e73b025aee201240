//! Members of the cluster that peers, or a directory, tell of: they are connected to as well, so a
//! node that has joined by one member finds the others.
//!
//! Each node tells its peers where it is reached, and where its peers are. What is said of a third
//! node is an allegation. It leads to attempts to connect, a bounded number of them, and to nothing
//! else: who answers must show a certificate of the cluster's authority, of the key that was told of.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use portolan_abi::node::MAX_MEMBERS;
use portolan_transport::{Address, NodeId};

use super::Node;
use super::dial::Dial;
use crate::token::is_address;

/// Members that are connected to because others have told of them, at most: those of two peers that
/// say as much as they can.
const MOST: usize = 2 * MAX_MEMBERS;
/// Those that a directory names, at most. They are counted apart, so one that lies takes no place from
/// members that peers tell of.
const MOST_NAMED: usize = 256;
/// How long a member is tried that is not linked and that no peer tells of any more.
const TRIED: Duration = Duration::from_secs(3600);

/// What is known of members.
#[derive(Debug, Default)]
pub(super) struct Members {
    /// Where the peers are reached with which there is an association.
    reached: BTreeMap<NodeId, String>,
    /// Where their connections lead to.
    remotes: BTreeMap<NodeId, IpAddr>,
    /// Who was told of by peers, and when last.
    heard: BTreeMap<NodeId, Duration>,
    /// Who was named by a directory, and when last.
    named: BTreeMap<NodeId, Duration>,
}

/// Who says where a third node is.
#[derive(Clone, Copy, PartialEq)]
enum Source {
    Peer,
    Directory,
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
            if node == from
                && let Some(Address::Internet(remote)) = remote
            {
                self.members.remotes.insert(node, remote.ip());
            }
            if node != from {
                if is_host(&address) {
                    self.hear_of(node, address, now, Source::Peer);
                }
            } else if let Some(address) = reached_at(&address, remote) {
                self.members.reached.insert(node, address);
            }
        }
        self.tell_members();
    }

    /// A directory says where a node is reached.
    pub(super) fn hear_of_addresses(&mut self, node: NodeId, addresses: &[String]) {
        let now = self.clock.now();
        for address in addresses.iter().filter(|address| is_host(address)) {
            self.hear_of(node, address.clone(), now, Source::Directory);
        }
    }

    /// Where connections with peers lead to.
    pub(super) fn remotes(&self) -> impl Iterator<Item = IpAddr> {
        let remotes = self.members.remotes.values();
        remotes.map(IpAddr::to_canonical)
    }

    /// A third node is said to be reached there.
    fn hear_of(&mut self, node: NodeId, address: String, now: Duration, source: Source) {
        let is_linked = self.engine.is_connected(node);
        let its = |dial: &&mut Dial| dial.node == Some(node);
        let (told, most) = match source {
            Source::Peer => (&mut self.members.heard, MOST),
            Source::Directory => (&mut self.members.named, MOST_NAMED),
        };
        match self.dials.iter_mut().find(its) {
            // What node.toml says of it is enough.
            Some(dial) if dial.expects.is_none() => {}
            Some(dial) => {
                dial.also_at(address);
                told.insert(node, now);
            }
            None if told.len() < most => {
                let mut dial = Dial::heard(node, address, now);
                if is_linked {
                    dial.linked(now);
                }
                self.dials.push(dial);
                told.insert(node, now);
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
        self.members.remotes.remove(&node);
        if self.members.reached.remove(&node).is_some() {
            self.tell_members();
        }
        if !is_tried {
            let members = &mut self.members;
            let was_told = [&mut members.heard, &mut members.named].map(|it| it.remove(&node));
            if was_told.iter().any(Option::is_some) {
                self.dials.retain(|dial| dial.expects != Some(node));
            }
        }
    }

    /// Forgets members that are not linked and that nobody has told of for long.
    pub(super) fn sweep_members(&mut self) {
        self.hear_of_directory_again();
        let now = self.clock.now();
        let engine = &self.engine;
        let Members { heard, named, .. } = &mut self.members;
        for told in [&mut *heard, &mut *named] {
            told.retain(|node, at| engine.is_connected(*node) || now < at.saturating_add(TRIED));
        }
        self.dials.retain(|dial| {
            let is_told = |node| heard.contains_key(&node) || named.contains_key(&node);
            dial.expects.is_none_or(is_told)
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
