//! A running node: its listener, its links, its control socket.
//!
//! One thread waits for all of them. Names are looked up beside it, because that may take long.
//!
//! # Invariants
//!
//! - **U1** With each peer there is at most one link. Of two that cross, both sides keep the one
//!   that the node with the smaller id has connected.
//! - **U2** A node id stands for one running node: a second one with the same id is refused, and
//!   the audit log says so.
//! - **U3** A peer that is silent is *unreachable* after `silent_after`, and after `dead_after` its
//!   link is given up.

mod control;
mod dial;
mod link;
mod status;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_abi::join::JoinOutcome;
use portolan_sys::process::{EventFd, poll, random};
use portolan_sys::watch::UnixSignal;
use portolan_transport::clock::Clock;
use portolan_transport::tls::{Certificate, Cluster, LinkOptions, links};
use portolan_transport::{
    Address, Connection, Listener, Moment, NodeId, Peer, Tcp, Transport, TransportError,
};

pub use control::{Ask, ask};
pub use status::{PeerState, PeerStatus, Status};

use crate::audit::{self, Event};
use crate::authority::{self, Authority, renew_at};
use crate::config::Config;
use crate::join::{Guest, Rates};
use crate::state::{Running, State};
use crate::{NodeError, Result};
use control::Control;
use dial::{Dial, Phase};
use link::{Asked, Hello, Link};

/// Newcomers that are let in at once, at most.
const MOST_GUESTS: usize = 16;
/// Links, at most: each has two descriptors and its buffers in the kernel.
const MOST_LINKS: usize = 256;
/// How often it looks at its certificate, which a jump of the clock may end.
const LOOK: Duration = Duration::from_secs(60);
/// How long links have to take the farewell.
const FAREWELL: Duration = Duration::from_secs(1);
/// Refusals that are written to the audit log, at most, each minute: strangers must not fill a disk.
const MOST_REFUSALS: u32 = 60;

/// SIGINT and SIGTERM.
const ENDING: [i32; 2] = [2, 15];

