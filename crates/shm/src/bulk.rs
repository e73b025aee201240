//! Copies between private bytes and words that others may write or read meanwhile.
//!
//! A copy of bytes that another process writes meanwhile may be any mixture: the caller finds out
//! afterwards, by a stamp or a checksum, and throws it away. A plain `memcpy` would be a
//! data race; word by word with relaxed atomics is sound and slow; so where the processor
//! has better it is used, by instructions that the compiler cannot look into.

pub mod exact;
pub mod summed;

use crate::atomic::{AtomicU64, Ordering};

/// From here on the string instruction is faster than words. A power of two.
#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
const LARGE: usize = 256;

/// Copies `bytes` to the beginning of `words`; what is left of the last word becomes zero.
///
/// # Panics
///
/// If the bytes do not fit.
#[inline(always)]
pub fn store(words: &[AtomicU64], bytes: &[u8]) {
    assert!(bytes.len() <= words.len() * 8, "the words are too few");
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY:
    // - Readable: `bytes` is a slice.
    // - Writable: `words` has at least as many bytes, and atomics may be written through a shared
    //   reference; the regions do not overlap, because nobody else writes `bytes`.
    // - Races: only with other such copies and atomics, all opaque to the compiler.
    unsafe {
        copy_words(
            words.as_ptr().cast_mut().cast(),
            bytes.as_ptr(),
            bytes.len(),
        );
    };
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    for (word, chunk) in words.iter().zip(bytes.chunks_exact(8)) {
        word.store(le(chunk), Ordering::Relaxed);
    }
    if !bytes.len().is_multiple_of(8) {
        store_tail(words, bytes);
    }
}

/// Asks for the line that `words` begin in, to be written to in a moment.
#[inline]
pub fn will_write(words: &[AtomicU64]) {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY:
    // - A hint: it faults nowhere and changes no memory. Processors that do not know it
    //   take it for nothing.
    unsafe {
        core::arch::asm!(
            "prefetchw [{}]",
            in(reg) words.as_ptr(),
            options(nostack, preserves_flags, readonly),
        );
    };
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    let _ = words;
}

/// Stores the bytes after the last whole word. Out of the way of what has whole words.
#[inline(never)]
fn store_tail(words: &[AtomicU64], bytes: &[u8]) {
    let (whole, tail) = bytes.as_chunks::<8>();
    if let Some(word) = words.get(whole.len()) {
        word.store(le(tail), Ordering::Relaxed);
    }
}

/// Copies the beginning of `words` to `bytes`.
///
/// # Panics
///
/// If the words do not suffice.
#[inline(always)]
pub fn load(words: &[AtomicU64], bytes: &mut [u8]) {
    assert!(bytes.len() <= words.len() * 8, "the words are too few");
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY:
    // - Readable: `words` has at least as many bytes.
    // - Writable: `bytes` is an exclusive slice; the regions do not overlap for that reason.
    // - Races: as in `store`.
    unsafe {
        copy_words(bytes.as_mut_ptr(), words.as_ptr().cast(), bytes.len());
    };
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    for (word, chunk) in words.iter().zip(bytes.chunks_exact_mut(8)) {
        chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
    }
    if !bytes.len().is_multiple_of(8) {
        load_tail(words, bytes);
    }
}

#[inline(never)]
fn load_tail(words: &[AtomicU64], bytes: &mut [u8]) {
    let (whole, tail) = bytes.as_chunks_mut::<8>();
    if let Some(word) = words.get(whole.len()) {
        let bytes = word.load(Ordering::Relaxed).to_le_bytes();
        tail.copy_from_slice(&bytes[..tail.len()]);
    }
}

/// As [`store`], from byte `offset` on; the bytes before it stay.
#[inline]
pub fn store_at(words: &[AtomicU64], offset: usize, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    if offset.is_multiple_of(8) {
        store(&words[offset / 8..], bytes);
        return;
    }
    store_within(words, offset, bytes);
}

/// The same, where the bytes begin within a word.
#[inline(never)]
fn store_within(words: &[AtomicU64], offset: usize, bytes: &[u8]) {
    let (first, within) = (offset / 8, offset % 8);
    let (head, rest) = bytes.split_at(bytes.len().min((8 - within) % 8));
    if !head.is_empty() {
        let word = &words[first];
        let mut old = word.load(Ordering::Relaxed).to_le_bytes();
        old[within..within + head.len()].copy_from_slice(head);
        word.store(u64::from_le_bytes(old), Ordering::Relaxed);
    }
    if !rest.is_empty() {
        store(&words[offset.div_ceil(8)..], rest);
    }
}

/// As [`load`], from byte `offset` on.
#[inline]
pub fn load_at(words: &[AtomicU64], offset: usize, bytes: &mut [u8]) {
    let (first, within) = (offset / 8, offset % 8);
    let (head, rest) = bytes.split_at_mut(bytes.len().min((8 - within) % 8));
    if !head.is_empty() {
        let word = words[first].load(Ordering::Relaxed).to_le_bytes();
        head.copy_from_slice(&word[within..within + head.len()]);
    }
    if !rest.is_empty() {
        load(&words[offset.div_ceil(8)..], rest);
    }
}

#[inline]
fn le(chunk: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes[..chunk.len()].copy_from_slice(chunk);
    u64::from_le_bytes(bytes)
}

/// `rep movsb`: a copy that the compiler knows nothing about.
///
/// # Safety
///
/// `from` is readable and `to` writable for `len` bytes, and they do not overlap.
#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
#[inline]
unsafe fn string_copy(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY:
    // - Touches `len` bytes from each pointer, which the caller vouches for.
    // - The direction flag is clear by the calling convention; nothing else is changed.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rdi") to => _,
            inout("rsi") from => _,
            options(nostack, preserves_flags),
        );
    };
}

/// Copies the whole words of `len` bytes, as is fastest for so many: a copy that the compiler
/// knows nothing about.
///
/// # Safety
///
/// As of [`string_copy`].
#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
#[inline(always)]
unsafe fn copy_words(to: *mut u8, from: *const u8, len: usize) {
    if len >= LARGE {
        // SAFETY: the caller vouches for it, of no fewer bytes.
        unsafe { string_copy(to, from, len & !7) };
        return;
    }
    // Two words at a time.
    let pairs = len & (LARGE - 16);
    if pairs > 0 {
        // Counted from their end, so that one instruction counts and compares.
        // SAFETY:
        // - Touches 16 bytes at a time that lie before `pairs`, which the caller vouches for.
        // - Every x86-64 processor has SSE2.
        unsafe {
            core::arch::asm!(
                "2:",
                "movups {x}, [{from} + {at}]",
                "movups [{to} + {at}], {x}",
                "add {at}, 16",
                "jnz 2b",
                x = out(xmm_reg) _,
                from = in(reg) from.wrapping_add(pairs),
                to = in(reg) to.wrapping_add(pairs),
                at = inout(reg) pairs.wrapping_neg() => _,
                options(nostack),
            );
        };
    }
    if len & 8 != 0 {
        // SAFETY:
        // - As above, of 8 bytes, which lie before `len`.
        unsafe {
            core::arch::asm!(
                "mov {x}, [{from} + {at}]",
                "mov [{to} + {at}], {x}",
                x = out(reg) _,
                from = in(reg) from,
                to = in(reg) to,
                at = in(reg) pairs,
                options(nostack, preserves_flags),
            );
        };
    }
}
