//! Rights on ports and segments: counted while they move, and never for another port of the
//! same entry.

use portolan::{Access, Deadline, Domain, Message, Notice, PortOptions, Right, Urgency, WhenFull};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

fn never() -> WhenFull {
    WhenFull::Wait(Deadline::NEVER)
}

#[test]
fn a_dead_name_that_is_dropped_tells_the_next_port_nothing() {
    let domain = Domain::private().unwrap();
    let old = domain.bind(PortOptions::unnamed()).unwrap();
    let dead = old.make_send();
    drop(old);
    let mut port = domain.bind(PortOptions::unnamed()).unwrap();
    let live = port.make_send();
    port.request_no_more_senders();
    assert_eq!(port.senders(), 1);
    drop(dead);
    let got = port
        .receive(Access::Later, Deadline::NOW)
        .map(|m| m.notice());
    assert!(
        got.is_err(),
        "told that no senders are left, and there is one"
    );
    live.send(Message::new(b"still here").unwrap(), WhenFull::Fail)
        .unwrap();
    let message = port.receive(Access::Later, Deadline::NOW).unwrap();
    assert_eq!(message.header(), b"still here");
}

/// A port that takes no part in it: rights on the ports of its entry before it are dropped, by
/// several threads, while it is bound and closed again and again.
#[test]
fn ports_that_follow_one_another_are_told_only_of_themselves() {
    let domain = Domain::private().unwrap();
    let until = Instant::now() + Duration::from_secs(2);
    std::thread::scope(|scope| {
        let (dead, droppers) = std::sync::mpsc::channel::<portolan::SendRight>();
        scope.spawn(move || droppers.into_iter().for_each(drop));
        while Instant::now() < until {
            let mut port = domain.bind(PortOptions::unnamed()).unwrap();
            let right = port.make_send();
            port.request_no_more_senders();
            for _ in 0..3 {
                let got = port
                    .receive(Access::Later, Deadline::NOW)
                    .map(|m| m.notice());
                assert!(got.is_err(), "{got:?}, and a right is held");
            }
            drop(port);
            dead.send(right).unwrap();
        }
        drop(dead);
    });
}

#[test]
fn a_notice_does_not_come_if_there_is_a_sender_again() {
    let domain = Domain::private().unwrap();
    let mut port = domain.bind(PortOptions::unnamed()).unwrap();
    port.request_no_more_senders();
    // Told; before it is taken there is a sender.
    let right = port.make_send();
    assert!(port.receive(Access::Later, Deadline::NOW).is_err());
    drop(right);
    let message = port.receive(Access::Later, Deadline::NOW).unwrap();
    assert_eq!(message.notice(), Some(Notice::NoMoreSenders));
    // Once.
    drop(port.make_send());
    assert!(port.receive(Access::Later, Deadline::NOW).is_err());
}

#[test]
fn a_dead_name_that_is_kept_frees_nothing() {
    let domain = Domain::private().unwrap();
    let shape = || PortOptions::unnamed().queue(1).inline_bytes(48);
    let port = domain.bind(shape()).unwrap();
    let dead = port.make_send();
    drop(port);
    for _ in 0..(1u32 << 23) + 1 {
        drop(domain.bind(shape()).unwrap());
    }
    let mut extent = domain.allocate(4096).unwrap();
    extent.fill(7);
    let shared = domain.share_extent(extent).unwrap();
    assert_eq!(shared[0], 7);
    // Two rights; one goes.
    drop(shared.clone());
    let mut others = vec![];
    for _ in 0..600 {
        let mut other = domain.allocate(4096).unwrap();
        other.fill(9);
        let same = other.as_ptr() == shared.as_ptr();
        others.push(other);
        if same {
            break;
        }
    }
    let now = shared[0];
    std::mem::forget(others);
    drop(dead);
    assert_eq!(
        now, 7,
        "memory of a shared extent in use was handed out again"
    );
}

/// Sends segments whose last right goes with them, to one who keeps each for a while: how many
/// arrived alive, dead, and how many changed while they were held.
fn move_segments(others: usize, seconds: u64, poll: bool) -> (u64, u64, u64) {
    let domain = Domain::private().unwrap();
    let _ports: Vec<_> = (0..others)
        .map(|_| domain.bind(PortOptions::unnamed()).unwrap())
        .collect();
    let mut port = domain.bind(PortOptions::unnamed().queue(200)).unwrap();
    if poll {
        port.set_waiting(portolan::Waiting::Poll);
    }
    let right = port.make_send();
    let until = Instant::now() + Duration::from_secs(seconds);
    let (mut alive, mut dead, mut changed) = (0, 0, 0);
    let mut kept = VecDeque::new();
    std::thread::scope(|scope| {
        let domain = &domain;
        scope.spawn(move || {
            let mut number = 0u64;
            while Instant::now() < until {
                let segment = domain.make_segment(None, 64).unwrap();
                segment.write_at(0, &number.to_le_bytes());
                let mut message = Message::new(&number.to_le_bytes()).unwrap();
                message.attach(segment).unwrap();
                right.send(message, never()).unwrap();
                number += 1;
            }
            right.send(Message::new(b"end").unwrap(), never()).unwrap();
        });
        loop {
            let mut message = port.receive(Access::Later, Deadline::NEVER).unwrap();
            if message.header() == b"end" {
                break;
            }
            let said = u64::from_le_bytes(message.header().try_into().unwrap());
            match message.take_rights().pop() {
                Some(Right::Segment(segment)) => {
                    alive += 1;
                    kept.push_back((segment, said));
                }
                _ => dead += 1,
            }
            if kept.len() > 8 {
                let (segment, said) = kept.pop_front().unwrap();
                let mut now = [0; 8];
                segment.read_at(0, &mut now);
                changed += u64::from(u64::from_le_bytes(now) != said);
            }
        }
    });
    (alive, dead, changed)
}

#[test]
fn segments_that_move_arrive_alive() {
    for (others, poll) in [(0, true), (20, true), (200, true), (20, false)] {
        let (alive, dead, changed) = move_segments(others, 8, poll);
        assert!(alive > 0);
        assert_eq!(
            (dead, changed),
            (0, 0),
            "of {alive} segments beside {others} ports: dead on arrival, changed while held"
        );
    }
}

/// More than fit into a node of whatever holds them, in every order.
#[test]
fn the_most_urgent_of_many_comes_first() {
    let domain = Domain::private().unwrap();
    let depth = 4000u32;
    let options = PortOptions::unnamed().queue(depth as usize).by_urgency();
    let mut port = domain.bind(options).unwrap();
    let right = port.make_send();
    let mut expected: Vec<(u32, u32)> = (0..depth).map(|i| (i * 7919 % 97, i)).collect();
    for (priority, number) in &expected {
        let mut message = Message::new(&number.to_le_bytes()).unwrap();
        message.set_urgency(Some(Urgency::Priority(*priority)));
        right.send(message, WhenFull::Fail).unwrap();
    }
    // The higher priority first, and of one priority in the order of sending.
    expected.sort_by_key(|(priority, number)| (std::cmp::Reverse(*priority), *number));
    for (at, (priority, number)) in expected.iter().enumerate() {
        let message = port.receive(Access::Later, Deadline::NOW).unwrap();
        assert_eq!(
            message.header(),
            number.to_le_bytes(),
            "at {at}, of priority {priority}"
        );
    }
    assert_eq!(port.depth(), 0);
    assert!(port.receive(Access::Later, Deadline::NOW).is_err());
}
