//! Asks whether the machine has so much memory, before a caller takes much of it.
//!
//! Pages of a memory file count for no process, so when they run out the kernel kills other
//! processes than the one that took them. So the library refuses a size that is plainly too
//! large. This is a look and not a reservation: other processes take memory meanwhile.

use std::io;

use rustix::io::Errno;

use super::large::collapse_quickly;
use super::range::{at, populate_write};
use super::{HUGE_PAGE, PAGE};
use crate::machine;

/// Less than this is taken without a look, which would cost more than the memory.
const MUCH: usize = 64 << 20;

/// Whether it can be that `bytes` more are had.
pub(super) fn may_be_had(bytes: usize) -> bool {
    bytes < MUCH || bytes as u64 <= machine::could_be_had()
}

/// As [`populate_write`], if the pages that are not there yet can be had.
///
/// # Errors
///
/// As [`populate_write`], and `ENOMEM` if they cannot; nothing has been taken then.
pub fn populate_new(start: usize, len: usize) -> io::Result<()> {
    look(start, len)?;
    populate_write(start, len)
}

/// As [`populate_new`], of a shared mapping: in huge pages wherever one fits and the kernel has
/// one, whatever it gives unasked. They take a tenth of the time, and to give them up again a
/// fiftieth.
///
/// The range should be as far from the start of a [`HUGE_PAGE`](super::HUGE_PAGE) as what it shows
/// is in its file. What is there already is kept, and moved.
///
/// # Errors
///
/// As [`populate_new`].
pub fn populate_huge(start: usize, len: usize) -> io::Result<()> {
    look(start, len)?;
    let end = start.checked_add(len).ok_or(Errno::INVAL)?;
    let mut page = start.next_multiple_of(HUGE_PAGE);
    while page.checked_add(HUGE_PAGE).is_some_and(|next| next <= end) {
        // Where there is nothing at all, there is nothing to be moved to a huge page.
        populate_write(page, PAGE)?;
        if !collapse_quickly(page, HUGE_PAGE) {
            break;
        }
        page += HUGE_PAGE;
    }
    populate_write(start, len)
}

/// `ENOMEM` if the pages of the range that are not there cannot be had.
fn look(start: usize, len: usize) -> io::Result<()> {
    if may_be_had(len) {
        return Ok(());
    }
    // Asked once: what is missing is counted only until it is more than this.
    let enough = machine::could_be_had();
    match missing(start, len, enough)? as u64 > enough {
        true => Err(Errno::NOMEM.into()),
        false => Ok(()),
    }
}

/// Bytes of the range that are not in memory; counted until they are more than `enough`.
fn missing(start: usize, len: usize, enough: u64) -> io::Result<usize> {
    let mut pages = [0; MUCH / PAGE];
    let mut missing = 0;
    for done in (0..len).step_by(MUCH) {
        let step = MUCH.min(len - done);
        // SAFETY:
        // - Room for the answer: a byte a page, of as many pages as `pages` has at the most.
        // - The range itself is not touched.
        let asked = unsafe { libc::mincore(at(start + done), step, pages.as_mut_ptr()) };
        if asked != 0 {
            return Err(io::Error::last_os_error());
        }
        let there = pages.iter().take(step.div_ceil(PAGE));
        missing += there.filter(|page| **page & 1 == 0).count() * PAGE;
        if missing as u64 > enough {
            break;
        }
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Mapping, create};

    #[test]
    fn what_is_there_is_not_missing() {
        let len = 2 * MUCH + 3 * PAGE;
        let mapping = Mapping::shared_anywhere(&create("room", len as u64).unwrap(), len).unwrap();
        let start = mapping.base().addr();
        assert_eq!(missing(start, len, u64::MAX).unwrap(), len);
        assert_eq!(missing(start, len, 0).unwrap(), MUCH);
        populate_new(start + MUCH, PAGE).unwrap();
        populate_new(start + 2 * MUCH, 3 * PAGE).unwrap();
        let left = 2 * MUCH - PAGE;
        assert_eq!(missing(start, len, u64::MAX).unwrap(), left);
        populate_huge(start, len).unwrap();
        assert_eq!(missing(start, len, u64::MAX).unwrap(), 0);
    }

    #[test]
    fn more_than_the_machine_has_is_refused_before_any_is_taken() {
        assert!(may_be_had(PAGE) && !may_be_had(usize::MAX));
        // Not to be written: a try would find that out, and take nothing.
        let len = 1 << 45;
        let file = create("room", len as u64).unwrap();
        let mapping = Mapping::read_only(&file, len).unwrap();
        let refused = populate_new(mapping.base().addr(), len).unwrap_err();
        assert_eq!(Errno::from_io_error(&refused), Some(Errno::NOMEM));
    }
}
