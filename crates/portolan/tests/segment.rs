//! Segments: memory that several spaces have at once, and that outlives each of them.

use portolan::{
    Access, ConnectError, Deadline, Domain, Message, PortKind, PortOptions, Protection, Right,
    WhenFull,
};
use portolan_testkit::{PATIENCE, until};
use std::sync::atomic::Ordering;
use std::time::Duration;

fn used(domain: &Domain) -> (u64, usize) {
    let survey = domain.survey().unwrap();
    let segments = survey.ports.iter().filter(|p| p.kind == PortKind::Segment);
    (survey.memory.used, segments.count())
}

#[test]
fn it_lives_until_the_last_right_is_gone() {
    let domain = Domain::private().unwrap();
    assert_eq!(used(&domain), (0, 0));
    let first = domain.make_segment(Some("numbers"), 10_000).unwrap();
    assert_eq!((first.len(), first.is_empty()), (12_288, false));
    assert_eq!(used(&domain), (16_384, 1));
    let second = domain.find_segment("numbers", Deadline::NOW).unwrap();
    let third = second.clone();
    second.words()[9].store(5, Ordering::Relaxed);
    drop(first);
    drop(second);
    assert_eq!(third.words()[9].load(Ordering::Relaxed), 5);
    assert_eq!(used(&domain).1, 1);
    drop(third);
    assert_eq!(used(&domain), (0, 0));
    assert!(matches!(
        domain.find_segment("numbers", Deadline::NOW),
        Err(ConnectError::NoSuchPort { .. })
    ));
    // What is made of the same memory again begins as zeros.
    let again = domain.make_segment(Some("numbers"), 10_000).unwrap();
    assert!(again.words().iter().all(|w| w.load(Ordering::Relaxed) == 0));
}

#[test]
fn its_rights_travel() {
    let domain = Domain::private().unwrap();
    let mut port = domain.bind(PortOptions::unnamed()).unwrap();
    let segment = domain.make_segment(None, 1).unwrap();
    segment.words()[0].store(9, Ordering::Relaxed);
    let mut message = Message::default();
    message.attach(segment).unwrap();
    port.make_send().send(message, WhenFull::Fail).unwrap();
    // Only the message has it now.
    assert_eq!(used(&domain).1, 1);
    let mut message = port.receive(Access::Now, Deadline::NOW).unwrap();
    let Some(Right::Segment(segment)) = message.take_rights().pop() else {
        panic!("no segment came");
    };
    assert_eq!(segment.words()[0].load(Ordering::Relaxed), 9);
    // A message that is never received lets go of it too.
    let mut message = Message::default();
    message.attach(segment).unwrap();
    port.make_send().send(message, WhenFull::Fail).unwrap();
    drop(port);
    assert_eq!(used(&domain), (0, 0));
}

#[test]
fn a_shared_extent_is_read_where_it_lies_until_the_last_right_is_gone() {
    for protection in [Protection::Trusted, Protection::Guarded] {
        let name = portolan_testkit::unique("shared");
        let builder = Domain::builder(&name).protection(protection);
        let domain = builder.join().unwrap();
        let mut port = domain.bind(PortOptions::unnamed()).unwrap();
        for bytes in [1, 70_000, 3 << 20] {
            let mut extent = domain.allocate(bytes).unwrap();
            // It may begin as a channel does; it is none.
            extent.fill(b'p');
            extent[..8.min(bytes)].copy_from_slice(&b"portchan"[..8.min(bytes)]);
            let copy = extent.to_vec();
            let at = extent.as_ptr();
            let shared = domain.share_extent(extent).unwrap();
            assert!(*shared == *copy && shared.as_ptr() == at);
            let mut message = Message::default();
            message.attach(shared.clone()).unwrap();
            port.make_send().send(message, WhenFull::Fail).unwrap();
            drop(shared);
            let mut message = port.receive(Access::Later, Deadline::NOW).unwrap();
            let Some(Right::Shared(there)) = message.take_rights().pop() else {
                panic!("not a shared extent")
            };
            assert!(*there == *copy && there.as_ptr() == at);
            let again = there.clone();
            drop(there);
            assert!(*again == *copy);
            assert_eq!(used(&domain).1, 1);
            // Sent on, and never received.
            let mut message = Message::default();
            message.attach(again).unwrap();
            port.make_send().send(message, WhenFull::Fail).unwrap();
            assert_eq!(used(&domain).1, 1);
            drop(port.receive(Access::Later, Deadline::NOW).unwrap());
            assert_eq!(used(&domain), (0, 0));
        }
    }
}

#[test]
fn ports_and_segments_share_their_names() {
    let domain = Domain::private().unwrap();
    let _segment = domain.make_segment(Some("one"), 1).unwrap();
    let _port = domain.bind(PortOptions::named("two")).unwrap();
    assert!(domain.bind(PortOptions::named("one")).is_err());
    assert!(domain.make_segment(Some("two"), 1).is_err());
    assert!(domain.connect("one", Deadline::NOW).is_err());
    assert!(domain.find_segment("two", Deadline::NOW).is_err());
    assert_eq!(used(&domain).1, 1);
}

#[test]
fn a_name_is_waited_for() {
    let domain = Domain::private().unwrap();
    std::thread::scope(|scope| {
        let found = scope.spawn(|| domain.find_segment("late", PATIENCE).unwrap().len());
        std::thread::sleep(Duration::from_millis(20));
        let _made = domain.make_segment(Some("late"), 5000).unwrap();
        assert_eq!(found.join().unwrap(), 8192);
    });
}

