//! Table 1 and Figure 5 measure how another thread is told, by component; how many lines a message
//! moves; polling with many clients; and what a channel's writes are signalled by.

mod figures;
mod parts;
mod rounds;
mod units;
mod ways;

use std::time::Duration;

use portolan::Delivery;

use crate::counter::Instructions;
use crate::error::Result;
use crate::experiment::{Context, Experiment, MBM, Need, Source};
use crate::outcome::Outcome;
use crate::stepped;
use parts::Parts;
pub(crate) use rounds::{Ends, calls};
use units::Written;
use ways::signals;
pub(crate) use ways::{software, upcalls};

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "signals",
    title: "Telling another thread: by component, by cache line, and with many clients",
    source: Source {
        paper: MBM,
        section: "2.2.4 and 4.1, Table 1 and Figure 5; 2.3; 3; 4.3",
    },
    hypothesis: "Telling by hardware halves what the kernel does for a message. Without such \
        hardware a thread that watches a cache line comes nearest, and the rest is waking a thread, which \
        no queue makes cheaper. A message that carries its own stamp moves one line, a \
        conventional ring three, a locked queue more. Polling one place for each client takes longer \
        the more clients there are; one queue of addresses does not.",
    method: "Two threads on two processors. A message of 32 bytes goes there in the row's way and its \
        number comes back by a cache line; the time is that round less the way back. A \
        receiver that sleeps is given 50 µs to do so before each message, others follow on each \
        other. Software only: a locked queue of addresses in shared memory, and a signal \
        of the library's as its interrupt (look-up, push, system call), an upcall, which interrupts a thread that looks at something else. Components are measured alone, in one process and in \
        cache; an interrupt is what is left of the sender's part without the others, and the rest what \
        is left of the whole, line transfers included. All in turn, slice by \
        slice; medians. Instructions are counted by the processor, or where it does not let us by \
        stepping through a child that does nothing else. What the paper has for hardware support stands beside upcall, which is \
        nearest to its delivery and is software, too. Clients take turns in an order that was shuffled \
        once, the same in each run. A signal for each line is the paper's where it interrupts the \
        reader: a thread that looks at something else is interrupted at each line of a message, and once. \
        Then streams of messages over units of a line, signalled never, at \
        their end, at each page and at each line, to a reader that polls, and a signal by a store that traps: two processes, \
        each on a processor of its own. Where processors share no cache, upcalls, the locked queue and \
        the ring are measured between such, too.",
    needs: &[Need::Cpus(2), Need::Memory(256 << 20)],
    run,
};

/// How long a receiver that sleeps is given to fall asleep.
const ASLEEP: Duration = Duration::from_micros(50);
/// Lines of the messages that interrupt their reader, and how large that is.
const MESSAGES: [(usize, &str); 2] = [(16, "1 KiB"), (64, "4 KiB")];
/// Clients in the rows that poll for so many.
const CLIENTS: [usize; 3] = [1, 100, 1000];

/// A way, under way.
struct Row {
    name: String,
    ends: Ends,
    /// Between which processors.
    cpus: [usize; 2],
    pause: Option<Duration>,
    /// Seconds of a round, and until the sender goes on, slice by slice.
    times: Vec<f64>,
    sender: Vec<f64>,
}

const LINE: &str = "a line";
const QUEUE: &str = "locked shared queue";
const RING: &str = "ring with two indices";
const STAMPED: &str = "a stamp in the message's line";
const CHANNEL: &str = "message-consistent channel";
const SOFTWARE: &str = "software only";
const DOORBELL: &str = "doorbell";
const UPCALL: &str = "upcall";
const MONITORED: &str = "monitor-wait";
const POLLED: &str = "polled";

fn mailboxes(clients: usize) -> String {
    format!("a place each, {clients}")
}

fn fifo(clients: usize) -> String {
    format!("one FIFO, {clients}")
}

/// A message of so many lines, whose reader is interrupted at each of them, or at its end.
fn interrupts(lines: usize, at_each: bool) -> String {
    let when = if at_each { "at each" } else { "once" };
    format!("{lines} lines, interrupted {when}")
}

/// The same way between processors that share no cache.
fn far(way: &str) -> String {
    format!("{way}, far")
}

