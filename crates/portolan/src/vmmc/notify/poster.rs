//! The importer's side: posting notes.

use crate::vmmc::place::Place;
use crate::vmmc::{Import, UpdateError};
use portolan_abi::vmmc::{board, post};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError};

/// What an import has posted so far.
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
    /// earlier calls; [`write_later`](Self::write_later)s that were begun before are waited for.
    /// Who gets the notification sees what this thread wrote before.
    ///
    /// It costs some stores; and a system call if the exporter sleeps. If nobody listens there
    /// it costs two loads. Notes that the exporter does not take in time are counted, and it
    /// is told how many.
    ///
    /// # Errors
    ///
    /// [`UpdateError`]: as if that were written.
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
    /// Posts a note, if anybody listens (N1); whether the exporter is to be rung for. What the
    /// exporter says may be anything: then notes are lost, or it is rung for in vain.
    pub(crate) fn post(&self, board: &Place, page: &Place, offset: usize, len: usize) -> bool {
        // Relaxed: who was told of it by somebody else has that one's order.
        if word(board, board::LISTENS).load(Ordering::Relaxed) == 0 {
            return false;
        }
        {
            let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
            // Acquire: pairs with `Posts::took`; it has copied what we overwrite.
            let taken = word(page, post::TAKEN).load(Ordering::Acquire);
            if counts.posted.wrapping_sub(taken) < post::NOTES as u64 {
                let at = note(counts.posted);
                word(page, at).store(offset as u64, Ordering::Relaxed);
                word(page, at + 1).store(len as u64, Ordering::Relaxed);
                portolan_shm::mark!("notify.noted");
                counts.posted = counts.posted.wrapping_add(1);
                // Release: pairs with `Posts::next`; the data and the note come first (N1).
                word(page, post::POSTED).store(counts.posted, Ordering::Release);
            } else {
                counts.lost = counts.lost.wrapping_add(1);
                // Release: as above.
                word(page, post::LOST).store(counts.lost, Ordering::Release);
            }
        }
        portolan_shm::mark!("notify.posted");
        // N2: pairs with the one in `Notes::fall_asleep`.
        fence(Ordering::SeqCst);
        word(board, board::SLEEPS).load(Ordering::Relaxed) != 0
    }
}

/// The first word of the `nth` note.
pub(super) fn note(nth: u64) -> usize {
    let place = usize::try_from(nth % post::NOTES as u64).unwrap_or(0);
    post::FIRST + place * post::NOTE
}

/// A word of a board or a post page.
pub(super) fn word(page: &Place, at: usize) -> &AtomicU64 {
    let word = page.words().get(at);
    word.expect("a page has as many words as its layout says")
}
