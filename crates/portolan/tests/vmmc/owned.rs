//! Memory of which the owner has plain slices, while importers may not write.

use crate::child::Child;
use crate::{domain, forks};
use portolan::vmmc::{ExportError, ExportMemory, ExportOptions, OwnedMemory, Reach, UpdateError};
use portolan::{Domain, OfferError, Permissions, Refused};
use portolan_testkit::{Answer, PATIENCE, unique};

const LEN: usize = 16 * 4096;

fn options(reach: Reach) -> ExportOptions {
    ExportOptions::new(reach).permit(Permissions::anyone())
}

#[test]
fn the_owner_of_what_importers_read_has_slices() {
    let (domain, name) = domain("readable");
    let mut memory = OwnedMemory::new(LEN).unwrap();
    let at = memory.bytes().as_ptr();
    memory.bytes_mut().fill(1);
    let exported = domain.export_readable(memory, "x", &options(Reach::Read), PATIENCE);
    let mut export = exported.unwrap();
    let mut importer = Child::importer(&name);
    assert_eq!(importer.ask("read 4095 2"), "[1, 1]");
    export.bytes_mut()[4096..8192].fill(2);
    assert_eq!(importer.ask("read 4095 2"), "[1, 2]");
    // Not by the library, nor by a mapping of its own.
    assert!(importer.ask("write 0 1 9").contains("NotWritable"));
    let here = domain.import("x", PATIENCE).unwrap();
    assert_eq!(here.write(0, &[9]), Err(UpdateError::NotWritable));
    let sum: usize = export.bytes().iter().map(|byte| usize::from(*byte)).sum();
    assert_eq!(sum, LEN + 4096);
    assert_eq!(export.export().importers(), 2);
    // The same memory, and others see nothing of it any more.
    let mut memory = export.unexport().unwrap();
    assert_eq!(memory.bytes().as_ptr(), at);
    memory.bytes_mut()[0] = 3;
    assert!(importer.ask("read 0 1").contains("Revoked"));
    assert_eq!(memory.bytes()[4095..4097], [1, 2]);
}

#[test]
fn the_owner_of_what_importers_write_has_slices_when_it_has_taken_it_back() {
    let (domain, name) = domain("writable");
    let mut memory = OwnedMemory::new(LEN).unwrap();
    for round in 1..=3_u8 {
        memory.bytes_mut().fill(100 + round);
        let exported = domain.export_writable(memory, "x", &options(Reach::ReadWrite), PATIENCE);
        let export = exported.unwrap();
        // Importers keep to the library, or do not.
        let mut importer = Child::importer(&name);
        let mut hostile = Child::new();
        assert_eq!(hostile.ask(&format!("siege {name} x")), "done");
        hostile.goes_round();
        assert_eq!(importer.ask(&format!("write 0 8 {round}")), "done");
        let mut seen = [0; 2];
        export.read(100, &mut seen).unwrap();
        export.write(LEN - 8, &[7; 8]).unwrap();
        export.store_release(64, 7).unwrap();
        assert_eq!(export.words().unwrap().len(), LEN / 8);
        memory = export.unexport().unwrap();
        assert!(importer.ask("write 0 8 9").contains("Revoked"));
        // The siege goes on, elsewhere.
        let before = memory.bytes().to_vec();
        hostile.goes_round();
        assert!(memory.bytes() == before, "a byte has changed");
        assert_eq!(memory.bytes().len(), LEN);
    }
}

#[test]
fn what_is_not_exported_comes_back() {
    let (domain, _) = domain("comes-back");
    let _taken = crate::export(&domain, 1, Reach::Read);
    let mut memory = OwnedMemory::new(LEN).unwrap();
    memory.bytes_mut().fill(5);
    let refused = domain.export_readable(memory, "y", &options(Reach::ReadWrite), PATIENCE);
    let Err(Refused { why, item }) = refused else {
        panic!("{refused:?}");
    };
    assert!(
        matches!(
            why,
            ExportError::NotReadOnly {
                reach: Reach::ReadWrite
            }
        ),
        "{why}"
    );
    let memory = OwnedMemory::of(*item).unwrap();
    let refused = domain.export_readable(memory, "x", &options(Reach::Read), PATIENCE);
    let Err(Refused { why, item }) = refused else {
        panic!("{refused:?}");
    };
    assert!(
        matches!(why, ExportError::Offer(OfferError::NameTaken)),
        "{why}"
    );
    let memory = OwnedMemory::of(*item).unwrap();
    let refused = domain.export_writable(memory, "x", &options(Reach::Write), PATIENCE);
    let Err(Refused { item, .. }) = refused else {
        panic!("{refused:?}");
    };
    let memory = OwnedMemory::of(*item).unwrap();
    assert!(memory.bytes().iter().all(|byte| *byte == 5));
}

#[test]
fn memory_that_others_have_is_not_ones_own() {
    let (domain, _) = domain("not-owned");
    let memory = ExportMemory::new(LEN).unwrap();
    let clone = memory.clone();
    let memory = OwnedMemory::of(memory).err().unwrap();
    drop(clone);
    let export = domain.export(&memory, "x", &options(Reach::ReadWrite), PATIENCE);
    let export = export.unwrap();
    let memory = OwnedMemory::of(memory).err().unwrap();
    export.unexport().unwrap();
    // The exporter's thread may have it in its hands for a moment.
    let mut memory = Some(memory);
    portolan_testkit::until("it is ours alone", || {
        match OwnedMemory::of(memory.take().unwrap()) {
            Ok(owned) => !owned.bytes().is_empty(),
            Err(again) => {
                memory = Some(again);
                false
            }
        }
    });
}

/// What a process that exports such memory finds in a child of its, and then itself.
pub(crate) fn fork(domain: &Domain) -> Answer {
    let mut spare = OwnedMemory::new(LEN)?;
    let memory = OwnedMemory::new(LEN)?;
    let mut export = domain.export_readable(memory, "owned", &options(Reach::Read), PATIENCE)?;
    let mut lens = || {
        let spare = (spare.bytes().len(), spare.bytes_mut().len());
        let export = (export.bytes().len(), export.bytes_mut().len());
        format!("{spare:?} {export:?}")
    };
    let there = forks::fork(&mut lens)?;
    Ok(format!("{there} {}", lens()))
}

#[test]
fn a_forked_child_has_no_bytes() {
    let name = unique("owned-fork");
    let mut exporter = Child::exporter(&name, 1);
    let answer = exporter.ask("fork owned");
    let (pid, said) = answer.split_once(' ').unwrap();
    assert_eq!(said, "(0, 0) (0, 0) (65536, 65536) (65536, 65536)");
    forks::end(pid.parse().unwrap());
}
