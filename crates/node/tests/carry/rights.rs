//! Rights in messages between machines: over TLS, because secrets go with them.

use std::time::Duration;

use portolan::{
    Access, Deadline, Domain, Message, Notice, PortOptions, ReceiveRight, RequestError, Right,
    RightState, SendError, SendOnceRight, SendRight, WhenFull,
};
use portolan_node::engine::RightsReport;
use portolan_testkit::{Child, PATIENCE, obey, until};

use crate::faults::two_with;
use crate::machine::{Machine, Network, Patience, Plan};
use crate::messages::{ask, bind, is_numbered, numbered, send, serve, two};

pub(crate) const SHORT: Patience = Patience {
    silent: Duration::from_secs(2),
    dead: Duration::from_secs(5),
};

/// Three machines, each linked with each: giver, receiver, home.
pub(crate) fn three(patience: Patience) -> [Machine; 3] {
    let machines = three_machines(patience);
    let [giver, roof, hall] = &machines;
    giver.linked(roof);
    roof.linked(hall);
    hall.linked(giver);
    machines
}

/// The same, and what the last one sends to the first fails alone.
pub(crate) fn three_apart(patience: Patience) -> [Machine; 3] {
    let machines = three_machines(patience);
    let [giver, roof, hall] = &machines;
    giver.linked(roof);
    roof.linked(hall);
    giver.linked_apart(hall);
    machines
}

fn three_machines(patience: Patience) -> [Machine; 3] {
    let network = Network::tls();
    ["giver", "roof", "hall"].map(|name| {
        Machine::planned(
            &network,
            &Plan {
                name,
                patience,
                ..Plan::default()
            },
        )
    })
}

/// A message with a right.
pub(crate) fn with(header: &[u8], right: impl Into<Right>) -> Message {
    let mut message = Message::new(header).unwrap();
    message.attach(right).unwrap();
    message
}

pub(crate) fn receive(port: &mut ReceiveRight) -> Message {
    port.receive(Access::Later, PATIENCE).unwrap()
}

/// The send right in a message.
pub(crate) fn right_in(mut message: Message) -> SendRight {
    match message.take_rights().pop() {
        Some(Right::Send(right)) => right,
        other => panic!("{other:?}"),
    }
}

