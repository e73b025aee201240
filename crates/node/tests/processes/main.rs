//! Nodes as processes over loopback: making, inviting, joining, links, forgetting, ends.

mod authority;
mod disk;
mod examples;
mod formats;
mod operation;
mod peers;
mod replacing;
mod scene;
mod session;
mod upkeep;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;

use portolan_testkit::until;
use scene::{Machine, json};
use serde_json::Value;

/// The peers of a node that are in this state, by name.
fn peers(machine: &Machine, state: &str) -> Vec<String> {
    let status = machine.status();
    let peers = status["peers"].as_array().unwrap().iter();
    let peers = peers.filter(|peer| peer["state"] == state);
    peers
        .filter_map(|peer| Some(peer["name"].as_str()?.to_owned()))
        .collect()
}

/// Whether a node refuses this one.
fn forgets(machine: &Machine, node: &str) -> bool {
    let status = machine.status();
    let mut all = status["forgotten"].as_array().unwrap().iter();
    all.any(|it| it == node)
}

/// Lines of the audit log with this event.
fn events(machine: &Machine, event: &str) -> Vec<Value> {
    let log = machine.audit().into_iter();
    log.filter(|line| line["event"] == event).collect()
}

/// Two machines of one cluster, linked.
fn linked() -> (Machine, Machine) {
    let mut hall = Machine::new("hall");
    hall.init();
    hall.up();
    let mut roof = Machine::new("roof");
    roof.join(&hall.invite());
    roof.up();
    until("both are linked", || are_linked(&hall, &roof));
    (hall, roof)
}

fn are_linked(a: &Machine, b: &Machine) -> bool {
    peers(a, "up") == [b.name.clone()] && peers(b, "up") == [a.name.clone()]
}

