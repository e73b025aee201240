//! A receive right moves between nodes, step by step: what goes before what, who is told, and who may not
//! give one.

use portolan_abi::node::ReferenceKind;
use portolan_proto::node::{
    Answer, DomainKey, Event, Gift, Message, Node, Outcome, PortKey, PortStay, Unsent, Violation,
};

use super::three::{DOMAIN, INBOX, NEW, NOW, OLD, PORT, SENDER, Three, id, settings_of};

#[test]
fn the_backlog_goes_first_and_what_was_not_put_into_the_port_follows() {
    let mut three = Three::new([true; 3], false);
    let flow = three.flow(SENDER, OLD, PORT);
    three.send(SENDER, flow, "1");
    three.carry();
    // What comes now finds no room at the old home.
    three.machines[OLD].is_full = true;
    three.send(SENDER, flow, "2");
    three.send(SENDER, flow, "3");
    three.carry();
    let (_, came) = three.gives(OLD, NEW);
    assert_eq!(three.nodes[OLD].stay(PORT), Some(PortStay::Leaving));
    assert_eq!(three.nodes[NEW].take(&came, PORT, DOMAIN), Ok(PORT));
    three.carry();
    assert_eq!(three.nodes[OLD].stay(PORT), Some(PortStay::Left));
    assert_eq!(three.nodes[NEW].stay(PORT), Some(PortStay::Arriving));
    // The sender has been told, and waits for the backlog; the old home waits for it to follow.
    let followed = three.followed();
    assert_eq!(three.lent_to(SENDER, followed), None);
    assert!(three.nodes[SENDER].has_unsent(followed));
    assert_eq!(three.nodes[OLD].flows_to(PORT), 1);
    let backlog = three.lent_to(OLD, three.left()).unwrap();
    assert_eq!(three.machines[OLD].headers(PORT), ["1"]);
    three.send(OLD, backlog, "1");
    three.carry();
    assert_eq!(three.lent_to(SENDER, followed), None);
    three.nodes[OLD].backlog_ends(backlog).unwrap();
    three.carry();
    assert_eq!(three.nodes[NEW].stay(PORT), Some(PortStay::Here));
    let flow = three.lent_to(SENDER, followed).unwrap();
    assert_eq!(flow.peer, id(NEW));
    three.send(SENDER, flow, "4");
    three.carry();
    assert_eq!(three.machines[NEW].headers(PORT), ["1", "2", "3", "4"]);
    assert_eq!(three.nodes[OLD].flows_to(PORT), 0);
    assert!(
        three
            .last(OLD, |it| matches!(it, Event::Unused { .. }).then_some(()))
            .is_some()
    );
    // One that asks the old home is told where the port is.
    let flow = three.flow(SENDER, OLD, PORT);
    let followed = three.followed();
    assert_eq!(
        three.lent_to(SENDER, followed).map(|it| it.peer),
        Some(id(NEW))
    );
    assert_eq!(three.nodes[SENDER].takes(flow), Err(Unsent::Dead));
}

/// A move is a message, its answer, and one write more.
#[test]
fn a_port_with_an_empty_queue_is_at_its_new_home_as_soon_as_that_hears_of_the_move() {
    let mut three = Three::new([true; 3], false);
    let flow = three.flow(SENDER, OLD, PORT);
    let (_, came) = three.gives(OLD, NEW);
    three.nodes[NEW].take(&came, PORT, DOMAIN).unwrap();
    assert_eq!(three.writes(NEW, OLD), ["Answer"]);
    let left = std::iter::from_fn(|| three.nodes[OLD].poll_event()).find_map(|it| match it {
        Event::Left { borrow, .. } => Some(borrow),
        _ => None,
    });
    let left = left.unwrap();
    three.nodes[OLD].has_no_backlog(left).unwrap();
    assert_eq!(
        three.writes(OLD, NEW),
        ["MoveRight", "AckAnswer", "Backlog"]
    );
    assert_eq!(three.nodes[NEW].stay(PORT), Some(PortStay::Here));
    // Nobody has waited for the flow of the backlog, which is a borrower's as any other.
    assert_eq!(three.lent_to(OLD, left), None);
    three.carry();
    let here = three.lent_to(OLD, left).unwrap();
    let followed = three.followed();
    assert!(!three.nodes[SENDER].has_unsent(followed));
    let there = three.lent_to(SENDER, followed).unwrap();
    three.send(OLD, here, "of the old home");
    three.carry();
    three.send(SENDER, there, "of another");
    three.carry();
    let all = three.machines[NEW].headers(PORT);
    assert_eq!(all, ["of the old home", "of another"]);
    assert_eq!(three.nodes[SENDER].takes(flow), Err(Unsent::Dead));
    assert_eq!(three.nodes[NEW].flows_to(PORT), 2);
    // It was said once, and of no other borrow.
    assert_eq!(three.nodes[OLD].has_no_backlog(left), Err(Unsent::Dead));
    assert_eq!(
        three.nodes[SENDER].has_no_backlog(followed),
        Err(Unsent::Dead)
    );
}

