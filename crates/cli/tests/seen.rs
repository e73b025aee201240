//! `portolan ls`, `top` and `trace` beside a program that uses everything: channels, a topic,
//! calls, signals, exports, and connections between two domains.

#[path = "support/lively.rs"]
mod lively;
#[path = "support/shown.rs"]
mod shown;
mod support;

use lively::Lively;
use portolan_testkit::PATIENCE;
use serde_json::Value;
use shown::Shown;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::{portolan, succeeds};

const ROUNDS: u64 = 20;

fn listed(domain: &str) -> Value {
    let report: Value = serde_json::from_str(&succeeds(&["ls", domain, "--json"])).unwrap();
    report["domains"][0].clone()
}

/// The one of these that is called so.
fn named<'v>(all: &'v Value, key: &str, name: &str) -> &'v Value {
    let found = all.as_array().unwrap().iter().find(|one| one[key] == name);
    found.unwrap_or_else(|| panic!("no {name} in {all:#}"))
}

#[test]
fn a_list_tells_what_each_thing_is_and_how_far_it_is_used() {
    let mut lively = Lively::start("list");
    for _ in 0..ROUNDS {
        lively.work();
    }
    lively.has_sent(ROUNDS);
    let domain = listed(&lively.name);
    assert_eq!(domain["whole"], true);

    // Nothing waits in a queue: what is used is a segment's, or owned.
    let memory = &domain["memory"];
    assert_eq!(memory["queued_bytes"], 0, "{memory}");
    let segments = &domain["segments"];
    let ticks = named(segments, "name", "ticks");
    assert_eq!(ticks["kind"], "channel");
    let channel = &ticks["channel"];
    assert_eq!(
        (&channel["unit_bytes"], &channel["units"]),
        (&64.into(), &64.into())
    );
    assert_eq!(
        (&channel["writer"], &channel["reliable"]),
        (&1.into(), &true.into())
    );
    assert_eq!(channel["written_units"], ROUNDS);
    let readers = channel["readers"].as_array().unwrap();
    let mut behind: Vec<u64> = readers
        .iter()
        .map(|r| r["behind_units"].as_u64().unwrap())
        .collect();
    behind.sort();
    // One has read all of it, one nothing.
    assert_eq!(behind, [0, ROUNDS], "{channel:#}");

    let screen = named(segments, "name", "screen");
    assert_eq!(screen["kind"], "frame buffer");
    assert_eq!(screen["channel"]["written_units"], ROUNDS);
    assert_eq!(named(segments, "name", "counters")["kind"], "segment");
    let position = named(segments, "name", "position#0");
    assert_eq!(position["kind"], "topic");
    assert_eq!(position["topic"]["topic"], "position");
    assert_eq!(position["topic"]["publisher"], 0);
    assert_eq!(position["channel"]["written_units"], ROUNDS);
    assert_eq!(position["channel"]["readers"][0]["behind_units"], 0);
    assert_eq!(named(segments, "name", "position#")["kind"], "publishers");
    for kind in ["calls", "answers", "shared extent"] {
        let it = named(segments, "kind", kind);
        assert_eq!(it["name"], Value::Null);
        assert!(it["bytes"].as_u64().unwrap() >= 10_000, "{it}");
    }
    let all: u64 = segments
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s["bytes"].as_u64().unwrap())
        .sum();
    assert!(memory["shared_bytes"].as_u64().unwrap() >= all);
    assert!(
        domain["ports"]
            .as_array()
            .unwrap()
            .iter()
            .all(|port| port["depth"] == 0)
    );

    let space = &domain["spaces"][0];
    for count in ["calls", "answers", "signals", "delivered"] {
        assert_eq!(space[count], ROUNDS, "{count}: {space:#}");
    }
    assert_eq!(domain["listeners"][0]["handlers"], 1);

    let picture = named(&domain["exports"], "name", "picture");
    assert_eq!(
        (&picture["bytes"], &picture["permits"]),
        (&8192.into(), &"read, write".into())
    );
    assert_eq!(
        (&picture["importers"], &picture["notifications"]),
        (&1.into(), &ROUNDS.into())
    );
    assert_eq!(picture["kernel_mediated"], false);
    let table = named(&domain["exports"], "name", "table");
    assert_eq!(
        (&table["bytes"], &table["permits"]),
        (&1000.into(), &"read".into())
    );
    assert_eq!(
        (&table["importers"], &table["kernel_mediated"]),
        (&0.into(), &true.into())
    );

    let connections = &domain["connections"];
    let us = u64::from(rustix::process::getuid().as_raw());
    let orders = named(connections, "kind", "sends to");
    assert_eq!(
        (&orders["offer"], &orders["domain"]),
        (&"orders".into(), &(*lively.beside).into())
    );
    assert_eq!(
        (&orders["user"], &orders["pid"]),
        (&us.into(), &std::process::id().into())
    );
    assert_eq!(
        (&orders["out_messages"], &orders["out_bytes"]),
        (&ROUNDS.into(), &(8 * ROUNDS).into())
    );
    let news = named(connections, "kind", "follows");
    assert_eq!(
        (&news["offer"], &news["domain"]),
        (&"news".into(), &(*lively.beside).into())
    );
    assert_eq!(
        (&news["in_messages"], &news["in_bytes"]),
        (&ROUNDS.into(), &(8 * ROUNDS).into())
    );
    let inbox = named(connections, "kind", "serves");
    assert_eq!(
        (&inbox["offer"], &inbox["domain"]),
        (&"inbox".into(), &Value::Null)
    );
    assert_eq!(
        (&inbox["user"], &inbox["pid"]),
        (&us.into(), &std::process::id().into())
    );
    assert_eq!(
        (&inbox["in_messages"], &inbox["in_bytes"]),
        (&ROUNDS.into(), &(5 * ROUNDS).into())
    );
    assert_eq!(named(connections, "kind", "tells")["offer"], "ticks");
}

