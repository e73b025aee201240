//! Tests topics: which subscriber gets what, and that no process delays another.

#[cfg(feature = "marks")]
mod deaths;
mod decided;
mod hostile;
mod long;
mod others;
#[cfg(feature = "marks")]
mod stops;
mod structures;
mod values;

use portolan::channel::{Plain, SubscribeError, TopicError, TopicOptions};
use portolan::{Deadline, Domain, PortKind};
use portolan_testkit::{PATIENCE, until};
use std::collections::BTreeMap;
use std::time::Duration;

/// Bytes of extents in use, and segments.
fn used(domain: &Domain) -> (u64, usize) {
    let survey = domain.survey().unwrap();
    let segments = survey.ports.iter().filter(|p| p.kind == PortKind::Segment);
    (survey.memory.used, segments.count())
}

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
    assert!(domain.subscriber::<[u8]>("bytes", options()).is_err());
    assert!(domain.subscriber::<[u8; 4]>("bytes", options()).is_ok());
    let _slices = domain.publisher::<[u16]>("slices", options()).unwrap();
    assert!(domain.subscriber::<[i16]>("slices", options()).is_err());
    assert!(domain.subscriber::<u16>("slices", options()).is_err());
    assert!(domain.subscriber::<[u16]>("slices", options()).is_ok());
}

/// One type, in three versions, as different programs have them.
mod version {
    macro_rules! version {
        ($module:ident, $name:ident, $first:ident) => {
            pub(super) mod $module {
                #[derive(Clone, Copy, portolan::channel::Payload)]
                #[repr(C)]
                pub(in super::super) struct $name {
                    pub(in super::super) $first: u32,
                    pub(in super::super) other: f32,
                }
            }
        };
    }
    version!(one, Reading, first);
    version!(again, Reading, first);
    version!(two, Reading, renamed);
}

#[test]
fn two_programs_types_are_one_if_they_mean_the_same() {
    let domain = Domain::private().unwrap();
    let mut publisher = domain
        .publisher::<version::one::Reading>("t", options())
        .unwrap();
    let mut subscriber = domain
        .subscriber::<version::again::Reading>("t", options())
        .unwrap();
    let (first, other) = (7, 0.5);
    publisher
        .publish(&version::one::Reading { first, other })
        .unwrap();
    let sample = subscriber.receive(Deadline::NOW).unwrap();
    assert_eq!((sample.first, sample.other), (7, 0.5));
    assert_ne!(
        version::one::Reading::HASH,
        version::two::Reading::HASH,
        "its size is the same, and its fields have other names"
    );
    let refused = domain.subscriber::<version::two::Reading>("t", options());
    assert!(matches!(refused, Err(TopicError::OtherType { .. })));
    let refused = domain.publisher::<[version::one::Reading]>("t", options());
    assert!(matches!(refused, Err(TopicError::OtherType { .. })));
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
    let mut loan = publisher.loan().unwrap();
    *loan = 5;
    assert_eq!(loan.publish().unwrap(), 1000);
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
                // A channel that no subscriber follows yet goes with it.
                publisher
            });
            assert_eq!(*subscriber.receive(PATIENCE).unwrap(), round);
            drop(publisher.join().unwrap());
        });
    }
}
