//! Answers to requests, waited for in one set.

use crate::{readable, soon};
use portolan::{
    Access, Deadline, Domain, Message, PendingReply, PortOptions, ReceiveRight, Request,
    RequestError, SendRight, Token, WaitSet, WaitSetError, WhenFull,
};
use portolan_testkit::{Answer, Child, PATIENCE, obey, unique};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

struct Server {
    domain: Domain,
    port: ReceiveRight,
    right: SendRight,
}

impl Server {
    fn new() -> Self {
        let domain = Domain::private().unwrap();
        let options = PortOptions::unnamed().synchronous().queue(1000);
        let port = domain.bind(options).unwrap();
        let right = port.make_send();
        Self {
            domain,
            port,
            right,
        }
    }

    fn ask(&self, text: &str) -> PendingReply {
        ask(&self.right, text)
    }

    fn next(&mut self) -> Request {
        self.port.get_request(Access::Later, Deadline::NOW).unwrap()
    }
}

fn ask(right: &SendRight, text: &str) -> PendingReply {
    let message = Message::new(text.as_bytes()).unwrap();
    right.begin_request(message, WhenFull::Fail).unwrap()
}

fn now(set: &mut WaitSet) -> Vec<Token> {
    set.wait(Deadline::NOW).unwrap().collect()
}

fn answer(set: &mut WaitSet, token: Token<PendingReply>) -> Result<Message, RequestError> {
    let mut pending = set.remove(token).unwrap();
    pending.wait(Access::Later, Deadline::NOW)
}

#[test]
fn each_end_of_a_request_is_named_and_no_other() {
    let mut server = Server::new();
    let mut set = WaitSet::new(&server.domain).unwrap();
    let mut add = |pending| set.add(pending).unwrap();
    let [replied, dropped, ended, silent] =
        ["reply", "drop", "end", "wait"].map(|text| add(server.ask(text)));
    let due = add(server.ask("due").with_deadline(Duration::from_millis(50)));
    assert!(now(&mut set).is_empty());
    server.next().reply_in_place().unwrap();
    assert_eq!(set.wait(soon()).unwrap().collect::<Vec<_>>(), [replied]);
    assert_eq!(answer(&mut set, replied).unwrap().header(), b"reply");
    drop(server.next());
    assert_eq!(set.wait(soon()).unwrap().collect::<Vec<_>>(), [dropped]);
    let error = answer(&mut set, dropped).unwrap_err();
    assert!(matches!(error, RequestError::Dropped), "{error}");
    let _end = server.next();
    let _wait = server.next();
    let begun = Instant::now();
    assert_eq!(set.wait(soon()).unwrap().collect::<Vec<_>>(), [due]);
    assert!(begun.elapsed() < Duration::from_secs(30));
    // Whatever its caller waits for.
    let mut late = set.remove(due).unwrap();
    let error = late.wait(Access::Later, Deadline::NEVER).unwrap_err();
    assert!(matches!(error, RequestError::TimedOut), "{error}");
    assert!(now(&mut set).is_empty());
    assert!([ended, silent].iter().all(|open| set.get(*open).is_some()));
    // Two are in hand, and the one that was given up is in the queue.
    let _ = server.next();
    drop(server.port);
    assert!(
        now(&mut set).is_empty(),
        "who has a request may answer it yet"
    );
}

#[test]
fn requests_in_the_queue_of_a_port_that_closes_are_named() {
    let server = Server::new();
    let mut set = WaitSet::new(&server.domain).unwrap();
    let open: BTreeSet<Token> = (0..50)
        .map(|_| set.add(server.ask("open")).unwrap().any())
        .collect();
    assert!(now(&mut set).is_empty());
    drop(server.port);
    let named: BTreeSet<Token> = set.wait(soon()).unwrap().collect();
    assert_eq!(named, open);
    for token in open {
        let error = answer(&mut set, token.of()).unwrap_err();
        assert!(matches!(error, RequestError::ServerDead), "{error}");
    }
    assert!(set.is_empty());
}

