//! Data structures in messages.

// A library's module elsewhere.
#[allow(unreachable_pub)]
#[path = "../../../twin/src/steps.rs"]
mod steps;

mod programs;
mod refusals;
mod room;
mod topics;

use std::time::Duration;

/// How long a test waits for what must happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// A name that no other test uses.
fn unique(name: &str) -> String {
    format!("structure-{name}-{}", std::process::id())
}
