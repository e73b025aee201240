//! Exports and imports among real processes, some of them hostile, some of other users.
//!
//! The other processes are this test program again, told what to do line by line; see
//! `child`. What must come about is waited for with a generous deadline.

mod automatic;
mod brokered;
mod brokered_ends;
mod child;
mod deaths;
mod delegated;
mod exporters;
mod forks;
mod kernel;
mod many;
#[cfg(feature = "marks")]
mod marks;
mod notify;
mod notify_ends;
mod notify_wait;
mod owned;
mod pending;
mod permissions;
mod raw;
mod raw_brokered;
mod revoke;
mod scarce;
mod update;

use portolan::vmmc::{Export, ExportMemory, ExportOptions, Reach};
use portolan::{Domain, Permissions};
use portolan_testkit::{PATIENCE, unique};

/// A domain of this test's own, and its name.
fn domain(test: &str) -> (Domain, String) {
    let name = unique(test);
    let joined = Domain::builder(&name).size(64 << 20).deadline(PATIENCE);
    (joined.join().unwrap(), name)
}

/// Exports memory of `pages` pages as `x`, to anyone.
fn export(domain: &Domain, pages: usize, reach: Reach) -> (ExportMemory, Export) {
    let memory = ExportMemory::new(pages * 4096).unwrap();
    let options = ExportOptions::new(reach).permit(Permissions::anyone());
    let export = domain.export(&memory, "x", &options, PATIENCE).unwrap();
    (memory, export)
}

/// The memory's bytes.
fn content(memory: &ExportMemory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes).unwrap();
    bytes
}
