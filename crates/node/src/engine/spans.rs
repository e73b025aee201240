//! A domain that is spanned: this process's membership of it, and what it waits for there.

use std::collections::BTreeMap;
use std::time::Duration;

use portolan::proxy::{self, KnownPort, LentNotice, ProxyPort, Query, SpannedPort};
use portolan::{Deadline, Domain, PortOptions, Token, WaitSet, Waitable};
use portolan_abi::node::NodeId;
use portolan_proto::node::{DomainKey, PortKey, RequestKey};

use super::trim::Seen;
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
    /// What programs ask, and what has changed of ports that are lent.
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
    programs: Token<proxy::Span>,
    /// Bytes of memory that a message may take: the domain's limit.
    pub(super) most: u64,
    names: Names,
    /// As [`Engine::trim`](super::Engine) has seen it last.
    pub(super) seen: Option<Seen>,
}

/// Names that are let out, as they were seen last.
#[derive(Debug, Default)]
struct Names {
    all: Vec<String>,
    /// What the domain's count of names was then.
    count: Option<u32>,
    /// When: names that go are not counted.
    seen: Duration,
    /// How often they were others than before.
    version: u64,
}

/// How often it looks whether names have gone.
const LOOK: Duration = Duration::from_secs(1);

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
        let mut programs = proxy::Span::begin(&domain, node).map_err(|error| failed(&error))?;
        programs.set_ports(settings.ports.iter().cloned());
        let programs = set.add(programs);
        let programs = programs.map_err(|refused| failed(&refused.why))?;
        let most = domain.survey().map_or(0, |survey| survey.memory.limit);
        let things = [(programs.any(), Thing::Programs)];
        Ok(Self {
            key,
            settings,
            domain,
            set,
            things: BTreeMap::from(things),
            programs,
            most,
            names: Names::default(),
            seen: None,
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

    /// The names of ports that are let out, and a number that changes when they do.
    pub(super) fn names(&mut self, now: Duration) -> (u64, &[String]) {
        let names = &mut self.names;
        if let Some(programs) = self.set.get(self.programs) {
            // Before the names: one that appears meanwhile is seen the next time.
            let count = Some(programs.names_changed());
            if names.count != count || now.saturating_sub(names.seen) >= LOOK {
                let all = programs.names();
                names.version += u64::from(all != names.all);
                names.all = all;
                names.count = count;
                names.seen = now;
            }
        }
        (names.version, &names.all)
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

    /// Whether members of a node that a program calls so, by its name or id, may come in, whatever its
    /// other one is.
    pub(super) fn may_allow(&self, wanted: &str) -> bool {
        let is_id = |text: &str| text.parse::<NodeId>().is_ok();
        let may = |allowed: &String| {
            allowed == "*" || allowed == wanted || is_id(allowed) != is_id(wanted)
        };
        self.settings.nodes.iter().any(may)
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

    /// Is told from now on what changes of a port.
    pub(super) fn lend(&mut self, port: &KnownPort, key: PortKey) {
        if let Some(programs) = self.set.get_mut(self.programs) {
            programs.lend(port, key.0);
        }
    }

    /// Is not told any more.
    pub(super) fn take_back(&mut self, port: &KnownPort) {
        if let Some(programs) = self.set.get_mut(self.programs) {
            programs.take_back(port);
        }
    }

    /// What has changed of a port that is lent.
    pub(super) fn changed(&mut self) -> Option<LentNotice> {
        self.set.get_mut(self.programs)?.changed()
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
