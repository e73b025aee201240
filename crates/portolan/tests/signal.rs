//! Tests signals: which handler is told of an address, by which sender, and what deaths leave
//! behind.

use portolan::{Deadline, Domain, ListenerOptions, SignalError, Waiting};
use portolan_testkit::PATIENCE;
use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A handler that notes what it is told.
fn notes() -> (Arc<Mutex<Vec<usize>>>, impl FnMut(usize) + Send + 'static) {
    let seen = Arc::new(Mutex::new(vec![]));
    let notes = Arc::clone(&seen);
    (seen, move |address| notes.lock().unwrap().push(address))
}

fn taken(seen: &Mutex<Vec<usize>>) -> Vec<usize> {
    std::mem::take(&mut *seen.lock().unwrap())
}

#[test]
fn an_address_reaches_those_whose_range_holds_it() {
    let domain = Domain::private().unwrap();
    let segment = domain.make_segment(None, 1 << 20).unwrap();
    let at = segment.address();
    let mut one = domain.listen(ListenerOptions::default()).unwrap();
    let mut two = domain.listen(ListenerOptions::default()).unwrap();
    let (wide, note) = notes();
    one.on(at..at + (1 << 20), note).unwrap();
    let (odd, note) = notes();
    one.on(at + 4001..at + 4003, note).unwrap();
    let (line, note) = notes();
    two.on(at + 4032..at + 4096, note).unwrap();

    let cases = [
        (0, 1),
        (4000, 1),
        (4001, 1),
        (4002, 1),
        (4003, 1),
        (4032, 2),
        (4096, 1),
        ((1 << 20) - 1, 1),
    ];
    for (offset, reached) in cases {
        // Two handlers of one thread are one FIFO, pushed to once.
        assert_eq!(domain.signal(at + offset).unwrap(), reached, "{offset}");
    }
    assert_eq!(domain.signal(at + (1 << 20)).unwrap(), 0);
    while one.wait(Deadline::NOW).is_some() {}
    assert_eq!(two.poll(), 1);
    assert_eq!(taken(&line), [at + 4032]);
    assert_eq!(taken(&wide), cases.map(|(offset, _)| at + offset));
    assert_eq!(taken(&odd), [at + 4001, at + 4002]);
    assert_eq!(one.unhandled(), 0);
}

#[test]
fn every_listener_of_many_handlers_is_told_once() {
    let domain = Domain::private().unwrap();
    let segment = domain.make_segment(None, 4096).unwrap();
    let at = segment.address();
    // Not more than are told together, and then many more, each of a listener of its own.
    let mut listeners: Vec<_> = (0..4)
        .map(|_| domain.listen(ListenerOptions::default()).unwrap())
        .collect();
    let mut boards = vec![];
    for range in 1..=8 {
        for listener in &mut listeners {
            let (seen, note) = notes();
            listener.on(at..at + range * 64, note).unwrap();
            boards.push((range, seen));
        }
    }
    for (offset, reached) in [(0, 4), (64, 4), (511, 4), (512, 0)] {
        assert_eq!(domain.signal(at + offset).unwrap(), reached, "{offset}");
    }
    for listener in &mut listeners {
        assert_eq!((listener.poll(), listener.unhandled()), (3, 0));
    }
    for (range, seen) in boards {
        let mut expected = vec![at, at + 64, at + 511];
        expected.retain(|address| *address < at + range * 64);
        assert_eq!(taken(&seen), expected, "{range}");
    }
    let mut many: Vec<_> = (0..100)
        .map(|_| {
            let mut listener = domain.listen(ListenerOptions::default().depth(2)).unwrap();
            listener.on(at + 1024..at + 2048, |_| {}).unwrap();
            listener
        })
        .collect();
    assert_eq!(domain.signal(at + 1024).unwrap(), 100);
    for listener in &mut many {
        assert_eq!(listener.poll(), 1);
    }
}

