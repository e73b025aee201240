//! Each side of a connection is killed at every marked step.

use crate::child::Child;
use crate::numbered::{is_message, long, message, next};
use crate::over::{offering, plain};
use portolan::channel::{ChannelOptions, Lagging, ReadError, ReaderOptions};
use portolan::{
    Access, ConnectOptions, Deadline, Domain, OfferOptions, OfferedPort, Permissions, PortOptions,
    Protection, ReceiveRight, RequestError, SendError, SendRight,
};
use portolan_testkit::{unique, until};
use std::time::Duration;

/// Longer than a byte ring.
const LONG: usize = 3_000_000;

fn dies(child: &mut Child, order: &str) {
    child.tell(order);
    until("it has died", || child.ended());
}

fn about_to_die(mut child: Child, mark: &str) -> Child {
    assert_eq!(child.ask(&format!("die-at {mark}")), "done");
    child
}

/// Bytes in extents of a domain.
fn used(domain: &Domain) -> u64 {
    domain.survey().unwrap().memory.used
}

/// One client has died: what it sent whole is there, from 0 on and in order, nothing else is
/// kept of it, the other side does not take it for hostile, and the next one is served.
fn next_is_served(name: &str, domain: &Domain, port: &mut ReceiveRight, offered: &OfferedPort) {
    until("the client has left", || offered.clients() == 0);
    let mut expected = 0;
    while let Ok(came) = port.receive(Access::Later, Deadline::NOW) {
        is_message(&came, expected, &[LONG]);
        expected += 1;
    }
    assert_eq!(used(domain), 0);
    // A client that died before it was taken for one has its place for a moment yet.
    let (mut other, ours) = (Child::new(), unique("client"));
    let connect = format!("connect {ours} {name} frames");
    until("the next client has a place", || {
        other.ask(&connect) == "connected"
    });
    assert_eq!(other.ask("send 7 100"), "sent");
    assert_eq!(next(port), (7, 100));
    assert!(offered.take_violations().is_empty());
}

/// With room for one client, so that one which is not forgotten shows.
fn narrow() -> OfferOptions {
    OfferOptions::default().most_clients(1)
}

#[test]
fn a_client_dies_while_it_connects() {
    for mark in ["bridge.asked", "bridge.connected", "bridge.bound"] {
        let (name, domain, mut port, offered) = offering(PortOptions::unnamed(), narrow());
        let mut client = about_to_die(Child::new(), mark);
        dies(
            &mut client,
            &format!("connect {} {name} frames", unique("client")),
        );
        next_is_served(&name, &domain, &mut port, &offered);
    }
}

#[test]
fn a_client_dies_while_it_sends() {
    for mark in [
        "bridge.announced",
        "bridge.carried",
        "byte_ring.copied",
        "byte_ring.shown",
        "byte_ring.armed",
    ] {
        let (name, domain, mut port, offered) = offering(PortOptions::unnamed(), narrow());
        let mut client = about_to_die(Child::connected(&name), mark);
        dies(&mut client, &format!("send-many 0 100 {LONG}"));
        next_is_served(&name, &domain, &mut port, &offered);
    }
}

#[test]
fn a_client_dies_once_it_has_shown_sealed_memory() {
    for mark in ["bridge.shown", "bridge.announced"] {
        let (name, domain, mut port, offered) = offering(PortOptions::unnamed(), narrow());
        let mut client = Child::new();
        let ours = unique("client");
        let sealed = format!("connect-sealed {ours} {name} frames");
        assert_eq!(client.ask(&sealed), "connected");
        let mut client = about_to_die(client, mark);
        dies(&mut client, &format!("send 0 {LONG}"));
        next_is_served(&name, &domain, &mut port, &offered);
    }
}

#[test]
fn a_client_dies_while_it_asks() {
    for mark in ["bridge.requested", "bridge.answer_came"] {
        let requests = PortOptions::unnamed().synchronous();
        let (name, domain, mut port, offered) = offering(requests, narrow());
        let mut client = about_to_die(Child::connected(&name), mark);
        client.tell("ask 1 5000");
        let request = port.get_request(Access::Later, long()).unwrap();
        is_message(&request.message, 1, &[5000]);
        if mark == "bridge.requested" {
            until("it has died", || client.ended());
        }
        // Whether or not a client wants it.
        let _ = request.reply_in_place();
        until("it has died", || client.ended());
        until("the client has left", || offered.clients() == 0);
        assert_eq!(used(&domain), 0);
        let mut other = Child::connected(&name);
        other.tell("ask 2 100");
        let request = port.get_request(Access::Later, long()).unwrap();
        request.reply_in_place().unwrap();
        assert_eq!(other.answer(), "answered");
        assert!(offered.take_violations().is_empty());
    }
}

