//! Machines in this process: each an engine in a thread of its own, a domain that it spans, and a
//! network whose connections can be cut and stalled.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use portolan::Domain;
use portolan_abi::node::NodeId;
use portolan_node::config;
use portolan_node::engine::{Engine, Happened, Question, Report};
use portolan_node::rates::PeerRates;
use portolan_proto::node::{RateView, Settings};
use portolan_sys::process::{EventFd, On, Poller, random};
use portolan_testkit::{unique, until};
use portolan_transport::clock::{Clock, SystemClock};
use portolan_transport::tls::{Cluster, LinkOptions, links};
use portolan_transport::{
    Address, Connection, Faults, Listener, Memory, Peer, Shape, Shaped, State, Tcp, Transport,
};
use std::os::fd::AsFd as _;

use crate::certificates::Authority;

/// The name that all machines have for the domain.
pub(crate) const DOMAIN: &str = "cameras";
const CLUSTER: [u8; 16] = [7; 16];

/// What machines are connected by.
#[derive(Clone)]
pub(crate) enum Network {
    /// Queues in this process.
    Memory(Memory),
    /// TLS over loopback.
    Tls(Arc<Authority>),
}

impl Network {
    pub(crate) fn memory() -> Self {
        Self::Memory(Memory::default())
    }

    pub(crate) fn tls() -> Self {
        Self::Tls(Arc::new(Authority::new("authority of tests")))
    }
}

/// How patient machines are.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    pub(crate) silent: Duration,
    pub(crate) dead: Duration,
}

impl Patience {
    /// A cut is noticed at once; who is silent because the machine is busy is not to be sent nothing.
    pub(crate) const LONG: Self = Self {
        silent: Duration::from_secs(20),
        dead: Duration::from_secs(60),
    };
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            silent: Duration::from_secs(2),
            dead: Duration::from_secs(60),
        }
    }
}

/// A transport whose faults are known.
struct Interface {
    transport: Box<dyn Transport>,
    faults: Faults,
    /// Another one, by which links go that fail alone.
    other: Box<dyn Transport>,
    other_faults: Faults,
    id: NodeId,
}

impl Interface {
    fn new(network: &Network, name: &str, clock: &Arc<dyn Clock>) -> Self {
        let shape = Shape::default();
        match network {
            Network::Memory(memory) => {
                let shaped = || Shaped::new(memory.clone(), shape, Arc::clone(clock));
                let (shaped, other) = (shaped(), shaped());
                Self {
                    faults: shaped.faults(),
                    transport: Box::new(shaped),
                    other_faults: other.faults(),
                    other: Box::new(other),
                    id: NodeId(random().unwrap()),
                }
            }
            Network::Tls(authority) => {
                let day = clock.of_day().as_secs();
                let cluster: Cluster = authority.node_valid(name, day - 3600, day + 3600);
                let shaped = || {
                    let tcp: Tcp = links(&cluster, LinkOptions::default(), Arc::clone(clock));
                    Shaped::new(tcp, shape, Arc::clone(clock))
                };
                let (shaped, other) = (shaped(), shaped());
                Self {
                    faults: shaped.faults(),
                    transport: Box::new(shaped),
                    other_faults: other.faults(),
                    other: Box::new(other),
                    id: cluster.node(),
                }
            }
        }
    }
}

enum Command {
    /// Keeps a connection with a node that listens there.
    Dial(Address, NodeId),
    /// Listens for a node; in memory nobody shows a certificate. The link may be one that fails alone.
    Listen(Address, NodeId, Sender<Address>, bool),
    /// Has a connection with the node that is said to be at its other end.
    Adopt(Box<dyn Connection>, NodeId),
    Report(Sender<Report>),
    /// How often it expected something soon, in all.
    Expected(Sender<u64>),
    Happened(Sender<Vec<Happened>>),
    /// Asks a node what happens there: itself, if none is named. What it says of itself is said back.
    Inspect(Option<NodeId>, Question, Sender<Option<String>>),
    Rates(PeerRates),
    Unspan,
    Leave,
    /// Ends as if killed.
    End,
}

