//! Ports that a process connects to one after another go over one connection, if the same process
//! offers them.

use crate::child::Child;
use crate::hostile::{Stranger, accepted_by, answer_to, ask};
use crate::numbered::{held, is_message, long, message, next};
use crate::over::plain;
use portolan::{
    Access, ConnectOptions, Deadline, Domain, OfferOptions, OfferedPort, Permissions, PortOptions,
    ReceiveRight,
};
use portolan_abi::bridge::{Answer, Ask, MAX_PORTS, WAKE};
use portolan_sys::socket;
use portolan_testkit::{unique, until};

/// A domain with two ports that are offered, as `frames` and as `also`.
struct Two {
    name: String,
    domain: Domain,
    ports: [ReceiveRight; 2],
    offered: [OfferedPort; 2],
}

fn two(also: OfferOptions) -> Two {
    let (name, domain, port, offered) = plain();
    let other = domain.bind(PortOptions::unnamed().queue(3)).unwrap();
    let permissions = Permissions::own_user();
    let other_offered = other.offer("also", &permissions, also).unwrap();
    Two {
        name,
        domain,
        ports: [port, other],
        offered: [offered, other_offered],
    }
}

#[test]
fn a_second_port_of_the_same_process_goes_over_the_first_ones_connection() {
    let mut two = two(OfferOptions::default());
    let mut child = Child::connected(&two.name);
    let order = format!("connect-also {} also", two.name);
    assert_eq!(child.ask(&order), "connected");
    assert_eq!(child.ask("connections"), "1");
    assert_eq!(child.ask("send 1 100,5"), "sent");
    assert_eq!(child.ask("send-also 2 3000000"), "sent");
    assert_eq!(next(&mut two.ports[0]), (1, 105));
    assert_eq!(next(&mut two.ports[1]), (2, 3_000_000));
    // Each is a client of its offer.
    let clients = two.offered.each_ref().map(OfferedPort::clients);
    assert_eq!(clients, [1, 1]);
    assert_eq!(two.domain.survey().unwrap().connections.len(), 2);
    // The first one ends, and the other one stays.
    let [first, _second] = two.offered;
    drop(first);
    until("it is a dead name", || child.ask("full 3 1") == "DeadName");
    assert_eq!(child.ask("send-also 4 10"), "sent");
    assert_eq!(next(&mut two.ports[1]), (4, 10));
    assert_eq!(child.ask("drop-right"), "dropped");
    until("it is over", || child.ask("connections") == "0");
}

#[test]
fn ports_of_other_processes_and_kinds_have_connections_of_their_own() {
    let two = two(OfferOptions::default().most_ring_bytes(64 << 10));
    let mut child = Child::connected(&two.name);
    // Another byte ring.
    let order = format!("connect-also {} also", two.name);
    assert_eq!(child.ask(&order), "connected");
    assert_eq!(child.ask("connections"), "2");
    // Another offering process, of the same domain.
    let mut other = Child::new();
    assert_eq!(other.ask(&format!("offer-in {}", two.name)), "offered");
    let order = format!("connect-also {} elsewhere", two.name);
    assert_eq!(child.ask(&order), "connected");
    assert_eq!(child.ask("connections"), "3");
    assert_eq!(other.ask("connections"), "1");
    // Another client.
    let mut second = Child::connected(&two.name);
    assert_eq!(second.ask("connections"), "1");
    assert_eq!(child.ask("connections"), "3");
}

/// A place in an offer is one, whichever connection the port goes over.
#[test]
fn the_limits_of_an_offer_hold_for_shared_connections() {
    let offer = OfferOptions::default().most_clients(1).most_bytes(8192);
    let mut two = two(offer);
    let mut child = Child::connected(&two.name);
    let order = format!("connect-also {} also", two.name);
    assert_eq!(child.ask(&order), "connected");
    assert_eq!(child.ask(&order), "Full");
    assert!(child.ask("send-also 1 8193").contains("most: 8192"));
    assert_eq!(child.ask("send-also 2 8192"), "sent");
    assert_eq!(next(&mut two.ports[1]), (2, 8192));
    assert_eq!(child.ask("send 3 3000000"), "sent");
    assert_eq!(next(&mut two.ports[0]), (3, 3_000_000));
    assert_eq!(child.ask("connections"), "1");
    let all = two.offered.iter();
    assert!(all.flat_map(OfferedPort::take_violations).next().is_none());
}

/// One process, whose messages go over one connection, has one port that is full.
#[test]
fn a_full_port_holds_up_no_other_and_is_bounded() {
    let mut two = two(OfferOptions::default().most_bytes(1 << 20));
    let ours = Domain::join(&unique("full")).unwrap();
    let connect = |name| {
        let other = Domain::builder(&two.name);
        let options = ConnectOptions::default();
        ours.connect_to(&other, name, options).unwrap()
    };
    let (open, full) = (connect("frames"), connect("also"));
    let mut sent = 0;
    loop {
        let soon = Deadline::after(std::time::Duration::from_millis(300));
        match full.send(message(&ours, sent, &[700_000]), soon) {
            Ok(()) => sent += 1,
            Err(_) => break,
        }
    }
    for number in 0..50 {
        open.send(message(&ours, number, &[100_000]), long())
            .unwrap();
        let came = two.ports[0].receive(Access::Later, long()).unwrap();
        is_message(&came, number, &[100_000]);
    }
    // In the port as many as its queue holds; before it one, which takes as much as one may.
    let extents = held(&two.domain);
    assert!((1..=5).contains(&extents), "{extents}");
    for number in 0..sent {
        let came = two.ports[1].receive(Access::Later, long()).unwrap();
        is_message(&came, number, &[700_000]);
    }
}

