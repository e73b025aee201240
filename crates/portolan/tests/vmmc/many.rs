//! A thousand exports, and a thousand imports of one.

use crate::child::Child;
use crate::orders::PATIENCE;
use crate::{domain, export};
use portolan::Permissions;
use portolan::vmmc::{ExportMemory, ExportOptions, Reach};

const MANY: u64 = 1_000;

/// Lets this process have as many descriptors as it may.
pub(crate) fn allow_descriptors() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY:
    // - Room for a limit.
    let read = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit.rlim_cur = limit.rlim_max;
    // SAFETY:
    // - A valid limit.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    assert_eq!((read, set), (0, 0));
}

#[test]
fn a_thousand_exports_and_a_thousand_imports_of_one() {
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
