//! A shaped transport: any other with a delay, a rate, a window, gaps, stalls, cuts and losses.
//!
//! A [`Shaped`] is the network interface of one node. What the node sends waits here until it is
//! due, and goes to the transport below then; so the other node needs a `Shaped` of its own for
//! its direction. Time is the clock's that it is made with: with
//! [`ManualClock`](crate::clock::ManualClock) no test waits.
//!
//! ```text
//!             interface is free      gap + length / rate             delay
//!  send ────────────┬────────────────────────────────────┬──────────────────────> due ──> below
//!                   │ interface is occupied by this piece │                        window: until
//!                                                                                  due + delay
//!  below ──> interface is free ── gap ──> receive
//! ```

mod faults;
mod lane;

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use portolan_sys::process::EventFd;
use portolan_sys::stream::{Destination, Source};

use crate::clock::Clock;
use crate::{
    Address, Class, Connection, Limits, Listener, Peer, Progress, State, StreamId, Transport,
    TransportError,
};
use faults::FaultState;
pub use faults::Faults;
use lane::Lane;

/// What a link is like, in the direction from this node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// How long a byte is under way.
    pub delay: Duration,
    /// Bytes a second that the interface sends; `None` for no bound.
    pub rate: Option<u64>,
    /// Bytes of a stream that are under way at most, or not known to have arrived.
    pub window: usize,
    /// How long each piece occupies the interface, at the sender and at the receiver.
    pub gap: Duration,
    /// Bytes of a piece, at most.
    pub piece: usize,
    /// How many of a million datagrams are lost.
    pub lost: u32,
    /// Decides which are.
    pub seed: u64,
}

impl Default for Shape {
    /// No delay, no bound but the window, no loss.
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            rate: None,
            window: 1 << 20,
            gap: Duration::ZERO,
            piece: 64 * 1024,
            lost: 0,
            seed: 1,
        }
    }
}

/// Datagrams that wait to be due, at most; further ones are lost.
const MOST_DATAGRAMS: usize = 64;

/// A node's interface to a network that is shaped.
///
/// ```
/// use portolan_transport::clock::ManualClock;
/// use portolan_transport::*;
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// let clock = Arc::new(ManualClock::default());
/// let shape = Shape { delay: Duration::from_millis(20), ..Shape::default() };
/// let (network, at) = (Memory::default(), Address::named("hall"));
/// let node = Shaped::new(network, shape, clock.clone());
/// let mut listener = node.listen(&at)?;
/// let (mut a, mut b) = (node.connect(&at)?, listener.accept()?.expect("a client"));
/// let [from, to] = [a.open(Class::Records)?, b.open(Class::Records)?];
/// assert_eq!(a.send(from, &[Source::from(b"hello".as_slice())]), Progress::Moved(5));
///
/// let mut bytes = [0; 8];
/// assert_eq!(b.receive(to, &[Destination::from(&mut bytes[..])]), Progress::Blocked);
/// clock.advance(Duration::from_millis(20));
/// a.progress();
/// assert_eq!(b.receive(to, &[Destination::from(&mut bytes[..])]), Progress::Moved(5));
/// # Ok::<(), TransportError>(())
/// ```
#[derive(Debug)]
pub struct Shaped<T> {
    inner: T,
    node: Node,
}

/// What all connections of a node share.
#[derive(Clone, Debug)]
struct Node {
    shape: Shape,
    clock: Arc<dyn Clock>,
    interface: Arc<Mutex<Interface>>,
    faults: Arc<Mutex<FaultState>>,
}

/// Until when a node's interface is occupied, each way.
#[derive(Debug, Default)]
struct Interface {
    sends: Duration,
    receives: Duration,
    random: u64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Transport> Shaped<T> {
    /// An interface to the network `inner`.
    pub fn new(inner: T, shape: Shape, clock: Arc<dyn Clock>) -> Self {
        let interface = Interface {
            random: shape.seed | 1,
            ..Interface::default()
        };
        let node = Node {
            shape,
            clock,
            interface: Arc::new(Mutex::new(interface)),
            faults: Arc::default(),
        };
        Self { inner, node }
    }

    /// What goes wrong with all that this node sends.
    pub fn faults(&self) -> Faults {
        Faults::new(Arc::clone(&self.node.faults))
    }
}

impl<T: Transport> Transport for Shaped<T> {
    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn listen(&self, address: &Address) -> Result<Box<dyn Listener>, TransportError> {
        Ok(Box::new(ShapedListener {
            inner: self.inner.listen(address)?,
            node: self.node.clone(),
        }))
    }

    fn connect(&self, address: &Address) -> Result<Box<dyn Connection>, TransportError> {
        let inner = self.inner.connect(address)?;
        Ok(Box::new(ShapedConnection::new(inner, self.node.clone())?))
    }
}

#[derive(Debug)]
struct ShapedListener {
    inner: Box<dyn Listener>,
    node: Node,
}

impl Listener for ShapedListener {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.inner.descriptor()
    }

    fn wake_at(&self) -> Option<Duration> {
        self.inner.wake_at()
    }

