//! Ordinary memory, to and from which the domain's host copies for importers of other users.

use crate::child::Child;
use crate::domain;
use crate::kernel::{content, lend, lend_zeros, pages_apart};
use crate::raw;
use crate::raw_brokered::{CopySlot, capability, request};
use portolan::vmmc::{ExportOptions, Notification, OrdinaryMemory, Reach, UpdateError};
use portolan::{Domain, JoinError, Permissions};
use portolan_abi::connect::{ConnectAnswer, ConnectRequest, Maker, OfferKind};
use portolan_abi::delegate::{Act, Capability, Outcome};
use portolan_sys::memory::{self, Access, PAGE};
use portolan_sys::process::user;
use portolan_sys::socket;
use portolan_testkit::{PATIENCE, apart, is_alone, unique, until};
use std::os::fd::AsFd;

/// A user that no other test is.
pub(crate) const OTHER: u32 = 12_347;

/// Whether this process can be several users; says so if not.
pub(crate) fn root() -> bool {
    let root = user() == 0;
    if !root {
        eprintln!("skipped: only root can be several users");
    }
    root
}

/// An importer of another user, for which a host copies.
pub(crate) fn importer(domain: &str) -> Child {
    let mut theirs = Child::of_user(OTHER);
    let answer = theirs.ask(&format!("import {domain} x of=0"));
    assert!(answer.starts_with("imported "), "{answer}");
    theirs
}

