//! Real processes exchange messages between domains: honest, dying and hostile processes, and
//! those of other users.
//!
//! The other processes run this test program again, and read commands; see `child`.

mod child;
mod deaths;
mod follow;
mod hostile;
#[cfg(feature = "marks")]
mod marks;
mod numbered;
mod over;
mod requests;
mod sealed;
mod shared;
mod users;
