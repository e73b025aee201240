//! How handlers are told: polled, monitor-wait, doorbell, wait set, and by interruption.

#[cfg(feature = "marks")]
mod deaths;
mod processes;

use portolan::channel::{ChannelOptions, ReaderOptions};
use portolan::{
    Access, Deadline, Delivery, Domain, HandlerId, Listener, ListenerOptions, Message, PortOptions,
    ReceiveRight, SignalError, WaitSet, Waiting, WhenFull,
};
use portolan_testkit::{PATIENCE, SetOnDrop, spin_until};
use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

fn thread() -> u32 {
    portolan_sys::process::thread()
}

/// What an upcall may write.
struct Board {
    seen: [AtomicUsize; 512],
    count: AtomicUsize,
    on: AtomicU32,
}

impl Default for Board {
    fn default() -> Self {
        Self {
            seen: std::array::from_fn(|_| AtomicUsize::new(0)),
            count: AtomicUsize::new(0),
            on: AtomicU32::new(0),
        }
    }
}

impl Board {
    fn note(&self, address: usize) {
        self.on.store(thread(), Ordering::SeqCst);
        let at = self.count.load(Ordering::SeqCst);
        if let Some(place) = self.seen.get(at) {
            place.store(address, Ordering::SeqCst);
        }
        // After what it counts.
        self.count.store(at + 1, Ordering::SeqCst);
    }

    fn seen(&self) -> Vec<usize> {
        let count = self.count.load(Ordering::SeqCst);
        self.seen[..count]
            .iter()
            .map(|s| s.load(Ordering::SeqCst))
            .collect()
    }
}

/// Adds a handler that interrupts the calling thread and writes to the board.
fn interrupted(listener: &mut Listener, range: std::ops::Range<usize>) -> (Arc<Board>, HandlerId) {
    let board = Arc::new(Board::default());
    let writes = Arc::clone(&board);
    // SAFETY:
    // - Atomics and a system call.
    let delivery = unsafe { Delivery::upcall() };
    let id = listener.on_by(delivery, range, move |address| writes.note(address));
    (board, id.unwrap())
}

#[test]
fn listeners_and_wait_sets_may_be_shared_and_sent() {
    fn fit<T: Send + Sync>() {}
    fit::<Listener>();
    fit::<WaitSet>();
    fit::<portolan::Source>();
}

#[test]
fn every_delivery_that_is_waited_for_brings_all_in_order() {
    let domain = Domain::private().unwrap();
    let segment = domain.make_segment(None, 4096).unwrap();
    let at = segment.address();
    // Where the processor has no monitor-wait this one polls.
    for delivery in [Delivery::POLLED, Delivery::MONITORED, Delivery::DOORBELL] {
        let mut listener = domain.listen(ListenerOptions::default()).unwrap();
        let seen = Arc::new(Mutex::new(vec![]));
        let notes = Arc::clone(&seen);
        let note = move |address| notes.lock().unwrap().push(address);
        listener.on_by(delivery, at..at + 4096, note).unwrap();
        assert_eq!(listener.wait(Duration::from_millis(2)), None);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for i in 0..100 {
                    assert_eq!(domain.signal(at + i).unwrap(), 1);
                    if i % 10 == 0 {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
            });
            while seen.lock().unwrap().len() < 100 {
                let left = listener.wait(PATIENCE).unwrap();
                assert!(left <= PATIENCE);
            }
        });
        let all = (at..at + 100).collect::<Vec<_>>();
        assert_eq!(*seen.lock().unwrap(), all, "{delivery:?}");
    }
    let name = Delivery::monitor_instruction();
    assert!(matches!(name, None | Some("umwait" | "mwaitx")));
}

