//! Deliberate update, remote read, and words, by other processes.

use crate::child::Child;
use crate::{content, domain, export};
use portolan::vmmc::{ExportMemory, ExportOptions, OrdinaryMemory, Reach, UpdateError};
use portolan::{Deadline, Delivery, ListenerOptions, Permissions};
use portolan_testkit::{PATIENCE, SetOnDrop, unique};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

#[test]
fn what_another_process_writes_is_here_when_its_call_returns() {
    let (domain, name) = domain("write");
    let (memory, export) = export(&domain, 2, Reach::ReadWrite);
    let mut importer = Child::importer(&name);
    assert_eq!(importer.ask("write 5 6000 7"), "done");
    let mut expected = vec![0; 8192];
    expected[5..6005].fill(7);
    assert_eq!(content(&memory), expected);
    memory.write(6004, &[9]).unwrap();
    assert_eq!(importer.ask("read 6003 3"), "[7, 9, 0]");
    assert_eq!(export.importers(), 1);
    export.unexport().unwrap();
    assert!(importer.ask("write 0 1 1").contains("Revoked"));
    assert!(importer.ask("read 0 1").contains("Revoked"));
    expected[6004] = 9;
    assert_eq!(content(&memory), expected);
}

#[test]
fn bounds_are_kept_to_the_byte() {
    let (domain, name) = domain("bounds");
    let (memory, _export) = export(&domain, 1, Reach::ReadWrite);
    let mut importer = Child::importer(&name);
    assert_eq!(importer.ask("write 4095 1 1"), "done");
    assert_eq!(importer.ask("write 4096 0 1"), "done");
    for (offset, len) in [
        ("4095", "2"),
        ("4096", "1"),
        ("0", "4097"),
        ("18446744073709551615", "1"),
    ] {
        for what in [
            format!("write {offset} {len} 2"),
            format!("read {offset} {len}"),
        ] {
            let answer = importer.ask(&what);
            assert!(answer.contains("OutOfBounds"), "{what}: {answer}");
        }
    }
    // The end is past the last address; "negative" as in other languages.
    let import = domain.import("x", PATIENCE).unwrap();
    for offset in [usize::MAX, usize::MAX - 4, -4096_isize as usize] {
        let refused = import.write(offset, &[1; 8]);
        assert!(
            matches!(refused, Err(UpdateError::OutOfBounds { .. })),
            "{refused:?}"
        );
        let scattered: &[(usize, &[u8])] = &[(0, b"fine"), (offset, b"not fine")];
        assert!(matches!(
            import.write_scattered(scattered),
            Err(UpdateError::OutOfBounds { .. })
        ));
    }
    // A stride that leads past the last address.
    let refused = import.write_strided(8, usize::MAX / 2 + 1, 1, &[1; 4]);
    assert!(
        matches!(refused, Err(UpdateError::OutOfBounds { .. })),
        "{refused:?}"
    );
    assert_eq!(
        import.write_strided(0, 3, 4, &[1; 4]),
        Err(UpdateError::BadStride {
            block: 4,
            stride: 3
        })
    );
    for offset in [1, 4, 4095] {
        assert_eq!(
            import.load_acquire(offset),
            if offset == 4095 {
                Err(UpdateError::OutOfBounds {
                    offset,
                    len: 8,
                    size: 4096,
                })
            } else {
                Err(UpdateError::Misaligned { offset })
            }
        );
    }
    let mut expected = vec![0; 4096];
    expected[4095] = 1;
    assert_eq!(content(&memory), expected);
}

#[test]
fn pieces_go_where_they_are_to_go() {
    let (domain, _) = domain("pieces");
    let (memory, _export) = export(&domain, 1, Reach::Write);
    let import = domain.import("x", PATIENCE).unwrap();
    import
        .write_scattered(&[(3, b"abc"), (4090, b"end"), (4, b"B")])
        .unwrap();
    import.write_strided(100, 10, 3, b"111222333x").unwrap();
    let mut expected = vec![0; 4096];
    expected[3..6].copy_from_slice(b"aBc");
    expected[4090..4093].copy_from_slice(b"end");
    for (at, bytes) in [
        (100, &b"111"[..]),
        (110, b"222"),
        (120, b"333"),
        (130, b"x"),
    ] {
        expected[at..at + bytes.len()].copy_from_slice(bytes);
    }
    assert_eq!(content(&memory), expected);
}

