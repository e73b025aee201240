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

mod clients;
mod control;
pub(crate) mod dial;
mod disk;
mod guests;
mod inspections;
mod known;
mod log;
mod members;
mod metrics;
mod others;
mod programs;
mod reload;
mod replace;
mod replaced;
mod socket_file;
mod spans;
mod status;
mod trust;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_proto::node::Settings;
use portolan_sys::process::{EventFd, Poller};
use portolan_transport::clock::Clock;
use portolan_transport::tls::{Cluster, LinkOptions, links};
use portolan_transport::{
    Address, Connection, Listener, Moment, NodeId, Peer, Tcp, Transport, TransportError,
};

pub use control::{Ask, ask};
pub use log::LogFormat;
pub use status::{
    AuthorityStatus, PeerState, PeerStatus, RateStatus, SpanState, SpanStatus, Status, status,
};
pub use trust::state_in;

use crate::audit::{self, Event};
use crate::authority;
use crate::config::Config;
use crate::directory::{Directory, Seat, Static, of_config};
use crate::ending::Ending;
use crate::engine::{Engine, Happened, Report};
use crate::output::tell;
use crate::state::{Running, State};
use crate::{NodeError, Result};
use control::Control;
use dial::{Dial, Phase};
use disk::{Disk, Written};
use guests::Guests;
use inspections::Inspections;
use known::Known;
use members::Members;
use metrics::{Counts, Metrics};
use others::Others;
use programs::Programs;
use replace::{Replacing, Taken, Unanswered};
use spans::Spans;
use trust::Trust;

/// How often it looks at its certificate, which a jump of the clock may end.
const LOOK: Duration = Duration::from_secs(60);
/// How long what programs have sent has to arrive before the farewell; the unit in deploy/ gives longer.
const DRAIN: Duration = Duration::from_secs(5);
/// How often it answers commands meanwhile.
const COMMANDS: Duration = Duration::from_millis(20);
/// How long links have to take the farewell.
const FAREWELL: Duration = Duration::from_secs(1);
/// Refusals that are written to the audit log, at most, each minute: strangers must not fill a disk.
const MOST_REFUSALS: u32 = 60;

/// Whether a node that runs already is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// It is refused: one runs at a time.
    Alone,
    /// This process takes over from it, if one runs.
    Replace,
}

/// Runs the node of a state directory until it is asked to end. `ready` is called once it listens,
/// with its status.
///
/// # Errors
///
/// [`NodeError::NotMade`], [`NodeError::InUse`], [`NodeError::Config`], [`NodeError::Transport`]:
/// it cannot listen. [`NodeError::NotReplaced`].
pub fn run(
    state: &State,
    clock: Arc<dyn Clock>,
    start: Start,
    ready: impl FnOnce(&Status),
) -> Result<()> {
    run_with(state, clock, start, of_config, ready)
}

/// The same with a directory that the caller makes, whatever node.toml says of it.
///
/// # Errors
///
/// As [`run`].
pub fn run_with(
    state: &State,
    clock: Arc<dyn Clock>,
    start: Start,
    directory: impl FnOnce(&Config, Seat) -> Box<dyn Directory>,
    ready: impl FnOnce(&Status),
) -> Result<()> {
    let mut node = Node::new(state, clock, start, directory)?;
    let ending = Ending::catch()?;
    let status = node.status();
    ready(&status);
    loop {
        let is_called = node.wait(&ending)?;
        node.step(is_called);
        node.ending |= is_called && ending.came()?;
        if node.is_to_go() {
            node = match node.let_replace()? {
                Some(node) => node,
                None => return Ok(()),
            };
        }
        if node.ending {
            node.leave();
            return Ok(());
        }
    }
}

