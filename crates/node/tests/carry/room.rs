//! Engines that are stepped only when they ask for it: room in a port that comes in the midst of a turn, behind
//! the look at all ports; and a program that waits until all that it has sent is there, which is.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use portolan::{Access, Deadline, Domain, Message, PortOptions, ReceiveRight, SendRight, WhenFull};
use portolan_abi::node::NodeId;
use portolan_node::config;
use portolan_node::engine::Engine;
use portolan_proto::node::Settings;
use portolan_sys::process::{Ready, poll};
use portolan_testkit::{PATIENCE, unique};
use portolan_transport::clock::{Clock, SystemClock};
use portolan_transport::{
    Address, Class, Connection, Destination, Limits, Memory, Peer, Progress, Source, State,
    StreamId, Transport as _, TransportError,
};
use std::os::fd::BorrowedFd;

use crate::machine::DOMAIN;

/// Does something whenever bytes are sent on a connection: in the midst of an engine's turn.
struct Interrupted {
    connection: Box<dyn Connection>,
    act: Box<dyn FnMut() + Send>,
}

impl std::fmt::Debug for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.connection.fmt(f)
    }
}

impl Connection for Interrupted {
    fn limits(&self) -> Limits {
        self.connection.limits()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.connection.descriptor()
    }

    fn wake_at(&self) -> Option<Duration> {
        self.connection.wake_at()
    }

    fn progress(&mut self) -> State {
        self.connection.progress()
    }

    fn failure(&self) -> Option<&TransportError> {
        self.connection.failure()
    }

    fn peer(&self) -> Peer {
        self.connection.peer()
    }

    fn remote(&self) -> Option<Address> {
        self.connection.remote()
    }

    fn open(&mut self, class: Class) -> Result<StreamId, TransportError> {
        self.connection.open(class)
    }

