//! The operations.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use portolan::vmmc::{Alias, ExportMemory, Import, Log, Tracked};
use portolan::{Deadline, Domain};
use portolan_sys::memory::{PAGE, populate_write};
use portolan_sys::process::{PidFd, ProcessMemory, user};

use super::{ADDRESS, EXPORTED, RETURNED, export, import, mapping, memory, updating};
use crate::case::update::{PAGES, STORES, Target, Update};
use crate::case::{Case, System};
use crate::child::Child;
use crate::cpus::{self, Cpus};
use crate::error::{MeasureError, Result};
use crate::run::{ask, one_round};

/// Bytes that one sample of copies copies at the least: the clock is read once for them.
const SAMPLE: usize = 1 << 20;
/// Words written in one sample of single words.
const WORDS: u64 = 1000;
/// Words from one scattered store to the next: a cache line.
const APART: usize = 8;
/// Lines from one scattered store to the next. Odd, so that each line has its turn.
const STEP: usize = 4099;
/// Steps of a computation whose time is taken first.
const TRIAL: u64 = 1_000_000;

/// Bytes that the exporter exports.
pub(super) fn size(case: &Case) -> usize {
    match case.system {
        System::Update(Update::Stores { .. }) => STORES * APART * 8,
        System::Update(Update::FirstStore | Update::FlushPage) => PAGES * PAGE,
        _ => usize::try_from(case.bytes).expect("64-bit only").max(PAGE),
    }
}

/// What is done, with what it is done to.
pub(super) struct Work {
    does: Does,
    /// A counter: no two updates are the same.
    count: u64,
    /// Last: it is left after all that belongs to it.
    domain: Domain,
}

enum Does {
    Write(Import, Vec<u8>),
    Copy(ExportMemory, Vec<u8>),
    Bare(ProcessMemory, usize, Vec<u8>),
    Stores(Stores, bool),
    FirstStore(ExportMemory, Tracked),
    FlushPage(ExportMemory, Tracked),
    Receiver(Import, Spent),
    Initiate(Import, Option<Vec<u8>>),
    InTurn(Import, Vec<u8>, u64),
    Overlapped(Import, Option<Vec<u8>>, u64),
    Export(usize),
    Import,
    Unimport,
    Unexport(usize),
    FreshCopy(Vec<u8>),
}

/// Memory that words are stored to.
enum Stores {
    Private(Vec<AtomicU64>),
    Alias { local: ExportMemory, _alias: Alias },
    Log(Log),
    Tracked(ExportMemory, Tracked),
}

/// Processor time of another process, read without its doing anything.
struct Spent {
    pid: u32,
    before: Option<u64>,
    updates: u64,
}

impl Spent {
    /// Nanoseconds that all of its threads have run.
    fn now(&self) -> Option<u64> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid)).ok()?;
        let each = threads.map(|thread| {
            let line = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        });
        each.sum()
    }
}

fn bytes(len: usize) -> Vec<u8> {
    vec![7; len]
}

impl Work {
    pub(super) fn new(
        case: &Case,
        operation: Update,
        domain: Domain,
        exporter: &mut Child,
        cpus: &Cpus,
    ) -> Result<Self> {
        let len = size(case);
        let remote = || import(&domain, EXPORTED);
        let does = match operation {
            Update::Write | Update::Mediated => Does::Write(remote()?, bytes(len)),
            Update::Bare => {
                let (memory, address) = past_the_library(exporter)?;
                Does::Bare(memory, address, bytes(len))
            }
            Update::Copy => Does::Copy(memory(len)?, bytes(len)),
            Update::Stores { to, scattered } => {
                Does::Stores(Stores::new(to, &remote()?, len)?, scattered)
            }
            Update::FirstStore => {
                let (local, tracked) = tracked(&remote()?, len)?;
                Does::FirstStore(local, tracked)
            }
            Update::FlushPage => {
                let (local, tracked) = tracked(&remote()?, len)?;
                Does::FlushPage(local, tracked)
            }
            Update::Receiver => {
                let spent = Spent {
                    pid: exporter.id(),
                    before: None,
                    updates: 0,
                };
                Does::Receiver(remote()?, spent)
            }
            Update::Initiate => {
                Does::Initiate(remote()?, Some(helper_elsewhere(&remote()?, len, cpus)?))
            }
            Update::InTurn => {
                let import = remote()?;
                let steps = as_long(&import, len)?;
                Does::InTurn(import, bytes(len), steps)
            }
            Update::Overlapped => {
                let import = remote()?;
                let steps = as_long(&import, len)?;
                let buffer = helper_elsewhere(&import, len, cpus)?;
                Does::Overlapped(import, Some(buffer), steps)
            }
            Update::Export => Does::Export(len),
            Update::Import => Does::Import,
            Update::Unimport => Does::Unimport,
            Update::Unexport => Does::Unexport(len),
            Update::FreshCopy => Does::FreshCopy(bytes(len)),
        };
        Ok(Self {
            does,
            count: 0,
            domain,
        })
    }

