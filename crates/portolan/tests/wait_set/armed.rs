//! Sets that a thread sleeps on by a system call of its own.

use crate::{Fixture, PATIENCE, drain, readable, send, soon};
use portolan::{Access, Deadline, PortOptions, Ready, SendRight, WaitSet, WhenFull};
use portolan_sys::process::{EventFd, On, Poller};
use portolan_testkit::SetOnDrop;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Keys of what is slept on.
const WORD: u64 = 1;
const DESCRIPTOR: u64 = 2;
const OTHER: u64 = 3;

/// Pollers of both kinds.
fn pollers() -> [Poller; 2] {
    [Poller::new().unwrap(), Poller::with_threads().unwrap()]
}

/// Sleeps until something is at a port of the set, or `other` is readable.
fn wait(set: &mut WaitSet, poller: &mut Poller, other: &EventFd) -> Ready {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(armed) = set.arm().unwrap() {
            let mut on = vec![
                (WORD, On::Word(armed.word, armed.value)),
                (OTHER, On::Descriptor(other.as_fd())),
            ];
            on.extend(armed.descriptor.map(|fd| (DESCRIPTOR, On::Descriptor(fd))));
            let by = armed.until.into_iter().chain([end]).min();
            if poller.poll(&on, by).unwrap().contains(&OTHER) {
                other.drain().unwrap();
            }
        }
        let ready = set.wait(Deadline::NOW).unwrap();
        if !ready.is_empty() {
            return ready;
        }
        assert!(Instant::now() < end, "a wake was lost");
    }
}

#[test]
fn all_that_comes_ends_the_sleep() {
    for mut poller in pollers() {
        let mut f = Fixture::new(20);
        let other = EventFd::new().unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let ends = SetOnDrop(&over);
            for rights in f.rights.chunks(10) {
                let rights: Vec<SendRight> = rights.iter().map(|(_, it)| it.clone()).collect();
                scope.spawn(move || {
                    for n in 0..400 {
                        send(&rights[n % 10], "one of many");
                        if n % 50 == 0 {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                    }
                });
            }
            // Wakes for something else, with the word in the kernel all the time.
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    other.notify().unwrap();
                    std::thread::sleep(Duration::from_micros(50));
                }
            });
            let mut came = 0;
            while came < 800 {
                let ready = wait(&mut f.set, &mut poller, &other);
                came += drain(&mut f.set, ready).len();
            }
            drop(ends);
            assert_eq!(came, 800);
        });
        assert!(f.set.wait(Deadline::NOW).unwrap().is_empty());
    }
}

/// What rings a word, and what is due.
#[test]
fn room_in_a_port_and_the_time_of_a_request_end_the_sleep() {
    for mut poller in pollers() {
        let mut f = Fixture::new(1);
        let other = EventFd::new().unwrap();
        let options = PortOptions::unnamed().queue(3);
        let mut full = f.domain.bind(options.clone()).unwrap();
        let right = full.make_send();
        while right.send(Default::default(), WhenFull::Fail).is_ok() {}
        let room = f.set.add(right.room()).unwrap();
        for _ in 0..3 {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(2));
                    while full.receive(Access::Later, Deadline::NOW).is_ok() {}
                });
                let mut ready = wait(&mut f.set, &mut poller, &other);
                assert_eq!(ready.next(), Some(room.any()));
            });
            while right.send(Default::default(), WhenFull::Fail).is_ok() {}
        }
        assert!(f.set.remove(room).is_some());
        let server = f.domain.bind(options.synchronous()).unwrap();
        let asks = server.make_send();
        let pending = asks.begin_request(Default::default(), WhenFull::Fail);
        let due = Deadline::after(Duration::from_millis(5));
        let pending = f.set.add(pending.unwrap().with_deadline(due)).unwrap();
        let mut ready = wait(&mut f.set, &mut poller, &other);
        assert_eq!(ready.next(), Some(pending.any()));
    }
}

/// Its descriptor is as that of any set again, once it is asked for.
#[test]
fn a_set_goes_back_to_its_descriptor() {
    let mut f = Fixture::new(2);
    assert!(f.set.arm().unwrap().is_some());
    f.send(0, "one");
    assert!(f.set.arm().unwrap().is_none());
    let fd = f.set.as_fd().try_clone_to_owned().unwrap();
    let ready = f.set.wait(Deadline::NOW).unwrap();
    assert!(readable(&f.set, Deadline::NOW));
    assert_eq!(drain(&mut f.set, ready), ["one"]);
    assert!(f.now().is_empty());
    assert!(!readable(&f.set, Deadline::NOW));
    f.send(1, "two");
    assert!(readable(&f.set, soon()));
    drop(fd);
    let ready = f.set.wait(Deadline::NOW).unwrap();
    assert_eq!(drain(&mut f.set, ready), ["two"]);
}
