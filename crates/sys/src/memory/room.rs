//! Whether the machine has so much memory, asked before much of it is taken.
//!
//! Pages of a memory file are no process's own, so whoever takes more of them than there are is
//! not whom the kernel's killer strikes: it strikes everybody else first. What can be seen
//! beforehand to be too much is therefore refused. It is a look and not a claim: others take
//! memory meanwhile.

use std::io;

use rustix::io::Errno;

use super::PAGE;
use super::range::{at, populate_write};
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
    if !may_be_had(len) && !may_be_had(missing(start, len, machine::could_be_had())?) {
        return Err(Errno::NOMEM.into());
    }
    populate_write(start, len)
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
