//! With one rule of the recovery switched off, the auditor reports what that rule would
//! have returned; with all of them on, the same deaths leave nothing to report.

use serde_json::Value;
use std::process::Command;

/// What of a report is not zero after deaths at `marks`.
fn torture(marks: &[&str], seconds: &str, sabotage: Option<&str>) -> (u64, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args([
        "torture",
        "--json",
        "--until-found",
        "--processes",
        "8",
        "--seed",
        "7",
        "--seconds",
        seconds,
    ]);
    for mark in marks {
        command.args(["--mark", mark]);
    }
    if let Some(rule) = sabotage {
        command.args(["--sabotage", rule]);
    }
    let run = command.output().unwrap();
    let said = String::from_utf8_lossy(&run.stderr);
    let report: Value =
        serde_json::from_slice(&run.stdout).unwrap_or_else(|e| panic!("{e}: {said}"));
    let zeros = [
        "leaked_extents",
        "double_owned",
        "hung_waiters",
        "unreleased_rights",
        "failed_takeovers",
    ];
    let found = zeros.iter().filter_map(|z| report[z].as_u64()).sum();
    assert_eq!(found == 0, run.status.success(), "{report}");
    (found, report["findings"].to_string())
}

/// Deaths at `marks`, with and without the rule; the finding must speak of `word`.
fn is_noticed(rule: &str, marks: &[&str], word: &str) {
    let (found, findings) = torture(marks, "120", Some(rule));
    assert!(found > 0, "nobody noticed that the rule {rule:?} was off");
    assert!(findings.contains(word), "{rule}: {findings}");
    let (found, findings) = torture(marks, "4", None);
    assert_eq!(found, 0, "with all rules: {findings}");
}

#[test]
fn the_lock_on_names() {
    is_noticed(
        "names",
        &["bind.names_locked", "bind.name_published"],
        "lock on names",
    );
}

#[test]
fn extents_of_the_dead() {
    is_noticed(
        "extents",
        &["allocate.done", "send.before_publish", "receive.taken"],
        "leaked",
    );
}

#[test]
fn receive_rights_that_were_being_sent() {
    is_noticed(
        "moving",
        &["right.receive_leaves", "send.written"],
        "moves to",
    );
}

#[test]
fn claims_of_the_dead() {
    is_noticed(
        "claims",
        &["send.claimed", "send.noted", "send.written"],
        "Claimed",
    );
}

#[test]
fn ports_of_the_dead() {
    is_noticed(
        "ports",
        &["bind.done", "close.begun", "receive.taken"],
        "port",
    );
}

#[test]
fn answers_that_the_dead_owed() {
    is_noticed(
        "rights",
        &["receive.taken", "receive.before_take"],
        "answers",
    );
}

#[test]
fn chunks_of_the_dead() {
    is_noticed(
        "chunks",
        &[
            "chunk.claimed",
            "chunk.bodies",
            "chunk.returning",
            "chunk.withdrawn",
        ],
        "chunk",
    );
}

#[test]
fn watches_of_the_dead() {
    is_noticed("waits", &["watch.taken", "send.claimed"], "watch");
}

#[test]
fn wakes_that_the_dead_owed() {
    is_noticed("wakes", &["send.before_wake", "send.published"], "hung");
}