#[test]
fn requests_that_the_old_home_has_taken_are_answered_there_and_the_others_at_the_new_home() {
    let mut three = Three::new([true; 3], true);
    let flow = three.flow(SENDER, OLD, PORT);
    let request = |three: &mut Three, header: &str| {
        let message = Message::short(header.as_bytes());
        let made = three.nodes[SENDER].request(flow, DOMAIN, None, message);
        three.carry();
        made.unwrap()
    };
    let taken = request(&mut three, "taken");
    three.machines[OLD].is_full = true;
    let waits = request(&mut three, "waits");
    let server = three.machines[OLD].came[0].request.unwrap();
    let (_, came) = three.gives(OLD, NEW);
    three.nodes[NEW].take(&came, PORT, DOMAIN).unwrap();
    three.carry();
    let backlog = three.lent_to(OLD, three.left()).unwrap();
    three.nodes[OLD].backlog_ends(backlog).unwrap();
    three.carry();
    let renamed = three.last(SENDER, |it| match it {
        Event::Rekeyed { from, to } if *from == waits => Some(*to),
        _ => None,
    });
    let renamed = renamed.unwrap();
    assert_eq!(renamed.peer, id(NEW));
    let there = three.machines[NEW].came[0].request.unwrap();
    let reply = |text: &[u8]| Answer::Reply(Message::short(text));
    three.nodes[NEW].answer(there, reply(b"new")).unwrap();
    three.nodes[OLD].answer(server, reply(b"old")).unwrap();
    three.carry();
    for (request, text) in [(taken, &b"old"[..]), (renamed, &b"new"[..])] {
        let end = three.end_of(SENDER, request);
        let is_it = |it: &Outcome<u64>| matches!(it, Outcome::Answered(Answer::Reply(reply)) if reply.header == text);
        assert!(end.is_some_and(is_it), "{end:?}");
    }
    assert!(three.end_of(SENDER, waits).is_none());
}

#[test]
fn a_port_that_comes_back_is_local_again() {
    let mut three = Three::new([true; 3], false);
    let (_, came) = three.gives(OLD, NEW);
    three.nodes[NEW].take(&came, PORT, DOMAIN).unwrap();
    three.carry();
    let first = three.left();
    let backlog = three.lent_to(OLD, first).unwrap();
    // It may not be given on before its backlog is there.
    let on = three.flow(NEW, OLD, INBOX);
    let early = three.nodes[NEW].give(on.peer, on.association, DOMAIN, Gift::Receive(PORT));
    assert_eq!(early, Err(Unsent::Moving));
    three.nodes[OLD].backlog_ends(backlog).unwrap();
    three.carry();
    // What the old home sends now, as a borrower, finds no room and comes home.
    three.machines[NEW].is_full = true;
    three.send(OLD, backlog, "mine");
    three.carry();
    let (_, came) = three.gives(NEW, OLD);
    // A number that the driver would give it does not matter: it was here before.
    assert_eq!(three.nodes[OLD].take(&came, PortKey(77), DOMAIN), Ok(PORT));
    three.carry();
    let borrow = three.last(NEW, |it| match it {
        Event::Left { borrow, .. } => Some(*borrow),
        _ => None,
    });
    let to = three.lent_to(NEW, borrow.unwrap()).unwrap();
    let home = |it: &Event<u64>| match it {
        Event::CameHome { port, unsent, .. } => Some((*port, unsent.len())),
        _ => None,
    };
    assert_eq!(three.last(OLD, home), None);
    three.nodes[NEW].backlog_ends(to).unwrap();
    three.carry();
    assert_eq!(three.last(OLD, home), Some((PORT, 1)));
    assert_eq!(three.nodes[OLD].stay(PORT), Some(PortStay::Here));
}