fn once_in(mut message: Message) -> SendOnceRight {
    match message.take_rights().pop() {
        Some(Right::SendOnce(right)) => right,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn notice(port: &mut ReceiveRight) -> Option<Notice> {
    port.receive(Access::Later, PATIENCE).unwrap().notice()
}

pub(crate) fn rights(machine: &Machine) -> RightsReport {
    machine.report().rights
}

/// Nothing is kept or borrowed, and nobody was asked for senders.
pub(crate) fn is_settled(machines: &[&Machine]) {
    for machine in machines {
        until("nothing is kept", || {
            let it = rights(machine);
            (it.kept, it.lent_once, it.borrowing) == (0, 0, 0)
        });
        until("nothing is lent", || {
            let spans = machine.report().spans;
            spans[0].lent.is_empty() && spans[0].proxies.is_empty()
        });
    }
}

#[test]
fn a_right_on_a_port_of_the_giver_works_there_and_comes_home_as_the_right_itself() {
    let (hall, roof) = two(&Network::tls());
    let mut upper = bind(&roof, "upper");
    let to_roof = hall.domain.connect("upper", PATIENCE).unwrap();
    let mut inbox = hall.domain.bind(PortOptions::unnamed()).unwrap();
    let mut server = hall
        .domain
        .bind(PortOptions::unnamed().synchronous())
        .unwrap();
    send(&to_roof, with(b"inbox", inbox.make_send()));
    send(&to_roof, with(b"server", server.make_send()));
    let to_inbox = right_in(receive(&mut upper));
    let to_server = right_in(receive(&mut upper));
    // Sent before there can be a loan, and after: in order.
    for first in (0..500).step_by(50) {
        for number in first..first + 50 {
            send(&to_inbox, numbered(&roof.domain, number, &[3000]));
        }
        for number in first..first + 50 {
            is_numbered(&receive(&mut inbox), number, &[3000]);
        }
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let request = server.get_request(Access::Later, PATIENCE).unwrap();
            request.reply(Message::new(b"pong").unwrap()).unwrap();
        });
        let answer = ask(&to_server, Message::new(b"ping").unwrap()).unwrap();
        assert_eq!(answer.header(), b"pong");
    });
    // A right of the same port comes again: it is the same proxy.
    send(&to_roof, with(b"again", inbox.make_send()));
    let again = right_in(receive(&mut upper));
    until("there is a loan of each", || rights(&roof).borrowing == 0);
    assert_eq!(roof.report().spans[0].proxies.len(), 2);
    drop(again);
    // It comes home, and is local: the node is not on its way.
    let mut back = bind(&hall, "back");
    let to_back = roof.domain.connect("back", PATIENCE).unwrap();
    send(&to_back, with(b"home", to_inbox));
    let home = right_in(receive(&mut back));
    let sent = hall.report().sent;
    send(&home, Message::new(b"local").unwrap());
    assert_eq!(receive(&mut inbox).header(), b"local");
    assert_eq!(hall.report().sent, sent);
    drop((home, to_server, to_back, to_roof));
    is_settled(&[&hall, &roof]);
    let counted = [&hall, &roof].map(|it| (rights(it).senders_asked, rights(it).senders_told));
    assert_eq!(counted, [(0, 0); 2], "nobody wanted to know");
    assert_eq!((rights(&hall).given, rights(&roof).given), (3, 1));
    // Every right on them is gone: only a new one counts.
    assert_eq!((inbox.senders(), server.senders()), (0, 0));
}

#[test]
fn rights_go_with_requests_and_with_answers() {
    let (hall, roof) = two(&Network::tls());
    let mut upper = serve(&roof, "upper");
    let to_upper = hall.domain.connect("upper", PATIENCE).unwrap();
    let mut asker = hall.domain.bind(PortOptions::unnamed()).unwrap();
    let mut private = roof.domain.bind(PortOptions::unnamed()).unwrap();
    let to_private = private.make_send();
    let answer = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut request = upper.get_request(Access::Later, PATIENCE).unwrap();
            let Some(Right::Send(right)) = request.message.take_rights().pop() else {
                panic!("a right came");
            };
            send(&right, Message::new(b"to the asker").unwrap());
            let mut reply = numbered(&roof.domain, 7, &[3 << 20, 5]);
            reply.attach(to_private).unwrap();
            request.reply(reply).unwrap();
        });
        ask(&to_upper, with(b"question", asker.make_send())).unwrap()
    });
    is_numbered(&answer, 7, &[3 << 20, 5]);
    let right = right_in(answer);
    send(&right, Message::new(b"in private").unwrap());
    assert_eq!(receive(&mut private).header(), b"in private");
    assert_eq!(receive(&mut asker).header(), b"to the asker");
    drop((right, to_upper));
    is_settled(&[&hall, &roof]);
}

