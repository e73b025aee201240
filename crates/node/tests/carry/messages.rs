//! Messages and requests, there and back, whole and in order.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use portolan::{
    Access, ConnectError, Deadline, Domain, Message, PortOptions, ReceiveRight, RequestError,
    SendRight, Urgency, WhenFull,
};
use portolan_abi::node::MAX_OPEN_REQUESTS;
use portolan_testkit::{PATIENCE, is_pattern, pattern, until};

use crate::machine::{Machine, Network};

crate::scenes! {
    messages_reach_a_port_on_another_machine_in_order,
    requests_are_answered_there_and_back,
    a_node_expects_something_behind_a_request_and_behind_an_answer_only,
    extents_of_all_lengths_come_as_they_were,
    many_ports_on_one_link_do_not_hold_up_one_another,
    a_port_that_is_full_keeps_its_senders_and_loses_nothing,
    names_are_found_on_the_node_that_has_them,
    rights_that_nobody_has_any_more_leave_nothing_behind,
    a_port_that_is_borrowed_again_and_again_takes_no_more_of_its_domain,
    requests_that_nobody_waits_for_any_more_make_room_for_others,
}

/// Two machines that are linked.
pub(crate) fn two(network: &Network) -> (Machine, Machine) {
    let (hall, roof) = (Machine::new(network, "hall"), Machine::new(network, "roof"));
    roof.linked(&hall);
    (hall, roof)
}

pub(crate) fn bind(machine: &Machine, name: &str) -> ReceiveRight {
    let options = PortOptions::named(name).spanned();
    machine.domain.bind(options).unwrap()
}

pub(crate) fn serve(machine: &Machine, name: &str) -> ReceiveRight {
    let options = PortOptions::named(name).spanned().synchronous();
    machine.domain.bind(options).unwrap()
}

/// A message with a number, and extents of these lengths.
pub(crate) fn numbered(domain: &Domain, number: u32, lengths: &[usize]) -> Message {
    let mut message = domain.message(&number.to_le_bytes()).unwrap();
    for length in lengths {
        let mut extent = domain.allocate(*length).unwrap();
        pattern(&mut extent, number.into());
        message.push(extent).unwrap();
    }
    message
}

#[track_caller]
pub(crate) fn is_numbered(message: &Message, number: u32, lengths: &[usize]) {
    assert_eq!(message.header(), number.to_le_bytes());
    let found: Vec<usize> = message.extents().iter().map(|it| it.len()).collect();
    assert_eq!(found, lengths);
    for extent in message.extents() {
        is_pattern(extent, number.into());
    }
}

pub(crate) fn send(right: &SendRight, message: Message) {
    right.send(message, Deadline::after(PATIENCE)).unwrap();
}

pub(crate) fn ask(right: &SendRight, message: Message) -> Result<Message, RequestError> {
    right.request_reply(message, Access::Later, PATIENCE)
}

/// Nothing is left of what was sent.
pub(crate) fn is_empty(machine: &Machine) {
    until("all memory is free", || {
        let survey = machine.domain.survey().unwrap();
        survey.spaces.iter().all(|space| space.extents == 0)
    });
}

fn messages_reach_a_port_on_another_machine_in_order(network: &Network) {
    let (hall, roof) = two(network);
    let mut upper = bind(&hall, "upper");
    let right = roof.domain.connect("upper", PATIENCE).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..3000 {
                let mut message = numbered(&roof.domain, number, &[]);
                if number % 2 == 0 {
                    let due = Instant::now() + Duration::from_secs(500);
                    message.set_urgency(Some(Urgency::Deadline(due)));
                } else {
                    message.set_urgency(Some(Urgency::Priority(number)));
                }
                send(&right, message);
            }
        });
        for number in 0..3000 {
            let came = upper.receive(Access::Later, PATIENCE).unwrap();
            is_numbered(&came, number, &[]);
            match came.urgency().unwrap() {
                Urgency::Deadline(at) => {
                    let left = at.saturating_duration_since(Instant::now()).as_secs();
                    assert!((400..=500).contains(&left), "{left}");
                }
                Urgency::Priority(priority) => assert_eq!(priority, number),
            }
        }
    });
}

/// Each of these is a look before the node's sleep.
fn a_node_expects_something_behind_a_request_and_behind_an_answer_only(network: &Network) {
    let (hall, roof) = two(network);
    let (mut upper, mut inbox) = (serve(&hall, "upper"), bind(&hall, "inbox"));
    let [asks, sends] = ["upper", "inbox"].map(|name| roof.domain.connect(name, PATIENCE).unwrap());
    let before = [hall.expected(), roof.expected()];
    assert_eq!(before, [0, 0]);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..20 {
                let request = upper.get_request(Access::Later, PATIENCE).unwrap();
                request.reply(Message::default()).unwrap();
            }
        });
        for _ in 0..20 {
            drop(ask(&asks, Message::default()).unwrap());
        }
    });
    assert_eq!([hall.expected(), roof.expected()], [20, 20]);
    for number in 0..20 {
        send(&sends, numbered(&roof.domain, number, &[100]));
        let message = inbox.receive(Access::Later, PATIENCE).unwrap();
        is_numbered(&message, number, &[100]);
    }
    assert_eq!([hall.expected(), roof.expected()], [20, 20]);
}

