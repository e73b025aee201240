//! Messages of all lengths arrive in order, from one sender and from several.

use crate::child::Child;
use crate::numbered::{is_message, long, message, next};
use portolan::{
    Access, ConnectOptions, Deadline, Domain, OfferOptions, OfferedPort, Permissions, PortOptions,
    ReceiveRight, SendError, WhenFull,
};
use portolan_testkit::{unique, until};
use std::time::Duration;

/// A domain of this process, with a port that others may send to.
pub(crate) fn offering(
    options: PortOptions,
    offer: OfferOptions,
) -> (String, Domain, ReceiveRight, OfferedPort) {
    let name = unique("offering");
    let domain = Domain::join(&name).unwrap();
    let port = domain.bind(options).unwrap();
    let offered = port
        .offer("frames", &Permissions::own_user(), offer)
        .unwrap();
    (name, domain, port, offered)
}

pub(crate) fn plain() -> (String, Domain, ReceiveRight, OfferedPort) {
    offering(PortOptions::unnamed(), OfferOptions::default())
}

#[test]
fn messages_of_all_lengths() {
    let (name, _domain, mut port, offered) = plain();
    let mut child = Child::connected(&name);
    let shapes: [&[usize]; 9] = [
        &[0],
        &[1],
        &[63, 64, 65],
        &[4095, 4096, 4097],
        &[0, 5, 0],
        &[100; 300],
        &[1 << 20],
        &[16 << 20, 3],
        &[64 << 20],
    ];
    for (n, lengths) in shapes.iter().enumerate() {
        let words: Vec<String> = lengths.iter().map(usize::to_string).collect();
        assert_eq!(child.ask(&format!("send {n} {}", words.join(","))), "sent");
        let came = port.receive(Access::Now, long()).unwrap();
        is_message(&came, n as u64, lengths);
    }
    assert_eq!(offered.clients(), 1);
    assert_eq!(child.ask("drop-right"), "dropped");
    until("the client has left", || offered.clients() == 0);
    assert!(offered.take_violations().is_empty());
}

#[test]
fn many_messages_of_two_senders_each_in_order() {
    let (name, _domain, mut port, _offered) = plain();
    let mut children = [Child::connected(&name), Child::connected(&name)];
    const COUNT: u64 = 3000;
    for (child, from) in children.iter_mut().zip([0, 1 << 20]) {
        child.tell(&format!("send-many {from} {COUNT} 700"));
    }
    let mut expected = [0, 1 << 20];
    for _ in 0..2 * COUNT {
        let (number, len) = next(&mut port);
        let whose = usize::from(number >= 1 << 20);
        assert_eq!((number, len), (expected[whose], 700));
        expected[whose] += 1;
    }
    for child in &mut children {
        assert_eq!(child.answer(), "sent");
    }
}

#[test]
fn a_process_that_is_in_both_domains() {
    let (name, theirs, mut port, _offered) = plain();
    let ours = Domain::join(&unique("both")).unwrap();
    let right = ours
        .connect_to(
            &Domain::builder(&name),
            "frames",
            ConnectOptions::default().ring_bytes(64 << 10),
        )
        .unwrap();
    right
        .send(message(&ours, 7, &[1 << 20]), WhenFull::Fail)
        .unwrap();
    let came = port.receive(Access::Later, long()).unwrap();
    is_message(&came, 7, &[1 << 20]);
    // It is of the domain that it came to, and can be sent on there.
    let inside = theirs.bind(PortOptions::unnamed()).unwrap();
    inside.make_send().send(came, WhenFull::Fail).unwrap();
    // The domain's own members connect the same way.
    let own = theirs
        .connect_to(&Domain::builder(&name), "frames", ConnectOptions::default())
        .unwrap();
    own.send(message(&theirs, 8, &[3]), WhenFull::Fail).unwrap();
    let came = port.receive(Access::Later, long()).unwrap();
    is_message(&came, 8, &[3]);
}

