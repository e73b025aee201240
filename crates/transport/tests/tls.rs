//! TLS between nodes: who is let in, who is not and why, and bytes that are no TLS.
#![cfg(feature = "tls")]

#[path = "support/certificates.rs"]
mod certificates;

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use certificates::{Authority, DAY, TODAY};
use portolan_sys::process::poll;
use portolan_testkit::PATIENCE;
use portolan_transport::clock::{Clock, ManualClock};
use portolan_transport::tls::{Certificate, Cluster, LinkOptions, links, newcomer};
use portolan_transport::{
    Address, Class, Connection, Destination, Listener, Moment, Peer, Progress, Source, State, Tcp,
    Transport, TransportError,
};

fn moment(seconds: u64) -> Moment {
    Moment { seconds }
}

/// The id of an authority's key.
fn key(authority: &Authority) -> [u8; 16] {
    Certificate::read(&authority.certificate).unwrap().key
}

fn at(address: &str) -> Address {
    Address::Internet(address.parse().unwrap())
}

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(Duration::from_secs(TODAY)))
}

/// A node's transport.
fn node(cluster: &Cluster, clock: &Arc<ManualClock>) -> Tcp {
    links(
        cluster,
        LinkOptions::default(),
        Arc::clone(clock) as Arc<dyn Clock>,
    )
}

fn listening(transport: &Tcp) -> Box<dyn Listener> {
    transport.listen(&at("127.0.0.1:0")).unwrap()
}

/// What came of a client's connection.
struct Met {
    client: Box<dyn Connection>,
    server: Option<Box<dyn Connection>>,
    /// Why the listener refused.
    refused: Vec<TransportError>,
}

impl Met {
    /// Why the client failed.
    fn failure(&self) -> TransportError {
        self.client.failure().expect("the client failed").clone()
    }

    /// Why the listener refused, of whatever connection of the link came first.
    fn refusal(&self) -> &TransportError {
        match self.refused.first().expect("the listener refused") {
            TransportError::Refused { reason, .. } => reason,
            other => panic!("{other}"),
        }
    }
}

/// Goes on until both are up, or the client has failed and, if it `wants`, the listener has refused.
fn meet(client: Box<dyn Connection>, listener: &mut Box<dyn Listener>, wants: bool) -> Met {
    let mut met = Met {
        client,
        server: None,
        refused: Vec::new(),
    };
    let end = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < end, "nothing came of it");
        match listener.accept() {
            Ok(Some(server)) => met.server = Some(server),
            Ok(None) => {}
            Err(why) => met.refused.push(why),
        }
        let ours = met.client.progress();
        let theirs = met.server.as_mut().map(|server| server.progress());
        match (ours, theirs) {
            (State::Up, Some(State::Up)) => return met,
            (State::Failed, _) if !wants || !met.refused.is_empty() => return met,
            _ => {}
        }
        let mut fds = vec![met.client.descriptor(), listener.descriptor()];
        fds.extend(met.server.as_ref().map(|server| server.descriptor()));
        poll(&fds, Some(Instant::now() + Duration::from_millis(20))).unwrap();
    }
}

fn connect(from: &Tcp, listener: &mut Box<dyn Listener>, wants: bool) -> Met {
    let client = from.connect(&listener.address()).unwrap();
    meet(client, listener, wants)
}

#[test]
fn nodes_of_a_cluster_know_each_other_by_their_keys() {
    let (authority, clock) = (Authority::new("authority of tests"), clock());
    let (hall, roof) = (authority.node("hall"), authority.node("roof"));
    let mut listener = listening(&node(&hall, &clock));
    let met = connect(&node(&roof, &clock), &mut listener, false);
    let server = met.server.unwrap();
    assert_eq!(met.client.peer(), Peer::Node(hall.node()));
    assert_eq!(server.peer(), Peer::Node(roof.node()));
    assert!(server.limits().authenticated && server.limits().authentic_ends);
    // Both ends have the number, and no other connection has.
    let binding = met.client.binding("for tests").unwrap();
    assert_eq!(server.binding("for tests"), Some(binding));
    assert_ne!(server.binding("for others"), Some(binding));
    let again = connect(&node(&roof, &clock), &mut listener, false);
    assert_ne!(again.client.binding("for tests"), Some(binding));
}

