//! Measures whether an exporter that computes is slowed by updates of its memory.
//!
//! ```text
//! sender (this process)          an exporter that computes, and one that sleeps
//!   updates the one or the other   counts the rounds of its computation, which reads its exports
//!
//! exported lines:  u r u r u r ...    u: updated, r: read by the computation
//! ```
//!
//! The sender does the same work in both cases, beside the same computation; only whose memory it
//! writes differs. What the computation takes longer is what an update costs its receiver.

use std::hint::black_box;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use portolan::vmmc::{Alias, ExportMemory, ExportOptions, Import, OrdinaryMemory, Reach};
use portolan::{Deadline, Domain};
use portolan_measure::MeasureError;
use portolan_measure::child::{Child, Control};
use portolan_measure::cpus;
use portolan_sys::shared::Window;
use serde::{Deserialize, Serialize};

use super::{AUTOMATIC, DELIBERATE, MEDIATED};
use crate::calls::MEETING;
use crate::child;
use crate::error::{LabError, Result};
use crate::experiment::Context;
use crate::lanes::{Beside, Effort};

/// Steps of one round of the computation: about a microsecond.
const STEPS: u64 = 1000;
/// Updates between two looks at the clock.
const BATCH: usize = 64;
/// Bytes of an export, and of a word.
const BYTES: usize = 8 << 10;
const WORD: usize = 8;
/// The sender updates the first of two lines, all round; the computation reads the second.
const LINE: usize = 64;
const PAIR: usize = 2 * LINE;

/// Where updates go, and what the computation reads: no line is in both.
fn updated() -> impl Iterator<Item = usize> + Clone {
    (0..BYTES).step_by(PAIR)
}

fn read() -> impl Iterator<Item = usize> + Clone {
    (LINE..BYTES).step_by(PAIR)
}
/// Words of the window: rounds so far, and whether it is over.
const ROUNDS: usize = 0;
const OVER: usize = 16;

const USER_LEVEL: &str = "memory to be exported";
const ORDINARY: &str = "ordinary memory";

/// What an exporter is told to be.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Brief {
    domain: String,
    cpu: usize,
    /// Otherwise it sleeps.
    computes: bool,
}

/// Exporter to sender: its memory is exported.
#[derive(Debug, Serialize, Deserialize)]
struct Ready;

/// Seconds of a round of the computation, slice by slice.
pub(super) struct Busy {
    rows: Vec<Row>,
}

struct Row {
    name: &'static str,
    updated: Vec<f64>,
    spared: Vec<f64>,
}

impl Busy {
    /// What a round takes while the computing process is updated, to while another one is.
    pub(super) fn beside(&self, row: &str) -> Option<Beside> {
        let row = self.rows.iter().find(|found| found.name == row)?;
        Beside::ratio(&row.updated, &row.spared)
    }
}

/// A way to update one process's memory.
enum Updates {
    Calls(Import),
    Stores(ExportMemory, Alias),
}

impl Updates {
    fn by(domain: &Domain, row: &str, of: &str) -> Result<Self> {
        let doing = "importing what a computing process exports";
        let kind = if row == MEDIATED {
            ORDINARY
        } else {
            USER_LEVEL
        };
        let name = format!("{kind}, {of}");
        let import = domain.import(&name, Deadline::after(MEETING));
        let import = import.map_err(LabError::library(doing))?;
        if row != AUTOMATIC {
            return Ok(Self::Calls(import));
        }
        let local = ExportMemory::new(BYTES).map_err(LabError::library(doing))?;
        let alias = import.map_alias(&local, 0..BYTES, 0);
        Ok(Self::Stores(
            local,
            alias.map_err(LabError::library(doing))?,
        ))
    }

    fn batch(&self, value: u64) -> Result<()> {
        let doing = "updating a computing process's memory";
        let places = updated().cycle().take(BATCH);
        match self {
            Self::Calls(import) => {
                for place in places {
                    import
                        .write(place, &value.to_le_bytes())
                        .map_err(LabError::library(doing))?;
                }
            }
            Self::Stores(local, _alias) => {
                let words = local.words().map_err(LabError::library(doing))?;
                for place in places {
                    words[place / WORD].store(value, Ordering::Relaxed);
                }
            }
        }
        Ok(())
    }
}

