//! The host is stopped, and the other members let newcomers in.

use crate::child::{Child, unique, until};
use portolan::{Domain, JoinError};
use std::time::{Duration, Instant};

/// Steps of the member that admits a newcomer.
#[cfg(feature = "marks")]
const ADMISSION: [&str; 4] = [
    "join.accepted",
    "join.claimed",
    "join.reserved",
    "join.welcomed",
];

/// No space is lost: as many processes as may join get the lowest numbers that `taken` leaves.
#[track_caller]
fn all_others_are_free(name: &str, taken: &[u8]) {
    let free: Vec<u8> = (1..).filter(|s| !taken.contains(s)).take(3).collect();
    let mut got = Vec::new();
    until(&format!("{free:?} are free: {got:?}"), || {
        let mut probes: Vec<Child> = (0..3).map(|_| Child::joined(name)).collect();
        got = probes.iter_mut().map(Child::space).collect();
        got.sort_unstable();
        probes.iter_mut().for_each(|p| drop(p.ask("leave")));
        got == free
    });
}

fn spaces(members: &mut [&mut Child]) -> Vec<u8> {
    let mut spaces: Vec<u8> = members.iter_mut().map(|m| m.space()).collect();
    spaces.sort_unstable();
    let count = spaces.len();
    spaces.dedup();
    assert_eq!(spaces.len(), count, "{spaces:?}");
    spaces
}

#[test]
fn newcomers_join_beside_a_stopped_host_and_work_with_the_others() {
    let name = unique("beside");
    let mut host = Child::joined(&name);
    let mut second = Child::joined(&name);
    assert_eq!(second.ask("bind inbox"), "done");
    host.stop();
    let mut newcomer = Child::new();
    assert_eq!(newcomer.ask(&format!("join {name}")), "space 3");
    assert_eq!(newcomer.ask("connect inbox"), "done");
    assert_eq!(newcomer.ask("send 10000"), "done");
    assert_eq!(second.ask("receive"), "10000 bytes");
    assert_eq!(newcomer.ask("bind back"), "done");
    assert_eq!(second.ask("connect back"), "done");
    assert_eq!(second.ask("send 20000"), "done");
    assert_eq!(newcomer.ask("receive"), "20000 bytes");
    // One that a newcomer has admitted, or the second.
    let mut another = Child::joined(&name);
    assert_eq!(another.space(), 4);
    // A timeout is no death.
    assert!(!second.is_host() && !newcomer.is_host() && !another.is_host());
    host.resume();
    assert!(host.is_host());
    // The host has got to know them: it reclaims who dies, and lets go of who leaves.
    assert_eq!(newcomer.ask("leave"), "Ok(())");
    another.kill();
    all_others_are_free(&name, &[1, 2]);
    assert!(host.is_host());
}

#[test]
fn who_dies_or_leaves_while_the_host_is_stopped_is_reclaimed_when_it_goes_on() {
    let name = unique("meanwhile");
    let host = Child::joined(&name);
    let mut second = Child::joined(&name);
    let mut third = Child::joined(&name);
    host.stop();
    let mut newcomers = [
        Child::joined(&name),
        Child::joined(&name),
        Child::joined(&name),
    ];
    let mut all = newcomers.each_mut().map(Child::space);
    all.sort_unstable();
    assert_eq!(all, [4, 5, 6]);
    assert_eq!(newcomers[0].ask("bind inbox"), "done");
    let [dies, leaves, stays] = &mut newcomers;
    let stays_in = stays.space();
    dies.kill();
    third.kill();
    leaves.tell("leave");
    std::thread::sleep(Duration::from_millis(100));
    host.resume();
    assert_eq!(leaves.answer(), "Ok(())");
    all_others_are_free(&name, &[1, 2, stays_in]);
    assert_eq!(second.ask("bind inbox"), "done");
}

#[test]
fn a_newcomer_beside_a_stopped_host_becomes_host_when_all_others_are_gone() {
    let name = unique("heir");
    let mut host = Child::joined(&name);
    let mut second = Child::joined(&name);
    host.stop();
    let mut newcomer = Child::joined(&name);
    second.kill();
    assert!(!newcomer.is_host());
    host.kill();
    until("the newcomer hosts", || newcomer.is_host());
    let space = newcomer.space();
    all_others_are_free(&name, &[space]);
}

#[test]
fn a_host_that_dies_while_it_is_stopped_is_succeeded_with_all_whom_others_admitted() {
    let name = unique("succeeded");
    let mut host = Child::joined(&name);
    let mut second = Child::joined(&name);
    host.stop();
    let mut newcomers = [Child::joined(&name), Child::joined(&name)];
    newcomers[0].kill();
    host.kill();
    let [_, alive] = &mut newcomers;
    until("somebody hosts", || second.is_host() || alive.is_host());
    let taken = spaces(&mut [&mut second, alive]);
    all_others_are_free(&name, &taken);
}

