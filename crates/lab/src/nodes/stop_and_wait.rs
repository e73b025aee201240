//! A connection that stops and waits, as NORMA's network protocol did: what is sent goes in blocks
//! of at most n pages, and a block goes only when the one before it has been acknowledged.
//!
//! ```text
//!  stream    head (8 bytes: kind, length)  bytes of a block        records, bulk
//!            head (kind: acknowledged)                             records alone
//!  sender    idle --first bytes of a block--> writing --last byte--> waiting --acknowledged--> idle
//! ```
//!
//! One block is under way in each direction, whichever stream it is on. Acknowledgements wait for
//! nothing but the rest of a block on their stream. Bytes are not copied here: a block is sent from
//! where it lies, and received into where its receiver says.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use portolan_transport::{
    Address, Class, Connection, Destination, Limits, Peer, Progress, Source, State, StreamId,
    TransportError,
};

/// Kind and length, little-endian.
const HEAD: usize = 8;
const BLOCK: u32 = 1;
const ACKNOWLEDGED: u32 = 2;

fn head(kind: u32, length: usize) -> [u8; HEAD] {
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    let mut bytes = [0; HEAD];
    bytes[..4].copy_from_slice(&kind.to_le_bytes());
    bytes[4..].copy_from_slice(&length.to_le_bytes());
    bytes
}

/// What both directions of a connection have counted.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Blocks that were sent whole.
    pub(crate) blocks: AtomicU64,
    /// Blocks of the peer that were acknowledged.
    pub(crate) acknowledged: AtomicU64,
}

/// One stream, both ways.
#[derive(Debug)]
struct Lane {
    on: StreamId,
    /// The head that is being written, and what of it is left.
    head: Vec<u8>,
    /// Bytes of the block that its sender still has to give.
    owed: usize,
    /// The head that is being read.
    coming: [u8; HEAD],
    filled: usize,
    /// Bytes of the peer's block that have not been received.
    left: usize,
}

/// A connection with this protocol on top.
#[derive(Debug)]
pub(crate) struct StopAndWait {
    inner: Box<dyn Connection>,
    /// Bytes of a block, at most.
    block: usize,
    lanes: Vec<Lane>,
    /// The lane whose block is being written.
    writing: Option<usize>,
    /// A block was written and is not acknowledged.
    waiting: bool,
    /// Acknowledgements that the peer has to be sent.
    owes: u32,
    failure: Option<TransportError>,
    counts: Arc<Counts>,
}

impl StopAndWait {
    /// Blocks of at most so many bytes.
    pub(crate) fn new(inner: Box<dyn Connection>, block: usize) -> Self {
        Self {
            inner,
            block,
            lanes: Vec::new(),
            writing: None,
            waiting: false,
            owes: 0,
            failure: None,
            counts: Arc::default(),
        }
    }

    #[cfg(test)]
    pub(crate) fn counts(&self) -> Arc<Counts> {
        Arc::clone(&self.counts)
    }

    fn lane(&self, on: StreamId) -> Option<usize> {
        self.lanes.iter().position(|lane| lane.on == on)
    }

    /// Acknowledges what is to be acknowledged, as far as the stream of records takes it.
    fn acknowledge(&mut self) {
        let Some(at) = self
            .lanes
            .iter()
            .position(|lane| lane.on.class() == Class::Records)
        else {
            return;
        };
        // A block on this stream is not interrupted.
        while self.owes > 0 && self.writing != Some(at) {
            let lane = &mut self.lanes[at];
            if lane.head.is_empty() {
                lane.head = head(ACKNOWLEDGED, 0).to_vec();
            }
            if !write_head(&mut *self.inner, lane) {
                return;
            }
            self.owes -= 1;
            // Relaxed: a count.
            self.counts.acknowledged.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Reads heads of a lane until a block comes or nothing is there; why not, if it cannot.
    fn look(&mut self, at: usize) -> Option<Progress> {
        while self.lanes[at].left == 0 {
            let lane = &mut self.lanes[at];
            let into = [Destination::from(&mut lane.coming[lane.filled..])];
            match self.inner.receive(lane.on, &into) {
                Progress::Moved(moved) => lane.filled += moved,
                other => return Some(other),
            }
            if lane.filled < HEAD {
                continue;
            }
            lane.filled = 0;
            let (kind, length) = lane.coming.split_at(4);
            let [kind, length] =
                [kind, length].map(|it| u32::from_le_bytes(it.try_into().unwrap_or_default()));
            match (kind, usize::try_from(length).unwrap_or(usize::MAX)) {
                (ACKNOWLEDGED, 0) => self.waiting = false,
                (BLOCK, length) if (1..=self.block).contains(&length) => lane.left = length,
                _ => {
                    let what = format!("a head of kind {kind} and length {length}");
                    let why = TransportError::NotPortolan { what };
                    self.failure = Some(why.clone());
                    return Some(Progress::Failed(why));
                }
            }
        }
        None
    }
}

/// Writes what is left of a head; whether that is all of it.
fn write_head(inner: &mut dyn Connection, lane: &mut Lane) -> bool {
    while !lane.head.is_empty() {
        match inner.send(lane.on, &[Source::from(&lane.head[..])]) {
            Progress::Moved(moved) => drop(lane.head.drain(..moved)),
            // The descriptor says when there is room; a failure is told by every other call.
            _ => return false,
        }
    }
    true
}

/// The first so many bytes of the parts.
fn first<'a>(parts: &[Source<'a>], mut bytes: usize) -> Vec<Source<'a>> {
    let mut all = Vec::with_capacity(parts.len());
    for part in parts {
        let part = part.first(bytes);
        bytes -= part.len();
        all.push(part);
        if bytes == 0 {
            break;
        }
    }
    all
}

