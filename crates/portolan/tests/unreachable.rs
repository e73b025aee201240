//! Ports whose receive rights wait in one another's queues: no space can receive from them any
//! more, so they are closed, and what waits in them comes back.

use portolan::{
    Access, BindError, Deadline, Domain, Message, PortOptions, ReceiveRight, Right, SendError,
    SendRight, WhenFull,
};
use portolan_testkit::{unique, until};
use std::time::Duration;

const SHORT: Duration = Duration::from_secs(10);

fn port(domain: &Domain) -> (ReceiveRight, SendRight) {
    let port = domain.bind(PortOptions::unnamed()).unwrap();
    let right = port.make_send();
    (port, right)
}

/// A message with a receive right and an extent of so many bytes.
fn message(domain: &Domain, port: ReceiveRight, bytes: usize) -> Message {
    let mut message = Message::default();
    message.push(domain.allocate(bytes).unwrap()).unwrap();
    message.attach(port).unwrap();
    message
}

/// Ports in a cycle, each one's receive right in the next one's queue with an extent of
/// `bytes` bytes, and a send right on each.
fn cycle(domain: &Domain, ports: usize, bytes: usize) -> Vec<SendRight> {
    let (ports, rights): (Vec<_>, Vec<_>) = (0..ports).map(|_| port(domain)).unzip();
    for (at, port) in ports.into_iter().enumerate() {
        let next = &rights[(at + 1) % rights.len()];
        next.send(message(domain, port, bytes), WhenFull::Fail)
            .unwrap();
    }
    rights
}

fn used(domain: &Domain) -> u64 {
    domain.survey().unwrap().memory.used
}

#[test]
fn a_receive_right_is_not_sent_to_its_own_port() {
    let domain = Domain::private().unwrap();
    let (port, right) = port(&domain);
    let refused = right
        .send(message(&domain, port, 100), WhenFull::Fail)
        .unwrap_err();
    assert!(matches!(refused.why, SendError::IntoItself), "{refused}");
    // The message is whole, and the port is as it was.
    let mut rest = *refused.item;
    assert_eq!(rest.extents().len(), 1);
    let Some(Right::Receive(mut port)) = rest.take_rights().pop() else {
        panic!("the receive right is gone");
    };
    right
        .send(Message::new(b"on").unwrap(), WhenFull::Fail)
        .unwrap();
    let message = port.receive(Access::Later, Deadline::NOW).unwrap();
    assert_eq!(message.header(), b"on");
}

#[test]
fn memory_in_cycles_comes_back_where_it_is_short() {
    let limit = 16 << 20;
    let domain = Domain::builder("cycles").limit(limit).private().unwrap();
    for ports in [2, 3, 7] {
        let rights = cycle(&domain, ports, 1 << 20);
        assert!(rights.iter().all(SendRight::is_live));
        let all = domain.allocate(16 << 20).expect("what the cycle held");
        assert!(rights.iter().all(|right| !right.is_live()));
        assert_eq!(used(&domain), all.capacity() as u64);
    }
    // What hangs on a cycle goes with it: a port in the queue of one of its ports.
    let rights = cycle(&domain, 2, 1 << 20);
    let (hangs, on_it) = port(&domain);
    rights[0]
        .send(message(&domain, hangs, 4 << 20), WhenFull::Fail)
        .unwrap();
    drop(domain.allocate(16 << 20).expect("and what hung on it"));
    assert!(!on_it.is_live());
}

#[test]
fn what_can_be_received_stays() {
    let domain = Domain::builder("chain").limit(16 << 20).private().unwrap();
    let ((mut end, to_end), (middle, to_middle), (first, to_first)) =
        (port(&domain), port(&domain), port(&domain));
    to_middle
        .send(message(&domain, first, 4096), WhenFull::Fail)
        .unwrap();
    to_end
        .send(message(&domain, middle, 4096), WhenFull::Fail)
        .unwrap();
    assert!(domain.allocate(64 << 20).is_err());
    assert!(to_first.is_live() && to_middle.is_live());
    let mut taken = end.receive(Access::Later, Deadline::NOW).unwrap();
    let Some(Right::Receive(mut middle)) = taken.take_rights().pop() else {
        panic!("no receive right");
    };
    let mut taken = middle.receive(Access::Later, Deadline::NOW).unwrap();
    assert!(matches!(taken.take_rights().pop(), Some(Right::Receive(_))));
}

#[test]
fn a_bind_finds_the_entries_that_cycles_have() {
    let domain = Domain::private().unwrap();
    let rights = cycle(&domain, 500, 4096);
    let mut ports = Vec::new();
    loop {
        match domain.bind(PortOptions::unnamed().queue(1).inline_bytes(48)) {
            Ok(port) => ports.push(port),
            Err(BindError::NoRoom) => break,
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(ports.len(), portolan_abi::limits::MAX_PORTS);
    assert!(rights.iter().all(|right| !right.is_live()));
}

/// Ports in ports in ports, to any depth, are closed one after another.
#[test]
fn a_long_chain_is_closed_without_a_deep_stack() {
    let domain = Domain::private().unwrap();
    let (mut outer, mut last) = port(&domain);
    let mut rights = Vec::new();
    for _ in 0..10_000 {
        let (next, right) = port(&domain);
        right
            .send(message(&domain, outer, 1), WhenFull::Fail)
            .unwrap();
        rights.push(std::mem::replace(&mut last, right));
        outer = next;
    }
    let small = std::thread::Builder::new().stack_size(128 << 10);
    small.spawn(move || drop(outer)).unwrap().join().unwrap();
    assert!(rights.iter().all(|right| !right.is_live()));
    assert_eq!(used(&domain), 0);
}

#[test]
fn a_death_has_cycles_closed() {
    const TEST: &str = "a_death_has_cycles_closed";
    if let Some([name, mark]) = portolan_testkit::role() {
        let domain = Domain::join(&name).unwrap();
        let rights = cycle(&domain, 3, 1 << 20);
        let told = domain.connect("told", SHORT).unwrap();
        let mut message = Message::default();
        for right in rights {
            message.attach(right).unwrap();
        }
        told.send(message, WhenFull::Fail).unwrap();
        #[cfg(feature = "marks")]
        if mark != "-" {
            portolan_testkit::die_at(&mark, portolan_shm::mark::install);
            // Memory is short: it closes its own cycle, and dies over it.
            let _ = domain.allocate(1 << 40);
        }
        drop(mark);
        portolan_testkit::die();
    }
    let marks: &[&str] = if cfg!(feature = "marks") {
        &[
            "-",
            "cycle.closing",
            "close.disposed",
            "close.drained",
            "close.told",
            "entry.swept",
            "entry.banks_returned",
        ]
    } else {
        &["-"]
    };
    for mark in marks {
        let name = unique("cycle");
        let domain = Domain::join(&name).unwrap();
        let mut told = domain.bind(PortOptions::named("told")).unwrap();
        let mut child = portolan_testkit::spawn(TEST, &[&name, mark]);
        let mut message = told.receive(Access::Later, SHORT).unwrap();
        let rights = message.take_rights();
        assert_eq!(rights.len(), 3);
        child.wait().unwrap();
        until(
            &format!("the cycle is closed after a death at {mark}"),
            || {
                let closed = rights
                    .iter()
                    .all(|right| matches!(right, Right::Send(right) if !right.is_live()));
                closed && used(&domain) == 0
            },
        );
        until(&format!("nothing is left after a death at {mark}"), || {
            domain.survey().unwrap().ports.len() == 1
        });
    }
}