/// The kernel's backlog holds what a stopped host does not accept; what comes there from a
/// process that has joined meanwhile is not admitted a second time.
#[test]
fn a_host_that_goes_on_admits_nobody_twice() {
    let name = unique("twice");
    let mut host = Child::joined(&name);
    let mut second = Child::joined(&name);
    for _ in 0..3 {
        host.stop();
        let mut newcomers: Vec<Child> = (0..3).map(|_| Child::new()).collect();
        for newcomer in &mut newcomers {
            newcomer.tell(&format!("join {name}"));
        }
        // In the midst of it, or before, or after.
        std::thread::sleep(Duration::from_millis(1000));
        host.resume();
        for newcomer in &mut newcomers {
            let answer = newcomer.answer();
            assert!(answer.starts_with("space "), "{answer}");
        }
        let mut all: Vec<&mut Child> = newcomers.iter_mut().chain([&mut second]).collect();
        all.push(&mut host);
        let taken = spaces(&mut all);
        all_others_are_free(&name, &taken);
    }
}

#[cfg(feature = "marks")]
#[test]
fn the_host_is_stopped_at_every_step_of_an_admission() {
    for mark in ADMISSION {
        let name = unique("host-stops");
        let mut host = Child::joined(&name);
        let mut second = Child::joined(&name);
        assert_eq!(host.ask(&format!("stop once at {mark}")), "done");
        let mut newcomer = Child::new();
        newcomer.tell(&format!("join {name}"));
        host.stopped();
        let answer = newcomer.answer();
        assert!(answer.starts_with("space "), "{mark}: {answer}");
        assert_eq!(newcomer.ask("bind inbox"), "done");
        assert_eq!(second.ask("connect inbox"), "done");
        assert_eq!(second.ask("send 5000"), "done");
        assert_eq!(newcomer.ask("receive"), "5000 bytes", "{mark}");
        host.resume();
        let taken = spaces(&mut [&mut host, &mut second, &mut newcomer]);
        all_others_are_free(&name, &taken);
        newcomer.kill();
        all_others_are_free(&name, &[1, 2]);
        assert!(host.is_host());
    }
}

#[cfg(feature = "marks")]
#[test]
fn a_member_dies_at_every_step_of_an_admission_beside_a_stopped_host() {
    for mark in ADMISSION {
        let name = unique("member-dies");
        let mut host = Child::joined(&name);
        let mut second = Child::joined(&name);
        host.stop();
        assert_eq!(second.ask(&format!("die at {mark}")), "done");
        let mut newcomer = Child::new();
        newcomer.tell(&format!("join {name}"));
        until(&format!("it dies at {mark}"), || second.ended());
        host.resume();
        let answer = newcomer.answer();
        assert!(answer.starts_with("space "), "{mark}: {answer}");
        let taken = spaces(&mut [&mut host, &mut newcomer]);
        all_others_are_free(&name, &taken);
        newcomer.kill();
        all_others_are_free(&name, &[1]);
    }
}

/// A newcomer waits for no member that is stopped: another one lets it in.
#[cfg(feature = "marks")]
#[test]
fn a_member_is_stopped_at_every_step_of_an_admission_beside_a_stopped_host() {
    for mark in ADMISSION {
        let name = unique("member-stops");
        let mut host = Child::joined(&name);
        let mut second = Child::joined(&name);
        let mut third = Child::joined(&name);
        assert_eq!(second.ask(&format!("stop once at {mark}")), "done");
        host.stop();
        // So that it is the second one that accepts.
        third.stop();
        let mut newcomer = Child::new();
        newcomer.tell(&format!("join {name}"));
        second.stopped();
        third.resume();
        let answer = newcomer.answer();
        assert!(answer.starts_with("space "), "{mark}: {answer}");
        assert_eq!(newcomer.ask("bind inbox"), "done");
        assert_eq!(third.ask("connect inbox"), "done");
        assert_eq!(third.ask("send 5000"), "done");
        assert_eq!(newcomer.ask("receive"), "5000 bytes", "{mark}");
        second.resume();
        host.resume();
        let taken = spaces(&mut [&mut host, &mut second, &mut third, &mut newcomer]);
        all_others_are_free(&name, &taken);
        newcomer.kill();
        all_others_are_free(&name, &[1, 2, 3]);
        assert!(host.is_host());
    }
}