#[test]
fn only_shared_addresses_may_be_signalled() {
    let domain = Domain::private().unwrap();
    let mine = 7u64;
    for address in [0, &raw const mine as usize, usize::MAX] {
        assert!(matches!(
            domain.signal(address),
            Err(SignalError::NotShared { address: a, .. }) if a == address
        ));
    }
    let mut listener = domain.listen(ListenerOptions::default()).unwrap();
    let shared = listener.shared();
    assert!(listener.on(shared.end - 1..shared.end + 1, |_| {}).is_err());
    assert!(listener.on(shared.start..shared.end, |_| {}).is_ok());
    assert!(matches!(
        listener.on(shared.start..shared.start, |_| {}),
        Err(SignalError::Empty { .. })
    ));
    assert_eq!(domain.signal(shared.end - 1).unwrap(), 1);
}

#[test]
fn waiting_gives_the_time_that_is_left() {
    let domain = Domain::private().unwrap();
    let segment = domain.make_segment(None, 64).unwrap();
    let at = segment.address();
    for waiting in [Waiting::Adaptive, Waiting::Sleep, Waiting::Poll] {
        let options = ListenerOptions::default().waiting(waiting);
        let mut listener = domain.listen(options).unwrap();
        listener.on(at..at + 64, |_| {}).unwrap();
        assert_eq!(listener.wait(Duration::from_millis(5)), None);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| listener.wait(PATIENCE));
            std::thread::sleep(Duration::from_millis(10));
            assert_eq!(domain.signal(at).unwrap(), 1);
            let left = waits.join().unwrap().unwrap();
            assert!(left < PATIENCE && left > Duration::ZERO, "{left:?}");
        });
        domain.signal(at).unwrap();
        assert_eq!(listener.wait(Deadline::NEVER), Some(Duration::MAX));
    }
}

#[test]
fn a_full_fifo_counts_what_it_drops() {
    let domain = Domain::private().unwrap();
    let segment = domain.make_segment(None, 4096).unwrap();
    let at = segment.address();
    let mut listener = domain.listen(ListenerOptions::default()).unwrap();
    let (seen, note) = notes();
    listener.on(at..at + 4096, note).unwrap();
    let reached: Vec<usize> = (0..200).map(|i| domain.signal(at + i).unwrap()).collect();
    assert_eq!(listener.depth(), 128);
    assert!(reached[..128].iter().all(|r| *r == 1) && reached[128..].iter().all(|r| *r == 0));
    assert_eq!((listener.poll(), listener.dropped()), (128, 72));
    assert_eq!(taken(&seen), (at..at + 128).collect::<Vec<_>>());
}

#[test]
fn a_handler_may_signal_itself_and_may_panic() {
    let domain = Domain::private().unwrap();
    let segment = domain.make_segment(None, 4096).unwrap();
    let at = segment.address();
    let mut listener = domain.listen(ListenerOptions::default()).unwrap();
    let again = domain.clone();
    let (seen, mut note) = notes();
    listener
        .on(at..at + 10, move |address| {
            note(address);
            if address < at + 9 {
                again.signal(address + 1).unwrap();
            }
        })
        .unwrap();
    domain.signal(at).unwrap();
    assert_eq!(listener.poll(), 10);
    assert_eq!(taken(&seen), (at..at + 10).collect::<Vec<_>>());

    let (seen, note) = notes();
    listener
        .on(at + 100..at + 101, |_| panic!("as the test wants"))
        .unwrap();
    listener.on(at + 200..at + 201, note).unwrap();
    domain.signal(at + 100).unwrap();
    domain.signal(at + 200).unwrap();
    let panicked = std::panic::catch_unwind(AssertUnwindSafe(|| listener.poll()));
    assert!(panicked.is_err());
    assert_eq!((listener.poll(), taken(&seen)), (1, vec![at + 200]));
}

