//! The examples run, and say what they should.

use std::path::PathBuf;
use std::process::Command;

/// Runs an example; what it printed.
fn run(name: &str) -> String {
    let path = built(name);
    let output = Command::new(&path).output();
    let output = output.unwrap_or_else(|e| {
        panic!(
            "{}: {e} (cargo test without --test builds it; so does cargo build --examples)",
            path.display()
        )
    });
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success(),
        "{name}: {}\n{out}\n{err}",
        output.status
    );
    assert!(err.is_empty(), "{name} complains: {err}");
    out.into_owned()
}

/// Where cargo puts an example: beside the directory of the tests.
fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile = test.parent().and_then(|deps| deps.parent()).unwrap();
    profile.join("examples").join(name)
}

/// The lines of all processes; among those of different ones there is no order.
#[track_caller]
fn says(name: &str, lines: &[&str]) {
    let out = run(name);
    let mut rest = out.lines().collect::<Vec<_>>();
    for line in lines {
        let at = rest.iter().position(|l| l == line);
        rest.remove(at.unwrap_or_else(|| panic!("{name} did not print {line:?}:\n{out}")));
    }
    assert_eq!(rest, [""; 0], "{name} printed more than it should");
}

#[test]
fn hello() {
    let out = run("hello");
    assert!(
        out.contains("header:  hello from another process\n"),
        "{out}"
    );
    let address = |line: &str| {
        let line = out.lines().find(|l| l.starts_with(line)).unwrap();
        let after = line.split(" at ").nth(1).unwrap();
        after.split(',').next().unwrap().to_owned()
    };
    assert_eq!(
        address("sending:"),
        address("pages:"),
        "pages keep their address"
    );
}

#[test]
fn file_server() {
    let sum: u64 = (0..150_000_u64).map(|n| n % 256).sum();
    let client = format!("client: 150000 bytes, which add up to {sum}");
    says(
        "file_server",
        &["manager: passed 3 blocks on, unopened", &client],
    );
}

#[test]
fn bulk_transfer() {
    // Each byte value as often as any other.
    let sum = (16 << 20) / 256 * (0..256_u64).sum::<u64>();
    let receiver = format!("receiver: {} bytes, which add up to {sum}", 16 << 20);
    let sender = format!("sender: 16 blocks, which add up to {sum}");
    says("bulk_transfer", &[&receiver, &sender]);
}

#[test]
fn revoked_import() {
    says(
        "revoked_import",
        &[
            "importer: was told that the export has ended",
            "exporter: has its memory back, with what was written last in it",
        ],
    );
}

#[test]
fn pipeline() {
    let frames = [
        "frame 1: 65536 bytes of 2",
        "frame 2: 65536 bytes of 4",
        "frame 3: 65536 bytes of 6",
    ];
    says(
        "pipeline",
        &[&frames[..], &["the pipeline is empty"]].concat(),
    );
}

#[test]
fn request_reply() {
    says(
        "request_reply",
        &[
            "answer: ONE AT A TIME",
            "answer: THE SECOND OF TWO",
            "answer: THE FIRST OF TWO",
            "drop me: the server dropped the request unanswered",
            "die: the server died, or closed its port, or a node between ended or stopped to span the domain, before it answered; the request was sent and may have been served",
        ],
    );
}

#[test]
fn reconnect() {
    says(
        "reconnect",
        &[
            "sender: worker 1 has died",
            "sender: the next worker did the rest, up to job 40 of 40",
            "sender: of some it is not known whether they were done: true",
        ],
    );
}

#[test]
fn between_users() {
    says(
        "between_users",
        &[
            "camera: asked for \"the resolution\"",
            "guest: 1920 x 1080",
            "camera: a mask of 2073600 bytes covers 192000",
            "guest: 9437184 bytes came back",
            "camera: 0 clients broke the rules",
        ],
    );
}

#[test]
fn one_wait() {
    says(
        "one_wait",
        &["row is 7", "text is \"hello\"", "tick", "a child has ended"],
    );
}

#[test]
fn rights() {
    says(
        "rights",
        &[
            "keeper: a guest says \"write to my room\"",
            "guest: got \"breakfast is at eight\"",
            "guest: got \"the key is yours\"",
            "guest: nobody can write to me any more",
            "guest: not sent, for the port is dead: its owner closed it or died, or it was on another node, which was given up or spans the domain no more; drop this right and look the name up again",
        ],
    );
}

#[test]
fn rpc_service() {
    says(
        "rpc_service",
        &[
            "sea: 4096 x 3072, 12582912 bytes of 0x1f",
            "there is no \"night\", but dusk and sea",
            "said: [\"very blue\"]",
            "the gallery has closed",
        ],
    );
}

