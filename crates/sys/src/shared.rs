//! A window is shared memory for benchmarks and tests.
//!
//! The window's bytes are plain data that any process holding the descriptor may write
//! at any time. The copying functions move them with ordinary loads and stores: what
//! two sides write at once is garbled, and nothing worse happens, because no byte is
//! ever given a meaning here. Where one side must wait for the other, it uses
//! [`Window::word`] or [`Window::word32`], which are atomic.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::fstat;

use crate::memory::{self, MapError, Mapping, VerifyError};

/// Shared memory with bounds-checked access.
///
/// # Examples
///
/// ```
/// use portolan_sys::shared::Window;
/// let ours = Window::create(4096)?;
/// let theirs = Window::from_fd(ours.fd().try_clone_to_owned()?)?;
/// ours.copy_in(100, b"hello");
/// let mut bytes = [0; 5];
/// theirs.copy_out(100, &mut bytes);
/// assert_eq!(&bytes, b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Window {
    mapping: Mapping,
    fd: OwnedFd,
}

/// Why there is no window.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WindowError {
    /// The sender's, or the machine's: the descriptor is not sealed shared memory.
    #[error(transparent)]
    Verify(#[from] VerifyError),
    /// The machine's: the memory could not be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The machine's: the memory could not be made.
    #[error("cannot make shared memory: {0}")]
    Io(#[from] io::Error),
}

impl Window {
    /// Makes shared memory of `len` bytes, rounded up to whole pages.
    ///
    /// # Errors
    ///
    /// [`WindowError`].
    pub fn create(len: usize) -> Result<Self, WindowError> {
        let len = len
            .checked_next_multiple_of(memory::PAGE)
            .unwrap_or(usize::MAX);
        let fd = memory::create("portolan-window", len as u64)?;
        Ok(Self {
            mapping: Mapping::shared_anywhere(&fd, len)?,
            fd,
        })
    }

    /// Maps the whole of a window that another process created.
    ///
    /// # Errors
    ///
    /// [`WindowError::Verify`] if its size is not final.
    pub fn from_fd(fd: OwnedFd) -> Result<Self, WindowError> {
        let found = fstat(&fd).map_err(io::Error::from)?.st_size;
        memory::verify(&fd, u64::try_from(found).unwrap_or(0))?;
        let len = usize::try_from(found).unwrap_or(0);
        Ok(Self {
            mapping: Mapping::shared_anywhere(&fd, len)?,
            fd,
        })
    }

    /// The descriptor to pass to another process.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The first byte. Other processes may change what it points to at any time.
    #[inline]
    pub fn base(&self) -> *mut u8 {
        self.mapping.base()
    }

    /// Bytes in the window; never zero.
    #[expect(clippy::len_without_is_empty, reason = "a window is never empty")]
    #[inline]
    pub fn len(&self) -> usize {
        self.mapping.len()
    }

    /// The `index`th 8-byte word.
    ///
    /// # Panics
    ///
    /// If the window ends before it.
    #[inline]
    pub fn word(&self, index: usize) -> &AtomicU64 {
        let word = self.at(index.saturating_mul(8), 8);
        // SAFETY:
        // - In bounds: `at` checked 8 bytes.
        // - Aligned: the base is a page, the offset a multiple of 8.
        // - Live as long as `self`, which unmaps.
        // - Any bits are a valid `u64`.
        unsafe { AtomicU64::from_ptr(word.cast()) }
    }

    /// The `index`th 4-byte word, for a futex.
    ///
    /// # Panics
    ///
    /// If the window ends before it.
    #[inline]
    pub fn word32(&self, index: usize) -> &AtomicU32 {
        let word = self.at(index.saturating_mul(4), 4);
        // SAFETY:
        // - In bounds: `at` checked 4 bytes.
        // - Aligned: the base is a page, the offset a multiple of 4.
        // - Live as long as `self`, which unmaps.
        // - Any bits are a valid `u32`.
        unsafe { AtomicU32::from_ptr(word.cast()) }
    }

    /// Copies `bytes` into the window at `offset`.
    ///
    /// # Panics
    ///
    /// If they do not fit.
    #[inline]
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        // SAFETY:
        // - In bounds: `at` checked.
        // - No Rust reference points into the window's plain bytes, so none overlaps.
        unsafe { copy(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Copies from the window at `offset` into `bytes`.
    ///
    /// # Panics
    ///
    /// If the window ends before that.
    #[inline]
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        let from = self.at(offset, bytes.len());
        // SAFETY:
        // - In bounds: `at` checked.
        // - `bytes` is exclusively the caller's, so it does not overlap the window.
        unsafe { copy(from, bytes.as_mut_ptr(), bytes.len()) };
    }

    /// Sets `len` bytes from `offset` on to `byte`.
    ///
    /// # Panics
    ///
    /// If the window ends before that.
    pub fn fill(&self, offset: usize, len: usize, byte: u8) {
        let to = self.at(offset, len);
        // SAFETY:
        // - In bounds: `at` checked.
        unsafe { to.write_bytes(byte, len) };
    }

    /// The wrapping sum of the range's 8-byte words; reads all of it. A tail of fewer
    /// than 8 bytes counts byte by byte.
    ///
    /// # Panics
    ///
    /// If the window ends before that.
    #[inline]
    pub fn sum(&self, offset: usize, len: usize) -> u64 {
        let from = self.at(offset, len);
        // SAFETY:
        // - In bounds and mapped: `at` checked `len` bytes.
        unsafe { sum_at(from, len) }
    }

    /// Writes `seed`, `seed + 1`, ... to the range's 8-byte words. A tail of fewer than
    /// 8 bytes stays as it is.
    ///
    /// # Panics
    ///
    /// If the window ends before that.
    #[inline]
    pub fn touch_write(&self, offset: usize, len: usize, seed: u64) {
        let to = self.at(offset, len);
        // SAFETY:
        // - In bounds and mapped: `at` checked `len` bytes.
        unsafe { write_at(to, len, seed) }
    }

    /// Takes memory for the whole window and maps it, so that no touch faults.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the machine has too little.
    pub fn populate(&self) -> io::Result<()> {
        memory::populate_write(self.base().addr(), self.len())
    }

    /// The byte at `offset`, after checking that `len` bytes follow.
    #[inline]
    #[track_caller]
    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        let end = offset.checked_add(len);
        if end.is_none_or(|end| end > self.len()) {
            no_room(offset, len, self.len());
        }
        self.base().wrapping_add(offset)
    }
}

/// As [`Window::sum`], over memory of one's own: the very same loop, so that a benchmark
/// that compares the two compares memory.
///
/// ```
/// assert_eq!(portolan_sys::shared::sum_words(&[1; 17]), 2 * 0x0101_0101_0101_0101 + 1);
/// ```
#[inline]
pub fn sum_words(bytes: &[u8]) -> u64 {
    // SAFETY:
    // - In bounds: the slice's own pointer and length.
    unsafe { sum_at(bytes.as_ptr(), bytes.len()) }
}

/// As [`Window::touch_write`], over memory of one's own.
///
/// ```
/// let mut bytes = [0; 16];
/// portolan_sys::shared::write_words(&mut bytes, 7);
/// assert_eq!((bytes[0], bytes[8]), (7, 8));
/// ```
#[inline]
pub fn write_words(bytes: &mut [u8], seed: u64) {
    // SAFETY:
    // - In bounds and ours to write: the slice's own pointer and length.
    unsafe { write_at(bytes.as_mut_ptr(), bytes.len(), seed) }
}

/// Out of the way of those that fit.
#[cold]
#[inline(never)]
#[track_caller]
fn no_room(offset: usize, len: usize, room: usize) -> ! {
    panic!("{len} bytes at {offset} do not fit a window of {room} bytes");
}

/// Lengths of short messages, of which the next one comes in a few nanoseconds: they are copied,
/// read and written by loops that know the length, and so have no end to look for. For all systems
/// that are measured alike.
const SHORT: usize = 32;
/// See [`SHORT`].
const IN_A_LINE: usize = 48;

/// # Safety
///
/// `len` bytes from `from` are mapped and readable, as many from `to` are writable, and they do not
/// overlap.
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    match len {
        // SAFETY: the caller vouches for as many bytes.
        SHORT => unsafe { from.copy_to_nonoverlapping(to, SHORT) },
        // SAFETY: as above.
        IN_A_LINE => unsafe { from.copy_to_nonoverlapping(to, IN_A_LINE) },
        // SAFETY: as above.
        _ => unsafe { from.copy_to_nonoverlapping(to, len) },
    }
}

