//! Prints one domain for people, within 80 columns.

use std::fmt::Write as _;

use portolan_measure::out::{self, Align, Table};

use super::{Contents, Entry, Memory, Space};
use crate::seen::Channel;
use crate::top::{short, short_bytes};

/// Rows of a table; JSON has all.
pub(super) const ROWS: usize = 20;
/// The longest name that a table shows whole.
const NAME: usize = 24;

/// One domain for people.
pub(super) fn describe(entry: &Entry) -> String {
    let Entry { user, .. } = entry;
    let name = harmless(&entry.name);
    let Some(contents) = &entry.contents else {
        let reason = entry.unreachable.as_deref().unwrap_or("unknown");
        return format!("{name} (user {user})\n  cannot look into it: {reason}\n");
    };
    let Memory {
        limit_bytes,
        taken_bytes,
        used_bytes,
        queued_bytes,
        shared_bytes,
        ..
    } = contents.memory;
    let mut text = format!(
        "{name} (user {user}), {}\n  memory: {} of {} taken, {} in use\n  of that {} in queues, {} shared\n",
        contents.protection,
        out::size(taken_bytes),
        out::size(limit_bytes),
        out::size(used_bytes),
        out::size(queued_bytes),
        out::size(shared_bytes),
    );
    if !contents.whole {
        text += "  it has more entries than are looked at: some are missing here\n";
    }
    text += &format!("\n{}", spaces(&contents.spaces));
    let parts = [
        (contents.ports.is_empty(), ports as fn(&Contents) -> String),
        (contents.segments.is_empty(), segments),
        (is_quiet(contents), calls),
        (contents.exports.is_empty(), exports),
        (contents.connections.is_empty(), connections),
    ];
    for (_, part) in parts.iter().filter(|(empty, _)| !empty) {
        text += &format!("\n{}", part(contents));
    }
    text
}

fn spaces(spaces: &[Space]) -> String {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("  space", Right),
        ("process", Right),
        ("name", Left),
        ("sent", Right),
        ("in extents", Right),
        ("owns", Right),
        ("extents", Right),
        ("", Left),
    ]);
    for space in spaces {
        let mut notes = Vec::new();
        if space.host {
            notes.push("host");
        }
        if space.state != "live" {
            notes.push(space.state);
        }
        table.row(vec![
            space.id.to_string(),
            space.pid.to_string(),
            shortened(&space.name),
            space.sent_messages.to_string(),
            out::size(space.sent_bytes),
            out::size(space.owned_bytes),
            space.owned_extents.to_string(),
            notes.join(", "),
        ]);
    }
    table.render()
}

fn ports(contents: &Contents) -> String {
    let ports = &contents.ports;
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("  port", Right),
        ("name", Left),
        ("space", Right),
        ("takes", Left),
        ("queue", Right),
        ("senders", Right),
        ("taken", Right),
        ("lost", Right),
        ("", Left),
    ]);
    // Named ones first: of them people know what they are.
    let named = ports.iter().filter(|port| port.name.is_some());
    let unnamed = ports.iter().filter(|port| port.name.is_none());
    for port in named.chain(unnamed).take(ROWS) {
        let mut notes = Vec::new();
        if port.state != "open" {
            notes.push(port.state);
        }
        if port.by_urgency {
            notes.push("by urgency");
        }
        if port.copied {
            notes.push("copied");
        }
        if port.spanned {
            notes.push("spanned");
        }
        if port.unreachable {
            notes.push("unreachable");
        }
        table.row(vec![
            port.index.to_string(),
            name_of(port),
            port.owner.to_string(),
            port.kind.to_owned(),
            format!("{}/{}", port.depth, port.slots),
            port.senders.to_string(),
            port.taken.to_string(),
            (port.voids + port.dropped).to_string(),
            notes.join(", "),
        ]);
    }
    with_rest(&table, ports.len(), "ports")
}

/// A port's name, and of a proxied one the node that its home is on.
fn name_of(port: &super::Port) -> String {
    let name = port.name.as_deref().unwrap_or("-");
    let Some(node) = &port.node else {
        return shortened(name);
    };
    // Both fit the column together.
    let arrow = " -> ";
    let each = (NAME - arrow.len()) / 2;
    format!("{}{arrow}{}", cut(name, each), cut(node, each))
}

/// A table of the first rows, and how many are missing.
pub(super) fn with_rest(table: &Table, all: usize, what: &str) -> String {
    let mut text = table.render();
    if all > ROWS {
        // Writing to a string does not fail.
        let _ = writeln!(text, "  and {} more {what} (--json lists all)", all - ROWS);
    }
    text
}

fn segments(contents: &Contents) -> String {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("  no.", Right),
        ("shared", Left),
        ("is a", Left),
        ("size", Right),
        ("unit", Right),
        ("writer", Right),
        ("readers", Right),
        ("behind", Right),
    ]);
    let segments = &contents.segments;
    let named = segments.iter().filter(|segment| segment.name.is_some());
    let unnamed = segments.iter().filter(|segment| segment.name.is_none());
    for segment in named.chain(unnamed).take(ROWS) {
        let none = || "-".to_owned();
        let channel = segment.channel.as_ref();
        table.row(vec![
            segment.index.to_string(),
            segment.name.as_deref().map_or_else(none, |n| cut(n, 13)),
            segment.kind.to_owned(),
            short_bytes(segment.bytes as f64),
            channel.map_or_else(none, |c| short_bytes(c.unit_bytes as f64)),
            channel.map_or_else(none, Channel::writers),
            channel.map_or_else(none, |c| c.readers.len().to_string()),
            channel.map_or_else(none, |_| short(segment.behind() as f64)),
        ]);
    }
    with_rest(&table, segments.len(), "segments")
}

