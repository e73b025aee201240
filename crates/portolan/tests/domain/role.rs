//! The host's role goes to a member that asks for it, and back, while others join, bind and connect.

use crate::child::{Child, unique, until};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

fn prefer(child: &mut Child) {
    assert_eq!(child.ask("prefer"), "done");
}

fn hosts(what: &str, child: &mut Child) {
    until(what, || child.is_host());
}

/// Ends what goes on beside a test, also when that fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A process joins, is found by its port's name, and leaves.
fn joins_and_binds(domain: &str, finder: &mut Child) {
    let mut newcomer = Child::joined(domain);
    assert_eq!(newcomer.ask("bind here"), "done");
    assert_eq!(finder.ask("connect here"), "done");
    assert_eq!(newcomer.ask("leave"), "Ok(())");
}

#[test]
fn the_role_goes_to_who_asks_and_back_while_others_join_and_bind() {
    let name = unique("role");
    let mut host = Child::joined(&name);
    let mut finder = Child::joined(&name);
    let (over, joined) = (AtomicBool::new(false), AtomicUsize::new(0));
    let ends = Ends(&over);
    std::thread::scope(|scope| {
        let ends = ends;
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                joins_and_binds(&name, &mut finder);
                joined.fetch_add(1, Ordering::Relaxed);
            }
        });
        for round in 0..10 {
            let mut node = Child::joined(&name);
            let before = joined.load(Ordering::Relaxed);
            prefer(&mut node);
            hosts(&format!("the node hosts, round {round}"), &mut node);
            assert!(!host.is_host());
            let has_joined = || joined.load(Ordering::Relaxed) > before + 1;
            until("others have joined", has_joined);
            if round % 2 == 0 {
                assert_eq!(node.ask("leave"), "Ok(())");
            } else {
                node.kill();
            }
            let before = joined.load(Ordering::Relaxed);
            let has_joined = || joined.load(Ordering::Relaxed) > before + 1;
            until("others have joined again", has_joined);
        }
        drop(ends);
    });
    // All that came and went has given its place back.
    until("the places are free", || {
        let mut newcomer = Child::joined(&name);
        let space = newcomer.space();
        newcomer.ask("leave");
        space == 3
    });
}

#[test]
fn of_two_that_prefer_to_host_the_first_does() {
    let name = unique("two-prefer");
    let mut host = Child::joined(&name);
    let mut other = Child::joined(&name);
    let mut third = Child::joined(&name);
    prefer(&mut host);
    prefer(&mut other);
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(host.is_host() && !other.is_host());
    host.kill();
    // Either of the two takes over; then the one that prefers has it.
    hosts("the other one hosts", &mut other);
    assert!(!third.is_host());
}

#[test]
fn a_member_that_asks_a_stopped_host_hosts_once_that_goes_on() {
    let name = unique("stopped-host");
    let mut host = Child::joined(&name);
    let mut node = Child::joined(&name);
    let mut finder = Child::joined(&name);
    host.stop();
    host.stopped();
    prefer(&mut node);
    // Members let newcomers in meanwhile.
    joins_and_binds_beside(&name, &mut finder);
    assert!(!node.is_host());
    host.resume();
    hosts("the node hosts", &mut node);
    assert!(!host.is_host());
    joins_and_binds(&name, &mut finder);
}

/// While nobody returns what the dead hold, a name may be taken for a while, but a new one is free.
fn joins_and_binds_beside(domain: &str, finder: &mut Child) {
    let mut newcomer = Child::joined(domain);
    assert_eq!(newcomer.ask("bind beside"), "done");
    assert_eq!(finder.ask("connect beside"), "done");
    newcomer.kill();
}

#[cfg(feature = "marks")]
mod marks {
    use super::*;

    /// Steps of the host that hands the role over, and of the member that gets it.
    const HANDS: [&str; 3] = ["host.passing", "host.passed", "host.passed_on"];
    const TAKES: [&str; 5] = [
        "host.asking",
        "host.won",
        "host.counted",
        "host.look",
        "host.ready",
    ];

    #[test]
    fn who_hands_the_role_over_or_gets_it_dies_at_each_step() {
        for (mark, of_host) in HANDS
            .map(|mark| (mark, true))
            .into_iter()
            .chain(TAKES.map(|mark| (mark, false)))
        {
            let name = unique("role-dies");
            let mut host = Child::joined(&name);
            let mut node = Child::joined(&name);
            let mut finder = Child::joined(&name);
            let victim = if of_host { &mut host } else { &mut node };
            assert_eq!(victim.ask("bind held"), "done", "{mark}");
            assert_eq!(victim.ask(&format!("die at {mark}")), "done");
            node.tell("prefer");
            let (victim, survivor) = match of_host {
                true => (&mut host, &mut node),
                false => (&mut node, &mut host),
            };
            until(&format!("it dies at {mark}"), || victim.ended());
            if of_host {
                assert_eq!(survivor.answer(), "done");
            }
            joins_and_binds(&name, &mut finder);
            until(&format!("one hosts after {mark}"), || {
                survivor.is_host() ^ finder.is_host()
            });
            // What it held is returned.
            until(&format!("its name is free after {mark}"), || {
                survivor.ask("bind held") == "done"
            });
            assert_eq!(survivor.ask("close"), "done");
        }
    }

    #[test]
    fn who_hands_the_role_over_or_gets_it_stops_at_each_step() {
        for (mark, of_host) in HANDS
            .map(|mark| (mark, true))
            .into_iter()
            .chain(TAKES.map(|mark| (mark, false)))
        {
            let name = unique("role-stops");
            let mut host = Child::joined(&name);
            let mut node = Child::joined(&name);
            let mut finder = Child::joined(&name);
            let victim = if of_host { &mut host } else { &mut node };
            assert_eq!(victim.ask(&format!("stop once at {mark}")), "done");
            node.tell("prefer");
            let victim = if of_host { &mut host } else { &mut node };
            victim.stopped();
            joins_and_binds_beside(&name, &mut finder);
            victim.resume();
            assert_eq!(node.answer(), "done", "{mark}");
            hosts(&format!("the node hosts after {mark}"), &mut node);
            joins_and_binds(&name, &mut finder);
            assert!(!host.is_host() && !finder.is_host(), "{mark}");
        }
    }
}
