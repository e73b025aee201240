//! Gives the three ways into an arena: build, read, edit.
//!
//! What lies in an arena has a lifetime for a parameter that stands for that arena. To
//! read is to lend the root out with the lifetime of the borrow. To change it, a closure
//! is run that works for *any* such lifetime: so nothing that it takes out of the arena,
//! or from one arena that it finds in another, has a type that fits anywhere outside, and
//! what would dangle after the message was sent does not compile (S2).
//!
//! Why not a guard with `DerefMut`: two guards of two messages can be lent for the same
//! time, their roots have the same type then, and `mem::swap` takes memory from one message
//! to the other.

use crate::growth::{self, Grow};
use crate::handle::Arena;
use crate::handover::{Root, identity_of};
use crate::header::Header;
use crate::{Full, NoRoom};
use std::alloc::Layout;
use std::rc::Rc;

/// Builds the root of a new arena with `make`, which may fail.
///
/// # Errors
///
/// What `make` says, or [`NoRoom`] for the root itself.
pub fn build<T: Root, E: From<NoRoom>>(
    header: &Header,
    grow: Rc<dyn Grow>,
    make: impl for<'a> FnOnce(Arena<'a>) -> Result<T::At<'a>, E>,
) -> Result<(), E> {
    let open = growth::open(header, grow);
    let root = make(Arena::new(header))?;
    let block = header.allocate(Layout::new::<T::At<'_>>());
    let block = block.ok_or_else(growth::why)?.cast::<T::At<'_>>();
    // SAFETY:
    // - writable, aligned, in bounds: handed out just now with this layout.
    unsafe { block.write(root) };
    header.set_root(block.as_ptr().cast(), &identity_of::<T>());
    drop(open);
    Ok(())
}

/// The root; `None` if there is none within the arena.
///
/// # Safety
///
/// - The arena's root is a `T`, of this build: compare [`Header::hashes`] with
///   [`crate::handover::layout_of`] and [`crate::handover::BUILD_HASH`].
/// - All extents of the arena are readable, and no code changes them, for as long as `'m`.
#[inline]
pub unsafe fn read<'m, T: Root>(header: &'m Header) -> Option<&'m T::At<'m>> {
    let root = header.root(Layout::new::<T::At<'m>>())?.cast::<T::At<'m>>();
    // SAFETY:
    // - in bounds: it lies within an extent of the arena; aligned: `root` looked;
    // - initialised, of this type, unchanged for 'm: promised by the caller.
    Some(unsafe { root.as_ref() })
}

/// Runs `change` on the root; `None` if there is none within the arena.
///
/// # Safety
///
/// As for [`read`], and no other code uses the arena's extents before this returns.
pub unsafe fn edit<T: Root, R>(
    header: &Header,
    grow: Rc<dyn Grow>,
    change: impl for<'r, 'a> FnOnce(&'r mut T::At<'a>, Arena<'a>) -> R,
) -> Option<R> {
    let mut root = header.root(Layout::new::<T::At<'_>>())?.cast::<T::At<'_>>();
    // SAFETY:
    // - in bounds, aligned, initialised, of this type: as in `read`;
    // - exclusive: promised by the caller; what `change` allocates lies elsewhere.
    let root = unsafe { root.as_mut() };
    let _open = growth::open(header, grow);
    Some(change(root, Arena::new(header)))
}

impl<T> Full<T> {
    /// The value, without the reason.
    pub fn into_item(self) -> T {
        self.item
    }
}
