//! Tests that every waiting thread is woken, in a wait or with epoll.

use crate::{Epoll, Fixture, PATIENCE, drain, send, soon, take};
use portolan::{Deadline, PortOptions, Ready, SendRight, Token, WaitSet, Waiting};
use rustix::event::epoll::EventFlags;
use std::collections::BTreeMap;
use std::sync::mpsc::channel;
use std::time::Duration;

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
            let port = f.set.get_mut(token.of()).unwrap();
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
    assert!(f.now().is_empty());
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
    let (done, has_sent) = channel::<()>();
    let sender = std::thread::spawn(move || {
        for spins in goes {
            (0..spins).for_each(|_| std::hint::spin_loop());
            send(&right, "x");
            done.send(()).unwrap();
        }
    });
    for round in 0..3000 {
        assert!(f.now().is_empty());
        assert!(!epoll.wait(Duration::ZERO), "nothing is there");
        go.send(round * 7 % 500).unwrap();
        while f.set.wait(Deadline::NOW).unwrap().is_empty() {}
        assert!(epoll.wait(PATIENCE), "something is there");
        assert_eq!(f.take(f.token(3)).unwrap(), "x");
        // It may be stopped between its message and the wake, which then comes in vain.
        has_sent.recv().unwrap();
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
        assert!(f.now().is_empty());
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
    f.set.get_mut(f.token(1)).unwrap();
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
        assert!(f.now().is_empty());
        let right = f.rights[1].1.clone();
        let sender = std::thread::spawn(move || send(&right, "x"));
        let ready = f.set.wait(soon()).unwrap();
        assert_eq!(drain(&mut f.set, ready), ["x"]);
        sender.join().unwrap();
    }
}
