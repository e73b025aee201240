//! Measures Portolan's signals: each side signals a line of the other, and carries nothing.
//!
//! A domain with one shared segment: a line of the coordinator's, one of the peer's, and
//! behind them what handlers of a third party are told of, where a row has any. Both
//! sides say how they want to be told by the case's mode.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use portolan::{
    Deadline, Delivery, Domain, Listener, ListenerOptions, Note, Segment, Token, WaitSet, Waiting,
};

use super::Endpoint;
use super::memory::{LINE_PAIR, Spin};
use super::portolan::{MEETING, join, parent};
use crate::case::{Case, Mode, Placement, Shape};
use crate::error::{MeasureError, Result};

/// What all signals of a row lie in.
pub(super) const SEGMENT: &str = "signals";
/// Where the ranges of those that are not told begin.
const BESIDE: usize = 4096;
/// Room for each of these ranges.
const STRIDE: usize = 4096;
/// Their lengths, in turn: blocks of one size, and of several.
const LENGTHS: [usize; 4] = [64, 512, 4096, 1000];

/// One side of a row of signals.
pub(crate) struct Signal {
    to: usize,
    told: Told,
    /// A listener that has handlers and is never told.
    _beside: Vec<Listener>,
    _segment: Segment,
    domain: Domain,
}

/// How one side is told.
pub(super) enum Told {
    /// It waits, in whatever way.
    Waits(Listener),
    /// It waits for a descriptor.
    Descriptor(WaitSet, Token<Listener>),
    /// It is interrupted while it computes, and then sees that it was.
    Interrupted {
        _listener: Listener,
        note: Arc<Note>,
        seen: u64,
        spin: Spin,
    },
}

impl Told {
    pub(super) fn new(case: &Case, domain: &Domain, range: Range<usize>) -> Result<Self> {
        let options = ListenerOptions::default().waiting(Waiting::Sleep);
        let mut listener = domain.listen(options).map_err(listening)?;
        let delivery = match (case.mode, case.placement) {
            (Mode::Upcall, _) => {
                let (_, note) = listener.note(range).map_err(listening)?;
                return Ok(Self::Interrupted {
                    _listener: listener,
                    note,
                    seen: 0,
                    spin: Spin::new(case),
                });
            }
            (Mode::Poll, Placement::TwoCpus) => Delivery::POLLED,
            (Mode::Monitor, Placement::TwoCpus) => Delivery::MONITORED,
            // Polling on one CPU would only keep the other side from running.
            _ => Delivery::DOORBELL,
        };
        listener.on_by(delivery, range, |_| {}).map_err(listening)?;
        if case.shape != Shape::Descriptor {
            return Ok(Self::Waits(listener));
        }
        let mut set = WaitSet::new(domain).map_err(setting)?;
        let token = set.add(listener).map_err(setting)?;
        Ok(Self::Descriptor(set, token))
    }

    #[inline(always)]
    pub(super) fn wait(&mut self) -> Result<()> {
        match self {
            Self::Waits(listener) => {
                let told = listener.wait(Deadline::NEVER);
                told.map(|_| ()).ok_or(MeasureError::Gone)
            }
            Self::Interrupted {
                note, seen, spin, ..
            } => {
                *seen += 1;
                spin.until(|| note.count() == *seen);
                Ok(())
            }
            Self::Descriptor(set, token) => loop {
                let ready = set.wait(Deadline::NOW).map_err(setting)?;
                if !ready.is_empty() && set.get_mut(*token).is_some_and(|l| l.poll() > 0) {
                    return Ok(());
                }
                portolan_sys::process::poll(&[set.as_fd()], None)
                    .map_err(MeasureError::system("polling a wait set"))?;
            },
        }
    }
}

impl Signal {
    fn new(case: &Case, domain: Domain, segment: Segment, ours: usize) -> Result<Self> {
        let line = |side: usize| segment.address() + side * LINE_PAIR;
        let mut told = Told::new(case, &domain, line(ours)..line(ours) + LINE_PAIR)?;
        if let (Shape::OwnRanges(_), Told::Waits(listener)) = (case.shape, &mut told) {
            for range in ranges_beside(case, &segment) {
                listener.on(range, |_| {}).map_err(listening)?;
            }
        }
        Ok(Self {
            to: line(1 - ours),
            told,
            _beside: Vec::new(),
            _segment: segment,
            domain,
        })
    }
}

/// How many handlers a row has beside those of its two sides.
fn beside(case: &Case) -> usize {
    match case.shape {
        Shape::Ranges(beside) | Shape::OwnRanges(beside) | Shape::Listeners(beside) => {
            beside as usize
        }
        _ => 0,
    }
}

/// What they are for.
fn ranges_beside(case: &Case, segment: &Segment) -> impl Iterator<Item = Range<usize>> {
    let first = segment.address() + BESIDE;
    let lengths = LENGTHS.into_iter().cycle();
    let starts = (0..beside(case)).map(move |index| first + index * STRIDE);
    starts
        .zip(lengths)
        .map(|(start, length)| start..start + length)
}

/// Makes the handlers of listeners that are never told.
fn bystanders(case: &Case, domain: &Domain, segment: &Segment) -> Result<Vec<Listener>> {
    let mut listeners: Vec<Listener> = Vec::new();
    if matches!(case.shape, Shape::OwnRanges(_)) {
        return Ok(listeners);
    }
    for range in ranges_beside(case, segment) {
        if listeners.is_empty() || matches!(case.shape, Shape::Listeners(_)) {
            let listener = domain.listen(ListenerOptions::default());
            listeners.push(listener.map_err(listening)?);
        }
        if let Some(last) = listeners.last_mut() {
            last.on(range, |_| {}).map_err(listening)?;
        }
    }
    Ok(listeners)
}

fn listening(error: portolan::SignalError) -> MeasureError {
    MeasureError::library("listening to a benchmark's signals")(error)
}

fn setting(error: impl std::error::Error + Send + Sync + 'static) -> MeasureError {
    MeasureError::library("waiting for a benchmark's signals")(error)
}

pub(super) fn sharing(error: impl std::error::Error + Send + Sync + 'static) -> MeasureError {
    MeasureError::library("sharing a benchmark's segment")(error)
}

impl Endpoint for Signal {
    fn create(case: &Case) -> Result<(Self, Vec<OwnedFd>)> {
        let domain = join(case, std::process::id())?;
        let bytes = BESIDE + beside(case) * STRIDE;
        let segment = domain.make_segment(Some(SEGMENT), bytes).map_err(sharing)?;
        let beside = bystanders(case, &domain, &segment)?;
        let mut end = Self::new(case, domain, segment, 0)?;
        end._beside = beside;
        Ok((end, Vec::new()))
    }

    fn attach(case: &Case, _seat: u32, _descriptors: Vec<OwnedFd>) -> Result<Self> {
        let domain = join(case, parent()?)?;
        let segment = domain.find_segment(SEGMENT, MEETING).map_err(sharing)?;
        Self::new(case, domain, segment, 1)
    }

    #[inline(always)]
    fn send(&mut self) -> Result<()> {
        let reached = self
            .domain
            .signal(self.to)
            .map_err(MeasureError::library("signalling in a benchmark"))?;
        if reached == 1 {
            Ok(())
        } else {
            Err(MeasureError::Gone)
        }
    }

    #[inline(always)]
    fn receive(&mut self) -> Result<()> {
        self.told.wait()
    }
}
