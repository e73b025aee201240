//! What owners do works as in any domain: receive, change, send on, free, use again.

use crate::child::{Child, PATIENCE, is_open, is_open_throughout, unique};
use portolan::{Access, Deadline, Domain, Message, PortOptions, Protection, SendError, WhenFull};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const SIZES: [usize; 6] = [1, 4096, 70_000, 1 << 20, 2 << 20, 5 << 20];

fn private() -> Domain {
    let builder = Domain::builder("guarded").size(256 << 20).limit(128 << 20);
    builder.protection(Protection::Guarded).private().unwrap()
}

fn with(domain: &Domain, header: &[u8], sizes: &[usize], fill: u8) -> Message {
    let mut message = Message::new(header).unwrap();
    for size in sizes {
        let mut extent = domain.allocate(*size).unwrap();
        extent.fill(fill);
        message.push(extent).unwrap();
    }
    message
}

#[test]
fn pages_open_by_touch_or_at_once() -> Outcome {
    let domain = private();
    let mut port = domain.bind(PortOptions::unnamed())?;
    let right = port.make_send();
    for size in SIZES {
        for access in [Access::Later, Access::Now] {
            right.send(with(&domain, b"", &[size], 7), WhenFull::Fail)?;
            let message = port.receive(access, Deadline::NOW)?;
            let address = message.extents()[0].address();
            assert_eq!(is_open(address), access == Access::Now, "{size}");
            if access == Access::Now {
                assert!(is_open_throughout(&message.extents()[0]), "{size}");
            }
            let sum: usize = message.extents()[0]
                .iter()
                .step_by(4096)
                .map(|b| usize::from(*b))
                .sum();
            assert_eq!(sum, 7 * size.div_ceil(4096));
            assert!(is_open(address));
        }
    }
    Ok(())
}

#[test]
fn at_once_means_no_fault_in_another_process() {
    let domain = unique("hint");
    let mut receiver = Child::joined(&domain);
    receiver.ask("bind frames");
    let mut sender = Child::joined(&domain);
    sender.ask("connect frames");
    for size in SIZES {
        for access in ["now", "later"] {
            sender.ask(&format!("allocate {size} 7"));
            sender.ask(&format!("allocate {size} 7"));
            sender.ask("send 0");
            receiver.ask(&format!("receive {access}"));
            assert_eq!(receiver.ask("open"), (access == "now").to_string());
            if access == "now" {
                assert_eq!(receiver.number("faults"), 0, "{size}");
            }
            assert_eq!(receiver.ask("holds 7 0"), "true");
        }
    }
}

#[test]
fn messages_are_changed_in_place_and_sent_on() {
    let domain = unique("chain");
    let mut last = Child::joined(&domain);
    last.ask("bind last");
    let mut middle = Child::joined(&domain);
    middle.ask("bind middle");
    middle.ask("connect last");
    let mut first = Child::joined(&domain);
    first.ask("connect middle");
    for header in [0, 48, 49, 112, 113, 4096] {
        for access in ["now", "later"] {
            let addresses = SIZES.map(|size| first.number(&format!("allocate {size} 1")));
            first.ask(&format!("send {header}"));
            assert_eq!(middle.number(&format!("receive {access}")), SIZES.len());
            assert_eq!(middle.ask(&format!("holds 1 {header}")), "true");
            middle.ask("fill 2");
            middle.ask("forward");
            assert_eq!(last.number(&format!("receive {access}")), SIZES.len());
            assert_eq!(last.ask(&format!("holds 2 {header}")), "true");
            assert_eq!(last.number("at"), addresses[0]);
            // Forwarded untouched as well.
            first.ask("allocate 3000000 3");
            first.ask(&format!("send {header}"));
            middle.ask("receive later");
            middle.ask("forward");
            last.ask("receive later");
            assert_eq!(last.ask(&format!("holds 3 {header}")), "true");
        }
    }
    let address = last.number("at");
    let end = middle.dies_of(&format!("peek {address}"));
    end.expect(libc::SIGSEGV, &["(4194304 bytes)", "is owned by"]);
}

#[test]
fn a_thousand_extents_and_a_long_header() {
    let domain = unique("thousand");
    let mut receiver = Child::joined(&domain);
    receiver.ask("bind frames");
    let mut sender = Child::joined(&domain);
    sender.ask("connect frames");
    for _ in 0..3 {
        for i in 0..1000 {
            let size = [1, 4096, 5000, 20_000][i % 4];
            sender.ask(&format!("allocate {size} 7"));
        }
        for _ in 0..3 {
            sender.ask("allocate 2097152 7");
        }
        sender.ask("send 4096");
        assert_eq!(receiver.number("receive now"), 1003);
        assert_eq!(receiver.number("faults"), 0);
        assert_eq!(receiver.ask("holds 7 4096"), "true");
        receiver.ask("free");
    }
}

#[test]
fn requests_are_answered_in_place() {
    let domain = unique("requests");
    let mut server = Child::joined(&domain);
    server.ask("serve adder");
    let mut client = Child::joined(&domain);
    client.ask("connect adder");
    for access in ["now", "later"] {
        for size in SIZES {
            server.tell(&format!("answer {access} 3"));
            client.ask(&format!("allocate {size} 4"));
            assert_eq!(client.number(&format!("request {access}")), 1);
            assert_eq!(server.answer(), "done");
            assert_eq!(client.ask("holds 7 0"), "true");
        }
    }
}

