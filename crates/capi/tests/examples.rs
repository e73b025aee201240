//! The examples in C and C++ compile without a warning, run clean under AddressSanitizer, and print
//! what they should.

mod support;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use support::{compile, here, installed, printed, room, run};

/// How long a program may take to print what it should.
const PATIENCE: Duration = Duration::from_secs(60);

/// Compiles an example, runs it, and compares what it has printed, line by line in any order: two
/// processes print.
fn example(file: &str, expected: &[&str]) {
    let name = format!("example-{}", file.replace('.', "-"));
    let prefix = installed(&name);
    let program = room(&name).join("program");
    compile(&here().join("examples").join(file), &prefix, &program);
    let output = run(&program, &prefix).output().unwrap();
    let text = printed(&output);
    let mut lines: Vec<&str> = text.lines().collect();
    let mut wanted = expected.to_vec();
    lines.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(lines, wanted, "{file}");
}

/// An example that runs until it is killed.
struct LongRunning {
    program: PathBuf,
    prefix: PathBuf,
}

/// Such a program, as it runs. Dropped, it is killed.
struct Running {
    child: Child,
    lines: Receiver<String>,
}

impl LongRunning {
    fn new(file: &str) -> Self {
        let name = format!("example-{}", file.replace('.', "-"));
        let prefix = installed(&name);
        let program = room(&name).join("program");
        compile(&here().join("examples").join(file), &prefix, &program);
        Self { program, prefix }
    }

    fn start(&self, domain: &str) -> Running {
        let mut command = run(&self.program, &self.prefix);
        command.arg(domain).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let printed = BufReader::new(child.stdout.take().unwrap());
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in printed.lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        Running { child, lines }
    }
}

impl Running {
    /// Waits until it prints a line with this text in it.
    fn sees(&mut self, text: &str) {
        let until = Instant::now() + PATIENCE;
        let mut seen = Vec::new();
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            match self.lines.recv_timeout(left) {
                Ok(line) if line.contains(text) => return,
                Ok(line) => seen.push(line),
                Err(_) => break,
            }
        }
        panic!("\"{text}\" was not printed, but {seen:#?}");
    }

    /// As by `kill -9`.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn every_example_is_run() {
    let tests = std::fs::read_to_string(here().join("tests/examples.rs")).unwrap();
    let files = std::fs::read_dir(here().join("examples")).unwrap();
    for file in files.map(|file| file.unwrap().path()) {
        let name = Path::new(file.file_name().unwrap());
        if name.extension().is_some_and(|e| e == "c" || e == "cpp") {
            let run = format!("\"{}\"", name.display());
            assert!(tests.contains(&run), "{} is not run", name.display());
        }
    }
}

/// An example of the Rust library is here under its name, or the README says what C lacks for it.
#[test]
fn every_example_of_rust_is_here_or_has_a_reason() {
    let readme = std::fs::read_to_string(here().join("README.md")).unwrap();
    let (_, missing) = readme.split_once("These of Rust's are not in C").unwrap();
    let (missing, _) = missing.split_once("\n## ").unwrap();
    // The first column.
    let missing: Vec<&str> = missing
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split_once(" |"))
        .map(|(examples, _)| examples)
        .collect();
    let files = std::fs::read_dir(here().join("../../examples")).unwrap();
    let mut found = 0;
    for file in files.map(|file| file.unwrap().path()) {
        if file.extension().is_none_or(|e| e != "rs") {
            continue;
        }
        let name = file.file_stem().unwrap().to_string_lossy();
        let is_here = here().join(format!("examples/{name}.c")).exists();
        let quoted = format!("`{name}`");
        let has_reason = missing.iter().any(|named| named.contains(&quoted));
        assert!(
            is_here != has_reason,
            "{name}: in C {is_here}, among those that are not {has_reason}"
        );
        found += 1;
    }
    assert!(found > 20, "only {found} examples were found");
}

#[test]
fn hello() {
    example(
        "hello.c",
        &[
            "sending: 1048576 bytes",
            "sent:    the pages are another's",
            "header:  hello from another process",
            "pages:   1048576 bytes, all 42",
        ],
    );
}

