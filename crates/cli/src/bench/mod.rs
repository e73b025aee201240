//! `portolan bench` measures what messages between processes cost on this machine.
//!
//! | file | holds |
//! |---|---|
//! | `budget` | what rows must reach |
//! | `channel` | which rows `bench channel` has |
//! | `instructions` | `bench instructions`, which counts and has steps of its own |
//! | `node` | `bench node`, which has steps of its own |
//! | `plan` | which rows there are |
//! | `resident` | `bench memory`: idle processes |
//! | `pubsub` | which rows `bench pubsub` has |
//! | `report` | table and JSON |
//! | `rights` | `bench rights`: what must not grow, in steps of its own |
//! | `rpc` | which rows `bench rpc` has |
//! | `signal` | `bench signal`: its rows, and what is left out |
//! | `update` | which rows `bench update` has |
//! | `structures` | `bench structures`, which has steps of its own |
//!
//! The mechanisms, and how they are measured, are in the crate `portolan-measure`.

mod budget;
mod channel;
mod instructions;
pub(crate) mod node;
mod plan;
mod pubsub;
mod report;
mod resident;
mod rights;
mod rpc;
mod signal;
pub(crate) mod structures;
mod update;
mod watched;

use std::time::Duration;

use portolan_measure::cpus::{self, Cpus};
use portolan_measure::harness::{self, Effort};
use portolan_measure::machine::Machine;
use portolan_measure::out;

use self::budget::Budget;
use crate::args::{BenchArgs, BenchKind};
use crate::error::{CliError, Result};

/// A benchmark's rows, with what they must reach.
type Group = harness::Group<Option<Budget>>;
type Entry = harness::Entry<Option<Budget>>;
type Measured = harness::Measured<Option<Budget>>;

pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    match args.kind {
        BenchKind::Structures => return structures::run(args),
        BenchKind::Rights => return rights::run(args),
        BenchKind::Instructions => return instructions::run(args),
        BenchKind::Node => return node::run(args),
        _ => {}
    }
    let cpus = Cpus::choose();
    let machine = Machine::look(&cpus);
    let mut groups = plan::plan(args.kind, args.quick, &cpus);
    if let Some(word) = &args.filter {
        groups = plan::filter(groups, word);
        if groups.is_empty() {
            return Err(CliError::NothingMatches { word: word.clone() });
        }
    }
    drop_unaffordable(&mut groups);
    let allowed = portolan_sys::machine::cpus_allowed();
    cpus::pin(cpus.ours)?;
    let measured = match (args.kind, groups.first()) {
        (BenchKind::Memory, Some(group)) => resident::measure(&group.limit, &group.rows, &cpus)?,
        (BenchKind::Watched, _) => {
            watched::measure(&groups, watched_effort(args), &allowed, &cpus)?
        }
        _ => harness::measure(&groups, effort(args), &cpus)?,
    };
    let left_out = match args.kind {
        BenchKind::Signal => signal::left_out(),
        BenchKind::Rpc => rpc::left_out(&groups, &measured),
        BenchKind::Update => update::left_out(&measured),
        _ => Vec::new(),
    };
    Ok(report::print(&machine, &measured, &left_out, args.json)?)
}

/// Long enough that a slice sees the steady state, short enough that drift of the
/// machine touches a row and its neighbouring limit alike.
fn effort(args: &BenchArgs) -> Effort {
    // A sleeper's round takes longer, and 64 senders must all be at it.
    let scale = match args.kind {
        BenchKind::Latency
        | BenchKind::Signal
        | BenchKind::Channel
        | BenchKind::Throughput
        | BenchKind::Memory
        | BenchKind::Watched
        | BenchKind::Update
        | BenchKind::Structures
        | BenchKind::Rights
        | BenchKind::Instructions
        | BenchKind::Node => 1,
        BenchKind::Wake | BenchKind::Rpc | BenchKind::Pubsub => 2,
        BenchKind::Fanin => 10,
    };
    let (slices, slice, limit_slice) = if args.quick { (5, 5, 1) } else { (10, 30, 5) };
    Effort {
        slices,
        slice: Duration::from_millis(scale * slice),
        limit_slice: Duration::from_millis(scale * limit_slice),
    }
}

/// Long enough for several looks.
fn watched_effort(args: &BenchArgs) -> watched::Effort {
    let (pairs, seconds) = if args.quick { (1, 1) } else { (12, 2) };
    watched::Effort {
        pairs,
        slice: Duration::from_secs(seconds),
    }
}

/// Rows that need more memory than there is are left out, and that is said.
fn drop_unaffordable(groups: &mut [Group]) {
    // The other half is for whatever else runs.
    let available = portolan_sys::machine::available() / 2;
    for group in groups {
        // A group's rows are alive together.
        let mut needed = 0;
        group.rows.retain(|entry| {
            needed += plan::memory(&entry.case);
            let affordable = needed <= available;
            if !affordable {
                let size = out::size(entry.case.bytes);
                tell!(
                    "portolan: left out for lack of memory: {}, {size}",
                    entry.case.name()
                );
            }
            affordable
        });
    }
}
