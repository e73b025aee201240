//! Tests that clients find an offer, from outside and inside, and wait for one that is missing yet.

use super::{Child, OfferKind, answered, child, connect, from_outside, joined, long, meets, said};
use crate::{Deadline, Domain, OfferConnectError};
use portolan_testkit::{unique, until};
use std::time::{Duration, Instant};

#[test]
fn a_stranger_is_handed_to_a_member_and_to_the_host() {
    let name = unique("accepted");
    let mut host = joined(&name);
    let mut member = joined(&name);
    assert_eq!(host.ask("offer hosts anyone=1"), "offered");
    assert_eq!(member.ask("offer members anyone=1"), "offered");
    for (offerer, name_of) in [(&host, "hosts"), (&member, "members")] {
        let accepted = from_outside(&name, name_of, long()).unwrap();
        assert_eq!(said(&accepted), meets(offerer));
    }
    // A member asks in the same way, also for what it offers itself.
    for offerer in [&host, &member] {
        let answer = format!("process {} of", offerer.pid());
        let wanted = if offerer.pid() == host.pid() {
            "hosts"
        } else {
            "members"
        };
        let said = connect_by(&name, wanted);
        assert!(said.starts_with(&answer), "{said}");
    }
    assert!(
        member
            .ask("connect-own hosts")
            .starts_with(&format!("process {} of", host.pid()))
    );
    assert!(
        member
            .ask("connect-own members")
            .starts_with(&format!("process {} of", member.pid()))
    );
    assert!(
        host.ask("connect-own hosts")
            .starts_with(&format!("process {} of", host.pid()))
    );
}

fn connect_by(domain: &str, name: &str) -> String {
    child().ask(&format!("connect {domain} {name}"))
}

#[test]
fn a_connection_waits_for_its_offer() {
    let name = unique("later");
    let mut host = joined(&name);
    let mut member = joined(&name);
    for (offerer, wanted) in [(&mut host, "first"), (&mut member, "second")] {
        let mut client = child();
        client.tell(&format!("connect {name} {wanted}"));
        // Another name is no help.
        offerer.ask(&format!("offer not-{wanted} anyone=1"));
        assert_eq!(offerer.ask(&format!("offer {wanted} anyone=1")), "offered");
        let expected = format!("process {} of", offerer.pid());
        assert!(client.answer().starts_with(&expected));
    }
}

#[test]
fn a_connection_waits_for_its_domain() {
    let name = unique("no-domain");
    let absent = from_outside(&name, "x", Deadline::NOW);
    assert!(
        matches!(absent, Err(OfferConnectError::NotRunning { .. })),
        "{absent:?}"
    );
    let mut client = child();
    client.tell(&format!("connect {name} x"));
    let mut host = joined(&name);
    assert_eq!(host.ask("offer x anyone=1"), "offered");
    assert!(client.answer().starts_with("process"));
}

#[test]
fn what_is_not_offered_is_said_at_the_deadline() {
    let name = unique("absent");
    let _host = joined(&name);
    let absent = answered(&name, "x");
    assert!(
        matches!(&absent, Err(OfferConnectError::NotOffered { name, .. }) if name == "x"),
        "{absent:?}"
    );
    // Asked again and again until then.
    let began = Instant::now();
    until("the host has had its turn", || {
        let by = Deadline::after(Duration::from_millis(20));
        matches!(
            from_outside(&name, "x", by),
            Err(OfferConnectError::NotOffered { .. })
        )
    });
    assert!(began.elapsed() >= Duration::from_millis(20));
    let bad = from_outside(&name, &"x".repeat(64), Deadline::NOW);
    assert!(
        matches!(bad, Err(OfferConnectError::BadName { .. })),
        "{bad:?}"
    );
    let settings = Domain::builder("a/b");
    let bad = connect(&settings, OfferKind::Port, "x", None, Deadline::NOW);
    assert!(matches!(bad, Err(OfferConnectError::Domain(_))), "{bad:?}");
}

