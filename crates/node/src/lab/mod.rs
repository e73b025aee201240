//! `portolan node lab`: nodes on this machine, and a command beside each of them.
//!
//! | file | holds |
//! |---|---|
//! | `place` | a node's place: its state, its address, its daemon, the command beside it |
//! | `network` | network namespaces, joined by a bridge |
//!
//! # Invariants
//!
//! - **L1** When it ends, for whatever reason but a kill, no process, no network namespace and no file
//!   of it is left.
//! - **L2** The command begins when all nodes are linked with one another.

mod addresses;
mod network;
mod place;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use crate::ending::Ending;
use crate::output::tell;
use crate::state::State;
use crate::up::{self, PeerState};
use crate::{NodeError, Result};
use portolan_sys::process::{poll, random};

pub use addresses::free_addresses;
use network::Network;
use place::Place;

/// How long the nodes have to be linked.
const LINKED_WITHIN: Duration = Duration::from_secs(30);
/// How often it looks at its processes.
const LOOK: Duration = Duration::from_millis(20);

/// What to run, and beside how many nodes.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many nodes, to 64.
    pub nodes: u8,
    /// The domain that all of them span.
    pub domain: String,
    /// Whether network namespaces are done without.
    pub names: bool,
    /// As in node.toml.
    pub silent_after: Option<String>,
    /// As in node.toml.
    pub dead_after: Option<String>,
    /// The command, with its arguments.
    pub command: Vec<OsString>,
}

/// Starts the nodes, runs the command beside each, waits for it, and ends them. The program that
/// calls this is `portolan-node`, which it starts for each node.
///
/// # Errors
///
/// [`NodeError::Command`]: it failed beside a node. [`NodeError::Silent`]: the nodes were not linked in
/// time. [`NodeError::System`]: it was told to end, by SIGINT or SIGTERM, or the system refused.
pub fn run(plan: &Plan) -> Result<()> {
    let ending = Ending::catch()?;
    let mut lab = Lab::new(plan)?;
    lab.link(plan, &ending)?;
    let how = if lab.network.is_some() {
        "each in a network namespace"
    } else {
        "side by side"
    };
    tell(&format!("{} nodes are linked, {how}", lab.places.len()));
    for place in &mut lab.places {
        place.begin(plan)?;
    }
    lab.wait(&ending)
}

/// The lab. Dropped, it ends what it has started (L1).
struct Lab {
    directory: PathBuf,
    // Before the namespaces that its processes are in.
    places: Vec<Place>,
    network: Option<Network>,
}

impl Lab {
    fn new(plan: &Plan) -> Result<Self> {
        // Not our process id: a lab that had it before may have been killed, and its nodes live on.
        let number = random().map_err(NodeError::system("cannot draw a number"))?;
        let number = u32::from_le_bytes(number);
        let directory = std::env::temp_dir().join(format!("portolan-lab-{number}"));
        State::at(&directory)?;
        let network = (!plan.names).then(|| Network::new(plan.nodes, number));
        let network = network.flatten();
        let mut lab = Self {
            directory,
            places: Vec::new(),
            network,
        };
        let addresses = match &lab.network {
            Some(network) => (1..=plan.nodes).map(|at| network.address(at)).collect(),
            None => free_addresses(plan.nodes.into())
                .map_err(NodeError::system("cannot find a free port"))?,
        };
        for (at, address) in (1..).zip(addresses) {
            let namespace = lab.network.as_ref().map(|network| network.namespace(at));
            // In a namespace a domain has its own name; side by side each node has its own domain.
            let local = match namespace {
                Some(_) => plan.domain.clone(),
                None => format!("{}.{number}.{at}", plan.domain),
            };
            let state = lab.directory.join(at.to_string());
            lab.places
                .push(Place::new(at, address, local, namespace, &state)?);
        }
        Ok(lab)
    }

    /// Makes the nodes one after another, and waits until each is linked with all others (L2).
    fn link(&mut self, plan: &Plan, ending: &Ending) -> Result<()> {
        for at in 0..self.places.len() {
            let (before, rest) = self.places.split_at_mut(at);
            let Some(place) = rest.first_mut() else {
                return Ok(());
            };
            let peers: Vec<_> = before.iter().map(|place| place.address).collect();
            match before.first() {
                None => place.init()?,
                Some(first) => place.join(&first.invite()?)?,
            }
            place.configure(&peers, plan)?;
            place.up()?;
            let end = Instant::now() + LINKED_WITHIN;
            for place in &mut self.places[..=at] {
                while !is_linked(place, at) {
                    place.check_up()?;
                    if ending.came()? {
                        return Err(interrupted());
                    }
                    if Instant::now() > end {
                        return Err(NodeError::Silent {
                            who: place.name.clone(),
                            seconds: LINKED_WITHIN.as_secs(),
                        });
                    }
                    rest_for(LOOK, ending)?;
                }
            }
        }
        Ok(())
    }

    /// Waits until the command has ended everywhere.
    fn wait(&mut self, ending: &Ending) -> Result<()> {
        let mut outcome = Ok(());
        loop {
            let mut runs = false;
            for place in &mut self.places {
                place.say_if_down();
                let Some(status) = place.command_ended()? else {
                    runs = true;
                    continue;
                };
                if outcome.is_ok() && !status.success() {
                    outcome = Err(failed(&place.name, status));
                }
            }
            if !runs {
                return outcome;
            }
            if ending.came()? {
                return Err(interrupted());
            }
            rest_for(LOOK, ending)?;
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for place in &mut self.places {
            place.end();
        }
        self.network = None;
        // What cannot be removed is in the directory for such things.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Whether a node is linked with so many peers.
fn is_linked(place: &Place, peers: usize) -> bool {
    up::status(&place.state).is_ok_and(|status| {
        let up = status.peers.iter().filter(|p| p.state == PeerState::Up);
        up.count() >= peers
    })
}

fn failed(name: &str, status: ExitStatus) -> NodeError {
    NodeError::Command {
        node: name.to_owned(),
        status: status.to_string(),
    }
}

fn interrupted() -> NodeError {
    NodeError::system("the lab was told to end")(std::io::ErrorKind::Interrupted.into())
}

/// Rests, and no longer than until a signal comes.
fn rest_for(time: Duration, ending: &Ending) -> Result<()> {
    let fds: Vec<_> = ending.descriptors().collect();
    let waited = poll(&fds, Some(Instant::now() + time));
    waited.map_err(NodeError::system("cannot wait"))?;
    Ok(())
}
