//! Counts the instructions and system calls of a part of a program by stepping through another
//! process, where the processor's counters are not available.
//!
//! ```text
//! coordinator                    child
//!   seize its thread             mark, nothing, mark, mark, part, mark, ... : a round
//!   steps from mark to mark      (runs freely between parts)
//! ```
//!
//! Each round goes through the same parts, the first of which is nothing. What is done for the
//! first time takes more, and so does what waits for a thread that has no processor at the
//! moment: of all rounds the fewest count, and once each was counted twice there are enough.

use portolan_instruments::step::{StepError, Stepper, mark};

/// What is counted, for people.
pub const WHAT: &str =
    "in user mode, by stepping through another process (a system call is one instruction)";

/// Rounds of one count at the most. Fewer in a debug build, whose counts nobody wants: a long part hardly
/// ever takes the same number again, and goes through all of them.
pub const ROUNDS: usize = if cfg!(debug_assertions) { 4 } else { 6 };

/// A count, or why there is none.
pub type Counted<T> = std::result::Result<T, String>;

/// Why nothing was counted, for people.
pub fn refused(why: impl std::fmt::Display) -> String {
    format!("a process could not be stepped through: {why}")
}

/// Stops a thread of another process, to count.
///
/// # Errors
///
/// Why it cannot be.
pub fn seize(thread: u32) -> Counted<Stepper> {
    Stepper::seize(thread).map_err(refused)
}

/// A part, in the process that is stepped through.
#[inline(always)]
pub fn part<T>(work: impl FnOnce() -> T) -> T {
    mark();
    let done = work();
    mark();
    done
}

/// What of a part is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Instructions in user mode.
    Instructions,
    /// System calls.
    SystemCalls,
}

/// All counts of so many parts, round by round, less the fewest of nothing, which is the first
/// part of a round and is left out.
///
/// # Errors
///
/// Why they were not counted.
pub fn counts(
    stepper: &mut Stepper,
    what: What,
    parts: usize,
    rounds: usize,
) -> Counted<Vec<Vec<u64>>> {
    let mut nothing = u64::MAX;
    let mut counts = vec![Vec::with_capacity(rounds); parts];
    for _ in 0..rounds {
        nothing = nothing.min(count(stepper, what)?);
        for part in &mut counts {
            part.push(count(stepper, what)?);
        }
    }
    for count in counts.iter_mut().flatten() {
        *count = count.saturating_sub(nothing);
    }
    Ok(counts)
}

/// Of the next part.
fn count(stepper: &mut Stepper, what: What) -> Counted<u64> {
    stepper.run_to_mark().map_err(refused)?;
    to_mark(stepper, what)
}

/// From the mark where it stands to the next one, the marks' own included.
///
/// # Errors
///
/// Why they were not counted.
pub fn to_mark(stepper: &mut Stepper, what: What) -> Counted<u64> {
    let counted = match what {
        What::Instructions => stepper.count_to_mark(),
        What::SystemCalls => stepper.calls_to_mark(),
    };
    counted.map_err(refused)
}

/// Instructions in user mode of each part, less those of nothing.
///
/// # Errors
///
/// Why they were not counted.
pub fn instructions<const PARTS: usize>(stepper: &mut Stepper) -> Counted<[f64; PARTS]> {
    fewest(stepper, Stepper::count_to_mark)
}

/// System calls of each part, less those of nothing.
///
/// # Errors
///
/// Why they were not counted.
pub fn system_calls<const PARTS: usize>(stepper: &mut Stepper) -> Counted<[f64; PARTS]> {
    fewest(stepper, Stepper::calls_to_mark)
}

fn fewest<const PARTS: usize>(
    stepper: &mut Stepper,
    count: fn(&mut Stepper) -> Result<u64, StepError>,
) -> Counted<[f64; PARTS]> {
    // The fewest, and whether as many were counted again.
    let mut counts = [(u64::MAX, false); PARTS];
    for _ in 0..ROUNDS {
        for (fewest, again) in &mut counts {
            stepper.run_to_mark().map_err(refused)?;
            let counted = count(stepper).map_err(refused)?;
            if counted <= *fewest {
                *again = counted == *fewest;
                *fewest = counted;
            }
        }
        if counts.iter().all(|(_, again)| *again) {
            break;
        }
    }
    let nothing = counts.first().map_or(0, |(fewest, _)| *fewest);
    Ok(counts.map(|(fewest, _)| fewest.saturating_sub(nothing) as f64))
}