#[test]
fn an_upcall_runs_on_the_thread_that_asked_for_it() {
    let domain = Domain::private().unwrap();
    let segment = domain.make_segment(None, 4096).unwrap();
    let at = segment.address();
    let mut listener = domain.listen(ListenerOptions::default()).unwrap();
    let (board, handler) = interrupted(&mut listener, at..at + 256);
    let here = thread();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_ne!(thread(), here);
            for i in 0..100 {
                assert_eq!(domain.signal(at + i).unwrap(), 1);
            }
            assert_eq!(domain.signal(at + 256).unwrap(), 0);
        });
        // This thread waits for nothing, and is interrupted.
        spin_until("the handler was called", || {
            board.count.load(Ordering::SeqCst) == 100
        });
    });
    assert_eq!(board.on.load(Ordering::SeqCst), here);
    assert_eq!(board.seen(), (at..at + 100).collect::<Vec<_>>());
    assert_eq!((listener.dropped(), listener.unhandled()), (0, 0));
    assert_eq!(listener.poll(), 0, "they have a FIFO of their own");

    // From this thread: it has run when the call returns, or soon after.
    domain.signal(at + 200).unwrap();
    spin_until("the handler was called", || {
        board.count.load(Ordering::SeqCst) == 101
    });
    assert!(listener.off(handler).unwrap());
    assert_eq!(domain.signal(at).unwrap(), 0);
    assert!(!listener.off(handler).unwrap());
    drop(listener);
    assert_eq!(Arc::strong_count(&board), 1, "the handler was dropped");
}

#[test]
fn an_upcall_may_signal_itself_and_others() {
    let domain = Domain::private().unwrap();
    let segment = domain.make_segment(None, 4096).unwrap();
    let at = segment.address();
    let mut waits = domain.listen(ListenerOptions::default()).unwrap();
    let last = Arc::new(AtomicUsize::new(0));
    let notes = Arc::clone(&last);
    waits
        .on(at + 64..at + 65, move |address| {
            notes.store(address, Ordering::SeqCst);
        })
        .unwrap();
    let mut listener = domain.listen(ListenerOptions::default()).unwrap();
    let board = Arc::new(Board::default());
    let (writes, again) = (Arc::clone(&board), domain.clone());
    // SAFETY:
    // - Atomics, a system call and a signal.
    let delivery = unsafe { Delivery::upcall() };
    listener
        .on_by(delivery, at..at + 64, move |address| {
            writes.note(address);
            // The last one reaches the thread that sleeps.
            let _ = again.signal(address + 1);
        })
        .unwrap();
    std::thread::scope(|scope| {
        let slept = scope.spawn(|| waits.wait(PATIENCE));
        domain.signal(at).unwrap();
        spin_until("the handler was called", || {
            board.count.load(Ordering::SeqCst) == 64
        });
        assert!(slept.join().unwrap().is_some());
    });
    assert_eq!(board.seen(), (at..at + 64).collect::<Vec<_>>());
    assert_eq!(last.load(Ordering::SeqCst), at + 64);
}

#[test]
fn an_upcall_that_moves_away_loses_nothing() {
    let domain = Domain::private().unwrap();
    let segment = domain.make_segment(None, 1 << 16).unwrap();
    let at = segment.address();
    let mut to = domain
        .listen(ListenerOptions::default().depth(512))
        .unwrap();
    for _ in 0..50 {
        let mut from = domain.listen(ListenerOptions::default()).unwrap();
        let (board, handler) = interrupted(&mut from, at..at + 65_536);
        let sent = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for i in 0..100 {
                    assert_ne!(domain.signal(at + i).unwrap(), 0);
                    sent.store(i + 1, Ordering::SeqCst);
                }
            });
            spin_until("some were sent", || sent.load(Ordering::SeqCst) > 20);
            from.give(handler, &to.outbox()).unwrap();
        });
        to.poll();
        // One that was under way may come twice.
        let seen: BTreeSet<usize> = board.seen().into_iter().collect();
        assert_eq!(seen, (at..at + 100).collect());
        assert_eq!(from.dropped() + to.dropped(), 0);
        assert!(to.off(handler).unwrap());
    }
}

