//! The checksum of units and packets.
//!
//! ```text
//! words:  w0 w1 .. w11 | w12 w13 .. w23 | ...        a block is twelve words, 96 bytes
//! lane:    0  1 ..  11 |   0   1 ..  11 |
//!
//! lane i, for each of its words:  a = a + w          b = b + a
//!                                 c = c + swap(w)    d = d + c
//! at the end, of all lanes used:  sum of f(a ^ A[i]) + f(b ^ B[i]) + f(d ^ D[i])
//! ```
//!
//! `swap` exchanges the halves of a word; `f` adds the product of the halves to the word.
//! Lanes do not wait for one another, so a processor works on many at a time, and a copy
//! that also sums is not much slower than one that does not (`portolan bench rpc`).
//!
//! # What shows
//!
//! What is to be found out is a payload of which some lines are of another lap or were not
//! yet written: words at their places, with other values.
//!
//! - One changed word of a lane changes `a`.
//! - Of two in one lane, the second may undo in `a` what the first did. Then `b` differs by
//!   the distance of the two times the difference, and `d` by the distance times the swapped
//!   difference. Only differences in the uppermost bits can vanish in a product, as flipped
//!   signs do at an even distance; none is in the uppermost bits of both.
//! - Between lanes nothing cancels out but by chance: each has its own constants, and `f` is
//!   not linear. A plain sum would miss an amount that was taken from one field and added
//!   to another.
//! - The position goes into the end of it, so what is whole and of another lap shows too.
//!
//! The rest is chance: one time in 2^32. It stands against accidents, not against forgers.

/// Lanes of a [`Sum`].
pub const LANES: usize = 12;
/// Bytes of a block: a word for each lane.
pub const BLOCK: usize = 8 * LANES;

/// What tells the lanes apart: of `a`, of `b` and of `d`.
const CONSTANTS: [[u64; LANES]; 3] = [
    constants(1),
    constants(1 + LANES as u64),
    constants(1 + 2 * LANES as u64),
];

const fn constants(first: u64) -> [u64; LANES] {
    let mut constants = [0; LANES];
    let mut i = 0;
    while i < LANES {
        constants[i] = mix(first + i as u64);
        i += 1;
    }
    constants
}

/// The finaliser of splitmix64: every bit of the input moves every bit of the output.
const fn mix(word: u64) -> u64 {
    let word = word.wrapping_mul(GOLDEN);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The sum of some words, so far.
///
/// ```
/// use portolan_abi::sum::Sum;
/// let sum = |position, bytes: &[u8]| {
///     let mut sum = Sum::new();
///     sum.bytes(bytes);
///     sum.finish(position)
/// };
/// assert_eq!(sum(3, b"from here to there"), sum(3, b"from here to there"));
/// assert_ne!(sum(3, b"from here to there"), sum(3, b"to here from there"));
/// assert_ne!(sum(3, b"from here to there"), sum(4, b"from here to there"));
/// ```
#[derive(Clone, Debug)]
pub struct Sum {
    lanes: Lanes,
    /// Where the next word goes.
    lane: usize,
    /// Every lane has been used.
    all: bool,
}

/// What a sum holds at the end of a block, for copies that go on with it.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Lanes {
    /// See the [module](self).
    pub a: [u64; LANES],
    /// See the [module](self).
    pub b: [u64; LANES],
    /// See the [module](self).
    pub c: [u64; LANES],
    /// See the [module](self).
    pub d: [u64; LANES],
}

impl Default for Sum {
    fn default() -> Self {
        Self::new()
    }
}

impl Sum {
    /// The sum of nothing.
    #[inline]
    pub const fn new() -> Self {
        Self {
            lanes: Lanes {
                a: [0; LANES],
                b: [0; LANES],
                c: [0; LANES],
                d: [0; LANES],
            },
            lane: 0,
            all: false,
        }
    }

    /// Adds a word.
    #[inline]
    pub const fn word(&mut self, word: u64) {
        self.lanes.step(self.lane, word);
        self.lane += 1;
        if self.lane == LANES {
            self.lane = 0;
            self.all = true;
        }
    }