/// Runs the node of a state directory until it is asked to end. `ready` is called once it listens,
/// with its status.
///
/// # Errors
///
/// [`NodeError::NotMade`], [`NodeError::InUse`], [`NodeError::Config`], [`NodeError::Transport`]:
/// it cannot listen.
pub fn run(state: &State, clock: Arc<dyn Clock>, ready: impl FnOnce(&Status)) -> Result<()> {
    let mut node = Node::new(state, clock)?;
    let signals = ENDING.map(UnixSignal::catch);
    let [first, second] = signals;
    let failed = || NodeError::system("cannot catch SIGINT and SIGTERM");
    let signals = [first.map_err(failed())?, second.map_err(failed())?];
    ready(&node.status());
    while !node.ending {
        node.wait(&signals)?;
        node.step();
        for signal in &signals {
            node.ending |= signal.came().map_err(failed())? > 0;
        }
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
    run: [u8; 16],
    id: NodeId,
    cluster: Cluster,
    transport: Tcp,
    listener: Box<dyn Listener>,
    dials: Vec<Dial>,
    links: Vec<Link>,
    guests: Vec<Guest>,
    rates: Rates,
    control: Control,
    /// Names have been looked up.
    names: Arc<EventFd>,
    /// The highest incarnation that each peer has shown, and which run that was (U2).
    seen: BTreeMap<NodeId, (u64, [u8; 16])>,
    certificate: Certificate,
    looks_at: Duration,
    /// Refusals of this minute.
    refusals: u32,
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
        let mut node = Self {
            dials: dials.map(|peer| Dial::new(peer.clone(), now)).collect(),
            control: Control::new(state)?,
            run: random().map_err(NodeError::system("cannot draw a number"))?,
            id: cluster.node(),
            names: Arc::new(event),
            state: state.clone(),
            links: Vec::new(),
            guests: Vec::new(),
            rates: Rates::default(),
            seen: BTreeMap::new(),
            looks_at: now,
            refusals: 0,
            ending: false,
            config,
            clock,
            running,
            cluster,
            transport,
            listener,
            certificate,
        };
        node.look();
        Ok(node)
    }

    fn own(&self) -> Hello {
        Hello {
            name: self.config.name.clone(),
            incarnation: self.running.incarnation,
            run: self.run,
        }
    }

    fn today(&self) -> Moment {
        Moment {
            seconds: self.clock.of_day().as_secs(),
        }
    }

    /// Waits until something can go on.
    fn wait(&self, signals: &[UnixSignal]) -> Result<()> {
        let mut fds: Vec<BorrowedFd<'_>> = signals.iter().map(|s| s.as_fd()).collect();
        fds.push(self.names.as_fd());
        fds.push(self.listener.descriptor());
        fds.extend(self.control.descriptors());
        fds.extend(self.links.iter().map(|link| link.connection.descriptor()));
        fds.extend(
            self.guests
                .iter()
                .map(|guest| guest.connection().descriptor()),
        );
        let dials = self.dials.iter().filter_map(Dial::connection);
        fds.extend(dials.map(|connection| connection.descriptor()));
        let now = self.clock.now();
        let wakes = self.links.iter().map(Link::wake_at);
        let wakes = wakes
            .chain(self.dials.iter().filter_map(Dial::wake_at))
            .chain(self.guests.iter().map(Guest::until))
            .chain(self.listener.wake_at())
            .chain(self.control.wake_at(now));
        let wake = wakes.chain([self.looks_at]).min().unwrap_or(now);
        let by = Instant::now() + wake.saturating_sub(now);
        poll(&fds, Some(by)).map_err(NodeError::system("cannot wait"))?;
        Ok(())
    }

    fn step(&mut self) {
        // Counted wakes say nothing more than that there were some.
        let _ = self.names.drain();
        self.take_connections();
        self.let_in();
        self.dial();
        self.keep_links();
        self.answer_commands();
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
        let other = self.links.iter().position(|link| link.node == node);
        if let Some(other) = other {
            let by_smaller = |ours: bool| ours == (self.id < node);
            // Of two the same way the later one counts: the peer has given the other up.
            if self.links[other].ours != ours && !by_smaller(ours) {
                return;
            }
            self.links.swap_remove(other);
        } else if self.links.len() >= MOST_LINKS {
            return self.log(&format!(
                "refused a link with {node}: there are {MOST_LINKS}"
            ));
        }
        match Link::new(connection, node, ours, self.own(), now) {
            Ok(link) => self.links.push(link),
            Err(why) => self.lost(node, &why.to_string()),
        }
        for dial in self.dials.iter_mut().filter(|dial| dial.node == Some(node)) {
            dial.linked(now);
        }
    }

    /// The link with a node is gone.
    fn lost(&mut self, node: NodeId, why: &str) {
        let now = self.clock.now();
        self.log(&format!("lost the link with {node}: {why}"));
        for dial in &mut self.dials {
            if dial.node == Some(node) && matches!(dial.phase, Phase::Linked) {
                dial.lost(now, why.to_owned());
            }
        }
    }

    fn keep_links(&mut self) {
        let now = self.clock.now();
        let mut at = 0;
        while at < self.links.len() {
            let stepped = self.links[at].step(now);
            let node = self.links[at].node;
            let over = match stepped {
                Ok(asked) => self.do_asked(at, asked),
                Err(why) => Some(why.to_string()),
            };
            let silent = now.saturating_sub(self.links[at].heard);
            let given_up = self.config.dead_after.is_some_and(|dead| silent >= dead);
            let over = over.or(given_up.then(|| "it was silent for too long".to_owned()));
            match over {
                Some(why) => {
                    self.links.swap_remove(at);
                    self.lost(node, &why);
                }
                None => at += 1,
            }
        }
    }

    /// Does what a peer has asked for; why its link is over, if it is.
    fn do_asked(&mut self, at: usize, asked: Vec<Asked>) -> Option<String> {
        for one in asked {
            let node = self.links[at].node;
            match one {
                Asked::Hello(hello) => {
                    if !self.is_one(node, &hello) {
                        let why = "two nodes have its identity, or its state is an old copy";
                        self.refused(&node.to_string(), why);
                        return Some(why.to_owned());
                    }
                    self.log(&format!("linked with {} ({node})", hello.name));
                }
                Asked::Bye => return Some("it has left".to_owned()),
                Asked::Renew(request) => match self.sign(node, at, &request) {
                    Ok(certificate) => self.links[at].renewed(&certificate),
                    Err(error) => self.log(&format!("cannot renew {node}: {error}")),
                },
                Asked::Renewed(certificate) => match self.keep_renewed(&certificate) {
                    Ok(()) => self.log("the certificate was renewed"),
                    Err(error) => self.log(&format!("cannot keep a certificate: {error}")),
                },
            }
        }
        None
    }

    /// Whether a node is the only one with its id, as far as this one has seen (U2).
    fn is_one(&mut self, node: NodeId, hello: &Hello) -> bool {
        let shown = (hello.incarnation, hello.run);
        match self.seen.get(&node) {
            Some(seen) if seen.0 > shown.0 || (seen.0 == shown.0 && seen.1 != shown.1) => false,
            _ => {
                self.seen.insert(node, shown);
                true
            }
        }
    }

    /// Signs a peer's key again. It is the key that it has shown, and no other.
    fn sign(&self, node: NodeId, at: usize, request: &[u8]) -> Result<Vec<u8>> {
        let key = authority::read_request(request)?;
        let authority = Authority::load(&self.state)?;
        let hello = self.links[at].hello.as_ref();
        let name = hello.map_or("node", |hello| &hello.name);
        let certificate = authority.sign(name, &key, self.today())?;
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
        for link in self.links.iter_mut().filter(|link| link.hello.is_some()) {
            link.ask_renewal(&request);
        }
        Ok(())
    }

    fn answer_commands(&mut self) {
        let now = self.clock.now();
        // The answer needs all of the node, and so the control socket is put aside.
        let mut asked = Vec::new();
        let status = serde_json::to_string(&self.status()).unwrap_or_default();
        self.control.step(now, |ask| {
            asked.push(ask);
            match ask {
                Ask::Status => status.clone(),
                Ask::Reload | Ask::Leave => "{}".to_owned(),
            }
        });
        for ask in asked {
            match ask {
                Ask::Status => {}
                Ask::Reload => self.reload(),
                Ask::Leave => self.ending = true,
            }
        }
    }

    /// Looks again at whom it refuses; links with those end.
    fn reload(&mut self) {
        let forgotten = match self.state.forgotten() {
            Ok(forgotten) => forgotten,
            Err(error) => return self.log(&format!("cannot read whom to refuse: {error}")),
        };
        self.cluster.forget(forgotten.iter().copied());
        let mut at = 0;
        while at < self.links.len() {
            let node = self.links[at].node;
            if forgotten.contains(&node) {
                self.links.swap_remove(at);
                self.lost(node, "it was forgotten");
            } else {
                at += 1;
            }
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

    /// Says farewell to all peers, and ends.
    fn leave(&mut self) {
        let until = self.clock.now() + FAREWELL;
        self.links.iter_mut().for_each(Link::leave);
        while self.clock.now() < until {
            let now = self.clock.now();
            // A link that has failed takes no farewell.
            self.links
                .retain_mut(|link| link.step(now).is_ok() && !link.has_said());
            if self.links.is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.log("left");
    }

    fn status(&self) -> Status {
        let now = self.clock.now();
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let address_of = |node: NodeId| {
            let mut dials = self.dials.iter();
            let dial = dials.find(|d| d.node == Some(node) && matches!(d.phase, Phase::Linked));
            dial.map(|dial| dial.target.clone())
        };
        let linked = self.links.iter().map(|link| {
            let silent = now.saturating_sub(link.heard);
            let is_silent = silent >= self.config.silent_after;
            let since = if is_silent { link.heard } else { link.since };
            PeerStatus {
                node: Some(link.node.to_string()),
                name: link.hello.as_ref().map(|hello| hello.name.clone()),
                address: address_of(link.node),
                state: match (&link.hello, is_silent) {
                    (_, true) => PeerState::Unreachable,
                    (None, false) => PeerState::Connecting,
                    (Some(_), false) => PeerState::Up,
                },
                for_ms: millis(now.saturating_sub(since)),
                round_trip_us: link.round_trip.map(micros),
                failure: None,
            }
        });
        let dialled = self
            .dials
            .iter()
            .filter(|dial| !matches!(dial.phase, Phase::Linked));
        let dialled = dialled.map(|dial| PeerStatus {
            node: dial.node.map(|node| node.to_string()),
            name: None,
            address: Some(dial.target.clone()),
            state: match dial.phase {
                Phase::Waiting(_) if dial.failure.is_some() => PeerState::Waiting,
                _ => PeerState::Connecting,
            },
            for_ms: millis(now.saturating_sub(dial.since)),
            round_trip_us: None,
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
            peers: linked.chain(dialled).collect(),
        }
    }
}
