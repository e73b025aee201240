//! The directory: which members the cluster has, where they are reached, and who has which name.
//!
//! ```text
//!  node's thread                                    the directory
//!   announce(own)  --- newest wins --->   tells the others of this node and its names
//!   news()         <-- newest wins ----   what it has learnt of them; rings when that changes
//! ```
//!
//! | implementation | members | who has a name |
//! |---|---|---|
//! | [`Static`] | those of node.toml, and whom linked peers tell of | every linked peer is asked |
//! | `Zenoh` (feature `zenoh`) | besides, those whose directories announce them | those that announce it are asked |
//! | [`Threaded`] | what its thread says | what its thread says: Zenoh is one, and so are faulty ones in tests |
//!
//! # Invariants
//!
//! - **D1** No call waits: not for the directory's thread, not for a lock that it may hold. Only
//!   [`end`](Directory::end) waits, for [`LEAVE`] at most.
//! - **D2** What a directory says is a hint. A member that it names must show its key in the link's
//!   handshake; a node that it says has a name is asked over the authenticated link. So it can delay
//!   or hide, and forge nothing.
//! - **D3** It gives nobody up, and no link waits for it. If its thread has ended, or is silent for
//!   [`SILENT`], what it has said of names counts no more: all peers are asked.
//! - **D4** What it keeps of others is bounded, for each node and in all.

#[cfg(any(feature = "zenoh", test))]
mod hints;
mod threaded;
#[cfg(any(feature = "zenoh", test))]
mod tunnels;
#[cfg(feature = "zenoh")]
mod zenoh;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use portolan_sys::process::EventFd;
use portolan_transport::clock::Clock;
use portolan_transport::tls::Cluster;
use portolan_transport::{Connection, NodeId};
use serde::{Deserialize, Serialize};

use crate::config;
use crate::state::State;

pub use threaded::{Post, Threaded};

/// How long a directory has to end.
pub const LEAVE: Duration = Duration::from_secs(1);
/// After how much silence of its thread what a directory has said of names counts no more.
pub const SILENT: Duration = Duration::from_secs(5);
/// Names that a node announces, at most. The others are found by asking.
pub const MOST_NAMES: usize = 4096;
/// Addresses that a node announces, at most.
pub const MOST_ADDRESSES: usize = 4;

/// Who knows members and names.
pub trait Directory: fmt::Debug {
    /// Says of this node from now on what is in `own`, and reaches other directories by its ways.
    fn announce(&mut self, own: &Announcement);

    /// What it knows, if that has changed since this was called last. It rings the descriptor of its
    /// [`Seat`] when there may be some.
    fn news(&mut self) -> Option<News>;

    /// Has a connection of another node's directory from now on, or drops it.
    fn take(&mut self, node: NodeId, connection: Box<dyn Connection>);

    /// How its thread is; `None` if it has none, and nothing is announced to it.
    fn state(&self) -> Option<DirectoryState>;

    /// How it is, but for the counts that the node has.
    fn status(&self) -> DirectoryStatus;

    /// Ends, within [`LEAVE`], whether or not its thread does.
    fn end(&mut self);
}

/// What a directory is made with.
#[derive(Clone, Debug)]
pub struct Seat {
    /// Whose it is.
    pub cluster: Cluster,
    /// Where it may have sockets.
    pub state: State,
    /// The node's clock.
    pub clock: Arc<dyn Clock>,
    /// What wakes the node.
    pub rings: Arc<EventFd>,
}

/// What a node says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announcement {
    /// The node.
    pub member: Member,
    /// Domains, as nodes call them, each with the name of a port that is let out.
    pub names: BTreeSet<(String, String)>,
    /// Where the directories of others may be reached: not said to anyone.
    pub ways: BTreeSet<Way>,
}

/// Where a node is reached.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Way {
    /// The node; `None` of an address in node.toml, where any node may answer.
    pub node: Option<NodeId>,
    /// Its host and port.
    pub address: String,
}

/// A member of the cluster: an allegation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Its id.
    pub node: NodeId,
    /// Its name, for people.
    pub name: String,
    /// Its start.
    pub incarnation: u64,
    /// Where it is reached.
    pub addresses: Vec<String>,
}

/// What a directory knows.
#[derive(Clone, Debug, Default)]
pub struct News {
    /// Members that are there, this node not among them.
    pub members: Vec<Member>,
    /// Who has which name; `None` if that is not known, and all are to be asked.
    pub holders: Option<Arc<Holders>>,
}

/// Who is said to have which name.
#[derive(Clone, Debug, Default)]
pub struct Holders {
    nodes: BTreeMap<(String, String), BTreeSet<NodeId>>,
    announcing: BTreeSet<NodeId>,
}