#[test]
fn a_name_is_one_offers_until_it_is_withdrawn() {
    let name = unique("taken");
    let mut host = joined(&name);
    let mut member = joined(&name);
    assert_eq!(member.ask("offer x anyone=1"), "offered");
    assert_eq!(host.ask("offer x anyone=1"), "NameTaken");
    assert_eq!(member.ask("offer x anyone=1"), "NameTaken");
    // Neither has taken anything away.
    assert_eq!(
        said(&from_outside(&name, "x", long()).unwrap()),
        meets(&member)
    );
    assert_eq!(member.ask("withdraw x"), "withdrawn");
    until("it is gone", || {
        let gone = answered(&name, "x");
        matches!(gone, Err(OfferConnectError::NotOffered { .. }))
    });
    assert_eq!(host.ask("offer x anyone=1"), "offered");
    assert_eq!(
        said(&from_outside(&name, "x", long()).unwrap()),
        meets(&host)
    );
    assert_eq!(host.ask("withdraw x"), "withdrawn");
    until("the host's is gone too", || {
        member.ask("offer x anyone=1") == "offered"
    });
}

#[test]
fn a_thousand_offers_are_found_and_withdrawn() {
    let name = unique("thousand");
    let mut host = joined(&name);
    let mut member = joined(&name);
    assert_eq!(member.ask("offer-many 1000"), "offered");
    for number in (0..1000).step_by(37) {
        let accepted = from_outside(&name, &format!("many-{number}"), long()).unwrap();
        assert_eq!(said(&accepted), meets(&member));
    }
    // Members announce them again to the next host.
    host.kill();
    let accepted = from_outside(&name, "many-999", long()).unwrap();
    assert_eq!(said(&accepted), meets(&member));
    let mut other = joined(&name);
    assert_eq!(other.ask("offer many-500 anyone=1"), "NameTaken");
    assert_eq!(member.ask("withdraw-all"), "withdrawn");
    until("all names are free", || {
        other.ask("offer-many 1000") == "offered" || {
            other.ask("withdraw-all");
            false
        }
    });
}

#[test]
fn a_token_is_asked_for() {
    let name = unique("token");
    let mut host = joined(&name);
    let mut member = joined(&name);
    host.ask("offer hosts anyone=1 token=7");
    member.ask("offer members anyone=1 token=7");
    let mut client = child();
    let mut told = |options: &str| client.ask(&format!("connect {name} {options}"));
    for wanted in ["hosts", "members"] {
        assert!(told(&format!("{wanted} token=7")).starts_with("process"));
        assert!(told(&format!("{wanted} token=8")).starts_with("WrongToken"));
        assert!(told(wanted).starts_with("WrongToken"));
    }
}

#[test]
fn a_process_is_permitted_by_its_id() {
    let name = unique("process");
    let mut member = joined(&name);
    let mut other = child();
    let (us, user) = (std::process::id(), portolan_sys::process::user());
    let order = format!("offer ours process={us}");
    assert_eq!(member.ask(&order), "offered");
    assert!(from_outside(&name, "ours", long()).is_ok());
    let refused = other.ask(&format!("connect {name} ours"));
    assert!(
        refused.starts_with("NotPermitted") && refused.contains(&format!("user: {user}")),
        "{refused}"
    );
    let answer = member.ask("offer none process=4194305");
    assert!(answer.contains("NoProcess"), "{answer}");
}

#[test]
fn an_offer_of_one_who_leaves_is_gone() {
    let name = unique("leaves");
    let mut host = joined(&name);
    let mut member: Child = joined(&name);
    assert_eq!(member.ask("offer x anyone=1"), "offered");
    assert_eq!(member.ask("leave"), "Ok(())");
    assert_eq!(host.ask("offer x anyone=1"), "offered");
}

#[test]
fn an_offer_of_one_who_has_lost_its_host_is_gone() {
    let name = unique("lost");
    let mut host = joined(&name);
    let mut member = joined(&name);
    assert_eq!(member.ask("offer x anyone=1"), "offered");
    assert_eq!(member.ask("close all"), "0");
    // It finds out when it is wanted. Until then it sleeps on what it has closed.
    until("its offer is gone", || {
        let by = Deadline::after(Duration::from_millis(100));
        let gone = from_outside(&name, "x", by);
        matches!(gone, Err(OfferConnectError::NotOffered { .. }))
    });
    assert_eq!(host.ask("offer x anyone=1"), "offered");
    // No host could be told.
    let answer = member.ask("offer y anyone=1");
    assert!(answer.starts_with("Disowned"), "{answer}");
}
