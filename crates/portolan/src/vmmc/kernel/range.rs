//! Presents ordinary memory, which the kernel changes on behalf of others, as atomics.
//!
//! Hand-written `unsafe` is here for two reasons: bytes become atomics, and a vector's memory
//! is taken from it and given back. While it is exported it may change at any instruction, so
//! no code here makes a `&[u8]` or a `&mut [u8]` of it.
#![allow(unsafe_code)]

use super::OrdinaryMemory;
use crate::vmmc::ExportError;
use crate::vmmc::access::{put, take};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

/// Bytes at any address, there for as long as this lives.
#[derive(Debug)]
pub(super) struct Range {
    start: usize,
    len: usize,
    /// Of the vector that it was; none of a range of the program's own.
    capacity: Option<usize>,
}

/// A range in three: bytes up to the first word, words, and the bytes behind them.
type Cells<'a> = (&'a [AtomicU8], &'a [AtomicU64], &'a [AtomicU8]);

impl Range {
    pub(super) fn of_vec(bytes: Vec<u8>) -> Self {
        let mut bytes = ManuallyDrop::new(bytes);
        Self {
            start: bytes.as_mut_ptr().expose_provenance(),
            len: bytes.len(),
            capacity: Some(bytes.capacity()),
        }
    }

    /// The vector that it was, if it was one. No other thread has access any more.
    pub(super) fn into_vec(self) -> Result<Vec<u8>, Self> {
        let mut this = ManuallyDrop::new(self);
        match this.take() {
            Some(bytes) => Ok(bytes),
            None => Err(ManuallyDrop::into_inner(this)),
        }
    }

    /// The vector, the first time.
    fn take(&mut self) -> Option<Vec<u8>> {
        let capacity = self.capacity.take()?;
        let first: *mut u8 = std::ptr::with_exposed_provenance_mut(self.start);
        // SAFETY:
        // - from a vector: `of_vec` took these three from one that it did not drop;
        // - once: the capacity is taken;
        // - initialised: as it was, or as the kernel wrote it.
        Some(unsafe { Vec::from_raw_parts(first, self.len, capacity) })
    }

    pub(super) fn start(&self) -> usize {
        self.start
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Every byte lies in the same cell at each call.
    fn cells(&self) -> Cells<'_> {
        let first: *const AtomicU8 = std::ptr::with_exposed_provenance(self.start);
        // SAFETY:
        // - in bounds and live: a vector's, or as the caller of `in_place` promised, for as
        //   long as `self` lives;
        // - aligned: bytes are everywhere;
        // - initialised: a vector's elements, or as promised;
        // - written meanwhile: by atomics, by opaque copies, and by the kernel.
        let bytes = unsafe { std::slice::from_raw_parts(first, self.len) };
        // SAFETY:
        // - any eight bytes are a word, which is an atomic as they are; each byte is reached
        //   through its own cell only.
        unsafe { bytes.align_to() }
    }

    /// Copies from `offset` on. Within bounds.
    pub(super) fn read(&self, offset: usize, bytes: &mut [u8]) {
        let (head, words, tail) = self.cells();
        let (first, rest) = bytes.split_at_mut(shared(head.len(), offset, bytes.len()));
        for (byte, cell) in first.iter_mut().zip(head.iter().skip(offset)) {
            *byte = cell.load(Ordering::Relaxed);
        }
        let offset = offset.saturating_sub(head.len());
        let (middle, last) = rest.split_at_mut(shared(words.len() * 8, offset, rest.len()));
        if !middle.is_empty() {
            take(words, offset, middle);
        }
        let offset = offset.saturating_sub(words.len() * 8);
        for (byte, cell) in last.iter_mut().zip(tail.iter().skip(offset)) {
            *byte = cell.load(Ordering::Relaxed);
        }
        // Acquire: loads that depend on these bytes are made after them.
        fence(Ordering::Acquire);
    }

    /// Copies to `offset` and the following. Within bounds.
    pub(super) fn write(&self, offset: usize, bytes: &[u8]) {
        let (head, words, tail) = self.cells();
        // Release: a thread that sees these bytes sees what was written before them.
        fence(Ordering::Release);
        let (first, rest) = bytes.split_at(shared(head.len(), offset, bytes.len()));
        for (byte, cell) in first.iter().zip(head.iter().skip(offset)) {
            cell.store(*byte, Ordering::Relaxed);
        }
        let offset = offset.saturating_sub(head.len());
        let (middle, last) = rest.split_at(shared(words.len() * 8, offset, rest.len()));
        if !middle.is_empty() {
            put(words, offset, middle);
        }
        let offset = offset.saturating_sub(words.len() * 8);
        for (byte, cell) in last.iter().zip(tail.iter().skip(offset)) {
            cell.store(*byte, Ordering::Relaxed);
        }
    }
}

/// How many of `len` bytes at `offset` lie in the first `part` bytes.
fn shared(part: usize, offset: usize, len: usize) -> usize {
    part.saturating_sub(offset).min(len)
}

impl Drop for Range {
    fn drop(&mut self) {
        drop(self.take());
    }
}

impl OrdinaryMemory {
    /// Bytes of the program's own, wherever they lie.
    ///
    /// # Examples
    ///
    /// ```
    /// use portolan::vmmc::OrdinaryMemory;
    /// let table: &'static mut [u8] = vec![7; 1000].leak();
    /// // SAFETY:
    /// // - leaked, so it stays; nothing else refers to it.
    /// let memory = unsafe { OrdinaryMemory::in_place(table.as_mut_ptr().wrapping_add(3), 10) }?;
    /// let mut byte = [0];
    /// memory.read(9, &mut byte)?;
    /// assert_eq!(byte, [7]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ExportError::Empty`].
    ///
    /// # Safety
    ///
    /// As long as any clone of this, or an export of it that has not
    /// [ended](crate::vmmc::Export::unexport) without an error, lives:
    ///
    /// - the range stays mapped, to be read and written, and initialised;
    /// - it is reached through this, through raw pointers or through atomics: no code holds or
    ///   makes a reference into it that does not allow for other processes' stores.
    pub unsafe fn in_place(start: *mut u8, len: usize) -> Result<Self, ExportError> {
        if len == 0 || start.addr().checked_add(len).is_none() {
            return Err(ExportError::Empty { len });
        }
        Ok(Self::of(Range {
            start: start.expose_provenance(),
            len,
            capacity: None,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_of_just_these_bytes_wherever_words_lie() {
        for skip in 0..9 {
            for len in [1, 7, 8, 9, 23, 40] {
                let range = Range {
                    start: vec![0_u8; 64].leak().as_mut_ptr().expose_provenance() + skip,
                    len,
                    capacity: None,
                };
                for offset in 0..len {
                    for count in 0..=len - offset {
                        range.write(0, &vec![0; len]);
                        let bytes: Vec<u8> = (1..=u8::try_from(count).unwrap()).collect();
                        range.write(offset, &bytes);
                        let mut all = vec![9; len];
                        range.read(0, &mut all);
                        let mut wanted = vec![0; len];
                        wanted[offset..offset + count].copy_from_slice(&bytes);
                        assert_eq!(all, wanted, "{skip} {len} {offset} {count}");
                        let mut part = vec![9; count];
                        range.read(offset, &mut part);
                        assert_eq!(part, bytes);
                    }
                }
            }
        }
    }
}