/// A domain that a child hosts, of which this process is a member.
pub(crate) fn hosted(test: &str) -> (Child, Domain, String) {
    loop {
        let name = unique(test);
        let mut host = Child::new();
        assert_eq!(host.ask(&format!("join {name}")), "done");
        match Domain::builder(&name).deadline(PATIENCE).join() {
            Ok(joined) => return (host, joined, name),
            // The host chose where the region lies, and one of this process's many lies there.
            Err(JoinError::AddressTaken { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn bounds_are_kept_to_the_byte_for_other_users() {
    const LEN: usize = 700_003;
    if !root() {
        return;
    }
    // With the exporter as host, and with another host.
    let others = hosted("bounds");
    let own = domain("bounds");
    for (domain, name) in [(&own.0, &own.1), (&others.1, &others.2)] {
        let around: &'static mut [u8] = vec![7; LEN + 200].leak();
        let start = around.as_mut_ptr();
        // SAFETY:
        // - Leaked, and reached by raw pointers only.
        let memory = unsafe { OrdinaryMemory::in_place(start.wrapping_add(101), LEN) }.unwrap();
        let export = lend(domain, &memory);
        let mut theirs = Child::of_user(OTHER);
        let answer = theirs.ask(&format!("import {name} x of=0"));
        assert_eq!(answer, format!("imported {LEN} ReadWrite"));
        let fine = [
            "0 1",
            "0 700003",
            "700002 1",
            "4095 2",
            "700003 0",
            "17 400000",
        ];
        for fine in fine {
            assert_eq!(theirs.ask(&format!("write {fine} 9")), "done", "{fine}");
        }
        for bad in ["0 700004", "700003 1", "18446744073709551615 2"] {
            let answer = theirs.ask(&format!("write {bad} 1"));
            assert!(answer.contains("OutOfBounds"), "{bad}: {answer}");
        }
        assert_eq!(theirs.ask("read 700000 3"), "[9, 9, 9]");
        assert_eq!(theirs.ask("later 5 3 8"), "done");
        let mut wanted = [9; LEN];
        wanted[5..8].fill(8);
        assert!(content(&memory) == wanted);
        export.unexport().unwrap();
        assert!(theirs.ask("write 0 1 1").contains("Revoked"));
        for at in (0..101).chain(LEN + 101..LEN + 200) {
            // SAFETY:
            // - In bounds of what was leaked.
            assert_eq!(unsafe { start.wrapping_add(at).read_volatile() }, 7, "{at}");
        }
    }
}

#[test]
fn an_importer_of_another_process_namespace_has_the_host_copy() {
    let Some(apart) = apart() else { return };
    let (domain, name) = domain("namespace");
    let (memory, export) = lend_zeros(&domain, 10_001);
    let mut importer = Child::through(apart);
    let answer = importer.ask(&format!("import {name} x"));
    assert_eq!(answer, "imported 10001 ReadWrite");
    assert_eq!(importer.ask("write 9999 2 7"), "done");
    assert_eq!(content(&memory)[9998..], [0, 7, 7]);
    memory.write(0, &[5]).unwrap();
    assert_eq!(importer.ask("read 0 2"), "[5, 0]");
    assert!(importer.ask("write 10000 2 1").contains("OutOfBounds"));
    export.unexport().unwrap();
    assert!(importer.ask("write 0 1 1").contains("Revoked"));
}

#[test]
fn the_host_checks_an_importers_requests_against_the_delegation() {
    let (domain, name) = domain("delegation");
    let memory = OrdinaryMemory::from(vec![3; 100]);
    let export = |name, reach, ranges: &[std::ops::Range<usize>]| {
        let options = ExportOptions::new(reach).permit(Permissions::anyone());
        let options = ranges
            .iter()
            .fold(options, |options, range| options.within(range.clone()));
        domain.export(&memory, name, &options, PATIENCE).unwrap()
    };
    let _read = export("r", Reach::Read, &[]);
    let _write = export("w", Reach::Write, &[10..20, 50..100]);
    // It asks for whatever it likes.
    let copy_slot = |export| {
        let (granted, capability) = capability(user(), &name, export).unwrap();
        assert_eq!(granted.len, 100);
        CopySlot::take(user(), &name, &capability).unwrap()
    };
    let (reader, writer) = (copy_slot("r"), copy_slot("w"));
    for (copy_slot, act, offset, len, wanted) in [
        (&reader, Act::Read, 0, 100, Outcome::Done),
        (&reader, Act::Write, 0, 1, Outcome::Refused),
        (&reader, Act::Read, 99, 2, Outcome::Refused),
        (&reader, Act::Read, u64::MAX, 1, Outcome::Refused),
        (&reader, Act::Read, u64::MAX - 10, 100, Outcome::Refused),
        (&writer, Act::Write, 10, 10, Outcome::Done),
        (&writer, Act::Write, 50, 50, Outcome::Done),
        (&writer, Act::Read, 10, 1, Outcome::Refused),
        (&writer, Act::Write, 9, 2, Outcome::Refused),
        (&writer, Act::Write, 19, 2, Outcome::Refused),
        (&writer, Act::Write, 15, 60, Outcome::Refused),
        (&writer, Act::Write, 99, 2, Outcome::Refused),
        (&writer, Act::Write, u64::MAX, 0, Outcome::Refused),
    ] {
        assert_eq!(
            copy_slot.ask(act, offset, len).unwrap(),
            wanted,
            "{act:?} {len} at {offset}"
        );
    }
    let zeros = |range: std::ops::Range<usize>| content(&memory)[range].iter().all(|b| *b == 0);
    assert!(zeros(10..20) && zeros(50..100));
    assert_eq!(content(&memory)[..10], [3; 10]);
    assert_eq!(content(&memory)[20..50], [3; 30]);
}

#[test]
fn only_an_importer_with_the_capability_gets_a_copy_slot() {
    let (domain, name) = domain("capability");
    let (_memory, export) = lend_zeros(&domain, 10);
    let (_, capability) = capability(user(), &name, "x").unwrap();
    let wrong = Capability {
        token: [1; 16],
        ..capability
    };
    let refused = CopySlot::take(user(), &name, &wrong)
        .err()
        .unwrap()
        .to_string();
    assert!(refused.contains("Token"), "{refused}");
    // A number that is none is waited for as any name is.
    let guessed = Capability {
        number: [1; 16],
        ..capability
    };
    let connection = raw::connect(&name);
    let request = ConnectRequest {
        kind: OfferKind::Memory,
        name: guessed.name().unwrap(),
        token: Some(capability.token),
        maker: Maker::ANY,
    };
    socket::send(&connection, &request.encode(), &[]).unwrap();
    let mut bytes = [0; ConnectAnswer::MAX_BYTES];
    let received = socket::receive(&connection, &mut bytes, 0).unwrap();
    let answer = ConnectAnswer::decode(&bytes[..received.len]);
    assert_eq!(answer, Ok(ConnectAnswer::Wait));
    // The capability does not help an importer that the export does not admit.
    if root() {
        let permitted = Permissions::nobody().users([OTHER]);
        let options = ExportOptions::new(Reach::Write).permit(permitted);
        let memory = OrdinaryMemory::from(vec![0; 10]);
        let _other = domain.export(&memory, "y", &options, PATIENCE).unwrap();
        let answer = Child::of_user(OTHER + 1).ask(&format!("import {name} y of=0"));
        assert!(answer.contains("NotPermitted"), "{answer}");
    }
    let copy_slot = CopySlot::take(user(), &name, &capability).unwrap();
    assert_eq!(copy_slot.ask(Act::Write, 0, 10).unwrap(), Outcome::Done);
    export.unexport().unwrap();
    assert!(copy_slot.ask(Act::Write, 0, 10).is_err());
}

#[test]
fn who_says_what_no_importer_says_is_let_go_of() {
    let (domain, name) = domain("says");
    let (memory, _export) = lend_zeros(&domain, 10);
    let (_, capability) = capability(user(), &name, "x").unwrap();
    let copy_slot = || CopySlot::take(user(), &name, &capability).unwrap();
    let good = request(Act::Write, 0, 1).encode();
    let mut packets = vec![b"nonsense".to_vec(), good[..31].to_vec()];
    packets.push([&good[..], &[0]].concat());
    // A part that there is not, and more bytes than one has.
    for (at, byte) in [(12, 2), (26, 3), (0, 0), (8, 9)] {
        let mut bad = good;
        bad[at] = byte;
        packets.push(bad.to_vec());
    }
    for packet in packets {
        let copy_slot = copy_slot();
        socket::send(&copy_slot.connection, &packet, &[]).unwrap();
        assert!(copy_slot.reply().is_err(), "{packet:?}");
    }
    // Descriptors, which the kernel refuses, or the host.
    let with = copy_slot();
    if socket::send(&with.connection, &good, &[with.connection.as_fd()]).is_ok() {
        assert!(with.reply().is_err());
    }
    // One that asks and does not listen is let go of in the end; others are served meanwhile.
    let (deaf, fine) = (copy_slot(), copy_slot());
    let flood = || {
        let now = Some(std::time::Instant::now());
        let bytes = request(Act::Read, 0, 1).encode();
        socket::send_by(&deaf.connection, &bytes, &[], now)
    };
    until("the flood is stopped", || {
        assert_eq!(fine.ask(Act::Write, 0, 10).unwrap(), Outcome::Done);
        (0..1000).any(|_| matches!(flood(), Err(socket::SocketError::Closed)))
    });
    assert_eq!(fine.ask(Act::Write, 0, 10).unwrap(), Outcome::Done);
    assert_eq!(content(&memory), [0; 10]);
}

#[test]
fn one_user_does_not_take_all_seats() {
    let (domain, name) = domain("copy-slots");
    let (_memory, _export) = lend_zeros(&domain, 10);
    let (_, capability) = capability(user(), &name, "x").unwrap();
    let mut copy_slots = Vec::new();
    let refused = loop {
        match CopySlot::take(user(), &name, &capability) {
            Ok(copy_slot) => copy_slots.push(copy_slot),
            Err(refused) => break refused.to_string(),
        }
        assert!(copy_slots.len() < 10_000, "there is no end of copy slots");
    };
    assert!(refused.contains("Busy"), "{refused}");
    if root() {
        assert_eq!(importer(&name).ask("write 0 1 1"), "done");
    }
    copy_slots.truncate(1);
    until("there is room", || {
        CopySlot::take(user(), &name, &capability).is_ok()
    });
}

#[test]
fn pages_that_the_exporter_protects_or_unmaps_are_refused_by_the_host() {
    let test = "brokered::pages_that_the_exporter_protects_or_unmaps_are_refused_by_the_host";
    if !root() || !is_alone(test) {
        return;
    }
    let (_host, domain, name) = hosted("guarded");
    let start = pages_apart(1, 3);
    // SAFETY:
    // - Mapped for ever, and reached by raw pointers only; not touched once protected.
    let memory = unsafe { OrdinaryMemory::in_place(start, 3 * PAGE) }.unwrap();
    let _export = lend(&domain, &memory);
    let mut theirs = importer(&name);
    assert_eq!(theirs.ask("write 0 12288 5"), "done");
    // SAFETY:
    // - No reference points there.
    unsafe { memory::protect(start.addr() + PAGE, PAGE, Access::Read) }.unwrap();
    for bad in ["4096 1", "8191 1", "4095 2", "0 8192"] {
        let answer = theirs.ask(&format!("write {bad} 6"));
        assert!(answer.contains("Protected"), "{bad}: {answer}");
    }
    assert_eq!(theirs.ask("read 8190 2"), "[5, 5]");
    assert_eq!(content(&memory), [5; 3 * PAGE]);
    // SAFETY:
    // - No reference points there.
    unsafe { memory::protect(start.addr() + PAGE, PAGE, Access::None) }.unwrap();
    assert!(theirs.ask("read 8190 2").contains("Protected"));
    // SAFETY:
    // - Nothing here reaches that page any more.
    unsafe { rustix::mm::munmap(start.wrapping_add(PAGE).cast(), PAGE) }.unwrap();
    let hole = theirs.ask("write 4095 2 6");
    assert_eq!(hole, "error Unmapped { offset: 4096 }");
    assert_eq!(theirs.ask("write 8192 1 6"), "done");
}

#[test]
fn under_siege_by_another_user_nothing_lands_after_the_end() {
    if !root() {
        return;
    }
    let (_host, domain, name) = hosted("siege");
    let (memory, export) = lend_zeros(&domain, 1 << 20);
    let mut hostile = [Child::of_user(OTHER), Child::of_user(OTHER + 1)];
    for child in &mut hostile {
        assert_eq!(child.ask(&format!("besiege 0 {name} x")), "done");
        child.goes_round();
    }
    let mut honest = importer(&name);
    assert_eq!(honest.ask("write 0 1 1"), "done");
    let address = memory.address();
    export.unexport().unwrap();
    let bytes = memory.into_vec().expect("no export has it");
    assert_eq!(bytes.as_ptr().addr(), address);
    let after = bytes.clone();
    for child in &mut hostile {
        child.goes_round();
    }
    assert!(honest.ask("write 0 1 77").contains("Revoked"));
    assert!(after == bytes, "bytes have changed after the end");
    // The host has not minded, nor has the domain.
    let (_memory, _export) = lend_zeros(&domain, 10);
    assert_eq!(importer(&name).ask("write 0 1 1"), "done");
}

#[test]
fn a_host_of_another_user_gets_no_delegation() {
    if !root() {
        return;
    }
    let name = unique("untrusted");
    let joined = || Domain::builder(&name).deadline(PATIENCE).allow_user(OTHER);
    let first = joined().join().unwrap();
    let mut host = Child::of_user(OTHER);
    assert_eq!(host.ask(&format!("join {name} of=0")), "done");
    first.leave().unwrap();
    until("it hosts", || host.ask("host") == "true");
    let domain = joined().join().unwrap();
    let (memory, export) = lend_zeros(&domain, 10);
    let mut third = Child::of_user(OTHER + 1);
    let answer = third.ask(&format!("import {name} x of=0"));
    assert!(answer.contains("NoCopyBroker"), "{answer}");
    // Our own user writes it without a host.
    let import = domain.import("x", PATIENCE).unwrap();
    import.write(0, &[1]).unwrap();
    export.unexport().unwrap();
    assert_eq!(memory.into_vec().unwrap()[0], 1);
}

#[test]
fn notes_go_with_what_the_host_copies() {
    if !root() {
        return;
    }
    let (_host, domain, name) = hosted("notes");
    let (memory, export) = lend_zeros(&domain, 4 * PAGE);
    let mut notes = export.notifications().unwrap();
    let mut theirs = importer(&name);
    assert_eq!(theirs.ask("write 100 9 7"), "done");
    assert_eq!(theirs.ask("notify 100 9"), "done");
    let note = notes.wait(PATIENCE).unwrap();
    let Notification::Written { offset, len, .. } = note else {
        panic!("{note:?}");
    };
    assert_eq!((offset, len), (100, 9));
    assert_eq!(content(&memory)[100..109], [7; 9]);
}

#[test]
fn an_exporter_that_cannot_open_its_memory_says_so() {
    if !root() {
        return;
    }
    // Undumpable, and no root: its memory's file is root's.
    let name = unique("undumpable");
    let mut exporter = Child::of_user(OTHER);
    assert_eq!(exporter.ask(&format!("join {name}")), "done");
    assert_eq!(exporter.ask("undumpable"), "done");
    assert_eq!(exporter.ask("export-ordinary x 10"), "done");
    let refused = Domain::builder(&name).of_user(OTHER).import("x", PATIENCE);
    assert!(
        matches!(
            refused,
            Err(portolan::vmmc::ImportError::NoCopyBroker { .. })
        ),
        "{refused:?}"
    );
}

#[test]
fn root_writes_another_users_memory_through_the_host_only() {
    if !root() {
        return;
    }
    let name = unique("theirs");
    let mut exporter = Child::of_user(OTHER);
    assert_eq!(exporter.ask(&format!("join {name}")), "done");
    assert_eq!(exporter.ask("export-ordinary x 10"), "done");
    let import = Domain::builder(&name).of_user(OTHER).import("x", PATIENCE);
    let import = import.unwrap();
    assert!(import.is_kernel_mediated());
    import.write(3, &[4, 5]).unwrap();
    let mut bytes = [0; 10];
    import.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0, 0, 0, 4, 5, 0, 0, 0, 0, 0]);
    assert_eq!(exporter.ask("host"), "true");
    assert_eq!(import.store_release(0, 1), Err(UpdateError::NoWords));
}
