//! Rates: how many bytes a second go to a peer, and are taken from it.
//!
//! ```text
//!            own rate     the peer's, which it has said
//! messages ---> bucket and bucket ---> records, fragments      messages and fragments wait for both
//! control  ------------------------> records                  goes at once, and is counted
//! bytes of the peer <--- bucket                                the driver asks before it reads
//! ```
//!
//! A bucket fills at its rate up to its *burst*. Something goes while the bucket has any bytes, and takes
//! as many as it is long: so the bucket may owe some, and what follows waits longer. What keeps a link
//! going (pings, acknowledgements, control records) waits for no bucket, so a slow link is not taken
//! for a dead one; it is counted, and delays messages by no more than [`OWED_FOR`].
//!
//! # Invariants
//!
//! - **D1** Messages and fragments that go to a peer in a time are no more than the rate makes of it, the
//!   burst, and one record or fragment.
//! - **D2** Of records and fragments that both wait, those go next of which fewer bytes have gone: a long
//!   message lets short ones through, and many short ones let it through. Within both, the fair queue
//!   decides, and no order changes.
//! - **D3** A driver that asks [`Node::may_take`] reads no more of a peer than the rate makes of the time and
//!   twice the burst, over however many connections.
//! - **D4** What waits for a bucket is called for by [`Node::next_timeout`], or by the time that
//!   [`Node::may_take`] says, and not before there is enough for [`WORTHWHILE`].

use super::machine::Node;
use super::types::{ConnectionId, OutFragment, OutRecord};
use crate::Time;
use core::time::Duration;
use portolan_abi::node::{FragmentHead, MAX_FRAGMENT, NodeId};

/// The burst is what the rate makes of this time, and [`LEAST_BURST`] at least.
const BURST_OF: Duration = Duration::from_millis(50);
/// The longest record that comes with its payload fits.
const LEAST_BURST: u64 = 64 * 1024;
/// Who waits is called when there is as much as the rate makes of this time.
const WORTHWHILE: Duration = Duration::from_millis(10);
/// A fragment is as long as what the rate makes of this time, within [`MAX_FRAGMENT`].
const FRAGMENT_OF: Duration = Duration::from_millis(10);
const LEAST_FRAGMENT: u64 = 4 * 1024;
/// What waits for no bucket makes it owe no more than what the rate makes of this time.
const OWED_FOR: Duration = Duration::from_secs(1);

/// Bytes a second, to a peer and from it; `None` is as many as come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// To it.
    pub send: Option<u64>,
    /// From it.
    pub take: Option<u64>,
}

/// The rates that hold with a peer, and what they have held back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RateView {
    /// What was set here.
    pub set: Rates,
    /// As much as it takes, as it has said on this connection.
    pub said: Option<u64>,
    /// How often messages or fragments had to wait before they went to it.
    pub sends_held: u64,
    /// How often what it sent had to wait before it was read.
    pub takes_held: u64,
}