#[test]
fn extents_are_freed_and_used_again() -> Outcome {
    let domain = private();
    for round in 0..20u8 {
        let kept: Vec<_> = SIZES
            .iter()
            .map(|size| {
                let mut extent = domain.allocate(*size).unwrap();
                extent.fill(round);
                extent
            })
            .collect();
        // Some go in another order than they came.
        for extent in kept.into_iter().rev() {
            assert!(extent.iter().all(|b| *b == round));
        }
    }
    // Laid down, and taken up again.
    let mut extent = domain.allocate(100)?;
    extent.fill(5);
    let address = extent.address();
    let raw = extent.into_raw();
    assert_eq!(crate::child::peek(address), 5);
    assert!(domain.adopt(raw)?.iter().all(|b| *b == 5));
    Ok(())
}

#[test]
fn a_message_that_was_not_sent_is_open_again() -> Outcome {
    let domain = private();
    let port = domain.bind(PortOptions::unnamed().queue(1))?;
    let right = port.make_send();
    while right
        .send(with(&domain, &[9; 1000], &[1], 1), WhenFull::Fail)
        .is_ok()
    {}
    for header in [0, 48, 1000] {
        let refused = right
            .send(with(&domain, &vec![9; header], &SIZES, 2), WhenFull::Fail)
            .unwrap_err();
        assert!(matches!(refused.why, SendError::Full { .. }));
        let mut message = *refused.item;
        assert!(message.header().iter().all(|b| *b == 9));
        assert!(message.slices().all(is_open_throughout));
        assert!(message.slices().all(|s| s.iter().all(|b| *b == 2)));
        message.extents_mut()[0][0] = 3;
        // Dropped on the way: counted as sent, and freed.
        right.send(message, WhenFull::Drop)?;
    }
    drop(port);
    let refused = right
        .send(with(&domain, b"", &SIZES, 4), WhenFull::Fail)
        .unwrap_err();
    assert!(matches!(refused.why, SendError::DeadName));
    assert!(refused.item.slices().all(|s| s.iter().all(|b| *b == 4)));
    Ok(())
}

#[test]
fn who_waits_for_room_sends_what_it_closed() -> Outcome {
    let domain = private();
    let mut port = domain.bind(PortOptions::unnamed().queue(1))?;
    let right = port.make_send();
    let other = domain.clone();
    let sender = std::thread::spawn(move || {
        for i in 0..50u8 {
            let header = vec![9; usize::from(i) * 10];
            let message = with(&other, &header, &[10_000, 3 << 20], i);
            right.send(message, Deadline::after(PATIENCE)).unwrap();
        }
    });
    for i in 0..50u8 {
        let message = port.receive(Access::Later, Deadline::after(PATIENCE))?;
        assert_eq!(message.header().len(), usize::from(i) * 10);
        assert!(message.slices().all(|s| s.iter().all(|b| *b == i)));
    }
    sender.join().unwrap();
    Ok(())
}

#[test]
fn what_a_closed_port_held_is_freed_unread() -> Outcome {
    let domain = private();
    let port = domain.bind(PortOptions::unnamed())?;
    let watched = domain.bind(PortOptions::unnamed())?;
    let right = port.make_send();
    for header in [0, 1000] {
        let mut message = with(&domain, &vec![9; header], &SIZES, 1);
        message.attach(watched.make_send())?;
        right.send(message, WhenFull::Fail)?;
    }
    assert_eq!(watched.senders(), 2);
    drop(port);
    assert_eq!(watched.senders(), 0);
    // All of the limit can be had.
    let all: Vec<_> = (0..50).map(|_| domain.allocate(2 << 20).unwrap()).collect();
    assert_eq!(all.len(), 50);
    Ok(())
}

#[test]
fn what_a_killed_owner_had_is_used_again() {
    let domain = unique("killed");
    let mut host = Child::new();
    host.ask(&format!("join {domain} {}", 16 << 20));
    host.ask("bind frames");
    for _ in 0..3 {
        let mut owner = Child::joined(&domain);
        owner.ask("connect frames");
        // Some in a queue, some held: all there is.
        owner.ask("allocate 4096 6");
        owner.ask("allocate 2097152 6");
        owner.ask("send 1000");
        for _ in 0..6 {
            owner.ask("allocate 2000000 7");
        }
        host.tell("allocate 8000000 8");
        assert!(host.answer().starts_with("error"));
        owner.kill();
        host.ask("receive later");
        assert_eq!(host.ask("holds 6 1000"), "true");
        let end = std::time::Instant::now() + PATIENCE;
        loop {
            host.tell("allocate 8000000 8");
            let answer = host.answer();
            if !answer.starts_with("error") {
                break;
            }
            assert!(std::time::Instant::now() < end, "{answer}");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        host.ask("free");
    }
    // A receiver dies with messages in its queue, whose headers are extents.
    let mut receiver = Child::joined(&domain);
    receiver.ask("bind doomed");
    host.ask("connect doomed");
    host.ask("allocate 8000000 9");
    host.ask("send 2000");
    receiver.kill();
    let end = std::time::Instant::now() + PATIENCE;
    loop {
        host.tell("allocate 8000000 8");
        if !host.answer().starts_with("error") {
            break;
        }
        assert!(std::time::Instant::now() < end);
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn leaving_closes_what_was_leaked() {
    let domain = unique("leave");
    let mut host = Child::joined(&domain);
    let mut member = Child::joined(&domain);
    member.ask("allocate 4096 7");
    member.ask("leave");
    member.ask(&format!("join {domain}"));
    member.ask("allocate 4096 7");
    host.ask("allocate 4096 7");
}
