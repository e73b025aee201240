//! Copies shared memory to new private pages, and puts these in its place.
//!
//! This is the faster way of [`privatise`](super::privatise). It needs the right to have the
//! kernel stop stores that system calls make: `CAP_SYS_PTRACE`, or `vm.unprivileged_userfaultfd`.
//!
//! ```text
//!   new pages     private, huge where the system allows it, with memory where the file has some
//!   write-protect stores of other threads wait in the kernel; loads go on
//!   copy          once, from the shared mapping
//!   move over     mremap: at once, as a new mapping would be
//!   wake          the stopped stores are made again, into the new pages
//! ```
//!
//! Piece by piece, so that a store waits for 2 ms and not for all of it. What is left
//! over, for want of memory or of the privilege, is taken back in the other way. Holes stay holes,
//! so a range may be much larger than memory; and where the file's pages are given up behind each
//! piece, no more memory is needed than for one.
//!
//! # What it costs
//!
//! A piece of 8 MiB takes five system calls and four faults, of huge pages that the kernel clears,
//! where the other way takes 2,048 faults of small ones. Of 64 MiB, in ms, beside 23 to 25
//! for a copy into new small pages (19 to 21 of them the pages):
//!
//! | | carried over | of huge pages | other way | of huge pages |
//! |---|---|---|---|---|
//! | write-protecting | 2.4 | 0.2 | | |
//! | new pages | 2.8 | 2.8 | 25 to 30, with the copy | 27 to 28 |
//! | copying | 3.1 | 2.5 | | |
//! | the old pages leave our page table | 6.7 | 0.5 | 4.5 to 6.9 | 0 |
//! | then giving up the file's pages | 11 to 14 | 0.2 | 11 to 14 | 1.2 |
//!
//! The file's pages are huge where it was populated so ([`populate_huge`](super::populate_huge)).
//! Small ones are copied by ourselves: the kernel, which copies from the file, takes four times as
//! long over them. Huge ones are copied by the kernel: to protect them takes them apart, and we
//! would fault on each part.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::ptr;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap_fixed, munmap};

use super::file::{DataRanges, data_ranges, punch};
use super::range::{advise_huge, advise_small, at, populate_write};
use super::share::Stopped;
use super::{HUGE_PAGE, PAGE};
use crate::track::has_huge;
use crate::userfault::{Userfault, Whose, feature};

/// Bytes that take each other's place in one go, up to where a huge page ends.
const PIECE: usize = 4 * HUGE_PAGE;
/// The same, of nothing but holes, which are not copied.
const HOLE: usize = 8 * PIECE;

/// Makes the beginning of a range private that shows `fd` from `offset` on; how many bytes of
/// it, whole pages. It is all as it was behind them. If it `gives_up` the file's pages, those of
/// each piece go when that is private.
///
/// Nothing is done for less than a huge page: two dozen system calls cost more than the faults
/// that they save.
///
/// # Safety
///
/// - As of [`privatise`](super::privatise), and the range shows just these bytes of the file,
///   shared, to be read and written.
pub(super) unsafe fn carry_over(
    fd: &OwnedFd,
    offset: u64,
    start: usize,
    len: usize,
    gives_up: bool,
) -> usize {
    if len < HUGE_PAGE {
        return 0;
    }
    let features =
        feature::WRITE_PROTECT | feature::WRITE_PROTECT_SHMEM | feature::WRITE_PROTECT_UNPOPULATED;
    // Only if system calls wait as well: else their stores would fail.
    let Ok(watch) = Userfault::open(features, Whose::All) else {
        return 0;
    };
    let Ok(mut room) = Room::like(start, len) else {
        return 0;
    };
    let pagemap = File::open("/proc/self/pagemap").ok();
    let mut done = 0;
    while done < len {
        let here = start + done;
        let from = offset + done as u64;
        let empty = match data_ranges(fd, from..offset + len as u64).next() {
            None => len - done,
            Some(Ok(data)) => usize::try_from(data.start - from).unwrap_or(0),
            Some(Err(_)) => break,
        };
        let huge_page = here / HUGE_PAGE * HUGE_PAGE;
        let most = if empty > PIECE {
            (here + empty).min(huge_page + HOLE) / HUGE_PAGE * HUGE_PAGE
        } else {
            huge_page + PIECE
        };
        let piece = Piece {
            fd,
            offset: from,
            start: here,
            len: most.min(start + len) - here,
        };
        let huge = pagemap
            .as_ref()
            .is_some_and(|pagemap| has_huge(pagemap, here, piece.len));
        // SAFETY:
        // - As the caller promises, of a part.
        if unsafe { piece.carry_over(&watch, &mut room, huge) }.is_err() {
            break;
        }
        if gives_up {
            // Refused, it costs memory and nothing else.
            let _ = punch(fd, piece.offset, piece.len as u64);
        }
        done += piece.len;
    }
    done
}

