//! The benchmarks run and print what they promise. No test looks at how fast.

mod support;

use serde_json::Value;
use std::sync::{Mutex, PoisonError};
use support::{portolan, succeeds};

/// What a benchmark prints. One runs at a time: each takes all processors, and two would look on in
/// turn while the other one has them.
fn bench(arguments: &[&str]) -> String {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    succeeds(&[&["bench"], arguments].concat())
}

/// The report of a quick run, with further arguments.
fn report(kind: &str, more: &[&str]) -> Value {
    let text = bench(&[&[kind, "--quick", "--json"], more].concat());
    serde_json::from_str(&text).unwrap()
}

/// Of the rows whose columns contain `word`.
fn filtered(kind: &str, word: &str) -> Value {
    report(kind, &["--filter", word])
}

/// The rows of one benchmark whose columns contain `word`.
fn rows(kind: &str, word: &str) -> Vec<Value> {
    let report = filtered(kind, word);
    assert!(report["machine"]["cpu"].is_string());
    assert_eq!(report["version"], env!("CARGO_PKG_VERSION"));
    report["rows"].as_array().unwrap().clone()
}

fn check(row: &Value) {
    for column in ["system", "case", "mode", "protection", "payload", "unit"] {
        assert!(row[column].is_string(), "{column} in {row}");
    }
    assert!(row["bytes"].is_u64(), "{row}");
    for column in ["p50", "p99", "p999", "max", "ratio_to_limit"] {
        assert!(row[column].as_f64().unwrap() > 0.0, "{column} in {row}");
    }
    // A rate falls towards the tail, a time grows.
    let (p50, max) = (row["p50"].as_f64().unwrap(), row["max"].as_f64().unwrap());
    match row["unit"].as_str().unwrap() {
        "msg/s" | "GB/s" => assert!(max <= p50, "{row}"),
        _ => assert!(max >= p50, "{row}"),
    }
}

/// The budgets of one benchmark's rows whose columns contain `word`.
fn budgets(kind: &str, word: &str) -> Vec<Value> {
    let report = filtered(kind, word);
    report["budgets"].as_array().unwrap().clone()
}

/// The limit comes first, and every row of the systems named follows.
fn covers(kind: &str, word: &str, limit: &str, systems: &[&str]) {
    let rows = rows(kind, word);
    rows.iter().for_each(check);
    assert_eq!(
        (&rows[0]["system"], &rows[0]["case"]),
        (&"limit".into(), &limit.into())
    );
    for system in systems {
        assert!(
            rows.iter().any(|row| row["system"] == *system),
            "{system} in {rows:?}"
        );
    }
}

#[test]
fn latency_of_small_messages() {
    let systems = [
        "shared buffer",
        "pipe",
        "unix stream",
        "unix seqpacket",
        "mqueue",
    ];
    covers("latency", "48 B", "cache line", &systems);
}

#[test]
fn latency_of_copies_is_held_against_the_shared_buffer() {
    let rows = rows("latency", "two copies");
    for row in rows.iter().filter(|row| row["system"] == "memcpy") {
        check(row);
        assert_eq!(row["yardstick"], "shared buffer, message");
        assert!(row["ratio_to_yardstick"].as_f64().unwrap() > 0.0);
    }
    // Measured only to be held against.
    assert!(rows.iter().all(|row| row["system"] != "shared buffer"));
}

#[test]
fn portolan_is_held_against_the_limit_and_the_null_message() {
    let rows = rows("latency", "untouched");
    let own: Vec<&Value> = rows
        .iter()
        .filter(|row| row["system"] == "portolan" && row["bytes"] != 0)
        .collect();
    own.iter().for_each(|row| check(row));
    for protection in ["trusted", "guarded"] {
        assert!(own.iter().any(|row| row["protection"] == protection));
    }
    let held = own.iter().filter(|row| row["yardstick"].is_string());
    for row in held {
        assert_eq!(row["yardstick"], "portolan, message");
        assert!(row["ratio_to_yardstick"].as_f64().unwrap() > 0.0, "{row}");
    }
}

