//! Runs two processes that send a message to and fro, each with its own stop watch.
//!
//! ```text
//!       begun        notice                         done
//! A ------|--- send ---|  (after it)  | looks, sleeps ...
//!                       \ passage
//! B  ... asleep ---------|--- receive, access ---|--- send ---|
//!                      noticed                  done        notice
//! ```
//!
//! Each writes what it passed into a window that both share. Counters of two processors
//! may differ by a little; the difference falls out of the mean of both ways.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use portolan::probes::{self, Point, Points};
use portolan::{
    Access, Deadline, Domain, Message, PortOptions, Protection, ReceiveRight, SendRight, Waiting,
};
use portolan_measure::child::{Child, Control};
use portolan_measure::{MeasureError, cpus};
use portolan_sys::shared::Window;
use portolan_sys::ticks;
use serde::{Deserialize, Serialize};

use super::load::Load;
use super::statistics::Statistics;
use super::trace::{Passage, Trace};
use crate::error::{LabError, Result};
use crate::experiment::Context;

/// Round trips between two looks into the window.
pub(super) const BATCH: usize = 2000;
/// Round trips before those that count: the peer wakes, caches fill.
const WARM: usize = 16;
/// A message that takes longer does not come any more.
const PATIENCE: Duration = Duration::from_secs(10);

/// Which protection and which way of waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// The paper's: closed and opened, asleep before each message.
    GuardedAsleep,
    /// The same, but both sides poll.
    GuardedAwake,
    /// Nothing is closed, and both sides poll.
    TrustedAwake,
}

impl Kind {
    fn protection(self) -> Protection {
        match self {
            Self::GuardedAsleep | Self::GuardedAwake => Protection::Guarded,
            Self::TrustedAwake => Protection::Trusted,
        }
    }

    fn waiting(self) -> Waiting {
        match self {
            Self::GuardedAsleep => Waiting::Sleep,
            Self::GuardedAwake | Self::TrustedAwake => Waiting::Poll,
        }
    }

    pub(super) fn passage(self) -> Passage {
        match self {
            Self::GuardedAsleep => Passage::WAKE,
            Self::GuardedAwake | Self::TrustedAwake => Passage::LINE,
        }
    }
}

/// What the other process is told.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Brief {
    domain: String,
    kind: Kind,
    load: Load,
    cpu: usize,
}

/// To the other process: so many round trips.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    rounds: usize,
    probed: bool,
}

/// Back: ready, or done.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {}

/// One of the two.
struct End {
    port: ReceiveRight,
    right: SendRight,
    load: Load,
    message: Message,
    _domain: Domain,
}

impl End {
    fn join(domain: &str, kind: Kind, load: Load, [ours, theirs]: [&str; 2]) -> Result<Self> {
        let doing = "joining the breakdown's domain";
        let domain = Domain::builder(domain)
            .protection(kind.protection())
            .limit(64 << 20)
            .join()
            .map_err(LabError::library(doing))?;
        let mut port = domain
            .bind(PortOptions::named(ours).inline_bytes(load.inline_bytes()))
            .map_err(LabError::library(doing))?;
        port.set_waiting(kind.waiting());
        let right = domain
            .connect(theirs, PATIENCE)
            .map_err(LabError::library(doing))?;
        Ok(Self {
            port,
            right,
            load,
            message: Message::default(),
            _domain: domain,
        })
    }

    #[inline]
    fn send(&mut self) -> Result<()> {
        self.right
            .send_from(&mut self.message, Deadline::NOW)
            .map_err(LabError::library("sending to the other process"))?;
        probes::pass(Point::SendReturned);
        Ok(())
    }

    #[inline]
    fn receive(&mut self, deadline: Instant) -> Result<()> {
        self.port
            .receive_into(&mut self.message, Access::Later, deadline)
            .map_err(LabError::library("receiving from the other process"))?;
        probes::pass(Point::ReceiveReturned);
        self.load.touch(&mut self.message);
        Ok(())
    }
}

/// Where the two leave what they passed.
struct Traces(Window);

impl Traces {
    /// Side 0 is the one that begins.
    fn first(side: usize, round: usize) -> usize {
        (side * BATCH + round) * Trace::WORDS
    }

    fn create() -> Result<Self> {
        let window = Window::create(2 * BATCH * Trace::WORDS * 8);
        let window = window.map_err(LabError::library("making a window"))?;
        Ok(Self(window))
    }

    fn write(&self, side: usize, round: usize, trace: &Trace) {
        for (at, word) in trace.words().enumerate() {
            // Relaxed: the answer that ends the batch orders it.
            let place = self.0.word(Self::first(side, round) + at);
            place.store(word, Ordering::Relaxed);
        }
    }

