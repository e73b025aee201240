//! Members that give names while others are stopped.
#![cfg(feature = "marks")]

mod victim;

use portolan::{Domain, PortOptions};
use portolan_sys::process::{PidFd, Signal, signal};
use std::process::Child;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use victim::{role, spawn};

const PATIENCE: Duration = Duration::from_secs(60);
/// Long enough for another thread to fall asleep. Were it not, the test would see nothing.
const MOMENT: Duration = Duration::from_millis(300);

static STOPS_AT: OnceLock<String> = OnceLock::new();

/// The other process; nothing, when it is run as a test.
#[test]
fn other() {
    let Some([domain, port, mark]) = role() else {
        return;
    };
    let domain = Domain::join(&domain).unwrap();
    STOPS_AT.set(mark).unwrap();
    portolan_shm::mark::install(|mark| {
        if STOPS_AT.get().is_some_and(|stops_at| stops_at == mark) {
            // SAFETY:
            // - Sends a signal to ourselves; nothing is touched.
            unsafe { libc::raise(libc::SIGSTOP) };
        }
    });
    let _port = domain.bind(PortOptions::named(&port)).unwrap();
    loop {
        std::thread::park();
    }
}

fn wait_until_stopped(child: &Child) {
    let end = Instant::now() + PATIENCE;
    let stat = format!("/proc/{}/stat", child.id());
    while !std::fs::read_to_string(&stat).unwrap().contains(") T ") {
        assert!(Instant::now() < end, "it is not stopped");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn who_is_stopped_before_it_takes_the_lock_on_names_holds_up_nobody() {
    let name = format!("naming-{}", std::process::id());
    let domain = Domain::join(&name).unwrap();
    let mut holder = spawn("other", &[&name, "first", "bind.names_locked"]);
    wait_until_stopped(&holder);
    // It falls asleep for the lock, and stops as soon as it is woken.
    let mut first = spawn("other", &[&name, "second", "bind.names_awaited"]);
    let end = Instant::now() + PATIENCE;
    while domain.survey().unwrap().spaces.len() < 3 {
        assert!(Instant::now() < end, "it does not join");
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(MOMENT);
    let second = std::thread::spawn({
        let domain = domain.clone();
        move || {
            let bound = domain.bind(PortOptions::named("third"));
            (bound.map(drop), Instant::now())
        }
    });
    std::thread::sleep(MOMENT);
    let released = Instant::now();
    signal(&PidFd::open(holder.id()).unwrap(), Signal::CONT).unwrap();
    wait_until_stopped(&first);
    let (bound, at) = second.join().unwrap();
    bound.unwrap();
    let waited = at - released;
    assert!(waited < Duration::from_secs(3), "it waited for {waited:?}");
    for child in [&mut holder, &mut first] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