#[test]
fn a_newcomer_joins_by_one_line_and_both_are_linked() {
    let mut hall = Machine::new("hall");
    hall.init();
    hall.up();
    let token = hall.invite();
    assert_eq!(token.lines().count(), 1);
    let mut roof = Machine::new("roof");
    roof.join(&token);
    roof.up();
    until("both are linked", || are_linked(&hall, &roof));
    let status = roof.status();
    assert_eq!(
        (&status["incarnation"], &status["authority"]),
        (&1.into(), &false.into())
    );
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    // A link is pinged after a second of silence.
    until("the round trip is known", || {
        roof.status()["peers"][0]["round_trip_us"].is_u64()
    });
    // Both have one clock, that of this machine, and the measure says by how much it may be wrong.
    for machine in [&hall, &roof] {
        let clock = || {
            let peer = machine.status()["peers"][0].clone();
            let ahead = peer["clock_offset_ns"].as_i64()?;
            Some((ahead.unsigned_abs(), peer["clock_error_ns"].as_u64()?))
        };
        until("the clocks are compared", || clock().is_some());
        let (wrong, most) = clock().unwrap();
        assert!(wrong <= most, "{wrong} ns, at most {most}");
    }
    assert!(roof.succeeds(&["status"]).contains("hall"));
    // Keys are for their owner alone.
    for file in [
        "node.key",
        "node.crt",
        "authority.crt",
        "incarnation",
        "node.toml",
    ] {
        let mode = std::fs::metadata(roof.state.join(file))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    let log = hall.audit();
    let events: Vec<_> = log
        .iter()
        .map(|line| line["event"].as_str().unwrap())
        .collect();
    assert_eq!(events, ["invited", "joined"]);
    assert_eq!(
        (&log[1]["name"], &log[1]["node"]),
        (&"roof".into(), &status["node"])
    );
    assert_eq!(log[0]["invitation"], log[1]["invitation"]);
}

#[test]
fn a_token_is_good_once_and_what_was_mistyped_or_is_of_another_node_is_refused() {
    let mut hall = Machine::new("hall");
    hall.init();
    hall.up();
    let token = hall.invite();
    Machine::new("first").join(&token);
    let again = Machine::new("second");
    let error = again.fails(&["join", &token, "--name", "second"], 1);
    assert!(error.contains("used already"), "{error}");
    assert!(
        !again.state.join("node.key").exists(),
        "a refused node has no key"
    );
    let refused = hall.audit().pop().unwrap();
    assert_eq!(refused["event"], "refused");
    // Of another cluster, at the same address: the chain is not what the token says.
    let other = Machine::new("other");
    other.init();
    let elsewhere = other.succeeds(&["invite", "--address", &hall.address()]);
    let error = again.fails(&["join", elsewhere.trim(), "--name", "second"], 1);
    assert!(error.contains("different clusters"), "{error}");
    // With that of this cluster and a secret that it has never given out.
    let (address, letters) = token.split_once('/').unwrap();
    let mistyped = format!(
        "{address}/{}",
        letters.replacen(&letters[10..14], "ZZZZ", 1)
    );
    let error = again.fails(&["join", &mistyped, "--name", "second"], 2);
    assert!(error.contains("mistyped"), "{error}");
    // A name that is none, a directory that has a node: the token stays good.
    let token = hall.invite();
    let error = again.fails(&["join", &token, "--name", "a b"], 2);
    assert!(error.contains("no name of a node"), "{error}");
    hall.fails(&["join", &token, "--name", "hall"], 2);
    again.succeeds(&[
        "join",
        &token,
        "--name",
        "second",
        "--listen",
        "127.0.0.1:0",
    ]);
}

#[test]
fn a_node_without_the_authority_cannot_invite_until_it_has_a_copy() {
    let mut hall = Machine::new("hall");
    hall.init();
    hall.up();
    let mut roof = Machine::new("roof");
    roof.join(&hall.invite());
    let error = roof.fails(&["invite", "--address", "127.0.0.1:1"], 2);
    assert!(error.contains("authority's key"), "{error}");
    let copy = hall.state.join("copy.pem");
    let copy = copy.to_str().unwrap();
    hall.succeeds(&["authority", "--copy", copy]);
    let mode = std::fs::metadata(copy).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // What is there is not overwritten.
    hall.fails(&["authority", "--copy", copy], 2);
    roof.succeeds(&["authority", "--install", copy]);
    roof.up();
    let mut cellar = Machine::new("cellar");
    cellar.join(&roof.invite());
    cellar.up();
    until("the third is linked with the second", || {
        peers(&cellar, "up").contains(&"roof".to_owned())
    });
    // Of another cluster it is refused.
    let other = Machine::new("other");
    other.init();
    let error = other.fails(&["authority", "--install", copy], 2);
    assert!(error.contains("another cluster"), "{error}");
}

#[test]
fn a_link_comes_back_when_the_peer_is_killed_and_started_again() {
    let (mut hall, mut roof) = linked();
    hall.kill();
    until("the peer waits", || {
        roof.status()["peers"][0]["state"] != "up"
            && roof.status()["peers"][0]["failure"].is_string()
    });
    hall.up();
    until("both are linked again", || are_linked(&hall, &roof));
    assert_eq!(hall.status()["incarnation"], 2);
    // One that leaves says so, and its lock is free.
    roof.succeeds(&["leave"]);
    roof.has_ended();
    until("the one that stays is alone", || {
        peers(&hall, "up").is_empty()
    });
    let error = roof.fails(&["status"], 1);
    assert!(error.contains("no portolan-node runs"), "{error}");
}

/// Three machines that have joined one after another, each by the first one.
fn three() -> [Machine; 3] {
    let mut hall = Machine::new("hall");
    hall.init();
    hall.up();
    let others = ["roof", "attic"].map(|name| {
        let mut machine = Machine::new(name);
        machine.join(&hall.invite());
        machine.up();
        machine
    });
    let [roof, attic] = others;
    [hall, roof, attic]
}

#[test]
fn nodes_that_have_joined_by_the_same_one_find_one_another() {
    let [mut hall, mut roof, attic] = three();
    let all_are_linked = |machines: [&Machine; 3]| {
        machines.iter().all(|machine| {
            let mut up = peers(machine, "up");
            up.sort();
            let mut wanted: Vec<_> = machines.iter().map(|it| it.name.clone()).collect();
            wanted.retain(|name| *name != machine.name);
            wanted.sort();
            up == wanted
        })
    };
    until("all are linked", || all_are_linked([&hall, &roof, &attic]));
    // Nobody has written the two to one another's node.toml, and nobody has to.
    let config = std::fs::read_to_string(attic.state.join("node.toml")).unwrap();
    assert!(!config.contains(&roof.address()), "{config}");
    let status = attic.status();
    let its = status["peers"].as_array().unwrap().iter();
    let its: Vec<_> = its.filter(|peer| peer["name"] == "roof").collect();
    assert_eq!(its.len(), 1, "{status}");
    assert!(its[0]["address"].is_null(), "{status}");
    assert_eq!(attic.succeeds(&["status", "--check"]).trim(), "ok");
    // Without the one that has brought them together, and when one of them comes again.
    hall.kill();
    until("the two are linked", || {
        peers(&attic, "up") == ["roof"] && peers(&roof, "up") == ["attic"]
    });
    roof.kill();
    roof.up();
    until("the two are linked again", || {
        peers(&attic, "up") == ["roof"] && peers(&roof, "up") == ["attic"]
    });
    hall.up();
    until("all are linked again", || {
        all_are_linked([&hall, &roof, &attic])
    });
    // One that is forgotten is not found again by what others say.
    let node = roof.status()["node"].as_str().unwrap().to_owned();
    attic.succeeds(&["forget", &node]);
    until("its link is gone", || {
        !peers(&attic, "up").contains(&"roof".to_owned())
    });
    hall.succeeds(&["status"]);
    until("nothing is tried", || {
        let status = attic.status();
        let mut its = status["peers"].as_array().unwrap().iter();
        !its.any(|peer| peer["node"] == node.as_str())
    });
}

#[test]
fn a_peer_whose_link_is_cut_is_told_of_once() {
    let (mut hall, roof) = linked();
    let address = hall.address();
    let of_hall = |roof: &Machine| {
        let status = roof.status();
        let peers = status["peers"].as_array().unwrap().clone();
        assert_eq!(peers.len(), 1, "{status}");
        assert_eq!(peers[0]["address"], address.as_str());
        peers[0].clone()
    };
    hall.kill();
    until("it is tried again", || {
        let hall = of_hall(&roof);
        hall["state"] != "up" && hall["failure"].is_string() && hall["name"] == "hall"
    });
    until("it is unreachable", || {
        of_hall(&roof)["state"] == "unreachable"
    });
    hall.up();
    until("both are linked again", || {
        of_hall(&roof)["state"] == "up" && are_linked(&hall, &roof)
    });
    assert!(of_hall(&roof)["failure"].is_null());
}

#[test]
fn an_address_that_is_in_use_is_named_with_what_to_do() {
    let mut hall = Machine::new("hall");
    hall.init();
    hall.up();
    let other = Machine::new("other");
    other.init();
    other.configure(&format!("listen = {:?}", hall.address()));
    let error = other.fails(&["up"], 1);
    assert!(
        error.contains(&format!("cannot listen at {}", hall.address())),
        "{error}"
    );
    assert!(error.contains("end what listens there"), "{error}");
    assert!(!error.contains("clock"), "{error}");
}

#[test]
fn a_state_directory_has_one_rule_and_is_not_made_by_who_only_looks() {
    let hall = Machine::new("hall");
    hall.fails(&["status"], 1);
    hall.fails(&["span", "cameras"], 2);
    assert!(!hall.state.exists());
    let mut relative = std::process::Command::new(env!("CARGO_BIN_EXE_portolan-node"));
    let output = relative
        .args(["init", "--name", "hall"])
        .env("PORTOLAN_NODE_STATE", "relative")
        .current_dir(std::env::temp_dir())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(
        error.contains("PORTOLAN_NODE_STATE is no absolute path"),
        "{error}"
    );
    assert!(!std::env::temp_dir().join("relative").exists());
}

#[test]
fn a_stopped_peer_is_unreachable_then_given_up_and_a_continued_one_comes_back() {
    let mut hall = Machine::new("hall");
    hall.init();
    hall.configure("silent_after = \"1500ms\"\ndead_after = \"3s\"");
    hall.up();
    let mut roof = Machine::new("roof");
    roof.join(&hall.invite());
    roof.up();
    until("both are linked", || are_linked(&hall, &roof));
    roof.signal("STOP");
    until("it is unreachable", || {
        peers(&hall, "unreachable") == ["roof"]
    });
    until("it is given up", || {
        hall.status()["peers"].as_array().unwrap().is_empty()
    });
    roof.signal("CONT");
    until("it is linked again", || are_linked(&hall, &roof));
}

#[test]
fn a_node_that_was_forgotten_loses_its_link_and_does_not_come_back() {
    let (mut hall, roof) = linked();
    let node = roof.status()["node"].as_str().unwrap().to_owned();
    hall.succeeds(&["forget", &node]);
    until("its link is gone", || {
        hall.status()["peers"].as_array().unwrap().is_empty()
    });
    until("it hears why", || {
        let failure = roof.status()["peers"][0]["failure"].to_string();
        failure.contains("this node was forgotten there")
    });
    assert_eq!(hall.status()["forgotten"][0], node.as_str());
    assert!(hall.audit().iter().any(|line| line["event"] == "forgotten"));
    // Also by a node that is started again.
    hall.kill();
    hall.up();
    until("it is refused again", || {
        hall.audit()
            .iter()
            .filter(|l| l["event"] == "refused" && l["why"].to_string().contains("forgotten"))
            .count()
            > 1
    });
    assert!(peers(&hall, "up").is_empty());
    hall.fails(&["forget", "roof"], 2);
    let own = hall.status()["node"].as_str().unwrap().to_owned();
    hall.fails(&["forget", &own], 2);
}

#[test]
fn two_nodes_do_not_run_with_one_directory() {
    let mut hall = Machine::new("hall");
    hall.init();
    hall.up();
    let error = hall.fails(&["up"], 2);
    assert!(
        error.contains("another portolan-node runs with it"),
        "{error}"
    );
    assert_eq!(
        hall.status()["incarnation"],
        1,
        "the second one has used no incarnation"
    );
    hall.fails(&["init", "--name", "hall"], 2);
}

#[test]
fn a_copy_of_a_node_is_refused_by_the_node_and_by_its_peers() {
    let (hall, roof) = linked();
    // The same directory as it was before roof was started the first time.
    let mut copy = Machine::new("copy");
    copy.copy_of(
        &roof,
        &["node.key", "node.crt", "authority.crt", "node.toml"],
    );
    copy.name = "roof".to_owned();
    copy.up();
    until("the copy is refused", || {
        hall.audit()
            .iter()
            .any(|l| l["why"].to_string().contains("two nodes have its identity"))
    });
    // One that has the node's own key at the node itself.
    let mut own = Machine::new("own");
    own.copy_of(
        &hall,
        &["node.key", "node.crt", "authority.crt", "node.toml"],
    );
    own.configure(&format!("peers = [{:?}]", hall.address()));
    own.up();
    until("the node refuses its own key", || {
        hall.audit()
            .iter()
            .any(|l| l["why"].to_string().contains("two nodes have one identity"))
    });
    until("the copy says so", || {
        own.status()["peers"][0]["failure"]
            .to_string()
            .contains("a copy of its key")
    });
}

#[test]
fn what_is_wrong_in_the_directory_is_named_and_no_node_starts() {
    let hall = Machine::new("hall");
    let error = hall.fails(&["up"], 2);
    assert!(error.contains("has no node yet"), "{error}");
    hall.init();
    let key = hall.state.join("node.key");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o640)).unwrap();
    let error = hall.fails(&["up"], 2);
    assert!(error.contains("has mode 640"), "{error}");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    let authority = hall.state.join("authority.key");
    std::fs::set_permissions(&authority, std::fs::Permissions::from_mode(0o604)).unwrap();
    let error = hall.fails(&["invite", "--address", "127.0.0.1:1"], 2);
    assert!(error.contains("has mode 604"), "{error}");
    std::fs::set_permissions(&authority, std::fs::Permissions::from_mode(0o600)).unwrap();
    for (file, contents, says) in [
        (
            "node.toml",
            "name = \"hall\"\nlissten = 1\n",
            ":2: there is no key `lissten`",
        ),
        (
            "node.toml",
            "name = \"hall\"\nlisten = \"nowhere\"\n",
            ":2: `listen` is \"nowhere\"",
        ),
        ("incarnation", "many", "it should hold one number"),
        ("node.crt", "no certificate", "is damaged"),
        ("forgotten", "someone\n", "is no node id"),
    ] {
        let path = hall.state.join(file);
        let before = std::fs::read(&path).ok();
        std::fs::write(&path, contents).unwrap();
        let error = hall.fails(&["up"], 2);
        assert!(error.contains(says) && error.contains(file), "{error}");
        match before {
            Some(before) => std::fs::write(&path, before).unwrap(),
            None => std::fs::remove_file(&path).unwrap(),
        }
    }
}

