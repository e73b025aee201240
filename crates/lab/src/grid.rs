//! Measures many messages at once, by load and by use.

use std::collections::HashMap;

use portolan::Protection;

use crate::clock::Timed;
use crate::copies::Copies;
use crate::error::Result;
use crate::experiment::{Context, Need};
use crate::outcome::Outcome;
use crate::pair::{Effort, Load, Pair, Use};

/// A load, and all that is to be done with it.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) load: Load,
    pub(crate) uses: Vec<Use>,
}

/// How the bytes go over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Way {
    Guarded,
    Trusted,
}

/// Whether the bytes were in cache before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Temper {
    Hot,
    Cold,
}

/// What was measured, found again by what it was.
#[derive(Debug, Default)]
pub(crate) struct Grid {
    moves: HashMap<(Way, Temper, Load, Use), Timed>,
    copies: HashMap<(Temper, u64, u8), Timed>,
}

impl Grid {
    /// Measures every plan one `way`, and adds to the earlier measurements: a caller that goes
    /// through the whole grid several times keeps a passing disturbance from hitting one figure
    /// alone. Plans that this machine cannot run are left out.
    pub(crate) fn moves(
        &mut self,
        context: &Context<'_>,
        outcome: &mut Outcome,
        (way, temper): (Way, Temper),
        plans: &[Plan],
        effort: Effort,
    ) -> Result<()> {
        let protection = match way {
            Way::Guarded => Protection::Guarded,
            Way::Trusted => Protection::Trusted,
        };
        if way == Way::Guarded
            && let Some(why) = context.lacks(Need::Guarded)
        {
            outcome.leave_out("guarded rows, mapped on demand and by receive", why);
            return Ok(());
        }
        let cold = (temper == Temper::Cold).then(|| context.cold_bytes());
        let largest = plans.iter().map(|plan| plan.load.bytes).max().unwrap_or(0);
        // A cold load has one message more than fill what is asked for, at the most.
        let room = largest + cold.unwrap_or(0);
        let mut pair = Pair::start(protection, room, context.cpus)?;
        for Plan { load, uses } in plans {
            context
                .progress
                .step(format!("{way:?} {temper:?} {}", size(load.bytes)));
            let mut loaded = pair.load(*load, cold)?;
            for &usage in uses {
                let timed = loaded.measure(usage, effort)?;
                let found = self.moves.entry((way, temper, *load, usage)).or_default();
                *found = std::mem::take(found).and(timed);
            }
        }
        pair.finish()
    }

    /// Measures copying of each size, once and twice, and adds to what was measured before.
    pub(crate) fn copies(
        &mut self,
        context: &Context<'_>,
        temper: Temper,
        sizes: &[u64],
        effort: Effort,
    ) -> Result<()> {
        let largest = sizes.iter().copied().max().unwrap_or(0);
        let bytes = match temper {
            Temper::Hot => largest,
            Temper::Cold => largest.max(context.cold_bytes()),
        };
        let mut copies = Copies::of(bytes)?;
        for &size in sizes.iter().filter(|&&size| size > 0) {
            context
                .progress
                .step(format!("copies {temper:?} {}", self::size(size)));
            for times in [1, 2] {
                let timed = copies.measure(size, times, temper == Temper::Cold, effort);
                let found = self.copies.entry((temper, size, times)).or_default();
                *found = std::mem::take(found).and(timed);
            }
        }
        Ok(())
    }

    /// One way for a message.
    pub(crate) fn moved(&self, way: Way, temper: Temper, load: Load, usage: Use) -> Option<&Timed> {
        self.moves.get(&(way, temper, load, usage))
    }

    /// Copying, so many times.
    pub(crate) fn copied(&self, temper: Temper, bytes: u64, times: u8) -> Option<&Timed> {
        self.copies.get(&(temper, bytes, times))
    }
}

/// A size as a row's or column's name.
pub(crate) fn size(bytes: u64) -> String {
    portolan_measure::out::size(bytes)
}