#[test]
fn a_send_once_right_is_used_once_or_its_end_is_told() {
    let (hall, roof) = two(&Network::tls());
    let mut upper = bind(&roof, "upper");
    let to_roof = hall.domain.connect("upper", PATIENCE).unwrap();
    let mut inbox = hall.domain.bind(PortOptions::unnamed()).unwrap();
    // Used, with extents.
    send(&to_roof, with(b"use", inbox.make_send_once()));
    let once = once_in(receive(&mut upper));
    assert_eq!(rights(&hall).lent_once, 1);
    once.send(numbered(&roof.domain, 3, &[100_000])).unwrap();
    is_numbered(&receive(&mut inbox), 3, &[100_000]);
    // Dropped.
    send(&to_roof, with(b"drop", inbox.make_send_once()));
    drop(receive(&mut upper));
    assert_eq!(notice(&mut inbox), Some(Notice::SendOnceDropped));
    // Its message is dropped unread, with the port that it came for.
    send(&to_roof, with(b"unread", inbox.make_send_once()));
    until("it is there", || upper.depth() == 1);
    drop(upper);
    assert_eq!(notice(&mut inbox), Some(Notice::SendOnceDropped));
    // The right to answer a request is one: another program there answers.
    let mut asks = hall
        .domain
        .bind(PortOptions::unnamed().synchronous())
        .unwrap();
    let mut worker = bind(&roof, "worker");
    let to_worker = hall.domain.connect("worker", PATIENCE).unwrap();
    let question = Message::new(b"question").unwrap();
    let pending = asks.make_send().begin_request(question, WhenFull::Fail);
    let mut pending = pending.unwrap();
    let request = asks.get_request(Access::Later, PATIENCE).unwrap();
    let (message, answers) = request.into_parts();
    send(&to_worker, with(message.header(), answers.unwrap()));
    let work = receive(&mut worker);
    assert_eq!(work.header(), b"question");
    once_in(work)
        .send(Message::new(b"answer").unwrap())
        .unwrap();
    let answer = pending.wait(Access::Later, PATIENCE).unwrap();
    assert_eq!(answer.header(), b"answer");
    drop((to_roof, to_worker));
    is_settled(&[&hall, &roof]);
}

#[test]
fn the_holder_of_a_send_once_right_may_die_with_its_node() {
    let [giver, mut roof, hall] = three(SHORT);
    drop(hall);
    let mut upper = bind(&roof, "upper");
    let to_roof = giver.domain.connect("upper", PATIENCE).unwrap();
    let mut inbox = giver.domain.bind(PortOptions::unnamed()).unwrap();
    send(&to_roof, with(b"keep", inbox.make_send_once()));
    let once = once_in(receive(&mut upper));
    roof.end();
    assert_eq!(notice(&mut inbox), Some(Notice::SendOnceDropped));
    // Its right there ends with the node.
    let unsent = once.send(Message::default()).unwrap_err();
    assert!(matches!(unsent.why, SendError::DeadName), "{unsent:?}");
    until("nothing is lent", || rights(&giver).lent_once == 0);
}

#[test]
fn a_right_on_a_port_of_a_third_node_works_directly_and_without_its_giver() {
    let [mut giver, roof, hall] = three(Patience::default());
    let mut inbox = bind(&hall, "inbox");
    let mut upper = bind(&roof, "upper");
    let to_inbox = giver.domain.connect("inbox", PATIENCE).unwrap();
    let to_roof = giver.domain.connect("upper", PATIENCE).unwrap();
    send(&to_inbox, Message::new(b"from the giver").unwrap());
    assert_eq!(receive(&mut inbox).header(), b"from the giver");
    // The giver has none any more but what its node keeps.
    send(&to_roof, with(b"inbox", to_inbox));
    let right = right_in(receive(&mut upper));
    send(&right, Message::new(b"directly").unwrap());
    assert_eq!(receive(&mut inbox).header(), b"directly");
    until("the giver keeps nothing", || rights(&giver).kept == 0);
    let sent = giver.report().sent;
    giver.end();
    drop(giver);
    assert_eq!(sent, 2, "nothing goes through the giver");
    for number in 0..100 {
        send(&right, numbered(&roof.domain, number, &[9000]));
    }
    for number in 0..100 {
        is_numbered(&receive(&mut inbox), number, &[9000]);
    }
    // Death notices and dead names.
    let mut ends = roof.domain.bind(PortOptions::unnamed()).unwrap();
    right.watch(&ends, 5).unwrap();
    drop((inbox, upper));
    assert_eq!(notice(&mut ends), Some(Notice::DeadName { token: 5 }));
    assert_eq!(right.state(), RightState::Dead);
    drop(right);
    is_settled(&[&roof, &hall]);
}