#[derive(Debug)]
struct Node {
    state: State,
    config: Config,
    clock: Arc<dyn Clock>,
    /// Above the lock: it is done before that is let go of (K3).
    disk: Disk,
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
    directory: Box<dyn Directory>,
    known: Known,
    guests: Guests,
    /// There, but while it answers.
    control: Option<Control>,
    /// There, if counters are asked for, but while it answers.
    metrics: Option<Metrics>,
    counts: Counts,
    /// What commands ask peers.
    inspections: Inspections,
    /// Who has traced which domain, and when the log has said so, in the last minute.
    traced: BTreeMap<(NodeId, String), Duration>,
    /// Names have been looked up, or domains joined.
    names: Arc<EventFd>,
    trust: Trust,
    looks_at: Duration,
    /// Refusals of this minute.
    refusals: u32,
    /// Nodes whose link is gone, and since when.
    lost: BTreeMap<NodeId, Duration>,
    ending: bool,
    poller: Poller,
    others: Others,
    /// The process that is about to take over.
    replacing: Option<Replacing>,
}

impl Node {
    fn new(
        state: &State,
        clock: Arc<dyn Clock>,
        start: Start,
        directory: impl FnOnce(&Config, Seat) -> Box<dyn Directory>,
    ) -> Result<Self> {
        state.check()?;
        let config = state.config()?;
        // Before the incarnation is used up: what can be wrong is looked at first.
        let today = Moment {
            seconds: clock.of_day().as_secs(),
        };
        authority::check_key(state)?;
        let trust = Trust::new(state, today)?;
        let cluster = authority::cluster(state, today)?;
        let mut settings = Settings::new(
            cluster.node(),
            0,
            // What nodes of one cluster have in common, whichever node signs.
            trust.statements.cluster(),
        );
        settings.silent_after = config.silent_after;
        settings.dead_after = config.dead_after;
        settings.ping_after = settings.ping_after.min(config.silent_after / 3);
        settings.clock_at_zero = monotonic_at_zero(&*clock);
        let mut taken = match start {
            Start::Alone => Taken::default(),
            Start::Replace => replace::take(state, &config, settings)?,
        };
        let kept = taken.kept.take();
        let now = clock.now();
        let (running, mut engine) =
            replaced::begin(state, &config, settings, kept, now, &mut taken.ended)?;
        engine.set_rates(now, config.rates.clone());
        let options = LinkOptions {
            newcomers: true,
            ..LinkOptions::default()
        };
        let transport = links(&cluster, options, Arc::clone(&clock));
        let listener = match taken.listener_at(config.listen) {
            Some(socket) => transport.listen_on(socket)?,
            None => transport.listen(&Address::Internet(config.listen))?,
        };
        let event = EventFd::new().map_err(NodeError::system("cannot make a descriptor"))?;
        let event = Arc::new(event);
        let poller = Poller::new().map_err(NodeError::system("cannot make a descriptor"))?;
        let others = Others::new().map_err(NodeError::system("cannot make a descriptor"))?;
        let disk = Disk::new(state, Arc::clone(&event));
        let disk = disk.map_err(NodeError::system("cannot start a thread"))?;
        let dials = config.peers.iter();
        let mut node = Self {
            dials: dials.map(|peer| Dial::new(peer.clone(), now)).collect(),
            control: Some(Control::new(state, taken.control)?),
            programs: Programs::new(state, taken.programs)?,
            spans: Spans::new(&config.spans),
            metrics: config.metrics.map(Metrics::new).transpose()?,
            counts: Counts::default(),
            inspections: Inspections::default(),
            traced: BTreeMap::new(),
            engine,
            id: cluster.node(),
            names: Arc::clone(&event),
            state: state.clone(),
            guests: Guests::default(),
            members: Members::default(),
            directory: Box::new(Static),
            known: Known::default(),
            looks_at: now,
            refusals: 0,
            ending: false,
            lost: BTreeMap::new(),
            config,
            clock,
            disk,
            running,
            cluster,
            transport,
            listener,
            trust,
            poller,
            others,
            replacing: None,
        };
        node.state_all();
        node.look();
        for asked in taken.asked {
            let (domain, place) = asked.place();
            // What node.toml says of it comes first.
            let _ = node.spans.asked(&domain, &place, now);
        }
        node.goes_on(&taken.ended);
        let Unanswered { commands, programs } = taken.unanswered;
        if let Some(control) = &mut node.control {
            control.adopt(commands, now);
        }
        node.programs.adopt(programs, now);
        node.tell_members();
        // Last: nothing can go wrong any more.
        let seat = Seat {
            cluster: node.cluster.clone(),
            state: state.clone(),
            clock: Arc::clone(&node.clock),
            rings: event,
        };
        node.directory = directory(&node.config, seat);
        node.keep_directory();
        Ok(node)
    }

