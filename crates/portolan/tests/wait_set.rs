//! Wait sets: whatever comes is named, whoever waits is woken, and nothing else happens.

use portolan::{
    Access, Deadline, Domain, Message, Notice, PortOptions, Ready, ReceiveError, ReceiveRight,
    SendRight, Token, WaitSet, WaitSetError, Waiting, WhenFull,
};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::Once;
use std::sync::mpsc::channel;
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
    rights: Vec<(Token, SendRight)>,
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

    fn token(&self, port: usize) -> Token {
        self.rights[port].0
    }

    /// What is ready now. If nothing is, every port is armed afterwards.
    fn now(&mut self) -> Vec<Token> {
        let ready: Vec<Token> = self.set.wait(Deadline::NOW).unwrap().collect();
        if ready.is_empty() {
            assert!(self.set.wait(Duration::from_micros(1)).unwrap().is_empty());
        }
        ready
    }

    /// Takes one message from a port of the set.
    fn take(&mut self, token: Token) -> Result<String, ReceiveError> {
        take(self.set.port_mut(token).unwrap())
    }
}

fn send(right: &SendRight, text: &str) {
    right
        .send(Message::new(text.as_bytes()).unwrap(), soon())
        .unwrap();
}

fn take(port: &mut ReceiveRight) -> Result<String, ReceiveError> {
    let message = port.try_receive(Access::Later)?;
    Ok(message.notice().map_or_else(
        || String::from_utf8_lossy(message.header()).into_owned(),
        |notice| format!("{notice:?}"),
    ))
}

/// Everything that the named ports have.
fn drain(set: &mut WaitSet, ready: Ready) -> Vec<String> {
    let mut all = Vec::new();
    for token in ready {
        let port = set.port_mut(token).unwrap();
        all.extend(std::iter::from_fn(|| take(port).ok()));
    }
    all
}

#[test]
fn one_active_port_of_many_is_named() {
    let mut f = Fixture::new(2000);
    assert_eq!(f.now(), []);
    for port in [0, 1, 63, 64, 999, 1999] {
        f.send(port, "it");
        assert_eq!(
            f.set.wait(soon()).unwrap().collect::<Vec<_>>(),
            [f.token(port)]
        );
        assert_eq!(f.take(f.token(port)).unwrap(), "it");
        assert_eq!(f.now(), []);
    }
    // All of them at once.
    (0..2000).for_each(|port| f.send(port, "all"));
    let ready: BTreeSet<Token> = f.now().into_iter().collect();
    assert_eq!(ready, f.rights.iter().map(|(token, _)| *token).collect());
}

#[test]
fn a_port_that_was_not_drained_is_named_again() {
    let mut f = Fixture::new(3);
    f.send(1, "a");
    f.send(1, "b");
    let one = [f.token(1)];
    // Not touched at all, then one taken, then the other.
    assert_eq!(f.now(), one);
    assert_eq!(f.now(), one);
    assert_eq!(f.take(one[0]).unwrap(), "a");
    assert_eq!(f.now(), one);
    assert_eq!(f.take(one[0]).unwrap(), "b");
    assert_eq!(f.now(), []);
    // And others are not hidden by it.
    f.send(1, "c");
    assert_eq!(f.now(), one);
    f.send(2, "d");
    assert_eq!(f.now(), [f.token(1), f.token(2)]);
}

#[test]
fn what_was_there_before_is_named() {
    let domain = Domain::private().unwrap();
    let port = domain.bind(PortOptions::unnamed()).unwrap();
    send(&port.make_send(), "early");
    let mut set = WaitSet::new(&domain).unwrap();
    let token = set.add(port).unwrap();
    assert_eq!(set.wait(soon()).unwrap().collect::<Vec<_>>(), [token]);
}

#[test]
fn a_deadline_ends_a_wait_that_finds_nothing() {
    let mut f = Fixture::new(2);
    for waiting in [Waiting::Adaptive, Waiting::Sleep, Waiting::Poll] {
        f.set.set_waiting(waiting);
        let ready = f.set.wait(Duration::from_millis(20)).unwrap();
        assert!(ready.is_empty(), "{waiting:?}");
    }
    assert_eq!(
        WaitSet::new(&f.domain)
            .unwrap()
            .wait(Deadline::NOW)
            .unwrap()
            .len(),
        0
    );
}

