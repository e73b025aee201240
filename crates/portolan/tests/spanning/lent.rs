//! Ports that a node has lent: it is told of those that change, of thousands, and of no others,
//! also where a process dies or stops meanwhile.

use super::Spanned;
use portolan::proxy::{KnownPort, LentNotice, Span};
use portolan::{Domain, PortOptions, ReceiveRight, WaitSet};
use portolan_testkit::{Answer, Child, PATIENCE, obey, unique, until};
use std::collections::BTreeSet;

const MANY: u64 = 20_000;

/// All that a node is told by now.
#[derive(Debug, Default, PartialEq, Eq)]
struct Told {
    closed: BTreeSet<u64>,
    wanting: BTreeSet<u64>,
}

impl Told {
    fn more(&mut self, span: &mut Span) {
        while let Some(notice) = span.changed() {
            match notice {
                LentNotice::Closed { token } => assert!(self.closed.insert(token), "{token} twice"),
                LentNotice::WantsSenders { token } => drop(self.wanting.insert(token)),
                other => panic!("{other:?}"),
            }
        }
    }

    fn by_now(span: &mut Span) -> Self {
        let mut told = Self::default();
        told.more(span);
        told
    }
}

fn known(port: &ReceiveRight) -> KnownPort {
    KnownPort::of(&port.make_send())
}

fn entry(port: &ReceiveRight) -> u64 {
    known(port).number() & 0xffff
}

/// Of twenty thousand, and of others that have taken the entries of those that closed.
#[test]
fn a_node_is_told_of_the_ports_that_change_and_of_no_others() {
    let mut here = Spanned::new("lent-many");
    let domain = here.domain.clone();
    let bind = || domain.bind(PortOptions::unnamed().queue(1)).unwrap();
    let lend = |span: &mut Span, port: &ReceiveRight, token| span.lend(&known(port), token);
    let mut ports: Vec<(u64, ReceiveRight)> = (0..MANY).map(|token| (token, bind())).collect();
    for (token, port) in &ports {
        lend(&mut here.span, port, *token);
    }
    assert_eq!(Told::by_now(&mut here.span), Told::default());
    let mut expected = Told::default();
    let mut freed = BTreeSet::new();
    ports.retain(|(token, port)| {
        let closes = token % 3 == 0;
        if closes {
            expected.closed.insert(*token);
            freed.insert(entry(port));
        } else if token % 3 == 1 {
            port.request_no_more_senders();
            expected.wanting.insert(*token);
        }
        !closes
    });
    // Before the node looks others have their entries, are lent too, and some of them close.
    let mut next: Vec<(u64, ReceiveRight)> = Vec::new();
    let mut again = 0;
    while again < 1000 {
        let token = MANY + next.len() as u64;
        let port = bind();
        lend(&mut here.span, &port, token);
        again += u32::from(freed.contains(&entry(&port)));
        next.push((token, port));
    }
    next.retain(|(token, _)| {
        if token % 2 == 0 {
            expected.closed.insert(*token);
        }
        token % 2 != 0
    });
    let told = Told::by_now(&mut here.span);
    assert_eq!(told.closed, expected.closed);
    assert_eq!(told.wanting, expected.wanting);
    // What is taken back is told of no more; the others are.
    for (_, port) in &ports {
        here.span.take_back(&known(port));
    }
    drop(ports);
    let tokens: BTreeSet<u64> = next.iter().map(|(token, _)| *token).collect();
    drop(next);
    let told = Told::by_now(&mut here.span);
    assert_eq!((told.closed, told.wanting), (tokens, BTreeSet::new()));
}

/// A program whose ports a node has lent, or a node that lends ports of programs.
#[derive(Default)]
struct Other {
    domain: Option<Domain>,
    span: Option<Span>,
    ports: Vec<ReceiveRight>,
}

impl Other {
    fn act(&mut self, order: &str) -> Answer {
        let (order, word) = order.rsplit_once(' ').unwrap_or((order, ""));
        match order {
            "join" => self.domain = Some(Domain::join(word)?),
            "begin" => self.span = Some(Span::begin(self.domain()?, word)?),
            "bind" => {
                for number in 0..word.parse()? {
                    let options = PortOptions::named(&format!("p{number}")).queue(1);
                    self.ports.push(self.domain()?.bind(options)?);
                }
            }
            "lend" => {
                for number in 0..word.parse()? {
                    let right = self.domain()?.connect(&format!("p{number}"), PATIENCE)?;
                    let span = self.span.as_mut().ok_or("no span")?;
                    span.lend(&KnownPort::of(&right), number);
                }
            }
            "ask" => self.ports[word.parse::<usize>()?].request_no_more_senders(),
            "close" => drop(self.ports.swap_remove(word.parse()?)),
            #[cfg(feature = "marks")]
            "die at" => portolan_testkit::die_at(word, portolan_shm::mark::install),
            #[cfg(feature = "marks")]
            "stop at" => portolan_testkit::stop_once_at(word, portolan_shm::mark::install),
            _ => return Err(format!("no such order: {order}").into()),
        }
        Ok("done".to_owned())
    }

    fn domain(&self) -> Result<&Domain, &'static str> {
        self.domain.as_ref().ok_or("join first")
    }
}

#[test]
fn takes_orders() {
    let mut other = Other::default();
    obey(|order| other.act(order));
}