#[test]
fn the_list_for_people_fits_eighty_columns() {
    let mut lively = Lively::start("table");
    lively.work();
    let table = succeeds(&["ls", &lively.name]);
    for word in [
        "ticks",
        "channel",
        "screen",
        "frame buffer",
        "position#0",
        "topic",
        "counters",
        "shared extent",
        "calls",
        "picture",
        "read, write",
        "kernel",
        "sends to",
        "orders",
        "follows",
        "news",
        "serves",
        "inbox",
        "tells",
        "handlers",
        "0 B in queues",
    ] {
        assert!(table.contains(word), "{word} in\n{table}");
    }
    for line in table.lines().skip(1) {
        assert!(line.chars().count() <= 80, "{line}\n{table}");
    }
}

#[test]
fn the_screen_shows_what_happens_and_nothing_that_does_not() {
    let mut lively = Lively::start("screen");
    let (name, stop) = (lively.name.clone(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _stop = OnDrop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                lively.work();
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let mut top = Shown::start(&[&name, "--interval", "0.2"]);
        // Of the head: nothing is queued, and calls, units and signals have rates.
        let text = top.until_all(&["2 exports", "4 bridges", "; 0 B queued", " 0 queued"]);
        assert!(
            !text.contains(" 0 calls/s") || top.changes(" 0 calls/s"),
            "{text}"
        );
        assert!(
            !text.contains(" 0 units/s") || top.changes(" 0 units/s"),
            "{text}"
        );
        assert!(
            !text.contains(" 0 signals/s") || top.changes(" 0 signals/s"),
            "{text}"
        );
        top.press("3");
        top.until_all(&[
            "ticks",
            "channel",
            "screen",
            "frames",
            "position#0",
            "topic",
            "counters",
            "segment",
            "calls",
            "answers",
            "extent",
        ]);
        top.press("4");
        top.until_all(&["CALLS/s", "SIGNAL/s", "lively"]);
        top.press("5");
        top.until_all(&["picture", "read, write", "memory", "table", "kernel"]);
        top.press("6");
        let text = top.until_all(&[
            "sends to", "orders", "follows", "news", "serves", "inbox", "tells", "ticks",
        ]);
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        top.press("7");
        let text = top.until_all(&["(shared)"]);
        assert!(!text.contains("(in queues)"), "{text}");
        top.press("q");
        top.ends_well();
    });
}

