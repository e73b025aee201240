//! What ends a wait besides a bit that is raised: the times at which things are due, and words that
//! ring the set's bell.
//!
//! - **A1** Whatever is armed and is due at some time is in `dues`; whatever is armed and is told of
//!   by a word has the bell wait for that word, under the number of its place.
//! - **A2** What is due, or has fired, is loosened, so the next look finds it. What has fired for a
//!   place that is not armed, or is another's by now, is looked at in vain.

use super::place::Place;
use portolan_sys::bell::FutexFd;
use std::collections::BTreeSet;
use std::io;
use std::time::Instant;

/// The set's bell, and what else may end its waits.
pub(super) struct Alarms {
    pub(super) bell: FutexFd,
    dues: BTreeSet<(Instant, u32)>,
    /// Places that have had a word.
    words: usize,
    /// Why a word could not be armed.
    failed: Option<io::Error>,
}

impl Alarms {
    pub(super) fn new(bell: FutexFd) -> Self {
        Self {
            bell,
            dues: BTreeSet::new(),
            words: 0,
            failed: None,
        }
    }

    /// Whether there are none: most sets never have any.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.dues.is_empty() && self.words == 0
    }

    /// Whether the set's sleep has to end for words other than its doorbell.
    #[inline]
    pub(super) fn has_words(&self) -> bool {
        self.words > 0
    }

    /// When the next thing is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.dues.first().map(|(at, _)| *at)
    }

    /// Arms what is at a place for the set's link, and for its time and word (A1); `false` if
    /// something is there, and it is loose.
    #[inline]
    pub(super) fn arm(&mut self, index: u32, place: &mut Place, link: u64) -> bool {
        place.arm(link) && (!place.has_alarms || self.arm_for(index, place))
    }

    /// The same, for the time and the word alone.
    #[cold]
    #[inline(never)]
    fn arm_for(&mut self, index: u32, place: &mut Place) -> bool {
        let Some(waitable) = &place.waitable else {
            return true;
        };
        let due = waitable.due();
        if due != place.due {
            self.forget_due(index, place.due);
            place.due = due;
            self.dues.extend(due.map(|at| (at, index)));
        }
        let Some((word, value)) = waitable.word() else {
            return true;
        };
        if let Err(error) = self.bell.arm_word(index, word, value) {
            self.failed = Some(error);
            place.loosen();
            return false;
        }
        self.words += usize::from(!std::mem::replace(&mut place.has_word, true));
        true
    }

    /// What is at a place leaves the set; whether it had a word.
    pub(super) fn forget(&mut self, index: u32, place: &mut Place) -> bool {
        self.forget_due(index, place.due.take());
        let had_word = std::mem::take(&mut place.has_word);
        if had_word {
            self.words -= 1;
            // Where it fails the word rings for whatever is at the place then (A2).
            let _ = self.bell.disarm_word(index);
        }
        had_word
    }

    fn forget_due(&mut self, index: u32, due: Option<Instant>) {
        if let Some(at) = due {
            self.dues.remove(&(at, index));
        }
    }

    /// A place at which something is due by now, which is not said again.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<u32> {
        let due = *self.dues.first().filter(|(at, _)| *at <= now)?;
        self.dues.remove(&due);
        Some(due.1)
    }

    /// Why a word could not be armed since the last call.
    #[inline]
    pub(super) fn failure(&mut self) -> io::Result<()> {
        if self.failed.is_none() {
            return Ok(());
        }
        self.failed.take().map_or(Ok(()), Err)
    }
}
