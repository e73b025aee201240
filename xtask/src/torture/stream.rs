//! Makes the messages of a channel, and checks the messages that a reader gets.
//!
//! ```text
//! message: [who wrote it][number, length][position][bytes that follow from the three]
//! ```
//!
//! A writer is named by a number drawn when a writer is bound, or gives a message up. So between
//! two messages of one writer nothing can be missing but what its reader was told that it missed.

use portolan::channel::Missed;
use std::collections::BTreeMap;

/// Bytes of the shortest message.
pub(crate) const LEAST: usize = 24;
/// What stands for the position where many write: nobody knows it before.
pub(crate) const ANYWHERE: u64 = u64::MAX;

fn byte(seed: u64, at: usize) -> u8 {
    seed.to_le_bytes()[at % 8] ^ at.to_le_bytes()[0]
}

/// The message `number` of the writer `who`, of `len` bytes, to be written at `position`.
pub(crate) fn message(who: u64, number: u64, position: u64, len: usize) -> Vec<u8> {
    let len = len.max(LEAST);
    let seed = who ^ number.rotate_left(40) ^ position.rotate_left(20);
    let mut bytes: Vec<u8> = (0..len).map(|at| byte(seed, at)).collect();
    for (at, word) in [who, number << 32 | len as u64, position]
        .iter()
        .enumerate()
    {
        bytes[8 * at..8 * at + 8].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(
        bytes.get(8 * at..8 * at + 8)?.try_into().ok()?,
    ))
}

/// Who wrote a message, or the beginning of one, its number and its position, if it is whole
/// as far as it goes.
pub(crate) fn read(bytes: &[u8], complete: bool) -> Option<(u64, u64, u64)> {
    let (who, both, position) = (word(bytes, 0)?, word(bytes, 1)?, word(bytes, 2)?);
    let (number, len) = (both >> 32, usize::try_from(both & 0xffff_ffff).ok()?);
    let fits = if complete {
        bytes.len() == len
    } else {
        bytes.len() <= len
    };
    // A length that nobody wrote is not made room for.
    let whole = fits && len < 1 << 20 && message(who, number, position, len).starts_with(bytes);
    whole.then_some((who, number, position))
}

/// What one reader has been handed, and what it may be handed next.
#[derive(Debug)]
pub(crate) struct Followed {
    /// Several write: each message is one unit.
    many: bool,
    /// Payload bytes of a unit.
    payload: usize,
    /// It is waited for: from this position on it misses nothing.
    misses_until: u64,
    /// The position at which the next message begins.
    expected: Option<u64>,
    /// Who wrote the last message, and its number.
    last: Option<(u64, u64)>,
    /// How often something was missed.
    missed: u64,
    /// The number of the last message of each of many writers, and how often something had
    /// been missed before.
    numbers: BTreeMap<u64, (u64, u64)>,
    /// How often something had been missed before the last message.
    missed_before: u64,
    /// A message before the next one was begun and not ended: its writer is another.
    given_up: bool,
    /// Nothing was handed out since it was last told that it missed something.
    after_missed: bool,
}

impl Followed {
    /// A reader that is waited for from `misses_until` on; never, if that is `u64::MAX`.
    pub(crate) fn new(many: bool, payload: usize, misses_until: u64) -> Self {
        Self {
            many,
            payload,
            misses_until,
            expected: None,
            last: None,
            missed: 0,
            numbers: BTreeMap::new(),
            missed_before: 0,
            given_up: false,
            after_missed: false,
        }
    }

    /// It was handed the beginning of a message.
    pub(crate) fn piece(&self, bytes: &[u8]) -> Result<(), String> {
        if bytes.len() < LEAST || read(bytes, false).is_some() {
            return Ok(());
        }
        Err(format!("a piece of {} bytes is torn", bytes.len()))
    }

    /// It was handed a message that begins at `position`.
    pub(crate) fn message(&mut self, position: u64, bytes: &[u8]) -> Result<(), String> {
        let Some((who, number, written_at)) = read(bytes, true) else {
            let begin = &bytes[..bytes.len().min(LEAST)];
            return Err(format!(
                "a message of {} bytes at {position} is torn: {begin:?}",
                bytes.len()
            ));
        };
        if written_at != position && !self.many {
            return Err(format!(
                "what was written at {written_at} came at {position}"
            ));
        }
        let same = self.last.is_some_and(|(last, _)| last == who);
        match self.expected {
            Some(expected) if position < expected => {
                return Err(format!("a message at {position} came after {expected}"));
            }
            // Others begin messages and do not end them: of those nobody is told.
            Some(expected) if position > expected && (same || self.many) => {
                return Err(format!(
                    "units {expected} to {position} are missing, and nobody said so"
                ));
            }
            _ if self.given_up && same => {
                return Err(format!("units before {position} were missed twice"));
            }
            _ => {}
        }
        let missed_before = std::mem::replace(&mut self.missed_before, self.missed);
        let before = if self.many {
            self.numbers.insert(who, (number, self.missed))
        } else {
            let last = self.last.filter(|_| same);
            last.map(|(_, number)| (number, missed_before))
        };
        if let Some((before, missed)) = before
            && (number <= before || number != before + 1 && missed == self.missed)
        {
            return Err(format!(
                "message {number} came after {before}, and something was missed {} times",
                self.missed - missed
            ));
        }
        let units = bytes.len().div_ceil(self.payload).max(1) as u64;
        self.expected = Some(position + units);
        self.last = Some((who, number));
        self.given_up = false;
        self.after_missed = false;
        Ok(())
    }