#[test]
fn no_more_senders_is_told_over_nodes_to_who_wants_to_know() {
    let [giver, roof, hall] = three(Patience::default());
    let mut inbox = bind(&hall, "inbox");
    let mut upper = bind(&roof, "upper");
    let to_inbox = giver.domain.connect("inbox", PATIENCE).unwrap();
    let to_roof = giver.domain.connect("upper", PATIENCE).unwrap();
    inbox.request_no_more_senders();
    send(&to_roof, with(b"inbox", to_inbox));
    let right = right_in(receive(&mut upper));
    until("the borrowers were asked", || {
        rights(&hall).senders_asked == 1 && rights(&roof).senders_told == 1
    });
    // Two of them, one after another: it is told with the last one.
    let other = right.clone();
    drop(right);
    send(&other, Message::new(b"last").unwrap());
    drop(other);
    let mut last = receive(&mut inbox);
    if last.notice().is_none() {
        assert_eq!(last.header(), b"last");
        last = receive(&mut inbox);
    }
    assert_eq!(last.notice(), Some(Notice::NoMoreSenders));
    assert_eq!(inbox.senders(), 0);
}

#[test]
fn a_node_that_is_given_up_returns_what_it_has_borrowed() {
    let [giver, mut roof, hall] = three(SHORT);
    let mut inbox = bind(&hall, "inbox");
    let mut upper = bind(&roof, "upper");
    let to_inbox = giver.domain.connect("inbox", PATIENCE).unwrap();
    let to_roof = giver.domain.connect("upper", PATIENCE).unwrap();
    send(&to_roof, with(b"inbox", to_inbox));
    let right = right_in(receive(&mut upper));
    send(&right, Message::new(b"hello").unwrap());
    assert_eq!(receive(&mut inbox).header(), b"hello");
    inbox.request_no_more_senders();
    roof.end();
    assert_eq!(notice(&mut inbox), Some(Notice::NoMoreSenders));
    assert_eq!(right.state(), RightState::Dead, "its node is dead");
    // It comes back, and borrows anew.
    roof.start();
    roof.linked(&hall);
    let again = roof.domain.connect("inbox", PATIENCE).unwrap();
    send(&again, Message::new(b"again").unwrap());
    assert_eq!(receive(&mut inbox).header(), b"again");
}

#[test]
fn a_program_that_is_killed_drops_the_rights_that_it_was_given() {
    let (hall, roof) = two(&Network::tls());
    let mut inbox = bind(&hall, "inbox");
    let mut once = hall.domain.bind(PortOptions::unnamed()).unwrap();
    let mut child = Child::running("rights::holds_rights_until_killed", |_| {});
    let mut message = with(b"hold", inbox.make_send());
    message.attach(once.make_send_once()).unwrap();
    std::thread::scope(|scope| {
        let domain = &hall.domain;
        scope.spawn(move || {
            let to_child = domain.connect("child", PATIENCE).unwrap();
            send(&to_child, message);
        });
        assert_eq!(child.ask(roof.domain.name()), "held");
    });
    assert_eq!(receive(&mut inbox).header(), b"held");
    inbox.request_no_more_senders();
    child.kill();
    assert_eq!(notice(&mut once), Some(Notice::SendOnceDropped));
    assert_eq!(notice(&mut inbox), Some(Notice::NoMoreSenders));
}

#[test]
fn holds_rights_until_killed() {
    obey(|order| {
        let domain = Domain::join(order)?;
        let mut port = domain.bind(PortOptions::named("child").spanned())?;
        let mut message = receive(&mut port);
        let rights = message.take_rights();
        let Some(Right::Send(right)) = rights.first() else {
            panic!("{rights:?}");
        };
        send(right, Message::new(b"held")?);
        std::mem::forget((domain, port, rights));
        Ok("held".to_owned())
    });
}

