//! The end of an export: what has been written stays, nothing comes after, whatever importers do.

use crate::child::Child;
use crate::raw::{self, Hostile};
use crate::{content, domain, export};
use portolan::vmmc::{ExportError, ExportMemory, ExportOptions, Reach};
use portolan_abi::vmmc::{Answer, Ask, Denied};
use portolan_sys::memory::Mapping;
use portolan_sys::socket;
use portolan_testkit::{PATIENCE, SetOnDrop, until};
use rustix::fs::{FallocateFlags, Mode, OFlags, SealFlags, fallocate, fcntl_add_seals, open};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const PAGES: usize = 256;

/// Counts up a word in every page but the last for ever, by plain atomics, and finds its own
/// value each time.
fn count_up(memory: &ExportMemory, stop: &AtomicBool) -> u64 {
    let words = memory.words().unwrap();
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) {
        for page in 0..PAGES - 1 {
            let word = &words[page * 512];
            assert_eq!(
                word.load(Ordering::Relaxed),
                round,
                "page {page}: a store was lost"
            );
            word.store(round + 1, Ordering::Relaxed);
        }
        round += 1;
    }
    round
}

#[test]
fn under_full_load_and_siege_not_one_byte_changes_afterwards() {
    let (domain, name) = domain("siege");
    let (memory, export) = export(&domain, PAGES, Reach::ReadWrite);
    let address = memory.address();
    let mut honest = [Child::importer(&name), Child::importer(&name)];
    let mut hostile = Child::new();
    for child in &mut honest {
        assert_eq!(child.ask("storm"), "done");
    }
    assert_eq!(hostile.ask(&format!("siege {name} x")), "done");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let counting = scope.spawn(|| count_up(&memory, &stop));
        // Also when something below fails.
        let stop = SetOnDrop(&stop);
        for child in honest.iter_mut().chain([&mut hostile]) {
            child.goes_round();
        }
        export.unexport().unwrap();
        // The word at the start of each page is ours; the others' bytes lie behind it.
        let theirs = || {
            let mut bytes = content(&memory);
            bytes.chunks_mut(4096).for_each(|page| page[..8].fill(0));
            bytes
        };
        let after = theirs();
        for part in [64..1064, 2048..2240] {
            assert!(
                after[part].iter().any(|byte| *byte != 0),
                "somebody never wrote"
            );
        }
        for child in &mut honest {
            assert_eq!(child.ask("stormed"), "Revoked");
            assert!(child.ask("write 0 8 255").contains("Revoked"));
        }
        hostile.goes_round();
        hostile.goes_round();
        assert!(theirs() == after, "a byte has changed");
        drop(stop);
        let rounds = counting.join().unwrap();
        let words = memory.words().unwrap();
        assert!((0..PAGES - 1).all(|page| words[page * 512].load(Ordering::Relaxed) == rounds));
    });
    assert_eq!(memory.address(), address);
}

#[test]
fn what_was_said_to_have_landed_has() {
    // Each importer counts words up in turn; whatever it was told is written must be there.
    for round in 0..20 {
        let (domain, name) = domain("landed");
        let (memory, export) = export(&domain, 8, Reach::ReadWrite);
        let import = portolan::Domain::builder(&name)
            .import("x", PATIENCE)
            .unwrap();
        let begun = AtomicU64::new(0);
        let told = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for value in 1_u64.. {
                    let offset = (value % 8) as usize * 4096;
                    if import.write(offset, &value.to_le_bytes()).is_err() {
                        return value - 1;
                    }
                    begun.store(value, Ordering::Relaxed);
                }
                unreachable!()
            });
            until("it writes", || begun.load(Ordering::Relaxed) > 100 * round);
            export.unexport().unwrap();
            writer.join().unwrap()
        });
        for value in told.saturating_sub(7)..=told {
            let found = memory.load_acquire((value % 8) as usize * 4096).unwrap();
            // The one after the last may have landed too, without an answer.
            assert!(
                found == value || found == told + 1,
                "{found} instead of {value}"
            );
        }
    }
}

#[test]
fn the_end_need_not_be_waited_for() {
    let (domain, name) = domain("begin-unexport");
    let (memory, export) = export(&domain, PAGES, Reach::ReadWrite);
    let mut importer = Child::importer(&name);
    assert_eq!(importer.ask("write 0 4096 5"), "done");
    let pending = export.begin_unexport();
    assert!(pending.wait(PATIENCE));
    pending.finish().unwrap();
    assert_eq!(importer.ask("check"), "Err(Revoked)");
    assert_eq!(content(&memory)[..4096], [5; 4096]);
    // Its name is free, and so is the memory.
    let _again = domain
        .export(&memory, "x", &ExportOptions::new(Reach::Read), PATIENCE)
        .unwrap();
}

