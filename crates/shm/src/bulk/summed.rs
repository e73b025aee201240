//! Copies that make a checksum of what they copy, in the same pass.
//!
//! Every word is read once: what goes into the sum is what went to the other side. So a
//! reader whose sum is right has in its own memory what the writer summed, whatever
//! happened to the shared words before, meanwhile, or afterwards.

use crate::atomic::{AtomicU64, Ordering};
use portolan_abi::sum::Sum;

#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
mod vector;

/// As [`super::store`], and adds the bytes to `sum`.
///
/// # Panics
///
/// If the bytes do not fit.
#[inline]
pub fn store(words: &[AtomicU64], bytes: &[u8], sum: &mut Sum) {
    assert!(bytes.len() <= words.len() * 8, "the words are too few");
    let mut words = words;
    let (mut chunks, tail) = bytes.as_chunks::<8>();
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    {
        let done = vector::store(words, chunks, sum);
        words = &words[done..];
        chunks = &chunks[done..];
    }
    let put = |word: &AtomicU64, value: u64, sum: &mut Sum| {
        word.store(value, Ordering::Relaxed);
        sum.word(value);
    };
    for (word, chunk) in words.iter().zip(chunks) {
        put(word, u64::from_le_bytes(*chunk), sum);
    }
    if !tail.is_empty() {
        put(&words[chunks.len()], super::le(tail), sum);
    }
}

/// As [`super::load`], and adds the bytes to `sum`.
///
/// # Panics
///
/// If the words do not suffice.
#[inline]
pub fn load(words: &[AtomicU64], bytes: &mut [u8], sum: &mut Sum) {
    assert!(bytes.len() <= words.len() * 8, "the words are too few");
    let mut words = words;
    let (mut chunks, tail) = bytes.as_chunks_mut::<8>();
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    {
        let done = vector::load(words, chunks, sum);
        words = &words[done..];
        chunks = &mut chunks[done..];
    }
    for (word, chunk) in words.iter().zip(chunks.iter_mut()) {
        let value = word.load(Ordering::Relaxed);
        *chunk = value.to_le_bytes();
        sum.word(value);
    }
    if !tail.is_empty() {
        let value = words[chunks.len()].load(Ordering::Relaxed).to_le_bytes();
        tail.copy_from_slice(&value[..tail.len()]);
        // What lies behind the end is not the sum's.
        sum.word(super::le(tail));
    }
}

/// What [`Sum::fold`] says, sooner where there are vectors.
#[inline]
pub fn fold(sum: &Sum) -> u64 {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    if let Some(lanes) = sum.lanes()
        && let Some(folded) = vector::fold(lanes)
    {
        return folded;
    }
    sum.fold()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_copied_is_summed_in_whatever_parts() {
        let bytes: Vec<u8> = (0..=255).cycle().take(1000).collect();
        for len in 0..bytes.len() {
            let bytes = &bytes[..len];
            let mut plain = Sum::new();
            plain.bytes(bytes);
            for part in [8, 48, 96, 104, 1024] {
                let words: Vec<AtomicU64> = (0..125).map(|_| AtomicU64::new(u64::MAX)).collect();
                let (mut sent, mut came) = (Sum::new(), Sum::new());
                let mut copy = vec![0; len];
                for (i, bytes) in bytes.chunks(part).enumerate() {
                    store(&words[i * part / 8..], bytes, &mut sent);
                }
                for (i, bytes) in copy.chunks_mut(part).enumerate() {
                    load(&words[i * part / 8..], bytes, &mut came);
                }
                assert_eq!(copy, bytes, "{len} in parts of {part}");
                let sums = [&plain, &sent, &came].map(|sum| (sum.fold(), fold(sum)));
                assert!(sums.iter().all(|s| *s == (sums[0].0, sums[0].0)), "{len}");
            }
        }
    }
}
