//! Another process goes on as this node: what this one has in common with its peers and its domains
//! goes over.
//!
//! ```text
//! old                                           new, a member of the domains too
//!  settle      takes nothing new of programs
//!  save ------ what is known, as JSON --------> Coming::prepare   makes send rights by numbers
//!  hand_on --- in each domain, by messages: --> Coming::finish    goes on
//!              receive rights, answer rights, unacknowledged messages
//! ```
//!
//! A receive right that goes over keeps its entry, its queue and its number, so programs that have rights on
//! a proxy notice nothing. Up to `hand_on` the old one has changed nothing and may go on.
//!
//! What cannot go over ends before, as it does with a node that leaves: [`Engine::settle`] says what.

mod coming;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use portolan::proxy::{self, Awaited, KnownPort, ProxyPort};
use portolan::{Deadline, Message, PendingReply, Right, SendRight, WhenFull};
use portolan_abi::limits::MAX_RIGHTS;
use portolan_abi::node::NodeId;
use portolan_proto::node::{Coded, DomainKey, PortKey, RequestKey, SavedNode, Settings};
use serde::{Deserialize, Serialize};

use super::machine::{Waits, time};
use super::payload::Payload;
use super::proxies::SavedProxy;
use super::{Engine, FAREWELL};
pub(super) use coming::Came;
pub use coming::Coming;

/// How long what is on the move may take to arrive, before it ends.
const MOVES: Duration = Duration::from_secs(2);
/// How long is waited for what is unacknowledged, which goes over if it is so still.
const UNACKNOWLEDGED: Duration = Duration::from_millis(500);
/// How long the other process may take for the messages in a domain.
const HANDS: Duration = Duration::from_secs(5);

