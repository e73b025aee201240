//! Notifications when a process dies, forks, or executes another program; and of ordinary memory.

use crate::child::Child;
use crate::notify::offset;
use crate::{domain, export};
use portolan::vmmc::{
    ExportOptions, Notification, NotificationError, Notifications, OrdinaryMemory, Reach,
};
use portolan::{Deadline, Permissions};
use portolan_abi::vmmc::notification_page;
use portolan_testkit::{PATIENCE, unique, until};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;

/// What is told of the children that fork and exec here.
fn of(child: &Child, note: Notification) -> usize {
    assert_eq!(note.importer().process(), child.pid());
    offset(note)
}

#[test]
fn ordinary_memory_has_notifications_too() {
    let (domain, name) = domain("ordinary");
    let memory = OrdinaryMemory::from(vec![0; 4096]);
    let options = ExportOptions::new(Reach::ReadWrite).permit(Permissions::anyone());
    let export = domain.export(&memory, "x", &options, PATIENCE).unwrap();
    let mut notifications = export.notifications().unwrap();
    let mut importer = Child::importer(&name);
    std::thread::scope(|scope| {
        let told = scope.spawn(|| {
            for number in 1..=notification_page::NOTES {
                let at = offset(notifications.wait(PATIENCE).unwrap());
                assert_eq!(at, number * 8);
                // The data came before it.
                let mut bytes = [0; 8];
                memory.read(at, &mut bytes).unwrap();
                assert_eq!(usize::from_ne_bytes(bytes), number);
            }
        });
        for number in 1..=notification_page::NOTES {
            assert_eq!(importer.ask(&format!("notify each {number} 1")), "done");
        }
        told.join().unwrap();
    });
    let wrong = importer.ask("notify 4090 7");
    assert!(wrong.contains("OutOfBounds"), "{wrong}");
    // What a killed one has said is handed out; then the end is.
    assert_eq!(importer.ask("notify each 1 3"), "done");
    importer.kill();
    until("it is forgotten", || export.importers() == 0);
    for number in 1..=3 {
        let note = notifications.wait(Deadline::NOW).unwrap();
        assert_eq!(of(&importer, note), number * 8);
    }
    let mut late = Child::importer(&name);
    export.unexport().unwrap();
    assert_eq!(notifications.wait(PATIENCE), Err(NotificationError::Ended));
    assert!(late.ask("notify 0 8").contains("Revoked"));
}

/// What the forked child of an exporter has of the notifications.
pub(crate) fn in_child(notifications: &mut Notifications) -> String {
    let polled = notifications.wait(Deadline::NOW);
    let waited = notifications.wait(Deadline::NEVER);
    notifications.block();
    notifications.discard();
    let _ = notifications.descriptor();
    format!("{:?} {:?}", polled.err(), waited.err())
}

#[test]
fn a_forked_child_of_an_exporter_has_no_notifications_and_takes_none() {
    let name = unique("fork-notified");
    let mut exporter = Child::exporter(&name, 1);
    assert_eq!(exporter.ask("listen"), "done");
    let mut importer = Child::importer(&name);
    assert_eq!(importer.ask("notify each 1 2"), "done");
    let forked = exporter.ask("fork listening");
    let (pid, said) = forked.split_once(' ').unwrap();
    let refused = "Some(Disowned(Forked)) Some(Disowned(Forked))";
    assert_eq!(said, refused);
    // The parent's are what they were, and its child took none.
    assert_eq!(exporter.ask("heard"), "8");
    assert_eq!(exporter.ask("heard"), "16");
    assert_eq!(importer.ask("notify each 3 1"), "done");
    assert_eq!(exporter.ask("heard"), "24");
    exporter.kill();
    until("it knows of the death", || {
        importer.ask("notify 0 8").contains("ExporterDied")
    });
    crate::forks::end(pid.parse().unwrap());
}

#[test]
fn a_forked_child_of_an_importer_notifies_of_nothing() {
    let (domain, name) = domain("fork-notifying");
    let (_memory, export) = export(&domain, 1, Reach::ReadWrite);
    let mut notifications = export.notifications().unwrap();
    let mut importer = Child::importer(&name);
    let forked = importer.ask("fork notifying");
    let (pid, said) = forked.split_once(' ').unwrap();
    assert_eq!(said, "Err(Disowned(Forked)) Err(Disowned(Forked))");
    assert_eq!(
        notifications.wait(Deadline::NOW),
        Err(NotificationError::TimedOut)
    );
    assert_eq!(importer.ask("notify each 1 1"), "done");
    let note = notifications.wait(PATIENCE).unwrap();
    assert_eq!(of(&importer, note), 8);
    importer.kill();
    until("it is forgotten", || export.importers() == 0);
    crate::forks::end(pid.parse().unwrap());
}

#[test]
fn what_an_importer_posted_before_it_became_another_program_is_handed_out() {
    let (domain, name) = domain("exec-notifying");
    let (_memory, export) = export(&domain, 1, Reach::ReadWrite);
    let mut notifications = export.notifications().unwrap();
    let mut importer = Child::importer(&name);
    assert_eq!(importer.ask("notify each 1 200"), "done");
    importer.tell("exec");
    until("it is forgotten", || export.importers() == 0);
    for number in 1..=notification_page::NOTES {
        let note = notifications.wait(Deadline::NOW).unwrap();
        assert_eq!(of(&importer, note), number * 8);
    }
    let rest = notifications.wait(Deadline::NOW);
    assert!(
        matches!(rest, Ok(Notification::Several { count: 72, .. })),
        "{rest:?}"
    );
}

#[test]
fn who_notifies_an_exporter_that_became_another_program_is_told() {
    let name = unique("exec-notified");
    let mut exporter = Child::exporter(&name, 1);
    assert_eq!(exporter.ask("listen"), "done");
    let mut importer = Child::importer(&name);
    assert_eq!(importer.ask("notify each 1 1"), "done");
    exporter.tell("exec");
    until("it is told", || {
        importer.ask("notify 0 8").contains("Disconnected")
    });
    assert!(!exporter.ended());
}

#[test]
fn a_handler_that_panics_loses_its_own_note_and_no_other() {
    let (domain, name) = domain("panics");
    let (_memory, export) = export(&domain, 1, Reach::ReadWrite);
    let mut notifications = export.notifications().unwrap();
    let mut importer = Child::importer(&name);
    let (tell, told) = mpsc::channel();
    notifications.on(move |note| {
        let at = offset(note);
        assert_ne!(at, 24, "what this test is about");
        tell.send(at).unwrap();
    });
    assert_eq!(importer.ask("notify each 1 5"), "done");
    let dispatched = catch_unwind(AssertUnwindSafe(|| notifications.dispatch(PATIENCE)));
    assert!(dispatched.is_err(), "the panic is its caller's");
    assert_eq!(notifications.dispatch(PATIENCE), Ok(2));
    assert_eq!(told.try_iter().collect::<Vec<_>>(), [8, 16, 32, 40]);
    // Importers, and other exports of this process, notice nothing of it.
    assert_eq!(importer.ask("notify each 6 1"), "done");
    assert_eq!(notifications.dispatch(PATIENCE), Ok(1));
    assert_eq!(told.try_iter().collect::<Vec<_>>(), [48]);
    export.unexport().unwrap();
}