fn rows(context: &Context<'_>) -> Result<Vec<Row>> {
    let near = [context.cpus.ours, context.cpus.peer(0)];
    let row = |name: &str, ends, pause| Row {
        name: name.to_owned(),
        ends,
        cpus: near,
        pause,
        times: Vec::new(),
        sender: Vec::new(),
    };
    let mut rows = vec![
        row(LINE, ways::line(), None),
        row(QUEUE, ways::queue(), None),
        row(RING, ways::ring(), None),
        row(STAMPED, ways::stamped(), None),
        row(CHANNEL, ways::channel()?, None),
        // An interrupted thread does not sleep: no pause, but a sender that is timed.
        row(SOFTWARE, ways::software()?, Some(Duration::ZERO)),
        row(DOORBELL, signals(Delivery::DOORBELL, 1)?, Some(ASLEEP)),
        row(UPCALL, ways::upcalls()?, Some(Duration::ZERO)),
        row(POLLED, signals(Delivery::POLLED, 1)?, None),
    ];
    if Delivery::monitor_instruction().is_some() {
        rows.push(row(MONITORED, signals(Delivery::MONITORED, 1)?, None));
    }
    for clients in CLIENTS {
        rows.push(row(&mailboxes(clients), ways::mailboxes(clients), None));
        let ends = signals(Delivery::POLLED, clients)?;
        rows.push(row(&fifo(clients), ends, None));
    }
    for (lines, _) in MESSAGES {
        for at_each in [false, true] {
            let ends = ways::interrupted(lines, at_each)?;
            rows.push(row(&interrupts(lines, at_each), ends, Some(Duration::ZERO)));
        }
    }
    if let Some(other) = context.cpus.far() {
        let pause = Some(Duration::ZERO);
        for (name, ends, pause) in [
            (LINE, ways::line(), None),
            (QUEUE, ways::queue(), None),
            (RING, ways::ring(), None),
            (CHANNEL, ways::channel()?, None),
            (SOFTWARE, ways::software()?, pause),
            (UPCALL, ways::upcalls()?, pause),
        ] {
            rows.push(Row {
                cpus: [context.cpus.ours, other],
                ..row(&far(name), ends, pause)
            });
        }
    }
    Ok(rows)
}

fn run(context: &Context<'_>) -> Result<Outcome> {
    let slices = context.pick(3, 31);
    let [quick, paused] = context.pick([200, 20], [20_000, 200]);
    context.progress.begin(slices + units::STEPS);
    let mut outcome = Outcome::default();
    let mut rows = rows(context)?;
    let mut parts = Parts::new()?;
    for _ in 0..slices {
        context.progress.step("ways and components");
        parts.slice(context);
        for row in &mut rows {
            context.progress.note(row.name.clone());
            let rounds = if row.pause.is_some() { paused } else { quick };
            // None: the other thread did not get to run, and the slice has no figure.
            let round = row.ends.rounds(row.cpus, rounds, row.pause);
            row.times.push(round.map_or(f64::NAN, |round| round.whole));
            row.sender
                .push(round.map_or(f64::NAN, |round| round.sender));
        }
    }
    if Delivery::monitor_instruction().is_none() {
        outcome.leave_out(
            MONITORED,
            "this processor has neither umwait nor mwaitx, or a hypervisor hides them",
        );
    }
    if context.cpus.far().is_none() {
        outcome.leave_out(
            "processors that share no cache",
            "all that this program may use share their largest cache",
        );
    }
    let counted = match Instructions::open() {
        Ok(mut counter) => Some((parts.count(&mut counter), counter.what())),
        Err(why) => {
            outcome.leave_out("instructions counted by the processor", why);
            match stepped::signal()? {
                Ok(counted) => Some((parts::stepped(&counted), portolan_measure::stepped::WHAT)),
                Err(why) => {
                    outcome.leave_out("instructions", why);
                    None
                }
            }
        }
    };
    let written = Written::measure(context, &mut outcome)?;
    let found = figures::Found::new(&rows, &parts);
    outcome.tables = found.tables(counted);
    outcome.tables.extend(found.far());
    outcome.tables.extend(written.tables());
    outcome.verdicts = found.verdicts();
    outcome.plots = found.plots();
    Ok(outcome)
}
