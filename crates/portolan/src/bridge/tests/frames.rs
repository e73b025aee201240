//! Frames of several ports of one connection: their order, and those that may not be.

use super::ports::small;
use super::*;
use portolan_abi::bridge::FRAGMENT;

/// A frame with these lengths, as it stands on a wire without lines.
fn frame(kind: FrameKind, port: u32, lengths: &[u64]) -> Vec<u8> {
    let frame = FrameHeader {
        extents: lengths.len(),
        port,
        ..FrameHeader::new(kind)
    };
    let mut bytes = frame.encode().to_vec();
    lengths
        .iter()
        .for_each(|len| bytes.extend(len.to_le_bytes()));
    bytes
}

/// A client writes a fragment of a long message, then a short one to another port, which comes
/// before the long one goes on.
#[test]
fn a_short_message_comes_between_two_fragments() {
    let mut two = plain(self::Over::Tcp);
    let (mut client, served) = tcp::served(&two.offered, 1 << 20);
    let mut other = two._theirs.bind(small()).unwrap();
    let permissions = Permissions::own_user();
    let offered = other.offer("other", &permissions, OfferOptions::default());
    let offered = offered.unwrap();
    let number = tcp::add(&served, &offered);
    let mut bytes = vec![0; FRAGMENT + 100];
    pattern(&mut bytes, 0);
    let mut write = |bytes: &[u8]| std::io::Write::write_all(&mut client, bytes).unwrap();
    write(&frame(FrameKind::Message, 0, &[bytes.len() as u64]));
    write(&bytes[..FRAGMENT]);
    write(&frame(FrameKind::Message, number, &[]));
    assert!(other.receive(Access::Later, long()).unwrap().is_empty());
    assert!(two.port.receive(Access::Later, Deadline::NOW).is_err());
    write(&frame(FrameKind::Fragment, 0, &[]));
    write(&bytes[FRAGMENT..]);
    let came = two.port.receive(Access::Later, long()).unwrap();
    is_the_one(&came, 0, &[bytes.len()]);
    // It has opened a port and never used it again; its end is that of both.
    drop(client);
    until("it has left", || offered.clients() == 0);
}

/// The other way round: what a library writes, while a long message is under way.
#[test]
fn the_fragments_of_a_message_let_others_pass() {
    const LONG: usize = 40 * FRAGMENT;
    let domain = Domain::private().unwrap();
    let (right, mut server) = messages_to(&domain);
    let (theirs, ours) = socket::pair().unwrap();
    let granted = Granted {
        shares: true,
        port: 5,
        ..GRANTED
    };
    socket::send(&ours, &Answer::Granted(granted).encode(), &[]).unwrap();
    let connection = Descriptor::new(theirs);
    let other = connect_over(
        &domain,
        AcceptedConnection { connection },
        &Sought::of(&Domain::builder("other"), "second"),
        &ConnectOptions::default(),
    )
    .unwrap();
    // It has named the connection, and says that it has heard.
    let mut asked = [0; Ask::BYTES];
    assert_eq!(
        socket::receive(&ours, &mut asked, 0).unwrap().len,
        Ask::BYTES
    );
    assert_eq!(Ask::decode(&asked).unwrap().named[0], GRANTED.secret);
    let heard = socket::receive(&ours, &mut asked, 0).unwrap();
    assert_eq!((heard.len, asked[0]), (1, portolan_abi::bridge::WAKE));
    right.send(message(&domain, 0, &[LONG]), long()).unwrap();
    let header = |server: &mut Raw| {
        let mut bytes = [0; FrameHeader::BYTES];
        server.read(&mut bytes);
        let frame = FrameHeader::decode(&bytes).unwrap();
        server.read(&mut vec![0; frame.rest()]);
        (frame.kind, frame.port)
    };
    assert_eq!(header(&mut server), (FrameKind::Message, 0));
    server.read(&mut vec![0; FRAGMENT]);
    // The byte ring has room for less than a fragment.
    other.send(Message::default(), long()).unwrap();
    let mut fragments = 1;
    loop {
        match header(&mut server) {
            (FrameKind::Fragment, 0) => {
                server.read(&mut vec![0; FRAGMENT]);
                fragments += 1;
            }
            other => {
                assert_eq!(other, (FrameKind::Message, 5));
                break;
            }
        }
    }
    assert!(fragments < LONG / FRAGMENT, "{fragments}");
    // The server closes a port that is unknown, and the library says that it knows.
    let closed = |port| {
        let frame = FrameHeader {
            port,
            ..FrameHeader::new(FrameKind::Closed)
        };
        frame.encode()
    };
    server.write(&closed(9));
    server.write(&closed(5));
    let mut heard = Vec::new();
    while heard.len() < 2 {
        match header(&mut server) {
            (FrameKind::Fragment, 0) => {
                server.read(&mut vec![0; FRAGMENT]);
            }
            (FrameKind::Closed, port) => heard.push(port),
            other => panic!("{other:?}"),
        }
    }
    heard.sort_unstable();
    assert_eq!(heard, [5, 9]);
    until("it is a dead name", || !other.is_live());
    assert!(right.is_live());
    // It says that more was accepted than was sent.
    let accepted = FrameHeader {
        accepted: 2,
        ..FrameHeader::new(FrameKind::Accepted)
    };
    server.write(&accepted.encode());
    until("it is a dead name", || !right.is_live());
}

