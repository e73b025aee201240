//! Sealed memory: shown and not copied, verified before it is mapped, and each receiver's own.

use crate::child::Child;
use crate::hostile::{Beside, Stranger, ask, preamble};
use crate::numbered::{long, message};
use crate::over::{offering, plain};
use portolan::{
    Access, ConnectOptions, ConnectToError, Deadline, Domain, Message, MessageError, OfferOptions,
    PortOptions, Protection, Sealed, SendError, SendRight, Unsealed, ViolationKind, WhenFull,
};
use portolan_abi::bridge::{Ask, FrameHeader, FrameKind, MAX_SEALED, SEALED};
use portolan_sys::memory::{self, PAGE};
use portolan_sys::socket::{self, SocketError};
use portolan_testkit::{PATIENCE, is_pattern, pattern, unique, until};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

fn picture(number: u64, len: usize) -> Sealed {
    let mut blank = Unsealed::new(len).unwrap();
    pattern(&mut blank, number);
    blank.seal().unwrap()
}

fn with(parts: &[&Sealed]) -> Message {
    let mut message = Message::new(b"pictures").unwrap();
    for part in parts {
        message.push_sealed((*part).clone()).unwrap();
    }
    message
}

fn connected(ours: &Domain, theirs: &str) -> SendRight {
    let options = ConnectOptions::default().protection(Protection::Sealed);
    ours.connect_to(&Domain::builder(theirs), "frames", options)
        .unwrap()
}

#[test]
fn one_picture_for_many_each_of_which_writes_its_own() {
    let ours = Domain::join(&unique("sealing")).unwrap();
    let mut theirs: Vec<_> = (0..3).map(|_| plain()).collect();
    let whole = picture(1, (3 << 20) + 5);
    let small = picture(2, 1);
    let empty = picture(3, 0);
    let mut came = Vec::new();
    for (name, _domain, port, _offered) in &mut theirs {
        let right = connected(&ours, name);
        right
            .send(with(&[&whole, &small, &empty]), WhenFull::Fail)
            .unwrap();
        let message = port.receive(Default::default(), long()).unwrap();
        assert_eq!(message.header(), b"pictures");
        let lengths: Vec<_> = message.slices().map(<[u8]>::len).collect();
        assert_eq!(lengths, [(3 << 20) + 5, 1, 0]);
        assert_eq!(message.len(), (3 << 20) + 6);
        is_pattern(message.at(0).unwrap(), 1);
        is_pattern(message.at((3 << 20) + 5).unwrap(), 2);
        came.push(message);
    }
    // The first one writes; neither the others nor we see it.
    came[0].at_mut(0).unwrap().fill(0xee);
    assert!(came[0].sealed()[0].iter().all(|byte| *byte == 0xee));
    is_pattern(&came[1].sealed()[0], 1);
    is_pattern(&whole, 1);
    // What it has written goes on as it is now, and what it has not as it was.
    let mut written = came.swap_remove(0).take_sealed();
    let (name, _domain, port, _offered) = &mut theirs[1];
    let right = connected(&ours, name);
    right
        .send(with(&[&written.remove(0), &written.remove(0)]), long())
        .unwrap();
    let message = port.receive(Default::default(), long()).unwrap();
    assert!(message.sealed()[0].iter().all(|byte| *byte == 0xee));
    is_pattern(&message.sealed()[1], 2);
}

#[test]
fn extents_are_sealed_on_their_way() {
    let (name, _domain, mut port, offered) = plain();
    let ours = Domain::join(&unique("sealing")).unwrap();
    let right = connected(&ours, &name);
    for len in [0, 1, PAGE, 5 << 20] {
        right.send(message(&ours, 4, &[len]), long()).unwrap();
        let came = port.receive(Default::default(), long()).unwrap();
        assert_eq!((came.extents().len(), came.sealed().len()), (0, 1));
        assert_eq!(came.len(), len);
        is_pattern(&came.sealed()[0], 4);
    }
    // And through a connection that copies, sealed memory is copied.
    let copies = ours
        .connect_to(&Domain::builder(&name), "frames", ConnectOptions::default())
        .unwrap();
    copies.send(with(&[&picture(5, 70_000)]), long()).unwrap();
    let came = port.receive(Default::default(), long()).unwrap();
    assert_eq!((came.extents().len(), came.sealed().len()), (1, 0));
    is_pattern(&came.extents()[0], 5);
    assert!(offered.take_violations().is_empty());
}

