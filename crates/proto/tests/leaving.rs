//! A client that posts, and leaves once it knows that all has arrived.

use portolan_proto::{Call, Client, Closed, Flags, Pipe, Server, Settings, Time};
use std::time::Duration;

const POST: u32 = 0xfeed;
const CALL: u32 = 0xcafe;

fn call(method: u32) -> Call {
    let flags = match method {
        POST => Flags::ONE_WAY,
        _ => Flags(0),
    };
    Call {
        flags,
        ..Call::new(method)
    }
}

#[test]
fn what_is_asked_about_in_haste_is_known_at_once_and_runs_after_the_client_has_left() {
    let (mut at_client, mut at_server) = Pipe::pair();
    let settings = Settings::default();
    let mut client = Client::new(settings, 7);
    let mut server = Server::new(settings, 7, 1);
    client.met(1);
    let now = Time::ZERO;
    for method in [POST, CALL, POST] {
        let made = client.call(now, &mut at_client, call(method), &mut vec![1]);
        assert!(made.is_ok());
    }
    assert_eq!((client.posted(), client.open()), (2, 3));
    // Nothing is due before a period has passed, but for who is in haste.
    let period = Some(now.after(settings.period));
    assert_eq!(client.next_timeout(), period);
    client.hasten(now);
    assert_eq!(client.next_timeout(), Some(now));
    client.review(now, &mut at_client);
    assert_eq!(client.next_timeout(), period, "asked once");
    while server.poll(now, &mut at_server).unwrap() {}
    while client.poll(now, &mut at_client).unwrap() {}
    assert_eq!((client.posted(), client.open()), (0, 1));
    assert_eq!(client.counts().unconfirmed, 0);

    // No caller has taken them yet.
    client.close(&mut at_client);
    let end = Err(Closed::Left);
    assert_eq!(server.poll(now, &mut at_server), end);
    assert!(server.has_ready());
    let mut ran = Vec::new();
    while let Some(incoming) = server.take(now, &mut Vec::new()) {
        ran.push((incoming.number, incoming.method));
    }
    assert_eq!(ran, [(1, POST), (3, POST)], "nobody waits for the other");
    assert!(!server.has_ready());
}

#[test]
fn what_was_lost_is_sent_again_in_haste() {
    let (mut at_client, mut at_server) = Pipe::pair();
    let (mut lost, _) = Pipe::pair();
    let settings = Settings::default();
    let mut client = Client::new(settings, 7);
    let mut server = Server::new(settings, 7, 1);
    client.met(1);
    let mut now = Time::ZERO;
    for _ in 0..3 {
        let made = client.call(now, &mut lost, call(POST), &mut Vec::new());
        assert!(made.is_ok());
    }
    client.hasten(now);
    let mut rounds = 0;
    while client.posted() > 0 {
        client.review(now, &mut at_client);
        while server.poll(now, &mut at_server).unwrap() {}
        while client.poll(now, &mut at_client).unwrap() {}
        while server.poll(now, &mut at_server).unwrap() {}
        now = now.after(settings.period + Duration::from_nanos(1));
        rounds += 1;
    }
    assert_eq!(rounds, 2, "asked, sent again, and told when asked next");
    assert_eq!(server.expected(), 4);
}
