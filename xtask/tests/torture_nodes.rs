//! A short torture run of nodes: programs, nodes and wires fail for some seconds, and nothing is
//! lost. With one rule of the protocol switched off, the audit of all journals says so.

use serde_json::Value;
use std::process::Command;

/// Where processors are busy, little happens in a short run: a longer one follows.
const SECONDS: [u32; 3] = [6, 20, 90];

/// What must be 0.
const FOUND: [&str; 7] = [
    "lost",
    "twice_or_out_of_order",
    "corrupt",
    "hung",
    "left_over",
    "unfair",
    "crashes",
];

/// What must have happened.
const DONE: [&str; 11] = [
    "/kills",
    "/stops",
    "/cuts",
    "/audits",
    "/complete",
    // Sent and received; ran and answered.
    "/messages/0",
    "/messages/1",
    "/requests/0",
    "/requests/1",
    "/moves",
    "/handoffs",
];

/// Fates of runs: where one has not shown what it is to show, the next may.
const SEEDS: [&str; 3] = ["2026", "2027", "2028"];

/// What a run says, and what it has printed beside.
fn torture(seed: &str, args: &[&str]) -> (Value, String) {
    let run = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["torture", "--json", "--seed", seed])
        .args(args)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    let report: Value =
        serde_json::from_slice(&run.stdout).unwrap_or_else(|e| panic!("{e}: {said}"));
    let is_clean = FOUND.iter().all(|kind| report[kind] == 0);
    assert_eq!(run.status.success(), is_clean, "{said}");
    (report, said)
}

#[test]
fn nothing_is_lost_between_nodes_in_a_short_run() {
    for seconds in SECONDS {
        let (report, said) = torture(
            SEEDS[0],
            &["--nodes", "3", "--seconds", &seconds.to_string()],
        );
        for zero in FOUND {
            assert_eq!(report[zero], 0, "{zero}: {report:#}\n{said}");
        }
        let happened = |count: &&str| report.pointer(count).and_then(Value::as_u64) > Some(0);
        let missing: Vec<_> = DONE.iter().copied().filter(|c| !happened(c)).collect();
        if missing.is_empty() {
            return;
        }
        let last = SECONDS.last() == Some(&seconds);
        assert!(!last, "none in {seconds} s of {missing:?}: {report:#}");
    }
}

/// A rule is off; one of these kinds must be found. A run ends with what is found first, and a
/// broken rule may break more than what it is for.
fn is_noticed(rule: &str, kinds: &[&str]) {
    let args = ["--nodes", "4", "--seconds", "120", "--until-found"];
    let args = [&args[..], &["--sabotage", rule]].concat();
    let mut others = Vec::new();
    for seed in SEEDS {
        let (report, said) = torture(seed, &args);
        let found = |kind: &&str| report[kind].as_u64() > Some(0);
        assert!(FOUND.iter().any(found), "{rule}: {report:#}\n{said}");
        if kinds.iter().any(found) {
            // They are kept where something was found, as was to be here.
            std::fs::remove_dir_all(report["logs"].as_str().unwrap()).unwrap();
            return;
        }
        assert_eq!(report["crashes"], 0, "{rule}: {report:#}\n{said}");
        others.push((report, said));
    }
    panic!("{rule}: {others:#?}");
}

#[test]
fn what_is_not_sent_again() {
    // On a busy machine the audit comes first: it stays unacknowledged.
    is_noticed("resend", &["lost", "twice_or_out_of_order", "left_over"]);
}

#[test]
fn what_is_delivered_again() {
    is_noticed("duplicates", &["twice_or_out_of_order"]);
}

#[test]
fn flows_that_are_not_served_in_turn() {
    is_noticed("fair-queue", &["unfair"]);
}

#[test]
fn a_rule_of_nodes_without_nodes_is_refused() {
    for args in [
        &["--sabotage", "resend"][..],
        &["--nodes", "2", "--sabotage", "extents"],
    ] {
        let mut run = Command::new(env!("CARGO_BIN_EXE_xtask"));
        let run = run.arg("torture").args(args).output().unwrap();
        assert_eq!(run.status.code(), Some(2), "{args:?}");
    }
}