    fn read(&self, side: usize, round: usize) -> Trace {
        let first = Self::first(side, round);
        Trace::from_words(|at| self.0.word(first + at).load(Ordering::Relaxed))
    }
}

/// The process that begins, with the other process at its order.
pub(super) struct Pair {
    end: End,
    peer: Child,
    traces: Traces,
    kind: Kind,
}

impl Pair {
    pub(super) fn start(context: &Context<'_>, kind: Kind, load: Load) -> Result<Self> {
        // A name of its own: the one before may not be gone yet.
        let domain = format!("lab-breakdown-{}-{:x}", std::process::id(), ticks::now());
        let traces = Traces::create()?;
        let brief = crate::child::Brief::Breakdown(Brief {
            domain: domain.clone(),
            kind,
            load,
            cpu: context.cpus.peer(0),
        });
        let mut peer = Child::start("other side of the breakdown", &brief, &[traces.0.fd()])?;
        let mut end = End::join(&domain, kind, load, ["one", "other"])?;
        let Answer {} = peer.expect()?;
        peer.watch()?;
        end.message = load.message(&end._domain)?;
        Ok(Self {
            end,
            peer,
            traces,
            kind,
        })
    }

    /// So many round trips, at most a batch, with a probe at either end only.
    pub(super) fn plain(&mut self, rounds: usize, statistics: &mut Statistics) -> Result<()> {
        let rounds = rounds.min(BATCH);
        self.order(rounds, false)?;
        let deadline = Instant::now() + PATIENCE;
        probes::turn_on([Point::Empty].into_iter().collect());
        for round in 0..WARM + rounds {
            probes::begin();
            self.end.send()?;
            self.end.receive(deadline)?;
            probes::pass(Point::Empty);
            if round >= WARM {
                statistics.plain(&Trace::of(&probes::collect()));
            }
        }
        probes::turn_off();
        statistics.end_batch();
        let Answer {} = self.peer.expect()?;
        Ok(())
    }

    /// So many round trips with all probes on.
    pub(super) fn probed(&mut self, rounds: usize, statistics: &mut Statistics) -> Result<()> {
        let mut left = rounds;
        while left > 0 {
            let rounds = left.min(BATCH);
            left -= rounds;
            self.order(rounds, true)?;
            let deadline = Instant::now() + PATIENCE;
            probes::turn_on(Points::ALL);
            for round in 0..WARM + rounds {
                probes::begin();
                self.end.send()?;
                self.end.receive(deadline)?;
                if let Some(round) = round.checked_sub(WARM) {
                    self.traces.write(0, round, &Trace::of(&probes::collect()));
                }
            }
            probes::turn_off();
            let Answer {} = self.peer.expect()?;
            for round in 0..rounds {
                let (one, other) = (self.traces.read(0, round), self.traces.read(1, round));
                // The one's message begins with its watch; the answer when the other is done
                // with what it got.
                statistics.way(self.kind.passage(), one.begun, &one, &other);
                statistics.way(
                    self.kind.passage(),
                    other.at(Point::AccessDone),
                    &other,
                    &one,
                );
            }
            statistics.end_batch();
        }
        Ok(())
    }

    fn order(&mut self, rounds: usize, probed: bool) -> Result<()> {
        Ok(self.peer.send(&Order { rounds, probed })?)
    }

    pub(super) fn finish(self) -> Result<()> {
        Ok(self.peer.dismiss()?)
    }
}

/// The other process.
pub(crate) fn serve(brief: &Brief, control: &Control, descriptors: Vec<OwnedFd>) -> Result<()> {
    cpus::pin(brief.cpu)?;
    let window = descriptors.into_iter().next();
    let window = window.ok_or(MeasureError::NoCoordinator)?;
    let window = Window::from_fd(window).map_err(LabError::library("mapping a window"))?;
    let traces = Traces(window);
    let mut end = End::join(&brief.domain, brief.kind, brief.load, ["other", "one"])?;
    control.send(&Answer {})?;
    while let Some(Order { rounds, probed }) = control.receive()? {
        let deadline = Instant::now() + PATIENCE;
        probes::turn_on(if probed {
            Points::ALL
        } else {
            Points::default()
        });
        for round in 0..WARM + rounds {
            if probed {
                probes::begin();
            }
            end.receive(deadline)?;
            end.send()?;
            if let (true, Some(round)) = (probed, round.checked_sub(WARM)) {
                traces.write(1, round, &Trace::of(&probes::collect()));
            }
        }
        probes::turn_off();
        control.send(&Answer {})?;
    }
    Ok(())
}