#[test]
fn links_that_are_cut_while_rights_go_lose_none_of_them() {
    let (hall, roof) = two_with(&Network::tls(), Patience::LONG);
    let mut upper = bind(&roof, "upper");
    let to_roof = hall.domain.connect("upper", PATIENCE).unwrap();
    std::thread::scope(|scope| {
        let faults = [hall.faults.clone(), roof.faults.clone()];
        let cuts = scope.spawn(move || {
            for cut in 0..12_u64 {
                std::thread::sleep(Duration::from_millis(40));
                let faults = &faults[(cut % 2) as usize];
                match cut % 3 {
                    0 => faults.cut(),
                    _ => faults.cut_after(700 * cut + 7),
                }
                std::thread::sleep(Duration::from_millis(20));
                faults.heal();
            }
        });
        for number in 0..30_u32 {
            let mut inbox = hall.domain.bind(PortOptions::unnamed()).unwrap();
            inbox.request_no_more_senders();
            assert_eq!(notice(&mut inbox), Some(Notice::NoMoreSenders));
            send(&to_roof, with(&number.to_le_bytes(), inbox.make_send()));
            inbox.request_no_more_senders();
            let came = receive(&mut upper);
            assert_eq!(came.header(), number.to_le_bytes());
            let right = right_in(came);
            let reply = numbered(&roof.domain, number, &[20_000]);
            right.send(reply, Deadline::after(PATIENCE)).unwrap();
            drop(right);
            let mut last = receive(&mut inbox);
            if last.notice().is_none() {
                is_numbered(&last, number, &[20_000]);
                last = receive(&mut inbox);
            }
            assert_eq!(last.notice(), Some(Notice::NoMoreSenders));
        }
        cuts.join().unwrap();
    });
    hall.faults.heal();
    roof.faults.heal();
    drop(to_roof);
    hall.is_linked(&roof);
    is_settled(&[&hall, &roof]);
}

#[test]
fn what_cannot_travel_is_refused_or_counted() {
    let (hall, roof) = two(&Network::tls());
    let mut upper = bind(&roof, "upper");
    let to_roof = hall.domain.connect("upper", PATIENCE).unwrap();
    // Its messages are ordered where they are put into its queue.
    let options = PortOptions::unnamed().by_urgency();
    let inbox = hall.domain.bind(options).unwrap();
    let refused = to_roof
        .send(with(b"inbox", inbox), WhenFull::Fail)
        .unwrap_err();
    assert!(
        matches!(
            refused.why,
            SendError::StaysHere {
                what: "the receive right of a port by urgency"
            }
        ),
        "{refused:?}"
    );
    // A dead name arrives as one.
    let inbox = hall.domain.bind(PortOptions::unnamed()).unwrap();
    let dead = inbox.make_send();
    drop(inbox);
    send(&to_roof, with(b"dead", dead));
    let right = right_in(receive(&mut upper));
    until("it is told dead", || right.state() == RightState::Dead);
    drop((right, to_roof));
    is_settled(&[&hall, &roof]);
}

#[test]
fn no_right_goes_over_a_link_whose_other_end_has_proved_nothing() {
    let (hall, roof) = two(&Network::memory());
    let mut upper = serve(&roof, "upper");
    let to_roof = hall.domain.connect("upper", PATIENCE).unwrap();
    let inbox = hall.domain.bind(PortOptions::unnamed()).unwrap();
    let asked = ask(&to_roof, with(b"inbox", inbox.make_send()));
    assert!(matches!(asked, Err(RequestError::Dropped)), "{asked:?}");
    assert_eq!(hall.report().left_behind, 1);
    assert_eq!(inbox.senders(), 0);
    let nothing = upper.get_request(Access::Later, Deadline::after(Duration::from_millis(50)));
    assert!(nothing.is_err());
}
