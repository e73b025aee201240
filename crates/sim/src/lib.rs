//! Nodes in a simulated network: the state machines of `portolan_proto::node`, driven by a virtual
//! clock.
//!
//! ```text
//! chaos:  programs send, receive, ask and answer; records are delayed, connections are cut (both
//!         ways, one way, at any record), nodes stand still for 1 to 60 s, are killed and restarted
//! healed: nothing breaks any more; all that was to be sent is sent
//! quiet:  both ends of all flows agree, and nothing is kept (N13)
//! ```
//!
//! | file | what it does |
//! |---|---|
//! | `world` | nodes and time: what happens next |
//! | `wires` | streams between nodes |
//! | `programs` | what the programs on the nodes do |
//! | `rights` | rights in messages, and what is kept for them |
//! | `moves` | receive rights that move, and what programs send to their ports meanwhile |
//! | `home` | a machine's ports and memory |
//! | `oracle` | what may enter a port, and when requests end |
//! | `check` | the invariants, after each step and in full every 1,000 steps |
//! | `hostile` | a node that says anything |
//! | `liar` | a node that says that it has what others ask for |
//!
//! All choices follow from a [`Plan`]'s seed. A [`Finding`] says which invariant did not hold, after
//! which step, and the command that runs the same plan again.
//!
//! ```
//! use portolan_sim::{Plan, run};
//! let plan = Plan { nodes: 4, ..Plan::new(1) };
//! assert_eq!(run(plan)?.digest, run(plan)?.digest);
//! # Ok::<(), portolan_sim::Finding>(())
//! ```
#![forbid(unsafe_code)]

mod chance;
mod check;
mod home;
mod hostile;
mod liar;
mod moves;
mod oracle;
mod programs;
mod rights;
mod wires;
mod world;

pub use hostile::run_hostile;
pub use liar::run_with_liar;
pub use oracle::Finding;
use portolan_proto::Time;
pub use portolan_proto::node::Fault;
use std::time::Duration;
use world::World;

/// What a run is made of: the same plan gives the same run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// All choices follow from it.
    pub seed: u64,
    /// How many nodes there are.
    pub nodes: usize,
    /// Flows that each node's programs open.
    pub flows: usize,
    /// Nodes that the flows lead to; 0 for any.
    pub homes: u64,
    /// Ports of each node.
    pub ports: u64,
    /// Messages of each flow.
    pub messages: u64,
    /// Messages that a program tries to send at a time.
    pub burst: u64,
    /// Cuts, stalls and restarts in a second, of a thousand nodes.
    pub faults_per_second: u64,
    /// Of a million records that arrive, how many find their connection cut instead.
    pub cuts_per_million: u64,
    /// How long things break.
    pub chaos: Duration,
    /// Nanoseconds that a record is on its way at the most.
    pub delay: u64,
    /// Bytes a second of a wire.
    pub rate: u64,
    /// Bytes in flight on a link at first.
    pub window: u64,
    /// Bytes that may be granted to announced transfers.
    pub budget: u64,
    /// Of a million messages and replies, how many have a right; of those, how many another one.
    pub rights: u64,
    /// Ports may want to know when no sender is left.
    pub senders: bool,
    /// Programs give receive rights instead, so often in a million of their turns, and send to the ports
    /// wherever these are.
    pub moves: u64,
    /// They move among so many nodes, each linked with each; 0 is all.
    pub group: usize,
    /// This node is killed and starts again in this step.
    pub kill: Option<(usize, u64)>,
    /// A rule that all nodes break.
    pub fault: Option<Fault>,
}

impl Plan {
    /// A thousand nodes, a few flows each, and everything that breaks.
    pub const fn new(seed: u64) -> Self {
        Self {
            seed,
            nodes: 1000,
            flows: 2,
            homes: 0,
            ports: 3,
            messages: 12,
            burst: 3,
            faults_per_second: 400,
            cuts_per_million: 500,
            chaos: Duration::from_secs(5),
            delay: 2_000_000,
            rate: 100_000_000,
            window: 1 << 20,
            budget: 2 << 20,
            rights: 150_000,
            senders: true,
            moves: 0,
            group: 0,
            kill: None,
            fault: None,
        }
    }

    /// A command that runs the same again.
    pub fn replay(&self) -> String {
        let usual = Self::new(self.seed);
        let mut line = format!("cargo run -p portolan-sim -- --seed {}", self.seed);
        let mut say = |name, value: u64, usual: u64| {
            if value != usual {
                line += &format!(" --{name} {value}");
            }
        };
        say("nodes", self.nodes as u64, usual.nodes as u64);
        say("flows", self.flows as u64, usual.flows as u64);
        say("homes", self.homes, usual.homes);
        say("ports", self.ports, usual.ports);
        say("messages", self.messages, usual.messages);
        say("burst", self.burst, usual.burst);
        say(
            "faults-per-second",
            self.faults_per_second,
            usual.faults_per_second,
        );
        say(
            "cuts-per-million",
            self.cuts_per_million,
            usual.cuts_per_million,
        );
        say("chaos", self.chaos.as_secs(), usual.chaos.as_secs());
        say("rate", self.rate, usual.rate);
        say("window", self.window, usual.window);
        say("budget", self.budget, usual.budget);
        say("rights", self.rights, usual.rights);
        say("senders", u64::from(self.senders), u64::from(usual.senders));
        say("moves", self.moves, usual.moves);
        say("group", self.group as u64, usual.group as u64);
        if let Some((node, step)) = self.kill {
            line += &format!(" --kill {node} --kill-at {step}");
        }
        if let Some(fault) = self.fault {
            line += &format!(" --fault {fault:?}");
        }
        line
    }

