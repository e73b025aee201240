//! What a worker does alike with exports of memory ([`exports`](super::exports)) and of ordinary
//! memory ([`ordinary`](super::ordinary)): its turn, and the records that land there.

use super::super::Doing;
use super::super::board::{Entry, MAX_WORKERS};
use super::super::random::Random;
use super::{SHORT, Worker};
use portolan::vmmc::{ExportError, Import, ImportError};
use portolan::{Deadline, Domain};
use std::sync::atomic::Ordering;

/// The part of a word that numbers a record; above it stands the export's.
const LOW: u64 = u64::MAX >> 32;

/// What a worker does in its turn.
pub(super) enum Turn {
    /// It ends its export,
    End,
    /// drops an import,
    Drop,
    /// looks at memory whose export has ended,
    LookBack,
    /// exports, or looks at what came of it,
    Export,
    /// or writes to the export of a worker.
    Import,
}

impl Turn {
    fn drawn(random: &mut Random) -> Self {
        match random.below(12) {
            0 => Self::End,
            1 => Self::Drop,
            2 => Self::LookBack,
            3..6 => Self::Export,
            _ => Self::Import,
        }
    }
}

/// A record of an export, as a word of the board.
pub(super) fn word(export: u64, number: u64) -> u64 {
    export << 32 | number & LOW
}

/// The number of the record in a word of the board; 0, if it is of another export.
pub(super) fn number(word: u64, export: u64) -> u64 {
    if word >> 32 == export { word & LOW } else { 0 }
}

/// What is wrong with the part of the first worker of whom `check` finds anything.
pub(super) fn check_all(check: impl FnMut(usize) -> Result<(), String>) -> Result<(), String> {
    (0..MAX_WORKERS).try_for_each(check)
}

/// Imports what a worker exports; nothing, if none does now, or its exporter is stopped, or
/// something runs out. An exporter answers in a thread of its own, which on a busy machine is not
/// soon: every other time it is waited for longer.
pub(super) fn import(
    random: &mut Random,
    domain: &Domain,
    name: &str,
) -> Result<Option<Import>, ImportError> {
    let patience = if random.once_in(2) { SHORT } else { 10 * SHORT };
    match domain.import(name, Deadline::after(patience)) {
        Ok(import) => Ok(Some(import)),
        Err(
            ImportError::Connect(_)
            | ImportError::TimedOut { .. }
            | ImportError::ExporterResources { .. }
            | ImportError::Map(_)
            | ImportError::System { .. },
        ) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Worker {
    /// Draws what this turn is for; nothing, outside of a domain.
    pub(super) fn begin_turn(&mut self) -> Option<(Domain, Turn)> {
        self.doing(Doing::Exporting);
        let domain = self.domain.clone()?;
        Some((domain, Turn::drawn(&mut self.random)))
    }

    /// No export came about: the name is taken, the host is away, memory runs out.
    pub(super) fn expect_unexported(&self, what: &str, error: &ExportError) {
        match error {
            ExportError::Offer(_) | ExportError::Map(_) | ExportError::System { .. } => {}
            error => self.corrupt(&format!("{what}: {error}")),
        }
    }

    /// Notes that a record has landed.
    pub(super) fn note_landed(&self, entry: Entry, export: u64, number: u64) {
        self.board.set(self.at, entry, word(export, number));
        let updates = self.board.of(self.at, Entry::Updated);
        updates.fetch_add(1, Ordering::Relaxed);
    }
}