#[test]
fn a_client_that_is_killed_leaves_whole_messages_in_each_port() {
    let mut two = two(OfferOptions::default());
    let mut beside = Child::connected(&two.name);
    for round in 0..4 {
        let mut child = Child::connected(&two.name);
        let order = format!("connect-also {} also", two.name);
        assert_eq!(child.ask(&order), "connected");
        // The second port is full of these, and some are before it.
        for number in 0..6 {
            let order = format!("send-also {number} 100000");
            assert_eq!(child.ask(&order), "sent");
        }
        child.tell("send-many 0 100000 3000000");
        for expected in 0..=round {
            assert_eq!(next(&mut two.ports[0]), (expected, 3_000_000));
        }
        child.kill();
        // They go into the port as it has room.
        let (mut whole, mut first) = (0, round + 1);
        until("the client has left", || {
            // Asked first: what is there afterwards is all.
            let left = two.offered[1].clients() == 0 && two.offered[0].clients() == 1;
            while let Ok(came) = two.ports[1].receive(Access::Later, Deadline::NOW) {
                is_message(&came, whole, &[100_000]);
                whole += 1;
            }
            while let Ok(came) = two.ports[0].receive(Access::Later, Deadline::NOW) {
                is_message(&came, first, &[3_000_000]);
                first += 1;
            }
            left
        });
        // Those that the port and its window have room for.
        assert!((4..=6).contains(&whole), "{whole}");
        assert_eq!(beside.ask("send 7 9"), "sent");
        assert_eq!(next(&mut two.ports[0]), (7, 9));
    }
    assert_eq!(held(&two.domain), 0);
    let all = two.offered.iter();
    assert!(all.flat_map(OfferedPort::take_violations).next().is_none());
}

#[cfg(feature = "marks")]
#[test]
fn either_side_dies_while_a_connection_is_shared() {
    let two_of = || two(OfferOptions::default().most_clients(1));
    let mut two = two_of();
    let mut child = Child::connected(&two.name);
    assert_eq!(child.ask("die-at bridge.added"), "done");
    let order = format!("connect-also {} also", two.name);
    child.tell(&order);
    until("it has died", || child.ended());
    until("both have left", || {
        two.offered.iter().all(|it| it.clients() == 0)
    });
    let mut child = Child::connected(&two.name);
    assert_eq!(child.ask(&order), "connected");
    assert_eq!(child.ask("send-also 1 10"), "sent");
    assert_eq!(next(&mut two.ports[1]), (1, 10));

    let name = unique("dies");
    let mut offering = Child::new();
    assert_eq!(offering.ask(&format!("offer {name}")), "offered");
    assert_eq!(offering.ask("offer-also also"), "offered");
    let ours = Domain::join(&unique("survives")).unwrap();
    let connect = |what| {
        let deadline = Deadline::after(std::time::Duration::from_secs(2));
        let options = ConnectOptions::default().deadline(deadline);
        ours.connect_to(&Domain::builder(&name), what, options)
    };
    let first = connect("frames").unwrap();
    assert_eq!(offering.ask("die-at bridge.shared"), "done");
    // What it said before it died has come.
    if let Ok(second) = connect("also") {
        until("it is a dead name", || !second.is_live());
    }
    until("it has died", || offering.ended());
    until("it is a dead name", || !first.is_live());
    let unsent = first.send(message(&ours, 1, &[9]), portolan::WhenFull::Fail);
    let why = unsent.unwrap_err().why;
    assert!(matches!(why, portolan::SendError::DeadName), "{why}");
}

/// A client over whose connection a second port is to go, and which does not say that it knows.
#[test]
fn a_client_that_opens_ports_and_does_nothing_with_them() {
    let two = two(OfferOptions::default().most_clients(3));
    let stranger = Stranger::new(&two.name);
    let mut named = ask().named;
    named[2] = stranger.secret();
    let more = || {
        let socket = accepted_by(&two.name, "also");
        let asked = Ask { named, ..ask() };
        let (answer, fds) = answer_to(&socket, &asked.encode()).unwrap();
        (socket, answer, fds.len())
    };
    let opened = [1, 2, 3].map(|number| {
        let (socket, answer, fds) = more();
        let Answer::Granted(granted) = answer else {
            panic!("{answer:?}");
        };
        assert!(granted.shares && fds == 0);
        assert_eq!((granted.port, granted.secret), (number, named[2]));
        socket
    });
    assert_eq!(two.offered[1].clients(), 3);
    // No more than have a place.
    assert!(matches!(more().1, Answer::Refused(_)));
    // One hangs up without a word, one with a wrong one. The third stays.
    let [one, other, third] = opened;
    drop(one);
    socket::send(&other, b"X", &[]).unwrap();
    drop(other);
    socket::send(&third, &[WAKE], &[]).unwrap();
    drop(third);
    until("two have no place any more", || {
        two.offered[1].clients() == 1
    });
    // It says of none that it is closed. So their numbers stay taken, until it gets a connection
    // of its own.
    let mut shared = 3;
    until("no port shares its connection any more", || {
        // A place is free once it was seen that the one before has hung up.
        match more().1 {
            Answer::Granted(granted) if !granted.shares => return true,
            Answer::Granted(_) => shared += 1,
            Answer::Refused(_) => {}
        }
        assert!(shared < MAX_PORTS, "{shared}");
        false
    });
    drop(stranger);
    until("all have left", || {
        two.offered.iter().all(|it| it.clients() == 0)
    });
    let all = two.offered.iter();
    assert!(all.flat_map(OfferedPort::take_violations).next().is_none());
}
