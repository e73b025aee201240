//! Decides what happens to a process at a mark (`mark!` of `portolan-shm`).
//!
//! Its test hands over how a hook for all marks is installed, `portolan_shm::mark::install`, which
//! there is with the feature `marks` alone.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Installs a hook for all marks.
type Install = fn(fn(&'static str));

struct Fate {
    mark: String,
    signal: libc::c_int,
    once: bool,
    passed: AtomicBool,
}

static FATE: OnceLock<Fate> = OnceLock::new();

/// Kills this process the next time that it passes the mark.
///
/// # Panics
///
/// Something is to happen to this process already.
pub fn die_at(mark: &str, install: Install) {
    set(mark, libc::SIGKILL, false, install);
}

/// Stops this process whenever it passes the mark.
///
/// # Panics
///
/// As [`die_at`].
pub fn stop_at(mark: &str, install: Install) {
    set(mark, libc::SIGSTOP, false, install);
}

/// Stops this process when it next passes the mark, and never again.
///
/// # Panics
///
/// As [`die_at`].
pub fn stop_once_at(mark: &str, install: Install) {
    set(mark, libc::SIGSTOP, true, install);
}

/// Kills this process, as anybody might.
pub fn die() {
    raise(libc::SIGKILL);
}

fn set(mark: &str, signal: libc::c_int, once: bool, install: Install) {
    let fate = Fate {
        mark: mark.to_owned(),
        signal,
        once,
        passed: AtomicBool::new(false),
    };
    let earlier = FATE.set(fate).err();
    assert!(earlier.is_none(), "something is to happen at a mark");
    install(passed);
}

fn passed(mark: &'static str) {
    if let Some(fate) = FATE.get()
        && fate.mark == mark
        && !(fate.once && fate.passed.swap(true, Ordering::Relaxed))
    {
        raise(fate.signal);
    }
}

/// To this thread, which takes it before it goes on: sent to the process, another thread might
/// take it, and this one go on meanwhile.
fn raise(signal: libc::c_int) {
    // SAFETY:
    // - Sends a signal to ourselves; nothing is touched.
    let raised = unsafe { libc::raise(signal) };
    assert_eq!(raised, 0);
}