/// Sealed memory takes none of the receiver's: a long message does not wait until the one before is in
/// the port.
#[test]
fn long_pictures_are_under_way_side_by_side() {
    const QUEUE: usize = 3;
    // Beside those in the port: a window, and those that wait in our queue for room in it. Less than
    // half of that window may be in the port already, which is not said before it is half.
    const SIDE_BY_SIDE: usize = MAX_SEALED - MAX_SEALED / 2 + QUEUE;
    let (name, _domain, mut port, offered) =
        offering(PortOptions::unnamed().queue(20), OfferOptions::default());
    let ours = Domain::join(&unique("sealing")).unwrap();
    let options = ConnectOptions::default()
        .protection(Protection::Sealed)
        .queue(QUEUE);
    let right = ours.connect_to(&Domain::builder(&name), "frames", options);
    let (right, long_one) = (right.unwrap(), picture(1, 5 << 20));
    let mut sent = 0;
    let mut end = Instant::now() + PATIENCE;
    while sent < port.depth() + SIDE_BY_SIDE {
        let soon = Deadline::after(Duration::from_millis(100));
        if right.send(with(&[&long_one]), soon).is_ok() {
            (sent, end) = (sent + 1, Instant::now() + PATIENCE);
        }
        assert!(sent < 100, "nobody is held up");
        assert!(Instant::now() < end, "{sent}, {} there", port.depth());
    }
    for _ in 0..sent {
        let came = port.receive(Default::default(), long()).unwrap();
        is_pattern(&came.sealed()[0], 1);
    }
    right.send(with(&[&long_one]), long()).unwrap();
    let came = port.receive(Default::default(), long()).unwrap();
    is_pattern(&came.sealed()[0], 1);
    assert!(offered.take_violations().is_empty());
}

#[test]
fn what_an_offer_does_not_take_is_refused() {
    let offer = OfferOptions::default().sealed(false).most_bytes(10_000);
    let (name, _domain, port, _offered) = offering(PortOptions::unnamed(), offer);
    let ours = Domain::join(&unique("refused")).unwrap();
    let options = ConnectOptions::default().protection(Protection::Sealed);
    let other = Domain::builder(&name);
    let refused = ours.connect_to(&other, "frames", options);
    assert!(matches!(refused, Err(ConnectToError::Sealed)));
    let options = ConnectOptions::default().protection(Protection::Guarded);
    let refused = ours.connect_to(&other, "frames", options);
    assert!(matches!(refused, Err(ConnectToError::Protection { .. })));
    let _sealed = port
        .offer(
            "sealed",
            &Default::default(),
            OfferOptions::default().most_bytes(8192),
        )
        .unwrap();
    let options = ConnectOptions::default().protection(Protection::Sealed);
    let right = ours.connect_to(&other, "sealed", options).unwrap();
    let unsent = right
        .send(with(&[&picture(1, 8193)]), WhenFull::Fail)
        .unwrap_err();
    let counted = |reason: &SendError| match reason {
        SendError::TooLong { len, bytes, .. } => (*len, *bytes),
        other => panic!("{other}"),
    };
    assert_eq!(counted(&unsent.why), (8193, 16384));
    // It came back whole.
    is_pattern(&unsent.item.sealed()[0], 1);
    // The extents go as one part: two pages of them would be two parts and a list.
    let sent = |lengths: &[usize]| right.send(message(&ours, 2, lengths), WhenFull::Fail);
    sent(&[4095, 4097]).unwrap();
    let unsent = sent(&[4096, 4097]).unwrap_err();
    assert_eq!(counted(&unsent.why), (8193, 16384));
    let mut full = with(&[&picture(1, 1); MAX_SEALED - 1]);
    let refused = full.push_sealed(picture(1, 1)).unwrap_err();
    assert!(matches!(refused.why, MessageError::Sealed { .. }));
}

