//! What a node says of itself: `portolan_node::up::Status`, as far as it is shown.
//!
//! What a node of another version does not say is left empty.

use serde::{Deserialize, Serialize};

/// A running node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Status {
    /// Its id.
    pub(crate) node: String,
    pub(crate) name: String,
    /// How often it was started.
    pub(crate) incarnation: u64,
    pub(crate) listen: String,
    /// Nodes that it knows, and addresses that it tries.
    pub(crate) peers: Vec<Peer>,
    /// Domains that it spans, or is to.
    pub(crate) spans: Vec<Span>,
    /// Messages and answers that could not travel, or had no place here.
    pub(crate) left_behind: u64,
    pub(crate) lost: Vec<Lost>,
    pub(crate) rights: Rights,
}

/// A node that it knows, or an address that it tries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Peer {
    /// Its id, once it was reached.
    pub(crate) node: Option<String>,
    /// Its name, once it was reached.
    pub(crate) name: Option<String>,
    /// Where it is tried, if node.toml says.
    pub(crate) address: Option<String>,
    /// Where it is tried because another node has told of it.
    pub(crate) heard_at: Option<String>,
    /// `up`, `unreachable`, `connecting` or `waiting`.
    pub(crate) state: String,
    /// For how many milliseconds.
    pub(crate) for_ms: u64,
    pub(crate) round_trip_us: Option<u64>,
    /// How many nanoseconds its monotonic clock is ahead of this machine's, and by how many that is wrong
    /// at the most.
    pub(crate) clock_offset_ns: Option<i64>,
    pub(crate) clock_error_ns: Option<u64>,
    /// On the connections that there are.
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
    pub(crate) in_flight_bytes: u64,
    /// Why the last attempt came to nothing.
    pub(crate) failure: Option<String>,
}

impl Peer {
    /// What people call it: its name, or where it is tried.
    pub(crate) fn called(&self) -> &str {
        let by_address = self.address.as_ref().or(self.heard_at.as_ref());
        let called = self.name.as_ref().or(by_address).or(self.node.as_ref());
        called.map_or("-", String::as_str)
    }

    pub(crate) fn is_up(&self) -> bool {
        self.state == "up"
    }
}

/// A domain that it spans, or is to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Span {
    /// `up` or `joining`.
    pub(crate) state: String,
    pub(crate) failure: Option<String>,
    /// Its name among nodes.
    pub(crate) domain: String,
    /// This machine's name for it.
    pub(crate) local: String,
    /// Nodes whose members come in.
    pub(crate) nodes: Vec<String>,
    pub(crate) proxies: Vec<Proxy>,
    pub(crate) lent: Vec<Lent>,
    /// Requests that programs here have made, and that are not answered.
    pub(crate) asking: u64,
    /// Requests of peers that are with their servers.
    pub(crate) serving: u64,
}

/// A port of another node that programs here have rights on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Proxy {
    pub(crate) name: String,
    pub(crate) node: String,
    /// Messages that were sent on.
    pub(crate) sent: u64,
    /// Messages that wait here.
    pub(crate) depth: u64,
    /// Messages that were sent on, and have not arrived as far as is known.
    pub(crate) unacknowledged: u64,
    /// Nothing can be sent on now.
    pub(crate) waits: bool,
}

/// A port's name, as it is shown: one that came as a right may have none.
pub(crate) fn called(port: &str) -> &str {
    match port {
        "" => "-",
        name => name,
    }
}

/// A port here that other nodes have rights on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Lent {
    pub(crate) name: String,
    /// Messages that have come for it.
    pub(crate) delivered: u64,
    /// Nodes whose messages wait for room in it.
    pub(crate) waiting: Vec<String>,
}

/// Messages that were lost with a node that was given up, or with ports of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Lost {
    pub(crate) node: String,
    pub(crate) name: String,
    pub(crate) messages: u64,
}

/// Rights in messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Rights {
    pub(crate) given: u64,
    pub(crate) come: u64,
    pub(crate) kept: u64,
    pub(crate) lent_once: u64,
    pub(crate) borrowing: u64,
}