/// Sets a flag, also where a test fails.
struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_trace_has_every_kind_of_event_and_joins_their_ends() {
    let mut lively = Lively::start("trace");
    let directory = std::env::temp_dir().join(&lively.name);
    std::fs::create_dir_all(&directory).unwrap();
    let file = directory.join("trace.json");
    let child = Command::new(env!("CARGO_BIN_EXE_portolan"))
        .args(["trace", &lively.name, "--json", "--output"])
        .arg(&file)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let end = Instant::now() + PATIENCE;
    while lively.domain.tracer().is_none() {
        assert!(Instant::now() < end, "no trace begins");
        std::thread::sleep(Duration::from_millis(5));
    }
    for _ in 0..ROUNDS {
        lively.work();
    }
    lively.has_sent(ROUNDS);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    let events: Vec<Value> =
        serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    assert_eq!(summary["lost"], 0, "{summary}");

    let mut kinds: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for event in events.iter().filter(|event| event["ph"] == "X") {
        kinds
            .entry(event["cat"].as_str().unwrap())
            .or_default()
            .push(event);
    }
    let count = |kind: &str| kinds.get(kind).map_or(0, |events| events.len() as u64);
    for kind in [
        "publish", "take", "call", "answer", "signal", "deliver", "update", "notify",
    ] {
        assert_eq!(count(kind), ROUNDS, "{kind} in {summary:#}");
        assert_eq!(summary["kinds"][kind], ROUNDS, "{kind} in {summary:#}");
    }
    // The channel, and the one into which another domain's is copied; and each has a reader in this
    // process, the first one also the egress that serves the other domain.
    assert_eq!(count("write"), 2 * ROUNDS, "{summary:#}");
    assert!(
        (2 * ROUNDS..=3 * ROUNDS).contains(&count("read")),
        "{summary:#}"
    );
    // Orders went, ticks may have; news and what is for the inbox came.
    assert!(
        (ROUNDS..=2 * ROUNDS).contains(&count("depart")),
        "{summary:#}"
    );
    assert_eq!(count("arrive"), 2 * ROUNDS, "{summary:#}");

    let ticks = |kind: &str| {
        kinds[kind]
            .iter()
            .filter(|e| e["args"]["port_name"] == "ticks")
            .count() as u64
    };
    assert_eq!(ticks("write"), ROUNDS);
    let write = kinds["write"]
        .iter()
        .find(|e| e["args"]["port_name"] == "ticks")
        .unwrap();
    assert_eq!(write["args"]["bytes"], 20);
    assert_eq!(kinds["publish"][0]["args"]["bytes"], 24);
    assert_eq!(kinds["update"][0]["args"]["position"], 64);
    assert_eq!(kinds["update"][0]["args"]["bytes"], 100);
    assert_eq!(kinds["call"][0]["args"]["port_name"], "adder");
    // One arrow for each: message of a port, tick, sample, call. Further ones for readers beside.
    assert!(
        summary["arrows"].as_u64().unwrap() >= 4 * ROUNDS,
        "{summary:#}"
    );
}

#[test]
fn a_domain_that_is_not_there_is_an_error_that_names_it() {
    for args in [
        &["ls", "no-such-domain"][..],
        &["ls", "no-such-domain", "--json"],
        &["top", "no-such-domain"],
        &["top", "no-such-domain", "--json"],
    ] {
        let output = portolan(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(output.stdout.is_empty(), "{args:?}");
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(
            complaint.contains("no domain named \"no-such-domain\""),
            "{args:?}: {complaint}"
        );
    }
}
