//! A running node: its listener, its links, its domains, its sockets for commands and programs.
//!
//! One thread waits for all of them, and drives the [engine](crate::engine) that carries messages.
//! Names are looked up beside it, and domains joined, because that may take long.
//!
//! # Invariants
//!
//! - **U1** With each peer there is at most one link: the protocol keeps one of those that cross.
//! - **U2** A node id stands for one running node: a second one with the same id is refused, and
//!   the audit log says so.
//! - **U3** A peer that is silent is *unreachable* after `silent_after`, and after `dead_after` it is
//!   given up.

mod control;
mod dial;
mod members;
mod programs;
mod spans;
mod status;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_abi::join::JoinOutcome;
use portolan_proto::node::Settings;
use portolan_sys::process::{EventFd, poll, random};
use portolan_transport::clock::Clock;
use portolan_transport::tls::{Certificate, Cluster, LinkOptions, links};
use portolan_transport::{
    Address, Connection, Listener, Moment, NodeId, Peer, Tcp, Transport, TransportError,
};

pub use control::{Ask, ask};
pub use status::{PeerState, PeerStatus, SpanState, SpanStatus, Status};

use crate::audit::{self, Event};
use crate::authority::{self, Authority, renew_at};
use crate::config::Config;
use crate::ending::Ending;
use crate::engine::{Engine, Happened, Report};
use crate::join::{Guest, Rates};
use crate::state::{Running, State};
use crate::{NodeError, Result};
use control::Control;
use dial::{Dial, Phase};
use members::Members;
use programs::Programs;
use spans::Spans;

/// Newcomers that are let in at once, at most.
const MOST_GUESTS: usize = 16;
/// How often it looks at its certificate, which a jump of the clock may end.
const LOOK: Duration = Duration::from_secs(60);
/// How long what programs have sent has to arrive before the farewell; the unit in deploy/ gives longer.
const DRAIN: Duration = Duration::from_secs(5);
/// How long links have to take the farewell.
const FAREWELL: Duration = Duration::from_secs(1);
/// Refusals that are written to the audit log, at most, each minute: strangers must not fill a disk.
const MOST_REFUSALS: u32 = 60;

/// Runs the node of a state directory until it is asked to end. `ready` is called once it listens,
/// with its status.
///
/// # Errors
///
/// [`NodeError::NotMade`], [`NodeError::InUse`], [`NodeError::Config`], [`NodeError::Transport`]:
/// it cannot listen.
pub fn run(state: &State, clock: Arc<dyn Clock>, ready: impl FnOnce(&Status)) -> Result<()> {
    let mut node = Node::new(state, clock)?;
    let ending = Ending::catch()?;
    let status = node.status();
    ready(&status);
    while !node.ending {
        let is_called = node.wait(&ending)?;
        node.step(is_called);
        node.ending |= is_called && ending.came()?;
    }
    node.leave();
    Ok(())
}

#[derive(Debug)]
struct Node {
    state: State,
    config: Config,
    clock: Arc<dyn Clock>,
    running: Running,
    id: NodeId,
    engine: Engine,
    spans: Spans,
    programs: Programs,
    cluster: Cluster,
    transport: Tcp,
    listener: Box<dyn Listener>,
    dials: Vec<Dial>,
    members: Members,
    guests: Vec<Guest>,
    rates: Rates,
    /// There, but while it answers.
    control: Option<Control>,
    /// Names have been looked up, or domains joined.
    names: Arc<EventFd>,
    certificate: Certificate,
    looks_at: Duration,
    /// Refusals of this minute.
    refusals: u32,
    /// Nodes whose link is gone, and since when.
    lost: BTreeMap<NodeId, Duration>,
    ending: bool,
}

