//! A member whose mapping stays open: it reaches everything, and the others are guarded
//! from each other as before.

use crate::child::{Child, unique};
use portolan::{Domain, JoinError, Protection};

const SIZES: [usize; 4] = [4096, 1 << 20, 2 << 20, 5 << 20];

/// A member with an always open mapping, and a port.
fn service(domain: &str) -> Child {
    let mut service = Child::new();
    service.ask(&format!("join {domain} open"));
    service.ask("bind service");
    service
}

fn guarded(domain: &str) -> Child {
    let mut member = Child::joined(domain);
    member.ask("bind member");
    member.ask("connect service");
    member
}

#[test]
fn it_reaches_what_others_own_and_what_it_has_sent() {
    for size in SIZES {
        let domain = unique("service");
        let mut service = service(&domain);
        let mut member = guarded(&domain);
        service.ask("connect member");
        // Owned by another, on its way, and its own.
        let address = member.number(&format!("allocate {size} 7"));
        assert_eq!(service.number(&format!("peek {address}")), 7);
        member.ask("send 100");
        assert_eq!(service.number(&format!("peek {address}")), 7);
        service.ask("receive later");
        assert_eq!(service.ask("holds 7 100"), "true");
        // And after it has sent it on.
        service.ask("fill 8");
        service.ask("forward");
        member.ask("receive later");
        assert_eq!(member.ask("holds 8 100"), "true");
        service.ask(&format!("poke {address}"));
        assert_eq!(service.number(&format!("peek {address}")), 255);
        assert_eq!(member.number(&format!("peek {address}")), 255);
    }
}

#[test]
fn nothing_is_closed_or_opened_as_messages_come_and_go() {
    let domain = unique("resident");
    let mut service = service(&domain);
    let mut member = guarded(&domain);
    service.ask("connect member");
    for size in SIZES {
        member.ask(&format!("allocate {size} 7"));
        member.ask("send 0");
        service.ask("receive later");
        // The first time it maps what it has never touched, as any process does.
        service.ask("faults");
        for _ in 0..3 {
            service.ask("forward");
            member.ask("receive later");
            assert_eq!(member.ask("open"), "false");
            member.ask("forward");
            service.ask("receive later");
            assert_eq!(service.ask("open"), "true");
            assert_eq!(service.number("faults"), 0, "{size}");
        }
        service.ask("free");
    }
}

#[test]
fn the_others_are_guarded_as_before() {
    for (size, signal) in [(4096, libc::SIGBUS), (2 << 20, libc::SIGSEGV)] {
        let domain = unique("others");
        let mut service = service(&domain);
        let mut sender = guarded(&domain);
        let mut third = Child::joined(&domain);
        let address = sender.number(&format!("allocate {size} 7"));
        sender.ask("send 0");
        service.ask("receive later");
        assert_eq!(service.ask("holds 7 0"), "true");
        for child in [&mut sender, &mut third] {
            let end = child.dies_of(&format!("peek {address}"));
            end.expect(signal, &["stray read of ", "is owned by "]);
        }
        // What it allocates itself is closed to them, too.
        let address = service.number(&format!("allocate {size} 7"));
        let mut late = Child::joined(&domain);
        let end = late.dies_of(&format!("peek {address}"));
        end.expect(signal, &["stray read of ", "is owned by "]);
    }
}

#[test]
fn a_guarded_membership_stays_guarded() -> Result<(), JoinError> {
    let name = unique("again");
    let builder = Domain::builder(&name)
        .size(256 << 20)
        .limit(64 << 20)
        .protection(Protection::Guarded);
    let domain = builder.clone().join()?;
    assert!(!domain.is_always_open());
    let again = builder.clone().always_open().join();
    assert!(matches!(again, Err(JoinError::GuardedAlready)), "{again:?}");
    domain.leave().expect("nothing is left of it");
    let domain = builder.clone().always_open().join()?;
    assert!(domain.is_always_open());
    assert_eq!(domain.protection(), Protection::Guarded);
    // Asking for nothing in particular gives what there is.
    assert!(builder.join()?.is_always_open());
    Ok(())
}