#[test]
fn requests_make_a_port_ready_and_their_clients_are_answered() {
    let domain = Domain::private().unwrap();
    let port = domain.bind(PortOptions::unnamed().synchronous()).unwrap();
    let right = port.make_send();
    let mut set = WaitSet::new(&domain).unwrap();
    let token = set.add(port).unwrap();
    let client = std::thread::spawn(move || {
        for _ in 0..100 {
            let answer = right.request_reply(Message::new(b"?").unwrap(), Access::Later, soon());
            assert_eq!(answer.unwrap().header(), b"?");
        }
    });
    let mut served = 0;
    while served < 100 {
        for ready in set.wait(soon()).unwrap() {
            assert_eq!(ready, token);
            let port = set.port_mut(ready).unwrap();
            while let Ok(request) = port.get_request(Access::Later, Deadline::NOW) {
                request.reply_in_place().unwrap();
                served += 1;
            }
        }
    }
    client.join().unwrap();
}

#[test]
fn notices_make_a_port_ready() {
    let mut f = Fixture::new(3);
    let watched = f.domain.bind(PortOptions::unnamed()).unwrap();
    watched
        .make_send()
        .watch(f.set.port(f.token(0)).unwrap(), 7)
        .unwrap();
    f.set.port(f.token(2)).unwrap().request_no_more_senders();
    assert_eq!(f.now(), []);

    let (last, right) = f.rights.pop().unwrap();
    let waker = std::thread::spawn(move || drop(right));
    assert_eq!(f.set.wait(soon()).unwrap().collect::<Vec<_>>(), [last]);
    waker.join().unwrap();
    assert_eq!(
        f.take(last).unwrap(),
        format!("{:?}", Notice::NoMoreSenders)
    );
    assert_eq!(f.now(), []);

    let waker = std::thread::spawn(move || drop(watched));
    assert_eq!(
        f.set.wait(soon()).unwrap().collect::<Vec<_>>(),
        [f.token(0)]
    );
    waker.join().unwrap();
    assert_eq!(
        f.take(f.token(0)).unwrap(),
        format!("{:?}", Notice::DeadName { token: 7 })
    );
    assert_eq!(f.now(), []);
}

#[test]
fn a_port_of_a_set_can_be_waited_for_by_itself() {
    let mut f = Fixture::new(2);
    assert_eq!(f.now(), []);
    let token = f.token(0);
    for waiting in [Waiting::Sleep, Waiting::Adaptive] {
        let right = f.rights[0].1.clone();
        let sender = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            send(&right, "direct");
        });
        let port = f.set.port_mut(token).unwrap();
        port.set_waiting(waiting);
        assert_eq!(
            port.receive(Access::Later, soon()).unwrap().header(),
            b"direct"
        );
        sender.join().unwrap();
        assert_eq!(f.now(), []);
    }
    f.send(1, "other");
    assert_eq!(f.now(), [f.token(1)]);
}

#[test]
fn ports_come_and_go() {
    let mut f = Fixture::new(3);
    assert_eq!((f.set.len(), f.now()), (3, vec![]));
    // Taken out while armed: it works by itself.
    let mut port = f.set.remove(f.token(1)).unwrap();
    assert!(f.set.remove(f.token(1)).is_none());
    assert!(f.set.port(f.token(1)).is_none() && f.set.port_mut(f.token(1)).is_none());
    f.send(1, "alone");
    assert_eq!(f.now(), []);
    assert_eq!(
        port.receive(Access::Later, soon()).unwrap().header(),
        b"alone"
    );
    // Put back: another token, perhaps in the same place.
    f.send(1, "back");
    let token = f.set.add(port).unwrap();
    assert_ne!(token, f.token(1));
    assert_eq!(f.now(), [token]);
    // Taken out while named.
    let port = f.set.remove(token).unwrap();
    assert_eq!(f.now(), []);
    assert_eq!((f.set.len(), port.depth()), (2, 1));
}

#[test]
fn a_port_moves_from_set_to_set() {
    let mut f = Fixture::new(2);
    let mut other = WaitSet::new(&f.domain).unwrap();
    assert_eq!(f.now(), []);
    let moved = other.add(f.set.remove(f.token(0)).unwrap()).unwrap();
    assert!(other.wait(Deadline::NOW).unwrap().is_empty());
    f.send(0, "there");
    f.send(1, "here");
    assert_eq!(f.now(), [f.token(1)]);
    assert_eq!(other.wait(soon()).unwrap().collect::<Vec<_>>(), [moved]);
}