#[test]
fn a_handler_taken_away_leaves_nothing_behind() {
    let domain = Domain::private().unwrap();
    let segment = domain.make_segment(None, 4096).unwrap();
    let at = segment.address();
    let mut listener = domain.listen(ListenerOptions::default()).unwrap();
    let handler = listener.on(at..at + 4096, |_| {}).unwrap();
    domain.signal(at).unwrap();
    assert!(listener.off(handler).unwrap());
    assert!(!listener.off(handler).unwrap());
    assert_eq!(domain.signal(at).unwrap(), 0);
    assert_eq!((listener.poll(), listener.unhandled()), (0, 1));
    for _ in 0..1500 {
        // More than there are FIFOs, and handlers would run out too.
        let mut other = domain.listen(ListenerOptions::default()).unwrap();
        other.on(at + 1..at + 4095, |_| {}).unwrap();
    }
    assert_eq!(domain.signal(at + 5).unwrap(), 0);
}

#[test]
fn a_handler_moves_to_another_thread_and_loses_nothing() {
    let domain = Domain::private().unwrap();
    let segment = domain.make_segment(None, 1 << 16).unwrap();
    let at = segment.address();
    let deep = ListenerOptions::default().depth(512);
    let mut from = domain.listen(deep).unwrap();
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    let notes = Arc::clone(&seen);
    let note = move |address| {
        notes.lock().unwrap().insert(address);
    };
    let handler = from.on(at..at + 65_536, note).unwrap();
    let signals = 20_000;
    let mut to = domain.listen(deep).unwrap();
    std::thread::scope(|scope| {
        let signaller = scope.spawn(|| {
            for i in 0..signals {
                // Never more under way than a FIFO holds.
                while i > seen.lock().unwrap().len() + 200 {
                    std::thread::yield_now();
                }
                assert_ne!(domain.signal(at + i).unwrap(), 0);
            }
        });
        let mut round = 0;
        while !signaller.is_finished() {
            for _ in 0..20 {
                from.poll();
                to.poll();
                std::thread::yield_now();
            }
            // Back and forth, so that many moves meet signals.
            let (away, back) = if round % 2 == 0 {
                (&mut from, &to)
            } else {
                (&mut to, &from)
            };
            away.give(handler, &back.outbox()).unwrap();
            round += 1;
        }
        signaller.join().unwrap();
    });
    from.poll();
    to.poll();
    assert_eq!(from.dropped() + to.dropped(), 0);
    assert_eq!(seen.lock().unwrap().len(), signals);
}

#[test]
fn a_handler_cannot_be_given_to_nobody() {
    let domain = Domain::private().unwrap();
    let segment = domain.make_segment(None, 64).unwrap();
    let at = segment.address();
    let mut here = domain.listen(ListenerOptions::default()).unwrap();
    let gone = domain.listen(ListenerOptions::default()).unwrap().outbox();
    let (seen, note) = notes();
    let handler = here.on(at..at + 64, note).unwrap();
    assert_eq!(here.give(handler, &gone), Err(SignalError::ListenerGone));
    domain.signal(at).unwrap();
    assert_eq!((here.poll(), taken(&seen)), (1, vec![at]));
    here.off(handler).unwrap();
    assert_eq!(
        here.give(handler, &gone),
        Err(SignalError::UnknownHandler(handler))
    );
}

