//! Gives collections their allocator, and a program its handle of an arena.

use crate::growth::{Full, NoRoom};
use crate::header::Header;
use crate::{Boxed, List, Map, Text, Tree};
use allocator_api2::alloc::{AllocError, Allocator};
use std::alloc::Layout;
use std::marker::PhantomData;
use std::ptr::NonNull;

/// An arena that is open: where collections are made.
///
/// `'a` stands for this arena and no other, and ends with the closure in which it is open.
#[derive(Clone, Copy)]
pub struct Arena<'a> {
    handle: Handle<'a>,
    /// Allocation is for the thread that opened the arena.
    thread: PhantomData<*const ()>,
}

/// What every collection holds: a pointer to the head of its arena, and nothing else.
///
/// It is `Sync`, and so are the collections: they use it only through `&mut self`, when
/// dropped, or when made, so nothing is allocated or freed through a shared one (S3). It
/// is not `Send`: only the thread that opened the arena may change what is in it.
#[derive(Clone, Copy)]
pub(crate) struct Handle<'a> {
    header: &'a Header,
    /// Invariant: one arena's lifetime is never taken for another's.
    brand: PhantomData<fn(&'a ()) -> &'a ()>,
}

// SAFETY:
// - no data race: `Handle` is private to this crate, whose collections call it only with
//   exclusive access to themselves, which stays in the thread that opened the arena,
//   because `&Header` and with it `Handle` is not `Send` (S3).
unsafe impl Sync for Handle<'_> {}

impl<'a> Handle<'a> {
    pub(crate) fn new(header: &'a Header) -> Self {
        Self {
            header,
            brand: PhantomData,
        }
    }
}

// SAFETY:
// - blocks stay valid: the arena's extents live for 'a, and a block is handed out again only
//   after it was given back;
// - copies are the same allocator: they point to one header;
// - moving a handle changes nothing: the header does not move.
unsafe impl Allocator for Handle<'_> {
    #[inline]
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let block = self.header.allocate(layout).ok_or(AllocError)?;
        Ok(NonNull::slice_from_raw_parts(block, layout.size()))
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        if layout.size() > 0 {
            self.header.free(block, layout);
        }
    }

    unsafe fn grow(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        if old.size() > 0 && self.header.extend(block, old, new) {
            return Ok(NonNull::slice_from_raw_parts(block, new.size()));
        }
        let other = self.allocate(new)?;
        // SAFETY:
        // - readable: the caller's block has `old` bytes; writable: `other` has more. Both lie
        //   apart, unless the list of free blocks was damaged; nothing depends on that.
        unsafe { block.copy_to(other.cast(), old.size()) };
        // SAFETY:
        // - handed out by this arena with this layout: the caller's promise.
        unsafe { self.deallocate(block, old) };
        Ok(other)
    }

    unsafe fn shrink(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // Alignments do not rise when a collection shrinks, so this never fails.
        if !block.addr().get().is_multiple_of(new.align()) {
            return Err(AllocError);
        }
        if new.size() == 0 {
            // SAFETY:
            // - handed out by this arena with this layout: the caller's promise.
            unsafe { self.deallocate(block, old) };
            return Ok(NonNull::slice_from_raw_parts(block, 0));
        }
        self.header.cut(block, old, new);
        Ok(NonNull::slice_from_raw_parts(block, new.size()))
    }
}

impl<'a> Arena<'a> {
    pub(crate) fn new(header: &'a Header) -> Self {
        Self {
            handle: Handle::new(header),
            thread: PhantomData,
        }
    }

    pub(crate) fn handle(self) -> Handle<'a> {
        self.handle
    }

    /// Bytes of all its extents, its head and what is free included.
    pub fn capacity(self) -> usize {
        self.handle.header.capacity()
    }

    /// An empty list. It takes memory when something is put into it; so do maps and trees.
    pub fn list<T>(self) -> List<'a, T> {
        List::new_in(self)
    }

    /// A text.
    ///
    /// # Errors
    ///
    /// [`NoRoom`].
    pub fn text(self, text: &str) -> Result<Text<'a>, NoRoom> {
        let mut copy = Text::new_in(self);
        copy.push_str(text)?;
        Ok(copy)
    }

    /// An empty hash map.
    pub fn map<K, V>(self) -> Map<'a, K, V> {
        Map::new_in(self)
    }

    /// An empty ordered map.
    pub fn tree<K, V>(self) -> Tree<'a, K, V> {
        Tree::new_in(self)
    }

    /// A value of its own.
    ///
    /// # Errors
    ///
    /// The value comes back if there is no room.
    pub fn boxed<T>(self, value: T) -> Result<Boxed<'a, T>, Full<T>> {
        Boxed::new_in(value, self)
    }
}

impl std::fmt::Debug for Arena<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut s = f.debug_struct("Arena");
        s.field("capacity", &self.capacity()).finish()
    }
}
