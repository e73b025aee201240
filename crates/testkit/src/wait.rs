//! Waits until a condition holds.

use std::sync::atomic::{AtomicBool, Ordering};
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

/// Ends the threads that look at it, also where the test that started them fails.
///
/// ```
/// use portolan_testkit::SetOnDrop;
/// use std::sync::atomic::{AtomicBool, Ordering};
///
/// let over = AtomicBool::new(false);
/// std::thread::scope(|scope| {
///     let _over = SetOnDrop(&over);
///     scope.spawn(|| while !over.load(Ordering::Relaxed) {});
/// });
/// ```
#[derive(Debug)]
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
