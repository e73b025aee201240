//! Computes the checksum of units and packets.
//!
//! ```text
//! bytes:     | 32 bytes, as words | v0 v1 v2 ...  vectors of 32 bytes | rest, zeros |
//!
//! word i:    f(w ^ A[i]) + f(w ^ B[i]) + f(swap(w) ^ C[i])
//! vector j:  lane = round(lane) ^ v               of lane j mod 8
//! joined:    l = round(round(lane))               of each, and of the rest
//!            l0 l1 l2 l3   round(.) ^  l4 l5 l6 l7
//!            t0 t1         round(.) ^  t2 t3
//!            u0 ^ rest     round(.) ^  u1
//!            lower half    round(.) ^  upper half
//! ```
//!
//! `round` is a round of AES without its key, on each half of a vector. A processor has an
//! instruction for it, of which it begins several in the time that it needs to copy a vector;
//! and lanes do not wait for one another. So a copy that also sums is hardly slower than one
//! that does not (`portolan bench rpc`). `f` adds the product of a word's halves to it, `swap`
//! exchanges them: the fewest steps for the few bytes of a small call.
//!
//! # What shows
//!
//! What is to be found out is a payload of which some lines are of another lap or were not
//! yet written, or stand elsewhere.
//!
//! - A round gives every value another one. So of one changed vector its lane's difference
//!   stays, and so does that of whatever it is joined with.
//! - Of several in one lane, a later one would have to undo what the rounds in between have
//!   made of an earlier one: four bytes at least for each that differed, through a table that
//!   is far from linear. Amounts that were taken from one field and added to another, flipped
//!   signs, counters, shifted or exchanged vectors are no such thing.
//! - Before lanes meet, each goes through two rounds more: of one changed byte all sixteen are
//!   changed then, in one of 2^30 ways and more. One round would not do: it leaves a flipped
//!   sign 127 ways, so that of two in neighbouring lanes one in 127 pairs would vanish.
//! - Lanes begin with different constants, and the first words have some of their own.
//! - The position goes into the end of it, so what is whole and of another lap shows too; and
//!   the length, where packets are sealed.
//!
//! The rest is chance: one time in 2^32. It stands against accidents, not against forgers.

/// Bytes at the beginning that are summed as words.
pub const SHORT: usize = 32;
/// Bytes of a vector.
pub const VECTOR: usize = 32;
/// Lanes of vectors.
pub const LANES: usize = 8;

/// What tells the first words apart, and the three times that each is taken.
const WORDS: [[u64; 3]; SHORT / 8] = {
    let words: [u64; 3 * SHORT / 8] = constants(1);
    let mut of_each = [[0; 3]; SHORT / 8];
    let mut i = 0;
    while i < words.len() {
        of_each[i / 3][i % 3] = words[i];
        i += 1;
    }
    of_each
};

/// What lanes begin with, and what the rest is added to: the halves of each.
pub const BEGIN: [[u128; 2]; LANES + 1] = {
    let words: [u64; 4 * (LANES + 1)] = constants(1 + 3 * SHORT as u64 / 8);
    let mut lanes = [[0; 2]; LANES + 1];
    let mut i = 0;
    while i < 2 * (LANES + 1) {
        lanes[i / 2][i % 2] = (words[2 * i] as u128) << 64 | words[2 * i + 1] as u128;
        i += 1;
    }
    lanes
};

