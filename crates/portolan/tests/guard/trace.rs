//! First touches and stray accesses are recorded in the fault handler itself.

use crate::child::{Child, unique};
use portolan::{
    Access, Deadline, Domain, Event, EventKind, Message, PortOptions, Protection, TraceOptions,
    WhenFull,
};

type Outcome = Result<(), Box<dyn std::error::Error>>;

#[test]
fn first_touches_are_seen_and_opening_at_once_is_too() -> Outcome {
    let builder = Domain::builder("guarded").size(256 << 20);
    let domain = builder.protection(Protection::Guarded).private()?;
    let mut port = domain.bind(PortOptions::unnamed())?;
    let right = port.make_send();
    let options = TraceOptions::default().only([EventKind::Fault, EventKind::Map]);
    let mut trace = domain.trace_with(options)?;
    // A small extent is opened by 16 pages at a time, a large one at once.
    for (size, faults) in [
        (4096, vec![4096]),
        (128 << 10, vec![64 << 10; 2]),
        (4 << 20, vec![4 << 20]),
    ] {
        for access in [Access::Later, Access::Now] {
            let mut message = Message::default();
            message.push(domain.allocate(size)?)?;
            right.send(message, WhenFull::Fail)?;
            let mut events: Vec<Event> = Vec::new();
            trace.drain(drop)?;
            let message = port.receive(access, Deadline::NOW)?;
            let sum: usize = message.extents()[0].iter().map(|b| usize::from(*b)).sum();
            std::hint::black_box(sum);
            trace.drain(|event| events.push(event))?;
            let seen: Vec<_> = events.iter().map(|e| (e.kind, e.bytes)).collect();
            let expected: Vec<_> = match access {
                Access::Now => vec![(EventKind::Map, size as u64)],
                Access::Later => faults.iter().map(|b| (EventKind::Fault, *b)).collect(),
            };
            assert_eq!(seen, expected, "{size} {access:?}");
            let us = rustix::thread::gettid()
                .as_raw_nonzero()
                .get()
                .unsigned_abs();
            assert!(events.iter().all(|e| e.thread == us));
        }
    }
    Ok(())
}

#[test]
fn a_stray_access_is_the_last_that_is_heard_of_a_process() {
    let name = unique("trace-stray");
    let mut receiver = Child::joined(&name);
    receiver.ask("bind frames");
    let mut sender = Child::joined(&name);
    sender.ask("connect frames");
    let builder = Domain::builder(&name).protection(Protection::Guarded);
    let domain = builder.join().unwrap();
    let mut trace = domain.trace().unwrap();
    let address = sender.number("allocate 4096 7");
    sender.ask("send 0");
    receiver.ask("receive now");
    sender.dies_of(&format!("poke {address}"));
    let mut events: Vec<Event> = Vec::new();
    trace.finish(|event| events.push(event)).unwrap();
    let last = events
        .iter()
        .filter(|e| e.process == sender.pid())
        .max_by_key(|e| e.began);
    let last = last.unwrap();
    assert_eq!((last.kind, last.bytes), (EventKind::Fault, 0), "{events:?}");
}
