//! Boxes hold one value in an arena, for trees and lists of a program's own.

use crate::growth::{Full, why};
use crate::handle::{Arena, Handle};
use allocator_api2::boxed::Box;
use std::ops::{Deref, DerefMut};

/// A value of its own in an arena: the link of a recursive type.
///
/// ```
/// use portolan::Handover;
/// use portolan::structure::{Boxed, NoRoom, Structure};
///
/// #[derive(Handover)]
/// struct Node<'a> {
///     value: u32,
///     left: Option<Boxed<'a, Node<'a>>>,
///     right: Option<Boxed<'a, Node<'a>>>,
/// }
///
/// let domain = portolan::Domain::private()?;
/// let tree = Structure::<Node>::build(&domain, |arena| {
///     let leaf = |value| arena.boxed(Node { value, left: None, right: None });
///     Ok(Node { value: 2, left: Some(leaf(1)?), right: Some(leaf(3)?) })
/// })?;
/// assert_eq!(tree.root()?.left.as_ref().map(|n| n.value), Some(1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Boxed<'a, T>(Box<T, Handle<'a>>);

impl<'a, T> Boxed<'a, T> {
    /// Puts a value into the arena.
    ///
    /// # Errors
    ///
    /// The value comes back if there is no room.
    pub fn new_in(value: T, arena: Arena<'a>) -> Result<Self, Full<T>> {
        match Box::try_new_uninit_in(arena.handle()) {
            Ok(place) => Ok(Self(Box::write(place, value))),
            Err(_) => Err(Full {
                reason: why(),
                item: value,
            }),
        }
    }

    /// Takes the value out; its room goes back to the arena.
    pub fn into_inner(self) -> T {
        Box::into_inner(self.0)
    }
}

impl<T> Deref for Boxed<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Boxed<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for Boxed<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: PartialEq> PartialEq for Boxed<'_, T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Eq> Eq for Boxed<'_, T> {}
