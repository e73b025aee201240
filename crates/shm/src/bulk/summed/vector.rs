//! Copies and sums in the same pass, with the vector instructions of x86-64: AVX-512 or AVX2, and
//! VAES.
//!
//! Loads and stores are assembly, for the reason that [`crate::bulk`] gives: the other side
//! may be writing, and the compiler must not look into it.

use super::aes::vector;
use crate::atomic::{AtomicU64, Ordering};
use core::arch::asm;
use core::arch::x86_64::{
    __m256i, __m512i, _mm_aesenc_si128, _mm_cvtsi128_si64, _mm256_aesenc_epi128,
    _mm256_castsi256_si128, _mm256_extracti128_si256, _mm256_set_epi64x, _mm256_set_m128i,
    _mm256_setzero_si256, _mm256_xor_si256, _mm512_aesenc_epi128, _mm512_castsi256_si512,
    _mm512_castsi512_si256, _mm512_extracti64x4_epi64, _mm512_inserti64x4, _mm512_setzero_si512,
};
use portolan_abi::sum::{BEGIN, LANES, VECTOR};
use std::sync::OnceLock;

/// Bytes that all lanes take once.
const STRIPE: usize = VECTOR * LANES;

/// Words of a vector.
const WORDS: usize = VECTOR / 8;

/// Copies, and sums what comes after the first bytes, if the processor can.
#[inline]
pub(super) fn store(words: &[AtomicU64], bytes: &[u8]) -> Option<u64> {
    let can = can()?;
    let (vectors, tail) = bytes.as_chunks::<VECTOR>();
    let (whole, left) = words.split_at_checked(vectors.len() * VECTOR / 8)?;
    // Word by word, and held in registers until they are summed: what was just stored in
    // pieces cannot be loaded in one before it has left the processor's store buffer.
    let mut rest = [0; WORDS];
    let (chunks, last) = tail.as_chunks();
    let chunks = chunks.iter().map(|chunk| u64::from_le_bytes(*chunk));
    let last = (!last.is_empty()).then(|| last.iter().rev().fold(0, |w, b| w << 8 | u64::from(*b)));
    for ((word, rest), value) in left.iter().zip(&mut rest).zip(chunks.chain(last)) {
        word.store(value, Ordering::Relaxed);
        *rest = value;
    }
    let (to, from) = (whole.as_ptr().cast_mut().cast(), vectors.as_ptr().cast());
    // SAFETY:
    // - `can` has asked the processor.
    // - Readable: `vectors` is a slice.
    // - Writable: `whole` is as many bytes, and atomics may be written through a shared
    //   reference.
    // - Races: only with other such copies and atomics, all opaque to the compiler.
    Some(unsafe { copy_and_sum(can, to, from, vectors.len(), rest) })
}

/// The other way round.
#[inline]
pub(super) fn load(words: &[AtomicU64], bytes: &mut [u8]) -> Option<u64> {
    let can = can()?;
    let (vectors, tail) = bytes.as_chunks_mut::<VECTOR>();
    let (whole, left) = words.split_at_checked(vectors.len() * VECTOR / 8)?;
    let mut rest = [0; WORDS];
    for ((word, rest), chunk) in left.iter().zip(&mut rest).zip(tail.chunks_mut(8)) {
        let value = word.load(Ordering::Relaxed);
        for (to, from) in chunk.iter_mut().zip(value.to_le_bytes()) {
            *to = from;
        }
        // Bytes behind the last one have no meaning.
        let behind = 64 - 8 * chunk.len();
        *rest = value << behind >> behind;
    }
    let (to, from) = (vectors.as_mut_ptr().cast(), whole.as_ptr().cast());
    // SAFETY:
    // - Processor, races: as in `store`.
    // - Readable: `whole` is as many bytes.
    // - Writable: `vectors` is an exclusive slice; nothing overlaps it for that reason.
    Some(unsafe { copy_and_sum(can, to, from, vectors.len(), rest) })
}

/// What the processor has.
#[derive(Clone, Copy)]
enum Width {
    Two,
    One,
}

/// What it has, once that was asked.
static HAS: OnceLock<Option<Width>> = OnceLock::new();

#[inline]
fn can() -> Option<Width> {
    *HAS.get_or_init(|| {
        let has_aes = std::arch::is_x86_feature_detected!("vaes")
            && std::arch::is_x86_feature_detected!("aes")
            && std::arch::is_x86_feature_detected!("avx2");
        let has_both = std::arch::is_x86_feature_detected!("avx512f");
        has_aes.then_some(if has_both { Width::Two } else { Width::One })
    })
}