#[test]
fn a_certificate_that_has_expired_is_refused_on_both_sides_and_both_say_why() {
    let (authority, clock) = (Authority::new("authority of tests"), clock());
    let hall = authority.node("hall");
    let old = authority.node_valid("old", TODAY - 31 * DAY, TODAY - DAY);
    let expired = TransportError::Expired {
        node: old.node(),
        not_after: moment(TODAY - DAY),
        now: moment(TODAY),
    };
    let text = expired.to_string();
    assert!(
        text.contains("2027-01-14T08:00:00Z") && text.contains("2027-01-15T08:00:00Z"),
        "{text}"
    );
    // The listener refuses the client, which hears why.
    let met = connect(
        &node(&old, &clock),
        &mut listening(&node(&hall, &clock)),
        true,
    );
    assert_eq!(*met.refusal(), expired);
    let says = "that it is expired, or not valid yet, by its clock";
    assert_eq!(met.failure(), TransportError::RefusedUs { alert: says });
    // The client refuses the listener.
    let met = connect(
        &node(&hall, &clock),
        &mut listening(&node(&old, &clock)),
        true,
    );
    assert_eq!(met.failure(), expired);
    assert_eq!(*met.refusal(), TransportError::RefusedUs { alert: says });
}

#[test]
fn a_certificate_of_tomorrow_is_refused() {
    let (authority, clock) = (Authority::new("authority of tests"), clock());
    let hall = authority.node("hall");
    let early = authority.node_valid("early", TODAY + DAY, TODAY + 31 * DAY);
    let met = connect(
        &node(&early, &clock),
        &mut listening(&node(&hall, &clock)),
        true,
    );
    let expected = TransportError::NotYetValid {
        node: early.node(),
        not_before: moment(TODAY + DAY),
        now: moment(TODAY),
    };
    assert_eq!(*met.refusal(), expected);
    let met = connect(
        &node(&hall, &clock),
        &mut listening(&node(&early, &clock)),
        true,
    );
    assert_eq!(met.failure(), expected);
}

#[test]
fn a_node_of_another_cluster_is_refused_and_both_authorities_are_named() {
    let clock = clock();
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let (hall, foreign) = (ours.node("hall"), theirs.node("foreign"));
    let met = connect(
        &node(&foreign, &clock),
        &mut listening(&node(&hall, &clock)),
        true,
    );
    // Who connects looks first.
    let expected = |node: &Cluster, theirs: &str, ours: &str| TransportError::Foreign {
        node: node.node(),
        theirs: format!("{theirs:?}"),
        ours: format!("{ours:?}"),
    };
    assert_eq!(met.failure(), expected(&hall, "ours", "theirs"));
    let says = "that it is of another authority";
    assert_eq!(*met.refusal(), TransportError::RefusedUs { alert: says });
    // One that does not look is found out by the listener: it believes both authorities.
    let identity = theirs.identity("foreign", TODAY - DAY, TODAY + DAY);
    let both = [theirs.certificate.clone(), ours.certificate.clone()];
    let foreign = Cluster::new(&identity, &both).unwrap();
    let met = connect(
        &node(&foreign, &clock),
        &mut listening(&node(&hall, &clock)),
        true,
    );
    assert_eq!(*met.refusal(), expected(&foreign, "theirs", "ours"));
    assert_eq!(met.failure(), TransportError::RefusedUs { alert: says });
    let shown = Certificate::read(&identity.certificate).unwrap();
    assert_eq!(shown.node(), foreign.node());
}

#[test]
fn a_node_that_was_forgotten_is_refused_from_then_on() {
    let (authority, clock) = (Authority::new("authority of tests"), clock());
    let (hall, roof) = (authority.node("hall"), authority.node("roof"));
    let mut listener = listening(&node(&hall, &clock));
    let met = connect(&node(&roof, &clock), &mut listener, false);
    assert!(met.server.is_some());
    hall.forget([roof.node()]);
    let met = connect(&node(&roof, &clock), &mut listener, true);
    assert_eq!(
        *met.refusal(),
        TransportError::Forgotten { node: roof.node() }
    );
    let says = "that this node was forgotten there";
    assert_eq!(met.failure(), TransportError::RefusedUs { alert: says });
    hall.forget([]);
    assert!(
        connect(&node(&roof, &clock), &mut listener, false)
            .server
            .is_some()
    );
}

