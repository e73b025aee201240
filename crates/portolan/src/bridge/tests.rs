//! Tests two domains in one process, and hostile packets and bytes over the raw connection.

mod frames;
mod ports;
mod tcp;
mod wires;

use super::connect::{Sought, agree, connect_over, memory_of};
use super::control_socket::ControlSocket;
use super::follow::follow_over;
use super::memory::ConnectionMemory;
use super::*;
use crate::channel::{ChannelOptions, ReadError, ReaderOptions};
use crate::directory::{AcceptedConnection, OfferKind, connect_own};
use crate::space::Builder;
use crate::space::Descriptor;
use crate::{Access, Deadline, Domain, Message, Permissions, PortOptions, ReceiveRight, SendRight};
use crate::{PendingReply, SendError, WhenFull};
use portolan_abi::bridge::{Answer, Ask, Form, FrameHeader, FrameKind, Granted, control};
use portolan_shm::byte_ring::{Reader, Writer};
use portolan_sys::process::PidFd;
use portolan_sys::shared::Window;
use portolan_sys::socket;
use portolan_testkit::{is_pattern, pattern, until};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

fn long() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// Two private domains, a port of one, and a right on it in the other.
struct Two {
    ours: Domain,
    _theirs: Domain,
    port: ReceiveRight,
    offered: OfferedPort,
    right: SendRight,
}

/// What a connection runs over.
#[derive(Clone, Copy, Debug)]
enum Over {
    /// Byte rings in memory.
    Memory,
    /// TCP, on this machine.
    Tcp,
}

fn two(over: Over, bind: PortOptions, offer: OfferOptions, connect: ConnectOptions) -> Two {
    let ours = Domain::private().unwrap();
    let theirs = Domain::builder("theirs").private().unwrap();
    let port = theirs.bind(bind).unwrap();
    let offered = port
        .offer("frames", &Permissions::own_user(), offer)
        .unwrap();
    let right = match over {
        Over::Memory => join(&ours, &theirs, &connect),
        Over::Tcp => tcp::join(&ours, &offered, &connect),
    };
    Two {
        ours,
        _theirs: theirs,
        port,
        offered,
        right,
    }
}

/// The domain that is sought; observers alone are told.
fn nobody() -> Builder {
    Domain::builder("elsewhere")
}

fn join(ours: &Domain, theirs: &Domain, options: &ConnectOptions) -> SendRight {
    join_to(ours, theirs, "frames", options)
}

fn join_to(ours: &Domain, theirs: &Domain, name: &str, options: &ConnectOptions) -> SendRight {
    let accepted = connect_own(theirs.member(), OfferKind::Port, name, None, long()).unwrap();
    connect_over(ours, accepted, &Sought::of(&nobody(), name), options).unwrap()
}

fn plain(over: Over) -> Two {
    let (offer, connect) = (OfferOptions::default(), ConnectOptions::default());
    two(over, PortOptions::unnamed(), offer, connect)
}

fn low(number: usize) -> u8 {
    number.to_le_bytes()[0]
}

/// A message whose bytes say which one it is.
fn message(domain: &Domain, number: u8, lengths: &[usize]) -> Message {
    let mut message = Message::new(&[number; 100][..usize::from(number) % 100]).unwrap();
    for len in lengths {
        let mut extent = domain.allocate(*len).unwrap();
        pattern(&mut extent, number.into());
        message.push(extent).unwrap();
    }
    message
}

fn is_the_one(came: &Message, number: u8, lengths: &[usize]) {
    assert_eq!(came.header(), &[number; 100][..usize::from(number) % 100]);
    let found: Vec<usize> = came.extents().iter().map(|e| e.len()).collect();
    assert_eq!(found, lengths);
    for extent in came.extents() {
        is_pattern(extent, number.into());
    }
}

#[test]
fn two_clients_and_no_more() {
    let offer = OfferOptions::default().most_clients(2);
    let (bind, connect) = (PortOptions::unnamed(), ConnectOptions::default());
    let mut two = two(Over::Memory, bind, offer, connect);
    let second = join(&two.ours, &two._theirs, &ConnectOptions::default());
    let accepted = connect_own(
        two._theirs.member(),
        OfferKind::Port,
        "frames",
        None,
        long(),
    )
    .unwrap();
    let refused = connect_over(
        &two.ours,
        accepted,
        &Sought::of(&nobody(), "frames"),
        &ConnectOptions::default(),
    );
    assert!(matches!(refused, Err(ConnectToError::Full)), "{refused:?}");
    two.right
        .send(message(&two.ours, 1, &[9]), WhenFull::Fail)
        .unwrap();
    second
        .send(message(&two.ours, 2, &[9]), WhenFull::Fail)
        .unwrap();
    let mut came: Vec<usize> = (0..2)
        .map(|_| {
            two.port
                .receive(Access::Later, long())
                .unwrap()
                .header()
                .len()
        })
        .collect();
    came.sort_unstable();
    assert_eq!(came, [1, 2]);
}

