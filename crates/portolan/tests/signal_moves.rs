//! Handlers that change their thread: what had come for them goes along.

use portolan::{Deadline, Domain, Given, HandlerId, Listener, ListenerOptions, WaitSet, Waiting};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

fn depth(depth: usize) -> ListenerOptions {
    ListenerOptions::default().depth(depth)
}

type Seen = Arc<Mutex<Vec<usize>>>;

/// Adds a handler that notes what it is told.
fn noted(listener: &mut Listener, range: Range<usize>) -> (Seen, HandlerId) {
    let seen = Seen::default();
    let notes = Arc::clone(&seen);
    let id = listener.on(range, move |address| notes.lock().unwrap().push(address));
    (seen, id.unwrap())
}

/// What came, each where it came first.
fn taken_once(seen: &Seen) -> Vec<usize> {
    let mut once = vec![];
    for address in taken(seen) {
        if !once.contains(&address) {
            once.push(address);
        }
    }
    once
}

fn taken(seen: &Seen) -> Vec<usize> {
    std::mem::take(&mut *seen.lock().unwrap())
}

#[test]
fn a_handler_given_to_its_own_listener_stays() {
    let domain = Domain::private().unwrap();
    let segment = domain.make_segment(None, 4096).unwrap();
    let at = segment.address();
    let mut listener = domain.listen(depth(4)).unwrap();
    let (seen, handler) = noted(&mut listener, at..at + 64);
    // Also with a FIFO that is full.
    let sent: Vec<usize> = (at..at + 4).collect();
    for address in &sent {
        assert_eq!(domain.signal(*address).unwrap(), 1);
    }
    let outbox = listener.outbox();
    listener.give(handler, &outbox).unwrap();
    assert_eq!((listener.poll(), taken(&seen)), (4, sent));
    assert!(listener.off(handler).unwrap());
    assert_eq!(
        listener.give(handler, &outbox),
        Err(Given::Unknown(handler))
    );

    // One that interrupts is from then on waited for.
    let (handler, note) = listener.note(at..at + 64).unwrap();
    listener.give(handler, &outbox).unwrap();
    domain.signal(at + 7).unwrap();
    assert_eq!(
        (listener.poll(), note.count(), note.address()),
        (1, 1, at + 7)
    );
}

#[test]
fn what_had_come_goes_along_also_to_a_listener_that_is_full_or_small() {
    let domain = Domain::private().unwrap();
    let segment = domain.make_segment(None, 4096).unwrap();
    let at = segment.address();
    let mut here = domain.listen(depth(128)).unwrap();
    let mut there = domain.listen(depth(4)).unwrap();
    let (wide, _wide) = noted(&mut here, at..at + 256);
    let (seen, handler) = noted(&mut here, at..at + 128);
    let (theirs, _theirs) = noted(&mut there, at + 1000..at + 2000);
    let (over, _over) = noted(&mut there, at..at + 2000);
    for offset in 0..100 {
        assert_eq!(
            domain.signal(at + offset).unwrap(),
            2 - usize::from(offset > 3)
        );
    }
    assert_eq!(there.dropped(), 96);
    here.give(handler, &there.outbox()).unwrap();
    // All of it, in order, and by nobody else. (The four that are in the other FIFO as well
    // are handled once more.)
    assert_eq!((here.poll(), there.poll()), (100, 104));
    let sent: Vec<usize> = (at..at + 100).collect();
    assert_eq!((taken(&wide), taken_once(&seen)), (sent.clone(), sent));
    assert_eq!((taken(&over).len(), taken(&theirs).len()), (4, 0));

    // Back and on, before anybody looks: what came along goes along.
    for offset in 0..4 {
        assert_eq!(domain.signal(at + offset).unwrap(), 2);
    }
    there.give(handler, &here.outbox()).unwrap();
    here.give(handler, &there.outbox()).unwrap();
    there.give(handler, &here.outbox()).unwrap();
    // And what comes then, comes after it.
    for offset in 4..8 {
        assert_ne!(domain.signal(at + offset).unwrap(), 0);
    }
    while here.poll() + there.poll() > 0 {}
    let sent: Vec<usize> = (at..at + 8).collect();
    assert_eq!((taken(&wide), taken_once(&seen)), (sent.clone(), sent));
    assert_eq!((here.strays(), there.strays()), (0, 0));
}

