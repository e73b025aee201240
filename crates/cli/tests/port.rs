//! `portolan port`: bytes and files through ports, by scripts.

mod support;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use portolan::{Deadline, Domain, Message, PortOptions, WhenFull};

const PATIENCE: Duration = Duration::from_secs(60);

/// A domain's name that no other test has.
fn unique(test: &str) -> String {
    format!("port-{test}-{}", std::process::id())
}

fn command(domain: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portolan"));
    command
        .arg("port")
        .args(args)
        .env("PORTOLAN_DOMAIN", domain)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn run(domain: &str, args: &[&str]) -> Output {
    command(domain, args).output().unwrap()
}

#[track_caller]
fn succeeds(domain: &str, args: &[&str]) -> Vec<u8> {
    finished(run(domain, args), Some(0)).stdout
}

#[track_caller]
fn fails(domain: &str, code: i32, args: &[&str]) -> String {
    let output = finished(run(domain, args), Some(code));
    assert!(output.stdout.is_empty());
    String::from_utf8(output.stderr).unwrap()
}

#[track_caller]
fn finished(output: Output, code: Option<i32>) -> Output {
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), code, "{complaint}");
    output
}

/// A command that runs beside. Killed when dropped.
struct Running(Option<Child>);

impl Running {
    fn start(domain: &str, args: &[&str]) -> Self {
        Self(Some(command(domain, args).spawn().unwrap()))
    }

    fn child(&mut self) -> &mut Child {
        self.0.as_mut().unwrap()
    }

