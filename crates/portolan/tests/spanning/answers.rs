//! What a program gets that asks the node, by each of its answers.

use super::{Spanned, joined};
use portolan::proxy::{Node, Span};
use portolan::{BindError, ConnectError, Deadline, Message, PortOptions, WhenFull};
use portolan_testkit::{PATIENCE, until};
use std::time::{Duration, Instant};

#[test]
fn what_the_node_finds_is_a_right_on_its_proxy() {
    let mut here = Spanned::new("span-found");
    let program = here.connect("upper");
    let query = here.span.take(PATIENCE).unwrap();
    assert_eq!((query.name(), query.node()), ("upper", None));
    assert!(query.is_wanted());
    assert!(query.time_left().is_some_and(|left| left <= PATIENCE));
    let proxy = here.proxy("upper", "hall");
    query.found(proxy.make_send(), "hall").unwrap();
    let right = joined(program).unwrap();
    let _pending = right
        .begin_request(Message::new(b"hello").unwrap(), WhenFull::Fail)
        .unwrap();
    assert_eq!(proxy.depth(), 1);
    let survey = here.domain.survey().unwrap();
    let shown = survey.ports.iter().find(|port| port.node.is_some());
    let shown = shown.map(|port| (port.name.as_deref(), port.node.as_deref()));
    assert_eq!(shown, Some((Some("upper"), Some("hall"))));
    // It is not found by that name.
    let local = here.domain.connect("upper", Deadline::NOW);
    assert!(matches!(local, Err(ConnectError::NoSuchPort { .. })));
}

#[test]
fn a_node_that_is_named_is_asked_even_if_there_is_a_local_port() {
    let mut here = Spanned::new("span-named");
    let local = here.domain.bind(PortOptions::named("upper")).unwrap();
    assert!(here.domain.connect("upper", PATIENCE).is_ok());
    here.nothing_is_asked();
    let program = here.connect("upper@hall");
    let query = here.span.take(PATIENCE).unwrap();
    assert_eq!((query.name(), query.node()), ("upper", Some("hall")));
    let proxy = here.proxy("upper", "hall");
    query.found(proxy.make_send(), "hall").unwrap();
    let right = joined(program).unwrap();
    let _pending = right
        .begin_request(Message::default(), WhenFull::Fail)
        .unwrap();
    assert_eq!((proxy.depth(), local.depth()), (1, 0));
}

#[test]
fn ambiguous_names_and_unknown_nodes_are_errors_that_say_which() {
    let mut here = Spanned::new("span-refused");
    let program = here.connect("upper");
    let query = here.span.take(PATIENCE).unwrap();
    query.ambiguous(&["hall", "roof"]).unwrap();
    let error = joined(program).unwrap_err();
    assert_eq!(
        error.to_string(),
        "several nodes have a port named \"upper\": say which one, as in upper@hall or upper@roof"
    );
    let program = here.connect("upper@cellar");
    here.span.take(PATIENCE).unwrap().no_such_node();
    let error = joined(program).unwrap_err();
    assert!(matches!(error, ConnectError::NoSuchNode { node } if node == "cellar"));
    for bad in ["@hall", "upper@", "upper@hall@roof", "@", "", "@node"] {
        let error = here.domain.connect(bad, PATIENCE).unwrap_err();
        assert!(
            matches!(&error, ConnectError::BadName { name } if name == bad),
            "{error}"
        );
    }
    here.nothing_is_asked();
}

#[test]
fn without_a_node_the_deadline_passes_and_a_named_one_is_missed() {
    let here = Spanned::new("span-none");
    let Spanned { domain, span } = here;
    drop(span);
    let connect = |name: &str| domain.connect(name, Duration::from_millis(20)).unwrap_err();
    assert!(matches!(connect("upper"), ConnectError::NoSuchPort { name } if name == "upper"));
    assert!(matches!(connect("upper@hall"), ConnectError::NoNode));
    let nodes = domain.nodes(PATIENCE);
    assert!(matches!(nodes, Err(ConnectError::NoNode)), "{nodes:?}");
}

