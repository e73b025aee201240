//! A process is killed at every marked step of what it does with messages. The others
//! are told, go on, and afterwards not one page is missing.
#![cfg(feature = "marks")]

use portolan::{
    Access, Deadline, Domain, Message, PortOptions, ReceiveError, RequestError, SendError,
    SendRight, WhenFull,
};
use portolan_sys::process::{PidFd, Signal, signal};
use portolan_testkit::{PATIENCE, role, spawn, unique};
use std::process::Child;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const LIMIT: u64 = 16 << 20;

/// Where the victim of this process is to stop, how, and after how many passes.
static PLAN: OnceLock<(String, u32, Signal)> = OnceLock::new();
static PASSES: AtomicU32 = AtomicU32::new(0);

fn reached(mark: &str) {
    let Some((deadly, passes, how)) = PLAN.get() else {
        return;
    };
    if mark == deadly && PASSES.fetch_add(1, Ordering::Relaxed) + 1 == *passes {
        // To this thread, which takes it before it goes on; sent to the process, another
        // thread might take it, and this one publish meanwhile.
        // SAFETY:
        // - Sends a signal to ourselves; nothing is touched.
        assert_eq!(unsafe { libc::raise(how.as_raw()) }, 0);
    }
}

/// The other process of these tests; nothing, when it is run as a test.
#[test]
fn victim() {
    let Some([domain, mark, passes, how]) = role() else {
        return;
    };
    let how = if how == "stop" {
        Signal::STOP
    } else {
        Signal::KILL
    };
    PLAN.set((mark, passes.parse().unwrap(), how)).unwrap();
    portolan_shm::mark::install(reached);
    let domain = Domain::join(&domain).unwrap();
    let mut inbox = domain.bind(PortOptions::named("victim").queue(2)).unwrap();
    let mut server = domain
        .bind(PortOptions::named("victim-server").queue(2).synchronous())
        .unwrap();
    let survivor = domain.connect("survivor", PATIENCE).unwrap();
    let requests = domain.connect("survivor-server", PATIENCE).unwrap();
    loop {
        let mut message = Message::new(&[7; 200]).unwrap();
        for bytes in [100, 5000, 70_000] {
            if let Ok(extent) = domain.allocate(bytes) {
                message.push(extent).unwrap();
            }
        }
        message.attach(inbox.make_send()).unwrap();
        let own = domain.bind(PortOptions::unnamed().queue(1)).unwrap();
        message.attach(own).unwrap();
        let _ = survivor.send(message, Deadline::after(PATIENCE));
        drop(domain.allocate(3 << 20));
        let mut ask = Message::default();
        ask.push(domain.allocate(9).unwrap()).unwrap();
        let _ = requests.request_reply(ask, Access::Now, PATIENCE);
        // Both rest now and then, so that falling asleep is passed too.
        for _ in 0..3 {
            if let Ok(request) =
                server.get_request(Access::Later, Deadline::after(Duration::from_millis(2)))
            {
                let _ = request.reply_in_place();
            }
            let _ = inbox.receive(Access::Later, Deadline::after(Duration::from_millis(2)));
        }
    }
}

/// A right on a port of the victim's, unless that dies before it has one, or before we look.
fn connected(domain: &Domain, victim: &mut Child, name: &str) -> Option<SendRight> {
    loop {
        let right = domain.connect(name, Duration::from_millis(10));
        if right.is_ok() || victim.try_wait().unwrap().is_some() {
            return right.ok();
        }
    }
}

/// Works with the victim until it is dead; says what became of the survivor's calls.
fn work_with(domain: &Domain, child: &mut Child, mark: &str) {
    let mut inbox = domain
        .bind(PortOptions::named("survivor").queue(4))
        .unwrap();
    let mut server = domain
        .bind(PortOptions::named("survivor-server").queue(4).synchronous())
        .unwrap();
    let end = Instant::now() + PATIENCE;
    let to_victim = connected(domain, child, "victim");
    let to_server = connected(domain, child, "victim-server");
    std::thread::scope(|scope| {
        let (Some(to_victim), Some(to_server)) = (to_victim, to_server) else {
            return;
        };
        // Full queues and open requests, all of which must end when the victim is dead.
        let sender = scope.spawn(move || {
            loop {
                let mut message = Message::new(b"to the victim").unwrap();
                if let Ok(extent) = domain.allocate(6000) {
                    message.push(extent).unwrap();
                }
                match to_victim
                    .send(message, Deadline::after(PATIENCE))
                    .map_err(|e| e.why)
                {
                    Ok(()) => {}
                    Err(SendError::DeadName) => break,
                    Err(other) => panic!("{other}"),
                }
            }
        });
        let asker = scope.spawn(move || {
            loop {
                match to_server.request_reply(Message::new(b"?").unwrap(), Access::Later, PATIENCE)
                {
                    Ok(_) | Err(RequestError::Dropped) => {}
                    Err(RequestError::ServerDead) => {}
                    Err(RequestError::Unsent(error))
                        if matches!(error.why, SendError::DeadName) =>
                    {
                        break;
                    }
                    Err(other) => panic!("{other}"),
                }
            }
        });
        while !(sender.is_finished() && asker.is_finished()) {
            assert!(
                Instant::now() < end,
                "{mark}: the survivor's threads hang, or the mark is never passed"
            );
            for message in [inbox.receive(Access::Later, Deadline::after(Duration::from_millis(1)))]
            {
                match message {
                    Ok(message) => drop(message),
                    Err(ReceiveError::TimedOut) => {}
                    Err(other) => panic!("{mark}: {other}"),
                }
            }
            if let Ok(request) =
                server.get_request(Access::Later, Deadline::after(Duration::from_millis(1)))
            {
                let _ = request.reply_in_place();
            }
        }
    });
    child.wait().unwrap();
}

