//! Runs two spaces that pass a message to and fro, which is the papers' first experiment.
//!
//! ```text
//! driver (this process)                       echo (a further process)
//!   send ----------------------------------->  receive, access
//!   receive, access  <-----------------------  send
//! ```
//!
//! Each side does the same work, so half the round's mean is one way (the paper's
//! measure). What is sent is a [`Load`]: so many bytes, in extents of some kind, of
//! which the receiver accesses a part: one word in each of the first pages.
//!
//! *Cold* loads are many messages in turn, together more than any cache holds. Because
//! one word in a page would still fit, each lap over them accesses another cache line of
//! every page, so a line comes round again only when the whole has gone by.

use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use portolan::{
    Access, Deadline, Domain, Message, PortOptions, Protection, ReceiveRight, SendRight, Waiting,
};
use portolan_measure::child::{Child, Control};
use portolan_measure::cpus::{self, Cpus};
use serde::{Deserialize, Serialize};

use crate::child::Brief;
use crate::clock::Timed;
use crate::error::{LabError, Result};
use crate::huge;

const PAGE: usize = 4096;
const LINE: usize = 64;
/// A page of the paper's.
pub(crate) const PAPER_PAGE: u64 = 8 << 10;
/// The largest extent on small pages.
const SMALL_MAX: u64 = 1 << 20;
/// The smallest extent on huge ones.
pub(crate) const HUGE_PAGE: u64 = 2 << 20;
/// Bytes of a slot beside its state: eight extents' descriptors fit.
const INLINE: usize = 176;
/// How long the sides look for each other, and wait for one message.
const PATIENCE: Duration = Duration::from_secs(20);
/// Memory beside the largest load: partly used chunks, long headers.
const SLACK: u64 = 256 << 20;
/// Batches that a slice is timed in.
const BATCHES: u64 = 10;
/// Rounds that one slice has at the most; with five slices the paper's 10,000.
const ROUNDS_MAX: u64 = 2_000;

/// How a message's bytes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Layout {
    /// An extent for every page of the paper's: what its messages were made of.
    Pages,
    /// One extent.
    One,
    /// On 4 KiB pages, whatever the size: extents of up to 1 MiB.
    Small,
    /// On 2 MiB pages, whatever the size: an extent of at least one.
    Huge,
}

impl Layout {
    /// The extents of a message of `bytes`: their sizes.
    fn extents(self, bytes: u64) -> Vec<u64> {
        let step = match self {
            Self::Pages => PAPER_PAGE,
            Self::One => return (bytes > 0).then_some(bytes).into_iter().collect(),
            Self::Small => SMALL_MAX,
            Self::Huge => {
                let whole = bytes.max(HUGE_PAGE);
                return (bytes > 0).then_some(whole).into_iter().collect();
            }
        };
        let rest = (!bytes.is_multiple_of(step)).then_some(bytes % step);
        let whole = usize::try_from(bytes / step).unwrap_or(0);
        std::iter::repeat_n(step, whole).chain(rest).collect()
    }
}

/// Messages of such `extents` that together come to `cold` bytes. An extent takes whole
/// pages, however few bytes are asked for; and what has no bytes is never cold, so of that
/// one is enough.
fn turns(extents: &[u64], cold: u64) -> u64 {
    let pages = extents.iter().map(|bytes| bytes.div_ceil(PAGE as u64));
    match pages.sum::<u64>() * PAGE as u64 {
        0 => 1,
        whole => cold.div_ceil(whole).max(1),
    }
}

/// What is passed to and fro.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Load {
    pub(crate) layout: Layout,
    pub(crate) bytes: u64,
}

/// What the receiver does with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Use {
    /// Mapped by the receive operation: the immediate-access hint.
    pub(crate) now: bool,
    /// Bytes accessed, from the front.
    pub(crate) accessed: u64,
}

/// How long to measure one thing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub(crate) slices: usize,
    pub(crate) slice: Duration,
}

/// What the echo is told to be.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct EchoBrief {
    domain: String,
    guarded: bool,
    sleeps: bool,
    cpu: usize,
}

