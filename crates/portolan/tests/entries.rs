//! Entries of ports and the memory of their queues: what closed ports had is had again, in any
//! shape, within the domain's limit, also when a process dies over it.

use portolan::{
    Access, AllocateError, BindError, Deadline, Domain, Message, PortOptions, ReceiveRight,
    WhenFull,
};
use portolan_abi::limits::MAX_PORTS;
use portolan_testkit::{SetOnDrop, unique, until};
use std::collections::{HashSet, VecDeque};
#[cfg(feature = "marks")]
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// Bytes of inline memory of the narrowest slot and of the widest.
const WIDTHS: [usize; 2] = [48, 496];

fn options(messages: usize, inline_bytes: usize) -> PortOptions {
    PortOptions::unnamed()
        .queue(messages)
        .inline_bytes(inline_bytes)
}

/// Sends and receives as many messages as the queue holds.
fn works(port: &mut ReceiveRight, messages: usize) {
    let right = port.make_send();
    for at in 0..messages {
        let message = Message::new(&at.to_le_bytes()).unwrap();
        right.send(message, WhenFull::Fail).unwrap();
    }
    for at in 0..messages {
        let message = port.receive(Access::Later, Deadline::NOW).unwrap();
        assert_eq!(message.header(), at.to_le_bytes());
    }
}

/// Everything else that a domain is used for goes on.
fn is_usable(domain: &Domain) {
    for (messages, inline_bytes) in [(1, 48), (63, 112), (1000, 48), (5, 300), (4095, 112)] {
        let mut port = domain.bind(options(messages, inline_bytes)).unwrap();
        works(&mut port, messages);
    }
    let segment = domain.make_segment(None, 4096).unwrap();
    assert_eq!(segment.len(), 4096);
    let mut server = domain.bind(PortOptions::unnamed().synchronous()).unwrap();
    let client = server.make_send();
    let pending = client
        .begin_request(Message::new(b"?").unwrap(), WhenFull::Fail)
        .unwrap();
    let request = server.get_request(Access::Later, Deadline::NOW).unwrap();
    drop(request);
    drop(pending);
}

#[test]
fn the_largest_queues_leave_nothing_behind() {
    let domain = Domain::builder("large").limit(256 * MIB).private().unwrap();
    // More at one time than the limit has room for, and more in all than there are addresses.
    let mut bound = 0;
    for _ in 0..20 {
        let mut ports = Vec::new();
        let error = loop {
            match domain.bind(options(65_535, 496)) {
                Ok(port) => ports.push(port),
                Err(error) => break error,
            }
        };
        assert!(
            matches!(error, BindError::OutOfMemory { limit, .. } if limit == 256 * MIB),
            "{error}"
        );
        // 32 MiB each.
        assert_eq!(ports.len(), 8);
        bound += ports.len();
    }
    assert!(bound > 128);
    is_usable(&domain);
    // Nor does the memory: all of the limit can be had as extents.
    assert!(domain.allocate(200 << 20).is_ok());
}

#[test]
fn as_many_small_ones_as_there_are_leave_room_for_any_other() {
    let domain = Domain::private().unwrap();
    let bind_all = |inline_bytes| {
        let mut ports = Vec::new();
        while let Ok(port) = domain.bind(options(1, inline_bytes)) {
            ports.push(port);
        }
        ports.len()
    };
    assert_eq!(bind_all(48), MAX_PORTS);
    is_usable(&domain);
    assert_eq!(bind_all(112), MAX_PORTS);
    is_usable(&domain);
}

#[test]
fn a_bind_that_does_not_fit_takes_nothing_away() {
    let domain = Domain::builder("fits").limit(32 * MIB).private().unwrap();
    for _ in 0..100 {
        let extent = domain.allocate(30 << 20).unwrap();
        let refused = domain.bind(options(65_535, 496)).unwrap_err();
        assert!(
            matches!(refused, BindError::OutOfMemory { .. }),
            "{refused}"
        );
        drop(extent);
    }
    is_usable(&domain);
    assert_eq!(domain.survey().unwrap().ports.len(), 0);
}

#[test]
fn queues_and_extents_share_the_limit() {
    let domain = Domain::builder("shared").limit(64 * MIB).private().unwrap();
    let ports: Vec<_> = (0..5)
        .map(|_| domain.bind(options(32_767, 240)).unwrap())
        .collect();
    // 8 MiB each, 40 in all.
    let refused = domain.allocate(26 << 20);
    assert!(matches!(refused, Err(AllocateError::OutOfPages { .. })));
    let extent = domain.allocate(24 << 20).unwrap();
    assert!(matches!(
        domain.bind(options(32_767, 240)),
        Err(BindError::OutOfMemory { .. })
    ));
    drop(ports);
    // What closed ports left goes to extents, and back.
    let more = domain.allocate(40 << 20).unwrap();
    drop((extent, more));
    let ports: Vec<_> = (0..8)
        .map(|_| domain.bind(options(32_767, 240)).unwrap())
        .collect();
    drop(ports);
    // And to the system.
    domain.trim().unwrap();
    assert_eq!(domain.survey().unwrap().memory.free, 64 * MIB);
}

