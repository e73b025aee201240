//! What the experiments of the paper on memory-based messaging find, in their quick size:
//! structure, never a time.

mod support;

use serde_json::Value;
use support::{
    array, at_least, at_most, cell, figure, figures_are_sound, follow_from, follows_from, quick,
    rows, table, verdict, verdict_of, why_left_out,
};

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
    // What follows from the model's constants is no finding.
    for (id, answer) in [
        ("model-shares", "fit"),
        ("model-null-rpc", "model"),
        ("signals-most", "model"),
        ("three-to-five", "model"),
        ("rises-with-distance", "model"),
        ("rises-with-speed", "model"),
        ("rises-over-a-link", "model"),
    ] {
        assert_eq!(verdict(&outcome, id)["holds"], answer, "{id}");
    }
    // What the paper does not print is not called the paper's.
    for id in ["three-to-five", "rises-with-distance", "rises-with-speed"] {
        for figure in array(&verdict(&outcome, id)["figures"]) {
            let name = figure["name"].as_str().unwrap();
            assert!(name.contains("by the model with"), "{name}");
            assert!(figure["cell"]["paper"].is_null(), "{figure}");
        }
    }
    let fit = verdict(&outcome, "model-shares")["paragraph"]
        .as_str()
        .unwrap();
    assert!(
        fit.contains("Fitted was") && fit.contains("it gives 50/47/3"),
        "{fit}"
    );
    let most = figure(
        verdict(&outcome, "signals-most"),
        "address-valued signals, near",
    );
    assert!(most["here"].is_f64() && most["paper"] == 0.79, "{most}");
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
    let hardware =
        "what the kernel saves (15 % of it) and the hardware costs (6 % of a cache controller)";
    assert!(why_left_out(&outcome, hardware).contains("its own board"));
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

#[test]
fn set_up_has_every_step_and_the_calls_that_pay_for_it() {
    let outcome = quick("setup", &[]);
    let steps = table(&outcome, "setup-steps").unwrap();
    let expected = [
        ("create", 582e-6),
        ("bind", 320e-6),
        ("enable", 249e-6),
        ("disable", 231e-6),
        ("unbind", 243e-6),
        ("release", 636e-6),
        ("connect and disconnect", 2030e-6),
    ];
    let names: Vec<&str> = expected.iter().map(|(name, _)| *name).collect();
    assert_eq!(rows(steps), names);
    for (name, paper) in expected {
        let cell = cell(steps, name, "channel of 64 KiB");
        assert!(cell["here"].is_number(), "{name}");
        assert_eq!(cell["paper"], paper, "{name}");
    }
    let calls = table(&outcome, "setup-calls").unwrap();
    // The paper's own figure: 2030 µs are a tenth of 432 calls of 47 µs.
    let needed = cell(calls, "a channel of 64 KiB", "calls until 10 %, asleep");
    assert_eq!(needed["paper"].as_f64().unwrap().round(), 432.0);
    let client = "a client of a server in another process";
    // Judged is the sum of Table 3's steps, as the paper has it, and a whole client; each beside calls that
    // sleep, as the paper's, and calls that poll.
    for (of, connection) in [
        ("the sum of Table 3's steps", "a channel of 64 KiB"),
        (
            "connecting to a server in another process, and leaving",
            client,
        ),
    ] {
        for (way, column) in [
            ("calls that sleep, as the paper's", "asleep"),
            ("calls that poll", "polling"),
        ] {
            let amortised = verdict_of(&outcome, "calls-to-amortise", &format!("{of}; {way}"));
            let calls_until = "calls until 10 %";
            follows_from(amortised, calls_until, at_least(100.0));
            let shown = cell(calls, connection, &format!("calls until 10 %, {column}"));
            assert_eq!(figure(amortised, calls_until)["here"], shown["here"]);
            // Between two processors only.
            assert_eq!(shown["here"].is_null(), alone(), "{connection}, {way}");
        }
    }
}