/// A machine.
pub(crate) struct Machine {
    pub(crate) name: String,
    pub(crate) id: NodeId,
    /// This process's programs are members of it.
    pub(crate) domain: Domain,
    pub(crate) faults: Faults,
    /// Of what it sends over links that fail alone.
    pub(crate) other_faults: Faults,
    interface: Option<Box<Interface>>,
    network: Network,
    tell: Sender<Command>,
    wakes: Arc<EventFd>,
    thread: Option<JoinHandle<Box<Interface>>>,
    incarnation: u64,
    patience: Patience,
    local: String,
    ports: Vec<String>,
    nodes: Vec<String>,
    clock: Arc<dyn Clock>,
    ahead: Duration,
    places: Option<usize>,
}

/// What a machine is made of.
pub(crate) struct Plan<'a> {
    pub(crate) name: &'a str,
    pub(crate) ports: &'a [&'a str],
    pub(crate) nodes: &'a [&'a str],
    pub(crate) patience: Patience,
    pub(crate) memory: Option<u64>,
    /// How far the clock that it tells peers of is ahead.
    pub(crate) ahead: Duration,
    /// Requests that may be open at a peer.
    pub(crate) places: Option<usize>,
}

impl Default for Plan<'_> {
    fn default() -> Self {
        Self {
            name: "hall",
            ports: &[],
            nodes: &["*"],
            patience: Patience::default(),
            memory: None,
            ahead: Duration::ZERO,
            places: None,
        }
    }
}

impl Machine {
    pub(crate) fn new(network: &Network, name: &str) -> Self {
        Self::planned(
            network,
            &Plan {
                name,
                ..Plan::default()
            },
        )
    }

    pub(crate) fn planned(network: &Network, plan: &Plan<'_>) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let interface = Interface::new(network, plan.name, &clock);
        let local = unique(plan.name);
        let mut builder = Domain::builder(&local);
        if let Some(bytes) = plan.memory {
            builder = builder.limit(bytes);
        }
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let mut machine = Self {
            name: plan.name.to_owned(),
            id: interface.id,
            domain: builder.join().unwrap(),
            faults: interface.faults.clone(),
            other_faults: interface.other_faults.clone(),
            interface: Some(Box::new(interface)),
            network: network.clone(),
            tell: channel().0,
            wakes: Arc::new(EventFd::new().unwrap()),
            thread: None,
            incarnation: 0,
            patience: plan.patience,
            local,
            ports: owned(plan.ports),
            nodes: owned(plan.nodes),
            clock,
            ahead: plan.ahead,
            places: plan.places,
        };
        machine.start();
        machine
    }

    /// Starts its engine, as the next incarnation.
    pub(crate) fn start(&mut self) {
        self.incarnation += 1;
        let mut settings = Settings::new(self.id, self.incarnation, CLUSTER);
        settings.run = random().unwrap();
        settings.silent_after = self.patience.silent;
        settings.ping_after = self.patience.silent / 4;
        settings.dead_after = Some(self.patience.dead);
        settings.clock_at_zero = self.ahead;
        settings.open_requests = self.places.unwrap_or(settings.open_requests);
        let span = config::Span {
            domain: DOMAIN.to_owned(),
            local: self.local.clone(),
            nodes: self.nodes.clone(),
            ports: self.ports.clone(),
        };
        let (tell, told) = channel();
        self.tell = tell;
        let (name, wakes) = (self.name.clone(), Arc::clone(&self.wakes));
        let (interface, clock) = (self.interface.take().unwrap(), Arc::clone(&self.clock));
        let (ready, is_ready) = channel();
        let thread = std::thread::Builder::new().name(format!("node-{name}"));
        let thread = thread.spawn(move || {
            let mut engine = Engine::new(settings, &name).unwrap();
            let domain = Domain::builder(&span.local);
            let domain = domain.always_open().space_name("node").join().unwrap();
            engine.span(span, domain).unwrap();
            ready.send(()).unwrap();
            run(engine, interface, &told, &wakes, &clock)
        });
        self.thread = Some(thread.unwrap());
        is_ready.recv().unwrap();
    }

    fn tell(&self, command: Command) {
        self.tell.send(command).unwrap();
        self.wakes.notify().unwrap();
    }

    /// Has a connection with another machine, again and again.
    pub(crate) fn link(&self, other: &Self) {
        self.link_by(other, false);
    }

