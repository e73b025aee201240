//! Upcalls: on their thread, one at a time, none lost, and beside other users of a signal.

use portolan_sys::process::{ThreadFd, thread};
use portolan_sys::upcall::{self, Callee, Upcall, default_signal};
use portolan_testkit::spin_until;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

#[derive(Clone, Default)]
struct Seen(Arc<Inner>);

#[derive(Default)]
struct Inner {
    calls: AtomicU64,
    on: AtomicU32,
    inside: AtomicBool,
    overlapped: AtomicBool,
}

impl Callee for Seen {
    fn run(&mut self) {
        let overlaps = self.0.inside.swap(true, Ordering::SeqCst);
        self.0.overlapped.fetch_or(overlaps, Ordering::SeqCst);
        assert!(upcall::is_running());
        self.0.on.store(thread(), Ordering::SeqCst);
        self.0.calls.fetch_add(1, Ordering::SeqCst);
        self.0.inside.store(false, Ordering::SeqCst);
    }
}

impl Seen {
    fn register(&self) -> Upcall<Self> {
        // SAFETY:
        // - Atomics and a system call.
        unsafe { Upcall::register(default_signal(), self.clone()) }.unwrap()
    }

    fn calls(&self) -> u64 {
        self.0.calls.load(Ordering::SeqCst)
    }
}

#[test]
fn it_runs_on_the_thread_that_registered_it() {
    let seen = Seen::default();
    let (ready, over) = (std::sync::Barrier::new(2), AtomicBool::new(false));
    let caller = std::sync::OnceLock::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let upcall = seen.register();
            caller.set(upcall.caller()).unwrap();
            ready.wait();
            spin_until("the signal has come", || over.load(Ordering::SeqCst));
        });
        ready.wait();
        let caller = caller.get().unwrap();
        caller.call().unwrap();
        spin_until("the signal has come", || seen.calls() == 1);
        assert_eq!(seen.0.on.load(Ordering::SeqCst), caller.thread());
        assert_ne!(caller.thread(), thread());
        assert!(!upcall::is_running());
        over.store(true, Ordering::SeqCst);
    });
    assert!(caller.get().unwrap().call().is_err() || seen.calls() == 1);
}

#[test]
fn a_call_during_a_change_is_made_up_for() {
    let seen = Seen::default();
    let mut upcall = seen.register();
    let caller = upcall.caller();
    // The signal is blocked meanwhile, and pending.
    upcall.with(|callee| {
        caller.call().unwrap();
        assert_eq!(callee.calls(), 0);
    });
    assert_eq!(seen.calls(), 1);
    // Changed by another thread: the handler finds the gate busy, and leaves a note.
    let (inside, go) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let upcall = &mut upcall;
        scope.spawn({
            let (inside, go) = (&inside, &go);
            move || {
                upcall.with(|_| {
                    inside.store(true, Ordering::SeqCst);
                    spin_until("the signal has come", || go.load(Ordering::SeqCst));
                });
            }
        });
        spin_until("the signal has come", || inside.load(Ordering::SeqCst));
        caller.call().unwrap();
        assert_eq!(seen.calls(), 1);
        go.store(true, Ordering::SeqCst);
        spin_until("the signal has come", || seen.calls() == 2);
    });
    drop(upcall);
    caller.call().unwrap();
    assert_eq!(seen.calls(), 2);
}

#[test]
fn many_calls_never_run_twice_at_once() {
    let seen = Seen::default();
    let (over, registered) = (AtomicBool::new(false), std::sync::OnceLock::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut upcall = seen.register();
            registered.set(upcall.caller()).unwrap();
            spin_until("the signal has come", || {
                upcall.with(|callee| {
                    assert!(!callee.0.inside.load(Ordering::SeqCst));
                });
                over.load(Ordering::SeqCst)
            });
        });
        spin_until("the signal has come", || registered.get().is_some());
        let caller = registered.get().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        // EAGAIN: too many are pending already.
                        let _ = caller.call();
                    }
                });
            }
        });
        let before = seen.calls();
        spin_until("the signal has come", || caller.call().is_ok());
        spin_until("the signal has come", || seen.calls() > before);
        over.store(true, Ordering::SeqCst);
    });
    assert!(!seen.0.overlapped.load(Ordering::SeqCst));
}

#[test]
fn a_signal_to_a_thread_carries_a_value() {
    // Another signal than the other tests': this one's handler sees all of them.
    let signal = default_signal() - 1;
    let value = Arc::new(AtomicUsize::new(0));
    let keeps = Arc::clone(&value);
    let action = move |info: &libc::siginfo_t| {
        // SAFETY:
        // - The sender filled it.
        let carried = unsafe { info.si_value() };
        keeps.store(carried.sival_ptr.addr(), Ordering::SeqCst);
    };
    // SAFETY:
    // - A store.
    unsafe { signal_hook_registry::register_sigaction(signal, action) }.unwrap();
    let Ok(own) = ThreadFd::open(thread()) else {
        return; // before Linux 6.9
    };
    own.check().unwrap();
    own.send(signal, 0x1234_5678_9abc).unwrap();
    spin_until("the signal has come", || {
        value.load(Ordering::SeqCst) == 0x1234_5678_9abc
    });
    let gone = std::thread::spawn(|| ThreadFd::open(thread()).unwrap());
    let gone = gone.join().unwrap();
    spin_until("the signal has come", || gone.is_gone());
    assert_eq!(
        gone.send(signal, 1).unwrap_err().raw_os_error(),
        Some(libc::ESRCH)
    );
}

#[test]
fn signals_that_nobody_may_handle_are_refused() {
    // SAFETY:
    // - As above.
    let refused = unsafe { Upcall::register(libc::SIGKILL, Seen::default()) };
    assert_eq!(
        refused.err().unwrap().kind(),
        std::io::ErrorKind::InvalidInput
    );
    assert!(!upcall::is_real_time(libc::SIGINT));
    assert!(upcall::is_real_time(default_signal()));
}
