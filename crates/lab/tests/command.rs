//! The command from outside: what it lists, leaves behind, compares and refuses.
//!
//! Experiments run in their quick size; what is checked is structure, never a time.

mod support;

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{lab, room, rows};

fn report(output: &Output) -> Value {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Names of all experiments.
fn names() -> Vec<String> {
    let all = report(&lab(&["list", "--json"]));
    let names = all.as_array().unwrap().iter();
    names
        .map(|about| about["name"].as_str().unwrap().to_owned())
        .collect()
}

fn outcome<'a>(report: &'a Value, experiment: &str) -> &'a Value {
    let records = report["records"].as_array().unwrap();
    let found = records.iter().find(|r| r["about"]["name"] == experiment);
    &found.unwrap()["result"]["done"]
}

#[test]
fn the_machine_has_a_row_for_every_step() {
    let report = report(&lab(&["run", "machine", "--quick", "--json"]));
    let outcome = outcome(&report, "machine");
    let table = &outcome["tables"][0];
    for label in ["procedure call", "system call", "copy of 8 KiB"] {
        assert!(rows(table).contains(&label), "{label}");
    }
    for row in table["rows"].as_array().unwrap() {
        // A guard pair is a difference, and may be anything in a run as short as this.
        let time = row["cells"][0]["here"].as_f64().unwrap();
        let label = row["label"].as_str().unwrap();
        assert!(time > 0.0 || label.starts_with("guard pair"), "{label}");
    }
    assert_eq!(table["rows"][0]["cells"][0]["paper"], 4.3e-6);
    // Its pace is there before and after, where there is a second processor.
    if let Some(line) = report["records"][0]["line_seconds"].as_array() {
        assert!(line.len() == 2 && line.iter().all(|line| line.as_f64().unwrap() > 0.0));
    }
}

#[test]
fn what_a_machine_lacks_is_left_out_with_the_reason() {
    let arguments = [
        "run",
        "machine",
        "--quick",
        "--json",
        "--without",
        "guarded",
    ];
    let report = report(&lab(&arguments));
    let outcome = outcome(&report, "machine");
    assert!(!rows(&outcome["tables"][0]).contains(&"fault, 8 KiB"));
    let left_out = outcome["left_out"].as_array().unwrap();
    let guards = left_out
        .iter()
        .find(|l| l["what"] == "guard pairs and faults");
    assert!(
        guards.unwrap()["why"]
            .as_str()
            .unwrap()
            .contains("--without")
    );
    // And no verdict is made without them.
    assert_eq!(outcome["verdicts"][0]["holds"], "cannot tell");
}

#[test]
fn one_processor_leaves_out_what_needs_two() {
    // The command may use what the thread may that starts it.
    let cpu = portolan_sys::machine::cpus_allowed()[0];
    portolan_sys::machine::pin(cpu).unwrap();
    let report = report(&lab(&["run", "machine", "--quick", "--json"]));
    let left_out = &outcome(&report, "machine")["left_out"];
    assert_eq!(left_out[0]["what"], "cache line to another core");
    let why = left_out[0]["why"].as_str().unwrap();
    assert!(why.contains("needs 2 processors, and may use 1"), "{why}");
    assert_eq!(report["machine"]["line_seconds"], Value::Null);
    assert_eq!(report["records"][0]["line_seconds"], Value::Null);
}

#[test]
fn a_run_is_compared_with_an_earlier_one() {
    let room = room();
    let out = room.path().join("earlier");
    let out = out.to_str().unwrap();
    report(&lab(&["run", "machine", "--quick", "--json", "--out", out]));
    let earlier = format!("{out}/report.json");
    let output = lab(&["run", "machine", "--quick", "--compare", &earlier]);
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = |who: &'static str| {
        text.lines()
            .filter(move |l| l.split_whitespace().any(|w| w == who))
    };
    assert!(text.contains("\nA quick run: "), "{text}");
    assert!(text.contains("\nbeside a quick run of "), "{text}");
    let said = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let json = std::fs::read_to_string(&earlier).unwrap();
    let then: Value = serde_json::from_str(&json).unwrap();
    for verdict in outcome(&then, "machine")["verdicts"].as_array().unwrap() {
        let answer = verdict["holds"].as_str().unwrap();
        assert!(
            said.contains(&format!("(Earlier: {answer};")),
            "{answer}: {said}"
        );
    }
    assert!(lines("earlier").count() > 5, "{text}");
    assert!(lines("ratio").all(|line| line.contains('×')), "{text}");
}