/// # Safety
///
/// `len` bytes from `from` are mapped and readable.
#[inline(always)]
unsafe fn sum_at(from: *const u8, len: usize) -> u64 {
    match len {
        // SAFETY: the caller vouches for as many bytes.
        SHORT => unsafe { sum_of(from, SHORT) },
        // SAFETY: as above.
        IN_A_LINE => unsafe { sum_of(from, IN_A_LINE) },
        // SAFETY: as above.
        _ => unsafe { sum_long(from, len) },
    }
}

/// # Safety
///
/// As of [`sum_at`].
#[inline(never)]
unsafe fn sum_long(from: *const u8, len: usize) -> u64 {
    // SAFETY: the caller vouches for it.
    unsafe { sum_of(from, len) }
}

/// # Safety
///
/// As of [`sum_at`].
#[inline(always)]
unsafe fn sum_of(from: *const u8, len: usize) -> u64 {
    let words = len / 8;
    let mut sum = 0_u64;
    for index in 0..words {
        let word = from.cast::<u64>().wrapping_add(index);
        // SAFETY:
        // - In bounds: `index` is below `len / 8`, and the caller vouches for `len` bytes.
        // - Unaligned is allowed, and any bits are a valid `u64`.
        sum = sum.wrapping_add(unsafe { word.read_unaligned() });
    }
    for index in words * 8..len {
        let byte = from.wrapping_add(index);
        // SAFETY:
        // - In bounds: `index` is below `len`.
        sum = sum.wrapping_add(u64::from(unsafe { byte.read() }));
    }
    sum
}

/// # Safety
///
/// `len` bytes from `to` are mapped and writable.
#[inline(always)]
unsafe fn write_at(to: *mut u8, len: usize, seed: u64) {
    match len {
        // SAFETY: the caller vouches for as many bytes.
        SHORT => unsafe { write_to(to, SHORT, seed) },
        // SAFETY: as above.
        IN_A_LINE => unsafe { write_to(to, IN_A_LINE, seed) },
        // SAFETY: as above.
        _ => unsafe { write_long(to, len, seed) },
    }
}

/// # Safety
///
/// As of [`write_at`].
#[inline(never)]
unsafe fn write_long(to: *mut u8, len: usize, seed: u64) {
    // SAFETY: the caller vouches for it.
    unsafe { write_to(to, len, seed) }
}

/// # Safety
///
/// As of [`write_at`].
#[inline(always)]
unsafe fn write_to(to: *mut u8, len: usize, seed: u64) {
    for index in 0..len / 8 {
        let word = to.cast::<u64>().wrapping_add(index);
        // SAFETY:
        // - In bounds: `index` is below `len / 8`, and the caller vouches for `len` bytes.
        // - Unaligned is allowed.
        unsafe { word.write_unaligned(seed.wrapping_add(index as u64)) };
    }
}
