//! Puts a thread to sleep until a shared word changes.
//!
//! The words may be shared between processes (no `FUTEX_PRIVATE_FLAG`). A sleeper gives
//! the value that it saw last; a thread that changes the word must wake the sleepers afterwards.

use std::num::NonZeroU32;
use std::sync::atomic::AtomicU32;
use std::time::Instant;

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags};

use crate::time;

/// A waker reaches every sleeper, whatever it sleeps for.
const ANY: NonZeroU32 = NonZeroU32::MAX;

/// Why a sleeper went on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a sleeper looks at its word again unless it timed out"]
pub enum Wake {
    /// A waker woke us, or a signal did, or nothing at all: look at the word again.
    Woken,
    /// The word did not have the expected value, so there was no sleep.
    Changed,
    /// The deadline came first.
    TimedOut,
}

/// Sleeps while `word` is `expected`, until woken or `deadline`; `None` waits for ever.
///
/// # Examples
///
/// ```
/// use portolan_sys::futex::{Wake, wait};
/// use std::sync::atomic::AtomicU32;
/// assert_eq!(wait(&AtomicU32::new(1), 0, None), Wake::Changed);
/// ```
pub fn wait(word: &AtomicU32, expected: u32, deadline: Option<Instant>) -> Wake {
    let deadline = deadline.and_then(time::absolute);
    match futex::wait_bitset(word, Flags::empty(), expected, deadline.as_ref(), ANY) {
        Err(Errno::AGAIN) => Wake::Changed,
        Err(Errno::TIMEDOUT) => Wake::TimedOut,
        // Besides EINTR only EFAULT is left, of a word that userfaultfd keeps closed.
        Ok(()) | Err(_) => Wake::Woken,
    }
}

/// Wakes up to `count` sleepers of `word`, in any process; returns how many.
pub fn wake(word: &AtomicU32, count: u32) -> usize {
    // The kernel takes a signed count; so many sleepers do not exist.
    let count = count.min(i32::MAX.unsigned_abs());
    futex::wake(word, Flags::empty(), count).unwrap_or(0)
}
