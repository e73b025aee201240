//! Tests a node's screen as it is drawn at 80x24, and its rates.

use super::super::cells::Tables;
use super::super::screen::{Paint, Screen, Shown};
use super::table::Tab;
use super::*;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

fn peer(name: &str, state: &str, bytes: u64) -> Peer {
    Peer {
        node: Some(format!("{name:0<32}")),
        name: Some(name.to_owned()),
        state: state.to_owned(),
        for_ms: 3_599_000,
        round_trip_us: Some(if state == "up" { 312 } else { 12_345 }),
        sent_bytes: bytes,
        received_bytes: bytes / 2,
        in_flight_bytes: bytes / 8,
        ..Peer::default()
    }
}

fn proxy(name: &str, node: &str, sent: u64, waits: bool) -> Proxy {
    Proxy {
        name: name.to_owned(),
        node: node.to_owned(),
        sent,
        depth: if waits { 4000 } else { 0 },
        unacknowledged: 7,
        waits,
    }
}

/// A node that has sent so many messages.
fn sample(messages: u64) -> Status {
    let lent = |name: &str, waiting: &[&str]| Lent {
        name: name.to_owned(),
        delivered: 3 * messages,
        waiting: waiting.iter().map(|node| (*node).to_owned()).collect(),
    };
    let unknown = Peer {
        address: Some("attic.example:7411".to_owned()),
        state: "waiting".to_owned(),
        for_ms: 90_000_000,
        failure: Some("connection refused".to_owned()),
        ..Peer::default()
    };
    Status {
        node: "1".repeat(32),
        name: "hall".to_owned(),
        incarnation: 2,
        listen: "192.0.2.10:7411".to_owned(),
        peers: vec![
            peer("roof", "up", messages * 1_000_000),
            peer("a-cellar-with-a-long-name", "unreachable", 1_000),
            unknown,
        ],
        spans: vec![
            Span {
                state: "up".to_owned(),
                domain: "cameras".to_owned(),
                local: "cameras.1".to_owned(),
                nodes: vec!["*".to_owned()],
                proxies: vec![
                    proxy("upper", "roof", messages, false),
                    proxy("", "roof", 2 * messages, false),
                    proxy("", "roof", 3 * messages, false),
                    proxy("log", "a-cellar-with-a-long-name", 1, true),
                ],
                lent: vec![
                    lent("frames", &[]),
                    lent("slow", &["roof", "a-cellar-with-a-long-name"]),
                ],
                asking: 3,
                serving: 12,
                ..Span::default()
            },
            Span {
                state: "joining".to_owned(),
                domain: "prices".to_owned(),
                local: "prices".to_owned(),
                nodes: vec!["roof".to_owned(), "attic".to_owned()],
                ..Span::default()
            },
        ],
        left_behind: 1,
        lost: vec![Lost {
            node: "f".repeat(32),
            name: "garage".to_owned(),
            messages: 17,
        }],
        rights: Rights {
            given: 3,
            come: 1,
            ..Rights::default()
        },
    }
}

fn shown() -> Snapshot {
    let (before, now) = (sample(1_000), sample(2_000));
    Snapshot::new(&now, Some((&before, Duration::from_secs(2))))
}

fn drawn(tab: char, snapshot: Snapshot) -> String {
    let mut screen = Screen::new(snapshot, Duration::from_secs(1), true);
    screen.key(KeyEvent::new(KeyCode::Char(tab), KeyModifiers::NONE));
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    terminal.backend().to_string()
}

#[test]
fn links_at_80_by_24() {
    insta::assert_snapshot!(drawn('1', shown()));
}

#[test]
fn ports_there_at_80_by_24() {
    insta::assert_snapshot!(drawn('2', shown()));
}

#[test]
fn ports_here_at_80_by_24() {
    insta::assert_snapshot!(drawn('3', shown()));
}

#[test]
fn domains_at_80_by_24() {
    insta::assert_snapshot!(drawn('4', shown()));
}

#[test]
fn lost_at_80_by_24() {
    insta::assert_snapshot!(drawn('5', shown()));
}

#[test]
fn help_at_80_by_24() {
    insta::assert_snapshot!(drawn('?', shown()));
}

#[test]
fn a_node_that_does_not_answer_is_shown_as_it_was() {
    let mut screen = Screen::new(shown(), Duration::from_secs(1), false);
    screen.late = true;
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    let text = terminal.backend().to_string();
    assert!(
        text.contains("no answer  q quit") && text.contains("roof"),
        "{text}"
    );
}

#[test]
fn every_table_and_line_fits_eighty_columns() {
    for tab in Tab::ALL {
        let widths: u16 = tab.columns().iter().map(|c| c.width + 1).sum();
        assert!(widths <= 80, "{tab:?}: {widths}");
        assert!(tab.columns()[tab.first_sort()].title == tab.first_column());
    }
    for line in shown().head(Paint::none()) {
        let width: usize = line.spans.iter().map(|span| span.content.len()).sum();
        assert!(width <= 80, "{width}: {line:?}");
    }
}

#[test]
fn rates_are_those_of_the_same_link_and_port_and_of_one_run_of_the_node() {
    let now = shown();
    assert_eq!(now.peers[0].sent_bytes_per_second, 500_000_000.0);
    assert_eq!(now.peers[0].received_bytes_per_second, 250_000_000.0);
    let sent = |at: usize| now.spans[0].proxies[at].sent_per_second;
    assert_eq!(
        [sent(0), sent(1), sent(2), sent(3)],
        [500.0, 1_000.0, 1_500.0, 0.0]
    );
    assert_eq!(now.spans[0].lent[0].delivered_per_second, 1_500.0);
    // A connection that was made anew counts from 0.
    let (before, mut after) = (sample(2_000), sample(2_000));
    after.peers[0].sent_bytes = 3_000;
    let now = Snapshot::new(&after, Some((&before, Duration::from_secs(1))));
    assert_eq!(now.peers[0].sent_bytes_per_second, 3_000.0);
    // So does a node that was started again, where nothing is known of the time before.
    after.incarnation += 1;
    let now = Snapshot::new(&after, Some((&before, Duration::from_secs(1))));
    assert_eq!(now.peers[0].sent_bytes_per_second, 0.0);
    let first = Snapshot::new(&before, None);
    assert_eq!(
        (first.seconds, first.peers[0].sent_bytes_per_second),
        (0.0, 0.0)
    );
}
