//! `portolan top` on a terminal of 80x24, and as JSON.

#[path = "support/shown.rs"]
mod shown;
mod support;

use portolan::{Access, Deadline, Domain, Extent, Message, PortOptions, ReceiveRight, WhenFull};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::Value;
use shown::{PATIENCE, Shown};
use std::fs::File;
use std::io::Read as _;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::{portolan, succeeds};

/// A domain of this process with a port, a message in it, and an extent.
struct Busy {
    name: String,
    domain: Domain,
    port: ReceiveRight,
    _extent: Extent,
}

impl Busy {
    fn start(test: &str) -> Self {
        let name = portolan_testkit::unique(&format!("top-{test}"));
        let domain = Domain::builder(&name)
            .limit(64 << 20)
            .space_name("busy")
            .join()
            .unwrap();
        let port = domain.bind(PortOptions::named("frames").queue(7)).unwrap();
        let busy = Self {
            name,
            _extent: domain.allocate(4096).unwrap(),
            domain,
            port,
        };
        busy.send(1);
        busy
    }

    fn send(&self, messages: usize) {
        let right = self.port.make_send();
        for _ in 0..messages {
            let mut message = Message::new(b"frame").unwrap();
            let extent = self.domain.allocate(100_000).unwrap();
            message.push(extent).unwrap();
            right.send(message, WhenFull::Drop).unwrap();
        }
    }
}

#[test]
fn the_screen_shows_the_domain_and_keys_change_it() {
    let busy = Busy::start("screen");
    let mut top = Shown::start(&[&busy.name, "--interval", "0.1"]);
    let text = top.until("busy");
    assert!(text.contains("trusted") && text.contains("*1"), "{text}");
    assert!(top.is_raw() && top.is_full_screen());
    top.press("2");
    let text = top.until("frames");
    assert!(text.contains("1/8") && text.contains("msg"), "{text}");
    // What happens is seen: eight more messages, of which one has no room.
    busy.send(8);
    top.until("8/8");
    top.press("7");
    let text = top.until("(in queues)");
    assert!(text.contains("128 KiB"), "{text}");
    top.press("q");
    top.ends_well();
    // It took no place in the domain.
    assert_eq!(busy.domain.survey().unwrap().spaces.len(), 1);
}

#[test]
fn a_new_size_is_drawn() {
    let busy = Busy::start("size");
    let mut top = Shown::start(&[&busy.name, "--interval", "0.1"]);
    top.until("busy");
    let size = Winsize {
        ws_row: 12,
        ws_col: 60,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(&top.slave, size).unwrap();
    top.screen.lock().unwrap().screen_mut().set_size(12, 60);
    // Not its controlling terminal, so the kernel does not tell it.
    let pid = Pid::from_child(&top.process);
    kill_process(pid, Signal::WINCH).unwrap();
    let end = Instant::now() + PATIENCE;
    while !top
        .text()
        .lines()
        .last()
        .is_some_and(|l| l.contains("q quit"))
    {
        assert!(Instant::now() < end, "{}", top.text());
        std::thread::sleep(Duration::from_millis(10));
    }
    top.press("\x03");
    top.ends_well();
}

#[test]
fn a_key_that_comes_with_a_new_size_is_heeded() {
    let busy = Busy::start("keys");
    let mut top = Shown::start(&[&busy.name, "--interval", "0.1"]);
    top.until("busy");
    let pid = Pid::from_child(&top.process);
    for round in 0..100 {
        // Some come while it draws: they are seen with the key then.
        for _ in 0..20 {
            kill_process(pid, Signal::WINCH).unwrap();
            std::thread::sleep(Duration::from_micros(200));
        }
        top.press("p");
        match round % 2 {
            0 => _ = top.until("paused"),
            _ => assert!(top.changes("paused"), "round {round}"),
        }
    }
    top.press("q");
    top.ends_well();
}

#[test]
fn a_domain_that_ends_closes_the_screen_and_says_so() {
    let busy = Busy::start("ends");
    let mut top = Shown::start(&[&busy.name, "--interval", "0.1"]);
    top.until("busy");
    let name = busy.name.clone();
    drop(busy);
    top.ends_well();
    let text = top.until("has ended");
    assert!(text.contains(&name), "{text}");
}

#[test]
fn a_terminal_that_hangs_up_ends_it() {
    let busy = Busy::start("hang-up");
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let path = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let slave = File::options().read(true).write(true).open(path).unwrap();
    let end = || slave.try_clone().unwrap();
    let mut process = Command::new(env!("CARGO_BIN_EXE_portolan"))
        .args(["top", &busy.name])
        .stdin(end())
        .stdout(end())
        .stderr(end())
        .spawn()
        .unwrap();
    // Drawn once: it waits for keys by now, or is about to.
    let mut output = File::from(master);
    assert!(output.read(&mut [0; 100]).unwrap() > 0);
    drop((output, slave));
    let end = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = process.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > end {
            let _ = process.kill();
            panic!("it goes on without a terminal");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(status.success(), "{status}");
}

#[test]
fn a_signal_puts_the_terminal_back() {
    let busy = Busy::start("signal");
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut top = Shown::start(&[&busy.name]);
        top.until("busy");
        kill_process(Pid::from_child(&top.process), signal).unwrap();
        top.ends_well();
    }
}

#[test]
fn one_snapshot_as_json_has_rates() {
    let mut busy = Busy::start("json");
    let name = busy.name.clone();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            busy.send(20);
            while !stop.load(Ordering::Relaxed) {
                busy.send(1);
                drop(busy.port.receive(Access::Later, Deadline::NOW).unwrap());
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let end = Instant::now() + PATIENCE;
        let now = loop {
            let json = succeeds(&["top", &name, "--json", "--interval", "0.2"]);
            let now: Value = serde_json::from_str(&json).unwrap();
            let sent = now["totals"]["sent_bytes_per_second"].as_f64().unwrap();
            let taken = now["ports"][0]["taken_bytes_per_second"].as_f64().unwrap();
            if sent > 0.0 && taken > 0.0 {
                break now;
            }
            assert!(Instant::now() < end, "{now}");
        };
        stop.store(true, Ordering::Relaxed);
        assert_eq!(now["domain"], *name);
        assert!(now["seconds"].as_f64().unwrap() >= 0.2);
        assert_eq!(now["ports"][0]["name"], "frames");
        assert!(now["ports"][0]["taken_per_second"].as_f64().unwrap() > 0.0);
        assert_eq!(now["spaces"][0]["pid"], std::process::id());
        assert!(now["totals"]["dropped"].as_u64().unwrap() >= 13);
        let held = now["extents"].as_array().unwrap();
        let queued = held.iter().find(|e| e["space"].is_null()).unwrap();
        assert_eq!(queued["size_bytes"], 128 << 10);
    });
}

#[test]
fn what_is_not_there_is_an_error_and_is_not_made() {
    for _ in 0..2 {
        let output = portolan(&["top", "no-such-domain-for-top", "--json"]);
        assert_eq!(output.status.code(), Some(2));
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(
            complaint.contains("no domain named \"no-such-domain-for-top\"")
                && complaint.contains("portolan ls"),
            "{complaint}"
        );
    }
}

#[test]
fn without_a_terminal_it_points_to_json() {
    let busy = Busy::start("pipe");
    let output = portolan(&["top", &busy.name]);
    assert_eq!(output.status.code(), Some(2));
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(complaint.contains("--json"), "{complaint}");
}
