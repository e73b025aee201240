//! Waits until a condition holds.

use std::time::{Duration, Instant};

/// How long anything may take before the test fails.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `done` says so.
#[track_caller]
pub fn until(what: &str, done: impl FnMut() -> bool) {
    wait(what, done, || std::thread::sleep(Duration::from_millis(1)));
}

/// The same, for what comes at once, many times.
#[track_caller]
pub fn spin_until(what: &str, done: impl FnMut() -> bool) {
    wait(what, done, std::thread::yield_now);
}

#[track_caller]
fn wait(what: &str, mut done: impl FnMut() -> bool, pause: impl Fn()) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "waited in vain until {what}");
        pause();
    }
}
