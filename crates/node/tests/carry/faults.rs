//! Links that are cut, peers that are silent, given up and started again, programs that are killed.

use std::time::{Duration, Instant};

use portolan::{
    Access, ConnectError, Deadline, Domain, Message, Notice, PortOptions, RequestError, SendError,
    WhenFull,
};
use portolan_testkit::{Child, PATIENCE, obey, until};

use crate::machine::{Machine, Network, Patience, Plan};
use crate::messages::{ask, bind, is_empty, is_numbered, numbered, send, serve, two};

crate::scenes! {
    a_link_that_is_cut_again_and_again_loses_doubles_and_reorders_nothing,
    requests_outlive_a_cut,
    a_silent_peer_is_unreachable_and_nothing_is_lost_when_it_heals,
    a_peer_that_is_given_up_ends_requests_and_kills_rights,
    a_flush_says_when_messages_are_there_and_when_they_are_lost,
    a_silent_node_is_told_to_who_watches_and_to_who_asks_for_a_name,
    a_node_that_is_started_again_is_another_one,
    who_has_no_time_is_not_told_that_a_node_is_none_that_is_there,
    a_node_that_leaves_or_spans_no_more_kills_rights,
    a_program_that_is_killed_leaves_what_it_has_sent,
    a_message_that_there_is_no_memory_for_comes_when_there_is,
    a_message_that_waits_for_memory_comes_though_its_port_was_full_meanwhile,
    a_message_that_no_memory_is_enough_for_is_left_behind,
}

const SHORT: Patience = Patience {
    silent: Duration::from_millis(600),
    dead: Duration::from_secs(60),
};

pub(crate) fn two_with(network: &Network, patience: Patience) -> (Machine, Machine) {
    let of = |name| {
        Machine::planned(
            network,
            &Plan {
                name,
                patience,
                ..Plan::default()
            },
        )
    };
    let (hall, roof) = (of("hall"), of("roof"));
    roof.linked(&hall);
    (hall, roof)
}

fn a_link_that_is_cut_again_and_again_loses_doubles_and_reorders_nothing(network: &Network) {
    let (hall, roof) = two_with(network, Patience::LONG);
    let mut upper = bind(&hall, "upper");
    let right = roof.domain.connect("upper", PATIENCE).unwrap();
    let lengths = |number: u32| match number % 5 {
        0 => vec![700_000, 1],
        1 => vec![],
        2 => vec![10_000],
        3 => vec![64 << 10],
        _ => vec![3 << 20],
    };
    std::thread::scope(|scope| {
        let domain = &roof.domain;
        let (right, of) = (&right, &lengths);
        scope.spawn(move || {
            for number in 0..120 {
                send(right, numbered(domain, number, &of(number)));
            }
        });
        let faults = [hall.faults.clone(), roof.faults.clone()];
        let cuts = scope.spawn(move || {
            for cut in 0..12_u64 {
                std::thread::sleep(Duration::from_millis(60));
                let faults = &faults[(cut % 2) as usize];
                // In the middle of a record, of a fragment, of a head.
                match cut % 3 {
                    0 => faults.cut(),
                    _ => faults.cut_after(1000 * cut + 7),
                }
                std::thread::sleep(Duration::from_millis(20));
                faults.heal();
            }
        });
        for number in 0..120 {
            let came = upper.receive(Access::Later, PATIENCE).unwrap();
            is_numbered(&came, number, &lengths(number));
        }
        cuts.join().unwrap();
    });
    hall.faults.heal();
    roof.faults.heal();
    hall.is_linked(&roof);
    let more = upper.receive(Access::Later, Deadline::after(Duration::from_millis(200)));
    assert!(more.is_err(), "{more:?}");
    is_empty(&hall);
    is_empty(&roof);
}

fn requests_outlive_a_cut(network: &Network) {
    let (hall, roof) = two_with(network, Patience::LONG);
    let mut upper = serve(&hall, "upper");
    let right = roof.domain.connect("upper", PATIENCE).unwrap();
    for number in 0..10 {
        let message = numbered(&roof.domain, number, &[100_000]);
        let mut pending = right.begin_request(message, WhenFull::Fail).unwrap();
        if number % 2 == 0 {
            roof.faults.cut();
        }
        let request = upper.get_request(Access::Later, PATIENCE).unwrap();
        is_numbered(&request.message, number, &[100_000]);
        let answer = numbered(&hall.domain, number + 100, &[200_000]);
        request.reply(answer).unwrap();
        if number % 2 == 1 {
            hall.faults.cut();
        }
        let answer = pending.wait(Access::Later, PATIENCE).unwrap();
        is_numbered(&answer, number + 100, &[200_000]);
    }
}