/// Copies `vectors` vectors; the sum of them and of `rest`.
///
/// # Safety
///
/// The processor has AVX2, AES, VAES and what `width` needs; `from` is readable and `to`
/// writable for so many vectors, and they do not overlap.
#[inline]
unsafe fn copy_and_sum(
    width: Width,
    to: *mut u8,
    from: *const u8,
    vectors: usize,
    [r0, r1, r2, r3]: [u64; WORDS],
) -> u64 {
    match width {
        // SAFETY: the caller vouches for all of it.
        Width::Two => unsafe { two_at_a_time(to, from, vectors, r0, r1, r2, r3) },
        // SAFETY: the caller vouches for all of it.
        Width::One => unsafe { one_at_a_time(to, from, vectors, r0, r1, r2, r3) },
    }
}

/// With registers that hold two lanes.
///
/// # Safety
///
/// As of [`copy_and_sum`].
#[target_feature(enable = "avx512f,avx2,aes,vaes")]
unsafe fn two_at_a_time(
    to: *mut u8,
    from: *const u8,
    vectors: usize,
    r0: u64,
    r1: u64,
    r2: u64,
    r3: u64,
) -> u64 {
    let rest = of_words([r0, r1, r2, r3]);
    let pair = |i: usize| {
        let lower = _mm512_castsi256_si512(begin(2 * i));
        _mm512_inserti64x4::<1>(lower, begin(2 * i + 1))
    };
    let mut pairs = [pair(0), pair(1), pair(2), pair(3)];
    let (whole, end) = (vectors / LANES * STRIPE, vectors * VECTOR);
    let mut at = 0;
    while at < whole {
        for pair in &mut pairs {
            // SAFETY:
            // - 64 bytes that lie before `whole`, which the caller vouches for.
            let both = unsafe { copy_two(to, from, at) };
            *pair = _mm512_aesenc_epi128(*pair, both);
            at += 2 * VECTOR;
        }
    }
    for pair in &mut pairs {
        if at + 2 * VECTOR <= end {
            // SAFETY:
            // - 64 bytes that lie before `end`, which the caller vouches for.
            let both = unsafe { copy_two(to, from, at) };
            *pair = _mm512_aesenc_epi128(*pair, both);
            at += 2 * VECTOR;
        } else if at < end {
            // SAFETY:
            // - 32 bytes that lie before `end`, which the caller vouches for.
            let vector = unsafe { copy(to, from, at) };
            let lower = _mm256_aesenc_epi128(_mm512_castsi512_si256(*pair), vector);
            *pair = _mm512_inserti64x4::<0>(*pair, lower);
            at += VECTOR;
        }
    }
    // Lanes meet as they do in `join_lanes`, two at a time.
    let none = _mm512_setzero_si512();
    let twice = |pair| _mm512_aesenc_epi128(_mm512_aesenc_epi128(pair, none), none);
    let [a, b, c, d] = pairs;
    let (t0_t1, t2_t3) = (
        _mm512_aesenc_epi128(twice(a), twice(c)),
        _mm512_aesenc_epi128(twice(b), twice(d)),
    );
    let u0_u1 = _mm512_aesenc_epi128(t0_t1, t2_t3);
    let (u0, u1) = (
        _mm512_castsi512_si256(u0_u1),
        _mm512_extracti64x4_epi64::<1>(u0_u1),
    );
    join_last(u0, u1, rest)
}

/// With registers that hold a lane.
///
/// # Safety
///
/// As of [`copy_and_sum`].
#[target_feature(enable = "avx2,aes,vaes")]
unsafe fn one_at_a_time(
    to: *mut u8,
    from: *const u8,
    vectors: usize,
    r0: u64,
    r1: u64,
    r2: u64,
    r3: u64,
) -> u64 {
    let rest = of_words([r0, r1, r2, r3]);
    let mut lanes = [
        begin(0),
        begin(1),
        begin(2),
        begin(3),
        begin(4),
        begin(5),
        begin(6),
        begin(7),
    ];
    let whole = vectors / LANES * STRIPE;
    let mut at = 0;
    while at < whole {
        for lane in &mut lanes {
            // SAFETY:
            // - 32 bytes that lie before `whole`, which the caller vouches for.
            let vector = unsafe { copy(to, from, at) };
            *lane = _mm256_aesenc_epi128(*lane, vector);
            at += VECTOR;
        }
    }
    for lane in &mut lanes {
        if at < vectors * VECTOR {
            // SAFETY:
            // - 32 bytes that lie before the end, which the caller vouches for.
            let vector = unsafe { copy(to, from, at) };
            *lane = _mm256_aesenc_epi128(*lane, vector);
            at += VECTOR;
        }
    }
    join_lanes(lanes, rest)
}

