//! Publishers and subscribers that die at marked steps.

use crate::long::{content, is_content};
use crate::{PATIENCE, options, until, used};
use portolan::channel::{SubscribeError, TopicOptions};
use portolan::{Deadline, Domain, Protection};
use portolan_shm::mark::install;
use portolan_testkit::{die_at, role, spawn, unique};
use std::os::unix::process::ExitStatusExt;

const LONG: usize = 70_000;

/// The other process; nothing, when it is run as a test.
#[test]
fn victim() {
    let Some([what, name, mark]) = role() else {
        return;
    };
    let domain = Domain::join(&name).unwrap();
    if what == "subscribes" {
        let mut subscriber = domain.subscriber::<[u8]>("t", options()).unwrap();
        let mut held = Vec::new();
        loop {
            held.push(subscriber.receive(PATIENCE).unwrap());
            if held.len() == 6 {
                die_at(&mark, install);
            }
            if held.len() > 8 {
                // So that some are let go of, too.
                drop(held.remove(2));
            }
        }
    }
    let mut publisher = domain.publisher::<[u8]>("t", options()).unwrap();
    for number in 0.. {
        let mut loan = publisher.loan(LONG).unwrap();
        loan.copy_from_slice(&content(number, LONG));
        loan.publish().unwrap();
        if number == 30 {
            die_at(&mark, install);
        }
    }
}

fn domain(what: &str, mark: &str, protection: Protection) -> (Domain, std::process::Child) {
    let name = unique(&format!("topic-{what}"));
    let domain = Domain::builder(&name)
        .protection(protection)
        .join()
        .unwrap();
    let child = spawn("deaths::victim", &[what, &name, mark]);
    (domain, child)
}

#[test]
fn a_publisher_dies_at_whatever_step() {
    let all = [
        ("topic.taken_back", Protection::Trusted),
        ("channel.begun", Protection::Trusted),
        ("channel.filled", Protection::Trusted),
        ("channel.advanced", Protection::Trusted),
        ("topic.taken_back", Protection::Guarded),
        ("channel.published", Protection::Guarded),
    ];
    for (mark, protection) in all {
        let (domain, mut child) = domain("publishes", mark, protection);
        let mut subscriber = domain.subscriber::<[u8]>("t", options()).unwrap();
        let mut held = std::collections::VecDeque::new();
        loop {
            match subscriber.receive(Deadline::after(std::time::Duration::from_millis(100))) {
                Ok(sample) => {
                    is_content(&sample, sample.position());
                    held.push_back(sample);
                    held.truncate(3);
                }
                Err(SubscribeError::TimedOut) if child.try_wait().unwrap().is_some() => break,
                Err(SubscribeError::TimedOut) => {}
                Err(error) => panic!("{mark}: {error}"),
            }
        }
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(libc::SIGKILL), "{mark}");
        // What is held stays; the place is free.
        held.iter().for_each(|s| is_content(s, s.position()));
        let mut publisher = None;
        let one = TopicOptions::default().publishers(1);
        until(mark, || {
            publisher = domain.publisher::<[u8]>("t", one).ok();
            publisher.is_some()
        });
        let mut publisher = publisher.unwrap();
        let at = publisher.publish(&vec![3; LONG]).unwrap();
        let sample = subscriber.receive(Deadline::NOW).unwrap();
        assert_eq!((sample.position(), sample[LONG - 1]), (at, 3), "{mark}");
        drop((held, sample, subscriber, publisher));
        until(mark, || used(&domain) == (0, 0));
    }
}

#[test]
fn a_subscriber_dies_at_whatever_step() {
    let all = [
        ("segment.joining", Protection::Trusted),
        ("topic.joined", Protection::Trusted),
        ("channel.copied", Protection::Trusted),
        ("channel.armed", Protection::Trusted),
        ("segment.joining", Protection::Guarded),
    ];
    for (mark, protection) in all {
        let (domain, mut child) = domain("subscribes", mark, protection);
        let mut publisher = domain.publisher::<[u8]>("t", options()).unwrap();
        let mut ours = domain.subscriber::<[u8]>("t", options()).unwrap();
        let (mut number, mut after) = (0, 0);
        while after < 100 {
            let mut loan = publisher.loan(LONG).unwrap();
            loan.copy_from_slice(&content(number, LONG));
            loan.publish().unwrap();
            let sample = ours.receive(Deadline::NOW).unwrap();
            assert_eq!((sample.position(), sample.missed()), (number, 0), "{mark}");
            is_content(&sample, number);
            number += 1;
            std::thread::sleep(std::time::Duration::from_micros(200));
            after += u64::from(after > 0 || child.try_wait().unwrap().is_some());
        }
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(libc::SIGKILL), "{mark}");
        drop((ours, publisher));
        until(mark, || used(&domain) == (0, 0));
    }
}
