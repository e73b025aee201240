//! The home of a port has gone before its borrower has heard that the port has moved: who is asked where it is,
//! who is told, and who is believed.

use std::time::Duration;

use portolan_abi::node::{Asked, Located, Record, ResolveFailure, Sent};
use portolan_proto::node::{
    BorrowKey, Event, FlowEnd, FlowKey, Message, Outcome, PortStay, Unsent,
};

use super::three::{DOMAIN, NEW, NOW, OLD, PORT, SENDER, Three, between, id};

impl Three {
    /// The port moves, while the sender hears nothing of its old home. All that is in its queue there follows.
    fn moves_unheard(&mut self, queued: &[&str]) {
        self.cut = Some(between(OLD, SENDER));
        let (_, came) = self.gives(OLD, NEW);
        self.nodes[NEW].take(&came, PORT, DOMAIN).unwrap();
        self.carry();
        let backlog = self.lent_to(OLD, self.left()).unwrap();
        queued.iter().for_each(|it| self.send(OLD, backlog, it));
        self.nodes[OLD].backlog_ends(backlog).unwrap();
        self.carry();
        assert_eq!(self.nodes[NEW].stay(PORT), Some(PortStay::Here));
    }

    /// A node gives the old home up: what became of its flows.
    fn gives_up(&mut self, node: usize) -> Vec<FlowEnd> {
        self.nodes[node].forget(NOW, id(OLD));
        self.carry();
        let ends = self.last(node, |event| match event {
            Event::Over { flows, .. } => Some(flows.clone()),
            _ => None,
        });
        ends.unwrap()
    }

    /// The sender hears nothing of the old home for so long that it gives it up.
    fn waits_in_vain(&mut self) {
        let dead_after = self.nodes[SENDER].settings().dead_after.unwrap();
        for index in [SENDER, OLD] {
            self.nodes[index].disconnected(NOW, between(SENDER, OLD));
        }
        while self.now < NOW.after(dead_after) {
            self.now = self.now.after(Duration::from_secs(1));
            for index in [OLD, NEW] {
                self.nodes[index].timeout(self.now);
            }
            self.carry();
            if self.now >= NOW.after(dead_after) {
                // The third one does not answer.
                self.cut = Some(between(NEW, SENDER));
            }
            self.nodes[SENDER].timeout(self.now);
            self.carry();
        }
    }

    /// What the sender waits for whose flow was given up.
    fn borrow_of(&self, flow: FlowKey) -> Option<BorrowKey> {
        self.last(SENDER, |event| match event {
            Event::Over { flows, .. } => flows.iter().find(|end| end.flow == flow)?.borrow,
            _ => None,
        })
    }

    fn end_of_borrow(&self, borrow: BorrowKey) -> Option<Result<FlowKey, ResolveFailure>> {
        self.last(SENDER, |event| match event {
            Event::Borrowed { borrow: it, flow } if *it == borrow => Some(*flow),
            _ => None,
        })
    }

    /// The next record that a node says to another one, which does not come there.
    fn overheard(&mut self, from: usize, to: usize) -> Option<Vec<u8>> {
        let record = self.nodes[from].poll_record(NOW, between(from, to));
        record.map(|record| record.bytes)
    }

    fn says(&mut self, from: usize, to: usize, record: &Record<'_>) {
        let bytes = record.with(Sent::default());
        let machine = &mut self.machines[to];
        self.nodes[to].receive(NOW, between(from, to), &bytes, machine);
    }
}