#[test]
fn a_handler_is_not_given_to_a_listener_of_another_domain() {
    let (domain, other) = (Domain::private().unwrap(), Domain::private().unwrap());
    let segment = domain.make_segment(None, 4096).unwrap();
    let at = segment.address();
    let mut here = domain.listen(ListenerOptions::default()).unwrap();
    let (seen, note) = notes();
    let handler = here.on(at..at + 64, note).unwrap();
    // Both have the first FIFO of their domain.
    let mut there = other.listen(ListenerOptions::default()).unwrap();
    assert_eq!(
        here.give(handler, &there.outbox()),
        Err(SignalError::OtherDomain)
    );
    // Also when it is gone, and so is its domain.
    let gone = there.outbox();
    assert_eq!(there.poll(), 0);
    drop((there, other));
    assert_eq!(here.give(handler, &gone), Err(SignalError::OtherDomain));
    // It stays where it is.
    assert_eq!(domain.signal(at).unwrap(), 1);
    assert_eq!(here.poll(), 1);
    let mut next = domain.listen(ListenerOptions::default()).unwrap();
    here.give(handler, &next.outbox()).unwrap();
    assert_eq!(domain.signal(at).unwrap(), 1);
    assert_eq!((next.poll(), here.poll()), (1, 0));
    assert_eq!(*seen.lock().unwrap(), [at, at]);
}

#[test]
fn a_handler_given_to_a_listener_that_is_being_dropped_leaves_nothing_behind() {
    let domain = Domain::private().unwrap();
    let segment = domain.make_segment(None, 64).unwrap();
    let at = segment.address();
    for round in 0..2000_usize {
        let mut from = domain.listen(ListenerOptions::default()).unwrap();
        let to = domain.listen(ListenerOptions::default()).unwrap();
        let outbox = to.outbox();
        let alive = Arc::new(());
        let kept = Arc::clone(&alive);
        let handler = from
            .on(at..at + 64, move |_| {
                let _ = &kept;
            })
            .unwrap();
        let start = std::sync::Barrier::new(2);
        // Now the one is first, now the other.
        let pause = |rounds| (0..rounds).for_each(|_| std::hint::spin_loop());
        let given = std::thread::scope(|scope| {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                pause(round % 200);
                drop(to);
            });
            start.wait();
            pause(round * 7 % 300);
            from.give(handler, &outbox)
        });
        // It has gone with the other listener, or it is here and works.
        let reached = match given {
            Ok(()) => 0,
            Err(SignalError::ListenerGone) => 1,
            Err(other) => panic!("{other}"),
        };
        assert_eq!(domain.signal(at).unwrap(), reached, "{round}");
        assert_eq!(from.poll(), reached, "{round}");
        assert_eq!(Arc::strong_count(&alive), 1 + reached, "{round}");
        drop(from);
        assert_eq!(domain.signal(at).unwrap(), 0, "{round}");
        assert_eq!(Arc::strong_count(&alive), 1, "{round}");
    }
}

#[test]
fn many_threads_listen_to_one_range() {
    let domain = Domain::private().unwrap();
    let segment = domain.make_segment(None, 4096).unwrap();
    let at = segment.address();
    let ready = std::sync::Barrier::new(5);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (domain, ready) = (&domain, &ready);
            scope.spawn(move || {
                let mut listener = domain.listen(ListenerOptions::default()).unwrap();
                let (seen, note) = notes();
                listener.on(at..at + 4096, note).unwrap();
                ready.wait();
                while seen.lock().unwrap().len() < 100 {
                    assert!(listener.wait(PATIENCE).is_some());
                }
                assert_eq!(taken(&seen), (at..at + 100).collect::<Vec<_>>());
            });
        }
        ready.wait();
        for i in 0..100 {
            assert_eq!(domain.signal(at + i).unwrap(), 4);
        }
    });
}

#[test]
fn what_was_written_before_a_signal_is_seen_by_its_handler() {
    let domain = Domain::private().unwrap();
    let segment = domain.make_segment(None, 4096).unwrap();
    let at = segment.address();
    let mut listener = domain.listen(ListenerOptions::default()).unwrap();
    let reads = segment.clone();
    let (seen, mut note) = notes();
    listener
        .on(at..at + 4096, move |address| {
            let word = &reads.words()[(address - at) / 8];
            note(usize::try_from(word.load(Ordering::Relaxed)).unwrap());
        })
        .unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 1..100u64 {
                let index = usize::try_from(i).unwrap();
                segment.words()[index].store(i, Ordering::Relaxed);
                domain.signal(at + index * 8).unwrap();
            }
        });
        while seen.lock().unwrap().len() < 99 {
            assert!(listener.wait(PATIENCE).is_some());
        }
    });
    assert_eq!(taken(&seen), (1..100).collect::<Vec<_>>());
}