#[test]
fn request_reply() {
    example(
        "request_reply.c",
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
fn rights() {
    example(
        "rights.c",
        &[
            "keeper: a guest says \"write to my room\"",
            "guest: got \"breakfast is at eight\"",
            "guest: got \"the key is yours\"",
            "guest: nobody can write to me any more",
            "guest: not sent, for the port is dead",
        ],
    );
}

#[test]
fn video() {
    example(
        "video.c",
        &[
            "frames: 200 in all, the last is 200, 0 torn",
            "the viewer was slow: it lost some, and knows how many",
        ],
    );
}

#[test]
fn topic() {
    example(
        "topic.c",
        &[
            "stations 1 and 2: 336 and 636 tenths of a degree in all",
            "late: the last readings are of 18 h and 18 h",
        ],
    );
}

#[test]
fn address_signal() {
    example(
        "address_signal.c",
        &[
            "watcher: row 3 is 30 now",
            "watcher: row 41 is 410 now",
            "watcher: row 7 is 70 now",
            "watcher: 0 signals were dropped",
        ],
    );
}

#[test]
fn bulk_transfer() {
    example(
        "bulk_transfer.c",
        &[
            "block 0: 65536 bytes, all 1",
            "block 1: 65536 bytes, all 2",
            "block 2: 65536 bytes, all 3",
            "block 3: 65536 bytes, all 4",
        ],
    );
}

#[test]
fn wait_set_epoll() {
    example(
        "wait_set_epoll.c",
        &["red: an apple", "green: a leaf", "blue: the sky"],
    );
}

#[test]
fn find_server() {
    example(
        "find_server.c",
        &["the doubler says 42", "the adder says 42"],
    );
}

#[test]
fn file_server() {
    let sum: u64 = (0..150_000_u64).map(|n| n % 256).sum();
    let client = format!("client: 150000 bytes, which add up to {sum}");
    example(
        "file_server.c",
        &["manager: passed 3 blocks on, unopened", &client],
    );
}

#[test]
fn handoff() {
    example(
        "handoff.c",
        &[
            "giver: gave its right away",
            "receiver: the counter says 42",
        ],
    );
}

#[test]
fn prices() {
    example(
        "prices.c",
        &[
            "day 1: 1003 things, saffron for 901, the cheapest is salt",
            "day 2: 2003 things, saffron for 902, the cheapest is salt",
            "of day 1: kept",
        ],
    );
}

#[test]
fn pictures() {
    example(
        "pictures.c",
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
fn one_wait() {
    example(
        "one_wait.c",
        &["row is 7", "text is \"hello\"", "tick", "a child has ended"],
    );
}

#[test]
fn revoked_import() {
    example(
        "revoked_import.c",
        &[
            "importer: was told that the export has ended",
            "exporter: has its memory back, with what was written last in it",
        ],
    );
}

#[test]
fn sensor() {
    example(
        "sensor.c",
        &[
            "reader: saw 1000 samples, each before it was counted",
            "sensor: the last of 1000 samples was 0.905",
        ],
    );
}

#[test]
fn between_users() {
    example(
        "between_users.c",
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
fn reconnect() {
    example(
        "reconnect.c",
        &[
            "sender: worker 1 has died",
            "sender: the next worker did the rest, up to job 40 of 40",
            "sender: of some it is not known whether they were done: true",
        ],
    );
}

#[test]
fn an_echo_client_goes_on_with_the_next_server() {
    let domain = portolan_testkit::unique("capi-echo");
    let server = LongRunning::new("echo_server.c");
    let client = LongRunning::new("echo_client.c");
    let mut first = server.start(&domain);
    let mut client = client.start(&domain);
    client.sees("client: REQUEST ");
    first.kill();
    client.sees(" was not ");
    let mut second = server.start(&domain);
    second.sees("server: process ");
    client.sees("client: REQUEST ");
}

#[test]
fn a_subscriber_goes_on_with_the_next_publisher() {
    let domain = portolan_testkit::unique("capi-readings");
    let publisher = LongRunning::new("publisher.c");
    let subscriber = LongRunning::new("subscriber.c");
    let mut subscriber = subscriber.start(&domain);
    let mut first = publisher.start(&domain);
    subscriber.sees("subscriber: reading 11 is 21.1");
    first.kill();
    subscriber.sees("subscriber: publisher 0 has gone; ");
    let mut second = publisher.start(&domain);
    second.sees("publisher: reading 1 is 20.1");
    subscriber.sees("subscriber: reading 1 is 20.1");
}

#[test]
fn a_camera_goes_on_with_the_next_viewer() {
    let domain = portolan_testkit::unique("capi-camera");
    let viewer = LongRunning::new("viewer.c");
    let mut camera = LongRunning::new("camera.c").start(&domain);
    let mut first = viewer.start(&domain);
    camera.sees("camera: viewer 1 has picture ");
    first.sees("viewer: picture ");
    first.kill();
    let mut second = viewer.start(&domain);
    camera.sees("camera: viewer 2 has picture ");
    second.sees("viewer: picture ");
}

#[test]
fn pipeline() {
    example(
        "pipeline.c",
        &[
            "frame 1: 65536 bytes of 2",
            "frame 2: 65536 bytes of 4",
            "frame 3: 65536 bytes of 6",
            "the pipeline is empty",
        ],
    );
}

#[test]
fn hello_in_cpp() {
    example(
        "hello.cpp",
        &[
            "header:  hello from another process",
            "pages:   1048576 bytes, all 42",
            "no more: no message came before the deadline",
            "sent:    the pages are another's",
        ],
    );
}

#[test]
fn request_reply_in_cpp_with_exceptions() {
    example(
        "request_reply.cpp",
        &["answer: 3 5 7", "stop: the server has gone"],
    );
}

#[test]
fn topic_in_cpp() {
    example(
        "topic.cpp",
        &[
            "position: 2",
            "ready: the topic",
            "long: 1048576 bytes, 9",
            "log: begun",
            "signals: 1",
        ],
    );
}

#[test]
fn reconnect_in_cpp() {
    example(
        "reconnect.cpp",
        &[
            "connected: 1",
            "connected: 0",
            "receiver 2: of 1 sent to receiver 1, 1 may be lost",
            "received: two",
            "more is lost: 0",
            "ready: heights",
            "height: 8848",
            "gone: publisher 0, 0 missed",
            "ready: heights",
            "height: 8849",
            "gone: publisher 0, 0 missed",
        ],
    );
}

#[test]
fn one_wait_in_cpp() {
    example("one_wait.cpp", &["ticks: 1", "text: x"]);
}

#[test]
fn sensor_in_cpp() {
    example("sensor.cpp", &["samples: 1", "sample: 21.5", "revoked: 1"]);
}

#[test]
fn between_users_in_cpp() {
    example(
        "between_users.cpp",
        &[
            "without the token: refused",
            "received: a mask, 1048576 bytes, 9",
            "too much: came back, 9437184 bytes",
            "clients: 1, 0 broke the rules",
        ],
    );
}