#[test]
fn a_name_is_offered_once_and_a_port_under_several() {
    let two = plain(Over::Memory);
    let taken = two
        .port
        .offer("frames", &Permissions::own_user(), OfferOptions::default());
    assert!(matches!(taken, Err(crate::OfferError::NameTaken)));
    let again = two
        .port
        .offer("more", &Permissions::own_user(), OfferOptions::default());
    drop(again.unwrap());
}

#[test]
fn what_fails_here_is_not_taken_for_the_other_sides_end() {
    // No socket: as if our own descriptors were at fault, or too few.
    let file: std::os::fd::OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let mut control = ControlSocket::new(Descriptor::new(file), None, false);
    let heard = control.hear();
    assert!(matches!(heard, Err(super::error::Over::Io(_))), "{heard:?}");
    assert!(!control.is_gone());
}

const FORM: Form = Form {
    reliable: false,
    unit: 64,
    units: 64,
    content: 0,
};

#[test]
fn other_descriptors_than_a_pairs_are_refused() {
    let domain = Domain::private().unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let own = PidFd::open(std::process::id()).unwrap();
    for nth in 0..5 {
        let (theirs, ours) = socket::pair().unwrap();
        let granted = Granted {
            synchronous: false,
            most: 64,
            there: 64 << 10,
            back: 64 << 10,
            window: 64,
            shares: false,
            port: 0,
            secret: [7; 16],
        };
        let shared = ConnectionMemory::create(granted.there, granted.back).unwrap();
        let (memory, process, null) = (shared.as_fd(), own.as_fd(), null.as_fd());
        let shown: &[_] = match nth {
            0 => &[memory, process],
            1 => &[memory],
            2 => &[memory, null],
            3 => &[process, memory],
            _ => &[memory, process, process],
        };
        socket::send(&ours, &Answer::Granted(granted).encode(), shown).unwrap();
        let connection = Descriptor::new(theirs);
        let options = ConnectOptions::default();
        let right = connect_over(
            &domain,
            AcceptedConnection { connection },
            &Sought::of(&nobody(), "frames"),
            &options,
        );
        if nth == 0 {
            assert!(right.unwrap().is_live());
        } else {
            assert!(matches!(right, Err(ConnectToError::Garbled)), "{nth}");
        }
    }
}

/// An offering process's side, moved by a thread that waits.
struct Raw {
    memory: ConnectionMemory,
    control: ControlSocket,
    writer: Writer,
    reader: Reader,
}

impl Raw {
    fn new(memory: ConnectionMemory, socket: std::os::fd::OwnedFd) -> Self {
        Self {
            memory,
            control: ControlSocket::new(Descriptor::new(socket), None, false),
            writer: Writer::default(),
            reader: Reader::default(),
        }
    }