#[test]
fn bytes_go_where_they_are_told_and_nowhere_else() {
    let domain = Domain::private().unwrap();
    let segment = domain.make_segment(None, 4096).unwrap();
    let mut oracle = vec![0u8; 4096];
    let data: Vec<u8> = (0..2000u32)
        .map(|i| u8::try_from(i % 251 + 1).unwrap())
        .collect();
    for offset in [0, 1, 7, 8, 9, 100, 2095, 2096, 4089, 4095, 4096, 9999] {
        for len in [0, 1, 2, 7, 8, 9, 15, 16, 17, 255, 256, 257, 2000] {
            let fits = len.min(4096usize.saturating_sub(offset));
            assert_eq!(segment.write_at(offset, &data[..len]), fits);
            if fits > 0 {
                oracle[offset..offset + fits].copy_from_slice(&data[..fits]);
            }
            let mut seen = vec![0; 4096];
            assert_eq!(segment.read_at(0, &mut seen), 4096);
            assert!(seen == oracle, "{offset} {len}");
            let mut part = vec![0; len];
            assert_eq!(segment.read_at(offset, &mut part), fits);
            assert_eq!(part[..fits], data[..fits]);
        }
    }
}

#[test]
fn making_and_finding_race_with_the_last_drop() {
    let domain = Domain::private().unwrap();
    std::thread::scope(|scope| {
        for worker in 0..3u64 {
            let domain = &domain;
            scope.spawn(move || {
                for i in 0..400 {
                    let segment = match domain.make_segment(Some("contested"), 4096) {
                        Ok(made) => made,
                        Err(_) => match domain.find_segment("contested", Deadline::NOW) {
                            Ok(found) => found,
                            Err(_) => continue,
                        },
                    };
                    // Memory that was freed under us would be another's zeros.
                    let mine = &segment.words()[usize::try_from(worker).unwrap()];
                    mine.store(i + 1, Ordering::SeqCst);
                    std::thread::yield_now();
                    assert_eq!(mine.load(Ordering::SeqCst), i + 1);
                }
            });
        }
    });
    assert_eq!(used(&domain), (0, 0));
}

#[test]
fn a_guarded_domain_opens_it_to_all_who_have_a_right() {
    let domain = Domain::builder("guarded")
        .protection(Protection::Guarded)
        .private()
        .unwrap();
    for bytes in [4096, 4 << 20] {
        let segment = domain.make_segment(Some("open"), bytes).unwrap();
        let other = domain.find_segment("open", Deadline::NOW).unwrap();
        segment.words()[100].store(1, Ordering::Relaxed);
        drop(segment);
        assert_eq!(other.words()[100].load(Ordering::Relaxed), 1);
        let last = other.words().len() - 1;
        other.words()[last].store(1, Ordering::Relaxed);
    }
    assert_eq!(used(&domain), (0, 0));
}

#[cfg(feature = "marks")]
mod deaths {
    use super::*;
    use portolan::Segment;
    use std::os::unix::process::ExitStatusExt;

    /// The other process; nothing, when it is run as a test.
    #[test]
    fn victim() {
        let Some([domain, mark]) = portolan_testkit::role() else {
            return;
        };
        let domain = Domain::join(&domain).unwrap();
        let shared = domain.find_segment("survivor's", PATIENCE).unwrap();
        let inbox = domain.connect("survivor", PATIENCE).unwrap();
        let _held = domain.find_segment("survivor's", PATIENCE).unwrap();
        portolan_testkit::die_at(&mark, portolan_shm::mark::install);
        loop {
            // The survivor may still have the last one of this name.
            let Ok(made) = domain.make_segment(Some("victim's"), 70_000) else {
                continue;
            };
            let mut message = Message::default();
            message.attach(made.clone()).unwrap();
            message.attach(shared.clone()).unwrap();
            let _ = inbox.send(message, WhenFull::Drop);
            drop(domain.find_segment("survivor's", PATIENCE).unwrap());
            drop(made);
            drop(domain.make_segment(None, 1));
        }
    }

    #[test]
    fn whatever_step_it_dies_at_nothing_is_left() {
        for mark in [
            "bind.name_announced",
            "bind.name_won",
            "bind.queue_open",
            "bind.done",
            "send.published",
            "segment.posted",
            "segment.shared",
            "bind.name_published",
            "segment.joining",
            "segment.closing",
            "close.drained",
            "send.noted",
        ] {
            let name = portolan_testkit::unique("segment");
            let domain = Domain::join(&name).unwrap();
            let mut inbox = domain.bind(PortOptions::named("survivor")).unwrap();
            let ours = domain.make_segment(Some("survivor's"), 4096).unwrap();
            ours.words()[1].store(77, Ordering::Relaxed);
            let mut child = portolan_testkit::spawn("deaths::victim", &[&name, mark]);
            let mut received: Vec<Segment> = vec![];
            until(mark, || {
                while let Ok(mut message) = inbox.receive(Access::Now, Deadline::NOW) {
                    for right in message.take_rights() {
                        let Right::Segment(segment) = right else {
                            panic!("{right:?}")
                        };
                        // Ours, or the victim's, which it has not written: alive either way.
                        assert!([0, 77].contains(&segment.words()[1].load(Ordering::Relaxed)));
                        received.push(segment);
                    }
                    received.truncate(2);
                }
                child.try_wait().unwrap().is_some()
            });
            assert_eq!(
                child.wait().unwrap().signal(),
                Some(libc::SIGKILL),
                "{mark}"
            );
            assert_eq!(ours.words()[1].load(Ordering::Relaxed), 77, "{mark}");
            drop((received, ours, inbox));
            until(mark, || used(&domain) == (0, 0));
            // The name is free again.
            drop(domain.make_segment(Some("victim's"), 1).unwrap());
        }
    }
}
