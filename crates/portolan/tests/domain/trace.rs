//! A running domain is traced from outside: every event of every space, and what happens
//! when tracer, traced, or the ring's room come to an end.

use crate::child::{Child, PATIENCE, unique, until};
use portolan::{
    Access, Deadline, Domain, Event, EventKind, Message, PortOptions, Trace, TraceError,
    TraceOptions, WhenFull,
};
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;

fn host(name: &str) -> Domain {
    let builder = Domain::builder(name).size(64 << 20).space_name("the host");
    builder.deadline(PATIENCE).join().unwrap()
}

/// Drains until `done` says so, and returns all that came.
fn watch(trace: &mut Trace, what: &str, mut done: impl FnMut(&[Event]) -> bool) -> Vec<Event> {
    let mut events = Vec::new();
    until(what, || {
        trace.drain(|event| events.push(event)).unwrap();
        done(&events)
    });
    events
}

fn of(events: &[Event], kind: EventKind) -> Vec<&Event> {
    events.iter().filter(|e| e.kind == kind).collect()
}

/// Waits until the spaces in the domain are so many.
fn members(domain: &Domain, count: usize) {
    until("the members are as many as expected", || {
        domain.survey().unwrap().spaces.len() == count
    });
}

#[test]
fn a_message_is_seen_where_it_is_sent_and_where_it_is_taken() {
    let name = unique("trace-message");
    let domain = host(&name);
    let (mut sender, mut receiver) = (Child::joined(&name), Child::joined(&name));
    receiver.ask("bind frames");
    sender.ask("connect frames");
    // Before the trace: the tracer does not hear of it.
    sender.ask("send 5000");
    assert_eq!(receiver.ask("receive"), "5000 bytes");

    let mut trace = domain.trace().unwrap();
    assert_eq!(domain.tracer(), Some(domain.space()));
    for bytes in [100, 70_000, 3_000_000] {
        sender.ask(&format!("send {bytes}"));
        assert_eq!(receiver.ask("receive"), format!("{bytes} bytes"));
    }
    let events = watch(&mut trace, "all receives are seen", |events| {
        of(events, EventKind::Receive).len() >= 3
    });
    let (sent, taken) = (
        of(&events, EventKind::Send),
        of(&events, EventKind::Receive),
    );
    assert_eq!((sent.len(), taken.len()), (3, 3));
    for ((sent, taken), bytes) in sent.iter().zip(&taken).zip([100, 70_000, 3_000_000]) {
        assert_eq!((sent.space, sent.process), (sender.space(), sender.pid()));
        assert_eq!(
            (taken.space, taken.process),
            (receiver.space(), receiver.pid())
        );
        assert_eq!((sent.bytes, taken.bytes), (bytes, bytes));
        assert!(sent.port.is_some() && sent.position.is_some());
        assert_eq!((sent.port, sent.position), (taken.port, taken.position));
        assert!(sent.began <= taken.began, "{sent:?} {taken:?}");
    }
    assert_eq!(
        trace.port_name(sent[0].port.unwrap()).as_deref(),
        Some("frames")
    );
    // The receiver has asked for its pages at once.
    let mapped = of(&events, EventKind::Map);
    let bytes: Vec<u64> = mapped.iter().map(|m| m.bytes).collect();
    assert_eq!(bytes, [100, 70_000, 3_000_000]);
    assert!(mapped.iter().all(|m| m.process == receiver.pid()));

    // Off again: the next one is not recorded.
    drop(trace);
    assert_eq!(domain.tracer(), None);
    sender.ask("send 1");
    receiver.ask("receive");
    let mut again = domain.trace().unwrap();
    sender.ask("send 2");
    receiver.ask("receive");
    let events = watch(&mut again, "the receive is seen", |events| {
        !of(events, EventKind::Receive).is_empty()
    });
    assert_eq!(of(&events, EventKind::Send).len(), 1);
    assert_eq!(of(&events, EventKind::Send)[0].bytes, 2);
}

