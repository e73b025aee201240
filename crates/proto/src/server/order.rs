//! Decides which call numbers the server hands out, in which order, and which will not come (T2).

use super::Server;
use crate::Misbehaved;
use crate::call::index;
use crate::entry::{Entry, Stage};
use portolan_abi::rpc::{Flags, Header, PLACES, WINDOW};

impl Server {
    /// Best-effort calls in a row that may be lost: a quarter of what 24 bits tell apart.
    const MOST_LOST: u64 = 1 << 22;
    /// Numbers in a list at most: twice those that can be live.
    const MOST_LISTED: usize = 2 * PLACES;

    #[inline]
    pub(super) fn raise_floor_behind(
        &mut self,
        header: Header,
        number: u64,
    ) -> Result<(), Misbehaved> {
        let behind = u64::from(header.behind);
        let expected = self.next;
        if behind >= WINDOW || behind >= number {
            return Err(Misbehaved::Number { number, expected });
        }
        self.raise_floor(number - behind)
    }

    /// The client will send nothing below `floor` that has not arrived.
    #[inline]
    pub(super) fn raise_floor(&mut self, floor: u64) -> Result<(), Misbehaved> {
        let expected = self.next;
        if floor > self.next.saturating_add(Self::MOST_LOST) {
            let number = floor;
            return Err(Misbehaved::Number { number, expected });
        }
        if floor > self.next + WINDOW {
            // No entry lies beyond a window: step over those, and leap.
            self.floor = self.next + WINDOW;
            self.in_order();
            self.next = self.next.max(floor);
        }
        self.floor = self.floor.max(floor);
        self.in_order();
        Ok(())
    }

    #[inline]
    pub(super) fn in_window(&self, number: u64) -> Result<(), Misbehaved> {
        if number >= self.next + WINDOW {
            let expected = self.next;
            return Err(Misbehaved::Number { number, expected });
        }
        Ok(())
    }

    /// The entry of a number that has not been handed out, taken from an earlier number: the
    /// client has used its place again, so it does not wait for that one (T3).
    #[inline]
    pub(super) fn enter(&mut self, number: u64) -> &mut Entry {
        let entry = &mut self.entries[index(number)];
        if entry.number != number {
            let earlier = (entry.stage == Stage::Running).then_some(entry.number);
            entry.number = number;
            entry.stage = Stage::Vacant;
            entry.body.clear();
            entry.assembly.clear();
            self.cancel(earlier);
        }
        &mut self.entries[index(number)]
    }

    #[inline]
    pub(super) fn cancel(&mut self, number: Option<u64>) {
        if let Some(number) = number {
            // Who does not take them need not hear of all.
            self.cancelled.truncate(Self::MOST_LISTED);
            self.cancelled.push_back(number);
        }
    }

    #[inline]
    pub(super) fn is_cancelled(&self, number: u64) -> bool {
        number >= self.next && self.cancelled_numbers & 1 << index(number) != 0
    }

    /// Whether a number that was not handed out has come whole.
    #[inline]
    pub(super) fn has(&self, number: u64) -> bool {
        let entry = &self.entries[index(number)];
        entry.number == number && entry.stage == Stage::Ready
    }

    /// Moves on over what has come, and what will not come (T2).
    #[inline]
    pub(super) fn in_order(&mut self) {
        loop {
            let (next, at) = (self.next, index(self.next));
            let entry = &mut self.entries[at];
            let known = entry.number == next;
            if known && entry.stage == Stage::Ready {
                self.untold += u64::from(entry.flags.has(Flags::ONE_WAY));
                self.list(next);
            } else if self.cancelled_numbers & 1 << at != 0 || next < self.floor {
                if known {
                    entry.stage = Stage::Over;
                    entry.assembly.clear();
                }
            } else {
                return;
            }
            self.cancelled_numbers &= !(1 << at);
            self.next += 1;
        }
    }

    #[inline]
    pub(super) fn list(&mut self, number: u64) {
        if self.ready.len() >= Self::MOST_LISTED {
            let entries = &self.entries;
            self.ready.retain(|&n| {
                let entry = &entries[index(n)];
                entry.number == n && entry.stage == Stage::Ready
            });
        }
        self.ready.push_back(number);
    }

    /// A number will not come; or, if it has, is not wanted any more.
    pub(super) fn cancel_number(&mut self, number: u64, unwanted: bool) -> Result<(), Misbehaved> {
        if number >= self.next {
            self.in_window(number)?;
            if self.has(number) && !unwanted {
                // We asked, and it came meanwhile.
                return Ok(());
            }
            let entry = &mut self.entries[index(number)];
            if entry.number == number {
                entry.stage = Stage::Over;
                entry.assembly.clear();
            }
            self.cancelled_numbers |= 1 << index(number);
            self.seen = self.seen.max(number + 1);
            self.in_order();
            return Ok(());
        }
        let entry = &mut self.entries[index(number)];
        if entry.number != number || !unwanted {
            return Ok(());
        }
        match entry.stage {
            Stage::Running => {
                entry.stage = Stage::Over;
                self.cancel(Some(number));
            }
            Stage::Ready | Stage::Answered => {
                entry.stage = Stage::Over;
                entry.body.clear();
            }
            _ => {}
        }
        Ok(())
    }
}