#[test]
fn a_name_that_is_bound_while_the_node_is_asked_is_found_here() {
    let mut here = Spanned::new("span-beside");
    let program = here.connect("upper");
    let query = here.span.take(PATIENCE).unwrap();
    let local = here.domain.bind(PortOptions::named("upper")).unwrap();
    let right = joined(program).unwrap();
    right.send(Message::default(), WhenFull::Fail).unwrap();
    assert_eq!(local.depth(), 1);
    // The node's answer comes too late, and harms nobody.
    assert!(!query.is_wanted());
    let proxy = here.proxy("upper", "hall");
    query.found(proxy.make_send(), "hall").unwrap();
    until("the right is dropped", || proxy.senders() == 0);
}

#[test]
fn a_program_that_gives_up_wants_no_answer() {
    let mut here = Spanned::new("span-given-up");
    let program = here.connect_by("upper", Duration::from_millis(50).into());
    let query = here.span.take(PATIENCE).unwrap();
    let error = joined(program).unwrap_err();
    assert!(matches!(error, ConnectError::NoSuchPort { .. }), "{error}");
    assert!(!query.is_wanted());
    assert_eq!(query.time_left(), Some(Duration::ZERO));
}

#[test]
fn a_dropped_query_is_asked_again_and_so_is_a_dead_right() {
    let mut here = Spanned::new("span-again");
    let program = here.connect_by("upper", Deadline::NEVER);
    drop(here.span.take(PATIENCE).unwrap());
    let again = here.span.take(PATIENCE).unwrap();
    assert_eq!(again.time_left(), None);
    let dead = here.proxy("upper", "hall");
    let right = dead.make_send();
    drop(dead);
    again.found(right, "hall").unwrap();
    // Of no node, the same.
    here.span.take(PATIENCE).unwrap().ambiguous(&[]).unwrap();
    let last = here.span.take(PATIENCE).unwrap();
    let proxy = here.proxy("upper", "hall");
    last.found(proxy.make_send(), "hall").unwrap();
    assert!(joined(program).is_ok());
}

#[test]
fn what_is_no_nodes_name_is_refused_and_asked_again() {
    let mut here = Spanned::new("span-bad-node");
    let program = here.connect("upper");
    let proxy = here.proxy("upper", "hall");
    let take = |span: &mut Span| span.take(PATIENCE).unwrap();
    let query = take(&mut here.span);
    assert!(query.found(proxy.make_send(), "a@b").is_err());
    let query = take(&mut here.span);
    assert!(query.ambiguous(&["hall", ""]).is_err());
    take(&mut here.span)
        .found(proxy.make_send(), "hall")
        .unwrap();
    assert!(joined(program).is_ok());
    assert!(Span::begin(&here.domain, &"n".repeat(33)).is_err());
}

#[test]
fn only_ports_that_are_let_out_are_found() {
    let mut here = Spanned::new("span-let-out");
    let bind = |options: PortOptions| here.domain.bind(options).unwrap();
    let spanned = bind(
        PortOptions::named("spanned")
            .synchronous()
            .spanned()
            .queue(15),
    );
    let _kept = bind(PortOptions::named("kept"));
    let found = here.span.find("spanned").unwrap();
    assert_eq!((found.synchronous, found.slots), (true, 16));
    for name in ["kept", "none", "@node", ""] {
        assert!(here.span.find(name).is_none(), "{name}");
    }
    here.span.set_ports(["kept", "@node", "none"]);
    assert!(here.span.find("kept").is_some_and(|port| !port.synchronous));
    assert!(here.span.find("@node").is_none() && here.span.find("none").is_none());
    here.span.set_ports([""; 0]);
    assert!(here.span.find("kept").is_none());
    // The name goes with the port, and the entry's next port has none.
    let mut message = Message::default();
    message.attach(spanned).unwrap();
    let mailbox = bind(PortOptions::unnamed());
    let to = mailbox.make_send();
    to.send(message, WhenFull::Fail).unwrap();
    assert!(here.span.find("spanned").is_some(), "while it moves");
    drop((mailbox, to));
    assert!(here.span.find("spanned").is_none());
    drop(found);
    let _next: Vec<_> = (0..1100)
        .map(|at| bind(PortOptions::named(&format!("next {at}")).queue(1)))
        .collect();
    assert!((0..1100).all(|at| here.span.find(&format!("next {at}")).is_none()));
}