#[test]
fn an_upcall_ends_its_threads_wait() {
    let domain = Domain::private().unwrap();
    let segment = domain.make_segment(None, 4096).unwrap();
    let at = segment.address();
    for waiting in [Waiting::Sleep, Waiting::Adaptive, Waiting::Poll] {
        let options = ListenerOptions::default().waiting(waiting);
        let mut listener = domain.listen(options).unwrap();
        listener.on(at + 64..at + 65, |_| {}).unwrap();
        let (_, note) = listener.note(at..at + 64).unwrap();
        assert_eq!(listener.wait(Duration::from_millis(2)), None);
        // This thread is interrupted at any place between its look and its sleep.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for i in 0..3_000_u64 {
                    spin_until("it was noted", || note.count() == i);
                    for _ in 0..i * 7 % 2_000 {
                        std::hint::spin_loop();
                    }
                    assert_eq!(domain.signal(at).unwrap(), 1);
                }
            });
            while note.count() < 3_000 {
                let left = listener.wait(PATIENCE).expect("the wait ends");
                assert!(left <= PATIENCE, "{waiting:?}");
            }
        });
        // Of the last one this thread may know without having waited.
        listener.wait(Deadline::NOW);
        assert_eq!(listener.wait(Deadline::NOW), None, "{waiting:?}");
        // One that comes before the wait ends it at once, and none after it; what is waited
        // for still counts.
        domain.signal(at).unwrap();
        domain.signal(at).unwrap();
        spin_until("it was noted", || note.count() == 3_002);
        assert!(listener.wait(PATIENCE).is_some());
        assert_eq!(listener.wait(Deadline::NOW), None);
        domain.signal(at + 64).unwrap();
        assert_eq!(listener.wait(Duration::MAX), Some(Duration::MAX));
        assert_eq!(listener.wait(Deadline::NOW), None, "{waiting:?}");
    }
}

#[test]
fn an_upcall_ends_the_wait_of_another_thread_too() {
    let domain = Domain::private().unwrap();
    let segment = domain.make_segment(None, 64).unwrap();
    let at = segment.address();
    let options = ListenerOptions::default().waiting(Waiting::Sleep);
    let mut listener = domain.listen(options).unwrap();
    // On this thread; the other one waits.
    let (board, _) = interrupted(&mut listener, at..at + 64);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Several end one wait.
            while board.count.load(Ordering::SeqCst) < 1_000 {
                assert!(listener.wait(PATIENCE).is_some());
            }
        });
        for sent in 1..=1_000 {
            domain.signal(at).unwrap();
            spin_until("the handler was called", || {
                board.count.load(Ordering::SeqCst) == sent
            });
            if sent % 2 == 0 {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    });
    assert_eq!(board.on.load(Ordering::SeqCst), thread());
}

#[test]
fn upcalls_come_by_real_time_signals_only() {
    let domain = Domain::private().unwrap();
    let segment = domain.make_segment(None, 64).unwrap();
    let at = segment.address();
    let options = ListenerOptions::default().upcall_signal(libc::SIGUSR1);
    let mut listener = domain.listen(options).unwrap();
    // SAFETY:
    // - It does nothing.
    let delivery = unsafe { Delivery::upcall() };
    assert!(matches!(
        listener.on_by(delivery, at..at + 64, |_| {}),
        Err(SignalError::NotRealTime {
            signal: libc::SIGUSR1
        })
    ));
    assert_eq!(domain.signal(at).unwrap(), 0);
    let options = ListenerOptions::default().upcall_signal(libc::SIGRTMIN() + 5);
    let mut listener = domain.listen(options).unwrap();
    let (board, _) = interrupted(&mut listener, at..at + 64);
    domain.signal(at).unwrap();
    spin_until("the handler was called", || board.seen() == [at]);
}

