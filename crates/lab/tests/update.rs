//! Tables 1 and 2 of virtual memory-mapped communication: every row is there, and verdicts
//! follow from the figures beside them.
//!
//! The experiment runs in its quick size; what is checked is structure, never a time.

mod support;

use support::{
    cell, figures_are_sound, follows_from, lab, quick, rows, table, verdict, why_left_out,
};

const UPDATES: [&str; 3] = [
    "SHRIMP-I: kernel-mediated update",
    "SHRIMP-II: deliberate update, user-level",
    "SHRIMP-II: automatic update, alias",
];
const TWO_COPIES: [&str; 2] = ["Kernel-2-Copies: pipe", "Kernel-2-Copies: Unix socket"];

#[test]
fn updates_stand_beside_the_kernels_copies() {
    if portolan_sys::machine::cpus_allowed().len() < 2 {
        return;
    }
    let outcome = quick("update", &[]);
    figures_are_sound(&outcome);
    let first = table(&outcome, "table-1").unwrap();
    let second = table(&outcome, "table-2").unwrap();
    assert_eq!(rows(first).len(), 6);
    for row in UPDATES.into_iter().chain(TWO_COPIES) {
        for column in ["latency", "bandwidth"] {
            let cell = cell(first, row, column);
            assert!(
                cell["here"].is_f64() && cell["paper"].is_f64(),
                "{row}, {column}"
            );
        }
        let total = cell(second, row, "total");
        assert!(total["here"].is_f64() && total["paper"].is_f64(), "{row}");
    }
    for row in UPDATES {
        assert!(cell(second, row, "send")["here"].is_f64(), "{row}");
    }
    let one_copy = "Kernel-1-Copy: process_vm_readv after a wake-up";
    assert_eq!(cell(first, one_copy, "latency")["paper"], 13.7e-6);
    assert!(!why_left_out(&outcome, one_copy).is_empty());
    for (id, factor) in [
        ("latency-third", 3.0),
        ("bandwidth-threefold", 3.0),
        ("overhead-quarter", 4.0),
    ] {
        let verdict = verdict(&outcome, id);
        follows_from(verdict, "an update, to through the kernel", 1.0 / factor);
    }
}

#[test]
fn one_processor_has_no_updates() {
    let cpu = portolan_sys::machine::cpus_allowed()[0];
    portolan_sys::machine::pin(cpu).unwrap();
    let output = lab(&["run", "update", "--quick", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let why = report["records"][0]["result"]["left_out"]["why"]
        .as_str()
        .unwrap();
    assert!(why.contains("needs 2 processors, and may use 1"), "{why}");
}
