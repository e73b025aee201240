//! Tests that each participant of a hand-off may be killed, at a marked step or while others wait.

use super::{Child, answered, child, from_outside, joined, long, meets, said};
use crate::OfferConnectError;
use portolan_testkit::{unique, until};

#[test]
fn a_client_that_waits_gets_through_to_the_next_host() {
    let name = unique("next-host");
    let mut host = joined(&name);
    let mut second = joined(&name);
    let mut client = child();
    client.tell(&format!("connect {name} x"));
    let mut known = child();
    known.tell(&format!("connect {name} known"));
    std::thread::sleep(std::time::Duration::from_millis(50));
    host.kill();
    until("the second hosts", || second.ask("host?") == "true");
    let mut third = joined(&name);
    assert_eq!(third.ask("offer x anyone=1"), "offered");
    assert!(
        client
            .answer()
            .starts_with(&format!("process {} of", third.pid()))
    );
    assert_eq!(second.ask("offer known anyone=1"), "offered");
    assert!(
        known
            .answer()
            .starts_with(&format!("process {} of", second.pid()))
    );
}

#[test]
fn what_a_member_offers_outlives_the_host() {
    let name = unique("outlives");
    let mut host = joined(&name);
    let mut second = joined(&name);
    let mut third = joined(&name);
    second.ask("offer a anyone=1");
    third.ask("offer b anyone=1");
    host.kill();
    // One of them hosts now; each is asked through it.
    for (offerer, wanted) in [(&second, "a"), (&third, "b")] {
        let accepted = from_outside(&name, wanted, long()).unwrap();
        assert_eq!(said(&accepted), meets(offerer));
    }
    assert_eq!(second.ask("offer b anyone=1"), "NameTaken");
    assert_eq!(third.ask("withdraw b"), "withdrawn");
    until("the name is free", || {
        second.ask("offer b anyone=1") == "offered"
    });
}

#[test]
fn what_a_dead_member_offered_is_gone() {
    let name = unique("dead-member");
    let mut host = joined(&name);
    let mut member = joined(&name);
    member.ask("offer x anyone=1");
    let accepted = from_outside(&name, "x", long()).unwrap();
    assert_eq!(said(&accepted), meets(&member));
    member.kill();
    until("its offer is gone", || {
        let gone = answered(&name, "x");
        matches!(gone, Err(OfferConnectError::NotOffered { .. }))
    });
    // Who waits gets the next one.
    let mut client = child();
    client.tell(&format!("connect {name} x"));
    assert_eq!(host.ask("offer x anyone=1"), "offered");
    assert!(
        client
            .answer()
            .starts_with(&format!("process {} of", host.pid()))
    );
}

#[test]
fn nothing_is_left_of_a_client_that_is_killed() {
    let name = unique("dead-client");
    let mut host = joined(&name);
    let before = host.ask("descriptors");
    let mut clients: Vec<Child> = (0..5).map(|_| child()).collect();
    for client in &mut clients {
        client.tell(&format!("connect {name} x"));
    }
    let waiting = before.parse::<usize>().unwrap() + 5;
    until("all wait", || {
        host.ask("descriptors") == waiting.to_string()
    });
    for client in &mut clients {
        client.kill();
    }
    until("nothing is left", || host.ask("descriptors") == before);
    assert_eq!(host.ask("offer x anyone=1"), "offered");
    assert_eq!(host.ask("met"), "0");
}

#[test]
fn the_host_dies_at_every_step_of_a_hand_off() {
    for mark in [
        "connect.waits",
        "connect.handing",
        "connect.handed",
        "offer.entered",
    ] {
        let name = unique("host-steps");
        let mut host = joined(&name);
        let mut member = joined(&name);
        if mark != "connect.waits" && mark != "offer.entered" {
            member.ask("offer x anyone=1");
        }
        assert_eq!(host.ask(&format!("die at {mark}")), "done");
        let mut client = child();
        client.tell(&format!("connect {name} x"));
        if mark == "connect.waits" {
            until("the host has died of it", || host.ended());
        }
        // The offer is made, or was already.
        let answer = member.ask("offer x anyone=1");
        assert!(
            answer == "offered" || answer == "NameTaken",
            "{mark}: {answer}"
        );
        until(&format!("the host has died at {mark}"), || host.ended());
        let met = client.answer();
        assert!(
            met.starts_with(&format!("process {} of", member.pid())),
            "{mark}: {met}"
        );
    }
}

#[test]
fn the_offerer_dies_at_every_step_of_a_hand_off() {
    for mark in ["offer.announced", "connect.received", "connect.accepted"] {
        let name = unique("offerer-steps");
        let mut host = joined(&name);
        let mut member = joined(&name);
        if mark != "offer.announced" {
            member.ask("offer x anyone=1");
        }
        assert_eq!(member.ask(&format!("die at {mark}")), "done");
        let mut client = child();
        client.tell(&format!("connect {name} x"));
        if mark == "offer.announced" {
            member.tell("offer x anyone=1");
        }
        until(&format!("the member has died at {mark}"), || member.ended());
        until("the name is free", || {
            host.ask("offer x anyone=1") == "offered"
        });
        if mark == "connect.accepted" {
            // The connection was accepted and then ended; the caller knows to ask again.
            let again = child().ask(&format!("connect {name} x"));
            assert!(again.starts_with(&format!("process {} of", host.pid())));
        } else {
            let met = client.answer();
            assert!(
                met.starts_with(&format!("process {} of", host.pid())),
                "{mark}: {met}"
            );
        }
    }
}

#[test]
fn connections_get_through_while_hosts_die_one_after_the_other() {
    for round in 0..6_u64 {
        let name = unique("row-of-hosts");
        let mut members: Vec<Child> = (0..4).map(|_| joined(&name)).collect();
        for (number, member) in members.iter_mut().enumerate() {
            assert_eq!(member.ask(&format!("offer x{number} anyone=1")), "offered");
        }
        // Two hosts are killed while clients connect to the others, one of which waits.
        let mut clients: Vec<(usize, Child)> = (0..9).map(|n| (2 + n % 3, child())).collect();
        for (at, (wanted, client)) in clients.iter_mut().enumerate() {
            client.tell(&format!("connect {name} x{wanted}"));
            if at % 4 == 1 {
                std::thread::sleep(std::time::Duration::from_micros(round * 700));
                members[at / 5].kill_only();
            }
        }
        assert_eq!(members[3].ask("offer x4 anyone=1"), "offered");
        for (wanted, client) in &mut clients {
            let offerer = members[(*wanted).min(3)].pid();
            let met = client.answer();
            assert!(
                met.starts_with(&format!("process {offerer} of")),
                "x{wanted}: {met}"
            );
        }
    }
}
