//! Several members that export under one name, and importers that mean one of them.

use crate::child::Child;
use crate::{domain, export};
use portolan::vmmc::{
    ExportError, ExportMemory, ExportOptions, Exporter, Import, ImportError, ImportOptions, Reach,
};
use portolan::{Deadline, Domain, OfferConnectError, OfferError, Permissions};
use portolan_testkit::{PATIENCE, unique, until};
use std::time::Duration;

/// A member that calls itself so, and exports a page as `x`.
fn exporter(domain: &str, called: &str) -> Child {
    let mut child = Child::new();
    assert_eq!(child.ask(&format!("join-as {domain} {called}")), "done");
    assert_eq!(child.ask("export x 1"), "done");
    child
}

fn of(exporter: Exporter) -> ImportOptions {
    ImportOptions::default().exporter(exporter)
}

/// Who exports `x`, as an importer is told that does not say whom it means.
fn candidates(imported: Result<Import, ImportError>) -> Vec<Exporter> {
    match imported {
        Err(ImportError::Connect(OfferConnectError::Ambiguous {
            kind: "export",
            name,
            exporters,
        })) if name == "x" => exporters,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_importer_says_which_exporter_it_means() {
    let name = unique("exporters");
    let mut left = exporter(&name, "left");
    let mut right = exporter(&name, "right");
    let inside = Domain::builder(&name).deadline(PATIENCE).join().unwrap();
    let outside = Domain::builder(&name);
    let space = |pid: u32| {
        let survey = inside.survey().unwrap();
        let found = survey.exports.iter().find(|e| e.pid == pid).unwrap();
        let called = if pid == left.pid() { "left" } else { "right" };
        assert_eq!(
            (found.name.as_str(), found.exporter.as_str()),
            ("x", called)
        );
        found.space
    };
    let spaces = [space(left.pid()), space(right.pid())];
    let mut value = 0;
    for (exporter, called, space) in [
        (&mut left, "left", spaces[0]),
        (&mut right, "right", spaces[1]),
    ] {
        for said in [
            Exporter::named(called),
            Exporter::process(exporter.pid()),
            Exporter::space(space),
        ] {
            let from_inside = inside.import_with("x", &of(said.clone()), PATIENCE);
            let from_outside = outside.import_with("x", &of(said), PATIENCE);
            for import in [from_inside, from_outside] {
                value += 1;
                import.unwrap().store_release(8, value).unwrap();
                assert_eq!(exporter.ask("load own 8"), value.to_string());
            }
        }
    }
}

#[test]
fn an_importer_that_does_not_say_which_is_told_which_there_are() {
    let name = unique("ambiguous");
    let left = exporter(&name, "left");
    let right = exporter(&name, "right");
    let inside = Domain::builder(&name).deadline(PATIENCE).join().unwrap();
    let outside = Domain::builder(&name);
    for imported in [inside.import("x", PATIENCE), outside.import("x", PATIENCE)] {
        let error = format!("{:?}", imported.as_ref().err());
        let exporters = candidates(imported);
        let mut told: Vec<_> = exporters
            .iter()
            .map(|e| (e.name().unwrap(), e.process_id().unwrap()))
            .collect();
        told.sort_unstable();
        assert_eq!(
            told,
            [("left", left.pid()), ("right", right.pid())],
            "{error}"
        );
        // Each can be used as it is.
        for exporter in exporters {
            outside.import_with("x", &of(exporter), PATIENCE).unwrap();
        }
    }
    // Two of one name are no help; the process tells them apart.
    let _other = exporter(&name, "left");
    let by_name = outside.import_with("x", &of(Exporter::named("left")), PATIENCE);
    assert_eq!(candidates(by_name).len(), 2);
    let mut third = Child::new();
    let answer = third.ask(&format!("import {name} x exporter=right"));
    assert_eq!(answer, "imported 4096 ReadWrite");
}

#[test]
fn an_exporter_exports_under_a_name_once() {
    let (domain, name) = domain("twice");
    let (_memory, first) = export(&domain, 1, Reach::ReadWrite);
    let memory = ExportMemory::new(4096).unwrap();
    let options = ExportOptions::new(Reach::ReadWrite);
    let again = domain.export(&memory, "x", &options, PATIENCE);
    assert!(
        matches!(again, Err(ExportError::Offer(OfferError::NameTaken))),
        "{again:?}"
    );
    // Another exporter's is its own, and each ends for itself.
    let mut other = exporter(&name, "other");
    assert_eq!(candidates(domain.import("x", PATIENCE)).len(), 2);
    drop(first);
    let import = domain.import("x", PATIENCE).unwrap();
    import.store_release(0, 9).unwrap();
    assert_eq!(other.ask("load own 0"), "9");
    let _again = domain.export(&memory, "x", &options, PATIENCE).unwrap();
    assert_eq!(candidates(domain.import("x", PATIENCE)).len(), 2);
}

#[test]
fn exports_that_do_not_admit_the_importer_do_not_make_it_ambiguous() {
    let (domain, name) = domain("admits");
    let memory = ExportMemory::new(4096).unwrap();
    let closed = ExportOptions::new(Reach::Read).permit(Permissions::nobody());
    let _closed = domain.export(&memory, "x", &closed, PATIENCE).unwrap();
    let mut open = exporter(&name, "open");
    let import = Domain::builder(&name).import("x", PATIENCE).unwrap();
    import.store_release(0, 5).unwrap();
    assert_eq!(open.ask("load own 0"), "5");
    // It is told nothing but that it is not admitted.
    let this = Exporter::process(std::process::id());
    let refused = Domain::builder(&name).import_with("x", &of(this), PATIENCE);
    assert!(
        matches!(
            refused,
            Err(ImportError::Connect(OfferConnectError::NotPermitted { .. }))
        ),
        "{refused:?}"
    );
}

#[test]
fn an_import_waits_for_the_exporter_that_it_means() {
    let name = unique("means");
    let _left = exporter(&name, "left");
    let outside = Domain::builder(&name);
    let meant = of(Exporter::named("right"));
    let mut pending = outside.begin_import("x", &meant).unwrap();
    // Long enough for a host that is busy.
    let absent = pending.wait(Duration::from_secs(2));
    let Err(ImportError::Connect(OfferConnectError::NotOffered { exporter: who, .. })) = absent
    else {
        panic!("{absent:?}");
    };
    assert_eq!(who, Some(Exporter::named("right")));
    let mut right = exporter(&name, "right");
    let import = pending.wait(PATIENCE).unwrap();
    import.store_release(0, 3).unwrap();
    assert_eq!(right.ask("load own 0"), "3");
}

#[test]
fn the_exports_of_one_name_outlive_the_host() {
    let name = unique("exporters-takeover");
    let mut host = Child::new();
    assert_eq!(host.ask(&format!("join {name}")), "done");
    let mut left = exporter(&name, "left");
    let mut right = exporter(&name, "right");
    host.kill();
    let outside = Domain::builder(&name);
    until("the new host knows both", || {
        let imported = outside.import("x", Deadline::after(Duration::from_millis(500)));
        matches!(
            imported,
            Err(ImportError::Connect(OfferConnectError::Ambiguous { .. }))
        )
    });
    let import = outside.import_with("x", &of(Exporter::named("right")), PATIENCE);
    import.unwrap().store_release(0, 4).unwrap();
    assert_eq!(right.ask("load own 0"), "4");
    // Of a dead one and a live one the live one is meant, also before the host knows of the death.
    right.kill();
    let import = outside.import("x", PATIENCE).unwrap();
    import.store_release(0, 5).unwrap();
    assert_eq!(left.ask("load own 0"), "5");
}

#[test]
fn in_a_private_domain_there_is_one_exporter() {
    let domain = Domain::private().unwrap();
    let (memory, _export) = export(&domain, 1, Reach::ReadWrite);
    let this = of(Exporter::process(std::process::id()));
    let import = domain.import_with("x", &this, PATIENCE).unwrap();
    import.store_release(0, 1).unwrap();
    assert_eq!(memory.load_acquire(0).unwrap(), 1);
    let other = of(Exporter::named("somebody else"));
    let soon = Deadline::after(Duration::from_millis(20));
    for by in [Deadline::NOW, soon] {
        let absent = domain.import_with("x", &other, by);
        assert!(
            matches!(
                absent,
                Err(ImportError::Connect(OfferConnectError::NotOffered { .. }))
            ),
            "{absent:?}"
        );
    }
}

#[test]
fn an_exporter_that_no_member_can_be() {
    let (domain, _) = domain("no-member");
    let _exported = export(&domain, 1, Reach::ReadWrite);
    for nobody in [
        Exporter::named(""),
        Exporter::named(&"x".repeat(64)),
        Exporter::named("a\0b"),
        Exporter::space(0),
        Exporter::process(0),
    ] {
        let refused = domain.begin_import("x", &of(nobody.clone()));
        let Err(ImportError::Connect(OfferConnectError::NoSuchExporter { exporter })) = refused
        else {
            panic!("{refused:?}");
        };
        assert_eq!(exporter, nobody);
    }
}
