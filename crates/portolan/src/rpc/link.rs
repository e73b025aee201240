//! Carries a connection's packets over two channels.

use crate::channel::{Interrupter, ReadError, Reader, Writer};
use crate::{Deadline, Disowned};
use portolan_abi::channel::UNIT_HEAD_WORDS;
use portolan_abi::rpc::HEADER_BYTES;
use portolan_proto::{Arrived, Flags, Header, PacketPath, Settings, Time, Unsealed};
use portolan_shm::bulk::{self, summed};
use portolan_shm::channel::{CopyOut, Fill};
use rustix::time::{ClockId, Timespec, clock_getres, clock_gettime};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Units of the channel in which those are answered that share one, a cache line each.
pub(super) const UNITS: u64 = 1024;
/// Bytes of a unit of a connection's own channels: of a call without arguments it takes the
/// first line, of one with 1 KiB all 17, one after another.
pub(super) const OWN_UNIT: usize = 1088;
/// How many there are: what one side can be behind. Twice the calls that can be open.
pub(super) const OWN_UNITS: u64 = 2 * portolan_proto::WINDOW;
/// Bytes of a packet there: four units.
const OWN_PACKET: usize = 4 * (OWN_UNIT - 8 * UNIT_HEAD_WORDS);

/// What both ends agree on, from the shape of the channels.
pub(super) fn settings(period: Duration, shares: bool) -> Settings {
    Settings {
        // Where many write a packet is one unit.
        packet: if shares { SHARED_PACKET } else { OWN_PACKET },
        // A quarter of a ring: a reader copies some while others are written behind it.
        burst: 8,
        period,
        most_damaged: 2 * 1024,
        ..Settings::default()
    }
}

/// Looks for a packet before a thread waits in earnest: about as long as ten of the shortest
/// calls take.
pub(super) const LOOKS: u32 = 256;
/// The first looks are made without a pause.
pub(super) const EAGER: u32 = 64;

/// Now, on the clock that every space has.
pub(super) fn now() -> Time {
    from_timespec(clock_gettime(ClockId::Monotonic))
}

#[inline]
fn from_timespec(time: Timespec) -> Time {
    let part = |n: i64| u64::try_from(n).unwrap_or(0);
    Time(part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec))
}

/// Now, or a little later: never before now. Reading the very time takes as long as all else
/// that a small call needs on one side.
#[inline]
pub(super) fn soon() -> Time {
    // Relaxed: it is the same for all who ask.
    static TICK: AtomicU64 = AtomicU64::new(0);
    let mut tick = TICK.load(Ordering::Relaxed);
    if tick == 0 {
        tick = coarse_tick();
        TICK.store(tick, Ordering::Relaxed);
    }
    Time(lately().0.saturating_add(tick))
}

/// Nanoseconds between two times that [`lately`] tells, at most.
#[cold]
fn coarse_tick() -> u64 {
    let tick = Duration::try_from(clock_getres(ClockId::MonotonicCoarse));
    Time::ZERO
        .after(tick.unwrap_or(Duration::from_millis(10)))
        .0
        .max(1)
}

/// When a limit is over that begins now, at the moment `soon`: about, if it is a long one.
#[inline]
pub(super) fn deadline(soon: Time, limit: Duration) -> Time {
    const LONG: Duration = Duration::from_secs(1);
    let now = if limit < LONG { now() } else { soon };
    now.after(limit)
}

/// Now, or a little earlier: never after now.
#[inline]
pub(super) fn lately() -> Time {
    from_timespec(clock_gettime(ClockId::MonotonicCoarse))
}

/// A moment as one on that clock.
pub(super) fn time(at: Instant) -> Time {
    now().after(at.saturating_duration_since(Instant::now()))
}

/// A moment on that clock as one of ours.
pub(super) fn instant(at: Time) -> Instant {
    Instant::now() + at.since(now())
}

/// What tells a call from all others in a trace, for both sides.
pub(super) fn trace_number(session: u64, number: u64) -> u64 {
    // Sessions are random; numbers of one session's calls follow one another.
    session.rotate_left(20) ^ number
}

/// Bytes of a packet on a channel that many connections share; and of what says whose it is.
const SHARED_PACKET: usize = 1024;
const SHARED_HEAD: usize = 16;
/// Bytes of a unit of a channel on which many clients call.
pub(super) const SHARED_UNIT: usize = 1088;
/// And how many it has.
pub(super) const SHARED_UNITS: u64 = 128;
// Two words of the unit's head, and one of checksum at most.
const _: () = assert!(SHARED_HEAD + SHARED_PACKET + 24 <= SHARED_UNIT);

