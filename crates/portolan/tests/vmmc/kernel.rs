//! Ordinary memory, into which the kernel copies for importers: other processes and users.

use crate::child::Child;
use crate::many::has_descriptors;
use crate::raw;
use crate::{domain, export};
use portolan::vmmc::{
    Export, ExportError, ExportMemory, ExportOptions, Import, MappingError, Notification,
    OrdinaryMemory, Reach, UpdateError,
};
use portolan::{Domain, Permissions};
use portolan_abi::vmmc::{Answer, Way, notification_page};
use portolan_sys::memory::{self, Access, Mapping, PAGE};
use portolan_testkit::{PATIENCE, is_alone, unique, until};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::atomic::Ordering;

/// Exports it as `x`, to anyone.
pub(crate) fn lend(domain: &Domain, memory: &OrdinaryMemory) -> Export {
    let options = ExportOptions::new(Reach::ReadWrite).permit(Permissions::anyone());
    domain.export(memory, "x", &options, PATIENCE).unwrap()
}

/// As `lend`, of a vector of so many zeros.
pub(crate) fn lend_zeros(domain: &Domain, len: usize) -> (OrdinaryMemory, Export) {
    let memory = OrdinaryMemory::from(vec![0; len]);
    let export = lend(domain, &memory);
    (memory, export)
}

/// Private pages of this process, that stay.
pub(crate) fn pages(count: usize) -> *mut u8 {
    map(null_mut(), count, MapFlags::empty())
}

/// As `pages`, where the kernel puts nothing else by itself: it looks for room from the top
/// down, and what other threads map does not come into a hole here. Each test has a `place` of its
/// own.
pub(crate) fn pages_apart(place: usize, count: usize) -> *mut u8 {
    let start = without_provenance_mut((1 << 36) + (place << 24));
    map(start, count, MapFlags::FIXED_NOREPLACE)
}

fn map(start: *mut c_void, count: usize, flags: MapFlags) -> *mut u8 {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = flags | MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY:
    // - A new mapping, which replaces none.
    let start = unsafe { mmap_anonymous(start, count * PAGE, access, flags) };
    start.unwrap().cast()
}