#[test]
fn a_listener_that_sleeps_wakes_for_what_had_come() {
    let domain = Domain::private().unwrap();
    let segment = domain.make_segment(None, 4096).unwrap();
    let at = segment.address();
    for waiting in [Waiting::Sleep, Waiting::Adaptive, Waiting::Poll] {
        let mut there = domain.listen(depth(4).waiting(waiting)).unwrap();
        let outbox = there.outbox();
        let handled = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..50 {
                    assert!(there.wait(PATIENCE).is_some(), "{waiting:?}");
                    handled.fetch_add(1, Ordering::SeqCst);
                }
            });
            for round in 0..50_usize {
                let end = Instant::now() + PATIENCE;
                while handled.load(Ordering::SeqCst) < round {
                    assert!(Instant::now() < end, "{waiting:?}, {round}");
                    std::thread::yield_now();
                }
                if round % 5 == 0 {
                    // So that it sleeps, now and then.
                    std::thread::sleep(Duration::from_millis(1));
                }
                let mut here = domain.listen(depth(4)).unwrap();
                let (_seen, handler) = noted(&mut here, at + round..at + round + 1);
                assert_eq!(domain.signal(at + round).unwrap(), 1);
                here.give(handler, &outbox).unwrap();
            }
        });
    }
}

#[test]
fn a_wait_set_wakes_for_what_had_come() {
    let domain = Domain::private().unwrap();
    let segment = domain.make_segment(None, 4096).unwrap();
    let at = segment.address();
    let mut set = WaitSet::new(&domain).unwrap();
    set.set_waiting(Waiting::Sleep);
    let there = domain.listen(depth(4)).unwrap();
    let outbox = there.outbox();
    let there = set.add_listener(there).unwrap();
    let mut here = domain.listen(depth(4)).unwrap();
    let (seen, handler) = noted(&mut here, at..at + 64);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| set.wait(PATIENCE).unwrap());
        std::thread::sleep(Duration::from_millis(10));
        domain.signal(at).unwrap();
        here.give(handler, &outbox).unwrap();
        assert!(waits.join().unwrap().any(|ready| ready == there));
    });
    assert_eq!(set.listener_mut(there).unwrap().poll(), 1);
    assert_eq!(taken(&seen), [at]);
    // Nothing is left that would make it ready.
    assert!(set.wait(Deadline::NOW).unwrap().is_empty());
}

#[test]
fn a_handler_that_moves_under_load_handles_all_that_reached_it() {
    let domain = Domain::private().unwrap();
    let segment = domain.make_segment(None, 4096).unwrap();
    let at = segment.address();
    let handled = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&handled);
    let mut here = domain.listen(depth(64)).unwrap();
    let mut there = domain.listen(depth(8)).unwrap();
    let count = move |_| {
        counts.fetch_add(1, Ordering::SeqCst);
    };
    let handler = here.on(at..at + 64, count).unwrap();
    let reached = std::thread::scope(|scope| {
        let signals = scope.spawn(|| {
            // As fast as it can, whatever is dropped.
            (0..200_000)
                .map(|_| domain.signal(at).unwrap())
                .sum::<usize>()
        });
        while !signals.is_finished() {
            here.poll();
            here.give(handler, &there.outbox()).unwrap();
            there.poll();
            there.give(handler, &here.outbox()).unwrap();
        }
        signals.join().unwrap()
    });
    while here.poll() + there.poll() > 0 {}
    let handled = handled.load(Ordering::SeqCst);
    // One that met a move may be handled twice.
    assert!(handled >= reached, "{handled} of {reached}");
}

#[test]
fn a_handler_that_panics_takes_no_signal_from_others() {
    let domain = Domain::private().unwrap();
    let segment = domain.make_segment(None, 4096).unwrap();
    let at = segment.address();
    let mut listener = domain.listen(ListenerOptions::default()).unwrap();
    // Few, and so many that a table finds them.
    for several in [2, 12] {
        let boards: Vec<_> = (0..several)
            .map(|_| noted(&mut listener, at..at + 64))
            .collect();
        let panics = listener
            .on(at..at + 64, |_| panic!("as the test wants"))
            .unwrap();
        let more: Vec<_> = (0..several)
            .map(|_| noted(&mut listener, at..at + 64))
            .collect();
        for address in [at, at + 1] {
            domain.signal(address).unwrap();
        }
        let mut panicked = 0;
        loop {
            let poll = std::panic::AssertUnwindSafe(|| listener.poll());
            match std::panic::catch_unwind(poll) {
                Ok(0) => break,
                Ok(_) => {}
                Err(_) => panicked += 1,
            }
        }
        assert_eq!(panicked, 2);
        assert!(listener.off(panics).unwrap());
        for (seen, handler) in boards.into_iter().chain(more) {
            assert_eq!(taken(&seen), [at, at + 1], "{several}");
            assert!(listener.off(handler).unwrap());
        }
        assert_eq!(listener.strays(), 0);
    }
}