#[test]
fn a_dropped_export_has_ended_and_its_memory_stays() {
    let (domain, name) = domain("drop");
    let (mut memory, export) = export(&domain, 4, Reach::ReadWrite);
    let mut importer = Child::importer(&name);
    assert_eq!(importer.ask("write 0 16384 5"), "done");
    assert!(memory.bytes_mut().is_none());
    drop(export);
    assert!(importer.ask("write 0 1 6").contains("Revoked"));
    // There is no other handle, so it can be lent.
    until("it is nobody else's", || memory.bytes_mut().is_some());
    assert_eq!(memory.bytes_mut().unwrap(), [5; 16384]);
}

#[test]
fn an_exporter_that_unmaps_its_range_harms_itself() {
    let (domain, name) = domain("unmap");
    let len = 16 * 4096;
    // SAFETY:
    // - No address is asked for.
    let start = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            len,
            rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
            rustix::mm::MapFlags::PRIVATE,
        )
    };
    let start = start.unwrap();
    // SAFETY:
    // - Broken below, which is what is tested: the memory is not touched from then on.
    let memory = unsafe { ExportMemory::in_place(start.cast(), len) }.unwrap();
    let options = ExportOptions::new(Reach::ReadWrite);
    let export = domain.export(&memory, "x", &options, PATIENCE).unwrap();
    let mut importer = Child::importer(&name);
    assert_eq!(importer.ask("storm"), "done");
    importer.goes_round();
    // SAFETY:
    // - No code here touches it.
    unsafe { rustix::mm::munmap(start, len) }.unwrap();
    importer.goes_round();
    let error = export.unexport().unwrap_err();
    assert!(matches!(error.why, ExportError::Private(_)), "{error:?}");
    // All the same no importer can write any more, and each call fails.
    assert_eq!(importer.ask("stormed"), "Revoked");
    std::mem::forget(error);
}

#[test]
fn an_exporter_cannot_truncate_what_others_have_mapped() {
    let (domain, name) = domain("truncate");
    let (_memory, _export) = export(&domain, 4, Reach::ReadWrite);
    let mut importer = Child::importer(&name);
    assert_eq!(importer.ask("storm"), "done");
    let mut found = 0;
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let path = entry.unwrap().path();
        let Ok(target) = std::fs::read_link(&path) else {
            continue;
        };
        if target
            .to_string_lossy()
            .starts_with("/memfd:portolan-export")
        {
            let file = open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
            assert!(rustix::fs::ftruncate(&file, 0).is_err());
            found += 1;
        }
    }
    assert!(found > 0, "no export is open here");
    importer.goes_round();
}

#[test]
fn who_may_only_read_cannot_write_in_any_way() {
    let (domain, name) = domain("read-only");
    let (memory, export) = export(&domain, 4, Reach::Read);
    memory.write(0, &[7; 16384]).unwrap();
    let hostile = Hostile::new(&raw::connect(&name), "x").unwrap();
    for file in [&hostile.file, &hostile.status_page] {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let again = open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
        for file in [file, &again] {
            let len = usize::try_from(rustix::fs::fstat(file).unwrap().st_size).unwrap();
            assert!(rustix::io::pwrite(file, b"x", 0).is_err());
            assert!(rustix::fs::ftruncate(file, 0).is_err());
            assert!(Mapping::shared_anywhere(file, len).is_err());
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            assert!(fallocate(file.as_fd(), punch, 0, len as u64).is_err());
            assert!(fcntl_add_seals(file, SealFlags::WRITE).is_err());
            let mapping = Mapping::read_only(file, len).unwrap();
            // SAFETY:
            // - A mapping of this test's, which is refused.
            let made_writable = unsafe {
                portolan_sys::memory::protect(
                    mapping.base().addr(),
                    len,
                    portolan_sys::memory::Access::ReadWrite,
                )
            };
            assert!(made_writable.is_err());
        }
    }
    assert!(content(&memory).iter().all(|byte| *byte == 7));
    // No process sees a store after the end.
    let early = Mapping::read_only(&hostile.file, 16384).unwrap();
    export.unexport().unwrap();
    memory.write(0, &[8; 16384]).unwrap();
    // SAFETY:
    // - In bounds.
    let seen = unsafe { early.base().read_volatile() };
    assert_eq!((seen, content(&memory)[0]), (7, 8));
}