impl Holders {
    /// Nodes that are said to have a port of this name in a domain.
    pub fn of(&self, domain: &str, name: &str) -> impl Iterator<Item = NodeId> {
        let key = (domain.to_owned(), name.to_owned());
        self.nodes.get(&key).into_iter().flatten().copied()
    }

    /// Whether a node says which names it has: of another one nothing is known.
    pub fn announces(&self, node: NodeId) -> bool {
        self.announcing.contains(&node)
    }

    /// A node says which names it has from now on, or does so no more.
    pub fn set_announcing(&mut self, node: NodeId, does: bool) {
        match does {
            true => self.announcing.insert(node),
            false => self.announcing.remove(&node),
        };
    }

    /// How many names there are.
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// A node is said to have a name.
    pub fn add(&mut self, node: NodeId, domain: &str, name: &str) {
        let key = (domain.to_owned(), name.to_owned());
        self.nodes.entry(key).or_default().insert(node);
    }

    /// It is said to have it no more.
    pub fn remove(&mut self, node: NodeId, domain: &str, name: &str) {
        let key = (domain.to_owned(), name.to_owned());
        if let Some(nodes) = self.nodes.get_mut(&key) {
            nodes.remove(&node);
            if nodes.is_empty() {
                self.nodes.remove(&key);
            }
        }
    }
}

/// How a directory is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryStatus {
    /// Which it is, as node.toml calls it.
    pub kind: String,
    /// How its thread is; `None` if it has none.
    pub state: Option<DirectoryState>,
    /// What has failed last.
    pub failure: Option<String>,
    /// Nodes with whose directories it is connected.
    pub connected: Vec<String>,
    /// Members that it names.
    pub members: Vec<DirectoryMember>,
    /// Names that it knows the nodes of.
    pub names: usize,
    /// How often peers were asked whether they have a name.
    pub asked: u64,
    /// How often peers have asked this node.
    pub heard: u64,
}

/// A member that a directory names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryMember {
    /// Its id.
    pub node: String,
    /// Its name.
    pub name: String,
    /// Its start.
    pub incarnation: u64,
    /// Where it says that it is reached.
    pub addresses: Vec<String>,
}

/// How a directory's thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DirectoryState {
    /// It has not begun to answer.
    Starting,
    /// It works.
    Up,
    /// It says nothing: names are asked of all peers.
    Silent,
    /// It has ended, by a failure of its own: names are asked of all peers.
    Ended,
}

impl DirectoryState {
    /// As people read it.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Up => "up",
            Self::Silent => "silent",
            Self::Ended => "ended",
        }
    }
}

/// The directory that node.toml names.
pub(crate) fn of_config(config: &config::Config, seat: Seat) -> Box<dyn Directory> {
    match config.directory {
        config::Directory::Static => Box::new(Static),
        #[cfg(feature = "zenoh")]
        config::Directory::Zenoh => Box::new(zenoh::start(seat)),
        // node.toml is refused by its line.
        #[cfg(not(feature = "zenoh"))]
        config::Directory::Zenoh => {
            drop(seat);
            Box::new(Static)
        }
    }
}

/// The directory of a handful of machines: members are those of node.toml and whom linked peers tell
/// of, and every linked peer is asked for names. It has no thread and no connections.
#[derive(Debug)]
pub struct Static;

impl Directory for Static {
    fn announce(&mut self, _own: &Announcement) {}

    fn news(&mut self) -> Option<News> {
        None
    }

    fn take(&mut self, _node: NodeId, connection: Box<dyn Connection>) {
        drop(connection);
    }

    fn state(&self) -> Option<DirectoryState> {
        None
    }

    fn status(&self) -> DirectoryStatus {
        DirectoryStatus {
            kind: config::Directory::Static.in_words().to_owned(),
            ..DirectoryStatus::default()
        }
    }

    fn end(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_are_those_that_were_added_and_not_removed() {
        let [hall, roof] = [1, 2].map(|id| NodeId([id; 16]));
        let mut holders = Holders::default();
        holders.add(hall, "cameras", "upper");
        holders.add(roof, "cameras", "upper");
        holders.add(roof, "prices", "upper");
        let of = |holders: &Holders, domain| holders.of(domain, "upper").collect::<Vec<_>>();
        assert_eq!(of(&holders, "cameras"), [hall, roof]);
        holders.remove(roof, "cameras", "upper");
        holders.remove(roof, "cameras", "lower");
        assert_eq!((of(&holders, "cameras"), holders.count()), (vec![hall], 2));
        holders.remove(hall, "cameras", "upper");
        assert_eq!((of(&holders, "cameras"), holders.count()), (vec![], 1));
    }
}
