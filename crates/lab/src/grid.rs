//! Measures many messages at once, by load and by use.

use std::collections::HashMap;

use portolan::Protection;

use crate::clock::Timed;
use crate::copies::Copies;
use crate::error::Result;
use crate::experiment::{Context, Need};
use crate::huge;
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

/// How the two sides wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Waits {
    /// Both on one processor and asleep, two context switches a round: as the papers' did.
    Asleep,
    /// Each on its own, awake.
    Polling,
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
    moves: HashMap<(Waits, Way, Temper, Load, Use), Timed>,
    copies: HashMap<(Temper, u64, u8), Timed>,
}

impl Waits {
    /// Those that this machine has.
    pub(crate) fn here(context: &Context<'_>, outcome: &mut Outcome) -> Vec<Self> {
        let mut all = vec![Self::Asleep];
        match context.lacks(Need::Cpus(2)) {
            None => all.push(Self::Polling),
            Some(why) => outcome.leave_out(Self::Polling.name(), why),
        }
        all
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Asleep => "asleep, on one CPU",
            Self::Polling => "polling, on two CPUs",
        }
    }

    /// For a table's or a plot's id: nothing for the papers' way.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::Asleep => "",
            Self::Polling => "-polling",
        }
    }
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Guarded => "guarded",
            Self::Trusted => "trusted",
        }
    }
}

impl Grid {
    /// Measures every plan in each way of waiting, guarded and trusted in turn, and adds to the
    /// earlier measurements. Huge pages are seen to be such: what the kernel leaves on small ones is
    /// asked for anew, and no figure of huge pages if that does not help. As for the passes: a caller that goes through the whole grid several times keeps a passing
    /// disturbance from hitting one figure alone. What this machine cannot run is left out.
    pub(crate) fn moves(
        &mut self,
        context: &Context<'_>,
        outcome: &mut Outcome,
        temper: Temper,
        plans: &[Plan],
        effort: Effort,
    ) -> Result<()> {
        for waits in Waits::here(context, outcome) {
            self.moves_by(waits, context, outcome, (temper, plans, effort))?;
        }
        Ok(())
    }

    fn moves_by(
        &mut self,
        waits: Waits,
        context: &Context<'_>,
        outcome: &mut Outcome,
        (temper, plans, effort): (Temper, &[Plan], Effort),
    ) -> Result<()> {
        let cold = (temper == Temper::Cold).then(|| context.cold_bytes());
        let largest = plans.iter().map(|plan| plan.load.bytes).max().unwrap_or(0);
        // A cold load has one message more than fill what is asked for, at the most.
        let room = largest + cold.unwrap_or(0);
        let asleep = waits == Waits::Asleep;
        let start = |protection| Pair::start(protection, room, asleep, context.cpus);
        let mut pairs = Vec::new();
        for (way, protection) in [
            (Way::Guarded, Protection::Guarded),
            (Way::Trusted, Protection::Trusted),
        ] {
            if way == Way::Guarded
                && let Some(why) = context.lacks(Need::Guarded)
            {
                outcome.leave_out("guarded rows, mapped on demand and by receive", why);
                continue;
            }
            pairs.push((way, protection, start(protection)?));
        }
        for Plan { load, uses } in plans {
            context
                .progress
                .step(format!("{waits:?} {temper:?} {}", size(load.bytes)));
            let mut loaded = Vec::new();
            for (way, protection, pair) in &mut pairs {
                let mut left = context.pick(1, huge::ATTEMPTS);
                let mut prepared = pair.prepare(*load, cold)?;
                // In a domain whose memory the kernel left on 4 KiB pages it stays there.
                while left > 1 && prepared.huge == Some(false) {
                    left -= 1;
                    drop(prepared);
                    std::thread::sleep(huge::REST);
                    std::mem::replace(pair, start(*protection)?).finish()?;
                    prepared = pair.prepare(*load, cold)?;
                }
                if prepared.huge == Some(false) {
                    let name = way.name();
                    let what = format!("{name}, {} in huge pages, {temper:?}", size(load.bytes));
                    outcome.leave_out(
                        format!("{what}, {}", waits.name()),
                        format!(
                            "the kernel left its memory on 4 KiB pages, wholly or in part{}",
                            context.pick(
                                " (a quick run shows it all the same)",
                                "; where there are figures, they are of other passes"
                            )
                        ),
                    );
                    if !context.quick {
                        continue;
                    }
                }
                loaded.push((*way, pair.load(prepared)));
            }
            for &usage in uses {
                // A slice of each way in turn, so that a change of the machine's pace meets both.
                let slice = Effort {
                    slices: 1,
                    ..effort
                };
                for _ in 0..effort.slices {
                    for (way, loaded) in &mut loaded {
                        let timed = loaded.measure(usage, slice)?;
                        let key = (waits, *way, temper, *load, usage);
                        let found = self.moves.entry(key).or_default();
                        *found = std::mem::take(found).and(timed);
                    }
                }
            }
        }
        pairs.into_iter().try_for_each(|(.., pair)| pair.finish())
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
    pub(crate) fn moved(
        &self,
        (waits, way): (Waits, Way),
        temper: Temper,
        load: Load,
        usage: Use,
    ) -> Option<&Timed> {
        self.moves.get(&(waits, way, temper, load, usage))
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
