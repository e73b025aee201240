//! Gets more memory for an arena, from deep within an insertion.
//!
//! No pointer into a process may lie in the region, so an arena cannot point to its
//! holder. While it is open, its thread notes who gives it memory; the note is looked at
//! only when what the arena has is used up.

use crate::header::Header;
use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::rc::Rc;

/// Why an arena could not hold more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoRoom {
    /// The state's: the domain's limit is reached.
    #[error(
        "no {wanted} bytes more for the structure: {free} bytes of the domain are free and its limit is {limit}; receive or free messages, or create the domain with a higher limit"
    )]
    OutOfPages {
        /// Bytes asked for.
        wanted: u64,
        /// Bytes that are free, in pieces that may be smaller.
        free: u64,
        /// Bytes that the domain may have.
        limit: u64,
    },
    /// The caller's: the structure lies in too many extents already.
    #[error(
        "the structure lies in {limit} extents, and that is the most: begin with a larger one (Structure::with_capacity)"
    )]
    Extents {
        /// The limit.
        limit: usize,
    },
    /// The caller's: more bytes than a program can address.
    #[error("a collection of that size is larger than any memory: ask for less")]
    TooLarge,
    /// The caller's: the message holds as many extents as a message may.
    #[error("the message holds {limit} extents already: send some of them apart")]
    Message {
        /// The limit.
        limit: usize,
    },
    /// The caller's: this process may not use its membership any more.
    #[error("this process is not a member of the domain any more, or was forked from one")]
    Disowned,
}

/// A value that found no room, and why. The value is the caller's again, and the
/// collection is as it was.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct Full<T> {
    /// Why.
    pub reason: NoRoom,
    /// What was to be added.
    pub item: T,
}

impl<T> From<Full<T>> for NoRoom {
    fn from(full: Full<T>) -> Self {
        full.reason
    }
}

/// Gives an arena more memory.
///
/// # Safety
///
/// What `grow` returns is readable and writable, aligned to 16 bytes, used by no other code,
/// and stays so for as long as the arena is used, in this process and in those it goes to.
pub unsafe trait Grow {
    /// At least `need` bytes, better `wish`, and how many there are.
    ///
    /// # Errors
    ///
    /// Why there are not.
    fn grow(&self, need: usize, wish: usize) -> Result<(NonNull<u8>, usize), NoRoom>;
}

thread_local! {
    /// The arenas that this thread has open, the innermost last.
    static OPEN: RefCell<Vec<(usize, Rc<dyn Grow>)>> = const { RefCell::new(Vec::new()) };
    /// Why the last allocation failed: allocators cannot say.
    static WHY: Cell<Option<NoRoom>> = const { Cell::new(None) };
}

/// Keeps an arena open until dropped.
pub(crate) struct Open;

/// Notes who gives `header` memory.
pub(crate) fn open(header: &Header, grow: Rc<dyn Grow>) -> Open {
    let address = std::ptr::from_ref(header).addr();
    OPEN.with_borrow_mut(|open| open.push((address, grow)));
    Open
}

impl Drop for Open {
    fn drop(&mut self) {
        // Closures nest, so the last one is ours.
        let last = OPEN.with_borrow_mut(Vec::pop);
        drop(last);
    }
}

/// Asks the holder of `header` for memory.
#[cold]
pub(crate) fn more(header: &Header, need: usize, wish: usize) -> Option<(NonNull<u8>, usize)> {
    let address = std::ptr::from_ref(header).addr();
    let grow = OPEN.with_borrow(|open| {
        let found = open.iter().rev().find(|(at, _)| *at == address);
        found.map(|(_, grow)| Rc::clone(grow))
    });
    let given = grow
        .ok_or(NoRoom::Disowned)
        .and_then(|g| g.grow(need, wish));
    given.map_err(refuse).ok()
}

/// Notes why an allocation fails.
pub(crate) fn refuse(reason: NoRoom) {
    WHY.set(Some(reason));
}

/// Why the last allocation of this thread failed.
#[cold]
pub(crate) fn why() -> NoRoom {
    WHY.take().unwrap_or(NoRoom::TooLarge)
}
