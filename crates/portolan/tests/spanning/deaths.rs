//! The node, or a program that asks it, is killed or stopped.

use super::{Connecting, Spanned, joined};
use portolan::proxy::{Query, Span};
use portolan::{
    BindError, ConnectError, Deadline, Domain, Message, PortOptions, ReceiveError, SendRight,
    WhenFull,
};
use portolan_testkit::{Answer, Child, PATIENCE, obey, unique, until};
use std::time::{Duration, Instant};

/// Longer than any step takes, and far from a deadline of [`PATIENCE`].
const SOON: Duration = Duration::from_secs(20);

/// A node, or a program, in a process of its own.
#[derive(Default)]
struct Other {
    domain: Option<Domain>,
    span: Option<Span>,
    held: Option<Query>,
    asking: Option<Connecting>,
}

impl Other {
    fn act(&mut self, order: &str) -> Answer {
        let (order, word) = order.rsplit_once(' ').unwrap_or((order, ""));
        match order {
            "join" => self.domain = Some(Domain::join(word)?),
            "begin" => self.span = Some(Span::begin(self.domain()?, word)?),
            "take" => {
                let query = self.span.as_mut().ok_or("no span")?.take(PATIENCE)?;
                let name = query.name().to_owned();
                self.held = Some(query);
                return Ok(name);
            }
            // With a right on this port, which is none of the node's own.
            "answer" => self.answer(word)?,
            // Its answer lies in the program's queue, and the program is not woken.
            #[cfg(feature = "marks")]
            "die answering" => {
                portolan_testkit::die_at("span.answered", portolan_shm::mark::install);
                self.answer(word)?;
            }
            "connect" => {
                let domain = self.domain()?.clone();
                let name = word.to_owned();
                let connect = move || domain.connect(&name, Deadline::NEVER);
                self.asking = Some(std::thread::spawn(connect));
            }
            _ => return Err(format!("no such order: {order}").into()),
        }
        Ok("done".to_owned())
    }

