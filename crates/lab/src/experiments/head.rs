//! Measures the machine's own steps, for the head of the page.

use std::hint::black_box;
use std::time::{Duration, Instant};

use portolan::{
    Access, Deadline, Domain, Message, PortOptions, Protection, ReceiveRight, SendRight,
};

use portolan_measure::sampler::{clock_cost, median};

use crate::claims::{self, Estimate, table};
use crate::clock::{self, Timed};
use crate::error::{LabError, Result};
use crate::experiment::{Context, DASH, Experiment, Need, Source};
use crate::huge;
use crate::outcome::{Cell, Outcome, Table, Verdict};
use crate::unit::Unit;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "machine",
    title: "What the machine's own steps cost",
    source: Source {
        paper: DASH,
        section: "Experiment set-up and basic hardware performance",
    },
    hypothesis: "On a Sun 3/50 copying a page cost seventy times what updating its page table \
        entry did. Whatever remapping gains or loses today follows from that ratio.",
    method: "Each step many times in one process, in batches; the median of the batches. A guard \
        pair is what a message of one extent takes longer in a guarded domain than in a trusted \
        one, to a port of the same process, taken up at once: closed, and opened. A fault is the \
        first touch of an extent that was taken up unopened, handler included. Copies are hot: \
        the same bytes again and again.",
    needs: &[Need::Memory(256 << 20)],
    run,
};

/// The Sun 3/50's, in seconds.
mod paper {
    pub(super) const CALL: f64 = 4.3e-6;
    pub(super) const CALL_WITH_THREE: f64 = 8.1e-6;
    /// Figure 6: trap into and return from kernel mode, in a send operation.
    pub(super) const TRAP: f64 = 34e-6;
    /// Closing a page and opening it: C and H of Figure 6. One update of a page table entry is 30 µs.
    pub(super) const PAIR: f64 = 58e-6;
    /// Figure 6: handle a page fault.
    pub(super) const FAULT: f64 = 134e-6;
    /// 8 KiB.
    pub(super) const COPY: f64 = 2.105e-3;
}

/// A page of the paper's.
const PAGE: usize = 8 << 10;
/// The smallest extent on huge pages.
const HUGE: usize = 2 << 20;