fn a_silent_peer_is_unreachable_and_nothing_is_lost_when_it_heals(network: &Network) {
    let (hall, roof) = two_with(network, SHORT);
    let mut upper = bind(&hall, "upper");
    let mut asked = serve(&hall, "asked");
    let right = roof.domain.connect("upper", PATIENCE).unwrap();
    let asks = roof.domain.connect("asked", PATIENCE).unwrap();
    send(&right, numbered(&roof.domain, 0, &[]));
    let mut pending = asks
        .begin_request(Message::new(b"?").unwrap(), WhenFull::Fail)
        .unwrap();
    let request = asked.get_request(Access::Later, PATIENCE).unwrap();
    // Both ways, and no side is told.
    hall.faults.stall_until(Duration::MAX);
    roof.faults.stall_until(Duration::MAX);
    let mut sent = 1;
    let (node, _) = loop {
        let message = numbered(&roof.domain, sent, &[5000]);
        match right.send(message, WhenFull::Fail) {
            Ok(()) => sent += 1,
            Err(refused) => match refused.why {
                SendError::Unreachable { node, since } => break (node, since),
                SendError::Full { .. } => std::thread::sleep(Duration::from_millis(5)),
                other => panic!("{other}"),
            },
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(node, "hall");
    let nodes = roof.domain.nodes(PATIENCE).unwrap();
    assert!(
        nodes
            .iter()
            .any(|node| node.name == "hall" && node.unreachable_since.is_some())
    );
    request.reply(Message::new(b"!").unwrap()).unwrap();
    hall.faults.heal();
    roof.faults.heal();
    roof.is_linked(&hall);
    assert_eq!(
        pending.wait(Access::Later, PATIENCE).unwrap().header(),
        b"!"
    );
    for number in 0..sent {
        let came = upper.receive(Access::Later, PATIENCE).unwrap();
        assert_eq!(came.header(), number.to_le_bytes());
    }
    send(&right, numbered(&roof.domain, sent, &[]));
    let came = upper.receive(Access::Later, PATIENCE).unwrap();
    is_numbered(&came, sent, &[]);
}

fn a_peer_that_is_given_up_ends_requests_and_kills_rights(network: &Network) {
    let patience = Patience {
        silent: Duration::from_millis(300),
        dead: Duration::from_millis(900),
    };
    let (hall, roof) = two_with(network, patience);
    let mut upper = serve(&hall, "upper");
    let right = roof.domain.connect("upper", PATIENCE).unwrap();
    let begin = || {
        right
            .begin_request(Message::new(b"?").unwrap(), WhenFull::Fail)
            .unwrap()
    };
    let (mut open, mut queued) = (begin(), begin());
    let request = upper.get_request(Access::Later, PATIENCE).unwrap();
    hall.faults.stall_until(Duration::MAX);
    roof.faults.stall_until(Duration::MAX);
    for pending in [&mut open, &mut queued] {
        let lost = pending.wait(Access::Later, PATIENCE);
        assert!(
            matches!(&lost, Err(RequestError::NodeLost { node }) if node == "hall"),
            "{lost:?}"
        );
    }
    until("the right is dead", || !right.is_live());
    until("what was lent is taken back", || {
        hall.report().spans[0].lent.is_empty()
    });
    hall.faults.heal();
    roof.faults.heal();
    roof.is_linked(&hall);
    // The old answer leads nowhere, and a new association has new rights.
    let _ = request.reply(Message::new(b"late").unwrap());
    let right = roof.domain.connect("upper", PATIENCE).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            loop {
                let request = upper.get_request(Access::Later, PATIENCE).unwrap();
                let is_last = request.message.header() == b"again";
                let answer = Message::new(request.message.header()).unwrap();
                let _ = request.reply(answer);
                if is_last {
                    return;
                }
            }
        });
        let answer = ask(&right, Message::new(b"again").unwrap()).unwrap();
        assert_eq!(answer.header(), b"again");
    });
}

