//! Futexes, and the bell that makes one pollable.

mod support;

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use portolan_sys::bell::{FutexFd, Kind};
use portolan_sys::futex::{self, Wake};
use portolan_sys::process;
use portolan_sys::shared::Window;
use rustix::event::epoll;

fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_millis(10))
}

#[test]
fn a_sleeper_that_missed_the_change_does_not_sleep() {
    let word = AtomicU32::new(1);
    assert_eq!(futex::wait(&word, 0, None), Wake::Changed);
    assert_eq!(futex::wait(&word, 1, soon()), Wake::TimedOut);
    assert_eq!(futex::wait(&word, 1, Some(Instant::now())), Wake::TimedOut);
    assert_eq!(futex::wake(&word, u32::MAX), 0);
}

#[test]
fn a_sleeper_is_woken_from_another_process() {
    if let Some(role) = support::role() {
        let window = Window::from_fd(support::open_role(&role)).unwrap();
        // The parent says when it is about to sleep; it may not be asleep yet.
        while window.word32(1).load(Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }
        window.word32(0).store(1, Ordering::Release);
        futex::wake(window.word32(0), 1);
        return;
    }
    let window = Window::create(4096).unwrap();
    let role = support::fd_role(window.fd());
    let mut child = support::child("a_sleeper_is_woken_from_another_process", &role)
        .spawn()
        .unwrap();
    window.word32(1).store(1, Ordering::Release);
    while window.word32(0).load(Ordering::Acquire) == 0 {
        // Never for ever: a lost wake-up hangs the test.
        let _ = futex::wait(window.word32(0), 0, None);
    }
    assert!(child.wait().unwrap().success());
}

/// A bell of each kind that this machine has.
fn bells() -> Vec<FutexFd> {
    let ring = FutexFd::with_ring().inspect_err(|error| eprintln!("no ring: {error}"));
    let thread = FutexFd::with_thread().inspect_err(|error| eprintln!("no thread: {error}"));
    let bells: Vec<_> = [ring, thread].into_iter().flatten().collect();
    assert!(!bells.is_empty());
    bells
}

fn readable(bell: &FutexFd, deadline: Option<Instant>) -> bool {
    process::poll(&[bell.as_fd()], deadline).unwrap()[0].readable
}

#[test]
fn the_best_bell_is_taken() {
    let best = FutexFd::new().unwrap().kind();
    assert_eq!(best == Kind::Ring, FutexFd::with_ring().is_ok());
}

#[test]
fn a_bell_rings_at_once_if_the_word_has_changed() {
    let word = AtomicU32::new(5);
    for mut bell in bells() {
        bell.arm(&word, 4).unwrap();
        assert!(readable(&bell, None));
        assert!(bell.drain().unwrap());
        assert!(!readable(&bell, soon()));
        assert!(!bell.drain().unwrap());
    }
}

#[test]
fn a_bell_rings_when_its_word_is_woken_and_not_before() {
    let (word, other) = (AtomicU32::new(0), AtomicU32::new(0));
    for mut bell in bells() {
        for round in 0..100 {
            bell.arm(&word, round).unwrap();
            assert!(!bell.drain().unwrap());
            futex::wake(&other, u32::MAX);
            if round % 50 == 0 {
                assert!(!readable(&bell, soon()), "{:?}", bell.kind());
            }
            word.store(round + 1, Ordering::Release);
            futex::wake(&word, 1);
            assert!(readable(&bell, None));
            assert!(bell.drain().unwrap());
            assert!(!readable(&bell, Some(Instant::now())), "{:?}", bell.kind());
        }
        word.store(0, Ordering::Release);
    }
}

#[test]
fn arming_again_forgets_the_word_before() {
    let (old, new) = (AtomicU32::new(0), AtomicU32::new(0));
    for mut bell in bells() {
        for _ in 0..100 {
            bell.arm(&old, 0).unwrap();
            bell.arm(&new, 0).unwrap();
            futex::wake(&old, u32::MAX);
            assert!(!bell.drain().unwrap());
            assert!(!readable(&bell, Some(Instant::now())), "{:?}", bell.kind());
        }
        // Also a ring that came already and was not drained.
        bell.arm(&old, 1).unwrap();
        assert!(readable(&bell, None));
        bell.arm(&new, 0).unwrap();
        assert!(!readable(&bell, soon()), "{:?}", bell.kind());
        assert!(!bell.drain().unwrap());
        // And the new one works. A helper may not be asleep yet, so the word changes too.
        new.store(1, Ordering::Release);
        futex::wake(&new, 1);
        assert!(readable(&bell, None));
        new.store(0, Ordering::Release);
    }
}

#[test]
fn a_bell_can_be_dropped_while_it_waits() {
    let word = AtomicU32::new(0);
    for mut bell in bells() {
        bell.arm(&word, 0).unwrap();
        drop(bell);
    }
    // No thread sleeps on the word any more. A ring is taken down in the background.
    while futex::wake(&word, u32::MAX) > 0 {
        std::thread::yield_now();
    }
}

