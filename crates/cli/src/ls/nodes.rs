//! `portolan ls --nodes`: the cluster as this machine's node sees it, within 80 columns.

use portolan_measure::out::{self, Align, Table};
use serde::Serialize;

use super::tables::{ROWS, cut, with_rest};
use crate::cluster::{Lost, Node, Peer, Rights, Span, Status, called};
use crate::error::Result;
use crate::top::age;

/// What `--json` prints: the names are those of `portolan node status --json`.
#[derive(Serialize)]
struct Report<'a> {
    node: &'a str,
    name: &'a str,
    incarnation: u64,
    listen: &'a str,
    peers: &'a [Peer],
    spans: &'a [Span],
    lost: &'a [Lost],
    left_behind: u64,
    rights: Rights,
}

pub(super) fn run(json: bool) -> Result<()> {
    let status = Node::named(None)?.status()?;
    match json {
        true => Ok(crate::json::print(&Report::new(&status))?),
        false => Ok(out::print(&describe(&status))?),
    }
}

impl<'a> Report<'a> {
    fn new(status: &'a Status) -> Self {
        Self {
            node: &status.node,
            name: &status.name,
            incarnation: status.incarnation,
            listen: &status.listen,
            peers: &status.peers,
            spans: &status.spans,
            lost: &status.lost,
            left_behind: status.left_behind,
            rights: status.rights,
        }
    }
}

fn describe(status: &Status) -> String {
    let up = status.peers.iter().filter(|peer| peer.is_up()).count();
    let mut text = format!(
        "{} sees {} other {}, {up} up\n\n{}",
        cut(&status.name, 40),
        status.peers.len(),
        if status.peers.len() == 1 {
            "node"
        } else {
            "nodes"
        },
        nodes(status),
    );
    for peer in &status.peers {
        if let Some(failure) = &peer.failure {
            text += &format!("  {}: {}\n", cut(peer.called(), 30), cut(failure, 400));
        }
    }
    if status.spans.is_empty() {
        text += "\n  no domain is spanned (portolan node span DOMAIN)\n";
        return text;
    }
    text += &format!("\n{}", domains(&status.spans));
    for span in &status.spans {
        if let Some(failure) = &span.failure {
            text += &format!("  {}: {}\n", cut(&span.domain, 30), cut(failure, 400));
        }
    }
    let parts = [there(&status.spans), here(&status.spans)];
    for part in parts.into_iter().flatten() {
        text += &format!("\n{part}");
    }
    for lost in &status.lost {
        let (messages, name) = (lost.messages, cut(&lost.name, 30));
        text += &format!("\n  {messages} messages to {name} were lost\n");
    }
    text
}

/// A text in the first column.
fn first(text: &str, places: usize) -> String {
    format!("  {}", cut(text, places))
}

fn nodes(status: &Status) -> String {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("  node", Left),
        ("link", Left),
        ("for", Right),
        ("round trip", Right),
        ("address", Left),
    ]);
    let none = || "-".to_owned();
    table.row(vec![
        first(&status.name, 16),
        "this node".to_owned(),
        none(),
        none(),
        cut(&status.listen, 26),
    ]);
    for peer in status.peers.iter().take(ROWS) {
        let address = peer.address.as_ref().or(peer.heard_at.as_ref());
        table.row(vec![
            first(peer.name.as_deref().unwrap_or("-"), 16),
            cut(&peer.state, 11),
            age(peer.for_ms / 1000),
            peer.round_trip_us.map_or_else(none, time),
            address.map_or_else(none, |address| cut(address, 26)),
        ]);
    }
    with_rest(&table, status.peers.len(), "nodes")
}

/// Microseconds in ten places at the most.
fn time(us: u64) -> String {
    match us {
        0..100_000 => format!("{us} us"),
        _ => format!("{} ms", us / 1000),
    }
}

fn domains(spans: &[Span]) -> String {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("  domain", Left),
        ("name here", Left),
        ("is", Left),
        ("asks", Right),
        ("serves", Right),
        ("lets in", Left),
    ]);
    for span in spans.iter().take(ROWS) {
        let nodes = match &span.nodes[..] {
            [all] if all == "*" => "all nodes".to_owned(),
            some => cut(&some.join(", "), 15),
        };
        table.row(vec![
            first(&span.domain, 16),
            cut(&span.local, 16),
            cut(&span.state, 7),
            span.asking.to_string(),
            span.serving.to_string(),
            nodes,
        ]);
    }
    with_rest(&table, spans.len(), "domains")
}

