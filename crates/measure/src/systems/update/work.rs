//! Does the operations of the rows about exported memory.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use portolan::vmmc::{Alias, ExportMemory, Import, Log, Tracked};
use portolan::{Deadline, Domain};
use portolan_sys::memory::{PAGE, populate_write};
use portolan_sys::process::{PidFd, ProcessMemory, user};

use super::meter::Meter;
use super::spent::asleep;
use super::{ADDRESS, EXPORTED, RETURNED, TAKEN, export, import, mapping, memory, updating};
use crate::case::update::{PAGES, STORES, Target, Update};
use crate::case::{Case, System};
use crate::child::Child;
use crate::cpus::{self, Cpus};
use crate::error::{MeasureError, Result};
use crate::run::{ask, one_round};

/// Bytes that one sample of copies copies at the least: the clock is read once for them.
const SAMPLE: usize = 1 << 20;
/// Words written in one sample of single words.
const WORDS: usize = 1000;
/// Words of which the exporter is told in one: what a ring of notes has room for.
const NOTES: usize = 100;
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
    Flush(ExportMemory, Tracked),
    Receiver(Import),
    Notify(Import),
    NotifyAsleep(Import, u64),
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
        let amount = usize::try_from(case.bytes).expect("64-bit only");
        let remote = || import(&domain, EXPORTED);
        let does = match operation {
            Update::Write | Update::Mediated => Does::Write(remote()?, bytes(amount)),
            Update::Bare => {
                let (memory, address) = past_the_library(exporter)?;
                Does::Bare(memory, address, bytes(amount))
            }
            Update::Copy => Does::Copy(memory(len)?, bytes(amount)),
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
            Update::Flush => {
                let (local, tracked) = tracked(&remote()?, len)?;
                Does::Flush(local, tracked)
            }
            Update::Receiver => Does::Receiver(remote()?),
            Update::Notify { asleep: false } => Does::Notify(remote()?),
            Update::Notify { asleep: true } => Does::NotifyAsleep(remote()?, 0),
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

    /// Does it so many times; the time of what the row is about, and how many times that was.
    pub(super) fn sample(&mut self, exporter: &mut Child, meter: Meter) -> Result<(Duration, u64)> {
        self.count += 1;
        let count = self.count;
        match &mut self.does {
            Does::Write(import, from) => {
                let times = meter.times((SAMPLE / from.len()).max(1));
                let part = meter.begin();
                for _ in 0..times {
                    import.write(0, black_box(from)).map_err(updating)?;
                }
                Ok((part.end(), times as u64))
            }
            Does::Copy(to, from) => {
                let times = meter.times((SAMPLE / from.len()).max(1));
                let to = to.bytes_mut().ok_or(MeasureError::Gone)?;
                let part = meter.begin();
                for _ in 0..times {
                    black_box(&mut to[..from.len()]).copy_from_slice(black_box(from));
                }
                Ok((part.end(), times as u64))
            }
            Does::Bare(memory, address, from) => {
                let times = meter.times((SAMPLE / from.len()).max(1));
                let part = meter.begin();
                for _ in 0..times {
                    memory
                        .write_at(*address, black_box(from))
                        .map_err(MeasureError::library("writing another process's memory"))?;
                }
                Ok((part.end(), times as u64))
            }
            Does::Stores(to, scattered) => {
                let stores = meter.stores(STORES);
                let elapsed = to.store(*scattered, stores, count, meter)?;
                Ok((elapsed, stores as u64))
            }
            Does::FirstStore(local, tracked) => {
                tracked.flush().map_err(mapping)?;
                let part = meter.begin();
                a_word_a_page(local, count)?;
                let elapsed = part.end();
                Ok((elapsed, PAGES as u64))
            }
            Does::FlushPage(local, tracked) => {
                a_word_a_page(local, count)?;
                let part = meter.begin();
                let epoch = tracked.flush().map_err(mapping)?;
                Ok((part.end(), (epoch.bytes / PAGE).max(1) as u64))
            }
            Does::Flush(local, tracked) => {
                a_word_a_page(local, count)?;
                let part = meter.begin();
                tracked.flush().map_err(mapping)?;
                Ok((part.end(), 1))
            }
            Does::Receiver(import) => {
                let times = meter.times(WORDS) as u64;
                let part = meter.begin();
                for word in 0..times {
                    import.store_release(0, word).map_err(updating)?;
                }
                Ok((part.end(), times))
            }
            Does::Notify(import) => {
                let times = meter.times(NOTES) as u64;
                let part = meter.begin();
                for word in 0..times {
                    let word = black_box(word).to_ne_bytes();
                    import.write_notifying(0, &word).map_err(updating)?;
                }
                let elapsed = part.end();
                // It takes them.
                one_round(exporter)?;
                Ok((elapsed, times))
            }
            Does::NotifyAsleep(import, notes) => {
                asleep(exporter.id(), || import.load_acquire(TAKEN) == Ok(*notes))?;
                *notes += 1;
                let part = meter.begin();
                let word = black_box(count).to_ne_bytes();
                import.write_notifying(0, &word).map_err(updating)?;
                Ok((part.end(), 1))
            }
            Does::Initiate(import, buffer) => {
                let full = buffer.take().ok_or(MeasureError::Gone)?;
                let part = meter.begin();
                let pending = import.begin_write(0, full);
                let elapsed = part.end();
                let pending = pending.map_err(|error| updating(error.why))?;
                let done = pending.finish();
                *buffer = Some(done.map_err(|error| updating(error.why))?);
                Ok((elapsed, 1))
            }
            Does::InTurn(import, from, steps) => {
                let part = meter.begin();
                import.write(0, from).map_err(updating)?;
                compute(*steps);
                Ok((part.end(), 1))
            }
            Does::Overlapped(import, buffer, steps) => {
                let full = buffer.take().ok_or(MeasureError::Gone)?;
                let part = meter.begin();
                let pending = import.begin_write(0, full);
                let pending = pending.map_err(|error| updating(error.why))?;
                compute(*steps);
                let done = pending.finish();
                let elapsed = part.end();
                *buffer = Some(done.map_err(|error| updating(error.why))?);
                Ok((elapsed, 1))
            }
            Does::Export(len) => {
                let memory = memory(*len)?;
                let part = meter.begin();
                let exported = export(&self.domain, &memory, RETURNED)?;
                let elapsed = part.end();
                drop(exported);
                Ok((elapsed, 1))
            }
            Does::Import => {
                let part = meter.begin();
                let import = import(&self.domain, EXPORTED)?;
                let elapsed = part.end();
                drop(import);
                Ok((elapsed, 1))
            }
            Does::Unimport => {
                let import = import(&self.domain, EXPORTED)?;
                let part = meter.begin();
                import.unimport();
                Ok((part.end(), 1))
            }
            Does::Unexport(len) => {
                let memory = memory(*len)?;
                let exported = export(&self.domain, &memory, RETURNED)?;
                one_round(exporter)?;
                let part = meter.begin();
                exported
                    .unexport()
                    .map_err(|error| MeasureError::library("ending an export")(error.why))?;
                Ok((part.end(), 1))
            }
            Does::FreshCopy(from) => {
                let part = meter.begin();
                let mut to: Vec<u8> = Vec::with_capacity(from.len());
                let first = to.as_ptr().addr() / PAGE * PAGE;
                // The last page may be shared with what is behind it, and is touched below.
                populate_write(first, from.len() / PAGE * PAGE)
                    .map_err(MeasureError::system("taking memory for a copy"))?;
                to.extend_from_slice(from);
                let elapsed = part.end();
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

/// Stores a word to each page.
fn a_word_a_page(memory: &ExportMemory, value: u64) -> Result<()> {
    let words = memory.words().map_err(updating)?;
    for page in words.chunks(PAGE / 8) {
        // Relaxed: nobody looks before a flush.
        page[0].store(value, Ordering::Relaxed);
    }
    Ok(())
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
    let pending = import.begin_write(0, bytes(len));
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

    /// Stores so many words, with the flush where there is one; how long that took.
    fn store(
        &mut self,
        scattered: bool,
        stores: usize,
        value: u64,
        meter: Meter,
    ) -> Result<Duration> {
        let part = meter.begin();
        match self {
            Self::Private(words) => plain(words, scattered, stores, value),
            Self::Alias { local, .. } => {
                let words = local.words().map_err(updating)?;
                plain(words, scattered, stores, value);
            }
            Self::Log(log) => {
                let bytes = value.to_ne_bytes();
                for nth in 0..stores {
                    log.store(8 * place(nth, scattered), &bytes)
                        .map_err(updating)?;
                }
                log.flush().map_err(updating)?;
            }
            Self::Tracked(local, tracked) => {
                let words = local.words().map_err(updating)?;
                plain(words, scattered, stores, value);
                tracked.flush().map_err(mapping)?;
            }
        }
        Ok(part.end())
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
fn plain(words: &[AtomicU64], scattered: bool, stores: usize, value: u64) {
    // Relaxed: what is measured is the store.
    if scattered {
        for nth in 0..stores {
            words[place(nth, true)].store(value, Ordering::Relaxed);
        }
    } else {
        for word in &words[..stores] {
            word.store(value, Ordering::Relaxed);
        }
    }
}
