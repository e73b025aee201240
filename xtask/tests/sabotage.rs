//! With one rule of the recovery switched off, the auditor reports what that rule would
//! have returned; with all of them on, the same death leaves nothing to report.

use std::process::Command;

/// What was found after a staged death, with its rule on or off.
fn stage(scene: &str, off: bool) -> Vec<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(["stage", scene]);
    if off {
        command.arg("--off");
    }
    let run = command.output().unwrap();
    let said = String::from_utf8_lossy(&run.stderr);
    let text = String::from_utf8_lossy(&run.stdout);
    let found: Vec<String> = text.lines().map(str::to_owned).collect();
    let code = i32::from(!found.is_empty());
    assert_eq!(run.status.code(), Some(code), "{scene}: {found:?} {said}");
    found
}

/// The death, with and without the rule; a finding must speak of `word`.
fn is_noticed(scene: &str, word: &str) {
    let found = stage(scene, true);
    assert!(
        found.iter().any(|f| f.contains(word)),
        "{scene}: no word of {word:?} although the rule was off: {found:?}"
    );
    let found = stage(scene, false);
    assert!(found.is_empty(), "{scene}, with all rules: {found:?}");
}

#[test]
fn extents_of_the_dead() {
    is_noticed("extents", "leaked");
}

#[test]
fn receive_rights_that_were_being_sent() {
    is_noticed("moving", "moves to");
}

#[test]
fn claims_of_the_dead() {
    is_noticed("claims", "Claimed");
}

#[test]
fn ports_of_the_dead() {
    is_noticed("ports", "is Open, of space");
}

#[test]
fn ports_that_hold_one_another() {
    is_noticed("cycles", "into a cycle");
}

#[test]
fn answers_that_the_dead_owed() {
    is_noticed("rights", "answers");
}

#[test]
fn chunks_of_the_dead() {
    is_noticed("chunks", "is for ever Taking");
}

#[test]
fn memory_that_the_dead_were_giving_to_the_kernel() {
    is_noticed("holes", "bytes of memory, and the file has");
}

#[test]
fn watches_of_the_dead() {
    is_noticed("waits", "watch");
}

#[test]
fn channels_that_the_dead_wrote_to() {
    is_noticed("channels", "writes to the channel");
}

#[test]
fn channels_that_the_dead_read() {
    is_noticed("channels-reader", "reads the channel");
}

#[test]
fn units_that_the_dead_had_begun_where_many_write() {
    is_noticed("channels-caller", "nobody writes");
}

#[test]
fn signal_handlers_of_the_dead() {
    is_noticed("signals", "lock on signal ranges");
}

#[test]
fn wakes_that_the_dead_owed() {
    is_noticed("wakes", "hung");
}

#[test]
fn wakes_that_the_dead_owed_to_a_wait_set() {
    is_noticed("wakes-set", "hung");
}

#[test]
fn the_last_sender_was_the_dead_one() {
    is_noticed("wakes-senders", "was not told");
}
