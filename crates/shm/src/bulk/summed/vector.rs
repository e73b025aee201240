//! Copies that sum in the same pass, with the vector instructions of x86-64: AVX-512 or AVX2,
//! and VAES.
//!
//! Loads and stores are assembly, for the reason that [`crate::bulk`] gives: the other side
//! may be writing, and the compiler must not look into it.

use super::aes::{Halves, fold, vector};
use crate::atomic::AtomicU64;
use core::arch::asm;
use core::arch::x86_64::{
    __m256i, __m512i, _mm256_aesenc_epi128, _mm256_castsi256_si128, _mm256_extracti128_si256,
    _mm256_set_m128i, _mm512_aesenc_epi128, _mm512_castsi256_si512, _mm512_castsi512_si256,
    _mm512_extracti64x4_epi64, _mm512_inserti64x4,
};
use portolan_abi::sum::{BEGIN, LANES, VECTOR, rest};

/// Bytes that all lanes take once.
const STRIPE: usize = VECTOR * LANES;

/// Copies, and sums what comes after the first bytes, if the processor can.
#[inline]
pub(super) fn store(words: &[AtomicU64], bytes: &[u8]) -> Option<u64> {
    let can = can()?;
    let (vectors, tail) = bytes.as_chunks::<VECTOR>();
    let (whole, left) = words.split_at_checked(vectors.len() * VECTOR / 8)?;
    crate::bulk::store(left, tail);
    let (to, from) = (whole.as_ptr().cast_mut().cast(), vectors.as_ptr().cast());
    // SAFETY:
    // - `can` has asked the processor.
    // - Readable: `vectors` is a slice.
    // - Writable: `whole` is as many bytes, and atomics may be written through a shared
    //   reference.
    // - Races: only with other such copies and atomics, all opaque to the compiler.
    Some(unsafe { copy_and_sum(can, to, from, vectors.len(), &rest(tail)) })
}

/// The other way round.
#[inline]
pub(super) fn load(words: &[AtomicU64], bytes: &mut [u8]) -> Option<u64> {
    let can = can()?;
    let (vectors, tail) = bytes.as_chunks_mut::<VECTOR>();
    let (whole, left) = words.split_at_checked(vectors.len() * VECTOR / 8)?;
    crate::bulk::load(left, tail);
    let (to, from) = (vectors.as_mut_ptr().cast(), whole.as_ptr().cast());
    // SAFETY:
    // - Processor, races: as in `store`.
    // - Readable: `whole` is as many bytes.
    // - Writable: `vectors` is an exclusive slice; nothing overlaps it for that reason.
    Some(unsafe { copy_and_sum(can, to, from, vectors.len(), &rest(tail)) })
}

/// What the processor has.
#[derive(Clone, Copy)]
enum Width {
    Two,
    One,
}

#[inline]
fn can() -> Option<Width> {
    let has_aes = std::arch::is_x86_feature_detected!("vaes")
        && std::arch::is_x86_feature_detected!("aes")
        && std::arch::is_x86_feature_detected!("avx2");
    if !has_aes {
        None
    } else if std::arch::is_x86_feature_detected!("avx512f") {
        Some(Width::Two)
    } else {
        Some(Width::One)
    }
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
    rest: &[u8; VECTOR],
) -> u64 {
    match width {
        // SAFETY: the caller vouches for all of it.
        Width::Two => unsafe { two_at_a_time(to, from, vectors, rest) },
        // SAFETY: the caller vouches for all of it.
        Width::One => unsafe { one_at_a_time(to, from, vectors, rest) },
    }
}

/// With registers that hold two lanes.
///
/// # Safety
///
/// As of [`copy_and_sum`].
#[target_feature(enable = "avx512f,avx2,aes,vaes")]
unsafe fn two_at_a_time(to: *mut u8, from: *const u8, vectors: usize, rest: &[u8; VECTOR]) -> u64 {
    let pair = |i: usize| {
        let lower = _mm512_castsi256_si512(begin(2 * i));
        _mm512_inserti64x4::<1>(lower, begin(2 * i + 1))
    };
    let mut pairs = [pair(0), pair(1), pair(2), pair(3)];
    let whole = vectors / LANES * STRIPE;
    let mut at = 0;
    while at < whole {
        for pair in &mut pairs {
            let both: __m512i;
            // SAFETY:
            // - Touches 64 bytes that lie before `whole`, which the caller vouches for.
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
            *pair = _mm512_aesenc_epi128(*pair, both);
            at += 2 * VECTOR;
        }
    }
    let [a, b, c, d] = pairs;
    let lower = |pair: __m512i| _mm512_castsi512_si256(pair);
    let upper = |pair: __m512i| _mm512_extracti64x4_epi64::<1>(pair);
    let lanes = [
        lower(a),
        upper(a),
        lower(b),
        upper(b),
        lower(c),
        upper(c),
        lower(d),
        upper(d),
    ];
    // SAFETY: the caller vouches for all of it.
    unsafe { finish(lanes, to, from, at, vectors * VECTOR, rest) }
}

/// With registers that hold a lane.
///
/// # Safety
///
/// As of [`copy_and_sum`].
#[target_feature(enable = "avx2,aes,vaes")]
unsafe fn one_at_a_time(to: *mut u8, from: *const u8, vectors: usize, rest: &[u8; VECTOR]) -> u64 {
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
    // SAFETY: the caller vouches for all of it.
    unsafe { finish(lanes, to, from, at, vectors * VECTOR, rest) }
}

/// The vectors from byte `at` to before `end`, fewer than there are lanes; and the sum.
///
/// # Safety
///
/// As of [`copy_and_sum`], for the bytes before `end`.
#[inline]
#[target_feature(enable = "avx2,aes,vaes")]
unsafe fn finish(
    mut lanes: [__m256i; LANES],
    to: *mut u8,
    from: *const u8,
    mut at: usize,
    end: usize,
    rest: &[u8; VECTOR],
) -> u64 {
    for lane in &mut lanes {
        if at < end {
            // SAFETY:
            // - 32 bytes that lie before `end`, which the caller vouches for.
            let vector = unsafe { copy(to, from, at) };
            *lane = _mm256_aesenc_epi128(*lane, vector);
            at += VECTOR;
        }
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    let lanes = [
        halves(a),
        halves(b),
        halves(c),
        halves(d),
        halves(e),
        halves(f),
        halves(g),
        halves(h),
    ];
    fold(lanes, rest)
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
fn halves(lane: __m256i) -> Halves {
    [
        _mm256_castsi256_si128(lane),
        _mm256_extracti128_si256::<1>(lane),
    ]
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
                let sum = unsafe { copy_and_sum(width, to, from, vectors, &[7; VECTOR]) };
                (sum, copy)
            });
            assert_eq!(one, two);
            assert_eq!(one.1, bytes[..len]);
        }
    }
}
