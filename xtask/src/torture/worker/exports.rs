//! Exports memory and imports others': each worker writes records to a page of its own in each
//! import, by blocking and non-blocking writes and by automatic update.
//!
//! ```text
//! page 0: [id of this export]
//! page 1 + worker: [number: odd while a record is written, even behind it] [the record]
//! ```

use super::super::board::{Board, Entry, MAX_WORKERS};
use super::super::payload;
use super::super::random::Random;
use super::notes::Notes;
use super::records::{self, Turn};
use super::{SHORT, Worker, keep};
use portolan::vmmc::{
    Alias, Export, ExportError, ExportMemory, ExportOptions, Import, Log, MappingError, Pending,
    Reach, Tracked, UpdateError,
};
use portolan::{Deadline, Domain};
use portolan_abi::limits::PAGE;
use std::sync::atomic::{Ordering, fence};

/// Few, so that exporters and importers meet, also those of a name that was exported before.
const NAMES: [&str; 3] = ["chart 0", "chart 1", "chart 2"];
/// Bytes of an export.
const LEN: usize = (1 + MAX_WORKERS) * PAGE;
/// Most records in one go.
const BATCH: usize = 8;

/// Where a worker's page begins.
fn page(worker: usize) -> usize {
    (1 + worker) * PAGE
}

/// The record `number` of a worker in an export: fills its page, and each of its words follows
/// from all three.
fn record(export: u64, worker: usize, number: u64) -> Vec<u8> {
    let seed = Random::new(export ^ (worker as u64) << 32 ^ number).next();
    payload::header(seed, PAGE - 8)
}

/// What a worker has of exports.
#[derive(Default)]
pub(super) struct Exports {
    shown: Option<Shown>,
    imported: Vec<Imported>,
    /// Memory whose export has ended, and what it held at that moment.
    ended: Vec<(ExportMemory, Vec<u8>)>,
}

/// What it exports.
struct Shown {
    export: Export,
    chart: Chart,
    /// The exporter listens to notifications.
    notes: Option<Notes>,
}

/// The memory of an export.
struct Chart {
    memory: ExportMemory,
    /// Drawn by lot, 32 bits of it.
    id: u64,
    /// Of each worker, the number of the last record that was seen.
    numbers: [u64; MAX_WORKERS],
}

/// What it has imported.
struct Imported {
    way: Way,
    import: Import,
    /// Of the export.
    id: u64,
}

/// How its records reach the exporter.
enum Way {
    Writes,
    WritesLater,
    Log(Log),
    Alias(Alias, ExportMemory),
    Tracked(Tracked, ExportMemory),
}

impl Way {
    fn new(random: &mut Random, import: &Import, at: usize) -> Result<Self, MappingError> {
        let part = 0..PAGE;
        Ok(match (random.below(5), ExportMemory::new(PAGE)) {
            (0, Ok(local)) => Self::Log(import.map_log(&local, part, at)?),
            (1, Ok(local)) => Self::Alias(import.map_alias(&local, part, at)?, local),
            (2, Ok(local)) => Self::Tracked(import.map_tracked(&local, part, at, None)?, local),
            (3, _) => Self::WritesLater,
            _ => Self::Writes,
        })
    }

    /// Writes a record to the page at `at`, whose number is odd by now.
    fn write(
        &mut self,
        import: &Import,
        at: usize,
        number: u64,
        record: Vec<u8>,
    ) -> Result<(), UpdateError> {
        match self {
            Self::Writes => import.write(at + 8, &record)?,
            Self::WritesLater => {
                let later = import.begin_write(at + 8, record);
                let landed = later.and_then(Pending::finish);
                landed.map_err(|unwritten| unwritten.why)?;
            }
            Self::Log(log) => {
                log.store(8, &record)?;
                return log.store_release(0, number);
            }
            Self::Alias(alias, local) => {
                local.write(8, &record)?;
                local.store_release(0, number)?;
                return alias.flush();
            }
            Self::Tracked(tracked, local) => {
                // It sends whole pages.
                local.store_release(0, number - 1)?;
                local.write(8, &record)?;
                return match tracked.store_release(0, number) {
                    Ok(_) => Ok(()),
                    Err(MappingError::Update(error)) => Err(error),
                    // The system's: nothing was sent, or it is not known.
                    Err(_) => Err(UpdateError::TimedOut),
                };
            }
        }
        import.store_release(at, number)
    }
}

impl Imported {
    /// Writes the next record of this worker; its number, if it has landed.
    fn write(&mut self, worker: usize, spoil: bool) -> Result<u64, UpdateError> {
        let at = page(worker);
        let begun = (self.import.load_acquire(at)? + 1) | 1;
        let number = begun + 1;
        let mut bytes = record(self.id, worker, number);
        bytes[PAGE / 2] ^= u8::from(spoil);
        self.import.store_release(at, begun)?;
        // Release: the record lies behind the odd number.
        fence(Ordering::Release);
        self.way.write(&self.import, at, number, bytes)?;
        Ok(number)
    }