impl Node {
    fn new(state: &State, clock: Arc<dyn Clock>) -> Result<Self> {
        let config = state.config()?;
        // Before the incarnation is used up: what can be wrong is looked at first.
        let identity = authority::identity(state)?;
        let certificate = Certificate::read(&identity.certificate)?;
        let cluster = authority::cluster(state)?;
        let running = state.run()?;
        let options = LinkOptions {
            newcomers: true,
            only: None,
        };
        let transport = links(&cluster, options, Arc::clone(&clock));
        let listener = transport.listen(&Address::Internet(config.listen))?;
        let now = clock.now();
        let event = EventFd::new().map_err(NodeError::system("cannot make a descriptor"))?;
        let dials = config.peers.iter();
        let authorities = authority::authorities(state)?;
        let first = authorities.first().ok_or_else(|| NodeError::Damaged {
            path: state.file("authority.crt"),
            what: "there is no certificate in it".to_owned(),
        })?;
        let mut settings = Settings::new(
            cluster.node(),
            running.incarnation,
            // What nodes of one cluster have in common.
            Certificate::read(first)?.key,
        );
        settings.run = random().map_err(NodeError::system("cannot draw a number"))?;
        settings.silent_after = config.silent_after;
        settings.dead_after = config.dead_after;
        settings.ping_after = settings.ping_after.min(config.silent_after / 3);
        let engine = Engine::new(settings, &config.name).map_err(|name| NodeError::Wrong {
            what: format!("{name:?} is no name of a node"),
        })?;
        let mut node = Self {
            dials: dials.map(|peer| Dial::new(peer.clone(), now)).collect(),
            control: Some(Control::new(state)?),
            programs: Programs::new(state)?,
            spans: Spans::new(&config.spans),
            engine,
            id: cluster.node(),
            names: Arc::new(event),
            state: state.clone(),
            guests: Vec::new(),
            members: Members::default(),
            rates: Rates::default(),
            looks_at: now,
            refusals: 0,
            ending: false,
            lost: BTreeMap::new(),
            config,
            clock,
            running,
            cluster,
            transport,
            listener,
            certificate,
        };
        node.look();
        node.tell_members();
        Ok(node)
    }

    fn today(&self) -> Moment {
        Moment {
            seconds: self.clock.of_day().as_secs(),
        }
    }

    /// Waits until something can go on. Whether anything but messages can: they come often, and each
    /// of the others costs a system call to ask.
    fn wait(&self, ending: &Ending) -> Result<bool> {
        let mut fds: Vec<BorrowedFd<'_>> = ending.descriptors().collect();
        fds.push(self.names.as_fd());
        fds.push(self.listener.descriptor());
        fds.extend(self.control.iter().flat_map(Control::descriptors));
        fds.extend(self.programs.descriptors());
        fds.extend(
            self.guests
                .iter()
                .map(|guest| guest.connection().descriptor()),
        );
        let dials = self.dials.iter().filter_map(Dial::connection);
        fds.extend(dials.map(|connection| connection.descriptor()));
        let others = fds.len();
        fds.extend(self.engine.descriptors());
        let now = self.clock.now();
        let dials = self.dials.iter().filter_map(Dial::wake_at);
        let wakes = dials
            .chain(self.guests.iter().map(Guest::until))
            .chain(self.listener.wake_at())
            .chain(self.control.as_ref().and_then(|it| it.wake_at(now)))
            .chain(self.programs.wake_at())
            .chain(self.spans.wake_at());
        let due = wakes.chain([self.looks_at]).min().unwrap_or(now);
        let wake = self.engine.wake_at().map_or(due, |wake| wake.min(due));
        let by = Instant::now() + wake.saturating_sub(now);
        let ready = poll(&fds, Some(by)).map_err(NodeError::system("cannot wait"))?;
        let is_called = ready.iter().take(others).any(|ready| ready.any());
        Ok(is_called || self.clock.now() >= due)
    }

    /// Goes on with messages and, if it is called, with all else.
    fn step(&mut self, is_called: bool) {
        if is_called {
            // Counted wakes say nothing more than that there were some.
            let _ = self.names.drain();
            self.take_connections();
            self.let_in();
            self.dial();
        }
        self.engine.step(self.clock.now());
        self.hear_engine();
        if is_called {
            self.keep_spans();
            self.answer_commands();
        }
        if self.clock.now() >= self.looks_at {
            self.look();
        }
    }