#[test]
fn what_came_into_an_export_goes_on_and_back() {
    const LEN: usize = 100_000;
    let (domain, name) = domain("onward");
    let (_memory, _export) = export(&domain, 32, Reach::ReadWrite);
    let ordinary = OrdinaryMemory::from(vec![0; 32 * 4096]);
    let options = ExportOptions::new(Reach::ReadWrite);
    let _ordinary = domain.export(&ordinary, "o", &options, PATIENCE).unwrap();
    let import = |name| domain.import(name, PATIENCE).unwrap();
    let (shared, kernel) = (import("x"), import("o"));
    assert!(kernel.is_kernel_mediated());
    // Exported, and written by another process.
    let source = ExportMemory::new(32 * 4096).unwrap();
    let _source = domain.export(&source, "s", &options, PATIENCE).unwrap();
    let pattern: Vec<u8> = (0..=250).cycle().take(LEN).collect();
    import("s").write(3, &pattern).unwrap();
    for there in [&shared, &kernel] {
        there.write_from(5, &source, 3..3 + LEN).unwrap();
        let mut all = vec![9; there.len()];
        there.read(0, &mut all).unwrap();
        assert!(all[5..5 + LEN] == pattern[..]);
        assert!(
            all[..5]
                .iter()
                .chain(&all[5 + LEN..])
                .all(|byte| *byte == 0)
        );
        // Into memory that is exported, and none beside it.
        source.write(0, &vec![1; source.len()]).unwrap();
        there.read_into(5, &source, 11..11 + LEN).unwrap();
        let back = content(&source);
        assert!(back[11..11 + LEN] == pattern[..]);
        assert!(
            back[..11]
                .iter()
                .chain(&back[11 + LEN..])
                .all(|byte| *byte == 1)
        );
        source.write(3, &pattern).unwrap();
    }
    shared.write(0, &[7]).unwrap();
    shared.read_into(0, &ordinary, 1..2).unwrap();
    kernel.write_from(0, &ordinary, 1..2).unwrap();
    let mut byte = [0];
    kernel.read(0, &mut byte).unwrap();
    assert_eq!(byte, [7]);
    // What an alias shows.
    let mut child = Child::importer(&name);
    let local = ExportMemory::new(4096).unwrap();
    let alias = shared.map_alias(&local, 0..4096, 4096).unwrap();
    assert_eq!(child.ask("write 4096 4 8"), "done");
    kernel.write_from(100, &local, 0..4).unwrap();
    let mut bytes = [0; 4];
    kernel.read(100, &mut bytes).unwrap();
    assert_eq!(bytes, [8; 4]);
    alias.unmap().unwrap();
}

#[test]
fn what_goes_on_or_back_is_checked_at_both_ends_first() {
    let (domain, _) = domain("onward-bounds");
    let (memory, _export) = export(&domain, 32, Reach::ReadWrite);
    let import = domain.import("x", PATIENCE).unwrap();
    let local = ExportMemory::new(4096).unwrap();
    local.write(0, &[1; 4096]).unwrap();
    let short = |offset, len, size| Err(UpdateError::OutOfBounds { offset, len, size });
    for (offset, part, refused) in [
        (0, 4095..4097, short(4095, 2, 4096)),
        (0, 1..usize::MAX, short(1, usize::MAX - 1, 4096)),
        (131_071, 0..2, short(131_071, 2, 131_072)),
        (usize::MAX, 0..1, short(usize::MAX, 1, 131_072)),
    ] {
        assert_eq!(import.write_from(offset, &local, part.clone()), refused);
        assert_eq!(import.read_into(offset, &local, part), refused);
    }
    assert_eq!(import.write_from(131_072, &local, 4096..4096), Ok(()));
    let read = ExportOptions::new(Reach::Read);
    let _read = domain.export(&local, "r", &read, PATIENCE).unwrap();
    let reader = domain.import("r", PATIENCE).unwrap();
    let refused = reader.write_from(0, &memory, 0..1);
    assert_eq!(refused, Err(UpdateError::NotWritable));
    assert_eq!(content(&memory), vec![0; 131_072]);
    assert_eq!(content(&local), vec![1; 4096]);
    reader.read_into(0, &memory, 4..5).unwrap();
    assert_eq!(content(&memory)[3..6], [0, 1, 0]);
}

