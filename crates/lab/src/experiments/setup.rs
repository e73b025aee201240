//! Table 3 measures what a channel costs before its first message, and how many calls pay for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use portolan::channel::{ChannelOptions, ReaderOptions};
use portolan::{Deadline, Domain, ListenerOptions};
use portolan_measure::sampler::{clock_cost, median};

use crate::calls::{Called, Calls, Service, Transport};
use crate::claims::{self, Estimate, table};
use crate::clock::Timed;
use crate::error::{LabError, Result};
use crate::experiment::{Context, Experiment, MBM, Need, Source};
use crate::lanes::Beside;
use crate::outcome::{Cell, Outcome, Table, Verdict};
use crate::unit::Unit;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "setup",
    title: "Setting up and tearing down",
    source: Source {
        paper: MBM,
        section: "4.2, Table 3",
    },
    hypothesis: "Each step was a kernel call that changed page tables. In a domain the memory is \
        mapped already: a step is a few words in tables, and making a channel is zeroing its \
        memory. Beside calls of today it should still take hundreds of them to pay for a \
        connection, since these have become faster by as much.",
    method: "The steps one after another on one channel, many times over in one process; the \
        median of each, slice by slice. Create makes a channel, bind binds a reader, enable adds a \
        handler for the addresses of all its units and has writers signal them, so that a write \
        delivers its unit's address; disable takes both back, \
        unbind and release drop the reader and the channel's last right. Before any of it is timed, \
        a write is seen to deliver its address. Connecting and \
        disconnecting is the sum of all: the paper's is without disable, which its unbinding has in \
        it, while a handler of ours stays with its listener until it is taken back. A client's connection \
        makes two channels, presents them to a server in another process and waits for its \
        answer, for which the server starts a thread; leaving it waits for nobody. A call sends and \
        receives 32 bytes, between two processors. The paper speaks of connecting to a new object, and \
        gives the sum of its Table 3 for that: so the claim is judged by the sum of our steps, and by what a \
        client takes. Its call is one between two processors, each of which is interrupted: a call of ours \
        that sleeps is nearest to it, and one that polls is the shortest. Either is beside both.",
    needs: &[Need::Memory(256 << 20)],
    run,
};

/// Table 3, in seconds, and the 32-byte call of its text.
mod paper {
    pub(super) const STEPS: [f64; 6] = [582e-6, 320e-6, 249e-6, 231e-6, 243e-6, 636e-6];
    pub(super) const CONNECTION: f64 = 2030e-6;
    pub(super) const CALL: f64 = 47e-6;
}

const STEPS: [&str; 6] = ["create", "bind", "enable", "disable", "unbind", "release"];
/// The part of the time of calls that set-up may take.
const PART: f64 = 0.1;

/// Channels: the column's name, and units of a cache line.
const SIZES: [(&str, u64); 2] = [("channel of 64 KiB", 1024), ("channel of 4 KiB", 64)];

/// What one slice found, in seconds.
struct Slice {
    steps: [[f64; 6]; 2],
    client: [f64; 2],
    /// A call between two processors, of clients that sleep, and of those that poll.
    calls: [Option<f64>; 2],
}

impl Slice {
    /// Connecting and disconnecting, of the default channel.
    fn channel(&self) -> f64 {
        sum(&self.steps[0])
    }

    fn client(&self) -> f64 {
        self.client.iter().sum()
    }
}

fn sum(steps: &[f64; 6]) -> f64 {
    steps.iter().sum()
}

