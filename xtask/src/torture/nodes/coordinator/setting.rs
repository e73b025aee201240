//! Makes the nodes' identities, the wires between them, and the first processes.

use super::super::super::board::Board;
use super::super::super::random::Random;
use super::super::ledger::Ledger;
use super::super::wires::Wire;
use super::super::{DOMAIN, Plan, Report, Shape, node_name};
use super::{Coordinator, Found, Place, disturb};
use crate::marks::MARKS;
use portolan_node::authority::{self, Authority};
use portolan_node::lab::free_addresses;
use portolan_node::state::State;
use portolan_node::up::{self, Ask, PeerState, SpanState, Status};
use portolan_node::{invitations, join};
use portolan_transport::clock::{Clock, SystemClock};
use portolan_transport::{Address, Moment};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// How long nodes have to be linked with one another.
const LINKED_WITHIN: Duration = Duration::from_secs(60);
/// When a peer is unreachable, and when it is given up: soon, so that both happen often.
const SILENT_AFTER: &str = "800ms";
const DEAD_AFTER: &str = "6s";

/// A directory that was not there: a run that found something, or was killed, leaves its own, and
/// another process has its number later.
fn new_directory() -> io::Result<PathBuf> {
    let name = format!("portolan-torture-{}", std::process::id());
    let mut number = 0_u32;
    loop {
        let directory = std::env::temp_dir().join(format!("{name}-{number}"));
        match std::fs::create_dir(&directory) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            made => return made.map(|()| directory),
        }
    }
}

impl Coordinator {
    pub(super) fn new(plan: Plan) -> io::Result<Self> {
        let board = Board::create().map_err(io::Error::other)?;
        let ledger = Ledger::create().map_err(io::Error::other)?;
        let shape = Shape::new(plan.nodes);
        let directory = new_directory()?;
        let began = Instant::now();
        Ok(Self {
            random: Random::new(plan.seed),
            places: (0..shape.places()).map(|_| Place::default()).collect(),
            states: Vec::new(),
            ids: Vec::new(),
            wires: Vec::new(),
            trouble: BTreeMap::new(),
            due: [began; disturb::KINDS],
            deaths: vec![0; MARKS.len()],
            excuses: Vec::new(),
            streams: Vec::new(),
            last_stream: 0,
            pauses: 0,
            seen: BTreeSet::new(),
            lines: channel(),
            journal: File::create(directory.join("events.log"))?,
            report: Report {
                seed: plan.seed,
                nodes: plan.nodes,
                ..Report::default()
            },
            began,
            directory,
            board,
            ledger,
            shape,
            plan,
        })
    }

    /// Makes all nodes, and starts them with their programs; all are linked then.
    pub(super) fn set_up(&mut self) -> io::Result<()> {
        let addresses = free_addresses(self.shape.nodes)?;
        for dials in 0..self.shape.nodes {
            for (listens, address) in addresses.iter().enumerate() {
                if dials != listens {
                    self.wires.push(Wire::new(dials, listens, *address)?);
                }
            }
        }
        for (node, address) in addresses.iter().enumerate() {
            let state = self.directory.join(node_name(node));
            let state = State::at(&state).map_err(io::Error::other)?;
            let first = self.states.first().cloned();
            self.states.push(state.clone());
            let made = match first {
                None => make_first(&state, *address),
                Some(first) => make_next(&first, &state, (node, addresses[0])),
            };
            self.ids.push(made.map_err(io::Error::other)?);
            self.configure(&state, node, *address)?;
            // A program first, half of the times: then that makes the domain.
            let first_program = self.shape.programs_of(node).start;
            let mut both = [node, first_program];
            if self.random.once_in(2) {
                both.reverse();
            }
            for place in both {
                self.spawn(place)?;
            }
            if node == 0 {
                self.wait_until("the first node listens", |status| {
                    status.is_some_and(|status| status.node.len() > 1)
                })?;
            }
        }
        for place in self.shape.nodes..self.places.len() {
            if self.places[place].child.is_none() {
                self.spawn(place)?;
            }
        }
        let peers = self.shape.nodes - 1;
        self.wait_until("all nodes are linked", |status| is_well(status, peers))
    }

    fn configure(&self, state: &State, node: usize, address: SocketAddr) -> io::Result<()> {
        let wires = self.wires.iter().filter(|wire| wire.ends.0 == node);
        let peers: Vec<String> = wires.map(|wire| format!("\"{}\"", wire.address)).collect();
        let (name, local) = (node_name(node), self.domain(node));
        let text = format!(
            "name = {name:?}\nlisten = \"{address}\"\npeers = [{}]\nsilent_after = {SILENT_AFTER:?}\ndead_after = {DEAD_AFTER:?}\n[[span]]\ndomain = {DOMAIN:?}\nlocal = {local:?}\n",
            peers.join(", "),
        );
        state.write("node.toml", &text).map_err(io::Error::other)
    }

    /// What a node says of itself; `None` while it does not answer.
    pub(super) fn status(&self, node: usize) -> Option<Status> {
        let answer = up::ask(self.states.get(node)?, Ask::Status).ok()?;
        serde_json::from_str(&answer).ok()
    }

    /// Waits until all nodes that were made are as they should.
    fn wait_until(&mut self, what: &str, is: impl Fn(Option<&Status>) -> bool) -> io::Result<()> {
        let end = Instant::now() + LINKED_WITHIN;
        loop {
            self.look_around()?;
            let nodes = self.states.len();
            if (0..nodes).all(|node| is(self.status(node).as_ref())) {
                return Ok(());
            }
            if Instant::now() > end {
                self.found(Found::Hung, &format!("it is not so that {what}"));
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Whether a node is linked with so many peers, and spans its domain.
pub(super) fn is_well(status: Option<&Status>, peers: usize) -> bool {
    status.is_some_and(|status| {
        let up = status.peers.iter().filter(|p| p.state == PeerState::Up);
        let spans = &status.spans;
        up.count() == peers && spans.iter().all(|span| span.state == SpanState::Up)
    })
}

fn today() -> Moment {
    Moment {
        seconds: SystemClock::default().of_day().as_secs(),
    }
}

/// The first node, which has the authority; its id.
fn make_first(state: &State, address: SocketAddr) -> portolan_node::Result<String> {
    let name = node_name(0);
    let text = format!("name = {name:?}\nlisten = \"{address}\"\n");
    state.write("node.toml", &text)?;
    let node = authority::make_first(state, &name, today())?;
    Ok(node.to_string())
}

/// A further node, which the first one lets in.
fn make_next(
    first: &State,
    state: &State,
    (node, at): (usize, SocketAddr),
) -> portolan_node::Result<String> {
    let authority = Authority::load(first)?.key()?;
    let token = invitations::invite(first, &at.to_string(), authority, today())?;
    let clock = Arc::new(SystemClock::default());
    let addresses = [Address::Internet(at)];
    let node = join::join(state, &token, &node_name(node), &addresses, clock)?;
    Ok(node.to_string())
}
