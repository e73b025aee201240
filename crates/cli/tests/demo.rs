//! The demo carries a file unchanged, whatever carries it, and leaves nothing behind.

mod support;

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use portolan_testkit::{is_bound, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::{needs_the_node_program, portolan, succeeds};

/// Every carrier of this build.
const CARRIERS: [&str; 3] = ["portolan", "pipe", "unix socket"];

/// A directory of its own for one test, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("portolan-{test}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// A file of `len` bytes that do not repeat with any block size.
    fn file(&self, len: usize) -> (String, String) {
        let bytes: Vec<u8> = (0..len).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let path = self.0.join("input");
        fs::write(&path, &bytes).unwrap();
        (
            path.to_str().unwrap().to_owned(),
            blake3::hash(&bytes).to_hex().to_string(),
        )
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn carried(file: &str) -> Value {
    serde_json::from_str(&succeeds(&["demo", file, "--block", "64", "--json"])).unwrap()
}

#[test]
fn every_carrier_yields_the_digest_of_the_file() {
    let scratch = Scratch::new("digest");
    // Not a whole number of blocks.
    let (path, digest) = scratch.file(1_000_003);
    let report = carried(&path);
    assert_eq!(report["blake3"], digest);
    assert_eq!(report["bytes"], 1_000_003);
    let carriers = report["carriers"].as_array().unwrap();
    let names: Vec<&str> = carriers
        .iter()
        .map(|one| one["carrier"].as_str().unwrap())
        .collect();
    assert_eq!(names, CARRIERS);
    for carrier in carriers {
        assert!(carrier["gb_per_s"].as_f64().unwrap() > 0.0, "{carrier}");
        let copied = carrier["bytes_copied_between_processes"].as_u64();
        let copies = if carrier["carrier"] == "portolan" {
            0
        } else {
            4
        };
        assert_eq!(copied, Some(copies * 1_000_003), "{carrier}");
    }
    assert_eq!(scratch.names(), ["input"]);
}

#[test]
fn files_of_awkward_sizes_are_carried() {
    let scratch = Scratch::new("sizes");
    for len in [0, 1, 64 << 10, (64 << 10) + 1] {
        let (path, digest) = scratch.file(len);
        assert_eq!(carried(&path)["blake3"], digest, "{len} bytes");
    }
}

#[test]
fn the_output_is_kept_under_its_name_and_replaces_what_was_there() {
    let scratch = Scratch::new("kept");
    let (path, _) = scratch.file(300_000);
    let kept = scratch.0.join("kept");
    fs::write(&kept, b"before").unwrap();
    succeeds(&["demo", &path, "--output", kept.to_str().unwrap()]);
    assert_eq!(fs::read(&kept).unwrap(), fs::read(&path).unwrap());
    assert_eq!(scratch.names(), ["input", "kept"]);
}

#[test]
fn an_output_that_cannot_be_made_is_the_callers_mistake() {
    let scratch = Scratch::new("unwritable");
    let (path, _) = scratch.file(10);
    let output = portolan(&["demo", &path, "--output", "/no/such/directory/file"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/no/such/directory"));
}

#[test]
fn a_directory_is_no_input() {
    let output = portolan(&["demo", "/"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("not a regular file"));
}

/// A demo under way, its three processes just started, and who they are.
fn started(scratch: &Scratch, carrier: &str) -> (Child, Vec<u32>) {
    let path = scratch.0.join("large");
    // Enough work that none of them is done before we have found all three.
    fs::File::create(&path).unwrap().set_len(256 << 20).unwrap();
    let demo = Command::new(env!("CARGO_BIN_EXE_portolan"))
        .args(["demo", "--carrier", carrier, path.to_str().unwrap()])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let stages = loop {
        let stages = children(demo.id());
        if stages.len() == 3 {
            break stages;
        }
        std::thread::yield_now();
    };
    (demo, stages)
}

fn children(process: u32) -> Vec<u32> {
    let path = format!("/proc/{process}/task/{process}/children");
    let list = fs::read_to_string(path).unwrap_or_default();
    list.split_whitespace()
        .map(|pid| pid.parse().unwrap())
        .collect()
}

fn kill(process: u32) {
    let pid = Pid::from_raw(i32::try_from(process).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
}

/// Whether the process is gone, or dead and waits for its new parent.
fn is_gone(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(") ")
        .next()
        .is_none_or(|state| state.is_empty() || state.starts_with('Z'))
}

#[test]
fn a_killed_stage_ends_the_demo_and_is_named() {
    let roles = ["reader", "hasher", "writer"].into_iter().enumerate();
    let all = ["portolan", "pipe"].into_iter().flat_map(|carrier| {
        roles
            .clone()
            .map(move |(index, role)| (carrier, index, role))
    });
    for (carrier, index, role) in all {
        let scratch = Scratch::new(&format!("killed-{carrier}-{role}"));
        let (demo, stages) = started(&scratch, carrier);
        kill(stages[index]);
        let output = demo.wait_with_output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{complaint}");
        let named = format!(
            "the {role} (process {}) ended early: signal: 9",
            stages[index]
        );
        assert!(complaint.contains(&named), "{complaint}");
        assert!(stages.iter().all(|&stage| is_gone(stage)));
        assert_eq!(scratch.names(), ["large"]);
    }
}

#[test]
fn a_killed_coordinator_leaves_no_process_and_no_file() {
    let scratch = Scratch::new("orphans");
    // Killed at once, when its stages may not have begun: some times, for they take theirs.
    for carrier in ["portolan", "pipe"].repeat(4) {
        let (mut demo, stages) = started(&scratch, carrier);
        kill(demo.id());
        demo.wait().unwrap();
        until("all stages are gone", || {
            stages.iter().all(|&stage| is_gone(stage))
        });
        assert_eq!(scratch.names(), ["large"]);
        // A process that is dead has threads that are about to be, and they have its sockets.
        let domain = format!("portolan-demo-{}", demo.id());
        until("the domain is gone", || !is_bound(&domain));
    }
}

#[test]
fn a_file_goes_over_three_nodes_and_a_node_that_is_killed_is_given_up() {
    needs_the_node_program();
    let scratch = Scratch::new("nodes");
    // Two blocks and a part of one.
    let (path, digest) = scratch.file((5 << 20) + 17);
    let said = succeeds(&["demo", "nodes", &path, "--names", "--json"]);
    let report: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(report["blake3"], digest.as_str());
    let ways: Vec<_> = report["ways"].as_array().unwrap().iter().collect();
    assert_eq!(ways.len(), 2);
    assert!(ways.iter().all(|way| way["gb_per_s"].as_f64() > Some(0.0)));
    let time = |key: &str| {
        report[key]
            .as_f64()
            .unwrap_or_else(|| panic!("{key}: {report}"))
    };
    // Unreachable comes before given up, by the times that the demo sets.
    assert!(time("unreachable_after_s") < time("given_up_after_s"));
    assert!(time("no_senders_after_s") >= 0.0);
    let why = report["given_up_as"].as_str().unwrap();
    assert!(why.contains("dead") || why.contains("given up"), "{why}");
    assert!(time("answered_beside") > 0.0 && time("round_trip_us") > 0.0);
}
