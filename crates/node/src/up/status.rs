//! What a running node says of itself.

use serde::{Deserialize, Serialize};

use crate::engine::{LostReport, SpanReport};

/// A running node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Its id.
    pub node: String,
    /// Its name.
    pub name: String,
    /// How often it was started.
    pub incarnation: u64,
    /// Where it listens.
    pub listen: String,
    /// Where its counters are asked for.
    pub metrics: Option<String>,
    /// Until when its certificate is valid.
    pub certificate_until: String,
    /// From when it is renewed.
    pub renews_at: String,
    /// Whether it has the authority's key, and signs with it.
    pub authority: bool,
    /// The authorities that it believes.
    pub authorities: Vec<AuthorityStatus>,
    /// Nodes that it refuses.
    pub forgotten: Vec<String>,
    /// Nodes that it knows, and addresses that it tries.
    pub peers: Vec<PeerStatus>,
    /// Domains that it spans, or is to.
    pub spans: Vec<SpanStatus>,
    /// Messages and answers that could not travel, or had no place here.
    pub left_behind: u64,
    /// Messages that were lost with a peer that was given up, or with its ports.
    pub lost: Vec<LostReport>,
}

/// An authority that it believes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthorityStatus {
    /// The id of its key.
    pub key: String,
    /// The id of the key that it follows.
    pub follows: Option<String>,
    /// Until when it is believed, if not for good.
    pub until: Option<String>,
}

/// A domain that it spans, or is to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpanStatus {
    /// How it is.
    pub state: SpanState,
    /// Why the last attempt to join it came to nothing.
    pub failure: Option<String>,
    /// What goes over it.
    #[serde(flatten)]
    pub report: SpanReport,
}

/// How a span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpanState {
    /// This node is a member of the domain.
    Up,
    /// It is being joined.
    Joining,
}

impl SpanState {
    /// As people read it.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Joining => "joining",
        }
    }
}

/// A peer of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Its id, once it was reached.
    pub node: Option<String>,
    /// Its name, once it was reached.
    pub name: Option<String>,
    /// Where it is tried, if node.toml says.
    pub address: Option<String>,
    /// Where it is tried because another node has told of it.
    pub heard_at: Option<String>,
    /// How the link is.
    pub state: PeerState,
    /// For how many milliseconds.
    pub for_ms: u64,
    /// The last round trip, in microseconds.
    pub round_trip_us: Option<u64>,
    /// Bytes written to it, on the connections that there are.
    pub sent_bytes: u64,
    /// Bytes read from it.
    pub received_bytes: u64,
    /// Bytes that it has not acknowledged.
    pub in_flight_bytes: u64,
    /// Why the last attempt came to nothing.
    pub failure: Option<String>,
}

/// How a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeerState {
    /// It is up.
    Up,
    /// It is up, and the peer is silent.
    Unreachable,
    /// It is being made.
    Connecting,
    /// It is tried again after a while.
    Waiting,
}

impl PeerState {
    /// As people read it.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Unreachable => "unreachable",
            Self::Connecting => "connecting",
            Self::Waiting => "waiting",
        }
    }
}