/// All lanes, and the bytes that made no vector, in a word.
#[inline]
#[target_feature(enable = "avx2,aes,vaes")]
fn join_lanes(lanes: [__m256i; LANES], rest: __m256i) -> u64 {
    let meet = |one, other| _mm256_aesenc_epi128(one, other);
    let [l0, l1, l2, l3, l4, l5, l6, l7] = lanes.map(|lane| twice(lane));
    let (t0, t1, t2, t3) = (meet(l0, l4), meet(l1, l5), meet(l2, l6), meet(l3, l7));
    join_last(meet(t0, t2), meet(t1, t3), rest)
}

/// What the lanes have become when two are left, and the bytes that made no vector.
#[inline]
#[target_feature(enable = "avx2,aes,vaes")]
fn join_last(u0: __m256i, u1: __m256i, rest: __m256i) -> u64 {
    let rest = twice(_mm256_xor_si256(begin(LANES), rest));
    let joined = _mm256_aesenc_epi128(_mm256_xor_si256(u0, rest), u1);
    let lower = _mm256_castsi256_si128(joined);
    let upper = _mm256_extracti128_si256::<1>(joined);
    _mm_cvtsi128_si64(_mm_aesenc_si128(lower, upper)).cast_unsigned()
}

/// Two rounds.
#[inline]
#[target_feature(enable = "avx2,vaes")]
fn twice(lane: __m256i) -> __m256i {
    let none = _mm256_setzero_si256();
    _mm256_aesenc_epi128(_mm256_aesenc_epi128(lane, none), none)
}

/// Copies two vectors; them.
///
/// # Safety
///
/// The processor has AVX-512; both sides have 64 bytes from byte `at` on.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn copy_two(to: *mut u8, from: *const u8, at: usize) -> __m512i {
    let both: __m512i;
    // SAFETY:
    // - Touches those 64 bytes.
    // - AVX-512: the caller vouches for it.
    unsafe {
        asm!(
            "vmovdqu64 {both}, [{from} + {at}]",
            "vmovdqu64 [{to} + {at}], {both}",
            both = out(zmm_reg) both,
            from = in(reg) from,
            to = in(reg) to,
            at = in(reg) at,
            options(nostack, preserves_flags),
        );
    };
    both
}

/// Copies a vector; it.
///
/// # Safety
///
/// The processor has AVX2; both sides have 32 bytes from byte `at` on.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn copy(to: *mut u8, from: *const u8, at: usize) -> __m256i {
    let vector: __m256i;
    // SAFETY:
    // - Touches those 32 bytes.
    // - AVX2: the caller vouches for it.
    unsafe {
        asm!(
            "vmovdqu {vector}, [{from} + {at}]",
            "vmovdqu [{to} + {at}], {vector}",
            vector = out(ymm_reg) vector,
            from = in(reg) from,
            to = in(reg) to,
            at = in(reg) at,
            options(nostack, preserves_flags),
        );
    };
    vector
}

#[inline]
#[target_feature(enable = "avx2,aes")]
fn begin(lane: usize) -> __m256i {
    let [lower, upper] = BEGIN[lane];
    _mm256_set_m128i(vector(upper), vector(lower))
}

#[inline]
#[target_feature(enable = "avx2")]
fn of_words(words: [u64; WORDS]) -> __m256i {
    let [r0, r1, r2, r3] = words.map(u64::cast_signed);
    _mm256_set_epi64x(r3, r2, r1, r0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_widths_say_the_same() {
        let Some(most) = can() else { return };
        let bytes: Vec<u8> = (0..=255).cycle().take(1000).collect();
        for vectors in 0..=bytes.len() / VECTOR {
            let len = vectors * VECTOR;
            let [one, two] = [Width::One, most].map(|width| {
                let mut copy = vec![0_u8; len];
                let (to, from) = (copy.as_mut_ptr(), bytes.as_ptr());
                // SAFETY:
                // - The processor can do what it can, and less.
                // - Both have so many bytes, and lie apart.
                let sum = unsafe { copy_and_sum(width, to, from, vectors, [7; WORDS]) };
                (sum, copy)
            });
            assert_eq!(one, two);
            assert_eq!(one.1, bytes[..len]);
        }
    }
}
