//! What a running engine says of itself.

use std::time::Duration;

use portolan_abi::node::NodeId;
use portolan_proto::node::RateView;
use serde::{Deserialize, Serialize};

use super::Engine;
use super::machine::Waits;

/// A domain that is spanned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpanReport {
    /// Its name among nodes.
    pub domain: String,
    /// This machine's name for it.
    pub local: String,
    /// Nodes whose members come in.
    pub nodes: Vec<String>,
    /// Ports there that programs here have rights on.
    pub proxies: Vec<ProxyReport>,
    /// Ports here that peers have rights on.
    pub lent: Vec<LentReport>,
    /// Requests that programs here have made, and that are not answered.
    pub asking: usize,
    /// Requests of peers that are with their servers.
    pub serving: usize,
}

impl SpanReport {
    /// Of a domain that is not spanned yet.
    pub fn empty(domain: String, local: String, nodes: Vec<String>) -> Self {
        Self {
            domain,
            local,
            nodes,
            proxies: Vec::new(),
            lent: Vec::new(),
            asking: 0,
            serving: 0,
        }
    }
}

/// A port there that programs here have rights on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyReport {
    /// Its name.
    pub name: String,
    /// Its node.
    pub node: String,
    /// Messages that were sent on.
    pub sent: u64,
    /// Messages that wait here.
    pub depth: usize,
    /// Messages that were sent on, and have not arrived as far as is known.
    pub unacknowledged: u64,
    /// Nothing can be sent on now.
    pub waits: bool,
}

/// A port here that peers have rights on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LentReport {
    /// Its name.
    pub name: String,
    /// Messages that have come for it.
    pub delivered: u64,
    /// Flows that wait for room in it: their peers.
    pub waiting: Vec<String>,
}

/// What was lost with a peer, or with ports of it, since this node was started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostReport {
    /// Its id.
    pub node: String,
    /// Its name.
    pub name: String,
    /// Messages of programs here that were sent, and had not arrived as far as was known.
    pub messages: u64,
}

/// A peer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerReport {
    /// Its id.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// There is an association.
    pub is_up: bool,
    /// A connection carries it.
    pub is_linked: bool,
    /// It has been silent for too long.
    pub is_unreachable: bool,
    /// For how long it has been as it is, or silent.
    pub lasts: Duration,
    /// The last round trip.
    pub round_trip: Option<Duration>,
    /// How many nanoseconds its clock is ahead, and by how much that is wrong at the most.
    pub clock: Option<(i64, Duration)>,
    /// Bytes written to it, and read, on the connections that there are.
    pub bytes: (u64, u64),
    /// Bytes in flight, and how many may be.
    pub in_flight: (u64, u64),
    /// How fast it is sent to, and read.
    pub rates: RateView,
}

/// Rights in messages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RightsReport {
    /// Given to peers since this node was started.
    pub given: u64,
    /// Come from peers since then.
    pub come: u64,
    /// Kept here, because the peers that they were given to have no loans yet.
    pub kept: usize,
    /// Send-once rights of programs here that peers have.
    pub lent_once: usize,
    /// Ports of other nodes that rights were given on, and that are not lent yet.
    pub borrowing: usize,
    /// How often the borrowers of a port were asked for their senders, because its receiver wants to
    /// know when there are none.
    pub senders_asked: u64,
    /// How often a peer has asked for senders.
    pub senders_told: u64,
    /// Ports whose receive rights peers have taken since this node was started.
    #[serde(default)]
    pub ports_left: u64,
    /// Ports whose receive rights have come from peers since then.
    #[serde(default)]
    pub ports_arrived: u64,
    /// Proxies here whose homes were given up, and of whose ports other nodes were asked where they are.
    pub ports_sought: u64,
}

/// An engine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The domains that it spans.
    pub spans: Vec<SpanReport>,
    /// Its peers.
    pub peers: Vec<PeerReport>,
    /// Names that programs ask for.
    pub questions: usize,
    /// How often peers were asked for a name.
    pub names_asked: u64,
    /// How often peers have asked for one.
    pub names_heard: u64,
    /// Messages and answers that could not travel, or had no place here.
    pub left_behind: u64,
    /// Messages that were sent to other nodes.
    pub sent: u64,
    /// Messages of other nodes that were put into ports here.
    pub delivered: u64,
    /// Messages that were lost.
    pub lost: Vec<LostReport>,
    /// Rights in messages.
    pub rights: RightsReport,
}

