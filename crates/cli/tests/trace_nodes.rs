//! `portolan trace --nodes`, beside nodes that run.

#[path = "support/lab.rs"]
mod lab;
mod support;

use lab::{Lab, Place};
use portolan::{Access, Deadline, Domain, Message, PortOptions, ReceiveRight, SendRight};
use portolan_testkit::{PATIENCE, unique, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::HashMap;
use std::path::PathBuf;
use std::process::{Child, Output, Stdio};

fn soon() -> Deadline {
    Deadline::after(PATIENCE)
}

/// A port beside one node, and a right on it beside another.
struct Sends {
    to: Domain,
    from: Domain,
    port: ReceiveRight,
    right: SendRight,
}

impl Sends {
    fn new(from: &Place, to: &Place, name: &str) -> Self {
        let to = Domain::join(&to.domain).unwrap();
        let port = to.bind(PortOptions::named(name).spanned()).unwrap();
        let from = Domain::join(&from.domain).unwrap();
        let right = from.connect(name, soon()).unwrap();
        let sends = Self {
            to,
            from,
            port,
            right,
        };
        // Nobody is traced who has not used a flow before.
        sends.one();
        sends
    }

    fn one(&self) {
        self.right.send(Message::default(), soon()).unwrap();
        self.right.flush(soon()).unwrap();
    }

    fn are_traced(&self) -> bool {
        self.to.tracer().is_some() && self.from.tracer().is_some()
    }

    /// So many messages, which are received when this returns.
    fn send(&mut self, messages: usize) {
        for _ in 0..messages {
            self.right.send(Message::default(), soon()).unwrap();
            drop(self.port.receive(Access::Later, soon()).unwrap());
        }
        self.right.flush(soon()).unwrap();
    }
}

/// A trace that runs.
struct Trace {
    child: Child,
    file: PathBuf,
}

impl Trace {
    fn start(place: &Place, options: &[&str]) -> Self {
        let file = std::env::temp_dir().join(format!("{}.json", unique("trace-nodes")));
        let mut command = place.command(&["trace", "--nodes", "--json", "--output"]);
        let command = command.arg(&file).args(options).stdin(Stdio::null());
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let child = child.unwrap();
        Self { child, file }
    }

    /// Ends it; the summary, what was said beside it, and the file.
    fn end(self) -> (Value, String, Vec<Value>) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::INT).unwrap();
        self.ended()
    }

    fn ended(self) -> (Value, String, Vec<Value>) {
        let Output {
            status,
            stdout,
            stderr,
        } = self.child.wait_with_output().unwrap();
        let said = String::from_utf8(stderr).unwrap();
        assert!(status.success(), "{status}\n{said}");
        let text = std::fs::read_to_string(&self.file).unwrap();
        std::fs::remove_file(&self.file).unwrap();
        let summary: Value = serde_json::from_slice(&stdout).unwrap();
        (summary, said, checked(&text))
    }
}

/// The events of a file, checked for what every reader of the format needs.
fn checked(text: &str) -> Vec<Value> {
    let all: Vec<Value> = serde_json::from_str(text).unwrap();
    for event in &all {
        for key in ["pid", "tid", "ts"] {
            let number = event[key].as_f64();
            assert!(number.is_some_and(|n| n >= 0.0), "{key}: {event}");
        }
        assert!(event["name"].as_str().is_some_and(|n| !n.is_empty()));
        if event["ph"] == "X" {
            assert!(event["dur"].as_f64().is_some_and(|n| n >= 0.0), "{event}");
        }
    }
    let ends = |ph: &str| -> HashMap<u64, &Value> {
        let all = all.iter().filter(|event| event["ph"] == ph);
        all.map(|it| (it["id"].as_u64().unwrap(), it)).collect()
    };
    let (starts, finishes) = (ends("s"), ends("f"));
    assert_eq!(starts.len(), finishes.len());
    for (id, start) in starts {
        assert!(start["ts"].as_f64() <= finishes[&id]["ts"].as_f64());
    }
    all
}

fn node<'a>(summary: &'a Value, name: &str) -> &'a Value {
    let mut nodes = summary["nodes"].as_array().unwrap().iter();
    let node = nodes.find(|node| node["name"] == name);
    node.unwrap_or_else(|| panic!("no {name} in {summary}"))
}

/// Messages that were seen at both nodes, drawn or not.
fn matched(summary: &Value) -> u64 {
    let count = |name: &str| summary[name].as_u64().unwrap();
    count("arrows_between_nodes") + count("not_drawn") + count("against_order")
}

