//! Fills a frame buffer, and checks what its readers see.
//!
//! ```text
//! word: 63      40 39      20 19     12 11      0
//!       [ who 24  ][ frame 20 ][ place 8][ index 12 ]
//! ```
//!
//! A unit that is put while somebody looks is a mixture of words, each of which was written
//! whole. So every word says where it belongs; in one place frames of one writer only get
//! newer, and what another one has put over them never comes back.

/// What was seen at one word.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// Whose the last one was, and which frame.
    last: Option<(u64, u64)>,
    /// Who was there before.
    before: Vec<u64>,
}

/// Writers of one word that are remembered.
const KNOWN: usize = 16;
/// Frames of one writer.
pub(crate) const FRAMES: u64 = 1 << 20;
/// A writer's number is below this, and not 0.
pub(crate) const WRITERS: u64 = 1 << 24;

/// The word `index` of the unit at `place`.
fn word(who: u64, frame: u64, place: u64, index: usize) -> u64 {
    who << 40 | (frame % FRAMES) << 20 | (place & 0xff) << 12 | index as u64 & 0xfff
}

/// A unit of so many words.
pub(crate) fn unit(who: u64, frame: u64, place: u64, words: usize) -> Vec<u8> {
    let words = (0..words).map(|index| word(who, frame, place, index));
    words.flat_map(u64::to_le_bytes).collect()
}

/// What one who looks has seen.
#[derive(Debug)]
pub(crate) struct Picture {
    words: usize,
    seen: Vec<Seen>,
}

impl Picture {
    /// Of so many units, of so many words each.
    pub(crate) fn new(units: usize, words: usize) -> Self {
        Self {
            words,
            seen: vec![Seen::default(); units * words],
        }
    }

    /// It has looked at a unit.
    pub(crate) fn look(&mut self, place: u64, bytes: &[u8]) -> Result<(), String> {
        let at = usize::try_from(place).unwrap_or(0) * self.words;
        for (index, got) in bytes.as_chunks::<8>().0.iter().enumerate() {
            let got = u64::from_le_bytes(*got);
            let Some(seen) = self.seen.get_mut(at + index) else {
                return Err(format!("there is no unit {place}"));
            };
            let (who, frame) = (got >> 40, got >> 20 & (FRAMES - 1));
            if got == 0 && seen.last.is_none() {
                // Nobody has put anything there yet.
                continue;
            }
            if got != word(who, frame, place, index) || who == 0 {
                return Err(format!("word {index} of unit {place} is {got:#x}"));
            }
            match seen.last.replace((who, frame)) {
                Some((last, before)) if last == who && frame < before => {
                    return Err(format!("at {place} frame {frame} came after {before}"));
                }
                Some((last, _)) if last != who => {
                    seen.before.push(last);
                    if seen.before.len() > KNOWN {
                        seen.before.remove(0);
                    }
                }
                _ => {}
            }
            if seen.before.contains(&who) {
                return Err(format!("at {place} a frame of {who:#x} came back"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mixture_is_no_fault_and_what_comes_back_is() {
        let mut picture = Picture::new(2, 4);
        assert_eq!(picture.look(1, &[0; 32]), Ok(()));
        let (old, new) = (unit(5, 1, 1, 4), unit(5, 2, 1, 4));
        assert_eq!(picture.look(1, &old), Ok(()));
        let mixture = [&new[..16], &old[16..]].concat();
        assert_eq!(picture.look(1, &mixture), Ok(()));
        assert_eq!(picture.look(1, &new), Ok(()));
        assert!(picture.look(1, &mixture).is_err());
        let mut picture = Picture::new(2, 4);
        let other = unit(6, 1, 1, 4);
        assert_eq!(picture.look(1, &new), Ok(()));
        assert_eq!(picture.look(1, &other), Ok(()));
        assert!(picture.look(1, &unit(5, 3, 1, 4)).is_err());
    }

    #[test]
    fn a_word_that_nobody_wrote_is_found() {
        for (at, bit) in [(0, 1), (9, 1), (17, 1 << 6), (26, 1)] {
            let mut bytes = unit(5, 1, 1, 4);
            bytes[at] ^= bit;
            assert!(Picture::new(2, 4).look(1, &bytes).is_err(), "{at}");
        }
        assert!(Picture::new(2, 4).look(0, &unit(5, 1, 1, 4)).is_err());
        let mut picture = Picture::new(2, 4);
        assert_eq!(picture.look(1, &unit(5, 1, 1, 4)), Ok(()));
        assert!(picture.look(1, &[0; 32]).is_err());
    }
}
