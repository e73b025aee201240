//! Notifications: what comes, in which order, and what hostile importers cannot do with them.

use crate::child::Child;
use crate::{domain, export, raw};
use portolan::vmmc::{
    ExportMemory, ExportOptions, Import, Notification, NotificationError, Notifications, Reach,
    UpdateError,
};
use portolan::{Deadline, Domain, ListenerOptions, Origin, Permissions};
use portolan_abi::vmmc::{WAKE, notification_page};
use portolan_sys::memory::Mapping;
use portolan_sys::process::poll;
use portolan_sys::socket;
use portolan_testkit::{Answer, PATIENCE, SetOnDrop, until};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// What an importer is told to do.
pub(crate) fn obey(import: &Import, words: &[&str]) -> Answer {
    match *words {
        // Stores each number from `first` on to the word of that number, and notifies of it.
        ["each", first, count] => {
            let first: usize = first.parse()?;
            for number in first..first + count.parse::<usize>()? {
                import.write_notifying(number * 8, &number.to_ne_bytes())?;
            }
        }
        // As above, each once the one before has been answered in the first word.
        ["chat", count] => {
            for number in 1..=count.parse::<usize>()? {
                import.write_notifying(number * 8, &number.to_ne_bytes())?;
                while import.load_acquire(0)? != number as u64 {
                    std::thread::yield_now();
                }
            }
        }
        [offset, len] => import.notify(offset.parse()?, len.parse()?)?,
        _ => return Err(format!("no such order: notify {words:?}").into()),
    }
    Ok("done".to_owned())
}

/// The offset of a note of 8 bytes.
pub(crate) fn offset(note: Notification) -> usize {
    match note {
        Notification::Written { offset, len: 8, .. } => offset,
        other => panic!("{other:?}"),
    }
}

/// No notification is there.
const NOTHING: Result<Notification, NotificationError> = Err(NotificationError::TimedOut);

/// The next notification, if one is there.
fn there(notifications: &mut Notifications) -> Option<Notification> {
    match notifications.wait(Deadline::NOW) {
        Ok(notification) => Some(notification),
        Err(why) => {
            assert_eq!(Err(why), NOTHING);
            None
        }
    }
}

/// The numbers of all notes that are there.
fn numbers(notifications: &mut Notifications) -> Vec<usize> {
    let all = std::iter::from_fn(|| there(notifications));
    all.map(|note| offset(note) / 8).collect()
}

#[test]
fn a_note_comes_behind_its_data_and_in_order() {
    const COUNT: usize = 30_000;
    let (domain, name) = domain("order");
    let (memory, export) = export(&domain, 64, Reach::ReadWrite);
    let mut notifications = export.notifications().unwrap();
    let mut importer = Child::importer(&name);
    importer.tell(&format!("notify each 1 {COUNT}"));
    let (mut last, mut seen, mut several) = (0, 0, 0);
    while seen < COUNT {
        match notifications.wait(PATIENCE).unwrap() {
            note @ Notification::Written { offset: at, .. } => {
                let number = offset(note) / 8;
                assert!(number > last, "{number} after {last}");
                assert_eq!(memory.load_acquire(at).unwrap(), number as u64);
                assert_eq!(note.importer().process(), importer.pid());
                (last, seen) = (number, seen + 1);
            }
            Notification::Several { count, .. } => {
                several += 1;
                seen += usize::try_from(count).unwrap();
            }
        }
    }
    assert_eq!(importer.answer(), "done");
    assert_eq!(seen, COUNT, "with {several} that stand for more");
    assert_eq!(notifications.wait(Deadline::NOW), NOTHING);
    assert_eq!(notifications.garbled(), 0);
}

#[test]
fn an_exporter_that_sleeps_is_woken_each_time() {
    const COUNT: u64 = 3000;
    let (domain, name) = domain("wake");
    let (memory, export) = export(&domain, 64, Reach::ReadWrite);
    let mut notifications = export.notifications().unwrap();
    let mut importer = Child::importer(&name);
    importer.tell(&format!("notify chat {COUNT}"));
    for number in 1..=COUNT {
        let at = offset(notifications.wait(PATIENCE).unwrap());
        assert_eq!(memory.load_acquire(at).unwrap(), number);
        memory.store_release(0, number).unwrap();
    }
    assert_eq!(importer.answer(), "done");
}