/// It has filled the queue at its old home perhaps, and until it is here the port can go no further.
#[test]
fn a_backlog_may_fill_the_queue_at_the_new_home() {
    let mut three = Three::new([true; 3], false);
    let (_, came) = three.gives(OLD, NEW);
    three.nodes[NEW].take(&came, PORT, DOMAIN).unwrap();
    three.carry();
    let backlog = three.lent_to(OLD, three.left()).unwrap();
    let all: Vec<String> = (0..8).map(|number| number.to_string()).collect();
    for header in &all {
        three.send(OLD, backlog, header);
        three.carry();
    }
    assert_eq!(three.machines[NEW].headers(PORT), all);
    three.nodes[OLD].backlog_ends(backlog).unwrap();
    three.carry();
    assert_eq!(three.nodes[NEW].stay(PORT), Some(PortStay::Here));
}

#[test]
fn who_has_sent_to_a_port_while_it_was_here_borrows_it_behind_its_backlog() {
    let mut three = Three::new([true; 3], false);
    let (_, came) = three.gives(OLD, NEW);
    assert_eq!(three.nodes[OLD].borrow_left(NOW, PORT), None);
    let other = DomainKey(2);
    three.nodes[NEW].take(&came, PORT, other).unwrap();
    let domain = |node: &Node<u64>| node.port_settings(PORT).map(|it| it.domain);
    assert_eq!(domain(&three.nodes[NEW]), Some(other));
    three.carry();
    let borrow = three.nodes[OLD].borrow_left(NOW, PORT).unwrap();
    three.carry();
    assert_eq!(three.lent_to(OLD, borrow), None);
    let backlog = three.lent_to(OLD, three.left()).unwrap();
    three.send(OLD, backlog, "first");
    assert_eq!(three.nodes[OLD].next_number(backlog), Some(1));
    three.nodes[OLD].backlog_ends(backlog).unwrap();
    three.carry();
    let flow = three.lent_to(OLD, borrow).unwrap();
    three.send(OLD, flow, "behind");
    three.carry();
    assert_eq!(three.machines[NEW].headers(PORT), ["first", "behind"]);
    // It is known by its name and its secret, and by nothing else.
    let settings = settings_of(OLD, PORT, false);
    let (id, secret) = (settings.id, settings.secret());
    for node in [OLD, NEW] {
        assert_eq!(three.nodes[node].port_of(&id, &secret), Some(PORT));
        assert_eq!(three.nodes[node].port_of(&id, &[0; 16]), None);
    }
}

#[test]
fn a_right_that_is_not_taken_stays_and_a_node_of_an_earlier_version_gets_none() {
    let mut three = Three::new([true, true, false], false);
    let (given, came) = three.gives(OLD, NEW);
    let flow = three.flow(OLD, NEW, INBOX);
    let twice = three.nodes[OLD].give(flow.peer, flow.association, DOMAIN, Gift::Receive(PORT));
    assert_eq!(twice, Err(Unsent::Moving));
    three.nodes[NEW]
        .answer(came.request, Answer::Dropped)
        .unwrap();
    three.carry();
    let end = three.end_of(OLD, given.request);
    assert!(
        matches!(end, Some(Outcome::Answered(Answer::Dropped))),
        "{end:?}"
    );
    assert_eq!(three.nodes[OLD].stay(PORT), Some(PortStay::Here));
    // To it, or while it sends to the port.
    let node = id(SENDER);
    let there = three.flow(OLD, SENDER, INBOX);
    let given = three.nodes[OLD].give(there.peer, there.association, DOMAIN, Gift::Receive(PORT));
    assert_eq!(given, Err(Unsent::NoMoves { node }));
    three.flow(SENDER, OLD, PORT);
    let given = three.nodes[OLD].give(flow.peer, flow.association, DOMAIN, Gift::Receive(PORT));
    assert_eq!(given, Err(Unsent::NoMoves { node }));
}

#[test]
fn nobody_gives_the_receive_right_of_a_port_that_is_elsewhere() {
    let mut three = Three::new([true; 3], false);
    let flow = three.flow(SENDER, NEW, INBOX);
    let gift = Gift::Port(INBOX);
    let given = three.nodes[SENDER].give(flow.peer, flow.association, DOMAIN, gift);
    let mut given = given.unwrap();
    (given.reference.kind, given.reference.slots) = (ReferenceKind::Receive, 8);
    given.reference.home = id(OLD);
    let mut message = Message::short(b"right");
    message.rights.push(given);
    three.nodes[SENDER].send(flow, message).unwrap();
    three.carry();
    let accused = |it: &Event<u64>| match it {
        Event::Close { violation, .. } => *violation,
        _ => None,
    };
    let violation = three.last(NEW, accused);
    assert!(
        matches!(violation, Some(Violation::Rights { .. })),
        "{violation:?}"
    );
    assert_eq!(three.machines[NEW].headers(INBOX), [""; 0]);
}
