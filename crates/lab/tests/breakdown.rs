//! The breakdown in its quick size, in a build with probes: every segment is there, and they
//! add up. No time is asserted but that a system call takes some.

use std::process::Command;

use serde_json::Value;

/// The experiment's result; the reason, where this machine has no guarded domains.
fn run() -> Result<Value, String> {
    let output = Command::new(env!("CARGO_BIN_EXE_portolan-lab"))
        .args(["run", "breakdown", "--quick", "--json"])
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let result = &report["records"][0]["result"];
    match result["left_out"]["why"].as_str() {
        Some(why) => Err(why.to_owned()),
        None => Ok(result["done"].clone()),
    }
}

fn table<'a>(outcome: &'a Value, id: &str) -> &'a Value {
    let tables = outcome["tables"].as_array().unwrap();
    let found = tables.iter().find(|table| table["id"] == id);
    found.unwrap_or_else(|| panic!("no table {id}"))
}

fn labels(table: &Value) -> Vec<&str> {
    let rows = table["rows"].as_array().unwrap();
    rows.iter().map(|r| r["label"].as_str().unwrap()).collect()
}

/// Our figure in a row (of this label, or one that begins with it) and column.
fn figure(table: &Value, label: &str, column: &str) -> f64 {
    let columns = table["columns"].as_array().unwrap();
    let at = columns.iter().position(|c| c["name"] == column).unwrap();
    let rows = table["rows"].as_array().unwrap();
    let row = rows
        .iter()
        .find(|r| r["label"].as_str().unwrap().trim().starts_with(label))
        .unwrap_or_else(|| panic!("no row {label}"));
    row["cells"][at]["here"].as_f64().unwrap()
}

/// The paper's figure in a row's first column.
fn paper(table: &Value, label: &str) -> f64 {
    let rows = table["rows"].as_array().unwrap();
    let found = rows
        .iter()
        .find(|r| r["label"].as_str().unwrap().trim() == label);
    found.unwrap()["cells"][0]["paper"].as_f64().unwrap()
}

#[test]
fn every_segment_is_there_and_they_add_up() {
    let outcome = match run() {
        Ok(outcome) => outcome,
        Err(why) => {
            assert!(why.contains("guarded"), "{why}");
            return;
        }
    };
    // The paper's sequence passes everything; what it must do in the kernel takes time.
    let paired = table(&outcome, "segments-1");
    for label in [
        "guard.closed (C)",
        "fault.entered (F)",
        "fault.mapped (H)",
        "access.done (I)",
        "from one process to the other",
        "wake.called, beside the way",
    ] {
        assert!(figure(paired, label, "mean") > 0.0, "{label}");
    }
    for label in [
        "send.called",
        "send.descriptor (A)",
        "send.owner (B)",
        "send.claimed",
        "send.published",
        "guard.leaving (D)",
        "guard.waited (E)",
        "fault.looked (G)",
        "receive.seen",
        "receive.taken",
        "sleep.armed, beside the way",
    ] {
        assert!(labels(paired).contains(&label), "{label}");
    }
    let tables = outcome["tables"].as_array().unwrap();
    let trusted = tables
        .iter()
        .find(|t| t["title"] == "Segments: one process, trusted")
        .unwrap();
    assert!(labels(trusted).contains(&"send.claimed"));
    assert!(!labels(trusted).iter().any(|l| l.starts_with("fault.")));

    let closure = table(&outcome, "closure");
    assert!(labels(closure).len() >= 4);
    for label in labels(closure) {
        let (sum, whole) = (
            figure(closure, label, "sum"),
            figure(closure, label, "first to last probe"),
        );
        assert!(
            (sum - whole).abs() <= 1e-3 * whole.abs(),
            "{label}: {sum} {whole}"
        );
        assert!(figure(closure, label, "end to end") > 0.0, "{label}");
        // The page says how many rounds a repetition had.
        for column in ["rounds a repetition, fewest", "rounds, most"] {
            assert!(
                [100.0, 200.0].contains(&figure(closure, label, column)),
                "{label}"
            );
        }
    }

    let tree = table(&outcome, "figure-6");
    assert_eq!(tree["rows"][0]["cells"][0]["paper"], 1231e-6);
    for (label, seconds) in [("send: move a page", 81e-6), ("access: rest", 2e-6)] {
        assert_eq!(paper(tree, label), seconds, "{label}");
    }
    let parts = ["send", "receive", "context switch", "access"];
    let sum: f64 = parts.iter().map(|p| figure(tree, p, "mean")).sum();
    let total = figure(tree, "total", "mean");
    assert!((sum - total).abs() <= 1e-3 * total, "{sum} {total}");

    let shares = table(&outcome, "figure-7");
    let run = "two processes, guarded, asleep";
    let kinds = ["control", "data", "user/kernel", "miscellaneous"];
    let sum: f64 = kinds.iter().map(|k| figure(shares, k, run)).sum();
    assert!((sum - 1.0).abs() < 1e-3, "{sum}");
    let halves = ["transfer the data", "access the data"];
    let sum: f64 = halves.iter().map(|h| figure(shares, h, run)).sum();
    let data = figure(shares, "data", run);
    assert!((sum - data).abs() < 1e-3, "{sum} {data}");
    assert_eq!(halves.map(|h| paper(shares, h)), [0.296, 0.139]);

    assert_eq!(labels(table(&outcome, "letters")).len(), 9);
    let sums = table(&outcome, "sums");
    assert_eq!(labels(sums).len(), 3);
    assert!(figure(sums, "A..I", "sum, first extent") > 0.0);
    assert_eq!(
        labels(table(&outcome, "data-movement")),
        ["8 KiB", "32 KiB", "64 KiB"]
    );
    let plots = outcome["plots"].as_array().unwrap();
    let bars = plots.iter().find(|plot| plot["id"] == "figure-7").unwrap();
    assert_eq!(
        bars["bars"].as_array().unwrap().len(),
        labels(closure).len() + 1
    );
    assert_eq!(bars["series"].as_array().unwrap().len(), 4);
    let verdicts = outcome["verdicts"].as_array().unwrap();
    let ids: Vec<_> = verdicts.iter().map(|v| v["id"].as_str().unwrap()).collect();
    assert_eq!(
        ids,
        [
            "closure",
            "closure",
            "steady",
            "sums",
            "data-dominates",
            "lazy"
        ]
    );
    // The paper's sequence is judged by itself.
    assert!(verdicts[0].get("of").is_none() && verdicts[1]["of"].is_string());
}