fn a_flush_says_when_messages_are_there_and_when_they_are_lost(network: &Network) {
    let patience = Patience {
        silent: Duration::from_millis(300),
        dead: Duration::from_millis(1500),
    };
    let (hall, roof) = two_with(network, patience);
    let mut upper = bind(&hall, "upper");
    let right = roof.domain.connect("upper", PATIENCE).unwrap();
    for number in 0..5 {
        send(&right, numbered(&roof.domain, number, &[100_000]));
    }
    right.flush(PATIENCE).unwrap();
    // They are in its queue, and nobody has taken them.
    assert_eq!(upper.depth(), 5);
    for number in 0..5 {
        is_numbered(
            &upper.receive(Access::Later, PATIENCE).unwrap(),
            number,
            &[100_000],
        );
    }
    // A full port: what is behind it has not arrived.
    let mut sent = 5;
    while right
        .send(
            numbered(&roof.domain, sent, &[]),
            Deadline::after(Duration::from_millis(300)),
        )
        .is_ok()
    {
        sent += 1;
    }
    let late = right.flush(Duration::from_millis(50));
    assert!(late.is_err(), "{late:?}");
    let taken = sent - 5;
    for number in 5..sent {
        is_numbered(
            &upper.receive(Access::Later, PATIENCE).unwrap(),
            number,
            &[],
        );
    }
    right.flush(PATIENCE).unwrap();
    assert!(taken > 0 && roof.report().lost.is_empty());
    // Sent into a link that is dead already.
    hall.faults.stall_until(Duration::MAX);
    roof.faults.stall_until(Duration::MAX);
    for number in 0..3 {
        send(&right, numbered(&roof.domain, number, &[]));
    }
    let lost = right.flush(PATIENCE);
    assert!(
        matches!(&lost, Err(RequestError::NodeLost { node }) if node == "hall"),
        "{lost:?}"
    );
    let lost = roof.report().lost;
    assert_eq!(lost.len(), 1, "{lost:?}");
    assert_eq!((lost[0].name.as_str(), lost[0].messages), ("hall", 3));
    hall.faults.heal();
    roof.faults.heal();
    roof.is_linked(&hall);
    // A flush that comes when the port is closed is no message that is lost with it.
    let right = roof.domain.connect("upper", PATIENCE).unwrap();
    send(&right, numbered(&roof.domain, 0, &[]));
    right.flush(PATIENCE).unwrap();
    drop(upper);
    while right.is_live() {
        // All has arrived, or the port is dead meanwhile.
        let _ = right.flush(PATIENCE);
    }
    assert_eq!(roof.report().lost[0].messages, 3);
}

fn a_silent_node_is_told_to_who_watches_and_to_who_asks_for_a_name(network: &Network) {
    let (hall, roof) = two_with(network, SHORT);
    let _upper = bind(&hall, "upper");
    let right = roof.domain.connect("upper", PATIENCE).unwrap();
    let mut told = roof.domain.bind(PortOptions::unnamed()).unwrap();
    right.watch_reach(&told, 7).unwrap();
    hall.faults.stall_until(Duration::MAX);
    roof.faults.stall_until(Duration::MAX);
    let mut notice = || told.receive(Access::Later, PATIENCE).unwrap().notice();
    assert_eq!(notice(), Some(Notice::Unreachable { token: 7 }));
    let begun = Instant::now();
    let wait = Duration::from_secs(2);
    let silent = roof.domain.connect("upper@hall", wait);
    let text = silent.as_ref().unwrap_err().to_string();
    let Err(ConnectError::Unreachable { name, node, since }) = silent else {
        panic!("{text}");
    };
    assert_eq!((name.as_str(), node.as_str()), ("upper", "hall"));
    assert!(since < begun && begun.elapsed() >= wait);
    assert!(text.contains("has been silent for"), "{text}");
    // Who waits long enough finds it.
    std::thread::scope(|scope| {
        let domain = &roof.domain;
        let waits = scope.spawn(move || domain.connect("upper@hall", PATIENCE));
        std::thread::sleep(Duration::from_millis(50));
        hall.faults.heal();
        roof.faults.heal();
        assert!(waits.join().unwrap().is_ok());
    });
    assert_eq!(notice(), Some(Notice::Reachable { token: 7 }));
}