fn run(context: &Context<'_>) -> Result<Outcome> {
    let (slices, rounds) = context.pick((3, 5), (31, 100));
    let budget = context.pick(1, 10);
    context.progress.begin(slices);
    let mut outcome = Outcome::default();
    let steps = Steps::new()?;
    steps.deliver()?;
    // Between two processors, as the paper's.
    let calls = |sleeps| {
        let cpu = context.cpus.peer(0);
        Calls::with(Transport::WHOLE, Called::Small, sleeps, cpu)
    };
    let [asleep, polling] = match context.lacks(Need::Cpus(2)) {
        None => [Some(calls(true)?), Some(calls(false)?)],
        Some(why) => {
            outcome.leave_out("calls between two processors", why);
            [None, None]
        }
    };
    let service = Service::start(context.cpus.peer(0), true)?;
    let mut found = Vec::new();
    for _ in 0..slices {
        context.progress.step("set-up");
        found.push(Slice {
            steps: [
                steps.measure(SIZES[0].1, rounds)?,
                steps.measure(SIZES[1].1, rounds)?,
            ],
            client: connections(&service, rounds)?,
            calls: [asleep.as_ref(), polling.as_ref()]
                .map(|calls| calls.map(|calls| call(calls, budget)).transpose())
                .into_iter()
                .collect::<Result<Vec<_>>>()?
                .try_into()
                .unwrap_or_default(),
        });
    }
    for calls in [asleep, polling].into_iter().flatten() {
        portolan_measure::run::Run::finish(Box::new(calls))?;
    }
    service.finish()?;
    outcome.tables.push(steps_table(&found));
    outcome.tables.push(calls_table(&found));
    outcome.verdicts.extend(amortised(&found));
    Ok(outcome)
}

/// The steps, in a domain of this process.
struct Steps {
    domain: Domain,
}

impl Steps {
    fn new() -> Result<Self> {
        let domain = Domain::builder("lab-setup")
            .limit(64 << 20)
            .private()
            .map_err(LabError::library("making a domain for channels"))?;
        Ok(Self { domain })
    }

    /// Sees that what is enabled is: a write delivers its unit's address, and after disabling none.
    fn deliver(&self) -> Result<()> {
        let doing = "enabling a channel's signals";
        let channel = self.domain.make_channel(&ChannelOptions::unnamed());
        let channel = channel.map_err(LabError::library(doing))?;
        let reader = channel.bind_reader(ReaderOptions::default());
        let mut reader = reader.map_err(LabError::library(doing))?;
        let mut writer = channel.bind_writer().map_err(LabError::library(doing))?;
        let listener = self.domain.listen(ListenerOptions::default());
        let mut listener = listener.map_err(LabError::library(doing))?;
        let (first, seen) = (channel.addresses().start, Arc::new(AtomicUsize::new(0)));
        let sees = Arc::clone(&seen);
        // Relaxed: the same thread looks.
        let handler = move |address| sees.store(address, Ordering::Relaxed);
        let handler = listener.on(channel.addresses(), handler);
        let handler = handler.map_err(LabError::library(doing))?;
        reader.enable().map_err(LabError::library(doing))?;
        let mut write = || {
            let written = writer.write(&[1], Deadline::NOW);
            written.map(|_| ()).map_err(LabError::library(doing))
        };
        write()?;
        let delivered = listener.poll() == 1 && seen.load(Ordering::Relaxed) == first;
        reader.disable();
        listener.off(handler).map_err(LabError::library(doing))?;
        write()?;
        if delivered && listener.poll() == 0 {
            Ok(())
        } else {
            let error = "a write delivered no address, or one after its reader was disabled";
            Err(LabError::library(doing)(error))
        }
    }

    /// The median of each.
    fn measure(&self, units: u64, rounds: usize) -> Result<[f64; 6]> {
        let doing = "setting a channel up";
        let options = ChannelOptions::unnamed().units(units);
        let listener = self.domain.listen(ListenerOptions::default());
        let mut listener = listener.map_err(LabError::library(doing))?;
        let clock = clock_cost().as_secs_f64();
        let mut times: [Vec<f64>; 6] = Default::default();
        for _ in 0..rounds {
            let start = Instant::now();
            let channel = self.domain.make_channel(&options);
            let channel = channel.map_err(LabError::library(doing))?;
            let created = Instant::now();
            let reader = channel.bind_reader(ReaderOptions::default());
            let mut reader = reader.map_err(LabError::library(doing))?;
            let bound = Instant::now();
            let handler = listener.on(channel.addresses(), |_| {});
            let handler = handler.map_err(LabError::library(doing))?;
            reader.enable().map_err(LabError::library(doing))?;
            let enabled = Instant::now();
            reader.disable();
            listener.off(handler).map_err(LabError::library(doing))?;
            let disabled = Instant::now();
            let last = reader.unbind();
            let unbound = Instant::now();
            // The reader's right is given back apart: the channel's is the last.
            drop(last);
            let before = Instant::now();
            drop(channel);
            let released = Instant::now();
            let ends = [
                (start, created),
                (created, bound),
                (bound, enabled),
                (enabled, disabled),
                (disabled, unbound),
                (before, released),
            ];
            for (times, (from, to)) in times.iter_mut().zip(ends) {
                times.push(((to - from).as_secs_f64() - clock).max(0.0));
            }
        }
        Ok(times.map(|times| median(times).unwrap_or(f64::NAN)))
    }
}

