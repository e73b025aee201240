//! Exporters and importers that are killed, or become another program.

use crate::child::Child;
use crate::{content, domain, export};
use portolan::vmmc::{ImportError, ImportOptions, Reach};
use portolan::{Domain, OfferConnectError};
use portolan_testkit::{PATIENCE, unique, until};
use std::time::Duration;

#[test]
fn importers_of_a_killed_exporter_are_told_in_the_middle_of_their_writes() {
    let name = unique("exporter-dies");
    let mut exporter = Child::exporter(&name, 64);
    let mut importers = [Child::importer(&name), Child::importer(&name)];
    for importer in &mut importers {
        assert_eq!(importer.ask("storm"), "done");
        importer.goes_round();
    }
    exporter.kill();
    for importer in &mut importers {
        // At once, although its connections end before it is dead.
        assert_eq!(importer.ask("stormed"), "ExporterDied");
        assert_eq!(importer.ask("check"), "Err(ExporterDied)");
        assert!(importer.ask("write 0 1 1").contains("ExporterDied"));
        assert!(importer.ask("load 0").contains("ExporterDied"));
        assert_eq!(importer.ask("unimport"), "done");
    }
    // No process exports it any more.
    let mut late = Child::new();
    let answer = late.ask(&format!("import {name} x deadline-ms=50"));
    assert!(
        answer.contains("NotRunning") || answer.contains("NotOffered"),
        "{answer}"
    );
}

#[test]
fn importers_of_an_exporter_that_becomes_another_program_are_told() {
    let name = unique("exporter-execs");
    let mut exporter = Child::exporter(&name, 4);
    let mut importer = Child::importer(&name);
    assert_eq!(importer.ask("storm"), "done");
    importer.goes_round();
    exporter.tell("exec");
    assert_eq!(importer.ask("stormed"), "Disconnected");
    exporter.kill();
    until("it knows of the death", || {
        importer.ask("check") == "Err(ExporterDied)"
    });
}

#[test]
fn an_exporter_forgets_importers_that_are_killed_and_keeps_what_they_wrote() {
    let (domain, name) = domain("importer-dies");
    let (memory, export) = export(&domain, 64, Reach::ReadWrite);
    for round in 1..=3 {
        let mut importer = Child::importer(&name);
        assert_eq!(importer.ask(&format!("write 0 8 {round}")), "done");
        assert_eq!(importer.ask("storm"), "done");
        importer.goes_round();
        assert_eq!(export.importers(), 1);
        importer.kill();
        until("it is forgotten", || export.importers() == 0);
        assert_eq!(content(&memory)[..8], [round; 8]);
    }
    let mut importer = Child::importer(&name);
    importer.tell("exec");
    until("it is forgotten", || export.importers() == 0);
    export.unexport().unwrap();
}

#[test]
fn an_import_that_waits_outlives_host_and_exporter() {
    let name = unique("takeover");
    let mut host = Child::new();
    assert_eq!(host.ask(&format!("join {name}")), "done");
    let mut member = Child::new();
    assert_eq!(member.ask(&format!("join {name}")), "done");
    let domain = Domain::builder(&name);
    let mut pending = domain.begin_import("x", &ImportOptions::default()).unwrap();
    until("the host has had its turn", || {
        let waits = pending.wait(Duration::from_millis(50));
        let Err(ImportError::Connect(why)) = waits else {
            panic!("nobody offers it yet");
        };
        matches!(why, OfferConnectError::NotOffered { .. })
    });
    let mut other = Child::new();
    other.tell(&format!("import {name} x"));
    host.kill();
    // The one that hosts now is also the one that exports.
    assert_eq!(member.ask("export x 1"), "done");
    let import = pending.wait(PATIENCE).unwrap();
    assert!(other.answer().starts_with("imported 4096"));
    import.store_release(8, 77).unwrap();
    assert_eq!(member.ask("load own 8"), "77");
    assert_eq!(other.ask("load 8"), "77");
}

/// The kernel gives this process id out next.
fn choose(pid: u32) -> std::io::Result<()> {
    std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string())
}

/// Kills a child while `watcher` is stopped, which so sees nothing of the death before the
/// process id is another one's; that other one, if there is any.
fn replaced(child: &mut Child, watcher: &Child) -> Option<Child> {
    let pid = child.pid();
    if choose(pid).is_err() {
        eprintln!("skipped: this user cannot choose process ids");
        return None;
    }
    watcher.stop();
    child.kill();
    let again = (0..200).find_map(|_| {
        choose(pid).unwrap();
        Some(Child::new()).filter(|child| child.pid() == pid)
    });
    watcher.resume();
    if again.is_none() {
        eprintln!("skipped: others were faster to take the process id");
    }
    again
}

#[test]
fn a_process_with_the_exporters_id_is_not_taken_for_it() {
    let name = unique("pid");
    let mut exporter = Child::exporter(&name, 1);
    let mut importer = Child::importer(&name);
    let Some(_again) = replaced(&mut exporter, &importer) else {
        return;
    };
    until("it knows of the death", || {
        importer.ask("check") == "Err(ExporterDied)"
    });
}

#[test]
fn a_process_with_an_importers_id_is_not_taken_for_it() {
    let name = unique("importers-pid");
    let mut exporter = Child::exporter(&name, 1);
    let mut importer = Child::importer(&name);
    assert_eq!(exporter.ask("importers"), "1");
    // Its socket ends with it, unless another process keeps it.
    let _copy = importer.copied();
    let Some(mut again) = replaced(&mut importer, &exporter) else {
        return;
    };
    until("it is forgotten", || exporter.ask("importers") == "0");
    // That one may be another importer.
    assert!(
        again
            .ask(&format!("import {name} x"))
            .starts_with("imported ")
    );
    assert_eq!(exporter.ask("importers"), "1");
}

#[test]
fn what_a_killed_process_exports_is_seen_no_more() {
    let (domain, name) = domain("seen");
    let seen = || {
        let exports = domain.survey().unwrap().exports;
        let each = exports
            .into_iter()
            .map(|e| (e.name, e.bytes, e.reach, e.importers));
        each.collect::<Vec<_>>()
    };
    let export = |importers| ("x".to_owned(), 64 * 4096, Reach::ReadWrite, importers);
    let mut exporter = Child::exporter(&name, 64);
    assert_eq!(seen(), [export(0)]);
    let mut importer = Child::importer(&name);
    // It says so once it has answered.
    until("its importer is counted", || seen() == [export(1)]);
    importer.kill();
    until("its importer is forgotten", || seen() == [export(0)]);
    exporter.kill();
    until("the export is not seen any more", || seen().is_empty());
    // Nor is one that has ended.
    let (_memory, own) = self::export(&domain, 1, Reach::Read);
    assert_eq!(seen().len(), 1);
    own.unexport().unwrap();
    assert!(seen().is_empty());
}