#[test]
fn importers_that_say_what_none_says_are_let_go_of() {
    let (domain, name) = domain("garbage");
    let (_memory, export) = export(&domain, 1, Reach::ReadWrite);
    let connected = || {
        let connection = raw::connect(&name);
        raw::ask_for(&connection, "x").unwrap();
        connection
    };
    let denied = |connection: &OwnedFd, with: Denied| {
        let (answer, fds) = raw::answer(connection).unwrap();
        assert!(
            matches!(answer, Answer::Refused(refusal) if refusal.why == with),
            "{answer:?}"
        );
        assert!(fds.is_empty());
        // And that is the end.
        let mut byte = [0; 1];
        let by = Some(std::time::Instant::now() + PATIENCE);
        assert!(socket::receive_by(connection, &mut byte, 0, by).is_err());
    };
    let good = raw::question().encode();
    let mut other_magic = good;
    other_magic[0] ^= 1;
    let mut longer = good.to_vec();
    longer.push(0);
    for bad in [&b"x"[..], &[0xff; 200], &good[1..], &other_magic, &longer] {
        let connection = connected();
        socket::send(&connection, bad, &[]).unwrap();
        denied(&connection, Denied::Garbled);
    }
    // Of another version: whatever comes after the first eight bytes.
    let mut newer = good.to_vec();
    newer[4..8].copy_from_slice(&999_u32.to_le_bytes());
    newer.extend([7; 60]);
    let connection = connected();
    socket::send(&connection, &newer, &[]).unwrap();
    denied(&connection, Denied::Version);
    // Who makes no barriers when asked is told to make them itself.
    let silent = Ask {
        barriers: false,
        ..raw::question()
    };
    let (answer, _) = raw::ask(&connected(), &silent.encode()).unwrap();
    assert!(
        matches!(answer, Answer::Granted(granted) if granted.fences),
        "{answer:?}"
    );
    until("it has gone", || export.importers() == 0);
    // Descriptors: refused by the socket, or the whole message is not taken.
    let connection = connected();
    let stdin = std::io::stdin();
    if socket::send(&connection, &good, &[stdin.as_fd()]).is_ok() {
        denied(&connection, Denied::Garbled);
    }
    // Twice the same question.
    let connection = connected();
    raw::ask(&connection, &good).unwrap();
    until("it is an importer", || export.importers() == 1);
    socket::send(&connection, &good, &[]).unwrap();
    until("it is let go of", || export.importers() == 0);
    // No other process has noticed.
    let import = domain.import("x", PATIENCE).unwrap();
    assert_eq!(import.write(0, b"fine"), Ok(()));
}

#[test]
fn an_importer_that_rings_for_ever_holds_up_nobody() {
    let (domain, name) = domain("ring");
    let (_memory, export) = export(&domain, 1, Reach::ReadWrite);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = SetOnDrop(&stop);
        let connection = raw::connect(&name);
        raw::ask_for(&connection, "x").unwrap();
        raw::ask(&connection, &raw::question().encode()).unwrap();
        let stop = &stop;
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let _ = socket::send_by(
                    &connection,
                    &[portolan_abi::vmmc::WAKE],
                    &[],
                    Some(std::time::Instant::now()),
                );
            }
        });
        for _ in 0..20 {
            drop(domain.import("x", PATIENCE).unwrap());
        }
    });
    until("all have gone", || export.importers() == 0);
    export.unexport().unwrap();
}

#[test]
fn an_import_that_is_let_go_of_is_not_mapped_any_more() {
    let (domain, name) = domain("unimport");
    let (_memory, export) = export(&domain, 4, Reach::ReadWrite);
    let mut importer = Child::importer(&name);
    assert_ne!(importer.ask("mappings"), "0");
    assert_eq!(export.importers(), 1);
    assert_eq!(importer.ask("unimport"), "done");
    assert_eq!(importer.ask("mappings"), "0");
    until("the exporter has seen it", || export.importers() == 0);
}

#[test]
fn a_revoked_import_stays_revoked_when_it_is_exported_again() {
    let (domain, name) = domain("again");
    let (memory, export) = export(&domain, 1, Reach::ReadWrite);
    let mut importer = Child::importer(&name);
    export.unexport().unwrap();
    let options = ExportOptions::new(Reach::ReadWrite);
    let _again = domain.export(&memory, "x", &options, PATIENCE).unwrap();
    assert!(importer.ask("write 0 8 1").contains("Revoked"));
    assert_eq!(memory.load_acquire(0), Ok(0));
    let import = domain.import("x", PATIENCE).unwrap();
    assert_eq!(import.write(0, b"anew"), Ok(()));
    assert_eq!(import.check(), Ok(()));
}