#[test]
fn what_has_no_room_is_counted() {
    let (domain, name) = domain("full");
    let (_memory, export) = export(&domain, 4, Reach::ReadWrite);
    let mut notifications = export.notifications().unwrap();
    let mut importer = Child::importer(&name);
    assert_eq!(importer.ask("notify each 1 300"), "done");
    for number in 1..=notification_page::NOTES {
        let note = notifications.wait(Deadline::NOW).unwrap();
        assert_eq!(offset(note), number * 8);
    }
    let rest = there(&mut notifications);
    let lost = 300 - notification_page::NOTES as u64;
    assert!(
        matches!(rest, Some(Notification::Several { count, .. }) if count == lost),
        "{rest:?}"
    );
    assert_eq!(importer.ask("notify each 1 2"), "done");
    assert_eq!(numbers(&mut notifications), [1, 2]);
}

#[test]
fn blocked_notes_wait() {
    let (domain, name) = domain("block");
    let (_memory, export) = export(&domain, 1, Reach::ReadWrite);
    let mut notifications = export.notifications().unwrap();
    let mut importer = Child::importer(&name);
    notifications.block();
    assert_eq!(importer.ask("notify each 1 3"), "done");
    assert_eq!(notifications.wait(Deadline::NOW), NOTHING);
    let short = Duration::from_millis(20);
    assert_eq!(notifications.wait(short), Err(NotificationError::TimedOut));
    notifications.unblock();
    assert_eq!(offset(notifications.wait(PATIENCE).unwrap()), 8);
    assert_eq!(numbers(&mut notifications), [2, 3]);
}

#[test]
fn discarded_notes_are_gone_and_those_before_are_not() {
    let (domain, name) = domain("discard");
    let (_memory, export) = export(&domain, 1, Reach::ReadWrite);
    let mut notifications = export.notifications().unwrap();
    let mut importer = Child::importer(&name);
    assert_eq!(importer.ask("notify each 1 2"), "done");
    notifications.discard();
    assert_eq!(importer.ask("notify each 3 2"), "done");
    assert_eq!(numbers(&mut notifications), [1, 2]);
    notifications.accept();
    assert_eq!(notifications.wait(Deadline::NOW), NOTHING);
    assert_eq!(importer.ask("notify each 5 2"), "done");
    assert_eq!(numbers(&mut notifications), [5, 6]);
}

#[test]
fn without_anybody_who_listens_notes_are_ignored() {
    let (domain, name) = domain("ignored");
    let (memory, export) = export(&domain, 1, Reach::ReadWrite);
    let mut importer = Child::importer(&name);
    assert_eq!(importer.ask("notify each 1 200"), "done");
    assert_eq!(memory.load_acquire(1600).unwrap(), 200);
    let mut notifications = export.notifications().unwrap();
    assert_eq!(notifications.wait(Deadline::NOW), NOTHING);
    assert_eq!(
        export.notifications().unwrap_err(),
        NotificationError::Taken
    );
    assert_eq!(importer.ask("notify each 1 1"), "done");
    assert_eq!(numbers(&mut notifications), [1]);
    drop(notifications);
    assert_eq!(importer.ask("notify each 2 1"), "done");
    let mut notifications = export.notifications().unwrap();
    assert_eq!(
        notifications.wait(Deadline::NOW),
        Err(NotificationError::TimedOut)
    );
}

#[test]
fn notes_lie_where_writes_may() {
    let (domain, _) = domain("within");
    let memory = ExportMemory::new(8192).unwrap();
    let options = ExportOptions::new(Reach::Write).within(64..128);
    let export = domain.export(&memory, "x", &options, PATIENCE).unwrap();
    let mut notifications = export.notifications().unwrap();
    let import = domain.import("x", PATIENCE).unwrap();
    let out = |offset, len| UpdateError::OutOfRanges { offset, len };
    assert_eq!(import.notify(63, 2), Err(out(63, 2)));
    assert_eq!(import.notify(127, 2), Err(out(127, 2)));
    assert!(matches!(
        import.notify(1, usize::MAX),
        Err(UpdateError::OutOfBounds { .. })
    ));
    import.notify(64, 64).unwrap();
    let note = notifications.wait(Deadline::NOW).unwrap();
    assert!(matches!(
        note,
        Notification::Written {
            offset: 64,
            len: 64,
            ..
        }
    ));
    assert_eq!(notifications.wait(Deadline::NOW), NOTHING);

    let read = ExportMemory::new(4096).unwrap();
    let options = ExportOptions::new(Reach::Read);
    let _export = domain.export(&read, "read", &options, PATIENCE).unwrap();
    let import = domain.import("read", PATIENCE).unwrap();
    assert_eq!(import.notify(0, 1), Err(UpdateError::NotWritable));
}