    /// From here on what the exporter spends counts.
    pub(super) fn begin(&mut self) {
        if let Does::Receiver(_, spent) = &mut self.does {
            spent.before = spent.now();
            spent.updates = 0;
        }
    }

    /// What the exporter has spent on each update, in nanoseconds.
    pub(super) fn exporters_time(&self) -> Option<f64> {
        let Does::Receiver(_, spent) = &self.does else {
            return None;
        };
        let all = spent.now()?.saturating_sub(spent.before?);
        Some(all as f64 / spent.updates.max(1) as f64)
    }

    /// Does it so many times; the time of what the row is about.
    pub(super) fn sample(&mut self, exporter: &mut Child) -> Result<(Duration, u64)> {
        self.count += 1;
        let count = self.count;
        match &mut self.does {
            Does::Write(import, from) => {
                let times = (SAMPLE / from.len()).max(1);
                let start = Instant::now();
                for _ in 0..times {
                    import.write(0, black_box(from)).map_err(updating)?;
                }
                Ok((start.elapsed(), times as u64))
            }
            Does::Copy(to, from) => {
                let times = (SAMPLE / from.len()).max(1);
                let to = to.bytes_mut().ok_or(MeasureError::Gone)?;
                let start = Instant::now();
                for _ in 0..times {
                    black_box(&mut *to).copy_from_slice(black_box(from));
                }
                Ok((start.elapsed(), times as u64))
            }
            Does::Bare(memory, address, from) => {
                let times = (SAMPLE / from.len()).max(1);
                let start = Instant::now();
                for _ in 0..times {
                    memory
                        .write_at(*address, black_box(from))
                        .map_err(MeasureError::library("writing another process's memory"))?;
                }
                Ok((start.elapsed(), times as u64))
            }
            Does::Stores(to, scattered) => Ok((to.store(*scattered, count)?, STORES as u64)),
            Does::FirstStore(local, tracked) => {
                tracked.flush().map_err(mapping)?;
                let elapsed = a_word_a_page(local, count)?;
                Ok((elapsed, PAGES as u64))
            }
            Does::FlushPage(local, tracked) => {
                a_word_a_page(local, count)?;
                let start = Instant::now();
                let epoch = tracked.flush().map_err(mapping)?;
                Ok((start.elapsed(), (epoch.bytes / PAGE).max(1) as u64))
            }
            Does::Receiver(import, spent) => {
                let start = Instant::now();
                for word in 0..WORDS {
                    import.store_release(0, word).map_err(updating)?;
                }
                spent.updates += WORDS;
                Ok((start.elapsed(), WORDS))
            }
            Does::Initiate(import, buffer) => {
                let full = buffer.take().ok_or(MeasureError::Gone)?;
                let start = Instant::now();
                let pending = import.write_later(0, full);
                let elapsed = start.elapsed();
                let pending = pending.map_err(|error| updating(error.why))?;
                let done = pending.finish();
                *buffer = Some(done.map_err(|error| updating(error.why))?);
                Ok((elapsed, 1))
            }
            Does::InTurn(import, from, steps) => {
                let start = Instant::now();
                import.write(0, from).map_err(updating)?;
                compute(*steps);
                Ok((start.elapsed(), 1))
            }
            Does::Overlapped(import, buffer, steps) => {
                let full = buffer.take().ok_or(MeasureError::Gone)?;
                let start = Instant::now();
                let pending = import.write_later(0, full);
                let pending = pending.map_err(|error| updating(error.why))?;
                compute(*steps);
                let done = pending.finish();
                let elapsed = start.elapsed();
                *buffer = Some(done.map_err(|error| updating(error.why))?);
                Ok((elapsed, 1))
            }
            Does::Export(len) => {
                let memory = memory(*len)?;
                let start = Instant::now();
                let exported = export(&self.domain, &memory, RETURNED)?;
                let elapsed = start.elapsed();
                drop(exported);
                Ok((elapsed, 1))
            }
            Does::Import => {
                let start = Instant::now();
                let import = import(&self.domain, EXPORTED)?;
                let elapsed = start.elapsed();
                drop(import);
                Ok((elapsed, 1))
            }
            Does::Unimport => {
                let import = import(&self.domain, EXPORTED)?;
                let start = Instant::now();
                import.unimport();
                Ok((start.elapsed(), 1))
            }
            Does::Unexport(len) => {
                let memory = memory(*len)?;
                let exported = export(&self.domain, &memory, RETURNED)?;
                one_round(exporter)?;
                let start = Instant::now();
                exported
                    .unexport()
                    .map_err(|error| MeasureError::library("ending an export")(error.source))?;
                Ok((start.elapsed(), 1))
            }
            Does::FreshCopy(from) => {
                let start = Instant::now();
                let mut to: Vec<u8> = Vec::with_capacity(from.len());
                let first = to.as_ptr().addr() / PAGE * PAGE;
                // The last page may be shared with what is behind it, and is touched below.
                populate_write(first, from.len() / PAGE * PAGE)
                    .map_err(MeasureError::system("taking memory for a copy"))?;
                to.extend_from_slice(from);
                let elapsed = start.elapsed();
                black_box(to);
                Ok((elapsed, 1))
            }
        }
    }
}