    fn send(&mut self, on: StreamId, parts: &[Source<'_>]) -> Progress {
        (self.act)();
        self.connection.send(on, parts)
    }

    fn receive(&mut self, on: StreamId, into: &[Destination<'_>]) -> Progress {
        self.connection.receive(on, into)
    }

    fn datagram(&mut self, bytes: &[u8]) -> bool {
        self.connection.datagram(bytes)
    }

    fn receive_datagram(&mut self) -> Option<Vec<u8>> {
        self.connection.receive_datagram()
    }

    fn close(&mut self) {
        self.connection.close();
    }

    fn binding(&self, label: &str) -> Option<[u8; 32]> {
        self.connection.binding(label)
    }
}

/// Of a queue for one message: the fewest.
const SLOTS: usize = 2;
/// Whole queues.
const MESSAGES: usize = 200 * SLOTS;

/// An engine that has nothing to do at any time of its own, and is stepped only when it asks for it.
struct Node {
    engine: Engine,
    domain: Domain,
}

impl Node {
    fn new(number: u8) -> Self {
        let mut settings = Settings::new(NodeId([number; 16]), 1, [7; 16]);
        let hour = Duration::from_secs(3600);
        (settings.silent_after, settings.ping_after) = (hour, hour);
        let mut engine = Engine::new(settings, &format!("node-{number}")).unwrap();
        let local = unique("room");
        let span = config::Span {
            domain: DOMAIN.to_owned(),
            local: local.clone(),
            nodes: vec!["*".to_owned()],
            ports: Vec::new(),
        };
        let domain = Domain::builder(&local).join().unwrap();
        let member = Domain::builder(&local).always_open().join().unwrap();
        engine.span(span, member).unwrap();
        Self { engine, domain }
    }

    /// Whether it had something to do.
    fn step_if_asked(&mut self, now: Duration) -> bool {
        let fds: Vec<_> = self.engine.descriptors().collect();
        let ready: Vec<Ready> = poll(&fds, Some(Instant::now())).unwrap();
        let is_due = self.engine.wake_at().is_some_and(|at| at <= now);
        let steps = is_due || ready.iter().any(|ready| ready.any());
        if steps {
            self.engine.step(now);
            // What nobody takes is a reason to be stepped.
            self.engine.happened();
        }
        steps
    }
}

/// Empties a port that is full; how many messages it had.
fn empty(port: &Mutex<Option<ReceiveRight>>) -> usize {
    let mut port = port.lock().unwrap();
    match port.as_mut() {
        Some(port) if port.depth() == SLOTS => {
            std::iter::from_fn(|| port.receive(Access::Later, Deadline::NOW).ok()).count()
        }
        _ => 0,
    }
}

/// Two connections, each the other's peer.
fn link() -> (Box<dyn Connection>, Box<dyn Connection>) {
    let transport = Memory::default();
    let mut listener = transport.listen(&Address::named(&unique("room"))).unwrap();
    let there = transport.connect(&listener.address()).unwrap();
    (listener.accept().unwrap().unwrap(), there)
}

/// The first engine listens, and the second one has dialled.
fn adopt(
    now: Duration,
    (hall, here): (&mut Node, Box<dyn Connection>),
    (roof, there): (&mut Node, Box<dyn Connection>),
) {
    let (roofs, halls) = (NodeId([2; 16]), NodeId([1; 16]));
    hall.engine.adopt(now, here, roofs, false).unwrap();
    roof.engine.adopt(now, there, halls, true).unwrap();
}

/// The hall's port, with the shortest queue.
fn bind(hall: &Node) -> ReceiveRight {
    let options = PortOptions::named("upper").queue(1).spanned();
    hall.domain.bind(options).unwrap()
}

/// A right on a port of the hall's, at the roof.
fn connect(clock: &SystemClock, hall: &mut Node, roof: &mut Node, name: &str) -> SendRight {
    let (domain, name) = (roof.domain.clone(), name.to_owned());
    let asked = std::thread::spawn(move || domain.connect(&name, PATIENCE).unwrap());
    while !asked.is_finished() {
        hall.step_if_asked(clock.now());
        roof.step_if_asked(clock.now());
    }
    asked.join().unwrap()
}

#[test]
fn room_that_comes_while_a_turn_sends_is_not_forgotten() {
    let clock = SystemClock::default();
    let (mut hall, mut roof) = (Node::new(1), Node::new(2));
    let (here, there) = link();
    let port = Arc::new(Mutex::new(None));
    let received = Arc::new(Mutex::new(0));
    let act = {
        let (port, received) = (Arc::clone(&port), Arc::clone(&received));
        move || *received.lock().unwrap() += empty(&port)
    };
    let here = Box::new(Interrupted {
        connection: here,
        act: Box::new(act),
    });
    adopt(clock.now(), (&mut hall, here), (&mut roof, there));

    *port.lock().unwrap() = Some(bind(&hall));
    let right = connect(&clock, &mut hall, &mut roof, "upper");

    // No time passes: nothing is mended by a timer.
    let now = clock.now();
    let mut sent = 0;
    while *received.lock().unwrap() < MESSAGES {
        while sent < MESSAGES && right.send(Message::default(), WhenFull::Fail).is_ok() {
            sent += 1;
        }
        let steps = hall.step_if_asked(now) | roof.step_if_asked(now);
        let has = *received.lock().unwrap();
        assert!(steps, "both wait, and {has} of {sent} have come");
    }
}

#[test]
fn who_waits_for_what_is_there_already_is_told_in_the_same_turn() {
    let clock = SystemClock::default();
    let (mut hall, mut roof) = (Node::new(1), Node::new(2));
    let (here, there) = link();
    adopt(clock.now(), (&mut hall, here), (&mut roof, there));
    let _port = bind(&hall);
    let right = connect(&clock, &mut hall, &mut roof, "upper");
    right.send(Message::default(), WhenFull::Fail).unwrap();
    // No time passes: nothing is mended by a timer.
    let now = clock.now();
    while hall.step_if_asked(now) | roof.step_if_asked(now) {}
    let flushed = std::thread::spawn(move || right.flush(PATIENCE));
    while !flushed.is_finished() {
        hall.step_if_asked(now);
        roof.step_if_asked(now);
    }
    let flushed = flushed.join().unwrap();
    assert!(flushed.is_ok(), "{flushed:?}");
}

/// More ports than the looks of a few turns count.
const PORTS: usize = 600;

/// They are full, nothing goes on, and one is emptied: what comes to it is refused, if it is not known that there is
/// room, and comes again.
#[test]
fn a_port_that_is_emptied_long_after_it_was_filled_takes_what_comes() {
    let clock = SystemClock::default();
    let (mut hall, mut roof) = (Node::new(1), Node::new(2));
    let (here, there) = link();
    adopt(clock.now(), (&mut hall, here), (&mut roof, there));
    let mut ports = Vec::new();
    for number in 0..PORTS {
        let name = format!("port {number}");
        let options = PortOptions::named(&name).queue(1).spanned();
        let port = hall.domain.bind(options).unwrap();
        ports.push((port, connect(&clock, &mut hall, &mut roof, &name)));
    }
    let send = |right: &SendRight| right.send(Message::default(), WhenFull::Fail).unwrap();
    // One at a time: a flow that has more to send waits for its turn.
    for _ in 0..SLOTS {
        ports.iter().for_each(|(_, right)| send(right));
        let now = clock.now();
        while hall.step_if_asked(now) | roof.step_if_asked(now) {}
    }
    // What has come in a turn is counted in that turn.
    hall.engine.step(clock.now());
    let now = clock.now();
    for (port, right) in ports.iter_mut().step_by(10) {
        let taken = std::iter::from_fn(|| port.receive(Access::Later, Deadline::NOW).ok());
        assert_eq!(taken.count(), SLOTS);
        send(right);
        while hall.step_if_asked(now) | roof.step_if_asked(now) {}
        assert_eq!(port.depth(), 1);
    }
}
