//! `portolan ls`: which domains run on this machine, and what is in each.
//!
//! A domain is found by the name of its socket, and looked into without joining it. A
//! domain at a path (`Builder::path`) has no name that could be found, and is not listed.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use portolan::{
    Domain, JoinError, PortKind, PortState, PortSurvey, Protection, SpaceState, Survey,
};
use portolan_measure::out::{self, Align, Table};
use portolan_measure::{MeasureError, Result};
use serde::Serialize;

use crate::args::LsArgs;

/// How long a domain may take to let us look: its host may be stopped.
const PATIENCE: Duration = Duration::from_secs(2);
/// Ports of one domain that the table lists; JSON has all.
const PORTS: usize = 20;
/// The longest name that a table shows whole.
const NAME: usize = 24;

/// A domain's socket.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Found {
    pub(crate) user: u32,
    pub(crate) name: String,
}

#[derive(Serialize)]
struct Report {
    domains: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    name: String,
    user: u32,
    /// Why the rest is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    unreachable: Option<String>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    contents: Option<Contents>,
}

#[derive(Serialize)]
struct Contents {
    protection: &'static str,
    takeovers: u64,
    memory: Memory,
    spaces: Vec<Space>,
    ports: Vec<Port>,
}

#[derive(Serialize)]
struct Memory {
    limit_bytes: u64,
    taken_bytes: u64,
    used_bytes: u64,
    free_bytes: u64,
    queued_bytes: u64,
}

#[derive(Serialize)]
struct Space {
    id: u8,
    pid: u32,
    user: u32,
    name: String,
    host: bool,
    state: &'static str,
    sent_messages: u64,
    sent_bytes: u64,
    owned_extents: u64,
    owned_bytes: u64,
}

#[derive(Serialize)]
struct Port {
    index: u16,
    name: Option<String>,
    owner: u8,
    kind: &'static str,
    state: &'static str,
    by_urgency: bool,
    copied: bool,
    depth: usize,
    slots: usize,
    senders: u32,
    taken: u64,
    voids: u64,
    dropped: u64,
    found_full: u64,
}

pub(crate) fn run(args: &LsArgs) -> Result<()> {
    let mut domains = running()?;
    if let Some(wanted) = &args.domain {
        domains.retain(|found| found.name == *wanted);
    }
    let entries: Vec<Entry> = domains.into_iter().filter_map(look).collect();
    if args.json {
        return crate::json::print(&Report { domains: entries });
    }
    if entries.is_empty() {
        return out::print(&match &args.domain {
            Some(wanted) => format!("no domain named {wanted:?} on this machine\n"),
            None => "no domain on this machine\n".to_owned(),
        });
    }
    let texts: Vec<String> = entries.iter().map(describe).collect();
    out::print(&texts.join("\n"))
}

/// The domains of this machine.
pub(crate) fn running() -> Result<BTreeSet<Found>> {
    let sockets = std::fs::read_to_string("/proc/net/unix")
        .map_err(MeasureError::system("reading /proc/net/unix"))?;
    Ok(found(&sockets))
}

/// The domains whose sockets are in a listing as `/proc/net/unix`.
fn found(listing: &str) -> BTreeSet<Found> {
    let parse = |line: &str| {
        let (_, name) = line.split_once("@portolan/")?;
        let (user, name) = name.split_once('/')?;
        Some(Found {
            user: user.parse().ok()?,
            name: name.to_owned(),
        })
    };
    listing.lines().filter_map(parse).collect()
}

/// Looks into a domain. None if it has gone since it was found.
fn look(found: Found) -> Option<Entry> {
    let observer = Domain::builder(&found.name)
        .of_user(found.user)
        .deadline(PATIENCE)
        .observe();
    let (unreachable, contents) = match observer {
        Err(JoinError::NotRunning { .. }) => return None,
        Err(error) => (Some(error.to_string()), None),
        Ok(observer) => (None, Some(Contents::new(&observer.survey().ok()?))),
    };
    Some(Entry {
        name: found.name,
        user: found.user,
        unreachable,
        contents,
    })
}

