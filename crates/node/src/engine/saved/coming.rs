//! What this process takes over from the one that was the node before, and how it goes on with that.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use portolan::proxy::{Answer, Awaited, KnownPort, ProxyPort};
use portolan::{Access, Deadline, Domain, Message, ReceiveRight, Right, SendRight};
use portolan_proto::node::{self, DomainKey, Node, PortKey, RequestKey, Settings};

use super::super::Engine;
use super::super::machine::{Asking, Lent, Waits, time};
use super::super::payload::Payload;
use super::super::spans::{Span, Thing};
use super::{HANDS, SavedAsking, SavedEngine, SavedLent, SavedOnce, SavedServing, SavedWaits};
use crate::config;

/// What has come by messages in a domain.
#[derive(Debug, Default)]
pub(in crate::engine) struct Came {
    rights: VecDeque<Right>,
    messages: VecDeque<Message>,
}

impl Came {
    /// So many rights, and messages.
    fn take(port: &mut ReceiveRight, rights: usize, messages: usize) -> Result<Self, String> {
        let until = Deadline::after(HANDS);
        let mut came = Self::default();
        let mut next = || {
            let message = port.receive(Access::Later, until);
            message.map_err(|error| format!("what the process of before hands over: {error}"))
        };
        while came.rights.len() < rights {
            came.rights.extend(next()?.take_rights());
        }
        for _ in 0..messages {
            came.messages.push_back(next()?);
        }
        Ok(came)
    }

    /// The right to receive at the port of this number, which is next; `None` if it could not go over.
    pub(in crate::engine) fn receive(&mut self, number: u64) -> Option<ReceiveRight> {
        match self.rights.pop_front() {
            Some(Right::Receive(port)) if KnownPort::at(&port).number() == number => Some(port),
            _ => None,
        }
    }

    /// The right to answer, which is next.
    pub(in crate::engine) fn answer(&mut self) -> Option<Answer> {
        match self.rights.pop_front() {
            Some(Right::SendOnce(right)) => Some(right.into()),
            _ => None,
        }
    }
}

/// A domain in which rights come.
#[derive(Debug)]
struct ComingIn {
    key: DomainKey,
    settings: config::Span,
    domain: Domain,
    port: ReceiveRight,
}

/// What comes from the process that was the node before.
#[derive(Debug)]
pub struct Coming {
    saved: SavedEngine,
    domains: Vec<ComingIn>,
    /// Rights that are kept, and on ports that peers send to.
    keeps: BTreeMap<RequestKey, SendRight>,
    awake: BTreeMap<PortKey, SendRight>,
    /// What has come by now.
    came: BTreeMap<DomainKey, Came>,
}

impl Coming {
    /// Looks whether it can go on with this, in these domains, where the rights come in at these ports. No
    /// right has come yet: if it cannot, the other process goes on.
    ///
    /// # Errors
    ///
    /// Why not.
    pub fn prepare(
        saved: SavedEngine,
        settings: Settings,
        domains: Vec<(config::Span, Domain, ReceiveRight)>,
    ) -> Result<Self, String> {
        let settings = saved.goes_on_by(settings);
        let units = vec![(); saved.payloads.len()];
        Node::restore(time(Duration::ZERO), settings, saved.node.clone(), units)
            .map_err(|why| why.to_string())?;
        let mut here = Vec::new();
        for (settings, domain, port) in domains {
            let mut all = saved.domains.iter();
            if let Some((key, _)) = all.find(|(_, name)| *name == settings.domain) {
                let key = *key;
                here.push(ComingIn {
                    key,
                    settings,
                    domain,
                    port,
                });
            }
        }
        if here.len() != saved.domains.len() {
            return Err("it was not told of a domain".to_owned());
        }
        let of = |key: DomainKey| here.iter().find(|it| it.key == key).map(|it| &it.domain);
        let right = |key, number| KnownPort::with_number(of(key)?, number)?.right();
        let keeps = saved.asking.iter().filter_map(|it| match it.waits {
            SavedWaits::Keep(number) => Some((it.request, right(it.domain, number)?)),
            SavedWaits::Answer | SavedWaits::Once => None,
        });
        let keeps = keeps.collect();
        let awake = saved.lent.iter().filter(|it| it.is_awake);
        let awake = awake.filter_map(|it| Some((it.port, right(it.domain, it.number)?)));
        let awake = awake.collect();
        Ok(Self {
            saved,
            domains: here,
            keeps,
            awake,
            came: BTreeMap::new(),
        })
    }

    /// The domains in which it goes on, as nodes call them.
    pub fn domains(&self) -> impl Iterator<Item = &str> {
        self.domains.iter().map(|it| it.settings.domain.as_str())
    }

    /// What the other process has said.
    pub fn saved(&self) -> &SavedEngine {
        &self.saved
    }

    /// Takes the rights that the other process hands over now.
    ///
    /// # Errors
    ///
    /// What has not come: then all of it ends.
    pub fn receive(&mut self) -> Result<(), String> {
        for it in &mut self.domains {
            let (saved, key) = (&self.saved, it.key);
            let payloads = saved.payloads.iter().filter(|of| **of == key).count();
            let its = Came::take(&mut it.port, saved.rights(key), payloads)?;
            self.came.insert(key, its);
        }
        Ok(())
    }

