//! Ending another thread's wait at a port, without a message: for that there may be no room.

use super::ReceiveRight;
use crate::space::region::Attached;
use portolan_sys::futex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ends the wait of one [`ReceiveRight`] of this process, from any thread.
pub(crate) struct Interrupter {
    asked: Arc<AtomicBool>,
    at: Attached,
}

impl Interrupter {
    /// The receiver's wait ends as if its deadline had passed; if it does not wait, its next wait
    /// does.
    pub(crate) fn interrupt(&self) {
        // SeqCst: before the bell, as the receiver looks after it has read the bell.
        self.asked.store(true, Ordering::SeqCst);
        if self.at.member.present().is_ok() {
            let doorbell = &self.at.queue().port.sleep.doorbell;
            doorbell.fetch_add(1, Ordering::SeqCst);
            futex::wake(doorbell, u32::MAX);
        }
    }
}

impl ReceiveRight {
    /// What ends a wait for messages here.
    pub(crate) fn interrupter(&mut self) -> Interrupter {
        Interrupter {
            asked: Arc::clone(self.interrupted.get_or_insert_default()),
            at: self.at.clone(),
        }
    }

    /// Whether a wait is to end.
    pub(super) fn is_interrupted(&self) -> bool {
        // SeqCst: pairs with `Interrupter::interrupt`.
        let asked = self.interrupted.as_ref();
        asked.is_some_and(|asked| asked.load(Ordering::SeqCst))
    }

    /// The same, of the wait that ends now.
    pub(super) fn take_interrupt(&self) -> bool {
        let asked = self.interrupted.as_ref();
        asked.is_some_and(|asked| asked.swap(false, Ordering::SeqCst))
    }
}