#[test]
fn a_killed_importer_leaves_its_notes() {
    let (domain, name) = domain("killed");
    let (_memory, export) = export(&domain, 1, Reach::ReadWrite);
    let mut notifications = export.notifications().unwrap();
    for blocked in [false, true] {
        if blocked {
            notifications.block();
        }
        let mut importer = Child::importer(&name);
        assert_eq!(importer.ask("notify each 1 200"), "done");
        importer.kill();
        until("it is forgotten", || export.importers() == 0);
        notifications.unblock();
        for number in 1..=notification_page::NOTES {
            assert_eq!(offset(notifications.wait(PATIENCE).unwrap()), number * 8);
        }
        let rest = there(&mut notifications);
        assert!(
            matches!(rest, Some(Notification::Several { count: 72, .. })),
            "{rest:?}"
        );
        assert_eq!(notifications.wait(Deadline::NOW), NOTHING);
    }
}

#[cfg(feature = "marks")]
#[test]
fn a_note_of_an_importer_that_died_before_it_rang_wakes_who_waits() {
    let (domain, name) = domain("unrung");
    let (_memory, export) = export(&domain, 1, Reach::ReadWrite);
    let mut notifications = export.notifications().unwrap();
    let mut importer = Child::importer(&name);
    assert_eq!(importer.ask("die-at notify.posted"), "done");
    let waiting = std::thread::spawn(move || notifications.wait(PATIENCE));
    importer.tell("notify each 1 1");
    assert_eq!(offset(waiting.join().unwrap().unwrap()), 8);
}

#[test]
fn who_waits_for_an_export_that_ends_is_told() {
    let (domain, name) = domain("ends");
    let (_memory, export) = export(&domain, 1, Reach::ReadWrite);
    let mut notifications = export.notifications().unwrap();
    let mut importer = Child::importer(&name);
    let (first, seen) = mpsc::channel();
    let waiting = std::thread::spawn(move || {
        first.send(notifications.wait(PATIENCE)).unwrap();
        let ended = notifications.wait(PATIENCE);
        (
            ended,
            notifications.wait(Deadline::NOW),
            notifications.wait(PATIENCE),
        )
    });
    assert_eq!(importer.ask("notify each 1 1"), "done");
    assert_eq!(offset(seen.recv().unwrap().unwrap()), 8);
    export.unexport().unwrap();
    let ended = NotificationError::Ended;
    let all = waiting.join().unwrap();
    assert_eq!(all, (Err(ended), Err(ended), Err(ended)));
    assert!(importer.ask("notify 0 8").contains("Revoked"));
}

#[test]
fn what_was_posted_before_the_end_is_handed_out_after_it() {
    let (domain, name) = domain("after");
    let (_memory, export) = export(&domain, 1, Reach::ReadWrite);
    let mut notifications = export.notifications().unwrap();
    let mut importer = Child::importer(&name);
    assert_eq!(importer.ask("notify each 1 3"), "done");
    export.unexport().unwrap();
    for number in 1..=3 {
        assert_eq!(offset(notifications.wait(PATIENCE).unwrap()), number * 8);
    }
    assert_eq!(
        notifications.wait(Deadline::NOW),
        Err(NotificationError::Ended)
    );
}

/// Posts nonsense, and sends wakes, until it is told to stop.
fn hostile(name: &str, stop: &AtomicBool) {
    let connection = raw::connect(name);
    let hostile = raw::Hostile::new(&connection, "x").unwrap();
    let page =
        Mapping::shared_anywhere(&hostile.notification_page, notification_page::BYTES).unwrap();
    let put = |word: usize, value: u64| {
        let to = page.base().wrapping_add(word * 8).cast::<u64>();
        // SAFETY:
        // - In bounds, aligned: a word of the page.
        unsafe { to.write_volatile(value) };
    };
    let odd = [0, 1, 8, 4095, 4096, 1 << 40, u64::MAX - 7, u64::MAX];
    let mut posted = 0_u64;
    for round in 0_usize.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        for nth in 0..notification_page::NOTES * notification_page::NOTE {
            // Never 8 bytes, by which honest notes are known.
            let value = if nth % 2 == 0 {
                odd[(round + nth) % odd.len()]
            } else {
                odd[3 + (round + nth / 2) % 5]
            };
            put(notification_page::FIRST + nth, value);
        }
        posted = posted.wrapping_add(odd[round % odd.len()]);
        put(notification_page::TAKEN, odd[(round + 1) % odd.len()]);
        put(notification_page::LOST, odd[round / 8 % odd.len()]);
        put(notification_page::POSTED, posted);
        let now = Some(Instant::now());
        let _ = socket::send_by(&connection, &[WAKE], &[], now);
    }
}

