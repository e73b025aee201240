//! Tests wait sets: a wait names everything that has come, a waiting thread is woken, and nothing
//! else happens.

mod answers;
mod armed;
mod others;
mod ports;
mod readers;
mod room;
mod wakes;

use portolan::{
    Access, Deadline, Domain, Message, PortOptions, Ready, ReceiveError, ReceiveRight, SendRight,
    Token, WaitSet,
};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Once;
use std::time::{Duration, Instant};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// How long all of this may hang before it fails.
const PATIENCE: Duration = Duration::from_secs(180);

/// A deadline that never passes: a wait that ended by one would find what it was not woken
/// for. What hangs is ended from outside.
fn soon() -> Deadline {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        std::thread::spawn(|| {
            std::thread::sleep(PATIENCE);
            eprintln!("a wake was lost: something has hung for {PATIENCE:?}");
            std::process::abort();
        });
    });
    Deadline::NEVER
}

/// A set, and a right on each of its ports.
struct Fixture {
    domain: Domain,
    set: WaitSet,
    rights: Vec<(Token<ReceiveRight>, SendRight)>,
}

impl Fixture {
    fn new(ports: usize) -> Self {
        let domain = Domain::private().unwrap();
        let mut set = WaitSet::new(&domain).unwrap();
        let rights = (0..ports).map(|_| {
            let port = domain.bind(PortOptions::unnamed().queue(7)).unwrap();
            let right = port.make_send();
            (set.add(port).unwrap(), right)
        });
        let rights = rights.collect();
        Self {
            domain,
            set,
            rights,
        }
    }

    fn send(&self, port: usize, text: &str) {
        send(&self.rights[port].1, text);
    }

    fn token(&self, port: usize) -> Token<ReceiveRight> {
        self.rights[port].0
    }

    /// What is ready now. If nothing is, every port is armed afterwards.
    fn now(&mut self) -> Vec<Token<ReceiveRight>> {
        let ready = self.set.wait(Deadline::NOW).unwrap();
        let ready: Vec<_> = ready.map(Token::of).collect();
        if ready.is_empty() {
            assert!(self.set.wait(Duration::from_micros(1)).unwrap().is_empty());
        }
        ready
    }

    /// Takes one message from a port of the set.
    fn take(&mut self, token: Token<ReceiveRight>) -> Result<String, ReceiveError> {
        take(self.set.get_mut(token).unwrap())
    }
}

fn send(right: &SendRight, text: &str) {
    right
        .send(Message::new(text.as_bytes()).unwrap(), soon())
        .unwrap();
}

fn take(port: &mut ReceiveRight) -> Result<String, ReceiveError> {
    let message = port.receive(Access::Later, Deadline::NOW)?;
    Ok(message.notice().map_or_else(
        || String::from_utf8_lossy(message.header()).into_owned(),
        |notice| format!("{notice:?}"),
    ))
}

/// Everything that the named ports have.
fn drain(set: &mut WaitSet, ready: Ready) -> Vec<String> {
    let mut all = Vec::new();
    for token in ready {
        let port = set.get_mut(token.of()).unwrap();
        all.extend(std::iter::from_fn(|| take(port).ok()));
    }
    all
}

/// Whether the set's descriptor is readable, waiting so long for it.
fn readable(set: &WaitSet, deadline: Deadline) -> bool {
    portolan_sys::process::poll(&[set.as_fd()], deadline.instant()).unwrap()[0].readable
}

/// An epoll instance with a set in it.
struct Epoll(OwnedFd);

impl Epoll {
    fn of(set: &WaitSet, flags: EventFlags) -> Self {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        epoll::add(&epoll, set, EventData::new_u64(1), EventFlags::IN | flags).unwrap();
        Self(epoll)
    }

    /// Whether the set is readable, waiting so long for it.
    fn wait(&self, time: Duration) -> bool {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let mut events = Vec::with_capacity(4);
            let left = rustix::event::Timespec::try_from(left).unwrap();
            match epoll::wait(&self.0, spare_capacity(&mut events), Some(&left)) {
                Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return !events.is_empty(),
                Err(error) => panic!("{error}"),
            }
        }
    }
}