#[test]
fn a_run_that_is_killed_leaves_what_was_done() {
    let room = room();
    let out = room.path().join("killed");
    let mut run = Command::new(env!("CARGO_BIN_EXE_portolan-lab"))
        .args(["run", "all", "--quick", "--out", out.to_str().unwrap()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let left = out.join("report.json");
    let patience = Instant::now() + Duration::from_secs(60);
    while !left.exists() && Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(1));
    }
    run.kill().unwrap();
    run.wait().unwrap();
    let report: Value = serde_json::from_str(&std::fs::read_to_string(left).unwrap()).unwrap();
    assert!(outcome(&report, "machine").is_object());
    let (done, to_come) = (&report["records"], &report["to_come"]);
    let [done, to_come] = [done, to_come].map(|names| names.as_array().unwrap().len());
    let all = names().len();
    assert!(
        to_come > 0 && done + to_come == all,
        "{done} and {to_come} of {all}"
    );
    let page = std::fs::read_to_string(out.join("index.html")).unwrap();
    assert!(page.contains("<section id=\"machine\">") && page.ends_with("</html>\n"));
    assert!(
        page.contains("not finished when this was written"),
        "{page}"
    );
}

#[test]
fn what_is_asked_wrongly_is_refused_with_a_remedy() {
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let text = text.to_str().unwrap();
    let room = room();
    let old = room.path().join("old.json");
    std::fs::write(&old, "{\"format\": 0}").unwrap();
    for (arguments, says) in [
        (
            ["run", "nothing", "--quick"].as_slice(),
            "there is no experiment \"nothing\"",
        ),
        (
            &["run", "machine", "--compare", "/nowhere"],
            "cannot read /nowhere",
        ),
        (&["run", "machine", "--compare", text], "is not a report"),
        (
            &["run", "machine", "--compare", old.to_str().unwrap()],
            "has format 0",
        ),
        (
            &["run", "machine", "--out", "/proc/lab"],
            "cannot write /proc/lab",
        ),
    ] {
        let output = lab(arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(says) && error.contains("to do:"), "{error}");
    }
}

#[test]
fn the_list_names_every_experiment_once() {
    let names = names();
    let mut once = names.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), names.len());
    let text = String::from_utf8(lab(&["list"]).stdout).unwrap();
    assert_eq!(text.lines().count(), names.len());
}

#[test]
fn the_claims_are_listed_with_their_rules() {
    let all = report(&lab(&["claims", "--json"]));
    let all = all.as_array().unwrap();
    let gain = all.iter().find(|claim| claim["id"] == "gain").unwrap();
    assert!(
        gain["rule"]
            .as_str()
            .unwrap()
            .contains("from 9.4 % to 15.8 %"),
        "{gain}"
    );
    assert!(
        gain["paper"]
            .as_str()
            .unwrap()
            .starts_with("Tzou, Anderson")
    );
    let text = String::from_utf8(lab(&["claims"]).stdout).unwrap();
    for claim in all {
        let id = claim["id"].as_str().unwrap();
        assert!(text.lines().any(|line| line == id), "{id}");
    }
    // What "about" means is said, and each paper's claims stand together.
    assert!(
        text.starts_with("About n is within a quarter of n"),
        "{text}"
    );
    let heads = text
        .lines()
        .filter(|line| line.starts_with("Tzou, Anderson: The Performance"));
    assert_eq!(heads.count(), 1);
    let fit = all
        .iter()
        .find(|claim| claim["id"] == "model-shares")
        .unwrap();
    assert!(
        fit["rule"].as_str().unwrap().contains("were chosen"),
        "{fit}"
    );
}