    /// Takes what the listener has, and notes what it has refused.
    fn take_connections(&mut self) {
        loop {
            match self.listener.accept() {
                Ok(Some(connection)) => self.take(connection),
                Ok(None) => return,
                Err(TransportError::Refused { from, reason }) => {
                    self.refused(&from.to_string(), &reason.to_string());
                }
                Err(other) => {
                    self.log(&format!("cannot accept connections: {other}"));
                    return;
                }
            }
        }
    }

    fn take(&mut self, connection: Box<dyn Connection>) {
        let now = self.clock.now();
        let remote = connection.remote();
        let from = remote.as_ref().map(ToString::to_string).unwrap_or_default();
        match connection.peer() {
            Peer::Node(node) => self.adopt(connection, node, false),
            Peer::Newcomer => {
                let ip = match remote {
                    Some(Address::Internet(address)) => address.ip(),
                    _ => IpAddr::from([0, 0, 0, 0]),
                };
                let busy = self.guests.len() >= MOST_GUESTS || !self.rates.allow(ip, now);
                let Ok(mut guest) = Guest::new(connection, from.clone(), now) else {
                    return;
                };
                if busy {
                    self.refused(&from, crate::join::in_words(JoinOutcome::Busy));
                    guest.refuse(JoinOutcome::Busy);
                }
                if self.guests.len() < MOST_GUESTS {
                    self.guests.push(guest);
                }
            }
            Peer::Unknown => {}
        }
    }

    fn let_in(&mut self) {
        let (state, clock) = (&self.state, &self.clock);
        self.guests.retain_mut(|guest| !guest.step(state, &**clock));
    }

    fn dial(&mut self) {
        let now = self.clock.now();
        for at in 0..self.dials.len() {
            let dial = &mut self.dials[at];
            if let Some((connection, node)) = dial.step(&self.transport, now, &self.names) {
                dial.linked(now);
                if node == self.id {
                    // A peer list may name this node too: that is asked again rarely.
                    let why = "this node itself, or another with a copy of its key, answers there";
                    self.dials[at].fail(now + LOOK, why.to_owned());
                } else {
                    self.adopt(connection, node, true);
                }
            }
        }
    }

    /// Has a link with `node` from now on, unless there is a better one (U1).
    fn adopt(&mut self, connection: Box<dyn Connection>, node: NodeId, ours: bool) {
        let now = self.clock.now();
        if node == self.id {
            let remote = connection.remote();
            let from = remote.map(|r| r.to_string()).unwrap_or_default();
            return self.refused(
                &from,
                "it has the key of this node: two nodes have one identity",
            );
        }
        match self.engine.adopt(now, connection, node, ours) {
            Ok(()) => {}
            Err(why) => return self.log(&format!("refused a link with {node}: {why}")),
        }
        for dial in self.dials.iter_mut().filter(|dial| dial.node == Some(node)) {
            dial.linked(now);
        }
    }

    /// The link with a node is gone.
    fn lost(&mut self, node: NodeId, why: &str) {
        let now = self.clock.now();
        let name = self.engine.name_of(node);
        self.log(&format!("lost the link with {name} ({node}): {why}"));
        self.lost.entry(node).or_insert(now);
        for dial in &mut self.dials {
            if dial.node == Some(node) && matches!(dial.phase, Phase::Linked) {
                dial.lost(now, why.to_owned());
            }
        }
    }

