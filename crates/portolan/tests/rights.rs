//! Rights on ports and segments: counted while they move, and never for another port of the
//! same entry.

use portolan::{
    Access, Deadline, Domain, Message, Notice, PortOptions, ReceiveRight, Right, Urgency, WhenFull,
};
use portolan_abi::limits::{MAX_PORTS, MIN_ROUND};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

fn never() -> WhenFull {
    WhenFull::Wait(Deadline::NEVER)
}

/// The next port of an entry that is free: entries are taken in turn.
fn bind_at(domain: &Domain, index: u16) -> ReceiveRight {
    let bind = || domain.bind(PortOptions::unnamed().queue(1)).unwrap();
    let ports = || domain.survey().unwrap().ports;
    for _ in 1..MIN_ROUND {
        drop(bind());
    }
    let port = bind();
    assert!(
        ports().iter().any(|port| port.index == index),
        "its turn has come"
    );
    port
}

fn only_index(domain: &Domain) -> u16 {
    let ports = domain.survey().unwrap().ports;
    assert_eq!(ports.len(), 1);
    ports[0].index
}

#[test]
fn a_dead_name_that_is_dropped_tells_the_next_port_of_its_entry_nothing() {
    let domain = Domain::private().unwrap();
    let old = domain.bind(PortOptions::unnamed()).unwrap();
    let index = only_index(&domain);
    let dead = old.make_send();
    drop(old);
    let mut port = bind_at(&domain, index);
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

/// An event that the entry's earlier port did not take is none of the next one's.
#[test]
fn what_an_earlier_port_was_told_the_next_one_of_its_entry_is_not() {
    let domain = Domain::private().unwrap();
    let old = domain.bind(PortOptions::unnamed()).unwrap();
    let index = only_index(&domain);
    old.request_no_more_senders();
    drop(old.make_send());
    drop(old);
    let mut port = bind_at(&domain, index);
    let _live = port.make_send();
    port.request_no_more_senders();
    let got = port.receive(Access::Later, Deadline::NOW);
    assert!(got.is_err(), "{:?}", got.map(|m| m.notice()));
}

/// A watch that was on an earlier port of the entry says nothing of the next one, and one that is
/// armed anew tells of the next one's end.
#[test]
fn a_watch_tells_of_the_port_that_it_is_on_and_of_no_other_one_of_its_entry() {
    let domain = Domain::private().unwrap();
    let old = domain.bind(PortOptions::unnamed().queue(1)).unwrap();
    let index = only_index(&domain);
    let dead = old.make_send();
    drop(old);
    let port = bind_at(&domain, index);
    let right = port.make_send();
    let mut told = domain.bind(PortOptions::unnamed()).unwrap();
    right.watch(&told, 1).unwrap();
    drop(dead);
    right.unwatch(&told, 1);
    right.watch(&told, 2).unwrap();
    assert!(told.receive(Access::Later, Deadline::NOW).is_err());
    drop(port);
    let tokens = std::iter::from_fn(|| told.receive(Access::Later, Deadline::NOW).ok());
    let tokens: Vec<_> = tokens.map(|message| message.notice()).collect();
    assert_eq!(tokens, [Some(Notice::DeadName { token: 2 })]);
}

/// Rights on the earlier ports of an entry are dropped by another thread, while it is bound and
/// closed again and again. All other entries are taken.
#[test]
fn ports_that_follow_one_another_are_told_only_of_themselves() {
    let domain = Domain::private().unwrap();
    let small = || PortOptions::unnamed().queue(1).inline_bytes(48);
    let others = std::iter::from_fn(|| domain.bind(small()).ok()).take(MAX_PORTS - 1);
    let others: Vec<ReceiveRight> = others.collect();
    assert_eq!(others.len(), MAX_PORTS - 1, "one is left");
    let until = Instant::now() + Duration::from_secs(2);
    let mut bound = 0;
    std::thread::scope(|scope| {
        let (dead, droppers) = std::sync::mpsc::channel::<portolan::SendRight>();
        scope.spawn(move || droppers.into_iter().for_each(drop));
        while Instant::now() < until {
            let mut port = domain.bind(small()).unwrap();
            bound += 1;
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
    assert!(bound > 1);
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

/// For eight seconds, beside so many other ports. Four tests, so that they may run at once.
fn arrive_alive(others: usize, poll: bool) {
    let (alive, dead, changed) = move_segments(others, 8, poll);
    assert!(alive > 0);
    assert_eq!(
        (dead, changed),
        (0, 0),
        "of {alive} segments beside {others} ports: dead on arrival, changed while held"
    );
}

#[test]
fn segments_that_move_arrive_alive() {
    arrive_alive(0, true);
}

#[test]
fn segments_that_move_beside_other_ports_arrive_alive() {
    arrive_alive(20, true);
}

#[test]
fn segments_that_move_beside_many_ports_arrive_alive() {
    arrive_alive(200, true);
}

#[test]
fn segments_that_move_to_one_who_sleeps_arrive_alive() {
    arrive_alive(20, false);
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
