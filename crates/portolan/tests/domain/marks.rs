//! The host, a newcomer or a leaver is killed at every marked step of what it does for
//! the domain, and the others finish it.

use crate::child::{Child, unique, until};

const RECLAIM: [&str; 25] = [
    "host.claims_released",
    "host.reclaim.dead",
    "host.reclaim.trace",
    "host.reclaim.extent",
    "reclaim.row",
    "host.reclaim.extents",
    "host.reclaim.moving",
    "host.reclaim.slot",
    "host.reclaim.claims",
    "close.begun",
    "close.slot",
    "close.disposed",
    "close.drained",
    "close.told",
    "host.reclaim.port",
    "host.reclaim.ports",
    "host.reclaim.answered",
    "host.reclaim.right",
    "host.reclaim.rights",
    "host.reclaim.chunk",
    "host.reclaim.chunks",
    "host.reclaim.waits",
    "host.reclaim.woken",
    "host.reclaim.wakes",
    "host.reclaim.counted",
];

/// Marks after which nothing of a reclaim is left to do but to free the entry.
const LATE: [&str; 4] = [
    "host.reclaim.owner_row",
    "host.reclaim.right_row",
    "host.reclaim.trace_ring",
    "host.reclaim.done",
];

/// Bytes that the domains of these tests may have.
const LIMIT: usize = 16 << 20;

/// A host, a member, and a victim that holds one of everything.
struct Scene {
    name: String,
    host: Child,
    second: Child,
    victim: Child,
    client: Child,
}

impl Scene {
    fn new() -> Self {
        let name = unique("marks");
        let mut host = Child::new();
        assert_eq!(host.ask(&format!("join {name} limit={LIMIT}")), "space 1");
        let mut second = Child::joined(&name);
        let mut victim = Child::joined(&name);
        let mut client = Child::joined(&name);
        let done = |child: &mut Child, order: &str| assert_eq!(child.ask(order), "done");
        done(&mut second, "bind survivor");
        done(&mut victim, "allocate 2097152");
        done(&mut victim, "allocate 5000");
        // A message in its queue, one of its in another's, a watch, a request in its hands.
        done(&mut victim, "bind inbox");
        done(&mut client, "connect inbox");
        done(&mut client, "send 100000");
        done(&mut victim, "watch survivor");
        done(&mut victim, "connect survivor");
        done(&mut victim, "send 100000");
        done(&mut victim, "serve service");
        client.tell("request service");
        done(&mut victim, "take");
        Self {
            name,
            host,
            second,
            victim,
            client,
        }
    }

    /// Everything that the victim held came back, every waiting process was told.
    fn check(&mut self, mark: &str) {
        let answer = self.client.answer();
        assert!(answer.contains("ServerDead"), "{mark}: {answer}");
        assert_eq!(self.second.ask("receive"), "100000 bytes", "{mark}");
        let name = &self.name;
        until(&format!("all came back after {mark}"), || {
            let mut probe = Child::joined(name);
            let bound = ["bind inbox", "bind service"].map(|o| probe.ask(o) == "done");
            // One chunk may be kept by the survivors, for the small extents of messages.
            let all = (0..LIMIT / (2 << 20) - 2).all(|_| probe.ask("allocate 2097152") == "done");
            probe.ask("leave");
            bound == [true, true] && all
        });
    }
}

#[test]
fn the_host_dies_at_every_step_of_a_reclaim() {
    for mark in RECLAIM.into_iter().chain(LATE) {
        let mut scene = Scene::new();
        assert_eq!(scene.host.ask(&format!("die at {mark}")), "done");
        scene.victim.kill();
        until(&format!("the host dies at {mark}"), || scene.host.ended());
        scene.check(mark);
    }
}

#[test]
fn the_successor_dies_at_every_step_of_its_succession() {
    let marks = [
        "host.contest",
        "host.contested",
        "host.won",
        "host.counted",
        "host.look",
    ];
    for mark in marks
        .into_iter()
        .chain(["host.ready"])
        .chain(RECLAIM)
        .chain(LATE)
    {
        let mut scene = Scene::new();
        // All that may succeed the host, but one, die at the mark.
        assert_eq!(scene.victim.ask(&format!("die at {mark}")), "done");
        let mut third = Child::joined(&scene.name);
        assert_eq!(third.ask(&format!("die at {mark}")), "done");
        scene.host.kill();
        // Either it dies of it, or another was faster and it had no chance to.
        // A newcomer that is admitted finds a host.
        drop(Child::joined(&scene.name));
        scene.victim.kill();
        third.kill();
        scene.check(mark);
    }
}

#[test]
fn a_newcomer_dies_at_every_step_of_joining() {
    let marks = ["join.answered", "join.mapped", "join.live", "join.arrived"];
    for mark in marks {
        let name = unique("newcomer");
        let mut host = Child::joined(&name);
        let mut newcomer = Child::new();
        assert_eq!(newcomer.ask(&format!("die at {mark}")), "done");
        newcomer.tell(&format!("join {name}"));
        until(&format!("the newcomer dies at {mark}"), || newcomer.ended());
        until("its space is free", || {
            let mut child = Child::joined(&name);
            let space = child.space();
            child.ask("leave");
            space == 2
        });
        assert!(host.is_host());
    }
}