#[test]
fn a_wait_set_waits_for_a_listener_beside_a_port_and_a_channel() {
    let domain = Domain::private().unwrap();
    let segment = domain.make_segment(None, 4096).unwrap();
    let at = segment.address();
    let mut set = WaitSet::new(&domain).unwrap();
    set.set_waiting(Waiting::Sleep);
    let port = domain.bind(PortOptions::unnamed()).unwrap();
    let right = port.make_send();
    let port = set.add(port).unwrap();
    let channel = domain.make_channel(&ChannelOptions::unnamed()).unwrap();
    let mut writer = channel.bind_writer().unwrap();
    let reader = channel.bind_reader(ReaderOptions::default()).unwrap();
    let reader = set.add(reader).unwrap();
    let mut listener = domain.listen(ListenerOptions::default()).unwrap();
    let seen = Arc::new(Mutex::new(vec![]));
    let notes = Arc::clone(&seen);
    let note = move |address| notes.lock().unwrap().push(address);
    listener.on(at..at + 64, note).unwrap();
    let listener = set.add(listener).unwrap();
    assert!(set.wait(Deadline::NOW).unwrap().is_empty());

    for round in 0..20 {
        std::thread::scope(|scope| {
            let (right, writer, domain) = (&right, &mut writer, &domain);
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(round % 3));
                match round % 4 {
                    0 => right
                        .send(Message::new(b"m").unwrap(), WhenFull::Fail)
                        .unwrap(),
                    1 => writer.write(b"u", Deadline::NOW).map(|_| ()).unwrap(),
                    _ => assert_eq!(domain.signal(at + 5).unwrap(), 1),
                }
            });
            let ready: Vec<_> = set.wait(PATIENCE).unwrap().collect();
            match round % 4 {
                0 => {
                    assert_eq!(ready, [port]);
                    let port = set.get_mut(port).unwrap();
                    let message = port.receive(Access::Later, Deadline::NOW).unwrap();
                    assert_eq!(message.header(), b"m");
                }
                1 => {
                    assert_eq!(ready, [reader]);
                    set.get_mut(reader).unwrap().receive(Deadline::NOW).unwrap();
                }
                _ => {
                    assert_eq!(ready, [listener]);
                    assert_eq!(set.get_mut(listener).unwrap().poll(), 1);
                }
            }
        });
    }
    assert_eq!(*seen.lock().unwrap(), [at + 5; 10]);
    assert!(set.get_mut(listener.of::<ReceiveRight>()).is_none());
    assert!(set.get_mut(port.of::<Listener>()).is_none());

    // As a descriptor.
    assert!(set.as_fd().try_clone_to_owned().is_ok());
    assert!(set.wait(Deadline::NOW).unwrap().is_empty());
    std::thread::scope(|scope| {
        scope.spawn(|| domain.signal(at + 6).unwrap());
        let end = Instant::now() + PATIENCE;
        loop {
            portolan_sys::process::poll(&[set.as_fd()], Some(end)).unwrap();
            if set.wait(Deadline::NOW).unwrap().next() == Some(listener.any()) {
                break;
            }
        }
    });
    // Out of the set it waits for itself again.
    let mut out = set.remove(listener).unwrap();
    assert!(set.remove(listener).is_none());
    assert_eq!(out.poll(), 1);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| out.wait(PATIENCE));
        std::thread::sleep(Duration::from_millis(5));
        domain.signal(at + 7).unwrap();
        assert!(waits.join().unwrap().is_some());
    });
    let elsewhere = Domain::private().unwrap();
    let stranger = elsewhere.listen(ListenerOptions::default()).unwrap();
    assert!(set.add(stranger).is_err());
}

/// The first hundred bytes of the segment, each of which one handler waits for.
fn signal_a_hundred(domain: &Domain) {
    let segment = domain.find_segment("here", PATIENCE).unwrap();
    for i in 0..100 {
        assert_eq!(domain.signal(segment.address() + i).unwrap(), 1);
    }
}

/// Threads that come and go with upcalls leave nothing behind.
#[test]
fn threads_may_end_before_their_upcalls() {
    let domain = Domain::private().unwrap();
    let segment = domain.make_segment(None, 4096).unwrap();
    let at = segment.address();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = SetOnDrop(&over);
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                domain.signal(at + 1).unwrap();
            }
        });
        for _ in 0..200 {
            let left = scope.spawn(|| {
                let mut listener = domain.listen(ListenerOptions::default()).unwrap();
                let (board, _) = interrupted(&mut listener, at..at + 64);
                spin_until("the handler was called", || {
                    board.count.load(Ordering::SeqCst) > 0
                });
                // Its thread ends before it is dropped.
                listener
            });
            drop(left.join().unwrap());
        }
    });
    assert_eq!(domain.signal(at + 1).unwrap(), 0);
}