/// Where the packets of one connection go: to a channel of its own while it has one, else to
/// one that it shares, where each says whose it is and which one of those.
#[derive(Default)]
pub(super) struct Ways {
    own: Option<Writer>,
    shared: Option<SharedWay>,
    on_own: bool,
}

pub(super) struct SharedWay {
    pub(super) writer: Arc<Mutex<Writer>>,
    pub(super) session: u64,
    pub(super) sent: u64,
}

impl Ways {
    pub(super) fn own(writer: Writer) -> Self {
        let mut ways = Self::default();
        ways.promote(writer);
        ways
    }

    pub(super) fn shared(writer: &Arc<Mutex<Writer>>, session: u64) -> Self {
        Self {
            own: None,
            shared: Some(SharedWay {
                writer: Arc::clone(writer),
                session,
                sent: 0,
            }),
            on_own: false,
        }
    }

    /// From now on in a channel of its own.
    pub(super) fn promote(&mut self, mut writer: Writer) {
        // Measured: a thread that waits for an answer gets it sooner so (`docs/bench.md`).
        writer.keep_barriers();
        self.own = Some(writer);
        self.on_own = true;
    }

    /// From now on in the one that it shares.
    pub(super) fn demote(&mut self) {
        self.own = None;
        self.on_own = false;
    }

    /// Answers go where calls come from.
    #[inline]
    pub(super) fn heard(&mut self, on_own: bool) {
        self.on_own = on_own && self.own.is_some();
    }

    /// Whether there is a channel of its own.
    pub(super) fn has_own(&self) -> bool {
        self.own.is_some()
    }

    /// The channel of its own; and how many packets went to one that it shares, if it does.
    pub(super) fn into_parts(self) -> (Option<Writer>, Option<u64>) {
        (self.own, self.shared.map(|shared| shared.sent))
    }

    /// So many packets went to the channel that it shares before, from another process.
    pub(super) fn go_on(mut self, sent: u64) -> Self {
        if let Some(shared) = &mut self.shared {
            shared.sent = sent;
        }
        self
    }

    #[inline(always)]
    fn position(&self) -> u64 {
        match (&self.own, &self.shared) {
            (Some(writer), _) if self.on_own => writer.position(),
            (_, Some(shared)) => shared.sent,
            _ => 0,
        }
    }

    /// Seals a packet while it is copied to its place, where that is one unit of a channel of
    /// its own; if not, before.
    #[inline(always)]
    fn send_unsealed(&mut self, packet: &Unsealed<'_>) {
        if let Some(writer) = &mut self.own
            && self.on_own
            && packet.place().is_empty()
        {
            // The straight line.
            let len = HEADER_BYTES + packet.body().len();
            if writer.write_straight(len, Whole(packet)).is_some() {
                return;
            }
        }
        self.send_unsealed_any(packet);
    }

    #[inline(never)]
    fn send_unsealed_any(&mut self, packet: &Unsealed<'_>) {
        let (place, body) = (packet.place(), packet.body());
        if let Some(writer) = &mut self.own
            && self.on_own
        {
            let len = HEADER_BYTES + place.len() + body.len();
            let copy = |words: &[AtomicU64]| fill(words, packet);
            if writer.write_with(len, copy) != Ok(false) {
                return;
            }
        }
        let sum = if packet.is_summed() {
            summed::of(body)
        } else {
            0
        };
        let [w0, w1] = packet.head(sum).map(u64::to_le_bytes);
        self.send(&[&w0, &w1, place, body]);
    }

    #[inline]
    fn send(&mut self, parts: &[&[u8]; 4]) {
        // A message-consistent channel takes everything. A client that reads a reliable one and is
        // slow is asked, and asks, again.
        match (&mut self.own, &mut self.shared) {
            (Some(writer), _) if self.on_own => {
                let _ = writer.write_parts(parts, Deadline::NOW);
            }
            (_, Some(shared)) => {
                let [session, sent] = [shared.session, shared.sent].map(u64::to_le_bytes);
                shared.sent += 1;
                let [first, second, third, fourth] = *parts;
                let all = [&session, &sent, first, second, third, fourth];
                let _ = lock(&shared.writer).write_parts(&all, Deadline::NOW);
            }
            _ => {}
        }
    }
}

