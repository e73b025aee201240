//! Instructions of another process's thread, one by one, and its system calls.

#![allow(missing_docs, reason = "a test")]

#[path = "../../sys/tests/support/mod.rs"]
mod support;

use std::hint::black_box;
use std::io::{Read, Write};
use std::process::{ChildStdin, Stdio};

use portolan_instruments::step::{StepError, Stepper, mark};
use portolan_sys::process;
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
    go_through(&TURNS, |turns| {
        for turn in 0..turns {
            black_box(turn);
        }
    });
}

/// Does something of each size, with a mark between.
fn go_through(parts: &[u64], work: impl Fn(u64)) {
    std::io::stderr()
        .write_all(&process::thread().to_le_bytes())
        .unwrap();
    let mut word = [0];
    std::io::stdin().read_exact(&mut word).unwrap();
    mark();
    for &size in parts {
        work(size);
        mark();
    }
}

/// System calls that the child makes between its marks.
const CALLS: [u64; 4] = [0, 0, 1, 7];

fn be_calling() {
    go_through(&CALLS, |calls| {
        for _ in 0..calls {
            // Nothing that a library could answer from memory.
            black_box(rustix::process::getppid());
        }
    });
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
fn system_calls_between_marks_are_counted() {
    if support::role().is_some() {
        return be_calling();
    }
    let (mut child, tid, mut stdin) = child("system_calls_between_marks_are_counted");
    let Some(mut stepper) = seize(tid) else {
        return;
    };
    stdin.write_all(b"x").unwrap();
    stepper.run_to_mark().unwrap();
    let [_, none, one, seven] = CALLS.map(|_| stepper.calls_to_mark().unwrap());
    // A mark is a system call itself.
    assert!(none >= 1);
    assert_eq!((one - none, seven - none), (1, 7));
    drop(stepper);
    assert!(child.0.wait().unwrap().success());
}

#[cfg(target_arch = "x86_64")]
#[test]
fn an_instruction_that_repeats_itself_is_one() {
    /// Bytes that one instruction fills.
    const FILLED: [u64; 5] = [1, 1, 2, 4000, 100_000];

    fn fill(bytes: u64) {
        let mut buffer = [0_u8; 100_000];
        // SAFETY:
        // - Fills no more than the buffer, from its first byte on; the direction is forwards,
        //   as it is between functions.
        unsafe {
            std::arch::asm!(
                "rep stosb",
                inout("rcx") bytes => _,
                inout("rdi") buffer.as_mut_ptr() => _,
                in("al") 7_u8,
            );
        }
        black_box(buffer);
    }

    if support::role().is_some() {
        return go_through(&FILLED, fill);
    }
    let (mut child, tid, mut stdin) = child("an_instruction_that_repeats_itself_is_one");
    let Some(mut stepper) = seize(tid) else {
        return;
    };
    stdin.write_all(b"x").unwrap();
    stepper.run_to_mark().unwrap();
    let counts = FILLED.map(|_| stepper.count_to_mark().unwrap());
    // Before the first there is the way into the loop.
    assert!(
        counts[1..].iter().all(|count| *count == counts[1]),
        "{counts:?}"
    );
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