    /// It was told that it missed units; `begun` if it had been handed the beginning of a
    /// message there.
    pub(crate) fn missed(&mut self, missed: Missed, begun: bool) -> Result<(), String> {
        let Missed { from, to } = missed;
        if from >= to {
            return Err(format!("it missed {from} to {to}, which is nothing"));
        }
        if let Some(expected) = self.expected {
            if from < expected || from > expected && self.many {
                return Err(format!(
                    "it missed {from} to {to}, and stands at {expected}"
                ));
            }
            self.given_up |= from > expected;
            // It may have come in the middle of a message, at first or behind what it missed; and
            // the rest of one whose writer has died is missed by everybody.
            let within = begun || self.after_missed;
            if from >= self.misses_until && self.last.is_some() && !within {
                return Err(format!(
                    "it missed {from} to {to}, and was waited for from {} on",
                    self.misses_until
                ));
            }
        }
        self.expected = Some(to);
        self.missed += 1;
        self.after_missed = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_message_is_found() {
        let mut followed = Followed::new(false, 48, u64::MAX);
        let mut bytes = message(7, 1, 5, 60);
        assert_eq!(followed.piece(&bytes[..30]), Ok(()));
        bytes[40] ^= 1;
        assert!(followed.piece(&bytes[..50]).is_err());
        assert!(followed.message(5, &bytes).is_err());
        bytes[40] ^= 1;
        assert!(followed.message(6, &bytes).is_err());
        assert_eq!(followed.message(5, &bytes), Ok(()));
        // Two units, and nothing comes twice.
        assert!(followed.message(5, &bytes).is_err());
        assert_eq!(followed.message(7, &message(7, 2, 7, 24)), Ok(()));
    }

    #[test]
    fn what_was_missed_is_what_is_missing() {
        let mut followed = Followed::new(false, 48, u64::MAX);
        let from_to = |from, to| Missed { from, to };
        assert_eq!(followed.message(0, &message(7, 1, 0, 24)), Ok(()));
        assert!(followed.message(2, &message(7, 2, 2, 24)).is_err());
        assert!(followed.message(1, &message(7, 3, 1, 24)).is_err());
        assert!(followed.missed(from_to(0, 4), false).is_err());
        assert_eq!(followed.missed(from_to(1, 4), false), Ok(()));
        assert_eq!(followed.message(4, &message(7, 4, 4, 24)), Ok(()));
        // Another writer, after one that died within a message.
        assert_eq!(followed.message(6, &message(8, 1, 6, 24)), Ok(()));
        let mut waited_for = Followed::new(false, 48, 0);
        assert_eq!(waited_for.message(0, &message(7, 1, 0, 24)), Ok(()));
        assert!(waited_for.missed(from_to(1, 2), false).is_err());
        assert_eq!(waited_for.missed(from_to(1, 2), true), Ok(()));
        // It missed the beginning of a message before that, and now the rest.
        let mut behind = Followed::new(false, 48, 59);
        assert_eq!(behind.message(53, &message(7, 1, 53, 24)), Ok(()));
        assert_eq!(behind.missed(from_to(54, 59), false), Ok(()));
        assert_eq!(behind.missed(from_to(59, 60), false), Ok(()));
        assert_eq!(behind.message(60, &message(7, 3, 60, 24)), Ok(()));
        assert!(behind.missed(from_to(61, 62), false).is_err());
    }

    #[test]
    fn of_many_writers_none_is_heard_twice() {
        let mut followed = Followed::new(true, 48, u64::MAX);
        for (position, who, number) in [(0, 1, 1), (1, 2, 1), (2, 1, 2)] {
            let bytes = message(who, number, ANYWHERE, 24);
            assert_eq!(followed.message(position, &bytes), Ok(()));
        }
        let again = message(2, 1, ANYWHERE, 24);
        assert!(followed.message(3, &again).is_err());
        assert!(followed.message(4, &message(2, 2, ANYWHERE, 24)).is_err());
        let missed = Missed { from: 3, to: 6 };
        assert_eq!(followed.missed(missed, false), Ok(()));
        for (position, who, number) in [(6, 1, 5), (7, 2, 9), (8, 1, 6)] {
            let bytes = message(who, number, ANYWHERE, 24);
            assert_eq!(followed.message(position, &bytes), Ok(()));
        }
    }
}
