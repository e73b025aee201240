//! Guarded domains among real processes: an extent is accessible where it is owned, and
//! nowhere else.
//!
//! The other processes are this test program again, told what to do line by line; see
//! `child`. Nothing here asserts that something is fast.

mod among;
mod child;
mod copied;
mod open;
mod race;
mod stray;
mod trace;
