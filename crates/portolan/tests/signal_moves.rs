//! Handlers that change their thread: what had come for them goes along.

use portolan::{
    Deadline, Domain, HandlerId, Listener, ListenerOptions, Note, SignalError, WaitSet, Waiting,
};
use portolan_testkit::{PATIENCE, spin_until};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

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
        Err(SignalError::UnknownHandler(handler))
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
    // All of it, in order, and by no other handler. (The four that are in the other FIFO as well
    // are handled once more.)
    assert_eq!((here.poll(), there.poll()), (100, 104));
    let sent: Vec<usize> = (at..at + 100).collect();
    assert_eq!((taken(&wide), taken_once(&seen)), (sent.clone(), sent));
    assert_eq!((taken(&over).len(), taken(&theirs).len()), (4, 0));

    // Back and on, before any thread looks: what came along goes along.
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
    assert_eq!((here.unhandled(), there.unhandled()), (0, 0));
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
                spin_until("they were handled", || {
                    handled.load(Ordering::SeqCst) >= round
                });
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
    let there = set.add(there).unwrap();
    let mut here = domain.listen(depth(4)).unwrap();
    let (seen, handler) = noted(&mut here, at..at + 64);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| set.wait(PATIENCE).unwrap());
        std::thread::sleep(Duration::from_millis(10));
        domain.signal(at).unwrap();
        here.give(handler, &outbox).unwrap();
        assert!(waits.join().unwrap().any(|ready| ready == there));
    });
    assert_eq!(set.get_mut(there).unwrap().poll(), 1);
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
        assert_eq!(listener.unhandled(), 0);
    }
}

/// A listener with an upcall of a thread that was not interrupted, and then ended.
fn orphaned(domain: &Domain, at: usize, options: ListenerOptions) -> (Listener, Arc<Note>) {
    let (listener, note) = std::thread::scope(|scope| {
        let ends = scope.spawn(|| {
            let mut listener = domain.listen(options).unwrap();
            let (_, note) = listener.note(at..at + 64).unwrap();
            (listener, note)
        });
        ends.join().unwrap()
    });
    (listener, note)
}

#[test]
fn upcalls_whose_thread_has_ended_are_handled_where_their_listener_waits() {
    let domain = Domain::private().unwrap();
    let segment = domain.make_segment(None, 4096).unwrap();
    let at = segment.address();
    for waiting in [Waiting::Sleep, Waiting::Adaptive, Waiting::Poll] {
        let options = depth(4).waiting(waiting);
        let (mut listener, note) = orphaned(&domain, at, options);
        for offset in 0..6 {
            let reached = usize::from(offset < 4);
            assert_eq!(domain.signal(at + offset).unwrap(), reached);
        }
        for handled in 1..=4 {
            assert!(listener.wait(PATIENCE).is_some(), "{waiting:?}");
            assert_eq!(note.count(), handled);
        }
        assert_eq!(note.address(), at + 3);
        assert_eq!(listener.wait(Deadline::NOW), None);
        assert_eq!((listener.dropped(), listener.unhandled()), (2, 0));
        // From now on it is like any other, and a new one interrupts this thread.
        assert_eq!(domain.signal(at + 5).unwrap(), 1);
        assert_eq!((listener.poll(), note.count()), (1, 5));
        let (_, note) = listener.note(at + 64..at + 128).unwrap();
        domain.signal(at + 64).unwrap();
        spin_until("it was noted", || note.count() == 1);
    }
}

#[test]
fn a_wait_ends_when_the_thread_ends_that_was_to_be_interrupted() {
    let domain = Domain::private().unwrap();
    let segment = domain.make_segment(None, 4096).unwrap();
    let at = segment.address();
    let mut set = WaitSet::new(&domain).unwrap();
    set.set_waiting(Waiting::Sleep);
    for by_set in [false, true] {
        let (give, given) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let domain = &domain;
            scope.spawn(move || {
                // So that it is not interrupted, and ends with the signal pending.
                mask_all();
                let options = depth(4).waiting(Waiting::Sleep);
                let mut listener = domain.listen(options).unwrap();
                let (_, note) = listener.note(at..at + 64).unwrap();
                give.send((listener, note)).unwrap();
                ends.recv().unwrap();
            });
            let (mut listener, note) = given.recv().unwrap();
            assert_eq!(domain.signal(at).unwrap(), 1);
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(10));
                end.send(()).unwrap();
            });
            if by_set {
                let token = set.add(listener).unwrap();
                assert!(set.wait(PATIENCE).unwrap().any(|ready| ready == token));
                assert_eq!(set.get_mut(token).unwrap().poll(), 1);
                assert!(set.wait(Deadline::NOW).unwrap().is_empty());
            } else {
                assert!(listener.wait(PATIENCE).is_some());
            }
            assert_eq!((note.count(), note.address()), (1, at));
        });
    }
}

#[expect(unsafe_code, reason = "a signal mask")]
fn mask_all() {
    // SAFETY:
    // - Any bytes are a set, which is then filled.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY:
    // - A set to be written.
    unsafe { libc::sigfillset(&raw mut set) };
    // SAFETY:
    // - A set to be read; the old one is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
}
