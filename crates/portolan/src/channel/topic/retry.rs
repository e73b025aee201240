//! A retry is due while there is a publisher that a subscriber could not follow.

use crate::wait::Armable;
use std::time::{Duration, Instant};

/// How long after one attempt to follow it comes the next one.
const AFTER: Duration = Duration::from_millis(100);

/// A member of a subscriber's wait set: nobody tells of the entry for readers, or the memory, that
/// a publisher could not be followed for, so the set's waits end when the next attempt is due.
#[derive(Debug)]
pub(super) struct Retry {
    membership: u64,
    due: Instant,
}

impl Retry {
    /// In the set of a subscriber of this membership.
    pub(super) fn new(membership: u64) -> Self {
        let due = Instant::now() + AFTER;
        Self { membership, due }
    }

    /// An attempt was made, in vain.
    pub(super) fn renew(&mut self) {
        self.due = Instant::now() + AFTER;
    }

    fn is_due(&self) -> bool {
        Instant::now() >= self.due
    }
}

impl Armable for Retry {
    fn kind(&self) -> &'static str {
        "the retry"
    }

    fn membership(&self) -> u64 {
        self.membership
    }

    fn may_have(&mut self) -> bool {
        self.is_due()
    }

    fn has_alarms(&self) -> bool {
        true
    }

    fn due(&self) -> Option<Instant> {
        Some(self.due)
    }

    fn arm_for(&mut self, link: u64) -> bool {
        link == 0 || !self.is_due()
    }
}