#[test]
fn rpc_async() {
    says(
        "rpc_async",
        &[
            "fair in 50 towns",
            "nobody has heard of \"Atlantis\"",
            "a storm within 100 ms: false",
            "nobody waits for one any more",
            "now it thunders",
            "the station has closed",
        ],
    );
}

#[test]
fn rpc_sharing() {
    says(
        "rpc_sharing",
        &[
            "50 of 50 gates share their channels",
            "gate 7 is busy: it has channels of its own",
            "gate 9 is busier: they are taken from gate 7",
            "gate 7 shares again",
            "each call was counted once: true",
        ],
    );
}

#[test]
fn wait_set_epoll() {
    says(
        "wait_set_epoll",
        &[
            "red: an apple",
            "green: a leaf",
            "blue: the sky",
            "the painter has gone",
        ],
    );
}

#[test]
fn pass_a_tree() {
    let lines = [
        "day 1: Genoa",
        "day 9: Palermo",
        "day 13: Candia",
        "day 17: Alexandria (quarantine)",
        "cloth: 25 tons, sealed by [\"customs\"]",
        "wine: 12 tons, sealed by [\"customs\"]",
    ];
    assert_eq!(run("pass_a_tree"), lines.join("\n") + "\n");
}

#[cfg(feature = "tokio")]
#[test]
fn async_tokio() {
    let squares: Vec<String> = (1..=10)
        .map(|n: u16| format!("{n} squared is {}", n * n))
        .collect();
    let mut lines: Vec<&str> = squares.iter().map(String::as_str).collect();
    lines.push("server: 10 requests, and no client is left");
    says("async_tokio", &lines);
}

#[test]
fn address_signal() {
    says(
        "address_signal",
        &[
            "watcher: row 3 is 30 now",
            "watcher: row 41 is 410 now",
            "watcher: row 7 is 70 now",
            "watcher: 0 signals were dropped",
        ],
    );
}

#[test]
fn video() {
    let all = |who| format!("{who}: of 200 frames each was seen whole, or is known to be missed");
    says(
        "video",
        &[&all("fast"), &all("slow"), "slow: some were missed"],
    );
}

#[test]
fn topic() {
    let mut lines = vec![
        "late: the last readings are of 18 h and 18 h".to_owned(),
        "the topic is of another type".to_owned(),
    ];
    for station in 1..=2 {
        for hour in [6, 12, 18] {
            let tenths = 100 * station + hour;
            let (degrees, rest) = (tenths / 10, tenths % 10);
            lines.push(format!(
                "station {station}, {hour} h: {degrees}.{rest} degrees"
            ));
        }
    }
    says(
        "topic",
        &lines.iter().map(String::as_str).collect::<Vec<_>>(),
    );
}

#[test]
fn prices() {
    says(
        "prices",
        &[
            "day 1: 1003 things, saffron for 901, the cheapest is salt",
            "day 2: 2003 things, saffron for 902, the cheapest is salt",
            "of day 1: kept",
        ],
    );
}

#[test]
fn pictures() {
    says(
        "pictures",
        &[
            "4 x 4: 0 of 3 look at it where it was drawn",
            "64 x 64: 3 of 3 look at it where it was drawn",
            "1024 x 1024: 3 of 3 look at it where it was drawn",
            "a viewer died with pictures in its hands, and 1000 more were published",
            "viewer 1: no more pictures",
            "viewer 2: no more pictures",
        ],
    );
}

#[test]
fn sensor() {
    says(
        "sensor",
        &[
            "reader: saw 1000 samples, each before it was counted",
            "sensor: the last of 1000 samples was 0.905",
        ],
    );
}

/// Over two nodes: `crates/node/tests/processes/examples.rs`.
#[test]
fn remote_port() {
    says(
        "remote_port",
        &[
            "server: line 1",
            "server: line 2",
            "server: line 3",
            "client: three lines are there",
            "client: 1048576 bytes came back, all in capitals: true",
        ],
    );
}

/// Over three nodes: `crates/node/tests/processes/examples.rs`.
#[test]
fn handoff() {
    says(
        "handoff",
        &[
            "giver: gave its right away",
            "receiver: the counter says 42",
        ],
    );
}

#[test]
fn find_server() {
    says("find_server", &["the doubler says 42", "the adder says 42"]);
}

/// Over two nodes: `crates/node/tests/processes/examples.rs`.
#[test]
fn moving_server() {
    says(
        "moving_server",
        &[
            "first: gave 200 numbers, and the port away",
            "second: went on from 200, to 1000",
            "client: 500 numbers, in order: true",
            "client: 500 numbers, in order: true",
        ],
    );
}