#[test]
fn another_node_than_the_one_expected_is_refused() {
    let (authority, clock) = (Authority::new("authority of tests"), clock());
    let [hall, roof, cellar] = ["hall", "roof", "cellar"].map(|name| authority.node(name));
    let options = LinkOptions {
        only: Some(cellar.node()),
        ..LinkOptions::default()
    };
    let transport = links(&roof, options, Arc::clone(&clock) as Arc<dyn Clock>);
    let met = connect(&transport, &mut listening(&node(&hall, &clock)), true);
    let expected = TransportError::OtherNode {
        wanted: cellar.node(),
        found: hall.node(),
    };
    assert_eq!(met.failure(), expected);
}

#[test]
fn directories_have_one_stream_and_show_certificates_as_links_do() {
    let (authority, clock) = (Authority::new("authority of tests"), clock());
    let [hall, roof] = ["hall", "roof"].map(|name| authority.node(name));
    let mut listener = listening(&node(&hall, &clock));
    let options = LinkOptions {
        directories: true,
        ..LinkOptions::default()
    };
    let directories = |of| links(of, options.clone(), Arc::clone(&clock) as Arc<dyn Clock>);
    let mut met = connect(&directories(&roof), &mut listener, false);
    assert_eq!(met.client.peer(), Peer::Directory(hall.node()));
    let mut server = met.server.take().unwrap();
    assert_eq!(server.peer(), Peer::Directory(roof.node()));
    assert!(met.client.open(Class::Bulk).is_err() && server.open(Class::Bulk).is_err());
    assert!(met.client.open(Class::Records).is_ok() && server.open(Class::Records).is_ok());
    // A link beside it, by the same listener.
    let link = connect(&node(&roof, &clock), &mut listener, false);
    assert_eq!(link.server.unwrap().peer(), Peer::Node(roof.node()));
    // One that is refused is refused here too; and a stranger is.
    hall.forget([roof.node()]);
    let met = connect(&directories(&roof), &mut listener, true);
    assert!(matches!(met.failure(), TransportError::RefusedUs { .. }));
    let stranger = Authority::new("other").node("stranger");
    let met = connect(&directories(&stranger), &mut listener, true);
    assert!(matches!(met.failure(), TransportError::Foreign { .. }));
}

#[test]
fn a_newcomer_has_one_stream_where_newcomers_are_let_in_and_none_elsewhere() {
    let (authority, clock) = (Authority::new("authority of tests"), clock());
    let hall = authority.node("hall");
    let options = LinkOptions {
        newcomers: true,
        ..LinkOptions::default()
    };
    let opens = links(&hall, options, Arc::clone(&clock) as Arc<dyn Clock>);
    let comes = |key| newcomer(key, Arc::clone(&clock) as Arc<dyn Clock>);
    let mut listener = listening(&opens);
    let mut met = connect(&comes(key(&authority)), &mut listener, false);
    assert_eq!(met.client.peer(), Peer::Node(hall.node()));
    assert_eq!(met.server.as_ref().unwrap().peer(), Peer::Newcomer);
    assert!(met.client.open(Class::Bulk).is_err());
    assert!(met.client.open(Class::Records).is_ok());
    // A link beside it, by the same listener.
    let roof = authority.node("roof");
    let link = connect(&node(&roof, &clock), &mut listener, false);
    assert_eq!(link.server.unwrap().peer(), Peer::Node(roof.node()));
    // Another authority than the newcomer was told of.
    let other = Authority::new("other");
    let met = connect(&comes(key(&other)), &mut listener, true);
    let failure = met.failure();
    assert!(
        matches!(failure, TransportError::Foreign { .. }),
        "{failure}"
    );
    // A listener that lets nobody in.
    let met = connect(
        &comes(key(&authority)),
        &mut listening(&node(&hall, &clock)),
        true,
    );
    let failure = met.failure();
    assert!(
        matches!(failure, TransportError::RefusedUs { .. }),
        "{failure}"
    );
    // A newcomer cannot listen.
    let refused = comes(key(&authority)).listen(&at("127.0.0.1:0"));
    drop(refused);
}

