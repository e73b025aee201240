//! Publishers that are killed, and the subscribers that are told.

use crate::{Other, soon};
use portolan::channel::{ReaderOptions, SubscribeError, TopicOptions};
use portolan::reconnect::{PublisherGone, ReconnectingSubscriber, Update};
use portolan::{Deadline, Domain, WaitSet};
use portolan_testkit::unique;
use std::time::Duration;

fn options() -> TopicOptions {
    TopicOptions::default().history(64)
}

/// Publishes its samples' positions, and tells that it has begun.
pub(crate) fn publish(domain: &Domain) {
    let mut publisher = domain.publisher::<u64>("numbers", options()).unwrap();
    println!("told publishes");
    let mut next = 0;
    loop {
        next = publisher.publish(&next).unwrap() + 1;
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Receives until a publisher has gone; positions must go on at `next`, but for those missed.
fn until_gone(subscriber: &mut ReconnectingSubscriber<u64>, mut next: u64) -> PublisherGone {
    loop {
        match subscriber.receive(soon()).unwrap() {
            Update::Sample(sample) => {
                assert_eq!(sample.position(), next + sample.missed());
                next = sample.position() + 1;
            }
            Update::Gone(gone) => {
                assert_eq!(
                    gone.next,
                    next + gone.missed,
                    "every sample is accounted for"
                );
                return gone;
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_subscriber_is_told_of_killed_publishers_and_goes_on() {
    let name = unique("reconnect-topic");
    let domain = Domain::join(&name).unwrap();
    let mut subscriber = domain
        .reconnecting_subscriber::<u64>("numbers", options())
        .unwrap();
    let mut next = 0;
    for _ in 0..3 {
        assert_eq!(subscriber.live_publishers(), 0);
        let mut publisher = Other::start("publishes", &name);
        assert_eq!(publisher.told().as_deref(), Some("publishes"));
        let Update::Sample(sample) = subscriber.receive(soon()).unwrap() else {
            panic!("the publisher lives")
        };
        assert_eq!(sample.position(), next + sample.missed());
        publisher.kill();
        let gone = until_gone(&mut subscriber, sample.position() + 1);
        assert_eq!(gone.publisher, 0);
        next = gone.next;
        // Told once.
        let nothing = subscriber.receive(Deadline::NOW);
        assert!(matches!(nothing, Err(SubscribeError::TimedOut)));
    }
}

/// A plain subscriber is not told where the next publisher has come by the time it looks. Of the two
/// here, one has followed the first publisher, and the other one finds its channel later.
#[test]
fn a_publisher_whose_place_was_taken_at_once_is_told_of() {
    let domain = Domain::private().unwrap();
    let subscribe = || domain.reconnecting_subscriber::<u64>("numbers", options());
    let (mut early, mut late) = (subscribe().unwrap(), subscribe().unwrap());
    let mut first = domain.publisher::<u64>("numbers", options()).unwrap();
    first.publish(&0).unwrap();
    let Update::Sample(sample) = early.receive(soon()).unwrap() else {
        panic!("the publisher is there")
    };
    assert_eq!(sample.position(), 0);
    drop(first);
    let mut second = domain.publisher::<u64>("numbers", options()).unwrap();
    second.publish(&1).unwrap();
    for (subscriber, next) in [(&mut early, 1), (&mut late, 0)] {
        let gone = until_gone(subscriber, next);
        assert_eq!((gone.publisher, gone.next, gone.missed), (0, 2, 0));
        assert_eq!(subscriber.live_publishers(), 1);
    }
}

#[test]
fn a_wait_set_names_a_subscriber_whose_publisher_was_killed() {
    let name = unique("reconnect-topic-set");
    let domain = Domain::join(&name).unwrap();
    let mut set = WaitSet::new(&domain).unwrap();
    let subscriber = domain
        .reconnecting_subscriber::<u64>("numbers", options())
        .unwrap();
    let token = set.add(subscriber).unwrap();
    let mut publisher = Some(Other::start("publishes", &name));
    let mut samples = 0;
    loop {
        assert_eq!(set.wait(soon()).unwrap().next(), Some(token.any()));
        let subscriber = set.get_mut(token).unwrap();
        match subscriber.receive(Deadline::NOW) {
            Ok(Update::Sample(_)) => samples += 1,
            Ok(Update::Gone(_)) => break,
            // It was a publisher that came.
            Err(SubscribeError::TimedOut) => {}
            other => panic!("{other:?}"),
        }
        if samples == 20
            && let Some(publisher) = publisher.take()
        {
            publisher.kill();
        }
    }
    assert!(samples >= 20);
    assert!(set.wait(Deadline::NOW).unwrap().is_empty());
}

#[test]
fn a_wait_set_names_a_subscriber_that_tries_a_publisher_again() {
    let domain = Domain::private().unwrap();
    let one = options().subscribers(1);
    let subscriber = domain.reconnecting_subscriber::<u64>("numbers", one);
    let mut publisher = domain.publisher::<u64>("numbers", one).unwrap();
    // It takes the only entry.
    let other = publisher.channel().bind_reader(ReaderOptions::default());
    let mut set = WaitSet::new(&domain).unwrap();
    let token = set.add(subscriber.unwrap()).unwrap();
    assert_eq!(set.wait(soon()).unwrap().next(), Some(token.any()));
    let refused = set.get_mut(token).unwrap().receive(Deadline::NOW);
    assert!(
        matches!(refused, Err(SubscribeError::Topic(_))),
        "{refused:?}"
    );
    drop(other);
    publisher.publish(&7).unwrap();
    let sample = loop {
        assert_eq!(set.wait(soon()).unwrap().next(), Some(token.any()));
        match set.get_mut(token).unwrap().receive(Deadline::NOW) {
            Ok(Update::Sample(sample)) => break *sample,
            Err(SubscribeError::TimedOut) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(sample, 7);
}
