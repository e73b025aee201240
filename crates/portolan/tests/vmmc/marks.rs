//! Exporter and importer are killed at every marked step of what they do for each other.

use crate::child::Child;
use crate::domain;
use portolan::Permissions;
use portolan::vmmc::{ExportMemory, ExportOptions, Reach};
use portolan_testkit::{PATIENCE, unique, until};

fn dies(child: &mut Child, order: &str) {
    child.tell(order);
    until("it has died", || child.ended());
}

/// A member of a domain that another process hosts, about to die at `mark`.
fn member(domain: &str, mark: &str) -> Child {
    let mut member = Child::new();
    assert_eq!(member.ask(&format!("join {domain}")), "done");
    assert_eq!(member.ask(&format!("die-at {mark}")), "done");
    member
}

/// What an import of another exporter's is like: as if nothing had happened.
fn goes_on(domain: &str) {
    let mut other = Child::new();
    assert_eq!(other.ask(&format!("join {domain}")), "done");
    let end = std::time::Instant::now() + PATIENCE;
    // The host hears of the death, and only then is the name free.
    while other.ask("export x 4") != "done" {
        assert!(std::time::Instant::now() < end, "the name is not free");
    }
    let mut importer = Child::importer(domain);
    assert_eq!(importer.ask("store 8 9"), "done");
    assert_eq!(other.ask("load own 8"), "9");
}

#[test]
fn an_exporter_dies_while_it_begins() {
    for mark in ["export.shared", "export.offered"] {
        let name = unique("begins");
        let (_host, name) = (Child::exporter(&name, 1), name);
        // The host's own export has the name; so another one.
        let mut exporter = member(&name, mark);
        dies(&mut exporter, "export y 4");
        let mut other = Child::new();
        assert_eq!(other.ask(&format!("join {name}")), "done");
        until("the name is free", || other.ask("export y 4") == "done");
    }
}

#[test]
fn an_exporter_dies_while_it_shows_its_memory() {
    for mark in ["export.granting", "export.granted"] {
        let name = unique("shows");
        let mut host = Child::new();
        assert_eq!(host.ask(&format!("join {name}")), "done");
        let mut exporter = member(&name, mark);
        assert_eq!(exporter.ask("export x 4"), "done");
        let mut importer = Child::new();
        importer.tell(&format!("import {name} x"));
        until("it has died", || exporter.ended());
        goes_on(&name);
        // It has imported what was granted by the dead one, or what came after.
        assert!(importer.answer().starts_with("imported "));
    }
}

#[test]
fn an_exporter_dies_while_it_ends_an_export() {
    for mark in [
        "unexport.withdrawn",
        "unexport.closing",
        "unexport.ordered",
        "unexport.private",
        "unexport.closed",
    ] {
        let name = unique("ends");
        let mut host = Child::new();
        assert_eq!(host.ask(&format!("join {name}")), "done");
        let mut exporter = member(&name, mark);
        assert_eq!(exporter.ask("export x 64"), "done");
        let mut importer = Child::importer(&name);
        assert_eq!(importer.ask("storm"), "done");
        importer.goes_round();
        dies(&mut exporter, "unexport");
        let why = importer.ask("stormed");
        let known = ["Revoked", "ExporterDied"];
        assert!(known.contains(&why.as_str()), "{mark}: {why}");
        // An end that was begun stays one.
        let lasting = if mark == "unexport.withdrawn" {
            "Err(ExporterDied)"
        } else {
            "Err(Revoked)"
        };
        assert_eq!(importer.ask("check"), lasting, "{mark}");
        assert!(importer.ask("write 0 1 1").starts_with("error"));
        goes_on(&name);
    }
}

#[test]
fn an_importer_dies_at_every_step() {
    for (mark, order) in [
        ("import.accepted", None),
        ("import.asked", None),
        ("import.answered", None),
        ("import.mapped", None),
        ("update.copied", Some("write 100 5000 7")),
        ("update.copied_later", Some("later 100 5000 7")),
    ] {
        let (domain, name) = domain("importer");
        let memory = ExportMemory::new(3 * 4096).unwrap();
        // With room for one, so that one which is not forgotten shows.
        let options = ExportOptions::new(Reach::ReadWrite)
            .permit(Permissions::anyone())
            .importers(1);
        let export = domain.export(&memory, "x", &options, PATIENCE).unwrap();
        let mut importer = Child::new();
        assert_eq!(importer.ask(&format!("die-at {mark}")), "done");
        let import = format!("import {name} x");
        match order {
            None => dies(&mut importer, &import),
            Some(order) => {
                assert!(importer.ask(&import).starts_with("imported "));
                dies(&mut importer, order);
                let mut bytes = [0; 5002];
                memory.read(99, &mut bytes).unwrap();
                assert_eq!((bytes[0], bytes[5001]), (0, 0), "{mark}");
                assert_eq!(bytes[1..5001], [7; 5000], "{mark}");
            }
        }
        let mut next = None;
        until("there is room for another", || {
            next = domain.import("x", PATIENCE).ok();
            next.is_some()
        });
        assert_eq!(export.importers(), 1);
        next.unwrap().write(0, b"goes on").unwrap();
        export.unexport().unwrap();
    }
}