#[test]
fn who_does_not_wait_for_an_offer_waits_for_answers() {
    let (name, theirs, mut port, _offered) = offering(
        PortOptions::unnamed(),
        OfferOptions::default().most_bytes(0),
    );
    for now in [Deadline::NOW, Deadline::after(Duration::ZERO)] {
        let connect = |name: &str, to| {
            let options = ConnectOptions::default().deadline(now);
            theirs.connect_to(&Domain::builder(name), to, options)
        };
        let right = connect(&name, "frames").unwrap();
        right
            .send(message(&theirs, 1, &[]), WhenFull::Fail)
            .unwrap();
        is_message(&port.receive(Access::Later, long()).unwrap(), 1, &[]);
        let sent = right.send(message(&theirs, 1, &[2]), WhenFull::Fail);
        let refused = sent.unwrap_err().why;
        assert!(matches!(
            refused,
            SendError::TooLong {
                len: 2,
                bytes: 4096,
                most: 1,
                ..
            }
        ));
        for (domain, to) in [(name.as_str(), "nothing"), ("nowhere", "frames")] {
            let refused = connect(domain, to).unwrap_err().to_string();
            let why = ["nobody in the domain offers", "has no domain"];
            assert!(why.iter().any(|why| refused.contains(why)), "{refused}");
        }
    }
}

#[test]
fn a_port_that_is_offered_later() {
    let name = unique("later");
    let domain = Domain::join(&name).unwrap();
    let mut port = domain.bind(PortOptions::unnamed()).unwrap();
    let mut child = Child::new();
    child.tell(&format!("connect {} {name} frames", unique("early")));
    let offered = port
        .offer("frames", &Permissions::own_user(), OfferOptions::default())
        .unwrap();
    assert_eq!(child.answer(), "connected");
    assert_eq!(child.ask("send 1 10"), "sent");
    assert_eq!(next(&mut port), (1, 10));
    // Withdrawn, and offered again.
    drop(offered);
    until("the right is a dead name", || {
        child.ask("full 2 1") == "DeadName"
    });
    let _again = port
        .offer("frames", &Permissions::own_user(), OfferOptions::default())
        .unwrap();
    let ours = unique("early");
    assert_eq!(
        child.ask(&format!("connect {ours} {name} frames")),
        "connected"
    );
    assert_eq!(child.ask("send 3 10"), "sent");
    let (number, _) = next(&mut port);
    assert!(number == 2 || number == 3, "{number}");
}

#[test]
fn what_is_over_the_limit_is_refused_when_it_is_sent() {
    // Two pages, and one for the list of both.
    let offer = OfferOptions::default().most_bytes(3 << 12);
    let (name, _domain, mut port, _offered) = offering(PortOptions::unnamed(), offer);
    let mut child = Child::connected(&name);
    assert_eq!(
        child.ask("send 1 4097,500"),
        "TooLong { len: 4597, extents: 2, bytes: 16384, most: 12288 }"
    );
    assert_eq!(child.ask("send 2 4096,500"), "sent");
    assert_eq!(next(&mut port), (2, 4596));
}

/// A client that sends and leaves has sent, also if there is no memory for it yet.
#[test]
fn what_was_sent_before_a_client_left_waits_for_memory() {
    let name = unique("short");
    let limit = 16 << 20;
    let domain = Domain::builder(&name).limit(limit).join().unwrap();
    let mut port = domain.bind(PortOptions::unnamed()).unwrap();
    let offered = port
        .offer("frames", &Permissions::own_user(), OfferOptions::default())
        .unwrap();
    let mut child = Child::connected(&name);
    let mut all = Vec::new();
    for bytes in [2 << 20, 4096] {
        while let Ok(extent) = domain.allocate(bytes) {
            all.push(extent);
        }
    }
    assert_eq!(child.ask("send 1 100,5000"), "sent");
    assert_eq!(child.ask("send 2 300"), "sent");
    assert_eq!(child.ask("leave"), "left");
    // Long enough for the ingress, which waits for memory, to look again, and to hear meanwhile
    // that the client is gone.
    std::thread::sleep(Duration::from_millis(200));
    drop(all);
    is_message(&port.receive(Access::Now, long()).unwrap(), 1, &[100, 5000]);
    is_message(&port.receive(Access::Now, long()).unwrap(), 2, &[300]);
    until("the client has left", || offered.clients() == 0);
}
