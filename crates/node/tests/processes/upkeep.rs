//! What happens to a node over its life: its log's reader goes, its terminal goes, node.toml changes, files
//! are lost or given away.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use portolan_testkit::until;

use crate::scene::Machine;
use crate::{are_linked, linked, peers};

#[test]
fn a_node_goes_on_when_its_log_cannot_be_written() {
    let mut hall = Machine::new("hall");
    hall.init();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full");
    let (reader, no_reader) = std::io::pipe().unwrap();
    drop(reader);
    for log in [full.unwrap().into(), no_reader.into()] {
        hall.up_with_log(log);
        // This is logged.
        hall.succeeds(&["forget", "0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a"]);
        assert_eq!(hall.status()["name"], "hall");
        hall.succeeds(&["leave"]);
        hall.has_ended();
        std::fs::remove_file(hall.state.join("statements")).unwrap();
    }
}

#[test]
fn a_node_whose_terminal_goes_says_farewell() {
    let (mut hall, roof) = linked();
    hall.signal("HUP");
    hall.has_ended();
    until("its peer has heard it", || roof.log().contains("Leaving"));
}

#[test]
fn peers_of_node_toml_are_taken_over_without_a_restart_and_what_is_not_is_named() {
    let (mut hall, mut roof) = (Machine::new("hall"), Machine::new("roof"));
    hall.init();
    hall.up();
    roof.join(&hall.invite());
    let peer = format!("peers = [{:?}]", hall.address());
    roof.configure("peers = []");
    roof.up();
    assert!(roof.status()["peers"].as_array().unwrap().is_empty());
    // What is wrong is said with its line, and nothing changes.
    let text = std::fs::read_to_string(roof.state.join("node.toml")).unwrap();
    roof.configure("peers = 5");
    let error = roof.fails(&["reload"], 2);
    assert!(
        error.contains("node.toml:") && error.contains("`peers` is 5"),
        "{error}"
    );
    std::fs::write(roof.state.join("node.toml"), text).unwrap();
    roof.configure(&peer);
    roof.succeeds(&["reload"]);
    until("both are linked", || are_linked(&hall, &roof));
    let incarnation = roof.status()["incarnation"].clone();
    // A peer that is taken out keeps its link, and is not connected to again.
    roof.configure("peers = []\nsilent_after = \"2s\"\nlog = \"json\"");
    let said = roof.says(&["reload"]);
    assert!(
        said.contains("what has changed of silent_after holds"),
        "{said}"
    );
    assert_eq!(peers(&roof, "up"), ["hall"]);
    hall.kill();
    until(
        "the link is lost, which is logged by the new format",
        || {
            let log = roof.log();
            let mut lines = log.lines();
            lines.any(|it| it.starts_with('{') && it.contains("lost the link"))
        },
    );
    assert_eq!(roof.status()["incarnation"], incarnation);
    let status = roof.status();
    let mut addresses = status["peers"].as_array().unwrap().iter();
    assert!(addresses.all(|it| it["address"].is_null()), "{status}");
}

#[test]
fn no_node_runs_whose_authority_others_may_know_nor_with_the_certificate_of_another() {
    let hall = Machine::new("hall");
    hall.init();
    let key = hall.state.join("authority.key");
    std::fs::set_permissions(&key, Permissions::from_mode(0o640)).unwrap();
    let error = hall.fails(&["up"], 2);
    assert!(error.contains("authority.key has mode 640"), "{error}");
    std::fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    // Root may give files away.
    for (file, command) in [
        ("authority.key", "up"),
        ("node.key", "up"),
        ("authority.key", "invite"),
    ] {
        let path = hall.state.join(file);
        if std::os::unix::fs::chown(&path, Some(4711), None).is_ok() {
            let error = hall.fails(&[command], 2);
            assert!(
                error.contains(&format!("{file} is owned by the user 4711")),
                "{error}"
            );
            std::os::unix::fs::chown(&path, Some(0), None).unwrap();
        }
    }
    let other = Machine::new("other");
    other.init();
    std::fs::copy(other.state.join("node.crt"), hall.state.join("node.crt")).unwrap();
    let error = hall.fails(&["up"], 2);
    assert!(
        error.contains("node.crt is damaged: it is of another key"),
        "{error}"
    );
}

#[test]
fn a_node_that_has_lost_a_file_is_not_made_anew_over_its_keys() {
    let mut hall = Machine::new("hall");
    hall.init();
    hall.up();
    hall.succeeds(&["leave"]);
    hall.has_ended();
    let key = std::fs::read(hall.state.join("authority.key")).unwrap();
    for file in ["node.crt", "node.key", "authority.crt", "node.toml"] {
        let path = hall.state.join(file);
        let before = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let error = hall.fails(&["up"], 2);
        assert!(
            error.contains(&format!("{file} is damaged: it is missing")),
            "{error}"
        );
        hall.fails(&["init", "--name", "hall"], 2);
        assert_eq!(
            std::fs::read(hall.state.join("authority.key")).unwrap(),
            key
        );
        std::fs::write(&path, before).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    }
    hall.up();
}

#[test]
fn what_is_wrong_on_the_command_line_is_not_a_line_of_node_toml() {
    let hall = Machine::new("hall");
    hall.init();
    let error = hall.fails(&["span", "a/b"], 2);
    assert!(error.contains("`domain` is \"a/b\"; it must be"), "{error}");
    assert!(!error.contains("node.toml:"), "{error}");
    hall.succeeds(&["span", "cameras"]);
    let error = hall.fails(&["unspan", "camera"], 2);
    assert!(
        error.contains("\"camera\"; it spans \"cameras\""),
        "{error}"
    );
    let copy = hall.state.join("copy.pem");
    let copy = copy.to_str().unwrap();
    hall.succeeds(&["authority", "--copy", copy]);
    let error = hall.fails(&["authority", "--copy", copy], 2);
    assert!(
        error.contains("name another place, or take away"),
        "{error}"
    );
    // What cannot be written whole is not left in the way.
    let limited = "ulimit -f 0; trap '' XFSZ; \"$0\" authority --copy \"$1\"";
    let mut shell = std::process::Command::new("sh");
    let half = hall.state.join("half.pem");
    let words = ["-c", limited, env!("CARGO_BIN_EXE_portolan-node")];
    let output = shell
        .args(words)
        .arg(&half)
        .env("PORTOLAN_NODE_STATE", &hall.state)
        .output();
    assert!(!output.unwrap().status.success());
    assert!(!half.exists());
}

#[test]
fn a_node_that_is_refused_by_a_peer_asks_ever_less_often() {
    let (hall, mut roof) = linked();
    roof.kill();
    let mut copy = Machine::new("copy");
    let files = [
        "node.key",
        "node.crt",
        "authority.crt",
        "node.toml",
        "incarnation",
    ];
    copy.copy_of(&roof, &files);
    roof.up();
    roof.kill();
    roof.up();
    until("the peer has the newer one", || {
        peers(&hall, "up") == ["roof"]
    });
    copy.up();
    let links = || copy.log().matches("linked with hall").count();
    until("the older one was refused", || {
        copy.log().contains("Incarnation")
    });
    let before = links();
    std::thread::sleep(std::time::Duration::from_secs(3));
    // 0.1, 0.2, 0.4 s and so on.
    let after = links() - before;
    assert!(after < 10, "{after} links within 3 s");
}