    fn address(&self) -> Address {
        self.inner.address()
    }

    fn accept(&mut self) -> Result<Option<Box<dyn Connection>>, TransportError> {
        let Some(inner) = self.inner.accept()? else {
            return Ok(None);
        };
        let connection = ShapedConnection::new(inner, self.node.clone())?;
        Ok(Some(Box::new(connection)))
    }
}

#[derive(Debug)]
struct ShapedConnection {
    /// `None` once it has been cut.
    inner: Option<Box<dyn Connection>>,
    node: Node,
    limits: Limits,
    peer: Peer,
    lanes: BTreeMap<(u8, u16), Lane>,
    datagrams: VecDeque<(Duration, Vec<u8>)>,
    closing: bool,
    closed: bool,
    failure: Option<TransportError>,
    /// The cuts that this connection has outlived: those before it was made.
    cuts: u64,
    /// Its descriptor once it has been cut: readable until the caller has been told.
    told: EventFd,
}

fn key(on: StreamId) -> (u8, u16) {
    (u8::from(on.class == Class::Bulk), on.number)
}

impl ShapedConnection {
    fn new(inner: Box<dyn Connection>, node: Node) -> Result<Self, TransportError> {
        let cuts = locked(&node.faults).cuts;
        Ok(Self {
            limits: inner.limits(),
            peer: inner.peer(),
            inner: Some(inner),
            node,
            lanes: BTreeMap::new(),
            datagrams: VecDeque::new(),
            closing: false,
            closed: false,
            failure: None,
            cuts,
            told: EventFd::new().map_err(TransportError::system("cannot make a descriptor"))?,
        })
    }

    /// Passes on what is due, unless a fault keeps it.
    fn pump(&mut self) {
        let now = self.node.clock.now();
        if self.failure.is_some() {
            return;
        }
        if locked(&self.node.faults).cuts != self.cuts {
            return self.cut();
        }
        let Some(inner) = &mut self.inner else {
            return;
        };
        if locked(&self.node.faults).stalls(now) {
            self.lanes.values_mut().for_each(Lane::hold);
        } else {
            for lane in self.lanes.values_mut() {
                while let Some((on, bytes)) = lane.due(now) {
                    let allowed = locked(&self.node.faults).allowed(bytes.len());
                    if allowed == 0 {
                        return self.cut();
                    }
                    match inner.send(on, &[Source::from(&bytes[..allowed])]) {
                        Progress::Moved(moved) => {
                            locked(&self.node.faults).passed(moved);
                            lane.passed(moved, self.node.shape.delay);
                        }
                        Progress::Failed(why) => {
                            self.failure = Some(why);
                            return;
                        }
                        Progress::Blocked | Progress::Ended => break,
                    }
                }
            }
            while let Some((due, bytes)) = self.datagrams.front() {
                if *due > now {
                    break;
                }
                inner.datagram(bytes);
                self.datagrams.pop_front();
            }
        }
        self.lanes.values_mut().for_each(|lane| lane.release(now));
        let empty = self.lanes.values().all(Lane::is_empty);
        if self.closing && !self.closed && empty {
            self.closed = true;
            inner.close();
        }
    }

    /// Ends the connection, for both sides.
    fn cut(&mut self) {
        self.inner = None;
        self.lanes.clear();
        self.datagrams.clear();
        self.failure = Some(TransportError::Broken {
            reason: "it was cut".to_owned(),
        });
        let _ = self.told.notify();
    }

    /// What a caller is told if it has failed.
    fn failed(&mut self) -> Option<Progress> {
        let failure = self.failure.clone()?;
        let _ = self.told.drain();
        Some(Progress::Failed(failure))
    }

    fn note(&mut self, progress: Progress) -> Progress {
        if let (Progress::Failed(why), None) = (&progress, &self.failure) {
            self.failure = Some(why.clone());
        }
        progress
    }

    /// Takes what has come from below into the interface, which each piece occupies.
    fn stage(&mut self, on: StreamId) {
        let now = self.node.clock.now();
        let shape = self.node.shape;
        let (Some(inner), Some(lane)) = (&mut self.inner, self.lanes.get_mut(&key(on))) else {
            return;
        };
        while lane.stages() {
            let mut bytes = vec![0; shape.piece.max(1)];
            match inner.receive(on, &[Destination::from(&mut bytes[..])]) {
                Progress::Moved(moved) => {
                    bytes.truncate(moved);
                    let mut interface = locked(&self.node.interface);
                    interface.receives = interface.receives.max(now) + shape.gap;
                    lane.came(interface.receives, bytes);
                }
                Progress::Blocked => return,
                end => lane.ended(end),
            }
        }
    }
}

