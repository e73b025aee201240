//! Domains come and go: what is lent, borrowed and asked in one ends with it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use portolan::{Domain, proxy};
use portolan_abi::node::{DeadReason, NodeId};
use portolan_proto::node::{Answer, DomainKey, PortKey, RequestKey};

use super::Engine;
use super::machine::Waits;
use super::spans::Span;
use crate::config;

impl Engine {
    /// Spans a domain, of which this process is a member.
    ///
    /// # Errors
    ///
    /// Why it cannot be waited for.
    pub fn span(&mut self, settings: config::Span, domain: Domain) -> Result<(), String> {
        self.unspan(&settings.domain);
        self.last_domain += 1;
        let key = DomainKey(self.last_domain);
        let name = self.node.name().to_owned();
        let span = Span::new(key, settings, domain, &name)?;
        // A node outlives programs.
        span.domain.prefer_to_host();
        self.node.set_budget(key, span.most / 4);
        self.machine.spans.insert(key, span);
        self.tell_nodes();
        Ok(())
    }

    /// Spans a domain no more: ports here are dead there, and the other way round.
    pub fn unspan(&mut self, domain: &str) {
        let mut spans = self.machine.spans.values();
        if let Some(span) = spans.find(|span| span.settings.domain == domain) {
            let key = span.key;
            self.unspan_key(key);
        }
    }

    pub(super) fn unspan_key(&mut self, key: DomainKey) {
        let now = self.protocol_time();
        self.drop_questions_of(key);
        self.record_no_more(key);
        self.close_proxies_of(key);
        self.machine.leaving.retain(|_, port| port.domain != key);
        let lent = self.machine.lent.iter();
        let its = lent.filter(|(_, lent)| lent.domain == key);
        let its: Vec<PortKey> = its.map(|(key, _)| *key).collect();
        for port in its {
            self.machine.take_back(port);
            self.node.remove_port(now, port, DeadReason::Unspanned);
        }
        let Some(span) = self.machine.spans.remove(&key) else {
            return;
        };
        for (_, request) in span.serving().into_iter().chain(span.onces()) {
            // Of an association that is over nobody waits for it.
            let _ = self.node.answer(request, Answer::ServerDead);
        }
        for (_, request) in span.onces() {
            self.machine.arrivals.settled(request.peer);
        }
        let asking = self.machine.asking.iter();
        let open = asking.filter(|(_, asking)| asking.domain == key);
        let open: Vec<RequestKey> = open.map(|(request, _)| *request).collect();
        for request in open {
            if let Some(asking) = self.machine.asking.remove(&request) {
                match asking.what {
                    Waits::Answer(answer) | Waits::Once(answer) => answer.server_dead(),
                    // A port that was on its way is closed.
                    Waits::Keep(_) | Waits::Moves(..) => {}
                }
            }
            self.node.abandon(now, request);
        }
    }

    /// The names that are let out, if they may be others than when this was called last: domains, as
    /// nodes call them, each with the name of a port.
    pub fn new_names(&mut self, now: Duration) -> Option<BTreeSet<(String, String)>> {
        let spans = self.machine.spans.values_mut();
        let versions: Vec<(DomainKey, u64)> =
            spans.map(|span| (span.key, span.names(now).0)).collect();
        if self.names_said.as_ref() == Some(&versions) {
            return None;
        }
        self.names_said = Some(versions);
        let mut all = BTreeSet::new();
        for span in self.machine.spans.values_mut() {
            let domain = span.settings.domain.clone();
            let names = span.names(now).1.iter();
            all.extend(names.map(|name| (domain.clone(), name.clone())));
        }
        Some(all)
    }

    /// The domains that are spanned, as nodes call them.
    pub fn domains(&self) -> Vec<String> {
        let spans = self.machine.spans.values();
        spans.map(|span| span.settings.domain.clone()).collect()
    }

    /// Whether a domain is spanned.
    pub fn spans(&self, domain: &str) -> bool {
        let mut spans = self.machine.spans.values();
        spans.any(|span| span.settings.domain == domain)
    }

    /// Tells programs which nodes there are.
    pub(super) fn tell_nodes(&mut self) {
        let peers = self.node.peers();
        let now = self.protocol_time();
        let at = Instant::now();
        let peers: Vec<(NodeId, proxy::Node)> = peers
            .map(|peer| {
                let view = self.node.peer_view(peer);
                let silent = view.filter(|view| view.is_unreachable);
                let since = silent.and_then(|view| at.checked_sub(now.since(view.heard)));
                let name = self.machine.name_of(peer);
                let unreachable_since = since;
                (
                    peer,
                    proxy::Node {
                        name,
                        unreachable_since,
                    },
                )
            })
            .collect();
        let own = proxy::Node {
            name: self.node.name().to_owned(),
            unreachable_since: None,
        };
        for span in self.machine.spans.values_mut() {
            let its = peers.iter().filter(|(id, _)| {
                let name = self.machine.names.get(id);
                span.allows(*id, name.map_or("", String::as_str))
            });
            let its = its.map(|(_, node)| node.clone());
            span.set_nodes(std::iter::once(own.clone()).chain(its).collect());
        }
    }
}