#[test]
fn what_stands_beside_a_write_is_not_touched_by_it() {
    let (domain, name) = domain("beside");
    let (memory, _export) = export(&domain, 1, Reach::ReadWrite);
    let mut importer = Child::importer(&name);
    assert_eq!(importer.ask("storm"), "done");
    // The storm writes bytes 64 to 1063; these lie in the same words as its first and last.
    for round in 0..20_000_u32 {
        let byte = round.to_le_bytes()[0];
        memory.write(63, &[byte]).unwrap();
        memory.write(1064, &[byte]).unwrap();
        let (mut before, mut after) = ([0], [0]);
        memory.read(63, &mut before).unwrap();
        memory.read(1064, &mut after).unwrap();
        assert_eq!((before, after), ([byte], [byte]));
    }
}

#[test]
fn a_flag_comes_after_its_data() {
    const ROUNDS: u64 = 20_000;
    let domain_name = unique("flag");
    let mut exporter = Child::exporter(&domain_name, 2);
    let writer = portolan::Domain::builder(&domain_name)
        .import("x", PATIENCE)
        .unwrap();
    let reader = portolan::Domain::builder(&domain_name)
        .import("x", PATIENCE)
        .unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                // Long enough for the copy that the processor makes of its own.
                writer.write(4096, &[round.to_le_bytes()[0]; 700]).unwrap();
                writer.store_release(0, round).unwrap();
                while writer.load_acquire(8).unwrap() != round {
                    std::hint::spin_loop();
                }
            }
        });
        for round in 1..=ROUNDS {
            while reader.load_acquire(0).unwrap() != round {
                std::hint::spin_loop();
            }
            let mut data = [0; 700];
            reader.read(4096, &mut data).unwrap();
            assert_eq!(data, [round.to_le_bytes()[0]; 700]);
            reader.store_release(8, round).unwrap();
        }
    });
    assert_eq!(exporter.ask("load own 0"), ROUNDS.to_string());
}

#[test]
fn words_are_changed_in_one_step() {
    let (domain, name) = domain("words");
    let (memory, _export) = export(&domain, 1, Reach::ReadWrite);
    let mut importers = [Child::importer(&name), Child::importer(&name)];
    for importer in &mut importers {
        importer.tell("count 8 20000");
    }
    for importer in &mut importers {
        assert_eq!(importer.answer(), "done");
        importer.tell("swap count 16 5000");
    }
    for importer in &mut importers {
        assert_eq!(importer.answer(), "done");
    }
    assert_eq!(memory.load_acquire(8), Ok(40_000));
    assert_eq!(memory.load_acquire(16), Ok(10_000));
    let import = domain.import("x", PATIENCE).unwrap();
    assert_eq!(import.compare_exchange(8, 1, 2), Ok(Err(40_000)));
    assert_eq!(import.fetch_add(8, u64::MAX), Ok(40_000));
    assert_eq!(memory.load_acquire(8), Ok(39_999));
}

#[test]
fn an_importer_does_what_it_may_and_no_more() {
    let (domain, _) = domain("reach");
    let memory = ExportMemory::new(4096).unwrap();
    memory.write(0, b"to be read").unwrap();
    for (reach, reads, writes) in [
        (Reach::Read, true, false),
        (Reach::Write, false, true),
        (Reach::ReadWrite, true, true),
    ] {
        let options = ExportOptions::new(reach);
        let export = domain.export(&memory, "x", &options, PATIENCE).unwrap();
        let import = domain.import("x", PATIENCE).unwrap();
        assert_eq!((import.reach(), export.reach()), (reach, reach));
        let read = import.read(0, &mut [0; 4]);
        let write = import.write(100, &[1]);
        let change = import.fetch_add(8, 0);
        assert_eq!(
            read,
            if reads {
                Ok(())
            } else {
                Err(UpdateError::NotReadable)
            }
        );
        assert_eq!(
            write,
            if writes {
                Ok(())
            } else {
                Err(UpdateError::NotWritable)
            }
        );
        assert_eq!(change.is_ok(), reads && writes);
        assert_eq!(import.load_acquire(8).is_ok(), reads);
        assert_eq!(import.store_release(8, 0).is_ok(), writes);
        // The same memory again, which is private by then.
        export.unexport().unwrap();
    }
}