#[test]
fn a_port_that_is_a_proxy_here_is_found_at_its_home_only() {
    let here = Spanned::new("span-home");
    let port = PortOptions::named("upper").spanned();
    let port = here.domain.bind(port).unwrap();
    assert!(here.span.find("upper").is_some());
    let proxy = portolan::proxy::ProxyPort::new(port, "hall").unwrap();
    assert!(here.span.find("upper").is_none());
    let _port = proxy.into_receive_right();
    assert!(here.span.find("upper").is_some());
}

#[test]
fn a_domain_has_one_node_until_that_ends() {
    let here = Spanned::new("span-one");
    let space = here.domain.space();
    let second = Span::begin(&here.domain, "there").unwrap_err();
    assert!(
        matches!(&second, BindError::Spanned { node, space: its } if node == "here" && *its == space),
        "{second}"
    );
    let Spanned { domain, span } = here;
    drop(span);
    let next = Span::begin(&domain, "there").unwrap();
    assert_eq!(next.node(), "there");
    // Nobody else can have its name.
    assert!(domain.bind(PortOptions::named("@node")).is_err());
}

#[test]
fn more_nodes_than_one_answer_holds_are_listed() {
    let mut here = Spanned::new("span-nodes");
    let since = Instant::now();
    let nodes: Vec<_> = (0..500)
        .map(|at| Node {
            name: format!("node {at}"),
            unreachable_since: (at % 2 == 1).then_some(since),
        })
        .collect();
    here.span.set_nodes(nodes.clone());
    let domain = here.domain.clone();
    let program = std::thread::spawn(move || domain.nodes(PATIENCE));
    while !program.is_finished() {
        let asked = here.span.take(Duration::from_millis(1));
        assert!(asked.is_err(), "{asked:?}");
    }
    let listed = program.join().unwrap().unwrap();
    let names = |nodes: &[Node]| {
        let names = nodes
            .iter()
            .map(|n| (n.name.clone(), n.unreachable_since.is_some()));
        names.collect::<Vec<_>>()
    };
    assert_eq!(names(&listed), names(&nodes));
    let silent = listed.iter().filter_map(|node| node.unreachable_since);
    let off = silent.map(|at| at.max(since) - at.min(since)).max();
    assert!(
        off.is_some_and(|off| off < Duration::from_secs(1)),
        "{off:?}"
    );
}

#[test]
fn a_node_that_does_not_look_costs_programs_their_deadline() {
    let here = Spanned::new("span-still");
    let wait = Duration::from_millis(50);
    let error = here.domain.connect("upper@hall", wait).unwrap_err();
    assert!(
        matches!(&error, ConnectError::NoSuchPort { name } if name == "upper@hall"),
        "{error}"
    );
    let error = here.domain.nodes(wait).unwrap_err();
    assert!(matches!(error, ConnectError::NoAnswer { node } if node == "here"));
}

#[test]
fn a_node_that_begins_late_is_asked_by_who_waits() {
    let here = Spanned::new("span-late");
    let program = here.connect("upper");
    let Spanned { domain, span } = here;
    drop(span);
    let mut span = Span::begin(&domain, "there").unwrap();
    let query = span.take(PATIENCE).unwrap();
    let proxy = span.bind("upper", "hall", PortOptions::unnamed()).unwrap();
    query.found(proxy.make_send(), "hall").unwrap();
    assert!(joined(program).is_ok());
}

#[test]
fn a_wait_set_names_a_span_that_is_asked() {
    let here = Spanned::new("span-set");
    let program = here.connect("upper");
    let mut set = portolan::WaitSet::new(&here.domain).unwrap();
    let token = set.add(here.span).unwrap();
    assert_eq!(set.wait(PATIENCE).unwrap().next(), Some(token.any()));
    let span = set.get_mut(token).unwrap();
    let query = span.take(Deadline::NOW).unwrap();
    query.ambiguous(&["hall"]).unwrap();
    assert!(joined(program).is_err());
}
