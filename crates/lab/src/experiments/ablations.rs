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
        medians of the slices, and the difference slice by slice. Structure, as in the paper of a \
        message of one page of 8 KiB, by its parts: a header of 4 KiB, written into shared memory by the sender \
        and read there by the receiver, against none and the same bytes written and read in memory of \
        the process's own; the page in two extents against one, which is one descriptor more; \
        and its data found by their offset against by their extent. Then 64 KiB in eight extents of 8 KiB against \
        one. Header: the same 4 KiB written into shared memory once and read where it lies, against the same by \
        way of a buffer of the process's own, which is copied into shared memory by the send; and a \
        copy of it, and a buffer for it, alone. Buffer: memory that changes owner, against a port \
        whose receiver gets a copy in memory that is allocated for it; and the allocation alone, of a \
        page and of 64 KiB.",
    needs: &[Need::Memory(512 << 20)],
    run,
};

/// The paper's, in seconds.
mod paper {
    pub(super) const STRUCTURE: f64 = 148e-6;
    /// Checking the header on both sides, checking a descriptor, finding the data.
    pub(super) const STRUCTURE_PARTS: [f64; 3] = [92e-6, 19e-6, 37e-6];
    pub(super) const HEADER: f64 = 70e-6 + 40e-6;
    /// A copy of the header, a temporary buffer.
    pub(super) const HEADER_PARTS: [f64; 2] = [70e-6, 40e-6];
    /// Buffers for the whole message.
    pub(super) const BUFFER: f64 = 200e-6;
}

const PRICE: &str = "price of structure, a message of one page with a header of 4 KiB";
const PRICE_PARTS: [&str; 3] = [
    "check the header, on both sides",
    "check a descriptor",
    "find the data",
];
const SAVED: &str = "saved by the header in place";
const SAVED_PARTS: [&str; 2] = ["a copy of the header", "a temporary buffer"];

/// A page of the paper's.
const PAGE: usize = 8 << 10;
const LARGE: usize = 64 << 10;
/// A header, of what structure costs and of what it saves: a short one lies in its slot, where no copy
/// of it can be saved.
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
    /// The parts of what structure costs a message of one page.
    parts: [Ablation; 3],
    /// Their sum.
    price: Timed,
    /// 64 KiB; with: in pieces.
    structure: Ablation,
    /// With: by way of a buffer.
    header: Ablation,
    /// With: copied into an allocated buffer.
    buffer: Ablation,
    /// What the header in place saves, alone: a copy, and a buffer.
    header_parts: [Timed; 2],
    /// Of a page, and of 64 KiB.
    allocation: [Timed; 2],
    /// What the header in place and the allocation of a page save together.
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
    let mut row = |label: &str, paper: Option<f64>, pick: &dyn Fn(&Ablations) -> Timed| {
        let cell = |ablations: &Ablations| pick(ablations).cell().beside(paper);
        table.row(
            label,
            [cell(trusted), guarded.map_or_else(Cell::default, cell)],
        );
    };
    let part = |name: &str| format!("\u{2003}{name}");
    row(PRICE, Some(paper::STRUCTURE), &|a| a.price.clone());
    for (at, (name, paper)) in PRICE_PARTS
        .into_iter()
        .zip(paper::STRUCTURE_PARTS)
        .enumerate()
    {
        row(&part(name), Some(paper), &|a| a.parts[at].more.clone());
    }
    row("64 KiB in eight extents", None, &|a| {
        a.structure.with.clone()
    });
    row("64 KiB in one extent", None, &|a| {
        a.structure.without.clone()
    });
    row("price of seven extents more", None, &|a| {
        a.structure.more.clone()
    });
    row("header of 4 KiB by way of a buffer", None, &|a| {
        a.header.with.clone()
    });
    row("header of 4 KiB in place", None, &|a| {
        a.header.without.clone()
    });
    row(SAVED, Some(paper::HEADER), &|a| a.header.more.clone());
    for (at, (name, paper)) in SAVED_PARTS.into_iter().zip(paper::HEADER_PARTS).enumerate() {
        row(&part(name), Some(paper), &|a| a.header_parts[at].clone());
    }
    row("64 KiB into a buffer allocated for it", None, &|a| {
        a.buffer.with.clone()
    });
    row("64 KiB moved", None, &|a| a.buffer.without.clone());
    row("saved by moving", None, &|a| a.buffer.more.clone());
    row(
        "saved: allocating and freeing a page",
        Some(paper::BUFFER),
        &|a| a.allocation[0].clone(),
    );
    row("saved: allocating and freeing 64 KiB", None, &|a| {
        a.allocation[1].clone()
    });
    table.note(
        "The paper's price is that of a message of one page, and its savings are estimates. Its parts are of \
         its breakdown, ours are differences, of a descriptor with all that an extent more needs. In a \
         trusted domain that is a system call, by which the receive has the kernel see that the extent's \
         pages are mapped; in a guarded one extents side by side are opened by one call. A \
         difference that is smaller than the spread of the figures may come out below zero. Saved by \
         moving: the allocation and the copy together.",
    )
}

