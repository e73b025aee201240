//! Measures exported memory: words there and back, and operations of one side on the other's
//! export.
//!
//! | file | holds |
//! |---|---|
//! | `word` | a word each way, in memory that the other side exports |
//! | `units` | a stream that is read where it lands |
//! | `exporter` | the process that exports, and does nothing else |
//! | `operation` | what is done on the other side, timed part by part |
//! | `work` | the operations |
//! | `meter` | what is put around the part that a row is about |
//! | `counted` | instructions and system calls of an operation |
//! | `spent` | what the exporter's threads do meanwhile |

pub(crate) mod counted;
mod exporter;
mod meter;
mod operation;
mod spent;
pub use spent::processor_time;
mod units;
mod word;
mod work;

pub(crate) use exporter::Exporter;
pub(crate) use operation::start;
pub(crate) use units::Units;
pub(crate) use word::Word;

use portolan::vmmc::{Export, ExportMemory, ExportOptions, Exportable, Import, Reach};
use portolan::{Deadline, Domain};

use super::portolan::MEETING;
use crate::error::{MeasureError, Result};

/// What the exporter exports.
const EXPORTED: &str = "exported";
/// Counted by the exporter: where its memory begins.
const ADDRESS: &str = "address";
/// Where in it a thread that is notified says how often it was.
const TAKEN: usize = 8;
/// What is exported by the other side, to be taken back.
const RETURNED: &str = "returned";

fn export<'a>(domain: &Domain, memory: impl Into<Exportable<'a>>, name: &str) -> Result<Export> {
    let options = ExportOptions::new(Reach::ReadWrite);
    let exported = domain.export(memory, name, &options, Deadline::after(MEETING));
    exported.map_err(MeasureError::library("exporting a benchmark's memory"))
}

fn import(domain: &Domain, name: &str) -> Result<Import> {
    let imported = domain.import(name, Deadline::after(MEETING));
    imported.map_err(MeasureError::library("importing a benchmark's memory"))
}

/// Memory of which every page is there.
fn memory(bytes: usize) -> Result<ExportMemory> {
    let doing = "making a benchmark's memory";
    let memory = ExportMemory::new(bytes).map_err(MeasureError::library(doing))?;
    memory.populate().map_err(MeasureError::library(doing))?;
    Ok(memory)
}

fn updating(error: portolan::vmmc::UpdateError) -> MeasureError {
    MeasureError::library("updating a benchmark's memory")(error)
}

fn notifying(error: portolan::vmmc::NotificationError) -> MeasureError {
    MeasureError::library("being notified in a benchmark")(error)
}

fn mapping(error: portolan::vmmc::MappingError) -> MeasureError {
    MeasureError::library("mapping a benchmark's memory to an import")(error)
}