/// What another process is to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedEngine {
    node: SavedNode,
    names: Vec<(Coded<NodeId>, String)>,
    last_domain: u32,
    last_port: u64,
    last_proxy: u64,
    domains: Vec<(DomainKey, String)>,
    lent: Vec<SavedLent>,
    proxies: Vec<SavedProxy>,
    onces: Vec<SavedOnce>,
    serving: Vec<SavedServing>,
    asking: Vec<SavedAsking>,
    /// Of each payload its domain.
    payloads: Vec<DomainKey>,
    lost: Vec<(Coded<NodeId>, u64)>,
    sent: u64,
    delivered: u64,
    left_behind: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedLent {
    port: PortKey,
    domain: DomainKey,
    name: String,
    number: u64,
    slots: u32,
    is_awake: bool,
    wants_senders: bool,
    delivered: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedOnce {
    request: RequestKey,
    domain: DomainKey,
    number: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedServing {
    request: RequestKey,
    domain: DomainKey,
    number: u64,
    tag: u32,
    left: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedAsking {
    request: RequestKey,
    domain: DomainKey,
    waits: SavedWaits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum SavedWaits {
    Answer,
    Once,
    /// A right on the port of this number.
    Keep(u64),
}

impl SavedEngine {
    /// The node's incarnation, and the number that it has drawn.
    pub fn incarnation(&self) -> (u64, [u8; 16]) {
        (self.node.incarnation, self.node.run)
    }

    /// The settings of the process that goes on: as the same incarnation.
    fn goes_on_by(&self, settings: Settings) -> Settings {
        let (incarnation, run) = self.incarnation();
        Settings {
            incarnation,
            run,
            ..settings
        }
    }

    /// The domains of which it tells, as nodes call them.
    pub fn domains(&self) -> impl Iterator<Item = &str> {
        self.domains.iter().map(|(_, domain)| domain.as_str())
    }

    /// Peers whose names are known.
    pub fn peers(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.names.iter().map(|(node, _)| node.0)
    }

    /// How many rights come in a domain.
    fn rights(&self, domain: DomainKey) -> usize {
        let proxies = self.proxies.iter().filter(|it| it.domain == domain);
        let proxies: usize = proxies.map(SavedProxy::rights).sum();
        let onces = self.onces.iter().filter(|it| it.domain == domain).count();
        let serving = self.serving.iter().filter(|it| it.domain == domain).count();
        let asking = self.asking.iter().filter(|it| it.domain == domain);
        let answers = asking.filter(|it| !matches!(it.waits, SavedWaits::Keep(_)));
        proxies + onces + serving + answers.count()
    }
}

/// What is about to go over.
#[derive(Debug)]
pub struct Handing {
    /// What the other process is told first.
    pub saved: SavedEngine,
    payloads: Vec<Payload>,
}

impl Engine {
    /// Comes to rest, so that it can be [saved](Self::save): takes nothing new of programs, waits a little
    /// for what is under way, ends what cannot go over, and all connections. What has ended, in words.
    pub fn settle(&mut self, clock: &dyn Fn() -> Duration) -> Vec<String> {
        self.step_while(clock, MOVES, |engine| engine.node.is_moving());
        self.quiet = true;
        self.step_while(clock, UNACKNOWLEDGED, |engine| {
            engine.node.unacknowledged() > 0
        });
        let mut said = self.end_moves(clock());
        if !said.is_empty() {
            // Those that are told farewell.
            let is_closing = |engine: &Self| {
                let mut links = engine.links.values();
                links.any(|link| link.closing.is_some())
            };
            self.step_while(clock, FAREWELL, is_closing);
        }
        self.cut("another process goes on with it");
        // An answer that the wait set has found is no more where it came in: it is kept for its client.
        self.serve_domains();
        // There may be a receive right in such a one.
        said.extend(self.end_moves(clock()));
        while self.handle() {}
        said
    }

    /// Ends what is on the move. What that is, in words.
    fn end_moves(&mut self, now: Duration) -> Vec<String> {
        let mut said = Vec::new();
        self.handle();
        loop {
            let peers = self.node.give_up_moves(time(now));
            self.handle();
            if peers.is_empty() {
                break;
            }
            said.extend(peers.into_iter().map(|peer| {
                let name = self.machine.name_of(peer);
                format!("all rights between this node and {name} ({peer}) end: a receive right is on the move")
            }));
        }
        for (_, leaving) in std::mem::take(&mut self.machine.leaving) {
            said.push("a port that is on the move is closed".to_owned());
            drop(leaving);
        }
        said.extend(self.close_unsaved());
        self.handle();
        said
    }

    fn step_while(
        &mut self,
        clock: &dyn Fn() -> Duration,
        within: Duration,
        goes_on: impl Fn(&Self) -> bool,
    ) {
        let until = clock() + within;
        while clock() < until && goes_on(self) {
            self.step(clock());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// It goes on after all.
    pub fn resume(&mut self) {
        self.quiet = false;
        self.goes_on = true;
    }

    /// What another process is to know to go on; this one has [settled](Self::settle), and does not go on unless
    /// it [resumes](Self::resume).
    ///
    /// # Errors
    ///
    /// Why it cannot go over.
    pub fn save(&mut self, now: Duration) -> Result<Handing, String> {
        let (node, payloads) = self.node.save(time(now)).map_err(|why| why.to_string())?;
        let machine = &self.machine;
        let domain_of = |payload: &Payload| {
            let Payload::Goes(message) = payload else {
                return None;
            };
            let mut spans = machine.spans.values();
            let span = spans.find(|span| proxy::is_of(message, &span.domain))?;
            Some(span.key)
        };
        let domains: Option<Vec<DomainKey>> = payloads.iter().map(domain_of).collect();
        let domains = domains.ok_or("a message of a domain that is not spanned")?;
        let lent = machine.lent.iter().map(|(port, it)| SavedLent {
            port: *port,
            domain: it.domain,
            name: it.name.clone(),
            number: it.known.number(),
            slots: it.slots,
            is_awake: it.is_awake(),
            wants_senders: it.wants_senders,
            delivered: it.delivered,
        });
        let (mut onces, mut serving) = (Vec::new(), Vec::new());
        for span in machine.spans.values() {
            let domain = span.key;
            for (token, request) in span.onces() {
                let port = span.set.get(token.of::<ProxyPort>());
                let port = port.ok_or("a send-once right without its port")?;
                onces.push(SavedOnce {
                    request,
                    domain,
                    number: KnownPort::of(&port.make_send()).number(),
                });
            }
            for (token, request) in span.serving() {
                let pending = span.set.get(token.of::<PendingReply>());
                // One whose answer is found is not known any more when it goes over.
                let awaited = pending.and_then(Awaited::of);
                serving.push(SavedServing {
                    request,
                    domain,
                    number: awaited.map_or(0, |it| it.number),
                    tag: awaited.map_or(0, |it| it.tag),
                    left: awaited.and_then(|it| it.left),
                });
            }
        }
        let mut asking = Vec::new();
        for (request, it) in &machine.asking {
            let waits = match &it.what {
                Waits::Answer(_) => SavedWaits::Answer,
                Waits::Once(_) => SavedWaits::Once,
                Waits::Keep(right) => SavedWaits::Keep(KnownPort::of(right).number()),
                Waits::Moves(..) => return Err("a receive right is on its way".to_owned()),
            };
            let (request, domain) = (*request, it.domain);
            asking.push(SavedAsking {
                request,
                domain,
                waits,
            });
        }
        let spans = machine.spans.values();
        let spans = spans.map(|span| (span.key, span.settings.domain.clone()));
        let names = machine.names.iter();
        let names = names.map(|(node, name)| (Coded(*node), name.clone()));
        let lost = self.proxies.lost.iter();
        let lost = lost.map(|(node, lost)| (Coded(*node), *lost));
        let saved = SavedEngine {
            node,
            names: names.collect(),
            last_domain: self.last_domain,
            last_port: machine.last_port,
            last_proxy: self.last_proxy(),
            domains: spans.collect(),
            lent: lent.collect(),
            proxies: self.saved_proxies(),
            onces,
            serving,
            asking,
            payloads: domains,
            lost: lost.collect(),
            sent: machine.sent,
            delivered: machine.delivered,
            left_behind: machine.left_behind,
        };
        Ok(Handing { saved, payloads })
    }

    /// Gives its rights to the process that goes on, which receives in each domain at the port of this number,
    /// and ends. What has gone wrong, in words.
    pub fn hand_on(mut self, handing: Handing, to: &BTreeMap<String, u64>) -> Vec<String> {
        let Handing { saved, payloads } = handing;
        let mut wrong = Vec::new();
        let mut ways: BTreeMap<DomainKey, Way> = BTreeMap::new();
        for (key, domain) in &saved.domains {
            let span = self.machine.spans.get(key);
            let right = span
                .and_then(|span| KnownPort::with_number(&span.domain, *to.get(domain)?)?.right());
            match right {
                Some(right) => drop(ways.insert(*key, Way::new(right))),
                None => wrong.push(format!("nobody goes on with the domain {domain}")),
            }
        }
        for proxy in &saved.proxies {
            let rights = self.hand_proxy_on(proxy);
            if let Some(way) = ways.get_mut(&proxy.domain) {
                rights.into_iter().for_each(|right| way.right(right));
            }
        }
        let mut spans = std::mem::take(&mut self.machine.spans);
        let mut tokens = BTreeMap::new();
        for span in spans.values() {
            let all = span.onces().into_iter().chain(span.serving());
            tokens.extend(all.map(|(token, request)| (request, token)));
        }
        for once in &saved.onces {
            let token = tokens
                .get(&once.request)
                .map(|token| token.of::<ProxyPort>());
            let span = spans.get_mut(&once.domain);
            let port = token.and_then(|token| span?.remove(token));
            if let Some(way) = ways.get_mut(&once.domain) {
                way.right(port.map(|port| port.hand_on().into()));
            }
        }
        for serving in &saved.serving {
            let token = tokens.get(&serving.request);
            let token = token.map(|token| token.of::<PendingReply>());
            let span = spans.get_mut(&serving.domain);
            let pending = token.and_then(|token| span?.remove(token));
            if let Some(way) = ways.get_mut(&serving.domain) {
                way.right(pending.and_then(Awaited::hand_on).map(Right::from));
            }
        }
        for asking in &saved.asking {
            if matches!(asking.waits, SavedWaits::Keep(_)) {
                continue;
            }
            let waits = self.machine.asking.remove(&asking.request);
            let right = match waits.map(|it| it.what) {
                Some(Waits::Answer(answer) | Waits::Once(answer)) => {
                    Some(answer.into_right().into())
                }
                _ => None,
            };
            if let Some(way) = ways.get_mut(&asking.domain) {
                way.right(right);
            }
        }
        // All that refers to the payloads beside.
        drop(self);
        ways.values_mut().for_each(Way::pass);
        for (payload, domain) in payloads.into_iter().zip(&saved.payloads) {
            // `save` has looked which it is, and nobody else refers to it.
            let Payload::Goes(message) = payload else {
                continue;
            };
            if let (Some(way), Ok(message)) = (ways.get_mut(domain), Rc::try_unwrap(message)) {
                way.message(message);
            }
        }
        wrong.extend(ways.into_values().filter_map(|way| way.wrong));
        wrong
    }
}

/// How rights of a domain go to the process that goes on.
struct Way {
    to: SendRight,
    until: Instant,
    message: Message,
    /// Rights in it.
    rights: usize,
    wrong: Option<String>,
}

impl Way {
    fn new(to: SendRight) -> Self {
        Self {
            to,
            until: Instant::now() + HANDS,
            message: Message::default(),
            rights: 0,
            wrong: None,
        }
    }

    /// The next right; in the place of one that there is not, one that leads nowhere.
    fn right(&mut self, right: Option<Right>) {
        let right = right.unwrap_or_else(|| self.to.clone().into());
        if self.message.attach(right).is_err() {
            // It holds what is sealed for this process: it ends.
            let _ = self.message.attach(self.to.clone());
        }
        self.rights += 1;
        if self.rights >= MAX_RIGHTS {
            self.pass();
        }
    }

    fn pass(&mut self) {
        if std::mem::take(&mut self.rights) > 0 {
            let message = std::mem::take(&mut self.message);
            self.message(message);
        }
    }

    fn message(&mut self, message: Message) {
        let when_full = WhenFull::Wait(Deadline::at(self.until));
        if let Err(refused) = self.to.send(message, when_full) {
            let why = format!(
                "the process that goes on does not take rights: {}",
                refused.why
            );
            self.wrong.get_or_insert(why);
        }
    }
}
