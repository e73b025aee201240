//! A peer of node.toml, or a member that a peer tells of, that is connected to again and again.
//!
//! ```text
//! Waiting -> Resolving -> Trying (an address after another) -> Linked -> Waiting
//!    ^___________|______________|  after a while, which doubles
//! ```

use std::collections::VecDeque;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

use portolan_sys::process::{EventFd, random};
use portolan_transport::{Connection, NodeId, Peer, State, Transport};

use super::status::PeerState;

/// The first pause between attempts, and the longest.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The longest of one that only others have told of.
const LONGEST_PAUSE_HEARD: Duration = Duration::from_secs(30);
/// A link that has lasted for so many times the silence that ends one was a good one. A machine that has
/// too much to do lets links end by silence, and each new one costs it more: that is not to go on in haste.
const LASTED: u32 = 3;
/// Other addresses that a member is said to be reached at, at most.
const MOST_OTHERS: usize = 3;
/// How long an address has to answer: the kernel itself asks again ever more seldom, for minutes.
const ANSWER: Duration = Duration::from_secs(3);
/// Addresses of a name that are tried, at most.
const MOST_ADDRESSES: usize = 8;
/// The shortest time between two attempts, whatever a directory says.
const HASTE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) enum Phase {
    Waiting(Duration),
    Resolving(Receiver<Result<Vec<SocketAddr>, String>>),
    /// Until then, and then the rest.
    Trying(Box<dyn Connection>, Vec<SocketAddr>, Duration),
    /// There is a link with the node that answers there.
    Linked,
}

/// A peer that is connected to.
#[derive(Debug)]
pub(crate) struct Dial {
    pub(crate) target: String,
    /// Where it may be reached as well: tried in turn.
    others: VecDeque<String>,
    /// Who is to answer there; `None` of a peer of node.toml.
    pub(crate) expects: Option<NodeId>,
    pub(crate) phase: Phase,
    pub(super) since: Duration,
    pub(crate) failure: Option<String>,
    /// Who answered there last.
    pub(super) node: Option<NodeId>,
    pause: Duration,
    /// It answers, and its last link has not lasted: it may well end the next one too.
    ends_links: bool,
}

impl Dial {
    /// A peer of node.toml.
    pub(crate) fn new(target: String, now: Duration) -> Self {
        Self {
            target,
            others: VecDeque::new(),
            expects: None,
            phase: Phase::Waiting(now),
            since: now,
            failure: None,
            node: None,
            pause: SHORTEST_PAUSE,
            ends_links: false,
        }
    }

    /// A member that others tell of.
    pub(crate) fn heard(node: NodeId, target: String, now: Duration) -> Self {
        Self {
            expects: Some(node),
            node: Some(node),
            ..Self::new(target, now)
        }
    }

    /// Its address, if node.toml says it.
    pub(super) fn configured(&self) -> Option<String> {
        self.expects.is_none().then(|| self.target.clone())
    }

    /// Its address, if others have told of it.
    pub(super) fn heard_at(&self) -> Option<String> {
        self.expects.map(|_| self.target.clone())
    }

    /// How far it is.
    pub(super) fn state(&self) -> PeerState {
        match self.phase {
            Phase::Waiting(_) if self.failure.is_some() => PeerState::Waiting,
            _ => PeerState::Connecting,
        }
    }

    /// It is said to be reached there too.
    pub(super) fn also_at(&mut self, address: String) {
        if address == self.target || self.others.contains(&address) {
            return;
        }
        if self.others.len() >= MOST_OTHERS {
            self.others.pop_front();
        }
        self.others.push_back(address);
    }

    pub(crate) fn connection(&self) -> Option<&dyn Connection> {
        match &self.phase {
            Phase::Trying(connection, ..) => Some(&**connection),
            _ => None,
        }
    }

    pub(crate) fn wake_at(&self) -> Option<Duration> {
        match &self.phase {
            Phase::Waiting(until) => Some(*until),
            Phase::Trying(connection, _, until) => {
                Some(connection.wake_at().map_or(*until, |wake| wake.min(*until)))
            }
            Phase::Resolving(_) | Phase::Linked => None,
        }
    }