/// What the rate makes of a time.
fn makes(rate: u64, time: Duration) -> u64 {
    let bytes = u128::from(rate) * time.as_nanos() / 1_000_000_000;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Bytes that may go now, at a rate.
#[derive(Debug)]
struct Bucket {
    rate: u64,
    burst: i64,
    /// Negative, if more went.
    level: i64,
    /// Until when it is filled.
    at: Time,
}

impl Bucket {
    fn new(rate: u64, bursts: u64, now: Time) -> Self {
        let rate = rate.clamp(1, 1 << 50);
        let burst = bursts * makes(rate, BURST_OF).max(LEAST_BURST);
        let burst = i64::try_from(burst).unwrap_or(i64::MAX);
        Self {
            rate,
            burst,
            level: burst,
            at: now,
        }
    }

    /// How long the rate needs for so many bytes: never too short.
    fn time_of(&self, bytes: u64) -> Duration {
        let nanos = (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(self.rate));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    fn fill(&mut self, now: Time) {
        let bytes = makes(self.rate, now.since(self.at));
        let level = self.level.saturating_add_unsigned(bytes);
        if level >= self.burst {
            (self.level, self.at) = (self.burst, self.at.max(now));
        } else if bytes > 0 {
            // What is left of the time counts next time.
            (self.level, self.at) = (level, self.at.after(self.time_of(bytes)));
        }
    }

    fn has_some(&mut self, now: Time) -> bool {
        self.fill(now);
        self.level > 0
    }

    /// When it has enough to go on with.
    fn due(&self) -> Time {
        let enough = makes(self.rate, WORTHWHILE).max(1);
        let enough = i64::try_from(enough).unwrap_or(i64::MAX).min(self.burst);
        let missing = u64::try_from(enough.saturating_sub(self.level)).unwrap_or(0);
        self.at.after(self.time_of(missing))
    }

    fn take(&mut self, bytes: u64) {
        self.level = self.level.saturating_sub_unsigned(bytes);
    }

    /// Something goes that waits for nothing.
    fn take_at_once(&mut self, now: Time, bytes: u64) {
        self.fill(now);
        let most = i64::try_from(makes(self.rate, OWED_FOR)).unwrap_or(i64::MAX);
        let least = self.level.min(-most);
        self.level = self.level.saturating_sub_unsigned(bytes).max(least);
    }
}

impl<P> OutRecord<P> {
    /// Bytes of it on the wire.
    pub(super) fn length(&self) -> usize {
        let payload = self.payload.as_ref().map_or(0, |(_, length)| *length);
        self.bytes.len() + usize::try_from(payload).unwrap_or(usize::MAX)
    }
}

impl<P> OutFragment<P> {
    /// Bytes of it on the wire.
    pub(super) fn length(&self) -> usize {
        let payload = self.payload.as_ref();
        let payload = payload.map_or(0, |(_, range)| range.end - range.start);
        FragmentHead::BYTES + self.record.len() + usize::try_from(payload).unwrap_or(usize::MAX)
    }
}

/// By which stream something goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Records,
    Fragments,
}

/// What goes to a peer, at two rates: the one that was set, and the one that the peer has said.
#[derive(Debug, Default)]
pub(super) struct Pace {
    set: Option<u64>,
    said: Option<u64>,
    own: Option<Bucket>,
    theirs: Option<Bucket>,
    /// Records and fragments.
    lanes: [Lane; 2],
    /// When those that wait are to be asked for again.
    wake: Option<Time>,
    held: u64,
}

/// What goes by one of the two streams.
#[derive(Debug, Default)]
struct Lane {
    /// Bytes that have gone.
    gone: u64,
    /// Something waits for a bucket, or for the other lane.
    waits: bool,
    /// It had nothing when it was asked last.
    is_idle: bool,
    /// It has left the other one its turn, and that was not asked since.
    has_yielded: bool,
    /// In this call: something was allowed.
    allowed: bool,
    refused: bool,
}

impl Pace {
    fn set(&mut self, now: Time, rate: Option<u64>) {
        if self.set != rate {
            self.set = rate;
            self.own = rate.map(|rate| Bucket::new(rate, 1, now));
            // What waits is asked for again.
            self.wake = Some(now);
        }
    }

    fn say(&mut self, now: Time, rate: Option<u64>) {
        if self.said != rate {
            self.said = rate;
            self.theirs = rate.map(|rate| Bucket::new(rate, 1, now));
            self.wake = Some(now);
        }
    }

    /// The connection has ended, and what the peer has said on it.
    pub(super) fn cut(&mut self) {
        (self.said, self.theirs) = (None, None);
        (self.lanes, self.wake) = (Default::default(), None);
    }

    fn is_free(&self) -> bool {
        self.own.is_none() && self.theirs.is_none()
    }

    fn buckets(&mut self) -> impl Iterator<Item = &mut Bucket> {
        self.own.iter_mut().chain(&mut self.theirs)
    }

    /// Whether a message or a fragment may go now.
    pub(super) fn may_go(&mut self, now: Time, by: By) -> bool {
        if self.is_free() {
            return true;
        }
        let other = &self.lanes[1 - by as usize];
        let (others_wait, others_gone) = (other.waits, other.gone);
        let lane = &mut self.lanes[by as usize];
        if std::mem::take(&mut lane.is_idle) {
            // It has no claim on the time in which it had nothing.
            lane.gone = lane.gone.max(others_gone.saturating_sub(LEAST_FRAGMENT));
        }
        let yields = others_wait && lane.gone > others_gone && !lane.has_yielded;
        if !self.buckets().all(|bucket| bucket.has_some(now)) {
            self.wake = self.buckets().map(|bucket| bucket.due()).max();
            let lane = &mut self.lanes[by as usize];
            lane.refused = true;
            self.held += u64::from(!std::mem::replace(&mut lane.waits, true));
            return false;
        }
        let lane = &mut self.lanes[by as usize];
        if yields {
            // The other one has a turn, if it can be written now.
            lane.has_yielded = true;
            lane.refused = true;
            lane.waits = true;
            self.wake = Some(now);
            return false;
        }
        lane.allowed = true;
        true
    }

    /// What was asked for goes, so many bytes; none, if there is nothing.
    pub(super) fn goes(&mut self, now: Time, by: By, bytes: usize) {
        if self.is_free() {
            return;
        }
        let bytes = bytes as u64;
        let lane = &mut self.lanes[by as usize];
        let allowed = std::mem::take(&mut lane.allowed);
        if bytes > 0 && !allowed {
            // It has waited for nothing.
            return self
                .buckets()
                .for_each(|bucket| bucket.take_at_once(now, bytes));
        }
        let refused = std::mem::take(&mut lane.refused);
        lane.waits &= refused;
        lane.is_idle = bytes == 0 && !refused;
        lane.gone += bytes;
        self.lanes[1 - by as usize].has_yielded = false;
        self.buckets().for_each(|bucket| bucket.take(bytes));
    }

    /// Bytes of a fragment, at most.
    pub(super) fn fragment(&self) -> u64 {
        let buckets = [&self.own, &self.theirs].into_iter().flatten();
        let of = |bucket: &Bucket| makes(bucket.rate, FRAGMENT_OF).max(LEAST_FRAGMENT);
        let most = u64::from(MAX_FRAGMENT);
        buckets.map(of).min().unwrap_or(most).min(most)
    }

    pub(super) fn wake_at(&self) -> Option<Time> {
        self.wake
    }

    /// The driver asks for what waits, behind this.
    pub(super) fn timeout(&mut self, now: Time) {
        self.wake = self.wake.filter(|at| *at > now);
    }
}

/// What is taken from a peer.
#[derive(Debug, Default)]
pub(super) struct Intake {
    set: Option<u64>,
    bucket: Option<Bucket>,
    waits: bool,
    held: u64,
}

impl Intake {
    /// What the peer is told at the begin of a connection.
    pub(super) fn said(&self) -> Option<u64> {
        self.set
    }
}

impl<P: Clone> Node<P> {
    /// Sends to a peer, and takes from it, at these rates from now on; the peer is told what is taken,
    /// so that its acknowledgements need not wait behind its messages. Nothing, if the peer was never
    /// connected.
    pub fn set_rates(&mut self, now: Time, peer: NodeId, rates: Rates) {
        let Some(it) = self.peers.get_mut(&peer) else {
            return;
        };
        it.pace.set(now, rates.send);
        if it.intake.set != rates.take {
            it.intake.set = rates.take;
            // The peer, which needs a moment to hear its rate, has a burst more than it uses.
            it.intake.bucket = rates.take.map(|rate| Bucket::new(rate, 2, now));
            if let Some(connection) = it.connection.and_then(|id| self.connections.get_mut(&id)) {
                connection.takes = Some(rates.take.unwrap_or(0));
            }
        }
    }

    /// How many bytes of a connection may be read now.
    ///
    /// # Errors
    ///
    /// None, until then: its peer has sent as many as are taken.
    pub fn may_take(&mut self, now: Time, id: ConnectionId) -> Result<usize, Time> {
        let peer = self.connections.get(&id).map(|it| it.with.node);
        let peer = peer.and_then(|node| self.peers.get_mut(&node));
        let Some(intake) = peer.map(|peer| &mut peer.intake) else {
            return Ok(usize::MAX);
        };
        let Some(bucket) = &mut intake.bucket else {
            return Ok(usize::MAX);
        };
        if bucket.has_some(now) {
            intake.waits = false;
            return Ok(usize::try_from(bucket.level).unwrap_or(usize::MAX));
        }
        intake.held += u64::from(!std::mem::replace(&mut intake.waits, true));
        Err(bucket.due())
    }

    /// So many bytes of a connection were read. Its peer is there, though it may be long until it has said
    /// a whole record.
    pub fn took(&mut self, now: Time, id: ConnectionId, bytes: usize) {
        let node = self.connections.get(&id).map(|it| it.with.node);
        let peer = node.and_then(|node| self.peers.get_mut(&node));
        let Some(bucket) = peer.and_then(|peer| peer.intake.bucket.as_mut()) else {
            return;
        };
        bucket.take(bytes as u64);
        if self.carries_for(id).is_some() {
            self.heard_on(now, id);
        }
    }

    /// The peer says how many bytes a second it takes; 0 is as many as come.
    pub(super) fn takes_said(&mut self, now: Time, peer: NodeId, bytes: u64) {
        if let Some(it) = self.peers.get_mut(&peer) {
            it.pace.say(now, Some(bytes).filter(|bytes| *bytes > 0));
        }
    }

    /// The rates that hold with a peer.
    pub fn rates(&self, peer: NodeId) -> RateView {
        let Some(it) = self.peers.get(&peer) else {
            return RateView::default();
        };
        RateView {
            set: Rates {
                send: it.pace.set,
                take: it.intake.set,
            },
            said: it.pace.said,
            sends_held: it.pace.held,
            takes_held: it.intake.held,
        }
    }
}
