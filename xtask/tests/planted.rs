//! With a fault planted in what workers of a torture run do, the run says so within a minute: the
//! checkers of calls, streams, frame buffers, upcalls, samples, exports, connections between domains,
//! and of workers that are held up really check.

use serde_json::Value;
use std::process::Command;

/// A fault is planted; the finding must speak of `word`.
fn is_noticed(fault: &str, word: &str) {
    is_counted(&["--plant", fault], "double_owned", word);
}

/// How long a fault may go unnoticed. Where processors are busy, little happens in a minute: a longer
/// run follows.
const SECONDS: [&str; 2] = ["60", "180"];

/// A run counts something wrong, and speaks of `word`.
fn is_counted(with: &[&str], count: &str, word: &str) {
    for seconds in SECONDS {
        let run = Command::new(env!("CARGO_BIN_EXE_xtask"))
            .args(["torture", "--seconds", seconds, "--until-found", "--json"])
            .args(["--seed", "7"])
            .args(with)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&run.stderr);
        let report: Value =
            serde_json::from_slice(&run.stdout).unwrap_or_else(|e| panic!("{e}: {said}"));
        if run.status.success() && Some(&seconds) != SECONDS.last() {
            continue;
        }
        assert!(report[count].as_u64() > Some(0), "{with:?}: {said}");
        assert!(said.contains(word), "{with:?}: no word of {word:?}: {said}");
        assert!(!run.status.success());
        return;
    }
}

#[test]
fn a_call_that_runs_again() {
    is_noticed("call-again", "runs again");
}

#[test]
fn a_call_that_is_answered_and_did_not_run() {
    is_noticed("call-not", "ran 0 times");
}

#[test]
fn an_answer_to_something_else() {
    is_noticed("call-answer", "a call ended as Ok(false)");
}

#[test]
fn a_byte_of_a_stream() {
    is_noticed("stream", "a stream: byte");
}

#[test]
fn a_stream_without_its_end() {
    is_noticed("stream-end", "ends before its length");
}

#[test]
fn a_frame_that_comes_back() {
    is_noticed("frame", "a frame buffer: at");
}

#[test]
fn a_signal_that_interrupts_nobody() {
    is_noticed("upcall", "and it was interrupted for");
}

#[test]
fn a_record_that_is_not_what_its_writer_wrote() {
    is_noticed("update", "is torn");
}

#[test]
fn memory_that_changes_after_its_export() {
    is_noticed("unexport", "has changed since its end");
}

#[test]
fn a_note_of_what_was_not_written() {
    is_noticed("note", "a note of record");
}

#[test]
fn a_byte_beside_ordinary_memory() {
    is_noticed("beside", "somebody wrote behind the strip");
}

#[test]
fn a_message_that_was_lost_between_domains() {
    is_noticed("bridge-lost", "of a connection came after");
}

#[test]
fn a_message_that_was_lost_when_its_sender_left() {
    is_noticed("bridge-end", "came before it left");
}

#[test]
fn news_of_another_domain_that_nobody_wrote() {
    is_noticed("bridge-news", "bytes of news are torn");
}

#[test]
fn memory_that_a_client_does_not_give_back() {
    is_noticed("bridge-hold", "all are over, and");
}

#[test]
fn a_sample_that_its_subscriber_does_not_give_back() {
    let plant = ["--plant", "sample"];
    is_counted(&plant, "unreleased_rights", "live send rights by its row");
}

#[test]
fn a_worker_that_is_held_up_beside_one_that_is_stopped() {
    is_counted(
        &["--plant", "stall", "--stop"],
        "hung_waiters",
        "gets nowhere",
    );
}

#[test]
fn a_rule_that_is_off_in_a_guarded_domain() {
    let off = ["--sabotage", "extents", "--guarded"];
    is_counted(&off, "leaked_extents", "extent");
}
