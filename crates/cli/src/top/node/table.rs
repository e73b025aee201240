//! Makes a node's tables: their columns, and the cells of a snapshot.

use super::super::cells::{
    Cell, Column, Tables, age, bytes, cell, count, lost, name, number, rate, text,
};
use super::{Link, Snapshot, Spanned};
use crate::cluster::{Lost, called};

/// Which table is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tab {
    Links,
    There,
    Here,
    Domains,
    Lost,
}

impl Tables<Snapshot> for Tab {
    const ALL: &'static [Self] = &[
        Self::Links,
        Self::There,
        Self::Here,
        Self::Domains,
        Self::Lost,
    ];

    fn title(self) -> &'static str {
        match self {
            Self::Links => "Links",
            Self::There => "Ports there",
            Self::Here => "Ports here",
            Self::Domains => "Domains",
            Self::Lost => "Lost",
        }
    }

    fn columns(self) -> &'static [Column] {
        match self {
            Self::Links => LINKS,
            Self::There => THERE,
            Self::Here => HERE,
            Self::Domains => DOMAINS,
            Self::Lost => LOST,
        }
    }

    fn first_column(self) -> &'static str {
        match self {
            Self::Links => "SENT/s",
            Self::There | Self::Domains => "MSG OUT/s",
            Self::Here => "MSG IN/s",
            Self::Lost => "MESSAGES",
        }
    }

    fn rows(self, now: &Snapshot) -> Vec<Vec<Cell>> {
        let spans = now.spans.iter();
        match self {
            Self::Links => now.peers.iter().map(|peer| link(peer, now)).collect(),
            Self::There => spans.flat_map(there).collect(),
            Self::Here => spans.flat_map(here).collect(),
            Self::Domains => spans.map(domain).collect(),
            Self::Lost => now.lost.iter().map(with).collect(),
        }
    }
}

// With a blank after each column, a table is 80 wide at the most.
const LINKS: &[Column] = &[
    text("NAME", 12),
    text("LINK", 11),
    number("FOR", 6),
    number("TRIP", 7),
    number("SENT/s", 8),
    number("CAME/s", 8),
    number("FLIGHT", 8),
    number("WAY", 5),
    number("WAIT", 5),
];
const THERE: &[Column] = &[
    text("NAME", 16),
    text("NODE", 12),
    text("DOMAIN", 10),
    number("MSG OUT/s", 9),
    number("SENT", 6),
    number("WAY", 5),
    number("WAIT", 5),
    text("HELD", 4),
];
const HERE: &[Column] = &[
    text("NAME", 18),
    text("DOMAIN", 14),
    number("MSG IN/s", 8),
    number("CAME", 6),
    number("FULL", 4),
    text("WAITS FOR ROOM", 20),
];
const DOMAINS: &[Column] = &[
    text("NAME", 12),
    text("HERE", 12),
    text("IS", 7),
    text("LETS IN", 10),
    number("MSG OUT/s", 9),
    number("MSG IN/s", 8),
    number("ASKS", 5),
    number("SERVES", 6),
];
const LOST: &[Column] = &[text("NAME", 20), text("NODE", 32), number("MESSAGES", 8)];

fn alarming(cell: Cell, alarm: bool) -> Cell {
    Cell { alarm, ..cell }
}

fn link(link: &Link, now: &Snapshot) -> Vec<Cell> {
    let peer = &link.peer;
    // What is under way to it, and what waits to be.
    let its = now.spans.iter().flat_map(|span| &span.proxies);
    let its = its.filter(|there| Some(&there.proxy.node) == peer.name.as_ref());
    let way = its.clone().map(|there| there.proxy.unacknowledged);
    let wait = its.map(|there| there.proxy.depth);
    let trip = match peer.round_trip_us {
        None => cell("-".to_owned(), -1.0),
        Some(us @ 0..10_000) => cell(format!("{us} us"), us as f64),
        Some(us) => cell(format!("{} ms", us / 1000), us as f64),
    };
    vec![
        name(peer.called()),
        alarming(name(&peer.state), !peer.is_up()),
        cell(age(peer.for_ms / 1000), peer.for_ms as f64),
        trip,
        bytes(link.sent_bytes_per_second),
        bytes(link.received_bytes_per_second),
        bytes(peer.in_flight_bytes as f64),
        count(way.fold(0, u64::saturating_add)),
        lost(wait.fold(0, u64::saturating_add)),
    ]
}

fn there(span: &Spanned) -> impl Iterator<Item = Vec<Cell>> + '_ {
    span.proxies.iter().map(|there| {
        let proxy = &there.proxy;
        let held = if proxy.waits { "held" } else { "-" };
        vec![
            name(called(&proxy.name)),
            name(&proxy.node),
            name(&span.domain),
            rate(there.sent_per_second),
            count(proxy.sent),
            count(proxy.unacknowledged),
            lost(proxy.depth),
            alarming(name(held), proxy.waits),
        ]
    })
}

fn here(span: &Spanned) -> impl Iterator<Item = Vec<Cell>> + '_ {
    span.lent.iter().map(|here| {
        let lent = &here.lent;
        let waiting = match &lent.waiting[..] {
            [] => "-".to_owned(),
            nodes => nodes.join(", "),
        };
        vec![
            name(called(&lent.name)),
            name(&span.domain),
            rate(here.delivered_per_second),
            count(lent.delivered),
            self::lost(lent.waiting.len() as u64),
            name(&waiting),
        ]
    })
}

fn domain(span: &Spanned) -> Vec<Cell> {
    let nodes = match &span.nodes[..] {
        [all] if all == "*" => "all".to_owned(),
        some => some.join(", "),
    };
    vec![
        name(&span.domain),
        name(&span.local),
        alarming(name(&span.state), span.state != "up"),
        name(&nodes),
        rate(span.proxies.iter().map(|it| it.sent_per_second).sum()),
        rate(span.lent.iter().map(|it| it.delivered_per_second).sum()),
        count(span.asking),
        count(span.serving),
    ]
}

fn with(lost: &Lost) -> Vec<Cell> {
    vec![
        name(&lost.name),
        name(&lost.node),
        self::lost(lost.messages),
    ]
}