    /// The link is there.
    pub(super) fn linked(&mut self, now: Duration) {
        self.phase = Phase::Linked;
        self.since = now;
        self.failure = None;
    }

    /// Tries again after a while, which is longer each time and not the same for all.
    pub(super) fn fail(&mut self, now: Duration, why: String) {
        let part = random::<1>().map_or(128, |[byte]| u32::from(byte));
        let pause = self.pause / 2 + self.pause / 512 * part;
        self.phase = Phase::Waiting(now + pause);
        self.since = now;
        let longest = match self.expects {
            Some(_) => LONGEST_PAUSE_HEARD,
            None => LONGEST_PAUSE,
        };
        self.pause = (self.pause * 2).min(longest);
        self.ends_links = false;
        self.failure = Some(why);
        if let Some(other) = self.others.pop_front() {
            self.others
                .push_back(std::mem::replace(&mut self.target, other));
        }
    }

    /// The link is gone, which ends by a silence of `silent_after`: tries again soon. Less soon if it has
    /// not lasted: a peer that ends each link at once does so for good, and one that falls silent again
    /// and again has too much to do.
    pub(super) fn lost(&mut self, now: Duration, silent_after: Duration, why: String) {
        let has_lasted = now.saturating_sub(self.since) >= LASTED * silent_after;
        if has_lasted {
            self.pause = SHORTEST_PAUSE;
        }
        self.fail(now, why);
        self.ends_links = !has_lasted;
    }

    /// It is said to be there: it is tried at once, or soon if it was tried just now. One that ends each
    /// link was there all the time: it is tried once, and then as seldom as before.
    pub(super) fn hasten(&mut self, now: Duration) {
        if let Phase::Waiting(until) = &mut self.phase {
            *until = (*until).min(now.max(self.since.saturating_add(HASTE)));
            if !self.ends_links {
                self.pause = SHORTEST_PAUSE;
            }
        }
    }

    /// Goes on; a connection that is up, if it is.
    pub(crate) fn step(
        &mut self,
        transport: &dyn Transport,
        now: Duration,
        wakes: &Arc<EventFd>,
    ) -> Option<(Box<dyn Connection>, NodeId)> {
        match &mut self.phase {
            Phase::Waiting(until) if now >= *until => match self.target.parse() {
                Ok(address) => {
                    self.since = now;
                    self.attempt(transport, vec![address], now, "it has no address");
                }
                Err(_) => self.resolve(now, wakes),
            },
            Phase::Waiting(_) | Phase::Linked => {}
            Phase::Resolving(resolved) => match resolved.try_recv() {
                Ok(Ok(addresses)) => self.attempt(transport, addresses, now, "it has no address"),
                Ok(Err(why)) => self.fail(now, why),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => {
                    self.fail(now, "its name could not be looked up".to_owned());
                }
            },
            Phase::Trying(connection, rest, until) => match connection.progress() {
                State::Connecting if now < *until => {}
                State::Connecting => {
                    let rest = std::mem::take(rest);
                    let why = format!("no answer within {} s", ANSWER.as_secs());
                    self.attempt(transport, rest, now, &why);
                }
                State::Up => {
                    let (Peer::Node(node) | Peer::Directory(node)) = connection.peer() else {
                        self.fail(now, "it has shown no certificate".to_owned());
                        return None;
                    };
                    if self.expects.is_some_and(|expected| expected != node) {
                        self.fail(now, format!("another node answers there: {node}"));
                        return None;
                    }
                    self.node = Some(node);
                    let up = std::mem::replace(&mut self.phase, Phase::Linked);
                    let Phase::Trying(connection, ..) = up else {
                        return None;
                    };
                    return Some((connection, node));
                }
                State::Over | State::Failed => {
                    let why = connection.failure().map(ToString::to_string);
                    let why = why.unwrap_or_else(|| "the peer ended the connection".to_owned());
                    let rest = std::mem::take(rest);
                    self.attempt(transport, rest, now, &why);
                }
            },
        }
        None
    }

