//! `portolan bench node` measures what it costs that a port is on another machine: two or three nodes on
//! this one, over loopback, each row beside the same over bare TCP in the same run.
//!
//! ```text
//!  near processor                                    far processor
//!  program -> proxy port -> node  == loopback ==  node -> port -> program
//!  program ---------------------- loopback -------------------- program       the baseline
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `places` | nodes, and which processor a process runs on |
//! | `server` | the process at the far end |
//! | `lanes` | slices in turn, ratios |
//! | `trips` | null requests beside ping-pongs |
//! | `rights` | rights that are given to another node, ports that move, and how long their clients wait |
//! | `streams` | large messages beside the same system calls, and beside rustls |
//! | `fragments` | instructions of a node, by bytes |
//! | `beside` | short messages beside a long one |
//! | `fair` | many nodes that send to one port |
//! | `idle` | daemons that do nothing |
//! | `local` | messages that go to no other machine |
//! | `table` | rows, and how they are printed |
//!
//! Nodes link with TLS only. Without it there are engines of nodes in a program of their own,
//! `portolan-node-bench`, which the daemon's has no way to become.

mod beside;
mod fair;
mod fragments;
mod idle;
mod lanes;
mod local;
mod places;
mod rights;
mod server;
mod streams;
mod table;
mod trips;

use std::time::Duration;

use indicatif::ProgressBar;
use portolan_measure::cpus::{self, Cpus};
use portolan_measure::harness;
use portolan_measure::machine::Machine;

use super::report::LeftOut;
use crate::args::BenchArgs;
use crate::error::{CliError, Result};
use lanes::Effort;
use places::{Linked, Over, Pair, Pinning};
use table::Row;

pub(crate) use places::beside_main;
pub(crate) use server::{Brief, main as peer_main};

const MIB: u64 = 1 << 20;
/// Memory of the domain that sends large messages, and of the one that receives them: of that a
/// quarter may be under way.
const LIMITS: [u64; 2] = [256 * MIB, 512 * MIB];

/// How much is measured.
struct Plan {
    trips: Effort,
    streams: Effort,
    /// Bytes of messages, and of a slice of them.
    sizes: &'static [u64],
    lot: u64,
    /// Bytes of the message by which instructions are counted, and of the one beside which others go.
    counted: u64,
    long: u64,
    /// How many times that one goes.
    longs: usize,
    flows: u8,
    fair: Duration,
    idle: Duration,
    /// Rights that the other node has.
    lent: usize,
}

impl Plan {
    fn new(quick: bool) -> Self {
        let effort = |slices, millis| Effort {
            slices,
            slice: Duration::from_millis(millis),
        };
        if quick {
            return Self {
                trips: effort(5, 40),
                streams: effort(3, 0),
                sizes: &[MIB, 16 * MIB],
                lot: 64 * MIB,
                counted: 4 * MIB,
                long: 128 * MIB,
                longs: 2,
                flows: 10,
                fair: Duration::from_millis(300),
                idle: Duration::from_secs(1),
                lent: 100,
            };
        }
        Self {
            trips: effort(15, 120),
            streams: effort(7, 0),
            sizes: &[MIB, 16 * MIB, 64 * MIB],
            lot: 256 * MIB,
            counted: 64 * MIB,
            long: 1024 * MIB,
            longs: 4,
            flows: 50,
            fair: Duration::from_secs(2),
            idle: Duration::from_secs(5),
            lent: 1000,
        }
    }

    /// Steps of its progress.
    fn steps(&self, pinnings: usize) -> usize {
        let pairs = Over::ALL.len();
        let trips = pinnings * self.trips.slices * (1 + pairs);
        let streams = self.sizes.len() * self.streams.slices * (3 + pairs);
        let rights = (pairs - 1) * self.trips.slices * rights::LANES;
        trips + rights + streams + 4 + 2 * self.longs + 1 + 2
    }
}