    fn finished(mut self, code: i32) -> Output {
        let output = self.0.take().unwrap().wait_with_output().unwrap();
        finished(output, Some(code))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A file of this test, removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("portolan-{}-{name}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn holding(name: &str, bytes: &[u8]) -> Self {
        let scratch = Self::new(name);
        std::fs::write(&scratch.0, bytes).unwrap();
        scratch
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Bytes that no two blocks of share.
fn noise(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    blake3::Hasher::new().finalize_xof().fill(&mut bytes);
    bytes
}

#[test]
fn text_goes_through_with_its_header() {
    let domain = unique("text");
    let receiver = Running::start(&domain, &["receive", "inbox", "-n", "3", "--json"]);
    succeeds(
        &domain,
        &["send", "inbox", "--data", "hello", "--header", "h\u{e9}"],
    );
    succeeds(&domain, &["send", "inbox"]);
    let header = Scratch::holding("header", &noise(4096));
    let sent = [
        "send",
        "inbox",
        "--data",
        "x",
        "--header-file",
        header.path(),
    ];
    succeeds(&domain, &sent);
    let output = receiver.finished(0).stdout;
    let lines: Vec<serde_json::Value> = output
        .split(|b| *b == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 3);
    assert_eq!(lines[0]["header"], "h\u{e9}");
    assert_eq!(lines[0]["header_hex"], "68c3a9");
    assert_eq!(
        (&lines[0]["bytes"], &lines[0]["extents"]),
        (&5.into(), &1.into())
    );
    assert_eq!(
        (&lines[1]["bytes"], &lines[1]["extents"]),
        (&0.into(), &0.into())
    );
    let hex: String = noise(4096).iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(lines[2]["header_hex"], *hex);

    let long = Scratch::holding("long", &[0; 4097]);
    let complaint = fails(&domain, 5, &["receive", "inbox", "--timeout", "0"]);
    assert!(complaint.contains("nothing came"), "{complaint}");
    let _inbox = Running::start(&domain, &["receive", "inbox"]);
    let too_long = ["send", "inbox", "--header-file", long.path()];
    let complaint = fails(&domain, 2, &too_long);
    assert!(
        complaint.contains("4097 bytes is over the limit of 4096"),
        "{complaint}"
    );
}

#[test]
fn headers_alone_and_bytes_alone() {
    let domain = unique("parts");
    let receiver = Running::start(&domain, &["receive", "inbox", "--header-only"]);
    succeeds(
        &domain,
        &["send", "inbox", "--data", "bytes", "--header", "head"],
    );
    assert_eq!(receiver.finished(0).stdout, b"head\n");
    let receiver = Running::start(&domain, &["receive", "inbox"]);
    succeeds(
        &domain,
        &["send", "inbox", "--data", "bytes", "--header", "head"],
    );
    assert_eq!(receiver.finished(0).stdout, b"bytes");
}

#[test]
fn files_of_any_size_arrive_as_they_were() {
    let domain = unique("files");
    for len in [0, 1, 4096, (64 << 20) + 1, 100 << 20] {
        let bytes = noise(len);
        let from = Scratch::holding("from", &bytes);
        let to = Scratch::new("to");
        let receiver = Running::start(&domain, &["receive", "inbox", "--out", to.path()]);
        succeeds(&domain, &["send", "inbox", from.path()]);
        assert!(receiver.finished(0).stdout.is_empty());
        assert!(std::fs::read(&to.0).unwrap() == bytes, "{len} bytes");
    }
    let complaint = fails(&domain, 5, &["send", "inbox", "--timeout", "0"]);
    assert!(complaint.contains("no port named \"inbox\""), "{complaint}");
}

#[test]
fn a_pipe_goes_in_and_a_pipe_goes_out() {
    let domain = unique("pipe");
    let mut receiver = Running::start(&domain, &["receive", "inbox"]);
    let bytes = noise(5_000_000);
    let mut sender = command(&domain, &["send", "inbox", "-"]);
    let mut sender = sender.stdin(Stdio::piped()).spawn().unwrap();
    let mut pipe = sender.stdin.take().unwrap();
    let writer = std::thread::spawn(move || {
        pipe.write_all(&noise(5_000_000)).unwrap();
    });
    let mut came = Vec::new();
    let mut out = receiver.child().stdout.take().unwrap();
    out.read_to_end(&mut came).unwrap();
    writer.join().unwrap();
    finished(sender.wait_with_output().unwrap(), Some(0));
    receiver.finished(0);
    assert!(came == bytes);
}

#[test]
fn several_messages_go_into_one_file_in_order() {
    let domain = unique("several");
    let to = Scratch::new("several");
    let receiver = Running::start(
        &domain,
        &["receive", "inbox", "-n", "3", "--out", to.path()],
    );
    for text in ["one ", "two ", "three"] {
        succeeds(&domain, &["send", "inbox", "--data", text]);
    }
    receiver.finished(0);
    assert_eq!(std::fs::read(&to.0).unwrap(), b"one two three");
}

#[test]
fn what_is_wrong_with_the_command_line_is_said() {
    let domain = unique("wrong");
    let _inbox = Running::start(&domain, &["receive", "inbox", "--follow"]);
    succeeds(&domain, &["send", "inbox"]);
    let complaint = fails(&domain, 2, &["receive", "inbox"]);
    assert!(complaint.contains("bound already"), "{complaint}");
    let complaint = fails(&domain, 2, &["send", "inbox", "/no/such/file"]);
    assert!(
        complaint.contains("cannot open /no/such/file"),
        "{complaint}"
    );
    let complaint = fails(&domain, 2, &["call", "inbox"]);
    assert!(complaint.contains("portolan port send"), "{complaint}");
    fails(&domain, 2, &["send", "inbox", "--timeout", "-1"]);
    fails(&domain, 2, &["send", "inbox", "--fail", "--drop"]);
}

#[test]
fn what_can_be_known_at_once_is_not_waited_for() {
    let domain = unique("at-once");
    // There is no port; the patience of a `send` that waited for it is 30 seconds.
    let long = "x".repeat(64);
    for name in ["", &long] {
        for command in ["send", "receive", "call"] {
            let complaint = fails(&domain, 2, &[command, name]);
            assert!(complaint.contains("1 to 63 bytes"), "{complaint}");
        }
    }
    for (file, reason) in [("/no/such/file", "No such file"), ("/", "directory")] {
        for command in ["send", "call"] {
            let complaint = fails(&domain, 2, &[command, "inbox", file]);
            assert!(complaint.contains(reason), "{complaint}");
        }
    }
    for wrong in ["", "a/b", &"x".repeat(81)] {
        let complaint = fails(&domain, 2, &["receive", "inbox", "--domain", wrong]);
        assert!(complaint.contains("no domain name"), "{complaint}");
        assert!(complaint.contains("the command line's"), "{complaint}");
    }
}

#[test]
fn a_request_whose_answer_has_no_place_is_not_served() {
    let domain = unique("no-place");
    let served = Scratch::new("served");
    let script = format!("cat >> '{}'", served.path());
    let server = Running::start(
        &domain,
        &["serve", "log", "-n", "1", "--", "sh", "-c", &script],
    );
    let nowhere = ["call", "log", "--data", "lost", "--out", "/no/such/place"];
    fails(&domain, 2, &nowhere);
    succeeds(&domain, &["call", "log", "--data", "kept"]);
    server.finished(0);
    assert_eq!(std::fs::read(&served.0).unwrap(), b"kept");
}

#[test]
fn a_full_queue_fails_drops_or_waits() {
    let domain = unique("full");
    let here = Domain::join(&domain).unwrap();
    let mut port = here.bind(PortOptions::named("inbox").queue(2)).unwrap();
    let right = port.make_send();
    while right.send(Message::default(), WhenFull::Fail).is_ok() {}
    let waiting = port.depth();
    let complaint = fails(&domain, 6, &["send", "inbox", "--fail"]);
    assert!(complaint.contains("is full"), "{complaint}");
    fails(&domain, 6, &["send", "inbox", "--timeout", "0.1"]);
    succeeds(&domain, &["send", "inbox", "--drop"]);
    assert_eq!(port.depth(), waiting);
    let patient = Running::start(&domain, &["send", "inbox", "--data", "late"]);
    let end = Instant::now() + PATIENCE;
    while here.survey().unwrap().ports[0].awaiting_room == 0 {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(5));
    }
    for _ in 0..waiting {
        let message = port.receive(portolan::Access::Later, Deadline::after(PATIENCE));
        assert!(message.unwrap().is_empty());
    }
    let last = port.receive(portolan::Access::Later, Deadline::after(PATIENCE));
    assert_eq!(&last.unwrap().extents()[0][..], b"late");
    patient.finished(0);
}

#[test]
fn a_sender_is_told_that_the_receiver_was_killed() {
    let domain = unique("killed");
    let here = Domain::join(&domain).unwrap();
    let mut receiver = Running::start(&domain, &["receive", "inbox", "--queue", "2"]);
    let right = here.connect("inbox", Deadline::after(PATIENCE)).unwrap();
    // Stopped, so that its queue stays full.
    let pid = rustix::process::Pid::from_child(receiver.child());
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    while right.send(Message::default(), WhenFull::Fail).is_ok() {}
    let sender = Running::start(&domain, &["send", "inbox"]);
    let end = Instant::now() + PATIENCE;
    while here.survey().unwrap().ports[0].awaiting_room == 0 {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(5));
    }
    receiver.child().kill().unwrap();
    let complaint = String::from_utf8(sender.finished(7).stderr).unwrap();
    assert!(complaint.contains("died"), "{complaint}");
}

#[test]
fn a_timeout_bounds_joining_and_no_name_has_an_at_sign() {
    let domain = unique("stopped-host");
    let mut receiver = Running::start(&domain, &["receive", "inbox", "--follow"]);
    let lists = || support::portolan(&["ls", &domain, "--json"]);
    until("the receiver hosts", || {
        String::from_utf8_lossy(&lists().stdout).contains("inbox")
    });
    let pid = rustix::process::Pid::from_child(receiver.child());
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let began = Instant::now();
    let sent = run(&domain, &["send", "inbox", "--timeout", "1.5"]);
    let took = began.elapsed();
    let complaint = String::from_utf8_lossy(&sent.stderr);
    assert!(
        !sent.status.success() && complaint.contains("is stopped"),
        "{complaint}"
    );
    // Not the five seconds that joining may take by default.
    assert!(took < Duration::from_millis(4500), "{took:?}");
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    succeeds(&domain, &["send", "inbox", "--timeout", "5"]);
    let complaint = String::from_utf8(run(&domain, &["send", "in@box"]).stderr).unwrap();
    assert!(
        complaint.contains("without zero bytes and '@'"),
        "{complaint}"
    );
}

#[test]
fn a_command_answers_calls() {
    let domain = unique("serve");
    let serve = ["serve", "upper", "-n", "3", "--", "tr", "a-z", "A-Z"];
    let server = Running::start(&domain, &serve);
    assert_eq!(
        succeeds(&domain, &["call", "upper", "--data", "hello"]),
        b"HELLO"
    );
    assert_eq!(succeeds(&domain, &["call", "upper"]), b"");
    let text = "words and words, ".repeat(300_000);
    let file = Scratch::holding("words", text.as_bytes());
    let answer = succeeds(&domain, &["call", "upper", file.path()]);
    assert!(answer == text.to_uppercase().as_bytes());
    server.finished(0);
}

#[test]
fn a_header_reaches_the_command_and_a_failure_the_client() {
    let domain = unique("header");
    let script =
        "cat > /dev/null; printf '%s!' \"$PORTOLAN_HEADER\"; test \"$PORTOLAN_HEADER\" != bad";
    let serve = ["serve", "shell", "--", "sh", "-c", script];
    let mut server = Running::start(&domain, &serve);
    assert_eq!(
        succeeds(&domain, &["call", "shell", "--header", "good"]),
        b"good!"
    );
    let complaint = fails(&domain, 7, &["call", "shell", "--header", "bad"]);
    assert!(complaint.contains("dropped the request"), "{complaint}");
    let complaint = fails(&domain, 2, &["send", "shell"]);
    assert!(complaint.contains("portolan port call"), "{complaint}");
    // It goes on after a failure, and its death is told at once.
    assert_eq!(
        succeeds(&domain, &["call", "shell", "--header", "again"]),
        b"again!"
    );
    server.child().kill().unwrap();
    server.child().wait().unwrap();
    let stderr = server.child().stderr.take().unwrap();
    let told = BufReader::new(stderr).lines().next().unwrap().unwrap();
    assert!(told.contains("the request is dropped"), "{told}");
}

#[test]
fn a_header_that_is_no_text_is_not_replaced_by_the_servers_own() {
    let domain = unique("own-header");
    let script = "printf '[%s]' \"$PORTOLAN_HEADER\"";
    let server = command(
        &domain,
        &["serve", "shell", "-n", "1", "--", "sh", "-c", script],
    )
    .env("PORTOLAN_HEADER", "of the server")
    .spawn();
    let server = Running(Some(server.unwrap()));
    let header = Scratch::holding("header", b"a\0b");
    let call = ["call", "shell", "--header-file", header.path()];
    assert_eq!(succeeds(&domain, &call), b"[]");
    server.finished(0);
}

/// Whether a process is there, by its number in a file, once that is written.
fn lives(file: &Scratch) -> bool {
    let end = Instant::now() + PATIENCE;
    loop {
        let text = std::fs::read_to_string(&file.0).unwrap_or_default();
        if let Some(pid) = text.strip_suffix('\n') {
            let status = std::fs::read_to_string(format!("/proc/{pid}/stat"));
            // One that is dead and was not asked after has ended as well.
            return status.is_ok_and(|status| !status.contains(") Z "));
        }
        assert!(Instant::now() < end, "the command never began");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_command_that_takes_too_long_is_killed_with_all_that_it_started() {
    let domain = unique("limit");
    let (own, other) = (Scratch::new("limit-own"), Scratch::new("limit-other"));
    // Its input is not read, its output is kept open, and what it starts stays behind.
    let script = format!(
        "sleep 600 & echo $! > '{}'; echo $$ > '{}'; sleep 600",
        other.path(),
        own.path()
    );
    // As long as it may take to begin.
    let serve = ["serve", "slow", "--limit", "5", "--", "sh", "-c", &script];
    let mut server = Running::start(&domain, &serve);
    // More than a pipe holds.
    let words = Scratch::holding("limit-words", "words ".repeat(100_000).as_bytes());
    let complaint = fails(&domain, 7, &["call", "slow", words.path()]);
    assert!(complaint.contains("dropped the request"), "{complaint}");
    until("all of it has ended", || !lives(&own) && !lives(&other));
    server.child().kill().unwrap();
    let stderr = server.child().stderr.take().unwrap();
    let told = BufReader::new(stderr).lines().next().unwrap().unwrap();
    assert!(
        told.contains("longer than 5 s; the request is dropped"),
        "{told}"
    );

    let serve = ["serve", "quick", "--limit", "60", "-n", "1", "--", "cat"];
    let server = Running::start(&domain, &serve);
    let answer = succeeds(&domain, &["call", "quick", words.path()]);
    assert_eq!(answer.len(), 600_000);
    server.finished(0);
}

#[test]
fn a_command_ends_with_its_server() {
    let domain = unique("orphan");
    let own = Scratch::new("orphan");
    let script = format!("echo $$ > '{}'; exec sleep 600", own.path());
    let mut server = Running::start(&domain, &["serve", "slow", "--", "sh", "-c", &script]);
    let client = Running::start(&domain, &["call", "slow"]);
    assert!(lives(&own), "it began");
    server.child().kill().unwrap();
    until("its command has ended", || !lives(&own));
    client.finished(7);
}

#[test]
fn a_server_that_is_killed_or_slow_fails_its_clients() {
    let domain = unique("slow");
    let here = Domain::join(&domain).unwrap();
    let mut server = Running::start(&domain, &["serve", "slow", "--", "sleep", "90"]);
    let complaint = fails(&domain, 5, &["call", "slow", "--timeout", "1"]);
    assert!(complaint.contains("may still be served"), "{complaint}");
    let client = Running::start(&domain, &["call", "slow"]);
    let end = Instant::now() + PATIENCE;
    // Its request waits behind the other.
    while here
        .survey()
        .unwrap()
        .ports
        .iter()
        .all(|p| p.name.as_deref() != Some("slow") || p.depth == 0)
    {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(5));
    }
    server.child().kill().unwrap();
    client.finished(7);
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let domain = unique("reader");
    let mut receiver = Running::start(&domain, &["receive", "inbox", "--follow"]);
    drop(receiver.child().stdout.take());
    succeeds(&domain, &["send", "inbox", "--data", "nobody reads this"]);
    let output = receiver.finished(0);
    assert!(output.stderr.is_empty());
}

#[test]
fn help_has_examples_and_exit_codes() {
    let help = support::succeeds(&["port", "--help"]);
    assert!(
        help.contains("Exit codes:") && help.contains("Example:"),
        "{help}"
    );
    for command in ["send", "receive", "call", "serve"] {
        let help = support::succeeds(&["port", command, "--help"]);
        assert!(
            help.contains(&format!("Example:\n  portolan port {command}")),
            "{help}"
        );
    }
    assert!(!support::portolan(&["port"]).status.success());
}
