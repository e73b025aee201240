//! Measures what each part of the message's structure costs, and what it saves, with it and
//! without.

use std::hint::black_box;
use std::time::Instant;

use portolan::{
    Access, Deadline, Domain, Message, PortOptions, Protection, ReceiveRight, SendRight,
};

use crate::claims::{self, table};
use crate::clock::Timed;
use crate::error::{LabError, Result};
use crate::experiment::{Context, DASH, Experiment, Need, Source};
use crate::outcome::{Cell, Outcome, Table, Verdict};
use crate::unit::Unit;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "ablations",
    title: "The price of structure, and what it saves",
    source: Source {
        paper: DASH,
        section: "The effectiveness of the DASH design",
    },
    hypothesis: "A message whose data need not be contiguous cost 148 µs more: checking the header \
        and a descriptor, and finding the data. Its header in shared memory saved 70 µs of copying \
        and 40 µs for a temporary buffer, and buffers for whole messages would have cost another \
        200 µs. So structure pays.",
    method: "One process sends to itself, each thing with and without, in turn, slice by slice; \
        medians of the slices, and the difference slice by slice. Structure: 64 KiB in eight \
        extents of 8 KiB against one extent, every 8 KiB found by its offset and touched. Header: \
        4 KiB written into shared memory once and read where it lies, against the same by way of a \
        buffer of the process's own, which is copied into shared memory by the send. Buffer: \
        memory that changes owner, against a port whose receiver gets a copy in memory that is \
        allocated for it; and the allocation alone.",
    needs: &[Need::Memory(512 << 20)],
    run,
};

/// The paper's, in seconds.
mod paper {
    pub(super) const STRUCTURE: f64 = 148e-6;
    pub(super) const STRUCTURE_PARTS: [(&str, f64); 3] = [
        ("check the header, on both sides", 92e-6),
        ("check a descriptor", 19e-6),
        ("find the data", 37e-6),
    ];
    pub(super) const HEADER: f64 = 70e-6 + 40e-6;
    pub(super) const HEADER_PARTS: [(&str, f64); 2] = [
        ("a copy of the header", 70e-6),
        ("a temporary buffer", 40e-6),
    ];
    /// Buffers for the whole message.
    pub(super) const BUFFER: f64 = 200e-6;
}

/// The rows below which the paper's parts stand.
const PRICE: &str = "price of structure";
const SAVED: &str = "saved by the header in place";

/// A page of the paper's.
const PAGE: usize = 8 << 10;
const LARGE: usize = 64 << 10;
const HEADER: usize = 4 << 10;

/// With and without, in seconds, and what the one is more than the other.
struct Ablation {
    with: Timed,
    without: Timed,
    more: Timed,
    /// The same, slice by slice.
    differences: Vec<f64>,
}

/// All of one protection.
struct Ablations {
    /// With: in pieces.
    structure: Ablation,
    /// With: by way of a buffer.
    header: Ablation,
    /// With: copied into an allocated buffer.
    buffer: Ablation,
    allocation: Timed,
    /// What the header in place and the allocation save together.
    saved: Timed,
}

fn run(context: &Context<'_>) -> Result<Outcome> {
    let (slices, rounds) = context.pick((3, 20), (31, 2000));
    context.progress.begin(2);
    context.progress.step("trusted");
    let trusted = measure(Protection::Trusted, slices, rounds)?;
    let mut outcome = Outcome::default();
    let guarded = match context.lacks(Need::Guarded) {
        None => {
            context.progress.step("guarded");
            Some(measure(Protection::Guarded, slices, rounds)?)
        }
        Some(why) => {
            outcome.leave_out("guarded", why);
            None
        }
    };
    outcome.tables.push(compared(&trusted, guarded.as_ref()));
    let all = [("trusted", Some(&trusted)), ("guarded", guarded.as_ref())];
    for (name, ablations) in all {
        if let Some(ablations) = ablations {
            outcome.verdicts.push(verdict(name, ablations));
        }
    }
    Ok(outcome)
}

