//! Running the command, and finding things in its report.

#![allow(dead_code, reason = "each test program uses some of it")]

use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

pub(crate) fn lab(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_portolan-lab"))
        .args(arguments)
        .output()
        .unwrap()
}

/// The outcome of a quick run of one experiment.
pub(crate) fn quick(experiment: &str, arguments: &[&str]) -> Value {
    let mut all = vec!["run", experiment, "--quick", "--json"];
    all.extend(arguments);
    let output = lab(&all);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let records = report["records"].as_array().unwrap();
    let found = records.iter().find(|r| r["about"]["name"] == experiment);
    let result = &found.unwrap()["result"];
    assert!(result["done"].is_object(), "{result}");
    result["done"].clone()
}

/// A directory that no other test has, in this process or another, and that goes with it.
pub(crate) fn room() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

pub(crate) fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub(crate) fn table<'a>(outcome: &'a Value, id: &str) -> Option<&'a Value> {
    array(&outcome["tables"]).iter().find(|t| t["id"] == id)
}

/// Labels of a table's rows.
pub(crate) fn rows(table: &Value) -> Vec<&str> {
    let rows = array(&table["rows"]).iter();
    rows.map(|row| row["label"].as_str().unwrap()).collect()
}

pub(crate) fn cell<'a>(table: &'a Value, row: &str, column: &str) -> &'a Value {
    let columns = array(&table["columns"]);
    let at = columns.iter().position(|c| c["name"] == column);
    let row = array(&table["rows"]).iter().find(|r| r["label"] == row);
    &row.unwrap()["cells"][at.unwrap()]
}

pub(crate) fn verdict<'a>(outcome: &'a Value, id: &str) -> &'a Value {
    let found = array(&outcome["verdicts"]).iter().find(|v| v["id"] == id);
    found.unwrap_or_else(|| panic!("no verdict {id}"))
}

pub(crate) fn figure<'a>(verdict: &'a Value, name: &str) -> &'a Value {
    let found = array(&verdict["figures"])
        .iter()
        .find(|f| f["name"] == name);
    &found.unwrap_or_else(|| panic!("no figure {name}"))["cell"]
}

/// Why `what` is left out.
pub(crate) fn why_left_out<'a>(outcome: &'a Value, what: &str) -> &'a str {
    let left_out = array(&outcome["left_out"]);
    let found = left_out.iter().find(|l| l["what"] == what);
    found.unwrap_or_else(|| panic!("{what} in {left_out:?}"))["why"]
        .as_str()
        .unwrap()
}

/// Every figure that was measured is above zero and within its range; every row says
/// something.
pub(crate) fn figures_are_sound(outcome: &Value) {
    for table in array(&outcome["tables"]) {
        let columns = array(&table["columns"]);
        for row in array(&table["rows"]) {
            let cells = array(&row["cells"]);
            assert!(
                cells
                    .iter()
                    .any(|c| c["here"].is_f64() || c["paper"].is_f64()),
                "{row}"
            );
            for (cell, column) in cells.iter().zip(columns) {
                let difference = [&column["name"], &row["label"]].map(is_difference);
                is_sound(cell, difference.contains(&true));
            }
        }
    }
    for verdict in array(&outcome["verdicts"]) {
        let built = verdict["by_figures"] != "not built";
        assert_eq!(array(&verdict["figures"]).is_empty(), !built, "{verdict}");
        for figure in array(&verdict["figures"]) {
            is_sound(&figure["cell"], is_difference(&figure["name"]));
        }
    }
}

/// A difference may be anything in a run as short as a test's.
fn is_difference(name: &Value) -> bool {
    let name = name.as_str().unwrap();
    let differences = [
        " less ",
        "each forwarder",
        "each further",
        "interrupt generated",
        "handler scheduled",
    ];
    differences.iter().any(|part| name.contains(part))
}

fn is_sound(cell: &Value, difference: bool) {
    if let Some(here) = cell["here"].as_f64() {
        // What a paper says to be nothing may be nothing here.
        let nothing = here == 0.0 && cell["paper"] == 0.0;
        assert!(here > 0.0 || difference || nothing, "{cell}");
        if let [least, most] = array(&cell["range"]) {
            let (least, most) = (least.as_f64().unwrap(), most.as_f64().unwrap());
            assert!(least <= here && here <= most, "{cell}");
        }
    }
}

/// A verdict on one of several cases of a claim.
pub(crate) fn verdict_of<'a>(outcome: &'a Value, id: &str, of: &str) -> &'a Value {
    let all = array(&outcome["verdicts"]);
    let found = all.iter().find(|v| v["id"] == id && v["of"] == of);
    found.unwrap_or_else(|| panic!("no verdict {id} ({of})"))
}

/// By its figures a verdict says what the middle half of this one does: it lies within the bounds, or
/// outside them, or it cannot be told. Of a rule with one condition.
pub(crate) fn follows_from(verdict: &Value, name: &str, [least, most]: [f64; 2]) {
    follow_from(verdict, &[(name, [least, most])]);
}

/// The same of a rule with several conditions of one bound.
pub(crate) fn all_follow(verdict: &Value, names: &[String], bounds: [f64; 2]) {
    let all: Vec<_> = names.iter().map(|name| (name.as_str(), bounds)).collect();
    follow_from(verdict, &all);
}

/// The same of a rule with several conditions: one that is missed decides, and one that is open leaves
/// it open.
pub(crate) fn follow_from(verdict: &Value, conditions: &[(&str, [f64; 2])]) {
    let met = |(name, [least, most]): &(&str, [f64; 2])| {
        let cell = figure(verdict, name);
        cell["here"].as_f64()?;
        let (lower, upper) = (cell["range"][0].as_f64()?, cell["range"][1].as_f64()?);
        if lower >= *least && upper <= *most {
            Some(true)
        } else if upper < *least || lower > *most {
            Some(false)
        } else {
            None
        }
    };
    let met: Vec<Option<bool>> = conditions.iter().map(met).collect();
    let expected = if met.contains(&Some(false)) {
        "does not hold"
    } else if met.contains(&None) {
        "cannot tell"
    } else {
        "holds"
    };
    assert_eq!(verdict["by_figures"], expected, "{verdict}");
    // The answer is that, unless something was the matter while it was measured.
    let doubts = !array(&verdict["doubts"]).is_empty();
    let final_answer = if doubts { "cannot tell" } else { expected };
    assert_eq!(verdict["holds"], final_answer, "{verdict}");
}

/// At most so much.
pub(crate) fn at_most(bound: f64) -> [f64; 2] {
    [f64::NEG_INFINITY, bound]
}

/// At least so much.
pub(crate) fn at_least(bound: f64) -> [f64; 2] {
    [bound, f64::INFINITY]
}