#[test]
fn a_handler_may_write_and_read_an_import() {
    let (domain, _) = domain("handler");
    let (memory, _export) = export(&domain, 1, Reach::ReadWrite);
    let import = Arc::new(domain.import("x", PATIENCE).unwrap());
    let segment = domain.make_segment(None, 4096).unwrap();
    let at = segment.address();
    let (fine, failed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (its_own, is_fine, has_failed) = (import.clone(), fine.clone(), failed.clone());
    let act = move || -> Result<(), UpdateError> {
        its_own.write(64, &[9; 100])?;
        its_own.read(64, &mut [0; 100])?;
        its_own.fetch_add(8, 1)?;
        its_own.check()
    };
    // SAFETY:
    // - Atomics, and what `Import` says that handlers may do.
    let upcall = unsafe { Delivery::upcall() };
    let mut listener = domain.listen(ListenerOptions::default()).unwrap();
    let handler = move |_| {
        let count = if act().is_ok() { &is_fine } else { &has_failed };
        count.fetch_add(1, Ordering::Relaxed);
    };
    listener.on_by(upcall, at..at + 1, handler).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                // There may be no room for one more.
                let _ = domain.signal(at);
            }
        });
        let _over = SetOnDrop(&over);
        // Without a pause: the kernel begins a sleep anew, and with its slack, at each interrupt,
        // so that of a thread which is interrupted all the time never ends.
        let end = Instant::now() + PATIENCE;
        // Signals may have come before this thread's first turn.
        let before = fine.load(Ordering::Relaxed);
        while fine.load(Ordering::Relaxed) < before + 1000 {
            for _ in 0..1000 {
                import.write(1024, &[7; 1000]).unwrap();
            }
            assert!(Instant::now() < end, "no handler interrupts a write");
        }
    });
    drop(listener);
    assert_eq!(failed.load(Ordering::Relaxed), 0);
    assert_eq!(memory.load_acquire(8), Ok(fine.load(Ordering::Relaxed)));
    let bytes = content(&memory);
    assert_eq!(
        (&bytes[64..164], &bytes[1024..2024]),
        (&[9; 100][..], &[7; 1000][..])
    );
}

#[test]
fn ranges_are_kept_to_the_byte() {
    let (domain, _) = domain("ranges");
    let memory = ExportMemory::new(4096).unwrap();
    let bad = ExportOptions::new(Reach::Write).within(4000..4097);
    assert!(domain.export(&memory, "x", &bad, PATIENCE).is_err());
    let options = ExportOptions::new(Reach::ReadWrite)
        .within(8..16)
        .within(100..4096);
    let _export = domain.export(&memory, "x", &options, PATIENCE).unwrap();
    let import = domain.import("x", PATIENCE).unwrap();
    assert_eq!(import.ranges(), [(8, 8), (100, 3996)]);
    for (offset, len) in [(8, 8), (8, 1), (15, 1), (100, 3996), (4095, 1), (4096, 0)] {
        import.write(offset, &vec![1; len]).unwrap();
        import.read(offset, &mut vec![1; len]).unwrap();
    }
    for (offset, len) in [(7, 1), (7, 2), (8, 9), (15, 2), (16, 1), (15, 86), (99, 1)] {
        let outside = UpdateError::OutOfRanges { offset, len };
        assert_eq!(import.write(offset, &vec![2; len]), Err(outside));
        assert_eq!(import.read(offset, &mut vec![2; len]), Err(outside));
    }
    assert!(matches!(
        import.fetch_add(0, 1),
        Err(UpdateError::OutOfRanges { .. })
    ));
}

#[test]
fn non_blocking_writes_land_in_order_and_give_back_their_buffer() {
    let (domain, name) = domain("later");
    let (memory, export) = export(&domain, 1024, Reach::ReadWrite);
    let import = portolan::Domain::builder(&name)
        .import("x", PATIENCE)
        .unwrap();
    let mut pending = Vec::new();
    for byte in 0..20_u8 {
        pending.push(import.begin_write(10, vec![byte; 4 << 20 >> 1]).unwrap());
    }
    // Stays behind all of them, and so does the flag.
    import.write(10, b"last").unwrap();
    assert!(pending.iter().all(portolan::vmmc::Pending::is_done));
    let mut bytes = [0; 5];
    memory.read(10, &mut bytes).unwrap();
    assert_eq!(&bytes, b"last\x13");
    for (byte, pending) in pending.into_iter().enumerate() {
        assert!(pending.wait(Deadline::NOW));
        let buffer = pending.finish().unwrap();
        assert_eq!(buffer, vec![u8::try_from(byte).unwrap(); 2 << 20]);
    }
    let refused = import.begin_write(4 << 20, "x").unwrap_err();
    assert_eq!(*refused.item, "x");
    assert!(matches!(refused.why, UpdateError::OutOfBounds { .. }));
    // Waited for as a descriptor.
    let pending = import.begin_write(0, "by itself").unwrap();
    let ready = pending.descriptor().unwrap();
    let by = std::time::Instant::now() + PATIENCE;
    let ready = portolan_sys::process::poll(&[std::os::fd::AsFd::as_fd(&ready)], Some(by));
    assert!(ready.unwrap()[0].readable && pending.is_done());
    import.flush(PATIENCE).unwrap();
    export.unexport().unwrap();
    assert_eq!(import.flush(PATIENCE), Err(UpdateError::Revoked));
    let refused = import.begin_write(0, vec![1]).unwrap_err();
    assert_eq!(
        (refused.why, *refused.item),
        (UpdateError::Revoked, vec![1])
    );
}