#[test]
fn of_many_open_requests_each_is_named_when_it_is_answered() {
    let mut server = Server::new();
    let mut set = WaitSet::new(&server.domain).unwrap();
    let mut open: BTreeMap<Token, u32> = BTreeMap::new();
    for number in 0..500_u32 {
        let token = set.add(server.ask(&number.to_string())).unwrap();
        open.insert(token.any(), number);
    }
    let mut requests: Vec<Request> = (0..500).map(|_| server.next()).collect();
    let mut at = 7;
    let mut answered = BTreeSet::new();
    while !requests.is_empty() {
        // In no order, some one by one and some together.
        for _ in 0..1 + at % 5 {
            at = (at * 31 + 11) % 500;
            if !requests.is_empty() {
                let request = requests.swap_remove(at % requests.len());
                let text = std::str::from_utf8(request.message.header()).unwrap();
                answered.insert(text.parse::<u32>().unwrap());
                request.reply_in_place().unwrap();
            }
        }
        let named: Vec<Token> = set.wait(soon()).unwrap().collect();
        let numbers: BTreeSet<u32> = named.iter().map(|token| open[token]).collect();
        assert_eq!(numbers, answered);
        for token in named {
            let came = answer(&mut set, token.of()).unwrap();
            assert_eq!(came.header(), open[&token].to_string().as_bytes());
        }
        answered.clear();
        assert!(now(&mut set).is_empty());
    }
}

#[test]
fn they_are_added_and_taken_out_in_any_order() {
    let mut server = Server::new();
    let mut set = WaitSet::new(&server.domain).unwrap();
    let mut tokens = Vec::new();
    let mut seed = 12_345_u64;
    let mut next = |most: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(seed >> 33).unwrap() % most
    };
    let mut requests = Vec::new();
    let mut expected: BTreeSet<Token> = BTreeSet::new();
    for number in 0..2000 {
        match next(5) {
            0 | 1 => {
                let pending = server.ask(&number.to_string());
                let pending = match next(3) {
                    0 => pending.with_deadline(Duration::from_secs(600)),
                    1 => pending.with_deadline(Deadline::NEVER),
                    _ => pending,
                };
                let token = set.add(pending).unwrap();
                requests.push((token.any(), server.next()));
                tokens.push(token);
            }
            2 if !requests.is_empty() => {
                let (token, request) = requests.swap_remove(next(requests.len()));
                // Of one that was taken out and dropped the client is gone.
                if request.reply_in_place().is_ok() {
                    expected.insert(token);
                }
            }
            3 if !tokens.is_empty() => {
                let token: Token<PendingReply> = tokens.swap_remove(next(tokens.len()));
                let mut pending = set.remove(token).unwrap();
                let answer = pending.wait(Access::Later, Deadline::NOW);
                assert_eq!(answer.is_ok(), expected.remove(&token.any()));
                if answer.is_err() && next(2) == 0 {
                    // Back again, at another place.
                    let again = set.add(pending).unwrap();
                    for (known, _) in &mut requests {
                        if *known == token.any() {
                            *known = again.any();
                        }
                    }
                    tokens.push(again);
                }
            }
            _ => {
                let named: BTreeSet<Token> = now(&mut set).into_iter().collect();
                assert_eq!(named, expected, "step {number}");
            }
        }
    }
}

#[test]
fn a_request_that_is_over_is_named_at_once_and_one_of_another_domain_is_refused() {
    let mut server = Server::new();
    let mut set = WaitSet::new(&server.domain).unwrap();
    let mut taken = server.ask("taken");
    server.next().reply_in_place().unwrap();
    drop(taken.wait(Access::Later, Deadline::NOW).unwrap());
    let token = set.add(taken).unwrap();
    assert_eq!(now(&mut set), [token]);
    let error = answer(&mut set, token).unwrap_err();
    assert!(matches!(error, RequestError::Dropped), "{error}");
    let other = Server::new();
    let refused = set.add(other.ask("elsewhere")).unwrap_err();
    assert!(matches!(refused.why, WaitSetError::OtherDomain { .. }));
    drop(refused.item);
    // One whose deadline has passed, and one that has none.
    let now_due = set
        .add(server.ask("now").with_deadline(Deadline::NOW))
        .unwrap();
    assert_eq!(now(&mut set), [now_due]);
    assert_eq!(
        now(&mut set),
        [now_due],
        "it is there until it is taken out"
    );
}

