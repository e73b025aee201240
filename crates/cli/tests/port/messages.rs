//! Bytes and files through ports.

use std::io::{Read as _, Write as _};
use std::process::Stdio;
use std::time::{Duration, Instant};

use portolan::{Deadline, Domain, Message, PortOptions, WhenFull};

use crate::scene::{PATIENCE, Running, Scratch, command, fails, finished, succeeds, unique};
use crate::support;

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

    let complaint = fails(&domain, 5, &["receive", "inbox", "--timeout", "0"]);
    assert!(complaint.contains("nothing came"), "{complaint}");
}

#[test]
fn a_header_that_is_too_long_is_refused_before_anything_is_waited_for() {
    let domain = unique("long");
    let long = Scratch::holding("long", &[b'x'; 4097]);
    let text = "x".repeat(4097);
    let begun = Instant::now();
    for command in ["send", "call"] {
        for header in [["--header-file", long.path()], ["--header", &text]] {
            let complaint = fails(&domain, 2, &[&[command, "inbox"], &header[..]].concat());
            assert_eq!(
                complaint,
                "portolan: a header of 4097 bytes is over the limit of 4096\n  \
                 fault: the command line's\n  \
                 to do: shorten it, or send the rest as bytes (FILE or --data)\n"
            );
        }
    }
    fails(&domain, 2, &["send", "inbox", "--header-file", "/dev/zero"]);
    // There is no such domain, and each would have waited for it for 30 seconds.
    assert!(begun.elapsed() < PATIENCE);
}

/// What `call --json` and `receive --json` say of a message of these bytes.
fn described(test: &str, bytes: &[u8]) -> (serde_json::Value, serde_json::Value) {
    let domain = unique(test);
    let file = Scratch::holding(test, bytes);
    let server = Running::start(&domain, &["serve", "echo", "-n", "1", "--", "cat"]);
    let receiver = Running::start(&domain, &["receive", "inbox", "--json"]);
    let called = succeeds(&domain, &["call", "echo", file.path(), "--json"]);
    succeeds(&domain, &["send", "inbox", file.path()]);
    let received = receiver.finished(0).stdout;
    server.finished(0);
    let json = |line: &[u8]| serde_json::from_slice(line).unwrap();
    (json(&called), json(&received))
}

#[test]
fn json_has_the_bytes_of_answers_and_messages() {
    use base64::prelude::{BASE64_STANDARD, Engine as _};
    let texts = ["", "hello", "h\u{e9}, \"quoted\"\n"].map(|text| text.as_bytes().to_vec());
    // Of several extents, as they come out of a pipe: text that one ends in the midst of.
    let long = "\u{e9}\u{20ac}".repeat(100_000).into_bytes();
    let garbage = [vec![0xff], noise(7), noise(200_000)];
    for (n, bytes) in texts.into_iter().chain([long]).chain(garbage).enumerate() {
        let (called, received) = described(&format!("json-{n}"), &bytes);
        for line in [called, received] {
            assert_eq!(line["bytes"], bytes.len());
            let base64 = line["data_base64"].as_str().unwrap();
            assert!(BASE64_STANDARD.decode(base64).unwrap() == bytes);
            match std::str::from_utf8(&bytes) {
                Ok(text) => assert!(line["data_text"] == text),
                Err(_) => assert!(line["data_text"].is_null()),
            }
            assert_eq!(line["version"], env!("CARGO_PKG_VERSION"));
        }
    }
}

#[test]
fn bytes_that_a_file_has_are_not_in_json_too() {
    let domain = unique("json-file");
    let to = Scratch::new("json-file");
    let receiver = Running::start(&domain, &["receive", "inbox", "--json", "-o", to.path()]);
    succeeds(
        &domain,
        &["send", "inbox", "--data", "hello", "--header", "h"],
    );
    let line = String::from_utf8(receiver.finished(0).stdout).unwrap();
    let line = line.replace(env!("CARGO_PKG_VERSION"), "V");
    insta::assert_snapshot!(
        line,
        @r#"{"version":"V","header":"h","header_hex":"68","bytes":5,"extents":1}"#
    );
    assert_eq!(std::fs::read(&to.0).unwrap(), b"hello");
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
        let receiver = Running::start(&domain, &["receive", "inbox", "--output", to.path()]);
        succeeds(&domain, &["send", "inbox", from.path()]);
        assert!(receiver.finished(0).stdout.is_empty());
        assert!(std::fs::read(&to.0).unwrap() == bytes, "{len} bytes");
    }
    // The domain went with its last receiver.
    let complaint = fails(&domain, 5, &["send", "inbox", "--timeout", "0"]);
    assert!(complaint.contains("no domain named"), "{complaint}");
    let _here = Domain::join(&domain).unwrap();
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
        &["receive", "inbox", "-n", "3", "--output", to.path()],
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
    let nowhere = [
        "call",
        "log",
        "--data",
        "lost",
        "--output",
        "/no/such/place",
    ];
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