pub(crate) fn content(memory: &OrdinaryMemory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn bounds_are_kept_to_the_byte() {
    const LEN: usize = 5003;
    let (domain, name) = domain("exact");
    // In the middle of other things, at an odd address.
    let around: &'static mut [u8] = vec![7; LEN + 200].leak();
    let start = around.as_mut_ptr();
    // SAFETY:
    // - Leaked, and reached by raw pointers only.
    let memory = unsafe { OrdinaryMemory::in_place(start.wrapping_add(101), LEN) }.unwrap();
    let export = lend(&domain, &memory);
    let mut child = Child::new();
    let answer = child.ask(&format!("import {name} x"));
    assert_eq!(answer, format!("imported {LEN} ReadWrite"));
    for fine in ["0 1", "0 5003", "5002 1", "4095 2", "5003 0", "17 4000"] {
        assert_eq!(child.ask(&format!("write {fine} 9")), "done", "{fine}");
    }
    for bad in [
        "0 5004",
        "5003 1",
        "5002 2",
        "5004 0",
        // One before the first, and lengths that overflow.
        "18446744073709551615 1",
        "18446744073709551615 2",
        "9223372036854775807 1",
    ] {
        let answer = child.ask(&format!("write {bad} 1"));
        assert!(answer.contains("OutOfBounds"), "{bad}: {answer}");
    }
    let wrong = child.ask("read 5000 4");
    assert!(wrong.contains("OutOfBounds"), "{wrong}");
    assert_eq!(child.ask("read 5000 3"), "[9, 9, 9]");
    assert_eq!(content(&memory), [9; LEN]);
    export.unexport().unwrap();
    assert!(child.ask("write 0 1 1").contains("Revoked"));
    let beside = (0..101).chain(LEN + 101..LEN + 200);
    for at in beside {
        // SAFETY:
        // - In bounds of what was leaked.
        assert_eq!(unsafe { start.wrapping_add(at).read_volatile() }, 7, "{at}");
    }
}

#[test]
fn what_may_be_done_is_asked_of_the_exporter() {
    let (domain, name) = domain("may");
    let memory = OrdinaryMemory::from(vec![3; 100]);
    let options = ExportOptions::new(Reach::Read).permit(Permissions::anyone());
    let read = domain.export(&memory, "r", &options, PATIENCE).unwrap();
    // The same memory, otherwise.
    let options = ExportOptions::new(Reach::Write)
        .permit(Permissions::anyone())
        .within(10..20);
    let write = domain.export(&memory, "w", &options, PATIENCE).unwrap();
    let mut child = Child::new();
    assert_eq!(child.ask(&format!("import {name} r")), "imported 100 Read");
    assert!(child.ask("write 0 1 1").contains("NotWritable"));
    assert_eq!(child.ask("read 99 1"), "[3]");
    assert_eq!(child.ask(&format!("import {name} w")), "imported 100 Write");
    assert!(child.ask("read 10 1").contains("NotReadable"));
    for outside in ["9 2", "19 2", "0 1"] {
        let answer = child.ask(&format!("write {outside} 1"));
        assert!(answer.contains("OutOfRanges"), "{answer}");
    }
    assert_eq!(child.ask("write 10 10 4"), "done");
    read.unexport().unwrap();
    write.unexport().unwrap();
    let bytes = memory.into_vec().expect("no export has it");
    assert_eq!(
        bytes,
        [[3; 10], [4; 10]]
            .concat()
            .into_iter()
            .chain([3; 80])
            .collect::<Vec<_>>()
    );
    let options = ExportOptions::new(Reach::Read);
    let empty = domain.export(&OrdinaryMemory::from(Vec::new()), "e", &options, PATIENCE);
    assert!(matches!(
        empty,
        Err(portolan::vmmc::ExportError::Empty { len: 0 })
    ));
}

#[test]
fn it_has_no_words_and_takes_pieces_and_epochs() {
    let (domain, _) = domain("words");
    let (memory, _export) = lend_zeros(&domain, 4 * PAGE);
    let import = domain.import("x", PATIENCE).unwrap();
    assert!(import.is_kernel_mediated());
    assert_eq!(import.store_release(0, 1), Err(UpdateError::NoWords));
    assert_eq!(import.load_acquire(0), Err(UpdateError::NoWords));
    assert_eq!(import.fetch_add(0, 1), Err(UpdateError::NoWords));
    assert_eq!(import.compare_exchange(0, 0, 1), Err(UpdateError::NoWords));
    let local = ExportMemory::new(2 * PAGE).unwrap();
    let no_words = |error| matches!(error, MappingError::Update(UpdateError::NoWords));
    assert!(no_words(import.map_alias(&local, 0..PAGE, 0).unwrap_err()));
    assert!(no_words(import.map_log(&local, 0..PAGE, 0).unwrap_err()));
    let completed = import.map_tracked(&local, 0..PAGE, PAGE, Some(0));
    assert!(no_words(completed.unwrap_err()));

    import.write_scattered(&[(1, b"ab"), (8, b"c")]).unwrap();
    import.write_strided(16, 4, 1, b"xyz").unwrap();
    import.begin_write(30, b"later").unwrap().finish().unwrap();
    import.flush(PATIENCE).unwrap();
    let out = import.write_scattered(&[(50, b"no"), (4 * PAGE, b"!")]);
    assert!(matches!(out, Err(UpdateError::OutOfBounds { .. })));
    let mut wanted = vec![0; 4 * PAGE];
    wanted[1..3].copy_from_slice(b"ab");
    wanted[8] = b'c';
    (wanted[16], wanted[20], wanted[24]) = (b'x', b'y', b'z');
    wanted[30..35].copy_from_slice(b"later");
    assert_eq!(content(&memory), wanted);

    let mut tracked = import
        .map_tracked(&local, 0..2 * PAGE, 2 * PAGE, None)
        .unwrap();
    local.write(PAGE + 5, b"epoch").unwrap();
    tracked.flush().unwrap();
    wanted[3 * PAGE + 5..3 * PAGE + 10].copy_from_slice(b"epoch");
    assert_eq!(content(&memory), wanted);
}

#[test]
fn pages_that_the_exporter_protects_are_refused() {
    let (domain, name) = domain("protected");
    let start = pages(2);
    // SAFETY:
    // - Mapped for ever, and reached by raw pointers only; not written here once protected.
    let memory = unsafe { OrdinaryMemory::in_place(start, 2 * PAGE) }.unwrap();
    let _export = lend(&domain, &memory);
    let mut child = Child::importer(&name);
    assert_eq!(child.ask("write 0 8192 5"), "done");
    // SAFETY:
    // - No reference points there.
    unsafe { memory::protect(start.addr() + PAGE, PAGE, Access::Read) }.unwrap();
    for bad in ["4096 1", "8191 1", "4095 2", "0 8192"] {
        let answer = child.ask(&format!("write {bad} 6"));
        assert!(answer.contains("Protected"), "{bad}: {answer}");
    }
    assert_eq!(content(&memory), [5; 2 * PAGE]);
    assert_eq!(child.ask("read 8190 2"), "[5, 5]");
    assert_eq!(child.ask("write 4095 1 6"), "done");
    // SAFETY:
    // - No reference points there.
    unsafe { memory::protect(start.addr() + PAGE, PAGE, Access::None) }.unwrap();
    assert!(child.ask("read 8190 2").contains("Protected"));
}

#[test]
fn an_exporter_that_unmaps_its_range_loses_nothing_else() {
    if !is_alone("kernel::an_exporter_that_unmaps_its_range_loses_nothing_else") {
        return;
    }
    let (domain, name) = domain("unmaps");
    let start = pages_apart(0, 4);
    // SAFETY:
    // - Mapped until unmapped below, from where on nothing here reaches those pages.
    let memory = unsafe { OrdinaryMemory::in_place(start.wrapping_add(PAGE), 2 * PAGE) }.unwrap();
    let _export = lend(&domain, &memory);
    let mut child = Child::importer(&name);
    assert_eq!(child.ask("storm"), "done");
    child.goes_round();
    // SAFETY:
    // - As promised above: no code here has a reference.
    unsafe { munmap(start.wrapping_add(2 * PAGE).cast(), PAGE) }.unwrap();
    let why = child.ask("stormed");
    assert!(why.starts_with("Unmapped { offset: 4"), "{why}");
    let hole = child.ask("write 4095 2 6");
    assert_eq!(hole, "error Unmapped { offset: 4096 }");
    assert!(child.ask("read 4096 1").contains("Unmapped"));
    // What is still there still takes it.
    assert_eq!(child.ask("write 4095 1 6"), "done");
    for at in (0..PAGE).chain(3 * PAGE..4 * PAGE) {
        // SAFETY:
        // - The first and the last page, which are mapped.
        assert_eq!(unsafe { start.wrapping_add(at).read_volatile() }, 0, "{at}");
    }
}

#[test]
fn an_exporter_that_truncates_the_file_of_its_range_loses_nothing_else() {
    let (domain, name) = domain("truncates");
    let file = memfd_create("portolan-test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, 2 * PAGE as u64).unwrap();
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY:
    // - A new mapping, which replaces none.
    let start = unsafe { mmap(null_mut(), 2 * PAGE, access, MapFlags::SHARED, &file, 0) };
    // SAFETY:
    // - Mapped for ever; nothing here reaches the page that is cut off.
    let memory = unsafe { OrdinaryMemory::in_place(start.unwrap().cast(), 2 * PAGE) }.unwrap();
    let _export = lend(&domain, &memory);
    let mut child = Child::importer(&name);
    assert_eq!(child.ask("storm"), "done");
    child.goes_round();
    ftruncate(&file, PAGE as u64).unwrap();
    let why = child.ask("stormed");
    assert!(
        why.starts_with("System") || why.starts_with("Unmapped"),
        "{why}"
    );
    let why = child.ask("write 4096 1 6");
    assert!(why.contains("System") || why.contains("Unmapped"), "{why}");
    // What is still there still takes it.
    assert_eq!(child.ask("write 4095 1 6"), "done");
    let mut byte = [0];
    memory.read(4095, &mut byte).unwrap();
    assert_eq!(byte, [6]);
}

/// A child that exports ordinary memory as `x`, and its domain.
fn exporter(test: &str, len: usize) -> (Child, String) {
    let name = unique(test);
    let mut exporter = Child::new();
    assert_eq!(exporter.ask(&format!("join {name}")), "done");
    assert_eq!(exporter.ask(&format!("export-ordinary x {len}")), "done");
    (exporter, name)
}

/// Writes a lot at a time until that fails.
fn pour(import: &Import) -> UpdateError {
    let bytes = vec![1; import.len()];
    loop {
        if let Err(error) = import.write(0, &bytes) {
            return error;
        }
    }
}

fn import(domain: &str) -> Import {
    Domain::builder(domain).import("x", PATIENCE).unwrap()
}

#[test]
fn a_dead_exporter_and_one_that_runs_another_program_are_reached_no_more() {
    let (mut dies, name) = exporter("dies", 64 << 20);
    let imported = import(&name);
    std::thread::scope(|scope| {
        let pouring = scope.spawn(|| pour(&imported));
        until("a write has landed", || {
            let mut byte = [0];
            imported.read(0, &mut byte).is_ok() && byte == [1]
        });
        dies.kill();
        assert_eq!(pouring.join().unwrap(), UpdateError::ExporterDied);
    });
    assert_eq!(imported.write(0, &[2]), Err(UpdateError::ExporterDied));

    let (mut execs, name) = exporter("execs", 64 << 20);
    let imported = import(&name);
    std::thread::scope(|scope| {
        let pouring = scope.spawn(|| pour(&imported));
        execs.tell("exec");
        assert_eq!(pouring.join().unwrap(), UpdateError::Disconnected);
    });
    // It lives, has that process id, and nothing of it is reached.
    assert!(!execs.ended());
    assert_eq!(imported.write(0, &[2]), Err(UpdateError::Disconnected));
    execs.kill();
}

#[test]
fn under_load_nothing_lands_after_the_end() {
    let (domain, name) = domain("load");
    let (memory, export) = lend_zeros(&domain, 64 * PAGE);
    let address = memory.address();
    let mut children = [Child::importer(&name), Child::importer(&name)];
    for (at, child) in (10..).zip(&mut children) {
        // Where the storm does not come.
        assert_eq!(child.ask(&format!("write {at} 1 5")), "done");
        assert_eq!(child.ask("storm"), "done");
        child.goes_round();
    }
    export.unexport().unwrap();
    let bytes = memory.into_vec().expect("no export has it");
    assert_eq!(bytes.as_ptr().addr(), address);
    let after = bytes.clone();
    for child in &mut children {
        assert_eq!(child.ask("stormed"), "Revoked");
        assert!(child.ask("write 0 1 77").contains("Revoked"));
        assert!(child.ask("read 0 1").contains("Revoked"));
    }
    assert!(after == bytes, "bytes have changed after the end");
    assert_eq!(bytes[10..12], [5, 5]);
}

#[test]
fn an_importer_that_claims_to_write_for_ever_is_named() {
    let (domain, name) = domain("claims");
    let (memory, export) = lend_zeros(&domain, 10);
    let connection = raw::connect(&name);
    raw::ask_for(&connection, "x").unwrap();
    let (answer, fds) = raw::ask(&connection, &raw::question().encode()).unwrap();
    let Answer::Granted(granted) = answer else {
        panic!("{answer:?}");
    };
    let address = memory.address() as u64;
    assert!(matches!(granted.way, Way::Kernel { address: a, .. } if a == address));
    assert_eq!((granted.len, fds.len()), (10, 3));
    let page = Mapping::shared_anywhere(&fds[1], notification_page::BYTES).unwrap();
    let calls = &page.words()[notification_page::UNDER_WAY];
    calls.store(1, Ordering::SeqCst);
    let failed = export.unexport().unwrap_err();
    let own = std::process::id();
    assert!(matches!(failed.why, ExportError::UnderWay { process } if process == own));
    // No importer comes any more, and those that were there hear of it.
    let error = domain.import("x", std::time::Duration::from_millis(50));
    assert!(error.is_err(), "{error:?}");
    calls.store(0, Ordering::SeqCst);
    failed.item.unexport().unwrap();
    assert!(memory.into_vec().is_ok());
}

#[cfg(feature = "marks")]
#[test]
fn an_importer_that_dies_or_stops_in_the_middle_of_a_write() {
    let (domain, name) = domain("middle");
    let (_memory, export) = lend_zeros(&domain, 10);
    let mut child = Child::importer(&name);
    assert_eq!(child.ask("die-at update.kernel"), "done");
    child.tell("write 0 1 1");
    until("it has died", || child.ended());
    export.unexport().unwrap();

    let (memory, export) = lend_zeros(&domain, 10);
    let mut child = Child::importer(&name);
    assert_eq!(child.ask("stop-at update.kernel"), "done");
    child.tell("write 0 1 1");
    child.stopped();
    let ending = export.begin_unexport();
    child.resume();
    // It landed, whatever its importer was told.
    ending.finish().unwrap();
    let answer = child.answer();
    assert!(answer == "done" || answer.contains("Revoked"), "{answer}");
    assert_eq!(memory.into_vec().unwrap()[0], 1);
}

#[test]
fn larger_than_memory_that_is_there() {
    const PAGES: usize = (256 << 30) / PAGE;
    let (domain, name) = domain("large");
    // SAFETY:
    // - Mapped for ever, and reached by raw pointers only.
    let memory = unsafe { OrdinaryMemory::in_place(pages(PAGES), PAGES * PAGE) }.unwrap();
    let _export = lend(&domain, &memory);
    let mut child = Child::importer(&name);
    for at in [1, 100 << 30, (256 << 30) - 2] {
        assert_eq!(child.ask(&format!("write {at} 2 8")), "done");
        let mut bytes = [0; 2];
        memory.read(at, &mut bytes).unwrap();
        assert_eq!(bytes, [8, 8]);
    }
}

#[test]
fn a_thousand_imports_leave_no_descriptor() {
    let _turn = has_descriptors();
    let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let (domain, _) = domain("thousand");
    let (_memory, export) = lend_zeros(&domain, 10);
    drop(domain.import("x", PATIENCE).unwrap());
    until("the first one is forgotten", || export.importers() == 0);
    let before = count();
    for round in 0..1000 {
        let import = domain.import("x", PATIENCE).unwrap();
        import.write(round % 10, &[1]).unwrap();
    }
    until("all are forgotten", || export.importers() == 0);
    // Other tests of this process open and close a few meanwhile.
    until("descriptors are closed", || count() < before + 500);
}

#[test]
fn importers_notify_of_what_the_kernel_has_copied() {
    let (domain, name) = domain("notes");
    let (memory, export) = lend_zeros(&domain, 5000);
    let mut notifications = export.notifications().unwrap();
    let mut child = Child::importer(&name);
    for number in 1..=3 {
        assert_eq!(child.ask(&format!("write 4095 {number} 7")), "done");
        assert_eq!(child.ask(&format!("notify 4095 {number}")), "done");
        let note = notifications.wait(PATIENCE).unwrap();
        let Notification::Written { offset, len, .. } = note else {
            panic!("{note:?}");
        };
        assert_eq!((offset, len), (4095, number));
        let mut bytes = vec![0; len];
        memory.read(offset, &mut bytes).unwrap();
        assert_eq!(bytes, vec![7; number]);
    }
    let outside = child.ask("notify 4999 2");
    assert!(outside.contains("OutOfBounds"), "{outside}");
}

/// The two ways side by side, under one name after the other.
#[test]
fn one_call_exports_either() {
    let (domain, name) = domain("either");
    let (_shared, first) = export(&domain, 1, Reach::ReadWrite);
    assert!(!import(&name).is_kernel_mediated());
    first.unexport().unwrap();
    let (memory, second) = lend_zeros(&domain, 10);
    let import = import(&name);
    assert!(import.is_kernel_mediated());
    import.write(9, &[1]).unwrap();
    second.unexport().unwrap();
    assert_eq!(memory.into_vec().unwrap()[9], 1);
}