    /// Writes all of it, unless the other side goes.
    fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && !self.control.is_gone() {
            let passed = self.writer.push(&self.memory.ring(1), bytes).unwrap();
            bytes = &bytes[passed.bytes..];
            self.wait(passed.bytes, passed.wake);
        }
    }

    fn read(&mut self, mut out: &mut [u8]) {
        while !out.is_empty() {
            let passed = self.reader.pull(&self.memory.ring(0), out).unwrap();
            out = &mut out[passed.bytes..];
            self.wait(passed.bytes, passed.wake);
        }
    }

    fn wait(&mut self, bytes: usize, wakes: bool) {
        if wakes {
            self.control.wake_peer();
        }
        if bytes == 0 {
            self.control.hear().unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Follows an offering process that grants messages of `most` bytes, and then writes these pieces.
fn told(domain: &Domain, most: u64, pieces: &[&[u8]]) -> (Result<Followed, ConnectToError>, Raw) {
    let (theirs, ours) = socket::pair().unwrap();
    let granted = Granted {
        synchronous: false,
        most,
        there: 64 << 10,
        back: 64 << 10,
        window: 64,
        shares: false,
        port: 0,
        secret: [7; 16],
    };
    let shared = ConnectionMemory::create(granted.there, granted.back).unwrap();
    let answer = Answer::Granted(granted).encode();
    let own = PidFd::open(std::process::id()).unwrap();
    socket::send(&ours, &answer, &[shared.as_fd(), own.as_fd()]).unwrap();
    let mut side = Raw::new(shared, ours);
    for piece in pieces {
        side.write(piece);
    }
    let connection = Descriptor::new(theirs);
    let options = ConnectOptions::default().deadline(Deadline::after(Duration::from_secs(3)));
    let followed = follow_over(
        domain,
        AcceptedConnection { connection },
        &Sought::of(&nobody(), "news"),
        &options,
    );
    (followed, side)
}

#[test]
fn a_form_that_is_none_is_refused_and_none_at_all_too() {
    let domain = Domain::private().unwrap();
    let with = |form: Form| form.encode();
    let huge = with(Form {
        units: 1 << 60,
        unit: 1 << 60,
        ..FORM
    });
    let (followed, _side) = told(&domain, 48, &[&huge]);
    assert!(matches!(followed, Err(ConnectToError::TooLarge { .. })));
    for bad in [
        with(Form { unit: 63, ..FORM }),
        with(Form { units: 65, ..FORM }),
        with(Form { units: 0, ..FORM }),
        [0; Form::BYTES],
    ] {
        let (followed, _side) = told(&domain, 48, &[&bad]);
        assert!(matches!(followed, Err(ConnectToError::Garbled)));
    }
    // Messages that its channel could not hold.
    let (followed, _side) = told(&domain, 1 << 20, &[&FORM.encode()]);
    assert!(matches!(followed, Err(ConnectToError::Garbled)));
    let (followed, _side) = told(&domain, 48, &[]);
    let Err(ConnectToError::Unanswered(socket::SocketError::TimedOut)) = followed else {
        panic!("{followed:?}");
    };
}

#[test]
fn an_ingress_that_announces_an_impossible_channel_is_believed_in_nothing_more() {
    let copy = |tag, extents| FrameHeader {
        extents,
        tag,
        ..FrameHeader::new(FrameKind::Message)
    };
    let preamble = |frame: FrameHeader, len: u64| {
        let mut bytes = frame.encode().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes
    };
    let header = FrameHeader {
        header: 8,
        ..copy(5, 1)
    };
    let sealed = FrameHeader {
        sealed: 1,
        ..copy(5, 0)
    };
    for bad in [
        preamble(copy(5, 1), 49),
        preamble(copy(5, 1), u64::MAX),
        preamble(copy(4, 1), 3),
        preamble(copy(5, 2), 3),
        preamble(header, 3),
        preamble(sealed, 3),
        copy(5, 0).encode().to_vec(),
        FrameHeader::new(FrameKind::Request).encode().to_vec(),
        vec![0; 64],
    ] {
        let domain = Domain::private().unwrap();
        let good = preamble(copy(5, 1), 3);
        let (followed, mut side) = told(&domain, 48, &[&FORM.encode()]);
        let followed = followed.unwrap();
        let mut reader = followed
            .channel()
            .bind_reader(ReaderOptions::default())
            .unwrap();
        side.write(&good);
        side.write(b"yes");
        side.write(&bad);
        side.write(b"bad");
        // What was right before it has come, and then no more.
        assert_eq!(*reader.receive(long()).unwrap(), *b"yes");
        let skipped = Skipped {
            before: 0,
            units: 5,
        };
        assert_eq!(
            (followed.missed(), followed.take_skipped()),
            (5, vec![skipped])
        );
        assert_eq!(reader.receive(long()), Err(ReadError::WriterGone));
        assert!(!followed.is_live());
    }
}

/// A right on a synchronous port that an offering process, which follows no rule, says it has.
fn asking(domain: &Domain) -> (SendRight, Raw) {
    let (theirs, ours) = socket::pair().unwrap();
    let granted = Granted {
        synchronous: true,
        most: 1 << 20,
        there: 64 << 10,
        back: 64 << 10,
        window: 64,
        shares: false,
        port: 0,
        secret: [7; 16],
    };
    let shared = ConnectionMemory::create(granted.there, granted.back).unwrap();
    let own = PidFd::open(std::process::id()).unwrap();
    let answer = Answer::Granted(granted).encode();
    socket::send(&ours, &answer, &[shared.as_fd(), own.as_fd()]).unwrap();
    let connection = Descriptor::new(theirs);
    let options = ConnectOptions::default().most_bytes(1 << 20);
    let other = Domain::builder("other");
    let right = connect_over(
        domain,
        AcceptedConnection { connection },
        &Sought::of(&other, "frames"),
        &options,
    )
    .unwrap();
    let asked = socket::receive(&ours, &mut [0; Ask::BYTES], 0).unwrap();
    assert_eq!(asked.len, Ask::BYTES);
    (right, Raw::new(shared, ours))
}

/// Asks, and has the server read it; the number of the request.
fn ask(right: &SendRight, server: &mut Raw) -> (PendingReply, u64) {
    let asked = Message::new(b"how many?").unwrap();
    let pending = right.begin_request(asked, WhenFull::Fail).unwrap();
    let mut request = [0; FrameHeader::BYTES];
    server.read(&mut request);
    let request = FrameHeader::decode(&request).unwrap();
    assert_eq!(request.kind, FrameKind::Request);
    server.read(&mut vec![0; request.rest()]);
    (pending, request.tag)
}

/// A server that answers with many extents of a byte each, for which the client has no room.
#[test]
fn an_answer_of_many_small_extents_takes_no_more_than_is_allowed() {
    let domain = Domain::private().unwrap();
    let (right, mut server) = asking(&domain);
    let mut answers = |extents: usize| {
        let (pending, tag) = ask(&right, &mut server);
        let frame = FrameHeader {
            extents,
            tag,
            ..FrameHeader::new(FrameKind::Reply)
        };
        let mut preamble = frame.encode().to_vec();
        (0..extents).for_each(|_| preamble.extend(1_u64.to_le_bytes()));
        server.write(&preamble);
        // The client may be gone by then.
        (0..extents).for_each(|_| server.write(b"x"));
        pending
    };
    // As many as may be: a page for each, and one for the list of them.
    let came = answers(255).wait(Access::Later, long()).unwrap();
    assert_eq!((came.extents().len(), came.len()), (255, 255));
    drop(came);
    let before = domain.survey().unwrap().memory.taken;
    let refused = answers(1024).wait(Access::Later, long());
    assert!(refused.is_err(), "{refused:?}");
    until("it is a dead name", || !right.is_live());
    assert_eq!(domain.survey().unwrap().memory.taken, before);
}

/// A server answers in any order, each request once, and says nothing else.
#[test]
fn an_answer_to_what_was_not_asked_is_the_end() {
    let answer = |kind, tag| {
        let frame = FrameHeader {
            tag,
            ..FrameHeader::new(kind)
        };
        frame.encode()
    };
    for nth in 0..6 {
        let domain = Domain::private().unwrap();
        let (right, mut server) = asking(&domain);
        let (mut first, one) = ask(&right, &mut server);
        let (mut second, other) = ask(&right, &mut server);
        assert_eq!((one, other), (1, 2));
        server.write(&answer(FrameKind::Reply, other));
        assert!(second.wait(Access::Later, long()).is_ok());
        let bad = match nth {
            0 => answer(FrameKind::Reply, other),
            1 => answer(FrameKind::Dropped, 0),
            2 => answer(FrameKind::Reply, u64::MAX),
            3 => answer(FrameKind::Accepted, one),
            4 => answer(FrameKind::Message, one),
            _ => answer(FrameKind::Request, one),
        };
        server.write(&bad);
        assert!(first.wait(Access::Later, long()).is_err(), "{nth}");
        until("it is a dead name", || !right.is_live());
    }
}

#[test]
fn a_client_that_counts_what_was_never_written_is_thrown_out_alone() {
    let (ours, theirs) = (Domain::private().unwrap(), Domain::private().unwrap());
    let channel = theirs.make_channel(&ChannelOptions::unnamed()).unwrap();
    let offered = channel
        .offer("news", &Permissions::own_user(), OfferOptions::default())
        .unwrap();
    let mut writer = channel.bind_writer().unwrap();
    let connect =
        || connect_own(theirs.member(), OfferKind::Channel, "news", None, long()).unwrap();
    let honest = follow_over(
        &ours,
        connect(),
        &Sought::of(&nobody(), "news"),
        &ConnectOptions::default(),
    )
    .unwrap();
    let mut reader = honest
        .channel()
        .bind_reader(ReaderOptions::default())
        .unwrap();
    let connection = connect().connection;
    let ask = Ask {
        sealed: false,
        most: 0,
        there: 64 << 10,
        named: Default::default(),
    };
    let (granted, fds) = agree(&connection, &ask, long()).unwrap();
    let (shared, _) = memory_of(&granted, fds).unwrap();
    let memory = Window::from_fd(shared.as_fd().try_clone_to_owned().unwrap()).unwrap();
    let tail = memory.word(control::STRIDE + control::TAIL);
    tail.store(u64::MAX / 2, Ordering::Release);
    let mut number = 0_u64;
    until("it is thrown out", || {
        writer.write(&number.to_le_bytes(), Deadline::NOW).unwrap();
        assert_eq!(*reader.receive(long()).unwrap(), number.to_le_bytes());
        number += 1;
        offered.clients() == 1
    });
    let violations = offered.take_violations();
    assert!(matches!(
        violations[..],
        [Violation {
            kind: ViolationKind::ByteRing(_),
            ..
        }]
    ));
    assert!(honest.is_live());
}
