//! Messages between nodes, in the modes of systems of the past and as they are: every row is there,
//! and verdicts follow from the figures beside them.
//!
//! The experiments run in their quick size; what is checked is structure, never a time.

mod support;

use serde_json::Value;
use support::{
    array, at_least, at_most, cell, figure, figures_are_sound, follow_from, follows_from, lab,
    quick, rows, table, verdict, verdict_of,
};

const LINKS: [&str; 3] = ["175 MB/s, shaped", "19.2 MB/s, shaped", "plain loopback"];

fn has_two_processors() -> bool {
    portolan_sys::machine::cpus_allowed().len() >= 2
}

fn here(table: &Value, row: &str, column: &str) -> bool {
    cell(table, row, column)["here"].is_number()
}

#[test]
fn null_requests_are_local_and_remote_in_each_mode_over_each_link() {
    if !has_two_processors() {
        return;
    }
    let outcome = quick("nodes-rpc", &[]);
    figures_are_sound(&outcome);
    let links = table(&outcome, "links").unwrap();
    assert_eq!(rows(links), LINKS);
    for link in &LINKS[..2] {
        for column in ["rate", "delay", "gap", "64 B there and back"] {
            assert!(
                here(links, link, column),
                "{link} does not state its {column}"
            );
        }
    }
    let table_1 = table(&outcome, "table-1").unwrap();
    for link in LINKS {
        for (mode, has_local) in [
            ("NORMA", true),
            ("DIPC", true),
            ("relay", false),
            ("bare", false),
        ] {
            let row = format!("{mode}, {link}");
            assert!(here(table_1, &row, "remote"), "{row}");
            for column in ["local", "remote / local"] {
                assert_eq!(here(table_1, &row, column), has_local, "{row}, {column}");
            }
        }
    }
    for (row, local, remote) in [
        ("NORMA, 175 MB/s, shaped", 220e-6, 2070e-6),
        ("DIPC, 175 MB/s, shaped", 318e-6, 1272e-6),
        ("DIPC, 19.2 MB/s, shaped", 115e-6, 1129e-6),
    ] {
        assert_eq!(cell(table_1, row, "local")["paper"], local, "{row}");
        assert_eq!(cell(table_1, row, "remote")["paper"], remote, "{row}");
    }
    let local = table(&outcome, "local").unwrap();
    for row in [
        "no node",
        "a node, NORMA",
        "a node, DIPC",
        "through a proxy port",
    ] {
        assert!(here(local, row, "time"), "{row}");
    }
    for (id, name, bounds) in [
        (
            "dipc-remote-faster",
            "remote null request on plain loopback, NORMA to DIPC",
            at_least(1.45),
        ),
        (
            "slower-locally",
            "local null request beside a node on plain loopback, DIPC to NORMA",
            at_least(1.3),
        ),
        (
            "without-hot-path",
            "local null request through a node's proxy, to one without",
            at_least(1.75),
        ),
    ] {
        follows_from(verdict(&outcome, id), name, bounds);
    }
    // Plain loopback decides: the delay of a shaped link is the lab's own.
    let of = |mode| format!("remote null request on plain loopback to a local one, {mode}");
    let [norma, dipc] = ["NORMA", "DIPC"].map(of);
    let conditions = [(norma.as_str(), [7.3, 11.5]), (dipc.as_str(), [3.25, 4.75])];
    let to_local = verdict(&outcome, "remote-to-local");
    follow_from(to_local, &conditions);
    for (mode, name) in [("NORMA", &norma), ("DIPC", &dipc)] {
        let row = format!("{mode}, plain loopback");
        let shown = cell(table_1, &row, "remote / local");
        assert_eq!(figure(to_local, name)["here"], shown["here"], "{row}");
        let beside = figure(to_local, &format!("{mode}, 175 MB/s, shaped"));
        assert!(beside["here"].is_number(), "{beside}");
    }
    let slow = verdict(&outcome, "remote-to-local-slow");
    assert_eq!(slow["holds"], "model", "{slow}");
    let beside = figure(slow, "DIPC, 19.2 MB/s, shaped");
    assert!(beside["here"].is_number(), "{beside}");
    assert_eq!(beside["paper"], 9.8174);
    let records = verdict(&outcome, "count-records");
    let [with, without] =
        ["with the notice", "without"].map(|how| format!("records of senders for a right, {how}"));
    let conditions = [
        (with.as_str(), at_least(1.0)),
        (without.as_str(), at_most(0.0)),
    ];
    follow_from(records, &conditions);
    // Each right was asked for at one node, and heard of at the other.
    assert_eq!(figure(records, &with)["here"], 2.0, "{records}");
    assert_eq!(figure(records, &without)["here"], 0.0, "{records}");
    let senders = table(&outcome, "senders").unwrap();
    assert_eq!(rows(senders), ["wanted", "not wanted"]);
}

