//! Rights on their way: one that arrives while its sender counts, by threads held at marks; and
//! those in a message that a process was giving back when it died.
#![cfg(feature = "marks")]

use portolan::{Deadline, Domain, Message, PortOptions, Right, WhenFull};
use portolan_testkit::{PATIENCE, unique, until};
use std::cell::Cell;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const SENDER: u8 = 1;
const RECEIVER: u8 = 2;

thread_local! { static ROLE: Cell<u8> = const { Cell::new(0) }; }
static STEP: AtomicU32 = AtomicU32::new(0);

fn at_least(step: u32) {
    let began = Instant::now();
    while STEP.load(Ordering::SeqCst) < step && began.elapsed() < Duration::from_secs(3) {
        std::thread::yield_now();
    }
}

fn reach(step: u32) {
    STEP.fetch_max(step, Ordering::SeqCst);
}

fn hook(name: &'static str) {
    match (ROLE.with(Cell::get), name) {
        (SENDER, "send.cleared") => at_least(1),
        (RECEIVER, "right.arrives") => {
            reach(1);
            at_least(2);
        }
        // Every row was found empty; the right arrives and its message is taken.
        (SENDER, "rights.rows_read") => {
            reach(2);
            at_least(3);
        }
        (RECEIVER, "receive.taken") => reach(3),
        _ => {}
    }
}

#[test]
fn a_right_that_arrives_during_a_count() {
    portolan_shm::mark::install(hook);
    let domain = Domain::private().unwrap();
    let mut port = domain.bind(PortOptions::unnamed()).unwrap();
    port.set_waiting(portolan::Waiting::Poll);
    let right = port.make_send();
    let segment = domain.make_segment(None, 4096).unwrap();
    segment.write_at(0, &[7; 8]);
    let at = segment.address();
    let held = std::thread::scope(|scope| {
        let receiver = scope.spawn(move || {
            ROLE.with(|role| role.set(RECEIVER));
            let mut message = port.receive(Default::default(), Deadline::NEVER).unwrap();
            (message.take_rights().pop(), port)
        });
        scope.spawn(move || {
            ROLE.with(|role| role.set(SENDER));
            let mut message = Message::default();
            message.attach(segment).unwrap();
            right.send(message, WhenFull::Fail).unwrap();
        });
        receiver.join().unwrap()
    });
    let (Some(Right::Segment(held)), _port) = held else {
        panic!("dead on arrival")
    };
    let mut others = vec![];
    let mut reused = false;
    for _ in 0..600 {
        let mut extent = domain.allocate(4096).unwrap();
        extent.fill(9);
        reused |= extent.address() == at;
        others.push(extent);
        if reused {
            break;
        }
    }
    let mut now = [0; 8];
    held.read_at(0, &mut now);
    std::mem::forget(others);
    assert!(
        !reused && now == [7; 8],
        "the memory of a segment in use was handed out again, and holds {now:?}"
    );
}

/// The header, and with it the list of rights, lies in an extent, which is free before the slot is
/// closed: the host that closes the port after the death finds no rights any more.
#[test]
fn rights_in_a_long_message_count_no_more_when_who_gives_it_back_has_died() {
    const TEST: &str = "rights_in_a_long_message_count_no_more_when_who_gives_it_back_has_died";
    if let Some([name, mark]) = portolan_testkit::role() {
        let domain = Domain::join(&name).unwrap();
        let doomed = domain.bind(PortOptions::named("doomed")).unwrap();
        until("the message is there", || doomed.depth() == 1);
        portolan_testkit::die_at(&mark, portolan_shm::mark::install);
        drop(doomed);
        return;
    }
    for mark in ["close.slot", "close.disposed", "close.slot_drained"] {
        let name = unique("rights");
        let domain = Domain::join(&name).unwrap();
        let port = domain.bind(PortOptions::unnamed()).unwrap();
        let mut victim = portolan_testkit::spawn(TEST, &[&name, mark]);
        let doomed = domain.connect("doomed", PATIENCE).unwrap();
        let mut message = Message::new(&[7; 1_000]).unwrap();
        message.attach(port.make_send()).unwrap();
        doomed.send(message, WhenFull::Fail).unwrap();
        let ended = victim.wait().unwrap();
        assert_eq!(ended.signal(), Some(libc::SIGKILL), "{mark}: {ended}");
        until(&format!("nobody can send, after a death at {mark}"), || {
            port.senders() == 0
        });
    }
}