#[test]
fn calls_stand_beside_other_systems_and_the_papers() {
    let outcome = quick("rpc", &[]);
    let printed = table(&outcome, "rpc-paper").unwrap();
    assert_eq!(rows(printed).len(), 8);
    let ways: &[&str] = if alone() {
        &["rpc-asleep"]
    } else {
        &["rpc-asleep", "rpc-asleep-apart", "rpc-polling"]
    };
    for way in ways {
        let table = table(&outcome, way).unwrap();
        for row in ["calls", "requests through a port", "pipe", "unix seqpacket"] {
            for column in ["null", "32 B there and back", "1 KiB there"] {
                let time = &cell(table, row, column)["here"];
                assert!(
                    time.as_f64().is_some_and(|t| t > 0.0),
                    "{way}: {row}, {column}"
                );
            }
        }
        // Between two processors, as the paper's.
        let paper = &cell(table, "calls", "32 B there and back")["paper"];
        assert_eq!(paper == 47e-6, *way == "rpc-asleep-apart", "{way}");
    }
    let components = table(&outcome, "rpc-components").unwrap();
    for (row, paper) in [
        ("marshal 32 bytes", 2e-6),
        ("trigger signal", 1e-6),
        ("unmarshal 32 bytes", 2e-6),
        ("total, a call less line transfers", 7e-6),
    ] {
        assert_eq!(cell(components, row, "a call")["paper"], paper, "{row}");
    }
    let faster = verdict(&outcome, "rpc-faster-than-copying");
    let apart = "asleep on two CPUs, to the fastest that copies";
    follows_from(faster, apart, at_most(0.5));
    beside_software_only(&outcome);
    let transport = verdict(&outcome, "transport-insignificant");
    let bare = "asleep on two CPUs, to one without checksum and timer";
    let polls = "polling, to one without checksum and timer";
    follow_from(transport, &[(bare, at_most(1.1)), (polls, at_most(1.1))]);
    // The paper's figure is the checksum's alone.
    assert!(figure(transport, bare)["paper"].is_null());
    let unchecked = "asleep on two CPUs, to one without checksum";
    assert_eq!(figure(transport, unchecked)["paper"], 1.08);
    let marshalling = verdict(&outcome, "mostly-marshalling");
    let share = figure(marshalling, "marshalling, of a call without its lines");
    assert_eq!(share["paper"], 0.57143);
    if !alone() {
        // Of the whole call: the two copies are in it, and more.
        let of = |name| figure(marshalling, name)["here"].as_f64().unwrap();
        let copies = of("marshalling and unmarshalling, both ways");
        let whole = of("a call without its lines");
        if let Some(share) = share["here"].as_f64() {
            assert!(
                (share - copies / whole).abs() < 1e-3 * share.abs(),
                "{marshalling}"
            );
        }
    }
    let peers = [
        "iceoryx2, publish/subscribe",
        "iceoryx2, request/response",
        "Cap'n Proto RPC",
        "gRPC (tonic)",
    ];
    for way in ways {
        let table = table(&outcome, way).unwrap();
        for row in peers {
            // Each call's answer was compared with what it had to be; else there is no row.
            let there = rows(table).contains(&row);
            assert_eq!(there, cfg!(feature = "peers"), "{way}: {row}");
            for column in ["null", "32 B there and back", "1 KiB there"] {
                assert!(!there || cell(table, row, column)["here"].is_f64(), "{row}");
            }
        }
    }
    if !cfg!(feature = "peers") {
        let why = why_left_out(&outcome, "iceoryx2, Cap'n Proto RPC, gRPC");
        assert!(why.contains("--features peers"), "{why}");
    }
}

/// The row in software only, and what was counted.
fn beside_software_only(outcome: &Value) {
    if alone() {
        let why = why_left_out(outcome, "software only, and instructions of a call");
        assert!(why.contains("processors"), "{why}");
        return;
    }
    let software = table(outcome, "rpc-software").unwrap();
    let time = "32 B there and back";
    let times = "software only, to it";
    let printed = |row, column| cell(software, row, column)["paper"].as_f64().unwrap();
    let upcall = "signals by upcall, without a queue or a transport";
    assert_eq!(printed(upcall, time), 47e-6);
    assert!((printed(upcall, times) - 2.6).abs() < 0.05);
    let far = "signals by upcall, between processors that share no cache";
    assert!((printed(far, times) - 14.6).abs() < 0.05);
    for row in [
        "calls, polling",
        upcall,
        "software only: locked queue, system call, upcall",
    ] {
        for column in [time, times] {
            let here = &cell(software, row, column)["here"];
            assert!(here.as_f64().is_some_and(|t| t > 0.0), "{row}, {column}");
        }
    }
    // Interrupts against interrupts, all of them software: no hardware is judged by that.
    let near = verdict(outcome, "software-slower-near");
    assert_eq!(near["holds"], "no such hardware");
    assert_eq!(
        figure(near, "a queue and upcalls, to upcalls alone, both software")["here"],
        cell(software, upcall, times)["here"]
    );
    let far = verdict(outcome, "software-slower-far");
    assert_eq!(far["holds"], "no such hardware");
    let Some(instructions) = table(outcome, "rpc-instructions") else {
        assert!(why_left_out(outcome, "instructions of a call").contains("step"));
        return;
    };
    for column in ["null", time] {
        let of = |row| cell(instructions, row, column)["here"].as_f64().unwrap();
        let client = of("client, from the call to its result");
        let server = of("server, from the call to its answer");
        assert!(client > 100.0 && server > 100.0, "{instructions}");
        assert_eq!(of("both"), client + server);
    }
    // The transport's questions for an answer that takes long, since it is counted, are not in it.
    let server = |column| {
        let row = "server, from the call to its answer";
        cell(instructions, row, column)["here"].as_f64().unwrap()
    };
    assert!(server(time) < 3.0 * server("null"), "{instructions}");
}

