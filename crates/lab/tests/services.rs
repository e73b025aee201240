//! The chain of services and the neighbour: every row is there, and verdicts follow from
//! the figures beside them.
//!
//! Experiments run in their quick size; what is checked is structure, never a time.

mod support;

use support::{
    array, at_least, at_most, cell, figure, figures_are_sound, follow_from, follows_from, lab,
    quick, rows, table, verdict, verdict_of, why_left_out,
};

#[test]
fn a_chain_has_every_length_for_every_carrier() {
    let outcome = quick("chain", &[]);
    figures_are_sound(&outcome);
    for id in ["chain-64k", "chain-2m"] {
        let table = table(&outcome, id).unwrap();
        assert_eq!(
            rows(table),
            [
                "guarded, opened by the client",
                "guarded, opened by everybody",
                "guarded, opened by touch",
                "trusted",
                "pipes",
                "unix sockets",
            ]
        );
        for row in rows(table) {
            for column in ["no forwarder", "1", "2", "3", "4", "each further one"] {
                assert!(cell(table, row, column)["here"].is_f64(), "{row}, {column}");
            }
        }
        let plots = array(&outcome["plots"]);
        let plot = plots.iter().find(|plot| plot["id"] == id).unwrap();
        for series in array(&plot["series"]) {
            assert_eq!(array(&series["points"]).len(), 5, "{series}");
        }
    }
    // Of each size by itself.
    for size in ["64 KiB", "2 MiB"] {
        let amplified = verdict_of(&outcome, "copying-amplified", size);
        let more = "a further forwarder: moved less copied";
        follows_from(amplified, more, at_most(0.0));
        let hint = verdict_of(&outcome, "forwarders-pass-false", size);
        let more = "a further forwarder: closed less opened";
        let closed = figure(hint, "left closed, each forwarder");
        if closed["range"][0]
            .as_f64()
            .is_some_and(|least| least >= 0.0)
        {
            follows_from(hint, more, at_most(0.0));
        } else {
            // A forwarder takes something: where the figures deny it they tell nothing.
            assert_eq!(hint["by_figures"], "cannot tell", "{hint}");
        }
    }
}

#[test]
fn a_chain_without_guarded_domains_hands_over_and_copies() {
    let outcome = quick("chain", &["--without", "guarded"]);
    assert!(why_left_out(&outcome, "guarded domains").contains("--without guarded"));
    let table = table(&outcome, "chain-64k").unwrap();
    assert_eq!(rows(table), ["trusted", "pipes", "unix sockets"]);
    assert_eq!(
        verdict(&outcome, "copying-amplified")["by_figures"],
        "cannot tell"
    );
}

#[test]
fn a_neighbour_is_measured_beside_moving_and_copying() {
    if portolan_sys::machine::cpus_allowed().len() < 2 {
        return;
    }
    let outcome = quick("neighbour", &[]);
    figures_are_sound(&outcome);
    let beside = table(&outcome, "neighbour").unwrap();
    for row in [
        "moved, guarded",
        "moved, trusted",
        "copied, pipe",
        "copied, unix socket",
    ] {
        for column in ["neighbour reads", "slowdown", "messages carry"] {
            assert!(
                cell(beside, row, column)["here"].is_f64(),
                "{row}, {column}"
            );
        }
    }
    assert!(cell(beside, "nothing", "neighbour reads")["here"].is_f64());
    assert!(cell(beside, "a busy loop without memory", "slowdown")["here"].is_f64());
    let note = beside["note"].as_str().unwrap();
    assert!(note.contains("the neighbour"), "{note}");
    let slows = verdict(&outcome, "copying-slows-neighbours");
    let conditions = [
        ("neighbour beside copying, to beside a loop", at_least(1.05)),
        ("neighbour beside moving, to beside copying", at_most(1.0)),
    ];
    follow_from(slows, &conditions);

    let siblings = table(&outcome, "siblings").unwrap();
    assert_eq!(
        rows(siblings),
        ["no sibling", "1 busy sibling", "7 busy siblings"]
    );
    for row in rows(siblings) {
        for column in ["guarded, 8 KiB", "guarded, 2 MiB", "trusted, 2 MiB"] {
            assert!(
                cell(siblings, row, column)["here"].is_f64(),
                "{row}, {column}"
            );
        }
    }
    // The claim is that it takes more.
    let beside = verdict(&outcome, "unmapping-beside-siblings");
    let ratio = "8 KiB, slowed by 7 busy siblings, guarded to trusted";
    follows_from(beside, ratio, at_least(1.1));
    // And what the paper has against it is not here.
    let asynchronous = verdict(&outcome, "asynchronous-unmapping");
    assert_eq!(asynchronous["holds"], "not built");
}

#[test]
fn one_processor_has_no_neighbour() {
    let cpu = portolan_sys::machine::cpus_allowed()[0];
    portolan_sys::machine::pin(cpu).unwrap();
    let output = lab(&["run", "neighbour", "--quick", "--json"]);
    assert!(output.status.success());
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let why = report["records"][0]["result"]["left_out"]["why"]
        .as_str()
        .unwrap();
    assert!(why.contains("needs 2 processors, and may use 1"), "{why}");
    // A chain needs no more than one.
    let outcome = quick("chain", &[]);
    figures_are_sound(&outcome);
}
