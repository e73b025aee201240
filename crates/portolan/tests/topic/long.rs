//! Samples of any length: through the ring, or in memory that all read.

use crate::{PATIENCE, options, used};
use portolan::channel::{Publisher, Sample, SubscribeError, TopicOptions};
use portolan::{Deadline, Domain, Protection};
use portolan_testkit::{is_pattern, pattern};
use std::sync::atomic::{AtomicBool, Ordering};

/// Of a page and more, in memory of their own.
const LONG: usize = 70_000;

/// Says which one it is, everywhere.
pub(crate) fn content(number: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    pattern(&mut bytes, number);
    bytes
}

#[track_caller]
pub(crate) fn is_content(sample: &[u8], number: u64) {
    is_pattern(sample, number);
}

fn full(publisher: &mut Publisher<[u8]>, number: u64, len: usize) -> u64 {
    let mut loan = publisher.loan(len).unwrap();
    assert_eq!(loan.len(), len);
    loan.copy_from_slice(&content(number, len));
    loan.publish().unwrap()
}

fn address(sample: &Sample<[u8]>) -> usize {
    sample.as_ptr().addr()
}

#[test]
fn each_sample_has_its_own_length() {
    for protection in [Protection::Trusted, Protection::Guarded] {
        let builder = Domain::builder("lengths").protection(protection);
        let domain = builder.private().unwrap();
        let mut publisher = domain.publisher::<[u8]>("t", options()).unwrap();
        let mut subscriber = domain.subscriber::<[u8]>("t", options()).unwrap();
        let fits = publisher.channel().unit_payload() - 8;
        let around = [0, 1, 40, 41, 63, 64, 65, fits - 1, fits, fits + 1];
        let lengths = around.into_iter().chain([4096, 4097, LONG, 3 << 20]);
        for (number, len) in (0..).step_by(2).zip(lengths) {
            let at = publisher.publish(&content(number, len)).unwrap();
            assert_eq!(
                (at, full(&mut publisher, number + 1, len)),
                (number, at + 1)
            );
            for number in [number, number + 1] {
                let sample = subscriber.receive(Deadline::NOW).unwrap();
                assert_eq!((sample.len(), sample.position()), (len, number));
                assert_eq!(sample.missed(), 0);
                is_content(&sample, number);
            }
        }
        drop((publisher, subscriber));
        assert_eq!(used(&domain), (0, 0));
    }
}

#[test]
fn a_long_one_is_read_where_it_was_filled_by_all() {
    let domain = Domain::private().unwrap();
    let mut publisher = domain.publisher::<[u8]>("t", options()).unwrap();
    let mut subscribers: Vec<_> = (0..8)
        .map(|_| domain.subscriber::<[u8]>("t", options()).unwrap())
        .collect();
    let mut loan = publisher.loan(LONG).unwrap();
    loan.fill(9);
    let filled_at = loan.as_ptr().addr();
    loan.publish().unwrap();
    let samples: Vec<_> = subscribers
        .iter_mut()
        .map(|s| s.receive(Deadline::NOW).unwrap())
        .collect();
    assert!(
        samples
            .iter()
            .all(|s| address(s) == filled_at && s[LONG - 1] == 9)
    );
    // Each subscriber has its own copy of a short one.
    publisher.publish(b"short").unwrap();
    let shorts = [0, 1].map(|i| subscribers[i].receive(Deadline::NOW).unwrap());
    assert!(address(&shorts[0]) != address(&shorts[1]));
    // Unless nothing is to be copied.
    let in_place = TopicOptions::default().copied(0);
    let mut publisher = domain.publisher::<[u8]>("in place", in_place).unwrap();
    let mut two = [(); 2].map(|()| domain.subscriber::<[u8]>("in place", in_place).unwrap());
    publisher.publish(&[7; 100]).unwrap();
    let [one, other] = [0, 1].map(|i| two[i].receive(Deadline::NOW).unwrap());
    assert_eq!((address(&one), one[99]), (address(&other), 7));
}

#[test]
fn who_holds_a_sample_holds_it_as_it_was() {
    let domain = Domain::private().unwrap();
    let few = TopicOptions::default().history(2);
    let mut publisher = domain.publisher::<[u8]>("t", few).unwrap();
    let mut subscriber = domain.subscriber::<[u8]>("t", few).unwrap();
    let mut held = Vec::new();
    for number in 0..200 {
        full(&mut publisher, number, LONG);
        let sample = subscriber.receive(Deadline::NOW).unwrap();
        if number % 10 == 3 {
            held.push(sample.clone());
            held.push(sample);
        }
    }
    for sample in &held {
        is_content(sample, sample.position());
    }
    // The publisher's last ones and spare ones, the held ones, and no more.
    let (bytes, _) = used(&domain);
    let most = (20 + 2 + 1 + 4) * LONG.next_power_of_two() as u64 + (1 << 20);
    assert!(bytes < most, "{bytes} of {most}");
    drop((publisher, subscriber));
    for sample in &held {
        is_content(sample, sample.position());
    }
    assert!(used(&domain).1 == 20);
    held.clear();
    assert_eq!(used(&domain), (0, 0));
}

#[test]
fn memory_is_used_again_when_nobody_holds_it() {
    let domain = Domain::private().unwrap();
    let mut publisher = domain.publisher::<[u8]>("t", options()).unwrap();
    let mut subscriber = domain.subscriber::<[u8]>("t", options()).unwrap();
    let mut most = 0;
    for number in 0..1000 {
        // A loan that is given up takes nothing with it.
        drop(publisher.loan(LONG).unwrap());
        full(
            &mut publisher,
            number,
            LONG - usize::try_from(number).unwrap(),
        );
        is_content(&subscriber.receive(Deadline::NOW).unwrap(), number);
        if number == 100 {
            most = used(&domain).0;
        }
    }
    assert!(used(&domain).0 <= most, "{:?} of {most}", used(&domain));
    // Longer ones need other memory; shorter ones do with it.
    for number in 1000..1100 {
        full(&mut publisher, number, 2 * LONG);
        full(&mut publisher, number, LONG);
    }
    assert!(used(&domain).0 <= 3 * most);
}