/// A part of the range, and what it shows.
struct Piece<'a> {
    fd: &'a OwnedFd,
    offset: u64,
    start: usize,
    len: usize,
}

impl Piece<'_> {
    /// Puts private pages with the same content in its place; if that fails nothing has changed.
    ///
    /// # Safety
    ///
    /// - As of [`carry_over`].
    unsafe fn carry_over(
        &self,
        watch: &Userfault,
        room: &mut Room,
        huge: bool,
    ) -> Result<(), Errno> {
        let Self { start, len, .. } = *self;
        let new = room.next;
        let refused = |error| Errno::from_io_error(&error).unwrap_or(Errno::NOMEM);
        if self.is_whole() {
            populate_write(new, len).map_err(refused)?;
        } else {
            let _ = advise_small(new, len);
            for data in self.data() {
                let data = data.map_err(refused)?;
                let at = new + self.place(data.start);
                populate_write(at, self.place(data.end) - self.place(data.start))
                    .map_err(refused)?;
            }
        }
        // From here on nothing is allocated and no lock is taken, as in `share_into`.
        let stopped = Stopped::new(watch, start, len)?;
        self.copy_to(new, huge)?;
        let flags = MremapFlags::MAYMOVE;
        // SAFETY:
        // - The old place is the room's, which no other code knows.
        // - What is replaced shows the same content, as no store got through since it was copied,
        //   but those of importers, who are not listened to any more.
        // - No other thread changes the mappings there meanwhile, as the caller promises.
        unsafe { mremap_fixed(at(new), len, len, flags, at(start)) }?;
        room.next += len;
        drop(stopped);
        Ok(())
    }

    /// Copies it to `to`, which is ours alone; it lies in huge pages or not.
    fn copy_to(&self, to: usize, huge: bool) -> Result<(), Errno> {
        #[cfg(target_arch = "x86_64")]
        if !huge {
            // A hole would take memory when we load from it, and who gets none there dies.
            if self.is_whole() {
                // SAFETY:
                // - Mapped, as the caller of `carry_over` promises: to be read here, and to be
                //   written there; apart, since `to` is in the room.
                unsafe { string_copy(at(to).cast(), at(self.start).cast(), self.len) };
                return Ok(());
            }
        }
        let _ = huge;
        self.read_to(to)
    }

    /// Whether the file has no hole there.
    fn is_whole(&self) -> bool {
        let end = self.offset + self.len as u64;
        seek(self.fd, SeekFrom::Hole(self.offset)).is_ok_and(|hole| hole >= end)
    }

    /// Where the file has memory.
    fn data(&self) -> DataRanges<'_> {
        data_ranges(self.fd, self.offset..self.offset + self.len as u64)
    }

    /// How far a byte of the file is from the piece's first.
    fn place(&self, of_file: u64) -> usize {
        usize::try_from(of_file - self.offset).unwrap_or(self.len)
    }

    /// As [`Self::copy_to`], by the kernel, and only where the file has memory: the new pages read
    /// as zeros elsewhere. What own threads have stored to since the new pages were populated is
    /// among it, and takes memory now.
    fn read_to(&self, to: usize) -> Result<(), Errno> {
        for data in self.data() {
            let data = data.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
            self.read_part(to, self.place(data.start), self.place(data.end))?;
        }
        Ok(())
    }

    fn read_part(&self, to: usize, begin: usize, end: usize) -> Result<(), Errno> {
        let mut done = begin;
        while done < end {
            // SAFETY:
            // - In bounds of the piece's part of the room, which no other code knows.
            let rest =
                unsafe { std::slice::from_raw_parts_mut(at(to + done).cast::<u8>(), end - done) };
            match rustix::io::pread(self.fd, rest, self.offset + done as u64) {
                // The file cannot shrink.
                Ok(0) => return Err(Errno::IO),
                Ok(more) => done += more,
                Err(Errno::INTR) => {}
                Err(other) => return Err(other),
            }
        }
        Ok(())
    }
}

/// `rep movsb`: a copy that the compiler knows nothing about, of what others may be writing.
///
/// # Safety
///
/// - `from` is readable and `to` writable for `len` bytes, and they do not overlap.
#[cfg(target_arch = "x86_64")]
unsafe fn string_copy(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY:
    // - Touches `len` bytes from each pointer, which the caller vouches for.
    // - The direction flag is clear by the calling convention; nothing else is changed.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rdi") to => _,
            inout("rsi") from => _,
            options(nostack, preserves_flags),
        );
    };
}

/// Private memory that is still to be moved: `next` up to `end`.
///
/// One mapping for all pieces, because the kernel joins what came from one, and would keep as
/// many mappings as there were pieces of several.
struct Room {
    next: usize,
    end: usize,
}