fn compared(trusted: &Ablations, guarded: Option<&Ablations>) -> Table {
    let columns = [("trusted", Unit::Seconds), ("guarded", Unit::Seconds)];
    let mut table = Table::new("ablations", "With and without", "what", &columns);
    // What the paper's sums are made of has rows of the paper's only.
    let parts = |table: &mut Table, parts: &[(&str, f64)]| {
        for (name, seconds) in parts {
            table.row(format!("\u{2003}{name}"), [Cell::paper(*seconds); 2]);
        }
    };
    let mut row = |label: &str, paper: Option<f64>, pick: fn(&Ablations) -> &Timed| {
        let cell = |ablations: &Ablations| pick(ablations).cell().beside(paper);
        table.row(
            label,
            [cell(trusted), guarded.map_or_else(Cell::default, cell)],
        );
        match label {
            PRICE => parts(&mut table, &paper::STRUCTURE_PARTS),
            SAVED => parts(&mut table, &paper::HEADER_PARTS),
            _ => {}
        }
    };
    row("64 KiB in eight extents", None, |a| &a.structure.with);
    row("64 KiB in one extent", None, |a| &a.structure.without);
    row(PRICE, Some(paper::STRUCTURE), |a| &a.structure.more);
    row("header of 4 KiB by way of a buffer", None, |a| {
        &a.header.with
    });
    row("header of 4 KiB in place", None, |a| &a.header.without);
    row(SAVED, Some(paper::HEADER), |a| &a.header.more);
    row("64 KiB into a buffer allocated for it", None, |a| {
        &a.buffer.with
    });
    row("64 KiB moved", None, |a| &a.buffer.without);
    row("saved by moving", None, |a| &a.buffer.more);
    row(
        "saved: allocating and freeing 64 KiB",
        Some(paper::BUFFER),
        |a| &a.allocation,
    );
    table.note(
        "The paper's price of structure is that of a message of one page, and its savings are \
         estimates. Rows without a figure of ours are what its sums are made of. Saved by moving: the \
         allocation and the copy together.",
    )
}

/// Whether what is saved is more than the price.
fn verdict(name: &str, ablations: &Ablations) -> Verdict {
    let (price, header, buffer) = (
        &ablations.structure.more,
        &ablations.header.more,
        &ablations.allocation,
    );
    let saved = &ablations.saved;
    let left = claims::timed(saved)
        .zip(claims::timed(price))
        .and_then(|(saved, price)| saved.less(price));
    let paragraph = format!(
        "In a {name} domain eight extents instead of one cost {} more; a header of 4 KiB that is \
         written in place saves {}, and not having to allocate a buffer of 64 KiB {}.",
        Unit::Seconds.show(price.median()),
        Unit::Seconds.show(header.median()),
        Unit::Seconds.show(buffer.median()),
    );
    table::STRUCTURE_PAYS
        .verdict_of(name, &[left])
        .because(paragraph)
        .figure(PRICE, Unit::Seconds, price.cell().beside(paper::STRUCTURE))
        .figure(SAVED, Unit::Seconds, header.cell().beside(paper::HEADER))
        .figure(
            "saved by not allocating",
            Unit::Seconds,
            buffer.cell().beside(paper::BUFFER),
        )
        .figure(
            "saved together",
            Unit::Seconds,
            saved.cell().beside(paper::HEADER + paper::BUFFER),
        )
}

fn measure(protection: Protection, slices: usize, rounds: u32) -> Result<Ablations> {
    let mut bench = Bench::new(protection)?;
    let mut pieces = bench.message(LARGE / PAGE, PAGE)?;
    let mut whole = bench.message(1, LARGE)?;
    let structure = compare(
        &mut bench,
        (slices, rounds),
        |bench| bench.pass(&mut pieces),
        |bench| bench.pass(&mut whole),
    )?;
    let bytes = vec![7; HEADER];
    let header = compare(
        &mut bench,
        (slices, rounds),
        |bench| {
            // What composes a header without the domain's help has a buffer of its own.
            let message = Message::new(black_box(&bytes));
            bench.header(message.map_err(LabError::library("composing a header"))?)
        },
        |bench| {
            let message = bench.domain.message(black_box(&bytes));
            bench.header(message.map_err(LabError::library("composing a header"))?)
        },
    )?;
    let mut copied = bench.message(1, LARGE)?;
    let mut moved = bench.message(1, LARGE)?;
    let buffer = compare(
        &mut bench,
        (slices, rounds),
        |bench| bench.copy(&mut copied),
        |bench| bench.pass(&mut moved),
    )?;
    let allocation: Vec<f64> = (0..slices)
        .map(|_| slice(&mut bench, rounds, &mut Bench::allocate))
        .collect::<Result<_>>()?;
    let saved = header.differences.iter().zip(&allocation);
    let saved = Timed::of(saved.map(|(header, buffer)| header + buffer).collect());
    Ok(Ablations {
        structure,
        header,
        buffer,
        allocation: Timed::of(allocation),
        saved,
    })
}