    /// The same, and what the other machine sends over it fails alone; waits until both have heard of one another.
    pub(crate) fn linked_apart(&self, other: &Self) {
        self.link_by(other, true);
        self.is_linked(other);
    }

    fn link_by(&self, other: &Self, apart: bool) {
        let (says, hears) = channel();
        let address = match self.network {
            Network::Memory(_) => {
                Address::named(&unique(&format!("{}<-{}", other.local, self.local)))
            }
            Network::Tls(_) => Address::Internet("127.0.0.1:0".parse().unwrap()),
        };
        other.tell(Command::Listen(address, self.id, says, apart));
        self.tell(Command::Dial(hears.recv().unwrap(), other.id));
    }

    /// The same, and waits until both have heard of one another.
    pub(crate) fn linked(&self, other: &Self) {
        self.link(other);
        self.is_linked(other);
    }

    pub(crate) fn is_linked(&self, other: &Self) {
        until("both are linked", || self.is_up(other) && other.is_up(self));
    }

    pub(crate) fn is_up(&self, other: &Self) -> bool {
        let report = self.report();
        let mut peers = report.peers.iter();
        peers.any(|peer| peer.node == other.id && peer.is_up && !peer.is_unreachable)
    }

    pub(crate) fn adopt(&self, connection: Box<dyn Connection>, peer: NodeId) {
        self.tell(Command::Adopt(connection, peer));
    }

    pub(crate) fn report(&self) -> Report {
        let (says, hears) = channel();
        self.tell(Command::Report(says));
        hears.recv().unwrap()
    }

    /// Its peers are sent to, and read, at these rates from now on.
    pub(crate) fn set_rates(&self, rates: PeerRates) {
        self.tell(Command::Rates(rates));
    }

    /// How fast a peer is sent to, and read.
    pub(crate) fn rates(&self, peer: NodeId) -> RateView {
        let report = self.report();
        let its = report.peers.iter().find(|it| it.node == peer);
        its.map(|it| it.rates).unwrap_or_default()
    }

    /// How often its engine expected something soon, in all.
    pub(crate) fn expected(&self) -> u64 {
        let (says, hears) = channel();
        self.tell(Command::Expected(says));
        hears.recv().unwrap()
    }

    /// What its engine has told since this was called last.
    pub(crate) fn happened(&self) -> Vec<Happened> {
        let (says, hears) = channel();
        self.tell(Command::Happened(says));
        hears.recv().unwrap()
    }

    /// Asks a node what happens there.
    pub(crate) fn inspect(&self, peer: Option<&Self>, question: &Question) -> Option<String> {
        let (says, hears) = channel();
        let peer = peer.map(|peer| peer.id);
        self.tell(Command::Inspect(peer, question.clone(), says));
        hears.recv().unwrap()
    }

    pub(crate) fn unspan(&self) {
        self.tell(Command::Unspan);
    }

    pub(crate) fn leave(&self) {
        self.tell(Command::Leave);
    }

    /// How its engine is, where a test has failed.
    fn say_how_it_is(&self) {
        let (says, hears) = channel();
        let is_told = self.tell.send(Command::Report(says)).is_ok() && self.wakes.notify().is_ok();
        let report = is_told.then(|| hears.recv_timeout(Duration::from_secs(5)));
        eprintln!("{} ({:?}): {report:#?}", self.name, self.id);
    }

    /// Its engine ends without a farewell.
    pub(crate) fn end(&mut self) {
        self.tell(Command::End);
        self.interface = Some(self.thread.take().unwrap().join().unwrap());
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.say_how_it_is();
        }
        let Some(thread) = self.thread.take() else {
            return;
        };
        // It may have panicked, which its test has seen.
        let _ = self.tell.send(Command::End);
        let _ = self.wakes.notify();
        let ended = thread.join();
        assert!(std::thread::panicking() || ended.is_ok());
    }
}

/// A node that is connected to again and again.
struct Dial {
    address: Address,
    node: NodeId,
    connection: Option<Box<dyn Connection>>,
    /// Of this connection, among all that were dialled.
    number: u64,
    again: Duration,
}

/// The first key of connections that are dialled.
const DIALS: u64 = 1 << 32;

