//! Domains of different users exchange messages.

use crate::child::Child;
use crate::numbered::next;
use portolan::channel::ChannelOptions;
use portolan::{Deadline, Domain, OfferOptions, Permissions, PortOptions};
use portolan_testkit::{pattern, unique};

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
    assert_eq!(offered.clients(), 1);
    assert!(Domain::builder(&name).of_user(GUEST).join().is_err());
}

#[test]
fn another_user_follows_a_channel_if_it_is_permitted() {
    if portolan_sys::process::user() != 0 {
        eprintln!("skipped: only root can run processes of two users");
        return;
    }
    let name = unique("users");
    let domain = Domain::join(&name).unwrap();
    let channel = domain.make_channel(&ChannelOptions::unnamed()).unwrap();
    let permissions = Permissions::nobody().users([GUEST]);
    let offered = channel
        .offer("news", &permissions, OfferOptions::default())
        .unwrap();
    let mut writer = channel.bind_writer().unwrap();
    let mut stranger = Child::of_user(STRANGER);
    let refused = stranger.ask(&format!("follow {} {name} news 0", unique("stranger")));
    assert!(refused.contains("NotPermitted"), "{refused}");
    let mut guest = Child::of_user(GUEST);
    let answer = guest.ask(&format!("follow {} {name} news 0", unique("guest")));
    assert_eq!(answer, "follows");
    let mut bytes = [0; 1000];
    pattern(&mut bytes, 3);
    writer.write(&bytes, Deadline::NOW).unwrap();
    assert_eq!(guest.ask("hear 3 1000"), "heard");
    assert_eq!(offered.clients(), 1);
    assert!(offered.take_violations().is_empty());
}