#[cfg(feature = "marks")]
mod deaths {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::time::Instant;

    /// The other process; nothing, when it is run as a test.
    #[test]
    fn victim() {
        let Some([domain, mark]) = portolan_testkit::role() else {
            return;
        };
        let domain = Domain::join(&domain).unwrap();
        let segment = domain.find_segment("here", PATIENCE).unwrap();
        let at = segment.address();
        let mut listener = domain.listen(ListenerOptions::default()).unwrap();
        listener.on(at + 100..at + 9000, |_| {}).unwrap();
        portolan_testkit::die_at(&mark, portolan_shm::mark::install);
        let mut other = domain.listen(ListenerOptions::default()).unwrap();
        loop {
            let handler = listener.on(at + 64..at + 10_000, |_| {}).unwrap();
            // The survivor sleeps most of the time.
            std::thread::sleep(Duration::from_millis(2));
            domain.signal(at).unwrap();
            listener.wait(Duration::from_millis(1));
            listener.give(handler, &other.outbox()).unwrap();
            other.poll();
            other.off(handler).unwrap();
        }
    }

    #[test]
    fn whatever_step_it_dies_at_others_go_on() {
        for mark in [
            "signal.fifo_taken",
            "signal.locked",
            "signal.handler_claimed",
            "signal.block_added",
            "signal.handler_disabled",
            "signal.block_removed",
            "signal.before_fill",
            "signal.filled",
            "signal.before_wake",
            "signal.before_arm",
            "signal.before_sleep",
            "signal.moved",
        ] {
            let name = portolan_testkit::unique("signal");
            let domain = Domain::join(&name).unwrap();
            let segment = domain.make_segment(Some("here"), 16_384).unwrap();
            let at = segment.address();
            let options = ListenerOptions::default().waiting(Waiting::Sleep);
            let mut listener = domain.listen(options).unwrap();
            listener.on(at..at + 64, |_| {}).unwrap();
            let mut child = portolan_testkit::spawn("deaths::victim", &[&name, mark]);
            let end = Instant::now() + PATIENCE;
            let status = loop {
                assert!(Instant::now() < end, "{mark}");
                // A wake that the dead owed must come from the host.
                listener.wait(Duration::from_millis(100));
                if let Some(status) = child.try_wait().unwrap() {
                    break status;
                }
            };
            assert_eq!(status.signal(), Some(libc::SIGKILL), "{mark}");
            while domain.survey().unwrap().spaces.len() > 1 {
                assert!(Instant::now() < end, "{mark}");
                std::thread::sleep(Duration::from_millis(2));
            }
            while listener.poll() > 0 {}
            // Its handlers are gone, ours is not, and another can be added over them.
            assert_eq!(domain.signal(at + 5000).unwrap(), 0, "{mark}");
            assert_eq!(domain.signal(at).unwrap(), 1, "{mark}");
            let (seen, note) = notes();
            listener.on(at + 64..at + 10_000, note).unwrap();
            assert_eq!(domain.signal(at + 5000).unwrap(), 1, "{mark}");
            assert_eq!(listener.poll(), 2, "{mark}");
            assert_eq!(taken(&seen), [at + 5000], "{mark}");
        }
    }