fn question(record: &[u8]) -> (u64, Vec<Asked>) {
    match Record::decode(record) {
        Ok((_, Some(Record::WhereIs { number, asked }))) => (number, asked),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_borrower_that_has_not_heard_of_the_move_asks_and_goes_on_at_the_new_home() {
    let mut three = Three::new([true; 3], false);
    let flow = three.flow(SENDER, OLD, PORT);
    three.send(SENDER, flow, "1");
    three.carry();
    three.moves_unheard(&["1"]);
    // This one was written, and it is not known what has become of it; the others were not.
    three.send(SENDER, flow, "2");
    assert!(three.overheard(SENDER, OLD).is_some());
    three.send(SENDER, flow, "3");
    three.send(SENDER, flow, "4");
    let ends = three.gives_up(SENDER);
    let end = ends.iter().find(|end| end.flow == flow).unwrap();
    assert_eq!((end.acknowledged, end.lost), (1, 1));
    let borrow = end.borrow.unwrap();
    let new = three.end_of_borrow(borrow).unwrap().unwrap();
    assert_eq!(new.peer, id(NEW));
    three.send(SENDER, new, "5");
    three.carry();
    assert_eq!(three.machines[NEW].headers(PORT), ["1", "3", "4", "5"]);
    assert_eq!(three.nodes[SENDER].borrowing(), 0);
}

#[test]
fn requests_that_were_not_sent_go_on_and_the_others_are_lost_with_the_node() {
    let mut three = Three::new([true; 3], true);
    let flow = three.flow(SENDER, OLD, PORT);
    three.moves_unheard(&[]);
    let request = |three: &mut Three, header: &[u8]| {
        let message = Message::short(header);
        let made = three.nodes[SENDER].request(flow, DOMAIN, None, message);
        made.unwrap()
    };
    let sent = request(&mut three, b"sent");
    assert!(three.overheard(SENDER, OLD).is_some());
    let unsent = request(&mut three, b"unsent");
    three.gives_up(SENDER);
    let lost = three.end_of(SENDER, sent);
    assert!(matches!(lost, Some(Outcome::NodeLost)), "{lost:?}");
    assert!(three.end_of(SENDER, unsent).is_none());
    let renamed = three.last(SENDER, |event| match event {
        Event::Rekeyed { from, to } if *from == unsent => Some(*to),
        _ => None,
    });
    assert_eq!(renamed.map(|it| it.peer), Some(id(NEW)));
    assert_eq!(three.machines[NEW].headers(PORT), ["unsent"]);
}

#[test]
fn a_port_that_nobody_has_is_dead_as_soon_as_all_have_said_so() {
    let mut three = Three::new([true; 3], false);
    let flow = three.flow(SENDER, OLD, PORT);
    three.send(SENDER, flow, "1");
    let ends = three.gives_up(SENDER);
    let end = ends.iter().find(|end| end.flow == flow).unwrap();
    let borrow = end.borrow.unwrap();
    let end = three.end_of_borrow(borrow);
    assert_eq!(end, Some(Err(ResolveFailure::Other)));
    // One that does not answer such questions is not asked: there is nobody.
    let mut three = Three::new([true, false, true], false);
    let flow = three.flow(SENDER, OLD, PORT);
    three.send(SENDER, flow, "1");
    let ends = three.gives_up(SENDER);
    let end = ends.iter().find(|end| end.flow == flow).unwrap();
    assert_eq!((end.borrow, end.lost), (None, 1));
}

#[test]
fn one_that_does_not_answer_is_waited_for_as_long_as_a_dead_node_is() {
    let mut three = Three::new([true; 3], false);
    let flow = three.flow(SENDER, OLD, PORT);
    three.cut = Some(between(NEW, SENDER));
    let ends = three.gives_up(SENDER);
    let end = ends.iter().find(|end| end.flow == flow).unwrap();
    let borrow = end.borrow.unwrap();
    assert_eq!(three.end_of_borrow(borrow), None);
    let due = three.nodes[SENDER].next_timeout().unwrap();
    assert!(due > NOW);
    let dead_after = three.nodes[SENDER].settings().dead_after.unwrap();
    three.nodes[SENDER].timeout(NOW.after(dead_after));
    three.carry();
    assert!(three.end_of_borrow(borrow).unwrap().is_err());
}

#[test]
fn the_new_home_lends_the_port_once_its_backlog_has_come_or_will_not() {
    let mut three = Three::new([true; 3], false);
    let flow = three.flow(SENDER, OLD, PORT);
    three.send(SENDER, flow, "1");
    three.carry();
    three.cut = Some(between(OLD, SENDER));
    let (_, came) = three.gives(OLD, NEW);
    three.nodes[NEW].take(&came, PORT, DOMAIN).unwrap();
    three.carry();
    let ends = three.gives_up(SENDER);
    let end = ends.iter().find(|end| end.flow == flow).unwrap();
    let borrow = end.borrow.unwrap();
    assert_eq!(three.nodes[NEW].stay(PORT), Some(PortStay::Arriving));
    assert_eq!(three.end_of_borrow(borrow), None);
    let backlog = three.lent_to(OLD, three.left()).unwrap();
    three.send(OLD, backlog, "1");
    three.carry();
    assert_eq!(three.end_of_borrow(borrow), None);
    three.nodes[NEW].forget(NOW, id(OLD));
    three.carry();
    let new = three.end_of_borrow(borrow).unwrap().unwrap();
    three.send(SENDER, new, "2");
    three.carry();
    assert_eq!(three.machines[NEW].headers(PORT), ["1", "2"]);
}

/// A home that was given up is there again, and so is the port: who has lost nothing goes on.
#[test]
fn a_port_at_a_home_that_has_come_back_is_dead_to_who_has_lost_messages_to_it() {
    for lost in [false, true] {
        let mut three = Three::new([true; 3], false);
        let flow = three.flow(SENDER, OLD, PORT);
        three.send(SENDER, flow, "1");
        three.carry();
        // This one was written, and it is not known what has become of it; the next was not.
        three.send(SENDER, flow, "2");
        if lost {
            assert!(three.overheard(SENDER, OLD).is_some());
        }
        three.send(SENDER, flow, "3");
        three.waits_in_vain();
        let borrow = three.borrow_of(flow).unwrap();
        assert_eq!(three.end_of_borrow(borrow), None, "the others are asked");
        three.connect(SENDER, OLD);
        three.carry();
        match three.end_of_borrow(borrow) {
            Some(Ok(again)) if !lost => assert_eq!(again.peer, id(OLD)),
            Some(Err(_)) if lost => {}
            other => panic!("{lost}: {other:?}"),
        }
        let expected: &[&str] = if lost { &["1"] } else { &["1", "2", "3"] };
        assert_eq!(three.machines[OLD].headers(PORT), expected);
    }
}

/// It has taken the port itself, and had a flow to the old home.
#[test]
fn a_borrower_that_has_the_port_by_now_asks_nobody() {
    let mut three = Three::new([true; 3], false);
    let flow = three.flow(NEW, OLD, PORT);
    let (_, came) = three.gives(OLD, NEW);
    three.nodes[NEW].take(&came, PORT, DOMAIN).unwrap();
    three.cut = Some(between(OLD, NEW));
    three.send(NEW, flow, "mine");
    three.gives_up(NEW);
    let home = three.last(NEW, |event| match event {
        Event::CameHome { port, unsent, .. } => Some((*port, unsent.len())),
        _ => None,
    });
    assert_eq!(home, Some((PORT, 1)));
}

#[test]
fn a_node_that_was_not_lent_the_port_is_told_nothing() {
    let mut three = Three::new([true; 3], false);
    three.flow(SENDER, OLD, PORT);
    three.moves_unheard(&[]);
    three.nodes[SENDER].forget(NOW, id(OLD));
    let asked = three.overheard(SENDER, NEW).unwrap();
    let (number, asked) = question(&asked);
    assert_eq!(asked.len(), 1);
    // The old home says what it has overheard: the answer to it would be worth nothing to it, and there is none.
    for asked in [
        asked.clone(),
        vec![Asked {
            proof: [0; 16],
            ..asked[0]
        }],
    ] {
        three.says(OLD, NEW, &Record::WhereIs { number, asked });
        let answer = three.overheard(NEW, OLD).unwrap();
        let (_, answer) = Record::decode(&answer).unwrap();
        let located = Vec::new();
        assert_eq!(answer, Some(Record::IsAt { number, located }));
    }
    three.says(SENDER, NEW, &Record::WhereIs { number, asked });
    let answer = three.overheard(NEW, SENDER).unwrap();
    let (_, answer) = Record::decode(&answer).unwrap();
    assert!(matches!(answer, Some(Record::IsAt { located, .. }) if located[0].home == id(NEW)));
}

#[test]
fn a_node_that_was_never_the_ports_home_is_not_believed() {
    let mut three = Three::new([true; 3], false);
    let flow = three.flow(SENDER, OLD, PORT);
    three.cut = Some(between(OLD, SENDER));
    three.nodes[SENDER].forget(NOW, id(OLD));
    let asked = three.overheard(SENDER, NEW).unwrap();
    let (number, asked) = question(&asked);
    let lie = |proof| Located {
        port: asked[0].port,
        home: id(NEW),
        incarnation: 1,
        proof,
    };
    let located = vec![lie(asked[0].proof), lie([0; 16])];
    // An answer to another question is none.
    let number_of_none = number + 1;
    let none = Vec::new();
    three.says(
        NEW,
        SENDER,
        &Record::IsAt {
            number: number_of_none,
            located: none,
        },
    );
    assert_eq!(three.nodes[SENDER].borrowing(), 1);
    three.says(NEW, SENDER, &Record::IsAt { number, located });
    while let Some(said) = three.overheard(SENDER, NEW) {
        let (_, said) = Record::decode(&said).unwrap();
        assert!(!matches!(said, Some(Record::Claim(_))), "{said:?}");
    }
    assert_eq!(three.nodes[SENDER].borrowing(), 0);
    assert_eq!(three.nodes[SENDER].takes(flow), Err(Unsent::Dead));
}
