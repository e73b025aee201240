//! The benchmarks run and print what they promise. No test looks at how fast.

mod support;

use serde_json::Value;
use support::{portolan, succeeds};

/// The rows of one benchmark whose columns contain `word`.
fn rows(kind: &str, word: &str) -> Vec<Value> {
    let text = succeeds(&["bench", kind, "--quick", "--json", "--filter", word]);
    let report: Value = serde_json::from_str(&text).unwrap();
    assert!(report["machine"]["cpu"].is_string());
    report["rows"].as_array().unwrap().clone()
}

fn check(row: &Value) {
    for column in ["system", "case", "mode", "protection", "payload", "unit"] {
        assert!(row[column].is_string(), "{column} in {row}");
    }
    assert!(row["bytes"].is_u64(), "{row}");
    for column in ["p50", "p99", "p999", "max", "ratio_to_limit"] {
        assert!(row[column].as_f64().unwrap() > 0.0, "{column} in {row}");
    }
    // A rate falls towards the tail, a time grows.
    let (p50, max) = (row["p50"].as_f64().unwrap(), row["max"].as_f64().unwrap());
    match row["unit"].as_str().unwrap() {
        "msg/s" | "GB/s" => assert!(max <= p50, "{row}"),
        _ => assert!(max >= p50, "{row}"),
    }
}

/// The limit comes first, and every row of the systems named follows.
fn covers(kind: &str, word: &str, limit: &str, systems: &[&str]) {
    let rows = rows(kind, word);
    rows.iter().for_each(check);
    assert_eq!(
        (&rows[0]["system"], &rows[0]["case"]),
        (&"limit".into(), &limit.into())
    );
    for system in systems {
        assert!(
            rows.iter().any(|row| row["system"] == *system),
            "{system} in {rows:?}"
        );
    }
}

#[test]
fn latency_of_small_messages() {
    let systems = [
        "shared buffer",
        "pipe",
        "unix stream",
        "unix seqpacket",
        "mqueue",
    ];
    covers("latency", "48 B", "cache line", &systems);
}

#[test]
fn latency_of_copies_is_held_against_the_shared_buffer() {
    let rows = rows("latency", "two copies");
    for row in rows.iter().filter(|row| row["system"] == "memcpy") {
        check(row);
        assert_eq!(row["yardstick"], "shared buffer, message");
        assert!(row["ratio_to_yardstick"].as_f64().unwrap() > 0.0);
    }
    // Measured only to be held against.
    assert!(rows.iter().all(|row| row["system"] != "shared buffer"));
}

#[test]
fn wake() {
    covers("wake", "pipe", "futex ping-pong, one CPU", &["pipe"]);
}

#[test]
fn throughput() {
    covers("throughput", "pipe", "bare ring, stream", &["pipe"]);
}

#[test]
fn fan_in() {
    covers(
        "fanin",
        "seqpacket",
        "bare ring, 1 sender",
        &["unix seqpacket"],
    );
    let rows = rows("fanin", "64 senders");
    assert!(
        rows.iter()
            .any(|row| row["yardstick"] == "pipe, message, 1 sender"),
        "{rows:?}"
    );
}

#[test]
fn a_table_has_the_same_rows() {
    let table = succeeds(&["bench", "wake", "--quick", "--filter", "mqueue"]);
    for word in [
        "x limit",
        "futex ping-pong, one CPU",
        "mqueue",
        "ns round trip",
    ] {
        assert!(table.contains(word), "{word} in {table}");
    }
}

#[test]
fn a_filter_that_matches_nothing_is_the_callers_mistake() {
    let output = portolan(&["bench", "latency", "--quick", "--filter", "carrier pigeon"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("carrier pigeon"));
}

#[cfg(feature = "peers")]
#[test]
fn peers_have_rows() {
    covers("latency", "iceoryx2", "cache line", &["iceoryx2"]);
    covers(
        "wake",
        "iceoryx2",
        "futex ping-pong, one CPU",
        &["iceoryx2"],
    );
}
