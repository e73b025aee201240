//! What the first one decides for a topic, and what each says for itself.

use crate::{PATIENCE, options};
use portolan::channel::{
    Publisher, Reader, ReaderOptions, SubscribeError, Subscriber, TopicError, TopicOptions,
};
use portolan::{Deadline, Domain, WaitSet, WaitSetError};
use std::time::Duration;

fn all(subscriber: &mut Subscriber<u64>) -> Vec<u64> {
    let next = || Some(*subscriber.receive(Deadline::NOW).ok()?);
    std::iter::from_fn(next).collect()
}

#[test]
fn the_first_one_decides_how_many_publish() {
    let domain = Domain::private().unwrap();
    let _first = domain.publisher::<u64>("many", options()).unwrap();
    let few = options().publishers(1);
    let mut second = domain.publisher::<u64>("many", few).unwrap();
    let mut subscriber = domain.subscriber::<u64>("many", few).unwrap();
    second.publish(&7).unwrap();
    let sample = subscriber.receive(Deadline::NOW).unwrap();
    assert_eq!((*sample, sample.publisher()), (7, 1));

    let _only = domain.publisher::<u64>("one", few).unwrap();
    let refused = domain.publisher::<u64>("one", options()).map(|p| p.id());
    assert!(
        matches!(
            refused,
            Err(TopicError::TooManyPublishers { publishers: 1 })
        ),
        "{refused:?}"
    );
}

#[test]
fn the_first_one_decides_how_many_subscribe() {
    let domain = Domain::private().unwrap();
    let one = options().subscribers(1);
    let mut subscribers: Vec<_> = (0..2)
        .map(|_| domain.subscriber::<u64>("many", options()).unwrap())
        .collect();
    let mut publisher = domain.publisher::<u64>("many", one).unwrap();
    publisher.publish(&7).unwrap();
    for subscriber in &mut subscribers {
        assert_eq!(*subscriber.receive(Deadline::NOW).unwrap(), 7);
    }

    let _only = domain.subscriber::<u64>("one", one).unwrap();
    let refused = domain.subscriber::<u64>("one", options()).map(|_| ());
    assert!(
        matches!(refused, Err(TopicError::WaitSet(WaitSetError::NoEntry))),
        "{refused:?}"
    );
}

#[test]
fn a_publisher_with_a_longer_history_takes_a_channel_that_holds_it() {
    let domain = Domain::private().unwrap();
    let short = TopicOptions::default().history(1);
    let mut publisher = domain.publisher::<u64>("t", short).unwrap();
    let mut subscriber = domain.subscriber::<u64>("t", short).unwrap();
    publisher.publish(&0).unwrap();
    drop(publisher);
    let long = TopicOptions::default().history(100);
    let mut publisher = domain.publisher::<u64>("t", long).unwrap();
    for i in 1..=200 {
        publisher.publish(&i).unwrap();
    }
    let mut late = domain.subscriber::<u64>("t", long).unwrap();
    // Of the one that left first.
    assert_eq!(
        all(&mut late),
        [0].into_iter().chain(101..=200).collect::<Vec<_>>()
    );
    assert_eq!(*subscriber.receive(Deadline::NOW).unwrap(), 0);
    drop((publisher, subscriber, late));

    let few = short.publishers(1);
    drop(domain.publisher::<u64>("few", few).unwrap());
    let publisher = domain.publisher::<u64>("few", few).unwrap();
    let subscriber = domain.subscriber::<u64>("few", few).unwrap();
    drop(publisher);
    let refused = domain.publisher::<u64>("few", long).map(|p| p.id());
    assert!(
        matches!(refused, Err(TopicError::ShortHistory { history: 100 })),
        "{refused:?}"
    );
    drop(subscriber);
    assert_eq!(domain.publisher::<u64>("few", long).unwrap().id(), 0);
}

/// A subscriber of a topic with room for one, another reader in that room of the only publisher, and
/// that publisher, which the subscriber was told that it could not follow.
struct Refused {
    subscriber: Subscriber<u64>,
    other: Reader,
    publisher: Publisher<u64>,
}

impl Refused {
    fn new(domain: &Domain) -> Self {
        let one = options().subscribers(1);
        let mut subscriber = domain.subscriber::<u64>("t", one).unwrap();
        let publisher = domain.publisher::<u64>("t", one).unwrap();
        let reader = publisher.channel().bind_reader(ReaderOptions::default());
        let other = reader.unwrap();
        let refused = subscriber.receive(Deadline::NOW);
        assert!(
            matches!(
                refused,
                Err(SubscribeError::Topic(TopicError::WaitSet(
                    WaitSetError::NoEntry
                )))
            ),
            "{refused:?}"
        );
        let told_once = subscriber.receive(Deadline::NOW);
        assert!(
            matches!(told_once, Err(SubscribeError::TimedOut)),
            "{told_once:?}"
        );
        Self {
            subscriber,
            other,
            publisher,
        }
    }
}