    fn today(&self) -> Moment {
        Moment {
            seconds: self.clock.of_day().as_secs(),
        }
    }

    /// Waits until something can go on. Whether anything but messages can: they come often, and each
    /// of the others costs a system call to ask.
    fn wait(&mut self, ending: &Ending) -> Result<bool> {
        let others = || {
            let mut fds: Vec<BorrowedFd<'_>> = ending.descriptors().collect();
            fds.push(self.names.as_fd());
            fds.push(self.listener.descriptor());
            fds.extend(self.control.iter().flat_map(Control::descriptors));
            fds.extend(self.programs.descriptors());
            fds.extend(self.metrics.iter().flat_map(Metrics::descriptors));
            fds.extend(self.replacing.iter().map(Replacing::descriptor));
            let guests = self.guests.connections();
            let dials = self.dials.iter().filter_map(Dial::connection);
            fds.extend(
                guests
                    .chain(dials)
                    .map(|connection| connection.descriptor()),
            );
            fds
        };
        let watched = self.others.watch(others);
        watched.map_err(NodeError::system("cannot watch a descriptor"))?;
        let now = self.clock.now();
        let dials = self.dials.iter().filter_map(Dial::wake_at);
        let wakes = dials
            .chain(self.guests.until())
            .chain(self.listener.wake_at())
            .chain(self.control.as_ref().and_then(|it| it.wake_at(now)))
            .chain(self.programs.wake_at())
            .chain(self.metrics.as_ref().and_then(|it| it.wake_at(now)))
            .chain(self.spans.wake_at())
            .chain(self.replacing.as_ref().map(|it| it.until))
            .chain(self.directory_at());
        let due = wakes.chain([self.looks_at]).chain(self.trust.cuts_at);
        let due = due.min().unwrap_or(now);
        let fired = self.sleep(now, due, true);
        let fired = fired.map_err(NodeError::system("cannot wait"))?;
        let is_called = fired.contains(&self.others.key());
        Ok(is_called || self.clock.now() >= due)
    }

    /// Sleeps until messages can go on, or all else if it is `called`, or it is `due`; what has fired.
    fn sleep(&mut self, now: Duration, due: Duration, called: bool) -> io::Result<Vec<u64>> {
        let others = called.then(|| self.others.on());
        let mut on: Vec<_> = others.into_iter().collect();
        let wake = self.engine.wake_at().map_or(due, |wake| wake.min(due));
        let by = Instant::now() + wake.saturating_sub(now);
        let expects_soon = self.engine.expects_soon();
        let by = self.engine.arm(&mut on).map_or(by, |due| due.min(by));
        let fired = match expects_soon {
            true => self.poller.look(&on, Some(by)),
            false => self.poller.poll(&on, Some(by)),
        }?;
        self.engine.fired(&fired);
        Ok(fired)
    }

