//! The torture run of nodes: programs on several nodes send to one another, while programs, nodes
//! and hosts are killed and stopped, and the wires between nodes are cut; an audit of all journals
//! together says whether anything was lost.
//!
//! ```text
//! program -> node ==[ wire ]== node -> program        each node, with its programs, in a domain
//!    \                                   /            of its own, on this machine
//!     '--------> board, ledger <--------'             memory outside all domains
//! ```
//!
//! | file | what it does |
//! |---|---|
//! | `coordinator` | spawns, and counts; `disturb`: kills, stops, cuts; `quiet`: all is healed, and audited; `rounds`: whether flows that wait are served in turn |
//! | `daemon` | one node; `program`: one program, which sends, asks, receives and serves at random, and gives ports and rights on ports away (`roams`) |
//! | `wires` | forwarders between nodes, which can be cut and held |
//! | `ledger` | what was sent and what has come, by the programs' own count |
//! | `content` | what stands in a message, so that a changed byte shows |
//!
//! # What it asks
//!
//! - **T1** A message arrives at most once, at one process, whatever dies.
//! - **T2** Of what one process sends by one right, no message arrives before an earlier one, and none
//!   is missing in between, whatever dies.
//! - **T3** What was sent, but to a port that goes from program to program (`program/roams`), arrives, if neither the receiving process nor either node died, nor one node
//!   gave the other one up; cuts and stops, and the death of its sender, lose nothing. A right dies
//!   for the same reasons only.
//! - **T4** A request runs at most once, and ends, with its answer or an error, when its deadline says.
//! - **T5** What arrives is, byte for byte, what was sent.
//! - **T6** When all is healed and nothing more is sent, nothing is left: no message waits, no extent is
//!   used, no right says that its node is silent. Each domain passes [`crate::audit`].
//! - **T7** Flows that wait for room in a port are served in turn; asked of four nodes and more.

mod content;
mod coordinator;
pub(crate) mod daemon;
mod ledger;
pub(crate) mod program;
mod wires;

pub(crate) use coordinator::run;
pub(crate) use ledger::MAX_NODES;

use super::board::MAX_WORKERS;
use super::random::Random;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// The domain that all nodes span.
const DOMAIN: &str = "torture";
/// Programs of each node, at the least and at the most.
const PROGRAMS: (usize, usize) = (2, 4);

/// How a program begins a line that tells of a finding: one for each kind.
const LOST: &str = "lost: ";
const DISORDER: &str = "twice or out of order: ";
const CORRUPT: &str = "not what was sent: ";
const HUNG: &str = "hung: ";

/// What to do.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) time: Duration,
    pub(crate) seed: u64,
    pub(crate) nodes: usize,
    /// A rule of the protocol that is off, one of [`portolan_node::sabotage::RULES`].
    pub(crate) sabotage: Option<String>,
    /// End with the first finding.
    pub(crate) until_found: bool,
    /// Deaths, stops, cuts, moves and handoffs, each, that there must be.
    pub(crate) least: u64,
}

/// What came of it.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    pub(crate) seed: u64,
    pub(crate) seconds: u64,
    pub(crate) nodes: usize,
    /// All deaths, stops and cuts, and how many there were of each.
    pub(crate) kills: u64,
    pub(crate) kills_by_role: BTreeMap<&'static str, u64>,
    pub(crate) kills_by_mark: BTreeMap<&'static str, u64>,
    pub(crate) stops: u64,
    pub(crate) stops_by_role: BTreeMap<&'static str, u64>,
    pub(crate) cuts: u64,
    pub(crate) cuts_by_way: BTreeMap<&'static str, u64>,
    /// Wires that were held and let go, without a cut.
    pub(crate) holds: u64,
    /// Programs that have ended by themselves, in good order.
    pub(crate) leaves: u64,
    /// Associations that were over, by the reason that a node has logged.
    pub(crate) associations_over: BTreeMap<String, u64>,
    pub(crate) audits: u64,
    /// Rounds in which flows of all other nodes pressed on one port.
    pub(crate) rounds: u64,
    pub(crate) streams: u64,
    /// Messages: sent, received; and bytes in extents of those.
    pub(crate) messages: (u64, u64),
    pub(crate) bytes: u64,
    /// Streams of which all had to arrive, and those that a death or a farewell excuses.
    pub(crate) complete: u64,
    pub(crate) excused: u64,
    /// Requests that ran, and that were answered.
    pub(crate) requests: (u64, u64),
    pub(crate) requests_by_error: BTreeMap<&'static str, u64>,
    /// Ports whose receive rights came from other nodes, and rights on ports that did.
    pub(crate) moves: u64,
    pub(crate) handoffs: u64,
    /// Sends that were handed back because a node was silent.
    pub(crate) unreachable: u64,
    pub(crate) lost: u64,
    pub(crate) twice_or_out_of_order: u64,
    pub(crate) corrupt: u64,
    pub(crate) hung: u64,
    pub(crate) left_over: u64,
    pub(crate) unfair: u64,
    pub(crate) crashes: u64,
    /// There were fewer deaths, stops, cuts, moves or handoffs than were asked for.
    pub(crate) too_few: bool,
    /// The findings in words, the first of them.
    pub(crate) findings: Vec<String>,
    /// Where the logs of the nodes are, if something was found.
    pub(crate) logs: Option<String>,
}