    /// Looks the name up, anew each time, beside the node's thread: that may take long.
    fn resolve(&mut self, now: Duration, wakes: &Arc<EventFd>) {
        let (says, hears) = channel();
        let (target, wakes) = (self.target.clone(), Arc::clone(wakes));
        let looked_up = std::thread::Builder::new()
            .name("node-names".to_owned())
            .spawn(move || {
                let addresses = target.to_socket_addrs();
                let addresses = addresses.map(|found| found.take(MOST_ADDRESSES).collect());
                // The node may have ended.
                let _ = says.send(addresses.map_err(|error| error.to_string()));
                let _ = wakes.notify();
            });
        self.since = now;
        match looked_up {
            Ok(_) => self.phase = Phase::Resolving(hears),
            Err(error) => self.fail(now, error.to_string()),
        }
    }

    /// Tries the next address.
    fn attempt(
        &mut self,
        transport: &dyn Transport,
        addresses: Vec<SocketAddr>,
        now: Duration,
        last: &str,
    ) {
        let mut rest = addresses.into_iter();
        let mut why = last.to_owned();
        while let Some(address) = rest.next() {
            match transport.connect(&address.into()) {
                Ok(connection) => {
                    self.phase = Phase::Trying(connection, rest.collect(), now + ANSWER);
                    self.failure = (why != "it has no address").then_some(why);
                    return;
                }
                Err(error) => why = error.to_string(),
            }
        }
        self.fail(now, why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_is_said_to_be_there_is_tried_soon_and_not_without_end() {
        let second = Duration::from_secs(1);
        let mut dial = Dial::new("192.0.2.1:1".to_owned(), Duration::ZERO);
        for _ in 0..10 {
            dial.fail(100 * second, "no answer".to_owned());
        }
        assert!(dial.wake_at() > Some(102 * second));
        // It was tried just now.
        dial.hasten(100 * second);
        assert_eq!(dial.wake_at(), Some(101 * second));
        dial.hasten(110 * second);
        assert_eq!(
            dial.wake_at(),
            Some(101 * second),
            "its time has come already"
        );
        for _ in 0..10 {
            dial.fail(200 * second, "no answer".to_owned());
        }
        dial.hasten(202 * second);
        assert_eq!(dial.wake_at(), Some(202 * second));
        dial.linked(203 * second);
        dial.hasten(203 * second);
        assert_eq!(dial.wake_at(), None);
    }

    #[test]
    fn a_member_that_ends_each_link_is_not_tried_in_haste_because_it_is_said_to_be_there() {
        let (second, silent_after) = (Duration::from_secs(1), Duration::from_secs(3));
        let mut dial = Dial::new("192.0.2.1:1".to_owned(), Duration::ZERO);
        let refused = |dial: &mut Dial, now| {
            dial.linked(now);
            dial.lost(now, silent_after, "the peer has closed it".to_owned());
            dial.wake_at().unwrap() - now
        };
        for _ in 0..10 {
            refused(&mut dial, 100 * second);
        }
        dial.hasten(101 * second);
        assert_eq!(dial.wake_at(), Some(101 * second), "once");
        let next = refused(&mut dial, 101 * second);
        assert!(next >= LONGEST_PAUSE / 2, "{next:?}");
        // Nobody answers any more, and then it is said to be there again: it was started anew.
        dial.fail(200 * second, "no answer".to_owned());
        dial.hasten(210 * second);
        let next = refused(&mut dial, 210 * second);
        assert!(next <= SHORTEST_PAUSE, "{next:?}");
    }

    #[test]
    fn links_that_end_by_silence_again_and_again_are_not_made_in_haste() {
        let silent_after = Duration::from_secs(3);
        let mut dial = Dial::new("192.0.2.1:1".to_owned(), Duration::ZERO);
        let mut now = Duration::ZERO;
        // How long it waits when a link is gone that has lasted for so long.
        let mut waits = |lasts: Duration| {
            dial.linked(now);
            now += lasts;
            dial.lost(now, silent_after, "nothing came for too long".to_owned());
            let wait = dial.wake_at().unwrap() - now;
            now += wait;
            wait
        };
        assert!(waits(100 * silent_after) <= SHORTEST_PAUSE, "a good one");
        let last = (0..10).map(|_| waits(silent_after)).last().unwrap();
        assert!(last >= LONGEST_PAUSE / 2, "{last:?}");
        assert!(waits(LASTED * silent_after) <= SHORTEST_PAUSE, "a good one");
    }
}
