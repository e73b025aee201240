//! What the experiments of the paper on memory-based messaging find, in their quick size:
//! structure, never a time.

#[allow(dead_code, reason = "each test program uses some of it")]
mod support;

use serde_json::Value;
use support::{array, cell, figures_are_sound, quick, table, verdict};

/// This machine's second processor, without which there is no delivery to another one.
fn alone() -> bool {
    portolan_sys::machine::cpus_allowed().len() < 2
}

fn is_near(cell: &Value, expected: f64, within: f64) -> bool {
    let here = cell["here"].as_f64().unwrap();
    (here - expected).abs() <= within
}

#[test]
fn the_model_is_the_papers_and_runs_with_our_parameters() {
    if alone() {
        return;
    }
    let outcome = quick("scaling", &[]);
    figures_are_sound(&outcome);
    // The published shares, from the published parameters.
    let shares = table(&outcome, "scaling-shares").unwrap();
    for (row, near, hops) in [
        ("address-valued signals", 0.79, 0.56),
        ("message-oriented consistency", 0.06, 0.37),
        ("signal on write", 0.15, 0.07),
    ] {
        for (column, expected) in [("shared L2", near), ("three hops", hops)] {
            let cell = cell(shares, row, column);
            assert_eq!(cell["paper"], expected);
            assert!(is_near(cell, expected, 0.03), "{row}, {column}: {cell}");
        }
    }
    assert_eq!(verdict(&outcome, "model-shares")["holds"], "holds");
    assert_eq!(verdict(&outcome, "model-null-rpc")["holds"], "holds");
    // Figure 6 rises, and stays within three to five.
    let plots = array(&outcome["plots"]);
    assert_eq!(plots.len(), 3);
    let drawn = array(&array(&plots[0]["series"])[0]["points"]);
    let drawn: Vec<f64> = drawn.iter().map(|p| p[1].as_f64().unwrap()).collect();
    assert_eq!(drawn.len(), 5);
    assert!(
        drawn.is_sorted() && drawn[0] > 3.0 && drawn[4] < 5.0,
        "{drawn:?}"
    );
    // And ours is drawn beside it, over what this machine has.
    for plot in plots {
        let ours = array(&plot["series"])
            .iter()
            .find(|s| s["origin"] == "here");
        assert!(array(&ours.unwrap()["points"]).len() >= 4, "{plot}");
    }
    let parameters = table(&outcome, "scaling-parameters").unwrap();
    for row in ["system call", "interrupt generated", "crossing a link"] {
        let cell = cell(parameters, row, "time");
        assert!(cell["here"].is_f64() && cell["paper"].is_f64(), "{row}");
    }
}

#[test]
fn the_model_needs_two_processors() {
    // The command may use what the thread may that starts it.
    let cpu = portolan_sys::machine::cpus_allowed()[0];
    portolan_sys::machine::pin(cpu).unwrap();
    let output = support::lab(&["run", "scaling", "--quick", "--json"]);
    assert!(output.status.success());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let why = report["records"][0]["result"]["left_out"]["why"].as_str();
    assert!(why.unwrap().contains("needs 2 processors"), "{why:?}");
}
