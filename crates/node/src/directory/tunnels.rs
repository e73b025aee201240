//! The connections of a Zenoh session: each goes through a TLS connection of the cluster.
//!
//! ```text
//!  Zenoh here                     this thread                          that node
//!   connects to zenoh-0.sock  ->  slot 0 == TLS, "portolan-directory" ==> its listener
//!   listens at zenoh.sock     <-  it connects there  <== TLS ============ a slot of that node
//! ```
//!
//! Zenoh's own TLS knows a file of keys and one of authorities. These connections know what links
//! know: the authority that has followed another, the certificate that was renewed, the nodes that
//! are refused. They come to the node's own listener, so there is no second port; and they show keys,
//! so between two nodes there is one.
//!
//! # Invariants
//!
//! - **Z1** With each node there is at most one connection. Of two that cross, both nodes keep that
//!   which the smaller id has made.
//! - **Z2** Each has two buffers of a fixed size; a side that does not take its bytes is not read for.
//! - **Z3** Who was tried in vain is not tried again for a while, which doubles.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use portolan_sys::process::{EventFd, random};
use portolan_sys::stream::{Destination, Interest, Readiness, Source};
use portolan_transport::clock::Clock;
use portolan_transport::tls::{Cluster, LinkOptions, links};
use portolan_transport::{Class, Connection, NodeId, Progress, State, StreamId, Tcp};

use super::Way;
use crate::up::dial::{Dial, Phase};

/// Connections that are made here, at most. Others make some with this node.
pub(super) const SLOTS: usize = 4;
/// Connections in all, at most.
const MOST: usize = 256;
/// Bytes of a buffer (Z2).
const BUFFER: usize = 16 * 1024;
/// How often bytes are moved in one turn.
const ROUNDS: usize = 8;
/// How long Zenoh's connection is kept for somebody to connect it with: less than Zenoh's patience.
const KEPT: Duration = Duration::from_secs(8);
/// How long one is tried in all.
const TRIED: Duration = Duration::from_secs(15);
/// The pauses of Z3, and of a connection that is too short to count.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(60));
const SHORT: Duration = Duration::from_secs(10);
/// Ways that are remembered as tried in vain, at most.
const MOST_AVOIDED: usize = 1024;

/// Bytes on their way.
#[derive(Debug)]
struct Buffer {
    bytes: Box<[u8]>,
    from: usize,
    to: usize,
    has_ended: bool,
}

impl Buffer {
    fn new() -> Self {
        Self {
            bytes: vec![0; BUFFER].into(),
            from: 0,
            to: 0,
            has_ended: false,
        }
    }

    fn is_empty(&self) -> bool {
        self.from == self.to
    }

    /// Where more bytes go; nowhere while some are there.
    fn room(&mut self) -> Option<&mut [u8]> {
        (self.is_empty() && !self.has_ended).then(|| {
            (self.from, self.to) = (0, 0);
            &mut self.bytes[..]
        })
    }

    fn waiting(&self) -> &[u8] {
        &self.bytes[self.from..self.to]
    }
}

/// A connection with another node's directory.
#[derive(Debug)]
struct Tunnel {
    node: NodeId,
    /// The slot whose connection it is; `None` of one that the other node has made.
    slot: Option<usize>,
    /// The way, as far as it is known, for Z3.
    way: Option<String>,
    since: Duration,
    socket: UnixStream,
    ready: Readiness,
    connection: Box<dyn Connection>,
    stream: StreamId,
    out: Buffer,
    back: Buffer,
    /// The last turn has ended before all was moved that could be.
    goes_on: bool,
}

