//! A lock guards the table of signal ranges while handlers are listed and taken out. A dead
//! holder's is released by the host. A stopped holder delays no other thread: after a moment others
//! add and give up handlers without the lock, and the next holder puts the table in order.

use crate::space::Member;
use portolan_shm::atomic::store_load_barrier;
use portolan_shm::mark;
use portolan_sys::futex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long to wait for another one that holds it: longer than any change takes whose thread runs.
const PATIENCE: Duration = Duration::from_millis(50);

/// The lock, held.
pub(super) struct Locked<'m> {
    member: &'m Member,
}

fn word(member: &Member) -> &AtomicU32 {
    &member.tables().header.signals.lock
}

/// Takes the lock if it is free.
pub(super) fn try_lock(member: &Member) -> Option<Locked<'_>> {
    let us = u32::from(member.space) + 1;
    word(member)
        .compare_exchange(0, us, Ordering::Acquire, Ordering::Relaxed)
        .ok()
        .map(|_| Locked { member })
}

/// Takes the lock, and tidies up what others have left; `None` if another thread keeps it.
pub(super) fn lock(member: &Member) -> Option<Locked<'_>> {
    let give_up = Instant::now() + PATIENCE;
    let locked = loop {
        if let Some(locked) = try_lock(member) {
            break locked;
        }
        let holder = word(member).load(Ordering::Relaxed);
        if Instant::now() >= give_up {
            return None;
        }
        if holder != 0 {
            let _ = futex::wait(word(member), holder, Some(give_up));
        }
    };
    mark!("signal.locked");
    member.tables().ranges().sweep();
    Some(locked)
}

/// After a change without the lock: ensures that a holder of the lock brings the table in order,
/// which has the lock now, or ourselves.
pub(super) fn tidy(member: &Member) {
    // After the change, whose last access was a read-modify-write; pairs with the drop of the lock.
    store_load_barrier();
    if let Some(locked) = try_lock(member) {
        member.tables().ranges().sweep();
        drop(locked);
    }
}

/// Releases the lock if `space`, which is dead, has it; whether it had.
pub(super) fn release_of(member: &Member, space: u8) -> bool {
    let word = word(member);
    let held = u32::from(space) + 1;
    // What it was changing is counted anew before any other thread changes it: the host marks
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
        let (word, ranges) = (word(self.member), self.member.tables().ranges());
        let us = u32::from(self.member.space) + 1;
        loop {
            // Release, then look, beside a change and then a look at the lock (`tidy`): one of
            // the two sees the other. A read-modify-write, for the barrier.
            word.swap(0, Ordering::AcqRel);
            store_load_barrier();
            futex::wake(word, 1);
            let again = ranges.is_untidy()
                && word
                    .compare_exchange(0, us, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok();
            // Where there is no room to list a handler it stays as it is.
            if !again || !ranges.sweep() {
                if again {
                    word.swap(0, Ordering::AcqRel);
                    futex::wake(word, 1);
                }
                return;
            }
        }
    }
}
