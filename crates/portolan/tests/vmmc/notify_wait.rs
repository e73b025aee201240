//! Notifications in wait sets, and awaited by tasks.

use crate::child::Child;
use crate::notify::offset;
use crate::{domain, export};
use portolan::vmmc::{NotificationError, Reach};
use portolan::{Deadline, WaitSet, WaitSetError};
use portolan_testkit::PATIENCE;
use std::time::Duration;

#[test]
fn a_wait_set_names_what_importers_notify_of() {
    const COUNT: usize = 500;
    let (domain, name) = domain("set");
    let (memory, export) = export(&domain, 1, Reach::ReadWrite);
    let mut set = WaitSet::new(&domain).unwrap();
    let notifications = export.notifications().unwrap();
    let token = set.add(notifications).unwrap();
    assert!(set.wait(Deadline::NOW).unwrap().is_empty());
    let mut importer = Child::importer(&name);
    importer.tell(&format!("notify chat {COUNT}"));
    for number in 1..=COUNT {
        let named: Vec<_> = set.wait(PATIENCE).unwrap().collect();
        assert_eq!(named, [token]);
        let notifications = set.get_mut(token).unwrap();
        assert_eq!(
            offset(notifications.wait(Deadline::NOW).unwrap()),
            number * 8
        );
        memory.store_release(0, number as u64).unwrap();
    }
    assert_eq!(importer.answer(), "done");
    // Blocked ones are not named, and those that were kept back are.
    set.get_mut(token).unwrap().block();
    assert_eq!(importer.ask("notify each 1 1"), "done");
    let short = Duration::from_millis(20);
    assert!(set.wait(short).unwrap().is_empty());
    let notifications = set.get_mut(token).unwrap();
    notifications.unblock();
    assert_eq!(set.wait(PATIENCE).unwrap().next(), Some(token.any()));
    // What is not taken is named again.
    assert_eq!(set.wait(PATIENCE).unwrap().next(), Some(token.any()));
    // In the set or out of it, they are what they are.
    let mut notifications = set.remove(token).unwrap();
    assert!(set.remove(token).is_none());
    assert_eq!(offset(notifications.wait(Deadline::NOW).unwrap()), 8);
    assert_eq!(importer.ask("notify each 2 1"), "done");
    assert_eq!(offset(notifications.wait(PATIENCE).unwrap()), 16);
    assert!(set.wait(short).unwrap().is_empty());
    // The end is named, also to who sleeps.
    let token = set.add(notifications).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| set.wait(PATIENCE).unwrap().next());
        std::thread::sleep(short);
        export.unexport().unwrap();
        assert_eq!(waits.join().unwrap(), Some(token.any()));
    });
    let notifications = set.get_mut(token).unwrap();
    assert_eq!(
        notifications.wait(Deadline::NOW),
        Err(NotificationError::Ended)
    );
}

#[test]
fn a_wait_set_of_another_domain_gives_notifications_back() {
    let (here, _) = domain("here");
    let (there, _) = domain("there");
    let (_memory, export) = export(&here, 1, Reach::ReadWrite);
    let mut set = WaitSet::new(&there).unwrap();
    let refused = set.add(export.notifications().unwrap());
    let refused = refused.unwrap_err();
    assert!(matches!(refused.why, WaitSetError::OtherDomain { .. }));
    let mut set = WaitSet::new(&here).unwrap();
    set.add(*refused.item).unwrap();
    drop(set);
    let _again = export.notifications().unwrap();
}

#[cfg(feature = "tokio")]
#[test]
fn tasks_wait_for_notifications() {
    const COUNT: u64 = 500;
    let (domain, name) = domain("tasks");
    let (memory, export) = export(&domain, 64, Reach::ReadWrite);
    let mut notifications = export.notifications().unwrap();
    let mut importer = Child::importer(&name);
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    };
    runtime().block_on(async {
        let nothing = notifications.wait_async();
        let short = tokio::time::timeout(Duration::from_millis(10), nothing);
        assert!(short.await.is_err());
        importer.tell(&format!("notify chat {COUNT}"));
        for number in 1..=COUNT {
            let note = tokio::time::timeout(PATIENCE, notifications.wait_async());
            let at = offset(note.await.unwrap().unwrap());
            assert_eq!(memory.load_acquire(at).unwrap(), number);
            memory.store_release(0, number).unwrap();
        }
    });
    assert_eq!(importer.answer(), "done");
    // In another runtime, and without one.
    importer.tell("notify each 1 2");
    let first = runtime().block_on(notifications.wait_async());
    assert_eq!(offset(first.unwrap()), 8);
    assert_eq!(offset(notifications.wait(PATIENCE).unwrap()), 16);
    assert_eq!(importer.answer(), "done");
    export.unexport().unwrap();
    let ended = runtime().block_on(notifications.wait_async());
    assert_eq!(ended, Err(NotificationError::Ended));
}
