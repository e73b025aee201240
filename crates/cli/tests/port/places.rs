//! Domains and ports that are found or made, and what is told while one waits.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use portolan::{Domain, PortOptions};

use crate::scene::{PATIENCE, Running, command, fails, finished, succeeds, talkative, unique};

/// Another user, whom no other test has.
const STRANGER: u32 = 54_331;
const FRIEND: u32 = 54_332;

fn runs(domain: &str) -> bool {
    Domain::builder(domain).observe().is_ok()
}

#[test]
fn a_mistyped_domain_is_not_made_and_those_that_run_are_named() {
    let domain = unique("typo");
    let there = unique("there");
    let _there = Domain::join(&there).unwrap();
    for command in ["send", "call"] {
        let begun = Instant::now();
        let complaint = fails(&domain, 5, &[command, "inbox", "--timeout", "0.3"]);
        assert!(begun.elapsed() >= Duration::from_millis(300));
        let (first, rest) = complaint.split_once('\n').unwrap();
        let expected = format!("portolan: no domain named {domain:?} in time: ");
        assert!(first.starts_with(&expected), "{complaint}");
        // Other tests' domains run beside it, and few are named.
        assert!(
            first.contains(&format!("{there:?}")) || first.ends_with(" more run here"),
            "{complaint}"
        );
        assert_eq!(
            rest,
            "  fault: the command line's\n  \
             to do: check the name (--domain), start a program that makes it \
             (`portolan port receive` does), or wait longer (--timeout)\n"
        );
        assert!(!runs(&domain));
    }
}

#[test]
fn a_domain_that_comes_up_in_time_is_found() {
    let domain = unique("late");
    let sender = Running::start(&domain, &["send", "inbox", "--data", "early"]);
    let client = Running::start(&domain, &["call", "upper", "--data", "early"]);
    std::thread::sleep(Duration::from_millis(300));
    assert!(!runs(&domain), "they make none");
    let receiver = Running::start(&domain, &["receive", "inbox"]);
    let serve = ["serve", "upper", "-n", "1", "--", "tr", "a-z", "A-Z"];
    let server = Running::start(&domain, &serve);
    sender.finished(0);
    assert_eq!(client.finished(0).stdout, b"EARLY");
    assert_eq!(receiver.finished(0).stdout, b"early");
    server.finished(0);
}

/// The first line that a command tells while it waits.
fn told(mut waiting: Running) -> String {
    let stderr = waiting.child().stderr.take().unwrap();
    BufReader::new(stderr).lines().next().unwrap().unwrap()
}

fn talks(domain: &str, what: &str, args: &[&str]) -> Running {
    Running(Some(talkative(domain, what, args).spawn().unwrap()))
}

#[test]
fn what_is_waited_for_is_told_and_for_how_long() {
    let domain = unique("told");
    let begun = Instant::now();
    let line = told(talks(&domain, "send", &["inbox"]));
    assert!(begun.elapsed() >= Duration::from_secs(1));
    assert!(
        line.starts_with(&format!(
            "portolan: waiting for a domain named {domain:?} ("
        )) && line.ends_with("), for up to 30 s"),
        "{line}"
    );

    let here = Domain::join(&domain).unwrap();
    let full = here.bind(PortOptions::named("full").queue(1)).unwrap();
    let right = full.make_send();
    while right
        .send(portolan::Message::default(), portolan::WhenFull::Fail)
        .is_ok()
    {}
    let mute = PortOptions::named("mute").synchronous();
    let _mute = here.bind(mute).unwrap();
    let cases: [(&str, &[&str], &str); 6] = [
        (
            "send",
            &["inbox", "--timeout", "7.5"],
            "a port named \"inbox\" in the domain DOMAIN, for up to 7.5 s",
        ),
        (
            "call",
            &["inbox"],
            "a port named \"inbox\" in the domain DOMAIN, for up to 30 s",
        ),
        (
            "send",
            &["full"],
            "room in the queue of the port \"full\", for up to 30 s",
        ),
        (
            "call",
            &["mute", "--timeout", "60"],
            "the answer of the port \"mute\", for up to 60 s",
        ),
        (
            "receive",
            &["idle"],
            "a message to the port \"idle\" of the domain DOMAIN, until it comes (Ctrl-C ends this)",
        ),
        (
            "serve",
            &["calls", "--timeout", "90", "--", "cat"],
            "a request to the port \"calls\" of the domain DOMAIN, for up to 90 s",
        ),
    ];
    for (what, args, expected) in cases {
        let line = told(talks(&domain, what, args));
        let line = line.replace(&format!("{domain:?}"), "DOMAIN");
        assert_eq!(line, format!("portolan: waiting for {expected}"));
    }
}

