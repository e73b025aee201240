//! Exports ordinary memory and imports others': the kernel copies, to the byte.
//!
//! ```text
//! [id of this export][strip of worker 0][guard][strip of worker 1][guard] ...
//! strip: [flag: odd while a record is written][number][bytes that follow from it]
//! ```
//!
//! A strip begins and ends at odd addresses, and no worker writes to a guard.

use super::super::Doing;
use super::super::board::{Entry, MAX_WORKERS};
use super::super::payload;
use super::super::random::Random;
use super::records::{self, Turn};
use super::{SHORT, Worker};
use portolan::vmmc::{
    Export, ExportError, ExportOptions, Import, ImportError, OrdinaryMemory, Reach, UpdateError,
};
use portolan::{Deadline, Domain};
use std::ops::Range;

/// Few, so that exporters and importers meet.
const NAMES: [&str; 2] = ["table 0", "table 1"];
/// Bytes of a strip, and of the guard behind it.
const STRIP: usize = 4099;
const GUARD: usize = 6;
/// What stands in a guard.
const UNTOUCHED: u8 = 0xa5;
/// Bytes before the first strip.
const HEAD: usize = 9;
const LEN: usize = HEAD + MAX_WORKERS * (STRIP + GUARD);
/// Most records in one go.
const BATCH: usize = 4;

fn strip(worker: usize) -> Range<usize> {
    let start = HEAD + worker * (STRIP + GUARD);
    start..start + STRIP
}

/// The record `number` of a worker in an export.
fn record(export: u64, worker: usize, number: u64) -> Vec<u8> {
    let seed = Random::new(export ^ (worker as u64) << 40 ^ number).next();
    let mut bytes = payload::header(seed, STRIP - 1);
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// The flag with record `number`.
fn flag(number: u64) -> u8 {
    number.to_le_bytes()[0] << 1
}

fn blank() -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    for worker in 0..MAX_WORKERS {
        let end = strip(worker).end;
        bytes[end..end + GUARD].fill(UNTOUCHED);
    }
    bytes
}

/// What a worker has of such exports.
#[derive(Default)]
pub(super) struct Ordinary {
    shown: Option<Table>,
    imported: Option<Imported>,
    /// Memory whose export has ended, and what it held at that moment.
    ended: Option<(OrdinaryMemory, Vec<u8>)>,
}

struct Table {
    export: Option<Export>,
    memory: OrdinaryMemory,
    id: u64,
    /// Of each worker, the number of the last record that was seen.
    numbers: [u64; MAX_WORKERS],
}

struct Imported {
    import: Import,
    /// Of the export.
    id: u64,
    number: u64,
}

impl Imported {
    /// Writes the next record of this worker; beyond its strip, if it is to `spoil` something.
    fn write(&mut self, worker: usize, spoil: bool) -> Result<u64, UpdateError> {
        let (at, number) = (strip(worker), self.number + 1);
        let mut bytes = record(self.id, worker, number);
        bytes.extend(spoil.then_some(0));
        self.import.write(at.start, &[flag(number) | 1])?;
        self.import.write(at.start + 1, &bytes)?;
        // A write of its own: a flag is one byte.
        self.import.write(at.start, &[flag(number)])?;
        self.number = number;
        Ok(number)
    }
}

impl Table {
    /// What is wrong with the strip of a worker, or its guard.
    fn check(&mut self, worker: usize) -> Result<(), String> {
        let at = strip(worker);
        let (mut before, mut after) = ([0], [0]);
        let mut bytes = vec![0; STRIP - 1 + GUARD];
        // A worker that sees a flag sees what its writer wrote before.
        let read = self.memory.read(at.start, &mut before);
        let read = read.and_then(|()| self.memory.read(at.start + 1, &mut bytes));
        let read = read.and_then(|()| self.memory.read(at.start, &mut after));
        read.map_err(|error| error.to_string())?;
        let (bytes, guard) = bytes.split_at(STRIP - 1);
        if guard != [UNTOUCHED; GUARD] {
            return Err(format!(
                "somebody wrote behind the strip of {worker}: {guard:?}"
            ));
        }
        let number = bytes
            .first_chunk()
            .map_or(0, |word| u64::from_le_bytes(*word));
        if before != after || before[0] & 1 != 0 || number == 0 {
            return Ok(());
        }
        if before[0] != flag(number) || bytes != record(self.id, worker, number) {
            return Err(format!("record {number} of worker {worker} is torn"));
        }
        let last = std::mem::replace(&mut self.numbers[worker], number);
        if number < last {
            return Err(format!("{number} of worker {worker} came after {last}"));
        }
        Ok(())
    }
}

impl Worker {
    pub(super) fn lend_or_borrow(&mut self) {
        let Some((domain, turn)) = self.begin_turn() else {
            return;
        };
        match turn {
            Turn::End => self.end_table(),
            Turn::Drop => self.holds.ordinary.imported = None,
            Turn::LookBack => self.look_at_ended_table(),
            Turn::Export => self.show_table(&domain),
            Turn::Import => self.fill_in(&domain),
        }
    }

