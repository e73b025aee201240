//! Tests strangers that send rubbish, or nothing, or too much.

use super::{Child, answered, child, from_outside, joined, long, meets, said};
use crate::directory::OfferKind;
use crate::{Deadline, OfferConnectError};
use portolan_abi::connect::{ConnectAnswer, ConnectRequest, Maker, OfferName};
use portolan_abi::hello::{Reason, Refusal, socket_name};
use portolan_sys::socket::{self, Address, SocketError};
use portolan_testkit::{PATIENCE, unique, until};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

/// A connection to the host of a domain of ours.
fn connected(domain: &str) -> OwnedFd {
    let address = socket_name(portolan_sys::process::user(), domain).unwrap();
    let address = Address::Abstract(address.into_bytes());
    socket::connect_by(&address, Some(Instant::now() + PATIENCE)).unwrap()
}

fn greeting(name: &str) -> ConnectRequest {
    ConnectRequest {
        kind: OfferKind::Port,
        name: OfferName::new(name).unwrap(),
        token: None,
        maker: Maker::ANY,
    }
}

/// What the host says next; `None`: it has hung up.
fn heard(connection: &OwnedFd) -> Option<ConnectAnswer> {
    let mut answer = [0; ConnectAnswer::MAX_BYTES];
    let by = Some(Instant::now() + PATIENCE);
    match socket::receive_by(connection, &mut answer, 0, by) {
        Ok(received) => ConnectAnswer::decode(&answer[..received.len]).ok(),
        Err(SocketError::Closed) => None,
        Err(error) => panic!("{error}"),
    }
}

fn refusal(answer: Option<ConnectAnswer>) -> Reason {
    match answer {
        Some(ConnectAnswer::Refused(Refusal { why, .. })) => why,
        other => panic!("{other:?}"),
    }
}

fn descriptors(of: &mut Child) -> usize {
    of.ask("descriptors").parse().unwrap()
}

#[test]
fn rubbish_is_refused() {
    let name = unique("rubbish");
    let mut host = joined(&name);
    host.ask("offer x anyone=1");
    let before = descriptors(&mut host);
    let good = greeting("x").encode();
    let with = |at: usize, byte: u8| {
        let mut bad = good;
        bad[at] = byte;
        bad.to_vec()
    };
    let rubbish = [
        good[..95].to_vec(),
        [&good[..], b"x"].concat(),
        with(8, 9),
        with(9, 2),
        with(32, 0),
        with(95, 1),
        vec![0xff; 96],
        vec![b'P'; 1],
    ];
    for bytes in rubbish {
        let connection = connected(&name);
        socket::send(&connection, &bytes, &[]).unwrap();
        assert_eq!(refusal(heard(&connection)), Reason::Garbled, "{bytes:?}");
        assert_eq!(heard(&connection), None);
    }
    let connection = connected(&name);
    socket::send(&connection, &with(4, 99)[..40], &[]).unwrap();
    assert_eq!(refusal(heard(&connection)), Reason::Version);
    drop(connection);
    assert_eq!(
        said(&from_outside(&name, "x", long()).unwrap()),
        meets(&host)
    );
    // One is met, and its inbox keeps it: a connection and a process.
    until("nothing else is left", || {
        descriptors(&mut host) == before + 2
    });
}

#[test]
fn a_client_that_talks_while_it_waits_is_sent_away() {
    let name = unique("talks");
    let _host = joined(&name);
    let connection = connected(&name);
    socket::send(&connection, &greeting("x").encode(), &[]).unwrap();
    assert_eq!(heard(&connection), Some(ConnectAnswer::Wait));
    socket::send(&connection, b"well?", &[]).unwrap();
    assert_eq!(refusal(heard(&connection)), Reason::Garbled);
    assert_eq!(heard(&connection), None);
}

#[test]
fn descriptors_that_nobody_asked_for_are_not_taken() {
    let name = unique("descriptors");
    let mut host = joined(&name);
    host.ask("offer x anyone=1");
    let before = descriptors(&mut host);
    for _ in 0..20 {
        let connection = connected(&name);
        let gifts = [connection.as_fd(), connection.as_fd()];
        // Fails at once where the kernel sees to it, if the host was faster.
        let _ = socket::send(&connection, &greeting("y").encode(), &gifts);
    }
    until("none is kept", || descriptors(&mut host) == before);
    // After the hand-off the acceptor decides what it takes.
    let accepted = from_outside(&name, "x", long()).unwrap();
    let connection = accepted.connection.as_fd();
    socket::send(connection, b"gift", &[connection]).unwrap();
    assert_eq!(host.ask("gifts"), "1");
}

#[test]
fn who_connects_and_says_nothing_is_not_kept_for_ever() {
    let name = unique("silent");
    let mut host = joined(&name);
    host.ask("offer x anyone=1");
    let before = descriptors(&mut host);
    let silent: Vec<OwnedFd> = (0..400).map(|_| connected(&name)).collect();
    assert!(from_outside(&name, "x", long()).is_ok());
    assert_eq!(joined(&name).ask("leave"), "Ok(())");
    // Sixty-four with two each, and the client that was met.
    let kept = descriptors(&mut host) - before;
    assert!(kept <= 2 * 64 + 2, "{kept}");
    let dropped = silent.iter().filter(|s| {
        let ready = portolan_sys::process::poll(&[s.as_fd()], Some(Instant::now())).unwrap();
        ready[0].hangup
    });
    assert!(dropped.count() >= 400 - 64);
    drop(silent);
    until("they are forgotten", || {
        descriptors(&mut host) == before + 2
    });
}

