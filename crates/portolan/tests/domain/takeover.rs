//! The host dies, stops, or is succeeded at a bad moment.

use crate::child::{Child, PATIENCE, unique, until};
use portolan_abi::hello::{Answer, Hello, Welcome, socket_name};
use portolan_sys::socket::{self, Address};
use std::os::fd::OwnedFd;
use std::time::Instant;

/// A newcomer that says hello and never does anything about the welcome.
pub(crate) fn half_join(domain: &str) -> (OwnedFd, Welcome, Vec<OwnedFd>) {
    let name = socket_name(portolan_sys::process::user(), domain).unwrap();
    let connection = socket::connect(&Address::Abstract(name.into_bytes())).unwrap();
    let hello = Hello { name: [0; 64] };
    socket::send(&connection, &hello.encode(), &[]).unwrap();
    let mut buffer = [0; Answer::BYTES];
    let received =
        socket::receive_by(&connection, &mut buffer, 2, Some(Instant::now() + PATIENCE)).unwrap();
    match Answer::decode(&buffer[..received.len]) {
        Ok(Answer::Granted(welcome)) => (connection, welcome, received.fds),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_member_succeeds_a_killed_host_and_lets_newcomers_in() {
    let name = unique("succeed");
    let mut host = Child::joined(&name);
    let mut second = Child::joined(&name);
    let mut third = Child::joined(&name);
    host.kill();
    let mut newcomer = Child::joined(&name);
    assert_eq!(
        newcomer.space(),
        1,
        "what the dead host held is returned before anybody is let in"
    );
    assert_ne!(second.is_host(), third.is_host());
    assert!(!newcomer.is_host());
}

#[test]
fn the_host_is_killed_in_the_middle_of_an_admission() {
    let name = unique("admission");
    let mut host = Child::joined(&name);
    let _second = Child::joined(&name);
    // The newcomer's greeting lies with the host, which does not answer any more.
    host.stop();
    let mut newcomer = Child::new();
    newcomer.tell(&format!("join {name}"));
    std::thread::sleep(std::time::Duration::from_millis(100));
    host.kill();
    let answer = newcomer.answer();
    assert!(answer.starts_with("space "), "{answer}");
}

#[test]
fn an_admission_that_is_not_completed_is_undone() {
    let name = unique("undone");
    let _host = Child::joined(&name);
    let (connection, welcome, fds) = half_join(&name);
    assert_eq!((welcome.space, fds.len()), (2, 2));
    let third = Child::joined(&name).space();
    assert_eq!(third, 3, "space 2 is being joined");
    drop((connection, fds));
    until("space 2 is free again", || {
        let mut child = Child::joined(&name);
        let space = child.space();
        child.ask("leave");
        space == 2
    });
}

#[test]
fn the_host_is_killed_after_the_welcome_of_a_newcomer_that_then_joins_anew() {
    let name = unique("welcomed");
    let mut host = Child::joined(&name);
    let mut second = Child::joined(&name);
    let (connection, welcome, _fds) = half_join(&name);
    assert_eq!(welcome.space, 3);
    host.kill();
    until("the second hosts", || second.is_host());
    drop(connection);
    // This very process joins now: its earlier admission is not held against it.
    let domain = portolan::Domain::join(&name).unwrap();
    assert_eq!(domain.space(), 1);
    let mut fourth = Child::joined(&name);
    assert_eq!(fourth.space(), 3, "the earlier admission was undone");
}

#[test]
fn two_hosts_die_one_after_the_other() {
    for round in 0..5 {
        let name = unique("two-deaths");
        let mut all: Vec<Child> = (0..4).map(|_| Child::joined(&name)).collect();
        let mut rest = all.split_off(2);
        all[0].kill_only();
        if round % 2 == 1 {
            std::thread::sleep(std::time::Duration::from_micros(300 * round));
        }
        all[1].kill_only();
        let mut newcomer = Child::joined(&name);
        assert!(!newcomer.is_host());
        assert_eq!(
            rest.iter_mut()
                .filter_map(|c| c.is_host().then_some(()))
                .count(),
            1
        );
    }
}

#[test]
fn every_host_in_a_row_is_killed() {
    let name = unique("row");
    let mut alive: Vec<Child> = (0..8).map(|_| Child::joined(&name)).collect();
    while alive.len() > 1 {
        let mut host = None;
        until("somebody hosts", || {
            host = alive.iter_mut().position(Child::is_host);
            host.is_some()
        });
        alive.remove(host.unwrap()).kill();
    }
    let mut newcomer = Child::joined(&name);
    assert!(!newcomer.is_host());
    until("the last one hosts", || alive[0].is_host());
}

#[test]
fn newcomers_race_a_takeover() {
    for _ in 0..5 {
        let name = unique("race");
        let mut host = Child::joined(&name);
        let mut second = Child::joined(&name);
        let mut newcomers: Vec<Child> = (0..4).map(|_| Child::new()).collect();
        for (i, newcomer) in newcomers.iter_mut().enumerate() {
            if i == 2 {
                host.kill_only();
            }
            newcomer.tell(&format!("join {name}"));
        }
        for newcomer in &mut newcomers {
            let answer = newcomer.answer();
            assert!(answer.starts_with("space "), "{answer}");
        }
        // One domain, not two: all of them have different spaces in it.
        let mut spaces: Vec<u8> = newcomers.iter_mut().map(Child::space).collect();
        spaces.push(second.space());
        spaces.sort_unstable();
        spaces.dedup();
        assert_eq!(spaces.len(), 5, "{spaces:?}");
    }
}

#[test]
fn a_stopped_host_is_alive() {
    let name = unique("stopped");
    let host = Child::joined(&name);
    let mut second = Child::joined(&name);
    host.stop();
    let mut newcomer = Child::new();
    let answer = newcomer.ask(&format!("join {name} deadline-ms=700"));
    let expected = format!("pid: {}", host.pid());
    assert!(
        answer.starts_with("TimedOut") && answer.contains(&expected),
        "{answer}"
    );
    assert!(!second.is_host());
    host.resume();
    let answer = newcomer.ask(&format!("join {name}"));
    assert!(answer.starts_with("space "), "{answer}");
    assert!(!second.is_host());
}

#[test]
fn who_leaves_while_the_host_dies_has_left() {
    for _ in 0..5 {
        let name = unique("leaving");
        let mut host = Child::joined(&name);
        let mut second = Child::joined(&name);
        let mut third = Child::joined(&name);
        host.stop();
        second.tell("leave");
        std::thread::sleep(std::time::Duration::from_millis(20));
        host.kill();
        assert_eq!(second.answer(), "Ok(())");
        until("the third hosts", || third.is_host());
        let mut newcomers = [Child::joined(&name), Child::joined(&name)];
        assert_eq!(newcomers.each_mut().map(Child::space), [1, 2]);
    }
}