#[test]
fn ports_that_were_exchanged_are_still_waited_for() {
    let mut f = Fixture::new(2);
    assert_eq!(f.now(), []);
    // What `&mut` allows: the port of place 0 is now outside.
    let mut outside = f.domain.bind(PortOptions::unnamed()).unwrap();
    let inside = outside.make_send();
    std::mem::swap(f.set.port_mut(f.token(0)).unwrap(), &mut outside);
    assert_eq!(f.now(), []);
    send(&inside, "in");
    assert_eq!(f.now(), [f.token(0)]);
    f.send(0, "out");
    assert_eq!(
        outside.receive(Access::Later, soon()).unwrap().header(),
        b"out"
    );
}

#[test]
fn a_port_of_another_domain_is_refused() {
    let mut f = Fixture::new(0);
    let port = Domain::private()
        .unwrap()
        .bind(PortOptions::unnamed())
        .unwrap();
    let mut port = f.set.add(port).unwrap_err().port;
    send(&port.make_send(), "mine");
    assert_eq!(take(&mut port).unwrap(), "mine");
}

#[test]
fn a_dropped_set_closes_its_ports_and_can_be_had_again() -> Outcome {
    let f = Fixture::new(2);
    drop(f.set);
    assert!(f.rights.iter().all(|(_, right)| !right.is_live()));
    // More often than there are sets.
    for _ in 0..600 {
        let mut set = WaitSet::new(&f.domain)?;
        let port = f.domain.bind(PortOptions::unnamed())?;
        send(&port.make_send(), "once");
        let token = set.add(port)?;
        assert_eq!(set.wait(soon())?.collect::<Vec<_>>(), [token]);
    }
    Ok(())
}

#[test]
fn there_are_512_sets() {
    let domain = Domain::private().unwrap();
    let mut sets = Vec::new();
    let error = loop {
        match WaitSet::new(&domain) {
            Ok(set) => sets.push(set),
            Err(error) => break error,
        }
    };
    // Or the process may not have that many descriptors.
    if let WaitSetError::NoRoom { limit } = error {
        assert_eq!((sets.len(), limit), (512, 512));
    }
    sets.pop();
    WaitSet::new(&domain).unwrap();
}

/// A pseudo-random pause, most often none.
fn pause(seed: &mut u64) {
    *seed = seed
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    match *seed >> 56 {
        0..2 => std::thread::sleep(Duration::from_micros(*seed >> 40 & 0xff)),
        2..16 => std::thread::yield_now(),
        16..32 => (0..*seed >> 40 & 0xfff).for_each(|_| std::hint::spin_loop()),
        _ => {}
    }
}

/// Two threads send 10,000 messages each to some of 64 ports.
fn two_threads(f: &Fixture) -> Vec<std::thread::JoinHandle<()>> {
    let threads = (0..2u64).map(|thread| {
        let rights: Vec<SendRight> = f.rights.iter().map(|(_, right)| right.clone()).collect();
        std::thread::spawn(move || {
            let mut seed = thread + 1;
            for number in 0..10_000usize {
                pause(&mut seed);
                send(
                    &rights[(number * number + 7 * number) % rights.len()],
                    &format!("{thread} {number}"),
                );
            }
        })
    });
    threads.collect()
}

/// Receives what the two threads send; `wait` waits.
fn all_arrives(mut f: Fixture, mut wait: impl FnMut(&mut WaitSet) -> Ready) {
    let threads = two_threads(&f);
    let mut last: BTreeMap<(Token, String), usize> = BTreeMap::new();
    let mut seed = 99u64;
    let mut received = 0;
    while received < 20_000 {
        let ready = wait(&mut f.set);
        for token in ready {
            let port = f.set.port_mut(token).unwrap();
            // Now and then one only, now and then none.
            let most = [usize::MAX, usize::MAX, 1, 0][usize::from(seed.to_le_bytes()[1] & 3)];
            pause(&mut seed);
            for text in std::iter::from_fn(|| take(port).ok()).take(most) {
                let (thread, number) = text.split_once(' ').unwrap();
                let number: usize = number.parse().unwrap();
                let before = last.insert((token, thread.to_owned()), number);
                assert!(
                    before.is_none_or(|b| b < number),
                    "the order of one sender's messages"
                );
                received += 1;
            }
        }
    }
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(f.now(), []);
}

