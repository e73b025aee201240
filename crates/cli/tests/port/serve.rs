//! A command answers requests.

use std::io::{BufRead as _, BufReader};
use std::time::{Duration, Instant};

use portolan::Domain;
use portolan_testkit::ended_by_signals;
use rustix::process::{Pid, Signal, kill_process};

use crate::scene::{PATIENCE, Running, Scratch, command, fails, succeeds, unique, until};

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
fn a_command_that_cannot_be_run_is_refused_before_the_port_is_bound() {
    let domain = unique("no-command");
    let plain = Scratch::holding("no-command", b"no program");
    let commands = [
        ("/no/such/command", "No such file"),
        ("no-such-command-in-any-path", "no such program in PATH"),
        (plain.path(), "Permission denied"),
        ("/tmp", "directory"),
    ];
    for (command, reason) in commands {
        let complaint = fails(&domain, 2, &["serve", "x", "--timeout", "0", "--", command]);
        let expected = format!("cannot run {command:?}: ");
        assert!(complaint.contains(&expected), "{complaint}");
        assert!(complaint.contains(reason), "{complaint}");
        assert!(complaint.contains("after `--`"), "{complaint}");
    }
    // Nothing was bound, and no domain made.
    let complaint = fails(&domain, 5, &["call", "x", "--timeout", "0"]);
    assert!(complaint.contains("no domain named"), "{complaint}");
}

#[test]
fn serving_goes_on_after_a_command_that_vanishes() {
    use std::os::unix::fs::PermissionsExt as _;
    let domain = unique("vanishes");
    let program = Scratch::holding("vanishes", b"#!/bin/sh\necho here\n");
    let permitted = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&program.0, permitted).unwrap();
    let serve = ["serve", "x", "-n", "3", "--", program.path()];
    let server = Running::start(&domain, &serve);
    assert_eq!(succeeds(&domain, &["call", "x"]), b"here\n");
    let aside = Scratch::new("vanished");
    std::fs::rename(&program.0, &aside.0).unwrap();
    let complaint = fails(&domain, 7, &["call", "x"]);
    assert!(complaint.contains("dropped the request"), "{complaint}");
    std::fs::rename(&aside.0, &program.0).unwrap();
    assert_eq!(succeeds(&domain, &["call", "x"]), b"here\n");
    let told = String::from_utf8(server.finished(0).stderr).unwrap();
    assert!(told.contains("cannot run"), "{told}");
    assert!(told.contains("the request is dropped"), "{told}");
}

#[test]
fn a_signal_ends_the_command_with_all_that_it_started() {
    use std::os::unix::process::ExitStatusExt as _;
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let number = signal.as_raw();
        let domain = unique(&format!("signal-{number}"));
        let own = Scratch::new(&format!("signal-own-{number}"));
        let other = Scratch::new(&format!("signal-other-{number}"));
        let script = format!(
            "sleep 600 & echo $! > '{}'; echo $$ > '{}'; sleep 600",
            other.path(),
            own.path()
        );
        let serve = ["serve", "slow", "--", "sh", "-c", &script];
        let mut server = command(&domain, &serve);
        let server = ended_by_signals(&mut server).spawn().unwrap();
        let mut server = Running(Some(server));
        let client = Running::start(&domain, &["call", "slow"]);
        assert!(lives(&own) && lives(&other), "both began");
        let pid = Pid::from_child(server.child());
        kill_process(pid, signal).unwrap();
        until("all of it has ended", || !lives(&own) && !lives(&other));
        // As if it had not been handled.
        let status = server.child().wait().unwrap();
        assert_eq!(status.signal(), Some(number));
        client.finished(7);
    }
}

#[test]
fn a_signal_that_was_ignored_stays_ignored() {
    let domain = unique("nohup");
    let portolan = env!("CARGO_BIN_EXE_portolan");
    let script = format!("trap '' HUP; exec '{portolan}' port serve x -q -n 2 -- cat");
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &script]).env("PORTOLAN_DOMAIN", &domain);
    let mut server = Running(Some(shell.spawn().unwrap()));
    assert_eq!(succeeds(&domain, &["call", "x", "--data", "1"]), b"1");
    kill_process(Pid::from_child(server.child()), Signal::HUP).unwrap();
    assert_eq!(succeeds(&domain, &["call", "x", "--data", "2"]), b"2");
    server.finished(0);
}

#[test]
fn a_server_goes_on_whose_standard_error_is_full() {
    let domain = unique("full");
    let script = "read word; test \"$word\" != bad && echo good";
    let full = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let mut server = command(
        &domain,
        &["serve", "shell", "-n", "2", "--", "sh", "-c", script],
    );
    let mut server = server.stderr(full).spawn().unwrap();
    let call = |word: &str, code| fails(&domain, code, &["call", "shell", "--data", word]);
    call("bad", 7);
    assert_eq!(
        succeeds(&domain, &["call", "shell", "--data", "fine\n"]),
        b"good\n"
    );
    assert!(server.wait().unwrap().success());
    // What is wrong is in the exit code still.
    let full = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let alone = command(&domain, &["call", "nobody", "--timeout", "0.1"])
        .stderr(full)
        .status();
    assert_eq!(alone.unwrap().code(), Some(5));
}
