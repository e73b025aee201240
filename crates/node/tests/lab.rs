//! `portolan-node lab`: nodes on this machine, a command beside each, and nothing left behind.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use portolan_testkit::until;
use rustix::process::{Pid, Signal, kill_process};

const PROGRAM: &str = env!("CARGO_BIN_EXE_portolan-node");

/// A lab that runs a script beside each node.
fn lab(words: &[&str], script: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command
        .arg("lab")
        .args(words)
        .args(["--", "sh", "-c", script]);
    command.env("PROGRAM", PROGRAM);
    command.stdin(Stdio::null());
    command
}

fn output(words: &[&str], script: &str) -> Output {
    lab(words, script).output().unwrap()
}

fn lines(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn a_command_runs_beside_each_node_when_all_are_linked() {
    let script = r#"echo "$PORTOLAN_LAB_NODE of $PORTOLAN_LAB_NODES"
        "$PROGRAM" status --json | grep -c '"round_trip_us"'"#;
    let ran = output(&["3", "--names"], script);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    assert!(said.contains("3 nodes are linked, side by side"), "{said}");
    let wanted = [
        "[lab1] 1 of 3",
        "[lab1] 2",
        "[lab2] 2",
        "[lab2] 2 of 3",
        "[lab3] 2",
        "[lab3] 3 of 3",
    ];
    assert_eq!(lines(&ran.stdout), wanted);
}

#[test]
fn a_lab_makes_no_state_directory_but_its_own() {
    let state = std::env::temp_dir().join(portolan_testkit::unique("lab-state"));
    let mut command = lab(&["1", "--names"], "true");
    let ran = command.env("PORTOLAN_NODE_STATE", &state).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    assert!(!state.exists());
}

#[test]
fn side_by_side_the_domain_has_another_name_at_each_node() {
    let ran = output(
        &["2", "--names", "--domain", "prices"],
        "echo $PORTOLAN_LAB_DOMAIN",
    );
    let names = lines(&ran.stdout);
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(names[0].starts_with("[lab1] prices.") && names[0].ends_with(".1"));
    assert!(names[1].starts_with("[lab2] prices.") && names[1].ends_with(".2"));
}

#[test]
fn a_command_that_fails_is_named_with_its_node() {
    let ran = output(&["2", "--names"], "exit $((PORTOLAN_LAB_NODE - 1))");
    assert_eq!(ran.status.code(), Some(1));
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(
        said.contains("beside lab2 failed: exit status: 1"),
        "{said}"
    );
    let none = output(&["2", "--names", "--domain", "no@name"], "true");
    assert_eq!(none.status.code(), Some(2));
}

/// Whether a process of this command line runs.
fn runs(word: &str) -> bool {
    let all = std::fs::read_dir("/proc").unwrap();
    all.flatten().any(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(word)
    })
}

#[test]
fn it_leaves_nothing_behind_when_it_is_told_to_end() {
    let says = "echo begun in $PORTOLAN_NODE_STATE; exec sleep 1000";
    let mut child: Child = lab(&["2", "--names"], says)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut lines = [String::new(), String::new()];
    for line in &mut lines {
        std::io::BufRead::read_line(&mut out, line).unwrap();
    }
    let (_, state) = lines[0].trim_end().split_once("begun in ").unwrap();
    let directory = Path::new(state).parent().unwrap();
    let name = directory.to_str().unwrap();
    assert!(directory.is_dir() && runs(name));
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(!directory.exists());
    until("no daemon is left", || !runs(name));
}

#[test]
fn each_node_is_a_machine_of_its_own_where_namespaces_are_allowed() {
    let ran = output(&["2"], "cat /proc/net/dev; \"$PROGRAM\" status");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    let printed = String::from_utf8_lossy(&ran.stdout);
    if said.contains("each in a network namespace") {
        // Its cable to the switch, and nothing of this machine's but its own loopback.
        assert_eq!(printed.matches("cable:").count(), 2, "{printed}");
        assert!(printed.contains("192.0.2.1:7411"), "{printed}");
    } else {
        // This user may not make them, or there is no `ip`.
        assert!(said.contains("side by side"), "{said}");
    }
}
