//! Senders and receivers are killed, or stopped, in the middle of a message.

use crate::child::Child;
use crate::numbered::{held, long, message, next};
use crate::over::plain;
use portolan::{
    Access, ConnectOptions, ConnectionKind, Deadline, Domain, Message, Protection, ReceiveError,
    SendError, SendRight, Unsealed, WhenFull,
};
use portolan_testkit::{Copied, unique, until};
use std::time::Duration;

#[test]
fn a_sender_that_is_killed_leaves_whole_messages_and_nothing_else() {
    let (name, domain, mut port, offered) = plain();
    for round in 0..8 {
        let mut child = Child::connected(&name);
        child.tell("send-many 0 100000 3000000");
        // Longer than its byte ring: it is in the middle of one most of the time.
        for expected in 0..=round {
            assert_eq!(next(&mut port), (expected, 3_000_000));
        }
        child.kill();
        until("the client has left", || offered.clients() == 0);
        // What went over whole is there.
        let mut expected = round + 1;
        loop {
            match port.receive(Access::Later, Deadline::NOW) {
                Ok(came) => {
                    assert_eq!(came.header(), u64::to_le_bytes(expected));
                    assert_eq!(came.len(), 3_000_000);
                    expected += 1;
                }
                Err(ReceiveError::TimedOut) => break,
                Err(other) => panic!("{other}"),
            }
        }
    }
    // Nothing of what came by half is kept.
    assert_eq!(held(&domain), 0);
    assert!(offered.take_violations().is_empty());
}

#[test]
fn a_receiver_that_is_killed_is_a_dead_name() {
    let name = unique("dying");
    let mut child = Child::new();
    assert_eq!(child.ask(&format!("offer {name}")), "offered");
    let ours = Domain::join(&unique("survivor")).unwrap();
    let right = ours
        .connect_to(&Domain::builder(&name), "frames", ConnectOptions::default())
        .unwrap();
    right.send(message(&ours, 1, &[9]), long()).unwrap();
    assert_eq!(child.ask("receive 1 9"), "received");
    // It does not receive any more; so ours fills up, and waits.
    let ours = &ours;
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            (2..).find_map(|number| right.send(message(ours, number, &[2 << 20]), long()).err())
        });
        std::thread::sleep(Duration::from_millis(50));
        child.kill();
        let error = sender.join().unwrap().unwrap();
        assert!(matches!(error.why, SendError::DeadName), "{error}");
        assert_eq!(error.item.len(), 2 << 20);
    });
    assert!(!right.is_live());
}

/// A process that offers a port, a right on it, and a copy of the process.
fn copied(ours: &Domain, protection: Protection) -> (Child, SendRight, Copied) {
    let name = unique("copied");
    let mut child = Child::new();
    assert_eq!(child.ask(&format!("offer {name}")), "offered");
    let options = ConnectOptions::default().protection(protection);
    let right = ours
        .connect_to(&Domain::builder(&name), "frames", options)
        .unwrap();
    // So it has been let in, and the copy has what belongs to it.
    right.send(message(ours, 1, &[9]), long()).unwrap();
    assert_eq!(child.ask("receive 1 9"), "received");
    let copy = child.copied();
    (child, right, copy)
}

#[test]
fn a_copy_of_a_receiver_does_not_hide_its_death() {
    let ours = Domain::join(&unique("sees-it")).unwrap();
    let (mut idle, right, _copy) = copied(&ours, Protection::Copied);
    idle.kill();
    until("it is a dead name", || !right.is_live());

    let (mut busy, right, _copy) = copied(&ours, Protection::Copied);
    let ours = &ours;
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            (2..).find_map(|number| right.send(message(ours, number, &[2 << 20]), long()).err())
        });
        std::thread::sleep(Duration::from_millis(50));
        busy.kill();
        let error = sender.join().unwrap().unwrap();
        assert!(matches!(error.why, SendError::DeadName), "{error}");
    });

    // Shown sealed memory, more than its socket holds.
    let (mut shown, right, _copy) = copied(ours, Protection::Sealed);
    shown.stop();
    let picture = Unsealed::new(4096).unwrap().seal().unwrap();
    let send = || {
        let mut message = Message::default();
        message.push_sealed(picture.clone()).unwrap();
        right.send(message, Deadline::after(Duration::from_millis(500)))
    };
    while send().is_ok() {}
    shown.kill();
    until("it is a dead name", || !right.is_live());
}

#[test]
fn a_copy_of_a_sender_does_not_hide_its_death() {
    let (name, _domain, mut port, offered) = plain();
    for busy in [false, true] {
        let mut child = Child::connected(&name);
        assert_eq!(child.ask("send 1 9"), "sent");
        assert_eq!(next(&mut port), (1, 9));
        let _copy = child.copied();
        if busy {
            child.tell("send-many 0 100000 3000000");
            assert_eq!(next(&mut port), (0, 3_000_000));
        }
        child.kill();
        until("the client has left", || {
            while port.receive(Access::Later, Deadline::NOW).is_ok() {}
            offered.clients() == 0
        });
    }
}