    /// Adds bytes, eight at a time; the last word is filled up with zeros.
    #[inline]
    pub fn bytes(&mut self, bytes: &[u8]) {
        let (words, tail) = bytes.as_chunks::<8>();
        self.words(words);
        if !tail.is_empty() {
            self.word(last(tail));
        }
    }

    #[inline]
    fn words(&mut self, mut words: &[[u8; 8]]) {
        while self.lane != 0
            && let Some((word, rest)) = words.split_first()
        {
            self.word(u64::from_le_bytes(*word));
            words = rest;
        }
        let (blocks, rest) = words.as_chunks::<LANES>();
        for block in blocks {
            self.all = true;
            for (lane, word) in block.iter().enumerate() {
                self.lanes.step(lane, u64::from_le_bytes(*word));
            }
        }
        for word in rest {
            self.word(u64::from_le_bytes(*word));
        }
    }

    /// Its lanes, if the next word begins a block: for who adds whole blocks to them, at
    /// least one.
    #[inline]
    pub const fn blocks(&mut self) -> Option<&mut Lanes> {
        if self.lane != 0 {
            return None;
        }
        self.all = true;
        Some(&mut self.lanes)
    }

    /// All that was added, in a word; for [`finish`].
    #[inline]
    pub fn fold(&self) -> u64 {
        if self.all {
            return self.lanes.fold();
        }
        let used = self.lane;
        let mut folded = 0_u64;
        for lane in 0..used.min(LANES) {
            folded = folded.wrapping_add(self.lanes.folded(lane));
        }
        folded
    }

    /// Whether every lane is in use: whether [`Self::fold`] is that of the lanes.
    #[inline]
    pub const fn lanes(&self) -> Option<&Lanes> {
        if self.all { Some(&self.lanes) } else { None }
    }

    /// The checksum of what was added, at `position`.
    #[inline]
    pub fn finish(&self, position: u64) -> u32 {
        finish(position, self.fold())
    }
}

impl Lanes {
    #[inline]
    const fn step(&mut self, lane: usize, word: u64) {
        self.a[lane] = self.a[lane].wrapping_add(word);
        self.b[lane] = self.b[lane].wrapping_add(self.a[lane]);
        self.c[lane] = self.c[lane].wrapping_add(word.rotate_left(32));
        self.d[lane] = self.d[lane].wrapping_add(self.c[lane]);
    }

    /// All lanes in a word.
    #[inline(always)]
    pub fn fold(&self) -> u64 {
        let mut folded = 0_u64;
        for lane in 0..LANES {
            folded = folded.wrapping_add(self.folded(lane));
        }
        folded
    }

    #[inline(always)]
    const fn folded(&self, lane: usize) -> u64 {
        let a = halves(self.a[lane] ^ CONSTANTS[0][lane]);
        let b = halves(self.b[lane] ^ CONSTANTS[1][lane]);
        let d = halves(self.d[lane] ^ CONSTANTS[2][lane]);
        a.wrapping_add(b).wrapping_add(d)
    }
}

/// A word and the product of its halves. One flipped bit always changes it.
#[inline(always)]
const fn halves(word: u64) -> u64 {
    let product = (word & 0xffff_ffff).wrapping_mul(word >> 32);
    word.wrapping_add(product)
}

/// The [fold](Sum::fold) of `bytes`. A few need no lanes: each has but one word.
#[inline]
pub fn of(bytes: &[u8]) -> u64 {
    if bytes.len() > BLOCK {
        let mut sum = Sum::new();
        sum.bytes(bytes);
        return sum.fold();
    }
    let (words, tail) = bytes.as_chunks::<8>();
    let mut folded = 0_u64;
    let mut add = |lane: usize, word: u64| {
        let [a, b, d] = CONSTANTS;
        folded = folded
            .wrapping_add(halves(word ^ a[lane]))
            .wrapping_add(halves(word ^ b[lane]))
            .wrapping_add(halves(word.rotate_left(32) ^ d[lane]));
    };
    for (lane, word) in words.iter().enumerate() {
        add(lane, u64::from_le_bytes(*word));
    }
    if !tail.is_empty() {
        add(words.len(), last(tail));
    }
    folded
}

