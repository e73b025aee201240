//! `portolan trace --nodes`: one trace of a spanned domain over the nodes of the cluster.
//!
//! | file | does |
//! |---|---|
//! | `collect` | asks the nodes for their events |
//! | `clocks` | brings their clocks to one |
//! | `merge` | writes the file, with an arrow for each message from node to node |

mod clocks;
mod collect;
mod merge;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use portolan::EventKind;
use portolan_sys::process::random;
use serde::Serialize;

use super::chrome::Chrome;
use super::{default_path, failure, is_standard};
use crate::args::TraceArgs;
use crate::cluster::{Node, Status};
use crate::error::{CliError, Result};
use crate::ls::harmless;
use collect::{Collected, Plan, Source, collect};
use merge::{Merged, merge};

/// What is told at the end.
#[derive(Serialize)]
struct Summary {
    domain: String,
    file: PathBuf,
    seconds: f64,
    /// Why it ended: "time", "signal", "node" (the one beside this command has), or "refused" (by that).
    ended_by: &'static str,
    nodes: Vec<NodeSummary>,
    processes: usize,
    events: u64,
    /// Events by kind.
    kinds: BTreeMap<String, u64>,
    /// Arrows: from node to node, and from member to member of one node.
    arrows_between_nodes: u64,
    arrows_within_nodes: u64,
    /// Messages that were under way for less than the clocks of their nodes may be wrong by, and those of
    /// them that are not drawn because they would arrive before they depart.
    within_error: u64,
    not_drawn: u64,
    /// Messages that arrive before they depart by more than the clocks are said to be wrong by.
    against_order: u64,
    /// Departures and arrivals whose other half was not recorded.
    departures_alone: u64,
    arrivals_alone: u64,
}

#[derive(Serialize)]
struct NodeSummary {
    node: String,
    name: String,
    /// How far its clock is ahead of that of the node beside this command, and by how much that is wrong at
    /// the most.
    clock_offset_ns: Option<i64>,
    clock_error_ns: Option<u64>,
    /// Over which nodes that was measured, if not by the node beside this command.
    via: Vec<String>,
    events: usize,
    /// Events that were lost in the rings of members; because they were not read in time; because there
    /// was no place for more.
    lost_by_members: u64,
    lost_by_node: u64,
    lost_here: u64,
    /// Why there are no events of members.
    without_members: Option<String>,
    /// Why it is left out, or from when on.
    left_out: Option<String>,
}

pub(super) fn run(args: &TraceArgs, told: &AtomicBool) -> Result<()> {
    let mut node = Node::named(None)?;
    let status = node.status()?;
    let domain = which(&status, args.domain.as_deref())?;
    let path = args.output.clone().unwrap_or_else(|| default_path(&domain));
    let failed = |source| failure(&path, source);
    // Opened before anything is recorded, and emptied after: it may be the one that another trace writes.
    let mut file = None;
    if !is_standard(&path) {
        let mut options = File::options();
        let options = options.write(true).create(true).truncate(false);
        file = Some(options.open(&path).map_err(failed)?);
    }
    let session = random().map_err(CliError::system("cannot draw a number"))?;
    let kinds = args.events.iter().map(|name| EventKind::from(*name).name());
    let plan = Plan {
        session: u64::from_le_bytes(session),
        domain,
        kinds: kinds.map(str::to_owned).collect(),
        until: args.seconds.map(Duration::from_secs_f64),
    };
    let collected = collect(&node, &plan, sources(&status), told)?;
    let here = &collected.sources[0];
    if let Some(why) = &here.left_out
        && collected.ended_by == "refused"
        && here.events.is_empty()
    {
        return Err(CliError::Refused {
            what: format!("the node {:?} does not tell what happens: {why}", here.name),
            to_do: "`portolan ls --nodes` shows which domains it spans; end the other trace, if there is one",
        });
    }
    let file: Box<dyn Write> = match file {
        None => Box::new(io::stdout()),
        Some(file) => {
            // What is no file has no length.
            let _ = file.set_len(0);
            Box::new(file)
        }
    };
    let mut out = Chrome::new(BufWriter::new(file), 0).map_err(failed)?;
    let merged = merge(&mut out, &collected.sources, collected.began).map_err(failed)?;
    out.finish().map_err(failed)?;
    let summary = Summary::new(&plan, path.clone(), &collected, merged);
    eprint!("{}", describe(&summary));
    if args.json && is_standard(&path) {
        // Serialising our own plain structs to memory cannot fail.
        let text = serde_json::to_string(&crate::json::Versioned::new(&summary))
            .expect("plain data serialises");
        tell!("{text}");
    } else if args.json {
        crate::json::print(&summary)?;
    }
    Ok(())
}

