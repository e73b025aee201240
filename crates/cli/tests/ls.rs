//! `portolan ls` shows what is in a domain, and leaves it as it was.

mod support;

use portolan::{Domain, Extent, Message, PortOptions, ReceiveRight, SendRight, WhenFull};
use serde_json::Value;
use support::succeeds;

/// A domain of this process: two ports, a message that waits, an extent that we own.
struct Busy {
    name: String,
    _ports: [ReceiveRight; 2],
    _right: SendRight,
    _extent: Extent,
}

impl Busy {
    fn start(test: &str) -> Self {
        let name = format!("ls-{test}-{}", std::process::id());
        let domain = Domain::builder(&name)
            .limit(64 << 20)
            .space_name("busy")
            .join()
            .unwrap();
        let frames = domain.bind(PortOptions::named("frames").queue(7)).unwrap();
        let questions = domain.bind(PortOptions::unnamed().synchronous()).unwrap();
        let right = frames.make_send();
        let mut message = Message::new(b"frame 1").unwrap();
        message.push(domain.allocate(100_000).unwrap()).unwrap();
        right.send(message, WhenFull::Fail).unwrap();
        Self {
            name,
            _ports: [frames, questions],
            _right: right,
            _extent: domain.allocate(4096).unwrap(),
        }
    }
}

fn listed(domain: &str) -> Vec<Value> {
    let report: Value = serde_json::from_str(&succeeds(&["ls", domain, "--json"])).unwrap();
    report["domains"].as_array().unwrap().clone()
}

#[test]
fn a_running_domain_is_shown_with_its_spaces_ports_and_memory() {
    let busy = Busy::start("json");
    // Twice: looking changes nothing.
    for _ in 0..2 {
        let domains = listed(&busy.name);
        let [domain] = &domains[..] else {
            panic!("{domains:?}")
        };
        assert_eq!(domain["name"], *busy.name);
        assert_eq!(domain["protection"], "trusted");
        let memory = &domain["memory"];
        assert_eq!(memory["limit_bytes"], 64 << 20);
        // 100,000 bytes take an extent of 128 KiB.
        assert_eq!(memory["queued_bytes"], 128 << 10);
        assert_eq!(memory["used_bytes"], (128 << 10) + 4096);

        let spaces = domain["spaces"].as_array().unwrap();
        let [space] = &spaces[..] else {
            panic!("{spaces:?}")
        };
        assert_eq!(space["name"], "busy");
        assert_eq!(space["pid"], std::process::id());
        assert_eq!(space["host"], true);
        assert_eq!(space["sent_messages"], 1);
        assert_eq!(space["sent_bytes"], 100_000);
        assert_eq!(
            (&space["owned_extents"], &space["owned_bytes"]),
            (&1.into(), &4096.into())
        );

        let ports = domain["ports"].as_array().unwrap();
        let [frames, questions] = &ports[..] else {
            panic!("{ports:?}")
        };
        assert_eq!(frames["name"], "frames");
        assert_eq!(frames["kind"], "messages");
        assert_eq!((&frames["depth"], &frames["slots"]), (&1.into(), &8.into()));
        assert_eq!(
            (&frames["senders"], &frames["taken"]),
            (&1.into(), &0.into())
        );
        assert_eq!(questions["name"], Value::Null);
        assert_eq!(questions["kind"], "requests");
    }
}

#[test]
fn the_table_says_the_same_within_80_columns() {
    let busy = Busy::start("table");
    let table = succeeds(&["ls", &busy.name]);
    for word in [
        "(user ", "busy", "host", "frames", "messages", "requests", "1/8",
    ] {
        assert!(table.contains(word), "{word} in {table}");
    }
    // The heading has the domain's name, which is as long as it is.
    for line in table.lines().skip(1) {
        assert!(line.chars().count() <= 80, "{line}");
    }
}
