//! Tables IV and V: every row is there, and verdicts follow from the figures beside them.
//!
//! Experiments run in their quick size; what is checked is structure, never a time.

mod support;

use support::{
    all_follow, array, at_least, at_most, cell, figures_are_sound, follows_from, quick, rows,
    table, verdict, verdict_of, why_left_out,
};

/// The case of a claim that Table V judges.
const OF_64K: &str = "64 KiB, by the fastest system";

/// From here on this thread, and what it starts, may use one processor.
fn one_processor() {
    let cpu = portolan_sys::machine::cpus_allowed()[0];
    portolan_sys::machine::pin(cpu).unwrap();
}

fn two_processors() -> bool {
    portolan_sys::machine::cpus_allowed().len() > 1
}

#[test]
fn table_4_has_both_modes_and_both_kinds_of_process() {
    let outcome = quick("table-4", &[]);
    figures_are_sound(&outcome);
    let table = table(&outcome, "table-4").unwrap();
    for (row, paper) in [
        ("two user processes, asynchronous", 2.496e-3),
        ("two user processes, synchronous", 2.162e-3),
        ("a user and an always open process, asynchronous", 2.085e-3),
        ("a user and an always open process, synchronous", 1.751e-3),
    ] {
        let asleep = cell(table, row, "one CPU, asleep");
        assert_eq!(asleep["paper"], paper);
        assert!(asleep["here"].is_f64(), "{row}");
        if two_processors() {
            assert!(
                cell(table, row, "two CPUs, polling")["here"].is_f64(),
                "{row}"
            );
        }
    }
    assert!(rows(table).contains(&"trusted, synchronous"));
    let synchronous = verdict(&outcome, "synchronous-faster");
    let modes = ["users", "one always open"];
    all_follow(
        synchronous,
        &modes.map(|of| format!("synchronous to asynchronous, {of}")),
        at_most(1.0),
    );
    let open = verdict(&outcome, "always-open-faster");
    let modes = ["asynchronous", "synchronous"];
    all_follow(
        open,
        &modes.map(|of| format!("always open to guarded, {of}")),
        at_most(1.0),
    );
}

#[test]
fn table_5_has_the_papers_systems_and_todays() {
    let outcome = quick("table-5", &[]);
    figures_are_sound(&outcome);
    let then = table(&outcome, "table-5").unwrap();
    assert_eq!(rows(then).len(), 6);
    let mach = "Mach, Sun 3/160 (null, 8 KB; remaps)";
    assert_eq!(cell(then, mach, "large")["paper"], 7e-3);
    let asleep = table(&outcome, "table-5-asleep").unwrap();
    for row in [
        "portolan, trusted",
        "pipe",
        "unix stream",
        "unix seqpacket",
        "tcp loopback",
        "posix queue",
        "system v queue",
    ] {
        for column in ["null", "8 KiB", "8 KiB, used"] {
            assert!(
                cell(asleep, row, column)["here"].is_f64(),
                "{row}, {column}"
            );
        }
        let large = cell(asleep, row, "64 KiB, used")["here"].is_f64();
        // What the system's limits forbid is left out, with the limit.
        if !large {
            let why = why_left_out(&outcome, &format!("{row}, 64 KiB"));
            assert!(why.contains("longest message"), "{why}");
        }
    }
    assert_eq!(
        table(&outcome, "table-5-polling").is_some(),
        two_processors()
    );
    // A line for each row, three sizes where it has them.
    let series = array(&outcome["plots"][0]["series"]);
    assert_eq!(series.len(), rows(asleep).len());
    assert_eq!(array(&series[0]["points"]).len(), 3);
    let below = verdict(&outcome, "null-below-a-millisecond");
    follows_from(below, "a null message", at_most(1e-3));
    let comparable = verdict(&outcome, "null-comparable");
    let ratio = "guarded, to the fastest that copies";
    follows_from(comparable, ratio, at_most(0.96 / 0.66));
    // Of what is read; what nobody looks at stands beside it.
    let faster = verdict_of(&outcome, "faster-than-copying", OF_64K);
    let ratio = "copying, to moving what is all accessed";
    follows_from(faster, ratio, at_least(2.0));
    if cfg!(feature = "peers") {
        assert!(cell(asleep, "iceoryx2", "64 KiB, used")["here"].is_f64());
    } else {
        let why = why_left_out(&outcome, "iceoryx2");
        assert!(why.contains("feature `peers`"), "{why}");
    }
}

#[test]
fn one_processor_leaves_out_what_polls() {
    one_processor();
    let outcome = quick("table-4", &[]);
    let why = why_left_out(&outcome, "two CPUs, polling");
    assert!(why.contains("needs 2 processors, and may use 1"), "{why}");
    assert_eq!(
        array(&table(&outcome, "table-4").unwrap()["columns"]).len(),
        1
    );
    let outcome = quick("table-5", &[]);
    why_left_out(&outcome, "polling, on two CPUs");
    assert!(table(&outcome, "table-5-polling").is_none());
    figures_are_sound(&outcome);
}

#[test]
fn without_guarded_domains_the_rest_of_table_5_is_measured() {
    let outcome = quick("table-5", &["--without", "guarded"]);
    let why = why_left_out(&outcome, "portolan, guarded");
    assert!(why.contains("--without guarded"), "{why}");
    let asleep = table(&outcome, "table-5-asleep").unwrap();
    assert!(!rows(asleep).contains(&"portolan, guarded"));
    for verdict in array(&outcome["verdicts"]) {
        assert_eq!(verdict["by_figures"], "cannot tell", "{verdict}");
    }
}