    /// Does what follows from what the engine has met.
    fn hear_engine(&mut self) {
        for happened in self.engine.happened() {
            match happened {
                Happened::Linked { node, name } => {
                    self.lost.remove(&node);
                    self.log(&format!("linked with {name} ({node})"));
                }
                Happened::Lost {
                    node,
                    why,
                    is_linked: false,
                } => self.lost(node, &why),
                Happened::Lost { .. } => {}
                Happened::Refused { node, why } => {
                    self.refused(&node.to_string(), &why);
                    for dial in self.dials.iter_mut().filter(|it| it.node == Some(node)) {
                        dial.failure = Some(why.clone());
                    }
                }
                Happened::Members {
                    node,
                    remote,
                    members,
                } => self.hear_of_members(node, remote.as_ref(), members),
                Happened::Over {
                    node,
                    why,
                    left,
                    lost,
                } => {
                    self.lost.remove(&node);
                    self.member_is_gone(node, !left);
                    self.log(&format!("the association with {node} is over: {why}"));
                    if lost > 0 {
                        self.log(&format!(
                            "{lost} messages of programs here are lost with {node}"
                        ));
                    }
                }
                Happened::Renew { node, request } => match self.sign(node, &request) {
                    Ok(certificate) => self.engine.renewed(node, &certificate),
                    Err(error) => self.log(&format!("cannot renew {node}: {error}")),
                },
                Happened::Renewed { certificate } => match self.keep_renewed(&certificate) {
                    Ok(()) => self.log("the certificate was renewed"),
                    Err(error) => self.log(&format!("cannot keep a certificate: {error}")),
                },
                Happened::SpanLost { domain, why } => {
                    self.log(&format!("lost the domain {domain}: {why}"));
                    self.spans.lost(&domain, &why, self.clock.now());
                }
            }
        }
        self.see_who_is_back();
    }

    /// Says whose link is there again, with all that was between the two.
    fn see_who_is_back(&mut self) {
        let is_back = |node: &NodeId| self.engine.is_linked(*node);
        let back: Vec<NodeId> = self.lost.keys().copied().filter(is_back).collect();
        for node in back {
            let since = self.lost.remove(&node).unwrap_or_default();
            let away = self.clock.now().saturating_sub(since).as_secs_f64();
            let name = self.engine.name_of(node);
            self.log(&format!(
                "linked again with {name} ({node}) after {away:.1} s"
            ));
        }
    }

    /// Joins the domains that are to be spanned, and leaves those that are not.
    fn keep_spans(&mut self) {
        let now = self.clock.now();
        let said = self.spans.step(&mut self.engine, &self.names, now);
        said.iter().for_each(|line| self.log(line));
        self.programs.step(now, &mut self.spans, &self.engine);
    }

    /// Signs a peer's key again. It is the key that it has shown, and no other.
    fn sign(&self, node: NodeId, request: &[u8]) -> Result<Vec<u8>> {
        let key = authority::read_request(request)?;
        let authority = Authority::load(&self.state)?;
        let name = self.engine.name_of(node);
        let certificate = authority.sign(&name, &key, self.today())?;
        if Certificate::read(&certificate)?.node() != node {
            return Err(NodeError::Wrong {
                what: "it asks for the certificate of another key than its own".to_owned(),
            });
        }
        let event = Event::Renewed {
            node: audit::id(node),
        };
        audit::note(&self.state, self.today(), &event)?;
        Ok(certificate)
    }

    fn keep_renewed(&mut self, certificate: &[u8]) -> Result<()> {
        // It must be one that peers accept: of an authority that this node believes.
        let identity = {
            let mut identity = authority::identity(&self.state)?;
            identity.certificate = certificate.to_vec();
            identity
        };
        self.cluster
            .replace(&identity, &authority::authorities(&self.state)?)?;
        authority::renew(&self.state, certificate)?;
        self.certificate = Certificate::read(certificate)?;
        Ok(())
    }

    /// Looks at the certificate, and renews it when two thirds of its time are over.
    fn look(&mut self) {
        self.looks_at = self.clock.now() + LOOK;
        self.refusals = 0;
        self.sweep_members();
        let now = self.today();
        // What cannot be swept now is refused by its time.
        let _ = crate::invitations::sweep(&self.state, now);
        if now < renew_at(&self.certificate) {
            return;
        }
        let renewed = if self.state.has("authority.key") {
            authority::renew_own(&self.state, now)
                .and_then(|identity| self.keep_renewed(&identity.certificate))
        } else {
            self.ask_renewal()
        };
        if let Err(error) = renewed {
            self.log(&format!(
                "the certificate expires at {} and cannot be renewed: {error}",
                self.certificate.not_after
            ));
        }
    }

    /// Asks all peers; those that have the authority's key answer.
    fn ask_renewal(&mut self) -> Result<()> {
        let request = authority::request_again(&self.state)?;
        self.engine.ask_renewal(&request);
        Ok(())
    }

