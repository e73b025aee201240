//! The checksum of units and packets.

/// A checksum seeded with the position, so that what belongs to another lap does not pass.
///
/// Two running sums over words: an order of words or a shift shows, as plain sums would
/// not. Fast rather than strong: it stands against accidents, not against forgers.
///
/// ```
/// use portolan_abi::sum::Sum;
/// let sum = |position, words: &[u64]| {
///     let mut sum = Sum::seeded(position);
///     words.iter().for_each(|&w| sum.word(w));
///     sum.finish()
/// };
/// assert_eq!(sum(3, &[1, 2]), sum(3, &[1, 2]));
/// assert_ne!(sum(3, &[1, 2]), sum(3, &[2, 1]));
/// assert_ne!(sum(3, &[1, 2]), sum(4, &[1, 2]));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Sum {
    a: u64,
    b: u64,
}

impl Sum {
    /// The sum of nothing at `position`.
    #[inline]
    pub const fn seeded(position: u64) -> Self {
        Self {
            a: position ^ 0x9e37_79b9_7f4a_7c15,
            b: !position,
        }
    }

    /// Adds a word.
    #[inline]
    pub const fn word(&mut self, word: u64) {
        self.a = self.a.wrapping_add(word);
        self.b = self.b.wrapping_add(self.a);
    }

    /// Adds bytes, eight at a time; the last word is filled up with zeros.
    #[inline]
    pub fn bytes(&mut self, bytes: &[u8]) {
        let (words, tail) = bytes.as_chunks::<8>();
        for word in words {
            self.word(u64::from_le_bytes(*word));
        }
        if !tail.is_empty() {
            self.word(last(tail));
        }
    }

    /// Adds bytes as [`Self::bytes`] does, and copies them to the end of `to` in the same pass.
    #[inline]
    pub fn copy(&mut self, from: &[u8], to: &mut [u8]) {
        assert!(from.len() == to.len(), "both are of one length");
        let (words, tail) = from.as_chunks::<8>();
        let (places, rest) = to.as_chunks_mut::<8>();
        for (word, place) in words.iter().zip(places) {
            *place = *word;
            self.word(u64::from_le_bytes(*word));
        }
        if !tail.is_empty() {
            rest.copy_from_slice(tail);
            self.word(last(tail));
        }
    }

    /// The sum in 32 bits.
    #[inline]
    pub const fn finish(self) -> u32 {
        let mixed = (self.a ^ self.b.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let [.., a, b, c, d] = mixed.to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }
}

#[inline]
fn last(tail: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..tail.len()].copy_from_slice(tail);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_sums_what_the_sum_of_the_bytes_is() {
        let bytes = (0..100).collect::<Vec<u8>>();
        for len in 0..bytes.len() {
            let (mut plain, mut copying) = (Sum::seeded(7), Sum::seeded(7));
            let mut copy = vec![0; len];
            plain.bytes(&bytes[..len]);
            copying.copy(&bytes[..len], &mut copy);
            assert_eq!(
                (copying.finish(), &copy[..]),
                (plain.finish(), &bytes[..len])
            );
        }
    }

    #[test]
    fn a_flipped_bit_shows() {
        let bytes = (0..64).collect::<Vec<u8>>();
        let sum = |bytes: &[u8]| {
            let mut sum = Sum::seeded(1);
            sum.bytes(bytes);
            sum.finish()
        };
        for bit in 0..bytes.len() * 8 {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(sum(&other), sum(&bytes), "bit {bit}");
        }
    }
}