    /// The other process: it stops at a mark, and says when it has gone on.
    #[test]
    fn stops() {
        let Some([domain, mark]) = portolan_testkit::role() else {
            return;
        };
        let domain = Domain::join(&domain).unwrap();
        let segment = domain.find_segment("here", PATIENCE).unwrap();
        let at = segment.address();
        let mut listener = domain.listen(ListenerOptions::default()).unwrap();
        let before = listener.on(at..at + 9000, |_| {}).unwrap();
        portolan_testkit::stop_once_at(&mark, portolan_shm::mark::install);
        let handler = listener.on(at + 64..at + 10_000, |_| {}).unwrap();
        listener.off(handler).unwrap();
        listener.off(before).unwrap();
        let (seen, note) = notes();
        listener.on(at + 12_000..at + 12_064, note).unwrap();
        let back = domain.connect("back", PATIENCE).unwrap();
        back.send(portolan::Message::default(), portolan::WhenFull::Fail)
            .unwrap();
        assert!(listener.wait(PATIENCE).is_some());
        assert_eq!(taken(&seen), [at + 12_000]);
        back.send(portolan::Message::default(), portolan::WhenFull::Fail)
            .unwrap();
    }

    #[test]
    fn who_is_stopped_with_the_lock_on_ranges_holds_nobody_up() {
        for mark in [
            "signal.locked",
            "signal.handler_claimed",
            "signal.block_added",
            "signal.handler_disabled",
            "signal.block_removed",
        ] {
            let name = portolan_testkit::unique("signal-stop");
            let domain = Domain::join(&name).unwrap();
            let segment = domain.make_segment(Some("here"), 16_384).unwrap();
            let at = segment.address();
            let options = portolan::PortOptions::named("back");
            let mut back = domain.bind(options).unwrap();
            let mut child = portolan_testkit::spawn("deaths::stops", &[&name, mark]);
            let stat = format!("/proc/{}/stat", child.id());
            let end = Instant::now() + PATIENCE;
            while !std::fs::read_to_string(&stat).unwrap().contains(") T ") {
                assert!(Instant::now() < end, "{mark}");
                std::thread::sleep(Duration::from_millis(2));
            }
            let began = Instant::now();
            let mut listener = domain.listen(ListenerOptions::default()).unwrap();
            let ((seen, note), (others, other)) = (notes(), notes());
            let first = listener.on(at + 12_000..at + 13_000, note).unwrap();
            let mut second = domain.listen(ListenerOptions::default()).unwrap();
            second.on(at + 12_500..at + 14_000, other).unwrap();
            assert_eq!(domain.signal(at + 12_600).unwrap(), 2, "{mark}");
            assert_eq!(domain.signal(at + 13_600).unwrap(), 1, "{mark}");
            assert_eq!(domain.signal(at + 15_000).unwrap(), 0, "{mark}");
            assert_eq!((listener.poll(), second.poll()), (1, 2), "{mark}");
            assert!(listener.off(first).unwrap());
            assert_eq!(domain.signal(at + 12_100).unwrap(), 0, "{mark}");
            assert_eq!(domain.signal(at + 12_600).unwrap(), 1, "{mark}");
            assert_eq!(second.poll(), 1, "{mark}");
            assert_eq!(taken(&seen), [at + 12_600], "{mark}");
            assert_eq!(
                taken(&others),
                [at + 12_600, at + 13_600, at + 12_600],
                "{mark}"
            );
            // A stall of seconds is what a lock that is waited for would cost.
            assert!(began.elapsed() < Duration::from_secs(4), "{mark}");
            portolan_testkit::resume(&child);
            let receive = |port: &mut portolan::ReceiveRight| {
                port.receive(portolan::Access::Later, PATIENCE).unwrap()
            };
            drop(receive(&mut back));
            // Its handler, ours that was added meanwhile, and one that is added now.
            assert_eq!(domain.signal(at + 12_000).unwrap(), 1, "{mark}");
            drop(receive(&mut back));
            listener.on(at + 12_600..at + 12_700, |_| {}).unwrap();
            assert_eq!(domain.signal(at + 12_600).unwrap(), 2, "{mark}");
            assert!(child.wait().unwrap().success(), "{mark}");
        }
    }
}
