//! A program has the node of its machine span a domain, at a socket that a node of the test's own
//! serves, well or ill.

use portolan::proxy::programs_socket;
use portolan::{Domain, JoinError};
use portolan_abi::node::{SpanAnswer, SpanOutcome, SpanRequest};
use portolan_sys::socket::{self, Address};
use portolan_testkit::{PATIENCE, unique};
use std::io::{BufRead as _, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What a program does that has its domain spanned, in a process of its own, which alone has the
/// socket in its environment: it prints what comes of it.
#[test]
fn joins_spanning() {
    let Some([domain, directory, patience]) = portolan_testkit::role() else {
        return;
    };
    let patience = Duration::from_millis(patience.parse().unwrap());
    let mut builder = Domain::builder(&domain).spanning().deadline(patience);
    if !directory.is_empty() {
        builder = builder.path(directory);
    }
    match builder.join() {
        Ok(_) => println!("outcome: joined"),
        Err(error) => println!("outcome: {error:?} / {error}"),
    }
}

/// A node's socket in a directory of its own, which goes with it.
struct Node {
    directory: PathBuf,
    listener: OwnedFd,
}

impl Node {
    fn new(test: &str) -> Self {
        let directory = std::env::temp_dir().join(unique(test));
        std::fs::create_dir(&directory).unwrap();
        let socket = Address::Path(directory.join("programs.sock"));
        let listener = socket::listen(&socket, 8).unwrap();
        Self {
            directory,
            listener,
        }
    }

    /// What a program hears that has a domain spanned, of which the node does this.
    fn program(&self, directory: &str, serve: impl FnOnce(&Self, &str)) -> String {
        let domain = unique("span-program");
        let program = program(&domain, directory, PATIENCE)
            .env("PORTOLAN_NODE_STATE", &self.directory)
            .spawn()
            .unwrap();
        serve(self, &domain);
        outcome_of(program.wait_with_output().unwrap())
    }

    /// Takes a client's request, and answers it so.
    fn answer(&self, answer: &[u8]) {
        self.answer_after(answer, |_| {});
    }

    /// The same, after something else.
    fn answer_after(&self, answer: &[u8], act: impl FnOnce(SpanRequest)) {
        let until = Some(Instant::now() + PATIENCE);
        let client = socket::accept_by(&self.listener, until).unwrap();
        let mut bytes = [0; SpanRequest::MOST];
        let received = socket::receive_by(&client, &mut bytes, 0, until).unwrap();
        assert!(!received.truncated);
        act(SpanRequest::decode(&bytes[..received.len]).unwrap());
        if !answer.is_empty() {
            socket::send(&client, answer, &[]).unwrap();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn program(domain: &str, directory: &str, patience: Duration) -> Command {
    let patience = patience.as_millis().to_string();
    let role = [domain, directory, &patience];
    let mut command = portolan_testkit::in_role("programs::joins_spanning", &role);
    command
        .env_remove("PORTOLAN_NODE_SOCKET")
        .stdout(Stdio::piped());
    command
}

fn outcome_of(output: std::process::Output) -> String {
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find_map(|line| {
        let (_, outcome) = line.split_once("outcome: ")?;
        Some(outcome.to_owned())
    });
    line.unwrap_or_else(|| panic!("no outcome in {text:?}"))
}

#[test]
fn the_node_is_told_which_domain_and_the_program_what_came_of_it() {
    let node = Node::new("span-node");
    let spans = SpanAnswer::new(SpanOutcome::Spans, "").encode();
    let outcome = node.program("", |node, domain| {
        node.answer_after(&spans, |request| {
            let user = portolan_sys::process::user();
            assert_eq!(request, SpanRequest::new(domain, user, None));
            // It is there already, and so can the node be.
            assert!(Domain::builder(domain).create(false).join().is_ok());
        });
    });
    assert_eq!(outcome, "joined");
    let meeting = node.directory.join("meeting");
    std::fs::create_dir(&meeting).unwrap();
    let meeting = meeting.to_str().unwrap();
    let outcome = node.program(meeting, |node, _| {
        node.answer_after(&spans, |request| {
            assert_eq!(request.directory.as_deref(), Some(meeting.as_bytes()));
        });
    });
    assert_eq!(outcome, "joined");
}

#[test]
fn a_node_that_refuses_says_why_and_the_program_is_not_joined() {
    let node = Node::new("span-refuses");
    let said = |answer: SpanAnswer| {
        node.program("", |node, domain| {
            node.answer(&answer.encode());
            // Nothing of the attempt is left, soon.
            let gone = || {
                let found = Domain::builder(domain).observe();
                matches!(found, Err(JoinError::NotRunning { .. }))
            };
            portolan_testkit::until("the program has left", gone);
        })
    };
    for (outcome, reason, says) in [
        (SpanOutcome::NotPermitted, "", "not permitted"),
        (
            SpanOutcome::Failed,
            "no\x1b[2Jmemory",
            "(no\\u{1b}[2Jmemory)",
        ),
        (SpanOutcome::Spanned, "", "another node spans it"),
        (SpanOutcome::Busy, "", "too many programs"),
    ] {
        let outcome = said(SpanAnswer::new(outcome, reason));
        assert!(outcome.starts_with("NodeRefused"), "{outcome}");
        assert!(outcome.contains(says), "{outcome}");
    }
    let other = SpanAnswer {
        format: 77,
        ..SpanAnswer::new(SpanOutcome::Format, "")
    };
    let outcome = said(other);
    assert!(outcome.contains("format 77 of domains"), "{outcome}");
}

#[test]
fn what_is_no_answer_is_refused() {
    let node = Node::new("span-garbage");
    let good = SpanAnswer::new(SpanOutcome::Spans, "").encode();
    let long = [&good[..], &[b'x'; SpanAnswer::MOST]].concat();
    let mut unknown = good.clone();
    unknown[12] = 99;
    for bytes in [&good[..good.len() - 1], &long, &unknown, b"x"] {
        let outcome = node.program("", |node, _| node.answer(bytes));
        assert!(outcome.contains("its answer is none"), "{outcome}");
    }
    let closed = node.program("", |node, _| node.answer(b""));
    assert!(closed.contains("it closed the connection"), "{closed}");
}

#[test]
fn where_no_node_runs_the_error_names_the_command_that_runs_one() {
    let directory = std::env::temp_dir().join(unique("span-no-node"));
    std::fs::create_dir(&directory).unwrap();
    let hear = || {
        let mut program = program(&unique("span-alone"), "", PATIENCE);
        let program = program.env("PORTOLAN_NODE_STATE", &directory).output();
        outcome_of(program.unwrap())
    };
    let outcome = hear();
    assert!(outcome.starts_with("NoNode"), "{outcome}");
    assert!(outcome.contains("`portolan node up`"), "{outcome}");
    // The socket's file is left by a node that was killed.
    let socket = Address::Path(directory.join("programs.sock"));
    drop(socket::listen(&socket, 1).unwrap());
    assert!(hear().starts_with("NoNode"));
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_node_that_does_not_answer_costs_the_program_its_deadline() {
    let node = Node::new("span-silent");
    let begun = Instant::now();
    let mut program = program(&unique("span-alone"), "", Duration::from_millis(300));
    let program = program.env("PORTOLAN_NODE_STATE", &node.directory).output();
    let outcome = outcome_of(program.unwrap());
    assert!(outcome.starts_with("NodeSilent"), "{outcome}");
    assert!(begun.elapsed() < PATIENCE / 2, "{:?}", begun.elapsed());
}

#[test]
fn a_socket_that_is_named_counts_before_the_state_directory() {
    let node = Node::new("span-socket");
    let named = node.directory.join("programs.sock");
    let program = program(&unique("span-named"), "", PATIENCE)
        .env("PORTOLAN_NODE_STATE", "/nonexistent")
        .env("PORTOLAN_NODE_SOCKET", &named)
        .spawn()
        .unwrap();
    node.answer(&SpanAnswer::new(SpanOutcome::Spans, "").encode());
    assert_eq!(outcome_of(program.wait_with_output().unwrap()), "joined");
    // Without either, it is below the home directory of this user.
    let socket = programs_socket(Some(Path::new("/srv/node")));
    assert_eq!(socket, Some("/srv/node/programs.sock".into()));
}

/// A node of another user: it listens, and tells whether somebody has come.
#[test]
fn listens_for_others() {
    let Some([path]) = portolan_testkit::role() else {
        return;
    };
    let listener = socket::listen(&Address::Path(path.into()), 8).unwrap();
    println!("outcome: listens");
    let client = socket::accept(&listener).unwrap();
    let said = socket::receive(&client, &mut [0; SpanRequest::MOST], 0);
    println!("outcome: {}", said.is_ok());
}

/// Where this process may start one of another user.
#[test]
fn a_strangers_socket_is_not_spoken_to() {
    const STRANGER: u32 = 1234;
    if portolan_sys::process::user() != 0 {
        eprintln!("skipped: only root starts processes of other users");
        return;
    }
    let directory = std::env::temp_dir().join(unique("span-stranger"));
    std::fs::create_dir(&directory).unwrap();
    std::os::unix::fs::chown(&directory, Some(STRANGER), None).unwrap();
    let path = directory.join("programs.sock");
    let role = [path.to_str().unwrap()];
    let mut stranger = portolan_testkit::in_role("programs::listens_for_others", &role)
        .uid(STRANGER)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(stranger.stdout.take().unwrap()).lines();
    let mut heard = || {
        let outcome = |line: String| Some(line.split_once("outcome: ")?.1.to_owned());
        lines.by_ref().map_while(Result::ok).find_map(outcome)
    };
    assert_eq!(heard().as_deref(), Some("listens"));
    let mut program = program(&unique("span-alone"), "", PATIENCE);
    let outcome = program.env("PORTOLAN_NODE_STATE", &directory).output();
    let outcome = outcome_of(outcome.unwrap());
    assert!(outcome.starts_with("StrangeNode"), "{outcome}");
    assert_eq!(heard().as_deref(), Some("false"), "it was told nothing");
    stranger.wait().unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
}