impl Connection for ShapedConnection {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        match &self.inner {
            Some(inner) => inner.descriptor(),
            None => self.told.as_fd(),
        }
    }

    fn wake_at(&self) -> Option<Duration> {
        if self.failure.is_some() {
            return None;
        }
        let now = self.node.clock.now();
        let faults = locked(&self.node.faults);
        if faults.cuts != self.cuts {
            return Some(now);
        }
        let stalled = faults.stalled.unwrap_or_default();
        let lanes = self.lanes.values().filter_map(|lane| lane.sends_at(now));
        let datagrams = self.datagrams.front().map(|(due, _)| *due);
        let due = lanes.chain(datagrams).min();
        // A stall without an end is not waited for.
        let due = due.map(|due| due.max(stalled));
        let due = due.filter(|due| *due < Duration::MAX);
        let freed = self.lanes.values().filter_map(Lane::frees_at);
        let receives = self.lanes.values().filter_map(Lane::receives_at);
        let below = self.inner.as_ref().and_then(|inner| inner.wake_at());
        due.into_iter()
            .chain(freed)
            .chain(receives)
            .chain(below)
            .min()
    }

    fn progress(&mut self) -> State {
        let state = match &mut self.inner {
            Some(inner) => inner.progress(),
            None => State::Failed,
        };
        if let Some(inner) = &self.inner {
            self.peer = inner.peer();
            if self.failure.is_none() {
                self.failure = inner.failure().cloned();
            }
        }
        self.lanes.values_mut().for_each(Lane::unblock);
        self.pump();
        if self.failed().is_some() {
            return State::Failed;
        }
        let staged = self.lanes.values().any(Lane::has_staged);
        match state {
            State::Over if staged => State::Up,
            other => other,
        }
    }

    fn failure(&self) -> Option<&TransportError> {
        self.failure.as_ref()
    }

    fn peer(&self) -> Peer {
        self.peer
    }

    fn remote(&self) -> Option<Address> {
        self.inner.as_ref()?.remote()
    }

    fn open(&mut self, class: Class) -> Result<StreamId, TransportError> {
        let on = match &mut self.inner {
            Some(inner) => inner.open(class)?,
            None => StreamId { class, number: 0 },
        };
        self.lanes.insert(key(on), Lane::new(on));
        Ok(on)
    }

    fn send(&mut self, on: StreamId, parts: &[Source<'_>]) -> Progress {
        self.pump();
        if let Some(failed) = self.failed() {
            return failed;
        }
        if self.closing {
            return Progress::Ended;
        }
        let shape = self.node.shape;
        let now = self.node.clock.now();
        let Some(lane) = self.lanes.get_mut(&key(on)) else {
            return Progress::Ended;
        };
        let wanted: usize = parts.iter().map(Source::len).sum();
        let room = shape.window.saturating_sub(lane.under_way());
        if wanted > 0 && room == 0 {
            lane.block();
            return Progress::Blocked;
        }
        let mut bytes = Vec::with_capacity(wanted.min(room));
        for part in parts {
            let mut copied = vec![0; part.len().min(room - bytes.len())];
            part.copy_to(&mut copied);
            bytes.extend(copied);
        }
        for piece in bytes.chunks(shape.piece.max(1)) {
            let mut interface = locked(&self.node.interface);
            interface.sends = interface.sends.max(now) + shape.gap + time_of(piece.len(), &shape);
            lane.push(interface.sends + shape.delay, piece);
        }
        self.pump();
        Progress::Moved(bytes.len())
    }

    fn receive(&mut self, on: StreamId, into: &[Destination<'_>]) -> Progress {
        self.pump();
        if let Some(failed) = self.failed() {
            return failed;
        }
        let progress = match &mut self.inner {
            Some(inner) if self.node.shape.gap.is_zero() => inner.receive(on, into),
            _ => {
                self.stage(on);
                let now = self.node.clock.now();
                let lane = self.lanes.get_mut(&key(on));
                lane.map_or(Progress::Ended, |lane| lane.take(now, into))
            }
        };
        self.note(progress)
    }

    fn datagram(&mut self, bytes: &[u8]) -> bool {
        let shape = self.node.shape;
        let full = self.datagrams.len() >= MOST_DATAGRAMS;
        let dead = self.failure.is_some() || self.closing;
        if dead || full || bytes.len() > self.limits.datagram || bytes.is_empty() {
            return false;
        }
        let now = self.node.clock.now();
        let mut interface = locked(&self.node.interface);
        interface.sends = interface.sends.max(now) + shape.gap + time_of(bytes.len(), &shape);
        let due = interface.sends + shape.delay;
        let is_lost = interface.draw() % 1_000_000 < u64::from(shape.lost);
        drop(interface);
        // The sender of one that is lost on the way does not know.
        if !is_lost {
            self.datagrams.push_back((due, bytes.to_vec()));
        }
        self.pump();
        true
    }

    fn receive_datagram(&mut self) -> Option<Vec<u8>> {
        self.inner.as_mut()?.receive_datagram()
    }

    fn close(&mut self) {
        self.closing = true;
        self.pump();
    }

    fn binding(&self, label: &str) -> Option<[u8; 32]> {
        self.inner.as_ref()?.binding(label)
    }
}

impl Interface {
    fn draw(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

/// How long the interface takes to send so many bytes.
fn time_of(bytes: usize, shape: &Shape) -> Duration {
    let Some(rate) = shape.rate else {
        return Duration::ZERO;
    };
    let nanos = bytes as u128 * 1_000_000_000 / u128::from(rate.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}