/// Copies a packet to the beginning of words that have room for it, and seals it.
fn fill(words: &[AtomicU64], packet: &Unsealed<'_>) {
    let (place, body) = (packet.place(), packet.body());
    let (head, rest) = words.split_at(HEADER_BYTES / 8);
    let (before, rest) = rest.split_at(place.len().div_ceil(8));
    // Further lines are written first, because the reader watches this one.
    let sum = if packet.is_summed() {
        summed::store(rest, body)
    } else {
        bulk::store(rest, body);
        0
    };
    bulk::store(before, place);
    for (word, value) in head.iter().zip(packet.head(sum)) {
        // Relaxed: the unit's stamp publishes it.
        word.store(value, Ordering::Relaxed);
    }
}

/// A packet that is no piece of a message.
struct Whole<'a, 'p>(&'a Unsealed<'p>);

impl Fill for Whole<'_, '_> {
    /// As [`fill`].
    #[inline(always)]
    fn fill(self, words: &[AtomicU64]) {
        let packet = self.0;
        let (head, rest) = words.split_at(HEADER_BYTES / 8);
        let sum = if packet.is_summed() {
            summed::store(rest, packet.body())
        } else {
            bulk::store(rest, packet.body());
            0
        };
        for (word, value) in head.iter().zip(packet.head(sum)) {
            word.store(value, Ordering::Relaxed);
        }
    }
}

/// Where the head, and the sum, of a packet go whose body is copied here.
struct Apart<'b>(&'b mut Vec<u8>);

impl CopyOut for Apart<'_> {
    type Made = ([u64; 2], u64);

    #[inline(always)]
    fn copy_out(self, words: &[AtomicU64], len: usize) -> Option<Self::Made> {
        let body = self.0;
        let (head, rest) = words.split_at_checked(HEADER_BYTES / 8)?;
        let len = len.checked_sub(HEADER_BYTES)?;
        // Relaxed: its stamp has published the unit, and is compared again afterwards.
        let head = [0, 1].map(|i: usize| head[i].load(Ordering::Relaxed));
        if Header::flags(head).has(Flags::PIECE) {
            return None;
        }
        if len > body.len() {
            lengthen(body, len);
        }
        body.truncate(len);
        let sum = if Header::flags(head).has(Flags::UNCHECKED) {
            bulk::load(rest, body);
            0
        } else {
            summed::load(rest, body)
        };
        Some((head, sum))
    }
}

/// A packet of a channel that many share: whose, which, and the packet itself.
pub(super) fn of_many(message: &[u8]) -> Option<(u64, u64, &[u8])> {
    let (session, rest) = message.split_first_chunk::<8>()?;
    let (sent, packet) = rest.split_first_chunk::<8>()?;
    Some((
        u64::from_le_bytes(*session),
        u64::from_le_bytes(*sent),
        packet,
    ))
}

/// Where the packets of one connection come from.
pub(super) struct Inlet {
    reader: Reader,
    /// Others' packets come there too.
    session: Option<u64>,
}

impl Inlet {
    pub(super) fn own(reader: Reader) -> Self {
        let session = None;
        Self { reader, session }
    }

    pub(super) fn shared(reader: Reader, session: u64) -> Self {
        let session = Some(session);
        Self { reader, session }
    }

    pub(super) fn interrupter(&mut self) -> Interrupter {
        self.reader.interrupter()
    }

    pub(super) fn into_reader(self) -> Reader {
        self.reader
    }

    #[inline]
    pub(super) fn spins(&self) -> bool {
        self.reader.spins()
    }

    /// Looks for a packet for as long as some short calls take, unless it is `enough`; whether
    /// there may be one. One look, if it does not spin.
    #[inline]
    pub(super) fn comes_soon(&self, enough: impl Fn() -> bool) -> bool {
        for look in 0..LOOKS {
            if self.has_more() {
                return true;
            }
            if enough() || look == 0 && !self.spins() {
                return false;
            }
            if look > EAGER {
                std::hint::spin_loop();
            }
        }
        false
    }

    #[inline]
    pub(super) fn has_more(&self) -> bool {
        self.reader.has_more()
    }

    /// The next packet, if it lies in one unit of a channel of its own: summed as it is copied.
    #[inline(always)]
    fn receive_straight(&mut self, state: &mut LinkState, body: &mut Vec<u8>) -> Option<Arrived> {
        if self.session.is_some() {
            return None;
        }
        let (position, (head, sum)) = self.reader.take_with(Apart(body))?;
        state.gone = false;
        Some(Arrived {
            position,
            head: Some(head),
            sum,
        })
    }