#[test]
fn every_shape_of_message_has_a_row() {
    let cases: Vec<Value> = ["request", "header, queued", "idle ports", "copied", "cold"]
        .into_iter()
        .map(|word| {
            let rows = rows("latency", word);
            let own = rows.iter().filter(|row| row["system"] == "portolan");
            own.inspect(|row| check(row)).next_back().unwrap()["case"].clone()
        })
        .collect();
    let expected = [
        "request, two CPUs",
        "header, queued",
        "10,000 idle ports",
        "message",
        "word/page, cold",
    ];
    // With one CPU there is no other to wait on.
    let first = cases[0].as_str().unwrap();
    assert!(first.starts_with("request"), "{first}");
    assert_eq!(cases[1..], expected[1..]);
}

#[test]
fn calls_and_their_copies_are_held_against_their_limits() {
    covers("rpc", "0 B", "cache line", &["portolan"]);
    let rows = rows("rpc", "checksum");
    let summed = |row: &&Value| row["case"].as_str().is_some_and(|c| c.contains("copies"));
    let summed: Vec<&Value> = rows.iter().filter(summed).collect();
    assert_eq!(summed.len(), 3, "{rows:?}");
    for row in summed {
        check(row);
        let yardstick = row["yardstick"].as_str().unwrap();
        assert!(yardstick.starts_with("marshalling, both copies"), "{row}");
    }
}

#[test]
fn clients_of_a_service_have_rows_of_their_own() {
    let own = |word: &str| {
        let rows = rows("rpc", word);
        rows.iter().for_each(check);
        rows[1..].to_vec()
    };
    let idle = own("idle client");
    let cases: Vec<&str> = idle.iter().map(|r| r["case"].as_str().unwrap()).collect();
    assert_eq!(cases, ["idle client, own channels", "idle client, sharing"]);
    assert!(idle.iter().all(|row| row["unit"] == "KiB"), "{idle:?}");
    // Two rings of its own, of units of 17 lines; a client that shares has none.
    assert!(idle[0]["p50"].as_f64() > Some(64.0), "{idle:?}");
    assert!(
        idle[1]["p50"].as_f64() < idle[0]["p50"].as_f64(),
        "{idle:?}"
    );
    // Each had channels, and lost them to the other; else there is no row, but a reason.
    for word in ["client promoted", "client demoted"] {
        let report = filtered("rpc", word);
        let rows = &report["rows"].as_array().unwrap()[1..];
        rows.iter().for_each(check);
        let mut left_out = report["left_out"].as_array().into_iter().flatten();
        let is_left_out = left_out.any(|one| one["what"].as_str().unwrap().contains("promoted"));
        assert_eq!(rows.len(), usize::from(!is_left_out), "{report}");
    }
    let late = own("answer after");
    assert_eq!(late.len(), 2);
    assert!(late[1]["yardstick"].is_string(), "{late:?}");
    let timer = own("each period");
    let counted = &timer[0]["counted"];
    // The answer takes eight periods.
    assert!(counted["asks"].as_f64().unwrap() >= 1.0, "{timer:?}");
    assert!(counted["P/T"].as_f64().unwrap() >= 0.0, "{timer:?}");
}

#[test]
fn budgets_say_what_must_be_reached_and_what_was() {
    let wake = budgets("wake", "portolan");
    let [wake] = &wake[..] else {
        panic!("{wake:?}")
    };
    assert_eq!(
        (&wake["must"], &wake["bound"]),
        (&1.15.into(), &"at most".into())
    );
    assert!(wake["measured"].as_f64().unwrap() > 0.0, "{wake}");
    assert!(["stretch", "met", "missed"].contains(&wake["verdict"].as_str().unwrap()));
    assert!(budgets("wake", "pipe").is_empty());
    let table = bench(&["wake", "--quick", "--filter", "portolan"]);
    for word in ["budget", "stretch", "<= 1.15"] {
        assert!(table.contains(word), "{word} in {table}");
    }
}

