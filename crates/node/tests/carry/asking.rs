//! The old home of a port dies before all who send to the port have heard that it has moved: they ask where it
//! is, and go on there.

use std::time::Duration;

use portolan::{
    Access, Deadline, Message, ReceiveRight, RequestError, RightState, SendRight, WhenFull,
};
use portolan_node::engine::Happened;
use portolan_testkit::{PATIENCE, until};

use crate::machine::Machine;
use crate::messages::{ask, bind, numbered, send, serve};
use crate::moves::{Audit, Ways, reply, send_some};
use crate::rights::{SHORT, is_settled, receive, rights, three_apart};

/// The number of a message.
fn number(message: &Message) -> u32 {
    u32::from_le_bytes(message.header().try_into().unwrap())
}

/// Messages that were lost with a node, once it is given up.
fn lost_with(machine: &Machine, gone: &Machine) -> u64 {
    let mut lost = None;
    until("it is given up", || {
        let mut all = machine.happened().into_iter();
        lost = all.find_map(|it| match it {
            Happened::Over { node, lost, .. } if node == gone.id => Some(lost),
            _ => None,
        });
        lost.is_some()
    });
    lost.unwrap()
}

/// Nothing more that the hall says comes to the attic; the rest of what it says does.
fn is_unheard(hall: &Machine) {
    hall.other_faults.stall_until(Duration::MAX);
}

#[test]
fn a_sender_that_has_not_heard_of_the_move_goes_on_at_the_new_home() {
    let [attic, roof, mut hall] = three_apart(SHORT);
    let port = bind(&hall, "upper");
    let right = attic.domain.connect("upper", PATIENCE).unwrap();
    let mut ways = Ways::new(&[&hall, &roof]);
    let mut audit = Audit::default();
    send_some(&attic.domain, &right, 0, 0..20);
    right.flush(PATIENCE).unwrap();
    is_unheard(&hall);
    // The backlog goes to the roof, and nobody tells the attic.
    let mut port = ways.moves(port, 0, 1);
    (0..20).for_each(|_| audit.takes(&receive(&mut port)));
    // Some of these are written to the hall, and are lost with it; the others wait here.
    let all = 20..60;
    for number in all.clone() {
        send(&right, numbered(&attic.domain, number, &[]));
    }
    hall.end();
    let lost = lost_with(&attic, &hall);
    let kept = (60 - 20) - u32::try_from(lost).unwrap();
    assert!(kept > 0, "{lost} are lost");
    let mut next = 20;
    for _ in 0..kept {
        let number = number(&receive(&mut port));
        assert!((next..60).contains(&number), "{number} after {next}");
        next = number + 1;
    }
    assert_eq!(next, 60);
    for number in 60..100 {
        send(&right, numbered(&attic.domain, number, &[]));
    }
    right.flush(PATIENCE).unwrap();
    let came: Vec<u32> = (60..100).map(|_| number(&receive(&mut port))).collect();
    assert_eq!(came, (60..100).collect::<Vec<_>>());
    assert_eq!(rights(&attic).ports_sought, 1);
    let proxies = attic.report().spans[0].proxies.clone();
    assert!(
        proxies.iter().all(|proxy| proxy.node == "roof"),
        "{proxies:?}"
    );
    drop((port, right, ways));
    is_settled(&[&attic, &roof]);
}

#[test]
fn who_waits_until_all_is_there_is_told_that_some_was_lost() {
    let [attic, roof, mut hall] = three_apart(SHORT);
    let port = bind(&hall, "upper");
    let right = attic.domain.connect("upper", PATIENCE).unwrap();
    let mut ways = Ways::new(&[&hall, &roof]);
    right.flush(PATIENCE).unwrap();
    is_unheard(&hall);
    let mut port = ways.moves(port, 0, 1);
    let flushed = std::thread::scope(|scope| {
        (0..40).for_each(|number| send(&right, numbered(&attic.domain, number, &[])));
        let waits = scope.spawn(|| right.flush(PATIENCE));
        std::thread::sleep(Duration::from_millis(100));
        hall.end();
        waits.join().unwrap()
    });
    assert!(
        matches!(&flushed, Err(RequestError::NodeLost { node }) if node == "hall"),
        "{flushed:?}"
    );
    // What comes behind is as good as ever.
    is_live(&right);
    send(&right, Message::new(b"last").unwrap());
    right.flush(PATIENCE).unwrap();
    while receive(&mut port).header() != b"last" {}
}

#[test]
fn a_client_whose_server_has_moved_unheard_is_served_at_its_new_home() {
    let [attic, roof, mut hall] = three_apart(SHORT);
    let port = serve(&hall, "server");
    let right = attic.domain.connect("server", PATIENCE).unwrap();
    let mut ways = Ways::new(&[&hall, &roof]);
    is_unheard(&hall);
    let mut port = ways.moves(port, 0, 1);
    let question = |number| numbered(&attic.domain, number, &[]);
    let sent = attic.report().sent;
    let mut asked = right.begin_request(question(7), WhenFull::Fail).unwrap();
    until("it is on its way", || attic.report().sent > sent);
    hall.end();
    // It went to the hall, where it may have run.
    let lost = asked.wait(Access::Later, PATIENCE);
    assert!(
        matches!(&lost, Err(RequestError::NodeLost { node }) if node == "hall"),
        "{lost:?}"
    );
    is_live(&right);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The hall may have sent the first one after its port, and is not there for the answer.
            let next = || port.get_request(Access::Later, PATIENCE).unwrap();
            let requests = std::iter::repeat_with(next);
            let mut requests = requests.skip_while(|request| number(&request.message) == 7);
            reply(&roof.domain, requests.next().unwrap());
        });
        let answer = ask(&right, question(20)).unwrap();
        assert_eq!(number(&answer), 21);
    });
}

/// It is known where its port is.
fn is_live(right: &SendRight) {
    until("it leads somewhere", || right.state() == RightState::Live);
}

/// The right to receive is gone with the hall, or was never anywhere else.
fn is_dead(attic: &Machine, right: &SendRight) {
    until("it is dead", || right.state() == RightState::Dead);
    assert_eq!(rights(attic).ports_sought, 1);
}

#[test]
fn a_port_that_has_died_with_its_home_is_dead_once_all_have_said_that_they_have_it_not() {
    let [attic, _roof, mut hall] = three_apart(SHORT);
    let _port: ReceiveRight = bind(&hall, "upper");
    let right = attic.domain.connect("upper", PATIENCE).unwrap();
    send(&right, Message::new(b"one").unwrap());
    right.flush(PATIENCE).unwrap();
    hall.end();
    assert_eq!(lost_with(&attic, &hall), 0);
    is_dead(&attic, &right);
}

#[test]
fn a_port_whose_new_home_dies_too_is_dead() {
    let [attic, mut roof, mut hall] = three_apart(SHORT);
    let port = bind(&hall, "upper");
    let right = attic.domain.connect("upper", PATIENCE).unwrap();
    let mut ways = Ways::new(&[&hall, &roof]);
    is_unheard(&hall);
    let _port = ways.moves(port, 0, 1);
    hall.end();
    roof.end();
    until("it is dead", || right.state() == RightState::Dead);
    let nothing = right.send(Message::default(), Deadline::NOW);
    assert!(nothing.is_err(), "{nothing:?}");
}