    /// The next packet, in place of what `packet` holds, and its position.
    #[inline]
    fn receive(&mut self, state: &mut LinkState, packet: &mut Vec<u8>) -> Option<u64> {
        loop {
            match self.reader.receive_to(packet) {
                Ok(position) => {
                    state.gone = false;
                    let Some(ours) = self.session else {
                        return Some(position);
                    };
                    if let Some((session, sent, _)) = of_many(packet)
                        && session == ours
                    {
                        packet.drain(..SHARED_HEAD);
                        return Some(sent);
                    }
                }
                Err(error) if state.learn(&error) => {}
                Err(_) => return None,
            }
        }
    }
}

/// So many bytes, of which the new ones are zeros.
#[inline(never)]
fn lengthen(bytes: &mut Vec<u8>, len: usize) {
    bytes.resize(len, 0);
}

/// Looks so often whether what runs has ended.
pub(super) const LOOK: Duration = Duration::from_millis(1);

/// A poisoned lock is as good: nothing is left half-written in what it guards.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where packets are read from, for now.
pub(super) enum Source<'a> {
    /// Nowhere: a thread waits with the reader, or nothing is to be read.
    None,
    Inlet(&'a mut Inlet),
    /// One that was read for this connection, and its position.
    Given(&'a mut Option<(u64, Vec<u8>)>),
}

/// The channels of one end, for as long as its lock is held.
pub(super) struct Ends<'a> {
    pub(super) ways: &'a mut Ways,
    pub(super) source: Source<'a>,
    pub(super) state: &'a mut LinkState,
}

/// What reading has shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LinkState {
    /// The other side's writer has left; it may come again.
    pub(super) gone: bool,
    /// Nothing will come any more.
    pub(super) over: Option<Disowned>,
    pub(super) broken: bool,
}

impl LinkState {
    /// Whether nothing is wrong.
    #[inline]
    pub(super) fn is_fine(&self) -> bool {
        !self.gone && self.over.is_none() && !self.broken
    }

    /// What an error of a reader means; whether to look again at once.
    pub(super) fn learn(&mut self, error: &ReadError) -> bool {
        match error {
            ReadError::Missed(_) | ReadError::TooLong { .. } => return true,
            ReadError::TimedOut | ReadError::Interrupted => {}
            ReadError::WriterGone => self.gone = true,
            ReadError::Disowned(why) => self.over = Some(*why),
            _ => self.broken = true,
        }
        false
    }
}

impl PacketPath for Ends<'_> {
    #[inline(always)]
    fn position(&self) -> u64 {
        self.ways.position()
    }

    fn send(&mut self, packet: &[u8]) {
        self.ways.send(&[packet, &[], &[], &[]]);
    }

    #[inline(always)]
    fn send_unsealed(&mut self, packet: &Unsealed<'_>, _spare: &mut Vec<u8>) {
        self.ways.send_unsealed(packet);
    }

    #[inline(never)]
    fn receive(&mut self, packet: &mut Vec<u8>) -> Option<u64> {
        match &mut self.source {
            Source::Inlet(inlet) => inlet.receive(self.state, packet),
            Source::Given(given) => {
                let (position, bytes) = given.take()?;
                *packet = bytes;
                Some(position)
            }
            Source::None => None,
        }
    }

    fn receive_summed(&mut self, body: &mut Vec<u8>) -> Option<Arrived> {
        if let Some(arrived) = self.receive_straight(body) {
            return Some(arrived);
        }
        let position = self.receive(body)?;
        Some(Arrived::of(position, body, summed::of))
    }

    /// One look for a packet that lies in one unit of a channel of its own.
    #[inline(always)]
    fn receive_straight(&mut self, body: &mut Vec<u8>) -> Option<Arrived> {
        match &mut self.source {
            Source::Inlet(inlet) => inlet.receive_straight(self.state, body),
            Source::Given(_) | Source::None => None,
        }
    }
}

/// Waits for a packet, and leaves it to be received; whether there is one, if only another's.
#[inline]
pub(super) fn wait(inlet: &mut Inlet, until: Deadline, state: &mut LinkState) -> bool {
    loop {
        match inlet.reader.await_message(until) {
            Ok(()) => {
                state.gone = false;
                return true;
            }
            Err(error) if state.learn(&error) => {}
            Err(_) => return false,
        }
    }
}