    /// Tells the exporter of a record.
    fn tell(&self, board: &Board, worker: usize, number: u64) -> Result<(), UpdateError> {
        let len = usize::try_from(number / 2).unwrap_or(PAGE);
        // It says which one by its length.
        if len >= PAGE {
            return Ok(());
        }
        board.set(worker, Entry::Telling, records::word(self.id, number));
        self.import.notify(page(worker), len)?;
        board.set(worker, Entry::Told, records::word(self.id, number));
        Ok(())
    }

    /// Stores to what it has once more, now that the export is over, or about to be. Until it is
    /// over that may land: the record is no whole one then.
    fn write_in_vain(&self) {
        if let Way::Alias(_, local) = &self.way {
            // Cannot fail: this is no forked child, and it is within bounds.
            let _ = local
                .load_acquire(0)
                .and_then(|number| local.store_release(0, number | 1))
                .and_then(|()| local.write(8, &[0xee; PAGE - 8]));
        }
    }
}

impl Chart {
    /// What is wrong with the page of a worker.
    fn check(&mut self, worker: usize) -> Result<(), String> {
        let (at, mut bytes) = (page(worker), vec![0; PAGE - 8]);
        let look = |bytes: &mut [u8]| {
            let before = self.memory.load_acquire(at)?;
            self.memory.read(at + 8, bytes)?;
            // Acquire: what was read is not newer than the number that follows.
            fence(Ordering::Acquire);
            Ok((before, self.memory.load_acquire(at)?))
        };
        let (number, after) = look(&mut bytes).map_err(|e: UpdateError| e.to_string())?;
        let before = std::mem::replace(&mut self.numbers[worker], number);
        if number < before {
            return Err(format!("{number} of worker {worker} came after {before}"));
        }
        let whole = number != 0 && number.is_multiple_of(2) && number == after;
        if whole && bytes != record(self.id, worker, number) {
            return Err(format!("record {number} of worker {worker} is torn"));
        }
        Ok(())
    }

    /// A note of a record is here, and so is the record, or a later one.
    fn has(&self, worker: usize, number: u64) -> Result<(), String> {
        match self.memory.load_acquire(page(worker)) {
            Ok(there) if there >= number => Ok(()),
            there => Err(format!(
                "a note of record {number} of {worker}, and {there:?} is there"
            )),
        }
    }
}

impl Worker {
    /// Exports, imports, or looks at what came of it.
    pub(super) fn export_or_import(&mut self) {
        let Some((domain, turn)) = self.begin_turn() else {
            return;
        };
        match turn {
            Turn::End => self.unexport(),
            Turn::Drop => drop(self.holds.exports.imported.pop()),
            Turn::LookBack => {
                self.look_at_ended();
            }
            Turn::Export => self.export(&domain),
            Turn::Import => self.import(&domain),
        }
    }

    fn export(&mut self, domain: &Domain) {
        if self.holds.exports.shown.is_none() {
            self.begin_export(domain);
        }
        if let Some(shown) = &mut self.holds.exports.shown
            && let Err(what) = records::check_all(|worker| shown.chart.check(worker))
        {
            return self.corrupt(&format!("an export: {what}"));
        }
        self.take_notes();
    }

    fn take_notes(&mut self) {
        let Some(Shown {
            chart,
            notes: Some(notes),
            ..
        }) = &mut self.holds.exports.shown
        else {
            return;
        };
        let taken = notes.take(&mut self.random, |worker, number| chart.has(worker, number));
        self.count_notes(taken);
    }

    fn count_notes(&self, heard: Result<u64, String>) {
        match heard {
            Ok(count) => {
                let noted = self.board.of(self.at, Entry::Noted);
                noted.fetch_add(count, Ordering::Relaxed);
            }
            Err(what) => self.corrupt(&format!("notes: {what}")),
        }
    }

    fn begin_export(&mut self, domain: &Domain) {
        // Sometimes memory that was exported before.
        let again = self.random.once_in(2) && self.look_at_ended();
        let again = again.then(|| self.holds.exports.ended.pop()).flatten();
        let Some(memory) = again
            .map(|(memory, _)| memory)
            .or(ExportMemory::new(LEN).ok())
        else {
            return;
        };
        let id = self.random.next() >> 32;
        // Cannot fail: this is no forked child, and it is within bounds.
        let _ = memory.write(0, &vec![0; LEN]);
        let _ = memory.store_release(0, id);
        let name = NAMES[self.random.below(NAMES.len())];
        let options = ExportOptions::new(Reach::ReadWrite);
        match domain.export(&memory, name, &options, Deadline::after(SHORT)) {
            Ok(export) => {
                let numbers = [0; MAX_WORKERS];
                let chart = Chart {
                    memory,
                    id,
                    numbers,
                };
                let listens = !self.random.once_in(3);
                let notes = listens.then(|| Notes::of(&export, id, self.board));
                let notes = notes.flatten();
                self.holds.exports.shown = Some(Shown {
                    export,
                    chart,
                    notes,
                });
            }
            Err(error) => self.expect_unexported("an export", &error),
        }
    }

