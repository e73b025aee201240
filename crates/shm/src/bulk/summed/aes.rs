//! Sums with the processor's own instruction for a round of AES.

use core::arch::x86_64::{
    __m128i, _mm_aesenc_si128, _mm_cvtsi128_si64, _mm_set_epi64x, _mm_setzero_si128, _mm_xor_si128,
};
use portolan_abi::sum::{BEGIN, LANES, VECTOR, halves_of, rest};

/// A vector, or a lane.
type Halves = [__m128i; 2];

/// [`portolan_abi::sum::of_long`], if the processor can.
#[inline]
pub(super) fn of_long(bytes: &[u8]) -> Option<u64> {
    if !std::arch::is_x86_feature_detected!("aes") {
        return None;
    }
    // SAFETY: the processor has AES, and with it SSE2.
    Some(unsafe { sum(bytes) })
}

#[target_feature(enable = "aes")]
fn sum(bytes: &[u8]) -> u64 {
    let mut lanes = [[_mm_setzero_si128(); 2]; LANES];
    for (lane, [lower, upper]) in lanes.iter_mut().zip(BEGIN) {
        *lane = [vector(lower), vector(upper)];
    }
    let (vectors, tail) = bytes.as_chunks::<VECTOR>();
    let (blocks, left) = vectors.as_chunks::<LANES>();
    for block in blocks {
        for (lane, vector) in lanes.iter_mut().zip(block) {
            take(lane, vector);
        }
    }
    for (lane, vector) in lanes.iter_mut().zip(left) {
        take(lane, vector);
    }
    fold(lanes, &rest(tail))
}

#[inline]
#[target_feature(enable = "aes")]
fn take(lane: &mut Halves, bytes: &[u8; VECTOR]) {
    let [lower, upper] = halves_of(bytes);
    *lane = meet(*lane, [vector(lower), vector(upper)]);
}

/// A round for each half, and what comes to it.
#[inline]
#[target_feature(enable = "aes")]
fn meet([a, b]: Halves, [c, d]: Halves) -> Halves {
    [_mm_aesenc_si128(a, c), _mm_aesenc_si128(b, d)]
}

/// All lanes, and the bytes that made no vector, in a word.
#[inline]
#[target_feature(enable = "aes")]
fn fold(lanes: [Halves; LANES], rest: &[u8; VECTOR]) -> u64 {
    let ([lower, upper], [begin, and]) = (halves_of(rest), BEGIN[LANES]);
    let rest = twice([vector(lower ^ begin), vector(upper ^ and)]);
    let [l0, l1, l2, l3, l4, l5, l6, l7] = lanes;
    let (t0, t1) = (meet(twice(l0), twice(l4)), meet(twice(l1), twice(l5)));
    let (t2, t3) = (meet(twice(l2), twice(l6)), meet(twice(l3), twice(l7)));
    let (u0, u1) = (meet(t0, t2), meet(t1, t3));
    let u0 = [_mm_xor_si128(u0[0], rest[0]), _mm_xor_si128(u0[1], rest[1])];
    let [lower, upper] = meet(u0, u1);
    _mm_cvtsi128_si64(_mm_aesenc_si128(lower, upper)).cast_unsigned()
}

/// Two rounds for each half.
#[inline]
#[target_feature(enable = "aes")]
fn twice(lane: Halves) -> Halves {
    let none = [_mm_setzero_si128(); 2];
    meet(meet(lane, none), none)
}

#[inline]
#[target_feature(enable = "aes")]
pub(super) fn vector(half: u128) -> __m128i {
    let [low @ .., _, _, _, _, _, _, _, _] = half.to_le_bytes();
    let [_, _, _, _, _, _, _, _, high @ ..] = half.to_le_bytes();
    _mm_set_epi64x(i64::from_le_bytes(high), i64::from_le_bytes(low))
}
