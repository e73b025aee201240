//! Domains of different users.

use crate::cargo::next;
use crate::child::Child;
use crate::orders::unique;
use portolan::{Domain, OfferOptions, Permissions, PortOptions};

/// Users that no other test is.
const GUEST: u32 = 54_331;
const STRANGER: u32 = 54_332;

#[test]
fn another_user_sends_if_it_is_permitted() {
    if portolan_sys::process::user() != 0 {
        eprintln!("skipped: only root can run processes of two users");
        return;
    }
    let name = unique("users");
    let domain = Domain::join(&name).unwrap();
    let mut port = domain.bind(PortOptions::unnamed()).unwrap();
    let permissions = Permissions::nobody().users([GUEST]);
    let offered = port
        .offer("frames", &permissions, OfferOptions::default())
        .unwrap();
    let mut stranger = Child::of_user(STRANGER);
    let refused = stranger.ask(&format!("connect {} {name} frames 0", unique("stranger")));
    assert!(refused.contains("NotPermitted"), "{refused}");
    let mut guest = Child::of_user(GUEST);
    let answer = guest.ask(&format!("connect {} {name} frames 0", unique("guest")));
    assert_eq!(answer, "connected");
    assert_eq!(guest.ask("send 1 1000000,5"), "sent");
    assert_eq!(next(&mut port), (1, 1_000_005));
    // It may send; it may not join.
    assert_eq!(offered.visitors(), 1);
    assert!(Domain::builder(&name).of_user(GUEST).join().is_err());
}