/// Both in turn, slice by slice.
fn compare(
    bench: &mut Bench,
    (slices, rounds): (usize, u32),
    mut with: impl FnMut(&mut Bench) -> Result<()>,
    mut without: impl FnMut(&mut Bench) -> Result<()>,
) -> Result<Ablation> {
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    // Warm, both.
    slice(bench, rounds, &mut with)?;
    slice(bench, rounds, &mut without)?;
    for _ in 0..slices {
        let with = slice(bench, rounds, &mut with)?;
        let without = slice(bench, rounds, &mut without)?;
        for (times, time) in times.iter_mut().zip([with, without, with - without]) {
            times.push(time);
        }
    }
    let differences = times[2].clone();
    let [with, without, more] = times.map(Timed::of);
    Ok(Ablation {
        with,
        without,
        more,
        differences,
    })
}

/// Seconds that one of so many takes.
fn slice(
    bench: &mut Bench,
    rounds: u32,
    work: &mut impl FnMut(&mut Bench) -> Result<()>,
) -> Result<f64> {
    let start = Instant::now();
    for _ in 0..rounds {
        work(bench)?;
    }
    Ok(start.elapsed().as_secs_f64() / f64::from(rounds))
}

/// A domain of one process, with a port that moves and one that copies.
struct Bench {
    port: ReceiveRight,
    right: SendRight,
    copying: ReceiveRight,
    copying_right: SendRight,
    /// Last: it is left after all that belongs to it.
    domain: Domain,
}

impl Bench {
    fn new(protection: Protection) -> Result<Self> {
        let doing = "making a domain for the ablations";
        let domain = Domain::builder("lab-ablations")
            .protection(protection)
            .limit(256 << 20)
            .private()
            .map_err(LabError::library(doing))?;
        // Slots that hold the descriptors of all pieces: no message takes another way.
        let options = || PortOptions::unnamed().inline_bytes(16 * LARGE / PAGE);
        let bind = |options| domain.bind(options).map_err(LabError::library(doing));
        let (port, copying) = (bind(options())?, bind(options().copied())?);
        Ok(Self {
            right: port.make_send(),
            port,
            copying_right: copying.make_send(),
            copying,
            domain,
        })
    }

    fn message(&self, extents: usize, bytes: usize) -> Result<Message> {
        let mut message = Message::default();
        for _ in 0..extents {
            let extent = self.domain.allocate(bytes);
            let mut extent = extent.map_err(LabError::library("allocating an extent"))?;
            extent.fill(1);
            let pushed = message.push(extent);
            pushed.map_err(LabError::library("putting an extent into a message"))?;
        }
        Ok(message)
    }

    /// Sends a message to ourselves, receives it and touches every page of it.
    fn pass(&mut self, message: &mut Message) -> Result<()> {
        through(&self.right, &mut self.port, message)
    }

    /// The same through a port that gives its receiver a copy.
    fn copy(&mut self, message: &mut Message) -> Result<()> {
        through(&self.copying_right, &mut self.copying, message)
    }

    /// Sends a message with a long header, and reads it where it lies.
    fn header(&mut self, mut message: Message) -> Result<()> {
        through(&self.right, &mut self.port, &mut message)?;
        let sum: u64 = message.header().iter().map(|b| u64::from(*b)).sum();
        black_box(sum);
        Ok(())
    }

    fn allocate(&mut self) -> Result<()> {
        let extent = self.domain.allocate(LARGE);
        drop(black_box(
            extent.map_err(LabError::library("allocating an extent"))?,
        ));
        Ok(())
    }
}

fn through(right: &SendRight, port: &mut ReceiveRight, message: &mut Message) -> Result<()> {
    right
        .send_from(message, Deadline::NOW)
        .map_err(LabError::library("sending to a port of this process"))?;
    port.receive_into(message, Access::Now, Deadline::NOW)
        .map_err(LabError::library("receiving from a port of this process"))?;
    for offset in (0..message.len()).step_by(PAGE) {
        if let Some(byte) = message
            .at_mut(black_box(offset))
            .and_then(<[u8]>::first_mut)
        {
            *byte = byte.wrapping_add(1);
        }
    }
    Ok(())
}
