//! Checks what importers of a worker's export say that they have written.
//!
//! A note's length is the number of the record that it tells of. So who has a note must find that
//! record, or a later one; and the notes of a worker are in the order of its records.

use super::super::board::{Board, Entry, MAX_WORKERS};
use super::super::random::Random;
use super::{SHORT, records};
use portolan::Deadline;
use portolan::vmmc::{Export, Notification, NotificationError, Notifications};
use portolan_abi::limits::PAGE;

/// Most notes in one go.
const BATCH: usize = 64;

/// The notes of an export.
pub(super) struct Notes {
    notifications: Notifications,
    /// Of each worker, the last record that was told of.
    heard: [u64; MAX_WORKERS],
    /// What each had begun to tell before anybody listened.
    before: [u64; MAX_WORKERS],
    /// There was no room for some: whose, nobody knows.
    some_lost: bool,
    blocked: bool,
    count: u64,
}

/// The record that stands in a word of the board, if it is of this export.
fn told(board: &Board, worker: usize, entry: Entry, export: u64) -> u64 {
    records::number(board.get(worker, entry), export)
}

impl Notes {
    pub(super) fn of(export: &Export, id: u64, board: &Board) -> Option<Self> {
        // Descriptors run out.
        let notifications = export.notifications().ok()?;
        let mut before = [0; MAX_WORKERS];
        for (worker, before) in before.iter_mut().enumerate() {
            *before = told(board, worker, Entry::Telling, id);
        }
        Some(Self {
            notifications,
            heard: [0; MAX_WORKERS],
            before,
            some_lost: false,
            blocked: false,
            count: 0,
        })
    }

    /// Takes notes; how many, and each must be of a record that `is_there` finds.
    pub(super) fn take(
        &mut self,
        random: &mut Random,
        is_there: impl FnMut(usize, u64) -> Result<(), String>,
    ) -> Result<u64, String> {
        if random.once_in(8) {
            self.blocked = !self.blocked;
            match self.blocked {
                true => self.notifications.block(),
                false => self.notifications.unblock(),
            }
        }
        let waits = random.once_in(4);
        self.hear(waits, is_there)?;
        Ok(std::mem::take(&mut self.count))
    }

    fn hear(
        &mut self,
        mut waits: bool,
        mut is_there: impl FnMut(usize, u64) -> Result<(), String>,
    ) -> Result<(), String> {
        for _ in 0..BATCH {
            let until = match std::mem::take(&mut waits) {
                true => Deadline::after(SHORT),
                false => Deadline::NOW,
            };
            let (offset, len) = match self.notifications.wait(until) {
                Ok(Notification::Written { offset, len, .. }) => (offset, len),
                Ok(_) => {
                    self.some_lost = true;
                    continue;
                }
                Err(NotificationError::TimedOut | NotificationError::Ended) => break,
                Err(NotificationError::System { .. }) => break,
                Err(error) => return Err(error.to_string()),
            };
            if self.blocked {
                return Err("a note was handed out that is kept back".to_owned());
            }
            let (worker, number) = ((offset / PAGE).wrapping_sub(1), 2 * len as u64);
            let Some(heard) = self.heard.get_mut(worker) else {
                return Err(format!(
                    "a note of {len} bytes at {offset}, which nobody wrote"
                ));
            };
            let before = std::mem::replace(heard, number);
            if number <= before {
                return Err(format!(
                    "a note of record {number} of {worker} came after {before}"
                ));
            }
            is_there(worker, number)?;
            self.count += 1;
        }
        Ok(())
    }

    /// The export has ended: all that importers had told by then is here; how many that were.
    pub(super) fn end(
        mut self,
        id: u64,
        board: &Board,
        mut is_there: impl FnMut(usize, u64) -> Result<(), String>,
    ) -> Result<u64, String> {
        // Noted now: what is told from here on is another's.
        let told: Vec<u64> = (0..MAX_WORKERS)
            .map(|worker| told(board, worker, Entry::Told, id))
            .collect();
        self.notifications.unblock();
        self.blocked = false;
        loop {
            let count = self.count;
            self.hear(false, &mut is_there)?;
            if self.count == count {
                break;
            }
        }
        for (worker, told) in told.into_iter().enumerate() {
            let heard = self.heard[worker].max(self.before[worker]);
            if heard < told && !self.some_lost {
                return Err(format!(
                    "worker {worker} told of record {told}, and the last one heard is {heard}"
                ));
            }
        }
        if self.notifications.garbled() > 0 {
            return Err(format!(
                "{} notes made no sense",
                self.notifications.garbled()
            ));
        }
        Ok(self.count)
    }
}