#[test]
fn a_report_says_of_what_it_was_built() {
    let report = report(&lab(&["run", "machine", "--quick", "--json"]));
    let build = &report["build"];
    assert!(
        build["compiler"].as_str().unwrap().starts_with("rustc "),
        "{build}"
    );
    assert!(!build["commit"].as_str().unwrap().is_empty(), "{build}");
    let features = build["features"].as_array().unwrap();
    let probes = features.iter().any(|feature| feature == "probes");
    assert_eq!(probes, cfg!(feature = "probes"));
    let text = String::from_utf8(lab(&["run", "machine", "--quick"]).stdout).unwrap();
    let said = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains(build["compiler"].as_str().unwrap()), "{text}");
}

#[test]
#[cfg(not(feature = "probes"))]
fn the_breakdown_needs_a_build_with_probes() {
    let report = report(&lab(&["run", "breakdown", "--quick", "--json"]));
    let why = report["records"][0]["result"]["left_out"]["why"].as_str();
    assert!(why.unwrap().contains("--features probes"), "{why:?}");
}

#[test]
fn ablations_have_each_thing_with_and_without() {
    let report = report(&lab(&["run", "ablations", "--quick", "--json"]));
    let outcome = outcome(&report, "ablations");
    let table = &outcome["tables"][0];
    let time = |label: &str, column: usize| {
        let rows = table["rows"].as_array().unwrap();
        let row = rows.iter().find(|row| row["label"] == label).unwrap();
        row["cells"][column]["here"].as_f64()
    };
    // The paper's 148 µs and 110 µs, and what they are made of.
    let papers: Vec<f64> = (table["rows"].as_array().unwrap().iter())
        .filter_map(|row| row["cells"][0]["paper"].as_f64())
        .collect();
    assert_eq!(
        papers,
        [148e-6, 92e-6, 19e-6, 37e-6, 110e-6, 70e-6, 40e-6, 200e-6]
    );
    // Ours stand beside each of them.
    for row in table["rows"].as_array().unwrap() {
        let cell = &row["cells"][0];
        assert!(cell["here"].is_f64(), "{row}");
    }
    let columns = table["columns"].as_array().unwrap().len();
    // A domain that this machine cannot have leaves its column empty, and says so.
    let guarded = outcome["left_out"].as_array().unwrap().is_empty();
    for column in 0..columns {
        for label in [
            // What the price is of has the header whose place is what is saved.
            "price of structure, a message of one page with a header of 4 KiB",
            "64 KiB in eight extents",
            "64 KiB in one extent",
            "header of 4 KiB by way of a buffer",
            "header of 4 KiB in place",
            "64 KiB into a buffer allocated for it",
            "64 KiB moved",
            "saved: allocating and freeing a page",
            "saved: allocating and freeing 64 KiB",
        ] {
            // The price is a difference: on a busy machine it may be below nothing.
            let is_difference = label.starts_with("price");
            let found = time(label, column).is_some_and(|time| is_difference || time > 0.0);
            assert_eq!(found, column == 0 || guarded, "{label}");
        }
    }
    let verdicts = outcome["verdicts"].as_array().unwrap();
    assert_eq!(verdicts.len(), if guarded { 2 } else { 1 });
    for (verdict, of) in verdicts.iter().zip(["trusted", "guarded"]) {
        assert_eq!(
            (&verdict["id"], &verdict["of"]),
            (&"structure-pays".into(), &of.into())
        );
    }
}

#[test]
fn help_that_is_asked_for_twice_is_given() {
    let [once, twice] = [&["run", "--help"][..], &["help", "run", "--help"]].map(lab);
    assert!(once.status.success() && twice.status.success());
    assert!(!once.stdout.is_empty() && once.stdout == twice.stdout);
}
