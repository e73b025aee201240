//! Ports of other machines: found through a node, and let out to it.

use crate::scene::{PATIENCE, Running, command, fails, finished, unique, until};
use portolan::proxy::{ProxyPort, Span, Taken};
use portolan::{Domain, PortOptions};
use std::time::Instant;

/// A domain with a node of this test's own, which knows one port of another node.
struct Node {
    domain: Domain,
    span: Span,
    upper: ProxyPort,
}

impl Node {
    fn new(test: &str) -> Self {
        let domain = Domain::join(&unique(test)).unwrap();
        let span = Span::begin(&domain, "roof").unwrap();
        let options = PortOptions::unnamed().synchronous();
        let upper = span.bind("upper", "hall", options).unwrap();
        Self {
            domain,
            span,
            upper,
        }
    }

    fn call(&self, name: &str) -> Running {
        let call = ["call", name, "--data", "hello"];
        Running::start(self.domain.name(), &call)
    }
}

#[test]
fn a_call_goes_to_the_node_that_it_names_or_to_the_one_that_has_the_port() {
    let mut node = Node::new("cli-remote");
    for (name, asked) in [("upper", None), ("upper@hall", Some("hall"))] {
        let call = node.call(name);
        let query = node.span.take(PATIENCE).unwrap();
        assert_eq!((query.name(), query.node()), ("upper", asked));
        query.found(node.upper.make_send(), "hall").unwrap();
        let Taken::Request(message, answer) = node.upper.take(PATIENCE).unwrap() else {
            panic!("a request came");
        };
        let bytes: Vec<u8> = message.slices().flatten().copied().collect();
        assert_eq!(bytes, b"hello");
        answer.reply(message).unwrap();
        assert_eq!(call.finished(0).stdout, b"hello");
    }
}

#[test]
fn a_port_of_a_node_is_found_though_the_command_waits_for_nothing() {
    let mut node = Node::new("cli-remote-now");
    let call = ["call", "upper@hall", "--data", "hello", "--timeout", "0"];
    let call = Running::start(node.domain.name(), &call);
    let query = node.span.take(PATIENCE).unwrap();
    query.found(node.upper.make_send(), "hall").unwrap();
    let said = String::from_utf8(call.finished(5).stderr).unwrap();
    assert!(said.contains("no answer from the port"), "{said}");
    assert!(matches!(node.upper.take(PATIENCE), Ok(Taken::Request(..))));
}

#[test]
fn what_a_node_says_no_to_is_told_with_what_to_do() {
    let mut node = Node::new("cli-remote-no");
    let complaint = |call: Running, code| {
        let output = call.finished(code);
        String::from_utf8(output.stderr).unwrap()
    };
    let call = node.call("upper");
    let query = node.span.take(PATIENCE).unwrap();
    query.ambiguous(&["cellar", "hall"]).unwrap();
    let said = complaint(call, 2);
    assert!(said.contains("upper@cellar or upper@hall"), "{said}");
    let call = node.call("upper@attic");
    node.span.take(PATIENCE).unwrap().no_such_node();
    let said = complaint(call, 2);
    assert!(said.contains("no node named \"attic\""), "{said}");
    // Its node is silent; and is given up in the middle.
    let call = node.call("upper");
    node.upper.set_unreachable(Instant::now());
    let query = node.span.take(PATIENCE).unwrap();
    query.found(node.upper.make_send(), "hall").unwrap();
    let said = complaint(call, 5);
    assert!(
        said.contains("node \"hall\", which has been silent for"),
        "{said}"
    );
    node.upper.set_reachable();
    let call = node.call("upper");
    let query = node.span.take(PATIENCE).unwrap();
    query.found(node.upper.make_send(), "hall").unwrap();
    let Taken::Request(_, answer) = node.upper.take(PATIENCE).unwrap() else {
        panic!("a request came");
    };
    answer.node_lost("hall");
    let said = complaint(call, 7);
    assert!(said.contains("\"hall\" was given up"), "{said}");
    // This machine's own node dies.
    let call = node.call("upper");
    let query = node.span.take(PATIENCE).unwrap();
    query.found(node.upper.make_send(), "hall").unwrap();
    let Taken::Request(_, answer) = node.upper.take(PATIENCE).unwrap() else {
        panic!("a request came");
    };
    answer.server_dead();
    let said = complaint(call, 7);
    assert!(said.contains("the request may have been served"), "{said}");
    // Without a node.
    let Node { domain, span, .. } = node;
    drop(span);
    let call = ["call", "upper@hall", "--timeout", "0.2"];
    let said = fails(domain.name(), 2, &call);
    assert!(said.contains("no node spans the domain"), "{said}");
    assert!(said.contains("portolan node up"), "{said}");
    for bad in ["upper@", "@hall", "a@b@c"] {
        fails(domain.name(), 2, &["call", bad]);
        fails(domain.name(), 2, &["receive", bad]);
    }
}

#[test]
fn a_port_is_let_out_where_it_is_bound_and_only_if_that_is_said() {
    let node = Node::new("cli-let-out");
    let name = node.domain.name();
    let tr = ["--", "tr", "a-z", "A-Z"];
    let serve = [&["serve", "louder", "--spanned"][..], &tr].concat();
    let _serving = Running::start(name, &serve);
    let _receiving = Running::start(name, &["receive", "log", "--spanned"]);
    let kept = [&["serve", "kept"][..], &tr].concat();
    let _kept = Running::start(name, &kept);
    let shown = || {
        let survey = node.domain.survey().unwrap();
        let mut ports: Vec<_> = survey
            .ports
            .into_iter()
            .filter(|port| port.spanned)
            .filter_map(|port| port.name)
            .collect();
        ports.sort();
        ports
    };
    until("both are bound", || shown() == ["log", "louder"]);
    until("the other one is", || {
        node.domain.connect("kept", PATIENCE).is_ok()
    });
    assert!(
        node.span
            .find("louder")
            .is_some_and(|port| port.synchronous)
    );
    assert!(node.span.find("log").is_some_and(|port| !port.synchronous));
    assert!(node.span.find("kept").is_none());
    let elsewhere = command(name, &["receive", "log@hall"]).output().unwrap();
    let said = finished(elsewhere, Some(2)).stderr;
    let said = String::from_utf8(said).unwrap();
    assert!(said.contains("--spanned"), "{said}");
}
