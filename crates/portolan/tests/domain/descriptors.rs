//! Processes that close all their descriptors, or run out of them.

use crate::child::{Child, unique, until};

#[test]
fn a_member_that_closes_everything_hurts_nobody() {
    let name = unique("closes");
    let mut host = Child::joined(&name);
    let mut closer = Child::joined(&name);
    let mut third = Child::joined(&name);
    assert_eq!(closer.ask("allocate 4096"), "done");
    assert_eq!(closer.ask("bind inbox"), "done");
    assert_eq!(closer.ask("close all"), "0");
    assert_eq!(closer.ask("check"), "Err(Disconnected)");
    // Its memory is left alone, and what needs no descriptor goes on.
    assert_eq!(third.ask("connect inbox"), "done");
    assert_eq!(third.ask("send 100"), "done");
    assert_eq!(closer.ask("receive"), "100 bytes");
    // It does not take a role that it could not fill.
    host.kill();
    until("the third hosts", || third.is_host());
    assert_eq!(Child::joined(&name).space(), 1);
    assert!(closer.ask("leave").contains("Disconnected"));
    closer.kill();
    until("its space is free", || {
        let mut child = Child::joined(&name);
        let space = child.space();
        child.ask("leave");
        space == 2 || space == 1
    });
}

#[test]
fn a_host_that_closes_everything_is_succeeded() {
    let name = unique("host-closes");
    let mut host = Child::joined(&name);
    let mut second = Child::joined(&name);
    let mut third = Child::joined(&name);
    assert_eq!(host.ask("close all"), "0");
    let mut newcomer = Child::joined(&name);
    assert_eq!(newcomer.space(), 4, "the old host is a member still");
    assert_ne!(second.is_host(), third.is_host());
    assert!(!host.is_host());
    assert_eq!(host.ask("space"), "1");
    host.kill();
    until("its space is free", || {
        let mut child = Child::joined(&name);
        let space = child.space();
        child.ask("leave");
        space == 1
    });
}

#[test]
fn a_lonely_host_that_closes_everything_gives_the_name_up() {
    let name = unique("lonely");
    let mut host = Child::joined(&name);
    assert_eq!(host.ask("close all"), "0");
    // Another domain of the name: nobody can reach the old one any more.
    let mut other = Child::joined(&name);
    assert_eq!(other.space(), 1);
    assert_eq!(other.ask("allocate 4096"), "done");
    // Without the region's descriptor there is no more memory to be had, and no harm done.
    assert!(host.ask("allocate 4096").starts_with("error"));
}

#[test]
fn a_newcomer_without_descriptors_says_so() {
    let name = unique("poor");
    let _host = Child::joined(&name);
    for room in 0..4 {
        let mut poor = Child::new();
        poor.ask(&format!("limit {room}"));
        let answer = poor.ask(&format!("join {name}"));
        assert!(
            answer.starts_with("Descriptors"),
            "room for {room}: {answer}"
        );
    }
    let mut second = Child::joined(&name);
    assert!(second.space() >= 2);
}

#[test]
fn a_creator_without_descriptors_says_so() {
    let name = unique("poor-creator");
    for room in 0..4 {
        let mut poor = Child::new();
        poor.ask(&format!("limit {room}"));
        let answer = poor.ask(&format!("join {name}"));
        assert!(
            answer.starts_with("Descriptors"),
            "room for {room}: {answer}"
        );
    }
    assert_eq!(Child::joined(&name).space(), 1);
}

#[test]
fn a_host_without_descriptors_says_so_and_goes_on() {
    let name = unique("poor-host");
    for room in 0..2 {
        let name = format!("{name}-{room}");
        let mut host = Child::joined(&name);
        let mut second = Child::joined(&name);
        host.ask(&format!("limit {room}"));
        // Nor does the other member, who lets newcomers in when a host is slow, have any.
        second.ask(&format!("limit {room}"));
        for _ in 0..3 {
            let answer = Child::new().ask(&format!("join {name}"));
            assert!(
                answer.starts_with("HostDescriptors"),
                "room for {room}: {answer}"
            );
        }
        // With a member gone there is room for another.
        assert_eq!(second.ask("leave"), "Ok(())");
        let answer = Child::new().ask(&format!("join {name}"));
        assert!(answer.starts_with("space "), "{answer}");
    }
}