/// Another process makes the offer in this domain, after the first one has died.
fn offers_again(name: &str, ours: &Domain) {
    let mut other = Child::new();
    assert_eq!(other.ask(&format!("offer {name}")), "offered");
    let right = connect(ours, name);
    right.send(message(ours, 9, &[9]), long()).unwrap();
    assert_eq!(other.ask("receive 9 9"), "received");
}

fn connect(ours: &Domain, theirs: &str) -> SendRight {
    let other = Domain::builder(theirs);
    ours.connect_to(&other, "frames", ConnectOptions::default().deadline(long()))
        .unwrap()
}

#[test]
fn an_offering_process_dies_while_it_lets_somebody_in() {
    for mark in ["bridge.heard", "bridge.granting", "bridge.granted"] {
        let name = unique("lets-in");
        let mut child = Child::new();
        assert_eq!(child.ask(&format!("offer {name}")), "offered");
        let mut child = about_to_die(child, mark);
        let ours = Domain::join(&unique("survivor")).unwrap();
        let soon = Duration::from_secs(2);
        let options = ConnectOptions::default().deadline(Deadline::after(soon));
        let refused = ours.connect_to(&Domain::builder(&name), "frames", options);
        until("it has died", || child.ended());
        if mark == "bridge.granted" {
            // It was let in, by a process that has died since.
            until("the right is a dead name", || {
                refused.as_ref().is_ok_and(|right| !right.is_live())
            });
        } else {
            assert!(refused.is_err(), "{mark}: {refused:?}");
        }
        drop(refused);
        assert_eq!(used(&ours), 0);
        offers_again(&name, &ours);
    }
}

#[test]
fn an_offering_process_dies_while_it_receives() {
    for (mark, protection) in [
        ("bridge.half", Protection::Copied),
        ("bridge.whole", Protection::Copied),
        ("bridge.whole", Protection::Sealed),
        ("bridge.delivered", Protection::Copied),
        ("byte_ring.read", Protection::Copied),
        ("byte_ring.armed", Protection::Copied),
    ] {
        let name = unique("receives");
        let mut child = Child::new();
        assert_eq!(child.ask(&format!("offer {name}")), "offered");
        let ours = Domain::join(&unique("survivor")).unwrap();
        let options = ConnectOptions::default().protection(protection);
        let other = Domain::builder(&name);
        let right = ours.connect_to(&other, "frames", options).unwrap();
        let mut child = about_to_die(child, mark);
        // More than it would take if it lived.
        let error = (0..).find_map(|n| right.send(message(&ours, n, &[LONG]), long()).err());
        let error = error.unwrap();
        assert!(matches!(error.why, SendError::DeadName), "{mark}: {error}");
        until("it has died", || child.ended());
        drop(error);
        until("all memory is ours again", || used(&ours) == 0);
        drop(right);
        offers_again(&name, &ours);
    }
}

#[test]
fn an_offering_process_dies_while_it_has_a_request_served() {
    let name = unique("serves");
    let mut child = Child::new();
    assert_eq!(child.ask(&format!("offer-requests {name}")), "offered");
    let ours = Domain::join(&unique("survivor")).unwrap();
    let right = connect(&ours, &name);
    let mut child = about_to_die(child, "bridge.asking");
    let asked = right.request_reply(message(&ours, 1, &[5000]), Access::Later, long());
    assert!(
        matches!(asked, Err(RequestError::ServerDead | RequestError::Dropped)),
        "{asked:?}"
    );
    until("it has died", || child.ended());
    until("the right is a dead name", || !right.is_live());
    until("all memory is ours again", || used(&ours) == 0);
}

#[test]
fn an_offering_process_dies_while_it_withdraws_its_offer() {
    for mark in ["bridge.closing", "bridge.closed"] {
        let name = unique("withdraws");
        let mut child = Child::new();
        assert_eq!(child.ask(&format!("offer {name}")), "offered");
        let ours = Domain::join(&unique("survivor")).unwrap();
        let right = connect(&ours, &name);
        right.send(message(&ours, 1, &[9]), long()).unwrap();
        let mut child = about_to_die(child, mark);
        dies(&mut child, "withdraw");
        until("the right is a dead name", || !right.is_live());
        until("all memory is ours again", || used(&ours) == 0);
        drop(right);
        offers_again(&name, &ours);
    }
}

