//! An importer posts notes about the bytes that it has written.

use crate::vmmc::place::Place;
use crate::vmmc::{Import, UpdateError};
use portolan_abi::vmmc::{notification_page, status_page};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError};

/// How many notes an import has posted, and lost, so far.
#[derive(Default)]
pub(crate) struct Poster {
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    posted: u64,
    lost: u64,
}

impl Import {
    /// Tells the exporter that `len` bytes from `offset` on have been written, by this or by
    /// earlier calls; [`begin_write`](Self::begin_write)s that were begun before are waited for.
    /// The thread that receives the notification sees what this thread wrote before.
    ///
    /// The call costs some stores, and a system call if the exporter sleeps. It costs two loads
    /// if the exporter has no [`Notifications`](crate::vmmc::Notifications). A note that the
    /// exporter does not take in time is lost, and the exporter learns how many were.
    ///
    /// # Errors
    ///
    /// [`UpdateError`], as if the call wrote those bytes.
    pub fn notify(&self, offset: usize, len: usize) -> Result<(), UpdateError> {
        self.shared().notify(offset, len)
    }

    /// [Writes](Self::write), then [notifies](Self::notify) of it.
    ///
    /// # Errors
    ///
    /// [`UpdateError`].
    pub fn write_notifying(&self, offset: usize, bytes: &[u8]) -> Result<(), UpdateError> {
        self.write(offset, bytes)?;
        self.notify(offset, bytes.len())
    }
}

impl Poster {
    /// Posts a note, if the exporter listens (N1). Returns whether the caller must wake the
    /// exporter. A hostile exporter can only cause lost notes, or wakes in vain.
    pub(crate) fn post(
        &self,
        status_page: &Place,
        page: &Place,
        offset: usize,
        len: usize,
    ) -> bool {
        // Relaxed: a process that learned of the listener through another process's message sees
        // that process's earlier writes.
        if word(status_page, status_page::LISTENS).load(Ordering::Relaxed) == 0 {
            return false;
        }
        {
            let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
            // Acquire: pairs with `Posts::took`; the exporter has copied the note in this place.
            let taken = word(page, notification_page::TAKEN).load(Ordering::Acquire);
            if counts.posted.wrapping_sub(taken) < notification_page::NOTES as u64 {
                let at = note(counts.posted);
                word(page, at).store(offset as u64, Ordering::Relaxed);
                word(page, at + 1).store(len as u64, Ordering::Relaxed);
                portolan_shm::mark!("notify.noted");
                counts.posted = counts.posted.wrapping_add(1);
                // Release: pairs with `Posts::next`; an exporter that sees the count sees the
                // data and the note (N1).
                word(page, notification_page::POSTED).store(counts.posted, Ordering::Release);
            } else {
                counts.lost = counts.lost.wrapping_add(1);
                // Release: as above.
                word(page, notification_page::LOST).store(counts.lost, Ordering::Release);
            }
        }
        portolan_shm::mark!("notify.posted");
        // N2: pairs with the one in `Notes::fall_asleep`.
        fence(Ordering::SeqCst);
        word(status_page, status_page::SLEEPS).load(Ordering::Relaxed) != 0
    }
}

/// The first word of the `nth` note.
pub(super) fn note(nth: u64) -> usize {
    let place = usize::try_from(nth % notification_page::NOTES as u64).unwrap_or(0);
    notification_page::FIRST + place * notification_page::NOTE
}

/// A word of a status page or a notification page.
pub(super) fn word(page: &Place, at: usize) -> &AtomicU64 {
    let word = page.words().get(at);
    word.expect("a page has as many words as its layout says")
}