#[test]
fn signals_by_delivery_and_beside_others() {
    let rows = rows("signal", "portolan");
    rows.iter().for_each(check);
    let own: Vec<(&str, &str)> = rows[1..]
        .iter()
        .map(|row| (row["case"].as_str().unwrap(), row["mode"].as_str().unwrap()))
        .collect();
    let deliveries = [
        ("signal", "poll"),
        ("signal", "block"),
        ("signal by descriptor", "block"),
        ("signal", "upcall"),
    ];
    for delivery in deliveries {
        assert!(own.contains(&delivery), "{delivery:?} in {own:?}");
    }
    for others in [
        "100 ranges",
        "1000 ranges",
        "100 own ranges",
        "1000 own ranges",
        "100 listeners",
        "1000 listeners",
    ] {
        let case = format!("signal beside {others}");
        let row = rows.iter().find(|row| row["case"] == *case).unwrap();
        assert_eq!(row["yardstick"], "portolan, signal");
    }
    let on_write = rows.iter().find(|row| {
        let case = row["case"].as_str().unwrap();
        case == "signal on write, by a trap"
    });
    assert_eq!(on_write.unwrap()["yardstick"], "portolan, signal");
    // Monitor-wait has a row, or a reason; so has the push hint.
    let report = filtered("signal", "upcall");
    let monitored = own.contains(&("signal", "monitor"));
    let left_out = report["left_out"][0]["what"] == "monitor-wait";
    assert!(monitored != left_out, "{report}");
    let pushed = report["left_out"].as_array().is_none_or(|all| {
        let reasons = all.iter().map(|one| one["why"].as_str().unwrap());
        !reasons.into_iter().any(|why| why.contains("cldemote"))
    });
    assert_eq!(pushed, portolan_instruments::push::is_there(), "{report}");
    let budgets = budgets("signal", "beside 100 ranges");
    assert_eq!(budgets[0]["must"], 1.2);
    assert_eq!(budgets[0]["rows"], 1);
}

#[test]
fn signals_of_a_message_are_counted_by_unit() {
    let rows = rows("channel", "signal");
    let of = |bytes: u64, case: &str, mode: &str| {
        let case = format!("message, {case}, stream");
        let is = |row: &&Value| row["bytes"] == bytes && row["case"] == case && row["mode"] == mode;
        let row = rows.iter().find(is);
        row.unwrap_or_else(|| panic!("{bytes}, {case}, {mode} in {rows:?}"))
    };
    for bytes in [32, 1 << 10, 4 << 10, 64 << 10] {
        let signals = |case: &str, mode: &str| {
            let row = of(bytes, case, mode);
            check(row);
            row["counted"]["signals"].as_f64().unwrap()
        };
        // A unit of a line holds 48 bytes. A writer that waits for room signals once more.
        let lines = bytes.div_ceil(48) as f64;
        assert_eq!(signals("no signal", "poll"), 0.0);
        let pages = signals("signal a page", "poll");
        assert!(pages >= (lines / 64.0).floor() && pages < lines, "{pages}");
        for mode in ["poll", "block"] {
            assert!(signals("signal a message", mode) >= 1.0);
            assert!(signals("signal a line", mode) >= lines);
        }
    }
}

#[test]
fn topics_by_size_and_by_who_subscribes() {
    let lines = rows("pubsub", "48 B");
    lines.iter().for_each(check);
    let own = |word: &str| {
        let is_own = |row: &&Value| row["system"] == "topic";
        let named = |row: &&Value| row["case"].as_str().unwrap().contains(word);
        lines.iter().filter(is_own).filter(named).count()
    };
    assert!(own("message") >= 3, "{lines:?}");
    // With one CPU there is nothing to say of subscribers beside a publisher.
    if own("1 subscriber") > 0 {
        let beside = [
            "2 subscribers",
            "8 subscribers",
            "beside one",
            "beside a stopped",
        ];
        for word in beside {
            assert_eq!(own(word), 1, "{word} in {lines:?}");
        }
        let budgets = budgets("pubsub", "subscriber");
        let flat: Vec<_> = budgets
            .iter()
            .map(|one| (&one["must"], &one["rows"]))
            .collect();
        assert_eq!(flat, [(&1.1.into(), &6.into()), (&1.1.into(), &6.into())]);
    }
    let long = rows("pubsub", "untouched");
    long.iter().for_each(check);
    assert!(long.iter().any(|row| row["bytes"] == 1 << 20), "{long:?}");
}