#[test]
fn memory_of_the_programs_own_is_exported_in_place() {
    #[repr(align(4096))]
    struct Pages([u8; 8 * 4096]);
    let (domain, name) = domain("in-place");
    let mut pages = Box::new(Pages([7; 8 * 4096]));
    let address = pages.0.as_mut_ptr();
    // SAFETY:
    // - Mapped until the box is dropped, last of all; reached through this alone until then;
    //   whole pages of the heap.
    let memory = unsafe { ExportMemory::in_place(address, 8 * 4096) }.unwrap();
    for round in 1..4_u8 {
        let options = ExportOptions::new(Reach::ReadWrite).permit(Permissions::anyone());
        let export = domain.export(&memory, "x", &options, PATIENCE).unwrap();
        let mut importer = Child::importer(&name);
        assert_eq!(
            importer.ask("read 100 1"),
            format!("[{}]", if round == 1 { 7 } else { round - 1 })
        );
        assert_eq!(importer.ask(&format!("write 100 30000 {round}")), "done");
        assert_eq!(memory.address(), address.addr());
        export.unexport().unwrap();
        assert!(importer.ask("write 100 1 99").contains("Revoked"));
    }
    drop(memory);
    let mut expected = vec![7; 8 * 4096];
    expected[100..30100].fill(3);
    assert_eq!(pages.0[..], expected);
}

#[test]
fn what_is_no_whole_pages_is_not_exported() {
    use portolan::vmmc::ExportError;
    assert!(matches!(
        ExportMemory::new(0),
        Err(ExportError::Empty { len: 0 })
    ));
    assert!(matches!(
        ExportMemory::new(usize::MAX),
        Err(ExportError::Empty { .. })
    ));
    for (start, len) in [(4097, 4096), (4096, 4095)] {
        let start = std::ptr::without_provenance_mut(start);
        // SAFETY:
        // - Refused, so nothing happens.
        let refused = unsafe { ExportMemory::in_place(start, len) };
        assert!(
            matches!(refused, Err(ExportError::NotWholePages { .. })),
            "{refused:?}"
        );
    }
    let (domain, _) = domain("twice");
    let (memory, _export) = export(&domain, 1, Reach::Read);
    let again = domain.export(&memory, "y", &ExportOptions::new(Reach::Read), PATIENCE);
    assert!(
        matches!(again, Err(ExportError::AlreadyExported)),
        "{again:?}"
    );
    let other = ExportMemory::new(1).unwrap();
    let again = domain.export(&other, "x", &ExportOptions::new(Reach::Read), PATIENCE);
    assert!(matches!(again, Err(ExportError::Offer(_))), "{again:?}");
    // It was given back.
    let _other = domain
        .export(&other, "y", &ExportOptions::new(Reach::Read), PATIENCE)
        .unwrap();
}

#[test]
fn an_export_may_be_larger_than_the_machine() {
    let (domain, name) = domain("large");
    // Untouched pages take no memory.
    let len = 1_usize << 38;
    let (memory, export) = export(&domain, len / 4096, Reach::ReadWrite);
    let mut importer = Child::importer(&name);
    let far = len - 5000;
    assert_eq!(importer.ask(&format!("write {far} 5000 3")), "done");
    let mut bytes = [0; 2];
    memory.read(far - 1, &mut bytes).unwrap();
    assert_eq!(bytes, [0, 3]);
    assert!(
        importer
            .ask(&format!("write {far} 5001 3"))
            .contains("OutOfBounds")
    );
    let mut small = Child::new();
    let refused = small.ask(&format!("import {name} x at-most={}", len - 1));
    assert!(refused.contains("TooLarge"), "{refused}");
    drop(memory);
    // No process has it any more, so nothing is copied.
    export.unexport().unwrap();
}
