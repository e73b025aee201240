//! A node traces a domain: what its peers tell it of what happens there.

use std::collections::BTreeSet;
use std::time::Duration;

use portolan::{Access, Deadline, Message};
use portolan_node::engine::{Happened, Question};
use portolan_testkit::{PATIENCE, until};
use serde_json::Value;

use crate::machine::{DOMAIN, Machine, Network, Plan};
use crate::messages::{ask, bind, numbered, send, serve, two};

fn question(number: u64, after: u64) -> Question {
    Question {
        session: 7,
        number,
        domain: DOMAIN.to_owned(),
        kinds: Vec::new(),
        after,
        clocks: true,
        end: false,
    }
}

/// What a machine has heard of a peer since this was asked last.
fn told(machine: &Machine) -> Option<Value> {
    let happened = machine.happened().into_iter();
    let mut answers = happened.filter_map(|it| match it {
        Happened::Inspected { answer, .. } => Some(answer),
        _ => None,
    });
    let answer = answers.next_back()?;
    Some(serde_json::from_slice(&answer).unwrap())
}

/// Asks a peer, and waits for the answer.
fn asked(machine: &Machine, peer: &Machine, question: &Question) -> Value {
    let mut answer = None;
    machine.inspect(Some(peer), question);
    until("the peer has answered", || {
        answer = told(machine);
        answer.is_some()
    });
    let answer = answer.unwrap();
    assert_eq!(answer["number"], question.number, "{answer}");
    answer
}

fn here(machine: &Machine, question: &Question) -> Value {
    serde_json::from_str(&machine.inspect(None, question).unwrap()).unwrap()
}

/// All events from a number on, page by page, at a peer or here.
fn all(machine: &Machine, peer: Option<&Machine>, number: u64) -> Vec<Value> {
    let mut events = Vec::new();
    let mut next = question(number, 0);
    loop {
        next.number += 1;
        let page = match peer {
            Some(peer) => asked(machine, peer, &next),
            None => here(machine, &next),
        };
        assert_eq!(page["refused"], Value::Null, "{page}");
        assert_eq!(page["lost"], serde_json::json!([0, 0]));
        events.extend(page["events"].as_array().unwrap().iter().cloned());
        next.after = page["next"].as_u64().unwrap();
        match next.end && page["more"] == false {
            true => return events,
            false => next.end = true,
        }
    }
}

/// The keys of messages that departed, or arrived.
fn keys(events: &[Value], way: &str) -> BTreeSet<(String, u64)> {
    let passages = events.iter().filter_map(|event| event.get(way));
    let keys = passages.map(|it| (it[3].as_str().unwrap().to_owned(), it[2].as_u64().unwrap()));
    keys.collect()
}

#[test]
fn each_message_departs_and_arrives_under_one_key() {
    let (hall, roof) = two(&Network::tls());
    let mut log = bind(&hall, "log");
    let mut upper = serve(&hall, "upper");
    let soon = || Deadline::after(PATIENCE);
    let to_log = roof.domain.connect("log", soon()).unwrap();
    let to_upper = roof.domain.connect("upper", soon()).unwrap();
    // Nothing of what was before is told.
    send(&to_log, numbered(&roof.domain, 0, &[]));
    drop(log.receive(Access::Later, soon()).unwrap());
    let first = question(1, 0);
    assert_eq!(asked(&roof, &hall, &first)["refused"], Value::Null);
    assert_eq!(here(&roof, &first)["refused"], Value::Null);
    // More than one page has. On a busy machine they take longer than a recording lasts that nobody
    // asks for.
    let messages = 300;
    for number in 0..messages {
        if number % 20 == 0 {
            asked(&roof, &hall, &first);
            here(&roof, &first);
        }
        send(
            &to_log,
            numbered(&roof.domain, number, &[1 + number as usize % 3]),
        );
        drop(log.receive(Access::Later, soon()).unwrap());
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let asks = upper.get_request(Access::Later, PATIENCE).unwrap();
            asks.reply(Message::new(b"HELLO").unwrap()).unwrap();
        });
        drop(ask(&to_upper, Message::new(b"hello").unwrap()).unwrap());
    });
    to_log.flush(soon()).unwrap();
    let there = all(&roof, Some(&hall), 1);
    let here = all(&roof, None, 1);
    assert_eq!(keys(&here, "d"), keys(&there, "a"));
    assert_eq!(keys(&here, "a"), keys(&there, "d"));
    let count = |what: &str| keys(&here, "d").iter().filter(|it| it.0 == what).count();
    assert_eq!((count("message"), count("request")), (300, 1));
    assert_eq!(keys(&here, "a").len(), 1);
    // Members do what they do at both ends.
    let receives = |events: &[Value]| {
        let members = events.iter().filter_map(|event| event.get("m"));
        members.filter(|it| it[0] == "receive").count()
    };
    assert!(receives(&here) >= 300 && receives(&there) >= 300);
    // It is off at both.
    until("nobody is traced", || {
        hall.domain.tracer().is_none() && roof.domain.tracer().is_none()
    });
    // And on again at once, for another command.
    let second = Question {
        session: 8,
        ..question(1, 0)
    };
    assert_eq!(asked(&roof, &hall, &second)["refused"], Value::Null);
    assert!(hall.domain.tracer().is_some());
}