/// The spanned domain that was named, by its name among nodes or here, or the only one.
fn which(status: &Status, named: Option<&str>) -> Result<String> {
    let is_it =
        |domain: &str, local: &str| named.is_none_or(|name| name == domain || name == local);
    let spans = status.spans.iter();
    let its = spans.filter(|span| is_it(&span.domain, &span.local));
    let its: Vec<&str> = its.map(|span| span.domain.as_str()).collect();
    let to_do = "`portolan ls --nodes` lists the domains that the node spans; `portolan node span DOMAIN` adds one";
    let what = match (&its[..], named) {
        ([only], _) => return Ok((*only).to_owned()),
        ([], Some(name)) => format!("the node {:?} spans no domain {name:?}", status.name),
        ([], None) => format!("the node {:?} spans no domain", status.name),
        (several, _) => {
            let several = several.join(", ");
            format!(
                "the node {:?} spans several domains: {several}",
                status.name
            )
        }
    };
    Err(CliError::Refused { what, to_do })
}

/// The node beside this command, and its peers.
fn sources(status: &Status) -> Vec<Source> {
    let peers = status.peers.iter().filter_map(|peer| {
        let source = Source::peer(peer.node.as_deref()?, peer.called());
        Some(match peer.is_up() {
            true => source,
            false => source.left_out(format!("its link is {}", peer.state)),
        })
    });
    let here = Source::here(&status.node, &status.name);
    std::iter::once(here).chain(peers).collect()
}

impl Summary {
    fn new(plan: &Plan, file: PathBuf, collected: &Collected, merged: Merged) -> Self {
        let nodes = collected.sources.iter().map(|source| {
            let clock = source.places.last();
            NodeSummary {
                node: source.id.clone(),
                name: source.name.clone(),
                clock_offset_ns: clock.map(|clock| clock.ahead),
                clock_error_ns: clock.map(|clock| clock.error),
                via: source.via.clone(),
                events: source.events.len(),
                lost_by_members: source.lost.0,
                lost_by_node: source.lost.1,
                lost_here: source.cut,
                without_members: source.without_members.clone(),
                left_out: source.left_out.clone(),
            }
        });
        Self {
            domain: plan.domain.clone(),
            file,
            seconds: collected.seconds,
            ended_by: collected.ended_by,
            nodes: nodes.collect(),
            processes: merged.processes,
            events: merged.events,
            kinds: merged.kinds,
            arrows_between_nodes: merged.between,
            arrows_within_nodes: merged.within,
            within_error: merged.uncertain,
            not_drawn: merged.undrawn,
            against_order: merged.impossible,
            departures_alone: merged.departed,
            arrivals_alone: merged.arrived,
        }
    }
}

/// The summary for people. Names are those of other machines, which a terminal must not obey.
fn describe(summary: &Summary) -> String {
    let Summary {
        seconds,
        processes,
        events,
        ..
    } = summary;
    let (between, within) = (summary.arrows_between_nodes, summary.arrows_within_nodes);
    let nodes = summary.nodes.iter().filter(|node| node.events > 0).count();
    let mut text = format!(
        "{events} events of {processes} processes beside {nodes} nodes in {seconds:.1} s\n{between} messages from node to node, {within} within nodes\n"
    );
    if summary.ended_by == "node" {
        text += "the node beside this command has ended, or does not answer\n";
    }
    for (at, node) in summary.nodes.iter().enumerate() {
        let name = harmless(&node.name);
        let clock = match (node.clock_offset_ns, node.clock_error_ns) {
            _ if at == 0 => "its clock is that of the file".to_owned(),
            (Some(ahead), Some(error)) => {
                let (ahead, error) = (ahead as f64 / 1000.0, error as f64 / 1000.0);
                format!("clock {ahead:+.1} us, wrong by {error:.1} us at the most")
            }
            _ => "nobody knows its clock: its events are left out".to_owned(),
        };
        text += &format!("  {name}: {} events, {clock}", node.events);
        if !node.via.is_empty() {
            text += &format!(", measured over {}", harmless(&node.via.join(", ")));
        }
        text += "\n";
        if let Some(why) = &node.left_out {
            let when = if node.events > 0 {
                "left out from then on"
            } else {
                "left out"
            };
            text += &format!("    {when}: {}\n", harmless(why));
        }
        if let Some(why) = &node.without_members {
            text += &format!(
                "    only its messages to and from nodes: {}\n",
                harmless(why)
            );
        }
        let lost = node.lost_by_members + node.lost_by_node + node.lost_here;
        if lost > 0 {
            text += &format!(
                "    {lost} events were lost; ask for fewer kinds (--events), or for less time\n"
            );
        }
    }
    if summary.within_error > 0 {
        text += &format!(
            "{} messages were under way for less than the clocks may be wrong by: their order is not certain",
            summary.within_error
        );
        if summary.not_drawn > 0 {
            text += &format!(" ({} would go back, and have no arrow)", summary.not_drawn);
        }
        text += "\n";
    }
    if summary.against_order > 0 {
        text += &format!(
            "{} messages seem to arrive before they depart: a clock was set meanwhile, or a node is wrong about clocks\n",
            summary.against_order
        );
    }
    let alone = summary.departures_alone + summary.arrivals_alone;
    if alone > 0 {
        text += &format!(
            "{alone} departures and arrivals have no other half: it is before or after the trace, lost, or at a node that is left out\n"
        );
    }
    if !is_standard(&summary.file) {
        text += &format!(
            "{} is whole; open it in Perfetto (ui.perfetto.dev)\n",
            summary.file.display()
        );
    }
    text
}
