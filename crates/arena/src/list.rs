//! Vectors keep a list of values in an arena.

use crate::growth::{Full, NoRoom, why};
use crate::handle::{Arena, Handle};
use allocator_api2::vec::Vec;
use std::ops::{Deref, DerefMut};

/// A vector in an arena.
///
/// ```
/// use portolan::structure::{List, Structure};
/// let domain = portolan::Domain::private()?;
/// let mut numbers = Structure::<List<u32>>::build(&domain, |arena| Ok(arena.list()))?;
/// numbers.edit(|list, _| list.push(7))??;
/// assert_eq!(numbers.root()?[..], [7]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct List<'a, T>(Vec<T, Handle<'a>>);

impl<'a, T> List<'a, T> {
    /// An empty list; it takes memory when something is put into it.
    pub fn new_in(arena: Arena<'a>) -> Self {
        Self(Vec::new_in(arena.handle()))
    }

    pub(crate) fn in_handle(handle: Handle<'a>) -> Self {
        Self(Vec::new_in(handle))
    }

    pub(crate) fn handle(&self) -> Handle<'a> {
        *self.0.allocator()
    }

    /// Moves the values from `at` on to the end of `other`, which has room for them.
    pub(crate) fn move_tail(&mut self, at: usize, other: &mut Self) {
        debug_assert!(
            other.capacity() - other.len() >= self.len().saturating_sub(at),
            "there is room"
        );
        other.0.extend(self.0.drain(at.min(self.0.len())..));
    }

    /// Makes room for `more` further values.
    ///
    /// # Errors
    ///
    /// [`NoRoom`]; the list stays as it was.
    pub fn reserve(&mut self, more: usize) -> Result<(), NoRoom> {
        self.0.try_reserve(more).map_err(|_| why())
    }

    /// As [`List::reserve`], and no more than that.
    ///
    /// # Errors
    ///
    /// [`NoRoom`]; the list stays as it was.
    pub fn reserve_exact(&mut self, more: usize) -> Result<(), NoRoom> {
        self.0.try_reserve_exact(more).map_err(|_| why())
    }

    /// Appends a value.
    ///
    /// # Errors
    ///
    /// The value comes back if there is no room.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), Full<T>> {
        if self.0.len() == self.0.capacity()
            && let Err(reason) = self.reserve(1)
        {
            return Err(Full {
                reason,
                item: value,
            });
        }
        self.0.push(value);
        Ok(())
    }

    /// Puts a value before the one at `index` (at the end, if there are fewer).
    ///
    /// # Errors
    ///
    /// The value comes back if there is no room.
    pub fn insert(&mut self, index: usize, value: T) -> Result<(), Full<T>> {
        if let Err(reason) = self.reserve(1) {
            return Err(Full {
                reason,
                item: value,
            });
        }
        self.0.insert(index.min(self.0.len()), value);
        Ok(())
    }

    /// Takes the last value out.
    pub fn pop(&mut self) -> Option<T> {
        self.0.pop()
    }

    /// Takes the value at `index` out.
    pub fn remove(&mut self, index: usize) -> Option<T> {
        (index < self.0.len()).then(|| self.0.remove(index))
    }

    /// Takes the value at `index` out and puts the last into its place.
    pub fn swap_remove(&mut self, index: usize) -> Option<T> {
        (index < self.0.len()).then(|| self.0.swap_remove(index))
    }

    /// Drops all values from `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }

    /// Keeps the values for which `keep` is true.
    pub fn retain(&mut self, keep: impl FnMut(&T) -> bool) {
        self.0.retain(keep);
    }

    /// Drops all values; their room stays.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Gives room that is not used back to the arena.
    pub fn shrink_to_fit(&mut self) {
        self.0.shrink_to_fit();
    }

    /// Takes all values and their room out; an empty list of the same arena stays.
    pub fn take(&mut self) -> Self {
        let empty = Self::in_handle(self.handle());
        std::mem::replace(self, empty)
    }

    /// Values it can hold without growing.
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }
}

impl<T: Copy> List<'_, T> {
    /// Appends copies of `values`.
    ///
    /// # Errors
    ///
    /// [`NoRoom`]; the list stays as it was.
    pub fn extend_from_slice(&mut self, values: &[T]) -> Result<(), NoRoom> {
        self.reserve(values.len())?;
        self.0.extend_from_slice(values);
        Ok(())
    }
}

impl<T> Deref for List<'_, T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> DerefMut for List<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for List<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self[..].fmt(f)
    }
}

impl<T: PartialEq> PartialEq for List<'_, T> {
    fn eq(&self, other: &Self) -> bool {
        self[..] == other[..]
    }
}

impl<T: Eq> Eq for List<'_, T> {}

impl<'l, T> IntoIterator for &'l List<'_, T> {
    type Item = &'l T;
    type IntoIter = std::slice::Iter<'l, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'l, T> IntoIterator for &'l mut List<'_, T> {
    type Item = &'l mut T;
    type IntoIter = std::slice::IterMut<'l, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}
