//! Checked ranges of memory, from which bytes are sent and into which they are received.
//!
//! Another process may write the memory of a range at any moment (an export, an extent of a buggy
//! member). So a range is an address and a length, and never becomes a `&[u8]` or `&mut [u8]`: the
//! kernel reads and writes it, or [`Source::copy_to`] and [`Destination::copy_from`] do so by
//! atomic accesses.
//!
//! # Invariants
//!
//! - **R1** A range is not null unless it is empty, does not wrap around, and is at most
//!   `isize::MAX` bytes long. `checked` is the only place that makes one.
//! - **R2** As long as a range lives, its memory is mapped: borrowed from a slice, or by the promise
//!   of the caller of [`Source::at`] or [`Destination::at`].

use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Bytes that one atomic access of a copy carries.
const WORD: usize = size_of::<u64>();

/// Why an address and a length are no range of memory. The caller's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len:#x} bytes at {address:#x} are not a range of memory")]
pub struct BadRange {
    /// First address.
    pub address: usize,
    /// Bytes wanted.
    pub len: usize,
}

/// A range of memory to send from.
///
/// # Examples
///
/// ```
/// use portolan_sys::stream::Source;
/// let source = Source::from(b"hello".as_slice());
/// let mut bytes = [0; 8];
/// assert_eq!(source.skip(1).copy_to(&mut bytes), 4);
/// assert_eq!(&bytes[..4], b"ello");
/// ```
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Source<'a> {
    /// What the kernel takes. An array of sources is one of these.
    raw: libc::iovec,
    borrowed: PhantomData<&'a [u8]>,
}

/// A range of memory to receive into. Not `Clone`: nothing else receives there meanwhile.
///
/// # Examples
///
/// ```
/// use portolan_sys::stream::Destination;
/// let mut bytes = [0; 4];
/// assert_eq!(Destination::from(&mut bytes[..]).skip(2).copy_from(b"abc"), 2);
/// assert_eq!(&bytes, b"\0\0ab");
/// ```
#[repr(transparent)]
pub struct Destination<'a> {
    raw: libc::iovec,
    borrowed: PhantomData<&'a mut [u8]>,
}

/// The only constructor of a range (R1).
fn checked(address: *mut u8, len: usize) -> Result<libc::iovec, BadRange> {
    let first = address.addr();
    let fits = isize::try_from(len).is_ok() && first.checked_add(len).is_some();
    if !fits || (first == 0 && len > 0) {
        return Err(BadRange {
            address: first,
            len,
        });
    }
    Ok(libc::iovec {
        iov_base: address.cast(),
        iov_len: len,
    })
}

/// The range of a slice, which is one.
fn of_slice(address: *mut u8, len: usize) -> libc::iovec {
    checked(address, len).unwrap_or(libc::iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 0,
    })
}

fn skipped(raw: libc::iovec, bytes: usize) -> libc::iovec {
    let bytes = bytes.min(raw.iov_len);
    libc::iovec {
        iov_base: raw.iov_base.wrapping_byte_add(bytes),
        iov_len: raw.iov_len - bytes,
    }
}

impl<'a> Source<'a> {
    /// The `len` bytes at `address`, which other threads and processes may write meanwhile.
    ///
    /// # Safety
    ///
    /// - For `'a` the range is mapped and readable; or only the kernel reads it, which refuses.
    /// - For `'a` no code of this process writes it but by atomic accesses.
    ///
    /// # Errors
    ///
    /// [`BadRange`]: no memory has such addresses.
    pub unsafe fn at(address: *const u8, len: usize) -> Result<Self, BadRange> {
        let raw = checked(address.cast_mut(), len)?;
        Ok(Self {
            raw,
            borrowed: PhantomData,
        })
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.raw.iov_len
    }

    /// Whether it has no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same without its first `bytes`; empty if it has fewer.
    #[must_use]
    pub fn skip(self, bytes: usize) -> Self {
        Self {
            raw: skipped(self.raw, bytes),
            ..self
        }
    }

    /// Its first `bytes`; all of it if it has fewer.
    ///
    /// ```
    /// use portolan_sys::stream::Source;
    /// let source = Source::from(b"hello".as_slice());
    /// assert_eq!((source.first(4).len(), source.first(9).len()), (4, 5));
    /// ```
    #[must_use]
    pub fn first(self, bytes: usize) -> Self {
        let mut raw = self.raw;
        raw.iov_len = raw.iov_len.min(bytes);
        Self { raw, ..self }
    }

