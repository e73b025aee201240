//! The head of an arena, at the beginning of its first extent, says where the root and free memory
//! lie.
//!
//! ```text
//! first extent:   [Header][ handed out | next -->            end ]
//! later extents:          [ handed out | next -->            end ]
//! ```
//!
//! Memory is handed out upwards from `next`. What is given back goes to a list of blocks of
//! about its size, and is handed out first; a block that is too large is cut. When `end` is
//! reached, blocks that lie side by side are joined, if a good part of the arena is free;
//! if that does not help, the arena grows by a whole extent, about as large as all that it
//! has, and the rest of the last one becomes a block.
//!
//! One space holds the message, and one thread has the arena open, so all words are plain.
//!
//! The previous holder of the message wrote these words, so the arena believes none of them:
//! it hands out memory only behind the head and within the extents, which the caller that opens
//! the arena has compared with those that it holds ([`Header::parts`]). A list of free blocks
//! that leads elsewhere is dropped; a `next` or `end` elsewhere means that there is no room.
//! That a block is free is believed: a damaged list can hand memory out twice, within the
//! extents.

use crate::growth::{self, NoRoom};
use std::alloc::Layout;
use std::cell::Cell;
use std::mem::size_of;
use std::ptr::NonNull;

/// First word of an arena.
const MAGIC: u64 = u64::from_le_bytes(*b"arena 01");
/// Blocks are multiples of this, and aligned to it.
const UNIT: usize = 16;
/// Lists of free blocks: 1 to 7 units, then four to each doubling, up to 2^40 bytes.
const LISTS: usize = 8 + 4 * 34;
/// Most extents of an arena: it doubles each time, so this many are never reached but by
/// a domain that runs out.
pub const MAX_PARTS: usize = 64;
/// Below this an arena grows to four times its size.
const SMALL: usize = 1 << 20;
/// Blocks of a list that are looked at for one that is large enough.
const LOOK: usize = 16;
const NAME: usize = 96;
const BUILD: usize = 288;

/// The head of an arena.
#[repr(C)]
pub struct Header {
    magic: Cell<u64>,
    /// Where it lies: a copy elsewhere is not an arena.
    address: Cell<usize>,
    layout: Cell<u64>,
    build: Cell<u64>,
    root: Cell<*mut u8>,
    next: Cell<*mut u8>,
    end: Cell<usize>,
    used: Cell<usize>,
    /// Bytes in free blocks.
    idle: Cell<usize>,
    /// Blocks were given back since they were last joined.
    untidy: Cell<usize>,
    parts: [Part; MAX_PARTS],
    /// Which lists have a block.
    some: [Cell<u64>; LISTS.div_ceil(64)],
    free: [Cell<*mut Free>; LISTS],
    name: [Cell<u8>; NAME],
    made_by: [Cell<u8>; BUILD],
}

/// One extent.
#[repr(C)]
struct Part {
    start: Cell<*mut u8>,
    bytes: Cell<usize>,
}

/// What stands in a free block.
struct Free {
    next: *mut Free,
    bytes: usize,
}

/// Where memory is handed out from in the first extent: behind the head.
const FIRST: usize = size_of::<Header>().next_multiple_of(UNIT);

const _: () = assert!(size_of::<Free>() <= UNIT && size_of::<Header>() <= 4096 - UNIT);

/// What was put into an arena, and by which build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// A hash of the root's layout.
    pub layout: u64,
    /// A hash of what the build was made with.
    pub build: u64,
    /// The root's type, for people.
    pub name: String,
    /// The build, for people.
    pub made_by: String,
}

impl Header {
    /// Begins an arena in `bytes` bytes at `start`; `None` if there is no room for its head.
    ///
    /// # Safety
    ///
    /// The memory is aligned to 16 bytes, readable and writable, and for as long as `'m`
    /// no other code uses it.
    pub unsafe fn begin<'m>(start: NonNull<u8>, bytes: usize) -> Option<&'m Self> {
        if bytes < size_of::<Self>() + UNIT {
            return None;
        }
        let head = start.cast::<Self>();
        // SAFETY:
        // - in bounds: checked above; writable, exclusive: promised by the caller.
        unsafe { head.write_bytes(0, 1) };
        // SAFETY:
        // - initialised: zeros are valid for integers and null pointers;
        // - in bounds, aligned, live for 'm: as above; shared: every field is a cell.
        let header = unsafe { head.as_ref() };
        header.address.set(start.addr().get());
        header.next.set(start.as_ptr().wrapping_add(FIRST));
        header.end.set(start.addr().get() + bytes / UNIT * UNIT);
        header.note_part(start, bytes);
        header.magic.set(MAGIC);
        Some(header)
    }

