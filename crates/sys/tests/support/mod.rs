//! Helpers for tests that need a second process.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test program uses some of them"
)]

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};

/// Set in a child; its value is for the test to choose.
const ROLE: &str = "PORTOLAN_TEST_ROLE";

/// The role of this process, in a child made by [`child`].
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// This test program again, running only `test`, in a role.
pub fn child(test: &str, role: &str) -> Command {
    let mut command = portolan_testkit::again(test);
    command
        .env(ROLE, role)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

/// A role that names a descriptor of this process, for [`open_role`].
pub fn fd_role(fd: BorrowedFd<'_>) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd())
}

/// The descriptor that a role made by [`fd_role`] names.
pub fn open_role(role: &str) -> OwnedFd {
    std::fs::File::options()
        .read(true)
        .write(true)
        .open(role)
        .unwrap()
        .into()
}

/// A child that is killed when the test is over, however it ends.
pub struct Reaped(pub Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Forks and runs `f` in the child, which exits with its answer; returns that.
///
/// Other threads of the test program are not in the child, so `f` must not allocate.
pub fn in_fork(f: impl FnOnce() -> u8) -> i32 {
    // SAFETY:
    // - The child runs only `f`, which is async-signal-safe, and exits.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let code = i32::from(f());
        // SAFETY:
        // - Ends the child without running anything of the parent's.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY:
    // - `status` has room for the answer.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(waited, pid);
    assert!(
        libc::WIFEXITED(status),
        "the child died of signal {}",
        libc::WTERMSIG(status)
    );
    libc::WEXITSTATUS(status)
}