#[test]
fn bandwidth_is_by_size_in_each_mode_over_each_link() {
    if !has_two_processors() {
        return;
    }
    let outcome = quick("nodes-throughput", &[]);
    figures_are_sound(&outcome);
    let modes = [
        "bare",
        "KKT",
        "DIPC",
        "NORMA",
        "NORMA, 8 pages",
        "NORMA, 64 pages",
        "relay",
    ];
    for (id, link) in ["fast", "slow", "loopback"].into_iter().zip(LINKS) {
        let by_size = table(&outcome, &format!("bandwidth-{id}")).unwrap();
        assert_eq!(rows(by_size), ["1 KiB", "32 KiB", "256 KiB"]);
        let peaks = table(&outcome, &format!("peaks-{id}")).unwrap();
        assert_eq!(rows(peaks), modes);
        for mode in modes {
            for size in rows(by_size) {
                assert!(here(by_size, size, mode), "{link}, {mode}, {size}");
            }
            for column in ["peak", "peak, to bare", "half of it from", "least to DIPC"] {
                assert!(here(peaks, mode, column), "{link}, {mode}, {column}");
            }
        }
        let plots = array(&outcome["plots"]).iter();
        let plot = plots
            .clone()
            .find(|plot| plot["id"] == format!("nodes-figure-3-{id}").as_str());
        // As many lines as there are colours.
        assert_eq!(array(&plot.unwrap()["series"]).len(), 6);
        follows_from(
            verdict_of(&outcome, "kkt-near-bare", link),
            "least bandwidth from 32 KiB up, KKT to bare",
            at_least(0.75),
        );
        if id != "slow" {
            let peak = verdict_of(&outcome, "dipc-peak", link);
            follows_from(peak, "peak bandwidth, DIPC to bare", at_least(0.73));
        }
    }
    // Plain loopback decides: what a page waits for on a shaped link is the lab's own.
    let above = [
        (
            "peak bandwidth on plain loopback, DIPC to NORMA",
            at_least(1.05),
        ),
        (
            "least bandwidth on plain loopback, DIPC to NORMA",
            at_least(1.0),
        ),
    ];
    follow_from(verdict(&outcome, "dipc-above-norma"), &above);
    follows_from(
        verdict(&outcome, "slower-attack"),
        "size of half of the peak on plain loopback, DIPC to KKT",
        at_least(1.5),
    );
    follows_from(
        verdict(&outcome, "slow-link-saturated"),
        "peak bandwidth of DIPC on the slow link, to the link's rate",
        at_least(0.95),
    );
}