/// A node here, and a program in another process with so many ports, all lent.
fn with_program(test: &str, ports: u64) -> (Spanned, Child) {
    let mut here = Spanned::new(test);
    let mut program = Child::running("lent::takes_orders", |_| {});
    program.ask(&format!("join {}", here.domain.name()));
    assert_eq!(program.ask(&format!("bind {ports}")), "done");
    for number in 0..ports {
        let right = here
            .domain
            .connect(&format!("p{number}"), PATIENCE)
            .unwrap();
        here.span.lend(&KnownPort::of(&right), number);
    }
    assert_eq!(Told::by_now(&mut here.span), Told::default());
    (here, program)
}

#[test]
fn a_node_that_waits_is_woken_for_a_change() {
    let (here, mut program) = with_program("lent-wakes", 3);
    let mut set = WaitSet::new(&here.domain).unwrap();
    let token = set.add(here.span).unwrap();
    assert_eq!(set.wait(portolan::Deadline::NOW).unwrap().next(), None);
    for (order, notice) in [
        ("ask 1", LentNotice::WantsSenders { token: 1 }),
        ("close 0", LentNotice::Closed { token: 0 }),
    ] {
        std::thread::scope(|scope| {
            let wakes = scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(100));
                program.ask(order)
            });
            assert_eq!(set.wait(PATIENCE).unwrap().next(), Some(token.any()));
            assert_eq!(wakes.join().unwrap(), "done");
        });
        let span = set.get_mut(token).unwrap();
        assert_eq!(span.changed(), Some(notice));
        assert_eq!(span.changed(), None);
        assert_eq!(set.wait(portolan::Deadline::NOW).unwrap().next(), None);
    }
}

/// A node that waits for programs alone does not burn a processor for changes that it does not take.
#[test]
fn a_change_is_there_after_a_wait_for_programs() {
    let (mut here, mut program) = with_program("lent-beside", 1);
    assert_eq!(program.ask("ask 0"), "done");
    here.nothing_is_asked();
    let wants = Some(LentNotice::WantsSenders { token: 0 });
    assert_eq!(here.span.changed(), wants);
}

#[test]
fn of_a_program_that_is_killed_all_ports_are_told_of() {
    let (mut here, mut program) = with_program("lent-killed", 3000);
    program.kill();
    let mut told = Told::default();
    until("all are told of", || {
        told.more(&mut here.span);
        told.closed.len() == 3000
    });
}

/// It dies at each step of a close; the host goes on with it, and tells.
#[cfg(feature = "marks")]
#[test]
fn a_port_whose_closer_dies_is_told_of_once() {
    for mark in [
        "close.begun",
        "close.drained",
        "lent.changing",
        "lent.changed",
        "lent.told",
        "close.told",
    ] {
        let (mut here, mut program) = with_program("lent-dies", 2);
        program.ask(&format!("die at {mark}"));
        program.tell("close 0");
        until("it has died", || program.ended());
        let mut told = Told::default();
        until("both are told of", || {
            told.more(&mut here.span);
            told.closed.len() == 2
        });
    }
}

/// It stops at each step of a close, and holds up no other one's.
#[cfg(feature = "marks")]
#[test]
fn a_port_whose_closer_stops_holds_up_no_other() {
    for mark in ["close.drained", "lent.changing", "lent.changed"] {
        let (mut here, mut program) = with_program("lent-stops", 2);
        let own = here.domain.bind(PortOptions::unnamed()).unwrap();
        here.span.lend(&known(&own), 7);
        program.ask(&format!("stop at {mark}"));
        program.tell("close 0");
        program.stopped();
        drop(own);
        let mut told = Told::default();
        told.more(&mut here.span);
        assert!(told.closed.contains(&7), "{mark}");
        program.resume();
        assert_eq!(program.answer(), "done");
        told.more(&mut here.span);
        assert_eq!(told.closed, BTreeSet::from([0, 7]), "{mark}");
    }
}

/// Killed while it lends: the next node begins with nothing lent, and is told of what it lends.
#[test]
fn the_node_after_one_that_was_killed_is_told_of_its_own() {
    for hosts in [false, true] {
        let name = unique("lent-node");
        let first = (!hosts).then(|| Domain::join(&name).unwrap());
        let mut node = Child::running("lent::takes_orders", |_| {});
        node.ask(&format!("join {name}"));
        assert_eq!(node.ask("begin first"), "done");
        let domain = first.unwrap_or_else(|| Domain::join(&name).unwrap());
        let bind = |number| domain.bind(PortOptions::named(&format!("p{number}")).queue(1));
        let mut ports: Vec<_> = (0..2000).map(|number| bind(number).unwrap()).collect();
        assert_eq!(node.ask("lend 1000"), "done");
        node.tell("lend 2000");
        drop(ports.drain(..10));
        node.kill();
        drop(ports.drain(..10));
        let mut span = Span::begin(&domain, "second").unwrap();
        drop(ports.drain(..10));
        assert_eq!(Told::by_now(&mut span), Told::default());
        let one = ports.pop().unwrap();
        span.lend(&known(&one), 1);
        drop((one, ports));
        let told = Told::by_now(&mut span);
        assert_eq!(told.closed, BTreeSet::from([1]));
    }
}
