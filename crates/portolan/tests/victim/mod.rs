//! The other process of a test, which may be meant to die at a marked step.
//!
//! It is this program again, told to run one test, which does nothing unless it was started
//! from here.

#![allow(dead_code, reason = "no test's file uses all of it")]

use std::process::{Child, Command, Stdio};

/// Set in the other process: what it is to do.
const ROLE: &str = "PORTOLAN_TEST_ROLE";

/// What this process is to do, in so many words, if it is the other one of a test.
pub(crate) fn role<const N: usize>() -> Option<[String; N]> {
    let role = std::env::var(ROLE).ok()?;
    let words = role.split(' ').map(str::to_owned).collect::<Vec<_>>();
    Some(words.try_into().unwrap_or_else(|_| panic!("{role}")))
}

/// Runs the test named `test` of this program as another process.
pub(crate) fn spawn(test: &str, role: &[&str]) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(ROLE, role.join(" "))
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// From here on this process dies when it comes to `mark`.
#[cfg(feature = "marks")]
pub(crate) fn die_at(mark: String) {
    static DEADLY: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    DEADLY.set(mark).unwrap();
    portolan_shm::mark::install(|mark| {
        if DEADLY.get().is_some_and(|deadly| deadly == mark) {
            die();
        }
    });
}

/// Kills this process, as anybody might.
pub(crate) fn die() {
    // SAFETY:
    // - Sends a signal to ourselves; nothing is touched.
    unsafe { libc::raise(libc::SIGKILL) };
}

/// From here on this process stops the next time that it comes to `mark`, and never again.
#[cfg(feature = "marks")]
pub(crate) fn stop_at(mark: String) {
    static FATAL: std::sync::Mutex<Option<String>> = std::sync::Mutex::new(None);
    *FATAL.lock().unwrap() = Some(mark);
    portolan_shm::mark::install(|mark| {
        let stops = FATAL.lock().unwrap().take_if(|at| at == mark).is_some();
        if stops {
            // SAFETY:
            // - Sends a signal to ourselves; nothing is touched.
            unsafe { libc::raise(libc::SIGSTOP) };
        }
    });
}

/// Lets a process that has stopped go on.
pub(crate) fn resume(process: &Child) {
    let pid = libc::pid_t::try_from(process.id()).unwrap();
    // SAFETY:
    // - Sends a signal to a child that has not been waited for; nothing is touched.
    unsafe { libc::kill(pid, libc::SIGCONT) };
}