#[test]
fn no_wake_is_lost() {
    for waiting in [Waiting::Sleep, Waiting::Adaptive] {
        let mut f = Fixture::new(64);
        f.set.set_waiting(waiting);
        all_arrives(f, |set| {
            let ready = set.wait(soon()).unwrap();
            assert!(!ready.is_empty(), "something is sent and nothing wakes us");
            ready
        });
    }
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

#[test]
fn no_wake_is_lost_with_epoll() {
    let f = Fixture::new(64);
    let epoll = Epoll::of(&f.set, EventFlags::empty());
    let mut seed = 5;
    all_arrives(f, |set| {
        // Now and then without being asked for.
        let asked = seed & 0x30000 != 0;
        pause(&mut seed);
        if asked {
            assert!(
                epoll.wait(PATIENCE),
                "something is sent and the set is not readable"
            );
        }
        let ready = set.wait(Deadline::NOW).unwrap();
        if !ready.is_empty() {
            assert!(
                epoll.wait(PATIENCE),
                "something is there and the set is not readable"
            );
        }
        ready
    });
}

#[test]
fn the_descriptor_is_readable_when_a_look_was_faster() {
    let mut f = Fixture::new(10);
    let epoll = Epoll::of(&f.set, EventFlags::empty());
    let right = f.rights[3].1.clone();
    let (go, goes) = channel::<u64>();
    let sender = std::thread::spawn(move || {
        for spins in goes {
            (0..spins).for_each(|_| std::hint::spin_loop());
            send(&right, "x");
        }
    });
    for round in 0..3000 {
        assert_eq!(f.now(), []);
        assert!(!epoll.wait(Duration::ZERO), "nothing is there");
        go.send(round * 7 % 500).unwrap();
        while f.set.wait(Deadline::NOW).unwrap().is_empty() {}
        assert!(epoll.wait(PATIENCE), "something is there");
        assert_eq!(f.take(f.token(3)).unwrap(), "x");
    }
    drop(go);
    sender.join().unwrap();
}

#[test]
fn no_wake_is_lost_with_epoll_that_tells_changes() {
    let f = Fixture::new(64);
    let epoll = Epoll::of(&f.set, EventFlags::ET);
    // Until nothing is found it is not asked for again.
    let mut found = false;
    all_arrives(f, |set| {
        if !found {
            assert!(
                epoll.wait(PATIENCE),
                "something is sent and the set does not tell"
            );
        }
        let ready = set.wait(Deadline::NOW).unwrap();
        found = !ready.is_empty();
        ready
    });
}

#[test]
fn the_descriptor_is_readable_while_there_is_something() {
    let mut f = Fixture::new(3);
    let none = Duration::ZERO;
    let epoll = Epoll::of(&f.set, EventFlags::empty());
    let quiet = |f: &mut Fixture| {
        assert_eq!(f.now(), []);
        assert!(!epoll.wait(none), "nothing is there");
    };
    assert!(epoll.wait(PATIENCE), "nobody has looked yet");
    quiet(&mut f);

    f.send(2, "a");
    f.send(2, "b");
    assert!(epoll.wait(PATIENCE));
    assert_eq!(f.now(), [f.token(2)]);
    assert!(epoll.wait(PATIENCE), "not drained");
    assert_eq!(f.take(f.token(2)).unwrap(), "a");
    assert_eq!(f.now(), [f.token(2)]);
    assert_eq!(f.take(f.token(2)).unwrap(), "b");
    quiet(&mut f);

    // Found by a look that the descriptor did not ask for, and left there.
    f.set.set_waiting(Waiting::Sleep);
    f.send(0, "c");
    assert_eq!(f.set.wait(soon()).unwrap().len(), 1);
    assert!(epoll.wait(PATIENCE));
    assert_eq!(f.take(f.token(0)).unwrap(), "c");
    quiet(&mut f);

    // A port that is lent out, or added, is to be looked at again.
    f.set.port_mut(f.token(1)).unwrap();
    assert!(epoll.wait(PATIENCE));
    quiet(&mut f);
    let port = f.domain.bind(PortOptions::unnamed()).unwrap();
    f.set.add(port).unwrap();
    assert!(epoll.wait(PATIENCE));
    quiet(&mut f);

    // A wait with a deadline that found nothing is as good.
    assert!(f.set.wait(Duration::from_millis(1)).unwrap().is_empty());
    assert!(!epoll.wait(none));
    f.send(1, "d");
    assert!(epoll.wait(PATIENCE));
}

#[test]
fn a_blocking_wait_is_woken_while_the_descriptor_is_armed() {
    let mut f = Fixture::new(2);
    f.set.set_waiting(Waiting::Sleep);
    let _epoll = Epoll::of(&f.set, EventFlags::empty());
    for _ in 0..50 {
        assert_eq!(f.now(), []);
        let right = f.rights[1].1.clone();
        let sender = std::thread::spawn(move || send(&right, "x"));
        let ready = f.set.wait(soon()).unwrap();
        assert_eq!(drain(&mut f.set, ready), ["x"]);
        sender.join().unwrap();
    }
}

/// Set in another process of a test: the domain that it joins.
const CHILD: &str = "PORTOLAN_TEST_WAIT_SET";

/// Not a test: what the other processes run. Each line of input is sent to "inbox".
#[test]
fn sends_its_input() {
    let Ok(name) = std::env::var(CHILD) else {
        return;
    };
    let domain = Domain::join(&name).unwrap();
    let right = domain.connect("inbox", soon()).unwrap();
    let mut sets = Vec::new();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        if line == "make sets" {
            sets.extend((0..100).map(|_| WaitSet::new(&domain).unwrap()));
        }
        send(&right, &line);
    }
}

