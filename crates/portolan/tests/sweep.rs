//! A thread that gives a closed port's entry back may be stopped, and go on when another port has
//! the entry. This is a program of its own, because its threads stop at marks.
#![cfg(feature = "marks")]

use portolan::{Domain, Message, PortOptions, PortState, SendError, WhenFull};
use portolan_abi::limits::MIN_ROUND;
use portolan_testkit::until;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// A thread that stops the first time that it comes to a mark.
struct Stop {
    thread: &'static str,
    mark: &'static str,
    reached: AtomicBool,
    goes_on: AtomicBool,
}

impl Stop {
    const fn new(thread: &'static str, mark: &'static str) -> Self {
        Self {
            thread,
            mark,
            reached: AtomicBool::new(false),
            goes_on: AtomicBool::new(false),
        }
    }

    fn is_reached(&self) -> bool {
        self.reached.load(Ordering::SeqCst)
    }

    fn go_on(&self) {
        self.goes_on.store(true, Ordering::SeqCst);
    }

    fn pass(&self, mark: &str) {
        let is_ours = mark == self.mark && thread::current().name() == Some(self.thread);
        if is_ours && !self.reached.swap(true, Ordering::SeqCst) {
            while !self.goes_on.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

static SWEEPER: Stop = Stop::new("sweeper", "entry.sweeping");
static SENDER: Stop = Stop::new("sender", "send.claimed");

fn reached(mark: &'static str) {
    SWEEPER.pass(mark);
    SENDER.pass(mark);
}

fn start<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .unwrap()
}

/// The ports of the domain: their entries, and whether each is being closed.
fn ports(domain: &Domain) -> Vec<(u16, bool)> {
    let survey = domain.survey().unwrap();
    let port = |port: &portolan::PortSurvey| (port.index, port.state == PortState::Closing);
    survey.ports.iter().map(port).collect()
}

#[test]
fn a_late_sweeper_leaves_the_next_port_of_the_entry_alone() {
    portolan_shm::mark::install(reached);
    let domain = Domain::private().unwrap();
    let bind = || domain.bind(PortOptions::unnamed().queue(1)).unwrap();
    let first = bind();
    let stale = first.make_send();
    let index = ports(&domain)[0].0;
    let sweeper = start("sweeper", move || drop(first));
    until("the sweeper has looked at the entry", || {
        SWEEPER.is_reached()
    });
    // Another thread gives the entry back.
    let refused = stale.send(Message::default(), WhenFull::Fail).unwrap_err();
    assert!(matches!(refused.why, SendError::DeadName));
    assert_eq!(ports(&domain), []);
    // Another port has the memory of the queue; a later one the entry, with other memory.
    let other = bind();
    for _ in 2..MIN_ROUND {
        drop(bind());
    }
    let next = bind();
    assert!(
        ports(&domain).contains(&(index, false)),
        "its turn has come"
    );
    // The memory that the sweeper knows of is a closed queue again.
    drop(other);
    let right = next.make_send();
    let sender = start("sender", move || {
        right.send(Message::new(b"kept").unwrap(), WhenFull::Fail)
    });
    until("the sender has claimed a slot", || SENDER.is_reached());
    drop(next);
    assert_eq!(ports(&domain), [(index, true)]);
    SWEEPER.go_on();
    sweeper.join().unwrap();
    assert_eq!(ports(&domain), [(index, true)], "a slot of it is claimed");
    SENDER.go_on();
    let refused = sender.join().unwrap().unwrap_err();
    assert!(matches!(refused.why, SendError::DeadName));
    assert_eq!(refused.item.header(), b"kept");
    until("the entry is free", || ports(&domain).is_empty());
}