impl Connection for StopAndWait {
    fn limits(&self) -> Limits {
        Limits {
            datagram: 0,
            ..self.inner.limits()
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.inner.descriptor()
    }

    fn wake_at(&self) -> Option<Duration> {
        self.inner.wake_at()
    }

    fn progress(&mut self) -> State {
        let state = self.inner.progress();
        for at in 0..self.lanes.len() {
            // What is in the way is told by the next call that needs it.
            let _ = self.look(at);
        }
        self.acknowledge();
        match self.failure {
            Some(_) => State::Failed,
            None => state,
        }
    }

    fn failure(&self) -> Option<&TransportError> {
        self.failure.as_ref().or(self.inner.failure())
    }

    fn peer(&self) -> Peer {
        self.inner.peer()
    }

    fn remote(&self) -> Option<Address> {
        self.inner.remote()
    }

    fn open(&mut self, class: Class) -> Result<StreamId, TransportError> {
        let on = self.inner.open(class)?;
        self.lanes.push(Lane {
            on,
            head: Vec::new(),
            owed: 0,
            coming: [0; HEAD],
            filled: 0,
            left: 0,
        });
        Ok(on)
    }

    fn send(&mut self, on: StreamId, parts: &[Source<'_>]) -> Progress {
        if let Some(why) = &self.failure {
            return Progress::Failed(why.clone());
        }
        let Some(at) = self.lane(on) else {
            return Progress::Ended;
        };
        self.acknowledge();
        let wanted: usize = parts.iter().map(Source::len).sum();
        if wanted == 0 {
            return Progress::Moved(0);
        }
        match self.writing {
            Some(other) if other != at => return Progress::Blocked,
            Some(_) => {}
            // Behind an acknowledgement that is half written, too.
            None if self.waiting || !self.lanes[at].head.is_empty() => return Progress::Blocked,
            None => {
                let lane = &mut self.lanes[at];
                lane.owed = wanted.min(self.block);
                lane.head = head(BLOCK, lane.owed).to_vec();
                self.writing = Some(at);
            }
        }
        let lane = &mut self.lanes[at];
        if !write_head(&mut *self.inner, lane) {
            return match self.inner.failure() {
                Some(why) => Progress::Failed(why.clone()),
                None => Progress::Blocked,
            };
        }
        let progress = self.inner.send(on, &first(parts, lane.owed));
        if let Progress::Moved(moved) = progress {
            lane.owed -= moved;
            if lane.owed == 0 {
                (self.writing, self.waiting) = (None, true);
                // Relaxed: a count.
                self.counts.blocks.fetch_add(1, Ordering::Relaxed);
                self.acknowledge();
            }
        }
        progress
    }

    fn receive(&mut self, on: StreamId, into: &[Destination<'_>]) -> Progress {
        let Some(at) = self.lane(on) else {
            return Progress::Ended;
        };
        if let Some(why) = &self.failure {
            return Progress::Failed(why.clone());
        }
        if let Some(nothing) = self.look(at) {
            return nothing;
        }
        let mut left = self.lanes[at].left;
        let mut parts = Vec::with_capacity(into.len());
        for part in into {
            let part = part.part(0, left);
            left -= part.len();
            parts.push(part);
            if left == 0 {
                break;
            }
        }
        let progress = self.inner.receive(on, &parts);
        if let Progress::Moved(moved) = progress {
            let lane = &mut self.lanes[at];
            lane.left -= moved;
            if lane.left == 0 && moved > 0 {
                self.owes += 1;
                self.acknowledge();
            }
        }
        progress
    }

    fn datagram(&mut self, _: &[u8]) -> bool {
        false
    }

    fn receive_datagram(&mut self) -> Option<Vec<u8>> {
        None
    }

    fn close(&mut self) {
        self.inner.close();
    }

    fn binding(&self, label: &str) -> Option<[u8; 32]> {
        self.inner.binding(label)
    }
}
