//! The other process of a test: it dies at a marked step. The test's file has a test of its
//! own, `deaths::victim`, that does nothing unless it was started here.

use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

/// Set in a victim: what it is to do.
const ROLE: &str = "PORTOLAN_TEST_DEADLY_ROLE";
static DEADLY: OnceLock<String> = OnceLock::new();

/// What this process is to do, if it is a victim: the domain's name, and where it dies.
pub(crate) fn role() -> Option<(String, String)> {
    let role = std::env::var(ROLE).ok()?;
    let (domain, mark) = role.split_once(' ').unwrap();
    Some((domain.to_owned(), mark.to_owned()))
}

/// From here on this process dies when it comes to `mark`.
pub(crate) fn die_at(mark: String) {
    DEADLY.set(mark).unwrap();
    portolan_shm::mark::install(reached);
}

fn reached(mark: &str) {
    if DEADLY.get().is_some_and(|deadly| deadly == mark) {
        // SAFETY:
        // - Sends a signal to ourselves; nothing is touched.
        unsafe { libc::raise(libc::SIGKILL) };
    }
}

/// Starts a victim.
pub(crate) fn spawn(domain: &str, mark: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "deaths::victim",
            "--exact",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(ROLE, format!("{domain} {mark}"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}