/// The exporter's memory by the kernel's means alone, and where in it the export is.
fn past_the_library(exporter: &mut Child) -> Result<(ProcessMemory, usize)> {
    let doing = "opening another process's memory";
    let counts = ask(exporter)?;
    let address = counts.iter().find(|counted| counted.what == ADDRESS);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an address: fewer bits than a float's"
    )]
    let address = address.ok_or(MeasureError::Gone)?.value as usize;
    let exporter = PidFd::open(exporter.id()).map_err(MeasureError::system(doing))?;
    let memory = ProcessMemory::of(&exporter, user()).map_err(MeasureError::library(doing))?;
    Ok((memory, address))
}

/// Memory whose pages are tracked, all of it.
fn tracked(import: &Import, len: usize) -> Result<(ExportMemory, Tracked)> {
    let local = memory(len)?;
    let tracked = import
        .map_tracked(&local, 0..len, 0, None)
        .map_err(mapping)?;
    Ok((local, tracked))
}

/// Stores a word to each page; how long that took.
fn a_word_a_page(memory: &ExportMemory, value: u64) -> Result<Duration> {
    let words = memory.words().map_err(updating)?;
    let start = Instant::now();
    for page in words.chunks(PAGE / 8) {
        // Relaxed: nobody looks before a flush.
        page[0].store(value, Ordering::Relaxed);
    }
    Ok(start.elapsed())
}

/// Something to do without memory.
fn compute(steps: u64) {
    let mut state = black_box(1_u64);
    for _ in 0..steps {
        state = black_box(
            state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1),
        );
    }
}

/// Steps that take about as long as an update of so many bytes.
fn as_long(import: &Import, len: usize) -> Result<u64> {
    let from = bytes(len);
    import.write(0, &from).map_err(updating)?;
    let start = Instant::now();
    import.write(0, &from).map_err(updating)?;
    let update = start.elapsed();
    let start = Instant::now();
    compute(TRIAL);
    let trial = start.elapsed().as_nanos().max(1);
    let steps = u128::from(TRIAL) * update.as_nanos() / trial;
    Ok(u64::try_from(steps).unwrap_or(TRIAL))
}

/// Has the thread that does non-blocking writes start on the exporter's processor, which is
/// idle; the buffer of the first write.
fn helper_elsewhere(import: &Import, len: usize, cpus: &Cpus) -> Result<Vec<u8>> {
    cpus::pin(cpus.peer(0))?;
    let pending = import.write_later(0, bytes(len));
    let done = pending.map(|pending| {
        pending.wait(Deadline::NEVER);
        pending.finish()
    });
    cpus::pin(cpus.ours)?;
    done.map_err(|error| updating(error.why))?
        .map_err(|error| updating(error.why))
}

impl Stores {
    fn new(to: Target, import: &Import, len: usize) -> Result<Self> {
        Ok(match to {
            Target::Private => Self::Private((0..len / 8).map(|_| AtomicU64::new(1)).collect()),
            Target::Alias => {
                let local = memory(len)?;
                let alias = import.map_alias(&local, 0..len, 0).map_err(mapping)?;
                Self::Alias {
                    local,
                    _alias: alias,
                }
            }
            Target::Log => {
                let local = memory(len)?;
                Self::Log(import.map_log(&local, 0..len, 0).map_err(mapping)?)
            }
            Target::Tracked => {
                let (local, tracked) = tracked(import, len)?;
                Self::Tracked(local, tracked)
            }
        })
    }

    /// Stores [`STORES`] words, with the flush where there is one; how long that took.
    fn store(&mut self, scattered: bool, value: u64) -> Result<Duration> {
        let start = Instant::now();
        match self {
            Self::Private(words) => plain(words, scattered, value),
            Self::Alias { local, .. } => plain(local.words().map_err(updating)?, scattered, value),
            Self::Log(log) => {
                let bytes = value.to_ne_bytes();
                for nth in 0..STORES {
                    log.store(8 * place(nth, scattered), &bytes)
                        .map_err(updating)?;
                }
                log.flush().map_err(updating)?;
            }
            Self::Tracked(local, tracked) => {
                plain(local.words().map_err(updating)?, scattered, value);
                tracked.flush().map_err(mapping)?;
            }
        }
        Ok(start.elapsed())
    }
}

/// The word that the `nth` store is to.
#[inline(always)]
fn place(nth: usize, scattered: bool) -> usize {
    if scattered {
        nth * STEP % STORES * APART
    } else {
        nth
    }
}

/// The same loop for every memory that takes plain stores.
#[inline(never)]
fn plain(words: &[AtomicU64], scattered: bool, value: u64) {
    // Relaxed: what is measured is the store.
    if scattered {
        for nth in 0..STORES {
            words[place(nth, true)].store(value, Ordering::Relaxed);
        }
    } else {
        for word in &words[..STORES] {
            word.store(value, Ordering::Relaxed);
        }
    }
}
