//! A node at one time, with rates since the time before.
//!
//! | file | what it does |
//! |---|---|
//! | `table` | its tables |
//! | `head` | the lines above them |

mod head;
mod table;

use std::ffi::OsStr;
use std::time::Duration;

use serde::Serialize;

use super::{Look, Watched};
use crate::cluster::{self, Answer, Lent, Lost, Node, Peer, Proxy, Rights, Span, Status};
use crate::error::{CliError, Result};

/// A node that is watched.
pub(crate) struct Watch(Node);

impl Watch {
    /// The node that was named, or this user's.
    pub(crate) fn new(named: Option<&OsStr>) -> Result<Self> {
        let mut node = Node::named(named)?;
        // One that does not run needs no terminal to say so.
        node.status()?;
        Ok(Self(node))
    }
}

impl Watched for Watch {
    type Seen = Status;
    type Shown = Snapshot;

    fn look(&mut self, within: Duration) -> Result<Look<Status>> {
        Ok(match self.0.ask(within)? {
            Answer::Is(status) => Look::Seen(*status),
            Answer::Late => Look::Late,
            Answer::NotRunning => Look::Over,
        })
    }

    fn show(now: &Status, before: Option<(&Status, Duration)>) -> Snapshot {
        Snapshot::new(now, before)
    }

    fn ended(&self) -> CliError {
        CliError::NodeEnded {
            state: self.0.state().to_owned(),
        }
    }

    fn late(&self) -> CliError {
        CliError::NodeSilent {
            state: self.0.state().to_owned(),
            seconds: cluster::WITHIN.as_secs(),
        }
    }
}

/// A node at one time. Rates are those since the look before, and 0 for what was not there then.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Snapshot {
    pub(crate) node: String,
    pub(crate) name: String,
    pub(crate) incarnation: u64,
    pub(crate) listen: String,
    /// Between the two looks that the rates come from.
    pub(crate) seconds: f64,
    pub(crate) peers: Vec<Link>,
    pub(crate) spans: Vec<Spanned>,
    pub(crate) lost: Vec<Lost>,
    pub(crate) left_behind: u64,
    pub(crate) rights: Rights,
}

/// A peer, and how much goes over its link.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Link {
    #[serde(flatten)]
    pub(crate) peer: Peer,
    pub(crate) sent_bytes_per_second: f64,
    pub(crate) received_bytes_per_second: f64,
}

/// A domain that is spanned, and how much goes over it.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Spanned {
    pub(crate) domain: String,
    pub(crate) local: String,
    pub(crate) state: String,
    pub(crate) failure: Option<String>,
    pub(crate) nodes: Vec<String>,
    pub(crate) asking: u64,
    pub(crate) serving: u64,
    pub(crate) proxies: Vec<There>,
    pub(crate) lent: Vec<Here>,
}

/// A port of another node.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct There {
    #[serde(flatten)]
    pub(crate) proxy: Proxy,
    pub(crate) sent_per_second: f64,
}

/// A port here that other nodes have rights on.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Here {
    #[serde(flatten)]
    pub(crate) lent: Lent,
    pub(crate) delivered_per_second: f64,
}

/// What is counted since the look before.
struct Rates<'a> {
    before: Option<&'a Status>,
    seconds: f64,
}

impl Rates<'_> {
    /// How fast a counter grows. One that has begun anew since, with a new connection, has counted from
    /// 0.
    fn of(&self, now: u64, before: Option<u64>) -> f64 {
        let Some(before) = before.filter(|_| self.seconds > 0.0) else {
            return 0.0;
        };
        now.checked_sub(before).unwrap_or(now) as f64 / self.seconds
    }

    fn peer(&self, peer: &Peer) -> Option<&Peer> {
        let known = |other: &&Peer| peer.node.is_some() && other.node == peer.node;
        self.before?.peers.iter().find(known)
    }

    fn span(&self, span: &Span) -> Option<&Span> {
        let mut spans = self.before?.spans.iter();
        spans.find(|other| other.domain == span.domain)
    }
}

impl Snapshot {
    /// Of a look, and the one before it.
    pub(crate) fn new(now: &Status, before: Option<(&Status, Duration)>) -> Self {
        // One that was started again has counted from 0.
        let before = before.filter(|(before, _)| {
            (&before.node, before.incarnation) == (&now.node, now.incarnation)
        });
        let rates = Rates {
            before: before.map(|(before, _)| before),
            seconds: before.map_or(0.0, |(_, time)| time.as_secs_f64()),
        };
        let link = |peer: &Peer| {
            let before = rates.peer(peer);
            Link {
                sent_bytes_per_second: rates.of(peer.sent_bytes, before.map(|it| it.sent_bytes)),
                received_bytes_per_second: rates
                    .of(peer.received_bytes, before.map(|it| it.received_bytes)),
                peer: peer.clone(),
            }
        };
        Self {
            node: now.node.clone(),
            name: now.name.clone(),
            incarnation: now.incarnation,
            listen: now.listen.clone(),
            seconds: rates.seconds,
            peers: now.peers.iter().map(link).collect(),
            spans: now.spans.iter().map(|span| spanned(span, &rates)).collect(),
            lost: now.lost.clone(),
            left_behind: now.left_behind,
            rights: now.rights,
        }
    }
}

fn spanned(span: &Span, rates: &Rates<'_>) -> Spanned {
    let before = rates.span(span);
    // Ports with one name at one node: the first is the first.
    let there = |(at, proxy): (usize, &Proxy)| {
        let is_it = |other: &&Proxy| (&other.name, &other.node) == (&proxy.name, &proxy.node);
        let nth = span.proxies[..at].iter().filter(is_it).count();
        let before = before.and_then(|span| span.proxies.iter().filter(is_it).nth(nth));
        There {
            sent_per_second: rates.of(proxy.sent, before.map(|it| it.sent)),
            proxy: proxy.clone(),
        }
    };
    let here = |(at, lent): (usize, &Lent)| {
        let is_it = |other: &&Lent| other.name == lent.name;
        let nth = span.lent[..at].iter().filter(is_it).count();
        let before = before.and_then(|span| span.lent.iter().filter(is_it).nth(nth));
        Here {
            delivered_per_second: rates.of(lent.delivered, before.map(|it| it.delivered)),
            lent: lent.clone(),
        }
    };
    Spanned {
        domain: span.domain.clone(),
        local: span.local.clone(),
        state: span.state.clone(),
        failure: span.failure.clone(),
        nodes: span.nodes.clone(),
        asking: span.asking,
        serving: span.serving,
        proxies: span.proxies.iter().enumerate().map(there).collect(),
        lent: span.lent.iter().enumerate().map(here).collect(),
    }
}

#[cfg(test)]
mod tests;