fn run(context: &Context<'_>) -> Result<Outcome> {
    let (slices, least) = context.pick(
        (3, Duration::from_micros(200)),
        (51, Duration::from_millis(2)),
    );
    let steps = context.pick(200, 2_000);
    context.progress.begin(8);
    let mut outcome = Outcome::default();
    let mut table = Table::new(
        "machine",
        "The machine's own steps",
        "step",
        &[("time", Unit::Seconds)],
    );
    let mut step = |name: &str, paper: Option<f64>, timed: Timed| {
        table.row(name, [timed.cell().beside(paper)]);
    };

    context.progress.step("calls");
    step(
        "procedure call",
        Some(paper::CALL),
        clock::each(slices, least, call),
    );
    let arguments = black_box((1, 2, 3));
    let with_three = clock::each(slices, least, || {
        black_box(call_with_three(arguments.0, arguments.1, arguments.2));
    });
    step(
        "procedure call, 3 arguments",
        Some(paper::CALL_WITH_THREE),
        with_three,
    );
    let system = clock::each(slices, least, || {
        black_box(rustix::process::getppid());
    });
    step("system call", Some(paper::TRAP), system);
    step(
        "reading the clock",
        None,
        Timed::of((0..slices).map(|_| clock_cost().as_secs_f64()).collect()),
    );

    context.progress.step("a cache line");
    match crate::line::one_way(context.cpus, slices) {
        Some(line) => step("cache line to another core", None, line),
        None => outcome.leave_out(
            "cache line to another core",
            context
                .lacks(Need::Cpus(2))
                .unwrap_or_else(|| "the other processor did not run".into()),
        ),
    }

    let mut trusted = Loop::new(Protection::Trusted)?;
    let mut pairs = Vec::new();
    match context.lacks(Need::Guarded) {
        None => {
            let mut guarded = Loop::new(Protection::Guarded)?;
            for (name, bytes, paper) in [
                ("guard pair, 8 KiB", PAGE, Some(paper::PAIR)),
                ("guard pair, one huge page", HUGE, None),
            ] {
                context.progress.step(name);
                if bytes == HUGE
                    && !on_huge_pages([&mut trusted, &mut guarded], context, &mut outcome)?
                {
                    pairs.push(None);
                    continue;
                }
                let pair = guard_pair(&mut trusted, &mut guarded, bytes, slices, steps)?;
                step(name, paper, pair.clone());
                pairs.push(Some(pair));
            }
            for (name, bytes, paper) in [
                ("fault, 8 KiB", PAGE, Some(paper::FAULT)),
                ("fault, one huge page", HUGE, None),
            ] {
                context.progress.step(name);
                if bytes == PAGE || pairs.last().is_some_and(Option::is_some) {
                    step(name, paper, guarded.fault(bytes, slices, steps)?);
                }
            }
        }
        Some(why) => outcome.leave_out("guard pairs and faults", why),
    }

    context.progress.step("copies");
    let mut copies = Vec::new();
    for (name, bytes, paper) in [
        ("copy of 8 KiB", PAGE, Some(paper::COPY)),
        ("copy of one huge page", HUGE, None),
    ] {
        let source = vec![1_u8; bytes];
        let mut target = vec![0_u8; bytes];
        let copy = clock::each(slices, least, || {
            black_box(&mut target).copy_from_slice(black_box(&source));
        });
        step(name, paper, copy.clone());
        copies.push(copy);
    }
    outcome
        .verdicts
        .push(verdict([&copies[0], &copies[1]], &pairs));
    outcome.tables.push(
        table.note(
            "The paper's guard pair is two updates of a page table entry, C and H of its Figure 6, at 26 \
             and 32 µs; its set-up gives 30 µs for one. Its fault includes one. Huge pages are looked \
             at before they are measured.",
        ),
    );
    Ok(outcome)
}

/// Whether all domains have a block on a huge page, each asked for anew where it has not; said if not.
fn on_huge_pages(
    domains: [&mut Loop; 2],
    context: &Context<'_>,
    outcome: &mut Outcome,
) -> Result<bool> {
    for domain in domains {
        let mut left = context.pick(1, huge::ATTEMPTS);
        while domain.lies_on_huge_pages()? == Some(false) {
            left -= 1;
            if left == 0 {
                outcome.leave_out(
                    "guard pair and fault, one huge page",
                    "the kernel left the memory on 4 KiB pages",
                );
                // A quick run shows every row.
                return Ok(context.quick);
            }
            std::thread::sleep(huge::REST);
            *domain = Loop::new(domain.protection)?;
        }
    }
    Ok(true)
}

/// Whether the ground on which the paper builds is still there; copies and guard pairs of a
/// page and of a huge page.
fn verdict([copy, huge]: [&Timed; 2], pairs: &[Option<Timed>]) -> Verdict {
    let pair = |at: usize| pairs.get(at)?.as_ref().and_then(claims::timed);
    let small = claims::ratio(claims::timed(copy), pair(0));
    let large = claims::ratio(claims::timed(huge), pair(1));
    let paragraph = if pairs.is_empty() {
        "There is no guard on this machine to hold a copy against.".to_owned()
    } else {
        format!(
            "Copying 8 KiB that are in cache takes {}, closing and opening them {}: the copy takes \
             {} of that. For a huge page it takes {}.",
            Unit::Seconds.show(copy.median()),
            claims::shown(pair(0), Unit::Seconds),
            claims::shown(small, Unit::Times),
            claims::shown(large, Unit::Times),
        )
    };
    let cell = |estimate: Option<Estimate>| estimate.map_or_else(Cell::default, Estimate::cell);
    let rate = PAGE as f64 / copy.median();
    table::COPY_AGAINST_GUARD
        .verdict(&[small])
        .because(paragraph)
        .figure(
            "copy of 8 KiB",
            Unit::Seconds,
            copy.cell().beside(paper::COPY),
        )
        .figure(
            "copying",
            Unit::BytesPerSecond,
            Cell::here(rate).beside(PAGE as f64 / paper::COPY),
        )
        .figure(
            "guard pair, 8 KiB",
            Unit::Seconds,
            cell(pair(0)).beside(paper::PAIR),
        )
        .figure("the same for a huge page", Unit::Times, cell(large))
}

