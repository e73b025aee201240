//! What holds for every command: help with an example, errors that help, and an
//! output that may be cut short.

mod support;

use std::io::Read as _;
use std::process::{Command, Stdio};

use support::{portolan, succeeds};

#[test]
fn every_help_has_an_example() {
    for command in ["demo", "bench", "ls", "trace", "doctor"] {
        let help = succeeds(&[command, "--help"]);
        assert!(
            help.contains(&format!("Example:\n  portolan {command}")),
            "{help}"
        );
    }
    assert!(succeeds(&["--help"]).contains("Example:\n  portolan demo"));
    let asked_twice = succeeds(&["help", "port", "send", "--help"]);
    assert_eq!(asked_twice, succeeds(&["port", "send", "--help"]));
}

#[test]
fn the_hidden_subcommand_stays_hidden_and_harmless() {
    assert!(!succeeds(&["--help"]).contains("__peer"));
    let output = Command::new(env!("CARGO_BIN_EXE_portolan"))
        .arg("__peer")
        .stdin(Stdio::null())
        .output()
        .expect("the binary starts");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("without a coordinator"));
}

#[test]
fn an_error_says_what_happened_whose_fault_and_what_to_do() {
    let output = portolan(&["demo", "/no/such/file"]);
    assert_eq!(output.status.code(), Some(2));
    let complaint = String::from_utf8_lossy(&output.stderr);
    for part in [
        "cannot open /no/such/file",
        "fault: the command line's",
        "to do: name a file",
    ] {
        assert!(complaint.contains(part), "{complaint}");
    }
    assert!(output.stdout.is_empty());
}

#[test]
fn doctor_prints_a_table_and_json() {
    let table = succeeds(&["doctor"]);
    assert!(
        table.contains("without it") && table.contains("memfd"),
        "{table}"
    );
    let json: serde_json::Value = serde_json::from_str(&succeeds(&["doctor", "--json"])).unwrap();
    for feature in json["features"].as_array().unwrap() {
        assert!(
            feature["name"].is_string() && feature["present"].is_boolean(),
            "{feature}"
        );
    }
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_portolan"))
        .arg("doctor")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    drop(child.stdout.take());
    let mut complaint = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut complaint)
        .unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(complaint, "");
}