#[test]
fn transfers_at_once_stand_beside_one_alone() {
    if !has_two_processors() {
        return;
    }
    let outcome = quick("nodes-concurrency", &[]);
    figures_are_sound(&outcome);
    let at_once = table(&outcome, "concurrency").unwrap();
    for (row, nodes, transfers) in [
        ("8 nodes, DIPC", 9.0, 8.0),
        ("8 ports of a node, DIPC", 2.0, 8.0),
        ("a port with 8 threads, DIPC", 2.0, 8.0),
        ("8 pairs of nodes, DIPC", 16.0, 8.0),
        ("28 pairs of nodes, DIPC", 56.0, 28.0),
        ("8 nodes, one at a time", 9.0, 8.0),
        ("8 ports of a node, one at a time", 2.0, 8.0),
    ] {
        assert_eq!(cell(at_once, row, "nodes")["here"], nodes, "{row}");
        assert_eq!(cell(at_once, row, "transfers")["here"], transfers, "{row}");
        assert!(here(at_once, row, "as many, without a pause"), "{row}");
        // A link is 20 ms long each way, whatever else is true.
        let one = cell(at_once, row, "one alone")["here"].as_f64().unwrap();
        assert!(one >= 0.04, "{row}: {one}");
    }
    let four = [
        "8 transfers at once to 8 nodes, to one transfer",
        "8 transfers at once to 8 ports of a node, to one transfer",
        "8 transfers at once to a port with 8 threads, to one transfer",
        "8 transfers at once between 8 pairs of nodes, to one transfer",
        "28 transfers at once between 28 pairs of nodes, to one transfer",
    ]
    .map(str::to_owned);
    support::all_follow(verdict(&outcome, "four-concurrencies"), &four, at_most(1.3));
    let overlap = [
        (
            "one at a time: 8 transfers at once to 8 nodes, to one transfer",
            at_most(1.3),
        ),
        (
            "one at a time: 8 transfers at once to 8 ports of a node, to one transfer",
            at_least(4.0),
        ),
    ];
    follow_from(verdict(&outcome, "overlap-to-nodes-only"), &overlap);
}

#[test]
fn many_senders_are_counted_by_sender_and_by_link() {
    if !has_two_processors() {
        return;
    }
    let outcome = quick("nodes-flow", &[]);
    figures_are_sound(&outcome);
    let flow = table(&outcome, "flow").unwrap();
    for (row, senders, links) in [
        ("all by one link", 40.0, 1.0),
        ("all by many links", 40.0, 4.0),
    ] {
        assert_eq!(cell(flow, row, "senders")["here"], senders);
        assert_eq!(cell(flow, row, "links")["here"], links);
        for column in ["messages counted", "Jain, senders", "Jain, links"] {
            assert!(here(flow, row, column), "{row}, {column}");
        }
        let verdict = verdict_of(&outcome, "not-overwhelmed", row);
        let conditions = [
            (
                "peak memory of the receiver's node, all senders to ten",
                at_most(1.5),
            ),
            ("Jain's index of what links have delivered", at_least(0.95)),
            (
                "requests to another port in a time, beside all senders to alone",
                at_least(0.9),
            ),
        ];
        for (name, _) in conditions {
            assert!(figure(verdict, name)["here"].is_number(), "{row}, {name}");
        }
        follow_from(verdict, &conditions);
    }
}

#[test]
fn all_experiments_on_nodes_run_by_one_name() {
    let output = lab(&["run", "nothing-of-the-kind"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && error.contains(", nodes"),
        "{error}"
    );
    // On one processor none of them can be done, and each says so.
    let cpu = portolan_sys::machine::cpus_allowed()[0];
    portolan_sys::machine::pin(cpu).unwrap();
    let output = lab(&["run", "nodes", "--quick", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let names: Vec<&str> = array(&report["records"])
        .iter()
        .map(|record| {
            let why = record["result"]["left_out"]["why"].as_str().unwrap();
            assert!(why.contains("needs 2 processors, and may use 1"), "{why}");
            record["about"]["name"].as_str().unwrap()
        })
        .collect();
    assert_eq!(
        names,
        [
            "nodes-rpc",
            "nodes-throughput",
            "nodes-concurrency",
            "nodes-flow"
        ]
    );
}