/// The host that welcomed the newcomer is leaving, and the next host has died.
#[test]
fn a_newcomer_gets_in_although_its_host_has_gone_and_the_next_one_has_died() {
    let name = unique("between");
    let mut host = Child::joined(&name);
    let mut second = Child::joined(&name);
    let mut newcomer = Child::new();
    assert_eq!(newcomer.ask("stop at join.mapped"), "done");
    newcomer.tell(&format!("join {name}"));
    newcomer.stopped();
    assert_eq!(second.ask("die at host.won"), "done");
    // It has closed the second one's connection, and not yet the newcomer's.
    assert_eq!(host.ask("stop at leave.told"), "done");
    host.tell("leave");
    host.stopped();
    until("the second one dies", || second.ended());
    newcomer.resume();
    let answer = newcomer.answer();
    assert!(answer.starts_with("space "), "{answer}");
    until("the newcomer hosts", || newcomer.is_host());
}

#[test]
fn a_creator_dies_at_every_step_of_creating() {
    let marks = [
        "join.before_listen",
        "join.listening",
        "join.fallback",
        "join.mapped",
        "join.created",
        "join.hosting",
    ];
    for mark in marks {
        let name = unique("creator");
        let mut creator = Child::new();
        assert_eq!(creator.ask(&format!("die at {mark}")), "done");
        creator.tell(&format!("join {name}"));
        let mut second = Child::new();
        // Before it listens the other could be faster, and it would create nothing.
        until(&format!("the creator dies at {mark}"), || {
            creator.ended() || mark != "join.before_listen"
        });
        second.tell(&format!("join {name}"));
        let answer = second.answer();
        assert!(answer.starts_with("space "), "{mark}: {answer}");
        drop(creator);
        until("the second hosts", || second.is_host());
        let mut third = Child::joined(&name);
        assert!(!third.is_host());
    }
}

#[test]
fn the_host_dies_at_every_step_of_an_admission() {
    for mark in [
        "join.accepted",
        "join.claimed",
        "join.reserved",
        "join.welcomed",
    ] {
        let name = unique("admitting");
        let mut host = Child::joined(&name);
        let mut second = Child::joined(&name);
        assert_eq!(host.ask(&format!("die at {mark}")), "done");
        let mut newcomer = Child::new();
        let answer = newcomer.ask(&format!("join {name}"));
        assert!(answer.starts_with("space "), "{mark}: {answer}");
        until(&format!("the host dies at {mark}"), || host.ended());
        until("somebody hosts", || second.is_host() || newcomer.is_host());
        // No entry is lost to the admission that failed.
        let mut others = [Child::joined(&name), Child::joined(&name)];
        let mut spaces: Vec<u8> = others.iter_mut().map(Child::space).collect();
        spaces.extend([second.space(), newcomer.space()]);
        spaces.sort_unstable();
        assert_eq!(spaces, [1, 2, 3, 4], "{mark}");
    }
}

#[test]
fn somebody_dies_at_every_step_of_leaving() {
    for mark in [
        "leave.begin",
        "leave.dead",
        "leave.asked",
        "leave.returned",
        "leave.host",
        "host.resign",
        "host.resigned",
        "leave.resigned",
        "leave.told",
    ] {
        let name = unique("leaving");
        let mut host = Child::joined(&name);
        let mut second = Child::joined(&name);
        let mut third = Child::joined(&name);
        let by_host = !matches!(mark, "leave.begin" | "leave.dead");
        let as_host = matches!(
            mark,
            "leave.host" | "host.resign" | "host.resigned" | "leave.resigned" | "leave.told"
        );
        let dying = if by_host { &mut host } else { &mut second };
        assert_eq!(dying.ask(&format!("die at {mark}")), "done");
        if as_host {
            host.tell("leave");
        } else {
            second.tell("leave");
        }
        let dying = if by_host { &mut host } else { &mut second };
        until(&format!("it dies at {mark}"), || dying.ended());
        if by_host && !as_host {
            assert_eq!(second.answer(), "Ok(())", "{mark}");
        }
        until("all places but the survivors' are free", || {
            let mut probe = [Child::joined(&name), Child::joined(&name)];
            let mut spaces: Vec<u8> = probe.iter_mut().map(Child::space).collect();
            spaces.sort_unstable();
            probe.iter_mut().for_each(|p| drop(p.ask("leave")));
            // The third has space 3; the other survivor, if there is one, 1 or 2.
            spaces.iter().filter(|s| **s <= 2).count() >= if by_host && !as_host { 2 } else { 1 }
        });
        assert_eq!(third.space(), 3);
    }
}
