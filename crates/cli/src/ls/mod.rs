//! `portolan ls` lists the domains that run on this machine, and shows what is in each.
//!
//! A domain is found by the name of its socket, and looked into without joining it. A
//! domain at a path (`Builder::path`) has no name that could be found, and is not listed.
//!
//! | file | what it does |
//! |---|---|
//! | `found` | finds domains, and asks all of them |
//! | `tables` | one domain for people |
//! | `nodes` | `--nodes`: the cluster, which this machine's node is asked for |

mod found;
mod nodes;
mod tables;

use portolan::{PortKind, PortSurvey, Survey};
use portolan_measure::out;
use serde::Serialize;

use crate::args::LsArgs;
use crate::error::{CliError, Result};
use crate::seen::{self, Bridge, Export, Listener, Memory, Segment};
use found::Asked;
pub(crate) use found::{Found, running};
pub(crate) use tables::harmless;

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
    /// Whether nothing is missing: of a domain with very many entries an observer sees some.
    whole: bool,
    spaces: Vec<Space>,
    ports: Vec<Port>,
    segments: Vec<Segment>,
    listeners: Vec<Listener>,
    exports: Vec<Export>,
    connections: Vec<Bridge>,
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
    calls: u64,
    answers: u64,
    signals: u64,
    delivered: u64,
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
    spanned: bool,
    node: Option<String>,
    unreachable: bool,
    depth: usize,
    slots: usize,
    senders: u32,
    taken: u64,
    voids: u64,
    dropped: u64,
    found_full: u64,
}

pub(crate) fn run(args: &LsArgs) -> Result<()> {
    if args.nodes {
        return nodes::run(args.json);
    }
    let mut domains = running()?;
    if let Some(wanted) = &args.domain {
        domains.retain(|found| found.name == *wanted);
    }
    let seen = found::look_into(domains);
    let entries: Vec<Entry> = seen.into_iter().filter_map(entry).collect();
    if let Some(wanted) = &args.domain
        && entries.is_empty()
    {
        let name = wanted.clone();
        return Err(CliError::NotRunning { name });
    }
    if args.json {
        return Ok(crate::json::print(&Report { domains: entries })?);
    }
    if entries.is_empty() {
        return Ok(out::print("no domain on this machine\n")?);
    }
    let texts: Vec<String> = entries.iter().map(tables::describe).collect();
    Ok(out::print(&texts.join("\n"))?)
}

/// A domain that was asked. None if it has gone since it was found.
fn entry((found, asked): (Found, Asked)) -> Option<Entry> {
    let (unreachable, contents) = match asked {
        Asked::Gone => return None,
        Asked::Unreachable(why) => (Some(why), None),
        Asked::Seen(survey) => (None, Some(Contents::new(&survey))),
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
        Self {
            protection: seen::protection(survey.protection),
            takeovers: survey.takeovers,
            memory: Memory::new(&survey.memory),
            whole: survey.whole,
            spaces: survey
                .spaces
                .iter()
                .map(|space| Space {
                    id: space.id,
                    pid: space.pid,
                    user: space.user,
                    name: space.name.clone(),
                    host: space.id == survey.host,
                    state: seen::space_state(space.state),
                    sent_messages: space.sent,
                    sent_bytes: space.sent_bytes,
                    calls: space.calls,
                    answers: space.answers,
                    signals: space.signals,
                    delivered: space.delivered,
                    owned_extents: space.extents,
                    owned_bytes: space.owned,
                })
                .collect(),
            ports: survey
                .ports
                .iter()
                .filter(|port| port.kind != PortKind::Segment)
                .map(Port::new)
                .collect(),
            segments: survey.segments.iter().map(Segment::new).collect(),
            listeners: survey.listeners.iter().map(Listener::new).collect(),
            exports: survey.exports.iter().map(Export::new).collect(),
            connections: survey.connections.iter().map(Bridge::new).collect(),
        }
    }
}

impl Port {
    fn new(port: &PortSurvey) -> Self {
        Self {
            index: port.index,
            name: port.name.clone(),
            owner: port.owner,
            kind: seen::port_kind(port.kind),
            state: seen::port_state(port.state),
            by_urgency: port.by_urgency,
            copied: port.copied,
            spanned: port.spanned,
            node: port.node.clone(),
            unreachable: port.unreachable,
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