#[inline(never)]
fn call() {
    // Or the optimiser would find that nothing is done.
    black_box(());
}

#[inline(never)]
fn call_with_three(a: u64, b: u64, c: u64) -> u64 {
    black_box(a) ^ black_box(b) ^ black_box(c)
}

/// A domain of one process, with a port to itself.
struct Loop {
    protection: Protection,
    port: ReceiveRight,
    right: SendRight,
    /// Last: it is left after all that belongs to it.
    domain: Domain,
}

impl Loop {
    fn new(protection: Protection) -> Result<Self> {
        let doing = "making a domain for the machine's constants";
        let domain = Domain::builder("lab-machine")
            .protection(protection)
            .limit(64 << 20)
            .private()
            .map_err(LabError::library(doing))?;
        let port = domain
            .bind(PortOptions::unnamed())
            .map_err(LabError::library(doing))?;
        Ok(Self {
            protection,
            right: port.make_send(),
            port,
            domain,
        })
    }

    /// Whether a message of one huge page does; none where the system does not tell.
    fn lies_on_huge_pages(&mut self) -> Result<Option<bool>> {
        let mut message = self.message(HUGE)?;
        self.pass(&mut message, Access::Now)?;
        message.extents_mut()[0].fill(1);
        Ok(huge::holds(&message.extents()[0]))
    }

    fn message(&self, bytes: usize) -> Result<Message> {
        let extent = self.domain.allocate(bytes);
        let mut extent = extent.map_err(LabError::library("allocating an extent"))?;
        extent.fill(1);
        let mut message = Message::default();
        let pushed = message.push(extent);
        pushed.map_err(LabError::library("putting an extent into a message"))?;
        Ok(message)
    }

    fn pass(&mut self, message: &mut Message, access: Access) -> Result<()> {
        self.right
            .send_from(message, Deadline::NOW)
            .map_err(LabError::library("sending to a port of this process"))?;
        self.port
            .receive_into(message, access, Deadline::NOW)
            .map_err(LabError::library("receiving from a port of this process"))
    }

    /// Seconds that one of `count` messages of one extent takes, opened when it is taken up.
    fn passes(&mut self, message: &mut Message, count: u32) -> Result<f64> {
        let start = Instant::now();
        for _ in 0..count {
            self.pass(message, Access::Now)?;
        }
        Ok(start.elapsed().as_secs_f64() / f64::from(count))
    }

    /// The first touch of an extent that was taken up unopened: medians of `count` touches.
    fn fault(&mut self, bytes: usize, slices: usize, count: u32) -> Result<Timed> {
        let clock = clock_cost().as_secs_f64();
        let mut message = self.message(bytes)?;
        let mut medians = Vec::new();
        for _ in 0..slices {
            let mut times = Vec::new();
            for _ in 0..count {
                self.pass(&mut message, Access::Later)?;
                let start = Instant::now();
                message.extents_mut()[0][0] = 1;
                times.push(start.elapsed().as_secs_f64() - clock);
            }
            medians.extend(median(times));
        }
        Ok(Timed::of(medians))
    }
}

/// What closing and opening one extent adds to a message, slice by slice in turn.
fn guard_pair(
    trusted: &mut Loop,
    guarded: &mut Loop,
    bytes: usize,
    slices: usize,
    count: u32,
) -> Result<Timed> {
    let mut plain = trusted.message(bytes)?;
    let mut closed = guarded.message(bytes)?;
    let mut differences = Vec::new();
    for _ in 0..slices {
        let without = trusted.passes(&mut plain, count)?;
        differences.push(guarded.passes(&mut closed, count)? - without);
    }
    Ok(Timed::of(differences))
}