const GRANTED: Granted = Granted {
    synchronous: false,
    shares: false,
    most: 32 << 20,
    there: 64 << 10,
    back: 64 << 10,
    window: 4,
    port: 0,
    secret: [7; 16],
};

/// A right on a port that takes messages, of an offering process that follows no rule.
fn messages_to(domain: &Domain) -> (SendRight, Raw) {
    let (theirs, ours) = socket::pair().unwrap();
    let shared = ConnectionMemory::create(GRANTED.there, GRANTED.back).unwrap();
    let own = PidFd::open(std::process::id()).unwrap();
    let answer = Answer::Granted(GRANTED).encode();
    socket::send(&ours, &answer, &[shared.as_fd(), own.as_fd()]).unwrap();
    let connection = Descriptor::new(theirs);
    let right = connect_over(
        domain,
        AcceptedConnection { connection },
        &Sought::of(&Domain::builder("other"), "frames"),
        &ConnectOptions::default(),
    )
    .unwrap();
    let asked = socket::receive(&ours, &mut [0; Ask::BYTES], 0).unwrap();
    assert_eq!(asked.len, Ask::BYTES);
    (right, Raw::new(shared, ours))
}

/// Whether it is the violation that is expected.
type Is<'a> = &'a dyn Fn(&ViolationKind) -> bool;

#[test]
fn frames_that_may_not_be_end_their_connection_alone() {
    let (offer, connect) = (OfferOptions::default(), ConnectOptions::default());
    let mut two = two(self::Over::Tcp, small(), offer, connect);
    let message = frame(FrameKind::Message, 0, &[]);
    let begun = frame(FrameKind::Message, 0, &[FRAGMENT as u64 + 1]);
    let half = [begun, vec![0; FRAGMENT]].concat();
    let is_frame = |kind: &ViolationKind| matches!(kind, ViolationKind::FrameHeader);
    let is_port = |kind: &ViolationKind| matches!(kind, ViolationKind::Port { port: 7 });
    let is_window = |kind: &ViolationKind| matches!(kind, ViolationKind::Window { port: 0 });
    let fragment = frame(FrameKind::Fragment, 0, &[]);
    let cases: Vec<(Vec<u8>, Is<'_>)> = vec![
        // Ports that are not open.
        (frame(FrameKind::Message, 7, &[]), &is_port),
        (frame(FrameKind::Fragment, 7, &[]), &is_port),
        (frame(FrameKind::Closed, 7, &[]), &is_port),
        (frame(FrameKind::Blocked, 7, &[]), &is_port),
        // More of nothing, of something that is whole; another one in the middle of one.
        (fragment.clone(), &is_frame),
        ([&message[..], &fragment].concat(), &is_frame),
        ([&half[..], &message].concat(), &is_frame),
        // What only the other side says.
        (frame(FrameKind::Accepted, 0, &[]), &is_frame),
        (frame(FrameKind::Reply, 0, &[]), &is_frame),
        (frame(FrameKind::Dropped, 0, &[]), &is_frame),
        // More than the port's window, of which nothing is received.
        (message.repeat(100), &is_window),
    ];
    for (at, (bytes, is_it)) in cases.into_iter().enumerate() {
        let mut client = tcp::stranger(&two.offered, 1 << 20);
        // It may be thrown out before it has written all.
        let _ = std::io::Write::write_all(&mut client, &bytes);
        let mut violations = Vec::new();
        until("the violation is recorded", || {
            violations.extend(two.offered.take_violations());
            !violations.is_empty()
        });
        assert!(is_it(&violations[0].kind), "{at}: {}", violations[0]);
        until("it is out", || two.offered.clients() == 1);
        while two.port.receive(Access::Later, Deadline::NOW).is_ok() {}
        let honest = super::message(&two.ours, 9, &[100]);
        two.right.send(honest, long()).unwrap();
        is_the_one(&two.port.receive(Access::Later, long()).unwrap(), 9, &[100]);
    }
    assert_eq!(two._theirs.survey().unwrap().memory.used, 0);
}

/// A violation in one port ends the connection, and so all ports of it; the offer of that port is told.
#[test]
fn a_violation_is_told_to_the_offer_of_its_port() {
    let two = plain(self::Over::Tcp);
    let (mut client, served) = tcp::served(&two.offered, 1 << 20);
    let other = two._theirs.bind(small()).unwrap();
    let permissions = Permissions::own_user();
    let offered = other.offer("other", &permissions, OfferOptions::default());
    let offered = offered.unwrap();
    let number = tcp::add(&served, &offered);
    let bad = frame(FrameKind::Reply, number, &[]);
    std::io::Write::write_all(&mut client, &bad).unwrap();
    let mut violations = Vec::new();
    until("the violation is recorded", || {
        violations.extend(offered.take_violations());
        !violations.is_empty()
    });
    until("it is out", || {
        (two.offered.clients(), offered.clients()) == (1, 0)
    });
    assert!(two.offered.take_violations().is_empty());
    assert!(two.right.is_live());
}
