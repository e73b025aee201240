//! The lock on signal ranges: held while handlers are added and removed. A dead holder's
//! is released by the host.

use super::SignalError;
use crate::member::Member;
use portolan_shm::mark;
use portolan_sys::futex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long to wait for another one that holds it.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks at it, where nobody wakes us.
const LOOK: Duration = Duration::from_millis(20);

/// The lock, held.
pub(super) struct Locked<'m> {
    word: &'m AtomicU32,
}

fn word(member: &Member) -> &AtomicU32 {
    &member.tables().header.signals.lock
}

/// Takes the lock if nobody has it.
pub(super) fn try_lock(member: &Member) -> Option<Locked<'_>> {
    let word = word(member);
    let us = u32::from(member.space) + 1;
    word.compare_exchange(0, us, Ordering::Acquire, Ordering::Relaxed)
        .ok()
        .map(|_| Locked { word })
}

/// Takes the lock, and tidies up what the dead have left.
pub(super) fn lock(member: &Member) -> Result<Locked<'_>, SignalError> {
    let give_up = Instant::now() + PATIENCE;
    let locked = loop {
        if let Some(locked) = try_lock(member) {
            break locked;
        }
        let holder = word(member).load(Ordering::Relaxed);
        if Instant::now() >= give_up {
            return Err(SignalError::Locked {
                holder: u8::try_from(holder.saturating_sub(1)).unwrap_or(0),
                seconds: PATIENCE.as_secs(),
            });
        }
        if holder != 0 {
            // A look now and then: whoever gives it back may be stopped before it wakes us, and
            // so may another one that it wakes.
            let soon = give_up.min(Instant::now() + LOOK);
            let _ = futex::wait(word(member), holder, Some(soon));
        }
    };
    mark!("signal.locked");
    member.tables().ranges().sweep();
    Ok(locked)
}

/// Releases the lock if `space`, which is dead, has it; whether it had.
pub(super) fn release_of(member: &Member, space: u8) -> bool {
    let word = word(member);
    let held = u32::from(space) + 1;
    // What it was changing is counted anew before anybody else changes it: the host marks
    // it, and then releases.
    if word.load(Ordering::Acquire) != held {
        return false;
    }
    member.tables().ranges().disown(space, true);
    let released = word.compare_exchange(held, 0, Ordering::Release, Ordering::Relaxed);
    futex::wake(word, u32::MAX);
    released.is_ok()
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.word.store(0, Ordering::Release);
        mark!("signal.unlocked");
        futex::wake(self.word, 1);
    }
}