/// Each wakes one sleeper, which is to be another one than the bell.
#[test]
fn a_bell_that_was_disarmed_or_dropped_takes_no_wake() {
    let word = AtomicU32::new(0);
    for mut bell in bells() {
        for _ in 0..100 {
            bell.arm(&word, 0).unwrap();
            bell.disarm().unwrap();
            assert_eq!(futex::wake(&word, 1), 0);
            // Nothing to be disarmed.
            bell.disarm().unwrap();
            assert!(!readable(&bell, Some(Instant::now())));
        }
        // One that has fired.
        bell.arm(&word, 1).unwrap();
        assert!(readable(&bell, None));
        bell.disarm().unwrap();
        assert!(!readable(&bell, Some(Instant::now())) && !bell.drain().unwrap());
        bell.arm(&word, 0).unwrap();
        drop(bell);
        assert_eq!(futex::wake(&word, 1), 0);
    }
}

#[test]
fn an_idle_bell_uses_no_processor() {
    let word = AtomicU32::new(0);
    let mut bells = bells();
    for bell in &mut bells {
        bell.arm(&word, 0).unwrap();
    }
    std::thread::sleep(Duration::from_millis(20));
    // A helper that spins would never be found asleep.
    let asleep = |name: &str| {
        let tasks = std::fs::read_dir("/proc/self/task")
            .unwrap()
            .filter_map(Result::ok);
        let mut named = tasks.filter(|task| {
            let comm = std::fs::read_to_string(task.path().join("comm"));
            comm.is_ok_and(|comm| comm.trim() == name)
        });
        named.any(|task| {
            std::fs::read_to_string(task.path().join("stat"))
                .is_ok_and(|stat| stat.contains(") S "))
        })
    };
    if bells.iter().any(|bell| bell.kind() == Kind::Thread) {
        while !asleep("portolan-bell") {
            std::thread::yield_now();
        }
    }
}

#[test]
fn epoll_wakes_for_a_bell_that_another_process_fires() {
    let test = "epoll_wakes_for_a_bell_that_another_process_fires";
    if let Some(role) = support::role() {
        let window = Window::from_fd(support::open_role(&role)).unwrap();
        for round in 1..=50 {
            window.word32(0).store(round, Ordering::Release);
            futex::wake(window.word32(0), 1);
            while window.word32(1).load(Ordering::Acquire) != round {
                std::thread::yield_now();
            }
        }
        return;
    }
    for mut bell in bells() {
        let window = Window::create(4096).unwrap();
        let waiter = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let data = epoll::EventData::new_u64(1);
        epoll::add(&waiter, &bell, data, epoll::EventFlags::IN).unwrap();
        bell.arm(window.word32(0), 0).unwrap();
        let mut child = support::child(test, &support::fd_role(window.fd()))
            .spawn()
            .unwrap();
        let mut seen = 0;
        while seen < 50 {
            let mut events = [std::mem::MaybeUninit::uninit(); 4];
            match epoll::wait(&waiter, &mut events, None) {
                // The completion of a ring's wait may end the call like a signal.
                Err(rustix::io::Errno::INTR) => continue,
                other => assert_eq!(other.unwrap().0.len(), 1),
            }
            assert!(bell.drain().unwrap());
            seen = window.word32(0).load(Ordering::Acquire);
            window.word32(1).store(seen, Ordering::Release);
            bell.arm(window.word32(0), seen).unwrap();
        }
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn a_bell_armed_by_a_thread_that_ended_still_fires() {
    let word = AtomicU32::new(0);
    for bell in bells() {
        let mut bell = std::thread::scope(|scope| {
            let mut bell = bell;
            let armed = scope.spawn(|| {
                bell.arm(&word, 0).unwrap();
                bell
            });
            armed.join().unwrap()
        });
        word.store(1, Ordering::Release);
        futex::wake(&word, 1);
        assert!(readable(&bell, None));
        assert!(bell.drain().unwrap());
        word.store(0, Ordering::Release);
    }
}

#[test]
fn a_bell_survives_the_word() {
    for mut bell in bells() {
        let window = Window::create(4096).unwrap();
        bell.arm(window.word32(0), 0).unwrap();
        drop(window);
        let word = AtomicU32::new(1);
        bell.arm(&word, 0).unwrap();
        assert!(readable(&bell, None));
        assert!(bell.drain().unwrap());
    }
}

#[test]
fn a_forked_child_can_neither_use_nor_break_a_bell() {
    let word = AtomicU32::new(0);
    for mut bell in bells() {
        bell.arm(&word, 0).unwrap();
        let answer = support::in_fork(|| {
            // SAFETY:
            // - The child's copy, dropped once; the child exits without dropping it again.
            let mut copy = unsafe { std::ptr::read(&bell) };
            let refused = copy.arm(&word, 0).is_err() && copy.drain().is_err();
            drop(copy);
            u8::from(!refused)
        });
        assert_eq!(answer, 0);
        word.store(1, Ordering::Release);
        futex::wake(&word, 1);
        assert!(readable(&bell, None));
        word.store(0, Ordering::Release);
    }
}
