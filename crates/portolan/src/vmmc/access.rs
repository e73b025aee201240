//! Reads and writes memory that other processes write, within bounds.

use super::UpdateError;
use portolan_shm::bulk::{self, exact};
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Refuses what does not lie within `size` bytes.
#[inline]
pub(super) fn within(offset: usize, len: usize, size: usize) -> Result<(), UpdateError> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(UpdateError::OutOfBounds { offset, len, size }),
    }
}

/// The word at `offset`, if one lies there.
#[inline]
pub(super) fn word(words: &[AtomicU64], offset: usize) -> Result<&AtomicU64, UpdateError> {
    if !offset.is_multiple_of(8) {
        return Err(UpdateError::Misaligned { offset });
    }
    words.get(offset / 8).ok_or(UpdateError::OutOfBounds {
        offset,
        len: 8,
        size: words.len() * 8,
    })
}

/// Copies to the words, behind whatever this thread stored before. Within bounds.
#[inline]
pub(super) fn put(words: &[AtomicU64], offset: usize, bytes: &[u8]) {
    // Release: a thread that sees these bytes, and then makes an Acquire fence, sees what was
    // written before them. Costs nothing on x86, where stores are seen in order.
    fence(Ordering::Release);
    exact::store(words, offset, bytes);
}

/// As [`put`], and a thread that sees a byte sees the bytes before it.
pub(super) fn put_upwards(words: &[AtomicU64], offset: usize, bytes: &[u8]) {
    let head = bytes.len().min(offset.next_multiple_of(8) - offset);
    let (head, rest) = bytes.split_at(head);
    put(words, offset, head);
    let offset = offset + head.len();
    let (whole, tail) = rest.as_chunks::<8>();
    for (word, bytes) in words.iter().skip(offset / 8).zip(whole) {
        // Release: as in `put`, of each word.
        word.store(u64::from_ne_bytes(*bytes), Ordering::Release);
    }
    put(words, offset + rest.len() - tail.len(), tail);
}

/// Copies from the words, before whatever this thread loads next. Within bounds.
#[inline]
pub(super) fn take(words: &[AtomicU64], offset: usize, bytes: &mut [u8]) {
    bulk::load_at(words, offset, bytes);
    // Acquire: pairs with the fence in `put`.
    fence(Ordering::Acquire);
}