fn requests_are_answered_there_and_back(network: &Network) {
    let (hall, roof) = two(network);
    let mut upper = serve(&hall, "upper");
    let right = roof.domain.connect("upper", PATIENCE).unwrap();
    let mut upper = std::thread::scope(|scope| {
        let domain = &hall.domain;
        let server = scope.spawn(move || {
            for number in 0..200 {
                let request = upper.get_request(Access::Later, PATIENCE).unwrap();
                is_numbered(&request.message, number, &[3, 5000]);
                match number % 4 {
                    0 => drop(request),
                    _ => {
                        let answer = numbered(domain, number + 1000, &[20_000, 1]);
                        request.reply(answer).unwrap();
                    }
                }
            }
            upper
        });
        for number in 0..200 {
            let answer = ask(&right, numbered(&roof.domain, number, &[3, 5000]));
            match number % 4 {
                0 => assert!(matches!(answer, Err(RequestError::Dropped)), "{answer:?}"),
                _ => is_numbered(&answer.unwrap(), number + 1000, &[20_000, 1]),
            }
        }
        server.join().unwrap()
    });
    // Many are open at once, and answered in another order.
    let ask = |number| {
        let message = numbered(&roof.domain, number, &[100]);
        right.begin_request(message, WhenFull::Wait(PATIENCE.into()))
    };
    let mut open: BTreeMap<u32, _> = (0..60)
        .map(|number| (number, ask(number).unwrap()))
        .collect();
    let get = |_| upper.get_request(Access::Later, PATIENCE).unwrap();
    let mut requests: Vec<_> = (0..40).map(get).collect();
    while let Some(request) = requests.pop() {
        let answer = Message::new(request.message.header()).unwrap();
        request.reply(answer).unwrap();
    }
    drop(upper);
    for (number, pending) in &mut open {
        match pending.wait(Access::Later, PATIENCE) {
            Ok(answer) if *number < 40 => assert_eq!(answer.header(), number.to_le_bytes()),
            Err(RequestError::ServerDead) if *number >= 40 => {}
            other => panic!("{number}: {other:?}"),
        }
    }
    until("the right is dead", || !right.is_live());
    drop(open);
    is_empty(&hall);
    is_empty(&roof);
}

fn extents_of_all_lengths_come_as_they_were(network: &Network) {
    let (hall, roof) = two(network);
    let mut upper = bind(&hall, "upper");
    let right = roof.domain.connect("upper", PATIENCE).unwrap();
    let shapes: [&[usize]; 8] = [
        &[1],
        &[16 << 10],
        &[(16 << 10) + 1],
        &[64 << 10],
        &[1, 64 << 10, 4097, 1],
        &[8 << 20],
        &[3 << 20, 1, 5 << 20],
        &[1 << 20; 8],
    ];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (number, lengths) in (0..).zip(shapes) {
                send(&right, numbered(&roof.domain, number, lengths));
            }
        });
        for (number, lengths) in (0..).zip(shapes) {
            let came = upper.receive(Access::Later, PATIENCE).unwrap();
            is_numbered(&came, number, lengths);
        }
    });
    is_empty(&hall);
    is_empty(&roof);
}

fn many_ports_on_one_link_do_not_hold_up_one_another(network: &Network) {
    let (hall, roof) = two(network);
    // Nobody receives at this one, and its senders' queue fills.
    let stuck = bind(&hall, "stuck");
    let to_stuck = roof.domain.connect("stuck", PATIENCE).unwrap();
    while to_stuck
        .send(
            numbered(&roof.domain, 0, &[9000]),
            Deadline::after(Duration::from_millis(300)),
        )
        .is_ok()
    {}
    std::thread::scope(|scope| {
        for port in 0..20 {
            let name = format!("port {port}");
            let mut there = bind(&hall, &name);
            let domain = &roof.domain;
            scope.spawn(move || {
                let right = domain.connect(&name, PATIENCE).unwrap();
                for number in 0..50 {
                    send(&right, numbered(domain, number, &[100 * port + 1, 20_000]));
                    let came = there.receive(Access::Later, PATIENCE).unwrap();
                    is_numbered(&came, number, &[100 * port + 1, 20_000]);
                }
            });
        }
    });
    let report = roof.report();
    let mut proxies = report.spans[0].proxies.iter();
    assert!(
        proxies.any(|proxy| proxy.name == "stuck" && proxy.waits),
        "{report:#?}"
    );
    drop(stuck);
    until("the stuck right is dead", || !to_stuck.is_live());
    is_empty(&hall);
    is_empty(&roof);
}