    fn answer_commands(&mut self) {
        let now = self.clock.now();
        let mut asked = Vec::new();
        // The answer needs all of the node, so the control socket is put aside meanwhile. What is not
        // asked for is not looked at: this is called whenever anything has happened.
        let Some(mut control) = self.control.take() else {
            return;
        };
        control.step(now, |ask| {
            asked.push(ask);
            match ask {
                Ask::Status => serde_json::to_string(&self.status()).unwrap_or_default(),
                Ask::Reload | Ask::Leave => "{}".to_owned(),
            }
        });
        self.control = Some(control);
        for ask in asked {
            match ask {
                Ask::Status => {}
                Ask::Reload => self.reload(),
                Ask::Leave => self.ending = true,
            }
        }
    }

    /// Looks again at whom it refuses, whose links end, and which domains are to be spanned.
    fn reload(&mut self) {
        let forgotten = match self.state.forgotten() {
            Ok(forgotten) => forgotten,
            Err(error) => return self.log(&format!("cannot read whom to refuse: {error}")),
        };
        self.cluster.forget(forgotten.iter().copied());
        let now = self.clock.now();
        for node in forgotten {
            self.engine.forget(now, node);
            self.member_is_gone(node, false);
        }
        match self.state.config() {
            Ok(config) => {
                self.spans.want(&config.spans, now);
                self.config.spans = config.spans;
            }
            Err(error) => self.log(&format!("cannot read node.toml again: {error}")),
        }
    }

    fn refused(&mut self, from: &str, why: &str) {
        self.refusals += 1;
        if self.refusals > MOST_REFUSALS {
            return;
        }
        self.log(&format!("refused {from}: {why}"));
        let event = Event::Refused {
            from: from.to_owned(),
            why: why.to_owned(),
        };
        if let Err(error) = audit::note(&self.state, self.today(), &event) {
            self.log(&format!("cannot write the audit log: {error}"));
        }
    }

    fn log(&self, what: &str) {
        eprintln!("{} {what}", self.today());
    }

    /// Waits for a while until what programs here have sent is in the ports of nodes that are there,
    /// says farewell to all peers, and ends.
    fn leave(&mut self) {
        let until = self.clock.now() + DRAIN;
        while self.clock.now() < until && self.engine.undelivered() > 0 {
            self.engine.step(self.clock.now());
            std::thread::sleep(Duration::from_millis(1));
        }
        let undelivered = self.engine.undelivered();
        let until = self.clock.now() + FAREWELL;
        self.engine.leave(self.clock.now());
        while self.clock.now() < until && !self.engine.is_alone() {
            self.engine.step(self.clock.now());
            std::thread::sleep(Duration::from_millis(1));
        }
        match undelivered {
            0 => self.log("left"),
            some => self.log(&format!(
                "left; {some} messages of programs here were not delivered within {} s",
                DRAIN.as_secs()
            )),
        }
    }

    fn status(&mut self) -> Status {
        let now = self.clock.now();
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        // A peer is told of once: with what is said of its connection, if that is made anew.
        let dial_of = |node: NodeId| self.dials.iter().find(|dial| dial.node == Some(node));
        let Report {
            spans,
            peers,
            left_behind,
            lost,
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
                sent_bytes: peer.bytes.0,
                received_bytes: peer.bytes.1,
                in_flight_bytes: peer.in_flight.0,
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
            sent_bytes: 0,
            received_bytes: 0,
            in_flight_bytes: 0,
            failure: dial.failure.clone(),
        });
        let forgotten = self.state.forgotten().unwrap_or_default();
        Status {
            node: self.id.to_string(),
            name: self.config.name.clone(),
            incarnation: self.running.incarnation,
            listen: self.listener.address().to_string(),
            certificate_until: self.certificate.not_after.to_string(),
            renews_at: renew_at(&self.certificate).to_string(),
            authority: self.state.has("authority.key"),
            forgotten: forgotten.iter().map(ToString::to_string).collect(),
            peers: linked.into_iter().chain(dialled).collect(),
            spans,
            left_behind,
            lost,
        }
    }
}
