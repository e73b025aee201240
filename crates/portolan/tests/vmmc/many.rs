//! A thousand exports, and a thousand imports of one.

use crate::child::Child;
use crate::{domain, export};
use portolan::vmmc::{ExportMemory, ExportOptions, Import, ImportError, Reach, UpdateError};
use portolan::{Domain, Permissions};
use portolan_testkit::{PATIENCE, unique};
use std::sync::{Mutex, MutexGuard, PoisonError};

const MANY: u64 = 1_000;

/// Held by a test that has thousands of this process's descriptors, and by one that counts them.
pub(crate) fn has_descriptors() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets this process have as many descriptors as it may.
pub(crate) fn allow_descriptors() {
    limit_descriptors(u64::MAX);
}

/// Lets this process have so many descriptors, or as many as it may.
pub(crate) fn limit_descriptors(most: u64) {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY:
    // - Room for a limit.
    let read = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit.rlim_cur = most.min(limit.rlim_max);
    // SAFETY:
    // - A valid limit.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    assert_eq!((read, set), (0, 0));
}

#[test]
fn importers_leave_an_exporter_its_last_descriptors() {
    let name = unique("scarce");
    let mut exporter = Child::exporter(&name, 1);
    assert_eq!(exporter.ask("limit-descriptors 64"), "done");
    let mut imports = Vec::new();
    let refused = loop {
        match Domain::builder(&name).import("x", PATIENCE) {
            Ok(import) => imports.push(import),
            Err(error) => break error,
        }
    };
    assert!(
        matches!(refused, ImportError::ExporterResources { .. }),
        "{refused}"
    );
    assert!(imports.len() > 4, "{}", imports.len());
    // What it needs for this it has.
    assert_eq!(exporter.ask("unexport"), "done");
    let ended = |import: &Import| import.check() == Err(UpdateError::Revoked);
    assert!(imports.iter().all(ended));
}

#[test]
fn a_thousand_exports_and_a_thousand_imports_of_one() {
    let _turn = has_descriptors();
    allow_descriptors();
    let (domain, name) = domain("many");
    let exports: Vec<_> = (0..MANY)
        .map(|number| {
            let memory = ExportMemory::new(4096).unwrap();
            let options = ExportOptions::new(Reach::ReadWrite).permit(Permissions::anyone());
            let export = domain.export(&memory, &format!("x{number}"), &options, PATIENCE);
            (memory, export.unwrap())
        })
        .collect();
    let mut importer = Child::new();
    assert_eq!(importer.ask(&format!("import-each {name} {MANY}")), "done");
    for (number, (memory, export)) in exports.iter().enumerate() {
        assert_eq!(memory.load_acquire(8), Ok(number as u64 + 1));
        assert_eq!(export.importers(), 1);
    }
    let (memory, crowded) = export(&domain, 1, Reach::ReadWrite);
    assert_eq!(importer.ask(&format!("import-crowd {name} {MANY}")), "done");
    assert_eq!(memory.load_acquire(8), Ok(MANY));
    assert_eq!(crowded.importers() as u64, MANY);
    // All at once, and one by one.
    crowded.unexport().unwrap();
    assert_eq!(importer.ask("crowd-errors"), format!("{MANY} Revoked"));
    for (number, (memory, export)) in exports.into_iter().enumerate() {
        export.unexport().unwrap();
        assert_eq!(memory.load_acquire(8), Ok(number as u64 + 1));
    }
}