impl Report {
    /// Whether there were as many deaths, stops and cuts as were asked for.
    pub(crate) fn is_enough(&self, plan: &Plan) -> bool {
        plan.least <= self.kills.min(self.stops).min(self.cuts)
    }

    /// Nothing was lost.
    pub(crate) fn is_clean(&self) -> bool {
        let found = [
            self.lost,
            self.twice_or_out_of_order,
            self.corrupt,
            self.hung,
            self.left_over,
            self.unfair,
            self.crashes,
            u64::from(self.too_few),
        ];
        found.iter().all(|n| *n == 0)
    }
}

/// Which places are whose: first the nodes, then the programs of the first one, and so on.
#[derive(Clone, Copy, Debug)]
struct Shape {
    nodes: usize,
    /// Of each node.
    programs: usize,
}

impl Shape {
    /// As many programs as there are places for.
    fn new(nodes: usize) -> Self {
        let (least, most) = PROGRAMS;
        let programs = (MAX_WORKERS / nodes.max(1)).saturating_sub(1);
        Self {
            nodes,
            programs: programs.clamp(least, most),
        }
    }

    fn places(self) -> usize {
        self.nodes * (1 + self.programs)
    }

    fn is_node(self, place: usize) -> bool {
        place < self.nodes
    }

    /// The node of a place.
    fn node_of(self, place: usize) -> usize {
        match place.checked_sub(self.nodes) {
            None => place,
            Some(program) => program / self.programs,
        }
    }

    /// The programs of a node.
    fn programs_of(self, node: usize) -> std::ops::Range<usize> {
        let first = self.nodes + node * self.programs;
        first..first + self.programs
    }

    /// Some program but one.
    fn program(self, random: &mut Random, but: usize) -> usize {
        let count = self.nodes * self.programs - 1;
        let program = self.nodes + random.below(count);
        program + usize::from(program >= but)
    }

    /// Whether a program presses on the target of a round: one of each other node does.
    fn presses(self, program: usize, target: usize) -> bool {
        let node = self.node_of(program);
        node != self.node_of(target) && program == self.programs_of(node).start
    }
}

/// The name of a node.
fn node_name(node: usize) -> String {
    format!("node{node}")
}

/// The names of a program's ports.
fn inbox(program: usize) -> String {
    format!("inbox-{program}")
}

fn service(program: usize) -> String {
    format!("service-{program}")
}

/// The port that is pressed on in rounds, whose queue is as short as can be.
fn narrow(program: usize) -> String {
    format!("narrow-{program}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_is_one_nodes_and_all_fit() {
        for nodes in 2..=MAX_NODES {
            let shape = Shape::new(nodes);
            assert!(shape.places() <= MAX_WORKERS, "{shape:?}");
            let mut all: Vec<usize> = (0..nodes).collect();
            for node in 0..nodes {
                assert_eq!(shape.node_of(node), node);
                let its = shape.programs_of(node);
                assert!(its.clone().all(|place| shape.node_of(place) == node));
                all.extend(its);
            }
            assert!(all.into_iter().eq(0..shape.places()));
            let mut random = Random::new(1);
            let others = (0..200).map(|_| shape.program(&mut random, nodes));
            assert!({ others }.all(|it| it != nodes && !shape.is_node(it) && it < shape.places()));
        }
    }
}
