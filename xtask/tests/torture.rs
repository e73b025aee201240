//! A short torture run: processes are killed for some seconds, and nothing is lost.

use serde_json::Value;
use std::process::Command;

#[test]
fn nothing_is_lost_in_a_short_run() {
    let run = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["torture", "--seconds", "12", "--seed", "2026", "--json"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stderr);
    let report: Value =
        serde_json::from_slice(&run.stdout).unwrap_or_else(|e| panic!("{e}: {said}"));
    let zeros = [
        "leaked_extents",
        "double_owned",
        "hung_waiters",
        "unreleased_rights",
        "failed_takeovers",
        "crashes",
    ];
    for zero in zeros {
        assert_eq!(report[zero], 0, "{zero}: {}\n{said}", report["findings"]);
    }
    assert!(report["kills"].as_u64() > Some(0), "{report}");
    let counts = [
        "shared_calls",
        "awaited_calls",
        "presented_calls",
        "streamed",
        "upcalls",
        "updates",
        "notes",
    ];
    for some in ["messages", "samples"].into_iter().chain(counts) {
        assert!(report[some].as_u64() > Some(0), "{some}: {report}");
    }
    // Written, and read; answered.
    for (what, which) in [
        ("channel_messages", 0),
        ("channel_messages", 1),
        ("calls", 0),
        ("frames", 0),
        ("frames", 1),
        // Heard at bridges; news.
        ("connections", 0),
        ("connections", 2),
    ] {
        let count = report[what][which].as_u64();
        assert!(count > Some(0), "{what}: {report}");
    }
    assert!(run.status.success());
}
