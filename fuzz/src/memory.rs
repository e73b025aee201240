//! The one file with unsafe code: memory that the fuzzer writes, and that the library reads
//! as what it should be.

use portolan_arena::growth::Grow;
use portolan_arena::header::Header;
use portolan_arena::{Arena, NoRoom, Root, root};
use portolan_shm::channel::{Head, ReaderEntry};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::AtomicU64;

/// Records of a channel, which are atomic words and nothing else.
///
/// # Safety
///
/// The type is aligned to eight bytes, has a multiple of them, and any bytes are a value.
pub(crate) unsafe trait Words: Sized {
    /// Its words.
    fn words(&self) -> &[AtomicU64] {
        let count = size_of::<Self>() / size_of::<AtomicU64>();
        // SAFETY:
        // - in bounds, aligned: the trait's promise;
        // - initialised and shared: atomics, whose bytes change through shared references;
        // - live: as long as `self`.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), count) }
    }
}

// SAFETY:
// - atomic integers within 64-byte lines: see its definition.
unsafe impl Words for Head {}
// SAFETY:
// - as above.
unsafe impl Words for ReaderEntry {}

/// Most bytes of an arena: enough to grow often.
const MOST: usize = 1 << 20;

/// An extent: memory of its own, so that the sanitizer sees what lies beside it.
struct Extent {
    start: NonNull<u8>,
    layout: Layout,
}

impl Extent {
    fn new(bytes: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes, 4096).ok()?;
        // SAFETY:
        // - not of no size: callers ask for a page at least.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else {
            handle_alloc_error(layout)
        };
        Some(Self { start, layout })
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        // SAFETY:
        // - allocated with this layout, and used by no code: its arena goes with it.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// The extents of a message that holds a structure.
pub(crate) struct Extents(Rc<RefCell<Vec<Extent>>>);

/// Gives an arena more of them.
struct More(Rc<RefCell<Vec<Extent>>>);

// SAFETY:
// - readable, writable, aligned: allocated so;
// - used by no other code, and kept: they are dropped with the message, after the arena.
unsafe impl Grow for More {
    fn grow(&self, need: usize, wish: usize) -> Result<(NonNull<u8>, usize), NoRoom> {
        let mut all = self.0.borrow_mut();
        let used: usize = all.iter().map(|e| e.layout.size()).sum();
        let full = NoRoom::OutOfPages {
            wanted: need as u64,
            free: MOST.saturating_sub(used) as u64,
            limit: MOST as u64,
        };
        let fits = |bytes: &usize| used.checked_add(*bytes).is_some_and(|sum| sum <= MOST);
        let whole = |bytes: usize| bytes.checked_next_multiple_of(4096).filter(fits);
        let bytes = whole(wish).or_else(|| whole(need)).ok_or(full)?;
        let extent = Extent::new(bytes.max(4096)).ok_or(NoRoom::TooLarge)?;
        let given = (extent.start, extent.layout.size());
        all.push(extent);
        Ok(given)
    }
}

impl Extents {
    /// A structure of type `T`, of plain numbers, in an extent of two pages.
    pub(crate) fn build<T: Root>(
        make: impl for<'a> FnOnce(Arena<'a>) -> Result<T::At<'a>, NoRoom>,
    ) -> Option<Self> {
        let first = Extent::new(8192)?;
        let (start, bytes) = (first.start, first.layout.size());
        let extents = Self(Rc::new(RefCell::new(vec![first])));
        // SAFETY:
        // - aligned, readable, writable, exclusive: allocated just now, kept as long as
        //   `extents`.
        let header = unsafe { Header::begin(start, bytes) }?;
        root::build::<T, NoRoom>(header, extents.more(), make).ok()?;
        Some(extents)
    }

    fn more(&self) -> Rc<dyn Grow> {
        Rc::new(More(Rc::clone(&self.0)))
    }

    /// The bytes of the head, as a member with a stray pointer writes them.
    pub(crate) fn scribble(&mut self, at: usize, bytes: &[u8]) {
        let extents = self.0.borrow();
        let room = extents[0].layout.size().min(size_of::<Header>());
        let at = at % room;
        let len = bytes.len().min(room - at);
        // SAFETY:
        // - in bounds, writable: within the first extent; apart: `bytes` lies elsewhere;
        // - exclusive: `self` is, and no arena is open.
        unsafe {
            let to = extents[0].start.as_ptr().wrapping_add(at);
            to.copy_from_nonoverlapping(bytes.as_ptr(), len);
        }
    }

    /// Where the first extent lies, for pointers that are almost right.
    pub(crate) fn address(&self) -> usize {
        self.0.borrow()[0].start.addr().get()
    }

    /// The head, if its extents are those that there are: what the library compares.
    fn header(&self) -> Option<&Header> {
        let extents = self.0.borrow();
        let (start, bytes) = (extents[0].start, extents[0].layout.size());
        // SAFETY:
        // - aligned, initialised, readable: allocated as zeros, kept as long as `self`;
        // - written through what is returned alone: `scribble` wants `self` to itself.
        let header = unsafe { Header::find(start, bytes) }?;
        let parts = header.parts().collect::<Vec<_>>();
        let held = extents.iter();
        let held = held.map(|e| (e.start.addr().get(), e.layout.size()));
        // A message may hold more than its structure; its arena lists an extent after it is added.
        held.take(parts.len()).eq(parts).then_some(header)
    }

    /// The root, whose type must be such that any bytes are a value.
    pub(crate) fn read<T: Root>(&self) -> Option<&T::At<'_>> {
        let header = self.header()?;
        // SAFETY:
        // - a `T`: any bytes are one (the caller), and they lie within the extents;
        // - unchanged: `self` is borrowed.
        unsafe { root::read::<T>(header) }
    }

    /// Runs `change`, on a root as in [`Self::read`].
    pub(crate) fn edit<T: Root, R>(
        &mut self,
        change: impl for<'r, 'a> FnOnce(&'r mut T::At<'a>, Arena<'a>) -> R,
    ) -> Option<R> {
        let more = self.more();
        let header = self.header()?;
        // SAFETY:
        // - as in `read`; no other code uses them: `self` is borrowed exclusively.
        unsafe { root::edit::<T, R>(header, more, change) }
    }

    /// Whether something lies within the extents.
    pub(crate) fn holds(&self, address: usize, bytes: usize) -> bool {
        self.0.borrow().iter().any(|e| {
            let at = address.wrapping_sub(e.start.addr().get());
            at <= e.layout.size() && bytes <= e.layout.size() - at
        })
    }
}