    /// From the end of an export on its memory has what had landed, and does not change.
    fn unexport(&mut self) {
        let Some(shown) = self.holds.exports.shown.take() else {
            return;
        };
        let Shown {
            export,
            mut chart,
            notes,
        } = shown;
        let ended = if self.random.once_in(3) {
            export.begin_unexport().finish()
        } else {
            export.unexport()
        };
        if let Err(error) = ended {
            if !matches!(error.why, ExportError::Private(_)) {
                self.corrupt(&format!("an export: {}", error.why));
            }
            let export = *error.item;
            self.holds.exports.shown = Some(Shown {
                export,
                chart,
                notes,
            });
            return;
        }
        if let Some(notes) = notes {
            self.count_notes(notes.end(chart.id, self.board, |worker, n| chart.has(worker, n)));
        }
        let mut held = vec![0; LEN];
        if let Err(error) = chart.memory.read(0, &mut held) {
            return self.corrupt(&format!("an export: {error}"));
        }
        for worker in 0..MAX_WORKERS {
            let landed = self.board.get(worker, Entry::Landed);
            let number = records::number(landed, chart.id);
            if let Err(what) = chart.check(worker) {
                self.corrupt(&format!("an export: {what}"));
            }
            let there = chart.numbers[worker];
            if there < number {
                self.corrupt(&format!(
                    "an export: record {number} of worker {worker} had landed, and {there} is there"
                ));
            }
        }
        if self.plants("unexport") {
            // Cannot fail: this is no forked child, and it is within bounds.
            let _ = chart.memory.write(page(0), b"late");
        }
        keep(&mut self.holds.exports.ended, (chart.memory, held));
    }

    /// Whether there is memory whose export has ended, and it is as it was then.
    fn look_at_ended(&mut self) -> bool {
        let mut now = vec![0; LEN];
        for (memory, held) in &self.holds.exports.ended {
            if memory.read(0, &mut now).is_err() || now != *held {
                self.corrupt("an export: its memory has changed since its end");
                self.holds.exports.ended.clear();
                return false;
            }
        }
        !self.holds.exports.ended.is_empty()
    }

    /// Writes to the export of a worker.
    fn import(&mut self, domain: &Domain) {
        let name = NAMES[self.random.below(NAMES.len())];
        let known = self.holds.exports.imported.iter();
        let known = known.map(|i| i.import.name()).position(|n| n == name);
        let at = match known {
            Some(at) => at,
            None => match self.begin_import(domain, name) {
                Ok(Some(imported)) => {
                    self.holds.exports.imported.push(imported);
                    self.holds.exports.imported.len() - 1
                }
                Ok(None) => return,
                Err(what) => return self.corrupt(&format!("an import: {what}")),
            },
        };
        for _ in 0..=self.random.below(BATCH) {
            let spoil = self.plants("update");
            let early = u64::from(self.plants("note")) * 2;
            let imported = &mut self.holds.exports.imported[at];
            let (board, worker) = (self.board, self.at);
            let written = imported.write(worker, spoil);
            let told = written.and_then(|number| {
                imported.tell(board, worker, number + early)?;
                Ok(number)
            });
            match told {
                Ok(number) => {
                    let export = imported.id;
                    self.note_landed(Entry::Landed, export, number);
                }
                Err(error) => {
                    imported.write_in_vain();
                    let imported = self.holds.exports.imported.swap_remove(at);
                    return self.expect_over(&imported.import, error);
                }
            }
        }
    }

    fn begin_import(&mut self, domain: &Domain, name: &str) -> Result<Option<Imported>, String> {
        let import =
            records::import(&mut self.random, domain, name).map_err(|error| error.to_string())?;
        let Some(import) = import else {
            return Ok(None);
        };
        let begun = import.load_acquire(0).map_err(MappingError::Update);
        let begun = begun.and_then(|id| {
            let way = Way::new(&mut self.random, &import, page(self.at))?;
            Ok((id, way))
        });
        match begun {
            Ok((id, way)) => Ok(Some(Imported { way, import, id })),
            Err(MappingError::Update(error)) => {
                self.expect_over(&import, error);
                Ok(None)
            }
            // Memory, or what finds stores, is not to be had.
            Err(_) => Ok(None),
        }
    }

    /// Updates fail when the export has ended, or its exporter is dead, or memory runs out.
    fn expect_over(&self, import: &Import, error: UpdateError) {
        match error {
            UpdateError::Revoked | UpdateError::ExporterDied => {
                if import.write(page(self.at), &[0; PAGE]).is_ok() {
                    self.corrupt(&format!("an import: it was over ({error}), and is not"));
                }
            }
            UpdateError::TimedOut => {}
            _ => self.corrupt(&format!("an import: {error}")),
        }
    }
}