#[test]
fn the_descriptor_becomes_readable_for_answers_and_deadlines() {
    let mut server = Server::new();
    let mut set = WaitSet::new(&server.domain).unwrap();
    let late = set
        .add(server.ask("late").with_deadline(Duration::from_millis(60)))
        .unwrap();
    let first = set.add(server.ask("first")).unwrap();
    // Readable until a wait has found nothing.
    assert!(readable(&set, Deadline::NEVER));
    while !now(&mut set).is_empty() {}
    let _late = server.next();
    server.next().reply_in_place().unwrap();
    assert!(readable(&set, Deadline::NEVER));
    assert_eq!(now(&mut set), [first]);
    drop(answer(&mut set, first).unwrap());
    while now(&mut set).is_empty() {
        assert!(readable(&set, Deadline::NEVER));
    }
    assert_eq!(now(&mut set), [late]);
    assert!(readable(&set, Deadline::NOW));
    drop(set.remove(late));
    while !now(&mut set).is_empty() {}
    assert!(!readable(&set, Deadline::after(Duration::from_millis(20))));
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn a_task_awaits_answers_and_deadlines() {
    let mut server = Server::new();
    let mut set = WaitSet::new(&server.domain).unwrap();
    let due = set
        .add(server.ask("due").with_deadline(Duration::from_millis(30)))
        .unwrap();
    let asked = set.add(server.ask("asked")).unwrap();
    assert_eq!(set.wait_async().await.unwrap().collect::<Vec<_>>(), [due]);
    drop(set.remove(due));
    let _given_up = server.next();
    let request = server.next();
    let answers = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(10));
        request.reply_in_place().unwrap();
    });
    assert_eq!(set.wait_async().await.unwrap().collect::<Vec<_>>(), [asked]);
    answers.join().unwrap();
}

/// A server that takes requests and answers none, until it is told to.
#[test]
fn takes_orders() {
    let mut server = None;
    let mut open = Vec::new();
    obey(|order| -> Answer {
        let (order, word) = order.split_once(' ').unwrap_or((order, ""));
        match order {
            "join" => {
                let domain = Domain::join(word)?;
                let options = PortOptions::named("server").synchronous().queue(500);
                server = Some((domain.bind(options)?, domain));
            }
            "take" => {
                let (port, _) = server.as_mut().ok_or("join first")?;
                for _ in 0..word.parse()? {
                    open.push(port.get_request(Access::Later, PATIENCE)?);
                }
            }
            "answer" => {
                for request in open.drain(..) {
                    request.reply_in_place().map_err(|refused| refused.why)?;
                }
            }
            _ => return Err(format!("no such order: {order}").into()),
        }
        Ok("done".to_owned())
    });
}

/// Another process serves, and 100 requests to it are open in one set.
struct Asked {
    domain: Domain,
    child: Child,
    right: SendRight,
    set: WaitSet,
    open: BTreeSet<Token>,
}

impl Asked {
    fn of_another(name: &str) -> Self {
        let name = unique(name);
        let domain = Domain::join(&name).unwrap();
        let mut child = Child::running("answers::takes_orders", |_| {});
        assert_eq!(child.ask(&format!("join {name}")), "done");
        let right = domain.connect("server", PATIENCE).unwrap();
        let mut set = WaitSet::new(&domain).unwrap();
        let open = (0..100)
            .map(|number| set.add(ask(&right, &number.to_string())).unwrap().any())
            .collect();
        Self {
            domain,
            child,
            right,
            set,
            open,
        }
    }
}

/// With 100 requests open: in the server's hands, and in its queue.
#[test]
fn a_server_that_is_killed_ends_all_its_requests() {
    let Asked {
        domain,
        right: _right,
        mut child,
        mut set,
        mut open,
    } = Asked::of_another("answers-killed");
    // Another server's, which lives.
    let other = domain.bind(PortOptions::unnamed().synchronous()).unwrap();
    let lives = set.add(ask(&other.make_send(), "lives")).unwrap();
    assert_eq!(child.ask("take 60"), "done");
    assert!(now(&mut set).is_empty());
    child.kill();
    while !open.is_empty() {
        for token in set.wait(soon()).unwrap() {
            assert!(open.remove(&token), "named twice, or not its own");
            let error = answer(&mut set, token.of()).unwrap_err();
            assert!(matches!(error, RequestError::ServerDead), "{error}");
        }
    }
    assert!(now(&mut set).is_empty() && set.get(lives).is_some());
}

#[test]
fn a_server_that_is_stopped_ends_none_and_answers_when_it_goes_on() {
    let Asked {
        domain: _domain,
        right,
        mut child,
        mut set,
        mut open,
    } = Asked::of_another("answers-stopped");
    let due = ask(&right, "due").with_deadline(Duration::from_millis(50));
    let due = set.add(due).unwrap();
    assert_eq!(child.ask("take 101"), "done");
    child.stop();
    assert_eq!(set.wait(soon()).unwrap().collect::<Vec<_>>(), [due]);
    drop(set.remove(due));
    assert!(set.wait(Duration::from_millis(20)).unwrap().is_empty());
    child.tell("answer");
    child.resume();
    while !open.is_empty() {
        for token in set.wait(soon()).unwrap() {
            assert!(open.remove(&token), "named twice");
            drop(answer(&mut set, token.of()).unwrap());
        }
    }
}