#[test]
fn a_follower_dies_at_every_step() {
    for mark in [
        "bridge.asked",
        "bridge.connected",
        "bridge.followed",
        "bridge.written",
        "bridge.skipped",
        "byte_ring.read",
    ] {
        let (name, domain, _port, _offered) = plain();
        // With a place for one reader, so that one which is not forgotten shows; but who waits
        // for all readers skips nothing.
        let skipped = mark == "bridge.skipped";
        let lagging = if skipped {
            Lagging::Skip
        } else {
            Lagging::Wait
        };
        let options = ChannelOptions::unnamed().reliable().readers(1);
        let channel = domain.make_channel(&options).unwrap();
        let mut writer = channel.bind_writer().unwrap();
        let offer = OfferOptions::default().lagging(lagging).most_clients(1);
        let permissions = Permissions::own_user();
        let offered = channel.offer("news", &permissions, offer).unwrap();
        let mut follower = Child::new();
        let order = format!("follow {} {name} news", unique("follower"));
        if ["bridge.asked", "bridge.connected", "bridge.followed"].contains(&mark) {
            follower = about_to_die(follower, mark);
            dies(&mut follower, &order);
        } else {
            assert_eq!(follower.ask(&order), "follows");
            follower = about_to_die(follower, mark);
            if skipped {
                follower.stop();
                for _ in 0..200_000 {
                    writer.write(&[1; 40], Deadline::NOW).unwrap();
                }
                follower.resume();
            }
            writer.write(&[2; 40], long()).unwrap();
            until("it has died", || follower.ended());
        }
        until("it has left", || offered.clients() == 0);
        // Nothing delays the writer, and the next one is served.
        for _ in 0..2 * channel.units() {
            writer.write(&[3; 40], long()).unwrap();
        }
        // Who dies as soon as it has asked may be met only now, and has its place for a moment.
        let mut next = Child::new();
        until("there is a place for the next one", || {
            let order = format!("follow {} {name} news", unique("follower"));
            match next.ask(&order).as_str() {
                "Full" => false,
                answer => answer == "follows" || panic!("{answer}"),
            }
        });
        let mut bytes = vec![0; 9];
        portolan_testkit::pattern(&mut bytes, 5);
        writer.write(&bytes, long()).unwrap();
        assert_eq!(next.ask("hear 5 9"), "heard");
        assert!(offered.take_violations().is_empty());
    }
}

#[test]
fn the_offering_process_of_a_channel_dies_while_it_tells() {
    for mark in [
        "bridge.described",
        "bridge.channel_carried",
        "byte_ring.copied",
        "byte_ring.shown",
    ] {
        let name = unique("tells");
        let mut child = Child::new();
        assert_eq!(child.ask(&format!("offer-channel {name}")), "offered");
        let ours = Domain::join(&unique("survivor")).unwrap();
        let options = ConnectOptions::default().deadline(Deadline::after(Duration::from_secs(2)));
        let follow = || ours.follow(&Domain::builder(&name), "news", options.clone());
        if mark == "bridge.described" {
            let mut child = about_to_die(child, mark);
            // What it told before it died is all that a follower needs.
            if let Ok(followed) = follow() {
                until("it is over", || !followed.is_live());
            }
            until("it has died", || child.ended());
        } else {
            let followed = follow().unwrap();
            let mut reader = followed
                .channel()
                .bind_reader(ReaderOptions::default())
                .unwrap();
            let mut child = about_to_die(child, mark);
            child.tell("write 5 1000");
            until("it has died", || child.ended());
            // It is whole or not there.
            match reader.receive(long()) {
                Ok(came) => {
                    portolan_testkit::is_pattern(&came, 5);
                    assert_eq!(came.len(), 1000);
                    assert_eq!(reader.receive(long()), Err(ReadError::WriterGone));
                }
                other => assert_eq!(other, Err(ReadError::WriterGone)),
            }
            assert!(!followed.is_live());
        }
        until("all memory is ours again", || used(&ours) == 0);
        let mut other = Child::new();
        assert_eq!(other.ask(&format!("offer-channel {name}")), "offered");
        assert!(follow().unwrap().is_live());
    }
}
