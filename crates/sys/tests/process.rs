//! Process descriptors, `/proc`, poll, and limits.

mod support;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use portolan_sys::machine;
use portolan_sys::probe::{Feature, Need};
use portolan_sys::process::{self, EventFd, PidFd, Ready, Signal};
use support::Reaped;

/// A process that does nothing.
fn sleeper() -> Reaped {
    Reaped(
        Command::new("sleep")
            .arg("1000")
            .stdin(Stdio::null())
            .spawn()
            .unwrap(),
    )
}

#[test]
fn a_stopped_process_is_alive_and_a_zombie_is_dead() {
    let mut child = sleeper();
    let pidfd = PidFd::open(child.0.id()).unwrap();
    process::signal(&pidfd, Signal::STOP).unwrap();
    assert!(!pidfd.is_dead());
    process::signal(&pidfd, Signal::KILL).unwrap();
    // Not waited for: the death alone makes the descriptor readable.
    let ready = process::poll(&[pidfd.as_fd()], None).unwrap();
    assert!(ready[0].readable);
    assert!(pidfd.is_dead());
    assert_eq!(child.0.wait().unwrap().signal(), Some(libc::SIGKILL));
    assert!(pidfd.is_dead());
    assert!(process::signal(&pidfd, Signal::KILL).is_err());
    assert!(PidFd::open(0).is_err());
    assert!(PidFd::open(u32::MAX).is_err());
}

#[test]
fn proc_names_a_process() {
    let child = sleeper();
    let ours = process::start_time(std::process::id()).unwrap();
    assert!(process::start_time(child.0.id()).unwrap() >= ours);
    assert_eq!(process::start_time(u32::MAX), None);
    assert_eq!(process::comm(u32::MAX), None);
    assert!(process::comm(std::process::id()).is_some());
}

#[test]
fn poll_tells_readable_hung_up_and_invalid_apart() {
    let quiet = EventFd::new().unwrap();
    let loud = EventFd::new().unwrap();
    loud.notify().unwrap();
    let (read, write) = rustix::pipe::pipe().unwrap();
    drop(write);
    // A descriptor that is only a place in the file system cannot be polled.
    let place = rustix::fs::open(
        "/",
        rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )
    .unwrap();
    let fds = [quiet.as_fd(), loud.as_fd(), read.as_fd(), place.as_fd()];
    let ready = process::poll(&fds, None).unwrap();
    assert_eq!(ready[0], Ready::default());
    assert_eq!(
        ready[1],
        Ready {
            readable: true,
            ..Ready::default()
        }
    );
    assert_eq!(
        ready[2],
        Ready {
            hangup: true,
            ..Ready::default()
        }
    );
    assert_eq!(
        ready[3],
        Ready {
            invalid: true,
            ..Ready::default()
        }
    );
    let soon = Some(Instant::now() + Duration::from_millis(5));
    assert!(!process::poll(&[quiet.as_fd()], soon).unwrap()[0].any());
    // A deadline that has passed is one look.
    assert!(process::poll(&[loud.as_fd()], Some(Instant::now())).unwrap()[0].readable);
}

#[test]
fn a_forked_child_lets_go_of_what_it_was_told_to() {
    let (read, write) = rustix::pipe::pipe().unwrap();
    let number = write.as_raw_fd();
    let guards: Vec<_> = (0..200)
        .map(|_| portolan_sys::fork::close_in_child(number))
        .collect();
    let before = portolan_sys::fork::generation();
    assert_eq!(before, 0);
    let answer = support::in_fork(|| {
        if portolan_sys::fork::generation() != 1 || !portolan_sys::fork::in_child() {
            return 1;
        }
        // SAFETY:
        // - The number stays taken in the child, by a descriptor that is good for nothing.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        if rustix::io::fcntl_getfd(fd).is_err() {
            return 2;
        }
        if rustix::io::write(fd, b"x") == Err(rustix::io::Errno::BADF) {
            0
        } else {
            3
        }
    });
    assert_eq!(answer, 0);
    assert!(!portolan_sys::fork::in_child());
    drop(guards);
    let answer = support::in_fork(|| match rustix::io::write(&write, b"x") {
        Ok(1) => 0,
        _ => 1,
    });
    assert_eq!(answer, 0);
    let mut byte = [0];
    assert_eq!(rustix::io::read(&read, &mut byte), Ok(1));
}