impl Contents {
    fn new(survey: &Survey) -> Self {
        let memory = survey.memory;
        Self {
            protection: match survey.protection {
                Protection::Guarded => "guarded",
                _ => "trusted",
            },
            takeovers: survey.takeovers,
            memory: Memory {
                limit_bytes: memory.limit,
                taken_bytes: memory.taken,
                used_bytes: memory.used,
                free_bytes: memory.free,
                queued_bytes: memory.queued,
            },
            spaces: survey
                .spaces
                .iter()
                .map(|space| Space {
                    id: space.id,
                    pid: space.pid,
                    user: space.user,
                    name: space.name.clone(),
                    host: space.id == survey.host,
                    state: match space.state {
                        SpaceState::Joining => "joining",
                        SpaceState::Live => "live",
                        SpaceState::Disconnected => "disconnected",
                        _ => "dead",
                    },
                    sent_messages: space.sent,
                    sent_bytes: space.sent_bytes,
                    owned_extents: space.extents,
                    owned_bytes: space.owned,
                })
                .collect(),
            ports: survey.ports.iter().map(Port::new).collect(),
        }
    }
}

impl Port {
    fn new(port: &PortSurvey) -> Self {
        Self {
            index: port.index,
            name: port.name.clone(),
            owner: port.owner,
            kind: match port.kind {
                PortKind::Synchronous => "requests",
                PortKind::Replies => "replies",
                PortKind::Segment => "a segment",
                _ => "messages",
            },
            state: match port.state {
                PortState::Binding => "binding",
                PortState::Open => "open",
                PortState::Moving => "moving",
                _ => "closing",
            },
            by_urgency: port.by_urgency,
            copied: port.copied,
            depth: port.depth,
            slots: port.slots,
            senders: port.senders,
            taken: port.taken,
            voids: port.voids,
            dropped: port.dropped,
            found_full: port.full,
        }
    }
}

/// One domain for people.
fn describe(entry: &Entry) -> String {
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
        ..
    } = contents.memory;
    let mut text = format!(
        "{name} (user {user}), {}\n  memory: {} of {} taken, {} in use, {} of that in queues\n\n{}",
        contents.protection,
        out::size(taken_bytes),
        out::size(limit_bytes),
        out::size(used_bytes),
        out::size(queued_bytes),
        spaces(&contents.spaces),
    );
    if !contents.ports.is_empty() {
        text += &format!("\n{}", ports(&contents.ports));
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

fn ports(ports: &[Port]) -> String {
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
    for port in named.chain(unnamed).take(PORTS) {
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
        table.row(vec![
            port.index.to_string(),
            port.name.as_deref().map_or("-".to_owned(), shortened),
            port.owner.to_string(),
            port.kind.to_owned(),
            format!("{}/{}", port.depth, port.slots),
            port.senders.to_string(),
            port.taken.to_string(),
            (port.voids + port.dropped).to_string(),
            notes.join(", "),
        ]);
    }
    let mut text = table.render();
    if ports.len() > PORTS {
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "  and {} more ports (--json lists all)",
            ports.len() - PORTS
        );
    }
    text
}

/// A name that fits its column.
fn shortened(name: &str) -> String {
    let name = harmless(name);
    if name.chars().count() <= NAME {
        return name;
    }
    let kept: String = name.chars().take(NAME - 1).collect();
    kept + "~"
}

/// A name, which another process chose, without what a terminal would obey.
fn harmless(name: &str) -> String {
    name.replace(char::is_control, "?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_are_found_by_their_sockets_once_each() {
        let listing = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000: 00000002 00000000 00010000 0005 01 1 @portolan/1000/demo\n\
            0000: 00000003 00000000 00000000 0005 03 2 @portolan/1000/demo\n\
            0000: 00000002 00000000 00010000 0005 01 3 @portolan/0/two words\n\
            0000: 00000002 00000000 00010000 0001 01 4 /run/other\n";
        let names: Vec<(u32, String)> = found(listing)
            .into_iter()
            .map(|found| (found.user, found.name))
            .collect();
        assert_eq!(names, [(0, "two words".into()), (1000, "demo".into())]);
    }

    #[test]
    fn long_names_are_cut() {
        assert_eq!(shortened("short"), "short");
        assert_eq!(shortened(&"x".repeat(30)).len(), NAME);
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
