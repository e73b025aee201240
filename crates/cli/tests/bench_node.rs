//! `bench node` runs, prints what it promises, and leaves nothing behind. No test looks at how fast.

mod support;

use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use portolan_testkit::until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::{needs_the_node_program, succeeds};

/// A report of the parts that have this word.
/// Of two benchmarks at once each would measure the other.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn report(word: &str) -> Value {
    needs_the_node_program();
    let _alone = alone();
    let said = succeeds(&["bench", "node", "--quick", "--json", "--filter", word]);
    serde_json::from_str(&said).unwrap()
}

fn rows(report: &Value) -> Vec<&Value> {
    let rows = report["rows"].as_array().unwrap().iter();
    rows.inspect(|row| {
        for column in ["case", "over", "waiting", "processors"] {
            let text = row[column].as_str();
            assert!(text.is_some_and(|text| !text.is_empty()), "{column}: {row}");
        }
        assert!(row["p50"].as_f64() >= Some(0.0), "{row}");
    })
    .collect()
}

/// What is judged, in its order.
fn budgets(report: &Value) -> Vec<&str> {
    let budgets = report["budgets"].as_array().unwrap().iter();
    budgets.map(|one| one["what"].as_str().unwrap()).collect()
}

#[test]
fn a_request_to_another_node_stands_beside_a_ping_pong_that_waits_alike() {
    let report = report("and answer");
    let rows = rows(&report);
    for over in ["nodes, plain TCP", "nodes, TLS", "daemons, TLS"] {
        let its = rows.iter().filter(|row| row["over"] == over);
        for row in its.clone() {
            assert!(row["ratio"].as_f64() > Some(0.0), "{row}");
            let half = row["middle_half"].as_array().unwrap();
            assert!(half[0].as_f64() <= half[1].as_f64(), "{row}");
            assert_eq!(row["waiting"], "asleep", "{row}");
        }
        assert!(its.count() > 0, "{over}: {rows:?}");
    }
    assert!(budgets(&report).contains(&"request with TLS, to one without"));
}

#[test]
fn rights_that_are_given_and_ports_that_move_are_held_against_a_request_of_the_same_nodes() {
    let report = report("rights");
    let rows = rows(&report);
    for over in ["nodes, TLS", "daemons, TLS"] {
        for (case, against) in [
            ("null request and answer", Value::Null),
            ("a send right is given, and used", "a null request".into()),
            (
                "a send right on a third node's port is given, and used",
                "a null request".into(),
            ),
            (
                "a port moves there and back, a message behind it",
                "a null request".into(),
            ),
            ("the longest of 8 requests", Value::Null),
            (
                "the longest of 8 requests, the port moves behind the first",
                "the longest of 8 requests".into(),
            ),
        ] {
            let mut its = rows.iter().filter(|row| row["over"] == over);
            let row = its.find(|row| row["case"] == case);
            let row = row.unwrap_or_else(|| panic!("{case}: {rows:?}"));
            assert_eq!(row["against"], against, "{row}");
            assert_eq!(
                row["ratio"].as_f64() > Some(0.0),
                !against.is_null(),
                "{row}"
            );
        }
    }
}

#[test]
fn streams_stand_beside_the_bare_calls() {
    let report = report("untouched");
    let rows = rows(&report);
    for over in [
        "sendmsg and readv",
        "rustls stream",
        "nodes, plain TCP",
        "nodes, TLS",
        "daemons, TLS",
    ] {
        let its = rows.iter().filter(|row| row["unit"] == "GB/s");
        let its = its.filter(|row| row["over"] == over);
        assert_eq!(its.count(), 2, "{over}: {rows:?}");
    }
    let judged = budgets(&report);
    assert!(judged.contains(&"stream untouched, to the bare system calls"));
    assert!(judged.contains(&"stream untouched with TLS, to a rustls stream"));
}

#[test]
fn flows_to_one_port_and_idle_nodes_are_judged() {
    let fair = report("flows");
    let index = rows(&fair)[0]["p50"].as_f64().unwrap();
    assert!(index > 0.0 && index <= 1.0, "{fair}");
    let idle = report("idle");
    assert_eq!(rows(&idle)[0]["unit"], "%");
    assert_eq!(budgets(&idle), ["idle node, share of a processor"]);
}

#[test]
fn short_messages_beside_a_long_one_are_judged_by_their_tail() {
    let report = report("beside a bare");
    let rows = rows(&report);
    assert_eq!(rows.len(), 2, "{rows:?}");
    assert!(
        rows.iter()
            .all(|row| row["p99"].as_f64() >= row["p50"].as_f64())
    );
    assert_eq!(budgets(&report).len(), 1);
}

/// Whether a process of this command line runs.
fn runs(word: &str) -> bool {
    let all = std::fs::read_dir("/proc").unwrap();
    all.flatten().any(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        line.contains(word)
    })
}

#[test]
fn nothing_is_left_of_one_that_is_ended_or_killed() {
    needs_the_node_program();
    let _alone = alone();
    for signal in [Signal::TERM, Signal::KILL] {
        let mut bench = Command::new(env!("CARGO_BIN_EXE_portolan"))
            .args(["bench", "node", "--filter", "and answer"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let id = bench.id();
        let (engine, beside) = (
            format!("--local bench-far-{id}-"),
            format!("__beside-node {id}"),
        );
        until("all nodes run", || runs(&engine) && runs(&beside));
        let pid = Pid::from_raw(i32::try_from(id).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
        assert!(!bench.wait().unwrap().success());
        until("no node is left", || !runs(&engine) && !runs(&beside));
    }
}