    /// Changes what a word of that command names; `None` if it names nothing.
    pub fn set(&mut self, name: &str, value: &str) -> Option<()> {
        if name == "--fault" {
            let named = |fault: &&Fault| format!("{fault:?}") == value;
            self.fault = Some(*Fault::ALL.iter().find(named)?);
            return Some(());
        }
        let number: u64 = value.parse().ok()?;
        let count = || usize::try_from(number).ok();
        match name {
            "--seed" => self.seed = number,
            "--nodes" => self.nodes = count()?,
            "--flows" => self.flows = count()?,
            "--homes" => self.homes = number,
            "--ports" => self.ports = number,
            "--messages" => self.messages = number,
            "--burst" => self.burst = number,
            "--faults-per-second" => self.faults_per_second = number,
            "--cuts-per-million" => self.cuts_per_million = number,
            "--chaos" => self.chaos = Duration::from_secs(number),
            "--rate" => self.rate = number.max(1),
            "--window" => self.window = number,
            "--budget" => self.budget = number,
            "--rights" => self.rights = number,
            "--moves" => self.moves = number,
            "--group" => self.group = count()?,
            "--senders" => self.senders = number != 0,
            "--kill" => self.kill = Some((count()?, 1)),
            "--kill-at" => self.kill = Some((self.kill?.0, number)),
            _ => return None,
        }
        Some(())
    }
}

/// What happened in a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Steps.
    pub steps: u64,
    /// Of all steps: the same in each run of a plan.
    pub digest: u64,
    /// Virtual time, in milliseconds.
    pub milliseconds: u64,
    /// Records and fragments that arrived.
    pub records: u64,
    /// Bytes that were written.
    pub bytes: u64,
    /// Messages that entered a port.
    pub delivered: u64,
    /// Requests that were answered.
    pub answered: u64,
    /// How requests ended.
    pub ended: Vec<(&'static str, u64)>,
    /// Connections that were opened.
    pub connections: u64,
    /// Connections that were cut.
    pub cuts: u64,
    /// Nodes that were stopped for a while.
    pub stalls: u64,
    /// Nodes that were killed and started again.
    pub restarts: u64,
    /// Associations that began.
    pub associations: u64,
    /// Ends of associations, at each of both nodes.
    pub over: u64,
    /// Those that ended by a violation.
    pub violations: u64,
    /// Rights that were given with messages and replies.
    pub rights_given: u64,
    /// Rights that came.
    pub rights_came: u64,
    /// Ports that were borrowed by a right.
    pub borrowed: u64,
    /// Proxies that were told dead.
    pub rights_dead: u64,
    /// Ports that were closed.
    pub ports_closed: u64,
    /// Ports that wanted to know, and were told that they have no sender.
    pub told_unused: u64,
    /// Records that ask for senders.
    pub senders_asked: u64,
    /// Receive rights that were taken by other nodes.
    pub moved: u64,
    /// Receive rights that came back, or were lost with a node.
    pub not_moved: u64,
    /// Messages and requests that were in a port's queue when it left.
    pub backlog: u64,
    /// Flows that followed a port to another home.
    pub followed: u64,
    /// Requests whose messages followed a port, and were renamed.
    pub renamed: u64,
    /// Messages that waited for a port whose home was given up: they are lost, and their requests are
    /// answered.
    pub not_forwarded: u64,
    /// Proxies that found their port at their own node.
    pub came_home: u64,
    /// Proxies whose homes were given up, and that asked where their ports are.
    pub sought: u64,
    /// Those that were told, and went on there.
    pub found: u64,
}

/// Runs a plan: chaos, then all heals, then all must become quiet.
///
/// # Errors
///
/// The first invariant that does not hold.
pub fn run(plan: Plan) -> Result<Report, Finding> {
    let mut world = World::new(plan);
    let healed = Time::ZERO.after(plan.chaos);
    while let Some(now) = world.step()? {
        if now >= healed {
            break;
        }
    }
    world.heal();
    // Stalled peers were given up after half a minute; queues are emptied meanwhile.
    let mut look = world.now;
    let latest = world.now.after(Duration::from_secs(300));
    while let Some(now) = world.step()? {
        if now < look {
            continue;
        }
        look = now.after(Duration::from_millis(500));
        let Some((invariant, what)) = world.unsettled() else {
            break;
        };
        if now > latest {
            world.oracle.borrow_mut().found(invariant, what);
            world.judge()?;
        }
    }
    world.check_all();
    world.judge()?;
    let mut report = world.report.clone();
    let oracle = world.oracle.borrow();
    report.steps = world.step;
    report.digest = world.digest();
    report.milliseconds = world.now.0 / 1_000_000;
    report.delivered = oracle.delivered;
    report.answered = oracle.answered;
    report.ended = oracle
        .ended
        .iter()
        .map(|(how, count)| (*how, *count))
        .collect();
    report.ended.sort_unstable();
    Ok(report)
}