impl Room {
    /// Room for `len` bytes, as far from a huge page's start as `start` is.
    fn like(start: usize, len: usize) -> Result<Self, Errno> {
        let reserved = len.checked_add(HUGE_PAGE).ok_or(Errno::NOMEM)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY:
        // - No address is asked for, so the kernel takes a free range.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), reserved, access, flags) }?;
        let base = base.expose_provenance();
        let skip = start.wrapping_sub(base) % HUGE_PAGE;
        debug_assert!(skip.is_multiple_of(PAGE), "pages begin where pages begin");
        // Only what it drops is unmapped: the rest may belong to other code by then.
        drop(Self {
            next: base,
            end: base + skip,
        });
        let room = Self {
            next: base + skip,
            end: base + skip + len,
        };
        drop(Self {
            next: room.end,
            end: base + reserved,
        });
        // Where the system has none it is small ones.
        let _ = advise_huge(room.next, len);
        Ok(room)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if self.next < self.end {
            // SAFETY:
            // - Ours, and no other code knows it.
            let _ = unsafe { munmap(at(self.next), self.end - self.next) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{self, Mapping, PrivatiseError, allocated_bytes};
    use crate::process::Maps;

    /// Three pieces and a bit, beginning in the middle of a huge page.
    const LEN: usize = 3 * PIECE + 5 * PAGE;

    fn byte(address: usize) -> *mut u8 {
        at(address).cast()
    }

    fn is_there(page: usize) -> bool {
        page.is_multiple_of(2) || page * PAGE < 2 * PIECE
    }

    /// A mapping of `LEN` bytes behind the first page; whose first piece has huge pages, as far as
    /// they fit, and the next one small ones, and in which every second page is a hole from there
    /// on; what was to be carried over, and whether it can be.
    fn shown() -> (OwnedFd, Mapping, usize, bool) {
        let file = memory::create("portolan-carry", (LEN + PAGE) as u64).unwrap();
        let mapping = Mapping::shared_anywhere(&file, LEN + PAGE).unwrap();
        let start = mapping.base().expose_provenance() + PAGE;
        memory::populate_huge(start, PIECE).unwrap();
        for page in (0..LEN / PAGE).filter(|&page| is_there(page)) {
            // SAFETY:
            // - In bounds of our mapping.
            unsafe { byte(start + page * PAGE).write_volatile(page.to_le_bytes()[0]) };
        }
        let permitted = Userfault::open(feature::WRITE_PROTECT_SHMEM, Whose::All).is_ok();
        if !permitted {
            eprintln!("skipped: stores of system calls cannot be stopped here");
        }
        (file, mapping, start, permitted)
    }

    #[test]
    fn pieces_are_carried_over_with_their_holes_and_become_one_mapping() {
        let (file, _mapping, start, permitted) = shown();
        let before = allocated_bytes(&file).unwrap();
        // SAFETY:
        // - Our mapping, used by this test alone.
        let done = unsafe { carry_over(&file, PAGE as u64, start, LEN, false) };
        assert_eq!(done, if permitted { LEN } else { 0 });
        if !permitted {
            return;
        }
        assert_eq!(allocated_bytes(&file).unwrap(), before, "holes took memory");
        let areas = Maps::own().unwrap().areas(start..start + LEN).unwrap();
        let private = |area: &crate::process::Area| !area.shared && area.inode == 0 && area.write;
        assert!(areas.len() <= 2 && areas.iter().all(private), "{areas:?}");
        rustix::io::pwrite(&file, &[77; 64], PAGE as u64).unwrap();
        for page in 0..LEN / PAGE {
            let expected = if is_there(page) {
                page.to_le_bytes()[0]
            } else {
                0
            };
            // SAFETY:
            // - In bounds of our mapping.
            let found = unsafe { byte(start + page * PAGE).read_volatile() };
            assert_eq!(found, expected, "page {page}");
        }
    }

    #[test]
    fn what_was_refused_half_way_goes_on_there() {
        let (file, _mapping, start, permitted) = shown();
        if !permitted {
            return;
        }
        // SAFETY:
        // - Our mapping, used by this test alone; as if the rest had been refused.
        let done = unsafe { carry_over(&file, PAGE as u64, start, PIECE, false) };
        assert_eq!(done, PIECE);
        // SAFETY:
        // - As above.
        let again = || unsafe { memory::privatise(&file, PAGE as u64, start, LEN) };
        again().unwrap();
        let areas = Maps::own().unwrap().areas(start..start + LEN).unwrap();
        assert!(areas.iter().all(|area| !area.shared), "{areas:?}");
        // But not when nothing is left.
        let error = again().unwrap_err();
        assert!(
            matches!(error, PrivatiseError::NotShared { address } if address == start),
            "{error:?}"
        );
    }
}
