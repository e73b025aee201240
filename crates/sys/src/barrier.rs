//! Makes barriers in other processes, so that one side of a pair can do without its own.
//!
//! ```text
//! the one, often:   store a; (nothing)               ; load b
//! the other, seldom: store b; barrier `everywhere`   ; load a
//! ```
//!
//! At least one of them sees the other's store, as if both had made a full barrier: the
//! kernel makes a barrier on every processor that runs a thread of a process that has
//! [`allowed`] it, and a thread that runs later has made one by then (`membarrier`, the
//! global expedited command). The seldom side pays a system call, and an interrupt for each
//! such processor.

use std::sync::atomic::{AtomicU8, Ordering};

use rustix::thread::{MembarrierCommand, membarrier};

use crate::process::spawn_quiet;

/// Enough for a thread that makes one system call.
const STACK: usize = 64 << 10;

const UNASKED: u8 = 0;
const ASKED: u8 = 1;
const ALLOWED: u8 = 2;
const REFUSED: u8 = 3;

static STATE: AtomicU8 = AtomicU8::new(UNASKED);

/// Whether this process's threads make barriers when others ask for them. The first call
/// begins to allow it and does not wait: with several threads the kernel takes milliseconds.
///
/// Once it is so it stays so, and the first call after that sees it.
///
/// # Examples
///
/// ```
/// use portolan_sys::barrier;
/// // Where the kernel offers it.
/// if barrier::everywhere() {
///     while !barrier::allowed() {
///         std::thread::yield_now();
///     }
/// }
/// ```
pub fn allowed() -> bool {
    // Acquire: pairs with the release below.
    match STATE.load(Ordering::Acquire) {
        ALLOWED => true,
        UNASKED => {
            let first =
                STATE.compare_exchange(UNASKED, ASKED, Ordering::Relaxed, Ordering::Relaxed);
            if first.is_ok() && spawn_quiet("portolan", STACK, allow).is_err() {
                STATE.store(UNASKED, Ordering::Relaxed);
            }
            false
        }
        _ => false,
    }
}

/// As [`allowed`], and waits for it: milliseconds at most, once. `false` if the kernel, or a
/// filter of system calls, does not let us.
pub fn allow_now() -> bool {
    if !allowed() && STATE.load(Ordering::Acquire) != REFUSED {
        allow();
    }
    allowed()
}

fn allow() {
    let done = membarrier(MembarrierCommand::RegisterGlobalExpedited);
    let state = if done.is_ok() { ALLOWED } else { REFUSED };
    // Release: a thread that sees `ALLOWED` comes after the registration.
    STATE.store(state, Ordering::Release);
}

/// Makes a full barrier in every running thread of every process that has allowed it; a thread
/// that does not run has made one. `false` if the kernel, or a filter of system calls, does not
/// let us.
pub fn everywhere() -> bool {
    membarrier(MembarrierCommand::GlobalExpedited).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, compiler_fence};

    #[test]
    fn one_of_the_two_sees_the_other() {
        if !everywhere() {
            return;
        }
        while !allowed() {
            assert_ne!(STATE.load(Ordering::Relaxed), REFUSED);
            std::thread::yield_now();
        }
        const ROUNDS: usize = 5_000;
        let words = || (0..ROUNDS).map(|_| AtomicU8::new(0)).collect::<Vec<_>>();
        let (often, seldom, begun) = (words(), words(), AtomicUsize::new(0));
        let (fast, slow) = std::thread::scope(|scope| {
            let fast = scope.spawn(|| {
                let sees = |round: usize| {
                    while begun.load(Ordering::Relaxed) <= round {
                        std::hint::spin_loop();
                    }
                    often[round].store(1, Ordering::Relaxed);
                    compiler_fence(Ordering::SeqCst);
                    seldom[round].load(Ordering::Relaxed)
                };
                (0..ROUNDS).map(sees).collect::<Vec<_>>()
            });
            let sees = |round: usize| {
                begun.store(round + 1, Ordering::Relaxed);
                seldom[round].store(1, Ordering::Relaxed);
                assert!(everywhere());
                often[round].load(Ordering::Relaxed)
            };
            let slow = (0..ROUNDS).map(sees).collect::<Vec<_>>();
            (fast.join().unwrap(), slow)
        });
        let missed = fast.iter().zip(&slow).position(|saw| saw == (&0, &0));
        assert_eq!(missed, None, "neither saw the other");
    }
}
