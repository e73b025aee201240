//! A domain that is spanned: this process's membership of it, and what it waits for there.

use std::collections::BTreeMap;

use portolan::proxy::{self, ProxyPort, Query, SpannedPort};
use portolan::{
    Access, Deadline, Domain, Notice, PortOptions, ReceiveRight, SendRight, Token, WaitSet,
    Waitable,
};
use portolan_abi::node::NodeId;
use portolan_proto::node::{DomainKey, PortKey, RequestKey};

use crate::config;

/// What a token of a domain's wait set stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thing {
    /// A proxy port.
    Proxy(u64),
    /// A request of a peer that is with its server.
    Serving(RequestKey),
    /// A send-once right of a peer that is with a program.
    Once(RequestKey),
    /// Room in a port that is lent.
    Room(PortKey),
    /// Room in the port that a proxy passes on to.
    Space(u64),
    /// Where it is told of the ends of ports.
    Ends,
    /// What programs ask.
    Programs,
}

/// A domain that is spanned.
#[derive(Debug)]
pub(super) struct Span {
    pub(super) key: DomainKey,
    pub(super) settings: config::Span,
    pub(super) domain: Domain,
    pub(super) set: WaitSet,
    things: BTreeMap<Token, Thing>,
    ends: Token<ReceiveRight>,
    programs: Token<proxy::Span>,
    /// Bytes of memory that a message may take: the domain's limit.
    pub(super) most: u64,
}

impl Span {
    /// Makes this process the node of a domain, by this name.
    pub(super) fn new(
        key: DomainKey,
        settings: config::Span,
        domain: Domain,
        node: &str,
    ) -> Result<Self, String> {
        let failed = |error: &dyn std::error::Error| error.to_string();
        let mut set = WaitSet::new(&domain).map_err(|error| failed(&error))?;
        let ends = domain.bind(PortOptions::unnamed());
        let ends = ends.map_err(|error| failed(&error))?;
        let ends = set.add(ends).map_err(|refused| failed(&refused.why))?;
        let mut programs = proxy::Span::begin(&domain, node).map_err(|error| failed(&error))?;
        programs.set_ports(settings.ports.iter().cloned());
        let programs = set.add(programs);
        let programs = programs.map_err(|refused| failed(&refused.why))?;
        let most = domain.survey().map_or(0, |survey| survey.memory.limit);
        let things = [(ends.any(), Thing::Ends), (programs.any(), Thing::Programs)];
        Ok(Self {
            key,
            settings,
            domain,
            set,
            things: BTreeMap::from(things),
            ends,
            programs,
            most,
        })
    }

    /// What a program asks next, if one does.
    pub(super) fn query(&mut self) -> Option<Query> {
        let programs = self.set.get_mut(self.programs)?;
        programs.take(Deadline::NOW).ok()
    }

    /// The port of this name, if it may be let out.
    pub(super) fn find(&self, name: &str) -> Option<SpannedPort> {
        self.set.get(self.programs)?.find(name)
    }

    /// The port of this name that has left, if it may be let out.
    pub(super) fn find_left(&self, name: &str) -> Option<SpannedPort> {
        self.set.get(self.programs)?.find_left(name)
    }

    /// A port that stands for one of this name on a node.
    pub(super) fn bind(&self, name: &str, node: &str, options: PortOptions) -> Option<ProxyPort> {
        self.set.get(self.programs)?.bind(name, node, options).ok()
    }

    /// Programs are told of these nodes.
    pub(super) fn set_nodes(&mut self, nodes: Vec<proxy::Node>) {
        if let Some(programs) = self.set.get_mut(self.programs) {
            programs.set_nodes(nodes);
        }
    }

    /// Whether a node's members come in.
    pub(super) fn allows(&self, node: NodeId, name: &str) -> bool {
        let is_it =
            |allowed: &String| allowed == "*" || allowed == name || *allowed == node.to_string();
        self.settings.nodes.iter().any(is_it)
    }

    pub(super) fn add<T: Waitable>(&mut self, it: T, thing: Thing) -> Option<Token<T>> {
        let token = self.set.add(it).ok()?;
        self.things.insert(token.any(), thing);
        Some(token)
    }

    pub(super) fn remove<T: Waitable>(&mut self, token: Token<T>) -> Option<T> {
        self.things.remove(&token.any());
        self.set.remove(token)
    }

    /// What something has come for, as things are; `None` if the domain is lost.
    pub(super) fn ready(&mut self) -> Option<Vec<(Token, Thing)>> {
        let ready = self.set.wait(Deadline::NOW).ok()?;
        let things = ready.filter_map(|token| Some((token, *self.things.get(&token)?)));
        Some(things.collect())
    }

    /// Is told when a port ends.
    pub(super) fn watch(&mut self, right: &SendRight, key: PortKey) -> Option<()> {
        right.watch(self.set.get(self.ends)?, key.0).ok()
    }

    /// Is not told any more: there are so many watches in a domain and no more.
    pub(super) fn unwatch(&self, right: &SendRight, key: PortKey) {
        if let Some(ends) = self.set.get(self.ends) {
            right.unwatch(ends, key.0);
        }
    }

    /// Ports that have ended.
    pub(super) fn ended(&mut self) -> Vec<PortKey> {
        let mut ended = Vec::new();
        while let Some(port) = self.set.get_mut(self.ends)
            && let Ok(message) = port.receive(Access::Later, Deadline::NOW)
        {
            if let Some(Notice::DeadName { token }) = message.notice() {
                ended.push(PortKey(token));
            }
        }
        ended
    }

    /// The send-once rights of peers that are with programs.
    pub(super) fn onces(&self) -> Vec<(Token, RequestKey)> {
        let things = self.things.iter();
        let onces = things.filter_map(|(token, thing)| match thing {
            Thing::Once(request) => Some((*token, *request)),
            _ => None,
        });
        onces.collect()
    }

    /// The requests of peers that are with their servers.
    pub(super) fn serving(&self) -> Vec<(Token, RequestKey)> {
        let things = self.things.iter();
        let serving = things.filter_map(|(token, thing)| match thing {
            Thing::Serving(request) => Some((*token, *request)),
            _ => None,
        });
        serving.collect()
    }
}