impl Engine {
    /// How it is.
    pub fn report(&mut self, now: Duration) -> Report {
        let keys: Vec<_> = self.machine.spans.keys().copied().collect();
        let mut spans = Vec::new();
        for key in keys {
            let all = self.proxies.all.iter();
            let its = all.filter(|(_, proxy)| proxy.domain == key);
            let its: Vec<u64> = its.map(|(id, _)| *id).collect();
            let mut proxies = Vec::new();
            for id in its {
                let depth = self.depth_of(id);
                let Some(proxy) = self.proxies.all.get(&id) else {
                    continue;
                };
                let arrived = proxy.arrived(|flow| self.node.first_kept(flow));
                proxies.push(ProxyReport {
                    name: proxy.name.clone(),
                    node: self.machine.name_of(proxy.home),
                    sent: proxy.sent,
                    depth: depth + proxy.waiting_back(),
                    unacknowledged: proxy.sent.saturating_sub(arrived.unwrap_or(proxy.sent)),
                    waits: proxy.is_parked(),
                });
            }
            let lent = self.machine.awake();
            let lent = lent.filter(|(_, lent)| lent.domain == key);
            let lent = lent.map(|(port, lent)| {
                let waiting = self.node.port_view(*port);
                let waiting = waiting.map(|(_, _, flows)| flows).unwrap_or_default();
                let waiting = waiting.iter().map(|flow| self.machine.name_of(flow.peer));
                LentReport {
                    name: lent.name.clone(),
                    delivered: lent.delivered,
                    waiting: waiting.collect(),
                }
            });
            let Some(span) = self.machine.spans.get(&key) else {
                continue;
            };
            let asking = self.machine.asking.values();
            let asking = asking.filter(|it| matches!(it.what, Waits::Answer(_)));
            spans.push(SpanReport {
                domain: span.settings.domain.clone(),
                local: span.settings.local.clone(),
                nodes: span.settings.nodes.clone(),
                proxies,
                lent: lent.collect(),
                asking: asking.filter(|asking| asking.domain == key).count(),
                serving: span.serving().len(),
            });
        }
        let lost = self.proxies.lost.iter();
        let lost = lost.map(|(node, messages)| LostReport {
            node: node.to_string(),
            name: self.machine.name_of(*node),
            messages: *messages,
        });
        Report {
            spans,
            peers: self.peers(now),
            questions: self.questions.count(),
            names_asked: self.questions.asked(),
            names_heard: self.heard,
            left_behind: self.machine.left_behind,
            sent: self.machine.sent,
            delivered: self.machine.delivered,
            lost: lost.collect(),
            rights: self.rights_report(),
        }
    }

    fn rights_report(&self) -> RightsReport {
        let asking = || self.machine.asking.values();
        let kept = asking().filter(|it| matches!(it.what, Waits::Keep(_)));
        let once = asking().filter(|it| matches!(it.what, Waits::Once(_)));
        RightsReport {
            given: self.rights.gave,
            come: self.rights.came,
            kept: kept.count(),
            lent_once: once.count(),
            borrowing: self.node.borrowing(),
            senders_asked: self.rights.asked,
            senders_told: self.rights.heard,
            ports_left: self.rights.left,
            ports_arrived: self.rights.arrived,
            ports_sought: self.rights.sought,
        }
    }

    /// Messages of programs here that are not in their ports yet, of nodes that can be reached.
    pub fn undelivered(&mut self) -> u64 {
        let all = self.proxies.all.iter();
        let all = all.map(|(id, it)| {
            let arrived = it.arrived(|flow| self.node.first_kept(flow));
            let unsaid = it.sent.saturating_sub(arrived.unwrap_or(it.sent));
            (*id, it.home, unsaid + it.waiting_back() as u64)
        });
        let all: Vec<_> = all.collect();
        let mut count = 0;
        for (id, home, unsaid) in all {
            let peer = self.node.peer_view(home);
            if peer.is_none_or(|peer| peer.is_unreachable) {
                continue;
            }
            count += unsaid + self.depth_of(id) as u64;
        }
        count
    }

    fn peers(&self, now: Duration) -> Vec<PeerReport> {
        let time = self.protocol_time();
        let mut nodes: Vec<NodeId> = self.node.peers().collect();
        nodes.extend(self.links.values().map(|link| link.peer));
        nodes.sort_unstable();
        nodes.dedup();
        let nodes = nodes.into_iter();
        nodes
            .map(|node| {
                let view = self.node.peer_view(node);
                let is_up = self.node.view(node).is_some();
                let links = self.links.values().filter(|link| link.peer == node);
                let bytes = links.clone().map(super::link::Link::bytes);
                let bytes = bytes.fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
                let heard = view.as_ref().map(|view| Duration::from_nanos(view.heard.0));
                let since = links.map(|link| link.since).min();
                let is_unreachable = view.as_ref().is_some_and(|view| view.is_unreachable);
                let since = if is_unreachable {
                    heard
                } else {
                    since.or(heard)
                };
                PeerReport {
                    node,
                    name: view
                        .as_ref()
                        .map(|view| view.name.clone())
                        .unwrap_or_default(),
                    is_up,
                    is_linked: self.is_linked(node),
                    is_unreachable,
                    lasts: now.saturating_sub(since.unwrap_or(now)),
                    clock: view
                        .as_ref()
                        .and_then(|view| view.clock)
                        .map(|clock| (clock.nanos(), clock.error(time))),
                    round_trip: view.and_then(|view| view.round_trip),
                    bytes,
                    in_flight: self.node.in_flight(node).unwrap_or((0, 0)),
                    rates: self.node.rates(node),
                }
            })
            .collect()
    }
}
