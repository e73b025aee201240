//! Writes exactly the given bytes: other bytes of the same word belong to others.

use crate::atomic::{AtomicU64, Ordering};

/// Copies `bytes` to `words`, from byte `offset` on, and touches no other byte: others may
/// write those meanwhile.
///
/// Eight bytes at a multiple of eight, four at a multiple of four and so on are written in
/// one go. Of what is longer a reader may see parts.
///
/// ```
/// use portolan_shm::bulk::exact;
/// use std::sync::atomic::AtomicU64;
/// let words = [AtomicU64::new(u64::MAX), AtomicU64::new(u64::MAX)];
/// exact::store(&words, 3, &[0; 6]);
/// assert_eq!(words.map(AtomicU64::into_inner).map(u64::to_le_bytes).concat(),
///     [255, 255, 255, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255]);
/// ```
///
/// # Panics
///
/// If the bytes do not fit.
#[inline]
pub fn store(words: &[AtomicU64], offset: usize, bytes: &[u8]) {
    let end = offset.checked_add(bytes.len());
    assert!(
        end.is_some_and(|end| end <= words.len() * 8),
        "the words are too few"
    );
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    if let (Ok(word), true) = (<[u8; 8]>::try_from(bytes), offset.is_multiple_of(8)) {
        words[offset / 8].store(u64::from_le_bytes(word), Ordering::Relaxed);
    } else {
        // SAFETY:
        // - In bounds: checked above.
        let to = unsafe { words.as_ptr().cast_mut().cast::<u8>().add(offset) };
        // SAFETY:
        // - Readable: `bytes` is a slice.
        // - Writable: in bounds, and atomics may be written through a shared reference.
        // - Races: only with other such copies and atomics, all opaque to the compiler.
        unsafe { copy(to, bytes) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    by_words(words, offset, bytes);
}

/// # Safety
///
/// `to` is writable for as many bytes.
#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
#[inline]
unsafe fn copy(to: *mut u8, bytes: &[u8]) {
    if bytes.len() >= super::LARGE {
        // SAFETY:
        // - As the caller promises; `bytes` is a slice, and no code writes to it.
        unsafe { super::string_copy(to, bytes.as_ptr(), bytes.len()) };
        return;
    }
    let (body, tail) = bytes.split_at(bytes.len() / 8 * 8);
    // SAFETY:
    // - As the caller promises; `body` is a multiple of 8 long.
    unsafe { super::copy_words(to, body.as_ptr(), body.len()) };
    // SAFETY:
    // - In bounds: `body` is a part of `bytes`.
    let to = unsafe { to.add(body.len()) };
    // SAFETY:
    // - As the caller promises, of what is left.
    unsafe { copy_tail(to, tail) };
}

/// Copies fewer than eight bytes, in pieces as large as can be.
///
/// # Safety
///
/// `to` is writable for as many bytes.
#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
#[inline]
unsafe fn copy_tail(to: *mut u8, tail: &[u8]) {
    let (from, len) = (tail.as_ptr(), tail.len());
    let mut at = 0_usize;
    if len & 4 != 0 {
        // SAFETY:
        // - Touches 4 bytes of at least 4, which the caller vouches for.
        unsafe {
            core::arch::asm!(
                "mov {x:e}, [{from}]",
                "mov [{to}], {x:e}",
                x = out(reg) _, from = in(reg) from, to = in(reg) to,
                options(nostack, preserves_flags),
            );
        };
        at += 4;
    }
    if len & 2 != 0 {
        // SAFETY:
        // - Touches 2 bytes, which follow those before and lie before `len`.
        unsafe {
            core::arch::asm!(
                "mov {x:x}, [{from} + {at}]",
                "mov [{to} + {at}], {x:x}",
                x = out(reg) _, from = in(reg) from, to = in(reg) to, at = in(reg) at,
                options(nostack, preserves_flags),
            );
        };
        at += 2;
    }
    if len & 1 != 0 {
        // SAFETY:
        // - Touches the last byte.
        unsafe {
            core::arch::asm!(
                "mov {x}, [{from} + {at}]",
                "mov [{to} + {at}], {x}",
                x = out(reg_byte) _, from = in(reg) from, to = in(reg) to, at = in(reg) at,
                options(nostack, preserves_flags),
            );
        };
    }
}

/// Whole words by stores, parts of words by exchanges that keep the rest.
#[cfg_attr(
    all(target_arch = "x86_64", not(loom), not(miri), not(test)),
    expect(dead_code, reason = "the way of other processors; tested on all")
)]
fn by_words(words: &[AtomicU64], offset: usize, bytes: &[u8]) {
    let mut left = bytes;
    let mut at = offset;
    while !left.is_empty() {
        let within = at % 8;
        let (part, rest) = left.split_at(left.len().min(8 - within));
        let word = &words[at / 8];
        if let Ok(whole) = <[u8; 8]>::try_from(part) {
            word.store(u64::from_le_bytes(whole), Ordering::Relaxed);
        } else {
            let mut old = word.load(Ordering::Relaxed);
            loop {
                let mut new = old.to_le_bytes();
                new[within..within + part.len()].copy_from_slice(part);
                let new = u64::from_le_bytes(new);
                // Relaxed: order between writes is the caller's affair.
                match word.compare_exchange_weak(old, new, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => break,
                    Err(found) => old = found,
                }
            }
        }
        at += part.len();
        left = rest;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    type Way = fn(&[AtomicU64], usize, &[u8]);

    #[test]
    fn just_these_bytes_change() {
        // Miri is slow, and what it looks for is at the ends of words.
        let (offsets, short, step) = if cfg!(miri) { (10, 18, 3) } else { (17, 40, 1) };
        for write in [store as Way, by_words] {
            for offset in (0..offsets).step_by(step) {
                for len in (0..short)
                    .chain([254, 255, 256, 257, 300, 511])
                    .step_by(step)
                {
                    let words: Vec<_> = (0..70).map(|_| AtomicU64::new(u64::MAX)).collect();
                    let bytes: Vec<u8> = (0..251).cycle().take(len).collect();
                    write(&words, offset, &bytes);
                    let mut expected = vec![0xff; 70 * 8];
                    expected[offset..offset + len].copy_from_slice(&bytes);
                    let found: Vec<u8> = words
                        .iter()
                        .flat_map(|w| w.load(Ordering::Relaxed).to_le_bytes())
                        .collect();
                    assert_eq!(found, expected, "{len} bytes at {offset}");
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "too few")]
    fn one_byte_too_many() {
        store(&[AtomicU64::new(0)], 7, &[1, 2]);
    }
}
