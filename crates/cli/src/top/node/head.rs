//! Writes the head of a node's screen, and what its words mean.

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::super::cells::short;
use super::super::head::{counted, sum};
use super::super::screen::{Paint, Shown};
use super::table::Tab;
use super::{Snapshot, Spanned};

impl Shown for Snapshot {
    type Tab = Tab;

    const TABLES: &'static str = "links, ports there, ports here, domains, lost";

    const WORDS: &'static [(&'static str, &'static str)] = &[
        ("FOR TRIP", "how long it has been so; there and back"),
        ("FLIGHT", "bytes that are not acknowledged"),
        ("WAY WAIT", "messages: sent, not in the port; still here"),
        ("HELD", "nothing can be sent there now"),
        ("FULL", "nodes that wait for room in the port"),
        ("ASKS SERVES", "requests made here, and for other nodes"),
        (
            "unreachable waiting",
            "silent; not linked, tried again soon",
        ),
    ];

    fn head(&self, paint: Paint) -> Vec<Line<'static>> {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let alarm = |alarming: bool| match alarming {
            true => paint.style(Color::Red),
            false => Style::new(),
        };
        let first = Line::from(vec![
            Span::styled(self.name.clone(), bold.patch(paint.style(Color::Cyan))),
            Span::raw(format!(
                "  {}  {}  {}",
                self.listen,
                counted(self.peers.len(), "other node"),
                counted(self.spans.len(), "domain"),
            )),
        ]);
        let up = self.peers.iter().filter(|link| link.peer.is_up()).count();
        let down = self.peers.len() - up;
        let flight = self.peers.iter().map(|link| link.peer.in_flight_bytes);
        let bytes = |of: fn(&super::Link) -> f64| sum(self.peers.iter().map(of).sum());
        let second = Line::from(vec![
            Span::raw(format!("links: {up} up, ")),
            Span::styled(format!("{down} not"), alarm(down > 0)),
            Span::raw(format!(
                "  {}/s sent, {}/s came, {} in flight",
                bytes(|link| link.sent_bytes_per_second),
                bytes(|link| link.received_bytes_per_second),
                sum(flight.fold(0, u64::saturating_add) as f64),
            )),
        ]);
        let there = || self.spans.iter().flat_map(|span| &span.proxies);
        let here = || self.spans.iter().flat_map(|span| &span.lent);
        let out: f64 = there().map(|it| it.sent_per_second).sum();
        let came: f64 = here().map(|it| it.delivered_per_second).sum();
        // A node can say any numbers.
        let way = there().map(|it| it.proxy.unacknowledged);
        let way = way.fold(0, u64::saturating_add);
        let wait = there().map(|it| it.proxy.depth);
        let wait = wait.fold(0, u64::saturating_add);
        let requests = |of: fn(&Spanned) -> u64| {
            let all = self.spans.iter().map(of);
            short(all.fold(0, u64::saturating_add) as f64)
        };
        let third = Line::from(vec![
            Span::styled(
                format!("{} msg/s out, {} in", short(out), short(came)),
                bold,
            ),
            Span::raw(format!("  {} under way, ", short(way as f64))),
            Span::styled(format!("{} wait", short(wait as f64)), alarm(wait > 0)),
            Span::raw(format!(
                "  {} requests made, {} served",
                requests(|span| span.asking),
                requests(|span| span.serving),
            )),
        ]);
        let lost = self.lost.iter().map(|lost| lost.messages);
        let lost = lost.fold(0, u64::saturating_add);
        let fourth = Line::from(vec![
            Span::raw(format!(
                "rights: {} given, {} come, {} kept  ",
                short(self.rights.given as f64),
                short(self.rights.come as f64),
                short(self.rights.kept as f64),
            )),
            Span::styled(format!("{} lost", short(lost as f64)), alarm(lost > 0)),
            Span::raw(", "),
            Span::styled(
                format!("{} left behind", short(self.left_behind as f64)),
                alarm(self.left_behind > 0),
            ),
        ]);
        vec![first, second, third, fourth]
    }
}