#[test]
fn a_jump_of_the_clock_refuses_new_connections_and_a_renewed_certificate_is_taken_at_once() {
    let (authority, clock) = (Authority::new("authority of tests"), clock());
    let identity = authority.identity("hall", TODAY - DAY, TODAY + 29 * DAY);
    let authorities = [authority.certificate.clone()];
    let hall = Cluster::new(&identity, &authorities).unwrap();
    let roof = authority.node("roof");
    let mut listener = listening(&node(&hall, &clock));
    let mut met = connect(&node(&roof, &clock), &mut listener, false);
    // Far ahead: nobody's certificate is valid any more, and links that are up go on.
    clock.set_of_day(Duration::from_secs(TODAY + 30 * DAY));
    let refused = connect(&node(&roof, &clock), &mut listener, true).failure();
    assert!(
        matches!(refused, TransportError::Expired { .. }),
        "{refused}"
    );
    let on = met.client.open(Class::Records).unwrap();
    let sent = met.client.send(on, &[Source::from(&b"on"[..])]);
    assert_eq!(sent, Progress::Moved(2));
    // Far back: not yet.
    clock.set_of_day(Duration::from_secs(TODAY - 2 * DAY));
    let refused = connect(&node(&roof, &clock), &mut listener, true).failure();
    assert!(
        matches!(refused, TransportError::NotYetValid { .. }),
        "{refused}"
    );
    // Renewed, as at two thirds of its time: the same listener shows the new one.
    clock.set_of_day(Duration::from_secs(TODAY + 28 * DAY));
    let renewed = authority.identity("hall", TODAY + 27 * DAY, TODAY + 57 * DAY);
    hall.replace(&renewed, &authorities).unwrap();
    let met = connect(&node(&roof, &clock), &mut listener, false);
    assert_eq!(met.client.peer(), Peer::Node(hall.node()));
    // A key of another certificate changes nothing.
    let mut wrong = renewed;
    wrong.key = identity.key;
    let refused = hall.replace(&wrong, &authorities).unwrap_err();
    assert!(
        matches!(refused, TransportError::BadCertificate { .. }),
        "{refused}"
    );
    assert!(
        connect(&node(&roof, &clock), &mut listener, false)
            .server
            .is_some()
    );
}

#[test]
fn garbage_ends_its_own_connection_and_no_other() {
    let (authority, clock) = (Authority::new("authority of tests"), clock());
    let (hall, roof) = (authority.node("hall"), authority.node("roof"));
    let mut listener = listening(&node(&hall, &clock));
    let Address::Internet(address) = listener.address() else {
        panic!("no internet address");
    };
    let mut seed = 0x1234_5678_9abc_def1_u64;
    for round in 0..24 {
        let mut bytes = vec![0; 1 + round * 97];
        for byte in &mut bytes {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            *byte = seed.to_le_bytes()[0];
        }
        if round % 3 == 0 {
            // A record of a handshake, by its head.
            bytes.splice(0..1, [22, 3, 1, 0, 200]);
        }
        let mut stranger = TcpStream::connect(address).unwrap();
        stranger.write_all(&bytes).unwrap();
        stranger.shutdown(Shutdown::Write).unwrap();
        let end = Instant::now() + PATIENCE;
        let refused = loop {
            assert!(Instant::now() < end, "garbage is waited for");
            match listener.accept() {
                Ok(None) => drop(poll(
                    &[listener.descriptor()],
                    Some(Instant::now() + Duration::from_millis(20)),
                )),
                Ok(Some(_)) => panic!("garbage became a link"),
                Err(TransportError::Refused { reason, .. }) => break reason,
                Err(other) => panic!("{other}"),
            }
        };
        let expected = matches!(
            *refused,
            TransportError::NotTls { .. }
                | TransportError::Truncated
                | TransportError::Broken { .. }
        );
        assert!(expected, "{refused}");
    }
    assert!(
        connect(&node(&roof, &clock), &mut listener, false)
            .server
            .is_some()
    );
    // A server that is none.
    let liar = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = node(&roof, &clock)
        .connect(&liar.local_addr().unwrap().into())
        .unwrap();
    let mut accepted = Vec::new();
    for _ in 0..2 {
        let (mut socket, _) = liar.accept().unwrap();
        socket
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .unwrap();
        accepted.push(socket);
    }
    let end = Instant::now() + PATIENCE;
    while client.progress() != State::Failed {
        assert!(Instant::now() < end, "a liar is believed");
    }
    let failure = client.failure().unwrap();
    assert!(
        matches!(failure, TransportError::NotTls { .. }),
        "{failure}"
    );
}