/// How long a subscriber that waits is left alone, so that it sleeps: retries are due meanwhile.
const ASLEEP: Duration = Duration::from_millis(150);

#[test]
fn a_publisher_that_could_not_be_followed_is_tried_again() {
    let domain = Domain::private().unwrap();
    let mut all = Refused::new(&domain);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| all.subscriber.receive(PATIENCE).map(|sample| *sample));
        std::thread::sleep(ASLEEP);
        drop(all.other);
        all.publisher.publish(&7).unwrap();
        assert_eq!(waits.join().unwrap().unwrap(), 7);
    });
}

#[test]
fn a_publisher_that_could_not_be_followed_is_tried_again_in_a_wait_set() {
    let domain = Domain::private().unwrap();
    let Refused {
        subscriber,
        other,
        mut publisher,
    } = Refused::new(&domain);
    let mut set = WaitSet::new(&domain).unwrap();
    let subscriber = set.add(subscriber).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            loop {
                let ready = set.wait(PATIENCE).unwrap();
                assert!(!ready.is_empty(), "no retry is due");
                let subscriber = set.get_mut(subscriber).unwrap();
                match subscriber.receive(Deadline::NOW) {
                    Err(SubscribeError::TimedOut) => {}
                    sample => break *sample.unwrap(),
                }
            }
        });
        std::thread::sleep(ASLEEP);
        drop(other);
        publisher.publish(&7).unwrap();
        assert_eq!(waits.join().unwrap(), 7);
    });
    // No retry is due any more.
    assert!(set.wait(2 * ASLEEP).unwrap().is_empty());
}

#[cfg(feature = "tokio")]
#[test]
fn a_publisher_that_could_not_be_followed_is_tried_again_by_a_task() {
    let domain = Domain::private().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut all = Refused::new(&domain);
    runtime.block_on(async {
        let waits = async { all.subscriber.receive_async().await.map(|sample| *sample) };
        let leaves = async {
            tokio::time::sleep(ASLEEP).await;
            drop(all.other);
            all.publisher.publish(&7).unwrap();
        };
        let (got, ()) = tokio::join!(tokio::time::timeout(PATIENCE, waits), leaves);
        assert_eq!(got.unwrap().unwrap(), 7);
    });
}

#[test]
fn names_and_lengths_that_cannot_be_are_refused() {
    let domain = Domain::private().unwrap();
    for name in ["", "a\0b", "a@b", &"x".repeat(60)] {
        let refused = domain.publisher::<u64>(name, options()).map(|p| p.id());
        let Err(TopicError::BadName { topic }) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(topic, name);
        assert!(domain.subscriber::<u64>(name, options()).is_err());
    }
    let longest = "x".repeat(59);
    let most = options().publishers(255);
    assert!(domain.publisher::<u64>(&longest, most).is_ok());
    let mut publisher = domain.publisher::<[u8]>("bytes", options()).unwrap();
    for len in [usize::MAX, usize::MAX - 8, usize::MAX / 2, 1 << 40] {
        assert!(publisher.loan(len).is_err(), "{len:#x}");
    }
}

#[cfg(feature = "tokio")]
#[test]
fn an_awaited_sample_comes_from_any_publisher_and_a_dropped_future_loses_none() {
    let domain = Domain::private().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut subscriber = domain.subscriber::<u64>("t", options()).unwrap();
    runtime.block_on(async {
        for round in 0..200 {
            let given_up = std::time::Duration::from_micros(round % 3 * 50);
            let nothing = tokio::time::timeout(given_up, subscriber.receive_async()).await;
            assert!(nothing.is_err(), "{nothing:?}");
            let (domain, mut publisher) = (&domain, None);
            std::thread::scope(|scope| {
                let publish = || {
                    // A newcomer now and then.
                    let mut publisher = domain.publisher::<u64>("t", options()).unwrap();
                    publisher.publish(&round).unwrap();
                    publisher
                };
                publisher = Some(scope.spawn(publish).join().unwrap());
            });
            let awaited = tokio::time::timeout(PATIENCE, subscriber.receive_async()).await;
            assert_eq!(*awaited.unwrap().unwrap(), round);
            drop(publisher);
        }
    });
    // Woken while it waits.
    let mut publisher = domain.publisher::<u64>("t", options()).unwrap();
    runtime.block_on(async {
        let waits = async { subscriber.receive_async().await.map(|sample| *sample) };
        let publishes = async {
            tokio::task::yield_now().await;
            publisher.publish(&7).unwrap();
        };
        let (got, ()) = tokio::join!(tokio::time::timeout(PATIENCE, waits), publishes);
        assert_eq!(got.unwrap().unwrap(), 7);
    });
}
