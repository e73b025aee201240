//! Makes the bytes of a stream, and checks the bytes that a reader gets.
//!
//! ```text
//! stream: [who wrote it][its length][bytes that follow from both]
//! ```
//!
//! A writer is named by a number drawn for each stream. So a byte that is missing, or comes twice,
//! shows in the next one; and a stream that ends before its length says so, unless its writer
//! has told on the board that it cut it short.

use std::collections::VecDeque;

/// Bytes before those that follow from them.
pub(crate) const HEAD: usize = 16;
/// Bytes of a stream at most.
pub(crate) const LONGEST: usize = 1 << 20;
/// Streams of which a reader knows that it has read them.
const KNOWN: usize = 64;

/// The byte at `at` of the stream of `who`, which has `len`.
fn byte(who: u64, len: usize, at: usize) -> u8 {
    let word = match at / 8 {
        0 => who,
        1 => len as u64,
        n => (who ^ len as u64)
            .wrapping_mul(n as u64 | 1)
            .rotate_left(23),
    };
    word.to_le_bytes()[at % 8]
}

/// The bytes of a stream from `from` on, before `to`.
pub(crate) fn bytes(who: u64, len: usize, from: usize, to: usize) -> Vec<u8> {
    (from..to).map(|at| byte(who, len, at)).collect()
}

/// What one reader has been handed.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    /// The beginning of the stream that it is in.
    head: Vec<u8>,
    /// Bytes of it so far.
    at: usize,
    /// Streams that have ended, or were broken off.
    past: VecDeque<u64>,
    /// It has read something.
    pub(crate) begun: bool,
}

impl Flow {
    fn head(&self) -> Option<(u64, usize)> {
        let (who, rest) = self.head.split_first_chunk::<8>()?;
        let len = u64::from_le_bytes(*rest.first_chunk::<8>()?);
        Some((u64::from_le_bytes(*who), usize::try_from(len).ok()?))
    }

    /// Whether it is in the middle of a stream.
    pub(crate) fn is_within(&self) -> bool {
        self.at > 0
    }

    /// It was handed bytes.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.begun = true;
        for got in bytes {
            if self.at < HEAD {
                self.head.push(*got);
            }
            self.at += 1;
            let Some((who, len)) = self.head() else {
                continue;
            };
            let at = self.at - 1;
            if len > LONGEST || at >= len {
                return Err(format!("a stream of {len} bytes has one at {at}"));
            }
            if at + 1 == HEAD && self.past.contains(&who) {
                return Err(format!("the stream of {who:#x} comes again"));
            }
            let expected = byte(who, len, at);
            if *got != expected {
                return Err(format!(
                    "byte {at} of {len} of {who:#x} is {got:#x} and not {expected:#x}"
                ));
            }
        }
        Ok(())
    }

    /// The stream has ended: whose it was, if that was before its length.
    pub(crate) fn end(&mut self) -> Option<u64> {
        let (at, head) = (self.at, self.head());
        self.break_off();
        // Of one that has not even said whose it is nobody can tell.
        head.filter(|(_, len)| at < *len).map(|(who, _)| who)
    }

    /// The rest of the stream will not come.
    pub(crate) fn break_off(&mut self) {
        if let Some((who, _)) = self.head() {
            if self.past.len() >= KNOWN {
                self.past.pop_front();
            }
            self.past.push_back(who);
        }
        self.head.clear();
        self.at = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_that_is_missing_changed_or_doubled_is_found() {
        let whole = bytes(7, 500, 0, 500);
        let read = |bytes: &[u8]| {
            let mut flow = Flow::default();
            flow.bytes(bytes).map(|()| flow.end())
        };
        assert_eq!(read(&whole), Ok(None));
        assert_eq!(read(&whole[..400]), Ok(Some(7)));
        for at in [9, 17, 100, 499] {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            assert!(read(&changed).is_err(), "{at}");
        }
        for at in [17, 100, 400] {
            assert!(read(&[&whole[..at], &whole[at + 1..]].concat()).is_err());
            assert!(read(&[&whole[..at], &whole[at - 1..]].concat()).is_err());
        }
    }

    #[test]
    fn a_stream_that_comes_again_is_found() {
        let mut flow = Flow::default();
        for who in [1, 2, 3] {
            assert_eq!(flow.bytes(&bytes(who, 40, 0, 40)), Ok(()));
            assert_eq!(flow.end(), None);
        }
        assert!(flow.bytes(&bytes(2, 40, 0, 40)).is_err());
    }
}