#[test]
fn a_receiver_that_sleeps_is_woken_by_its_sender() {
    let name = unique("trace-wake");
    let domain = host(&name);
    let (mut sender, mut receiver) = (Child::joined(&name), Child::joined(&name));
    receiver.ask("bind frames");
    sender.ask("connect frames");
    let mut trace = domain.trace().unwrap();
    let mut events = Vec::new();
    // It falls asleep sooner or later: a message is sent only when its thread sleeps.
    until("a wake is seen", || {
        receiver.tell("receive");
        std::thread::sleep(std::time::Duration::from_millis(20));
        sender.ask("send 1");
        receiver.answer();
        trace.drain(|event| events.push(event)).unwrap();
        !of(&events, EventKind::Wake).is_empty() && !of(&events, EventKind::Sleep).is_empty()
    });
    let wake = of(&events, EventKind::Wake)[0];
    let sleep = of(&events, EventKind::Sleep)[0];
    assert_eq!(
        (wake.process, sleep.process),
        (sender.pid(), receiver.pid())
    );
    assert_eq!(wake.port, sleep.port);
    // It lies within the send that it is part of.
    let sends = of(&events, EventKind::Send);
    assert!(sends.iter().any(|send| {
        send.thread == wake.thread
            && send.began <= wake.began
            && wake.began + wake.took <= send.began + send.took
    }));
}

#[test]
fn a_newcomer_is_traced_from_its_first_message_on() {
    let name = unique("trace-newcomer");
    let domain = host(&name);
    let _port = domain.bind(PortOptions::named("frames")).unwrap();
    let mut trace = domain.trace().unwrap();
    // No drain in between: the host switches it on, not the tracer.
    let mut newcomer = Child::joined(&name);
    newcomer.ask("connect frames");
    newcomer.ask("send 7");
    let events = watch(&mut trace, "the newcomer's message is seen", |events| {
        !of(events, EventKind::Send).is_empty()
    });
    let sent = of(&events, EventKind::Send);
    assert_eq!((sent.len(), sent[0].process), (1, newcomer.pid()));
}

#[test]
fn who_comes_and_goes_between_two_looks_is_heard_of() {
    let name = unique("trace-client");
    let domain = host(&name);
    let mut port = domain.bind(PortOptions::named("frames")).unwrap();
    let mut trace = domain.trace().unwrap();
    for bytes in [1, 2] {
        let mut client = Child::joined(&name);
        client.ask("connect frames");
        client.ask(&format!("send {bytes}"));
        let deadline = Deadline::after(PATIENCE);
        assert_eq!(port.receive(Access::Later, deadline).unwrap().len(), bytes);
        client.ask("leave");
    }
    let mut events = Vec::new();
    let drained = trace.finish(|event| events.push(event)).unwrap();
    assert!(!drained.company && drained.lost == 0);
    let sent: Vec<u64> = of(&events, EventKind::Send)
        .iter()
        .map(|e| e.bytes)
        .collect();
    assert_eq!(sent, [1, 2]);
}

#[test]
fn a_death_is_seen_with_what_was_returned() {
    let name = unique("trace-death");
    let domain = host(&name);
    let mut victim = Child::joined(&name);
    victim.ask("allocate 10000");
    victim.ask("allocate 5000000");
    let space = victim.space();
    let mut trace = domain.trace().unwrap();
    victim.kill();
    let events = watch(&mut trace, "the reclaim is seen", |events| {
        !of(events, EventKind::Reclaim).is_empty()
    });
    let about = Some((space, victim.pid()));
    let (died, returned) = (
        of(&events, EventKind::Death),
        of(&events, EventKind::Reclaim),
    );
    assert_eq!((died.len(), returned.len()), (1, 1));
    assert_eq!((died[0].about, returned[0].about), (about, about));
    assert_eq!(returned[0].process, std::process::id(), "the host did it");
    assert!(died[0].began >= returned[0].began);
    // 16 KiB and 6 MiB: extents are powers of two, or whole chunks.
    assert_eq!(returned[0].bytes, (16 << 10) + (6 << 20));
    assert!(trace.spaces().any(|known| known.process == victim.pid()));

    // Leaving is no death.
    let mut leaver = Child::joined(&name);
    leaver.ask("leave");
    let events = watch(&mut trace, "the reclaim is seen", |events| {
        !of(events, EventKind::Reclaim).is_empty()
    });
    assert!(of(&events, EventKind::Death).is_empty());
}