/// Whether what is saved is more than the price.
fn verdict(name: &str, ablations: &Ablations) -> Verdict {
    let (price, header, buffer) = (
        &ablations.price,
        &ablations.header.more,
        &ablations.allocation[0],
    );
    let pieces = &ablations.structure.more;
    let saved = &ablations.saved;
    let left = claims::timed(saved)
        .zip(claims::timed(price))
        .and_then(|(saved, price)| saved.less(price));
    let paragraph = format!(
        "In a {name} domain a header of 4 KiB, a descriptor and finding the data cost a message of one \
         page {} more; that the same header is written in place saves {}, and not having to allocate a \
         buffer of a page {}. The paper gives the first two to the header's place and the third to \
         structure, and does not add them up: the balance is ours. (Of 64 KiB eight extents instead of one \
         cost {} more.)",
        Unit::Seconds.show(price.median()),
        Unit::Seconds.show(header.median()),
        Unit::Seconds.show(buffer.median()),
        Unit::Seconds.show(pieces.median()),
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
        .figure(
            "64 KiB, eight extents less one",
            Unit::Seconds,
            pieces.cell(),
        )
}

fn measure(protection: Protection, slices: usize, rounds: u32) -> Result<Ablations> {
    let mut bench = Bench::new(protection)?;
    let parts = parts(&mut bench, (slices, rounds))?;
    let price = (0..slices).map(|slice| parts.iter().map(|part| part.differences[slice]).sum());
    let price = Timed::of(price.collect());
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
    let mut each = |work: &mut dyn FnMut(&mut Bench) -> Result<()>| {
        let times = (0..slices).map(|_| slice(&mut bench, rounds, &mut |bench| work(bench)));
        times.collect::<Result<Vec<f64>>>()
    };
    let page = each(&mut |bench| bench.allocate(PAGE))?;
    let large = each(&mut |bench| bench.allocate(LARGE))?;
    let mut copy = vec![0_u8; HEADER];
    let copied = each(&mut |_| {
        black_box(&mut copy).copy_from_slice(black_box(&bytes));
        Ok(())
    })?;
    let buffered = each(&mut |_| {
        black_box(Vec::<u8>::with_capacity(black_box(HEADER)));
        Ok(())
    })?;
    let saved = header.differences.iter().zip(&page);
    let saved = Timed::of(saved.map(|(header, buffer)| header + buffer).collect());
    Ok(Ablations {
        parts,
        price,
        structure,
        header,
        buffer,
        header_parts: [copied, buffered].map(Timed::of),
        allocation: [page, large].map(Timed::of),
        saved,
    })
}

/// What structure costs a message of one page: its header, a descriptor, finding its data.
fn parts(bench: &mut Bench, effort: (usize, u32)) -> Result<[Ablation; 3]> {
    let (bytes, mut own) = (vec![7; HEADER], vec![0; HEADER]);
    let (mut headed, mut bare) = (bench.message(1, PAGE)?, bench.message(1, PAGE)?);
    let header = compare(
        bench,
        effort,
        |bench| {
            let message = bench.domain.message(black_box(&bytes));
            let mut message = message.map_err(LabError::library("composing a header"))?;
            for page in headed.split_off(0) {
                let pushed = message.push(page);
                pushed.map_err(LabError::library("putting an extent into a message"))?;
            }
            headed = message;
            bench.pass(&mut headed)?;
            black_box(read(headed.header()));
            Ok(())
        },
        |bench| {
            // A program without structure writes and reads these bytes, too.
            black_box(&mut own).copy_from_slice(black_box(&bytes));
            bench.pass(&mut bare)?;
            black_box(read(&own));
            Ok(())
        },
    )?;
    let (mut two, mut one) = (bench.message(2, PAGE / 2)?, bench.message(1, PAGE)?);
    let descriptor = compare(
        bench,
        effort,
        |bench| bench.pass(&mut two),
        |bench| bench.pass(&mut one),
    )?;
    let (mut by_offset, mut by_extent) = (bench.message(1, PAGE)?, bench.message(1, PAGE)?);
    let find = compare(
        bench,
        effort,
        |_| {
            let found = by_offset.at_mut(black_box(PAGE / 2));
            bump(found.and_then(<[u8]>::first_mut));
            Ok(())
        },
        |_| {
            let extent = by_extent.extents_mut().first_mut();
            bump(extent.and_then(|extent| extent.get_mut(black_box(PAGE / 2))));
            Ok(())
        },
    )?;
    Ok([header, descriptor, find])
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
        black_box(read(message.header()));
        Ok(())
    }

    fn allocate(&mut self, bytes: usize) -> Result<()> {
        let extent = self.domain.allocate(bytes);
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
        let found = message.at_mut(black_box(offset));
        bump(found.and_then(<[u8]>::first_mut));
    }
    Ok(())
}

fn read(bytes: &[u8]) -> u64 {
    bytes.iter().map(|byte| u64::from(*byte)).sum()
}

fn bump(byte: Option<&mut u8>) {
    if let Some(byte) = byte {
        *byte = byte.wrapping_add(1);
    }
}
