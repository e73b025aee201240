//! A pending reply is armed unless its own answer is there.

use super::*;
use crate::{Domain, PortOptions};
use portolan_testkit::PATIENCE;

/// The host may answer for a server that had answered just before it died.
#[test]
fn an_answer_to_an_older_request_does_not_keep_it_from_being_armed() {
    let domain = Domain::private().unwrap();
    let mut port = domain.bind(PortOptions::unnamed().synchronous()).unwrap();
    let right = port.make_send();
    let ask = || right.begin_request(Message::default(), WhenFull::Fail);
    let mut older = ask().unwrap();
    let tag = older.awaits().unwrap().1;
    let request = port.get_request(Access::Later, PATIENCE).unwrap();
    request.reply(Message::default()).unwrap();
    let _ = older.wait(Access::Later, PATIENCE).unwrap();

    let mut pending = ask().unwrap();
    let (replies, newer, _) = pending.awaits().unwrap();
    assert_ne!(tag, newer);
    let (member, to) = (replies.at().member.clone(), replies.at().port);
    answer_for_dead(&member, to, tag);
    let (word, seen) = pending.arm().expect("there is no answer to this request");
    assert_eq!(word.load(Ordering::SeqCst), seen);
    let request = port.get_request(Access::Later, PATIENCE).unwrap();
    request.reply(Message::default()).unwrap();
    assert_ne!(
        word.load(Ordering::SeqCst),
        seen,
        "the answer does not ring"
    );

    pending.disarm();
    assert!(pending.arm().is_none());
    let _ = pending.wait(Access::Later, Deadline::NOW).unwrap();
}
