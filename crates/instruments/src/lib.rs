//! This crate wraps Linux mechanisms that only measuring uses, without policy. The mechanisms that
//! the library itself needs are in `portolan-sys`.
//!
//! | module | what it wraps |
//! |---|---|
//! | [`step`] | counting another process's instructions, one by one, and its system calls |
//! | [`mqueue`] | POSIX message queues, to measure against |
//! | [`sysv`] | System V message queues, the same |
//! | [`tripwire`] | memory whose stores call a function |
//! | [`push`] | asking for a line that was written to be moved nearer to others |

pub mod mqueue;
pub mod push;
pub mod step;
pub mod sysv;
pub mod tripwire;