#[test]
fn the_dead_are_heard_to_the_end() {
    let name = unique("trace-last-words");
    let domain = host(&name);
    let _port = domain.bind(PortOptions::named("frames").queue(16)).unwrap();
    let mut victim = Child::joined(&name);
    victim.ask("connect frames");
    let mut trace = domain.trace().unwrap();
    for bytes in 1..=5 {
        victim.ask(&format!("send {bytes}"));
    }
    let pid = victim.pid();
    victim.kill();
    members(&domain, 1);
    // Its entry is another's by now.
    let mut heir = Child::joined(&name);
    heir.ask("connect frames");
    heir.ask("send 6");
    let mut events = Vec::new();
    let drained = trace.finish(|event| events.push(event)).unwrap();
    assert_eq!(drained.lost, 0);
    let sent: Vec<_> = of(&events, EventKind::Send)
        .iter()
        .map(|e| (e.process == heir.pid(), e.bytes))
        .collect();
    let first = (1..=5).map(|bytes| (false, bytes));
    assert_eq!(sent, first.chain([(true, 6)]).collect::<Vec<_>>());
    // The victim was never drained while it lived, but it was known from the beginning.
    let victims = events.iter().filter(|e| e.process == pid);
    assert_eq!(victims.filter(|e| e.kind == EventKind::Send).count(), 5);
}

#[test]
fn who_dies_while_a_trace_ends_is_heard_to_the_end() {
    let name = unique("trace-end");
    let domain = host(&name);
    let _port = domain.bind(PortOptions::named("frames").queue(16)).unwrap();
    let right = domain.connect("frames", Deadline::after(PATIENCE)).unwrap();
    let mut victim = Child::joined(&name);
    victim.ask("connect frames");
    let mut trace = domain.trace().unwrap();
    right.send(Message::default(), WhenFull::Fail).unwrap();
    for bytes in 1..=5 {
        victim.ask(&format!("send {bytes}"));
    }
    let pid = victim.pid();
    let mut events: Vec<Event> = Vec::new();
    let drained = trace.finish(|event| {
        // Ours are read first. What the dead one had is given back before its own are.
        if events.is_empty() {
            assert_eq!(event.process, std::process::id());
            victim.kill();
            members(&domain, 1);
        }
        events.push(event);
    });
    assert_eq!(drained.unwrap().lost, 0);
    let its = |event: &&&Event| event.process == pid;
    let sent = of(&events, EventKind::Send);
    let sent: Vec<u64> = sent.iter().filter(its).map(|e| e.bytes).collect();
    assert_eq!(sent, [1, 2, 3, 4, 5]);
    // It is over, and does not end, or read, the next one.
    assert_eq!(domain.tracer(), None);
    let mut next = domain.trace().unwrap();
    right.send(Message::default(), WhenFull::Fail).unwrap();
    assert_eq!(trace.drain(drop).unwrap().events, 0);
    assert_eq!(trace.finish(drop).unwrap().events, 0);
    drop(trace);
    assert_eq!(domain.tracer(), Some(domain.space()));
    assert_eq!(next.drain(drop).unwrap().events, 1);
}

#[test]
fn a_ring_that_overflows_keeps_the_newest_and_counts_the_rest() {
    let domain = Domain::builder("overflow")
        .size(64 << 20)
        .private()
        .unwrap();
    let mut port = domain.bind(PortOptions::unnamed().queue(4)).unwrap();
    let right = port.make_send();
    let options = TraceOptions::default().only([EventKind::Send]).ring(100);
    let mut trace = domain.trace_with(options).unwrap();
    for i in 0..1000_u32 {
        let mut message = Message::default();
        message
            .push(domain.allocate(1 + i as usize).unwrap())
            .unwrap();
        right.send(message, WhenFull::Fail).unwrap();
        drop(port.receive(Access::Later, Deadline::NOW).unwrap());
    }
    let mut events = Vec::new();
    let drained = trace.drain(|event| events.push(event)).unwrap();
    // 100 is rounded up to 128.
    assert_eq!((drained.events, drained.lost), (128, 872));
    assert_eq!(drained.fullest, 100);
    assert!(!drained.company);
    let bytes: Vec<u64> = events.iter().map(|e| e.bytes).collect();
    assert_eq!(bytes, (873..=1000).collect::<Vec<u64>>());
    assert!(events.iter().all(|e| e.kind == EventKind::Send));
    assert!(events.is_sorted_by_key(|e| e.began));
    // Nothing is counted twice.
    let drained = trace.finish(|_| panic!("an event twice")).unwrap();
    assert_eq!((drained.events, drained.lost), (0, 872));
}