#[test]
fn within_a_domain_it_stays_in_its_process() {
    let name = unique("process");
    let mut child = Child::new();
    assert_eq!(child.ask(&format!("offer {name}")), "offered");
    let domain = Domain::join(&name).unwrap();
    let inbox = domain.connect("inbox", long()).unwrap();
    let unsent = inbox.send(with(&[&picture(1, 9)]), WhenFull::Fail);
    assert!(matches!(unsent.unwrap_err().why, SendError::Sealed));
    // Through a port of our own, and given back where there is no room, or no receiver any more.
    let mut port = domain.bind(PortOptions::unnamed().queue(1)).unwrap();
    let right = port.make_send();
    right.send(with(&[&picture(2, 9)]), WhenFull::Fail).unwrap();
    let unsent = loop {
        match right.send(with(&[&picture(3, 9)]), WhenFull::Fail) {
            Ok(()) => {}
            Err(unsent) => break unsent,
        }
    };
    is_pattern(&unsent.item.sealed()[0], 3);
    right.send(with(&[&picture(3, 9)]), WhenFull::Drop).unwrap();
    let came = port.receive(Default::default(), Deadline::NOW).unwrap();
    is_pattern(&came.sealed()[0], 2);
    // The port does not move while some waits in it.
    let refused = Message::default().attach(port).unwrap_err();
    assert!(matches!(refused.why, MessageError::HoldsSealed));
    let portolan::Right::Receive(mut port) = *refused.item else {
        panic!("the port came back");
    };
    while port.receive(Default::default(), Deadline::NOW).is_ok() {}
    let offered = port
        .offer("moving", &Default::default(), OfferOptions::default())
        .unwrap();
    let ours = Domain::join(&unique("connecting")).unwrap();
    let options = ConnectOptions::default().protection(Protection::Sealed);
    let connecting = ours
        .connect_to(&Domain::builder(&name), "moving", options)
        .unwrap();
    // It moves; what comes for it from now on is copied.
    let mut message = Message::default();
    message.attach(port).unwrap();
    let unsent = right.send(with(&[&picture(4, 9)]), WhenFull::Fail);
    assert!(matches!(unsent.unwrap_err().why, SendError::Sealed));
    inbox.send(message, WhenFull::Fail).unwrap();
    assert_eq!(child.ask("take-port"), "taken");
    connecting
        .send(crate::numbered::message(&ours, 7, &[100_000]), long())
        .unwrap();
    assert_eq!(child.ask("receive 7 100000"), "received");
    drop(offered);
}

#[test]
fn what_is_said_to_be_sealed_and_is_not() {
    let mut beside = Beside::new();
    let len = 2 * PAGE as u64;
    let unsealed = || memory::create_unsealed("hostile", len).unwrap();
    let sized = || memory::create("hostile", len).unwrap();
    let sealed = |len| {
        let fd = memory::create_unsealed("hostile", len).unwrap();
        memory::seal(&fd).unwrap();
        fd
    };
    let null = || std::fs::File::open("/dev/null").unwrap().into();
    let wrong: Vec<OwnedFd> = vec![
        unsealed(),
        sized(),
        sealed(len - PAGE as u64),
        sealed(len + PAGE as u64),
        null(),
    ];
    for fd in &wrong {
        let stranger = of_sealed(&beside.name);
        socket::send(&stranger.socket, &[SEALED], &[fd.as_fd()]).unwrap();
        let bytes = names(1, len);
        stranger.says(&bytes, bytes.len() as u64);
        stranger.is_out();
        beside.goes_on(|kind| matches!(kind, ViolationKind::Sealed(_)));
    }
    // None, fewer, more than it names.
    let good = sealed(len);
    for (named, came) in [(1, 0), (2, 1), (1, 2), (MAX_SEALED, 1)] {
        let stranger = of_sealed(&beside.name);
        if came > 0 {
            let fds = vec![good.as_fd(); came];
            socket::send(&stranger.socket, &[SEALED], &fds).unwrap();
        }
        let bytes = names(named, 1);
        stranger.says(&bytes, bytes.len() as u64);
        stranger.is_out();
        beside
            .goes_on(|kind| matches!(kind, ViolationKind::Descriptors { named: n } if *n == named));
    }
    // More at once than any message has; and packet after packet, and never a message.
    let stranger = of_sealed(&beside.name);
    let fds = vec![good.as_fd(); MAX_SEALED + 1];
    socket::send(&stranger.socket, &[SEALED], &fds).unwrap();
    stranger.is_out();
    beside.goes_on(|kind| matches!(kind, ViolationKind::Packet));
    let stranger = of_sealed(&beside.name);
    while socket::send(&stranger.socket, &[SEALED], &[good.as_fd()]).is_ok() {}
    beside.goes_on(|kind| matches!(kind, ViolationKind::Packet));
    // Over the limit, which counts what would be mapped.
    let stranger = of_sealed(&beside.name);
    socket::send(&stranger.socket, &[SEALED], &[good.as_fd()]).unwrap();
    let bytes = names(1, (1 << 20) + 1);
    stranger.says(&bytes, bytes.len() as u64);
    stranger.is_out();
    beside.goes_on(|kind| matches!(kind, ViolationKind::TooLong { .. }));
    // And no process changes sealed memory any more: the kernel refuses it to its maker too.
    let file = std::fs::File::from(good);
    assert!(file.set_len(0).is_err());
    assert!(file.set_len(1 << 20).is_err());
    assert!(std::io::Write::write(&mut &file, b"x").is_err());
}