impl Tunnel {
    fn new(
        node: NodeId,
        socket: UnixStream,
        mut connection: Box<dyn Connection>,
        now: Duration,
    ) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let stream = connection.open(Class::Records);
        let stream = stream.map_err(|error| io::Error::other(error.to_string()))?;
        Ok(Self {
            node,
            slot: None,
            way: None,
            since: now,
            socket,
            ready: Readiness::new()?,
            connection,
            stream,
            out: Buffer::new(),
            back: Buffer::new(),
            goes_on: false,
        })
    }

    /// Moves what can be moved. Whether it is over.
    fn step(&mut self) -> bool {
        if matches!(self.connection.progress(), State::Over | State::Failed) {
            return true;
        }
        self.goes_on = true;
        for _ in 0..ROUNDS {
            match self.turn() {
                Ok(true) => {}
                Ok(false) => {
                    self.goes_on = false;
                    break;
                }
                Err(_) => return true,
            }
        }
        let has_ended = |buffer: &Buffer| buffer.has_ended && buffer.is_empty();
        if has_ended(&self.out) || has_ended(&self.back) {
            return true;
        }
        let interest = Interest {
            receive: self.out.is_empty(),
            send: !self.back.is_empty(),
        };
        self.ready.watch(&self.socket, interest).is_err()
    }

    /// One attempt each way; whether anything has moved.
    fn turn(&mut self) -> io::Result<bool> {
        let mut any = false;
        if let Some(room) = self.out.room() {
            match self.socket.read(room) {
                Ok(0) => self.out.has_ended = true,
                Ok(moved) => {
                    self.out.to = moved;
                    any = true;
                }
                Err(error) => nothing_now(error)?,
            }
        }
        if !self.out.is_empty() {
            let bytes = [Source::from(self.out.waiting())];
            match self.connection.send(self.stream, &bytes) {
                Progress::Moved(moved) => {
                    self.out.from += moved;
                    any = true;
                }
                Progress::Blocked => {}
                Progress::Ended | Progress::Failed(_) => return Err(ErrorKind::BrokenPipe.into()),
            }
        }
        if let Some(room) = self.back.room() {
            match self
                .connection
                .receive(self.stream, &[Destination::from(room)])
            {
                Progress::Moved(moved) => {
                    self.back.to = moved;
                    any |= moved > 0;
                }
                Progress::Blocked => {}
                Progress::Ended => self.back.has_ended = true,
                Progress::Failed(_) => return Err(ErrorKind::BrokenPipe.into()),
            }
        }
        if !self.back.is_empty() {
            match self.socket.write(self.back.waiting()) {
                Ok(moved) => {
                    self.back.from += moved;
                    any |= moved > 0;
                }
                Err(error) => nothing_now(error)?,
            }
        }
        Ok(any)
    }
}

fn nothing_now(error: io::Error) -> io::Result<()> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(()),
        _ => Err(error),
    }
}

/// Where Zenoh connects to, and what is made of that.
#[derive(Debug)]
struct Slot {
    listener: UnixListener,
    /// Zenoh's connection, until then.
    socket: Option<(UnixStream, Duration)>,
    dial: Option<(Dial, Duration)>,
}

/// All connections of a session.
#[derive(Debug)]
pub(super) struct Tunnels {
    own: NodeId,
    cluster: Cluster,
    transport: Tcp,
    clock: Arc<dyn Clock>,
    /// Where Zenoh listens.
    zenoh: PathBuf,
    slots: Vec<Slot>,
    all: Vec<Tunnel>,
    /// Where others may be reached: as the node says, and as directories say.
    ways: BTreeSet<Way>,
    /// Who has answered where.
    answered: BTreeMap<String, NodeId>,
    /// Until when a way is not tried, and how long the next pause is.
    avoided: BTreeMap<String, (Duration, Duration)>,
}

/// The socket of a slot, in a directory.
pub(super) fn slot_path(directory: &Path, at: usize) -> PathBuf {
    directory.join(format!("zenoh-{at}.sock"))
}

impl Tunnels {
    /// Those of a session that listens at `zenoh`, and connects to the slots beside it.
    ///
    /// # Errors
    ///
    /// A slot cannot be listened at: its path is too long.
    pub(super) fn new(cluster: &Cluster, clock: &Arc<dyn Clock>, zenoh: &Path) -> io::Result<Self> {
        let directory = zenoh.parent().unwrap_or(zenoh);
        let slots = (0..SLOTS).map(|at| {
            let path = slot_path(directory, at);
            // One node runs with a state directory: this is of one that was killed.
            let _ = std::fs::remove_file(&path);
            let listener = UnixListener::bind(&path)?;
            listener.set_nonblocking(true)?;
            Ok(Slot {
                listener,
                socket: None,
                dial: None,
            })
        });
        let options = LinkOptions {
            directories: true,
            ..LinkOptions::default()
        };
        Ok(Self {
            own: cluster.node(),
            cluster: cluster.clone(),
            transport: links(cluster, options, Arc::clone(clock)),
            clock: Arc::clone(clock),
            zenoh: zenoh.to_owned(),
            slots: slots.collect::<io::Result<_>>()?,
            all: Vec::new(),
            ways: BTreeSet::new(),
            answered: BTreeMap::new(),
            avoided: BTreeMap::new(),
        })
    }

