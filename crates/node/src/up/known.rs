//! The node's side of its directory: what is announced, and what follows from its news.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use portolan_transport::Address;

use super::Node;
use crate::config;
use crate::directory::{
    Announcement, DirectoryState, DirectoryStatus, MOST_ADDRESSES, Member, Way,
};

/// How often it is looked whether there is something to announce, and whether the thread goes on.
const LOOK: Duration = Duration::from_millis(200);
/// Ways to other directories, at most.
const MOST_WAYS: usize = 256;

/// What a node keeps of its directory.
#[derive(Debug, Default)]
pub(super) struct Known {
    announced: Announcement,
    members: Vec<Member>,
    /// What this node's addresses were found by.
    remotes: BTreeSet<IpAddr>,
    state: Option<DirectoryState>,
    looks_at: Duration,
}

impl Node {
    /// When to keep the directory, if it has a thread.
    pub(super) fn directory_at(&self) -> Option<Duration> {
        self.known.state.map(|_| self.known.looks_at)
    }

    /// Announces what is new, and hears what is.
    pub(super) fn keep_directory(&mut self) {
        let now = self.clock.now();
        let news = self.directory.news();
        if let Some(news) = news {
            self.engine.set_holders(news.holders);
            let before = std::mem::replace(&mut self.known.members, news.members);
            self.hear_of_directory(&before);
        }
        if now < self.known.looks_at {
            return;
        }
        self.known.looks_at = now + LOOK;
        let state = self.directory.state();
        if state != self.known.state {
            self.known.state = state;
            self.log_directory();
        }
        if state.is_some() && self.has_to_announce() {
            self.directory.announce(&self.known.announced);
        }
    }

    /// The directory names members: they are connected to, as those that peers tell of. Those that are
    /// there since, or again, are so at once.
    pub(super) fn hear_of_directory(&mut self, before: &[Member]) {
        let now = self.clock.now();
        for member in std::mem::take(&mut self.known.members) {
            let node = member.node;
            if node != self.id && !self.cluster.is_forgotten(node) {
                self.hear_of_addresses(node, &member.addresses);
                let is_it = |it: &Member| it.node == node && it.incarnation == member.incarnation;
                if !before.iter().any(is_it) {
                    let its = self.dials.iter_mut().filter(|dial| dial.node == Some(node));
                    its.for_each(|dial| dial.hasten(now));
                }
            }
            self.known.members.push(member);
        }
    }

    /// Says again what the directory has said, so that it is not forgotten.
    pub(super) fn hear_of_directory_again(&mut self) {
        let members = self.known.members.clone();
        self.hear_of_directory(&members);
    }

    /// Brings up to date what is announced; whether it has changed.
    fn has_to_announce(&mut self) -> bool {
        let mut has_changed = false;
        if let Some(names) = self.engine.new_names(self.clock.now()) {
            has_changed |= self.known.announced.names != names;
            self.known.announced.names = names;
        }
        let remotes: BTreeSet<IpAddr> = self.remotes().collect();
        let is_first = self.known.announced.member.node != self.id;
        if is_first || remotes != self.known.remotes {
            let member = Member {
                node: self.id,
                name: self.config.name.clone(),
                incarnation: self.running.incarnation,
                addresses: self.own_addresses(&remotes),
            };
            self.known.remotes = remotes;
            has_changed |= self.known.announced.member != member;
            self.known.announced.member = member;
        }
        let ways = self.ways();
        has_changed |= self.known.announced.ways != ways;
        self.known.announced.ways = ways;
        has_changed
    }

    /// Where other directories may be reached: where the nodes may be.
    fn ways(&self) -> BTreeSet<Way> {
        let dials = self.dials.iter().filter(|dial| dial.node != Some(self.id));
        let ways = dials.map(|dial| Way {
            // Of a peer of node.toml the node that answers is the one that is meant.
            node: dial.expects,
            address: dial.target.clone(),
        });
        ways.take(MOST_WAYS).collect()
    }

    /// Where this node is reached: as node.toml says, else where it listens; of one that listens
    /// everywhere, the addresses that lead to its peers.
    fn own_addresses(&self, remotes: &BTreeSet<IpAddr>) -> Vec<String> {
        if let Some(advertise) = &self.config.advertise {
            return vec![advertise.clone()];
        }
        let Address::Internet(listens) = self.listener.address() else {
            return Vec::new();
        };
        if !listens.ip().is_unspecified() {
            return vec![listens.to_string()];
        }
        let local = remotes.iter().filter_map(|remote| address_towards(*remote));
        let local: BTreeSet<IpAddr> = local.collect();
        let port = listens.port();
        let addresses = local.into_iter().take(MOST_ADDRESSES);
        let addresses = addresses.map(|ip| SocketAddr::new(ip, port).to_string());
        addresses.collect()
    }

    fn log_directory(&self) {
        if self.config.directory == config::Directory::Static {
            return;
        }
        let DirectoryStatus { kind, failure, .. } = self.directory.status();
        let why = failure.map_or_else(String::new, |why| format!(": {why}"));
        match self.known.state {
            Some(DirectoryState::Up) => self.log(&format!("the directory ({kind}) is up{why}")),
            Some(DirectoryState::Silent | DirectoryState::Ended) => {
                let state = self.known.state.map_or("", DirectoryState::in_words);
                self.log(&format!(
                    "the directory ({kind}) is {state}{why}; linked peers are asked for names"
                ));
            }
            Some(DirectoryState::Starting) | None => {}
        }
    }

    /// How it is, for `status`.
    pub(super) fn directory_status(&self, asked: u64, heard: u64) -> DirectoryStatus {
        DirectoryStatus {
            asked,
            heard,
            ..self.directory.status()
        }
    }
}

/// The address of this machine from which packets go there. Nothing is sent.
fn address_towards(remote: IpAddr) -> Option<IpAddr> {
    let any: SocketAddr = match remote {
        IpAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        IpAddr::V6(_) => ([0_u16; 8], 0).into(),
    };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(SocketAddr::new(remote, 9)).ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_unspecified()).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_towards_this_machine_is_its_own() {
        let loopback = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(address_towards(loopback), Some(loopback));
    }
}
