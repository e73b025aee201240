//! What a running node says of itself.

use std::time::Duration;

use portolan_proto::node::RateView;
use portolan_transport::NodeId;
use serde::{Deserialize, Serialize};

use super::Node;
use super::control::{Ask, ask};
use super::dial::{Dial, Phase};
use super::metrics::Metrics;
use crate::authority::{Authority, renew_at};
use crate::directory::DirectoryStatus;
use crate::engine::{LostReport, Report, RightsReport, SpanReport};
use crate::rates::in_words;
use crate::state::State;
use crate::{NodeError, Result};

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
    /// Who tells it of members and names.
    #[serde(default)]
    pub directory: DirectoryStatus,
    /// Domains that it spans, or is to.
    pub spans: Vec<SpanStatus>,
    /// Messages and answers that could not travel, or had no place here.
    pub left_behind: u64,
    /// Messages that were lost with a peer that was given up, or with its ports.
    pub lost: Vec<LostReport>,
    /// Rights in messages.
    #[serde(default)]
    pub rights: RightsReport,
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
    /// How many nanoseconds its monotonic clock is ahead of this machine's.
    #[serde(default)]
    pub clock_offset_ns: Option<i64>,
    /// By how many that is wrong at the most.
    #[serde(default)]
    pub clock_error_ns: Option<u64>,
    /// Bytes written to it, on the connections that there are.
    pub sent_bytes: u64,
    /// Bytes read from it.
    pub received_bytes: u64,
    /// Bytes that it has not acknowledged.
    pub in_flight_bytes: u64,
    /// How fast it is sent to, and read.
    #[serde(default)]
    pub rates: RateStatus,
    /// Why the last attempt came to nothing.
    pub failure: Option<String>,
}

/// How many bytes a second go to a peer, and are taken from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateStatus {
    /// Sent to it at most, as node.toml says.
    pub send: Option<u64>,
    /// Taken from it at most.
    pub take: Option<u64>,
    /// What it takes at most, as it says.
    pub peer_takes: Option<u64>,
    /// How often something had to wait before it was sent, since this node was started.
    pub sends_held: u64,
    /// How often what had come had to wait before it was read.
    pub takes_held: u64,
}

impl RateStatus {
    /// As people read it; nothing, if there is no limit.
    pub fn in_words(&self) -> Option<String> {
        self.send.or(self.take).or(self.peer_takes)?;
        let said = |rate: Option<u64>| rate.map_or("unlimited".to_owned(), in_words);
        let theirs = self.peer_takes.map(in_words);
        let theirs = theirs.map_or(String::new(), |rate| format!(" (it takes {rate})"));
        Some(format!(
            "send rate {}{theirs}, held back {} times; take rate {}, held back {} times",
            said(self.send),
            self.sends_held,
            said(self.take),
            self.takes_held,
        ))
    }
}

impl From<RateView> for RateStatus {
    fn from(view: RateView) -> Self {
        Self {
            send: view.set.send,
            take: view.set.take,
            peer_takes: view.said,
            sends_held: view.sends_held,
            takes_held: view.takes_held,
        }
    }
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

/// Asks the node that runs with this state directory how it is.
///
/// # Errors
///
/// [`NodeError::NotRunning`], [`NodeError::Silent`]; [`NodeError::Wrong`] if its answer cannot be read.
pub fn status(state: &State) -> Result<Status> {
    let answer = ask(state, Ask::Status)?;
    serde_json::from_str(&answer).map_err(|error| NodeError::Wrong {
        what: format!("the running node's answer cannot be read ({error}): is it another version?"),
    })
}

impl Node {
    /// How it is.
    pub(super) fn status(&mut self) -> Status {
        let now = self.clock.now();
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // A peer is told of once: with what is said of its connection, if that is made anew.
        let dial_of = |node: NodeId| self.dials.iter().find(|dial| dial.node == Some(node));
        let Report {
            spans,
            peers,
            left_behind,
            lost,
            rights,
            names_asked,
            names_heard,
            ..
        } = self.engine.report(now);
        let spans = self.spans.status(spans);
        let linked: Vec<PeerStatus> = peers
            .iter()
            .map(|peer| PeerStatus {
                node: Some(peer.node.to_string()),
                name: Some(peer.name.clone()).filter(|name| !name.is_empty()),
                address: dial_of(peer.node).and_then(Dial::configured),
                heard_at: dial_of(peer.node).and_then(Dial::heard_at),
                state: match (peer.is_up, peer.is_linked, peer.is_unreachable) {
                    (_, _, true) => PeerState::Unreachable,
                    (true, true, false) => PeerState::Up,
                    _ => dial_of(peer.node).map_or(PeerState::Connecting, Dial::state),
                },
                for_ms: millis(peer.lasts),
                round_trip_us: peer.round_trip.map(micros),
                clock_offset_ns: peer.clock.map(|(ahead, _)| ahead),
                clock_error_ns: peer.clock.map(|(_, error)| nanos(error)),
                sent_bytes: peer.bytes.0,
                received_bytes: peer.bytes.1,
                in_flight_bytes: peer.in_flight.0,
                rates: peer.rates.into(),
                failure: dial_of(peer.node).and_then(|dial| dial.failure.clone()),
            })
            .collect();
        let dialled = self.dials.iter().filter(|dial| {
            let is_told = peers.iter().any(|peer| dial.node == Some(peer.node));
            !is_told && !matches!(dial.phase, Phase::Linked)
        });
        let dialled = dialled.map(|dial| PeerStatus {
            node: dial.node.map(|node| node.to_string()),
            name: None,
            address: dial.configured(),
            heard_at: dial.heard_at(),
            state: dial.state(),
            for_ms: millis(now.saturating_sub(dial.since)),
            round_trip_us: None,
            clock_offset_ns: None,
            clock_error_ns: None,
            sent_bytes: 0,
            received_bytes: 0,
            in_flight_bytes: 0,
            rates: RateStatus::default(),
            failure: dial.failure.clone(),
        });
        let metrics = self.metrics.as_ref().and_then(Metrics::address);
        Status {
            node: self.id.to_string(),
            name: self.config.name.clone(),
            incarnation: self.running.incarnation,
            listen: self.listener.address().to_string(),
            metrics: metrics.map(|address| address.to_string()),
            certificate_until: self.trust.certificate.not_after.to_string(),
            renews_at: renew_at(&self.trust.certificate).to_string(),
            authority: Authority::load(&self.state).is_ok(),
            authorities: self.authorities(),
            forgotten: self.forgotten().iter().map(ToString::to_string).collect(),
            peers: linked.into_iter().chain(dialled).collect(),
            directory: self.directory_status(names_asked, names_heard),
            spans,
            left_behind,
            lost,
            rights,
        }
    }
}