    /// Where others may be reached from now on.
    pub(super) fn set_ways(&mut self, ways: BTreeSet<Way>) {
        let there: BTreeSet<&String> = ways.iter().map(|way| &way.address).collect();
        self.answered.retain(|address, _| there.contains(address));
        self.ways = ways;
    }

    /// Nodes with which there is a connection.
    pub(super) fn nodes(&self) -> Vec<NodeId> {
        self.all.iter().map(|tunnel| tunnel.node).collect()
    }

    /// What to wait for.
    pub(super) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let free = self.slots.iter().filter(|slot| slot.socket.is_none());
        let dials = self.slots.iter().filter_map(|slot| slot.dial.as_ref());
        let dials = dials.filter_map(|(dial, _)| dial.connection());
        // A connection whose bytes have no room stays readable.
        let tunnels = self.all.iter().flat_map(|it| {
            let has_room = it.back.is_empty();
            let connection = has_room.then(|| it.connection.descriptor());
            std::iter::once(it.ready.as_fd()).chain(connection)
        });
        free.map(|slot| slot.listener.as_fd())
            .chain(dials.map(|connection| connection.descriptor()))
            .chain(tunnels)
            .collect()
    }

    /// When to step though nothing is readable.
    pub(super) fn wake_at(&self) -> Option<Duration> {
        if self.all.iter().any(|tunnel| tunnel.goes_on) {
            return Some(Duration::ZERO);
        }
        let slots = self.slots.iter();
        let times = slots.flat_map(|slot| {
            let dial = slot.dial.as_ref();
            let kept = slot.socket.as_ref().filter(|_| dial.is_none());
            let kept = kept.map(|(_, until)| *until);
            let dial = dial.map(|(dial, until)| dial.wake_at().map_or(*until, |at| at.min(*until)));
            [kept, dial]
        });
        let waits = self.slots.iter().any(|slot| slot.dial.is_none());
        let avoided = self.avoided.values().map(|(until, _)| *until);
        times
            .flatten()
            .chain(avoided.filter(|until| waits && *until > self.clock.now()))
            .chain(self.all.iter().filter_map(|it| it.connection.wake_at()))
            .min()
    }

    /// Another node's directory has connected.
    pub(super) fn take(&mut self, node: NodeId, connection: Box<dyn Connection>) {
        if node == self.own || self.cluster.is_forgotten(node) {
            return;
        }
        let there = self.all.iter().position(|tunnel| tunnel.node == node);
        if let Some(at) = there {
            // Z1. One that it has made before is over: it knows, and we may not yet.
            if self.all[at].slot.is_some() && self.own < node {
                return;
            }
            self.all.remove(at);
        } else if self.all.len() >= MOST {
            return;
        }
        let tunnel = UnixStream::connect(&self.zenoh)
            .and_then(|socket| Tunnel::new(node, socket, connection, self.clock.now()));
        // If not, the other node comes again.
        self.all.extend(tunnel);
    }

    /// Goes on with all.
    pub(super) fn step(&mut self, wakes: &Arc<EventFd>) {
        let now = self.clock.now();
        // First, so that what is new is waited for.
        for at in 0..self.slots.len() {
            self.step_slot(at, now, wakes);
        }
        let cluster = self.cluster.clone();
        let mut over = Vec::new();
        self.all.retain_mut(|tunnel| {
            let is_over = tunnel.step() || cluster.is_forgotten(tunnel.node);
            if is_over {
                over.push((tunnel.way.take(), now.saturating_sub(tunnel.since)));
            }
            !is_over
        });
        for (way, lasted) in over {
            if let Some(way) = way {
                if lasted >= SHORT {
                    self.avoided.remove(&way);
                }
                self.avoid(way, now);
            }
        }
    }

    /// Does not try a way for a while (Z3).
    fn avoid(&mut self, way: String, now: Duration) {
        if self.avoided.len() >= MOST_AVOIDED && !self.avoided.contains_key(&way) {
            self.avoided.retain(|_, (until, _)| *until > now);
            if self.avoided.len() >= MOST_AVOIDED {
                self.avoided.pop_first();
            }
        }
        let (until, pause) = self.avoided.entry(way).or_insert((now, PAUSES.0));
        let part = random::<1>().map_or(128, |[byte]| u32::from(byte));
        *until = now + *pause / 2 + *pause / 512 * part;
        *pause = (2 * *pause).min(PAUSES.1);
    }

    fn step_slot(&mut self, at: usize, now: Duration, wakes: &Arc<EventFd>) {
        let slot = &mut self.slots[at];
        if slot.socket.is_none()
            && let Ok((socket, _)) = slot.listener.accept()
        {
            slot.socket = Some((socket, now + KEPT));
        }
        if slot.dial.is_none() {
            if slot.socket.as_ref().is_some_and(|(_, until)| now >= *until) {
                // Zenoh stops to wait soon, and connects again.
                slot.socket = None;
            }
            if slot.socket.is_none() {
                return;
            }
            let Some(way) = self.next_way(now) else {
                return;
            };
            let dial = match way.node {
                Some(node) => Dial::heard(node, way.address, now),
                None => Dial::new(way.address, now),
            };
            self.slots[at].dial = Some((dial, now + TRIED));
        }
        let slot = &mut self.slots[at];
        let Some((dial, until)) = &mut slot.dial else {
            return;
        };
        let is_late = now >= *until;
        let target = dial.target.clone();
        match dial.step(&self.transport, now, wakes) {
            Some((connection, node)) => {
                slot.dial = None;
                let socket = slot.socket.take();
                self.answered.insert(target.clone(), node);
                if let Some((socket, _)) = socket {
                    self.connected(at, target, node, socket, connection, now);
                }
            }
            None => {
                let has_failed = dial.failure.is_some() && matches!(dial.phase, Phase::Waiting(_));
                if has_failed || is_late {
                    slot.dial = None;
                    slot.socket = None;
                    self.avoid(target, now);
                }
            }
        }
    }

    fn connected(
        &mut self,
        slot: usize,
        way: String,
        node: NodeId,
        socket: UnixStream,
        connection: Box<dyn Connection>,
        now: Duration,
    ) {
        let there = self.all.iter().position(|tunnel| tunnel.node == node);
        // Z1.
        let is_late = there.is_some_and(|at| self.all[at].slot.is_some() || node < self.own);
        if is_late || node == self.own || self.all.len() >= MOST {
            return self.avoid(way, now);
        }
        if let Some(at) = there {
            self.all.remove(at);
        }
        if let Ok(mut tunnel) = Tunnel::new(node, socket, connection, now) {
            tunnel.slot = Some(slot);
            tunnel.way = Some(way);
            self.all.push(tunnel);
        }
    }

    /// Whom to connect with next: those of node.toml first, and of the others some that other nodes do
    /// not choose too.
    fn next_way(&self, now: Duration) -> Option<Way> {
        let is_busy = |way: &Way| {
            let node = way
                .node
                .or_else(|| self.answered.get(&way.address).copied());
            let has = node.is_some_and(|node| {
                let its = |tunnel: &Tunnel| tunnel.node == node;
                node == self.own || self.cluster.is_forgotten(node) || self.all.iter().any(its)
            });
            let mut dials = self.slots.iter().filter_map(|slot| slot.dial.as_ref());
            has || dials.any(|(dial, _)| {
                dial.target == way.address || (node.is_some() && dial.expects == node)
            })
        };
        let rank = |way: &Way| (way.node.is_some(), hash(self.own, &way.address));
        let is_avoided = |way: &Way| {
            self.avoided
                .get(&way.address)
                .is_some_and(|(at, _)| now < *at)
        };
        let ways = self.ways.iter();
        let free = ways.filter(|way| !is_busy(way) && !is_avoided(way));
        free.min_by_key(|way| rank(way)).cloned()
    }
}

/// A number of a node and an address, another one for each pair (FNV-1a).
fn hash(node: NodeId, address: &str) -> u64 {
    let bytes = node.0.iter().copied().chain(address.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

impl Drop for Tunnels {
    fn drop(&mut self) {
        let directory = self.zenoh.parent().unwrap_or(&self.zenoh);
        for at in 0..self.slots.len() {
            // It may be gone by now, with its directory.
            let _ = std::fs::remove_file(slot_path(directory, at));
        }
    }
}

#[cfg(test)]
mod tests;