    /// Copies its first bytes, as many as fit; how many.
    pub fn copy_to(&self, into: &mut [u8]) -> usize {
        let from = self.raw.iov_base.cast::<u8>();
        let len = self.len().min(into.len());
        let (head, words) = words_of(from, len);
        let byte = |at: usize| {
            let place = from.wrapping_add(at);
            // SAFETY:
            // - In bounds: `at` is less than `len`, which is at most the range's length (R1).
            // - Mapped for as long as `self` lives (R2).
            // - A byte is aligned; processes that write it meanwhile are no data race, because the
            //   access is atomic.
            unsafe { AtomicU8::from_ptr(place) }.load(Ordering::Relaxed)
        };
        (0..head).for_each(|at| into[at] = byte(at));
        for word in 0..words {
            let at = head + word * WORD;
            let place = from.wrapping_add(at);
            // SAFETY:
            // - In bounds: `words_of` counts whole words of the `len` bytes behind `head` (R1).
            // - Aligned: `words_of` says where the words begin.
            // - Mapped for as long as `self` lives (R2), and no data race, because it is atomic.
            let value = unsafe { AtomicU64::from_ptr(place.cast()) }.load(Ordering::Relaxed);
            into[at..at + WORD].copy_from_slice(&value.to_ne_bytes());
        }
        (head + words * WORD..len).for_each(|at| into[at] = byte(at));
        len
    }
}

impl Destination<'_> {
    /// The `len` bytes at `address`, which other threads and processes may read and write meanwhile.
    ///
    /// # Safety
    ///
    /// - For the lifetime the range is mapped and writable; or only the kernel writes it, which
    ///   refuses.
    /// - For the lifetime no code of this process reads or writes it but by atomic accesses, and no
    ///   reference to it exists.
    ///
    /// # Errors
    ///
    /// [`BadRange`]: no memory has such addresses.
    pub unsafe fn at(address: *mut u8, len: usize) -> Result<Self, BadRange> {
        let raw = checked(address, len)?;
        Ok(Self {
            raw,
            borrowed: PhantomData,
        })
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.raw.iov_len
    }

    /// Whether it has no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same without its first `bytes`; empty if it has fewer.
    #[must_use]
    pub fn skip(self, bytes: usize) -> Self {
        Self {
            raw: skipped(self.raw, bytes),
            ..self
        }
    }

    /// Its first `bytes`; all of it if it has fewer. While the part lives the range is borrowed.
    pub fn part(&self, skip: usize, bytes: usize) -> Destination<'_> {
        let mut raw = skipped(self.raw, skip);
        raw.iov_len = raw.iov_len.min(bytes);
        Destination {
            raw,
            borrowed: PhantomData,
        }
    }

    /// Copies as many of `bytes` as fit into its front; how many.
    pub fn copy_from(&self, bytes: &[u8]) -> usize {
        let to = self.raw.iov_base.cast::<u8>();
        let len = self.len().min(bytes.len());
        let (head, words) = words_of(to, len);
        let write = |at: usize| {
            let place = to.wrapping_add(at);
            // SAFETY:
            // - In bounds: `at` is less than `len`, which is at most the range's length (R1).
            // - Mapped and writable for as long as `self` lives (R2).
            // - A byte is aligned; processes that access it meanwhile are no data race, because the
            //   access is atomic.
            unsafe { AtomicU8::from_ptr(place) }.store(bytes[at], Ordering::Relaxed);
        };
        (0..head).for_each(write);
        for word in 0..words {
            let at = head + word * WORD;
            let mut value = [0; WORD];
            value.copy_from_slice(&bytes[at..at + WORD]);
            let place = to.wrapping_add(at);
            // SAFETY:
            // - In bounds: `words_of` counts whole words of the `len` bytes behind `head` (R1).
            // - Aligned: `words_of` says where the words begin.
            // - Mapped for as long as `self` lives (R2), and no data race, because it is atomic.
            unsafe { AtomicU64::from_ptr(place.cast()) }
                .store(u64::from_ne_bytes(value), Ordering::Relaxed);
        }
        (head + words * WORD..len).for_each(write);
        len
    }
}

/// Of `len` bytes at `address`: how many stand before the first aligned word, and how many whole
/// words follow.
fn words_of(address: *mut u8, len: usize) -> (usize, usize) {
    let head = address.align_offset(WORD).min(len);
    (head, (len - head) / WORD)
}

impl<'a> From<&'a [u8]> for Source<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self {
            raw: of_slice(bytes.as_ptr().cast_mut(), bytes.len()),
            borrowed: PhantomData,
        }
    }
}

impl<'a> From<&'a Vec<u8>> for Source<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        bytes.as_slice().into()
    }
}

impl<'a> From<&'a mut [u8]> for Destination<'a> {
    fn from(bytes: &'a mut [u8]) -> Self {
        Self {
            raw: of_slice(bytes.as_mut_ptr(), bytes.len()),
            borrowed: PhantomData,
        }
    }
}

