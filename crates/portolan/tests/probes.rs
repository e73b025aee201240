//! With the feature `probes`: a message's way passes every point, and its segments add up.

use portolan::probes::{self, Collected, Letter, Point, Points};
use portolan::{Access, Deadline, Domain, Message, PortOptions, Protection, Waiting, WhenFull};
use portolan_testkit::PATIENCE;
use std::time::{Duration, Instant};

const SEND: [Point; 10] = [
    Point::SendCalled,
    Point::SendDescriptor,
    Point::SendOwner,
    Point::SendChecked,
    Point::SendPlanned,
    Point::SendAdmitted,
    Point::SendClaimed,
    Point::SendWritten,
    Point::SendPublished,
    Point::SendGiven,
];
const RECEIVE: [Point; 6] = [
    Point::ReceiveSeen,
    Point::ReceiveDescriptor,
    Point::ReceiveHeld,
    Point::ReceiveRead,
    Point::ReceiveTaken,
    Point::ReceiveOpened,
];

/// Two pages go to ourselves and are touched, some times over; what the last of them passed.
fn round(protection: Protection, access: Access, on: Points) -> Collected {
    let domain = Domain::builder("probes")
        .protection(protection)
        .private()
        .unwrap();
    let mut port = domain.bind(PortOptions::unnamed()).unwrap();
    let right = port.make_send();
    let mut pages = domain.allocate(8192).unwrap();
    pages.fill(1);
    let mut message = Message::new(b"round").unwrap();
    message.push(pages).unwrap();
    probes::turn_on(on);
    for _ in 0..10 {
        probes::begin();
        right.send(message, WhenFull::Fail).unwrap();
        probes::pass(Point::SendReturned);
        message = port.receive(access, Deadline::NOW).unwrap();
        probes::pass(Point::ReceiveReturned);
        let byte = &mut message.extents_mut()[0][4096];
        probes::pass(Point::AccessFound);
        *byte = byte.wrapping_add(1);
        probes::pass(Point::AccessDone);
    }
    let collected = probes::collect();
    probes::turn_off();
    assert_eq!(message.extents()[0][4096], 11);
    assert_eq!(message.header(), b"round");
    collected
}

fn passes(collected: &Collected, letter: Letter) -> u32 {
    let points = Point::ALL.iter().filter(|p| p.letter() == Some(letter));
    points.map(|point| collected.passes(*point)).sum()
}

#[test]
fn a_guarded_round_passes_every_letter() {
    let collected = round(Protection::Guarded, Access::Later, Points::ALL);
    for point in SEND.iter().chain(&RECEIVE) {
        assert!(
            collected.passes(*point) > 0,
            "{} was not passed",
            point.name()
        );
    }
    for letter in Letter::ALL {
        assert!(passes(&collected, letter) > 0, "{letter:?} was not passed");
    }
    // Two pages lie within what one touch opens.
    assert_eq!(collected.passes(Point::FaultMapped), 1);
    let sum: u64 = Point::ALL.iter().map(|p| collected.ticks(*p)).sum();
    assert_eq!(sum, collected.ended - collected.begun);
}

#[test]
fn what_is_opened_at_once_does_not_fault() {
    let collected = round(Protection::Guarded, Access::Now, Points::ALL);
    assert_eq!(passes(&collected, Letter::F), 0);
    assert_eq!(collected.passes(Point::GuardClosed), 1);
}

#[test]
fn a_trusted_round_opens_and_closes_nothing() {
    let collected = round(Protection::Trusted, Access::Later, Points::ALL);
    for point in SEND.iter().chain(&RECEIVE) {
        assert!(
            collected.passes(*point) > 0,
            "{} was not passed",
            point.name()
        );
    }
    for letter in [Letter::C, Letter::E, Letter::F, Letter::G, Letter::H] {
        assert_eq!(passes(&collected, letter), 0, "{letter:?} was passed");
    }
}

#[test]
fn points_that_are_off_cost_their_segments_to_the_next() {
    let on = [Point::SendClaimed, Point::AccessDone];
    let collected = round(Protection::Trusted, Access::Later, on.into_iter().collect());
    let passed: Vec<_> = Point::ALL
        .iter()
        .filter(|point| collected.passes(**point) > 0)
        .collect();
    assert_eq!(passed, [&Point::SendClaimed, &Point::AccessDone]);
    let sum: u64 = on.iter().map(|p| collected.ticks(*p)).sum();
    assert_eq!(sum, collected.ended - collected.begun);
}

#[test]
fn a_wake_passes_its_points_on_both_sides() {
    let domain = Domain::private().unwrap();
    let mut port = domain.bind(PortOptions::unnamed()).unwrap();
    let right = port.make_send();
    let give_up = Instant::now() + PATIENCE;
    let sleeper = std::thread::spawn(move || {
        port.set_waiting(Waiting::Sleep);
        probes::turn_on(Points::ALL);
        loop {
            let message = port.receive(Access::Later, give_up).unwrap();
            if message.header() == b"enough" {
                return probes::collect();
            }
        }
    });
    probes::turn_on(Points::ALL);
    while probes::collect().passes(Point::WakeCalled) == 0 {
        assert!(Instant::now() < give_up, "the receiver never slept");
        // Not before it sleeps again, most likely.
        std::thread::sleep(Duration::from_millis(1));
        right
            .send(
                Message::new(b"wake").unwrap(),
                WhenFull::Wait(give_up.into()),
            )
            .unwrap();
    }
    let woke = probes::collect();
    right
        .send(
            Message::new(b"enough").unwrap(),
            WhenFull::Wait(give_up.into()),
        )
        .unwrap();
    let slept = sleeper.join().unwrap();
    probes::turn_off();
    assert!(woke.passes(Point::WakeFound) > 0);
    for point in [
        Point::ReceiveLooked,
        Point::SleepWoken,
        Point::SleepDisarmed,
    ] {
        assert!(slept.passes(point) > 0, "{} was not passed", point.name());
    }
    assert_eq!(slept.passes(Point::WakeCalled), 0);
}