#[test]
fn a_thread_stays_where_it_is_pinned() {
    let (cpus, spins) = (machine::cpus_allowed(), machine::spin_hint());
    let cpu = *cpus.last().unwrap();
    let pinned = std::thread::spawn(move || {
        machine::pin(cpu).unwrap();
        (
            machine::cpus_allowed(),
            machine::spin_hint(),
            rustix::thread::sched_getcpu(),
        )
    });
    assert_eq!(pinned.join().unwrap(), (vec![cpu], spins, cpu));
    assert_eq!(machine::cpus_allowed(), cpus);
    assert!(machine::pin(usize::MAX).is_err());
    assert!(machine::pin(1023).is_err());
}

#[test]
fn the_machine_has_some_of_everything() {
    let machine = machine::describe();
    assert!(machine.cpus >= machine.cpus_allowed);
    assert!(machine.memory > 0);
    let limit = machine::default_limit();
    assert!(limit > 0 && limit <= machine.memory / 2, "{limit}");
    assert!(machine::resident_bytes().unwrap() > 0);
    assert!(machine::rlimit_nofile().soft.is_none_or(|limit| limit > 0));
    assert_eq!(machine.to_string().lines().count(), 5);
}

#[test]
fn processor_time_is_counted() {
    let before = machine::cpu_time();
    let mut sum = 0_u64;
    while machine::cpu_time() == before {
        sum = std::hint::black_box(sum + 1);
    }
    assert!(machine::cpu_time() > before);
    // Children count once they have been waited for.
    let children = machine::children_cpu_time();
    let count = "i=0; while [ $i -lt 99999 ]; do i=$((i+1)); done";
    assert!(
        Command::new("sh")
            .args(["-c", count])
            .status()
            .unwrap()
            .success()
    );
    assert!(machine::children_cpu_time() > children);
}

#[test]
fn every_probe_answers() {
    let features = portolan_sys::probe::probe();
    for feature in &features {
        assert!(
            !feature.detail.is_empty() && !feature.without.is_empty(),
            "{feature:?}"
        );
    }
    // Portolan does not run at all without these.
    let required = features.iter().filter(|f| f.need == Need::Required);
    let required: Vec<_> = required.map(|f| (f.name, f.present)).collect();
    let expected = ["memfd seals", "MAP_FIXED_NOREPLACE", "pidfd"];
    assert_eq!(required, expected.map(|name| (name, true)));
    for feature in &features {
        if let Need::Alternative(other) = feature.need {
            assert!(features.iter().any(|f| f.name == other), "{feature:?}");
        }
    }
}

#[test]
fn a_mechanism_is_missed_where_nothing_stands_in_for_it() {
    let feature = |name, present, need| Feature {
        name,
        present,
        detail: String::new(),
        without: "",
        need,
    };
    let missed = |features: &[Feature]| -> Vec<&str> {
        let missed = features.iter().filter(|f| f.is_missed(features));
        missed.map(|f| f.name).collect()
    };
    let mut features = [
        feature("wanted", false, Need::Wanted),
        feature("one", false, Need::Alternative("other")),
        feature("other", true, Need::Alternative("one")),
        feature("unused", false, Need::Unused),
    ];
    assert_eq!(missed(&features), ["wanted"]);
    features[2].present = false;
    assert_eq!(missed(&features), ["wanted", "one", "other"]);
    features[0].present = true;
    assert_eq!(missed(&features), ["one", "other"]);
}