#[test]
fn a_quiet_wait_tells_nothing_and_a_short_one_neither() {
    let domain = unique("quiet");
    let _here = Domain::join(&domain).unwrap();
    let complaint = fails(&domain, 5, &["send", "inbox", "--timeout", "1.5"]);
    assert!(complaint.starts_with("portolan: no port"), "{complaint}");
    let short = talkative(&domain, "send", &["inbox", "--timeout", "0.5"]).output();
    let complaint = finished(short.unwrap(), Some(5)).stderr;
    assert!(complaint.starts_with(b"portolan: no port"));
}

/// A command of another user, at a domain of ours.
fn foreign(uid: u32, domain: &str, args: &[&str]) -> Command {
    let mut command = command(domain, &[args, &["--user", "0"]].concat());
    command.uid(uid).gid(uid);
    command
}

#[test]
fn other_users_join_if_the_command_that_made_the_domain_permits_them() {
    if portolan_sys::process::user() != 0 {
        return;
    }
    let domain = unique("users");
    let (user, group) = (FRIEND.to_string(), (FRIEND + 1).to_string());
    let permitting = ["--allow-user", &user, "--allow-group", &group];
    let receive = [&["receive", "inbox", "-n", "3"], &permitting[..]].concat();
    let receiver = Running::start(&domain, &receive);
    for uid in [FRIEND, FRIEND + 1] {
        let sent = foreign(uid, &domain, &["send", "inbox", "--data", "x"]).output();
        finished(sent.unwrap(), Some(0));
    }
    for args in [&["send", "inbox"][..], &["receive", "other"]] {
        let refused = foreign(STRANGER, &domain, args).output().unwrap();
        let complaint = finished(refused, Some(2)).stderr;
        assert_eq!(
            String::from_utf8(complaint).unwrap(),
            "portolan: user 54331 may not join this domain of user 0: permission denied\n  \
             fault: the command line's\n  \
             to do: let the command that makes the domain say --allow-user 54331, or \
             --allow-group with one of that user's groups (in a program: \
             Builder::allow_user, Builder::allow_group)\n"
        );
    }
    succeeds(&domain, &["send", "inbox", "--data", "y"]);
    assert_eq!(receiver.finished(0).stdout, b"xxy");
}

#[test]
fn a_permission_that_comes_too_late_is_told() {
    let domain = unique("too-late");
    let here = Domain::join(&domain).unwrap();
    let server = Running::start(&domain, &["receive", "inbox", "--allow-user", "1000"]);
    succeeds(&domain, &["send", "inbox"]);
    let told = String::from_utf8(server.finished(0).stderr).unwrap();
    assert!(
        told.contains("runs already") && told.contains("change nothing"),
        "{told}"
    );
    drop(here);
}

#[test]
fn a_stopped_host_is_named_and_not_waited_for_longer_than_asked() {
    let domain = unique("stopped");
    let mut host = Running::start(&domain, &["receive", "inbox"]);
    let end = Instant::now() + PATIENCE;
    while !runs(&domain) {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(5));
    }
    let pid = rustix::process::Pid::from_child(host.child());
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let output = command(&domain, &["send", "other", "--timeout", "3"]).output();
    let output = output.unwrap();
    // Another member may let it in; then there is no such port.
    let complaint = String::from_utf8(output.stderr).unwrap();
    match output.status.code() {
        Some(1) => assert!(
            complaint.contains("answered within 3s") && complaint.contains("is stopped"),
            "{complaint}"
        ),
        Some(5) => assert!(complaint.contains("no port named"), "{complaint}"),
        other => panic!("{other:?}: {complaint}"),
    }
}