/// It asks so late that the node hears of it when its time is over.
fn who_has_no_time_is_not_told_that_a_node_is_none_that_is_there(network: &Network) {
    let (hall, roof) = two(network);
    let _upper = bind(&hall, "upper");
    for time in 0..1000 {
        let time = Duration::from_micros(time % 100);
        let found = roof.domain.connect("upper@hall", time);
        let is_none = matches!(found, Err(ConnectError::NoSuchNode { .. }));
        assert!(!is_none, "within {time:?}: {found:?}");
    }
}

fn a_node_that_is_started_again_is_another_one(network: &Network) {
    let (mut hall, mut roof) = two(network);
    let mut upper = bind(&hall, "upper");
    let mut served = serve(&hall, "served");
    let right = roof.domain.connect("upper", PATIENCE).unwrap();
    let asks = roof.domain.connect("served", PATIENCE).unwrap();
    send(&right, numbered(&roof.domain, 1, &[9000]));
    is_numbered(&upper.receive(Access::Later, PATIENCE).unwrap(), 1, &[9000]);
    let mut pending = asks
        .begin_request(Message::new(b"?").unwrap(), WhenFull::Fail)
        .unwrap();
    let _request = served.get_request(Access::Later, PATIENCE).unwrap();
    // Of the home: its ports live on, the rights of others do not.
    hall.end();
    hall.start();
    roof.link(&hall);
    until("the right is dead", || !right.is_live());
    let lost = pending.wait(Access::Later, PATIENCE);
    assert!(
        matches!(lost, Err(RequestError::NodeLost { .. })),
        "{lost:?}"
    );
    let right = roof.domain.connect("upper", PATIENCE).unwrap();
    send(&right, numbered(&roof.domain, 2, &[9000]));
    is_numbered(&upper.receive(Access::Later, PATIENCE).unwrap(), 2, &[9000]);
    // Of the borrower: its proxies are closed with it.
    roof.end();
    until("the right is dead", || !right.is_live());
    until("nothing is lent", || {
        hall.report().spans[0].lent.is_empty() || !hall.is_up(&roof)
    });
    roof.start();
    roof.linked(&hall);
    let right = roof.domain.connect("upper", PATIENCE).unwrap();
    send(&right, numbered(&roof.domain, 3, &[1]));
    is_numbered(&upper.receive(Access::Later, PATIENCE).unwrap(), 3, &[1]);
}

fn a_node_that_leaves_or_spans_no_more_kills_rights(network: &Network) {
    let (hall, roof) = two(network);
    let attic = Machine::new(network, "attic");
    attic.linked(&hall);
    let upper = serve(&hall, "upper");
    let from_roof = roof.domain.connect("upper", PATIENCE).unwrap();
    let from_attic = attic.domain.connect("upper", PATIENCE).unwrap();
    attic.leave();
    until("its rights are dead", || !from_attic.is_live());
    let mut pending = from_roof
        .begin_request(Message::default(), WhenFull::Fail)
        .unwrap();
    hall.unspan();
    let ended = pending.wait(Access::Later, PATIENCE);
    assert!(matches!(ended, Err(RequestError::ServerDead)), "{ended:?}");
    until("the right is dead", || !from_roof.is_live());
    drop(upper);
}

#[test]
fn sends_and_waits_to_be_killed() {
    obey(|order| {
        let domain = Domain::join(order)?;
        let right = domain.connect("upper", PATIENCE)?;
        for number in 0..40 {
            send(&right, numbered(&domain, number, &[50_000]));
        }
        // It is under way still.
        std::mem::forget((domain, right));
        Ok("sent".to_owned())
    });
}

fn a_program_that_is_killed_leaves_what_it_has_sent(network: &Network) {
    let (hall, roof) = two(network);
    let mut upper = bind(&hall, "upper");
    let mut child = Child::running("faults::sends_and_waits_to_be_killed", |_| {});
    assert_eq!(child.ask(roof.domain.name()), "sent");
    child.kill();
    for number in 0..40 {
        let came = upper.receive(Access::Later, PATIENCE).unwrap();
        is_numbered(&came, number, &[50_000]);
    }
    until("no proxy is left", || {
        roof.report().spans[0].proxies.is_empty()
    });
    is_empty(&hall);
    is_empty(&roof);
}