/// The taker of a long message notes the rights before the extent that lists them: if it dies in
/// between, that extent is free before its port is closed.
#[test]
fn rights_in_a_long_message_are_gone_when_who_takes_it_has_died() {
    const TEST: &str = "rights_in_a_long_message_are_gone_when_who_takes_it_has_died";
    if let Some([name, mark]) = portolan_testkit::role() {
        let domain = Domain::join(&name).unwrap();
        let mut doomed = domain.bind(PortOptions::named("doomed")).unwrap();
        until("the message is there", || doomed.depth() == 1);
        portolan_testkit::die_at(&mark, portolan_shm::mark::install);
        drop(doomed.receive(Default::default(), Deadline::NOW));
        return;
    }
    let marks = [
        "right.arrives",
        "receive.rights_noted",
        "receive.noted",
        "right.arrived",
    ];
    for mark in marks {
        let name = unique("taken");
        let domain = Domain::join(&name).unwrap();
        let port = domain.bind(PortOptions::unnamed()).unwrap();
        let carried = domain.bind(PortOptions::unnamed()).unwrap();
        let to_carried = carried.make_send();
        let mut victim = portolan_testkit::spawn(TEST, &[&name, mark]);
        let doomed = domain.connect("doomed", PATIENCE).unwrap();
        let mut message = Message::new(&[7; 1_000]).unwrap();
        message.attach(port.make_send()).unwrap();
        message.attach(carried).unwrap();
        doomed.send(message, WhenFull::Fail).unwrap();
        let ended = victim.wait().unwrap();
        assert_eq!(ended.signal(), Some(libc::SIGKILL), "{mark}: {ended}");
        until(&format!("nobody can send, after a death at {mark}"), || {
            port.senders() == 0
        });
        until(
            &format!("its port is closed, after a death at {mark}"),
            || !to_carried.is_live(),
        );
    }
}

/// A process dies while it sends rights on very many ports: all their counts may be wrong, and are put
/// right together. Rights that are held, and those in another message, stay counted.
#[test]
fn rights_on_many_ports_count_no_more_when_who_sends_them_has_died() {
    const TEST: &str = "rights_on_many_ports_count_no_more_when_who_sends_them_has_died";
    const MANY: usize = 64;
    if let Some([name, mark]) = portolan_testkit::role() {
        let domain = Domain::join(&name).unwrap();
        let connect = |name: &str| domain.connect(name, PATIENCE).unwrap();
        let mut message = Message::default();
        for number in 0..MANY {
            message.attach(connect(&format!("p{number}"))).unwrap();
        }
        let sink = connect("sink");
        portolan_testkit::die_at(&mark, portolan_shm::mark::install);
        sink.send(message, WhenFull::Fail).unwrap();
        return;
    }
    for mark in [
        "right.moves",
        "right.departs",
        "send.written",
        "send.published",
    ] {
        let name = unique("many");
        let domain = Domain::join(&name).unwrap();
        let bind = |name: &str| domain.bind(PortOptions::named(name)).unwrap();
        let mut ports: Vec<_> = (0..MANY).map(|n| bind(&format!("p{n}"))).collect();
        let sink = bind("sink");
        // One is held here, and one lies in a message.
        let held = ports[1].make_send();
        let mut message = Message::default();
        message.attach(ports[2].make_send()).unwrap();
        sink.make_send().send(message, WhenFull::Fail).unwrap();
        let mut victim = portolan_testkit::spawn(TEST, &[&name, mark]);
        let ended = victim.wait().unwrap();
        assert_eq!(ended.signal(), Some(libc::SIGKILL), "{mark}: {ended}");
        let sent = u32::from(mark == "send.published");
        let expected = |n: usize| sent + u32::from(n == 1 || n == 2);
        let all = ports.iter().enumerate();
        for (number, port) in all {
            until(
                &format!("of {number} is left what is, after {mark}"),
                || port.senders() == expected(number),
            );
        }
        if sent == 0 {
            ports[0].request_no_more_senders();
            let notice = ports[0].receive(Default::default(), Deadline::NOW).unwrap();
            assert_eq!(notice.notice(), Some(portolan::Notice::NoMoreSenders));
        }
        drop((held, sink));
    }
}
