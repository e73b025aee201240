//! A client violates the protocol in every word, over the raw connection and in the connection's
//! memory. It ends its own connection, and no other.

use crate::numbered::{held, is_message, long, message};
use crate::over::{offering, plain};
use portolan::{
    ConnectOptions, Deadline, Domain, OfferOptions, OfferedPort, PortOptions, ReceiveRight,
    SendError, SendRight, ViolationKind,
};
use portolan_abi::FORMAT_VERSION;
use portolan_abi::bridge::{
    Answer, Ask, DESCRIPTORS, Denied, FrameHeader, FrameKind, Granted, Secret, WAKE, control,
};
use portolan_abi::connect::{ConnectAnswer, ConnectRequest, Maker, OfferKind, OfferName};
use portolan_abi::handshake::Refusal;
use portolan_abi::hello::socket_name;
use portolan_abi::limits::LINE;
use portolan_sys::shared::Window;
use portolan_sys::socket::{self, Address, SocketError};
use portolan_testkit::{PATIENCE, SetOnDrop, unique, until};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A connection to the acceptor of an offer, before the first record.
pub(crate) fn accepted(domain: &str) -> OwnedFd {
    accepted_by(domain, "frames")
}

pub(crate) fn accepted_by(domain: &str, offer: &str) -> OwnedFd {
    let user = portolan_sys::process::user();
    let address = Address::Abstract(socket_name(user, domain).unwrap().into_bytes());
    let socket = socket::connect(&address).unwrap();
    let request = ConnectRequest {
        kind: OfferKind::Port,
        name: OfferName::new(offer).unwrap(),
        token: None,
        maker: Maker::ANY,
    };
    socket::send(&socket, &request.encode(), &[]).unwrap();
    loop {
        let mut answer = [0; ConnectAnswer::MAX_BYTES];
        let received = socket::receive(&socket, &mut answer, 0).unwrap();
        match ConnectAnswer::decode(&answer[..received.len]).unwrap() {
            ConnectAnswer::Accepted => return socket,
            ConnectAnswer::Wait | ConnectAnswer::Queue => {}
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn ask() -> Ask {
    Ask {
        sealed: false,
        most: 1 << 20,
        there: 64 << 10,
        named: Default::default(),
    }
}

/// What the offering process answers to these bytes.
pub(crate) fn answer_to(socket: &OwnedFd, bytes: &[u8]) -> Option<(Answer, Vec<OwnedFd>)> {
    socket::send(socket, bytes, &[]).unwrap();
    let mut answer = [0; Answer::BYTES];
    let by = Some(Instant::now() + PATIENCE);
    let received = socket::receive_by(socket, &mut answer, DESCRIPTORS, by).ok()?;
    Some((Answer::decode(&answer[..received.len]).ok()?, received.fds))
}

/// A client that was let in, and does with the memory what it likes.
pub(crate) struct Stranger {
    pub(crate) socket: OwnedFd,
    memory: Window,
    granted: Granted,
}

impl Stranger {
    pub(crate) fn new(domain: &str) -> Self {
        Self::asking(domain, ask())
    }

    pub(crate) fn asking(domain: &str, ask: Ask) -> Self {
        let socket = accepted(domain);
        let (answer, mut fds) = answer_to(&socket, &ask.encode()).unwrap();
        let Answer::Granted(granted) = answer else {
            panic!("{answer:?}");
        };
        let memory = Window::from_fd(fds.swap_remove(0)).unwrap();
        Self {
            socket,
            memory,
            granted,
        }
    }

    /// By which its connection is named.
    pub(crate) fn secret(&self) -> Secret {
        self.granted.secret
    }

    /// Puts bytes at the beginning of the byte ring, says that so many were written, and sends a wake.
    pub(crate) fn says(&self, bytes: &[u8], written: u64) {
        self.memory.copy_in(control::BYTES, bytes);
        self.memory
            .word(control::HEAD)
            .store(written, Ordering::Release);
        self.wake();
    }

    pub(crate) fn wake(&self) {
        let _ = socket::send(&self.socket, &[WAKE], &[]);
    }

    /// Waits until it is thrown out.
    pub(crate) fn is_out(&self) {
        let by = Some(Instant::now() + PATIENCE);
        loop {
            match socket::receive_by(&self.socket, &mut [0; 64], 0, by) {
                Ok(_) => {}
                Err(SocketError::TimedOut) => panic!("it is still there"),
                Err(_) => return,
            }
        }
    }
}

/// A frame header, the lengths of extents, and a header, as they stand in a byte ring.
pub(crate) fn preamble(frame: &FrameHeader, lengths: &[u64]) -> Vec<u8> {
    let mut bytes = frame.encode().to_vec();
    lengths
        .iter()
        .for_each(|len| bytes.extend(len.to_le_bytes()));
    bytes.resize(FrameHeader::BYTES + frame.rest(), b'h');
    bytes.resize(bytes.len().next_multiple_of(LINE), 0);
    bytes
}

/// An honest client beside each stranger.
pub(crate) struct Beside {
    pub(crate) name: String,
    port: ReceiveRight,
    offered: OfferedPort,
    theirs: Domain,
    ours: Domain,
    honest: SendRight,
    sent: u64,
}

impl Beside {
    pub(crate) fn new() -> Self {
        let offer = OfferOptions::default().most_bytes(1 << 20);
        let (name, theirs, port, offered) = offering(PortOptions::unnamed(), offer);
        let ours = Domain::join(&unique("honest")).unwrap();
        let honest = ours
            .connect_to(&Domain::builder(&name), "frames", ConnectOptions::default())
            .unwrap();
        Self {
            name,
            port,
            offered,
            theirs,
            ours,
            honest,
            sent: 0,
        }
    }

    /// The stranger has just broken the rules like this, and is out; the honest client goes on.
    #[track_caller]
    pub(crate) fn goes_on(&mut self, is_it: impl Fn(&ViolationKind) -> bool) {
        let mut violations = Vec::new();
        until("the violation is reported", || {
            violations.extend(self.offered.take_violations());
            !violations.is_empty()
        });
        assert_eq!(violations.len(), 1, "{violations:?}");
        assert!(is_it(&violations[0].kind), "{}", violations[0]);
        assert_eq!(violations[0].uid, portolan_sys::process::user());
        until("the stranger is out", || self.offered.clients() == 1);
        self.works();
    }

    #[track_caller]
    pub(crate) fn works(&mut self) {
        self.sent += 1;
        let lengths = [100_000, 7];
        self.honest
            .send(message(&self.ours, self.sent, &lengths), long())
            .unwrap();
        let came = self.port.receive(Default::default(), long()).unwrap();
        is_message(&came, self.sent, &lengths);
        assert!(
            self.port
                .receive(Default::default(), Deadline::NOW)
                .is_err()
        );
    }
}

#[test]
fn what_is_no_request_is_refused() {
    let mut beside = Beside::new();
    for bytes in [&[0; Ask::BYTES][..], b"x", &[7; 200]] {
        let answer = answer_to(&accepted(&beside.name), bytes).map(|(answer, _)| answer);
        assert_eq!(answer, Some(Answer::Refused(Refusal::new(Denied::Garbled))));
        beside.goes_on(|kind| matches!(kind, ViolationKind::Ask));
    }
    // Of another version: whatever comes after the first eight bytes.
    let mut newer = ask().encode().to_vec();
    newer[4..8].copy_from_slice(&(FORMAT_VERSION + 1).to_le_bytes());
    newer.extend([7; 60]);
    let answer = answer_to(&accepted(&beside.name), &newer).map(|(answer, _)| answer);
    assert_eq!(answer, Some(Answer::Refused(Refusal::new(Denied::Version))));
    // A client that says nothing and goes.
    drop(accepted(&beside.name));
    beside.works();
    // A byte ring of any length that it likes: it gets what is allowed.
    for there in [0, 1, u64::MAX] {
        let asked = Ask { there, ..ask() };
        let socket = accepted(&beside.name);
        let (answer, fds) = answer_to(&socket, &asked.encode()).unwrap();
        assert!(matches!(answer, Answer::Granted(g) if g.there <= 4 << 20 && g.there >= 64 << 10));
        assert_eq!(fds.len(), DESCRIPTORS);
    }
}

/// A client has five seconds for its request. It may be stopped, and then says nothing.
#[test]
fn an_offer_that_closes_does_not_wait_for_a_client_that_says_nothing() {
    let (name, _domain, _port, offered) = plain();
    let silent = accepted(&name);
    until("the offer has a thread for it", || offered.clients() == 1);
    let began = Instant::now();
    drop(offered);
    let took = began.elapsed();
    assert!(took < Duration::from_secs(3), "{took:?}");
    // It is told why.
    let mut answer = [0; Answer::BYTES];
    let received = socket::receive(&silent, &mut answer, 0).unwrap();
    let answer = Answer::decode(&answer[..received.len]);
    assert!(matches!(answer, Ok(Answer::Refused(refusal)) if refusal.why == Denied::Over));
}

#[test]
fn descriptors_that_nobody_wants_are_not_taken() {
    let mut beside = Beside::new();
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let many = vec![null.as_fd(); 100];
    // With the request, and later.
    let socket = accepted(&beside.name);
    if socket::send(&socket, &ask().encode(), &many).is_ok() {
        beside.goes_on(|kind| matches!(kind, ViolationKind::Ask));
    }
    drop(socket);
    let stranger = Stranger::new(&beside.name);
    if socket::send(&stranger.socket, &[WAKE], &many).is_ok() {
        beside.goes_on(|kind| matches!(kind, ViolationKind::Packet));
        stranger.is_out();
    }
    drop(stranger);
    until("it has left", || beside.offered.clients() == 1);
    beside.works();
}

#[test]
fn packets_that_are_no_wakes() {
    let mut beside = Beside::new();
    for packet in [&[0][..], b"RR", b"S", &[WAKE; 500]] {
        let stranger = Stranger::new(&beside.name);
        socket::send(&stranger.socket, packet, &[]).unwrap();
        stranger.is_out();
        beside.goes_on(|kind| matches!(kind, ViolationKind::Packet));
    }
    // Wakes for nothing, as many as there is room for, harm no other client.
    let stranger = Stranger::new(&beside.name);
    let wakes = (0..10_000).take_while(|_| {
        socket::send_by(&stranger.socket, &[WAKE], &[], Some(Instant::now())).is_ok()
    });
    assert!(wakes.count() > 0);
    beside.works();
}

#[test]
fn counts_that_cannot_be() {
    let mut beside = Beside::new();
    let ring_bytes = 64 << 10;
    for written in [1, 63, ring_bytes + 64, u64::MAX, u64::MAX - 63, 1 << 63] {
        let stranger = Stranger::new(&beside.name);
        assert_eq!(stranger.granted.there, ring_bytes);
        stranger.says(&[0; 64], written);
        stranger.is_out();
        beside.goes_on(|kind| matches!(kind, ViolationKind::ByteRing(_)));
    }
    // Back behind what was said before.
    let stranger = Stranger::new(&beside.name);
    let begun = preamble(
        &FrameHeader {
            extents: 1,
            ..FrameHeader::new(FrameKind::Message)
        },
        &[1 << 20],
    );
    stranger.says(&begun, 1024);
    let tail = stranger.memory.word(control::TAIL);
    until("it was read", || tail.load(Ordering::Acquire) == 1024);
    stranger.says(&[], 512);
    stranger.is_out();
    beside.goes_on(|kind| matches!(kind, ViolationKind::ByteRing(_)));
}

#[test]
fn messages_that_cannot_be() {
    let mut beside = Beside::new();
    let mut frames = Vec::new();
    // No frame header; another kind; one that has something where none may be.
    frames.push(vec![0; 64]);
    for kind in [
        FrameKind::Request,
        FrameKind::Reply,
        FrameKind::Dropped,
        FrameKind::Fragment,
        FrameKind::Accepted,
    ] {
        frames.push(preamble(&FrameHeader::new(kind), &[]));
    }
    for (at, byte) in [(4, 200), (5, 9), (10, 1), (14, 1), (18, 1), (16, 1)] {
        let mut bytes = preamble(&FrameHeader::new(FrameKind::Message), &[]);
        bytes[at] = byte;
        bytes.resize(128, 0);
        frames.push(bytes);
    }
    for bytes in frames {
        let stranger = Stranger::new(&beside.name);
        stranger.says(&bytes, bytes.len() as u64);
        stranger.is_out();
        // One names sealed memory, for which no descriptor came.
        beside.goes_on(|kind| {
            matches!(
                kind,
                ViolationKind::FrameHeader | ViolationKind::Descriptors { named: 1 }
            )
        });
    }
}

#[test]
fn messages_that_are_too_long() {
    let mut beside = Beside::new();
    let most = 1 << 20;
    for lengths in [
        &[most + 1][..],
        &[u64::MAX],
        &[u64::MAX, 2],
        &[most, 1],
        &[1 << 63, 1 << 63],
    ] {
        let frame = FrameHeader {
            extents: lengths.len(),
            header: 5,
            ..FrameHeader::new(FrameKind::Message)
        };
        let bytes = preamble(&frame, lengths);
        let stranger = Stranger::new(&beside.name);
        stranger.says(&bytes, bytes.len() as u64);
        stranger.is_out();
        beside.goes_on(
            |kind| matches!(kind, ViolationKind::TooLong { most, .. } if *most == 1 << 20),
        );
    }
}

/// The memory that a message takes counts, and not its length: a page for one byte.
#[test]
fn many_small_extents_count_as_the_pages_that_they_take() {
    let mut beside = Beside::new();
    let most = 1 << 20;
    for (extents, header, fits) in [
        (1024, 0, false),
        (1024, 4096, false),
        (256, 0, false),
        (255, 17, false),
        // With a page for the list of them.
        (255, 0, true),
    ] {
        let frame = FrameHeader {
            extents,
            header,
            ..FrameHeader::new(FrameKind::Message)
        };
        let mut bytes = preamble(&frame, &vec![1; extents]);
        bytes.resize((bytes.len() + extents * LINE).min(64 << 10), b'x');
        let stranger = Stranger::new(&beside.name);
        stranger.says(&bytes, bytes.len() as u64);
        if fits {
            let came = beside.port.receive(Default::default(), long()).unwrap();
            assert_eq!((came.extents().len(), came.len()), (extents, extents));
            let survey = beside.theirs.survey().unwrap();
            let taken: u64 = survey.holdings.iter().map(|h| h.extents * h.size).sum();
            assert!(taken <= most, "{taken} bytes");
            drop((came, stranger));
            until("it has left", || beside.offered.clients() == 1);
            beside.works();
            continue;
        }
        stranger.is_out();
        beside
            .goes_on(|kind| matches!(kind, ViolationKind::TooLong { bytes, .. } if *bytes > most));
        assert_eq!(held(&beside.theirs), 0);
    }
    // An honest client is told beforehand what counts.
    let message = message(&beside.ours, 0, &[1; 256]);
    let unsent = beside.honest.send(message, long()).unwrap_err();
    let SendError::TooLong {
        len: 256,
        extents: 256,
        bytes: taken,
        most: 1_048_576,
    } = unsent.why
    else {
        panic!("{}", unsent.why);
    };
    assert_eq!(taken, 256 * 4096 + 8192);
    let text = unsent.why.to_string();
    for part in [
        "256 bytes in 256 extents",
        "takes 1056768 bytes",
        "put small ones together",
    ] {
        assert!(text.contains(part), "{text}");
    }
    beside.works();
}

#[test]
fn half_a_message_is_none() {
    let mut beside = Beside::new();
    let frame = FrameHeader {
        extents: 2,
        ..FrameHeader::new(FrameKind::Message)
    };
    let bytes = preamble(&frame, &[4096, 500_000]);
    for written in [64, bytes.len() as u64, 8192, 64 << 10] {
        let stranger = Stranger::new(&beside.name);
        stranger.says(&bytes, written);
        drop(stranger);
        until("it has left", || beside.offered.clients() == 1);
        beside.works();
    }
    assert!(beside.offered.take_violations().is_empty());
    assert_eq!(held(&beside.theirs), 0);
}

#[test]
fn whatever_is_scribbled_meanwhile_others_are_not_touched() {
    let (name, _theirs, mut port, offered) = plain();
    let ours = Domain::join(&unique("beside")).unwrap();
    let honest = ours
        .connect_to(&Domain::builder(&name), "frames", ConnectOptions::default())
        .unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ends = SetOnDrop(&over);
        let (over, name, ours) = (&over, &name, &ours);
        scope.spawn(move || {
            let mut seed = 1_u64;
            while !over.load(Ordering::Relaxed) {
                let stranger = Stranger::new(name);
                // Until it is thrown out: honest bytes, then words of any value anywhere.
                let frame = FrameHeader {
                    extents: 1,
                    header: 3,
                    ..FrameHeader::new(FrameKind::Message)
                };
                let bytes = preamble(&frame, &[50_000]);
                stranger.says(&bytes, bytes.len() as u64 + 64);
                for round in 0..2_000_u64 {
                    seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    let words = if round % 2 == 0 { 256 } else { 1 << 12 };
                    let word = usize::try_from(seed >> 33).unwrap() % words;
                    let value = match seed >> 60 {
                        0..4 => seed,
                        4..8 => u64::from_le_bytes(bytes[..8].try_into().unwrap()),
                        _ => 64 * (round % 900),
                    };
                    stranger.memory.word(word).store(value, Ordering::Relaxed);
                    stranger.wake();
                }
            }
        });
        scope.spawn(move || {
            for number in 0..400 {
                honest
                    .send(message(ours, number, &[70_000]), long())
                    .unwrap();
            }
        });
        let mut expected = 0;
        while expected < 400 {
            let came = port.receive(Default::default(), long()).unwrap();
            // What the stranger says is none of these, but may be a message.
            if came.len() == 70_000 && came.header() == u64::to_le_bytes(expected) {
                is_message(&came, expected, &[70_000]);
                expected += 1;
            }
        }
        drop(ends);
        // It may wait for room in our port, or we for its next.
        let _ = port.receive(Default::default(), Deadline::NOW);
    });
    drop(offered);
}