#[test]
fn garbage_at_the_listener_and_at_the_control_socket_harms_nobody() {
    let mut hall = Machine::new("hall");
    hall.init();
    hall.up();
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0xff; 4096],
        b"\x16\x03\x01\x00\x05hello",
    ] {
        let mut stranger = TcpStream::connect(hall.address()).unwrap();
        stranger.write_all(bytes).unwrap();
        let mut rest = Vec::new();
        // The node ends it.
        let _ = stranger.read_to_end(&mut rest);
    }
    let socket = hall.state.join("control.sock");
    for bytes in [
        &b"{}\n"[..],
        b"\xff\xff\n",
        b"{\"ask\":\"nothing\"}\n",
        &[b'x'; 9_000],
    ] {
        let mut client = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        // It may be ended before all is written.
        let _ = client.write_all(bytes);
        let mut rest = Vec::new();
        let _ = client.read_to_end(&mut rest);
        assert!(rest.is_empty());
    }
    // Clients that say nothing do not keep others away.
    let _silent: Vec<_> = (0..8)
        .map(|_| std::os::unix::net::UnixStream::connect(&socket).unwrap())
        .collect();
    let mut roof = Machine::new("roof");
    roof.join(&hall.invite());
    roof.up();
    until("both are linked", || are_linked(&hall, &roof));
    assert!(
        hall.audit()
            .iter()
            .filter(|line| line["event"] == "refused")
            .count()
            >= 3
    );
}

#[test]
fn every_help_has_an_example_and_exit_codes() {
    let machine = Machine::new("help");
    for command in [
        "",
        "init",
        "invite",
        "join",
        "forget",
        "authority",
        "up",
        "reload",
        "leave",
        "status",
    ] {
        let words: Vec<_> = command.split_whitespace().chain(["--help"]).collect();
        let help = machine.succeeds(&words);
        let example = format!("Example:\n  portolan node {command}");
        assert!(help.contains(example.trim_end()), "{help}");
        assert!(help.contains("Exit codes:\n  0  done\n  1  "), "{help}");
    }
    assert!(json("{}").is_object());
}

#[test]
fn systemd_is_told_when_a_node_is_ready() {
    let mut hall = Machine::new("hall");
    hall.init();
    let path = hall.state.join("notify.sock");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    socket
        .set_read_timeout(Some(portolan_testkit::PATIENCE))
        .unwrap();
    hall.up_with(&[("NOTIFY_SOCKET", path.to_str().unwrap())]);
    let mut said = [0; 100];
    let len = socket.recv(&mut said).unwrap();
    assert_eq!(String::from_utf8_lossy(&said[..len]).trim(), "READY=1");
}
