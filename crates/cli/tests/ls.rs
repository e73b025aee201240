//! `portolan ls` shows what is in a domain, and leaves it as it was.

mod support;

use portolan::proxy::ProxyPort;
use portolan::{Domain, Extent, Message, PortOptions, ReceiveRight, SendRight, WhenFull};
use portolan_sys::socket::{self, Address};
use serde_json::Value;
use std::time::{Duration, Instant};
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
        let name = portolan_testkit::unique(&format!("ls-{test}"));
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

#[test]
fn a_proxy_port_is_shown_with_the_node_of_its_home() {
    let name = portolan_testkit::unique("ls-proxy");
    let domain = Domain::builder(&name).limit(64 << 20).join().unwrap();
    let port = domain.bind(PortOptions::named("upper")).unwrap();
    let mut proxy = ProxyPort::new(port, "hall").unwrap();
    let seen = || {
        let domains = listed(&name);
        let port = &domains[0]["ports"][0];
        assert_eq!(port["node"], "hall");
        port["unreachable"].as_bool().unwrap()
    };
    assert!(!seen());
    let table = succeeds(&["ls", &name]);
    assert!(
        table.contains("upper -> hall") && !table.contains("unreachable"),
        "{table}"
    );
    proxy.set_unreachable(Instant::now());
    assert!(seen());
    let table = succeeds(&["ls", &name]);
    assert!(table.contains("unreachable"), "{table}");
    assert!(
        table.lines().skip(1).all(|line| line.chars().count() <= 80),
        "{table}"
    );
}

#[test]
fn a_name_that_is_no_text_hides_no_domain() {
    let busy = Busy::start("bytes");
    let mut odd = b"\xff\xfe no text ".to_vec();
    odd.extend(busy.name.bytes());
    let _anybodys = socket::listen(&Address::Abstract(odd), 1).unwrap();
    let user = portolan_sys::process::user();
    let mut like_ours = format!("portolan/{user}/{}", busy.name).into_bytes();
    like_ours.push(0xff);
    let _like_ours = socket::listen(&Address::Abstract(like_ours), 1).unwrap();
    assert_eq!(listed(&busy.name).len(), 1);
    let snapshot = succeeds(&["top", &busy.name, "--json", "--interval", "0.1"]);
    assert!(snapshot.contains("frames"), "{snapshot}");
}

#[test]
fn many_that_do_not_answer_hold_it_up_as_long_as_one() {
    let busy = Busy::start("silent");
    let user = portolan_sys::process::user();
    let silent = |nth: usize| {
        let name = format!("portolan/{user}/{}-silent-{nth}", busy.name);
        socket::listen(&Address::Abstract(name.into_bytes()), 8).unwrap()
    };
    let _silent: Vec<_> = (0..30).map(silent).collect();
    let begun = Instant::now();
    let report: Value = serde_json::from_str(&succeeds(&["ls", "--json"])).unwrap();
    // Asked one after another, each for two seconds, they would take a minute.
    assert!(
        begun.elapsed() < Duration::from_secs(20),
        "{:?}",
        begun.elapsed()
    );
    let domains = report["domains"].as_array().unwrap();
    let (seen, unseen): (Vec<&Value>, Vec<&Value>) = domains
        .iter()
        .filter(|domain| domain["name"].as_str().unwrap().starts_with(&busy.name))
        .partition(|domain| domain["unreachable"].is_null());
    assert_eq!((seen.len(), unseen.len()), (1, 30));
    assert_eq!(seen[0]["ports"][0]["name"], "frames");
}