/// Driver to echo.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Order {
    rounds: u64,
    work: Work,
    /// Whether it is to see on which pages each message lies.
    looks: bool,
}

/// What either side does to each message.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Work {
    now: bool,
    accessed: usize,
    /// Messages that take turns.
    turns: u64,
    /// The round that comes first; the rounds of a load are counted on and on.
    first: u64,
}

/// Echo to driver: ready, or done.
#[derive(Debug, Serialize, Deserialize)]
struct Ready {
    /// Whether all that it was to look at lies on huge pages; none where the system does not tell.
    huge: Option<bool>,
}

/// One side's ports.
struct Side {
    to: SendRight,
    from: ReceiveRight,
}

/// A side's own port.
fn bind(domain: &Domain, name: &str, sleeps: bool) -> Result<ReceiveRight> {
    let options = PortOptions::named(name).inline_bytes(INLINE);
    let mut port = domain
        .bind(options)
        .map_err(LabError::library("binding an experiment's port"))?;
    port.set_waiting(if sleeps {
        Waiting::Sleep
    } else {
        Waiting::Poll
    });
    Ok(port)
}

impl Side {
    #[inline(always)]
    fn send(&self, message: &mut Message) -> Result<()> {
        self.to
            .send_from(message, Deadline::NEVER)
            .map_err(LabError::library("sending an experiment's message"))
    }

    /// Receives, and accesses what is to be accessed.
    #[inline(always)]
    fn receive(&mut self, message: &mut Message, work: &Work, round: u64) -> Result<()> {
        let access = if work.now { Access::Now } else { Access::Later };
        self.from
            .receive_into(message, access, PATIENCE)
            .map_err(LabError::library("waiting for an experiment's message"))?;
        access_pages(message, work.accessed, round / work.turns.max(1));
        Ok(())
    }
}

/// Reads one word in each page of the first `bytes`; in each lap another line of it.
#[inline(always)]
fn access_pages(message: &Message, bytes: usize, lap: u64) {
    let mut rest = bytes;
    // An odd number of lines, so that all of a page's take their turns and no neighbour
    // follows its neighbour.
    let line = usize::try_from(lap % (PAGE / LINE) as u64).unwrap_or(0) * 37 % (PAGE / LINE);
    for extent in message.extents() {
        if rest == 0 {
            return;
        }
        let part = rest.min(extent.len());
        for page in extent[..part].chunks(PAGE) {
            black_box(page.get(line * LINE).copied());
        }
        rest -= part;
    }
}

/// The driver with its echo.
pub(crate) struct Pair {
    side: Side,
    echo: Child,
    /// Before the domain is left, and after the ports are closed.
    domain: Domain,
}

impl Pair {
    /// Makes a domain with room for `largest` bytes of messages, and starts the echo on
    /// the other processor; or `asleep`, on the same one, where both sides sleep between messages.
    pub(crate) fn start(
        protection: Protection,
        largest: u64,
        asleep: bool,
        cpus: &Cpus,
    ) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("lab-{}-{count}", std::process::id());
        let sleeps = asleep || cpus.single();
        let domain = Domain::builder(&name)
            .space_name("lab driver")
            .protection(protection)
            .limit(largest + SLACK)
            .join()
            .map_err(LabError::library("making an experiment's domain"))?;
        let from = bind(&domain, "drive", sleeps)?;
        let brief = Brief::Echo(EchoBrief {
            domain: name,
            guarded: protection == Protection::Guarded,
            sleeps,
            cpu: if sleeps { cpus.ours } else { cpus.peer(0) },
        });
        let mut echo = Child::start("echo of an experiment", &brief, &[])?;
        let Ready { .. } = echo.expect()?;
        echo.watch()?;
        let to = domain
            .connect("echo", PATIENCE)
            .map_err(LabError::library("finding an experiment's port"))?;
        Ok(Self {
            side: Side { to, from },
            echo,
            domain,
        })
    }

    /// Makes one message, or so many to pass in turn that they come to `cold` bytes, and sees on
    /// which pages they lie.
    pub(crate) fn prepare(&mut self, load: Load, cold: Option<u64>) -> Result<Prepared> {
        let extents = load.layout.extents(load.bytes);
        let turns = cold.map_or(1, |cold| turns(&extents, cold));
        let messages = (0..turns).map(|_| self.message(&extents));
        let mut prepared = Prepared {
            load,
            messages: messages.collect::<Result<Vec<_>>>()?,
            huge: None,
        };
        if extents.iter().any(|bytes| *bytes >= HUGE_PAGE) {
            let mut loaded = self.load(prepared);
            let huge = loaded.look()?;
            prepared = Prepared {
                huge,
                ..loaded.prepared
            };
        }
        Ok(prepared)
    }

    /// With messages that it made.
    pub(crate) fn load(&mut self, prepared: Prepared) -> Loaded<'_> {
        Loaded {
            pair: self,
            prepared,
            round: 0,
        }
    }

    fn message(&self, extents: &[u64]) -> Result<Message> {
        let mut message = Message::default();
        for &bytes in extents {
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            let extent = self.domain.allocate(bytes);
            let mut extent = extent.map_err(LabError::library("allocating a message"))?;
            extent.fill(1);
            let pushed = message.push(extent);
            pushed.map_err(LabError::library("putting a message together"))?;
        }
        Ok(message)
    }

    /// Lets the echo go.
    pub(crate) fn finish(self) -> Result<()> {
        // Our ports go last: the echo may still say goodbye to them.
        Ok(self.echo.dismiss()?)
    }
}