/// Both then admit: the host goes on while a member is in the midst of it.
#[cfg(feature = "marks")]
#[test]
fn the_host_goes_on_at_every_step_of_a_members_admission() {
    for mark in ADMISSION {
        let name = unique("host-goes-on");
        let mut host = Child::joined(&name);
        let mut second = Child::joined(&name);
        host.stop();
        assert_eq!(second.ask(&format!("stop once at {mark}")), "done");
        let mut newcomer = Child::new();
        newcomer.tell(&format!("join {name}"));
        second.stopped();
        host.resume();
        let answer = newcomer.answer();
        assert!(answer.starts_with("space "), "{mark}: {answer}");
        let mut another = Child::joined(&name);
        second.resume();
        let taken = spaces(&mut [&mut host, &mut second, &mut newcomer, &mut another]);
        all_others_are_free(&name, &taken);
        newcomer.kill();
        another.kill();
        all_others_are_free(&name, &[1, 2]);
    }
}

#[cfg(feature = "marks")]
#[test]
fn a_newcomer_dies_at_every_step_of_joining_beside_a_stopped_host() {
    let marks = [
        "join.answered",
        "join.mapped",
        "join.returning",
        "join.live",
        "join.arrived",
    ];
    for mark in marks {
        let name = unique("newcomer-dies");
        let mut host = Child::joined(&name);
        let mut second = Child::joined(&name);
        host.stop();
        let mut newcomer = Child::new();
        assert_eq!(newcomer.ask(&format!("die at {mark}")), "done");
        newcomer.tell(&format!("join {name}"));
        until(&format!("the newcomer dies at {mark}"), || newcomer.ended());
        host.resume();
        all_others_are_free(&name, &[1, 2]);
        assert!(host.is_host() && !second.is_host());
    }
}

/// Other members wait for a member that is stopped while it binds a name only for that name.
#[cfg(feature = "marks")]
#[test]
fn a_member_that_is_stopped_at_every_step_of_a_named_bind_holds_up_no_other_name() {
    for mark in ["bind.name_announced", "bind.name_won", "bind.queue_open"] {
        let name = unique("named");
        let mut host = Child::joined(&name);
        let mut second = Child::joined(&name);
        assert_eq!(second.ask(&format!("stop once at {mark}")), "done");
        second.tell("bind inbox");
        second.stopped();
        assert_eq!(host.ask("bind another"), "done", "{mark}");
        let taken = host.ask("bind inbox");
        if mark == "bind.name_announced" {
            // Ours is the lower entry, or theirs.
            assert!(
                taken == "done" || taken.contains("bound already"),
                "{taken}"
            );
        } else {
            assert!(taken.contains("bound already, by space 2"), "{taken}");
        }
        let again = host.ask("bind inbox");
        assert!(again.contains("bound already"), "{mark}: {again}");
        second.resume();
        let bound = second.answer();
        assert_eq!(bound == "done", taken != "done", "{mark}: {bound}");
        let mut third = Child::joined(&name);
        assert_eq!(third.ask("connect inbox"), "done");
    }
}

#[test]
fn a_deadline_bounds_a_join() {
    let name = unique("deadline");
    let host = Child::joined(&name);
    host.stop();
    // Another thread of this process waits for the same domain, and longer.
    let longer = std::thread::spawn({
        let name = name.clone();
        move || {
            Domain::builder(&name)
                .deadline(crate::child::PATIENCE)
                .join()
        }
    });
    std::thread::sleep(Duration::from_millis(100));
    let began = Instant::now();
    let waited = Duration::from_millis(300);
    let joined = Domain::builder(&name).deadline(waited).join();
    assert!(
        matches!(joined, Err(JoinError::TimedOut { waited: w, .. }) if w == waited),
        "{joined:?}"
    );
    let took = began.elapsed();
    // Less than what a join without a deadline waits for a host that does not answer.
    assert!(took >= waited && took < Duration::from_secs(4), "{took:?}");
    host.resume();
    assert_eq!(longer.join().unwrap().unwrap().space(), 2);
}

#[test]
fn a_deadline_bounds_a_join_in_a_directory_that_somebody_has_locked() {
    let name = unique("locked");
    let directory = std::env::temp_dir().join(&name);
    std::fs::create_dir(&directory).unwrap();
    let lock = std::fs::File::open(&directory).unwrap();
    lock.lock().unwrap();
    let waited = Duration::from_millis(300);
    let builder = Domain::builder(&name).path(&directory);
    let joined = builder.clone().deadline(waited).join();
    assert!(
        matches!(joined, Err(JoinError::TimedOut { .. })),
        "{joined:?}"
    );
    drop(lock);
    assert_eq!(builder.join().unwrap().space(), 1);
    std::fs::remove_dir_all(&directory).unwrap();
}
