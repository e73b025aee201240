//! Freezes memory: it is filled while one process has it, then sealed, then shown as bytes.
//!
//! ```text
//! Blank --freeze--> Frozen --descriptor--> Frozen::verify      in each receiver
//! ```
//!
//! Memory that is sealed against writing may become a `&[u8]`, although other processes map it too
//! (M4).

use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::room::may_be_had;
use super::{
    AllocateError, HUGE_PAGE, MapError, Mapping, PAGE, SealError, VerifyError, allocate,
    collapse_quickly, create_unsealed, populate_read, seal, verify_sealed,
};

/// Memory that no other process has yet, to be filled and then [frozen](Self::freeze).
///
/// # Examples
///
/// ```
/// use portolan_sys::memory::{Blank, Frozen};
/// let mut blank = Blank::new(5)?;
/// blank.copy_from_slice(b"hello");
/// let frozen = blank.freeze()?;
/// let descriptor = std::os::fd::AsFd::as_fd(&frozen).try_clone_to_owned()?;
/// // In another process:
/// let mut theirs = Frozen::verify(descriptor, 5)?;
/// theirs.make_mut()[0] = b'j';
/// assert_eq!((&theirs[..], &frozen[..]), (&b"jello"[..], &b"hello"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Blank {
    mapping: Option<Mapping>,
    fd: OwnedFd,
    len: usize,
}

impl Blank {
    /// `len` bytes of zeros, with memory behind them, so that no touch can fail.
    ///
    /// # Errors
    ///
    /// [`FreezeError`], never `Seal`.
    pub fn new(len: usize) -> Result<Self, FreezeError> {
        let whole = whole_pages(len).ok_or(FreezeError::Io(io::ErrorKind::OutOfMemory.into()))?;
        if !may_be_had(whole) {
            let (offset, len, done) = (0, whole as u64, 0);
            return Err(AllocateError::OutOfMemory { offset, len, done }.into());
        }
        let fd = create_unsealed("portolan-sealed", whole as u64)?;
        if whole == 0 {
            return Ok(Self {
                mapping: None,
                fd,
                len,
            });
        }
        allocate(&fd, 0, whole as u64)?;
        let mapping = Mapping::shared_anywhere(&fd, whole)?;
        let huge = whole / HUGE_PAGE * HUGE_PAGE;
        if huge > 0 {
            // Receivers then map it in few page faults; where collapsing fails, in many.
            let _ = collapse_quickly(mapping.base().addr(), huge);
        }
        Ok(Self {
            mapping: Some(mapping),
            fd,
            len,
        })
    }

    /// Seals it: from here on no process can change a byte of it, this one included.
    ///
    /// # Errors
    ///
    /// [`FreezeError`]; the memory is gone then.
    pub fn freeze(mut self) -> Result<Frozen, FreezeError> {
        // The only mapping that could write, and the descriptor was not shown to any process.
        self.mapping = None;
        seal(&self.fd)?;
        Ok(Frozen::map(self.fd, self.len)?)
    }
}

impl Deref for Blank {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let Some(mapping) = &self.mapping else {
            return &[];
        };
        // SAFETY:
        // - In bounds and live: the mapping has at least `len` bytes and is ours.
        // - Initialised: zeros, or what was written.
        // - Not written meanwhile: no other process has the file, and we lend our borrow out.
        unsafe { std::slice::from_raw_parts(mapping.base(), self.len) }
    }
}

impl DerefMut for Blank {
    fn deref_mut(&mut self) -> &mut [u8] {
        let Some(mapping) = &self.mapping else {
            return &mut [];
        };
        // SAFETY:
        // - In bounds, live, initialised: as above.
        // - Exclusive: no other process has the file, and we lend our exclusive borrow out.
        unsafe { std::slice::from_raw_parts_mut(mapping.base(), self.len) }
    }
}

/// Memory that no process can change any more, and a descriptor to hand it out by.
///
/// What this process writes ([`make_mut`](Self::make_mut)) is its own, and seen nowhere else.
#[derive(Debug)]
pub struct Frozen {
    mapping: Option<Mapping>,
    fd: OwnedFd,
    len: usize,
    written: bool,
}

impl Frozen {
    /// Takes memory that another process says is sealed, and holds `len` bytes.
    ///
    /// # Errors
    ///
    /// [`FrozenError`]; the descriptor is closed.
    pub fn verify(fd: OwnedFd, len: usize) -> Result<Self, FrozenError> {
        // More than there can be fails to be verified.
        let whole = whole_pages(len).map_or(u64::MAX, |whole| whole as u64);
        verify_sealed(&fd, whole)?;
        Ok(Self::map(fd, len)?)
    }