/// Connecting as a client, and leaving: medians.
fn connections(service: &Service, rounds: usize) -> Result<[f64; 2]> {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        let start = Instant::now();
        let client = service.connect()?;
        let connected = Instant::now();
        drop(client);
        let left = Instant::now();
        times[0].push((connected - start).as_secs_f64());
        times[1].push((left - connected).as_secs_f64());
    }
    Ok(times.map(|times| median(times).unwrap_or(f64::NAN)))
}

/// One call: the median of batches that take so many milliseconds together.
fn call(calls: &Calls, millis: u64) -> Result<f64> {
    const BATCH: u64 = 16;
    let budget = Duration::from_millis(millis);
    // Wakes the server and refills the caches.
    calls.call(2 * BATCH)?;
    let mut times = Vec::new();
    let start = Instant::now();
    while times.is_empty() || start.elapsed() < budget {
        let since = Instant::now();
        calls.call(BATCH)?;
        times.push(since.elapsed().as_secs_f64() / BATCH as f64);
    }
    Ok(median(times).unwrap_or(f64::NAN))
}

fn cell(found: &[Slice], of: impl Fn(&Slice) -> f64) -> Cell {
    Timed::of(found.iter().map(of).collect()).cell()
}

fn steps_table(found: &[Slice]) -> Table {
    let columns = SIZES.map(|(name, _)| (name, Unit::Seconds));
    let mut table = Table::new(
        "setup-steps",
        "Table 3: setting up and tearing down",
        "step",
        &columns,
    );
    let row = |of: &dyn Fn(&[f64; 6]) -> f64, paper: f64| {
        [
            cell(found, |slice| of(&slice.steps[0])).beside(paper),
            cell(found, |slice| of(&slice.steps[1])),
        ]
    };
    for (at, name) in STEPS.into_iter().enumerate() {
        table.row(name, row(&|steps| steps[at], paper::STEPS[at]));
    }
    table.row("connect and disconnect", row(&sum, paper::CONNECTION));
    table.note(
        "The paper does not say how large its segments are. Its steps are kernel calls. Its sum is \
         without disable, ours with it.",
    )
}

/// Calls after which set-up is a tenth of them all.
fn calls_needed(setup: f64, call: f64) -> f64 {
    setup / (PART * call)
}

fn calls_table(found: &[Slice]) -> Table {
    let columns = [
        ("set-up", Unit::Seconds),
        ("call, asleep on two CPUs", Unit::Seconds),
        ("calls until 10 %, asleep", Unit::Count),
        ("call, polling on two CPUs", Unit::Seconds),
        ("calls until 10 %, polling", Unit::Count),
    ];
    let mut table = Table::new(
        "setup-calls",
        "How many calls pay for it",
        "connection",
        &columns,
    );
    let mut row = |name: &str, setup: fn(&Slice) -> f64| {
        let call = |way: usize| move |slice: &Slice| slice.calls[way].unwrap_or(f64::NAN);
        let needed = |way: usize| {
            let call = call(way);
            move |slice: &Slice| calls_needed(setup(slice), call(slice))
        };
        let paper = |figure: f64| (name == CHANNEL).then_some(figure);
        let there = |way: usize| found.iter().all(|slice| slice.calls[way].is_some());
        let cells = |way: usize| match there(way) {
            true => [cell(found, call(way)), cell(found, needed(way))],
            false => [Cell::default(); 2],
        };
        let ([slept, slept_needed], [polled, polled_needed]) = (cells(0), cells(1));
        let cells = [
            cell(found, setup).beside(paper(paper::CONNECTION)),
            slept.beside(paper(paper::CALL)),
            slept_needed.beside(paper(calls_needed(paper::CONNECTION, paper::CALL))),
            polled,
            polled_needed,
        ];
        table.row(name, cells);
    };
    row(CHANNEL, Slice::channel);
    row(CLIENT, Slice::client);
    row("of this, connecting", |slice| slice.client[0]);
    row("of this, leaving", |slice| slice.client[1]);
    table.note(
        "The paper's interprocessor call is an interrupt at each end; a call of ours that sleeps, between \
         two processors, is nearest to it. The paper sums its Table 3 and calls that connecting to a new \
         object and disconnecting: its figures stand beside the same sum, and for a connection as a client \
         has it look below.",
    )
}