/// Messages to be passed.
pub(crate) struct Prepared {
    load: Load,
    messages: Vec<Message>,
    /// Whether all of it lies on huge pages, in both processes; none where it is smaller than one, or
    /// where the system does not tell.
    pub(crate) huge: Option<bool>,
}

/// A pair with a load to pass.
pub(crate) struct Loaded<'a> {
    pair: &'a mut Pair,
    prepared: Prepared,
    /// Rounds so far.
    round: u64,
}

impl Loaded<'_> {
    /// Seconds one way: half the mean of a round, for each batch of rounds.
    pub(crate) fn measure(&mut self, usage: Use, effort: Effort) -> Result<Timed> {
        debug_assert!(
            usage.accessed <= self.prepared.load.bytes,
            "more accessed than sent"
        );
        // The pace, and a warm start.
        let mut rounds = 1;
        let pace = loop {
            let pace = Timed::of(self.batches(rounds, usage)?).median();
            if pace * rounds as f64 >= effort.slice.as_secs_f64() / 8.0 || rounds >= ROUNDS_MAX {
                break pace;
            }
            rounds *= 2;
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a count of rounds, and it is clamped"
        )]
        let rounds = (effort.slice.as_secs_f64() / pace.max(1e-9)) as u64;
        let rounds = rounds.clamp(1, ROUNDS_MAX);
        let mut times = Vec::new();
        for _ in 0..effort.slices {
            let batches = self.batches(rounds, usage)?;
            times.extend(batches.into_iter().map(|round| round / 2.0));
        }
        Ok(Timed::of(times))
    }

    /// Seconds of a round: the means of the batches that make up so many rounds. A process that
    /// is kept from running for a moment spoils one batch, not all.
    fn batches(&mut self, rounds: u64, usage: Use) -> Result<Vec<f64>> {
        // The first rounds wake the echo.
        let warm = 1 + rounds / 16;
        let batches = rounds.min(BATCHES);
        let each = rounds / batches;
        let work = Work {
            now: usage.now,
            accessed: usize::try_from(usage.accessed).unwrap_or(usize::MAX),
            turns: self.prepared.messages.len() as u64,
            first: self.round,
        };
        self.pair.echo.send(&Order {
            rounds: warm + each * batches,
            work,
            looks: false,
        })?;
        self.pass(warm, &work)?;
        let mut means = Vec::new();
        for _ in 0..batches {
            let start = Instant::now();
            self.pass(each, &work)?;
            means.push(start.elapsed().as_secs_f64() / each as f64);
        }
        let Ready { .. } = self.pair.echo.expect()?;
        Ok(means)
    }

    /// Passes each message once, all of it open on either side, and sees on which pages it lies.
    fn look(&mut self) -> Result<Option<bool>> {
        let rounds = self.prepared.messages.len() as u64;
        let work = Work {
            now: true,
            accessed: usize::try_from(self.prepared.load.bytes).unwrap_or(usize::MAX),
            turns: rounds,
            first: 0,
        };
        self.pair.echo.send(&Order {
            rounds,
            work,
            looks: true,
        })?;
        self.pass(rounds, &work)?;
        let Ready { huge } = self.pair.echo.expect()?;
        let ours = self.prepared.messages.iter().map(lies_on_huge_pages);
        Ok(huge::all(ours.chain([huge])))
    }

    fn pass(&mut self, rounds: u64, work: &Work) -> Result<()> {
        let turns = self.prepared.messages.len();
        let mut turn = usize::try_from(self.round % turns as u64).unwrap_or(0);
        for round in self.round..self.round + rounds {
            let message = &mut self.prepared.messages[turn];
            self.pair.side.send(message)?;
            self.pair.side.receive(message, work, round)?;
            turn += 1;
            if turn == turns {
                turn = 0;
            }
        }
        self.round += rounds;
        Ok(())
    }
}

