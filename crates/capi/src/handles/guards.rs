//! What a call holds of a slot, and what becomes of the slot when the call is through with it.
//!
//! | guard | the slot |
//! |---|---|
//! | [`Reserved`] | was free, and has no handle yet |
//! | [`Placed`] | the same, with a value |
//! | [`Sole`] | is used by this call alone |
//! | [`Shared`] | is used by this call, and perhaps others |
//! | [`Vacated`] | is used by this call alone, and its value was taken out |

use super::{Handle, Slot};
use std::mem::{MaybeUninit, forget};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;

/// A value in a slot that has no handle yet; dropped, it is dropped.
pub(super) struct Placed<'s, T>(pub(super) &'s mut T);

impl<T> Drop for Placed<'_, T> {
    fn drop(&mut self) {
        // SAFETY:
        // - Initialised, and nobody's: it was written for this, and is looked at no more.
        unsafe { std::ptr::drop_in_place(self.0) };
    }
}

/// A slot whose value was taken out; dropped, it is free.
pub(crate) struct Vacated<H: Handle> {
    slot: &'static Slot<H::Value>,
    id: u64,
}

impl<H: Handle> Vacated<H> {
    /// That of a value which is about to be taken out.
    pub(super) fn of(sole: &Sole<H::Value>) -> Self {
        Self {
            slot: sole.slot,
            id: sole.id,
        }
    }

    /// Puts a value back: the handle is as it was.
    pub(super) fn refill(self, value: H::Value) {
        let (slot, id) = (self.slot, self.id);
        forget(self);
        // SAFETY:
        // - Exclusive: this call has the slot alone (H2), and its value was taken out.
        unsafe { slot.value.get().write(MaybeUninit::new(value)) };
        // Release: pairs with the next lookup.
        slot.word.store(id, Ordering::Release);
    }
}

impl<H: Handle> Drop for Vacated<H> {
    #[inline]
    fn drop(&mut self) {
        H::release(self.id, self.slot);
    }
}

/// A slot that this call has taken from the list of free ones; dropped, it goes back there.
pub(crate) struct Reserved<H: Handle> {
    /// Its index, as a place.
    pub(super) at: u64,
    pub(super) slot: &'static Slot<H::Value>,
}

impl<H: Handle> Reserved<H> {
    /// That of this index, which this call alone has.
    pub(super) fn of(at: u64) -> Self {
        // SAFETY:
        // - An index that was handed out is a slot's.
        let slot = unsafe { &*H::table().place(at) };
        Self { at, slot }
    }
}

impl<H: Handle> Drop for Reserved<H> {
    fn drop(&mut self) {
        let slot = self.slot;
        let generation = slot.word.load(Ordering::Relaxed) & H::GENERATION;
        H::table().push(slot, self.at, generation, H::MASK, H::NEXT);
    }
}

/// A value that this call alone uses.
pub(crate) struct Sole<T: 'static> {
    pub(super) slot: &'static Slot<T>,
    /// The handle, which is the slot's word when no call uses it.
    pub(super) id: u64,
}

impl<T> Sole<T> {
    /// Its slot; it stays used by this call.
    #[inline(always)]
    pub(crate) fn leave(self) -> &'static Slot<T> {
        let slot = self.slot;
        forget(self);
        slot
    }
}

impl<T> Deref for Sole<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY:
        // - Exclusive: this call has the slot alone (H2).
        let value = unsafe { &*self.slot.value.get() };
        // SAFETY:
        // - Initialised (H1).
        unsafe { value.assume_init_ref() }
    }
}

impl<T> DerefMut for Sole<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY:
        // - Exclusive: this call has the slot alone (H2), and `self` is borrowed so.
        let value = unsafe { &mut *self.slot.value.get() };
        // SAFETY:
        // - Initialised (H1).
        unsafe { value.assume_init_mut() }
    }
}

impl<T> Drop for Sole<T> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: pairs with the next lookup.
        self.slot.word.store(self.id, Ordering::Release);
    }
}

/// A value that this call uses, beside others.
pub(crate) struct Shared<T: 'static> {
    pub(super) slot: &'static Slot<T>,
    /// What a use counts in the slot's word: the kind's [`Handle::ONE`].
    pub(super) one: u64,
}

impl<T> Shared<T> {
    /// As [`Sole::leave`].
    #[inline(always)]
    pub(crate) fn leave(self) -> &'static Slot<T> {
        let slot = self.slot;
        forget(self);
        slot
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY:
        // - No call changes it: this one has counted itself in (H2).
        let value = unsafe { &*self.slot.value.get() };
        // SAFETY:
        // - Initialised (H1).
        unsafe { value.assume_init_ref() }
    }
}

impl<T> Drop for Shared<T> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: pairs with the lookup of the call that frees it.
        self.slot.word.fetch_sub(self.one, Ordering::Release);
    }
}
