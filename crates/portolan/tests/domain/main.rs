//! Domains among real processes: joining, dying, succeeding, leaving.
//!
//! The other processes are this test program again, told what to do line by line; see
//! `child`. Nothing here asserts that something is fast. What must come about is waited
//! for with a generous deadline, so that a failure is a failure and not a hang.

mod child;
mod descriptors;
mod dump;
mod forks;
mod idle;
mod join;
mod logged;
#[cfg(feature = "marks")]
mod marks;
mod observe;
#[cfg(feature = "marks")]
mod on_the_way;
mod reclaim;
mod refused;
mod role;
mod squatters;
mod stopped;
mod storm;
mod takeover;
mod trace;