#[test]
fn another_thread_is_told_by_component_by_line_and_with_many_clients() {
    if alone() {
        return;
    }
    let outcome = quick("signals", &[]);
    let time = table(&outcome, "signals-time").unwrap();
    let instructions = table(&outcome, "signals-instructions").unwrap();
    // The paper's components, and that they come to its totals.
    let sum = |table: &Value, column: &str| -> f64 {
        let rest = "the last three, and line transfers: the rest";
        let parts = rows(table)
            .into_iter()
            .filter(|row| !["total", rest].contains(row));
        parts
            .filter_map(|row| cell(table, row, column)["paper"].as_f64())
            .sum()
    };
    for (column, micros, count) in [("software only", 36.0, 249.0), ("upcall", 16.0, 104.0)] {
        let total = cell(time, "total", column)["paper"].as_f64().unwrap();
        assert!((total * 1e6 - micros).abs() < 1e-6, "{column}: {total}");
        assert!((sum(time, column) * 1e6 - micros).abs() < 1e-6, "{column}");
        assert_eq!(cell(instructions, "total", column)["paper"], count);
        assert_eq!(sum(instructions, column), count);
    }
    // Each delivery has a whole, and the components that it is made of.
    for (column, made_of) in [
        ("software only", "remove from kernel queue"),
        ("doorbell", "generate interrupt"),
        ("upcall", "generate interrupt"),
        ("polled", "get physical address from FIFO"),
    ] {
        for row in ["total", made_of] {
            let here = &cell(time, row, column)["here"];
            assert!(here.is_number(), "{column}, {row}");
        }
    }
    assert!(cell(time, "sender system call", "polled")["here"].is_null());
    // A processor that cannot monitor-wait has no column for it.
    let monitors = portolan::Delivery::monitor_instruction().is_some();
    let columns = array(&time["columns"]);
    assert_eq!(
        columns.iter().any(|c| c["name"] == "monitor-wait"),
        monitors
    );
    if !monitors {
        assert!(why_left_out(&outcome, "monitor-wait").contains("umwait"));
    }
    // Counted, by the processor or one by one, or said why not.
    let counted = |row| &cell(instructions, row, "polled")["here"];
    if counted("determine receiving processors").is_null() {
        assert!(why_left_out(&outcome, "instructions").contains("step"));
    } else {
        let parts = [
            "determine receiving processors",
            "insert in kernel queue",
            "get physical address from FIFO",
        ];
        let sum: f64 = parts.map(|row| counted(row).as_f64().unwrap()).iter().sum();
        assert!(sum > 30.0, "{instructions}");
        // Figures keep five digits.
        let total = counted("total").as_f64().unwrap();
        assert!((total - sum).abs() <= 1e-4 * sum, "{total} {sum}");
    }
    let lines = table(&outcome, "signals-lines").unwrap();
    assert_eq!(cell(lines, "a line", "in line transfers")["here"], 1.0);
    assert_eq!(rows(lines).len(), 5);
    let clients = table(&outcome, "signals-clients").unwrap();
    assert_eq!(rows(clients), ["1", "100", "1000"]);
    for row in rows(clients) {
        for column in ["a place for each client", "one FIFO of addresses"] {
            assert!(
                cell(clients, row, column)["here"].is_number(),
                "{row}, {column}"
            );
        }
    }
    let halved = verdict(&outcome, "half-of-software");
    assert_eq!(halved["holds"], "no such hardware");
    let upcall = "upcall, which is software, to software only";
    assert!(figure(halved, upcall)["here"].is_f64(), "{halved}");
    // Transactions are counted by hand, and times are not transactions. The channel, not a bare line.
    let fewer = verdict(&outcome, "fewer-lines");
    assert_eq!(fewer["holds"], "counted by hand");
    for (way, count) in [("channel", 1.0), ("ring", 3.0)] {
        assert_eq!(
            figure(fewer, &format!("lines by hand, {way}"))["here"],
            count
        );
    }
    let channel = "time, channel to a ring";
    let ring = cell(lines, "ring with two indices", "one way")["here"].as_f64();
    assert!(ring.is_some() && figure(fewer, channel)["here"].is_f64());
    let columns = array(&lines["columns"]);
    assert!(
        columns
            .iter()
            .any(|c| c["name"] == "lines, counted by hand")
    );
    // Against what the paper has instead, for a hundred clients and for a thousand.
    for clients in ["100 clients", "1,000 clients"] {
        let many = verdict_of(&outcome, "polling-many-clients", clients);
        follows_from(many, "a place each, to one FIFO", at_least(1.0));
    }
    // A reader that is interrupted, not one that polls.
    let each = verdict(&outcome, "signal-each-line");
    let ratio = "4 KiB, a signal a line, to one a message";
    follows_from(each, ratio, at_least(1.1));
    let interrupts = table(&outcome, "signals-interrupts").unwrap();
    assert_eq!(rows(interrupts), ["1 KiB", "4 KiB"]);
    let shown = cell(interrupts, "4 KiB", "a line to a message");
    assert_eq!(figure(each, ratio)["here"], shown["here"]);
}