fn run(
    mut engine: Engine,
    interface: Box<Interface>,
    told: &Receiver<Command>,
    wakes: &EventFd,
    clock: &Arc<dyn Clock>,
) -> Box<Interface> {
    let mut dials: Vec<Dial> = Vec::new();
    let mut listeners: Vec<(Box<dyn Listener>, NodeId)> = Vec::new();
    let mut happened = Vec::new();
    let (mut dialled, mut expected) = (0, 0);
    let mut poller = Poller::new().unwrap();
    loop {
        let now = clock.now();
        while let Ok(command) = told.try_recv() {
            match command {
                Command::Dial(address, node) => dials.push(Dial {
                    address,
                    node,
                    connection: None,
                    number: 0,
                    again: now,
                }),
                Command::Listen(address, node, says, apart) => {
                    let transport = if apart {
                        &interface.other
                    } else {
                        &interface.transport
                    };
                    let listener = transport.listen(&address).unwrap();
                    says.send(listener.address()).unwrap();
                    listeners.push((listener, node));
                }
                Command::Adopt(connection, peer) => {
                    engine.adopt(now, connection, peer, false).unwrap();
                }
                Command::Expected(says) => says.send(expected).unwrap(),
                Command::Report(says) => says.send(engine.report(now)).unwrap(),
                Command::Happened(says) => says.send(std::mem::take(&mut happened)).unwrap(),
                Command::Inspect(None, question, says) => {
                    says.send(Some(engine.inspect_here(&question))).unwrap();
                }
                Command::Inspect(Some(peer), question, says) => {
                    engine.inspect(peer, &question);
                    says.send(None).unwrap();
                }
                Command::Rates(rates) => engine.set_rates(now, rates),
                Command::Unspan => engine.unspan(DOMAIN),
                Command::Leave => engine.leave(now),
                Command::End => return interface,
            }
        }
        for (listener, node) in &mut listeners {
            while let Ok(Some(connection)) = listener.accept() {
                let peer = match connection.peer() {
                    Peer::Node(peer) => peer,
                    _ => *node,
                };
                let _ = engine.adopt(now, connection, peer, false);
            }
        }
        for dial in &mut dials {
            step(dial, &mut engine, &interface, now, &mut dialled);
        }
        engine.step(now);
        happened.extend(engine.happened());
        let waits = listeners.iter().filter_map(|(it, _)| it.wake_at());
        let waits = waits.chain(engine.wake_at());
        // Faults are made by others, and dials are looked at.
        let wake = waits
            .chain([now + Duration::from_millis(20)])
            .min()
            .unwrap();
        let mut on = vec![(Engine::OTHERS, On::Descriptor(wakes.as_fd()))];
        let others = listeners.iter().map(|(it, _)| it.descriptor());
        let others = (1..).zip(others);
        on.extend(others.map(|(at, fd)| (Engine::OTHERS | at, On::Descriptor(fd))));
        let connections = dials.iter().filter_map(|dial| {
            let fd = dial.connection.as_ref()?.descriptor();
            Some((Engine::OTHERS | DIALS | dial.number, On::Descriptor(fd)))
        });
        on.extend(connections);
        let by = Instant::now() + wake.saturating_sub(clock.now());
        let expects_soon = engine.expects_soon();
        expected += u64::from(expects_soon);
        let by = engine.arm(&mut on).map_or(by, |due| due.min(by));
        let fired = match expects_soon {
            true => poller.look(&on, Some(by)),
            false => poller.poll(&on, Some(by)),
        };
        let fired = fired.unwrap();
        engine.fired(&fired);
        let _ = wakes.drain();
    }
}

fn step(
    dial: &mut Dial,
    engine: &mut Engine,
    interface: &Interface,
    now: Duration,
    dialled: &mut u64,
) {
    if engine.is_connected(dial.node) {
        return;
    }
    match &mut dial.connection {
        None if now >= dial.again => {
            dial.again = now + Duration::from_millis(20);
            dial.connection = interface.transport.connect(&dial.address).ok();
            *dialled += 1;
            dial.number = *dialled;
        }
        None => {}
        Some(connection) => match connection.progress() {
            State::Connecting => {}
            State::Up => {
                if let Some(connection) = dial.connection.take() {
                    let _ = engine.adopt(now, connection, dial.node, true);
                }
            }
            State::Over | State::Failed => dial.connection = None,
        },
    }
}
