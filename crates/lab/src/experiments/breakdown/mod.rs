//! Figures 5, 6 and 7 cut a message's way into segments.
//!
//! | module | what is there |
//! |---|---|
//! | `load` | what a message carries, and how it is touched |
//! | `alone` | a process that sends to itself |
//! | `pair` | two processes, to and fro |
//! | `trace` | what one of them passed in a round |
//! | `statistics` | all rounds: means, deviations, the sum against the whole |
//! | `tree` | the paper's Figure 6, with our segments in its places |
//! | `run` | all of it, repetition by repetition |
//! | `figures`, `verdicts` | the tables, plots and verdicts made of that |

#[cfg(feature = "probes")]
mod alone;
#[cfg(feature = "probes")]
mod figures;
#[cfg(feature = "probes")]
mod load;
#[cfg(feature = "probes")]
pub(crate) mod pair;
#[cfg(feature = "probes")]
mod run;
#[cfg(feature = "probes")]
mod statistics;
#[cfg(feature = "probes")]
mod trace;
#[cfg(feature = "probes")]
mod tree;
#[cfg(feature = "probes")]
mod verdicts;

use crate::error::Result;
use crate::experiment::{Context, DASH, Experiment, Need, Source};
use crate::outcome::Outcome;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "breakdown",
    title: "Figures 5, 6 and 7: where the time of a message goes",
    source: Source {
        paper: DASH,
        section: "Microscopic analysis of message-passing cost",
    },
    hypothesis: "A message of one page spent 43.5 % of its time on data movement and 39.6 % on \
        control transfer; larger ones spend most of it on data movement. The parts of moving a \
        page, added up, agree with what a further page is measured to cost.",
    method: "Probes in the library cut a send, a receive, a wake and an access into segments, as \
        the paper's did. The main run has the paper's sequence: two processes send 8 KiB to and \
        fro in a guarded domain, the receiver asleep, pages opened by \
        the touch; a way on which the receiver was not asleep yet is left aside, and counted. \
        It differs from the paper's in one thing: each process has a processor of its own, where the \
        paper had one for both. On one processor today's scheduler runs who is woken at once, and that one answers a \
        process that stands still in its wake and is not asleep: half of the ways would have no wake, and \
        half of a round would not be a way. \
        Ten repetitions of a million round trips each, or of as many as begin within 15 seconds, but at \
        least of 100,000, where a wake takes long: the page says how many there were (a hundred thousand \
        or ten thousand, where only means are compared); a segment's mean is that of the ten, less the price of a probe, which is \
        the mean of a segment with nothing in it. The clock counts in steps that can be longer \
        than a segment; as in the paper, the mean of a million readings is finer than one. Beside each raw mean stands a trimmed one, without the slowest twentieth \
        of the rounds, in which mostly something else ran; what is made of segments (shares, \
        sums, verdicts) is made of these. The whole is timed in the same build with a probe at \
        either end only, in batches among the others. No probe can lie between two processes: what passes from the wake to \
        the waking (or, between two that poll, from the publication to its being seen) is one \
        segment, from one's clock to the other's, and holds the system call, the interrupt and \
        the scheduler. What the sender does after the wake, and the receiver before it sleeps, \
        is listed, but not part of the whole, as it is of the paper's 1,231 µs: on two processors it is \
        done while the other side is at work. The share of data movement that is judged is of the whole \
        with it. Where there is one processor only, the waker stands still meanwhile, and what it then waits for its processor is in \
        what is listed.",
    needs: &[Need::Probes, Need::Guarded],
    run,
};

#[cfg(feature = "probes")]
fn run(context: &Context<'_>) -> Result<Outcome> {
    run::run(context)
}

/// Never called: see `needs`.
#[cfg(not(feature = "probes"))]
fn run(_: &Context<'_>) -> Result<Outcome> {
    Ok(Outcome::default())
}
