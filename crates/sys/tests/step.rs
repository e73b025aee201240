//! Instructions of another process's thread, one by one.

#![allow(missing_docs, reason = "a test")]

mod support;

use std::hint::black_box;
use std::io::{Read, Write};
use std::process::{ChildStdin, Stdio};

use portolan_sys::process;
use portolan_sys::step::{StepError, Stepper, mark};
use support::Reaped;

/// What the child does between its marks: so many turns of a loop.
const TURNS: [u64; 5] = [0, 0, 0, 100, 1100];

/// The thread of a child that waits for a word and then goes through [`TURNS`].
fn child(test: &str) -> (Reaped, u32, ChildStdin) {
    let mut command = support::child(test, "counted");
    command.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Reaped(command.spawn().unwrap());
    let mut said = child.0.stderr.take().unwrap();
    let mut tid = [0; 4];
    said.read_exact(&mut tid).unwrap();
    let stdin = child.0.stdin.take().unwrap();
    (child, u32::from_le_bytes(tid), stdin)
}

fn be_counted() {
    std::io::stderr()
        .write_all(&process::thread().to_le_bytes())
        .unwrap();
    let mut word = [0];
    std::io::stdin().read_exact(&mut word).unwrap();
    mark();
    for turns in TURNS {
        for turn in 0..turns {
            black_box(turn);
        }
        mark();
    }
}

/// None where the system does not let us, which is its right.
fn seize(tid: u32) -> Option<Stepper> {
    match Stepper::seize(tid) {
        Ok(stepper) => Some(stepper),
        Err(StepError::Refused(why)) => {
            eprintln!("not let: {why}");
            None
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn instructions_between_marks_are_counted_and_the_child_goes_on() {
    if support::role().is_some() {
        return be_counted();
    }
    let (mut child, tid, mut stdin) =
        child("instructions_between_marks_are_counted_and_the_child_goes_on");
    let Some(mut stepper) = seize(tid) else {
        return;
    };
    stdin.write_all(b"x").unwrap();
    stepper.run_to_mark().unwrap();
    let counts = TURNS.map(|_| stepper.count_to_mark().unwrap());
    // Before the first there is the way into the loop.
    let [_, none, again, some, more] = counts;
    // The same instructions each time; and as many more for as many turns.
    assert_eq!(none, again, "{counts:?}");
    assert!(some > none + 100, "{counts:?}");
    // A loop of ten times as many turns, give or take what begins and ends one.
    assert!(more - some > 9 * (some - none), "{counts:?}");
    drop(stepper);
    assert!(child.0.wait().unwrap().success());
}

#[test]
fn a_thread_is_stepped_for_as_long_as_it_is_wanted() {
    if support::role().is_some() {
        return be_counted();
    }
    let (mut child, tid, mut stdin) = child("a_thread_is_stepped_for_as_long_as_it_is_wanted");
    let Some(mut stepper) = seize(tid) else {
        return;
    };
    stdin.write_all(b"x").unwrap();
    stepper.run_to_mark().unwrap();
    let mut left = 50;
    let counted = stepper.count_while(|| {
        left -= 1;
        left >= 0
    });
    // A mark on the way is no instruction.
    assert!((48..=50).contains(&counted.unwrap()));
    drop(stepper);
    assert!(child.0.wait().unwrap().success());
}

#[test]
fn a_thread_that_ends_is_an_error() {
    if support::role().is_some() {
        return be_counted();
    }
    let (mut child, tid, _stdin) = child("a_thread_that_ends_is_an_error");
    let Some(mut stepper) = seize(tid) else {
        return;
    };
    child.0.kill().unwrap();
    assert!(matches!(stepper.run_to_mark(), Err(StepError::Ended)));
}