const CHANNEL: &str = "a channel of 64 KiB";
const CLIENT: &str = "a client of a server in another process";

/// The paper's sum of steps is what it says that connecting takes: ours are two things. Its call ends in an
/// interrupt at each side, for which a call that sleeps stands; one that polls is as much between two
/// processors. Set-up is weighed against both.
fn amortised(found: &[Slice]) -> Vec<Verdict> {
    let needed = |setup: fn(&Slice) -> f64, way: usize| {
        let setups: Vec<f64> = found.iter().map(setup).collect();
        let tenths: Vec<f64> = found
            .iter()
            .map(|slice| PART * slice.calls[way].unwrap_or(f64::NAN))
            .collect();
        Beside::ratio(&setups, &tenths)
    };
    let mut verdicts = Vec::new();
    for (name, words, setup) in SETUPS {
        for (way, calls) in CALLS.into_iter().enumerate() {
            let calls_needed = claims::paired(needed(setup, way));
            let paragraph = format!(
                "{words} is a tenth of {} {calls}, between two processors.",
                claims::shown(calls_needed, Unit::Count),
            );
            let call = |slice: &Slice| slice.calls[way].unwrap_or(f64::NAN);
            let papers = (name, way) == (SETUPS[0].0, 0);
            let calls_needed = match papers {
                true => calls_needed,
                false => calls_needed.map(Estimate::without_paper),
            };
            let verdict = table::AMORTISE
                .verdict_of(&format!("{name}; {calls}"), &[calls_needed])
                .because(paragraph)
                .figure(
                    "set-up",
                    Unit::Seconds,
                    cell(found, setup).beside(papers.then_some(paper::CONNECTION)),
                )
                .figure(
                    "a call",
                    Unit::Seconds,
                    cell(found, call).beside(papers.then_some(paper::CALL)),
                );
            verdicts.push(verdict);
        }
    }
    verdicts
}

type Setup = (&'static str, &'static str, fn(&Slice) -> f64);

/// What is set up: the case of the claim, in words, and its time.
const SETUPS: [Setup; 2] = [
    (
        "the sum of Table 3's steps",
        "The sum of our steps, made in one process,",
        Slice::channel,
    ),
    (
        "connecting to a server in another process, and leaving",
        "Connecting as a client, for which a server in another process starts a thread, and leaving,",
        Slice::client,
    ),
];
/// As in [`Slice::calls`]. The first are the paper's.
const CALLS: [&str; 2] = ["calls that sleep, as the paper's", "calls that poll"];

#[cfg(test)]
mod tests {
    use super::*;

    /// Slices with such times: the steps of a channel together, a client's connection, and calls.
    fn planted(channel: f64, client: f64, calls: [Option<f64>; 2]) -> Vec<&'static str> {
        let slice = |_| Slice {
            steps: [[channel / 6.0; 6]; 2],
            client: [client, 0.0],
            calls,
        };
        let found: Vec<Slice> = (0..3).map(slice).collect();
        let verdicts = amortised(&found).into_iter();
        verdicts.map(|verdict| verdict.by_figures.name()).collect()
    }

    #[test]
    fn set_up_is_weighed_against_calls_that_sleep_and_calls_that_poll() {
        // The paper's own: 432 calls.
        let all = [Some(47e-6); 2];
        assert_eq!(planted(2030e-6, 2030e-6, all), ["holds"; 4]);
        // The same set-up is much beside calls that poll, and little beside calls that sleep.
        let calls = [Some(10e-6), Some(0.2e-6)];
        let (no, yes) = ("does not hold", "holds");
        assert_eq!(planted(10e-6, 80e-6, calls), [no, yes, no, yes]);
        assert_eq!(planted(1e-6, 1e-6, calls), [no; 4]);
        // Without a second processor there are no calls between two.
        assert_eq!(planted(1.0, 1.0, [None; 2]), ["cannot tell"; 4]);
    }
}