#[test]
fn a_second_tracer_is_told_who_the_first_is() {
    let name = unique("trace-second");
    let domain = host(&name);
    let mut other = Child::joined(&name);
    let trace = domain.trace().unwrap();
    assert!(matches!(
        domain.trace(),
        Err(TraceError::Taken { pid, .. }) if pid == std::process::id()
    ));
    let refusal = other.ask("trace");
    assert!(
        refusal.contains("\"the host\"") && refusal.contains(&std::process::id().to_string()),
        "{refusal}"
    );
    drop(trace);
    assert_eq!(other.ask("trace"), "done");
    assert_eq!(domain.tracer(), Some(other.space()));
}

#[test]
fn a_tracer_that_is_killed_leaves_nothing_on() {
    let name = unique("trace-killed");
    let domain = host(&name);
    let mut port = domain.bind(PortOptions::named("frames").queue(4)).unwrap();
    let mut sender = Child::joined(&name);
    sender.ask("connect frames");
    let mut tracer = Child::joined(&name);
    assert_eq!(tracer.ask("trace"), "done");
    assert_eq!(domain.tracer(), Some(tracer.space()));
    tracer.kill();
    until("the trace is off", || domain.tracer().is_none());
    members(&domain, 2);
    // Nothing is recorded now: the next tracer finds none of it.
    sender.ask("send 1");
    let received = port.receive(Access::Later, Deadline::after(PATIENCE));
    assert_eq!(received.unwrap().len(), 1);
    let mut trace = domain.trace().unwrap();
    let mut events = Vec::new();
    trace.finish(|event| events.push(event)).unwrap();
    assert_eq!(events, []);
}

#[test]
fn a_tracer_that_is_killed_as_host_leaves_nothing_on() {
    let name = unique("trace-killed-host");
    let mut tracer = Child::joined(&name);
    assert!(tracer.is_host());
    let mut other = Child::joined(&name);
    assert_eq!(tracer.ask("trace"), "done");
    let domain = host(&name);
    assert_eq!(domain.tracer(), Some(tracer.space()));
    tracer.kill();
    until("the trace is off", || domain.tracer().is_none());
    assert_eq!(other.ask("check"), "Ok(())");
    drop(domain.trace().unwrap());
}

#[test]
fn a_tracer_sees_that_it_is_alone() {
    let name = unique("trace-alone");
    let mut member = Child::joined(&name);
    let domain = host(&name);
    let mut trace = domain.trace().unwrap();
    assert!(trace.drain(drop).unwrap().company);
    // The host ends: the tracer takes its place, and reports its death itself.
    let pid = member.pid();
    member.kill();
    let mut events = Vec::new();
    until("nobody else is there", || {
        !trace.drain(|event| events.push(event)).unwrap().company
    });
    trace.finish(|event| events.push(event)).unwrap();
    let died = of(&events, EventKind::Death);
    assert_eq!(died.len(), 1);
    assert_eq!(died[0].about.map(|(_, process)| process), Some(pid));
    assert_eq!(died[0].process, std::process::id());
}

/// Bytes that the domain's region takes, all told.
fn region_bytes(domain: &Domain) -> u64 {
    let name = OsString::from(format!("/memfd:portolan:{} (deleted)", domain.name()));
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    let mut paths = entries.map(|entry| entry.unwrap().path());
    let region = paths.find(|path| std::fs::read_link(path).is_ok_and(|to| to.as_os_str() == name));
    std::fs::metadata(region.unwrap()).unwrap().blocks() * 512
}

#[test]
fn a_trace_takes_memory_only_for_those_who_are_there() {
    let name = unique("trace-memory");
    let domain = host(&name);
    let mut member = Child::joined(&name);
    let ring = 4096 + 8192 * 64;
    let before = region_bytes(&domain);
    let trace = domain.trace().unwrap();
    assert_eq!(region_bytes(&domain), before + 2 * ring);
    // The next one uses the same memory.
    drop(trace);
    drop(domain.trace().unwrap());
    assert_eq!(region_bytes(&domain), before + 2 * ring);
    // The dead one's is given back; ours stays until we leave.
    member.kill();
    until("the member's ring is given back", || {
        region_bytes(&domain) <= before + ring
    });
}