    /// The arena that begins at `start`; `None` if what lies there is none, or is a copy of
    /// one that was made elsewhere.
    ///
    /// # Safety
    ///
    /// The `bytes` bytes at `start` are aligned to 16 bytes, initialised and readable for as
    /// long as `'m`, and written only through the returned reference.
    pub unsafe fn find<'m>(start: NonNull<u8>, bytes: usize) -> Option<&'m Self> {
        if bytes < size_of::<Self>() {
            return None;
        }
        // SAFETY:
        // - in bounds: checked above; live and initialised: promised by the caller;
        // - valid: integers and raw pointers, which any bytes are; shared: cells.
        let header = unsafe { start.cast::<Self>().as_ref() };
        let ours = header.magic.get() == MAGIC && header.address.get() == start.addr().get();
        (ours && header.used.get() <= MAX_PARTS).then_some(header)
    }

    /// Whether the bytes begin like an arena that was made at another address.
    pub fn is_copy(bytes: &[u8], address: usize) -> bool {
        let word = |at: usize| bytes.get(at..at + 8).and_then(|b| b.try_into().ok());
        let (magic, made_at) = (
            word(0).map(u64::from_le_bytes),
            word(8).map(usize::from_le_bytes),
        );
        magic == Some(MAGIC) && made_at != Some(address)
    }

    /// Address and size of every extent, in the order in which they were added.
    pub fn parts(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let parts = self.parts.iter().take(self.used.get());
        parts.map(|p| (p.start.get().addr(), p.bytes.get()))
    }

    /// What was put into it, and by whom.
    pub fn identity(&self) -> Identity {
        Identity {
            layout: self.layout.get(),
            build: self.build.get(),
            name: read(&self.name),
            made_by: read(&self.made_by),
        }
    }

    /// Hashes of the root's layout and of the build.
    #[inline]
    pub fn hashes(&self) -> (u64, u64) {
        (self.layout.get(), self.build.get())
    }

    pub(crate) fn set_root(&self, root: *mut u8, identity: &Identity) {
        self.layout.set(identity.layout);
        self.build.set(identity.build);
        write(&self.name, &identity.name);
        write(&self.made_by, &identity.made_by);
        self.root.set(root);
    }

    /// Where the root lies, if a value of this layout can lie there in this arena.
    #[inline]
    pub(crate) fn root(&self, layout: Layout) -> Option<NonNull<u8>> {
        let root = NonNull::new(self.root.get())?;
        let at = root.addr().get();
        let within = |(start, len): (usize, usize)| {
            len.checked_sub(layout.size())
                .is_some_and(|last| at.wrapping_sub(start) <= last)
        };
        let aligned = at.is_multiple_of(layout.align().max(UNIT));
        (aligned && !self.is_head(at) && self.parts().any(within)).then_some(root)
    }

    /// Whether the head lies there. What begins behind it in the same extent does not reach it.
    #[inline]
    fn is_head(&self, at: usize) -> bool {
        at.wrapping_sub(std::ptr::from_ref(self).addr()) < FIRST
    }

    /// Bytes of all extents.
    pub fn capacity(&self) -> usize {
        self.parts()
            .fold(0, |sum, (_, bytes)| sum.saturating_add(bytes))
    }

    fn note_part(&self, start: NonNull<u8>, bytes: usize) -> bool {
        let used = self.used.get();
        let Some(part) = self.parts.get(used) else {
            return false;
        };
        part.start.set(start.as_ptr());
        part.bytes.set(bytes);
        self.used.set(used + 1);
        true
    }
}

/// A block's size: whole units.
fn round(bytes: usize) -> Option<usize> {
    bytes.max(1).checked_next_multiple_of(UNIT)
}

/// The list in which a free block of `bytes` bytes lies.
fn list_of(bytes: usize) -> usize {
    let units = bytes / UNIT;
    if units < 8 {
        return units;
    }
    let doubling = units.ilog2() as usize;
    let quarter = units >> (doubling - 2) & 3;
    (8 + 4 * (doubling - 3) + quarter).min(LISTS - 1)
}

/// The smallest block that may lie in a list.
fn least(list: usize) -> usize {
    let Some(above) = list.checked_sub(8) else {
        return list * UNIT;
    };
    (UNIT * (4 + above % 4)) << (above / 4 + 1)
}