/// Which parts there are; what a filter is compared with before they are measured.
const PARTS: [(Part, &str); 7] = [
    (
        Part::Local,
        "local send, null receive, null, found at once receive, one look in vain request, null get, null reply, null answer, null instructions polling one processor nodes, plain tcp",
    ),
    (
        Part::Trips,
        "null request and answer ping-pong of 64 b asleep two processors one processor tcp tls daemons",
    ),
    (
        Part::Rights,
        "rights a send right is given, and used a send right on a third node's port is given, and used a port moves there and back, a message behind it the longest of 8 requests, the port moves behind the first asleep two processors one processor tls daemons",
    ),
    (
        Part::Streams,
        "stream untouched asleep rustls sendmsg instructions fragment tcp tls daemons",
    ),
    (
        Part::Beside,
        "ping-pong beside a bare stream null request beside a message asleep two processors tcp",
    ),
    (Part::Fair, "flows to one port asleep two processors tcp"),
    (Part::Idle, "idle nothing asleep any processor daemons tls"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Local,
    Trips,
    Rights,
    Streams,
    Beside,
    Fair,
    Idle,
}

pub(super) fn run(args: &BenchArgs) -> Result<()> {
    let cpus = Cpus::choose();
    let machine = Machine::look(&cpus);
    let word = args.filter.as_deref().unwrap_or("").to_lowercase();
    let parts = PARTS.iter().filter(|(_, words)| words.contains(&word));
    let parts: Vec<Part> = parts.map(|(part, _)| *part).collect();
    if parts.is_empty() {
        return Err(CliError::NothingMatches { word });
    }
    cpus::pin(cpus.ours)?;
    let one = Pinning {
        near: cpus.ours,
        far: cpus.ours,
    };
    let two = Pinning {
        far: cpus.peer(0),
        ..one
    };
    let pinnings = if cpus.single() {
        vec![one]
    } else {
        vec![two, one]
    };
    let plan = Plan::new(args.quick);
    let progress = harness::progress(plan.steps(pinnings.len()));
    let mut run = Run {
        plan,
        cpus,
        pinnings,
        progress,
        rows: Vec::new(),
        left_out: Vec::new(),
    };
    for part in parts {
        run.part(part)?;
    }
    run.progress.finish_and_clear();
    if run.pinnings.len() == 1 {
        run.left_out("rows on two processors", "there is one processor");
    }
    table::print(&machine, &run.rows, &run.left_out, args.json)
}

/// A run under way.
struct Run {
    plan: Plan,
    cpus: Cpus,
    /// The widest first.
    pinnings: Vec<Pinning>,
    progress: ProgressBar,
    rows: Vec<Row>,
    left_out: Vec<LeftOut>,
}

impl Run {
    fn left_out(&mut self, what: &'static str, why: impl Into<std::borrow::Cow<'static, str>>) {
        let why = why.into();
        self.left_out.push(LeftOut { what, why });
    }

    /// Rows, or why there are none.
    fn take(&mut self, what: &'static str, counted: std::result::Result<Vec<Row>, String>) {
        match counted {
            Ok(rows) => self.rows.extend(rows),
            Err(why) => self.left_out(what, why),
        }
    }

    fn part(&mut self, part: Part) -> Result<()> {
        let (plan, progress) = (&self.plan, &self.progress);
        let widest = self.pinnings[0];
        match part {
            Part::Local => {
                let counted = local::measure(widest, plan.lent, &self.cpus, progress)?;
                self.take("instructions of local messages", counted);
            }
            Part::Trips => {
                let pairs = pairs(&Over::ALL, progress)?;
                let rows = trips::measure(&pairs, &self.pinnings, plan.trips, progress)?;
                self.rows.extend(rows);
            }
            Part::Rights => {
                let trios = linked(&[Over::Tls, Over::Daemons], [LIMITS[0]; 3], progress)?;
                let rows = rights::measure(&trios, widest, plan.trips, progress)?;
                self.rows.extend(rows);
            }
            Part::Streams => {
                let pairs = pairs(&Over::ALL, progress)?;
                let streams = streams::Plan {
                    sizes: plan.sizes,
                    lot: plan.lot,
                    effort: plan.streams,
                };
                let rows = streams::measure(&pairs, widest, streams, progress)?;
                drop(pairs);
                let counted = fragments::measure(widest, plan.counted, progress)?;
                self.rows.extend(rows);
                self.take("instructions of a message's bytes", counted);
            }
            Part::Beside => {
                // It is there, and it comes there.
                let needed = 2 * plan.long + LIMITS[1];
                if portolan_sys::machine::available() / 2 < needed {
                    let why = format!(
                        "there is less than {} to spare",
                        portolan_measure::out::size(needed)
                    );
                    self.left_out("short messages beside a long one", why);
                    return Ok(());
                }
                let rows = beside::measure(widest, plan.long, plan.longs, progress)?;
                self.rows.extend(rows);
            }
            Part::Fair => {
                let rows = fair::measure(widest, plan.flows, plan.fair, progress)?;
                self.rows.extend(rows);
            }
            Part::Idle => {
                let pair = pairs(&[Over::Daemons], progress)?;
                for pair in &pair {
                    let rows = idle::measure(pair, plan.idle, progress)?;
                    self.rows.extend(rows);
                }
            }
        }
        Ok(())
    }
}

fn pairs(of: &[Over], progress: &ProgressBar) -> Result<Vec<Pair>> {
    linked(of, LIMITS, progress)
}

/// Starts linked nodes. Daemons come last in `of`, and are started first: their domains are made by
/// them, at addresses that this process must have free, as it has for those that it makes itself.
fn linked<const N: usize>(
    of: &[Over],
    limits: [u64; N],
    progress: &ProgressBar,
) -> Result<Vec<Linked<N>>> {
    progress.set_message("starting nodes");
    let started = of.iter().rev().map(|over| Linked::start(*over, limits));
    let mut linked: Vec<_> = started.collect::<Result<_>>()?;
    linked.reverse();
    Ok(linked)
}
