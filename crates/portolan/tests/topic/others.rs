//! Subscribers in other processes: that read, that are killed, that are stopped.

use crate::long::{content, is_content};
use crate::{PATIENCE, options, until, used};
use portolan::channel::{Publisher, Subscriber, TopicOptions};
use portolan::{Deadline, Domain, Protection};
use portolan_testkit::{role, spawn, unique};
use std::process::Child;
use std::time::Instant;

const LONG: usize = 70_000;

/// The other process; nothing, when it is run as a test. It says what it has received.
#[test]
fn other() {
    let Some([what, name]) = role() else { return };
    let domain = Domain::join(&name).unwrap();
    let mut subscriber = domain.subscriber::<[u8]>("news", options()).unwrap();
    let mut said = domain.publisher::<u64>("said", options()).unwrap();
    said.publish(&u64::MAX).unwrap();
    let mut held = Vec::new();
    loop {
        let sample = subscriber.receive(PATIENCE).unwrap();
        is_content(&sample, sample.position());
        said.publish(&sample.position()).unwrap();
        if what == "holds" {
            held.push(sample);
        }
    }
}

/// Another process that is subscribed, and what it says.
struct Other {
    child: Child,
    said: Subscriber<u64>,
}

impl Other {
    fn start(domain: &Domain, what: &str) -> Self {
        let said = domain.subscriber::<u64>("said", options()).unwrap();
        let child = spawn("others::other", &[what, domain.name()]);
        let mut other = Self { child, said };
        other.await_word(u64::MAX);
        other
    }

    fn await_word(&mut self, word: u64) {
        let end = Instant::now() + PATIENCE;
        while *self.said.receive(end).unwrap() != word {}
    }

    fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.child.id()).unwrap();
        // SAFETY:
        // - Sends a signal to a child of ours, which was not waited for; nothing is touched.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }

    fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let stat = format!("/proc/{}/stat", self.child.id());
        until("its stop", || {
            let stat = std::fs::read_to_string(&stat).unwrap();
            stat.rsplit(") ").next().unwrap().starts_with('T')
        });
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn domain(test: &str, protection: Protection) -> Domain {
    let name = unique(&format!("topic-{test}"));
    Domain::builder(&name)
        .protection(protection)
        .join()
        .unwrap()
}

fn news(domain: &Domain) -> Publisher<[u8]> {
    domain.publisher("news", options()).unwrap()
}

/// The next one, whose number it returns: long ones, and short ones between them.
fn publish(publisher: &mut Publisher<[u8]>, next: &mut u64) -> u64 {
    let number = *next;
    let len = if number.is_multiple_of(3) { 100 } else { LONG };
    let mut loan = publisher.loan(len).unwrap();
    loan.copy_from_slice(&content(number, len));
    assert_eq!(loan.publish().unwrap(), number);
    *next += 1;
    number
}

#[test]
fn another_process_gets_every_sample_as_it_was_published() {
    for protection in [Protection::Trusted, Protection::Guarded] {
        let domain = domain("every", protection);
        let (mut publisher, mut next) = (news(&domain), 0);
        let mut other = Other::start(&domain, "reads");
        for _ in 0..300 {
            // It checks every byte, and says so.
            let number = publish(&mut publisher, &mut next);
            other.await_word(number);
        }
        drop((other, publisher));
        until("nothing left", || used(&domain) == (0, 0));
    }
}

#[test]
fn what_a_killed_subscriber_held_is_freed_and_stays_for_the_others() {
    for protection in [Protection::Trusted, Protection::Guarded] {
        let domain = domain("killed", protection);
        let (mut publisher, mut next) = (news(&domain), 0);
        let mut ours = domain.subscriber::<[u8]>("news", options()).unwrap();
        let mut held = Vec::new();
        for round in 0..3 {
            let mut other = Other::start(&domain, "holds");
            for _ in 0..40 {
                let number = publish(&mut publisher, &mut next);
                other.await_word(number);
                held.push(ours.receive(Deadline::NOW).unwrap());
            }
            if round == 0 {
                // Only the other one holds the rest.
                held.truncate(10);
            }
            let before = used(&domain);
            other.child.kill().unwrap();
            other.child.wait().unwrap();
            for _ in 0..100 {
                let number = publish(&mut publisher, &mut next);
                assert_eq!(ours.receive(Deadline::NOW).unwrap().position(), number);
            }
            if round == 0 {
                until("what it held", || used(&domain) < before);
            }
            drop(other);
        }
        for sample in &held {
            is_content(sample, sample.position());
        }
        drop((held, ours, publisher));
        until("nothing left", || used(&domain) == (0, 0));
    }
}

#[test]
fn a_stopped_subscriber_stops_nobody_and_takes_no_more_than_it_held() {
    let domain = domain("stopped", Protection::Trusted);
    let (mut publisher, mut next) = (news(&domain), 0);
    let mut ours = domain.subscriber::<[u8]>("news", options()).unwrap();
    let mut other = Other::start(&domain, "holds");
    for round in 0..5 {
        for _ in 0..10 {
            let number = publish(&mut publisher, &mut next);
            assert_eq!(ours.receive(Deadline::NOW).unwrap().position(), number);
            if round % 2 == 0 {
                other.await_word(number);
            }
        }
        // Asleep, or in the middle of something, with samples in its hands.
        other.stop();
        let mut then = used(&domain).0;
        for i in 0..1000 {
            let number = publish(&mut publisher, &mut next);
            let sample = ours.receive(Deadline::NOW).unwrap();
            assert_eq!((sample.position(), sample.missed()), (number, 0));
            is_content(&sample, number);
            if i == 20 {
                then = used(&domain).0;
            }
        }
        // It may have been about to take one more.
        assert!(used(&domain).0 <= then + 2 * LONG.next_power_of_two() as u64);
        let number = publish(&mut publisher, &mut next);
        ours.receive(Deadline::NOW).unwrap();
        other.signal(libc::SIGCONT);
        // It goes on, and misses what it was too late for.
        other.await_word(number);
    }
    drop((other, ours, publisher));
    until("nothing left", || used(&domain) == (0, 0));
}

#[test]
fn a_dead_subscriber_is_nobodys_business() {
    let domain = domain("dead", Protection::Trusted);
    let (mut publisher, mut next) = (news(&domain), 0);
    let mut ours = domain.subscriber::<[u8]>("news", options()).unwrap();
    for _ in 0..3 {
        let mut other = Other::start(&domain, "reads");
        for i in 0..2000 {
            let number = publish(&mut publisher, &mut next);
            assert_eq!(ours.receive(Deadline::NOW).unwrap().position(), number);
            if i == 1000 {
                other.child.kill().unwrap();
            }
        }
    }
    // Large histories are memory that the publisher keeps.
    let kept = TopicOptions::default().history(100);
    drop(domain.publisher::<[u8]>("kept", kept).unwrap());
}