    /// Goes on with what has come, once the other process has left its domains.
    ///
    /// # Errors
    ///
    /// What is none: then all of it ends.
    pub fn finish(self, now: Duration, settings: Settings, name: &str) -> Result<Engine, String> {
        let Self {
            saved,
            domains,
            keeps,
            awake,
            mut came,
        } = self;
        let settings = saved.goes_on_by(settings);
        let mut engine = Engine::new(settings, name)?;
        engine.machine.now = now;
        for it in domains {
            let ComingIn {
                key,
                settings,
                domain,
                ..
            } = it;
            let span = Span::new(key, settings, domain, name)?;
            span.domain.prefer_to_host();
            engine.machine.spans.insert(key, span);
        }
        let payloads = saved.payloads.iter().map(|domain| {
            let message = came.get_mut(domain).and_then(|it| it.messages.pop_front());
            Payload::Goes(Rc::new(message.unwrap_or_default()))
        });
        let payloads = payloads.collect();
        let node_settings = *engine.node.settings();
        let node = Node::restore(time(now), node_settings, saved.node, payloads);
        engine.node = node.map_err(|why| why.to_string())?;
        engine.node.set_name(name)?;
        for span in engine.machine.spans.values() {
            engine.node.set_budget(span.key, span.most / 4);
        }
        engine.last_domain = saved.last_domain;
        let machine = &mut engine.machine;
        machine.last_port = saved.last_port;
        (machine.sent, machine.delivered) = (saved.sent, saved.delivered);
        machine.left_behind = saved.left_behind;
        let names = saved.names.into_iter();
        machine.names = names.map(|(node, name)| (node.0, name)).collect();
        let lost = saved.lost.into_iter();
        engine.proxies.lost = lost.map(|(node, lost)| (node.0, lost)).collect();
        engine.has_ports(saved.lent, awake);
        for proxy in saved.proxies {
            if let Some(came) = came.get_mut(&proxy.domain) {
                engine.proxy_again(proxy, came);
            }
        }
        engine.has_numbered_proxies(saved.last_proxy);
        for once in saved.onces {
            let port = came
                .get_mut(&once.domain)
                .and_then(|it| it.receive(once.number));
            engine.once_again(&once, port);
        }
        for serving in saved.serving {
            let came = came.get_mut(&serving.domain);
            let port = came.and_then(|it| it.receive(serving.number));
            engine.serves_again(&serving, port);
        }
        engine.asks_again(saved.asking, keeps, &mut came);
        engine.tell_nodes();
        engine.goes_on = true;
        Ok(engine)
    }
}

impl Engine {
    fn has_ports(&mut self, lent: Vec<SavedLent>, mut awake: BTreeMap<PortKey, SendRight>) {
        for saved in lent {
            let port = saved.port;
            let span = self.machine.spans.get(&saved.domain);
            let known = span.and_then(|span| KnownPort::with_number(&span.domain, saved.number));
            let Some(known) = known else {
                self.machine.dead.insert(port);
                continue;
            };
            let is_gone = known.right().is_none();
            let mut lent = Lent::new(saved.domain, &saved.name, known, saved.slots);
            lent.wants_senders = saved.wants_senders;
            lent.delivered = saved.delivered;
            lent.right = awake.remove(&port);
            self.machine.keep(port, lent);
            if is_gone {
                // It was closed while nobody was told.
                self.machine.dead.insert(port);
            } else if saved.is_awake {
                self.machine.has_room(port);
            }
        }
    }

    fn once_again(&mut self, saved: &SavedOnce, port: Option<ReceiveRight>) {
        let request = saved.request;
        let node = self.machine.name_of(request.peer);
        let port = port.and_then(|port| ProxyPort::new(port, &node).ok());
        let span = self.machine.spans.get_mut(&saved.domain);
        let token = port.and_then(|port| span?.add(port, Thing::Once(request)));
        match token {
            Some(_) => self.machine.arrivals.unsettled(request.peer),
            None => drop(self.node.answer(request, node::Answer::ServerDead)),
        }
    }

    fn serves_again(&mut self, saved: &SavedServing, port: Option<ReceiveRight>) {
        let request = saved.request;
        let node = self.machine.name_of(request.peer);
        let awaited = Awaited {
            number: saved.number,
            tag: saved.tag,
            left: saved.left,
        };
        let pending = port.and_then(|port| awaited.resume(port, &node).ok());
        let span = self.machine.spans.get_mut(&saved.domain);
        let token = pending.and_then(|pending| span?.add(pending, Thing::Serving(request)));
        if token.is_none() {
            let _ = self.node.answer(request, node::Answer::ServerDead);
        }
    }

    fn asks_again(
        &mut self,
        all: Vec<SavedAsking>,
        mut keeps: BTreeMap<RequestKey, SendRight>,
        came: &mut BTreeMap<DomainKey, Came>,
    ) {
        let now = self.protocol_time();
        for saved in all {
            let SavedAsking {
                request, domain, ..
            } = saved;
            let mut answer = || came.get_mut(&domain)?.answer();
            let what = match saved.waits {
                SavedWaits::Answer => answer().map(Waits::Answer),
                SavedWaits::Once => answer().map(Waits::Once),
                SavedWaits::Keep(_) => keeps.remove(&request).map(Waits::Keep),
            };
            match what {
                Some(what) => drop(self.machine.asking.insert(request, Asking { domain, what })),
                // Nobody waits for it, or the port that the right leads to is gone: that is said by its own.
                None if matches!(saved.waits, SavedWaits::Keep(_)) => {}
                None => self.node.abandon(now, request),
            }
        }
    }
}