pub(super) fn measure(effort: Effort, context: &Context<'_>) -> Result<Busy> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    context.progress.step("a receiver that computes");
    // Relaxed: only to tell them apart.
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("lab-busy-{}-{count}", std::process::id());
    let domain = Domain::builder(&name)
        .space_name("lab sender")
        .limit(64 << 20)
        .join()
        .map_err(LabError::library("making a domain of updates"))?;
    let doing = "sharing a computation's count";
    let window = Window::create(4096).map_err(LabError::library(doing))?;
    let exporter = |computes| -> Result<Child> {
        let brief = child::Brief::Busy(Brief {
            domain: name.clone(),
            cpu: context.cpus.peer(0),
            computes,
        });
        let mut child = Child::start("exporter of an experiment", &brief, &[window.fd()])?;
        let Ready = child.expect()?;
        child.watch()?;
        Ok(child)
    };
    let (sleeping, computing) = (exporter(false)?, exporter(true)?);
    let mut rows = Vec::new();
    for name in [MEDIATED, DELIBERATE, AUTOMATIC] {
        let row = Row {
            name,
            updated: Vec::new(),
            spared: Vec::new(),
        };
        let updates = [true, false].map(|computes| Updates::by(&domain, name, whose(computes)));
        let [updated, spared] = updates;
        rows.push((row, updated?, spared?));
    }
    let rounds = window.word(ROUNDS);
    let slice = |updates: &Updates| -> Result<f64> {
        let (start, before) = (Instant::now(), rounds.load(Ordering::Relaxed));
        let mut value = before;
        loop {
            value += 1;
            updates.batch(value)?;
            let made = rounds.load(Ordering::Relaxed) - before;
            // At least one round, however short the slice.
            if start.elapsed() >= effort.slice && made > 0 {
                return Ok(start.elapsed().as_secs_f64() / made as f64);
            }
        }
    };
    for _ in 0..effort.slices {
        for (row, updated, spared) in &mut rows {
            row.updated.push(slice(updated)?);
            row.spared.push(slice(spared)?);
        }
    }
    let (rows, ways): (Vec<Row>, Vec<_>) = rows
        .into_iter()
        .map(|(row, updated, spared)| (row, [updated, spared]))
        .unzip();
    drop(ways);
    // Release: nothing but the word itself is passed.
    window.word(OVER).store(1, Ordering::Release);
    computing.dismiss()?;
    sleeping.dismiss()?;
    Ok(Busy { rows })
}

fn whose(computes: bool) -> &'static str {
    if computes { "computing" } else { "sleeping" }
}

/// The whole life of an exporter.
pub(crate) fn serve(brief: &Brief, control: &Control, descriptors: Vec<OwnedFd>) -> Result<()> {
    let doing = "exporting a computing process's memory";
    // The library's threads, too, stay where the computation is.
    cpus::pin(brief.cpu)?;
    let window = descriptors.into_iter().next();
    let window = Window::from_fd(window.ok_or(MeasureError::NoCoordinator)?);
    let window = window.map_err(LabError::library(doing))?;
    let domain = Domain::builder(&brief.domain)
        .space_name("lab exporter")
        .join()
        .map_err(LabError::library(doing))?;
    let user_level = ExportMemory::new(BYTES).map_err(LabError::library(doing))?;
    let ordinary = OrdinaryMemory::from(vec![1; BYTES]);
    let options = ExportOptions::new(Reach::ReadWrite);
    let name = |kind: &str| format!("{kind}, {}", whose(brief.computes));
    let deadline = Deadline::after(MEETING);
    let _exports = [
        domain.export(&user_level, &name(USER_LEVEL), &options, deadline),
        domain.export(&ordinary, &name(ORDINARY), &options, deadline),
    ]
    .into_iter()
    .collect::<std::result::Result<Vec<_>, _>>()
    .map_err(LabError::library(doing))?;
    control.send(&Ready)?;
    if brief.computes {
        let words = user_level.words().map_err(LabError::library(doing))?;
        let look = || {
            // Relaxed: nothing arrives in these lines.
            let shared: u64 = read()
                .map(|place| words[place / WORD].load(Ordering::Relaxed))
                .fold(0, u64::wrapping_add);
            let own: Option<u64> = read()
                .map(|place| {
                    let mut word = [0; WORD];
                    ordinary.read(place, &mut word).ok()?;
                    Some(u64::from_ne_bytes(word))
                })
                .try_fold(0, |sum: u64, word| Some(sum.wrapping_add(word?)));
            black_box((shared, own));
        };
        compute(window.word(ROUNDS), window.word(OVER), look);
    }
    // Until the sender leaves.
    let _: Option<Ready> = control.receive()?;
    Ok(())
}

/// Rounds of a computation in registers and of the memory that `look` reads, counted where the
/// sender sees them.
fn compute(rounds: &AtomicU64, over: &AtomicU64, look: impl Fn()) {
    let mut number = 0x9e37_79b9_7f4a_7c15_u64;
    while over.load(Ordering::Acquire) == 0 {
        for _ in 0..STEPS {
            number ^= number << 13;
            number ^= number >> 7;
            number ^= number << 17;
        }
        black_box(number);
        look();
        // Relaxed: a count, and nothing else.
        rounds.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_computation_reads_the_exported_lines_beside_those_that_are_updated() {
        let lines = |places: &mut dyn Iterator<Item = usize>| -> Vec<usize> {
            places.map(|place| place / LINE).collect()
        };
        let (written, looked) = (lines(&mut updated()), lines(&mut read()));
        assert!(written.len() >= BATCH);
        // Neighbours, and none the same.
        for (written, looked) in written.iter().zip(&looked) {
            assert_eq!(written + 1, *looked);
        }
        assert_eq!(written.len(), looked.len());
        assert!(looked.iter().all(|line| !written.contains(line)));
        assert!(looked.iter().all(|line| line * LINE < BYTES));
    }
}
