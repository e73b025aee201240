//! Tables 1 and 2 of virtual memory-mapped communication: every row is there, and verdicts
//! follow from the figures beside them.
//!
//! The experiment runs in its quick size; what is checked is structure, never a time.

mod support;

use serde_json::Value;
use support::{
    at_least, at_most, cell, figure, figures_are_sound, follows_from, lab, quick, rows, table,
    verdict, why_left_out,
};

const UPDATES: [&str; 3] = [
    "SHRIMP-I: kernel-mediated update, 3 system calls",
    "SHRIMP-II: deliberate update, user-level",
    "SHRIMP-II: automatic update, alias",
];
const KERNEL: [&str; 3] = [
    "Kernel-1-Copy: process_vm_readv after a wake-up",
    "Kernel-2-Copies: pipe",
    "Kernel-2-Copies: Unix socket",
];
const OTHER_LIBRARIES: &str =
    "what libraries on top of it gain: remote calls, NX/2, shared virtual memory";

#[test]
fn updates_stand_beside_the_kernels_copies() {
    if portolan_sys::machine::cpus_allowed().len() < 2 {
        return;
    }
    let outcome = quick("update", &[]);
    figures_are_sound(&outcome);
    latencies_and_bandwidths(table(&outcome, "table-1").unwrap());
    overheads(table(&outcome, "table-2").unwrap());
    ratios(table(&outcome, "ratios").unwrap());
    let below = table(&outcome, "below").unwrap();
    let share = cell(
        below,
        "a unit from one processor to the other, by a bare ring (the paper: the bus's peak)",
        "deliberate update, to it",
    );
    assert!(
        share["here"].is_f64() && share["paper"] == 0.69697,
        "{share}"
    );
    for row in ["consecutive", "scattered"] {
        let row = format!("automatic update, {row} words");
        assert!(cell(below, &row, "bandwidth")["here"].is_f64(), "{row}");
    }
    for (id, figure, factor) in [
        (
            "latency-third",
            "latency, two copies to automatic update",
            2.5,
        ),
        (
            "overhead-quarter",
            "processor time, two copies to deliberate update",
            3.25,
        ),
    ] {
        follows_from(verdict(&outcome, id), figure, at_least(factor));
    }
    // Both implementations, of what the receiver reads.
    for (id, copies) in [
        ("bandwidth-threefold", "two copies"),
        ("bandwidth-twofold", "one copy"),
    ] {
        let verdict = verdict(&outcome, id);
        for by in ["SHRIMP-I", "SHRIMP-II"] {
            let ratio = figure(verdict, &format!("bandwidth, {by} to {copies}"));
            assert!(ratio["here"].is_f64() && ratio["paper"].is_f64(), "{ratio}");
        }
    }
    let overlap = verdict(&outcome, "overlap");
    follows_from(overlap, "both, to one after the other", at_most(0.75));
    let close = verdict(&outcome, "close-to-hardware");
    for (name, paper) in [
        ("latency, deliberate update to a cache line", 1.95),
        (
            "bandwidth of units that are read, to a bare ring's",
            0.69697,
        ),
    ] {
        let figure = figure(close, name);
        assert!(
            figure["here"].is_f64() && figure["paper"] == paper,
            "{figure}"
        );
    }
    // Counted, or said why not.
    let few = verdict(&outcome, "few-instructions");
    let counted = figure(few, "instructions of a deliberate update of a word");
    if counted["here"].is_f64() {
        let instructions = table(&outcome, "update-instructions").unwrap();
        let shown = cell(instructions, UPDATES[1], "instructions");
        assert_eq!(shown["here"], counted["here"]);
        assert_eq!(figure(few, "system calls of both")["here"], 0.0);
    } else {
        let why = why_left_out(&outcome, &format!("instructions, {}", UPDATES[1]));
        assert!(why.contains("step"), "{why}");
    }
    let nothing = verdict(&outcome, "receive-nothing");
    for by in ["SHRIMP-I's", "deliberate", "automatic"] {
        let name = format!("computation beside {by} updates, to beside none");
        assert!(figure(nothing, &name)["here"].is_f64(), "{nothing}");
    }
    assert!(!why_left_out(&outcome, OTHER_LIBRARIES).is_empty());
    beginning_and_modes(&outcome);
}