/// Whether no space calls or signals.
fn is_quiet(contents: &Contents) -> bool {
    let quiet = |space: &Space| {
        [space.calls, space.answers, space.signals, space.delivered]
            .iter()
            .all(|count| *count == 0)
    };
    contents.listeners.is_empty() && contents.spaces.iter().all(quiet)
}

fn calls(contents: &Contents) -> String {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("  space", Right),
        ("name", Left),
        ("calls", Right),
        ("answers", Right),
        ("signals", Right),
        ("handled", Right),
        ("handlers", Right),
        ("wait", Right),
    ]);
    for space in contents.spaces.iter().take(ROWS) {
        let listeners = || contents.listeners.iter().filter(|l| l.space == space.id);
        let handlers: u32 = listeners().map(|l| l.handlers).sum();
        let waiting: usize = listeners().map(|l| l.waiting).sum();
        table.row(vec![
            space.id.to_string(),
            cut(&space.name, 16),
            short(space.calls as f64),
            short(space.answers as f64),
            short(space.signals as f64),
            short(space.delivered as f64),
            handlers.to_string(),
            waiting.to_string(),
        ]);
    }
    with_rest(&table, contents.spaces.len(), "spaces")
}

fn exports(contents: &Contents) -> String {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("  exporter", Left),
        ("export", Left),
        ("size", Right),
        ("importers", Right),
        ("may", Left),
        ("notes", Right),
        ("", Left),
    ]);
    for export in contents.exports.iter().take(ROWS) {
        let notes = if export.kernel_mediated { "kernel" } else { "" };
        table.row(vec![
            // The space's process stands in the table of spaces.
            format!("{:>3} {}", export.space, cut(&export.exporter, 9)),
            cut(&export.name, 14),
            out::size(export.bytes),
            export.importers.to_string(),
            export.permits.to_owned(),
            short(export.notifications as f64),
            notes.to_owned(),
        ]);
    }
    with_rest(&table, contents.exports.len(), "exports")
}

fn connections(contents: &Contents) -> String {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("  space", Right),
        ("", Left),
        ("offer", Left),
        ("with", Left),
        ("out", Right),
        ("", Right),
        ("in", Right),
        ("", Right),
    ]);
    for bridge in contents.connections.iter().take(ROWS) {
        table.row(vec![
            bridge.space.to_string(),
            bridge.kind.to_owned(),
            cut(&bridge.offer, 12),
            cut(&bridge.with(), 13),
            short(bridge.out_messages as f64),
            short_bytes(bridge.out_bytes as f64),
            short(bridge.in_messages as f64),
            short_bytes(bridge.in_bytes as f64),
        ]);
    }
    with_rest(
        &table,
        contents.connections.len(),
        "connections with other domains",
    )
}

/// A name that fits its column.
fn shortened(name: &str) -> String {
    cut(name, NAME)
}

/// A name in so many places at the most.
pub(super) fn cut(name: &str, places: usize) -> String {
    let name = harmless(name);
    if name.chars().count() <= places {
        return name;
    }
    let kept: String = name.chars().take(places - 1).collect();
    kept + "~"
}

/// A name, which another process chose, without what a terminal would obey.
pub(crate) fn harmless(name: &str) -> String {
    name.replace(char::is_control, "?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut() {
        assert_eq!(shortened("short"), "short");
        assert_eq!(shortened(&"x".repeat(30)).len(), NAME);
    }

    #[test]
    fn a_proxied_port_is_shown_with_its_node() {
        let port = |name: Option<&str>, node: Option<&str>| super::super::Port {
            index: 1,
            name: name.map(str::to_owned),
            owner: 1,
            kind: "messages",
            state: "open",
            by_urgency: false,
            copied: false,
            spanned: false,
            node: node.map(str::to_owned),
            unreachable: false,
            depth: 0,
            slots: 8,
            senders: 0,
            taken: 0,
            voids: 0,
            dropped: 0,
            found_full: 0,
        };
        assert_eq!(name_of(&port(Some("upper"), Some("hall"))), "upper -> hall");
        assert_eq!(name_of(&port(None, Some("hall"))), "- -> hall");
        assert_eq!(name_of(&port(Some("upper"), None)), "upper");
        let long = "x".repeat(30);
        assert_eq!(name_of(&port(Some(&long), Some(&long))).len(), NAME);
        let orders = name_of(&port(None, Some("a\u{1b}[31m")));
        assert_eq!(orders, "- -> a?[31m");
    }

    #[test]
    fn names_do_not_reach_the_terminal_as_orders() {
        assert_eq!(shortened("a\u{1b}[31m\nb"), "a?[31m?b");
        let entry = Entry {
            name: "a\u{1b}c".to_owned(),
            user: 0,
            unreachable: None,
            contents: None,
        };
        assert!(describe(&entry).starts_with("a?c (user 0)"));
    }
}
