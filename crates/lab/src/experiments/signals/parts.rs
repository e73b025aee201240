//! Measures the components of Table 1 alone.

use std::time::Duration;

use crate::counter::Instructions;
use crate::error::Result;
use crate::experiment::Context;
use crate::stepped::OfSignal;
use crate::steps::{self, BURST, Locked, Signals};

/// The components that we can tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Into the kernel and back.
    Trap,
    /// Who handles this address?
    Find,
    /// Into the locked queue.
    Insert,
    /// Into the handlers' FIFO.
    Push,
    /// Out of the FIFO, and to the handler.
    Take,
    /// Out of the locked queue.
    Remove,
}

pub(super) const PARTS: usize = 6;

/// What each part takes, slice by slice, in seconds.
pub(super) struct Parts {
    signals: Signals,
    queue: Locked,
    times: [Vec<f64>; PARTS],
}

impl Parts {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            signals: Signals::new()?,
            queue: Locked::new(),
            times: Default::default(),
        })
    }

    pub(super) fn slice(&mut self, context: &Context<'_>) {
        let least = context.pick(Duration::from_micros(100), Duration::from_millis(2));
        let rounds = context.pick(20, 200);
        let trap = steps::once(least, steps::trap);
        let find = steps::once(least, || self.signals.to_nobody());
        let [insert, remove] = steps::locked(&mut self.queue, rounds);
        let [push, take] = steps::signalled(&mut self.signals, rounds);
        let all = [
            (Part::Trap, trap),
            (Part::Find, find),
            (Part::Insert, insert),
            (Part::Push, (push - find).max(0.0)),
            (Part::Take, take),
            (Part::Remove, remove),
        ];
        for (part, time) in all {
            self.times[part as usize].push(time);
        }
    }

    /// Slice by slice.
    pub(super) fn times(&self, part: Part) -> &[f64] {
        &self.times[part as usize]
    }

    /// Instructions of each part, where they can be counted: what takes place on one processor.
    pub(super) fn count(&mut self, counter: &mut Instructions) -> [Option<f64>; PARTS] {
        // The same bursts as are timed.
        let each = |counted: Option<[f64; 2]>| {
            let all = counted.map(|both| both.map(|count| count / BURST as f64));
            [0, 1].map(|at: usize| Some(all?[at]))
        };
        let find = counter.each(|| self.signals.to_nobody());
        let bursts = counter.of_rounds(&mut self.signals, steps::signal_burst, Signals::take);
        let [push, take] = each(bursts);
        let bursts = counter.of_rounds(&mut self.queue, steps::insert_burst, steps::remove_burst);
        let [insert, remove] = each(bursts);
        let less = |all: Option<f64>, part: Option<f64>| Some((all? - part?).max(0.0));
        let mut counts = [None; PARTS];
        counts[Part::Trap as usize] = counter.each(steps::trap);
        counts[Part::Find as usize] = find;
        counts[Part::Push as usize] = less(push, find);
        counts[Part::Take as usize] = take;
        counts[Part::Insert as usize] = insert;
        counts[Part::Remove as usize] = remove;
        counts
    }
}

/// The same, where they were counted by stepping through them.
pub(super) fn stepped(counted: &OfSignal) -> [Option<f64>; PARTS] {
    let mut counts = [None; PARTS];
    for (part, count) in [
        (Part::Trap, counted.trap),
        (Part::Find, counted.find),
        (Part::Push, counted.signal - counted.find),
        (Part::Take, counted.take),
        (Part::Insert, counted.insert),
        (Part::Remove, counted.remove),
    ] {
        counts[part as usize] = Some(count);
    }
    counts
}
