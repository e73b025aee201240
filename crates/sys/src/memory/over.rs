//! A part of a file, mapped over what is mapped somewhere already.

use std::os::fd::OwnedFd;
use std::ptr;

use rustix::io::Errno;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap, mremap_fixed, munmap};

use super::range::{at, keep_from_children};

/// Maps `fd` from `offset` on over the range, shared or private as `kind` says, to be read and
/// written. Whoever touches the range meanwhile waits for a moment, and there is none at which it
/// shows neither; forked children do not have it. If that fails nothing has changed.
///
/// # Safety
///
/// - Nobody relies on what the range shows, but as far as the file shows the same.
/// - No other thread maps, unmaps or protects any of the range during the call.
pub(super) unsafe fn map_over(
    fd: &OwnedFd,
    offset: u64,
    start: usize,
    len: usize,
    kind: MapFlags,
) -> Result<(), Errno> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = kind | MapFlags::NORESERVE;
    // Somewhere else first, so that no child has it before it is kept from children.
    // SAFETY:
    // - No address is asked for, so the kernel takes a free range.
    let new = unsafe { mmap(ptr::null_mut(), len, access, flags, fd, offset) };
    if let Ok(new) = new {
        let kept = keep_from_children(new.addr(), len).is_ok();
        // SAFETY:
        // - The old place is that of the new mapping, which nobody else knows.
        // - What is replaced, and that nobody else changes mappings there: as the caller promises.
        let moved =
            kept && unsafe { mremap_fixed(new, len, len, MremapFlags::MAYMOVE, at(start)) }.is_ok();
        if moved {
            return Ok(());
        }
        // SAFETY:
        // - Still there, and nobody else knows it.
        let _ = unsafe { munmap(new, len) };
    }
    // Without addresses for both: a child that is made in this very moment has it.
    // SAFETY:
    // - What is replaced, and that nobody else changes mappings there: as the caller promises.
    unsafe { mmap(at(start), len, access, flags | MapFlags::FIXED, fd, offset) }?;
    // Cannot fail on what was mapped just now.
    let _ = keep_from_children(start, len);
    Ok(())
}