/// Descriptors of this process that lead to sealed memory of just this size.
fn descriptors_of(len: usize) -> usize {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    all.filter_map(|fd| std::fs::metadata(fd.ok()?.path()).ok())
        .filter(|file| file.len() == len as u64)
        .count()
}

#[test]
fn parts_that_nobody_takes_do_not_use_up_the_descriptors() {
    const MESSAGES: usize = 40;
    const LEN: usize = 37 * PAGE;
    let (name, _domain, mut port, offered) =
        offering(PortOptions::unnamed().queue(63), OfferOptions::default());
    let ours = Domain::join(&unique("crowd")).unwrap();
    let right = connected(&ours, &name);
    let one = picture(1, LEN);
    for _ in 0..MESSAGES {
        right.send(with(&[&one; 16]), long()).unwrap();
    }
    // As many as come of themselves, of which one is the sender's.
    let mut before = 0;
    until("no more come", || {
        std::thread::sleep(std::time::Duration::from_millis(100));
        let now = descriptors_of(LEN);
        now > 100 && std::mem::replace(&mut before, now) == now
    });
    // In the port 128 at the most; one message in an ingress's hands, and two ahead of it.
    for _ in 0..MESSAGES {
        let found = descriptors_of(LEN);
        assert!(found <= 1 + 128 + 3 * 16, "{found}");
        let came = port.receive(Default::default(), long()).unwrap();
        assert_eq!(came.sealed().len(), 16);
        is_pattern(&came.sealed()[15], 1);
    }
    assert!(offered.take_violations().is_empty());
}

#[test]
fn descriptors_and_no_reading_of_an_answer() {
    let bind = PortOptions::unnamed().synchronous();
    let (name, theirs, mut port, offered) = offering(bind, OfferOptions::default());
    let stranger = of_sealed(&name);
    let request = FrameHeader {
        tag: 1,
        ..FrameHeader::new(FrameKind::Request)
    };
    stranger.says(&preamble(&request, &[]), 64);
    let request = port.get_request(Access::Later, long()).unwrap();
    // Longer than the byte ring back, so the ingress waits for room in it.
    request.reply(message(&theirs, 1, &[200_000])).unwrap();
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    loop {
        let by = Some(Instant::now() + PATIENCE);
        match socket::send_by(&stranger.socket, &[SEALED], &[null.as_fd()], by) {
            Ok(()) => {}
            Err(SocketError::TimedOut) => panic!("it is kept, and polled for ever"),
            Err(_) => break,
        }
    }
    let mut violations = Vec::new();
    until("the violation is reported", || {
        violations.extend(offered.take_violations());
        !violations.is_empty()
    });
    assert!(
        matches!(violations[0].kind, ViolationKind::Packet),
        "{}",
        violations[0]
    );
}

fn of_sealed(domain: &str) -> Stranger {
    Stranger::asking(
        domain,
        Ask {
            sealed: true,
            ..ask()
        },
    )
}

/// A message of so many parts of sealed memory, as it stands in a byte ring.
fn names(parts: usize, len: u64) -> Vec<u8> {
    let frame = FrameHeader {
        sealed: parts,
        ..FrameHeader::new(FrameKind::Message)
    };
    preamble(&frame, &vec![len; parts])
}