#[test]
fn who_is_late_gets_the_history_and_who_is_slow_is_told_what_it_missed() {
    let domain = Domain::private().unwrap();
    let mut publisher = domain.publisher::<[u8]>("t", options()).unwrap();
    let mut slow = domain.subscriber::<[u8]>("t", options()).unwrap();
    for number in 0..1000 {
        // Long ones and short ones.
        let len = if number % 3 == 0 { 100 } else { LONG };
        full(&mut publisher, number, len);
    }
    let mut late = domain.subscriber::<[u8]>("t", options()).unwrap();
    for number in 990..1000 {
        let sample = late.receive(Deadline::NOW).unwrap();
        assert_eq!((sample.position(), sample.missed()), (number, 0));
        is_content(&sample, number);
    }
    let mut next = 0;
    while let Ok(sample) = slow.receive(Deadline::NOW) {
        assert_eq!(sample.position(), next + sample.missed());
        is_content(&sample, sample.position());
        next = sample.position() + 1;
    }
    assert_eq!(next, 1000);
    // Without a subscriber they go with their publisher.
    full(&mut publisher, 1000, LONG);
    drop(publisher);
    let gone = late.receive(Deadline::NOW);
    assert!(matches!(gone, Err(SubscribeError::TimedOut)), "{gone:?}");
    let mut publisher = domain.publisher::<[u8]>("t", options()).unwrap();
    full(&mut publisher, 1001, LONG);
    let sample = late.receive(Deadline::NOW).unwrap();
    assert_eq!((sample.position(), sample.missed()), (1001, 1));
}

/// What needs more than words do.
#[derive(Clone, Copy, portolan::channel::Payload)]
#[repr(C, align(256))]
struct Aligned {
    words: [u64; 32],
}

#[test]
fn types_of_any_size_and_alignment() {
    let domain = Domain::private().unwrap();
    let options = options();
    let aligned = Aligned { words: [3; 32] };
    let mut publisher = domain.publisher::<Aligned>("one", options).unwrap();
    let mut subscriber = domain.subscriber::<Aligned>("one", options).unwrap();
    publisher.publish(&aligned).unwrap();
    publisher.loan().unwrap().publish().unwrap();
    let samples = [(); 2].map(|()| subscriber.receive(Deadline::NOW).unwrap());
    assert_eq!(samples[0].words[31], 3);

    let mut publisher = domain.publisher::<[Aligned]>("many", options).unwrap();
    let mut subscriber = domain.subscriber::<[Aligned]>("many", options).unwrap();
    for len in [0, 1, 100] {
        publisher.publish(&vec![aligned; len]).unwrap();
        let sample = subscriber.receive(Deadline::NOW).unwrap();
        assert_eq!(sample.len(), len);
        assert!(sample.iter().all(|a| a.words == [3; 32]));
    }

    // A large type is no larger on the stack than another.
    type Large = [u64; 1 << 17];
    assert!(size_of::<Sample<Large>>() <= 160);
    let mut publisher = domain.publisher::<Large>("large", options).unwrap();
    let mut subscriber = domain.subscriber::<Large>("large", options).unwrap();
    let mut loan = publisher.loan().unwrap();
    loan[..].fill(5);
    loan.publish().unwrap();
    let sample = subscriber.receive(Deadline::NOW).unwrap();
    assert!(sample.iter().all(|w| *w == 5));

    let mut publisher = domain.publisher::<()>("nothing", options).unwrap();
    let mut subscriber = domain.subscriber::<()>("nothing", options).unwrap();
    publisher.publish(&()).unwrap();
    assert_eq!(subscriber.receive(Deadline::NOW).unwrap().position(), 0);
}

#[test]
fn nothing_is_torn_while_publishers_and_subscribers_race() {
    let domain = Domain::private().unwrap();
    let over = AtomicBool::new(false);
    let few = TopicOptions::default().history(1).publishers(2);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut publisher = domain.publisher::<[u8]>("t", few).unwrap();
                for number in 0.. {
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    let mut loan = publisher.loan(8192).unwrap();
                    loan.fill(u8::try_from(number % 251).unwrap());
                    assert_eq!(loan.publish().unwrap(), number);
                }
            });
        }
        let subscribers: Vec<_> = (0..3usize)
            .map(|holds| {
                let domain = &domain;
                scope.spawn(move || {
                    let mut subscriber = domain.subscriber::<[u8]>("t", few).unwrap();
                    let mut held = std::collections::VecDeque::new();
                    for _ in 0..3000 {
                        let sample = subscriber.receive(PATIENCE).unwrap();
                        held.push_back(sample);
                        if held.len() > holds {
                            let sample = held.pop_front().unwrap();
                            let byte = u8::try_from(sample.position() % 251).unwrap();
                            assert!(sample.iter().all(|b| *b == byte));
                        }
                    }
                })
            })
            .collect();
        let ends: Vec<_> = subscribers.into_iter().map(|s| s.join()).collect();
        // Before one of them may fail the test.
        over.store(true, Ordering::Relaxed);
        ends.into_iter().for_each(|end| end.unwrap());
    });
    assert_eq!(used(&domain), (0, 0));
}
