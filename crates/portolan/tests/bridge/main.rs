//! Messages between domains, among real processes: honest ones, dying ones, hostile ones, and
//! those of other users.
//!
//! The other processes are this test program again, told what to do line by line; see `child`.

mod child;
mod deaths;
mod follow;
mod hostile;
#[cfg(feature = "marks")]
mod marks;
mod numbered;
mod over;
mod sealed;
mod users;