/// The whole life of an echo.
pub(crate) fn echo(brief: &EchoBrief, control: &Control) -> Result<()> {
    cpus::pin(brief.cpu)?;
    let protection = if brief.guarded {
        Protection::Guarded
    } else {
        Protection::Trusted
    };
    let domain = Domain::builder(&brief.domain)
        .space_name("lab echo")
        .protection(protection)
        .join()
        .map_err(LabError::library("joining an experiment's domain"))?;
    let from = bind(&domain, "echo", brief.sleeps)?;
    let to = domain
        .connect("drive", PATIENCE)
        .map_err(LabError::library("finding an experiment's port"))?;
    let mut side = Side { to, from };
    control.send(&Ready { huge: None })?;
    let mut message = Message::default();
    while let Some(order) = control.receive()? {
        let Order {
            rounds,
            work,
            looks,
        } = order;
        let mut huge = looks.then_some(true);
        for round in work.first..work.first + rounds {
            side.receive(&mut message, &work, round)?;
            if looks {
                huge = huge::all([huge, lies_on_huge_pages(&message)].into_iter());
            }
            side.send(&mut message)?;
        }
        control.send(&Ready { huge })?;
    }
    Ok(())
}

/// Whether all of a message that is open here does; none where the system does not tell.
fn lies_on_huge_pages(message: &Message) -> Option<bool> {
    huge::all(message.extents().iter().map(|extent| huge::holds(extent)))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_layout_holds_all_bytes() {
        let small = Layout::Small.extents(5 << 19);
        assert_eq!(small, [1 << 20, 1 << 20, 1 << 19]);
        assert_eq!(Layout::Pages.extents(16 << 10), [8 << 10; 2]);
        assert_eq!(Layout::One.extents(64 << 20), [64 << 20]);
        assert_eq!(Layout::Huge.extents(4096), [2 << 20]);
        assert!(Layout::One.extents(0).is_empty() && Layout::Huge.extents(0).is_empty());
    }

    #[test]
    fn cold_loads_are_as_many_messages_as_fill_the_memory_and_no_more() {
        assert_eq!(turns(&[], 512 << 20), 1);
        assert_eq!(turns(&[4096], 512 << 20), 128 << 10);
        // A byte takes a page.
        assert_eq!(turns(&[1], 512 << 20), 128 << 10);
        assert_eq!(turns(&[1 << 20, 1 << 19], 3 << 20), 2);
        assert_eq!(turns(&[64 << 20], 4 << 20), 1);
        for layout in [Layout::Pages, Layout::One, Layout::Small, Layout::Huge] {
            for bytes in [0, 1, 4096, PAPER_PAGE + 1, 64 << 20] {
                let turns = turns(&layout.extents(bytes), 512 << 20);
                assert!(
                    turns * bytes.max(4096) < (512 << 20) + (64 << 20),
                    "{bytes}"
                );
            }
        }
    }

    #[test]
    fn laps_go_over_every_line_of_a_page() {
        let lines: HashSet<u64> = (0..64).map(|lap| lap * 37 % 64).collect();
        assert_eq!(lines.len(), 64);
    }
}