#[test]
fn memory_of_idle_processes() {
    let rows = rows("memory", "idle member");
    rows.iter().for_each(check);
    assert_eq!(rows[0]["case"], "empty process");
    assert!(rows[1..].iter().all(|row| row["unit"] == "KiB"));
    assert_eq!(budgets("memory", "trusted").len(), 1);
}

#[test]
fn watched_rows_are_held_against_themselves() {
    let report = report("watched", &[]);
    let rows = report["rows"].as_array().unwrap();
    rows.iter().for_each(check);
    let watched: Vec<_> = rows
        .iter()
        .filter(|row| row["case"].as_str().unwrap().contains("watched by top"))
        .collect();
    assert_eq!(watched.len(), 2);
    assert!(
        watched
            .iter()
            .all(|row| row["ratio_to_yardstick"].is_number())
    );
    let traced = rows
        .iter()
        .find(|row| row["case"].as_str().unwrap().contains("traced"));
    assert!(traced.unwrap()["ratio_to_yardstick"].is_number());
    let budgets = report["budgets"].as_array().unwrap();
    assert_eq!((budgets.len(), &budgets[0]["must"]), (1, &1.02.into()));
    assert_eq!(budgets[0]["rows"], 2);
}

#[test]
fn wake() {
    covers("wake", "pipe", "futex ping-pong, one CPU", &["pipe"]);
    covers(
        "wake",
        "portolan",
        "futex ping-pong, one CPU",
        &["portolan"],
    );
}

#[test]
fn throughput() {
    covers("throughput", "pipe", "bare ring, stream", &["pipe"]);
    covers("throughput", "portolan", "bare ring, stream", &["portolan"]);
}

#[test]
fn fan_in() {
    covers(
        "fanin",
        "seqpacket",
        "bare ring, 1 sender",
        &["unix seqpacket"],
    );
    let rows = rows("fanin", "64 senders");
    assert!(
        rows.iter()
            .any(|row| row["yardstick"] == "pipe, message, 1 sender"),
        "{rows:?}"
    );
    assert!(
        rows.iter()
            .any(|row| row["yardstick"] == "portolan, message, 1 sender"),
        "{rows:?}"
    );
}

#[test]
fn a_table_has_the_same_rows() {
    let table = bench(&["wake", "--quick", "--filter", "mqueue"]);
    for word in [
        "xlimit",
        "futex ping-pong, one CPU",
        "mqueue",
        "ns round trip",
    ] {
        assert!(table.contains(word), "{word} in {table}");
    }
}

