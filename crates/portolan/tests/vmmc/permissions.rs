//! Who may import what.

use crate::child::Child;
use crate::domain;
use portolan::vmmc::{ExportMemory, ExportOptions, ImportError, ImportOptions, Reach};
use portolan::{AccessToken, Deadline, Domain, OfferConnectError, Permissions};
use portolan_testkit::PATIENCE;
use std::time::Duration;

fn connect_error(result: Result<portolan::vmmc::Import, ImportError>) -> OfferConnectError {
    match result {
        Err(ImportError::Connect(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_is_not_permitted_is_told_so() {
    let (domain, name) = domain("nobody");
    let memory = ExportMemory::new(4096).unwrap();
    let options = ExportOptions::new(Reach::Read).permit(Permissions::nobody());
    let _export = domain.export(&memory, "x", &options, PATIENCE).unwrap();
    let refused = connect_error(domain.import("x", PATIENCE));
    assert!(
        matches!(refused, OfferConnectError::NotPermitted { .. }),
        "{refused:?}"
    );
    let answer = Child::new().ask(&format!("import {name} x"));
    assert!(answer.contains("NotPermitted"), "{answer}");
}

#[test]
fn a_token_is_asked_for() {
    let (domain, name) = domain("token");
    let memory = ExportMemory::new(4096).unwrap();
    let token = AccessToken::random().unwrap();
    let permissions = Permissions::own_user().token(token);
    let options = ExportOptions::new(Reach::Read).permit(permissions);
    let _export = domain.export(&memory, "x", &options, PATIENCE).unwrap();
    let refused = connect_error(domain.import("x", PATIENCE));
    assert!(
        matches!(refused, OfferConnectError::WrongToken { shown: false, .. }),
        "{refused:?}"
    );
    let mut child = Child::new();
    let answer = child.ask(&format!("import {name} x token=1"));
    assert!(answer.contains("WrongToken"), "{answer}");
    let shown = u128::from_le_bytes(token.to_bytes());
    let answer = child.ask(&format!("import {name} x token={shown}"));
    assert_eq!(answer, "imported 4096 Read");
    let options = ImportOptions::default().token(token);
    assert!(domain.import_with("x", &options, PATIENCE).is_ok());
}

#[test]
fn what_never_appears_is_waited_for_until_the_deadline() {
    let (domain, name) = domain("never");
    // Long enough for a host that is busy to say that it is not offered.
    let deadlines = [|| Deadline::NOW, || Deadline::after(Duration::from_secs(2))];
    for deadline in deadlines {
        let error = connect_error(domain.import("x", deadline()));
        assert!(
            matches!(error, OfferConnectError::NotOffered { .. }),
            "{error:?}"
        );
        let error = connect_error(Domain::builder(&name).import("x", deadline()));
        assert!(
            matches!(error, OfferConnectError::NotOffered { .. }),
            "{error:?}"
        );
    }
    let nowhere = Domain::builder("no such domain").import("x", Deadline::NOW);
    let error = connect_error(nowhere);
    assert!(
        matches!(error, OfferConnectError::NotRunning { .. }),
        "{error:?}"
    );
    for name in ["", "x@node"] {
        let bad = connect_error(domain.import(name, Deadline::NOW));
        assert!(matches!(bad, OfferConnectError::BadName { .. }), "{bad:?}");
    }
}

#[test]
fn no_more_importers_than_there_may_be() {
    let (domain, _) = domain("most");
    let memory = ExportMemory::new(4096).unwrap();
    let options = ExportOptions::new(Reach::Read).importers(2);
    let _export = domain.export(&memory, "x", &options, PATIENCE).unwrap();
    let first = domain.import("x", PATIENCE).unwrap();
    let _second = domain.import("x", PATIENCE).unwrap();
    let full = domain.import("x", PATIENCE);
    assert!(matches!(full, Err(ImportError::Full { .. })), "{full:?}");
    drop(first);
    portolan_testkit::until("there is room", || domain.import("x", PATIENCE).is_ok());
}

#[test]
fn another_user_reads_what_it_may_and_a_third_does_not() {
    const PERMITTED: u32 = 12_345;
    if portolan_sys::process::user() != 0 {
        eprintln!("skipped: only root can be several users");
        return;
    }
    let (domain, name) = domain("users");
    let memory = ExportMemory::new(8192).unwrap();
    memory.write(4096, &[9, 8, 7]).unwrap();
    let permitted = Permissions::nobody().users([PERMITTED]);
    let options = ExportOptions::new(Reach::Read).permit(permitted);
    let export = domain.export(&memory, "x", &options, PATIENCE).unwrap();
    let mut theirs = Child::of_user(PERMITTED);
    assert_eq!(
        theirs.ask(&format!("import {name} x of=0")),
        "imported 8192 Read"
    );
    assert_eq!(theirs.ask("read 4096 4"), "[9, 8, 7, 0]");
    assert!(theirs.ask("write 0 1 1").contains("NotWritable"));
    let mut third = Child::of_user(PERMITTED + 1);
    let answer = third.ask(&format!("import {name} x of=0"));
    assert!(answer.contains("NotPermitted"), "{answer}");
    // An unknown user matches nothing, not even *anyone*.
    let anyone = ExportMemory::new(4096).unwrap();
    let options = ExportOptions::new(Reach::ReadWrite).permit(Permissions::anyone());
    let _anyone = domain.export(&anyone, "y", &options, PATIENCE).unwrap();
    assert_eq!(
        third.ask(&format!("import {name} y of=0")),
        "imported 4096 ReadWrite"
    );
    assert_eq!(third.ask("write 5 1 6"), "done");
    let answer = Child::of_user(65_534).ask(&format!("import {name} y of=0"));
    assert!(answer.contains("NotPermitted"), "{answer}");
    export.unexport().unwrap();
    assert!(theirs.ask("read 4096 4").contains("Revoked"));
}