#[test]
fn who_becomes_another_program_has_gone() {
    let name = unique("execs");
    let mut child = Child::new();
    assert_eq!(child.ask(&format!("offer {name}")), "offered");
    let ours = Domain::join(&unique("sees-it")).unwrap();
    let right = ours
        .connect_to(&Domain::builder(&name), "frames", ConnectOptions::default())
        .unwrap();
    right.send(message(&ours, 1, &[9]), long()).unwrap();
    assert_eq!(child.ask("receive 1 9"), "received");
    child.tell("exec");
    until("it is a dead name", || !right.is_live());
    assert!(!child.ended());

    let (name, _domain, mut port, offered) = plain();
    let mut child = Child::connected(&name);
    assert_eq!(child.ask("send 1 9"), "sent");
    assert_eq!(next(&mut port), (1, 9));
    child.tell("exec");
    until("the client has left", || offered.clients() == 0);
    assert!(!child.ended());
}

#[test]
fn a_receiver_that_is_stopped_is_waited_for() {
    let name = unique("stopped");
    let mut child = Child::new();
    assert_eq!(child.ask(&format!("offer {name}")), "offered");
    let ours = Domain::join(&unique("waiting")).unwrap();
    let options = ConnectOptions::default().queue(3);
    let right = ours
        .connect_to(&Domain::builder(&name), "frames", options)
        .unwrap();
    child.stop();
    let mut sent = 0;
    let reason = loop {
        let soon = Deadline::after(Duration::from_millis(500));
        match right.send(message(&ours, sent, &[700_000]), soon) {
            Ok(()) => sent += 1,
            Err(error) => break error.why,
        }
    };
    assert!(matches!(reason, SendError::Full { .. }), "{reason}");
    assert!(right.is_live());
    let full = right.send(message(&ours, sent, &[1]), WhenFull::Fail);
    assert!(matches!(full.unwrap_err().why, SendError::Full { .. }));
    child.resume();
    for number in 0..sent {
        assert_eq!(child.ask(&format!("receive {number} 700000")), "received");
    }
    right.send(message(&ours, 99, &[5]), long()).unwrap();
    assert_eq!(child.ask("receive 99 5"), "received");
}

#[test]
fn a_sender_that_is_stopped_holds_up_nobody_else() {
    let (name, _domain, mut port, offered) = plain();
    let mut stopped = Child::connected(&name);
    stopped.tell("send-many 0 100000 3000000");
    assert_eq!(next(&mut port).0, 0);
    stopped.stop();
    let mut other = Child::connected(&name);
    assert_eq!(other.ask("send 77 1000"), "sent");
    // What the stopped one had sent whole comes first, or between.
    while next(&mut port) != (77, 1000) {}
    assert_eq!(offered.clients(), 2);
    drop(offered);
}

#[test]
fn a_connection_is_seen_from_both_domains_until_its_process_is_killed() {
    let (theirs, domain, _port, offered) = plain();
    let ours = unique("seen-sender");
    let watched = Domain::join(&ours).unwrap();
    let connections = |domain: &Domain| domain.survey().unwrap().connections;
    for mark in ["", "public.taken", "public.shown"] {
        let mut child = Child::new();
        let order = format!("connect {ours} {theirs} frames");
        if mark.is_empty() {
            assert_eq!(child.ask(&order), "connected");
            let [there] = &connections(&watched)[..] else {
                panic!("{:?}", connections(&watched))
            };
            assert_eq!(there.kind, ConnectionKind::ConnectedTo);
            assert_eq!(
                (there.offer.as_str(), there.domain.as_deref()),
                ("frames", Some(&*theirs))
            );
            assert_eq!(there.pid, std::process::id());
            // It says so once it has answered.
            until("the client is seen", || !connections(&domain).is_empty());
            let [here] = &connections(&domain)[..] else {
                panic!("{:?}", connections(&domain))
            };
            assert_eq!(here.kind, ConnectionKind::Client);
            assert_eq!((here.offer.as_str(), here.pid), ("frames", child.pid()));
            child.kill();
        } else if cfg!(feature = "marks") {
            child.ask(&format!("die-at {mark}"));
            child.tell(&order);
        }
        until("the other side is gone", || offered.clients() == 0);
        until("nothing is seen of it here", || {
            connections(&domain).is_empty()
        });
        until("nor there", || {
            let survey = watched.survey().unwrap();
            survey.spaces.len() == 1 && survey.connections.is_empty()
        });
    }
}
