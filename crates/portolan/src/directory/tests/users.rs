//! Tests other users' processes, which only root can start. Without root they test nothing, and
//! print that.

use super::{child, child_of, from_outside, joined, long, said};
use portolan_testkit::{Child, apart, unique};
use std::os::unix::fs::PermissionsExt;

/// Users that no other test is.
const STRANGER: u32 = 54_331;
const FRIEND: u32 = 54_332;

/// Whether this process can be two users; says if it cannot.
fn is_root(test: &str) -> bool {
    let root = portolan_sys::process::user() == 0;
    if !root {
        eprintln!("{test} is skipped: only root can start processes of other users");
    }
    root
}

#[test]
fn a_user_who_may_not_join_may_connect() {
    if !is_root("a_user_who_may_not_join_may_connect") {
        return;
    }
    let name = unique("users");
    let mut host = joined(&name);
    let mut member = joined(&name);
    host.ask(&format!("offer hosts user={FRIEND}"));
    member.ask(&format!("offer members group={FRIEND}"));
    member.ask("offer all anyone=1");
    let mut friend = child_of(FRIEND);
    let mut stranger = child_of(STRANGER);
    for (offerer, wanted) in [(&host, "hosts"), (&member, "members")] {
        let expected = format!(
            "process {} of user 0 meets process {} of user {FRIEND}",
            offerer.pid(),
            friend.pid()
        );
        assert_eq!(
            friend.ask(&format!("connect {name} {wanted} of=0")),
            expected
        );
        let refused = stranger.ask(&format!("connect {name} {wanted} of=0"));
        assert!(
            refused.starts_with("NotPermitted") && refused.contains(&STRANGER.to_string()),
            "{refused}"
        );
    }
    assert!(
        stranger
            .ask(&format!("connect {name} all of=0"))
            .starts_with("process")
    );
    let joined = friend.ask(&format!("join {name} of=0"));
    assert!(joined.starts_with("NotPermitted"), "{joined}");
    // An offer that is made later judges those who have waited for it.
    friend.tell(&format!("connect {name} later of=0"));
    stranger.tell(&format!("connect {name} later of=0"));
    std::thread::sleep(std::time::Duration::from_millis(50));
    member.ask(&format!("offer later user={FRIEND}"));
    assert!(friend.answer().starts_with("process"));
    assert!(stranger.answer().starts_with("NotPermitted"));
}

#[test]
fn a_member_of_another_user_offers() {
    if !is_root("a_member_of_another_user_offers") {
        return;
    }
    let name = unique("offerer");
    let mut host = child();
    host.ask(&format!("join {name} allow={FRIEND}"));
    let mut friend = child_of(FRIEND);
    assert_eq!(friend.ask(&format!("join {name} of=0")), "space 2");
    assert_eq!(friend.ask(&format!("offer x user={STRANGER}")), "offered");
    let mut stranger = child_of(STRANGER);
    let expected = format!("process {} of user {FRIEND} meets", friend.pid());
    let said = stranger.ask(&format!("connect {name} x of=0"));
    assert!(said.starts_with(&expected), "{said}");
    // It hosts now, and its own user still is no other's.
    host.kill();
    let said = stranger.ask(&format!("connect {name} x of=0"));
    assert!(said.starts_with(&expected), "{said}");
    let refused = friend.ask("connect-own x");
    assert!(refused.starts_with("NotPermitted"), "{refused}");
}

#[test]
fn the_overflow_user_connects_to_nothing() {
    if !is_root("the_overflow_user_connects_to_nothing") {
        return;
    }
    let name = unique("overflow");
    let mut host = joined(&name);
    host.ask("offer all anyone=1");
    let refused = child_of(65_534).ask(&format!("connect {name} all of=0"));
    assert!(
        refused.starts_with("NotPermitted { kind: \"port\", name: \"all\", user: 65534"),
        "{refused}"
    );
    let answer = host.ask("offer nobody user=65534");
    assert!(answer.contains("OverflowId"), "{answer}");
}

#[test]
fn a_socket_in_a_directory_opens_for_an_offer() {
    if !is_root("a_socket_in_a_directory_opens_for_an_offer") {
        return;
    }
    let name = unique("path");
    let directory = std::env::temp_dir().join(&name);
    std::fs::create_dir(&directory).unwrap();
    let mode =
        |mode| std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(mode)).unwrap();
    mode(0o755);
    let path = directory.display().to_string();
    let mut host = child();
    assert_eq!(host.ask(&format!("join {name} path={path}")), "space 1");
    assert_eq!(host.ask("offer own user=0"), "offered");
    let mut friend = child_of(FRIEND);
    let request = format!("connect {name} x of=0 path={path}");
    let refused = friend.ask(&request);
    assert!(refused.starts_with("Forbidden"), "{refused}");
    assert_eq!(host.ask(&format!("offer x user={FRIEND}")), "offered");
    assert!(friend.ask(&request).starts_with("process"));
    // The directory still decides who gets there.
    mode(0o700);
    assert!(friend.ask(&request).starts_with("Forbidden"));
    assert_eq!(host.ask("leave"), "Ok(())");
    std::fs::remove_dir(&directory).unwrap();
}

#[test]
fn a_client_from_another_process_namespace() {
    let Some(apart) = apart() else { return };
    let name = unique("namespace");
    let mut host = Child::through(apart, "directory::tests::takes_orders");
    assert_eq!(host.ask(&format!("join {name}")), "space 1");
    assert_eq!(host.ask("offer x anyone=1"), "offered");
    let us = std::process::id();
    assert_eq!(
        host.ask(&format!("offer ours process={us}")),
        "NoProcess { pid: PID }".replace("PID", &us.to_string())
    );
    let said = said(&from_outside(&name, "x", long()).unwrap());
    let user = portolan_sys::process::user();
    assert!(
        said.ends_with(&format!("of user {user} meets process 0 of user {user}")),
        "{said}"
    );
    let refused = child().ask(&format!("join {name}"));
    assert!(refused.starts_with("OtherNamespace"), "{refused}");
}