#[test]
fn one_trace_has_the_messages_between_all_nodes_by_one_clock() {
    let lab = Lab::start(3);
    let [one, two, three] = &lab.places[..] else {
        unreachable!()
    };
    let mut to_one = Sends::new(two, one, "log");
    let mut to_three = Sends::new(one, three, "roof");
    for sends in [&mut to_one, &mut to_three] {
        drop(sends.port.receive(Access::Later, soon()).unwrap());
    }
    let trace = Trace::start(two, &["--events", "send,receive"]);
    until("all are traced", || {
        to_one.are_traced() && to_three.are_traced()
    });
    to_one.send(70);
    to_three.send(30);
    let (summary, said, all) = trace.end();
    assert_eq!(summary["ended_by"], "signal");
    assert_eq!(summary["domain"], "lab");
    // Each has its two halves, and is an arrow unless the clocks do not tell.
    assert_eq!(matched(&summary), 100, "{summary}");
    assert_eq!(summary["departures_alone"], 0, "{summary}");
    assert_eq!(summary["arrivals_alone"], 0, "{summary}");
    assert_eq!(summary["against_order"], 0, "{summary}");
    assert_eq!(summary["kinds"]["depart"], 100);
    assert_eq!(summary["kinds"]["arrive"], 100);
    // From the program to its node, and from the other node to its program.
    assert!(
        summary["arrows_within_nodes"].as_u64().unwrap() >= 200,
        "{summary}"
    );
    for name in ["lab1", "lab2", "lab3"] {
        let node = node(&summary, name);
        assert_eq!(node["left_out"], Value::Null, "{summary}");
        assert!(node["events"].as_u64().unwrap() > 0, "{summary}");
        // They are on one machine, whose clock is one.
        let (offset, error) = (
            node["clock_offset_ns"].as_i64(),
            node["clock_error_ns"].as_i64(),
        );
        assert!(
            offset.unwrap().abs() <= error.unwrap() + 1_000_000,
            "{summary}"
        );
        assert!(said.contains(name), "{said}");
    }
    assert!(said.contains("wrong by"), "{said}");
    // A process for each member beside each node, and nobody's twice.
    let names: Vec<&str> = all
        .iter()
        .filter(|event| event["name"] == "process_name")
        .map(|event| event["args"]["name"].as_str().unwrap())
        .collect();
    for name in ["lab1: ", "lab2: ", "lab3: "] {
        assert!(
            names.iter().filter(|it| it.starts_with(name)).count() >= 2,
            "{names:?}"
        );
    }
    let to = |peer: &str| {
        let slices = all
            .iter()
            .filter(|event| event["ph"] == "X" && event["cat"] == "depart");
        slices.filter(|it| it["args"]["peer"] == peer).count()
    };
    assert_eq!((to("lab1"), to("lab3")), (70, 30));
    // Nothing stays on.
    until("nobody is traced", || {
        to_one.to.tracer().is_none() && to_three.to.tracer().is_none()
    });
}

#[test]
fn a_node_that_is_killed_or_stopped_meanwhile_is_told_and_left_out() {
    let lab = Lab::start(3);
    let [one, two, three] = &lab.places[..] else {
        unreachable!()
    };
    let mut to_one = Sends::new(two, one, "log");
    let mut to_three = Sends::new(two, three, "roof");
    for sends in [&mut to_one, &mut to_three] {
        drop(sends.port.receive(Access::Later, soon()).unwrap());
    }
    // One is silent from the beginning, but not known to be.
    one.signal(Signal::STOP);
    let trace = Trace::start(two, &[]);
    until("two are traced", || to_three.are_traced());
    to_three.send(20);
    three.signal(Signal::KILL);
    // It ends by itself, though two nodes never answer again.
    let (summary, said, _) = trace.end();
    one.signal(Signal::CONT);
    for name in ["lab1", "lab3"] {
        let why = node(&summary, name)["left_out"]
            .as_str()
            .unwrap_or_default();
        assert!(!why.is_empty(), "{summary}");
    }
    assert_eq!(node(&summary, "lab2")["left_out"], Value::Null);
    assert!(
        summary["kinds"]["depart"].as_u64().unwrap() >= 20,
        "{summary}"
    );
    assert!(said.contains("left out"), "{said}");
}

#[test]
fn the_node_beside_the_command_ends_and_what_came_is_written() {
    let lab = Lab::start(2);
    let [one, two] = &lab.places[..] else {
        unreachable!()
    };
    let mut sends = Sends::new(two, one, "log");
    drop(sends.port.receive(Access::Later, soon()).unwrap());
    let trace = Trace::start(two, &["--seconds", "100000"]);
    until("both are traced", || sends.are_traced());
    sends.send(5);
    two.signal(Signal::KILL);
    let (summary, said, _) = trace.ended();
    assert_eq!(summary["ended_by"], "node");
    assert!(said.contains("has ended, or does not answer"), "{said}");
}

#[test]
fn what_cannot_be_traced_is_said() {
    let lab = Lab::start(1);
    let place = &lab.places[0];
    let says = |args: &[&str]| {
        let output = place.command(args).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        said
    };
    let said = says(&[
        "trace",
        "--nodes",
        "no-such-domain",
        "--seconds",
        "0",
        "--output",
        "-",
    ]);
    assert!(
        said.contains("spans no domain \"no-such-domain\""),
        "{said}"
    );
    says(&["trace", "--nodes", "--user", "7"]);
    // Alone it has its own members; the domain's name here will do.
    let trace = Trace::start(place, &["--seconds", "0.2", "--domain", &place.domain]);
    let (summary, _, _) = trace.ended();
    assert_eq!(summary["ended_by"], "time");
    assert_eq!(summary["nodes"].as_array().unwrap().len(), 1);
    // One command at a time.
    let first = Trace::start(place, &[]);
    let domain = Domain::join(&place.domain).unwrap();
    until("it is traced", || domain.tracer().is_some());
    let said = says(&["trace", "--nodes", "--output", "-"]);
    assert!(said.contains("traces there already"), "{said}");
    first.end();
    // While another process traces the domain, only messages to nodes are told.
    let other = domain.trace().unwrap();
    let (summary, said, _) = Trace::start(place, &["--seconds", "0.2"]).ended();
    drop(other);
    assert!(
        node(&summary, "lab1")["without_members"].is_string(),
        "{summary}"
    );
    assert!(said.contains("only its messages"), "{said}");
}
