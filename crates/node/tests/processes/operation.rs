//! What an operator does, and what goes wrong on a machine: counters, logs, sockets' files, full disks,
//! one process that takes over from another.

use std::fs::Permissions;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use portolan_testkit::until;

use crate::scene::{Machine, json};
use crate::{are_linked, linked};

/// A port that nothing listens at.
fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.local_addr().unwrap().port()
}

fn asks(address: &str, request: &[u8]) -> String {
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(request).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn counters_are_asked_for_where_node_toml_says_and_nowhere_else() {
    let (mut hall, roof) = linked();
    assert!(roof.status()["metrics"].is_null());
    hall.kill();
    let port = free_port();
    // Keys go before tables.
    hall.configure(&format!(
        "metrics = {port}\nsend_rate = \"7MB/s\"\ntake_rate = \"5MB/s\""
    ));
    hall.up();
    until("both are linked", || are_linked(&hall, &roof));
    let address = format!("127.0.0.1:{port}");
    assert_eq!(hall.status()["metrics"], address.as_str());
    // A client that says nothing, and one that says nonsense, keep nobody away.
    let _silent: Vec<_> = (0..4)
        .map(|_| TcpStream::connect(&address).unwrap())
        .collect();
    assert!(asks(&address, b"\xff\xff\r\n\r\n").starts_with("HTTP/1.1 405"));
    assert!(asks(&address, &[b'x'; 9_000]).starts_with("HTTP/1.1 405"));
    let answer = asks(&address, b"GET /metrics HTTP/1.1\r\nHost: hall\r\n\r\n");
    let (head, page) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK") && head.contains("version=0.0.4"));
    let length = format!("Content-Length: {}", page.len());
    assert!(head.contains(&length), "{head}");
    // Each name is on the page as the module's table has it.
    for line in [
        "portolan_node_incarnation 2",
        "portolan_node_peers{state=\"up\"} 1",
        "portolan_node_peers{state=\"unreachable\"} 0",
        "portolan_node_spans{state=\"up\"} 0",
        "portolan_node_requests{way=\"asking\"} 0",
        "portolan_node_waiting_messages 0",
        "portolan_node_messages_sent_total 0",
        "portolan_node_messages_delivered_total 0",
        "portolan_node_left_behind_total 0",
        "portolan_node_links_total 1",
        "portolan_node_links_lost_total 0",
        "portolan_node_joined_total 0",
        "portolan_node_refused_total 0",
        "portolan_node_forgotten 0",
    ] {
        assert!(page.lines().any(|it| it == line), "{line}\n{page}");
    }
    let node = roof.status()["node"].as_str().unwrap().to_owned();
    for begin in [
        "portolan_node_info{".to_owned(),
        "portolan_node_certificate_expires_seconds 1".to_owned(),
        format!("portolan_node_peer_in_flight_bytes{{peer=\"{node}\"}} "),
        format!("portolan_node_peer_sent_bytes_total{{peer=\"{node}\"}} "),
        format!("portolan_node_peer_received_bytes_total{{peer=\"{node}\"}} "),
        format!("portolan_node_peer_send_rate_bytes{{peer=\"{node}\"}} 7000000"),
        format!("portolan_node_peer_take_rate_bytes{{peer=\"{node}\"}} 5000000"),
        format!("portolan_node_peer_held_total{{peer=\"{node}\",way=\"send\"}} "),
        format!("portolan_node_peer_held_total{{peer=\"{node}\",way=\"take\"}} "),
    ] {
        assert!(
            page.lines().any(|it| it.starts_with(&begin)),
            "{begin}\n{page}"
        );
    }
    // A newcomer is counted.
    Machine::new("attic").join(&hall.invite());
    let page = asks(&address, b"GET /metrics HTTP/1.0\r\n\r\n");
    assert!(page.contains("\nportolan_node_joined_total 1\n"), "{page}");
    // What another process has is named. At an address from which nobody connects: one of those might be
    // given the port when it is free again.
    let taken = TcpListener::bind(("127.0.0.77", 0)).unwrap();
    let mut third = Machine::new("third");
    third.init();
    let address = taken.local_addr().unwrap();
    third.configure(&format!("metrics = \"{address}\""));
    let error = third.fails(&["up"], 2);
    assert!(error.contains("cannot listen for metrics"), "{error}");
    drop(taken);
    third.up();
}

#[test]
fn the_log_has_one_json_object_a_line_if_node_toml_says_so() {
    let mut hall = Machine::new("hall");
    hall.init();
    hall.configure("log = \"json\"");
    hall.up();
    let mut roof = Machine::new("roof");
    roof.join(&hall.invite());
    roof.up();
    let node = roof.status()["node"].clone();
    let is_linked = |line: &serde_json::Value| {
        line["peer"] == node
            && line["what"]
                .as_str()
                .is_some_and(|it| it.starts_with("linked"))
    };
    until("it says so", || {
        let log = hall.log();
        // The first line is the command's.
        let lines = log.lines().filter(|line| line.starts_with('{')).map(json);
        lines
            .into_iter()
            .any(|line| is_linked(&line) && line["node"] == "hall")
    });
}

#[test]
fn sockets_go_with_a_node_that_ends_and_stale_ones_are_no_hindrance() {
    let mut hall = Machine::new("hall");
    hall.init();
    let sockets = ["control.sock", "programs.sock"].map(|name| hall.state.join(name));
    let are_there = || sockets.each_ref().map(|socket| socket.exists());
    hall.up();
    assert_eq!(are_there(), [true; 2]);
    hall.signal("TERM");
    hall.has_ended();
    assert_eq!(are_there(), [false; 2], "after SIGTERM");
    hall.up();
    hall.succeeds(&["leave"]);
    hall.has_ended();
    assert_eq!(are_there(), [false; 2], "after `leave`");
    hall.up();
    hall.kill();
    assert_eq!(are_there(), [true; 2], "it was killed");
    let error = hall.fails(&["status"], 1);
    assert!(error.contains("no portolan-node runs"), "{error}");
    hall.up();
    // Of another node's socket for programs the file stays, and so does that node.
    let mut other = Machine::new("other");
    other.init();
    let socket = sockets[1].to_str().unwrap();
    let error = other.fails_with(&["up"], &[("PORTOLAN_NODE_SOCKET", socket)], 2);
    assert!(error.contains("another process listens there"), "{error}");
    assert!(!other.state.join("control.sock").exists());
    assert_eq!(are_there(), [true; 2]);
    // A file that is no socket is nobody's to remove.
    let file = other.state.join("programs.sock");
    std::fs::write(&file, "mine").unwrap();
    other.fails(&["up"], 2);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
    std::fs::remove_file(&file).unwrap();
    other.up();
}

#[test]
fn a_process_takes_over_from_another_and_nobody_is_refused_meanwhile() {
    let (mut hall, roof) = linked();
    let address = hall.address();
    let done = AtomicBool::new(false);
    let (connects, asks) = std::thread::scope(|threads| {
        let connects = threads.spawn(|| {
            let mut count = 0;
            while !done.load(Ordering::Relaxed) {
                TcpStream::connect(&address).expect("a newcomer is not refused");
                count += 1;
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            count
        });
        let state = hall.state.clone();
        let asks = threads.spawn({
            let done = &done;
            move || {
                let mut count = 0;
                while !done.load(Ordering::Relaxed) {
                    let mut command = Machine::command_in(&state, &["status", "--json"]);
                    let output = command.output().unwrap();
                    let error = String::from_utf8_lossy(&output.stderr).into_owned();
                    assert!(output.status.success(), "{error}");
                    count += 1;
                }
                count
            }
        });
        for _ in 0..3 {
            hall.replace();
        }
        until("both are linked again", || are_linked(&hall, &roof));
        done.store(true, Ordering::Relaxed);
        (connects.join().unwrap(), asks.join().unwrap())
    });
    assert!(connects > 3 && asks > 3, "{connects} {asks}");
    assert_eq!(hall.status()["incarnation"], 1);
    assert_eq!(hall.address(), address);
    // The sockets are the last one's: they go with it.
    hall.succeeds(&["leave"]);
    hall.has_ended();
    assert!(!hall.state.join("control.sock").exists());
    // Where none runs it starts as it does without.
    hall.up_with_args(&["up", "--replace"]);
    // What is wrong with the files is said before the one that runs is asked to leave.
    let config = std::fs::read_to_string(hall.state.join("node.toml")).unwrap();
    hall.configure("dead_after = \"soon\"");
    hall.fails(&["up", "--replace"], 2);
    std::fs::write(hall.state.join("node.toml"), config).unwrap();
    assert_eq!(hall.status()["incarnation"], 2);
}

#[test]
fn a_full_disk_is_named_and_nothing_is_half_written() {
    // A directory on a file system of its own needs a mount namespace.
    let script = r#"
        "$NODE" init --name hall --listen 127.0.0.1:0; echo "first: $?"
        echo 41 > "$PORTOLAN_NODE_STATE/incarnation"
        fill
        "$NODE" up 2>&1; echo "full: $?"
        echo "incarnation: $(cat "$PORTOLAN_NODE_STATE/incarnation")"
        echo "left behind: $(ls "$PORTOLAN_NODE_STATE" | grep -c new)"
    "#;
    let Some(output) = Machine::on_small_disk("hall", script) else {
        println!("skipped: this system lets nobody make a mount namespace");
        return;
    };
    assert!(output.contains("first: 0"), "{output}");
    assert!(output.contains("full: 1"), "{output}");
    assert!(output.contains("no room to write"), "{output}");
    assert!(
        output.contains("free some room there; nothing was changed"),
        "{output}"
    );
    assert!(output.contains("incarnation: 41"), "{output}");
    assert!(output.contains("left behind: 0"), "{output}");
}

#[test]
fn a_running_node_on_a_full_disk_refuses_whom_it_is_told_to_and_keeps_it_when_there_is_room() {
    let script = r#"
        "$NODE" init --name hall --listen 127.0.0.1:0 >&2; echo "first: $?"
        up() {
            "$NODE" up 2>> /dev/null &
            for i in $(seq 600); do "$NODE" status > /dev/null 2>&1 && break; sleep 0.1; done
        }
        up
        fill
        "$NODE" invite --address 127.0.0.1:1 2>&1; echo "invite: $?"
        "$NODE" forget 0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a 2>&1; echo "forget: $?"
        echo "held: $("$NODE" status | grep -c 'forgotten *0a0a')"
        "$NODE" authority --rotate 2>&1; echo "rotate: $?"
        rm "$PORTOLAN_NODE_STATE/fill"
        "$NODE" forget 0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b; echo "again: $?"
        kill -9 $!; wait 2> /dev/null
        up
        echo "kept: $("$NODE" status | grep -c '^forgotten')"
        "$NODE" leave
    "#;
    let Some(output) = Machine::on_small_disk("hall", script) else {
        println!("skipped: this system lets nobody make a mount namespace");
        return;
    };
    let has = |line: &str| assert!(output.lines().any(|it| it == line), "{line}: {output}");
    // What a command cannot write down does not happen, and it says why.
    has("invite: 1");
    has("rotate: 1");
    assert!(output.contains("no room to write"), "{output}");
    // Who is to be refused is refused, written down or not.
    has("forget: 0");
    has("held: 1");
    has("again: 0");
    has("kept: 2");
}

#[test]
fn a_directory_in_which_others_may_write_is_no_nodes() {
    let mut hall = Machine::new("hall");
    hall.init();
    let chmod = |mode| {
        std::fs::set_permissions(&hall.state, Permissions::from_mode(mode)).unwrap();
    };
    for mode in [0o777, 0o1777, 0o770] {
        chmod(mode);
        for args in [&["up"][..], &["invite", "--address", "127.0.0.1:1"]] {
            let error = hall.fails(args, 2);
            assert!(error.contains(&format!("has mode {mode:o}")), "{error}");
        }
    }
    chmod(0o755);
    let root = portolan_sys::process::user() == 0;
    if root {
        std::os::unix::fs::chown(&hall.state, Some(54_321), None).unwrap();
        let error = hall.fails(&["up"], 2);
        assert!(error.contains("owned by the user 54321"), "{error}");
        std::os::unix::fs::chown(&hall.state, Some(0), None).unwrap();
    }
    hall.up();
}

#[test]
fn what_is_no_file_keeps_no_command_waiting() {
    let mut hall = Machine::new("hall");
    hall.init();
    for name in ["node.toml", "node.key", "incarnation"] {
        let path = hall.state.join(name);
        let text = std::fs::read(&path).unwrap_or_default();
        let _ = std::fs::remove_file(&path);
        let made = Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        let error = hall.fails(&["up"], 2);
        assert!(
            error.contains(name) && error.contains("it is no file"),
            "{error}"
        );
        std::fs::remove_file(&path).unwrap();
        if !text.is_empty() {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        }
    }
    hall.up();
}

#[test]
fn rates_of_peers_are_those_of_node_toml_and_hold_from_a_reload_on() {
    let (hall, roof) = linked();
    let none = |rates: &serde_json::Value| {
        rates["send"].is_null() && rates["take"].is_null() && rates["peer_takes"].is_null()
    };
    assert!(none(&hall.status()["peers"][0]["rates"]));
    // What is wrong is named by its line, and all stays as it was.
    let path = hall.state.join("node.toml");
    let before = std::fs::read_to_string(&path).unwrap();
    let line = before.lines().count() + 1;
    std::fs::write(
        &path,
        format!("{}\nsend_rate = \"fast\"", before.trim_end()),
    )
    .unwrap();
    let error = hall.fails(&["reload"], 2);
    let wanted = format!("node.toml:{line}: `send_rate` is \"fast\"; it must be \"unlimited\", or");
    assert!(error.contains(&wanted), "{error}");
    let limits = "send_rate = \"3MB/s\"\n[[rate]]\nnode = \"roof\"\ntake_rate = \"200kB/s\"";
    std::fs::write(&path, format!("{}\n{limits}\n", before.trim_end())).unwrap();
    let said = hall.succeeds(&["reload"]);
    assert!(!said.contains("rate"), "{said}");
    until("roof hears what is taken", || {
        roof.status()["peers"][0]["rates"]["peer_takes"] == 200_000
    });
    let rates = hall.status()["peers"][0]["rates"].clone();
    assert_eq!(
        (&rates["send"], &rates["take"]),
        (&3_000_000.into(), &200_000.into())
    );
    let text = hall.succeeds(&["status"]);
    assert!(text.contains("  send rate 3MB/s, held back "), "{text}");
    assert!(text.contains("take rate 200kB/s, held back "), "{text}");
    let text = roof.succeeds(&["status"]);
    assert!(
        text.contains("  send rate unlimited (it takes 200kB/s), "),
        "{text}"
    );
    std::fs::write(&path, before).unwrap();
    hall.succeeds(&["reload"]);
    until("there is no limit any more", || {
        none(&roof.status()["peers"][0]["rates"]) && none(&hall.status()["peers"][0]["rates"])
    });
}
