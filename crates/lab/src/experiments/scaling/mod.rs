//! Figures 6 to 8 compute the paper's cost model, with its parameters and with this machine's.

mod figures;
mod here;
mod model;
mod paper;

use crate::error::Result;
use crate::experiment::{Context, Experiment, MBM, Need, Source};
use crate::outcome::Outcome;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "scaling",
    title: "What hardware support for messages would gain, by distance and by speed",
    source: Source {
        paper: MBM,
        section: "5, Figures 6, 7 and 8",
    },
    hypothesis: "Support for address-valued signals, message-oriented consistency and signal on \
        write makes a message three to five times as fast, and more so with distance and with \
        faster processors, since what it saves is traffic. Today system calls and queues are \
        far cheaper beside the waking of a thread, which support does not save: it should gain less.",
    method: "A model adds up what one message of a cache line costs: work of processors, lines \
        filled from the nearest common cache, crossings of whatever lies beyond. Work, fills and \
        hops are the paper's Table 1 and its text. How many transactions the message is charged \
        is our reading of the text under Figure 5, which is a drawing without counts: at a push 2 fills and \
        1 crossing, conventionally 4 and 5. Not \
        published is the queue in shared memory; 14 fills and 3 crossings bring the model \
        nearest to the paper's six shares. A hop is the 2 µs of Figures 7 and 8: with the 6.1 µs \
        named before Figure 6 no queue brings the shares near, so that is taken to be three \
        hops, and drawn beside. A faster processor does its work and has its bus faster, nothing else. \
        Then the same model with parameters measured here, slice by slice: an empty system call; \
        a signal to an address that nobody handles; a queue under a lock, in cache; \
        waking a thread that sleeps on another processor, the call and the way until its answer; \
        a line from another core; a datagram over the loopback, both sides polling, for a hop.",
    needs: &[Need::Cpus(2), Need::Memory(256 << 20)],
    run,
};

fn run(context: &Context<'_>) -> Result<Outcome> {
    let slices = context.pick(3, 31);
    context.progress.begin(slices);
    let mut outcome = Outcome::default();
    let here = here::parameters(context, &mut outcome, slices)?;
    if here.is_empty() {
        outcome.leave_out(
            "the model with this machine's parameters",
            "the other processor did not run while they were measured",
        );
    }
    outcome.leave_out(
        "what the kernel saves (15 % of it) and the hardware costs (6 % of a cache controller)",
        "the paper's figures of its own kernel and its own board; here there is neither",
    );
    outcome.tables = figures::tables(&here);
    outcome.plots = figures::plots(&here);
    outcome.verdicts = figures::verdicts(&here);
    Ok(outcome)
}
