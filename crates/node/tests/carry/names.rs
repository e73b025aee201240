//! Nodes that programs name, and nobody knows.

use std::time::Duration;

use portolan::{ConnectError, Deadline, Domain};
use portolan_abi::node::NodeId;
use portolan_node::config;
use portolan_node::engine::Engine;
use portolan_proto::node::Settings;
use portolan_testkit::{PATIENCE, unique};

use crate::machine::DOMAIN;

/// What a program hears that asks for a port, while the engine's time stands still.
fn asks(nodes: &[&str], port: &'static str, deadline: Deadline) -> ConnectError {
    let settings = Settings::new(NodeId([1; 16]), 1, [7; 16]);
    let mut engine = Engine::new(settings, "roof").unwrap();
    let local = unique("names");
    let span = config::Span {
        domain: DOMAIN.to_owned(),
        local: local.clone(),
        nodes: nodes.iter().map(|it| (*it).to_owned()).collect(),
        ports: Vec::new(),
    };
    let domain = Domain::builder(&local).join().unwrap();
    let member = Domain::builder(&local).always_open().join().unwrap();
    engine.span(span, member).unwrap();
    let asks = std::thread::spawn(move || domain.connect(port, deadline).err());
    while !asks.is_finished() {
        engine.step(Duration::from_secs(1));
        std::thread::sleep(Duration::from_millis(1));
    }
    asks.join().unwrap().expect("there is no other node")
}

#[test]
fn a_node_whose_members_may_not_come_in_is_none_at_once() {
    let patience = Deadline::after(PATIENCE);
    let said = asks(&["hall", "attic"], "upper@cellar", patience);
    assert!(matches!(said, ConnectError::NoSuchNode { .. }), "{said:?}");
    // One that may, by its name or by an id that is not known, may be there in a moment.
    let id = "0a".repeat(16);
    for nodes in [&["*"][..], &["cellar"], &[&id]] {
        let mut soon = Duration::from_millis(100);
        let said = loop {
            match asks(nodes, "upper@cellar", Deadline::after(soon)) {
                // The question may come when its time is over, on a machine that is busy.
                ConnectError::NoSuchNode { .. } if soon < PATIENCE / 4 => soon *= 4,
                said => break said,
            }
        };
        assert!(matches!(said, ConnectError::NoSuchPort { .. }), "{said:?}");
    }
}