#[test]
fn importers_that_post_nonsense_and_ring_for_ever_harm_nobody() {
    const COUNT: u64 = 500;
    let (domain, name) = domain("nonsense");
    let (memory, export) = export(&domain, 1, Reach::ReadWrite);
    let mut notifications = export.notifications().unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = SetOnDrop(&stop);
        for _ in 0..2 {
            scope.spawn(|| hostile(&name, &stop));
        }
        let mut importer = Child::importer(&name);
        until("all have come", || export.importers() == 3);
        importer.tell(&format!("notify chat {COUNT}"));
        let mut number = 0;
        let end = Instant::now() + PATIENCE;
        while number < COUNT {
            let note = notifications.wait(Deadline::at(end)).unwrap();
            if note.importer().process() != importer.pid() {
                // What a stranger says lies within the export at least.
                if let Notification::Written { offset, len, .. } = note {
                    assert!(offset + len <= memory.len(), "{note:?}");
                }
                continue;
            }
            number += 1;
            assert_eq!(memory.load_acquire(offset(note)).unwrap(), number);
            memory.store_release(0, number).unwrap();
        }
        assert_eq!(importer.answer(), "done");
        until("nonsense has come", || {
            let _ = notifications.wait(Deadline::NOW);
            notifications.garbled() > 0
        });
    });
    until("all have gone", || export.importers() == 0);
    export.unexport().unwrap();
}

#[test]
fn a_handler_runs_for_each_note() {
    let (domain, name) = domain("handler");
    let (memory, export) = export(&domain, 1, Reach::ReadWrite);
    let mut notifications = export.notifications().unwrap();
    let mut importer = Child::importer(&name);
    // Without a handler they are ignored.
    assert_eq!(importer.ask("notify each 1 2"), "done");
    assert_eq!(notifications.dispatch(PATIENCE), Ok(2));
    let (tell, told) = mpsc::channel();
    notifications.on(move |note| {
        let value = memory.load_acquire(offset(note)).unwrap();
        tell.send(value).unwrap();
    });
    assert_eq!(importer.ask("notify each 3 4"), "done");
    assert_eq!(notifications.dispatch(PATIENCE), Ok(4));
    assert_eq!(told.try_iter().collect::<Vec<_>>(), [3, 4, 5, 6]);
    assert_eq!(
        notifications.dispatch(Deadline::NOW),
        Err(NotificationError::TimedOut)
    );
}

#[test]
fn a_descriptor_is_readable_until_there_is_nothing_more() {
    let (domain, name) = domain("descriptor");
    let (_memory, export) = export(&domain, 1, Reach::ReadWrite);
    let mut notifications = export.notifications().unwrap();
    let mut importer = Child::importer(&name);
    let descriptor = notifications.descriptor().try_clone_to_owned().unwrap();
    let readable = |end| poll(&[descriptor.as_fd()], Some(end)).unwrap()[0].readable;
    assert!(!readable(Instant::now()));
    for round in 0..50 {
        let order = format!("notify each {} 2", round * 2);
        assert_eq!(importer.ask(&order), "done");
        assert!(readable(Instant::now() + PATIENCE));
        assert_eq!(
            offset(notifications.wait(Deadline::NOW).unwrap()),
            round * 16
        );
        assert!(readable(Instant::now()), "there is one more");
        assert_eq!(numbers(&mut notifications), [round * 2 + 1]);
        assert!(!readable(Instant::now()));
    }
    // What came before it was asked for.
    drop(notifications);
    let mut notifications = export.notifications().unwrap();
    assert_eq!(importer.ask("notify each 1 1"), "done");
    let descriptor = notifications.descriptor().try_clone_to_owned().unwrap();
    let readable = |end| poll(&[descriptor.as_fd()], Some(end)).unwrap()[0].readable;
    assert!(readable(Instant::now()));
    assert_eq!(numbers(&mut notifications), [1]);
    export.unexport().unwrap();
    assert!(readable(Instant::now()));
    assert_eq!(
        notifications.wait(Deadline::NOW),
        Err(NotificationError::Ended)
    );
    assert!(readable(Instant::now()));
}