impl Header {
    /// Hands out a block.
    #[inline]
    pub(crate) fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        let bytes = round(layout.size())?;
        if layout.align() <= UNIT
            && let Some(block) = self.take(bytes)
        {
            return Some(block);
        }
        self.bump(bytes, layout.align())
            .or_else(|| self.make_room(bytes, layout.align()))
    }

    #[cold]
    fn make_room(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        if self.untidy.get() > 0 && self.idle.get() > self.capacity() / 8 {
            self.join_blocks();
            let found = self.bump(bytes, align);
            if let Some(block) = found.or_else(|| self.take(bytes).filter(|_| align <= UNIT)) {
                return Some(block);
            }
        }
        self.grow(bytes.checked_add(align)?)?;
        self.bump(bytes, align)
    }

    /// Takes a block back.
    pub(crate) fn free(&self, block: NonNull<u8>, layout: Layout) {
        if let Some(bytes) = round(layout.size()) {
            self.free_bytes(block.addr().get(), bytes);
        }
    }

    /// Makes a block larger where it lies, if it is the last and there is room.
    pub(crate) fn extend(&self, block: NonNull<u8>, old: Layout, new: Layout) -> bool {
        let (Some(old), Some(bytes)) = (round(old.size()), round(new.size())) else {
            return false;
        };
        let (at, next) = (block.addr().get(), self.next.get());
        let fits = new.align() <= UNIT || at.is_multiple_of(new.align());
        if old == bytes {
            return fits;
        }
        let more = bytes.saturating_sub(old);
        if !fits || !self.is_last(at, old) || more > self.left() {
            return false;
        }
        self.next.set(next.wrapping_add(bytes.wrapping_sub(old)));
        true
    }

    /// Makes a block smaller where it lies.
    pub(crate) fn cut(&self, block: NonNull<u8>, old: Layout, new: Layout) {
        if let (Some(old), Some(new)) = (round(old.size()), round(new.size()))
            && new < old
        {
            self.free_bytes(block.addr().get() + new, old - new);
        }
    }

    fn free_bytes(&self, at: usize, bytes: usize) {
        let next = self.next.get();
        if self.is_last(at, bytes) {
            // From `next`, which may reach all of its extent, as the block's own need not.
            self.next.set(next.wrapping_sub(bytes));
        } else if let Some(start) = self.part_of(at) {
            self.put(start.wrapping_add(at - start.addr()), bytes);
            self.untidy.set(1);
        }
    }

    /// Whole units from `next` to the end of what is handed out from there: the newest
    /// extent. None, if that is not what the head says.
    #[inline]
    fn left(&self) -> usize {
        let Some(part) = self.newest() else {
            return 0;
        };
        let (start, bytes) = (part.start.get().addr(), part.bytes.get());
        let next = self.next.get().addr().wrapping_sub(start);
        let end = self.end.get().wrapping_sub(start);
        let head = self.is_head(self.next.get().addr());
        if head || next > end || end > bytes || !next.is_multiple_of(UNIT) {
            return 0;
        }
        (end - next) / UNIT * UNIT
    }

    #[inline]
    fn newest(&self) -> Option<&Part> {
        self.parts.get(self.used.get().checked_sub(1)?)
    }

    /// Whether a block is what was handed out last, just before `next`. One at the end of an
    /// earlier extent is not, though the newest may lie right behind it.
    #[inline]
    fn is_last(&self, at: usize, bytes: usize) -> bool {
        let within = |p: &Part| at.wrapping_sub(p.start.get().addr()) < p.bytes.get();
        at.wrapping_add(bytes) == self.next.get().addr() && self.newest().is_some_and(within)
    }

    /// The beginning of the extent that holds `at`.
    fn part_of(&self, at: usize) -> Option<*mut u8> {
        self.part(at).map(|p| p.start.get())
    }

    #[inline]
    fn part(&self, at: usize) -> Option<&Part> {
        // The last are the largest.
        let mut parts = self.parts[..self.used.get().min(MAX_PARTS)].iter().rev();
        parts.find(|p| at.wrapping_sub(p.start.get().addr()) < p.bytes.get())
    }

    /// Bytes from `block` to the end of the extent that it lies in, if it can be a free block.
    #[inline]
    fn room_at(&self, block: NonNull<Free>) -> Option<usize> {
        let at = block.addr().get();
        let part = self.part(at)?;
        let room = part.bytes.get() - at.wrapping_sub(part.start.get().addr());
        (at.is_multiple_of(UNIT) && room >= UNIT && !self.is_head(at)).then_some(room)
    }

    /// Forgets a list that leads where no free block is.
    #[cold]
    fn drop_list(&self, list: usize) {
        self.free[list].set(std::ptr::null_mut());
        self.note_empty(list);
    }

    #[inline]
    fn note_empty(&self, list: usize) {
        let some = &self.some[list / 64];
        some.set(some.get() & !(1 << (list % 64)));
    }

    /// A free block of `bytes` bytes, cut to size.
    fn take(&self, bytes: usize) -> Option<NonNull<u8>> {
        let list = list_of(bytes);
        // Of this list, a block may be large enough; of those after it, any is.
        let near = if least(list) == bytes {
            self.unlink(list, bytes, 1)
        } else {
            self.unlink(list, bytes, LOOK)
        };
        let found = near.or_else(|| self.unlink(self.first_from(list + 1)?, bytes, 1));
        let (block, all) = found?;
        if all > bytes {
            self.put(block.as_ptr().wrapping_add(bytes), all - bytes);
        }
        Some(block)
    }

    /// Takes the first block of `bytes` bytes or more from a list, if it is among the first
    /// `look`; and how large it is.
    fn unlink(&self, list: usize, bytes: usize, look: usize) -> Option<(NonNull<u8>, usize)> {
        let mut before: Option<(NonNull<Free>, usize)> = None;
        let mut at = self.free.get(list)?.get();
        for _ in 0..look {
            let block = NonNull::new(at)?;
            let Some(room) = self.room_at(block) else {
                self.drop_list(list);
                return None;
            };
            // SAFETY:
            // - live, in bounds, aligned: it lies in our extents, with a unit of room (`room_at`);
            // - initialised: `put` wrote this, or else these are any bytes of an extent, which
            //   are valid for a pointer and a number;
            // - exclusive: one thread has the arena open (the module's documentation).
            let Free { next, bytes: all } = unsafe { block.read() };
            if all > room || all < UNIT || !all.is_multiple_of(UNIT) {
                self.drop_list(list);
                return None;
            }
            if all < bytes {
                before = Some((block, all));
                at = next;
                continue;
            }
            match before {
                // SAFETY:
                // - live, exclusive: it was read just now.
                Some((before, bytes)) => unsafe { before.write(Free { next, bytes }) },
                None => self.free[list].set(next),
            }
            if self.free[list].get().is_null() {
                self.note_empty(list);
            }
            self.idle.set(self.idle.get().saturating_sub(all));
            return Some((block.cast(), all));
        }
        None
    }

    /// Joins free blocks that lie side by side in one extent, also with `next`.
    #[cold]
    fn join_blocks(&self) {
        self.untidy.set(0);
        let mut blocks = Vec::new();
        // No more than there is: a list may lead back to its beginning.
        let mut most = self.capacity();
        for list in 0..LISTS {
            while let Some((block, bytes)) = self.unlink(list, 0, 1) {
                let Some(fewer) = most.checked_sub(bytes) else {
                    self.drop_list(list);
                    break;
                };
                most = fewer;
                blocks.push((block, bytes));
            }
        }
        blocks.sort_unstable_by_key(|(block, _)| block.addr());
        let mut blocks = blocks.into_iter().peekable();
        while let Some((block, mut bytes)) = blocks.next() {
            let at = block.addr().get();
            let part = self.part_of(at);
            let joins = |end: usize, other: NonNull<u8>| {
                other.addr().get() == end && self.part_of(end) == part
            };
            while let Some((_, more)) = blocks.next_if(|(other, _)| joins(at + bytes, *other)) {
                bytes += more;
            }
            if self.is_last(at, bytes) {
                self.next.set(self.next.get().wrapping_sub(bytes));
            } else if let Some(start) = part {
                self.put(start.wrapping_add(at - start.addr()), bytes);
            }
        }
    }

    /// The first list from `list` on that has a block.
    fn first_from(&self, list: usize) -> Option<usize> {
        let mut mask = u64::MAX << (list % 64);
        for (i, word) in self.some.iter().enumerate().skip(list / 64) {
            let found = word.get() & mask;
            if found != 0 {
                return Some(i * 64 + found.trailing_zeros() as usize);
            }
            mask = u64::MAX;
        }
        None
    }

    /// Puts a block of whole units on its list.
    fn put(&self, block: *mut u8, bytes: usize) {
        let list = list_of(bytes);
        let block = block.cast::<Free>();
        let next = self.free[list].get();
        // SAFETY:
        // - in bounds and aligned: a block is a multiple of `UNIT` bytes of our extents, at a
        //   multiple of it: what was handed out, and is cut from `left` or from a checked block;
        // - exclusive: no code uses it, it was given back or never handed out.
        unsafe { block.write(Free { next, bytes }) };
        self.idle.set(self.idle.get().saturating_add(bytes));
        self.free[list].set(block);
        self.some[list / 64].set(self.some[list / 64].get() | 1 << (list % 64));
    }

    /// Hands out from `next`.
    fn bump(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        let next = self.next.get();
        let aligned = next.addr().checked_next_multiple_of(align.max(UNIT))?;
        let gap = aligned - next.addr();
        if bytes.checked_add(gap)? > self.left() {
            return None;
        }
        if gap > 0 {
            self.put(next, gap);
        }
        let block = next.wrapping_add(gap);
        self.next.set(block.wrapping_add(bytes));
        NonNull::new(block)
    }

    /// Takes another extent.
    #[cold]
    fn grow(&self, need: usize) -> Option<()> {
        if self.used.get() >= MAX_PARTS {
            growth::refuse(NoRoom::Extents { limit: MAX_PARTS });
            return None;
        }
        // A small one grows fast: each extent costs a little at each hand-over.
        let all = self.capacity();
        let wish = if all < SMALL { 3 * all } else { all };
        let (start, bytes) = growth::more(self, need, need.max(wish))?;
        self.append(start, bytes);
        Some(())
    }

    /// Goes on in a fresh extent; the rest of the last becomes a block.
    fn append(&self, start: NonNull<u8>, bytes: usize) {
        let rest = self.left();
        if rest > 0 {
            self.put(self.next.get(), rest);
        }
        self.next.set(start.as_ptr());
        self.end.set(start.addr().get() + bytes / UNIT * UNIT);
        self.note_part(start, bytes);
    }
}

