//! This crate holds what the tests of several crates share: further processes of the same test
//! program, names that no other test has, and how long a test waits.
//!
//! | file | holds |
//! |---|---|
//! | `process` | this program again, as another process that runs one of its tests |
//! | `orders` | such a process that is told what to do, line by line |
//! | `fate` | what happens to a process at a mark |
//! | `pattern` | bytes that say where they are, and of which message |
//! | `wait` | waiting for what must come about, and ends of threads |

mod fate;
mod orders;
mod pattern;
mod process;
mod wait;

pub use fate::{die, die_at, stop_at, stop_once_at};
pub use orders::{Answer, Child, Copied, apart, close_all, obey};
pub use pattern::{is_pattern, pattern};
pub use process::{again, ended_by_signals, in_role, is_alone, resume, role, spawn};
pub use wait::{PATIENCE, SetOnDrop, spin_until, until};

use std::sync::atomic::{AtomicU32, Ordering};

/// A name, of a domain say, that no other test has, in this process or another.
///
/// ```
/// use portolan_testkit::unique;
///
/// assert_ne!(unique("names"), unique("names"));
/// ```
pub fn unique(test: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("test-{test}-{}-{number}", std::process::id())
}

/// Whether a socket on this machine has a name with `name` in it. Names of others need not be text.
///
/// ```
/// use portolan_testkit::{is_bound, unique};
/// use std::os::linux::net::SocketAddrExt;
/// use std::os::unix::net::{SocketAddr, UnixListener};
///
/// let name = unique("bound");
/// assert!(!is_bound(&name));
/// let _bound = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap());
/// assert!(is_bound(&name));
/// ```
///
/// # Panics
///
/// `name` is empty, or the kernel does not say which sockets there are.
pub fn is_bound(name: &str) -> bool {
    let all = std::fs::read("/proc/net/unix").unwrap();
    all.windows(name.len()).any(|its| its == name.as_bytes())
}
