//! Maps a part of a file over an existing mapping.

use std::os::fd::OwnedFd;
use std::ptr;

use rustix::io::Errno;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap, mremap_fixed, munmap};

use super::range::{at, keep_from_children};

/// Maps `fd` from `offset` on over the range, shared or private as `kind` says, to be read and
/// written. A thread that touches the range meanwhile waits for a moment, and always finds the old
/// or the new mapping; forked children do not have it. If that fails nothing has changed.
///
/// # Safety
///
/// - No code relies on the content of the range, except where the file has the same content.
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
        // - The old place is the new mapping, whose address no other code knows.
        // - The caller promises that the old content may go, and that no other thread changes
        //   mappings there.
        let moved =
            kept && unsafe { mremap_fixed(new, len, len, MremapFlags::MAYMOVE, at(start)) }.is_ok();
        if moved {
            return Ok(());
        }
        // SAFETY:
        // - The mapping is still there, and no other code knows its address.
        let _ = unsafe { munmap(new, len) };
    }
    // Without addresses for both: a child that is made in this very moment has it.
    // SAFETY:
    // - The caller promises that the old content may go, and that no other thread changes
    //   mappings there.
    unsafe { mmap(at(start), len, access, flags | MapFlags::FIXED, fd, offset) }?;
    // Cannot fail on what was mapped just now.
    let _ = keep_from_children(start, len);
    Ok(())
}
