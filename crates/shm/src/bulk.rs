//! Copies between private bytes and words that others may write or read meanwhile.
//!
//! A copy of bytes that another process writes meanwhile may be any mixture: the caller finds out
//! afterwards, by a stamp or a checksum, and throws it away. A plain `memcpy` would be a
//! data race; word by word with relaxed atomics is sound and slow; so where the processor
//! has better it is used, by instructions that the compiler cannot look into.

pub mod exact;
pub mod summed;

use crate::atomic::{AtomicU64, Ordering};

/// From here on the string instruction is faster than words.
#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
const LARGE: usize = 256;

/// Copies `bytes` to the beginning of `words`; what is left of the last word becomes zero.
///
/// # Panics
///
/// If the bytes do not fit.
#[inline]
pub fn store(words: &[AtomicU64], bytes: &[u8]) {
    assert!(bytes.len() <= words.len() * 8, "the words are too few");
    let whole = bytes.len() / 8;
    let (body, tail) = bytes.split_at(whole * 8);
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    if body.len() >= LARGE {
        // SAFETY:
        // - Readable: `body` is a slice.
        // - Writable: `words` has at least `whole` words, and atomics may be written through
        //   a shared reference.
        // - Races: only with other such copies and atomics, all opaque to the compiler.
        unsafe { string_copy(words.as_ptr().cast_mut().cast(), body.as_ptr(), body.len()) };
        store_tail(&words[whole..], tail);
        return;
    }
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY: as above.
    unsafe {
        vector_copy(words.as_ptr().cast_mut().cast(), body.as_ptr(), body.len());
    };
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    for (word, chunk) in words.iter().zip(body.chunks_exact(8)) {
        word.store(le(chunk), Ordering::Relaxed);
    }
    store_tail(&words[whole..], tail);
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

#[inline]
fn store_tail(words: &[AtomicU64], tail: &[u8]) {
    if !tail.is_empty()
        && let Some(word) = words.first()
    {
        word.store(le(tail), Ordering::Relaxed);
    }
}

/// Copies the beginning of `words` to `bytes`.
///
/// # Panics
///
/// If the words do not suffice.
#[inline]
pub fn load(words: &[AtomicU64], bytes: &mut [u8]) {
    assert!(bytes.len() <= words.len() * 8, "the words are too few");
    let whole = bytes.len() / 8;
    let (body, tail) = bytes.split_at_mut(whole * 8);
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    if body.len() >= LARGE {
        // SAFETY:
        // - Readable: `words` has at least `whole` words.
        // - Writable: `body` is an exclusive slice; the regions do not overlap for that reason.
        // - Races: as in `store`.
        unsafe { string_copy(body.as_mut_ptr(), words.as_ptr().cast(), body.len()) };
        load_tail(&words[whole..], tail);
        return;
    }
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY: as above.
    unsafe {
        vector_copy(body.as_mut_ptr(), words.as_ptr().cast(), body.len());
    };
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    for (word, chunk) in words.iter().zip(body.chunks_exact_mut(8)) {
        chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
    }
    load_tail(&words[whole..], tail);
}

#[inline]
fn load_tail(words: &[AtomicU64], tail: &mut [u8]) {
    if !tail.is_empty()
        && let Some(word) = words.first()
    {
        let bytes = word.load(Ordering::Relaxed).to_le_bytes();
        tail.copy_from_slice(&bytes[..tail.len()]);
    }
}

/// As [`store`], from byte `offset` on; the bytes before it stay.
#[inline]
pub fn store_at(words: &[AtomicU64], offset: usize, bytes: &[u8]) {
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

/// Two words at a time, and the last one alone: a copy that the compiler knows nothing
/// about.
///
/// # Safety
///
/// As of [`string_copy`]; `len` is a multiple of 8.
#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
#[inline]
unsafe fn vector_copy(to: *mut u8, from: *const u8, len: usize) {
    let mut at = 0;
    while at + 16 <= len {
        // SAFETY:
        // - Touches 16 bytes that lie before `len`, which the caller vouches for.
        // - Every x86-64 processor has SSE2.
        unsafe {
            core::arch::asm!(
                "movups {x}, [{from} + {at}]",
                "movups [{to} + {at}], {x}",
                x = out(xmm_reg) _,
                from = in(reg) from,
                to = in(reg) to,
                at = in(reg) at,
                options(nostack, preserves_flags),
            );
        };
        at += 16;
    }
    if at < len {
        // SAFETY:
        // - As above, of 8 bytes.
        unsafe {
            core::arch::asm!(
                "mov {x}, [{from} + {at}]",
                "mov [{to} + {at}], {x}",
                x = out(reg) _,
                from = in(reg) from,
                to = in(reg) to,
                at = in(reg) at,
                options(nostack, preserves_flags),
            );
        };
    }
}