#[test]
fn how_far_clocks_are_apart_is_told_with_its_error() {
    let network = Network::tls();
    let ahead = Duration::from_secs(1000);
    let hall = Machine::planned(
        &network,
        &Plan {
            ahead,
            ..Plan::default()
        },
    );
    let roof = Machine::new(&network, "roof");
    roof.linked(&hall);
    let mut pages = Vec::new();
    let mut number = 0;
    until("both have measured", || {
        number += 1;
        pages = vec![
            asked(&roof, &hall, &question(number, 0)),
            here(&roof, &question(number, 0)),
        ];
        pages
            .iter()
            .all(|page| !page["clocks"].as_array().unwrap().is_empty())
    });
    let clock = |at: usize| {
        let clock = &pages[at]["clocks"][0];
        (
            clock["ahead"].as_i64().unwrap(),
            clock["error"].as_i64().unwrap(),
        )
    };
    // The clocks of both begin when their machines were made, which was not at once: what one says the
    // other denies.
    let ((back, error), (there, also)) = (clock(0), clock(1));
    assert!((back + there).abs() <= error + also, "{pages:?}");
    // What members' events have is the machine's own clock, and how far that is from the one that is
    // measured is told: by it, both have the same time, because they are one machine.
    let own = |at: usize| pages[at]["ahead"].as_i64().unwrap();
    let apart = own(0) - own(1);
    let second = 1_000_000_000;
    assert!((apart - there).abs() < second, "{apart} {there}");
    assert!(there > 900 * second, "{there}");
}

#[test]
fn only_who_is_let_in_may_ask_and_one_at_a_time() {
    let network = Network::tls();
    let hall = Machine::planned(
        &network,
        &Plan {
            nodes: &["attic"],
            ..Plan::default()
        },
    );
    let (roof, attic) = (
        Machine::new(&network, "roof"),
        Machine::new(&network, "attic"),
    );
    roof.linked(&hall);
    attic.linked(&hall);
    let refused = |page: &Value| page["refused"].as_str().unwrap_or_default().to_owned();
    let page = asked(&roof, &hall, &question(1, 0));
    assert!(
        refused(&page).contains("lets nothing of this node into"),
        "{page}"
    );
    assert_eq!(page["events"].as_array().unwrap().len(), 0);
    let other = Question {
        domain: "attics".to_owned(),
        ..question(1, 0)
    };
    let page = asked(&attic, &hall, &other);
    assert!(refused(&page).contains("does not span"), "{page}");
    assert_eq!(hall.domain.tracer(), None);
    let page = asked(&attic, &hall, &question(1, 0));
    assert_eq!(refused(&page), "", "{page}");
    assert!(hall.domain.tracer().is_some());
    // Another command, and one beside the node itself.
    let second = Question {
        session: 8,
        ..question(2, 0)
    };
    let page = asked(&attic, &hall, &second);
    assert!(
        refused(&page).contains("beside attic traces there already"),
        "{page}"
    );
    assert!(refused(&here(&hall, &second)).contains("beside attic"));
    // What has ended is not begun again in the middle.
    let late = Question {
        session: 9,
        ..question(1, 5)
    };
    hall.unspan();
    until("it is not spanned", || {
        refused(&here(&hall, &late)).contains("does not span")
    });
    assert_eq!(hall.domain.tracer(), None);
}

#[test]
fn a_recording_ends_when_nobody_asks_for_it_any_more() {
    let (hall, mut roof) = two(&Network::tls());
    asked(&roof, &hall, &question(1, 0));
    assert!(hall.domain.tracer().is_some());
    // The node that has asked is killed.
    roof.end();
    until("it is off", || hall.domain.tracer().is_none());
    let page = here(
        &hall,
        &Question {
            session: 8,
            ..question(1, 1)
        },
    );
    assert!(
        page["refused"].as_str().unwrap().contains("has ended"),
        "{page}"
    );
}

#[test]
fn who_has_not_proved_who_it_is_is_told_nothing() {
    // Over memory nobody shows a certificate.
    let (hall, roof) = two(&Network::memory());
    let mut upper = serve(&hall, "upper");
    let to_upper = roof
        .domain
        .connect("upper", Deadline::after(PATIENCE))
        .unwrap();
    roof.inspect(Some(&hall), &question(1, 0));
    // What is said behind it is answered, and by then it would have been.
    for _ in 0..2 {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let asks = upper.get_request(Access::Later, PATIENCE).unwrap();
                asks.reply(Message::new(b"HELLO").unwrap()).unwrap();
            });
            drop(ask(&to_upper, Message::new(b"hello").unwrap()).unwrap());
        });
    }
    assert_eq!(told(&roof), None);
    assert_eq!(hall.domain.tracer(), None);
}
