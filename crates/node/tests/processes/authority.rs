//! The cluster's authority, with nodes as processes: forgetting reaches all, keys are exchanged.

use std::os::unix::fs::PermissionsExt as _;

use portolan_testkit::until;

use crate::scene::Machine;
use crate::{are_linked, events, forgets, linked, peers};

fn id(machine: &Machine) -> String {
    machine.status()["node"].as_str().unwrap().to_owned()
}

/// The keys of the authorities that a node believes.
fn believes(machine: &Machine) -> Vec<String> {
    let status = machine.status();
    let all = status["authorities"].as_array().unwrap().iter();
    all.map(|it| it["key"].as_str().unwrap().to_owned())
        .collect()
}

/// The last line of the audit log with this event. What a node was told by a peer it writes down later than it shows it.
fn noted(machine: &Machine, event: &str) -> serde_json::Value {
    let mut last = None;
    until("it is written down", || {
        last = events(machine, event).pop();
        last.is_some()
    });
    last.unwrap()
}

/// Three machines of one cluster; the third one is linked with both others.
fn three() -> (Machine, Machine, Machine) {
    let (hall, roof) = linked();
    let mut cellar = Machine::new("cellar");
    cellar.join(&hall.invite());
    cellar.configure(&format!(
        "peers = [{:?}, {:?}]",
        hall.address(),
        roof.address()
    ));
    cellar.up();
    until("the third is linked with both", || {
        peers(&cellar, "up").len() == 2
    });
    (hall, roof, cellar)
}

#[test]
fn a_node_that_is_forgotten_on_one_node_is_refused_by_all_also_by_those_that_come_later() {
    let (mut hall, mut roof, cellar) = three();
    // One that has joined, and is away.
    let mut attic = Machine::new("attic");
    attic.join(&hall.invite());
    attic.configure(&format!("peers = [{:?}]", roof.address()));
    let forgotten = id(&cellar);
    hall.succeeds(&["forget", &forgotten]);
    until("the second refuses it too", || {
        forgets(&roof, &forgotten) && peers(&roof, "up") == ["hall"]
    });
    assert_eq!(peers(&hall, "up"), ["roof"]);
    until("it has no link", || peers(&cellar, "up").is_empty());
    let line = noted(&roof, "forgotten");
    assert_eq!(line["node"], forgotten.as_str());
    assert_eq!(line["from"], id(&hall).as_str());
    let line = events(&hall, "forgotten").pop().unwrap();
    assert_eq!(line["from"], "a command");
    // Who was away hears it of one that cannot state anything itself.
    hall.kill();
    attic.up();
    until("it hears of it", || forgets(&attic, &forgotten));
    assert_eq!(noted(&attic, "forgotten")["from"], id(&roof).as_str());
    // It holds over an end, and the second node refuses it at its listener.
    roof.kill();
    roof.up();
    assert!(forgets(&roof, &forgotten));
    let refused = |line: &serde_json::Value| line["why"].to_string().contains("was forgotten here");
    until("it is refused there", || {
        events(&roof, "refused").iter().any(refused)
    });
    assert_eq!(events(&roof, "forgotten").len(), 1, "it is noted once");
}

#[test]
fn a_node_without_the_authority_forgets_for_itself_alone() {
    let (hall, roof, cellar) = three();
    let forgotten = id(&cellar);
    let said = roof.says(&["forget", &forgotten]);
    assert!(said.contains("for itself alone"), "{said}");
    until("it has no link with it", || peers(&roof, "up") == ["hall"]);
    assert!(forgets(&roof, &forgotten) && !forgets(&hall, &forgotten));
    assert!(peers(&hall, "up").contains(&"cellar".to_owned()));
}