fn write(cells: &[Cell<u8>], text: &str) {
    let bytes = text.bytes().chain(std::iter::repeat(0));
    cells.iter().zip(bytes).for_each(|(c, b)| c.set(b));
}

fn read(cells: &[Cell<u8>]) -> String {
    let bytes: Vec<u8> = cells
        .iter()
        .map(Cell::get)
        .take_while(|b| *b != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXTENT: usize = 8192;

    /// An arena whose second extent lies right behind the first, which is full of one block.
    fn two_in_a_row(memory: &mut [u128]) -> (&Header, NonNull<u8>, Layout) {
        let start = NonNull::from(memory).cast::<u8>();
        // SAFETY:
        // - aligned, writable, exclusively the caller's, for as long as the header lives.
        let header = unsafe { Header::begin(start, EXTENT) }.unwrap();
        let all = Layout::from_size_align(header.left(), UNIT).unwrap();
        let block = header.allocate(all).unwrap();
        let second = start.as_ptr().wrapping_add(EXTENT);
        header.append(NonNull::new(second).unwrap(), EXTENT);
        assert_eq!(header.next.get(), block.as_ptr().wrapping_add(all.size()));
        (header, block, all)
    }

    #[test]
    fn a_block_right_before_the_newest_extent_is_not_taken_for_the_last_handed_out() {
        let mut memory = vec![0_u128; 2 * EXTENT / size_of::<u128>()];
        let (header, block, all) = two_in_a_row(&mut memory);

        let more = Layout::from_size_align(all.size() + UNIT, UNIT).unwrap();
        assert!(!header.extend(block, all, more));
        header.free(block, all);
        assert_eq!(header.left(), EXTENT);
        assert_eq!(header.allocate(all), Some(block));
    }

    #[test]
    fn joined_blocks_right_before_the_newest_extent_stay_in_their_own() {
        let mut memory = vec![0_u128; 2 * EXTENT / size_of::<u128>()];
        let (header, block, all) = two_in_a_row(&mut memory);

        let half = Layout::from_size_align(all.size() / 2 / UNIT * UNIT, UNIT).unwrap();
        let rest = Layout::from_size_align(all.size() - half.size(), UNIT).unwrap();
        header.free(block, half);
        let second = NonNull::new(block.as_ptr().wrapping_add(half.size())).unwrap();
        header.free(second, rest);
        header.join_blocks();
        assert_eq!(header.left(), EXTENT);
        assert_eq!(header.allocate(all), Some(block));
    }

    #[test]
    fn every_block_of_a_list_is_as_large_as_the_list_says() {
        for units in (1..5000).chain((5..30).flat_map(|e| [(1 << e) - 1, 1 << e, 5 << e])) {
            let bytes = units * UNIT;
            let list = list_of(bytes);
            assert!(least(list) <= bytes, "{units} units lie in list {list}");
            assert!(
                list + 1 == LISTS || least(list + 1) > bytes,
                "{units} units"
            );
        }
    }
}
