//! Topics: who gets what, and that nobody holds anybody up.

use portolan::channel::{SubscribeError, TopicError, TopicOptions};
use portolan::{Deadline, Domain};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
const ROLE: &str = "PORTOLAN_TOPIC_ROLE";

fn options() -> TopicOptions {
    TopicOptions::default().history(10)
}

#[test]
fn every_subscriber_gets_every_sample_of_every_publisher() {
    let domain = Domain::private().unwrap();
    let mut early = domain.subscriber::<[u64; 2]>("numbers", options()).unwrap();
    assert_eq!(early.publishers(), 0);
    let mut publishers: Vec<_> = (0..3)
        .map(|_| domain.publisher::<[u64; 2]>("numbers", options()).unwrap())
        .collect();
    let ids: Vec<_> = publishers.iter().map(|p| p.id()).collect();
    assert_eq!(ids, [0, 1, 2]);
    let mut second = domain.subscriber::<[u64; 2]>("numbers", options()).unwrap();
    for round in 0..100 {
        for (i, publisher) in publishers.iter_mut().enumerate() {
            publisher.publish(&[i as u64, round]).unwrap();
        }
        for subscriber in [&mut early, &mut second] {
            let mut got = BTreeMap::new();
            for _ in 0..3 {
                let sample = subscriber.receive(Deadline::NOW).unwrap();
                assert_eq!((sample.position(), sample.missed()), (round, 0));
                assert_eq!(u64::from(sample.publisher()), sample[0]);
                got.insert(sample[0], sample.into_inner()[1]);
            }
            assert_eq!(got, BTreeMap::from([(0, round), (1, round), (2, round)]));
            assert!(matches!(
                subscriber.receive(Deadline::NOW),
                Err(SubscribeError::TimedOut)
            ));
        }
    }
    assert_eq!(early.publishers(), 3);
}

#[test]
fn a_publishers_place_is_taken_by_the_next() {
    let domain = Domain::private().unwrap();
    let few = options().publishers(1);
    let mut first = domain.publisher::<u32>("t", few).unwrap();
    let mut subscriber = domain.subscriber::<u32>("t", few).unwrap();
    assert!(matches!(
        domain.publisher::<u32>("t", few),
        Err(TopicError::TooManyPublishers { publishers: 1 })
    ));
    first.publish(&1).unwrap();
    drop(first);
    let mut second = domain.publisher::<u32>("t", few).unwrap();
    assert_eq!(second.publish(&2).unwrap(), 1);
    assert_eq!(*subscriber.receive(Deadline::NOW).unwrap(), 1);
    assert_eq!(*subscriber.receive(Deadline::NOW).unwrap(), 2);
}

#[test]
fn types_are_compared() {
    let domain = Domain::private().unwrap();
    let _publisher = domain.publisher::<[u8; 4]>("bytes", options()).unwrap();
    let other = domain.subscriber::<u32>("bytes", options()).unwrap_err();
    let TopicError::OtherType {
        topic,
        expected,
        found,
        ..
    } = other
    else {
        panic!("{other}")
    };
    assert!(topic == "bytes" && expected != found);
    assert!(domain.publisher::<[i8; 4]>("bytes", options()).is_err());
}

#[test]
fn who_is_late_gets_the_history_and_who_is_slow_is_told_what_it_missed() {
    let domain = Domain::private().unwrap();
    let mut publisher = domain.publisher::<u64>("t", options()).unwrap();
    let mut slow = domain.subscriber::<u64>("t", options()).unwrap();
    for i in 0..1000 {
        publisher.publish(&i).unwrap();
    }
    let mut late = domain.subscriber::<u64>("t", options()).unwrap();
    for i in 990..1000 {
        let sample = late.receive(Deadline::NOW).unwrap();
        assert_eq!((*sample, sample.missed()), (i, 0));
    }
    let first = slow.receive(Deadline::NOW).unwrap();
    assert!(*first >= 980 && first.missed() == *first);
    for i in *first + 1..1000 {
        let sample = slow.receive(Deadline::NOW).unwrap();
        assert_eq!((*sample, sample.missed()), (i, 0));
    }
    // In place; a loan that is given up publishes nothing.
    drop(publisher.loan().unwrap());
    let loan = publisher.loan().unwrap();
    loan.write(&5);
    assert_eq!(loan.words().len(), 1);
    assert_eq!(loan.publish(), 1000);
    assert_eq!(*late.receive(Deadline::NOW).unwrap(), 5);
}

#[test]
fn a_sleeping_subscriber_is_woken_by_a_newcomer() {
    let domain = Domain::private().unwrap();
    for round in 0..20u64 {
        let topic = format!("t{round}");
        let mut subscriber = domain.subscriber::<u64>(&topic, options()).unwrap();
        std::thread::scope(|scope| {
            let publisher = scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(round % 3));
                let mut publisher = domain.publisher::<u64>(&topic, options()).unwrap();
                publisher.publish(&round).unwrap();
                // What nobody follows yet goes with it.
                publisher
            });
            assert_eq!(*subscriber.receive(PATIENCE).unwrap(), round);
            drop(publisher.join().unwrap());
        });
    }
}

/// The other process; nothing, when it is run as a test.
#[test]
fn other() {
    let Ok(name) = std::env::var(ROLE) else {
        return;
    };
    let domain = Domain::join(&name).unwrap();
    let mut subscriber = domain.subscriber::<u64>("news", options()).unwrap();
    let mut ready = domain.publisher::<u32>("ready", options()).unwrap();
    ready.publish(&std::process::id()).unwrap();
    loop {
        let _ = subscriber.receive(PATIENCE).unwrap();
    }
}

#[test]
fn a_dead_subscriber_is_nobodys_business() {
    let name = format!("topic-{}", std::process::id());
    let domain = Domain::join(&name).unwrap();
    let mut publisher = domain.publisher::<u64>("news", options()).unwrap();
    let mut ours = domain.subscriber::<u64>("news", options()).unwrap();
    let mut ready = domain.subscriber::<u32>("ready", options()).unwrap();
    let mut next = 0;
    for _ in 0..3 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["other", "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, &name)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while *ready.receive(PATIENCE).unwrap() != child.id() {}
        for i in next..next + 2000 {
            publisher.publish(&i).unwrap();
            assert_eq!(*ours.receive(Deadline::NOW).unwrap(), i);
            if i == next + 1000 {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        next += 2000;
    }
}