impl fmt::Debug for Source<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Source({} at {:p})", self.len(), self.raw.iov_base)
    }
}

impl fmt::Debug for Destination<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Destination({} at {:p})", self.len(), self.raw.iov_base)
    }
}

/// Takes the first `bytes` off the front of `parts`, as after a partial send.
///
/// # Examples
///
/// ```
/// use portolan_sys::stream::{Source, skip_sources};
/// let mut parts = [Source::from(b"ab".as_slice()), Source::from(b"cde".as_slice())];
/// let mut left = &mut parts[..];
/// skip_sources(&mut left, 3);
/// assert_eq!(left.iter().map(|part| part.len()).collect::<Vec<_>>(), [2]);
/// ```
pub fn skip_sources(parts: &mut &mut [Source<'_>], bytes: usize) {
    let (whole, rest) = whole_parts(parts.iter().map(Source::len), bytes);
    *parts = &mut std::mem::take(parts)[whole..];
    if let Some(first) = parts.first_mut() {
        first.raw = skipped(first.raw, rest);
    }
}

/// Takes the first `bytes` off the front of `parts`, as after a partial receive.
pub fn skip_destinations(parts: &mut &mut [Destination<'_>], bytes: usize) {
    let (whole, rest) = whole_parts(parts.iter().map(Destination::len), bytes);
    *parts = &mut std::mem::take(parts)[whole..];
    if let Some(first) = parts.first_mut() {
        first.raw = skipped(first.raw, rest);
    }
}

/// How many parts `bytes` cover whole, empty ones among them, and what they take of the next.
fn whole_parts(lens: impl Iterator<Item = usize>, bytes: usize) -> (usize, usize) {
    let (mut whole, mut rest) = (0, bytes);
    for len in lens {
        if len > rest {
            break;
        }
        whole += 1;
        rest -= len;
    }
    (whole, rest)
}

/// What the kernel takes of so many sources.
pub(super) fn raw_sources(parts: &[Source<'_>]) -> *mut libc::iovec {
    // `Source` is transparent.
    parts.as_ptr().cast_mut().cast()
}

/// What the kernel takes of so many destinations.
pub(super) fn raw_destinations(parts: &[Destination<'_>]) -> *mut libc::iovec {
    parts.as_ptr().cast_mut().cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_that_no_memory_has_is_refused() {
        for (address, len) in [(0, 1), (usize::MAX, 2), (8, usize::MAX), (8, 1 << 63)] {
            let pointer = std::ptr::without_provenance_mut::<u8>(address);
            let refused = BadRange { address, len };
            // SAFETY: refused, so not used.
            let source = unsafe { Source::at(pointer, len) };
            assert_eq!(source.map(|s| s.len()), Err(refused));
            // SAFETY: refused, so not used.
            let destination = unsafe { Destination::at(pointer, len) };
            assert_eq!(destination.map(|d| d.len()), Err(refused));
        }
        // SAFETY: it has no byte.
        let empty = unsafe { Source::at(std::ptr::null(), 0) };
        assert!(empty.is_ok_and(|source| source.is_empty()));
    }

    #[test]
    fn copies_are_exact_at_every_alignment_and_length() {
        let bytes: Vec<u8> = (0..64).collect();
        for from in 0..9 {
            for len in 0..40 {
                let source = Source::from(&bytes[from..from + len]);
                let mut into = [0xff; 48];
                assert_eq!(source.copy_to(&mut into), len);
                assert_eq!(into[..len], bytes[from..from + len]);
                assert!(into[len..].iter().all(|byte| *byte == 0xff));
                let mut back = [0xff; 64];
                let to = Destination::from(&mut back[from..from + len]);
                assert_eq!(to.copy_from(&bytes), len);
                assert_eq!(back[from..from + len], bytes[..len]);
                assert!(back[..from].iter().all(|byte| *byte == 0xff));
                assert!(back[from + len..].iter().all(|byte| *byte == 0xff));
            }
        }
    }

    #[test]
    fn skipping_crosses_parts_and_passes_empty_ones() {
        for bytes in 0..=8 {
            let (a, mut b) = ([0; 3], [0; 5]);
            let mut parts = [&a[..], &[], &b[..]].map(Source::from);
            let mut left = &mut parts[..];
            skip_sources(&mut left, bytes);
            assert_eq!(left.iter().map(Source::len).sum::<usize>(), 8 - bytes);
            assert!(left.first().is_none_or(|first| !first.is_empty()));
            let mut parts = [Destination::from(&mut b[..])];
            let mut left = &mut parts[..];
            skip_destinations(&mut left, bytes);
            let rest: usize = left.iter().map(Destination::len).sum();
            assert_eq!(rest, 5_usize.saturating_sub(bytes));
        }
    }
}
