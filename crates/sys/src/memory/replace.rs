//! Replaces private memory by pages of a file, at the same address.

use std::os::fd::OwnedFd;

use rustix::fs::{SealFlags, fcntl_get_seals};
use rustix::mm::MapFlags;

use super::PAGE;
use super::over::map_over;
use super::share::{ShareError, private};

/// Maps `file`, from `offset` of it on, over private memory: what lay there is gone, and every
/// thread sees the file's pages from one moment to the next. Forked children do not have them.
/// [`privatise`](super::privatise) gives the range back, with what it holds then.
///
/// # Examples
///
/// ```
/// use portolan_sys::memory::{self, Mapping, PAGE};
/// let ours = Mapping::private(&memory::create("example", PAGE as u64)?, PAGE)?;
/// let file = memory::create("example", 2 * PAGE as u64)?;
/// assert_eq!(rustix::io::pwrite(&file, b"theirs", PAGE as u64)?, 6);
///
/// // SAFETY:
/// // - No code relies on what the mapping holds, or holds a reference into it.
/// unsafe { memory::replace(&file, PAGE as u64, ours.base().addr(), PAGE) }?;
///
/// // SAFETY:
/// // - In bounds.
/// assert_eq!(unsafe { ours.base().read() }, b't');
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`ShareError`]; everything is as it was before. A file that may shrink is refused: its pages
/// could go while a thread stores to them.
///
/// # Safety
///
/// - No code here holds a reference into the range, or relies on what it holds; other processes
///   may change it from now on.
/// - No other thread maps, unmaps or protects any of the range during the call.
/// - The range does not hold a stack or thread-local storage.
pub unsafe fn replace(
    file: &OwnedFd,
    offset: u64,
    start: usize,
    len: usize,
) -> Result<(), ShareError> {
    let whole = start.is_multiple_of(PAGE) && len.is_multiple_of(PAGE) && len > 0;
    if !whole || !offset.is_multiple_of(PAGE as u64) || start.checked_add(len).is_none() {
        return Err(ShareError::Misaligned { start, len });
    }
    let seals = fcntl_get_seals(file).unwrap_or(SealFlags::empty());
    if !seals.contains(SealFlags::SHRINK) {
        return Err(ShareError::Shrinks {
            found: seals.bits(),
        });
    }
    private(start, len)?;
    // SAFETY:
    // - The range is this process's private memory, as was checked, and no code relies on what
    //   it holds, as the caller promises.
    // - No other thread changes the mapping meanwhile, as the caller promises.
    let mapped = unsafe { map_over(file, offset, start, len, MapFlags::SHARED) };
    mapped.map_err(|errno| ShareError::Io(errno.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Mapping, create};
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    #[test]
    fn a_file_that_may_shrink_is_not_shown() {
        let ours = Mapping::private(&create("ours", PAGE as u64).unwrap(), PAGE).unwrap();
        let shrinks = memfd_create("shrinks", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&shrinks, PAGE as u64).unwrap();
        // SAFETY:
        // - No code relies on what the mapping holds, or holds a reference into it.
        let refused = unsafe { replace(&shrinks, 0, ours.base().addr(), PAGE) };
        assert!(
            matches!(refused, Err(ShareError::Shrinks { found: 0 })),
            "{refused:?}"
        );
    }
}