/// Passes bytes on between a client and `to`, of the client's `budget` in all, and then cuts.
fn relay(to: SocketAddr, budget: u64) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let budget = Arc::new(AtomicU64::new(budget));
    std::thread::spawn(move || {
        let mut sockets = Vec::new();
        for _ in 0..2 {
            let Ok((client, _)) = listener.accept() else {
                return;
            };
            let Ok(server) = TcpStream::connect(to) else {
                return;
            };
            for socket in [&client, &server] {
                socket.set_nodelay(true).unwrap();
                sockets.push(socket.try_clone().unwrap());
            }
            let (mut from, mut into) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut from, &mut into));
            let (budget, all) = (
                Arc::clone(&budget),
                sockets
                    .iter()
                    .map(|s| s.try_clone().unwrap())
                    .collect::<Vec<_>>(),
            );
            std::thread::spawn(move || {
                let (mut from, mut into) = (client, server);
                let mut byte = [0];
                while from.read_exact(&mut byte).is_ok() {
                    let left = budget
                        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |b| b.checked_sub(1));
                    if left.is_err() || into.write_all(&byte).is_err() {
                        break;
                    }
                }
                for socket in all.iter().chain([&from, &into]) {
                    let _ = socket.shutdown(Shutdown::Both);
                }
            });
        }
    });
    address
}

/// The handshake of both connections and a short exchange behind it, cut at bytes of the client's.
#[test]
fn a_cut_anywhere_in_the_handshake_or_behind_it_is_noticed_by_both_sides() {
    let (authority, clock) = (Authority::new("authority of tests"), clock());
    let (hall, roof) = (authority.node("hall"), authority.node("roof"));
    let text = b"a short message";
    let mut cut = 0;
    let mut whole = 0;
    while whole < 3 {
        let mut listener = listening(&node(&hall, &clock));
        let Address::Internet(address) = listener.address() else {
            panic!("no internet address");
        };
        let through = relay(address, cut);
        let mut client = node(&roof, &clock).connect(&through.into()).unwrap();
        let records = client.open(Class::Records).unwrap();
        let mut server: Option<Box<dyn Connection>> = None;
        let (mut sent, mut refused) = (false, false);
        let mut came = Vec::new();
        let end = Instant::now() + PATIENCE;
        let mut theirs = None;
        loop {
            assert!(Instant::now() < end, "a cut at {cut} is not noticed");
            match listener.accept() {
                Ok(Some(link)) => server = Some(link),
                Ok(None) => {}
                Err(TransportError::Refused { .. }) => refused = true,
                Err(other) => panic!("{other}"),
            }
            let mut state = client.progress();
            // An end is noticed by who receives.
            let mut nothing = [0; 1];
            let ours = client.receive(records, &[Destination::from(&mut nothing[..])]);
            if matches!(ours, Progress::Failed(_)) {
                state = State::Failed;
            }
            if state == State::Up && !sent {
                sent =
                    client.send(records, &[Source::from(&text[..])]) == Progress::Moved(text.len());
            }
            if let Some(server) = &mut server {
                let on = *theirs.get_or_insert_with(|| server.open(Class::Records).unwrap());
                server.progress();
                let mut bytes = [0; 64];
                match server.receive(on, &[Destination::from(&mut bytes[..])]) {
                    Progress::Moved(moved) => came.extend(&bytes[..moved]),
                    Progress::Blocked => {}
                    Progress::Ended => panic!("nobody has ended"),
                    Progress::Failed(_) => refused = true,
                }
            }
            assert!(text.starts_with(&came));
            if came == text {
                whole += 1;
                break;
            }
            if state == State::Failed && refused {
                assert!(came.is_empty(), "a record is whole or nothing");
                break;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        // Each byte of the first packets and of the last, some of those between.
        cut += if cut < 16 { 1 } else { 61 };
    }
    assert!(cut > 1_000, "{cut} bytes are not two handshakes");
}