/// Every page of the domain can be had again.
fn nothing_is_lost(domain: &Domain, mark: &str) {
    let pages = usize::try_from(LIMIT / 4096).unwrap();
    let end = Instant::now() + PATIENCE;
    loop {
        let all: Vec<_> = (0..=pages)
            .map_while(|_| domain.allocate(4096).ok())
            .collect();
        if all.len() == pages {
            return;
        }
        assert!(
            Instant::now() < end,
            "{mark}: {} of {pages} pages",
            all.len()
        );
        drop(all);
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn die_at(mark: &str, passes: u32) {
    let name = unique("kill");
    let domain = Domain::builder(&name).limit(LIMIT).join().unwrap();
    let mut child = spawn("victim", &[&name, mark, &passes.to_string(), "kill"]);
    work_with(&domain, &mut child, mark);
    nothing_is_lost(&domain, mark);
}

#[test]
fn allocating_and_freeing() {
    for mark in [
        "allocate.noted",
        "allocate.won",
        "allocate.done",
        "allocate.run_claimed",
        "chunk.claimed",
        "chunk.populated",
        "chunk.bodies",
    ] {
        die_at(mark, 3);
    }
    for mark in ["free.before", "free.word"] {
        die_at(mark, 5);
    }
}

#[test]
fn sending() {
    for mark in [
        "send.before_claim",
        "send.claimed",
        "send.noted",
        "send.written",
        "send.before_publish",
        "send.published",
        "send.cleared",
        "right.receive_leaves",
    ] {
        die_at(mark, 1);
        die_at(mark, 4);
    }
}

#[test]
fn receiving() {
    for mark in [
        "receive.noted",
        "receive.before_take",
        "receive.taken",
        "receive.before_retire",
        "receive.retired",
        "sleep.armed",
        "sleep.before_futex",
    ] {
        die_at(mark, 1);
        die_at(mark, 6);
    }
}

#[test]
fn requesting_and_binding() {
    for mark in [
        "request.before_post",
        "bind.entry_taken",
        "bind.queue_open",
        "bind.done",
    ] {
        die_at(mark, 4);
    }
    die_at("right.counted", 2);
}

#[test]
fn a_sender_that_is_stopped_in_mid_send_holds_up_nobody() {
    let name = unique("kill");
    let domain = Domain::builder(&name).limit(LIMIT).join().unwrap();
    let mut inbox = domain
        .bind(PortOptions::named("survivor").queue(7))
        .unwrap();
    let _server = domain
        .bind(PortOptions::named("survivor-server").synchronous())
        .unwrap();
    for mark in ["send.claimed", "send.written"] {
        let mut child = spawn("victim", &[&name, mark, "1", "stop"]);
        let right = inbox.make_send();
        drop(domain.connect("victim", PATIENCE).unwrap());
        // Until it is stopped: state T.
        let end = Instant::now() + PATIENCE;
        while !std::fs::read_to_string(format!("/proc/{}/stat", child.id()))
            .unwrap()
            .contains(") T ")
        {
            assert!(Instant::now() < end, "the victim is not stopped");
            std::thread::sleep(Duration::from_millis(1));
        }
        // Many laps of the ring, past the slot that it holds.
        for i in 0..200u32 {
            right
                .send(
                    Message::new(&i.to_le_bytes()).unwrap(),
                    Deadline::after(PATIENCE),
                )
                .unwrap();
            assert_eq!(
                inbox.receive(Access::Later, PATIENCE).unwrap().header(),
                i.to_le_bytes()
            );
        }
        let victim = PidFd::open(child.id()).unwrap();
        signal(&victim, Signal::CONT).unwrap();
        // What it was sending comes, late but whole.
        let late = inbox.receive(Access::Now, PATIENCE).unwrap();
        assert_eq!((late.header(), late.len()), (&[7; 200][..], 75_100));
        drop(late);
        signal(&victim, Signal::KILL).unwrap();
        child.wait().unwrap();
        let end = Instant::now() + PATIENCE;
        while domain.connect("victim", Deadline::NOW).is_ok() {
            assert!(Instant::now() < end, "the victim's port lives on");
            std::thread::sleep(Duration::from_millis(5));
        }
        while inbox.receive(Access::Later, Deadline::NOW).is_ok() {}
    }
    drop((inbox, _server));
    nothing_is_lost(&domain, "stopped");
}

#[test]
fn a_full_queue_whose_receiver_dies_tells_its_sender_at_once() {
    let name = unique("kill");
    let domain = Domain::builder(&name).limit(LIMIT).join().unwrap();
    let _inbox = domain.bind(PortOptions::named("survivor")).unwrap();
    let mut child = spawn("victim", &[&name, "never", "1", "kill"]);
    // It waits for this name before it does anything else.
    let right = domain.connect("victim", PATIENCE).unwrap();
    while right.send(Message::default(), WhenFull::Fail).is_ok() {}
    let waiting =
        std::thread::spawn(move || right.send(Message::new(b"kept").unwrap(), Deadline::NEVER));
    std::thread::sleep(Duration::from_millis(20));
    child.kill().unwrap();
    let refused = waiting.join().unwrap().unwrap_err();
    assert!(
        matches!(refused.why, SendError::DeadName),
        "{}",
        refused.why
    );
    assert_eq!(refused.item.header(), b"kept");
    child.wait().unwrap();
}
