//! Data structures in messages.

// A library's module elsewhere.
#[allow(unreachable_pub)]
#[path = "../../../twin/src/steps.rs"]
mod steps;

mod programs;
mod refusals;
mod room;
mod topics;

use portolan_testkit::{PATIENCE, unique};