#[test]
fn the_authority_is_rotated_and_all_nodes_get_new_certificates_without_a_hand() {
    let (hall, mut roof) = linked();
    let mut attic = Machine::new("attic");
    attic.join(&hall.invite());
    let [old] = &believes(&hall)[..] else {
        panic!("one authority at first");
    };
    let certificate = || std::fs::read(roof.state.join("node.crt")).unwrap();
    let before = certificate();
    let said = hall.succeeds(&["authority", "--rotate", "--keep-old", "1h"]);
    assert!(said.contains("back it up again"), "{said}");
    until("the peer believes both", || believes(&roof).len() == 2);
    until("it has a new certificate", || certificate() != before);
    assert!(are_linked(&hall, &roof), "the link has stayed");
    assert_eq!(noted(&roof, "believed")["from"], id(&hall).as_str());
    // One that was away comes with its old certificate, and gets a new one.
    let before = std::fs::read(attic.state.join("node.crt")).unwrap();
    attic.up();
    until("it has a new certificate", || {
        std::fs::read(attic.state.join("node.crt")).unwrap() != before
    });
    // A newcomer joins by the new key, and links with those of before.
    let mut cellar = Machine::new("cellar");
    cellar.join(&hall.invite());
    cellar.up();
    // It finds the others by those that it is linked with.
    until("the newcomer is linked with all", || {
        peers(&cellar, "up").len() == 3
    });
    until("it believes both", || believes(&cellar).len() == 2);
    // Keys are for their owner alone; nothing is left of the exchange.
    let key = hall.state.join("authority.key");
    let mode = std::fs::metadata(&key).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(!hall.state.join("authority.key.next").exists());
    // The node that was linked all the time is started again: its certificate holds.
    roof.kill();
    roof.up();
    until("it is linked again", || {
        peers(&roof, "up").contains(&"hall".to_owned())
    });
    assert!(believes(&roof).contains(old));
}

#[test]
fn the_old_authority_ends_by_itself_and_links_go_on() {
    let (hall, roof) = linked();
    hall.succeeds(&["authority", "--rotate", "--keep-old", "4s"]);
    until("both believe the new one alone", || {
        believes(&hall).len() == 1 && believes(&roof) == believes(&hall)
    });
    until("it is noted", || events(&roof, "retired").len() == 1);
    until("both are linked", || are_linked(&hall, &roof));
    // A node that is not running is rotated too.
    let alone = Machine::new("alone");
    alone.init();
    let first = std::fs::read(alone.state.join("authority.key")).unwrap();
    alone.succeeds(&["authority", "--rotate"]);
    assert_ne!(
        std::fs::read(alone.state.join("authority.key")).unwrap(),
        first
    );
}

#[test]
fn a_revoked_authority_is_refused_at_once_and_linked_nodes_come_over() {
    let (hall, mut roof) = linked();
    let mut attic = Machine::new("attic");
    attic.join(&hall.invite());
    let copy = hall.state.join("copy.pem");
    let copy = copy.to_str().unwrap();
    hall.succeeds(&["authority", "--copy", copy]);
    hall.succeeds(&["authority", "--revoke"]);
    until("both believe the new one alone", || {
        believes(&hall).len() == 1 && believes(&roof) == believes(&hall)
    });
    // Once the peer has its new certificate it is let in by it.
    until("the peer has a new certificate", || {
        roof.log().contains("the certificate was renewed")
    });
    until("both are linked", || are_linked(&hall, &roof));
    roof.kill();
    roof.up();
    until("both are linked again", || are_linked(&hall, &roof));
    // One that was away has a certificate of the old key only.
    attic.up();
    let refused = |line: &serde_json::Value| line["why"].to_string().contains("different clusters");
    until("it is refused", || {
        events(&hall, "refused").iter().any(refused)
    });
    // The old key is of no use here any more.
    let error = roof.fails(&["authority", "--install", copy], 2);
    assert!(error.contains("has a successor"), "{error}");
}

#[test]
fn a_copy_of_the_key_that_others_may_read_is_not_taken() {
    let (hall, roof) = linked();
    let copy = hall.state.join("copy.pem");
    let path = copy.to_str().unwrap();
    hall.succeeds(&["authority", "--copy", path]);
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o644)).unwrap();
    let error = roof.fails(&["authority", "--install", path], 2);
    assert!(error.contains("has mode 644"), "{error}");
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o600)).unwrap();
    roof.succeeds(&["authority", "--install", path]);
    assert_eq!(roof.status()["authority"], true);
}
