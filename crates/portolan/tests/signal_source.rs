//! Descriptors, timers and Unix signals that are bound to addresses.

use portolan::{Deadline, Domain, ListenerOptions, Origin, SignalError, WaitSet};
use portolan_testkit::PATIENCE;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A handler that notes what it is told.
fn notes() -> (Arc<Mutex<Vec<usize>>>, impl FnMut(usize) + Send + 'static) {
    let seen = Arc::new(Mutex::new(vec![]));
    let notes = Arc::clone(&seen);
    (seen, move |address| notes.lock().unwrap().push(address))
}

fn unix(signal: i32) {
    let own = i32::try_from(std::process::id()).unwrap();
    // SAFETY:
    // - Sends a signal to ourselves, which is caught; nothing is touched.
    unsafe { libc::kill(own, signal) };
}

#[test]
fn one_wait_serves_signals_descriptors_timers_and_unix_signals() {
    let domain = Domain::private().unwrap();
    let segment = domain.make_segment(None, 4096).unwrap();
    let at = segment.address();
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let fd = ours.try_clone().unwrap().into();
    let _socket = domain.bind_address(at, Origin::Descriptor(fd)).unwrap();
    let usr1 = Origin::UnixSignal(libc::SIGUSR1);
    let _signal = domain.bind_address(at + 1, usr1).unwrap();
    let timer = Origin::Timer {
        first: Duration::from_millis(1),
        every: Some(Duration::from_millis(1)),
    };

    let mut listener = domain.listen(ListenerOptions::default()).unwrap();
    let (seen, mut note) = notes();
    let text = Arc::new(Mutex::new(String::new()));
    let reads = Arc::clone(&text);
    listener
        .on(at..at + 64, move |address| {
            note(address);
            if address == at {
                let mut bytes = vec![0; 64];
                while let Ok(read @ 1..) = ours.read(&mut bytes) {
                    let piece = std::str::from_utf8(&bytes[..read]).unwrap();
                    reads.lock().unwrap().push_str(piece);
                }
            }
        })
        .unwrap();
    let mut wait_for = |address| {
        while !seen.lock().unwrap().contains(&address) {
            assert!(listener.wait(PATIENCE).is_some());
        }
        seen.lock().unwrap().clear();
    };
    theirs.write_all(b"one ").unwrap();
    wait_for(at);
    unix(libc::SIGUSR1);
    wait_for(at + 1);
    domain.signal(at + 2).unwrap();
    wait_for(at + 2);
    // A change again, after it was read.
    theirs.write_all(b"two").unwrap();
    wait_for(at);
    assert_eq!(*text.lock().unwrap(), "one two");
    let timer = domain.bind_address(at + 3, timer).unwrap();
    assert_eq!(timer.address(), at + 3);
    for _ in 0..3 {
        wait_for(at + 3);
    }
    // Dropped, it signals no more.
    drop(timer);
    listener.poll();
    seen.lock().unwrap().clear();
    assert_eq!(listener.wait(Duration::from_millis(20)), None);
    // The other end goes.
    drop(theirs);
    while !seen.lock().unwrap().contains(&at) {
        assert!(listener.wait(PATIENCE).is_some());
    }
}

#[test]
fn sources_reach_wait_sets_and_come_and_go() {
    let domain = Domain::private().unwrap();
    let segment = domain.make_segment(None, 4096).unwrap();
    let at = segment.address();
    let mut listener = domain.listen(ListenerOptions::default()).unwrap();
    let (seen, note) = notes();
    listener.on(at..at + 64, note).unwrap();
    let mut set = WaitSet::new(&domain).unwrap();
    let token = set.add(listener).unwrap();
    for round in 0..20 {
        // Each time the only one: its thread begins and ends with it.
        let once = Origin::Timer {
            first: Duration::ZERO,
            every: None,
        };
        let _source = domain.bind_address(at + round, once).unwrap();
        assert_eq!(set.wait(PATIENCE).unwrap().next(), Some(token.any()));
        assert_eq!(set.get_mut(token).unwrap().poll(), 1);
        assert!(set.wait(Deadline::NOW).unwrap().is_empty());
    }
    assert_eq!(*seen.lock().unwrap(), (at..at + 20).collect::<Vec<_>>());
}

#[test]
fn what_cannot_be_bound_is_refused() {
    let domain = Domain::private().unwrap();
    let segment = domain.make_segment(None, 64).unwrap();
    let at = segment.address();
    let bind = |address, origin| domain.bind_address(address, origin).unwrap_err();
    let timer = || Origin::Timer {
        first: Duration::ZERO,
        every: None,
    };
    assert!(matches!(bind(7, timer()), SignalError::NotShared { .. }));
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let file = Origin::Descriptor(file.into());
    assert!(matches!(bind(at, file), SignalError::NotWaitable));
    for signal in [libc::SIGKILL, libc::SIGSEGV, 0, 999] {
        let refused = bind(at, Origin::UnixSignal(signal));
        assert!(matches!(refused, SignalError::NotCaught { signal: s } if s == signal));
    }
    let never = Origin::Timer {
        first: Duration::MAX,
        every: None,
    };
    assert!(matches!(bind(at, never), SignalError::NotBound { .. }));
    // Nothing is left behind.
    drop(segment);
    domain.leave().unwrap();
}

#[test]
fn no_address_is_bound_to_what_upcalls_come_by() {
    let domain = Domain::private().unwrap();
    let segment = domain.make_segment(None, 4096).unwrap();
    let at = segment.address();
    let bind = |signal| domain.bind_address(at, Origin::UnixSignal(signal));
    let upcalls_by = |signal| {
        let options = ListenerOptions::default().upcall_signal(signal);
        let mut listener = domain.listen(options).unwrap();
        let note = listener.note(at..at + 64).map(|(_, note)| note);
        note.map(|note| (listener, note))
    };
    let refused = |signal| match bind(signal) {
        Err(SignalError::UpcallSignal { signal: named }) => named == signal,
        other => panic!("{other:?}"),
    };
    // The one that is used if nothing is said, also before there are upcalls.
    assert!(refused(libc::SIGRTMAX() - 1));
    let (mine, theirs) = (libc::SIGRTMIN() + 6, libc::SIGRTMIN() + 7);
    let (_listener, note) = upcalls_by(mine).unwrap();
    assert!(refused(mine));
    // And the other way round, as long as it is bound.
    let bound = [bind(theirs).unwrap(), bind(theirs).unwrap()];
    let busy = |theirs| match upcalls_by(theirs) {
        Err(SignalError::Bound { signal }) => signal == theirs,
        other => panic!("{:?}", other.map(|_| ())),
    };
    assert!(busy(theirs));
    let [one, other] = bound;
    drop(one);
    assert!(busy(theirs));
    drop(other);
    let (_other, other) = upcalls_by(theirs).unwrap();
    assert_eq!(domain.signal(at).unwrap(), 2);
    let end = Instant::now() + PATIENCE;
    while note.count() == 0 || other.count() == 0 {
        assert!(Instant::now() < end);
        std::thread::yield_now();
    }
}
