//! Reads and writes another process's memory by its process id: one copy, no consent.
//!
//! The kernel permits it where tracing is permitted: to the same user, and on many systems
//! only to ancestors. A process id may be reused, so hold a [`PidFd`](super::PidFd) of the
//! process and look at it *after* the call too.

use std::io::{IoSlice, IoSliceMut};

use super::TransferError;
use super::memory::MAX_PARTS;
use super::transfer::{Target, moved};

/// Some bytes of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// First address there.
    pub address: usize,
    /// Bytes.
    pub len: usize,
}

/// Writes the parts `from`, one behind the other, over the parts `to` of process `pid`.
///
/// Page protection there is respected. Both sides must have as many bytes.
///
/// # Examples
///
/// ```
/// use std::io::IoSlice;
/// use portolan_sys::memory::{self, Mapping, PAGE};
/// use portolan_sys::process::{self, Remote};
/// let fd = memory::create("example", PAGE as u64)?;
/// let target = Mapping::shared_anywhere(&fd, PAGE)?;
/// let to = Remote { address: target.base().addr(), len: 2 };
/// process::write_memory(std::process::id(), &[IoSlice::new(b"a"), IoSlice::new(b"b")], &[to])?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`TransferError`]. Its `done` bytes were written, counted over all parts.
pub fn write_memory(pid: u32, from: &[IoSlice<'_>], to: &[Remote]) -> Result<(), TransferError> {
    let mut from = from.to_vec();
    let len = from.iter().map(|part| part.len()).sum();
    let mut left = from.as_mut_slice();
    carry(to, len, |done, remote| {
        IoSlice::advance_slices(&mut left, done);
        let now = left.len().min(MAX_PARTS);
        // SAFETY:
        // - An `IoSlice` is laid out as an `iovec`, and both arrays have the length said.
        // - The local parts are borrowed for the call and only read.
        // - The kernel checks the remote ones, in the other process.
        unsafe {
            libc::process_vm_writev(
                pid.cast_signed(),
                left.as_ptr().cast(),
                count(now),
                remote.as_ptr(),
                count(remote.len()),
                0,
            )
        }
    })
}

/// Reads the parts `from` of process `pid`, one behind the other, into the parts `to`.
///
/// Page protection there is respected. Both sides must have as many bytes.
///
/// # Examples
///
/// ```
/// use std::io::IoSliceMut;
/// use portolan_sys::process::{self, Remote};
/// let theirs = *b"here";
/// let mut ours = [0; 4];
/// let from = Remote { address: theirs.as_ptr().addr(), len: 4 };
/// process::read_memory(std::process::id(), &[from], &mut [IoSliceMut::new(&mut ours)])?;
/// assert_eq!(ours, theirs);
/// # Ok::<(), process::TransferError>(())
/// ```
///
/// # Errors
///
/// [`TransferError`]. Its `done` bytes were read, counted over all parts.
pub fn read_memory(
    pid: u32,
    from: &[Remote],
    mut to: &mut [IoSliceMut<'_>],
) -> Result<(), TransferError> {
    let len = to.iter().map(|part| part.len()).sum();
    carry(from, len, |done, remote| {
        IoSliceMut::advance_slices(&mut to, done);
        let now = to.len().min(MAX_PARTS);
        // SAFETY:
        // - An `IoSliceMut` is laid out as an `iovec`, and both arrays have the length said.
        // - The local parts are exclusively ours for the call.
        // - The kernel checks the remote ones, in the other process.
        unsafe {
            libc::process_vm_readv(
                pid.cast_signed(),
                to.as_ptr().cast(),
                count(now),
                remote.as_ptr(),
                count(remote.len()),
                0,
            )
        }
    })
}

/// Repeats `call`, which is told how much the last one carried and what is left there,
/// until all `len` bytes are carried.
fn carry(
    remote: &[Remote],
    len: usize,
    mut call: impl FnMut(usize, &[libc::iovec]) -> libc::ssize_t,
) -> Result<(), TransferError> {
    let first = remote.first().map_or(0, |part| part.address);
    let there = remote
        .iter()
        .try_fold(0, |sum: usize, part| sum.checked_add(part.len));
    if there != Some(len) {
        return Err(TransferError::OutOfRange {
            address: first,
            len,
        });
    }
    for part in remote {
        Target::new(part.address, part.len)?;
    }
    let mut left: Vec<libc::iovec> = remote.iter().map(iovec).collect();
    let (mut skip, mut passed) = (0, 0);
    let carried = Target::new(0, len)?.carry(|done| {
        let mut more = done - passed;
        while let Some(part) = left.get_mut(skip).filter(|part| part.iov_len <= more) {
            more -= part.iov_len;
            skip += 1;
        }
        if let Some(part) = left.get_mut(skip) {
            part.iov_base = part.iov_base.wrapping_byte_add(more);
            part.iov_len -= more;
        }
        let now = &left[skip..left.len().min(skip + MAX_PARTS)];
        let returned = call(done - passed, now);
        passed = done;
        moved(returned)
    });
    carried.map_err(|error| match error {
        // Where it stopped, in the process.
        TransferError::Unmapped { done, len, .. } => TransferError::Unmapped {
            address: left.get(skip).map_or(0, |part| part.iov_base.addr()),
            done,
            len,
        },
        other => other,
    })
}

fn iovec(part: &Remote) -> libc::iovec {
    libc::iovec {
        iov_base: std::ptr::without_provenance_mut(part.address),
        iov_len: part.len,
    }
}

/// A number of parts; at most [`MAX_PARTS`].
fn count(parts: usize) -> libc::c_ulong {
    parts as libc::c_ulong
}