/// Another process. Killed when dropped.
struct Other(Child);

impl Other {
    fn of(domain: &Domain) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["sends_its_input", "--exact", "--nocapture"])
            .env(CHILD, domain.name())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    fn say(&mut self, line: &str) {
        writeln!(self.0.stdin.as_ref().unwrap(), "{line}").unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn joined(test: &str) -> Domain {
    let name = format!("test-wait-set-{test}-{}", std::process::id());
    Domain::builder(&name).size(64 << 20).join().unwrap()
}

#[test]
fn another_process_makes_the_descriptor_readable_by_sending_and_by_dying() {
    let domain = joined("epoll");
    let mut set = WaitSet::new(&domain).unwrap();
    for _ in 0..50 {
        set.add(domain.bind(PortOptions::unnamed()).unwrap())
            .unwrap();
    }
    let inbox = set
        .add(domain.bind(PortOptions::named("inbox")).unwrap())
        .unwrap();
    let epoll = Epoll::of(&set, EventFlags::empty());
    let told = |set: &mut WaitSet, other: &mut Other, line: &str| {
        // The set sleeps: only now is there something to wake it.
        assert!(set.wait(Deadline::NOW).unwrap().is_empty());
        match line {
            "NoMoreSenders" => other.0.kill().unwrap(),
            line => other.say(line),
        }
        loop {
            assert!(epoll.wait(PATIENCE), "{line}");
            let ready = set.wait(Deadline::NOW).unwrap();
            if !ready.is_empty() {
                assert_eq!(drain(set, ready), [line]);
                return;
            }
        }
    };
    let mut other = Other::of(&domain);
    for line in ["one", "two", "three"] {
        told(&mut set, &mut other, line);
    }
    set.port(inbox).unwrap().request_no_more_senders();
    // The host, which is this process, is told of the death and wakes who sleeps.
    told(&mut set, &mut other, "NoMoreSenders");
}

#[test]
fn a_dead_process_wakes_a_blocked_wait_and_leaves_its_sets() {
    let domain = joined("death");
    let inbox = domain.bind(PortOptions::named("inbox")).unwrap();
    let mut set = WaitSet::new(&domain).unwrap();
    set.set_waiting(Waiting::Sleep);
    let token = set.add(inbox).unwrap();
    // More sets than there are, were those of the dead not returned.
    for round in 0..7 {
        let mut other = Other::of(&domain);
        other.say("make sets");
        let ready = set.wait(soon()).unwrap();
        assert_eq!(drain(&mut set, ready), ["make sets"], "{round}");
        set.port(token).unwrap().request_no_more_senders();
        drop(other);
        let ready = set.wait(soon()).unwrap();
        assert_eq!(drain(&mut set, ready), ["NoMoreSenders"], "{round}");
    }
}

#[test]
fn a_full_queue_makes_room_while_its_port_is_in_a_set() {
    let mut f = Fixture::new(1);
    let right = f.rights[0].1.clone();
    let sender = std::thread::spawn(move || (0..1000).for_each(|n| send(&right, &n.to_string())));
    for expected in 0..1000 {
        // One at a time, however many there are.
        let token = f.set.wait(soon()).unwrap().next().unwrap();
        assert_eq!(f.take(token).unwrap(), expected.to_string());
    }
    sender.join().unwrap();
    assert!(
        f.rights[0]
            .1
            .send(Message::default(), WhenFull::Fail)
            .is_ok()
    );
}