#[test]
fn who_waits_in_crowds_is_told_that_it_is_too_many() {
    let name = unique("crowd");
    let mut host = joined(&name);
    host.ask("offer x anyone=1");
    // As most systems have it.
    assert_eq!(host.ask("limit 1024"), "0");
    let before = descriptors(&mut host);
    let mut waiting = Vec::new();
    for _ in 0..80 {
        let connection = connected(&name);
        socket::send(&connection, &greeting("later").encode(), &[]).unwrap();
        match heard(&connection) {
            Some(ConnectAnswer::Wait) => waiting.push(connection),
            other => assert_eq!(refusal(other), Reason::Busy),
        }
    }
    assert_eq!(waiting.len(), 64);
    until("the others are let go of", || {
        descriptors(&mut host) == before + 64
    });
    // What is there is found all the same, and who means it comes again.
    assert!(from_outside(&name, "x", long()).is_ok());
    let busy = answered(&name, "later");
    assert!(matches!(busy, Err(OfferConnectError::Busy)), "{busy:?}");
    let mut client = child();
    client.tell(&format!("connect {name} later"));
    waiting.clear();
    assert_eq!(host.ask("offer later anyone=1"), "offered");
    assert!(client.answer().starts_with("process"));
}

#[test]
fn a_member_that_reads_nothing_stops_nobody() {
    let name = unique("stopped");
    let mut host = joined(&name);
    let mut member = joined(&name);
    host.ask("offer hosts anyone=1");
    member.ask("offer members anyone=1");
    member.stop();
    let mut clients = Vec::new();
    let queued = |connection: OwnedFd| {
        socket::send(&connection, &greeting("members").encode(), &[]).unwrap();
        connection
    };
    for _ in 0..16 {
        clients.push(queued(connected(&name)));
    }
    // No more are handed to it before it has taken those.
    let queued = queued(connected(&name));
    assert_eq!(heard(&queued), Some(ConnectAnswer::Queue));
    let not_met = answered(&name, "members");
    assert!(
        matches!(not_met, Err(OfferConnectError::NotMet { .. })),
        "{not_met:?}"
    );
    assert_eq!(
        said(&from_outside(&name, "hosts", long()).unwrap()),
        meets(&host)
    );
    member.resume();
    for connection in clients.iter().chain([&queued]) {
        assert_eq!(heard(connection), Some(ConnectAnswer::Accepted));
    }
    assert_eq!(
        said(&from_outside(&name, "members", long()).unwrap()),
        meets(&member)
    );
}

#[test]
fn a_stopped_host_is_waited_for_until_the_deadline() {
    let name = unique("stopped-host");
    let mut host = joined(&name);
    host.ask("offer x anyone=1");
    host.stop();
    let by = Deadline::after(std::time::Duration::from_millis(300));
    let late = from_outside(&name, "x", by);
    assert!(
        matches!(late, Err(OfferConnectError::Unanswered)),
        "{late:?}"
    );
    let mut client = child();
    client.tell(&format!("connect {name} x"));
    host.resume();
    assert!(client.answer().starts_with("process"));
}

#[test]
fn an_offerer_without_descriptors_loses_clients_and_nothing_else() {
    let name = unique("poor-offerer");
    let mut host = joined(&name);
    let mut member = joined(&name);
    host.ask("offer hosts anyone=1");
    member.ask("offer members anyone=1");
    assert_eq!(member.ask("no room"), "0");
    // More than may be on their way to it.
    for _ in 0..40 {
        let connection = connected(&name);
        socket::send(&connection, &greeting("members").encode(), &[]).unwrap();
        assert_eq!(heard(&connection), None, "to ask again");
    }
    assert_eq!(
        said(&from_outside(&name, "hosts", long()).unwrap()),
        meets(&host)
    );
    let mut client = child();
    client.tell(&format!("connect {name} members"));
    assert_eq!(member.ask("limit 1024"), "0");
    assert!(
        client
            .answer()
            .starts_with(&format!("process {} of", member.pid()))
    );
}

#[test]
fn a_host_without_descriptors_says_so_to_clients() {
    let name = unique("poor-host");
    let mut host = joined(&name);
    host.ask("offer x anyone=1");
    assert_eq!(host.ask("no room"), "0");
    let poor = answered(&name, "x");
    let why = matches!(
        poor,
        Err(OfferConnectError::Domain(
            crate::JoinError::HostDescriptors { .. }
        ))
    );
    assert!(why, "{poor:?}");
    let mut client = child();
    client.tell(&format!("connect {name} x"));
    assert_eq!(host.ask("limit 1024"), "0");
    assert!(
        client
            .answer()
            .starts_with(&format!("process {} of", host.pid()))
    );
}

/// It has not even one to say so with, for a while.
#[test]
fn a_host_without_any_descriptor_hears_clients_when_there_are_some() {
    let name = unique("poorer-host");
    let mut host = joined(&name);
    host.ask("offer x anyone=1");
    // Below the one that it keeps for this.
    assert_eq!(host.ask("limit 5"), "0");
    let by = Deadline::after(std::time::Duration::from_millis(300));
    let late = from_outside(&name, "x", by);
    assert!(
        matches!(late, Err(OfferConnectError::Unanswered)),
        "{late:?}"
    );
    assert_eq!(host.ask("limit 1024"), "0");
    assert_eq!(
        said(&from_outside(&name, "x", long()).unwrap()),
        meets(&host)
    );
}
