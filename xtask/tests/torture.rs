//! Short torture runs: processes are killed, or stopped, for some seconds, and nothing is lost.

use serde_json::Value;
use std::process::Command;

/// Where processors are busy, little happens in a short run: a longer one follows.
const SECONDS: [u32; 3] = [12, 30, 90];

/// What must be 0.
const LOST: [&str; 6] = [
    "leaked_extents",
    "double_owned",
    "hung_waiters",
    "unreleased_rights",
    "failed_takeovers",
    "crashes",
];

/// What must have happened.
const DONE: [&str; 17] = [
    "/kills",
    "/messages",
    "/samples",
    "/shared_calls",
    "/awaited_calls",
    "/presented_calls",
    "/streamed",
    "/upcalls",
    "/updates",
    "/notes",
    // Written, and read; answered.
    "/channel_messages/0",
    "/channel_messages/1",
    "/calls/0",
    "/frames/0",
    "/frames/1",
    // Heard at bridges; news.
    "/connections/0",
    "/connections/2",
];

#[test]
fn nothing_is_lost_in_a_short_run() {
    for seconds in SECONDS {
        let report = torture(seconds, &[]);
        let happened = |count: &&str| report.pointer(count).and_then(Value::as_u64) > Some(0);
        let missing: Vec<_> = DONE.iter().copied().filter(|c| !happened(c)).collect();
        if missing.is_empty() {
            return;
        }
        let last = SECONDS.last() == Some(&seconds);
        assert!(!last, "none in {seconds} s of {missing:?}: {report}");
    }
}

#[test]
fn nothing_is_lost_in_a_guarded_domain() {
    has_some("kills", &["--guarded"]);
}

#[test]
fn all_others_go_on_beside_those_that_are_stopped() {
    has_some("stops", &["--stop"]);
}

/// A run in which this has happened.
fn has_some(what: &str, with: &[&str]) {
    let happens = |seconds: &u32| torture(*seconds, with)[what].as_u64() > Some(0);
    assert!(SECONDS.iter().any(happens), "no {what}");
}

fn torture(seconds: u32, with: &[&str]) -> Value {
    let run = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["torture", "--seconds", &seconds.to_string()])
        .args(["--seed", "2026", "--json"])
        .args(with)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stderr);
    let report: Value =
        serde_json::from_slice(&run.stdout).unwrap_or_else(|e| panic!("{e}: {said}"));
    for zero in LOST {
        assert_eq!(report[zero], 0, "{zero}: {}\n{said}", report["findings"]);
    }
    assert!(run.status.success(), "{said}");
    report
}
