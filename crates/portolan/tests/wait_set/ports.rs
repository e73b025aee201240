//! Which ports are named, and that each goes on working.

use crate::{Fixture, Outcome, send, soon, take};
use portolan::{Access, Deadline, Domain, Message, Notice, PortOptions, WaitSet, WaitSetError};
use portolan::{ReceiveRight, Token};
use portolan::{Waiting, WhenFull};
use std::collections::BTreeSet;
use std::time::Duration;

#[test]
fn one_active_port_of_many_is_named() {
    let mut f = Fixture::new(2000);
    assert!(f.now().is_empty());
    for port in [0, 1, 63, 64, 999, 1999] {
        f.send(port, "it");
        assert_eq!(
            f.set.wait(soon()).unwrap().collect::<Vec<_>>(),
            [f.token(port)]
        );
        assert_eq!(f.take(f.token(port)).unwrap(), "it");
        assert!(f.now().is_empty());
    }
    // All of them at once.
    (0..2000).for_each(|port| f.send(port, "all"));
    let ready: BTreeSet<Token<ReceiveRight>> = f.now().into_iter().collect();
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
    assert!(f.now().is_empty());
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
            let port = set.get_mut(ready.of::<ReceiveRight>()).unwrap();
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
        .watch(f.set.get(f.token(0)).unwrap(), 7)
        .unwrap();
    f.set.get(f.token(2)).unwrap().request_no_more_senders();
    assert!(f.now().is_empty());

    let (last, right) = f.rights.pop().unwrap();
    let waker = std::thread::spawn(move || drop(right));
    assert_eq!(f.set.wait(soon()).unwrap().collect::<Vec<_>>(), [last]);
    waker.join().unwrap();
    assert_eq!(
        f.take(last).unwrap(),
        format!("{:?}", Notice::NoMoreSenders)
    );
    assert!(f.now().is_empty());

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
    assert!(f.now().is_empty());
}

#[test]
fn a_port_of_a_set_can_be_waited_for_by_itself() {
    let mut f = Fixture::new(2);
    assert!(f.now().is_empty());
    let token = f.token(0);
    for waiting in [Waiting::Sleep, Waiting::Adaptive] {
        let right = f.rights[0].1.clone();
        let sender = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            send(&right, "direct");
        });
        let port = f.set.get_mut(token).unwrap();
        port.set_waiting(waiting);
        assert_eq!(
            port.receive(Access::Later, soon()).unwrap().header(),
            b"direct"
        );
        sender.join().unwrap();
        assert!(f.now().is_empty());
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
    assert!(f.set.get(f.token(1)).is_none() && f.set.get_mut(f.token(1)).is_none());
    f.send(1, "alone");
    assert!(f.now().is_empty());
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
    assert!(f.now().is_empty());
    assert_eq!((f.set.len(), port.depth()), (2, 1));
}

#[test]
fn a_port_moves_from_set_to_set() {
    let mut f = Fixture::new(2);
    let mut other = WaitSet::new(&f.domain).unwrap();
    assert!(f.now().is_empty());
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
    assert!(f.now().is_empty());
    // What `&mut` allows: the port of place 0 is now outside.
    let mut outside = f.domain.bind(PortOptions::unnamed()).unwrap();
    let inside = outside.make_send();
    std::mem::swap(f.set.get_mut(f.token(0)).unwrap(), &mut outside);
    assert!(f.now().is_empty());
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
    let mut port = f.set.add(port).unwrap_err().item;
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

#[test]
fn a_full_queue_makes_room_while_its_port_is_in_a_set() {
    let mut f = Fixture::new(1);
    let right = f.rights[0].1.clone();
    let sender = std::thread::spawn(move || (0..1000).for_each(|n| send(&right, &n.to_string())));
    for expected in 0..1000 {
        // One at a time, however many there are.
        let token = f.set.wait(soon()).unwrap().next().unwrap();
        assert_eq!(f.take(token.of()).unwrap(), expected.to_string());
    }
    sender.join().unwrap();
    assert!(
        f.rights[0]
            .1
            .send(Message::default(), WhenFull::Fail)
            .is_ok()
    );
}