    fn show_table(&mut self, domain: &Domain) {
        if self.holds.ordinary.shown.is_none() {
            self.begin_table(domain);
        }
        if let Some(table) = &mut self.holds.ordinary.shown
            && let Err(what) = records::check_all(|worker| table.check(worker))
        {
            self.corrupt(&format!("ordinary memory: {what}"));
        }
    }

    fn begin_table(&mut self, domain: &Domain) {
        let id = self.random.next() >> 32;
        let mut bytes = blank();
        bytes[..8].copy_from_slice(&id.to_le_bytes());
        let memory = OrdinaryMemory::from(bytes);
        let name = NAMES[self.random.below(NAMES.len())];
        let options = ExportOptions::new(Reach::ReadWrite);
        match domain.export(&memory, name, &options, Deadline::after(SHORT)) {
            Ok(export) => {
                self.holds.ordinary.shown = Some(Table {
                    export: Some(export),
                    memory,
                    id,
                    numbers: [0; MAX_WORKERS],
                });
            }
            Err(error) => self.expect_unexported("ordinary memory", &error),
        }
    }

    /// From the end of an export on its memory has what had landed, and does not change.
    fn end_table(&mut self) {
        let Some(mut table) = self.holds.ordinary.shown.take() else {
            return;
        };
        self.doing(Doing::Unexporting);
        if let Some(Err(error)) = table.export.take().map(Export::unexport) {
            // A worker was stopped in the middle of a call: it goes on, and so does the export.
            if !matches!(error.why, ExportError::UnderWay { .. }) {
                self.corrupt(&format!("ordinary memory: {}", error.why));
            }
            table.export = Some(*error.item);
            self.holds.ordinary.shown = Some(table);
            return;
        }
        let mut held = vec![0; LEN];
        if let Err(error) = table.memory.read(0, &mut held) {
            return self.corrupt(&format!("ordinary memory: {error}"));
        }
        for worker in 0..MAX_WORKERS {
            let landed = self.board.get(worker, Entry::LandedBytes);
            let checked = table.check(worker);
            let number = records::number(landed, table.id);
            let there = table.numbers[worker];
            // Another one may have been begun since.
            let whole = held[strip(worker).start] & 1 == 0;
            if let Err(what) = checked {
                self.corrupt(&format!("ordinary memory: {what}"));
            } else if there < number && whole {
                self.corrupt(&format!(
                    "ordinary memory: record {number} of worker {worker} had landed, and {there} is there"
                ));
            }
        }
        self.holds.ordinary.ended = Some((table.memory, held));
    }

    /// Memory whose export has ended is a vector again, and as it was then.
    fn look_at_ended_table(&mut self) {
        let Some((memory, held)) = self.holds.ordinary.ended.take() else {
            return;
        };
        match memory.into_vec() {
            Ok(now) if now == held => {}
            Ok(_) => self.corrupt("ordinary memory: it has changed since its export's end"),
            Err(_) => self.corrupt("ordinary memory: somebody has it yet"),
        }
    }

    /// Writes to the export of a worker.
    fn fill_in(&mut self, domain: &Domain) {
        if self.holds.ordinary.imported.is_none() {
            let name = NAMES[self.random.below(NAMES.len())];
            match self.begin_borrowing(domain, name) {
                Ok(imported) => self.holds.ordinary.imported = imported,
                Err(what) => self.corrupt(&format!("ordinary memory: {what}")),
            }
        }
        for _ in 0..=self.random.below(BATCH) {
            let spoil = self.plants("beside");
            let Some(imported) = &mut self.holds.ordinary.imported else {
                return;
            };
            match imported.write(self.at, spoil) {
                Ok(number) => {
                    let export = imported.id;
                    self.note_landed(Entry::LandedBytes, export, number);
                }
                Err(error) => {
                    let again = imported.write(self.at, false);
                    self.holds.ordinary.imported = None;
                    let over = matches!(error, UpdateError::Revoked | UpdateError::ExporterDied);
                    if !over || again.is_ok() {
                        self.corrupt(&format!("ordinary memory: {error}, then {again:?}"));
                    }
                }
            }
        }
    }

    fn begin_borrowing(&mut self, domain: &Domain, name: &str) -> Result<Option<Imported>, String> {
        let import = match records::import(&mut self.random, domain, name) {
            Ok(Some(import)) => import,
            // This user may not write other processes' memory.
            Ok(None) | Err(ImportError::Unreachable(_)) => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let mut id = [0; 8];
        // It goes on behind what it wrote there before, or another in its place.
        let mut last = [0; 8];
        let read = import.read(0, &mut id);
        match read.and_then(|()| import.read(strip(self.at).start + 1, &mut last)) {
            Ok(()) => Ok(Some(Imported {
                import,
                id: u64::from_le_bytes(id),
                number: u64::from_le_bytes(last),
            })),
            Err(UpdateError::Revoked | UpdateError::ExporterDied) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }
}
