//! Two channels as the link of a connection.

use crate::channel::{ReadError, Reader, Writer};
use crate::{Deadline, Disowned};
use portolan_proto::{Link, Settings, Time};
use rustix::time::{ClockId, Timespec, clock_getres, clock_gettime};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Units of each channel, a cache line each: what one side can be behind.
pub(super) const UNITS: u64 = 1024;

/// What both ends agree on, from the shape of the channels.
pub(super) fn settings(period: Duration) -> Settings {
    Settings {
        // 86 units: 11 of them in a ring.
        packet: 4096,
        // A reader copies one while others are written behind it.
        burst: 4,
        period,
        most_damaged: 2 * 1024,
        ..Settings::default()
    }
}

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
    static TICK: OnceLock<Duration> = OnceLock::new();
    let tick = TICK.get_or_init(|| {
        let tick = clock_getres(ClockId::MonotonicCoarse);
        Duration::try_from(tick).unwrap_or(Duration::from_millis(10))
    });
    lately().after(*tick)
}

/// When a limit is over that begins now: about, if it is a long one.
#[inline]
pub(super) fn deadline(limit: Duration) -> Time {
    const LONG: Duration = Duration::from_secs(1);
    let now = if limit < LONG { now() } else { soon() };
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

/// The channels of one end, for as long as its lock is held.
pub(super) struct Ends<'a> {
    pub(super) writer: &'a mut Writer,
    /// `None` while somebody waits with it.
    pub(super) reader: Option<&'a mut Reader>,
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

impl Link for Ends<'_> {
    fn position(&self) -> u64 {
        self.writer.position()
    }

    #[inline]
    fn send(&mut self, packet: &[u8]) {
        // A message-consistent channel takes everything. Who reads a reliable one and is
        // slow is asked, and asks, again.
        let _ = self.writer.write(packet, Deadline::NOW);
    }

    #[inline]
    fn receive(&mut self, packet: &mut Vec<u8>) -> Option<u64> {
        let reader = self.reader.as_deref_mut()?;
        loop {
            match reader.receive_to(packet) {
                Ok(position) => {
                    self.state.gone = false;
                    return Some(position);
                }
                Err(error) if self.state.learn(&error) => {}
                Err(_) => return None,
            }
        }
    }
}

/// Waits for a packet, and leaves it to be received; whether there is one.
#[inline]
pub(super) fn wait(reader: &mut Reader, until: Deadline, state: &mut LinkState) -> bool {
    loop {
        match reader.await_message(until) {
            Ok(()) => {
                state.gone = false;
                return true;
            }
            Err(error) if state.learn(&error) => {}
            Err(_) => return false,
        }
    }
}