fn a_port_that_is_full_keeps_its_senders_and_loses_nothing(network: &Network) {
    let (hall, roof) = two(network);
    let options = PortOptions::named("small").spanned().queue(1);
    let mut small = hall.domain.bind(options).unwrap();
    let right = roof.domain.connect("small", PATIENCE).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..300 {
                send(
                    &right,
                    numbered(&roof.domain, number, &[number as usize % 3 * 10_000 + 1]),
                );
            }
        });
        for number in 0..300 {
            if number % 50 == 0 {
                std::thread::sleep(Duration::from_millis(30));
            }
            let came = small.receive(Access::Later, PATIENCE).unwrap();
            is_numbered(&came, number, &[number as usize % 3 * 10_000 + 1]);
        }
    });
}

fn names_are_found_on_the_node_that_has_them(network: &Network) {
    let (hall, roof) = two(network);
    let attic = Machine::new(network, "attic");
    attic.linked(&hall);
    attic.linked(&roof);
    let _here = bind(&hall, "upper");
    let _there = bind(&roof, "upper");
    let _private = hall.domain.bind(PortOptions::named("private")).unwrap();
    let several = attic.domain.connect("upper", PATIENCE);
    let Err(ConnectError::Ambiguous { mut nodes, .. }) = several else {
        panic!("{several:?}");
    };
    nodes.sort();
    assert_eq!(nodes, ["hall", "roof"]);
    for node in ["hall", "roof"] {
        let named = attic.domain.connect(&format!("upper@{node}"), PATIENCE);
        assert!(named.unwrap().is_live());
    }
    let none = attic.domain.connect("upper@cellar", PATIENCE);
    assert!(
        matches!(none, Err(ConnectError::NoSuchNode { .. })),
        "{none:?}"
    );
    // What was not let out is not found, and what comes later is.
    let soon = Deadline::after(Duration::from_millis(300));
    let private = attic.domain.connect("private", soon);
    assert!(
        matches!(private, Err(ConnectError::NoSuchPort { .. })),
        "{private:?}"
    );
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| attic.domain.connect("later", PATIENCE).unwrap());
        std::thread::sleep(Duration::from_millis(100));
        let later = bind(&hall, "later");
        assert!(waits.join().unwrap().is_live());
        drop(later);
    });
    // Its own name, too.
    assert!(
        hall.domain
            .connect("upper@hall", PATIENCE)
            .unwrap()
            .is_live()
    );
    let nodes = attic.domain.nodes(PATIENCE).unwrap();
    let mut names: Vec<_> = nodes.iter().map(|node| node.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["attic", "hall", "roof"]);
}

fn a_port_that_is_borrowed_again_and_again_takes_no_more_of_its_domain(network: &Network) {
    let (hall, roof) = two(network);
    let upper = bind(&hall, "upper");
    let right = upper.make_send();
    // A node needs none of its domain's watches: all are taken.
    let mut told = hall.domain.bind(PortOptions::unnamed()).unwrap();
    let mut taken = 0;
    while right.watch(&told, taken).is_ok() {
        taken += 1;
    }
    // Some: it takes a second until the end of a loan is told.
    for _ in 0..5 {
        let right = roof.domain.connect("upper", PATIENCE).unwrap();
        drop(right);
        until("it is not lent any more", || {
            hall.report().spans[0].lent.is_empty()
        });
    }
    assert!(told.receive(Access::Later, Deadline::NOW).is_err());
}

fn rights_that_nobody_has_any_more_leave_nothing_behind(network: &Network) {
    let (hall, roof) = two(network);
    let mut upper = bind(&hall, "upper");
    for number in 0..20 {
        let right = roof.domain.connect("upper", PATIENCE).unwrap();
        send(&right, numbered(&roof.domain, number, &[5000]));
        // What was sent goes on though the right is gone.
        drop(right);
        let came = upper.receive(Access::Later, PATIENCE).unwrap();
        is_numbered(&came, number, &[5000]);
    }
    until("no proxy is left", || {
        roof.report().spans[0].proxies.is_empty()
    });
    until("nothing is lent", || hall.report().spans[0].lent.is_empty());
}

/// A server that answers nobody keeps no others from their answers.
fn requests_that_nobody_waits_for_any_more_make_room_for_others(network: &Network) {
    let (hall, roof) = two(network);
    let options = PortOptions::named("mute")
        .spanned()
        .synchronous()
        .queue(1000);
    let mut mute = hall.domain.bind(options).unwrap();
    let mut upper = serve(&hall, "upper");
    let right = roof.domain.connect("mute", PATIENCE).unwrap();
    let mut unanswered = Vec::new();
    for _ in 0..MAX_OPEN_REQUESTS {
        let pending = right.begin_request(Message::default(), WhenFull::Wait(PATIENCE.into()));
        drop(pending.unwrap());
        unanswered.push(mute.get_request(Access::Later, PATIENCE).unwrap());
    }
    let right = roof.domain.connect("upper", PATIENCE).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let request = upper.get_request(Access::Later, PATIENCE).unwrap();
            request.reply(Message::new(b"here").unwrap()).unwrap();
        });
        let answer = ask(&right, Message::default()).unwrap();
        assert_eq!(answer.header(), b"here");
    });
}