/// A machine whose domain has 8 MiB, and one that is linked with it.
fn short_of_memory(network: &Network) -> (Machine, Machine) {
    let plan = Plan {
        name: "hall",
        memory: Some(8 << 20),
        ..Plan::default()
    };
    let hall = Machine::planned(network, &plan);
    let roof = Machine::new(network, "roof");
    roof.linked(&hall);
    (hall, roof)
}

fn a_message_that_there_is_no_memory_for_comes_when_there_is(network: &Network) {
    let (hall, roof) = short_of_memory(network);
    let mut upper = bind(&hall, "upper");
    let options = PortOptions::named("other").spanned();
    let mut other = hall.domain.bind(options).unwrap();
    let right = roof.domain.connect("upper", PATIENCE).unwrap();
    let beside = roof.domain.connect("other", PATIENCE).unwrap();
    let mut taken: Vec<_> = (0..5)
        .map(|_| hall.domain.allocate(1 << 20).unwrap())
        .collect();
    for number in 0..6 {
        send(&right, numbered(&roof.domain, number, &[3 << 20]));
    }
    // What needs little goes on beside.
    for number in 0..20 {
        send(&beside, numbered(&roof.domain, number, &[]));
        is_numbered(
            &other.receive(Access::Later, PATIENCE).unwrap(),
            number,
            &[],
        );
    }
    taken.clear();
    for number in 0..6 {
        let came = upper.receive(Access::Later, PATIENCE).unwrap();
        is_numbered(&came, number, &[3 << 20]);
    }
}

fn a_message_that_waits_for_memory_comes_though_its_port_was_full_meanwhile(network: &Network) {
    let (hall, roof) = short_of_memory(network);
    let options = PortOptions::named("upper").queue(7).spanned();
    let mut upper = hall.domain.bind(options).unwrap();
    let right = roof.domain.connect("upper", PATIENCE).unwrap();
    let taken: Vec<_> = (0..6)
        .map(|_| hall.domain.allocate(1 << 20).unwrap())
        .collect();
    send(&right, numbered(&roof.domain, 7, &[3 << 20]));
    until("it waits", || {
        let report = hall.report();
        let mut lent = report.spans[0].lent.iter();
        lent.any(|lent| !lent.waiting.is_empty())
    });
    let own = upper.make_send();
    let mut full = 0;
    while own.send(Message::default(), WhenFull::Fail).is_ok() {
        full += 1;
    }
    // Longer than the longest pause between two looks at the port: one of them finds it full.
    std::thread::sleep(Duration::from_millis(1500));
    drop(taken);
    for _ in 0..full {
        assert!(upper.receive(Access::Later, PATIENCE).unwrap().is_empty());
    }
    let came = upper.receive(Access::Later, PATIENCE).unwrap();
    is_numbered(&came, 7, &[3 << 20]);
}

fn a_message_that_no_memory_is_enough_for_is_left_behind(network: &Network) {
    let hall = Machine::planned(
        network,
        &Plan {
            name: "hall",
            memory: Some(4 << 20),
            ..Plan::default()
        },
    );
    let roof = Machine::new(network, "roof");
    roof.linked(&hall);
    let (mut upper, served) = (bind(&hall, "upper"), serve(&hall, "served"));
    let right = roof.domain.connect("upper", PATIENCE).unwrap();
    for number in 0..4 {
        let length = if number % 2 == 0 { 9 << 20 } else { 100 };
        send(&right, numbered(&roof.domain, number, &[length]));
    }
    for number in [1, 3] {
        let came = upper.receive(Access::Later, PATIENCE).unwrap();
        is_numbered(&came, number, &[100]);
    }
    let asks = roof.domain.connect("served", PATIENCE).unwrap();
    let answer = ask(&asks, numbered(&roof.domain, 4, &[9 << 20]));
    assert!(matches!(answer, Err(RequestError::Dropped)), "{answer:?}");
    assert_eq!(hall.report().left_behind, 3);
    drop(served);
    is_empty(&hall);
    is_empty(&roof);
}