/// Ports of other nodes that programs here have rights on.
fn there(spans: &[Span]) -> Option<String> {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("  port there", Left),
        ("of node", Left),
        ("in domain", Left),
        ("sent", Right),
        ("under way", Right),
        ("wait", Right),
        ("", Left),
    ]);
    let all = || {
        let all = spans.iter();
        all.flat_map(|span| span.proxies.iter().map(move |proxy| (span, proxy)))
    };
    for (span, proxy) in all().take(ROWS) {
        table.row(vec![
            first(called(&proxy.name), 15),
            cut(&proxy.node, 11),
            cut(&span.domain, 11),
            proxy.sent.to_string(),
            proxy.unacknowledged.to_string(),
            proxy.depth.to_string(),
            if proxy.waits { "held up" } else { "" }.to_owned(),
        ]);
    }
    let count = all().count();
    (count > 0).then(|| with_rest(&table, count, "ports of other nodes"))
}

/// Ports here that other nodes have rights on.
fn here(spans: &[Span]) -> Option<String> {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("  port here", Left),
        ("in domain", Left),
        ("came", Right),
        ("wait for room", Left),
    ]);
    let all = || {
        let all = spans.iter();
        all.flat_map(|span| span.lent.iter().map(move |lent| (span, lent)))
    };
    for (span, lent) in all().take(ROWS) {
        table.row(vec![
            first(called(&lent.name), 20),
            cut(&span.domain, 16),
            lent.delivered.to_string(),
            cut(&lent.waiting.join(", "), 22),
        ]);
    }
    let count = all().count();
    (count > 0).then(|| with_rest(&table, count, "ports here"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Lent, Proxy};

    fn crowded() -> Status {
        let long = "n".repeat(60);
        let peer = |state: &str| Peer {
            name: Some(long.clone()),
            address: Some(format!("{long}.example:65535")),
            state: state.to_owned(),
            for_ms: 999 * 86_400_000,
            round_trip_us: Some(12_345_678),
            ..Peer::default()
        };
        let span = Span {
            state: "joining".to_owned(),
            domain: long.clone(),
            local: long.clone(),
            nodes: vec![long.clone(), "roof".to_owned()],
            proxies: vec![Proxy {
                name: long.clone(),
                node: long.clone(),
                sent: 123_456_789,
                depth: 4096,
                unacknowledged: 1_234_567,
                waits: true,
            }],
            lent: vec![Lent {
                name: long.clone(),
                delivered: 123_456_789_012,
                waiting: vec![long.clone()],
            }],
            asking: 1_000_000,
            serving: 1_000_000,
            ..Span::default()
        };
        Status {
            name: long.clone(),
            listen: "[2001:0db8:85a3:0000:0000:8a2e:0370:7334]:65535".to_owned(),
            peers: vec![peer("unreachable"), peer("up")],
            spans: vec![span],
            ..Status::default()
        }
    }

    #[test]
    fn the_longest_names_and_numbers_fit_eighty_columns() {
        let text = describe(&crowded());
        let wide = text.lines().find(|line| line.chars().count() > 80);
        assert_eq!(wide, None, "{text}");
        assert!(text.contains("sees 2 other nodes, 1 up"), "{text}");
        assert!(text.contains("held up"), "{text}");
    }

    #[test]
    fn a_node_alone_says_how_to_go_on_and_names_are_no_orders_to_the_terminal() {
        let status = Status {
            name: "a\u{1b}[31m".to_owned(),
            ..Status::default()
        };
        let text = describe(&status);
        assert!(
            text.starts_with("a?[31m sees 0 other nodes, 0 up\n"),
            "{text}"
        );
        assert!(text.contains("portolan node span"), "{text}");
    }

    #[test]
    fn json_has_the_names_of_node_status() {
        let status = crowded();
        let said = serde_json::to_value(Report::new(&status)).unwrap();
        assert_eq!(said["peers"][1]["state"], "up");
        assert_eq!(said["spans"][0]["proxies"][0]["unacknowledged"], 1_234_567);
    }
}