#[test]
fn every_shape_works_after_every_other() {
    let domain = Domain::builder("shapes")
        .limit(512 * MIB)
        .private()
        .unwrap();
    let mut open = VecDeque::new();
    let mut number = 7_u32;
    for round in 0..3000 {
        // Any sequence will do, as long as it is the same each time.
        number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let messages = (1_usize << (number >> 28)).min(4095) + (number >> 8) as usize % 3;
        let inline_bytes = WIDTHS[round % 2] - (number >> 12) as usize % 40;
        let mut port = domain.bind(options(messages, inline_bytes)).unwrap();
        works(&mut port, messages.min(100));
        let right = port.make_send();
        open.push_back((port, right));
        if open.len() > 20 {
            let (mut port, right) = open.pop_front().unwrap();
            works(&mut port, 1);
            drop(port);
            // A dead name, and it stays one.
            open.iter().for_each(|(_, right)| assert!(right.is_live()));
            assert!(right.send(Message::default(), WhenFull::Fail).is_err());
        }
    }
}

#[test]
fn entries_are_used_in_turn() {
    let domain = Domain::private().unwrap();
    let entry = || {
        let port = domain.bind(PortOptions::unnamed()).unwrap();
        let survey = domain.survey().unwrap();
        drop(port);
        survey
            .ports
            .last()
            .map(|port| (port.index, port.generation))
    };
    let first = entry().unwrap();
    let mut met = HashSet::from([first.0]);
    let mut binds = 0;
    let again = loop {
        let (index, generation) = entry().unwrap();
        binds += 1;
        if index == first.0 {
            break generation;
        }
        assert!(met.insert(index), "{index} came twice in one round");
    };
    assert!(binds >= 1000, "the same entry after {binds} binds");
    assert_eq!(again, first.1 + 1);
}

/// Senders whose right is dead at any moment, while their port's memory and entry become other
/// ports' all the time: what is sent to a port comes from those who were sent its right.
#[test]
fn senders_of_closed_ports_reach_no_other() {
    let domain = Domain::builder("stale").limit(64 * MIB).private().unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    let (give, take) = std::sync::mpsc::sync_channel::<(u64, portolan::SendRight)>(4);
    let is_done = || done.load(std::sync::atomic::Ordering::Relaxed);
    std::thread::scope(|scope| {
        let _over = SetOnDrop(&done);
        scope.spawn(move || {
            let mut rights = VecDeque::new();
            while !is_done() {
                if let Ok(right) = take.recv_timeout(Duration::from_millis(1)) {
                    rights.push_back(right);
                }
                if rights.len() > 8 {
                    rights.pop_front();
                }
                for (number, right) in &rights {
                    let message = Message::new(&number.to_le_bytes()).unwrap();
                    let _ = right.send(message, WhenFull::Fail);
                }
            }
        });
        let mut received = 0;
        let mut number = 0_u64;
        // Beside busy processes the sender may come to nothing for long.
        while number < 20_000 || received == 0 {
            number += 1;
            let shapes = [1, 3, 15, 63, 255];
            let messages = shapes[usize::try_from(number).unwrap() % shapes.len()];
            let mut port = domain.bind(options(messages, 48)).unwrap();
            let _ = give.try_send((number, port.make_send()));
            for _ in 0..3 {
                while let Ok(message) = port.receive(Access::Later, Deadline::NOW) {
                    assert_eq!(message.header(), number.to_le_bytes());
                    received += 1;
                }
            }
        }
    });
}

#[cfg(feature = "marks")]
#[test]
fn a_death_over_an_entry_or_its_memory_loses_neither() {
    const TEST: &str = "a_death_over_an_entry_or_its_memory_loses_neither";
    /// Marks of a bind, then of a close, then of giving memory to the system.
    const MARKS: [&str; 19] = [
        "entry.taken",
        "bind.entry_taken",
        "banks.named",
        "banks.claimed",
        "banks.taken",
        "bind.queue_taken",
        "banks.counted",
        "bind.memory_counted",
        "bind.memory_had",
        "bind.queue_open",
        "bind.done",
        "close.told",
        "entry.swept",
        "banks.emptied",
        "entry.emptied",
        "banks.returning",
        "entry.banks_returned",
        "entry.free",
        "entry.spare_emptied",
    ];
    if let Some([name, mark]) = portolan_testkit::role() {
        let domain = Domain::join(&name).unwrap();
        // Something to give to the system.
        drop(domain.bind(options(4095, 112)).unwrap());
        portolan_testkit::die_at(&mark, portolan_shm::mark::install);
        let large = domain.bind(options(65_535, 112)).unwrap();
        drop(large);
        drop(domain.bind(options(4095, 112)).unwrap());
        domain.trim().unwrap();
        panic!("it did not die");
    }
    let limit = 24 * MIB;
    for mark in MARKS {
        let name = unique("entry");
        let domain = Domain::builder(&name).limit(limit).join().unwrap();
        let mut child = portolan_testkit::spawn(TEST, &[&name, mark]);
        assert_eq!(child.wait().unwrap().signal(), Some(9), "{mark}");
        until(&format!("nothing is left after a death at {mark}"), || {
            domain.trim().unwrap();
            let survey = domain.survey().unwrap();
            let alone = survey.spaces.len() == 1 && survey.ports.is_empty();
            alone && survey.memory.free == limit
        });
        is_usable(&domain);
        // Two of the largest that fit at one time: no unit was lost, nor memory.
        for _ in 0..3 {
            let ports = [(); 2].map(|()| domain.bind(options(65_535, 112)).unwrap());
            drop(ports);
        }
        drop(domain.allocate(24 << 20).unwrap());
    }
}