    fn map(fd: OwnedFd, len: usize) -> Result<Self, MapError> {
        let whole = whole_pages(len).unwrap_or(usize::MAX);
        let mapping = match whole {
            0 => None,
            whole => Some(Mapping::private(&fd, whole)?),
        };
        Ok(Self {
            mapping,
            fd,
            len,
            written: false,
        })
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether this process has asked to write. Its bytes may differ from the descriptor's.
    pub fn is_written(&self) -> bool {
        self.written
    }

    /// The bytes, to write: what is written stays this process's own.
    pub fn make_mut(&mut self) -> &mut [u8] {
        self.written = true;
        let Some(mapping) = &self.mapping else {
            return &mut [];
        };
        // SAFETY:
        // - In bounds, live, initialised: as in `deref`.
        // - Exclusive: a private mapping, which is reached only through this, and we lend our
        //   exclusive borrow out.
        unsafe { std::slice::from_raw_parts_mut(mapping.base(), self.len) }
    }

    /// Maps all of it now, so that the first reads need not.
    pub fn map_now(&self) {
        if let Some(mapping) = &self.mapping {
            // A failure only means that the first touch faults.
            let _ = populate_read(mapping.base().addr(), mapping.len());
        }
    }
}

impl Deref for Frozen {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let Some(mapping) = &self.mapping else {
            return &[];
        };
        // SAFETY:
        // - In bounds and live: the mapping has at least `len` bytes; the file's size is final.
        // - Initialised: files read as zeros, or what was written.
        // - Not written meanwhile: no process can write to the file (M4), and to this private
        //   mapping only `make_mut`, which borrows exclusively.
        unsafe { std::slice::from_raw_parts(mapping.base(), self.len) }
    }
}

impl AsFd for Frozen {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Whole pages for `len` bytes.
fn whole_pages(len: usize) -> Option<usize> {
    len.checked_next_multiple_of(PAGE)
}

/// Why memory could not be made and sealed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FreezeError {
    /// The machine's: it has too little.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    /// The machine's: no addresses.
    #[error(transparent)]
    Map(#[from] MapError),
    /// See [`SealError`].
    #[error(transparent)]
    Seal(#[from] SealError),
    /// The machine's: no descriptor, above all.
    #[error("cannot make sealed memory: {0}")]
    Io(#[from] io::Error),
}

/// Why a descriptor was not taken for sealed memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrozenError {
    /// The sender's, but for its `Io`.
    #[error(transparent)]
    Verify(#[from] VerifyError),
    /// The machine's: no addresses.
    #[error(transparent)]
    Map(#[from] MapError),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(len: usize) -> Frozen {
        let mut blank = Blank::new(len).unwrap();
        for (at, byte) in blank.iter_mut().enumerate() {
            *byte = at.to_le_bytes()[0];
        }
        blank.freeze().unwrap()
    }

    fn theirs(of: &Frozen, len: usize) -> Result<Frozen, FrozenError> {
        Frozen::verify(of.as_fd().try_clone_to_owned().unwrap(), len)
    }

    #[test]
    fn all_lengths_arrive_and_stay() {
        for len in [0, 1, PAGE - 1, PAGE, PAGE + 1, HUGE_PAGE, 2 * HUGE_PAGE + 5] {
            let made = filled(len);
            let mut came = theirs(&made, len).unwrap();
            came.map_now();
            assert_eq!((came.len(), came.is_empty()), (len, len == 0));
            assert!(*came == *made && !came.is_written());
            came.make_mut().fill(0xee);
            assert!(came.is_written() && came.iter().all(|b| *b == 0xee));
            let expected = |(at, byte): (usize, &u8)| *byte == at.to_le_bytes()[0];
            assert!(made.iter().enumerate().all(expected));
            assert!(theirs(&made, len).unwrap().iter().enumerate().all(expected));
        }
    }

    #[test]
    fn other_lengths_are_refused() {
        let made = filled(PAGE + 1);
        for len in [0, PAGE, 2 * PAGE + 1, usize::MAX] {
            assert!(
                matches!(theirs(&made, len), Err(FrozenError::Verify(_))),
                "{len}"
            );
        }
    }
}