#[test]
fn a_filter_that_matches_nothing_is_the_callers_mistake() {
    let output = portolan(&["bench", "latency", "--quick", "--filter", "carrier pigeon"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("carrier pigeon"));
}

#[test]
fn calls_by_other_libraries_are_rows_or_left_out() {
    let report = filtered("rpc", "32 B");
    let rows = report["rows"].as_array().unwrap();
    let peers = ["iceoryx2", "capnp-rpc", "tonic"];
    if !cfg!(feature = "peers") {
        assert!(
            !rows
                .iter()
                .any(|row| peers.iter().any(|p| row["system"] == *p))
        );
        let left_out = &report["left_out"][0];
        assert!(
            left_out["why"]
                .as_str()
                .unwrap()
                .contains("--features peers")
        );
        return;
    }
    assert!(report["left_out"].is_null(), "{report}");
    for system in peers {
        let own: Vec<&Value> = rows.iter().filter(|row| row["system"] == system).collect();
        own.iter().for_each(|row| check(row));
        let cases: Vec<&str> = own
            .iter()
            .map(|row| row["case"].as_str().unwrap())
            .collect();
        if portolan_sys::machine::cpus_allowed().len() > 1 {
            assert_eq!(
                cases,
                ["call", "call, one CPU", "call, two CPUs"],
                "{system}"
            );
        }
        for row in own {
            let ours = format!("portolan, {}", row["case"].as_str().unwrap());
            assert_eq!(row["yardstick"], *ours, "{row}");
        }
    }
}

#[cfg(feature = "peers")]
#[test]
fn peers_have_rows() {
    covers("latency", "iceoryx2", "cache line", &["iceoryx2"]);
    covers("latency", "zenoh", "cache line", &["zenoh"]);
    covers(
        "wake",
        "iceoryx2",
        "futex ping-pong, one CPU",
        &["iceoryx2"],
    );
    covers("pubsub", "iceoryx2", "cache line", &["iceoryx2"]);
    covers("pubsub", "zenoh", "cache line", &["zenoh"]);
}

#[test]
fn structures_have_every_step_and_their_budgets() {
    let report = report("structures", &[]);
    let rows = report["rows"].as_array().unwrap();
    let systems: Vec<&str> = rows.iter().map(|r| r["system"].as_str().unwrap()).collect();
    assert_eq!(systems[0], "portolan");
    if cfg!(feature = "serialisers") {
        for system in ["postcard", "bincode 2", "rkyv"] {
            // Over a port and over a socket.
            let times = systems.iter().filter(|s| **s == system).count();
            assert_eq!(times, 2, "{system}");
        }
    }
    for row in rows {
        for step in ["transfer", "first_lookup", "lookups", "total"] {
            assert!(row[step].as_f64().unwrap() > 0.0, "{step} in {row}");
        }
        for step in ["build", "encode", "decode"] {
            assert!(row[step].as_f64().unwrap() >= 0.0, "{step} in {row}");
        }
        assert!(row["bytes"].as_u64().unwrap() > 100_000 * 30, "{row}");
    }
    let hand_over = &report["hand_over"];
    assert_eq!(hand_over["extents"], 1);
    assert!(hand_over["ratio"].as_f64().unwrap() > 0.0);
    let budgets = report["budgets"].as_array().unwrap();
    assert_eq!(budgets.len(), 3);

    let text = bench(&["structures", "--quick", "--filter", "portolan"]);
    assert!(
        text.contains("portolan, again") && text.contains("hand-over, one way"),
        "{text}"
    );
    assert!(
        text.contains("a structure handed over, to null message"),
        "{text}"
    );
    assert!(
        text.lines().skip(6).all(|line| line.chars().count() <= 80),
        "{text}"
    );
}

#[test]
fn words_cost_the_exporter_nothing() {
    let rows = rows("update", "word");
    rows.iter().for_each(check);
    let cases: Vec<&Value> = rows.iter().map(|row| &row["case"]).collect();
    assert_eq!(
        cases,
        [
            "cache line",
            "word, deliberate",
            "word, alias",
            "word, log",
            "word, kernel-mediated",
            "word, and the exporter's CPU",
        ]
    );
    assert!(rows[5]["counted"]["exporter ns"].is_f64(), "{:?}", rows[5]);
    let budgets = budgets("update", "exporter");
    assert_eq!(budgets[0]["what"], "exporter's CPU, an update, ns");
    assert_eq!(
        (&budgets[0]["must"], &budgets[0]["unit"]),
        (&0.0.into(), &"ns".into())
    );
}

#[test]
fn updates_are_held_against_memcpy_and_stores_against_private_memory() {
    let sized = rows("update", "64 KiB");
    let held = sized.iter().filter_map(|row| {
        let yardstick = row["yardstick"].as_str()?;
        Some((row["case"].as_str()?, yardstick))
    });
    assert_eq!(
        held.collect::<Vec<_>>(),
        [
            ("write", "memcpy, into the same kind of memory"),
            (
                "write, kernel-mediated",
                "system call, into another process's memory"
            ),
        ]
    );
    let cases: Vec<&Value> = sized[1..].iter().map(|row| &row["case"]).collect();
    let set_up = ["export", "import", "unimport", "unexport, with revocation"];
    assert_eq!(cases[cases.len() - 4..], set_up);
    // The system call itself, and what of it is not the library's.
    let calls = |case: &str| {
        let row = sized.iter().find(|row| row["case"] == case).unwrap();
        row["counted"]["system calls"].as_f64()
    };
    if let Some(bare) = calls("into another process's memory") {
        assert_eq!((bare, calls("write")), (1.0, Some(0.0)));
        assert!(calls("write, kernel-mediated") > Some(1.0), "{sized:?}");
        assert!(cases.len() > 4 && sized[1..].iter().all(|row| row["counted"].is_object()));
    }
    for (word, yardstick, held) in [
        (
            "consecutive",
            "private memory, consecutive stores",
            vec![
                "alias, consecutive stores",
                "log, consecutive stores",
                "tracked, consecutive stores",
            ],
        ),
        (
            "scattered",
            "private memory, scattered stores",
            vec![
                "alias, scattered stores",
                "log, scattered stores",
                "tracked, scattered stores",
            ],
        ),
        (
            "comput",
            "portolan, write, then compute",
            vec!["write while computing"],
        ),
        (
            "unexport",
            "memcpy, into new private memory",
            vec!["unexport, with revocation"],
        ),
    ] {
        let rows = rows("update", word);
        rows.iter().for_each(check);
        let against = rows.iter().filter(|row| row["yardstick"].is_string());
        let cases: Vec<&Value> = against
            .inspect(|row| assert_eq!(row["yardstick"], yardstick))
            .map(|row| &row["case"])
            .collect();
        assert_eq!(cases, held);
    }
}

#[test]
fn exports_have_rows_of_set_up_and_of_pages() {
    let cases = |word| -> Vec<String> {
        let rows = rows("update", word);
        rows.iter().for_each(check);
        let cases = rows[1..].iter().map(|row| row["case"].as_str().unwrap());
        cases.map(str::to_owned).collect()
    };
    assert_eq!(
        cases("a page"),
        ["tracked, first store to a page", "tracked, flush, a page"]
    );
    assert_eq!(cases("unimport"), ["unimport"]);
    assert_eq!(cases("begun"), ["write begun"]);
}

#[test]
fn notifications_are_held_against_a_line_and_a_futex() {
    let rows = rows("update", "notification");
    rows.iter().for_each(check);
    let cases = rows.iter().map(|row| (&row["case"], &row["mode"]));
    let expected = [
        ("cache line", "poll"),
        ("notification", "poll"),
        ("notification", "block"),
        ("write with a notification, exporter awake", "poll"),
        ("write with a notification, exporter asleep", "poll"),
    ];
    let expected: Vec<(Value, Value)> = expected.map(|(c, m)| (c.into(), m.into())).into();
    assert_eq!(
        cases
            .map(|(c, m)| (c.clone(), m.clone()))
            .collect::<Vec<_>>(),
        expected
    );
    assert_eq!(rows[2]["yardstick"], "futex, futex ping-pong");
}

#[test]
fn instructions_and_system_calls_of_operations_are_counted() {
    // The fewest and the most system calls; how many it is is the library's affair.
    for (name, fewest, most) in [
        ("write with a notification, exporter awake", 0, 0),
        ("write with a notification, exporter asleep", 1, u32::MAX),
        ("alias, consecutive stores", 0, 0),
        ("log, consecutive stores", 0, 0),
        ("tracked, flush of one page", 1, u32::MAX),
    ] {
        let report = filtered("update", name);
        let row = &report["rows"][1];
        check(row);
        let counted = &row["counted"];
        if counted.is_null() {
            let why = report["left_out"][0]["why"].as_str().unwrap();
            assert!(why.contains("stepped"), "{why}");
            return;
        }
        assert!(counted["instructions"].as_f64() >= Some(1.0), "{row}");
        let calls = counted["system calls"].as_f64().unwrap();
        assert!(
            (f64::from(fewest)..=f64::from(most)).contains(&calls),
            "{row}"
        );
    }
}

#[test]
fn messages_between_domains_are_held_against_a_unix_socket() {
    let report = filtered("update", "between");
    let rows = report["rows"].as_array().unwrap();
    for (mode, bytes) in [("block", 1), ("poll", 1), ("block", 16), ("poll", 16)] {
        for protection in ["copied", "sealed"] {
            let is = |row: &&Value| {
                let which = (&row["mode"], &row["bytes"], &row["protection"]);
                which == (&mode.into(), &(bytes << 20).into(), &protection.into())
            };
            let row = rows.iter().find(is).unwrap();
            check(row);
            assert_eq!(row["yardstick"], "unix stream, message");
        }
    }
    let budget = &report["budgets"][0];
    assert_eq!(budget["what"], "between domains, copied, to a Unix socket");
    assert_eq!((&budget["must"], &budget["rows"]), (&1.5.into(), &2.into()));
    let budget = &report["budgets"][1];
    assert_eq!((&budget["must"], &budget["rows"]), (&4.0.into(), &1.into()));
}

/// But for calls, in which two threads take part, two runs count the same. The scenes that step
/// least are tried here; CI counts all of them, of a release build (`cargo xtask instructions`).
#[test]
fn instructions_are_counted_and_the_same_in_each_run() {
    let counted = |word| {
        let text = bench(&["instructions", "--json", "--filter", word]);
        let report: Value = serde_json::from_str(&text).unwrap();
        for field in ["rustc", "target", "flags", "profile", "libc", "processor"] {
            assert!(report["build"][field].is_string(), "{field}");
        }
        assert_eq!(report["left_out"], Value::Null);
        report["rows"].as_array().unwrap().clone()
    };
    for (word, rows) in [("null", 10), ("signal", 3), ("import", 1), ("1 port", 2)] {
        let (once, again) = (counted(word), counted(word));
        assert!(once.len() >= rows, "{word}: {} rows", once.len());
        assert_eq!(once.len(), again.len());
        for (one, other) in once.iter().zip(&again) {
            assert!(one["instructions"].as_u64().unwrap() > 0, "{one}");
            assert_eq!(one["operation"], other["operation"]);
            assert_eq!(one["system_calls"], other["system_calls"], "{one}");
            if !one["operation"].as_str().unwrap().starts_with("call") {
                assert_eq!(one["instructions"], other["instructions"], "{one} {other}");
            }
        }
    }
}

#[test]
fn what_must_not_grow_stands_beside_few_and_beside_many() {
    let report = report("rights", &[]);
    assert!(report["machine"]["cpu"].is_string());
    let rows = report["rows"].as_array().unwrap();
    for row in rows {
        let figures = ["p50", "p99", "p999", "max"].map(|column| row[column].as_f64().unwrap());
        assert!(figures.iter().all(|figure| *figure > 0.0), "{row}");
        assert!(figures.is_sorted(), "{row}");
        assert_eq!(row["operations"], 500, "{row}");
    }
    let budgets = report["budgets"].as_array().unwrap();
    let is_left_out = report["left_out"].is_array();
    let (all, judged) = if is_left_out { (14, 4) } else { (16, 5) };
    assert_eq!((rows.len(), budgets.len()), (all, judged));
    for operation in [
        "bind a port",
        "drop a port's last right",
        "drop a segment's last right",
        "receive the most urgent",
        "a node learns that a lent port closes",
        "a node learns that a lent port asks for its senders",
    ] {
        let beside = rows.iter().filter(|row| row["operation"] == operation);
        assert!(beside.count() >= 2, "{operation}");
    }
}

#[test]
fn a_budget_that_compares_needs_both_of_its_rows() {
    let counts = |word| {
        let report = filtered("rights", word);
        let count = |what: &str| report[what].as_array().unwrap().len();
        (count("rows"), count("budgets"))
    };
    assert_eq!(counts("messages wait"), (2, 1));
    assert_eq!(counts("4000 messages wait"), (1, 0));
    let none = portolan(&["bench", "rights", "--filter", "nonsense"]);
    assert_eq!(none.status.code(), Some(2));
}