const fn constants<const N: usize>(first: u64) -> [u64; N] {
    let mut constants = [0; N];
    let mut i = 0;
    while i < N {
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

/// All of `bytes` in a word; for [`finish`].
///
/// ```
/// use portolan_abi::sum;
/// let sum = |position, bytes: &[u8]| sum::finish(position, sum::of(bytes));
/// assert_eq!(sum(3, b"from here to there"), sum(3, b"from here to there"));
/// assert_ne!(sum(3, b"from here to there"), sum(3, b"to here from there"));
/// assert_ne!(sum(3, b"from here to there"), sum(4, b"from here to there"));
/// ```
#[inline]
pub fn of(bytes: &[u8]) -> u64 {
    let (short, long) = bytes.split_at(bytes.len().min(SHORT));
    join(of_short(short), (!long.is_empty()).then(|| of_long(long)))
}

/// What [`of`] says of the first bytes and of what comes after them, if anything does.
#[inline]
pub const fn join(short: u64, long: Option<u64>) -> u64 {
    match long {
        Some(long) => short.wrapping_add(long),
        None => short,
    }
}

/// Of the first [`SHORT`] bytes, or fewer, if there are no more.
#[inline]
pub fn of_short(bytes: &[u8]) -> u64 {
    let (words, tail) = bytes.as_chunks::<8>();
    let last = (!tail.is_empty()).then(|| {
        let mut word = [0; 8];
        word[..tail.len()].copy_from_slice(tail);
        word
    });
    let mut sum = 0_u64;
    for (word, constants) in words.iter().chain(&last).zip(WORDS) {
        sum = sum.wrapping_add(of_word(constants, u64::from_le_bytes(*word)));
    }
    sum
}

#[inline]
const fn of_word([a, b, c]: [u64; 3], word: u64) -> u64 {
    halves(word ^ a)
        .wrapping_add(halves(word ^ b))
        .wrapping_add(halves(word.rotate_left(32) ^ c))
}

/// A word and the product of its halves. One flipped bit always changes it.
#[inline(always)]
const fn halves(word: u64) -> u64 {
    let product = (word & 0xffff_ffff).wrapping_mul(word >> 32);
    word.wrapping_add(product)
}

/// Computes the sum of the bytes after the first [`SHORT`], of which there is at least one. It uses
/// tables: a caller whose processor has the instruction uses that instead.
pub fn of_long(bytes: &[u8]) -> u64 {
    let mut lanes = BEGIN;
    let (vectors, tail) = bytes.as_chunks::<VECTOR>();
    for (j, vector) in vectors.iter().enumerate() {
        let lane = &mut lanes[j % LANES];
        let vector = halves_of(vector);
        *lane = [0, 1].map(|i| round(lane[i]) ^ vector[i]);
    }
    let rest = halves_of(&rest(tail));
    lanes[LANES] = [0, 1].map(|i| lanes[LANES][i] ^ rest[i]);
    let meet = |a: [u128; 2], b: [u128; 2]| [0, 1].map(|i| round(a[i]) ^ b[i]);
    let [l0, l1, l2, l3, l4, l5, l6, l7, r] = lanes.map(|l| l.map(|half| round(round(half))));
    let [t0, t1, t2, t3] = [meet(l0, l4), meet(l1, l5), meet(l2, l6), meet(l3, l7)];
    let (u0, u1) = (meet(t0, t2), meet(t1, t3));
    let [lower, upper] = meet([0, 1].map(|i| u0[i] ^ r[i]), u1);
    let [low @ .., _, _, _, _, _, _, _, _] = (round(lower) ^ upper).to_le_bytes();
    u64::from_le_bytes(low)
}

/// Fewer bytes than a vector has, and zeros.
#[inline]
pub fn rest(tail: &[u8]) -> [u8; VECTOR] {
    let mut rest = [0; VECTOR];
    // Most have none, and a copy of so few bytes would be a call.
    for (to, from) in rest.iter_mut().zip(tail) {
        *to = *from;
    }
    rest
}

/// A vector's halves.
#[inline]
pub fn halves_of(vector: &[u8; VECTOR]) -> [u128; 2] {
    let (halves, _) = vector.as_chunks::<16>();
    [halves[0], halves[1]].map(u128::from_le_bytes)
}

/// A round of AES without a key.
fn round(half: u128) -> u128 {
    let bytes = half.to_le_bytes();
    let mut columns = [0; 16];
    for (i, column) in columns.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        // Rows are shifted: the byte of row `r` comes from `r` columns further on.
        let entry = |r: usize| {
            let byte = bytes[(4 * (i + r) + r) % 16];
            u32::from_le_bytes(ROUND[usize::from(byte)])
        };
        let [a, b, c, d] = [0, 1, 2, 3].map(entry);
        let mixed = a ^ b.rotate_left(8) ^ c.rotate_left(16) ^ d.rotate_left(24);
        *column = mixed.to_le_bytes();
    }
    u128::from_le_bytes(columns)
}

/// For a byte of the first row: what it is substituted by, times each of the column's factors.
const ROUND: [[u8; 4]; 256] = {
    let mut table = [[0; 4]; 256];
    // All but 0: the powers of 3, and with each its inverse.
    let (mut power, mut inverse) = (1_u8, 1_u8);
    loop {
        power ^= twice(power);
        inverse ^= inverse << 1;
        inverse ^= inverse << 2;
        inverse ^= inverse << 4;
        if inverse & 0x80 != 0 {
            inverse ^= 0x09;
        }
        table[power as usize] = column(inverse);
        if power == 1 {
            break;
        }
    }
    table[0] = column(0);
    table
};

/// A byte of which this is the inverse, as it is substituted, times the column's factors.
const fn column(inverse: u8) -> [u8; 4] {
    let turned = inverse.rotate_left(1) ^ inverse.rotate_left(2);
    let turned = turned ^ inverse.rotate_left(3) ^ inverse.rotate_left(4);
    let byte = inverse ^ turned ^ 0x63;
    [twice(byte), byte, byte, twice(byte) ^ byte]
}

/// In the field of AES.
const fn twice(byte: u8) -> u8 {
    let carry = if byte & 0x80 != 0 { 0x1b } else { 0 };
    byte << 1 ^ carry
}

/// What was folded, and some more words.
#[inline(always)]
pub const fn with<const N: usize>(mut folded: u64, words: [u64; N]) -> u64 {
    let mut i = 0;
    while i < N {
        folded = folded.wrapping_add(halves(words[i] ^ mix(1 + i as u64).rotate_left(16)));
        i += 1;
    }
    folded
}

/// A checksum of 32 bits from the position and what was folded.
#[inline(always)]
pub const fn finish(position: u64, folded: u64) -> u32 {
    let seeded = halves(position.wrapping_mul(GOLDEN)) ^ folded;
    let [.., a, b, c, d] = seeded.wrapping_mul(GOLDEN).to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// Every so many cases: Miri takes a thousand times as long for one.
    fn every(cases: usize) -> usize {
        if cfg!(miri) { cases } else { 1 }
    }

    fn sum(bytes: &[u8]) -> u32 {
        finish(7, of(bytes))
    }

    fn of_words(words: &[u64]) -> u32 {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        sum(&bytes)
    }

    #[test]
    fn a_round_is_that_of_the_standard() {
        // FIPS 197, appendix B: the first round, without its key.
        let in_order = |bytes: u128| u128::from_le_bytes(bytes.to_be_bytes());
        let before = in_order(0x193d_e3be_a0f4_e22b_9ac6_8d2a_e9f8_4808);
        let after = in_order(0x0466_81e5_e0cb_199a_48f8_d37a_2806_264c);
        assert_eq!(round(before), after);
    }

    #[test]
    fn a_flipped_bit_shows() {
        let bytes = (0..=255).cycle().take(700).collect::<Vec<u8>>();
        for len in [1, 8, 31, 32, 33, 64, 250, 700] {
            let bytes = &bytes[..len];
            for bit in (0..bytes.len() * 8).step_by(every(401)) {
                let mut other = bytes.to_vec();
                other[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(sum(&other), sum(bytes), "bit {bit} of {len} bytes");
            }
        }
    }

    #[test]
    fn two_changed_words_show_also_where_a_plain_sum_would_not() {
        let words: Vec<u64> = (0..96).map(mix).collect();
        type Change = fn(u64) -> u64;
        let changes: [(&str, Change, Change); 4] = [
            ("moved", |w| w.wrapping_sub(5), |w| w.wrapping_add(5)),
            ("signs", |w| w ^ 1 << 63, |w| w ^ 1 << 63),
            ("undone", |w| w.wrapping_add(1), |w| w.wrapping_sub(1 << 32)),
            ("flipped", |w| !w, |w| !w),
        ];
        for one in (0..words.len()).step_by(every(17)) {
            for other in (one + 1..words.len()).step_by(every(29)) {
                let mut swapped = words.clone();
                swapped.swap(one, other);
                assert_ne!(
                    of_words(&swapped),
                    of_words(&words),
                    "swapped {one} {other}"
                );
                for (what, at_one, at_other) in changes {
                    let mut changed = words.clone();
                    changed[one] = at_one(changed[one]);
                    changed[other] = at_other(changed[other]);
                    assert_ne!(of_words(&changed), of_words(&words), "{what} {one} {other}");
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
                let words = (0..80).map(|i| {
                    let is_new = which >> (i / line) & 1 != 0;
                    laps[if is_new { new } else { old }](i)
                });
                of_words(&words.collect::<Vec<_>>())
            };
            let whole = words(u64::MAX);
            for torn in (0..0x3ff).step_by(every(199)) {
                assert_ne!(words(torn), whole, "{old} {new} {torn:#b}");
            }
        }
    }

    #[test]
    fn what_stands_elsewhere_shows() {
        // Little content, so that much of it is alike.
        for period in [1, 8, 32, 256, 300] {
            let bytes: Vec<u8> = (0..2000_usize)
                .map(|i| if i % period == 0 { 1 } else { 0 })
                .collect();
            let mut seen: HashMap<u32, &[u8]> = HashMap::new();
            for from in (0..600).step_by(every(149)) {
                let window = &bytes[from..from + 1024];
                let other = seen.insert(sum(window), window);
                assert!(other.is_none_or(|o| o == window), "{period} from {from}");
            }
        }
    }

    #[test]
    fn another_lap_shows_although_all_else_is_equal() {
        let folded = of(&[0; 48]);
        let sums: std::collections::HashSet<u32> =
            (0..1000).map(|lap| finish(lap * 1024, folded)).collect();
        assert_eq!(sums.len(), 1000);
    }
}