/// What was folded, and some more words.
#[inline]
pub const fn with<const N: usize>(mut folded: u64, words: [u64; N]) -> u64 {
    let mut i = 0;
    while i < N {
        folded = folded.wrapping_add(halves(words[i] ^ mix(1 + i as u64).rotate_left(16)));
        i += 1;
    }
    folded
}

/// A checksum of 32 bits from the position and what was folded.
#[inline]
pub const fn finish(position: u64, folded: u64) -> u32 {
    let seeded = halves(position.wrapping_mul(GOLDEN)) ^ folded;
    let [.., a, b, c, d] = seeded.wrapping_mul(GOLDEN).to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
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

    fn sum(bytes: &[u8]) -> u32 {
        let mut sum = Sum::new();
        sum.bytes(bytes);
        sum.finish(7)
    }

    #[test]
    fn it_is_the_same_in_however_many_parts() {
        let bytes = (0..=255).cycle().take(500).collect::<Vec<u8>>();
        for cut in (0..bytes.len()).step_by(8) {
            let mut parts = Sum::new();
            parts.bytes(&bytes[..cut]);
            parts.bytes(&bytes[cut..]);
            assert_eq!(parts.finish(7), sum(&bytes), "cut at {cut}");
        }
    }

    #[test]
    fn the_sum_of_few_bytes_is_that_of_all() {
        let bytes = (0..=255).collect::<Vec<u8>>();
        for len in 0..bytes.len() {
            let mut sum = Sum::new();
            sum.bytes(&bytes[..len]);
            assert_eq!(of(&bytes[..len]), sum.fold(), "{len}");
        }
    }

    #[test]
    fn a_flipped_bit_shows() {
        let bytes = (0..250).collect::<Vec<u8>>();
        for bit in 0..bytes.len() * 8 {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(sum(&other), sum(&bytes), "bit {bit}");
        }
    }

    #[test]
    fn two_changed_words_show_also_where_a_plain_sum_would_not() {
        let words: Vec<u64> = (0..96).map(mix).collect();
        let of = |words: &[u64]| {
            let mut sum = Sum::new();
            words.iter().for_each(|&w| sum.word(w));
            sum.finish(7)
        };
        type Change = fn(u64) -> u64;
        let changes: [(&str, Change, Change); 3] = [
            ("moved", |w| w.wrapping_sub(5), |w| w.wrapping_add(5)),
            ("signs", |w| w ^ 1 << 63, |w| w ^ 1 << 63),
            ("undone", |w| w.wrapping_add(1), |w| w.wrapping_sub(1 << 32)),
        ];
        for one in 0..words.len() {
            for other in one + 1..words.len() {
                let mut swapped = words.clone();
                swapped.swap(one, other);
                assert_ne!(of(&swapped), of(&words), "swapped {one} {other}");
                for (what, at_one, at_other) in changes {
                    let mut changed = words.clone();
                    changed[one] = at_one(changed[one]);
                    changed[other] = at_other(changed[other]);
                    assert_ne!(of(&changed), of(&words), "{what} {one} {other}");
                }
            }
        }
    }

    #[test]
    fn whatever_lines_are_of_another_lap_shows() {
        // Accounts between which amounts move, vectors that are negated: sums that stay.
        let line = 8;
        let laps: [fn(u64) -> u64; 3] = [|i| i, |i| 4096 - i, |i| (1 << 63) | i];
        for (old, new) in [(0, 1), (1, 2), (0, 2)] {
            let words = |which: u64| {
                let mut sum = Sum::new();
                for i in 0..64 {
                    let lap = if which >> (i / line) & 1 == 0 {
                        old
                    } else {
                        new
                    };
                    sum.word(laps[lap](i));
                }
                sum.finish(7)
            };
            let whole = words(u64::MAX);
            for torn in 0..0xff {
                assert_ne!(words(torn), whole, "{old} {new} {torn:#b}");
            }
        }
    }

    #[test]
    fn another_lap_shows_although_all_else_is_equal() {
        let mut sum = Sum::new();
        sum.bytes(&[0; 48]);
        let sums: std::collections::HashSet<u32> =
            (0..1000).map(|lap| sum.finish(lap * 1024)).collect();
        assert_eq!(sums.len(), 1000);
    }
}