/// What it takes to begin an update, and the modes that the paper has no table of.
fn beginning_and_modes(outcome: &Value) {
    let initiation = table(outcome, "update-initiation").unwrap();
    for (row, paper) in UPDATES.into_iter().zip([6.7e-6, 2.8e-6, 0.01e-6]) {
        let cell = cell(initiation, row, "time");
        assert!(cell["here"].is_f64() && cell["paper"] == paper, "{cell}");
    }
    let modes = table(outcome, "update-modes").unwrap();
    for row in [
        "a word, through a log",
        "a word with a notification, asleep",
        "a consecutive store, to tracked pages, with its flush",
        "tracked, the first store to a page",
        "telling an exporter that sleeps",
    ] {
        for column in ["time", "to an alias"] {
            assert!(cell(modes, row, column)["here"].is_f64(), "{row}");
        }
    }
}

/// Every row has the paper's figures; and ours, whether the receiver is awake, sleeps, or reads.
fn latencies_and_bandwidths(table: &Value) {
    assert_eq!(rows(table).len(), 6);
    for row in UPDATES.into_iter().chain(KERNEL) {
        for column in ["latency", "bandwidth, read"] {
            let cell = cell(table, row, column);
            let both = cell["here"].is_f64() && cell["paper"].is_f64();
            assert!(both, "{row}, {column}");
        }
        // What stays in the sender's cache is no message: the paper's do not stand beside it.
        let unread = cell(table, row, "the same unit again and again, unread");
        assert!(
            unread["here"].is_f64() && unread["paper"].is_null(),
            "{row}"
        );
        let asleep = cell(table, row, "latency, asleep");
        assert_eq!(asleep["here"].is_f64(), KERNEL.contains(&row), "{row}");
    }
    assert_eq!(cell(table, KERNEL[0], "latency")["paper"], 13.7e-6);
}

/// What sender and receiver spend is apart, and adds up.
fn overheads(table: &Value) {
    for row in UPDATES.into_iter().chain(KERNEL) {
        let here = |column: &str| cell(table, row, column)["here"].as_f64();
        for column in ["send", "receive", "total"] {
            assert!(cell(table, row, column)["paper"].is_f64(), "{row}");
            assert!(here(column).is_some(), "{row}, {column}");
            let asleep = here(&format!("{column}, asleep"));
            assert_eq!(asleep.is_some(), KERNEL.contains(&row), "{row}");
        }
        assert!(here("receive") <= here("total"), "{row}");
    }
}

/// The kernel's three ways, each beside what the paper's tables make of it.
fn ratios(table: &Value) {
    assert_eq!(rows(table).len(), 6);
    for (row, papers) in [
        ("latency, to automatic update", [2.8542, 3.2708, 3.2708]),
        (
            "time of a unit, read, to deliberate update",
            [1.9167, 2.875, 2.875],
        ),
        ("total overhead, to deliberate update", [4.1786, 4.25, 4.25]),
    ] {
        for (column, paper) in ["one copy", "two: pipe", "two: socket"]
            .into_iter()
            .zip(papers)
        {
            let cell = cell(table, row, column);
            assert!(cell["here"].is_f64(), "{row}, {column}");
            assert_eq!(cell["paper"], paper, "{row}, {column}");
        }
    }
}

#[test]
fn one_processor_has_no_updates() {
    let cpu = portolan_sys::machine::cpus_allowed()[0];
    portolan_sys::machine::pin(cpu).unwrap();
    let output = lab(&["run", "update", "--quick", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let why = report["records"][0]["result"]["left_out"]["why"]
        .as_str()
        .unwrap();
    assert!(why.contains("needs 2 processors, and may use 1"), "{why}");
}