    fn answer(&mut self, port: &str) -> Result<(), Box<dyn std::error::Error>> {
        let right = self.domain()?.connect(port, PATIENCE)?;
        let query = self.held.take().ok_or("no query")?;
        Ok(query.found(right, "hall")?)
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

fn other(domain: &str) -> Child {
    let mut child = Child::running("deaths::takes_orders", |_| {});
    assert_eq!(child.ask(&format!("join {domain}")), "done");
    child
}

/// A domain with a node of another process, which is its host, or is not.
fn with_node(test: &str, hosts: bool) -> (Domain, Child) {
    let name = unique(test);
    let first = (!hosts).then(|| Domain::join(&name).unwrap());
    let mut node = other(&name);
    assert_eq!(node.ask("begin first"), "done");
    let domain = first.unwrap_or_else(|| Domain::join(&name).unwrap());
    assert_eq!(domain.is_host(), !hosts);
    (domain, node)
}

fn connecting(domain: &Domain, name: &str) -> Connecting {
    let (domain, name) = (domain.clone(), name.to_owned());
    std::thread::spawn(move || domain.connect(&name, PATIENCE))
}

fn works(right: &SendRight) {
    right.send(Message::default(), WhenFull::Fail).unwrap();
}

#[test]
fn when_the_node_is_killed_programs_wait_on_and_ask_the_next_one() {
    for (hosts, held) in [(false, true), (true, true), (false, false), (true, false)] {
        let (domain, mut node) = with_node("span-killed", hosts);
        let here = connecting(&domain, "here");
        let there = connecting(&domain, "there");
        if held {
            node.ask("take");
        }
        node.kill();
        // Its place is free once the host knows, and that is waited for.
        let mut span = Span::begin(&domain, "second").unwrap();
        let _port = domain.bind(PortOptions::named("here")).unwrap();
        works(&joined(here).unwrap());
        let proxy = span.bind("there", "hall", PortOptions::unnamed()).unwrap();
        while !there.is_finished() {
            let query = match span.take(SOON) {
                Ok(query) => query,
                Err(ReceiveError::TimedOut) => panic!("it asks the next node"),
                Err(error) => panic!("{error}"),
            };
            if query.name() == "there" {
                query.found(proxy.make_send(), "hall").unwrap();
                break;
            }
        }
        works(&joined(there).unwrap());
        assert_eq!(proxy.depth(), 1);
    }
}

#[test]
fn a_node_that_is_asked_and_stopped_costs_programs_their_deadline_and_no_local_name() {
    let (domain, mut node) = with_node("span-stopped", false);
    let here = connecting(&domain, "here");
    assert_eq!(node.ask("take"), "here");
    node.stop();
    node.stopped();
    let begun = Instant::now();
    let wait = Duration::from_millis(100);
    let error = domain.connect("upper@hall", wait).unwrap_err();
    assert!(matches!(error, ConnectError::NoSuchPort { .. }), "{error}");
    let error = domain.nodes(wait).unwrap_err();
    assert!(
        matches!(&error, ConnectError::NoAnswer { node } if node == "first"),
        "{error}"
    );
    // Stopped, it has its place still.
    let error = Span::begin(&domain, "second").unwrap_err();
    assert!(
        matches!(&error, BindError::Spanned { node, .. } if node == "first"),
        "{error}"
    );
    let _port = domain.bind(PortOptions::named("here")).unwrap();
    works(&joined(here).unwrap());
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    node.resume();
    // What it answers now, nobody wants.
    assert_eq!(node.ask("answer here"), "done");
}

/// Killed when its answer lies in the program's queue, and before it has woken the program.
#[cfg(feature = "marks")]
#[test]
fn an_answer_is_found_although_the_node_died_before_it_could_wake_the_program() {
    for hosts in [false, true] {
        let (domain, mut node) = with_node("span-answered", hosts);
        let target = domain.bind(PortOptions::named("target")).unwrap();
        let asking = domain.clone();
        let upper = std::thread::spawn(move || asking.connect("upper", Deadline::NEVER));
        assert_eq!(node.ask("take"), "upper");
        node.tell("die answering target");
        until("it has died", || node.ended());
        until("the program has its answer", || upper.is_finished());
        works(&joined(upper).unwrap());
        assert_eq!(target.depth(), 1);
    }
}

#[test]
fn a_program_that_is_killed_wants_no_answer_and_keeps_no_right() {
    let mut here = Spanned::new("span-program");
    let mut program = other(here.domain.name());
    assert_eq!(program.ask("connect upper"), "done");
    let query = here.span.take(PATIENCE).unwrap();
    assert_eq!((query.time_left(), query.is_wanted()), (None, true));
    program.kill();
    until("it wants no answer", || !query.is_wanted());
    let proxy = here.proxy("upper", "hall");
    query.found(proxy.make_send(), "hall").unwrap();
    until("the right is dropped", || proxy.senders() == 0);
    here.nothing_is_asked();
}

#[test]
fn a_program_that_is_killed_with_the_answer_in_its_queue_keeps_no_right() {
    let mut here = Spanned::new("span-unread");
    let mut program = other(here.domain.name());
    assert_eq!(program.ask("connect upper"), "done");
    let query = here.span.take(PATIENCE).unwrap();
    program.stop();
    program.stopped();
    let proxy = here.proxy("upper", "hall");
    query.found(proxy.make_send(), "hall").unwrap();
    assert_eq!(proxy.senders(), 1);
    program.kill();
    until("the right is dropped", || proxy.senders() == 0);
}

#[test]
fn more_programs_than_the_nodes_queue_holds_are_all_answered() {
    let mut here = Spanned::new("span-many");
    let programs: Vec<_> = (0..300).map(|_| here.connect("upper")).collect();
    // Nobody looks until more wait than fit.
    std::thread::sleep(Duration::from_millis(500));
    let proxy = here.proxy("upper", "hall");
    let mut answered = 0;
    while answered < programs.len() {
        let query = here.span.take(SOON).unwrap();
        query.found(proxy.make_send(), "hall").unwrap();
        answered += 1;
    }
    let rights: Vec<_> = programs
        .into_iter()
        .map(|program| joined(program).unwrap())
        .collect();
    assert_eq!(rights.len(), 300);
    here.nothing_is_asked();
}