#[test]
fn an_address_is_signalled_and_its_handler_gets_the_notes() {
    const COUNT: usize = 200;
    let (domain, name) = domain("address");
    let (memory, export) = export(&domain, 1, Reach::ReadWrite);
    let mut notifications = export.notifications().unwrap();
    let segment = domain.make_segment(None, 4096).unwrap();
    let descriptor = notifications.descriptor().try_clone_to_owned().unwrap();
    let origin = Origin::Descriptor(descriptor);
    let _bound = domain.bind_address(segment.address(), origin).unwrap();
    let mut listener = domain.listen(ListenerOptions::default()).unwrap();
    let (tell, told) = mpsc::channel();
    let here = segment.address()..segment.address() + 1;
    let on = listener.on(here, move |_| {
        while let Ok(note) = notifications.wait(Deadline::NOW) {
            let number = memory.load_acquire(offset(note)).unwrap();
            memory.store_release(0, number).unwrap();
            tell.send(number).unwrap();
        }
    });
    on.unwrap();
    let mut importer = Child::importer(&name);
    importer.tell(&format!("notify chat {COUNT}"));
    let mut numbers = Vec::new();
    while numbers.len() < COUNT {
        let _ = listener.wait(PATIENCE).unwrap();
        numbers.extend(told.try_iter());
    }
    assert!(numbers.iter().copied().eq(1..=COUNT as u64), "{numbers:?}");
    assert_eq!(importer.answer(), "done");
}

#[test]
fn flushes_of_automatic_update_notify() {
    let (domain, name) = domain("flush");
    let memory = ExportMemory::new(16 * 4096).unwrap();
    let options = ExportOptions::new(Reach::ReadWrite).permit(Permissions::anyone());
    let export = domain.export(&memory, "x", &options, PATIENCE).unwrap();
    let mut notifications = export.notifications().unwrap();
    let mut importer = Child::new();
    assert_eq!(
        importer.ask(&format!("import {name} x")),
        "imported 65536 ReadWrite"
    );
    let mut next = |importer: &mut Child, order: &str| {
        assert_eq!(importer.ask(order), "done");
        match there(&mut notifications) {
            Some(Notification::Written { offset, len, .. }) => {
                assert_eq!(notifications.wait(Deadline::NOW), NOTHING);
                Some((offset, len))
            }
            None => None,
            other => panic!("{other:?}"),
        }
    };
    next(&mut importer, "auto memory 8 0");
    next(&mut importer, "auto log 100 1000 5000");
    next(&mut importer, "auto log store 16 8 1");
    next(&mut importer, "auto log store 100 3 2");
    assert_eq!(next(&mut importer, "auto log notify"), Some((5016, 87)));
    assert_eq!(next(&mut importer, "auto log notify"), None);
    let mut byte = [0];
    memory.read(5101, &mut byte).unwrap();
    assert_eq!(byte, [2]);

    next(&mut importer, "auto unmap");
    next(&mut importer, "auto tracked 2 4 16384 0");
    // The third and the second mapped page.
    next(&mut importer, "auto put 16392 7");
    next(&mut importer, "auto put 12296 8");
    let pages = Some((16384 + 4096, 8192));
    assert_eq!(next(&mut importer, "auto tracked notify"), pages);
    assert_eq!(memory.load_acquire(16384 + 8200).unwrap(), 7);
    assert_eq!(next(&mut importer, "auto tracked notify"), None);

    next(&mut importer, "auto unmap");
    next(&mut importer, "auto alias 0 2 32768");
    next(&mut importer, "auto put 8 9");
    assert_eq!(
        next(&mut importer, "auto alias notify"),
        Some((32768, 8192))
    );
    assert_eq!(memory.load_acquire(32776).unwrap(), 9);
}

#[test]
fn notes_of_all_importers_come_in_turn() {
    let (domain, name) = domain("turns");
    let (_memory, export) = export(&domain, 1, Reach::ReadWrite);
    let mut notifications = export.notifications().unwrap();
    let mut importers = [(); 3].map(|()| Child::importer(&name));
    for importer in &mut importers {
        assert_eq!(importer.ask("notify each 1 20"), "done");
    }
    // Another user of the domain itself.
    let own = Domain::builder(&name).import("x", PATIENCE).unwrap();
    own.notify(0, 8).unwrap();
    for _ in 0..20 {
        let mut turn: Vec<u32> = importers
            .iter()
            .map(|_| {
                let note = notifications.wait(Deadline::NOW).unwrap();
                note.importer().process()
            })
            .collect();
        turn.retain(|process| *process != std::process::id());
        let before = turn.len();
        turn.sort_unstable();
        turn.dedup();
        assert_eq!(turn.len(), before, "one had two turns");
    }
    assert_eq!(std::iter::from_fn(|| there(&mut notifications)).count(), 1);
}