    /// Goes on with messages and, if it is called, with all else.
    fn step(&mut self, is_called: bool) {
        if is_called {
            self.others.may_differ();
            // Counted wakes say nothing more than that there were some.
            let _ = self.names.drain();
            self.take_written();
            self.take_connections();
            self.let_in();
            self.dial();
        }
        self.engine.step(self.clock.now());
        self.hear_engine();
        if is_called {
            self.keep_spans();
            self.keep_directory();
            self.answer_commands();
            self.answer_metrics();
        }
        if self.clock.now() >= self.looks_at {
            self.others.may_differ();
            self.look();
        }
        if self.trust.cuts_at.is_some_and(|at| self.clock.now() >= at) {
            self.check_links_anew();
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
        match connection.peer() {
            Peer::Node(node) => self.adopt(connection, node, false),
            Peer::Directory(node) => self.directory.take(node, connection),
            Peer::Newcomer => self.take_guest(connection),
            Peer::Unknown => {}
        }
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
        let silent_after = self.config.silent_after;
        let name = self.engine.name_of(node);
        self.counts.links_lost += 1;
        self.log_of(node, &format!("lost the link with {name} ({node}): {why}"));
        self.lost.entry(node).or_insert(now);
        for dial in &mut self.dials {
            if dial.node == Some(node) && matches!(dial.phase, Phase::Linked) {
                dial.lost(now, silent_after, why.to_owned());
            }
        }
    }

    /// Does what follows from what the engine has met.
    fn hear_engine(&mut self) {
        for happened in self.engine.happened() {
            self.others.may_differ();
            match happened {
                Happened::Linked { node, name } => {
                    self.counts.links += 1;
                    self.lost.remove(&node);
                    self.log_of(node, &format!("linked with {name} ({node})"));
                    // It may be one that can renew the certificate.
                    if self.is_to_renew() {
                        self.looks_at = self.clock.now();
                    }
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
                    self.log_of(node, &format!("the association with {node} is over: {why}"));
                    if lost > 0 {
                        self.log(&format!(
                            "{lost} messages of programs here are lost with {node}"
                        ));
                    }
                }
                Happened::Renew { node, request } => self.renew_peer(node, &request),
                Happened::Renewed { certificate } => {
                    if let Err(error) = self.keep_renewed(&certificate) {
                        self.renewed(Err(error));
                    }
                }
                Happened::Stated { node, statement } => self.hear(node, &statement),
                Happened::Inspected { node, answer } => self.inspections.answered(node, answer),
                Happened::Traced { node, domain } => {
                    self.log_trace(node, &domain);
                }
                Happened::SpanLost { domain, why } => {
                    self.log(&format!("lost the domain {domain}: {why}"));
                    self.spans.lost(&domain, &why, self.clock.now());
                }
            }
        }
        self.see_who_is_back();
    }

    /// Says who traces a domain; the same one not each time, because a peer must not fill a log.
    fn log_trace(&mut self, node: NodeId, domain: &str) {
        let now = self.clock.now();
        self.traced.retain(|_, at| now.saturating_sub(*at) < LOOK);
        let key = (node, domain.to_owned());
        if self.traced.contains_key(&key) {
            return;
        }
        let name = match node == self.id {
            true => self.config.name.clone(),
            false => self.engine.name_of(node),
        };
        self.log_of(node, &format!("{name} ({node}) traces the domain {domain}"));
        self.traced.insert(key, now);
    }

    /// Says whose link is there again, with all that was between the two.
    fn see_who_is_back(&mut self) {
        let is_back = |node: &NodeId| self.engine.is_linked(*node);
        let back: Vec<NodeId> = self.lost.keys().copied().filter(is_back).collect();
        for node in back {
            let since = self.lost.remove(&node).unwrap_or_default();
            let away = self.clock.now().saturating_sub(since).as_secs_f64();
            let name = self.engine.name_of(node);
            let said = format!("linked again with {name} ({node}) after {away:.1} s");
            self.log_of(node, &said);
        }
    }

    /// Joins the domains that are to be spanned, and leaves those that are not.
    fn keep_spans(&mut self) {
        let now = self.clock.now();
        let said = self.spans.step(&mut self.engine, &self.names, now);
        said.iter().for_each(|line| self.log(line));
        self.programs.step(now, &mut self.spans, &self.engine);
    }

    fn answer_commands(&mut self) {
        let now = self.clock.now();
        let mut asked = Vec::new();
        self.take_written();
        // The answer needs all of the node, so the control socket is put aside meanwhile. What is not
        // asked for is not looked at: this is called whenever anything has happened.
        let Some(mut control) = self.control.take() else {
            return;
        };
        control.step(now, |ask| {
            let answer = match &ask {
                Ask::Status => serde_json::to_string(&self.status()).unwrap_or_default(),
                Ask::State { statement } => self.told(statement)?,
                Ask::Inspect { node, question } => self.inspect(node.as_deref(), question),
                Ask::Reload => self.reload(),
                Ask::Replace | Ask::Leave => "{}".to_owned(),
            };
            asked.push(ask);
            Some(answer)
        });
        self.control = Some(control);
        for ask in asked {
            match ask {
                Ask::Status
                | Ask::State { .. }
                | Ask::Inspect { .. }
                | Ask::Reload
                | Ask::Replace => {}
                Ask::Leave => self.ending = true,
            }
        }
    }

    fn answer_metrics(&mut self) {
        let now = self.clock.now();
        // As the control socket.
        let Some(mut metrics) = self.metrics.take() else {
            return;
        };
        metrics.step(now, || {
            let Report {
                sent, delivered, ..
            } = self.engine.report(now);
            self.counts.sent = sent;
            self.counts.delivered = delivered;
            self.counts.expires = self.trust.certificate.not_after.seconds;
            metrics::page(&self.status(), &self.counts)
        });
        self.metrics = Some(metrics);
    }

    fn refused(&mut self, from: &str, why: &str) {
        self.counts.refused += 1;
        self.refusals += 1;
        if self.refusals > MOST_REFUSALS {
            return;
        }
        self.log(&format!("refused {from}: {why}"));
        let event = Event::Refused {
            from: from.to_owned(),
            why: why.to_owned(),
        };
        self.note(event);
    }

    /// Adds a line to the audit log.
    fn note(&mut self, event: Event) {
        let today = self.today();
        self.disk
            .ask(move |state| Written::Noted(audit::note(state, today, &event)));
    }

    fn log(&self, what: &str) {
        self.write_log(what, None);
    }

    /// What is about a peer.
    fn log_of(&self, peer: NodeId, what: &str) {
        self.write_log(what, Some(peer));
    }

    fn write_log(&self, what: &str, peer: Option<NodeId>) {
        let (format, name) = (self.config.log, &self.config.name);
        tell(&log::line(format, self.today(), name, what, peer));
    }

    /// Goes on with messages, and answers commands, so long at the most.
    fn goes_on_until(&mut self, most: Duration, is_done: impl Fn(&mut Engine) -> bool) {
        let until = self.clock.now() + most;
        while self.clock.now() < until {
            self.engine.step(self.clock.now());
            self.answer_commands();
            if is_done(&mut self.engine) {
                return;
            }
            let now = self.clock.now();
            let due = until.min(now + COMMANDS);
            // Where it cannot sleep, it looks again at once.
            let _ = self.sleep(now, due, false);
        }
    }

    /// Waits for a while until what programs here have sent is in the ports of nodes that are there,
    /// says farewell to all peers, and ends.
    fn leave(&mut self) {
        self.goes_on_until(DRAIN, |engine| engine.undelivered() == 0);
        let undelivered = self.engine.undelivered();
        self.engine.leave(self.clock.now());
        self.goes_on_until(FAREWELL, |engine| engine.is_alone());
        self.directory.end();
        self.finish_writing();
        match undelivered {
            0 => self.log("left"),
            some => self.log(&format!(
                "left; {some} messages of programs here were not delivered within {} s",
                DRAIN.as_secs()
            )),
        }
    }
}

/// What the monotonic clock of this machine, that of traces and of all programs, showed when `clock`
/// began. By the shortest of a few looks, because a thread may lose its processor during one.
fn monotonic_at_zero(clock: &dyn Clock) -> Duration {
    let looks = (0..8).map(|_| {
        let before = clock.now();
        let monotonic = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let monotonic = Duration::try_from(monotonic).unwrap_or_default();
        let took = clock.now().saturating_sub(before);
        (took, monotonic.saturating_sub(before + took / 2))
    });
    looks.min().map_or(Duration::ZERO, |(_, shown)| shown)
}
